//! A card whose buffers come when they are used: a kernel runs on the software card, with the capabilities that no Fermi has, and
//! a policy of `adaptive` decides about each block.
//!
//! ```text
//! plan ─► guests' driver ─► card ─ warp waits ─► fault ──┐      Pager: policy, slots of VRAM, entries of page tables
//!                            │  └ accesses ─► counts ────┼──► look ─► Manager::access ─► brings, evicts, maps on the host
//!                            └─────── replay ◄───────────┘
//! ```
//!
//! The same kernel, with the same buffers at the same addresses, also runs with all of them in VRAM on a card without capabilities; that run is recorded
//! as a trace. Rules:
//! 1. The host looks at the card every [`LOOK_WORK`] units of its work: first at the counts since the last look, those of blocks in VRAM
//!    before those of others, then at the faults, in their order.
//! 2. A block is in VRAM and may be stored to, or it stays on the host: then it has no entries, or entries of system memory that may only be loaded from (a policy that
//!    pins lets them be stored to). A fault is told to the policy as one access; the card counts that access again when it is executed, and it is told once,
//!    or once for each time that the block goes before the warp has had it.
//! 3. A group of faults ends where it would evict what it has brought itself. The rest of it faults again, so each group lets a warp go on.

mod pager;

use card::BareMachine;
use fermi_model::{Capabilities, CopyMicrocode, ReplayableFaults};
use fermi_spec::addr::LARGE_PAGE;
use fermi_spec::bar::Bar;
use guests::driver::{
    COMPUTE_BYTES, Compute, ComputeMemory, DmaBlock, Driver, DriverConfig, DriverError, PageSize,
    STAMP_BYTES, Stamp,
};
use guests::{GuestBus, Options, grid_of};
use kernels::programs::Program;
use kernels::{Buffers, Gpu, Launch, Noise, Piece, Role, Stopped};
use vgpu::VmId;
use vm_memory::VolatileMemory as _;

use crate::host::{LabError, RAM_BYTES};
use crate::programs::{DMA, Kernel, VRAM_VA, bare_machine_with, vram_start};
use crate::replay::{LARGE, Unit};
use crate::traces::{Recorded, Trace};
use pager::Pager;
pub(crate) use pager::{Paged, Policy};

/// Work of the card between two looks: what a trace's quantum executes.
const LOOK_WORK: u32 = (crate::traces::QUANTUM / 16) as u32;
/// VRAM for the code of all programs.
const CODE_BYTES: u64 = LARGE_PAGE;
/// Where buffers are in the channels' address space, each from a large page of 2 MiB on.
const BUFFERS_VA: u64 = 12 << 30;
/// Most blocks of a launch in a direction.
const BLOCKS_MAX: u32 = 0xffff;
/// VRAM for slots of blocks, behind the code.
const fn slots_start() -> u64 {
    (vram_start() + COMPUTE_BYTES + CODE_BYTES).next_multiple_of(LARGE)
}

/// A buffer of the kernel, whose blocks have a place on the host each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Managed {
    va: u64,
    /// Where its blocks are on the host: an address in the card's system memory.
    home: u64,
    words: usize,
}

impl Managed {
    fn blocks(&self) -> u32 {
        (self.words as u64 * 4).div_ceil(Unit::Block.bytes()) as u32
    }
}

/// What a run of a kernel came to.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ran {
    /// Words of each output, by its number.
    pub(crate) outputs: Vec<(usize, Vec<u32>)>,
    /// Time of the launches on the card's clock.
    pub(crate) gpu_ns: u64,
    /// What the pager did; nothing without a policy.
    pub(crate) paged: Paged,
}

/// The machine of the guests' driver, looked at while it waits.
struct PagedMachine {
    machine: BareMachine,
    pager: Option<Pager>,
    error: Option<LabError>,
}

impl PagedMachine {
    /// The host looks at the card. After an error it does nothing more, and the grid waits until the driver gives up.
    fn look(&mut self) {
        let (Some(pager), None) = (&mut self.pager, &self.error) else {
            return;
        };
        match pager.look(&mut self.machine.card) {
            Ok(false) => {}
            Ok(true) => self.machine.card_was_answered(),
            Err(error) => self.error = Some(error),
        }
    }
}

