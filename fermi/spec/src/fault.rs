//! MMU fault records (registers 2800 + 0x10·unit) and their codes: nouveau `fifo/gf100.c`, envytools.

/// Units other than the engines' (those have [`crate::engine::Engine::fault_unit`]).
pub mod unit {
    /// Indexed window through an instance block.
    pub const PEEPHOLE: u8 = 0x03;
    /// Accesses through BAR1.
    pub const BAR1: u8 = 0x04;
    /// Accesses through BAR3.
    pub const BAR3: u8 = 0x05;
    /// PBDMA 0; 1 and 2 follow.
    pub const PBDMA0: u8 = 0x07;
    /// Number of records.
    pub const COUNT: usize = 0x18;
}

/// Hub clients (those used here).
pub mod client {
    /// Copy engine 0.
    pub const PCOPY0: u8 = 1;
    /// Copy engine 1.
    pub const PCOPY1: u8 = 2;
    /// PGRAPH's front end (DISPATCH), which M2MF goes through.
    pub const DISPATCH: u8 = 4;
    /// PGRAPH's context switching.
    pub const CTXCTL: u8 = 5;
    /// PFIFO: PBDMA fetches and semaphores.
    pub const PFIFO: u8 = 6;
    /// Reads through a BAR.
    pub const BAR_READ: u8 = 7;
    /// Writes through a BAR.
    pub const BAR_WRITE: u8 = 8;
    /// Bits of the number in a record.
    pub const NUMBER_MASK: u8 = 0x1f;
    /// Marks a client of a GPC, not of the hub; not part of the number.
    pub const OF_GPC: u8 = 0x80;
    /// L1 cache of TPC 0 of a GPC, which loads and stores of shaders go through.
    pub const GPC_L1: u8 = OF_GPC;
    /// Texture cache of TPC 0 of a GPC.
    pub const GPC_T1: u8 = OF_GPC | 1;
}

/// Why the MMU refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reason {
    /// No table for the address.
    PdeNotPresent = 0,
    /// The table is cut short by SIZE.
    TableTooShort = 1,
    /// The entry is invalid.
    PageNotPresent = 2,
    /// Beyond the limit of the address space.
    BeyondLimit = 3,
    /// No or an invalid instance block.
    NoChannel = 4,
    /// Access without privilege to a supervisor page.
    Privileged = 5,
    /// Write to a read-only page.
    ReadOnly = 6,
    /// Compressed kind in system memory.
    CompressedSysram = 0xa,
    /// Kind that does not exist.
    InvalidKind = 0xc,
}

impl Reason {
    /// The reason with this code, if it has a meaning here.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [
            Self::PdeNotPresent,
            Self::TableTooShort,
            Self::PageNotPresent,
            Self::BeyondLimit,
            Self::NoChannel,
            Self::Privileged,
            Self::ReadOnly,
            Self::CompressedSysram,
            Self::InvalidKind,
        ];
        all.into_iter().find(|reason| *reason as u8 == code)
    }

    /// Its name in nouveau's messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::PdeNotPresent => "PT_NOT_PRESENT",
            Self::TableTooShort => "PT_TOO_SHORT",
            Self::PageNotPresent => "PAGE_NOT_PRESENT",
            Self::BeyondLimit => "VM_LIMIT_EXCEEDED",
            Self::NoChannel => "NO_CHANNEL",
            Self::Privileged => "PAGE_SYSTEM_ONLY",
            Self::ReadOnly => "PAGE_READ_ONLY",
            Self::CompressedSysram => "COMPRESSED_SYSRAM",
            Self::InvalidKind => "INVALID_STORAGE_TYPE",
        }
    }
}

/// Names of what MP_WARP_ERROR says, by its number (envytools `rnndb/graph/gf100_mp.xml`).
pub const WARP_ERRORS: [&str; 22] = [
    "NO_ERROR",
    "STACK_MISMATCH",
    "API_STACK_ERROR",
    "RET_EMPTY_STACK_ERROR",
    "PC_WRAP",
    "MISALIGNED_PC",
    "PC_OVERFLOW",
    "MISALIGNED_IMMC_ADDR",
    "MISALIGNED_GPR",
    "INVALID_OPCODE",
    "ILLEGAL_SPH_INSTR_COMBO",
    "ILLEGAL_INSTR_PARAM",
    "INVALID_CONST_ADDR",
    "GPR_OUT_OF_BOUNDS",
    "MEM_OUT_OF_BOUNDS",
    "UNALIGNED_MEM_ACCESS",
    "INVALID_ADDR_SPACE",
    "INVALID_PARAM",
    "INVALID_CONST_ADDR_LDC",
    "GEOMETRY_SM_ERROR",
    "DIVERGENT",
    "WARP_EXIT",
];

/// Last word of a fault record.
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultType {
    /// Code of a [`Reason`]; other codes have no known meaning.
    #[bits(4)]
    pub reason: u8,
    #[bits(2)]
    __: u8,
    /// From the hub, not from a GPC.
    pub hub: bool,
    /// The access was a write.
    pub write: bool,
    /// Client within hub or GPC.
    #[bits(5)]
    pub client: u8,
    #[bits(11)]
    __: u16,
    /// Number of the GPC; of no meaning for the hub.
    #[bits(5)]
    pub gpc: u8,
    #[bits(3)]
    __: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_reasons_are_their_own() {
        let known = (0..=u8::MAX).filter_map(|code| Some((code, Reason::from_code(code)?)));
        assert!(known.clone().all(|(code, reason)| reason as u8 == code));
        assert_eq!(known.count(), 9);
    }
}
