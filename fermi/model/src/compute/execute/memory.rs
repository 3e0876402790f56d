//! Classes 5 and 6: memory instructions and their kinds of access; locks, constants and atomics.

use fermi_spec::isa::{Opcode, field};

use super::{
    Machine,
    access::{self, addresses, check_alignment, check_shared, extended, offsets},
};
use crate::compute::{
    alu::single,
    code::{Op, Operand},
    launch::Launch,
    outside::Atomic,
    trap::{Stop, WarpError},
    warp::{LANES, Warp, each, lanes_of, register_of, union_of},
    watch::GlobalAccess,
};

#[inline(always)]
pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    match op.opcode {
        Opcode::Ld | Opcode::Ldu | Opcode::St | Opcode::Lds | Opcode::Sts | Opcode::Ldl | Opcode::Stl => {
            access::perform(warp, op, lanes, machine)
        }
        Opcode::Ldslk | Opcode::Stsul => locked(warp, op, lanes, machine),
        Opcode::Ldc => constant(warp, op, lanes, machine),
        _ => atomic(warp, op, lanes, machine),
    }
}

/// What an instruction asks of global memory, before it is executed. For watchers alone.
pub(super) fn global(warp: &Warp, op: &Op, launch: &Launch) -> Option<GlobalAccess> {
    let (is_load, is_store, bytes) = match op.opcode {
        Opcode::Ld | Opcode::Ldu => (true, false, op.data.bytes()),
        Opcode::St => (false, true, op.data.bytes()),
        opcode if opcode.is_atomic() => (true, true, operation(op).0),
        _ => return None,
    };
    let addresses = addresses(warp, op);
    let lanes = lanes_of(warp.executing(op)).filter(|lane| launch.window(addresses[*lane]).is_none());
    Some(GlobalAccess {
        lanes: lanes.fold(0, |mask, lane| mask | 1 << lane),
        addresses,
        bytes,
        is_load,
        is_store,
    })
}

/// Shared words that lanes lock for one another; they compete in their order.
fn locked(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let offsets = offsets(warp, op);
    let bytes = op.data.bytes();
    check_shared(&offsets, lanes, bytes, machine)?;
    let registers = op.data.registers();
    let mut got = 0;
    for lane in lanes_of(lanes) {
        let is_unlock = op.opcode == Opcode::Stsul;
        if is_unlock {
            machine.block.unlock(offsets[lane]);
        } else if !machine.block.lock(offsets[lane]) {
            continue;
        }
        got |= 1 << lane;
        for number in 0..registers {
            let register = Warp::nth(op.dst, number as u8);
            let memory = machine.block.shared();
            // Word by word.
            let offsets = each(|lane| offsets[lane].wrapping_add(4 * number));
            if is_unlock {
                memory.store(&offsets, 1 << lane, bytes.min(4), [warp.register(register)]);
            } else {
                let [word] = memory.load::<1>(&offsets, 1 << lane, bytes.min(4));
                warp.set_lane(register, lane, extended(op.data, word[lane]));
            }
        }
    }
    if op.opcode == Opcode::Ldslk {
        warp.set_predicate(op.get(field::PRED_LOCK), got, lanes);
    }
    Ok(())
}

/// An indexed load from a constant bank. A word beyond the bank reads as zero.
#[inline(always)]
fn constant(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    const BY_BANK: u32 = 2;
    let index = warp.register(op.a);
    let (bank, bytes) = (op.get(field::TABLE_BANK), op.data.bytes());
    let (banks, places) = if op.get(field::INDEX_MODE) == BY_BANK {
        (
            each(|lane| bank.wrapping_add(index[lane] >> 16)),
            each(|lane| (index[lane] & 0xffff).wrapping_add(op.offset as u32)),
        )
    } else {
        (
            [bank; LANES],
            each(|lane| index[lane].wrapping_add(op.offset as u32)),
        )
    };
    let takes_part = |lane: usize| 0u32.wrapping_sub(lanes >> lane & 1);
    let bits = union_of(|lane| places[lane] & takes_part(lane));
    check_alignment(bits & (bytes - 1) == 0)?;
    let first = lanes.trailing_zeros() as usize % LANES;
    let other_bank = union_of(|lane| (banks[lane] ^ banks[first]) & takes_part(lane)) != 0;
    let other_place = union_of(|lane| (places[lane] ^ places[first]) & takes_part(lane)) != 0;
    let launch = machine.launch;
    let words = launch.constants(banks[first]);
    for number in 0..op.data.registers() {
        let place = |lane: usize| (places[lane].wrapping_add(4 * number) / 4) as usize;
        let mut values = if other_bank {
            each(|lane| {
                let words = launch.constants(banks[lane]);
                words.get(place(lane)).map_or(0, |word| *word)
            })
        } else if other_place {
            each(|lane| words.get(place(lane)).map_or(0, |word| *word))
        } else {
            [words.get(place(first)).map_or(0, |word| *word); LANES]
        };
        if bytes < 4 {
            values = each(|lane| extended(op.data, values[lane] >> (8 * (places[lane] & 3))));
        }
        warp.set_register(Warp::nth(op.dst, number as u8), &values, lanes);
    }
    Ok(())
}

