//! Two hostile VMs beside one that verifies, on the whole core with the software card.
//!
//! What the two ask for comes in any order, answered before the next or not, and they leave and come back. After it the
//! victim finds its bytes and gets on within a bounded number of turns, all laws hold, and the card is not given up.

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::{Bar0Reg, PffbReg, PfifoReg, pffb};
use guests::GuestBus as _;
use vgpu::{Event, GpuConfig, Request, VmConfig, VmId};

use super::input::Input;
use super::poster::{Pace, Poster};
use super::{bars, channels};
use crate::bench::{Bench, RAM_BYTES, gpu_config, vm_config};
use crate::keeper::endless_grid;
use crate::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig, SMALL_TABLE};
use crate::watch::check_sums;
use sim_host::bus::WideBus as _;

const MIB: u64 = 1 << 20;
/// VRAM of the card in MiB, and of each VM: together they have more than there is.
const CARD: u64 = 48;
const GUEST: u64 = 20;
const VICTIM: VmId = VmId(0);
const HOSTILE: [VmId; 2] = [VmId(1), VmId(2)];
/// VRAM that a hostile VM's tables show.
const DATA_BYTES: u64 = 8 * MIB;
/// Channels that a hostile VM plays with.
const CHANNELS: u8 = 6;
/// Most actions of an input.
const ACTIONS_MAX: usize = 64;
/// GPU time that the watchdog gives: more than a slice, and little, for each instruction of an endless grid is executed.
const WATCHDOG_NS: u64 = 4_000_000;
/// Turns within which the victim does a round, and within which a VM comes or goes.
const PATIENCE: u32 = 400_000;
/// Units of work of the card in a turn: few, as a grid that nobody waits behind runs on for all of the input.
const WORK: u32 = 6;
/// What a turn takes of the host's time beside the GPU's while a VM comes or goes.
const HURRY_NS: u64 = 50_000;
/// Bytes that the victim copies to its VRAM and back.
const VICTIMS_BYTES: u64 = 128 << 10;
const FROM_GPA: u64 = 8 * MIB;
const TO_GPA: u64 = 9 * MIB;

/// The VM that does nothing wrong.
struct Victim {
    rig: Rig,
    rounds: u64,
}

impl Victim {
    fn start(bench: &mut Bench) -> Self {
        let mut bus = Poster::new(bench, VICTIM, Pace::Answered);
        let mut rig = Rig::start(&mut bus, MIB);
        rig.open(&mut bus, 0);
        Self { rig, rounds: 0 }
    }

    /// Its memory is what it wrote there, by engine and by CPU, and its own sync ends.
    fn round(&mut self, bench: &mut Bench) {
        let mut bus = Poster::new(bench, VICTIM, Pace::Answered);
        self.rounds += 1;
        let at = (self.rounds & 7) * VICTIMS_BYTES;
        let bytes: Vec<u8> = (0..VICTIMS_BYTES / 8)
            .flat_map(|word| (self.rounds << 32 | word ^ 0x5aa5).to_le_bytes())
            .collect();
        bus.ram_write(FROM_GPA, &bytes);
        bus.ram_write(TO_GPA, &vec![0xee; bytes.len()]);
        self.copy(&mut bus, RAM_VA + FROM_GPA, DATA_VA + at);
        rig::flush(&mut bus, DIRECTORY);
        let word = bus.read(Bar::Bar1, DATA + at + 8 * 77, 8);
        assert_eq!(word.to_le_bytes(), bytes[8 * 77..8 * 78], "round {}", self.rounds);
        self.copy(&mut bus, DATA_VA + at, RAM_VA + TO_GPA);
        let mut found = vec![0; bytes.len()];
        bus.ram_read(TO_GPA, &mut found);
        assert!(found == bytes, "round {}: bytes differ", self.rounds);
    }

    fn copy(&mut self, bus: &mut Poster<'_>, source: u64, target: u64) {
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(
            source,
            target,
            0x1000,
            (VICTIMS_BYTES >> 12) as u32,
        ));
        let sequence = self.rig.submit_with_release(bus, 0, &words);
        let is_done = self.rig.wait_turns(bus, 0, sequence, PATIENCE);
        assert!(is_done, "round {}: the victim's copy does not end", self.rounds);
    }
}

/// Whether a hostile VM is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Attached,
    Leaving,
}

/// A hostile VM.
struct Attacker {
    vm: VmId,
    presence: Presence,
    rig: Option<Rig>,
}

fn config() -> VmConfig {
    vm_config(GUEST)
}

