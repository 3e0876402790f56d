//! The card as its embedder sees it.

use crate::{
    backing::{Backing, SystemBus},
    capabilities::Capabilities,
    clock::Clock,
    compute::{ShaderPlace, WarpWatcher, Worker, Workers},
    context::Contexts,
    counters::Counters,
    doorbells::DoorbellWatcher,
    engine::{UNITS, Unit},
    faults::Faults,
    graph::Graph,
    identity::Identity,
    interrupts::Interrupts,
    ltc::Ltc,
    memory::Memory,
    microcode::CopyMicrocode,
    mmu::Mmu,
    pbdma::Pbdma,
    pci::ConfigSpace,
    peephole::Peephole,
    pfifo::Pfifo,
    pmu::Pmu,
    storage::Storage,
    timing::{Links, Timing},
    unknown::UnknownRegisters,
    windows::Windows,
};
use fermi_spec::{
    addr::{FRAME, FrameNo},
    bar::Bar,
    board::Board,
    engine::{Engine, PBDMAS},
    vbios,
};
use std::{fmt, sync::Arc};

/// VRAM comes in multiples of this.
const VRAM_UNIT: u64 = 1 << 20;
/// Largest VRAM: 25 bits of 4 KiB frames in a VRAM entry.
const VRAM_MAX: u64 = 1 << 37;
/// PMC_ENABLE as the VBIOS leaves it on a Quadro 6000 (read by GPUvm): PFIFO and PMU on, PGRAPH and copy engines off.
pub(crate) const PMC_ENABLE_AT_RESET: u32 = 0xe001_213d;

/// Parameters of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelConfig {
    /// Identity of the board.
    pub board: Board,
    /// VRAM, a multiple of 1 MiB; need not be the board's own.
    pub vram_bytes: u64,
    /// Speeds of its units and links.
    pub timing: Timing,
    /// Microcode whose methods the copy engines have.
    pub copy_microcode: CopyMicrocode,
    /// PGRAPH forgives nothing that a card would not: it takes no channel before FECS was started with code of its own and of
    /// the GPCs, it refuses a context image that it never saved, and it writes the register list that an image names.
    pub strict: bool,
    /// What it can do that no Fermi can.
    pub capabilities: Capabilities,
}

/// Why the embedder's request cannot be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModelError {
    /// No card can have VRAM of this size.
    #[error("VRAM of {bytes} bytes is not a multiple of 1 MiB between 1 MiB and 128 GiB")]
    VramSize {
        /// The size in bytes that was asked for.
        bytes: u64,
    },
    /// There is no such frame.
    #[error("the card has no frame {frame}: it has {frames} frames")]
    NoSuchFrame {
        /// The number of the frame that was asked for.
        frame: u32,
        /// The number of frames that there are.
        frames: u32,
    },
    /// The memory for a frame is not as long as a frame.
    #[error("memory of {bytes} bytes does not fit frame {frame}, which has 131072")]
    FrameSize {
        /// The number of the frame that was asked for.
        frame: u32,
        /// Bytes of the memory offered.
        bytes: usize,
    },
}

/// Work that a step left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// There is more to do now.
    Busy,
    /// Only acquires, stopped units, a preempt that waits for them, a grid that waits for pages or an alarm are left: nothing happens
    /// until memory, a register or the host's time changes, or faults are replayed. Worth another step soon.
    Waiting,
    /// Nothing to do.
    Idle,
}

/// A software GF100 card.
pub struct FermiModel {
    pub(crate) board: Board,
    pub(crate) vram_bytes: u64,
    pub(crate) identity: Identity,
    pub(crate) mem: Memory,
    pub(crate) mmu: Mmu,
    pub(crate) clock: Clock,
    pub(crate) timing: Timing,
    pub(crate) copy_microcode: CopyMicrocode,
    /// PGRAPH is as strict as a card: [`ModelConfig::strict`].
    pub(crate) strict: bool,
    pub(crate) capabilities: Capabilities,
    pub(crate) links: Links,
    pub(crate) faults: Faults,
    pub(crate) storage: Storage,
    pub(crate) windows: Windows,
    pub(crate) interrupts: Interrupts,
    pub(crate) pfifo: Pfifo,
    pub(crate) pbdmas: [Pbdma; PBDMAS],
    pub(crate) units: [Unit; UNITS],
    pub(crate) contexts: Contexts,
    pub(crate) graph: Graph,
    pub(crate) pmu: Pmu,
    pub(crate) ltc: Ltc,
    pub(crate) peephole: Peephole,
    pub(crate) unknown: UnknownRegisters,
    pub(crate) config: ConfigSpace,
    /// Content of PROM.
    pub(crate) rom: &'static [u8; vbios::BYTES],
    /// Value of PMC_ENABLE (000200).
    pub(crate) pmc_enable: u32,
    /// Value of PBDMA_ENABLE (000204).
    pub(crate) pbdma_enable: u32,
    pub(crate) host_ns: Option<u64>,
    pub(crate) stepped: Stepped,
    pub(crate) watcher: Option<Box<dyn WarpWatcher>>,
    /// Threads that run blocks of grids ahead of their turn, and how many blocks they ran.
    pub(crate) workers: Option<Arc<Workers>>,
    pub(crate) played_blocks: u64,
    pub(crate) doorbell_watcher: Option<Box<dyn DoorbellWatcher>>,
    /// Place where the last grid was that did not end by itself.
    pub(crate) stopped_at: Option<ShaderPlace>,
}

