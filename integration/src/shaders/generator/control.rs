//! Statements, and how control goes through them.

use rand::RngExt;

use super::word::{NOP, Word};
use super::{COUNTERS, Context, Generator};

/// Five-bit opcodes of class 7.
const JMP: u32 = 0b00000;
const JMX: u32 = 0b00001;
const JCAL: u32 = 0b00010;
const BRA: u32 = 0b01000;
const BRX: u32 = 0b01001;
const CAL: u32 = 0b01010;
const SSY: u32 = 0b01100;
const PBK: u32 = 0b01101;
const PCNT: u32 = 0b01110;
const EXIT: u32 = 0b10000;
const RET: u32 = 0b10010;
const BRK: u32 = 0b10101;
const CONT: u32 = 0b10110;
/// Functions of a program.
const FUNCTIONS_MAX: usize = 3;
const DEPTH_MAX: u32 = 3;
const JOIN: u64 = 1 << 4;

impl Word {
    /// A push: neither guard nor condition.
    pub(super) fn push(opcode: u32) -> Self {
        Self::five(7, opcode).guarded(0)
    }
}

impl Generator {
    /// A few statements.
    pub(super) fn statements(&mut self, place: Context) {
        for _ in 0..self.rng.random_range(1..=6) {
            self.statement(place);
        }
    }

    fn statement(&mut self, place: Context) {
        self.budget = self.budget.saturating_sub(1);
        let inside = Context {
            depth: place.depth + 1,
            is_uniform: false,
            ..place
        };
        let may_nest = place.depth < DEPTH_MAX && self.budget > 0;
        match self.rng.random_range(0..100) {
            0..4 if may_nest => self.branch(inside),
            4..7 if may_nest => self.guarded_part(inside),
            7..11 if may_nest => self.repeat(inside),
            11..14 if self.functions_left() && may_nest => self.call(),
            14..16 => self.table_of_branches(),
            16..18 if place.is_uniform => self.exchange(),
            18..19 if place.is_uniform => self.barrier(),
            19..20 if place.in_region => {
                let guard = self.condition();
                self.emit_removable(Word(NOP | JOIN).guarded(guard).0);
            }
            20..22 if place.in_loop => {
                let opcode = if place.has_continue && self.chance(50) {
                    CONT
                } else {
                    BRK
                };
                let guard = self.condition();
                self.emit_removable(Word::control(opcode).guarded(guard).0);
            }
            22..23 if place.in_function => {
                let guard = self.condition();
                self.emit_removable(Word::control(RET).guarded(guard).0);
            }
            23 if self.chance(30) => {
                let guard = self.condition();
                self.emit_removable(Word::control(EXIT).guarded(guard).0);
            }
            24..27 => self.vote(),
            27..55 => self.access(),
            _ => {
                let guard = self.guard();
                let word = self.arithmetic().guarded(guard);
                self.emit_removable(word.0);
            }
        }
    }

    /// Emits nothing yet: a branch or push whose target comes later.
    fn later(&mut self) -> usize {
        self.words.push(0);
        self.words.len() - 1
    }

    fn push_to(&mut self, opcode: u32, at: usize, target: usize) {
        self.words[at] = Word::push(opcode).relative(at, target).0;
    }

    /// A branch at `at`, relative or absolute.
    fn branch_to(&mut self, at: usize, target: usize, guard: u32) {
        let word = if self.chance(80) {
            Word::control(BRA).relative(at, target)
        } else {
            Word::control(JMP).with(57, 26, 8 * target as u32)
        };
        let word = if guard != super::word::ALWAYS && self.chance(10) {
            word.with(9, 5, self.rng.random_range(0..super::arithmetic::CONDITIONS))
        } else {
            word
        };
        self.words[at] = word.guarded(guard).0;
    }

    /// Ends a side: the join flag of its last instruction, or a NOP with it.
    fn join(&mut self) {
        if self.chance(50) {
            let word = self.arithmetic();
            self.emit(word.0 | JOIN);
        } else {
            self.emit(NOP | JOIN);
        }
    }

    /// SSY, one or two sides, joins.
    fn branch(&mut self, place: Context) {
        let region = self.later();
        let guard = self.condition();
        let split = self.later();
        let inside = Context {
            in_region: true,
            ..place
        };
        self.statements(inside);
        if self.chance(60) {
            self.join();
            let other = self.words.len();
            self.branch_to(split, other, guard);
            self.statements(inside);
        } else {
            let end = self.words.len();
            self.branch_to(split, end, guard);
        }
        self.join();
        let end = self.words.len();
        self.push_to(SSY, region, end);
    }

