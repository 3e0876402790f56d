//! Statements that access memory: of the lane, of the warp, of all by one operation that commutes.

use rand::RngExt;

use super::word::Word;
use super::{
    BANK_WORDS, BANKS, DATA_REGISTERS, Generator, HIGH, INPUT, INPUT_BYTES, LOCAL_NEGATIVE, LOCAL_POSITIVE,
    LOCAL_WINDOW, OWN, OWN_BYTES, SHARED_OWN_BYTES, SHARED_WARP_BYTES, SHARED_WINDOW, WARP_BYTES, runner,
};

/// Registers of an address in the making.
const ADDRESS: u32 = 24;
const OTHER: u32 = 26;
/// Registers that hold for the whole program.
const THREADS: u32 = 32;
const WARP_BASE: u32 = 36;
const COMMON_BASE: u32 = 38;
const SHARED_OWN: u32 = 57;
const SHARED_WARP: u32 = 58;
const OWN_BASE: u32 = 60;
const THREAD: u32 = 62;
/// Bytes of the common memory for one operation.
const COMMON_BYTES: u32 = 0x80;

/// Opcodes of loads and stores: global, shared or local.
#[derive(Clone, Copy)]
enum Space {
    Global,
    Shared,
    Local,
}

/// Sizes by the number of the type field.
fn size(kind: u32) -> u32 {
    [1, 1, 2, 2, 4, 8, 16][kind as usize]
}

impl Generator {
    /// A type field and a data register for it.
    fn typed(&mut self) -> (u32, u32) {
        let kind = self.rng.random_range(0..7);
        let step = size(kind).div_ceil(4);
        let register = match self.rng.random_range(0..30) {
            0 => 63,
            _ => self.rng.random_range(0..DATA_REGISTERS / step) * step,
        };
        (kind, register)
    }

    /// An offset that is a multiple of `bytes` and leaves room for them before `end`.
    fn offset(&mut self, bytes: u32, end: u32) -> u32 {
        self.rng.random_range(0..=(end - bytes) / bytes) * bytes
    }

    /// `dst = a & mask`.
    fn emit_masked(&mut self, dst: u32, a: u32, mask: u32) {
        self.emit(Word::five(2, 7).dst(dst).a(a).with(57, 26, mask).0);
    }

    /// `dst = a + immediate`.
    fn emit_sum(&mut self, dst: u32, a: u32, immediate: u32) {
        self.emit(Word::five(2, 1).dst(dst).a(a).with(57, 26, immediate).0);
    }

    /// `dst = a + b`.
    fn emit_registers_sum(&mut self, dst: u32, a: u32, b: u32) {
        self.emit(Word::five(3, 9).dst(dst).a(a).b(b).0);
    }

    /// `dst = immediate`.
    fn emit_constant(&mut self, dst: u32, immediate: u32) {
        self.emit(Word::five(2, 3).dst(dst).with(8, 5, 15).with(57, 26, immediate).0);
    }

    /// A load or store, guarded, as a word that may be left out.
    fn emit_access(
        &mut self,
        space: Space,
        is_store: bool,
        is_wide: bool,
        address: u32,
        offset: u32,
        bytes: (u32, u32),
    ) {
        let (kind, register) = bytes;
        let guard = self.guard();
        let word = match (space, is_store) {
            (Space::Global, true) => Word::five(5, 0b10010),
            (Space::Global, false) if self.chance(20) => Word::five(5, 0b10001),
            (Space::Global, false) => Word::five(5, 0b10000),
            (_, true) => Word::six(5, 0b110010),
            (_, false) => Word::six(5, 0b110000),
        };
        let word = match space {
            Space::Global => word.with(57, 26, offset).with(58, 58, is_wide.into()),
            Space::Shared => word.with(49, 26, offset).with(56, 56, 1),
            Space::Local => word.with(49, 26, offset),
        };
        let is_uniform_load = matches!(space, Space::Global) && word.0 >> 59 == 0b10001;
        let word = match space {
            Space::Shared => word,
            _ if is_uniform_load => word,
            _ => word.with(9, 8, self.rng.random_range(0..4)),
        };
        let word = word.with(7, 5, kind).dst(register).a(address).guarded(guard);
        self.emit_removable(word.0);
    }

