//! What an instruction does to the state of a thread.

use std::rc::Rc;

use fermi_spec::isa::{DataType, Guard, Instruction, Opcode, Predicate, Register, Source, Special, field};

use crate::form::{self, Form, IDS, Interval, Ranges, WORDS};
use crate::kernel::Kernel;
use crate::sets::{Access, Bound, Kind, Root, VA_END};
use crate::state::{REGISTERS, State, loaded};
use crate::value::{Condition, Constraint, Fact, Guarded, Logic, Part, Upper, Value};

/// Bytes of a window of private memory.
const WINDOW_BYTES: u64 = 16 << 20;
/// An interval that is larger says nothing: no card has as much memory.
const EXACT_BYTES_MAX: i128 = WORDS / 2;

/// A store with an address that follows from the symbols.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) address: Form,
    pub(crate) bytes: u32,
    /// What its guard says, if that is all that it says.
    pub(crate) facts: Vec<Fact>,
}

/// What instructions reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) accesses: Vec<Access>,
    pub(crate) stores: Vec<Store>,
    pub(crate) uses_local: bool,
}

/// A thread that executes a block.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Kernel<'a>,
    pub(crate) state: State,
    pub(crate) found: Found,
    /// The guard of the instruction under way, unless it is known to let through.
    condition: Option<Condition>,
    /// What the guard says.
    pub(crate) guard: Logic,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(kernel: &'a Kernel<'a>, state: State) -> Self {
        Self {
            kernel,
            state,
            found: Found::default(),
            condition: None,
            guard: Logic::known(true),
        }
    }

    /// Executes an instruction; where it leads is the graph's.
    pub(crate) fn step(&mut self, pc: u32, instruction: Instruction) {
        let Guard {
            predicate,
            is_negated,
        } = instruction.guard();
        self.guard = self.state.logic(predicate.0, is_negated);
        self.condition = match self.guard.known {
            Some(false) => return,
            Some(true) => None,
            None => self.state.condition(predicate.0, is_negated),
        };
        self.perform(pc, instruction);
    }

    pub(crate) fn ranges(&self) -> Ranges {
        self.state.ranges
    }

    /// A register as the instruction sees it.
    pub(crate) fn read(&self, register: Register) -> Rc<Value> {
        let Some(value) = self.state.registers.get(usize::from(register.0)) else {
            return Rc::new(Value::number(0));
        };
        match (&value.guarded, self.condition) {
            (Some(guarded), Some(condition)) if guarded.condition == condition => Rc::clone(&guarded.value),
            _ => Rc::clone(value),
        }
    }

    pub(crate) fn constant(&self, bank: u8, offset: u16) -> Value {
        let part = Part::Constant(bank, offset);
        let Some(word) = self.kernel.constant(bank, offset.into()) else {
            return Value::new(Form::WORD, part);
        };
        let root = Root {
            bank,
            offset,
            address: word.into(),
            is_pair: false,
        };
        let form = Form {
            root: Some(root),
            ..Form::number(word.into())
        };
        // It is the upper half of a pointer, if it is that.
        let upper = offset.checked_sub(4).and_then(|below| {
            let pair = self.pointer(bank, below)?;
            let low = Part::Constant(bank, below);
            Some(Upper { pair, low })
        });
        Value {
            upper,
            ..Value::new(form, part)
        }
    }

    /// Operand B or C.
    pub(crate) fn operand(&self, source: Source) -> Rc<Value> {
        match source {
            Source::Register(register) => self.read(register),
            Source::Constant(at) => Rc::new(self.constant(at.bank, at.offset)),
            Source::Immediate(value) => Rc::new(Value::number(value)),
        }
    }

    /// Stores a result where the guard lets through.
    pub(crate) fn write(&mut self, register: Register, mut value: Value) {
        let number = usize::from(register.0);
        if number >= REGISTERS {
            return;
        }
        value.form = value.form.settled(WORDS, &self.state.ranges);
        value.guarded = None;
        let value = Rc::new(value);
        let Some(condition) = self.condition else {
            self.state.registers[number] = value;
            return;
        };
        let (old, ranges) = (Rc::clone(&self.state.registers[number]), self.state.ranges);
        let part = self.state.fresh();
        let form = form::join(&old.form, &ranges, &value.form, &ranges);
        self.state.registers[number] = Rc::new(Value {
            guarded: Some(Guarded { condition, value }),
            ..Value::new(form, part)
        });
    }

    /// Stores a result of its own.
    pub(crate) fn write_form(&mut self, register: Register, form: Form) {
        let part = self.state.fresh();
        self.write(register, Value::new(form, part));
    }

    pub(crate) fn write_predicate(&mut self, predicate: Predicate, logic: Logic) {
        let number = usize::from(predicate.0);
        let Some(old) = self.state.predicates.get(number) else {
            return;
        };
        let logic = match self.condition {
            Some(_) if old.known != logic.known || logic.known.is_none() => Logic::default(),
            _ => logic,
        };
        self.state.predicates[number] = Rc::new(logic);
        self.state.writes[number] += 1;
    }

    /// The guard under which flags are written.
    pub(crate) fn flags_condition(&self) -> Option<Condition> {
        self.condition
    }

    fn perform(&mut self, pc: u32, instruction: Instruction) {
        let had_carry = self.state.carry.clone();
        if instruction.sets_flags() {
            self.state.carry = None;
        }
        if self.integer(instruction, had_carry.as_ref()) || self.comparison(instruction) {
            return;
        }
        match instruction.opcode() {
            Opcode::Mov | Opcode::Mov32i => self.moved(instruction),
            Opcode::S2r => self.special(instruction),
            Opcode::Ldc => self.indexed_constant(instruction),
            Opcode::Ld | Opcode::Ldu => self.load(pc, instruction),
            Opcode::Ldl | Opcode::Lds | Opcode::Ldslk => {
                self.found.uses_local |= instruction.opcode() == Opcode::Ldl;
                self.unknown(instruction);
                self.set_loaded(instruction);
            }
            Opcode::Stl => self.found.uses_local = true,
            Opcode::St => self.reach(pc, instruction, [false, true], instruction.data_type().bytes()),
            Opcode::RedU32 | Opcode::RedS32 | Opcode::RedF32 => {
                self.reach(pc, instruction, [true, true], 4);
            }
            Opcode::RedU64 => self.reach(pc, instruction, [true, true], 8),
            Opcode::AtomU32
            | Opcode::AtomS32
            | Opcode::AtomF32
            | Opcode::Exch32
            | Opcode::Cas32
            | Opcode::AtomU64
            | Opcode::Exch64
            | Opcode::Cas64 => {
                let is_wide = matches!(
                    instruction.opcode(),
                    Opcode::AtomU64 | Opcode::Exch64 | Opcode::Cas64
                );
                self.reach(pc, instruction, [true, true], if is_wide { 8 } else { 4 });
                self.unknown(instruction);
            }
            Opcode::Tex | Opcode::Tld | Opcode::Tld4 | Opcode::Tmml | Opcode::Txd | Opcode::Txq => {
                let access = Access::anywhere(pc, Kind::Texture, true, false);
                self.found.accesses.push(access);
                self.unknown(instruction);
            }
            Opcode::Suldb => self.surface(pc, instruction, [true, false]),
            Opcode::Sustb => self.surface(pc, instruction, [false, true]),
            // What the mask leaves out is loaded and stored back.
            Opcode::Sustp => self.surface(pc, instruction, [true, true]),
            Opcode::R2p => {
                self.state.carry = None;
                for predicate in 0..7 {
                    self.write_predicate(Predicate(predicate), Logic::default());
                }
            }
            _ => self.unknown(instruction),
        }
    }

    fn surface(&mut self, pc: u32, instruction: Instruction, [is_load, is_store]: [bool; 2]) {
        let access = Access::anywhere(pc, Kind::Surface, is_load, is_store);
        self.found.accesses.push(access);
        self.unknown(instruction);
    }

    /// Nothing is known of what it writes.
    pub(crate) fn unknown(&mut self, instruction: Instruction) {
        if let Some((register, count)) = instruction.result() {
            for number in 0..count as u8 {
                self.write_form(Register(register.0.saturating_add(number)), Form::WORD);
            }
        }
        for predicate in instruction.result_predicates() {
            self.write_predicate(predicate, Logic::default());
        }
    }

    fn moved(&mut self, instruction: Instruction) {
        const ALL_LANES: u32 = 15;
        let value = (*self.operand(instruction.b())).clone();
        if instruction.get(field::LANES) == ALL_LANES {
            return self.write(instruction.dst(), value);
        }
        let old = self.read(instruction.dst());
        let ranges = self.ranges();
        self.write_form(
            instruction.dst(),
            form::join(&old.form, &ranges, &value.form, &ranges),
        );
    }

    fn special(&mut self, instruction: Instruction) {
        let Kernel { grid, block, .. } = *self.kernel;
        let number = |value: u32| Form::number(value.into());
        let ranges = self.ranges();
        let form = match Special::from_number(instruction.get(field::SPECIAL)) {
            Some(Special::ThreadX) => Form::symbol(0, &ranges),
            Some(Special::ThreadY) => Form::symbol(1, &ranges),
            Some(Special::ThreadZ) => Form::symbol(2, &ranges),
            Some(Special::BlockX) => Form::symbol(3, &ranges),
            Some(Special::BlockY) => Form::symbol(4, &ranges),
            Some(Special::BlockZ) => Form::symbol(5, &ranges),
            Some(Special::ThreadsX) => number(block[0]),
            Some(Special::ThreadsY) => number(block[1]),
            Some(Special::ThreadsZ) => number(block[2]),
            Some(Special::BlocksX) => number(grid[0]),
            Some(Special::BlocksY) => number(grid[1]),
            Some(Special::BlocksZ) => number(grid[2]),
            Some(Special::LaneId) => Form::span(0, 31),
            _ => Form::WORD,
        };
        self.write_form(instruction.dst(), form);
    }

    fn indexed_constant(&mut self, instruction: Instruction) {
        let index = self.read(instruction.a()).known();
        let Some(index) = index.filter(|_| instruction.get(field::INDEX_MODE) == 0) else {
            self.unknown(instruction);
            return self.set_loaded(instruction);
        };
        let place = index.wrapping_add_signed(instruction.offset());
        let bank = instruction.get(field::TABLE_BANK) as u8;
        let data = instruction.data_type();
        let count = data.registers() as u8;
        for number in 0..count {
            let at = u16::try_from(place.wrapping_add(4 * u32::from(number)));
            let register = nth(instruction.dst(), number);
            match at {
                Ok(at) if data.bytes() >= 4 => {
                    let value = self.constant(bank, at);
                    self.write(register, value);
                }
                _ => self.write_form(register, loaded_form(data)),
            }
        }
    }

    /// Words that a load leaves: of a pair, the upper one belongs to the lower one.
    fn set_loaded(&mut self, instruction: Instruction) {
        let data = instruction.data_type();
        let low = self.state.fresh();
        self.write(instruction.dst(), Value::new(loaded_form(data), low));
        for number in 1..data.registers() as u8 {
            let part = self.state.fresh();
            let upper = (number == 1).then_some(Upper {
                pair: Form::PAIR,
                low,
            });
            let value = Value {
                upper,
                ..Value::new(Form::WORD, part)
            };
            self.write(nth(instruction.dst(), number), value);
        }
    }

    fn load(&mut self, pc: u32, instruction: Instruction) {
        self.reach(pc, instruction, [true, false], instruction.data_type().bytes());
        self.set_loaded(instruction);
    }

    /// The address of a global access, before it wraps; `None` if nothing is known of it.
    fn address(&self, instruction: Instruction) -> Option<Form> {
        let low = self.read(instruction.a());
        let ranges = self.ranges();
        let offset = instruction.offset().into();
        if !instruction.has_wide_address() {
            let form = low.form.plus_number(offset);
            return form.fitted(0, WORDS, &ranges);
        }
        let high = self.read(nth(instruction.a(), 1));
        let pair = self.pair(&low.part, &low.form, &high)?;
        Some(pair.plus_number(offset))
    }

    fn reach(&mut self, pc: u32, instruction: Instruction, [is_load, is_store]: [bool; 2], bytes: u32) {
        let anywhere = Access::anywhere(pc, Kind::Global, is_load, is_store);
        let Some(address) = self.address(instruction) else {
            self.found.accesses.push(anywhere);
            return;
        };
        let guard = self
            .condition
            .map(|_| &self.guard.holds.facts[..])
            .unwrap_or_default();
        let constraints: Vec<Constraint> = self
            .state
            .path
            .iter()
            .copied()
            .chain(guard.iter().map(Fact::constraint))
            .collect();
        let bounds = bounded(&address, &self.state.ranges, &constraints);
        if bounds.is_empty() {
            // No thread comes here.
            return;
        }
        let end = i128::from(VA_END);
        let turns = bounds.least.div_euclid(end);
        let is_one_turn = bounds.most.div_euclid(end) == turns;
        let place = |at: i128| (at - turns * end) as u64;
        let in_space = match is_one_turn {
            true => place(bounds.least)..place(bounds.most).saturating_add(bytes.into()),
            false => 0..VA_END,
        };
        if is_one_turn && self.is_private(&in_space) {
            return;
        }
        let is_small = is_one_turn && bounds.most - bounds.least < EXACT_BYTES_MAX;
        let access = Access {
            bound: match address.root {
                _ if is_small && !self.is_open(&address, bounds) => Bound::Exact,
                Some(_) => Bound::Run,
                None => Bound::Space,
            },
            root: address.root,
            bytes: in_space,
            ..anywhere
        };
        if is_store && !is_load {
            self.note_store(address, bytes);
        }
        self.found.accesses.push(access);
    }

    /// Whether the bounds are those of words of which nothing is known.
    fn is_open(&self, address: &Form, bounds: Interval) -> bool {
        address.is_open
            && bounds.most - bounds.least >= address.range.most.saturating_sub(address.range.least)
    }

    /// Whether an access goes to shared or local memory alone; it is noted that it may go to local memory.
    fn is_private(&mut self, bytes: &std::ops::Range<u64>) -> bool {
        let [shared, local] = self.kernel.windows;
        let window = |base: u64| base..base.saturating_add(WINDOW_BYTES);
        let (shared, local) = (window(shared), window(local));
        self.found.uses_local |= bytes.start < local.end && local.start < bytes.end;
        let is_in = |window: &std::ops::Range<u64>| bytes.start >= window.start && bytes.end <= window.end;
        is_in(&shared) || is_in(&local)
    }

    fn note_store(&mut self, address: Form, bytes: u32) {
        let holds = &self.guard.holds;
        let facts = match self.condition {
            None => Vec::new(),
            Some(_) if holds.is_exact => holds.facts.clone(),
            Some(_) => return,
        };
        if address.is_sharp() && address.factors[IDS..].iter().all(|factor| *factor == 0) {
            self.found.stores.push(Store {
                address,
                bytes,
                facts,
            });
        }
    }
}

