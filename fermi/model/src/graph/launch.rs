//! Grids of class 90c0: from the state that methods have set to a launch, and running it piece by piece.
//!
//! ```text
//!   BIND_CONSTANTS ─► bank words of the context          LAUNCH ─► Launch: constants read, all checked ─► Grid
//!   Event::Unit ─► run_grid: a piece of the grid ─► its GPU time ─► the next piece, the end, a trap or a fault
//! ```
//!
//! Methods behind a launch wait until the grid has ended, as they wait for a copy. assumptions: constant banks are as
//! they were at the launch; a bank whose memory is not mapped to its end is as long as its memory.

use super::{
    UNIT,
    channel_memory::{ChannelMemory, LooksAhead, Moved},
    state::Area,
};
use crate::{
    compute::{
        BANK_BYTES_MAX, BANKS, Bank, Grid, GridProgress, GridStart, Issue, Launch, Stop, Tally, WarpError,
    },
    engine::{Effect, Rejection},
    mmu::{Access, AddressSpace},
    model::FermiModel,
    replay::FaultBuffer,
    timing::{ShaderTiming, Traffic},
};
use fermi_spec::{
    addr::GpuVa,
    fault::client,
    graphics::{BindConstants, compute, shader},
    regs::pgraph::graph_data_error,
};

/// Words of a bank in the context: valid, address high and low, bytes.
const BANK_WORDS: usize = 4;
/// Warp instructions of a piece: some tens of microseconds of the host's time, so that no access waits longer.
const PIECE_INSTRUCTIONS: u64 = 2048;
/// Warp instructions that are one unit of work.
const WORK_INSTRUCTIONS: u64 = 16;
/// Generic windows begin at multiples of 16 MiB.
const WINDOW_MASK: u32 = 0xff00_0000;
/// Local memory and stack sizes, and constant buffer sizes.
const SIZE_MASK: u32 = 0xf_ffff;

impl FermiModel {
    /// BIND_CONSTANTS: the buffer that CONSTANT_BYTES and CONSTANT_HIGH describe becomes a bank.
    pub(super) fn bind_constants(&mut self, operand: BindConstants) {
        let state = &mut self.graph.state;
        let address = state.address(Area::COMPUTE, shader::CONSTANT_HIGH);
        let bytes = state.method(Area::COMPUTE, shader::CONSTANT_BYTES) & SIZE_MASK;
        let words = [
            operand.valid().into(),
            (address >> 32) as u32,
            address as u32,
            bytes,
        ];
        for (index, word) in words.into_iter().enumerate() {
            state.set(
                Area::BANKS,
                usize::from(operand.bank()) * BANK_WORDS + index,
                word,
            );
        }
    }

    /// LAUNCH: starts the grid.
    pub(super) fn launch(&mut self, argument: u32) -> Effect {
        let Some(space) = self.units[UNIT].space() else {
            return Effect::None;
        };
        let launch = self.described_launch(argument, &space);
        if launch.check().is_err() {
            return Effect::Reject(Rejection::GraphData(graph_data_error::INVALID_VALUE));
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.start(&GridStart {
                code: launch.code,
                entry: launch.entry,
                grid: launch.grid,
                block: launch.block,
            });
        }
        let shaders = self.timing.shaders;
        let faults = FaultBuffer::new(self.capabilities.replayable_faults);
        let workers = self.workers.clone();
        let grid = Grid::new(launch, shaders.sms, self.clock.now(), faults, workers);
        self.units[UNIT].grid = Some(Box::new(grid));
        self.units[UNIT].at = self.clock.now().saturating_add(shaders.launch_ns);
        Effect::None
    }

