//! What the policies `recency`, `gdm` and `adaptive` are worth, on a card's own time: a VM alone, two that take turns, and a guest for whom nothing is
//! to be won.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fermi_spec::engine::Engine;
use integration::bench::{Bench, gpu_config, vm_config};
use integration::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, Rig};
use sim_host::bus::SimBus;
use vgpu::{GpuConfig, Notice, PolicyName, VmConfig, VmId};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const VM: VmId = VmId(0);
/// Bytes of a chunk.
const CHUNK: u64 = MIB;
/// Chunks that each guest of the first tests has, and how many of them fit the card.
const CHUNKS: u64 = 64;
const FIT: u64 = 43;
/// MiB of a card on which so many chunks are for guests, and of one on which all fit.
const SMALL_CARD: u64 = FIT + 10;
const LARGE_CARD: u64 = 128;
const LINE: u64 = 32 << 10;

fn vm() -> VmConfig {
    VmConfig {
        chunk_bytes: CHUNK,
        ..vm_config((DATA + CHUNKS * CHUNK) / MIB)
    }
}

fn bench(card: u64, policy: PolicyName, vms: usize, seed: u64) -> Bench {
    let config = GpuConfig {
        policy,
        seed,
        // Trials go by it: less of the card's time to simulate.
        refill_period_ns: 5 * MS,
        ..gpu_config()
    };
    let mut bench = Bench::with(card, config, &vec![vm(); vms]);
    bench.is_checked = false;
    bench
}

/// A guest that goes over its hot chunks again and again.
struct Streamer {
    passes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: integration::bench::Task<bool>,
}

/// Copies each chunk of the first half of the hot ones to one of the second half: a pass touches each once.
fn pass(rig: &mut Rig, bus: &mut SimBus, hot: u64) -> bool {
    let mut words = rig::bind_words(Engine::Copy0).to_vec();
    let lines = (CHUNK / LINE) as u32;
    for chunk in 0..hot / 2 {
        let from = DATA_VA + chunk * CHUNK;
        words.extend(rig::copy_words(from, from + hot / 2 * CHUNK, LINE as u32, lines));
    }
    rig.execute(bus, 0, &words)
}

