//! A bare card that runs launches of our choice: buffers in VRAM, and the card's time for each launch.
//!
//! The host reads and writes buffers without the card, between launches, so neither takes the card's time.

use card::BareMachine;
use fermi_model::CopyMicrocode;
use fermi_spec::addr::{LARGE_PAGE, SMALL_PAGE};
use guests::driver::{
    COMPUTE_BYTES, Compute, ComputeMemory, DmaBlock, Driver, DriverConfig, DriverError, PageSize,
    STAMP_BYTES, Stamp,
};
use guests::{Options, grid_of};
use kernels::programs::Program;
use kernels::{Launch, Piece};
use vgpu::VmId;
use vm_memory::{VolatileMemory as _, VolatileSlice};

use crate::MIB;
use crate::host::LabError;
use crate::programs::{DMA, VRAM_VA, bare_machine, vram_start};

/// VRAM for the code of all programs.
const CODE_BYTES: u64 = LARGE_PAGE;
/// Most blocks of a launch in a direction.
const BLOCKS_MAX: u32 = 0xffff;
/// Words in front of and behind each buffer that nothing may change.
const GUARD_WORDS: usize = 64;
const GUARD_BYTES: u64 = GUARD_WORDS as u64 * 4;
const GUARD: [u32; GUARD_WORDS] = [0x5eed_ca4e; GUARD_WORDS];

/// A buffer in VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceBuffer {
    /// Its virtual address.
    pub(crate) va: u64,
    /// Its length in words.
    pub(crate) words: usize,
}

impl DeviceBuffer {
    fn guards(self) -> [Self; 2] {
        let words = GUARD_WORDS;
        [self.va - GUARD_BYTES, self.va + self.words as u64 * 4].map(|va| Self { va, words })
    }
}

/// A card with a driver.
pub(crate) struct Device {
    machine: BareMachine,
    driver: Driver,
    compute: Compute,
    stamps: DmaBlock,
    programs: Vec<(&'static Program, u64)>,
    buffers: Vec<DeviceBuffer>,
    code_next: u64,
    next: u64,
}

fn fault(what: String) -> LabError {
    LabError::Fault { what }
}

fn told(error: DriverError) -> LabError {
    LabError::Guest {
        vm: VmId(0),
        what: error.to_string(),
    }
}

impl Device {
    /// A GTX 480 with room for so many bytes of buffers.
    pub(crate) fn start(buffer_bytes: u64) -> Result<Self, LabError> {
        let start = vram_start();
        let bytes = start + COMPUTE_BYTES + CODE_BYTES + buffer_bytes;
        let vram_bytes = bytes.next_multiple_of(2 * MIB);
        let mut machine = bare_machine(vram_bytes, CopyMicrocode::Nouveau)?;
        let bus = &mut machine;
        let mut driver = Driver::start(bus, &DriverConfig::new(DMA, &Options::default())).map_err(told)?;
        let stamps = driver.take_dma(bus, 2 * STAMP_BYTES).map_err(told)?;
        let mapped = vram_bytes - start;
        driver
            .map_vram(bus, VRAM_VA + start, start, mapped, PageSize::Large)
            .map_err(told)?;
        driver.flush_tlb(bus).map_err(told)?;
        let memory = ComputeMemory {
            va: VRAM_VA + start,
            bytes: COMPUTE_BYTES,
        };
        let compute = Compute::new(&mut driver, bus, memory).map_err(told)?;
        Ok(Self {
            machine,
            driver,
            compute,
            stamps,
            programs: Vec::new(),
            buffers: Vec::new(),
            code_next: VRAM_VA + start + COMPUTE_BYTES,
            next: VRAM_VA + start + COMPUTE_BYTES + CODE_BYTES,
        })
    }

    /// VRAM that nobody has yet, with guards around it.
    pub(crate) fn allocate(&mut self, words: usize) -> Result<DeviceBuffer, LabError> {
        let va = self.next + GUARD_BYTES;
        self.next = (va + words as u64 * 4 + GUARD_BYTES).next_multiple_of(SMALL_PAGE);
        let buffer = DeviceBuffer { va, words };
        self.buffers.push(buffer);
        for guard in buffer.guards() {
            self.write(guard, &GUARD)?;
        }
        Ok(buffer)
    }

    /// Stores the first words of a buffer.
    pub(crate) fn write(&mut self, buffer: DeviceBuffer, words: &[u32]) -> Result<(), LabError> {
        let words = &words[..words.len().min(buffer.words)];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.vram(buffer.va, bytes.len())?.copy_from(&bytes);
        Ok(())
    }

    /// All words of a buffer.
    pub(crate) fn read(&self, buffer: DeviceBuffer) -> Result<Vec<u32>, LabError> {
        let mut bytes = vec![0; buffer.words * 4];
        self.vram(buffer.va, bytes.len())?.copy_to(&mut bytes[..]);
        let words = bytes.as_chunks().0.iter();
        Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn vram(&self, va: u64, bytes: usize) -> Result<VolatileSlice<'_>, LabError> {
        let slice = self.machine.card.vram.get_slice((va - VRAM_VA) as usize, bytes);
        slice.map_err(|error| fault(format!("no VRAM at {va:#x}: {error}")))
    }

    /// Whether nothing was stored next to a buffer.
    pub(crate) fn guards_hold(&self) -> Result<bool, LabError> {
        for guard in self.buffers.iter().flat_map(|buffer| buffer.guards()) {
            if self.read(guard)? != GUARD {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where a program is; it is brought there when it is launched for the first time.
    fn code(&mut self, program: &'static Program) -> Result<u64, LabError> {
        let known = self.programs.iter();
        if let Some((_, va)) = known.copied().find(|(known, _)| std::ptr::eq(*known, program)) {
            return Ok(va);
        }
        let va = self.code_next;
        let bytes: Vec<u8> = program.code.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.vram(va, bytes.len())?.copy_from(&bytes);
        self.code_next += bytes.len() as u64;
        self.programs.push((program, va));
        Ok(va)
    }

    /// Runs a grid to its end, in as many launches as it has 65,535 columns of blocks: nanoseconds of the card's time.
    pub(crate) fn run(&mut self, launch: &Launch<'_>) -> Result<u64, LabError> {
        let program = launch.program;
        if launch.parameters.bytes() != program.parameter_bytes {
            return Err(fault(format!("{} has other parameters", program.name)));
        }
        let code = self.code(program)?;
        let [columns, rows] = launch.blocks;
        let widest = columns.min(BLOCKS_MAX);
        let starts = (0..columns).step_by(widest.max(1) as usize);
        let pieces = starts.map(|x| Piece {
            first: [x, 0],
            blocks: [widest.min(columns - x), rows],
        });
        let (compute, driver, bus, stamps) =
            (&self.compute, &mut self.driver, &mut self.machine, self.stamps);
        let ran = compute
            .stamp(driver, bus, stamps.va, 1)
            .and_then(|()| {
                pieces.clone().try_for_each(|piece| {
                    let (constants, count) = launch.parameters.bank(piece);
                    let grid = grid_of(launch, piece, code, &constants[..count]);
                    compute.launch(driver, bus, &grid)
                })
            })
            .and_then(|()| compute.stamp(driver, bus, stamps.va + STAMP_BYTES, 2))
            .and_then(|()| compute.finish(driver, bus))
            .and_then(|()| driver.check_device(bus));
        ran.map_err(told)?;
        let [start, end] = [0, STAMP_BYTES].map(|at| Stamp::read(bus, stamps.gpa + at).time_ns);
        Ok(end - start)
    }
}
