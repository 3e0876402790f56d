//! A small Fermi driver: brings a GF100 up, maps memory, runs channels and copies.
//!
//! Order and values are those of nouveau (Linux 6.12, `drivers/gpu/drm/nouveau/nvkm/`). Left out are falcon
//! microcode (a virtual GPU's host has loaded it; a card of one's own would need it), contexts of PGRAPH,
//! and recovery from faults.
//!
//! # Memory
//!
//! VRAM below [`Driver::data_start`] holds instance memory; the rest is the user's. Guest RAM for rings, pushbuffers
//! and semaphores is taken from [`DriverConfig::dma`] from its start. There is one channel address space of
//! [`SPACE_BYTES`]; below [`USER_VA`] the driver maps its DMA memory there, above is the user's.
//!
//! BAR1 shows the USERD array at offset 0 and `WINDOWS` pages from 1 MiB on, see [`Driver::map_window`].
//!
//! # Flushes
//!
//! Mapping calls write table entries only. Batch them, then call [`Driver::flush_tlb`] once before the GPU uses them,
//! and once after unmapping before the memory is used for something else. A call that fails may have written a part
//! of its entries.
//!
//! # Cost
//!
//! Each access to a BAR may cost 50–100 µs when it traps. Bring-up makes about 95, a channel about 125, a submission
//! one, a TLB flush six; a mapping makes one 64-bit store for each page and about twelve more when it touches a page
//! of a table for the first time. Polls of semaphores read RAM.

mod address_space;
mod bringup;
mod channel;
mod compute;
mod copy;
mod error;
mod instance_memory;
mod poll;

pub use address_space::PageSize;
use channel::CHANNELS_MAX;
pub use channel::{ChannelId, Fence, Object};
pub use compute::{
    COMPUTE_BYTES, Compute, ComputeMemory, ConstantBank, Grid, LOCAL_WINDOW, SHARED_WINDOW, STACK_BYTES,
    STAMP_BYTES, Stamp,
};
pub use copy::{Copier, Copy, CopyPath};
pub use error::DriverError;

use crate::{GuestBus, Options};
use address_space::{AddressSpace, Backing};
use bringup::TlbScope;
use channel::Channel;
use core::ops::Range;
use fermi_spec::addr::{PDE_SPAN, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::instance::{INSTANCE_BYTES, USERD_BYTES};
use fermi_spec::regs::windows::PraminBase;
use fermi_spec::regs::{PRAMIN_BASE, PbusReg, PffbWord};
use instance_memory::{InstanceMemory, window_block};
use poll::Limit;

/// Directory entries of the channel address space.
const SPANS: usize = 128;
/// Bytes of the channel address space.
pub const SPACE_BYTES: u64 = SPANS as u64 * PDE_SPAN;
/// First virtual address that the driver leaves to its user.
pub const USER_VA: u64 = 1 << 31;
/// Where DMA memory is mapped.
const DMA_VA: u64 = PDE_SPAN;
/// Pages of VRAM that BAR1 can show at a time.
pub(crate) const WINDOWS: u64 = 256;
/// BAR1 offset of the USERD array.
const USERD_OFFSET: u64 = 0;
/// BAR1 offset of the first window.
const WINDOW_OFFSET: u64 = 1 << 20;
/// Bytes of the BAR1 space.
const BAR1_END: u64 = 2 << 20;

/// What the driver needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverConfig {
    /// Guest RAM (GPA) that the driver may use and the GPU may reach.
    pub dma: Range<u64>,
    /// Same as [`Options::interrupts`]: ask for them and open the line.
    pub interrupts: bool,
    /// Same as [`Options::vram_is_zeroed`]: untouched VRAM reads as zero.
    pub vram_is_zeroed: bool,
    /// Same as [`Options::timeout_ms`]: bound of a wait, in milliseconds.
    pub timeout_ms: u32,
}

impl DriverConfig {
    /// The driver's part of `options`.
    pub fn new(dma: Range<u64>, options: &Options) -> Self {
        Self {
            dma,
            interrupts: options.interrupts,
            vram_is_zeroed: options.vram_is_zeroed,
            timeout_ms: options.timeout_ms,
        }
    }
}

