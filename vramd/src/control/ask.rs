//! The client's end: one request to a running broker.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use control::client::{AnswerError, Call};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use vramd_vm::signals::is_stop_requested;

/// Longest time until a broker has answered.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Time after which it is tried again to connect to one whose queue is full.
const QUEUE_AGAIN: Duration = Duration::from_millis(2);
/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of the longest answer: all VMs of several cards have less than a thousandth.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Asks the broker at `socket`.
pub(crate) fn ask<T: DeserializeOwned>(socket: &Path, call: &Call<T>) -> anyhow::Result<T> {
    let (status, body) = exchanged(socket, call)?;
    call.answer(status, &body).map_err(told)
}

/// The same for an answer that is text.
pub(crate) fn ask_text(socket: &Path, call: &Call<String>) -> anyhow::Result<String> {
    let (status, body) = exchanged(socket, call)?;
    call.text(status, &body).map_err(told)
}

/// What an operator reads of an answer that is none.
fn told(error: AnswerError) -> anyhow::Error {
    match error {
        AnswerError::Refused(refusal) => match &refusal.next {
            Some(next) => anyhow::anyhow!("{}; see `{next}`", refusal.message),
            None => anyhow::anyhow!("{}", refusal.message),
        },
        foreign @ AnswerError::Foreign { .. } => anyhow::Error::new(foreign),
    }
}

/// Status and body of the answer, if it comes in time.
fn exchanged<T>(socket: &Path, call: &Call<T>) -> anyhow::Result<(u16, Bytes)> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.context("cannot set up a runtime")?;
    let exchanged = runtime.block_on(async {
        tokio::select! {
            exchanged = timeout(ANSWER_TIME, exchange(socket, call)) => Ok(exchanged),
            () = stopped() => Err(anyhow::anyhow!("a signal came before the broker answered")),
        }
    })?;
    let Ok(exchanged) = exchanged else {
        bail!(
            "the broker at {} did not answer in {} s",
            socket.display(),
            ANSWER_TIME.as_secs()
        );
    };
    exchanged
}

/// Ends when a signal asks for the end, where the verb has one ask and not kill.
async fn stopped() {
    while !is_stop_requested() {
        sleep(LOOK).await;
    }
}

async fn exchange<T>(socket: &Path, call: &Call<T>) -> anyhow::Result<(u16, Bytes)> {
    let stream = connected(socket)
        .await
        .map_err(|error| unreachable(socket, &error))?;
    let cut = || format!("the broker at {} hung up", socket.display());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.with_context(cut)?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(call.method)
        .uri(&call.path)
        .header(header::HOST, "vramd")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(call.body.clone())))
        .context("cannot make the request")?;
    let response = sender.send_request(request).await.with_context(cut)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
        .collect()
        .await;
    let body = body.map_err(|error| anyhow::anyhow!(error)).with_context(cut)?;
    connection.abort();
    Ok((status, body.to_bytes()))
}

/// Connects. Where many connect at once their queue may be full for a moment.
async fn connected(socket: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_AGAIN).await,
            other => return other,
        }
    }
}

/// Why nobody can be asked, and what to do.
fn unreachable(socket: &Path, error: &io::Error) -> anyhow::Error {
    let path = socket.display();
    let help = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "no broker listens there: start `vramd serve` with `[control] socket` in host.toml, or name its socket by --control or \
             VRAMD_CONTROL"
        }
        io::ErrorKind::PermissionDenied => {
            "you may not: be root, the broker's user, or in the group `[control] group` of host.toml"
        }
        _ => "name another socket by --control or VRAMD_CONTROL",
    };
    anyhow::anyhow!("cannot reach a broker at {path}: {error}; {help}")
}
