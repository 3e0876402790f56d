//! The thread that asks the broker, so that keys are answered while it is slow, or gone.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use control::{GoneGpu, Gpu, Gpus, Vm, Vms, client};

use super::model::{Order, Wish};
use crate::cli::holds::hold_words;
use crate::control::ask;

/// What the thread tells.
pub(super) enum Told {
    /// Cards and VMs at a moment.
    Picture {
        gpus: Vec<Gpu>,
        vms: Vec<Vm>,
        gone: Vec<GoneGpu>,
        at: Instant,
    },
    /// The broker was not heard, for this reason.
    Silence(String),
    /// A change was made.
    Changed(String),
    /// A change was not made, for this reason.
    Refused(String),
}

/// Asks each `interval`, and after each change, until nobody listens.
pub(super) fn run(socket: &Path, interval: Duration, orders: &Receiver<Order>, tell: &Sender<Told>) {
    loop {
        if tell.send(picture(socket)).is_err() {
            return;
        }
        let told = match orders.recv_timeout(interval) {
            Ok(order) => change(socket, &order),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if tell.send(told).is_err() {
            return;
        }
    }
}

fn picture(socket: &Path) -> Told {
    let asked = || {
        let Gpus { gpus, gone } = ask(socket, &client::gpus())?;
        let Vms { vms, .. } = ask(socket, &client::vms())?;
        let at = Instant::now();
        anyhow::Ok(Told::Picture { gpus, vms, gone, at })
    };
    asked().unwrap_or_else(|why| Told::Silence(format!("{why:#}")))
}

fn change(socket: &Path, order: &Order) -> Told {
    let Order { vm, wish } = order;
    let done = match wish {
        Wish::Quota(change) => ask(socket, &client::change_quota(vm, change)).map(|changed| {
            let quota = changed.after;
            format!(
                "min {}, low {}, high {}, max {}, weight {}",
                quota.min, quota.low, quota.high, quota.max, quota.weight
            )
        }),
        Wish::Freeze | Wish::Thaw => {
            let call = match wish {
                Wish::Freeze => client::freeze(vm),
                _ => client::thaw(vm),
            };
            let words = |hold| hold_words(&hold).unwrap_or_else(|| "not held".to_owned());
            ask(socket, &call).map(|changed| words(changed.after))
        }
    };
    match done {
        Ok(text) => Told::Changed(format!("{vm}: {text}")),
        Err(why) => Told::Refused(format!("{why:#}")),
    }
}
