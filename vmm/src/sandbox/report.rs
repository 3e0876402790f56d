//! The end of a process after a forbidden system call: one line that names the call.

// UNSAFETY: reads, in a signal handler, the part of siginfo_t that libc has no name for, and ends the process by _exit.
#![expect(unsafe_code)]

use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::OnceLock;

use libc::{SIGSYS, c_int, c_void, siginfo_t};
use syscalls::Sysno;
use vmm_sys_util::signal::register_signal_handler;

/// Exit status of a process that made a forbidden system call.
pub(super) const EXIT_STATUS: u8 = 4;
/// `si_code` of a filter's signal (Linux include/uapi/asm-generic/siginfo.h).
const SYS_SECCOMP: c_int = 1;
/// Bytes of the longest line.
const LINE_BYTES_MAX: usize = 256;

thread_local! {
    /// Name of the filter that the thread runs under. Reading it in a signal handler allocates
    /// nothing and runs nothing.
    static ROLE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Name of the filter of threads that took none of their own: "main" unless it was set. Reading it waits for nobody.
static ROLE_OF_PROCESS: OnceLock<&'static str> = OnceLock::new();

/// `siginfo_t` as a filter fills it in (same source: `_sigsys`), on 64-bit machines.
#[repr(C)]
struct ForbiddenCall {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _padding: c_int,
    address: *const c_void,
    number: c_int,
    architecture: u32,
}

const _: () = assert!(size_of::<ForbiddenCall>() <= size_of::<siginfo_t>());

/// Installs the handler that reports a forbidden call.
pub(super) fn install() -> Result<(), vmm_sys_util::errno::Error> {
    register_signal_handler(SIGSYS, on_forbidden)
}

/// Name of the calling thread in the line.
pub(super) fn set_role(role: &'static str) {
    ROLE.set(Some(role));
}

/// Name in the line of all threads that have none of their own. The first call counts.
pub(super) fn set_role_of_process(role: &'static str) {
    ROLE_OF_PROCESS.get_or_init(|| role);
}

/// Runs on the thread that made the call, at any place: it takes no lock and no memory, and makes only calls
/// that every filter allows.
extern "C" fn on_forbidden(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands a handler that was installed with SA_SIGINFO a siginfo_t of its own making, which is as
    // large as a `ForbiddenCall` and aligned for it; all bit patterns of the fields read are values.
    let call = unsafe { &*info.cast::<ForbiddenCall>() };
    let mut line = [0; LINE_BYTES_MAX];
    let mut rest = line.as_mut_slice();
    let role = ROLE.get().or(ROLE_OF_PROCESS.get().copied()).unwrap_or("main");
    let name = usize::try_from(call.number).ok().and_then(Sysno::new);
    let name = name.map_or("an unknown system call", |call| call.name());
    let number = call.number;
    // A line that is cut off is better than no line.
    let _ = if call.code == SYS_SECCOMP {
        writeln!(
            rest,
            "vramd: a thread of kind {role} made the forbidden system call {name} ({number}) and the process was ended"
        )
    } else {
        writeln!(rest, "vramd: ended by a signal SIGSYS from outside")
    };
    let left = rest.len();
    let written = &line[..LINE_BYTES_MAX - left];
    // If stderr is closed there is nowhere to report to.
    let _ = rustix::io::write(std::io::stderr().as_fd(), written);
    // SAFETY: _exit may be called anywhere, and does not return.
    unsafe { libc::_exit(EXIT_STATUS.into()) }
}
