//! Instructions of the macro processor in front of PGRAPH's classes (MME).
//!
//! A macro is started by a method and sends methods. It has seven registers, r1 to r7 (r0 is zero), a carry, and the
//! address and increment of the next method that it sends. Source: envytools `envydis/macro.c`; what the two agree on
//! was compared with Mesa's `mme_fermi_sim.c`.

/// Words of macro code that a context has.
pub const CODE_WORDS: usize = 0x800;
/// Macros that can be called.
pub const MACROS: usize = 0x80;

/// Number of a register; r0 reads as zero.
pub type Register = u8;

/// Operation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// a + b; sets the carry.
    Add(Register, Register),
    /// a + b + carry; sets the carry.
    AddCarry(Register, Register),
    /// a − b; sets the carry as a borrow.
    Subtract(Register, Register),
    /// a − b − borrow; sets the carry as a borrow.
    SubtractBorrow(Register, Register),
    /// Bitwise a ^ b.
    Xor(Register, Register),
    /// Bitwise a | b.
    Or(Register, Register),
    /// Bitwise a & b.
    And(Register, Register),
    /// Bitwise a & !b.
    AndNot(Register, Register),
    /// Bitwise !(a & b).
    Nand(Register, Register),
    /// a + immediate, without the carry.
    AddImmediate(Register, i32),
    /// a with `bits` bits from `to` replaced by those of b from `from`.
    Insert {
        /// Register a, whose other bits stay.
        base: Register,
        /// Register b, whose bits are inserted.
        source: Register,
        /// First bit in b.
        from: u8,
        /// Number of bits.
        bits: u8,
        /// First bit in a.
        to: u8,
    },
    /// `bits` bits of b from the bit that a names, shifted left by `to`.
    ExtractAt {
        /// Register a, which holds the first bit's number.
        from: Register,
        /// Register b, whose bits are taken.
        source: Register,
        /// Number of bits.
        bits: u8,
        /// Bits to shift left by.
        to: u8,
    },
    /// `bits` bits of b from bit `from`, shifted left by a.
    ExtractTo {
        /// Register b, whose bits are taken.
        source: Register,
        /// First bit in b.
        from: u8,
        /// Number of bits.
        bits: u8,
        /// Register a, which holds the bits to shift left by.
        to: Register,
    },
    /// Value of the method that (a + immediate) names, in words.
    Read(Register, i32),
}

impl Operation {
    /// Registers a and b; r0 where it has fewer.
    pub const fn operands(self) -> [Register; 2] {
        match self {
            Self::Add(a, b)
            | Self::AddCarry(a, b)
            | Self::Subtract(a, b)
            | Self::SubtractBorrow(a, b)
            | Self::Xor(a, b)
            | Self::Or(a, b)
            | Self::And(a, b)
            | Self::AndNot(a, b)
            | Self::Nand(a, b)
            | Self::Insert {
                base: a, source: b, ..
            }
            | Self::ExtractAt {
                from: a, source: b, ..
            }
            | Self::ExtractTo { source: b, to: a, .. } => [a, b],
            Self::AddImmediate(a, _) | Self::Read(a, _) => [a, 0],
        }
    }

    /// Whether the result depends on the carry.
    pub const fn uses_carry(self) -> bool {
        matches!(self, Self::AddCarry(..) | Self::SubtractBorrow(..))
    }

    /// Whether it sets the carry.
    pub const fn sets_carry(self) -> bool {
        matches!(self, Self::Add(..) | Self::Subtract(..)) || self.uses_carry()
    }

    /// The result, and the carry behind it, from the values of a and b. The result of a read is what names the method.
    pub fn result(self, [a, b]: [u32; 2], carry: bool) -> (u32, bool) {
        let value = match self {
            Self::Add(..) => return sum(a, b, false),
            Self::AddCarry(..) => return sum(a, b, carry),
            Self::Subtract(..) => return difference(a, b, false),
            Self::SubtractBorrow(..) => return difference(a, b, carry),
            Self::Xor(..) => a ^ b,
            Self::Or(..) => a | b,
            Self::And(..) => a & b,
            Self::AndNot(..) => a & !b,
            Self::Nand(..) => !(a & b),
            Self::AddImmediate(_, immediate) | Self::Read(_, immediate) => a.wrapping_add_signed(immediate),
            Self::Insert { from, bits, to, .. } => {
                let mask = ones(bits);
                a & !(mask << to) | (b >> from & mask) << to
            }
            Self::ExtractAt { bits, to, .. } => extract(b, a, bits, to.into()),
            Self::ExtractTo { from, bits, .. } => extract(b, from.into(), bits, a),
        };
        (value, carry)
    }
}