impl Attacker {
    fn come(vm: VmId, bench: &mut Bench) -> Self {
        bench.world.attach(vm, config(), RAM_BYTES as usize);
        turn_until(bench, "an attach", |bench| bench.world.vm(vm).attached.is_some());
        assert_eq!(bench.world.vm(vm).attached, Some(Ok(())), "{vm} was denied");
        bench.post(vm, map(0, RAM_BYTES, true));
        Self {
            vm,
            presence: Presence::Attached,
            rig: None,
        }
    }

    /// Leaves, or comes back once it is gone.
    fn go(&mut self, bench: &mut Bench) {
        match self.presence {
            Presence::Attached => {
                bench.world.submit(Event::Detach { vm: self.vm });
                self.presence = Presence::Leaving;
            }
            Presence::Leaving if bench.world.vm(self.vm).detached => *self = Self::come(self.vm, bench),
            Presence::Leaving => {}
        }
    }

    fn leave(&mut self, bench: &mut Bench) {
        if self.presence == Presence::Attached {
            self.go(bench);
        }
        turn_until(bench, "a detach", |bench| bench.world.vm(self.vm).detached);
    }

    fn act(&mut self, bench: &mut Bench, input: &mut Input<'_>) {
        let pace = [0, 0, 1, 8][usize::from(input.u8() & 3)];
        let mut bus = Poster::new(bench, self.vm, Pace::After(pace));
        match input.u8() % 20 {
            0..4 => raw(&mut bus, input),
            4 => bus.post(map(page(input), u64::from(input.u8()) << 12, input.u8() & 1 == 0)),
            5 => {
                let (gpa, bytes) = match input.u8() & 1 {
                    0 => (0, RAM_BYTES),
                    _ => (page(input), u64::from(input.u8()) << 12),
                };
                let gpa = Gpa(gpa);
                bus.post(Request::UnmapRam { gpa, bytes });
            }
            6 if input.u8() & 3 == 0 => bus.post(Request::Reset),
            7 if input.u8() & 1 == 0 => self.go(bench),
            6..10 => flush(&mut bus, input),
            10 => tables(&mut bus, input),
            11 => (0..u32::from(input.u8()) * 8).for_each(|_| bus.bench.turn()),
            _ => {
                let rig = self.rig.get_or_insert_with(|| start(&mut bus));
                work(rig, &mut bus, input);
            }
        }
    }
}

fn map(gpa: u64, bytes: u64, writable: bool) -> Request {
    let bytes = bytes.min(RAM_BYTES - gpa);
    let gpa = Gpa(gpa);
    Request::MapRam { gpa, bytes, writable }
}

/// A page of RAM.
fn page(input: &mut Input<'_>) -> u64 {
    input.below(RAM_BYTES >> 12) << 12
}

/// Any access to registers, windows and the configuration space.
fn raw(bus: &mut Poster<'_>, input: &mut Input<'_>) {
    let bar = input.choose(&Bar::ALL);
    let any = input.below(256 * MIB);
    let bytes = 1 + u32::from(input.u16() & 0xfff);
    let data = |input: &mut Input<'_>| {
        let mut data = input.counted(63).to_vec();
        data.push(0);
        data
    };
    bus.post(match input.u8() & 7 {
        0 => Request::Read {
            bar,
            offset: any,
            bytes,
        },
        1 => Request::Write {
            bar,
            offset: any,
            data: data(input),
        },
        2 => Request::ReadConfig {
            offset: u64::from(input.u16()),
            bytes,
        },
        3 => Request::WriteConfig {
            offset: u64::from(input.u8()),
            data: data(input),
        },
        4 => Request::Read {
            bar: Bar::Bar0,
            offset: bars::offset(input),
            bytes: 4,
        },
        _ => Request::Write {
            bar: Bar::Bar0,
            offset: bars::offset(input),
            data: bars::value(input).to_le_bytes().to_vec(),
        },
    });
}

fn flush(bus: &mut Poster<'_>, input: &mut Input<'_>) {
    for _ in 0..=input.u8() & 15 {
        match input.u8() & 3 {
            0 => rig::write(
                bus,
                PffbReg::TlbInvalidate,
                pffb::TLB_GO | pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES,
            ),
            1 => rig::write(bus, PffbReg::TlbInvalidate, input.u32() | pffb::TLB_GO),
            _ => rig::flush(bus, DIRECTORY),
        }
    }
}

