//! A card in another process: [`vgpu::HostGpu`] over a vfio-user socket.
//!
//! ```text
//! connect: socket ► version, regions ► DEVICE_RESET ► PCI identity, BARs ► bus master, MSI ► eventfd
//! ```
//!
//! The card may have been used before, by a broker that is gone: it is reset first, and nothing is assumed of its
//! memory. Stores are posted, and sent together before the next load, or when the edge is about to wait. A server that
//! errs, or does not answer within [`ANSWER_WAIT`], is a lost card. A refused DMA map is not: it costs one VM.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fermi_spec::addr::{FrameNo, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::regs::pieces::bus_pieces;
use vfio_user_server::remote::ANSWER_WAIT;
use vfio_user_server::{IrqIndex, Region, RemoteError, RemoteFunction};
use vgpu::{Capabilities, DmaMemory, FrameOwner, HostGpu, HostGpuError, VmId};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::pci_card::{board_of, chain, check_bars, config, read_answering};

/// Why a card in another process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteGpuError {
    /// No connection, or the server violates the protocol.
    #[error("cannot attach to the card at {}", path.display())]
    Attach {
        /// Path of the card's socket.
        path: PathBuf,
        /// Error of the connection.
        #[source]
        source: RemoteError,
    },
    /// The function that is served there is not a card.
    #[error("the device behind {} is not a GF100 card: {what}", path.display())]
    NotACard {
        /// Path of the card's socket.
        path: PathBuf,
        /// Its property that no card has.
        what: String,
    },
    /// A descriptor or thread cannot be created.
    #[error("cannot create {what} of the card")]
    System {
        /// The missing resource: a descriptor or a thread.
        what: &'static str,
        /// Error of the host's kernel.
        #[source]
        source: io::Error,
    },
}

/// DMA maps that a server takes if it says nothing else (`max_dma_maps` in the vfio-user specification, "Version").
const DMA_MAPS_MAX: u32 = 65_535;

/// A card in another process. Dropping it takes all memory from the card and hangs up; the card lives on.
#[derive(Debug)]
pub struct RemoteGpu {
    path: PathBuf,
    function: RemoteFunction,
    board: Board,
    interrupt: EventFd,
    /// Bytes of each DMA map, by bus address.
    maps: BTreeMap<u64, u64>,
}

impl RemoteGpu {
    /// Attaches to the card at the socket `path`, resets it, and lets it interrupt. Bring-up is the core's.
    pub fn connect(path: &Path) -> Result<Self, RemoteGpuError> {
        let attach = |source| RemoteGpuError::Attach {
            path: path.to_owned(),
            source,
        };
        let not_a_card = |what| RemoteGpuError::NotACard {
            path: path.to_owned(),
            what,
        };
        let function = RemoteFunction::connect(path, ANSWER_WAIT).map_err(attach)?;
        check_bars(|bar| function.region_bytes(region_of(bar))).map_err(not_a_card)?;
        let mut ids = [0; 4];
        function
            .read(Region::Config, config::IDS, &mut ids)
            .map_err(attach)?;
        let board = board_of(ids).map_err(not_a_card)?;
        function.reset().map_err(attach)?;
        let interrupt =
            EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(|source| RemoteGpuError::System {
                what: "the interrupt",
                source,
            })?;
        enable(&function).map_err(attach)?.map_err(not_a_card)?;
        function.connect_irq(IrqIndex::Msi, &interrupt).map_err(attach)?;
        Ok(Self {
            path: path.to_owned(),
            function,
            board,
            interrupt,
            maps: BTreeMap::new(),
        })
    }

    /// Board of the card.
    pub fn board(&self) -> Board {
        self.board
    }

    /// Signalled whenever the card raises its interrupt.
    pub fn interrupt(&self) -> Result<EventFd, RemoteGpuError> {
        let clone = self.interrupt.try_clone();
        clone.map_err(|source| RemoteGpuError::System {
            what: "a descriptor for the interrupt",
            source,
        })
    }

    /// Hangs up when the card's process does.
    pub fn hangup(&self) -> Result<OwnedFd, RemoteGpuError> {
        let clone = self.function.as_fd().try_clone_to_owned();
        clone.map_err(|source| RemoteGpuError::System {
            what: "a descriptor for the connection",
            source,
        })
    }
}

