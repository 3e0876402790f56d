//! A program: its words, and what they need of a launch.

use std::fmt;
use std::path::Path;

use fermi_spec::isa::assembler::{self, assemble};

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
        if program.words.is_empty() {
            return Err(KernelError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self(program))
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