fn loaded_form(data: DataType) -> Form {
    loaded(data.bytes(), matches!(data, DataType::S8 | DataType::S16))
}

/// Register `number` of several from `first` on; of the zero register all are zero.
pub(crate) fn nth(first: Register, number: u8) -> Register {
    match first.is_zero() {
        true => first,
        false => Register(first.0.saturating_add(number).min(Register::ZERO.0)),
    }
}

/// The bounds of a form, as far as constraints tell them: each takes the place of the symbols that it is about.
fn bounded(form: &Form, ranges: &Ranges, constraints: &[Constraint]) -> Interval {
    let total = form.total(ranges);
    let onwards = with(form, ranges, constraints.iter());
    let backwards = with(form, ranges, constraints.iter().rev());
    total.meet(onwards).meet(backwards)
}

fn with<'a>(form: &Form, ranges: &Ranges, constraints: impl Iterator<Item = &'a Constraint>) -> Interval {
    let mut rest = *form;
    rest.range = Interval::ALL;
    for constraint in constraints {
        let mut about = constraint
            .factors
            .iter()
            .enumerate()
            .filter(|(_, factor)| **factor != 0);
        let Some((first, unit)) = about.next() else {
            continue;
        };
        let ratio = rest.factors[first].checked_div(*unit).unwrap_or(0);
        let is_multiple = constraint
            .factors
            .iter()
            .zip(rest.factors)
            .all(|(factor, own)| *factor == 0 || factor.checked_mul(ratio) == Some(own));
        if ratio == 0 || !is_multiple {
            continue;
        }
        let sum = constraint
            .factors
            .iter()
            .zip(ranges)
            .filter(|(factor, _)| **factor != 0)
            .fold(Interval::new(0, 0), |sum, (factor, range)| {
                sum.plus(range.times(i128::from(*factor)))
            });
        let sum = sum.meet(constraint.bounds);
        if sum.is_empty() {
            return Interval::new(1, 0);
        }
        rest.rest = rest.rest.plus(sum.times(i128::from(ratio)));
        for (own, factor) in rest.factors.iter_mut().zip(constraint.factors) {
            if factor != 0 {
                *own = 0;
            }
        }
    }
    rest.total(ranges)
}
