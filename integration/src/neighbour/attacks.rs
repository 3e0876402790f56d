//! What a VM does that wants its neighbour to stand still. Each goes on until it is over, with a new connection where
//! the broker gave it up.

use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{CHANNELS as CHANNELS_OF_A_CARD, offset};
use fermi_spec::isa::assembler::{Program, assemble};
use fermi_spec::methods::{CopyExec, CopyFormat, copy, m2mf};
use fermi_spec::pte::{Pde, PdeAperture};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::PbusReg;
use fermi_spec::regs::windows::WindowBlock;
use guests::GuestBus as _;
use vgpu::Request;

use super::clients::{doorbell_traps, large_ram, messages, unmasks};
use super::live::Bar1;
use super::victim::{launch_words, put_program};
use super::{Code, Place, live};
use crate::rig::{self, DATA, DATA_VA, DIRECTORY, RAM_VA, Rig};
use crate::shaders::Launch;
use sim_host::bus::SimBus;

/// Time between two connections of an attacker.
const AGAIN: Duration = Duration::from_millis(20);
const DATA_BYTES: u64 = 8 << 20;
const TARGET_VA: u64 = DATA_VA + (4 << 20);
const UNMAPPED_VA: u64 = 1 << 36;
/// Channels that attack at a time.
pub(super) const CHANNELS: u8 = 60;
/// What a VM that lends uses, and its rests: of some 60 µs each, some 120 ms that lend, two seconds that lend where copies are dear, and 10 ms that do not.
const LENT_BYTES: u64 = 40 << 20;
const LENDING_RESTS: u32 = 2000;
const LONG_RESTS: u32 = 32_000;
const SHORT_RESTS: u32 = 160;
/// By how many rests one that ends with something else is longer than the one before.
const STEP_OF_RESTS: usize = 37;
/// A table of small pages in guest RAM, and how many entries name it.
pub(super) const TABLES_GPA: u64 = 14 << 20;
pub(super) const TABLES: u64 = 64;
/// Where copy engines keep what they know of each channel.
const CONTEXTS_GPA: u64 = 12 << 20;
const CONTEXT_BYTES: u64 = 0x200;
/// Methods for an empty subchannel in one submission, and that subchannel.
const ERRORS: usize = 64;
const EMPTY_SUBCHANNEL: u8 = 6;
/// Rests after a launch, about half a second.
const LAUNCH_RESTS: u32 = 5_000;

/// Of launches that are dear to look at: channels, registers, loops, and windows that differ.
const DEAR_CHANNELS: u8 = 8;
const REGISTERS: u32 = 60;
const LOOPS: u32 = 4;
const WINDOWS: u32 = 200;

/// Something that is done to a neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What it is.
    pub name: &'static str,
    pub(super) run: Code,
}

/// Each attack that the bench and the test put beside a victim.
pub const ATTACKS: [Attack; 16] = [
    attack("60 channels with copies of 512 MiB", long_copies),
    attack("60 channels with formatted copies", formatted_copies),
    attack("grids without an end", endless_grids),
    attack("barriers that nobody reaches", stuck_grids),
    attack("grids that are over at once", short_grids),
    attack("flushes of 64 tables", flushes),
    attack("loads and batches of flushes", messages),
    attack("resets", resets),
    attack("clients that leave 1 GiB", large_ram),
    attack("60 channels with faults", faults),
    attack("errors, acknowledged at once", errors),
    attack("127 channels that take turns", turns),
    attack("windows that change all they show", windows),
    attack("doorbells of all channels in memory", doorbells),
    attack("eventfds of doorbells that trap", doorbell_traps),
    attack("eventfds that unmask INTx", unmasks),
];

/// What is tried at a broker that looks at launches ([`Host::looking`](super::Host::looking)).
pub const AT_LOOKS: [Attack; 1] = [attack("launches that are dear to look at", dear_launches)];

/// What is tried at a broker whose VMs lend after short rests ([`Host::lending`](super::Host::lending)).
pub const AT_LENDERS: [Attack; 2] = [
    attack("rests that lend, and doorbells", rests),
    attack("doorbells soon enough to lend never", never_rests),
];

/// What is tried besides at such a broker whose chunks move in parts ([`Host::lending_in_parts`](super::Host::lending_in_parts)): the
/// VM, its device or its windows go while a chunk is on its way.
pub const AT_PARTS: [Attack; 3] = [
    attack("rests that lend, and resets", rests_and_resets),
    attack("rests that lend, and hang-ups", rests_and_hang_ups),
    attack("rests that lend, and windows", rests_and_windows),
];

