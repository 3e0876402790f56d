//! Classes 90c0 and 9097: launches, constants from the pushbuffer, reports; draws and clears as far as that they are there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fermi_spec::addr::GpuVa;
use fermi_spec::graphics::{
    BindConstants, GlobalEntry, ReportOperation, ReportSemaphore, UnbindAll, compute, front_end, shader,
};
use fermi_spec::methods::RenderEnable;
use fermi_spec::target::{draw, method as target};
use kernel_sets::{Bank, Bound, Kernel, Reason};

use crate::memory::{read, read_code};
use crate::observer::{Look, released};
use crate::pending::Pending;
use crate::registers::{Kept, Registers, Value};
use crate::work::{Copy, Grid, Launch, Opaque, Target, Work};

/// Constant banks that can be bound.
const BANKS: usize = 18;
/// Bytes of a bank that are read; words beyond count as unknown.
pub(crate) const BANK_BYTES_MAX: u32 = 16 << 10;
/// Code is read in lines.
const LINE_BYTES: u32 = 256;
/// Work of an instruction that is interpreted by its sets, next to that of a word (`cargo bench -p kernel_sets`: 250 ns, `-p launches`: 12 ns).
const ANALYSED_WORK: u64 = 21;
/// Method of the mode of the condition, behind the address of [`target::CONDITION_HIGH`]: the same in both classes.
const CONDITION: u16 = target::CONDITION;

/// Methods of compute whose values matter.
static KEPT: Kept = Kept::new(&[
    (compute::SHARED_WINDOW, compute::SHARED_WINDOW),
    (compute::GRID_XY, compute::GRID_Z),
    (compute::BLOCK_XY, compute::ENTRY),
    (compute::LOCAL_WINDOW, compute::LOCAL_WINDOW),
    (compute::TEMP_HIGH, compute::TEMP_PER_WARP),
    (CONDITION, CONDITION),
    (compute::CODE_HIGH, compute::CODE_HIGH + 4),
]);
/// Methods of both classes whose values matter.
static SHARED: Kept = Kept::new(&[
    (shader::REPORT_HIGH, shader::REPORT),
    (shader::CONSTANT_BYTES, shader::CONSTANT_OFFSET),
]);

/// What is bound to a constant bank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Binding {
    Nothing,
    Buffer { at: u64, bytes: u32 },
    Unknown,
}

/// What both classes have: constants and reports.
#[derive(Clone, Debug)]
pub(crate) struct Shaders {
    registers: Registers,
}

impl Shaders {
    pub(crate) fn new() -> Self {
        Self {
            registers: Registers::new(&SHARED),
        }
    }

    pub(crate) fn lose(&mut self) {
        self.registers.lose();
    }

    /// Executes a method of both classes; whether it was one.
    fn method(&mut self, method: u16, data: Option<u32>, look: &mut Look<'_>, pending: &mut Pending) -> bool {
        match method {
            front_end::WAIT_FOR_IDLE => look.found(Work::Wait),
            shader::REPORT => self.report(data.map(ReportSemaphore::from_bits), look, pending),
            shader::CONSTANT_DATA..=shader::CONSTANT_DATA_LAST => {
                self.store_constants(&[data], look, pending)
            }
            _ => return self.registers.set(method, data),
        }
        true
    }

    /// Executes a method of both classes never, once or often; whether it was one that is more than state then.
    fn maybe(&mut self, method: u16, look: &mut Look<'_>, pending: &mut Pending) -> bool {
        match method {
            front_end::WAIT_FOR_IDLE => {}
            shader::CONSTANT_DATA..=shader::CONSTANT_DATA_LAST => {
                self.registers.set(shader::CONSTANT_OFFSET, None);
                look.opaque(Opaque::State, pending);
            }
            _ => return false,
        }
        true
    }