/// Guest RAM that the GPU can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaBlock {
    /// Address by which the guest reaches it.
    pub gpa: u64,
    /// Address by which the GPU reaches it, in the channel address space.
    pub va: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A GF100 that is up, and everything the driver keeps about it. Several KiB: keep it in one place.
pub struct Driver {
    limit: Limit,
    with_interrupts: bool,
    vram_bytes: u64,
    memory: InstanceMemory,
    bar1: AddressSpace<1>,
    space: AddressSpace<SPANS>,
    dma: Range<u64>,
    dma_next: u64,
    channels: [Channel; CHANNELS_MAX],
    /// VRAM address of the first USERD page.
    userd: u64,
    /// Two buffers, used in turn: a list that is being read must not be rewritten.
    runlists: [u64; 2],
    runlist_turn: usize,
    fences: DmaBlock,
}

impl Driver {
    /// Brings the device up: no channel yet, an empty address space.
    pub fn start(bus: &mut dyn GuestBus, config: &DriverConfig) -> Result<Self, DriverError> {
        let limit = Limit(u64::from(config.timeout_ms) * 1_000_000);
        bringup::identify(bus)?;
        bringup::enable_units(bus)?;
        let vram_bytes = bringup::vram_bytes(bus, instance_memory::END)?;
        let mut memory = InstanceMemory::start(bus, config.vram_is_zeroed, limit)?;

        let bar1_block = memory.allocate(bus, INSTANCE_BYTES, 0)?;
        let bar1 = AddressSpace::new(bus, &mut memory, BAR1_END, TlbScope::Bar)?;
        memory.show(bus, bar1_block, INSTANCE_BYTES)?;
        memory.write_space(bus, bar1_block, bar1.directory(), bar1.limit());
        bringup::flush_host_writes(bus, limit)?;
        poll::write(bus, PbusReg::Bar1Block, window_block(bar1_block));
        bringup::flush_host_writes(bus, limit)?;
        bringup::flush_host_writes(bus, limit)?;
        bringup::start_fifo(bus, USERD_OFFSET, config.interrupts)?;

        let space = AddressSpace::new(bus, &mut memory, SPACE_BYTES, TlbScope::Channel)?;
        let userd = memory.allocate(bus, CHANNELS_MAX as u64 * USERD_BYTES, 0)?;
        let runlists = memory.allocate(bus, 2 * SMALL_PAGE, 0)?;
        let start = config.dma.start.next_multiple_of(SMALL_PAGE);
        let mut driver = Self {
            limit,
            with_interrupts: config.interrupts,
            vram_bytes,
            memory,
            bar1,
            space,
            dma: start..config.dma.end.max(start),
            dma_next: start,
            channels: [const { Channel::new() }; CHANNELS_MAX],
            userd,
            runlists: [runlists, runlists + SMALL_PAGE],
            runlist_turn: 0,
            fences: DmaBlock {
                gpa: 0,
                va: 0,
                bytes: 0,
            },
        };
        driver.fences = driver.take_dma(bus, SMALL_PAGE)?;
        let flush_page = driver.take_dma(bus, SMALL_PAGE)?;
        poll::write(bus, PffbWord::FlushPage, (flush_page.gpa >> 8) as u32);
        if config.interrupts {
            driver.acknowledge(bus);
        }
        Ok(driver)
    }

    /// Bytes of VRAM that the GPU shows.
    pub fn vram_bytes(&self) -> u64 {
        self.vram_bytes
    }

    /// First byte of VRAM that the driver leaves to its user.
    pub const fn data_start() -> u64 {
        instance_memory::END
    }

