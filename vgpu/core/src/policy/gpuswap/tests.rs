use super::*;
use crate::config::Quota;
use crate::event::{Tick, VmId};
use crate::memory::{ChunkNo, ChunkPlace, Chunks, Reach};
use crate::policy::DemandView;
use crate::reason::MoveCause;
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use rand::SeedableRng;

const MIB: u64 = 1 << 20;

/// Chunks of a MiB: `a`ctive, `i`dle, `w`anted in host RAM, `u`nbacked.
fn chunks(places: &str) -> Chunks {
    let mut chunks = Chunks::new(places.len() as u64 * MIB, MIB, Iova(0));
    for (no, place) in (0..).map(ChunkNo).zip(places.chars()) {
        let frames = || ChunkPlace::Resident((0..(MIB / FRAME) as u32).map(FrameNo).collect());
        match place {
            'a' | 'i' => drop(chunks.set_place(no, frames())),
            'w' => drop(chunks.set_place(no, ChunkPlace::Spilled)),
            _ => {}
        }
        if matches!(place, 'a' | 'w') {
            chunks.widen_reach(no, Reach::Writable);
        }
    }
    chunks
}

/// VMs 1, 2 … with such chunks and quotas.
fn snapshot<'a>(vms: &'a [(Chunks, Quota)], free: u64, demands: Vec<DemandView<'a>>) -> Snapshot<'a> {
    let view = |(vm, (chunks, quota)): (u16, &'a (Chunks, Quota))| VmView {
        spill_chunks_max: usize::from(chunks.resident() >= quota.min + MIB) * 4,
        refill_bytes_max: quota.max.saturating_sub(chunks.resident()).min(4 * MIB),
        asked: demands
            .iter()
            .filter(|demand| demand.vm == VmId(vm))
            .map(|demand| demand.bytes)
            .sum(),
        ..VmView::of(VmId(vm), chunks, MIB, *quota)
    };
    let views = (1..).zip(vms).map(view).collect();
    Snapshot {
        now: Tick(0),
        free,
        claim: None,
        demands,
        vms: views,
    }
}

fn vms(places: &[&str]) -> Vec<(Chunks, Quota)> {
    places
        .iter()
        .map(|places| (chunks(places), Quota::default()))
        .collect()
}

fn one_chunk(vm: u16, asked: &[ChunkNo]) -> DemandView<'_> {
    let bytes = asked.len() as u64 * MIB;
    DemandView {
        vm: VmId(vm),
        chunks: asked,
        bytes,
        deadline: Tick(1),
        waits_for_own: false,
    }
}

fn answer(view: &Snapshot<'_>, occasion: Occasion) -> Proposal {
    Gpuswap.propose(view, occasion, &mut ChaCha8Rng::seed_from_u64(1))
}

/// VM, direction and cause of a move.
fn spilled(proposal: &Proposal) -> Option<(u16, usize, MoveCause)> {
    match proposal {
        Proposal::Spill { vm, chunks, cause } => Some((vm.0, chunks.len(), *cause)),
        _ => None,
    }
}

#[test]
fn victim_is_who_is_furthest_above_its_share() {
    let (vms, asked) = (vms(&["aaaaa", "aaaaaaaaa", "uu"]), [ChunkNo(0)]);
    let view = snapshot(&vms, 0, vec![one_chunk(3, &asked)]);
    let cause = MoveCause::Demand { of: VmId(3) };
    assert_eq!(spilled(&answer(&view, Occasion::Demand)), Some((2, 1, cause)));
}

#[test]
fn tie_takes_from_the_other_whatever_the_numbers() {
    for (places, asks, loses) in [(["aaaau", "aaaaa"], 1, 2), (["aaaaa", "aaaau"], 2, 1)] {
        let (vms, asked) = (vms(&places), [ChunkNo(4)]);
        let view = snapshot(&vms, 0, vec![one_chunk(asks, &asked)]);
        let cause = MoveCause::Demand { of: VmId(asks) };
        assert_eq!(spilled(&answer(&view, Occasion::Demand)), Some((loses, 1, cause)));
    }
}

#[test]
fn who_asks_for_more_than_its_share_gets_host_ram_or_gives_itself() {
    let (vms, asked) = (vms(&["aaaaau", "aaaa"]), [ChunkNo(5)]);
    let view = snapshot(&vms, 0, vec![one_chunk(1, &asked)]);
    match answer(&view, Occasion::Demand) {
        Proposal::HostRam { chunks } => assert_eq!(chunks, [(VmId(1), vec![ChunkNo(5)])]),
        other => assert_eq!(spilled(&other).map(|(vm, ..)| vm), Some(1)),
    }
}

