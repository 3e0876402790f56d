//! Windows that a VM's client maps: the file behind them, and the pages that come and go.

use vgpu::{Event, Passage, Tick, VmId};

use super::Performer;
use crate::image::WindowFile;
use crate::lending::Loan;
use crate::mapping::PAGE;
use crate::sigbus::MapOwner;
use crate::sweep::{Looked, NotArmed};
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

    /// The guest of a VM rests: doorbells that it has stored to memory are looked for now.
    pub(crate) fn guest_rests(&mut self, attachment: Attachment) {
        let now = self.now();
        if self.entry(attachment).is_none() {
            return;
        }
        let channels = self.sweep.guest_rests(attachment.vm, now);
        self.rung(attachment.vm, channels);
    }

    /// Serves doorbells that a look has found. Where it has found none, the next look may be due sooner than it was.
    fn rung(&mut self, vm: VmId, channels: Vec<u8>) {
        match channels.is_empty() {
            true => self.run(),
            false => self.submit(Event::Doorbells { vm, channels }),
        }
    }

    /// Looks for the doorbells of VMs whose turn it is, and tells the VMMs of those that are quiet.
    pub(super) fn look_for_doorbells(&mut self, now: Tick) {
        let Looked { rung, quiet } = self.sweep.look(now);
        let rung = rung.into_iter();
        self.queue
            .extend(rung.map(|(vm, channels)| Event::Doorbells { vm, channels }));
        for vm in quiet {
            if let Some(entry) = self.vms.get(&vm).filter(|entry| entry.state == VmState::Attached) {
                entry.port.quiet();
            }
        }
    }

    /// The VMM of a VM wants to be told when its guest is quiet, and can make its stores to doorbells trap then.
    pub(crate) fn let_trap(&mut self, attachment: Attachment) {
        if self.entry(attachment).is_some() {
            self.sweep.let_trap(attachment.vm);
        }
    }

    /// Bytes into BAR1 where the doorbells of a VM lie, if they are looked for.
    pub(crate) fn doorbells_at(&self, attachment: Attachment) -> Option<u64> {
        self.entry(attachment)?;
        self.sweep.place(attachment.vm)
    }

    /// Stores to the doorbells of a VM that lie at `at` trap. Whether that is of use: if not they are let through again.
    pub(crate) fn arm_doorbells(&mut self, attachment: Attachment, at: u64) -> bool {
        let now = self.now();
        if self.entry(attachment).is_none() {
            return false;
        }
        let vm = attachment.vm;
        match self.sweep.arm(vm, at, now) {
            Ok(()) => true,
            Err(NotArmed::Untimely) => false,
            Err(NotArmed::Rung(channels)) => {
                self.submit(Event::Doorbells { vm, channels });
                false
            }
        }
    }

    /// A store to the doorbells of a VM has trapped, and is let through now.
    pub(crate) fn doorbell_stored(&mut self, attachment: Attachment) {
        let now = self.now();
        if self.entry(attachment).is_none() {
            return;
        }
        let channels = self.sweep.stored(attachment.vm, now);
        self.rung(attachment.vm, channels);
    }

    /// USERD of a VM lies there from now on, or nowhere where it could be looked at.
    pub(super) fn place_userd(&mut self, vm: VmId, at: Option<u64>) {
        self.sweep.forget(vm);
        if let Some((at, bar1)) = at.zip(self.memory.bar1(vm)) {
            self.sweep.watch(vm, bar1.clone(), at);
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
