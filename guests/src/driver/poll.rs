//! Register access by name, and waits that end.

use super::DriverError;
use crate::GuestBus;
use fermi_spec::bar::Bar;
use fermi_spec::regs::Bar0Reg;

/// Turns after which a wait ends even if the clock stands still.
const TURNS_MAX: u32 = 1 << 22;

/// Bound of a wait in nanoseconds of [`GuestBus::now_ns`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit(pub(crate) u64);

/// Loads a register.
pub(crate) fn read(bus: &mut dyn GuestBus, register: impl Into<Bar0Reg>) -> u32 {
    bus.read32(Bar::Bar0, u64::from(register.into().offset()))
}

/// Stores to a register.
pub(crate) fn write(bus: &mut dyn GuestBus, register: impl Into<Bar0Reg>, value: u32) {
    bus.write32(Bar::Bar0, u64::from(register.into().offset()), value);
}

/// Calls `probe` until it returns `Ok(Some)` or an error; `Ok(None)` asks for another turn. `last` gives the value
/// that `probe` saw when the limit passed.
pub(crate) fn wait<T>(
    bus: &mut dyn GuestBus,
    limit: Limit,
    what: &'static str,
    mut probe: impl FnMut(&mut dyn GuestBus, &mut u32) -> Result<Option<T>, DriverError>,
) -> Result<T, DriverError> {
    let mut value = 0;
    if let Some(done) = probe(bus, &mut value)? {
        return Ok(done);
    }
    let start = bus.now_ns();
    for _ in 0..TURNS_MAX {
        bus.relax();
        if let Some(done) = probe(bus, &mut value)? {
            return Ok(done);
        }
        if bus.now_ns().wrapping_sub(start) >= limit.0 {
            break;
        }
    }
    Err(DriverError::Timeout { what, value })
}

/// Polls a register until `is_done`.
pub(crate) fn wait_register(
    bus: &mut dyn GuestBus,
    limit: Limit,
    what: &'static str,
    register: impl Into<Bar0Reg>,
    is_done: impl Fn(u32) -> bool,
) -> Result<u32, DriverError> {
    let register = register.into();
    wait(bus, limit, what, |bus, value| {
        *value = read(bus, register);
        Ok(is_done(*value).then_some(*value))
    })
}
