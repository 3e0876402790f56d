//! Instruction words from their fields.

/// The instruction NOP with an open guard.
pub(super) const NOP: u64 = 0x4000_0000_0000_1de4;
/// Guard of an instruction that all active lanes execute.
pub(super) const ALWAYS: u32 = 7;

/// A word in the making.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// A five-bit opcode of a class, guard always.
    pub(super) fn five(class: u32, opcode: u32) -> Self {
        Self(u64::from(class)).with(63, 59, opcode).guarded(ALWAYS)
    }

    /// A six-bit opcode.
    pub(super) fn six(class: u32, opcode: u32) -> Self {
        Self(u64::from(class)).with(63, 58, opcode).guarded(ALWAYS)
    }

    /// A branch, a push or a leave: class 7, condition "always".
    pub(super) fn control(opcode: u32) -> Self {
        Self::five(7, opcode).with(9, 5, 15)
    }

    /// Sets bits `high..=low`.
    #[must_use]
    pub(super) fn with(self, high: u32, low: u32, value: u32) -> Self {
        let mask = ((1u64 << (high - low + 1)) - 1) << low;
        Self(self.0 & !mask | u64::from(value) << low & mask)
    }

    #[must_use]
    pub(super) fn or(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    /// Predicate number, 8 and above negated.
    #[must_use]
    pub(super) fn guarded(self, guard: u32) -> Self {
        self.with(13, 10, guard)
    }

    #[must_use]
    pub(super) fn dst(self, register: u32) -> Self {
        self.with(19, 14, register)
    }

    #[must_use]
    pub(super) fn a(self, register: u32) -> Self {
        self.with(25, 20, register)
    }

    #[must_use]
    pub(super) fn b(self, register: u32) -> Self {
        self.with(31, 26, register)
    }

    #[must_use]
    pub(super) fn c(self, register: u32) -> Self {
        self.with(54, 49, register)
    }

    /// The third predicate as 52:49, "true" unless set.
    #[must_use]
    pub(super) fn third(self, predicate: u32) -> Self {
        self.with(52, 49, predicate)
    }

    /// Displacement of a relative branch at instruction `from` to instruction `to`.
    #[must_use]
    pub(super) fn relative(self, from: usize, to: usize) -> Self {
        let displacement = 8 * (to as i64 - from as i64 - 1);
        self.with(49, 26, displacement as u32)
    }
}
