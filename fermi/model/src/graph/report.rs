//! Writes to memory by PGRAPH's own methods: report semaphores, notifications, constant buffers.

use super::{UNIT, methods::BoundClass, state::Area};
use crate::{
    engine::{Effect, Rejection},
    mmu::{Access, Refusal},
    model::FermiModel,
    pfifo::Acquire,
};
use fermi_spec::{
    addr::GpuVa,
    engine::Engine,
    graphics::{NOTIFICATION_BYTES, ReportOperation, ReportSemaphore, front_end, report, shader},
    methods::{SemaphoreOp, class},
    regs::pgraph::graph_data_error,
};

/// Mark that a notification was asked for and not written yet, in the word of the method.
const NOTIFY_PENDING: u32 = 1 << 31;
/// Offsets in a constant buffer.
const CONSTANT_OFFSET_MASK: u32 = 0xffff;

impl FermiModel {
    /// REPORT: a release, a report of a counter, or an acquire.
    ///
    /// No counter counts anything, as nothing is drawn: reports are zero.
    pub(super) fn report(&mut self, bound: BoundClass, operand: ReportSemaphore) -> Effect {
        let state = &self.graph.state;
        let at = GpuVa(state.address(bound.area, shader::REPORT_HIGH) & !3);
        let payload = state.method(bound.area, shader::REPORT_PAYLOAD);
        let is_compute = bound.class == class::COMPUTE;
        let (word, awaken) = match operand.op() {
            ReportOperation::Release => (payload, operand.awaken()),
            // envytools: writes, then interrupts the host without stopping (unverified).
            ReportOperation::Trap => (payload, true),
            ReportOperation::Acquire | ReportOperation::Report if is_compute => {
                return Effect::Reject(Rejection::GraphData(graph_data_error::INVALID_ENUM));
            }
            ReportOperation::Acquire => return self.acquire_report(at, payload, operand.at_least()),
            ReportOperation::Report => {
                let is_short = matches!(
                    operand.report(),
                    report::NONE | report::SAMPLES | report::STREAMED_BYTES
                );
                let first = if is_short && !operand.one_word() {
                    payload
                } else {
                    0
                };
                (first, operand.awaken())
            }
        };
        let time = (!operand.one_word()).then(|| self.clock.timestamp());
        let stored = self.units[UNIT].space().map_or(Ok(()), |space| {
            self.mmu.release(&mut self.mem, &space, at, word, time)
        });
        if self.check_store(stored) && awaken {
            self.pfifo.notify_engine(Engine::Graph);
        }
        Effect::None
    }

    /// Waits until memory compares. The channel gives way until it does.
    fn acquire_report(&mut self, at: GpuVa, payload: u32, at_least: bool) -> Effect {
        let Some(space) = self.units[UNIT].space() else {
            return Effect::None;
        };
        let value = match self.mmu.read_word(&mut self.mem, &space, at) {
            Ok(value) => value,
            Err(refusal) => {
                self.fault_unit(UNIT, refusal);
                return Effect::None;
            }
        };
        let op = if at_least {
            SemaphoreOp::AcquireGreaterOrEqual
        } else {
            SemaphoreOp::AcquireEqual
        };
        if op.is_satisfied(value, payload) {
            return Effect::None;
        }
        Effect::Wait(Acquire {
            space,
            at,
            op,
            payload,
            deadline: None,
        })
    }

    /// NOTIFY: the next operation writes a notification.
    pub(super) fn ask_for_notification(&mut self, area: Area, data: u32) -> Effect {
        let state = &mut self.graph.state;
        if state.method(area, front_end::NOTIFY) & NOTIFY_PENDING != 0 {
            return Effect::Reject(Rejection::GraphDoubleNotify);
        }
        state.set_method(area, front_end::NOTIFY, data | NOTIFY_PENDING);
        Effect::None
    }

    /// NO_OPERATION: writes the notification that was asked for.
    pub(super) fn notify(&mut self, area: Area) -> Effect {
        let state = &mut self.graph.state;
        let asked = state.method(area, front_end::NOTIFY);
        if asked & NOTIFY_PENDING == 0 {
            return Effect::None;
        }
        state.set_method(area, front_end::NOTIFY, asked & !NOTIFY_PENDING);
        let at = GpuVa(state.address(area, front_end::NOTIFY_HIGH));
        let mut bytes = [0; NOTIFICATION_BYTES];
        bytes[..8].copy_from_slice(&self.clock.timestamp().to_le_bytes());
        if self.store_bytes(at, &bytes) && asked & front_end::NOTIFY_AWAKEN != 0 {
            self.pfifo.notify_engine(Engine::Graph);
        }
        Effect::None
    }

    /// Stores a word in the constant buffer that is being written. Its size is not checked: the MMU guards the
    /// memory behind it (assumption).
    pub(super) fn store_constant(&mut self, area: Area, data: u32) -> Effect {
        let state = &mut self.graph.state;
        let offset = state.method(area, shader::CONSTANT_OFFSET) & CONSTANT_OFFSET_MASK & !3;
        let at = state.address(area, shader::CONSTANT_HIGH) + u64::from(offset);
        state.set_method(area, shader::CONSTANT_OFFSET, offset + 4);
        self.store_bytes(GpuVa(at), &data.to_le_bytes());
        Effect::None
    }

    /// Stores bytes for the channel on the engine; a refusal is the engine's fault. Returns whether it worked.
    fn store_bytes(&mut self, at: GpuVa, bytes: &[u8]) -> bool {
        let Some(space) = self.units[UNIT].space() else {
            return false;
        };
        self.mem.stores += 1;
        let stored = self.mmu.write(&mut self.mem, &space, Access::WRITE, at, bytes);
        self.check_store(stored)
    }

    fn check_store(&mut self, stored: Result<(), Refusal>) -> bool {
        if let Err(refusal) = stored {
            self.fault_unit(UNIT, refusal);
        }
        stored.is_ok()
    }
}
