//! Classes 0 to 3: f32, f64 and integer arithmetic.

use fermi_spec::isa::{Addition, Opcode, field};

use super::{Kind32, as_register, finish, values, wide_values};
use crate::compute::{
    alu::{
        Comparison, Round, double, integer,
        lanes::{self, Shift},
        single::{self, Mode},
        special::{self, Function},
    },
    code::{Op, Operand},
    simd::{Group, Level},
    warp::{LANES, Lanes, Warp, each, mask_of},
};

const SIGN: u32 = 1 << 31;

#[inline(always)]
pub(super) fn perform(level: impl Level, warp: &mut Warp, op: &Op, lanes: u32) {
    match op.opcode {
        Opcode::Ffma | Opcode::Ffma32i => fused(level, warp, op, lanes),
        Opcode::Fadd | Opcode::Fadd32i => sum(level, warp, op, lanes),
        Opcode::Fmul | Opcode::Fmul32i => product(level, warp, op, lanes),
        Opcode::Iadd | Opcode::Iadd32i => integer_sum(warp, op, lanes),
        Opcode::Imad | Opcode::Imad32i => integer_fused(warp, op, lanes),
        Opcode::Lop | Opcode::Lop32i => logic(warp, op, lanes),
        Opcode::Shl | Opcode::Shr => shift(warp, op, lanes),
        Opcode::Iscadd | Opcode::Iscadd32i => scaled_sum(warp, op, lanes),
        Opcode::Isetp | Opcode::Iset => integer_comparison(warp, op, lanes),
        Opcode::Fsetp | Opcode::Fset => float_comparison(warp, op, lanes),
        Opcode::Dmnmx | Opcode::Dset | Opcode::Dsetp | Opcode::Dfma | Opcode::Dadd | Opcode::Dmul => {
            level.perform::<Doubles>(warp, op, lanes);
        }
        _ => level.perform::<Other>(warp, op, lanes),
    }
}

/// Operands A and B with the modifiers of bits 9 to 6.
#[inline(always)]
fn modified(warp: &Warp, op: &Op) -> (Lanes, Lanes) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    // The short table of the 32-bit immediate has no room for B's.
    let (neg_b, abs_b) = (
        op.bit(8) && op.opcode != Opcode::Fadd32i,
        op.bit(6) && op.opcode != Opcode::Fadd32i,
    );
    let (neg_a, abs_a) = (op.bit(9), op.bit(7));
    (
        each(|lane| single::modify(a[lane], abs_a, neg_a)),
        each(|lane| single::modify(b[lane], abs_b, neg_b)),
    )
}

#[inline(always)]
fn fused(level: impl Level, warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b, c) = (
        warp.register(op.a),
        values(warp, op, op.b),
        values(warp, op, op.c),
    );
    if op.mode != Mode::PLAIN || !single::are_large([a, b, c]) {
        return level.perform::<InMode>(warp, op, lanes);
    }
    let (flip_a, flip_c) = (SIGN * u32::from(op.bit(9)), SIGN * u32::from(op.bit(8)));
    let result = each(|lane| single::plain_fma(a[lane] ^ flip_a, b[lane], c[lane] ^ flip_c));
    finish(warp, op, lanes, &result, Kind32::Single);
}

#[inline(always)]
fn sum(level: impl Level, warp: &mut Warp, op: &Op, lanes: u32) {
    if op.mode != Mode::PLAIN {
        return level.perform::<InMode>(warp, op, lanes);
    }
    let (a, b) = modified(warp, op);
    let result = each(|lane| single::plain_add(a[lane], b[lane]));
    finish(warp, op, lanes, &result, Kind32::Single);
}

/// The power of two that FMUL scales by.
#[inline(always)]
fn scale(op: &Op) -> i32 {
    const SCALES: [i32; 8] = [0, -1, -2, -3, 3, 2, 1, 0];
    if op.opcode == Opcode::Fmul32i {
        0
    } else {
        SCALES[op.get(field::SCALE) as usize & 7]
    }
}

/// The sign that FMUL turns in operand A.
#[inline(always)]
fn flip_of_product(op: &Op) -> u32 {
    if op.bit(57) && op.opcode != Opcode::Fmul32i {
        SIGN
    } else {
        0
    }
}

