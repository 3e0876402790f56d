//! Microcode of copy engines and of PGRAPH: what a falcon is given before it works (nouveau `nvkm/falcon/v1.c`, `gr/gf100.c`).
//!
//! ```text
//! interrupts off ─► code by pages with their tags ─► data, filled up with zeros ─► entry 0 ─► start ─► running?
//! ```

use fermi_spec::bar::Bar;
use fermi_spec::regs::PcopyReg;
use fermi_spec::regs::falcon::{
    CODE_PAGE_BYTES, CONTROL_START, CONTROL_STOPPED, Caps, Falcon, FalconReg, PortIndex,
};
use fermi_spec::regs::pcopy::COPY_CAPS;
use serde::{Deserialize, Serialize};

use super::lane::{Late, Op};

/// Words of a page of code.
const PAGE_WORDS: usize = CODE_PAGE_BYTES as usize / 4;
/// How long a copy engine with microcode may stand still after a reset.
const MICROCODE_TIMEOUT_NS: u64 = 1_000_000;
/// Channel switches and the method FIFO are let in.
const ACCESS_ALL: u32 = 3;

/// Code and data of one falcon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Microcode {
    code: Vec<u32>,
    data: Vec<u32>,
}

/// Why two files are not microcode for a falcon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MicrocodeError {
    /// A file is empty, or not whole words.
    #[error("{bytes} bytes of {part} are not whole words of 4 bytes")]
    Words {
        /// "code" or "data".
        part: &'static str,
        /// Length in bytes.
        bytes: usize,
    },
    /// A file is larger than the falcon's memory.
    #[error("{bytes} bytes of {part} do not fit the falcon's {most}")]
    TooLong {
        /// "code" or "data".
        part: &'static str,
        /// Length in bytes.
        bytes: usize,
        /// Bytes of the memory.
        most: usize,
    },
}

impl Microcode {
    /// Code and data of a copy engine as in a file: words, the low byte first.
    pub fn new(code: &[u8], data: &[u8]) -> Result<Self, MicrocodeError> {
        Self::of(Caps::from_bits(COPY_CAPS), [code, data])
    }

    /// The same for a falcon with memories of that size.
    pub(super) fn of(caps: Caps, [code, data]: [&[u8]; 2]) -> Result<Self, MicrocodeError> {
        Ok(Self {
            code: words("code", code, caps.code_pages())?,
            data: words("data", data, caps.data_pages())?,
        })
    }

    /// A word of each, which says no more than that it is there.
    pub(super) fn any() -> Self {
        Self {
            code: vec![!0],
            data: vec![!0],
        }
    }

    /// Gives it to copy engine `engine` (0 or 1), and starts it.
    pub(crate) fn upload_copy(&self, engine: u8) -> Vec<Op> {
        let falcon = Falcon::Copy(engine.into());
        let mut ops = vec![write(falcon, FalconReg::IntrEnableClear, u32::MAX)];
        ops.extend(self.upload(falcon));
        let data_words = usize::from(Caps::from_bits(COPY_CAPS).data_pages()) * PAGE_WORDS;
        let rest = data_words.saturating_sub(self.data.len());
        ops.extend((0..rest).map(|_| write(falcon, FalconReg::DataData(0), 0)));
        ops.extend([
            write(falcon, FalconReg::BlockOnFifo, 1),
            write(falcon, FalconReg::Entry, 0),
            write(falcon, FalconReg::Control, CONTROL_START),
            write(falcon, FalconReg::AccessEnable, ACCESS_ALL),
            // nouveau's microcode reads the engine's number from there.
            write(falcon, FalconReg::Scratch3, u32::from(engine)),
        ]);
        ops
    }

    /// Puts code and data into the falcon's memories, each from its start on.
    pub(super) fn upload(&self, falcon: Falcon) -> Vec<Op> {
        let from_start = PortIndex::new().with_advance_on_write(true).into_bits();
        let mut ops = vec![write(falcon, FalconReg::CodeIndex(0), from_start)];
        for (number, page) in (0..).zip(self.code.chunks(PAGE_WORDS)) {
            ops.push(write(falcon, FalconReg::CodeTag(0), number));
            let filled = page.iter().copied().chain(std::iter::repeat(0)).take(PAGE_WORDS);
            ops.extend(filled.map(|word| write(falcon, FalconReg::CodeData(0), word)));
        }
        ops.push(write(falcon, FalconReg::DataIndex(0), from_start));
        let data = self.data.iter();
        ops.extend(data.map(|&word| write(falcon, FalconReg::DataData(0), word)));
        ops
    }
}

fn write(falcon: Falcon, reg: FalconReg, value: u32) -> Op {
    let at = u64::from(falcon.first() + reg.offset());
    Op::Block(Bar::Bar0, at, value.to_le_bytes().to_vec())
}

/// Waits until the falcon of a copy engine does not stand still any more.
pub(super) fn copy_engine_runs(engine: u8) -> Op {
    Op::Poll {
        reg: PcopyReg::CopyControl(engine.into()).into(),
        mask: CONTROL_STOPPED,
        value: 0,
        timeout_ns: MICROCODE_TIMEOUT_NS,
        late: Late::Fails,
    }
}

fn words(part: &'static str, bytes: &[u8], pages: u16) -> Result<Vec<u32>, MicrocodeError> {
    let most = usize::from(pages) * CODE_PAGE_BYTES as usize;
    let (words, rest) = bytes.as_chunks::<4>();
    if words.is_empty() || !rest.is_empty() {
        let bytes = bytes.len();
        return Err(MicrocodeError::Words { part, bytes });
    }
    if bytes.len() > most {
        let bytes = bytes.len();
        return Err(MicrocodeError::TooLong { part, bytes, most });
    }
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let cut = Microcode::new(&[1; 7], &[0; 4]).unwrap_err();
        assert_eq!(cut.to_string(), "7 bytes of code are not whole words of 4 bytes");
        assert!(Microcode::new(&[1; 8], &[]).is_err());
        assert!(Microcode::new(&[1; 0x1200], &[0; 0x800]).is_ok());
        let long = Microcode::new(&[1; 0x1204], &[0; 4]).unwrap_err();
        assert_eq!(
            long.to_string(),
            "4612 bytes of code do not fit the falcon's 4608"
        );
        assert!(Microcode::new(&[1; 4], &[0; 0x804]).is_err());
    }

    #[test]
    fn code_goes_by_whole_pages_and_data_fills_its_memory() {
        let microcode = Microcode::new(&[1; 4 * 65], &[2; 4]).unwrap();
        let at = |reg: FalconReg| u64::from(Falcon::Copy(1).first() + reg.offset());
        let stores: Vec<u64> = microcode
            .upload_copy(1)
            .iter()
            .map(|op| match op {
                Op::Block(Bar::Bar0, at, data) if data.len() == 4 => *at,
                other => panic!("{other:?}"),
            })
            .collect();
        let count = |reg| stores.iter().filter(|store| **store == at(reg)).count();
        assert_eq!(
            (count(FalconReg::CodeTag(0)), count(FalconReg::CodeData(0))),
            (2, 128)
        );
        assert_eq!(
            (count(FalconReg::DataData(0)), count(FalconReg::Control)),
            (512, 1)
        );
    }
}
