//! Every limit that a client meets, in one place.
//!
//! A client is hostile: the sum of these numbers is all that it can make this process hold.

use std::mem::size_of;

use crate::message::{Header, RegionAccessWire};

/// Largest `count` of a REGION_READ or REGION_WRITE; announced as `max_data_xfer_size`. Bytes.
///
/// Guests access registers and windows in at most 8 bytes, so this only serves bulk readers such as an
/// option-ROM loader.
pub(crate) const DATA_BYTES_MAX: u32 = 64 * 1024;

/// Largest message taken from a client, header included. Bytes.
///
/// A larger size in a header closes the connection: the stream could only be resynchronised by reading what the
/// client must not send.
pub(crate) const MESSAGE_BYTES_MAX: usize =
    size_of::<Header>() + size_of::<RegionAccessWire>() + DATA_BYTES_MAX as usize;

/// Longest JSON text in a VERSION message, terminating NUL included. Bytes.
pub(crate) const VERSION_DATA_BYTES_MAX: usize = 4096;

/// Descriptors of one socket's clients that may wait to be closed before nothing more is read from its client.
///
/// A client whose descriptors close at once never meets this. One that sends descriptors whose close hangs waits until they
/// are closed, and so does the next client of the same path.
pub(crate) const CLOSING_MAX: usize = 256;

/// Descriptors that the kernel lets one message carry (`SCM_MAX_FD`).
///
/// All are received, because the kernel closes those that find no room while we wait.
pub(crate) const RECEIVED_FDS_MAX: usize = 253;

/// File descriptors with one message; announced as `max_msg_fds`.
pub(crate) const MESSAGE_FDS_MAX: usize = 8;

/// Writes in one REGION_WRITE_MULTI. The clients that send it (QEMU) stop at 200.
pub(crate) const MULTI_WRITES_MAX: usize = 200;

/// Requests that may wait for an answer, posted ones included; no further message is read while as many do.
pub(crate) const UNANSWERED_MAX: usize = 64;

/// Bytes of replies, queued or promised to requests, beyond which no further message is read.
///
/// The queue itself never exceeds this by more than one largest reply.
pub(crate) const OUTGOING_BYTES_MAX: usize = 1024 * 1024;

/// Requests that one call of `read_ready` takes from one client, so that the others get their turn.
pub(crate) const REQUESTS_PER_TURN: usize = 32;

/// DMA maps of one client that may exist at a time, unless the function allows more; announced as `max_dma_maps`.
///
/// A VMM needs some tens. A server that maps them all, for as many clients as it takes, stays well below the mappings
/// that a process may have (65,530 by default).
pub const DMA_MAPS_MAX: usize = 512;

/// Distinct files behind the DMA maps of one client. A file sent again with another map is not held twice.
pub(crate) const DMA_FILES_MAX: usize = 64;

/// Descriptors that one socket and its client can make a server hold at a time: files of maps, those of a message and of the unfinished one
/// behind it, those that wait to be closed, interrupts that are given one by one, and the socket's own.
pub const DESCRIPTORS_MAX: usize = DMA_MAPS_MAX + 2 * RECEIVED_FDS_MAX + CLOSING_MAX + 32;

/// Guest memory that the maps of one client may cover together. Bytes.
pub(crate) const DMA_BYTES_MAX: u64 = 1 << 40;

/// Alignment of address, offset and length of a DMA map; announced as `pgsizes`. Bytes.
pub(crate) const DMA_PAGE_BYTES: u64 = 4096;

/// Vectors of one interrupt index (what MSI-X can have at most).
pub(crate) const IRQ_VECTORS_MAX: u32 = 2048;
