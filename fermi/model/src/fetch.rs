//! Fetching: GPFIFO entries, the segments they name, and the headers in them.

use crate::{
    mmu::{Access, Refusal},
    model::FermiModel,
    pbdma::{Activity, FETCH_WORDS, VA_HIGH},
};
use fermi_spec::{
    addr::GpuVa,
    gpfifo::{ControlOp, ENTRIES_LOG2_MAX, ENTRY_BYTES, GpEntry},
    instance::offset,
    pushbuffer::{self, Header, Target},
    regs::pbdma::pbdma_intr,
};

/// PB_HEADER holds the current header in the new form, with the method of the next data word.
mod op {
    pub(super) const INCREMENTING: u32 = 1 << 29;
    pub(super) const NON_INCREMENTING: u32 = 3 << 29;
    pub(super) const INCREMENT_ONCE: u32 = 5 << 29;
}

impl FermiModel {
    pub(crate) fn fetch_entry(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let log2 = unit.entries_log2();
        let get = unit.reg(offset::GP_GET);
        let put = unit.regs[0];
        if log2 > ENTRIES_LOG2_MAX || get >> log2 != 0 || put >> log2 != 0 {
            // The ring is empty at the acknowledgement, so no entry is left to go on with.
            self.pbdmas[pbdma].regs[0] = get;
            return self.stop_pbdma(pbdma, pbdma_intr::GP_POINTER);
        }
        let base = GpuVa(
            u64::from(unit.reg(offset::GP_BASE_LO) & !7)
                | u64::from(unit.reg(offset::GP_BASE_HI) & VA_HIGH) << 32,
        );
        let at = base.offset(u64::from(get) * ENTRY_BYTES);
        let mut raw = [0; ENTRY_BYTES as usize];
        let space = unit.space;
        if let Err(refusal) = self.mmu.read(&mut self.mem, &space, Access::READ, at, &mut raw) {
            return self.fault_pbdma(pbdma, refusal);
        }
        self.mem.counters.gp_entries += 1;
        let raw = u64::from_le_bytes(raw);
        self.start_entry(pbdma, raw, (get + 1) & ((1 << log2) - 1));
        let fetch_ns = self.time_of(self.pbdmas[pbdma].channel(), self.timing.fetch_ns);
        if let Activity::Running { at } = &mut self.pbdmas[pbdma].state {
            *at = self.clock.now().saturating_add(fetch_ns);
        }
    }

    fn start_entry(&mut self, pbdma: usize, raw: u64, next: u32) {
        let unit = &mut self.pbdmas[pbdma];
        unit.set_reg(offset::GP_FETCH, next);
        unit.shadows[0] = raw as u32;
        unit.shadows[1] = (raw >> 32) as u32;
        match GpEntry::from_bits(raw) {
            // assumption: the condition is that this board is selected, as for methods.
            GpEntry::Fetch(segment) if segment.conditional && !unit.is_selected() => self.retire_entry(pbdma),
            GpEntry::Fetch(segment) => {
                let end = segment.at.offset(u64::from(segment.words) * 4);
                unit.set_address(offset::GET_LO, segment.at);
                unit.set_address(offset::PUT_LO, end);
                unit.words_len = 0;
                unit.set_no_switch(segment.no_context_switch);
                if !segment.subroutine {
                    unit.set_address(offset::TOP_GET_LO, segment.at);
                    let high = unit.reg(offset::TOP_GET_HI) | 1 << 31;
                    unit.set_reg(offset::TOP_GET_HI, high);
                }
            }
            // The checksums are not modelled: comparing them does nothing.
            GpEntry::Control(ControlOp::Nop | ControlOp::GpCrc | ControlOp::PbCrc) => {
                self.retire_entry(pbdma)
            }
            GpEntry::Control(_) => {
                self.retire_entry(pbdma);
                self.stop_pbdma(pbdma, pbdma_intr::GP_ENTRY);
            }
        }
    }

    /// The entry is finished: the driver may use its place in the ring again.
    fn retire_entry(&mut self, pbdma: usize) {
        let unit = &mut self.pbdmas[pbdma];
        let fetched = unit.reg(offset::GP_FETCH);
        unit.set_reg(offset::GP_GET, fetched);
        unit.set_no_switch(false);
        self.write_back(pbdma);
    }

