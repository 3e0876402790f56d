//! Sums and shifts of all lanes at once: each step for every lane, so that it becomes a few vector instructions.

use fermi_spec::isa::Addition;

use super::{Comparison, single::all_if};
use crate::compute::warp::{Lanes, each, mask_of, signs_of};

const SIGN: u32 = 1 << 31;

/// A result, and what the carry and overflow flags are made of.
pub(crate) struct Outcome {
    pub(crate) result: Lanes,
    /// The carry flag is bit 31.
    carry: Lanes,
    /// The overflow flag is bit 31.
    overflow: Lanes,
}

impl Outcome {
    /// Masks of the flags: zero, sign, carry, overflow.
    #[inline(always)]
    pub(crate) fn flags(&self) -> [u32; 4] {
        [
            mask_of(|lane| self.result[lane] == 0),
            signs_of(&self.result),
            signs_of(&self.carry),
            signs_of(&self.overflow),
        ]
    }
}

/// Sums. `carries`: lanes to which an earlier sum's carry comes, in place of the operation's own; where a saturated sum
/// overflows it becomes the nearest number there is.
#[inline(always)]
pub(crate) fn sum(
    a: &Lanes,
    b: &Lanes,
    addition: Addition,
    carries: Option<u32>,
    saturates: bool,
) -> Outcome {
    let (flip_a, flip_b, own) = match addition {
        Addition::Add => (0, 0, 0),
        Addition::Subtract => (0, u32::MAX, 1),
        Addition::Reverse => (u32::MAX, 0, 1),
        Addition::PlusOne => (0, 0, 1),
    };
    let (x, y) = (each(|lane| a[lane] ^ flip_a), each(|lane| b[lane] ^ flip_b));
    let sum = match carries {
        Some(carries) => each(|lane| x[lane].wrapping_add(y[lane]).wrapping_add(carries >> lane & 1)),
        None => each(|lane| x[lane].wrapping_add(y[lane]).wrapping_add(own)),
    };
    // Both upper bits, or one of them and a carry into it, which shows as a zero in the sum.
    let carry = each(|lane| x[lane] & y[lane] | (x[lane] | y[lane]) & !sum[lane]);
    let overflow = each(|lane| (x[lane] ^ sum[lane]) & (y[lane] ^ sum[lane]));
    let result = if saturates {
        each(|lane| match overflow[lane] >> 31 {
            0 => sum[lane],
            // The sign is wrong where it overflowed.
            _ => SIGN ^ ((sum[lane] as i32 >> 31) as u32),
        })
    } else {
        sum
    };
    Outcome {
        result,
        carry,
        overflow,
    }
}

/// Which way bits go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shift {
    Left,
    Right,
    /// With copies of the sign.
    RightSigned,
}

/// Shifts; the carry flag is the last bit that went out. A count of 32 or more moves everything out unless it wraps.
#[inline(always)]
pub(crate) fn shift(a: &Lanes, b: &Lanes, shift: Shift, wraps: bool) -> Outcome {
    let count = if wraps {
        each(|lane| b[lane] & 31)
    } else {
        each(|lane| b[lane].min(32))
    };
    let result = match shift {
        Shift::Left => each(|lane| a[lane].checked_shl(count[lane]).unwrap_or(0)),
        Shift::Right => each(|lane| a[lane].checked_shr(count[lane]).unwrap_or(0)),
        Shift::RightSigned => each(|lane| (a[lane] as i32 >> count[lane].min(31)) as u32),
    };
    // None went out for counts of 0 and of 32 or more.
    let out = match shift {
        Shift::Left => each(|lane| a[lane].checked_shr(32 - count[lane]).unwrap_or(0)),
        _ => each(|lane| a[lane].checked_shr(count[lane].wrapping_sub(1)).unwrap_or(0)),
    };
    Outcome {
        result,
        carry: each(|lane| if count[lane] < 32 { out[lane] << 31 } else { 0 }),
        overflow: [0; 32],
    }
}

/// The upper halves of the 64-bit products.
#[inline(always)]
pub(crate) fn mul_high(a: &Lanes, b: &Lanes, a_signed: bool, b_signed: bool) -> Lanes {
    let (turn_a, turn_b) = (all_if(a_signed), all_if(b_signed));
    each(|lane| {
        let high = ((u64::from(a[lane]) * u64::from(b[lane])) >> 32) as u32;
        // A negative number of 32 bits is 2^32 less than its bits.
        let of_a = b[lane] & (a[lane] as i32 >> 31) as u32 & turn_a;
        let of_b = a[lane] & (b[lane] as i32 >> 31) as u32 & turn_b;
        high.wrapping_sub(of_a).wrapping_sub(of_b)
    })
}

