//! More channels than the card has numbers for: all of a guest's channels work, and keep what they know.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use integration::bench::{Bench, gpu_config, vm_config};
use integration::crowd;
use sim_host::world::Mapped;
use vgpu::{Event, Quota, VmConfig, VmId};

const MIB: u64 = 1 << 20;

/// The client of a VM maps its windows: doorbells of channels without a number on the card are found in memory.
fn maps_windows(bench: &mut Bench, vm: u16) {
    bench.world.let_windows(VmId(vm), Mapped::All);
}

/// VMs with 128 channels each, of which each stores patterns of its own and finds them again.
#[test]
fn all_channels_of_three_vms_work_at_once() {
    let mut bench = Bench::with(128, gpu_config(), &[vm_config(16), vm_config(16), vm_config(16)]);
    maps_windows(&mut bench, 0);
    maps_windows(&mut bench, 2);
    let tasks = [0, 1, 2]
        .map(|vm: u16| bench.start(VmId(vm), move |bus| crowd::all_channels_work(bus, vm.into(), 2)));
    for task in tasks {
        bench.join(task).unwrap();
    }
    bench.end();
}

/// The same while their memory goes to host RAM and comes back.
#[test]
fn channels_take_turns_while_their_memory_moves() {
    let mut bench = Bench::with(64, gpu_config(), &[vm_config(16), vm_config(16)]);
    maps_windows(&mut bench, 1);
    let tasks =
        [0, 1].map(|vm: u16| bench.start(VmId(vm), move |bus| crowd::all_channels_work(bus, vm.into(), 3)));
    let mut moved = 0;
    while !(bench.has_ended(VmId(0)) && bench.has_ended(VmId(1))) {
        let max = [2 * MIB, u64::MAX][moved % 2];
        for vm in [0, 1] {
            let quota = Quota {
                max,
                ..Quota::default()
            };
            bench.world.submit(Event::SetQuota { vm: VmId(vm), quota });
        }
        bench.is_checked = false;
        bench.pass(MIB * 3);
        moved += 1;
    }
    for task in tasks {
        bench.join(task).unwrap();
    }
    assert!(moved > 4, "{moved}");
    bench.end();
}

/// Copies that take many turns of their channels, which are more than the VM has numbers: one gives up its number in the middle of a copy, and
/// goes on there later.
#[test]
fn channels_give_up_their_numbers_in_the_middle_of_a_copy() {
    let promised = VmConfig {
        channels: 122,
        ..vm_config(16)
    };
    let mut bench = Bench::with(64, gpu_config(), &[vm_config(16), promised]);
    bench.world.model.faults_mut().copy_slowdown = 1000;
    let task = bench.start(VmId(0), |bus| crowd::all_channels_work(bus, 0, 2));
    bench.join(task).unwrap();
    let counters = bench.world.model.counters();
    assert!(counters.carried_copies > 0, "{counters:?}");
    bench.end();
}

/// The same with nothing behind a copy in its channel's ring: the card does not count it as work before it has given way.
#[test]
fn copies_with_nothing_behind_them_end_though_their_channels_give_up_numbers() {
    let promised = VmConfig {
        channels: 112,
        ..vm_config(16)
    };
    let mut bench = Bench::with(64, gpu_config(), &[vm_config(16), promised]);
    let faults = bench.world.model.faults_mut();
    faults.copy_slowdown = 1000;
    // Time for a copy to give way between its channel's last answer and the end of its number.
    faults.runlist_delay_ns = 5_000_000;
    let task = bench.start(VmId(0), |bus| crowd::copies_alone_end(bus, 0, 4));
    bench.join(task).unwrap();
    let counters = bench.world.model.counters();
    assert!(counters.carried_copies > 0, "{counters:?}");
    bench.end();
}
