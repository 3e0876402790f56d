//! Integer arithmetic, logic, shifts and bit fields.

#[cfg(test)]
use fermi_spec::isa::Addition;

/// The condition flags of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) zero: bool,
    pub(crate) sign: bool,
    pub(crate) carry: bool,
    pub(crate) overflow: bool,
}

impl Flags {
    /// Flags of an f32 result. assumption: NaN is zero and negative.
    #[cfg(test)]
    pub(crate) fn of_single(result: u32) -> Self {
        let value = f32::from_bits(result);
        Self {
            zero: value == 0.0 || value.is_nan(),
            sign: value < 0.0 || value.is_nan(),
            carry: false,
            overflow: false,
        }
    }

    /// Whether a condition code of an instruction holds, by number (0 to 31); codes without a meaning never do.
    ///
    /// Codes 0 to 15 are those of the generation before (envytools, Tesla CUDA ISA, "Predicates"), so that they order
    /// floats as well, of which a NaN has Z and S. assumption: they carried over; see docs/unverified.md.
    pub(crate) fn meets(self, code: u32) -> bool {
        let (zero, sign, overflow) = (self.zero, self.sign, self.overflow);
        let less_or_unordered = sign != overflow;
        let above = self.carry && !zero;
        match code & 31 {
            0 => false,
            1 => (sign && !zero) != overflow,
            2 => zero && !sign,
            3 => sign != (zero || overflow),
            4 => !zero && !less_or_unordered,
            5 => !zero,
            6 => !less_or_unordered,
            7 => !zero || !sign,
            8 => zero && sign,
            9 => less_or_unordered,
            10 => zero,
            11 => zero || less_or_unordered,
            12 => sign == (zero || overflow),
            13 => !zero || sign,
            14 => (!sign || zero) != overflow,
            15 => true,
            16 => !overflow,
            17 => !self.carry,
            18 => !sign,
            19 => !above,
            20 => above,
            21 => sign,
            22 => self.carry,
            23 => overflow,
            _ => false,
        }
    }
}

/// The operands as they are added, and the carry that goes in unless an earlier sum's does.
#[cfg(test)]
fn terms(addition: Addition, a: u32, b: u32) -> (u32, u32, bool) {
    match addition {
        Addition::Add => (a, b, false),
        Addition::Subtract => (a, !b, true),
        Addition::Reverse => (!a, b, true),
        Addition::PlusOne => (a, b, true),
    }
}

#[cfg(test)]
/// A sum and its flags. `carry`: of an earlier sum, in place of the operation's own.
#[inline(always)]
pub(crate) fn add(a: u32, b: u32, addition: Addition, carry: Option<bool>) -> (u32, Flags) {
    let (x, y, own) = terms(addition, a, b);
    let sum = x.wrapping_add(y).wrapping_add(carry.unwrap_or(own).into());
    let flags = Flags {
        zero: sum == 0,
        sign: sum >> 31 != 0,
        // Both upper bits, or one of them and a carry into it, which shows as a zero. So in 32 bits, as lanes are.
        carry: (x & y | (x | y) & !sum) >> 31 != 0,
        overflow: (x ^ sum) & (y ^ sum) & 1 << 31 != 0,
    };
    (sum, flags)
}

#[cfg(test)]
/// Half of the 64-bit product; the types matter for the upper one only.
#[inline(always)]
pub(crate) fn mul(a: u32, b: u32, a_signed: bool, b_signed: bool, high: bool) -> u32 {
    if !high {
        return a.wrapping_mul(b);
    }
    let wide = |value: u32, signed: bool| {
        if signed {
            i64::from(value as i32)
        } else {
            i64::from(value)
        }
    };
    (wide(a, a_signed).wrapping_mul(wide(b, b_signed)) as u64 >> 32) as u32
}

#[cfg(test)]
/// Bit-field extract. `descriptor`: position in bits 7:0, length in 15:8.
pub(crate) fn extract(a: u32, descriptor: u32, signed: bool, reverse: bool) -> u32 {
    let a = if reverse { a.reverse_bits() } else { a };
    let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
    if length == 0 {
        return 0;
    }
    let sign_at = (position + length - 1).min(31);
    let fill = if signed && a >> sign_at & 1 != 0 {
        u32::MAX
    } else {
        0
    };
    if position >= 32 {
        return fill;
    }
    let field = a >> position;
    if length >= 32 {
        return if position == 0 {
            field
        } else {
            field | fill << (32 - position)
        };
    }
    let mask = (1u32 << length) - 1;
    // Bits past bit 31 are the sign's or zero.
    let present = (32 - position).min(length);
    let kept = if present == 32 {
        u32::MAX
    } else {
        (1u32 << present) - 1
    };
    (field & mask & kept) | fill & !kept
}

