//! Class 4: moves, conversions, predicates, votes and barriers.

use fermi_spec::isa::{INSTRUCTION_BYTES, Opcode, field};

use super::{Kind32, Machine, as_register, finish, values, wide_values};
use crate::compute::{
    alu::{
        convert::{Bits, Converted},
        integer,
    },
    block::Arrival,
    code::Op,
    simd::{Group, Level},
    trap::{Stop, WarpError},
    warp::{Warp, combine, each},
};

/// Lanes of each quad that a move reaches, as a mask of the warp.
fn quad_lanes(op: &Op) -> u32 {
    op.get(field::LANES) * 0x1111_1111
}

#[inline(always)]
pub(super) fn perform(
    level: impl Level,
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    machine: &mut Machine<'_>,
) -> Result<(), Stop> {
    let launch = machine.launch;
    match op.opcode {
        Opcode::Mov | Opcode::Mov32i => {
            let result = *values(warp, op, op.b);
            finish(warp, op, lanes & quad_lanes(op), &result, Kind32::Integer);
        }
        Opcode::S2r => {
            let result =
                machine
                    .block
                    .special(op.get(field::SPECIAL), warp.index, machine.tally.clock(), launch);
            warp.set_register(op.dst, &result, lanes);
        }
        Opcode::Sel => {
            let (a, b) = (warp.register(op.a), values(warp, op, op.b));
            let first = warp.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
            let result = each(|lane| if first >> lane & 1 != 0 { a[lane] } else { b[lane] });
            warp.set_register(op.dst, &result, lanes);
        }
        Opcode::Nop => {}
        Opcode::F2f | Opcode::F2i | Opcode::I2f | Opcode::I2i => {
            level.perform::<Conversions>(warp, op, lanes)
        }
        Opcode::Prmt => {
            let (a, b, c) = (
                warp.register(op.a),
                values(warp, op, op.b),
                values(warp, op, op.c),
            );
            let mode = op.get(field::PERMUTE);
            warp.set_register(
                op.dst,
                &each(|lane| integer::permute(a[lane], b[lane], c[lane], mode)),
                lanes,
            );
        }
        Opcode::Popc => {
            let (a, b) = (warp.register(op.a), values(warp, op, op.b));
            let flip = |bit| 0u32.wrapping_sub(u32::from(op.bit(bit)));
            let (flip_a, flip_b) = (flip(9), flip(8));
            let result = each(|lane| ((a[lane] ^ flip_a) & (b[lane] ^ flip_b)).count_ones());
            finish(warp, op, lanes, &result, Kind32::Integer);
        }
        Opcode::Cset | Opcode::Csetp | Opcode::Pset | Opcode::Psetp => predicates(warp, op, lanes),
        Opcode::P2r | Opcode::R2p => level.perform::<Packed>(warp, op, lanes),
        Opcode::Lepc => {
            let own = warp.pc.wrapping_sub(INSTRUCTION_BYTES);
            warp.set_register(op.dst, &[own; 32], lanes);
        }
        Opcode::Vote => vote(warp, op, lanes),
        Opcode::B2r => {
            let state = machine.block.barrier_state(op.get(field::BAR_NUMBER));
            warp.set_register(op.dst, &[state; 32], lanes);
        }
        _ => return barrier(warp, op, lanes, machine),
    }
    Ok(())
}

/// Predicates made of the condition flags, or of two others.
fn predicates(warp: &mut Warp, op: &Op, lanes: u32) {
    let first = match op.opcode {
        Opcode::Cset | Opcode::Csetp => warp.meeting(op.get(field::CONDITION_SET)),
        _ => {
            let a = warp.predicate(op.get(field::PRED_A), op.get(field::PRED_A_NOT) != 0);
            let b = warp.predicate(op.get(field::PRED_B), op.get(field::PRED_B_NOT) != 0);
            combine(op.get(field::PRED_OP), a, b)
        }
    };
    let is_predicate = matches!(op.opcode, Opcode::Csetp | Opcode::Psetp);
    store_predicates(warp, op, lanes, (first, !first), is_predicate);
}

