//! What is told of the cards of a host.

use serde::{Deserialize, Serialize};

/// All cards of the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gpus {
    /// The cards, in the order of the host's file.
    pub gpus: Vec<Gpu>,
    /// Cards that are not among them.
    #[serde(default)]
    pub gone: Vec<GoneGpu>,
}

/// A card whose broker has ended, or does not answer. The others of the host go on; this one comes back when `serve` is started anew.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GoneGpu {
    /// Name in the host's file.
    pub name: String,
    /// Why, for people.
    pub reason: String,
    /// Names of its VMs.
    pub vms: Vec<String>,
}

/// A card and its memory, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gpu {
    /// Name in the host's file.
    pub name: String,
    /// Bytes of VRAM of the card.
    pub vram_bytes: u64,
    /// Bytes of VRAM that guests may hold.
    pub usable_bytes: u64,
    /// Bytes of VRAM that guests may hold and none does.
    pub free_bytes: u64,
    /// Bytes of VRAM that attached VMs are promised by `min`, in whole chunks.
    pub promised_bytes: u64,
    /// Bytes of host RAM for spilled chunks of all VMs.
    pub host_ram_bytes: u64,
    /// The same as the host's file has it. Where it differs, an operator changed it.
    pub file_host_ram_bytes: u64,
    /// Bytes of spilled chunks of all VMs.
    pub spilled_bytes: u64,
    /// Failures of the card, or of the way to it. More than 0 is a fault of the program or the card.
    pub host_errors: u64,
    /// Names of the VMs that may attach.
    pub vms: Vec<String>,
}

/// A change of what a card has for all its VMs. What is absent stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuChange {
    /// Host RAM in bytes for spilled chunks of all VMs of the card
    #[cfg_attr(feature = "cli", arg(id = "host_ram_bytes", long = "host-ram", value_name = "SIZE", value_parser = sizes::parse_size))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    pub host_ram_bytes: Option<u64>,
}

/// What went from one value to another, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuChanged {
    /// Host RAM that VMs of the card had.
    pub before_host_ram_bytes: u64,
    /// Host RAM that they have.
    pub after_host_ram_bytes: u64,
}
