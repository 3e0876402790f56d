//! BAR0: from an offset to what the register does.
//!
//! An access is cut into words ([`pieces`]); a word is, in this order: part of the PRAMIN window, of PROM or of the mirror
//! of the configuration space, a word of a unit that is switched off, a register ([`Bar0Word`]), a RAMFC word of a PBDMA, plain
//! storage, or unmodelled. Each unit answers its registers by an exhaustive match in a file of its own, so one that is
//! added in `fermi_spec` does not compile until somebody has said what it does.

use crate::{identity, ltc::Ltc, model::FermiModel, pfifo::ChannelId, pmu::Pmu};
use fermi_spec::{
    engine::Engine,
    regs::{
        Bar0Reg, Bar0Word, PROM_BASE, PROM_END, PcopyReg, Piece, PtimerReg, Width, enable_bit,
        falcon::{Falcon, FalconReg},
        pbdma::{PBDMA, RAMFC_BYTES},
        pieces::pieces,
        ppci::PPCI,
    },
    vbios,
};

mod fifo;
mod host;
mod memory;

/// Value that reads of a unit give while PMC_ENABLE keeps it off (envytools; unverified on GF100).
const DISABLED_UNIT: u32 = 0xbad0_da00;

fn channel_id(index: u16) -> Option<ChannelId> {
    ChannelId::new(u32::from(index))
}

impl FermiModel {
    pub(crate) fn read_bar0(&mut self, offset: u64, data: &mut [u8]) {
        for (range, piece) in pieces(offset, data.len()) {
            let part = &mut data[range];
            match piece {
                Piece::Register { offset, .. } => self.read_part(offset, part),
                Piece::Pramin { offset, .. } => {
                    let place = self.pramin_place(offset);
                    self.mem.read(place, part);
                }
                Piece::Outside { .. } => part.fill(0xff),
            }
        }
    }

    pub(crate) fn write_bar0(&mut self, offset: u64, data: &[u8]) {
        for (range, piece) in pieces(offset, data.len()) {
            let part = &data[range];
            match piece {
                Piece::Register { offset, .. } => self.write_part(offset, part),
                Piece::Pramin { offset, .. } => {
                    let place = self.pramin_place(offset);
                    self.mem.write(place, part);
                }
                Piece::Outside { .. } => {}
            }
        }
    }

    /// Writes a word where the CPU would write a register. Returns whether there can be one: what PRAMIN shows is none, nor
    /// is an offset without alignment or beyond BAR0.
    pub(crate) fn write_register_word(&mut self, offset: u32, value: u32) -> bool {
        let word = value.to_le_bytes();
        let piece = Piece::first(u64::from(offset), word.len());
        let is_register = matches!(
            piece,
            Piece::Register {
                width: Width::Dword,
                ..
            }
        );
        if is_register {
            self.write_part(offset, &word);
        }
        is_register
    }

