//! BAR0: from an offset to what the register does.
//!
//! A word is, in this order: the PRAMIN window, a register of a unit that is switched off, a named register, a fixed
//! word of the card's identity, plain storage, or unmodelled.

use crate::{identity, ltc::Ltc, model::FermiModel, pfifo::ChannelId};
use fermi_spec::regs::fecs::FECS;
use fermi_spec::regs::fecs::GPCCS;
use fermi_spec::regs::pbdma::PBDMA;
use fermi_spec::regs::pcopy::PCOPY;
use fermi_spec::regs::pgraph::PGRAPH;
use fermi_spec::regs::pmu::PMU;
use fermi_spec::regs::ppci::PPCI;
use fermi_spec::regs::{pffb, pmu};
use fermi_spec::{
    bar::Bar,
    board::BAR0_BYTES,
    engine::{Engine, pmc_enable},
    regs::{
        Bar0Reg, PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END, PbusReg, PffbReg, PflushReg, PmcReg, PmuReg,
        PtimerReg, VgaReg,
        falcon::{FALCON_BYTES, FalconReg},
        ltc::SliceReg,
        pgraph::{GPCS_BASE, GPCS_BYTES, GRAPH_BYTES},
    },
};
use std::{ops::Range, sync::LazyLock};

mod fifo;

/// Value that reads of a unit give while PMC_ENABLE keeps it off (envytools; unverified on GF100).
const DISABLED_UNIT: u32 = 0xbad0_da00;
/// PBDMA registers below this are RAMFC words.
const RAMFC_BYTES: u32 = 0x100;
const PBDMAS_PRESENT: u32 = 7;

const COPY1_BASE: u32 = PCOPY.first + FALCON_BYTES;

/// Units that answer only while PMC_ENABLE has their bit.
const SWITCHED_UNITS: &[(Range<u32>, u32)] = &[
    (0x00_2000..0x00_4000, pmc_enable::PFIFO),
    (0x00_5000..0x00_5010, pmc_enable::PFIFO),
    (0x04_0000..0x04_6000, pmc_enable::PFIFO),
    (PCOPY.first..COPY1_BASE, 1 << Engine::Copy0.enable_bit()),
    (
        COPY1_BASE..COPY1_BASE + FALCON_BYTES,
        1 << Engine::Copy1.enable_bit(),
    ),
    (PMU.first..PMU.first + FALCON_BYTES, pmc_enable::PMU),
    (0x40_0000..0x42_0000, 1 << Engine::Graph.enable_bit()),
    (0x50_0000..0x52_0000, 1 << Engine::Graph.enable_bit()),
];

/// Registers by offset, for binary search: a guest's accesses should not each scan the whole table.
static BY_OFFSET: LazyLock<Vec<(u32, Bar0Reg)>> = LazyLock::new(|| {
    let mut registers: Vec<_> = Bar0Reg::all().map(|reg| (reg.offset(), reg)).collect();
    registers.sort_unstable_by_key(|(offset, _)| *offset);
    registers
});

fn register_at(offset: u32) -> Option<Bar0Reg> {
    let index = BY_OFFSET.binary_search_by_key(&offset, |(at, _)| *at).ok()?;
    Some(BY_OFFSET[index].1)
}

fn channel_id(index: u16) -> Option<ChannelId> {
    ChannelId::new(u32::from(index))
}

impl FermiModel {
    pub(crate) fn read_bar0(&mut self, offset: u64, data: &mut [u8]) {
        let Some(offset) = in_bar0(offset, data.len()) else {
            data.fill(0xff);
            return;
        };
        if let Some(inside) = in_pramin(offset, data.len()) {
            let place = self.pramin_place(inside);
            self.mem.read(place, data);
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u32;
            let start = (at & 3) as usize;
            let bytes = (4 - start).min(data.len() - done);
            self.read_part(at, &mut data[done..done + bytes]);
            done += bytes;
        }
    }

    pub(crate) fn write_bar0(&mut self, offset: u64, data: &[u8]) {
        let Some(offset) = in_bar0(offset, data.len()) else {
            return;
        };
        if let Some(inside) = in_pramin(offset, data.len()) {
            let place = self.pramin_place(inside);
            self.mem.write(place, data);
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u32;
            let start = (at & 3) as usize;
            let bytes = (4 - start).min(data.len() - done);
            self.write_part(at, &data[done..done + bytes]);
            done += bytes;
        }
    }

