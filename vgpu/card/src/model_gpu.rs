//! The software card in this process: [`vgpu::HostGpu`] over [`fermi_model::FermiModel`].
//!
//! ```text
//! broker ──BAR access──► RunningCard (a lock, the model, a thread that runs its engines)
//!        ◄── eventfd ── interrupt
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermi_model::{Backing, CopyMicrocode, Counters, FermiModel, ModelConfig, ModelError, Timing};
use fermi_spec::addr::{FrameNo, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::board::{BAR1_BYTES, BAR3_BYTES, Board};
use vgpu::{Capabilities, DmaMemory, FrameOwner, GraphMicrocode, HostGpu, HostGpuError, VmId};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::frames::Frames;
use crate::maps::DmaMaps;
use crate::running::{CardLost, Follower, Hold, RunningCard, Watcher};

/// Parameters of the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardConfig {
    /// Identity and speeds.
    pub board: Board,
    /// VRAM, a multiple of 1 MiB; need not be the board's own.
    pub vram_bytes: u64,
    /// Copy engines run nothing until their falcons were given microcode.
    pub needs_microcode: bool,
    /// PGRAPH is as strict as a card: see [`ModelConfig::strict`].
    pub strict: bool,
    /// Its clock does not run ahead of the host's: work takes as long here as its timing says, unless this host needs longer to compute it.
    pub paced: bool,
    /// Threads beside the card's own that run blocks of grids ahead of their turn, each on a processor of its own: what the card does, and when by its own
    /// clock, stays the same.
    pub workers: u32,
}

