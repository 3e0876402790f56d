//! Channels that do harm: endless, faulting, waiting for ever, storms of everything, and ends in the middle of a move.
//!
//! VM 0 is honest, VM 1 attacks. Whatever happens, VM 0's bytes stay as they are, its accesses are answered within the
//! bound of the architecture, the laws hold, and nothing is left when both are gone.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::addr::Gpa;
use fermi_spec::engine::Engine;
use fermi_spec::fault::{FaultType, Reason};
use fermi_spec::instance::offset;
use fermi_spec::methods::{SemaphoreD, host};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::{PfifoReg, PmcReg, PpciReg, pfifo};
use guests::GuestBus;
use guests::driver::CopyPath;
use integration::bench::{Bench, RAM_BYTES, gpu_config, vm_config};
use integration::canary::Canary;
use integration::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig, SMALL_TABLE};
use sim_host::bus::SimBus;
use vgpu::{
    ChannelFault, Direction, Event, GpuConfig, HostFault, InterruptKind, MoveStage, Notice, Quota, Reply,
    Request, VmId,
};

const HONEST: VmId = VmId(0);
const ATTACKER: VmId = VmId(1);
const MIB: u64 = 1 << 20;
/// Bound of the architecture on how long a guest's access may be held for another VM's sake.
const HELD_MAX_NS: u64 = 200_000_000;

fn spills(bench: &Bench, of: VmId) -> usize {
    bench.count_notices(
        |notice| matches!(notice, Notice::Moved { vm, direction: Direction::Spill, .. } if *vm == of),
    )
}

fn roll_backs(bench: &Bench) -> usize {
    bench.count_notices(|notice| matches!(notice, Notice::RolledBack { .. }))
}

fn is_mmu_fault(fault: &HostFault) -> bool {
    let HostFault::Channel { fault, .. } = fault else {
        return false;
    };
    matches!(fault, ChannelFault::Mmu { .. })
}

fn kills(bench: &Bench, of: VmId) -> usize {
    bench.count_notices(|notice| matches!(notice, Notice::ChannelKilled { vm, .. } if *vm == of))
}

/// Errors that a card survives, of which the guest was told.
fn told(bench: &Bench, of: VmId) -> usize {
    bench.count_notices(|notice| matches!(notice, Notice::ChannelError { vm, .. } if *vm == of))
}

/// A copy that takes about 90 ms of GPU time and cannot be interrupted: 512 MiB of guest RAM to guest RAM, one line
/// over and over.
fn long_copy() -> Vec<u32> {
    let mut words = rig::bind_words(Engine::Copy0).to_vec();
    let mut copy = rig::copy_words(RAM_VA + 8 * MIB, RAM_VA + 9 * MIB, 0xffff, 0x1fff);
    // Pitches.
    (copy[5], copy[6]) = (0, 0);
    words.extend(copy);
    words
}

/// Two VMs that together want half as much again as there is; the attacker holds all it wants.
fn crowded() -> (Bench, Rig) {
    let mut bench = Bench::new(48, &[32, 40]);
    let rig = bench.run(ATTACKER, |bus| {
        let mut rig = Rig::start(bus, 32 * MIB);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 9, 32 * MIB));
        rig
    });
    (bench, rig)
}

/// The honest VM wants 20 MiB and checks them; its accesses are answered in time.
fn honest_gets_memory(bench: &mut Bench) {
    bench
        .run(HONEST, |bus| {
            let mut canary = Canary::plant(bus, 20 * MIB, 3).map_err(|error| error.to_string())?;
            canary.check(bus, CopyPath::Copy1)
        })
        .unwrap();
    let held = bench.held_max_ns(HONEST);
    assert!(held < HELD_MAX_NS, "held for {} ms", held / 1_000_000);
}

