//! The VM whose work is checked: a block is written and read back by a copy engine, and a grid stores known numbers.

use std::sync::LazyLock;

use anyhow::Result;
use fermi_spec::isa::assembler::{Program, assemble};
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;
use guests::GuestBus as _;

use super::{Place, live};
use crate::rig::{RAM_VA, Rig};
use crate::shaders::Launch;
use crate::shaders::runner::{self, Addresses};
use sim_host::bus::SimBus;

const CHANNEL: u8 = 1;
/// Subchannel of class 90c0.
pub(super) const SUBCHANNEL: u8 = 1;
/// Places in guest RAM: code, results, and what a launch needs besides.
pub(super) const CODE_GPA: u64 = 12 << 20;
const RESULTS_GPA: u64 = CODE_GPA + 0x1000;
const GRID_DONE_GPA: u64 = RESULTS_GPA + 0x1000;
const LANES: u64 = 48;
/// Rests after which a grid does not end.
const WAIT_TURNS: u32 = 20_000;
/// Where grids find code and memory, in guest RAM.
pub(super) const ADDRESSES: Addresses = Addresses {
    subchannel: SUBCHANNEL,
    code: RAM_VA + CODE_GPA,
    banks: RAM_VA + CODE_GPA + 0x1_0000,
    temp: RAM_VA + CODE_GPA + 0x10_0000,
    temp_bytes: 0xc_0000,
};
/// Each lane stores the number of the round plus 3 × its own.
static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    let text = format!(
        "
        mov b32 $r0 $tidx
        mov b32 $r1 0x3
        mul $r1 u32 $r0 u32 $r1
        mov b32 $r3 $gridid
        add b32 $r1 $r1 $r3
        add b32 $r2 (shl $r0 0x2) 0x{:x}
        st b32 wb g[$r2] $r1
        exit",
        RAM_VA + RESULTS_GPA
    );
    assemble(&text).expect("text of ours")
});

/// Stores a program for grids.
pub(super) fn put_program(bus: &mut SimBus, program: &Program) {
    let code: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bus.ram_write(CODE_GPA, &code);
}

/// Methods that bind class 90c0 and launch one grid.
pub(super) fn launch_words(launch: &Launch) -> Vec<u32> {
    let mut words = vec![
        incrementing(SUBCHANNEL, host::SET_OBJECT, 1),
        u32::from(class::COMPUTE),
    ];
    words.extend(runner::state(launch, ADDRESSES));
    words.extend(runner::start(SUBCHANNEL, 0));
    words
}

/// Connects, and works until it is over: its tables show `MEBIBYTES` of data, and `BLOCK` MiB are written and read back at a time.
pub(super) fn run<const MEBIBYTES: u64, const BLOCK: u64>(place: &Place) -> Result<()> {
    let its_own = place.clone();
    live::run(place, live::Bar1::ByMessages, move |bus| {
        work(bus, &its_own, MEBIBYTES << 20, BLOCK << 20)
    })
}

fn work(bus: &mut SimBus, place: &Place, data_bytes: u64, block: u64) -> Result<(), String> {
    let mut rig = Rig::start(bus, data_bytes).with_contexts();
    rig.open(bus, CHANNEL);
    put_program(bus, &PROGRAM);
    for round in 1.. {
        if place.is_over() {
            break;
        }
        if !rig.fill(bus, CHANNEL, round, block) {
            return Err(format!("round {round}: the copy to VRAM did not end"));
        }
        let card_ns = compute(bus, &mut rig, round as u32)?;
        rig.verify(bus, CHANNEL, round, block).map_err(|at| match at {
            u64::MAX => format!("round {round}: the copy from VRAM did not end"),
            at => format!("round {round}: byte {at:#x} is wrong"),
        })?;
        place.meter.count_block_at(card_ns);
    }
    Ok(())
}

/// One grid of one block, and whether it stored what it should. Its end by the card's clock.
fn compute(bus: &mut SimBus, rig: &mut Rig, round: u32) -> Result<u64, String> {
    let launch = Launch {
        grid: [1; 3],
        block: [LANES as u32, 1, 1],
        registers: PROGRAM.registers,
        grid_id: round,
        ..Launch::default()
    };
    bus.ram_write(RESULTS_GPA, &[0xee; 4 * LANES as usize]);
    let mut words = launch_words(&launch);
    // The host's release does not wait for PGRAPH; one of the class does.
    let at = RAM_VA + GRID_DONE_GPA;
    words.extend(runner::release_with_time(SUBCHANNEL, at, round));
    if !rig.execute(bus, CHANNEL, &words) {
        return Err(format!("round {round}: the launch did not end"));
    }
    if !(0..WAIT_TURNS).any(|_| {
        bus.relax();
        bus.ram_read32(GRID_DONE_GPA) == round
    }) {
        return Err(format!("round {round}: the grid did not end"));
    }
    for lane in 0..LANES {
        let found = bus.ram_read32(RESULTS_GPA + 4 * lane);
        if u64::from(found) != u64::from(round) + 3 * lane {
            return Err(format!("round {round}: lane {lane} stored {found:#x}"));
        }
    }
    let mut half = |at: u64| u64::from(bus.ram_read32(GRID_DONE_GPA + at));
    Ok(half(8) | half(12) << 32)
}
