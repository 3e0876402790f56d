use super::*;
use crate::config::{GpuConfig, Quota, VmConfig};
use crate::device::pci::ConfigSpace;
use crate::device::{Leave, LeaveStage};
use crate::notice::Direction;
use crate::reason::MoveCause;
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use proptest::prelude::*;

mod histories;

const CHUNK: u64 = 1 << 20;
const VM: VmId = VmId(1);

/// A VM whose chunks are where `places` says: `r`esident, `b`oth, `s`pilled, `u`nbacked.
fn vgpu(vm: VmId, places: &str, quota: Quota) -> Vgpu {
    let config = VmConfig {
        name: "test".to_owned(),
        guest_vram: places.len() as u64 * CHUNK,
        chunk_bytes: CHUNK,
        quota,
        ram: crate::RAM_DEFAULT,
        channels: crate::CHANNELS_DEFAULT,
    };
    let mut vgpu = Vgpu::new(vm, config, 0, ConfigSpace::of(&GpuConfig::default()), Iova(0));
    let frames = || (0..(CHUNK / FRAME) as u32).map(FrameNo).collect();
    for (no, place) in (0..).map(ChunkNo).zip(places.chars()) {
        let place = match place {
            'r' => ChunkPlace::Resident(frames()),
            'b' => ChunkPlace::Both(frames()),
            's' => ChunkPlace::Spilled,
            _ => ChunkPlace::Unbacked,
        };
        vgpu.chunks.set_place(no, place);
    }
    vgpu
}

/// VMs, what they demand, and the numbers.
struct Scene {
    vms: BTreeMap<VmId, Vgpu>,
    demands: Demands,
    figures: Figures,
}

impl Scene {
    fn of(vms: Vec<Vgpu>) -> Self {
        Self {
            vms: vms.into_iter().map(|vgpu| (vgpu.id, vgpu)).collect(),
            demands: Demands::default(),
            figures: Figures {
                free: 0,
                batch_bytes: 4 * CHUNK,
                host_ram: 1 << 40,
                claim: None,
                aside: None,
                now: Tick(100),
            },
        }
    }

    fn one(places: &str, quota: Quota) -> Self {
        Self::of(vec![vgpu(VM, places, quota)])
    }

    fn limits(&self) -> Limits<'_> {
        Limits {
            vms: &self.vms,
            demands: &self.demands,
            figures: self.figures,
        }
    }

    /// What is left of a move of these chunks of [`VM`] on an ordinary occasion.
    fn admit(&self, direction: Direction, numbers: &[u32]) -> (Vec<u32>, Option<Breach>) {
        let chunks = numbers.iter().copied().map(ChunkNo).collect();
        let (left, breach) = self
            .limits()
            .admit(Occasion::Pass, proposal(direction, VM, chunks));
        (chunks_of(&left).iter().map(|chunk| chunk.0).collect(), breach)
    }
}

fn proposal(direction: Direction, vm: VmId, chunks: Vec<ChunkNo>) -> Proposal {
    let cause = MoveCause::FreeRoom;
    match direction {
        Direction::Spill => Proposal::Spill { vm, chunks, cause },
        Direction::Refill => Proposal::Refill { vm, chunks, cause },
    }
}

fn chunks_of(proposal: &Proposal) -> &[ChunkNo] {
    match proposal {
        Proposal::Spill { chunks, .. } | Proposal::Refill { chunks, .. } => chunks,
        Proposal::Exchange { leave, .. } => leave,
        Proposal::Nothing | Proposal::Release { .. } | Proposal::HostRam { .. } => &[],
    }
}

#[test]
fn spill_stops_at_min() {
    let quota = Quota {
        min: 2 * CHUNK,
        ..Quota::default()
    };
    let scene = Scene::one("rrrr", quota);
    assert_eq!(
        scene.admit(Direction::Spill, &[3, 1, 0]),
        (vec![3, 1], Some(Breach::MinOrBatch))
    );
}

