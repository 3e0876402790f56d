//! A straightforward evaluator of GF100 machine code: one lane at a time, from the bits of the word.
//!
//! It is the witness of differential tests and shares no code with the software card, and with `fermi_spec::isa`
//! only the numbers of special registers: fields are read where envytools (`envydis/gf100.c`) has them,
//! arithmetic is `exact`'s. It refuses cases that the sources leave open ([`Wrong::Unspecified`]), so that a
//! program it runs has one result.
//!
//! Warps of a block run one after the other, each until it waits or ends; so programs under test must not depend on how
//! warps take turns.
//!
//! * `lane`: state, operands, dispatch; `float`, `integer`, `convert`, `memory`: classes

mod convert;
mod float;
mod integer;
mod lane;
mod memory;

use std::collections::BTreeSet;

use super::Launch;
use super::memory::Memory;
use lane::{Lane, Surroundings, bit, bits, signed};

/// Bytes of an instruction.
const STEP: u32 = 8;
/// Warp instructions after which a program counts as endless.
const PATIENCE: u64 = 2_000_000;

/// Why there is no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// No source documents this case.
    Unspecified(&'static str),
    /// The hardware raises an error.
    Fault(&'static str),
    /// The program does not end.
    Endless,
}

/// The shared memory of a block.
struct Shared {
    bytes: Vec<u8>,
    locks: BTreeSet<u32>,
}

impl Shared {
    fn at(&mut self, address: u32, bytes: usize) -> Option<&mut [u8]> {
        let start = address as usize;
        self.bytes.get_mut(start..start.checked_add(bytes)?)
    }
}

/// Why an entry is on the control stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Side,
    Join,
    Break,
    Continue,
    Return,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    pc: u32,
    mask: u32,
}

/// A warp that came to a barrier.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    barrier: u32,
    register: u32,
    predicate: u32,
    lanes: u32,
}

struct Warp {
    lanes: Vec<Lane>,
    first_thread: u32,
    active: u32,
    live: u32,
    pc: u32,
    stack: Vec<Entry>,
    waiting: Option<Waiting>,
}

/// A barrier of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    warps: u32,
    wanted: u32,
    mode: u32,
    count: u32,
    some: bool,
    not_all: bool,
}

struct Block<'a> {
    launch: &'a Launch,
    memory: &'a mut Memory,
    shared: Shared,
    barriers: [Barrier; 16],
    index: [u32; 3],
    patience: &'a mut u64,
}

/// Runs a grid on `memory`.
pub(crate) fn evaluate(launch: &Launch, memory: &mut Memory) -> Result<(), Wrong> {
    let mut patience = PATIENCE;
    let [x, y, z] = launch.grid;
    for number in 0..x * y * z {
        let mut block = Block {
            launch,
            memory: &mut *memory,
            shared: Shared {
                bytes: vec![0; launch.shared_bytes as usize],
                locks: BTreeSet::new(),
            },
            barriers: [Barrier::default(); 16],
            index: [number % x, number / x % y, number / (x * y)],
            patience: &mut patience,
        };
        block.run()?;
    }
    Ok(())
}

impl Warp {
    fn new(launch: &Launch, first_thread: u32, threads: u32) -> Self {
        let live = (0..threads.min(32)).fold(0, |mask, lane| mask | 1 << lane);
        let local_bytes = launch.local_positive + launch.local_negative;
        Self {
            lanes: vec![Lane::new(local_bytes as usize); 32],
            first_thread,
            active: live,
            live,
            pc: launch.entry,
            stack: Vec::new(),
            waiting: None,
        }
    }

    fn is_over(&self) -> bool {
        self.active == 0
    }

    fn executing(&self, word: u64) -> u32 {
        (0..32)
            .filter(|lane| self.active >> lane & 1 != 0 && self.lanes[*lane].is_let_through(word))
            .fold(0, |mask, lane| mask | 1 << lane)
    }

    fn push(&mut self, kind: Kind, pc: u32, mask: u32) {
        self.stack.push(Entry { kind, pc, mask });
    }

    /// Lanes leave; where none is left the next entry with some goes on.
    fn leave(&mut self, lanes: u32) {
        self.active &= !lanes;
        while self.active == 0 {
            let Some(entry) = self.stack.pop() else {
                return;
            };
            self.active = entry.mask & self.live;
            self.pc = entry.pc;
        }
    }

    fn join(&mut self, lanes: u32) -> Result<(), Wrong> {
        if lanes == 0 {
            return Ok(());
        }
        let top = self.stack.last().map(|entry| entry.kind);
        if lanes == self.active && !matches!(top, None | Some(Kind::Side | Kind::Join)) {
            return Err(Wrong::Fault("join at another entry"));
        }
        self.leave(lanes);
        Ok(())
    }

