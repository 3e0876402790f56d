//! The word for a card, in `host.toml` and on the command line.

use std::path::PathBuf;

use broker::PciAddress;
use fermi_spec::board::Board;

use crate::host::CardChoice;
use card::CardConfig;

/// A card by its word: `model:NAME`, `vfio-user:PATH` or `vfio:ADDRESS`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A software card in the broker's process.
    Model(Board),
    /// A card that another process serves at this socket.
    VfioUser(PathBuf),
    /// A card of this host.
    Vfio(PciAddress),
}

impl Device {
    /// Reads the word.
    pub(crate) fn parse(word: &str) -> Result<Device, String> {
        match word.split_once(':') {
            Some(("model", name)) => Board::from_name(name).map(Device::Model).ok_or(format!(
                "there is no model {name:?}; choose gtx480, quadro6000 or c2050"
            )),
            Some(("vfio-user", "")) => Err("vfio-user: wants the path of a socket".to_owned()),
            Some(("vfio-user", path)) => Ok(Device::VfioUser(path.into())),
            Some(("vfio", address)) => match address.parse() {
                Ok(address) => Ok(Device::Vfio(address)),
                Err(error) => Err(format!("vfio: {error}")),
            },
            _ => Err(format!(
                "{word:?} is not a device such as \"model:gtx480\", \"vfio-user:PATH\" or \"vfio:0000:01:00.0\""
            )),
        }
    }

    /// The card with this much VRAM, or `otherwise` without a given size. A card in another process has a fixed
    /// size: a size given beside it would be wrong or superfluous.
    pub(crate) fn with_vram(
        self,
        vram: Option<u64>,
        otherwise: impl FnOnce(Board) -> u64,
    ) -> Result<CardChoice, String> {
        match (self, vram) {
            (Device::Model(board), vram) => Ok(CardChoice::Model(CardConfig {
                board,
                vram_bytes: vram.unwrap_or_else(|| otherwise(board)),
                needs_microcode: false,
                strict: true,
                paced: false,
                workers: 0,
            })),
            (Device::VfioUser(path), None) => Ok(CardChoice::VfioUser(path)),
            (Device::Vfio(at), None) => Ok(CardChoice::Vfio(at)),
            (Device::VfioUser(_), Some(_)) => {
                Err("the VRAM of a card in another process is set where it is served".to_owned())
            }
            (Device::Vfio(_), Some(_)) => Err("a card of the host has the VRAM that it has".to_owned()),
        }
    }
}