#[test]
fn endless_ring_does_not_delay_a_demand() {
    let (mut bench, rig) = crowded();
    let rig = bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        // 64 MiB of ring, all of it one frame of VRAM full of entries for a long run of nothing.
        let nop = [incrementing(0, host::NOP, 1), 0].map(u32::to_le_bytes).concat();
        bus.ram_write(7 * MIB, &nop.repeat(1 << 14));
        let entry = fermi_spec::gpfifo::GpEntry::fetch(fermi_spec::addr::GpuVa(RAM_VA + 7 * MIB), 1 << 15);
        bus.ram_write(6 * MIB, &entry.to_le_bytes().repeat(1 << 14));
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(RAM_VA + 6 * MIB, DATA_VA, 0x8000, 4));
        assert!(rig.execute(bus, 0, &words));
        let entries: Vec<u8> = (0..512)
            .flat_map(|_| rig::vram_pte(DATA).into_bits().to_le_bytes())
            .collect();
        rig::put(bus, LARGE_TABLE + 512 * 8, &entries);
        for channel in 1..4 {
            rig.write_instance(bus, channel, DIRECTORY);
            rig::put32(
                bus,
                Rig::instance(channel) + offset::GP_BASE_LO,
                (DATA_VA + 64 * MIB) as u32,
            );
            rig::put32(bus, Rig::instance(channel) + offset::GP_BASE_HI, 23 << 16);
            rig.bind(bus, channel);
        }
        rig.commit(bus, &[0, 1, 2, 3]);
        (1..4).for_each(|channel| Rig::doorbell(bus, channel, (1 << 23) - 1));
        rig
    });
    honest_gets_memory(&mut bench);
    assert!(spills(&bench, ATTACKER) > 0, "an endless ring can be suspended");
    assert_eq!(kills(&bench, ATTACKER), 0);
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        for channel in 1..4 {
            rig.unbind(bus, channel);
        }
        assert!(rig.copies(bus, 0));
    });
    bench.end();
}

#[test]
fn acquire_never_satisfied_delays_nobody() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        bus.ram_write(6 * MIB, &[0; 64]);
        for channel in 1..7 {
            rig.open(bus, channel);
            let acquire = SemaphoreD::new()
                .with_operation([1, 4, 8][usize::from(channel) % 3])
                .with_acquire_switch(channel > 3);
            let words = rig::semaphore_words(RAM_VA + 6 * MIB, 0x7fff_0001, acquire);
            rig.submit(bus, channel, &words);
        }
        for _ in 0..50 {
            bus.relax();
        }
    });
    honest_gets_memory(&mut bench);
    bench.end();
}

#[test]
fn acquire_on_unmapped_memory_kills_only_its_channel() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        rig.open(bus, 1);
        let acquire = SemaphoreD::new().with_operation(1);
        rig.submit(bus, 1, &rig::semaphore_words(0x77_0000_0000, 1, acquire));
        for _ in 0..50 {
            bus.relax();
        }
        assert!(rig::read(bus, PfifoReg::FaultUnits) != 0);
        rig::acknowledge(bus);
        assert!(rig.copies(bus, 0), "the other channel goes on");
    });
    assert_eq!(kills(&bench, ATTACKER), 1);
    honest_gets_memory(&mut bench);
    bench.end();
}

#[test]
fn long_copy_is_not_waited_for() {
    let (mut bench, rig) = crowded();
    let rig = bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        rig.open(bus, 1);
        // Its own space maps data for stores, so it has to stop for a move.
        for _ in 0..40 {
            rig.push_entry(bus, 1, 0);
        }
        let words = long_copy();
        for channel in [0, 1] {
            let mut all = Vec::new();
            (0..20).for_each(|_| all.extend(&words));
            rig.submit_with_release(bus, channel, &all);
        }
        rig
    });
    honest_gets_memory(&mut bench);
    let stands_aside = |notice: &Notice| {
        matches!(
            notice,
            Notice::MoveStage {
                stage: MoveStage::Draining,
                ..
            }
        )
    };
    assert!(
        bench.count_notices(stands_aside) > 0,
        "the copy outlasts the budget"
    );
    let paused = bench.world.notices.iter().filter_map(|(_, notice)| match notice {
        Notice::Moved { pause_ns, .. } => *pause_ns,
        _ => None,
    });
    assert!(paused.max().unwrap_or(0) < HELD_MAX_NS);
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        rig.unbind(bus, 0);
        rig.unbind(bus, 1);
        rig.open(bus, 2);
        assert_eq!(rig.verify(bus, 2, 9, 32 * MIB), Ok(()));
    });
    bench.end();
}

