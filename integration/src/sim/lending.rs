//! Who rests lends, and who works does not, by what the card says: its runlist, its channel table and what is in each channel's ring (decision 0037).
//!
//! Guests stand still meanwhile, so what they have handed over is all that there is. A VM all of whose channels are on the card with nothing to do rests
//! from then on; one that has work on it that no semaphore keeps waiting, then and at the end, has had it all the time. What waits for a semaphore is at rest.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{Aperture, VramAddr};
use fermi_spec::engine::Engine;
use fermi_spec::instance::{offset, userd};
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{
    ChannelInstance, ChannelState, EngineStatus, RUNLIST_PENDING, RunlistBase, RunlistCommit,
};
use vgpu::{Audit, MoveId, MoveStage, Notice, VmAudit, VmId};

use super::{MIB, Simulation, Violation};

/// Longest time of rest before a VM lends that is waited for: `lends_after` may be longer than a run, and copies may have been slow.
const WAITED_MAX_NS: u64 = 2_000_000_000;
/// What a copy of a MiB is taken to take before there was any, and the copies that a rest has to pay for.
const COPY_NS: u64 = 200_000;
const COPIES: u64 = 8;
/// Passes behind that in which it is found out.
const PASSES: u64 = 4;
/// Steps for the card before it is asked and behind each move, and nanoseconds of each.
const STEPS: u32 = 1_000;
const STEPS_AFTER_A_MOVE: u32 = 200;
const STEP_NS: u64 = 5_000;
const CHANNELS: u16 = 128;

/// What the card has of each VM.
pub(super) type OnCard = BTreeMap<VmId, Doing>;

/// What a VM's channels do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// All are on the card, and none has anything on an engine, nor in its ring that no semaphore keeps waiting.
    Nothing,
    /// One of them is on the runlist and has work that no semaphore keeps waiting.
    Work,
    /// The channel with work is on no list, or the card knows some of the channels only.
    Unknown,
}

/// What the card says of a channel.
struct Entry {
    state: ChannelState,
    is_listed: bool,
    is_on_engine: bool,
    /// It has entries in its ring that were not fetched. The doorbell that the broker rings behind a move is work to a card that does not come to
    /// look at the ring, as one whose preempt never ends, though there may be none.
    is_behind: bool,
}

impl Entry {
    fn works(&self) -> bool {
        let Self { state, is_listed, .. } = self;
        let has_more = self.is_behind || self.is_on_engine || state.loaded();
        *is_listed && has_more && state.runnable() && state.pending() && !state.acquire_pending()
    }

    fn has_nothing(&self) -> bool {
        (!self.state.pending() || self.state.acquire_pending()) && !self.is_on_engine
    }
}

impl Simulation {
    /// Lets the card do what it can do soon: of a channel that a move had stopped it looks first whether there is anything in its ring.
    fn let_card_go_on(&mut self, steps: u32) -> Result<(), Violation> {
        for _ in 0..steps {
            self.world.step(64);
            self.world.now.0 += STEP_NS;
            self.world.look();
            self.collect_replies()?;
        }
        Ok(())
    }

    /// The channels on the list that the card took last; `None` while it takes another: a card may never end that.
    fn runlist(&mut self) -> Option<BTreeSet<u16>> {
        if self.world.register(PfifoReg::RunlistStatus) & RUNLIST_PENDING != 0 {
            return None;
        }
        let base = RunlistBase::from_bits(self.world.register(PfifoReg::RunlistCurrent));
        let count = RunlistCommit::from_bits(self.world.register(PfifoReg::RunlistCommit)).count();
        let entries = self
            .world
            .read_arena_words(VramAddr(base.address().0), count.into());
        Some(entries.into_iter().map(|entry| entry as u16).collect())
    }

    /// Channels whose work is on an engine: the last copy of a ring goes on when the ring is empty.
    fn on_engines(&mut self) -> BTreeSet<u16> {
        let engines = [Engine::Graph, Engine::Copy0, Engine::Copy1].map(|engine| u16::from(engine.number()));
        let status = engines
            .map(|engine| EngineStatus::from_bits(self.world.register(PfifoReg::EngineStatus(engine))));
        let busy = status.iter().filter(|status| status.busy());
        busy.map(|status| status.channel().into()).collect()
    }

    /// Whether the channel's ring has entries that it has not fetched, by its USERD where that is the broker's; `true` where it is not.
    fn is_behind(&self, instance: VramAddr) -> bool {
        let [pointer] = self.world.read_arena_words(instance.offset(offset::USERD_LO), 1)[..] else {
            return true;
        };
        let page = VramAddr(pointer & !0xfff & ((1 << 40) - 1));
        if Aperture::from_bits(pointer as u8) != Aperture::Vram {
            return true;
        }
        let [get_and_put] = self.world.read_arena_words(page.offset(userd::GP_GET), 1)[..] else {
            return true;
        };
        get_and_put as u32 != (get_and_put >> 32) as u32
    }

