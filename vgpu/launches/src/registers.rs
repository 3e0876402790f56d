//! What methods of a class have set, as far as it matters.

/// Value of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// It was never set: it counts as zero.
    Untouched,
    /// It may have been set, unseen or to something that is not known.
    Unknown,
    /// A method has set it.
    Set(u32),
}

/// Values of some methods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// Which methods, as runs of first and last.
    kept: &'static [(u16, u16)],
    values: Vec<Value>,
}

impl Registers {
    pub(crate) fn new(kept: &'static [(u16, u16)]) -> Self {
        let words = kept.iter().map(|(first, last)| usize::from(last - first) / 4 + 1);
        Self {
            kept,
            values: vec![Value::Untouched; words.sum()],
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

    /// Sets a value; `None`: to something that is not known.
    pub(crate) fn set(&mut self, method: u16, value: Option<u32>) {
        if let Some(place) = self.place(method) {
            self.values[place] = value.map_or(Value::Unknown, Value::Set);
        }
    }

    /// The value, `None` if it is not known.
    pub(crate) fn get(&self, method: u16) -> Option<u32> {
        match self.value(method) {
            Value::Untouched => Some(0),
            Value::Unknown => None,
            Value::Set(value) => Some(value),
        }
    }

    /// The value, and whether a method has set it.
    pub(crate) fn value(&self, method: u16) -> Value {
        self.place(method)
            .map_or(Value::Unknown, |place| self.values[place])
    }

    /// The address in two methods, the high word first.
    pub(crate) fn address(&self, high: u16) -> Option<u64> {
        let (high, low) = (self.get(high)?, self.get(high + 4)?);
        Some((u64::from(high) << 32 | u64::from(low)) & ((1 << fermi_spec::addr::VA_BITS) - 1))
    }

    /// Nothing is known until it is set again.
    pub(crate) fn lose(&mut self) {
        self.values.fill(Value::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_values_come_back_when_they_are_set() {
        let mut registers = Registers::new(&[(0x100, 0x104), (0x200, 0x200)]);
        registers.set(0x200, Some(5));
        registers.set(0x300, Some(6));
        assert_eq!(
            [0x100, 0x200, 0x300].map(|m| registers.get(m)),
            [Some(0), Some(5), None]
        );
        registers.lose();
        registers.set(0x104, Some(0x1000));
        assert_eq!(
            [0x100, 0x104, 0x200].map(|m| registers.get(m)),
            [None, Some(0x1000), None]
        );
        assert_eq!(registers.address(0x100), None);
    }
}