#[inline(always)]
fn product(level: impl Level, warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b, flip) = (warp.register(op.a), values(warp, op, op.b), flip_of_product(op));
    if op.mode != Mode::PLAIN || scale(op) != 0 || !single::are_large([a, b]) {
        return level.perform::<InMode>(warp, op, lanes);
    }
    let result = each(|lane| single::plain_mul(a[lane] ^ flip, b[lane]));
    finish(warp, op, lanes, &result, Kind32::Single);
}

/// f32 arithmetic in a mode that is not the plain one.
struct InMode;

impl Group for InMode {
    #[inline(always)]
    fn perform(warp: &mut Warp, op: &Op, lanes: u32) {
        let result = match op.opcode {
            Opcode::Ffma | Opcode::Ffma32i => {
                let (flip_a, flip_c) = (SIGN * u32::from(op.bit(9)), SIGN * u32::from(op.bit(8)));
                let (a, c) = (warp.register(op.a), values(warp, op, op.c));
                let (a, c) = (each(|lane| a[lane] ^ flip_a), each(|lane| c[lane] ^ flip_c));
                single::fma(&a, values(warp, op, op.b), &c, op.mode)
            }
            Opcode::Fadd | Opcode::Fadd32i => {
                let (a, b) = modified(warp, op);
                single::add(&a, &b, op.mode)
            }
            _ => {
                let (a, flip) = (warp.register(op.a), flip_of_product(op));
                let a = each(|lane| a[lane] ^ flip);
                single::mul(&a, values(warp, op, op.b), scale(op), op.mode)
            }
        };
        finish(warp, op, lanes, &result, Kind32::Single);
    }
}

#[inline(always)]
fn integer_sum(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let addition = Addition::from_bits(op.get(field::ADD_OP));
    let sum = total(warp, op, (a, b), addition, op.bit(6), op.bit(5));
    store(warp, op, lanes, &sum);
}

/// A result, and the masks of its flags if they are asked for.
type Flagged = (Lanes, Option<[u32; 4]>);

#[inline(always)]
fn flagged(op: &Op, outcome: &lanes::Outcome) -> Flagged {
    (outcome.result, op.sets_flags.then(|| outcome.flags()))
}

#[inline(always)]
fn store(warp: &mut Warp, op: &Op, executing: u32, (result, flags): &Flagged) {
    warp.set_register(op.dst, result, executing);
    if let Some(flags) = flags {
        warp.set_flag_masks(executing, *flags);
    }
}

/// A sum of two registers with carry, flags and saturation.
#[inline(always)]
fn total(
    warp: &Warp,
    op: &Op,
    (a, b): (&Lanes, &Lanes),
    addition: Addition,
    extends: bool,
    saturates: bool,
) -> Flagged {
    if !extends && !saturates && !op.sets_flags {
        let result = match addition {
            Addition::Add => each(|lane| a[lane].wrapping_add(b[lane])),
            Addition::Subtract => each(|lane| a[lane].wrapping_sub(b[lane])),
            Addition::Reverse => each(|lane| b[lane].wrapping_sub(a[lane])),
            Addition::PlusOne => each(|lane| a[lane].wrapping_add(b[lane]).wrapping_add(1)),
        };
        return (result, None);
    }
    let carries = extends.then(|| warp.carry());
    flagged(op, &lanes::sum(a, b, addition, carries, saturates))
}

#[inline(always)]
fn integer_fused(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b, c) = (
        warp.register(op.a),
        values(warp, op, op.b),
        values(warp, op, op.c),
    );
    let product = if op.bit(6) {
        let (a_signed, b_signed) = (op.bit(7), op.bit(5));
        lanes::mul_high(a, b, a_signed, b_signed)
    } else {
        each(|lane| a[lane].wrapping_mul(b[lane]))
    };
    let is_short = op.opcode == Opcode::Imad32i;
    let addition = Addition::from_bits(op.get(field::ADD_OP));
    let (extends, saturates) = (op.bit(55) && !is_short, op.bit(56) && !is_short);
    let sum = total(warp, op, (&product, c), addition, extends, saturates);
    store(warp, op, lanes, &sum);
}

#[inline(always)]
fn scaled_sum(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let count = op.get(field::SHIFT);
    let a = each(|lane| a[lane] << count);
    let addition = match op.opcode {
        Opcode::Iscadd => Addition::from_bits(op.get(field::ADD_OP_SCALED)),
        _ => Addition::Add,
    };
    let sum = total(warp, op, (&a, b), addition, false, false);
    store(warp, op, lanes, &sum);
}