impl GuestBus for PagedMachine {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        self.machine.read32(bar, offset)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        // It may be work for the card, which may rest again before the first turn of the wait is over.
        self.machine.card_was_answered();
        self.machine.write32(bar, offset, value);
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.machine.write64(bar, offset, value);
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        self.machine.ram_read(gpa, data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.machine.ram_write(gpa, data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        self.machine.ram_read32(gpa)
    }

    fn relax(&mut self) {
        self.machine.relax();
        self.look();
    }

    fn now_ns(&mut self) -> u64 {
        self.machine.now_ns()
    }

    fn report(&mut self, line: &str) {
        self.machine.report(line);
    }
}

/// A card with a kernel's buffers.
struct Device {
    bus: PagedMachine,
    driver: Driver,
    compute: Compute,
    stamps: DmaBlock,
    programs: Vec<(&'static Program, u64)>,
    code_next: u64,
    buffers: Vec<Managed>,
    gpu_ns: u64,
    error: Option<LabError>,
}

fn told(error: DriverError) -> LabError {
    LabError::Guest {
        vm: VmId(0),
        what: error.to_string(),
    }
}

/// The buffers of a kernel, each at a large page.
fn managed(list: &Buffers) -> Vec<Managed> {
    let mut next = 0;
    let buffers = list.iter().map(|(_, buffer)| {
        let at = next;
        next = (next + buffer.words as u64 * 4).next_multiple_of(LARGE);
        Managed {
            va: BUFFERS_VA + at,
            home: RAM_BYTES + at,
            words: buffer.words,
        }
    });
    buffers.collect()
}

impl Device {
    /// All buffers in VRAM on a GF100, or blocks that come under a policy.
    fn start(buffers: Vec<Managed>, policy: Option<Policy>) -> Result<Self, LabError> {
        let bytes = buffers.last().map_or(0, |last| {
            last.va - BUFFERS_VA + (last.words as u64 * 4).next_multiple_of(LARGE)
        });
        let slots = match &policy {
            Some(policy) => u64::from(policy.capacity) * Unit::Block.bytes(),
            None => bytes,
        };
        let capabilities = match policy {
            Some(_) => Capabilities {
                access_counters: true,
                replayable_faults: Some(ReplayableFaults::DEFAULT),
            },
            None => Capabilities::NONE,
        };
        let vram_bytes = (slots_start() + slots).next_multiple_of(LARGE);
        let ram_bytes = RAM_BYTES + bytes;
        let mut machine = bare_machine_with(vram_bytes, ram_bytes, CopyMicrocode::Nouveau, capabilities)?;
        machine.work_per_turn = LOOK_WORK;
        let mut driver =
            Driver::start(&mut machine, &DriverConfig::new(DMA, &Options::default())).map_err(told)?;
        let stamps = driver.take_dma(&mut machine, 2 * STAMP_BYTES).map_err(told)?;
        let start = vram_start();
        let mapped = driver
            .map_vram(
                &mut machine,
                VRAM_VA + start,
                start,
                slots_start() - start,
                PageSize::Large,
            )
            .and_then(|()| driver.map_vram(&mut machine, BUFFERS_VA, slots_start(), bytes, PageSize::Small))
            .and_then(|()| match policy {
                // The tables stay, without valid entries.
                Some(_) => driver.unmap(&mut machine, BUFFERS_VA, bytes, PageSize::Small),
                None => Ok(()),
            })
            .and_then(|()| driver.flush_tlb(&mut machine));
        mapped.map_err(told)?;
        let memory = ComputeMemory {
            va: VRAM_VA + start,
            bytes: COMPUTE_BYTES,
        };
        let compute = Compute::new(&mut driver, &mut machine, memory).map_err(told)?;
        let pager = policy.map(|policy| Pager::new(policy, &buffers, slots_start()));
        Ok(Self {
            bus: PagedMachine {
                machine,
                pager,
                error: None,
            },
            driver,
            compute,
            stamps,
            programs: Vec::new(),
            code_next: start + COMPUTE_BYTES,
            buffers,
            gpu_ns: 0,
            error: None,
        })
    }

