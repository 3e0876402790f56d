//! After how many accesses a block that is on the host is brought.

/// How full the card's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// Units that are in use.
    pub used: u64,
    /// Units that there are.
    pub total: u64,
    /// Whether something was evicted since the start.
    pub is_oversubscribed: bool,
}

/// When a load from a block that is on the host brings it. Until then it is read across the link. A store brings it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Migration {
    /// At the first access.
    FirstTouch,
    /// After so many accesses: what Volta's driver does for memory that is advised so.
    Always(u32),
    /// At the first access until something is evicted, then after so many.
    Oversubscribed(u32),
    /// After a number that grows as memory fills up, and with each eviction of the block (section 5.2.1).
    Dynamic {
        /// The number with which the driver is configured, t_s.
        base: u32,
        /// By what it grows beyond that once something was evicted, p.
        penalty: u32,
    },
    /// Never, not at a store either.
    Pinned,
}

impl Migration {
    /// The thesis's values for its experiments: t_s = 8, p = 8 (section 5.3.5).
    pub const DYNAMIC: Self = Self::Dynamic { base: 8, penalty: 8 };

    /// Accesses after which a block comes that was evicted so often; `None` if it does not come. Equation 1 for the dynamic one.
    pub fn threshold(self, fill: Fill, round_trips: u32) -> Option<u64> {
        Some(match self {
            Self::FirstTouch => 1,
            Self::Always(times) => u64::from(times.max(1)),
            Self::Oversubscribed(times) if fill.is_oversubscribed => u64::from(times.max(1)),
            Self::Oversubscribed(_) => 1,
            Self::Dynamic { base, penalty } if fill.is_oversubscribed => {
                (u64::from(base) * (u64::from(round_trips) + 1) * u64::from(penalty)).max(1)
            }
            Self::Dynamic { base, .. } => u64::from(base) * fill.used / fill.total.max(1) + 1,
            Self::Pinned => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_threshold_has_the_values_of_the_thesis() {
        let rule = Migration::Dynamic { base: 8, penalty: 2 };
        let at = |used, is_oversubscribed, trips| {
            let fill = Fill {
                used,
                total: 1000,
                is_oversubscribed,
            };
            rule.threshold(fill, trips)
        };
        // Below an eighth, just before the end, at the end, beyond, and after two evictions.
        assert_eq!(at(124, false, 0), Some(1));
        assert_eq!(at(125, false, 0), Some(2));
        assert_eq!(at(999, false, 0), Some(8));
        assert_eq!(at(1000, false, 0), Some(9));
        assert_eq!(at(1000, true, 0), Some(16));
        assert_eq!(at(1000, true, 2), Some(48));
    }

    #[test]
    fn fixed_thresholds() {
        let fill = |is_oversubscribed| Fill {
            used: 1,
            total: 2,
            is_oversubscribed,
        };
        assert_eq!(Migration::FirstTouch.threshold(fill(true), 9), Some(1));
        assert_eq!(Migration::Always(8).threshold(fill(false), 0), Some(8));
        assert_eq!(Migration::Oversubscribed(8).threshold(fill(false), 0), Some(1));
        assert_eq!(Migration::Oversubscribed(8).threshold(fill(true), 0), Some(8));
        assert_eq!(Migration::Pinned.threshold(fill(false), 0), None);
    }
}
