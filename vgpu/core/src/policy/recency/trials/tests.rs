use super::*;
use crate::config::Quota;
use crate::memory::{ChunkPlace, Chunks, Reach};
use crate::policy::recency::Recency;
use crate::policy::{Occasion, Policy};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use rand::SeedableRng;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const TICK_NS: u64 = 50 * MS;

/// A VM that does the same work again and again, and what moves of it.
struct Guest {
    chunks: Chunks,
    /// Nanoseconds by which each chunk in host RAM makes a piece of work longer.
    heat: Vec<u64>,
    /// A piece of work takes up to so many thousandths more or less, by chance.
    noise: u64,
    now: Tick,
    doorbells: u64,
    rang_at: Tick,
    free: u64,
    moves: usize,
    policy: Recency,
    draws: ChaCha8Rng,
    chance: ChaCha8Rng,
    most_out: usize,
}

const WORK_NS: u64 = 400_000;

impl Guest {
    /// 64 chunks on 43, a random third of them in host RAM.
    fn new(seed: u64, heat: impl Fn(usize) -> u64) -> Self {
        let mut chance = ChaCha8Rng::seed_from_u64(seed ^ 99);
        let mut chunks = Chunks::new(64 * MIB, MIB, Iova(0));
        let mut left: Vec<u32> = (0..64).collect();
        for at in 0..64 {
            let no = ChunkNo(left.swap_remove(chance.random_range(0..left.len())));
            chunks.set_place(no, if at < 21 { ChunkPlace::Spilled } else { frames() });
            chunks.widen_reach(no, Reach::Writable);
        }
        chunks.note_reach(Tick(1));
        Self {
            chunks,
            heat: (0..64).map(heat).collect(),
            noise: 0,
            now: Tick(1_000 * MS),
            doorbells: 0,
            rang_at: Tick(1_000 * MS),
            free: 0,
            moves: 0,
            policy: Recency::default(),
            draws: ChaCha8Rng::seed_from_u64(seed),
            chance,
            most_out: 21,
        }
    }

    fn spilled(&self) -> impl Iterator<Item = ChunkNo> {
        self.chunks
            .all()
            .filter(|&chunk| *self.chunks.place(chunk) == ChunkPlace::Spilled)
    }

    /// What a piece of work takes now.
    fn pace(&self) -> u64 {
        WORK_NS
            + self
                .spilled()
                .map(|chunk| self.heat[chunk.0 as usize])
                .sum::<u64>()
    }

    fn rings(&mut self) {
        let end = self.now.after(TICK_NS);
        loop {
            let pace = self.pace();
            let by_chance = match self.noise {
                0 => 0,
                noise => self.chance.random_range(0..=2 * noise) * pace / 1000,
            };
            let next = self.rang_at.after(pace - pace * self.noise / 1000 + by_chance);
            if next > end {
                break;
            }
            (self.rang_at, self.doorbells) = (next, self.doorbells + 1);
        }
        self.now = end;
    }

    /// A tick, and what the policy has done because of it.
    fn tick(&mut self) {
        self.rings();
        let mut occasion = Occasion::Tick;
        loop {
            let view = VmView {
                exchange_chunks_max: 4,
                doorbells: self.doorbells,
                rang_at: Some(self.rang_at),
                ..VmView::of(VmId(1), &self.chunks, MIB, Quota::default())
            };
            let view = Snapshot {
                now: self.now,
                free: self.free,
                claim: None,
                demands: Vec::new(),
                vms: vec![view],
            };
            match self.policy.propose(&view, occasion, &mut self.draws) {
                Proposal::Exchange {
                    leave, come, cause, ..
                } => {
                    assert_eq!(cause, MoveCause::Exchange { within: VmId(1) });
                    self.put(&leave, false);
                    self.put(&come, true);
                }
                Proposal::Nothing => break,
                other => panic!("{other:?}"),
            }
            occasion = Occasion::Pass;
        }
        assert_eq!(
            self.spilled().count(),
            self.most_out,
            "at rest as many are out as before"
        );
    }

