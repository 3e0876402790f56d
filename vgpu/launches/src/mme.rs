//! A macro under way, as far as its registers are known.
//!
//! Source of what instructions do: [`fermi_spec::mme`]. What its sources leave open counts as unknown here: registers that the
//! macro has not set, shifts by 32 and more, an exit or a branch behind a branch or an exit.

use fermi_spec::mme::{self, Assign, CODE_WORDS, Instruction, Kind, Operation, Register};

/// A method that a macro sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) method: u16,
    /// `None`: not known.
    pub(crate) data: Option<u32>,
}

/// Outcome of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The macro goes on.
    Done(Option<Sent>),
    /// The macro has ended.
    Ended(Option<Sent>),
    /// The instruction waits for a parameter; nothing was done.
    Waiting,
    /// It branches by a register that is not known; nothing was done. [`Machine::decide`] lets it go on.
    Undecided,
    /// Nobody knows what comes next.
    Lost,
}

/// A macro between two instructions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Machine {
    place: u16,
    /// r1 to r7.
    registers: [Option<u32>; 7],
    carry: Option<bool>,
    /// Method that is sent next, and what is added to it then, in words.
    next: Option<(u16, u8)>,
    /// Target of the branch before this instruction.
    target: Option<u16>,
    /// This instruction is the last.
    ending: bool,
    /// Whether the register of the branch that comes now is taken for zero.
    is_zero: Option<bool>,
}

impl Machine {
    /// A macro that starts at a word of code with its first parameter.
    pub(crate) fn start(place: u16, parameter: Option<u32>) -> Self {
        let mut registers = [None; 7];
        registers[0] = parameter;
        Self {
            place,
            registers,
            carry: None,
            next: None,
            target: None,
            ending: false,
            is_zero: None,
        }
    }

    /// The word of code that is executed next.
    pub(crate) fn place(&self) -> usize {
        self.place.into()
    }

    /// The same, where the register of the branch that comes now is zero or is not.
    pub(crate) fn decide(self, is_zero: bool) -> Self {
        Self {
            is_zero: Some(is_zero),
            ..self
        }
    }

    /// The same, whatever its registers hold.
    pub(crate) fn forget(self) -> Self {
        Self {
            registers: [None; 7],
            carry: None,
            ..self
        }
    }

    /// Executes an instruction. `parameter` is taken if it needs one; `read` tells the value of a method.
    pub(crate) fn step(
        &mut self,
        word: u32,
        parameter: &mut Option<Option<u32>>,
        read: impl FnOnce(u16) -> Option<u32>,
    ) -> Step {
        let instruction = Instruction::from_bits(word);
        let mut exit = instruction.exit;
        let is_behind = self.target.is_some() || self.ending;
        if is_behind && (exit || matches!(instruction.kind, Kind::Branch { .. })) {
            return Step::Lost;
        }
        let mut next = self.target.unwrap_or(self.place + 1);
        let (mut target, mut sent) = (None, None);
        match instruction.kind {
            Kind::Illegal => return Step::Lost,
            Kind::Branch {
                register,
                if_not_zero,
                annul,
                distance,
            } => {
                let Some(is_zero) = self.get(register).map(|value| value == 0).or(self.is_zero) else {
                    return Step::Undecided;
                };
                if is_zero {
                    self.set(register, Some(0));
                }
                if is_zero != if_not_zero {
                    let to = u16::try_from(i32::from(self.place) + distance);
                    let Some(to) = to.ok().filter(|to| usize::from(*to) < CODE_WORDS) else {
                        return Step::Lost;
                    };
                    exit = false;
                    match annul {
                        true => next = to,
                        false => target = Some(to),
                    }
                }
            }
            Kind::Compute(operation, how, register) => {
                let taken = match how.takes_parameter() {
                    true => match parameter.take() {
                        Some(taken) => taken,
                        None => return Step::Waiting,
                    },
                    false => None,
                };
                let result = self.compute(operation, read);
                match self.assign(how, register, result, taken) {
                    Ok(of_it) => sent = of_it,
                    Err(Nowhere) => return Step::Lost,
                }
            }
        }
        let ends = std::mem::replace(&mut self.ending, exit);
        (self.target, self.place, self.is_zero) = (target, next, None);
        match ends {
            true => Step::Ended(sent),
            false => Step::Done(sent),
        }
    }

    fn get(&self, register: Register) -> Option<u32> {
        let index = usize::from(register).checked_sub(1);
        index.map_or(Some(0), |index| self.registers.get(index).copied().flatten())
    }

    fn set(&mut self, register: Register, value: Option<u32>) {
        let index = usize::from(register).checked_sub(1);
        if let Some(place) = index.and_then(|index| self.registers.get_mut(index)) {
            *place = value;
        }
    }

    fn compute(&mut self, operation: Operation, read: impl FnOnce(u16) -> Option<u32>) -> Option<u32> {
        let [a, b] = operation.operands().map(|register| self.get(register));
        let carry = match operation.uses_carry() {
            true => self.carry,
            false => Some(false),
        };
        let of_known = match (a, b, carry) {
            (Some(a), Some(b), Some(carry)) => Some(operation.result([a, b], carry)),
            _ => None,
        };
        if operation.sets_carry() {
            self.carry = of_known.map(|(_, carry)| carry);
        }
        let (result, _) = of_known?;
        match operation {
            Operation::Read(..) => read(mme::address_of(result).0 << 2),
            Operation::ExtractAt { .. } | Operation::ExtractTo { .. } if a >= Some(u32::BITS) => None,
            _ => Some(result),
        }
    }

    fn assign(
        &mut self,
        how: Assign,
        register: Register,
        result: Option<u32>,
        parameter: Option<u32>,
    ) -> Result<Option<Sent>, Nowhere> {
        let increment = result.map(|result| mme::address_of(result).1.into());
        let (kept, address, data) = how.uses(result, parameter, increment);
        self.set(register, kept);
        if let Some(value) = address {
            self.next = value.map(mme::address_of);
        }
        let Some(data) = data else {
            return Ok(None);
        };
        let (at, increment) = self.next.ok_or(Nowhere)?;
        self.next = Some(((at + u16::from(increment)) & ADDRESS_MASK, increment));
        Ok(Some(Sent {
            method: at << 2,
            data,
        }))
    }
}

/// Words that name a method.
const ADDRESS_MASK: u16 = 0xfff;

/// It sends to a method that is not known.
struct Nowhere;