    /// An access to memory.
    pub(super) fn access(&mut self) {
        let is_store = self.chance(40);
        match self.rng.random_range(0..12) {
            0 => self.own_global(is_store),
            1 | 2 => self.gather(),
            3 => self.warp_global(is_store),
            4 | 5 => self.warp_atomic(),
            6 => self.common_reduction(),
            7 => self.shared(is_store),
            8 => self.local(is_store),
            9 => self.constant_table(),
            10 => self.cache_control(),
            _ if self.chance(50) => self.wide_least_or_most(),
            _ => self.locked_sum(),
        }
    }

    /// The lane's own bytes, beyond 32 bits or by a 32-bit address.
    fn own_global(&mut self, is_store: bool) {
        let data = self.typed();
        let offset = self.offset(size(data.0), OWN_BYTES);
        if self.chance(50) {
            return self.emit_access(Space::Global, is_store, true, OWN_BASE, offset, data);
        }
        let bias = 16 * self.rng.random_range(0..64);
        let base = runner::vram_va(OWN) as u32;
        // ISCADD32I: the thread's number times 64 and the base.
        let word = Word::five(2, 8).dst(ADDRESS).a(THREAD).with(9, 5, 6);
        self.emit(word.with(57, 26, base + bias).0);
        self.emit_access(
            Space::Global,
            is_store,
            false,
            ADDRESS,
            offset.wrapping_sub(bias),
            data,
        );
    }

    /// A load from anywhere in the input.
    fn gather(&mut self) {
        let data = self.typed();
        let bytes = size(data.0);
        let index = self.register();
        let mask = match self.rng.random_range(0..3) {
            0 => INPUT_BYTES - 1,
            1 => 0xff,
            _ => 0xfff,
        };
        self.emit_masked(ADDRESS, index, mask & !(bytes - 1));
        let (is_wide, high) = (self.chance(50), self.chance(50));
        let base = if self.chance(50) {
            runner::vram_va(INPUT)
        } else {
            runner::large_va(INPUT)
        };
        let base = if high { HIGH + runner::vram_va(INPUT) } else { base };
        let is_wide = is_wide || high;
        self.emit_sum(ADDRESS, ADDRESS, base as u32);
        if is_wide {
            self.emit_constant(ADDRESS + 1, (base >> 32) as u32);
        }
        self.emit_access(Space::Global, false, is_wide, ADDRESS, 0, data);
    }

    /// Leaves the address of a random place of the warp's memory in a pair.
    fn emit_warp_address(&mut self, bytes: u32) {
        let index = self.register();
        // Often few places, so that lanes meet.
        let mask = if self.chance(50) { 0x1f } else { WARP_BYTES - 1 };
        self.emit_masked(ADDRESS, index, mask & !(bytes - 1));
        self.emit_registers_sum(ADDRESS, ADDRESS, WARP_BASE);
        self.emit_registers_sum(ADDRESS + 1, WARP_BASE + 1, 63);
    }

    fn warp_global(&mut self, is_store: bool) {
        let data = self.typed();
        self.emit_warp_address(size(data.0));
        self.emit_access(Space::Global, is_store, true, ADDRESS, 0, data);
    }

    /// ATOM or RED of any kind.
    fn warp_atomic(&mut self) {
        let has_result = self.chance(60);
        let (opcode, operation) = match self.rng.random_range(0..10) {
            0..5 => (0b010, self.rng.random_range(0..8)),
            5 => (0b010, 16),
            6 => (0b011, 16 + self.rng.random_range(0..3)),
            7 => (0b101, 16),
            _ if !has_result => (0b010, 16),
            8 => (0b010, [8, 24][self.rng.random_range(0..2)]),
            _ => (0b010, [9, 25][self.rng.random_range(0..2)]),
        };
        let is_wide = opcode == 0b010 && matches!(operation, 16 | 24 | 25);
        self.emit_warp_address(if is_wide { 8 } else { 4 });
        let bias: i32 = 8 * self.rng.random_range(-0x1000..0x1000);
        self.emit_sum(ADDRESS, ADDRESS, -bias as u32);
        let guard = self.guard();
        let [operand, new, result] = [(); 3].map(|()| if is_wide { self.pair() } else { self.register() });
        let word = Word::five(5, if has_result { opcode | 0b01000 } else { opcode })
            .with(9, 5, operation)
            .with(58, 58, 1)
            .a(ADDRESS)
            .dst(operand)
            .guarded(guard);
        let offset = bias as u32;
        let word = match has_result {
            false => word.with(57, 26, offset),
            true => word.with(57, 55, offset >> 17).with(42, 26, offset),
        };
        let word = match (has_result, operation) {
            (false, _) => word,
            (true, 9 | 25) => word.with(48, 43, result).c(new),
            (true, _) => word.with(48, 43, result).c(63),
        };
        self.emit_removable(word.0);
    }

