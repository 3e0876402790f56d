//! What was touched and what was copied, in order, and which copies were in vain.
//!
//! Each array has the number of its newest version and the versions that its two copies hold; a store makes a new one.
//! As in the paper, data that was stored counts as changed (section 3). From that alone a copy is
//!
//! * *private* if the CPU never touches the array, to the end;
//! * otherwise *non-stale* if its target held that version already;
//! * otherwise *eager* if the target is not touched before it is overwritten, copied to again, or the end comes;
//! * otherwise *useful*.
//!
//! A touch of a copy that does not hold the newest version, and a copy over the newest version, are *breaches*: a scheme that
//! makes one is wrong.

use super::{ARRAYS_MAX, Direction};

/// One of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The processor with its copy in RAM.
    Cpu,
    /// The GPU with its copy in VRAM.
    Gpu,
}

/// How a side touches its copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// It loads from any part of it.
    Read,
    /// It stores to a part of it, perhaps after a load.
    Write,
    /// It stores to all of it.
    Overwrite,
}

/// What came of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// It brought a version that was then touched.
    Useful,
    /// It brought a version that nobody touched there.
    Eager,
    /// It brought what was there.
    NonStale,
    /// It moved an array that the CPU has no use for.
    Private,
}

/// Number of classes.
pub const CLASSES: usize = 4;

impl Class {
    /// All of them.
    pub const ALL: [Self; CLASSES] = [Self::Useful, Self::Eager, Self::NonStale, Self::Private];
}

/// Copies that were made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// Copies of whole arrays.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
}

impl Moved {
    /// The sum of two counts.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Copies by direction ([`Direction::ALL`]) and class ([`Class::ALL`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Classes([[Moved; CLASSES]; 2]);

impl Classes {
    /// Copies of one class in one direction.
    pub const fn of(&self, direction: Direction, class: Class) -> Moved {
        self.0[direction as usize][class as usize]
    }

    /// Copies of one class.
    pub const fn class(&self, class: Class) -> Moved {
        self.of(Direction::ToGpu, class)
            .plus(self.of(Direction::ToCpu, class))
    }

    /// Copies in one direction.
    pub fn direction(&self, direction: Direction) -> Moved {
        let classes = Class::ALL.into_iter().map(|class| self.of(direction, class));
        classes.fold(Moved::default(), Moved::plus)
    }

    /// Copies of any class in any direction.
    pub fn all(&self) -> Moved {
        self.direction(Direction::ToGpu)
            .plus(self.direction(Direction::ToCpu))
    }

    /// The sum by direction and class.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (own, others) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *own = own.plus(*others);
        }
        self
    }
}

/// What is known of one array.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    bytes: u64,
    newest: u64,
    /// Versions by [`Side`].
    held: [u64; 2],
    is_touched_by_cpu: bool,
    /// By side: a copy brought a new version that was not touched yet.
    is_waiting: [bool; 2],
    /// Copies by the side that got them, of which it is decided what came of them.
    useful: [u64; 2],
    eager: [u64; 2],
    non_stale: [u64; 2],
    breaches: u64,
}

/// Everything that was touched and copied. Numbers of arrays beyond [`ARRAYS_MAX`] are passed over.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: [Record; ARRAYS_MAX],
}

impl History {
    /// The length of an array, by which its copies count.
    pub fn set_bytes(&mut self, array: usize, bytes: u64) {
        if let Some(record) = self.records.get_mut(array) {
            record.bytes = bytes;
        }
    }

    /// A side touches its copy.
    #[inline]
    pub fn touch(&mut self, array: usize, side: Side, touch: Touch) {
        let Some(record) = self.records.get_mut(array) else {
            return;
        };
        record.is_touched_by_cpu |= side == Side::Cpu;
        let at = side as usize;
        if touch != Touch::Overwrite {
            record.breaches += u64::from(record.held[at] != record.newest);
        }
        if record.is_waiting[at] {
            record.is_waiting[at] = false;
            let came_of_it = match touch {
                Touch::Read | Touch::Write => &mut record.useful,
                Touch::Overwrite => &mut record.eager,
            };
            came_of_it[at] += 1;
        }
        if touch != Touch::Read {
            record.newest += 1;
            record.held[at] = record.newest;
        }
    }

    /// An array was copied.
    pub fn transfer(&mut self, array: usize, direction: Direction) {
        let Some(record) = self.records.get_mut(array) else {
            return;
        };
        let target = direction.target() as usize;
        let version = record.held[1 - target];
        if record.held[target] == version {
            record.non_stale[target] += 1;
            return;
        }
        record.breaches += u64::from(record.held[target] == record.newest);
        record.eager[target] += u64::from(record.is_waiting[target]);
        record.is_waiting[target] = true;
        record.held[target] = version;
    }

    /// What came of the copies of an array, if nothing more happens.
    pub fn classes(&self, array: usize) -> Classes {
        let mut classes = Classes::default();
        let Some(record) = self.records.get(array) else {
            return classes;
        };
        for direction in Direction::ALL {
            let target = direction.target() as usize;
            let eager = record.eager[target] + u64::from(record.is_waiting[target]);
            let (useful, non_stale) = (record.useful[target], record.non_stale[target]);
            let counts = match record.is_touched_by_cpu {
                true => [useful, eager, non_stale, 0],
                false => [0, 0, 0, useful + eager + non_stale],
            };
            classes.0[direction as usize] = counts.map(|count| Moved {
                count,
                bytes: count * record.bytes,
            });
        }
        classes
    }

    /// What came of all copies, if nothing more happens.
    pub fn all(&self) -> Classes {
        let each = (0..ARRAYS_MAX).map(|array| self.classes(array));
        each.fold(Classes::default(), |all, classes| all.plus(&classes))
    }

    /// Touches of old data and copies over new data.
    pub fn breaches(&self) -> u64 {
        self.records.iter().map(|record| record.breaches).sum()
    }
}