impl FermiModel {
    /// A card after power-on and VBIOS. Its frames have no memory until they are placed.
    pub fn new(config: ModelConfig, bus: Arc<dyn SystemBus>) -> Result<Self, ModelError> {
        let bytes = config.vram_bytes;
        if bytes == 0 || !bytes.is_multiple_of(VRAM_UNIT) || bytes > VRAM_MAX {
            return Err(ModelError::VramSize { bytes });
        }
        Ok(Self::powered_on(config, Memory::new((bytes / FRAME) as u32, bus)))
    }

    /// Resets the function: registers, configuration space and channels are as after power-on.
    ///
    /// Frames keep their places and bytes. Counters, pending faults and the GPU's own time stay too, but PTIMER
    /// begins at zero. A message that was not taken is lost.
    pub fn reset(&mut self) {
        let config = ModelConfig {
            board: self.board,
            vram_bytes: self.vram_bytes,
            timing: self.timing,
            copy_microcode: self.copy_microcode,
            strict: self.strict,
            capabilities: self.capabilities,
        };
        let bar3_changes = self.windows.bar3_changes + 1;
        let at_once = self.pfifo.at_once;
        *self = Self {
            clock: self.clock.restarted(),
            faults: self.faults,
            unknown: std::mem::take(&mut self.unknown),
            host_ns: self.host_ns,
            watcher: self.watcher.take(),
            workers: self.workers.take(),
            played_blocks: self.played_blocks,
            doorbell_watcher: self.doorbell_watcher.take(),
            stopped_at: self.stopped_at,
            ..Self::powered_on(config, self.mem.take())
        };
        if let Some(watcher) = &mut self.doorbell_watcher {
            watcher.bound(None);
        }
        self.windows.bar3_changes = bar3_changes;
        self.pfifo.at_once = at_once;
    }

    fn powered_on(config: ModelConfig, mem: Memory) -> Self {
        let mut model = Self {
            board: config.board,
            vram_bytes: config.vram_bytes,
            identity: Identity::new(config.board, config.vram_bytes),
            mem,
            mmu: Mmu::new(config.capabilities.access_counters),
            clock: Clock::default(),
            timing: config.timing,
            copy_microcode: config.copy_microcode,
            strict: config.strict,
            capabilities: config.capabilities,
            links: Links::default(),
            faults: Faults::default(),
            storage: Storage::after_vbios(),
            windows: Windows::new(),
            interrupts: Interrupts::new(),
            pfifo: Pfifo::new(),
            pbdmas: std::array::from_fn(|_| Pbdma::new()),
            units: [Engine::Graph, Engine::Copy0, Engine::Copy1].map(|engine| Unit {
                needs_microcode: match engine {
                    Engine::Graph => config.strict,
                    _ => config.copy_microcode == CopyMicrocode::Required,
                },
                ..Unit::new(engine)
            }),
            contexts: Contexts::default(),
            pmu: Pmu::new(),
            ltc: Ltc::default(),
            peephole: Peephole::default(),
            unknown: UnknownRegisters::default(),
            config: ConfigSpace::new(config.board),
            rom: vbios::image_of(config.board),
            graph: Graph::new(),
            pmc_enable: u32::MAX,
            pbdma_enable: 0,
            host_ns: None,
            stepped: Stepped::Idle,
            watcher: None,
            workers: None,
            played_blocks: 0,
            doorbell_watcher: None,
            stopped_at: None,
        };
        model.set_pmc_enable(PMC_ENABLE_AT_RESET);
        model
    }

    /// Number of VRAM frames.
    pub fn frames(&self) -> u32 {
        self.mem.frames()
    }

