//! Memory that leaves for windows, by what guests were answered. A chunk that is back before the guest's store was tried again leaves once more,
//! and so on.

use std::collections::{BTreeMap, BTreeSet};

use vgpu::{Action, Direction, Event, MoveCause, Notice, VmId};

use crate::checkers::Violation;

/// So many times its memory may leave while a VM waits: each chunk once, and again for what a guest changes meanwhile.
const TIMES: u64 = 2;
/// The same of a guest that is after harm: it stores to the tables of its windows all the time, and has other chunks leave at each look, some 20 ms
/// apart. Its store waits for 4.5 s at most; far more than this leaves of a chunk that comes back before it is shown.
const TIMES_OF_HARM: u64 = 8;

/// What has left for the windows of each VM since it was answered last.
#[derive(Default)]
pub(super) struct Shown {
    vram: BTreeMap<VmId, u64>,
    left: BTreeMap<VmId, u64>,
    harms: BTreeSet<VmId>,
}

impl Shown {
    /// The VM's guest is after harm.
    pub(super) fn harms(&mut self, vm: VmId) {
        self.harms.insert(vm);
    }

    /// Looks at what was done.
    pub(super) fn after(&mut self, event: &Event, actions: &[Action]) -> Result<(), Violation> {
        if let Event::Attach { vm, config } = event {
            self.vram.insert(*vm, config.guest_vram);
            self.harms.remove(vm);
        }
        for action in actions {
            match action {
                Action::Reply { vm, .. } => drop(self.left.remove(vm)),
                Action::Notice(Notice::Moved {
                    vm,
                    direction: Direction::Spill,
                    cause: MoveCause::Shown,
                    bytes,
                    ..
                }) => {
                    let left = self.left.entry(*vm).or_default();
                    *left += bytes;
                    let vram = self.vram.get(vm).copied().unwrap_or(0);
                    let times = match self.harms.contains(vm) {
                        true => TIMES_OF_HARM,
                        false => TIMES,
                    };
                    if *left > times * vram {
                        return Err(Violation(format!(
                            "{left} bytes of {vm}, which has {vram}, leave for windows while it waits"
                        )));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
