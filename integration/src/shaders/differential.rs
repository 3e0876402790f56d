//! One program on the software card and on the evaluator: do they leave the same memory?

use std::fmt;

use fermi_spec::isa::Instruction;

use super::evaluator::{self, Wrong};
use super::generator::{APPROXIMATE, DUMP_BYTES, DUMPED, EPILOGUE_WORDS, Program};
use super::runner::{Failure, Runner};

/// Instruction that replaces one that is not needed.
const NOP: u64 = 0x4000_0000_0000_1de4;

/// A difference between the two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The evaluator has no result: the program is not one that the generator should make.
    Refused(Wrong),
    /// The card has no result.
    Failed(Failure),
    /// A register of a lane at the end.
    Register {
        /// Linear index over the grid.
        thread: u64,
        /// Number of the register.
        register: u32,
        /// Value on the card.
        card: u32,
        /// Value on the evaluator.
        expected: u32,
    },
    /// A byte of memory.
    Memory {
        /// Index of the memory region.
        region: usize,
        /// Offset in the region, in bytes.
        offset: usize,
        /// The card's word from this byte on.
        card: u32,
        /// The evaluator's word from this byte on.
        expected: u32,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(wrong) => write!(f, "the evaluator has no result: {wrong:?}"),
            Self::Failed(failure) => write!(f, "the card has no result: {failure:x?}"),
            Self::Register {
                thread,
                register,
                card,
                expected,
            } => write!(
                f,
                "R{register} of thread {thread} is {card:08x}, not {expected:08x}"
            ),
            Self::Memory {
                region,
                offset,
                card,
                expected,
            } => write!(
                f,
                "region {region} has {card:08x} at {offset:#x}, not {expected:08x}"
            ),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    let rest = bytes.get(at..).unwrap_or_default();
    let taken = rest.len().min(4);
    word[..taken].copy_from_slice(&rest[..taken]);
    u32::from_le_bytes(word)
}

/// Whether a result of MUFU is as near as two roundings of nearly the same number are.
fn is_near(card: u32, expected: u32) -> bool {
    card.abs_diff(expected) <= 1
}

/// Runs a program on both and compares.
pub fn compare(runner: &mut Runner, program: &Program) -> Result<(), Difference> {
    let mut expected = program.memory.clone();
    evaluator::evaluate(&program.launch, &mut expected).map_err(Difference::Refused)?;
    let mut found = program.memory.clone();
    if let Err(failure) = runner.run(&program.launch, &mut found) {
        // The state that a failed grid leaves is no start for another.
        *runner = Runner::default();
        return Err(Difference::Failed(failure));
    }
    for (region, (found, expected)) in found.regions.iter().zip(&expected.regions).enumerate() {
        let both = found.bytes.iter().zip(&expected.bytes).enumerate();
        for (offset, _) in both.filter(|(_, (card, expected))| card != expected) {
            let at = offset & !3;
            let (card, expected) = (word(&found.bytes, at), word(&expected.bytes, at));
            if region == 0 {
                return Err(Difference::Memory {
                    region,
                    offset: at,
                    card,
                    expected,
                });
            }
            let register = (at as u64 % DUMP_BYTES) as u32 / 4;
            if APPROXIMATE.contains(&register) && is_near(card, expected) {
                continue;
            }
            if register < DUMPED {
                return Err(Difference::Register {
                    thread: at as u64 / DUMP_BYTES,
                    register,
                    card,
                    expected,
                });
            }
        }
    }
    Ok(())
}

/// Makes a program smaller until no instruction can be left out without the two agreeing again.
pub fn minimize(runner: &mut Runner, program: &Program) -> Program {
    let mut program = program.clone();
    let is_wrong = |runner: &mut Runner, program: &Program| {
        !matches!(compare(runner, program), Ok(()) | Err(Difference::Refused(_)))
    };
    let mut piece = program.removable.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < program.removable.len() {
            let mut smaller = program.clone();
            let end = (at + piece).min(program.removable.len());
            for index in smaller.removable.drain(at..end) {
                smaller.launch.code[index] = NOP;
            }
            if is_wrong(runner, &smaller) {
                program = smaller;
            } else {
                at = end;
            }
        }
        if piece == 1 {
            return program;
        }
        piece = piece.div_ceil(2);
    }
}

/// The text of a program's statements and functions, without the instructions that were left out.
pub fn listing(program: &Program) -> String {
    let launch = &program.launch;
    let mut text = format!("grid {:?} of blocks {:?}\n", launch.grid, launch.block);
    for (index, word) in (0u32..).zip(&launch.code) {
        let end = program.body.end as u32;
        let is_epilogue = (end..end + EPILOGUE_WORDS).contains(&index);
        if *word == NOP || index < program.body.start as u32 || is_epilogue {
            continue;
        }
        let what = match Instruction::decode(*word) {
            Ok(instruction) => instruction.at(8 * index).to_string(),
            Err(_) => "illegal".to_owned(),
        };
        text += &format!("{:5x}  {word:016x}  {what}\n", 8 * index);
    }
    text
}
