//! A copy in progress: lines of bytes from one place of an address space to another. A fill is one without a source.

use crate::{
    engine::unit_client,
    fill::{Fill, FilledLines},
    memory::{Memory, Place, Stores},
    mmu::{Access, AddressSpace, Refusal},
    model::FermiModel,
    remap::{ELEMENT_BYTES_MAX, Remap},
    side::{Pages, Side},
    timing::Traffic,
};
use fermi_spec::{
    addr::{Aperture, GpuVa},
    methods::RenderEnable,
};

mod progress;

pub(crate) use progress::{Launching, Progress};

/// Most bytes that one event moves, so that an access from outside never waits for more.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
/// The same of a copy that is done at once: whoever shares the card has stopped a guest for it.
const PIECE_BYTES_AT_ONCE: u64 = 256 << 10;
/// Most runs that one event moves, for the same reason when they are short, as within a GOB.
pub(crate) const PIECE_RUNS: usize = 1024;
/// From one report to the one it is compared with.
const REPORT_BYTES: u64 = 16;
/// Elements that change on the way are moved in batches of so many.
const BATCH_ELEMENTS: usize = 64;
const BATCH_BYTES: usize = BATCH_ELEMENTS * ELEMENT_BYTES_MAX;
/// Most batches that one event moves, for the same reason.
const PIECE_BATCHES: usize = 8;
/// Bytes that count as one unit of work.
const WORK_BYTES: u64 = 4 << 10;
/// Components of elements that change on the way that count as one.
const WORK_COMPONENTS: u64 = 64;
/// What a component that is stored alone counts as besides: it is translated alone.
const ALONE: u64 = 4;

/// A semaphore that is written at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    pub(crate) at: GpuVa,
    pub(crate) payload: u32,
    /// 4 bytes instead of 16 with the time.
    pub(crate) short: bool,
}

/// An interrupt at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interrupt {
    None,
    /// The engine's notify interrupt, which stops nothing.
    NonBlocking,
    /// One of the copy engine itself, which takes no method until it is acknowledged.
    Blocking,
}

/// Completion of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completion {
    pub(crate) release: Option<Release>,
    pub(crate) interrupt: Interrupt,
}

/// Whether anything is copied; the completion comes either way (assumption: a driver that waits for it must
/// not wait for ever).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Condition {
    pub(crate) mode: RenderEnable,
    /// The report, or the first of two; 8 bytes of each are looked at (assumption; envytools: counter and result).
    pub(crate) at: GpuVa,
}

impl Condition {
    /// A context without any method yet renders: RENDER_ENABLE_C is kept with this bit turned over.
    pub(crate) const KEPT: u32 = 1;

    /// The condition of a kept RENDER_ENABLE_C.
    pub(crate) fn of(kept: u32, at: GpuVa) -> Self {
        Self {
            // Only what an image in memory says that no method has written has no name.
            mode: RenderEnable::from_bits(kept ^ Self::KEPT).unwrap_or(RenderEnable::True),
            at,
        }
    }
}

/// How the elements of a line come to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Elements {
    /// As in the source; they are bytes.
    Copied,
    /// Of the source's, changed on the way.
    Remapped(Remap),
    /// All the same, without a source; they are bytes. The lines of another target may follow.
    Filled(Fill, Option<FilledLines>),
}

/// A copy or a fill that runs, with its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub(crate) launching: Launching,
    source: Side,
    pub(crate) target: Side,
    elements: Elements,
    line_elements: u64,
    lines: u32,
    line: u32,
    /// Elements of the line that are copied.
    done: u64,
    /// Condition to read before the first byte.
    condition: Option<Condition>,
    /// It fills the second of two targets.
    in_second: bool,
    pub(crate) completion: Completion,
}

