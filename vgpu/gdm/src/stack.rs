//! Blocks on the card, in the order of LRU-COST (section 4.4, Figure 4).

use std::collections::{BTreeMap, BTreeSet};

use crate::Block;

/// What an eviction of a block would cost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Cost {
    /// The host has the same bytes.
    Clean,
    /// A copy to the host.
    Dirty,
    /// Nothing soon: its owner is expected to overwrite it, or to copy it out.
    Expected,
}

/// Two sections: at the bottom those whose cost is known, cheapest first; above them all others by their last use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    stamps: BTreeMap<Block, u64>,
    by_age: BTreeSet<(u64, Block)>,
    cost: BTreeSet<(Cost, u64, Block)>,
    /// Where each of `cost` is in it.
    costs: BTreeMap<Block, Cost>,
    clock: u64,
}

impl Stack {
    pub(crate) fn len(&self) -> usize {
        self.stamps.len()
    }

    pub(crate) fn has(&self, block: Block) -> bool {
        self.stamps.contains_key(&block)
    }

    /// Puts a block on the top.
    pub(crate) fn used(&mut self, block: Block) {
        self.remove(block);
        self.clock += 1;
        self.stamps.insert(block, self.clock);
        self.by_age.insert((self.clock, block));
    }

    /// The block is on the card no more.
    pub(crate) fn remove(&mut self, block: Block) {
        if let Some(stamp) = self.stamps.remove(&block) {
            self.by_age.remove(&(stamp, block));
            if let Some(cost) = self.costs.remove(&block) {
                self.cost.remove(&(cost, stamp, block));
            }
        }
    }

    /// Blocks by age, the oldest first.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = Block> {
        self.by_age.iter().map(|(_, block)| *block)
    }

    /// The COST section, the bottom first.
    pub(crate) fn cheapest(&self) -> impl Iterator<Item = (Block, Cost)> {
        self.cost.iter().map(|(cost, _, block)| (*block, *cost))
    }

    /// Puts a block into the COST section, or to where its cost is now.
    pub(crate) fn place(&mut self, block: Block, cost: Cost) {
        let Some(stamp) = self.stamps.get(&block).copied() else {
            return;
        };
        if let Some(before) = self.costs.insert(block, cost) {
            self.cost.remove(&(before, stamp, block));
        }
        self.cost.insert((cost, stamp, block));
    }

    /// Whether a block is in the COST section.
    pub(crate) fn is_placed(&self, block: Block) -> bool {
        self.costs.contains_key(&block)
    }
}
