//! Memory that leaves for windows, by what guests were answered. A chunk that is back before the guest's store was tried again leaves once more,
//! and so on.

use std::collections::BTreeMap;

use vgpu::{Action, Direction, Event, MoveCause, Notice, VmId};

use crate::checkers::Violation;

/// So many times its memory may leave while a VM waits: each chunk once, and again for what a guest changes meanwhile.
const TIMES: u64 = 2;

/// What has left for the windows of each VM since it was answered last.
#[derive(Default)]
pub(super) struct Shown {
    vram: BTreeMap<VmId, u64>,
    left: BTreeMap<VmId, u64>,
}

impl Shown {
    /// Looks at what was done.
    pub(super) fn after(&mut self, event: &Event, actions: &[Action]) -> Result<(), Violation> {
        if let Event::Attach { vm, config } = event {
            self.vram.insert(*vm, config.guest_vram);
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
                    if *left > TIMES * vram {
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
