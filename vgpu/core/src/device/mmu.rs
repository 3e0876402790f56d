//! MMU and memory partitions of a guest's GPU, and the flushes that the host may ask for.

use fermi_spec::addr::{Aperture, PhysAddr};
use fermi_spec::regs::pffb::{
    MMU_CONFIG_READY, MMU_CONFIG_STORED, TLB_ALL_DIRECTORIES, TLB_DIRECTORY_FRAME_SHIFT, TLB_GO,
};
use fermi_spec::regs::{PffbReg, PflushReg};
use mmio::Storage;
use serde::{Deserialize, Serialize};
use shadow_pt::TableAt;

use super::board::PARTITIONS;
use super::effect::Effect;
use crate::inspect::{Inspect, Tree};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mmu {
    /// Size of the one partition, which holds all of the VRAM.
    mebibytes: u32,
    directory: u32,
    config: u32,
}

impl Mmu {
    pub(crate) fn new(guest_vram: u64) -> Self {
        Self {
            mebibytes: (guest_vram >> 20) as u32,
            directory: 0,
            config: 0,
        }
    }

    pub(crate) fn read(&self, reg: PffbReg, words: &Storage) -> u32 {
        match reg {
            PffbReg::PartitionConfig => PARTITIONS,
            PffbReg::MmuConfig => MMU_CONFIG_READY | self.config,
            PffbReg::TlbDirectory => self.directory,
            // The flush is over when the store is answered.
            PffbReg::TlbInvalidate => 0,
            PffbReg::PartitionMebibytes(0) | PffbReg::PartitionMebibytesOld => self.mebibytes,
            PffbReg::PartitionMebibytes(_) => 0,
            PffbReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn write(&mut self, reg: PffbReg, value: u32, words: &mut Storage) -> Effect {
        match reg {
            // Bypass and target bits are an open door to memory: only the page-size and tag bits are kept.
            PffbReg::MmuConfig => self.config = value & MMU_CONFIG_STORED,
            PffbReg::TlbDirectory => self.directory = value,
            PffbReg::TlbInvalidate => return self.invalidate(value),
            PffbReg::PartitionConfig | PffbReg::PartitionMebibytes(_) | PffbReg::PartitionMebibytesOld => {}
            PffbReg::Word(word) => words.store(word, value),
        }
        Effect::None
    }

    fn invalidate(&self, value: u32) -> Effect {
        if value & TLB_GO == 0 {
            return Effect::None;
        }
        if value & TLB_ALL_DIRECTORIES != 0 {
            return Effect::Flush(None);
        }
        let address = PhysAddr(u64::from(self.directory >> TLB_DIRECTORY_FRAME_SHIFT) << 12);
        match TableAt::from_aperture(Aperture::from_bits(self.directory as u8), address) {
            Some(directory) => Effect::Flush(Some(directory)),
            None => Effect::None,
        }
    }

    /// Flushes by the host are over at once: nothing that a guest stores waits anywhere.
    pub(crate) fn read_flush(reg: PflushReg) -> u32 {
        match reg {
            PflushReg::HostFlush
            | PflushReg::L2InvalidateSysram
            | PflushReg::L2InvalidatePeer
            | PflushReg::L2CleanTags
            | PflushReg::L2FlushDirty => 0,
        }
    }

    pub(crate) fn write_flush(reg: PflushReg) {
        match reg {
            PflushReg::HostFlush
            | PflushReg::L2InvalidateSysram
            | PflushReg::L2InvalidatePeer
            | PflushReg::L2CleanTags
            | PflushReg::L2FlushDirty => {}
        }
    }
}

impl Inspect for Mmu {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("vram", u64::from(self.mebibytes) << 20);
        tree.bits("directory_to_flush", self.directory);
        tree.bits("config", self.config);
    }
}
