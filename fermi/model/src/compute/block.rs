//! A block: its warps, shared memory and barriers.
//!
//! Rules:
//! 1. Warps take turns of [`TURN`] instructions in their order. Where a turn is cut by the caller's budget it goes on
//!    from there, so that the order of everything is the same for any budget.
//! 2. A barrier counts warps; it is complete when as many have arrived as it asks for, or, where it asks for all, as
//!    have not exited. assumption: a warp that exits is not waited for.

use std::collections::BTreeSet;

use fermi_spec::isa::Special;

use super::{
    code::Code,
    execute::{self, Machine},
    launch::Launch,
    outside::Outside,
    shared::SharedMemory,
    simd::Level,
    tally::Tally,
    trap::{ShaderPlace, Stop},
    warp::{LANES, Lanes, Warp, WarpState, each},
    watch::Watch,
};

/// Instructions of a warp before the next one's turn.
const TURN: u64 = 256;
/// Warps that an SM holds.
pub(crate) const SM_WARPS: u32 = 48;

/// A warp came to a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) number: u32,
    /// Warps that the barrier asks for; 0: all.
    pub(crate) warps: u32,
    /// How the lanes' predicates are reduced.
    pub(crate) mode: u32,
    /// Lanes whose predicate holds.
    pub(crate) holds: u32,
    /// Lanes that executed it.
    pub(crate) lanes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    arrived: u32,
    wanted: u32,
    mode: u32,
    count: u32,
    all: bool,
    any: bool,
}

/// What a block shares with the other blocks of its grid.
pub(super) struct Surroundings<'a> {
    pub(super) launch: &'a Launch,
    pub(super) outside: &'a mut dyn Outside,
    pub(super) tally: &'a mut Tally,
}

/// How far a block got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// The budget is used up.
    Paused,
    /// All warps have exited.
    Done,
    /// Every warp waits, and some of them for pages.
    Waiting,
    /// Every warp waits at a barrier that will never be complete.
    Stuck,
}

/// Where a block runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot {
    /// SM, and how many there are.
    pub(crate) sm: u32,
    pub(crate) sms: u32,
    /// First of its warps on the SM.
    pub(crate) first_warp: u32,
}

/// What of a launch decides how much memory a block needs: threads in x, y, z, bytes of the stack, of shared memory.
type Shape = ([u32; 3], u32, u32);

fn shape_of(launch: &Launch) -> Shape {
    (launch.block, launch.stack_bytes, launch.shared_bytes)
}

/// One block of a grid, with the state of its warps.
pub(crate) struct Block {
    shape: Shape,
    warps: Vec<Warp>,
    turn: usize,
    left: u64,
    /// Warps of which all lanes have exited.
    ended: usize,
    inside: Inside,
}

/// State that the warps of a block share.
pub(crate) struct Inside {
    /// Block index in x, y, z.
    index: [u32; 3],
    /// Thread indices in x, y, z of the lanes of each warp.
    threads: Vec<[Lanes; 3]>,
    slot: Slot,
    shared: SharedMemory,
    locks: BTreeSet<u32>,
    barriers: [Barrier; 16],
    /// Warps counted by barriers that are not complete.
    arrivals: u32,
}

impl Block {
    /// A block of the launch that has yet to [`start`](Self::start).
    pub(crate) fn new(launch: &Launch) -> Self {
        Self {
            shape: shape_of(launch),
            warps: (0..launch.warps())
                .map(|warp| Warp::new(warp, launch.stack_bytes))
                .collect(),
            turn: 0,
            left: TURN,
            ended: 0,
            inside: Inside {
                index: [0; 3],
                threads: (0..launch.warps())
                    .map(|warp| threads_of(launch.block, warp))
                    .collect(),
                slot: Slot::default(),
                shared: SharedMemory::new(launch.shared_bytes),
                locks: BTreeSet::new(),
                barriers: [Barrier::default(); 16],
                arrivals: 0,
            },
        }
    }

    /// Whether it can be a block of this launch.
    pub(crate) fn fits(&self, launch: &Launch) -> bool {
        self.shape == shape_of(launch)
    }

    /// Becomes block `index` of the grid, in a slot, in its initial state.
    pub(crate) fn start(&mut self, launch: &Launch, index: u64, slot: Slot) {
        let threads = launch.threads();
        for warp in &mut self.warps {
            warp.start(launch.entry, threads - 32 * warp.index, launch.registers);
        }
        (self.turn, self.left, self.ended) = (0, TURN, 0);
        let [x, y, _] = launch.grid.map(u64::from);
        let inside = &mut self.inside;
        inside.index = [index % x, index / x % y, index / (x * y)].map(|at| at as u32);
        inside.slot = slot;
        inside.shared.clear();
        inside.locks.clear();
        inside.barriers = [Barrier::default(); 16];
        inside.arrivals = 0;
    }

