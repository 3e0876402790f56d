//! Huge pages that a client takes away, or never had: the kernel replaces and unmaps them by whole ones only.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use vm_memory::{Bytes, VolatileMemory};
use vmm_sys_util::eventfd::EFD_NONBLOCK;

use super::*;
use crate::mapping::{PAGE, punch_hole};
use crate::memory::FileMap;

const HUGE: u64 = 2 << 20;

/// Two huge pages, reserved by nobody.
fn client_file() -> Option<Arc<File>> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    match memfd_create("client", flags) {
        Ok(fd) => {
            let file = File::from(fd);
            file.set_len(2 * HUGE).unwrap();
            Some(Arc::new(file))
        }
        Err(error) => {
            eprintln!("SKIPPED: this kernel has no memory files of huge pages: {error}");
            None
        }
    }
}

fn map(file: &Arc<File>, offset: u64, bytes: u64) -> FileMap {
    let torn = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let owner = MapOwner::new(torn, Reaper::start().unwrap());
    FileMap::new(file.clone(), offset, bytes, true, &owner).unwrap()
}

/// Stores at a place of the file.
fn store(map: &FileMap, offset: u64, data: &[u8]) {
    let memory = map.part(offset, data.len() as u64).unwrap();
    let slice = memory.region.as_volatile_slice();
    slice.write_slice(data, memory.offset as usize).unwrap();
}

fn load(map: &FileMap, offset: u64) -> u8 {
    let memory = map.part(offset, 1).unwrap();
    let mut data = [0];
    let slice = memory.region.as_volatile_slice();
    slice.read_slice(&mut data, memory.offset as usize).unwrap();
    data[0]
}

/// Mappings of this process that show a file of this name.
fn mappings_of(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn pages_that_nobody_reserved_are_survived_and_unmapped() {
    let Some(file) = client_file() else { return };
    let pool = Pool::lock();
    let has_pages = || pool.as_ref().is_some_and(|pool| pool.pages() > 0);
    // Ten times, in every length and place that a VMM may ask for: a mapping that stays behind would show.
    for (offset, bytes) in [(0, PAGE), (HUGE - PAGE, 2 * PAGE), (0, 2 * HUGE), (PAGE, HUGE)].repeat(10) {
        let map = map(&file, offset, bytes);
        store(&map, offset + bytes - 16, &[1; 16]);
        assert_eq!(load(&map, offset + bytes - 1), 1);
        assert!(map.is_torn() || has_pages());
        drop(map);
        super::tests::wait_until(|| mappings_of("memfd:client") == 0);
    }
    super::tests::wait_until(|| Arc::strong_count(&file) == 1);
}

/// The number of huge pages of the host's default size.
const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// The host's huge pages, of which it has as many as before when this goes.
///
/// All processes share them: no other test that asks for this has or uses them meanwhile.
struct Pool {
    file: File,
    before: u64,
}

impl Pool {
    fn lock() -> Option<Self> {
        let file = File::open(POOL).ok()?;
        file.lock().ok()?;
        let mut pool = Self { file, before: 0 };
        pool.before = pool.pages();
        Some(pool)
    }

    fn pages(&self) -> u64 {
        let mut text = [0; 32];
        let length = self.file.read_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text[..length]).trim().parse().unwrap()
    }

    /// Whether the host found so many more.
    fn grow(&self, by: u64) -> bool {
        let wanted = self.before + by;
        std::fs::write(POOL, wanted.to_string()).is_ok() && self.pages() == wanted
    }

    /// Pages that a file has are its until it gives them back, and then they are nobody's.
    fn shrink(&self) {
        let _ = std::fs::write(POOL, self.before.to_string());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shrink();
    }
}

#[test]
fn reserved_pages_work_until_they_are_punched_or_cut() {
    let Some(file) = client_file() else { return };
    let Some(pool) = Pool::lock() else {
        eprintln!("SKIPPED: this host has no pool of huge pages");
        return;
    };
    // The file's own from the start: a page of the pool would be whoever's asks first.
    if !pool.grow(2) || fallocate(&file, FallocateFlags::empty(), 0, 2 * HUGE).is_err() {
        eprintln!("SKIPPED: no huge pages are to be had here");
        return;
    }
    // Not on any boundary of huge pages, as the parts of QEMU's RAM below 4 GiB.
    let (low, high) = (map(&file, 0, 0xa0 * PAGE), map(&file, HUGE - PAGE, 2 * PAGE));
    store(&low, 0x9f * PAGE, &[7]);
    store(&high, HUGE - PAGE, &[8; 2 * PAGE as usize]);
    assert_eq!((load(&low, 0x9f * PAGE), load(&high, HUGE)), (7, 8));
    let mut seen = [0; 2];
    file_bytes(&file, HUGE - 1, &mut seen);
    assert_eq!(seen, [8, 8], "the client sees other bytes");
    assert!(!low.is_torn() && !high.is_torn());

    pool.shrink();
    punch_hole(&file, 0, 2 * HUGE).unwrap();
    assert_eq!((load(&low, 0), load(&high, HUGE)), (0, 0));
    // What was punched comes back only from a pool that has pages of its own.
    assert!(low.is_torn() && high.is_torn() || pool.before > 0);
    file.set_len(0).unwrap();
    drop((low, high));
    super::tests::wait_until(|| mappings_of("memfd:client") == 0 && Arc::strong_count(&file) == 1);
}

fn file_bytes(file: &File, at: u64, bytes: &mut [u8]) {
    file.read_exact_at(bytes, at).unwrap();
}