#[test]
fn fault_kills_one_channel_and_the_guest_can_bind_it_anew() {
    let (mut bench, rig) = crowded();
    let other = bench.run(HONEST, |bus| Canary::plant(bus, 8 * MIB, 1)).unwrap();
    assert_eq!(
        bench.call(ATTACKER, Request::MaskIntx { masked: false }),
        Reply::Done
    );
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        rig::write(bus, PmcReg::PmcIntrMask(0), !0);
        rig::write(bus, PmcReg::PmcIntrEnable(0), 1);
        rig.open(bus, 1);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(RAM_VA, 0x55_1234_5000, 64, 1));
        let sequence = rig.submit_with_release(bus, 1, &words);
        assert!(!rig.wait_turns(bus, 1, sequence, 300));
        let units = rig::read(bus, PfifoReg::FaultUnits);
        assert_eq!(units, 1 << Engine::Copy0.fault_unit());
        let record = u16::from(Engine::Copy0.fault_unit()) * 4;
        let [instance, low, high, kind] =
            [0, 1, 2, 3].map(|i| rig::read(bus, PfifoReg::FaultRecord(record + i)));
        // The guest's own address of the block, not the host's.
        assert_eq!(u64::from(instance) << 12, Rig::instance(1));
        assert_eq!((low, high), (0x1234_5000, 0x55));
        let kind = FaultType::from_bits(kind);
        assert_eq!((kind.reason(), kind.write()), (Reason::PdeNotPresent as u8, true));
        assert!(rig::read(bus, PfifoReg::PfifoIntr) & pfifo::intr::MMU_FAULT != 0);
        rig::acknowledge(bus);
        assert_eq!(rig::read(bus, PfifoReg::PfifoIntr) & pfifo::intr::MMU_FAULT, 0);
        assert!(rig.copies(bus, 0), "the other channel goes on");
        rig.unbind(bus, 1);
        rig.open(bus, 1);
        assert!(rig.copies(bus, 1), "the channel bound anew works");
    });
    let interrupts = bench.world.vm(ATTACKER).interrupts_of(InterruptKind::Intx);
    assert_eq!(interrupts, 1, "the VMM did not unmask again");
    assert_eq!((kills(&bench, ATTACKER), kills(&bench, HONEST)), (1, 0));
    bench
        .run(HONEST, move |bus| {
            let mut canary = other;
            canary.check(bus, CopyPath::M2mf)
        })
        .unwrap();
    bench.end();
}

#[test]
fn bad_words_are_told_to_their_guest_and_hurt_no_other_channel() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        let illegal = incrementing(0, host::ILLEGAL, 1);
        let bad: [&[u32]; 4] = [
            // Illegal method, an invalid header, an empty subchannel, an engine that does not exist.
            &[illegal, 0],
            &[0xdead_beef & 0xdfff_ffff | 6 << 29],
            &[incrementing(6, 0x300, 1), 0],
            &[incrementing(4, host::SET_OBJECT, 1), 0x0009_0000],
        ];
        for (channel, words) in (1..).zip(bad) {
            rig.open(bus, channel);
            let sequence = rig.submit_with_release(bus, channel, words);
            rig.wait_turns(bus, channel, sequence, 200);
            rig::acknowledge(bus);
            assert!(rig.copies(bus, 0), "after {words:x?}");
        }
        // Entries: control operations, nonsense, and GP_PUT beyond the ring.
        for (channel, entry) in (10..).zip([1u64 << 32, 2 << 32, 0xff << 32, !0, 0x0000_0400_ffff_fffc]) {
            rig.open(bus, channel);
            rig.push_entry(bus, channel, entry);
            rig.ring(bus, channel);
            (0..100).for_each(|_| bus.relax());
            rig::acknowledge(bus);
            assert!(rig.copies(bus, 0), "after entry {entry:#x}");
        }
        for (channel, put) in (20..).zip([512, 0x8000_0000, !0]) {
            rig.open(bus, channel);
            Rig::doorbell(bus, channel, put);
            (0..100).for_each(|_| bus.relax());
            rig::acknowledge(bus);
            assert!(rig.copies(bus, 0), "after GP_PUT {put:#x}");
        }
    });
    assert!(told(&bench, ATTACKER) >= 6, "{}", told(&bench, ATTACKER));
    assert_eq!(told(&bench, HONEST) + kills(&bench, HONEST), 0);
    honest_gets_memory(&mut bench);
    bench.end();
}

