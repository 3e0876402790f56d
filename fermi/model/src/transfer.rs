//! A copy in progress: lines of bytes from one place of an address space to another.

use crate::{
    engine::unit_client,
    mmu::{Access, AddressSpace, Refusal},
    model::FermiModel,
    side::{Pages, Side},
    timing::Traffic,
};
use fermi_spec::addr::{Aperture, GpuVa};

/// Most bytes that one event moves, so that an access from outside never waits for more.
const PIECE_BYTES: u64 = 64 << 10;
/// Most runs that one event moves, for the same reason when they are short, as within a GOB.
const PIECE_RUNS: usize = 1024;
/// Bytes that count as one unit of work.
const WORK_BYTES: u64 = 4 << 10;

/// A semaphore that is written at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) at: GpuVa,
    pub(crate) payload: u32,
    /// 4 bytes instead of 16 with the time.
    pub(crate) short: bool,
}

/// What happens at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) release: Option<Release>,
    /// Raise the engine's notify interrupt.
    pub(crate) notify: bool,
}

/// The copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    source: Side,
    target: Side,
    line_bytes: u64,
    lines: u32,
    line: u32,
    done: u64,
    pub(crate) completion: Completion,
}

/// What is to be copied next without a gap on either side.
struct Run {
    source: GpuVa,
    target: GpuVa,
    bytes: u64,
}

impl Transfer {
    /// `lines` lines of `line_bytes` bytes.
    pub(crate) fn new(
        source: Side,
        target: Side,
        line_bytes: u32,
        lines: u32,
        completion: Completion,
    ) -> Self {
        let solid = source.is_solid(line_bytes) && target.is_solid(line_bytes);
        let line_bytes = u64::from(line_bytes);
        let (line_bytes, lines) = if line_bytes == 0 || lines == 0 {
            (0, 0)
        } else if solid {
            (line_bytes * u64::from(lines), 1)
        } else {
            (line_bytes, lines)
        };
        Self {
            source,
            target,
            line_bytes,
            lines,
            line: 0,
            done: 0,
            completion,
        }
    }

    /// The next run; `None` at the end.
    fn next(&self) -> Option<Run> {
        (self.line < self.lines).then(|| {
            let (source, source_bytes) = self.source.run(self.line, self.done);
            let (target, target_bytes) = self.target.run(self.line, self.done);
            Run {
                source,
                target,
                bytes: (self.line_bytes - self.done).min(source_bytes).min(target_bytes),
            }
        })
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.done >= self.line_bytes {
            self.done = 0;
            self.line += 1;
        }
    }

    fn is_finished(&self) -> bool {
        self.line >= self.lines
    }
}

fn charge(traffic: &mut Traffic, source: Aperture, target: Aperture, bytes: u64) {
    match source {
        Aperture::Vram => traffic.vram += bytes,
        _ => traffic.downstream += bytes,
    }
    match target {
        Aperture::Vram => traffic.vram += bytes,
        _ => traffic.upstream += bytes,
    }
}

impl FermiModel {
    /// The next event of the copy on unit `unit`; the units of work it took.
    pub(crate) fn run_transfer(&mut self, unit: usize) -> u32 {
        let Some((mut transfer, space)) = self.units[unit].transfer.zip(self.units[unit].space()) else {
            return 1;
        };
        if transfer.is_finished() {
            self.finish_transfer(unit, &space, transfer.completion);
            return 1;
        }
        let mut traffic = Traffic::default();
        let moved = self.move_piece(&space, &mut transfer, &mut traffic);
        self.mem.stores += 1;
        let bytes = traffic.vram + traffic.upstream + traffic.downstream;
        self.mem.counters.copied_bytes += bytes / 2;
        let now = self.clock.now();
        let end = self.links.reserve(&self.timing, traffic, now);
        let slowdown = u64::from(self.faults.copy_slowdown.max(1));
        self.units[unit].at = now.saturating_add((end - now).saturating_mul(slowdown));
        self.units[unit].transfer = Some(transfer);
        if let Err(refusal) = moved {
            self.fault_unit(unit, refusal);
        }
        1 + (bytes / 2 / WORK_BYTES) as u32
    }

    fn move_piece(
        &mut self,
        space: &AddressSpace,
        transfer: &mut Transfer,
        traffic: &mut Traffic,
    ) -> Result<(), Refusal> {
        let (mut from_pages, mut to_pages) = (Pages::new(Access::READ), Pages::new(Access::WRITE));
        let mut left = PIECE_BYTES;
        for _ in 0..PIECE_RUNS {
            let Some(run) = transfer.next().filter(|_| left != 0) else {
                break;
            };
            let bytes = run.bytes.min(left);
            let (from, bytes) =
                from_pages.translate(&mut self.mmu, &mut self.mem, space, run.source, bytes)?;
            let (to, bytes) = to_pages.translate(&mut self.mmu, &mut self.mem, space, run.target, bytes)?;
            self.mem.copy(from, to, bytes as usize);
            charge(traffic, from.aperture, to.aperture, bytes);
            transfer.advance(bytes);
            left -= bytes;
        }
        Ok(())
    }

    fn finish_transfer(&mut self, unit: usize, space: &AddressSpace, completion: Completion) {
        self.units[unit].transfer = None;
        self.mem.counters.copies += 1;
        if let Err(refusal) = self.complete(unit, space, completion) {
            self.fault_unit(unit, refusal);
            return;
        }
        self.unit_became_idle();
    }

    /// Does what a launch asked for at its end.
    pub(crate) fn complete(
        &mut self,
        unit: usize,
        space: &AddressSpace,
        completion: Completion,
    ) -> Result<(), Refusal> {
        if let Some(release) = completion.release {
            let time = (!release.short).then(|| self.clock.timestamp());
            self.mmu
                .release(&mut self.mem, space, release.at, release.payload, time)?;
        }
        if completion.notify {
            self.pfifo.notify_engine(self.units[unit].engine);
        }
        Ok(())
    }

    /// Reports a refusal of the engine's access. The engine stops, and its channel with it.
    pub(crate) fn fault_unit(&mut self, unit: usize, refusal: Refusal) {
        let client = unit_client(self.units[unit].engine);
        self.fault_unit_by(unit, client, refusal);
    }

    /// The same for a client of the engine other than the one that data goes through.
    pub(crate) fn fault_unit_by(&mut self, unit: usize, client: u8, refusal: Refusal) {
        self.units[unit].transfer = None;
        self.units[unit].faulted = true;
        self.note_dead_engines();
        let engine = self.units[unit].engine;
        let holder = self.units[unit].holder;
        self.record_fault(engine.fault_unit(), client, holder.map(|h| h.instance), refusal);
        if let Some(holder) = holder {
            self.halt_holder(&holder);
        }
    }
}