#[cfg(test)]
/// Bit-field insert: the low bits of `a` into `base`.
pub(crate) fn insert(a: u32, descriptor: u32, base: u32) -> u32 {
    let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
    if length == 0 || position >= 32 {
        return base;
    }
    let mask = if length >= 32 {
        u32::MAX
    } else {
        (1u32 << length) - 1
    } << position;
    base & !mask | a << position & mask
}

#[cfg(test)]
/// Index of the leading one, or of the leading bit that differs from the sign; `shift_amount`: 31 less it.
pub(crate) fn find_leading(a: u32, signed: bool, shift_amount: bool) -> u32 {
    let bits = if signed && a >> 31 != 0 { !a } else { a };
    match (bits, shift_amount) {
        (0, _) => u32::MAX,
        (_, true) => bits.leading_zeros(),
        (_, false) => 31 - bits.leading_zeros(),
    }
}

/// Byte permutation in the modes of PRMT.
pub(crate) fn permute(a: u32, selector: u32, c: u32, mode: u32) -> u32 {
    let bytes = u64::from(c) << 32 | u64::from(a);
    let byte = |index: u32| (bytes >> (8 * (index & 7)) & 0xff) as u32;
    let k = selector & 3;
    let chosen: [u32; 4] = match mode {
        0 => {
            return (0..4).fold(0, |result, at| {
                let nibble = selector >> (4 * at);
                let value = byte(nibble);
                let value = if nibble & 8 != 0 {
                    (value >> 7) * 0xff
                } else {
                    value
                };
                result | value << (8 * at)
            });
        }
        1 => [k, k + 1, k + 2, k + 3],
        2 => [k, k.wrapping_sub(1), k.wrapping_sub(2), k.wrapping_sub(3)],
        3 => [k; 4],
        // Edge clamp left: bytes below k are byte k.
        4 => [k, k.max(1), k.max(2), 3],
        // Edge clamp right: bytes above k are byte k.
        5 => [0, k.min(1), k.min(2), k.min(3)],
        _ => {
            let low = 2 * (k & 1);
            [low, low + 1, low, low + 1]
        }
    };
    chosen
        .iter()
        .rev()
        .fold(0, |result, index| result << 8 | byte(*index))
}

/// |a − b| + c, the difference as typed.
#[inline(always)]
pub(crate) fn absolute_difference(a: u32, b: u32, c: u32, signed: bool) -> u32 {
    let difference = if signed {
        (a as i32).abs_diff(b as i32)
    } else {
        a.abs_diff(b)
    };
    difference.wrapping_add(c)
}

#[cfg(test)]
/// How two integers compare as typed.
#[inline(always)]
pub(crate) fn order(a: u32, b: u32, signed: bool) -> std::cmp::Ordering {
    if signed {
        (a as i32).cmp(&(b as i32))
    } else {
        a.cmp(&b)
    }
}