#[inline(always)]
fn logic(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let (flip_a, flip_b) = (
        0u32.wrapping_sub(op.bit(9).into()),
        0u32.wrapping_sub(op.bit(8).into()),
    );
    let result = match op.get(field::LOGIC_OP) {
        0 => each(|lane| (a[lane] ^ flip_a) & (b[lane] ^ flip_b)),
        1 => each(|lane| a[lane] ^ flip_a | b[lane] ^ flip_b),
        2 => each(|lane| a[lane] ^ flip_a ^ b[lane] ^ flip_b),
        _ => each(|lane| b[lane] ^ flip_b),
    };
    finish(warp, op, lanes, &result, Kind32::Integer);
}

#[inline(always)]
fn shift(warp: &mut Warp, op: &Op, executing: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let way = match (op.opcode, op.bit(5)) {
        (Opcode::Shl, _) => Shift::Left,
        (_, false) => Shift::Right,
        (_, true) => Shift::RightSigned,
    };
    // assumption: the bits are reversed before the shift.
    let a = if op.bit(8) && way != Shift::Left {
        each(|lane| a[lane].reverse_bits())
    } else {
        *a
    };
    let shifted = flagged(op, &lanes::shift(&a, b, way, op.bit(9)));
    store(warp, op, executing, &shifted);
}

/// Stores the result of a comparison, after the third predicate.
#[inline(always)]
fn store_comparison(warp: &mut Warp, op: &Op, lanes: u32, mask: u32, is_float: bool) {
    match op.opcode {
        Opcode::Isetp | Opcode::Fsetp | Opcode::Dsetp => {
            let (is, is_not) = (warp.combined(op, mask), warp.combined(op, !mask));
            warp.set_predicate(op.get(field::PRED_Q), is_not, lanes);
            warp.set_predicate(op.get(field::PRED_D), is, lanes);
        }
        _ => {
            let result = as_register(warp.combined(op, mask), is_float);
            finish(warp, op, lanes, &result, Kind32::Integer);
        }
    }
}

#[inline(always)]
fn integer_comparison(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let comparison = Comparison(op.get(field::COMPARE));
    let signed = op.bit(5);
    let mask = if op.bit(6) {
        lanes::compare_extended(a, b, comparison, signed, warp.flag_masks())
    } else {
        lanes::compare(a, b, comparison, signed)
    };
    store_comparison(warp, op, lanes, mask, op.bit(7));
}

#[inline(always)]
fn float_comparison(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = modified(warp, op);
    let comparison = Comparison(op.get(field::COMPARE));
    let ftz = op.bit(59);
    let mask = single::compare(&a, &b, comparison, ftz);
    store_comparison(warp, op, lanes, mask, op.bit(5));
}

/// f64 arithmetic and comparisons, register pairs of all lanes at once.
struct Doubles;

impl Group for Doubles {
    #[inline(always)]
    fn perform(warp: &mut Warp, op: &Op, lanes: u32) {
        let round = Round::from_bits(op.get(field::ROUND));
        let is_product = matches!(op.opcode, Opcode::Dfma | Opcode::Dmul);
        let a = double::modified(&warp.wide(op.a), op.bit(7) && !is_product, op.bit(9));
        let b = wide_values(warp, op, op.b);
        let b = if is_product {
            b
        } else {
            double::modified(&b, op.bit(6), op.bit(8))
        };
        let result = match op.opcode {
            Opcode::Dadd => double::add(&a, &b, round),
            Opcode::Dmul => double::mul(&a, &b, round),
            Opcode::Dfma => {
                let c = double::modified(&wide_values(warp, op, op.c), false, op.bit(8));
                double::fma(&a, &b, &c, round)
            }
            Opcode::Dmnmx => {
                let wants_min = warp.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
                double::min_max(&a, &b, wants_min)
            }
            _ => {
                let mask = double::compare(&a, &b, Comparison(op.get(field::COMPARE)));
                return store_comparison(warp, op, lanes, mask, op.bit(5));
            }
        };
        warp.set_wide(op.dst, &result, lanes);
        if op.sets_flags {
            warp.set_flag_masks(lanes, double::flags(&result));
        }
    }
}

/// What is too rare to lengthen the interpreter's own loop.
struct Other;

