//! Arrays with two copies, one in guest RAM and one in VRAM, that are moved only when somebody would touch an old one.
//!
//! After Pai, Govindarajan, Thazhuthaveetil: Fast and Efficient Automatic Memory Management for GPUs using
//! Compiler-Assisted Runtime Coherence Scheme, PACT'12. Their *Rail* is an array here, as a whole.
//!
//! ```text
//!  program ──check_read, check_write, check_overwrite──► Coherence ──Transfers::copy──► copy engine
//!     │      before it touches its copy                     │  two stale flags an array
//!     └──────launch with its Sets──► before_launch, after_launch
//!                                                           └──► History: what was touched and moved, in order
//! ```
//!
//! | event | stale on the CPU | stale on the GPU |
//! |---|---|---|
//! | the array is new | no | no |
//! | the CPU stores | no | yes |
//! | a launch may store | yes | no |
//! | it is copied | not where it was copied to | |
//!
//! 1. A check by the CPU costs a test of a flag. It holds until the next launch, so it may be done once before a loop in
//!    which nothing is launched (section 5.2.2).
//! 2. A launch cannot be stopped for a copy, so its sets have to hold all that it may touch. Sets that are too large cost
//!    copies and are right all the same: what a launch may store is copied in like what it may load (algorithm 2), because
//!    it may store a part of it.
//! 3. An array gets its VRAM when the first launch has it in its sets.
//!
//! Which signal tells it: the CPU's accesses are told by the program's calls, a launch's by [`Sets`], which come from the
//! kernel's code (`kernels::programs::Pointer`). Nothing is told by faults, page tables or the hardware.
//!
//! [`Scheme::Naive`] and [`Scheme::Manual`] are what it is compared with. [`History`] counts copies that were not needed. It
//! is told of accesses and copies and sees no flag.

mod history;

pub use history::{CLASSES, Class, Classes, History, Moved, Side, Touch};

use crate::DriverError;

/// Most arrays: one bit each in [`Sets`].
pub const ARRAYS_MAX: usize = 16;

/// Who decides when an array is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// All arrays of a launch's sets are copied in before it and out behind it, whoever touches them: a compiler's `map`
    /// and `unmap` around each launch (section 6), none of them moved out of a loop.
    Naive,
    /// The program says it ([`Coherence::copy_in`], [`Coherence::copy_out`]).
    Manual,
    /// Stale flags and checks.
    Amm,
}

impl Scheme {
    /// All schemes, the one that copies most first.
    pub const ALL: [Self; 3] = [Self::Naive, Self::Manual, Self::Amm];

    /// The name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Manual => "manual",
            Self::Amm => "amm",
        }
    }

    /// The scheme called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }
}

/// Where a copy of an array goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From guest RAM to VRAM.
    ToGpu,
    /// From VRAM to guest RAM.
    ToCpu,
}

impl Direction {
    /// In the order by which [`Classes`] counts.
    pub const ALL: [Self; 2] = [Self::ToGpu, Self::ToCpu];

    /// The side that gets the bytes.
    pub const fn target(self) -> Side {
        match self {
            Self::ToGpu => Side::Gpu,
            Self::ToCpu => Side::Cpu,
        }
    }
}

/// Moves arrays, whose numbers are those of [`Coherence`].
pub trait Transfers {
    /// Finds VRAM for an array and maps it.
    fn allocate(&mut self, array: usize) -> Result<(), DriverError>;

    /// Waits for the launches before, copies a whole array, and waits for the end.
    fn copy(&mut self, array: usize, direction: Direction) -> Result<(), DriverError>;
}

/// What a launch may touch: a bit for each array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sets {
    /// Arrays that it may load from.
    pub loads: u16,
    /// Arrays that it may store to.
    pub stores: u16,
}

impl Sets {
    /// Numbers of the arrays of a set.
    pub fn numbers(set: u16) -> impl Iterator<Item = usize> {
        (0..ARRAYS_MAX).filter(move |array| set >> array & 1 != 0)
    }

    /// Arrays of either set.
    pub const fn all(self) -> u16 {
        self.loads | self.stores
    }
}

/// The state of an array.
#[derive(Clone, Copy, Debug, Default)]
struct Array {
    is_stale_on_cpu: bool,
    is_stale_on_gpu: bool,
    is_on_gpu: bool,
}

/// All arrays of a program and the scheme that keeps their copies.
#[derive(Clone, Debug)]
pub struct Coherence {
    scheme: Scheme,
    arrays: [Array; ARRAYS_MAX],
    count: usize,
    history: History,
    checks: u64,
}

