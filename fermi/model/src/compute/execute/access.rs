//! Loads and stores of registers: global, shared and local memory, by generic addresses or their own.
//!
//! An access is checked as a whole before its first lane moves anything. Data passes as the words of up to four registers
//! of all lanes; what is shorter than a word is in its low bits.

use fermi_spec::isa::{DataType, Opcode};

use super::Machine;
use crate::compute::{
    coalesce::{Places, Shape},
    code::Op,
    launch::{Launch, WINDOW_BYTES},
    outside::VA_MASK,
    trap::{Stop, WarpError},
    warp::{LANES, Lanes, Warp, each, mask_of, union_of},
};

/// Addresses of a shared or local access: a register and the offset, modulo 2^32.
#[inline(always)]
pub(super) fn offsets(warp: &Warp, op: &Op) -> Lanes {
    let base = warp.register(op.a);
    each(|lane| base[lane].wrapping_add(op.offset as u32))
}

/// Addresses of a global access: 40 bits of a pair, or a register extended by zeros, and the offset.
#[inline(always)]
pub(super) fn addresses(warp: &Warp, op: &Op) -> [u64; LANES] {
    let mut addresses = [0; LANES];
    let low = warp.register(op.a);
    if op.wide {
        let high = warp.register(Warp::nth(op.a, 1));
        for lane in 0..LANES {
            let base = u64::from(high[lane]) << 32 | u64::from(low[lane]);
            addresses[lane] = base.wrapping_add(op.offset as i64 as u64) & VA_MASK;
        }
    } else {
        for lane in 0..LANES {
            addresses[lane] = u64::from(low[lane].wrapping_add(op.offset as u32));
        }
    }
    addresses
}

/// A value as a load leaves it in a register.
#[inline(always)]
pub(super) fn extended(data: DataType, value: u32) -> u32 {
    match data {
        DataType::U8 => value & 0xff,
        DataType::S8 => value as i8 as u32,
        DataType::U16 => value & 0xffff,
        DataType::S16 => value as i16 as u32,
        _ => value,
    }
}

/// The registers that a store takes its data from.
#[inline(always)]
fn stored<const N: usize>(warp: &Warp, op: &Op) -> [Lanes; N] {
    std::array::from_fn(|number| *warp.register(Warp::nth(op.dst, number as u8)))
}

/// Leaves what was loaded in registers.
#[inline(always)]
fn set_loaded<const N: usize>(warp: &mut Warp, op: &Op, lanes: u32, words: &[Lanes; N]) {
    for (number, word) in (0..).zip(words) {
        if op.data.bytes() < 4 {
            let word = each(|lane| extended(op.data, word[lane]));
            warp.set_register(op.dst, &word, lanes);
        } else {
            warp.set_register(Warp::nth(op.dst, number), word, lanes);
        }
    }
}

pub(super) fn check_alignment(is_aligned: bool) -> Result<(), WarpError> {
    if is_aligned {
        Ok(())
    } else {
        Err(WarpError::UnalignedAccess)
    }
}

/// A load or store of any space, by its registers: one, two or four.
#[inline(always)]
pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    match op.data.registers() {
        1 => perform_words::<1>(warp, op, lanes, machine),
        2 => perform_words::<2>(warp, op, lanes, machine),
        _ => perform_words::<4>(warp, op, lanes, machine),
    }
}

/// With generic addresses, the lanes of one instruction may reach three spaces.
#[inline(always)]
fn perform_words<const N: usize>(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    machine: &mut Machine<'_>,
) -> Result<(), Stop> {
    let is_store = matches!(op.opcode, Opcode::St | Opcode::Sts | Opcode::Stl);
    let is_generic = matches!(op.opcode, Opcode::Ld | Opcode::Ldu | Opcode::St);
    if is_generic
        && lanes == u32::MAX
        && let Some(start) = row(warp, op, machine.launch)
    {
        return row_moved::<N>(warp, op, start, machine, is_store);
    }
    let Launch {
        shared_base,
        local_base,
        ..
    } = *machine.launch;
    let mut places = [0; LANES];
    let (in_shared, in_local) = match op.opcode {
        Opcode::Lds | Opcode::Sts => (lanes, 0),
        Opcode::Ldl | Opcode::Stl => (0, lanes),
        _ => {
            places = addresses(warp, op);
            let inside = |base: u64| mask_of(|lane| places[lane].wrapping_sub(base) < WINDOW_BYTES) & lanes;
            let in_shared = inside(shared_base);
            (in_shared, inside(local_base) & !in_shared)
        }
    };
    if in_shared != 0 {
        let offsets = match is_generic {
            true => each(|lane| places[lane].wrapping_sub(shared_base) as u32),
            false => offsets(warp, op),
        };
        shared::<N>(warp, op, in_shared, &offsets, machine, is_store)?;
    }
    if in_local != 0 {
        let offsets = match is_generic {
            true => each(|lane| places[lane].wrapping_sub(local_base) as u32),
            false => offsets(warp, op),
        };
        local::<N>(warp, op, in_local, &offsets, machine, is_store)?;
    }
    match lanes & !(in_shared | in_local) {
        0 => Ok(()),
        lanes => global::<N>(warp, op, lanes, &places, machine, is_store),
    }
}