    /// Place of the block: its SM and first warp.
    pub(crate) fn slot(&self) -> Slot {
        self.inside.slot
    }

    /// Lets the warps go on that wait for pages.
    pub(crate) fn replay(&mut self) {
        for warp in &mut self.warps {
            if warp.state == WarpState::AtPages {
                warp.state = WarpState::Running;
            }
        }
    }

    /// Place of the warp whose turn it is; of a block that waits for pages, of the first warp that does.
    pub(crate) fn place(&self) -> ShaderPlace {
        let mut warps = self.warps.iter();
        let waiting = warps.find(|warp| warp.state == WarpState::AtPages);
        let turn = &self.warps[self.turn];
        let warp = match turn.state {
            WarpState::Running => turn,
            _ => waiting.unwrap_or(turn),
        };
        ShaderPlace {
            block: self.inside.index,
            warp: warp.index,
            pc: warp.pc,
            active: warp.active,
        }
    }

    /// Runs for at most `budget` instructions of warps, and reduces it by the number that ran.
    #[inline(always)]
    pub(super) fn run<W: Watch>(
        &mut self,
        level: impl Level,
        code: &mut Code,
        around: Surroundings<'_>,
        watch: &mut W,
        budget: &mut u64,
    ) -> Result<Progress, Stop> {
        let mut machine = Machine {
            launch: around.launch,
            block: &mut self.inside,
            outside: around.outside,
            tally: around.tally,
        };
        // Turns without a running warp since the last one that had one.
        let mut idle = 0;
        while *budget != 0 {
            let warp = &mut self.warps[self.turn];
            if warp.state == WarpState::Running && self.left != 0 {
                let given = self.left.min(*budget);
                let (ran, outcome) = execute::run(level, warp, code, &mut machine, watch, given);
                self.left -= ran;
                *budget -= ran;
                outcome?;
                if watch.is_over() {
                    return Ok(Progress::Paused);
                }
                idle = 0;
                match warp.state {
                    WarpState::Running => continue,
                    WarpState::Done => self.ended += 1,
                    WarpState::AtBarrier { .. } | WarpState::AtPages => {}
                }
                if self.ended == self.warps.len() {
                    return Ok(Progress::Done);
                }
            } else {
                idle += 1;
            }
            if self.warps[self.turn].state != WarpState::Running {
                machine.block.settle(&mut self.warps);
            }
            self.turn = (self.turn + 1) % self.warps.len();
            self.left = TURN;
            if idle > self.warps.len() {
                let waits = self.warps.iter().any(|warp| warp.state == WarpState::AtPages);
                return Ok(if waits { Progress::Waiting } else { Progress::Stuck });
            }
        }
        Ok(Progress::Paused)
    }
}

impl Inside {
    /// Block index in x, y, z.
    pub(super) fn index(&self) -> [u32; 3] {
        self.index
    }

    /// Its shared memory.
    #[inline(always)]
    pub(crate) fn shared(&mut self) -> &mut SharedMemory {
        &mut self.shared
    }

    /// Locks the word at `offset`; whether it was free.
    pub(crate) fn lock(&mut self, offset: u32) -> bool {
        self.locks.insert(offset / 4)
    }

    pub(crate) fn unlock(&mut self, offset: u32) {
        self.locks.remove(&(offset / 4));
    }

    /// Virtual address behind byte `at` of a lane's local memory. assumption: words of lanes side by side.
    pub(crate) fn local_address(&self, launch: &Launch, warp: u32, at: u32, lane: u32) -> u64 {
        let slot = u64::from(self.slot.sm * SM_WARPS + self.slot.first_warp + warp);
        launch
            .temp
            .wrapping_add(slot.wrapping_mul(launch.warp_temp_bytes()))
            .wrapping_add(u64::from(at / 4) * 128 + u64::from(lane) * 4 + u64::from(at % 4))
            & super::outside::VA_MASK
    }

