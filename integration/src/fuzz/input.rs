//! Bytes of an input as numbers.

use fermi_model::CopyMicrocode;

/// The rest of an input. Behind its end everything is zero.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes, fewer at the end.
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A length in a byte, of which `mask` selects bits, and as many bytes.
    pub(super) fn counted(&mut self, mask: u8) -> &'a [u8] {
        let count = self.u8() & mask;
        self.bytes(usize::from(count))
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Microcode that the copy engines have.
    pub(super) fn microcode(&mut self) -> CopyMicrocode {
        self.choose(&[
            CopyMicrocode::Uploaded,
            CopyMicrocode::Nouveau,
            CopyMicrocode::Nvidia,
        ])
    }

    /// One of `choices`, which are not empty.
    pub(super) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u16()) % choices.len()]
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        u64::from(self.u32()) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_read_as_zero() {
        let mut input = Input::new(&[1, 2, 3]);
        assert_eq!((input.u16(), input.u32(), input.is_empty()), (0x201, 3, true));
        assert_eq!(input.u64(), 0);
    }
}
