//! Laws that are checked between any two events, by code that shares nothing with the core.
//!
//! * What the card's TLB may use without another look is memory of its VM, mapped, and found in a table that exists.
//! * When a move has pointed everything to the new copies, these equal the old ones; so do chunks in both places.
//! * A spill leaves its VM what it was promised, and takes no more host RAM than there is for spills.
//! * A VM gets no VRAM above its `max`; after a lowered one it gets no more than it had.
//! * Nothing is brought back above a VM's `high`.
//! * A move waits for no VM's work longer than it may: before the VM is stopped, and aside when it did not stop in time.
//! * While a VM waits for an answer, no chunk leaves for its windows again and again.
//! * A quota is set if it contradicts neither itself nor the other VMs', and only then.
//! * A session that has ended gets no answer.
//! * RAM comes and goes by whole maps that do not overlap, and what is right is not refused.
//! * An interrupt line that is up and that nobody masks was signalled, and one that is masked is not.
//! * Of a VM that is gone nothing is left on an engine.
//! * The accounts of the core are the sums of its notices.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{Aperture, GuestVramAddr, Iova, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::regs::PflushReg;
use vgpu::{
    Action, Audit, Direction, Event, FrameOwner, MoveCause, MoveId, MoveStage, Notice, Quota, Refusal, Reply,
    RollBack, VmAudit, VmId,
};
use vm_memory::VolatileMemory;

use crate::checkers::Violation;
use crate::watch::World;
use lines::Lines;
use maps::Maps;
use shown::Shown;

mod lines;
mod maps;
mod shown;

/// Longest time for which a move may wait for a moment without work, if a guest waits for the memory and if none does, and stand aside.
/// The clock may jump beyond by as much as it does elsewhere.
const AWAITED_MAX_NS: u64 = 20_000_000;
const AWAITED_UNWAITED_MAX_NS: u64 = 60_000_000;
const ASIDE_MAX_NS: u64 = 20_000_000;
const JUMP_NS: u64 = 60_000_000;
/// The same for a spill of a VM of which so many moves in a row were given up because it was at work.
const ASIDE_TO_THE_END_NS: u64 = 1_000_000_000;
const LATE_MAX: u32 = 3;
/// Bytes that are compared at a time.
const PIECE: u64 = 64 << 10;

/// The sums over a VM's notices.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Sums {
    spilled: u64,
    refilled: u64,
    copied: u64,
    rolled_back: u64,
    suspended_ns: u64,
    waited_ns: u64,
}

/// What the laws have to know of the past.
#[derive(Default)]
pub(crate) struct Laws {
    broken: Option<Violation>,
    quotas: BTreeMap<VmId, Quota>,
    /// The last move of each VM, and what it copied: both halves of an exchange have one number.
    last_moves: BTreeMap<VmId, (MoveId, u64)>,
    /// Most VRAM that an operator leaves a VM, if he holds some back.
    held: BTreeMap<VmId, u64>,
    /// Most VRAM that a VM may hold now: its `max`, or what it held when that was lowered.
    ceilings: BTreeMap<VmId, u64>,
    /// VRAM that each VM holds, as last told.
    resident: BTreeMap<VmId, u64>,
    /// Refills under way, one of them perhaps aside, and their bytes.
    refills: BTreeMap<VmId, (MoveId, u64)>,
    /// The latest move of each VM: whether a guest waits for its memory, and whether it is a spill.
    moves: BTreeMap<VmId, (bool, bool)>,
    /// Moves of a VM, one after the other, that were given up because it was at work.
    late: BTreeMap<VmId, u32>,
    compared: Option<MoveId>,
    ended: BTreeSet<VmId>,
    /// Directories of VMs on their way out.
    directories: BTreeMap<u64, VmId>,
    sums: BTreeMap<VmId, Sums>,
    lines: Lines,
    maps: Maps,
    shown: Shown,
}

impl Laws {
    /// The first law that did not hold.
    pub(crate) fn held(&self) -> Result<(), Violation> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// A VM's guest is after harm, which some laws expect.
    pub(crate) fn harms(&mut self, vm: VmId) {
        self.shown.harms(vm);
    }

    /// Looks at the world after an event and its actions.
    pub(crate) fn after(&mut self, world: &World, event: &Event, actions: &[Action]) {
        if self.broken.is_none() {
            self.broken = self.check(world, event, actions).err();
        }
    }

    /// Checks that no VM waits for a signal of its interrupt line.
    pub(crate) fn check_lines(&self, audit: &Audit) -> Result<(), Violation> {
        self.lines.check(audit)
    }