/// The next bytes to copy without a gap on either side.
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
            launching: Launching::default(),
            source,
            target,
            elements: Elements::Copied,
            line_elements: line_bytes,
            lines,
            line: 0,
            done: 0,
            condition: None,
            in_second: false,
            completion,
        }
    }

    /// `lines` lines of `line_elements` elements that change on the way.
    pub(crate) fn remapped(
        source: Side,
        target: Side,
        remap: Remap,
        line_elements: u32,
        lines: u32,
        completion: Completion,
    ) -> Self {
        Self {
            launching: Launching::default(),
            source,
            target,
            elements: Elements::Remapped(remap),
            line_elements: u64::from(line_elements),
            lines: if line_elements == 0 { 0 } else { lines },
            line: 0,
            done: 0,
            condition: None,
            in_second: false,
            completion,
        }
    }

    /// Lines that are filled, then those of another target.
    pub(crate) fn filled(first: FilledLines, second: Option<FilledLines>, completion: Completion) -> Self {
        let FilledLines {
            target,
            fill,
            line_bytes,
            lines,
        } = first;
        Self {
            elements: Elements::Filled(fill, second),
            ..Self::new(target, target, line_bytes, lines, completion)
        }
    }

    /// Goes on with the lines of a second target, if all is done but these.
    pub(crate) fn go_on(&mut self) {
        if self.is_finished()
            && let Elements::Filled(_, Some(second)) = self.elements
        {
            *self = Self {
                launching: self.launching,
                condition: self.condition,
                in_second: true,
                ..Self::filled(second, None, self.completion)
            };
        }
    }

    /// The same transfer, but it moves nothing unless the condition holds.
    pub(crate) fn on_condition(self, condition: Condition) -> Self {
        Self {
            condition: Some(condition).filter(|condition| condition.mode != RenderEnable::True),
            ..self
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
                bytes: (self.line_elements - self.done)
                    .min(source_bytes)
                    .min(target_bytes),
            }
        })
    }

    /// The next bytes to fill without a gap, and at which byte of an element they begin; `None` at the end.
    pub(crate) fn next_to_fill(&self, element_bytes: u32) -> Option<(GpuVa, usize, u64)> {
        (self.line < self.lines).then(|| {
            let (va, bytes) = self.target.run(self.line, self.done);
            let phase = self.done % u64::from(element_bytes);
            (va, phase as usize, bytes.min(self.line_elements - self.done))
        })
    }

    pub(crate) fn advance(&mut self, elements: u64) {
        self.done += elements;
        if self.done >= self.line_elements {
            self.done = 0;
            self.line += 1;
        }
    }

    fn is_finished(&self) -> bool {
        self.line >= self.lines
    }

    fn is_fill(&self) -> bool {
        matches!(self.elements, Elements::Filled(..))
    }

    /// The same transfer without anything to move.
    fn without_lines(self) -> Self {
        let elements = match self.elements {
            Elements::Filled(fill, _) => Elements::Filled(fill, None),
            other => other,
        };
        Self {
            elements,
            lines: 0,
            ..self
        }
    }

    /// Bytes that came to their places with this traffic: a copy reads each of them, too.
    fn bytes_of(&self, traffic: Traffic) -> u64 {
        let all = traffic.vram + traffic.upstream + traffic.downstream;
        if self.is_fill() { all } else { all / 2 }
    }
}

/// Runs that follow each other in both memories, moved as one: pages of 4 KiB are translated one by one.
struct Joined {
    run: Option<(Place, Place, u64)>,
    stores: Stores,
}

impl Joined {
    fn add(&mut self, mem: &mut Memory, source: Place, target: Place, bytes: u64) {
        if let Some((from, to, before)) = &mut self.run
            && (from.offset(*before), to.offset(*before)) == (source, target)
        {
            *before += bytes;
            return;
        }
        self.finish(mem);
        self.run = Some((source, target, bytes));
    }

    /// Moves what is left.
    fn finish(&mut self, mem: &mut Memory) {
        if let Some((from, to, bytes)) = self.run.take() {
            mem.copy(from, to, bytes as usize, self.stores);
        }
    }
}

pub(crate) fn charge_read(traffic: &mut Traffic, source: Aperture, bytes: u64) {
    match source {
        Aperture::Vram => traffic.vram += bytes,
        _ => traffic.downstream += bytes,
    }
}