    /// A warp arrives.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        let barrier = &mut self.barriers[arrival.number as usize & 15];
        if barrier.arrived == 0 {
            *barrier = Barrier {
                all: true,
                ..Barrier::default()
            };
        }
        barrier.arrived += 1;
        self.arrivals += 1;
        barrier.wanted = arrival.warps;
        barrier.mode = arrival.mode;
        barrier.count += arrival.holds.count_ones();
        barrier.all &= arrival.holds == arrival.lanes;
        barrier.any |= arrival.holds != 0;
    }

    /// Warps that have arrived at a barrier, in bits 7:0. assumption: no source documents the value that B2R reads.
    pub(crate) fn barrier_state(&self, number: u32) -> u32 {
        self.barriers[number as usize & 15].arrived
    }

    /// Lets the warps of complete barriers go on.
    fn settle(&mut self, warps: &mut [Warp]) {
        const AND: u32 = 1;
        if self.arrivals == 0 {
            return;
        }
        let alive = warps.iter().filter(|warp| warp.state != WarpState::Done).count() as u32;
        for (number, barrier) in self.barriers.iter_mut().enumerate() {
            let wanted = if barrier.wanted == 0 {
                alive
            } else {
                barrier.wanted
            };
            if barrier.arrived == 0 || barrier.arrived < wanted {
                continue;
            }
            let holds = if barrier.mode == AND {
                barrier.all
            } else {
                barrier.any
            };
            for warp in warps.iter_mut() {
                let WarpState::AtBarrier {
                    barrier: at,
                    predicate,
                    dst,
                    lanes,
                } = warp.state
                else {
                    continue;
                };
                if usize::from(at) != number {
                    continue;
                }
                warp.set_register(dst, &[barrier.count; 32], lanes);
                warp.set_predicate(predicate.into(), if holds { u32::MAX } else { 0 }, lanes);
                warp.state = WarpState::Running;
            }
            self.arrivals -= barrier.arrived;
            *barrier = Barrier::default();
        }
    }

    /// A special register of warp `warp`.
    pub(crate) fn special(&self, number: u32, warp: u32, clock: u64, launch: &Launch) -> Lanes {
        let [x, y, z] = self.threads.get(warp as usize).unwrap_or(&[[0; LANES]; 3]);
        let packed = |x: u32, y: u32, z: u32| x & 0xffff | (y & 0x3ff) << 16 | (z & 0x3f) << 26;
        let up_to = |lane: usize| ((1u64 << (lane + 1)) - 1) as u32;
        let slot = self.slot;
        let Some(special) = Special::from_number(number) else {
            return [0; 32];
        };
        let value = match special {
            Special::LaneId => return each(|lane| lane as u32),
            Special::Thread => return each(|lane| packed(x[lane], y[lane], z[lane])),
            Special::ThreadX => return *x,
            Special::ThreadY => return *y,
            Special::ThreadZ => return *z,
            Special::MaskEqual => return each(|lane| 1 << lane),
            Special::MaskBelow => return each(|lane| (1 << lane) - 1),
            Special::MaskUpTo => return each(up_to),
            Special::MaskAbove => return each(|lane| !up_to(lane)),
            Special::MaskFrom => return each(|lane| !((1u32 << lane) - 1)),
            Special::Sizes => SM_WARPS << 8 | slot.sms << 20,
            Special::Place => (slot.first_warp + warp) << 8 | slot.sm << 20,
            Special::LaunchArgument => launch.argument,
            Special::BlockX => self.index[0],
            Special::BlockY => self.index[1],
            Special::BlockZ => self.index[2],
            Special::Threads => packed(launch.block[0], launch.block[1], launch.block[2]),
            Special::ThreadsX => launch.block[0],
            Special::ThreadsY => launch.block[1],
            Special::ThreadsZ => launch.block[2],
            Special::GridId => launch.grid_id,
            Special::BlocksX => launch.grid[0],
            Special::BlocksY => launch.grid[1],
            Special::BlocksZ => launch.grid[2],
            Special::SharedWindow => launch.shared_base as u32,
            Special::SharedWindowBytes | Special::LocalWindowBytes => 1 << 24,
            Special::SharedBytes => launch.shared_bytes,
            Special::SharedBanks => 32,
            Special::LocalWindow => launch.local_base as u32,
            Special::LocalPositive => launch.local_positive,
            Special::LocalNegativeStart => (1 << 24) - launch.local_negative,
            Special::Clock => clock as u32,
            Special::ClockHigh => (clock >> 32) as u32,
            // Graphics, traps and performance counters.
            _ => 0,
        };
        [value; 32]
    }
}

/// Thread indices in x, y, z of the lanes of a warp.
fn threads_of([nx, ny, nz]: [u32; 3], warp: u32) -> [Lanes; 3] {
    let first = 32 * warp;
    if ny == 1 && nz == 1 {
        return [each(|lane| first + lane as u32), [0; 32], [0; 32]];
    }
    // Counted on from the first lane's, as divisions are slow.
    let (mut x, mut y, mut z) = (first % nx, first / nx % ny, first / (nx * ny));
    let mut indices = [[0; 32]; 3];
    for lane in 0..32 {
        for (index, value) in indices.iter_mut().zip([x, y, z]) {
            index[lane] = value;
        }
        x += 1;
        if x == nx {
            (x, y) = (0, y + 1);
        }
        if y == ny {
            (y, z) = (0, z + 1);
        }
    }
    indices
}
