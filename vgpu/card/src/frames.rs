//! Where the bytes of VRAM frames lie: one memory file for each owner (law 1 of docs/architecture.md).
//!
//! A frame of a VM that sees it at guest address `at` lies at offset `at` of that VM's file, one of the broker at
//! its own card address in the broker's file. A frame that leaves its owner has its pages in that owner's file cleared or taken
//! out; a file is closed when its last frame leaves. So each file holds one owner's bytes, and a frame that arrives in a file
//! is zero.
//!
//! ```text
//! frame ─leaves─► Dirty ─thread─► Clean ─a frame comes back─► frame
//!                   └───────────────┴─ pages of more places are kept than KEPT_PART allows ─thread─► taken out
//! ```
//!
//! A chunk that comes back to VRAM comes to the place that it left, and to touch new pages takes several times as long as to clear old
//! ones. So the pages of places that were left last stay, cleared.
//!
//! To clear pages or to take them out takes time for each of them, and a VM that ends or is reset gives up all of its frames at once,
//! while everybody waits. So a thread does it ([`Reaper`]). The frame's next owner sees other pages, those of its own file; only where
//! a frame comes back to the same place of the same file before its turn was, its pages are cleared there and then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fermi_model::Backing;
use fermi_spec::addr::{FRAME, FrameNo};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vfio_user_server::{Leftover, Reaper};
use vgpu::{DmaMemory, FrameOwner, VmId};
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

/// A file is mapped in parts of this many bytes.
const WINDOW_BYTES: u64 = 64 << 20;
/// The part of a card's VRAM for which pages of left places are kept: one in so many frames.
const KEPT_PART: usize = 4;
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
    /// Places that frames have left, with their pages still there. Locked while those of one are worked at.
    left: Arc<Left>,
}

/// Places of a file that frames have left, and whether their pages are zero already.
type Left = Mutex<BTreeMap<u64, Pages>>;

/// The pages of a place that a frame has left: clean ones are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pages {
    /// With the last owner's bytes.
    Dirty,
    Clean,
}

fn lock(left: &Left) -> MutexGuard<'_, BTreeMap<u64, Pages>> {
    // Single insertions and removals: a panic leaves nothing half done.
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears the pages of a place if it is one that a frame has left dirty.
fn clear(region: &MmapRegion, left: &mut BTreeMap<u64, Pages>, at: u64) -> Result<(), FrameError> {
    static ZEROES: [u8; 4096] = [0; 4096];
    let Some(pages) = left.get_mut(&at).filter(|pages| **pages == Pages::Dirty) else {
        return Ok(());
    };
    let place = region.get_slice((at % WINDOW_BYTES) as usize, FRAME as usize);
    let place = place.map_err(|_| FrameError::BadPlace { at })?;
    for page in (0..FRAME as usize).step_by(ZEROES.len()) {
        let cleared = place.write_slice(&ZEROES, page);
        cleared.map_err(|_| FrameError::BadPlace { at })?;
    }
    *pages = Pages::Clean;
    Ok(())
}

/// Takes the pages of a place out of a file, if it is still one that a frame has left.
fn take_out(file: &File, left: &mut BTreeMap<u64, Pages>, at: u64) -> Result<(), FrameError> {
    if left.contains_key(&at) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let taken = rustix::fs::fallocate(file, flags, at, FRAME);
        taken.map_err(|error| cannot("take pages out of a memory file")(error.into()))?;
        left.remove(&at);
    }
    Ok(())
}

/// What the reaper is to do with a place.
enum Work {
    Clear(Arc<MmapRegion>),
    TakeOut(Arc<File>),
}

/// A frame's place with work for the reaper, if it is still one that a frame has left.
struct LeftPlace {
    work: Work,
    left: Arc<Left>,
    at: u64,
}

