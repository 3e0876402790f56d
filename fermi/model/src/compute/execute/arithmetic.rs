//! Classes 0 to 3: f32, f64 and integer arithmetic.

use fermi_spec::isa::{Opcode, field};

use super::{Kind32, as_register, finish, values, wide_value};
use crate::compute::{
    alu::{
        Comparison, Round, double,
        integer::{self, Addition, Flags},
        lanes::{self, Shift},
        single::{self, Mode},
        special::{self, Function},
    },
    code::Op,
    launch::Launch,
    warp::{Lanes, Warp, each, lanes_of, mask_of},
};

const SIGN: u32 = 1 << 31;

#[inline(always)]
pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, launch: &Launch) {
    match op.opcode {
        Opcode::Ffma | Opcode::Ffma32i => fused(warp, op, lanes),
        Opcode::Fadd | Opcode::Fadd32i => sum(warp, op, lanes),
        Opcode::Fmul | Opcode::Fmul32i => product(warp, op, lanes),
        Opcode::Iadd | Opcode::Iadd32i => integer_sum(warp, op, lanes),
        Opcode::Imad | Opcode::Imad32i => integer_fused(warp, op, lanes),
        Opcode::Lop | Opcode::Lop32i => logic(warp, op, lanes),
        Opcode::Shl | Opcode::Shr => shift(warp, op, lanes),
        Opcode::Iscadd | Opcode::Iscadd32i => scaled_sum(warp, op, lanes),
        Opcode::Isetp | Opcode::Iset => integer_comparison(warp, op, lanes),
        Opcode::Fsetp | Opcode::Fset => float_comparison(warp, op, lanes),
        Opcode::Dmnmx | Opcode::Dset | Opcode::Dsetp | Opcode::Dfma | Opcode::Dadd | Opcode::Dmul => {
            wide(warp, op, lanes, launch);
        }
        _ => other(warp, op, lanes),
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

fn mode(op: &Op) -> Mode {
    match op.opcode {
        Opcode::Fadd => Mode {
            round: Round::from_bits(op.get(field::ROUND)),
            ftz: op.bit(5),
            fmz: false,
            sat: op.bit(49),
        },
        Opcode::Fadd32i => Mode {
            ftz: op.bit(5),
            ..Mode::PLAIN
        },
        Opcode::Ffma32i | Opcode::Fmul32i => Mode {
            round: Round::Nearest,
            ftz: op.bit(6),
            fmz: op.bit(7),
            sat: op.bit(5),
        },
        _ => Mode {
            round: Round::from_bits(op.get(field::ROUND)),
            ftz: op.bit(6),
            fmz: op.bit(7),
            sat: op.bit(5),
        },
    }
}

#[inline(always)]
fn fused(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b, c) = (
        warp.register(op.a),
        values(warp, op, op.b),
        values(warp, op, op.c),
    );
    let (flip_a, flip_c) = (SIGN * u32::from(op.bit(9)), SIGN * u32::from(op.bit(8)));
    let mode = mode(op);
    let result = if mode == Mode::PLAIN {
        each(|lane| single::fma(a[lane] ^ flip_a, b[lane], c[lane] ^ flip_c, Mode::PLAIN))
    } else {
        each(|lane| single::fma(a[lane] ^ flip_a, b[lane], c[lane] ^ flip_c, mode))
    };
    finish(warp, op, lanes, &result, Kind32::Single);
}

#[inline(always)]
fn sum(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = modified(warp, op);
    let mode = mode(op);
    let result = if mode == Mode::PLAIN {
        each(|lane| single::add(a[lane], b[lane], Mode::PLAIN))
    } else {
        each(|lane| single::add(a[lane], b[lane], mode))
    };
    finish(warp, op, lanes, &result, Kind32::Single);
}

/// Powers of two of FMUL's SCALE field.
const SCALES: [i32; 8] = [0, -1, -2, -3, 3, 2, 1, 0];

#[inline(always)]
fn product(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = (warp.register(op.a), values(warp, op, op.b));
    let is_short = op.opcode == Opcode::Fmul32i;
    let flip = if op.bit(57) && !is_short { SIGN } else { 0 };
    let scale = if is_short {
        0
    } else {
        SCALES[op.get(field::SCALE) as usize & 7]
    };
    let mode = mode(op);
    let result = if mode == Mode::PLAIN && scale == 0 {
        each(|lane| single::mul(a[lane] ^ flip, b[lane], 0, Mode::PLAIN))
    } else {
        each(|lane| single::mul(a[lane] ^ flip, b[lane], scale, mode))
    };
    finish(warp, op, lanes, &result, Kind32::Single);
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
        each(|lane| integer::mul(a[lane], b[lane], a_signed, b_signed, true))
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
        mask_of(|lane| {
            comparison.holds(Some(integer::order_extended(
                a[lane],
                b[lane],
                signed,
                warp.flags(lane),
            )))
        })
    } else {
        // Signed order is unsigned order with the sign turned.
        let flip = if signed { SIGN } else { 0 };
        let less = mask_of(|lane| a[lane] ^ flip < b[lane] ^ flip);
        let equal = mask_of(|lane| a[lane] == b[lane]);
        let wanted = |bit: u32| 0u32.wrapping_sub(comparison.0 >> bit & 1);
        less & wanted(0) | equal & wanted(1) | !(less | equal) & wanted(2)
    };
    store_comparison(warp, op, lanes, mask, op.bit(7));
}

