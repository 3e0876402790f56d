//! Classes 5 and 6: memory.

use fermi_spec::isa::{DataType, Opcode, field};

use super::Machine;
use crate::compute::{
    alu::single,
    code::{Op, Operand},
    launch::Window,
    outside::{Atomic, VA_MASK},
    trap::{Stop, WarpError},
    warp::{LANES, Lanes, Warp, each, lanes_of, register_of},
};

#[inline(always)]
pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    match op.opcode {
        Opcode::Ld | Opcode::Ldu => generic(warp, op, lanes, machine, false),
        Opcode::St => generic(warp, op, lanes, machine, true),
        Opcode::Lds => shared(warp, op, lanes, &offsets(warp, op), machine, false),
        Opcode::Sts => shared(warp, op, lanes, &offsets(warp, op), machine, true),
        Opcode::Ldl => local(warp, op, lanes, &offsets(warp, op), machine, false),
        Opcode::Stl => local(warp, op, lanes, &offsets(warp, op), machine, true),
        Opcode::Ldslk | Opcode::Stsul => locked(warp, op, lanes, machine),
        Opcode::Ldc => constant(warp, op, lanes, machine),
        _ => atomic(warp, op, lanes, machine),
    }
}

/// Addresses of a shared or local access: a register and the offset, modulo 2^32.
#[inline(always)]
fn offsets(warp: &Warp, op: &Op) -> Lanes {
    let base = warp.register(op.a);
    each(|lane| base[lane].wrapping_add(op.offset as u32))
}

/// Addresses of a global access: 40 bits of a pair, or a register extended by zeros, and the offset.
#[inline(always)]
fn addresses(warp: &Warp, op: &Op) -> [u64; LANES] {
    let mut addresses = [0; LANES];
    let low = warp.register(op.a);
    let high = warp.register(Warp::nth(op.a, 1));
    for lane in 0..LANES {
        addresses[lane] = if op.wide {
            let base = u64::from(high[lane]) << 32 | u64::from(low[lane]);
            base.wrapping_add(op.offset as i64 as u64) & VA_MASK
        } else {
            u64::from(low[lane].wrapping_add(op.offset as u32))
        };
    }
    addresses
}

pub(super) fn check_alignment(is_aligned: bool) -> Result<(), WarpError> {
    if is_aligned {
        Ok(())
    } else {
        Err(WarpError::UnalignedAccess)
    }
}

/// A value as a load leaves it in a register.
#[inline(always)]
fn extended(data: DataType, value: u32) -> u32 {
    match data {
        DataType::U8 => value & 0xff,
        DataType::S8 => value as i8 as u32,
        DataType::U16 => value & 0xffff,
        DataType::S16 => value as i16 as u32,
        _ => value,
    }
}

/// A load or store by generic address: lanes may reach three spaces at once.
fn generic(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let addresses = addresses(warp, op);
    let launch = machine.launch;
    let (mut in_shared, mut in_local) = (0u32, 0u32);
    for lane in lanes_of(lanes) {
        match launch.window(addresses[lane]) {
            Some(Window::Shared) => in_shared |= 1 << lane,
            Some(Window::Local) => in_local |= 1 << lane,
            None => {}
        }
    }
    if in_shared != 0 {
        let inside = each(|lane| launch.in_window(addresses[lane], launch.shared_base));
        shared(warp, op, in_shared, &inside, machine, is_store)?;
    }
    if in_local != 0 {
        let inside = each(|lane| launch.in_window(addresses[lane], launch.local_base));
        local(warp, op, in_local, &inside, machine, is_store)?;
    }
    match lanes & !(in_shared | in_local) {
        0 => Ok(()),
        lanes => global(warp, op, lanes, &addresses, machine, is_store),
    }
}

