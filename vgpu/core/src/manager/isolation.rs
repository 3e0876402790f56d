//! A VM whose accounts contradict each other is given up, and the others go on.
//!
//! ```text
//! contradiction ─noted─► end of the event: GiveUp, and it leaves as if it were detached
//!                          └─ nothing of it is free ─► channels off the card, last flush ─► all that the allocators say is its
//! ```
//!
//! From the moment that a VM is given up nothing that it gives back becomes free: its accounts may be wrong about who still
//! reaches it. When the card runs nothing of it and has forgotten its translations, what it held is free by the word of
//! the allocators, each of which knows the owner of each part (`crate::contained`). Its bus addresses are withheld for good
//! if its accounts contradict each other there: what is still mapped cannot be said.

use std::cell::Cell;
use std::collections::BTreeMap;

use shadow_pt::{Built, ReachChange, TablePages, TableRange};

use super::Cx;
use super::contexts::GoneSpace;
use super::images::maps_of;
use super::running::Running;
use crate::contained::contained;
use crate::device::contexts::Buffers;
use crate::device::tables::{ArenaWriter, TableBudget, Whereabouts};
use crate::device::{Channel, Space, SpaceId, Vgpu};
use crate::event::{Action, FrameOwner, VmId};
use crate::memory::Chunks;
use crate::reason::Inconsistency;

/// A VM's address spaces and what work on them needs.
pub(super) struct Shadows<'a, 'b> {
    pub(super) chunks: &'a Chunks,
    pub(super) spaces: &'a mut BTreeMap<SpaceId, Space>,
    pub(super) buffers: &'a Buffers,
    pub(super) places: &'a Whereabouts<'a>,
    pub(super) budget: &'a mut TableBudget<'b>,
    pub(super) writer: &'a mut ArenaWriter,
    pub(super) built: Sums,
}

/// Sums of what was built of several spaces.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) entries: u64,
    pub(super) slots: u64,
    /// Slots that stay absent: there is no table for them.
    pub(super) refused: u64,
    pub(super) freed: Vec<TableRange>,
    reach: Vec<ReachChange>,
    misplaced: u64,
}

impl Sums {
    pub(super) fn add(&mut self, mut built: Built) {
        self.entries += built.entries;
        self.slots += built.slots;
        self.refused += built.refused;
        self.reach.append(&mut built.reach);
        self.freed.append(&mut built.freed);
        self.misplaced += built.misplaced;
    }
}

impl Running {
    /// Notes that a VM's accounts are wrong. It is given up at the end of the event; whoever finds it does no more for it.
    pub(super) fn inconsistent(&mut self, vm: VmId, what: Inconsistency) {
        self.volatile.inconsistent.entry(vm).or_insert(what);
    }

    /// The result of work for a VM; `None`, and noted, if its accounts are wrong.
    pub(super) fn believe<T>(&mut self, vm: VmId, result: Result<T, Inconsistency>) -> Option<T> {
        result.map_err(|what| self.inconsistent(vm, what)).ok()
    }

    /// Gives up the VMs whose accounts were found wrong. `true` if there were any.
    pub(super) fn give_up_inconsistent(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        while let Some((vm, reason)) = self.volatile.inconsistent.pop_first() {
            let Some(vgpu) = self.vms.get_mut(&vm).filter(|vgpu| vgpu.given_up.is_none()) else {
                continue;
            };
            vgpu.given_up = Some(reason.clone());
            cx.actions.push(Action::GiveUp { vm, reason });
            self.detach(vm, cx);
            self.take_off_strays(vm);
            any = true;
        }
        any
    }

    /// Channels that are the VM's by the card's word alone leave the card like the others.
    fn take_off_strays(&mut self, vm: VmId) {
        for physical in self.card.channels_of(vm) {
            if !self.leaving.contains_key(&physical) {
                self.leave_card(vm, Channel::stray(physical));
            }
        }
    }