    fn report(&mut self, operand: Option<ReportSemaphore>, look: &mut Look<'_>, pending: &mut Pending) {
        let (at, payload) = (
            self.registers.address(shader::REPORT_HIGH),
            self.registers.get(shader::REPORT_PAYLOAD),
        );
        let (Some(operand), Some(at), Some(payload)) = (operand, at, payload) else {
            return look.opaque(Opaque::State, pending);
        };
        let bytes = if operand.one_word() { 4 } else { 16 };
        match operand.op() {
            ReportOperation::Release | ReportOperation::Trap => {
                released(GpuVa(at), bytes, Some(payload), look, pending);
            }
            ReportOperation::Report => released(GpuVa(at), bytes, None, look, pending),
            ReportOperation::Acquire => look.found(Work::Acquire {
                at: GpuVa(at),
                payload,
            }),
        }
    }

    /// Words for a constant buffer, one after the other.
    fn store_constants(&mut self, words: &[Option<u32>], look: &mut Look<'_>, pending: &mut Pending) {
        const OFFSET_MASK: u32 = 0xffff;
        let (base, offset) = (
            self.registers.address(shader::CONSTANT_HIGH),
            self.registers.get(shader::CONSTANT_OFFSET),
        );
        let (Some(base), Some(offset)) = (base, offset) else {
            return look.opaque(Opaque::State, pending);
        };
        let behind = offset.wrapping_add(4 * words.len() as u32);
        self.registers.set(shader::CONSTANT_OFFSET, Some(behind));
        let mut left = words;
        let mut offset = offset;
        while let Some(first) = left.first() {
            // A row ends where the offset begins anew, and where words begin or cease to be known.
            let room = ((OFFSET_MASK - (offset & OFFSET_MASK)) / 4 + 1) as usize;
            let mut data = [0; 64];
            let is_like = |word: &&Option<u32>| word.is_some() == first.is_some();
            let count = left
                .iter()
                .take(room.min(data.len() / 4))
                .take_while(is_like)
                .count();
            let (row, rest) = left.split_at(count);
            let (at, bytes) = (
                base.saturating_add((offset & OFFSET_MASK).into()),
                4 * count as u64,
            );
            match first {
                Some(_) => {
                    for (to, word) in data.as_chunks_mut().0.iter_mut().zip(row.iter().flatten()) {
                        *to = word.to_le_bytes();
                    }
                    pending.store(at, &data[..bytes as usize], look.entry);
                }
                None => pending.spoil(at..at.saturating_add(bytes), look.entry),
            }
            inline(at, bytes, look);
            (left, offset) = (rest, offset.wrapping_add(bytes as u32));
        }
    }

    /// Executes a method of class 9097.
    pub(crate) fn method_of_3d(
        &mut self,
        method: u16,
        data: Option<u32>,
        look: &mut Look<'_>,
        pending: &mut Pending,
    ) {
        match method {
            target::CLEAR => look.opaque(Opaque::Clear, pending),
            draw::BEGIN | draw::ARRAY | draw::ARRAY_NEXT | draw::INDEXED..=draw::INDEXED_LAST => {
                look.opaque(Opaque::Draw, pending);
            }
            _ => drop(self.method(method, data, look, pending)),
        }
    }

    /// Executes a method of class 9097 never, once or often, with any data.
    pub(crate) fn maybe_of_3d(&mut self, method: u16, look: &mut Look<'_>, pending: &mut Pending) {
        if !self.maybe(method, look, pending) {
            self.method_of_3d(method, None, look, pending);
        }
    }
}

/// Bytes of the pushbuffer go to memory: those that follow each other are one copy.
fn inline(at: u64, bytes: u64, look: &mut Look<'_>) {
    if let Some(item) = look.items.last_mut()
        && item.entry == look.entry
        && let Work::Copy(Copy { from: None, to, .. }) = &mut item.work
        && to.lines == 1
        && to.at.0 + to.line == at
    {
        to.line += bytes;
        to.pitch = to.line;
        return;
    }
    let to = Target {
        at: GpuVa(at),
        line: bytes,
        pitch: bytes,
        lines: 1,
    };
    look.found(Work::Copy(Copy {
        from: None,
        to,
        whole: true,
    }));
}

/// What address bits 39:32 of accesses become.
#[derive(Clone, Debug)]
struct AddressTable {
    /// Shared with the copies of an observer: drivers set it once.
    highs: Arc<[Option<u8>; 256]>,
    /// Entries that are not known, and those that change something.
    unknown: u16,
    changing: u16,
}

