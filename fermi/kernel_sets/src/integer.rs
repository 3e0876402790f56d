//! Integer arithmetic, logic, shifts and fields.

use std::rc::Rc;

use fermi_spec::isa::{Addition, Guard, Instruction, Opcode, Source, field};

use crate::form::{self, Form, WORDS};
use crate::step::{Machine, nth};
use crate::value::{Carry, Part, Upper, Value};

/// Bits of a word.
const BITS: u32 = 32;

fn sourced(value: &Value) -> (Part, Form) {
    (value.part, value.form)
}

impl Machine<'_> {
    /// Executes an instruction of this module; whether it was one.
    pub(crate) fn integer(&mut self, instruction: Instruction, carry: Option<&Carry>) -> bool {
        let (a, b) = (self.read(instruction.a()), self.operand(instruction.b()));
        match instruction.opcode() {
            Opcode::Iadd | Opcode::Iadd32i => self.sum(instruction, &a, &b, carry),
            Opcode::Imul | Opcode::Imul32i => self.multiplied(instruction, &a, &b),
            Opcode::Imad | Opcode::Imad32i => self.fused(instruction, &a, &b, carry),
            Opcode::Iscadd | Opcode::Iscadd32i => self.scaled(instruction, &a, &b),
            Opcode::Shl => self.shifted_left(instruction, &a, &b),
            Opcode::Shr => self.shifted_right(instruction, &a, &b),
            Opcode::Lop | Opcode::Lop32i => self.logical(instruction, &a, &b),
            Opcode::Bfe => self.extracted(instruction, &a, &b),
            Opcode::Imnmx => self.least_or_most(instruction, &a, &b),
            Opcode::Sel => self.selected(instruction, &a, &b),
            Opcode::Icmp | Opcode::Fcmp => {
                let ranges = self.ranges();
                self.write_form(instruction.dst(), form::join(&a.form, &ranges, &b.form, &ranges));
            }
            Opcode::I2i => self.converted(instruction, &b),
            Opcode::Popc => self.write_form(instruction.dst(), Form::span(0, BITS.into())),
            Opcode::Flo => self.write_form(instruction.dst(), Form::span(-1, i128::from(BITS) - 1)),
            _ => return false,
        }
        true
    }

    fn sum(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>, carry: Option<&Carry>) {
        let addition = Addition::from_bits(instruction.get(field::ADD_OP));
        let (saturates, extends) = (instruction.bit(5), instruction.bit(6));
        if saturates {
            return self.unknown(instruction);
        }
        if extends {
            return self.add_upper(instruction, a, b, addition, carry);
        }
        let is_copy = addition == Addition::Add && !instruction.sets_flags();
        if is_copy && b.known() == Some(0) {
            return self.copy(instruction, a);
        }
        if is_copy && a.known() == Some(0) {
            return self.copy(instruction, b);
        }
        self.add(instruction, sourced(a), sourced(b), addition);
    }

    fn multiplied(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        let is_high = instruction.bit(6);
        if is_high {
            let (sign_a, sign_b) = (instruction.bit(7), instruction.bit(5));
            let value = self.upper_product((a, sign_a), (b, sign_b));
            return self.write(instruction.dst(), value);
        }
        let part = self.product_part(a.part, b.part);
        let form = self.product(a, b);
        self.write(instruction.dst(), Value::new(form, part));
    }

    fn fused(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>, carry: Option<&Carry>) {
        let c = self.operand(instruction.c());
        let is_short = instruction.opcode() == Opcode::Imad32i;
        let addition = Addition::from_bits(instruction.get(field::ADD_OP));
        let (extends, saturates) = (instruction.bit(55) && !is_short, instruction.bit(56) && !is_short);
        let is_high = instruction.bit(6);
        if saturates {
            return self.unknown(instruction);
        }
        if is_high {
            let (sign_a, sign_b) = (instruction.bit(7), instruction.bit(5));
            let product = self.upper_product((a, sign_a), (b, sign_b));
            return match extends {
                true => self.add_upper(instruction, &product, &c, addition, carry),
                false => self.add(instruction, sourced(&product), sourced(&c), addition),
            };
        }
        if extends {
            return self.unknown(instruction);
        }
        let part = self.product_part(a.part, b.part);
        let form = self.product(a, b);
        self.add(instruction, (part, form), sourced(&c), addition);
    }

    fn scaled(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        let addition = match instruction.opcode() {
            Opcode::Iscadd => Addition::from_bits(instruction.get(field::ADD_OP_SCALED)),
            _ => Addition::Add,
        };
        let factor = 1u32 << instruction.get(field::SHIFT);
        let part = self.product_part(a.part, Part::Number(factor));
        self.add(
            instruction,
            (part, a.form.times(factor.into())),
            sourced(b),
            addition,
        );
    }

    /// The count of a shift, if it is known.
    fn count(&self, instruction: Instruction, b: &Value) -> Option<u32> {
        let count = b.known()?;
        let wraps = instruction.get(field::SHIFT_WRAP) != 0;
        Some(if wraps { count % BITS } else { count.min(BITS) })
    }

    fn shifted_left(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        // The carry that it takes in is that of a wider shift.
        let extends = instruction.bit(6);
        match self.count(instruction, b) {
            Some(count) if !extends && count < BITS => {
                let factor = 1u32 << count;
                let part = self.product_part(a.part, Part::Number(factor));
                let form = a.form.times(factor.into());
                self.write(instruction.dst(), Value::new(form, part));
            }
            Some(BITS) if !extends => self.write(instruction.dst(), Value::number(0)),
            _ => self.unknown(instruction),
        }
    }

    fn shifted_right(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        let (is_signed, extends, reverses) = (instruction.bit(5), instruction.bit(7), instruction.bit(8));
        let count = self.count(instruction, b);
        let Some(count) = count.filter(|_| !extends && !reverses) else {
            return self.unknown(instruction);
        };
        if count == 0 {
            return self.copy(instruction, a);
        }
        let ranges = self.ranges();
        let number = match is_signed {
            true => a.form.signed(&ranges),
            false => a.form.unsigned(&ranges),
        };
        let total = number.total(&ranges);
        let form = number
            .divided(1 << count)
            .unwrap_or(Form::span(total.least >> count, total.most >> count));
        let part = self.state.fresh();
        let upper = match (is_signed, count) {
            (true, 31 | 32) => Some(Upper {
                pair: number,
                low: a.part,
            }),
            // What a shift to the left by the rest pushes out.
            (false, 1..BITS) => Some(Upper {
                pair: number.times(1 << (BITS - count)),
                low: self.product_part(a.part, Part::Number(1 << (BITS - count))),
            }),
            _ => None,
        };
        let value = Value {
            upper,
            ..Value::new(form, part)
        };
        self.write(instruction.dst(), value);
    }

    fn logical(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        const EXTENDED: u32 = 5;
        if instruction.bit(EXTENDED) {
            return self.unknown(instruction);
        }
        let flipped = |form: &Form, flips: bool| match flips {
            true => Form::number(-1).minus(form),
            false => *form,
        };
        let ranges = self.ranges();
        let (not_a, not_b) = (instruction.bit(9), instruction.bit(8));
        let operation = instruction.get(field::LOGIC_OP);
        if operation == 3 && !not_b {
            return self.copy(instruction, b);
        }
        let x = flipped(&a.form, not_a).unsigned(&ranges);
        let y = flipped(&b.form, not_b).unsigned(&ranges);
        let form = match operation {
            0 => and(&x, &y),
            1 => or(&x, &y),
            2 => or_range(&x, &y, 0),
            _ => y,
        };
        self.write_form(instruction.dst(), form);
    }

    fn extracted(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        let (is_signed, reverses) = (instruction.bit(5), instruction.bit(8));
        let Some(descriptor) = b.known().filter(|_| !reverses) else {
            return self.unknown(instruction);
        };
        let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
        let ranges = self.ranges();
        let form = if length == 0 {
            Form::number(0)
        } else if is_signed {
            let half = 1i128 << (length.min(BITS) - 1);
            Form::span(-half, half - 1)
        } else if position >= BITS {
            Form::number(0)
        } else {
            let number = a.form.unsigned(&ranges);
            let total = number.total(&ranges);
            let moved = number
                .divided(1 << position)
                .unwrap_or(Form::span(total.least >> position, total.most >> position));
            and(&moved, &Form::number((1i128 << length.min(BITS)) - 1))
        };
        self.write_form(instruction.dst(), form);
    }

    fn least_or_most(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        if instruction.get(field::MINMAX_PART) != 0 {
            return self.unknown(instruction);
        }
        let is_signed = instruction.bit(5);
        let ranges = self.ranges();
        let number = |value: &Value| match is_signed {
            true => value.form.signed(&ranges),
            false => value.form.unsigned(&ranges),
        };
        let (x, y) = (number(a), number(b));
        let (of_x, of_y) = (x.total(&ranges), y.total(&ranges));
        let (first, second) = match self.third(instruction) {
            Some(true) => ((of_x.least, of_y.least), (of_x.most, of_y.most)),
            Some(false) => ((-of_x.most, -of_y.most), (-of_x.least, -of_y.least)),
            None => return self.write_form(instruction.dst(), form::join(&x, &ranges, &y, &ranges)),
        };
        let is_most = self.third(instruction) == Some(false);
        if second.0 <= first.1 {
            return self.write_form(instruction.dst(), x);
        }
        if second.1 <= first.0 {
            return self.write_form(instruction.dst(), y);
        }
        let (least, most) = (first.0.min(first.1), second.0.min(second.1));
        let form = match is_most {
            true => Form::span(-most, -least),
            false => Form::span(least, most),
        };
        self.write_form(instruction.dst(), form);
    }

    /// The third predicate, where it is known.
    fn third(&self, instruction: Instruction) -> Option<bool> {
        let Guard {
            predicate,
            is_negated,
        } = instruction.predicate_source(field::PRED_C, field::PRED_C_NOT);
        self.state.logic(predicate.0, is_negated).known
    }

    fn selected(&mut self, instruction: Instruction, a: &Rc<Value>, b: &Rc<Value>) {
        match self.third(instruction) {
            Some(true) => self.copy(instruction, a),
            Some(false) => self.copy(instruction, b),
            None => {
                let ranges = self.ranges();
                self.write_form(instruction.dst(), form::join(&a.form, &ranges, &b.form, &ranges));
            }
        }
    }

    /// Integer to integer: what only changes the size of a number keeps it.
    fn converted(&mut self, instruction: Instruction, b: &Rc<Value>) {
        const WORD: u32 = 2;
        const PAIR: u32 = 3;
        let (to, from) = (instruction.get(field::CVT_TO), instruction.get(field::CVT_FROM));
        let from_signed = instruction.get(field::CVT_FROM_INT) & 4 != 0;
        let (saturates, absolute, negates) = (instruction.bit(5), instruction.bit(6), instruction.bit(8));
        if saturates || absolute || negates || instruction.sets_flags() {
            return self.unknown(instruction);
        }
        match (to, from) {
            (WORD, WORD) => self.copy(instruction, b),
            (PAIR, WORD) => {
                let ranges = self.ranges();
                let number = match from_signed {
                    true => b.form.signed(&ranges),
                    false => b.form.unsigned(&ranges),
                };
                let total = number.total(&ranges);
                let (low, part) = (b.part, self.state.fresh());
                let upper = Value {
                    upper: Some(Upper { pair: number, low }),
                    ..Value::new(Form::span(total.least >> 32, total.most >> 32), part)
                };
                self.copy(instruction, b);
                self.write(nth(instruction.dst(), 1), upper);
            }
            (WORD, 0 | 1) => {
                let numbers = 1i128 << (8 << from);
                let form = match from_signed {
                    true => Form::span(-numbers / 2, numbers / 2 - 1),
                    false => Form::span(0, numbers - 1),
                };
                // The low part of a small number is that number.
                let selects = if from == 0 {
                    field::CVT_BYTE
                } else {
                    field::CVT_HALF
                };
                let is_low = instruction.get(selects) == 0 && matches!(instruction.b(), Source::Register(_));
                let ranges = self.ranges();
                let number = b.form.unsigned(&ranges);
                match is_low && number.total(&ranges).is_within(form.range) {
                    true => self.write_form(instruction.dst(), number),
                    false => self.write_form(instruction.dst(), form),
                }
            }
            _ => self.unknown(instruction),
        }
    }
}