#[test]
fn refill_stops_at_max() {
    let quota = Quota {
        max: 3 * CHUNK,
        ..Quota::default()
    };
    let mut scene = Scene::one("rrss", quota);
    scene.figures.free = 1 << 30;
    assert_eq!(
        scene.admit(Direction::Refill, &[3, 2]),
        (vec![3], Some(Breach::MaxOrBatch))
    );
}

#[test]
fn refill_takes_no_more_than_the_free_frames() {
    let mut scene = Scene::one("rrss", Quota::default());
    scene.figures.free = 2 * CHUNK - FRAME;
    assert_eq!(
        scene.admit(Direction::Refill, &[2, 3]),
        (vec![2], Some(Breach::NoFrames))
    );
}

#[test]
fn move_carries_a_batch_or_one_larger_chunk() {
    let mut scene = Scene::one("rrrrrr", Quota::default());
    let wanted = [0, 1, 2, 3, 4, 5];
    assert_eq!(scene.admit(Direction::Spill, &wanted).0, [0, 1, 2, 3]);
    scene.figures.batch_bytes = CHUNK / 2;
    assert_eq!(scene.admit(Direction::Spill, &wanted).0, [0]);
}

#[test]
fn after_a_refused_map_one_chunk_moves_at_a_time() {
    let mut scene = Scene::one("rrrr", Quota::default());
    scene.vms.get_mut(&VM).expect("it is there").was_refused = true;
    assert_eq!(scene.admit(Direction::Spill, &[2, 0]).0, [2]);
}

#[test]
fn chunks_that_cannot_move_are_left_out() {
    let mut scene = Scene::one("rsubr", Quota::default());
    let vgpu = scene.vms.get_mut(&VM).expect("it is there");
    vgpu.chunks.set_moving(ChunkNo(4), true);
    assert_eq!(
        scene.admit(Direction::Spill, &[0, 0, 1, 2, 3, 4, 5, u32::MAX]),
        (vec![0, 3], Some(Breach::NotMovable))
    );
}

#[test]
fn nothing_moves_of_a_vm_that_is_unknown_leaves_or_is_passed_over() {
    let mut scene = Scene::one("rr", Quota::default());
    scene.vms.get_mut(&VM).expect("it is there").passed_over_until = Tick(101);
    assert_eq!(scene.admit(Direction::Spill, &[0]).1, Some(Breach::PassedOver));
    scene.vms.get_mut(&VM).expect("it is there").leave = Leave::Detach(LeaveStage::Stopping);
    assert_eq!(scene.admit(Direction::Spill, &[0]).1, Some(Breach::Leaving));
    scene.vms.clear();
    assert_eq!(
        scene.admit(Direction::Spill, &[0]),
        (Vec::new(), Some(Breach::NoSuchVm))
    );
}

#[test]
fn spill_beyond_host_ram_waits_unless_the_vm_is_above_max() {
    let mut scene = Scene::one(&"r".repeat(20), Quota::default());
    (scene.figures.host_ram, scene.figures.batch_bytes) = (0, 2 * CHUNK);
    let vgpu = scene.vms.get_mut(&VM).expect("it is there");
    for no in 0..2 {
        vgpu.chunks.set_place(ChunkNo(no), ChunkPlace::Spilled);
    }
    // A batch and a chunk beyond what is set, of which two chunks are used.
    assert_eq!(
        scene.admit(Direction::Spill, &[5, 6]),
        (vec![5], Some(Breach::HostRam))
    );
    scene.vms.get_mut(&VM).expect("it is there").config.quota.max = CHUNK;
    assert_eq!(scene.admit(Direction::Spill, &[5, 6]), (vec![5, 6], None));
}

#[test]
fn host_ram_is_given_for_what_is_demanded_and_once() {
    let mut scene = Scene::one("uuu", Quota::default());
    scene
        .demands
        .ask(VM, vec![ChunkNo(0), ChunkNo(2)], Tick(100), Tick(200));
    let admit = |chunks| {
        scene
            .limits()
            .admit(Occasion::Demand, Proposal::HostRam { chunks })
    };
    let (left, breach) = admit(vec![
        (VM, vec![ChunkNo(2), ChunkNo(1), ChunkNo(2)]),
        (VM, vec![ChunkNo(0)]),
        (VmId(7), vec![ChunkNo(0)]),
    ]);
    let expected = Proposal::HostRam {
        chunks: vec![(VM, vec![ChunkNo(2)])],
    };
    assert_eq!((left, breach), (expected, Some(Breach::NotDemanded)));
}

