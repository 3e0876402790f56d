//! Guests that keep an engine: for ever, beside one that waits for it; and for the time of a grid, in turn with others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fermi_spec::engine::Engine;
use fermi_spec::graphics::compute;
use fermi_spec::isa::assembler::assemble;
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;
use vgpu::{ChannelFault, Event, GpuConfig, Hold, Notice, Quota, VmId};

use crate::bench::{Bench, Task, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::{RAM_VA, Rig};
use sim_host::bus::{SimBus, WideBus};

/// The VM whose work has to wait.
pub const WAITS: VmId = VmId(0);
/// The VM that keeps the engine.
pub const KEEPS: VmId = VmId(1);
/// GPU time that the watchdog gives here.
pub const LIMIT_NS: u64 = 40_000_000;
/// Longest time for which a move that no guest waits for waits for a VM that is at work, nobody standing still.
pub(crate) const AWAITED_MAX_NS: u64 = 60_000_000;
/// Asks until a fence that does not come is given up: more than the watchdog needs.
pub const TURNS: u32 = 20_000;
const CODE_GPA: u64 = 8 << 20;
/// VRAM of each guest that its tables show.
const DATA_BYTES: u64 = 4 << 20;

/// Both VMs, on a card whose watchdog gives so much time.
pub fn bench(watchdog_ns: u64) -> Bench {
    let config = GpuConfig {
        watchdog_ns,
        ..gpu_config()
    };
    Bench::with(64, config, &[vm_config(16), vm_config(16)])
}

/// A guest with channel 0 open.
pub fn guest(bus: &mut SimBus) -> Rig {
    let mut rig = Rig::start(bus, DATA_BYTES).with_contexts();
    rig.open(bus, 0);
    rig
}

/// Starts a grid of one warp that never ends, and returns when it was submitted.
pub fn keep_engine(bench: &mut Bench) -> Rig {
    bench.run(KEEPS, |bus| {
        let mut rig = guest(bus);
        let words = endless_grid(bus);
        rig.submit(bus, 0, &words);
        rig
    })
}

/// Words that start a grid of one warp that never ends.
pub(crate) fn endless_grid(bus: &mut impl WideBus) -> Vec<u32> {
    grid_of(bus, "x: bra #x")
}

/// Words that start a grid of one warp that counts so far and ends: some 35 ns of the card's time a step.
pub(crate) fn counting_grid(bus: &mut impl WideBus, steps: u32) -> Vec<u32> {
    let source = format!(
        "mov b32 $r1 0x0
        x: add b32 $r1 $r1 0x1
        set $p0 0x1 lt u32 $r1 0x{steps:x}
        $p0 bra #x
        exit"
    );
    grid_of(bus, &source)
}

/// Has a VM run one counting grid after the other until it is told to stop. The count is the answer.
pub fn computes(bench: &mut Bench, vm: VmId, steps: u32, stop: &Arc<AtomicBool>) -> Task<u64> {
    works(bench, vm, 1, stop, move |bus| counting_grid(bus, steps)).0
}

/// Has a VM do the same work again and again on so many channels until it is told to stop; it waits for all before it goes on. The count
/// of what is done is the answer, and to be seen while the VM runs.
pub fn works(
    bench: &mut Bench,
    vm: VmId,
    channels: u8,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(&mut SimBus) -> Vec<u32> + 'static,
) -> (Task<u64>, Arc<AtomicU64>) {
    let (stop, done) = (Arc::clone(stop), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&done);
    let task = bench.start(vm, move |bus| {
        let mut rig = guest(bus);
        (1..channels).for_each(|channel| rig.open(bus, channel));
        let words = work(bus);
        while !stop.load(Ordering::Relaxed) {
            let submitted: Vec<(u8, u32)> = (0..channels)
                .map(|channel| (channel, rig.submit_with_release(bus, channel, &words)))
                .collect();
            for (channel, sequence) in submitted {
                // It may have to wait for others' time, too.
                assert!(
                    rig.wait_turns(bus, channel, sequence, 50 * TURNS),
                    "work does not end"
                );
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        count.load(Ordering::Relaxed)
    });
    (task, done)
}

/// Words that start a grid of one warp with such a program.
fn grid_of(bus: &mut impl WideBus, source: &str) -> Vec<u32> {
    let program = assemble(source).expect("lines that assemble");
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

/// Whether a VM whose grid never ends is stopped for a move in spite of it, in vain, and nobody waits for it longer than that.
pub fn move_does_not_wait_for_an_endless_grid() -> Result<(), Violation> {
    // Nobody waits behind the grid, so that the watchdog leaves it alone.
    let mut bench = bench(0);
    keep_engine(&mut bench);
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: KEEPS, quota });
    bench.pass(2 * AWAITED_MAX_NS);
    let tried = |notice: &Notice| matches!(notice, Notice::Suspended { vm: KEEPS, .. });
    match bench.count_notices(tried) {
        0 => Err(Violation(format!(
            "a move of {KEEPS} waits for a grid that never ends"
        ))),
        _ => Ok(()),
    }
}

/// Has PGRAPH do next to nothing for a guest; whether that came to an end.
pub fn short_work(rig: &mut Rig, bus: &mut SimBus) -> bool {
    let words = [incrementing(2, host::SET_OBJECT, 1), class::M2MF.into()];
    let sequence = rig.submit_with_release(bus, 0, &words);
    rig.wait_turns(bus, 0, sequence, TURNS)
}

/// Channels of a VM that were killed, by their causes.
pub fn killed(bench: &Bench, of: VmId) -> Vec<ChannelFault> {
    let causes = bench.world.notices.iter().filter_map(|(_, notice)| match notice {
        Notice::ChannelKilled { vm, cause, .. } if *vm == of => Some(*cause),
        _ => None,
    });
    causes.collect()
}

/// An endless grid, and a VM that waits behind it: that one is served, and the other's channel is stopped.
pub fn endless_grid_is_stopped() -> Result<(), Violation> {
    let mut bench = bench(LIMIT_NS);
    keep_engine(&mut bench);
    let served = bench.run(WAITS, |bus| {
        let mut rig = guest(bus);
        short_work(&mut rig, bus)
    });
    let killed = killed(&bench, KEEPS);
    match (served, &killed[..]) {
        (
            true,
            [
                ChannelFault::HeldEngine {
                    engine: Engine::Graph,
                    ..
                },
            ],
        ) => Ok(()),
        (true, _) => Err(Violation(format!("an endless grid ended by {killed:?}"))),
        (false, _) => Err(Violation(format!("{WAITS} waits behind an endless grid"))),
    }
}

/// Steps of the grids of a VM that an operator suspends: some 350 µs.
const SUSPENDED_STEPS: u32 = 10_000;

/// Whether a VM that an operator suspends runs nothing more behind the grid under way, whatever becomes of its memory meanwhile, and
/// goes on when it is resumed.
pub fn suspended_vm_does_not_run() -> Result<(), Violation> {
    let mut bench = bench(0);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let task = bench.start(KEEPS, move |bus| {
        let mut rig = guest(bus);
        let words = counting_grid(bus, SUSPENDED_STEPS);
        while !stopped.load(Ordering::Relaxed) {
            let sequence = rig.submit_with_release(bus, 0, &words);
            // The next one is in the ring before this one has ended.
            rig.submit(bus, 0, &words);
            rig.wait_turns(bus, 0, sequence, 100 * TURNS);
        }
    });
    let grids = |bench: &Bench| bench.world.model.counters().grids;
    bench.turn_until("grids", |bench| grids(bench) > 4);
    let hold = |is_suspended| Event::SetHold {
        vm: KEEPS,
        hold: Hold {
            vram: None,
            is_suspended,
        },
    };
    bench.world.submit(hold(true));
    bench.pass(5_000_000);
    let before = grids(&bench);
    bench.pass(20_000_000);
    // Memory of it goes and comes back: a move that stops it lets it go again.
    for max in [4 << 20, u64::MAX] {
        let quota = Quota {
            max,
            ..Quota::default()
        };
        bench.world.submit(Event::SetQuota { vm: KEEPS, quota });
        bench.pass(AWAITED_MAX_NS);
    }
    let ran = grids(&bench) - before;
    bench.world.submit(hold(false));
    stop.store(true, Ordering::Relaxed);
    bench.join(task);
    match ran {
        0 if grids(&bench) == before => Err(Violation(format!("{KEEPS} is resumed and does not run"))),
        0 => Ok(()),
        ran => Err(Violation(format!("{KEEPS} is suspended and runs {ran} grids"))),
    }
}
