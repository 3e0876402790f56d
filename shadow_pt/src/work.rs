//! Work that may be done in one go, and what it took.
//!
//! A guest decides how many tables there are and how much of them changes, so whatever is proportional to that is done in
//! steps. A step is counted and not timed: the same tables take the same steps on every host and in every replay. The unit
//! is a nanosecond of a core of today, roughly; what matters is that no kind of work counts for nothing.

/// A page of entries read and compared.
pub(crate) const PAGE_COMPARED: u64 = 500;
/// A page asked for that turned out to be clean, or not at hand.
pub(crate) const PAGE_ASKED: u64 = 40;
/// The entries of a slot looked at, to see what they name.
pub(crate) const SLOT_SEEN: u64 = 50;
/// A table searched for slots that name a range of RAM.
pub(crate) const TABLE_SEARCHED: u64 = 1_000;
/// A table of small entries, 256 KiB, filled with zeros.
pub(crate) const TABLE_CLEARED: u64 = 40_000;
/// The small entries of a slot translated and written, or a large one, or none.
pub(crate) const SLOT_BUILT: u64 = 300;
pub(crate) const LARGE_BUILT: u64 = 50;

/// A bound on the work of a call, which it may exceed by its last step: a table, or a few slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    done: u64,
    limit: u64,
}

impl Work {
    /// Most that the last step may take too much: the entries of one directory entry are looked at, or cleared.
    pub const EXCESS_MAX: u64 = 60_000;

    /// As much as that, in units of about a nanosecond.
    pub const fn limited(limit: u64) -> Self {
        // A first step is always taken.
        let limit = if limit == 0 { 1 } else { limit };
        Self { done: 0, limit }
    }

    /// As much as there is to do.
    pub const fn unlimited() -> Self {
        Self::limited(u64::MAX)
    }

    /// What was done.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// How much more than the bound.
    pub fn excess(&self) -> u64 {
        self.done.saturating_sub(self.limit)
    }

    /// Whether the bound is reached.
    pub fn is_used_up(&self) -> bool {
        self.done >= self.limit
    }

    pub(crate) fn add(&mut self, units: u64) {
        self.done = self.done.saturating_add(units);
    }

    /// Whether so many slots are built within the bound, if nothing else is done.
    pub(crate) fn holds_slots(&self, slots: u64) -> bool {
        slots.saturating_mul(SLOT_BUILT) <= self.limit
    }

    /// Slots that may still be built, at least a few: each step gets somewhere.
    pub(crate) fn slots_left(&self) -> usize {
        const SLOTS_MIN: u64 = 16;
        let slots = self.limit.saturating_sub(self.done) / SLOT_BUILT;
        usize::try_from(slots.max(SLOTS_MIN)).unwrap_or(usize::MAX)
    }
}