    /// Reads a word or a part of one.
    fn read_part(&mut self, offset: u32, data: &mut [u8]) {
        if let Some(inside) = in_range(offset, PROM_BASE, PROM_END) {
            self.read_prom(inside as usize, data);
        } else if let Some(inside) = in_range(offset, PPCI.first, PPCI.end()) {
            self.config_read(u64::from(inside), data);
        } else {
            let word = self.read_word(offset & !3).to_le_bytes();
            let start = (offset & 3) as usize;
            for (byte, value) in data.iter_mut().zip(&word[start..]) {
                *byte = *value;
            }
        }
    }

    /// Reads the ROM. Bytes behind its end, and all bytes while it is switched off, read as ones.
    fn read_prom(&self, inside: usize, data: &mut [u8]) {
        for (at, byte) in (inside..).zip(data) {
            let rom = self.rom.get(at).filter(|_| self.config.is_rom_visible());
            *byte = rom.copied().unwrap_or(0xff);
        }
    }

    fn read_word(&mut self, offset: u32) -> u32 {
        self.note_access(offset, false);
        if !self.is_unit_on(offset) {
            self.raise_squashed_access(offset, None);
            return DISABLED_UNIT;
        }
        if let Some(value) = modelled_falcon(offset).and_then(|(falcon, reg)| self.read_falcon(falcon, reg)) {
            return value;
        }
        let named = register_at(offset);
        if let Some(value) = named.and_then(|reg| self.read_register(reg)) {
            return value;
        }
        if let Some(word) = self.ramfc_word(offset) {
            return word;
        }
        if let Some(reg) = SliceReg::at(offset) {
            return Ltc::slice(reg);
        }
        if named.is_none() {
            self.unknown.note_unnamed_read(offset);
        }
        self.storage.read(offset).unwrap_or_else(|| {
            self.mem.counters.unmodelled_reads += 1;
            self.unknown.note_read(offset);
            0
        })
    }

    /// Ends a run of reads of one word, unless the access is one that a driver makes while it waits.
    fn note_access(&mut self, offset: u32, is_write: bool) {
        let is_time = matches!(
            register_at(offset),
            Some(Bar0Reg::Ptimer(PtimerReg::PtimerLow) | Bar0Reg::Ptimer(PtimerReg::PtimerHigh))
        );
        if is_write || (!is_time && !self.unknown.is_run_of(offset)) {
            self.unknown.end_run();
        }
    }

    fn write_word(&mut self, offset: u32, value: u32) {
        self.note_access(offset, true);
        if !self.is_unit_on(offset) {
            self.raise_squashed_access(offset, Some(value));
            return;
        }
        if let Some((falcon, reg)) = modelled_falcon(offset) {
            self.write_falcon(falcon, reg, value);
            return;
        }
        if let Some(reg) = register_at(offset)
            && self.write_register(reg, value)
        {
            return;
        }
        if !self.storage.write(offset, value) {
            self.mem.counters.unmodelled_writes += 1;
            self.unknown.note_write(offset);
        }
    }

    /// Writes a word or a part of one. Registers take words; the configuration space and plain words any part.
    fn write_part(&mut self, offset: u32, part: &[u8]) {
        if in_range(offset, PROM_BASE, PROM_END).is_some() {
            // Programming the ROM takes another way.
        } else if let Some(inside) = in_range(offset, PPCI.first, PPCI.end()) {
            self.config_write(u64::from(inside), part);
        } else if let Ok(word) = part.try_into() {
            self.write_word(offset, u32::from_le_bytes(word));
        } else if register_at(offset & !3).is_some_and(|reg| reg != Bar0Reg::Vga(VgaReg::VgaCrtc))
            || modelled_falcon(offset & !3).is_some()
        {
            self.mem.counters.unmodelled_writes += 1;
        } else {
            let start = (offset & 3) as usize;
            let mut word = self.storage.read(offset & !3).unwrap_or(0).to_le_bytes();
            word[start..start + part.len()].copy_from_slice(part);
            self.write_word(offset & !3, u32::from_le_bytes(word));
        }
    }

