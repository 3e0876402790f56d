//! A card in another process: [`vgpu::HostGpu`] over a vfio-user socket.
//!
//! ```text
//! connect: socket ► version, regions ► DEVICE_RESET ► PCI identity, BARs ► bus master, MSI ► eventfd
//! ```
//!
//! The card may have been used before, by a broker that is gone: it is reset first, and nothing is assumed of its
//! memory. Stores are posted, and sent together before the next load, or when the edge is about to wait. Whatever the
//! server does wrong, or does not do within [`ANSWER_WAIT`], is a lost card. A refused DMA map is not: it costs one VM.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use fermi_spec::addr::{FrameNo, Iova};
use fermi_spec::board::{BAR0_BYTES, Board, VENDOR};
use vfio_user_server::remote::ANSWER_WAIT;
use vfio_user_server::{IrqIndex, Region, RemoteError, RemoteFunction};
use vgpu::{Bar, Capabilities, DmaMemory, FrameOwner, HostGpu, HostGpuError, bar0_piece};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Offsets in configuration space (PCI Local Bus Specification 3.0, §§6.1 and 6.7).
mod config {
    pub(super) const IDS: u64 = 0;
    pub(super) const COMMAND: u64 = 4;
    pub(super) const CAPABILITIES: u64 = 0x34;
    /// Of the MSI capability, its message control.
    pub(super) const MSI_CONTROL: u64 = 2;
    pub(super) const MSI_ENABLE: u16 = 1;
    pub(super) const MSI_ID: u8 = 5;
    /// Memory space, bus master; INTx off.
    pub(super) const COMMAND_BITS: u16 = 1 << 1 | 1 << 2 | 1 << 10;
    /// As many capabilities as fit behind the header. A longer list is a loop.
    pub(super) const CAPABILITIES_MAX: usize = 48;
}

/// Least BAR1: the USERD array and a window must fit. Least BAR3: the arena of a small card.
const WINDOW_BYTES_MIN: u64 = 16 << 20;
/// Largest window that configuration space can show to guests.
const WINDOW_BYTES_MAX: u64 = 1 << 36;

/// Why a card in another process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteGpuError {
    /// No connection, or the server does not do what the protocol asks.
    #[error("cannot attach to the card at {}", path.display())]
    Attach {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: RemoteError,
    },
    /// What is served there is something else.
    #[error("what {} serves is no GF100 card: {what}", path.display())]
    NotACard {
        /// The socket.
        path: PathBuf,
        /// What it has, and what a card has.
        what: String,
    },
    /// No descriptor.
    #[error("cannot create {what} of the card")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the host said.
        #[source]
        source: io::Error,
    },
}

/// A card in another process. Dropping it hangs up; the card lives on.
#[derive(Debug)]
pub struct RemoteGpu {
    function: RemoteFunction,
    board: Board,
    interrupt: EventFd,
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
        check_regions(&function).map_err(not_a_card)?;
        let board = read_board(&function).map_err(attach)?.map_err(not_a_card)?;
        function.reset().map_err(attach)?;
        let interrupt =
            EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(|source| RemoteGpuError::System {
                what: "the interrupt",
                source,
            })?;
        enable(&function).map_err(attach)?.map_err(not_a_card)?;
        function.connect_irq(IrqIndex::Msi, &interrupt).map_err(attach)?;
        Ok(Self {
            function,
            board,
            interrupt,
        })
    }

    /// Which board it is.
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

fn check_regions(function: &RemoteFunction) -> Result<(), String> {
    let registers = function.region_bytes(Region::Bar0);
    if registers < BAR0_BYTES {
        return Err(format!(
            "its BAR0 has {registers:#x} bytes instead of {BAR0_BYTES:#x}"
        ));
    }
    for (name, region) in [("BAR1", Region::Bar1), ("BAR3", Region::Bar3)] {
        let bytes = function.region_bytes(region);
        if !bytes.is_power_of_two() || !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&bytes) {
            return Err(format!(
                "its {name} has {bytes:#x} bytes, not a power of two from {WINDOW_BYTES_MIN:#x} on"
            ));
        }
    }
    Ok(())
}

fn read_board(function: &RemoteFunction) -> Result<Result<Board, String>, RemoteError> {
    let mut ids = [0; 4];
    function.read(Region::Config, config::IDS, &mut ids)?;
    let [vendor, device] = [[ids[0], ids[1]], [ids[2], ids[3]]].map(u16::from_le_bytes);
    let board = Board::from_device_id(device).filter(|_| vendor == VENDOR);
    Ok(board.ok_or_else(|| format!("its PCI id is {vendor:04x}:{device:04x}")))
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

/// An error and what is behind it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |line, source| format!("{line}: {source}"))
}

fn lost(error: RemoteError) -> HostGpuError {
    HostGpuError::Lost {
        reason: chain(&error),
    }
}

impl HostGpu for RemoteGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            bar1_bytes: self.function.region_bytes(Region::Bar1),
            bar3_bytes: self.function.region_bytes(Region::Bar3),
            frames_arrive_zeroed: false,
        }
    }

    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        if bar != Bar::Bar0 {
            return self.function.read(region_of(bar), offset, data).map_err(lost);
        }
        let (mut rest, mut offset) = (data, offset);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at_mut(bar0_piece(offset, rest.len()));
            self.function.read(Region::Bar0, offset, piece).map_err(lost)?;
            offset = offset.wrapping_add(piece.len() as u64);
            rest = after;
        }
        Ok(())
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        if bar != Bar::Bar0 {
            return self.function.post(region_of(bar), offset, data).map_err(lost);
        }
        let (mut rest, mut offset) = (data, offset);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(bar0_piece(offset, rest.len()));
            self.function.post(Region::Bar0, offset, piece).map_err(lost)?;
            offset = offset.wrapping_add(piece.len() as u64);
            rest = after;
        }
        Ok(())
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
            other => other.map_err(lost),
        }
    }

    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        match self.function.dma_unmap(iova.0, bytes) {
            Err(refused @ RemoteError::Refused { .. }) => Err(HostGpuError::Map {
                iova,
                bytes,
                reason: refused.to_string(),
            }),
            other => other.map_err(lost),
        }
    }

    fn place_frame(&mut self, _: FrameNo, _: FrameOwner) -> Result<(), HostGpuError> {
        // The card holds its own memory.
        Ok(())
    }

    fn take_interrupt(&mut self) -> bool {
        self.interrupt.read().is_ok()
    }
}

#[cfg(test)]
mod tests;