pub(crate) fn charge_write(traffic: &mut Traffic, target: Aperture, bytes: u64) {
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
        if let Some(condition) = transfer.condition.take() {
            match self.holds(&space, condition) {
                Ok(true) => {}
                Ok(false) => transfer = transfer.without_lines(),
                Err(refusal) => {
                    self.fault_unit(unit, refusal);
                    return 1;
                }
            }
        }
        transfer.go_on();
        if transfer.is_finished() {
            self.finish_transfer(unit, &space, &transfer);
            return 1;
        }
        let mut traffic = Traffic::default();
        let mut components = 0;
        let moved = match transfer.elements {
            Elements::Copied => {
                let stores = match self.is_at_once(self.units[unit].channel()) {
                    true => Stores::PastCaches,
                    false => Stores::Cached,
                };
                self.move_piece(&space, &mut transfer, &mut traffic, stores)
            }
            Elements::Remapped(remap) => {
                self.remap_piece(&space, &mut transfer, remap, &mut traffic, &mut components)
            }
            Elements::Filled(fill, _) => self.fill_piece(&space, &mut transfer, fill, &mut traffic),
        };
        self.mem.stores += 1;
        let bytes = transfer.bytes_of(traffic);
        let channel = self.units[unit].channel();
        if channel.is_some_and(|id| self.pfifo.preempt.concerns(id)) {
            self.pfifo.preempt.waited_bytes += bytes;
        }
        if !transfer.is_fill() {
            self.mem.counters.copied_bytes += bytes;
        }
        let now = self.clock.now();
        let placed = self.timing.copy_components_ns(components);
        let end = self
            .links
            .reserve(&self.timing, traffic, now)
            .max(now.saturating_add(placed));
        let slowdown = u64::from(self.faults.copy_slowdown.max(1));
        let took = self.time_of(channel, (end - now).saturating_mul(slowdown));
        self.units[unit].at = now.saturating_add(took);
        self.units[unit].transfer = Some(transfer);
        if let Err(refusal) = moved {
            self.fault_unit(unit, refusal);
        }
        1 + (bytes / WORK_BYTES + components / WORK_COMPONENTS) as u32
    }

    /// Reads a condition and decides on it.
    fn holds(&mut self, space: &AddressSpace, condition: Condition) -> Result<bool, Refusal> {
        let mut report = |after: u64| {
            let mut bytes = [0; 8];
            let at = GpuVa(condition.at.0.saturating_add(after));
            self.mmu
                .read(&mut self.mem, space, Access::READ, at, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        Ok(match condition.mode {
            RenderEnable::False => false,
            RenderEnable::True => true,
            RenderEnable::Conditional => report(0)? != 0,
            RenderEnable::IfEqual => report(0)? == report(REPORT_BYTES)?,
            RenderEnable::IfNotEqual => report(0)? != report(REPORT_BYTES)?,
        })
    }

    fn move_piece(
        &mut self,
        space: &AddressSpace,
        transfer: &mut Transfer,
        traffic: &mut Traffic,
        stores: Stores,
    ) -> Result<(), Refusal> {
        let mut joined = Joined { run: None, stores };
        let moved = self.move_runs(space, transfer, traffic, &mut joined);
        // What was translated before a refusal is moved.
        joined.finish(&mut self.mem);
        moved
    }

    fn move_runs(
        &mut self,
        space: &AddressSpace,
        transfer: &mut Transfer,
        traffic: &mut Traffic,
        joined: &mut Joined,
    ) -> Result<(), Refusal> {
        let (mut left, past_tlb) = match joined.stores {
            Stores::Cached => (PIECE_BYTES, false),
            Stores::PastCaches => (PIECE_BYTES_AT_ONCE, true),
        };
        let mut from_pages = Pages::new(&transfer.source, Access::READ).past_tlb(past_tlb);
        let mut to_pages = Pages::new(&transfer.target, Access::WRITE).past_tlb(past_tlb);
        for _ in 0..PIECE_RUNS {
            let Some(run) = transfer.next().filter(|_| left != 0) else {
                break;
            };
            let bytes = run.bytes.min(left);
            let (from, bytes) =
                from_pages.translate(&mut self.mmu, &mut self.mem, space, run.source, bytes)?;
            let (to, bytes) = to_pages.translate(&mut self.mmu, &mut self.mem, space, run.target, bytes)?;
            joined.add(&mut self.mem, from, to, bytes);
            charge_read(traffic, from.aperture, bytes);
            charge_write(traffic, to.aperture, bytes);
            transfer.advance(bytes);
            left -= bytes;
        }
        Ok(())
    }

    /// Moves up to [`PIECE_BATCHES`] batches of elements; `placed` counts their components, more for those stored
    /// alone.
    fn remap_piece(
        &mut self,
        space: &AddressSpace,
        transfer: &mut Transfer,
        remap: Remap,
        traffic: &mut Traffic,
        placed: &mut u64,
    ) -> Result<(), Refusal> {
        let mut from = Pages::new(&transfer.source, Access::READ);
        let mut to = Pages::new(&transfer.target, Access::WRITE);
        let (source_bytes, target_bytes) = (remap.source_bytes(), remap.target_bytes());
        for _ in 0..PIECE_BATCHES {
            if transfer.is_finished() {
                break;
            }
            let elements = (transfer.line_elements - transfer.done).min(BATCH_ELEMENTS as u64) as usize;
            let (mut source, mut target) = ([0; BATCH_BYTES], [0; BATCH_BYTES]);
            let (source, target) = (
                &mut source[..elements * source_bytes],
                &mut target[..elements * target_bytes],
            );
            let at = (transfer.line, transfer.done * source_bytes as u64);
            if remap.reads_source() {
                self.gather(space, &mut from, &transfer.source, at, source, traffic)?;
            }
            remap.apply(source, target);
            *placed += elements as u64 * u64::from(remap.target_components);
            let first = transfer.done * target_bytes as u64;
            if remap.writes_all() {
                let at = (transfer.line, first);
                self.scatter(space, &mut to, &transfer.target, at, target, traffic)?;
            } else {
                for start in (0..target.len()).step_by(target_bytes) {
                    for (offset, bytes) in remap.written() {
                        let part = &target[start + offset..start + offset + bytes];
                        let at = (transfer.line, first + (start + offset) as u64);
                        self.scatter(space, &mut to, &transfer.target, at, part, traffic)?;
                        *placed += ALONE;
                    }
                }
            }
            transfer.advance(elements as u64);
        }
        Ok(())
    }

    /// Reads bytes of a line.
    fn gather(
        &mut self,
        space: &AddressSpace,
        pages: &mut Pages,
        side: &Side,
        (line, byte): (u32, u64),
        data: &mut [u8],
        traffic: &mut Traffic,
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < data.len() {
            let (va, run) = side.run(line, byte + done as u64);
            let bytes = run.min((data.len() - done) as u64);
            let (place, bytes) = pages.translate(&mut self.mmu, &mut self.mem, space, va, bytes)?;
            let end = done + bytes as usize;
            self.mem.read(place, &mut data[done..end]);
            charge_read(traffic, place.aperture, bytes);
            done = end;
        }
        Ok(())
    }

    /// Stores bytes of a line.
    fn scatter(
        &mut self,
        space: &AddressSpace,
        pages: &mut Pages,
        side: &Side,
        (line, byte): (u32, u64),
        data: &[u8],
        traffic: &mut Traffic,
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < data.len() {
            let (va, run) = side.run(line, byte + done as u64);
            let bytes = run.min((data.len() - done) as u64);
            let (place, bytes) = pages.translate(&mut self.mmu, &mut self.mem, space, va, bytes)?;
            let end = done + bytes as usize;
            self.mem.write(place, &data[done..end]);
            charge_write(traffic, place.aperture, bytes);
            done = end;
        }
        Ok(())
    }

    fn finish_transfer(&mut self, unit: usize, space: &AddressSpace, transfer: &Transfer) {
        self.units[unit].transfer = None;
        if transfer.is_fill() {
            self.mem.counters.clears += 1;
        } else {
            self.mem.counters.copies += 1;
        }
        if let Err(refusal) = self.complete(unit, space, transfer.completion) {
            self.fault_unit(unit, refusal);
            return;
        }
        self.unit_became_idle();
    }

    /// Performs the completion of a copy: semaphore and interrupt.
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
        match completion.interrupt {
            Interrupt::None => {}
            Interrupt::NonBlocking => self.pfifo.notify_engine(self.units[unit].engine),
            Interrupt::Blocking => self.units[unit].block_after_copy(),
        }
        Ok(())
    }

    /// Reports a refusal of the engine's access. The engine stops, and its channel with it.
    pub(crate) fn fault_unit(&mut self, unit: usize, refusal: Refusal) {
        let client = unit_client(self.units[unit].engine);
        self.fault_unit_by(unit, client, refusal);
    }

    /// Reports a refusal for a client of the engine other than the one that data goes through.
    pub(crate) fn fault_unit_by(&mut self, unit: usize, client: u8, refusal: Refusal) {
        self.units[unit].transfer = None;
        self.units[unit].grid = None;
        self.units[unit].list = None;
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