    fn read_falcon(&mut self, falcon: ModelledFalcon, reg: FalconReg) -> Option<u32> {
        match falcon {
            ModelledFalcon::Pmu => self.pmu.read(reg),
            ModelledFalcon::Copy(engine) => self.read_copy_falcon(engine, reg),
            ModelledFalcon::Fecs => self.graph.fecs.falcon.read(reg),
            ModelledFalcon::Gpccs => self.graph.fecs.gpccs.read(reg),
        }
    }

    fn write_falcon(&mut self, falcon: ModelledFalcon, reg: FalconReg, value: u32) {
        match falcon {
            ModelledFalcon::Pmu => self.pmu.write(reg, value),
            ModelledFalcon::Copy(engine) => self.write_copy_falcon(engine, reg, value),
            ModelledFalcon::Fecs => self.write_fecs_falcon(reg, value),
            ModelledFalcon::Gpccs => self.graph.fecs.write_gpccs(reg, value),
        }
    }

    fn is_unit_on(&self, offset: u32) -> bool {
        let unit = SWITCHED_UNITS.iter().find(|(range, _)| range.contains(&offset));
        unit.is_none_or(|(_, enable)| self.pmc_enable & enable != 0)
    }

    /// RAMFC words of the channel on a PBDMA.
    fn ramfc_word(&self, offset: u32) -> Option<u32> {
        let inside = offset.checked_sub(PBDMA.first)?;
        let pbdma = self.pbdmas.get((inside / PBDMA.bytes) as usize)?;
        let at = inside % PBDMA.bytes;
        (at < RAMFC_BYTES).then(|| pbdma.reg(u64::from(at)))
    }

    fn read_register(&mut self, reg: Bar0Reg) -> Option<u32> {
        identity::register(self.board, self.vram_bytes, reg)
            .or_else(|| self.read_pmc(reg))
            .or_else(|| self.read_peephole(reg))
            .or_else(|| self.ltc.read(reg))
            .or_else(|| self.read_memory_unit(reg))
            .or_else(|| self.read_pfifo(reg))
            .or_else(|| self.read_pbdma(reg))
            .or_else(|| self.read_graph(reg))
    }

    /// Whether the register has an effect of its own; otherwise the word is stored.
    fn write_register(&mut self, reg: Bar0Reg, value: u32) -> bool {
        identity::register(self.board, self.vram_bytes, reg).is_some()
            || self.write_pmc(reg, value)
            || self.write_peephole(reg, value)
            || self.ltc.write(reg, value)
            || self.write_memory_unit(reg, value)
            || self.write_pfifo(reg, value)
            || self.write_pbdma(reg, value)
            || self.write_graph(reg, value)
    }

    fn read_pmc(&mut self, reg: Bar0Reg) -> Option<u32> {
        let line = |index: u16| usize::from(index).min(2);
        Some(match reg {
            Bar0Reg::Pmc(PmcReg::PmcIntr(index)) => self.pmc_interrupts(line(index)),
            Bar0Reg::Pmc(PmcReg::PmcIntrEnable(index)) => self.interrupts.enable[line(index)],
            Bar0Reg::Pmc(PmcReg::PmcIntrLine(index)) => u32::from(self.pmc_line(line(index))),
            Bar0Reg::Pmc(PmcReg::PmcIntrMask(index)) => self.interrupts.mask[line(index)],
            Bar0Reg::Pmc(PmcReg::PmcEnable) => self.pmc_enable,
            Bar0Reg::Pmc(PmcReg::PbdmaEnable) => self.pbdma_enable,
            Bar0Reg::Pbus(PbusReg::PbusIntr) => self.interrupts.bus,
            Bar0Reg::Pbus(PbusReg::PbusIntrEnable) => self.interrupts.bus_enable,
            Bar0Reg::Pbus(PbusReg::PbusIntrEnableNonStall) => self.interrupts.bus_enable_nonstall,
            Bar0Reg::Pbus(PbusReg::PbusErrorAddress) => self.interrupts.bus_error_address,
            Bar0Reg::Pbus(PbusReg::PbusErrorData) => self.interrupts.bus_error_data,
            Bar0Reg::Pmu(PmuReg::PmuCommandRing) => self.pmu.ring(pmu::PMU_COMMAND_RING),
            Bar0Reg::Pmu(PmuReg::PmuMessageRing) => self.pmu.ring(pmu::PMU_MESSAGE_RING),
            Bar0Reg::Ptimer(PtimerReg::PtimerIntr) => self.clock.intr,
            Bar0Reg::Ptimer(PtimerReg::PtimerIntrEnable) => self.clock.intr_enable,
            Bar0Reg::Ptimer(PtimerReg::PtimerLow) => self.clock.read() as u32,
            Bar0Reg::Ptimer(PtimerReg::PtimerHigh) => (self.clock.read() >> 32) as u32,
            Bar0Reg::Ptimer(PtimerReg::PtimerAlarm) => self.clock.alarm(),
            _ => return None,
        })
    }

