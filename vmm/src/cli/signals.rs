//! SIGINT and SIGTERM ask the program to end; whoever waits looks at [`is_stop_requested`] now and then.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use libc::{SIGINT, SIGTERM, c_int, c_void, siginfo_t};
use vmm_sys_util::signal::register_signal_handler;

static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Called by the kernel between any two instructions: a store is all that is allowed here.
extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    IS_STOP_REQUESTED.store(true, Ordering::SeqCst);
}

/// From now on the signals end nothing by themselves.
pub(super) fn install() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        register_signal_handler(signal, on_signal)
            .with_context(|| format!("cannot install the handler of signal {signal}"))?;
    }
    Ok(())
}

/// Whether one came.
pub(super) fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Ordering::SeqCst)
}
