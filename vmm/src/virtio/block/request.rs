//! One request of a block driver: what it asks, whether it may, and its answer.
//!
//! ```text
//! readable:  header (type, reserved, sector: 16 bytes) │ data of a write
//! writable:  data of a read │ status (the last byte)
//! ```
//!
//! A driver may cut both parts into descriptors as it likes (Virtio 1.2 §2.7.4). What it asks is refused with status
//! IOERR if sizes or sectors are wrong, with UNSUPP if it is unknown. A chain without room for a status has no answer.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::{DiskImage, SECTOR_BYTES};
use crate::virtio::QUEUE_SIZE;
use crate::virtio::transport::BrokenChain;

/// Most pieces of data in one request: what a chain has beside header and status.
pub(super) const SEGMENTS_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Most bytes of a piece.
pub(super) const SEGMENT_BYTES_MAX: u32 = 64 << 10;
/// Most data of one request, so that none keeps the device for long.
const REQUEST_BYTES_MAX: u64 = SEGMENTS_MAX as u64 * SEGMENT_BYTES_MAX as u64;
const HEADER_BYTES: usize = 16;
/// What the disk calls itself.
const ID: [u8; VIRTIO_BLK_ID_BYTES as usize] = *b"vramd-disk\0\0\0\0\0\0\0\0\0\0";

/// A piece of guest memory as the guest names it: nothing says that it is RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    address: GuestAddress,
    bytes: u32,
}

impl Piece {
    /// Takes up to `bytes` bytes off its beginning, and tells where they are and how many.
    fn take(&mut self, bytes: usize) -> (GuestAddress, usize) {
        let (start, taken) = (self.address, bytes.min(self.bytes as usize));
        self.bytes -= taken as u32;
        // Whoever uses a range that wraps is told that it is no RAM.
        self.address = GuestAddress(start.0.wrapping_add(taken as u64));
        (start, taken)
    }
}

/// The status that a request ends with, beside OK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Failed,
    Unsupported,
}

impl Refusal {
    fn status(self) -> u8 {
        match self {
            Refusal::Failed => VIRTIO_BLK_S_IOERR as u8,
            Refusal::Unsupported => VIRTIO_BLK_S_UNSUPP as u8,
        }
    }
}

/// Any failure of guest memory or of the image.
fn failed<E>(_: E) -> Refusal {
    Refusal::Failed
}

/// Answers the requests of one disk.
pub(super) struct Server {
    image: DiskImage,
    /// Of the request at hand; their capacity is what they will ever need.
    readable: Vec<Piece>,
    writable: Vec<Piece>,
}

impl Server {
    pub(super) fn new(image: DiskImage) -> Server {
        Server {
            image,
            readable: Vec::with_capacity(QUEUE_SIZE.into()),
            writable: Vec::with_capacity(QUEUE_SIZE.into()),
        }
    }

    /// Does what `chain` asks and writes its status. Returns how many bytes were written from the beginning of the
    /// writable part on.
    pub(super) fn serve(
        &mut self,
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &GuestMemoryMmap,
        features: u64,
    ) -> Result<u32, BrokenChain> {
        self.gather(chain)?;
        let status_at = self.take_status()?;
        let asked_bytes = total(&self.writable);
        let outcome = self.perform(memory, features);
        let status = outcome.map_or_else(Refusal::status, |()| VIRTIO_BLK_S_OK as u8);
        memory.write_obj(status, status_at).map_err(|_| BrokenChain)?;
        let is_all_written = outcome.is_ok() || asked_bytes == 0;
        // No more than the 4 GiB that a chain has.
        Ok(if is_all_written { asked_bytes as u32 + 1 } else { 0 })
    }

