//! One page-directory tree, written through BAR3.

use super::DriverError;
use super::bringup::{TlbScope, flush_tlb};
use super::instance_memory::InstanceMemory;
use super::poll::Limit;
use crate::GuestBus;
use core::ops::Range;
use fermi_spec::addr::{Aperture, LARGE_PAGE, PDE_SPAN, PHYS_BITS, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::pte::{LARGE_PT_BYTES, PD_BYTES, Pde, PdeAperture, Pte, SMALL_PT_BYTES};

/// Which of the two tables under a directory entry a mapping uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// Pages of 4 KiB, for VRAM or RAM.
    Small,
    /// Pages of 128 KiB, for VRAM only.
    Large,
}

impl PageSize {
    /// Bytes of a page.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => SMALL_PAGE,
            Self::Large => LARGE_PAGE,
        }
    }

    const fn table_bytes(self) -> u64 {
        match self {
            Self::Small => SMALL_PT_BYTES,
            Self::Large => LARGE_PT_BYTES,
        }
    }
}

/// The tables of `SPANS` × 128 MiB; an address of zero is no table.
pub(crate) struct AddressSpace<const SPANS: usize> {
    directory: u64,
    /// One past the last byte.
    end: u64,
    pdes: [Pde; SPANS],
    scope: TlbScope,
}

/// The memory behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// VRAM from this physical address on.
    Vram(u64),
    /// Guest RAM from this GPA on.
    Ram(u64),
}

impl<const SPANS: usize> AddressSpace<SPANS> {
    /// An empty space of `end` bytes.
    pub(crate) fn new(
        bus: &mut dyn GuestBus,
        memory: &mut InstanceMemory,
        end: u64,
        scope: TlbScope,
    ) -> Result<Self, DriverError> {
        debug_assert!(end <= SPANS as u64 * PDE_SPAN);
        // The MMU reads no entry beyond the limit of the space, so those need no clearing.
        let directory = memory.allocate(bus, PD_BYTES, SPANS as u64 * 8)?;
        Ok(Self {
            directory,
            end,
            pdes: [Pde::new(); SPANS],
            scope,
        })
    }

    /// VRAM address of the directory.
    pub(crate) fn directory(&self) -> u64 {
        self.directory
    }

    /// Last valid address.
    pub(crate) fn limit(&self) -> u64 {
        self.end - 1
    }

    /// Maps `bytes` at `va`; visible to the GPU after [`Self::flush`].
    pub(crate) fn map(
        &mut self,
        bus: &mut dyn GuestBus,
        memory: &mut InstanceMemory,
        range: Range<u64>,
        backing: Backing,
        size: PageSize,
    ) -> Result<(), DriverError> {
        let (first, aperture) = match backing {
            Backing::Vram(address) => (address, Aperture::Vram),
            Backing::Ram(address) => (address, Aperture::SysCoherent),
        };
        self.check(&range, first, size)?;
        let template = Pte::new()
            .with_valid(true)
            .with_volatile(aperture.is_sysram())
            .with_aperture(aperture);
        for part in spans(range.clone()) {
            let address = first + (part.start - range.start);
            self.provide_table(bus, memory, part.start, size)?;
            self.store_entries(bus, memory, part, size, |index| {
                let frame = (address + index * size.bytes()) >> 12;
                template.with_frame(frame as u32)
            })?;
        }
        Ok(())
    }

    /// Makes the entries of `range` invalid in its tables of that size; in force after [`Self::flush`].
    pub(crate) fn unmap(
        &mut self,
        bus: &mut dyn GuestBus,
        memory: &mut InstanceMemory,
        range: Range<u64>,
        size: PageSize,
    ) -> Result<(), DriverError> {
        self.check(&range, 0, size)?;
        for part in spans(range) {
            if self.table(part.start, size).is_some() {
                self.store_entries(bus, memory, part, size, |_| Pte::new())?;
            }
        }
        Ok(())
    }

    /// Makes the MMU use the tables as they are now.
    pub(crate) fn flush(&self, bus: &mut dyn GuestBus, limit: Limit) -> Result<(), DriverError> {
        flush_tlb(bus, limit, self.directory, self.scope)
    }

    fn check(&self, range: &Range<u64>, address: u64, size: PageSize) -> Result<(), DriverError> {
        let bytes = range.end.saturating_sub(range.start);
        let is_aligned = (range.start | range.end | address) & (size.bytes() - 1) == 0;
        let is_inside = address
            .checked_add(bytes)
            .is_some_and(|end| end <= 1 << PHYS_BITS);
        if bytes != 0 && range.end <= self.end && is_aligned && is_inside {
            return Ok(());
        }
        let va = range.start;
        Err(DriverError::BadMapping { va, address, bytes })
    }

    fn table(&self, va: u64, size: PageSize) -> Option<u64> {
        let pde = self.pdes[(va / PDE_SPAN) as usize];
        let table = match size {
            PageSize::Small => pde.small_table(),
            PageSize::Large => pde.large_table(),
        };
        table.map(|(_, address)| address.0)
    }

    fn provide_table(
        &mut self,
        bus: &mut dyn GuestBus,
        memory: &mut InstanceMemory,
        va: u64,
        size: PageSize,
    ) -> Result<(), DriverError> {
        if self.table(va, size).is_some() {
            return Ok(());
        }
        let table = memory.allocate(bus, size.table_bytes(), size.table_bytes())?;
        let index = (va / PDE_SPAN) as usize;
        let frame = (table >> 12) as u32;
        let pde = match size {
            PageSize::Small => self.pdes[index]
                .with_small_aperture(PdeAperture::Vram)
                .with_small_frame(frame),
            PageSize::Large => self.pdes[index]
                .with_large_aperture(PdeAperture::Vram)
                .with_large_frame(frame),
        };
        let at = self.directory + index as u64 * 8;
        memory.show(bus, at, 8)?;
        bus.write64(Bar::Bar3, at, pde.into_bits());
        self.pdes[index] = pde;
        Ok(())
    }

    /// Stores the entries of `part`, which lies under one directory entry whose table exists.
    fn store_entries(
        &mut self,
        bus: &mut dyn GuestBus,
        memory: &mut InstanceMemory,
        part: Range<u64>,
        size: PageSize,
        entry: impl Fn(u64) -> Pte,
    ) -> Result<(), DriverError> {
        let Some(table) = self.table(part.start, size) else {
            return Ok(());
        };
        let first = table + part.start % PDE_SPAN / size.bytes() * 8;
        let count = (part.end - part.start) / size.bytes();
        memory.show(bus, first, count * 8)?;
        for index in 0..count {
            bus.write64(Bar::Bar3, first + index * 8, entry(index).into_bits());
        }
        Ok(())
    }
}

/// Cuts a range at the borders of directory entries.
fn spans(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut next = range.start;
    core::iter::from_fn(move || {
        let start = next;
        next = (start / PDE_SPAN + 1).saturating_mul(PDE_SPAN).min(range.end);
        (start < range.end).then_some(start..next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_over_a_border_is_cut_there() {
        let parts: Vec<_> = spans(PDE_SPAN - 4096..PDE_SPAN * 2 + 4096).collect();
        assert_eq!(
            parts,
            [
                PDE_SPAN - 4096..PDE_SPAN,
                PDE_SPAN..PDE_SPAN * 2,
                PDE_SPAN * 2..PDE_SPAN * 2 + 4096
            ]
        );
    }

    #[test]
    fn empty_range_has_no_parts() {
        assert_eq!(spans(4096..4096).count(), 0);
    }
}
