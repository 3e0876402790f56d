//! Paths that give a VM a place, and take it.

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use control::{Attach, Detached, Refusal, RefusalKind, Vm};
use serde::Deserialize;
use utoipa::IntoParams;
use vfio_user_server::Peer;

use super::routes::{Json, Name, Refused, Served, by_keeper, name_of, request, shown_vm};

/// Give a VM a place
///
/// Its VMM can connect from then on. With a name alone it is a VM of the host's file that was detached.
#[utoipa::path(post, path = "/v1/vms", request_body = Attach, responses(
    (status = 200, description = "The VM as it is now; its VMM can connect", body = Vm),
    (status = 400, description = "The body is no VM that there can be", body = Refusal),
    (status = 404, description = "There is no card of that name", body = Refusal),
    (status = 408, description = "The body did not arrive in time", body = Refusal),
    (status = 409, description = "It is no VM that there can be, its name or socket is taken, or there is no room for it", body = Refusal),
    (status = 413, description = "The body is longer than any such request", body = Refusal),
    (status = 503, description = "A broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn attach(
    State(host): Served,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Vm>, Refused> {
    let attach: Attach = request(body).await?;
    let name = attach.name.clone();
    by_keeper(&host, &name, move |keeper, _| keeper.attach(&attach)).await?;
    log::info!(vm = name.as_str(), uid = peer.uid, pid = peer.pid; "attached");
    shown_vm(&host, &name).await
}

/// Whether a VMM that is connected is hung up on.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Force {
    /// Hang up on its VMM, if one is connected: its guest loses its GPU.
    #[serde(default)]
    force: bool,
}

/// Take a VM's place from it
///
/// What it had is free when the card has let go of it.
#[utoipa::path(delete, path = "/v1/vms/{name}", params(("name" = String, Path, description = "Name of the VM"), Force), responses(
    (status = 200, description = "No VMM can connect as this VM any more", body = Detached),
    (status = 400, description = "The name is no text, or the query has more than is asked for", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 409, description = "Its VMM is connected", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn detach(
    State(host): Served,
    name: Name,
    force: Result<Query<Force>, QueryRejection>,
    Extension(peer): Extension<Peer>,
) -> Result<Json<Detached>, Refused> {
    let malformed = |error: QueryRejection| Refused(Refusal::new(RefusalKind::Malformed, error.body_text()));
    let Query(Force { force }) = force.map_err(malformed)?;
    let name = name_of(name)?;
    let detached = by_keeper(&host, &name, move |keeper, name| keeper.detach(name, force)).await?;
    log::info!(vm = name.as_str(), uid = peer.uid, pid = peer.pid; "detached");
    Ok(Json(detached))
}
