//! A queue of hardware protocol steps, one group at a time.

use std::collections::{BTreeMap, VecDeque};

use fermi_spec::bar::Bar;
use fermi_spec::regs::Bar0Reg;
use serde::{Deserialize, Serialize};

use super::card::PhysChannel;
use crate::event::{Action, Actions, Token, VmId};
use crate::inspect::{Inspect, Tree};
use crate::notice::MoveId;

/// What a finished group was for. The manager goes on from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// Bring-up of the card.
    BringUp,
    /// A copy engine was asked whether it has microcode, and started if it has.
    CopyEngineAsked(u8),
    /// A copy engine was given microcode.
    CopyEngineStarted,
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
    /// TLB flush after which a shadow space's tables are free.
    SpaceFlushed(u64),
    /// The broker's own channel is off the card, and its engine reset.
    OwnReset,
    /// TLB flush after which nothing reaches a VM's memory.
    VmFlushed(VmId),
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
    },
}

#[derive(Debug)]
struct Group {
    ops: VecDeque<Op>,
    job: Job,
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
    polling: Option<Token>,
}

impl Lane {
    pub(crate) fn push(&mut self, ops: impl IntoIterator<Item = Op>, job: Job) {
        self.groups.push_back(Group {
            ops: ops.into_iter().collect(),
            job,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn waits_for(&self, token: Token) -> bool {
        self.polling == Some(token)
    }

    /// Emits what can be emitted; returns the jobs that ended, with whether they succeeded.
    pub(crate) fn pump(
        &mut self,
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
                Some(Op::Poll {
                    reg,
                    mask,
                    value,
                    timeout_ns,
                }) => {
                    let token = tokens.next();
                    self.polling = Some(token);
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

    /// The head's poll ended. A time-out drops the rest of its group.
    pub(crate) fn poll_done(&mut self, met: bool) -> Option<(Job, bool)> {
        self.polling = None;
        if met {
            return None;
        }
        self.groups.pop_front().map(|group| (group.job, false))
    }
}

impl Inspect for Lane {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("groups", self.groups.len());
        if let Some(head) = self.groups.front() {
            tree.name("doing", format_args!("{:?}", head.job));
            tree.count("steps_left", head.ops.len());
        }
        if let Some(token) = self.polling {
            tree.number("poll", token.0);
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
            lane.pump(&mut tokens, &mut Doorbells::new(), &mut actions),
            vec![]
        );
        assert_eq!(actions.drain().count(), 1);
        assert_eq!(lane.poll_done(true), None);
        assert_eq!(
            lane.pump(&mut tokens, &mut Doorbells::new(), &mut actions),
            vec![(Job::Suspended(MoveId(1)), true)]
        );
        assert_eq!(actions.drain().count(), 1);
    }

    #[test]
    fn doorbell_in_a_lane_rings_with_the_newest_value() {
        let (mut lane, mut tokens, mut actions) = (Lane::default(), Tokens::default(), Actions::default());
        let mut doorbells = Doorbells::from([(PhysChannel(3), 7)]);
        lane.push([poll(), Op::Ring(PhysChannel(3))], Job::Nothing);
        lane.pump(&mut tokens, &mut doorbells, &mut actions);
        doorbells.insert(PhysChannel(3), 9);
        lane.poll_done(true);
        lane.pump(&mut tokens, &mut doorbells, &mut actions);
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
        lane.pump(&mut tokens, &mut Doorbells::new(), &mut actions);
        assert_eq!(lane.poll_done(false), Some((Job::Suspended(MoveId(1)), false)));
        assert_eq!(
            lane.pump(&mut tokens, &mut Doorbells::new(), &mut actions),
            vec![(Job::Nothing, true)]
        );
    }
}
