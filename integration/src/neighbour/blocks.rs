//! Grids that cost a software card's workers as much as any: blocks that a worker executes in vain, and blocks of which there is much to write down.

use std::sync::LazyLock;

use anyhow::Result;
use fermi_spec::isa::assembler::{Program, assemble};

use super::Place;
use super::attacks::{Attack, as_guest, attack, computing, rest};
use super::live::Bar1;
use super::victim::{launch_words, put_program};
use crate::rig::DATA_VA;
use crate::shaders::Launch;
use sim_host::bus::SimBus;

/// What is tried at a broker whose card has a worker ([`Host::with_worker`](super::Host::with_worker)).
pub const AT_WORKERS: [Attack; 2] = [
    attack("blocks that differ at their end", differing),
    attack("blocks that store everywhere", scattering),
];

const BLOCKS: u32 = 64;
/// Rounds of three instructions before a block does what it is there for: about as many as a track may have.
const ROUNDS: u32 = 2_600;
/// Rounds of stores, each to pages of its own for all lanes.
const STORES: u32 = 40;

/// Launches grids of blocks of so many threads, one behind the other.
fn grids(bus: &mut SimBus, place: &Place, program: &Program, threads: u32) {
    let mut rig = computing(bus, 1);
    put_program(bus, program);
    for round in 1.. {
        if place.is_over() {
            break;
        }
        let launch = Launch {
            grid: [BLOCKS, 1, 1],
            block: [threads, 1, 1],
            registers: program.registers,
            grid_id: round,
            ..Launch::default()
        };
        let sequence = rig.submit_with_release(bus, 1, &launch_words(&launch));
        rest(bus, place, &rig, &[(1, sequence)]);
        place.meter.count_block();
    }
}

/// Each block loads in its last instructions what the one before has stored, and no grid stores what another did.
fn differing(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
        let text = format!(
            "mov b32 $r0 $ctaidx
            mov b32 $r4 $gridid
            add b32 $r2 (shl $r0 0x2) 0x{DATA_VA:x}
            mov b32 $r1 0x0
            loop: add b32 $r1 $r1 0x1
            set $p0 0x1 lt u32 $r1 0x{ROUNDS:x}
            $p0 bra #loop
            ld b32 $r3 ca g[$r2]
            add b32 $r3 $r3 $r4
            st b32 wb g[$r2+0x4] $r3
            exit"
        );
        assemble(&text).expect("text of ours")
    });
    as_guest(place, Bar1::ByMessages, |bus, place| {
        grids(bus, place, &PROGRAM, 32)
    })
}

/// Each lane stores to a page of its own, and to the next one in the next round.
fn scattering(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
        let text = format!(
            "mov b32 $r0 $tidx
            mov b32 $r4 $gridid
            add b32 $r2 (shl $r0 0xc) 0x{DATA_VA:x}
            mov b32 $r1 0x0
            loop: st b32 wb g[$r2] $r4
            add b32 $r2 $r2 0x1010
            add b32 $r1 $r1 0x1
            set $p0 0x1 lt u32 $r1 0x{STORES:x}
            $p0 bra #loop
            exit"
        );
        assemble(&text).expect("text of ours")
    });
    as_guest(place, Bar1::ByMessages, |bus, place| {
        grids(bus, place, &PROGRAM, 256)
    })
}