fn global(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    addresses: &[u64; LANES],
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    check_alignment(lanes_of(lanes).all(|lane| addresses[lane].is_multiple_of(bytes.into())))?;
    machine.tally.global(addresses, lanes, bytes, is_store);
    if lanes == u32::MAX && bytes >= 4 && run_of(addresses, 0, lanes, bytes) == LANES {
        return consecutive(warp, op, addresses[0], machine, is_store);
    }
    // Lanes side by side make one transfer.
    let mut data = [0; LANES * 16];
    let registers = op.data.registers() as u8;
    let mut left = lanes;
    while left != 0 {
        let first = left.trailing_zeros() as usize;
        let run = run_of(addresses, first, left, bytes);
        left &= !(u32::MAX >> (LANES - run) << first);
        let data = &mut data[..run * bytes as usize];
        if is_store {
            for (lane, part) in (first..).zip(data.chunks_exact_mut(bytes as usize)) {
                from_registers(warp, op.dst, registers, lane, part);
            }
            machine.outside.write(addresses[first], data)?;
        } else {
            machine.outside.read(addresses[first], data)?;
            for (lane, part) in (first..).zip(data.chunks_exact(bytes as usize)) {
                to_registers(warp, op, registers, lane, part);
            }
        }
    }
    Ok(())
}

/// How many lanes from `first` on, all in `lanes`, have addresses that follow one another by `bytes`.
#[inline(always)]
fn run_of(addresses: &[u64; LANES], first: usize, lanes: u32, bytes: u32) -> usize {
    let longest = (!(lanes >> first)).trailing_zeros().min((LANES - first) as u32) as usize;
    let start = addresses[first];
    (1..longest)
        .find(|step| addresses[first + step] != start.wrapping_add(*step as u64 * u64::from(bytes)))
        .unwrap_or(longest)
}

