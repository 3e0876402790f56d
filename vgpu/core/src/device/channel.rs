//! A guest's channel on the card.

use fermi_spec::addr::{GuestVramAddr, VramAddr};
use fermi_spec::engine::Engine;
use fermi_spec::instance::Timeslice;
use fermi_spec::regs::pfifo::ChannelState;
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::TableAt;

use super::contexts::{Context, ImageNo};
use super::{SpaceId, Vgpu};
use crate::event::Tick;
use crate::host::PhysChannel;
use crate::inspect::{Inspect, Space as Address, Tree};

/// A guest's channel that is bound.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Channel {
    pub(crate) physical: PhysChannel,
    /// The guest's instance block, as in its register.
    pub(crate) guest_instance: TableAt,
    /// The block that the card reads.
    pub(crate) instance: VramAddr,
    pub(crate) space: SpaceId,
    /// It is in the card's channel table: a runlist must not name it before.
    pub(crate) in_table: bool,
    /// The guest lets it run.
    pub(crate) runnable: bool,
    /// Suspended: off the card while memory moves.
    pub(crate) suspended: bool,
    /// Stopped: off the card for good after a fault or an error. The guest has to bind it anew.
    pub(crate) killed: bool,
    /// Off the card until the guest has acknowledged its errors.
    pub(crate) stands: bool,
    /// A preempt that the guest asked for is in the lane.
    pub(crate) preempting: bool,
    /// The time slice last written to its instance block.
    pub(crate) slice: Timeslice,
    /// The last GP_PUT, rung again at the resume.
    pub(crate) gp_put: Option<u32>,
    /// GP_PUT that the card has, while what is behind it waits for memory ([`super::work`]).
    #[serde(default)]
    pub(crate) given: Option<u32>,
    /// It was rung since the card last said that it has no work.
    #[serde(default)]
    pub(crate) has_work: bool,
    /// When it was rung last, or bound with work.
    #[serde(default)]
    pub(crate) rung_at: Tick,
    /// The card last said that its work waits for a semaphore, or what it said is not believed yet.
    #[serde(default)]
    pub(crate) waits: bool,
    /// What its doorbell behind a move says.
    #[serde(default)]
    pub(crate) rung_again: RungAgain,
    /// The engine that it was seen to use last.
    #[serde(default)]
    pub(crate) engine: Option<Engine>,
    /// Its instance block points to what an engine keeps of it.
    #[serde(default)]
    pub(crate) has_contexts: bool,
    /// That of PGRAPH.
    #[serde(default)]
    pub(crate) context: Option<Context>,
    /// The image that PGRAPH has of it.
    #[serde(default)]
    pub(crate) image: Option<ImageNo>,
    /// The card said that it has no work and has used no engine, and it was not rung since.
    #[serde(default)]
    pub(crate) is_blank: bool,
    /// It is on its way off the card, to be parked.
    #[serde(default)]
    pub(crate) parking: bool,
    /// It is off the card to be parked, and waits for that look at the card: nothing that this has to say of it comes behind it.
    #[serde(default)]
    pub(crate) looking: Option<u64>,
    /// When it got its number on the card.
    #[serde(default)]
    pub(crate) bound_at: Tick,
}

/// The broker rings the doorbell of a channel that it puts back behind a move. Until the card has looked at the ring, that counts as work there, though
/// there may be none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum RungAgain {
    /// What the card says of its work is so.
    #[default]
    No,
    /// It had no work when it was put back: an answer that it has some is not believed yet.
    NotSeen,
    /// There was such an answer before a pass: one before the next pass is believed.
    Doubted,
}

/// What the card says of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) state: ChannelState,
    /// Its work is on an engine.
    pub(crate) is_on_engine: bool,
    /// It was asked after whoever may be at work, as before each pass.
    pub(crate) is_before_a_pass: bool,
    pub(crate) asked_at: Tick,
}

/// A guest's channel that has no number on the card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Parked {
    /// The guest's instance block, as in its register.
    pub(crate) guest_instance: TableAt,
    /// The block that the card reads when the channel is bound.
    pub(crate) instance: VramAddr,
    pub(crate) space: SpaceId,
    /// The guest lets it run.
    pub(crate) runnable: bool,
    /// The last GP_PUT.
    pub(crate) gp_put: Option<u32>,
    pub(crate) engine: Option<Engine>,
    pub(crate) has_contexts: bool,
    #[serde(default)]
    pub(crate) context: Option<Context>,
    /// Since when it has work and no number; `None` without work.
    pub(crate) wants_since: Option<Tick>,
}

impl Parked {
    /// The context that it cannot be bound without.
    pub(crate) fn named_context(&self) -> Option<Context> {
        self.context.filter(|context| context.is_named)
    }
}

impl Channel {
    /// A channel that is about to be bound.
    pub(crate) fn new(
        physical: PhysChannel,
        guest_instance: TableAt,
        instance: VramAddr,
        space: SpaceId,
    ) -> Self {
        Self {
            physical,
            guest_instance,
            instance,
            space,
            in_table: false,
            runnable: false,
            suspended: false,
            killed: false,
            stands: false,
            preempting: false,
            slice: Timeslice::new(),
            gp_put: None,
            given: None,
            has_work: false,
            rung_at: Tick::default(),
            waits: false,
            rung_again: RungAgain::No,
            engine: None,
            has_contexts: false,
            context: None,
            image: None,
            is_blank: false,
            parking: false,
            looking: None,
            bound_at: Tick::default(),
        }
    }

    /// Nothing of the broker's keeps it from the runlist.
    pub(crate) fn may_run(&self) -> bool {
        !self.suspended && !self.killed && !self.stands && !self.parking && !self.lacks_image()
    }

