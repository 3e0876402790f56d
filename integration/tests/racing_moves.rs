//! Guests that do nothing wrong while their memory moves: engines that read, a CPU that stores, mappings that change,
//! tables that lie between data. Each test moves the memory by the quota, so that it knows where the memory is.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fermi_model::CopyMicrocode;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::methods::copy;
use fermi_spec::regs::PbusReg;
use guests::GuestBus;
use integration::bench::{Bench, gpu_config, vm_config};
use integration::opener;
use integration::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig};
use integration::watch::World;
use sim_host::bus::SimBus;
use vgpu::{Action, Bus, Event, GpuConfig, Microcode, Notice, Quota, Reply, Request, VmId};

const VM: VmId = VmId(0);
const OTHER: VmId = VmId(1);
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 8 * MIB;

fn held(bench: &Bench, vm: VmId) -> (u64, u64) {
    let audit = bench.world.manager.audit().unwrap();
    let found = audit.vms.iter().find(|audited| audited.vm == vm).unwrap();
    (found.resident, found.spilled)
}

/// Lowers the VM's maximum to nothing until all of its memory is in host RAM.
fn spill_all(bench: &mut Bench) {
    bench.is_checked = false;
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    bench.turn_until("the spill", |bench| held(bench, VM).0 == 0);
    bench.is_checked = true;
    bench.check();
}

/// Lifts the maximum until what channels reach is back.
fn refill_all(bench: &mut Bench) {
    let quota = Quota::default();
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    bench.turn_until("the refill", |bench| held(bench, VM).0 >= DATA_BYTES);
    bench.check();
}

/// A VM with a pattern in its data and one channel.
fn painted() -> (Bench, Rig) {
    painted_with(gpu_config(), 24)
}

/// The same with such a card, and another VM of so many MiB.
fn painted_with(config: GpuConfig, other: u64) -> (Bench, Rig) {
    painted_on(Bench::with(48, config, &[vm_config(24), vm_config(other)]))
}

fn painted_on(mut bench: Bench) -> (Bench, Rig) {
    bench.world.work_between_actions = 2;
    let rig = bench.run(VM, |bus| {
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 5, DATA_BYTES));
        rig
    });
    (bench, rig)
}

/// Maps the data for loads only, or for stores too.
fn map_data(bus: &mut SimBus, read_only: bool) {
    let entries: Vec<u8> = (0..DATA_BYTES >> 17)
        .flat_map(|page| {
            let entry = rig::vram_pte(DATA + (page << 17)).with_read_only(read_only);
            entry.into_bits().to_le_bytes()
        })
        .collect();
    rig::put(bus, LARGE_TABLE, &entries);
    rig::flush(bus, DIRECTORY);
}

/// One word by the CPU through BAR1 without translation.
fn cpu_store(bus: &mut SimBus, at: u64, value: u32) {
    rig::write(bus, PbusReg::Bar1Block, 0);
    bus.write32(Bar::Bar1, DATA + at, value);
}

fn cpu_load(bus: &mut SimBus, at: u64) -> u32 {
    rig::write(bus, PbusReg::Bar1Block, 0);
    bus.read32(Bar::Bar1, DATA + at)
}

/// The first word of each of the data's MiB as an engine sees it.
fn gpu_loads(bus: &mut SimBus, rig: &mut Rig, channel: u8) -> Vec<u32> {
    const INTO: u64 = 6 * MIB;
    let mut words = rig::bind_words(Engine::Copy0).to_vec();
    for mebibyte in 0..DATA_BYTES / MIB {
        let source = DATA_VA + mebibyte * MIB;
        words.extend(rig::copy_words(source, RAM_VA + INTO + mebibyte * 4, 4, 1));
    }
    assert!(rig.execute(bus, channel, &words));
    (0..DATA_BYTES / MIB)
        .map(|mebibyte| bus.ram_read32(INTO + mebibyte * 4))
        .collect()
}

