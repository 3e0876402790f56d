//! How free frames are looked for is nothing that a guest sees.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use integration::bench::{Bench, gpu_config, vm_config};
use integration::rig::Rig;
use vgpu::{Direction, FrameSearch, GpuConfig, Notice, VmId};

const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 16 * MIB;

/// A number of the state tree's `frames`.
fn figure(bench: &Bench, name: &str) -> u64 {
    let path = format!("frames/{name}");
    let tree = bench.world.manager.inspect(bench.world.now, &path).unwrap();
    let value = tree.value_at(&path).unwrap();
    value.to_string().parse().unwrap()
}

/// Parts of a hundred of a VM's frames that lie behind the frame of the 128 KiB before.
fn followers(bench: &Bench, vm: VmId) -> usize {
    let audit = bench.world.manager.audit().unwrap();
    let mut frames = audit.vms.iter().find(|of| of.vm == vm).unwrap().frames.clone();
    frames.sort_by_key(|(_, at)| at.0);
    let follow = frames.windows(2).filter(|pair| pair[1].0.0 == pair[0].0.0 + 1);
    100 * follow.count() / frames.len()
}

/// Two VMs have more data than the card, so frames go back and forth; each reads what it wrote. How many words of the bitmap were looked at for a frame, and how many
/// of the first VM's frames follow each other, in a hundred, before the second one comes.
fn share_a_card(frames: FrameSearch) -> (f64, usize) {
    let config = GpuConfig {
        frames,
        ..gpu_config()
    };
    let mut bench = Bench::with(32, config, &[vm_config(24), vm_config(24)]);
    let mut followed = 0;
    let mut rigs = [VmId(0), VmId(1)].map(|vm| {
        let rig = bench.run(vm, move |bus| {
            let mut rig = Rig::start(bus, DATA_BYTES);
            rig.open(bus, 0);
            assert!(rig.fill(bus, 0, vm.0.into(), DATA_BYTES));
            (vm, rig)
        });
        if vm == VmId(0) {
            followed = followers(&bench, vm);
        }
        rig
    });
    for _ in 0..2 {
        rigs = rigs.map(|(vm, mut rig)| {
            bench.run(vm, move |bus| {
                assert_eq!(rig.verify(bus, 0, vm.0.into(), DATA_BYTES), Ok(()));
                (vm, rig)
            })
        });
    }
    let is_spill = |notice: &Notice| {
        matches!(
            notice,
            Notice::Moved {
                direction: Direction::Spill,
                ..
            }
        )
    };
    assert!(bench.count_notices(is_spill) > 0);
    let (searches, words) = (figure(&bench, "searches"), figure(&bench, "words_looked_at"));
    assert!(searches > 0);
    bench.end();
    (words as f64 / searches as f64, followed)
}

#[test]
fn vms_share_a_card_whose_frames_are_found_by_random_walk() {
    let (walk, scattered) = share_a_card(FrameSearch::RandomWalk);
    let (first_fit, neighbours) = share_a_card(FrameSearch::FirstFit);
    println!("words of the bitmap for a frame: {walk:.2} by random walk, {first_fit:.2} by first fit");
    println!("frames that follow each other: {scattered} and {neighbours} %");
    assert!(
        neighbours > 90 && scattered < 60,
        "{neighbours} and {scattered} %"
    );
}
