//! The control API of `serve`: HTTP/1.1 and JSON on a Unix socket, for all cards and VMs of the process.
//!
//! ```text
//!  client ──► connections (who, how many, how long) ──► routes ──question──► event loop of a card's broker
//!                                                          ▲                            │
//!                                                          └────────── answer ──────────┘
//! ```
//!
//! All of it is one thread with a runtime of its own, which no path of a VM goes through. It never takes a broker's lock: what it asks,
//! the broker's event loop does between two events, and a request that waits for it holds nothing. What changes something goes by the
//! keeper, which has it outlast this process. Its filter of system calls lets it
//! talk to clients and no more. It gives way to all other threads of the host (`ThreadKind::niceness`). Decision 0020 says why it is so.

pub(crate) mod answers;
mod ask;
mod classic_text;
mod connections;
mod document;
mod holds;
mod looks;
mod metrics;
mod pace;
mod places;
mod port;
mod routes;
mod within;

use std::collections::BTreeMap;
use std::net;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use anyhow::Context as _;
use broker::Broker;
use card::BoundSocket;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use vfio_user_server::threads::{self, ThreadKind};
use vgpu::Quota;

use crate::keeper::Jobs;
pub(crate) use ask::{ask, ask_text};
use connections::Door;
use port::Port;
pub use within::WithinProcess;

/// Descriptors that all connections may take.
pub(crate) const CONNECTIONS_MAX: usize = connections::CONNECTIONS_MAX + port::PLACES;

/// What `serve` serves.
pub(crate) struct Host {
    /// Cards by the order of the file, each with its name.
    pub(crate) brokers: Vec<(String, Broker)>,
    /// Who makes changes.
    pub(crate) keeper: Jobs,
    places: RwLock<Places>,
}

/// The VMs that have a place, and what the file says, as the keeper last showed it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Each by the name that paths have.
    pub(crate) vms: BTreeMap<String, Place>,
    /// Host RAM of each card of the file, by its name.
    pub(crate) file_host_rams: BTreeMap<String, u64>,
}

/// Where a VM is, and what it was given.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Index of its card among [`Host::brokers`].
    pub(crate) gpu: usize,
    /// Where its VMM connects.
    pub(crate) socket: PathBuf,
    /// The quota that the file, or whoever attached it, gave it.
    pub(crate) first_quota: Quota,
    /// The quota that the file has, if it has the VM.
    pub(crate) file_quota: Option<Quota>,
}

impl Host {
    /// A host of which the keeper has shown nothing yet.
    pub(crate) fn new(brokers: Vec<(String, Broker)>, keeper: Jobs) -> Self {
        Self {
            brokers,
            keeper,
            places: RwLock::default(),
        }
    }

    /// Whoever asks sees these from now on.
    pub(crate) fn show(&self, places: Places) {
        *self.places.write().unwrap_or_else(PoisonError::into_inner) = places;
    }

    /// Where the VM of a name is, if there is one.
    fn place(&self, name: &str) -> Option<Place> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.vms.get(name).cloned()
    }

    /// Names of the VMs that have a place on a card.
    fn vms_of(&self, gpu: &str) -> Vec<String> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let of_card = places
            .vms
            .iter()
            .filter(|(_, place)| self.brokers[place.gpu].0 == gpu);
        of_card.map(|(name, _)| name.clone()).collect()
    }

    /// Host RAM of a card as the file has it.
    fn file_host_ram(&self, gpu: &str) -> Option<u64> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.file_host_rams.get(gpu).copied()
    }
}

/// The running server. Dropping it ends it; what is under way is cut off.
pub(crate) struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Removes the file.
    _socket: BoundSocket,
}

impl Control {
    /// Answers clients of `socket` from now on: root, this process's user, and members of `group`; and scrapers of `metrics`, if there is
    /// such a port.
    pub(crate) fn start(
        socket: BoundSocket,
        group: Option<u32>,
        metrics: Option<net::TcpListener>,
        host: Arc<Host>,
    ) -> anyhow::Result<Self> {
        // Made here, because the thread may make neither descriptors for events nor sockets.
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.context("cannot set up the control API's runtime")?;
        let listener = listener(&runtime, &socket).context("cannot listen for the control API")?;
        let own = rustix::process::geteuid().as_raw();
        let port = metrics.map(|metrics| {
            let _entered = runtime.enter();
            Port::new(metrics, host.clone())
        });
        let port = port
            .transpose()
            .context("cannot listen for scrapers of metrics")?;
        let door = Door::new(listener, own, group, routes::router(host));
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = door.keep() => {}
                    () = keep(port) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = threads::spawn(ThreadKind::Control, "control".into(), run);
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.context("cannot start the control API's thread")?),
            _socket: socket,
        })
    }
}

/// Without a port there is nothing to do, and no end of it either.
async fn keep(port: Option<Port>) {
    match port {
        Some(port) => port.keep().await,
        None => std::future::pending().await,
    }
}

fn listener(runtime: &Runtime, socket: &BoundSocket) -> std::io::Result<UnixListener> {
    let _entered = runtime.enter();
    UnixListener::from_std(socket.try_clone_socket()?)
}

impl Drop for Control {
    fn drop(&mut self) {
        // A thread that has panicked has nobody waiting for this, and has said why.
        self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the control API's thread panicked");
        }
    }
}
