//! Sums and shifts of all lanes at once: each step for every lane, so that it becomes a few vector instructions.

use super::integer::Addition;
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
    }
}
