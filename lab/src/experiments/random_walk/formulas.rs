//! Expected steps of random walks: the paper's formulas, and an exact one for words.
//!
//! T pages, A of them free before the launch, N lanes that take one each; w pages a word. The paper treats the lanes as if
//! one came after the other (section 3.2.2). That changes nothing of the sum of steps: each draw finds a free page with
//! the chance of its moment, whoever draws, and each success takes one.
//!
//! The sum over all lanes is therefore that of N geometric variables with the chances p(0), p(1), … p(N - 1).

/// Lanes of a warp.
const WARP: f64 = 32.0;
/// Pages of a word.
const WORD: u32 = 32;

/// A launch on a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    /// Pages of the pool (T).
    pub(super) pages: u32,
    /// Free ones before the launch (A).
    pub(super) free: u32,
    /// Lanes (N), at most as many as are free.
    pub(super) lanes: u32,
}

/// What is expected of the mean over a launch's lanes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Expected {
    pub(super) mean: f64,
    /// Standard deviation of the mean of one launch.
    pub(super) deviation: f64,
}

/// What is expected of RW-BM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ExactWords {
    /// Steps of a lane.
    pub(super) steps: f64,
    /// Bound of the most steps of a warp's lanes.
    pub(super) bound: f64,
}

/// The mean of the most draws that one of 32 lanes needs, each with such a chance: more than k with (1 - p)^k.
fn longest(chance: f64) -> f64 {
    let one_needs_more = |draws: i32| 1.0 - (1.0 - (1.0 - chance).powi(draws)).powf(WARP);
    (0..)
        .map(one_needs_more)
        .take_while(|chance| *chance > 1e-12)
        .sum()
}

impl Point {
    /// Mean and deviation where the lane behind `taken` others finds a page with such a chance at each draw.
    fn geometric(self, chance: impl Fn(f64) -> f64) -> Expected {
        let lanes = f64::from(self.lanes);
        let chances = (0..self.lanes).map(|taken| chance(taken.into()));
        let (mut sum, mut variance) = (0.0, 0.0);
        for chance in chances {
            sum += 1.0 / chance;
            variance += (1.0 - chance) / (chance * chance);
        }
        Expected {
            mean: sum / lanes,
            deviation: variance.sqrt() / lanes,
        }
    }

    /// Share of words of so many pages that have a free one, the pages being free independently of each other.
    fn chance(self, word: u32, taken: f64) -> f64 {
        let pages = f64::from(self.pages);
        1.0 - ((pages - f64::from(self.free) + taken) / pages).powi(word as i32)
    }

    /// RW's steps of a lane: T / N · (H(A) - H(A - N)), section 3.2.2, from which equation (2) follows by ln for H.
    pub(super) fn page_steps(self) -> Expected {
        self.geometric(|taken| self.chance(1, taken))
    }

    /// RW-BM's steps of a lane: equation (4).
    pub(super) fn word_steps(self) -> Expected {
        self.geometric(|taken| self.chance(WORD, taken))
    }

    /// A bound of the most steps of a warp's lanes, by the chance at the end of the launch: equation (3), and (5) for
    /// words of 32.
    pub(super) fn warp_bound(self, word: u32) -> f64 {
        longest(self.chance(word, self.lanes.into()))
    }

    /// RW-BM without the approximation of equations (4) and (5). There the pages that are left are as good as drawn anew for
    /// each lane, but a draw takes a word, not a page: words with one free page are emptied as often as fuller ones lose
    /// one. A word that was drawn k times has lost min(k, m) of its m free pages, whatever the order, and how often each is
    /// drawn does not depend on what is found. So the draws n up to the end are those for which
    /// `words · Σ P(m) · E(min(k, m)) = N`, with k Poisson of n / words and m binomial of A / T in 32; the chance at the end
    /// is `Σ P(m) · P(k < m)`.
    pub(super) fn exact_words(self) -> ExactWords {
        let words = f64::from(self.pages) / f64::from(WORD);
        let share = f64::from(self.free) / f64::from(self.pages);
        let free_of_word = binomial(WORD, share);
        // Pages that so many draws take, and the share of words that have some left.
        let after = |draws: f64| {
            let mut probability = (-draws / words).exp();
            let (mut below, mut least) = (0.0, 0.0);
            let (mut taken, mut open) = (0.0, 0.0);
            for (free, of_word) in (0u32..).zip(&free_of_word) {
                // E(min(k, m)) = P(k > 0) + P(k > 1) + … + P(k > m - 1), and `below` is P(k < m).
                taken += of_word * least;
                open += of_word * below;
                below += probability;
                least += f64::max(1.0 - below, 0.0);
                probability *= draws / words / f64::from(free + 1);
            }
            (words * taken, open)
        };
        let lanes = f64::from(self.lanes);
        let (mut low, mut high) = (lanes, lanes);
        while after(high).0 < lanes && high < 1e15 {
            high *= 2.0;
        }
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if after(middle).0 < lanes {
                low = middle;
            } else {
                high = middle;
            }
        }
        ExactWords {
            steps: high / lanes,
            bound: longest(after(high).1),
        }
    }

    /// CoRW's steps of a warp if warps come one after the other and draw no word twice: a step looks at 32 words, and is not
    /// the last one while fewer than 32 pages are found. The paper has no formula.
    pub(super) fn together_steps(self) -> f64 {
        let warps = self.lanes.div_ceil(WARP as u32);
        let steps = |warp: u32| -> f64 {
            let share = f64::from(self.free - warp * WARP as u32) / f64::from(self.pages);
            let too_few = |steps: u32| -> f64 {
                let found = binomial(WORD * WARP as u32 * steps, share);
                found.iter().take(WARP as usize).sum()
            };
            (0..).map(too_few).take_while(|chance| *chance > 1e-9).sum()
        };
        (0..warps).map(steps).sum::<f64>() / f64::from(warps.max(1))
    }

    /// Turns at a queue, section 3.2.1: (N + 1) / 2.
    pub(super) fn queue_steps(self) -> f64 {
        (f64::from(self.lanes) + 1.0) / 2.0
    }
}

