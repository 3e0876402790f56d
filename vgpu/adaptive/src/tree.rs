//! The tree of a large page: what to bring around a block that is wanted, and what to evict around one that goes.

/// When a tree brings more than the block that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// From the block's parent up, a node of which more than half is valid has its emptier child filled up to what the fuller one has. What
    /// comes so counts for the nodes above (thesis, section 2.2.2).
    Balance,
    /// The largest node that holds the block and of which at least 51 % is valid comes whole. What comes so counts for nobody: the rule of
    /// NVIDIA's open kernel module.
    Largest,
}

/// Least share of a node for [`Spread::Largest`], in percent.
const LARGEST_PERCENT: u32 = 51;
/// The root of a tree.
const ROOT: usize = 1;

/// A full binary tree over the blocks of a large page, or of what is left of an allocation behind its last one.
///
/// A block counts as valid from the moment at which it is to come, so that two faults of one group do not bring it twice.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Valid blocks below each node: the root is 1, the children of `n` are `2n` and `2n + 1`, the last half are the blocks.
    valid: Vec<u32>,
    leaves: usize,
    /// Blocks that the allocation has; those behind them are never valid.
    blocks: u32,
}

impl Tree {
    /// Over so many blocks, none of them valid. A number that is no power of two is rounded up, but the blocks that this adds never come.
    pub(crate) fn new(blocks: u32) -> Self {
        let blocks = blocks.max(1);
        let leaves = blocks.next_power_of_two() as usize;
        Self {
            valid: vec![0; 2 * leaves],
            leaves,
            blocks,
        }
    }

    /// Whether a block is valid.
    pub(crate) fn is_valid(&self, block: u32) -> bool {
        block < self.blocks && self.valid[self.leaves + block as usize] != 0
    }

    pub(crate) fn count(&self) -> u32 {
        self.valid[ROOT]
    }

    /// Whether every block is valid that there is.
    pub(crate) fn is_full(&self) -> bool {
        self.count() == self.blocks
    }

    /// The valid blocks, upwards.
    pub(crate) fn valid_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.blocks).filter(|block| self.is_valid(*block))
    }

    /// One block comes, and what `spread` brings with it. The blocks that were not valid before, upwards: the one that is wanted is among them
    /// unless it was valid.
    pub(crate) fn bring(&mut self, block: u32, spread: Option<Spread>) -> Vec<u32> {
        let mut came = Vec::new();
        if block >= self.blocks || self.is_valid(block) {
            return came;
        }
        self.set(block as usize, true, &mut came);
        match spread {
            None => {}
            Some(Spread::Balance) => {
                for node in self.above(block) {
                    if 2 * self.valid[node] > self.capacity(node) {
                        let [fuller, emptier] = self.children(node);
                        self.fill(emptier, self.valid[fuller], &mut came);
                    }
                }
            }
            Some(Spread::Largest) => {
                let is_enough =
                    |node: &usize| 100 * self.valid[*node] >= LARGEST_PERCENT * self.capacity(*node);
                if let Some(node) = self.above(block).filter(is_enough).last() {
                    self.fill(node, self.capacity(node), &mut came);
                }
            }
        }
        came.sort_unstable();
        came
    }

    /// One block goes, and with `spreads` what a balanced tree lets go with it: from the block's parent up, a node of which less than half is
    /// left has its fuller child lowered to what the emptier one has (section 4.1.2). The blocks that were valid before, upwards.
    pub(crate) fn evict(&mut self, block: u32, spreads: bool) -> Vec<u32> {
        let mut gone = Vec::new();
        if !self.is_valid(block) {
            return gone;
        }
        self.set(block as usize, false, &mut gone);
        if spreads {
            for node in self.above(block) {
                if 2 * self.valid[node] < self.capacity(node) {
                    let [fuller, emptier] = self.children(node);
                    self.drain(fuller, self.valid[emptier], &mut gone);
                }
            }
        }
        gone.sort_unstable();
        gone
    }

    /// Every block goes. The blocks that were valid, upwards.
    pub(crate) fn evict_all(&mut self) -> Vec<u32> {
        let mut gone = Vec::new();
        self.drain(ROOT, 0, &mut gone);
        gone.sort_unstable();
        gone
    }

    /// The nodes above a block, from its parent to the root.
    fn above(&self, block: u32) -> impl Iterator<Item = usize> + use<> {
        let leaf = self.leaves + block as usize;
        std::iter::successors(Some(leaf / 2), |node| Some(node / 2)).take_while(|node| *node >= ROOT)
    }

    /// Blocks below a node, those included that the allocation has not.
    fn capacity(&self, node: usize) -> u32 {
        let depth = node.ilog2();
        self.leaves as u32 >> depth
    }

    /// Blocks below a node that may be valid.
    fn room(&self, node: usize) -> u32 {
        let capacity = self.capacity(node);
        let first = (node as u32 - (1 << node.ilog2())) * capacity;
        self.blocks.saturating_sub(first).min(capacity)
    }

    /// Children of a node: the one with more valid blocks, then the other; of two alike the left one is first.
    fn children(&self, node: usize) -> [usize; 2] {
        let [left, right] = [2 * node, 2 * node + 1];
        match self.valid[right] > self.valid[left] {
            true => [right, left],
            false => [left, right],
        }
    }

    /// Makes so many blocks below a node valid as `target` says, or as many as there are, evenly on both sides.
    fn fill(&mut self, node: usize, target: u32, came: &mut Vec<u32>) {
        let target = target.min(self.room(node));
        if self.valid[node] >= target {
            return;
        }
        if node >= self.leaves {
            self.set(node - self.leaves, true, came);
            return;
        }
        let [fuller, emptier] = self.children(node);
        let [first, second] = match 2 * self.valid[fuller] >= target {
            true => [fuller, emptier],
            false => [2 * node, 2 * node + 1],
        };
        self.fill(first, target.div_ceil(2), came);
        self.fill(second, target.saturating_sub(self.valid[first]), came);
        // The other one may lack the room.
        self.fill(first, target.saturating_sub(self.valid[second]), came);
    }

    /// Leaves so many valid blocks below a node as `target` says, evenly on both sides.
    fn drain(&mut self, node: usize, target: u32, gone: &mut Vec<u32>) {
        if self.valid[node] <= target {
            return;
        }
        if node >= self.leaves {
            self.set(node - self.leaves, false, gone);
            return;
        }
        let [fuller, emptier] = self.children(node);
        let has = self.valid[emptier];
        if 2 * has <= target {
            self.drain(fuller, target - has, gone);
            return;
        }
        let [left, right] = [2 * node, 2 * node + 1];
        self.drain(left, target / 2, gone);
        self.drain(right, target - self.valid[left], gone);
    }

    fn set(&mut self, block: usize, to: bool, changed: &mut Vec<u32>) {
        let leaf = self.leaves + block;
        if (self.valid[leaf] != 0) == to {
            return;
        }
        let nodes = std::iter::successors(Some(leaf), |node| Some(node / 2));
        for node in nodes.take_while(|node| *node >= ROOT) {
            match to {
                true => self.valid[node] += 1,
                false => self.valid[node] -= 1,
            }
        }
        changed.push(block as u32);
    }
}

/// Blocks that follow each other, which one transfer moves.
pub fn runs(blocks: &[u32]) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
    blocks
        .chunk_by(|one, next| one + 1 == *next)
        .filter_map(|run| Some(*run.first()?..run.last()? + 1))
}

#[cfg(test)]
mod tests;
