//! The broker's own copy channel: ring, pushbuffer, copy window, completion.
//!
//! Physical channel 0 with an address space of its own:
//!
//! | from | what |
//! |---|---|
//! | [`VRAM_VA`] | all VRAM, linearly, large pages, mapped once |
//! | [`WINDOW_VA`] | up to 128 MiB of images, small pages, mapped for one batch at a time |
//! | [`OWN_VA`] | the broker's DMA memory: ring, pushbuffer, semaphore |

use fermi_spec::addr::{Aperture, FRAME, FrameNo, GpuVa, Iova, SMALL_PAGE, VramAddr};
use fermi_spec::engine::Engine;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::methods::{CopyExec, SemaphoreD, class, copy, host};
use fermi_spec::pte::Pte;
use fermi_spec::pushbuffer::incrementing;
use serde::{Deserialize, Serialize};

use crate::event::{HostMemory, Place};
use crate::inspect::{Inspect, Tree};
use crate::memory::chunk::in_frame;
use crate::notice::Direction;
use crate::saved::Unsound;

/// Linear map of VRAM.
pub(crate) const VRAM_VA: GpuVa = GpuVa(0);
/// Address of the copy window in the own channel's space.
pub(crate) const WINDOW_VA: GpuVa = GpuVa(0x40_0000_0000);
/// Bytes of the window: the span of one small-page table.
pub(crate) const WINDOW_BYTES: u64 = fermi_spec::addr::PDE_SPAN;
/// The broker's DMA memory.
pub(crate) const OWN_VA: GpuVa = GpuVa(0x50_0000_0000);
/// Bytes of the broker's DMA memory.
pub(crate) const OWN_BYTES: u64 = 1 << 20;
/// log2 of the ring's entries.
pub(crate) const RING_LOG2: u32 = 8;

const RING: u64 = 0;
const SEMAPHORE: u64 = 0x1000;
const PUSHBUFFER: u64 = 0x2000;
const PUSHBUFFER_BYTES: u64 = OWN_BYTES - PUSHBUFFER;
const SUBCHANNEL: u8 = 4;
/// Words of one copy.
const RUN_WORDS: usize = 12;

/// One linear copy, both ends contiguous in the channel's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CopyRun {
    pub(crate) source: GpuVa,
    pub(crate) target: GpuVa,
    /// A multiple of 4 KiB, at most 31.9 MiB.
    pub(crate) bytes: u64,
}

impl CopyRun {
    /// Checks a copy that was read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let fits = self.bytes.is_multiple_of(SMALL_PAGE) && (1..=RUN_BYTES_MAX).contains(&self.bytes);
        Unsound::unless(fits, "bytes of a copy")
    }
}

/// Most bytes of one [`CopyRun`].
pub(crate) const RUN_BYTES_MAX: u64 = copy::LINES_MAX as u64 * SMALL_PAGE;
/// Most runs in one submission: those that fit the pushbuffer, without its ends.
pub(crate) const RUNS_MAX: usize = PUSHBUFFER_BYTES as usize / 4 / RUN_WORDS - 2;

/// State of the ring.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CopyChannel {
    /// Number of the engine that the next batch goes to, 0 or 1.
    second: bool,
    gp_put: u32,
    sequence: u32,
}