#[test]
fn only_a_spill_of_the_vm_above_max_is_an_answer_to_that() {
    let scene = Scene::of(vec![
        vgpu(VM, "rr", Quota::default()),
        vgpu(VmId(2), "rr", Quota::default()),
    ]);
    let admit = |vm| {
        let proposal = proposal(Direction::Spill, vm, vec![ChunkNo(0)]);
        scene.limits().admit(Occasion::AboveMax { vm: VM }, proposal)
    };
    assert_eq!(admit(VmId(2)), (Proposal::Nothing, Some(Breach::NotAsked)));
    assert_eq!(admit(VM).1, None);
}

prop_compose! {
    fn any_quota()(min in 0u64..6, max in 0u64..12) -> Quota {
        Quota { min: min * CHUNK, max: max.max(min) * CHUNK, ..Quota::default() }
    }
}

fn any_proposal() -> impl Strategy<Value = (bool, u16, Vec<u32>)> {
    // Numbers of VMs and chunks beyond those that there are.
    (any::<bool>(), 0u16..5, proptest::collection::vec(0u32..14, 0..12))
}

proptest! {
    /// A policy that proposes at random, for hundreds of moves.
    #[test]
    fn limits_hold_whatever_is_proposed(
        quotas in proptest::collection::vec(any_quota(), 1..4),
        host_ram in 0u64..12,
        proposals in proptest::collection::vec(any_proposal(), 1..200),
    ) {
        let usable = 10 * CHUNK;
        let vms = (0..).zip(&quotas).map(|(vm, quota)| vgpu(VmId(vm), &"s".repeat(12), *quota)).collect();
        let mut scene = Scene::of(vms);
        scene.figures.host_ram = host_ram * CHUNK;
        let start: u64 = scene.vms.values().map(|vgpu| vgpu.chunks.spilled()).sum();
        for (spill, vm, chunks) in proposals {
            let resident: u64 = scene.vms.values().map(|vgpu| vgpu.chunks.resident()).sum();
            scene.figures.free = usable - resident;
            let before: BTreeMap<VmId, u64> =
                scene.vms.iter().map(|(&vm, vgpu)| (vm, vgpu.chunks.resident())).collect();
            let direction = if spill { Direction::Spill } else { Direction::Refill };
            let chunks = chunks.into_iter().map(ChunkNo).collect();
            let (left, _) = scene.limits().admit(Occasion::Tick, proposal(direction, VmId(vm), chunks));
            prop_assert!(chunks_of(&left).len() as u64 * CHUNK <= scene.figures.batch_bytes);
            let Some(vgpu) = scene.vms.get_mut(&VmId(vm)) else {
                prop_assert_eq!(left, Proposal::Nothing);
                continue;
            };
            for &chunk in chunks_of(&left) {
                let place = match spill {
                    true => ChunkPlace::Spilled,
                    false => ChunkPlace::Resident((0..(CHUNK / FRAME) as u32).map(FrameNo).collect()),
                };
                let old = vgpu.chunks.set_place(chunk, place);
                prop_assert_eq!(matches!(old, ChunkPlace::Spilled), !spill, "{:?} was not there to move", chunk);
            }
            let (held, quota) = (vgpu.chunks.resident(), vgpu.config.quota);
            prop_assert!(held <= quota.max);
            prop_assert!(held >= quota.min || held >= before[&VmId(vm)]);
            let resident: u64 = scene.vms.values().map(|vgpu| vgpu.chunks.resident()).sum();
            prop_assert!(resident <= usable);
            let spilled: u64 = scene.vms.values().map(|vgpu| vgpu.chunks.spilled()).sum();
            let host_ram_max = scene.limits().host_ram_max();
            prop_assert!(spilled <= host_ram_max.max(start));
        }
    }
}
