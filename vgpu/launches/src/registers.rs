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

/// Methods of a class have numbers below.
const METHODS_END: u16 = fermi_spec::graphics::front_end::MACRO_CALL;
/// Most values that are kept of a class.
const VALUES_MAX: usize = 32;

/// Methods whose values are kept.
#[derive(Debug)]
pub(crate) struct Kept {
    /// By method / 4: one more than the place of its value, or 0.
    places: [u8; METHODS_END as usize / 4],
}

impl Kept {
    /// Methods as runs of first and last.
    pub(crate) const fn new(runs: &[(u16, u16)]) -> Self {
        let mut places = [0; METHODS_END as usize / 4];
        let (mut run, mut place) = (0, 0);
        while run < runs.len() {
            let (first, last) = runs[run];
            let mut method = first;
            while method <= last {
                place += 1;
                places[method as usize / 4] = place;
                method += 4;
            }
            run += 1;
        }
        assert!(place as usize <= VALUES_MAX, "there is no room for all values");
        Self { places }
    }

    #[inline]
    fn place(&self, method: u16) -> Option<usize> {
        let place = *self.places.get(usize::from(method) / 4)?;
        usize::from(place).checked_sub(1)
    }
}

/// Values of some methods. Copies of it are made all the time, so it is small.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    kept: &'static Kept,
    values: [u32; VALUES_MAX],
    /// A bit for each value that a method has set, and for each that is not known. Never both.
    set: u32,
    unknown: u32,
}

impl Registers {
    pub(crate) const fn new(kept: &'static Kept) -> Self {
        Self {
            kept,
            values: [0; VALUES_MAX],
            set: 0,
            unknown: 0,
        }
    }

    /// Sets a value; `None`: to something that is not known. Whether it is kept.
    #[inline]
    pub(crate) fn set(&mut self, method: u16, value: Option<u32>) -> bool {
        let Some(place) = self.kept.place(method) else {
            return false;
        };
        let bit = 1 << place;
        match value {
            Some(value) => {
                self.values[place] = value;
                (self.set, self.unknown) = (self.set | bit, self.unknown & !bit);
            }
            None => (self.set, self.unknown) = (self.set & !bit, self.unknown | bit),
        }
        true
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
        match self.kept.place(method) {
            Some(place) if self.set >> place & 1 != 0 => Value::Set(self.values[place]),
            Some(place) if self.unknown >> place & 1 == 0 => Value::Untouched,
            _ => Value::Unknown,
        }
    }

    /// The address in two methods, the high word first.
    pub(crate) fn address(&self, high: u16) -> Option<u64> {
        let (high, low) = (self.get(high)?, self.get(high + 4)?);
        Some((u64::from(high) << 32 | u64::from(low)) & ((1 << fermi_spec::addr::VA_BITS) - 1))
    }

    /// Nothing is known until it is set again.
    pub(crate) fn lose(&mut self) {
        (self.set, self.unknown) = (0, u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_values_come_back_when_they_are_set() {
        static KEPT: Kept = Kept::new(&[(0x100, 0x104), (0x200, 0x200)]);
        let mut registers = Registers::new(&KEPT);
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
