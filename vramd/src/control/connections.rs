//! Who may connect, how many at a time, and for how long.
//!
//! A connection has one request. It has to arrive in [`READ_TIME`], and the connection ends after [`WHOLE_TIME`] whatever its client
//! does, so that nobody keeps a place. Some places are kept for root and the broker's own user: members of the group, however many
//! connections they make, take none of these. A member asks so often as people and scripts do, and no more. Who finds no place, or may
//! not ask, is told so, in one of a few places more; beyond these connections are closed at once.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use control::RefusalKind;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use vfio_user_server::Peer;

use super::pace::Pace;
use super::routes::Refused;

/// Most connections at a time that are answered.
const PLACES: usize = 64;
/// Most beside them, of root and the broker's own user.
const KEPT_PLACES: usize = 8;
/// Most connections at a time that are told why they are not.
const REFUSED_PLACES: usize = 16;
/// Requests of one member of the group in a second, and at once: more than a person makes, or a script that looks each second at
/// each of 64 VMs, and 64 users who do it take a tenth of a processor.
const MEMBER_RATE: u32 = 50;
const MEMBER_BURST: u32 = 200;
/// Descriptors that all of them may take.
pub(super) const CONNECTIONS_MAX: usize = PLACES + KEPT_PLACES + REFUSED_PLACES;
/// Longest time in which a request arrives.
pub(super) const READ_TIME: Duration = Duration::from_secs(5);
/// Longest time of a connection.
const WHOLE_TIME: Duration = Duration::from_secs(20);
/// Longest time of a connection that is refused.
const REFUSED_TIME: Duration = Duration::from_secs(1);
/// Time after which a socket that cannot accept is tried again.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Least time between two lines of the log about clients that are refused.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Bytes of the longest request without its body.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most headers of a request.
const HEADERS_MAX: usize = 64;

/// The listening socket, and what is behind it.
pub(super) struct Door {
    listener: UnixListener,
    own: u32,
    group: Option<u32>,
    router: Router,
    places: Arc<Semaphore>,
    kept_places: Arc<Semaphore>,
    refused_places: Arc<Semaphore>,
    pace: Pace,
    said: Option<Instant>,
}

/// What becomes of a connection.
enum Admission {
    Served(Peer, OwnedSemaphorePermit),
    Refused(Refused, OwnedSemaphorePermit),
    Closed,
}

impl Door {
    pub(super) fn new(listener: UnixListener, own: u32, group: Option<u32>, router: Router) -> Self {
        Self {
            listener,
            own,
            group,
            router,
            places: Arc::new(Semaphore::new(PLACES)),
            kept_places: Arc::new(Semaphore::new(KEPT_PLACES)),
            refused_places: Arc::new(Semaphore::new(REFUSED_PLACES)),
            pace: Pace::new(MEMBER_RATE, MEMBER_BURST),
            said: None,
        }
    }