impl AddressTable {
    /// One that changes nothing.
    fn new() -> Self {
        Self {
            highs: Arc::new(std::array::from_fn(|index| Some(index as u8))),
            unknown: 0,
            changing: 0,
        }
    }

    fn set(&mut self, index: u8, high: u8) {
        let entry = &mut Arc::make_mut(&mut self.highs)[usize::from(index)];
        match entry.replace(high) {
            None => self.unknown -= 1,
            Some(before) => self.changing -= u16::from(before != index),
        }
        self.changing += u16::from(high != index);
    }

    fn lose(&mut self) {
        if usize::from(self.unknown) < self.highs.len() {
            self.highs = Arc::new([None; 256]);
            (self.unknown, self.changing) = (256, 0);
        }
    }

    /// Whether it is known and changes nothing.
    fn check(&self) -> Result<(), Opaque> {
        match (self.unknown, self.changing) {
            (0, 0) => Ok(()),
            (0, _) => Err(Opaque::AddressTable),
            _ => Err(Opaque::State),
        }
    }
}

/// What methods of class 90c0 have set.
#[derive(Clone, Debug)]
pub(crate) struct Compute {
    registers: Registers,
    shaders: Shaders,
    banks: [Binding; BANKS],
    table: AddressTable,
    /// Last entry with a grid that stores by pointers of which the interval is not known.
    by_runs: Option<u64>,
}

/// Words of a bank and the bytes that were read.
struct Constants {
    words: Vec<Vec<Option<u32>>>,
    ranges: Vec<Range<u64>>,
}

impl Compute {
    /// As drivers set it up: the table of addresses changes nothing.
    pub(crate) fn new() -> Self {
        Self {
            registers: Registers::new(&KEPT),
            shaders: Shaders::new(),
            banks: [Binding::Nothing; BANKS],
            table: AddressTable::new(),
            by_runs: None,
        }
    }

    pub(crate) fn lose(&mut self) {
        self.registers.lose();
        self.shaders.lose();
        self.banks.fill(Binding::Unknown);
        self.table.lose();
    }

    /// Executes a method; data that is not known makes all unknown that it may set.
    pub(crate) fn method(
        &mut self,
        method: u16,
        data: Option<u32>,
        look: &mut Look<'_>,
        pending: &mut Pending,
    ) {
        match method {
            compute::GLOBAL_ENTRY => match data.map(GlobalEntry::from_bits) {
                Some(entry) => self.table.set(entry.index(), entry.high()),
                None => self.table.lose(),
            },
            compute::BIND_CONSTANTS => match data.map(BindConstants::from_bits) {
                Some(operand) => self.bind(operand),
                None => self.banks.fill(Binding::Unknown),
            },
            compute::UNBIND_ALL => match data.map(|data| UnbindAll::from_bits(data).constants()) {
                Some(true) => self.banks.fill(Binding::Nothing),
                Some(false) => {}
                None => self.banks.fill(Binding::Unknown),
            },
            compute::LAUNCH => self.launch(look, pending),
            _ if self.registers.set(method, data) => {}
            _ => drop(self.shaders.method(method, data, look, pending)),
        }
    }

    /// Words for a constant buffer.
    pub(crate) fn store_constants(
        &mut self,
        words: &[Option<u32>],
        look: &mut Look<'_>,
        pending: &mut Pending,
    ) {
        self.shaders.store_constants(words, look, pending);
    }

    /// Executes a method never, once or often, with any data.
    pub(crate) fn maybe(&mut self, method: u16, look: &mut Look<'_>, pending: &mut Pending) {
        match method {
            compute::LAUNCH => look.opaque(Opaque::State, pending),
            _ if self.shaders.maybe(method, look, pending) => {}
            _ => self.method(method, None, look, pending),
        }
    }