/// Why no card could be made.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The model refuses the card's settings.
    #[error("cannot make the software card")]
    Model(#[from] ModelError),
    /// No descriptor or thread.
    #[error("cannot create {what} of the software card")]
    System {
        /// The missing resource: a descriptor or a thread.
        what: &'static str,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
}

impl CardConfig {
    /// A card after power-on, with nothing placed in its frames; its DMA goes to `bus`.
    pub(crate) fn power_on(self, bus: Arc<DmaMaps>) -> Result<FermiModel, ModelError> {
        let config = ModelConfig {
            board: self.board,
            vram_bytes: self.vram_bytes,
            timing: Timing::of(self.board),
            copy_microcode: match self.needs_microcode {
                true => CopyMicrocode::Required,
                false => CopyMicrocode::default(),
            },
            strict: self.strict,
            capabilities: fermi_model::Capabilities::NONE,
        };
        FermiModel::new(config, bus)
    }
}

impl From<CardLost> for HostGpuError {
    fn from(lost: CardLost) -> Self {
        Self::Lost {
            reason: lost.to_string(),
        }
    }
}

/// Writes an eventfd for each message.
struct Messages {
    is_interrupted: Arc<AtomicBool>,
    event: EventFd,
}

impl Follower for Messages {
    fn update(&mut self, model: &mut FermiModel) {
        if model.take_interrupt() {
            self.is_interrupted.store(true, Ordering::SeqCst);
            // A full counter means that interrupts wait to be fetched already.
            let _ = self.event.write(1);
        }
    }
}

/// Counters of a software card, read while it runs.
pub struct CardCounters(Watcher<Messages>);

impl CardCounters {
    /// Counts of all events since power-on.
    pub fn read(&self) -> Result<Counters, CardLost> {
        self.0.counters()
    }
}

/// A software card that runs. Dropping it stops its thread and gives all memory back.
pub struct ModelGpu {
    card: RunningCard<Messages>,
    /// From the first access to the next [`HostGpu::flush`].
    hold: Option<Hold<Messages>>,
    is_interrupted: Arc<AtomicBool>,
    interrupt: EventFd,
    maps: Arc<DmaMaps>,
    frames: Frames,
}

impl std::fmt::Debug for ModelGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelGpu")
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

impl ModelGpu {
    /// Powers a card on. None of its frames has memory yet.
    pub fn new(config: CardConfig) -> Result<Self, CardError> {
        let maps = Arc::new(DmaMaps::default());
        let mut model = config.power_on(maps.clone())?;
        // A guest whose memory moves does not wait until the host has computed what others' grids do meanwhile.
        model.do_at_once(vgpu::OWN_CHANNEL_NUMBER.into());
        let failed = |what| move |source| CardError::System { what, source };
        let frames = Frames::new(model.frames()).map_err(failed("a thread that frees memory"))?;
        let interrupt = EventFd::new(EFD_NONBLOCK).map_err(failed("the interrupt"))?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let messages = Messages {
            is_interrupted: is_interrupted.clone(),
            event: interrupt.try_clone().map_err(failed("the interrupt"))?,
        };
        let card = RunningCard::start(model, messages, config).map_err(failed("the thread"))?;
        Ok(Self {
            card,
            hold: None,
            is_interrupted,
            interrupt,
            maps,
            frames,
        })
    }

    /// Its counters, which stay readable after the card is gone.
    pub fn counters(&self) -> CardCounters {
        CardCounters(self.card.watcher())
    }

    /// Signalled whenever the card raises its interrupt.
    pub fn interrupt(&self) -> Result<EventFd, CardError> {
        self.interrupt.try_clone().map_err(|source| CardError::System {
            what: "a descriptor for the interrupt",
            source,
        })
    }

    /// An access comes, and perhaps more before the next flush.
    fn hold(&mut self) {
        self.hold.get_or_insert_with(|| self.card.hold());
    }

    /// Shows the card where frames lie, all under one lock: the card's thread holds it most of the time.
    fn show(&self, frames: impl IntoIterator<Item = (FrameNo, Option<Backing>)>) -> Result<(), HostGpuError> {
        let mut frames = frames.into_iter().peekable();
        if frames.peek().is_none() {
            return Ok(());
        }
        self.card.access(|model, _| {
            frames.try_for_each(|(frame, backing)| {
                let placed = model.place_frame(frame, backing);
                placed.map_err(|error| HostGpuError::Place {
                    frame,
                    reason: error.to_string(),
                })
            })
        })?
    }
}

impl HostGpu for ModelGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            bar1_bytes: BAR1_BYTES,
            bar3_bytes: BAR3_BYTES,
            frames_arrive_zeroed: true,
            bus: vgpu::Bus::default(),
            graph: Some(GraphMicrocode::for_software_card()),
            follows_mappings: true,
        }
    }

    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        self.hold();
        Ok(self.card.access(|model, _| model.bar_read(bar, offset, data))?)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        self.hold();
        Ok(self.card.access(|model, _| model.bar_write(bar, offset, data))?)
    }

    fn flush(&mut self) -> Result<(), HostGpuError> {
        // No store waits here, but the card does.
        self.hold = None;
        Ok(())
    }

    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError> {
        self.maps.insert(iova, memory, writable)
    }

    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        self.hold();
        // The card is locked (rule 5 of `running`).
        let maps = self.maps.clone();
        self.card.access(|_, _| maps.remove(iova, bytes))?
    }

    fn place_frames(&mut self, frames: &[FrameNo], owner: FrameOwner) -> Result<(), HostGpuError> {
        self.hold();
        let failed = |frame: FrameNo, reason: String| HostGpuError::Place { frame, reason };
        // No engine reaches the old owner's memory any more when it is given back.
        self.show(frames.iter().map(|&frame| (frame, None)))?;
        for &frame in frames {
            let released = self.frames.release(frame);
            released.map_err(|error| failed(frame, error.to_string()))?;
        }
        let mut backings = Vec::with_capacity(frames.len());
        for (i, &frame) in (0..).zip(frames) {
            let claimed = self.frames.claim(frame, owner.behind(i));
            let claimed = claimed.map_err(|error| failed(frame, error.to_string()))?;
            backings.extend(claimed.map(|backing| (frame, Some(backing))));
        }
        self.show(backings)
    }

    fn place_memory(&mut self, vm: VmId, at: GuestVramAddr) -> Option<DmaMemory> {
        self.frames.memory(vm, at.0)
    }

    fn stand_still(&mut self, work: &mut dyn FnMut()) -> Result<(), HostGpuError> {
        self.hold();
        Ok(self.card.access(|_, _| work())?)
    }

    fn take_interrupt(&mut self) -> bool {
        self.is_interrupted.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests;
