//! The port to a card: the calls by which an edge performs [`crate::Action`]s.
//!
//! Implemented over vfio-user (and, to come, VFIO) in the broker, over the software GPU where that is joined. It offers BAR access,
//! DMA mapping, interrupts and capabilities, nothing more: copies and flushes are done by the core's own channel on
//! every backend, and no slice of VRAM crosses it.

use std::sync::Arc;

use fermi_spec::addr::{FrameNo, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use vm_memory::MmapRegion;

use crate::config::{Bus, WindowMode};
use crate::event::{FrameOwner, VmId};
use crate::host::graph::GraphMicrocode;

/// A run of host memory for DMA: `bytes` from `offset` of a mapping that lives as long as the value.
#[derive(Clone, Debug)]
pub struct DmaMemory {
    /// Mapping that holds the memory.
    pub region: Arc<MmapRegion>,
    /// Bytes into it, page-aligned.
    pub offset: u64,
    /// Length in bytes, page-aligned.
    pub bytes: u64,
}

/// Capabilities of a card. Asked, never assumed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bytes of BAR1.
    pub bar1_bytes: u64,
    /// Bytes of BAR3.
    pub bar3_bytes: u64,
    /// A frame that changes its owner reads as zero (the backend scrubs it). Otherwise the core scrubs by copy engine.
    pub frames_arrive_zeroed: bool,
    /// Limits of the path from the card to host memory.
    pub bus: Bus,
    /// What PGRAPH takes for microcode where nobody has any for it: a software card runs none, but may ask for some.
    pub graph: Option<GraphMicrocode>,
    /// The card reaches host memory through this process's own mappings, so what they show may be replaced under it while it
    /// [stands still](HostGpu::stand_still).
    pub follows_mappings: bool,
}

impl Capabilities {
    /// Whether clients may map windows in this mode. Pages of an image have to live elsewhere then and be seen there by the card: it follows what this
    /// process's mappings show, or what they have shown when a map was made, and maps can be made anew.
    pub fn lets_windows(&self, mode: WindowMode) -> bool {
        match mode {
            WindowMode::Auto => self.follows_mappings,
            WindowMode::Direct => self.follows_mappings || self.bus.pins,
            WindowMode::Trapped => false,
        }
    }
}

/// Failures of the card or of the connection to it.
#[derive(Debug, thiserror::Error)]
pub enum HostGpuError {
    /// The card does not answer.
    #[error("the card is gone: {reason}")]
    Lost {
        /// The sign of the loss, for people.
        reason: String,
    },
    /// A DMA map was refused.
    #[error("cannot map {bytes:#x} bytes at {iova} for DMA: {reason}")]
    Map {
        /// First bus address.
        iova: Iova,
        /// Length in bytes.
        bytes: u64,
        /// From the backend.
        reason: String,
    },
    /// A frame's bytes could not be placed.
    #[error("cannot place frame {frame:?}: {reason}")]
    Place {
        /// Number of the frame.
        frame: FrameNo,
        /// From the backend.
        reason: String,
    },
}

/// A Fermi card.
pub trait HostGpu: Send {
    /// Capabilities of the card.
    fn capabilities(&self) -> Capabilities;

    /// Loads `data.len()` bytes, up to 4 KiB. The implementation splits BAR0 (registers and PRAMIN) into the
    /// pieces that a bus carries ([`fermi_spec::regs::pieces::bus_pieces`]), in ascending order.
    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError>;

    /// Stores; split like [`HostGpu::read`]. BAR1 and BAR3 take any length. A later load sees it, but it may wait for
    /// that, or for [`HostGpu::flush`], to be on its way to the card.
    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError>;

    /// Sends every store on its way, and ends what an implementation does to have several accesses come after one another at
    /// once. The performer of actions calls it before it waits for anything.
    fn flush(&mut self) -> Result<(), HostGpuError>;

    /// Lets the card reach `memory` at `iova`.
    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError>;

    /// Takes a map away. The core has flushed every translation before.
    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError>;

    /// Frames have a new owner, see [`crate::Action::PlaceFrames`]. Nothing to do on a card that holds its own memory.
    fn place_frames(&mut self, frames: &[FrameNo], owner: FrameOwner) -> Result<(), HostGpuError>;

    /// The host's memory behind a frame of a VM at this address, or behind one that will come there, so that its pages can be had before the card
    /// writes them; `None` on a card that holds its own memory.
    fn place_memory(&mut self, vm: VmId, at: GuestVramAddr) -> Option<DmaMemory>;

    /// Does `work` while no engine of a card that [follows mappings](Capabilities::follows_mappings) touches memory.
    fn stand_still(&mut self, work: &mut dyn FnMut()) -> Result<(), HostGpuError> {
        work();
        Ok(())
    }

    /// Whether the card raised its interrupt since the last call. An edge with an eventfd answers from that.
    fn take_interrupt(&mut self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_memory_where_the_card_lets_them_and_without_asking_where_that_stops_nobody() {
        let card = |follows_mappings, pins| Capabilities {
            bar1_bytes: 0,
            bar3_bytes: 0,
            frames_arrive_zeroed: false,
            bus: Bus {
                pins,
                ..Bus::default()
            },
            graph: None,
            follows_mappings,
        };
        let modes = [WindowMode::Auto, WindowMode::Direct, WindowMode::Trapped];
        for (card, wanted) in [
            (card(true, false), [true, true, false]),
            (card(false, true), [false, true, false]),
            (card(false, false), [false, false, false]),
        ] {
            assert_eq!(modes.map(|mode| card.lets_windows(mode)), wanted, "{card:?}");
        }
    }
}