#[test]
fn reader_goes_on_while_its_memory_moves() {
    let (mut bench, rig) = painted();
    let rig = bench.run(VM, |bus| {
        map_data(bus, true);
        rig
    });
    let reader = bench.start(VM, |bus| {
        let mut rig = rig;
        let wanted = gpu_loads(bus, &mut rig, 0);
        for _ in 0..150 {
            assert_eq!(gpu_loads(bus, &mut rig, 0), wanted);
        }
        rig
    });
    for _ in 0..3 {
        spill_all(&mut bench);
        refill_all(&mut bench);
    }
    assert!(!bench.has_ended(VM), "it read all the time");
    let suspended = bench.count_notices(|notice| {
        matches!(
            notice,
            vgpu::Notice::Moved {
                pause_ns: Some(_),
                ..
            }
        )
    });
    assert_eq!(suspended, 0, "who only reads is not stopped");
    let rig = bench.join(reader);
    bench.run(VM, |bus| {
        let mut rig = rig;
        assert_eq!(rig.verify(bus, 0, 5, DATA_BYTES), Ok(()));
    });
    bench.end();
}

/// Where the CPU stores at that turn: an odd stride, so that every chunk comes again and again.
fn place(turn: u32) -> u64 {
    (u64::from(turn) * 0x2_0f84 % DATA_BYTES) & !3
}

#[test]
fn stores_of_the_cpu_during_moves_are_kept() {
    let (mut bench, rig) = painted();
    let stores = bench.start(VM, |bus| {
        for turn in 0..6_000u32 {
            let at = place(turn);
            cpu_store(bus, at, turn | 0x4000_0000);
            assert_eq!(cpu_load(bus, at), turn | 0x4000_0000, "at {at:#x}");
        }
        let places: std::collections::BTreeMap<u64, u32> = (0..6_000u32)
            .map(|turn| (place(turn), turn | 0x4000_0000))
            .collect();
        for (at, value) in places {
            assert_eq!(cpu_load(bus, at), value, "at {at:#x} in the end");
        }
    });
    for _ in 0..4 {
        spill_all(&mut bench);
        refill_all(&mut bench);
    }
    assert!(!bench.has_ended(VM), "it stored all the time");
    bench.join(stores);
    drop(rig);
    bench.end();
}

#[test]
fn store_of_the_cpu_after_a_refill_survives_the_next_spill() {
    let (mut bench, rig) = painted();
    bench.run(VM, |bus| map_data(bus, true));
    spill_all(&mut bench);
    // Nothing can write the chunks: they are in both places now.
    refill_all(&mut bench);
    bench.run(VM, |bus| {
        for mebibyte in 0..DATA_BYTES / MIB {
            cpu_store(bus, mebibyte * MIB, 0x600d_0000 + mebibyte as u32);
        }
    });
    spill_all(&mut bench);
    let wanted: Vec<u32> = (0..8).map(|mebibyte| 0x600d_0000 + mebibyte).collect();
    let (by_cpu, by_gpu) = bench.run(VM, |bus| {
        let mut rig = rig;
        let by_cpu: Vec<u32> = (0..8).map(|mebibyte| cpu_load(bus, mebibyte * MIB)).collect();
        (by_cpu, gpu_loads(bus, &mut rig, 0))
    });
    assert_eq!((by_cpu, by_gpu), (wanted.clone(), wanted));
    bench.end();
}

#[test]
fn store_of_an_engine_through_a_new_mapping_survives_the_next_spill() {
    let (mut bench, rig) = painted();
    bench.run(VM, |bus| map_data(bus, true));
    spill_all(&mut bench);
    refill_all(&mut bench);
    let rig = bench.run(VM, |bus| {
        let mut rig = rig;
        map_data(bus, false);
        assert!(rig.fill(bus, 0, 6, DATA_BYTES));
        rig
    });
    spill_all(&mut bench);
    bench.run(VM, |bus| {
        let mut rig = rig;
        assert_eq!(rig.verify(bus, 0, 6, DATA_BYTES), Ok(()));
    });
    bench.end();
}