    fn is_given_up(&self, vm: VmId) -> bool {
        self.vms.get(&vm).is_none_or(|vgpu| vgpu.given_up.is_some())
    }

    /// Work on a VM's shadow tables, whose entries are written if it succeeds. `None`: there is no such VM, or its accounts
    /// are wrong.
    pub(super) fn on_shadows<T>(
        &mut self,
        vm: VmId,
        doing: &str,
        cx: &mut Cx<'_>,
        work: impl FnOnce(&mut Shadows<'_, '_>) -> T,
    ) -> Option<(T, Sums)> {
        let Vgpu {
            chunks,
            ram,
            bus,
            spaces,
            buffers,
            shadow,
            ..
        } = self.vms.get_mut(&vm)?;
        let places = Whereabouts {
            vm,
            frames: &self.frames,
            bus: self.iova.held_as(bus, vm),
            foreign: Cell::new(None),
            chunks,
            ram,
        };
        let mut writer = ArenaWriter::new();
        let mut budget = shadow.pages(&mut self.card.arena, vm);
        let done = contained(doing, || {
            let mut shadows = Shadows {
                chunks,
                spaces,
                buffers,
                places: &places,
                budget: &mut budget,
                writer: &mut writer,
                built: Sums::default(),
            };
            (work(&mut shadows), shadows.built)
        });
        let sound = budget.end();
        let written = done.and_then(|(done, built)| {
            writer.emit(vm, &self.card.arena, cx.actions)?;
            sound?;
            places.end()?;
            match built.misplaced {
                0 => Ok((done, built)),
                entries => Err(Inconsistency::Misplaced { entries }),
            }
        });
        let (done, mut built) = self.believe(vm, written)?;
        let chunks = &mut self.vms.get_mut(&vm)?.chunks;
        // At once: a chunk that the card may write from now on is in one place only.
        let reach = built.reach.drain(..);
        let changed = contained("counting its reach", || {
            reach.for_each(|change| chunks.change_reach(change))
        });
        self.believe(vm, changed).map(|()| (done, built))
    }

