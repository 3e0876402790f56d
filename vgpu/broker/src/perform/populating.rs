//! Memory that is had ahead: what it is, that it is there, and what becomes of whom the host has none for.

use std::time::Instant;

use fermi_spec::addr::GuestVramAddr;
use vgpu::{DmaMemory, Event, MoveId, Place, VmId};

use super::Performer;
use crate::populator::bytes_of;
use crate::vms::Attachment;

/// Bytes that may wait to be touched for VMs. Whoever asks for more while so much waits has its pages as it touches them.
const AHEAD_MAX: u64 = 1 << 30;

impl Performer {
    /// Has memory ready for a move without waiting for it. What is not host memory is ready.
    pub(super) fn populate(
        &mut self,
        id: MoveId,
        vm: VmId,
        images: &[(GuestVramAddr, u64)],
        frames: &[GuestVramAddr],
    ) {
        let mut memory = self.image_memory(vm, images);
        if let Some(gpu) = &mut self.gpu {
            memory.extend(frames.iter().filter_map(|&at| gpu.place_memory(vm, at)));
        }
        if let Err(gone) = self.memory.take_from_host(Instant::now(), bytes_of(&memory)) {
            let name = self.vms.get(&vm).map_or("gone", |entry| &entry.config.name);
            self.notices
                .vm(log::Level::Warn, name, format_args!("a move is given up: {gone}"));
            return self.queue.push_back(Event::Populated { id, done: false });
        }
        if memory.is_empty() || !self.for_moves.populate(id, memory) {
            self.queue.push_back(Event::Populated { id, done: true });
        }
    }

    /// Has memory ready that a VM was promised; nobody waits for it. If the host has none, that VM is put out.
    pub(super) fn reserve(&mut self, vm: VmId, images: &[(GuestVramAddr, u64)]) {
        let memory = self.image_memory(vm, images);
        let bytes = bytes_of(&memory);
        if let Err(gone) = self.memory.take_from_host(Instant::now(), bytes) {
            return self.expulsions.push((vm, gone.to_string()));
        }
        let serial = self.vms.get(&vm).map(|entry| entry.serial);
        let Some(serial) = serial.filter(|_| self.memory.under_way() < AHEAD_MAX) else {
            return;
        };
        self.for_vms.populate(Attachment { vm, serial }, memory);
    }

    fn image_memory(&self, vm: VmId, images: &[(GuestVramAddr, u64)]) -> Vec<DmaMemory> {
        let image = |&(at, bytes): &(GuestVramAddr, u64)| {
            let memory = self.memory.dma_memory(Place::Image { vm, at }, bytes);
            memory.ok()
        };
        images.iter().filter_map(image).collect()
    }

    /// Goes on with moves whose memory is ready, and without VMs for which there was none.
    pub(crate) fn take_populated(&mut self) {
        let moves = self.for_moves.take_done();
        let vms = self.for_vms.take_done();
        let starved = vms.into_iter().filter(|(_, done)| !done).map(|(of, _)| of);
        let starved: Vec<VmId> = starved
            .filter(|of| self.entry(*of).is_some())
            .map(|of| of.vm)
            .collect();
        if moves.is_empty() && starved.is_empty() {
            return;
        }
        let events = moves.into_iter().map(|(id, done)| Event::Populated { id, done });
        self.queue.extend(events);
        let reason = "the host has no memory left for its VRAM in host RAM";
        self.expulsions
            .extend(starved.into_iter().map(|vm| (vm, reason.to_owned())));
        self.run();
    }
}
