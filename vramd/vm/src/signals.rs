//! SIGINT and SIGTERM ask the program to end; its loops call [`is_stop_requested`] now and then.
//!
//! Where there is a power switch (`vramd gpu`), SIGUSR1 takes the power away and SIGUSR2 gives it back. Where there is a
//! power button (`vramd run` of an operating system), the first SIGTERM presses it (or SIGRTMIN+4, which `machinectl poweroff` sends), and
//! only a further one ends the program.
//! Where the program has the terminal (`vramd top`, `--watch`) SIGHUP asks it to end, too.
//! To a broker (`vramd serve`) SIGUSR1 says that it is to write what happened last, and SIGHUP that it is to read its file again.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use libc::{SIGHUP, SIGINT, SIGRTMIN, SIGTERM, SIGUSR1, SIGUSR2, c_int, c_void, siginfo_t};
use vmm_sys_util::signal::register_signal_handler;

/// What systemd's machine manager sends to have a machine switched off, counted from the first real-time signal.
const POWER_OFF: c_int = 4;

static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);
static IS_POWER_CUT: AtomicBool = AtomicBool::new(false);
static IS_BUTTON_PRESSED: AtomicBool = AtomicBool::new(false);
static IS_FLIGHT_WANTED: AtomicBool = AtomicBool::new(false);
static IS_RELOAD_WANTED: AtomicBool = AtomicBool::new(false);

/// Called by the kernel between any two instructions: only a store is allowed here.
extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    IS_STOP_REQUESTED.store(true, Ordering::SeqCst);
}

/// Handler of SIGUSR1 and SIGUSR2, with the same restriction.
extern "C" fn on_power_signal(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
    IS_POWER_CUT.store(signal == SIGUSR1, Ordering::SeqCst);
}

/// Handler of SIGTERM as the power button, with the same restriction.
extern "C" fn on_button_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    if IS_BUTTON_PRESSED.swap(true, Ordering::SeqCst) {
        IS_STOP_REQUESTED.store(true, Ordering::SeqCst);
    }
}

/// Handler of SIGUSR1 of a broker, with the same restriction.
extern "C" fn on_flight_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    IS_FLIGHT_WANTED.store(true, Ordering::SeqCst);
}

/// Handler of SIGHUP of a broker, with the same restriction.
extern "C" fn on_reload_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    IS_RELOAD_WANTED.store(true, Ordering::SeqCst);
}

/// Makes SIGINT and SIGTERM set a flag instead of ending the program.
pub fn install() -> anyhow::Result<()> {
    handle([SIGINT, SIGTERM], on_signal)
}

/// Makes SIGHUP do the same, where it means that the terminal is gone.
pub fn install_hangup() -> anyhow::Result<()> {
    handle([SIGHUP], on_signal)
}

/// Makes SIGUSR1 and SIGUSR2 set a flag instead of ending the program.
pub fn install_power_switch() -> anyhow::Result<()> {
    handle([SIGUSR1, SIGUSR2], on_power_signal)
}

/// Makes the first SIGTERM press the power button, or the signal by which `machinectl poweroff` asks for the same.
pub(crate) fn install_power_button() -> anyhow::Result<()> {
    handle([SIGTERM, SIGRTMIN() + POWER_OFF], on_button_signal)
}

/// Makes SIGUSR1 ask for what happened last.
pub fn install_flight_request() -> anyhow::Result<()> {
    handle([SIGUSR1], on_flight_signal)
}

/// Makes SIGHUP ask for the file to be read again.
pub fn install_reload_request() -> anyhow::Result<()> {
    handle([SIGHUP], on_reload_signal)
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn handle<const COUNT: usize>(signals: [c_int; COUNT], handler: Handler) -> anyhow::Result<()> {
    for signal in signals {
        register_signal_handler(signal, handler)
            .with_context(|| format!("cannot install the handler of signal {signal}"))?;
    }
    Ok(())
}

/// Whether SIGINT or SIGTERM asked for the end.
pub fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Ordering::SeqCst)
}

/// Whether SIGUSR1 asked for what happened last since this was called before.
pub fn take_flight_request() -> bool {
    IS_FLIGHT_WANTED.swap(false, Ordering::SeqCst)
}

/// Whether SIGHUP asked for the file to be read again since this was called before.
pub fn take_reload_request() -> bool {
    IS_RELOAD_WANTED.swap(false, Ordering::SeqCst)
}

/// Whether a SIGTERM asked to press the power button.
pub(crate) fn is_button_pressed() -> bool {
    IS_BUTTON_PRESSED.load(Ordering::SeqCst)
}

/// Whether SIGUSR1 came, and no SIGUSR2 after it.
pub fn is_power_cut() -> bool {
    IS_POWER_CUT.load(Ordering::SeqCst)
}
