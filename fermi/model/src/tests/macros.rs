//! Macros of any kind, on the card and in `launches`, which tells beforehand what they send.
//!
//! Each macro ends with releases that store its registers. What `launches` says of them has to be what the card stores;
//! where it says nothing, it has to say so.

use super::graph::with_classes;
use super::support::*;
use crate::{Doorbell, DoorbellWatcher};
use fermi_spec::{
    addr::GpuVa,
    graphics::{ReportSemaphore, front_end, shader},
    mme::{Instruction, Kind},
    regs::PgraphReg,
};
use kernel_sets::Cache;
use launches::{CopyMethods, GpuMemory, Limits, Looked, Observer, Opaque, Ring, Unmapped, Work};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

const DATA: u64 = 0x5000_0000;
/// Methods of 9097 that only set state.
const STATES: [u16; 4] = [0x1700, 0x1704, 0x1708, 0x3410];
/// Words that the releases read: the address's high word, the low words, the operand.
const HIGH: u16 = 0x3600;
const LOW: u16 = 0x3604;
const OPERAND: u16 = 0x3620;
/// In a word where nothing was released.
const NOTHING: u32 = 0x5eed_5eed;
const EXIT: u32 = 1 << 7;
const NOP: u32 = 0x11;

/// An observer that looks at each doorbell, and what it found.
struct Ahead {
    observer: Option<Observer>,
    cache: Cache,
    found: Arc<Mutex<Vec<Work>>>,
}

struct Memory<'a, 'b>(&'a mut Doorbell<'b>);

impl GpuMemory for Memory<'_, '_> {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.0.read(at, bytes).then_some(()).ok_or(Unmapped)
    }
}

impl DoorbellWatcher for Ahead {
    fn ring(&mut self, mut doorbell: Doorbell<'_>) {
        let ring = Ring {
            base: doorbell.ring,
            entries_log2: doorbell.entries_log2,
        };
        let range = [doorbell.get, doorbell.put];
        let new = || Observer::new(ring, CopyMethods::Nouveau, doorbell.get);
        let observer = self.observer.get_or_insert_with(new);
        // Looks of little work: they end in the middle of a macro, too.
        let limits = Limits {
            work: 7,
            ..Limits::default()
        };
        let (mut items, mut memory) = (Vec::new(), Memory(&mut doorbell));
        while observer.look(&mut memory, &mut self.cache, range, limits, &mut items) == Looked::More {}
        let works = items.into_iter().map(|item| item.work);
        self.found.lock().unwrap().extend(works);
    }

    fn bound(&mut self, _channel: Option<u32>) {}
}

/// What came of a macro.
#[derive(Debug)]
struct Ran {
    /// What was found beforehand.
    found: Vec<Work>,
    /// Whether the card's macro processor trapped.
    has_trapped: bool,
    /// The words that the releases store.
    stored: Vec<u32>,
}

/// Uploads code at word 0, sets states, and calls it with parameters.
fn run(code: &[u32], states: &[(u16, u32)], parameters: &[u32]) -> Ran {
    let mut bench = ready();
    let found = Arc::default();
    bench.card.watch_doorbells(Some(Box::new(Ahead {
        observer: None,
        cache: Cache::new(1),
        found: Arc::clone(&found),
    })));
    let (mut channel, page) = with_classes(&mut bench);
    for index in 0..7 {
        bench.set_vram_u32(page + 4 * index, NOTHING);
    }
    let mut words = Methods::new().to(0, front_end::MACRO_CODE_POINTER, &[0]);
    words = words.repeated(0, front_end::MACRO_CODE, code);
    words = words.to(0, front_end::MACRO_START_POINTER, &[5, 0]);
    for (method, value) in states {
        words = words.to(0, *method, &[*value]);
    }
    let lows: Vec<u32> = (0..7).map(|index| DATA as u32 + 4 * index).collect();
    let operand = ReportSemaphore::new().with_one_word(true).into_bits();
    words = words.to(0, HIGH, &[(DATA >> 32) as u32]).to(0, LOW, &lows);
    words = words.to(0, OPERAND, &[operand]);
    let call = front_end::MACRO_CALL + 8 * 5;
    words = words.to(0, call, &parameters[..1]);
    if parameters.len() > 1 {
        words = words.repeated(0, call + 4, &parameters[1..]);
    }
    words = words.to(0, front_end::WAIT_FOR_IDLE, &[0]);
    bench.submit(&mut channel, &words.0);
    bench.run();
    let has_trapped = bench.read(PgraphReg::GraphMacroTrap) & 0xff != 0;
    let stored = (0..7).map(|index| bench.vram_u32(page + 4 * index)).collect();
    let found = std::mem::take(&mut *found.lock().unwrap());
    Ran {
        found,
        has_trapped,
        stored,
    }
}

fn add_immediate(target: u32, a: u32, immediate: i32, assign: u32) -> u32 {
    1 | assign << 4 | target << 8 | a << 11 | (immediate << 14) as u32
}

/// Sends the value of a word that drivers keep.
const fn send_kept(word: u16) -> u32 {
    5 | 4 << 4 | (word as u32 / 4) << 14
}

