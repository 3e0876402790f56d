//! Values of the registers that only remember the last write ([`crate::Policy::Storage`]).

use crate::policy::Policy;
use fermi_spec::regs::{Access, Bar0Reg};
use std::collections::BTreeMap;

const PAGE_WORDS: usize = 1024;

/// Remembered words, by offset. Memory is taken by 4 KiB pages on first writes, and only where a register has a name or
/// the policy is storage, so a guest can make it grow to `crate::policy::STORAGE_BYTES_MAX` at most.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pages: BTreeMap<u32, Box<[u32; PAGE_WORDS]>>,
}

impl Storage {
    /// The word at `offset`; zero if never written.
    pub fn read(&self, offset: u32) -> u32 {
        self.pages
            .get(&(offset / 0x1000))
            .map_or(0, |page| page[(offset % 0x1000 / 4) as usize])
    }

    /// What a named register reads that has no meaning besides its access: what was written, or zero where nobody can
    /// write and nothing is ever pending.
    pub fn load(&self, reg: impl Into<Bar0Reg>) -> u32 {
        let reg = reg.into();
        match reg.access() {
            Access::ReadWrite => self.read(reg.offset()),
            Access::ReadOnly | Access::WriteOnly | Access::WriteOneClears => 0,
        }
    }

    /// A write to such a register.
    pub fn store(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        let reg = reg.into();
        match reg.access() {
            Access::ReadWrite => self.keep(reg.offset(), value),
            Access::ReadOnly | Access::WriteOnly | Access::WriteOneClears => {}
        }
    }

    /// Remembers a word. Returns whether the policy allows it there; otherwise the call has no effect.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        let may = Policy::of(offset) == Policy::Storage;
        if may {
            self.keep(offset, value);
        }
        may
    }

    fn keep(&mut self, offset: u32, value: u32) {
        let page = self
            .pages
            .entry(offset / 0x1000)
            .or_insert_with(|| Box::new([0; PAGE_WORDS]));
        page[(offset % 0x1000 / 4) as usize] = value;
    }

    /// Forgets all words, as a reset does.
    pub fn clear(&mut self) {
        self.pages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_reads_back() {
        let mut storage = Storage::default();
        assert!(storage.write(0x40_4154, 7));
        assert_eq!((storage.read(0x40_4154), storage.read(0x40_4158)), (7, 0));
    }

    #[test]
    fn register_is_kept_as_its_access_says() {
        use fermi_spec::regs::{PclockReg, PnvioReg};
        let mut storage = Storage::default();
        storage.store(PclockReg::ClockPllSelect, 7);
        storage.store(PnvioReg::FanTach, 7);
        storage.store(PnvioReg::ThermIntr, 7);
        assert_eq!(storage.load(PclockReg::ClockPllSelect), 7);
        assert_eq!(
            (storage.load(PnvioReg::FanTach), storage.load(PnvioReg::ThermIntr)),
            (0, 0)
        );
    }

    #[test]
    fn refused_offset_stores_nothing() {
        let mut storage = Storage::default();
        assert!(!storage.write(0x61_0010, 7));
        assert!(storage.pages.is_empty());
    }
}
