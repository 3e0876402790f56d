//! The card's reports: notifications and errors go to guests ([`super::errors`]), faults stop the one channel that caused them.

use fermi_spec::engine::Engine;

use fermi_spec::regs::pbdma::pbdma_intr;
use fermi_spec::regs::{PfifoReg, pfifo};

use super::Cx;
use super::engine_looks::Purpose;
use super::running::Running;
use crate::channel_error::{CopyError, PbdmaError};
use crate::device::units::Units;
use crate::event::{Tick, VmId};
use crate::host::PhysChannel;
use crate::host::card::OWN_CHANNEL;
use crate::host::interrupt::{FaultRecord, Finding};
use crate::host::lane::{Job, Late, Op};
use crate::notice::Notice;
use crate::reason::{ChannelFault, HostFault, Inconsistency};
use crate::share::ERROR_FORWARDED;

/// Least time between two notifications of one guest.
const NOTIFY_INTERVAL_NS: u64 = 50_000;
/// Wait for the preempt of a channel that is stopped the hard way.
const RESET_NS: u64 = 20_000_000;

impl Running {
    pub(super) fn found(&mut self, finding: Finding, cx: &mut Cx<'_>) {
        match finding {
            Finding::Notify(engine) => self.notify(engine),
            Finding::Fault(record) => self.fault(record, cx),
            Finding::GraphNotify { channel } => self.graph_notify(channel),
            Finding::Pbdma {
                pbdma,
                channel,
                error,
            } => {
                let PbdmaError { intr, method, data } = error;
                let fault = ChannelFault::Pbdma {
                    pbdma,
                    intr,
                    method,
                    data,
                };
                // There is no channel behind a block without a signature to go on with.
                let is_fatal = intr & pbdma_intr::SIGNATURE != 0;
                let raise = |units: &mut Units, blame| units.pbdmas.error(pbdma, blame, error);
                self.channel_error(channel, (fault, is_fatal), raise, cx);
            }
            Finding::Graph { channel, error } if error.wants_exceptions().is_some() => {
                self.software_method(channel);
            }
            Finding::Graph { channel, error } => {
                let fault = ChannelFault::Engine {
                    engine: Engine::Graph,
                    intr: error.intr,
                    code: error.method,
                    data: error.data,
                };
                let raise = |units: &mut Units, blame| units.engines.graph_error(blame, error);
                self.channel_error(channel, (fault, false), raise, cx);
            }
            Finding::Copy {
                engine,
                channel,
                error,
            } => {
                let CopyError { intr, code, data } = error;
                let fault = ChannelFault::Engine {
                    engine,
                    intr,
                    code,
                    data,
                };
                let raise = |units: &mut Units, blame| units.engines.copy_error(engine, blame, error);
                self.channel_error(channel, (fault, false), raise, cx);
            }
            Finding::Fifo {
                bits,
                table_code,
                scheduler_code,
            } => {
                let fault = HostFault::Fifo {
                    bits,
                    table_code,
                    scheduler_code,
                };
                cx.tell(Notice::HostError { fault });
            }
            Finding::Engines { statuses, time } => self.watch(statuses, time, cx),
        }
    }

    /// The card names the engine, not the channel: all VMs with channels are notified, and look at their fences. Each
    /// is notified at most once in a while, so that one VM's interrupts do not flood the others.
    fn notify(&mut self, engine: Engine) {
        for vgpu in self.vms.values_mut().filter(|vgpu| !vgpu.channels.is_empty()) {
            vgpu.notify_engines.insert(engine);
        }
    }

    /// The guest's channel asked PGRAPH itself for an interrupt. It stands for nothing.
    fn graph_notify(&mut self, physical: u8) {
        if let Some((vm, _)) = self.bound_as(physical)
            && let Some(vgpu) = self.vms.get_mut(&vm)
        {
            vgpu.units.engines.graph_notify();
        }
    }

    /// The host did a method in a channel's place, which its VM pays for.
    fn software_method(&mut self, physical: u8) {
        if let Some((vm, _)) = self.bound_as(physical)
            && let Some(vgpu) = self.vms.get_mut(&vm)
        {
            vgpu.share.charge(ERROR_FORWARDED);
        }
    }

    /// Delivers the notifications whose time has come.
    pub(super) fn notify_due(&mut self, now: Tick) {
        for vgpu in self.vms.values_mut() {
            if vgpu.notify_engines.is_empty() || now < vgpu.notify_at {
                continue;
            }
            vgpu.notify_at = now.after(NOTIFY_INTERVAL_NS);
            for engine in std::mem::take(&mut vgpu.notify_engines) {
                vgpu.units.pfifo.notify(engine);
            }
        }
    }

