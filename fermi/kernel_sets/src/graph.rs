//! The code that a kernel can reach, as blocks with edges.
//!
//! A place in the code is taken together with the control stack that a thread has there: which entries SSY, PBK, PCNT,
//! PRET and calls have pushed. So it is known where a join, BRK, CONT and RET lead. Entries that hold other lanes are
//! none of the thread's: it never goes on at them.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::isa::{Guard, INSTRUCTION_BYTES, Instruction, Opcode, Source, field};

use crate::kernel::Kernel;
use crate::live::Live;
use crate::sets::Reason;

/// Entries of a control stack.
const DEPTH_MAX: u32 = 64;
/// Condition code that always holds.
const ALWAYS: u32 = 15;
/// Predicate that always holds.
const TRUE: u8 = 7;

/// Number of a control stack; 0 is the empty one.
type StackId = u32;

/// Why an entry was pushed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Entry {
    Reconvergence,
    Break,
    Continue,
    Return,
}

/// Control stacks as a tree: each is an entry on top of another.
#[derive(Default)]
struct Stacks {
    list: Vec<(StackId, Entry, u32, u32)>,
    known: BTreeMap<(StackId, Entry, u32), StackId>,
}

impl Stacks {
    fn push(&mut self, below: StackId, entry: Entry, target: u32) -> Result<StackId, Reason> {
        if let Some(stack) = self.known.get(&(below, entry, target)) {
            return Ok(*stack);
        }
        let depth = self.top(below).map_or(0, |(_, _, _, depth)| depth) + 1;
        if depth > DEPTH_MAX {
            return Err(Reason::StackDepth);
        }
        self.list.push((below, entry, target, depth));
        let stack = self.list.len() as StackId;
        self.known.insert((below, entry, target), stack);
        Ok(stack)
    }

    fn top(&self, stack: StackId) -> Option<(StackId, Entry, u32, u32)> {
        self.list.get((stack as usize).checked_sub(1)?).copied()
    }

    /// Where a thread goes on that leaves to the nearest entry of a kind, or to the nearest of all. `None`: it ends.
    fn unwound(&self, mut stack: StackId, wanted: Option<Entry>) -> Option<Place> {
        while let Some((below, entry, target, _)) = self.top(stack) {
            if wanted.is_none_or(|wanted| wanted == entry) {
                return Some((target, below));
            }
            stack = below;
        }
        None
    }
}

/// Program counter and control stack.
type Place = (u32, StackId);

/// When a thread takes an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    /// It may, whatever its predicates are.
    Any,
    /// If the guard of the block's last instruction lets it through, or not.
    Guard(bool),
}

/// An edge to a block, or to the thread's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) target: Option<usize>,
    pub(crate) when: When,
    /// The edge goes back to a block that leads here.
    pub(crate) is_back: bool,
}

/// Instructions that are executed one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) code: Vec<(u32, Instruction)>,
    pub(crate) edges: Vec<Edge>,
    /// Number among the blocks that back edges lead to.
    pub(crate) head: Option<usize>,
}

/// All of a kernel's code. Block 0 is its entry; blocks are in an order in which edges lead onwards unless they go back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) blocks: Vec<Block>,
    /// What matters in each of them.
    pub(crate) live: Vec<Live>,
    /// Instructions, each counted once for every control stack that it is reached with.
    pub(crate) size: usize,
}

/// A word of a constant bank: bank and offset.
pub(crate) type Word = (u8, u32);

/// Edges between blocks that go back.
type BackEdges = BTreeSet<(Place, Place)>;

/// What comes after an instruction: at most two places, `None` for the thread's end.
type Next = Vec<(Option<Place>, When)>;

struct Explorer<'a> {
    kernel: &'a Kernel<'a>,
    stacks: Stacks,
    instructions: BTreeMap<u32, Instruction>,
    next: BTreeMap<Place, Next>,
}

impl Program {
    /// Follows all that the entry leads to.
    pub(crate) fn explore(
        kernel: &Kernel<'_>,
        code: &mut dyn FnMut(u32) -> Option<u64>,
        limit: usize,
    ) -> Result<Self, Reason> {
        let mut explorer = Explorer {
            kernel,
            stacks: Stacks::default(),
            instructions: BTreeMap::new(),
            next: BTreeMap::new(),
        };
        let entry = (kernel.entry, 0);
        let mut open = vec![entry];
        while let Some(place) = open.pop() {
            if explorer.next.contains_key(&place) {
                continue;
            }
            if explorer.next.len() >= limit {
                return Err(Reason::TooLong);
            }
            let instruction = explorer.instruction(place.0, code)?;
            let next = explorer.after(place, instruction)?;
            open.extend(next.iter().filter_map(|(target, _)| *target));
            explorer.next.insert(place, next);
        }
        Ok(explorer.blocks(entry))
    }

