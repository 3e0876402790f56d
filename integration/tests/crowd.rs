//! As many VMs as a card has room for: all attach, each wants four times its part, and each keeps its share.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::engine::Engine;
use guests::GuestBus;
use integration::bench::{Bench, RAM_BYTES, gpu_config, vm_config};
use integration::rig::{self, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig};
use integration::watch::World;
use sim_host::bus::SimBus;
use vgpu::{Audit, Denial, Direction, GpuConfig, Notice, Quota, VmConfig, VmId};

const MIB: u64 = 1 << 20;
/// VRAM of a GTX 480, in MiB.
const CARD: u64 = 1536;
const VMS: u16 = 32;
/// Bytes of a chunk.
const CHUNK: u64 = 2 * MIB;
/// What each VM uses: four times a 32nd of what guests may hold.
const WORKING_SET: u64 = 184 * MIB;
/// Bytes of each chunk that a guest writes: one copy. The others stay zero.
const MARK: u64 = 256;
/// Where the guest's RAM has the marks that it writes, and those that it reads back.
const MARKS_GPA: u64 = 4 * MIB;
const READ_GPA: u64 = 6 * MIB;
/// Turns that a guest waits for its copies while the memory of 32 VMs finds its place.
const WAIT_TURNS: u32 = 200_000;
const CHUNKS: u64 = WORKING_SET / CHUNK;

fn config() -> GpuConfig {
    GpuConfig {
        host_ram: 16 << 30,
        ..gpu_config()
    }
}

/// What the guest writes to its chunks in a round.
fn marks(vm: u16, round: u32) -> Vec<u8> {
    let word =
        |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(vm) << 48 ^ u64::from(round) << 40;
    (0..CHUNKS * MARK / 8)
        .flat_map(|at| word(at).to_le_bytes())
        .collect()
}

/// Copies a mark of each chunk to or from RAM.
fn copy_marks(rig: &mut Rig, bus: &mut SimBus, gpa: u64, is_read: bool) -> bool {
    // As many as a pushbuffer holds.
    (0..CHUNKS).collect::<Vec<_>>().chunks(16).all(|chunks| {
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        for &chunk in chunks {
            let (data, ram) = (DATA_VA + chunk * CHUNK, RAM_VA + gpa + chunk * MARK);
            let (from, to) = if is_read { (data, ram) } else { (ram, data) };
            words.extend(rig::copy_words(from, to, MARK as u32, 1));
        }
        let sequence = rig.submit_with_release(bus, 0, &words);
        rig.wait_turns(bus, 0, sequence, WAIT_TURNS)
    })
}

/// Uses all of the working set, round by round, and compares.
fn use_memory(bus: &mut SimBus, vm: u16, rounds: u32) -> Result<(), String> {
    let mut rig = Rig::start(bus, WORKING_SET);
    // What does not fit in the first 128 MiB of addresses.
    let second = rig::pde(Some(LARGE_TABLE + 0x2000), None);
    rig::put64(bus, DIRECTORY + 2 * 8, second.into_bits());
    rig.open(bus, 0);
    go_on(&mut rig, bus, vm, rounds)
}

fn go_on(rig: &mut Rig, bus: &mut SimBus, vm: u16, rounds: u32) -> Result<(), String> {
    for round in 0..rounds {
        let wanted = marks(vm, round);
        bus.ram_write(MARKS_GPA, &wanted);
        bus.ram_write(READ_GPA, &vec![0xee; wanted.len()]);
        if !copy_marks(rig, bus, MARKS_GPA, false) || !copy_marks(rig, bus, READ_GPA, true) {
            return Err(format!("a copy of round {round} does not end"));
        }
        let mut found = vec![0; wanted.len()];
        bus.ram_read(READ_GPA, &mut found);
        if found != wanted {
            return Err(format!("round {round} finds other bytes"));
        }
    }
    Ok(())
}

/// Jain's index of what the VMs hold by weight: 1 if all have the same.
fn jain(audit: &Audit) -> f64 {
    let parts: Vec<f64> = audit
        .vms
        .iter()
        .map(|vm| vm.resident as f64 / f64::from(vm.quota.weight))
        .collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    sum * sum / (parts.len() as f64 * squares)
}

fn audit(bench: &Bench) -> Audit {
    bench.world.manager.audit().unwrap()
}