/// The lower or the higher of each two.
#[inline(always)]
pub(crate) fn least_or_most(a: &Lanes, b: &Lanes, wants_least: bool, signed: bool) -> Lanes {
    match (wants_least, signed) {
        (true, false) => each(|lane| a[lane].min(b[lane])),
        (false, false) => each(|lane| a[lane].max(b[lane])),
        (true, true) => each(|lane| (a[lane] as i32).min(b[lane] as i32) as u32),
        (false, true) => each(|lane| (a[lane] as i32).max(b[lane] as i32) as u32),
    }
}

/// Lanes for which a comparison holds.
#[inline(always)]
pub(crate) fn compare(a: &Lanes, b: &Lanes, comparison: Comparison, signed: bool) -> u32 {
    // Signed order is unsigned order with the sign turned.
    let flip = if signed { SIGN } else { 0 };
    let [below, same, above, _] = comparison.wanted();
    mask_of(|lane| {
        let less = all_if(a[lane] ^ flip < b[lane] ^ flip);
        let equal = all_if(a[lane] == b[lane]);
        (less & below | equal & same | !(less | equal) & above) != 0
    })
}

/// The same of the upper words of wide integers, after a subtraction of the lower ones that left these flags.
#[inline(always)]
pub(crate) fn compare_extended(
    a: &Lanes,
    b: &Lanes,
    comparison: Comparison,
    signed: bool,
    low: [u32; 4],
) -> u32 {
    let [low_zero, _, low_carry, _] = low;
    let [zero, sign, carry, overflow] = sum(a, b, Addition::Subtract, Some(low_carry), false).flags();
    let equal = zero & low_zero;
    let less = if signed { sign ^ overflow } else { !carry } & !equal;
    let [below, same, above, _] = comparison.wanted();
    less & below | equal & same | !(less | equal) & above
}

/// Bit-field extract. A descriptor has the position in bits 7:0, the length in 15:8.
#[inline(always)]
pub(crate) fn extract(a: &Lanes, descriptors: &Lanes, signed: bool) -> Lanes {
    let signed = all_if(signed);
    each(|lane| {
        let (position, length) = (descriptors[lane] & 0xff, descriptors[lane] >> 8 & 0xff);
        let field = a[lane].checked_shr(position).unwrap_or(0);
        // Bits past bit 31 are the sign's or zero.
        let present = 32u32.saturating_sub(position).min(length);
        let kept = low_ones(present);
        let sign_at = position.wrapping_add(length).wrapping_sub(1).min(31);
        let fill = signed & all_if(a[lane] >> sign_at & 1 != 0);
        (field & kept | fill & !kept) & all_if(length != 0)
    })
}

/// The same with one descriptor for all: two shifts, where something of the field is there.
#[inline(always)]
pub(crate) fn extract_field(a: &Lanes, descriptor: u32, signed: bool) -> Lanes {
    let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
    let end = position + length;
    if position >= 32 || length == 0 || end > 32 {
        return extract(a, &[descriptor; 32], signed);
    }
    let (up, down) = (32 - end, 32 - length);
    if signed {
        each(|lane| (a[lane].wrapping_shl(up) as i32).wrapping_shr(down) as u32)
    } else {
        each(|lane| a[lane].wrapping_shl(up).wrapping_shr(down))
    }
}

/// Bit-field insert: the low bits of `a` into `base`.
#[inline(always)]
pub(crate) fn insert(a: &Lanes, descriptors: &Lanes, base: &Lanes) -> Lanes {
    each(|lane| {
        let (position, length) = (descriptors[lane] & 0xff, descriptors[lane] >> 8 & 0xff);
        let mask = low_ones(length).checked_shl(position).unwrap_or(0);
        let moved = a[lane].checked_shl(position).unwrap_or(0);
        base[lane] & !mask | moved & mask
    })
}

/// So many ones from bit 0 on; all for 32 and more.
#[inline(always)]
fn low_ones(count: u32) -> u32 {
    1u32.checked_shl(count).unwrap_or(0).wrapping_sub(1)
}

