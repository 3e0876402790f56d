//! Whether the broker has started and whether it has ended, for threads that wait for either.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vgpu::Notice;

use crate::error::Ended;

#[derive(Debug, Default)]
struct Locked {
    started: Option<Result<(), String>>,
    ended: Option<Ended>,
}

/// Changed under the broker's lock, waited for without it.
#[derive(Debug, Default)]
pub(crate) struct Status {
    state: Mutex<Locked>,
    changed: Condvar,
}

impl Status {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        // Each field is set in one step, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        let outcome = match notice {
            Notice::Started { .. } => Ok(()),
            Notice::StartFailed { reason } => Err(reason.to_string()),
            _ => return,
        };
        self.lock().started = Some(outcome);
        self.changed.notify_all();
    }

    /// The first reason stays.
    pub(crate) fn end(&self, reason: &str) {
        self.lock().ended.get_or_insert(Ended {
            reason: reason.to_owned(),
        });
        self.changed.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.lock().ended.clone()
    }

    /// Waits until the card is up. `None` if it is not within `timeout`.
    pub(crate) fn wait_started(&self, timeout: Duration) -> Option<Result<(), String>> {
        self.wait(timeout, |state| {
            let ended = state.ended.as_ref().map(|ended| Err(ended.reason.clone()));
            state.started.clone().or(ended)
        })
    }

    /// Waits until the broker has ended. `None` if it has not within `timeout`.
    pub(crate) fn wait_ended(&self, timeout: Duration) -> Option<Ended> {
        self.wait(timeout, |state| state.ended.clone())
    }

    fn wait<T>(&self, timeout: Duration, done: impl Fn(&Locked) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(result) = done(&state) {
                return Some(result);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