    fn check(&mut self, world: &World, event: &Event, actions: &[Action]) -> Result<(), Violation> {
        self.lines.after(event, actions)?;
        self.maps.after(event, actions)?;
        self.shown.after(event, actions)?;
        match event {
            Event::Attach { vm, config } => self.begin(*vm, config.quota),
            Event::Detach { vm } => {
                self.ended.insert(*vm);
                self.remember_directories(world, *vm);
            }
            Event::SetQuota { vm, quota } => {
                let is_refused =
                    |action: &Action| matches!(action, Action::QuotaRefused { vm: of, .. } if of == vm);
                let is_refused = actions.iter().any(is_refused);
                self.check_quota(world, *vm, *quota, is_refused)?;
                if !is_refused {
                    self.set_quota(*vm, *quota);
                }
            }
            Event::SetHold { vm, hold } => {
                self.held.remove(vm);
                self.held.extend(hold.vram.map(|most| (*vm, most)));
                self.lower_ceiling(*vm);
            }
            _ => {}
        }
        let mut forgets = false;
        for action in actions {
            match action {
                Action::Notice(notice) => self.told(world, notice)?,
                Action::GiveUp { vm, reason } => {
                    return Err(Violation(format!("{vm} is given up: {reason}")));
                }
                Action::Reply { vm, reply, .. }
                    if self.ended.contains(vm) && *reply != Reply::Refused(Refusal::NotAttached) =>
                {
                    return Err(Violation(format!("{vm} has gone and is answered")));
                }
                Action::PlaceFrames {
                    owner: FrameOwner::Free,
                    ..
                }
                | Action::UnmapDma { .. } => forgets = true,
                // A card that was let go of is nobody's: whoever opens it next resets it.
                Action::Detached { vm } if !world.is_lost => self.check_engines(world, *vm)?,
                Action::HostWrite { bar, offset, .. } => {
                    forgets |= *bar == Bar::Bar0 && *offset == u64::from(PflushReg::HostFlush.offset());
                }
                _ => {}
            }
        }
        if forgets {
            check_translations(world)?;
        }
        match world.manager.redirected() {
            Some(redirected) if self.compared != Some(redirected.id) => {
                self.compared = Some(redirected.id);
                compare(world, redirected.vm, &redirected.runs)
                    .map_err(|at| Violation(format!("{:?} of {at}", redirected.id)))
            }
            _ => Ok(()),
        }
    }

    fn remember_directories(&mut self, world: &World, vm: VmId) {
        let audit = world.manager.audit().unwrap_or_default();
        let leaving = audit.vms.iter().filter(|of| of.vm == vm);
        let directories = leaving.flat_map(|of| of.directories.iter().map(|at| (at.0, vm)));
        self.directories.extend(directories);
    }

    /// A VM is gone: no engine knows anything of its work.
    fn check_engines(&mut self, world: &World, vm: VmId) -> Result<(), Violation> {
        let audit = world.manager.audit().unwrap_or_default();
        let is_used = |at: u64| {
            audit
                .vms
                .iter()
                .any(|of| of.directories.iter().any(|own| own.0 == at))
        };
        for (engine, left) in world.model.left_on_engines() {
            let of = left.and_then(|at| self.directories.get(&at.0).filter(|_| !is_used(at.0)));
            if of == Some(&vm) {
                return Err(Violation(format!(
                    "{engine:?} has what {vm} left on it, which is gone"
                )));
            }
        }
        self.directories.retain(|_, of| *of != vm);
        Ok(())
    }

    fn begin(&mut self, vm: VmId, quota: Quota) {
        self.ended.remove(&vm);
        self.held.remove(&vm);
        self.quotas.insert(vm, quota);
        self.ceilings.insert(vm, quota.max);
        self.resident.insert(vm, 0);
        self.sums.insert(vm, Sums::default());
    }

    fn set_quota(&mut self, vm: VmId, quota: Quota) {
        if self.quotas.insert(vm, quota).is_some() {
            self.lower_ceiling(vm);
        }
    }

    /// A bound of a VM and what an operator leaves it: the smaller one holds.
    fn bound(&self, vm: VmId, of: impl Fn(&Quota) -> u64) -> u64 {
        let bound = self.quotas.get(&vm).map_or(u64::MAX, of);
        bound.min(self.held.get(&vm).copied().unwrap_or(u64::MAX))
    }

    /// What it holds above its new bound goes, and nothing comes.
    fn lower_ceiling(&mut self, vm: VmId) {
        let max = self.bound(vm, |quota| quota.max);
        let held = self.resident.get(&vm).copied().unwrap_or(0);
        let coming = self.refills.get(&vm).map_or(0, |(_, bytes)| *bytes);
        self.ceilings.insert(vm, max.max(held + coming));
    }

