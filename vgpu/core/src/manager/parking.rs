//! Channels that a guest has bound and the card has no number for: parked until they have work.
//!
//! ```text
//! guest binds ─ a number is free ─► bound ◄───────────────────────────────────── a number is free ─┐
//!      └ none ─► parked            ▲  └ another one of the VM has work and finds none ─► off the list   │
//!                 └─ rung ─────────┘     ─► stopped, out of the table ─► errors and USERD read ─► parked ┘
//! ```
//!
//! A guest has 128 channels, and the card has 127 for all. A VM holds what it was promised and what it may borrow (`host::lending`); its
//! other channels are the broker's alone: their instance blocks, with what the card stored there, and what their USERD showed. A channel
//! without work makes place first, and is not missed; one that has some after all when it is off the engines, as a copy that gave way,
//! stays. If all of them work, they take turns: the one that was bound first goes after [`TURN_NS`]. A VM's channels take places from
//! each other, never from another VM.
//!
//! What an engine knows of a channel is in memory behind a pointer in its instance block. A channel without any such pointer that has used
//! an engine keeps its number: the card would forget its state (decision 0016).

use std::collections::BTreeMap;

use fermi_spec::bar::Bar;
use fermi_spec::engine::{ENGINE_NONE, Engine};
use fermi_spec::instance::{CHANNELS, INSTANCE_BYTES, offset, userd};
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::ChannelState;
use planted::Fault;
use shadow_pt::TableRange;

use super::Cx;
use super::contexts::{LOOK_NS, Then};
use super::running::Running;
use crate::device::contexts::{Context, ImageNo};
use crate::device::{Channel, Parked, Said, SpaceId, Vgpu};
use crate::event::{Action, Tick, Token, VmId};
use crate::host::card::{Card, Off};
use crate::host::{Job, PhysChannel};
use crate::share::CHANNEL_ASKED;

/// A channel that works keeps its place for so long while another one of its VM waits.
const TURN_NS: u64 = 10_000_000;
/// Time until channels are asked again whether they have work.
const ASK_NS: u64 = 1_000_000;
/// Bound on one try to see a channel off the engines.
const STOP_NS: u64 = 20_000_000;
/// Words of USERD that mean something lie below this.
const USERD_KEPT: u32 = 0x100;

/// What the card was asked for parking. Who comes back without it asks anew.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Whether channels have work.
    states: BTreeMap<Token, (VmId, PhysChannel, Tick)>,
    /// What the USERD of a channel shows that was stopped.
    userd: BTreeMap<Token, (VmId, u8, PhysChannel)>,
}

impl Vgpu {
    /// Whether the guest has put the channel into its table.
    pub(super) fn is_bound(&self, v: u8) -> bool {
        self.channels.contains_key(&v) || self.parked.contains_key(&v)
    }

    /// The channel with work that lacks an image, the one that was bound first.
    fn lacking(&self) -> Option<(Tick, u8)> {
        if self.hold.is_suspended || self.leaves() {
            return None;
        }
        let lacks = |channel: &Channel| {
            let waits = channel.lacks_image() && channel.in_table && channel.runnable;
            waits && !channel.killed && !channel.parking && (channel.has_work || channel.gp_put.is_some())
        };
        let channels = self.channels.iter().filter(|(_, channel)| lacks(channel));
        channels.map(|(&v, channel)| (channel.bound_at, v)).min()
    }

    /// The parked channel that has waited longest, of those that may run.
    fn waiting(&self) -> Option<(Tick, u8)> {
        self.waiting_of(|_| true)
    }

    /// [`Self::waiting`] among some of them.
    fn waiting_of(&self, is_one: impl Fn(&Parked) -> bool) -> Option<(Tick, u8)> {
        if self.hold.is_suspended || self.leaves() {
            return None;
        }
        // A bit each: this is asked after each event, and a guest may have all of its channels wait.
        let listed = self
            .runlist
            .iter()
            .fold(0_u128, |listed, v| listed | 1 << (v % CHANNELS as u8));
        let waits = |(v, parked): (&u8, &Parked)| {
            let since = parked.wants_since?;
            let may_run = parked.runnable && listed >> (v % CHANNELS as u8) & 1 != 0;
            (may_run && is_one(parked)).then_some((since, *v))
        };
        self.parked.iter().filter_map(waits).min()
    }