impl CopyChannel {
    /// Checks a ring that was read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        Unsound::unless(self.gp_put < 1 << RING_LOG2, "GP_PUT of the broker's own channel")
    }

    /// Where the ring is, for the instance block.
    pub(crate) fn ring() -> GpuVa {
        OWN_VA.offset(RING)
    }

    /// Writes one batch and its completion to memory. Returns GP_PUT for the doorbell. Only one batch is under way at a
    /// time, so the pushbuffer is free.
    pub(crate) fn submit(&mut self, runs: &[CopyRun], memory: &mut dyn HostMemory) -> u32 {
        assert!(runs.len() <= RUNS_MAX, "{} copy runs", runs.len());
        self.sequence = self.sequence.wrapping_add(1);
        let mut words = vec![incrementing(SUBCHANNEL, host::SET_OBJECT, 1), self.object()];
        for run in runs {
            push_run(&mut words, run);
        }
        let semaphore = OWN_VA.offset(SEMAPHORE);
        words.extend([
            incrementing(SUBCHANNEL, host::SEMAPHORE_A, 4),
            (semaphore.0 >> 32) as u32,
            semaphore.0 as u32,
            self.sequence,
            // Waits for idle: the release comes after the last copy.
            SemaphoreD::new()
                .with_operation(2)
                .with_release_short(true)
                .into_bits(),
            incrementing(SUBCHANNEL, host::NON_STALL_INTERRUPT, 1),
            0,
        ]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(Place::Own { offset: PUSHBUFFER }, &bytes);
        let entry = GpEntry::fetch(OWN_VA.offset(PUSHBUFFER), words.len() as u32);
        memory.write(
            Place::Own {
                offset: RING + u64::from(self.gp_put) * 8,
            },
            &entry.to_le_bytes(),
        );
        self.gp_put = (self.gp_put + 1) % (1 << RING_LOG2);
        self.gp_put
    }

    fn object(&self) -> u32 {
        let class = if self.second { class::COPY_1 } else { class::COPY };
        u32::from(class) | u32::from(engine(self.second).number()) << 16
    }

    /// Has the next batch go to the engine that is idle, if the other one is at work.
    pub(crate) fn choose_engine(&mut self, is_at_work: impl Fn(Engine) -> bool) {
        self.second ^= is_at_work(engine(self.second)) && !is_at_work(engine(!self.second));
    }

    /// The channel was bound anew: its ring starts from the beginning. The batch under way never ends. The next one
    /// tries the other engine, as another channel may be stuck on this one.
    pub(crate) fn restart(&mut self) {
        self.second = !self.second;
        self.gp_put = 0;
    }

    /// Whether the last batch is done.
    pub(crate) fn is_done(&self, memory: &mut dyn HostMemory) -> bool {
        let mut word = [0; 4];
        memory.read(Place::Own { offset: SEMAPHORE }, &mut word) && u32::from_le_bytes(word) == self.sequence
    }
}

impl Inspect for CopyChannel {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.number("engine", u64::from(self.second));
        tree.number("next_entry", self.gp_put);
        tree.number("last_batch", self.sequence);
    }
}

fn engine(is_second: bool) -> Engine {
    if is_second { Engine::Copy1 } else { Engine::Copy0 }
}

fn push_run(words: &mut Vec<u32>, run: &CopyRun) {
    assert!(
        run.bytes.is_multiple_of(SMALL_PAGE) && run.bytes <= RUN_BYTES_MAX && run.bytes > 0,
        "{run:?}"
    );
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    words.extend([
        incrementing(SUBCHANNEL, copy::SRC_HIGH, 8),
        (run.source.0 >> 32) as u32,
        run.source.0 as u32,
        (run.target.0 >> 32) as u32,
        run.target.0 as u32,
        SMALL_PAGE as u32,
        SMALL_PAGE as u32,
        SMALL_PAGE as u32,
        (run.bytes / SMALL_PAGE) as u32,
        incrementing(SUBCHANNEL, copy::EXEC, 1),
        exec.into_bits(),
    ]);
}

/// Copies of `bytes` at `start` of a chunk whose image is mapped at `window`, cut where frames are not neighbours.
pub(crate) fn add_runs(
    runs: &mut Vec<CopyRun>,
    frames: &[FrameNo],
    window: GpuVa,
    start: u64,
    bytes: u64,
    direction: Direction,
) {
    let mut at = start;
    while at < start + bytes {
        let length = (FRAME - at % FRAME).min(start + bytes - at);
        let vram = VRAM_VA.offset(in_frame(frames, at).0);
        let image = window.offset(at);
        let (source, target) = match direction {
            Direction::Spill => (vram, image),
            Direction::Refill => (image, vram),
        };
        match runs.last_mut() {
            Some(last)
                if last.source.offset(last.bytes) == source
                    && last.target.offset(last.bytes) == target
                    && last.bytes + length <= RUN_BYTES_MAX =>
            {
                last.bytes += length;
            }
            _ => runs.push(CopyRun {
                source,
                target,
                bytes: length,
            }),
        }
        at += length;
    }
}

/// Entry for a page of VRAM in the channel's own space.
pub(crate) fn vram_pte(at: VramAddr) -> Pte {
    Pte::new()
        .with_valid(true)
        .with_address(fermi_spec::addr::PhysAddr(at.0))
}

/// Entry for a page of system memory.
pub(crate) fn sysram_pte(at: Iova) -> Pte {
    Pte::new()
        .with_valid(true)
        .with_volatile(true)
        .with_aperture(Aperture::SysCoherent)
        .with_address(fermi_spec::addr::PhysAddr(at.0))
}
