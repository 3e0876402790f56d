//! Counts of what clients had drawn, over all times that the card was powered on.

use std::fmt;

use fermi_model::Counters;

/// Clears of 3D, and what had no effect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GraphicsCounts {
    clears: u64,
    cleared_bytes: u64,
    undrawn: u64,
}

impl GraphicsCounts {
    /// Those of a card since it was powered on.
    pub(super) fn add(&mut self, counters: &Counters) {
        self.clears += counters.clears;
        self.cleared_bytes += counters.cleared_bytes;
        self.undrawn += counters.unmodelled_draws;
    }
}

impl fmt::Display for GraphicsCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clears,
            cleared_bytes,
            undrawn,
        } = self;
        write!(
            f,
            "graphics: {clears} clears of {cleared_bytes} bytes; draws without effect: {undrawn}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_two_times_add_up() {
        let mut counts = GraphicsCounts::default();
        let counters = Counters {
            clears: 2,
            cleared_bytes: 300,
            unmodelled_draws: 4,
            ..Counters::default()
        };
        counts.add(&counters);
        counts.add(&counters);
        assert_eq!(
            counts.to_string(),
            "graphics: 4 clears of 600 bytes; draws without effect: 8"
        );
    }
}
