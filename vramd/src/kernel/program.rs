//! A program: its words, and its needs of a launch.

use std::fmt;
use std::path::Path;

use fermi_spec::isa::assembler::{self, Needs, assemble};

use super::words::{Word, parse_words};
use super::{KernelError, read_text};

/// A program that is not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program(assembler::Program);

impl Program {
    /// Assembles a source.
    pub(crate) fn assemble(path: &Path) -> Result<Self, KernelError> {
        let program = assemble(&read_text(path)?).map_err(|error| KernelError::Assembly {
            path: path.to_owned(),
            error,
        })?;
        Self(program).that_is_not_empty(path)
    }

    /// A program from a file: a source with `.asm`, or words with `.hex`.
    pub(super) fn load(path: &Path) -> Result<Self, KernelError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("asm") => Self::assemble(path),
            Some("hex") => Self::read(path),
            _ => Err(KernelError::Extension {
                path: path.to_owned(),
            }),
        }
    }

    /// Reads words; the needs are counted from them.
    fn read(path: &Path) -> Result<Self, KernelError> {
        let text = read_text(path)?;
        let (mut words, mut lines) = (Vec::new(), Vec::new());
        for word in parse_words(path, &text) {
            let (line, word) = word?;
            let Word::Long(long) = word else {
                return Err(KernelError::Word {
                    path: path.to_owned(),
                    line,
                    text: word.to_string(),
                    expected: "a word of 16 hexadecimal digits; short forms are not run",
                });
            };
            words.push(long);
            lines.push(line as u32);
        }
        let Needs { registers, barriers } = Needs::of(&words);
        let program = assembler::Program {
            words,
            lines,
            registers,
            barriers,
            ..assembler::Program::default()
        };
        Self(program).that_is_not_empty(path)
    }

    fn that_is_not_empty(self, path: &Path) -> Result<Self, KernelError> {
        if self.0.words.is_empty() {
            return Err(KernelError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(self)
    }

    /// Registers, stack and memory that it needs.
    pub(super) fn needs(&self) -> &assembler::Program {
        &self.0
    }

    /// Its bytes in memory.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The instruction at byte `pc`, and its line in the file.
    pub(super) fn at(&self, pc: u32) -> Option<(String, u32)> {
        let index = pc as usize / 8;
        let word = *self.0.words.get(index).filter(|_| pc.is_multiple_of(8))?;
        let line = self.0.lines.get(index).copied().unwrap_or(0);
        Some((Word::Long(word).text(pc), line))
    }

    /// One word a line.
    pub(crate) fn to_hex(&self) -> String {
        self.0.words.iter().map(|word| format!("{word:016x}\n")).collect()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.0;
        write!(
            f,
            "words {}, registers {}, shared bytes {}, local bytes {}, barriers {}",
            program.words.len(),
            program.registers,
            program.shared_bytes,
            program.local_bytes,
            program.barriers
        )
    }
}