#[inline(always)]
fn float_comparison(warp: &mut Warp, op: &Op, lanes: u32) {
    let (a, b) = modified(warp, op);
    let comparison = Comparison(op.get(field::COMPARE));
    let ftz = op.bit(59);
    let mask = mask_of(|lane| single::compare(a[lane], b[lane], comparison, ftz));
    store_comparison(warp, op, lanes, mask, op.bit(5));
}

fn wide(warp: &mut Warp, op: &Op, lanes: u32, launch: &Launch) {
    let mut mask = 0;
    let round = Round::from_bits(op.get(field::ROUND));
    let comparison = Comparison(op.get(field::COMPARE));
    let wants_min = warp.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
    let is_product = matches!(op.opcode, Opcode::Dfma | Opcode::Dmul);
    for lane in lanes_of(lanes) {
        let a = double::modify(warp.pair(op.a, lane), op.bit(7) && !is_product, op.bit(9));
        let b = wide_value(warp, op.b, lane, launch);
        let b = if is_product {
            b
        } else {
            double::modify(b, op.bit(6), op.bit(8))
        };
        let result = match op.opcode {
            Opcode::Dadd => double::add(a, b, round),
            Opcode::Dmul => double::mul(a, b, round),
            Opcode::Dfma => {
                let c = double::modify(wide_value(warp, op.c, lane, launch), false, op.bit(8));
                double::fma(a, b, c, round)
            }
            Opcode::Dmnmx => double::min_max(a, b, wants_min >> lane & 1 != 0),
            _ => {
                mask |= u32::from(double::compare(a, b, comparison)) << lane;
                continue;
            }
        };
        warp.set_pair(op.dst, lane, result);
        if op.sets_flags {
            warp.set_flags(lane, Flags::of_double(result));
        }
    }
    if matches!(op.opcode, Opcode::Dset | Opcode::Dsetp) {
        store_comparison(warp, op, lanes, mask, op.bit(5));
    }
}

/// Instructions that are rare enough to be done lane by lane.
fn other(warp: &mut Warp, op: &Op, lanes: u32) {
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
            each(|lane| single::min_max(a[lane], b[lane], third >> lane & 1 != 0, op.bit(5)))
        }
        Opcode::Fcmp => each(|lane| {
            let holds = single::compare(c[lane], 0, comparison, op.bit(5));
            if holds { a[lane] } else { b[lane] }
        }),
        Opcode::Icmp => each(|lane| {
            let holds = comparison.holds(Some(integer::order(c[lane], 0, signed)));
            if holds { a[lane] } else { b[lane] }
        }),
        // The operand of the function that follows.
        Opcode::Rro => each(|lane| single::modify(b[lane], op.bit(6), op.bit(8))),
        Opcode::Mufu => {
            let function = Function::from_bits(op.get(field::FUNCTION));
            each(|lane| match lanes >> lane & 1 {
                0 => 0,
                _ => special::evaluate(function, a[lane], op.bit(7), op.bit(9), op.bit(5)),
            })
        }
        Opcode::Imul | Opcode::Imul32i => {
            each(|lane| integer::mul(a[lane], b[lane], op.bit(7), op.bit(5), op.bit(6)))
        }
        Opcode::Imnmx => {
            let (a, b) = (*a, *b);
            return integer_min_max(warp, op, lanes, (&a, &b), third);
        }
        Opcode::Bfi => each(|lane| integer::insert(a[lane], b[lane], c[lane])),
        Opcode::Isad => each(|lane| integer::absolute_difference(a[lane], b[lane], c[lane], signed)),
        Opcode::Bfe => each(|lane| integer::extract(a[lane], b[lane], signed, op.bit(8))),
        Opcode::Flo => {
            let flip = 0u32.wrapping_sub(op.bit(8).into());
            each(|lane| integer::find_leading(b[lane] ^ flip, signed, op.bit(6)))
        }
        // All others are dispatched before.
        _ => return,
    };
    let kind = match op.opcode {
        Opcode::Fmnmx => Kind32::Single,
        _ => Kind32::Integer,
    };
    finish(warp, op, lanes, &result, kind);
}

/// Minimum or maximum; `high` then `low` make one of 64 bits through the flags.
///
/// assumption: `high` sets Z where the words are equal and C where operand A was selected.
fn integer_min_max(warp: &mut Warp, op: &Op, lanes: u32, (a, b): (&Lanes, &Lanes), wants_min: u32) {
    const PLAIN: u32 = 0;
    const HIGH: u32 = 3;
    let part = op.get(field::MINMAX_PART);
    for lane in lanes_of(lanes) {
        let (x, y, low) = (a[lane], b[lane], warp.flags(lane));
        let wants_less = wants_min >> lane & 1 != 0;
        let takes_a = match part {
            PLAIN | HIGH => (integer::order(x, y, op.bit(5)).is_lt()) == wants_less,
            _ if low.zero => (x < y) == wants_less,
            _ => low.carry,
        };
        let result = if takes_a { x } else { y };
        warp.set_lane(op.dst, lane, result);
        if op.sets_flags {
            let flags = match part {
                HIGH => Flags {
                    zero: x == y,
                    carry: takes_a,
                    ..Flags::default()
                },
                _ => Flags::of(result),
            };
            warp.set_flags(lane, flags);
        }
    }
}
