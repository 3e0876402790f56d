//! The copy engines (nouveau `engine/ce/gf100.c`, envytools `fifo/pcopy.rst`).

use super::falcon::{FALCON_BYTES, FalconReg};
use super::units::{UnitRange, units};
use crate::engine::Engine;

/// Where the copy engines are; falcons.
pub const PCOPY: UnitRange = units("PCOPY", 0x10_4000, FALCON_BYTES, 2, &[])
    .enabled_by(&[1 << Engine::Copy0.enable_bit(), 1 << Engine::Copy1.enable_bit()]);

registers! {
    /// Registers of the copy engines' falcons that are known by their number in BAR0.
    pub enum PcopyReg {
        /// Falcon interrupt status.
        CopyIntr[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Intr.offset(), ReadOnly;
        /// Falcon interrupt acknowledge.
        CopyIntrAck[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::IntrAck.offset(), WriteOnly;
        /// Falcon interrupt enable: sets the bits written.
        CopyIntrEnableSet[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::IntrEnableSet.offset(), WriteOnly;
        /// Falcon interrupt enable: clears the bits written.
        CopyIntrEnableClear[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::IntrEnableClear.offset(), WriteOnly;
        /// Falcon interrupt routing: low half enables, high half sends to the falcon instead of the host.
        CopyIntrRoute[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::IntrRoute.offset(), ReadWrite;
        /// The channel that the engine works for ([`super::falcon::Channel`]).
        CopyChannel[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::ChannelCurrent.offset(), ReadWrite;
        /// Falcon error code.
        CopyError[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Scratch0.offset(), ReadWrite;
        /// Falcon error data.
        CopyErrorData[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Scratch1.offset(), ReadWrite;
        /// Falcon memory sizes.
        CopyCaps[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Caps.offset(), ReadOnly;
        /// Version of a copy engine's falcon.
        CopyVersion[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Version.offset(), ReadOnly;
        /// Control of a copy engine's falcon; bit 1 starts it.
        CopyControl[PCOPY.count, PCOPY.bytes] = PCOPY.first + FalconReg::Control.offset(), ReadWrite;
    }
}

impl PcopyReg {
    /// Number of the engine, and the register of its falcon that this is.
    pub const fn in_falcon(self) -> (u16, FalconReg) {
        match self {
            Self::CopyIntr(engine) => (engine, FalconReg::Intr),
            Self::CopyIntrAck(engine) => (engine, FalconReg::IntrAck),
            Self::CopyIntrEnableSet(engine) => (engine, FalconReg::IntrEnableSet),
            Self::CopyIntrEnableClear(engine) => (engine, FalconReg::IntrEnableClear),
            Self::CopyIntrRoute(engine) => (engine, FalconReg::IntrRoute),
            Self::CopyChannel(engine) => (engine, FalconReg::ChannelCurrent),
            Self::CopyError(engine) => (engine, FalconReg::Scratch0),
            Self::CopyErrorData(engine) => (engine, FalconReg::Scratch1),
            Self::CopyCaps(engine) => (engine, FalconReg::Caps),
            Self::CopyVersion(engine) => (engine, FalconReg::Version),
            Self::CopyControl(engine) => (engine, FalconReg::Control),
        }
    }
}

/// Bits of COPY_INTR (104008).
pub mod copy_intr {
    /// Dispatch error: code in COPY_ERROR, data in COPY_ERROR_DATA.
    pub const DISPATCH: u32 = 1 << 6;
    /// A copy has ended that asked for an interrupt and waits for its acknowledgement (envytools `pcopy.xml`).
    pub const COPY_BLOCK: u32 = 1 << 10;
    /// Interrupts that nouveau's microcode passes to the host: all but its own two, methods and channel switches
    /// (`ce/fuc/com.fuc`).
    pub const ROUTE: u32 = 0xfff3;
}

/// Code in COPY_ERROR (104040) \[15:0\]; \[31:16\] holds method >> 2 | subchannel << 11.
pub mod copy_error {
    /// No such method.
    pub const ILLEGAL_METHOD: u32 = 1;
    /// A value that cannot be.
    pub const INVALID_VALUE: u32 = 0x4;
    /// A value that is none of its enumeration.
    pub const INVALID_ENUM: u32 = 2;
    /// A reserved bit is set.
    pub const INVALID_BITFIELD: u32 = 3;
}

/// Value of COPY_CAPS (104108): 0x12 code pages, 8 data pages, FIFO of 16, 8 slots (envytools `fifo/pcopy.rst`).
pub const COPY_CAPS: u32 = 0x2040_1012;
/// Value of COPY_VERSION (10412c): falcon version 3.
pub const COPY_VERSION: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::falcon::Falcon;
    use super::*;

    #[test]
    fn register_is_where_its_falcon_has_it() {
        for reg in (0..PcopyReg::COUNT).map(PcopyReg::nth) {
            let (engine, of_falcon) = reg.in_falcon();
            assert_eq!(
                Falcon::decode(reg.offset()),
                Some((Falcon::Copy(engine), of_falcon)),
                "{reg:?}"
            );
            assert_eq!(reg.access(), of_falcon.access(), "{reg:?}");
        }
    }
}
