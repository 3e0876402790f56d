//! From text to words.
//!
//! One instruction a line; `//` starts a comment; `name:` is a label, `#name` refers to it. In front of an
//! instruction may stand `long` (which changes nothing: only long forms are made), `join`, and a guard. Numbers are
//! decimal or hexadecimal. Directives hold the needs of a launch: `.registers N`, `.shared BYTES`,
//! `.local BYTES`, `.barriers N`; registers and barriers are counted where they are not given.
//!
//! Names, parameters of the launch and macros (`.equ`, `.param`, `.macro`) are taken out first, see `macros`.
//!
//! Where several words have one text, the choices are those of the test vectors: an integer immediate takes the 32-bit
//! form where there is one, `0x0` in place of a register is register 63, `0x1` in place of a predicate is predicate 7.

use alloc::{
    borrow::ToOwned,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use super::{INSTRUCTION_BYTES, field as f, instruction::Instruction, opcode::Opcode, rows};

mod macros;
mod matching;

pub use macros::Parameter;
use macros::Text;
use matching::{Mismatch, Words};

/// Longest source in bytes.
pub const SOURCE_BYTES_MAX: usize = 16 << 20;

/// Assembled code and its needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// The code, one word an instruction.
    pub words: Vec<u64>,
    /// Byte offsets of the labels.
    pub labels: BTreeMap<String, u32>,
    /// Registers of a lane.
    pub registers: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of local memory of a lane.
    pub local_bytes: u32,
    /// Barriers of a block.
    pub barriers: u32,
    /// Parameters of the launch in constant bank 0, in ascending order.
    pub parameters: Vec<Parameter>,
    /// Source line of each word, from 1.
    pub lines: Vec<u32>,
}

/// The needs of code that its words show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// Registers of a lane.
    pub registers: u32,
    /// Barriers of a block.
    pub barriers: u32,
}

impl Needs {
    /// The needs of `words`; one that is not an instruction needs nothing.
    pub fn of(words: &[u64]) -> Self {
        let instructions = || words.iter().filter_map(|word| Instruction::decode(*word).ok());
        Self {
            registers: instructions().map(Instruction::registers_used).max().unwrap_or(0),
            barriers: instructions().map(barriers_used).max().unwrap_or(0),
        }
    }
}

/// An error in the text, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AssemblyError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The error, and how to mend it.
    pub message: String,
}

impl fmt::Display for AssemblyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl core::error::Error for AssemblyError {}

/// A word of the text and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lexeme<'a> {
    text: &'a str,
    column: u32,
}

/// A line with an instruction or a directive.
struct Line<'a> {
    text: &'a Text,
    lexemes: Vec<Lexeme<'a>>,
}

/// Assembles a program.
pub fn assemble(source: &str) -> Result<Program, AssemblyError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(AssemblyError {
            line: 1,
            column: 1,
            message: format!(
                "{} bytes of text; at most {SOURCE_BYTES_MAX} are taken",
                source.len()
            ),
        });
    }
    let expanded = macros::expand(source)?;
    let mut program = Program::default();
    let mut given = Given::default();
    let mut lines = Vec::new();
    for text in &expanded.lines {
        let mut lexemes = lex(&text.text);
        let address = lines.len() as u32 * INSTRUCTION_BYTES;
        take_labels(&mut lexemes, address, &mut program.labels).map_err(|mistake| mistake.at(text))?;
        match lexemes.first() {
            None => {}
            Some(first) if first.text.starts_with('.') => {
                given.take(&lexemes).map_err(|mistake| mistake.at(text))?;
            }
            Some(_) => lines.push(Line { text, lexemes }),
        }
    }
    for (index, line) in lines.iter().enumerate() {
        let address = index as u32 * INSTRUCTION_BYTES;
        let word = instruction(&line.lexemes, address, &program.labels).map_err(|mismatch| {
            let mistake = Mistake {
                column: mismatch.column,
                message: mismatch.message,
            };
            mistake.at(line.text)
        })?;
        program.words.push(word);
        program.lines.push(line.text.number);
    }
    program.parameters = expanded.parameters;
    given.complete(&mut program);
    Ok(program)
}

/// The error of a line that no macro or row explains.
struct Mistake {
    column: u32,
    message: String,
}

impl Mistake {
    fn at(self, text: &Text) -> AssemblyError {
        AssemblyError {
            line: text.number,
            column: text.column(self.column),
            message: text.message(self.message),
        }
    }
}

/// Values of the directives.
#[derive(Default)]
struct Given {
    registers: Option<u32>,
    shared: Option<u32>,
    local: Option<u32>,
    barriers: Option<u32>,
}

