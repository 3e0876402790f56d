//! What matters: registers that an address, a comparison or an index may follow from, and the instructions that store to them.
//!
//! Other registers are not joined, and other instructions not executed. That a register matters is found out backwards: an instruction's sources
//! matter if it is an access or a comparison, or if its result does. A source that is missing here costs precision and no more: what is
//! read of it is any word.

use fermi_spec::isa::{Guard, Instruction, Opcode, Register, Source, field};

use crate::graph::Block;
use crate::state::REGISTERS;

/// Registers, a bit each.
pub(crate) type Mask = u64;
/// All of them.
const ALL: Mask = (1 << REGISTERS) - 1;
/// Passes over a program; where that is not enough, all matters.
const PASSES_MAX: usize = 16;

/// What an instruction has to do with registers.
struct Effect {
    /// Registers that it stores to, and those of which nothing is left then.
    results: Mask,
    kills: Mask,
    /// Registers that its results follow from.
    sources: Mask,
    /// The sources matter whatever becomes of the result.
    is_root: bool,
    /// It does nothing but store its results.
    is_pure: bool,
}

fn mask(first: Register, count: u32) -> Mask {
    let first = u32::from(first.0);
    let registers = first..(first + count).min(REGISTERS as u32);
    registers.fold(0, |mask, register| mask | 1 << register)
}

fn of_source(source: Source) -> Mask {
    match source {
        Source::Register(register) => mask(register, 1),
        Source::Constant(_) | Source::Immediate(_) => 0,
    }
}

/// Registers that results follow from, and whether they matter whatever becomes of the results.
fn sources(instruction: Instruction) -> (Mask, bool) {
    let a = mask(instruction.a(), 1);
    let b = of_source(instruction.b());
    match instruction.opcode() {
        Opcode::Iadd
        | Opcode::Iadd32i
        | Opcode::Imul
        | Opcode::Imul32i
        | Opcode::Iscadd
        | Opcode::Iscadd32i
        | Opcode::Shl
        | Opcode::Shr
        | Opcode::Lop
        | Opcode::Lop32i
        | Opcode::Bfe
        | Opcode::Imnmx
        | Opcode::Sel
        | Opcode::Icmp
        | Opcode::Fcmp => (a | b, instruction.sets_flags()),
        Opcode::Imad | Opcode::Imad32i => (a | b | of_source(instruction.c()), instruction.sets_flags()),
        Opcode::Mov | Opcode::Mov32i | Opcode::I2i => (b, false),
        Opcode::Isetp => (a | b, true),
        Opcode::Ldc => (a, true),
        Opcode::Ld | Opcode::Ldu | Opcode::St => (mask(instruction.a(), 2), true),
        opcode if opcode.is_atomic() => (mask(instruction.a(), 2), true),
        _ => (0, false),
    }
}

impl Effect {
    fn of(instruction: Instruction) -> Self {
        const ALL_LANES: u32 = 15;
        let opcode = instruction.opcode();
        let results = instruction
            .result()
            .map_or(0, |(register, count)| mask(register, count));
        let is_partial =
            matches!(opcode, Opcode::Mov | Opcode::Mov32i) && instruction.get(field::LANES) != ALL_LANES;
        let always = instruction.guard() == Guard::ALWAYS && !is_partial;
        let (sources, is_root) = sources(instruction);
        let has_effects = matches!(
            opcode,
            Opcode::Ldl
                | Opcode::Tex
                | Opcode::Tld
                | Opcode::Tld4
                | Opcode::Tmml
                | Opcode::Txd
                | Opcode::Txq
                | Opcode::Suldb
                | Opcode::R2p
        );
        Self {
            results,
            kills: if always { results } else { 0 },
            sources,
            is_root,
            is_pure: results != 0
                && !is_root
                && !has_effects
                && !instruction.sets_flags()
                && instruction.result_predicates().next().is_none(),
        }
    }

    /// What matters before the instruction, from what matters behind it.
    fn before(&self, behind: Mask) -> Mask {
        let matters = self.is_root || self.results & behind != 0;
        behind & !self.kills | if matters { self.sources } else { 0 }
    }
}

/// What matters in each block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    /// Registers at its start.
    pub(crate) start: Mask,
    /// Instructions. The last one is among them: its guard says which edges are taken.
    pub(crate) code: Vec<(u32, Instruction)>,
}

impl Live {
    pub(crate) fn of(blocks: &[Block]) -> Vec<Self> {
        let effects = |block: &Block| {
            block
                .code
                .iter()
                .map(|(_, instruction)| Effect::of(*instruction))
                .collect()
        };
        let effects: Vec<Vec<Effect>> = blocks.iter().map(effects).collect();
        let mut starts = vec![0; blocks.len()];
        let behind = |block: &Block, starts: &[Mask]| {
            let targets = block.edges.iter().filter_map(|edge| edge.target);
            targets.fold(0, |mask, target| mask | starts[target])
        };
        let is_settled = (0..PASSES_MAX).any(|_| {
            let mut is_new = false;
            // Edges lead onwards, so that from behind most is found at once.
            for (number, block) in blocks.iter().enumerate().rev() {
                let effects = effects[number].iter().rev();
                let start = effects.fold(behind(block, &starts), |behind, effect| effect.before(behind));
                is_new |= start != starts[number];
                starts[number] = start;
            }
            !is_new
        });
        if !is_settled {
            starts.fill(ALL);
        }
        let blocks = blocks.iter().zip(&effects).zip(&starts);
        let live = blocks.map(|((block, effects), start)| {
            let (mut behind, mut code) = (behind(block, &starts), Vec::new());
            for (number, (effect, step)) in effects.iter().zip(&block.code).enumerate().rev() {
                let is_last = number + 1 == block.code.len();
                if is_last || !effect.is_pure || effect.results & behind != 0 {
                    code.push(*step);
                }
                behind = effect.before(behind);
            }
            code.reverse();
            Self { start: *start, code }
        });
        live.collect()
    }
}