    /// Lanes go to the nearest entry of a kind.
    fn leave_to(&mut self, kind: Kind, lanes: u32) -> Result<(), Wrong> {
        let at = self.stack.iter().rposition(|entry| entry.kind == kind);
        let at = at.ok_or(Wrong::Fault("no such entry"))?;
        for entry in &mut self.stack[at + 1..] {
            entry.mask &= !lanes;
        }
        self.leave(lanes);
        Ok(())
    }

    /// Each lane to a target of its own, the lowest lane's first.
    fn scatter(&mut self, lanes: u32, targets: &[u32; 32], next: u32) {
        let stay = self.active & !lanes;
        let mut groups: Vec<(u32, u32)> = Vec::new();
        for lane in (0..32).filter(|lane| lanes >> lane & 1 != 0) {
            match groups.iter_mut().find(|(pc, _)| *pc == targets[lane]) {
                Some((_, mask)) => *mask |= 1 << lane,
                None => groups.push((targets[lane], 1 << lane)),
            }
        }
        if stay != 0 {
            self.push(Kind::Side, next, stay);
        }
        for (pc, mask) in groups.iter().skip(1).rev() {
            self.push(Kind::Side, *pc, *mask);
        }
        if let Some((pc, mask)) = groups.first() {
            (self.pc, self.active) = (*pc, *mask);
        }
    }
}

