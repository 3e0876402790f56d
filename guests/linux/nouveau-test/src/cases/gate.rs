//! A semaphore that holds channels up until it is opened, by the CPU or by another channel.

use anyhow::Result;

use crate::device::{Device, Mapped, Object};
use crate::push::{Acquire, Push};

/// Payload of an open gate.
pub(super) const OPEN: u32 = 0x600d;

/// A gate in system memory; opened when dropped, so that a test that fails leaves no channel behind it.
#[derive(Debug)]
pub(super) struct Gate {
    memory: Mapped,
}

impl Gate {
    /// A closed one.
    pub(super) fn new(device: &Device) -> Result<Self> {
        let memory = device.gart(4096)?;
        memory.memory().write(0, 0);
        Ok(Self { memory })
    }

    /// The object for a submission's list. Name it as read, or the driver itself will order the channels.
    pub(super) fn object(&self) -> &Object {
        &self.memory
    }

    /// The channel waits here.
    pub(super) fn hold(&self, push: &mut Push) {
        push.acquire(self.memory.address(), Acquire::Equal, OPEN);
    }

    /// The channel opens the gate.
    pub(super) fn open_by(&self, push: &mut Push) {
        push.release(self.memory.address(), OPEN);
    }

    /// Opens the gate now.
    pub(super) fn open(&self) {
        self.memory.memory().write(0, OPEN);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}
