//! Signals a client's interrupt from a thread of its own.
//!
//! A signal never waits ([`IrqEvent::signal`]), but it wakes everybody whom the client has let wait for its eventfd, in the
//! time of the thread that signals. Here that is nobody else's time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vfio_user_server::irq::IrqEvent;
use vfio_user_server::threads::{self, ThreadKind};

#[derive(Debug, Default)]
struct Locked {
    event: Option<Arc<IrqEvent>>,
    /// The guest's settings let interrupts out.
    is_enabled: bool,
    /// Raised and not signalled. One is kept: an MSI is an edge, and the guest looks at all causes after each.
    is_raised: bool,
    is_stopping: bool,
}

impl Locked {
    fn is_due(&self) -> bool {
        self.is_raised && self.is_enabled && self.event.is_some()
    }
}

/// The thread of one socket, for all clients that it has.
#[derive(Debug, Default)]
pub(crate) struct Signaller {
    state: Mutex<Locked>,
    changed: Condvar,
}

impl Signaller {
    /// Starts the thread. It is never waited for.
    pub(crate) fn start(name: &str) -> std::io::Result<Arc<Self>> {
        let signaller = Arc::new(Self::default());
        let worker = signaller.clone();
        threads::spawn(ThreadKind::Signaller, format!("irq {name}"), move || {
            worker.work()
        })?;
        Ok(signaller)
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        // Single assignments: a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Locked)) {
        let mut state = self.lock();
        change(&mut state);
        if state.is_due() || state.is_stopping {
            self.changed.notify_one();
        }
    }

    pub(crate) fn raise(&self) {
        self.change(|state| state.is_raised = true);
    }

    /// Sets the eventfd to signal from now on; `None` for none.
    pub(crate) fn connect(&self, event: Option<IrqEvent>) {
        self.change(|state| state.event = event.map(Arc::new));
    }

    pub(crate) fn enable(&self, is_enabled: bool) {
        self.change(|state| state.is_enabled = is_enabled);
    }

    /// Ends the signals of a client that is gone.
    pub(crate) fn clear(&self) {
        self.change(|state| {
            *state = Locked {
                is_stopping: state.is_stopping,
                ..Locked::default()
            }
        });
    }

    pub(crate) fn stop(&self) {
        self.change(|state| state.is_stopping = true);
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.is_stopping {
            let event = state.event.clone().filter(|_| state.is_due());
            let Some(event) = event else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.is_raised = false;
            drop(state);
            // A client that closed its end, or gave another kind of file, gets no interrupts.
            let _ = event.signal();
            state = self.lock();
        }
    }
}
