//! A VM that keeps the shader cores busy with grids of one length, while its memory is moved by whoever measures that; and one whose grids use a chunk
//! after the other, so that a policy that brings what they use moves it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use anyhow::Result;
use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::isa::assembler::{Program, assemble};
use guests::GuestBus as _;

use super::attacks::{Attack, attack};
use super::victim::{CODE_GPA, SUBCHANNEL, launch_words, put_program};
use super::{Place, live};
use crate::rig::{DATA_VA, RAM_VA, Rig};
use crate::shaders::Launch;
use crate::shaders::runner;
use sim_host::bus::SimBus;

/// VMs that do no harm but work: grids of some hundred microseconds of the host's time, and of ten to twenty milliseconds.
pub const AT_WORK: [Attack; 2] = [
    attack("grids of 24 blocks", run::<24, 8>),
    attack("grids of 1200 blocks", run::<1200, 8>),
];

const CHANNEL: u8 = 1;
/// Where the end of a launch is marked, in guest RAM.
const DONE_GPA: u64 = CODE_GPA + 0x2000;
/// Where the methods of launches lie, in guest RAM.
const PUSHBUFFERS_GPA: u64 = CODE_GPA + 0x8000;
/// Instructions of a lane that compute.
const STEPS: usize = 64;
/// Launches that are submitted together, so that the card is never without one.
const QUEUED: u32 = 4;
/// Rests after which a launch does not end.
const WAIT_TURNS: u32 = 200_000;
/// Bytes between what two programs of [`ROTATING`] store to: a chunk.
const APART: u64 = 2 << 20;
/// Each lane counts to a known number and stores it.
static PROGRAM: LazyLock<Program> = LazyLock::new(|| assemble(&counting(DATA_VA)).expect("text of ours"));
/// The same so many times, each behind the one before; each stores to a chunk of its own.
static ROTATING: LazyLock<Program> = LazyLock::new(|| {
    let texts = (0..ROTATED).map(|chunk| counting(DATA_VA + chunk * APART));
    assemble(&texts.collect::<Vec<_>>().join("\n")).expect("text of ours")
});
/// Chunks that are used in turn.
const ROTATED: u64 = 3;

fn counting(to: u64) -> String {
    let mut text = String::from("mov b32 $r0 $tidx\nmov b32 $r1 0x0\n");
    for _ in 0..STEPS {
        text.push_str("add b32 $r1 $r1 0x1\n");
    }
    let _ = write!(
        text,
        "add b32 $r2 (shl $r0 0x2) 0x{to:x}\nst b32 wb g[$r2] $r1\nexit"
    );
    text
}

/// Runs grids of `BLOCKS` blocks of 8 warps until it is over, by a channel that can write `MEBIBYTES` of VRAM.
pub(super) fn run<const BLOCKS: u32, const MEBIBYTES: u64>(place: &Place) -> Result<()> {
    let its_own = place.clone();
    live::run(place, live::Bar1::ByMessages, move |bus| {
        let rig = start(bus, MEBIBYTES << 20);
        work(bus, &its_own, rig, (&PROGRAM, 1), BLOCKS)
    })
}

/// Runs grids of 24 blocks that use three chunks in turn, until it is over. `prepare` comes before the first.
pub(super) fn rotate(place: &Place, prepare: fn(&mut SimBus)) -> Result<()> {
    let its_own = place.clone();
    live::run(place, live::Bar1::ByMessages, move |bus| {
        let rig = start(bus, ROTATED * APART);
        prepare(bus);
        work(bus, &its_own, rig, (&ROTATING, ROTATED), 24)
    })
}

/// A guest with one channel and so much memory.
fn start(bus: &mut SimBus, data_bytes: u64) -> Rig {
    let mut rig = Rig::start(bus, data_bytes).with_contexts();
    rig.open(bus, CHANNEL);
    rig
}

/// `programs`: the text of so many programs of one length.
fn work(
    bus: &mut SimBus,
    place: &Place,
    mut rig: Rig,
    (program, programs): (&Program, u64),
    blocks: u32,
) -> Result<(), String> {
    put_program(bus, program);
    let program_bytes = size_of_val(&*program.words) as u64 / programs;
    for round in 1u32.. {
        if place.is_over() {
            break;
        }
        let launch = Launch {
            grid: [blocks, 1, 1],
            block: [256, 1, 1],
            registers: program.registers,
            entry: (u64::from(round) % programs * program_bytes) as u32,
            ..Launch::default()
        };
        let mut words = launch_words(&launch);
        words.extend(runner::release(SUBCHANNEL, RAM_VA + DONE_GPA, round));
        // Each launch that may be under way has a pushbuffer of its own.
        let gpa = PUSHBUFFERS_GPA + u64::from(round % (2 * QUEUED)) * 0x1000;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bus.ram_write(gpa, &bytes);
        rig.push_entry(
            bus,
            CHANNEL,
            GpEntry::fetch(GpuVa(RAM_VA + gpa), words.len() as u32),
        );
        rig.ring(bus, CHANNEL);
        let oldest = round.saturating_sub(QUEUED);
        if !(0..WAIT_TURNS).any(|turn| {
            if turn > 0 {
                bus.relax();
            }
            bus.ram_read32(DONE_GPA) >= oldest
        }) {
            return Err(format!("launch {oldest} did not end"));
        }
        place.meter.count_block();
    }
    Ok(())
}
