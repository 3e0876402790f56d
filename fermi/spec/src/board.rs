//! Identity of the boards that the model and the mediator offer.
//!
//! Device ids: envytools `docs/hw/pciid.rst`. PMC_BOOT_0: \[28:20\] chipset 0x0c0, \[19:15\] low five bits of the device
//! id, \[7:0\] stepping; the Quadro 6000's value was read from a card (GPUvm), the others follow the formula
//! (unverified).

/// PCI vendor id of NVIDIA.
pub const VENDOR: u16 = 0x10de;
/// Stepping of GF100 boards, also the PCI revision.
pub const REVISION: u8 = 0xa3;
/// PCI class of a board without display: 3D controller. The boards offered have theirs fused off.
pub(crate) const CLASS: u32 = 0x03_0200;
/// Bytes of BAR0 (registers). All three BAR sizes are the Quadro 6000's.
pub const BAR0_BYTES: u64 = 32 << 20;
/// Bytes of BAR1 (VRAM seen through an address space).
pub const BAR1_BYTES: u64 = 128 << 20;
/// Bytes of BAR3 (instance memory seen through an address space).
pub const BAR3_BYTES: u64 = 64 << 20;

/// A GF100 board.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Board {
    /// GeForce GTX 480.
    #[default]
    Gtx480,
    /// Quadro 6000 workstation board.
    Quadro6000,
    /// Tesla C2050 compute board.
    TeslaC2050,
}

impl Board {
    /// Every board that can be offered.
    pub const ALL: [Self; 3] = [Self::Gtx480, Self::Quadro6000, Self::TeslaC2050];

    /// PCI class, sub-class and programming interface, in the lower 24 bits.
    pub const fn class(self) -> u32 {
        CLASS
    }

    /// PCI device id.
    pub const fn device_id(self) -> u16 {
        match self {
            Self::Gtx480 => 0x06c0,
            Self::Quadro6000 => 0x06d8,
            Self::TeslaC2050 => 0x06d1,
        }
    }

    /// The board with that PCI device id.
    pub fn from_device_id(id: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|board| board.device_id() == id)
    }

    /// Value of PMC_BOOT_0 (000000), by which drivers know the chip.
    pub const fn boot0(self) -> u32 {
        0x0c0 << 20 | (self.device_id() as u32 & 0x1f) << 15 | REVISION as u32
    }

    /// VRAM of the real board in bytes.
    pub const fn vram_bytes(self) -> u64 {
        match self {
            Self::Gtx480 => 1536 << 20,
            Self::Quadro6000 => 6144 << 20,
            Self::TeslaC2050 => 3072 << 20,
        }
    }

    /// Name in configurations and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gtx480 => "gtx480",
            Self::Quadro6000 => "quadro6000",
            Self::TeslaC2050 => "c2050",
        }
    }

    /// The board with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|board| board.name() == name)
    }
}

/// Whether a PMC_BOOT_0 value is a GF100 ("NVC0").
pub const fn is_gf100(boot0: u32) -> bool {
    boot0 & 0x1f00_0000 != 0 && (boot0 >> 20) & 0x1ff == 0x0c0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quadro_value_is_the_one_read_from_a_card() {
        assert_eq!(Board::Quadro6000.boot0(), 0x0c0c_00a3);
        assert!(is_gf100(Board::Gtx480.boot0()));
    }
}