    fn described_launch(&mut self, argument: u32, space: &AddressSpace) -> Launch {
        let state = &self.graph.state;
        let method = |method| state.method(Area::COMPUTE, method);
        let both = |word: u32| [word & 0xffff, word >> 16];
        let ([grid_x, grid_y], [block_x, block_y]) =
            (both(method(compute::GRID_XY)), both(method(compute::BLOCK_XY)));
        let mut launch = Launch {
            code: state.address(Area::COMPUTE, compute::CODE_HIGH),
            entry: method(compute::ENTRY),
            grid: [grid_x, grid_y, method(compute::GRID_Z) & 0xffff],
            block: [block_x, block_y, method(compute::BLOCK_Z) & 0xffff],
            registers: method(compute::REGISTERS) & 0xff,
            shared_bytes: method(compute::SHARED_BYTES) & 0x3_ffff,
            barriers: method(compute::BARRIERS) & 0x1f,
            stack_bytes: method(compute::STACK_BYTES) & SIZE_MASK,
            shared_base: u64::from(method(compute::SHARED_WINDOW) & WINDOW_MASK),
            local_base: u64::from(method(compute::LOCAL_WINDOW) & WINDOW_MASK),
            local_positive: method(compute::LOCAL_POSITIVE) & SIZE_MASK,
            local_negative: method(compute::LOCAL_NEGATIVE) & SIZE_MASK,
            temp: state.address(Area::COMPUTE, compute::TEMP_HIGH),
            temp_per_warp: method(compute::TEMP_PER_WARP).into(),
            grid_id: method(compute::GRID_ID),
            argument,
            ..Launch::default()
        };
        for bank in 0..BANKS {
            launch.banks[bank] = self.bank(bank, space);
        }
        launch.textures = self.bound_textures(space);
        launch.surfaces = self.bound_surfaces();
        launch
    }

    /// Content of a constant bank at this moment.
    fn bank(&mut self, bank: usize, space: &AddressSpace) -> Bank {
        let word = |index| self.graph.state.get(Area::BANKS, bank * BANK_WORDS + index);
        if word(0) == 0 {
            return Bank::default();
        }
        let address = u64::from(word(1)) << 32 | u64::from(word(2));
        let mut data = vec![0; (word(3) as usize).min(BANK_BYTES_MAX)];
        let mut done = 0;
        while done < data.len() {
            let Some(va) = GpuVa(address).checked_add(done as u64) else {
                break;
            };
            let left = (data.len() - done) as u64;
            let Ok((place, run)) = self.mmu.translate(&mut self.mem, space, Access::READ, va, left) else {
                break;
            };
            self.mem.read(place, &mut data[done..done + run as usize]);
            done += run as usize;
        }
        Bank::new(&data[..done])
    }

    /// The next event of the grid on unit `unit`; the units of work it took.
    pub(crate) fn run_grid(&mut self, unit: usize) -> u32 {
        let (Some(mut grid), Some(space)) = (self.units[unit].grid.take(), self.units[unit].space()) else {
            return 1;
        };
        let now = self.clock.now();
        if grid.faults.needs_host() {
            // Only the watchdog comes before the host.
            self.stop_grid(&mut grid, Stop::Error(WarpError::TimedOut));
            return 1;
        }
        if grid.faults.take_replay(now) {
            self.mem.counters.replays += 1;
            grid.replay();
        }
        let before = grid.tally;
        let (progress, moved) = self.run_piece(&mut grid, space);
        let did = grid.tally.since(&before);
        self.count_piece(&mut grid, &did, &moved);
        let mut end = self.piece_end(&grid, &did, &moved);
        if progress == Ok(GridProgress::Paused) {
            // Also a piece that found nothing to run takes time, so that the watchdog's comes.
            end = end.max(now.saturating_add(1));
        }
        self.units[unit].at = end;
        match progress {
            Ok(GridProgress::Paused)
                if end.saturating_sub(grid.started) < self.timing.shaders.watchdog_ns =>
            {
                self.units[unit].grid = Some(grid);
            }
            Ok(GridProgress::Paused) => self.stop_grid(&mut grid, Stop::Error(WarpError::TimedOut)),
            Ok(GridProgress::Waiting) => {
                grid.faults.is_at_rest = true;
                self.units[unit].at = end.max(grid.faults.replay_at().unwrap_or(end));
                self.units[unit].grid = Some(grid);
            }
            // The end is an event of its own: it is at `at`, not now.
            Ok(GridProgress::Done) if end > now => self.units[unit].grid = Some(grid),
            Ok(GridProgress::Done) => {
                self.mem.counters.grids += 1;
                self.played_blocks += grid.played();
                self.unit_became_idle();
            }
            Err(stop) => self.stop_grid(&mut grid, stop),
        }
        1 + (did.instructions() / WORK_INSTRUCTIONS) as u32
    }

