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

/// A change of a VM's quota.
pub(super) struct Order {
    pub(super) vm: String,
    pub(super) change: QuotaChange,
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
    let Order { vm, change } = order;
    match ask(socket, &client::change_quota(vm, change)) {
        Ok(changed) => {
            let quota = changed.after;
            Told::Changed(format!(
                "{vm}: min {}, low {}, high {}, max {}, weight {}",
                quota.min, quota.low, quota.high, quota.max, quota.weight
            ))
        }
        Err(why) => Told::Refused(format!("{why:#}")),
    }
}