    /// Places `frame` in `backing`, which is as long as a frame, or nowhere: then it reads as
    /// ones and drops writes.
    pub fn place_frame(&mut self, frame: FrameNo, backing: Option<Backing>) -> Result<(), ModelError> {
        if let Some(bytes) = backing.as_ref().map(Backing::len)
            && bytes as u64 != FRAME
        {
            return Err(ModelError::FrameSize {
                frame: frame.0,
                bytes,
            });
        }
        let frames = self.frames();
        if self.mem.place_frame(frame, backing) {
            Ok(())
        } else {
            Err(ModelError::NoSuchFrame {
                frame: frame.0,
                frames,
            })
        }
    }

    /// Performs a read of the CPU, of any length. BAR0 answers naturally aligned words and parts of words one by one, in
    /// ascending order; PRAMIN and the windows take any length, across pages too. Bytes beyond a BAR read as ones.
    pub fn bar_read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) {
        match bar {
            Bar::Bar0 => self.read_bar0(offset, data),
            Bar::Bar1 | Bar::Bar3 => {
                self.read_window(bar, offset, data);
                self.update_line();
            }
        }
    }

    /// Performs a write of the CPU; see [`Self::bar_read`].
    pub fn bar_write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        match bar {
            Bar::Bar0 => self.write_bar0(offset, data),
            Bar::Bar1 => {
                self.write_window(bar, offset, data);
                self.snoop_bar1_store(offset, data);
            }
            Bar::Bar3 => self.write_window(bar, offset, data),
        }
        self.update_line();
    }

    /// Runs the engines for `work` units, a unit being a method or about 4 KiB of a copy. The last event may exceed
    /// the budget by one piece of a copy (64 KiB).
    ///
    /// `now_ns` is the host's time from any origin. While the card was not busy, its clock follows it.
    pub fn step(&mut self, now_ns: u64, work: u32) -> Stepped {
        self.run(now_ns, work)
    }

    /// The GPU's clock in nanoseconds since the card was made.
    pub fn gpu_time(&self) -> u64 {
        self.clock.now()
    }

    /// Whether the card sent a message since the last call.
    pub fn take_interrupt(&mut self) -> bool {
        self.interrupts.take_message()
    }

    /// Level of the interrupt pin.
    pub fn interrupt_line(&self) -> bool {
        self.is_line_high()
    }

    /// Counts of events since the card was made.
    pub fn counters(&self) -> &Counters {
        &self.mem.counters
    }

    /// Words of BAR0 that were accessed and that the model neither knows nor keeps, by offset. The first 512 of them;
    /// [`Counters`] has the sums of all.
    #[cfg(test)]
    pub(crate) fn unknown_registers(&self) -> impl Iterator<Item = (u32, crate::unknown::UnknownAccesses)> {
        self.unknown.iter()
    }

    /// The longest run of reads of one word without a name: what a driver may have waited for in vain.
    #[cfg(test)]
    pub(crate) fn longest_poll(&self) -> crate::unknown::Poll {
        self.unknown.longest_poll()
    }

    /// Lets `watcher` see every instruction of every warp from now on; `None` ends that, which
    /// makes runs much faster.
    pub fn watch_warps(&mut self, watcher: Option<Box<dyn WarpWatcher>>) {
        self.watcher = watcher;
    }

    /// Lets `count` threads run blocks of grids ahead of their turn, from the next grid on: the caller gives each of the workers one. Zero ends
    /// that, and so does dropping the card: threads return then. What the card does, and when by its own time, stays
    /// the same.
    pub fn set_workers(&mut self, count: usize) -> Vec<Worker> {
        let (workers, threads) = Workers::new(count);
        // A grid that runs has them still.
        if let Some(before) = &self.workers {
            before.close();
        }
        self.workers = (count != 0).then(|| Arc::new(workers));
        threads
    }

    /// Goes on with the workers of a card whose place it takes.
    pub fn take_workers_of(&mut self, other: &mut Self) {
        self.workers = other.workers.take();
        self.played_blocks = other.played_blocks;
    }

    /// Blocks of grids that [workers](Self::set_workers) ran, at least in part.
    pub fn played_blocks(&self) -> u64 {
        self.played_blocks
    }

    /// Place where the last grid was that a trap, a fault or the watchdog ended: more than
    /// the hardware's registers show.
    pub fn stopped_at(&self) -> Option<ShaderPlace> {
        self.stopped_at
    }

    /// The translations that host and engines keep, for checkers.
    pub fn translations(&self) -> impl Iterator<Item = crate::Translation> {
        self.mmu.translations()
    }

    /// The faults that are switched on.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }
}

impl fmt::Debug for FermiModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FermiModel")
            .field("board", &self.board)
            .field("vram_bytes", &self.vram_bytes)
            .field("gpu_time", &self.clock.now())
            .field("stepped", &self.stepped)
            .finish_non_exhaustive()
    }
}