    /// Lets clients in, without end.
    pub(super) async fn keep(mut self) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => self.let_in(stream),
                Err(error) => {
                    self.say(&format!(
                        "a client of the control API cannot be accepted: {error}"
                    ));
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn let_in(&mut self, stream: UnixStream) {
        match self.admit(&stream) {
            Admission::Served(peer, place) => {
                let router = self.router.clone();
                tokio::spawn(async move {
                    serve(stream, Some(peer), router).await;
                    drop(place);
                });
            }
            Admission::Refused(why, place) => {
                tokio::spawn(async move {
                    refuse(stream, why).await;
                    drop(place);
                });
            }
            Admission::Closed => {}
        }
    }

    fn admit(&mut self, stream: &UnixStream) -> Admission {
        let refusal = match Peer::of(stream) {
            Ok(peer) if self.is_allowed(&peer) => match self.is_early(&peer) {
                Some(early) => Refused::new(
                    RefusalKind::TooOften,
                    format!(
                        "user {} asks more often than {MEMBER_RATE} times a second: try again in {} ms",
                        peer.uid,
                        early.as_millis() + 1
                    ),
                ),
                None => match self.place_of(&peer) {
                    Some(place) => return Admission::Served(peer, place),
                    None => Refused::new(
                        RefusalKind::TooManyConnections,
                        format!(
                            "{PLACES} clients are connected, which is all that there is room for: try again"
                        ),
                    ),
                },
            },
            Ok(peer) => Refused::new(
                RefusalKind::NotAllowed,
                format!(
                    "user {} may not control this broker: its own user, root and members of control.group may",
                    peer.uid
                ),
            ),
            Err(error) => Refused::new(
                RefusalKind::NotAllowed,
                format!("it cannot be told who you are: {error}"),
            ),
        };
        self.say(&format!(
            "a client of the control API was refused: {}",
            refusal.0.message
        ));
        match self.refused_places.clone().try_acquire_owned() {
            Ok(place) => Admission::Refused(refusal, place),
            Err(_) => Admission::Closed,
        }
    }

    /// How much too early somebody asks, if he does. Root and the broker's own user may ask at any time.
    fn is_early(&mut self, peer: &Peer) -> Option<Duration> {
        let paced = !self.is_own(peer);
        paced
            .then(|| self.pace.ask(peer.uid, Instant::now()).err())
            .flatten()
    }

    /// A place for one who may ask: one for all while there are any, else one that is kept for him.
    fn place_of(&self, peer: &Peer) -> Option<OwnedSemaphorePermit> {
        let free = self.places.clone().try_acquire_owned().ok();
        let kept = || self.kept_places.clone().try_acquire_owned().ok();
        free.or_else(|| self.is_own(peer).then(kept).flatten())
    }

    fn is_allowed(&self, peer: &Peer) -> bool {
        let is_member = self.group.is_some_and(|group| peer.is_in(group));
        self.is_own(peer) || is_member
    }

    fn is_own(&self, peer: &Peer) -> bool {
        peer.uid == 0 || peer.uid == self.own
    }

    /// Clients can cause this line, so it is limited.
    fn say(&mut self, text: &str) {
        let now = Instant::now();
        if self.said.is_none_or(|said| now - said >= LOG_PERIOD) {
            self.said = Some(now);
            log::warn!("{text}");
        }
    }
}

fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // The time of the whole connection is bounded below.
        .header_read_timeout(None)
        .timer(TokioTimer::new());
    http
}

/// Serves the one request of a connection. How it ends concerns its client alone. Who it is, if it is known, goes with the request.
pub(super) async fn serve<S>(stream: S, peer: Option<Peer>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let start = Instant::now();
    let has_request = Arc::new(AtomicBool::new(false));
    let seen = has_request.clone();
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        seen.store(true, Relaxed);
        let mut request = request.map(Body::new);
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        hyper::service::Service::call(&routes, request)
    });
    let mut connection = http().serve_connection(TokioIo::new(stream), service);
    if timeout_at(start + READ_TIME, &mut connection).await.is_ok() {
        return;
    }
    if has_request.load(Relaxed) {
        let _ = timeout_at(start + WHOLE_TIME, connection).await;
    } else {
        let _ = timeout(
            REFUSED_TIME,
            tell_too_slow(connection.into_parts().io.into_inner()),
        )
        .await;
    }
}

/// There is no request yet that this could be the answer of, so it is written as it is.
async fn tell_too_slow(mut stream: impl AsyncWrite + Unpin) -> io::Result<()> {
    let body = Refused::too_slow().body();
    let head = format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await
}

/// Answers the one request of a connection with a refusal, whatever it is.
async fn refuse(stream: UnixStream, why: Refused) {
    let service = service_fn(move |_| {
        let why = why.clone();
        async move { Ok::<Response<Body>, Infallible>(why.into_response()) }
    });
    let connection = pin!(http().serve_connection(TokioIo::new(stream), service));
    let _ = timeout(REFUSED_TIME, connection).await;
}
