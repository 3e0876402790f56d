//! Allocators whose callers are the lanes of a grid: random walks over a bitmap, and what they are compared with.
//!
//! Pham et al., "Dynamic Memory Management in Massively Parallel Systems: A Case on GPUs", sections 3 and 4. The programs
//! say what a step is. Whoever uses one provides its memory, and fills it before the first launch:
//!
//! | allocator | its memory |
//! |---|---|
//! | [`Pages`] | a bit for each page, lowest first, in words of 32; set: taken, or behind the last page |
//! | [`Units`] | the same for units, and a word for each unit: 0 |
//! | [`Queues`] | four words for each queue: 0, how many pieces it has, the same, how many slots are left; a ring of slots for each, the pieces first, then all ones |
//! | [`List`] | two words: 0, the first page; a link for each page; all ones ends the list |
//!
//! A queue of `slots` slots, all of them taken, is full; `slots` is a power of two. Other memory of all four is never
//! touched. A piece that was given back may be in another lane's hands before the launch that gives it ends.

use crate::programs::{self, Program};
use crate::{Launch, Parameters};

/// Threads of a block of every launch.
const THREADS: u32 = 256;
/// Words that a warp of [`Units`] looks at from one place of the search in order to the next.
const SWEEP_WORDS: u32 = 31;
/// What lanes that got nothing have.
pub const NONE: u32 = u32::MAX;

/// The lanes of a launch and where their words are, one for each lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes {
    /// How many lanes there are; not 0.
    pub count: u32,
    /// What each got, or gives back: [`NONE`] for nothing. Giving back leaves [`NONE`] where it worked.
    pub given: u64,
    /// The steps that each took.
    pub steps: u64,
    /// One word, which counts the lanes whose piece cannot be given back.
    pub faults: u64,
    /// Start of the random numbers. Launches with the same seed draw the same.
    pub seed: u32,
    /// Steps, or looks, after which a lane gives up. At a share f of free pages the chance that a walk has found none is
    /// (1 - f)^tries, so 30 / f suffice for all practical purposes.
    pub tries: u32,
}

/// A program and its parameters, for [`Lanes`].
#[derive(Clone, Copy, Debug)]
pub struct Call {
    program: &'static Program,
    parameters: Parameters,
    lanes: u32,
    instructions: u32,
}

impl Call {
    /// The launch of a whole grid, blocks of 256 threads.
    pub fn launch(&self) -> Launch<'_> {
        Launch {
            program: self.program,
            blocks: [self.lanes.div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions: self.instructions,
            parameters: &self.parameters,
        }
    }
}

/// How lanes look for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// RW: each draws a page.
    Page,
    /// RW-BM: each draws a word of 32 pages.
    Word,
    /// CoRW: a warp's lanes each draw a word and share what is free there.
    Together,
}

/// Pages of one size, found by random walks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Where the bitmap is.
    pub bitmap: u64,
    /// How many pages there are; not 0.
    pub count: u32,
}

impl Pages {
    /// Words of the bitmap.
    pub const fn words(self) -> u32 {
        self.count.div_ceil(32)
    }

    /// Gives each lane the number of a page, or [`NONE`] after its tries.
    pub fn take(self, walk: Walk, lanes: &Lanes) -> Call {
        let (program, drawn_of) = match walk {
            Walk::Page => (&programs::PAGES_WALK, self.count),
            Walk::Word => (&programs::PAGES_WORDS, self.words()),
            Walk::Together => (&programs::PAGES_TOGETHER, self.words()),
        };
        let parameters = Parameters::new()
            .long(self.bitmap)
            .long(lanes.given)
            .long(lanes.steps)
            .word(drawn_of)
            .word(lanes.count)
            .word(lanes.seed)
            .word(lanes.tries);
        lanes.call(program, parameters)
    }

    /// Takes the lanes' pages back.
    pub fn give(self, lanes: &Lanes) -> Call {
        let parameters = Parameters::new()
            .long(self.bitmap)
            .long(lanes.given)
            .long(lanes.faults)
            .word(self.count)
            .word(lanes.count);
        lanes.call(&programs::PAGES_FREE, parameters)
    }
}

/// RW_malloc: runs of up to 32 units, found by random walks of warps. Pieces of half a unit or less share units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    /// Where the bitmap is.
    pub bitmap: u64,
    /// Where the word for each unit is.
    pub tags: u64,
    /// Words of the bitmap; not 0, and the pool has less than 4 GiB.
    pub words: u32,
    /// A unit has 2 to this power bytes, 4 to 26.
    pub unit_shift: u32,
}

impl Units {
    /// Gives each lane the offset of its first byte in the pool, or [`NONE`] where no run was found. The lanes' sizes are
    /// at `sizes`, a word each, in bytes: 0, or more than 32 units, gets [`NONE`].
    pub fn take(self, sizes: u64, lanes: &Lanes) -> Call {
        let parameters = Parameters::new()
            .long(self.bitmap)
            .long(self.tags)
            .long(sizes)
            .long(lanes.given)
            .long(lanes.steps)
            .word(self.words)
            .word(self.words.div_ceil(SWEEP_WORDS))
            .word(self.unit_shift)
            .word(lanes.count)
            .word(lanes.seed)
            .word(lanes.tries);
        lanes.call(&programs::UNITS_TAKE, parameters)
    }

