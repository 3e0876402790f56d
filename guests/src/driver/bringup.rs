//! The device from reset to a PFIFO that takes channels.
//!
//! The order is nouveau's (`device/base.c`, `mc/gf100.c`, `fb/ramgf100.c`, `fifo/gf100.c`) with everything left out
//! that a compute-only board does not need. Falcons are not started: on a virtual GPU the host has loaded the
//! microcode of the copy engines and of PGRAPH. On a card of one's own that would have to come before the first copy.

use super::DriverError;
use super::poll::{Limit, read, wait_register, write};
use crate::GuestBus;
use fermi_spec::board::is_gf100;
use fermi_spec::engine::{ENGINES, Engine, PBDMAS, PBDMAS_PRESENT, pmc_enable, pmc_intr};
use fermi_spec::regs::{PbdmaReg, PffbReg, PfifoReg, PflushReg, PmcReg, PunitsReg, PunitsWord};
use fermi_spec::regs::{pbdma, pffb, pfifo, pflush};

/// Partitions whose size registers exist.
const PARTITIONS_MAX: u32 = 8;
/// PFIFO time-out bits that nouveau sets.
const FIFO_TIMEOUT: u32 = 0xbfff_ffff;

/// Checks that a GF100 answers.
pub(crate) fn identify(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    match read(bus, PmcReg::Boot0) {
        u32::MAX => Err(DriverError::NoDevice),
        boot0 if !is_gf100(boot0) => Err(DriverError::WrongChip { boot0 }),
        _ => Ok(()),
    }
}

/// Closes the interrupt lines and enables every unit. PFIFO is switched off and on again, which drops the state
/// of an earlier driver.
pub(crate) fn enable_units(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    write(bus, PmcReg::PmcIntrEnable(0), 0);
    write(bus, PmcReg::PmcIntrEnable(1), 0);
    write(bus, PmcReg::PmcEnable, !pmc_enable::PFIFO);
    write(bus, PmcReg::PmcEnable, u32::MAX);
    let engines = [Engine::Graph, Engine::Copy0, Engine::Copy1];
    let wanted = engines
        .iter()
        .fold(pmc_enable::PFIFO, |bits, engine| bits | 1 << engine.enable_bit());
    let enabled = read(bus, PmcReg::PmcEnable);
    if enabled & wanted == wanted {
        Ok(())
    } else {
        Err(DriverError::UnitsMissing { wanted, enabled })
    }
}

/// Bytes of VRAM from physical address zero on. With unequal partitions only the part common to all is counted: the
/// surplus lies elsewhere.
pub(crate) fn vram_bytes(bus: &mut dyn GuestBus, needed: u64) -> Result<u64, DriverError> {
    let partitions = read(bus, PunitsReg::DesignPartitions);
    let disabled = read(bus, PunitsWord::FusePartitions);
    let (mut count, mut smallest) = (0u64, u64::MAX);
    for partition in 0..partitions.min(PARTITIONS_MAX) {
        if disabled & 1 << partition == 0 {
            count += 1;
            let mebibytes = read(bus, PffbReg::PartitionMebibytes(partition as u16));
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
    write(bus, PmcReg::PbdmaEnable, u32::MAX);
    let enabled = read(bus, PmcReg::PbdmaEnable);
    if enabled != PBDMAS_PRESENT {
        return Err(DriverError::PbdmasMissing { enabled });
    }
    write(bus, PfifoReg::PfifoPbdmas, enabled);
    for number in 0..ENGINES as u16 {
        if let Some(engine) = Engine::from_number(number as u8) {
            write(bus, PfifoReg::EnginePbdmaMask(number), !(1 << engine.pbdma()));
        }
    }
    for pbdma in 0..PBDMAS as u16 {
        let stall = read(bus, PbdmaReg::PbdmaStall(pbdma));
        write(bus, PbdmaReg::PbdmaStall(pbdma), stall & !pbdma::STALL_CLEARED);
        write(bus, PbdmaReg::PbdmaIntr(pbdma), u32::MAX);
        write(bus, PbdmaReg::PbdmaIntrEnable(pbdma), pbdma::INTR_USUAL);
    }
    let fifo = read(bus, PfifoReg::PfifoEnable);
    write(bus, PfifoReg::PfifoEnable, fifo | pfifo::ENABLED);
    write(
        bus,
        PfifoReg::UserdBase,
        pfifo::USERD_BASE_VALID | (userd_va >> 12) as u32,
    );
    let timeout = read(bus, PfifoReg::PfifoTimeout(0));
    write(bus, PfifoReg::PfifoTimeout(0), timeout | FIFO_TIMEOUT);
    write(bus, PfifoReg::PfifoIntr, u32::MAX);
    let engine_events = if with_interrupts { pfifo::intr::ENGINE } else { 0 };
    // The runlist interrupt stays off: the driver polls for the end of a commit.
    let errors = !(pfifo::intr::ENGINE | pfifo::intr::RUNLIST);
    write(bus, PfifoReg::PfifoIntrEnable, errors | engine_events);
    write(bus, PfifoReg::EngineIntrEnable, pfifo::ENGINE_NOTIFY);
    if with_interrupts {
        // Interrupts reach the line only from units that are let through.
        write(bus, PmcReg::PmcIntrMask(0), pmc_intr::PFIFO);
    }
    Ok(())
}

/// Makes stores through BAR1, BAR3 and PRAMIN visible to the GPU.
pub(crate) fn flush_host_writes(bus: &mut dyn GuestBus, limit: Limit) -> Result<(), DriverError> {
    write(bus, PflushReg::HostFlush, 1);
    wait_register(bus, limit, "the host flush", PflushReg::HostFlush, |value| {
        value & pflush::FLUSH_BUSY == 0
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
    wait_register(bus, limit, "room in the TLB queue", PffbReg::MmuConfig, |value| {
        value & pffb::MMU_CONFIG_SPACE != 0
    })?;
    // Bits 31:4 are the address >> 12; target 0 is VRAM.
    write(bus, PffbReg::TlbDirectory, (directory >> 12 << 4) as u32);
    let hub = if scope == TlbScope::Bar {
        pffb::TLB_HUB_ONLY
    } else {
        0
    };
    write(
        bus,
        PffbReg::TlbInvalidate,
        pffb::TLB_GO | pffb::TLB_ALL_PAGES | hub,
    );
    wait_register(bus, limit, "the TLB invalidation", PffbReg::MmuConfig, |value| {
        value & pffb::MMU_CONFIG_FLUSHED != 0
    })?;
    Ok(())
}
