//! A queue of hardware protocol steps, one group at a time.

use std::collections::{BTreeMap, VecDeque};

use fermi_spec::bar::Bar;
use fermi_spec::regs::Bar0Reg;
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::card::PhysChannel;
use crate::event::{Action, Actions, Tick, Token, VmId};
use crate::inspect::{Inspect, Tree};
use crate::notice::MoveId;
use crate::reason::CardOperation;

/// Longest wait for a TLB flush or runlist commit: both take microseconds; nouveau allows 2 s.
const CARD_TIMEOUT_NS: u64 = 2_000_000_000;

/// Purpose of a finished group. The manager goes on from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Bring-up of the card.
    BringUp,
    /// A copy engine was asked whether it has microcode, and started if it has.
    CopyEngineAsked(u8),
    /// A copy engine was given microcode.
    CopyEngineStarted,
    /// FECS was given microcode.
    GraphStarted,
    /// The golden image was made.
    GoldenMade,
    /// FECS was given microcode again, after a reset.
    GraphRestarted,
    /// Nothing waits for it.
    Nothing,
    /// TLB flush at the end of a guest's sync.
    SyncFlushed(VmId),
    /// TLB flush before a DMA unmap is answered.
    UnmapFlushed(VmId),
    /// TLB flush of the copy window before a move's copy.
    WindowFlushed(MoveId),
    /// TLB flush after a move's redirect.
    MoveFlushed(MoveId),
    /// The channels of a move are off the card, or not in time.
    Suspended(MoveId),
    /// The channels of a move were told to go on, and their doorbells are written.
    Resumed(Pause),
    /// A guest's preempt.
    Preempted(VmId, u8),
    /// The runlist being handed over is the card's; what waited for it ends.
    RunlistTaken,
    /// A guest's runlist commit.
    Runlist(VmId),
    /// A channel is in the card's table and may go on the runlist.
    Bound(PhysChannel),
    /// A channel that goes away is off the runlist.
    OffList(PhysChannel),
    /// And off the engines and the channel table.
    Stopped(PhysChannel),
    /// A channel that is to be parked is off the runlist.
    ParkedOffList(PhysChannel),
    /// And off the engines and the channel table; or not in time.
    ParkedStopped(PhysChannel),
    /// TLB flush after which pages of an address space are free.
    PagesFlushed(u64),
    /// TLB flush after which a shadow space's tables are free.
    SpaceFlushed(u64),
    /// The broker's own channel is off the card, and its engine reset.
    OwnReset,
    /// TLB flush after which nothing reaches a VM's memory.
    VmFlushed(VmId),
}

/// A suspension that ends: what is to be told of it once the doorbells are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pause {
    pub(crate) vm: VmId,
    pub(crate) id: MoveId,
    /// When the channels were taken off the card.
    pub(crate) since: Tick,
    /// How much of the time it took until they were off.
    pub(crate) drained_ns: u64,
    /// One of them was at work when they were taken off.
    pub(crate) was_at_work: bool,
    /// How much the copies took.
    pub(crate) copying_ns: u64,
    /// Two for an exchange that came to its second half, otherwise one.
    pub(crate) halves: u64,
    pub(crate) is_rolled_back: bool,
    /// They were not off when the move was given up.
    pub(crate) is_late: bool,
}

/// One step of a group.
#[derive(Debug)]
pub(crate) enum Op {
    /// A word to BAR0.
    Write(Bar0Reg, u32),
    /// A block to another BAR.
    Block(Bar, u64, Vec<u8>),
    /// A channel's doorbell, with the value that is the last one by then.
    Ring(PhysChannel),
    /// Wait for `reg & mask == value`.
    Poll {
        reg: Bar0Reg,
        mask: u32,
        value: u32,
        timeout_ns: u64,
        late: Late,
    },
}

/// Time for all waits of a group together that may fail: the second has what the first has left.
#[derive(Clone, Copy, Debug)]
struct Budget {
    ns: u64,
    /// When it is used up: known from the first wait on.
    until: Option<Tick>,
}

impl Budget {
    /// What a wait that begins at `now` has of it.
    fn left(&mut self, now: Tick) -> u64 {
        self.until.get_or_insert(now.after(self.ns)).since(now)
    }
}

impl Op {
    /// Has it done at once, in front of what waits in the lanes.
    pub(crate) fn perform(self, actions: &mut Actions) {
        match self {
            Self::Write(reg, value) => actions.register(reg, value),
            Self::Block(bar, offset, data) => actions.push(Action::HostWrite { bar, offset, data }),
            Self::Ring(_) | Self::Poll { .. } => unreachable!("only a lane waits"),
        }
    }