    /// What one suspension copies is bounded, both halves of an exchange together.
    fn check_suspension(
        &mut self,
        world: &World,
        vm: VmId,
        (id, copied): (MoveId, u64),
    ) -> Result<(), Violation> {
        let last = self.last_moves.insert(vm, (id, copied));
        let first_half = last.filter(|(last, _)| *last == id).map(|(_, copied)| copied);
        let config = world.config();
        let parts = if first_half.is_some() { 2 } else { 1 };
        let most = config.batch_bytes.max(parts * config.part_bytes);
        let all = copied + first_half.unwrap_or(0);
        match all > most {
            true => Err(Violation(format!(
                "{all} bytes are copied in one suspension, and {most} may be"
            ))),
            false => Ok(()),
        }
    }

    fn told(&mut self, world: &World, notice: &Notice) -> Result<(), Violation> {
        let sums = notice.vm().and_then(|vm| self.sums.get_mut(&vm));
        match (notice, sums) {
            (
                Notice::Moved {
                    direction,
                    bytes,
                    copied,
                    ..
                },
                Some(sums),
            ) => {
                sums.copied += copied;
                match direction {
                    Direction::Spill => sums.spilled += bytes,
                    Direction::Refill => sums.refilled += bytes,
                }
            }
            (Notice::RolledBack { .. }, Some(sums)) => sums.rolled_back += 1,
            (Notice::Resumed { suspended_ns, .. }, Some(sums)) => sums.suspended_ns += suspended_ns,
            (Notice::DemandEnded { waited_ns, .. }, Some(sums)) => sums.waited_ns += waited_ns,
            _ => {}
        }
        self.note_late(notice);
        if let Notice::Moved { vm, id, copied, .. } = notice {
            self.check_suspension(world, *vm, (*id, *copied))?;
        }
        match notice {
            Notice::MoveStarted {
                vm,
                id,
                direction: Direction::Refill,
                bytes,
                ..
            } => {
                self.refills.insert(*vm, (*id, *bytes));
                self.check_high(world, *vm, *bytes)?;
            }
            Notice::MoveStarted {
                vm,
                bytes,
                cause,
                comes,
                ..
            } => self.check_spill(world, *vm, (*bytes, *comes), *cause)?,
            Notice::Moved { id, .. } | Notice::RolledBack { id, .. } => {
                self.refills.retain(|_, (under_way, _)| under_way != id);
            }
            Notice::Usage { vm, resident, .. } => return self.check_max(*vm, *resident),
            Notice::MoveStage {
                vm, stage, took_ns, ..
            } => self.check_wait(*vm, *stage, *took_ns)?,
            _ => {}
        }
        Ok(())
    }

    /// Remembers what a move is for, and how often a VM was too late.
    fn note_late(&mut self, notice: &Notice) {
        match notice {
            Notice::MoveStarted {
                vm, direction, cause, ..
            } => {
                let is_for_somebody = matches!(cause, MoveCause::Demand { .. });
                self.moves
                    .insert(*vm, (is_for_somebody, *direction == Direction::Spill));
            }
            Notice::RolledBack {
                vm,
                reason: RollBack::NotIdle,
                ..
            } => *self.late.entry(*vm).or_default() += 1,
            Notice::Moved {
                vm,
                pause_ns: Some(_),
                ..
            } => drop(self.late.remove(vm)),
            _ => {}
        }
    }

    /// No move waits for a VM's work for longer than that.
    fn check_wait(&self, vm: VmId, stage: MoveStage, took_ns: u64) -> Result<(), Violation> {
        let (is_for_somebody, is_spill) = self.moves.get(&vm).copied().unwrap_or_default();
        let is_always_late = self.late.get(&vm).is_some_and(|late| *late >= LATE_MAX);
        let most = match stage {
            MoveStage::Awaiting if is_for_somebody => AWAITED_MAX_NS,
            MoveStage::Awaiting => AWAITED_UNWAITED_MAX_NS,
            MoveStage::Draining if is_spill && is_always_late => ASIDE_TO_THE_END_NS,
            MoveStage::Draining => ASIDE_MAX_NS,
            _ => return Ok(()),
        };
        if took_ns > most + JUMP_NS {
            return Err(Violation(format!(
                "a move of {vm} waited for its work for {} ms, {stage:?}",
                took_ns / 1_000_000
            )));
        }
        Ok(())
    }