/// What is tried at one whose VMs lend soon if that is their habit ([`Host::lending_by_habit`](super::Host::lending_by_habit)).
pub const AT_LENDERS_BY_HABIT: Attack = attack("rests that are a habit, and doorbells", rests_by_habit);

/// The first of [`AT_LENDERS`] where copies are dear.
pub const AT_LENDERS_OF_SLOW_HOSTS: Attack = attack("long rests that lend, and doorbells", rests_long);

pub(super) const fn attack(name: &'static str, run: Code) -> Attack {
    Attack { name, run }
}

/// Does it again and again. That a connection is lost is the attack's own loss.
pub(super) fn again(place: &Place, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    while !place.is_over() {
        if once().is_err() {
            thread::sleep(AGAIN);
        }
    }
    Ok(())
}

/// Runs a guest's code again and again, each time on a device as after power-on.
pub(super) fn as_guest<C>(place: &Place, bar1: Bar1, code: C) -> Result<()>
where
    C: Fn(&mut SimBus, &Place) + Copy + Send + 'static,
{
    again(place, || {
        let its_own = place.clone();
        live::run(place, bar1, move |bus| {
            code(bus, &its_own);
            Ok(())
        })
    })
}

/// Each doorbell is for an empty subchannel, and none is a message: all channels have been rung anew whenever the broker looks.
fn doorbells(place: &Place) -> Result<()> {
    as_guest(place, Bar1::InMemory, |bus, place| {
        let mut rig = started(bus, CHANNELS);
        let words = [incrementing(EMPTY_SUBCHANNEL, 0x100, 1), 0];
        while !place.is_over() {
            for channel in 1..=CHANNELS {
                rig.submit(bus, channel, &words);
            }
            rig::acknowledge(bus);
            place.meter.count_block();
        }
    })
}

/// A guest with channels 1 to `channels`.
fn started(bus: &mut SimBus, channels: u8) -> Rig {
    let rig = Rig::start(bus, DATA_BYTES);
    opened(rig, bus, channels)
}

/// The same whose channels launch grids.
pub(super) fn computing(bus: &mut SimBus, channels: u8) -> Rig {
    let rig = Rig::start(bus, DATA_BYTES).with_contexts();
    opened(rig, bus, channels)
}

fn opened(mut rig: Rig, bus: &mut SimBus, channels: u8) -> Rig {
    for channel in 1..=channels {
        rig.write_instance(bus, channel, DIRECTORY);
        rig.bind(bus, channel);
    }
    let all: Vec<u8> = (1..=channels).collect();
    rig.commit(bus, &all);
    rig
}

/// Rests until the work of `sequences` is done or all is over.
pub(super) fn rest(bus: &mut SimBus, place: &Place, rig: &Rig, sequences: &[(u8, u32)]) {
    for &(channel, sequence) in sequences {
        while !place.is_over() && !rig.wait_turns(bus, channel, sequence, 100) {}
    }
}

/// A copy of as many bytes as one may have: pitch 0, so that each line is the first one again.
fn longest_copy(exec: CopyExec) -> Vec<u32> {
    vec![
        incrementing(4, copy::SRC_HIGH, 8),
        (DATA_VA >> 32) as u32,
        DATA_VA as u32,
        (TARGET_VA >> 32) as u32,
        TARGET_VA as u32,
        0,
        0,
        copy::LINE_BYTES_MAX,
        copy::LINES_MAX,
        incrementing(4, copy::EXEC, 1),
        exec.with_src_linear(true).with_dst_linear(true).into_bits(),
    ]
}

/// Keeps all channels busy with the same words, each on an engine of the two.
fn copies(bus: &mut SimBus, place: &Place, words: &[u32]) {
    let mut rig = started(bus, CHANNELS);
    while !place.is_over() {
        let sequences: Vec<_> = (1..=CHANNELS)
            .map(|channel| {
                let engine = [Engine::Copy0, Engine::Copy1][usize::from(channel % 2)];
                let mut all = rig::bind_words(engine).to_vec();
                all.extend(words);
                (channel, rig.submit_with_release(bus, channel, &all))
            })
            .collect();
        place.meter.count_block();
        rest(bus, place, &rig, &sequences);
    }
}

fn long_copies(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        copies(bus, place, &longest_copy(CopyExec::new()))
    })
}

