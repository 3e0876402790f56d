//! A launch on a bare card: prepared, run, and its memory read.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use card::BareMachine;
use fermi_model::{BareCard, Capabilities, CopyMicrocode, ModelConfig, ShaderPlace, Timing};
use fermi_spec::addr::Iova;
use fermi_spec::fault::{FaultType, Reason, WARP_ERRORS};
use fermi_spec::regs::pgraph::{MP_GLOBAL_OUT_OF_STACK, MP_GLOBAL_TIMEOUT};
use guests::Options;
use guests::driver::{
    Compute, ComputeMemory, ConstantBank, DmaBlock, Driver, DriverConfig, DriverError, Grid, PageSize,
    STAMP_BYTES, Stamp,
};
use vm_memory::{MmapRegion, VolatileMemory as _};

use super::launch_file::{BufferMemory, LaunchFile};
use super::plan::{LOCAL_UNIT, Plan, RAM_START, Region};
use super::trace::{Trace, TraceChoice, Tracer};
use super::{KernelError, RunError};

/// Where the driver's part of RAM begins.
const DMA_START: u64 = 1 << 20;
const STARTED: u32 = 1;
const ENDED: u32 = 2;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunChoice {
    pub(crate) trace: Option<TraceChoice>,
    /// Time on the host's clock after which the launch is given up.
    pub(crate) host_time_limit: Duration,
}

/// A part of a buffer at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    pub(crate) buffer: String,
    pub(crate) va: u64,
    pub(crate) offset: u64,
    pub(crate) words: Vec<u32>,
}

/// Why the grid ended before its program did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// Name of the error in the hardware's documentation.
    pub(crate) name: String,
    /// The address that the MMU refused, and whether it was a store.
    pub(crate) access: Option<(u64, bool)>,
    /// Position of a warp.
    pub(crate) place: Option<ShaderPlace>,
    /// The instruction there and its line in the code's file.
    pub(crate) instruction: Option<(String, u32)>,
}

/// Results of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) registers: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) gpu_ns: u64,
    pub(crate) warp_instructions: u64,
    pub(crate) lane_instructions: u64,
    /// Bytes in segments of 128: VRAM, from RAM, to RAM.
    pub(crate) vram_bytes: u64,
    pub(crate) ram_read_bytes: u64,
    pub(crate) ram_written_bytes: u64,
    /// Empty if there was a fault.
    pub(crate) shown: Vec<Shown>,
    pub(crate) fault: Option<Fault>,
    pub(crate) trace: Option<Trace>,
    pub(crate) code: PathBuf,
}

/// The host's time for a launch, from its first file on.
#[derive(Clone, Copy)]
struct HostTime {
    start: Instant,
    limit: Duration,
}

impl HostTime {
    fn is_over(self) -> bool {
        self.start.elapsed() >= self.limit
    }
}

/// Runs a launch file.
pub(crate) fn run(path: &Path, choice: RunChoice) -> Result<Outcome, RunError> {
    let time = HostTime {
        start: Instant::now(),
        limit: choice.host_time_limit,
    };
    match run_within(time, path, choice) {
        // All waits of a driver end when the time is over: it fails at whatever it waited for.
        Err(RunError::Driver { .. }) if time.is_over() => Err(RunError::HostTime { limit: time.limit }),
        outcome => outcome,
    }
}

fn run_within(time: HostTime, path: &Path, choice: RunChoice) -> Result<Outcome, RunError> {
    let file = LaunchFile::load(path)?;
    let plan = Plan::new(path, file)?;
    if let Some(trace) = choice.trace {
        check_trace(&plan, trace)?;
    }
    let mut bench = Bench::new(path, &plan, time)?;
    let traced = choice.trace.map(|trace| {
        let (tracer, lines) = Tracer::new(trace, plan.file.grid);
        bench.machine.card.model.watch_warps(Some(Box::new(tracer)));
        lines
    });
    let fault = bench.launch(&plan)?;
    let mut outcome = bench.outcome(&plan, fault);
    outcome.trace = traced.map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner).clone());
    Ok(outcome)
}

fn check_trace(plan: &Plan, trace: TraceChoice) -> Result<(), RunError> {
    let blocks = plan.file.grid.iter().map(|blocks| u64::from(*blocks)).product();
    let warps = plan.file.block.iter().product::<u32>().div_ceil(32);
    if trace.block >= blocks || trace.warp >= warps {
        return Err(RunError::NoSuchWarp {
            block: trace.block,
            warp: trace.warp,
            blocks,
            warps,
        });
    }
    Ok(())
}