    fn check_max(&mut self, vm: VmId, resident: u64) -> Result<(), Violation> {
        self.resident.insert(vm, resident);
        let max = self.bound(vm, |quota| quota.max);
        let ceiling = self.ceilings.entry(vm).or_insert(max);
        if resident > *ceiling {
            return Err(Violation(format!(
                "{vm} holds {resident} bytes and may hold {ceiling}, its max is {max}"
            )));
        }
        if !self.refills.contains_key(&vm) {
            *ceiling = max.max(resident);
        }
        Ok(())
    }

    /// A refill has begun: its bytes are not in VRAM yet.
    fn check_high(&self, world: &World, vm: VmId, bytes: u64) -> Result<(), Violation> {
        let audit = world.manager.audit().unwrap_or_default();
        let is_on_its_way = |of: &VmAudit| of.vm == vm && of.split > 0;
        if audit.vms.iter().any(is_on_its_way) {
            // It holds the frames of the chunk, and nothing else of the VM is brought back before that.
            return Ok(());
        }
        let held = self.resident.get(&vm).copied().unwrap_or(0);
        let high = self.bound(vm, |quota| quota.high);
        match held + bytes > high {
            true => Err(Violation(format!(
                "{vm} holds {held} bytes and gets {bytes} back, its high is {high}"
            ))),
            false => Ok(()),
        }
    }

    /// The operator was told whether a quota is set.
    fn check_quota(&self, world: &World, vm: VmId, quota: Quota, is_refused: bool) -> Result<(), Violation> {
        let audit = world.manager.audit().unwrap_or_default();
        let Some(of) = audit.vms.iter().find(|of| of.vm == vm) else {
            return Ok(());
        };
        // Whole chunks, and no more than the guest's VRAM.
        let promise = |of: &vgpu::VmAudit, min: u64| {
            let chunks = min.min(of.image.1).div_ceil(of.chunk_bytes);
            (chunks * of.chunk_bytes).min(of.image.1)
        };
        let others = audit.vms.iter().filter(|of| of.vm != vm);
        let promised = others.map(|of| promise(of, of.quota.min)).sum::<u64>() + promise(of, quota.min);
        let usable = u64::from(audit.usable_frames) * fermi_spec::addr::FRAME;
        let holds = (1..=10_000).contains(&quota.weight)
            && quota.min <= quota.max.min(quota.high)
            && promised <= usable;
        match holds == is_refused {
            true => Err(Violation(format!(
                "{quota:?} of {vm} is {} and promises {promised} bytes of {usable} with all others",
                if is_refused { "refused" } else { "set" }
            ))),
            false => Ok(()),
        }
    }

    /// A spill has begun, with so many bytes that come in exchange: its bytes are still in VRAM.
    fn check_spill(
        &self,
        world: &World,
        vm: VmId,
        (bytes, comes): (u64, u64),
        cause: MoveCause,
    ) -> Result<(), Violation> {
        let audit = world.manager.audit().unwrap_or_default();
        let Some(of) = audit.vms.iter().find(|of| of.vm == vm) else {
            return Ok(());
        };
        // An idle chunk may make room for another of the same VM.
        // One that a window shows goes for its own VM, which has it back without the page.
        let is_exchange = cause == MoveCause::Idle { taken_for: vm } || cause == MoveCause::Shown;
        let min = self.bound(vm, |quota| quota.min);
        if comes > bytes {
            return Err(Violation(format!("{vm} gets {comes} bytes for {bytes}")));
        }
        let loses = bytes - comes;
        if loses > 0 && of.resident < min.saturating_add(loses) && !is_exchange {
            return Err(Violation(format!(
                "{vm} holds {} bytes, keeps {min} and loses {loses}",
                of.resident
            )));
        }
        // One chunk of an exchange may go whatever host RAM holds, where another can come for it only then.
        let chunk = world.chunk_bytes(vm);
        let at_limit = of.resident.saturating_add(chunk) > self.bound(vm, |quota| quota.high.min(quota.max));
        let is_for_own = cause == MoveCause::Idle { taken_for: vm } || comes > 0;
        let is_one = is_for_own && at_limit && bytes <= chunk;
        // What has begun is ended, whatever host RAM holds by now.
        let is_on_its_way = of.split > 0;
        if is_one
            || is_on_its_way
            || of.resident > self.bound(vm, |quota| quota.max)
            || cause == MoveCause::Shown
        {
            return Ok(());
        }
        // What is set, and beyond it the chunk that waits and those that make room for it.
        let config = world.config();
        let largest = audit.vms.iter().map(|of| world.chunk_bytes(of.vm)).max();
        let largest = largest.unwrap_or(0);
        let most = config
            .host_ram
            .saturating_add(largest + config.batch_bytes.max(largest));
        let spilled = audit.vms.iter().map(|of| of.spilled).sum::<u64>() + bytes;
        if spilled > most {
            return Err(Violation(format!(
                "spills take {spilled} bytes of host RAM and may take {most}"
            )));
        }
        Ok(())
    }

