//! Fair shares: how many bytes of VRAM each VM should hold, as a pure function of what all want and may have.
//!
//! It is weighted max-min fairness with bounds. Think of water that rises in vessels as wide as the VMs' weights: no VM
//! gets more than it wants or may have, and nobody's share can grow but at the cost of somebody whose share is, by
//! weight, no larger. What is protected comes first: what cannot be taken at all, then `min`, then `low`. Each of these
//! layers is filled for all before the next one begins, and the layer for which there is too little is filled evenly.

/// One VM, as the shares see it; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Party {
    /// Share of what is contended, relative to the others'. At least 1.
    pub(crate) weight: u32,
    /// What it holds and cannot lose now.
    pub(crate) fixed: u64,
    /// Never taken from it.
    pub(crate) min: u64,
    /// Taken from it only where nothing else is left.
    pub(crate) low: u64,
    /// Most that it may hold; `min` and what is fixed go before it.
    pub(crate) cap: u64,
    /// What it holds and uses, and what it would like to.
    pub(crate) wanted: u64,
}

impl Party {
    /// The upper ends of the three layers.
    fn layers(&self) -> [u64; 3] {
        let min = self.min.min(self.wanted).max(self.fixed);
        let capped = self.wanted.min(self.cap).max(min);
        [min, self.low.max(min).min(capped), capped]
    }
}

/// The share of each, in their order: the exact share rounded down, so a whole number of bytes is above it exactly if it
/// is above the exact one. Their sum is at most `capacity`, unless more than that is fixed.
pub(crate) fn shares(capacity: u64, parties: &[Party]) -> Vec<u64> {
    let mut lower: Vec<u64> = parties.iter().map(|party| party.fixed).collect();
    for layer in 0..3 {
        let upper: Vec<u64> = parties.iter().map(|party| party.layers()[layer]).collect();
        let sum: u128 = upper.iter().copied().map(u128::from).sum();
        if sum > u128::from(capacity) {
            let weights = parties.iter().map(|party| party.weight.max(1));
            return fill(capacity, &weights.collect::<Vec<_>>(), &lower, &upper);
        }
        lower = upper;
    }
    lower
}

/// Where the water in a vessel begins or ceases to rise: at the level `bytes / weight`.
#[derive(Clone, Copy)]
struct Edge {
    bytes: u64,
    weight: u32,
    begins: bool,
}

/// Bytes between `lower` and `upper` at the level where their sum is `capacity`. The sum of all `upper` is more.
fn fill(capacity: u64, weights: &[u32], lower: &[u64], upper: &[u64]) -> Vec<u64> {
    let mut edges = Vec::with_capacity(2 * weights.len());
    for ((&weight, &lower), &upper) in weights.iter().zip(lower).zip(upper) {
        for (bytes, begins) in [(lower, true), (upper, false)] {
            edges.push(Edge {
                bytes,
                weight,
                begins,
            });
        }
    }
    // Beginnings before ends at the same level, so that the width is never negative.
    edges.sort_by(|a, b| {
        let left = u128::from(a.bytes) * u128::from(b.weight);
        let right = u128::from(b.bytes) * u128::from(a.weight);
        left.cmp(&right).then(b.begins.cmp(&a.begins))
    });
    // What stands still holds `still` bytes; what rises is `width` wide.
    let mut still: u128 = lower.iter().copied().map(u128::from).sum();
    let mut width: u128 = 0;
    let capacity = u128::from(capacity);
    for edge in edges {
        let (bytes, weight) = (u128::from(edge.bytes), u128::from(edge.weight));
        // The sum of all is `still + width * level`, and the level here is `bytes / weight`.
        if width > 0 && still * weight + width * bytes >= capacity * weight {
            break;
        }
        match edge.begins {
            true => (still, width) = (still - bytes, width + weight),
            false => (still, width) = (still + bytes, width - weight),
        }
    }
    let rising = capacity.saturating_sub(still);
    let parties = weights.iter().zip(lower).zip(upper);
    let share = |((&weight, &lower), &upper): ((&u32, &u64), &u64)| {
        let level = (u128::from(weight) * rising).checked_div(width).unwrap_or(0);
        u64::try_from(level).unwrap_or(u64::MAX).clamp(lower, upper)
    };
    parties.map(share).collect()
}

#[cfg(test)]
pub(crate) mod tests;
