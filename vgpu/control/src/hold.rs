//! What an operator holds back from a VM for now, beside its quota.

use serde::{Deserialize, Serialize};

/// What is held back from a VM. It outlasts the VM's connection, and goes before its quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hold {
    /// Most bytes of VRAM that the VM holds. 0: it is frozen. Null: what its quota says.
    pub vram_bytes: Option<u64>,
    /// Its channels get no time on the GPU's engines.
    pub is_suspended: bool,
}

/// A part of a VM's memory that is to go to host RAM, and to stay there until it is called back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Spill {
    /// VRAM in bytes that the VM is to give up
    #[cfg_attr(feature = "cli", arg(value_name = "SIZE", value_parser = sizes::parse_size))]
    #[serde(deserialize_with = "crate::whole::number")]
    pub bytes: u64,
}

/// What went from one hold to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HoldChanged {
    /// What was held back.
    pub before: Hold,
    /// What is held back. The memory follows in the background: `usage` of the VM tells how far it is.
    pub after: Hold,
    /// Whether a VMM is connected. If not, the hold is there when it connects.
    pub is_attached: bool,
}
