//! Two guests that each use more than half of a card: one works all the time, the other now and then, and lends while it rests (decision 0037).
//!
//! Whether it rests is known from outside: what it has handed to the card has ended, or has not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermi_spec::methods::SemaphoreD;
use vgpu::{Event, GpuConfig, Quota, VmId};

use crate::bench::{Bench, Task, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::contenders::Piece;
use crate::keeper::counting_grid;
use crate::rig::{RAM_VA, Rig, semaphore_words};

const WORKS: VmId = VmId(0);
const LENDS: VmId = VmId(1);
const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
/// VRAM of the card, of which the broker keeps 8 MiB, and what each guest's tables show.
const CARD_MIB: u64 = 32;
const USED_BYTES: u64 = 16 * MIB;
const CHUNK: u64 = 2 * MIB;
/// Beyond what a copy of all that a guest uses takes, eight times: some 25 ms.
const LENDS_AFTER_NS: u64 = 40 * MS;
/// Grids of 7 ms that are handed over at once. They take turns with nobody.
const GRIDS: usize = 20;
const STEPS: u32 = 200_000;
/// Where the semaphore lies in guest RAM that nobody releases.
const SEMAPHORE_GPA: u64 = 6 * MIB;
/// How often the memory of one that lends is moved.
const LOOKS_WHILE_LENDING: u32 = 4;
/// Asks until work is given up.
const TURNS: u32 = 1_000_000;

/// The two of them, and what ends the one that works.
struct Lending {
    bench: Bench,
    rig: Option<Rig>,
    stop: Arc<AtomicBool>,
    task: Task<()>,
}

impl Lending {
    /// Both have all their memory mapped, and the first is at work.
    fn start() -> Self {
        let config = GpuConfig {
            watchdog_ns: 0,
            lends_after_ns: LENDS_AFTER_NS,
            refill_period_ns: 5 * MS,
            ..gpu_config()
        };
        let mut bench = Bench::with(CARD_MIB, config, &[vm_config(32), vm_config(32)]);
        let rig = bench.run(LENDS, |bus| {
            let mut rig = Rig::start(bus, USED_BYTES).with_contexts();
            rig.open(bus, 0);
            rig
        });
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = bench.start(WORKS, move |bus| {
            let mut rig = Rig::start(bus, USED_BYTES).with_contexts();
            rig.open(bus, 0);
            let words = Piece::Copy(1).words(bus);
            while !stopped.load(Ordering::Relaxed) {
                let sequence = rig.submit_with_release(bus, 0, &words);
                assert!(
                    rig.wait_turns(bus, 0, sequence, TURNS),
                    "a copy does not come to an end"
                );
            }
        });
        Self {
            bench,
            rig: Some(rig),
            stop,
            task,
        }
    }

    /// The second hands so many grids over with one doorbell.
    fn ring(&mut self, grids: usize) {
        let mut rig = self.rig.take().expect("it comes back");
        let rig = self.bench.run(LENDS, move |bus| {
            let words = counting_grid(bus, STEPS).repeat(grids);
            rig.submit(bus, 0, &words);
            rig
        });
        self.rig = Some(rig);
    }

    /// The second waits for a semaphore that nobody releases.
    fn wait(&mut self) {
        let mut rig = self.rig.take().expect("it comes back");
        let rig = self.bench.run(LENDS, move |bus| {
            let acquire = SemaphoreD::new().with_operation(1).with_acquire_switch(true);
            rig.submit(bus, 0, &semaphore_words(RAM_VA + SEMAPHORE_GPA, 1, acquire));
            rig
        });
        self.rig = Some(rig);
    }

    /// Bytes in VRAM of the one that works and of the other.
    fn resident(&self) -> [u64; 2] {
        let audit = self.bench.world.manager.audit().unwrap_or_default();
        [WORKS, LENDS].map(|vm| {
            audit
                .vms
                .iter()
                .find(|of| of.vm == vm)
                .map_or(0, |of| of.resident)
        })
    }

    fn grids(&self) -> u64 {
        self.bench.world.model.counters().grids
    }

    fn end(self) {
        let Self {
            mut bench,
            stop,
            task,
            ..
        } = self;
        stop.store(true, Ordering::Relaxed);
        bench.join(task);
        bench.end();
    }
}

/// Whether both have half while both work, though one of them rings no doorbell for long; whether the other has all that it uses when that one has
/// rested; and whether that one has its half again soon after its first doorbell.
pub fn who_rests_lends_and_who_works_does_not() -> Result<(), Violation> {
    let mut lending = Lending::start();
    let before = lending.grids();
    lending.ring(GRIDS);
    let is_even = |lending: &Lending| {
        let [works, lends] = lending.resident();
        works.abs_diff(lends) <= CHUNK
    };
    let under_way = |lending: &Lending| lending.grids() < before + GRIDS as u64;
    for _ in 0..2 * GRIDS {
        if !under_way(&lending) {
            break;
        }
        lending.bench.pass(10 * MS);
        let passed = lending.bench.world.now;
        let is_late = under_way(&lending) && lending.grids() > before + GRIDS as u64 / 2;
        if is_late && !is_even(&lending) {
            return Err(Violation(format!(
                "{LENDS} is at work since long before {passed:?}, and holds {:?}",
                lending.resident()
            )));
        }
    }
    lending.bench.pass(3 * LENDS_AFTER_NS);
    let [works, lends] = lending.resident();
    if works < USED_BYTES || lends + works > USED_BYTES + 8 * MIB {
        return Err(Violation(format!(
            "{LENDS} rests and lends nothing: {works} and {lends}"
        )));
    }
    lending.ring(1);
    lending.bench.pass(15 * MS);
    if !is_even(&lending) {
        return Err(Violation(format!(
            "{LENDS} works again and has not its half: {:?}",
            lending.resident()
        )));
    }
    lending.end();
    Ok(())
}

/// Whether one that waits for a semaphore lends, and goes on lending when its memory has moved for that: its doorbell, which the broker rings behind each
/// move, is no work.
pub fn who_waits_lends_and_goes_on_lending() -> Result<(), Violation> {
    let mut lending = Lending::start();
    lending.wait();
    lending.bench.pass(3 * LENDS_AFTER_NS);
    let stopped = |lending: &Lending| {
        let account = lending.bench.world.manager.account(LENDS);
        account.map_or(0, |account| account.suspensions)
    };
    let has_lent = |lending: &Lending| lending.resident()[0] == USED_BYTES;
    if !has_lent(&lending) || stopped(&lending) == 0 {
        return Err(Violation(format!(
            "{LENDS} waits for a semaphore, was stopped {} times, and {:?} are in VRAM",
            stopped(&lending),
            lending.resident()
        )));
    }
    for _ in 0..LOOKS_WHILE_LENDING {
        // An operator has it hold less for a while, so that it is stopped again.
        let quota = Quota {
            max: lending.resident()[1].saturating_sub(CHUNK),
            ..Quota::default()
        };
        let before = stopped(&lending);
        lending.bench.world.submit(Event::SetQuota { vm: LENDS, quota });
        lending.bench.pass(LENDS_AFTER_NS / 4);
        let quota = Quota::default();
        lending.bench.world.submit(Event::SetQuota { vm: LENDS, quota });
        lending.bench.pass(LENDS_AFTER_NS / 4);
        if stopped(&lending) == before {
            return Err(Violation(format!("{LENDS} gives nothing up at its max")));
        }
        if !has_lent(&lending) {
            return Err(Violation(format!(
                "{LENDS} lends no more though it waits for a semaphore: {:?} are in VRAM",
                lending.resident()
            )));
        }
    }
    lending.end();
    Ok(())
}
