//! The API for a client in the same process, without a socket that others find. For those who try it with any bytes: `integration::fuzz`.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use vfio_user_server::Peer;

use super::connections::serve;
use super::{Host, routes};
use crate::config::HostConfig;
use crate::confinement::files::folder_of;
use crate::host::{HostSetup, start_broker};
use crate::keeper::state::State;
use crate::keeper::{Jobs, Keeper, KeeperSetup, Merged};
use crate::sockets;

/// What answers for the brokers of this process.
pub struct WithinProcess {
    runtime: Runtime,
    router: Router,
    is_over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl WithinProcess {
    /// Answers for the cards and VMs of a host.toml, as they are at a first start. Their sockets are made; what is said is not kept. The
    /// brokers end when this is dropped.
    ///
    /// # Errors
    /// The file is wrong, or the process has no descriptors, memory or threads left for what it asks for.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let file = HostConfig::load(path)?;
        let merged = Merged::of(&file, &State::default());
        let mut brokers = Vec::new();
        for gpu in &file.gpus {
            let vms = file.vms.iter().filter(|vm| vm.gpu == gpu.name);
            let broker = start_broker(HostSetup {
                card: gpu.card.clone(),
                settings: gpu.settings.clone(),
                firmware: None,
                record: None,
                flights: None,
                vms: vms
                    .map(|vm| sockets::bind(vm, None))
                    .collect::<anyhow::Result<_>>()?,
            })?;
            brokers.push((gpu.name.clone(), broker));
        }
        let (keeper, jobs) = Jobs::new();
        let host = Arc::new(Host::new(brokers, keeper));
        let mut keeper = Keeper::new(KeeperSetup {
            host: host.clone(),
            jobs,
            file,
            path: path.to_owned(),
            merged,
            store: None,
            user: None,
            folders: vec![folder_of(path)],
        })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let keep = move || keeper.keep_until(|| until.load(Ordering::SeqCst));
        Ok(Self {
            runtime: Builder::new_current_thread().enable_io().enable_time().build()?,
            router: routes::router(host),
            is_over,
            keeper: Some(
                thread::Builder::new()
                    .spawn(keep)
                    .context("cannot start a thread")?,
            ),
        })
    }

    /// What is answered to a client that sends these bytes and no more, and is gone after `patience`: all bytes until the connection is
    /// closed.
    ///
    /// # Errors
    /// The process has no descriptors left for a connection.
    pub fn answer(&self, sent: &[u8], patience: Duration) -> std::io::Result<Vec<u8>> {
        self.runtime.block_on(async {
            let (mut client, server) = UnixStream::pair()?;
            let peer = Peer::of(&server)?;
            let served = serve(server, Some(peer), self.router.clone());
            let asked = async move {
                let mut answer = Vec::new();
                // Whoever is answered before he has said all is reset.
                let _ = client.write_all(sent).await;
                let _ = timeout(patience, client.read_to_end(&mut answer)).await;
                answer
            };
            let (mut served, mut asked) = (pin!(served), pin!(asked));
            // A question that waits for something is given up with its client: a server that has more bytes to read than its question does
            // not see that the client has gone.
            let answer = tokio::select! {
                answer = &mut asked => answer,
                () = &mut served => asked.await,
            };
            Ok(answer)
        })
    }
}

impl Drop for WithinProcess {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(keeper) = self.keeper.take()
            && keeper.join().is_err()
        {
            log::error!("the keeper's thread panicked");
        }
    }
}