    /// A wait for what everything else relies on.
    pub(crate) fn must(reg: impl Into<Bar0Reg>, mask: u32, value: u32, operation: CardOperation) -> Self {
        Self::Poll {
            reg: reg.into(),
            mask,
            value,
            timeout_ns: CARD_TIMEOUT_NS,
            late: Late::AsksAgain(operation),
        }
    }
}

/// Consequence of a wait that came to its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Late {
    /// The group has failed, and whoever waits for it tries again or rolls back.
    Fails,
    /// The same wait once more. A host that stood still looks late at a card that was not slow.
    AsksAgain(CardOperation),
    /// The card is lost: what it may still reach can never be given to somebody else.
    LosesCard(CardOperation),
}

/// The next step after a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PollEnd {
    /// The lane goes on.
    GoesOn,
    /// A group has failed.
    Failed(Job),
    /// The card did not do what everything else relies on.
    CardLost(CardOperation),
}

#[derive(Debug)]
struct Group {
    ops: VecDeque<Op>,
    job: Job,
    /// `None`: each wait has its own time.
    budget: Option<Budget>,
}

/// Source of tokens.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(crate) struct Tokens(u64);

impl Tokens {
    pub(crate) fn next(&mut self) -> Token {
        self.0 += 1;
        Token(self.0)
    }
}

/// Doorbells that wait in a lane, with their latest values. A newer value must not overtake and then be undone.
pub(crate) type Doorbells = BTreeMap<PhysChannel, u32>;

/// Groups in order; the head may be waiting for the card.
#[derive(Default, Debug)]
pub(crate) struct Lane {
    groups: VecDeque<Group>,
    polling: Option<Polling>,
}

/// The wait under way: the answer's name, and the operation.
#[derive(Debug)]
struct Polling {
    token: Token,
    op: Op,
}

impl Lane {
    pub(crate) fn push(&mut self, ops: impl IntoIterator<Item = Op>, job: Job) {
        self.groups.push_back(Group {
            ops: ops.into_iter().collect(),
            job,
            budget: None,
        });
    }

