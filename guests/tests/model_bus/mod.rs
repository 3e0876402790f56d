//! The software GF100 alone as a guest's machine, all of its VRAM placed: a bare card.
//!
//! Each test program uses a part of it.
#![allow(dead_code, reason = "shared by test programs that use different parts")]

use fermi_model::{Backing, CopyMicrocode, FermiModel, ModelConfig, Stepped, SystemBus, Timing};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use guests::driver::{Driver, DriverConfig};
use guests::{GuestBus, Options};
use std::sync::Arc;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const VRAM_BYTES: u64 = 64 * MIB;
const RAM_BYTES: usize = 16 << 20;
/// Work units of the card for each turn of a polling loop.
const WORK_PER_TURN: u32 = 256;
const TURN_NS: u64 = 5_000;

struct Ram(Arc<MmapRegion>);

impl SystemBus for Ram {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let room = (RAM_BYTES as u64).checked_sub(at.0)?;
        Backing::new(Arc::clone(&self.0), at.0 as usize, bytes.min(room) as usize)
    }
}

pub(crate) struct ModelBus {
    pub(crate) model: FermiModel,
    vram: Arc<MmapRegion>,
    ram: Arc<MmapRegion>,
    now_ns: u64,
    pub(crate) interrupts: u32,
    /// Called with the card at each reported line.
    pub(crate) on_line: fn(&mut ModelBus, &str),
    /// Lines that the guest reported.
    pub(crate) lines: Vec<String>,
}

impl ModelBus {
    pub(crate) fn new() -> Self {
        let vram = Arc::new(MmapRegion::new(VRAM_BYTES as usize).expect("VRAM"));
        let ram = Arc::new(MmapRegion::new(RAM_BYTES).expect("RAM"));
        let config = ModelConfig {
            board: Board::Quadro6000,
            vram_bytes: VRAM_BYTES,
            timing: Timing::of(Board::Quadro6000),
            copy_microcode: CopyMicrocode::default(),
        };
        let mut model = FermiModel::new(config, Arc::new(Ram(Arc::clone(&ram)))).expect("a card");
        for frame in 0..model.frames() {
            let at = u64::from(frame) * FRAME;
            let backing = Backing::new(Arc::clone(&vram), at as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing).expect("a frame");
        }
        Self {
            model,
            vram,
            ram,
            now_ns: 0,
            interrupts: 0,
            on_line: |_, _| (),
            lines: Vec::new(),
        }
    }

    pub(crate) fn flip_vram_byte(&mut self, at: usize) {
        let vram = self.vram.get_slice(at, 1).expect("inside VRAM");
        let byte: u8 = vram.read_obj(0).expect("a byte");
        vram.write_obj(byte ^ 1, 0).expect("a byte");
    }
}

impl GuestBus for ModelBus {
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
        let ram = self.ram.get_slice(gpa as usize, data.len()).expect("inside RAM");
        ram.copy_to(data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        let ram = self.ram.get_slice(gpa as usize, data.len()).expect("inside RAM");
        ram.copy_from(data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let ram = self.ram.get_slice(gpa as usize, 4).expect("inside RAM");
        ram.read_obj(0).expect("a word")
    }

    fn relax(&mut self) {
        self.now_ns += TURN_NS;
        let _: Stepped = self.model.step(self.now_ns, WORK_PER_TURN);
        self.interrupts += u32::from(self.model.take_interrupt());
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        (self.on_line)(self, line);
    }
}

pub(crate) fn started() -> (ModelBus, Driver) {
    let mut bus = ModelBus::new();
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let driver = Driver::start(&mut bus, &config).expect("bring-up");
    (bus, driver)
}