/// Width and operation of an atomic instruction.
fn operation(op: &Op) -> (u32, Atomic) {
    let integer = |signed: bool| match (op.get(field::ATOMIC_OP), signed) {
        (0, _) => Atomic::Add,
        (1, false) => Atomic::Min,
        (2, false) => Atomic::Max,
        (1, true) => Atomic::MinSigned,
        (2, true) => Atomic::MaxSigned,
        (3, _) => Atomic::Increment,
        (4, _) => Atomic::Decrement,
        (5, _) => Atomic::And,
        (6, _) => Atomic::Or,
        _ => Atomic::Xor,
    };
    match op.opcode {
        Opcode::RedU64 | Opcode::AtomU64 => (8, Atomic::Add),
        Opcode::RedF32 | Opcode::AtomF32 => (4, Atomic::AddFloat),
        Opcode::RedS32 | Opcode::AtomS32 => (4, integer(true)),
        Opcode::Exch32 => (4, Atomic::Exchange),
        Opcode::Exch64 => (8, Atomic::Exchange),
        Opcode::Cas32 => (4, Atomic::CompareExchange),
        Opcode::Cas64 => (8, Atomic::CompareExchange),
        _ => (4, integer(false)),
    }
}

/// Atomic operations on global memory, lane by lane in their order.
fn atomic(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let addresses = addresses(warp, op);
    let (bytes, operation) = operation(op);
    let is_reduction = matches!(
        op.opcode,
        Opcode::RedU32 | Opcode::RedS32 | Opcode::RedF32 | Opcode::RedU64
    );
    check_alignment(lanes_of(lanes).all(|lane| addresses[lane].is_multiple_of(bytes.into())))?;
    if lanes_of(lanes).any(|lane| machine.launch.window(addresses[lane]).is_some()) {
        return Err(WarpError::InvalidAddressSpace.into());
    }
    machine.tally.atomic(lanes);
    let value = |warp: &Warp, register: u8, lane: usize| match bytes {
        8 => warp.pair(register, lane),
        _ => u64::from(warp.register(register)[lane]),
    };
    let new = register_of(Operand::Register(op.get(field::SRC_C) as u8));
    let dst = op.get(field::ATOMIC_DST) as u8;
    let mut results = [0; LANES];
    for lane in lanes_of(lanes) {
        let (operand, new) = (value(warp, op.dst, lane), value(warp, new, lane));
        results[lane] = machine.outside.atomic(addresses[lane], bytes, &mut |old| {
            operation.apply(old, operand, new, bytes)
        })?;
    }
    if !is_reduction {
        for lane in lanes_of(lanes) {
            match bytes {
                8 => warp.set_pair(dst, lane, results[lane]),
                _ => warp.set_lane(dst, lane, results[lane] as u32),
            }
        }
    }
    Ok(())
}

impl Atomic {
    /// The value that replaces `old`.
    pub(crate) fn apply(self, old: u64, operand: u64, new: u64, bytes: u32) -> u64 {
        let (x, y) = (old as u32, operand as u32);
        match self {
            Self::Add if bytes == 8 => old.wrapping_add(operand),
            Self::Exchange => operand,
            Self::CompareExchange if old == operand => new,
            Self::CompareExchange => old,
            Self::Add => u64::from(x.wrapping_add(y)),
            Self::Min => x.min(y).into(),
            Self::Max => x.max(y).into(),
            Self::MinSigned => ((x as i32).min(y as i32) as u32).into(),
            Self::MaxSigned => ((x as i32).max(y as i32) as u32).into(),
            Self::Increment => u64::from(if x >= y { 0 } else { x + 1 }),
            Self::Decrement => u64::from(if x == 0 || x > y { y } else { x - 1 }),
            Self::And => (x & y).into(),
            Self::Or => (x | y).into(),
            Self::Xor => (x ^ y).into(),
            Self::AddFloat => {
                let sum = single::plain_add(single::flush(x), single::flush(y));
                single::flush(sum).into()
            }
        }
    }
}
