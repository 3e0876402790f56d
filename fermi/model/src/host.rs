//! Host methods (class 906f) and the way of a method to its engine.

use crate::{
    engine::unit_of,
    mmu::Refusal,
    model::FermiModel,
    pbdma::Activity,
    pfifo::{Acquire, ChannelId},
};
use fermi_spec::{
    addr::GpuVa,
    engine::{ENGINE_NONE, Engine},
    instance::{self, offset},
    methods::{SemaphoreD, SemaphoreOp, host},
    pushbuffer::Target,
    regs::pbdma::pbdma_intr,
};

/// MEM_OP_B, bits 31:27.
mod mem_op {
    pub(super) const SYSMEMBAR: u32 = 5;
    pub(super) const SOFT_FLUSH: u32 = 6;
    pub(super) const TLB_INVALIDATE: u32 = 9;
    pub(super) const L2_PEER_INVALIDATE: u32 = 0xd;
    pub(super) const L2_FLUSH_DIRTY: u32 = 0x10;
}

/// Unit of RAMFC's acquire times (NVIDIA nvgpu).
const ACQUIRE_UNIT_NS: u64 = 1_024;
/// Largest time between two attempts of an acquire.
const ACQUIRE_RETRY_NS_MAX: u64 = 100_000;
/// Time between two looks at the semaphores of channels that wait off the PBDMAs.
const BLOCKED_POLL_NS: u64 = 8_192;

/// Outcome of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Done, after so much GPU time.
    Done { ns: u64 },
    /// Done, and the channel gives up the rest of its slice.
    GiveWay,
    /// Not done: the channel's own transfers have to end first.
    Unfinished,
    /// Not done: waits for an engine.
    Stalled(Engine),
    /// Not done: an acquire that keeps the PBDMA.
    Acquiring(Acquire),
    /// Not done: an acquire that gives way.
    Blocked(Acquire),
    /// Not done: the engine may not be driven from this PBDMA.
    WrongPbdma,
    /// Not done: a fault on the way has stopped the channel.
    Halted,
    /// Not done: a PBDMA interrupt.
    Error(u32),
    /// Not done: the MMU refused an access of the host.
    Fault(Refusal),
}

impl FermiModel {
    /// Executes a method of the channel on `pbdma`.
    pub(crate) fn execute(&mut self, pbdma: usize, target: Target, data: u32) -> Outcome {
        let done = Outcome::Done {
            ns: self.timing.method_ns,
        };
        let unit = &mut self.pbdmas[pbdma];
        self.mem.counters.methods += 1;
        match target.method {
            host::SET_OBJECT => self.set_object(pbdma, target.subchannel, data),
            host::FIRST_ENGINE_METHOD.. => {
                let engine = unit.bound_engine(target.subchannel);
                self.send(pbdma, engine, target, data)
            }
            host::SEMAPHORE_A | host::SEMAPHORE_B | host::SEMAPHORE_C => {
                unit.set_reg(
                    offset::SEMAPHORE_A + u64::from(target.method - host::SEMAPHORE_A),
                    data,
                );
                done
            }
            host::SEMAPHORE_D => self.semaphore(pbdma, SemaphoreD::from_bits(data)),
            host::NON_STALL_INTERRUPT => {
                let bound = Engine::from_number(unit.bound_engine(target.subchannel));
                let engine = bound.or(unit.target()).unwrap_or(Engine::Graph);
                self.pfifo.notify_engine(engine);
                done
            }
            host::MEM_OP_A => {
                unit.set_reg(MEM_OP_A_LATCH, data);
                done
            }
            host::MEM_OP_B => self.mem_op(pbdma, data),
            host::SET_REFERENCE => self.when_idle(pbdma).unwrap_or_else(|| {
                self.write_reference(pbdma, data);
                done
            }),
            host::YIELD if data & 3 != 0 => Outcome::GiveWay,
            // Memory is always up to date, and the checksum is not modelled.
            host::NOP | host::FB_FLUSH | host::CRC_CHECK | host::YIELD => done,
            _ => Outcome::Error(pbdma_intr::METHOD),
        }
    }

    fn set_object(&mut self, pbdma: usize, subchannel: u8, data: u32) -> Outcome {
        let number = (data >> 16 & 0x1f) as u8;
        let target = Target {
            subchannel,
            method: host::SET_OBJECT,
        };
        if number == ENGINE_NONE {
            self.pbdmas[pbdma].bind_engine(subchannel, number);
            return Outcome::Done {
                ns: self.timing.method_ns,
            };
        }
        let outcome = self.send(pbdma, number, target, data);
        if matches!(outcome, Outcome::Done { .. }) {
            self.pbdmas[pbdma].bind_engine(subchannel, number);
        }
        outcome
    }

