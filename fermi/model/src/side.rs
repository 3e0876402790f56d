//! One side of a copy: from a line and a byte in it to an address.

use crate::{
    memory::{Memory, Place},
    mmu::{Access, AddressSpace, Mmu, Refusal},
};
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr, SMALL_PAGE},
    surface::BlockLinear,
};

/// Layout of the lines of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// Bytes from one line to the next.
    Pitch(u32),
    /// A surface, and where in it (byte, line, layer) the first byte of the first line lies.
    Blocks(BlockLinear, [u64; 3]),
}

/// Source or target of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Side {
    base: GpuVa,
    layout: Layout,
    /// Memory whose physical addresses are meant, past the page tables.
    physical: Option<Aperture>,
}

impl Side {
    /// Lines from `base` on, or in the surface at `base`.
    pub(crate) fn new(base: GpuVa, layout: Layout) -> Self {
        Self {
            base,
            layout,
            physical: None,
        }
    }

    /// The same side, with physical addresses of a memory.
    pub(crate) fn in_physical(self, memory: Option<Aperture>) -> Self {
        Self {
            physical: memory,
            ..self
        }
    }

    /// Whether lines of `line_bytes` bytes follow each other without gaps.
    pub(crate) fn is_solid(&self, line_bytes: u32) -> bool {
        self.layout == Layout::Pitch(line_bytes)
    }

    /// Where a byte of a line lies, and how many bytes of the line follow each other from there on.
    ///
    /// An address beyond 64 bits becomes the last one, which no address space has.
    pub(crate) fn run(&self, line: u32, byte: u64) -> (GpuVa, u64) {
        let line = u64::from(line);
        let (offset, bytes) = match self.layout {
            Layout::Pitch(pitch) => ((line * u64::from(pitch)).saturating_add(byte), u64::MAX),
            Layout::Blocks(surface, [x, y, z]) => {
                let x = x.saturating_add(byte);
                (surface.offset([x, y + line, z]), surface.run(x))
            }
        };
        (GpuVa(self.base.0.saturating_add(offset)), bytes)
    }
}

/// Pages remembered on one side of a piece of a copy.
const REMEMBERED: usize = 64;

/// The translations of one side during one piece of a copy, so that the TLB is asked once for each page and not for
/// each line of a GOB.
pub(crate) struct Pages {
    access: Access,
    physical: Option<Aperture>,
    /// Long runs are translated past the TLB.
    past_tlb: bool,
    known: [Option<(u64, Place)>; REMEMBERED],
}

impl Pages {
    pub(crate) fn new(side: &Side, access: Access) -> Self {
        Self {
            access,
            physical: side.physical,
            past_tlb: false,
            known: [None; REMEMBERED],
        }
    }

    /// The same, of a copy whose pages nobody uses again soon.
    pub(crate) fn past_tlb(self, past_tlb: bool) -> Self {
        Self { past_tlb, ..self }
    }

    /// Translates the start of `bytes` bytes at `va`, as [`Mmu::translate`] does. Long runs go there.
    pub(crate) fn translate(
        &mut self,
        mmu: &mut Mmu,
        mem: &mut Memory,
        space: &AddressSpace,
        va: GpuVa,
        bytes: u64,
    ) -> Result<(Place, u64), Refusal> {
        if let Some(aperture) = self.physical {
            let at = PhysAddr(va.0);
            return Ok((Place { aperture, at }, bytes));
        }
        let inside = va.within(SMALL_PAGE);
        if bytes > SMALL_PAGE - inside {
            let (place, run) = match self.past_tlb {
                true => mmu.translate_past_tlb(mem, space, self.access, va, bytes)?,
                false => mmu.translate(mem, space, self.access, va, bytes)?,
            };
            mmu.count_range(mem, space, va, run, self.access.write);
            return Ok((place, run));
        }
        let page = va.0 / SMALL_PAGE;
        let slot = &mut self.known[(page % REMEMBERED as u64) as usize];
        if let Some((known, place)) = *slot
            && known == page
        {
            return Ok((place.offset(inside), bytes));
        }
        let (place, run) = mmu.translate(mem, space, self.access, va, bytes)?;
        mmu.count_range(mem, space, va, run, self.access.write);
        // The limit of an address space may end within a page: then it is not all of the page that may be used.
        if space.limit | (SMALL_PAGE - 1) == space.limit {
            *slot = Some((page, place.before(inside)));
        }
        Ok((place, run))
    }
}