/// Address of lane 0, if it is in memory and all lanes' addresses lie side by side from there on: the usual
/// access. The registers decide that, before the addresses of lanes are computed; an access that would wrap
/// takes the general way.
#[inline(always)]
fn row(warp: &Warp, op: &Op, launch: &Launch) -> Option<u64> {
    let (low, bytes) = (warp.register(op.a), op.data.bytes());
    let (first, row_bytes) = (low[0], LANES as u32 * bytes);
    let differs = union_of(|lane| low[lane] ^ first.wrapping_add(lane as u32 * bytes));
    if differs != 0 || bytes < 4 {
        return None;
    }
    first.checked_add(row_bytes)?;
    let (start, end) = if op.wide {
        let high = warp.register(Warp::nth(op.a, 1));
        let differs = union_of(|lane| high[lane] ^ high[0]);
        let base = u64::from(high[0]) << 32 | u64::from(first);
        let start = base.wrapping_add(op.offset as i64 as u64) & VA_MASK;
        if differs != 0 || VA_MASK - start < row_bytes.into() {
            return None;
        }
        (start, start + u64::from(row_bytes))
    } else {
        let start = first.wrapping_add(op.offset as u32);
        (start.into(), start.checked_add(row_bytes)?.into())
    };
    // Windows are larger than a row: one that reaches into a window has an end in it.
    let is_apart = launch.window(start).is_none() && launch.window(end - 1).is_none();
    is_apart.then_some(start)
}

/// Loads or stores a row of all lanes.
#[inline(always)]
fn row_moved<const N: usize>(
    warp: &mut Warp,
    op: &Op,
    start: u64,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    check_alignment(start.is_multiple_of(op.data.bytes().into()))?;
    machine.tally.global(is_store);
    let mut data = [[[0u8; 4]; N]; LANES];
    if is_store {
        let words: [&Lanes; N] = std::array::from_fn(|number| warp.register(Warp::nth(op.dst, number as u8)));
        for (lane, value) in data.iter_mut().enumerate() {
            for (bytes, word) in value.iter_mut().zip(words) {
                *bytes = word[lane].to_le_bytes();
            }
        }
        machine.outside.write(start, data.as_flattened().as_flattened())?;
        return Ok(());
    }
    machine
        .outside
        .read(start, data.as_flattened_mut().as_flattened_mut())?;
    let mut words = [[0; LANES]; N];
    for (lane, value) in data.iter().enumerate() {
        for (word, bytes) in words.iter_mut().zip(value) {
            word[lane] = u32::from_le_bytes(*bytes);
        }
    }
    for (number, word) in (0..).zip(&words) {
        warp.set_register(Warp::nth(op.dst, number), word, u32::MAX);
    }
    Ok(())
}

#[inline(always)]
fn global<const N: usize>(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    addresses: &[u64; LANES],
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let places = Places {
        addresses,
        lanes,
        bytes: op.data.bytes(),
    };
    check_alignment(places.are_aligned())?;
    machine.tally.global(is_store);
    if is_store {
        return store(machine, places, &stored::<N>(warp, op));
    }
    let words = load::<N>(machine, places)?;
    set_loaded(warp, op, lanes, &words);
    Ok(())
}