/// Entries of tables that channels use, or that were never there.
fn tables(bus: &mut Poster<'_>, input: &mut Input<'_>) {
    let entries: Vec<u8> = (0..=input.u8())
        .flat_map(|_| {
            let entry = match input.u8() & 7 {
                0 => input.u64(),
                1 => 0,
                2 | 3 => rig::ram_pte(page(input)).into_bits(),
                4 => rig::pde(Some(LARGE_TABLE), Some(SMALL_TABLE)).into_bits(),
                _ => rig::vram_pte(input.below(GUEST * MIB) & !0xfff).into_bits(),
            };
            entry.to_le_bytes()
        })
        .collect();
    let slot = u64::from(input.u16() & 0x7fff) * 8;
    let at = match input.u8() & 3 {
        0 => DIRECTORY + (slot & 0x1ff),
        1 => LARGE_TABLE + (slot & 0x1fff),
        2 => SMALL_TABLE + slot,
        _ => input.below(GUEST * MIB) & !7,
    };
    rig::put(bus, at, &entries);
}

fn start(bus: &mut Poster<'_>) -> Rig {
    let mut rig = Rig::start(bus, DATA_BYTES);
    rig.open(bus, 0);
    rig
}

/// Something of the channels.
fn work(rig: &mut Rig, bus: &mut Poster<'_>, input: &mut Input<'_>) {
    let channel = input.u8() % CHANNELS;
    match input.u8() % 16 {
        0..3 => rig.open(bus, channel),
        3 => rig.unbind(bus, channel),
        4 => {
            let register = Bar0Reg::from(PfifoReg::ChannelState(channel.into()));
            rig::write(bus, register, input.u32());
        }
        5 => {
            let listed = input.u8();
            let list: Vec<u8> = (0..CHANNELS).filter(|id| listed >> id & 1 == 1).collect();
            rig.commit(bus, &list);
        }
        6 => rig::write(bus, PfifoReg::Preempt, channel.into()),
        7 => {
            let block = Rig::instance(channel) + u64::from(input.u8()) * 4;
            rig::put32(bus, block, input.u32());
        }
        8 => *rig = start(bus),
        9 => {
            let words = endless_grid(bus);
            rig.submit(bus, channel, &words);
        }
        10 => {
            rig.push_entry(bus, channel, input.u64());
            Rig::doorbell(bus, channel, u32::from(input.u16()));
        }
        11 | 12 => {
            let words: Vec<u32> = (0..1 + (input.u8() & 3))
                .flat_map(|_| channels::words(input))
                .collect();
            rig.submit(bus, channel, &words);
        }
        _ => {
            let engine = input.choose(&[Engine::Copy0, Engine::Copy1]);
            let mut words = rig::bind_words(engine).to_vec();
            for _ in 0..=input.u8() & 3 {
                let [source, target] = [(); 2].map(|()| address(input));
                let (line, lines) = (u32::from(input.u16()), u32::from(input.u8()));
                words.extend(rig::copy_words(source, target, line, lines));
            }
            rig.submit_with_release(bus, channel, &words);
        }
    }
}

fn address(input: &mut Input<'_>) -> u64 {
    match input.u8() & 7 {
        0 => input.u64() >> 24,
        1 | 2 => RAM_VA + input.below(RAM_BYTES),
        _ => DATA_VA + input.below(DATA_BYTES),
    }
}

/// Turns until `done`, which happens within a bound whatever the hostile VMs have under way. The host's clock runs faster than
/// the GPU's, so that what the core waits for two seconds of an endless grid are not two seconds of its instructions.
fn turn_until(bench: &mut Bench, what: &str, mut done: impl FnMut(&Bench) -> bool) {
    for _ in 0..PATIENCE {
        if done(bench) {
            return;
        }
        assert!(!bench.world.is_lost, "the card was given up");
        bench.world.now = bench.world.now.after(HURRY_NS);
        bench.turn();
    }
    panic!("{what} does not come to an end");
}

/// Body of the target `two_clients`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let settings = GpuConfig {
        watchdog_ns: WATCHDOG_NS,
        ..gpu_config()
    };
    let mut bench = Bench::with(CARD, settings, &[config()]);
    bench.work = WORK;
    bench.world.work_between_actions = u32::from(input.u8() & 3);
    let mut hostile = HOSTILE.map(|vm| Attacker::come(vm, &mut bench));
    let mut victim = Victim::start(&mut bench);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let who = input.u8();
        hostile[usize::from(who & 1)].act(&mut bench, &mut input);
        bench.turn();
        if who & 14 == 0 {
            victim.round(&mut bench);
        }
    }
    (0..2).for_each(|_| victim.round(&mut bench));
    assert!(!bench.world.is_lost, "the card was given up");
    bench.check();
    check_sums(&bench.world).unwrap_or_else(|broken| panic!("{}", broken.0));
    hostile.iter_mut().for_each(|attacker| attacker.leave(&mut bench));
    bench.end();
}