#[test]
fn illegal_class_on_pgraph_stops_nobody_else() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        let class = [incrementing(4, host::SET_OBJECT, 1), 0x0000_ffff];
        let m2mf = [
            incrementing(4, host::SET_OBJECT, 1),
            0x0000_9039,
            incrementing(4, 0x304, 1),
            1,
        ];
        for (channel, words) in [(1, &class[..]), (2, &m2mf[..])] {
            rig.open(bus, channel);
            let sequence = rig.submit_with_release(bus, channel, words);
            rig.wait_turns(bus, channel, sequence, 200);
        }
        assert!(rig.copies(bus, 0));
    });
    bench
        .run(HONEST, |bus| {
            let mut canary = Canary::plant(bus, 20 * MIB, 3).map_err(|error| error.to_string())?;
            canary.check(bus, CopyPath::M2mf)
        })
        .unwrap();
    bench.end();
}

/// Runs a storm in the attacker while the honest VM works.
fn storm(code: impl FnOnce(&mut SimBus, Rig) + Send + 'static) {
    let (mut bench, rig) = crowded();
    bench.world.model.faults_mut().runlist_delay_ns = 200_000;
    let storm = bench.start(ATTACKER, move |bus| code(bus, rig));
    honest_gets_memory(&mut bench);
    bench.join(storm);
    assert!(bench.held_max_ns(ATTACKER) < HELD_MAX_NS);
    // Work that was queued in the storm must not take minutes afterwards.
    let start = bench.world.now;
    bench.run(HONEST, |bus| {
        let mut rig = Rig::start(bus, MIB);
        rig.open(bus, 5);
        assert!(rig.execute(bus, 5, &[]));
    });
    let ns = bench.world.now.since(start);
    assert!(ns < 1_000_000_000, "a channel runs after {} ms", ns / 1_000_000);
    bench.end();
}

#[test]
fn doorbell_storm() {
    storm(|bus, _| (0..100_000).for_each(|put| Rig::doorbell(bus, 0, put)));
}

#[test]
fn flush_storm() {
    storm(|bus, _| {
        for turn in 0..4_000u64 {
            let entry = if turn % 2 == 0 {
                rig::vram_pte(DATA).into_bits()
            } else {
                0
            };
            rig::put64(bus, SMALL_TABLE, entry);
            rig::flush(bus, DIRECTORY);
        }
    });
}

#[test]
fn runlist_storm() {
    storm(|bus, _| {
        for turn in 0..20_000u32 {
            rig::write(bus, PfifoReg::RunlistCommit, turn % 2);
        }
    });
}

#[test]
fn preempt_storm() {
    storm(|bus, rig| {
        let mut rig = rig;
        rig.submit(bus, 0, &long_copy());
        for turn in 0..20_000u32 {
            rig::write(bus, PfifoReg::Preempt, turn % 2);
            rig::write(bus, PfifoReg::ChannelState(0), turn % 2);
        }
    });
}

#[test]
fn bind_storm() {
    storm(|bus, rig| {
        let mut rig = rig;
        for turn in 0..2_000u32 {
            let channel = 1 + (turn % 50) as u8;
            if turn < 50 {
                rig.write_instance(bus, channel, DIRECTORY);
            }
            rig.bind(bus, channel);
            rig.unbind(bus, channel);
        }
    });
}

