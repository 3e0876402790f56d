//! The state of a warp: 32 lanes in step.

use std::ops::BitOr;

use fermi_spec::isa::field;

use super::{
    alu::integer::Flags,
    code::{Op, Operand},
    stack::{Kind, Stack},
    trap::WarpError,
};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// One register of all lanes.
pub(crate) type Lanes = [u32; LANES];

/// A register pair of all lanes.
pub(crate) type Wide = [u64; LANES];

/// The zero register.
const ZERO: usize = 63;

/// `f` of each lane.
#[inline(always)]
pub(crate) fn each(mut f: impl FnMut(usize) -> u32) -> Lanes {
    let mut lanes = [0; LANES];
    for (lane, value) in lanes.iter_mut().enumerate() {
        *value = f(lane);
    }
    lanes
}

/// `f` of each lane, of 64 bits.
#[inline(always)]
pub(crate) fn wide_each(mut f: impl FnMut(usize) -> u64) -> Wide {
    let mut lanes = [0; LANES];
    for (lane, value) in lanes.iter_mut().enumerate() {
        *value = f(lane);
    }
    lanes
}

/// The bits that any lane has. (A fold of an iterator is not always inlined, and then compiled for any processor.)
#[inline(always)]
pub(crate) fn union_of<T: Default + BitOr<Output = T>>(bits: impl Fn(usize) -> T) -> T {
    let mut all = T::default();
    for lane in 0..LANES {
        all = all | bits(lane);
    }
    all
}

/// Lanes for which something holds, as a mask.
#[inline(always)]
pub(crate) fn mask_of(holds: impl Fn(usize) -> bool) -> u32 {
    // In two steps, of which both become vector instructions.
    let bits = each(|lane| u32::from(holds(lane)) << lane);
    union_of(|lane| bits[lane])
}

/// The lanes' upper bits, as a mask.
#[inline(always)]
pub(crate) fn signs_of(values: &Lanes) -> u32 {
    let bits = each(|lane| (values[lane] as i32 >> 31) as u32 & 1 << lane);
    union_of(|lane| bits[lane])
}

/// Lanes of a mask, ascending.
#[inline(always)]
pub(crate) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// Next step of a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WarpState {
    /// Executes at its program counter.
    Running,
    /// Waits at a barrier of its block.
    AtBarrier {
        /// Number of the barrier.
        barrier: u8,
        /// Predicate and register that get the reduction.
        predicate: u8,
        dst: u8,
        /// Lanes that executed it.
        lanes: u32,
    },
    /// Waits for pages at its program counter: for a replay.
    AtPages,
    /// All lanes have exited.
    Done,
}

/// A register of all lanes, at the place that the host's vectors want: one that crosses cache lines costs twice as much.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Register(Lanes);

/// The registers, flags and stack of one warp.
pub(crate) struct Warp {
    registers: Box<[Register; 64]>,
    /// Masks of lanes; the last is all ones.
    predicates: [u32; 8],
    /// Masks of lanes of the condition flags.
    zero: u32,
    sign: u32,
    carry: u32,
    overflow: u32,
    pub(crate) active: u32,
    pub(crate) live: u32,
    pub(crate) pc: u32,
    pub(crate) stack: Stack,
    pub(crate) state: WarpState,
    /// Its index in the block.
    pub(crate) index: u32,
}

impl Warp {
    /// Warp `index` of a block, which has yet to [`start`](Self::start).
    pub(crate) fn new(index: u32, stack_bytes: u32) -> Self {
        Self {
            registers: Box::new([Register([0; LANES]); 64]),
            predicates: [0, 0, 0, 0, 0, 0, 0, u32::MAX],
            zero: 0,
            sign: 0,
            carry: 0,
            overflow: 0,
            active: 0,
            live: 0,
            pc: 0,
            stack: Stack::new(stack_bytes),
            state: WarpState::Done,
            index,
        }
    }

    /// Begins anew at `pc`, with `lanes` lanes that exist, of `registers` registers each. No instruction reaches others.
    pub(crate) fn start(&mut self, pc: u32, lanes: u32, registers: u32) {
        self.registers[..registers.min(ZERO as u32) as usize].fill(Register([0; LANES]));
        self.predicates = [0, 0, 0, 0, 0, 0, 0, u32::MAX];
        (self.zero, self.sign, self.carry, self.overflow) = (0, 0, 0, 0);
        self.live = match lanes {
            0..32 => (1 << lanes) - 1,
            _ => u32::MAX,
        };
        self.active = self.live;
        self.pc = pc;
        self.stack.clear();
        self.state = if self.live == 0 {
            WarpState::Done
        } else {
            WarpState::Running
        };
    }

    /// A register of all lanes.
    #[inline(always)]
    pub(crate) fn register(&self, register: u8) -> &Lanes {
        &self.registers[usize::from(register & 63)].0
    }

