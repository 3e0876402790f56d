//! One request of a block driver: its demand, the checks, and its answer.
//!
//! ```text
//! readable:  header (type, reserved, sector: 16 bytes) │ data of a write
//! writable:  data of a read │ status (the last byte)
//! ```
//!
//! A driver may cut both parts into descriptors as it likes (Virtio 1.2 §2.7.4). A request with wrong
//! sizes or sectors is refused with status IOERR, an unknown one with UNSUPP. A chain without room for a
//! status has no answer.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::{DiskImage, SECTOR_BYTES};
use crate::virtio::QUEUE_SIZE;
use crate::virtio::chain::{BrokenChain, Pieces, copy_in, copy_out, total, with_data};

/// Most pieces of data in one request: a chain without header and status.
pub(super) const SEGMENTS_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Most bytes of a piece.
pub(super) const SEGMENT_BYTES_MAX: u32 = 64 << 10;
/// Most data of one request, so that none keeps the device for long.
const REQUEST_BYTES_MAX: u64 = SEGMENTS_MAX as u64 * SEGMENT_BYTES_MAX as u64;
const HEADER_BYTES: usize = 16;
/// Name that the disk gives itself.
const ID: [u8; VIRTIO_BLK_ID_BYTES as usize] = *b"vramd-disk\0\0\0\0\0\0\0\0\0\0";

/// The error status that a request ends with.
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
    pieces: Pieces,
}

impl Server {
    pub(super) fn new(image: DiskImage) -> Server {
        Server {
            image,
            pieces: Pieces::new(),
        }
    }

    /// Performs the request of `chain` and writes its status. Returns the number of bytes written from the
    /// beginning of the writable part on.
    pub(super) fn serve(
        &mut self,
        chain: DescriptorChain<&GuestMemoryMmap>,
        memory: &GuestMemoryMmap,
        features: u64,
    ) -> Result<u32, BrokenChain> {
        self.pieces.gather(chain)?;
        let status_at = self.take_status()?;
        let asked_bytes = total(&self.pieces.writable);
        let outcome = self.perform(memory, features);
        let status = outcome.map_or_else(Refusal::status, |()| VIRTIO_BLK_S_OK as u8);
        memory.write_obj(status, status_at).map_err(|_| BrokenChain)?;
        let is_all_written = outcome.is_ok() || asked_bytes == 0;
        // No more than the 4 GiB that a chain has.
        Ok(if is_all_written { asked_bytes as u32 + 1 } else { 0 })
    }

    /// Cuts the last byte off the writable part.
    fn take_status(&mut self) -> Result<GuestAddress, BrokenChain> {
        let last = self.pieces.writable.last_mut().ok_or(BrokenChain)?;
        last.bytes = last.bytes.checked_sub(1).ok_or(BrokenChain)?;
        let address = last.address.0.checked_add(last.bytes.into()).ok_or(BrokenChain)?;
        Ok(GuestAddress(address))
    }

    fn perform(&mut self, memory: &GuestMemoryMmap, features: u64) -> Result<(), Refusal> {
        let mut header = [0; HEADER_BYTES];
        copy_out(&mut self.pieces.readable, memory, &mut header).map_err(failed)?;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let (kind, sector) = (u32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(sector));
        let (given, asked) = (total(&self.pieces.readable), total(&self.pieces.writable));
        match kind {
            VIRTIO_BLK_T_IN if given == 0 => {
                self.check_range(sector, asked)?;
                self.image.seek(sector).map_err(failed)?;
                with_data(&self.pieces.writable).try_for_each(|piece| {
                    let read = self.image.read_to(memory, piece.address, piece.bytes as usize);
                    read.map_err(failed)
                })
            }
            VIRTIO_BLK_T_OUT if asked == 0 && !self.image.is_read_only() => {
                self.check_range(sector, given)?;
                self.image.seek(sector).map_err(failed)?;
                for piece in with_data(&self.pieces.readable) {
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
                copy_in(&mut self.pieces.writable, memory, &ID).map_err(failed)
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
