//! Guest RAM: one sealed memfd, mapped here and given to KVM.

// UNSAFETY: creates and seals the memfd through libc, and tells KVM the address of a mapping of this process.
#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::VmError;

/// The RAM of one VM, from guest-physical address 0 on.
pub(crate) struct Ram {
    memory: GuestMemoryMmap,
    file: File,
    bytes: u64,
}

impl Ram {
    /// Makes `bytes` bytes of zeroes. Nothing is allocated before it is touched.
    pub(crate) fn new(bytes: u64) -> Result<Ram, VmError> {
        let failed = |source| VmError::CreateRam { bytes, source };
        let file = sealed_memfd(bytes).map_err(failed)?;
        let mapped = FileOffset::new(file.try_clone().map_err(failed)?, 0);
        let ranges = [(GuestAddress(0), bytes as usize, Some(mapped))];
        let memory = GuestMemoryMmap::from_ranges_with_files(&ranges)
            .map_err(|source| VmError::MapRam { bytes, source })?;
        Ok(Ram { memory, file, bytes })
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

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file that holds it, from offset 0 on.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A memfd whose size is fixed for good, so whoever maps it never meets SIGBUS for pages cut off.
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
    // SAFETY: `fd` was just made by memfd_create and nobody else has it.
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
    fn ram_is_the_file() {
        use std::os::unix::fs::FileExt;
        let ram = Ram::new(2 << 20).unwrap();
        ram.memory().write_slice(b"abc", GuestAddress(0x1234)).unwrap();
        let mut data = [0; 3];
        ram.file.read_exact_at(&mut data, 0x1234).unwrap();
        assert_eq!(&data, b"abc");
    }
}
