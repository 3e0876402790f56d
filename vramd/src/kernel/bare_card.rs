//! A software card and some RAM, driven without a broker.

use std::sync::Arc;

use fermi_model::{Backing, CopyMicrocode, FermiModel, ModelConfig, Stepped, SystemBus, Timing};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use fermi_spec::bar::Bar;
use guests::GuestBus;
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

use super::RunError;
use super::launch_file::Place;
use card::CardConfig;

/// Work units of the card in a turn of a waiting driver.
const WORK_PER_TURN: u32 = 4096;
/// Nanoseconds that a turn counts for.
const TURN_NS: u64 = 1_000;
/// More than any wait of the driver.
const LEAP_NS: u64 = 1 << 60;

struct Ram(Arc<MmapRegion>);

impl SystemBus for Ram {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let room = (self.0.size() as u64).checked_sub(at.0)?;
        Backing::new(Arc::clone(&self.0), at.0 as usize, bytes.min(room) as usize)
    }
}

/// The card, its memory, and RAM that it reaches.
pub(super) struct BareCard {
    pub(super) model: FermiModel,
    vram: Arc<MmapRegion>,
    ram: Arc<MmapRegion>,
    /// Clock of the driver's waits; the card's own time is that of its timing alone.
    now_ns: u64,
    /// Turns in a row in which the card had nothing to do.
    idle_turns: u32,
    is_stop_requested: fn() -> bool,
    pub(super) is_interrupted: bool,
}

impl BareCard {
    /// Powers a card on.
    pub(super) fn new(
        config: CardConfig,
        watchdog_ns: u64,
        ram_bytes: u64,
        is_stop_requested: fn() -> bool,
    ) -> Result<Self, RunError> {
        let allocate = |what, bytes: u64| match MmapRegion::new(bytes as usize) {
            Ok(region) => Ok(Arc::new(region)),
            Err(source) => Err(RunError::Memory { what, bytes, source }),
        };
        let vram = allocate("VRAM", config.vram_bytes)?;
        let ram = allocate("RAM", ram_bytes)?;
        let mut timing = Timing::of(config.board);
        timing.shaders.watchdog_ns = watchdog_ns;
        let config = ModelConfig {
            board: config.board,
            vram_bytes: config.vram_bytes,
            timing,
            copy_microcode: CopyMicrocode::default(),
        };
        let mut model = FermiModel::new(config, Arc::new(Ram(Arc::clone(&ram))))?;
        for frame in 0..model.frames() {
            let at = u64::from(frame) * FRAME;
            let backing = Backing::new(Arc::clone(&vram), at as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing)?;
        }
        Ok(Self {
            model,
            vram,
            ram,
            now_ns: 0,
            idle_turns: 0,
            is_stop_requested,
            is_interrupted: false,
        })
    }

    fn memory(&self, place: Place) -> &MmapRegion {
        match place {
            Place::Vram => &self.vram,
            Place::Ram => &self.ram,
        }
    }

    /// Stores bytes in the card's memory directly.
    pub(super) fn store(&mut self, place: Place, at: u64, data: &[u8]) {
        if let Ok(slice) = self.memory(place).get_slice(at as usize, data.len()) {
            slice.copy_from(data);
        }
    }

    /// Bytes as the card left them.
    pub(super) fn load(&self, place: Place, at: u64, bytes: u64) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        if let Ok(slice) = self.memory(place).get_slice(at as usize, data.len()) {
            slice.copy_to(&mut data[..]);
        }
        data
    }
}

impl GuestBus for BareCard {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.model.bar_read(bar, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.load(Place::Ram, gpa, data.len() as u64));
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.store(Place::Ram, gpa, data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let word = self.ram.get_slice(gpa as usize, 4);
        word.ok()
            .and_then(|word| word.read_obj(0).ok())
            .unwrap_or(u32::MAX)
    }

    /// Lets the card work. Once it is idle, no event will come any more: the wait is over.
    fn relax(&mut self) {
        self.now_ns = self.now_ns.wrapping_add(TURN_NS);
        let stepped = self.model.step(0, WORK_PER_TURN);
        self.idle_turns = if stepped == Stepped::Busy {
            0
        } else {
            self.idle_turns + 1
        };
        self.is_interrupted |= (self.is_stop_requested)();
        if self.idle_turns > 1 || self.is_interrupted {
            self.now_ns = self.now_ns.wrapping_add(LEAP_NS);
        }
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, _: &str) {}
}
