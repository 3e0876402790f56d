//! What a memory is, what its policy is, and who moves its blocks.

use std::ops::Range;

use crate::Block;

/// Moves blocks, and signs them.
///
/// A manager has one call under way at a time, and what it asks for is done when the call returns.
pub trait Card {
    /// What the maintenance kernel makes of a block's bytes (section 5.2). Equal ones mean equal bytes.
    type Signature: Clone + Eq;

    /// Brings a block from the host.
    fn load(&mut self, block: Block);

    /// Gives a block memory on the card that holds zeros: the host has no bytes for it.
    fn clear(&mut self, block: Block);

    /// Takes a block's memory on the card for another one, and brings its bytes to the host before, if `writes_back`.
    fn evict(&mut self, block: Block, writes_back: bool);

    /// Takes a block's memory on the card away whose bytes nobody wants.
    fn discard(&mut self, block: Block);

    /// Signs blocks that are on the card, by one launch.
    fn sign(&mut self, blocks: &[Block]) -> Vec<Self::Signature>;

    /// Copies an owner's bytes to a block that is on the card.
    fn copy_in(&mut self, owner: u32, bytes: Range<u64>);

    /// Copies bytes of a block that is on the card to its owner.
    fn copy_out(&mut self, owner: u32, bytes: Range<u64>);
}

/// Who is evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evict {
    /// The block that was used least recently.
    Lru,
    /// LRU-COST: the cheapest of the oldest ones.
    LruCost {
        /// Most of the stack that the COST section takes, in percent: the paper's selection factor, 20.
        percent: u32,
    },
}

/// How it is known that the host has a block's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clean {
    /// It is not: each block is written back.
    Never,
    /// A block whose signature is that of the host's bytes is clean.
    Signatures {
        /// An object whose first, middle and last blocks are dirty is dirty as a whole.
        uniformity: bool,
        /// Blocks are signed when they come, too, while owners have more memory than the card. In the paper a block's first signature is
        /// that of its first eviction, which therefore writes it back.
        at_load: bool,
    },
    /// By what launches store to, as they say. An owner whose launches lie loses bytes of its own.
    Sets,
}

/// What a launch needs on the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkingSet {
    /// All memory of its owner: the paper's way without page faults.
    Context,
    /// Objects that it touches.
    Objects,
    /// Blocks that it touches.
    Blocks,
}

/// What the memory is, and what its policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Blocks that fit.
    pub capacity: u32,
    /// Bytes of a block, not 0.
    pub block_bytes: u64,
    /// Copies to the card are carried out at once, not when a launch needs them.
    pub is_eager: bool,
    /// Who is evicted.
    pub evict: Evict,
    /// How clean blocks are known.
    pub clean: Clean,
    /// Whether blocks that their owner is expected to overwrite or to copy out are evicted last.
    pub expects: bool,
    /// What a launch needs.
    pub working_set: WorkingSet,
}

impl Setup {
    /// The paper's GDM, with the objects of a launch known.
    pub const fn gdm(capacity: u32, block_bytes: u64) -> Self {
        Self {
            capacity,
            block_bytes,
            is_eager: false,
            evict: Evict::LruCost { percent: 20 },
            clean: Clean::Signatures {
                uniformity: true,
                at_load: false,
            },
            expects: true,
            working_set: WorkingSet::Objects,
        }
    }

    /// GDM-Base (section 6.4): copies at once, LRU, always writing back.
    pub const fn base(capacity: u32, block_bytes: u64) -> Self {
        Self {
            is_eager: true,
            evict: Evict::Lru,
            clean: Clean::Never,
            expects: false,
            ..Self::gdm(capacity, block_bytes)
        }
    }
}

/// Bytes that a launch reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Addresses in the owner's memory.
    pub bytes: Range<u64>,
    /// It may store there.
    pub stores: bool,
}

/// What is to run next, and where it may reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Whose it is.
    pub owner: u32,
    /// What it reaches.
    pub touches: Vec<Touch>,
}

/// A launch whose working set is there and stays until [`Manager::finish`](crate::Manager::finish).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Prepared {
    /// Its blocks on the card, and whether it may store to them.
    pub blocks: Vec<(Block, bool)>,
    /// Those for which there is no room: they stay on the host, where the GPU reaches them.
    pub remote: Vec<(Block, bool)>,
}