impl Group for Other {
    #[inline(always)]
    fn perform(warp: &mut Warp, op: &Op, executing: u32) {
        let (a, b, c) = (
            warp.register(op.a),
            values(warp, op, op.b),
            values(warp, op, op.c),
        );
        let comparison = Comparison(op.get(field::COMPARE));
        let third = warp.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
        let signed = op.bit(5);
        let result = match op.opcode {
            Opcode::Fmnmx => {
                let (a, b) = modified(warp, op);
                single::min_max(&a, &b, third, op.bit(5))
            }
            Opcode::Fcmp => {
                let holds = single::compare(c, &[0; LANES], comparison, op.bit(5));
                each(|lane| if holds >> lane & 1 != 0 { a[lane] } else { b[lane] })
            }
            Opcode::Icmp => {
                let holds = lanes::compare(c, &[0; LANES], comparison, signed);
                each(|lane| if holds >> lane & 1 != 0 { a[lane] } else { b[lane] })
            }
            // The operand of the function that follows.
            Opcode::Rro => each(|lane| single::modify(b[lane], op.bit(6), op.bit(8))),
            Opcode::Mufu => {
                let function = Function::from_bits(op.get(field::FUNCTION));
                special::evaluate(function, a, [op.bit(7), op.bit(9), op.bit(5)])
            }
            Opcode::Imul | Opcode::Imul32i if op.bit(6) => lanes::mul_high(a, b, op.bit(7), op.bit(5)),
            Opcode::Imul | Opcode::Imul32i => each(|lane| a[lane].wrapping_mul(b[lane])),
            Opcode::Imnmx => {
                let (a, b) = (*a, *b);
                return integer_min_max(warp, op, executing, (&a, &b), third);
            }
            Opcode::Bfi => lanes::insert(a, b, c),
            Opcode::Isad => each(|lane| integer::absolute_difference(a[lane], b[lane], c[lane], signed)),
            Opcode::Bfe if op.bit(8) => {
                let reversed = each(|lane| a[lane].reverse_bits());
                lanes::extract(&reversed, b, signed)
            }
            Opcode::Bfe => match op.b {
                Operand::Register(_) => lanes::extract(a, b, signed),
                _ => lanes::extract_field(a, op.value[0], signed),
            },
            Opcode::Flo => {
                let flip = 0u32.wrapping_sub(op.bit(8).into());
                lanes::find_leading(&each(|lane| b[lane] ^ flip), signed, op.bit(6))
            }
            // All others are dispatched before.
            _ => return,
        };
        let kind = match op.opcode {
            Opcode::Fmnmx => Kind32::Single,
            _ => Kind32::Integer,
        };
        finish(warp, op, executing, &result, kind);
    }
}

/// Minimum or maximum; `high` then `low` make one of 64 bits through the flags.
///
/// assumption: `high` sets Z where the words are equal and C where operand A was selected.
#[inline(always)]
fn integer_min_max(warp: &mut Warp, op: &Op, executing: u32, (a, b): (&Lanes, &Lanes), wants_min: u32) {
    const PLAIN: u32 = 0;
    const HIGH: u32 = 3;
    const LESS: Comparison = Comparison(1);
    let part = op.get(field::MINMAX_PART);
    if part == PLAIN && (wants_min == 0 || wants_min == u32::MAX) {
        let result = lanes::least_or_most(a, b, wants_min != 0, op.bit(5));
        return finish(warp, op, executing, &result, Kind32::Integer);
    }
    let is_typed = matches!(part, PLAIN | HIGH);
    let less = lanes::compare(a, b, LESS, op.bit(5) && is_typed);
    let [low_zero, _, low_carry, _] = warp.flag_masks();
    let by_order = !(less ^ wants_min);
    let takes_a = if is_typed {
        by_order
    } else {
        low_zero & by_order | !low_zero & low_carry
    };
    let result = each(|lane| {
        if takes_a >> lane & 1 != 0 {
            a[lane]
        } else {
            b[lane]
        }
    });
    if part == HIGH && op.sets_flags {
        let equal = mask_of(|lane| a[lane] == b[lane]);
        warp.set_register(op.dst, &result, executing);
        warp.set_flag_masks(executing, [equal, 0, takes_a, 0]);
    } else {
        finish(warp, op, executing, &result, Kind32::Integer);
    }
}
