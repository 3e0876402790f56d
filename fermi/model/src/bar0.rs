//! BAR0: from an offset to what the register does.
//!
//! A word is, in this order: the PRAMIN window, a register of a unit that is switched off, a named register, a fixed
//! word of the card's identity, plain storage, or unmodelled.

use crate::{identity, ltc::Ltc, model::FermiModel, pfifo::ChannelId};
use fermi_spec::{
    bar::Bar,
    board::BAR0_BYTES,
    engine::{Engine, pmc_enable},
    regs::{
        Bar0Reg, PBDMA_BASE, PBDMA_STRIDE, PCI_MIRROR_BASE, PCI_MIRROR_END, PRAMIN_BASE, PRAMIN_BYTES,
        PROM_BASE, PROM_END, engines,
        falcon::{COPY_BASE, FALCON_BYTES, FECS_BASE, FalconReg, GPCCS_BASE, PMU_BASE},
        ltc::SliceReg,
        pgraph::{GPCS_BASE, GPCS_BYTES, GRAPH_BASE, GRAPH_BYTES},
        pmc,
    },
};
use std::{ops::Range, sync::LazyLock};

mod fifo;

/// What an access to a unit reads that PMC_ENABLE keeps off (envytools; unverified on GF100).
const DISABLED_UNIT: u32 = 0xbad0_da00;
/// PBDMA registers below this are RAMFC words.
const RAMFC_BYTES: u32 = 0x100;
const PBDMAS_PRESENT: u32 = 7;

const COPY1_BASE: u32 = COPY_BASE + FALCON_BYTES;

