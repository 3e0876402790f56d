// UNSAFETY: functions of a library are found by name at run time; the compiler knows nothing of them.
//! Shared libraries, opened when the program runs, and their functions.
#![expect(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use anyhow::{Result, anyhow};

/// An open library. It stays open until the program ends, as its functions may be anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
}

impl Library {
    /// Opens the library of that name, where the system keeps libraries.
    pub(crate) fn open(name: &CStr) -> Result<Self> {
        // SAFETY: `name` is a C string. The initialisers of EGL and GBM do nothing but what loading them means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        NonNull::new(handle)
            .map(|handle| Self { handle })
            .ok_or_else(|| anyhow!("cannot open {}: {}", name.to_string_lossy(), last_error()))
    }

    /// The address of a function.
    pub(crate) fn function(self, name: &CStr) -> Result<NonNull<c_void>> {
        // SAFETY: the handle is of an open library, `name` is a C string.
        let at = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(at).ok_or_else(|| anyhow!("no function {}", name.to_string_lossy()))
    }
}

fn last_error() -> String {
    // SAFETY: dlerror takes nothing; its answer is null or a C string that stays until the next call on this thread.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "no reason given".to_owned(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// Waits until a file can be read; `false` when time is up.
pub(crate) fn wait_readable(file: BorrowedFd<'_>, limit: Duration) -> Result<bool> {
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one live entry is looked at and changed.
    let ready = unsafe { libc::poll(&raw mut entry, 1, limit.as_millis() as libc::c_int) };
    match ready {
        0 => Ok(false),
        1 => Ok(entry.revents & libc::POLLIN != 0),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
