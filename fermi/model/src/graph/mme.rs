//! A running macro: its registers, its place in the code, and the next method that it
//! sends. [`super::macros`] feeds it.
//!
//! Branches and exits have a delay slot: the instruction behind them is executed before they take effect, unless a
//! branch says otherwise.

use fermi_spec::{
    mme::{self, Assign, CODE_WORDS, Instruction, Kind, Operation, Register},
    regs::pgraph::macro_trap,
};

/// Words of a macro in a context.
pub(super) const WORDS: usize = 10;
const PLACE_MASK: u16 = CODE_WORDS as u16 - 1;
const CARRY: u32 = 1 << 16;
const ENDING: u32 = 1 << 17;
const BRANCHING: u32 = 1 << 18;

/// A method that a macro sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) method: u16,
    pub(super) data: u32,
}

/// Outcome of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The macro goes on.
    Done(Option<Sent>),
    /// The macro has ended.
    Ended(Option<Sent>),
    /// The instruction waits for a parameter; nothing was done.
    Waiting,
    /// A trap, see [`macro_trap`].
    Trap(u32),
}

/// A macro that runs, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Macro {
    /// Class whose methods it sends; zero if none runs.
    pub(super) class: u16,
    place: u16,
    /// r1 to r7.
    registers: [u32; 7],
    carry: bool,
    /// Method that is sent next, in words.
    address: u16,
    increment: u8,
    /// Target of the branch before this instruction.
    target: Option<u16>,
    /// The next instruction is the last.
    ending: bool,
}

