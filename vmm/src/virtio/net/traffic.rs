//! Counts of a network device's frames.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters of one device.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    dropped_sent: AtomicU64,
    dropped_received: AtomicU64,
}

/// A reading of them, since the VM's start. Frames, and bytes without the headers that driver and device put before frames.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Traffic {
    /// Frames from the guest that the host took.
    pub sent: u64,
    /// Bytes of the sent frames.
    pub sent_bytes: u64,
    /// Frames from the host that the guest got.
    pub received: u64,
    /// Bytes of the received frames.
    pub received_bytes: u64,
    /// Frames from the guest that were malformed or longer than agreed, or that the host did not take.
    pub dropped_sent: u64,
    /// Frames from the host that were longer or other than agreed, or longer than the guest's buffers.
    pub dropped_received: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.dropped_sent += other.dropped_sent;
        self.dropped_received += other.dropped_received;
    }
}

impl TrafficCounters {
    pub(super) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_dropped_sent(&self) {
        self.dropped_sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_dropped_received(&self) {
        self.dropped_received.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Traffic {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            sent: value(&self.sent),
            sent_bytes: value(&self.sent_bytes),
            received: value(&self.received),
            received_bytes: value(&self.received_bytes),
            dropped_sent: value(&self.dropped_sent),
            dropped_received: value(&self.dropped_received),
        }
    }
}
