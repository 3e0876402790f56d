//! What a warp reaches beyond its block: code and memory of the channel's address space.

use crate::mmu::Refusal;

/// Bits of a virtual address that count.
pub(crate) const VA_MASK: u64 = (1 << 40) - 1;

/// An operation on a word of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Atomic {
    Add,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    /// To the operand, then to zero.
    Increment,
    /// To zero, then to the operand.
    Decrement,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    /// f32, denormals flushed.
    AddFloat,
}

/// The address space of the grid. Accesses take effect in the order of the calls; a refused one has no effect
/// beyond the page where it was refused.
pub(crate) trait Outside {
    /// Code at `va`.
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal>;
    /// Data at `va`.
    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal>;
    /// Stores data at `va`.
    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal>;
    /// Replaces the 4 or 8 bytes at `va`; returns what was there.
    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal>;
}