#[test]
fn instance_pages_between_data_keep_their_bytes() {
    let mut bench = Bench::new(48, &[24]);
    // Pages that the CPU touches first, through PRAMIN, in the middle of what becomes data.
    const PAGES: [u64; 3] = [0x3000, 0x2_0000, 3 * MIB + 0x5000];
    let rig = bench.run(VM, |bus| {
        for page in PAGES {
            rig::put(bus, DATA + page, &[0x5a; 4096]);
        }
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        // The engines write around them.
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        bus.ram_write(8 * MIB, &[0xc3; 4096]);
        for page in PAGES {
            words.extend(rig::copy_words(
                RAM_VA + 8 * MIB,
                DATA_VA + page + 0x1000,
                4096,
                1,
            ));
        }
        assert!(rig.execute(bus, 0, &words));
        rig
    });
    for turn in 0..3u32 {
        // While the chunk is in VRAM, its image's copy of the page is the only one.
        bench.run(VM, move |bus| {
            for page in PAGES {
                rig::put32(bus, DATA + page + 0x10, turn);
            }
        });
        spill_all(&mut bench);
        refill_all(&mut bench);
        bench.run(VM, move |bus| {
            for page in PAGES {
                let seen = [0, 0x10, 0xffc, 0x1000].map(|at| rig::get32(bus, DATA + page + at));
                assert_eq!(
                    seen,
                    [0x5a5a_5a5a, turn, 0x5a5a_5a5a, 0xc3c3_c3c3],
                    "page {page:#x}"
                );
            }
        });
    }
    bench.run(VM, |bus| {
        let mut rig = rig;
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(DATA_VA + PAGES[0] + 0x10, RAM_VA + 7 * MIB, 4, 1));
        assert!(rig.execute(bus, 0, &words));
        assert_eq!(
            bus.ram_read32(7 * MIB),
            2,
            "the engines see what the CPU wrote last"
        );
    });
    bench.end();
}

#[test]
fn tables_of_a_space_that_went_are_not_the_next_ones() {
    let (mut bench, rig) = painted();
    // Both VMs use the same addresses, and the second gets what the first gives back.
    for turn in 0..6u64 {
        bench.run(OTHER, move |bus| {
            let mut rig = Rig::start(bus, DATA_BYTES);
            rig.open(bus, 0);
            assert!(rig.fill(bus, 0, 100 + turn, DATA_BYTES));
            assert_eq!(rig.verify(bus, 0, 100 + turn, DATA_BYTES), Ok(()));
            rig.unbind(bus, 0);
        });
        bench.run(VM, |bus| {
            let mut rig = Rig::start(bus, DATA_BYTES);
            rig.open(bus, 0);
            assert_eq!(rig.verify(bus, 0, 5, DATA_BYTES), Ok(()));
            rig.unbind(bus, 0);
        });
    }
    drop(rig);
    bench.end();
}

/// As behind an IOMMU: images are mapped by chunk.
fn pinning() -> GpuConfig {
    GpuConfig {
        bus: Bus {
            pins: true,
            ..Bus::default()
        },
        ..gpu_config()
    }
}

fn verify(bench: &mut Bench, rig: Rig) -> Rig {
    bench.run(VM, |bus| {
        let mut rig = rig;
        assert_eq!(rig.verify(bus, 0, 5, DATA_BYTES), Ok(()));
        rig
    })
}

#[test]
fn pinned_maps_follow_what_is_in_host_ram() {
    let (mut bench, mut rig) = painted_with(pinning(), 24);
    let before = bench.world.dma_maps();
    for _ in 0..2 {
        spill_all(&mut bench);
        let (_, spilled) = held(&bench, VM);
        // Chunks of 2 MiB; one with instance memory may have been mapped before.
        let chunks = (spilled / (2 * MIB)) as usize;
        let maps = bench.world.dma_maps() - before;
        assert!(
            maps <= chunks && maps >= chunks - 2,
            "{maps} maps for {chunks} chunks"
        );
        rig = verify(&mut bench, rig);
        refill_all(&mut bench);
        assert!(
            bench.world.dma_maps() <= before + 1,
            "{} maps",
            bench.world.dma_maps()
        );
        rig = verify(&mut bench, rig);
    }
    drop(rig);
    bench.end();
}

