//! A bare card, brought up by the driver of the guests, with memory for one kernel and its inputs.

use fermi_model::{BareCard, Capabilities, CopyMicrocode, Counters, ModelConfig, Stepped, Timing};
use fermi_spec::addr::Iova;
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::isa::assembler::Program;
use guests::driver::{
    COMPUTE_BYTES, Compute, ComputeMemory, Driver, DriverConfig, Grid, PageSize, STACK_BYTES, USER_VA,
};
use guests::{GuestBus, Options};
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

const VRAM_BYTES: u64 = 64 << 20;
const RAM_BYTES: u64 = 4 << 20;
/// RAM below is not the driver's.
const DMA_START: u64 = 1 << 20;
/// Work of the card in a turn of waiting code.
const WORK: u32 = 4096;
const TURN_NS: u64 = 1_000;
/// Code and inputs have as much.
const PART_BYTES: u64 = 64 << 10;
const CODE_VA: u64 = USER_VA;
/// Where kernels see their inputs: an address of 32 bits.
pub(crate) const INPUT_VA: u64 = CODE_VA + PART_BYTES;
const COMPUTE_VA: u64 = INPUT_VA + PART_BYTES;

struct Bus {
    card: BareCard,
    now_ns: u64,
}

/// The card with a channel for grids.
pub(crate) struct Machine {
    bus: Bus,
    driver: Driver,
    compute: Compute,
    parts: u64,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let config = ModelConfig {
            board: Board::Gtx480,
            vram_bytes: VRAM_BYTES,
            timing: Timing::of(Board::Gtx480),
            copy_microcode: CopyMicrocode::default(),
            strict: false,
            capabilities: Capabilities::NONE,
        };
        let card = BareCard::new(config, Iova(0), RAM_BYTES).expect("a card of this size");
        let mut bus = Bus { card, now_ns: 0 };
        let config = DriverConfig::new(DMA_START..RAM_BYTES, &Options::default());
        let mut driver = Driver::start(&mut bus, &config).expect("the card comes up");
        let parts = Driver::data_start();
        driver
            .map_vram(
                &mut bus,
                CODE_VA,
                parts,
                2 * PART_BYTES + COMPUTE_BYTES,
                PageSize::Small,
            )
            .expect("room in the tables");
        driver.flush_tlb(&mut bus).expect("a flush");
        let memory = ComputeMemory {
            va: COMPUTE_VA,
            bytes: COMPUTE_BYTES,
        };
        let compute = Compute::new(&mut driver, &mut bus, memory).expect("a channel");
        Self {
            bus,
            driver,
            compute,
            parts,
        }
    }

    /// Stores what kernels load.
    pub(crate) fn set_input(&mut self, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.store(self.parts + PART_BYTES, &bytes);
    }

    fn store(&mut self, at: u64, bytes: &[u8]) {
        self.bus
            .card
            .vram
            .as_volatile_slice()
            .write_slice(bytes, at as usize)
            .expect("in VRAM");
    }

    /// Runs a grid to its end.
    pub(crate) fn run(&mut self, program: &Program, blocks: u32, threads: u32) {
        let bytes: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(bytes.len() as u64 <= PART_BYTES, "the code has room");
        self.store(self.parts, &bytes);
        let grid = Grid {
            code: CODE_VA,
            entry: 0,
            registers: program.registers,
            shared_bytes: program.shared_bytes,
            stack_bytes: STACK_BYTES,
            local_bytes: [0, 0],
            barriers: program.barriers,
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            constants: &[0; 64],
            banks: &[],
        };
        let (driver, bus) = (&mut self.driver, &mut self.bus);
        self.compute
            .launch(driver, bus, &grid)
            .expect("a grid that can be");
        self.compute.finish(driver, bus).expect("the grid ends");
        driver.check_device(bus).expect("no error of the kernel");
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.bus.card.model.counters()
    }
}

fn ram(card: &BareCard) -> &MmapRegion {
    &card.ram
}

impl GuestBus for Bus {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.card.model.bar_read(bar, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.card.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.card.model.bar_write(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        let slice = ram(&self.card).as_volatile_slice();
        slice.read_slice(data, gpa as usize).expect("RAM");
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        let slice = ram(&self.card).as_volatile_slice();
        slice.write_slice(data, gpa as usize).expect("RAM");
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let slice = ram(&self.card).as_volatile_slice();
        slice.read_obj(gpa as usize).expect("RAM")
    }

    fn relax(&mut self) {
        if self.card.model.step(0, WORK) == Stepped::Busy {
            self.now_ns += TURN_NS;
        } else {
            // Nothing will come any more: waits end.
            self.now_ns += 1 << 40;
        }
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, _: &str) {}
}
