//! The API for a client in the same process, without a socket that others find. For those who try it with any bytes: `integration::fuzz`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use broker::Broker;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use vfio_user_server::Peer;

use super::connections::serve;
use super::{Host, Place, routes};

/// What answers for the brokers of this process.
pub struct WithinProcess {
    runtime: Runtime,
    router: Router,
}

impl WithinProcess {
    /// Answers for one card and VMs of these names. The broker ends when this is dropped.
    ///
    /// # Errors
    /// The process has no descriptors left for a runtime.
    pub fn new(gpu: &str, broker: Broker, vms: &[&str]) -> io::Result<Self> {
        let place = |name: &&str| {
            let socket = PathBuf::new();
            ((*name).to_owned(), Place { gpu: 0, socket })
        };
        let host = Host {
            brokers: vec![(gpu.to_owned(), broker)],
            vms: vms.iter().map(place).collect(),
        };
        Ok(Self {
            runtime: Builder::new_current_thread().enable_io().enable_time().build()?,
            router: routes::router(Arc::new(host)),
        })
    }

    /// What is answered to a client that sends these bytes and no more, and is gone after `patience`: all bytes until the connection is
    /// closed.
    ///
    /// # Errors
    /// The process has no descriptors left for a connection.
    pub fn answer(&self, sent: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
        self.runtime.block_on(async {
            let (mut client, server) = UnixStream::pair()?;
            let peer = Peer::of(&server)?;
            let served = serve(server, Some(peer), self.router.clone());
            let asked = async move {
                let mut answer = Vec::new();
                // Whoever is answered before he has said all is reset.
                let _ = client.write_all(sent).await;
                let _ = client.shutdown().await;
                let _ = timeout(patience, client.read_to_end(&mut answer)).await;
                answer
            };
            let ((), answer) = tokio::join!(served, asked);
            Ok(answer)
        })
    }
}
