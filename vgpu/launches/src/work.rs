//! The work of a channel.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fermi_spec::addr::GpuVa;
use kernel_sets::{Access, Bound, Reason, Sets};

/// Work, and where it stands in the ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Number of the ring's entry, counted from the first that was looked at.
    pub entry: u64,
    /// What is to be done.
    pub work: Work,
}

/// What a channel asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// A grid of class 90c0 starts.
    Launch(Box<Launch>),
    /// One starts that was not looked into ([`Limits::kernel`](crate::Limits::kernel)): it may load and store anywhere.
    Grid(Grid),
    /// A copy, or bytes that came in the pushbuffer.
    Copy(Copy),
    /// A semaphore is released: what was asked for before has ended then.
    Release {
        /// Where it is.
        at: GpuVa,
        /// Bytes that are stored.
        bytes: u8,
        /// Value that is stored; `None` of a counter.
        payload: Option<u32>,
    },
    /// The channel waits until a semaphore has a value.
    Acquire {
        /// Where it is.
        at: GpuVa,
        /// The value that it is compared with.
        payload: u32,
    },
    /// The channel waits until what it asked for before has ended.
    Wait,
    /// Something that may load and store anywhere.
    Opaque(Opaque),
}

/// A grid of class 90c0, as its methods name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grid {
    /// Where the code begins.
    pub code: GpuVa,
    /// First instruction, in bytes from there.
    pub entry: u32,
    /// Blocks in x, y, z.
    pub blocks: [u32; 3],
    /// Threads of a block in x, y, z.
    pub threads: [u32; 3],
}

/// A grid of class 90c0, and what it may reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Where the code begins.
    pub code: GpuVa,
    /// First instruction, in bytes from there.
    pub entry: u32,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Words of constant bank 0, `None` where one is not known.
    pub parameters: Vec<Option<u32>>,
    /// What the code may reach.
    pub sets: Arc<Sets>,
    /// Code and constants that were read: loaded by the grid, too. Apart, ascending.
    pub fetches: Vec<Range<u64>>,
    /// Memory behind local memory and control stacks, loaded and stored.
    pub scratch: Option<Range<u64>>,
    /// Code and constants were read while a grid was pending of which only pointers are known. They are right if that grid
    /// keeps to its buffers.
    pub relies_on_runs: bool,
}

impl Launch {
    /// The grid alone.
    pub fn as_grid(&self) -> Grid {
        Grid {
            code: self.code,
            entry: self.entry,
            blocks: self.grid,
            threads: self.block,
        }
    }

    /// What it may load of global memory.
    pub fn reads(&self) -> impl Iterator<Item = &Access> {
        self.sets.accesses.iter().filter(|access| access.is_load)
    }

    /// What it may store to global memory.
    pub fn writes(&self) -> impl Iterator<Item = &Access> {
        self.sets.accesses.iter().filter(|access| access.is_store)
    }

    /// Bytes that it stores all of.
    pub fn overwrites(&self) -> &[Range<u64>] {
        &self.sets.overwrites
    }

    /// How well all of it is known.
    pub fn bound(&self) -> Bound {
        self.sets.bound()
    }
}

/// One side of a copy: lines of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// First byte of the first line.
    pub at: GpuVa,
    /// Bytes of a line.
    pub line: u64,
    /// Bytes from one line to the next.
    pub pitch: u64,
    /// Number of lines.
    pub lines: u64,
}

impl Target {
    /// From the first byte to behind the last.
    pub fn bytes(&self) -> Range<u64> {
        let between = self.pitch.saturating_mul(self.lines.saturating_sub(1));
        let length = match self.lines {
            0 => 0,
            _ => between.saturating_add(self.line),
        };
        self.at.0..self.at.0.saturating_add(length)
    }

    /// Whether no byte in between is left out.
    pub(crate) fn is_whole(&self) -> bool {
        self.lines <= 1 || self.pitch <= self.line
    }
}

/// A linear copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Where from; `None`: the bytes came in the pushbuffer.
    pub from: Option<Target>,
    /// Lines that are written.
    pub to: Target,
    /// Every byte of [`Target::bytes`] of the target is written.
    pub whole: bool,
}

/// Why nothing is known of some work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opaque {
    /// A word that is no header, an entry of the ring that raises an error, or a method of errors.
    Malformed,
    /// The ring or a pushbuffer cannot be read.
    Unmapped,
    /// A method of a class that nobody knows.
    UnknownClass,
    /// A macro, which may send any method.
    Macro,
    /// A draw of class 9097.
    Draw,
    /// A clear of targets of class 9097.
    Clear,
    /// Pixels of 2D.
    Pixels,
    /// A copy of tiles or with a change of components.
    Tiles,
    /// It depends on a condition in memory.
    Condition,
    /// Something that it depends on was set unseen, or is in memory that is still to be written.
    State,
    /// A grid whose addresses go through a table that changes them.
    AddressTable,
    /// A copy to or from physical addresses.
    Physical,
    /// A grid whose code is not understood.
    Kernel(Reason),
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "a malformed entry or header",
            Self::Unmapped => "a ring or pushbuffer that cannot be read",
            Self::UnknownClass => "a class that is not known",
            Self::Macro => "a macro",
            Self::Draw => "a draw",
            Self::Clear => "a clear",
            Self::Pixels => "pixels of 2D",
            Self::Tiles => "a copy of tiles",
            Self::Condition => "a condition in memory",
            Self::State => "state that was set unseen or is still to be written",
            Self::AddressTable => "a table that changes addresses",
            Self::Physical => "physical addresses",
            Self::Kernel(reason) => return write!(f, "a grid: {reason}"),
        })
    }
}