/// The least power of two above a number of a word.
fn power_above(number: i128) -> i128 {
    (number.clamp(0, WORDS - 1) as u64 + 1).next_power_of_two().into()
}

/// Bitwise and of two numbers.
fn and(x: &Form, y: &Form) -> Form {
    let (x, y) = if x.single().is_some() { (y, x) } else { (x, y) };
    let most = x.range.most.min(y.range.most);
    let Some(mask) = y.single() else {
        return Form::span(0, most);
    };
    // All ones from bit 0 on.
    if mask & (mask + 1) == 0 && x.range.most <= mask {
        return *x;
    }
    // All ones above some zeros.
    let zeros = WORDS - mask;
    if mask != 0 && zeros & (zeros - 1) == 0 {
        return Form {
            root: x.root,
            is_open: x.is_open,
            ..Form::span(x.range.least & mask, x.range.most & mask)
        };
    }
    Form::span(0, most)
}

/// Bitwise or: a sum where no bit is in both.
fn or(x: &Form, y: &Form) -> Form {
    for (high, low) in [(x, y), (y, x)] {
        if high.divided(power_above(low.range.most)).is_some() && low.range.least >= 0 {
            return high.plus(low);
        }
    }
    or_range(x, y, x.range.least.max(y.range.least))
}

fn or_range(x: &Form, y: &Form, least: i128) -> Form {
    let most = power_above(x.range.most.max(y.range.most)) - 1;
    Form {
        is_open: x.is_open || y.is_open,
        ..Form::span(least.min(most), most)
    }
}