#[test]
fn refused_map_leaves_the_chunk_in_vram_and_the_next_try_moves_it() {
    let (mut bench, rig) = painted_with(pinning(), 24);
    let rolled_back =
        |bench: &Bench| bench.count_notices(|notice| matches!(notice, Notice::RolledBack { vm: VM, .. }));
    let (before, resident) = (rolled_back(&bench), held(&bench, VM).0);
    bench.world.refuse_maps = 1;
    bench.is_checked = false;
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    bench.turn_until("three tries", |bench| rolled_back(bench) >= before + 3);
    let (kept, _) = held(&bench, VM);
    assert!(
        kept >= resident - 2 * MIB && kept >= DATA_BYTES,
        "{kept} of {resident} bytes are left"
    );
    let rig = verify(&mut bench, rig);
    bench.world.refuse_maps = 0;
    bench.turn_until("the spill", |bench| held(bench, VM).0 == 0);
    bench.is_checked = true;
    drop(verify(&mut bench, rig));
    bench.end();
}

#[test]
fn old_copies_given_back_under_pinned_maps_lose_nothing() {
    // Both VMs would fit the card, so nothing has to be set aside for old copies.
    let config = GpuConfig {
        host_ram: 0,
        ..pinning()
    };
    let (mut bench, mut rig) = painted_with(config, 14);
    let dropped = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&dropped);
    bench.world.on_event = Box::new(move |_, _, actions| {
        let drops = actions
            .iter()
            .filter(|action| matches!(action, Action::DropImage { .. }));
        count.fetch_add(drops.count(), Ordering::Relaxed);
    });
    for _ in 0..3 {
        spill_all(&mut bench);
        rig = verify(&mut bench, rig);
        refill_all(&mut bench);
        rig = verify(&mut bench, rig);
    }
    assert!(dropped.load(Ordering::Relaxed) > 0, "no old copy was given back");
    drop(rig);
    bench.end();
}

#[test]
fn memory_moves_through_a_bar_window_too() {
    for pins in [false, true] {
        let config = GpuConfig {
            copies_by_window: true,
            ..if pins { pinning() } else { gpu_config() }
        };
        let (mut bench, mut rig) = painted_with(config, 24);
        for _ in 0..2 {
            spill_all(&mut bench);
            rig = verify(&mut bench, rig);
            refill_all(&mut bench);
            rig = verify(&mut bench, rig);
        }
        drop(rig);
        bench.end();
    }
}

#[test]
fn stores_of_the_cpu_during_moves_through_a_window_are_kept() {
    let config = GpuConfig {
        copies_by_window: true,
        ..gpu_config()
    };
    let (mut bench, rig) = painted_with(config, 24);
    let stores = bench.start(VM, |bus| {
        for turn in 0..2_000u32 {
            let at = place(turn);
            cpu_store(bus, at, turn | 0x4000_0000);
            assert_eq!(cpu_load(bus, at), turn | 0x4000_0000, "at {at:#x}");
        }
    });
    for _ in 0..3 {
        spill_all(&mut bench);
        refill_all(&mut bench);
    }
    bench.join(stores);
    drop(rig);
    bench.end();
}

#[test]
fn card_without_microcode_is_noticed_and_its_memory_is_moved_by_the_cpu() {
    for (microcode, expected) in [(CopyMicrocode::Required, 1), (CopyMicrocode::Uploaded, 0)] {
        let world = World::with_microcode(48 * MIB, gpu_config(), microcode);
        let mut bench = Bench::on(world, &[vm_config(24)]);
        let noticed = bench.count_notices(|notice| *notice == Notice::CopiesByWindow);
        assert_eq!(noticed, expected, "{microcode:?}");
        bench.run(VM, |bus| {
            for turn in 0..500 {
                cpu_store(bus, place(turn), turn | 0x4000_0000);
            }
        });
        let (resident, _) = held(&bench, VM);
        assert!(resident >= DATA_BYTES, "{resident}");
        spill_all(&mut bench);
        bench.run(VM, |bus| {
            for turn in 0..500 {
                assert_eq!(cpu_load(bus, place(turn)), turn | 0x4000_0000);
            }
        });
        bench.end();
    }
}

