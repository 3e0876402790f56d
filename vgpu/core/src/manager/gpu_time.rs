//! GPU time by weight: a VM that has had more of an engine than its part is kept off the runlist until the others have caught up.
//!
//! ```text
//! each look: who is on the engine (2640), and who waits for it (CHANNEL_STATE)?
//!   balance of each that wants it += its part of the time since the last look, by weight
//!   balance of who is on it       -= that time
//!
//! on the runlist ─ balance below -HOLD_NS, and somebody waits ─► held back ─ balance 0, or nobody else wants it, or HELD_MAX_NS ─┐
//!       ▲                                                                                                                        │
//!       └────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! An engine that stands while a VM is held back stands for those who keep it: beyond short rests between pieces of work they have had that time. Who
//! lets it stand for longer than it works keeps it no more, and earns nothing, until that has faded (`Account::is_lazy`): short grids with rests between
//! them take no engine away.
//!
//! Time slices alone do not share an engine: a grid gives way at its end, however long it is. So what a VM has had beyond its part is a
//! debt. This is the virtual run time of fair schedulers, told as the difference to what it should be. Who does not want the engine
//! earns nothing and owes nothing, and an engine that nobody else wants is never kept from anybody.
//!
//! A card does not say for how long a channel was on an engine, so that is sampled, at moments drawn by a key that no guest knows. VMs are
//! looked at only while two of them have work. A VM that is held back is off the runlist, for one engine; what it has on an engine ends.
//!
//! unverified: that 2640 and CHANNEL_STATE say on a real card whose work is on an engine, and who has work for which one.

use std::collections::BTreeMap;

use fermi_spec::bar::Bar;
use fermi_spec::engine::{ENGINE_NONE, Engine};
use fermi_spec::instance::Timeslice;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{ChannelState, EngineStatus};
use planted::Fault;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Cx;
use super::engine_looks::DRIVEN;
use super::running::Running;
use crate::device::{Channel, Said, Vgpu};
use crate::event::{Action, Tick, Token, VmId};
use crate::host::{Job, PhysChannel};
use crate::inspect::{Inspect, Tree};
use crate::share::CHANNEL_ASKED;

/// Time between two looks while VMs contend, and while none does.
const LOOK_NS: std::ops::Range<u64> = 1_000_000..3_000_000;
const CALM_LOOK_NS: std::ops::Range<u64> = 12_000_000..20_000_000;
/// A look stands for no more than that.
const STANDS_FOR_MAX_NS: u64 = 50_000_000;
/// VMs contend for so long after they were last seen to.
const CONTENDED_FOR_NS: u64 = 100_000_000;
/// Most channels of a VM that one look asks about.
const ASKED_MAX: usize = 8;
/// A debt of that much has its VM held back: two turns of 2 ms.
const HOLD_NS: i64 = 4_000_000;
/// Nobody is held back for longer at a time: each VM has its turn in a second, whatever its weight.
const HELD_MAX_NS: u64 = 1_000_000_000;
/// A guest that waits for its work rests for a moment before it submits more. It counts as one that wants the engine meanwhile.
const PAUSES_FOR_NS: u64 = 5_000_000;
/// An engine may stand for a VM by so much longer than that has worked on it.
const STANDS_FOR_IT_MAX_NS: u64 = HOLD_NS as u64;
/// Of how long it worked and how long the engine stood for it, half is forgotten in this time.
const FADES_NS: u64 = 100_000_000;
/// Debts and credits are no larger.
const DEBT_MAX_NS: i64 = 1_000_000_000;
const CREDIT_MAX_NS: i64 = 100_000_000;
/// What a VM owes or is owed is forgotten when it has not wanted the engine for so long.
const REMEMBERED_NS: u64 = 1_000_000_000;

/// A VM's turn on an engine if all weigh the same, in units of 8 µs: 2 ms.
const TURN_UNITS: u64 = 250;
/// No turn is shorter or longer than this part of it, or so many times as long.
const TURN_SPREAD: u64 = 8;
/// Unit of a time slice of scale 0 is 1 µs; nouveau's scale is 3.
const SCALE: u8 = 3;

/// What was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    /// Who is on an engine, by its place in `DRIVEN`.
    Engine(usize),
    Channel(PhysChannel),
}

