//! Requests to make and answers to read. Carrying them is left to whoever has a socket.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::{
    Attach, Detached, Events, GpuChange, GpuChanged, Gpus, HoldChanged, QuotaChange, QuotaChanged, Refusal,
    Spill, State, Trace, Vm, Vms,
};

/// A request, and the type of its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call<T> {
    /// Method of HTTP.
    pub method: &'static str,
    /// Path of the resource, with what is no letter encoded.
    pub path: String,
    /// Body, JSON; empty if there is none.
    pub body: Vec<u8>,
    answer: PhantomData<T>,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// The request was not done.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// Whoever answered speaks something else.
    #[error("status {status} with an answer that is none of the control API: {reason}")]
    Foreign {
        /// Status of the answer.
        status: u16,
        /// What is wrong with it.
        reason: String,
    },
}

/// Asks for all cards of the host.
pub fn gpus() -> Call<Gpus> {
    Call::new("GET", "/v1/gpus".to_owned(), Vec::new())
}

/// Asks for all VMs of the host, connected or not.
pub fn vms() -> Call<Vms> {
    Call::new("GET", "/v1/vms".to_owned(), Vec::new())
}

/// Asks for the VM of one name.
pub fn vm(name: &str) -> Call<Vm> {
    Call::new("GET", format!("/v1/vms/{}", encoded(name)), Vec::new())
}

/// Asks for what happened after the cursor of an answer before, or for all that is kept; waits for at most `wait_ms` milliseconds until
/// there is something.
pub fn events(after: Option<&str>, wait_ms: u32) -> Call<Events> {
    let after = after.map_or_else(String::new, |cursor| format!("&after={}", encoded(cursor)));
    let path = format!("/v1/events?wait_ms={wait_ms}{after}");
    Call::new("GET", path, Vec::new())
}

/// Asks for the state of what decides about a card, or for the part of it at a path.
pub fn gpu_state(name: &str, path: &str) -> Call<State> {
    state("gpus", name, path)
}

/// The same for what is a connected VM's.
pub fn vm_state(name: &str, path: &str) -> Call<State> {
    state("vms", name, path)
}

fn state(of: &str, name: &str, path: &str) -> Call<State> {
    let path = format!("/v1/{of}/{}/state?path={}", encoded(name), encoded(path));
    Call::new("GET", path, Vec::new())
}

/// Asks for what happened last to a connected VM: the `most` newest entries, or as many after the cursor of an answer before; waits for at
/// most `wait_ms` milliseconds until there is something.
pub fn trace(name: &str, after: Option<&str>, most: u32, wait_ms: u32) -> Call<Trace> {
    let after = after.map_or_else(String::new, |cursor| format!("&after={}", encoded(cursor)));
    let path = format!(
        "/v1/vms/{}/trace?most={most}&wait_ms={wait_ms}{after}",
        encoded(name)
    );
    Call::new("GET", path, Vec::new())
}

/// Asks for all metrics, which are text: [`Call::text`] reads the answer.
pub fn metrics() -> Call<String> {
    Call::new("GET", "/v1/metrics".to_owned(), Vec::new())
}

/// Changes a VM's quota.
pub fn change_quota(name: &str, change: &QuotaChange) -> Call<QuotaChanged> {
    let path = format!("/v1/vms/{}/quota", encoded(name));
    // Numbers and words have no way to fail.
    let body = serde_json::to_vec(change).expect("a change of a quota is JSON");
    Call::new("PATCH", path, body)
}

/// Takes back what operators said of a VM's quota.
pub fn reset_quota(name: &str) -> Call<QuotaChanged> {
    let path = format!("/v1/vms/{}/quota", encoded(name));
    Call::new("DELETE", path, Vec::new())
}

/// Changes what a card has for all its VMs.
pub fn change_gpu(name: &str, change: &GpuChange) -> Call<GpuChanged> {
    let path = format!("/v1/gpus/{}", encoded(name));
    // Numbers have no way to fail.
    let body = serde_json::to_vec(change).expect("a change of a card is JSON");
    Call::new("PATCH", path, body)
}

