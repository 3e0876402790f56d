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

/// Two VMs have more data than the card, so frames go back and forth; each reads what it wrote. How many words of the bitmap were looked at for a frame.
fn words_a_frame(frames: FrameSearch) -> f64 {
    let config = GpuConfig {
        frames,
        ..gpu_config()
    };
    let mut bench = Bench::with(32, config, &[vm_config(24), vm_config(24)]);
    let mut rigs = [VmId(0), VmId(1)].map(|vm| {
        bench.run(vm, move |bus| {
            let mut rig = Rig::start(bus, DATA_BYTES);
            rig.open(bus, 0);
            assert!(rig.fill(bus, 0, vm.0.into(), DATA_BYTES));
            (vm, rig)
        })
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
    words as f64 / searches as f64
}

#[test]
fn vms_share_a_card_whose_frames_are_found_by_random_walk() {
    let (walk, first_fit) = (
        words_a_frame(FrameSearch::RandomWalk),
        words_a_frame(FrameSearch::FirstFit),
    );
    println!("words of the bitmap for a frame: {walk:.2} by random walk, {first_fit:.2} by first fit");
    assert!(walk >= 1.0 && first_fit >= 1.0);
}