    /// It may be at work as soon as the broker and other VMs let it; a semaphore that it waits for is the guest's to release.
    pub(crate) fn is_at_work(&self) -> bool {
        let has_more = self.has_work && !self.waits || self.given.is_some();
        has_more
            && !planted::is(Fault::WorkTakenForRest)
            && self.in_table
            && self.runnable
            && !self.killed
            && !self.stands
    }

    /// Takes note of what the card says of its work.
    pub(crate) fn note_work(&mut self, said: &Said, has_rung: bool) {
        let state = said.state;
        self.has_work = state.pending() || said.is_on_engine || has_rung;
        let works = self.has_work && !said.is_on_engine && !state.acquire_pending();
        let (rung_again, is_doubted) = match self.rung_again {
            RungAgain::NotSeen if !self.has_work => (RungAgain::NotSeen, false),
            RungAgain::NotSeen if works && said.is_before_a_pass => (RungAgain::Doubted, true),
            unseen @ (RungAgain::NotSeen | RungAgain::Doubted) if works && !said.is_before_a_pass => {
                (unseen, true)
            }
            _ => (RungAgain::No, false),
        };
        self.rung_again = rung_again;
        let is_doubted = is_doubted && !planted::is(Fault::OwnBellTakenForWork);
        self.waits = self.has_work && !said.is_on_engine && (state.acquire_pending() || is_doubted);
    }

    /// Its guest has rung, or what that rang earlier is let go.
    pub(crate) fn note_rung(&mut self, now: Tick) {
        (self.has_work, self.waits, self.rung_at) = (true, false, now);
        self.rung_again = RungAgain::No;
    }

    /// The broker rings it once more behind a move.
    pub(crate) fn ring_again(&mut self) {
        if !self.is_at_work() && self.rung_again == RungAgain::No {
            self.rung_again = RungAgain::NotSeen;
        }
    }

    /// GP_PUT that the card may have.
    pub(crate) fn due(&self) -> Option<u32> {
        self.given.or(self.gp_put)
    }

    /// It names a context of PGRAPH, for which there was no memory yet.
    pub(crate) fn lacks_image(&self) -> bool {
        self.image.is_none() && self.context.is_some_and(|context| context.is_named)
    }

    /// A channel of which nothing is known but its number: it may only leave the card.
    pub(crate) fn stray(physical: PhysChannel) -> Self {
        Self {
            physical,
            in_table: true,
            killed: true,
            ..Self::new(
                physical,
                TableAt::Vram(GuestVramAddr(0)),
                VramAddr(0),
                SpaceId(u32::MAX),
            )
        }
    }
}

impl Channel {
    /// Number of the page with the guest's instance block, as registers tell it.
    pub(crate) fn guest_frame(&self) -> u32 {
        match self.guest_instance {
            TableAt::Vram(at) => (at.0 >> 12) as u32,
            TableAt::Ram(at) => (at.0 >> 12) as u32,
        }
    }
}

impl Vgpu {
    /// The instance blocks of a bound channel, with a number on the card or parked: the one that the card reads, and the guest's.
    pub(crate) fn blocks_of(&self, v: u8) -> Option<(VramAddr, TableAt)> {
        let bound = self.channels.get(&v).map(|of| (of.instance, of.guest_instance));
        bound.or_else(|| self.parked.get(&v).map(|of| (of.instance, of.guest_instance)))
    }

    /// The blocks of all bound channels that the card reads.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = VramAddr> {
        let bound = self.channels.values().map(|channel| channel.instance);
        bound.chain(self.parked.values().map(|parked| parked.instance))
    }

    /// The space of a bound channel, and its context.
    pub(crate) fn context_of(&self, v: u8) -> Option<(SpaceId, Option<Context>)> {
        let bound = self.channels.get(&v).map(|of| (of.space, of.context));
        bound.or_else(|| self.parked.get(&v).map(|of| (of.space, of.context)))
    }

    /// Channels that the card may run, in the order of the guest's list.
    pub(crate) fn eligible(&self) -> impl Iterator<Item = PhysChannel> {
        let may_run = !self.hold.is_suspended;
        self.runlist
            .iter()
            .filter_map(|v| self.channels.get(v))
            .filter(move |channel| may_run && channel.in_table && channel.may_run())
            .filter(|channel| !self.is_held_back(channel))
            .map(|channel| channel.physical)
    }
}

impl Channel {
    /// What the inspect tree calls its state.
    fn state(&self) -> &'static str {
        match self {
            Channel { killed: true, .. } => "killed",
            Channel { suspended: true, .. } => "suspended for a move",
            channel if channel.lacks_image() => "waits for memory for its context",
            Channel { stands: true, .. } => "made an error that the guest has not acknowledged",
            Channel { in_table: false, .. } => "not in the card's table yet",
            Channel { preempting: true, .. } => "being preempted for the guest",
            Channel { runnable: false, .. } => "stopped by the guest",
            Channel { given: Some(_), .. } => "has work that waits for its memory",
            _ => "may run",
        }
    }
}

impl Inspect for Channel {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("state", self.state());
        tree.number("channel_of_the_card", self.physical.0);
        tree.number("space", self.space.0);
        tree.address("instance_block", self.instance.0, Address::VramAddress);
        tree.flag("rings_when_it_returns", self.gp_put.is_some());
    }
}

impl Inspect for Parked {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("state", "parked");
        tree.number("space", self.space.0);
        tree.address("instance_block", self.instance.0, Address::VramAddress);
        if let Some(since) = self.wants_since {
            tree.age("waits_since", since);
        }
    }
}