    /// Takes the lanes' pieces back by their offsets.
    pub fn give(self, lanes: &Lanes) -> Call {
        let parameters = Parameters::new()
            .long(self.bitmap)
            .long(self.tags)
            .long(lanes.given)
            .long(lanes.faults)
            .word(self.words)
            .word(self.unit_shift)
            .word(lanes.count);
        lanes.call(&programs::UNITS_FREE, parameters)
    }
}

/// Rings of free pieces. Queue q has pieces of 2^(`unit_shift` + q) bytes; what a piece's number means is its owner's affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Where the four words of each queue are.
    pub control: u64,
    /// Where the rings are, one behind the other.
    pub rings: u64,
    /// Slots of a ring: a power of two.
    pub slots: u32,
    /// How many queues there are.
    pub count: u32,
    /// 2 to this power is the largest size of queue 0.
    pub unit_shift: u32,
}

impl Queues {
    /// Gives each lane a piece for its size at `sizes`, or one of queue 0 if there are none. A lane's steps are its place
    /// among those that came to the queue behind the first `before`.
    pub fn take(self, sizes: Option<u64>, before: u32, lanes: &Lanes) -> Call {
        self.call(sizes, before, false, lanes)
    }

    /// Takes the lanes' pieces back into the queues that they came from; steps as in [`Self::take`].
    pub fn give(self, sizes: Option<u64>, before: u32, lanes: &Lanes) -> Call {
        self.call(sizes, before, true, lanes)
    }

    fn call(self, sizes: Option<u64>, before: u32, gives: bool, lanes: &Lanes) -> Call {
        let parameters = Parameters::new()
            .long(self.control)
            .long(self.rings)
            .long(lanes.given)
            .long(lanes.steps)
            .long(sizes.unwrap_or(0))
            .long(lanes.faults)
            .word(gives.into())
            .word(self.slots)
            .word(self.count)
            .word(self.unit_shift)
            .word(before)
            .word(lanes.count)
            .word(lanes.tries);
        lanes.call(&programs::QUEUE, parameters)
    }
}

/// A list of free pages under one lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct List {
    /// Where the lock and the number of the first page are.
    pub control: u64,
    /// Where each page's link is.
    pub links: u64,
    /// How many pages there are.
    pub count: u32,
}

impl List {
    /// Gives each lane the number of a page, or [`NONE`] if the list is empty or the lock was not to be had.
    pub fn take(self, lanes: &Lanes) -> Call {
        self.call(false, lanes)
    }

    /// Takes the lanes' pages back.
    pub fn give(self, lanes: &Lanes) -> Call {
        self.call(true, lanes)
    }

    fn call(self, gives: bool, lanes: &Lanes) -> Call {
        let parameters = Parameters::new()
            .long(self.control)
            .long(self.links)
            .long(lanes.given)
            .long(lanes.steps)
            .long(lanes.faults)
            .word(gives.into())
            .word(self.count)
            .word(lanes.count)
            .word(lanes.tries);
        lanes.call(&programs::LIST, parameters)
    }
}

impl Lanes {
    fn call(&self, program: &'static Program, parameters: Parameters) -> Call {
        Call {
            program,
            parameters,
            lanes: self.count,
            // Of a pool that is not nearly full; those that are would not be cut apart for it.
            instructions: 4 * program.code.len() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_as_many_as_the_programs_have() {
        let lanes = Lanes {
            count: 257,
            given: 0x1000,
            steps: 0x2000,
            faults: 0x3000,
            seed: 1,
            tries: 2,
        };
        let pages = Pages {
            bitmap: 0x4000,
            count: 33,
        };
        let units = Units {
            bitmap: 0x4000,
            tags: 0x5000,
            words: 2,
            unit_shift: 8,
        };
        let queues = Queues {
            control: 0x4000,
            rings: 0x5000,
            slots: 64,
            count: 1,
            unit_shift: 8,
        };
        let list = List {
            control: 0x4000,
            links: 0x5000,
            count: 33,
        };
        let calls = [
            pages.take(Walk::Page, &lanes),
            pages.take(Walk::Word, &lanes),
            pages.take(Walk::Together, &lanes),
            pages.give(&lanes),
            units.take(0x6000, &lanes),
            units.give(&lanes),
            queues.take(None, 0, &lanes),
            queues.give(Some(0x6000), 0, &lanes),
            list.take(&lanes),
            list.give(&lanes),
        ];
        for call in calls {
            let launch = call.launch();
            assert_eq!(
                launch.parameters.bytes(),
                launch.program.parameter_bytes,
                "{}",
                launch.program.name
            );
            assert_eq!(launch.blocks, [2, 1]);
        }
        assert_eq!(pages.words(), 2);
    }
}
