//! The common parts of cards behind a PCI function, with any way to reach the function.

use fermi_spec::bar::Bar;
use fermi_spec::board::{BAR0_BYTES, Board, VENDOR};
use fermi_spec::regs::PmcReg;
use fermi_spec::regs::pieces::bus_pieces;
use vgpu::HostGpuError;

/// Offsets in configuration space (PCI Local Bus Specification 3.0, §§6.1 and 6.7).
pub(crate) mod config {
    pub(crate) const IDS: u64 = 0;
    pub(crate) const COMMAND: u64 = 4;
    pub(crate) const CAPABILITIES: u64 = 0x34;
    /// Message control of the MSI capability.
    pub(crate) const MSI_CONTROL: u64 = 2;
    pub(crate) const MSI_ENABLE: u16 = 1;
    pub(crate) const MSI_ID: u8 = 5;
    /// Memory space, bus master; INTx off.
    pub(crate) const COMMAND_BITS: u16 = 1 << 1 | BUS_MASTER | 1 << 10;
    pub(crate) const BUS_MASTER: u16 = 1 << 2;
    /// As many capabilities as fit behind the header. A longer list is a loop.
    pub(crate) const CAPABILITIES_MAX: usize = 48;
}

/// Least BAR1: the USERD array and a window must fit. Least BAR3: the arena of a small card.
const WINDOW_BYTES_MIN: u64 = 16 << 20;
/// Largest window that configuration space can show to guests.
const WINDOW_BYTES_MAX: u64 = 1 << 36;

/// Whether the BARs can be a card's; if not, the reason.
pub(crate) fn check_bars(bytes: impl Fn(Bar) -> u64) -> Result<(), String> {
    let registers = bytes(Bar::Bar0);
    if registers < BAR0_BYTES {
        return Err(format!(
            "its BAR0 has {registers:#x} bytes instead of {BAR0_BYTES:#x}"
        ));
    }
    for (name, bar) in [("BAR1", Bar::Bar1), ("BAR3", Bar::Bar3)] {
        let bytes = bytes(bar);
        if !bytes.is_power_of_two() || !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&bytes) {
            return Err(format!(
                "its {name} has {bytes:#x} bytes, not a power of two from {WINDOW_BYTES_MIN:#x} on"
            ));
        }
    }
    Ok(())
}

/// The board with the first four bytes of configuration space; if there is none, a text of these bytes.
pub(crate) fn board_of(ids: [u8; 4]) -> Result<Board, String> {
    if ids == [0xff; 4] {
        return Err(
            "it reads ones everywhere, as if nothing were there: switch it on, or reset it".to_owned(),
        );
    }
    let [vendor, device] = [[ids[0], ids[1]], [ids[2], ids[3]]].map(u16::from_le_bytes);
    let board = Board::from_device_id(device).filter(|_| vendor == VENDOR);
    board.ok_or_else(|| format!("its PCI id is {vendor:04x}:{device:04x}"))
}

/// Loads `data` through `load` from a card that may have gone: ones are believed only if the register that identifies
/// the card does not read as ones too. `gone` gives the error that names the card and the remedy.
///
/// A card that has left the bus or lost its power reads ones everywhere, and takes stores in silence.
pub(crate) fn read_answering(
    bar: Bar,
    offset: u64,
    data: &mut [u8],
    load: impl Fn(Bar, u64, &mut [u8]) -> Result<(), HostGpuError>,
    gone: impl Fn() -> String,
) -> Result<(), HostGpuError> {
    let is_ones = |data: &[u8]| data.iter().all(|byte| *byte == 0xff);
    let load = |offset, data: &mut [u8]| {
        load(bar, offset, data)?;
        if !is_ones(data) {
            return Ok(());
        }
        let mut boot = [0; 4];
        load(Bar::Bar0, PmcReg::Boot0.offset().into(), &mut boot)?;
        if is_ones(&boot) {
            return Err(HostGpuError::Lost { reason: gone() });
        }
        Ok(())
    };
    match bar {
        Bar::Bar0 => bus_pieces(offset, data.len()).try_for_each(|(at, piece)| load(at, &mut data[piece])),
        Bar::Bar1 | Bar::Bar3 => load(offset, data),
    }
}

/// An error and its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |line, source| format!("{line}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads 8 bytes at 0x200 of a card whose identifying register is `boot` and whose other bytes are `rest`.
    fn read(bar: Bar, boot: u32, rest: u8) -> Result<[u8; 8], HostGpuError> {
        let load = |bar, offset, data: &mut [u8]| {
            match (bar, offset) {
                (Bar::Bar0, 0) => data.copy_from_slice(&boot.to_le_bytes()),
                _ => data.fill(rest),
            }
            Ok(())
        };
        let mut data = [0; 8];
        read_answering(bar, 0x200, &mut data, load, || "unplugged".to_owned()).map(|()| data)
    }

    #[test]
    fn ones_are_believed_of_a_card_that_answers() {
        for bar in Bar::ALL {
            assert_eq!(read(bar, 0x0c00_00a3, 0xff).unwrap(), [0xff; 8]);
            assert_eq!(read(bar, u32::MAX, 7).unwrap(), [7; 8]);
        }
    }

    #[test]
    fn card_that_reads_ones_everywhere_is_lost() {
        for bar in Bar::ALL {
            let error = read(bar, u32::MAX, 0xff).unwrap_err();
            assert_eq!(error.to_string(), "the card is gone: unplugged");
        }
    }

    #[test]
    fn ones_for_an_identity_are_told_from_another_function() {
        assert!(board_of([0xff; 4]).unwrap_err().contains("reads ones"));
        assert_eq!(
            board_of([0x86, 0x80, 0x0e, 0x10]).unwrap_err(),
            "its PCI id is 8086:100e"
        );
    }
}
