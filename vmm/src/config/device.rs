//! The word for a card, in `host.toml` and on the command line.

use std::path::PathBuf;

use fermi_spec::board::Board;

use crate::card::CardConfig;
use crate::host::CardChoice;

/// Which card: `model:NAME` or `vfio-user:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// A software card in the broker's process.
    Model(Board),
    /// A card that another process serves at this socket.
    VfioUser(PathBuf),
}

impl Device {
    /// Reads the word.
    pub(crate) fn parse(word: &str) -> Result<Device, String> {
        match word.split_once(':') {
            Some(("model", name)) => Board::from_name(name).map(Device::Model).ok_or(format!(
                "there is no model {name:?}; gtx480, quadro6000 and c2050 there are"
            )),
            Some(("vfio-user", "")) => Err("vfio-user: wants the path of a socket".to_owned()),
            Some(("vfio-user", path)) => Ok(Device::VfioUser(path.into())),
            Some(("vfio", _)) => {
                Err("devices of kind \"vfio\" are not there yet; use \"model:gtx480\"".to_owned())
            }
            _ => Err(format!(
                "{word:?} is not a device such as \"model:gtx480\" or \"vfio-user:PATH\""
            )),
        }
    }

    /// The card with so much VRAM, or `otherwise` says how much. A card in another process has what it has: naming a
    /// size beside it would either be wrong or say nothing.
    pub(crate) fn with_vram(
        self,
        vram: Option<u64>,
        otherwise: impl FnOnce(Board) -> u64,
    ) -> Result<CardChoice, String> {
        match (self, vram) {
            (Device::Model(board), vram) => Ok(CardChoice::Model(CardConfig {
                board,
                vram_bytes: vram.unwrap_or_else(|| otherwise(board)),
            })),
            (Device::VfioUser(path), None) => Ok(CardChoice::VfioUser(path)),
            (Device::VfioUser(_), Some(_)) => {
                Err("the VRAM of a card in another process is set where it is served".to_owned())
            }
        }
    }
}