    /// Takes `bytes` of DMA memory, rounded up to 4 KiB, and maps them for the channels: call [`Self::flush_tlb`]
    /// before use. It is never given back.
    pub fn take_dma(&mut self, bus: &mut dyn GuestBus, bytes: u64) -> Result<DmaBlock, DriverError> {
        let left = self.dma_left();
        let offset = self.dma_next - self.dma.start;
        let room = left.min((USER_VA - DMA_VA).saturating_sub(offset));
        let rounded = bytes.checked_next_multiple_of(SMALL_PAGE).unwrap_or(u64::MAX);
        if rounded > room {
            return Err(DriverError::DmaMemoryFull { wanted: bytes, left });
        }
        let block = DmaBlock {
            gpa: self.dma_next,
            va: DMA_VA + offset,
            bytes: rounded,
        };
        self.space.map(
            bus,
            &mut self.memory,
            block.va..block.va + rounded,
            Backing::Ram(block.gpa),
            PageSize::Small,
        )?;
        self.dma_next += rounded;
        Ok(block)
    }

    /// DMA memory that is not taken, in bytes. It lies at the end of [`DriverConfig::dma`].
    pub(crate) fn dma_left(&self) -> u64 {
        self.dma.end - self.dma_next
    }

    /// Maps VRAM from physical address `vram` at `va` for the channels. Everything is a multiple of the page size.
    pub fn map_vram(
        &mut self,
        bus: &mut dyn GuestBus,
        va: u64,
        vram: u64,
        bytes: u64,
        size: PageSize,
    ) -> Result<(), DriverError> {
        let range = va..va.saturating_add(bytes);
        self.space
            .map(bus, &mut self.memory, range, Backing::Vram(vram), size)
    }

    /// Maps guest RAM from `gpa` at `va` for the channels with small pages, snooped. Everything is a multiple of
    /// 4 KiB.
    pub fn map_ram(
        &mut self,
        bus: &mut dyn GuestBus,
        va: u64,
        gpa: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let range = va..va.saturating_add(bytes);
        let backing = Backing::Ram(gpa);
        self.space
            .map(bus, &mut self.memory, range, backing, PageSize::Small)
    }

    /// Makes the entries of `bytes` at `va` invalid, in the tables of that page size: a directory entry may have
    /// tables of both.
    pub fn unmap(
        &mut self,
        bus: &mut dyn GuestBus,
        va: u64,
        bytes: u64,
        size: PageSize,
    ) -> Result<(), DriverError> {
        let range = va..va.saturating_add(bytes);
        self.space.unmap(bus, &mut self.memory, range, size)
    }

    /// Makes the GPU see the channels' tables as they are now.
    pub fn flush_tlb(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        self.space.flush(bus, self.limit)
    }

    /// Shows the 4 KiB page of VRAM at `vram` in window `window` (below `WINDOWS`) of BAR1, after
    /// [`Self::flush_windows`]. Returns the offset in BAR1.
    pub fn map_window(&mut self, bus: &mut dyn GuestBus, window: u64, vram: u64) -> Result<u64, DriverError> {
        let offset = WINDOW_OFFSET + window.min(WINDOWS) * SMALL_PAGE;
        let range = offset..offset + SMALL_PAGE;
        self.bar1
            .map(bus, &mut self.memory, range, Backing::Vram(vram), PageSize::Small)?;
        Ok(offset)
    }

    /// Window `window` of BAR1 shows nothing, after [`Self::flush_windows`].
    pub(crate) fn unmap_window(&mut self, bus: &mut dyn GuestBus, window: u64) -> Result<(), DriverError> {
        let offset = WINDOW_OFFSET + window.min(WINDOWS) * SMALL_PAGE;
        let range = offset..offset + SMALL_PAGE;
        self.bar1.unmap(bus, &mut self.memory, range, PageSize::Small)
    }

    /// Makes BAR1 see its windows as they are now.
    pub fn flush_windows(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        self.bar1.flush(bus, self.limit)
    }

    /// Loads a word of VRAM through PRAMIN. `vram` is a multiple of 4.
    pub fn read_pramin(&mut self, bus: &mut dyn GuestBus, vram: u64) -> u32 {
        let base = PraminBase::new().with_base((vram >> 16) as u32);
        poll::write(bus, PbusReg::PraminBase, base.into_bits());
        bus.read32(Bar::Bar0, u64::from(PRAMIN_BASE) + (vram & 0xfffc))
    }
}
