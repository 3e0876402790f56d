//! What a client is told of the card.

use fermi_spec::board::{BAR0_BYTES, BAR1_BYTES, BAR3_BYTES, Board, REVISION, VENDOR};
use vfio_user_server::pci::{Bar, PciError};
use vfio_user_server::{ConfigSpace, FunctionInfo, IrqIndex, PciIdentity, Region, RegionInfo};

/// Display controller, 3D: a card without outputs.
const CLASS_3D: u32 = 0x03_02_00;

/// Configuration space after power-on.
pub(super) fn config_space(board: Board) -> Result<ConfigSpace, PciError> {
    let identity = PciIdentity {
        vendor: VENDOR,
        device: board.device_id(),
        subsystem_vendor: VENDOR,
        subsystem: board.device_id(),
        class: CLASS_3D,
        revision: REVISION,
    };
    let registers = Bar::Memory32 {
        bytes: BAR0_BYTES,
        is_prefetchable: false,
    };
    let window = |bytes| Bar::Memory64 {
        bytes,
        is_prefetchable: true,
    };
    let space = ConfigSpace::new(identity)
        .with_bar(0, registers)?
        .with_bar(1, window(BAR1_BYTES))?
        .with_bar(3, window(BAR3_BYTES))?;
    Ok(space.with_interrupt_pin().with_power_management().with_msi())
}

/// Regions and interrupts.
pub(super) fn function(config: &ConfigSpace) -> FunctionInfo {
    FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(BAR0_BYTES))
        .with_region(Region::Bar1, RegionInfo::read_write(BAR1_BYTES))
        .with_region(Region::Bar3, RegionInfo::read_write(BAR3_BYTES))
        .with_region(Region::Config, RegionInfo::read_write(config.len_bytes()))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}
