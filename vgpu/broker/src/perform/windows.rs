//! Windows that a VM's client maps: the file behind them, and the pages that come and go.

use fermi_spec::addr::GuestVramAddr;
use vgpu::{Event, VmId};

use super::Performer;
use crate::image::WindowFile;
use crate::lending::Loan;
use crate::mapping::PAGE;
use crate::sigbus::MapOwner;
use crate::vms::{Attachment, VmState};

/// Pages that go to a window file or come back from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) vm: VmId,
    /// First byte in the window file.
    pub(super) offset: u64,
    /// First address in the VM's VRAM.
    pub(super) at: GuestVramAddr,
    pub(super) bytes: u64,
    /// The card may store there: it stands still meanwhile.
    pub(super) is_reached: bool,
}

impl Passage {
    pub(super) fn new(vm: VmId, (offset, at): (u64, GuestVramAddr), bytes: u64, is_reached: bool) -> Self {
        Self {
            vm,
            offset,
            at,
            bytes,
            is_reached,
        }
    }
}

impl Performer {
    /// The client of a VM was given its window file, and may have mapped it. `owner` is told if it takes memory of it away.
    pub(crate) fn let_windows(&mut self, attachment: Attachment, file: WindowFile, owner: &MapOwner) {
        let is_there = |entry: &crate::vms::Vm| entry.state == VmState::Attached;
        if !self.entry(attachment).is_some_and(is_there) {
            return;
        }
        let vm = attachment.vm;
        match self.memory.set_windows(vm, file, owner) {
            Ok(()) => self.submit(Event::LetWindows { vm }),
            Err(error) => {
                let reason = format!("its windows cannot be guarded: {error}");
                self.expulsions.push((vm, reason));
                self.run();
            }
        }
    }

    /// Lets pages live in the window file, or takes them back. A VM whose pages are neither here nor there is put out.
    pub(super) fn change_place(&mut self, passage: Passage, is_lent: bool) {
        let Passage {
            vm,
            offset,
            at,
            bytes,
            is_reached,
        } = passage;
        let loan = Loan {
            at: at.0,
            offset,
            bytes,
        };
        self.stats.windows_moved(vm, bytes / PAGE, is_lent);
        let mut changed = Ok(());
        let memory = &mut self.memory;
        match (is_reached, &mut self.gpu) {
            (true, Some(gpu)) => {
                let stood = gpu.stand_still(&mut || changed = memory.change_place(vm, loan, is_lent));
                self.on_card(None, |_| stood);
            }
            _ => changed = memory.change_place(vm, loan, is_lent),
        }
        if let Err(error) = changed {
            let reason = format!("{bytes:#x} bytes of its windows cannot change their place: {error}");
            self.expulsions.push((vm, reason));
        }
    }
}
