//! Memory behind chunks that have none: from free frames in the order of the demands, or in host RAM.

use fermi_spec::addr::{FrameNo, GuestVramAddr};
use planted::Fault;

use super::Cx;
use super::limits;
use super::running::Running;
use crate::event::{Action, FrameOwner, Tick, VmId};
use crate::memory::{ChunkNo, ChunkPlace, FrameSearch};
use crate::notice::Notice;
use crate::policy::Observation;

impl Running {
    /// Asks for memory behind chunks. The VM's queue goes on when all of them have some.
    pub(super) fn demand(&mut self, vm: VmId, chunks: Vec<ChunkNo>, now: Tick) {
        let deadline = now.after(self.config.demand_budget_ns);
        self.demands.ask(vm, chunks, now, deadline);
    }

    /// Forgets what a VM waits for.
    pub(super) fn drop_demand(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        if let Some(demand) = self.demands.forget(vm) {
            demand.tell_end(cx);
        }
    }

    /// Meets demands from free frames, up to the first chunk for which there are too few: who came later does not
    /// overtake. `true` if anything changed.
    pub(super) fn meet_from_free(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut changed = false;
        while let Some((vm, chunk)) = self.demands.next() {
            if !self.back(vm, chunk, false, cx) {
                break;
            }
            self.demands.take(vm, &[chunk]);
            changed = true;
        }
        changed | self.finish_met(cx)
    }

    /// Meets in host RAM what has waited for its time. `true` if anything changed.
    pub(super) fn meet_late(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut changed = false;
        while let Some((vm, chunk)) = self.demands.next_late(cx.now) {
            self.demands.take_to_host_ram(vm, &[chunk]);
            self.back(vm, chunk, true, cx);
            changed = true;
        }
        changed | self.finish_met(cx)
    }

    /// Lets the VMs go on whose demands are met. `true` if there are any.
    pub(super) fn finish_met(&mut self, cx: &mut Cx<'_>) -> bool {
        let met = self.demands.take_met();
        let any = !met.is_empty();
        for demand in met {
            self.volatile.ready.insert(demand.vm);
            demand.tell_end(cx);
        }
        any
    }

    /// Tells of demands that could not be met within the event that they came from.
    pub(super) fn tell_demands(&mut self, cx: &mut Cx<'_>) {
        for demand in self.demands.untold() {
            demand.is_told = true;
            let vgpu = self.vms.get(&demand.vm);
            let bytes_of = |chunk: &ChunkNo| vgpu.map_or(0, |vgpu| vgpu.chunks.bytes(*chunk));
            cx.tell(Notice::DemandWaits {
                vm: demand.vm,
                chunks: demand.chunks.len() as u32,
                bytes: demand.chunks.iter().map(bytes_of).sum(),
            });
        }
    }

    /// Puts memory behind an unbacked chunk. `false`: no frames, and host RAM was not allowed yet.
    pub(super) fn back(&mut self, vm: VmId, chunk: ChunkNo, in_host_ram: bool, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get(&vm) else {
            return true;
        };
        if *vgpu.chunks.place(chunk) != ChunkPlace::Unbacked {
            return true;
        }
        let (bytes, base, count) = (
            vgpu.chunks.bytes(chunk),
            vgpu.chunks.base(chunk),
            vgpu.chunks.frames_of(chunk),
        );
        let over_max = bytes + self.mover.coming(vm) > limits::below_max(vgpu);
        if over_max && !in_host_ram && self.limits(cx.now).waits_for_own(vm, chunk) {
            return false;
        }
        // Without scrubbing by the backend a frame holds somebody's bytes: the chunk starts as an empty image, and the
        // refill that follows overwrites the frames with it.
        let are_clean = self.config.frames_arrive_zeroed || planted::is(Fault::ScrubSkipped);
        let in_host_ram = in_host_ram || over_max || !are_clean;
        let frames = if in_host_ram {
            None
        } else {
            self.take_frames(vm, base, count, cx)
        };
        let place = match frames {
            Some(frames) => ChunkPlace::Resident(frames),
            None if in_host_ram => ChunkPlace::Spilled,
            None => return false,
        };
        let resident = matches!(place, ChunkPlace::Resident(_));
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.chunks.set_place(chunk, place);
            vgpu.chunks.note_backed(chunk, cx.now);
            self.pass_wanted |= vgpu.uses_gpu(cx.now);
            if !resident {
                let images = vgpu.chunks.data_places(chunk).collect();
                cx.actions.push(Action::Reserve { vm, images });
            }
        }
        self.map_backed(vm, chunk, cx);
        self.observe(&Observation::Backed {
            vm,
            chunk,
            resident,
            over_max,
        });
        cx.tell(Notice::Backed { vm, bytes, resident });
        true
    }

    /// Takes frames for a chunk, all or none.
    pub(super) fn take_frames(
        &mut self,
        vm: VmId,
        at: GuestVramAddr,
        count: u32,
        cx: &mut Cx<'_>,
    ) -> Option<Box<[FrameNo]>> {
        if self.free_frames_for(vm) < count {
            return None;
        }
        // Each VM searches from a place of its own.
        let start = u32::from(vm.0).wrapping_mul(self.layout.frames / 8);
        let (search, rng) = (self.config.frames, &mut self.rng);
        let frames: Box<[FrameNo]> = (0..count)
            .map(|i| match search {
                FrameSearch::FirstFit => self.frames.allocate(start.wrapping_add(i), vm),
                FrameSearch::RandomWalk => self.frames.walk(rng, vm),
            })
            .collect::<Option<_>>()?;
        self.note_taken(vm, u64::from(count) * fermi_spec::addr::FRAME);
        let owner = FrameOwner::Vm { vm, at };
        cx.actions.push(Action::PlaceFrames {
            frames: frames.to_vec(),
            owner: owner.behind(u64::from(planted::is(Fault::WrongOwner))),
        });
        Some(frames)
    }
}