    /// Work with a VM's part of the arena.
    pub(super) fn with_budget<T>(
        &mut self,
        vm: VmId,
        doing: &str,
        work: impl FnOnce(&mut TableBudget<'_>) -> T,
    ) -> Option<T> {
        let vgpu = self.vms.get_mut(&vm)?;
        let mut budget = vgpu.shadow.pages(&mut self.card.arena, vm);
        let done = contained(doing, || work(&mut budget));
        let sound = budget.end();
        self.believe(vm, done.and_then(|done| sound.map(|()| done)))
    }

    /// Parts of the arena that nothing reaches and that the TLB has forgotten.
    pub(super) fn free_tables(&mut self, vm: VmId, freed: &[TableRange]) {
        if freed.is_empty() || self.is_given_up(vm) {
            return;
        }
        self.with_budget(vm, "giving tables back", |budget| {
            freed.iter().for_each(|range| budget.free(range.at, range.bytes));
        });
    }

    /// A space that nothing reaches and that the TLB has forgotten.
    pub(super) fn free_space(&mut self, gone: GoneSpace) {
        let GoneSpace { vm, shadow, contexts } = gone;
        if !self.is_given_up(vm) {
            self.with_budget(vm, "giving an address space back", |budget| {
                contexts.release(budget);
                shadow.release(budget);
            });
        }
    }

    /// Frames that nothing reaches any more go back.
    pub(super) fn free_frames(
        &mut self,
        vm: VmId,
        frames: impl IntoIterator<Item = fermi_spec::addr::FrameNo>,
        cx: &mut Cx<'_>,
    ) {
        if self.is_given_up(vm) {
            return;
        }
        let mut free = Vec::new();
        for frame in frames {
            let released = self.frames.release(frame, vm);
            free.extend(self.believe(vm, released).map(|()| frame));
        }
        take_from_owner(free, cx);
    }

    /// The VM is off the card, and the card has forgotten it. Whatever the allocators still know as its own is free.
    pub(super) fn forget(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        self.volatile.ahead.forget_vm(vm);
        let Some(mut vgpu) = self.vms.remove(&vm) else {
            return;
        };
        let noted = self.volatile.inconsistent.remove(&vm);
        let mut wrong = self.take_back_arena(&vgpu).err();
        wrong = noted.or(wrong);
        let held: Vec<_> = self.frames.held_by(vm).collect();
        for &frame in &held {
            let part = format!("not frame {} any more", frame.0);
            wrong = wrong.or(Some(Inconsistency::NotHeld { part }));
            let _ = self.frames.release(frame, vm);
        }
        take_from_owner(held, cx);
        self.card.lending.forget(vm);
        self.card.arena.lending.forget(vm);
        let on_bus = self.take_back_bus(&mut vgpu, cx);
        wrong = wrong.or(on_bus.err());
        cx.accounts.close(vm);
        if let Some(reason) = wrong.filter(|_| vgpu.given_up.is_none()) {
            cx.actions.push(Action::GiveUp { vm, reason });
        }
        cx.actions.push(Action::Detached { vm });
    }

    /// What the VM mapped is not the card's any more, and its bus addresses are free. An error if its accounts contradict
    /// each other there: what is still mapped cannot be said, and its addresses are withheld.
    fn take_back_bus(&mut self, vgpu: &mut Vgpu, cx: &mut Cx<'_>) -> Result<(), Inconsistency> {
        let (vm, pins) = (vgpu.id, self.config.bus.pins);
        let image = (vgpu.chunks.image(), vgpu.config.guest_vram, !pins);
        let ram = vgpu.ram.all().map(|(_, map)| (map.iova, map.bytes, true));
        let mut wrong = Ok(());
        for (iova, bytes, is_mapped) in std::iter::once(image).chain(ram) {
            let held = self.iova.check_held(&vgpu.bus, vm, iova, bytes);
            let released = held.and_then(|()| vgpu.bus.release(iova, vm));
            if released.is_ok() && is_mapped {
                cx.actions.push(Action::UnmapDma { iova, bytes });
            }
            wrong = wrong.and(released);
        }
        let image_maps = maps_of(&vgpu.config, pins) + vgpu.chunks.maps().spare;
        let maps = image_maps as usize + vgpu.ram.count();
        if self.iova.map_count(vm) as usize != maps || !vgpu.bus.is_unused() {
            let part = format!("{maps} maps for DMA");
            wrong = wrong.and(Err(Inconsistency::NotHeld { part }));
        }
        let released = wrong.and_then(|()| self.iova.release(vgpu.bus.span().0, vm));
        match &released {
            Ok(()) => self.iova.release_maps(vm),
            Err(_) => self.iova.withhold(vm),
        }
        released
    }

    /// What the VM still has of the arena is free. An error if its account says otherwise.
    fn take_back_arena(&mut self, vgpu: &Vgpu) -> Result<(), Inconsistency> {
        let held: Vec<_> = self.card.arena.held_by(vgpu.id).collect();
        let found = held.iter().map(|(_, bytes)| bytes).sum();
        for (at, bytes) in held {
            self.card.arena.release(at, bytes, Some(vgpu.id))?;
        }
        let held = vgpu.shadow.held;
        match (held, found) {
            (0, 0) => Ok(()),
            _ => Err(Inconsistency::ShadowMemory { held, found }),
        }
    }
}

/// Frames that were released are nobody's from now on.
pub(super) fn take_from_owner(frames: Vec<fermi_spec::addr::FrameNo>, cx: &mut Cx<'_>) {
    if !frames.is_empty() {
        let owner = FrameOwner::Free;
        cx.actions.push(Action::PlaceFrames { frames, owner });
    }
}