impl Coherence {
    /// No array yet.
    pub fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            arrays: [Array::default(); ARRAYS_MAX],
            count: 0,
            history: History::default(),
            checks: 0,
        }
    }

    /// Adds an array of so many bytes; the first has number 0. `None`: there are [`ARRAYS_MAX`] already.
    pub fn add(&mut self, bytes: u64) -> Option<usize> {
        if self.count == ARRAYS_MAX {
            return None;
        }
        let array = self.count;
        self.count += 1;
        self.history.set_bytes(array, bytes);
        Some(array)
    }

    /// The scheme that was chosen.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What was touched and moved.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Checks that the program made.
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// Whether the CPU must not touch its copy without a check.
    #[inline]
    pub(crate) fn is_stale_on_cpu(&self, array: usize) -> bool {
        self.arrays.get(array).is_some_and(|array| array.is_stale_on_cpu)
    }

    /// Whether a launch must not touch the GPU's copy before [`Self::before_launch`].
    pub(crate) fn is_stale_on_gpu(&self, array: usize) -> bool {
        self.arrays.get(array).is_some_and(|array| array.is_stale_on_gpu)
    }

    /// The CPU is about to load from an array: algorithm 1.
    #[inline]
    pub fn check_read(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        self.checks += 1;
        if self.is_stale_on_cpu(array) {
            self.fetch(transfers, array)?;
        }
        self.history.touch(array, Side::Cpu, Touch::Read);
        Ok(())
    }

    /// The CPU is about to store to a part of an array: algorithm 2.
    #[inline]
    pub fn check_write(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        self.checks += 1;
        if self.is_stale_on_cpu(array) {
            self.fetch(transfers, array)?;
        }
        self.stored_by_cpu(array, Touch::Write);
        Ok(())
    }

    /// The CPU is about to store to all of an array, of which nothing has to be fetched (section 5.3.3).
    pub fn check_overwrite(&mut self, array: usize) {
        self.checks += 1;
        if let Some(array) = self.arrays.get_mut(array) {
            array.is_stale_on_cpu = false;
        }
        self.stored_by_cpu(array, Touch::Overwrite);
    }

    /// Makes the GPU's copies ready for a launch, and notes what it will have stored.
    pub fn before_launch(&mut self, transfers: &mut dyn Transfers, sets: Sets) -> Result<(), DriverError> {
        for array in Sets::numbers(sets.all()) {
            self.make_room(transfers, array)?;
            let is_due = match self.scheme {
                Scheme::Naive => true,
                Scheme::Manual => false,
                Scheme::Amm => self.is_stale_on_gpu(array),
            };
            if is_due {
                self.copy(transfers, array, Direction::ToGpu)?;
            }
        }
        for array in Sets::numbers(sets.loads) {
            self.history.touch(array, Side::Gpu, Touch::Read);
        }
        for array in Sets::numbers(sets.stores) {
            self.history.touch(array, Side::Gpu, Touch::Write);
            if self.scheme == Scheme::Amm {
                self.arrays[array].is_stale_on_cpu = true;
            }
        }
        Ok(())
    }

    /// The launch that [`Self::before_launch`] was told of is queued.
    pub fn after_launch(&mut self, transfers: &mut dyn Transfers, sets: Sets) -> Result<(), DriverError> {
        if self.scheme != Scheme::Naive {
            return Ok(());
        }
        Sets::numbers(sets.all()).try_for_each(|array| self.copy(transfers, array, Direction::ToCpu))
    }

    /// A copy to the GPU that the program has by hand. Only [`Scheme::Manual`] makes it.
    pub fn copy_in(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        if self.scheme != Scheme::Manual || array >= self.count {
            return Ok(());
        }
        self.make_room(transfers, array)?;
        self.copy(transfers, array, Direction::ToGpu)
    }

    /// A copy from the GPU that the program has by hand. Only [`Scheme::Manual`] makes it, of what is on the GPU.
    pub fn copy_out(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        let is_on_gpu = self.arrays.get(array).is_some_and(|array| array.is_on_gpu);
        if self.scheme != Scheme::Manual || !is_on_gpu {
            return Ok(());
        }
        self.copy(transfers, array, Direction::ToCpu)
    }

    #[inline]
    fn stored_by_cpu(&mut self, array: usize, touch: Touch) {
        self.history.touch(array, Side::Cpu, touch);
        if self.scheme == Scheme::Amm
            && let Some(array) = self.arrays.get_mut(array)
        {
            array.is_stale_on_gpu = true;
        }
    }

    /// The way of a check that finds its array stale.
    #[cold]
    fn fetch(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        self.copy(transfers, array, Direction::ToCpu)
    }

    fn make_room(&mut self, transfers: &mut dyn Transfers, array: usize) -> Result<(), DriverError> {
        if !self.arrays[array].is_on_gpu {
            transfers.allocate(array)?;
            self.arrays[array].is_on_gpu = true;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        transfers: &mut dyn Transfers,
        array: usize,
        direction: Direction,
    ) -> Result<(), DriverError> {
        transfers.copy(array, direction)?;
        self.history.transfer(array, direction);
        match direction {
            Direction::ToGpu => self.arrays[array].is_stale_on_gpu = false,
            Direction::ToCpu => self.arrays[array].is_stale_on_cpu = false,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
