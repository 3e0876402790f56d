//! The registers of PFFB with its MMU, and the flushes.

use crate::mmu::Flushed;
use crate::model::FermiModel;
use fermi_spec::regs::{PffbReg, PflushReg, pffb};

impl FermiModel {
    pub(super) fn read_pffb(&self, reg: PffbReg) -> u32 {
        match reg {
            PffbReg::PartitionConfig => self.identity.partitions(),
            PffbReg::PartitionMebibytes(index) => self.identity.mebibytes_of(index),
            PffbReg::PartitionMebibytesOld => self.identity.mebibytes_of(0),
            PffbReg::MmuConfig => self.mmu.config(),
            PffbReg::TlbDirectory => self.mmu.flush_directory,
            PffbReg::TlbInvalidate => 0,
            PffbReg::Word(word) => self.storage.load(word),
        }
    }

    pub(super) fn write_pffb(&mut self, reg: PffbReg, value: u32) {
        match reg {
            PffbReg::MmuConfig => {
                let flushed = self.mmu.set_config(value);
                self.note_flush(flushed);
            }
            PffbReg::TlbDirectory => self.mmu.flush_directory = value,
            PffbReg::TlbInvalidate if value & pffb::TLB_GO != 0 => self.flush_tlb(value),
            PffbReg::TlbInvalidate
            | PffbReg::PartitionConfig
            | PffbReg::PartitionMebibytes(_)
            | PffbReg::PartitionMebibytesOld => {}
            PffbReg::Word(word) => self.storage.store(word, value),
        }
    }

    /// Does what a store to TLB_INVALIDATE asks for, at once unless a fault delays it.
    fn flush_tlb(&mut self, command: u32) {
        self.finish_flush();
        if crate::faults::has_come(&mut self.faults.lost_flush_in) {
            self.mmu.begin_flush(command, None);
        } else if self.faults.flush_delay_ns > 0 {
            let done_at = self.clock.now().saturating_add(self.faults.flush_delay_ns);
            self.mmu.begin_flush(command, Some(done_at));
        } else {
            let flushed = self.mmu.invalidate(&mut self.mem, command);
            self.note_tlb_flushed(flushed);
        }
    }

    /// The time of the flush under way has come.
    pub(crate) fn finish_flush(&mut self) {
        let flushed = self.mmu.finish_flush(&mut self.mem);
        if flushed != Flushed::Nothing {
            self.note_tlb_flushed(flushed);
        }
    }

    pub(crate) fn note_tlb_flushed(&mut self, flushed: Flushed) {
        self.note_flush(flushed);
        self.windows.forget_spaces();
        self.peephole.forget_space();
    }

    /// Flushes are done when the write returns.
    pub(super) fn read_pflush(reg: PflushReg) -> u32 {
        match reg {
            PflushReg::HostFlush
            | PflushReg::L2InvalidateSysram
            | PflushReg::L2InvalidatePeer
            | PflushReg::L2CleanTags
            | PflushReg::L2FlushDirty => 0,
        }
    }

    pub(super) fn write_pflush(reg: PflushReg) {
        match reg {
            PflushReg::HostFlush
            | PflushReg::L2InvalidateSysram
            | PflushReg::L2InvalidatePeer
            | PflushReg::L2CleanTags
            | PflushReg::L2FlushDirty => {}
        }
    }
}
