//! What a bare machine shows of arrays with two copies: the processor's loads and stores, copies on the channels, grids.
//!
//! Nothing here asks the guest's code what it does. Copies are found in the rings (`launches`), the processor's accesses on
//! its bus, those of grids by the card's watcher. From that comes a [`History`] to hold against the guest's own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use card::BareMachine;
use fermi_model::{GridStart, WarpStep, WarpWatcher};
use fermi_spec::bar::Bar;
use fermi_spec::regs::{Bar0Reg, PtimerReg};
use guests::coherence::{Direction, History, Sets, Side, Touch};
use guests::{GuestBus, ManagedArray};
use kernels::programs::{self, Program};
use launches::Work;
use vm_memory::VolatileMemory;

use crate::jobs::Onlooker;
use crate::observed::ObservedMachine;
use crate::programs::Kernel;

/// Arrays begin multiples of this, so that one holds all bytes of such a page or none.
const PAGE: u64 = fermi_spec::addr::LARGE_PAGE;

/// Something that was seen. Addresses are of guest RAM, or of the channels' space.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// The processor loads or stores.
    Ram { bytes: Range<u64>, is_store: bool },
    /// A copy is asked for.
    Copy { from: u64, to: u64, bytes: u64 },
    /// A grid runs.
    Grid(Grid),
}

/// What a grid touched.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) code: u64,
    /// From the first byte to behind the last by page: loads, stores.
    pages: BTreeMap<u64, [Option<Range<u64>>; 2]>,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Notes what grids touch.
struct Watcher(Log);

impl WarpWatcher for Watcher {
    fn start(&mut self, grid: &GridStart) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(Seen::Grid(Grid {
            code: grid.code,
            pages: BTreeMap::new(),
        }));
    }

    fn see(&mut self, step: &WarpStep<'_>) {
        let Some(global) = step.global.as_ref().filter(|global| global.lanes != 0) else {
            return;
        };
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The processor may have made an access while the grid runs.
        let grids = log.iter_mut().rev();
        let mut grids = grids.filter_map(|seen| match seen {
            Seen::Grid(grid) => Some(grid),
            Seen::Ram { .. } | Seen::Copy { .. } => None,
        });
        let Some(grid) = grids.next() else { return };
        for lane in (0..32).filter(|lane| global.lanes >> lane & 1 != 0) {
            let at = global.addresses[lane];
            let end = at + u64::from(global.bytes);
            let page = grid.pages.entry(at / PAGE).or_default();
            for (touched, does) in page.iter_mut().zip([global.is_load, global.is_store]) {
                if does {
                    let known = touched.get_or_insert(at..end);
                    *known = known.start.min(at)..known.end.max(end);
                }
            }
        }
    }
}

/// A machine that notes all of it, as long as somebody waits for it.
pub(crate) struct TracedMachine<'a> {
    inner: ObservedMachine,
    onlooker: &'a dyn Onlooker,
    log: Log,
    /// Constant bank 0 of each launch, in the order in which they were queued.
    banks: Vec<Vec<Option<u32>>>,
    /// The card's clock when the plan began and ended.
    marks: [Option<u64>; 2],
}

impl<'a> TracedMachine<'a> {
    pub(crate) fn new(machine: BareMachine, onlooker: &'a dyn Onlooker) -> Self {
        let log = Log::default();
        let watcher = Watcher(Arc::clone(&log));
        Self {
            inner: ObservedMachine::watched_by(machine, Box::new(watcher)),
            onlooker,
            log,
            banks: Vec::new(),
            marks: [None; 2],
        }
    }