/// Loads the lanes' words from memory.
#[inline(always)]
fn load<const N: usize>(machine: &mut Machine<'_>, places: Places<'_>) -> Result<[Lanes; N], Stop> {
    match places.shape() {
        Shape::Row { first, count } if places.bytes >= 4 => {
            let mut data = [[[0u8; 4]; N]; LANES];
            let row = data[first..first + count].as_flattened_mut().as_flattened_mut();
            machine.outside.read(places.addresses[first], row)?;
            Ok(std::array::from_fn(|number| {
                each(|lane| u32::from_le_bytes(data[lane][number]))
            }))
        }
        Shape::Point => {
            let lane = places.lanes.trailing_zeros() as usize % LANES;
            let mut data = [[0; 4]; N];
            let bytes = &mut data.as_flattened_mut()[..places.bytes as usize];
            machine.outside.read(places.addresses[lane], bytes)?;
            Ok(data.map(|word| [u32::from_le_bytes(word); LANES]))
        }
        _ => {
            let mut words = [[0; LANES]; N];
            machine.outside.gather(places, &mut words)?;
            Ok(words)
        }
    }
}

/// Stores the lanes' words.
#[inline(always)]
fn store<const N: usize>(
    machine: &mut Machine<'_>,
    places: Places<'_>,
    words: &[Lanes; N],
) -> Result<(), Stop> {
    match places.shape() {
        Shape::Row { first, count } if places.bytes >= 4 => {
            let mut data = [[[0u8; 4]; N]; LANES];
            for (number, word) in words.iter().enumerate() {
                for lane in 0..LANES {
                    data[lane][number] = word[lane].to_le_bytes();
                }
            }
            let row = data[first..first + count].as_flattened().as_flattened();
            machine.outside.write(places.addresses[first], row)?;
        }
        // If several lanes write one place, the highest wins.
        Shape::Point => {
            let highest = Places {
                lanes: 1 << (31 - places.lanes.leading_zeros()),
                ..places
            };
            machine.outside.scatter(highest, words)?;
        }
        _ => machine.outside.scatter(places, words)?,
    }
    Ok(())
}

/// Whether shared memory has what lanes reach; counts the access.
#[inline(always)]
pub(super) fn check_shared(
    offsets: &Lanes,
    lanes: u32,
    bytes: u32,
    machine: &mut Machine<'_>,
) -> Result<(), WarpError> {
    let (mut bits, mut most) = (0, 0);
    for (lane, offset) in offsets.iter().enumerate() {
        let offset = offset & 0u32.wrapping_sub(lanes >> lane & 1);
        bits |= offset;
        most = offset.max(most);
    }
    check_alignment(bits & (bytes - 1) == 0)?;
    // An aligned offset and a size of at most 16 cannot pass the end of 32 bits.
    if u64::from(most) + u64::from(bytes) > u64::from(machine.launch.shared_bytes) {
        return Err(WarpError::MemoryOutOfBounds);
    }
    let passes = machine.block.shared().passes(offsets, lanes, bytes);
    machine.tally.shared(passes);
    Ok(())
}

#[inline(always)]
fn shared<const N: usize>(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    offsets: &Lanes,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    check_shared(offsets, lanes, bytes, machine)?;
    let memory = machine.block.shared();
    if is_store {
        let words: [&Lanes; N] = std::array::from_fn(|number| warp.register(Warp::nth(op.dst, number as u8)));
        memory.store(offsets, lanes, bytes, words);
        return Ok(());
    }
    let words = memory.load::<N>(offsets, lanes, bytes);
    set_loaded(warp, op, lanes, &words);
    Ok(())
}

/// Local memory: words of all lanes interleaved in the memory that the launch has for it.
#[inline(never)]
fn local<const N: usize>(
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    offsets: &Lanes,
    machine: &mut Machine<'_>,
    is_store: bool,
) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    let mask = |lane: usize| 0u32.wrapping_sub(lanes >> lane & 1);
    let bits = union_of(|lane| offsets[lane] & mask(lane));
    check_alignment(bits & (bytes - 1) == 0)?;
    let mut at = [0; LANES];
    for lane in super::lanes_of(lanes) {
        at[lane] = machine.launch.local_offset(offsets[lane], bytes)?;
    }
    machine.tally.global(is_store);
    let mut words = stored::<N>(warp, op);
    for (number, word) in (0..).zip(&mut words) {
        let mut addresses = [0; LANES];
        for (lane, address) in addresses.iter_mut().enumerate() {
            let place = at[lane].wrapping_add(4 * number);
            *address = machine
                .block
                .local_address(machine.launch, warp.index, place, lane as u32);
        }
        let places = Places {
            addresses: &addresses,
            lanes,
            bytes: bytes.min(4),
        };
        if is_store {
            store(machine, places, &[*word])?;
        } else {
            [*word] = load(machine, places)?;
        }
    }
    if !is_store {
        set_loaded(warp, op, lanes, &words);
    }
    Ok(())
}
