//! Where the parts of an instruction word are.

/// A part of an instruction word: one or more runs of bits, the most significant run first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    runs: &'static [(u32, u32)],
}

impl Field {
    /// Bits `high..=low` of each run, the first run being the most significant of the value. At most 32 bits.
    pub const fn new(runs: &'static [(u32, u32)]) -> Self {
        Self { runs }
    }

    /// Number of bits.
    pub const fn bits(self) -> u32 {
        let mut bits = 0;
        let mut run = 0;
        while run < self.runs.len() {
            bits += self.runs[run].0 - self.runs[run].1 + 1;
            run += 1;
        }
        bits
    }

    /// The value in `word`.
    pub const fn get(self, word: u64) -> u32 {
        let mut value = 0;
        let mut run = 0;
        while run < self.runs.len() {
            let (high, low) = self.runs[run];
            let bits = high - low + 1;
            value = value << bits | word >> low & ((1 << bits) - 1);
            run += 1;
        }
        value as u32
    }

    /// The value in `word` as a two's complement number.
    pub(crate) const fn get_signed(self, word: u64) -> i32 {
        let unused = 32 - self.bits();
        (self.get(word) << unused) as i32 >> unused
    }

    /// `word` with the value set; bits of `value` beyond the field are dropped.
    #[must_use]
    pub const fn set(self, word: u64, value: u32) -> u64 {
        let mut word = word;
        let mut rest = value as u64;
        let mut run = self.runs.len();
        while run > 0 {
            run -= 1;
            let (high, low) = self.runs[run];
            let mask = (1u64 << (high - low + 1)) - 1;
            word = word & !(mask << low) | (rest & mask) << low;
            rest >>= high - low + 1;
        }
        word
    }
}

