//! What each path does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use broker::{Broker, Ended, Happenings, Picture};
use control::{
    Events, GoneGpu, GpuChange, GpuChanged, Gpus, QuotaChange, QuotaChanged, Refusal, RefusalKind, Vm, Vms,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use vfio_user_server::Peer;

use super::connections::READ_TIME;
use super::{Host, Place, answers, document, holds, looks, metrics, places};
use crate::keeper::Keeper;

/// Bytes of the longest body. The longest that makes sense has some hundred.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Most events of a card in one answer.
const EVENTS_MAX: usize = 256;
/// Longest time that a client may wait for one: less than a connection may last.
pub(super) const WAIT_MS_MAX: u32 = 10_000;
/// Time between two looks for one.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// Longest time that a broker's event loop takes to answer.
const BROKER_TIME: Duration = Duration::from_secs(5);
/// Longest time that the keeper takes, who may wait for a broker behind what others asked for. Less than a connection may last.
const KEEPER_TIME: Duration = Duration::from_secs(15);

pub(super) type Served = State<Arc<Host>>;
pub(super) type Name = Result<Path<String>, PathRejection>;

/// The document of the API, without its paths.
#[derive(OpenApi)]
#[openapi(info(
    title = "vramd",
    description = "Control of the broker that shares a host's GPUs among VMs. HTTP/1.1 on a Unix socket, one request a connection. \
                   Sizes are bytes."
))]
struct Document;

/// All paths, and the document that they make.
fn documented() -> OpenApiRouter<Arc<Host>> {
    let mut router = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(gpus))
        .routes(routes!(change_gpu))
        .routes(routes!(vms, places::attach))
        .routes(routes!(vm, places::detach))
        .routes(routes!(change_quota, reset_quota))
        .routes(routes!(holds::freeze))
        .routes(routes!(holds::thaw))
        .routes(routes!(holds::spill))
        .routes(routes!(holds::refill))
        .routes(routes!(holds::suspend))
        .routes(routes!(holds::resume))
        .routes(routes!(events))
        .routes(routes!(looks::gpu_state))
        .routes(routes!(looks::vm_state))
        .routes(routes!(looks::trace))
        .routes(routes!(metrics::metrics));
    document::add_answers_of_the_door(router.get_openapi_mut());
    router
}

/// What answers all requests.
pub(super) fn router(host: Arc<Host>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .fallback(async || Refused::new(RefusalKind::UnknownPath, "there is nothing at this path".into()))
        .method_not_allowed_fallback(async || {
            Refused::new(
                RefusalKind::UnknownMethod,
                "this cannot be done with what the path names".into(),
            )
        })
        .with_state(host)
}

/// An answer that says why there is none.
#[derive(Clone, Debug)]
pub(super) struct Refused(pub(super) Refusal);

impl Refused {
    pub(super) fn new(error: RefusalKind, message: String) -> Self {
        Self(Refusal::new(error, message))
    }

    pub(super) fn too_slow() -> Self {
        Self::new(
            RefusalKind::TooSlow,
            format!("the request did not arrive in {} s", READ_TIME.as_secs()),
        )
    }

    pub(super) fn unknown_vm(name: &str) -> Self {
        let shown = shown(name);
        Self::new(RefusalKind::UnknownVm, format!("there is no vm {shown:?}")).then("vramd list")
    }

    pub(super) fn ended(ended: &Ended) -> Self {
        Self::new(RefusalKind::BrokerEnded, ended.to_string())
    }

    /// Names the command that helps on.
    pub(super) fn then(self, command: impl Into<String>) -> Self {
        Self(self.0.then(command))
    }

    pub(super) fn body(&self) -> Vec<u8> {
        json(&self.0)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.0.error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer(status, self.body())
    }
}

/// An answer of one document.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response<Body> {
        answer(StatusCode::OK, json(&self.0))
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("an answer has text keys and no number that JSON has not")
}

fn answer(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// List the host's cards
#[utoipa::path(get, path = "/v1/gpus", responses(
    (status = 200, description = "All cards of the host, those that are gone apart", body = Gpus),
    (status = 503, description = "There are too many clients", body = Refusal),
))]
async fn gpus(State(host): Served) -> Json<Gpus> {
    let (pictures, gone) = pictures(&host).await;
    let gpu = |(name, picture): &(&str, Picture)| answers::gpu(name, host.file_host_ram(name), picture);
    Json(Gpus {
        gpus: pictures.iter().map(gpu).collect(),
        gone,
    })
}