    /// A branch over some statements; the sides meet where those around them do.
    fn guarded_part(&mut self, place: Context) {
        if !(place.in_region || place.in_loop || place.in_function) {
            return self.branch(place);
        }
        let guard = self.condition();
        let split = self.later();
        for _ in 0..self.rng.random_range(1..=3) {
            self.statement(place);
        }
        let end = self.words.len();
        self.branch_to(split, end, guard);
    }

    /// A loop of few trips, their number each lane's own.
    fn repeat(&mut self, place: Context) {
        let counter = COUNTERS + self.counters;
        self.counters += 1;
        let (trips, predicate) = (self.register(), self.rng.random_range(0..7));
        let count = Word::five(2, 7).dst(counter).a(trips).with(57, 26, 3);
        self.emit(count.0);
        let region = self.later();
        let has_continue = self.chance(40);
        let head = self.words.len();
        if has_continue {
            let at = self.later();
            self.push_to(PCNT, at, head);
        }
        // ISETP: the counter is zero.
        let is_over = Word::five(3, 3)
            .with(58, 55, 2)
            .with(19, 17, predicate)
            .with(16, 14, 7)
            .a(counter)
            .b(63)
            .third(7);
        self.emit(is_over.0);
        self.emit(Word::control(BRK).guarded(predicate).0);
        let less = Word::five(2, 1).dst(counter).a(counter);
        self.emit(less.with(57, 26, u32::MAX).0);
        self.statements(Context {
            in_region: false,
            in_loop: true,
            has_continue,
            ..place
        });
        if has_continue {
            self.emit(Word::control(CONT).0);
        } else {
            let back = self.later();
            self.branch_to(back, head, super::word::ALWAYS);
        }
        let end = self.words.len();
        self.push_to(PBK, region, end);
        self.counters -= 1;
    }

    /// An indirect branch into four pieces of two instructions each.
    fn table_of_branches(&mut self) {
        let (index, guard) = (self.register(), self.guard());
        let region = self.later();
        self.emit(Word::five(2, 7).dst(24).a(index).with(57, 26, 3).0);
        self.emit(Word::five(3, 12).dst(24).a(24).with(47, 46, 3).with(45, 26, 4).0);
        let at = self.words.len();
        let word = if self.chance(60) {
            Word::control(BRX)
        } else {
            Word::control(JMX).with(57, 26, 8 * (at as u32 + 1))
        };
        self.emit(word.a(24).guarded(guard).0);
        for _ in 0..4 {
            let guard = self.guard();
            let word = self.arithmetic().guarded(guard);
            self.emit_removable(word.0);
            self.emit(NOP | JOIN);
        }
        let end = self.words.len();
        self.push_to(SSY, region, end);
    }

    fn vote(&mut self) {
        let (register, guard) = (self.register(), self.guard());
        let word = Word::six(4, 0b010010)
            .with(6, 5, self.rng.random_range(0..3))
            .with(56, 54, self.rng.random_range(0..8))
            .with(23, 20, self.rng.random_range(0..16))
            .dst(register)
            .guarded(guard);
        self.emit_removable(word.0);
    }

    fn functions_left(&self) -> bool {
        self.function < FUNCTIONS_MAX
    }

    /// A call of a function that comes later, so that none calls itself.
    fn call(&mut self) {
        let callee = self.rng.random_range(self.function..FUNCTIONS_MAX);
        self.functions = self.functions.max(callee + 1);
        let at = self.later();
        self.calls.push((at, callee));
    }

    /// Behind the end of the program.
    pub(super) fn bodies_of_functions(&mut self) {
        let mut starts = Vec::new();
        while starts.len() < self.functions {
            starts.push(self.words.len());
            self.function = starts.len();
            // Counters of callers are in use: of loops in the program, and of one loop in each function before.
            self.counters = DEPTH_MAX + starts.len() as u32 - 1;
            self.budget = 12;
            self.statements(Context {
                depth: DEPTH_MAX - 1,
                is_uniform: false,
                in_region: false,
                in_loop: false,
                has_continue: false,
                in_function: true,
            });
            self.emit(Word::control(RET).0);
        }
        for (at, callee) in std::mem::take(&mut self.calls) {
            let target = starts[callee];
            self.words[at] = if self.chance(80) {
                Word::push(CAL).relative(at, target).0
            } else {
                Word::push(JCAL).with(57, 26, 8 * target as u32).0
            };
        }
    }
}