    fn note(&mut self, seen: Seen) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let (
            Some(Seen::Ram { bytes, is_store }),
            Seen::Ram {
                bytes: next,
                is_store: stores,
            },
        ) = (log.last_mut(), &seen)
            && is_store == stores
            && bytes.end == next.start
        {
            bytes.end = next.end;
            return;
        }
        log.push(seen);
    }

    /// Nanoseconds on the card's clock.
    fn card_ns(&mut self) -> u64 {
        let [high, low] = [PtimerReg::PtimerHigh, PtimerReg::PtimerLow].map(|register| {
            self.inner
                .read32(Bar::Bar0, u64::from(Bar0Reg::from(register).offset()))
        });
        u64::from(high) << 32 | u64::from(low)
    }

    /// Time of the plan on the card's clock. The card's clock stands while the card rests, so it is that of grids and copies.
    pub(crate) fn plan_ns(&self) -> Option<u64> {
        let [start, end] = self.marks;
        end?.checked_sub(start?)
    }

    /// Words of VRAM as they are now.
    pub(crate) fn vram(&self, at: u64, words: usize) -> Option<Vec<u32>> {
        let mut bytes = vec![0; 4 * words];
        let slice = self
            .inner
            .machine
            .card
            .vram
            .get_slice(at as usize, bytes.len())
            .ok()?;
        slice.copy_to(&mut bytes);
        let (words, _) = bytes.as_chunks();
        Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// What came of it, for the arrays that the guest had.
    pub(crate) fn trace(&self, arrays: &[ManagedArray]) -> Trace {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut trace = Trace::new(arrays);
        let mut banks = self.banks.iter();
        for seen in log.iter() {
            match seen {
                Seen::Ram { bytes, is_store } => trace.ram(bytes, *is_store),
                Seen::Copy { from, to, bytes } => trace.copy(*from, *to, *bytes),
                Seen::Grid(grid) => {
                    let bank = banks.next().map_or(&[][..], Vec::as_slice);
                    let program = self.program_at(arrays, grid.code);
                    trace.grid(grid, program, bank);
                }
            }
        }
        trace.end(banks.len());
        trace
    }

    /// The program whose code the card has at an address.
    fn program_at(&self, arrays: &[ManagedArray], code: u64) -> Option<&'static Program> {
        let array = arrays.first()?;
        let at = code.checked_sub(array.vram_va - array.vram)?;
        let mut all = programs::ALL.iter().copied();
        all.find(|program| {
            let words = self.vram(at, 2 * program.code.len()).unwrap_or_default();
            let (words, _) = words.as_chunks();
            let mut words = words
                .iter()
                .map(|[low, high]| u64::from(*high) << 32 | u64::from(*low));
            program.code.iter().all(|word| words.next() == Some(*word))
        })
    }
}

/// What was seen of some arrays.
pub(crate) struct Trace {
    arrays: Vec<ManagedArray>,
    pub(crate) history: History,
    /// Bytes of an array that parts of a copy moved so far, by direction.
    parts: Vec<[u64; 2]>,
    /// Copies that have one side in an array and are no copy between its two.
    pub(crate) odd_copies: u64,
    pub(crate) grids: u64,
    /// Grids that touched an array which their program's pointers do not say, or whose program is not known.
    pub(crate) unsaid: u64,
    /// Arrays that were said and not touched, one for each grid.
    pub(crate) said_in_vain: u64,
    /// Arrays that some grid was said to store to and did not. Their data counts as changed for the guest and not here.
    pub(crate) unchanged: u16,
    /// What each launch touched: grids in a row with the same code are one.
    pub(crate) launches: Vec<Sets>,
    last_code: Option<u64>,
}

impl Trace {
    fn new(arrays: &[ManagedArray]) -> Self {
        let mut history = History::default();
        for (number, array) in arrays.iter().enumerate() {
            history.set_bytes(number, array.bytes);
        }
        Self {
            arrays: arrays.to_vec(),
            history,
            parts: vec![[0; 2]; arrays.len()],
            odd_copies: 0,
            grids: 0,
            unsaid: 0,
            said_in_vain: 0,
            unchanged: 0,
            launches: Vec::new(),
            last_code: None,
        }
    }

    fn ram(&mut self, bytes: &Range<u64>, is_store: bool) {
        for (number, array) in self.arrays.iter().enumerate() {
            let own = array.ram..array.ram + array.bytes;
            if bytes.start.max(own.start) >= bytes.end.min(own.end) {
                continue;
            }
            let is_whole = bytes.start <= own.start && own.end <= bytes.end;
            let touch = match (is_store, is_whole) {
                (false, _) => Touch::Read,
                (true, false) => Touch::Write,
                (true, true) => Touch::Overwrite,
            };
            self.history.touch(number, Side::Cpu, touch);
            self.last_code = None;
        }
    }

    fn copy(&mut self, from: u64, to: u64, bytes: u64) {
        let of = |at: u64, start: fn(&ManagedArray) -> u64| {
            let holds = |array: &ManagedArray| (start(array)..start(array) + array.bytes).contains(&at);
            let number = self.arrays.iter().position(holds)?;
            Some((number, at - start(&self.arrays[number])))
        };
        let ram = |array: &ManagedArray| array.ram_va;
        let vram = |array: &ManagedArray| array.vram_va;
        let (number, direction) = match ((of(from, ram), of(to, vram)), (of(from, vram), of(to, ram))) {
            ((Some(source), Some(target)), _) if source == target => (source.0, Direction::ToGpu),
            (_, (Some(source), Some(target))) if source == target => (source.0, Direction::ToCpu),
            ((None, None), (None, None)) => return,
            _ => {
                self.odd_copies += 1;
                return;
            }
        };
        let moved = &mut self.parts[number][direction as usize];
        *moved += bytes;
        if *moved == self.arrays[number].bytes {
            *moved = 0;
            self.history.transfer(number, direction);
        }
        self.last_code = None;
    }

