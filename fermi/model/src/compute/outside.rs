//! The memory that a warp reaches beyond its block: code and data of the channel's address space.

use super::{
    coalesce::Places,
    reach::Reach,
    speculation::{Access, View},
    warp::{Lanes, lanes_of},
};
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
    /// Loads a value for each lane, aligned to its size, into its words, of which there are as many as a value has.
    /// Lanes go in their order.
    fn gather(&mut self, places: Places<'_>, words: &mut [Lanes]) -> Result<(), Refusal> {
        for lane in lanes_of(places.lanes) {
            let mut data = [0; 16];
            self.read(places.addresses[lane], &mut data[..places.bytes as usize])?;
            let value = u128::from_le_bytes(data);
            for (number, word) in words.iter_mut().enumerate() {
                word[lane] = (value >> (32 * number)) as u32;
            }
        }
        Ok(())
    }
    /// Stores a value for each lane, as [`Self::gather`] loads one.
    fn scatter(&mut self, places: Places<'_>, words: &[Lanes]) -> Result<(), Refusal> {
        for lane in lanes_of(places.lanes) {
            let mut data = [0; 16];
            for (part, word) in data.chunks_exact_mut(4).zip(words) {
                part.copy_from_slice(&word[lane].to_le_bytes());
            }
            self.write(places.addresses[lane], &data[..places.bytes as usize])?;
        }
        Ok(())
    }
    /// Whether every instruction is to be looked at before it is executed: [`Self::lets_through`] is asked then, and only then.
    fn looks_ahead(&self) -> bool {
        false
    }
    /// Whether an instruction may reach these pages now; if not, its warp waits until the grid is told to replay.
    fn lets_through(&mut self, reach: &Reach) -> bool {
        let _ = reach;
        true
    }
    /// Whether a warp waits for code that was refused.
    fn waits_for_code(&mut self, refusal: Refusal) -> bool {
        let _ = refusal;
        false
    }
    /// The same memory for another thread to read from; `None` where nobody can.
    fn view(&mut self) -> Option<View> {
        None
    }
    /// Makes the accesses of one instruction anew, whose bytes lie one behind the other in `data`: charges them, and stores what they stored. `false`,
    /// and nothing has happened, where a load would not find its bytes, or a page is not there.
    fn redo(&mut self, accesses: &[Access], data: &[u8]) -> bool {
        let _ = (accesses, data);
        false
    }
    /// Replaces the 4 or 8 bytes at `va`; returns the old value.
    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal>;
}
