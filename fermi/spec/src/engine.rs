//! Engines of PFIFO and the bits by which other units know them.
//!
//! nouveau `fifo/gf100.c` (engine numbers), `mc/gf100.c` (PMC bits), envytools PFIFO documentation.

/// An engine that a channel can drive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Engine {
    /// 3D, compute, 2D, M2MF.
    Graph,
    /// PPDEC (nouveau: MSPDEC): decodes the pictures of a video.
    Ppdec,
    /// PPPP (nouveau: MSPPP): processes decoded pictures.
    Pppp,
    /// PVLD (nouveau: MSVLD): decodes the bitstream of a video.
    Pvld,
    /// Copy engine 0.
    Copy0,
    /// Copy engine 1.
    Copy1,
}

/// Code of "no engine" in instance blocks and status registers.
pub const ENGINE_NONE: u8 = 0x1f;
/// Number of engines.
pub const ENGINES: usize = 6;
/// Number of PBDMAs.
pub const PBDMAS: usize = 3;
/// A bit for each PBDMA, in masks of them.
pub const PBDMAS_PRESENT: u32 = (1 << PBDMAS) - 1;

impl Engine {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; ENGINES] = [
        Self::Graph,
        Self::Ppdec,
        Self::Pppp,
        Self::Pvld,
        Self::Copy0,
        Self::Copy1,
    ];

    /// Engine number `e` of PFIFO's registers.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The engine with that number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Graph),
            1 => Some(Self::Ppdec),
            2 => Some(Self::Pppp),
            3 => Some(Self::Pvld),
            4 => Some(Self::Copy0),
            5 => Some(Self::Copy1),
            _ => None,
        }
    }

    /// The PBDMA that nouveau lets the engine use.
    pub const fn pbdma(self) -> usize {
        match self {
            Self::Graph => 0,
            Self::Copy0 => 2,
            _ => 1,
        }
    }

    /// Bit in PMC_ENABLE (000200).
    pub const fn enable_bit(self) -> u32 {
        match self {
            Self::Graph => 12,
            Self::Ppdec => 17,
            Self::Pppp => 1,
            Self::Pvld => 15,
            Self::Copy0 => 6,
            Self::Copy1 => 7,
        }
    }

    /// Bit in PMC_INTR (000100); not the enable bit for the copy engines.
    pub const fn interrupt_bit(self) -> u32 {
        match self {
            Self::Graph => 12,
            Self::Ppdec => 17,
            Self::Pppp => 0,
            Self::Pvld => 15,
            Self::Copy0 => 5,
            Self::Copy1 => 6,
        }
    }

    /// MMU unit whose fault record the engine uses.
    pub const fn fault_unit(self) -> u8 {
        match self {
            Self::Graph => 0x00,
            Self::Ppdec => 0x14,
            Self::Pppp => 0x11,
            Self::Pvld => 0x10,
            Self::Copy0 => 0x15,
            Self::Copy1 => 0x16,
        }
    }

    /// Offset of the context pointer in the instance block.
    pub const fn context_offset(self) -> u64 {
        match self {
            Self::Graph => 0x210,
            Self::Copy0 => 0x230,
            Self::Copy1 => 0x240,
            Self::Ppdec => 0x250,
            Self::Pppp => 0x260,
            Self::Pvld => 0x270,
        }
    }
}

/// Bits of PMC_ENABLE other than the engines'.
pub mod pmc_enable {
    /// Bit 8 switches PFIFO on.
    pub const PFIFO: u32 = 1 << 8;
    /// Bit 13 switches the PMU (power-management processor) on.
    pub const PMU: u32 = 1 << 13;
}

/// Bits of PMC_INTR other than the engines'.
pub mod pmc_intr {
    /// Bit 8: PFIFO has an interrupt.
    pub const PFIFO: u32 = 1 << 8;
    /// Bit 24: the PMU (power-management processor) has an interrupt.
    pub const PMU: u32 = 1 << 24;
    /// Bit 20: PTIMER has an interrupt (its alarm).
    pub const PTIMER: u32 = 1 << 20;
    /// Bit 28: PBUS has an interrupt (faulty register accesses).
    pub const PBUS: u32 = 1 << 28;
}