    /// Its words and their places.
    pub(crate) fn words(&self) -> Vec<(u32, u64)> {
        let words: BTreeMap<u32, u64> = self
            .code()
            .map(|(pc, instruction)| (pc, instruction.word()))
            .collect();
        words.into_iter().collect()
    }

    fn code(&self) -> impl Iterator<Item = (u32, Instruction)> + '_ {
        self.blocks.iter().flat_map(|block| &block.code).copied()
    }

    /// Places in constant banks of branch targets.
    pub(crate) fn targets(&self) -> BTreeSet<Word> {
        let targets = self
            .code()
            .filter_map(|(_, instruction)| instruction.target_in_bank());
        targets.map(|(at, _)| (at.bank, at.offset.into())).collect()
    }

    /// The words of constant banks that its instructions name, and those beside them, which may be the other half of a
    /// pointer.
    pub(crate) fn constants(&self) -> BTreeSet<Word> {
        let operands = self
            .code()
            .flat_map(|(_, instruction)| [instruction.b(), instruction.c()]);
        let named = operands.filter_map(|source| match source {
            Source::Constant(at) => Some((at.bank, u32::from(at.offset))),
            _ => None,
        });
        let beside = |(bank, offset): Word| {
            [offset.saturating_sub(4), offset, offset + 4].map(|offset| (bank, offset))
        };
        named.chain(self.targets()).flat_map(beside).collect()
    }

    /// The banks that an instruction indexes: any of their words.
    pub(crate) fn indexed(&self) -> BTreeSet<u8> {
        let indexing = self
            .code()
            .filter(|(_, instruction)| instruction.opcode() == Opcode::Ldc);
        indexing
            .map(|(_, instruction)| instruction.get(field::TABLE_BANK) as u8)
            .collect()
    }
}

