//! PNVIO and PTHERM: GPIO lines, AUX channels, fan, temperature.

use super::units::{UnitRange, unit};

/// Where PNVIO is.
pub const PNVIO: UnitRange = unit("PNVIO", 0x00_e000, 0x1000);
/// Where PTHERM is.
pub const PTHERM: UnitRange = unit("PTHERM", 0x02_0000, 0x1000);

registers! {
    /// Registers of PNVIO and PTHERM, none of which anything else depends on.
    pub enum PnvioReg {
        /// Enables and pending edges of GPIO lines: 0 enables, 1 pending, for lines 0–15 and 16–31.
        GpioIntrEnable[2, 0x20] = 0x00e050, ReadWrite;
        /// Pending edges of GPIO lines.
        GpioIntr[2, 0x20] = 0x00e054, WriteOneClears;
        /// Enables of the AUX channels' interrupts.
        AuxIntrEnable = 0x00e068, ReadWrite;
        /// Interrupts of the AUX channels.
        AuxIntr = 0x00e06c, WriteOneClears;
        /// Fan tachometer: how it counts.
        FanTachControl = 0x00e720, ReadWrite;
        /// Fan tachometer: what it counted.
        FanTach = 0x00e728, ReadOnly;
        /// Enables of thermal interrupts.
        ThermIntrEnable = 0x020000, ReadWrite;
        /// Pending thermal interrupts, a bit each.
        ThermIntr = 0x020100, WriteOneClears;
    }
}