impl Block<'_> {
    fn run(&mut self) -> Result<(), Wrong> {
        let threads: u32 = self.launch.block.iter().product();
        let mut warps: Vec<Warp> = (0..threads.div_ceil(32))
            .map(|warp| Warp::new(self.launch, 32 * warp, threads - 32 * warp))
            .collect();
        while warps.iter().any(|warp| !warp.is_over()) {
            let mut did_something = false;
            for warp in &mut warps {
                while !warp.is_over() && warp.waiting.is_none() {
                    self.step(warp)?;
                    did_something = true;
                }
            }
            did_something |= self.open_barriers(&mut warps);
            if !did_something {
                return Err(Wrong::Endless);
            }
        }
        Ok(())
    }

    /// Lets the warps of complete barriers go on.
    fn open_barriers(&mut self, warps: &mut [Warp]) -> bool {
        let alive = warps.iter().filter(|warp| !warp.is_over()).count() as u32;
        let mut has_opened = false;
        for (number, barrier) in (0..).zip(&mut self.barriers) {
            let wanted = if barrier.wanted == 0 {
                alive
            } else {
                barrier.wanted
            };
            if barrier.warps == 0 || barrier.warps < wanted {
                continue;
            }
            let done = std::mem::take(barrier);
            has_opened = true;
            for warp in warps.iter_mut() {
                let Some(waiting) = warp.waiting.take_if(|waiting| waiting.barrier == number) else {
                    continue;
                };
                for lane in (0..32).filter(|lane| waiting.lanes >> lane & 1 != 0) {
                    let lane = &mut warp.lanes[lane];
                    lane.set(waiting.register, done.count);
                    let holds = if done.mode == 1 { !done.not_all } else { done.some };
                    lane.set_predicate(waiting.predicate, holds);
                }
            }
        }
        has_opened
    }

    fn step(&mut self, warp: &mut Warp) -> Result<(), Wrong> {
        *self.patience = self.patience.checked_sub(1).ok_or(Wrong::Endless)?;
        let at = (warp.pc / STEP) as usize;
        let word = *self.launch.code.get(at).ok_or(Wrong::Fault("no code"))?;
        let lanes = warp.executing(word);
        if word & 7 == 7 {
            return self.control(warp, word, lanes);
        }
        let pc = warp.pc;
        warp.pc += STEP;
        let is_move = word & 7 == 4;
        match bits(word, 63, 58) {
            0b010010 if is_move => vote(warp, word, lanes)?,
            0b010100 if is_move => self.arrive(warp, word, lanes)?,
            _ => {
                for lane in (0..32).filter(|lane| lanes >> lane & 1 != 0) {
                    let mut around = Surroundings {
                        launch: self.launch,
                        memory: &mut *self.memory,
                        shared: &mut self.shared,
                        block: self.index,
                        thread: warp.first_thread + lane,
                        pc,
                    };
                    warp.lanes[lane as usize].execute(word, &mut around)?;
                }
            }
        }
        if bit(word, 4) {
            warp.join(lanes)?;
        }
        Ok(())
    }

    fn arrive(&mut self, warp: &mut Warp, word: u64, lanes: u32) -> Result<(), Wrong> {
        let Some(first) = (0..32).find(|lane| lanes >> lane & 1 != 0) else {
            return Ok(());
        };
        let (mode, lane) = (bits(word, 7, 5), &warp.lanes[first]);
        let number = match bit(word, 47) {
            true => bits(word, 23, 20),
            false => lane.a(word),
        };
        let threads = match bit(word, 46) {
            true => bits(word, 37, 26),
            false => lane.get(bits(word, 31, 26)),
        };
        if number >= self.launch.barriers || threads % 32 != 0 || !matches!(mode, 0 | 1 | 2 | 4) {
            return Err(Wrong::Fault("barrier"));
        }
        let barrier = &mut self.barriers[number as usize];
        barrier.warps += 1;
        (barrier.wanted, barrier.mode) = (threads / 32, mode);
        for lane in (0..32).filter(|lane| lanes >> lane & 1 != 0) {
            let holds = warp.lanes[lane].third(word);
            barrier.count += u32::from(holds);
            barrier.some |= holds;
            barrier.not_all |= !holds;
        }
        if mode != 4 {
            warp.waiting = Some(Waiting {
                barrier: number,
                register: bits(word, 19, 14),
                predicate: bits(word, 55, 53),
                lanes,
            });
        }
        Ok(())
    }

    fn control(&mut self, warp: &mut Warp, word: u64, guarded: u32) -> Result<(), Wrong> {
        let next = warp.pc + STEP;
        let relative = next.wrapping_add(signed(word, 49, 26) as u32);
        let absolute = bits(word, 57, 26);
        let mut lanes = 0;
        for lane in (0..32).filter(|lane| guarded >> lane & 1 != 0) {
            lanes |= u32::from(warp.lanes[lane].meets(bits(word, 9, 5))?) << lane;
        }
        let active = warp.active;
        let opcode = bits(word, 63, 59);
        if bit(word, 14) {
            return Err(Wrong::Unspecified("target in a constant"));
        }
        warp.pc = next;
        match opcode {
            0b00000 | 0b01000 => {
                let target = if opcode == 0 { absolute } else { relative };
                if lanes != 0 {
                    warp.scatter(lanes, &[target; 32], next);
                }
            }
            0b00001 | 0b01001 => {
                let base = if opcode == 1 { absolute } else { relative };
                let register = bits(word, 25, 20);
                let targets = std::array::from_fn(|lane| base.wrapping_add(warp.lanes[lane].get(register)));
                if lanes != 0 {
                    warp.scatter(lanes, &targets, next);
                }
            }
            0b00010 | 0b01010 => {
                warp.push(Kind::Return, next, active);
                warp.pc = if opcode == 2 { absolute } else { relative };
            }
            0b01100 => warp.push(Kind::Join, relative, active),
            0b01101 => warp.push(Kind::Break, relative, active),
            0b01110 => warp.push(Kind::Continue, relative, active),
            0b01111 => warp.push(Kind::Return, relative, active),
            0b10010 if lanes != 0 => warp.leave_to(Kind::Return, lanes)?,
            0b10101 if lanes != 0 => warp.leave_to(Kind::Break, lanes)?,
            0b10110 if lanes != 0 => warp.leave_to(Kind::Continue, lanes)?,
            0b10010 | 0b10101 | 0b10110 | 0b11000 | 0b11001 => {}
            0b10000 => {
                warp.live &= !lanes;
                for entry in &mut warp.stack {
                    entry.mask &= !lanes;
                }
                warp.leave(lanes);
            }
            _ => return Err(Wrong::Unspecified("class 7")),
        }
        Ok(())
    }
}

fn vote(warp: &mut Warp, word: u64, lanes: u32) -> Result<(), Wrong> {
    let is_in = |lane: &usize| lanes >> lane & 1 != 0;
    let source = |lane: &Lane| lane.source(bits(word, 22, 20), bit(word, 23));
    let ballot = (0..32)
        .filter(is_in)
        .fold(0, |all, lane| all | u32::from(source(&warp.lanes[lane])) << lane);
    let holds = match bits(word, 6, 5) {
        0 => ballot == lanes,
        1 => ballot != 0,
        2 => ballot == 0 || ballot == lanes,
        _ => return Err(Wrong::Unspecified("vote")),
    };
    for lane in (0..32).filter(is_in) {
        warp.lanes[lane].set(bits(word, 19, 14), ballot);
        warp.lanes[lane].set_predicate(bits(word, 56, 54), holds);
    }
    Ok(())
}
