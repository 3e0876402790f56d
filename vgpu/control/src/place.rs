//! Places of VMs: what a VM is before its VMM connects. An operator gives one, and takes it.

use serde::{Deserialize, Serialize};

use crate::quota::QuotaChange;

/// A VM that is to be given a place: its VMM can connect from then on.
///
/// With a name alone it is a VM of the host's file whose place was taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Attach {
    /// Name of the VM: a new one, or alone one of the host's file that was detached
    #[cfg_attr(feature = "cli", arg(value_name = "VM"))]
    pub name: String,
    /// Name of its card; may be left out where there is one
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// VRAM in bytes that its guest sees
    #[cfg_attr(feature = "cli", arg(long = "guest-vram", value_name = "SIZE", value_parser = sizes::parse_size))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    pub guest_vram_bytes: Option<u64>,
    /// Unit in bytes in which its memory moves; 2M if it is left out
    #[cfg_attr(feature = "cli", arg(long = "chunk", value_name = "SIZE", value_parser = sizes::parse_size))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    pub chunk_bytes: Option<u64>,
    /// RAM in bytes that its VMM may let the card reach; 16G if it is left out
    #[cfg_attr(feature = "cli", arg(long = "ram", value_name = "SIZE", value_parser = sizes::parse_size))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    pub ram_bytes: Option<u64>,
    /// Channels of the card that are kept for it; 2 if it is left out
    #[cfg_attr(feature = "cli", arg(long, value_name = "N"))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(maximum = 4294967295u32))]
    pub channels: Option<u32>,
    /// Path of the socket that its VMM connects to, in a folder that has one already; NAME.sock beside the control socket if it is left out
    #[cfg_attr(feature = "cli", arg(long, value_name = "PATH"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Group of that socket, by its number: one of the broker's own
    #[cfg_attr(feature = "cli", arg(long, value_name = "GID"))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(maximum = 4294967295u32))]
    pub socket_group: Option<u32>,
    /// Who may connect: 0600 the broker's user, 0660 the group too, 0666 everybody; 0600 if it is left out, with a group 0660
    #[cfg_attr(feature = "cli", arg(long, value_name = "MODE"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Users, by their numbers, whose connections are accepted, beside root's; whoever the mode lets if it is left out
    #[cfg_attr(feature = "cli", arg(long = "socket-user", value_name = "UID"))]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole::list"
    )]
    pub socket_users: Option<Vec<u32>>,
    #[cfg_attr(feature = "cli", command(flatten))]
    /// What it may hold
    #[serde(default, skip_serializing_if = "is_unchanged")]
    pub quota: QuotaChange,
}

fn is_unchanged(quota: &QuotaChange) -> bool {
    *quota == QuotaChange::default()
}

impl Attach {
    /// Whether it is nothing but a name.
    pub fn is_name_alone(&self) -> bool {
        let name = self.name.clone();
        *self
            == Self {
                name,
                ..Self::default()
            }
    }
}

/// A VM that has no place any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Detached {
    /// Name of the VM.
    pub name: String,
    /// Whether its VMM was connected, and was hung up on.
    pub was_attached: bool,
    /// Whether the host's file has it: it can be attached again by its name alone.
    pub is_in_file: bool,
}

/// Where a VM is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PlaceSource {
    /// The file of the host.
    File,
    /// An operator, by this API.
    Control,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_not_in_the_request() {
        let attach = Attach {
            name: "a".into(),
            ..Attach::default()
        };
        assert!(attach.is_name_alone());
        assert_eq!(serde_json::to_string(&attach).unwrap(), r#"{"name":"a"}"#);
        let with_quota = r#"{"name":"a","guest_vram_bytes":8388608,"quota":{"min":1}}"#;
        let read: Attach = serde_json::from_str(with_quota).unwrap();
        assert!(!read.is_name_alone());
        assert_eq!(serde_json::to_string(&read).unwrap(), with_quota);
    }
}
