//! Ways through macros against a slow reference, which knows everything.

use std::collections::BTreeMap;

use fermi_spec::graphics::front_end;
use fermi_spec::methods::class;
use proptest::prelude::*;

use super::*;

/// Runs macros word by word, after envytools' `envydis/macro.c`, without the decoder that the crate uses.
struct Reference<'a> {
    code: &'a [u32],
    registers: [u32; 8],
    carry: bool,
    /// Next method and what is added to it, in words.
    next: [u32; 2],
    values: BTreeMap<u16, u32>,
    /// What was sent, by the parameters that were taken before.
    sent: Vec<Vec<(u16, u32)>>,
    /// It has ended before it took all parameters.
    has_rest: bool,
    is_endless: bool,
}

/// How it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Ended,
    Waits,
    Wrong,
}

impl Reference<'_> {
    fn send(&mut self, data: u32) {
        let method = (self.next[0] * 4) as u16;
        self.sent.last_mut().unwrap().push((method, data));
        self.values.insert(method, data);
        self.next[0] = (self.next[0] + self.next[1]) % 0x1000;
    }

    fn set_next(&mut self, value: u32) {
        self.next = [value % 0x1000, value / 0x1000 % 0x40];
    }

    fn result(&mut self, word: u32) -> Option<u32> {
        let field = |shift: u32, bits: u32| word >> shift & ((1 << bits) - 1);
        let immediate = (word as i32 >> 14) as u32;
        let (a, b) = (
            self.registers[field(11, 3) as usize],
            self.registers[field(14, 3) as usize],
        );
        let (from, mask, to) = (field(17, 5), (1 << field(22, 5)) - 1, field(27, 5));
        let shifted = |value: u32, by: u32, left: bool| match (by < 32, left) {
            (false, _) => 0,
            (true, true) => value << by,
            (true, false) => value >> by,
        };
        let carry = i64::from(self.carry);
        let (a_wide, b_wide) = (i64::from(a), i64::from(b));
        let wide = match (word & 7, field(17, 5)) {
            (0, 0) => a_wide + b_wide,
            (0, 1) => a_wide + b_wide + carry,
            (0, 2) => a_wide - b_wide,
            (0, 3) => a_wide - b_wide - carry,
            (0, 8) => return Some(a ^ b),
            (0, 9) => return Some(a | b),
            (0, 10) => return Some(a & b),
            (0, 11) => return Some(a & !b),
            (0, 12) => return Some(!(a & b)),
            (1, _) => return Some(a.wrapping_add(immediate)),
            (2, _) => return Some(a & !(mask << to) | (b >> from & mask) << to),
            (3, _) => return Some(shifted(shifted(b, a, false) & mask, to, true)),
            (4, _) => return Some(shifted(shifted(b, from, false) & mask, a, true)),
            (5, _) => {
                let method = (a.wrapping_add(immediate) % 0x1000 * 4) as u16;
                return Some(self.values.get(&method).copied().unwrap_or(method.into()));
            }
            _ => return None,
        };
        self.carry = !(0..=i64::from(u32::MAX)).contains(&wide);
        Some(wide as u32)
    }

    fn run(&mut self, parameters: &[u32]) -> Stop {
        let mut parameters = parameters.iter().copied();
        let (mut place, mut after, mut is_last) = (0usize, None, false);
        for _ in 0..10_000 {
            let Some(word) = self.code.get(place).copied() else {
                return Stop::Wrong;
            };
            let (how, mut exit) = (word >> 4 & 7, word & 0x80 != 0);
            let mut following = after.take().unwrap_or(place + 1);
            if word & 7 == 7 {
                if following != place + 1 || is_last {
                    return Stop::Wrong;
                }
                let is_zero = self.registers[(word >> 11 & 7) as usize] == 0;
                if is_zero == (word & 0x10 == 0) {
                    let to = (place as i64 + i64::from(word as i32 >> 14)) as usize;
                    exit = false;
                    match word & 0x20 {
                        0 => after = Some(to),
                        _ => following = to,
                    }
                }
            } else {
                let takes = [true, false, false, true, false, true, true, false][how as usize];
                let parameter = takes.then(|| parameters.next());
                if parameter == Some(None) {
                    return Stop::Waits;
                }
                if takes {
                    self.sent.push(Vec::new());
                }
                let parameter = parameter.flatten().unwrap_or(0);
                let Some(result) = self.result(word) else {
                    return Stop::Wrong;
                };
                let target = (word >> 8 & 7) as usize;
                self.registers[target] = if matches!(how, 0 | 3 | 5) {
                    parameter
                } else {
                    result
                };
                self.registers[0] = 0;
                if matches!(how, 2 | 5 | 6 | 7) {
                    self.set_next(result);
                }
                match how {
                    3 | 4 => self.send(result),
                    6 => self.send(parameter),
                    7 => self.send(result / 0x1000 % 0x40),
                    _ => {}
                }
            }
            if is_last {
                return if parameters.next().is_none() {
                    Stop::Ended
                } else {
                    Stop::Wrong
                };
            }
            (is_last, place) = (exit, following);
        }
        self.is_endless = true;
        Stop::Wrong
    }
}