    /// RED to a word that all warps change by the same operation.
    fn common_reduction(&mut self) {
        const OPERATIONS: [(u32, u32); 9] = [
            (0b010, 0),
            (0b010, 1),
            (0b010, 2),
            (0b010, 5),
            (0b010, 6),
            (0b010, 7),
            (0b011, 17),
            (0b011, 18),
            (0b010, 16),
        ];
        let which = self.rng.random_range(0..OPERATIONS.len());
        let (opcode, operation) = OPERATIONS[which];
        let is_wide = operation == 16;
        let index = self.register();
        self.emit_masked(ADDRESS, index, (COMMON_BYTES - 1) & !7);
        self.emit_registers_sum(ADDRESS, ADDRESS, COMMON_BASE);
        let guard = self.guard();
        let operand = if is_wide { self.pair() } else { self.register() };
        let word = Word::five(5, opcode)
            .with(9, 5, operation)
            .with(57, 26, COMMON_BYTES * which as u32)
            .a(ADDRESS)
            .dst(operand)
            .guarded(guard);
        self.emit_removable(word.0);
    }

    fn shared(&mut self, is_store: bool) {
        let data = self.typed();
        let bytes = size(data.0);
        let (base, end) = if self.chance(50) {
            let index = self.register();
            self.emit_masked(ADDRESS, index, (SHARED_WARP_BYTES - 1) & !(bytes - 1));
            self.emit_registers_sum(ADDRESS, ADDRESS, SHARED_WARP);
            (ADDRESS, bytes)
        } else {
            (SHARED_OWN, SHARED_OWN_BYTES)
        };
        let offset = self.offset(bytes, end);
        if self.chance(25) {
            self.emit_sum(ADDRESS, base, SHARED_WINDOW);
            return self.emit_access(Space::Global, is_store, false, ADDRESS, offset, data);
        }
        self.emit_access(Space::Shared, is_store, false, base, offset, data);
    }

    fn local(&mut self, is_store: bool) {
        let data = self.typed();
        let bytes = size(data.0);
        let (base, register, mask) = if self.chance(30) {
            ((1 << 24) - LOCAL_NEGATIVE, 63, 0)
        } else {
            let index = self.register();
            (0, index, LOCAL_POSITIVE - 1)
        };
        let offset = base
            + if mask == 0 {
                self.offset(bytes, LOCAL_NEGATIVE)
            } else {
                0
            };
        self.emit_masked(ADDRESS, register, mask & !(bytes - 1));
        if self.chance(25) {
            self.emit_sum(ADDRESS, ADDRESS, LOCAL_WINDOW);
            return self.emit_access(Space::Global, is_store, false, ADDRESS, offset, data);
        }
        self.emit_access(Space::Local, is_store, false, ADDRESS, offset, data);
    }

    /// LDC, with the bank in the word or in the register.
    fn constant_table(&mut self) {
        let (kind, register) = self.typed();
        let bytes = size(kind);
        let index = self.register();
        let bank = BANKS[self.rng.random_range(0..3)];
        self.emit_masked(ADDRESS, index, (4 * BANK_WORDS as u32 - 1) & !(bytes - 1));
        let by_bank = self.chance(30);
        if by_bank {
            self.emit_sum(ADDRESS, ADDRESS, bank << 16);
        }
        let guard = self.guard();
        let word = Word::six(6, 0b000101)
            .with(7, 5, kind)
            .with(9, 8, if by_bank { 2 } else { 0 })
            .with(46, 42, if by_bank { 0 } else { bank })
            .dst(register)
            .a(ADDRESS)
            .guarded(guard);
        self.emit_removable(word.0);
    }