    /// Nothing is known any more of what USERD of a channel showed while it had no number.
    pub(super) fn forget_userd(&mut self, v: u8) {
        self.userd.retain(|(of, _), _| *of != v);
    }

    /// A channel is bound for which there is no number.
    pub(super) fn remember_parked(&mut self, v: u8, parked: Parked) {
        if let Some(gp_put) = parked.gp_put {
            self.userd.insert((v, userd::GP_PUT as u16), gp_put);
        }
        self.parked.insert(v, parked);
    }

    /// Notes a store to USERD of a parked channel, which is among the words that are kept. `true`: it brings work to a VM that has lent its memory.
    #[must_use]
    pub(super) fn note_parked_store(&mut self, v: u8, now: Tick) -> bool {
        let put = self.userd.get(&(v, userd::GP_PUT as u16)).copied();
        let parked = self.parked.get_mut(&v);
        let Some(parked) = parked.filter(|parked| put.is_some() && parked.gp_put != put) else {
            return false;
        };
        parked.gp_put = put;
        parked.wants_since.get_or_insert(now);
        self.activity.doorbells += 1;
        self.activity.rang_at = Some(now);
        if let Some(space) = self.spaces.get_mut(&parked.space) {
            space.worked_at = Some(now);
        }
        self.uses_gpu(now)
    }
}

/// Whether a parked channel was bound.
enum Unparked {
    Yes,
    NoNumber,
    /// No memory for one, or it was looked for just now.
    NoImage,
}

/// Nothing else happens to the channel.
fn is_calm(channel: &Channel) -> bool {
    channel.in_table && channel.may_run() && !channel.preempting && channel.given.is_none()
}

/// Whether a channel may give up its number: nothing of it is lost.
fn may_park(channel: &Channel) -> bool {
    is_calm(channel) && (channel.has_contexts || channel.is_blank)
}

/// Whether it may give up its number as soon as it has no work. The others are not worth a question.
fn may_be_parked_yet(channel: &Channel) -> bool {
    is_calm(channel) && (channel.has_contexts || channel.engine.is_none())
}

impl Running {
    /// Gives numbers to parked channels that have work. `true` if that changed something.
    pub(super) fn serve_parked(&mut self, cx: &mut Cx<'_>) -> bool {
        let waiting: Vec<(VmId, Tick, u8)> = self
            .vms
            .values()
            .filter(|vgpu| !vgpu.parked.is_empty())
            .filter_map(|vgpu| vgpu.waiting().map(|(since, v)| (vgpu.id, since, v)))
            .collect();
        let mut changed = false;
        for (vm, since, v) in waiting {
            // What a move relies on must not change.
            if self.mover.moves(vm) {
                continue;
            }
            changed |= match self.unpark(vm, v, cx) {
                Unparked::Yes => true,
                Unparked::NoNumber => self.make_place(vm, since, false, cx),
                // Those behind it that need none do not wait for it.
                Unparked::NoImage => {
                    let needs_none = |parked: &Parked| parked.named_context().is_none();
                    let next = self.vms.get(&vm).and_then(|vgpu| vgpu.waiting_of(needs_none));
                    let is_bound = next.is_some_and(|(_, v)| matches!(self.unpark(vm, v, cx), Unparked::Yes));
                    self.make_place(vm, since, true, cx) || is_bound
                }
            };
        }
        let lacking = self.vms.values().filter(|vgpu| vgpu.image_at <= cx.now);
        let lacking: Vec<_> = lacking
            .filter_map(|vgpu| vgpu.lacking().map(|(since, v)| (vgpu.id, since, v)))
            .collect();
        for (vm, since, v) in lacking {
            if self.mover.moves(vm) {
                continue;
            }
            changed |= self.supply_image(vm, v, cx) || self.make_place(vm, since, true, cx);
        }
        changed
    }

    /// When channels are looked at again for those that wait.
    pub(super) fn next_parking(&self) -> Option<Tick> {
        let vms = self.vms.values().filter(|vgpu| !vgpu.parked.is_empty());
        let waits = vms.filter(|vgpu| vgpu.waiting().is_some() && !self.mover.moves(vgpu.id));
        let lacking = self.vms.values().filter(|vgpu| vgpu.lacking().is_some());
        let lacking = lacking.filter(|vgpu| !self.mover.moves(vgpu.id));
        waits
            .map(|vgpu| vgpu.park_at)
            .chain(lacking.map(|vgpu| vgpu.image_at))
            .min()
    }

