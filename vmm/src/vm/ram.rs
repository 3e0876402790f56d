//! Guest RAM: one sealed memfd, mapped here and given to KVM.

// UNSAFETY: creates and seals the memfd through libc, and tells kernel and KVM the address of a mapping of this process.
#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

use fermi_spec::addr::PHYS_BITS;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::VmError;
use crate::pci::MMIO_WINDOW;

/// First address of the part of RAM that has no room below [`MMIO_WINDOW`].
const HIGH_START: u64 = 1 << 32;
/// The first address that a Fermi's page tables cannot name: its GPU would not reach RAM from there on.
const GPU_ADDRESS_END: u64 = 1 << PHYS_BITS;
/// Most RAM of a VM.
pub const RAM_BYTES_MAX: u64 = MMIO_WINDOW.start + (GPU_ADDRESS_END - HIGH_START);

/// The RAM of one VM: one file, from guest-physical address 0 on. The part that does not fit below the MMIO window
/// goes from 4 GiB on.
pub(crate) struct Ram {
    memory: GuestMemoryMmap,
    file: File,
}

/// A range of RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RamRange {
    /// First guest-physical address.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
}

/// The ranges that `bytes` of RAM lie in.
fn ranges(bytes: u64) -> Vec<RamRange> {
    let low = bytes.min(MMIO_WINDOW.start);
    let at = |start, offset, bytes| RamRange { start, bytes, offset };
    let both = [at(0, 0, low), at(HIGH_START, low, bytes - low)];
    both.into_iter().filter(|range| range.bytes > 0).collect()
}

/// The first guest-physical address behind RAM of this many bytes.
pub(crate) fn end_of(bytes: u64) -> u64 {
    ranges(bytes).last().map_or(0, |range| range.start + range.bytes)
}

impl Ram {
    /// Makes `bytes` bytes of zeroes. Nothing is allocated before it is touched.
    pub(crate) fn new(bytes: u64) -> Result<Ram, VmError> {
        let failed = |source| VmError::CreateRam { bytes, source };
        let file = sealed_memfd(bytes).map_err(failed)?;
        let mapped = |range: RamRange| {
            let file = FileOffset::new(file.try_clone()?, range.offset);
            Ok((GuestAddress(range.start), range.bytes as usize, Some(file)))
        };
        let mapped: Result<Vec<_>, _> = ranges(bytes).into_iter().map(mapped).collect();
        let memory = GuestMemoryMmap::from_ranges_with_files(&mapped.map_err(failed)?)
            .map_err(|source| VmError::MapRam { bytes, source })?;
        let ram = Ram { memory, file };
        ram.ask_for_huge_pages();
        Ok(ram)
    }

    /// Asks the host for huge pages, which some hosts give to memory files that ask (`shmem_enabled`): 512 times
    /// fewer faults, here while a kernel is loaded and in KVM while it boots.
    fn ask_for_huge_pages(&self) {
        for slice in self
            .memory
            .iter()
            .filter_map(|region| region.as_volatile_slice().ok())
        {
            // SAFETY: the range is a live mapping of `self.memory`. The advice changes neither content nor protection.
            // Small pages will do as well, so a refusal is ignored.
            unsafe {
                libc::madvise(
                    slice.ptr_guard_mut().as_ptr().cast(),
                    slice.len(),
                    libc::MADV_HUGEPAGE,
                )
            };
        }
    }

    /// Makes it the RAM of `vm`. `self` must outlive all vCPUs of `vm`.
    pub(crate) fn register(&self, vm: &VmFd) -> Result<(), VmError> {
        for (slot, region) in (0..).zip(self.memory.iter()) {
            let userspace_addr = region
                .as_volatile_slice()
                .map(|slice| slice.ptr_guard().as_ptr() as u64);
            let userspace_addr = userspace_addr.map_err(VmError::AddressRam)?;
            let slot = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr,
            };
            // SAFETY: the range is one live mapping, owned by `self.memory`, which `Machine` drops after the vCPUs
            // have been joined. The guest changing it under us is what vm-memory's volatile accesses are for.
            unsafe { vm.set_user_memory_region(slot) }.map_err(VmError::RegisterRam)?;
        }
        Ok(())
    }

    pub(crate) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Its ranges, in the order of their addresses.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = RamRange> {
        self.memory.iter().map(|region| RamRange {
            start: region.start_addr().0,
            bytes: region.len(),
            offset: region.file_offset().map_or(0, FileOffset::start),
        })
    }

    /// The file that holds it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A memfd whose size is fixed for good, so that no process that maps it meets SIGBUS for pages cut off.
fn sealed_memfd(bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a NUL-terminated string; no other memory is passed.
    let fd = unsafe {
        libc::memfd_create(
            c"vramd-guest-ram".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just made by memfd_create and has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: F_ADD_SEALS takes an integer; `file` is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    #[test]
    fn ram_can_neither_shrink_nor_grow() {
        let ram = Ram::new(2 << 20).unwrap();
        assert!(ram.file.set_len(0).is_err());
        assert!(ram.file.set_len(4 << 20).is_err());
    }

    #[test]
    fn ram_that_fits_below_the_window_is_one_range() {
        for bytes in [2 << 20, MMIO_WINDOW.start] {
            let ram = Ram::new(bytes).unwrap();
            let (start, offset) = (0, 0);
            assert_eq!(
                ram.ranges().collect::<Vec<_>>(),
                [RamRange { start, bytes, offset }]
            );
            assert_eq!(end_of(bytes), bytes);
        }
    }

    #[test]
    fn rest_of_large_ram_begins_at_4_gib() {
        use std::os::unix::fs::FileExt;
        let ram = Ram::new(5 << 30).unwrap();
        let found: Vec<_> = ram
            .ranges()
            .map(|range| (range.start, range.bytes, range.offset))
            .collect();
        assert_eq!(found, [(0, 3 << 30, 0), (4 << 30, 2 << 30, 3 << 30)]);
        assert_eq!(end_of(5 << 30), 6 << 30);
        assert_eq!(end_of(RAM_BYTES_MAX), GPU_ADDRESS_END);
        ram.memory().write_slice(b"high", GuestAddress(4 << 30)).unwrap();
        let mut data = [0; 4];
        ram.file.read_exact_at(&mut data, 3 << 30).unwrap();
        assert_eq!(&data, b"high");
        assert!(ram.memory().write_slice(b"none", GuestAddress(3 << 30)).is_err());
    }

    #[test]
    fn ram_is_the_file() {
        use std::os::unix::fs::FileExt;
        let ram = Ram::new(2 << 20).unwrap();
        ram.memory().write_slice(b"abc", GuestAddress(0x1234)).unwrap();
        let mut data = [0; 3];
        ram.file.read_exact_at(&mut data, 0x1234).unwrap();
        assert_eq!(&data, b"abc");
    }
}