impl Explorer<'_> {
    fn instruction(
        &mut self,
        pc: u32,
        code: &mut dyn FnMut(u32) -> Option<u64>,
    ) -> Result<Instruction, Reason> {
        if let Some(instruction) = self.instructions.get(&pc) {
            return Ok(*instruction);
        }
        if !pc.is_multiple_of(INSTRUCTION_BYTES) {
            return Err(Reason::NoInstruction);
        }
        let word = code(pc).ok_or(Reason::CodeUnknown)?;
        let instruction = Instruction::decode(word).map_err(|_| Reason::NoInstruction)?;
        self.instructions.insert(pc, instruction);
        Ok(instruction)
    }

    /// Target of a branch or a push.
    fn target(&self, pc: u32, instruction: Instruction) -> Result<u32, Reason> {
        let Some((at, is_relative)) = instruction.target_in_bank() else {
            return instruction.target(pc).ok_or(Reason::IndirectBranch);
        };
        let word = self.kernel.constant(at.bank, at.offset.into());
        let word = word.ok_or(Reason::IndirectBranch)?;
        let next = pc.wrapping_add(INSTRUCTION_BYTES);
        Ok(if is_relative {
            next.wrapping_add(word)
        } else {
            word
        })
    }

    fn after(&mut self, (pc, stack): Place, instruction: Instruction) -> Result<Next, Reason> {
        let next = (pc.wrapping_add(INSTRUCTION_BYTES), stack);
        let onwards = |place| Ok(vec![(Some(place), When::Any)]);
        let opcode = instruction.opcode();
        let pushed = match opcode {
            Opcode::Ssy => Some(Entry::Reconvergence),
            Opcode::Pbk => Some(Entry::Break),
            Opcode::Pcnt => Some(Entry::Continue),
            Opcode::Pret => Some(Entry::Return),
            _ => None,
        };
        if let Some(entry) = pushed {
            let target = self.target(pc, instruction)?;
            return onwards((next.0, self.stacks.push(stack, entry, target)?));
        }
        let taken = match opcode {
            Opcode::Cal | Opcode::Jcal => {
                let target = self.target(pc, instruction)?;
                return onwards((target, self.stacks.push(stack, Entry::Return, next.0)?));
            }
            Opcode::Bra | Opcode::Jmp => Some((self.target(pc, instruction)?, stack)),
            Opcode::Brk => self.stacks.unwound(stack, Some(Entry::Break)),
            Opcode::Cont => self.stacks.unwound(stack, Some(Entry::Continue)),
            Opcode::Ret => self.stacks.unwound(stack, Some(Entry::Return)),
            Opcode::Exit => None,
            Opcode::Brx | Opcode::Jmx | Opcode::Brxc | Opcode::Jmxc => return Err(Reason::IndirectBranch),
            Opcode::Plongjmp | Opcode::Longjmp | Opcode::Kil | Opcode::Rtt | Opcode::Bpt => {
                return Err(Reason::Control);
            }
            _ if instruction.is_join() => self.stacks.unwound(stack, None),
            _ => return onwards(next),
        };
        Ok(split(instruction, taken, next))
    }

    /// Blocks of all places, in depth-first order turned round.
    fn blocks(&self, entry: Place) -> Program {
        let mut starts = BTreeSet::from([entry]);
        let mut met = BTreeSet::new();
        for (place, next) in &self.next {
            let runs_on =
                matches!(next[..], [(Some((pc, _)), _)] if pc == place.0.wrapping_add(INSTRUCTION_BYTES));
            for target in next.iter().filter_map(|(target, _)| *target) {
                if !met.insert(target) || !runs_on {
                    starts.insert(target);
                }
            }
        }
        let (order, heads, back) = self.order(entry, &starts);
        let numbers: BTreeMap<Place, usize> = order
            .iter()
            .enumerate()
            .map(|(number, start)| (*start, number))
            .collect();
        let mut next_head = 0..;
        let blocks = order.iter().map(|start| {
            let (code, last) = self.run(*start, &starts);
            let edges = self.next[&last].iter().map(|(target, when)| Edge {
                target: target.map(|target| numbers[&target]),
                when: *when,
                is_back: target.is_some_and(|target| back.contains(&(*start, target))),
            });
            Block {
                code,
                edges: edges.collect(),
                head: heads.contains(start).then(|| next_head.next()).flatten(),
            }
        });
        let blocks: Vec<Block> = blocks.collect();
        Program {
            live: Live::of(&blocks),
            blocks,
            size: self.next.len(),
        }
    }

    /// Instructions of the block at a place, and the place of the last.
    fn run(&self, start: Place, starts: &BTreeSet<Place>) -> (Vec<(u32, Instruction)>, Place) {
        let mut place = start;
        let mut code = Vec::new();
        loop {
            code.push((place.0, self.instructions[&place.0]));
            match self.next[&place][..] {
                [(Some(next), _)] if !starts.contains(&next) => place = next,
                _ => return (code, place),
            }
        }
    }

    /// The starts in an order in which edges lead onwards, heads of loops, and the edges that go back.
    fn order(&self, entry: Place, starts: &BTreeSet<Place>) -> (Vec<Place>, BTreeSet<Place>, BackEdges) {
        let targets = |start: Place| {
            let (_, last) = self.run(start, starts);
            let targets = self.next[&last].iter().filter_map(|(target, _)| *target);
            targets.collect::<Vec<_>>()
        };
        let (mut order, mut heads, mut back) = (Vec::new(), BTreeSet::new(), BackEdges::new());
        let mut seen = BTreeSet::from([entry]);
        let mut path = vec![(entry, targets(entry))];
        let mut on_path = BTreeSet::from([entry]);
        while let Some((start, open)) = path.last_mut() {
            let start = *start;
            let Some(target) = open.pop() else {
                order.push(start);
                on_path.remove(&start);
                path.pop();
                continue;
            };
            if on_path.contains(&target) {
                back.insert((start, target));
                heads.insert(target);
            } else if seen.insert(target) {
                on_path.insert(target);
                path.push((target, targets(target)));
            }
        }
        order.reverse();
        (order, heads, back)
    }
}

/// The two ways of an instruction that leads elsewhere under a guard, and perhaps a condition of flags.
fn split(instruction: Instruction, taken: Option<Place>, next: Place) -> Next {
    let guard = instruction.guard();
    let (always, never) = (
        guard == Guard::ALWAYS,
        guard.predicate.0 == TRUE && guard.is_negated,
    );
    let has_condition = match instruction.opcode() {
        // Bare forms have none; others of class 7 and NOP do.
        Opcode::Bra | Opcode::Jmp | Opcode::Brk | Opcode::Cont | Opcode::Ret | Opcode::Exit | Opcode::Nop => {
            instruction.get(field::CONDITION) != ALWAYS
        }
        _ => false,
    };
    if never {
        return vec![(Some(next), When::Any)];
    }
    match (always, has_condition) {
        (true, false) => vec![(taken, When::Any)],
        (true, true) => vec![(taken, When::Any), (Some(next), When::Any)],
        (false, false) => vec![(taken, When::Guard(true)), (Some(next), When::Guard(false))],
        (false, true) => vec![(taken, When::Guard(true)), (Some(next), When::Any)],
    }
}