/// Chances of 0 to at most 32 successes in `count` trials.
fn binomial(count: u32, chance: f64) -> Vec<f64> {
    let logs = |wins: u32| {
        let ways: f64 = (0..wins)
            .map(|at| f64::from(count - at).ln() - f64::from(at + 1).ln())
            .sum();
        ways + f64::from(wins) * chance.ln() + f64::from(count - wins) * (-chance).ln_1p()
    };
    (0..=count.min(WORD)).map(|wins| logs(wins).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, wanted: f64) -> bool {
        (value / wanted - 1.0).abs() < 1e-3
    }

    fn point(pages: u32, free: u32, lanes: u32) -> Point {
        Point { pages, free, lanes }
    }

    #[test]
    fn page_steps_are_a_difference_of_harmonic_numbers() {
        // 1000 / 2 * (1 / 10 + 1 / 9).
        assert!(near(point(1000, 10, 2).page_steps().mean, 105.5556));
        // Equation (2): T / N * ln(A / (A - N)).
        let by_logarithm = 1e6 / 5000.0 * (10_000f64 / 5000.0).ln();
        assert!(near(
            point(1_000_000, 10_000, 5000).page_steps().mean,
            by_logarithm
        ));
    }

    #[test]
    fn one_lane_needs_the_inverse_of_its_chance() {
        let point = point(1 << 20, 1 << 15, 1);
        let chance = 1.0 - (31.0f64 / 32.0).powi(32);
        assert!(near(point.word_steps().mean, 1.0 / chance));
        assert!(near(point.exact_words().steps, 1.0 / chance));
        let geometric = (1.0 - chance).sqrt() / chance;
        assert!(near(point.word_steps().deviation, geometric));
    }

    #[test]
    fn words_lose_more_than_the_papers_formula_says_as_the_pool_empties() {
        let few = point(1 << 20, 10_000, 100);
        let many = point(1 << 20, 10_000, 9000);
        assert!((few.exact_words().steps / few.word_steps().mean - 1.0).abs() < 2e-3);
        assert!(many.exact_words().steps > 1.05 * many.word_steps().mean);
        assert!((few.exact_words().bound / few.warp_bound(32) - 1.0).abs() < 5e-3);
        assert!(many.exact_words().bound > 1.05 * many.warp_bound(32));
    }

    #[test]
    fn warps_bound_is_the_maximum_of_32_geometric_variables() {
        // The same by inclusion and exclusion: the least of k such variables has the mean 1 / (1 - (1 - p)^k).
        let ways = |of: u32| {
            (0..of)
                .map(|at| f64::from(32 - at) / f64::from(at + 1))
                .product::<f64>()
        };
        let sign = |of: u32| (-1.0f64).powi(of as i32 + 1);
        let term = |of: u32| sign(of) * ways(of) / (1.0 - 0.5f64.powi(of as i32));
        let maximum: f64 = (1..=32).map(term).sum();
        assert!(near(point(1 << 20, 1 << 19, 0).warp_bound(1), maximum));
        assert!(
            point(1 << 20, 10_000, 100).warp_bound(32) < point(1 << 20, 10_000, 100).warp_bound(1) / 20.0
        );
    }

    #[test]
    fn warp_that_looks_at_32_words_needs_one_step_where_half_is_free() {
        assert!(near(point(1 << 20, 1 << 19, 32).together_steps(), 1.0));
        // 10.24 pages a step: more than three steps, and not much.
        assert!((3.2..4.2).contains(&point(1 << 20, 10_486, 32).together_steps()));
    }

    #[test]
    fn binomial_chances_are_one_together() {
        assert!(near(binomial(32, 0.3).iter().sum(), 1.0));
        assert!(near(binomial(4, 0.5)[2], 0.375));
    }
}