fn sum(a: u32, b: u32, carry: bool) -> (u32, bool) {
    let sum = u64::from(a) + u64::from(b) + u64::from(carry);
    (sum as u32, sum >> 32 != 0)
}

fn difference(a: u32, b: u32, borrow: bool) -> (u32, bool) {
    let taken = u64::from(b) + u64::from(borrow);
    (u64::from(a).wrapping_sub(taken) as u32, taken > u64::from(a))
}

/// `bits` ones, at most 31.
const fn ones(bits: u8) -> u32 {
    (1 << (bits & 0x1f)) - 1
}

/// A field of `value`, moved; what lies beyond 32 bits is zero.
fn extract(value: u32, from: u32, bits: u8, to: u32) -> u32 {
    let field = value.checked_shr(from).unwrap_or(0) & ones(bits);
    field.checked_shl(to).unwrap_or(0)
}

/// Use of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assign {
    /// Ignored; the register gets a parameter.
    Parameter,
    /// To the register.
    Move,
    /// To the register and the method address.
    MoveAddress,
    /// Sent; the register gets a parameter.
    SendParameter,
    /// To the register, and sent.
    MoveSend,
    /// To the method address; the register gets a parameter.
    AddressParameter,
    /// To the register and the method address; then a parameter is sent.
    MoveAddressSendParameter,
    /// To the register and the method address; then its bits 17:12 are sent.
    MoveAddressSendIncrement,
}

impl Assign {
    /// Whether it takes a parameter.
    pub const fn takes_parameter(self) -> bool {
        matches!(
            self,
            Self::Parameter | Self::SendParameter | Self::AddressParameter | Self::MoveAddressSendParameter
        )
    }

    /// What the register gets, what the method address is set to, and what is then sent. `increment`: bits 17:12 of the result.
    pub fn uses<T: Copy>(self, result: T, parameter: T, increment: T) -> (T, Option<T>, Option<T>) {
        match self {
            Self::Parameter => (parameter, None, None),
            Self::Move => (result, None, None),
            Self::MoveAddress => (result, Some(result), None),
            Self::SendParameter => (parameter, None, Some(result)),
            Self::MoveSend => (result, None, Some(result)),
            Self::AddressParameter => (parameter, Some(result), None),
            Self::MoveAddressSendParameter => (result, Some(result), Some(parameter)),
            Self::MoveAddressSendIncrement => (result, Some(result), Some(increment)),
        }
    }
}

/// Effect of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Computes and assigns to a register.
    Compute(Operation, Assign, Register),
    /// Branches if a register is zero, or if it is not.
    Branch {
        /// Register that is compared with zero.
        register: Register,
        /// Branches on a value other than zero; otherwise on zero.
        if_not_zero: bool,
        /// The instruction behind it is not executed when it branches.
        annul: bool,
        /// Words from this instruction.
        distance: i32,
    },
    /// No such operation.
    Illegal,
}

/// One decoded instruction word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// Effect of the instruction.
    pub kind: Kind,
    /// The macro ends after the next instruction; on a branch, only if the branch is not taken.
    pub exit: bool,
}

/// Address and increment of methods to send, in words, as a macro sets them.
pub const fn address_of(value: u32) -> (u16, u8) {
    ((value & 0xfff) as u16, (value >> 12 & 0x3f) as u8)
}

