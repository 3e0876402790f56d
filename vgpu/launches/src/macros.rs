//! What the front end of PGRAPH keeps for macros: their code, where they start, and the values of methods that they read.
//!
//! Methods 114 to 124 (NVIDIA's `cl9097.h`: LOAD_MME_INSTRUCTION_RAM and its neighbours; [`front_end`]). A word counts as known
//! if its upload was seen. Where a pointer is past the end nobody knows which word an upload goes to: none is known then.

use std::ops::RangeInclusive;

use fermi_spec::graphics::{front_end, shader, threed};
use fermi_spec::methods::class;
use fermi_spec::mme::{CODE_WORDS, MACROS};

/// Methods that are about macros.
const UPLOADS: RangeInclusive<u16> = front_end::MACRO_CODE_POINTER..=front_end::SHADOW_CONTROL;
/// Methods below are of the front end itself: their values are not kept, nor replayed.
const FIRST_KEPT: u16 = 0x200;
const CONTROL_MASK: u32 = 3;

/// Words by number, as far as they are known. It takes memory once one is.
#[derive(Clone, Debug)]
struct Words {
    count: usize,
    values: Vec<u32>,
    /// A bit for each value.
    known: Vec<u64>,
}

impl Words {
    const fn new(count: usize) -> Self {
        Self {
            count,
            values: Vec::new(),
            known: Vec::new(),
        }
    }

    fn get(&self, index: usize) -> Option<u32> {
        let is_known = self.known.get(index / 64)? >> (index % 64) & 1 != 0;
        is_known.then(|| self.values.get(index).copied()).flatten()
    }

    fn set(&mut self, index: usize, value: Option<u32>) {
        if index >= self.count || self.values.is_empty() && value.is_none() {
            return;
        }
        self.values.resize(self.count, 0);
        self.known.resize(self.count.div_ceil(64), 0);
        let bit = 1 << (index % 64);
        match value {
            Some(value) => {
                self.values[index] = value;
                self.known[index / 64] |= bit;
            }
            None => self.known[index / 64] &= !bit,
        }
    }

    fn forget(&mut self) {
        *self = Self::new(self.count);
    }

    fn bytes(&self) -> usize {
        self.values.len() * 4 + self.known.len() * 8
    }
}

/// The memory of macros.
#[derive(Clone, Debug)]
pub(crate) struct Macros {
    code: Words,
    starts: Words,
    /// Values of the methods of 9097 by method / 4; those from [`front_end::MACRO_SCRATCH`] on are of all classes.
    values: Words,
    /// Where the next words go.
    code_at: Option<u32>,
    start_at: Option<u32>,
    /// What becomes of methods, see [`front_end::SHADOW_CONTROL`].
    control: Option<u32>,
}

impl Macros {
    /// As drivers find it: nothing was uploaded, methods do what they say.
    pub(crate) const fn new() -> Self {
        Self {
            code: Words::new(CODE_WORDS),
            starts: Words::new(MACROS),
            values: Words::new(front_end::MACRO_CALL as usize / 4),
            code_at: None,
            start_at: None,
            control: Some(front_end::SHADOW_TRACK),
        }
    }

    /// Nothing is known until it is set again.
    pub(crate) fn lose(&mut self) {
        *self = Self {
            control: None,
            ..Self::new()
        };
    }

    /// Bytes of the host's memory that it takes, about.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.code.bytes() + self.starts.bytes() + self.values.bytes()
    }

    /// A word of code.
    pub(crate) fn code(&self, place: usize) -> Option<u32> {
        self.code.get(place)
    }

    /// Where a macro starts, if that is in the code.
    pub(crate) fn start(&self, index: usize) -> Option<u16> {
        let start = u16::try_from(self.starts.get(index)?).ok()?;
        (usize::from(start) < CODE_WORDS).then_some(start)
    }

    /// The value that a macro of a class reads of a method.
    pub(crate) fn value(&self, class: u16, method: u16) -> Option<u32> {
        (class == class::THREED).then(|| self.values.get(usize::from(method) / 4))?
    }

    /// Whether a method is one of [`Self::upload`].
    pub(crate) fn is_upload(method: u16) -> bool {
        UPLOADS.contains(&method)
    }

    /// Whether a method of some class may change any of it, or call a macro.
    pub(crate) fn may_be_changed_by(method: u16) -> bool {
        method >= front_end::MACRO_SCRATCH || Self::is_upload(method)
    }

    /// Executes a method that is about macros.
    pub(crate) fn upload(&mut self, method: u16, data: Option<u32>) {
        match method {
            front_end::MACRO_CODE_POINTER => self.code_at = data,
            front_end::MACRO_CODE => store(&mut self.code, &mut self.code_at, data),
            front_end::MACRO_START_POINTER => self.start_at = data,
            front_end::MACRO_START => store(&mut self.starts, &mut self.start_at, data),
            front_end::SHADOW_CONTROL => self.control = data.map(|data| data & CONTROL_MASK),
            _ => {}
        }
    }

    /// The data with which a method has effect.
    pub(crate) fn in_effect(&self, method: u16, data: Option<u32>) -> Option<u32> {
        data.filter(|_| method < FIRST_KEPT || !self.may_replay())
    }

    /// Whether methods may have effect with other data than they were sent with.
    pub(crate) fn may_replay(&self) -> bool {
        matches!(self.control, None | Some(front_end::SHADOW_REPLAY))
    }

    /// What a macro reads of a method of 9097 once it has had effect with this data.
    pub(crate) fn read_behind(&self, method: u16, data: Option<u32>) -> Option<u32> {
        let is_plain = method >= FIRST_KEPT
            && !matches!(
                method,
                threed::FIRMWARE
                    ..=threed::FIRMWARE_LAST
                    // It moves on by itself; whether that can be read is not known.
                    | shader::CONSTANT_OFFSET
                    | shader::SOFTWARE_EXCEPTIONS
            );
        data.filter(|_| is_plain && self.control == Some(front_end::SHADOW_TRACK))
    }

    /// A method of a class has had effect.
    pub(crate) fn keep(&mut self, class: u16, method: u16, data: Option<u32>) {
        let value = match class {
            class::THREED => self.read_behind(method, data),
            // Whether they have the words in common is the model's assumption.
            _ if method >= front_end::MACRO_SCRATCH => None,
            _ => return,
        };
        self.values.set(usize::from(method) / 4, value);
    }
}

/// Stores a word where the pointer shows, and moves that on.
fn store(words: &mut Words, pointer: &mut Option<u32>, data: Option<u32>) {
    match pointer.map(|at| (at, at as usize)) {
        Some((at, index)) if index < words.count => {
            words.set(index, data);
            *pointer = Some(at + 1);
        }
        _ => {
            words.forget();
            *pointer = None;
        }
    }
}
