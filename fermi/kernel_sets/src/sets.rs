//! What is found out about a kernel.

use std::ops::Range;

/// One past the last address of a channel's space.
pub(crate) const VA_END: u64 = 1 << fermi_spec::addr::VA_BITS;

/// A pointer among the parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Constant bank that holds it.
    pub bank: u8,
    /// Offset in the bank, in bytes.
    pub offset: u16,
    /// The pointer: an address in the channel's space.
    pub address: u64,
    /// It is a pair of words, not one.
    pub(crate) is_pair: bool,
}

impl Root {
    /// The pointer that a sum was reckoned from: a pair before a word, which may be a count; of two alike, none.
    pub(crate) fn of_sum(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) if a.is_pair != b.is_pair => Some(if a.is_pair { a } else { b }),
            (Some(_), Some(_)) => None,
            (a, b) => a.or(b),
        }
    }
}

/// How well an access is known, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bound {
    /// The interval of bytes is known.
    Exact,
    /// Only the pointer is known that the address was reckoned from.
    Run,
    /// Nothing is known.
    Space,
}

/// By which way memory is reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Loads, stores and atomics with an address.
    Global,
    /// Samples and fetches of textures: where they lie is told by headers, not by the code.
    Texture,
    /// Loads and stores of surfaces, by the methods that set them.
    Surface,
}

/// What one instruction may reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The instruction, in bytes from the start of the code.
    pub pc: u32,
    /// By which way.
    pub kind: Kind,
    /// It loads; an atomic does both.
    pub is_load: bool,
    /// It stores, perhaps after a load.
    pub is_store: bool,
    /// How well it is known.
    pub bound: Bound,
    /// Pointer that the address was reckoned from. There is one if the bound is [`Bound::Run`].
    pub root: Option<Root>,
    /// Bytes of the channel's space: none besides are reached, whatever data the kernel finds.
    pub bytes: Range<u64>,
}

impl Access {
    /// One that may go anywhere.
    pub(crate) fn anywhere(pc: u32, kind: Kind, is_load: bool, is_store: bool) -> Self {
        Self {
            pc,
            kind,
            is_load,
            is_store,
            bound: Bound::Space,
            root: None,
            bytes: 0..VA_END,
        }
    }

    /// The bytes to reckon with, where `run` says which mapped run of addresses holds an address: the interval, of
    /// [`Bound::Run`] as far as it is in the pointer's run.
    pub fn within(&self, run: impl Fn(u64) -> Option<Range<u64>>) -> Range<u64> {
        let (Bound::Run, Some(root)) = (self.bound, self.root) else {
            return self.bytes.clone();
        };
        // Where no memory is mapped nothing can be reached.
        let run = run(root.address).unwrap_or(0..0);
        let start = self.bytes.start.max(run.start);
        start..self.bytes.end.min(run.end).max(start)
    }
}

/// Why a kernel is one access to anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// A word of the code could not be read.
    CodeUnknown,
    /// A word is no instruction, or one of the short forms.
    NoInstruction,
    /// A branch goes where a register or an unknown constant says.
    IndirectBranch,
    /// An instruction of traps, long jumps or fragments.
    Control,
    /// The control stack is deeper than any compiler makes it.
    StackDepth,
    /// More code than the limits allow.
    TooLong,
    /// More work than the limits allow.
    TooMuchWork,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CodeUnknown => "its code cannot be read",
            Self::NoInstruction => "a word of its code is no instruction of the long form",
            Self::IndirectBranch => "it branches to where a register says",
            Self::Control => "it has an instruction of traps, long jumps or fragments",
            Self::StackDepth => "its control stack is too deep",
            Self::TooLong => "its code is too long",
            Self::TooMuchWork => "it takes too much work",
        })
    }
}

/// All that a kernel may reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sets {
    /// Its accesses, by place in the code; an instruction that several calls lead to has one for each.
    pub accesses: Vec<Access>,
    /// Bytes that the whole grid stores all of, if every thread comes to its end. Apart, ascending.
    pub overwrites: Vec<Range<u64>>,
    /// It has local memory, which lies behind addresses of the launch.
    pub uses_local: bool,
    /// Why nothing is known, if so.
    pub reason: Option<Reason>,
    /// Instructions that were interpreted.
    pub work: u64,
}

impl Sets {
    /// Those of a kernel that is not understood.
    pub(crate) fn unknown(reason: Reason, work: u64) -> Self {
        Self {
            accesses: vec![Access::anywhere(0, Kind::Global, true, true)],
            overwrites: Vec::new(),
            uses_local: true,
            reason: Some(reason),
            work,
        }
    }

    /// The worst bound of any access; [`Bound::Exact`] if there is none.
    pub fn bound(&self) -> Bound {
        let bounds = self.accesses.iter().map(|access| access.bound);
        bounds.max().unwrap_or(Bound::Exact)
    }
}

/// Sorts ranges and makes one of those that touch.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_cut_to_what_any_data_allows() {
        let root = Root {
            bank: 0,
            offset: 0x20,
            address: 0x1000,
            is_pair: true,
        };
        let access = Access {
            bound: Bound::Run,
            root: Some(root),
            bytes: 0x1000..0x9000,
            ..Access::anywhere(0, Kind::Global, true, false)
        };
        assert_eq!(access.within(|_| Some(0x800..0x2000)), 0x1000..0x2000);
        assert!(access.within(|_| None).is_empty());
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(merged(vec![8..12, 0..4, 4..8, 20..20, 16..18]), [0..12, 16..18]);
    }
}