    fn cache_control(&mut self) {
        let word = if self.chance(50) {
            Word::six(5, 0b111000).with(6, 5, self.rng.random_range(0..3))
        } else {
            let operation = self.rng.random_range(0..8);
            Word::five(5, 0b10011)
                .with(9, 5, operation)
                .with(58, 58, 1)
                .dst(63)
                .a(OWN_BASE)
        };
        self.emit_removable(word.0);
    }

    /// Shared memory that lanes lock for one another, until each has had its turn.
    fn locked_sum(&mut self) {
        let index = self.register();
        self.emit_masked(ADDRESS, index, 0xc);
        self.emit_registers_sum(ADDRESS, ADDRESS, SHARED_WARP);
        let (predicate, addend) = (self.rng.random_range(0..7), self.register());
        let region = self.words.len();
        self.emit(0);
        let again = self.words.len();
        self.emit(
            Word::six(5, 0b110001)
                .with(7, 5, 4)
                .with(52, 50, predicate)
                .dst(OTHER)
                .a(ADDRESS)
                .0,
        );
        let change = Word::five(3, 9).dst(OTHER).a(OTHER).b(addend).with(9, 8, 2);
        self.emit(change.guarded(predicate).0);
        let unlock = Word::six(5, 0b110011).with(7, 5, 4).dst(OTHER).a(ADDRESS);
        self.emit(unlock.guarded(predicate).0);
        let from = self.words.len();
        let retry = Word::control(0b01000).relative(from, again);
        self.emit(retry.guarded(predicate | 8).0);
        self.emit(super::word::NOP | 1 << 4);
        self.words[region] = Word::push(0b01100).relative(region, from + 2).0;
    }

    /// A 64-bit minimum or maximum out of two: no other instruction changes the flags between them.
    fn wide_least_or_most(&mut self) {
        let choice = self.rng.random_range(0..16);
        let [high, low, a, b, c, d] = [(); 6].map(|()| self.rng.random_range(0..DATA_REGISTERS));
        let is_signed = self.rng.random_range(0..2);
        let word = |part, dst: u32, a: u32, b: u32| {
            Word::five(3, 1).with(7, 6, part).third(choice).dst(dst).a(a).b(b)
        };
        // The upper result must not be a source of the lower words.
        let high = if high == c || high == d { ADDRESS } else { high };
        let upper = word(3, high, a, b).with(5, 5, is_signed).with(48, 48, 1);
        self.emit(upper.0);
        self.emit(word(1, low, c, d).0);
        self.emit(Word::five(3, 9).dst(63).a(a).b(b).with(48, 48, 1).0);
    }

    /// Words that other lanes of the block left in shared memory, between two barriers.
    pub(super) fn exchange(&mut self) {
        let (stored, index, loaded) = (self.register(), self.register(), self.register());
        let store = Word::six(5, 0b110010).with(56, 56, 1).with(7, 5, 4);
        self.emit(store.dst(stored).a(SHARED_OWN).0);
        self.barrier();
        self.emit_masked(ADDRESS, index, 0xff);
        self.emit_sum(ADDRESS + 1, THREADS, u32::MAX);
        let least = Word::five(3, 1).third(7).dst(ADDRESS).a(ADDRESS).b(ADDRESS + 1);
        self.emit(least.0);
        self.emit(Word::five(2, 8).dst(ADDRESS).a(ADDRESS).with(9, 5, 4).0);
        let load = Word::six(5, 0b110000).with(56, 56, 1).with(7, 5, 4);
        self.emit(load.dst(loaded).a(ADDRESS).0);
        self.barrier();
    }

    /// A barrier of all warps, with or without a reduction.
    pub(super) fn barrier(&mut self) {
        let mode = self.rng.random_range(0..3);
        let number = self.rng.random_range(0..16);
        let source = self.rng.random_range(0..16);
        let word = Word::six(4, 0b010100)
            .with(7, 5, mode)
            .third(source)
            .with(46, 46, 1);
        let word = if self.chance(70) {
            word.with(47, 47, 1).with(23, 20, number)
        } else {
            self.emit_constant(OTHER, number);
            word.a(OTHER)
        };
        let word = if mode == 0 {
            let register = self.register();
            word.dst(register).with(55, 53, 7)
        } else {
            word.dst(63).with(55, 53, self.rng.random_range(0..8))
        };
        self.emit(word.0);
    }
}