/// Elements of four components of four bytes, each in another place: nothing takes the software card longer.
fn formatted_copies(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let format = CopyFormat::new()
            .with_x(3)
            .with_y(2)
            .with_z(1)
            .with_component_bytes_less_one(3)
            .with_source_components_less_one(3)
            .with_target_components_less_one(3);
        let mut words = vec![incrementing(4, copy::FORMAT, 1), format.into_bits()];
        words.extend(longest_copy(CopyExec::new().with_format(true)));
        copies(bus, place, &words);
    })
}

fn one_warp(program: &Program) -> Launch {
    Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        registers: program.registers.max(4),
        barriers: 1,
        ..Launch::default()
    }
}

/// Launches a grid of one warp that never ends (a full one would stretch the software card's own time), on one channel after another: each is lost.
fn launches(bus: &mut SimBus, place: &Place, program: &Program) {
    let mut rig = computing(bus, CHANNELS);
    put_program(bus, program);
    let words = launch_words(&one_warp(program));
    for channel in 1..=CHANNELS {
        rig.submit(bus, channel, &words);
        place.meter.count_block();
        // The channel is lost when the watchdog stops its grid; then the next one has its turn.
        for _ in 0..LAUNCH_RESTS {
            if place.is_over() {
                return;
            }
            bus.relax();
        }
    }
}

fn endless_grids(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> =
        LazyLock::new(|| assemble("again:\nbra #again\nexit").expect("text of ours"));
    as_guest(place, Bar1::ByMessages, |bus, place| {
        launches(bus, place, &PROGRAM)
    })
}

/// Grids that are over at once, one after the other, with a rest before each: an engine that is kept for them does next to nothing.
fn short_grids(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| assemble("exit").expect("text of ours"));
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = computing(bus, 1);
        put_program(bus, &PROGRAM);
        let words = launch_words(&one_warp(&PROGRAM));
        while !place.is_over() {
            let sequence = rig.submit_with_release(bus, 1, &words);
            rest(bus, place, &rig, &[(1, sequence)]);
            place.meter.count_block();
        }
    })
}

/// Launches that end at once and take as long to analyse as any: all registers matter, and change in each of nested loops. Each has a
/// window of its own for shared memory, so that none is known, and memory of the VM's is in host RAM, so that all are looked at.
fn dear_launches(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
        // Time does not go back, but who could tell?
        let mut lines: Vec<String> = [
            "mov b32 $r61 $clock",
            "mov b32 $r62 $clock",
            "set $p1 0x1 le u32 $r61 $r62",
            "$p1 exit",
        ]
        .map(str::to_owned)
        .to_vec();
        lines.extend((0..LOOPS).map(|depth| format!("loop{depth}:")));
        for depth in (0..LOOPS).rev() {
            let changes = (0..REGISTERS)
                .map(|register| format!("add b32 $r{register} $r{register} 0x{:x}", 4 << depth));
            lines.extend(changes);
            lines.push(format!("set $p0 0x1 ne u32 $r{depth} 0x0"));
            lines.push(format!("$p0 bra #loop{depth}"));
        }
        lines.extend((0..REGISTERS).map(|register| format!("ld b32 $r61 ca g[$r{register}]")));
        lines.push("exit".to_owned());
        assemble(&lines.join("\n")).expect("text of ours")
    });
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = computing(bus, DEAR_CHANNELS);
        put_program(bus, &PROGRAM);
        // More than it may have in VRAM.
        rig.fill(bus, 1, 1, DATA_BYTES);
        let mut windows = (1..=WINDOWS).cycle();
        while !place.is_over() {
            let sequences: Vec<_> = (1..=DEAR_CHANNELS)
                .map(|channel| {
                    let launch = Launch {
                        shared_window: windows.next().unwrap_or(1) << 24,
                        ..one_warp(&PROGRAM)
                    };
                    (
                        channel,
                        rig.submit_with_release(bus, channel, &launch_words(&launch)),
                    )
                })
                .collect();
            rest(bus, place, &rig, &sequences);
            place.meter.count_block();
        }
    })
}

/// A barrier that waits for more threads than the block has.
fn stuck_grids(place: &Place) -> Result<()> {
    static PROGRAM: LazyLock<Program> =
        LazyLock::new(|| assemble(".barriers 1\nbar popc 0x1 0x0 0x0 0x40 0x1\nexit").expect("text of ours"));
    as_guest(place, Bar1::ByMessages, |bus, place| {
        launches(bus, place, &PROGRAM)
    })
}

