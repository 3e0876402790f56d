//! The device from reset to a PFIFO that takes channels.
//!
//! The order is nouveau's (`device/base.c`, `mc/gf100.c`, `fb/ramgf100.c`, `fifo/gf100.c`) with everything left out
//! that a compute-only board does not need. Falcons are not started: on a virtual GPU the host has loaded the
//! microcode of the copy engines and of PGRAPH. On a card of one's own that would have to come before the first copy.

use super::DriverError;
use super::poll::{Limit, read, wait_register, write};
use crate::GuestBus;
use fermi_spec::engine::{ENGINES, Engine, PBDMAS, pmc_enable, pmc_intr};
use fermi_spec::regs::{Bar0Reg, pfifo, pmc};

/// PMC_BOOT_0 bits 28:20: the chipset.
const CHIPSET_MASK: u32 = 0x1ff0_0000;
const CHIPSET_GF100: u32 = 0x0c00_0000;
/// Partitions whose size registers exist.
const PARTITIONS_MAX: u32 = 8;
/// PBDMA interrupts that nouveau enables: all but bit 8.
const PBDMA_INTERRUPTS: u32 = 0xffff_feff;
/// PBDMA_STALL bits that nouveau clears.
const PBDMA_STALLS: u32 = 0x1000_0100;
/// PFIFO time-out bits that nouveau sets.
const FIFO_TIMEOUT: u32 = 0xbfff_ffff;

/// Checks that a GF100 answers.
pub(crate) fn identify(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    match read(bus, Bar0Reg::Boot0) {
        u32::MAX => Err(DriverError::NoDevice),
        boot0 if boot0 & CHIPSET_MASK != CHIPSET_GF100 => Err(DriverError::WrongChip { boot0 }),
        _ => Ok(()),
    }
}

/// Closes the interrupt lines and enables every unit. PFIFO is switched off and on again, which drops the state
/// of an earlier driver.
pub(crate) fn enable_units(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    write(bus, Bar0Reg::PmcIntrEnable(0), 0);
    write(bus, Bar0Reg::PmcIntrEnable(1), 0);
    write(bus, Bar0Reg::PmcEnable, !pmc_enable::PFIFO);
    write(bus, Bar0Reg::PmcEnable, u32::MAX);
    let engines = [Engine::Graph, Engine::Copy0, Engine::Copy1];
    let wanted = engines
        .iter()
        .fold(pmc_enable::PFIFO, |bits, engine| bits | 1 << engine.enable_bit());
    let enabled = read(bus, Bar0Reg::PmcEnable);
    if enabled & wanted == wanted {
        Ok(())
    } else {
        Err(DriverError::UnitsMissing { wanted, enabled })
    }
}

/// Bytes of VRAM from physical address zero on. With unequal partitions only the part common to all is counted: the
/// surplus lies elsewhere.
pub(crate) fn vram_bytes(bus: &mut dyn GuestBus, needed: u64) -> Result<u64, DriverError> {
    let partitions = read(bus, Bar0Reg::DesignPartitions);
    let disabled = read(bus, Bar0Reg::FusePartitions);
    let (mut count, mut smallest) = (0u64, u64::MAX);
    for partition in 0..partitions.min(PARTITIONS_MAX) {
        if disabled & 1 << partition == 0 {
            count += 1;
            let mebibytes = read(bus, Bar0Reg::PartitionMebibytes(partition as u16));
            smallest = smallest.min(u64::from(mebibytes));
        }
    }
    let bytes = if count == 0 { 0 } else { (count * smallest) << 20 };
    // Frames in a PTE have 25 bits for VRAM.
    if partitions > PARTITIONS_MAX || bytes < needed || bytes > 1 << 37 {
        return Err(DriverError::VramSize {
            partitions,
            bytes,
            needed,
        });
    }
    Ok(bytes)
}