/// The card that the launch file asks for, with RAM for its buffers there.
fn power_on(plan: &Plan) -> Result<BareMachine, RunError> {
    let card = plan.file.card;
    let mut timing = Timing::of(card.board);
    timing.shaders.watchdog_ns = plan.file.watchdog_ms * 1_000_000;
    let config = ModelConfig {
        board: card.board,
        vram_bytes: card.vram_bytes,
        timing,
        copy_microcode: CopyMicrocode::default(),
        strict: false,
        capabilities: Capabilities::NONE,
    };
    let card = BareCard::new(config, Iova(0), plan.ram_end.max(RAM_START))?;
    Ok(BareMachine::new(card))
}

fn memory(card: &BareCard, place: BufferMemory) -> &MmapRegion {
    match place {
        BufferMemory::Vram => &card.vram,
        BufferMemory::Ram => &card.ram,
    }
}

/// A card with a driver and a launch's memory.
struct Bench {
    machine: BareMachine,
    driver: Driver,
    stamps: DmaBlock,
    host_time: HostTime,
}

impl Bench {
    fn new(path: &Path, plan: &Plan, time: HostTime) -> Result<Self, RunError> {
        let file = &plan.file;
        let mut machine = power_on(plan)?;
        machine.is_stop_requested = Box::new(move || time.is_over());
        let config = DriverConfig::new(DMA_START..RAM_START, &Options::default());
        let started = Driver::start(&mut machine, &config);
        let mut driver = started.map_err(|source| failed("bring the card up", source))?;
        let stamps = driver.take_dma(&mut machine, 2 * STAMP_BYTES);
        let stamps = stamps.map_err(|source| failed("get memory for stamps", source))?;
        let mut bench = Self {
            machine,
            driver,
            stamps,
            host_time: time,
        };
        bench.put("code", &plan.code, Some(&plan.program.bytes()))?;
        bench.put("local memory", &plan.compute, None)?;
        for bank in &plan.banks {
            let name = format!("constant bank {}", bank.number);
            bench.put(&name, &bank.region, Some(&bank.data))?;
        }
        for (index, region) in plan.buffers.iter().enumerate() {
            let name = format!("buffer {}", file.buffers[index].name);
            let content = plan.content(path, index)?;
            bench.put(&name, region, content.as_deref())?;
        }
        let flushed = bench.driver.flush_tlb(&mut bench.machine);
        flushed.map_err(|source| failed("flush the TLB", source))?;
        Ok(bench)
    }

    /// Maps memory and fills it; it is zero before.
    fn put(&mut self, name: &str, region: &Region, data: Option<&[u8]>) -> Result<(), RunError> {
        let (driver, machine) = (&mut self.driver, &mut self.machine);
        let (va, at, bytes) = (region.va, region.at, region.mapped_bytes());
        let mapped = match region.place {
            BufferMemory::Ram => driver.map_ram(machine, va, at, bytes),
            BufferMemory::Vram if region.fits_large_pages() => {
                driver.map_vram(machine, va, at, bytes, PageSize::Large)
            }
            BufferMemory::Vram => driver.map_vram(machine, va, at, bytes, PageSize::Small),
        };
        mapped.map_err(|source| failed(&format!("map {name}"), source))?;
        if let Some(data) = data {
            let memory = memory(&self.machine.card, region.place);
            if let Ok(slice) = memory.get_slice(region.at as usize, data.len()) {
                slice.copy_from(data);
            }
        }
        Ok(())
    }