/// Change what a card has for all its VMs
#[utoipa::path(patch, path = "/v1/gpus/{name}", params(("name" = String, Path, description = "Name of the card")),
    request_body = GpuChange, responses(
    (status = 200, description = "It is changed", body = GpuChanged),
    (status = 400, description = "The name is no text, or the body is no such change", body = Refusal),
    (status = 404, description = "There is no card of that name", body = Refusal),
    (status = 408, description = "The body did not arrive in time", body = Refusal),
    (status = 409, description = "What VMs are promised would not fit; nothing is changed", body = Refusal),
    (status = 413, description = "The body is longer than any such change", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
async fn change_gpu(
    State(host): Served,
    name: Name,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<GpuChanged>, Refused> {
    let name = name_of(name)?;
    let change: GpuChange = request(body).await?;
    let changed = by_keeper(&host, &name, move |keeper, name| keeper.change_gpu(name, change)).await?;
    log::info!(gpu = name.as_str(), uid = peer.uid, pid = peer.pid; "changed: {changed:?}");
    Ok(Json(changed))
}

/// List the host's VMs
#[utoipa::path(get, path = "/v1/vms", responses(
    (status = 200, description = "All VMs of the host, connected or not; those of cards that are gone by name alone", body = Vms),
    (status = 503, description = "There are too many clients", body = Refusal),
))]
async fn vms(State(host): Served) -> Json<Vms> {
    let (pictures, gone) = pictures(&host).await;
    let mut vms = Vec::new();
    for (gpu, picture) in &pictures {
        let of_card = picture.vms.iter();
        vms.extend(of_card.filter_map(|vm| {
            let place = host.place(&vm.config.name)?;
            Some(answers::vm(gpu, &place, vm, picture))
        }));
    }
    Json(Vms { vms, gone })
}

/// Show the VM of a name
#[utoipa::path(get, path = "/v1/vms/{name}", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The VM", body = Vm),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
))]
async fn vm(State(host): Served, name: Name) -> Result<Json<Vm>, Refused> {
    shown_vm(&host, &name_of(name)?).await
}

/// The VM of a name, as it is now.
pub(super) async fn shown_vm(host: &Host, name: &str) -> Result<Json<Vm>, Refused> {
    let (place, gpu, broker) = found(host, name)?;
    let picture = picture(broker, Some(name.to_owned())).await?;
    let vm = picture.vms.first().ok_or_else(|| Refused::unknown_vm(name))?;
    Ok(Json(answers::vm(gpu, &place, vm, &picture)))
}