/// All that others could give would come back.
#[test]
fn nobody_gives_for_a_chunk_that_all_of_it_together_is_too_little_for() {
    let (vms, asked) = (vms(&["aaaaaaaa", "aaaaaaaa", "uuuuuuuu"]), [ChunkNo(0)]);
    for (chunk_mib, is_taken) in [(4, true), (6, true), (7, false)] {
        let demand = DemandView {
            bytes: chunk_mib * MIB,
            ..one_chunk(3, &asked)
        };
        let mut view = snapshot(&vms, 0, vec![demand]);
        view.vms[2].chunk_bytes = chunk_mib * MIB;
        let proposal = answer(&view, Occasion::Demand);
        assert_eq!(spilled(&proposal).is_some(), is_taken, "{proposal:?}");
        if !is_taken {
            let chunks = vec![(VmId(3), vec![ChunkNo(0)])];
            assert_eq!(proposal, Proposal::HostRam { chunks });
        }
    }
}

#[test]
fn equal_holders_do_not_trade() {
    let vms = vms(&["aaaaw", "aaaaw"]);
    assert_eq!(
        answer(&snapshot(&vms, 0, Vec::new()), Occasion::Pass),
        Proposal::Nothing
    );
}

#[test]
fn who_is_a_chunk_below_its_share_collects_from_above() {
    let vms = vms(&["aaaaaa", "aawww"]);
    let cause = MoveCause::Fairness { toward: VmId(2) };
    let answered = answer(&snapshot(&vms, 0, Vec::new()), Occasion::Pass);
    assert_eq!(spilled(&answered), Some((1, 2, cause)));
}

/// Both of its chunks in one move each way, so that it and the other stop once.
#[test]
fn what_is_collected_comes_back_at_once() {
    for (places, free) in [(["aaaaa", "aawww"], 1), (["aaaa", "aawww"], 2)] {
        let vms = vms(&places);
        match (
            answer(&snapshot(&vms, free * MIB, Vec::new()), Occasion::Pass),
            free,
        ) {
            (Proposal::Spill { vm, chunks, .. }, 1) => assert_eq!((vm, chunks.len()), (VmId(1), 1)),
            (Proposal::Refill { vm, chunks, .. }, 2) => assert_eq!((vm, chunks.len()), (VmId(2), 2)),
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn memory_that_a_sync_has_just_got_is_not_idle() {
    let mut vms = vms(&["aaaa", "iiuu"]);
    vms[1].0.expect([ChunkNo(0), ChunkNo(1), ChunkNo(2), ChunkNo(3)]);
    let asked = [ChunkNo(2), ChunkNo(3)];
    let view = snapshot(&vms, 0, vec![one_chunk(2, &asked)]);
    // 6 chunks, 3 each: one comes from the other, none from what was granted.
    let cause = MoveCause::Demand { of: VmId(2) };
    let (vm, count, told) = spilled(&answer(&view, Occasion::Demand)).expect("a spill");
    assert_eq!((vm, count, told), (1, 1, cause));
}

#[test]
fn weights_make_the_shares() {
    let mut vms = vms(&["aaaaaa", "aaaaaawww"]);
    vms[1].1.weight = 300;
    // 12 chunks, 3 and 9.
    let cause = MoveCause::Fairness { toward: VmId(2) };
    let answered = answer(&snapshot(&vms, 0, Vec::new()), Occasion::Pass);
    assert_eq!(spilled(&answered), Some((1, 3, cause)));
}

#[test]
fn nothing_that_min_or_low_protects_is_taken_for_another() {
    for protect in [
        |quota: &mut Quota| quota.min = 6 * MIB,
        |quota: &mut Quota| quota.low = 6 * MIB,
    ] {
        let mut vms = vms(&["aaaaaa", "aawww"]);
        protect(&mut vms[0].1);
        assert_eq!(
            answer(&snapshot(&vms, 0, Vec::new()), Occasion::Pass),
            Proposal::Nothing
        );
    }
}

#[test]
fn free_room_goes_to_who_can_take_it_though_another_is_poorer() {
    let mut vms = vms(&["aaaww", "aaaaw"]);
    // The poorer may hold no more.
    vms[0].1.max = 3 * MIB;
    match answer(&snapshot(&vms, MIB, Vec::new()), Occasion::Pass) {
        Proposal::Refill { vm, chunks, .. } => assert_eq!((vm, chunks.len()), (VmId(2), 1)),
        other => panic!("{other:?}"),
    }
}
