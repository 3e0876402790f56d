//! A block runs ahead of its turn: it reads memory as it finds it, keeps its stores to itself, and writes down what it does.

use std::{cell::Cell, collections::BTreeMap, ops::Range};

use fermi_spec::{
    addr::{GpuVa, SMALL_PAGE},
    fault::Reason,
    isa::{Opcode, Special, field},
    pte::LargePages,
};

use super::{
    super::{
        block::{Block, Progress, Slot, Surroundings},
        code::{Code, Op},
        launch::Launch,
        simd::{self, Level},
        tally::Tally,
        warp::Warp,
        watch::{Before, Watch},
    },
    rows::{ByRows, Rows},
    track::{Access, End, Kind, More, Step, Track},
};
use crate::{
    memory::{Memory, Place},
    mmu::{self, AddressSpace, Refusal},
};

/// Pages of which the translation is kept.
const PAGES: usize = 512;
/// Bytes of a block's accesses, and pages that it stores to, at which its track ends: a guest decides what its blocks do.
const TRACK_BYTES_MAX: usize = 2 << 20;
const STORED_PAGES_MAX: usize = 128;
const PAGE_BYTES: usize = SMALL_PAGE as usize;

/// Memory that a grid reaches, as another thread can read it.
pub(crate) struct View {
    pub(crate) memory: Memory,
    pub(crate) space: AddressSpace,
    pub(crate) large_pages: LargePages,
}

/// What a block of a grid runs with.
pub(super) struct Ground<'a> {
    pub(super) launch: &'a Launch,
    /// What other blocks of the grid have executed so far.
    pub(super) code: &'a mut Code,
    pub(super) slot: Slot,
    pub(super) view: &'a mut View,
    pub(super) scratch: &'a mut Scratch,
}

/// Runs block `index` for at most `budget` instructions; `track` is an empty one, with a block of the launch that can be used if there is one.
pub(super) fn record(ground: Ground<'_>, index: u64, budget: u64, track: Track) -> Track {
    simd::perform(Recording {
        ground,
        index,
        budget,
        track,
    })
}

struct Recording<'a> {
    ground: Ground<'a>,
    index: u64,
    budget: u64,
    track: Track,
}

impl simd::Work for Recording<'_> {
    type Output = Track;

    #[inline(always)]
    fn perform(self, level: impl Level) -> Track {
        let Self {
            ground,
            index,
            budget,
            mut track,
        } = self;
        let mut block = track.block.take().unwrap_or_else(|| Block::new(ground.launch));
        block.start(ground.launch, index, ground.slot);
        let (step, is_full) = (Cell::new(0), Cell::new(false));
        ground.scratch.epoch += 1;
        let mut outside = ByRows(Ahead {
            view: ground.view,
            scratch: ground.scratch,
            stored: BTreeMap::new(),
            step: &step,
            accesses: &mut track.accesses,
            data: &mut track.data,
            is_full: &is_full,
            wants_code: false,
        });
        let mut recorder = Recorder {
            steps: &mut track.steps,
            more: &mut track.more,
            step: &step,
            is_full: &is_full,
            last: Tally::default(),
            is_over: false,
        };
        let (mut tally, mut rest) = (Tally::default(), budget);
        let around = Surroundings {
            launch: ground.launch,
            outside: &mut outside,
            tally: &mut tally,
        };
        let progress = block.run(level, ground.code, around, &mut recorder, &mut rest);
        track.end = match progress {
            Ok(Progress::Done) => End::Done,
            Ok(Progress::Paused) => End::Before,
            // Nothing of the next instruction has happened.
            Err(_) if outside.0.wants_code => End::Before,
            Ok(Progress::Waiting | Progress::Stuck) | Err(_) => End::Unsure,
        };
        let stored = std::mem::take(&mut outside.0.stored);
        outside.0.scratch.spare.extend(stored.into_values());
        track.index = index;
        track.block = Some(block);
        track
    }
}

/// Writes down what is executed, and ends before what is not to be.
struct Recorder<'a> {
    steps: &'a mut Vec<Step>,
    more: &'a mut Vec<More>,
    step: &'a Cell<u32>,
    is_full: &'a Cell<bool>,
    /// The counts behind the instruction before.
    last: Tally,
    is_over: bool,
}

/// Whether an instruction depends on what other blocks do meanwhile.
fn is_for_its_turn(op: &Op) -> bool {
    match op.opcode {
        Opcode::S2r => matches!(
            Special::from_number(op.get(field::SPECIAL)),
            Some(Special::Clock | Special::ClockHigh)
        ),
        opcode => opcode.is_atomic(),
    }
}

impl Watch for Recorder<'_> {
    #[inline(always)]
    fn is_on(&self) -> bool {
        false
    }

    fn see(&mut self, _: &Before, _: &Warp, _: bool) {}

    #[inline(always)]
    fn lets_begin(&mut self, op: &Op) -> bool {
        self.is_over = self.is_full.get() || is_for_its_turn(op);
        !self.is_over
    }

    #[inline(always)]
    fn is_over(&self) -> bool {
        self.is_over
    }

    #[inline(always)]
    fn count(&mut self, op: &Op, tally: &Tally) {
        let step = self.step.get();
        let lanes = tally.lane_instructions - self.last.lane_instructions;
        self.steps.push(Step::new(op.issue, lanes));
        self.last.lane_instructions = tally.lane_instructions;
        let passes = tally.shared_passes - self.last.shared_passes;
        let awaited = tally.awaited - self.last.awaited;
        if (passes | awaited) != 0 {
            self.more.push(More {
                step,
                shared_passes: passes as u32,
                awaited: awaited as u32,
            });
            (self.last.shared_passes, self.last.awaited) = (tally.shared_passes, tally.awaited);
        }
        self.step.set(step + 1);
    }
}

