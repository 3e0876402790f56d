//! Syncobjs: the fences that VM_BIND and EXEC wait for and signal.

use std::time::Duration;

use anyhow::Result;

use crate::device::{Device, error_number};
use crate::sys;
use crate::uapi::{self, Handle, Sync, SyncobjArray, SyncobjWait, TimelineArray, TimelineWait, address_of};

/// A syncobj; destroyed when dropped.
#[derive(Debug)]
pub(crate) struct Syncobj {
    device: Device,
    handle: u32,
}

impl Syncobj {
    /// An unsignaled one.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut message = Handle::default();
        device.call(&uapi::SYNCOBJ_CREATE, &mut message)?;
        Ok(Self {
            device: device.clone(),
            handle: message.handle,
        })
    }

    /// Its fence, for a job.
    pub(crate) fn sync(&self) -> Sync {
        Sync {
            handle: self.handle,
            ..Sync::default()
        }
    }

    /// A point of it, for a job.
    pub(crate) fn at(&self, point: u64) -> Sync {
        Sync {
            flags: uapi::SYNC_TIMELINE,
            handle: self.handle,
            point,
        }
    }

    /// Waits for its fence, or for one to arrive first; `false` when time is up.
    pub(crate) fn wait(&self, limit: Duration) -> Result<bool> {
        wait_all(&self.device, &[self], limit)
    }

    /// Waits for a point of it; `false` when time is up.
    pub(crate) fn wait_for(&self, point: u64, limit: Duration) -> Result<bool> {
        let (handles, points) = ([self.handle], [point]);
        let mut message = TimelineWait {
            handles: address_of(&handles),
            points: address_of(&points),
            timeout_ns: deadline(limit),
            count: 1,
            flags: uapi::WAIT_ALL | uapi::WAIT_FOR_SUBMIT,
            ..TimelineWait::default()
        };
        in_time(self.device.call(&uapi::TIMELINE_WAIT, &mut message))
    }

    /// Last point that is signaled.
    pub(crate) fn point(&self) -> Result<u64> {
        let (handles, points) = ([self.handle], [0_u64]);
        let mut message = self.timeline(&handles, &points);
        self.device.call(&uapi::TIMELINE_QUERY, &mut message)?;
        Ok(std::hint::black_box(&points)[0])
    }

    /// Signals it from here.
    pub(crate) fn signal(&self) -> Result<()> {
        let handles = [self.handle];
        let mut message = SyncobjArray {
            handles: address_of(&handles),
            count: 1,
            pad: 0,
        };
        self.device.call(&uapi::SYNCOBJ_SIGNAL, &mut message)
    }

    /// Signals a point from here.
    pub(crate) fn signal_point(&self, point: u64) -> Result<()> {
        let (handles, points) = ([self.handle], [point]);
        let mut message = self.timeline(&handles, &points);
        self.device.call(&uapi::TIMELINE_SIGNAL, &mut message)
    }

    fn timeline(&self, handles: &[u32; 1], points: &[u64; 1]) -> TimelineArray {
        TimelineArray {
            handles: address_of(handles),
            points: address_of(points),
            count: 1,
            flags: 0,
        }
    }

    /// Makes it unsignaled.
    pub(crate) fn reset(&self) -> Result<()> {
        let handles = [self.handle];
        let mut message = SyncobjArray {
            handles: address_of(&handles),
            count: 1,
            pad: 0,
        };
        self.device.call(&uapi::SYNCOBJ_RESET, &mut message)
    }
}

impl Drop for Syncobj {
    fn drop(&mut self) {
        let mut message = Handle {
            handle: self.handle,
            flags: 0,
        };
        // The handle goes with the file at the latest, so an error is ignored.
        let _ = self.device.call(&uapi::SYNCOBJ_DESTROY, &mut message);
    }
}

/// Waits for the fences of all of `syncobjs`; `false` when time is up.
pub(crate) fn wait_all(device: &Device, syncobjs: &[&Syncobj], limit: Duration) -> Result<bool> {
    let handles: Vec<u32> = syncobjs.iter().map(|syncobj| syncobj.handle).collect();
    let mut message = SyncobjWait {
        handles: address_of(&handles),
        timeout_ns: deadline(limit),
        count: handles.len() as u32,
        flags: uapi::WAIT_ALL | uapi::WAIT_FOR_SUBMIT,
        ..SyncobjWait::default()
    };
    in_time(device.call(&uapi::SYNCOBJ_WAIT, &mut message))
}

fn deadline(limit: Duration) -> i64 {
    (sys::monotonic() + limit).as_nanos() as i64
}

fn in_time(answer: Result<()>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error_number(&error) == Some(libc::ETIME) => Ok(false),
        Err(error) => Err(error),
    }
}