/// Gives a VM a place.
pub fn attach(vm: &Attach) -> Call<Vm> {
    // Texts and numbers have no way to fail.
    let body = serde_json::to_vec(vm).expect("a VM is JSON");
    Call::new("POST", "/v1/vms".to_owned(), body)
}

/// Takes a VM's place from it, and hangs up on its VMM if `is_forced`.
pub fn detach(name: &str, is_forced: bool) -> Call<Detached> {
    let path = format!("/v1/vms/{}?force={is_forced}", encoded(name));
    Call::new("DELETE", path, Vec::new())
}

/// Sends all of a VM's memory to host RAM and keeps it there.
pub fn freeze(name: &str) -> Call<HoldChanged> {
    hold(name, "freeze")
}

/// Lets the memory of a VM come back that was frozen.
pub fn thaw(name: &str) -> Call<HoldChanged> {
    hold(name, "thaw")
}

/// Sends a part of a VM's memory to host RAM and keeps it there.
pub fn spill(name: &str, spill: &Spill) -> Call<HoldChanged> {
    // Numbers have no way to fail.
    let body = serde_json::to_vec(spill).expect("a spill is JSON");
    Call {
        body,
        ..hold(name, "spill")
    }
}

/// Lets the memory of a VM come back that was spilled.
pub fn refill(name: &str) -> Call<HoldChanged> {
    hold(name, "refill")
}

/// Keeps a VM's channels from the GPU's engines.
pub fn suspend(name: &str) -> Call<HoldChanged> {
    hold(name, "suspend")
}

/// Lets a VM's channels run again.
pub fn resume(name: &str) -> Call<HoldChanged> {
    hold(name, "resume")
}

fn hold(name: &str, verb: &str) -> Call<HoldChanged> {
    let path = format!("/v1/vms/{}/{verb}", encoded(name));
    Call::new("POST", path, Vec::new())
}

impl<T: DeserializeOwned> Call<T> {
    fn new(method: &'static str, path: String, body: Vec<u8>) -> Self {
        Self {
            method,
            path,
            body,
            answer: PhantomData,
        }
    }

    /// Reads the answer: its status and body.
    pub fn answer(&self, status: u16, body: &[u8]) -> Result<T, AnswerError> {
        let foreign = |error: serde_json::Error| AnswerError::Foreign {
            status,
            reason: error.to_string(),
        };
        match status {
            200 => serde_json::from_slice(body).map_err(foreign),
            _ => Err(serde_json::from_slice(body).map_or_else(foreign, AnswerError::Refused)),
        }
    }
}

impl Call<String> {
    /// Reads an answer that is no JSON if the request was done.
    pub fn text(&self, status: u16, body: &[u8]) -> Result<String, AnswerError> {
        if status != 200 {
            return self.answer(status, body);
        }
        String::from_utf8(body.to_vec()).map_err(|error| AnswerError::Foreign {
            status,
            reason: error.to_string(),
        })
    }
}