    fn bind(&mut self, operand: BindConstants) {
        const BYTES_MASK: u32 = 0xf_ffff;
        let Some(bank) = self.banks.get_mut(usize::from(operand.bank())) else {
            return;
        };
        let shaders = &self.shaders.registers;
        *bank = match (
            shaders.address(shader::CONSTANT_HIGH),
            shaders.get(shader::CONSTANT_BYTES),
        ) {
            _ if !operand.valid() => Binding::Nothing,
            (Some(at), Some(bytes)) => Binding::Buffer {
                at,
                bytes: bytes & BYTES_MASK,
            },
            _ => Binding::Unknown,
        };
    }

    fn launch(&mut self, look: &mut Look<'_>, pending: &mut Pending) {
        let found = self.grid().and_then(|grid| match look.limits.kernel {
            Some(limits) => Ok((grid, Some(self.launched(grid, limits, look, pending)?))),
            None => Ok((grid, None)),
        });
        match found {
            Ok((_, Some(launch))) => {
                self.note_stores(&launch, look.entry, pending);
                look.found(Work::Launch(Box::new(launch)));
            }
            Ok((grid, None)) => look.grid(grid, pending),
            Err(why) => look.opaque(why, pending),
        }
    }

    /// The grid that methods have set, if all of it is known.
    fn grid(&self) -> Result<Grid, Opaque> {
        self.table.check()?;
        is_unconditional(&self.registers, CONDITION)?;
        let get = |method| self.registers.get(method).ok_or(Opaque::State);
        let pair = |word: u32| [word & 0xffff, word >> 16];
        let ([grid_x, grid_y], [block_x, block_y]) =
            (pair(get(compute::GRID_XY)?), pair(get(compute::BLOCK_XY)?));
        Ok(Grid {
            code: GpuVa(self.registers.address(compute::CODE_HIGH).ok_or(Opaque::State)?),
            entry: get(compute::ENTRY)?,
            blocks: [grid_x, grid_y, get(compute::GRID_Z)? & 0xffff],
            threads: [block_x, block_y, get(compute::BLOCK_Z)? & 0xffff],
        })
    }

    fn launched(
        &self,
        grid: Grid,
        limits: kernel_sets::Limits,
        look: &mut Look<'_>,
        pending: &Pending,
    ) -> Result<Launch, Opaque> {
        let get = |method| self.registers.get(method).ok_or(Opaque::State);
        let code = grid.code.0;
        let window = |method| Ok(u64::from(get(method)? & 0xff00_0000));
        let constants = self.constants(look, pending);
        let banks: Vec<Bank<'_>> = constants.words.iter().map(|words| Bank { words }).collect();
        let kernel = Kernel {
            entry: grid.entry,
            grid: grid.blocks,
            block: grid.threads,
            banks: &banks,
            windows: [window(compute::SHARED_WINDOW)?, window(compute::LOCAL_WINDOW)?],
        };
        let mut lines = Lines {
            code,
            lines: BTreeMap::new(),
            pending,
            is_pending: false,
        };
        let memory = &mut *look.memory;
        let mut word = |at| lines.word(memory, at);
        let misses = look.cache.misses;
        let sets = look.cache.sets(&kernel, &mut word, limits);
        let analysed = if look.cache.misses > misses { sets.work } else { 0 };
        let read = lines.lines.len() as u64 * u64::from(LINE_BYTES) / 8;
        look.spend(analysed.saturating_mul(ANALYSED_WORK) + read);
        match sets.reason {
            Some(Reason::CodeUnknown) if lines.is_pending => return Err(Opaque::State),
            Some(reason) => return Err(Opaque::Kernel(reason)),
            None => {}
        }
        let fetches = lines.ranges().chain(constants.ranges).collect();
        Ok(Launch {
            code: GpuVa(code),
            entry: kernel.entry,
            grid: kernel.grid,
            block: kernel.block,
            fetches: joined(fetches),
            scratch: self.scratch(),
            relies_on_runs: self.by_runs.is_some_and(|entry| entry >= pending.first()),
            parameters: constants.words.into_iter().next().unwrap_or_default(),
            sets,
        })
    }

