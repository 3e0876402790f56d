//! One channel: from the ring's entries to the methods of each class.

use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::{ControlOp, ENTRIES_LOG2_MAX, ENTRY_BYTES, GpEntry};
use fermi_spec::graphics::shader;
use fermi_spec::methods::{SemaphoreD, SemaphoreOp, class, host};
use fermi_spec::pushbuffer::Target as MethodTarget;
use kernel_sets::Cache;

use crate::calls::Call;
use crate::compute::{BANK_BYTES_MAX, Compute, Shaders};
use crate::copies::{CopyEngine, M2mf};
use crate::macros::Macros;
use crate::memory::{GpuMemory, read};
use crate::pending::Pending;
use crate::segment::{Decoder, Word};
use crate::work::{Grid, Item, Opaque, Work};

/// Words of a segment that are read at a time.
const CHUNK_WORDS: u32 = 1024;
/// Words that are read for one unit of work; decoding comes on top.
const CHUNK_WORDS_PER_WORK: u64 = 16;
/// Work of an entry, next to that of a word.
const ENTRY_WORK: u64 = 4;
/// Work of something that was found: it is kept.
const ITEM_WORK: u64 = 16;
/// No class, or one that is not known.
const NO_CLASS: u16 = 0;
/// First method of macro calls.
const CALLS: u16 = fermi_spec::graphics::front_end::MACRO_CALL;

/// The ring of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// Its first entry, in the channel's address space.
    pub base: GpuVa,
    /// log2 of its entries.
    pub entries_log2: u32,
}

/// Methods of the copy engines: they depend on the microcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMethods {
    /// Those of nouveau's microcode.
    Nouveau,
    /// Those of NVIDIA's (`cl90b5.h`).
    Nvidia,
}

/// How much a look does at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Work: a word of a pushbuffer or a method of a macro counts 1, an instruction of a macro that is interpreted 2, one of a kernel
    /// 21, an item that is found 16. A launch that has begun is looked at to its end, a macro to its next parameter.
    pub work: u64,
    /// For one kernel. `None`: kernels are not looked into, and what their launches may store is not known ([`Work::Grid`]).
    pub kernel: Option<kernel_sets::Limits>,
    /// Bytes of a constant bank that are read; what lies beyond is not known.
    pub bank_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            work: 1 << 20,
            kernel: Some(kernel_sets::Limits::default()),
            bank_bytes: BANK_BYTES_MAX,
        }
    }
}

/// How far a look came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looked {
    /// All entries up to GP_PUT were looked at.
    Done,
    /// The limit is reached: the next look goes on there.
    More,
}

/// What a look works with.
pub(crate) struct Look<'a> {
    pub(crate) memory: &'a mut dyn GpuMemory,
    pub(crate) cache: &'a mut Cache,
    pub(crate) limits: Limits,
    pub(crate) items: &'a mut Vec<Item>,
    /// Work that is left, and what was done of it.
    pub(crate) left: u64,
    pub(crate) done: u64,
    /// Number of the entry under way.
    pub(crate) entry: u64,
}

impl Look<'_> {
    pub(crate) fn spend(&mut self, work: u64) {
        self.left = self.left.saturating_sub(work);
        self.done = self.done.saturating_add(work);
    }

    pub(crate) fn found(&mut self, work: Work) {
        let item = Item {
            entry: self.entry,
            work,
        };
        // One reason is told once for an entry.
        let is_told = matches!(item.work, Work::Opaque(_) | Work::Wait) && self.items.last() == Some(&item);
        if !is_told {
            self.spend(ITEM_WORK);
            self.items.push(item);
        }
    }

    /// Finds a grid of which nobody wants to know what it stores.
    pub(crate) fn grid(&mut self, grid: Grid, pending: &mut Pending) {
        pending.spoil_all(self.entry);
        self.found(Work::Grid(grid));
    }

    /// Finds something that may store anywhere.
    pub(crate) fn opaque(&mut self, why: Opaque, pending: &mut Pending) {
        pending.spoil_all(self.entry);
        self.found(Work::Opaque(why));
    }
}

/// Words of a segment that were read, as far as they are known, and where the rest is.
#[derive(Clone, Debug)]
struct Segment {
    words: std::vec::IntoIter<Option<u32>>,
    at: u64,
    left: u32,
    /// It begins with data of a header before it: a buffer that the GPU may write, such as parameters of indirect launches.
    is_data: bool,
}

/// Semaphore of the host's methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Semaphore {
    high: u32,
    low: u32,
    payload: u32,
}