    /// Takes the chain apart: readable pieces, then writable ones.
    fn gather(&mut self, chain: DescriptorChain<&GuestMemoryMmap>) -> Result<(), BrokenChain> {
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
            // The iterator ends without a word at a descriptor that is not there.
            is_whole = !descriptor.has_next();
        }
        if is_whole { Ok(()) } else { Err(BrokenChain) }
    }

    /// Cuts the last byte off what can be written.
    fn take_status(&mut self) -> Result<GuestAddress, BrokenChain> {
        let last = self.writable.last_mut().ok_or(BrokenChain)?;
        last.bytes = last.bytes.checked_sub(1).ok_or(BrokenChain)?;
        let address = last.address.0.checked_add(last.bytes.into()).ok_or(BrokenChain)?;
        Ok(GuestAddress(address))
    }

    fn perform(&mut self, memory: &GuestMemoryMmap, features: u64) -> Result<(), Refusal> {
        let mut header = [0; HEADER_BYTES];
        copy_out(&mut self.readable, memory, &mut header)?;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let (kind, sector) = (u32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(sector));
        let (given, asked) = (total(&self.readable), total(&self.writable));
        match kind {
            VIRTIO_BLK_T_IN if given == 0 => {
                self.check_range(sector, asked)?;
                self.image.seek(sector).map_err(failed)?;
                with_data(&self.writable).try_for_each(|piece| {
                    let read = self.image.read_to(memory, piece.address, piece.bytes as usize);
                    read.map_err(failed)
                })
            }
            VIRTIO_BLK_T_OUT if asked == 0 && !self.image.is_read_only() => {
                self.check_range(sector, given)?;
                self.image.seek(sector).map_err(failed)?;
                for piece in with_data(&self.readable) {
                    let written = self.image.write_from(memory, piece.address, piece.bytes as usize);
                    written.map_err(failed)?;
                }
                if features & 1 << VIRTIO_BLK_F_FLUSH == 0 {
                    self.image.flush().map_err(failed)?;
                }
                Ok(())
            }
            VIRTIO_BLK_T_FLUSH if given == 0 && asked == 0 => self.image.flush().map_err(failed),
            VIRTIO_BLK_T_GET_ID if given == 0 && asked == ID.len() as u64 => {
                copy_in(&mut self.writable, memory, &ID)
            }
            VIRTIO_BLK_T_IN | VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_FLUSH | VIRTIO_BLK_T_GET_ID => {
                Err(Refusal::Failed)
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    /// Whether `bytes` bytes are whole sectors that the disk has from `sector` on.
    fn check_range(&self, sector: u64, bytes: u64) -> Result<(), Refusal> {
        let is_bounded = bytes.is_multiple_of(SECTOR_BYTES) && bytes <= REQUEST_BYTES_MAX;
        let end = sector.checked_add(bytes / SECTOR_BYTES);
        let is_inside = end.is_some_and(|end| end <= self.image.sectors());
        if is_bounded && is_inside {
            Ok(())
        } else {
            Err(Refusal::Failed)
        }
    }
}

/// A piece without a byte may be anywhere.
fn with_data(pieces: &[Piece]) -> impl Iterator<Item = &Piece> {
    pieces.iter().filter(|piece| piece.bytes > 0)
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
}

/// Takes as many bytes off the beginning of `pieces` as `target` has.
fn copy_out(pieces: &mut [Piece], memory: &GuestMemoryMmap, target: &mut [u8]) -> Result<(), Refusal> {
    let mut done = 0;
    for piece in pieces.iter_mut().filter(|piece| piece.bytes > 0) {
        let (address, bytes) = piece.take(target.len() - done);
        memory
            .read_slice(&mut target[done..done + bytes], address)
            .map_err(failed)?;
        done += bytes;
    }
    if done == target.len() {
        Ok(())
    } else {
        Err(Refusal::Failed)
    }
}

/// Fills the beginning of `pieces` with `source`.
fn copy_in(pieces: &mut [Piece], memory: &GuestMemoryMmap, source: &[u8]) -> Result<(), Refusal> {
    let mut done = 0;
    for piece in pieces.iter_mut().filter(|piece| piece.bytes > 0) {
        let (address, bytes) = piece.take(source.len() - done);
        memory
            .write_slice(&source[done..done + bytes], address)
            .map_err(failed)?;
        done += bytes;
    }
    if done == source.len() {
        Ok(())
    } else {
        Err(Refusal::Failed)
    }
}