/// Releases of r1 to r7, each to a word of its own.
fn releases() -> Vec<u32> {
    let one = |register: u16| {
        [
            add_immediate(0, 0, i32::from(shader::REPORT_HIGH / 4) | 1 << 12, 2),
            send_kept(HIGH),
            send_kept(LOW + 4 * (register - 1)),
            add_immediate(0, register.into(), 0, 4),
            send_kept(OPERAND),
        ]
    };
    let mut code: Vec<u32> = (1..8).flat_map(one).collect();
    code.push(NOP | EXIT);
    code.push(NOP);
    code
}

/// Everything but branches and exits, which are put in between.
fn computation() -> impl Strategy<Value = u32> {
    let register = 0u32..8;
    let assign = prop_oneof![6 => Just(1u32), 2 => Just(0), 1 => Just(4)];
    let how = (assign, register.clone(), register.clone(), register);
    let arithmetic = prop::sample::select(vec![0u32, 1, 2, 3, 8, 9, 10, 11, 12]);
    prop_oneof![
        (how.clone(), arithmetic).prop_map(|((assign, target, a, b), code)| {
            assign << 4 | target << 8 | a << 11 | b << 14 | code << 17
        }),
        (how.clone(), -3i32..4)
            .prop_map(|((assign, target, a, _), immediate)| { add_immediate(target, a, immediate, assign) }),
        (how.clone(), 2u32..5, any::<u32>()).prop_map(|((assign, target, a, b), kind, fields)| {
            kind | assign << 4 | target << 8 | a << 11 | b << 14 | fields & 0xfffe_0000
        }),
        (how, prop::sample::select(STATES.to_vec())).prop_map(|((assign, target, ..), state)| {
            5 | assign << 4 | target << 8 | u32::from(state / 4) << 14
        }),
    ]
}

/// Registers as they come out of a prologue, some states, and code whose sends go to states.
fn body() -> impl Strategy<Value = Vec<u32>> {
    let branch = (0u32..8, any::<bool>(), any::<bool>(), -3i32..6).prop_map(
        |(register, if_not_zero, annul, distance)| {
            let flags = u32::from(if_not_zero) << 4 | u32::from(annul) << 5;
            7 | flags | register << 11 | (distance << 14) as u32
        },
    );
    let address = |state: u16| add_immediate(0, 0, i32::from(state / 4), 2);
    let to_state = prop::sample::select(STATES.to_vec()).prop_map(address);
    let instruction = prop_oneof![24 => computation(), 2 => branch, 2 => to_state];
    let prologue = prop::collection::vec(-0x1_0000i32..0x1_0000, 6);
    (prologue, prop::collection::vec(instruction, 0..24)).prop_map(move |(values, body)| {
        let set = (2u32..)
            .zip(values)
            .map(|(register, value)| add_immediate(register, 0, value, 1));
        // The carry is set, too. No branch of the body goes beyond the last of what follows it.
        set.chain([1 << 4 | 2 << 11 | 3 << 14, address(STATES[0])])
            .chain(body)
            .chain([NOP; 5])
            .collect()
    })
}

/// Holds what was found against what the card did; whether all registers were told.
fn check(ran: &Ran) -> Result<bool, TestCaseError> {
    let has = |why| ran.found.contains(&Work::Opaque(why));
    if has(Opaque::Macro) {
        return Ok(false);
    }
    let mut told = 0;
    for work in &ran.found {
        match work {
            Work::Release { at, payload, bytes } => {
                prop_assert_eq!((at.0 % 4, *bytes), (0, 4));
                let stored = ran.stored.get(((at.0 - DATA) / 4) as usize);
                prop_assert_eq!(payload.as_ref(), stored);
                told += 1;
            }
            Work::Wait | Work::Opaque(Opaque::State) => {}
            work => prop_assert!(false, "{:?}", work),
        }
    }
    let releases = ran.stored.iter().filter(|word| **word != NOTHING).count();
    prop_assert!(told >= releases || has(Opaque::State), "a release is missing");
    prop_assert!(told < 7 || !ran.has_trapped, "a trap that nobody has foreseen");
    Ok(told == 7)
}

#[test]
fn macro_of_any_kind_sends_what_was_told_beforehand() {
    const CASES: u32 = 512;
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(CASES)
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let all_told = Cell::new(0);
    let values = prop::collection::vec(prop_oneof![any::<u32>(), 0u32..40], 32);
    let result = runner.run(&(body(), values), |(body, values)| {
        let takes = |word: &&u32| match Instruction::from_bits(**word).kind {
            Kind::Compute(_, assign, _) => assign.takes_parameter(),
            _ => false,
        };
        let parameters = 1 + body.iter().filter(takes).count();
        let states: Vec<_> = STATES.into_iter().zip(values.iter().copied()).collect();
        let code = [body, releases()].concat();
        let ran = run(&code, &states, &values[4..4 + parameters]);
        all_told.set(all_told.get() + u32::from(check(&ran)?));
        Ok(())
    });
    result.unwrap();
    assert!(
        all_told.get() > CASES / 3,
        "{} of {CASES} macros are told",
        all_told.get()
    );
}
