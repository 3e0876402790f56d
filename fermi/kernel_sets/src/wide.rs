//! Pairs of words: sums with a carry, and products of 64 bits.

use std::rc::Rc;

use fermi_spec::isa::{Addition, Instruction};

use crate::form::{Form, PAIRS};
use crate::sets::Root;
use crate::step::Machine;
use crate::value::{Carry, Part, Upper, Value, sum};

/// One operand of a product: its word, and whether that has a sign.
pub(crate) type Factor<'a> = (&'a Value, bool);

impl Machine<'_> {
    /// The number of 64 bits that two words are the halves of, modulo 2^64.
    pub(crate) fn pair(&self, low: &Part, form: &Form, high: &Value) -> Option<Form> {
        if let Some(upper) = &high.upper
            && upper.low == *low
        {
            return Some(upper.pair);
        }
        high.extending(form, &self.ranges())
    }

    /// The pointer in two words of a constant bank.
    pub(crate) fn pointer(&self, bank: u8, offset: u16) -> Option<Form> {
        let low = self.kernel.constant(bank, offset.into())?;
        let high = self.kernel.constant(bank, u32::from(offset) + 4)?;
        let address = u64::from(high) << 32 | u64::from(low);
        let root = Root {
            bank,
            offset,
            address,
            is_pair: true,
        };
        Some(Form {
            root: Some(root),
            ..Form::number(address.into())
        })
    }

    /// The carry that the instruction takes in.
    fn carry<'c>(&self, carry: Option<&'c Carry>) -> Option<&'c Carry> {
        carry.filter(|carry| carry.condition.is_none() || carry.condition == self.flags_condition())
    }

    /// A sum of two words, and the flags that it leaves.
    pub(crate) fn add(
        &mut self,
        instruction: Instruction,
        a: (Part, Form),
        b: (Part, Form),
        addition: Addition,
    ) {
        let part = self.state.fresh();
        let form = sum(addition, &a.1, &b.1);
        if instruction.sets_flags() {
            self.state.carry = Some(Carry {
                condition: self.flags_condition(),
                a,
                b,
                addition,
                result: part,
            });
        }
        self.write(instruction.dst(), Value::new(form, part));
    }

    /// A sum of two upper halves with the carry of the lower ones.
    pub(crate) fn add_upper(
        &mut self,
        instruction: Instruction,
        a: &Value,
        b: &Value,
        addition: Addition,
        carry: Option<&Carry>,
    ) {
        let part = self.state.fresh();
        let mut value = Value::new(Form::WORD, part);
        value.upper = self.carry(carry).and_then(|carry| {
            // A carry into the third addend of another form is not that of a pair.
            let is_pair = carry.addition == addition && addition != Addition::PlusOne;
            let whole = |low: &(Part, Form), high: &Value| self.pair(&low.0, &low.1, high);
            let (a, b) = (whole(&carry.a, a)?, whole(&carry.b, b)?);
            is_pair.then(|| Upper {
                pair: sum(addition, &a, &b).settled(PAIRS, &self.ranges()),
                low: carry.result,
            })
        });
        if let Some(upper) = &value.upper
            && let Some(pair) = upper.pair.fitted(0, PAIRS, &self.ranges())
        {
            let total = pair.total(&self.ranges());
            value.form = Form {
                is_open: pair.is_open,
                ..Form::span(total.least >> 32, total.most >> 32)
            };
        }
        self.write(instruction.dst(), value);
    }

    /// The number of the lower half of a product: the same for whoever asks for the halves of one.
    pub(crate) fn product_part(&mut self, a: Part, b: Part) -> Part {
        let (a, b) = (a.min(b), a.max(b));
        let known = self.state.products.iter().find(|(x, y, _)| (*x, *y) == (a, b));
        if let Some((_, _, part)) = known {
            return *part;
        }
        let part = self.state.fresh();
        self.state.products.push((a, b, part));
        part
    }

    /// The product of two words, modulo 2^32.
    pub(crate) fn product(&self, a: &Value, b: &Value) -> Form {
        let ranges = self.ranges();
        // Modulo 2^32 a factor need not be the number itself if the other is one number.
        if a.form.single().is_some() || b.form.single().is_some() {
            return a.form.product(&b.form);
        }
        a.form.unsigned(&ranges).product(&b.form.unsigned(&ranges))
    }

    /// The upper half of a product.
    pub(crate) fn upper_product(&mut self, a: Factor<'_>, b: Factor<'_>) -> Value {
        let ranges = self.ranges();
        let number = |(value, is_signed): Factor<'_>| match is_signed {
            true => value.form.signed(&ranges),
            false => value.form.unsigned(&ranges),
        };
        let pair = number(a).product(&number(b)).settled(PAIRS, &ranges);
        let low = self.product_part(a.0.part, b.0.part);
        let part = self.state.fresh();
        let total = pair.total(&ranges);
        let form = Form {
            is_open: pair.is_open,
            ..Form::span(total.least >> 32, total.most >> 32)
        };
        Value {
            upper: Some(Upper { pair, low }),
            ..Value::new(form, part)
        }
    }

    /// A copy that another instruction than a move makes.
    pub(crate) fn copy(&mut self, instruction: Instruction, value: &Rc<Value>) {
        self.write(instruction.dst(), (**value).clone());
    }
}