/// Looks at the work of one channel.
#[derive(Clone, Debug)]
pub struct Observer {
    ring: Ring,
    /// Place in the ring of the entry that comes next, and its number.
    next: u32,
    number: u64,
    segment: Option<Segment>,
    decoder: Decoder,
    /// Classes by subchannel, or [`NO_CLASS`].
    classes: [u16; 8],
    semaphore: Semaphore,
    pub(crate) compute: Compute,
    pub(crate) threed: Shaders,
    copy: CopyEngine,
    m2mf: M2mf,
    pub(crate) macros: Macros,
    pub(crate) call: Option<Call>,
    pub(crate) pending: Pending,
    work: u64,
}

impl Observer {
    /// An observer of a channel that stands at entry `get` of its ring and has set nothing yet. Rings of more entries than
    /// hardware has are taken for the largest.
    pub fn new(ring: Ring, methods: CopyMethods, get: u32) -> Self {
        let ring = Ring {
            entries_log2: ring.entries_log2.min(ENTRIES_LOG2_MAX),
            ..ring
        };
        Self {
            next: get & ((1 << ring.entries_log2) - 1),
            ring,
            number: 0,
            segment: None,
            decoder: Decoder::new(),
            classes: [NO_CLASS; 8],
            semaphore: Semaphore::default(),
            compute: Compute::new(),
            threed: Shaders::new(),
            copy: CopyEngine::new(methods),
            m2mf: M2mf::new(),
            macros: Macros::new(),
            call: None,
            pending: Pending::default(),
            work: 0,
        }
    }

    /// Looks at the entries up to `put`, from where the last look stopped. `get`: entries before it have ended, so memory
    /// has what they stored. Work is appended to `items`.
    pub fn look(
        &mut self,
        memory: &mut dyn GpuMemory,
        cache: &mut Cache,
        [get, put]: [u32; 2],
        limits: Limits,
        items: &mut Vec<Item>,
    ) -> Looked {
        let mask = (1u32 << self.ring.entries_log2) - 1;
        let outstanding = self.next.wrapping_sub(get) & mask;
        self.pending.ended(self.number.saturating_sub(outstanding.into()));
        let mut look = Look {
            memory,
            cache,
            left: limits.work,
            done: 0,
            limits,
            items,
            entry: self.number.saturating_sub(1),
        };
        while look.left > 0 {
            if self.is_sending() {
                self.send_methods(&mut look);
            } else if self.segment.is_some() {
                self.run_segment(&mut look);
            } else if self.next == put & mask {
                break;
            } else {
                self.fetch_entry(&mut look, mask);
            }
        }
        self.work = look.done;
        match !self.is_sending() && self.segment.is_none() && self.next == put & mask {
            true => Looked::Done,
            false => Looked::More,
        }
    }

    /// Bytes of the host's memory that it takes for what is still to be stored and for macros, about: what a copy of it costs.
    pub fn kept_bytes(&self) -> usize {
        let of_call = self.call.as_ref().map_or(0, Call::kept_bytes);
        self.pending.kept_bytes() + self.macros.kept_bytes() + of_call
    }

    fn is_sending(&self) -> bool {
        self.call.as_ref().is_some_and(Call::is_sending)
    }

    /// Work of the last look, in the unit of [`Limits::work`]; more than the limit where a launch was looked at to its end.
    pub fn work(&self) -> u64 {
        self.work
    }

    fn fetch_entry(&mut self, look: &mut Look<'_>, mask: u32) {
        look.spend(ENTRY_WORK);
        look.entry = self.number;
        let at = self
            .ring
            .base
            .0
            .saturating_add(u64::from(self.next) * ENTRY_BYTES);
        self.next = (self.next + 1) & mask;
        self.number += 1;
        let mut bytes = [0; ENTRY_BYTES as usize];
        if read(look.memory, at, &mut bytes).is_err() {
            return self.lose(look, Opaque::Unmapped);
        }
        match GpEntry::from_bits(u64::from_le_bytes(bytes)) {
            GpEntry::Fetch(segment) if segment.conditional && !self.decoder.is_selected() => {}
            GpEntry::Fetch(segment) => {
                self.segment = Some(Segment {
                    words: Vec::new().into_iter(),
                    at: segment.at.0,
                    left: segment.words,
                    is_data: self.decoder.is_in_data(),
                });
            }
            GpEntry::Control(ControlOp::Nop | ControlOp::GpCrc | ControlOp::PbCrc) => {}
            GpEntry::Control(ControlOp::Illegal | ControlOp::Invalid(_)) => {
                self.lose(look, Opaque::Malformed)
            }
        }
    }

