//! How an allocation is used, told from the blocks that came and were used, kernel by kernel.

use std::collections::BTreeSet;

/// How an allocation is used (thesis, section 6.2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Pattern {
    /// Too little was seen.
    #[default]
    Undecided,
    /// Block after block, each once.
    Streaming,
    /// Block after block, again in later kernels.
    Regular,
    /// In no order.
    Random,
    /// Block after block in some kernels, in no order in others.
    Mixed,
}

/// What was seen of an allocation in one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    /// Three quarters of the blocks are at most two from the one before.
    pub(crate) is_linear: bool,
    /// Three quarters of the blocks were used in an earlier kernel too.
    pub(crate) is_again: bool,
}

impl Pattern {
    /// The pattern after one more kernel. Figure 28 of the thesis shows that there are such transitions, not all of them; these are ours:
    ///
    /// | from | linear, new | linear, again | in no order |
    /// |---|---|---|---|
    /// | undecided | streaming | regular | random |
    /// | streaming | streaming | regular | mixed |
    /// | regular | regular | regular | mixed |
    /// | random | mixed | mixed | random |
    /// | mixed | mixed | mixed | mixed |
    ///
    /// A mixed allocation of which four kernels in a row were alike is begun anew: what a program did at its start is past.
    pub(crate) fn after(self, sight: Sight) -> Self {
        match (self, sight.is_linear, sight.is_again) {
            (Self::Undecided | Self::Streaming, true, false) => Self::Streaming,
            (Self::Undecided | Self::Streaming, true, true) | (Self::Regular, true, _) => Self::Regular,
            (Self::Undecided | Self::Random, false, _) => Self::Random,
            (Self::Streaming | Self::Regular, false, _) | (Self::Random, true, _) | (Self::Mixed, _, _) => {
                Self::Mixed
            }
        }
    }
}

/// Fewest steps from a block to the next that tell anything.
const STEPS_MIN: usize = 8;
/// Kernels in a row that are alike, after which a mixed allocation is judged by them alone.
const ALIKE_MIN: u32 = 4;
/// Longest step that still is one block after another: warps run side by side, and neighbours share their edges.
const STEP_MAX: u32 = 2;

/// What was seen of one allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Blocks in the order of each kernel's first use of them, since the last verdict: of the kernel under way, and of those before it that used too few.
    order: Vec<u32>,
    /// Those of them that an earlier kernel had used.
    again: usize,
    in_kernel: BTreeSet<u32>,
    earlier: BTreeSet<u32>,
    pattern: Pattern,
    /// Whether the last verdicts were linear, and how many were the same.
    alike: (bool, u32),
}

impl History {
    /// A block is used.
    pub(crate) fn used(&mut self, block: u32) {
        if self.in_kernel.insert(block) {
            self.order.push(block);
            self.again += usize::from(self.earlier.contains(&block));
        }
    }

    /// The kernel is over: what was used is judged, if it is enough.
    pub(crate) fn kernel_ends(&mut self) {
        if let Some(sight) = self.sight() {
            self.alike = match self.alike {
                (is_linear, count) if is_linear == sight.is_linear => (is_linear, count.saturating_add(1)),
                _ => (sight.is_linear, 1),
            };
            self.pattern = self.pattern.after(sight);
            if self.pattern == Pattern::Mixed && self.alike.1 >= ALIKE_MIN {
                self.pattern = Pattern::Undecided.after(sight);
            }
            self.order.clear();
            self.again = 0;
        }
        self.earlier.append(&mut self.in_kernel);
    }

    /// The pattern, with what the kernel under way has shown.
    pub(crate) fn pattern(&self) -> Pattern {
        self.sight()
            .map_or(self.pattern, |sight| self.pattern.after(sight))
    }

    fn sight(&self) -> Option<Sight> {
        let steps = self.order.len().saturating_sub(1);
        if steps < STEPS_MIN {
            return None;
        }
        let is_near = |pair: &&[u32]| pair[0].abs_diff(pair[1]) <= STEP_MAX;
        let linear = self.order.windows(2).filter(is_near).count();
        Some(Sight {
            is_linear: 4 * linear >= 3 * steps,
            is_again: 4 * self.again >= 3 * self.order.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(kernels: &[&[u32]]) -> Pattern {
        let mut history = History::default();
        for kernel in kernels {
            kernel.iter().for_each(|block| history.used(*block));
            history.kernel_ends();
        }
        history.pattern()
    }

    const SCATTERED: [u32; 12] = [90, 3, 55, 21, 70, 8, 33, 99, 1, 64, 17, 42];

    fn line(from: u32) -> Vec<u32> {
        (from..from + 20).collect()
    }

    #[test]
    fn patterns_of_the_thesis_are_told_apart() {
        assert_eq!(after(&[&line(0)]), Pattern::Streaming);
        assert_eq!(after(&[&line(0), &line(20)]), Pattern::Streaming);
        assert_eq!(after(&[&line(0), &line(0)]), Pattern::Regular);
        assert_eq!(after(&[&SCATTERED, &SCATTERED]), Pattern::Random);
        assert_eq!(after(&[&line(0), &SCATTERED]), Pattern::Mixed);
        assert_eq!(after(&[&SCATTERED, &line(0), &line(0)]), Pattern::Mixed);
        // A table is filled, then used by chance for good.
        let updates = [&line(0)[..], &SCATTERED, &SCATTERED, &SCATTERED, &SCATTERED];
        assert_eq!(after(&updates[..4]), Pattern::Mixed);
        assert_eq!(after(&updates), Pattern::Random);
    }

    #[test]
    fn few_blocks_decide_nothing() {
        assert_eq!(after(&[&[1, 2, 3], &[90, 40, 10]]), Pattern::Undecided);
        assert_eq!(after(&[&line(0), &[90, 10, 40]]), Pattern::Streaming);
    }

    /// A plan may split one pass over memory into many small launches.
    #[test]
    fn small_kernels_are_judged_together() {
        let pass: Vec<Vec<u32>> = (0..6).map(|at| (3 * at..3 * at + 4).collect()).collect();
        let once: Vec<&[u32]> = pass.iter().map(Vec::as_slice).collect();
        // They share their edges, which is no second pass.
        assert_eq!(after(&once), Pattern::Streaming);
        assert_eq!(after(&[&once[..], &once].concat()), Pattern::Regular);
    }

    #[test]
    fn block_that_a_kernel_uses_twice_is_not_used_again() {
        let twice: Vec<u32> = line(0).into_iter().flat_map(|block| [block, block]).collect();
        assert_eq!(after(&[&twice]), Pattern::Streaming);
    }

    #[test]
    fn kernel_under_way_counts() {
        let mut history = History::default();
        line(0).iter().for_each(|block| history.used(*block));
        assert_eq!(history.pattern(), Pattern::Streaming);
    }
}