    fn put(&mut self, chunks: &[ChunkNo], comes: bool) {
        for &chunk in chunks {
            let bytes = self.chunks.bytes(chunk);
            self.free = if comes {
                self.free - bytes
            } else {
                self.free + bytes
            };
            self.chunks
                .set_place(chunk, if comes { frames() } else { ChunkPlace::Spilled });
            self.chunks.note_moved(chunk, self.now);
            self.moves += 1;
        }
        // A move takes time.
        self.now = self.now.after(MS);
    }

    /// Moves within so many ticks.
    fn run(&mut self, ticks: usize) -> usize {
        let before = self.moves;
        (0..ticks).for_each(|_| self.tick());
        self.moves - before
    }

    fn hot_in_host_ram(&self) -> usize {
        self.spilled()
            .filter(|chunk| self.heat[chunk.0 as usize] > 0)
            .count()
    }
}

fn frames() -> ChunkPlace {
    ChunkPlace::Resident((0..(MIB / FRAME) as u32).map(FrameNo).collect())
}

fn thirty_are_hot(chunk: usize) -> u64 {
    if (20..50).contains(&chunk) { 350_000 } else { 0 }
}

#[test]
fn chunks_of_a_hot_set_that_fits_come_to_vram_and_stay() {
    for seed in 0..20 {
        let mut guest = Guest::new(seed, thirty_are_hot);
        let moves = guest.run(400);
        assert_eq!(guest.hot_in_host_ram(), 0, "seed {seed}: {moves} moves");
        assert!(moves < 400, "seed {seed}: {moves} moves");
        assert_eq!(guest.run(1_000), 0, "seed {seed}: nothing is left to find out");
    }
}

#[test]
fn guest_that_is_not_steady_is_served_too() {
    for seed in 0..20 {
        let mut guest = Guest {
            noise: 30,
            ..Guest::new(seed, thirty_are_hot)
        };
        guest.run(1_200);
        assert!(
            guest.hot_in_host_ram() <= 1,
            "seed {seed}: {}",
            guest.hot_in_host_ram()
        );
    }
}

#[test]
fn of_a_hot_set_that_does_not_fit_nothing_cold_stays() {
    for seed in 0..20 {
        let mut guest = Guest::new(seed, |chunk| if chunk < 50 { 350_000 } else { 0 });
        guest.run(1_000);
        assert!(
            guest.hot_in_host_ram() <= 8,
            "seed {seed}: {}",
            guest.hot_in_host_ram()
        );
    }
}

/// Nothing is to be won where all chunks are alike, with noise and without.
#[test]
fn trials_of_chunks_that_are_all_alike_die_down() {
    for noise in [0, 30] {
        for seed in 0..20 {
            let mut guest = Guest {
                noise,
                ..Guest::new(seed, |_| 350_000)
            };
            let first = guest.run(400);
            assert!(first < 120, "seed {seed}, noise {noise}: {first} moves in 20 s");
            let later = guest.run(1_200);
            assert!(
                later < 40,
                "seed {seed}, noise {noise}: {later} moves in a minute"
            );
        }
    }
}

#[test]
fn guest_that_turns_to_other_chunks_is_followed() {
    let mut guest = Guest::new(3, thirty_are_hot);
    guest.run(400);
    guest.heat = (0..64)
        .map(|chunk| if chunk < 30 { 350_000 } else { 0 })
        .collect();
    guest.run(500);
    assert_eq!(guest.hot_in_host_ram(), 0);
}

#[test]
fn guest_that_does_not_ring_is_let_alone() {
    let mut guest = Guest::new(1, thirty_are_hot);
    guest.rang_at = Tick(u64::MAX / 2);
    assert_eq!(guest.run(500), 0);
}

/// What is written and read goes on as it would have.
#[test]
fn trials_go_on_from_what_was_saved() {
    let (mut one, mut other) = (Guest::new(7, thirty_are_hot), Guest::new(7, thirty_are_hot));
    for _ in 0..150 {
        one.tick();
        other.tick();
        let saved = other.policy.save();
        other.policy = Recency::default();
        other.policy.restore(&saved).expect("it was saved just now");
    }
    assert_eq!(
        (one.moves, one.hot_in_host_ram()),
        (other.moves, other.hot_in_host_ram())
    );
    assert!(one.moves > 20);
}
