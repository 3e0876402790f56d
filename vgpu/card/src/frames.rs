//! Where the bytes of VRAM frames lie: one memory file for each owner (law 1 of docs/architecture.md).
//!
//! A frame of a VM that sees it at guest address `at` lies at offset `at` of that VM's file, one of the broker at
//! its own card address in the broker's file. A frame that leaves its owner has its pages taken out of that owner's
//! file; a file is closed when its last frame leaves. So each file holds one owner's bytes, and a frame that
//! arrives in a file is zero.
//!
//! To take pages out takes time for each of them, and a VM that ends or is reset gives up all of its frames at once, while
//! everybody waits. So a thread does it ([`Reaper`]). The frame's next owner sees other pages, those of its own file; only where a
//! frame comes back to the same place of the same file before its turn was, its pages are taken out there and then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use fermi_model::Backing;
use fermi_spec::addr::{FRAME, FrameNo};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vfio_user_server::{Leftover, Reaper};
use vgpu::{FrameOwner, VmId};
use vm_memory::{FileOffset, MmapRegion};

/// A file is mapped in parts of this many bytes.
const WINDOW_BYTES: u64 = 64 << 20;
/// Guest addresses of VRAM are below this.
const FILE_BYTES_MAX: u64 = 64 << 30;

/// Why a frame has no memory.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the card has no such frame")]
    NoSuchFrame,
    #[error("{at:#x} is not a place for a frame")]
    BadPlace { at: u64 },
    #[error("another frame lies at {at:#x} of the same owner")]
    Occupied { at: u64 },
    #[error("cannot {what}: {source}")]
    File { what: &'static str, source: io::Error },
    #[error("cannot map VRAM: {0}")]
    Map(#[from] vm_memory::mmap::MmapRegionError),
}

fn cannot(what: &'static str) -> impl FnOnce(io::Error) -> FrameError {
    move |source| FrameError::File { what, source }
}

/// Owner of a memory file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Owner {
    Broker,
    Vm(VmId),
}

/// The VRAM of one owner.
#[derive(Debug)]
struct VramFile {
    file: Arc<File>,
    bytes: u64,
    windows: BTreeMap<u64, Arc<MmapRegion>>,
    occupied: BTreeSet<u64>,
    /// Places that frames have left, with their pages still there. Locked while those of one are taken out.
    left: Arc<Mutex<BTreeSet<u64>>>,
}

/// Takes the pages of a frame out of a file, if it is still a place that a frame has left.
fn take_out(file: &File, left: &Mutex<BTreeSet<u64>>, at: u64) -> io::Result<()> {
    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
    if left.contains(&at) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, at, FRAME)?;
        left.remove(&at);
    }
    Ok(())
}

/// A frame's place whose pages the reaper is to take out.
struct LeftPlace {
    file: Arc<File>,
    left: Arc<Mutex<BTreeSet<u64>>>,
    at: u64,
}

impl Leftover for LeftPlace {
    fn let_go(&mut self) -> bool {
        if let Err(error) = take_out(&self.file, &self.left, self.at) {
            // It is tried again before the place is used again.
            log::error!("cannot take pages out of a memory file for VRAM: {error}");
        }
        true
    }
}

/// A file without frames: freed as a whole.
struct LeftFile(Option<VramFile>);

impl Leftover for LeftFile {
    fn let_go(&mut self) -> bool {
        self.0 = None;
        true
    }
}

impl VramFile {
    fn new(owner: Owner) -> Result<Self, FrameError> {
        let name = match owner {
            Owner::Broker => "vramd-vram-broker".to_owned(),
            Owner::Vm(vm) => format!("vramd-vram-{vm}"),
        };
        let create = || -> io::Result<File> {
            let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
            Ok(File::from(fd))
        };
        Ok(Self {
            file: Arc::new(create().map_err(cannot("create a memory file for VRAM"))?),
            bytes: 0,
            windows: BTreeMap::new(),
            occupied: BTreeSet::new(),
            left: Arc::default(),
        })
    }

    fn claim(&mut self, at: u64) -> Result<Backing, FrameError> {
        if self.occupied.contains(&at) {
            return Err(FrameError::Occupied { at });
        }
        take_out(&self.file, &self.left, at).map_err(cannot(TAKE_OUT))?;
        let start = at - at % WINDOW_BYTES;
        let region = match self.windows.get(&start) {
            Some(region) => region.clone(),
            None => self.map(start)?,
        };
        let backing = Backing::new(region, (at - start) as usize, FRAME as usize);
        self.occupied.insert(at);
        backing.ok_or(FrameError::BadPlace { at })
    }