impl Streamer {
    /// All chunks are mapped, and so many of them hot.
    fn start(bench: &mut Bench, hot: u64) -> Self {
        let (passes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ends) = (Arc::clone(&passes), Arc::clone(&stop));
        let task = bench.start(VM, move |bus| {
            let mut rig = Rig::start(bus, CHUNKS * CHUNK);
            rig.open(bus, 0);
            while !ends.load(Ordering::Relaxed) {
                if !pass(&mut rig, bus, hot) {
                    return false;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            true
        });
        Self { passes, stop, task }
    }

    /// Passes in a second, over so many milliseconds.
    fn speed(&self, bench: &mut Bench, ms: u64) -> f64 {
        let (from, before) = (bench.world.now, self.passes.load(Ordering::Relaxed));
        bench.pass(ms * MS);
        let passes = self.passes.load(Ordering::Relaxed) - before;
        passes as f64 * 1e9 / bench.world.now.since(from) as f64
    }

    fn end(self, bench: &mut Bench) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(bench.join(self.task), "a copy does not end");
        bench.is_checked = true;
        bench.end();
    }
}

/// Chunks that moved since the start.
fn moved(bench: &Bench) -> u64 {
    let bytes = |notice: &Notice| match notice {
        Notice::Moved { bytes, .. } => *bytes,
        _ => 0,
    };
    let all = bench.world.notices.iter();
    all.map(|(_, notice)| bytes(notice)).sum::<u64>() / CHUNK
}

/// Policies that go by launches, and milliseconds until they know enough.
const GDM: (PolicyName, u64) = (PolicyName::Gdm, 500);
const ADAPTIVE: (PolicyName, u64) = (PolicyName::Adaptive, 700);

/// The speed that the guest comes to, and how many chunks moved for it and until when.
struct Outcome {
    at_first: f64,
    speed: f64,
    chunks: u64,
    settled_ms: u64,
}

/// 64 chunks on 43, of which the guest uses 30 all the time.
fn hot_set_that_fits(policy: PolicyName, seed: u64) -> Outcome {
    let mut bench = bench(SMALL_CARD, policy, 1, seed);
    let streamer = Streamer::start(&mut bench, 30);
    bench.pass(50 * MS);
    let (at_first, from, before) = (streamer.speed(&mut bench, 50), bench.world.now, moved(&bench));
    let (mut last, mut settled_ms) = (before, 0);
    while bench.world.now.since(from) < 3_000 * MS {
        bench.pass(100 * MS);
        if moved(&bench) != last {
            last = moved(&bench);
            settled_ms = bench.world.now.since(from) / MS;
        }
        if policy == PolicyName::Gpuswap || bench.world.now.since(from) / MS > settled_ms + 800 {
            break;
        }
    }
    let speed = streamer.speed(&mut bench, 50);
    streamer.end(&mut bench);
    Outcome {
        at_first,
        speed,
        chunks: last - before,
        settled_ms,
    }
}

/// Three draws. With one of them it gets all of its speed; with the others it gets stuck before, `[RECENCY]`.
#[test]
fn vm_alone_whose_hot_set_fits_is_faster_than_by_chance_and_at_best_as_without_pressure() {
    let free = {
        let mut bench = bench(LARGE_CARD, PolicyName::Recency, 1, 1);
        let streamer = Streamer::start(&mut bench, 30);
        bench.pass(20 * MS);
        let speed = streamer.speed(&mut bench, 50);
        streamer.end(&mut bench);
        speed
    };
    let mut best = 0.0_f64;
    for seed in 1..=3 {
        let [by_chance, tried] = [PolicyName::Gpuswap, PolicyName::Recency].map(|policy| {
            let outcome = hot_set_that_fits(policy, seed);
            println!(
                "seed {seed}, {policy:?}: {:.3} of the speed without pressure at first, {:.3} after {} ms and {} chunks moved",
                outcome.at_first / free,
                outcome.speed / free,
                outcome.settled_ms,
                outcome.chunks
            );
            outcome
        });
        assert!(tried.chunks < 400, "seed {seed}: {} moves", tried.chunks);
        assert!(
            by_chance.speed < 0.5 * free,
            "seed {seed}: chance alone does as well"
        );
        assert!(
            tried.speed > 1.4 * by_chance.speed,
            "seed {seed}: {:.3} of the speed without pressure",
            tried.speed / free
        );
        best = best.max(tried.speed / free);
    }
    assert!(best >= 0.95, "{best:.3} of the speed without pressure at best");
}

/// The speed of a guest with so many hot chunks under a policy that goes by launches, after so many milliseconds, and chunks moved from then on.
fn by_launches((policy, after): (PolicyName, u64), card: u64, hot: u64, seed: u64) -> (f64, u64) {
    let mut bench = bench(card, policy, 1, seed);
    let streamer = Streamer::start(&mut bench, hot);
    bench.pass(after * MS);
    let before = moved(&bench);
    let speed = streamer.speed(&mut bench, 200);
    let after = moved(&bench);
    streamer.end(&mut bench);
    (speed, after - before)
}

/// A VM alone whose hot set fits is as fast as without pressure with each of these draws, and stays so.
fn hot_set_comes(how: (PolicyName, u64), seeds: std::ops::RangeInclusive<u64>) {
    let (free, _) = by_launches(how, LARGE_CARD, 30, 1);
    for seed in seeds {
        let (speed, moves) = by_launches(how, SMALL_CARD, 30, seed);
        println!("seed {seed}: {:.3} of the speed without pressure", speed / free);
        assert!(speed >= 0.95 * free, "seed {seed}: {:.3}", speed / free);
        assert_eq!(moves, 0, "seed {seed}: a set that is there moves");
    }
}

/// What launches and copies will use is known before they run: nothing has to be tried.
#[test]
fn hot_set_that_fits_is_in_vram_when_launches_are_known() {
    hot_set_comes(GDM, 1..=6);
}

/// Which chunks most launches use is known after some of them.
#[test]
fn hot_set_that_fits_is_in_vram_when_launches_are_counted() {
    hot_set_comes(ADAPTIVE, 1..=3);
}

/// A set that does not fit is not moved at each launch.
#[test]
fn guest_whose_set_does_not_fit_loses_next_to_nothing_to_looks_at_its_launches() {
    let mut bench = bench(SMALL_CARD, PolicyName::Gpuswap, 1, 1);
    let streamer = Streamer::start(&mut bench, CHUNKS);
    bench.pass(100 * MS);
    let by_chance = streamer.speed(&mut bench, 200);
    streamer.end(&mut bench);
    for how in [GDM, ADAPTIVE] {
        let (speed, moves) = by_launches(how, SMALL_CARD, CHUNKS, 1);
        println!("{how:?}: {speed:.1} passes in a second, {by_chance:.1} by chance, {moves} chunks moved");
        assert!(
            speed >= 0.98 * by_chance && moves == 0,
            "{how:?}: {moves} chunks moved"
        );
    }
}

/// All chunks are used alike: trials cost next to nothing.
#[test]
fn guest_that_uses_all_alike_loses_next_to_nothing_to_trials() {
    let mut speeds = Vec::new();
    for policy in [PolicyName::Gpuswap, PolicyName::Recency] {
        let mut bench = bench(SMALL_CARD, policy, 1, 1);
        let streamer = Streamer::start(&mut bench, CHUNKS);
        bench.pass(100 * MS);
        let before = moved(&bench);
        let speed = streamer.speed(&mut bench, 2_000);
        println!(
            "{policy:?}: {speed:.1} passes in a second, {} chunks moved",
            moved(&bench) - before
        );
        speeds.push(speed);
        streamer.end(&mut bench);
    }
    assert!(speeds[1] >= 0.98 * speeds[0], "{speeds:?}");
}

/// Maps or unmaps all of a guest's chunks.
fn map(rig: &mut Option<Rig>, bus: &mut SimBus, chunks: u64, is_mapped: bool) {
    match rig {
        None => {
            let mut started = Rig::start(bus, chunks * CHUNK);
            started.open(bus, 0);
            *rig = Some(started);
        }
        Some(_) => {
            let entry = |page: u64| match is_mapped {
                true => rig::vram_pte(DATA + (page << 17)).into_bits(),
                false => 0,
            };
            let entries: Vec<u8> = (0..(chunks * CHUNK) >> 17)
                .flat_map(|page| entry(page).to_le_bytes())
                .collect();
            rig::put(bus, LARGE_TABLE, &entries);
            rig::flush(bus, DIRECTORY);
        }
    }
}

/// Chunks that move in each turn of two VMs that map 32 chunks each for their turn; 43 fit.
fn moved_in_a_turn(policy: PolicyName, turn_ms: u64) -> f64 {
    const TURNS: u64 = 12;
    let mut bench = bench(SMALL_CARD, policy, 2, 1);
    let mut rigs = [None, None];
    let mut before = 0;
    for turn in 0..TURNS {
        if turn == 4 {
            before = moved(&bench);
        }
        let at = (turn % 2) as usize;
        let mut rig = rigs[at].take();
        let rig = bench.run(VmId(at as u16), move |bus| {
            map(&mut rig, bus, 32, true);
            let mut rig = rig.unwrap();
            assert!(pass(&mut rig, bus, 32));
            Some(rig)
        });
        bench.pass(turn_ms * MS);
        let mut rig = rig;
        rigs[at] = bench.run(VmId(at as u16), move |bus| {
            map(&mut rig, bus, 32, false);
            rig
        });
    }
    (moved(&bench) - before) as f64 / (TURNS - 4) as f64
}

#[test]
fn two_vms_that_take_short_turns_do_not_exchange_memory_at_each() {
    let [short, long] = [20, 150].map(|turn_ms| {
        let each = [PolicyName::Gpuswap, PolicyName::Recency].map(|policy| moved_in_a_turn(policy, turn_ms));
        println!(
            "turns of {turn_ms} ms: {:.1} chunks a turn by chance, {:.1} by recency",
            each[0], each[1]
        );
        each
    });
    assert!(short[1] <= 1.0 && short[0] > 10.0, "{short:?}");
    // Whoever has the card for longer gets the memory that the other does without.
    assert!(long[1] <= long[0] + 1.0, "{long:?}");
}
