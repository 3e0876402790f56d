//! The PCI function that a guest sees: a Fermi board's identity, BARs and one MSI.
//!
//! Layout of the BARs as on GF100 boards: BAR0 in 32 bits, BAR1 (registers 1 and 2) and BAR3 (registers 3 and 4)
//! prefetchable in 64 bits. No INTx, no I/O ports and no option ROM: drivers use MSI, and read the VBIOS through
//! PRAMIN.

use fermi_spec::board::{BAR0_BYTES, Board, REVISION, VENDOR};
use vfio_user_server::function::{FunctionInfo, Region, RegionInfo};
use vfio_user_server::irq::IrqIndex;
use vfio_user_server::pci::{Bar, ConfigSpace, PciError, PciIdentity};

/// Display controller, 3D: a GPU that is not the machine's VGA card.
const CLASS_3D: u32 = 0x03_02_00;

/// Sizes of the BARs that a backend may choose. Bytes, powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BarSizes {
    pub(crate) bar1: u64,
    pub(crate) bar3: u64,
}

/// Configuration space of a vGPU as it is after power-on.
pub(crate) fn config_space(board: Board, bars: BarSizes) -> Result<ConfigSpace, PciError> {
    let identity = PciIdentity {
        vendor: VENDOR,
        device: board.device_id(),
        subsystem_vendor: VENDOR,
        subsystem: board.device_id(),
        class: CLASS_3D,
        revision: REVISION,
    };
    let space = ConfigSpace::new(identity)
        .with_bar(
            0,
            Bar::Memory32 {
                bytes: BAR0_BYTES,
                is_prefetchable: false,
            },
        )?
        .with_bar(
            1,
            Bar::Memory64 {
                bytes: bars.bar1,
                is_prefetchable: true,
            },
        )?
        .with_bar(
            3,
            Bar::Memory64 {
                bytes: bars.bar3,
                is_prefetchable: true,
            },
        )?;
    Ok(space.with_power_management().with_msi())
}

/// Regions and interrupts for a vfio-user client.
pub(crate) fn function(config: &ConfigSpace, bars: BarSizes) -> FunctionInfo {
    FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(BAR0_BYTES))
        .with_region(Region::Bar1, RegionInfo::read_write(bars.bar1))
        .with_region(Region::Bar3, RegionInfo::read_write(bars.bar3))
        .with_region(Region::Config, RegionInfo::read_write(config.len_bytes()))
        .with_irqs(IrqIndex::Msi, 1)
}

/// Whether the guest lets the function send its MSI.
pub(crate) fn can_interrupt(config: &ConfigSpace) -> bool {
    config.is_bus_master() && config.msi().is_some_and(|msi| msi.is_enabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARS: BarSizes = BarSizes {
        bar1: 128 << 20,
        bar3: 64 << 20,
    };

    #[test]
    fn board_is_recognised_by_its_ids() {
        let space = config_space(Board::Gtx480, BARS).unwrap();
        let mut ids = [0; 12];
        space.read(0, &mut ids);
        assert_eq!(ids[..4], [0xde, 0x10, 0xc0, 0x06]);
        assert_eq!(ids[8..], [0xa3, 0x00, 0x02, 0x03]);
    }

    #[test]
    fn msi_needs_bus_master_and_enable() {
        let mut space = config_space(Board::Gtx480, BARS).unwrap();
        let mut pointer = [0];
        space.read(0x34, &mut pointer);
        let mut capability = [0; 2];
        space.read(pointer[0].into(), &mut capability);
        // Power management first, MSI second.
        let msi = u64::from(capability[1]);
        space.write(msi + 2, &[1]);
        assert!(!can_interrupt(&space));
        space.write(4, &[0b110]);
        assert!(can_interrupt(&space));
        space.reset();
        assert!(!can_interrupt(&space));
    }
}
