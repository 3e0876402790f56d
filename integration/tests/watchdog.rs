//! Work that does not give way, beside a VM that waits for the engine.
//!
//! Times are the card's own, so they are the same on every host.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::engine::Engine;
use fermi_spec::methods::{CopyExec, copy};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{self, EngineStatus};
use integration::bench::Bench;
use integration::keeper::{KEEPS, LIMIT_NS, TURNS, WAITS, bench, guest, keep_engine, killed, short_work};
use integration::rig::{self, DATA_VA, RAM_VA, Rig};
use vgpu::ChannelFault;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Bound of the architecture on how long a guest's access may be held for another VM's sake.
const HELD_MAX_NS: u64 = 200 * MS;

#[test]
fn endless_grid_is_stopped_and_who_waited_loses_nothing() {
    let mut bench = bench(LIMIT_NS);
    let rig = keep_engine(&mut bench);
    let start = bench.world.model.gpu_time();
    let came = bench.run(WAITS, |bus| {
        let mut rig = guest(bus);
        short_work(&mut rig, bus) && rig.copies(bus, 0)
    });
    let took = bench.world.model.gpu_time() - start;
    assert!(came, "what waited is run");
    // Half a limit until it is asked who waits, one more until it is asked again, and the time between two looks.
    assert!(took < 3 * LIMIT_NS + 200 * MS, "it took {} ms", took / MS);
    assert_eq!(killed(&bench, WAITS), []);
    assert!(bench.held_max_ns(WAITS) < HELD_MAX_NS);
    let [
        ChannelFault::HeldEngine {
            engine: Engine::Graph,
            held_ns,
        },
    ] = killed(&bench, KEEPS)[..]
    else {
        panic!("{:?}", killed(&bench, KEEPS));
    };
    assert!(held_ns >= LIMIT_NS);
    bench.run(KEEPS, move |bus| {
        let mut rig = rig;
        assert_eq!(
            rig::read(bus, PfifoReg::SchedulerError),
            pfifo::scheduler_error::SWITCH_TIMEOUT
        );
        let status = EngineStatus::from_bits(rig::read(bus, PfifoReg::EngineStatus(0)));
        assert!(status.busy() && status.channel() == 0);
        rig::write(bus, PfifoReg::PfifoIntr, pfifo::intr::SCHEDULER);
        assert_eq!(rig::read(bus, PfifoReg::SchedulerError), 0);
        rig.unbind(bus, 0);
        rig.open(bus, 0);
        assert!(rig.copies(bus, 0), "its VM goes on with another channel");
    });
    bench.end();
}

#[test]
fn grid_that_nobody_waits_behind_may_run_on() {
    let mut bench = bench(LIMIT_NS);
    let rig = keep_engine(&mut bench);
    // Another VM has a channel, and works elsewhere.
    let end = bench.world.model.gpu_time() + 5 * LIMIT_NS;
    let mut other = bench.run(WAITS, guest);
    while bench.world.model.gpu_time() < end {
        other = bench.run(WAITS, move |bus| {
            assert!(other.copies(bus, 0));
            other
        });
        bench.pass(MS);
    }
    assert_eq!(killed(&bench, KEEPS), []);
    drop(rig);
}

#[test]
fn watchdog_that_is_off_stops_nothing() {
    let mut bench = bench(0);
    keep_engine(&mut bench);
    let end = bench.world.model.gpu_time() + 4 * LIMIT_NS;
    let task = bench.start(WAITS, |bus| {
        let mut rig = guest(bus);
        short_work(&mut rig, bus)
    });
    bench.turn_until("the time", |bench| bench.world.model.gpu_time() > end);
    assert_eq!(killed(&bench, KEEPS), []);
    drop(task);
}

/// A copy of 512 MiB from guest RAM to guest RAM, one line over and over; or one of 128 MiB that is converted on the way,
/// byte by byte.
fn long_copy(is_formatted: bool) -> Vec<u32> {
    let mut words = rig::bind_words(Engine::Copy0).to_vec();
    if is_formatted {
        words.extend([incrementing(4, copy::FORMAT, 1), 0]);
    }
    let lines = if is_formatted { 0x7ff } else { 0x1fff };
    let mut long = rig::copy_words(RAM_VA + 8 * MIB, RAM_VA + 9 * MIB, 0xffff, lines);
    // Pitches.
    (long[5], long[6]) = (0, 0);
    if is_formatted && let Some(exec) = long.last_mut() {
        *exec = CopyExec::from_bits(*exec).with_format(true).into_bits();
    }
    words.extend(long);
    words
}

/// Copies of 1 MiB that the neighbour has done in one go.
const COPIES: usize = 30;

/// GPU time for what the neighbour has to copy by the same engine.
fn neighbours_time(bench: &mut Bench, rig: Rig) -> (u64, Rig) {
    let start = bench.world.model.gpu_time();
    let rig = bench.run(WAITS, move |bus| {
        let mut rig = rig;
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        for _ in 0..COPIES {
            words.extend(rig::copy_words(RAM_VA + 10 * MIB, DATA_VA, 0x1000, 256));
        }
        let sequence = rig.submit_with_release(bus, 0, &words);
        assert!(
            rig.wait_turns(bus, 0, sequence, TURNS),
            "the neighbour's copies end"
        );
        rig
    });
    (bench.world.model.gpu_time() - start, rig)
}

/// The neighbour's speed beside `channels` channels that each copy without end, in percent of its speed alone.
fn speed_beside(channels: u8, is_formatted: bool) -> u64 {
    let mut bench = bench(2_000 * MS);
    let rig = bench.run(WAITS, guest);
    let (alone, rig) = neighbours_time(&mut bench, rig);
    bench.run(KEEPS, move |bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        for channel in 0..channels {
            rig.open(bus, channel);
            rig.submit(bus, channel, &long_copy(is_formatted));
        }
    });
    let (beside, mut rig) = neighbours_time(&mut bench, rig);
    assert!(bench.world.model.counters().paused_copies > 0);
    bench.run(WAITS, move |bus| {
        assert!(rig.fill(bus, 0, 5, 2 * MIB));
        assert_eq!(rig.verify(bus, 0, 5, 2 * MIB), Ok(()), "its bytes are its own");
    });
    assert_eq!((killed(&bench, KEEPS), killed(&bench, WAITS)), (vec![], vec![]));
    assert!(bench.held_max_ns(WAITS) < HELD_MAX_NS);
    bench.end();
    100 * alone / beside
}

#[test]
fn neighbour_of_many_long_copies_keeps_its_share_of_the_engine() {
    let percent = speed_beside(60, false);
    // A fair share is half; 40 % of that is what is promised.
    assert!(percent >= 20, "{percent} % of its speed alone");
}

#[test]
fn neighbour_of_one_formatted_copy_keeps_its_share_of_the_engine() {
    let percent = speed_beside(1, true);
    assert!(percent >= 20, "{percent} % of its speed alone");
}