/// A VM's account of one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Account {
    /// Time that it was due and did not have; below zero, what it has had beyond its part.
    balance_ns: i64,
    held_since: Option<Tick>,
    /// When it last wanted the engine.
    wanted_at: Tick,
    /// Time that it was on the engine, and time that the engine stood for it while others were held back.
    worked_ns: u64,
    stood_ns: u64,
    faded_at: Tick,
}

impl Account {
    /// Whether the engine stands for it no longer than between pieces of work, which is no time that it has had.
    fn only_pauses(&self) -> bool {
        self.stood_ns <= self.worked_ns / 4
    }

    /// Whether it lets the engine stand for longer than it works.
    fn is_lazy(&self) -> bool {
        self.stood_ns > self.worked_ns + STANDS_FOR_IT_MAX_NS && !planted::is(Fault::IdleKeeperKept)
    }

    /// Whether others are kept from the engine for its sake: it wants it, or rests for a moment.
    fn keeps(&self, now: Tick) -> bool {
        now.since(self.wanted_at) < PAUSES_FOR_NS && !self.is_lazy()
    }

    fn fade(&mut self, now: Tick) {
        if now.since(self.faded_at) >= FADES_NS {
            self.faded_at = now;
            self.worked_ns /= 2;
            self.stood_ns /= 2;
        }
    }
}

/// What a look has found of one engine.
#[derive(Debug, Default)]
struct Found {
    /// Who is on it.
    holder: Option<VmId>,
    /// Weights of those that are on it or wait for it.
    wants: BTreeMap<VmId, u64>,
    /// If nobody is on it though a VM is held back: weights of those for whom it stands.
    keepers: BTreeMap<VmId, u64>,
}

/// The accounts, and the look that the card has not answered in full. It is no state: who comes back without it begins anew.
#[derive(Debug, Default)]
pub(super) struct GpuTime {
    /// When the next look is due.
    at: Tick,
    /// Two VMs had work when the core was left.
    is_armed: bool,
    /// Looks so far.
    looks: u64,
    /// When the last one was answered.
    looked_at: Option<Tick>,
    contended_at: Option<Tick>,
    asked: Vec<(Token, Question)>,
    asked_at: Tick,
    on: [Option<PhysChannel>; DRIVEN.len()],
    states: Vec<(PhysChannel, ChannelState)>,
    accounts: [BTreeMap<VmId, Account>; DRIVEN.len()],
}

impl Vgpu {
    /// Whether one of its channels may have work for an engine. Those that are held back count.
    fn has_gpu_work(&self) -> bool {
        !self.hold.is_suspended && self.channels.values().any(has_work)
    }

    /// Whether the VM is off the runlist for what this channel does.
    pub(crate) fn is_held_back(&self, channel: &Channel) -> bool {
        match channel.engine {
            Some(engine) => self.held_back.contains(&engine),
            // It may be for any of them.
            None => !self.held_back.is_empty(),
        }
    }
}

fn has_work(channel: &Channel) -> bool {
    channel.has_work && channel.in_table && channel.may_run()
}

impl GpuTime {
    /// Whether this look, or one not long before, saw two VMs that want one engine.
    fn is_contended(&self, now: Tick) -> bool {
        self.contended_at
            .is_some_and(|at| now.since(at) < CONTENDED_FOR_NS)
    }

    /// The next look is due at a moment that is drawn by its number and the key alone.
    fn schedule(&mut self, now: Tick, key: u64) {
        self.looks += 1;
        let within = match self.is_contended(now) {
            true => LOOK_NS,
            false => CALM_LOOK_NS,
        };
        let mut draw = ChaCha8Rng::seed_from_u64(self.looks ^ key.rotate_left(32));
        self.at = now.after(draw.random_range(within));
    }
}

impl Running {
    /// When the next look is due; `None` while no two VMs have work.
    pub(super) fn next_share_look(&self) -> Option<Tick> {
        let time = &self.volatile.gpu_time;
        time.is_armed.then_some(time.at)
    }

    /// Looks who is on the engines and who waits for them, if it is time.
    pub(super) fn share_engines(&mut self, cx: &mut Cx<'_>) {
        let mut at_work = self.vms.values().filter(|vgpu| vgpu.has_gpu_work());
        let contend = at_work.nth(1).is_some();
        let is_armed = contend || self.vms.values().any(|vgpu| !vgpu.held_back.is_empty());
        let time = &mut self.volatile.gpu_time;
        time.is_armed = is_armed;
        if !is_armed {
            // The time until two have work again is not a look's.
            time.looked_at = None;
            return;
        }
        if !time.asked.is_empty() || cx.now < time.at {
            return;
        }
        time.schedule(cx.now, self.config.sampling_key);
        time.asked_at = cx.now;
        self.ask_who_wants(cx);
    }

