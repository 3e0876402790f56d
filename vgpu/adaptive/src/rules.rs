//! What a policy does: what it brings, what it evicts, and when.

use crate::pattern::Pattern;
use crate::threshold::Migration;
use crate::tree::Spread;

/// What comes with a unit that is brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bring {
    /// Nothing. With units of a block this is the thesis's sequential-local prefetcher, SL_p, with units of a page none.
    Alone,
    /// Another unit of the same large page by chance, R_p.
    Random,
    /// What the tree of the large page says, TBN_p.
    Tree(Spread),
}

/// What is evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// A unit by chance, R_e.
    Random,
    /// The unit that was used least recently.
    Oldest,
    /// Of the large page that was used least recently the unit that was, SL_e.
    Local,
    /// That unit, and what the tree of its large page lets go with it, TBN_e.
    Tree,
    /// The large page that was used least recently, whole: the driver's way.
    Large,
    /// The large page with the fewest accesses, whole; those without a store come first, and of two alike the one that was used
    /// least recently (section 5.2.2).
    Coldest,
}

/// A policy for an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// What comes with a unit.
    pub bring: Bring,
    /// What goes when room is needed.
    pub evict: Evict,
    /// When a unit comes.
    pub migration: Migration,
}

impl Rules {
    /// The driver's: the tree, and whole large pages. What the engine starts with (section 6.2.3).
    pub const DRIVER: Self = Self {
        bring: Bring::Tree(Spread::Balance),
        evict: Evict::Large,
        migration: Migration::FirstTouch,
    };
    /// The tree both ways (section 4.2.2).
    pub const TREES: Self = Self {
        evict: Evict::Tree,
        ..Self::DRIVER
    };

    /// The policy engine's choice by how an allocation is used (section 6.2.3).
    pub const fn of(pattern: Pattern) -> Self {
        match pattern {
            Pattern::Undecided | Pattern::Streaming => Self::DRIVER,
            Pattern::Regular => Self::TREES,
            Pattern::Random => Self {
                bring: Bring::Alone,
                evict: Evict::Local,
                migration: Migration::Pinned,
            },
            Pattern::Mixed => Self {
                migration: Migration::DYNAMIC,
                ..Self::TREES
            },
        }
    }
}

/// Who chooses the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// These, for all allocations and always.
    Fixed(Rules),
    /// The engine: [`Rules::DRIVER`] until memory is full, then [`Rules::of`] what was seen of each allocation.
    ByPattern,
}
