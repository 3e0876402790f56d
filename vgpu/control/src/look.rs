//! What is seen of a broker from within: its state, and what happened last.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A part of the state of what decides about a card, at one moment. What it has depends on the version.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct State {
    /// Name of the card.
    pub gpu: String,
    /// Name of the VM whose state it is. Null: it is the card's, with that of all its VMs.
    pub vm: Option<String>,
    /// Path of the part, as it was asked for. Empty: all but long lists.
    pub path: String,
    /// Whether there was more than is shown at a time.
    pub is_cut: bool,
    /// A flag, a name, a number with its unit, or an object of these by name.
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub state: Box<RawValue>,
}

/// What happened last to a connected VM: requests of its guest, and what was decided for it. No byte that a guest stored or loaded is here.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Trace {
    /// Name of the card.
    pub gpu: String,
    /// Name of the VM.
    pub vm: String,
    /// In the order in which it happened.
    pub lines: Vec<TraceLine>,
    /// What to give as `after` to get what comes next.
    pub cursor: String,
    /// Whether something since the cursor that was given may not be kept any more: some 8,000 entries of a card are.
    pub has_gap: bool,
    /// Whether more is there already.
    pub has_more: bool,
}

/// One entry of the flight recorder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TraceLine {
    /// Time in nanoseconds since the broker of the card was started.
    pub at_ns: u64,
    /// Number of its event. What was decided in the course of an event has the event's number.
    pub event: u64,
    /// The line for people, with time and number.
    pub text: String,
    /// Name of the register that it concerns.
    pub register: Option<String>,
    /// The same as in a flight file.
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub entry: Box<RawValue>,
}