    fn grid(&mut self, grid: &Grid, program: Option<&'static Program>, bank: &[Option<u32>]) {
        self.grids += 1;
        let touched = self.touched(grid);
        let said = program.and_then(|program| self.said(program, bank));
        let is_said = touched.zip(said).is_some_and(|(touched, said)| {
            touched.loads & !said.loads == 0 && touched.stores & !said.stores == 0
        });
        self.unsaid += u64::from(!is_said);
        let (touched, said) = (touched.unwrap_or_default(), said.unwrap_or_default());
        self.said_in_vain += u64::from(
            (said.loads & !touched.loads).count_ones() + (said.stores & !touched.stores).count_ones(),
        );
        self.unchanged |= said.stores & !touched.stores;
        for (set, touch) in [(touched.loads, Touch::Read), (touched.stores, Touch::Write)] {
            for number in Sets::numbers(set) {
                self.history.touch(number, Side::Gpu, touch);
            }
        }
        match self
            .launches
            .last_mut()
            .filter(|_| self.last_code == Some(grid.code))
        {
            Some(launch) => {
                launch.loads |= touched.loads;
                launch.stores |= touched.stores;
            }
            None => self.launches.push(touched),
        }
        self.last_code = Some(grid.code);
    }

    /// Arrays that a grid touched; `None` if it touched something else.
    fn touched(&self, grid: &Grid) -> Option<Sets> {
        let mut sets = Sets::default();
        for touched in grid.pages.values() {
            let numbers = touched
                .each_ref()
                .map(|bytes| bytes.as_ref().map(|bytes| self.number_of(bytes)));
            for (number, set) in numbers.into_iter().zip([&mut sets.loads, &mut sets.stores]) {
                if let Some(number) = number {
                    *set |= 1 << number?;
                }
            }
        }
        Some(sets)
    }

    fn number_of(&self, bytes: &Range<u64>) -> Option<usize> {
        let holds =
            |array: &ManagedArray| array.vram_va <= bytes.start && bytes.end <= array.vram_va + array.bytes;
        self.arrays.iter().position(holds)
    }

    /// Arrays that a program may touch by the pointers among its parameters.
    fn said(&self, program: &Program, bank: &[Option<u32>]) -> Option<Sets> {
        let word = |offset: u32| bank.get(offset as usize / 4).copied().flatten();
        let mut sets = Sets::default();
        for pointer in program.pointers {
            let (low, high) = (word(pointer.offset)?, word(pointer.offset + 4)?);
            let at = u64::from(high) << 32 | u64::from(low);
            let number = self.number_of(&(at..at + 1))?;
            sets.loads |= u16::from(pointer.is_loaded) << number;
            sets.stores |= u16::from(pointer.is_stored) << number;
        }
        Some(sets)
    }

    fn end(&mut self, banks_left: usize) {
        // A copy of a part of an array is none that anybody should make, and each launch that was queued has to have run.
        let parts = self.parts.iter().flatten().filter(|moved| **moved != 0);
        self.odd_copies += parts.count() as u64;
        self.unsaid += banks_left as u64;
    }
}