    /// Words of all banks as they will be when the grid starts.
    fn constants(&self, look: &mut Look<'_>, pending: &Pending) -> Constants {
        let mut constants = Constants {
            words: Vec::new(),
            ranges: Vec::new(),
        };
        for bank in &self.banks {
            let Binding::Buffer { at, bytes } = *bank else {
                constants.words.push(Vec::new());
                continue;
            };
            let mut data = vec![0; bytes.min(BANK_BYTES_MAX).min(look.limits.bank_bytes) as usize & !3];
            let is_there = read(look.memory, at, &mut data).is_ok();
            let mut is_known = vec![is_there; data.len()];
            pending.lay_over(at, &mut data, &mut is_known);
            look.spend(data.len() as u64 / 32);
            let words = data.as_chunks::<4>().0.iter().zip(is_known.as_chunks::<4>().0);
            let words =
                words.map(|(word, is_known)| (*is_known == [true; 4]).then(|| u32::from_le_bytes(*word)));
            constants.words.push(words.collect());
            constants.ranges.push(at..at.saturating_add(bytes.into()));
        }
        constants
    }

    /// Memory behind local memory and stacks; none if its size is zero or not known.
    fn scratch(&self) -> Option<Range<u64>> {
        let (at, bytes) = (
            self.registers.address(compute::TEMP_HIGH)?,
            self.registers.address(compute::TEMP_BYTES_HIGH)?,
        );
        (bytes != 0).then(|| at..at.saturating_add(bytes))
    }

    /// What the grid stores is not known to those behind it.
    fn note_stores(&mut self, launch: &Launch, entry: u64, pending: &mut Pending) {
        for access in launch.writes() {
            match access.bound {
                Bound::Exact => pending.spoil(access.bytes.clone(), entry),
                Bound::Run => self.by_runs = Some(entry),
                Bound::Space => pending.spoil_all(entry),
            }
        }
        if let Some(scratch) = &launch.scratch {
            pending.spoil(scratch.clone(), entry);
        }
    }
}

/// Whether nothing in memory decides about what follows.
pub(crate) fn is_unconditional(registers: &Registers, mode: u16) -> Result<(), Opaque> {
    match registers.value(mode) {
        Value::Unknown => Err(Opaque::State),
        Value::Untouched => Ok(()),
        Value::Set(mode) if RenderEnable::from_bits(mode) == Some(RenderEnable::True) => Ok(()),
        Value::Set(_) => Err(Opaque::Condition),
    }
}

/// Lines of the code, each read once.
struct Lines<'a> {
    code: u64,
    lines: BTreeMap<u32, Option<[Option<u64>; LINE_BYTES as usize / 8]>>,
    pending: &'a Pending,
    /// A word was asked for that is still to be written.
    is_pending: bool,
}

impl Lines<'_> {
    fn word(&mut self, memory: &mut dyn crate::GpuMemory, at: u32) -> Option<u64> {
        let line = at / LINE_BYTES;
        let (code, pending) = (self.code, self.pending);
        let words = self.lines.entry(line).or_insert_with(|| {
            let mut bytes = [0; LINE_BYTES as usize];
            let place = code.checked_add(u64::from(line) * u64::from(LINE_BYTES))?;
            read_code(memory, place, &mut bytes).ok()?;
            let mut is_known = [true; LINE_BYTES as usize];
            pending.lay_over(place, &mut bytes, &mut is_known);
            let words = std::array::from_fn(|word| {
                let own = 8 * word..8 * word + 8;
                let is_known = is_known[own.clone()].iter().all(|is_known| *is_known);
                let bytes = bytes[own].as_chunks::<8>().0.first()?;
                is_known.then(|| u64::from_le_bytes(*bytes))
            });
            Some(words)
        });
        let word = words.as_ref()?[(at % LINE_BYTES / 8) as usize];
        self.is_pending |= word.is_none();
        word
    }

    /// Bytes that were read.
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let read = self.lines.iter().filter(|(_, words)| words.is_some());
        read.map(|(line, _)| {
            let start = self.code + u64::from(*line) * u64::from(LINE_BYTES);
            start..start + u64::from(LINE_BYTES)
        })
    }
}

/// Sorts ranges and makes one of those that touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}