    /// Sends a method to an engine by number.
    fn send(&mut self, pbdma: usize, number: u8, target: Target, data: u32) -> Outcome {
        // A software class, an engine that the model does not have, or none at all: the driver's turn.
        let Some((engine, unit)) = Engine::from_number(number).and_then(|e| Some((e, unit_of(e)?))) else {
            return Outcome::Error(pbdma_intr::DEVICE);
        };
        let Some(id) = self.pbdmas[pbdma].channel() else {
            return Outcome::Error(pbdma_intr::DEVICE);
        };
        if let Some(wait) = self.when_idle(pbdma) {
            return wait;
        }
        self.pbdmas[pbdma].set_reg(offset::TARGET, u32::from(number));
        if !self.pfifo.engine_may_use(engine, pbdma) {
            return Outcome::WrongPbdma;
        }
        if self
            .engine_free_at(pbdma, engine)
            .is_none_or(|at| at > self.clock.now())
        {
            return Outcome::Stalled(engine);
        }
        let instance = self.pbdmas[pbdma].instance();
        let Some(switch) = self.switch_unit(unit, id, instance) else {
            return Outcome::Halted;
        };
        // FECS writes the registers that the context names, and no method of the channel comes before that. The channel waits as
        // for the engine: it is not taken off before it has used it.
        if self.units[unit].is_working() {
            return Outcome::Stalled(engine);
        }
        self.make_up_for_wait(pbdma);
        match self.run_engine_method(unit, target.subchannel, target.method, data) {
            Ok(ns) => Outcome::Done { ns: switch + ns },
            Err(acquire) => Outcome::Blocked(acquire),
        }
    }

    /// Whether to wait for an engine that works for the channel; `None` when none does.
    fn when_idle(&self, pbdma: usize) -> Option<Outcome> {
        let id = self.pbdmas[pbdma].channel()?;
        let is_paused = self.pfifo.channel(id).paused.is_some();
        (is_paused || self.works_for(id)).then_some(Outcome::Unfinished)
    }

    fn semaphore(&mut self, pbdma: usize, operand: SemaphoreD) -> Outcome {
        let unit = &mut self.pbdmas[pbdma];
        unit.set_reg(offset::SEMAPHORE_A + 12, operand.into_bits());
        let latched = |index: u64| unit.reg(offset::SEMAPHORE_A + 4 * index);
        let at = GpuVa(u64::from(latched(0) & 0xff) << 32 | u64::from(latched(1) & !3));
        let payload = latched(2);
        match operand.op() {
            SemaphoreOp::Invalid(_) => Outcome::Error(pbdma_intr::SEMAPHORE),
            SemaphoreOp::Release => self.release(pbdma, operand, at, payload),
            op => self.acquire(pbdma, operand, at, op, payload),
        }
    }

    fn release(&mut self, pbdma: usize, operand: SemaphoreD, at: GpuVa, payload: u32) -> Outcome {
        if !operand.release_no_wait()
            && let Some(stall) = self.when_idle(pbdma)
        {
            return stall;
        }
        let time = (!operand.release_short()).then(|| self.clock.timestamp());
        let space = self.pbdmas[pbdma].space;
        match self.mmu.release(&mut self.mem, &space, at, payload, time) {
            Ok(()) => Outcome::Done {
                ns: self.timing.method_ns,
            },
            Err(refusal) => Outcome::Fault(refusal),
        }
    }

