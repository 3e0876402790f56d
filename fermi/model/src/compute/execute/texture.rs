//! Class 6: textures.
//!
//! | registers from | hold |
//! | --- | --- |
//! | A | with an array or slots by register: `ttttttttt sssssss aaaaaaaaaaaaaaaa`; coordinates; of TXD an offset |
//! | B | those that there are of: level or bias, offset, reference (TEX); level, offset (TLD); offset or two, reference (TLD4); derivatives (TXD) |
//!
//! Source: Mesa's `nv50_ir_lowering_nvc0.cpp` (handleTEX, handleTXQ) and envytools. assumptions: slots by register take
//! the place of those in the instruction; without pixels there are no derivatives, so TEX that would find its own level
//! takes the first.

use fermi_spec::{
    isa::{Opcode, field},
    texture::Sampler,
};

use super::Machine;
use crate::compute::{
    code::Op,
    launch::Launch,
    outside::Outside,
    reach::{Noting, Reach},
    texture::{Gather, Lookup, Reader, Slot, Texture},
    trap::{Stop, WarpError},
    warp::{Warp, lanes_of},
};

/// The parts of the instruction that hold for all lanes.
#[derive(Clone, Copy)]
struct Form {
    is_array: bool,
    is_indirect: bool,
    coordinates: u8,
    has_offset: bool,
    has_reference: bool,
}

impl Form {
    fn of(op: &Op) -> Self {
        let shape = op.get(field::TEXTURE_SHAPE);
        Self {
            // A query has other bits there.
            is_array: shape & 1 != 0 && op.opcode != Opcode::Txq,
            is_indirect: op.get(field::TEXTURE_INDIRECT) != 0,
            coordinates: (shape >> 1) as u8 + u8::from(shape < 6),
            has_offset: op.get(field::TEXEL_OFFSET) != 0,
            has_reference: op.get(field::SHADOW) != 0 && op.opcode != Opcode::Tld,
        }
    }

    /// Registers in front of the coordinates.
    fn leading(self) -> u8 {
        u8::from(self.is_array || self.is_indirect)
    }
}

/// Takes the registers of a lane one after the other.
struct Taken<'a> {
    warp: &'a Warp,
    lane: usize,
    next: u8,
}

impl Taken<'_> {
    fn word(&mut self) -> u32 {
        let register = self.next;
        self.next = Warp::nth(register, 1);
        self.warp.register(register)[self.lane]
    }

    fn float(&mut self) -> f32 {
        f32::from_bits(self.word())
    }
}

/// Request of a lane, except for a query.
struct Asked<'a> {
    op: &'a Op,
    form: Form,
    layer: u32,
    /// From A on, after what leads.
    first: Taken<'a>,
    /// From B on.
    second: Taken<'a>,
}

pub(super) fn perform(warp: &mut Warp, op: &Op, lanes: u32, machine: &mut Machine<'_>) -> Result<(), Stop> {
    // Levels come of derivatives.
    if op.opcode == Opcode::Tmml {
        return Err(WarpError::InvalidOpcode.into());
    }
    machine.tally.global(false);
    for lane in lanes_of(lanes) {
        let results = one(warp, op, lane, machine.launch, machine.outside)?;
        let mask = op.get(field::TEXEL_MASK);
        let mut register = 0;
        for (index, value) in results.into_iter().enumerate() {
            if mask >> index & 1 != 0 {
                warp.set_lane(Warp::nth(op.dst, register), lane, value);
                register += 1;
            }
        }
    }
    Ok(())
}

/// What the lanes will read, up to the first that makes an error.
pub(super) fn reach(warp: &Warp, op: &Op, lanes: u32, machine: &Machine<'_>, reach: &mut Reach) {
    for lane in lanes_of(lanes) {
        let found = one(warp, op, lane, machine.launch, &mut Noting(reach));
        if found.is_err() {
            return;
        }
    }
}

