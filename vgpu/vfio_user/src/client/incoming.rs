//! The requests of a client, and the ids by which they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(doc)]
use super::Client;
use crate::dma::DmaMap;
use crate::error::CloseReason;
use crate::function::Region;
use crate::irq::IrqChange;
use crate::message::SmallWrite;

/// Names a request of one client. Unique in the process, so that an answer that comes after its client has gone
/// never reaches the next client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);

impl RequestId {
    pub(super) fn next() -> Self {
        // Only uniqueness matters, so no order is asked for.
        Self(NEXT_REQUEST.fetch_add(1, Ordering::Relaxed))
    }
}

/// One write of a batch, checked like a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchedWrite {
    /// Region that is written.
    pub region: Region,
    /// The offset and the 1 to 8 bytes.
    pub write: SmallWrite,
}

/// A request of a client, or its end.
#[derive(Debug)]
pub enum Incoming {
    /// Answer with [`Client::reply_read`].
    RegionRead {
        /// Names the answer.
        request: RequestId,
        /// Region that is read.
        region: Region,
        /// First byte in the region.
        offset: u64,
        /// Length, 1 to `DATA_BYTES_MAX`.
        count: u32,
    },
    /// Answer with [`Client::reply_done`].
    RegionWrite {
        /// Names the answer.
        request: RequestId,
        /// Region that is written.
        region: Region,
        /// First byte in the region.
        offset: u64,
        /// 1 to `DATA_BYTES_MAX` bytes.
        data: Vec<u8>,
        /// The client does not wait: `reply_done` frees the request and sends nothing.
        is_posted: bool,
    },
    /// Several writes; answer with [`Client::reply_done`] when all are done, in this order.
    RegionWriteMulti {
        /// Names the answer.
        request: RequestId,
        /// The writes, at most `MULTI_WRITES_MAX`.
        writes: Vec<BatchedWrite>,
        /// The client does not wait, as for a single write.
        is_posted: bool,
    },
    /// Memory is offered; it is in the table already, and leaves it if the answer is an error.
    DmaMap {
        /// Names the answer.
        request: RequestId,
        /// The new map.
        map: Arc<DmaMap>,
    },
    /// Memory is taken back; it is out of the table already. Answer when nothing can reach it any more.
    DmaUnmap {
        /// Names the answer.
        request: RequestId,
        /// The maps that the range was made of.
        maps: Vec<Arc<DmaMap>>,
    },
    /// Interrupts are connected, disconnected, masked or triggered.
    Irq {
        /// Names the answer.
        request: RequestId,
        /// The decoded change, within the function's vectors.
        change: IrqChange,
    },
    /// The function is to be reset.
    Reset {
        /// Names the answer.
        request: RequestId,
    },
    /// The client is gone; this comes once, last. Its memory is to be left and its eventfds are to be closed.
    /// Requests that still wait may be answered, which sends nothing; [`Client::dma`] shows what is to be unmapped.
    Closed(CloseReason),
}

impl Incoming {
    /// Whether the client gets an answer, and is likely to wait for it.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(
            self,
            Self::RegionWrite { is_posted: true, .. }
                | Self::RegionWriteMulti { is_posted: true, .. }
                | Self::Closed(_)
        )
    }
}