/// A name as one piece of a path: all but letters, digits and three signs by their numbers (RFC 3986, section 2).
fn encoded(name: &str) -> String {
    let piece = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        // A name of dots alone would be a way to another folder.
        b'.' if name.bytes().any(|byte| byte != b'.') => ".".to_owned(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Bound, RefusalKind};

    #[test]
    fn change_says_what_is_changed_and_nothing_else() {
        let change = QuotaChange {
            min: Some("16M".parse().unwrap()),
            max: Some("max".parse().unwrap()),
            ..QuotaChange::default()
        };
        let call = change_quota("a", &change);
        assert_eq!((call.method, &*call.path), ("PATCH", "/v1/vms/a/quota"));
        assert_eq!(call.body, br#"{"min":16777216,"max":"max"}"#);
    }

    #[test]
    fn what_no_change_has_is_refused() {
        let refused = |text: &str| serde_json::from_str::<QuotaChange>(text).is_err();
        assert!(refused(r#"{"mim":1}"#));
        assert!(refused(r#"{"min":-1}"#));
        assert!(refused(r#"{"min":"16M"}"#));
        assert!(refused(r#"{"min":1.5}"#));
        assert!(refused(r#"{"weight":4294967296}"#));
        assert!(!refused(r#"{"min":18446744073709551615}"#));
        assert!(!refused(r#"{"min":18446744073709551616}"#));
        assert!(refused(r#"{"weight":18446744073709551616}"#));
        assert!(refused(r#"{"min":"mux"}"#));
        assert!(refused(r#"{"weight":1.5}"#));
    }

    #[test]
    fn whole_numbers_may_have_a_point() {
        let change: QuotaChange =
            serde_json::from_str(r#"{"min":4096.0,"max":1e9,"weight":50.0,"low":null}"#).unwrap();
        let expected = QuotaChange {
            min: Some(Bound::Bytes(4096)),
            max: Some(Bound::Bytes(1_000_000_000)),
            weight: Some(50),
            ..QuotaChange::default()
        };
        assert_eq!(change, expected);
        assert_eq!(
            serde_json::from_str::<Spill>(r#"{"bytes":5.0}"#).unwrap(),
            Spill { bytes: 5 }
        );
        let refused = |text: &str| serde_json::from_str::<Spill>(text).is_err();
        assert!(refused(r#"{"bytes":5.5}"#) && refused(r#"{"bytes":-5.0}"#));
        let most = serde_json::from_str::<Spill>(r#"{"bytes":1e30}"#).unwrap();
        assert_eq!(most.bytes, u64::MAX);
    }

    #[test]
    fn answers_are_read_by_their_status() {
        let refusal = Refusal {
            error: RefusalKind::UnknownVm,
            message: "there is no vm \"a\"".into(),
            next: Some("vramd list".into()),
        };
        let body = serde_json::to_vec(&refusal).unwrap();
        assert_eq!(vm("a").answer(404, &body), Err(AnswerError::Refused(refusal)));
        let foreign = vm("a").answer(502, b"<html>").unwrap_err().to_string();
        assert!(foreign.starts_with("status 502 with an answer that"), "{foreign}");
        assert!(matches!(
            vms().answer(200, b"{}"),
            Err(AnswerError::Foreign { .. })
        ));
        assert_eq!(
            vms().answer(200, b"{\"vms\":[]}"),
            Ok(Vms {
                vms: Vec::new(),
                gone: Vec::new()
            })
        );
    }

    #[test]
    fn events_go_on_from_a_cursor() {
        assert_eq!(events(None, 0).path, "/v1/events?wait_ms=0");
        assert_eq!(
            events(Some("12.7"), 5000).path,
            "/v1/events?wait_ms=5000&after=12.7"
        );
    }

    #[test]
    fn paths_of_the_state_are_one_piece_of_the_query() {
        assert_eq!(gpu_state("g0", "").path, "/v1/gpus/g0/state?path=");
        assert_eq!(
            vm_state("a/b", "chunks/list&x=1").path,
            "/v1/vms/a%2Fb/state?path=chunks%2Flist%26x%3D1"
        );
        assert_eq!(
            trace("a", Some("7"), 10, 500).path,
            "/v1/vms/a/trace?most=10&wait_ms=500&after=7"
        );
    }

    #[test]
    fn names_stay_one_piece_of_the_path() {
        let paths = ["a-b_c.d", "..", "a/b", "ä?#", ""].map(|name| vm(name).path);
        assert_eq!(
            paths,
            [
                "/v1/vms/a-b_c.d",
                "/v1/vms/%2E%2E",
                "/v1/vms/a%2Fb",
                "/v1/vms/%C3%A4%3F%23",
                "/v1/vms/"
            ]
        );
    }

    proptest! {
        #[test]
        fn bound_goes_through_json_and_text(bytes: u64) {
            let bound = Bound::from(bytes);
            let text = serde_json::to_string(&bound).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bound>(&text).unwrap().bytes(), bytes);
            prop_assert_eq!(bound.to_string().parse::<Bound>(), Ok(bound));
        }
    }
}
