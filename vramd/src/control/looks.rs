//! Paths that show what a broker is at: the state of what decides, and what happened last to a VM.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use broker::{Broker, LookRefusal};
use control::{Refusal, RefusalKind, State, Trace, TraceLine};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::{Instant, sleep};
use utoipa::IntoParams;
use vgpu::flight_recorder::Line;

use super::routes::{
    Json, LOOK, Name, Refused, Served, WAIT_MS_MAX, answered, found, malformed, name_of, shown, unknown_gpu,
};

/// Most entries of one answer.
const LINES_MAX: u32 = 1000;

/// Which part of a state is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Path of the part, names with `/` between them; without one, all but long lists.
    #[serde(default)]
    path: String,
}

/// What is asked for of a trace.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Entries {
    /// The cursor of the answer before. Without one, the newest entries.
    #[param(pattern = "^[0-9]{1,19}$")]
    after: Option<String>,
    /// Most entries of the answer, 1000 at most.
    #[serde(default = "most")]
    #[param(default = 256, minimum = 1, maximum = 1000)]
    most: u32,
    /// How long to wait for the first entry, in milliseconds; 10000 at most.
    #[serde(default)]
    #[param(maximum = 10000)]
    wait_ms: u32,
}

fn most() -> u32 {
    256
}

/// Look into what decides about a card
///
/// The state of the memory manager as a tree of names, values and units: for people who look for a fault. A list that may be long is shown
/// if its path is asked for, and the tree names those paths. What is in it depends on the version.
#[utoipa::path(get, path = "/v1/gpus/{name}/state", params(("name" = String, Path, description = "Name of the card"), Part), responses(
    (status = 200, description = "The state, or the part of it at the path", body = State),
    (status = 400, description = "The name is no text, or the query has more than is asked for", body = Refusal),
    (status = 404, description = "There is no card of that name, or nothing at the path", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
))]
pub(super) async fn gpu_state(
    Given(host): Served,
    name: Name,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<Json<State>, Refused> {
    let name = name_of(name)?;
    let found = host.brokers.iter().find(|(gpu, _)| *gpu == name);
    let (gpu, broker) = found.ok_or_else(|| unknown_gpu(&name))?;
    Ok(Json(state(gpu, broker, None, path(part)?).await?))
}

/// Look into what decides about a VM
///
/// The part of its card's state that is the VM's alone.
#[utoipa::path(get, path = "/v1/vms/{name}/state", params(("name" = String, Path, description = "Name of the VM"), Part), responses(
    (status = 200, description = "The VM's state, or the part of it at the path", body = State),
    (status = 400, description = "The name is no text, or the query has more than is asked for", body = Refusal),
    (status = 404, description = "There is no VM of that name, or nothing at the path", body = Refusal),
    (status = 409, description = "The VM is not connected", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
))]
pub(super) async fn vm_state(
    Given(host): Served,
    name: Name,
    part: Result<Query<Part>, QueryRejection>,
) -> Result<Json<State>, Refused> {
    let name = name_of(name)?;
    let (_, gpu, broker) = found(&host, &name)?;
    Ok(Json(state(gpu, broker, Some(name), path(part)?).await?))
}

/// Tell what happened last to a VM
///
/// The entries of the flight recorder that are about it. No byte that its guest stored or loaded is in them. To follow, ask again with the
/// cursor of the last answer and a time to wait.
#[utoipa::path(get, path = "/v1/vms/{name}/trace", params(("name" = String, Path, description = "Name of the VM"), Entries), responses(
    (status = 200, description = "What happened to the VM", body = Trace),
    (status = 400, description = "The name is no text, the cursor is none that was given, or the query has more than is asked for", body = Refusal),
    (status = 404, description = "There is no VM of that name", body = Refusal),
    (status = 409, description = "The VM is not connected", body = Refusal),
    (status = 503, description = "The broker has ended, or there are too many clients", body = Refusal),
))]
pub(super) async fn trace(
    Given(host): Served,
    name: Name,
    entries: Result<Query<Entries>, QueryRejection>,
) -> Result<Json<Trace>, Refused> {
    let name = name_of(name)?;
    let (_, gpu, broker) = found(&host, &name)?;
    let Query(entries) = entries.map_err(|error| malformed(error.body_text()))?;
    let cursor = |text: &String| {
        let place = text.parse().ok();
        place.ok_or_else(|| malformed(format!("{:?} is no cursor of an answer", shown(text))))
    };
    let after: Option<u64> = entries.after.as_ref().map(cursor).transpose()?;
    if !(1..=LINES_MAX).contains(&entries.most) || entries.wait_ms > WAIT_MS_MAX {
        return Err(malformed(format!(
            "most is 1 to {LINES_MAX}, and wait_ms is {WAIT_MS_MAX} at most"
        )));
    }
    let until = Instant::now() + Duration::from_millis(entries.wait_ms.into());
    loop {
        let most = entries.most as usize;
        let excerpt = answered(|tell| broker.ask_trace(name.clone(), after, most, tell)).await?;
        let excerpt = excerpt.map_err(|why| refused(&name, "", why))?;
        let (cursor, has_gap, has_more) = (excerpt.until.to_string(), excerpt.has_gap, excerpt.has_more);
        let lines = excerpt.lines();
        if !lines.is_empty() || Instant::now() >= until {
            return Ok(Json(Trace {
                gpu: gpu.to_owned(),
                vm: name,
                lines: lines.into_iter().map(line).collect(),
                cursor,
                has_gap,
                has_more,
            }));
        }
        sleep(LOOK).await;
    }
}

async fn state(gpu: &str, broker: &Broker, vm: Option<String>, path: String) -> Result<State, Refused> {
    let part = answered(|tell| broker.ask_state(vm.clone(), path.clone(), tell)).await?;
    let of = vm.as_deref().unwrap_or(gpu);
    let part = part.map_err(|why| refused(of, &path, why))?;
    Ok(State {
        gpu: gpu.to_owned(),
        vm,
        path,
        is_cut: part.is_cut,
        state: raw(&part.node),
    })
}

fn refused(of: &str, path: &str, why: LookRefusal) -> Refused {
    match why {
        LookRefusal::NoSuchVm { name } => Refused::unknown_vm(&name),
        LookRefusal::NotConnected => Refused::new(RefusalKind::NotConnected, format!("vm {of}: {why}"))
            .then(format!("vramd show {of}")),
        LookRefusal::NothingThere => {
            let what = format!("the state of {of} has nothing at {:?}", shown(path));
            Refused::new(RefusalKind::UnknownPart, what).then("vramd inspect")
        }
    }
}

fn path(part: Result<Query<Part>, QueryRejection>) -> Result<String, Refused> {
    let Query(Part { path }) = part.map_err(|error| malformed(error.body_text()))?;
    Ok(path)
}

fn line(line: Line) -> TraceLine {
    TraceLine {
        at_ns: line.now.0,
        event: line.event,
        text: line.to_string(),
        entry: raw(&line.told),
        register: line.register,
    }
}

fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("what is shown has text keys and no number that JSON has not")
}