    /// What each VM has on the card now.
    fn on_card(&mut self, audit: &Audit) -> OnCard {
        let listed = self.runlist();
        let on_engines = self.on_engines();
        let entries = (0..CHANNELS).filter_map(|channel| {
            let instance =
                ChannelInstance::from_bits(self.world.register(PfifoReg::ChannelInstance(channel)));
            let state = ChannelState::from_bits(self.world.register(PfifoReg::ChannelState(channel)));
            let is_listed = listed.as_ref().is_some_and(|listed| listed.contains(&channel));
            let block = VramAddr(instance.instance().0);
            let entry = Entry {
                state,
                is_listed,
                is_on_engine: on_engines.contains(&channel),
                is_behind: instance.valid() && self.is_behind(block),
            };
            instance.valid().then_some((block, entry))
        });
        let entries: BTreeMap<VramAddr, Entry> = entries.collect();
        let doing = audit.vms.iter().map(|vm| {
            let states: Vec<_> = vm.blocks.iter().map(|block| entries.get(block)).collect();
            let has_nothing = |entry: &Option<&Entry>| entry.is_some_and(Entry::has_nothing);
            let doing = if states.iter().flatten().any(|entry| entry.works()) {
                Doing::Work
            } else if states.iter().all(has_nothing) {
                Doing::Nothing
            } else {
                Doing::Unknown
            };
            (vm.vm, doing)
        });
        doing.collect()
    }

    /// The longest time that a copy of a MiB took so far, by the notices of moves.
    fn slowest_copy_ns(&self) -> u64 {
        let (mut copying, mut slowest) = (BTreeMap::<MoveId, u64>::new(), COPY_NS);
        for (_, notice) in &self.world.notices {
            match notice {
                Notice::MoveStage {
                    id,
                    stage: MoveStage::Copying | MoveStage::Verifying,
                    took_ns,
                    ..
                } => *copying.entry(*id).or_default() += took_ns,
                Notice::Moved { id, copied, .. } if *copied > 0 => {
                    let took = copying.remove(id).unwrap_or(0);
                    slowest = slowest.max(took.saturating_mul(MIB) / copied);
                }
                _ => {}
            }
        }
        slowest
    }

    /// Lets time pass until whoever rests lends. What each VM had on the card then, and has had since; `None` if nobody lends in this run, or so late
    /// that it is not waited for.
    pub(super) fn let_rest(&mut self) -> Result<Option<OnCard>, Violation> {
        let config = self.world.config();
        let (after, period) = (config.lends_after_ns, config.refill_period_ns);
        let audit = self.world.manager.audit().unwrap_or_default();
        let used = audit
            .vms
            .iter()
            .map(|vm| vm.active + vm.wanted)
            .max()
            .unwrap_or(0);
        let pays = used
            .div_ceil(MIB)
            .saturating_mul(self.slowest_copy_ns())
            .saturating_mul(COPIES);
        let rest = after.max(pays);
        if after == 0 || rest > WAITED_MAX_NS {
            return Ok(None);
        }
        let until = self.world.now.after(rest + PASSES * period);
        self.let_card_go_on(STEPS)?;
        let mut before = self.on_card(&audit);
        while self.world.now < until {
            self.world.now.0 += period;
            self.world.look();
            if !self.ends_within(super::rest::STEPS_MAX)? || self.world.is_lost {
                return Ok(None);
            }
            self.let_card_go_on(STEPS_AFTER_A_MOVE)?;
            // A channel that is put back behind a move has its doorbell rung, and a card that hangs does not come to look at its ring.
            let audit = self.world.manager.audit().unwrap_or_default();
            let meanwhile = self.on_card(&audit);
            for (vm, doing) in &mut before {
                if *doing == Doing::Nothing && meanwhile.get(vm) != Some(doing) {
                    *doing = Doing::Unknown;
                }
            }
        }
        Ok(Some(before))
    }

    /// Checks that those lend who have rested since, if anybody wants memory, and none that has worked.
    pub(super) fn check_lending(&mut self, before: &OnCard) -> Result<(), Violation> {
        self.let_card_go_on(STEPS)?;
        let audit = self.world.manager.audit().unwrap_or_default();
        let after = self.on_card(&audit);
        let wants = |vm: &VmAudit| {
            // An operator may have it hold less.
            let held_at = vm.hold.vram.unwrap_or(u64::MAX);
            let most = vm.quota.max.min(vm.quota.high).min(held_at);
            let room = most.saturating_sub(vm.resident);
            vm.wanted > 0 && vm.smallest_wanted <= room
        };
        for vm in &audit.vms {
            let is_wanted = audit.vms.iter().any(|of| of.vm != vm.vm && wants(of));
            let since = [before, &after].map(|then| then.get(&vm.vm).copied());
            match since {
                [Some(Doing::Nothing), Some(Doing::Nothing)] if is_wanted && !vm.lends => {
                    return Err(Violation(format!(
                        "{} has nothing on the card for long, others want memory, and it does not lend",
                        vm.vm
                    )));
                }
                [Some(Doing::Work), Some(Doing::Work)] if vm.lends => {
                    return Err(Violation(format!("{} lends, and has work on the card", vm.vm)));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