/// Lets the card reach memory and send messages.
fn enable(function: &RemoteFunction) -> Result<Result<(), String>, RemoteError> {
    let command = config::COMMAND_BITS.to_le_bytes();
    function.write(Region::Config, config::COMMAND, &command)?;
    let mut at = [0];
    function.read(Region::Config, config::CAPABILITIES, &mut at)?;
    for _ in 0..config::CAPABILITIES_MAX {
        // The lower bits are reserved.
        let capability = u64::from(at[0] & !3);
        if capability == 0 {
            break;
        }
        let mut header = [0; 4];
        function.read(Region::Config, capability, &mut header)?;
        if header[0] == config::MSI_ID {
            let control = u16::from_le_bytes([header[2], header[3]]) | config::MSI_ENABLE;
            function.write(
                Region::Config,
                capability + config::MSI_CONTROL,
                &control.to_le_bytes(),
            )?;
            return Ok(Ok(()));
        }
        at = [header[1]];
    }
    Ok(Err("it has no MSI capability".to_owned()))
}

fn region_of(bar: Bar) -> Region {
    match bar {
        Bar::Bar0 => Region::Bar0,
        Bar::Bar1 => Region::Bar1,
        Bar::Bar3 => Region::Bar3,
    }
}

fn lost(error: RemoteError) -> HostGpuError {
    HostGpuError::Lost {
        reason: chain(&error),
    }
}

impl HostGpu for RemoteGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            graph: None,
            bar1_bytes: self.function.region_bytes(Region::Bar1),
            bar3_bytes: self.function.region_bytes(Region::Bar3),
            frames_arrive_zeroed: false,
            bus: vgpu::Bus {
                maps_max: DMA_MAPS_MAX,
                ..vgpu::Bus::default()
            },
            follows_mappings: false,
        }
    }

    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        let load =
            |bar, offset, data: &mut [u8]| self.function.read(region_of(bar), offset, data).map_err(lost);
        read_answering(bar, offset, data, load, || {
            format!(
                "the one at {} reads ones everywhere, as if it had lost its power: start again once it answers",
                self.path.display()
            )
        })
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        if bar != Bar::Bar0 {
            return self.function.post(region_of(bar), offset, data).map_err(lost);
        }
        bus_pieces(offset, data.len())
            .try_for_each(|(at, piece)| self.function.post(Region::Bar0, at, &data[piece]).map_err(lost))
    }

    fn flush(&mut self) -> Result<(), HostGpuError> {
        self.function.flush().map_err(lost)
    }

    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError> {
        let bytes = memory.bytes;
        let failed = |reason: String| HostGpuError::Map { iova, bytes, reason };
        let place = memory.region.file_offset();
        let (file, offset) = place
            .and_then(|place| Some((place.file(), place.start().checked_add(memory.offset)?)))
            .ok_or_else(|| failed("the memory has no file that another process could map".to_owned()))?;
        match self.function.dma_map(iova.0, bytes, file, offset, writable) {
            Err(refused @ RemoteError::Refused { .. }) => Err(failed(refused.to_string())),
            Err(error) => Err(lost(error)),
            Ok(()) => {
                self.maps.insert(iova.0, bytes);
                Ok(())
            }
        }
    }

    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        match self.function.dma_unmap(iova.0, bytes) {
            Err(refused @ RemoteError::Refused { .. }) => Err(HostGpuError::Map {
                iova,
                bytes,
                reason: refused.to_string(),
            }),
            Err(error) => Err(lost(error)),
            Ok(()) => {
                self.maps.remove(&iova.0);
                Ok(())
            }
        }
    }

    fn place_memory(&mut self, _: VmId, _: GuestVramAddr) -> Option<DmaMemory> {
        None
    }

    fn place_frames(&mut self, _: &[FrameNo], _: FrameOwner) -> Result<(), HostGpuError> {
        // The card holds its own memory.
        Ok(())
    }

    fn take_interrupt(&mut self) -> bool {
        self.interrupt.read().is_ok()
    }
}

impl Drop for RemoteGpu {
    fn drop(&mut self) {
        // A hang-up reaches the card at some later time. The owner frees the memory after this drop, so the card must
        // have released it before. With the connection gone it cannot be asked.
        for (iova, bytes) in std::mem::take(&mut self.maps) {
            match self.function.dma_unmap(iova, bytes) {
                Ok(()) | Err(RemoteError::Refused { .. }) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
