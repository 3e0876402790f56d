//! Metrics at a TCP port of this host, for a monitoring system that has no Unix sockets.
//!
//! Whoever has an account on the host can read them, and nothing else is served: one path, and no way to change anything. Connections have
//! the same bounds in time as those of the control socket, and few places of their own, so that neither takes the other's.

use std::io;
use std::net;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use control::RefusalKind;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::connections::{ACCEPT_AGAIN, serve};
use super::routes::Refused;
use super::{Host, metrics};

/// Most connections at a time. Beyond these they are closed: a scraper comes again.
pub(super) const PLACES: usize = 8;

/// The listening port.
pub(super) struct Port {
    listener: TcpListener,
    router: Router,
    places: Arc<Semaphore>,
}

impl Port {
    /// To be called in a runtime.
    pub(super) fn new(listener: net::TcpListener, host: Arc<Host>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let none = async || {
            Refused::new(
                RefusalKind::UnknownPath,
                "there is /metrics here, and nothing else".into(),
            )
        };
        let not_so = async || Refused::new(RefusalKind::UnknownMethod, "metrics can be read, by GET".into());
        let router = Router::new()
            .route("/metrics", get(metrics::metrics))
            .fallback(none)
            .method_not_allowed_fallback(not_so)
            .with_state(host);
        Ok(Self {
            listener: TcpListener::from_std(listener)?,
            router,
            places: Arc::new(Semaphore::new(PLACES)),
        })
    }

    /// Serves scrapers, without end.
    pub(super) async fn keep(self) {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                continue;
            };
            let router = self.router.clone();
            tokio::spawn(async move {
                serve(stream, None, router).await;
                drop(place);
            });
        }
    }
}