    fn write_pmc(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let line = |index: u16| usize::from(index).min(2);
        match reg {
            Bar0Reg::Pmc(PmcReg::PmcIntr(_)) | Bar0Reg::Pmc(PmcReg::PmcIntrLine(_)) => {}
            Bar0Reg::Pmc(PmcReg::PmcIntrEnable(index)) => self.interrupts.enable[line(index)] = value & 3,
            Bar0Reg::Pmc(PmcReg::PmcIntrMask(index)) => self.interrupts.mask[line(index)] = value,
            Bar0Reg::Pmc(PmcReg::PmcEnable) => self.set_pmc_enable(value),
            Bar0Reg::Pmc(PmcReg::PbdmaEnable) => self.pbdma_enable = value & PBDMAS_PRESENT,
            Bar0Reg::Pbus(PbusReg::PbusIntr) => self.interrupts.bus &= !value,
            Bar0Reg::Pbus(PbusReg::PbusIntrEnable) => self.interrupts.bus_enable = value,
            Bar0Reg::Pbus(PbusReg::PbusIntrEnableNonStall) => self.interrupts.bus_enable_nonstall = value,
            Bar0Reg::Pbus(PbusReg::PbusErrorAddress) => self.interrupts.bus_error_address = value,
            Bar0Reg::Pbus(PbusReg::PbusErrorData)
            | Bar0Reg::Pmu(PmuReg::PmuCommandRing)
            | Bar0Reg::Pmu(PmuReg::PmuMessageRing) => {}
            Bar0Reg::Ptimer(PtimerReg::PtimerIntr) => self.clock.intr &= !value,
            Bar0Reg::Ptimer(PtimerReg::PtimerIntrEnable) => self.clock.intr_enable = value,
            Bar0Reg::Ptimer(PtimerReg::PtimerLow) => self.clock.set_low(value),
            Bar0Reg::Ptimer(PtimerReg::PtimerHigh) => self.clock.set_high(value),
            Bar0Reg::Ptimer(PtimerReg::PtimerAlarm) => self.clock.set_alarm(value),
            _ => return false,
        }
        true
    }

    fn read_memory_unit(&self, reg: Bar0Reg) -> Option<u32> {
        Some(match reg {
            Bar0Reg::Pbus(PbusReg::PraminBase) => self.windows.pramin.into_bits(),
            Bar0Reg::Pbus(PbusReg::Bar1Block) => self.windows.bar1.block.into_bits(),
            Bar0Reg::Pbus(PbusReg::Bar3Block) => self.windows.bar3.block.into_bits(),
            Bar0Reg::Pffb(PffbReg::MmuConfig) => self.mmu.config(),
            Bar0Reg::Pffb(PffbReg::TlbDirectory) => self.mmu.flush_directory,
            // Flushes are done when the write returns.
            Bar0Reg::Pflush(PflushReg::HostFlush)
            | Bar0Reg::Pflush(PflushReg::L2InvalidateSysram)
            | Bar0Reg::Pflush(PflushReg::L2InvalidatePeer)
            | Bar0Reg::Pflush(PflushReg::L2CleanTags)
            | Bar0Reg::Pflush(PflushReg::L2FlushDirty) => 0,
            _ => return None,
        })
    }