    /// Runs the grid between two stamps.
    fn launch(&mut self, plan: &Plan) -> Result<Option<Fault>, RunError> {
        let (file, needs) = (&plan.file, plan.program.needs());
        let memory = ComputeMemory {
            va: plan.compute.va,
            bytes: plan.compute.bytes,
        };
        let banks: Vec<_> = plan
            .banks
            .iter()
            .map(|bank| ConstantBank {
                number: bank.number,
                va: bank.region.va,
                bytes: bank.data.len() as u32,
            })
            .collect();
        let local = file.local_bytes.unwrap_or(needs.local_bytes);
        let grid = Grid {
            code: plan.code.va,
            entry: plan.entry,
            registers: file.registers.unwrap_or(needs.registers),
            shared_bytes: file.shared_bytes.unwrap_or(needs.shared_bytes),
            stack_bytes: file.stack_bytes,
            local_bytes: [local.next_multiple_of(LOCAL_UNIT), 0],
            barriers: file.barriers.unwrap_or(needs.barriers),
            blocks: file.grid,
            threads: file.block,
            constants: &[],
            banks: &banks,
        };
        let (driver, machine) = (&mut self.driver, &mut self.machine);
        let queued = Compute::new(driver, machine, memory).and_then(|compute| {
            compute.stamp(driver, machine, self.stamps.va, STARTED)?;
            compute.launch(driver, machine, &grid)?;
            compute.stamp(driver, machine, self.stamps.va + STAMP_BYTES, ENDED)?;
            Ok(compute)
        });
        let compute = queued.map_err(|source| failed("queue the launch", source))?;
        let finished = compute.finish(driver, machine);
        if machine.is_stopped {
            let limit = self.host_time.limit;
            return Err(RunError::HostTime { limit });
        }
        match finished.and_then(|()| driver.check_device(machine)) {
            Ok(()) => Ok(None),
            Err(error) => match fault_name(&error) {
                Some((name, access)) => Ok(Some(self.fault(plan, name, access))),
                None => Err(failed("run the grid", error)),
            },
        }
    }

    fn fault(&self, plan: &Plan, name: String, access: Option<(u64, bool)>) -> Fault {
        let place = self.machine.card.model.stopped_at();
        Fault {
            name,
            access,
            place,
            instruction: place.and_then(|place| plan.program.at(place.pc)),
        }
    }

    fn outcome(&mut self, plan: &Plan, fault: Option<Fault>) -> Outcome {
        let stamps = [0, STAMP_BYTES].map(|at| Stamp::read(&mut self.machine, self.stamps.gpa + at));
        let ended = if stamps[1].payload == ENDED {
            stamps[1].time_ns
        } else {
            self.machine.card.model.gpu_time()
        };
        let shown = |shown: &super::plan::Shown| {
            let region = &plan.buffers[shown.buffer];
            let mut bytes = vec![0; shown.bytes as usize];
            let at = (region.at + shown.offset) as usize;
            if let Ok(slice) = memory(&self.machine.card, region.place).get_slice(at, bytes.len()) {
                slice.copy_to(&mut bytes[..]);
            }
            Shown {
                buffer: plan.file.buffers[shown.buffer].name.clone(),
                va: region.va + shown.offset,
                offset: shown.offset,
                words: bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|word| u32::from_le_bytes(*word))
                    .collect(),
            }
        };
        let shown = match fault {
            None => plan.shown.iter().map(shown).collect(),
            Some(_) => Vec::new(),
        };
        let counters = self.machine.card.model.counters();
        let (file, needs) = (&plan.file, plan.program.needs());
        Outcome {
            grid: file.grid,
            block: file.block,
            registers: file.registers.unwrap_or(needs.registers),
            shared_bytes: file.shared_bytes.unwrap_or(needs.shared_bytes),
            gpu_ns: ended.saturating_sub(stamps[0].time_ns),
            warp_instructions: counters.warp_instructions,
            lane_instructions: counters.lane_instructions,
            vram_bytes: counters.shader_vram_bytes,
            ram_read_bytes: counters.shader_downstream_bytes,
            ram_written_bytes: counters.shader_upstream_bytes,
            shown,
            fault,
            trace: None,
            code: file.code.clone(),
        }
    }
}

fn failed(what: &str, source: DriverError) -> RunError {
    RunError::Driver {
        what: what.to_owned(),
        source,
    }
}

/// Name of the hardware's error about a grid, and the access that was refused.
fn fault_name(error: &DriverError) -> Option<(String, Option<(u64, bool)>)> {
    match *error {
        DriverError::MmuFault { va, kind, .. } => {
            let record = FaultType::from_bits(kind);
            let name = Reason::from_code(record.reason()).map_or("UNKNOWN", Reason::name);
            Some((name.to_owned(), Some((va, record.write()))))
        }
        DriverError::ShaderTrap { warp: 0, global } => {
            let name = match global {
                global if global & MP_GLOBAL_OUT_OF_STACK != 0 => "OUT_OF_STACK_SPACE",
                global if global & MP_GLOBAL_TIMEOUT != 0 => "TIMEOUT_ERROR",
                _ => "UNKNOWN",
            };
            Some((name.to_owned(), None))
        }
        DriverError::ShaderTrap { warp, .. } => {
            let name = WARP_ERRORS.get(warp as usize).copied().unwrap_or("UNKNOWN");
            Some((name.to_owned(), None))
        }
        _ => None,
    }
}

impl From<KernelError> for RunError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(error)
    }
}