impl Instruction {
    /// Decodes a word; total.
    pub fn from_bits(word: u32) -> Self {
        let register = |shift: u32| (word >> shift & 7) as Register;
        let (target, a, b) = (register(8), register(11), register(14));
        let immediate = word as i32 >> 14;
        let field = |shift: u32| (word >> shift & 0x1f) as u8;
        let (from, bits, to) = (field(17), field(22), field(27));
        let compute = |operation| Kind::Compute(operation, assign(word), target);
        let kind = match word & 7 {
            0 => arithmetic(field(17), a, b).map_or(Kind::Illegal, compute),
            1 => compute(Operation::AddImmediate(a, immediate)),
            2 => compute(Operation::Insert {
                base: a,
                source: b,
                from,
                bits,
                to,
            }),
            3 => compute(Operation::ExtractAt {
                from: a,
                source: b,
                bits,
                to,
            }),
            4 => compute(Operation::ExtractTo {
                source: b,
                from,
                bits,
                to: a,
            }),
            5 => compute(Operation::Read(a, immediate)),
            7 => Kind::Branch {
                register: a,
                if_not_zero: word & 1 << 4 != 0,
                annul: word & 1 << 5 != 0,
                distance: immediate,
            },
            _ => Kind::Illegal,
        };
        Self {
            kind,
            exit: word & 1 << 7 != 0,
        }
    }
}

fn arithmetic(code: u8, a: Register, b: Register) -> Option<Operation> {
    Some(match code {
        0 => Operation::Add(a, b),
        1 => Operation::AddCarry(a, b),
        2 => Operation::Subtract(a, b),
        3 => Operation::SubtractBorrow(a, b),
        8 => Operation::Xor(a, b),
        9 => Operation::Or(a, b),
        10 => Operation::And(a, b),
        11 => Operation::AndNot(a, b),
        12 => Operation::Nand(a, b),
        _ => return None,
    })
}

fn assign(word: u32) -> Assign {
    match word >> 4 & 7 {
        0 => Assign::Parameter,
        1 => Assign::Move,
        2 => Assign::MoveAddress,
        3 => Assign::SendParameter,
        4 => Assign::MoveSend,
        5 => Assign::AddressParameter,
        6 => Assign::MoveAddressSendParameter,
        _ => Assign::MoveAddressSendIncrement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nop_moves_zero_to_r0() {
        let nop = Instruction::from_bits(0x11);
        let kind = Kind::Compute(Operation::AddImmediate(0, 0), Assign::Move, 0);
        assert_eq!(nop, Instruction { kind, exit: false });
    }

    /// One of the words that Mesa uploads: a single bit of r1, sent.
    #[test]
    fn insert_of_mesa_takes_one_bit() {
        let word = Instruction::from_bits(0x0040_4042);
        let operation = Operation::Insert {
            base: 0,
            source: 1,
            from: 0,
            bits: 1,
            to: 0,
        };
        assert_eq!(word.kind, Kind::Compute(operation, Assign::MoveSend, 0));
    }

    #[test]
    fn branch_goes_back_by_a_negative_distance() {
        let word = Instruction::from_bits((-3i32 << 14) as u32 | 2 << 11 | 1 << 7 | 1 << 5 | 1 << 4 | 7);
        let kind = Kind::Branch {
            register: 2,
            if_not_zero: true,
            annul: true,
            distance: -3,
        };
        assert_eq!(word, Instruction { kind, exit: true });
    }

    proptest! {
        #[test]
        fn carry_makes_wide_sums(a: u64, b: u64) {
            let wide = |first: Operation, second: Operation| {
                let (low, carry) = first.result([a as u32, b as u32], true);
                let (high, _) = second.result([(a >> 32) as u32, (b >> 32) as u32], carry);
                u64::from(high) << 32 | u64::from(low)
            };
            prop_assert_eq!(wide(Operation::Add(1, 3), Operation::AddCarry(2, 4)), a.wrapping_add(b));
            let difference = wide(Operation::Subtract(1, 3), Operation::SubtractBorrow(2, 4));
            prop_assert_eq!(difference, a.wrapping_sub(b));
        }

        #[test]
        fn only_unassigned_codes_are_illegal(word: u32) {
            let illegal = match word & 7 {
                0 => !matches!(word >> 17 & 0x1f, 0..=3 | 8..=12),
                code => code == 6,
            };
            prop_assert_eq!(Instruction::from_bits(word).kind == Kind::Illegal, illegal);
        }
    }
}