    pub(crate) fn run_segment(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        // Words are aligned; the low bits of GET can only come from a forged RAMFC.
        let get = unit.address(offset::GET_LO).align_down(4);
        let put = unit.address(offset::PUT_LO);
        // A PUT before GET only comes from a forged RAMFC; the segment then counts as executed.
        if get >= put {
            return self.retire_entry(pbdma);
        }
        let word = match self.peek(pbdma, get, put) {
            Ok(word) => word,
            Err(refusal) => return self.fault_pbdma(pbdma, refusal),
        };
        let unit = &self.pbdmas[pbdma];
        let header = unit.reg(offset::PB_HEADER);
        let target = Target {
            subchannel: (header >> 13 & 7) as u8,
            method: (header as u16 & 0xfff) << 2,
        };
        if unit.reg(offset::PB_COUNT) > 0 && unit.is_selected() {
            self.run_method(pbdma, target, word);
        } else if unit.reg(offset::PB_COUNT) > 0 {
            self.consume(pbdma, self.timing.method_ns);
        } else {
            self.run_header(pbdma, word);
        }
    }

    /// The pushbuffer word at `get`, from the words fetched ahead where they have it.
    fn peek(&mut self, pbdma: usize, get: GpuVa, put: GpuVa) -> Result<u32, Refusal> {
        let unit = &mut self.pbdmas[pbdma];
        let ahead = get.0.wrapping_sub(unit.words_at.0) / 4;
        if ahead < unit.words_len as u64 {
            return Ok(unit.words[ahead as usize]);
        }
        let wanted = (put.0 - get.0).min(4 * FETCH_WORDS as u64);
        let (place, run) = self
            .mmu
            .translate(&mut self.mem, &unit.space, Access::READ, get, wanted)?;
        let mut bytes = [0; 4 * FETCH_WORDS];
        // Pages and limits are multiples of 4, and so is GET.
        let run = run as usize & !3;
        self.mem.read(place, &mut bytes[..run]);
        for (word, bytes) in unit.words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        unit.words_at = get;
        unit.words_len = run / 4;
        Ok(unit.words[0])
    }

    fn run_header(&mut self, pbdma: usize, word: u32) {
        match Header::from_bits(word) {
            Header::Nop => self.consume(pbdma, self.timing.method_ns),
            Header::Subdevice(op) => {
                self.pbdmas[pbdma].select_board(op);
                self.consume(pbdma, self.timing.method_ns);
            }
            Header::Incrementing(target, count) => self.start_methods(pbdma, op::INCREMENTING, target, count),
            Header::NonIncrementing(target, count) => {
                self.start_methods(pbdma, op::NON_INCREMENTING, target, count)
            }
            Header::IncrementOnce(target, count) => {
                self.start_methods(pbdma, op::INCREMENT_ONCE, target, count)
            }
            Header::Immediate(target, data) if self.pbdmas[pbdma].is_selected() => {
                self.run_method(pbdma, target, u32::from(data));
            }
            Header::Immediate(..) => self.consume(pbdma, self.timing.method_ns),
            Header::EndSegment => {
                let put = self.pbdmas[pbdma].address(offset::PUT_LO);
                self.pbdmas[pbdma].set_address(offset::GET_LO, put);
                self.later(pbdma, self.timing.method_ns);
            }
            Header::Invalid(word) => {
                self.pbdmas[pbdma].set_reg(offset::PB_HEADER, word);
                self.consume(pbdma, self.timing.method_ns);
                self.stop_pbdma(pbdma, pbdma_intr::PB_ENTRY);
            }
        }
    }

    fn start_methods(&mut self, pbdma: usize, op: u32, target: Target, count: u16) {
        let header =
            pushbuffer::incrementing(target.subchannel, target.method & 0x3ffc, 0) & 0x1fff_ffff | op;
        self.pbdmas[pbdma].set_reg(offset::PB_HEADER, header);
        self.consume(pbdma, self.timing.method_ns);
        self.pbdmas[pbdma].set_reg(offset::PB_COUNT, u32::from(count));
    }

    /// Moves past the current word; the PBDMA goes on after `ns`.
    pub(crate) fn consume(&mut self, pbdma: usize, ns: u64) {
        let unit = &mut self.pbdmas[pbdma];
        let get = unit.address(offset::GET_LO);
        unit.set_address(offset::GET_LO, GpuVa(get.0.saturating_add(4)));
        let count = unit.reg(offset::PB_COUNT);
        if count > 0 {
            unit.set_reg(offset::PB_COUNT, count - 1);
            let header = unit.reg(offset::PB_HEADER);
            unit.set_reg(offset::PB_HEADER, next_header(header));
        }
        self.later(pbdma, ns);
    }
}

/// The header for the word after this one.
fn next_header(header: u32) -> u32 {
    let advanced = header & !0xfff | (header + 1) & 0xfff;
    match header >> 29 {
        1 => advanced,
        5 => advanced & 0x1fff_ffff | op::NON_INCREMENTING,
        _ => header,
    }
}