    fn ask_who_wants(&mut self, cx: &mut Cx<'_>) {
        self.note_doorbells_to_come(cx.now);
        let mut asked: Vec<Question> = (0..DRIVEN.len()).map(Question::Engine).collect();
        let first = self.volatile.gpu_time.looks as usize;
        for vgpu in self.vms.values_mut() {
            let channels = vgpu.channels.values().filter(|channel| has_work(channel));
            let all: Vec<PhysChannel> = channels.map(|channel| channel.physical).collect();
            let count = all.len().min(ASKED_MAX);
            // In turn, if there are more.
            let from = match all.len() > count {
                true => first.wrapping_mul(count) % all.len(),
                false => 0,
            };
            let turn = all.iter().cycle().skip(from).take(count);
            asked.extend(turn.map(|channel| Question::Channel(*channel)));
            vgpu.share.charge(count as u64 * CHANNEL_ASKED);
        }
        for question in asked {
            let token = self.card.tokens.next();
            let register = match question {
                Question::Engine(at) => PfifoReg::EngineStatus(DRIVEN[at].number().into()),
                Question::Channel(channel) => PfifoReg::ChannelState(channel.0.into()),
            };
            cx.actions.push(Action::HostRead {
                token,
                bar: Bar::Bar0,
                offset: register.offset().into(),
                bytes: 4,
            });
            self.volatile.gpu_time.asked.push((token, question));
        }
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn share_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let time = &mut self.volatile.gpu_time;
        let Some(at) = time.asked.iter().position(|(of, _)| *of == token) else {
            return false;
        };
        let (_, question) = time.asked.swap_remove(at);
        let word = u32::from_le_bytes(data.try_into().unwrap_or_default());
        match question {
            Question::Engine(at) => {
                let status = EngineStatus::from_bits(word);
                time.on[at] = status.busy().then_some(PhysChannel(status.channel()));
            }
            Question::Channel(channel) => time.states.push((channel, ChannelState::from_bits(word))),
        }
        if time.asked.is_empty() {
            self.share(cx.now);
        }
        true
    }

    /// All answers are there: accounts, and who is held back.
    fn share(&mut self, now: Tick) {
        let time = &mut self.volatile.gpu_time;
        let passed = time.looked_at.replace(now).map_or(0, |before| now.since(before));
        let passed = passed.min(STANDS_FOR_MAX_NS);
        let (on, states) = (std::mem::take(&mut time.on), std::mem::take(&mut time.states));
        for (channel, state) in &states {
            self.note_engine(*channel, *state, &on, now);
        }
        let mut has_changed = false;
        for (at, engine) in DRIVEN.into_iter().enumerate() {
            let holder = on[at].and_then(|channel| self.worker(channel));
            let wants = self.who_wants(engine, holder, &states);
            if wants.len() > 1 {
                self.volatile.gpu_time.contended_at = Some(now);
            }
            let found = Found {
                keepers: self.keepers(at, holder, &wants, now),
                holder,
                wants,
            };
            account(&mut self.volatile.gpu_time.accounts[at], &found, passed, now);
            has_changed |= self.hold_back(at, now);
        }
        if has_changed {
            self.commit_host_runlist(Job::Nothing);
        }
    }

    /// What the card says of a channel is kept: whether it has work, and for which engine.
    fn note_engine(
        &mut self,
        physical: PhysChannel,
        state: ChannelState,
        on: &[Option<PhysChannel>],
        now: Tick,
    ) {
        let Some((vm, v)) = self.bound_as(physical.0) else {
            return;
        };
        let at_work = on.iter().position(|of| *of == Some(physical));
        let asked_at = self.volatile.gpu_time.asked_at;
        let vgpu = self.vms.get_mut(&vm);
        let said = Said {
            state,
            is_on_engine: at_work.is_some(),
            is_before_a_pass: false,
            asked_at,
        };
        let channel = vgpu.and_then(|vgpu| vgpu.note_state(v, &said, now));
        let Some(channel) = channel else { return };
        let named = DRIVEN.iter().position(|engine| engine.number() == state.engine());
        if let Some(at) = at_work.or(named) {
            channel.engine = Some(DRIVEN[at]);
        }
    }