    /// Stores a register in `lanes`.
    #[inline(always)]
    pub(crate) fn set_register(&mut self, register: u8, values: &Lanes, lanes: u32) {
        let register = usize::from(register & 63);
        if register == ZERO {
            return;
        }
        let target = &mut self.registers[register].0;
        if lanes == u32::MAX {
            *target = *values;
            return;
        }
        for lane in 0..LANES {
            let taken = 0u32.wrapping_sub(lanes >> lane & 1);
            target[lane] = target[lane] & !taken | values[lane] & taken;
        }
    }

    /// Stores one lane of a register.
    #[inline(always)]
    pub(crate) fn set_lane(&mut self, register: u8, lane: usize, value: u32) {
        let register = usize::from(register & 63);
        if register != ZERO {
            self.registers[register].0[lane & 31] = value;
        }
    }

    /// A register pair of one lane; the pair of the zero register is zero.
    #[inline(always)]
    pub(crate) fn pair(&self, register: u8, lane: usize) -> u64 {
        let low = usize::from(register & 63);
        if low == ZERO {
            return 0;
        }
        u64::from(self.registers[(low + 1) & 63].0[lane & 31]) << 32
            | u64::from(self.registers[low].0[lane & 31])
    }

    /// Stores a register pair of one lane.
    #[inline(always)]
    pub(crate) fn set_pair(&mut self, register: u8, lane: usize, value: u64) {
        if register & 63 != ZERO as u8 {
            self.set_lane(register, lane, value as u32);
            self.set_lane(register + 1, lane, (value >> 32) as u32);
        }
    }

    /// A register pair of all lanes; the pair of the zero register is zero.
    #[inline(always)]
    pub(crate) fn wide(&self, register: u8) -> Wide {
        let (low, high) = (self.register(register), self.register(Self::nth(register, 1)));
        wide_each(|lane| u64::from(high[lane]) << 32 | u64::from(low[lane]))
    }

    /// Stores a register pair in `lanes`.
    #[inline(always)]
    pub(crate) fn set_wide(&mut self, register: u8, values: &Wide, lanes: u32) {
        self.set_register(register, &each(|lane| values[lane] as u32), lanes);
        let high = each(|lane| (values[lane] >> 32) as u32);
        self.set_register(Self::nth(register, 1), &high, lanes);
    }

    /// Register `number` of a group that begins at `register`; all of the zero register's group are zero.
    pub(crate) fn nth(register: u8, number: u8) -> u8 {
        if register & 63 == ZERO as u8 {
            ZERO as u8
        } else {
            register + number
        }
    }

    /// A predicate, as a mask of lanes.
    #[inline(always)]
    pub(crate) fn predicate(&self, predicate: u32, is_negated: bool) -> u32 {
        let mask = self.predicates[predicate as usize & 7];
        if is_negated { !mask } else { mask }
    }