    /// Checks that the core's accounts are the sums of what it told.
    pub(crate) fn check_accounts(&self, world: &World) -> Result<(), Violation> {
        for (vm, sums) in &self.sums {
            let Some(account) = world.manager.account(*vm) else {
                continue;
            };
            let told = Sums {
                spilled: account.spilled_bytes,
                refilled: account.refilled_bytes,
                copied: account.link_bytes,
                rolled_back: account.rolled_back,
                suspended_ns: account.suspended_ns,
                waited_ns: account.demand_wait_ns,
            };
            if *sums != told {
                return Err(Violation(format!(
                    "the account of {vm} says {told:?}, its notices {sums:?}"
                )));
            }
        }
        Ok(())
    }
}

fn is_in_arena(audit: &Audit, at: u64) -> bool {
    let (first, frames) = audit.arena;
    let frame = at / fermi_spec::addr::FRAME;
    (u64::from(first)..u64::from(first) + u64::from(frames)).contains(&frame)
}

/// Checks what the card may use without another look at the tables.
fn check_translations(world: &World) -> Result<(), Violation> {
    let Some(audit) = world.manager.audit() else {
        return Ok(());
    };
    let owners: BTreeMap<u64, VmId> = audit
        .vms
        .iter()
        .flat_map(|vm| vm.directories.iter().map(|directory| (directory.0, vm.vm)))
        .collect();
    for kept in world.model.translations() {
        for (aperture, at) in [kept.directory, kept.table] {
            if aperture == Aperture::Vram && is_free(&audit, VramAddr(at.0)) {
                return Err(Violation(format!(
                    "the TLB has {:?}, found through {at}, which is free",
                    kept.entry
                )));
            }
        }
        // Without a VM it is the broker's, which maps all VRAM and flushes its window before it uses it.
        let Some(&vm) = owners.get(&kept.directory.1.0) else {
            continue;
        };
        let at = kept.entry.address().0;
        let is_own = match kept.entry.aperture() {
            // The host's part of the space: what the VM holds of the arena.
            Aperture::Vram if is_in_arena(&audit, at) => audit.vms.iter().any(|of| {
                let holds = |(start, bytes): &(VramAddr, u64)| (start.0..start.0 + bytes).contains(&at);
                of.vm == vm && of.arena.iter().any(holds)
            }),
            Aperture::Vram => {
                let frame = fermi_spec::addr::FrameNo((at / fermi_spec::addr::FRAME) as u32);
                matches!(world.owner(frame), FrameOwner::Vm { vm: owner, .. } if owner == vm)
            }
            _ => world.is_mapped(Iova(at), kept.bytes),
        };
        if !is_own {
            return Err(Violation(format!(
                "the TLB has {:?} of {vm}, which is not its memory any more",
                kept.entry
            )));
        }
    }
    Ok(())
}

fn is_free(audit: &Audit, at: VramAddr) -> bool {
    let mut free = audit.arena_free.iter();
    free.any(|(start, bytes)| at.0 >= start.0 && at.0 - start.0 < *bytes)
}

/// Checks that chunks in both places have the same bytes there.
pub(crate) fn check_equal(world: &World) -> Result<(), Violation> {
    let audit = world.manager.audit().unwrap_or_default();
    let mut vms = audit.vms.iter();
    vms.try_for_each(|of| compare(world, of.vm, &of.equal))
        .map_err(|at| Violation(format!("what is unchanged in VRAM, of {at}")))
}

/// Compares bytes of a VM's VRAM with those of its image. The first difference, as text.
fn compare(world: &World, vm: VmId, runs: &[(GuestVramAddr, u64)]) -> Result<(), String> {
    let memory = world.vm(vm);
    let (mut one, mut other) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    for &(start, bytes) in runs {
        let mut done = 0;
        while done < bytes {
            let at = start.0 + done;
            let length = (bytes - done).min(PIECE) as usize;
            let read = |region: &vm_memory::MmapRegion, into: &mut [u8]| {
                let slice = region.get_slice(at as usize, length);
                slice.expect("inside of its VRAM").copy_to(into);
            };
            read(&memory.vram, &mut one[..length]);
            read(&memory.image, &mut other[..length]);
            if one[..length] != other[..length] {
                return Err(format!("{vm} has different bytes in its two places at {at:#x}"));
            }
            done += length as u64;
        }
    }
    Ok(())
}
