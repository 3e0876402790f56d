//! What guests of the lab do: ordinary guest code, by the driver of crate `guests`.

use card::BareMachine;
use fermi_model::{BareCard, Capabilities, CopyMicrocode, ModelConfig, Timing};
use fermi_spec::addr::{Iova, LARGE_PAGE};
use fermi_spec::board::Board;
use guests::driver::{Copier, Copy, CopyPath, DmaBlock, Driver, DriverConfig, PageSize};
use guests::{GuestBus, KernelSummary, Machine, Options, Summary, Workload, scratch_words};
use sim_host::bus::SimBus;

use crate::MIB;
use crate::host::{LabError, RAM_BYTES};

/// Guest RAM for rings, pushbuffers and staging.
pub(crate) const DMA: std::ops::Range<u64> = MIB..RAM_BYTES;
/// Where VRAM address 0 would be in the channels' address space.
pub(crate) const VRAM_VA: u64 = 8 << 30;
/// Bytes that go through staging memory at a time.
const PIECE: u64 = LARGE_PAGE;
const PIECES_BYTES: usize = PIECE as usize;

/// Guest VRAM in front of what programs put there.
pub(crate) const fn vram_start() -> u64 {
    Driver::data_start()
}

/// A program with objects in VRAM, each mapped by itself: what `cudaMalloc` is to the paper's driver.
pub(crate) struct Objects {
    driver: Driver,
    copier: Copier,
    staging: DmaBlock,
    /// Start in guest VRAM and bytes of each.
    list: Vec<(u64, u64)>,
    next: u64,
}

fn told(error: guests::DriverError) -> String {
    error.to_string()
}

