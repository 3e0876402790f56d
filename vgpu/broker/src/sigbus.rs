// UNSAFETY: a client can truncate the file behind its guest RAM at any time; touching the mapping then raises SIGBUS,
// which only a signal handler can survive, and the handler has to put other memory under the faulting access.
#![expect(unsafe_code)]
//! Survives clients that take their RAM away while it is mapped.
//!
//! A [`Guard`] enters a mapping into a table of fixed size. When an access to a guarded mapping raises SIGBUS,
//! the handler puts anonymous zero memory over the **whole** mapping, marks it torn and wakes the broker, which
//! detaches that VM. It replaces the whole mapping because a client that chose which pages fault could
//! otherwise split the mapping until the process runs out of mappings. A mapping of huge pages is whole ones from
//! its first byte to its last ([`crate::mapping::map_client`]), so the kernel replaces it like any other. SIGBUS elsewhere
//! goes to the handler that was installed before.
//!
//! Rules:
//! 1. Slots change only under [`REGISTRY`]'s lock, and their version is odd while they do.
//! 2. The handler takes no lock and allocates nothing. It trusts a slot only if the version was even and the same
//!    before and after it was read. The slot of the mapping that faults cannot change meanwhile: the faulting thread
//!    holds the mapping, and rule 3.
//! 3. A slot is freed only when the guard holds the last reference to its mapping. A guard that is dropped leaves it to the
//!    reaper of its VM's socket, whose thread waits for that moment and unmaps: the last mapping of a client's memory may free
//!    all of its pages, which takes long and is nobody else's business.
//!
//! A VM has a number of mappings of its own ([`MapOwner`]), and one counts until it is unmapped. No `munmap` fails: it takes
//! away a whole mapping, so it never adds one to those of the process.

use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, Once, PoisonError};

use vfio_user_server::{Leftover, Reaper};
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use crate::mapping::MapError;
use crate::perform::VMS_MAX;

/// Mappings of one VM: those of its files, or of parts of large ones, and some that it has given up and that are still to be unmapped. A VM that
/// gives mappings up faster than they are unmapped, which frees its own memory, is refused further ones until then. All VMs' are well below those that
/// a process may have (65,530 by default).
pub(crate) const MAPPINGS_MAX: usize = 512 + 64;

/// Bytes of these mappings. The addresses of a process, 128 TiB, are more than all VMs may take.
pub(crate) const MAPPED_BYTES_MAX: u64 = 3 << 39;

const _: () = assert!(MAPPED_BYTES_MAX * VMS_MAX as u64 <= 100 << 40);

/// Guarded mappings of the process: as many as all VMs together may have.
pub(crate) const GUARDS_MAX: usize = MAPPINGS_MAX * VMS_MAX as usize;

struct Slot {
    version: AtomicU32,
    /// First byte; 0 if the slot is free.
    start: AtomicUsize,
    bytes: AtomicUsize,
    prot: AtomicI32,
    /// Eventfd to write when the mapping tears.
    notify: AtomicI32,
    torn: AtomicBool,
}

static SLOTS: [Slot; GUARDS_MAX] = [const {
    Slot {
        version: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        prot: AtomicI32::new(0),
        notify: AtomicI32::new(0),
        torn: AtomicBool::new(false),
    }
}; GUARDS_MAX];

/// One past the highest slot ever used, so that the handler need not search all.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// The former handler of SIGBUS; written once, before ours is installed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Slots that are free below [`SLOTS_USED`].
static REGISTRY: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Whose mappings they are.
#[derive(Clone, Debug)]
pub struct MapOwner {
    /// Written when memory was taken away.
    torn: Arc<EventFd>,
    /// Its thread unmaps when nobody uses a mapping any more.
    reaper: Reaper,
    /// Mappings there are, those included that are still to be unmapped.
    mapped: Arc<AtomicUsize>,
    /// Bytes of the mappings that `mapped` counts.
    bytes: Arc<AtomicU64>,
}

impl MapOwner {
    /// An owner without mappings. `torn` is written when memory of one is taken away; `reaper` unmaps.
    pub fn new(torn: Arc<EventFd>, reaper: Reaper) -> Self {
        Self {
            torn,
            reaper,
            mapped: Arc::default(),
            bytes: Arc::default(),
        }
    }

    /// Bytes that are mapped.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Counts one more of so many bytes, if there may be one.
    fn count(&self, bytes: u64) -> Result<(), MapError> {
        let next = |mapped| (mapped < MAPPINGS_MAX).then_some(mapped + 1);
        let counted = self.mapped.fetch_update(SeqCst, SeqCst, next);
        counted.map_err(|_| MapError::TooManyMaps)?;
        let more = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= MAPPED_BYTES_MAX);
        if self.bytes.fetch_update(SeqCst, SeqCst, more).is_err() {
            self.mapped.fetch_sub(1, SeqCst);
            return Err(MapError::TooManyBytes);
        }
        Ok(())
    }

    /// One of so many bytes is gone.
    fn uncount(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, SeqCst);
        self.mapped.fetch_sub(1, SeqCst);
    }
}

/// The memory that a slot points at, kept alive as long as the slot is taken.
#[derive(Debug)]
struct Held {
    slot: usize,
    /// `None` once it is unmapped.
    region: Option<Arc<MmapRegion>>,
    owner: MapOwner,
}

/// A mapping whose loss is survived.
#[derive(Debug)]
pub(crate) struct Guard {
    held: Option<Held>,
    slot: usize,
}

