use super::*;
use crate::config::Quota;
use crate::event::VmId;
use crate::memory::{ChunkNo, ChunkPlace, Chunks, Reach};
use crate::policy::DemandView;
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use rand::SeedableRng;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const NOW: Tick = Tick(10_000 * MS);

/// Chunks of a MiB: `a`ctive, `i`dle since `idle_since`, `w`anted in host RAM, `u`nbacked.
fn chunks(places: &str, idle_since: Tick) -> Chunks {
    let mut chunks = Chunks::new(places.len() as u64 * MIB, MIB, Iova(0));
    for (no, place) in (0..).map(ChunkNo).zip(places.chars()) {
        let frames = || ChunkPlace::Resident((0..(MIB / FRAME) as u32).map(FrameNo).collect());
        match place {
            'a' | 'i' => drop(chunks.set_place(no, frames())),
            'w' => drop(chunks.set_place(no, ChunkPlace::Spilled)),
            _ => {}
        }
        if place != 'u' {
            chunks.widen_reach(no, Reach::Writable);
        }
    }
    chunks.note_reach(Tick(1));
    for (no, _) in (0..)
        .map(ChunkNo)
        .zip(places.chars())
        .filter(|(_, place)| *place == 'i')
    {
        let frame = chunks.guest_frames(no).next().expect("a chunk has frames");
        for is_store in [false, true] {
            let began = false;
            chunks.change_reach(shadow_pt::ReachChange {
                frame,
                is_store,
                began,
            });
        }
    }
    chunks.note_reach(idle_since);
    chunks
}

/// A VM whose chunks had work so many milliseconds ago.
fn view<'a>(vm: u16, chunks: &'a Chunks, ages: &[u64]) -> VmView<'a> {
    let mut view = VmView {
        spill_chunks_max: 4,
        refill_bytes_max: 4 * MIB,
        ..VmView::of(VmId(vm), chunks, MIB, Quota::default())
    };
    let given = (0..).map(ChunkNo).zip(ages);
    view.last_use.given = given.map(|(no, ms)| (no, Tick(NOW.0 - ms * MS))).collect();
    view
}

fn snapshot<'a>(vms: Vec<VmView<'a>>, free: u64, demands: Vec<DemandView<'a>>) -> Snapshot<'a> {
    Snapshot {
        now: NOW,
        free,
        claim: None,
        demands,
        vms,
    }
}

fn answers(view: &Snapshot<'_>, occasion: Occasion) -> Vec<Proposal> {
    let answer = |seed| Recency::default().propose(view, occasion, &mut ChaCha8Rng::seed_from_u64(seed));
    (0..20).map(answer).collect()
}

/// The first chunk of each move.
fn first(proposals: &[Proposal]) -> Vec<u32> {
    let first = |proposal: &Proposal| match proposal {
        Proposal::Spill { chunks, .. } | Proposal::Refill { chunks, .. } => chunks[0].0,
        other => panic!("{other:?}"),
    };
    let mut all: Vec<u32> = proposals.iter().map(first).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn one_chunk(vm: u16, asked: &[ChunkNo]) -> DemandView<'_> {
    DemandView {
        vm: VmId(vm),
        chunks: asked,
        bytes: MIB,
        deadline: Tick(NOW.0 + 1),
        waits_for_own: false,
    }
}

#[test]
fn least_recent_goes_and_chance_decides_among_what_is_in_use() {
    let (old, new) = (chunks("aaaaaa", NOW), chunks("u", NOW));
    let asked = [ChunkNo(0)];
    let by_ages = |ages: &[u64]| {
        let mut asks = view(2, &new, &[]);
        asks.asked = MIB;
        let view = snapshot(vec![view(1, &old, ages), asks], 0, vec![one_chunk(2, &asked)]);
        first(&answers(&view, Occasion::Demand))
    };
    assert_eq!(by_ages(&[10, 20, 5_000, 600, 0, 90]), [2]);
    assert_eq!(by_ages(&[10, 5_100, 5_000, 600, 0, 90]), [1, 2]);
    assert!(by_ages(&[10, 20, 90, 0, 5, 40]).len() > 3);
}

#[test]
fn most_recent_comes_back_first() {
    let chunks = chunks("wwwwa", NOW);
    let view = snapshot(
        vec![view(1, &chunks, &[3_000, 50, 700, 9_000, 10])],
        2 * MIB,
        vec![],
    );
    for proposal in answers(&view, Occasion::Pass) {
        let Proposal::Refill { chunks, .. } = &proposal else {
            panic!("{proposal:?}");
        };
        assert_eq!(chunks[..], [ChunkNo(1), ChunkNo(2)]);
    }
}

#[test]
fn chunk_that_has_just_come_in_stays() {
    let (mut old, new) = (chunks("aaa", NOW), chunks("u", NOW));
    old.note_moved(ChunkNo(1), Tick(NOW.0 - 10 * MS));
    let asked = [ChunkNo(0)];
    let mut asks = view(2, &new, &[]);
    asks.asked = MIB;
    let view = snapshot(
        vec![view(1, &old, &[10, 5_000, 10]), asks],
        0,
        vec![one_chunk(2, &asked)],
    );
    assert_eq!(first(&answers(&view, Occasion::Demand)), [0, 2]);
}

/// Who asks and is furthest above its share itself gives what it does not use, and keeps what it asks for.
#[test]
fn new_chunk_takes_the_place_of_one_that_is_not_in_use() {
    let (own, other, asked) = (chunks("aaaaau", NOW), chunks("aaaa", NOW), [ChunkNo(5)]);
    let mut asks = view(1, &own, &[10, 10, 10, 5_000, 10]);
    asks.asked = MIB;
    let view = snapshot(
        vec![asks, view(2, &other, &[10; 4])],
        0,
        vec![one_chunk(1, &asked)],
    );
    assert_eq!(first(&answers(&view, Occasion::Demand)), [3]);
}

/// Of two VMs that take turns, the one that is about to be back does not lose its memory.
#[test]
fn idle_memory_lingers_and_then_goes() {
    for (idle_ms, goes) in [(10, false), (60, true)] {
        let idle = chunks("iiii", Tick(NOW.0 - idle_ms * MS));
        let wants = chunks("aaaawwww", NOW);
        let view = snapshot(vec![view(1, &idle, &[]), view(2, &wants, &[10; 8])], 0, vec![]);
        let moves = answers(&view, Occasion::Tick);
        assert!(
            moves
                .iter()
                .all(|proposal| (*proposal != Proposal::Nothing) == goes),
            "{idle_ms} ms: {moves:?}"
        );
    }
}