/// Stores a predicate and its opposite, or a mask register, after the third predicate.
fn store_predicates(warp: &mut Warp, op: &Op, lanes: u32, results: (u32, u32), to_predicates: bool) {
    let (is, is_not) = (warp.combined(op, results.0), warp.combined(op, results.1));
    if to_predicates {
        warp.set_predicate(op.get(field::PRED_Q), is_not, lanes);
        warp.set_predicate(op.get(field::PRED_D), is, lanes);
    } else {
        finish(warp, op, lanes, &as_register(is, op.bit(5)), Kind32::Integer);
    }
}

/// Predicates and flags as bits of a register, and back.
struct Packed;

impl Group for Packed {
    #[inline(always)]
    fn perform(warp: &mut Warp, op: &Op, lanes: u32) {
        let (a, mask) = (*warp.register(op.a), *values(warp, op, op.b));
        // assumption: the upper half of the register.
        let shift = if op.bit(5) { 16 } else { 0 };
        if op.opcode == Opcode::P2r {
            let flags = warp.all_packed_flags();
            let result = each(|lane| flags[lane] << shift & mask[lane] | a[lane] & !mask[lane]);
            warp.set_register(op.dst, &result, lanes);
        } else {
            let (a, mask) = (each(|lane| a[lane] >> shift), each(|lane| mask[lane] >> shift));
            warp.set_all_packed_flags(&a, &mask, lanes);
        }
    }
}

fn vote(warp: &mut Warp, op: &Op, lanes: u32) {
    const ALL: u32 = 0;
    const ANY: u32 = 1;
    let source = warp.predicate(op.get(field::PRED_A), op.get(field::PRED_A_NOT) != 0);
    let ballot = source & lanes;
    let holds = match op.get(field::VOTE) {
        ALL => ballot == lanes,
        ANY => ballot != 0,
        _ => ballot == 0 || ballot == lanes,
    };
    warp.set_register(op.dst, &[ballot; 32], lanes);
    warp.set_predicate(op.get(field::PRED_VOTE), if holds { u32::MAX } else { 0 }, lanes);
}

fn barrier(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    const ARRIVE: u32 = 4;
    let first = lanes.trailing_zeros() as usize & 31;
    let operand = |is_immediate, immediate, register: u8| match op.get(is_immediate) {
        0 => warp.register(register)[first],
        _ => op.get(immediate),
    };
    let second = op.get(field::SRC_B) as u8;
    let number = operand(field::BAR_NUMBER_IMM, field::BAR_NUMBER, op.a);
    let threads = operand(field::BAR_COUNT_IMM, field::BAR_COUNT, second);
    let source = warp.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
    if number >= machine.launch.barriers || !threads.is_multiple_of(32) {
        return Err(WarpError::InvalidParameter.into());
    }
    let arrival = Arrival {
        number,
        warps: threads / 32,
        mode: op.get(field::BAR_MODE),
        holds: source & lanes,
        lanes,
    };
    machine.block.arrive(arrival);
    if arrival.mode != ARRIVE {
        warp.state = crate::compute::warp::WarpState::AtBarrier {
            barrier: number as u8,
            predicate: op.get(field::PRED_BAR) as u8,
            dst: op.dst,
            lanes,
        };
    }
    Ok(())
}

/// Conversions between types.
struct Conversions;

impl Group for Conversions {
    #[inline(always)]
    fn perform(warp: &mut Warp, op: &Op, lanes: u32) {
        let conversion = &op.conversion;
        let converted = if conversion.is_from_wide {
            conversion.convert(op.opcode, Bits::Two(&wide_values(warp, op, op.b)))
        } else {
            let (source, shift) = (values(warp, op, op.b), conversion.shift);
            conversion.convert(op.opcode, Bits::One(&each(|lane| source[lane] >> shift)))
        };
        // assumption: the flags are those of the low word.
        let kind = match op.opcode {
            Opcode::F2f | Opcode::I2f => Kind32::Single,
            _ => Kind32::Integer,
        };
        match converted {
            Converted::One(result) => finish(warp, op, lanes, &result, kind),
            Converted::Two(low, high) => {
                finish(warp, op, lanes, &low, kind);
                warp.set_register(Warp::nth(op.dst, 1), &high, lanes);
            }
        }
    }
}