    /// Binds a parked channel, if there is a number for it, and an image if it has a context. The card looks at its context when it is bound: a
    /// copy that gave way would not go on if its image came later.
    fn unpark(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) -> Unparked {
        let Some(physical) = self.card.claim_channel(vm, v) else {
            return Unparked::NoNumber;
        };
        let parked = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.parked.remove(&v));
        let Some(parked) = parked else {
            self.card.release_channel(physical);
            return Unparked::NoNumber;
        };
        let named = parked.named_context();
        let image = named.and_then(|context| self.image_for_parked(vm, parked.space, context, cx));
        if named.is_some() && image.is_none() {
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.parked.insert(v, parked);
            }
            self.card.release_channel(physical);
            return Unparked::NoImage;
        }
        let pointer = self.card.userd_address(physical).0.to_le_bytes().to_vec();
        let at = parked.instance.offset(offset::USERD_LO);
        self.card.arena.write(at, pointer, cx.actions);
        let given = self.held_at_bind(vm, v, parked.gp_put, cx.now);
        let at = parked.instance.offset(Engine::Graph.context_offset());
        let mut words = [0; 8];
        self.point_to(vm, parked.space, image, &mut words);
        if named.is_some() {
            self.card.arena.write(at, words.to_vec(), cx.actions);
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Unparked::NoNumber;
        };
        let mut shown = vec![0; USERD_KEPT as usize];
        // GP_PUT too: the last owner of the number may have left work, and the card would take the channel before its doorbell.
        for (&(_, at), word) in vgpu.userd.range((v, 0)..(v + 1, 0)) {
            if let Some(bytes) = shown.get_mut(usize::from(at)..usize::from(at) + 4) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let runs = parked.runnable && !vgpu.hold.is_suspended;
        self.card.bind(physical, parked.instance, &shown, runs);
        let due = given.or(parked.gp_put);
        if let Some(gp_put) = due.filter(|_| !planted::is(Fault::ParkedDoorbellLost)) {
            self.card.ring_later(physical, gp_put);
        }
        let channel = Channel {
            runnable: parked.runnable,
            gp_put: parked.gp_put,
            given,
            has_work: parked.wants_since.is_some(),
            rung_at: cx.now,
            has_contexts: parked.has_contexts,
            context: parked.context,
            image,
            engine: parked.engine,
            bound_at: cx.now,
            ..Channel::new(physical, parked.guest_instance, parked.instance, parked.space)
        };
        vgpu.channels.insert(v, channel);
        self.expect_progress(vm, v, cx.now);
        self.work_came(vm, v, cx.now);
        Unparked::Yes
    }

    /// An image with what is kept of a parked channel's context; one is looked for once in a while.
    fn image_for_parked(
        &mut self,
        vm: VmId,
        space: SpaceId,
        context: Context,
        cx: &mut Cx<'_>,
    ) -> Option<ImageNo> {
        let is_time = self.vms.get(&vm).is_some_and(|vgpu| vgpu.image_at <= cx.now);
        let image = is_time.then(|| self.put_image(vm, space, context, cx)).flatten();
        if is_time
            && image.is_none()
            && let Some(vgpu) = self.vms.get_mut(&vm)
        {
            vgpu.image_at = cx.now.after(LOOK_NS);
        }
        image
    }

    /// Takes a number from a channel of the VM, or an image: from one without work, or from the one that has had its turn.
    fn make_place(&mut self, vm: VmId, since: Tick, of_image: bool, cx: &mut Cx<'_>) -> bool {
        let asked = self.volatile.parking.states.values().any(|(of, ..)| *of == vm);
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        let parks = vgpu.channels.values().any(|channel| channel.parking);
        if asked || parks || cx.now < vgpu.park_at || self.mover.has_move(vm) {
            return false;
        }
        let fits = |channel: &Channel| !of_image || channel.image.is_some();
        let candidates = vgpu.channels.iter();
        let candidates = candidates.filter(|(_, channel)| may_park(channel) && fits(channel));
        let idle = candidates.clone().find(|(_, channel)| !channel.has_work);
        let by_turn = || {
            let oldest = candidates.clone().min_by_key(|(_, channel)| channel.bound_at)?;
            let had_its_turn = cx.now.since(oldest.1.bound_at.max(since)) >= TURN_NS;
            had_its_turn.then_some(oldest)
        };
        let chosen = idle.or_else(by_turn).map(|(&v, _)| v);
        if let Some(v) = chosen {
            self.park(vm, v);
            return true;
        }
        let all = vgpu
            .channels
            .values()
            .filter(|channel| may_be_parked_yet(channel) && fits(channel));
        let all: Vec<PhysChannel> = all.map(|channel| channel.physical).collect();
        vgpu.park_at = cx.now.after(ASK_NS);
        vgpu.share.charge(all.len() as u64 * CHANNEL_ASKED);
        self.note_doorbells_to_come(cx.now);
        for physical in all {
            let token = self.card.tokens.next();
            self.volatile.parking.states.insert(token, (vm, physical, cx.now));
            cx.actions.push(Action::HostRead {
                token,
                bar: Bar::Bar0,
                offset: PfifoReg::ChannelState(physical.0.into()).offset().into(),
                bytes: 4,
            });
        }
        false
    }

    pub(super) fn park(&mut self, vm: VmId, v: u8) {
        let channel = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.channels.get_mut(&v));
        let Some(channel) = channel else { return };
        channel.parking = true;
        let physical = channel.physical;
        self.commit_host_runlist(Job::ParkedOffList(physical));
    }

    /// The channel that a number on the card is, if it is on its way to be parked.
    fn parking(&mut self, physical: PhysChannel) -> Option<(VmId, u8, &mut Channel)> {
        let (vm, v) = self.bound_as(physical.0)?;
        let channel = self.vms.get_mut(&vm)?.channels.get_mut(&v)?;
        channel.parking.then_some((vm, v, channel))
    }

    /// A channel that is to be parked is off the runlist.
    pub(super) fn parked_off_list(&mut self, physical: PhysChannel) {
        if let Some((.., channel)) = self.parking(physical) {
            // One that has work asks for a number as soon as it has none.
            let then = if channel.has_work {
                Off::Leave
            } else {
                Off::LeaveIfDone
            };
            self.card
                .take_off(&[physical], then, STOP_NS, Job::ParkedStopped(physical));
        }
    }

    /// A channel that is to be parked is off the engines and out of the table; or it works on, and stays.
    pub(super) fn parked_stopped(&mut self, physical: PhysChannel, ok: bool, cx: &mut Cx<'_>) {
        let look = self.volatile.scan.next_look();
        let Some((vm, v, channel)) = self.parking(physical) else {
            return;
        };
        if ok {
            // Whoever has its number next must not be blamed for what it did.
            channel.looking = Some(look);
            return self.look_at_card(cx);
        }
        (channel.parking, channel.has_work) = (false, true);
        channel.bound_at = cx.now;
        let (runnable, gp_put) = (channel.runnable, channel.due());
        if std::mem::take(&mut channel.preempting) {
            self.preempt(vm, v, cx);
        }
        if self.vms.get(&vm).is_some_and(|vgpu| vgpu.hold.is_suspended) {
            return;
        }
        if runnable {
            self.card.start(physical);
        }
        self.commit_host_runlist(Job::Nothing);
        if let Some(gp_put) = gp_put {
            self.card.ring_later(physical, gp_put);
        }
    }

    /// Goes on with channels that are to be parked and of which the card has nothing to say any more. `true` if there was one.
    pub(super) fn check_parking(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut over = Vec::new();
        for vgpu in self.vms.values_mut() {
            for (&v, channel) in &mut vgpu.channels {
                let scan = &self.volatile.scan;
                if channel.looking.take_if(|look| scan.has_finished(*look)).is_some() {
                    over.push((vgpu.id, v));
                }
            }
        }
        for &(vm, v) in &over {
            let Some(channel) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.channels.get_mut(&v)) else {
                continue;
            };
            let physical = channel.physical;
            // From here on it is the image of what is kept, even if the channel is unbound meanwhile.
            match (channel.image.take(), channel.context) {
                (Some(image), Some(context)) => {
                    let of = (channel.space, image);
                    self.keep_image(vm, of, context, Then::Parked(physical), cx);
                }
                _ => self.ask_userd(vm, v, physical, cx),
            }
        }
        !over.is_empty()
    }

    /// What the image of a channel held that is to be parked is kept, by that ticket.
    pub(super) fn image_kept(&mut self, physical: PhysChannel, ticket: u64, cx: &mut Cx<'_>) {
        let Some((vm, v, channel)) = self.parking(physical) else {
            return;
        };
        // The number may be another channel's by now.
        if channel.context.is_some_and(|context| context.ticket == ticket) {
            self.ask_userd(vm, v, physical, cx);
        }
    }

    /// Asks what the USERD of a channel shows that is to be parked.
    fn ask_userd(&mut self, vm: VmId, v: u8, physical: PhysChannel, cx: &mut Cx<'_>) {
        let token = self.card.tokens.next();
        self.volatile.parking.userd.insert(token, (vm, v, physical));
        cx.actions.push(Action::HostRead {
            token,
            bar: Bar::Bar1,
            offset: Card::userd_window(physical),
            bytes: USERD_KEPT,
        });
    }

    /// Takes a value that parking asked for; `false` if it belongs to somebody else.
    pub(super) fn parking_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        if let Some((vm, physical, asked_at)) = self.volatile.parking.states.remove(&token) {
            let state = ChannelState::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
            let said = Said {
                state,
                is_on_engine: false,
                is_before_a_pass: false,
                asked_at,
            };
            if let Some((_, v)) = self.bound_as(physical.0).filter(|(of, _)| *of == vm)
                && let Some(vgpu) = self.vms.get_mut(&vm)
                && let Some(channel) = vgpu.note_state(v, &said, cx.now)
            {
                channel.engine = Engine::from_number(state.engine()).or(channel.engine);
                channel.is_blank =
                    !channel.has_work && state.engine() == ENGINE_NONE && channel.engine.is_none();
                // One that has to keep its number is no reason to look again.
                if !channel.has_work && may_park(channel) {
                    vgpu.park_at = vgpu.park_at.min(cx.now);
                }
            }
            return true;
        }
        let Some((_, _, physical)) = self.volatile.parking.userd.remove(&token) else {
            return false;
        };
        if self.parking(physical).is_some() {
            self.end_parking(physical, data, cx);
        }
        true
    }

    /// What the channel's USERD showed is known: its number is free.
    fn end_parking(&mut self, physical: PhysChannel, shown: &[u8], cx: &mut Cx<'_>) {
        let Some((vm, v)) = self.bound_as(physical.0) else {
            return;
        };
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        // What became of one that made an error on its way out is known of channels with a number only.
        if let Some(channel) = vgpu.channels.get_mut(&v)
            && (channel.stands || channel.killed)
        {
            (channel.parking, channel.in_table) = (false, false);
            let (instance, runs) = (channel.instance, channel.runnable && channel.may_run());
            return self.card.bind(physical, instance, shown, runs);
        }
        let Some(channel) = vgpu.channels.remove(&v) else {
            return;
        };
        for (at, word) in (0..).step_by(4).zip(shown.as_chunks().0) {
            vgpu.userd.insert((v, at), u32::from_le_bytes(*word));
        }
        if let Some(gp_put) = channel.gp_put {
            vgpu.userd.insert((v, userd::GP_PUT as u16), gp_put);
        }
        // What was rung meanwhile, or was not at its end.
        let fetched = vgpu.userd.get(&(v, userd::GP_GET as u16)).copied();
        let is_done = channel.gp_put.is_none() || channel.gp_put == fetched;
        vgpu.parked.insert(
            v,
            Parked {
                guest_instance: channel.guest_instance,
                instance: channel.instance,
                space: channel.space,
                runnable: channel.runnable,
                gp_put: channel.gp_put,
                engine: channel.engine,
                has_contexts: channel.has_contexts,
                context: channel.context,
                wants_since: (channel.has_work || !is_done).then_some(cx.now),
            },
        );
        self.card.release_channel(physical);
        self.show_all_progress(vm, v, shown, cx);
        if channel.preempting {
            self.save_block(vm, v, cx);
        }
    }

    /// The guest takes a parked channel out of its table. `false` if it is not parked.
    pub(super) fn unbind_parked(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) -> bool {
        let parked = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.parked.remove(&v));
        let Some(parked) = parked else { return false };
        let block = TableRange {
            at: parked.instance,
            bytes: INSTANCE_BYTES,
        };
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.forget_userd(v);
        }
        self.free_tables(vm, &[block]);
        self.leave_space(vm, parked.space, (None, None), cx);
        self.end_work(vm, v);
        true
    }
}
