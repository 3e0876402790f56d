//! Getting a vCPU's thread out of KVM_RUN, also if it is just about to enter it.
//!
//! The kick is a signal. Its handler, which runs on the vCPU's own thread, sets `kvm_run.immediate_exit`, so that a
//! KVM_RUN that had not begun when the signal arrived returns at once; one that had is interrupted by the signal
//! itself (Linux Documentation/virt/kvm/api.rst, KVM_RUN and `immediate_exit`).

// UNSAFETY: the signal handler finds its vCPU's `immediate_exit` through a raw pointer in a thread-local variable.
#![expect(unsafe_code)]

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;
use libc::{c_int, c_void, siginfo_t};
use vmm_sys_util::errno;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

thread_local! {
    /// `immediate_exit` of the vCPU that this thread runs; null on any other thread.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// The signal handler of kicks cannot be installed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cannot install the handler of signal {signal}")]
pub struct KickError {
    signal: c_int,
    #[source]
    source: errno::Error,
}

/// Installs the handler, once in a process. Call before the first vCPU starts.
pub(crate) fn prepare_kicks() -> Result<(), KickError> {
    static INSTALLED: OnceLock<Result<(), KickError>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        let signal = SIGRTMIN();
        register_signal_handler(signal, on_kick).map_err(|source| KickError { signal, source })
    })
}

/// Kicks the vCPU that `thread` runs, if it still does.
pub(crate) fn kick<T>(thread: &JoinHandle<T>) {
    // Fails only for a thread that has ended, which needs no kick.
    let _ = thread.kill(SIGRTMIN());
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    let immediate_exit = IMMEDIATE_EXIT.try_with(Cell::get).unwrap_or(ptr::null_mut());
    if !immediate_exit.is_null() {
        // SAFETY: the pointer was stored by `Armed::new` on this thread and is cleared by its drop, before the
        // vCPU's mapping goes; only this thread and the kernel access the byte, and a byte store cannot tear.
        unsafe { immediate_exit.write_volatile(1) };
    }
}

/// While it lives, a kick of the current thread ends the vCPU's current or next KVM_RUN.
pub(crate) struct Armed(());

impl Armed {
    /// A kick for the vCPU that this thread runs; the vCPU must outlive the value.
    pub(crate) fn new(vcpu: &mut VcpuFd) -> Armed {
        let immediate_exit = &raw mut vcpu.get_kvm_run().immediate_exit;
        IMMEDIATE_EXIT.with(|cell| cell.set(immediate_exit));
        Armed(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.with(|cell| cell.set(ptr::null_mut()));
    }
}