    fn write_memory_unit(&mut self, reg: Bar0Reg, value: u32) -> bool {
        match reg {
            Bar0Reg::Pbus(PbusReg::PraminBase) => self.windows.pramin = value.into(),
            Bar0Reg::Pbus(PbusReg::Bar1Block) => self.set_window(Bar::Bar1, value),
            Bar0Reg::Pbus(PbusReg::Bar3Block) => self.set_window(Bar::Bar3, value),
            Bar0Reg::Pffb(PffbReg::MmuConfig) => {
                let flushed = self.mmu.set_config(value);
                self.note_flush(flushed);
            }
            Bar0Reg::Pffb(PffbReg::TlbDirectory) => self.mmu.flush_directory = value,
            Bar0Reg::Pffb(PffbReg::TlbInvalidate) if value & pffb::TLB_GO != 0 => {
                let flushed = self.mmu.invalidate(&mut self.mem, value);
                self.note_flush(flushed);
                self.windows.forget_spaces();
                self.peephole.forget_space();
            }
            Bar0Reg::Pffb(PffbReg::TlbInvalidate)
            | Bar0Reg::Pflush(PflushReg::HostFlush)
            | Bar0Reg::Pflush(PflushReg::L2InvalidateSysram)
            | Bar0Reg::Pflush(PflushReg::L2InvalidatePeer)
            | Bar0Reg::Pflush(PflushReg::L2CleanTags)
            | Bar0Reg::Pflush(PflushReg::L2FlushDirty) => {}
            _ => return false,
        }
        true
    }

    /// Writes PMC_ENABLE: a falling bit resets its unit, a rising one starts it.
    pub(crate) fn set_pmc_enable(&mut self, value: u32) {
        let fell = self.pmc_enable & !value;
        let rose = value & !self.pmc_enable;
        self.pmc_enable = value;
        if fell & pmc_enable::PFIFO != 0 {
            self.reset_pfifo();
        }
        if fell & pmc_enable::PMU != 0 {
            self.pmu.reset();
            self.storage.clear(PMU.first, FALCON_BYTES);
        }
        for unit in 0..self.units.len() {
            let bit = 1 << self.units[unit].engine.enable_bit();
            if fell & bit != 0 {
                self.reset_unit(unit);
                match self.units[unit].engine {
                    Engine::Copy0 => self.storage.clear(PCOPY.first, FALCON_BYTES),
                    Engine::Copy1 => self.storage.clear(COPY1_BASE, FALCON_BYTES),
                    Engine::Graph => {
                        self.storage.clear(PGRAPH.first, GRAPH_BYTES);
                        self.storage.clear(GPCS_BASE, GPCS_BYTES);
                    }
                    _ => {}
                }
            } else if rose & bit != 0 {
                self.enable_unit(unit);
            }
        }
    }
}

/// The offset, if the whole access lies in BAR0.
fn in_bar0(offset: u64, bytes: usize) -> Option<u32> {
    let end = offset.checked_add(bytes as u64)?;
    if end <= BAR0_BYTES {
        u32::try_from(offset).ok()
    } else {
        None
    }
}

/// Distance from `first`, if the offset lies before `end` too.
fn in_range(offset: u32, first: u32, end: u32) -> Option<u32> {
    (first..end).contains(&offset).then(|| offset - first)
}

/// A falcon that the model has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ModelledFalcon {
    Pmu,
    Copy(Engine),
    Fecs,
    /// Access to all GPCs at once.
    Gpccs,
}

/// The falcons by their first byte.
const MODELLED: [(u32, ModelledFalcon); 5] = [
    (PMU.first, ModelledFalcon::Pmu),
    (PCOPY.first, ModelledFalcon::Copy(Engine::Copy0)),
    (COPY1_BASE, ModelledFalcon::Copy(Engine::Copy1)),
    (FECS.first, ModelledFalcon::Fecs),
    (GPCCS.first, ModelledFalcon::Gpccs),
];

/// The falcon and its register at an offset.
fn modelled_falcon(offset: u32) -> Option<(ModelledFalcon, FalconReg)> {
    let (_, falcon) = *MODELLED
        .iter()
        .find(|(first, _)| *first == offset & !(FALCON_BYTES - 1))?;
    let reg = FalconReg::decode(offset % FALCON_BYTES)?;
    // Those of PGRAPH have its own registers there: counts of units, resets.
    let is_of_graph = matches!(falcon, ModelledFalcon::Fecs | ModelledFalcon::Gpccs);
    (!is_of_graph || !matches!(reg, FalconReg::MemoryPort(_))).then_some((falcon, reg))
}

/// The offset in the window, if the whole access lies in it.
fn in_pramin(offset: u32, bytes: usize) -> Option<u32> {
    let inside = offset.checked_sub(PRAMIN_BASE)?;
    (u64::from(inside) + bytes as u64 <= u64::from(PRAMIN_BYTES)).then_some(inside)
}