/// The four results of a lane.
#[inline(always)]
fn one(
    warp: &Warp,
    op: &Op,
    lane: usize,
    launch: &Launch,
    outside: &mut dyn Outside,
) -> Result<[u32; 4], Stop> {
    let form = Form::of(op);
    let mut first = Taken {
        warp,
        lane,
        next: op.a,
    };
    let leading = if form.leading() != 0 { first.word() } else { 0 };
    let (slot, sampler_slot) = if form.is_indirect {
        (leading >> 23, leading >> 16 & 0x7f)
    } else {
        (op.get(field::TEXTURE), op.get(field::SAMPLER))
    };
    let layer = if form.is_array { leading & 0xffff } else { 0 };
    let texture = ready(launch.textures.texture(slot))?;
    if op.opcode == Opcode::Txq {
        const DIMENSIONS: u32 = 0;
        return match op.get(field::TEXTURE_QUERY) {
            DIMENSIONS => Ok(texture.dimensions(first.word())),
            _ => Err(WarpError::InvalidOpcode.into()),
        };
    }
    let asked = Asked {
        op,
        form,
        layer,
        first,
        second: Taken {
            warp,
            lane,
            next: op.get(field::SRC_B) as u8,
        },
    };
    let mut reader = Reader { outside };
    let found = if op.opcode == Opcode::Tld {
        fetch(texture, &mut reader, asked)
    } else {
        let sampler = ready(launch.textures.sampler(sampler_slot))?;
        sample(texture, sampler, &mut reader, asked)
    };
    found.map_err(Stop::TextureFault)
}

fn ready<T>(slot: &Slot<T>) -> Result<&T, Stop> {
    match slot {
        Slot::Ready(entry) => Ok(entry),
        Slot::Refused(refusal) => Err(Stop::TextureFault(*refusal)),
        Slot::Empty => Err(WarpError::Texture.into()),
    }
}

/// A coordinate each in four bits.
fn small_offsets(word: u32) -> [i32; 3] {
    [0, 4, 8].map(|low| ((word >> low) << 28) as i32 >> 28)
}

/// A coordinate each in eight bits.
fn wide_offsets(word: u32, low: u32) -> [i32; 2] {
    [low, low + 8].map(|low| i32::from((word >> low) as i8))
}

fn fetch(
    texture: &Texture,
    reader: &mut Reader<'_>,
    asked: Asked<'_>,
) -> Result<[u32; 4], crate::mmu::Refusal> {
    let Asked {
        op,
        form,
        layer,
        mut first,
        mut second,
    } = asked;
    let mut at = [0i32; 3];
    for coordinate in &mut at[..usize::from(form.coordinates)] {
        *coordinate = first.word() as i32;
    }
    let level = if op.get(field::LOD_GIVEN) != 0 {
        second.word()
    } else {
        0
    };
    if form.has_offset {
        let offset = small_offsets(second.word());
        for (coordinate, offset) in at.iter_mut().zip(offset) {
            *coordinate = coordinate.saturating_add(offset);
        }
    }
    texture.fetch(reader, at, layer, level)
}

fn sample(
    texture: &Texture,
    sampler: &Sampler,
    reader: &mut Reader<'_>,
    asked: Asked<'_>,
) -> Result<[u32; 4], crate::mmu::Refusal> {
    let Asked {
        op,
        form,
        layer,
        mut first,
        mut second,
    } = asked;
    let mut lookup = Lookup {
        at: [0.0; 3],
        layer,
        offset: [0; 3],
        level: 0.0,
        reference: None,
    };
    for coordinate in &mut lookup.at[..usize::from(form.coordinates)] {
        *coordinate = first.float();
    }
    match op.opcode {
        Opcode::Tex => {
            const GIVEN: u32 = 2;
            if op.get(field::LOD_MODE) & GIVEN != 0 {
                lookup.level = second.float();
            }
            if form.has_offset {
                lookup.offset = small_offsets(second.word());
            }
            lookup.reference = form.has_reference.then(|| second.float());
            texture.sample(reader, sampler, &lookup)
        }
        Opcode::Txd => {
            if form.has_offset {
                lookup.offset = small_offsets(first.word());
            }
            let mut steps = [[0.0; 2]; 3];
            for step in &mut steps[..usize::from(form.coordinates)] {
                *step = [second.float(), second.float()];
            }
            lookup.level = texture.level_for(steps);
            texture.sample(reader, sampler, &lookup)
        }
        _ => {
            const FOUR: u32 = 2;
            let mut gather = Gather {
                component: op.get(field::GATHER_COMPONENT) as usize,
                offsets: None,
            };
            match op.get(field::GATHER_OFFSET) {
                0 => {}
                FOUR => {
                    let words = [second.word(), second.word()];
                    gather.offsets = Some(std::array::from_fn(|index| {
                        wide_offsets(words[index / 2], 16 * (index as u32 % 2))
                    }));
                }
                _ => {
                    let [x, y] = wide_offsets(second.word(), 0);
                    lookup.offset = [x, y, 0];
                }
            }
            lookup.reference = form.has_reference.then(|| second.float());
            texture.gather(reader, sampler, &lookup, gather)
        }
    }
}
