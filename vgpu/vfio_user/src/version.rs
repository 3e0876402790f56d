//! VERSION: the proposal of a client and the answer of a server, seen from either side.

use serde::{Deserialize, Serialize};

use crate::bounds::{DATA_BYTES_MAX, DMA_PAGE_BYTES, MESSAGE_FDS_MAX};
use crate::error::ProtocolError;

/// The major version that this server speaks.
pub(crate) const MAJOR: u16 = 0;
/// The highest minor version that this server speaks.
pub(crate) const MINOR: u16 = 1;

/// Capabilities as they stand in the JSON. Others are ignored: a client that offers one does not demand it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Capabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_msg_fds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_data_xfer_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_dma_maps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pgsizes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_multiple: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

/// Capabilities that a [`RemoteFunction`](crate::remote::RemoteFunction) proposes, as NUL-terminated JSON.
pub(crate) fn proposal() -> Vec<u8> {
    encode(Capabilities {
        max_msg_fds: Some(1),
        max_data_xfer_size: Some(u64::from(DATA_BYTES_MAX)),
        write_multiple: Some(true),
        ..Capabilities::default()
    })
}

fn encode(capabilities: Capabilities) -> Vec<u8> {
    let mut text = serde_json::to_vec(&VersionData { capabilities })
        .expect("a structure of numbers and booleans has a JSON form");
    text.push(0);
    text
}

/// The answer of a server to [`proposal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Longest transfer that both ends take, at least [`TRANSFER_BYTES_MIN`].
    pub(crate) transfer_bytes: usize,
    /// REGION_WRITE_MULTI is understood.
    pub(crate) takes_batches: bool,
}

/// Least transfer limit of a server, in bytes: one that takes less cannot serve a guest's access.
const TRANSFER_BYTES_MIN: u64 = 8;

impl Answer {
    /// `data` is empty, or JSON text with or without its NUL; absent values are the specification's defaults.
    /// `None` if it is something else, or if the server is of no use.
    pub(crate) fn decode(data: &[u8]) -> Option<Self> {
        let text = data.strip_suffix(&[0]).unwrap_or(data);
        let capabilities = match text {
            [] => Capabilities::default(),
            text => serde_json::from_slice::<VersionData>(text).ok()?.capabilities,
        };
        let most = u64::from(DATA_BYTES_MAX);
        let transfer = capabilities.max_data_xfer_size.unwrap_or(most).min(most);
        (transfer >= TRANSFER_BYTES_MIN).then_some(Self {
            // Whole words, so that no piece of a long transfer cuts a register.
            transfer_bytes: transfer as usize & !7,
            takes_batches: capabilities.write_multiple == Some(true),
        })
    }
}

/// The proposal of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Highest minor version that the client speaks.
    pub minor: u16,
    capabilities: Capabilities,
}

impl Proposal {
    /// `data` is empty, or JSON text that ends with its only NUL.
    pub(crate) fn decode(minor: u16, data: &[u8]) -> Result<Self, ProtocolError> {
        let capabilities = match data {
            [] => Capabilities::default(),
            [text @ .., 0] => {
                serde_json::from_slice::<VersionData>(text)
                    .map_err(|_| ProtocolError::MalformedVersionData)?
                    .capabilities
            }
            _ => return Err(ProtocolError::MalformedVersionData),
        };
        Ok(Self { minor, capabilities })
    }

    /// Whether the client can be sent a descriptor. A proposal that says nothing allows
    /// one (the specification's default).
    pub(crate) fn takes_descriptors(&self) -> bool {
        self.capabilities.max_msg_fds != Some(0)
    }

    /// The minor version and the NUL-terminated JSON of the reply.
    ///
    /// Beyond the two transfer limits only capabilities are answered that the client named: the reply has to be a
    /// subset of the proposal, and QEMU takes no reply longer than its own message.
    pub(crate) fn answer(&self, dma_maps_max: usize) -> (u16, Vec<u8>) {
        let asked = &self.capabilities;
        let capabilities = Capabilities {
            max_msg_fds: Some(MESSAGE_FDS_MAX as u64),
            max_data_xfer_size: Some(u64::from(DATA_BYTES_MAX)),
            max_dma_maps: asked.max_dma_maps.map(|maps| maps.min(dma_maps_max as u64)),
            pgsizes: asked.pgsizes.map(|_| DMA_PAGE_BYTES),
            write_multiple: asked.write_multiple.filter(|is_offered| *is_offered),
        };
        (self.minor.min(MINOR), encode(capabilities))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::DMA_MAPS_MAX;

    /// What QEMU 11.1 sends, without the blanks.
    const QEMU: &[u8] = b"{\"capabilities\":{\"migration\":{\"pgsize\":4096,\"max_bitmap_size\":268435456},\
        \"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\"pgsizes\":4096,\"max_dma_maps\":65535,\
        \"write_multiple\":true}}\0";

    #[test]
    fn proposal_of_qemu_gives_shorter_answer_with_own_limits() {
        let proposal = Proposal::decode(0, QEMU).unwrap();
        let (minor, text) = proposal.answer(DMA_MAPS_MAX);
        assert_eq!(minor, 0);
        assert!(text.len() <= QEMU.len());
        assert_eq!(
            std::str::from_utf8(&text).unwrap(),
            "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":65536,\"max_dma_maps\":512,\
             \"pgsizes\":4096,\"write_multiple\":true}}\0"
        );
    }

    #[test]
    fn capability_not_proposed_is_not_answered() {
        let (_, text) = Proposal::decode(7, b"{}\0").unwrap().answer(DMA_MAPS_MAX);
        let text = String::from_utf8(text).unwrap();
        assert!(
            !text.contains("write_multiple") && !text.contains("pgsizes"),
            "{text}"
        );
    }

    #[test]
    fn absent_data_is_an_empty_proposal() {
        let proposal = Proposal::decode(9, b"").unwrap();
        assert!(proposal.takes_descriptors());
        assert_eq!(proposal.answer(DMA_MAPS_MAX).0, MINOR);
    }

    #[test]
    fn text_without_nul_is_malformed() {
        // Whole JSON in front of the last byte, so that only the missing NUL is wrong.
        assert_eq!(
            Proposal::decode(0, b"{} "),
            Err(ProtocolError::MalformedVersionData)
        );
    }

    #[test]
    fn nul_within_the_text_is_malformed() {
        assert_eq!(
            Proposal::decode(0, b"{}\0{}\0"),
            Err(ProtocolError::MalformedVersionData)
        );
    }

    #[test]
    fn deep_nesting_is_malformed_rather_than_a_stack_overflow() {
        let mut text = b"{\"capabilities\":".to_vec();
        text.extend(std::iter::repeat_n(b'[', 4000));
        text.push(0);
        assert_eq!(
            Proposal::decode(0, &text),
            Err(ProtocolError::MalformedVersionData)
        );
    }

    #[test]
    fn number_of_another_type_is_malformed() {
        let text = b"{\"capabilities\":{\"max_msg_fds\":-1}}\0";
        assert_eq!(
            Proposal::decode(0, text),
            Err(ProtocolError::MalformedVersionData)
        );
    }
}