/// Directories with 64 full tables each, all in guest RAM, which is read whole at each flush.
fn flushes(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        many_tables(bus);
        while !place.is_over() {
            rig::flush(bus, DIRECTORY);
            place.meter.count_block();
        }
    })
}

/// Points 64 entries of the directory to tables in guest RAM, of which one page is enough for all.
fn many_tables(bus: &mut SimBus) {
    started(bus, 1);
    let entries: Vec<u8> = (0..0x1_0000u64)
        .flat_map(|page| rig::ram_pte((page % 4096) << 12).into_bits().to_le_bytes())
        .collect();
    bus.ram_write(TABLES_GPA, &entries);
    for slot in 2..TABLES + 2 {
        let table = Pde::new()
            .with_small_aperture(PdeAperture::SysCoherent)
            .with_small_frame((TABLES_GPA >> 12) as u32);
        rig::put64(bus, DIRECTORY + 8 * slot, table.into_bits());
    }
}

/// Works and rests in turns, each rest long enough to lend: its memory goes and comes, and what its neighbour has with it.
fn rests(place: &Place) -> Result<()> {
    work_and_rest(place, &[LENDING_RESTS])
}

/// The same on a host that has other work: a rest has to pay for the copies before it lends, and those take long there.
fn rests_long(place: &Place) -> Result<()> {
    work_and_rest(place, &[LONG_RESTS])
}

/// At a broker whose VMs lend late: rests for long until that is its habit, and then no longer than it takes to lend.
fn rests_by_habit(place: &Place) -> Result<()> {
    work_and_rest(place, &[LONG_RESTS, LONG_RESTS, LENDING_RESTS])
}

/// The same with rests that lend nothing: memory that it does not use stays its own.
fn never_rests(place: &Place) -> Result<()> {
    work_and_rest(place, &[SHORT_RESTS])
}

fn work_and_rest(place: &Place, rests: &'static [u32]) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = lender(bus);
        for &rests in rests.iter().cycle().take_while(|_| !place.is_over()) {
            rig.copies(bus, 1);
            place.meter.count_block();
            idle(bus, place, rests);
        }
    })
}

/// A guest with much in its VRAM and one channel.
fn lender(bus: &mut SimBus) -> Rig {
    let mut rig = Rig::start(bus, LENT_BYTES);
    rig.open(bus, 1);
    rig.fill(bus, 1, 1, LENT_BYTES);
    rig
}

fn idle(bus: &mut SimBus, place: &Place, rests: u32) {
    (0..rests)
        .take_while(|_| !place.is_over())
        .for_each(|_| bus.relax());
}

/// Its memory is on its way to somebody or back when its device is reset, each time after a rest of another length.
fn rests_and_resets(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        for rests in rests_of_all_lengths() {
            if place.is_over() {
                break;
            }
            let mut rig = lender(bus);
            idle(bus, place, LENDING_RESTS);
            rig.copies(bus, 1);
            idle(bus, place, rests);
            place.meter.count_block();
            bus.machine(Request::Reset);
        }
    })
}

/// The same, and its VMM hangs up.
fn rests_and_hang_ups(place: &Place) -> Result<()> {
    let mut lengths = rests_of_all_lengths();
    again(place, || {
        let (its_own, rests) = (place.clone(), lengths.next().unwrap_or(0));
        live::run(place, Bar1::ByMessages, move |bus| {
            let mut rig = lender(bus);
            idle(bus, &its_own, LENDING_RESTS);
            rig.copies(bus, 1);
            idle(bus, &its_own, rests);
            its_own.meter.count_block();
            Ok(())
        })
    })
}

/// From none to those that lend, by a few more each time.
fn rests_of_all_lengths() -> impl Iterator<Item = u32> {
    (0..LENDING_RESTS).step_by(STEP_OF_RESTS).cycle()
}

/// Its windows change all that they show between rests: pages of chunks that are on their way become tables, and tables data.
fn rests_and_windows(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = lender(bus);
        let blocks = two_views(bus);
        for rests in rests_of_all_lengths() {
            if place.is_over() {
                break;
            }
            rig.copies(bus, 1);
            for block in blocks {
                show(bus, block);
                idle(bus, place, rests / 2);
            }
            place.meter.count_block();
        }
    })
}

fn resets(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        while !place.is_over() {
            let mut rig = started(bus, 4);
            rig.copies(bus, 1);
            place.meter.count_block();
            bus.machine(Request::Reset);
        }
    })
}

