//! The PMU: a falcon that NVIDIA's or nouveau's microcode runs on (nouveau `pmu/gt215.c`).

use super::units::{UnitRange, unit};
use crate::engine::pmc_enable;

/// Where the PMU is; a falcon.
pub const PMU: UnitRange = unit("PMU", 0x10_a000, 0x1000).enabled_by(&[pmc_enable::PMU]);

registers! {
    /// State that the PMU's microcode reports.
    pub enum PmuReg {
        /// Ring of commands to the microcode: \[31:16\] bytes, \[15:0\] place; zero until it runs.
        PmuCommandRing = 0x10a4d0, ReadOnly;
        /// Ring of messages from it.
        PmuMessageRing = 0x10a4dc, ReadOnly;
    }
}

/// Bytes of a message ring of the PMU: \[31:16\] of PMU_COMMAND_RING and PMU_MESSAGE_RING (10a4d0, 10a4dc), whose
/// \[15:0\] is the place in data memory (nouveau `pmu/gt215.c`).
pub const PMU_RING_BYTES: u32 = 0x80;
/// Where the microcode's ring of commands is in data memory. Any place does: nothing is sent at probe.
pub const PMU_COMMAND_RING: u32 = 0x400;
/// Where its ring of messages to the host is.
pub const PMU_MESSAGE_RING: u32 = 0x480;