    /// Decodes the words at hand, or reads the next ones.
    fn run_segment(&mut self, look: &mut Look<'_>) {
        let Some(mut segment) = self.segment.take() else {
            return;
        };
        while look.left > 0 {
            if let Some(count) = self.take_constants(segment.words.as_slice(), look) {
                segment.words.nth(count - 1);
                continue;
            }
            let Some(word) = segment.words.next() else { break };
            look.spend(1);
            match self.decoder.take(word) {
                Word::Nothing => {}
                Word::Method(target, data) => self.method(target, data, look),
                Word::End => return,
                Word::Malformed => return self.lose(look, Opaque::Malformed),
                Word::Unknown => return self.lose(look, Opaque::State),
            }
        }
        if segment.words.len() == 0 {
            if segment.left == 0 {
                return;
            }
            let count = segment.left.min(CHUNK_WORDS);
            look.spend(u64::from(count) / CHUNK_WORDS_PER_WORK);
            let Some(words) = self.read_words(&segment, count, look) else {
                return self.lose(look, Opaque::Unmapped);
            };
            segment.words = words.into_iter();
            segment.at += u64::from(count) * 4;
            segment.left -= count;
        }
        self.segment = Some(segment);
    }

    /// Takes words for a constant buffer that follow each other: what most words of a launch are. How many, if there are any.
    fn take_constants(&mut self, words: &[Option<u32>], look: &mut Look<'_>) -> Option<usize> {
        const METHODS: std::ops::RangeInclusive<u16> = shader::CONSTANT_DATA..=shader::CONSTANT_DATA_LAST;
        let (target, left) = self.decoder.row()?;
        let MethodTarget { subchannel, method } = target;
        let is_plain = METHODS.contains(&method)
            && self.classes[usize::from(subchannel & 7)] == class::COMPUTE
            && self.call.is_none()
            && !self.macros.may_replay();
        if !is_plain {
            return None;
        }
        let to_last = (METHODS.end() - method) / 4 + 1;
        let count = usize::from(left.min(to_last)).min(words.len());
        let count = count.min(usize::try_from(look.left).unwrap_or(usize::MAX));
        let own = words.get(..count).filter(|own| !own.is_empty())?;
        look.spend(count as u64);
        self.decoder.take_row(count as u16);
        self.compute.store_constants(own, look, &mut self.pending);
        Some(count)
    }

    /// The next words of a segment as they will be when the host fetches them. A program that lets the GPU write its pushbuffers
    /// is expected to do so by stores whose place is known; only a buffer of data counts as unknown after all that may store anywhere.
    fn read_words(&self, segment: &Segment, count: u32, look: &mut Look<'_>) -> Option<Vec<Option<u32>>> {
        let mut bytes = vec![0; count as usize * 4];
        read(look.memory, segment.at, &mut bytes).ok()?;
        let end = segment.at.saturating_add(bytes.len() as u64);
        if !segment.is_data && self.pending.leaves(segment.at..end) {
            let words = bytes.as_chunks().0.iter();
            return Some(words.map(|word| Some(u32::from_le_bytes(*word))).collect());
        }
        let mut is_known = vec![true; bytes.len()];
        match segment.is_data {
            true => self.pending.lay_over(segment.at, &mut bytes, &mut is_known),
            false => self
                .pending
                .lay_ranges_over(segment.at, &mut bytes, &mut is_known),
        }
        let words = bytes.as_chunks::<4>().0.iter().zip(is_known.as_chunks::<4>().0);
        let words = words.map(|(word, is_known)| (*is_known == [true; 4]).then(|| u32::from_le_bytes(*word)));
        Some(words.collect())
    }

    /// The way is lost: nothing that was set is known any more.
    fn lose(&mut self, look: &mut Look<'_>, why: Opaque) {
        self.decoder = Decoder::new();
        self.compute.lose();
        self.threed.lose();
        self.copy.lose();
        self.m2mf.lose();
        self.macros.lose();
        self.call = None;
        look.opaque(why, &mut self.pending);
    }

