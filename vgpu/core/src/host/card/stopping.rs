//! Channels are taken off the engines.

use fermi_spec::regs::{PfifoReg, pfifo};
use planted::Fault;

use super::{Card, PhysChannel};
use crate::host::lane::{Job, Late, Op};

impl Card {
    /// Takes a channel off the engines, leaving its state as it is.
    pub(crate) fn preempt(&mut self, channel: PhysChannel, timeout_ns: u64, job: Job) {
        self.lanes.fifo.push(
            [
                Op::Write(PfifoReg::Preempt.into(), u32::from(channel.0)),
                Op::Poll {
                    reg: PfifoReg::Preempt.into(),
                    mask: pfifo::PREEMPT_PENDING,
                    value: 0,
                    timeout_ns,
                    late: Late::Fails,
                },
            ],
            job,
        );
    }

    /// Takes channels off the card: not runnable, preempted, seen idle within `timeout_ns` all together.
    pub(crate) fn take_off(&mut self, channels: &[PhysChannel], unbind: bool, timeout_ns: u64, job: Job) {
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
            ops.extend([
                Op::Write(PfifoReg::Preempt.into(), u32::from(channel.0)),
                Op::Poll {
                    reg: PfifoReg::Preempt.into(),
                    mask: pfifo::PREEMPT_PENDING,
                    value: 0,
                    timeout_ns,
                    late: Late::Fails,
                },
            ]);
        }
        if unbind {
            ops.extend(
                channels
                    .iter()
                    .map(|c| Op::Write(PfifoReg::ChannelInstance(u16::from(c.0)).into(), 0)),
            );
        }
        self.lanes.fifo.push_within(timeout_ns, ops, job);
    }
}