/// Each channel reads where nothing is mapped, is lost and is made anew.
fn faults(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = started(bus, CHANNELS);
        while !place.is_over() {
            for channel in 1..=CHANNELS {
                let engine = [Engine::Copy0, Engine::Copy1][usize::from(channel % 2)];
                let mut words = rig::bind_words(engine).to_vec();
                words.extend(rig::copy_words(UNMAPPED_VA, TARGET_VA, 0x100, 1));
                rig.submit(bus, channel, &words);
            }
            (0..10).for_each(|_| bus.relax());
            rig::acknowledge(bus);
            let all: Vec<u8> = (1..=CHANNELS).collect();
            all.iter().for_each(|&channel| {
                rig.unbind(bus, channel);
                rig.write_instance(bus, channel, DIRECTORY);
                rig.bind(bus, channel);
            });
            rig.commit(bus, &all);
            place.meter.count_block();
        }
    })
}

/// Each method is an error of its PBDMA that a card survives. The guest acknowledges all that it is shown, without end.
fn errors(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = started(bus, CHANNELS);
        let wrong = [incrementing(EMPTY_SUBCHANNEL, m2mf::NOP, 1), 0];
        let words = wrong.repeat(ERRORS);
        while !place.is_over() {
            for channel in 1..=CHANNELS {
                rig.submit(bus, channel, &words);
                rig::acknowledge(bus);
            }
            (0..ERRORS).for_each(|_| rig::acknowledge(bus));
            place.meter.count_block();
        }
    })
}

/// More channels than the VM has numbers for on the card, all with work, and contexts so that each can give its number up.
fn turns(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, |bus, place| {
        let mut rig = Rig::start(bus, DATA_BYTES);
        let all: Vec<u8> = (1..CHANNELS_OF_A_CARD as u8).collect();
        for &channel in &all {
            rig.write_instance(bus, channel, DIRECTORY);
            let context = RAM_VA + CONTEXTS_GPA + u64::from(channel) * CONTEXT_BYTES;
            let pointer = Rig::instance(channel) + Engine::Copy0.context_offset();
            rig::put64(bus, pointer, context);
            rig.bind(bus, channel);
        }
        rig.commit(bus, &all);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(DATA_VA, TARGET_VA, 0x1000, 1));
        while !place.is_over() {
            for &channel in &all {
                rig.submit(bus, channel, &words);
            }
            place.meter.count_block();
        }
    })
}

/// Instance blocks, directories and tables of two views of BAR3, in VRAM that the rig leaves alone.
const VIEWS: [u64; 2] = [0x30_0000, 0x38_0000];
/// Pages that each of them shows, none beside another, and none that the other shows too.
const SHOWN_PAGES: u64 = 500;

/// BAR3 shows now these pages and now those, each a mapping of the broker's, and the GPU reaches all of them.
fn windows(place: &Place) -> Result<()> {
    as_guest(place, Bar1::ByMessages, change_views)
}

fn change_views(bus: &mut SimBus, place: &Place) {
    let mut rig = started(bus, 1);
    // They have memory then.
    rig.fill(bus, 1, 3, DATA_BYTES);
    let blocks = two_views(bus);
    while !place.is_over() {
        blocks.into_iter().for_each(|block| show(bus, block));
        place.meter.count_block();
    }
}

fn show(bus: &mut SimBus, block: WindowBlock) {
    rig::write(bus, PbusReg::Bar3Block, block.into_bits());
    bus.read(Bar::Bar3, 8, 4);
}

/// Makes two views of BAR3 that have no page in common.
fn two_views(bus: &mut SimBus) -> [WindowBlock; 2] {
    for (number, view) in (0..).zip(VIEWS) {
        let (directory, table) = (view + 0x1000, view + 0x2000);
        for (at, word) in [(0, directory as u32), (4, 0), (8, u32::MAX), (12, 0)] {
            rig::put32(bus, view + offset::PD_LO + at, word);
        }
        rig::put64(bus, directory, rig::pde(None, Some(table)).into_bits());
        for page in 0..SHOWN_PAGES {
            let shown = DATA + (4 * page + 2 * number) * SMALL_PAGE;
            rig::put64(bus, table + (2 * page) * 8, rig::vram_pte(shown).into_bits());
        }
    }
    VIEWS.map(|view| {
        WindowBlock::new()
            .with_frame((view >> 12) as u32)
            .with_enable(true)
    })
}
