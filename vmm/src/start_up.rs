//! Gives back the memory that only the start of a VM's process needed.
//!
//! A start reads arguments and configuration, compiles filters, sizes BARs and makes tables: it runs through much of the
//! program once. A running VM goes round in a small part of it.

// UNSAFETY: tells the kernel to forget pages of this process, found by walking the loader's list.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::{MADV_DONTNEED, PF_W, PT_LOAD, dl_iterate_phdr, dl_phdr_info, madvise, size_t};

/// Bytes of a page on x86-64.
const PAGE_BYTES: u64 = 4096;

/// Takes the pages of the program and its libraries out of this process. They stay in the page cache, and come back
/// from there when they are touched; pages in use do so at once. To be called once the VM runs.
pub fn release_program() {
    // SAFETY: the callback matches the declared type, and uses no data.
    unsafe { dl_iterate_phdr(Some(release_object), ptr::null_mut()) };
}

/// Handles the program or one library. Returns 0, to be called for the next one.
unsafe extern "C" fn release_object(info: *mut dl_phdr_info, _: size_t, _: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid description, and holds its lock, so that the object and its program headers stay
    // until this function returns.
    let (base, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (info.dlpi_addr, headers)
    };
    for header in headers {
        // Writable segments hold data: variables, and constants that the loader relocated.
        if header.p_type != PT_LOAD || header.p_flags & PF_W != 0 {
            continue;
        }
        let start = base.wrapping_add(header.p_vaddr);
        let end = start.wrapping_add(header.p_memsz) / PAGE_BYTES * PAGE_BYTES;
        let Some(start) = start.checked_next_multiple_of(PAGE_BYTES) else {
            continue;
        };
        if let Some(bytes @ 1..) = end.checked_sub(start) {
            // SAFETY: whole pages of a private mapping of a file that this process may not write, nor has the loader, as
            // all code is position-independent: their bytes are the file's, now and when they are read again.
            // A refusal leaves them where they are.
            unsafe { madvise(start as *mut c_void, bytes as usize, MADV_DONTNEED) };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of this program's text.
    fn text_kib() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap();
        let program = program.to_str().unwrap();
        let mut is_text = false;
        let mut kib = 0;
        for line in maps.lines() {
            if let Some(rss) = line.strip_prefix("Rss:") {
                let rss: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
                kib += if is_text { rss } else { 0 };
            } else if line.split(' ').next().is_some_and(|first| first.contains('-')) {
                is_text = line.contains(" r-xp ") && line.ends_with(program);
            }
        }
        kib
    }

    #[test]
    fn released_program_goes_on_with_less_memory() {
        let before = text_kib();
        release_program();
        let after = text_kib();
        assert!(after < before, "{before} KiB before, {after} KiB after");
        // Constants, and code that has not run yet.
        assert_eq!(
            format!("{:?}", "a b".split(' ').rev().collect::<Vec<_>>()),
            r#"["b", "a"]"#
        );
    }
}