/// Something that a card takes for nouveau's microcode: any code, and data with its table of methods.
fn microcode() -> Microcode {
    let mut data = vec![0u32; copy::TABLE_WORD];
    for entry in copy::TABLE_ENTRIES {
        data.push(entry);
        data.resize(data.len() + 2 * (entry >> 16) as usize, 0);
    }
    data.push(copy::TABLE_END);
    let data: Vec<u8> = data.into_iter().flat_map(u32::to_le_bytes).collect();
    Microcode::new(&[0x55; 0x600], &data).unwrap()
}

#[test]
fn card_that_is_given_microcode_copies_by_its_engines() {
    let config = GpuConfig {
        microcode: Some([microcode(), microcode()]),
        ..gpu_config()
    };
    let world = World::with_microcode(48 * MIB, config, CopyMicrocode::Required);
    // Guests' copies run too.
    let (mut bench, mut rig) = painted_on(Bench::on(world, &[vm_config(24), vm_config(24)]));
    assert_eq!(bench.count_notices(|notice| *notice == Notice::CopiesByWindow), 0);
    spill_all(&mut bench);
    rig = verify(&mut bench, rig);
    refill_all(&mut bench);
    drop(verify(&mut bench, rig));
    bench.end();
}

// The channel is bound when the flush of its tables is done. Its chunks, which start in host RAM, are on their way to VRAM
// by then, and nobody knew of a channel that could write them.
#[test]
fn channel_bound_while_its_memory_begins_to_move_loses_no_store() {
    let config = GpuConfig {
        frames_arrive_zeroed: false,
        ..gpu_config()
    };
    let (mut bench, rig) = painted_with(config, 24);
    let moved = |notice: &Notice| matches!(notice, Notice::Moved { vm: VM, .. });
    assert!(bench.count_notices(moved) > 0, "nothing moved");
    verify(&mut bench, rig);
    bench.end();
}

#[test]
fn ram_that_is_mapped_again_is_reached_by_entries_that_did_not_change() {
    let (mut bench, mut rig) = painted();
    let (gpa, bytes) = (fermi_spec::addr::Gpa(0), integration::bench::RAM_BYTES);
    assert_eq!(bench.call(VM, Request::UnmapRam { gpa, bytes }), Reply::Done);
    let map = Request::MapRam {
        gpa,
        bytes,
        writable: true,
    };
    assert_eq!(bench.call(VM, map), Reply::Done);
    assert!(bench.run(VM, move |bus| rig.copies(bus, 0)));
    bench.end();
}

#[test]
fn max_that_min_forbids_keeps_nobody_else_from_obeying() {
    let (mut bench, _rig) = painted();
    bench.run(OTHER, |bus| {
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 6, DATA_BYTES));
    });
    let limits = |min, max| Quota {
        min,
        max,
        ..Quota::default()
    };
    // Eight MiB in chunks of two: one less would break the promise.
    let quota = limits(7 * MIB, 15 * MIB / 2);
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    let quota = limits(0, 2 * MIB);
    bench.world.submit(Event::SetQuota { vm: OTHER, quota });
    bench.turn_until("the spill", |bench| held(bench, OTHER).0 <= 2 * MIB);
    assert_eq!(held(&bench, VM).0, DATA_BYTES);
    bench.turn_until("rest", |bench| bench.world.manager.under_way().is_empty());
    let wakes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&wakes);
    bench.world.on_event = Box::new(move |_, event, _| {
        if matches!(event, Event::Wake) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    bench.pass(100_000_000);
    assert!(
        wakes.load(Ordering::Relaxed) < 10,
        "nothing is to be done at once"
    );
    bench.end();
}

#[test]
fn channel_that_is_opened_during_a_move_stores_to_the_right_place() {
    opener::channels_opened_during_moves().unwrap_or_else(|violation| panic!("{}", violation.0));
}
