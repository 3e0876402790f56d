//! Channels are taken off the engines.

use fermi_spec::regs::pfifo::ChannelState;
use fermi_spec::regs::{PfifoReg, pfifo};
use planted::Fault;

use super::{Card, PhysChannel};
use crate::host::lane::{Job, Late, Op};

/// What becomes of channels that are off the engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Off {
    /// They stay in the card's table.
    Stay,
    /// They leave it.
    Leave,
    /// They leave it if nothing of theirs is left to do: neither in the ring nor of what an engine has begun. Otherwise the job fails.
    LeaveIfDone,
}

fn preempt_and_wait(channel: PhysChannel, timeout_ns: u64) -> [Op; 2] {
    [
        Op::Write(PfifoReg::Preempt.into(), u32::from(channel.0)),
        Op::Poll {
            reg: PfifoReg::Preempt.into(),
            mask: pfifo::PREEMPT_PENDING,
            value: 0,
            timeout_ns,
            late: Late::Fails,
        },
    ]
}

impl Card {
    /// Takes a channel off the engines, leaving its state as it is.
    pub(crate) fn preempt(&mut self, channel: PhysChannel, timeout_ns: u64, job: Job) {
        self.lanes.fifo.push(preempt_and_wait(channel, timeout_ns), job);
    }

    /// Takes channels off the card: not runnable, preempted, seen idle within `timeout_ns` all together.
    pub(crate) fn take_off(&mut self, channels: &[PhysChannel], then: Off, timeout_ns: u64, job: Job) {
        let mut ops: Vec<Op> = channels
            .iter()
            .map(|c| {
                Op::Write(
                    PfifoReg::ChannelState(u16::from(c.0)).into(),
                    pfifo::CHANNEL_START & !1,
                )
            })
            .collect();
        for channel in channels {
            if planted::is(Fault::PreemptNotAwaited) {
                ops.push(Op::Write(PfifoReg::Preempt.into(), u32::from(channel.0)));
                continue;
            }
            ops.extend(preempt_and_wait(*channel, timeout_ns));
        }
        if then == Off::LeaveIfDone {
            // A copy that gave way on its way out waits for its turn, and nobody calls for a channel without a number.
            ops.extend(channels.iter().map(|c| Op::Poll {
                reg: PfifoReg::ChannelState(c.0.into()).into(),
                mask: ChannelState::new().with_pending(true).into_bits(),
                value: 0,
                timeout_ns: 0,
                late: Late::Fails,
            }));
        }
        if then != Off::Stay {
            ops.extend(
                channels
                    .iter()
                    .map(|c| Op::Write(PfifoReg::ChannelInstance(c.0.into()).into(), 0)),
            );
        }
        self.lanes.fifo.push_within(timeout_ns, ops, job);
    }
}