/// A page that was translated for loads or stores.
#[derive(Clone, Copy, Default)]
struct Page {
    /// The block that it was translated for; 0: none.
    epoch: u64,
    number: u64,
    is_for_stores: bool,
    first: Place,
}

/// Bytes of a page that the block has stored.
struct Stored {
    data: [u8; PAGE_BYTES],
    /// A bit for each.
    are_stored: [u64; PAGE_BYTES / 64],
}

impl Stored {
    /// Keeps bytes that are stored from `at` on.
    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        for place in at..at + bytes.len() {
            self.are_stored[place / 64] |= 1 << (place % 64);
        }
    }

    /// Puts what was stored from `at` on in place of what memory has there.
    fn patch(&self, at: usize, bytes: &mut [u8]) {
        for (place, byte) in (at..).zip(bytes) {
            if self.are_stored[place / 64] >> (place % 64) & 1 != 0 {
                *byte = self.data[place];
            }
        }
    }
}

/// What one block after the other needs.
pub(super) struct Scratch {
    /// Grows with each block.
    epoch: u64,
    pages: Box<[Page]>,
    /// Pages of blocks that have ended.
    spare: Vec<Box<Stored>>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            epoch: 0,
            pages: vec![Page::default(); PAGES].into_boxed_slice(),
            spare: Vec::new(),
        }
    }
}

/// Memory as the block sees it.
struct Ahead<'a> {
    view: &'a mut View,
    scratch: &'a mut Scratch,
    stored: BTreeMap<Place, Box<Stored>>,
    step: &'a Cell<u32>,
    accesses: &'a mut Vec<Access>,
    data: &'a mut Vec<u8>,
    /// The track is as long as it may be.
    is_full: &'a Cell<bool>,
    /// It came to code that no block had executed before.
    wants_code: bool,
}

impl Ahead<'_> {
    fn place(&mut self, va: u64, is_store: bool) -> Result<Place, Refusal> {
        let (number, inside) = (va / SMALL_PAGE, va % SMALL_PAGE);
        let epoch = self.scratch.epoch;
        let page = &mut self.scratch.pages[(2 * number as usize + usize::from(is_store)) % PAGES];
        if page.epoch == epoch && page.number == number && page.is_for_stores == is_store {
            return Ok(page.first.offset(inside));
        }
        let access = if is_store {
            mmu::Access::WRITE
        } else {
            mmu::Access::READ
        };
        let View {
            memory,
            space,
            large_pages,
        } = &mut *self.view;
        let place = mmu::look_up(memory, space, *large_pages, access, GpuVa(va))?;
        *page = Page {
            epoch,
            number,
            is_for_stores: is_store,
            first: place.before(inside),
        };
        Ok(place)
    }

    fn note(&mut self, kind: Kind, va: u64, bytes: usize) {
        self.accesses.push(Access {
            va,
            step: self.step.get(),
            bytes: bytes as u32,
            kind,
        });
        let noted = self.accesses.len() * size_of::<Access>() + self.data.len();
        if noted > TRACK_BYTES_MAX || self.stored.len() > STORED_PAGES_MAX {
            self.is_full.set(true);
        }
    }
}

/// The parts of `bytes` bytes at `va` that lie in one page each.
pub(crate) fn page_parts(va: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = va.wrapping_add(done as u64);
        let part = (bytes - done).min((SMALL_PAGE - at % SMALL_PAGE) as usize);
        let range = done..done + part;
        done += part;
        (part != 0).then_some((at, range))
    })
}

impl Rows for Ahead<'_> {
    fn fetch(&mut self, va: u64, _: &mut [u8]) -> Result<(), Refusal> {
        self.wants_code = true;
        Err(refusal(va, false))
    }

    fn load(&mut self, kind: Kind, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        for (at, range) in page_parts(va, data.len()) {
            let place = self.place(at, false)?;
            let part = &mut data[range];
            self.view.memory.read(place, part);
            if self.stored.is_empty() {
                continue;
            }
            let inside = (place.at.0 % SMALL_PAGE) as usize;
            if let Some(stored) = self.stored.get(&place.before(inside as u64)) {
                stored.patch(inside, part);
            }
        }
        self.note(kind, va, data.len());
        self.data.extend_from_slice(data);
        Ok(())
    }

    fn store(&mut self, kind: Kind, va: u64, data: &[u8]) -> Result<(), Refusal> {
        for (at, range) in page_parts(va, data.len()) {
            let place = self.place(at, true)?;
            let inside = (place.at.0 % SMALL_PAGE) as usize;
            let none = || {
                let mut page = self.scratch.spare.pop().unwrap_or_else(|| {
                    Box::new(Stored {
                        data: [0; PAGE_BYTES],
                        are_stored: [0; PAGE_BYTES / 64],
                    })
                });
                page.are_stored = [0; PAGE_BYTES / 64];
                page
            };
            let stored = self.stored.entry(place.before(inside as u64));
            stored.or_insert_with(none).store(inside, &data[range]);
        }
        self.note(kind, va, data.len());
        self.data.extend_from_slice(data);
        Ok(())
    }

    fn touch(&mut self, kind: Kind, va: u64) {
        self.note(kind, va, 0);
    }

    fn refuse_atomic(&mut self, va: u64) -> Refusal {
        refusal(va, true)
    }
}

/// What ends a track; no guest gets to see it.
pub(super) fn refusal(va: u64, write: bool) -> Refusal {
    Refusal {
        va: GpuVa(va),
        reason: Reason::PageNotPresent,
        write,
    }
}