    /// VMs that are on the engine or wait for it, with their weights.
    fn who_wants(
        &self,
        engine: Engine,
        holder: Option<VmId>,
        states: &[(PhysChannel, ChannelState)],
    ) -> BTreeMap<VmId, u64> {
        // A channel whose ring is empty stays loaded. One that has not named an engine yet is about to.
        let waits = |state: &ChannelState| {
            let named = [engine.number(), ENGINE_NONE].contains(&state.engine());
            state.pending() && !state.acquire_pending() && named
        };
        let waiting = states.iter().filter(|(_, state)| waits(state));
        let waiting = waiting.filter_map(|(channel, _)| Some(self.bound_as(channel.0)?.0));
        let held = self.vms.values().filter(|vgpu| {
            let mut channels = vgpu.channels.values();
            vgpu.held_back.contains(&engine)
                && channels.any(|channel| has_work(channel) && vgpu.is_held_back(channel))
        });
        let held = held.map(|vgpu| vgpu.id);
        let all = waiting.chain(held).chain(holder);
        let weight = |vm: VmId| Some((vm, u64::from(self.vms.get(&vm)?.quota().weight)));
        all.filter_map(weight).collect()
    }

    fn is_held_from(&self, vm: VmId, engine: Engine) -> bool {
        let vgpu = self.vms.get(&vm);
        vgpu.is_some_and(|vgpu| vgpu.held_back.contains(&engine))
    }

    /// For whom an engine stands, if a VM that wants it is held back and nobody is on it.
    fn keepers(
        &self,
        at: usize,
        holder: Option<VmId>,
        wants: &BTreeMap<VmId, u64>,
        now: Tick,
    ) -> BTreeMap<VmId, u64> {
        let engine = DRIVEN[at];
        if holder.is_some() || !wants.keys().any(|vm| self.is_held_from(*vm, engine)) {
            return BTreeMap::new();
        }
        let accounts = self.volatile.gpu_time.accounts[at].iter();
        let keep = accounts.filter(|(vm, account)| account.keeps(now) && !self.is_held_from(**vm, engine));
        let weight = |vm: &VmId| Some((*vm, u64::from(self.vms.get(vm)?.quota().weight)));
        keep.filter_map(|(vm, _)| weight(vm)).collect()
    }

    /// Holds back who owes too much, and lets go who owes nothing any more. `true` if the runlist is to change.
    fn hold_back(&mut self, at: usize, now: Tick) -> bool {
        let engine = DRIVEN[at];
        let accounts = self.volatile.gpu_time.accounts[at].iter();
        let others: Vec<VmId> = accounts
            .filter(|(vm, account)| account.keeps(now) && !self.is_held_from(**vm, engine))
            .map(|(vm, _)| *vm)
            .collect();
        let accounts = &mut self.volatile.gpu_time.accounts[at];
        let mut released = Vec::new();
        let mut has_changed = false;
        let all: Vec<VmId> = self.vms.keys().copied().collect();
        for vm in all {
            let is_held = self
                .vms
                .get(&vm)
                .is_some_and(|vgpu| vgpu.held_back.contains(&engine));
            let Some(account) = accounts.get_mut(&vm) else {
                released.extend(is_held.then_some(vm));
                continue;
            };
            let is_over = |since: Tick| now.since(since) >= HELD_MAX_NS;
            let somebody_waits = others.iter().any(|other| *other != vm);
            if is_held {
                let is_over = account.held_since.is_none_or(is_over);
                let is_free = account.balance_ns >= 0 || is_over || !somebody_waits;
                if is_free && !planted::is(Fault::HeldBackForEver) {
                    released.push(vm);
                    account.held_since = None;
                }
                if is_over {
                    account.balance_ns = account.balance_ns.max(-HOLD_NS / 2);
                }
            } else if account.balance_ns <= -HOLD_NS && somebody_waits && !planted::is(Fault::NobodyHeldBack)
            {
                account.held_since = Some(now);
                if let Some(vgpu) = self.vms.get_mut(&vm) {
                    has_changed |= vgpu.held_back.insert(engine);
                }
            }
        }
        has_changed |= !released.is_empty();
        for vm in released {
            self.let_go(vm, engine);
        }
        has_changed
    }

