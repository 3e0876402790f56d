//! PTIMER: the card's clock (envytools PTIMER).

use super::units::{UnitRange, unit};

/// Where PTIMER is.
pub const PTIMER: UnitRange = unit("PTIMER", 0x00_9000, 0x1000);

registers! {
    /// Words of PTIMER that nothing else depends on.
    pub enum PtimerWord {
        /// Ratio of the clock: numerator.
        PtimerNumerator = 0x009200, ReadWrite;
        /// Ratio of the clock: denominator.
        PtimerDenominator = 0x009210, ReadWrite;
        /// Multiplier and divider of the clock.
        PtimerConfig = 0x009220, ReadWrite;
    }
}

registers! {
    /// Registers of PTIMER: time and alarm.
    pub enum PtimerReg: PtimerWord {
        /// Bit 0: the alarm is pending.
        PtimerIntr = 0x009100, WriteOneClears;
        /// Bit 0 enables the alarm's interrupt.
        PtimerIntrEnable = 0x009140, ReadWrite;
        /// Nanoseconds, bits 31:5.
        PtimerLow = 0x009400, ReadWrite;
        /// Nanoseconds, bits 60:32.
        PtimerHigh = 0x009410, ReadWrite;
        /// Alarm time, low word.
        PtimerAlarm = 0x009420, ReadWrite;
    }
}

/// Bits of the time in PTIMER_LOW (9400): it goes in steps of 32 ns.
pub const LOW_MASK: u32 = !0x1f;
/// Bits of the time in PTIMER_HIGH (9410).
pub const HIGH_MASK: u32 = 0x1fff_ffff;
