//! Windows that a VM's client maps: the file behind them, and the pages that come and go.

use vgpu::{Event, Passage};

use super::Performer;
use crate::image::WindowFile;
use crate::lending::Loan;
use crate::mapping::PAGE;
use crate::sigbus::MapOwner;
use crate::vms::{Attachment, VmState};

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
    pub(super) fn change_place(&mut self, passage: &Passage, is_lent: bool) {
        let Passage {
            vm,
            offset,
            at,
            bytes,
            is_reached,
        } = *passage;
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