    /// The VM's channels may come onto the engine again, when the runlist is committed.
    fn let_go(&mut self, vm: VmId, engine: Engine) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        vgpu.held_back.remove(&engine);
        let may_run = |channel: &&Channel| has_work(channel) && channel.runnable;
        for channel in vgpu.channels.values().filter(may_run) {
            if let Some(gp_put) = channel.due() {
                self.card.ring_later(channel.physical, gp_put);
            }
        }
    }

    /// The time slice of each channel of a VM: the VM's turn by its weight beside the mean of those that have channels to run, divided by
    /// its channels, so that more channels do not mean more time.
    pub(super) fn time_slices(&self) -> BTreeMap<VmId, Timeslice> {
        let run = self.vms.values().filter(|vgpu| !vgpu.runlist.is_empty());
        let weights: Vec<u64> = run.map(|vgpu| vgpu.quota().weight.into()).collect();
        let slice = |vgpu: &Vgpu| {
            let turn = turn(vgpu.quota().weight.into(), &weights);
            let channels = vgpu.eligible().count().max(1) as u64;
            (vgpu.id, timeslice((turn / channels).max(1)))
        };
        self.vms.values().map(slice).collect()
    }
}

/// A VM's turn by its weight, beside the weights of all that run, in units of 8 µs.
fn turn(weight: u64, all: &[u64]) -> u64 {
    let (sum, count) = (all.iter().sum::<u64>().max(1), all.len().max(1) as u64);
    let turn = TURN_UNITS * weight * count / sum;
    turn.clamp(TURN_UNITS / TURN_SPREAD, TURN_UNITS * TURN_SPREAD)
}

/// A slice of so many units of 8 µs: a larger scale where the timeout's 8 bits do not hold them.
fn timeslice(units: u64) -> Timeslice {
    let more = (0..8)
        .find(|more| units >> more <= u64::from(u8::MAX))
        .unwrap_or(8);
    Timeslice::new()
        .with_timeout((units >> more) as u8)
        .with_scale(SCALE + more)
        .with_enable(true)
}

/// Books the time since the last look.
fn account(accounts: &mut BTreeMap<VmId, Account>, found: &Found, passed: u64, now: Tick) {
    let Found {
        holder,
        wants,
        keepers,
    } = found;
    accounts
        .retain(|_, account| now.since(account.wanted_at) < REMEMBERED_NS || account.held_since.is_some());
    for account in accounts.values_mut() {
        account.fade(now);
    }
    for vm in wants.keys() {
        accounts.entry(*vm).or_default().wanted_at = now;
    }
    let part =
        |weight: u64, of: u64| (u128::from(passed) * u128::from(weight) / u128::from(of.max(1))) as u64;
    let kept: u64 = keepers.values().sum();
    let had = |vm: VmId| match holder {
        Some(holder) if *holder == vm => passed,
        Some(_) => 0,
        None => keepers.get(&vm).map_or(0, |weight| part(*weight, kept)),
    };
    let is = |vm: &VmId, what: fn(&Account) -> bool| accounts.get(vm).is_some_and(what);
    // Time in which nobody was on it is nobody's, unless it stood for somebody who does more than pause.
    let is_had = holder.is_some() || !keepers.keys().all(|vm| is(vm, Account::only_pauses));
    // Who is lazy is due nothing, and time of one who is alone is nobody's.
    let all = wants
        .iter()
        .chain(keepers)
        .filter(|(vm, _)| !is(vm, Account::is_lazy));
    let due: BTreeMap<VmId, u64> = all.map(|(vm, weight)| (*vm, *weight)).collect();
    let is_booked = is_had && due.len() > 1;
    let sum: u64 = due.values().sum();
    for (vm, account) in accounts {
        let had = had(*vm);
        match holder {
            Some(_) => account.worked_ns += had,
            None => account.stood_ns += had,
        }
        if let (true, Some(weight)) = (is_booked, due.get(vm)) {
            let balance = account.balance_ns + part(*weight, sum) as i64 - had as i64;
            account.balance_ns = balance.clamp(-DEBT_MAX_NS, CREDIT_MAX_NS);
        }
    }
}

impl Inspect for GpuTime {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for (engine, accounts) in DRIVEN.iter().zip(&self.accounts) {
            if accounts.is_empty() {
                continue;
            }
            tree.group(format_args!("{engine:?}"), |tree| {
                for (vm, account) in accounts {
                    tree.group(vm, |tree| {
                        tree.name("balance_us", account.balance_ns / 1_000);
                        if let Some(since) = account.held_since {
                            tree.age("held_back_since", since);
                        }
                    });
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