/// Turns until nothing has moved for a while.
fn settle(bench: &mut Bench) {
    const QUIET_NS: u64 = 400_000_000;
    let moved = |bench: &Bench| bench.count_notices(|notice| matches!(notice, Notice::Moved { .. }));
    loop {
        let before = moved(bench);
        bench.pass(QUIET_NS);
        if moved(bench) == before {
            return;
        }
    }
}

/// VMs of these weights use four times what there is. What each holds afterwards is its share.
fn shares_hold(weight: impl Fn(u16) -> u32) {
    let vms: Vec<VmConfig> = (0..VMS)
        .map(|vm| VmConfig {
            chunk_bytes: CHUNK,
            quota: Quota {
                weight: weight(vm),
                ..Quota::default()
            },
            ..vm_config(WORKING_SET / MIB + 4)
        })
        .collect();
    let mut bench = Bench::with(CARD, config(), &vms);
    bench.is_checked = false;
    let tasks: Vec<_> = (0..VMS)
        .map(|vm| bench.start(VmId(vm), move |bus| use_memory(bus, vm, 2)))
        .collect();
    for (vm, task) in (0..).zip(tasks) {
        assert_eq!(bench.join(task), Ok(()), "vm{vm}");
    }
    settle(&mut bench);
    let after = audit(&bench);
    let wanted: u64 = after.vms.iter().map(|vm| vm.resident + vm.spilled).sum();
    let usable = u64::from(after.usable_frames) * fermi_spec::addr::FRAME;
    assert!(
        wanted * 10 >= usable * 39,
        "{wanted:#x} of {usable:#x}: not four times the card"
    );
    let (index, free) = (
        jain(&after),
        u64::from(after.free_frames) * fermi_spec::addr::FRAME,
    );
    println!(
        "Jain's index {index:.4}, {free:#x} bytes free, {} spills",
        spills(&bench)
    );
    assert!(index >= 0.98, "Jain's index {index}");
    assert!(free < CHUNK, "{free:#x} bytes are free, and all want more");
    bench.is_checked = true;
    bench.end();
}

fn spills(bench: &Bench) -> usize {
    let is_spill = |notice: &Notice| {
        matches!(
            notice,
            Notice::Moved {
                direction: Direction::Spill,
                ..
            }
        )
    };
    bench.count_notices(is_spill)
}

#[test]
fn thirty_two_vms_at_four_times_the_card_hold_equal_shares() {
    shares_hold(|_| 100);
}

#[test]
fn thirty_two_vms_at_four_times_the_card_hold_shares_by_weight() {
    // From 100 to 193: the least share is 15 chunks, so a chunk more or less is 7 % of it at most.
    shares_hold(|vm| 100 + 3 * u32::from(vm));
}

/// Attaches VMs until one is denied. How many there are, and why there is not one more.
fn attach_all(config_of: impl Fn() -> VmConfig) -> (u16, Denial) {
    let mut world = World::new(CARD * MIB, config());
    let mut count = 0;
    loop {
        let vm = VmId(count);
        world.attach(vm, config_of(), RAM_BYTES as usize);
        for _ in 0..100_000 {
            if world.vm(vm).attached.is_some() {
                break;
            }
            world.step(64);
            world.now = vgpu::Tick(world.now.0 + 1_000);
            world.look();
        }
        match world.vm(vm).attached.clone().unwrap() {
            Ok(()) => count += 1,
            Err(denial) => return (count, denial),
        }
    }
}

#[test]
fn thirty_one_vms_have_four_channels_each_and_the_next_is_told_why_not() {
    let small = || VmConfig {
        channels: 4,
        ram: 1 << 30,
        ..vm_config(48)
    };
    let (count, denial) = attach_all(small);
    assert_eq!(count, 31);
    let (promised, lent, usable) = (128, 0, 127);
    assert_eq!(
        denial,
        Denial::Channels {
            promised,
            lent,
            usable
        }
    );
}

#[test]
fn shadow_tables_are_promised_as_long_as_there_are_any_and_the_next_is_told_why_not() {
    let one_channel = || VmConfig {
        channels: 1,
        ram: 1 << 30,
        ..vm_config(48)
    };
    let (count, denial) = attach_all(one_channel);
    let Denial::Shadows { promised, lent, room } = denial else {
        panic!("{count} VMs, then {denial}");
    };
    assert!((32..=127).contains(&count), "{count}");
    assert!(lent == 0 && promised > room && promised - room <= promised / u64::from(count));
}
