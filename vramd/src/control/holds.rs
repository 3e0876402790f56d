//! Paths that hold something back from a VM, or let it go.

use axum::body::Body;
use axum::extract::{Extension, State};
use broker::HoldChange;
use control::{HoldChanged, Refusal, Spill};
use vfio_user_server::Peer;

use super::routes::{Json, Name, Refused, Served, by_keeper, name_of, request};

/// Send all of a VM's memory to host RAM
///
/// It stays there, and within the GPU's reach, until the VM is thawed. The VM need not be connected.
#[utoipa::path(post, path = "/v1/vms/{name}/freeze", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The VM is frozen; its memory goes in the background", body = HoldChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn freeze(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
) -> Result<Json<HoldChanged>, Refused> {
    change(host, name, peer, HoldChange::Freeze).await
}

/// Let the memory of a VM come back that was frozen
#[utoipa::path(post, path = "/v1/vms/{name}/thaw", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The VM is not frozen; what its share admits comes back in the background", body = HoldChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn thaw(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
) -> Result<Json<HoldChanged>, Refused> {
    change(host, name, peer, HoldChange::Thaw).await
}

/// Send a part of a VM's memory to host RAM
///
/// It stays there until it is called back, whatever VRAM is free.
#[utoipa::path(post, path = "/v1/vms/{name}/spill", params(("name" = String, Path, description = "Name of the VM")),
    request_body = Spill, responses(
    (status = 200, description = "The VM holds so much less; its memory goes in the background", body = HoldChanged),
    (status = 400, description = "The name is no text, or the body is no size", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 408, description = "The body did not arrive in time", body = Refusal),
    (status = 409, description = "The VM is not connected, is frozen, or has less in VRAM", body = Refusal),
    (status = 413, description = "The body is longer than any such request", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn spill(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
    body: Body,
) -> Result<Json<HoldChanged>, Refused> {
    let Spill { bytes } = request(body).await?;
    change(host, name, peer, HoldChange::Spill { bytes }).await
}

/// Let the memory of a VM come back that was spilled
#[utoipa::path(post, path = "/v1/vms/{name}/refill", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "What the VM's share admits comes back in the background", body = HoldChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 409, description = "The VM is frozen", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn refill(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
) -> Result<Json<HoldChanged>, Refused> {
    change(host, name, peer, HoldChange::Refill).await
}

/// Keep a VM's channels from the GPU's engines
///
/// What runs goes on to its next switch point. The guest may take a long stop for a hung GPU. The VM need not be connected.
#[utoipa::path(post, path = "/v1/vms/{name}/suspend", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The VM's channels get no more time on the engines", body = HoldChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn suspend(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
) -> Result<Json<HoldChanged>, Refused> {
    change(host, name, peer, HoldChange::Suspend).await
}

/// Let a VM's channels run again
#[utoipa::path(post, path = "/v1/vms/{name}/resume", params(("name" = String, Path, description = "Name of the VM")), responses(
    (status = 200, description = "The VM's channels run, with what was submitted meanwhile", body = HoldChanged),
    (status = 400, description = "The name is no text", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
    (status = 507, description = "It cannot be kept in the state file; nothing is changed", body = Refusal),
))]
pub(super) async fn resume(
    host: Served,
    name: Name,
    peer: Extension<Peer>,
) -> Result<Json<HoldChanged>, Refused> {
    change(host, name, peer, HoldChange::Resume).await
}

async fn change(
    State(host): Served,
    name: Name,
    Extension(peer): Extension<Peer>,
    change: HoldChange,
) -> Result<Json<HoldChanged>, Refused> {
    let name = name_of(name)?;
    let changed = by_keeper(&host, &name, move |keeper, name| keeper.change_hold(name, change)).await?;
    log::info!(vm = name.as_str(), uid = peer.uid, pid = peer.pid; "{change:?}: {:?}", changed.after);
    Ok(Json(changed))
}