#[test]
fn notify_storm_is_no_storm_for_others() {
    let (mut bench, rig) = crowded();
    let canary = bench.run(HONEST, |bus| {
        let canary = Canary::plant(bus, 8 * MIB, 1);
        rig::write(bus, PmcReg::PmcIntrMask(0), !0);
        rig::write(bus, PmcReg::PmcIntrEnable(0), 1);
        rig::write(bus, PfifoReg::PfifoIntrEnable, pfifo::intr::ENGINE);
        rig::switch_msi_on(bus);
        canary
    });
    let messages = |bench: &Bench| bench.world.vm(HONEST).interrupts_of(InterruptKind::Msi);
    let (start, before) = (bench.world.now, messages(&bench));
    let storm = bench.start(ATTACKER, |bus| {
        let mut rig = rig;
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        (0..400).for_each(|_| words.extend([incrementing(4, host::NON_STALL_INTERRUPT, 1), 0]));
        (0..50).for_each(|_| assert!(rig.execute(bus, 0, &words)));
    });
    let acknowledges = bench.start(HONEST, |bus| {
        for _ in 0..2_000 {
            for engine in 0..6 {
                rig::write(bus, PfifoReg::EngineIntr(engine), !0);
            }
            rig::write(bus, PpciReg::PciMsiRearm, 0xff);
        }
    });
    bench.join(acknowledges);
    bench.join(storm);
    let interrupts = messages(&bench) - before;
    let ms = bench.world.now.since(start) / 1_000_000 + 1;
    assert!(
        (1..=ms * 25).contains(&interrupts),
        "{interrupts} interrupts in {ms} ms"
    );
    bench
        .run(HONEST, move |bus| canary.unwrap().check(bus, CopyPath::Copy0))
        .unwrap();
    bench.end();
}

#[test]
fn directories_full_of_one_table_are_bounded() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        // All 8192 directory entries to the table in use, and to a table that is the directory itself.
        for (large, small) in [
            (None, Some(SMALL_TABLE)),
            (Some(DIRECTORY), Some(DIRECTORY)),
            (Some(LARGE_TABLE), None),
        ] {
            let entry = rig::pde(large, small).into_bits().to_le_bytes();
            rig::put(bus, 0x30_0000, &entry.repeat(8192));
            rig.write_instance(bus, 1, 0x30_0000);
            rig.bind(bus, 1);
            rig::flush(bus, 0x30_0000);
            rig.unbind(bus, 1);
        }
        // Both sizes for the same addresses, in every shape of the tables.
        for size in 0..4u8 {
            let small: Vec<u8> = (0..4096u64)
                .flat_map(|page| {
                    rig::vram_pte(DATA + ((page % 64) << 12))
                        .into_bits()
                        .to_le_bytes()
                })
                .collect();
            rig::put(bus, 0x32_0000, &small);
            let pde = rig::pde(Some(LARGE_TABLE), Some(0x32_0000)).with_size(size);
            rig::put64(bus, DIRECTORY + 2 * 8, pde.into_bits());
            rig::flush(bus, DIRECTORY);
        }
        assert!(rig.copies(bus, 0));
    });
    bench.check();
    honest_gets_memory(&mut bench);
    bench.end();
}

/// Channels that a VM alone may hold: those that it is promised, and half of the 63 that may be lent.
const HELD_ALONE: u8 = vgpu::CHANNELS_DEFAULT as u8 + 32;

#[test]
fn binding_all_128_channels_leaves_others_theirs() {
    let (mut bench, rig) = crowded();
    let worked = bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        for channel in 1..128 {
            rig.write_instance(bus, channel, DIRECTORY);
            rig.bind(bus, channel);
        }
        let all: Vec<u8> = (0..128).collect();
        rig.commit(bus, &all);
        (0..HELD_ALONE).all(|channel| rig.execute(bus, channel, &[]))
    });
    assert!(worked);
    // Two channels, as every driver needs.
    honest_gets_memory(&mut bench);
    bench.end();
}

