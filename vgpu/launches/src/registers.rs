//! What methods of a class have set, as far as it matters.

/// Values of some methods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// Which methods, as runs of first and last.
    kept: &'static [(u16, u16)],
    values: Vec<Option<u32>>,
    /// Values that were never set count as zero, as long as nothing can have set them unseen.
    is_lost: bool,
}

impl Registers {
    pub(crate) fn new(kept: &'static [(u16, u16)]) -> Self {
        let words = kept.iter().map(|(first, last)| usize::from(last - first) / 4 + 1);
        Self {
            kept,
            values: vec![None; words.sum()],
            is_lost: false,
        }
    }

    fn place(&self, method: u16) -> Option<usize> {
        let mut before = 0;
        for (first, last) in self.kept {
            if (*first..=*last).contains(&method) {
                return Some(before + usize::from(method - first) / 4);
            }
            before += usize::from(last - first) / 4 + 1;
        }
        None
    }

    pub(crate) fn set(&mut self, method: u16, value: u32) {
        if let Some(place) = self.place(method) {
            self.values[place] = Some(value);
        }
    }

    /// The value, `None` if it is not known.
    pub(crate) fn get(&self, method: u16) -> Option<u32> {
        let place = self.place(method)?;
        self.values[place].or((!self.is_lost).then_some(0))
    }

    /// The value if a method has set it for certain.
    pub(crate) fn set_value(&self, method: u16) -> Option<u32> {
        self.values[self.place(method)?]
    }

    /// Whether values may have been set unseen.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The address in two methods, the high word first.
    pub(crate) fn address(&self, high: u16) -> Option<u64> {
        let (high, low) = (self.get(high)?, self.get(high + 4)?);
        Some((u64::from(high) << 32 | u64::from(low)) & ((1 << fermi_spec::addr::VA_BITS) - 1))
    }

    /// Nothing is known until it is set again.
    pub(crate) fn lose(&mut self) {
        self.values.fill(None);
        self.is_lost = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_values_come_back_when_they_are_set() {
        let mut registers = Registers::new(&[(0x100, 0x104), (0x200, 0x200)]);
        registers.set(0x200, 5);
        registers.set(0x300, 6);
        assert_eq!(
            [0x100, 0x200, 0x300].map(|m| registers.get(m)),
            [Some(0), Some(5), None]
        );
        registers.lose();
        registers.set(0x104, 0x1000);
        assert_eq!(
            [0x100, 0x104, 0x200].map(|m| registers.get(m)),
            [None, Some(0x1000), None]
        );
        assert_eq!(registers.address(0x100), None);
    }
}
