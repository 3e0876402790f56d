//! Has pages of host memory ready before anybody stands still for them.
//!
//! A page of a memory file that nobody has touched is found, cleared and mapped at its first touch, which takes several times as
//! long as copying it. A thread does that here while the VM still runs.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use vfio_user_server::threads::{self, ThreadKind};
use vgpu::DmaMemory;
use vm_memory::{Bytes as _, VolatileMemory as _};

use crate::mapping::PAGE;
use crate::remote::Waker;

/// Pages of one file are had in pieces of this many bytes, because a file that grows keeps away whoever wants to give
/// pages of it back.
const PIECE: u64 = 128 << 10;

/// What somebody asks for.
struct Work<W> {
    who: W,
    memory: Vec<DmaMemory>,
}

/// Those whose memory is there, or could not be had.
type Done<W> = Mutex<Vec<(W, bool)>>;

/// A thread that touches pages for those that `W` names: moves, or VMs. It ends with this.
#[derive(Debug)]
pub(crate) struct Populator<W> {
    work: Sender<Work<W>>,
    done: Arc<Done<W>>,
    /// Bytes that it has still to touch.
    under_way: Arc<AtomicU64>,
}

impl<W: Debug + Send + 'static> Populator<W> {
    /// Starts the thread; `waker` wakes the event loop, which asks for [`Populator::take_done`]. `under_way` is what all such threads
    /// have still to touch, in bytes.
    pub(crate) fn start(waker: Arc<Waker>, under_way: Arc<AtomicU64>) -> io::Result<Self> {
        let (work, ordered) = channel::<Work<W>>();
        let done = Arc::new(Done::default());
        let (told, counted) = (done.clone(), under_way.clone());
        threads::spawn(ThreadKind::Populator, "populator".into(), move || {
            for Work { who, memory } in ordered {
                let had = memory.iter().try_for_each(populate);
                if let Err(error) = &had {
                    log::warn!("cannot have memory ready for {who:?}: {error}");
                }
                counted.fetch_sub(bytes_of(&memory), Relaxed);
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((who, had.is_ok()));
                waker.wake();
            }
        })?;
        Ok(Self {
            work,
            done,
            under_way,
        })
    }

    /// Has the memory ready; never waits. `false` if the thread is gone: then the pages are touched by who writes them.
    pub(crate) fn populate(&self, who: W, memory: Vec<DmaMemory>) -> bool {
        let bytes = bytes_of(&memory);
        self.under_way.fetch_add(bytes, Relaxed);
        let is_sent = self.work.send(Work { who, memory }).is_ok();
        if !is_sent {
            self.under_way.fetch_sub(bytes, Relaxed);
        }
        is_sent
    }

    /// What became of it since the last call, by who asked.
    pub(crate) fn take_done(&self) -> Vec<(W, bool)> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes of all runs together.
pub(crate) fn bytes_of(memory: &[DmaMemory]) -> u64 {
    memory.iter().map(|run| run.bytes).sum()
}

/// Has all pages of a run there and mapped. Their bytes stay as they are.
fn populate(memory: &DmaMemory) -> io::Result<()> {
    let mapped = memory.region.as_volatile_slice();
    for start in (0..memory.bytes).step_by(PIECE as usize) {
        let bytes = PIECE.min(memory.bytes - start);
        let at = memory.offset + start;
        if let Some(file) = memory.region.file_offset() {
            // An error here is one that a store would end the process for.
            rustix::fs::fallocate(file.file(), FallocateFlags::KEEP_SIZE, file.start() + at, bytes)?;
        }
        for page in (at..at + bytes).step_by(PAGE as usize) {
            // The mapping is shared, so that a load brings a page that can be stored to.
            mapped.read_obj::<u8>(page as usize).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::mapping::{map_shared, sealed_memfd};

    #[test]
    fn pages_are_there_and_no_byte_changes() {
        let file = Arc::new(sealed_memfd("populated", 4 * PIECE).unwrap());
        let region = map_shared(file.clone(), 0, 4 * PIECE, true).unwrap();
        let memory = |offset, bytes| DmaMemory {
            region: region.clone(),
            offset,
            bytes,
        };
        let at = (PIECE + PAGE) as usize;
        region.as_volatile_slice().write_obj(7_u8, at).unwrap();
        populate(&memory(PIECE, 2 * PIECE + PAGE)).unwrap();
        assert_eq!(file.metadata().unwrap().blocks() * 512, 2 * PIECE + PAGE);
        assert_eq!(region.as_volatile_slice().read_obj::<u8>(at).unwrap(), 7);
        let before = faults();
        (PIECE..3 * PIECE).step_by(PAGE as usize).for_each(|page| {
            region.as_volatile_slice().write_obj(1_u8, page as usize).unwrap();
        });
        let pages = 2 * PIECE / PAGE;
        assert!(
            faults() - before < pages / 8,
            "pages are there, but a store still faults"
        );
    }

    /// Page faults of this thread that no disk was read for (proc_pid_stat(5), `minflt`).
    fn faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let behind_name = text.rsplit(')').next().unwrap();
        behind_name.split_whitespace().nth(7).unwrap().parse().unwrap()
    }
}