    /// Where a program is; it is brought there when it is launched for the first time.
    fn code(&mut self, program: &'static Program) -> Result<u64, LabError> {
        let known = self.programs.iter();
        if let Some((_, va)) = known.copied().find(|(known, _)| std::ptr::eq(*known, program)) {
            return Ok(va);
        }
        let at = self.code_next;
        let bytes: Vec<u8> = program.code.iter().flat_map(|word| word.to_le_bytes()).collect();
        let vram = &self.bus.machine.card.vram;
        let slice = vram.get_slice(at as usize, bytes.len());
        slice
            .map_err(|error| fault(format!("no VRAM for code: {error}")))?
            .copy_from(&bytes);
        self.code_next += bytes.len() as u64;
        self.programs.push((program, VRAM_VA + at));
        Ok(VRAM_VA + at)
    }

    /// Runs a grid to its end.
    fn run(&mut self, launch: &Launch<'_>) -> Result<(), LabError> {
        let code = self.code(launch.program)?;
        let [columns, rows] = launch.blocks;
        let widest = columns.min(BLOCKS_MAX);
        let pieces = (0..columns).step_by(widest.max(1) as usize).map(|x| Piece {
            first: [x, 0],
            blocks: [widest.min(columns - x), rows],
        });
        let (compute, driver, bus, stamps) = (&self.compute, &mut self.driver, &mut self.bus, self.stamps);
        for piece in pieces {
            let (constants, count) = launch.parameters.bank(piece);
            let grid = grid_of(launch, piece, code, &constants[..count]);
            let ran = compute
                .stamp(driver, bus, stamps.va, 1)
                .and_then(|()| compute.launch(driver, bus, &grid))
                .and_then(|()| compute.stamp(driver, bus, stamps.va + STAMP_BYTES, 2))
                .and_then(|()| compute.finish(driver, bus))
                .and_then(|()| driver.check_device(bus));
            // What the pager says is the cause of what the driver says.
            bus.look();
            if let Some(error) = bus.error.take() {
                return Err(error);
            }
            ran.map_err(told)?;
            let [start, end] = [0, STAMP_BYTES].map(|at| Stamp::read(bus, stamps.gpa + at).time_ns);
            self.gpu_ns += end - start;
            if let Some(pager) = &mut bus.pager {
                pager.kernel_ends();
            }
        }
        Ok(())
    }

    /// Calls `each` with the memory of each piece of a range of bytes of a buffer, within a block, and with its range.
    fn pieces(
        &self,
        buffer: usize,
        bytes: std::ops::Range<u64>,
        mut each: impl FnMut(&vm_memory::VolatileSlice<'_>, std::ops::Range<usize>),
    ) -> Result<(), LabError> {
        let block = Unit::Block.bytes();
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min((at / block + 1) * block);
            let range = (at - bytes.start) as usize..(end - bytes.start) as usize;
            let card = &self.bus.machine.card;
            let home = self.buffers[buffer].home + at;
            let places = match &self.bus.pager {
                Some(pager) => {
                    let slot = pager.slot_of(buffer, (at / block) as u32);
                    [
                        slot.map(|slot| (&card.vram, slot + at % block)),
                        Some((&card.ram, home)),
                    ]
                }
                None => {
                    let offset = self.buffers[buffer].va - BUFFERS_VA + at;
                    [Some((&card.vram, slots_start() + offset)), None]
                }
            };
            for (memory, at) in places.into_iter().flatten() {
                let slice = memory.get_slice(at as usize, range.len());
                let slice = slice.map_err(|error| fault(format!("no memory of a buffer: {error}")))?;
                each(&slice, range.clone());
            }
            at = end;
        }
        Ok(())
    }

    /// The host loads words: of a block in VRAM, from there.
    fn load_words(&self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), LabError> {
        let start = first as u64 * 4;
        let mut bytes = vec![0; words.len() * 4];
        let mut done = 0;
        self.pieces(buffer, start..start + bytes.len() as u64, |memory, range| {
            // VRAM comes first, if it has the block.
            if range.start == done {
                done = range.end;
                memory.copy_to(&mut bytes[range]);
            }
        })?;
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Ok(())
    }

    /// The host stores words: on the host, and into a block in VRAM too.
    fn store_words(&self, buffer: usize, first: usize, words: &[u32]) -> Result<(), LabError> {
        let start = first as u64 * 4;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.pieces(buffer, start..start + bytes.len() as u64, |memory, range| {
            memory.copy_from(&bytes[range]);
        })
    }