impl Macro {
    /// A macro that starts at a word of code with its first parameter.
    pub(super) fn start(class: u16, place: u32, parameter: u32) -> Self {
        let mut registers = [0; 7];
        registers[0] = parameter;
        Self {
            class,
            place: place as u16 & PLACE_MASK,
            registers,
            ..Self::default()
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.class != 0
    }

    /// The word of code that is executed next.
    pub(super) fn place(&self) -> usize {
        usize::from(self.place)
    }

    /// The macro's state as a context keeps it.
    pub(super) fn to_words(self) -> [u32; WORDS] {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        let flags =
            flag(self.carry, CARRY) | flag(self.ending, ENDING) | flag(self.target.is_some(), BRANCHING);
        let mut words = [0; WORDS];
        words[0] = u32::from(self.class) | flags;
        words[1] = u32::from(self.place) | u32::from(self.target.unwrap_or(0)) << 16;
        words[2] = u32::from(self.address) | u32::from(self.increment) << 16;
        words[3..].copy_from_slice(&self.registers);
        words
    }

    /// Restores the state that a context keeps; any words are a valid macro.
    pub(super) fn from_words(words: [u32; WORDS]) -> Self {
        let [flags, places, next, registers @ ..] = words;
        Self {
            class: flags as u16,
            place: places as u16 & PLACE_MASK,
            registers,
            carry: flags & CARRY != 0,
            address: next as u16 & 0xfff,
            increment: (next >> 16 & 0x3f) as u8,
            target: (flags & BRANCHING != 0).then_some((places >> 16) as u16 & PLACE_MASK),
            ending: flags & ENDING != 0,
        }
    }

    /// Executes an instruction. `parameter` is taken if it needs one; `read` tells the value of a method.
    pub(super) fn step(
        &mut self,
        word: u32,
        parameter: &mut Option<u32>,
        read: impl FnOnce(u16) -> u32,
    ) -> Step {
        let instruction = Instruction::from_bits(word);
        let mut exit = instruction.exit;
        let mut next = self.target.unwrap_or(self.place + 1);
        let mut target = None;
        let mut sent = None;
        match instruction.kind {
            Kind::Illegal => return Step::Trap(macro_trap::ILLEGAL_OPCODE),
            Kind::Branch { .. } if self.target.is_some() || self.ending => {
                return Step::Trap(macro_trap::DOUBLE_BRANCH);
            }
            Kind::Branch {
                register,
                if_not_zero,
                annul,
                distance,
            } => {
                if (self.get(register) != 0) == if_not_zero {
                    exit = false;
                    let to = self.place.wrapping_add(distance as u16) & PLACE_MASK;
                    if annul {
                        next = to;
                    } else {
                        target = Some(to);
                    }
                }
            }
            Kind::Compute(operation, how, register) => {
                let taken = if how.takes_parameter() {
                    match parameter.take() {
                        Some(taken) => taken,
                        None => return Step::Waiting,
                    }
                } else {
                    0
                };
                let result = self.compute(operation, read);
                sent = self.assign(how, register, result, taken);
            }
        }
        let ends = std::mem::replace(&mut self.ending, exit);
        self.target = target;
        self.place = next & PLACE_MASK;
        if ends { Step::Ended(sent) } else { Step::Done(sent) }
    }

    fn get(&self, register: Register) -> u32 {
        let index = usize::from(register).checked_sub(1);
        index
            .and_then(|index| self.registers.get(index))
            .map_or(0, |value| *value)
    }

    fn set(&mut self, register: Register, value: u32) {
        let index = usize::from(register).checked_sub(1);
        if let Some(place) = index.and_then(|index| self.registers.get_mut(index)) {
            *place = value;
        }
    }

    fn compute(&mut self, operation: Operation, read: impl FnOnce(u16) -> u32) -> u32 {
        let operands = operation.operands().map(|register| self.get(register));
        let (value, carry) = operation.result(operands, self.carry);
        self.carry = carry;
        match operation {
            Operation::Read(..) => read(mme::address_of(value).0 << 2),
            _ => value,
        }
    }

    fn assign(&mut self, how: Assign, register: Register, result: u32, parameter: u32) -> Option<Sent> {
        let increment = mme::address_of(result).1.into();
        let (kept, address, data) = how.uses(result, parameter, increment);
        self.set(register, kept);
        if let Some(value) = address {
            (self.address, self.increment) = mme::address_of(value);
        }
        data.map(|data| {
            let method = self.address << 2;
            self.address = (self.address + u16::from(self.increment)) & 0xfff;
            Sent { method, data }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a macro to its end or `steps` instructions; what it sent, and its last step.
    fn run(code: &[u32], parameters: &[u32], steps: usize) -> (Vec<(u16, u32)>, Step) {
        let mut running = Macro::start(0x9097, 0, parameters[0]);
        let mut left = parameters[1..].iter().copied();
        let (mut sent, mut last) = (Vec::new(), Step::Waiting);
        let mut parameter = left.next();
        for _ in 0..steps {
            let word = code.get(running.place()).copied().unwrap_or(0x11);
            last = running.step(word, &mut parameter, |method| u32::from(method) + 1);
            if parameter.is_none() {
                parameter = left.next();
            }
            match last {
                Step::Done(some) => sent.extend(some.map(|s| (s.method, s.data))),
                Step::Ended(some) => {
                    sent.extend(some.map(|s| (s.method, s.data)));
                    return (sent, last);
                }
                Step::Waiting | Step::Trap(_) => return (sent, last),
            }
        }
        (sent, last)
    }

    fn add_immediate(target: u32, a: u32, immediate: i32, assign: u32) -> u32 {
        1 | assign << 4 | target << 8 | a << 11 | (immediate << 14) as u32
    }

    const EXIT: u32 = 1 << 7;

    /// Mesa's macro that enables blending for eight targets from the bits of its parameter.
    #[test]
    fn blend_enables_of_mesa_sends_eight_bits() {
        let code = [
            0x0536_0021,
            0x0040_4042,
            0x0042_4042,
            0x0044_4042,
            0x0046_4042,
            0x0048_4042,
            0x004a_4042,
            0x004c_40c2,
            0x004e_4042,
        ];
        let (sent, _) = run(&code, &[0xa5], 100);
        assert_eq!(sent[7].0, 0x1360 + 4 * 7);
        assert_eq!(
            sent.iter().map(|(_, data)| *data).collect::<Vec<_>>(),
            [1, 0, 1, 0, 0, 1, 0, 1]
        );
    }

    #[test]
    fn exit_has_a_delay_slot() {
        let code = [
            add_immediate(0, 0, 0x100 | 1 << 12, 2) | EXIT,
            add_immediate(0, 1, 0, 4),
            add_immediate(0, 1, 1, 4),
        ];
        let (sent, last) = run(&code, &[7], 10);
        assert_eq!(sent, [(0x400, 7)]);
        assert!(matches!(last, Step::Ended(_)));
    }

    #[test]
    fn loop_counts_down() {
        let branch = 7 | 1 << 4 | 1 << 5 | 1 << 11 | (-2i32 << 14) as u32;
        let code = [
            add_immediate(0, 0, 0x100 | 1 << 12, 2),
            add_immediate(0, 1, 0, 4),
            add_immediate(1, 1, -1, 1),
            branch | EXIT,
            0x11,
        ];
        let (sent, last) = run(&code, &[3], 100);
        assert_eq!(sent, [(0x400, 3), (0x404, 2), (0x408, 1)]);
        assert!(matches!(last, Step::Ended(None)));
    }

    #[test]
    fn parameter_is_waited_for_without_doing_anything() {
        let code = [add_immediate(0, 0, 0x100, 6) | EXIT, 0x11];
        assert_eq!(run(&code, &[1], 10), (Vec::new(), Step::Waiting));
        let (sent, _) = run(&code, &[1, 2], 10);
        assert_eq!(sent, [(0x400, 2)]);
    }

    #[test]
    fn read_gives_the_value_of_a_method() {
        let read = 5 | 4 << 4 | 0x10 << 14;
        let code = [add_immediate(0, 0, 0x100, 2), read | EXIT, 0x11];
        assert_eq!(run(&code, &[0], 10).0, [(0x400, 0x41)]);
    }

    #[test]
    fn branch_in_a_delay_slot_traps() {
        let branch = 7 | 2 << 14;
        let (_, last) = run(&[branch, branch], &[0], 10);
        assert_eq!(last, Step::Trap(macro_trap::DOUBLE_BRANCH));
    }

    proptest! {
        #[test]
        fn words_of_a_context_keep_a_macro(words: [u32; WORDS]) {
            let running = Macro::from_words(words);
            prop_assert_eq!(Macro::from_words(running.to_words()), running);
        }

        #[test]
        fn any_code_runs(code in prop::collection::vec(any::<u32>(), 1..40), words: [u32; WORDS]) {
            let mut running = Macro::from_words(words);
            for step in 0..100u32 {
                let word = code[running.place() % code.len()];
                let mut parameter = Some(step);
                running.step(word, &mut parameter, u32::from);
                prop_assert!(running.place() < CODE_WORDS);
            }
        }
    }
}
