//! Class 5: surfaces.

use fermi_spec::isa::{Opcode, field};

use super::{
    Machine,
    access::{check_alignment, extended},
};
use crate::compute::{
    code::Op,
    reach::Reach,
    surface::{Clamp, Lookup, Shape, Surface},
    texture::texel,
    trap::{Stop, WarpError},
    warp::{LANES, Warp, lanes_of},
};

/// Addresses of the lanes' accesses.
struct Accesses {
    surfaces: [Surface; LANES],
    places: [Lookup; LANES],
    /// Lanes that reach memory.
    reaching: u32,
}

pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    match op.opcode {
        Opcode::Suldb => load(warp, op, lanes, machine),
        Opcode::Sustb => store(warp, op, lanes, machine),
        Opcode::Sustp => store_texels(warp, op, lanes, machine),
        _ => address(warp, op, lanes, machine),
    }
}

/// `bytes` of each lane: `None` for a whole texel, whose coordinate counts texels.
fn accesses(
    warp: &Warp,
    op: &Op,
    lanes: u32,
    machine: &Machine<'_>,
    bytes: Option<u32>,
) -> Result<Accesses, WarpError> {
    let shape = Shape::from_bits(op.get(field::SURFACE_SHAPE));
    let clamp = Clamp::from_bits(op.get(field::SURFACE_CLAMP));
    let mut all = Accesses {
        surfaces: [Surface::default(); LANES],
        places: [Lookup::Outside; LANES],
        reaching: 0,
    };
    for lane in lanes_of(lanes) {
        let number = match op.get(field::SURFACE_IMM) {
            0 => warp.register(op.get(field::SRC_B) as u8)[lane],
            _ => op.get(field::SURFACE),
        };
        let surface = machine.launch.surfaces.get(number as usize);
        let surface = surface.copied().unwrap_or_default();
        let mut at = [0; 3];
        for index in 0..shape.coordinates() {
            at[usize::from(index)] = warp.register(Warp::nth(op.a, index))[lane];
        }
        let texel_bytes = surface.texel().map_or(1, |texel| u32::from(texel.bytes));
        match bytes {
            Some(bytes) => check_alignment(at[0].is_multiple_of(bytes))?,
            None => at[0] = surface.byte_of(at[0]),
        }
        let place = surface.place(at, shape, bytes.unwrap_or(texel_bytes), clamp == Clamp::Edge);
        if place == Lookup::Outside && clamp == Clamp::Trap {
            return Err(WarpError::MemoryOutOfBounds);
        }
        all.reaching |= u32::from(place.va().is_some()) << lane;
        all.surfaces[lane] = surface;
        all.places[lane] = place;
    }
    Ok(all)
}

/// What the lanes will load and store.
pub(super) fn reach(warp: &Warp, op: &Op, lanes: u32, machine: &Machine<'_>, reach: &mut Reach) {
    let is_whole_texel = op.opcode == Opcode::Sustp;
    let bytes = (!is_whole_texel).then(|| op.data.bytes());
    let Ok(accesses) = accesses(warp, op, lanes, machine, bytes) else {
        return;
    };
    let is_store = op.opcode != Opcode::Suldb;
    for lane in lanes_of(accesses.reaching) {
        let Some(va) = accesses.places[lane].va() else {
            continue;
        };
        match (bytes, accesses.surfaces[lane].texel()) {
            (Some(bytes), _) => reach.add(va, bytes.into(), !is_store, is_store),
            (None, Some(texel)) => {
                let mask = op.get(field::SURFACE_MASK);
                let is_part = texel::mask_of(&texel, mask) != texel::mask_of(&texel, 15);
                reach.add(va, texel.bytes.into(), is_part, true);
            }
            (None, None) => {}
        }
    }
}

/// A value of a lane as bytes, as a store takes it from registers.
fn from_registers(warp: &Warp, first: u8, registers: u8, lane: usize, data: &mut [u8]) {
    for (number, bytes) in (0..registers).zip(data.chunks_mut(4)) {
        let value = warp.register(Warp::nth(first, number))[lane].to_le_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
    }
}

/// Bytes of a lane to registers, as a load leaves them.
fn to_registers(warp: &mut Warp, op: &Op, registers: u8, lane: usize, data: &[u8]) {
    for (number, bytes) in (0..registers).zip(data.chunks(4)) {
        let mut value = [0; 4];
        value[..bytes.len()].copy_from_slice(bytes);
        let value = extended(op.data, u32::from_le_bytes(value));
        warp.set_lane(Warp::nth(op.dst, number), lane, value);
    }
}

fn load(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    let accesses = accesses(warp, op, lanes, machine, Some(bytes))?;
    machine.tally.global(false);
    let registers = op.data.registers() as u8;
    for lane in lanes_of(lanes) {
        let mut data = [0; 16];
        let data = &mut data[..bytes as usize];
        if let Some(va) = accesses.places[lane].va() {
            machine.outside.read(va, data)?;
        }
        to_registers(warp, op, registers, lane, data);
    }
    Ok(())
}

fn store(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let bytes = op.data.bytes();
    let accesses = accesses(warp, op, lanes, machine, Some(bytes))?;
    machine.tally.global(true);
    let registers = op.data.registers() as u8;
    let mut data = [0; 16];
    let data = &mut data[..bytes as usize];
    for lane in lanes_of(accesses.reaching) {
        if let Some(va) = accesses.places[lane].va() {
            from_registers(warp, op.dst, registers, lane, data);
            machine.outside.write(va, data)?;
        }
    }
    Ok(())
}

/// Registers hold the components whose bit is set in the mask, side by side; the others stay in memory as they are.
fn store_texels(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let accesses = accesses(warp, op, lanes, machine, None)?;
    let mask = op.get(field::SURFACE_MASK);
    machine.tally.global(true);
    for lane in lanes_of(accesses.reaching) {
        let (Some(texel), Some(va)) = (accesses.surfaces[lane].texel(), accesses.places[lane].va()) else {
            continue;
        };
        let mut values = [0; 4];
        let mut register = 0;
        for (index, value) in values.iter_mut().enumerate() {
            if mask >> index & 1 != 0 {
                *value = warp.register(Warp::nth(op.dst, register))[lane];
                register += 1;
            }
        }
        let bytes = usize::from(texel.bytes);
        let (stored, whole) = (texel::mask_of(&texel, mask), texel::mask_of(&texel, 15));
        let mut data = [0; 16];
        let mut bits = texel::pack(&texel, values) & stored;
        if stored != whole {
            machine.outside.read(va, &mut data[..bytes])?;
            bits |= texel::Bits::from_le_bytes(data) & !stored;
        }
        data = bits.to_le_bytes();
        machine.outside.write(va, &data[..bytes])?;
    }
    Ok(())
}

/// The address of a place, zero where it is outside, and a predicate that says so.
fn address(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let accesses = accesses(warp, op, lanes, machine, Some(op.data.bytes()))?;
    let mut outside = 0;
    for lane in lanes_of(lanes) {
        let place = accesses.places[lane];
        outside |= u32::from(!matches!(place, Lookup::Inside(_))) << lane;
        warp.set_pair(op.dst, lane, place.va().unwrap_or(0));
    }
    warp.set_predicate(op.get(field::PRED_SURFACE), outside, lanes);
    Ok(())
}