/// Change a VM's quota
///
/// What the request does not name stays as it is. The VM need not be connected.
#[utoipa::path(patch, path = "/v1/vms/{name}/quota", params(("name" = String, Path, description = "Name of the VM")),
    request_body = QuotaChange, responses(
    (status = 200, description = "The quota is changed; the memory follows in the background", body = QuotaChanged),
    (status = 400, description = "The name is no text, or the body is no such change", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 408, description = "The body did not arrive in time", body = Refusal),
    (status = 409, description = "The quota cannot hold; the VM keeps the one that it has", body = Refusal),
    (status = 413, description = "The body is longer than any such change", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
async fn change_quota(
    State(host): Served,
    name: Name,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<QuotaChanged>, Refused> {
    let name = name_of(name)?;
    let change: QuotaChange = request(body).await?;
    let changed = by_keeper(&host, &name, move |keeper, name| {
        keeper.change_quota(name, change)
    })
    .await?;
    tell_quota(&name, &peer, &changed);
    Ok(Json(changed))
}

/// Take back what operators said of a VM's quota
///
/// It is what the host's file says again, or what the VM was attached with.
#[utoipa::path(delete, path = "/v1/vms/{name}/quota", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The quota is changed; the memory follows in the background", body = QuotaChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 409, description = "The quota cannot hold; the VM keeps the one that it has", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
async fn reset_quota(
    State(host): Served,
    name: Name,
    Extension(peer): Extension<Peer>,
) -> Result<Json<QuotaChanged>, Refused> {
    let name = name_of(name)?;
    let changed = by_keeper(&host, &name, move |keeper, name| keeper.reset_quota(name)).await?;
    tell_quota(&name, &peer, &changed);
    Ok(Json(changed))
}

fn tell_quota(name: &str, peer: &Peer, changed: &QuotaChanged) {
    let QuotaChanged { before, after, .. } = changed;
    log::info!(vm = name, uid = peer.uid, pid = peer.pid; "quota changed from {before:?} to {after:?}");
}

/// What is asked for of events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Since {
    /// The cursor of the answer before. Without one, or with one of a broker with other cards, all that is kept.
    #[param(pattern = r"^[0-9]{1,19}(\.[0-9]{1,19})*$")]
    after: Option<String>,
    /// How long to wait for the first event, in milliseconds; 10000 at most.
    #[param(maximum = 10000)]
    #[serde(default)]
    wait_ms: u32,
}

/// Tell what happened
///
/// Events are kept for a while, so nobody has to listen all the time, and whoever does not costs nothing. To follow them, ask again with
/// the cursor of the last answer and a time to wait.
#[utoipa::path(get, path = "/v1/events", params(Since), responses(
    (status = 200, description = "What happened since", body = Events),
    (status = 400, description = "The cursor is none that was given, or the query has more than is asked for", body = Refusal),
    (status = 503, description = "There are too many clients", body = Refusal),
))]
async fn events(
    State(host): Served,
    since: Result<Query<Since>, QueryRejection>,
) -> Result<Json<Events>, Refused> {
    let Query(since) = since.map_err(|error| malformed(error.body_text()))?;
    let mut cursor = match &since.after {
        Some(text) => Cursor::of(text, host.brokers.len())
            .ok_or_else(|| malformed(format!("{:?} is no cursor of an answer", shown(text))))?,
        None => Cursor(vec![0; host.brokers.len()]),
    };
    if since.wait_ms > WAIT_MS_MAX {
        return Err(malformed(format!("wait_ms is {WAIT_MS_MAX} at most")));
    }
    let until = Instant::now() + Duration::from_millis(since.wait_ms.into());
    let (mut events, mut lost, mut has_more) = (Vec::new(), 0, false);
    loop {
        let mut gone = Vec::new();
        for ((gpu, broker), number) in host.brokers.iter().zip(&mut cursor.0) {
            let happenings = match happenings(broker, *number).await {
                Ok(happenings) => happenings,
                Err(why) => {
                    gone.push(gone_gpu(&host, gpu, why));
                    continue;
                }
            };
            events.extend(happenings.list.iter().map(|one| answers::event(gpu, one)));
            lost += happenings.lost;
            has_more |= happenings.has_more;
            *number = happenings.until;
        }
        if !events.is_empty() || Instant::now() >= until {
            let cursor = cursor.to_string();
            return Ok(Json(Events {
                events,
                cursor,
                lost,
                has_more,
                gone,
            }));
        }
        sleep(LOOK).await;
    }
}

async fn happenings(broker: &Broker, after: u64) -> Result<Happenings, Refused> {
    answered(|tell| broker.ask_happenings(after, EVENTS_MAX, tell)).await
}

/// Numbers up to which events were told, card by card.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Cursor(Vec<u64>);