    /// Stores a predicate in `lanes`.
    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, predicate: u32, values: u32, lanes: u32) {
        let predicate = predicate as usize & 7;
        if predicate != 7 {
            let old = self.predicates[predicate];
            self.predicates[predicate] = old & !lanes | values & lanes;
        }
    }

    /// Lanes that execute `op`.
    #[inline(always)]
    pub(crate) fn executing(&self, op: &Op) -> u32 {
        self.active & self.predicate(op.guard.into(), op.guard_not)
    }

    /// The condition flags of a lane.
    pub(crate) fn flags(&self, lane: usize) -> Flags {
        let bit = |mask: u32| mask >> lane & 1 != 0;
        Flags {
            zero: bit(self.zero),
            sign: bit(self.sign),
            carry: bit(self.carry),
            overflow: bit(self.overflow),
        }
    }

    /// Mask of lanes with the carry flag.
    #[inline(always)]
    pub(crate) fn carry(&self) -> u32 {
        self.carry
    }

    /// Stores the flags of `lanes`, each as a mask: zero, sign, carry, overflow.
    #[inline(always)]
    pub(crate) fn set_flag_masks(&mut self, lanes: u32, [zero, sign, carry, overflow]: [u32; 4]) {
        let set = |mask: &mut u32, values: u32| *mask = *mask & !lanes | values & lanes;
        set(&mut self.zero, zero);
        set(&mut self.sign, sign);
        set(&mut self.carry, carry);
        set(&mut self.overflow, overflow);
    }

    /// Masks of the condition flags: zero, sign, carry, overflow.
    #[inline(always)]
    pub(crate) fn flag_masks(&self) -> [u32; 4] {
        [self.zero, self.sign, self.carry, self.overflow]
    }

    /// Lanes whose flags meet a condition code.
    pub(crate) fn meeting(&self, code: u32) -> u32 {
        if code == 15 {
            return u32::MAX;
        }
        // Of each state that the four flags can have: whether it meets the code, and which lanes have it.
        (0..16u32).fold(0, |met, state| {
            let is = |bit: u32| state >> bit & 1 != 0;
            let flags = Flags {
                zero: is(0),
                sign: is(1),
                carry: is(2),
                overflow: is(3),
            };
            let has = |mask: u32, bit: u32| if is(bit) { mask } else { !mask };
            let lanes = has(self.zero, 0) & has(self.sign, 1) & has(self.carry, 2) & has(self.overflow, 3);
            met | if flags.meets(code) { lanes } else { 0 }
        })
    }

    /// P0–P6 in bits 6:0 and the condition flags in 15:12 of all lanes.
    #[inline(always)]
    pub(crate) fn all_packed_flags(&self) -> Lanes {
        let [p0, p1, p2, p3, p4, p5, p6, _] = self.predicates;
        let flags = self.flag_masks();
        each(|lane| {
            let mut word = 0;
            for (bit, mask) in (0..).zip([p0, p1, p2, p3, p4, p5, p6]) {
                word |= (mask >> lane & 1) << bit;
            }
            for (bit, mask) in (12..).zip(flags) {
                word |= (mask >> lane & 1) << bit;
            }
            word
        })
    }

    /// Stores those bits of [`Self::all_packed_flags`] that `mask` has, in `lanes`.
    #[inline(always)]
    pub(crate) fn set_all_packed_flags(&mut self, bits: &Lanes, mask: &Lanes, lanes: u32) {
        // A closure that is called in several places is no part of what is compiled for a level.
        #[inline(always)]
        fn of(words: &Lanes, bit: u32) -> u32 {
            mask_of(|lane| words[lane] >> bit & 1 != 0)
        }
        // Bits that no lane takes are not looked for, and where all lanes take the same ones it is asked once.
        let any = union_of(|lane| mask[lane]);
        let differs = union_of(|lane| mask[lane] ^ mask[0]) != 0;
        for predicate in (0..7).filter(|bit| any >> bit & 1 != 0) {
            let taken = if differs {
                of(mask, predicate) & lanes
            } else {
                lanes
            };
            if taken != 0 {
                self.set_predicate(predicate, of(bits, predicate), taken);
            }
        }
        let Self {
            zero,
            sign,
            carry,
            overflow,
            ..
        } = self;
        for (bit, flag) in (12..).zip([zero, sign, carry, overflow]) {
            if any >> bit & 1 == 0 {
                continue;
            }
            let taken = if differs { of(mask, bit) & lanes } else { lanes };
            *flag = *flag & !taken | of(bits, bit) & taken;
        }
    }

    /// P0–P6 in bits 6:0 and the condition flags in 15:12 of a lane.
    pub(crate) fn packed_flags(&self, lane: usize) -> u32 {
        let flags = self.flags(lane);
        let predicates = (0..7).fold(0, |bits, p| bits | (self.predicates[p] >> lane & 1) << p);
        predicates
            | u32::from(flags.zero) << 12
            | u32::from(flags.sign) << 13
            | u32::from(flags.carry) << 14
            | u32::from(flags.overflow) << 15
    }

    /// Combines a comparison with the third predicate, as the COMBINE field says.
    #[inline(always)]
    pub(crate) fn combined(&self, op: &Op, mask: u32) -> u32 {
        let third = self.predicate(op.get(field::PRED_C), op.get(field::PRED_C_NOT) != 0);
        combine(op.get(field::COMBINE), mask, third)
    }

    /// Lanes leave to a join, the end or a stack entry; if none is active the next entry's go on.
    pub(crate) fn deactivate(&mut self, lanes: u32) {
        self.active &= !lanes;
        if self.active != 0 {
            return;
        }
        match self.stack.unwind(self.live) {
            Some((pc, mask)) => {
                self.pc = pc;
                self.active = mask;
            }
            None => self.state = WarpState::Done,
        }
    }

    /// The join flag, after the instruction's own effect.
    pub(crate) fn join(&mut self, lanes: u32) -> Result<(), WarpError> {
        if lanes != 0 && lanes == self.active && !self.stack.is_joinable() {
            return Err(WarpError::StackMismatch);
        }
        if lanes != 0 {
            self.deactivate(lanes);
        }
        Ok(())
    }

    /// A branch to `target` by `lanes` of the active ones; the others go on behind it later.
    pub(crate) fn branch(&mut self, lanes: u32, target: u32, next: u32) -> Result<(), WarpError> {
        if lanes == 0 {
            self.pc = next;
            return Ok(());
        }
        let others = self.active & !lanes;
        if others != 0 {
            self.stack.push(Kind::Divergence, next, others)?;
        }
        self.active = lanes;
        self.pc = target;
        Ok(())
    }
}

/// And, or, xor of two masks.
#[inline(always)]
pub(crate) fn combine(operation: u32, a: u32, b: u32) -> u32 {
    match operation {
        0 => a & b,
        1 => a | b,
        _ => a ^ b,
    }
}

/// The first register of operands that are always registers.
pub(crate) fn register_of(operand: Operand) -> u8 {
    match operand {
        Operand::Register(register) => register,
        _ => ZERO as u8,
    }
}
