//! The errors that end a warp before its program does.

use crate::mmu::Refusal;

/// An error of a warp, by its number in the hardware's error register (envytools `rnndb/graph/gf100_mp.xml`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum WarpError {
    /// An entry of the control stack is of the wrong type.
    StackMismatch = 1,
    /// RET with nothing to return to.
    ReturnFromEmptyStack = 3,
    /// The program counter is not a multiple of an instruction's size.
    MisalignedPc = 5,
    /// A constant operand is not aligned.
    MisalignedConstant = 7,
    /// A wide operand begins in the wrong register.
    MisalignedRegister = 8,
    /// Not an instruction.
    InvalidOpcode = 9,
    /// A register beyond those of the launch.
    RegisterOutOfBounds = 13,
    /// Beyond shared or local memory.
    MemoryOutOfBounds = 14,
    /// An address that is not a multiple of the access.
    UnalignedAccess = 15,
    /// An atomic operation on a window.
    InvalidAddressSpace = 16,
    /// A barrier that the launch has not.
    InvalidParameter = 17,
    /// Control stack full (a global error, beside the numbers of warps).
    OutOfStack = 0x100,
    /// The grid ran longer than the watchdog lets it.
    TimedOut = 0x101,
    /// A texture or a sampler that is not valid (the texture unit's own trap).
    Texture = 0x102,
}

/// Position of a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShaderPlace {
    /// Block index in x, y, z.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Its program counter, bytes from the start of the code.
    pub pc: u32,
    /// Lanes that are active there.
    pub active: u32,
}

/// Why a warp ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It made an error of its own.
    Error(WarpError),
    /// The MMU refused an access.
    Fault(Refusal),
    /// The MMU refused an access of the texture unit.
    TextureFault(Refusal),
}

impl From<WarpError> for Stop {
    fn from(error: WarpError) -> Self {
        Self::Error(error)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Fault(refusal)
    }
}
