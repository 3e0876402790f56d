//! What a board is made of and how it was left by the VBIOS: fuses (PFUSE), units (PUNITS), straps (PSTRAPS).

use super::units::{UnitRange, unit};

/// Where the fuses are.
pub const PFUSE: UnitRange = unit("PFUSE", 0x02_1000, 0x1000);
/// Where the numbers of units are.
pub const PUNITS: UnitRange = unit("PUNITS", 0x02_2000, 0x1000);
/// Where the straps are.
pub const PSTRAPS: UnitRange = unit("PSTRAPS", 0x10_1000, 0x1000);

registers! {
    /// Words of fuses and POST state that nothing else depends on.
    pub enum PunitsWord {
        /// First word of the POST state, as the VBIOS leaves it.
        Post0 = 0x022400, ReadWrite;
        /// Partitions fused off.
        FusePartitions = 0x022554, ReadOnly;
        /// GPCs that are fused off, a bit each.
        FuseGpcs = 0x022504, ReadOnly;
        /// PCI Express: bit 0 version 2, bit 7 full speed.
        PciVersion = 0x02241c, ReadWrite;
        /// Bit 0 gives access to the fuses.
        FuseAccess = 0x021000, ReadWrite;
        /// Fuses: sensors, voltages, speeds; zero is "not blown".
        Fuse[448, 4] = 0x021100, ReadOnly;
    }
}

registers! {
    /// What the board is made of: design, fuses, straps.
    pub enum PunitsReg: PunitsWord {
        /// POST state; bit 1: initialisation scripts ran.
        Post1 = 0x02240c, ReadWrite;
        /// GPCs in the design.
        DesignGpcs = 0x022430, ReadOnly;
        /// TPCs of a GPC in the design.
        DesignTpcs = 0x022434, ReadOnly;
        /// Memory partitions in the design.
        DesignPartitions = 0x022438, ReadOnly;
        /// Units fused off; bit 0 display.
        FuseDisable = 0x022500, ReadOnly;
        /// Disabled TPCs of a GPC.
        FuseTpcs[8, 4] = 0x022508, ReadOnly;
        /// Straps; the crystal.
        Straps = 0x101000, ReadOnly;
        /// Second word of straps.
        Straps2 = 0x10100c, ReadOnly;
    }
}

/// POST1 (2240c): the initialisation scripts ran.
pub const POST_SCRIPTS_RAN: u32 = 1 << 1;
/// Strap value of a Quadro 6000 (read from a card by GPUvm): 27 MHz crystal.
pub const STRAPS: u32 = 0xb040_609a;
/// Second strap word of a Quadro 6000 (likewise).
pub const STRAPS2: u32 = 0x8003_b010;
/// POST0 (22400) after the VBIOS.
pub const POST0_AFTER_VBIOS: u32 = 0x0001_0000;
/// PCI_VERSION (2241c): PCI Express 2 at full speed.
pub const PCI_VERSION_2_FULL_SPEED: u32 = 0x81;
/// FUSE_DISABLE (22500) of a board for computing: neither display nor video engines.
pub const NEITHER_DISPLAY_NOR_VIDEO: u32 = 7;