    pub(super) fn bound_as(&self, physical: u8) -> Option<(VmId, u8)> {
        let (vm, v) = self.card.owner_of(physical)?;
        let bound = self.vms.get(&vm)?.channels.get(&v)?;
        (bound.physical == PhysChannel(physical)).then_some((vm, v))
    }

    fn fault(&mut self, record: FaultRecord, cx: &mut Cx<'_>) {
        let fault = ChannelFault::Mmu {
            unit: record.unit,
            va: record.va,
            reason: record.kind.reason(),
        };
        let engine = Engine::ALL
            .into_iter()
            .find(|engine| engine.fault_unit() == record.unit);
        let culprit = self.vms.values().find_map(|vgpu| {
            let at = vgpu
                .channels
                .iter()
                .find(|(_, channel)| channel.instance.0 == record.instance.0);
            at.map(|(&v, channel)| (vgpu.id, v, channel.guest_frame()))
        });
        let Some((vm, v, frame)) = culprit else {
            let leaving = self
                .leaving
                .iter()
                .find(|(_, leaving)| leaving.channel.instance.0 == record.instance.0);
            let channel = match leaving {
                Some((physical, _)) => Some(physical.0),
                None if self.card.own.instance.0 == record.instance.0 => Some(OWN_CHANNEL.0),
                None => None,
            };
            return self.nobodys(channel, engine, fault, cx);
        };
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            let words = [
                frame,
                record.va as u32,
                (record.va >> 32) as u32,
                record.kind.into_bits(),
            ];
            vgpu.units.pfifo.fault(record.unit, words);
        }
        self.kill(vm, v, engine, fault, cx);
    }

    /// An error of no bound channel: of the broker's own, or of one that is on its way off the card and whose engine
    /// has to be brought back for the others.
    pub(super) fn nobodys(
        &mut self,
        channel: Option<u8>,
        engine: Option<Engine>,
        fault: ChannelFault,
        cx: &mut Cx<'_>,
    ) {
        if channel == Some(OWN_CHANNEL.0) {
            return self.copy_failed(Some(fault), engine, cx);
        }
        let fault = HostFault::Channel { channel, fault };
        cx.tell(Notice::HostError { fault });
        if let Some(physical) = channel.map(PhysChannel)
            && self.leaving.contains_key(&physical)
        {
            self.restore_engine(physical, engine, cx);
            self.stop_channel(physical, Job::Nothing);
        }
    }

    /// Stops a channel for good, and brings the engine that it broke back into service.
    pub(super) fn kill(
        &mut self,
        vm: VmId,
        v: u8,
        engine: Option<Engine>,
        cause: ChannelFault,
        cx: &mut Cx<'_>,
    ) {
        let Some(channel) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.channels.get_mut(&v)) else {
            return;
        };
        let physical = channel.physical;
        if self.card.owner_of(physical.0) != Some((vm, v)) {
            let part = format!("channel {} of the card", physical.0);
            return self.inconsistent(vm, Inconsistency::NotHeld { part });
        }
        let was_killed = std::mem::replace(&mut channel.killed, true);
        self.restore_engine(physical, engine, cx);
        if was_killed {
            return;
        }
        cx.tell(Notice::ChannelKilled {
            vm,
            channel: v,
            cause,
        });
        self.commit_host_runlist(Job::Nothing);
        self.stop_channel(physical, Job::Nothing);
    }

    /// Brings the engine back that a fault of the channel left standing, at once: behind other channels' preempts the reset
    /// would come when the engine may be back by another way, and end somebody else's copy.
    pub(super) fn restore_engine(&mut self, physical: PhysChannel, engine: Option<Engine>, cx: &mut Cx<'_>) {
        let Some(engine) = engine else { return };
        let p = u16::from(physical.0);
        cx.actions
            .register(PfifoReg::ChannelState(p), pfifo::CHANNEL_START & !1);
        self.look_at_engine(engine, Purpose::Restore(physical), cx);
    }

    /// Stops a channel the hard way: it does not run any more, and is preempted.
    pub(super) fn stop_channel(&mut self, physical: PhysChannel, job: Job) {
        let p = u16::from(physical.0);
        let ops = [
            Op::Write(PfifoReg::ChannelState(p).into(), pfifo::CHANNEL_START & !1),
            Op::Write(PfifoReg::Preempt.into(), u32::from(physical.0)),
            Op::Poll {
                reg: PfifoReg::Preempt.into(),
                mask: pfifo::PREEMPT_PENDING,
                value: 0,
                timeout_ns: RESET_NS,
                late: Late::Fails,
            },
        ];
        self.card.fifo_steps(ops.into(), job);
    }
}