impl Guard {
    /// Guards `region`, a mapping of its owner's. The first call of a process installs the handler.
    pub(crate) fn new(region: Arc<MmapRegion>, owner: &MapOwner) -> Result<Self, MapError> {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let bytes = region.size() as u64;
        owner.count(bytes)?;
        let mut free = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = take_slot(&mut free) else {
            owner.uncount(bytes);
            return Err(MapError::TooManyGuards);
        };
        set_slot(
            slot,
            region.as_ptr() as usize,
            region.size(),
            region.prot(),
            owner.torn.as_raw_fd(),
        );
        drop(free);
        Ok(Self {
            held: Some(Held {
                slot,
                region: Some(region),
                owner: owner.clone(),
            }),
            slot,
        })
    }

    /// Whether the client took the memory away. The mapping shows zeros since.
    pub(crate) fn is_torn(&self) -> bool {
        SLOTS[self.slot].torn.load(SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.owner.reaper.clone().leave(held);
        }
    }
}

impl Leftover for Held {
    /// Unmaps, if no other reference to the mapping is left (rule 3).
    fn let_go(&mut self) -> bool {
        // This reference is the only one to copy from once the count is 1, so it stays 1.
        let Some(region) = self.region.take_if(|region| Arc::strong_count(region) == 1) else {
            return false;
        };
        let lock = || REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        let locked = lock();
        set_slot(self.slot, 0, 0, 0, 0);
        drop(locked);
        let bytes = region.size() as u64;
        // Takes as long as it takes; nobody's access is in the mapping, and no new one can begin.
        drop(region);
        lock().push(self.slot);
        self.owner.uncount(bytes);
        true
    }
}

fn take_slot(free: &mut Vec<usize>) -> Option<usize> {
    if let Some(slot) = free.pop() {
        return Some(slot);
    }
    let next = SLOTS_USED.load(SeqCst);
    if next == GUARDS_MAX {
        return None;
    }
    SLOTS_USED.store(next + 1, SeqCst);
    Some(next)
}

fn set_slot(index: usize, start: usize, bytes: usize, prot: i32, notify: i32) {
    let slot = &SLOTS[index];
    slot.version.fetch_add(1, SeqCst);
    slot.start.store(start, SeqCst);
    slot.bytes.store(bytes, SeqCst);
    slot.prot.store(prot, SeqCst);
    slot.notify.store(notify, SeqCst);
    slot.torn.store(false, SeqCst);
    slot.version.fetch_add(1, SeqCst);
}

fn install() {
    // SAFETY: all-zero bytes are a valid `sigaction`: no handler, an empty mask, no flags.
    let mut previous: libc::sigaction = unsafe { zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: both pointers are null or to live values; this reads the present action only.
    unsafe { libc::sigaction(libc::SIGBUS, null(), &mut previous) };
    // Never freed: the handler may need it at any time.
    PREVIOUS.store(Box::into_raw(Box::new(previous)), SeqCst);
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `handle` has the signature that SA_SIGINFO asks for, and calls only what is allowed in a handler.
    unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) };
}

/// Finds the guarded mapping that holds `address`: start, length, protection, eventfd, index.
fn find(address: usize) -> Option<(usize, usize, i32, i32, usize)> {
    let used = SLOTS_USED.load(SeqCst).min(GUARDS_MAX);
    for (index, slot) in SLOTS.iter().enumerate().take(used) {
        let version = slot.version.load(SeqCst);
        let (start, bytes) = (slot.start.load(SeqCst), slot.bytes.load(SeqCst));
        let (prot, notify) = (slot.prot.load(SeqCst), slot.notify.load(SeqCst));
        let is_settled = version.is_multiple_of(2) && slot.version.load(SeqCst) == version;
        if is_settled && start != 0 && address >= start && address - start < bytes {
            return Some((start, bytes, prot, notify, index));
        }
    }
    None
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; for a SIGBUS that it raised itself
    // (`si_code` above 0) `si_addr` is set. errno's location is valid in every thread.
    let (code, address, errno) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            *libc::__errno_location(),
        )
    };
    let found = if code > 0 { find(address) } else { None };
    if let Some((start, bytes, prot, notify, index)) = found {
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the range is one mapping that this process made and still holds (rule 3); replacing its memory is
        // what happens to shared memory anyway: its content is any bytes at any time, and nobody holds a Rust
        // reference into it, only vm-memory's volatile views.
        let mapped = unsafe { libc::mmap(start as *mut libc::c_void, bytes, prot, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            SLOTS[index].torn.store(true, SeqCst);
            let one = 1u64;
            // SAFETY: writes 8 bytes of a live value. The eventfd lives as long as the slot is taken (`Held`); it is
            // non-blocking. A failure leaves the tear to be found at the next look.
            unsafe { libc::write(notify, (&raw const one).cast(), size_of::<u64>()) };
            // SAFETY: as above; interrupted code must not see our errno.
            unsafe { *libc::__errno_location() = errno };
            return;
        }
    }
    // Not a guarded mapping: put the former handler back. A fault repeats when we return, a sent signal has
    // to be sent again.
    // SAFETY: `PREVIOUS` was set before this handler was installed and is never freed; sigaction and raise may be
    // called in handlers.
    unsafe {
        libc::sigaction(signal, PREVIOUS.load(SeqCst), null_mut());
        if code <= 0 {
            libc::raise(signal);
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod huge_tests;
#[cfg(test)]
mod tests;
