//! A card with memory of its own, which nobody shares: for tools, tests and fuzz targets.

use crate::{
    backing::{Backing, SystemBus},
    model::{FermiModel, ModelConfig, ModelError},
};
use fermi_spec::{
    addr::{FRAME, FrameNo, Iova},
    bar::Bar,
    regs::Bar0Reg,
};
use std::sync::Arc;
use vm_memory::{MmapRegion, mmap::MmapRegionError};

/// A card, all of its VRAM placed, and one range of system memory.
pub struct BareCard {
    /// The card itself.
    pub model: FermiModel,
    /// Its VRAM, byte for byte.
    pub vram: Arc<MmapRegion>,
    /// The system memory that it reaches.
    pub ram: Arc<MmapRegion>,
}

/// Why there is no such card.
#[derive(Debug, thiserror::Error)]
pub enum BareCardError {
    /// The host's memory cannot be mapped.
    #[error("cannot get {bytes} bytes for {what}")]
    Memory {
        /// VRAM or RAM.
        what: &'static str,
        /// Bytes of it.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: MmapRegionError,
    },
    /// No card can be like this.
    #[error("cannot make the software card")]
    Model(#[from] ModelError),
}

/// System memory in one map.
pub(crate) struct Ram {
    pub(crate) base: Iova,
    pub(crate) memory: Arc<MmapRegion>,
}

impl SystemBus for Ram {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let offset = at.0.checked_sub(self.base.0)?;
        let room = (self.memory.size() as u64).checked_sub(offset)?;
        Backing::new(
            Arc::clone(&self.memory),
            offset as usize,
            bytes.min(room) as usize,
        )
    }
}

impl BareCard {
    /// Powers a card on whose system memory begins at bus address `ram_base`.
    pub fn new(config: ModelConfig, ram_base: Iova, ram_bytes: u64) -> Result<Self, BareCardError> {
        let map = |what, bytes: u64| match MmapRegion::new(bytes as usize) {
            Ok(region) => Ok(Arc::new(region)),
            Err(source) => Err(BareCardError::Memory { what, bytes, source }),
        };
        let (vram, ram) = (map("VRAM", config.vram_bytes)?, map("RAM", ram_bytes)?);
        let bus = Ram {
            base: ram_base,
            memory: Arc::clone(&ram),
        };
        let mut model = FermiModel::new(config, Arc::new(bus))?;
        for frame in 0..model.frames() {
            let at = u64::from(frame) * FRAME;
            let backing = Backing::new(Arc::clone(&vram), at as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing)?;
        }
        Ok(Self { model, vram, ram })
    }

    /// Loads from a register.
    pub fn read(&mut self, register: impl Into<Bar0Reg>) -> u32 {
        let (mut word, at) = ([0; 4], register.into().offset());
        self.model.bar_read(Bar::Bar0, u64::from(at), &mut word);
        u32::from_le_bytes(word)
    }

    /// Stores to a register.
    pub fn write(&mut self, register: impl Into<Bar0Reg>, value: u32) {
        let at = register.into().offset();
        self.model
            .bar_write(Bar::Bar0, u64::from(at), &value.to_le_bytes());
    }
}
