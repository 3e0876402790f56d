//! An exchange: chunks of a VM leave VRAM and others of it come into their frames, while its channels are suspended once.
//!
//! ```text
//! suspended ─► spill: copy, redirect, flush ─► refill: copy, redirect, flush ─► resumed
//!                          │                        └ fails ──► resumed: what left stays in host RAM, its frames are free
//!                          └ the VM goes, or may not hold so much any more ──► resumed, as after a spill
//! ```
//!
//! The halves are told as a spill and a refill of one number, with one pause, which is the second one's. Channels that can write a chunk of either are
//! off the card for both. Those that only load from what leaves run on: they load from VRAM until the first half's flush, and
//! nothing is copied into the frames before it.
//!
//! VRAM need not have a free frame for it, and nobody else gets one meanwhile. In the end the VM holds no more than before, so an exchange is
//! allowed at its `min` and at its `max`.

use fermi_spec::addr::{FRAME, FrameNo};
use planted::Fault;
use shadow_pt::TableRange;

use super::Cx;
use super::isolation::take_from_owner;
use super::mover::{ChunkFrames, CopyWork, FirstHalf, Head, Move, Stage};
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Action, FrameOwner, Tick, VmId};
use crate::notice::Direction;
use crate::reason::{Inconsistency, MoveCause, RollBack};

impl Running {
    /// Whether a second half follows. If the VM goes, or may not hold so much any more, the exchange ends as a spill.
    pub(super) fn turns_round(&self, head: &Head, now: Tick) -> bool {
        let stays = self.vms.get(&head.vm).filter(|vgpu| !vgpu.leaves());
        let may_turn =
            |vgpu: &Vgpu| !head.leaves_a_rest(&vgpu.chunks) && self.limits(now).allow_second_half(vgpu, head);
        !head.then.is_empty() && stays.is_some_and(may_turn)
    }

    /// The first half of an exchange is done, and nothing reaches its frames: the second one begins.
    pub(super) fn turn_round(
        &mut self,
        mut head: Head,
        freed: Vec<TableRange>,
        emptied: ChunkFrames,
        cx: &mut Cx<'_>,
    ) {
        let (vm, id) = (head.vm, head.id);
        let mut back = Head::new(
            id,
            vm,
            (Direction::Refill, head.cause),
            std::mem::take(&mut head.then),
            cx.now,
        );
        back.suspension = head.suspension.take();
        back.was_aside = head.was_aside;
        self.arrived(&head, None, cx);
        let mut frames = emptied.into_values().flatten();
        let mut is_enough = true;
        if let Some(vgpu) = self.vms.get(&vm) {
            for &chunk in &back.chunks {
                let count = vgpu.chunks.frames_of(chunk) as usize;
                let taken: Box<[FrameNo]> = frames.by_ref().take(count).collect();
                is_enough &= taken.len() == count;
                if !planted::is(Fault::ExchangedFrameKept) {
                    // Frames lie where their VM sees them.
                    take_from_owner(taken.to_vec(), cx);
                    let at = vgpu.chunks.base(chunk);
                    cx.actions.push(Action::PlaceFrames {
                        frames: taken.to_vec(),
                        owner: FrameOwner::Vm { vm, at },
                    });
                }
                back.targets.insert(chunk, taken);
            }
        }
        back.first_half = Some(FirstHalf {
            freed,
            frames: frames.collect(),
            copying_ns: head.copying_ns,
        });
        if let Some(vgpu) = self.vms.get(&vm) {
            back.part = self.next_part(vgpu, back.direction, &back.chunks, true);
            cx.tell(back.started(vgpu));
        }
        if is_enough {
            return self.map_copy(back, cx);
        }
        let what = "its exchange has too few frames".to_owned();
        self.inconsistent(vm, Inconsistency::Stage { what });
        let work = CopyWork::default();
        self.mover.current = Some(Move::new(back, Stage::Mapping { work }, cx.now));
        self.give_up(RollBack::Inconsistent, cx);
    }

    /// The second half of an exchange was given up: what it would have filled is free, and the VM's before others'.
    pub(super) fn undo_second_half(
        &mut self,
        (vm, cause): (VmId, MoveCause),
        first: FirstHalf,
        targets: impl Iterator<Item = FrameNo>,
        cx: &mut Cx<'_>,
    ) {
        let frames: Vec<FrameNo> = targets.chain(first.frames).collect();
        let bytes = frames.len() as u64 * FRAME;
        self.free_tables(vm, &first.freed);
        self.free_frames(vm, frames, cx);
        self.note_collected(cause, bytes);
    }
}