#[test]
fn vm_that_comes_after_one_that_bound_all_channels_has_its_own() {
    let mut bench = Bench::new(48, &[8]);
    let worked = bench.run(VmId(0), |bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        for channel in 0..127 {
            rig.open(bus, channel);
        }
        // It holds no more numbers than it may borrow, and all of its channels work.
        (0..127).all(|channel| rig.execute(bus, channel, &[]))
    });
    assert!(worked);
    for late in (1..4).map(VmId) {
        bench.attach(late, vm_config(8));
        let works = bench.run(late, |bus| {
            let mut rig = Rig::start(bus, 4 * MIB);
            (0..vgpu::CHANNELS_DEFAULT as u8).all(|channel| {
                rig.open(bus, channel);
                rig.copies(bus, channel)
            })
        });
        assert!(works, "{late}");
    }
    bench.end();
}

/// The data is shown at as many places as the directory has entries for, by large pages. A move to host RAM needs a table of
/// small pages for each that exists.
#[test]
fn memory_that_many_tables_show_goes_to_host_ram_all_the_same() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        let entry = rig::pde(Some(LARGE_TABLE), None).into_bits().to_le_bytes();
        rig::put(bus, DIRECTORY + 2 * 8, &entry.repeat(100));
        rig::flush(bus, DIRECTORY);
        assert!(rig.copies(bus, 0));
    });
    honest_gets_memory(&mut bench);
    assert!(spills(&bench, ATTACKER) > 0);
    let held = resident(&bench, HONEST);
    assert!(held >= 20 * MIB, "{held:#x}");
    bench.end();
}

fn resident(bench: &Bench, vm: VmId) -> u64 {
    let audit = bench.world.manager.audit().unwrap();
    audit.vms.iter().find(|of| of.vm == vm).unwrap().resident
}

#[test]
fn instance_bound_twice_is_two_channels() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        rig.write_instance(bus, 1, DIRECTORY);
        for channel in [1u16, 2, 1, 2] {
            let entry = 0xc000_0000 | (Rig::instance(1) >> 12) as u32;
            rig::write(bus, PfifoReg::ChannelInstance(channel), entry);
            rig::write(bus, PfifoReg::ChannelState(channel), pfifo::CHANNEL_START);
        }
        rig.commit(bus, &[0, 1, 2]);
        let sequence = rig.submit_with_release(bus, 1, &[]);
        assert!(rig.wait(bus, 1, sequence));
        Rig::doorbell(bus, 2, 1);
        (0..50).for_each(|_| bus.relax());
        assert!(rig.copies(bus, 0));
    });
    honest_gets_memory(&mut bench);
    bench.end();
}

/// Events that hit the attacker in the middle of moves of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blow {
    Detach,
    Reset,
    UnmapRam,
    UnmapThenDetach,
    UnbindAll,
    Rebind,
    ResetFifo,
    Fault,
    LowerMax,
    FlushAll,
}

