//! Instructions that concern registers, predicates and flags alone.

use rand::RngExt;

use super::word::Word;
use super::{BANK_WORDS, BANKS, DATA_REGISTERS, Generator};

/// Kind of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Width {
    None,
    One,
    Pair,
}
use Width::{None as No, One, Pair};

/// Use of bits 54:49 beside operand C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Third {
    /// No use of the bits.
    Not,
    /// A predicate source.
    Source,
    /// A predicate source and how it is combined.
    Combined,
}

/// Place of the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Result {
    Register(Width),
    Predicates,
    Nothing,
}

/// A family of instructions: the opcode and which bits are free to be anything.
struct Shape {
    class: u32,
    /// Five bits, six in class 4.
    opcode: u32,
    free: u64,
    result: Result,
    a: Width,
    b: Width,
    c: Width,
    third: Third,
}

const fn bits(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

const fn shape(
    class: u32,
    opcode: u32,
    free: u64,
    result: Result,
    [a, b, c]: [Width; 3],
    third: Third,
) -> Shape {
    Shape {
        class,
        opcode,
        free,
        result,
        a,
        b,
        c,
        third,
    }
}

const CC: u64 = bits(48, 48);
const CC32: u64 = bits(58, 58);
const COMPARE: u64 = bits(58, 55);
const ROUND: u64 = bits(56, 55);
const SIGNS: u64 = bits(9, 6);
const ONE: Result = Result::Register(One);
const PAIR: Result = Result::Register(Pair);
const PREDICATES: Result = Result::Predicates;
const TWO: [Width; 3] = [One, One, No];
const THREE: [Width; 3] = [One, One, One];
const WIDE_TWO: [Width; 3] = [Pair, Pair, No];
const IMM32: u64 = bits(57, 26);
const A_ONLY: [Width; 3] = [One, No, No];

const SHAPES: &[Shape] = &[
    // FMNMX, FSET, FSETP, FFMA, FCMP, FADD, FMUL, RRO.
    shape(0, 1, bits(9, 5) | CC, ONE, TWO, Third::Source),
    shape(0, 2, bits(9, 5) | CC | COMPARE, ONE, TWO, Third::Combined),
    shape(0, 3, bits(9, 5) | CC | COMPARE, ONE, TWO, Third::Combined),
    shape(0, 4, SIGNS | COMPARE, PREDICATES, TWO, Third::Combined),
    shape(0, 5, SIGNS | COMPARE, PREDICATES, TWO, Third::Combined),
    shape(0, 6, bits(9, 5) | CC | ROUND, ONE, THREE, Third::Not),
    shape(0, 7, bits(5, 5) | COMPARE, ONE, THREE, Third::Not),
    shape(
        0,
        10,
        bits(9, 5) | CC | bits(49, 49) | ROUND,
        ONE,
        TWO,
        Third::Not,
    ),
    shape(
        0,
        11,
        bits(7, 5) | CC | ROUND | bits(57, 57) | bits(50, 49),
        ONE,
        TWO,
        Third::Not,
    ),
    shape(0, 12, bits(6, 5) | bits(8, 8), ONE, [No, One, No], Third::Not),
    // DMNMX, DSET, DSETP, DFMA, DADD, DMUL.
    shape(1, 1, SIGNS | CC, PAIR, WIDE_TWO, Third::Source),
    shape(1, 2, bits(9, 5) | CC | COMPARE, ONE, WIDE_TWO, Third::Combined),
    shape(1, 3, SIGNS | COMPARE, PREDICATES, WIDE_TWO, Third::Combined),
    shape(1, 4, bits(9, 8) | CC | ROUND, PAIR, [Pair; 3], Third::Not),
    shape(1, 9, SIGNS | CC | ROUND, PAIR, WIDE_TWO, Third::Not),
    shape(1, 10, bits(9, 9) | CC | ROUND, PAIR, WIDE_TWO, Third::Not),
    // IMAD32I, IADD32I, IMUL32I, MOV32I, FFMA32I, FADD32I, FMUL32I, LOP32I, ISCADD32I.
    shape(2, 0, bits(9, 5) | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    shape(
        2,
        1,
        bits(9, 8) | bits(6, 5) | CC32 | IMM32,
        ONE,
        A_ONLY,
        Third::Not,
    ),
    shape(2, 2, bits(7, 5) | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    shape(2, 3, bits(8, 5) | CC32 | IMM32, ONE, [No; 3], Third::Not),
    shape(2, 4, bits(9, 5) | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    shape(
        2,
        5,
        bits(5, 5) | bits(7, 7) | bits(9, 9) | CC32 | IMM32,
        ONE,
        A_ONLY,
        Third::Not,
    ),
    shape(2, 6, bits(7, 5) | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    shape(2, 7, SIGNS | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    shape(2, 8, bits(9, 5) | CC32 | IMM32, ONE, A_ONLY, Third::Not),
    // IMNMX, ISET, ISETP, IMAD, BFI, ICMP, ISAD.
    shape(3, 1, bits(5, 5) | CC, ONE, TWO, Third::Source),
    shape(3, 2, bits(7, 5) | CC | COMPARE, ONE, TWO, Third::Combined),
    shape(3, 3, bits(6, 5) | COMPARE, PREDICATES, TWO, Third::Combined),
    shape(3, 4, bits(9, 5) | CC | ROUND, ONE, THREE, Third::Not),
    shape(3, 5, CC, ONE, THREE, Third::Not),
    shape(3, 6, bits(5, 5) | COMPARE, ONE, THREE, Third::Not),
    shape(3, 7, bits(5, 5) | CC, ONE, THREE, Third::Not),
    // ISCADD, IADD, IMUL, SHR, SHL, LOP, BFE, FLO.
    shape(3, 8, bits(9, 5) | CC, ONE, TWO, Third::Not),
    shape(3, 9, bits(6, 5) | bits(9, 8) | CC, ONE, TWO, Third::Not),
    shape(3, 10, bits(7, 5) | CC, ONE, TWO, Third::Not),
    shape(3, 11, bits(5, 5) | bits(9, 8) | CC, ONE, TWO, Third::Not),
    shape(3, 12, bits(9, 9) | CC, ONE, TWO, Third::Not),
    shape(3, 13, SIGNS | CC, ONE, TWO, Third::Not),
    shape(3, 14, bits(5, 5) | bits(8, 8) | CC, ONE, TWO, Third::Not),
    shape(
        3,
        15,
        bits(6, 5) | bits(8, 8) | CC,
        ONE,
        [No, One, No],
        Third::Not,
    ),
    // SEL, MOV, P2R, R2P, LEPC, POPC.
    shape(4, 8, 0, ONE, TWO, Third::Source),
    shape(4, 10, bits(8, 5) | CC, ONE, [No, One, No], Third::Not),
    shape(4, 12, 0, ONE, TWO, Third::Not),
    shape(4, 13, 0, Result::Nothing, TWO, Third::Not),
    shape(4, 17, 0, ONE, [No; 3], Third::Not),
    shape(4, 21, bits(9, 8), ONE, TWO, Third::Not),
];

/// Special registers that are the same on every run.
const SPECIALS: [u32; 24] = [
    0x00, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x30,
    0x32, 0x33, 0x38, 0x39, 0x3a, 0x3b, 0x3c,
];
/// Condition codes that have a meaning.
pub(super) const CONDITIONS: u32 = 24;

impl Generator {
    /// A data register, or rarely the zero register.
    pub(super) fn register(&mut self) -> u32 {
        if self.chance(4) {
            63
        } else {
            self.rng.random_range(0..DATA_REGISTERS)
        }
    }

    pub(super) fn pair(&mut self) -> u32 {
        if self.chance(4) {
            63
        } else {
            2 * self.rng.random_range(0..DATA_REGISTERS / 2)
        }
    }

    fn operand(&mut self, width: Width) -> u32 {
        match width {
            Width::None => 0,
            Width::One => self.register(),
            Width::Pair => self.pair(),
        }
    }

    /// A guard: mostly always, rarely never.
    pub(super) fn guard(&mut self) -> u32 {
        match self.rng.random_range(0..20) {
            0..14 => 7,
            14 if self.chance(20) => 15,
            _ => self.condition(),
        }
    }

    /// A predicate that is not constant, or its negation.
    pub(super) fn condition(&mut self) -> u32 {
        self.rng.random_range(0..7) | self.rng.random_range(0..2) << 3
    }

    fn predicate_source(&mut self) -> u32 {
        self.rng.random_range(0..16)
    }

    /// A constant operand of so many bytes as 45:26.
    fn constant(&mut self, bytes: u32) -> u32 {
        let bank = BANKS[self.rng.random_range(0..BANKS.len())];
        // A little beyond the end now and then: reads zero.
        let end = 4 * BANK_WORDS as u32 + 16;
        let offset = self.rng.random_range(0..end / bytes) * bytes;
        (bank & 15) << 16 | offset | bank >> 4
    }

    /// Operands B and C in their four modes.
    fn operands(&mut self, word: Word, b: Width, c: Width) -> Word {
        if b == Width::None {
            return word;
        }
        let bytes = if b == Width::Pair { 8 } else { 4 };
        let mode = match (self.rng.random_range(0..8), c) {
            (0, _) => 1,
            (1, Width::One | Width::Pair) => 2,
            (2, _) => 3,
            _ => 0,
        };
        let word = word.with(47, 46, mode);
        let (second, third) = (self.operand(b), self.operand(c));
        let word = match mode {
            0 => word.b(second),
            1 | 2 => word.with(45, 26, self.constant(bytes)),
            _ => word.with(45, 26, self.immediate()),
        };
        match (mode, c) {
            (2, _) => word.c(second),
            (_, Width::None) => word,
            _ => word.c(third),
        }
    }

    fn immediate(&mut self) -> u32 {
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..40),
            1 => 0xf_ffff - self.rng.random_range(0..8),
            2 => super::interesting(&mut self.rng) >> 12,
            _ => self.rng.random(),
        }
    }

    fn shaped(&mut self, shape: &Shape) -> Word {
        let word = if shape.class == 4 {
            Word::six(4, shape.opcode)
        } else {
            Word::five(shape.class, shape.opcode)
        };
        // Each modifier is mostly off: plain forms are what programs have.
        let modifiers: u64 = self.rng.random::<u64>() & self.rng.random::<u64>();
        let immediate: u64 = self.rng.random();
        let free = (modifiers & !(IMM32 | COMPARE | ROUND)) | (immediate & (IMM32 | COMPARE | ROUND));
        let mut word = word.or(free & shape.free).a(self.operand(shape.a));
        word = self.operands(word, shape.b, shape.c);
        word = match shape.third {
            Third::Not => word,
            Third::Source => word.third(self.predicate_source()),
            Third::Combined => word
                .third(self.predicate_source())
                .with(54, 53, self.rng.random_range(0..3)),
        };
        match shape.result {
            Result::Register(width) => word.dst(self.operand(width)),
            Result::Predicates => self.predicates(word),
            Result::Nothing => word,
        }
    }

    /// Two predicate results, which are not the same.
    fn predicates(&mut self, word: Word) -> Word {
        let first = self.rng.random_range(0..8);
        let second = match self.rng.random_range(0..8) {
            second if second == first => 7,
            second => second,
        };
        word.with(19, 17, first).with(16, 14, second)
    }

    /// An instruction without access to memory, not guarded.
    pub(super) fn arithmetic(&mut self) -> Word {
        match self.rng.random_range(0..100) {
            0..74 => {
                let shape = &SHAPES[self.rng.random_range(0..SHAPES.len())];
                let word = self.shaped(shape);
                match (shape.class, shape.opcode) {
                    // Operation 3 of ISCADD is reserved, and so is scale 7 of FMUL.
                    (3, 8) => word.with(56, 55, self.rng.random_range(0..3)),
                    (0, 11) => word.with(51, 49, self.rng.random_range(0..7)),
                    _ => word,
                }
            }
            74..88 => self.conversion(),
            88..92 => self.predicate_logic(),
            92..95 => self.permutation(),
            95..97 => {
                let register = self.register();
                let number = SPECIALS[self.rng.random_range(0..SPECIALS.len())];
                Word::six(4, 11).dst(register).with(33, 26, number)
            }
            _ => {
                // MUFU: accuracy is compared, not bits.
                let register = self.rng.random_range(super::APPROXIMATE);
                let source = self.register();
                let function = self.rng.random_range(0..8);
                let modifiers = self.rng.random::<u64>() & (bits(5, 5) | bits(7, 7) | bits(9, 9));
                Word::five(0, 25)
                    .or(if function < 6 { modifiers } else { 0 })
                    .dst(register)
                    .a(source)
                    .with(28, 26, function)
            }
        }
    }

    /// CSET, CSETP, PSET, PSETP.
    fn predicate_logic(&mut self) -> Word {
        let opcode = self.rng.random_range(0..4);
        let word =
            Word::six(4, opcode)
                .third(self.predicate_source())
                .with(54, 53, self.rng.random_range(0..3));
        let word = if opcode < 2 {
            word.with(24, 20, self.rng.random_range(0..CONDITIONS))
        } else {
            word.with(23, 20, self.predicate_source())
                .with(29, 26, self.predicate_source())
                .with(31, 30, self.rng.random_range(0..3))
        };
        if opcode & 1 != 0 {
            return self.predicates(word);
        }
        let register = self.register();
        word.dst(register).with(5, 5, self.rng.random_range(0..2))
    }

    fn permutation(&mut self) -> Word {
        let word = Word::six(4, 9).with(7, 5, self.rng.random_range(0..7));
        let word = self.operands(word, One, One);
        let (register, source) = (self.register(), self.register());
        word.dst(register).a(source)
    }

    /// F2F, F2I, I2F, I2I.
    fn conversion(&mut self) -> Word {
        let opcode = self.rng.random_range(4..8);
        let (from_float, to_float) = (opcode < 6, opcode & 1 == 0);
        let from = self.rng.random_range(u32::from(from_float)..4);
        let to = match opcode {
            // Rounding to a whole number keeps the size.
            4 if self.chance(30) => from,
            4 | 6 => self.rng.random_range(1..4),
            5 => self.rng.random_range(1..4),
            _ => self.rng.random_range(0..4),
        };
        let mut word = Word::six(4, opcode)
            .with(21, 20, to)
            .with(24, 23, from)
            .with(
                50,
                49,
                if opcode == 7 {
                    0
                } else {
                    self.rng.random_range(0..4)
                },
            )
            .or(self.rng.random::<u64>() & self.rng.random::<u64>() & (bits(6, 6) | bits(8, 8)));
        let width = if from == 3 { Pair } else { One };
        // The immediate of a half, and the sign of a wide one, have no meaning.
        word = if from == 3 || from_float && from == 1 {
            let second = self.operand(width);
            word.b(second)
        } else {
            self.operands(word, width, No)
        };
        if from_float {
            word = word.with(55, 55, self.rng.random_range(0..2));
            if from == 1 {
                word = word.with(56, 56, self.rng.random_range(0..2));
            }
        } else {
            word = word.with(9, 9, self.rng.random_range(0..2));
            word = match from {
                0 => word.with(56, 55, self.rng.random_range(0..4)),
                1 => word.with(56, 56, self.rng.random_range(0..2)),
                _ => word,
            };
        }
        // The sign of an integer; rounding to a whole number, which keeps the size.
        if !to_float || opcode == 4 && to == from {
            word = word.with(7, 7, self.rng.random_range(0..2));
        }
        if opcode == 7 || opcode == 4 && to != 3 {
            word = word.with(5, 5, self.rng.random_range(0..2));
        }
        if to == 2 {
            word = word.with(48, 48, self.rng.random_range(0..2));
        }
        let register = self.operand(if to == 3 { Pair } else { One });
        word.dst(register)
    }
}
