//! One channel: from the ring's entries to the methods of each class.

use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::{ControlOp, ENTRIES_LOG2_MAX, ENTRY_BYTES, GpEntry};
use fermi_spec::methods::{SemaphoreD, SemaphoreOp, class, host};
use fermi_spec::pushbuffer::Target as MethodTarget;
use kernel_sets::Cache;

use crate::compute::{Compute, Shaders};
use crate::copies::{CopyEngine, M2mf};
use crate::memory::{GpuMemory, read};
use crate::pending::Pending;
use crate::segment::{Decoder, Word};
use crate::work::{Item, Opaque, Work};

/// Words of a segment that are read at a time.
const CHUNK_WORDS: u32 = 1024;
/// Words that are read for one unit of work; decoding comes on top.
const CHUNK_WORDS_PER_WORK: u64 = 16;
/// Work of an entry, next to that of a word.
const ENTRY_WORK: u64 = 4;
/// Work of something that was found: it is kept.
const ITEM_WORK: u64 = 16;
/// First method of macro calls.
const MACROS: u16 = fermi_spec::graphics::front_end::MACRO_CALL;

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
    /// Work: a word of a pushbuffer or an instruction of a kernel that is interpreted counts 1, an item that is found 16. A
    /// launch that has begun is looked at to its end.
    pub work: u64,
    /// For one kernel.
    pub kernel: kernel_sets::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            work: 1 << 20,
            kernel: kernel_sets::Limits::default(),
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
    /// Work that is left.
    pub(crate) left: u64,
    /// Number of the entry under way.
    pub(crate) entry: u64,
}

impl Look<'_> {
    pub(crate) fn spend(&mut self, work: u64) {
        self.left = self.left.saturating_sub(work);
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

    /// Finds something that may store anywhere.
    pub(crate) fn opaque(&mut self, why: Opaque, pending: &mut Pending) {
        pending.spoil_all(self.entry);
        self.found(Work::Opaque(why));
    }
}

/// Words of a segment that were read, and where the rest is.
#[derive(Clone, Debug)]
struct Segment {
    words: std::vec::IntoIter<u32>,
    at: u64,
    left: u32,
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
    /// Classes by subchannel; 0: none.
    classes: [u16; 8],
    semaphore: Semaphore,
    compute: Compute,
    threed: Shaders,
    copy: CopyEngine,
    m2mf: M2mf,
    pending: Pending,
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
            classes: [0; 8],
            semaphore: Semaphore::default(),
            compute: Compute::new(),
            threed: Shaders::new(),
            copy: CopyEngine::new(methods),
            m2mf: M2mf::new(),
            pending: Pending::default(),
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
            limits,
            items,
            entry: self.number.saturating_sub(1),
        };
        while look.left > 0 {
            if self.segment.is_some() {
                self.run_segment(&mut look);
            } else if self.next == put & mask {
                return Looked::Done;
            } else {
                self.fetch_entry(&mut look, mask);
            }
        }
        match self.segment.is_none() && self.next == put & mask {
            true => Looked::Done,
            false => Looked::More,
        }
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
        while look.left > 0
            && let Some(word) = segment.words.next()
        {
            look.spend(1);
            match self.decoder.take(word) {
                Word::Nothing => {}
                Word::Method(target, data) => self.method(target, data, look),
                Word::End => return,
                Word::Malformed => return self.lose(look, Opaque::Malformed),
            }
        }
        if segment.words.len() == 0 {
            if segment.left == 0 {
                return;
            }
            let count = segment.left.min(CHUNK_WORDS);
            look.spend(u64::from(count) / CHUNK_WORDS_PER_WORK);
            let mut bytes = vec![0; count as usize * 4];
            if read(look.memory, segment.at, &mut bytes).is_err() {
                return self.lose(look, Opaque::Unmapped);
            }
            let words = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word));
            segment.words = words.collect::<Vec<_>>().into_iter();
            segment.at += u64::from(count) * 4;
            segment.left -= count;
        }
        self.segment = Some(segment);
    }

    /// The way is lost: nothing that was set is known any more.
    fn lose(&mut self, look: &mut Look<'_>, why: Opaque) {
        self.decoder = Decoder::new();
        self.compute.lose();
        self.threed.lose();
        self.copy.lose();
        self.m2mf.lose();
        look.opaque(why, &mut self.pending);
    }

    fn method(&mut self, target: MethodTarget, data: u32, look: &mut Look<'_>) {
        let MethodTarget { subchannel, method } = target;
        let class = &mut self.classes[usize::from(subchannel & 7)];
        if method == host::SET_OBJECT {
            *class = data as u16;
            return;
        }
        if method < host::FIRST_ENGINE_METHOD {
            return self.host_method(method, data, look);
        }
        let pending = &mut self.pending;
        match *class {
            class::COMPUTE if method < MACROS => self.compute.method(method, data, look, pending),
            class::THREED if method < MACROS => self.threed.method_of_3d(method, data, look, pending),
            class::TWOD if method < MACROS => pixels(method, look, pending),
            class::COMPUTE => {
                self.compute.lose();
                look.opaque(Opaque::Macro, pending);
            }
            class::THREED | class::TWOD => {
                self.threed.lose();
                look.opaque(Opaque::Macro, pending);
            }
            class::M2MF => self.m2mf.method(method, data, look, pending),
            class::COPY | class::COPY_1 => self.copy.method(method, data, look, pending),
            _ => look.opaque(Opaque::UnknownClass, pending),
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
