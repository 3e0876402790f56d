//! Words as text: one of 16 hexadecimal digits a line, or of 8 for a short form.

use std::fmt::{self, Write as _};
use std::path::Path;

use fermi_spec::isa::{INSTRUCTION_BYTES, Illegal, Instruction, Short, widen};

use super::KernelError;

/// Digits of a long form, and of a short one.
const LONG_DIGITS: usize = 16;
const SHORT_DIGITS: usize = 8;
const SHORT_BYTES: u32 = 4;

/// An instruction word as it stands in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    Long(u64),
    Short(u32),
}

impl Word {
    /// Reads the digits of a word.
    fn parse(text: &str) -> Option<Self> {
        if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        match text.len() {
            LONG_DIGITS => u64::from_str_radix(text, 16).ok().map(Self::Long),
            SHORT_DIGITS => u32::from_str_radix(text, 16).ok().map(Self::Short),
            _ => None,
        }
    }

    fn bytes(self) -> u32 {
        match self {
            Self::Long(_) => INSTRUCTION_BYTES,
            Self::Short(_) => SHORT_BYTES,
        }
    }

    /// The decoded instruction, if the word is one.
    fn decode(self) -> Result<Meaning, Illegal> {
        match self {
            Self::Long(word) => Instruction::decode(word).map(Meaning::Long),
            Self::Short(word) => widen(word).map(Meaning::Short),
        }
    }

    /// Its text with branch targets as if it lay at `address`.
    pub(crate) fn text(self, address: u32) -> String {
        match self.decode() {
            Ok(Meaning::Long(instruction)) => instruction.at(address).to_string(),
            Ok(Meaning::Short(short)) => short.at(address).to_string(),
            Err(_) => "illegal".to_owned(),
        }
    }
}

enum Meaning {
    Long(Instruction),
    Short(Short),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long(word) => write!(f, "{word:016x}"),
            Self::Short(word) => write!(f, "{word:08x}"),
        }
    }
}

/// The words of a file with their line numbers; blank lines do not count.
pub(crate) fn parse_words<'a>(
    path: &'a Path,
    text: &'a str,
) -> impl Iterator<Item = Result<(usize, Word), KernelError>> {
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(move |(index, line)| {
            let wrong = || KernelError::Word {
                path: path.to_owned(),
                line: index + 1,
                text: line.chars().take(40).collect(),
                expected: "a word of 16 hexadecimal digits, or 8 of a short form",
            };
            Ok((index + 1, Word::parse(line).ok_or_else(wrong)?))
        })
}

/// A line `WORD<TAB>TEXT` for each word, as if each lay at address 0; with `is_program` each where the ones before
/// it end, and that in front.
pub(crate) fn disassemble(path: &Path, text: &str, is_program: bool) -> Result<String, KernelError> {
    let mut listing = String::new();
    let mut address = 0;
    for word in parse_words(path, text) {
        let (_, word) = word?;
        if is_program {
            // A String takes everything.
            let _ = write!(listing, "{address:04x}\t");
        }
        let _ = writeln!(listing, "{word}\t{}", word.text(address));
        if is_program {
            address += word.bytes();
        }
    }
    Ok(listing)
}
