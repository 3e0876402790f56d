//! Slots of compute for textures, samplers and surfaces: how methods bind them, and how a launch reads them.
//!
//! A slot keeps the operand that bound it; entries of the pools are read when a grid is launched. assumptions: a slot
//! that instructions cannot name is not kept; samplers are bound by themselves (SAMPLER_BINDING is not looked at); the
//! slots of 3D are others, so drivers that take them for the same bind anew, as Mesa does.

use super::state::Area;
use crate::{
    compute::{SAMPLER_SLOTS, SURFACES, Slot, Surface, TEXTURE_SLOTS, Texture, Textures},
    mmu::{Access, AddressSpace},
    model::FermiModel,
};
use fermi_spec::{
    addr::GpuVa,
    graphics::{BindSampler, BindTexture, SurfaceFormat, SurfaceHeight, UnbindAll, compute, surface},
    surface::BlockSize,
    texture::{ENTRY_BYTES, Header, Sampler},
};

/// Mask of the highest entry's number in the method behind a pool's address.
const POOL_MASK: u32 = 0x3f_ffff;

impl FermiModel {
    /// Executes BIND_TEXTURE: keeps its operand in the slot.
    pub(super) fn bind_texture(&mut self, operand: BindTexture) {
        let slot = usize::from(operand.slot());
        self.graph.state.set(Area::TEXTURES, slot, operand.into_bits());
    }

    /// Executes BIND_SAMPLER: keeps its operand in the slot.
    pub(super) fn bind_sampler(&mut self, operand: BindSampler) {
        let slot = usize::from(operand.slot());
        self.graph.state.set(Area::SAMPLERS, slot, operand.into_bits());
    }

    /// Executes UNBIND_ALL: empties the slots that it names.
    pub(super) fn unbind_all(&mut self, operand: UnbindAll) {
        let state = &mut self.graph.state;
        for (is_meant, area) in [
            (operand.textures(), Area::TEXTURES),
            (operand.samplers(), Area::SAMPLERS),
            (operand.constants(), Area::BANKS),
        ] {
            if is_meant {
                state.clear(area);
            }
        }
    }

    /// The textures and samplers that are bound now.
    pub(super) fn bound_textures(&mut self, space: &AddressSpace) -> Textures {
        let mut found = Textures::default();
        for slot in 0..TEXTURE_SLOTS {
            let operand = BindTexture::from_bits(self.graph.state.get(Area::TEXTURES, slot));
            if operand.valid() {
                let entry = self.pool_entry(compute::TEXTURE_POOL_HIGH, operand.entry(), space);
                let texture = entry.and_then(|bytes| Texture::new(Header::from_bytes(&bytes)));
                found.textures.resize(slot + 1, Slot::Empty);
                found.textures[slot] = texture;
            }
        }
        for slot in 0..SAMPLER_SLOTS {
            let operand = BindSampler::from_bits(self.graph.state.get(Area::SAMPLERS, slot));
            if operand.valid() {
                let entry = self.pool_entry(compute::SAMPLER_POOL_HIGH, operand.entry(), space);
                found.samplers.resize(slot + 1, Slot::Empty);
                found.samplers[slot] = entry.and_then(|bytes| Some(Sampler::from_bytes(&bytes)));
            }
        }
        found
    }

    /// An entry of the pool whose methods begin at `high`.
    fn pool_entry(&mut self, high: u16, entry: u32, space: &AddressSpace) -> Slot<[u8; ENTRY_BYTES]> {
        let state = &self.graph.state;
        if entry > state.method(Area::COMPUTE, high + 8) & POOL_MASK {
            return Slot::Empty;
        }
        let va = GpuVa(state.address(Area::COMPUTE, high) + u64::from(entry) * ENTRY_BYTES as u64);
        let mut bytes = [0; ENTRY_BYTES];
        match self.mmu.read(&mut self.mem, space, Access::READ, va, &mut bytes) {
            Ok(()) => Slot::Ready(bytes),
            Err(refusal) => Slot::Refused(refusal),
        }
    }

    /// The surfaces that are set now.
    pub(super) fn bound_surfaces(&self) -> [Surface; SURFACES] {
        let state = &self.graph.state;
        std::array::from_fn(|index| {
            let first = compute::SURFACES + compute::SURFACE_STEP * index as u16;
            let value = |method: u16| state.method(Area::COMPUTE, first + method);
            Surface::new(
                state.address(Area::COMPUTE, first + surface::ADDRESS_HIGH),
                value(surface::WIDTH),
                SurfaceHeight::from_bits(value(surface::HEIGHT)),
                SurfaceFormat::from_bits(value(surface::FORMAT)),
                BlockSize::from_bits(value(surface::BLOCK_SIZE)),
            )
        })
    }
}
