// UNSAFETY: replaces pages within a mapping, which no safe interface offers.
#![expect(unsafe_code)]
//! Shows pages of one file within the mapping of another.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use rustix::io::Errno;
use vm_memory::MmapRegion;

use crate::mapping::PAGE;

/// Shows the `bytes` bytes at `offset` of `file` at `at` of `region` from now on. All three are whole pages.
///
/// After an error the region is as before: the kernel counts mappings before it takes one away.
pub fn show(region: &MmapRegion, at: u64, bytes: u64, file: &File, offset: u64) -> io::Result<()> {
    let end = at.checked_add(bytes);
    let is_inside = end.is_some_and(|end| end <= region.size() as u64);
    let is_whole = [at, bytes, offset]
        .into_iter()
        .all(|value| value.is_multiple_of(PAGE));
    let (true, true, Ok(position)) = (is_inside, is_whole && bytes != 0, libc::off_t::try_from(offset))
    else {
        return Err(Errno::INVAL.into());
    };
    let start = region.as_ptr().wrapping_add(at as usize);
    // SAFETY: the pages lie in a shared mapping that `region` owns (checked above) and stay mapped, so nothing that holds
    // the region can reach an unmapped page. Other bytes appear under it, which is what shared memory may do at any
    // time: the region is reached through vm-memory's volatile views only, and no Rust reference points into it.
    let shown = unsafe {
        libc::mmap(
            start.cast(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
            file.as_raw_fd(),
            position,
        )
    };
    if shown == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