    fn map(&mut self, start: u64) -> Result<Arc<MmapRegion>, FrameError> {
        let end = start + WINDOW_BYTES;
        if end > self.bytes {
            self.file
                .set_len(end)
                .map_err(cannot("grow a memory file for VRAM"))?;
            self.bytes = end;
        }
        let region = Arc::new(MmapRegion::build(
            Some(FileOffset::from_arc(self.file.clone(), start)),
            WINDOW_BYTES as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )?);
        self.windows.insert(start, region.clone());
        Ok(region)
    }

    /// A frame leaves: its pages are taken out a little later, or now if as many as `left_max` wait already.
    fn release(&mut self, at: u64, (reaper, left_max): (&Reaper, usize)) -> Result<(), FrameError> {
        self.occupied.remove(&at);
        let (file, left) = (self.file.clone(), self.left.clone());
        left.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
        if self.occupied.is_empty() {
            // The whole file goes.
            return Ok(());
        }
        if reaper.waiting() >= left_max {
            return take_out(&file, &left, at).map_err(cannot(TAKE_OUT));
        }
        reaper.leave(LeftPlace { file, left, at });
        Ok(())
    }
}

const TAKE_OUT: &str = "take pages out of a memory file";

/// All frames of a card.
#[derive(Debug)]
pub(super) struct Frames {
    placed: Vec<Option<(Owner, u64)>>,
    files: BTreeMap<Owner, VramFile>,
    /// No more places wait for it than the card has frames: what is still to be freed is never more than the card's VRAM.
    reaper: Reaper,
}

impl Frames {
    pub(super) fn new(frames: u32) -> io::Result<Self> {
        Ok(Self {
            placed: vec![None; frames as usize],
            files: BTreeMap::new(),
            reaper: Reaper::start()?,
        })
    }

    /// Takes a frame's bytes away from its owner. The card must no longer reach them.
    pub(super) fn release(&mut self, frame: FrameNo) -> Result<(), FrameError> {
        let place = self
            .placed
            .get_mut(frame.0 as usize)
            .ok_or(FrameError::NoSuchFrame)?;
        let Some((owner, at)) = *place else { return Ok(()) };
        let Some(file) = self.files.get_mut(&owner) else {
            return Ok(());
        };
        *place = None;
        let left_max = self.placed.len();
        file.release(at, (&self.reaper, left_max))?;
        if file.occupied.is_empty() {
            self.reaper.leave(LeftFile(self.files.remove(&owner)));
        }
        Ok(())
    }

    /// Gives a released frame to its new owner: its bytes are in that owner's file from now on, all zero.
    pub(super) fn claim(&mut self, frame: FrameNo, owner: FrameOwner) -> Result<Option<Backing>, FrameError> {
        let (owner, at) = match owner {
            FrameOwner::Free => return Ok(None),
            FrameOwner::Broker => (Owner::Broker, u64::from(frame.0) * FRAME),
            FrameOwner::Vm { vm, at } => (Owner::Vm(vm), at.0),
        };
        let place = self
            .placed
            .get_mut(frame.0 as usize)
            .ok_or(FrameError::NoSuchFrame)?;
        if !at.is_multiple_of(FRAME) || at >= FILE_BYTES_MAX {
            return Err(FrameError::BadPlace { at });
        }
        let file = match self.files.entry(owner) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(VramFile::new(owner)?),
        };
        let backing = file.claim(at)?;
        *place = Some((owner, at));
        Ok(Some(backing))
    }

    /// Host pages that a VM's file holds, in bytes; `None` without a file.
    #[cfg(test)]
    pub(super) fn held_bytes(&self, vm: VmId) -> Option<u64> {
        use std::os::unix::fs::MetadataExt as _;
        let file = self.files.get(&Owner::Vm(vm))?;
        // st_blocks counts 512 bytes each.
        Some(file.file.metadata().ok()?.blocks() * 512)
    }
}

#[cfg(test)]
mod tests {
    use fermi_spec::addr::GuestVramAddr;
    use vm_memory::Bytes;

    use super::*;

    const A: VmId = VmId(1);
    const B: VmId = VmId(2);

    fn owner(vm: VmId, at: u64) -> FrameOwner {
        FrameOwner::Vm {
            vm,
            at: GuestVramAddr(at),
        }
    }

    fn fill(backing: &Backing) {
        backing.slice().write_slice(&[7; FRAME as usize], 0).unwrap();
    }