    fn note<T>(&mut self, result: Result<T, LabError>) -> Result<T, Stopped> {
        result.map_err(|error| {
            self.error = Some(error);
            Stopped
        })
    }
}

impl Gpu for Device {
    fn address(&self, buffer: usize) -> u64 {
        self.buffers[buffer].va
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        let ran = self.run(launch);
        self.note(ran)
    }

    fn load(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        let loaded = self.load_words(buffer, first, words);
        self.note(loaded)
    }

    fn store(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped> {
        let stored = self.store_words(buffer, first, words);
        self.note(stored)
    }
}

fn fault(what: String) -> LabError {
    LabError::Fault { what }
}

/// Runs a kernel's plan and holds its outputs against the reference.
fn run_on(device: &mut Device, kernel: Kernel) -> Result<Vec<(usize, Vec<u32>)>, LabError> {
    let name = kernel.name;
    let instance = kernels::make(name, kernel.footprint).ok_or_else(|| fault(format!("no kernel {name}")))?;
    let plan = instance.kernel();
    let (list, noise) = (Buffers::of(plan), Noise::new(1));
    for (number, buffer) in list.iter().filter(|(_, buffer)| buffer.role == Role::Input) {
        let mut words = vec![0; buffer.words];
        plan.fill(noise, number, 0, &mut words);
        device.store_words(number, 0, &words)?;
    }
    for _ in 0..kernel.repeats.max(1) {
        if plan.run(device).is_err() {
            let unknown = || fault(format!("{name} stopped"));
            return Err(device.error.take().unwrap_or_else(unknown));
        }
    }
    let mut memory = vec![0; plan.reference_words()];
    plan.reference(noise, &mut memory);
    let mut outputs = Vec::new();
    for (number, buffer) in list.iter().filter(|(_, buffer)| buffer.role == Role::Output) {
        let (mut got, mut want) = (vec![0; buffer.words], vec![0; buffer.words]);
        device.load_words(number, 0, &mut got)?;
        plan.expected(noise, &memory, number, 0, &mut want);
        let matching = plan.matching(number);
        if !want
            .iter()
            .zip(&got)
            .all(|(want, got)| matching.holds(*want, *got))
        {
            return Err(fault(format!("{name} has wrong results")));
        }
        outputs.push((number, got));
    }
    Ok(outputs)
}

fn buffers_of(kernel: Kernel) -> Result<Vec<Managed>, LabError> {
    let name = kernel.name;
    let instance = kernels::make(name, kernel.footprint);
    let instance = instance.ok_or_else(|| fault(format!("no kernel {name}")))?;
    Ok(managed(&Buffers::of(instance.kernel())))
}

/// Runs a kernel with all of its buffers in VRAM, on a card without capabilities, and records it. The allocations of the trace are the buffers.
pub(crate) fn record(kernel: Kernel) -> Result<(Ran, Trace), LabError> {
    let buffers = buffers_of(kernel)?;
    let pointers = buffers
        .iter()
        .map(|buffer| buffer.va / crate::traces::PAGE)
        .collect();
    let mut device = Device::start(buffers, None)?;
    let recorded = Recorded::default();
    device
        .bus
        .machine
        .card
        .model
        .watch_warps(Some(recorded.watcher()));
    let outputs = run_on(&mut device, kernel)?;
    let ran = Ran {
        outputs,
        gpu_ns: device.gpu_ns,
        paged: Paged::default(),
    };
    let trace = recorded.trace(kernel.name.to_owned(), &pointers, device.gpu_ns);
    Ok((ran, trace))
}

/// Runs a kernel whose blocks come under a policy.
pub(crate) fn run(kernel: Kernel, policy: Policy) -> Result<Ran, LabError> {
    let mut device = Device::start(buffers_of(kernel)?, Some(policy))?;
    let outputs = run_on(&mut device, kernel)?;
    let pager = device.bus.pager.take();
    let card = &device.bus.machine.card;
    let paged = pager.map(|pager| pager.end(card)).transpose()?;
    Ok(Ran {
        outputs,
        gpu_ns: device.gpu_ns,
        paged: paged.unwrap_or_default(),
    })
}