/// Units that answer only while PMC_ENABLE has their bit.
const SWITCHED_UNITS: &[(Range<u32>, u32)] = &[
    (0x00_2000..0x00_4000, pmc_enable::PFIFO),
    (0x00_5000..0x00_5010, pmc_enable::PFIFO),
    (0x04_0000..0x04_6000, pmc_enable::PFIFO),
    (COPY_BASE..COPY1_BASE, 1 << Engine::Copy0.enable_bit()),
    (
        COPY1_BASE..COPY1_BASE + FALCON_BYTES,
        1 << Engine::Copy1.enable_bit(),
    ),
    (PMU_BASE..PMU_BASE + FALCON_BYTES, pmc_enable::PMU),
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
        } else if let Some(inside) = in_range(offset, PCI_MIRROR_BASE, PCI_MIRROR_END) {
            self.config_read(u64::from(inside), data);
        } else {
            let word = self.read_word(offset & !3).to_le_bytes();
            let start = (offset & 3) as usize;
            for (byte, value) in data.iter_mut().zip(&word[start..]) {
                *byte = *value;
            }
        }
    }

    /// Reads the ROM. Where there is none, and while it is switched off, there are ones.
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
        if let Some(reg) = SliceReg::decode(offset) {
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
            Some(Bar0Reg::PtimerLow | Bar0Reg::PtimerHigh)
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
        } else if let Some(inside) = in_range(offset, PCI_MIRROR_BASE, PCI_MIRROR_END) {
            self.config_write(u64::from(inside), part);
        } else if let Ok(word) = part.try_into() {
            self.write_word(offset, u32::from_le_bytes(word));
        } else if register_at(offset & !3).is_some_and(|reg| reg != Bar0Reg::VgaCrtc)
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
        let inside = offset.checked_sub(PBDMA_BASE)?;
        let pbdma = self.pbdmas.get((inside / PBDMA_STRIDE) as usize)?;
        let at = inside % PBDMA_STRIDE;
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
            Bar0Reg::PmcIntr(index) => self.pmc_interrupts(line(index)),
            Bar0Reg::PmcIntrEnable(index) => self.interrupts.enable[line(index)],
            Bar0Reg::PmcIntrLine(index) => u32::from(self.pmc_line(line(index))),
            Bar0Reg::PmcIntrMask(index) => self.interrupts.mask[line(index)],
            Bar0Reg::PmcEnable => self.pmc_enable,
            Bar0Reg::PbdmaEnable => self.pbdma_enable,
            Bar0Reg::PbusIntr => self.interrupts.bus,
            Bar0Reg::PbusIntrEnable => self.interrupts.bus_enable,
            Bar0Reg::PbusIntrEnableNonStall => self.interrupts.bus_enable_nonstall,
            Bar0Reg::PbusErrorAddress => self.interrupts.bus_error_address,
            Bar0Reg::PbusErrorData => self.interrupts.bus_error_data,
            Bar0Reg::PmuCommandRing => self.pmu.ring(engines::PMU_COMMAND_RING),
            Bar0Reg::PmuMessageRing => self.pmu.ring(engines::PMU_MESSAGE_RING),
            Bar0Reg::PtimerIntr => self.clock.intr,
            Bar0Reg::PtimerIntrEnable => self.clock.intr_enable,
            Bar0Reg::PtimerLow => self.clock.read() as u32,
            Bar0Reg::PtimerHigh => (self.clock.read() >> 32) as u32,
            Bar0Reg::PtimerAlarm => self.clock.alarm(),
            _ => return None,
        })
    }

    fn write_pmc(&mut self, reg: Bar0Reg, value: u32) -> bool {
        let line = |index: u16| usize::from(index).min(2);
        match reg {
            Bar0Reg::PmcIntr(_) | Bar0Reg::PmcIntrLine(_) => {}
            Bar0Reg::PmcIntrEnable(index) => self.interrupts.enable[line(index)] = value & 3,
            Bar0Reg::PmcIntrMask(index) => self.interrupts.mask[line(index)] = value,
            Bar0Reg::PmcEnable => self.set_pmc_enable(value),
            Bar0Reg::PbdmaEnable => self.pbdma_enable = value & PBDMAS_PRESENT,
            Bar0Reg::PbusIntr => self.interrupts.bus &= !value,
            Bar0Reg::PbusIntrEnable => self.interrupts.bus_enable = value,
            Bar0Reg::PbusIntrEnableNonStall => self.interrupts.bus_enable_nonstall = value,
            Bar0Reg::PbusErrorAddress => self.interrupts.bus_error_address = value,
            Bar0Reg::PbusErrorData | Bar0Reg::PmuCommandRing | Bar0Reg::PmuMessageRing => {}
            Bar0Reg::PtimerIntr => self.clock.intr &= !value,
            Bar0Reg::PtimerIntrEnable => self.clock.intr_enable = value,
            Bar0Reg::PtimerLow => self.clock.set_low(value),
            Bar0Reg::PtimerHigh => self.clock.set_high(value),
            Bar0Reg::PtimerAlarm => self.clock.set_alarm(value),
            _ => return false,
        }
        true
    }

    fn read_memory_unit(&self, reg: Bar0Reg) -> Option<u32> {
        Some(match reg {
            Bar0Reg::PraminBase => self.windows.pramin.into_bits(),
            Bar0Reg::Bar1Block => self.windows.bar1.block.into_bits(),
            Bar0Reg::Bar3Block => self.windows.bar3.block.into_bits(),
            Bar0Reg::MmuConfig => self.mmu.config(),
            Bar0Reg::TlbDirectory => self.mmu.flush_directory,
            // Flushes are done when the write returns.
            Bar0Reg::HostFlush
            | Bar0Reg::L2InvalidateSysram
            | Bar0Reg::L2InvalidatePeer
            | Bar0Reg::L2CleanTags
            | Bar0Reg::L2FlushDirty => 0,
            _ => return None,
        })
    }

    fn write_memory_unit(&mut self, reg: Bar0Reg, value: u32) -> bool {
        match reg {
            Bar0Reg::PraminBase => self.windows.pramin = value.into(),
            Bar0Reg::Bar1Block => self.set_window(Bar::Bar1, value),
            Bar0Reg::Bar3Block => self.set_window(Bar::Bar3, value),
            Bar0Reg::MmuConfig => {
                let flushed = self.mmu.set_config(value);
                self.note_flush(flushed);
            }
            Bar0Reg::TlbDirectory => self.mmu.flush_directory = value,
            Bar0Reg::TlbInvalidate if value & pmc::TLB_GO != 0 => {
                let flushed = self.mmu.invalidate(&mut self.mem, value);
                self.note_flush(flushed);
                self.windows.forget_spaces();
                self.peephole.forget_space();
            }
            Bar0Reg::TlbInvalidate
            | Bar0Reg::HostFlush
            | Bar0Reg::L2InvalidateSysram
            | Bar0Reg::L2InvalidatePeer
            | Bar0Reg::L2CleanTags
            | Bar0Reg::L2FlushDirty => {}
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
            self.storage.clear(PMU_BASE, FALCON_BYTES);
        }
        for unit in 0..self.units.len() {
            let bit = 1 << self.units[unit].engine.enable_bit();
            if fell & bit != 0 {
                self.reset_unit(unit);
                match self.units[unit].engine {
                    Engine::Copy0 => self.storage.clear(COPY_BASE, FALCON_BYTES),
                    Engine::Copy1 => self.storage.clear(COPY1_BASE, FALCON_BYTES),
                    Engine::Graph => {
                        self.storage.clear(GRAPH_BASE, GRAPH_BYTES);
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
    /// Of all GPCs at once.
    Gpccs,
}

/// The falcon and its register at an offset.
fn modelled_falcon(offset: u32) -> Option<(ModelledFalcon, FalconReg)> {
    let falcon = match offset & !(FALCON_BYTES - 1) {
        PMU_BASE => ModelledFalcon::Pmu,
        COPY_BASE => ModelledFalcon::Copy(Engine::Copy0),
        COPY1_BASE => ModelledFalcon::Copy(Engine::Copy1),
        FECS_BASE => ModelledFalcon::Fecs,
        GPCCS_BASE => ModelledFalcon::Gpccs,
        _ => return None,
    };
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