/// Lets the honest VM press on the attacker, strikes after `turns` turns, and sees that everything ends well.
fn strike(blow: Blow, turns: u64) {
    let config = GpuConfig {
        seed: turns,
        ..gpu_config()
    };
    let mut bench = Bench::with(24, config, &[vm_config(12), vm_config(16)]);
    let rig = bench.run(ATTACKER, |bus| {
        let mut rig = Rig::start(bus, 12 * MIB);
        for channel in 0..3 {
            rig.open(bus, channel);
        }
        assert!(rig.fill(bus, 0, 9, 12 * MIB));
        rig
    });
    // Everything takes its time, so that every stage lasts for some turns.
    bench.work = 1;
    bench.world.work_between_actions = (turns % 2) as u32;
    let faults = bench.world.model.faults_mut();
    faults.preempt_delay_ns = 3_000;
    faults.runlist_delay_ns = 2_000;
    faults.copy_slowdown = 2;
    let honest = bench.start(HONEST, |bus| {
        let mut rig = Rig::start(bus, 8 * MIB);
        rig.open(bus, 0);
        rig.fill(bus, 0, 4, 8 * MIB) && rig.verify(bus, 0, 4, 8 * MIB) == Ok(())
    });
    bench.turn_until("a move", |bench| {
        let audit = bench.world.manager.audit();
        audit.is_some_and(|audit| {
            audit
                .vms
                .iter()
                .any(|vm| vm.vm == ATTACKER && !vm.suspended.is_empty())
        })
    });
    let busy = bench.start(ATTACKER, move |bus| {
        let mut rig = rig;
        let mut words = rig::bind_words(Engine::Copy1).to_vec();
        (0..8).for_each(|_| words.extend(rig::copy_words(DATA_VA, DATA_VA + 4 * MIB, 0x8000, 16)));
        rig.submit(bus, 1, &words);
        (0..2).for_each(|_| bus.relax());
        rig
    });
    for _ in 0..turns {
        bench.turn();
    }
    let request = deal(&mut bench, blow, busy);
    if let Some(request) = request {
        let reply = bench.reply(ATTACKER, request);
        assert_eq!(reply, Reply::Done);
    }
    bench.work = 64;
    assert!(bench.join(honest), "{blow:?} after {turns} turns");
    let held = bench.held_max_ns(HONEST);
    assert!(held < HELD_MAX_NS, "held for {} ms", held / 1_000_000);
    // The fault of a channel that is gone already is said; nothing else goes wrong on the host.
    let errors =
        bench.count_notices(|notice| matches!(notice, Notice::HostError { fault } if !is_mmu_fault(fault)));
    assert_eq!(errors, 0, "{blow:?} after {turns} turns");
    bench.end();
}

fn deal(bench: &mut Bench, blow: Blow, busy: integration::bench::Task<Rig>) -> Option<vgpu::RequestId> {
    let vm = ATTACKER;
    match blow {
        Blow::Detach => {
            bench.detach(vm);
            None
        }
        Blow::Reset => {
            bench.abandon(vm);
            Some(bench.post(vm, Request::Reset))
        }
        Blow::UnmapRam | Blow::UnmapThenDetach => {
            bench.abandon(vm);
            let (gpa, bytes) = (Gpa(0), RAM_BYTES);
            let request = bench.post(vm, Request::UnmapRam { gpa, bytes });
            if blow == Blow::UnmapThenDetach {
                bench.detach(vm);
                return None;
            }
            Some(request)
        }
        Blow::LowerMax => {
            let quota = Quota {
                max: 6 * MIB,
                ..Quota::default()
            };
            bench.world.submit(Event::SetQuota { vm, quota });
            bench.is_checked = false;
            bench.turn_until("the spill to the new max", |bench| {
                let audit = bench.world.manager.audit().unwrap();
                audit
                    .vms
                    .iter()
                    .all(|audited| audited.vm != vm || audited.resident <= 6 * MIB)
            });
            bench.is_checked = true;
            bench.abandon(vm);
            None
        }
        _ => {
            let rig = bench.join(busy);
            bench.run(vm, move |bus| guest_blow(bus, rig, blow));
            None
        }
    }
}

fn guest_blow(bus: &mut SimBus, rig: Rig, blow: Blow) {
    let mut rig = rig;
    match blow {
        Blow::UnbindAll => (0..3).for_each(|channel| rig.unbind(bus, channel)),
        Blow::Rebind => {
            for channel in 0..3 {
                rig.unbind(bus, channel);
                rig.open(bus, channel);
            }
            assert!(rig.copies(bus, 0));
        }
        Blow::ResetFifo => {
            rig::write(bus, PmcReg::PmcEnable, 0);
            rig::write(bus, PmcReg::PmcEnable, !0);
        }
        Blow::Fault => {
            // The channel is gone before its fault is heard of.
            for channel in 0..3 {
                let mut words = rig::bind_words(Engine::Copy0).to_vec();
                words.extend(rig::copy_words(0x66_0000_0000, DATA_VA, 4096, 4));
                rig.submit(bus, channel, &words);
                rig.unbind(bus, channel);
            }
        }
        _ => {
            rig::put(bus, LARGE_TABLE, &[0; 8 * 100]);
            rig::flush(bus, DIRECTORY);
            rig.unbind(bus, 0);
        }
    }
}