/// Byte patterns of an object: word `at` of an object of kind `kind`.
fn pattern(kind: u64, at: u64) -> u64 {
    (kind << 40 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Objects {
    /// Brings the device up. Channels are there, and no object.
    pub(crate) fn start(bus: &mut SimBus) -> Result<Box<Self>, String> {
        let config = DriverConfig::new(DMA, &Options::default());
        let mut driver = Driver::start(bus, &config).map_err(told)?;
        let copier = Copier::new(&mut driver, bus).map_err(told)?;
        let staging = driver.take_dma(bus, PIECE).map_err(told)?;
        driver.flush_tlb(bus).map_err(told)?;
        Ok(Box::new(Self {
            driver,
            copier,
            staging,
            list: Vec::new(),
            next: vram_start(),
        }))
    }

    /// Maps so many bytes more.
    pub(crate) fn allocate(&mut self, bus: &mut SimBus, bytes: u64) -> Result<usize, String> {
        let at = self.next;
        self.next += bytes;
        self.driver
            .map_vram(bus, VRAM_VA + at, at, bytes, PageSize::Large)
            .map_err(told)?;
        self.driver.flush_tlb(bus).map_err(told)?;
        self.list.push((at, bytes));
        Ok(self.list.len() - 1)
    }

    fn pieces(&self, object: usize) -> impl Iterator<Item = u64> + use<> {
        let (at, bytes) = self.list.get(object).copied().unwrap_or((0, 0));
        (at..at + bytes).step_by(PIECES_BYTES).map(|at| VRAM_VA + at)
    }

    fn copy(&mut self, bus: &mut SimBus, source: u64, target: u64, bytes: u64) -> Result<(), String> {
        let copy = Copy {
            source,
            target,
            bytes,
        };
        self.copier
            .copy(&mut self.driver, bus, CopyPath::Copy0, copy)
            .map_err(told)
    }

    fn finish(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.copier.finish(&mut self.driver, bus).map_err(told)
    }

    /// Gives an object its bytes: all objects of one kind have the same.
    pub(crate) fn fill(&mut self, bus: &mut SimBus, object: usize, kind: u64) -> Result<(), String> {
        let words = (0..PIECE / 8).flat_map(|at| pattern(kind, at).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        bus.ram_write(self.staging.gpa, &bytes);
        for target in self.pieces(object) {
            self.copy(bus, self.staging.va, target, PIECE)?;
        }
        self.finish(bus)
    }

    /// Checks that an object has the bytes that it was given.
    pub(crate) fn check(&mut self, bus: &mut SimBus, object: usize, kind: u64) -> Result<(), String> {
        let mut bytes = vec![0; PIECES_BYTES];
        for source in self.pieces(object) {
            bus.ram_write(self.staging.gpa, &[0xa5; 4096]);
            self.copy(bus, source, self.staging.va, PIECE)?;
            self.finish(bus)?;
            bus.ram_read(self.staging.gpa, &mut bytes);
            let words = bytes.as_chunks::<8>().0.iter();
            let mut words = words.map(|word| u64::from_le_bytes(*word));
            if !(0..PIECE / 8).all(|at| words.next() == Some(pattern(kind, at))) {
                return Err(format!(
                    "object {object} has other bytes at {source:#x} than it was given"
                ));
            }
        }
        Ok(())
    }

    /// Copies the first half of some objects onto the second half, which has the same bytes. Waits for the end.
    pub(crate) fn stream(&mut self, bus: &mut SimBus, objects: std::ops::Range<usize>) -> Result<(), String> {
        let half = objects.len() / 2;
        for source in objects.start..objects.start + half {
            let (from, bytes) = self.list.get(source).copied().unwrap_or((0, 0));
            let (to, _) = self.list.get(source + half).copied().unwrap_or((0, 0));
            self.copy(bus, VRAM_VA + from, VRAM_VA + to, bytes)?;
        }
        self.finish(bus)
    }
}

/// A GTX 480 that nobody shares.
pub(crate) fn bare_machine(vram_bytes: u64, copy_microcode: CopyMicrocode) -> Result<BareMachine, LabError> {
    bare_machine_with(vram_bytes, RAM_BYTES, copy_microcode, Capabilities::NONE)
}

/// The same with so much system memory, and with what no GTX 480 can do.
pub(crate) fn bare_machine_with(
    vram_bytes: u64,
    ram_bytes: u64,
    copy_microcode: CopyMicrocode,
    capabilities: Capabilities,
) -> Result<BareMachine, LabError> {
    let config = ModelConfig {
        board: Board::Gtx480,
        vram_bytes,
        timing: Timing::of(Board::Gtx480),
        copy_microcode,
        strict: false,
        capabilities,
    };
    let card = BareCard::new(config, Iova(0), ram_bytes).map_err(|error| LabError::Fault {
        what: format!("no bare card: {error}"),
    })?;
    Ok(BareMachine::new(card))
}

/// A kernel, and how much of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Bytes of its buffers.
    pub(crate) footprint: u64,
    /// How often its plan is run.
    pub(crate) repeats: u32,
}

/// The paper's programs, all of Rodinia's, and the names of ours are the same.
pub(crate) const SIX: [&str; 6] = ["backprop", "bfs", "heartwall", "hotspot", "lud", "srad2"];

impl Kernel {
    /// Runs it to its end, on any machine. Results that are wrong are an error.
    pub(crate) fn run(self, bus: &mut dyn GuestBus) -> Result<KernelSummary, String> {
        let workload = Workload::named(self.name).ok_or_else(|| format!("no kernel {}", self.name))?;
        let options = Options {
            workload,
            footprint: Some(self.footprint),
            rounds: 1,
            repeats: self.repeats,
            ..Options::default()
        };
        let mut scratch = vec![0; scratch_words(workload, self.footprint)];
        let machine = Machine {
            dma: DMA,
            scratch: &mut scratch,
            inputs: &[],
            options,
        };
        match guests::run(bus, machine).map_err(told)? {
            Summary::Kernel(summary) if summary.mismatches == 0 => Ok(summary),
            Summary::Kernel(summary) => Err(format!("{} words are wrong", summary.mismatches)),
            Summary::Files(_) => Err(format!("{} is no kernel", self.name)),
        }
    }

    /// A bare card on which it fits.
    pub(crate) fn bare_machine(self) -> Result<BareMachine, LabError> {
        bare_machine(
            self.guest_vram().next_multiple_of(2 * MIB),
            CopyMicrocode::Nouveau,
        )
    }

    /// Guest VRAM that it needs.
    pub(crate) fn guest_vram(self) -> u64 {
        // Behind the driver's: the channel's own memory, code, buffers that begin pages.
        (vram_start() + 3 * MIB + self.footprint).next_multiple_of(MIB)
    }

    /// Whether a line says that the plan is about to be run (`false`), or has been (`true`).
    pub(crate) fn marks(line: &str) -> Option<bool> {
        let is_run = line.contains(r#""phase":"run""#);
        is_run.then(|| !line.contains(r#""done":0"#))
    }
}
