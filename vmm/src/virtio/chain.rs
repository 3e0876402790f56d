//! A chain of descriptors, taken apart: guest memory that a driver names in a request.
//!
//! A piece is not known to be RAM before it is copied, and a driver may cut its data as it
//! likes (Virtio 1.2 §2.7.4).

use virtio_queue::DescriptorChain;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::QUEUE_SIZE;

/// A chain, or the ring that it is in, that breaks the rules: the device needs a reset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrokenChain;

/// The pieces are too short for the copy, or are not RAM.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CopyError;

/// A range of guest memory as the guest names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) address: GuestAddress,
    pub(crate) bytes: u32,
}

impl Piece {
    /// Takes up to `bytes` bytes off its beginning, and returns their place and number.
    fn take(&mut self, bytes: usize) -> (GuestAddress, usize) {
        let (start, taken) = (self.address, bytes.min(self.bytes as usize));
        self.bytes -= taken as u32;
        // A copy to or from a range that wraps fails as one that is not RAM.
        self.address = GuestAddress(start.0.wrapping_add(taken as u64));
        (start, taken)
    }
}

/// The pieces of the current chain. Kept from chain to chain, so that its memory is allocated once.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) readable: Vec<Piece>,
    pub(crate) writable: Vec<Piece>,
}

impl Pieces {
    pub(crate) fn new() -> Pieces {
        Pieces {
            readable: Vec::with_capacity(QUEUE_SIZE.into()),
            writable: Vec::with_capacity(QUEUE_SIZE.into()),
        }
    }

    /// Takes `chain` apart in place of the one before: readable pieces, then writable ones.
    pub(crate) fn gather(&mut self, chain: DescriptorChain<&GuestMemoryMmap>) -> Result<(), BrokenChain> {
        self.readable.clear();
        self.writable.clear();
        let mut is_whole = false;
        for descriptor in chain {
            if self.readable.len() + self.writable.len() == usize::from(QUEUE_SIZE) {
                return Err(BrokenChain);
            }
            let piece = Piece {
                address: descriptor.addr(),
                bytes: descriptor.len(),
            };
            if descriptor.is_write_only() {
                self.writable.push(piece);
            } else if self.writable.is_empty() {
                self.readable.push(piece);
            } else {
                return Err(BrokenChain);
            }
            // The iterator ends silently at a descriptor that does not exist.
            is_whole = !descriptor.has_next();
        }
        if is_whole { Ok(()) } else { Err(BrokenChain) }
    }
}

/// A piece without a byte may be anywhere.
pub(crate) fn with_data(pieces: &[Piece]) -> impl Iterator<Item = &Piece> {
    pieces.iter().filter(|piece| piece.bytes > 0)
}

pub(crate) fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
}

/// Address of byte `offset` of `pieces`, if they have as many.
pub(crate) fn place_of(pieces: &[Piece], offset: u32) -> Option<GuestAddress> {
    let mut before = offset;
    for piece in pieces {
        match before.checked_sub(piece.bytes) {
            Some(left) => before = left,
            None => return Some(GuestAddress(piece.address.0.wrapping_add(before.into()))),
        }
    }
    None
}

/// Takes as many bytes off the beginning of `pieces` as `target` has.
pub(crate) fn copy_out(
    pieces: &mut [Piece],
    memory: &GuestMemoryMmap,
    target: &mut [u8],
) -> Result<(), CopyError> {
    let mut done = 0;
    for piece in pieces.iter_mut().filter(|piece| piece.bytes > 0) {
        let (address, bytes) = piece.take(target.len() - done);
        memory
            .read_slice(&mut target[done..done + bytes], address)
            .map_err(|_| CopyError)?;
        done += bytes;
    }
    if done == target.len() {
        Ok(())
    } else {
        Err(CopyError)
    }
}

/// Fills the beginning of `pieces` with `source`.
pub(crate) fn copy_in(
    pieces: &mut [Piece],
    memory: &GuestMemoryMmap,
    source: &[u8],
) -> Result<(), CopyError> {
    let mut done = 0;
    for piece in pieces.iter_mut().filter(|piece| piece.bytes > 0) {
        let (address, bytes) = piece.take(source.len() - done);
        memory
            .write_slice(&source[done..done + bytes], address)
            .map_err(|_| CopyError)?;
        done += bytes;
    }
    if done == source.len() {
        Ok(())
    } else {
        Err(CopyError)
    }
}