impl Cursor {
    /// That of a run with another number of cards is the first one; `None` if it is of no run.
    fn of(text: &str, cards: usize) -> Option<Self> {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| text.parse().ok().filter(|_| is_number(text));
        let numbers: Vec<u64> = text.split('.').map(number).collect::<Option<_>>()?;
        Some(match numbers.len() == cards {
            true => Self(numbers),
            false => Self(vec![0; cards]),
        })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// As much of what a client named as fits a line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What a client sent that is not what is asked for.
pub(super) fn malformed(what: String) -> Refused {
    Refused::new(RefusalKind::Malformed, what)
}

pub(super) fn unknown_gpu(name: &str) -> Refused {
    let shown = shown(name);
    Refused::new(RefusalKind::UnknownGpu, format!("there is no gpu {shown:?}")).then("vramd list")
}

/// The name that a path has.
pub(super) fn name_of(name: Name) -> Result<String, Refused> {
    let Path(name) = name.map_err(|error| malformed(error.body_text()))?;
    Ok(name)
}

/// Where the VM of a name is, and its card.
pub(super) fn found<'a>(host: &'a Host, name: &str) -> Result<(Place, &'a str, &'a Broker), Refused> {
    let place = host.place(name).ok_or_else(|| Refused::unknown_vm(name))?;
    let (gpu, broker) = &host.brokers[place.gpu];
    Ok((place, gpu, broker))
}

/// Has the keeper do something with the VM or card of a name, and waits for it.
pub(super) async fn by_keeper<T: Send + 'static>(
    host: &Host,
    name: &str,
    job: impl FnOnce(&mut Keeper, &str) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refused> {
    let (tell, told) = oneshot::channel();
    let of = name.to_owned();
    // Nobody waits any more if the client has gone.
    let put = host.keeper.put(move |keeper| drop(tell.send(job(keeper, &of))));
    put.map_err(|ended| Refused::ended(&ended))?;
    answer_in(KEEPER_TIME, told).await?.map_err(Refused)
}

/// All cards that answer, each with its name, and the others.
pub(super) async fn pictures(host: &Host) -> (Vec<(&str, Picture)>, Vec<GoneGpu>) {
    let (mut pictures, mut gone) = (Vec::new(), Vec::new());
    for (name, broker) in &host.brokers {
        match picture(broker, None).await {
            Ok(picture) => pictures.push((name.as_str(), picture)),
            Err(why) => {
                // One that ended with the question in its hands has said why by now.
                let ended = broker.wait_ended(Duration::ZERO);
                let why = ended.map_or(why, |ended| Refused::ended(&ended));
                gone.push(gone_gpu(host, name, why));
            }
        }
    }
    (pictures, gone)
}

fn gone_gpu(host: &Host, name: &str, why: Refused) -> GoneGpu {
    GoneGpu {
        name: name.to_owned(),
        reason: why.0.message,
        vms: host.vms_of(name),
    }
}

/// The card and its VMs, or one of them.
pub(super) async fn picture(broker: &Broker, name: Option<String>) -> Result<Picture, Refused> {
    answered(|tell| broker.ask_picture(name, tell)).await
}

/// Asks an event loop, and waits for what it answers.
pub(super) async fn answered<T: Send + 'static>(
    ask: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Result<(), Ended>,
) -> Result<T, Refused> {
    let (tell, told) = oneshot::channel();
    // Nobody waits any more if the client has gone.
    let answer = Box::new(move |answer| drop(tell.send(answer)));
    ask(answer).map_err(|ended| Refused::ended(&ended))?;
    answer_in(BROKER_TIME, told).await
}

async fn answer_in<T>(time: Duration, told: oneshot::Receiver<T>) -> Result<T, Refused> {
    let refused = |what: &str| Refused::new(RefusalKind::BrokerEnded, what.to_owned());
    match timeout(time, told).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(refused("the broker has ended")),
        Err(_) => Err(refused("the broker does not answer")),
    }
}

/// Reads a request's body.
pub(super) async fn request<T: DeserializeOwned>(body: Body) -> Result<T, Refused> {
    let too_large = || {
        let message = format!("a body has at most {BODY_BYTES_MAX} bytes");
        Refused::new(RefusalKind::TooLarge, message)
    };
    // One that says how long it is need not arrive.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let collected = timeout(READ_TIME, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let collected = collected.map_err(|_| Refused::too_slow())?.map_err(|error| {
        match error.downcast_ref::<LengthLimitError>() {
            Some(_) => too_large(),
            None => malformed(format!("the body does not end as it should: {error}")),
        }
    })?;
    let bytes = collected.to_bytes();
    let text =
        std::str::from_utf8(&bytes).map_err(|error| malformed(format!("the body is no UTF-8: {error}")))?;
    // A list of a request's fields would be taken for one.
    if !text.trim_start().starts_with('{') {
        return Err(malformed("the body is no JSON object".to_owned()));
    }
    serde_json::from_str(text)
        .map_err(|error| malformed(format!("the body is not what is asked for: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written anew when it is set.
    const BLESS: &str = "VRAMD_BLESS";

    #[test]
    fn committed_document_is_what_is_served() {
        let (_, document) = documented().split_for_parts();
        let served = document.to_pretty_json().unwrap() + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../vgpu/control/openapi.json");
        if std::env::var_os(BLESS).is_some() {
            std::fs::write(path, &served).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == served,
            "vgpu/control/openapi.json is not what is served: look at the difference that {BLESS}=1 makes"
        );
    }
}
