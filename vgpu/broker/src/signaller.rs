//! Signals a client's interrupts from a thread of its own.
//!
//! A signal never waits ([`IrqEvent::signal`]), but it wakes everybody whom the client has let wait for its eventfd, in the
//! time of the thread that signals. Here that is nobody else's time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vfio_user_server::irq::IrqEvent;
use vfio_user_server::threads::{self, ThreadKind};
use vgpu::InterruptKind;

/// What a client can be told by an eventfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signalled {
    Msi,
    Intx,
    /// The guest has not rung for some time.
    Quiet,
}

impl From<InterruptKind> for Signalled {
    fn from(kind: InterruptKind) -> Self {
        match kind {
            InterruptKind::Msi => Self::Msi,
            InterruptKind::Intx => Self::Intx,
        }
    }
}

#[derive(Debug, Default)]
struct Signal {
    event: Option<Arc<IrqEvent>>,
    /// Raised and not signalled.
    is_raised: bool,
}

#[derive(Debug, Default)]
struct Locked {
    /// One that is raised without an eventfd is kept: an MSI is an edge, and the guest looks at all causes after each.
    msi: Signal,
    /// The guest's settings let messages out.
    is_enabled: bool,
    /// One that is raised without an eventfd is dropped: INTx is a level, and the core raises it anew when a client unmasks it.
    intx: Signal,
    /// Without an eventfd it is of no use.
    quiet: Signal,
    is_stopping: bool,
}

impl Locked {
    fn of(&mut self, kind: Signalled) -> &mut Signal {
        match kind {
            Signalled::Msi => &mut self.msi,
            Signalled::Intx => &mut self.intx,
            Signalled::Quiet => &mut self.quiet,
        }
    }

    /// The eventfd to be signalled next.
    fn due(&self) -> Option<(Signalled, &Arc<IrqEvent>)> {
        let kinds = [
            (Signalled::Msi, &self.msi, self.is_enabled),
            (Signalled::Intx, &self.intx, true),
            (Signalled::Quiet, &self.quiet, true),
        ];
        let due = kinds
            .into_iter()
            .find(|(_, signal, is_enabled)| signal.is_raised && *is_enabled && signal.event.is_some());
        due.and_then(|(kind, signal, _)| Some((kind, signal.event.as_ref()?)))
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
        if state.due().is_some() || state.is_stopping {
            self.changed.notify_one();
        }
    }

    pub(crate) fn raise(&self, kind: Signalled) {
        self.change(|state| {
            let signal = state.of(kind);
            signal.is_raised = kind == Signalled::Msi || signal.event.is_some();
        });
    }

    /// Sets the eventfd to signal from now on; `None` for none.
    pub(crate) fn connect(&self, kind: Signalled, event: Option<IrqEvent>) {
        self.change(|state| {
            let signal = state.of(kind);
            signal.event = event.map(Arc::new);
            signal.is_raised &= kind == Signalled::Msi || signal.event.is_some();
        });
    }

    /// Whether there is an eventfd to signal.
    pub(crate) fn is_connected(&self, kind: Signalled) -> bool {
        self.lock().of(kind).event.is_some()
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
            let due = state.due().map(|(kind, event)| (kind, event.clone()));
            let Some((kind, event)) = due else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.of(kind).is_raised = false;
            drop(state);
            // A client that closed its end, or gave another kind of file, gets no interrupts.
            let _ = event.signal();
            state = self.lock();
        }
    }
}
