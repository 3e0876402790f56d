//! Memory that moves ask for ahead: what it is, and that it is there.

use fermi_spec::addr::{FrameNo, GuestVramAddr};
use vgpu::{DmaMemory, Event, MoveId, Place, VmId};

use super::Performer;

impl Performer {
    /// Has memory ready without waiting for it. What is not host memory is ready.
    pub(super) fn populate(
        &mut self,
        id: MoveId,
        vm: VmId,
        images: &[(GuestVramAddr, u64)],
        frames: &[FrameNo],
    ) {
        let image = |&(at, bytes): &(GuestVramAddr, u64)| {
            let memory = self.memory.dma_memory(Place::Image { vm, at }, bytes);
            memory.ok()
        };
        let mut memory: Vec<DmaMemory> = images.iter().filter_map(image).collect();
        if let Some(gpu) = &self.gpu {
            memory.extend(frames.iter().filter_map(|&frame| gpu.frame_memory(frame)));
        }
        if memory.is_empty() || !self.populator.populate(id, memory) {
            self.queue.push_back(Event::Populated { id, done: true });
        }
    }

    /// Goes on with moves whose memory is ready.
    pub(crate) fn take_populated(&mut self) {
        let done = self.populator.take_done();
        if !done.is_empty() {
            let events = done.into_iter().map(|(id, done)| Event::Populated { id, done });
            self.queue.extend(events);
            self.run();
        }
    }
}