    fn acquire(
        &mut self,
        pbdma: usize,
        operand: SemaphoreD,
        at: GpuVa,
        op: SemaphoreOp,
        payload: u32,
    ) -> Outcome {
        let now = self.clock.now();
        let unit = &self.pbdmas[pbdma];
        let space = unit.space;
        let value = match self.mmu.read_word(&mut self.mem, &space, at) {
            Ok(value) => value,
            Err(refusal) => return Outcome::Fault(refusal),
        };
        if op.is_satisfied(value, payload) {
            self.end_acquire(pbdma);
            return Outcome::Done {
                ns: self.timing.method_ns,
            };
        }
        let deadline = self.acquire_deadline(pbdma);
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.end_acquire(pbdma);
            return Outcome::Error(pbdma_intr::ACQUIRE);
        }
        let acquire = Acquire {
            space,
            at,
            op,
            payload,
            deadline,
        };
        if operand.acquire_switch() {
            Outcome::Blocked(acquire)
        } else {
            Outcome::Acquiring(acquire)
        }
    }

    /// When the acquire times out. RAMFC keeps the deadline in units of 1024 ns, zero for none yet.
    fn acquire_deadline(&mut self, pbdma: usize) -> Option<u64> {
        let now = self.clock.now();
        let unit = &mut self.pbdmas[pbdma];
        let limit = instance::Acquire::from_bits(unit.reg(offset::ACQUIRE));
        if !limit.timeout_enable() {
            return None;
        }
        let kept = unit.reg(offset::ACQUIRE_DEADLINE);
        let start = (now / ACQUIRE_UNIT_NS) as u32;
        let length =
            (u64::from(limit.timeout_mantissa()) << limit.timeout_exponent()).clamp(1, 0x7fff_ffff) as u32;
        let deadline = if kept != 0 {
            kept
        } else {
            start.wrapping_add(length).max(1)
        };
        unit.set_reg(offset::ACQUIRE_DEADLINE, deadline);
        let left = deadline.wrapping_sub(start) as i32;
        Some(now.saturating_add(u64::try_from(left).unwrap_or(0) * ACQUIRE_UNIT_NS))
    }

    fn end_acquire(&mut self, pbdma: usize) {
        self.pbdmas[pbdma].set_reg(offset::ACQUIRE_DEADLINE, 0);
    }

    /// Time between two attempts of the acquire on `pbdma`.
    pub(crate) fn acquire_retry_ns(&self, pbdma: usize) -> u64 {
        let retry = instance::Acquire::from_bits(self.pbdmas[pbdma].reg(offset::ACQUIRE));
        let units = u64::from(retry.retry_mantissa()) << retry.retry_exponent();
        (units * ACQUIRE_UNIT_NS).clamp(ACQUIRE_UNIT_NS, ACQUIRE_RETRY_NS_MAX)
    }

    /// Sets a channel aside until its acquire would succeed.
    pub(crate) fn block_channel(&mut self, id: ChannelId, acquire: Acquire) {
        self.pfifo.channel_mut(id).acquire = Some(acquire);
        self.pfifo.refresh(id);
        if self.pfifo.poll_at <= self.clock.now() {
            self.pfifo.poll_at = self.clock.now().saturating_add(BLOCKED_POLL_NS);
        }
    }

    /// Looks at the semaphores of the channels that were set aside. One that is satisfied, timed out or cannot be
    /// read lets its channel try again.
    pub(crate) fn poll_blocked(&mut self) {
        let now = self.clock.now();
        self.pfifo.poll_at = now.saturating_add(BLOCKED_POLL_NS);
        self.pfifo.poll_seen = self.mem.stores;
        let mut waiting = self.pfifo.blocked;
        while let Some(id) = ChannelId::new(waiting.trailing_zeros()) {
            waiting &= waiting - 1;
            let Some(acquire) = self.pfifo.channel(id).acquire else {
                continue;
            };
            let value = self.mmu.read_word(&mut self.mem, &acquire.space, acquire.at);
            let fails = value.is_ok_and(|value| !acquire.op.is_satisfied(value, acquire.payload));
            if !fails || acquire.deadline.is_some_and(|deadline| deadline <= now) {
                self.pfifo.channel_mut(id).acquire = None;
                self.pfifo.refresh(id);
            }
        }
    }

    /// Lets every acquire be tried at once: memory may have changed without the card noticing.
    pub(crate) fn retry_acquires(&mut self) {
        let now = self.clock.now();
        for unit in &mut self.pbdmas {
            if let Activity::Acquiring { at, .. } = &mut unit.state {
                *at = now;
            }
        }
        self.pfifo.poll_at = now;
    }

    fn mem_op(&mut self, pbdma: usize, data: u32) -> Outcome {
        match data >> 27 {
            mem_op::TLB_INVALIDATE => {
                let directory = self.pbdmas[pbdma].reg(MEM_OP_A_LATCH);
                let flushed = self
                    .mmu
                    .invalidate_by_method(&mut self.mem, directory, data & 1 != 0);
                self.note_flush(flushed);
            }
            // Memory is always up to date.
            mem_op::SYSMEMBAR | mem_op::SOFT_FLUSH | mem_op::L2_PEER_INVALIDATE..=mem_op::L2_FLUSH_DIRTY => {}
            _ => return Outcome::Error(pbdma_intr::METHOD),
        }
        Outcome::Done {
            ns: self.timing.method_ns,
        }
    }
}

/// Where MEM_OP_A waits for MEM_OP_B: the last words of the method latches, which are saved with the channel.
const MEM_OP_A_LATCH: u64 = 0xdc;