/// Strikes at every moment of the first moves, more thinly later.
fn strike_everywhere(blow: Blow) {
    for turns in (0..24).chain((24..400).step_by(31)) {
        strike(blow, turns);
    }
}

#[test]
fn detach_in_every_stage_of_a_move() {
    strike_everywhere(Blow::Detach);
}

#[test]
fn reset_in_every_stage_of_a_move() {
    strike_everywhere(Blow::Reset);
}

#[test]
fn ram_unmapped_in_every_stage_of_a_move() {
    strike_everywhere(Blow::UnmapRam);
}

#[test]
fn detach_while_ram_is_unmapped_in_every_stage_of_a_move() {
    strike_everywhere(Blow::UnmapThenDetach);
}

#[test]
fn unbind_in_every_stage_of_a_move() {
    strike_everywhere(Blow::UnbindAll);
}

#[test]
fn rebind_in_every_stage_of_a_move() {
    strike_everywhere(Blow::Rebind);
}

#[test]
fn fifo_reset_in_every_stage_of_a_move() {
    strike_everywhere(Blow::ResetFifo);
}

#[test]
fn max_lowered_in_every_stage_of_a_move() {
    strike_everywhere(Blow::LowerMax);
}

#[test]
fn tables_emptied_in_every_stage_of_a_move() {
    strike_everywhere(Blow::FlushAll);
}

#[test]
fn failed_copies_of_the_broker_are_survived() {
    for fails in 1..4 {
        let (mut bench, rig) = crowded();
        // The attacker flushes all the time, so that a sync of the VM being moved waits when the copy fails.
        let flushes = bench.start(ATTACKER, move |bus| {
            for turn in 0..600u64 {
                rig::put64(bus, SMALL_TABLE, (turn % 2) * rig::vram_pte(DATA).into_bits());
                rig::flush(bus, DIRECTORY);
                bus.relax();
            }
            rig
        });
        let honest = bench.start(HONEST, |bus| {
            let mut rig = Rig::start(bus, 20 * MIB);
            rig.open(bus, 0);
            rig
        });
        bench.turn_until("a suspension", |bench| {
            let audit = bench.world.manager.audit().unwrap();
            audit.vms.iter().any(|vm| !vm.suspended.is_empty())
        });
        bench.world.model.faults_mut().failed_copies = fails;
        let honest = bench.join(honest);
        bench.join(flushes);
        // Leftovers would hit the guests' own copies.
        let left = std::mem::take(&mut bench.world.model.faults_mut().failed_copies);
        assert!(left < fails && roll_backs(&bench) >= (fails - left) as usize);
        bench.run(HONEST, |bus| {
            let mut rig = honest;
            assert!(rig.fill(bus, 0, 4, 20 * MIB));
            assert_eq!(rig.verify(bus, 0, 4, 20 * MIB), Ok(()));
        });
        assert!(bench.held_max_ns(HONEST) < HELD_MAX_NS);
        bench.end();
    }
}

#[test]
fn fault_of_a_channel_that_is_gone_harms_no_move() {
    for turns in 0..24 {
        strike(Blow::Fault, turns);
    }
}

#[test]
fn max_above_a_vm_that_cannot_be_suspended_starves_nobody() {
    let (mut bench, rig) = crowded();
    bench.run(ATTACKER, |bus| {
        let mut rig = rig;
        let mut all = Vec::new();
        (0..20).for_each(|_| all.extend(long_copy()));
        rig.submit(bus, 0, &all);
    });
    bench.is_checked = false;
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: ATTACKER, quota });
    honest_gets_memory(&mut bench);
    bench.turn_until("the spill to the new max", |bench| {
        let audit = bench.world.manager.audit().unwrap();
        audit.vms.iter().all(|vm| vm.resident <= vm.quota.max)
    });
    bench.is_checked = true;
    bench.end();
}