macro_rules! fields {
    ($( $(#[$doc:meta])* $name:ident = $( $high:literal : $low:literal )+ ; )*) => {
        $( $(#[$doc])* pub const $name: Field = Field::new(&[$( ($high, $low) ),+]); )*
    };
}

fields! {
    /// Class of the instruction, 0 to 7.
    CLASS = 2:0;
    /// Set in a short form.
    SHORT = 3:3;
    /// The lanes that executed join afterwards (classes 0–6).
    JOIN = 4:4;
    /// Guard: predicate register that says which lanes take part.
    GUARD = 12:10;
    /// Guard: the predicate is negated.
    GUARD_NOT = 13:13;
    /// Destination register, or the data register of a store.
    DST = 19:14;
    /// First source register, or address register.
    SRC_A = 25:20;
    /// Second source register.
    SRC_B = 31:26;
    /// Third source register.
    SRC_C = 54:49;
    /// Kind of operand B: register, constant, register with the constant in C, immediate.
    MODE_B = 47:46;
    /// Immediate of 20 bits in place of operand B.
    IMM20 = 45:26;
    /// 32-bit immediate of class 2.
    IMM32 = 57:26;
    /// Constant operand: byte offset; its lowest bit adds 16 to the bank.
    CONST_OFFSET = 41:26;
    /// Constant operand: bank.
    CONST_BANK = 45:42;
    /// Bank of an indexed constant load or a jump table.
    TABLE_BANK = 46:42;
    /// Writes the condition flags.
    SET_FLAGS = 48:48;
    /// Writes the condition flags, class 2.
    SET_FLAGS32 = 58:58;
    /// First predicate result.
    PRED_D = 19:17;
    /// Second predicate result.
    PRED_Q = 16:14;
    /// Predicate source among the low operands.
    PRED_A = 22:20;
    /// Negates the predicate of [`PRED_A`].
    PRED_A_NOT = 23:23;
    /// Second predicate source.
    PRED_B = 28:26;
    /// Negates the predicate of [`PRED_B`].
    PRED_B_NOT = 29:29;
    /// Combination of the two predicates: and, or, xor.
    PRED_OP = 31:30;
    /// Third predicate source.
    PRED_C = 51:49;
    /// Negates the predicate of [`PRED_C`].
    PRED_C_NOT = 52:52;
    /// Combination of the third predicate with the result: and, or, xor.
    COMBINE = 54:53;
    /// Comparison: less, equal, greater, unordered.
    COMPARE = 58:55;
    /// Rounding of most arithmetic.
    ROUND = 56:55;
    /// Rounding of conversions.
    ROUND_CVT = 50:49;
    /// Power of two that FMUL scales by.
    SCALE = 51:49;
    /// Add operation: add, sub, subr, addpo.
    ADD_OP = 9:8;
    /// Add operation of ISCADD.
    ADD_OP_SCALED = 56:55;
    /// Shift of ISCADD.
    SHIFT = 9:5;
    /// Bitwise operation of LOP: and, or, xor, second operand.
    LOGIC_OP = 7:6;
    /// Part of a wide IMNMX.
    MINMAX_PART = 7:6;
    /// Selection mode of PRMT.
    PERMUTE = 7:5;
    /// Lanes of each quad that a move reaches.
    LANES = 8:5;
    /// Special register number.
    SPECIAL = 33:26;
    /// Function that MUFU computes.
    FUNCTION = 28:26;
    /// Condition code of class 7 and NOP.
    CONDITION = 9:5;
    /// Condition code of CSET.
    CONDITION_SET = 24:20;
    /// Kind of VOTE: all, any, uniform.
    VOTE = 6:5;
    /// Predicate that gets VOTE's result.
    PRED_VOTE = 56:54;
    /// Kind of BAR: synchronise, arrive, reduce.
    BAR_MODE = 7:5;
    /// BAR predicate result.
    PRED_BAR = 55:53;
    /// Barrier number as an immediate.
    BAR_NUMBER = 23:20;
    /// Barrier number is immediate.
    BAR_NUMBER_IMM = 47:47;
    /// Thread count as an immediate.
    BAR_COUNT = 37:26;
    /// Thread count is immediate.
    BAR_COUNT_IMM = 46:46;
    /// Reach of MEMBAR: block, GPU, system.
    LEVEL = 6:5;
    /// Size of a memory access.
    TYPE = 7:5;
    /// Cache operator of a load or store.
    CACHE = 9:8;
    /// The address has 64 bits, in a register pair.
    WIDE_ADDRESS = 58:58;
    /// Offset of a global access.
    OFFSET32 = 57:26;
    /// Offset of a shared or local access, displacement of a relative branch.
    OFFSET24 = 49:26;
    /// Offset of an atomic with a result.
    OFFSET20 = 57:55 42:26;
    /// Offset of a cache control, in words.
    OFFSET_CCTL = 57:28;
    /// Offset of a local cache control, in words.
    OFFSET_CCTLL = 49:28;
    /// Cache control operation.
    CCTL = 9:5;
    /// Cache that the cache control is for.
    CCTL_CACHE = 27:26;
    /// Operation of an atomic.
    ATOMIC_OP = 8:5;
    /// Result of an atomic.
    ATOMIC_DST = 48:43;
    /// Predicate that says whether LDSLK got the lock.
    PRED_LOCK = 52:50;
    /// Indexing mode of LDC.
    INDEX_MODE = 9:8;
    /// Absolute branch target.
    ABSOLUTE = 57:26;
    /// Conversion: size of the result.
    CVT_TO = 21:20;
    /// Conversion: signed and size of an integer result.
    CVT_TO_INT = 7:7 21:20;
    /// Conversion: size of the source.
    CVT_FROM = 24:23;
    /// Conversion: signed and size of an integer source.
    CVT_FROM_INT = 9:9 24:23;
    /// Conversion: byte of an integer source.
    CVT_BYTE = 56:55;
    /// Conversion: half of a 16-bit source.
    CVT_HALF = 56:56;
    /// Slot of the texture.
    TEXTURE = 39:32;
    /// Slot of the sampler.
    SAMPLER = 44:40;
    /// Components that a texture instruction returns.
    TEXEL_MASK = 49:46;
    /// Shape of a texture.
    TEXTURE_SHAPE = 53:51;
    /// Register with the place in an array and offsets of texture and sampler numbers in front of the coordinates.
    TEXTURE_INDIRECT = 50:50;
    /// How the level of a sample is chosen.
    LOD_MODE = 59:57;
    /// Texel fetch: a level is given.
    LOD_GIVEN = 57:57;
    /// The texture instruction compares with a depth.
    SHADOW = 56:56;
    /// Texel fetch: a sample number is given.
    MULTISAMPLE = 55:55;
    /// Offset in texels is given.
    TEXEL_OFFSET = 54:54;
    /// Gather: no offset, one, four.
    GATHER_OFFSET = 55:54;
    /// Gather: which component.
    GATHER_COMPONENT = 6:5;
    /// Texture query: property that is asked for.
    TEXTURE_QUERY = 59:54;
    /// What happens to accesses outside of a surface.
    SURFACE_CLAMP = 48:47;
    /// Surface number is immediate.
    SURFACE_IMM = 46:46;
    /// Slot of the surface.
    SURFACE = 28:26;
    /// Coordinates of a surface.
    SURFACE_SHAPE = 45:44;
    /// Components that SUSTP stores.
    SURFACE_MASK = 52:49;
    /// Result of SULEA that says whether the place is outside.
    PRED_SURFACE = 56:54;
    /// Shift count: clamped or wrapped.
    SHIFT_WRAP = 9:9;
    /// Mode of BPT (breakpoint).
    BPT = 15:14;
    /// Immediate number of BPT.
    BPT_NUMBER = 45:26;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_field_reads_what_was_set() {
        let word = OFFSET20.set(u64::MAX, 0x5_4321);
        assert_eq!(OFFSET20.get(word), 0x5_4321);
        assert_eq!(OFFSET20.bits(), 20);
        assert_eq!(OFFSET20.get_signed(OFFSET20.set(0, 0xf_fffc)), -4);
    }

    #[test]
    fn set_leaves_the_other_bits() {
        let word = 0x1234_5678_9abc_def0;
        let set = CVT_TO_INT.set(word, 0);
        assert_eq!(CVT_TO_INT.set(set, CVT_TO_INT.get(word)), word);
    }
}