    /// Reads a word or a part of one.
    fn read_part(&mut self, offset: u32, data: &mut [u8]) {
        if let Some(inside) = in_range(offset, PROM_BASE, PROM_END) {
            vbios::read_prom(self.rom, self.config.is_rom_visible(), inside as usize, data);
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

    fn read_word(&mut self, offset: u32) -> u32 {
        let word = Bar0Word::decode(offset);
        self.note_access(offset, word, false);
        if !self.is_unit_on(offset) {
            self.raise_squashed_access(offset, None);
            return DISABLED_UNIT;
        }
        match word {
            Bar0Word::Register(reg) => self.read_register(reg),
            Bar0Word::Falcon(falcon, reg) => match self.read_falcon(falcon, reg) {
                Some(value) => value,
                None => self.read_unnamed(offset),
            },
            Bar0Word::Slice(reg) => Ltc::read_slice(reg),
            Bar0Word::Unnamed => self.read_unnamed(offset),
        }
    }

    fn read_unnamed(&mut self, offset: u32) -> u32 {
        if let Some(word) = self.ramfc_word(offset) {
            return word;
        }
        self.unknown.note_unnamed_read(offset);
        self.storage.read(offset).unwrap_or_else(|| {
            self.mem.counters.unmodelled_reads += 1;
            self.unknown.note_read(offset);
            0
        })
    }

    /// Ends a run of reads of one word, unless the access is one that a driver makes while it waits.
    fn note_access(&mut self, offset: u32, word: Bar0Word, is_write: bool) {
        let is_time = matches!(
            word,
            Bar0Word::Register(Bar0Reg::Ptimer(PtimerReg::PtimerLow | PtimerReg::PtimerHigh))
        );
        if is_write || (!is_time && !self.unknown.is_run_of(offset)) {
            self.unknown.end_run();
        }
    }

    fn write_word(&mut self, offset: u32, value: u32) {
        let word = Bar0Word::decode(offset);
        self.note_access(offset, word, true);
        if !self.is_unit_on(offset) {
            self.raise_squashed_access(offset, Some(value));
            return;
        }
        match word {
            Bar0Word::Register(reg) => self.write_register(reg, value),
            Bar0Word::Falcon(falcon, reg) if is_modelled(falcon) => self.write_falcon(falcon, reg, value),
            Bar0Word::Slice(reg) => Ltc::write_slice(reg),
            Bar0Word::Falcon(..) | Bar0Word::Unnamed => {
                if !self.storage.write(offset, value) {
                    self.mem.counters.unmodelled_writes += 1;
                    self.unknown.note_write(offset);
                }
            }
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
        } else if !takes_parts(Bar0Word::decode(offset & !3)) {
            self.mem.counters.unmodelled_writes += 1;
        } else {
            let start = (offset & 3) as usize;
            let mut word = self.storage.read(offset & !3).unwrap_or(0).to_le_bytes();
            word[start..start + part.len()].copy_from_slice(part);
            self.write_word(offset & !3, u32::from_le_bytes(word));
        }
    }

    /// Reads a falcon's register; `None` if the model does not have the falcon.
    fn read_falcon(&mut self, falcon: Falcon, reg: FalconReg) -> Option<u32> {
        Some(match falcon {
            Falcon::Pmu => self.pmu.read(reg),
            Falcon::Copy(engine) => self.read_copy_falcon(copy_engine(engine), reg),
            Falcon::Fecs => self.graph.fecs.falcon.read(reg),
            Falcon::Gpccs => self.graph.fecs.gpccs.read(reg),
            Falcon::GpccsOf(_) | Falcon::Pvld | Falcon::Ppdec | Falcon::Pppp => return None,
        })
    }

    fn write_falcon(&mut self, falcon: Falcon, reg: FalconReg, value: u32) {
        match falcon {
            Falcon::Pmu => self.pmu.write(reg, value),
            Falcon::Copy(engine) => self.write_copy_falcon(copy_engine(engine), reg, value),
            Falcon::Fecs => self.write_fecs_falcon(reg, value),
            Falcon::Gpccs => self.write_gpccs(reg, value),
            Falcon::GpccsOf(_) | Falcon::Pvld | Falcon::Ppdec | Falcon::Pppp => {}
        }
    }

    fn is_unit_on(&self, offset: u32) -> bool {
        let bit = enable_bit(offset);
        self.pmc_enable & bit == bit
    }

    /// RAMFC words of the channel on a PBDMA.
    fn ramfc_word(&self, offset: u32) -> Option<u32> {
        let inside = offset.checked_sub(PBDMA.first)?;
        let pbdma = self.pbdmas.get((inside / PBDMA.bytes) as usize)?;
        let at = inside % PBDMA.bytes;
        (at < RAMFC_BYTES).then(|| pbdma.reg(u64::from(at)))
    }

    fn read_register(&mut self, reg: Bar0Reg) -> u32 {
        match reg {
            Bar0Reg::Pmc(reg) => self.read_pmc(reg),
            Bar0Reg::Pbus(reg) => self.read_pbus(reg),
            Bar0Reg::Peephole(reg) => self.read_peephole(reg),
            Bar0Reg::Pfifo(reg) => self.read_pfifo(reg),
            Bar0Reg::Bypass(reg) => self.read_bypass(reg),
            Bar0Reg::Ptimer(reg) => self.read_ptimer(reg),
            Bar0Reg::Punits(reg) => self.identity.read_units(reg, &self.storage),
            Bar0Reg::Pbdma(reg) => self.read_pbdma(reg),
            Bar0Reg::Pflush(reg) => Self::read_pflush(reg),
            Bar0Reg::Ppci(reg) => {
                let mut word = [0; 4];
                self.config_read(reg.in_config() as u64, &mut word);
                u32::from_le_bytes(word)
            }
            Bar0Reg::Pffb(reg) => self.read_pffb(reg),
            Bar0Reg::Ltc(reg) => self.ltc.read(reg, &self.storage),
            Bar0Reg::Pring(reg) => self.identity.read_ring(reg, &self.storage),
            Bar0Reg::Pmu(reg) => self.pmu.read_ring(reg),
            Bar0Reg::Pcopy(reg) => {
                let (engine, reg) = PcopyReg::in_falcon(reg);
                self.read_copy_falcon(copy_engine(engine), reg)
            }
            Bar0Reg::Pgraph(reg) => self.read_graph(reg),
            Bar0Reg::Fecs(reg) => self.read_fecs(reg),
            // Units of nothing but words.
            Bar0Reg::Pnvio(reg) => self.storage.load(reg),
            Bar0Reg::Pclock(reg) => self.storage.load(reg),
            Bar0Reg::Vga(reg) => self.storage.load(reg),
        }
    }

    fn write_register(&mut self, reg: Bar0Reg, value: u32) {
        match reg {
            Bar0Reg::Pmc(reg) => self.write_pmc(reg, value),
            Bar0Reg::Pbus(reg) => self.write_pbus(reg, value),
            Bar0Reg::Peephole(reg) => self.write_peephole(reg, value),
            Bar0Reg::Pfifo(reg) => self.write_pfifo(reg, value),
            Bar0Reg::Bypass(reg) => self.write_bypass(reg, value),
            Bar0Reg::Ptimer(reg) => self.write_ptimer(reg, value),
            Bar0Reg::Punits(reg) => identity::write_units(reg, value, &mut self.storage),
            Bar0Reg::Pbdma(reg) => self.write_pbdma(reg, value),
            Bar0Reg::Pflush(reg) => Self::write_pflush(reg),
            Bar0Reg::Ppci(reg) => {
                self.config_write(reg.in_config() as u64, &value.to_le_bytes());
            }
            Bar0Reg::Pffb(reg) => self.write_pffb(reg, value),
            Bar0Reg::Ltc(reg) => self.ltc.write(reg, value, &mut self.storage),
            Bar0Reg::Pring(reg) => identity::write_ring(reg, value, &mut self.storage),
            Bar0Reg::Pmu(reg) => Pmu::write_ring(reg),
            Bar0Reg::Pcopy(reg) => {
                let (engine, reg) = PcopyReg::in_falcon(reg);
                self.write_copy_falcon(copy_engine(engine), reg, value);
            }
            Bar0Reg::Pgraph(reg) => self.write_graph(reg, value),
            Bar0Reg::Fecs(reg) => self.write_fecs(reg, value),
            Bar0Reg::Pnvio(reg) => self.storage.store(reg, value),
            Bar0Reg::Pclock(reg) => self.storage.store(reg, value),
            Bar0Reg::Vga(reg) => self.storage.store(reg, value),
        }
    }
}

/// A falcon that the model has; the others are plain words.
fn is_modelled(falcon: Falcon) -> bool {
    match falcon {
        Falcon::Pmu | Falcon::Copy(_) | Falcon::Fecs | Falcon::Gpccs => true,
        Falcon::GpccsOf(_) | Falcon::Pvld | Falcon::Ppdec | Falcon::Pppp => false,
    }
}

/// Whether a word takes a store of some of its bytes. Registers take whole words, but for the VGA ports.
fn takes_parts(word: Bar0Word) -> bool {
    match word {
        Bar0Word::Register(reg) => matches!(reg, Bar0Reg::Vga(_)),
        Bar0Word::Falcon(falcon, _) => !is_modelled(falcon),
        Bar0Word::Slice(_) | Bar0Word::Unnamed => true,
    }
}

/// The copy engine with that number among the copy engines.
fn copy_engine(number: u16) -> Engine {
    match number {
        0 => Engine::Copy0,
        _ => Engine::Copy1,
    }
}

/// Distance from `first`, if the offset lies before `end` too.
fn in_range(offset: u32, first: u32, end: u32) -> Option<u32> {
    (first..end).contains(&offset).then(|| offset - first)
}