/// All lanes, side by side: one transfer.
fn consecutive(
    warp: &mut Warp,
    op: &Op,
    first: u64,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let registers = op.data.registers() as usize;
    let mut data = [0u8; LANES * 16];
    let data = &mut data[..LANES * 4 * registers];
    if is_store {
        for number in 0..registers {
            let values = warp.register(Warp::nth(op.dst, number as u8));
            for (lane, value) in values.iter().enumerate() {
                let at = (lane * registers + number) * 4;
                data[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
        machine.outside.write(first, data)?;
        return Ok(());
    }
    machine.outside.read(first, data)?;
    let (words, _) = data.as_chunks::<4>();
    for number in 0..registers {
        let values = each(|lane| u32::from_le_bytes(words[lane * registers + number]));
        warp.set_register(Warp::nth(op.dst, number as u8), &values, u32::MAX);
    }
    Ok(())
}

#[inline(always)]
pub(super) fn from_registers(warp: &Warp, first: u8, registers: u8, lane: usize, data: &mut [u8]) {
    for (number, bytes) in (0..registers).zip(data.chunks_mut(4)) {
        let value = warp.register(Warp::nth(first, number))[lane].to_le_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
    }
}

#[inline(always)]
pub(super) fn to_registers(warp: &mut Warp, op: &Op, registers: u8, lane: usize, data: &[u8]) {
    for (number, bytes) in (0..registers).zip(data.chunks(4)) {
        let mut value = [0; 4];
        value[..bytes.len()].copy_from_slice(bytes);
        let value = extended(op.data, u32::from_le_bytes(value));
        warp.set_lane(Warp::nth(op.dst, number), lane, value);
    }
}

fn shared(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    offsets: &Lanes,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    check_alignment(lanes_of(lanes).all(|lane| offsets[lane].is_multiple_of(bytes)))?;
    machine.tally.shared(offsets, lanes, bytes);
    if bytes == 4 {
        return shared_words(warp, op, lanes, offsets, machine, is_store);
    }
    let registers = op.data.registers() as u8;
    for lane in lanes_of(lanes) {
        let memory = machine.block.shared(offsets[lane], bytes)?;
        if is_store {
            from_registers(warp, op.dst, registers, lane, memory);
        } else {
            let mut data = [0; 16];
            let data = &mut data[..memory.len()];
            data.copy_from_slice(memory);
            to_registers(warp, op, registers, lane, data);
        }
    }
    Ok(())
}

/// The usual shared access: a word for each lane.
#[inline(always)]
fn shared_words(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    offsets: &Lanes,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    if is_store {
        let values = warp.register(op.dst);
        for lane in lanes_of(lanes) {
            *machine.block.shared_word(offsets[lane])? = values[lane].to_le_bytes();
        }
        return Ok(());
    }
    for lane in lanes_of(lanes) {
        let value = u32::from_le_bytes(*machine.block.shared_word(offsets[lane])?);
        warp.set_lane(op.dst, lane, value);
    }
    Ok(())
}

/// Local memory: words of all lanes interleaved in the memory that the launch has for it.
fn local(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    offsets: &Lanes,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    check_alignment(lanes_of(lanes).all(|lane| offsets[lane].is_multiple_of(bytes)))?;
    machine.tally.local(offsets, lanes, bytes, is_store);
    let registers = op.data.registers() as u8;
    let mut data = [0; 16];
    for lane in lanes_of(lanes) {
        let at = machine.launch.local_offset(offsets[lane], bytes)?;
        let place = |word: u32| {
            machine
                .block
                .local_address(machine.launch, warp.index, at + 4 * word, lane as u32)
        };
        let data = &mut data[..bytes as usize];
        if is_store {
            from_registers(warp, op.dst, registers, lane, data);
            for (word, part) in (0u32..).zip(data.chunks(4)) {
                machine.outside.write(place(word), part)?;
            }
        } else {
            for (word, part) in (0u32..).zip(data.chunks_mut(4)) {
                machine.outside.read(place(word), part)?;
            }
            to_registers(warp, op, registers, lane, data);
        }
    }
    Ok(())
}

/// Shared words that lanes lock for one another; they compete in their order.
fn locked(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let offsets = offsets(warp, op);
    let bytes = op.data.bytes();
    check_alignment(lanes_of(lanes).all(|lane| offsets[lane].is_multiple_of(bytes)))?;
    machine.tally.shared(&offsets, lanes, bytes);
    let registers = op.data.registers() as u8;
    let mut got = 0;
    for lane in lanes_of(lanes) {
        let memory = machine.block.shared(offsets[lane], bytes)?;
        if op.opcode == Opcode::Stsul {
            from_registers(warp, op.dst, registers, lane, memory);
            machine.block.unlock(offsets[lane]);
            continue;
        }
        let mut data = [0; 16];
        let data = &mut data[..memory.len()];
        data.copy_from_slice(memory);
        if machine.block.lock(offsets[lane]) {
            got |= 1 << lane;
            to_registers(warp, op, registers, lane, data);
        }
    }
    if op.opcode == Opcode::Ldslk {
        warp.set_predicate(op.get(field::PRED_LOCK), got, lanes);
    }
    Ok(())
}

/// An indexed load from a constant bank. What is beyond the bank reads as zero.
fn constant(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    const BY_BANK: u32 = 2;
    let index = *warp.register(op.a);
    let by_bank = op.get(field::INDEX_MODE) == BY_BANK;
    let bank = op.get(field::TABLE_BANK);
    let bytes = op.data.bytes();
    let registers = op.data.registers() as u8;
    let place = |lane: usize| {
        let at = index[lane];
        let (bank, at) = if by_bank {
            (bank + (at >> 16), at & 0xffff)
        } else {
            (bank, at)
        };
        (bank, at.wrapping_add(op.offset as u32))
    };
    for lane in lanes_of(lanes) {
        let (bank, at) = place(lane);
        check_alignment(at.is_multiple_of(bytes))?;
        for number in 0..registers {
            let at = at.wrapping_add(4 * u32::from(number));
            let word = machine
                .launch
                .constant(u8::try_from(bank).unwrap_or(u8::MAX), at & !3);
            let value = if bytes < 4 { word >> (8 * (at & 3)) } else { word };
            warp.set_lane(Warp::nth(op.dst, number), lane, extended(op.data, value));
        }
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
    machine.tally.atomic(&addresses, lanes);
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
    /// What is stored in place of `old`.
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
                let mode = single::Mode {
                    ftz: true,
                    ..single::Mode::PLAIN
                };
                single::add(x, y, mode).into()
            }
        }
    }
}