    fn method(&mut self, target: MethodTarget, data: Option<u32>, look: &mut Look<'_>) {
        let MethodTarget { subchannel, method } = target;
        let bound = usize::from(subchannel & 7);
        if method == host::SET_OBJECT {
            self.end_waiting_macro(look);
            self.classes[bound] = data.map_or(NO_CLASS, |data| data as u16);
            return;
        }
        if method < host::FIRST_ENGINE_METHOD {
            return match data {
                Some(data) => self.host_method(method, data, look),
                None => self.lose(look, Opaque::State),
            };
        }
        let class = self.classes[bound];
        match class {
            class::COPY | class::COPY_1 => {
                return self.copy.method(method, data, look, &mut self.pending);
            }
            class::COMPUTE | class::THREED | class::TWOD if method >= CALLS => {
                return self.call_macro([subchannel.into(), class], method, data, look);
            }
            _ => self.end_waiting_macro(look),
        }
        match class {
            class::COMPUTE | class::THREED | class::TWOD => {
                let data = self.macros.in_effect(method, data);
                self.class_method(class, method, data, look);
            }
            // Whether other classes on PGRAPH have these methods is not known.
            _ if Macros::may_be_changed_by(method) => self.lose(look, Opaque::Macro),
            class::M2MF => self.m2mf.method(method, data, look, &mut self.pending),
            _ => look.opaque(Opaque::UnknownClass, &mut self.pending),
        }
    }

    /// Executes a method of a class that has macros, but no call of one, with the data that has effect, if that is known.
    pub(crate) fn class_method(&mut self, class: u16, method: u16, data: Option<u32>, look: &mut Look<'_>) {
        if Macros::is_upload(method) {
            return self.macros.upload(method, data);
        }
        self.macros.keep(class, method, data);
        let pending = &mut self.pending;
        match class {
            class::COMPUTE => self.compute.method(method, data, look, pending),
            class::THREED => self.threed.method_of_3d(method, data, look, pending),
            _ => pixels(method, look, pending),
        }
    }

    /// A macro may have sent a method of its class, never, once or often.
    pub(crate) fn maybe_method(&mut self, class: u16, method: u16, look: &mut Look<'_>) {
        self.macros.keep(class, method, None);
        let pending = &mut self.pending;
        match class {
            class::COMPUTE => self.compute.maybe(method, look, pending),
            class::THREED => self.threed.maybe_of_3d(method, look, pending),
            _ => pixels(method, look, pending),
        }
    }

    fn host_method(&mut self, method: u16, data: u32, look: &mut Look<'_>) {
        match method {
            host::SEMAPHORE_A => self.semaphore.high = data,
            host::SEMAPHORE_B => self.semaphore.low = data,
            host::SEMAPHORE_C => self.semaphore.payload = data,
            host::SEMAPHORE_D => self.run_semaphore(SemaphoreD::from_bits(data), look),
            host::SET_REFERENCE | host::FB_FLUSH => look.found(Work::Wait),
            host::ILLEGAL => self.lose(look, Opaque::Malformed),
            // Interrupts, time slices, checksums, flushes of the host's own: none touches the channel's memory.
            _ => {}
        }
    }

    fn run_semaphore(&mut self, operand: SemaphoreD, look: &mut Look<'_>) {
        let Semaphore { high, low, payload } = self.semaphore;
        let at = GpuVa(u64::from(high & 0xff) << 32 | u64::from(low & !3));
        match operand.op() {
            SemaphoreOp::Release => {
                let bytes = if operand.release_short() { 4 } else { 16 };
                released(at, bytes, Some(payload), look, &mut self.pending);
            }
            SemaphoreOp::AcquireEqual | SemaphoreOp::AcquireGreaterOrEqual | SemaphoreOp::AcquireAnd => {
                look.found(Work::Acquire { at, payload });
            }
            SemaphoreOp::Invalid(_) => self.lose(look, Opaque::Malformed),
        }
    }
}

/// A semaphore is stored.
pub(crate) fn released(
    at: GpuVa,
    bytes: u8,
    payload: Option<u32>,
    look: &mut Look<'_>,
    pending: &mut Pending,
) {
    pending.spoil(at.0..at.0.saturating_add(bytes.into()), look.entry);
    look.found(Work::Release { at, bytes, payload });
}

/// Methods of 2D that draw or copy: rectangles, lines, pixels from the pushbuffer or from memory.
fn pixels(method: u16, look: &mut Look<'_>, pending: &mut Pending) {
    const SHAPES: std::ops::RangeInclusive<u16> = 0x600..=0x7fc;
    const FROM_PUSHBUFFER: u16 = 0x860;
    let draws = SHAPES.contains(&method)
        || method == FROM_PUSHBUFFER
        || method == fermi_spec::twod::method::COPY_START;
    if draws {
        look.opaque(Opaque::Pixels, pending);
    }
}
