//! The registers of PFFB with its MMU, and the flushes.

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
            // The flush is done when the write returns.
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
            PffbReg::TlbInvalidate
                if value & pffb::TLB_GO != 0 && crate::faults::has_come(&mut self.faults.lost_flush_in) =>
            {
                self.mmu.hang();
            }
            PffbReg::TlbInvalidate if value & pffb::TLB_GO != 0 => {
                let flushed = self.mmu.invalidate(&mut self.mem, value);
                self.note_flush(flushed);
                self.windows.forget_spaces();
                self.peephole.forget_space();
            }
            PffbReg::TlbInvalidate
            | PffbReg::PartitionConfig
            | PffbReg::PartitionMebibytes(_)
            | PffbReg::PartitionMebibytesOld => {}
            PffbReg::Word(word) => self.storage.store(word, value),
        }
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