    /// Everything that was left has been let go of.
    fn settle(frames: &Frames) {
        let start = std::time::Instant::now();
        while !frames.reaper.is_idle() {
            assert!(start.elapsed().as_secs() < 10, "still not");
            std::thread::yield_now();
        }
    }

    #[test]
    fn frame_that_comes_back_to_its_place_is_zero_whoever_was_faster() {
        let mut frames = Frames::new(4).unwrap();
        frames.claim(FrameNo(0), owner(A, 0)).unwrap();
        for _ in 0..1000 {
            let backing = frames.claim(FrameNo(1), owner(A, FRAME)).unwrap().unwrap();
            let mut first = [1];
            backing.slice().read_slice(&mut first, 0).unwrap();
            assert_eq!(first, [0]);
            backing.slice().write_slice(&[7], 0).unwrap();
            frames.release(FrameNo(1)).unwrap();
        }
    }

    #[test]
    fn frames_that_leave_cost_their_caller_no_pages() {
        // Big enough that freeing it is seen beside the calls: 64 MiB of pages, let go of by the other thread alone.
        let count = 512;
        let mut frames = Frames::new(count + 1).unwrap();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        struct Wait(std::sync::mpsc::Receiver<()>);
        impl Leftover for Wait {
            fn let_go(&mut self) -> bool {
                let _ = self.0.recv();
                true
            }
        }
        frames.reaper.leave(Wait(gone));
        for index in 0..count {
            let backing = frames.claim(FrameNo(index), owner(A, u64::from(index) * FRAME));
            fill(&backing.unwrap().unwrap());
        }
        frames
            .claim(FrameNo(count), owner(A, u64::from(count) * FRAME))
            .unwrap();
        (0..count).for_each(|index| frames.release(FrameNo(index)).unwrap());
        // Nothing is freed while the thread waits, so the caller freed nothing.
        assert_eq!(frames.held_bytes(A), Some(u64::from(count) * FRAME));
        drop(go);
        settle(&frames);
        assert_eq!(frames.held_bytes(A), Some(0));
    }

    #[test]
    fn released_frame_leaves_no_page_in_the_old_owners_file() {
        let mut frames = Frames::new(4).unwrap();
        let kept = frames.claim(FrameNo(0), owner(A, 0)).unwrap().unwrap();
        let moved = frames.claim(FrameNo(1), owner(A, FRAME)).unwrap().unwrap();
        fill(&kept);
        fill(&moved);
        assert_eq!(frames.held_bytes(A), Some(2 * FRAME));
        frames.release(FrameNo(1)).unwrap();
        settle(&frames);
        assert_eq!(frames.held_bytes(A), Some(FRAME));
    }

    #[test]
    fn frame_is_zero_for_its_new_owner_and_in_the_old_place() {
        let mut frames = Frames::new(4).unwrap();
        let old = frames.claim(FrameNo(0), owner(A, 0)).unwrap().unwrap();
        frames.claim(FrameNo(1), owner(A, FRAME)).unwrap();
        fill(&old);
        frames.release(FrameNo(0)).unwrap();
        settle(&frames);
        let new = frames.claim(FrameNo(0), owner(B, 3 * FRAME)).unwrap().unwrap();
        let mut bytes = vec![1; 2 * FRAME as usize];
        let (seen, left) = bytes.split_at_mut(FRAME as usize);
        new.slice().read_slice(seen, 0).unwrap();
        old.slice().read_slice(left, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn place_that_is_taken_is_refused() {
        let mut frames = Frames::new(4).unwrap();
        frames.claim(FrameNo(0), owner(A, FRAME)).unwrap();
        let second = frames.claim(FrameNo(1), owner(A, FRAME));
        assert!(matches!(second, Err(FrameError::Occupied { .. })));
        assert!(matches!(
            frames.claim(FrameNo(1), owner(A, 5)),
            Err(FrameError::BadPlace { .. })
        ));
        assert!(matches!(
            frames.claim(FrameNo(4), FrameOwner::Broker),
            Err(FrameError::NoSuchFrame)
        ));
    }

    #[test]
    fn file_goes_with_its_last_frame() {
        let mut frames = Frames::new(4).unwrap();
        frames.claim(FrameNo(2), owner(A, 40 << 30)).unwrap();
        assert_eq!(frames.held_bytes(A), Some(0));
        frames.release(FrameNo(2)).unwrap();
        assert_eq!(frames.held_bytes(A), None);
    }
}
