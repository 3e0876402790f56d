//! Work that does not give way, beside a VM that waits for the engine.
//!
//! Times are the card's own, so they are the same on every host.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::engine::Engine;
use fermi_spec::graphics::compute;
use fermi_spec::isa::assembler::assemble;
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{self, EngineStatus};
use guests::GuestBus;
use integration::bench::{Bench, gpu_config, vm_config};
use integration::bus::SimBus;
use integration::rig::{self, RAM_VA, Rig};
use vgpu::{ChannelFault, GpuConfig, Notice, VmId};

const WAITS: VmId = VmId(0);
const KEEPS: VmId = VmId(1);
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// GPU time that the watchdog of these tests gives.
const LIMIT_NS: u64 = 40 * MS;
/// Asks until a fence that does not come is given up: more than the watchdog needs.
const TURNS: u32 = 20_000;
const CODE_GPA: u64 = 8 * MIB;

fn bench(watchdog_ns: u64) -> Bench {
    let config = GpuConfig {
        watchdog_ns,
        ..gpu_config()
    };
    Bench::with(64, config, &[vm_config(16), vm_config(16)])
}

/// Methods that launch a grid of one warp which never ends.
fn endless_grid(bus: &mut SimBus) -> Vec<u32> {
    let program = assemble("x: bra #x").unwrap();
    let code: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bus.ram_write(CODE_GPA, &code);
    let mut words = vec![incrementing(1, host::SET_OBJECT, 1), class::COMPUTE.into()];
    let mut set = |method: u16, data: &[u32]| {
        words.push(incrementing(1, method, data.len() as u16));
        words.extend(data);
    };
    set(compute::CODE_HIGH, &[0, (RAM_VA + CODE_GPA) as u32]);
    set(compute::ENTRY, &[0]);
    set(compute::SHARED_WINDOW, &[0xfe00_0000]);
    set(compute::LOCAL_WINDOW, &[0xff00_0000]);
    set(compute::REGISTERS, &[program.registers]);
    set(compute::GRID_XY, &[1 | 1 << 16, 1]);
    set(compute::BLOCK_XY, &[32 | 1 << 16, 1]);
    set(compute::LAUNCH, &[0x1000]);
    words
}

/// Methods for PGRAPH that do nothing.
fn short_work() -> Vec<u32> {
    vec![incrementing(2, host::SET_OBJECT, 1), class::M2MF.into()]
}

/// Starts the endless grid and returns with the grid on the engine.
fn keep_engine(bench: &mut Bench) -> Rig {
    bench.run(KEEPS, |bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        rig.open(bus, 0);
        let words = endless_grid(bus);
        rig.submit(bus, 0, &words);
        rig
    })
}

fn killed(bench: &Bench, of: VmId) -> Vec<ChannelFault> {
    let causes = bench.world.notices.iter().filter_map(|(_, notice)| match notice {
        Notice::ChannelKilled { vm, cause, .. } if *vm == of => Some(*cause),
        _ => None,
    });
    causes.collect()
}

#[test]
fn endless_grid_is_stopped_and_who_waited_loses_nothing() {
    let mut bench = bench(LIMIT_NS);
    let rig = keep_engine(&mut bench);
    let start = bench.world.model.gpu_time();
    let came = bench.run(WAITS, |bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        rig.open(bus, 0);
        let sequence = rig.submit_with_release(bus, 0, &short_work());
        rig.wait_turns(bus, 0, sequence, TURNS) && rig.copies(bus, 0)
    });
    let took = bench.world.model.gpu_time() - start;
    assert!(came, "what waited is run");
    // Half a limit until it is asked who waits, one more until it is asked again, and the time between two looks.
    assert!(took < 3 * LIMIT_NS + 200 * MS, "it took {} ms", took / MS);
    assert_eq!(killed(&bench, WAITS), []);
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
    let mut other = bench.run(WAITS, |bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        rig.open(bus, 0);
        rig
    });
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
        let mut rig = Rig::start(bus, 4 * MIB);
        rig.open(bus, 0);
        let sequence = rig.submit_with_release(bus, 0, &short_work());
        rig.wait_turns(bus, 0, sequence, TURNS)
    });
    bench.turn_until("the time", |bench| bench.world.model.gpu_time() > end);
    assert_eq!(killed(&bench, KEEPS), []);
    drop(task);
}
