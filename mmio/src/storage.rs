//! Values of the registers that only remember the last write ([`crate::Policy::Storage`]).

use crate::policy::Policy;
use fermi_spec::regs::Bar0Reg;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

const PAGE_BYTES: u32 = 0x1000;
const PAGE_WORDS: usize = PAGE_BYTES as usize / 4;

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
            .get(&(offset / PAGE_BYTES))
            .map_or(0, |page| page[(offset % PAGE_BYTES / 4) as usize])
    }

    /// Words that are not zero.
    pub fn count(&self) -> usize {
        let words = self.pages.values().flat_map(|page| page.iter());
        words.filter(|word| **word != 0).count()
    }

    /// What a named register reads that has no meaning besides its access: what was written, or zero where nobody can
    /// write and nothing is ever pending.
    pub fn load(&self, reg: impl Into<Bar0Reg>) -> u32 {
        let reg = reg.into();
        if reg.access().keeps_writes() {
            self.read(reg.offset())
        } else {
            0
        }
    }

    /// A write to such a register.
    pub fn store(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        let reg = reg.into();
        if reg.access().keeps_writes() {
            self.keep(reg.offset(), value);
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
            .entry(offset / PAGE_BYTES)
            .or_insert_with(|| Box::new([0; PAGE_WORDS]));
        page[(offset % PAGE_BYTES / 4) as usize] = value;
    }

    /// Whether a guest can have stored a word there.
    fn may_keep(offset: u32) -> bool {
        match Bar0Reg::decode(offset) {
            Some(reg) => reg.access().keeps_writes(),
            None => Policy::of(offset) == Policy::Storage,
        }
    }
}

/// The words that are not zero, by offset.
impl Serialize for Storage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let words = self.pages.iter().flat_map(|(&page, words)| {
            let offsets = (page * PAGE_BYTES..).step_by(4);
            offsets.zip(&**words).filter(|(_, word)| **word != 0)
        });
        serializer.collect_map(words)
    }
}

impl<'de> Deserialize<'de> for Storage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut storage = Self::default();
        for (offset, word) in BTreeMap::<u32, u32>::deserialize(deserializer)? {
            if !Self::may_keep(offset) {
                let what = format_args!("no word is kept at offset {offset:#x}");
                return Err(serde::de::Error::custom(what));
            }
            storage.keep(offset, word);
        }
        Ok(storage)
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
    fn words_are_written_and_read_by_offset() {
        let mut storage = Storage::default();
        storage.write(0x40_4154, 7);
        let text = serde_json::to_string(&storage).expect("it is a map of numbers");
        assert_eq!(text, r#"{"4211028":7}"#);
        let read: Storage = serde_json::from_str(&text).expect("as written");
        assert_eq!(read.read(0x40_4154), 7);
    }

    #[test]
    fn word_that_no_guest_can_have_stored_is_not_read() {
        for offset in [0x40_4155, 0x61_0010, u32::MAX] {
            let text = format!(r#"{{"{offset}":7}}"#);
            assert!(serde_json::from_str::<Storage>(&text).is_err(), "{offset:#x}");
        }
    }

    #[test]
    fn refused_offset_stores_nothing() {
        let mut storage = Storage::default();
        assert!(!storage.write(0x61_0010, 7));
        assert!(storage.pages.is_empty());
    }
}