impl Given {
    fn take(&mut self, lexemes: &[Lexeme<'_>]) -> Result<(), Mistake> {
        let error = |lexeme: Lexeme<'_>, message: String| Mistake {
            column: lexeme.column,
            message,
        };
        let name = lexemes[0];
        let (slot, most) = match name.text {
            ".registers" => (&mut self.registers, 63),
            ".shared" => (&mut self.shared, 48 << 10),
            ".local" => (&mut self.local, 512 << 10),
            ".barriers" => (&mut self.barriers, 16),
            _ => {
                return Err(error(
                    name,
                    format!(
                        "no directive {}; there are .registers, .shared, .local, .barriers, .param, .equ and .macro",
                        name.text
                    ),
                ));
            }
        };
        let [_, value] = lexemes else {
            return Err(error(name, format!("{} takes one number", name.text)));
        };
        let number = matching::number(value.text)
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| *number <= most)
            .ok_or_else(|| error(*value, format!("{} is not a number from 0 to {most}", value.text)))?;
        if slot.replace(number).is_some() {
            return Err(error(name, format!("{} was given before", name.text)));
        }
        Ok(())
    }

    fn complete(self, program: &mut Program) {
        let needs = Needs::of(&program.words);
        program.registers = self.registers.unwrap_or(needs.registers);
        program.barriers = self.barriers.unwrap_or(needs.barriers);
        program.shared_bytes = self.shared.unwrap_or(0);
        program.local_bytes = self.local.unwrap_or(0);
    }
}

/// Barriers that a BAR needs; all if the number is in a register.
fn barriers_used(instruction: Instruction) -> u32 {
    match instruction.opcode() {
        Opcode::Bar if instruction.get(f::BAR_NUMBER_IMM) != 0 => instruction.get(f::BAR_NUMBER) + 1,
        Opcode::Bar if instruction.a().is_zero() => 1,
        Opcode::Bar => 16,
        _ => 0,
    }
}

/// Words of a line without its comment; parentheses are words of their own.
fn lex(line: &str) -> Vec<Lexeme<'_>> {
    let line = line.split_once("//").map_or(line, |(code, _)| code);
    let mut lexemes = Vec::new();
    let mut start = None;
    let mut column = 0;
    for (at, character) in line.char_indices().chain([(line.len(), ' ')]) {
        column += 1;
        let ends = character.is_whitespace() || character == '(' || character == ')';
        if ends && let Some((first, column)) = start.take() {
            lexemes.push(Lexeme {
                text: &line[first..at],
                column,
            });
        }
        if character == '(' || character == ')' {
            lexemes.push(Lexeme {
                text: &line[at..=at],
                column,
            });
        } else if !ends && start.is_none() {
            start = Some((at, column));
        }
    }
    lexemes
}

fn take_labels(
    lexemes: &mut Vec<Lexeme<'_>>,
    address: u32,
    labels: &mut BTreeMap<String, u32>,
) -> Result<(), Mistake> {
    while let Some((name, column)) = lexemes
        .first()
        .and_then(|lexeme| Some((lexeme.text.strip_suffix(':')?, lexeme.column)))
    {
        let error = |message| Mistake { column, message };
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.') {
            return Err(error(format!(
                "{name:?} cannot name a label: use letters, digits, _ and ."
            )));
        }
        if labels.insert(name.to_owned(), address).is_some() {
            return Err(error(format!("label {name} was defined before")));
        }
        lexemes.remove(0);
    }
    Ok(())
}

/// Classes in the order in which their rows are tried: 32-bit immediates first.
const CLASS_ORDER: [u32; 8] = [2, 0, 1, 3, 4, 5, 6, 7];

fn instruction(
    lexemes: &[Lexeme<'_>],
    address: u32,
    labels: &BTreeMap<String, u32>,
) -> Result<u64, Mismatch> {
    let mut words = Words::new(lexemes, address, labels);
    words.accept("long");
    let mut furthest: Option<Mismatch> = None;
    for row in CLASS_ORDER.iter().flat_map(|class| rows::of_class(*class)) {
        match words.clone().row(row) {
            Ok(word) => return Ok(word),
            Err(mismatch) => match &mut furthest {
                Some(best) if best.depth > mismatch.depth => {}
                Some(best) if best.depth == mismatch.depth => best.join(mismatch),
                _ => furthest = Some(mismatch),
            },
        }
    }
    let mut mismatch = furthest.unwrap_or_default();
    mismatch.finish(
        lexemes
            .iter()
            .find(|lexeme| lexeme.column == mismatch.column)
            .map(|l| l.text.to_string()),
    );
    Err(mismatch)
}