/// Switches PFIFO on with its USERD array at `userd_va` of the BAR1 space.
pub(crate) fn start_fifo(
    bus: &mut dyn GuestBus,
    userd_va: u64,
    with_interrupts: bool,
) -> Result<(), DriverError> {
    write(bus, Bar0Reg::PbdmaEnable, u32::MAX);
    let enabled = read(bus, Bar0Reg::PbdmaEnable);
    if enabled != (1 << PBDMAS) - 1 {
        return Err(DriverError::PbdmasMissing { enabled });
    }
    write(bus, Bar0Reg::PfifoPbdmas, enabled);
    for number in 0..ENGINES as u16 {
        if let Some(engine) = Engine::from_number(number as u8) {
            write(bus, Bar0Reg::EnginePbdmaMask(number), !(1 << engine.pbdma()));
        }
    }
    for pbdma in 0..PBDMAS as u16 {
        let stall = read(bus, Bar0Reg::PbdmaStall(pbdma));
        write(bus, Bar0Reg::PbdmaStall(pbdma), stall & !PBDMA_STALLS);
        write(bus, Bar0Reg::PbdmaIntr(pbdma), u32::MAX);
        write(bus, Bar0Reg::PbdmaIntrEnable(pbdma), PBDMA_INTERRUPTS);
    }
    let fifo = read(bus, Bar0Reg::PfifoEnable);
    write(bus, Bar0Reg::PfifoEnable, fifo | 1);
    write(
        bus,
        Bar0Reg::UserdBase,
        pfifo::USERD_BASE_VALID | (userd_va >> 12) as u32,
    );
    let timeout = read(bus, Bar0Reg::PfifoTimeout(0));
    write(bus, Bar0Reg::PfifoTimeout(0), timeout | FIFO_TIMEOUT);
    write(bus, Bar0Reg::PfifoIntr, u32::MAX);
    let engine_events = if with_interrupts { pfifo::intr::ENGINE } else { 0 };
    // The runlist interrupt stays off: the driver polls for the end of a commit.
    let errors = !(pfifo::intr::ENGINE | pfifo::intr::RUNLIST);
    write(bus, Bar0Reg::PfifoIntrEnable, errors | engine_events);
    write(bus, Bar0Reg::EngineIntrEnable, 1);
    if with_interrupts {
        // Interrupts reach the line only from units that are let through.
        write(bus, Bar0Reg::PmcIntrMask(0), pmc_intr::PFIFO);
    }
    Ok(())
}

/// Makes stores through BAR1, BAR3 and PRAMIN visible to the GPU.
pub(crate) fn flush_host_writes(bus: &mut dyn GuestBus, limit: Limit) -> Result<(), DriverError> {
    write(bus, Bar0Reg::HostFlush, 1);
    wait_register(bus, limit, "the host flush", Bar0Reg::HostFlush, |value| {
        value & pmc::FLUSH_BUSY == 0
    })?;
    Ok(())
}

/// Which TLBs an invalidation reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlbScope {
    /// Hub and GPCs: the space of a channel.
    Channel,
    /// Hub only: the space of a BAR.
    Bar,
}

/// Makes the MMU forget the space of `directory` (a VRAM address), after the stores before it.
pub(crate) fn flush_tlb(
    bus: &mut dyn GuestBus,
    limit: Limit,
    directory: u64,
    scope: TlbScope,
) -> Result<(), DriverError> {
    flush_host_writes(bus, limit)?;
    wait_register(bus, limit, "room in the TLB queue", Bar0Reg::MmuConfig, |value| {
        value & pmc::MMU_CONFIG_SPACE != 0
    })?;
    // Bits 31:4 are the address >> 12; target 0 is VRAM.
    write(bus, Bar0Reg::TlbDirectory, (directory >> 12 << 4) as u32);
    let hub = if scope == TlbScope::Bar {
        pmc::TLB_HUB_ONLY
    } else {
        0
    };
    write(
        bus,
        Bar0Reg::TlbInvalidate,
        pmc::TLB_GO | pmc::TLB_ALL_PAGES | hub,
    );
    wait_register(bus, limit, "the TLB invalidation", Bar0Reg::MmuConfig, |value| {
        value & pmc::MMU_CONFIG_FLUSHED != 0
    })?;
    Ok(())
}