/// Index of the leading one, or of the leading bit that differs from the sign; `shift_amount`: 31 less it.
#[inline(always)]
pub(crate) fn find_leading(a: &Lanes, signed: bool, shift_amount: bool) -> Lanes {
    let (signed, turn) = (all_if(signed), if shift_amount { 0 } else { 31 });
    each(|lane| {
        let bits = a[lane] ^ (a[lane] as i32 >> 31) as u32 & signed;
        (bits.leading_zeros() ^ turn) | all_if(bits == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::alu::integer;
    use proptest::prelude::*;

    fn additions() -> impl Strategy<Value = Addition> {
        (0u32..4).prop_map(Addition::from_bits)
    }

    fn shifted(a: u32, count: u32, by: Shift, wraps: bool) -> (u32, bool) {
        let outcome = shift(&[a; 32], &[count; 32], by, wraps);
        (outcome.result[0], outcome.flags()[2] != 0)
    }

    #[test]
    fn shifts_of_the_instruction_set_page() {
        assert_eq!(shifted(1, 32, Shift::Left, false), (0, false));
        assert_eq!(shifted(1, 33, Shift::Left, true), (2, false));
        assert_eq!(shifted(0x8000_0000, 40, Shift::RightSigned, false).0, u32::MAX);
        assert_eq!(shifted(0x8000_0000, u32::MAX, Shift::Right, false), (0, false));
    }

    #[test]
    fn last_bit_shifted_out_is_the_carry() {
        assert_eq!(shifted(0x8000_0001, 1, Shift::Left, false), (2, true));
        assert_eq!(shifted(0b110, 2, Shift::Right, false), (1, true));
        assert_eq!(shifted(0b101, 2, Shift::Right, false), (1, false));
        assert_eq!(shifted(5, 0, Shift::Left, false), (5, false));
    }

    #[test]
    fn saturated_sum_has_the_flags_of_what_it_became() {
        let most = i32::MAX as u32;
        let outcome = sum(&[most; 32], &[1; 32], Addition::Add, None, true);
        assert_eq!(outcome.result, [most; 32]);
        assert_eq!(outcome.flags(), [0, 0, 0, u32::MAX]);
        let outcome = sum(&[!most; 32], &[1; 32], Addition::Subtract, None, true);
        assert_eq!(outcome.result, [!most; 32]);
    }

    #[test]
    fn bit_fields_of_lanes_are_those_of_one() {
        let values = [0, 1, 0x8000_0000, 0x7fff_ffff, u32::MAX, 0x1234_5678, 0xf0f0_0f0f];
        for (number, value) in values.into_iter().enumerate() {
            for position in (0..40).chain([254, 255]) {
                let descriptors = each(|lane| {
                    let length = [lane as u32, lane as u32 + 32, 255 - lane as u32][(position % 3) as usize];
                    position | length << 8
                });
                let base = values[(number + 3) % values.len()];
                for signed in [false, true] {
                    let all = extract(&[value; 32], &descriptors, signed);
                    assert_eq!(
                        all,
                        descriptors.map(|descriptor| integer::extract(value, descriptor, signed, false))
                    );
                    let together = extract_field(&[value; 32], descriptors[7], signed);
                    assert_eq!(together, [all[7]; 32]);
                    for amount in [false, true] {
                        let all = find_leading(&[value >> (position & 31); 32], signed, amount);
                        let one = integer::find_leading(value >> (position & 31), signed, amount);
                        assert_eq!(all[0], one);
                    }
                }
                let all = insert(&[value; 32], &descriptors, &[base; 32]);
                assert_eq!(
                    all,
                    descriptors.map(|descriptor| integer::insert(value, descriptor, base))
                );
            }
        }
    }

    proptest! {
        #[test]
        fn sums_of_lanes_are_those_of_one(
            a: [u32; 32], b: [u32; 32], addition in additions(), carries: Option<u32>
        ) {
            let all = sum(&a, &b, addition, carries, false);
            let flags = all.flags();
            for lane in 0..32 {
                let carry = carries.map(|carries| carries >> lane & 1 != 0);
                let (one, expected) = integer::add(a[lane], b[lane], addition, carry);
                prop_assert_eq!(all.result[lane], one);
                let found = flags.map(|mask| mask >> lane & 1 != 0);
                prop_assert_eq!(found, [expected.zero, expected.sign, expected.carry, expected.overflow]);
            }
        }

        #[test]
        fn comparisons_and_products_of_lanes_are_those_of_one(
            a: [u32; 32], b: [u32; 32], near: u32, number in 0u32..8, signs in 0u32..4, low: [u32; 2]
        ) {
            let b = each(|lane| if near >> lane & 1 != 0 { a[lane] } else { b[lane] });
            let (a_signed, b_signed) = (signs & 1 != 0, signs & 2 != 0);
            let comparison = Comparison(number);
            let holds = compare(&a, &b, comparison, a_signed);
            let extended = compare_extended(&a, &b, comparison, a_signed, [low[0], 0, low[1], 0]);
            let products = mul_high(&a, &b, a_signed, b_signed);
            for lane in 0..32 {
                let order = integer::order(a[lane], b[lane], a_signed);
                prop_assert_eq!(holds >> lane & 1 != 0, comparison.holds(Some(order)));
                let flags = integer::Flags {
                    zero: low[0] >> lane & 1 != 0,
                    carry: low[1] >> lane & 1 != 0,
                    ..Default::default()
                };
                let order = integer::order_extended(a[lane], b[lane], a_signed, flags);
                prop_assert_eq!(extended >> lane & 1 != 0, comparison.holds(Some(order)));
                for wants_least in [false, true] {
                    let chosen = least_or_most(&a, &b, wants_least, a_signed)[lane];
                    let order = integer::order(a[lane], b[lane], a_signed);
                    prop_assert_eq!(chosen, if order.is_lt() == wants_least { a[lane] } else { b[lane] });
                }
                prop_assert_eq!(products[lane], integer::mul(a[lane], b[lane], a_signed, b_signed, true));
            }
        }
    }
}