impl GuestBus for TracedMachine<'_> {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        self.inner.read32(bar, offset)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.inner.write32(bar, offset, value);
        for (_, item) in std::mem::take(&mut self.inner.found) {
            match item.work {
                Work::Copy(copy) => {
                    if let Some(from) = copy.from {
                        self.note(Seen::Copy {
                            from: from.at.0,
                            to: copy.to.at.0,
                            bytes: copy.to.line * copy.to.lines,
                        });
                    }
                }
                Work::Launch(launch) => self.banks.push(launch.parameters),
                // A grid without parameters that are known counts as one that touches what was not said.
                Work::Grid(_) | Work::Opaque(_) => self.banks.push(Vec::new()),
                Work::Release { .. } | Work::Acquire { .. } | Work::Wait => {}
            }
        }
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.inner.write64(bar, offset, value);
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        self.inner.ram_read(gpa, data);
        let bytes = gpa..gpa + data.len() as u64;
        self.note(Seen::Ram {
            bytes,
            is_store: false,
        });
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.inner.ram_write(gpa, data);
        let bytes = gpa..gpa + data.len() as u64;
        self.note(Seen::Ram {
            bytes,
            is_store: true,
        });
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        self.inner.ram_read32(gpa)
    }

    fn relax(&mut self) {
        // All waits of the guest end then.
        self.inner.machine.is_stopped |= self.onlooker.wants_to_stop();
        self.inner.relax();
    }

    fn now_ns(&mut self) -> u64 {
        self.inner.now_ns()
    }

    fn report(&mut self, line: &str) {
        if let Some(is_over) = Kernel::marks(line) {
            let now = self.card_ns();
            let mark = &mut self.marks[usize::from(is_over)];
            *mark = Some(if is_over { now } else { mark.unwrap_or(now) });
        }
        self.inner.report(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guests::coherence::{Class, Classes};

    const BYTES: u64 = 1 << 16;

    fn array(number: u64) -> ManagedArray {
        ManagedArray {
            name: "array",
            bytes: BYTES,
            ram: number * BYTES,
            ram_va: (1 << 30) + number * BYTES,
            vram: number * PAGE,
            vram_va: (8 << 30) + number * PAGE,
            classes: Classes::default(),
        }
    }

    fn arrays() -> Trace {
        Trace::new(&[array(0), array(1)])
    }

    /// A grid that loads array 0 and stores to array `to`.
    fn grid(to: u64) -> Grid {
        let [from, to] = [array(0).vram_va, array(to).vram_va];
        let mut pages = BTreeMap::from([(from / PAGE, [Some(from..from + 4), None])]);
        pages.entry(to / PAGE).or_default()[1] = Some(to..to + 4);
        Grid { code: 0, pages }
    }

    /// Bank 0 of a launch of `2dconv` from array 0 to array 1.
    fn bank() -> Vec<Option<u32>> {
        let pointers = [0, 1].map(|number| array(number).vram_va);
        let words = pointers.into_iter().flat_map(|at| [at as u32, (at >> 32) as u32]);
        [0; 8].into_iter().chain(words).map(Some).collect()
    }

    #[test]
    fn parts_of_a_copy_are_one_and_storing_all_is_overwriting() {
        let mut trace = arrays();
        trace.ram(&(0..BYTES), true);
        let [ram, vram] = [array(0).ram_va, array(0).vram_va];
        trace.copy(ram, vram, BYTES / 2);
        assert_eq!(trace.history.all().all().count, 0);
        trace.copy(ram + BYTES / 2, vram + BYTES / 2, BYTES / 2);
        trace.copy(vram, ram, BYTES);
        trace.ram(&(0..BYTES), true);
        trace.end(0);
        let classes = trace.history.classes(0);
        assert_eq!(classes.of(Direction::ToGpu, Class::Eager).count, 1);
        assert_eq!(classes.of(Direction::ToCpu, Class::NonStale).count, 1);
        assert_eq!((trace.odd_copies, trace.history.breaches()), (0, 0));
    }

    #[test]
    fn copy_that_is_not_between_the_two_of_an_array_is_odd() {
        let mut trace = arrays();
        let [ram, vram] = [array(0).ram_va, array(1).vram_va];
        trace.copy(ram, vram, BYTES);
        trace.copy(ram, 5 << 30, BYTES);
        assert_eq!(trace.odd_copies, 2);
        // Code of programs, and half an array.
        trace.copy(4 << 30, 5 << 30, BYTES);
        trace.copy(ram, array(0).vram_va, 4);
        assert_eq!(trace.odd_copies, 2);
        trace.end(0);
        assert_eq!(trace.odd_copies, 3);
    }

    #[test]
    fn grid_that_touches_what_its_code_does_not_say_is_counted() {
        let mut trace = arrays();
        trace.grid(&grid(1), Some(&programs::CONV2D), &bank());
        assert_eq!((trace.unsaid, trace.said_in_vain), (0, 0));
        trace.grid(&grid(0), Some(&programs::CONV2D), &bank());
        assert_eq!(
            (trace.unsaid, trace.said_in_vain, trace.unchanged),
            (1, 1, 1 << 1)
        );
        trace.grid(&grid(1), Some(&programs::CONV2D), &[]);
        trace.grid(&grid(1), None, &bank());
        trace.grid(&grid(2), Some(&programs::CONV2D), &bank());
        trace.end(1);
        assert_eq!((trace.grids, trace.unsaid), (5, 5));
    }
}
