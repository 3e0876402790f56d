use super::*;
use crate::config::Quota;
use crate::event::{Tick, VmId};
use crate::memory::{ChunkPlace, Chunks};
use fermi_spec::addr::{FRAME, FrameNo, Iova};

const MIB: u64 = 1 << 20;
const VM_ID: VmId = VmId(1);

/// Chunks of a MiB, in VRAM or not, each with the launches that used it, the last of them at that many milliseconds, and its moves so far.
fn chunks(of: &[(bool, u32, u32)]) -> Chunks {
    let mut chunks = Chunks::new(of.len() as u64 * MIB, MIB, Iova(0));
    for (no, (in_vram, launches, moves)) in (0..).map(ChunkNo).zip(of) {
        let frames = (0..(MIB / FRAME) as u32).map(FrameNo).collect();
        let place = match in_vram {
            true => ChunkPlace::Resident(frames),
            false => ChunkPlace::Spilled,
        };
        drop(chunks.set_place(no, place));
        chunks.widen_reach(no, Reach::Writable);
        for launch in 0..*launches {
            chunks.note_launched(no, 1, Tick(u64::from(launch) * MS));
        }
        (0..*moves).for_each(|_| chunks.note_moved(no, Tick(0)));
    }
    chunks
}

fn view(chunks: &Chunks) -> VmView<'_> {
    VmView {
        exchange_chunks_max: 4,
        ..VmView::of(VM_ID, chunks, MIB, Quota::default())
    }
}

/// What gives way for what is hot, with t_s = 2 and p = 4.
fn gives_way(of: &[(bool, u32, u32)]) -> Vec<u32> {
    let chunks = chunks(of);
    let pairs = Adaptive::new(2, 4).pairs(&view(&chunks));
    pairs.iter().map(|(goes, _)| goes.0).collect()
}

#[test]
fn chunk_comes_after_so_many_launches_for_one_that_fewer_used() {
    assert_eq!(
        gives_way(&[(true, 3, 0), (true, 2, 0), (false, 7, 0)]),
        [0_u32; 0]
    );
    assert_eq!(gives_way(&[(true, 3, 0), (true, 2, 0), (false, 8, 0)]), [1]);
    assert_eq!(
        gives_way(&[(true, 9, 0), (true, 8, 0), (false, 8, 0)]),
        [0_u32; 0]
    );
    // The hottest for the coldest, as long as that is so.
    let all = [(true, 9, 0), (true, 1, 0), (false, 8, 0), (false, 20, 0)];
    assert_eq!(gives_way(&all), [1]);
    let all = [(true, 7, 0), (true, 1, 0), (false, 8, 0), (false, 20, 0)];
    assert_eq!(gives_way(&all), [1, 0]);
}

#[test]
fn each_round_trip_takes_as_many_launches_more() {
    for (moves, enough) in [(0, 8), (1, 8), (2, 16), (3, 16), (4, 24)] {
        let with = |launches| gives_way(&[(true, 0, 0), (false, launches, moves)]);
        assert_eq!((with(enough - 1), with(enough)), (vec![], vec![0]), "{moves}");
    }
}

#[test]
fn of_two_alike_what_is_only_loaded_goes_first_and_then_what_was_used_least_recently() {
    let mut of = chunks(&[(true, 5, 0), (true, 5, 0), (true, 4, 0), (true, 5, 0)]);
    of.note_launched(ChunkNo(2), 1, Tick(9 * MS));
    let view = view(&of);
    let mut all: Vec<ChunkView> = view.chunks().collect();
    all[3].reach = Reach::ReadOnly;
    all.sort_by_key(|chunk| (coldness(chunk), chunk.no));
    assert_eq!(
        all.iter().map(|chunk| chunk.no.0).collect::<Vec<_>>(),
        [3, 0, 1, 2]
    );
    all.sort_by_key(|chunk| (ByLaunches.returns(&view, chunk), chunk.no));
    assert_eq!(
        all.iter().map(|chunk| chunk.no.0).collect::<Vec<_>>(),
        [2, 0, 1, 3]
    );
}

#[test]
fn nothing_gives_way_that_a_move_may_not_take_and_nothing_waits() {
    let of = chunks(&[(true, 0, 0), (true, 0, 0), (false, 99, 0), (false, 99, 0)]);
    let mut policy = Adaptive::new(2, 4);
    let mut rng = rand::SeedableRng::seed_from_u64(1);
    let mut answer = |vm: VmView<'_>, occasion| {
        let view = Snapshot {
            now: Tick(5),
            free: 0,
            claim: None,
            demands: Vec::new(),
            vms: vec![vm],
        };
        policy.propose(&view, occasion, &mut rng)
    };
    let one = VmView {
        exchange_chunks_max: 1,
        ..view(&of)
    };
    let cause = MoveCause::Exchange { within: VM_ID };
    let exchange = Proposal::Exchange {
        vm: VM_ID,
        leave: vec![ChunkNo(0)],
        come: vec![ChunkNo(2)],
        cause,
    };
    assert_eq!(answer(one, Occasion::Tick), exchange);
    let none = VmView {
        may_move: false,
        ..view(&of)
    };
    assert_eq!(answer(none, Occasion::Tick), Proposal::Nothing);
}