    /// The same with waits that have `ns` nanoseconds all together, from the first one's begin on.
    pub(crate) fn push_within(&mut self, ns: u64, ops: impl IntoIterator<Item = Op>, job: Job) {
        self.groups.push_back(Group {
            ops: ops.into_iter().collect(),
            job,
            budget: Some(Budget { ns, until: None }),
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn waits_for(&self, token: Token) -> bool {
        self.polling
            .as_ref()
            .is_some_and(|polling| polling.token == token)
    }

    /// Emits what can be emitted; returns the jobs that ended, with whether they succeeded.
    pub(crate) fn pump(
        &mut self,
        now: Tick,
        tokens: &mut Tokens,
        doorbells: &mut Doorbells,
        actions: &mut Actions,
    ) -> Vec<(Job, bool)> {
        let mut done = Vec::new();
        while self.polling.is_none() {
            let Some(group) = self.groups.front_mut() else {
                break;
            };
            match group.ops.pop_front() {
                Some(Op::Write(reg, value)) => actions.register(reg, value),
                Some(Op::Block(bar, offset, data)) => actions.push(Action::HostWrite { bar, offset, data }),
                Some(Op::Ring(channel)) => {
                    if let Some(gp_put) = doorbells.remove(&channel) {
                        actions.push(super::card::doorbell(channel, gp_put));
                    }
                }
                Some(
                    op @ Op::Poll {
                        reg,
                        mask,
                        value,
                        timeout_ns,
                        ..
                    },
                ) => {
                    let left = group.budget.as_mut().map(|budget| budget.left(now));
                    let timeout_ns = left.map_or(timeout_ns, |left| left.min(timeout_ns));
                    let token = tokens.next();
                    self.polling = Some(Polling { token, op });
                    actions.push(Action::HostPoll {
                        token,
                        offset: reg.offset(),
                        mask,
                        value,
                        timeout_ns,
                    });
                }
                None => {
                    done.push((group.job, true));
                    self.groups.pop_front();
                }
            }
        }
        done
    }

    /// The head's poll ended. A time-out of one that may fail drops the rest of its group.
    pub(crate) fn poll_done(&mut self, met: bool) -> PollEnd {
        let Some(Polling { mut op, .. }) = self.polling.take().filter(|_| !met) else {
            return PollEnd::GoesOn;
        };
        let late = match &mut op {
            Op::Poll { late, .. } => late,
            _ => return PollEnd::GoesOn,
        };
        match *late {
            _ if planted::is(Fault::LateFlushTakenAsDone) => PollEnd::GoesOn,
            Late::Fails => match self.groups.pop_front() {
                Some(group) => PollEnd::Failed(group.job),
                None => PollEnd::GoesOn,
            },
            Late::AsksAgain(operation) => {
                *late = Late::LosesCard(operation);
                if let Some(group) = self.groups.front_mut() {
                    group.ops.push_front(op);
                }
                PollEnd::GoesOn
            }
            Late::LosesCard(operation) => PollEnd::CardLost(operation),
        }
    }
}

impl Inspect for Lane {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("groups", self.groups.len());
        if let Some(head) = self.groups.front() {
            tree.name("doing", format_args!("{:?}", head.job));
            tree.count("steps_left", head.ops.len());
        }
        if let Some(polling) = &self.polling {
            tree.number("poll", polling.token.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::regs::PfifoReg;

    fn poll() -> Op {
        Op::Poll {
            reg: PfifoReg::Preempt.into(),
            mask: 1,
            value: 0,
            timeout_ns: 5,
            late: Late::Fails,
        }
    }

    #[test]
    fn steps_behind_a_poll_wait_for_it() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        lane.push(
            [poll(), Op::Write(PfifoReg::Preempt.into(), 2)],
            Job::Suspended(MoveId(1)),
        );
        assert_eq!(
            lane.pump(Tick(0), &mut tokens, &mut Doorbells::new(), &mut actions),
            vec![]
        );
        assert_eq!(actions.drain().count(), 1);
        assert_eq!(lane.poll_done(true), PollEnd::GoesOn);
        assert_eq!(
            lane.pump(Tick(0), &mut tokens, &mut Doorbells::new(), &mut actions),
            vec![(Job::Suspended(MoveId(1)), true)]
        );
        assert_eq!(actions.drain().count(), 1);
    }

    #[test]
    fn waits_of_a_group_share_its_budget() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        let mut timeout = |lane: &mut Lane, now| {
            lane.pump(Tick(now), &mut tokens, &mut Doorbells::new(), &mut actions);
            match actions.drain().next_back() {
                Some(Action::HostPoll { timeout_ns, .. }) => timeout_ns,
                other => panic!("no wait, but {other:?}"),
            }
        };
        let long = || match poll() {
            Op::Poll {
                reg,
                mask,
                value,
                late,
                ..
            } => Op::Poll {
                reg,
                mask,
                value,
                late,
                timeout_ns: 1_000,
            },
            other => other,
        };
        lane.push_within(20, [long(), long(), long()], Job::Suspended(MoveId(1)));
        assert_eq!(timeout(&mut lane, 100), 20);
        lane.poll_done(true);
        assert_eq!(timeout(&mut lane, 115), 5);
        lane.poll_done(true);
        // One look is left to a wait that begins too late.
        assert_eq!(timeout(&mut lane, 130), 0);
        assert_eq!(lane.poll_done(false), PollEnd::Failed(Job::Suspended(MoveId(1))));
    }

    #[test]
    fn doorbell_in_a_lane_rings_with_the_newest_value() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        let mut doorbells = Doorbells::from([(PhysChannel(3), 7)]);
        lane.push([poll(), Op::Ring(PhysChannel(3))], Job::Nothing);
        lane.pump(Tick(0), &mut tokens, &mut doorbells, &mut actions);
        doorbells.insert(PhysChannel(3), 9);
        lane.poll_done(true);
        lane.pump(Tick(0), &mut tokens, &mut doorbells, &mut actions);
        let rung = super::super::card::doorbell(PhysChannel(3), 9);
        assert_eq!(actions.as_slice().last(), Some(&rung));
    }

    #[test]
    fn timed_out_poll_fails_its_group_and_lets_the_next_run() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        lane.push(
            [poll(), Op::Write(PfifoReg::Preempt.into(), 2)],
            Job::Suspended(MoveId(1)),
        );
        lane.push([], Job::Nothing);
        lane.pump(Tick(0), &mut tokens, &mut Doorbells::new(), &mut actions);
        assert_eq!(lane.poll_done(false), PollEnd::Failed(Job::Suspended(MoveId(1))));
        assert_eq!(
            lane.pump(Tick(0), &mut tokens, &mut Doorbells::new(), &mut actions),
            vec![(Job::Nothing, true)]
        );
    }

    #[test]
    fn poll_that_everything_relies_on_is_asked_twice_and_then_loses_the_card() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        let flush = Op::must(PfifoReg::RunlistStatus, 1, 0, CardOperation::Runlist);
        lane.push([flush], Job::RunlistTaken);
        for end in [PollEnd::GoesOn, PollEnd::CardLost(CardOperation::Runlist)] {
            assert_eq!(
                lane.pump(Tick(0), &mut tokens, &mut Doorbells::new(), &mut actions),
                vec![]
            );
            assert_eq!(actions.drain().count(), 1);
            assert_eq!(lane.poll_done(false), end);
        }
    }
}
