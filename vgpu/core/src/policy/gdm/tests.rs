use super::*;
use crate::config::Quota;
use crate::memory::{ChunkPlace, Chunks, Reach};
use fermi_spec::addr::{FRAME, FrameNo, Iova};

const MIB: u64 = 1 << 20;
const VM: VmId = VmId(1);

/// Chunks of a MiB: in VRAM and used by a launch at that time, `-` in VRAM and used by none, `w` in host RAM, `b` in both and
/// never used.
fn chunks(places: &str) -> Chunks {
    chunks_of(places.len() as u64 * MIB, places)
}

/// The same where the last one is smaller, in VRAM of so many bytes.
fn chunks_of(bytes: u64, places: &str) -> Chunks {
    let mut chunks = Chunks::new(bytes, MIB, Iova(0));
    for (no, place) in (0..).map(ChunkNo).zip(places.chars()) {
        let frames = (0..(MIB / FRAME) as u32).map(FrameNo).collect();
        let is = match place {
            'w' => ChunkPlace::Spilled,
            'b' => ChunkPlace::Both(frames),
            _ => ChunkPlace::Resident(frames),
        };
        drop(chunks.set_place(no, is));
        chunks.widen_reach(
            no,
            if place == 'b' {
                Reach::ReadOnly
            } else {
                Reach::Writable
            },
        );
        if let Some(at) = place.to_digit(10) {
            chunks.note_launched(no, 1, Tick(at.into()));
        }
    }
    chunks
}

fn set(chunks: &[u32]) -> BTreeSet<ChunkNo> {
    chunks.iter().copied().map(ChunkNo).collect()
}

/// The answer to a launch of the VM that waits for `next`, with others behind it.
fn load_on(chunks: &Chunks, free: u64, claimed: u64, sets: [&[u32]; 3]) -> Proposal {
    load_above_min(chunks, (free, claimed, u64::MAX), sets)
}

/// The same where the VM has so much above its `min`.
fn load_above_min(
    chunks: &Chunks,
    (free, claimed, spare): (u64, u64, u64),
    [next, later, running]: [&[u32]; 3],
) -> Proposal {
    let [next, later, running] = [next, later, running].map(set);
    let vm = VmView {
        spare,
        exchange_chunks_max: 4,
        refill_bytes_max: 4 * MIB,
        work: Some(WorkView {
            next: &next,
            later: vec![&later],
            running: vec![&running],
            since: Tick(9),
        }),
        ..VmView::of(VM, chunks, MIB, Quota::default())
    };
    let other = Chunks::new(MIB, MIB, Iova(0));
    let mut wants = Chunks::new(MIB, MIB, Iova(0));
    drop(wants.set_place(ChunkNo(0), ChunkPlace::Spilled));
    wants.widen_reach(ChunkNo(0), Reach::Writable);
    let beside = VmView::of(
        VmId(2),
        if claimed > 0 { &wants } else { &other },
        MIB,
        Quota::default(),
    );
    let view = Snapshot {
        now: Tick(10),
        free,
        claim: (claimed > 0).then_some((VM, claimed)),
        demands: Vec::new(),
        vms: vec![vm, beside],
    };
    load(&view, VM)
}

fn moved(proposal: &Proposal) -> (Vec<u32>, Vec<u32>) {
    let numbers = |chunks: &[ChunkNo]| chunks.iter().map(|chunk| chunk.0).collect();
    match proposal {
        Proposal::Exchange {
            leave, come, cause, ..
        } => {
            assert_eq!(*cause, MoveCause::Launch { within: VM });
            (numbers(leave), numbers(come))
        }
        Proposal::Refill { chunks, .. } => (Vec::new(), numbers(chunks)),
        _ => Default::default(),
    }
}

#[test]
fn launch_that_waits_takes_the_place_of_what_was_used_least_recently() {
    let of = chunks("5-3ww");
    let answer = load_on(&of, 0, 0, [&[3, 4], &[], &[]]);
    assert_eq!(moved(&answer), (vec![1, 2], vec![3, 4]));
}

#[test]
fn at_its_min_no_vm_gives_a_whole_chunk_for_a_part_of_one() {
    let of = chunks_of(4 * MIB + MIB / 2, "12www");
    let sets: [&[u32]; 3] = [&[2, 3, 4], &[], &[]];
    let moved_above = |spare| moved(&load_above_min(&of, (0, 0, spare), sets));
    assert_eq!(moved_above(0), (vec![0, 1], vec![2, 3]));
    let part: [&[u32]; 3] = [&[4], &[], &[]];
    let of_part = |spare| load_above_min(&of, (0, 0, spare), part);
    assert_eq!(of_part(MIB / 2 - 1), Proposal::Nothing);
    assert_eq!(moved(&of_part(MIB / 2)), (vec![0], vec![4]));
}

#[test]
fn chunks_of_launches_that_wait_or_run_do_not_go_and_those_behind_go_last() {
    let of = chunks("123ww");
    let answer = load_on(&of, 0, 0, [&[0, 3, 4], &[1], &[]]);
    assert_eq!(moved(&answer), (vec![2, 1], vec![3, 4]));
    let answer = load_on(&of, 0, 0, [&[0, 3, 4], &[], &[1, 2]]);
    assert_eq!(answer, Proposal::Nothing);
}

#[test]
fn set_that_does_not_fit_is_loaded_as_far_as_it_does() {
    let of = chunks("12www");
    let answer = load_on(&of, 0, 0, [&[0, 1, 2, 3, 4], &[], &[]]);
    assert_eq!(answer, Proposal::Nothing);
    let answer = load_on(&of, MIB, 0, [&[0, 1, 2, 3, 4], &[], &[]]);
    assert_eq!(moved(&answer), (vec![], vec![2]));
}

#[test]
fn room_that_is_left_is_for_launches_behind_in_queue_order() {
    let of = chunks("wwwww");
    let answer = load_on(&of, 3 * MIB, 0, [&[4], &[0, 2], &[]]);
    assert_eq!(moved(&answer), (vec![], vec![4, 0, 2]));
}

#[test]
fn where_another_vm_wants_memory_too_it_takes_no_more_than_was_collected_for_it() {
    let of = chunks("ww");
    let answer = load_on(&of, 2 * MIB, MIB, [&[0, 1], &[], &[]]);
    assert_eq!(moved(&answer), (vec![], vec![0]));
}

#[test]
fn of_the_fifth_that_is_oldest_what_needs_no_copy_goes_first() {
    let of = chunks("111111-bw");
    let answer = load_on(&of, 0, 0, [&[8], &[], &[]]);
    assert_eq!(moved(&answer), (vec![7], vec![8]));
    // It is not among the oldest fifth.
    let of = chunks("---------bw");
    let answer = load_on(&of, 0, 0, [&[10], &[], &[]]);
    assert_eq!(moved(&answer), (vec![0], vec![10]));
}

#[test]
fn what_leaves_and_returns_for_others_goes_by_launches_too() {
    let of = chunks("5-3");
    let view = VmView::of(VM, &of, MIB, Quota::default());
    let by_launch = ByLaunch { now: Tick(10) };
    let mut all: Vec<_> = view.chunks().collect();
    all.sort_by_key(|chunk| by_launch.leaves(&view, chunk));
    assert_eq!(all.iter().map(|chunk| chunk.no.0).collect::<Vec<_>>(), [1, 2, 0]);
    all.sort_by_key(|chunk| by_launch.returns(&view, chunk));
    assert_eq!(all.iter().map(|chunk| chunk.no.0).collect::<Vec<_>>(), [0, 2, 1]);
}