#[cfg(test)]
/// How the upper words of two wide integers compare, after a subtraction of the lower words that left `low`.
pub(crate) fn order_extended(a: u32, b: u32, signed: bool, low: Flags) -> std::cmp::Ordering {
    let (difference, flags) = add(a, b, Addition::Subtract, Some(low.carry));
    let less = if signed {
        flags.sign != flags.overflow
    } else {
        !flags.carry
    };
    match (difference == 0 && low.zero, less) {
        (true, _) => std::cmp::Ordering::Equal,
        (_, true) => std::cmp::Ordering::Less,
        _ => std::cmp::Ordering::Greater,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Ordering;

    fn flags(text: &str) -> Flags {
        Flags {
            zero: text.contains('Z'),
            sign: text.contains('S'),
            carry: text.contains('C'),
            overflow: text.contains('O'),
        }
    }

    #[test]
    fn sums_of_the_instruction_set_page() {
        assert_eq!(add(0xffff_ffff, 1, Addition::Add, None), (0, flags("ZC")));
        assert_eq!(
            add(0x7fff_ffff, 1, Addition::Add, None),
            (0x8000_0000, flags("SO"))
        );
        assert_eq!(add(5, 7, Addition::Subtract, None), (0xffff_fffe, flags("S")));
        assert_eq!(add(7, 5, Addition::Subtract, None), (2, flags("C")));
        assert_eq!(add(10, 20, Addition::Add, Some(true)).0, 31);
        assert_eq!(add(10, 20, Addition::Subtract, Some(false)).0, 0xffff_fff5);
        assert_eq!(add(0xffff_fffe, 1, Addition::PlusOne, None).0, 0);
        assert_eq!(add(3, 10, Addition::Reverse, None).0, 7);
    }

    #[test]
    fn products_and_differences_of_the_instruction_set_page() {
        assert_eq!(mul(u32::MAX, u32::MAX, false, false, true), 0xffff_fffe);
        assert_eq!(mul(u32::MAX, u32::MAX, true, true, true), 0);
        assert_eq!(mul(0x8000_0000, 0x8000_0000, true, false, true), 0xc000_0000);
        assert_eq!(absolute_difference(3, 10, 100, false), 0x6b);
    }

    #[test]
    fn bit_fields_of_the_instruction_set_page() {
        assert_eq!(extract(0x1234_5678, 0x810, false, false), 0x34);
        assert_eq!(extract(0xf80, 0x804, true, false), 0xffff_fff8);
        assert_eq!(extract(0x8000_0000, 0x1018, true, false), 0xffff_ff80);
        assert_eq!(extract(u32::MAX, 0, false, false), 0);
        assert_eq!(extract(0x8000_0011, 0x2000, false, true), 0x8800_0001);
        assert_eq!(insert(0x1ab, 0x808, u32::MAX), 0xffff_abff);
        assert_eq!(insert(0x1234, 0x1018, 0), 0x3400_0000);
        assert_eq!(find_leading(0, false, false), u32::MAX);
        assert_eq!(find_leading(0x1_0000, false, false), 16);
        assert_eq!(find_leading(0xffff_fffe, true, false), 0);
        assert_eq!(find_leading(u32::MAX, true, false), u32::MAX);
        assert_eq!(find_leading(1, false, true), 31);
    }

    #[test]
    fn permutations() {
        assert_eq!(permute(0x3322_1100, 0x6240, 0x7766_5544, 0), 0x6622_4400);
        assert_eq!(permute(0x8001_7f00, 0x89ab, 0, 0), 0x0000_00ff);
        let (low, high) = (0x0302_0100, 0x0706_0504);
        assert_eq!(permute(low, 1, high, 1), 0x0403_0201);
        assert_eq!(permute(low, 1, high, 2), 0x0607_0001);
        assert_eq!(permute(low, 2, high, 3), 0x0202_0202);
        assert_eq!(permute(low, 1, high, 4), 0x0302_0101);
        assert_eq!(permute(low, 1, high, 5), 0x0101_0100);
        assert_eq!(permute(low, 1, high, 6), 0x0302_0302);
    }

    #[test]
    fn conditions_tell_a_nan_from_all_numbers() {
        let of = |value: f32| (0..16).filter(move |code| Flags::of_single(value.to_bits()).meets(*code));
        assert!(of(f32::NAN).eq(8..16));
        assert!(of(-1.0).eq([1, 3, 5, 7, 9, 11, 13, 15]));
        assert!(of(0.0).eq([2, 3, 6, 7, 10, 11, 14, 15]));
        assert!(of(1.0).eq([4, 5, 6, 7, 12, 13, 14, 15]));
    }

    proptest! {
        #[test]
        fn extended_comparison_orders_64_bits(a in any::<u64>(), b in any::<u64>(), near in any::<bool>()) {
            let b = if near { a.wrapping_add(b & 3).wrapping_sub(1) } else { b };
            let (_, low) = add(a as u32, b as u32, Addition::Subtract, None);
            let (x, y) = ((a >> 32) as u32, (b >> 32) as u32);
            prop_assert_eq!(order_extended(x, y, false, low), a.cmp(&b));
            prop_assert_eq!(order_extended(x, y, true, low), (a as i64).cmp(&(b as i64)));
        }

        #[test]
        fn conditions_after_a_subtraction_order_signed(a in any::<u32>(), b in any::<u32>()) {
            let (_, flags) = add(a, b, Addition::Subtract, None);
            let order = (a as i32).cmp(&(b as i32));
            prop_assert_eq!(flags.meets(1), order == Ordering::Less);
            prop_assert_eq!(flags.meets(2), order == Ordering::Equal);
            prop_assert_eq!(flags.meets(4), order == Ordering::Greater);
            prop_assert_eq!(flags.meets(20), a > b);
        }

        #[test]
        fn inserted_field_extracts(a in any::<u32>(), base in any::<u32>(), position in 0u32..32, length in 1u32..33) {
            let length = length.min(32 - position);
            let descriptor = position | length << 8;
            let mask = if length == 32 { u32::MAX } else { (1 << length) - 1 };
            prop_assert_eq!(extract(insert(a, descriptor, base), descriptor, false, false), a & mask);
        }
    }
}