impl Leftover for LeftPlace {
    fn let_go(&mut self) -> bool {
        let mut left = lock(&self.left);
        let done = match &self.work {
            Work::Clear(region) => clear(region, &mut left, self.at),
            Work::TakeOut(file) => take_out(file, &mut left, self.at),
        };
        if let Err(error) = done {
            // A dirty place is cleared before it is used again.
            log::error!("pages of VRAM that a VM has left stay: {error}");
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
        let start = at - at % WINDOW_BYTES;
        let region = match self.windows.get(&start) {
            Some(region) => region.clone(),
            None => self.map(start)?,
        };
        let mut left = lock(&self.left);
        clear(&region, &mut left, at)?;
        left.remove(&at);
        drop(left);
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

    /// A frame leaves: its pages are cleared a little later.
    fn release(&mut self, at: u64, reaper: &Reaper) {
        self.occupied.remove(&at);
        let region = self.windows.get(&(at - at % WINDOW_BYTES));
        // Without any frame the whole file goes.
        if let (Some(region), false) = (region, self.occupied.is_empty()) {
            lock(&self.left).insert(at, Pages::Dirty);
            let (work, left) = (Work::Clear(region.clone()), self.left.clone());
            reaper.leave(LeftPlace { work, left, at });
        }
    }

    /// The pages of a place that was left are given back a little later, or now if `left_max` works wait already.
    fn give_back(&self, at: u64, (reaper, left_max): (&Reaper, usize)) -> Result<(), FrameError> {
        let (file, left) = (self.file.clone(), self.left.clone());
        if reaper.waiting() >= left_max {
            return take_out(&file, &mut lock(&left), at);
        }
        let work = Work::TakeOut(file);
        reaper.leave(LeftPlace { work, left, at });
        Ok(())
    }
}

/// Places that frames have left and whose pages are kept, in the order in which they were left.
#[derive(Debug, Default)]
struct Kept {
    order: BTreeMap<u64, (Owner, u64)>,
    numbers: BTreeMap<(Owner, u64), u64>,
    next: u64,
}

impl Kept {
    /// Adds a place; returns the one that was left first if there are more than `most` now.
    fn add(&mut self, owner: Owner, at: u64, most: usize) -> Option<(Owner, u64)> {
        self.remove(owner, at);
        self.order.insert(self.next, (owner, at));
        self.numbers.insert((owner, at), self.next);
        self.next += 1;
        let (_, &(owner, at)) = self.order.first_key_value()?;
        (self.order.len() > most).then(|| {
            self.remove(owner, at);
            (owner, at)
        })
    }

    fn remove(&mut self, owner: Owner, at: u64) {
        if let Some(number) = self.numbers.remove(&(owner, at)) {
            self.order.remove(&number);
        }
    }

    /// All places of an owner whose file goes.
    fn forget(&mut self, owner: Owner) {
        let places = self.numbers.range((owner, 0)..=(owner, u64::MAX));
        let places: Vec<u64> = places.map(|(&(_, at), _)| at).collect();
        places.into_iter().for_each(|at| self.remove(owner, at));
    }
}

/// All frames of a card.
#[derive(Debug)]
pub(super) struct Frames {
    placed: Vec<Option<(Owner, u64)>>,
    files: BTreeMap<Owner, VramFile>,
    kept: Kept,
    /// About as much waits for it as the card has frames: what is still to be freed is never more than the card's VRAM.
    reaper: Reaper,
}

impl Frames {
    pub(super) fn new(frames: u32) -> io::Result<Self> {
        Ok(Self {
            placed: vec![None; frames as usize],
            files: BTreeMap::new(),
            kept: Kept::default(),
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
        file.release(at, &self.reaper);
        if file.occupied.is_empty() {
            self.kept.forget(owner);
            self.reaper.leave(LeftFile(self.files.remove(&owner)));
            return Ok(());
        }
        self.keep(owner, at)
    }

    /// The pages of a place without a frame stay for now; those of the place that was left first may go for it.
    fn keep(&mut self, owner: Owner, at: u64) -> Result<(), FrameError> {
        let all = self.placed.len();
        let over = self.kept.add(owner, at, all / KEPT_PART);
        match over.and_then(|(owner, at)| Some((self.files.get(&owner)?, at))) {
            // One to clear each, and one to give back.
            Some((file, at)) => file.give_back(at, (&self.reaper, 2 * all)),
            None => Ok(()),
        }
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
        self.kept.remove(owner, at);
        *place = Some((owner, at));
        Ok(Some(backing))
    }

    /// The memory of a VM's frame at this address, or where one is about to come: its pages are kept then as if a frame had left them. `None`
    /// if the VM has no frame at all, or there is no such place.
    pub(super) fn memory(&mut self, vm: VmId, at: u64) -> Option<DmaMemory> {
        let owner = Owner::Vm(vm);
        let is_place = at.is_multiple_of(FRAME) && at < FILE_BYTES_MAX;
        let file = self.files.get_mut(&owner).filter(|_| is_place)?;
        let start = at - at % WINDOW_BYTES;
        let region = match file.windows.get(&start) {
            Some(region) => region.clone(),
            None => file.map(start).ok()?,
        };
        if !file.occupied.contains(&at) {
            lock(&file.left).entry(at).or_insert(Pages::Clean);
            self.keep(owner, at).ok()?;
        }
        Some(DmaMemory {
            region,
            offset: at - start,
            bytes: FRAME,
        })
    }

    /// What lies at a place of a VM's file, whoever left it there.
    #[cfg(test)]
    pub(super) fn peek(&self, vm: VmId, at: u64) -> u64 {
        let region = &self.files[&Owner::Vm(vm)].windows[&(at - at % WINDOW_BYTES)];
        let word = region.as_volatile_slice().read_obj((at % WINDOW_BYTES) as usize);
        word.expect("within the window")
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
    use super::*;
    use fermi_spec::addr::GuestVramAddr;

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
    fn place_where_a_frame_will_come_has_its_pages_before_and_is_zero_for_it() {
        let mut frames = Frames::new(8).unwrap();
        assert!(frames.memory(A, 0).is_none(), "a VM without frames has no file");
        let backing = frames.claim(FrameNo(0), owner(A, 0)).unwrap().unwrap();
        fill(&backing);
        let ready = frames.memory(A, 3 * FRAME).expect("a place");
        let place = ready
            .region
            .get_slice(ready.offset as usize, FRAME as usize)
            .unwrap();
        place.read_obj::<u64>(0).unwrap();
        assert!(frames.memory(A, FRAME + 1).is_none() && frames.memory(A, FILE_BYTES_MAX).is_none());
        // Chunks of one VM change places: its frame lies elsewhere from now on.
        frames.release(FrameNo(0)).unwrap();
        let backing = frames.claim(FrameNo(0), owner(A, 3 * FRAME)).unwrap().unwrap();
        let mut first = [1];
        backing.slice().read_slice(&mut first, 0).unwrap();
        assert_eq!(first, [0]);
        settle(&frames);
    }

    #[test]
    fn places_that_are_made_ready_and_left_are_given_back() {
        let mut frames = Frames::new(8).unwrap();
        fill(&frames.claim(FrameNo(0), owner(A, 0)).unwrap().unwrap());
        for at in 1..20 {
            let ready = frames.memory(A, at * FRAME).expect("a place");
            let place = ready
                .region
                .get_slice(ready.offset as usize, FRAME as usize)
                .unwrap();
            place.write_slice(&[0; FRAME as usize], 0).unwrap();
        }
        settle(&frames);
        let kept = 8 / KEPT_PART as u64;
        assert!(frames.held_bytes(A).unwrap() <= (1 + kept) * FRAME);
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
        let kept = u64::from(count + 1) / KEPT_PART as u64;
        assert_eq!(frames.held_bytes(A), Some(kept * FRAME));
    }

    #[test]
    fn frames_that_left_keep_pages_for_a_part_of_the_card_and_those_left_last() {
        let mut frames = Frames::new(8).unwrap();
        for index in 0..6 {
            let backing = frames.claim(FrameNo(index), owner(A, u64::from(index) * FRAME));
            fill(&backing.unwrap().unwrap());
        }
        assert_eq!(frames.held_bytes(A), Some(6 * FRAME));
        (1..5).for_each(|index| frames.release(FrameNo(index)).unwrap());
        settle(&frames);
        // Two in use, and two of the eight that the card has.
        assert_eq!(frames.held_bytes(A), Some(4 * FRAME));
        // The last two come back to their pages, without a byte of what was there.
        for index in [3, 4] {
            let backing = frames.claim(FrameNo(index), owner(A, u64::from(index) * FRAME));
            let mut bytes = vec![1; FRAME as usize];
            backing
                .unwrap()
                .unwrap()
                .slice()
                .read_slice(&mut bytes, 0)
                .unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        assert_eq!(frames.held_bytes(A), Some(4 * FRAME));
        // What was kept of a file that goes counts no more.
        (0..8).for_each(|index| frames.release(FrameNo(index)).unwrap());
        assert!(frames.kept.order.is_empty() && frames.kept.numbers.is_empty());
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