    /// Executes a piece of a grid: how far it got, and what it moved.
    fn run_piece(&mut self, grid: &mut Grid, space: AddressSpace) -> (Result<GridProgress, Stop>, Moved) {
        let mut faults = std::mem::take(&mut grid.faults);
        let graph = &mut self.graph;
        let mut memory = ChannelMemory::new(
            &mut self.mmu,
            &mut self.mem,
            &mut graph.l2,
            &mut graph.pages,
            space,
        );
        memory.ahead = LooksAhead::of(&self.capabilities, &mut faults, self.clock.now());
        let mut watcher = self.watcher.take();
        let progress = match &mut watcher {
            None => grid.run(&mut memory, None, PIECE_INSTRUCTIONS),
            Some(watcher) => grid.run(&mut memory, Some(&mut **watcher), PIECE_INSTRUCTIONS),
        };
        let moved = memory.moved;
        self.watcher = watcher;
        grid.faults = faults;
        (progress, moved)
    }

    /// Adds a piece to the counters.
    fn count_piece(&mut self, grid: &mut Grid, did: &Tally, moved: &Moved) {
        self.mem.stores += moved.stores;
        let counters = &mut self.mem.counters;
        counters.warp_instructions += did.instructions();
        counters.lane_instructions += did.lane_instructions;
        counters.shader_vram_bytes += moved.traffic.vram;
        counters.shader_upstream_bytes += moved.traffic.upstream;
        counters.shader_downstream_bytes += moved.traffic.downstream;
        counters.replayable_faults += std::mem::take(&mut grid.faults.came);
        counters.stalled_faults += std::mem::take(&mut grid.faults.stalled);
    }

    /// When a piece is through: its instructions issued, its data moved, and its last atomic operation on the word that has
    /// the most of them done.
    fn piece_end(&mut self, grid: &Grid, did: &Tally, moved: &Moved) -> u64 {
        let now = self.clock.now();
        let shaders = self.timing.shaders;
        let clocks = issue_clocks(&shaders, did, moved, grid.warps_per_sm());
        let issued =
            now.saturating_add(clocks.saturating_mul(1_000) / (u64::from(grid.sms()) * shaders.mhz.max(1)));
        let atomics = moved.same_word.saturating_mul(shaders.atomic_same_word * 1_000) / shaders.mhz.max(1);
        self.links
            .reserve(&self.timing, moved.traffic, now)
            .max(self.links.reserve_l2(&self.timing, moved.l2_bytes, now))
            .max(issued)
            .max(now.saturating_add(atomics))
    }

    /// The grid ends before its program does.
    fn stop_grid(&mut self, grid: &mut Grid, stop: Stop) {
        self.stopped_at = grid.place();
        match stop {
            Stop::Error(error) => self.raise_warp_error(error),
            Stop::Fault(refusal) => self.fault_unit_by(UNIT, client::GPC_L1, refusal),
            Stop::TextureFault(refusal) => self.fault_unit_by(UNIT, client::GPC_T1, refusal),
        }
    }
}

/// Shader clocks that one SM needs for instructions: as many as it takes to issue them, or as long as each warp has to
/// wait for its own results, divided among the warps that wait at the same time.
fn issue_clocks(shaders: &ShaderTiming, did: &Tally, moved: &Moved, warps: u32) -> u64 {
    let issued = |issue: Issue| did.issued[issue as usize];
    let issue = issued(Issue::Full)
        + issued(Issue::Half) * shaders.half_rate
        + issued(Issue::Double) * shaders.double
        + issued(Issue::Special) * shaders.special
        + issued(Issue::Control) * shaders.control
        + issued(Issue::Memory) * shaders.memory
        + did.shared_passes * shaders.shared_pass;
    let waits = did.instructions() * shaders.dependent
        + did.awaited * latency(shaders, moved) / shaders.overlapping_accesses.max(1);
    issue.max(waits / u64::from(warps.max(1)))
}

/// Clocks of an access, by the source of all segments' data.
fn latency(shaders: &ShaderTiming, moved: &Moved) -> u64 {
    if moved.l2_bytes == 0 {
        return 0;
    }
    let Traffic {
        vram,
        upstream,
        downstream,
    } = moved.traffic;
    let system = upstream + downstream;
    let hit = moved.l2_bytes - (vram + system).min(moved.l2_bytes);
    let all = hit * shaders.l2_latency + vram * shaders.memory_latency + system * shaders.system_latency;
    all / moved.l2_bytes
}
