//! What checkers and the edge ask of a running manager, all at once.

use fermi_spec::addr::{FRAME, FrameNo, GuestVramAddr};

use super::live_windows::LiveWindows;
use super::mover::Stage;
use super::running::Running;
use super::{Audit, Redirected, VmAudit};
use crate::device::Vgpu;
use crate::memory::{ChunkNo, ChunkPlace};
use crate::policy::VmView;

/// Whether requests of the VM are not answered.
fn asks(vgpu: &Vgpu) -> bool {
    vgpu.blocked.is_some() || !vgpu.queue.is_empty()
}

impl Running {
    pub(super) fn under_way(&self) -> Vec<String> {
        let mut texts = Vec::new();
        let mut note = |is_so: bool, text: String| texts.extend(is_so.then_some(text));
        note(!self.mover.is_idle(), "a move".to_owned());
        note(self.mover.aside.is_some(), "a move that stands aside".to_owned());
        note(
            !self.mover.begun.is_empty(),
            "chunks that are moved in part".to_owned(),
        );
        note(!self.demands.is_empty(), "demands".to_owned());
        note(!self.leaving.is_empty(), "channels that leave".to_owned());
        note(
            !self.spaces_leaving.is_empty(),
            "address spaces that leave".to_owned(),
        );
        for vgpu in self.vms.values() {
            let asks = asks(vgpu) || vgpu.leaves();
            note(asks, format!("requests of {}", vgpu.id));
            let parks = vgpu.channels.values().any(|channel| channel.parking);
            note(parks, format!("a channel of {} that is parked", vgpu.id));
            let (resident, quota) = (vgpu.chunks.resident(), vgpu.quota());
            let may_lose = resident.saturating_sub(quota.min) >= vgpu.config.chunk_bytes;
            note(
                resident > quota.max && may_lose,
                format!("the max of {}", vgpu.id),
            );
        }
        texts
    }

    pub(super) fn redirected(&self) -> Option<Redirected> {
        let moving = self.mover.current.as_ref()?;
        let Stage::Redirecting { .. } = moving.stage else {
            return None;
        };
        if moving.head.stays() {
            return None;
        }
        let vgpu = self.vms.get(&moving.head.vm)?;
        let chunks = moving.head.moved().iter();
        let runs = chunks.flat_map(|&chunk| moving.head.data_places(vgpu, chunk));
        Some(Redirected {
            id: moving.head.id,
            vm: moving.head.vm,
            runs: runs.collect(),
        })
    }

    pub(super) fn audit(&self) -> Audit {
        Audit {
            usable_frames: self.layout.usable,
            free_frames: self.frames.free_count(),
            arena: (self.layout.arena_first, self.layout.arena_frames),
            arena_free: self.card.arena.free_ranges().collect(),
            moving: self.mover.current.as_ref().map(|moving| moving.head.vm),
            aside: self.mover.aside.as_ref().map(|moving| moving.head.vm),
            claim: self.claim.map(|claim| (claim.vm, claim.bytes)),
            vms: self.vms.values().map(|vgpu| self.audit_vm(vgpu)).collect(),
            breaches: self.breaches.clone(),
        }
    }

    fn audit_vm(&self, vgpu: &Vgpu) -> VmAudit {
        vgpu.chunks.check();
        let is_equal = |chunk: &ChunkNo| matches!(vgpu.chunks.place(*chunk), ChunkPlace::Both(_));
        let equal = vgpu.chunks.all().filter(is_equal);
        let leaving = self.spaces_leaving.values().filter(|gone| gone.vm == vgpu.id);
        let directories_leaving: Vec<_> = leaving.map(|gone| gone.shadow.directory()).collect();
        let moves = self.mover.all().filter(|moving| moving.head.vm == vgpu.id);
        // Between the halves of an exchange they are what the second one fills.
        let emptied = moves.flat_map(|moving| {
            let of_stage = match &moving.stage {
                Stage::Redirecting { emptied, .. } | Stage::Resuming { emptied, .. } => Some(emptied),
                _ => None,
            };
            let first = moving.head.first_half.as_ref();
            let filled = first.map(|_| &moving.head.targets);
            let chunks = of_stage
                .into_iter()
                .chain(filled)
                .flat_map(|frames| frames.values());
            let left = first.into_iter().flat_map(|first| &first.frames);
            chunks.flatten().chain(left).copied()
        });
        let view = VmView::of(vgpu.id, &vgpu.chunks, vgpu.config.chunk_bytes, vgpu.quota());
        VmAudit {
            vm: vgpu.id,
            frames: frames_of(vgpu),
            equal: equal.flat_map(|chunk| vgpu.chunks.data_places(chunk)).collect(),
            image: (vgpu.chunks.image(), vgpu.chunks.guest_vram()),
            ram: vgpu.ram.all().map(|(_, map)| (map.iova, map.bytes)).collect(),
            directories: vgpu
                .spaces
                .values()
                .map(|space| space.shadow.directory())
                .chain(directories_leaving.iter().copied())
                .collect(),
            directories_leaving,
            arena: self.card.arena.held_by(vgpu.id).collect(),
            blocks: vgpu.blocks().collect(),
            emptied: emptied.collect(),
            is_pointed: self
                .mover
                .all()
                .any(|moving| moving.head.vm == vgpu.id && moving.stage.points()),
            suspended: vgpu
                .channels
                .values()
                .filter(|c| c.suspended)
                .map(|c| c.physical.0)
                .collect(),
            asks: asks(vgpu),
            resident: vgpu.chunks.resident(),
            spilled: vgpu.chunks.spilled(),
            active: view.active,
            idle: view.idle,
            wanted: view.wanted,
            split: vgpu.chunks.sums().split,
            smallest_wanted: view.smallest_wanted,
            chunk_bytes: view.chunk_bytes,
            lends: vgpu.activity.lends,
            quota: vgpu.config.quota,
            hold: vgpu.hold,
            wants_intx: vgpu.units.wants_intx(),
            waits_to_show: vgpu.live.as_ref().is_some_and(LiveWindows::is_waited_for),
            shows_late: vgpu.live.as_ref().is_some_and(LiveWindows::is_late),
        }
    }
}

/// The frames of a VM's chunks, and the places of guest VRAM that they are for.
fn frames_of(vgpu: &Vgpu) -> Vec<(FrameNo, GuestVramAddr)> {
    let mut frames = Vec::new();
    for chunk in vgpu.chunks.all() {
        if let Some(held) = vgpu.chunks.place(chunk).frames() {
            let base = vgpu.chunks.base(chunk);
            frames.extend((0..).zip(held).map(|(i, &f)| (f, base.offset(i * FRAME))));
        }
    }
    frames
}
