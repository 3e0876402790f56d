//! The low part of VRAM that holds instance blocks, directories, tables, USERD and runlists.
//!
//! BAR3 shows byte x of VRAM at offset x, for the pages made visible so far. Its own page table is built through
//! PRAMIN with just enough entries to show the table itself; everything after that goes through BAR3, so the slow
//! window of BAR0 sees a dozen stores. A page becomes visible when it is first written: of a 256 KiB table, the
//! pages without entries cost nothing.

use super::DriverError;
use super::bringup::{TlbScope, flush_host_writes, flush_tlb};
use super::poll::{Limit, write};
use crate::GuestBus;
use fermi_spec::addr::{PhysAddr, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::instance::{AddressSpacePointer, INSTANCE_BYTES, offset};
use fermi_spec::pte::{PD_BYTES, Pde, PdeAperture, Pte, SMALL_PT_BYTES};
use fermi_spec::regs::windows::{PraminBase, WindowBlock};
use fermi_spec::regs::{PRAMIN_BASE, PbusReg};

/// First byte handed out. What is below belongs to the board's firmware on a card.
const START: u64 = 0x4_0000;
/// One past the last byte of VRAM that is kept for instance memory.
pub(crate) const END: u64 = 4 << 20;
const PAGES: usize = (END / SMALL_PAGE) as usize;

/// Allocator and window; blocks are never given back, so their owners keep them for reuse.
pub(crate) struct InstanceMemory {
    next: u64,
    directory: u64,
    table: u64,
    visible: [u32; PAGES / 32],
    vram_is_zeroed: bool,
    limit: Limit,
}

impl InstanceMemory {
    /// Builds the BAR3 space through PRAMIN and switches BAR3 to it.
    pub(crate) fn start(
        bus: &mut dyn GuestBus,
        vram_is_zeroed: bool,
        limit: Limit,
    ) -> Result<Self, DriverError> {
        let block = START;
        let directory = block + INSTANCE_BYTES;
        let table = directory + PD_BYTES;
        let mut memory = Self {
            next: table + SMALL_PT_BYTES,
            directory,
            table,
            visible: [0; PAGES / 32],
            vram_is_zeroed,
            limit,
        };
        // All of it lies in the first MiB: one place of the window serves.
        const { assert!(START + INSTANCE_BYTES + PD_BYTES + SMALL_PT_BYTES <= 1 << 20) };
        write(bus, PbusReg::PraminBase, PraminBase::new().into_bits());
        if !vram_is_zeroed {
            // The limit of the space keeps the MMU from looking further.
            (0..PAGES as u64).for_each(|index| pramin_write64(bus, table + index * 8, 0));
        }
        for page in table / SMALL_PAGE..(table + PAGES as u64 * 8).div_ceil(SMALL_PAGE) {
            pramin_write64(bus, table + page * 8, vram_pte(page * SMALL_PAGE));
            memory.mark_visible(page);
        }
        let pde = Pde::new()
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame((table >> 12) as u32);
        pramin_write64(bus, directory, pde.into_bits());
        for (index, word) in space_words(directory, END - 1).into_iter().enumerate() {
            pramin_write32(bus, block + offset::PD_LO + index as u64 * 4, word);
        }
        flush_host_writes(bus, limit)?;
        write(bus, PbusReg::Bar3Block, window_block(block));
        flush_host_writes(bus, limit)?;
        flush_host_writes(bus, limit)?;
        Ok(memory)
    }

    /// Takes `bytes`, a multiple of 4 KiB, aligned to 4 KiB; the first `zeroed` of them read as zero.
    pub(crate) fn allocate(
        &mut self,
        bus: &mut dyn GuestBus,
        bytes: u64,
        zeroed: u64,
    ) -> Result<u64, DriverError> {
        let left = END - self.next;
        if bytes > left {
            return Err(DriverError::InstanceMemoryFull { wanted: bytes, left });
        }
        let at = self.next;
        self.next += bytes;
        if !self.vram_is_zeroed && zeroed != 0 {
            self.clear(bus, at, zeroed)?;
        }
        Ok(at)
    }

    /// Zeroes `bytes`, a multiple of 8.
    pub(crate) fn clear(&mut self, bus: &mut dyn GuestBus, at: u64, bytes: u64) -> Result<(), DriverError> {
        self.show(bus, at, bytes)?;
        (0..bytes / 8).for_each(|index| bus.write64(Bar::Bar3, at + index * 8, 0));
        Ok(())
    }

    /// Makes the pages of `bytes` at `at` reachable through BAR3. The caller stores to them.
    pub(crate) fn show(&mut self, bus: &mut dyn GuestBus, at: u64, bytes: u64) -> Result<(), DriverError> {
        debug_assert!(at + bytes <= END && bytes != 0, "{bytes} bytes at {at:#x}");
        let mut is_stale = false;
        for page in at / SMALL_PAGE..(at + bytes).div_ceil(SMALL_PAGE) {
            if !self.is_visible(page) {
                bus.write64(Bar::Bar3, self.table + page * 8, vram_pte(page * SMALL_PAGE));
                self.mark_visible(page);
                is_stale = true;
            }
        }
        if is_stale {
            flush_tlb(bus, self.limit, self.directory, TlbScope::Bar)?;
        }
        Ok(())
    }

    /// Stores the address-space pointer into an instance block that is shown.
    pub(crate) fn write_space(&self, bus: &mut dyn GuestBus, block: u64, directory: u64, limit: u64) {
        for (index, word) in space_words(directory, limit).into_iter().enumerate() {
            bus.write32(Bar::Bar3, block + offset::PD_LO + index as u64 * 4, word);
        }
    }

    fn is_visible(&self, page: u64) -> bool {
        self.visible[page as usize / 32] & 1 << (page % 32) != 0
    }

    fn mark_visible(&mut self, page: u64) {
        self.visible[page as usize / 32] |= 1 << (page % 32);
    }
}

/// Register value that sends a BAR through the space of the instance block at `block`.
pub(crate) fn window_block(block: u64) -> u32 {
    WindowBlock::new()
        .with_frame((block >> 12) as u32)
        .with_enable(true)
        .into_bits()
}

fn vram_pte(address: u64) -> u64 {
    Pte::new()
        .with_valid(true)
        .with_frame((address >> 12) as u32)
        .into_bits()
}

fn space_words(directory: u64, limit: u64) -> [u32; 4] {
    AddressSpacePointer {
        aperture: fermi_spec::addr::Aperture::Vram,
        directory: PhysAddr(directory),
        limit,
    }
    .into_words()
}

fn pramin_write32(bus: &mut dyn GuestBus, at: u64, value: u32) {
    bus.write32(Bar::Bar0, u64::from(PRAMIN_BASE) + at, value);
}

/// The high half goes first: an entry becomes valid with its last store.
fn pramin_write64(bus: &mut dyn GuestBus, at: u64, value: u64) {
    pramin_write32(bus, at + 4, (value >> 32) as u32);
    pramin_write32(bus, at, value as u32);
}
