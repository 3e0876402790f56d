//! Ports by which an operating system switches its machine off or resets it; and the button that
//! asks for the former.
//!
//! | port | write | ends the VM as |
//! |---|---|---|
//! | [`SLEEP_CONTROL_PORT`] | sleep type 5 with the enable bit | [`VmExit::PowerOff`] |
//! | [`RESET_PORT`] | [`RESET_VALUE`] | [`VmExit::Reset`] by [`ResetCause::Acpi`] |
//! | [`KEYBOARD_COMMAND_PORT`] | pulse of the reset line | [`VmExit::Reset`] by [`ResetCause::KeyboardController`] |
//!
//! The first two are registers that the FADT names (ACPI 6.5 §4.8.3.6, §4.8.3.7). The last is the only part of an
//! i8042: systems try its reset where ACPI's has no effect.

use std::fmt;

use super::VmExit;
use crate::bus::{BusError, PioHandler};

/// First port of the sleep and reset registers.
pub(crate) const POWER_PORT: u16 = 0x600;
/// Number of them.
pub(crate) const POWER_PORTS: u16 = 3;
pub(crate) const SLEEP_CONTROL_PORT: u16 = POWER_PORT;
pub(crate) const SLEEP_STATUS_PORT: u16 = POWER_PORT + 1;
pub(crate) const RESET_PORT: u16 = POWER_PORT + 2;
/// Value that resets the machine when it is written to [`RESET_PORT`].
pub(crate) const RESET_VALUE: u8 = 1;
/// Sleep type that switches off when it is written to the sleep control register.
pub(crate) const SLEEP_TYPE_S5: u8 = 5;
/// Command and status of the keyboard controller.
pub(crate) const KEYBOARD_COMMAND_PORT: u16 = 0x64;

/// Line of the I/O APIC for the power button. COM2 would have it in a PC.
pub(crate) const BUTTON_LINE: u32 = 3;

/// Fields of the sleep control register.
const SLEEP_TYPE_SHIFT: u32 = 2;
const SLEEP_TYPE_MASK: u8 = 7;
const SLEEP_ENABLE: u8 = 1 << 5;
/// The i8042's command to pulse output line 0.
const PULSE_RESET: u8 = 0xfe;

/// How a guest asked for a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetCause {
    /// The reset register of the FADT.
    Acpi,
    /// The keyboard controller's reset line.
    KeyboardController,
}

impl fmt::Display for ResetCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResetCause::Acpi => "ACPI",
            ResetCause::KeyboardController => "the keyboard controller",
        })
    }
}

/// The way in which a write to `port` ends the VM, if it does.
pub(crate) fn end_by(port: u16, data: &[u8]) -> Option<VmExit> {
    let &[value] = data else { return None };
    match port {
        SLEEP_CONTROL_PORT => {
            let is_off =
                value & SLEEP_ENABLE != 0 && value >> SLEEP_TYPE_SHIFT & SLEEP_TYPE_MASK == SLEEP_TYPE_S5;
            is_off.then_some(VmExit::PowerOff)
        }
        RESET_PORT => (value == RESET_VALUE).then_some(VmExit::Reset(ResetCause::Acpi)),
        KEYBOARD_COMMAND_PORT => {
            (value == PULSE_RESET).then_some(VmExit::Reset(ResetCause::KeyboardController))
        }
        _ => None,
    }
}

/// The registers' other accesses: they read as idle, and ignore writes that do not end the VM.
pub(crate) struct QuietRegisters;

impl PioHandler for QuietRegisters {
    fn pio_read(&self, _offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        data.fill(0);
        Ok(())
    }

    fn pio_write(&self, _offset: u16, _data: &[u8]) -> Result<(), BusError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_type_5_with_enable_switches_off() {
        assert!(matches!(
            end_by(SLEEP_CONTROL_PORT, &[0x34]),
            Some(VmExit::PowerOff)
        ));
    }

    #[test]
    fn other_sleep_types_and_type_5_alone_end_nothing() {
        let ends = [0x14, 0x20, 0x24, 0x00].map(|value| end_by(SLEEP_CONTROL_PORT, &[value]).is_some());
        assert_eq!(ends, [false; 4]);
    }

    #[test]
    fn resets_are_told_apart() {
        assert!(matches!(
            end_by(RESET_PORT, &[RESET_VALUE]),
            Some(VmExit::Reset(ResetCause::Acpi))
        ));
        assert!(matches!(
            end_by(KEYBOARD_COMMAND_PORT, &[0xfe]),
            Some(VmExit::Reset(ResetCause::KeyboardController))
        ));
    }

    #[test]
    fn wider_writes_and_other_commands_end_nothing() {
        assert!(end_by(RESET_PORT, &[1, 0]).is_none());
        assert!(end_by(KEYBOARD_COMMAND_PORT, &[0xd1]).is_none());
        assert!(end_by(0x80, &[RESET_VALUE]).is_none());
    }
}