/// A macro that sends to methods of state, with branches here and there.
fn code() -> impl Strategy<Value = Vec<u32>> {
    let register = 0u32..8;
    let how = prop::sample::select(vec![1u32, 1, 1, 1, 4, 4, 4, 0, 3]);
    let operands = (how, register.clone(), register.clone(), register.clone())
        .prop_map(|(how, target, a, b)| how << 4 | target << 8 | a << 11 | b << 14);
    let kind = prop::sample::select(vec![0u32, 0, 0, 1, 2, 3, 4, 5]);
    let arithmetic = prop::sample::select(vec![0u32, 1, 2, 3, 8, 9, 10, 11, 12]);
    let computation =
        (operands, kind, arithmetic, any::<u32>()).prop_map(|(operands, kind, code, fields)| {
            operands
                | kind
                | match kind {
                    0 => code << 17,
                    // A small number, or a method of state.
                    1 => fields & 0x7 << 17,
                    5 => (0x1700 / 4 + (fields & 3)) << 14 & !0x1c000,
                    _ => fields & 0xfffe_0000,
                }
        });
    let branch = (register, 0u32..4, -3i32..6)
        .prop_map(|(register, flags, distance)| 7 | flags << 4 | register << 11 | (distance << 14) as u32);
    let address = (0u32..4, 0u32..3, prop::sample::select(vec![2u32, 5, 6, 7]))
        .prop_map(|(word, increment, how)| 1 | how << 4 | (0x1700 / 4 + word + (increment << 12)) << 14);
    let instruction = prop_oneof![20 => computation, 2 => branch, 3 => address];
    let exit = prop::collection::vec(instruction, 1..30);
    exit.prop_map(|mut code| {
        code.insert(0, 1 | 2 << 4 | (0x1700 / 4) << 14);
        code.extend([0x91, 0x11]);
        code
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_is_told_of_a_macro_is_so(
        code in code(),
        parameters in prop::collection::vec((prop_oneof![Just(0u32), Just(1), any::<u32>()], 0u8..4), 6),
        registers: [u32; 8],
        states: [(u32, bool); 4],
    ) {
        let class = class::THREED;
        let mut macros = uploaded(&code);
        let mut values = BTreeMap::new();
        for (method, (value, is_known)) in (0x1700u16..).step_by(4).zip(states) {
            values.insert(method, value);
            macros.keep(class, method, is_known.then_some(value));
        }
        let known = |(value, doubt): (u32, u8)| (doubt != 0).then_some(value);
        let mut starts = vec![Machine::start(0, known(parameters[0]))];
        let mut parameter = None;
        for count in 1..=parameters.len() {
            let mut reference = Reference {
                code: &code,
                registers: std::array::from_fn(|register| if register == 0 { 0 } else { registers[register] }),
                carry: registers[0] & 1 != 0,
                next: [registers[0] >> 1 & 0xfff, 1],
                values: values.clone(),
                sent: vec![Vec::new()],
                has_rest: false,
                is_endless: false,
            };
            reference.registers[1] = parameters[0].0;
            let given: Vec<u32> = parameters[1..count].iter().map(|(value, _)| *value).collect();
            let stop = reference.run(&given);
            // What it may send at all holds for whatever it does afterwards, too, where it keeps to what is documented.
            if let Ok(methods) = may_send(&macros, &starts, &mut 0) {
                prop_assert!(stop != Stop::Wrong || reference.is_endless || reference.has_rest);
                let sent = reference.sent[count - 1..].iter().flatten();
                for (method, _) in sent {
                    prop_assert!(methods.contains(method), "{method:x} is not told");
                }
            }
            let Ok(reached) = Ways::new(&macros, class, &starts, parameter).follow() else {
                return Ok(());
            };
            prop_assert_eq!(stop, if reached.has_ended { Stop::Ended } else { Stop::Waits });
            let sent = &reference.sent[count - 1];
            prop_assert_eq!(reached.sent.len(), sent.len());
            for (told, (method, data)) in reached.sent.iter().zip(sent) {
                prop_assert_eq!(told.method, *method);
                prop_assert!(told.data.is_none_or(|told| told == *data), "{:?} is {:x}", told, data);
                macros.keep(class, told.method, told.data);
            }
            if reached.has_ended {
                return Ok(());
            }
            (starts, parameter) = (reached.ways, parameters.get(count).map(|next| known(*next)));
        }
    }
}

/// Code from word 0 on.
fn uploaded(code: &[u32]) -> Macros {
    let mut macros = Macros::new();
    macros.upload(front_end::MACRO_CODE_POINTER, Some(0));
    for word in code {
        macros.upload(front_end::MACRO_CODE, Some(*word));
    }
    macros
}

/// Uploads code at word 0 and follows a call of it.
fn follow(code: &[u32], parameter: Option<u32>) -> Result<Reached, Lost> {
    let start = Machine::start(0, parameter);
    Ways::new(&uploaded(code), class::THREED, &[start], None).follow()
}

fn add_immediate(target: u32, a: u32, immediate: i32, how: u32) -> u32 {
    1 | how << 4 | target << 8 | a << 11 | (immediate << 14) as u32
}

const EXIT: u32 = 1 << 7;
const BRANCH: u32 = 7;
const IF_NOT_ZERO: u32 = 1 << 4;
const ANNUL: u32 = 1 << 5;

#[test]
fn both_ways_of_a_branch_send_what_they_have_in_common() {
    // One of two values, by r2, which was not set; then r1.
    let code = [
        add_immediate(3, 0, 5, 1),
        BRANCH | 2 << 11 | 3 << 14,
        add_immediate(0, 0, 0x5c0 | 1 << 12, 2),
        add_immediate(3, 0, 6, 1),
        add_immediate(0, 3, 0, 4) | EXIT,
        add_immediate(0, 1, 0, 4),
    ];
    let reached = follow(&code, Some(9)).unwrap();
    let sent = |method, data| Sent { method, data };
    assert_eq!(reached.sent, [sent(0x1700, None), sent(0x1704, Some(9))]);
    assert!(reached.has_ended);
}

#[test]
fn endless_macro_and_one_with_too_many_ways_are_lost() {
    let endless = [BRANCH | ANNUL];
    assert_eq!(follow(&endless, Some(0)).unwrap_err(), Lost);
    // As long as r2 is not zero, and nobody knows it.
    let counting = [
        add_immediate(2, 2, -1, 1),
        BRANCH | IF_NOT_ZERO | ANNUL | 2 << 11 | (-1i32 << 14) as u32 | EXIT,
        0x11,
    ];
    assert_eq!(follow(&counting, Some(0)).unwrap_err(), Lost);
}

#[test]
fn loop_that_nobody_can_follow_sends_what_its_code_names() {
    let looped = |increment: i32| {
        let to_second = add_immediate(0, 0, 0x5c2, 2);
        let code = [
            add_immediate(0, 0, 0x5c0 | increment << 12, 2),
            add_immediate(0, 2, 0, 4),
            BRANCH | IF_NOT_ZERO | 2 << 11 | (-1i32 << 14) as u32,
            add_immediate(2, 2, -1, 1),
            to_second | EXIT,
            add_immediate(0, 1, 0, 4),
        ];
        let macros = uploaded(&code);
        may_send(&macros, &[Machine::start(0, None)], &mut 0)
    };
    assert_eq!(looped(0), Ok(BTreeSet::from([0x1700, 0x1708])));
    // One method after the other, to those that upload code.
    assert_eq!(looped(1), Err(Lost));
}

#[test]
fn code_that_was_not_uploaded_is_lost() {
    assert_eq!(follow(&[0x11], Some(0)).unwrap_err(), Lost);
}

#[test]
fn upload_past_the_end_makes_all_code_unknown() {
    let mut macros = Macros::new();
    macros.upload(front_end::MACRO_CODE_POINTER, Some(0x7ff));
    macros.upload(front_end::MACRO_CODE, Some(1));
    assert_eq!(macros.code(0x7ff), Some(1));
    macros.upload(front_end::MACRO_CODE, Some(2));
    assert_eq!([0, 0x7ff].map(|place| macros.code(place)), [None; 2]);
    // Where the pointer stands is not known either.
    macros.upload(front_end::MACRO_CODE, Some(3));
    assert_eq!([0, 1].map(|place| macros.code(place)), [None; 2]);
}

#[test]
fn macro_that_uploads_calls_or_binds_is_lost() {
    let send = |method: u16| {
        [
            add_immediate(0, 0, i32::from(method / 4), 2) | EXIT,
            add_immediate(0, 1, 0, 4),
        ]
    };
    for method in [
        0,
        front_end::MACRO_CODE,
        front_end::SHADOW_CONTROL,
        0x3800,
        0x3ffc,
    ] {
        assert_eq!(follow(&send(method), Some(0)).unwrap_err(), Lost, "{method:x}");
    }
    assert!(follow(&send(0x1700), Some(0)).is_ok());
}
