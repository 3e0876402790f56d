//! The thirteen things that GPUvm left unsafe or broken (Suzuki et al., USENIX ATC '14, read from its sources), each
//! tried by a guest while another guest has a pattern in its VRAM that must survive.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::addr::{Aperture, FRAME, GpuVa, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{CHANNELS, offset};
use fermi_spec::methods::host;
use fermi_spec::pte::{LARGE_PT_ENTRIES, Pde, PdeAperture, Pte, large_index, pde_index, small_index};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::pfifo::{ChannelInstance, RUNLIST_DONE, RUNLIST_PENDING};
use fermi_spec::regs::{
    Bar0Reg, PRAMIN_BASE, PRAMIN_BYTES, PbusReg, PeepholeReg, PffbReg, PfifoReg, PflushReg, PmcReg, PpciReg,
    PtimerReg, PunitsReg, pfifo,
};
use guests::GuestBus;
use guests::driver::CopyPath;
use integration::bench::{Bench, RAM_BYTES, gpu_config, vm_config};
use integration::canary::Canary;
use integration::rig::{self, DATA, DATA_VA, DIRECTORY, RAM_VA, RUNLIST, Rig, SMALL_TABLE};
use integration::watch::World;
use sim_host::bus::SimBus;
use vgpu::{FrameOwner, Notice, Reply, Request, VmId};

const VICTIM: VmId = VmId(0);
const ATTACKER: VmId = VmId(1);
const MIB: u64 = 1 << 20;
/// Guest VRAM of both.
const GUEST_VRAM: u64 = 32;

/// A victim with its pattern planted, an attacker with nothing done yet.
struct Scene {
    bench: Bench,
    canary: Canary,
}

impl Scene {
    fn new() -> Self {
        let mut bench = Bench::new(64, &[GUEST_VRAM, GUEST_VRAM]);
        let canary = bench.run(VICTIM, |bus| Canary::plant(bus, 12 * MIB, 7)).unwrap();
        Self { bench, canary }
    }

    fn attack<T: 'static>(&mut self, code: impl FnOnce(&mut SimBus) -> T + 'static) -> T {
        self.bench.run(ATTACKER, code)
    }

    /// The victim finds every byte as it was and can go on; nothing is left of anybody afterwards.
    fn end(mut self) {
        let mut canary = self.canary;
        self.bench
            .run(VICTIM, move |bus| {
                canary.check(bus, CopyPath::M2mf)?;
                canary.check(bus, CopyPath::Copy1)
            })
            .unwrap();
        assert!(self.bench.held_max_ns(VICTIM) < 200_000_000);
        self.bench.end();
    }
}

/// A register of the card itself.
fn card(world: &mut World, reg: impl Into<Bar0Reg>) -> u32 {
    let mut word = [0; 4];
    world
        .model
        .bar_read(Bar::Bar0, reg.into().offset().into(), &mut word);
    u32::from_le_bytes(word)
}

/// The card's channels other than the broker's own, with their instance blocks as the card has them.
fn bound_channels(world: &mut World) -> Vec<(u8, Vec<u8>)> {
    (1..CHANNELS as u8)
        .filter_map(|p| {
            let entry = ChannelInstance::from_bits(card(world, PfifoReg::ChannelInstance(p.into())));
            entry.valid().then(|| {
                assert_eq!(entry.aperture(), Aperture::Vram);
                let mut block = vec![0; 0x1000];
                world.read_arena(VramAddr(entry.instance().0), &mut block);
                (p, block)
            })
        })
        .collect()
}

fn word(block: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(block[at as usize..at as usize + 4].try_into().unwrap())
}

/// Shadow entries of the attacker's only space for an address: the small entry and the large one.
fn shadow_entries(world: &World, va: u64) -> (Pte, Pte) {
    let audit = world.manager.audit().unwrap();
    let vm = audit.vms.iter().find(|vm| vm.vm == ATTACKER).unwrap();
    let [directory] = vm.directories[..] else {
        panic!("{} spaces", vm.directories.len())
    };
    let entry = |at: u64| {
        let mut bytes = [0; 8];
        world.read_arena(VramAddr(at), &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let pde = Pde::from_bits(entry(directory.0 + pde_index(GpuVa(va)) as u64 * 8));
    let of = |table: Option<(Aperture, fermi_spec::addr::PhysAddr)>, index: usize| {
        table.map_or(Pte::new(), |(_, at)| {
            Pte::from_bits(entry(at.0 + index as u64 * 8))
        })
    };
    (
        of(pde.small_table(), small_index(GpuVa(va))),
        of(pde.large_table(), large_index(GpuVa(va))),
    )
}

// Flaw 1.
#[test]
fn pramin_in_host_memory_reads_all_ones() {
    let mut scene = Scene::new();
    let seen = scene.attack(|bus| {
        bus.ram_write(0, &[0x11; 4096]);
        let mut seen = Vec::new();
        // Peer, both kinds of system memory, the first byte behind VRAM, the last MiB of the card's VRAM and beyond.
        for base in [
            1 << 24,
            2 << 24,
            3 << 24,
            (GUEST_VRAM as u32) << 4,
            64 << 4,
            0x00ff_ffff,
        ] {
            rig::write(bus, PbusReg::PraminBase, base);
            bus.write32(Bar::Bar0, PRAMIN_BASE.into(), 0x2222_2222);
            seen.push(bus.read32(Bar::Bar0, PRAMIN_BASE.into()));
        }
        let mut ram = [0; 4096];
        bus.ram_read(0, &mut ram);
        assert_eq!(ram, [0x11; 4096]);
        // The window's end reaches beyond VRAM though its start does not.
        rig::write(bus, PbusReg::PraminBase, ((GUEST_VRAM as u32) << 4) - 1);
        seen.push(bus.read32(Bar::Bar0, u64::from(PRAMIN_BASE) + 0x1_0000));
        seen
    });
    assert_eq!(seen, [!0; 7]);
    scene.end();
}

// Flaw 2.
#[test]
fn instance_target_bits_do_not_reach_host_memory() {
    let mut scene = Scene::new();
    let writes = scene.bench.record_host_writes();
    let (entry, ran) = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        rig.write_instance(bus, 3, DIRECTORY);
        // The good block lies in guest RAM, at the address where VRAM has zeros.
        const BLOCK: u64 = 0x60_0000;
        let bytes: Vec<u8> = (0..0x1000 / 4)
            .flat_map(|i| rig::get32(bus, Rig::instance(3) + i * 4).to_le_bytes())
            .collect();
        bus.ram_write(BLOCK, &bytes);
        let mut entry = 0;
        for target in [2u32, 3, 1] {
            rig::write(
                bus,
                PfifoReg::ChannelInstance(3),
                0xc000_0000 | target << 28 | (BLOCK >> 12) as u32,
            );
            rig::write(bus, PfifoReg::ChannelState(3), pfifo::CHANNEL_START);
            entry |= rig::read(bus, PfifoReg::ChannelInstance(3));
            for falcon in [0x40_9500, 0x10_4050, 0x10_4054, 0x10_5050, 0x10_5054] {
                bus.write32(
                    Bar::Bar0,
                    falcon,
                    0xc000_0000 | target << 28 | (BLOCK >> 12) as u32,
                );
            }
            rig.commit(bus, &[3]);
            let sequence = rig.submit_with_release(bus, 3, &[]);
            assert!(!rig.wait_turns(bus, 3, sequence, 500));
            rig.unbind(bus, 3);
        }
        // In VRAM it would have run.
        rig.open(bus, 3);
        (entry, rig.execute(bus, 3, &[]))
    });
    assert_eq!(ChannelInstance::from_bits(entry).aperture(), Aperture::Vram);
    assert!(ran);
    let writes = writes.lock().unwrap();
    let falcons = writes.iter().find(|(at, _)| {
        (0x40_9000..0x40_a000).contains(at) || matches!(at & 0xfff, 0x50 | 0x54) && at >> 16 == 0x10
    });
    assert_eq!(falcons, None);
    drop(writes);
    scene.end();
}

// Flaw 3.
#[test]
fn ramfc_userd_pointer_is_not_the_guests() {
    let mut scene = Scene::new();
    let first = {
        let own = ChannelInstance::from_bits(card(&mut scene.bench.world, PfifoReg::ChannelInstance(0)));
        let mut block = vec![0; 0x1000];
        scene
            .bench
            .world
            .read_arena(VramAddr(own.instance().0), &mut block);
        word(&block, offset::USERD_LO)
    };
    let channels = 6;
    let ram = scene.attack(move |bus| {
        let mut rig = Rig::start(bus, MIB);
        bus.ram_write(0x70_0000, &[0x33; 4096]);
        // Guest RAM, the broker's own USERD, its neighbours, far away, nowhere.
        let pointers = [0x70_0002, first, first + 0x1000, 0xffff_f003, 0x40_0000, 0];
        for (channel, pointer) in (0..).zip(pointers) {
            rig.write_instance(bus, channel, DIRECTORY);
            let block = Rig::instance(channel);
            rig::put32(bus, block + offset::USERD_LO, pointer);
            rig::put32(bus, block + offset::USERD_HI, if pointer == 0 { 0xff } else { 0 });
            rig::put32(bus, block + 0x64, 0xdead_0000);
            rig::put32(bus, block + 0x68, 0xdead_0000);
            rig.bind(bus, channel);
        }
        rig.commit(bus, &[0, 1, 2, 3, 4, 5]);
        for channel in 0..channels {
            assert!(rig.execute(bus, channel, &[]), "channel {channel}");
        }
        let mut ram = vec![0; 4096];
        bus.ram_read(0x70_0000, &mut ram);
        ram
    });
    assert_eq!(ram, vec![0x33; 4096]);
    for (p, block) in bound_channels(&mut scene.bench.world) {
        assert_eq!(word(&block, offset::USERD_LO), first + u32::from(p) * 0x1000);
        assert_eq!(
            (
                word(&block, offset::USERD_HI),
                word(&block, 0x64),
                word(&block, 0x68)
            ),
            (0, 0, 0)
        );
    }
    scene.end();
}

// Flaw 4.
#[test]
fn instance_write_after_bind_does_not_reach_the_shadow() {
    let mut scene = Scene::new();
    let rig = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        rig.open(bus, 0);
        assert!(rig.copies(bus, 0));
        rig
    });
    let guarded: Vec<u64> = (offset::USERD_LO..offset::SIGNATURE)
        .chain(offset::PD_LO..offset::ENGINE_CONTEXTS)
        .step_by(4)
        .collect();
    let look = |scene: &mut Scene| -> Vec<u32> {
        bound_channels(&mut scene.bench.world)
            .iter()
            .flat_map(|(_, block)| guarded.iter().map(|&at| word(block, at)).collect::<Vec<_>>())
            .collect()
    };
    let before = look(&mut scene);
    let victims = bound_channels(&mut scene.bench.world);
    let directory = word(&victims[0].1, offset::PD_LO);
    scene.attack(move |bus| {
        let mut rig = rig;
        let block = Rig::instance(0);
        for value in [directory, directory | 3, 0, !0] {
            for at in [
                offset::PD_LO,
                offset::PD_HI,
                offset::LIMIT_LO,
                offset::USERD_LO,
                offset::USERD_HI,
            ] {
                rig::put32(bus, block + at, value);
            }
            rig::write(bus, PfifoReg::ChannelState(0), pfifo::CHANNEL_START);
            rig::flush(bus, DIRECTORY);
            rig.commit(bus, &[0]);
            assert!(rig.copies(bus, 0));
        }
    });
    assert_eq!(look(&mut scene), before);
    scene.end();
}

// Flaw 5.
#[test]
fn pde_aperture_3_is_not_vram() {
    let mut scene = Scene::new();
    let seen = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        const TABLE: u64 = 0x80_0000;
        // The table in RAM names a page with 1s, the one at the same address in VRAM a page with 2s.
        bus.ram_write(0x60_0000, &[1; 4096]);
        bus.ram_write(0x61_0000, &[2; 4096]);
        bus.ram_write(TABLE, &rig::ram_pte(0x60_0000).into_bits().to_le_bytes());
        rig::put64(bus, TABLE, rig::ram_pte(0x61_0000).into_bits());
        let apertures = [
            PdeAperture::SysCoherent,
            PdeAperture::SysNonCoherent,
            PdeAperture::Vram,
        ];
        for (pde, aperture) in (2..).zip(apertures) {
            let entry = Pde::new()
                .with_small_aperture(aperture)
                .with_small_frame((TABLE >> 12) as u32);
            rig::put64(bus, DIRECTORY + pde * 8, entry.into_bits());
        }
        rig.open(bus, 0);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        for pde in 2..5u64 {
            words.extend(rig::copy_words(pde << 27, RAM_VA + 0x50_0000 + pde * 4, 4, 1));
        }
        assert!(rig.execute(bus, 0, &words));
        [2, 3, 4].map(|pde| bus.ram_read32(0x50_0000 + pde * 4))
    });
    assert_eq!(seen, [0x0101_0101, 0x0101_0101, 0x0202_0202]);
    scene.end();
}

// Flaw 6.
#[test]
fn pte_peer_kind_comptag_sysmem_ownership() {
    let mut scene = Scene::new();
    let vram_end = GUEST_VRAM << 20;
    let refused = [
        rig::vram_pte(DATA).with_aperture(Aperture::Peer),
        rig::vram_pte(DATA).with_kind(0xff),
        rig::vram_pte(DATA).with_kind(0x0b),
        rig::vram_pte(vram_end),
        rig::vram_pte(48 * MIB),
        rig::vram_pte((1 << 40) - 0x1000),
        rig::ram_pte(RAM_BYTES),
        rig::ram_pte((1 << 40) - 0x1000),
        // Where bus addresses of the broker and of VMs start.
        rig::ram_pte(0x1_0000_0000),
        rig::ram_pte(0x1_0020_0000),
        rig::ram_pte(0x1_0020_0000 + RAM_BYTES),
    ];
    let compressed = rig::vram_pte(DATA).with_kind(0xdb).with_comptag(0x1234);
    let (read_back, faults) = scene.attack(move |bus| {
        let mut rig = Rig::start(bus, MIB);
        for (page, entry) in (0..).zip(refused) {
            rig::put64(bus, SMALL_TABLE + page * 8, entry.into_bits());
        }
        rig::put64(bus, SMALL_TABLE + 100 * 8, compressed.into_bits());
        rig.open(bus, 0);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(100 << 12, RAM_VA + 0x50_0000, 4096, 1));
        let read_back = rig.execute(bus, 0, &words);
        let mut faults = 0;
        for page in 0..refused.len() as u64 {
            // A channel that faulted is dead: another for each.
            let channel = 1 + page as u8;
            rig.open(bus, channel);
            let mut words = rig::bind_words(Engine::Copy0).to_vec();
            words.extend(rig::copy_words(page << 12, RAM_VA + 0x50_0000, 64, 1));
            assert!(!{
                let sequence = rig.submit_with_release(bus, channel, &words);
                rig.wait_turns(bus, channel, sequence, 300)
            });
            faults += u32::from(rig::read(bus, PfifoReg::FaultUnits) != 0);
            rig::acknowledge(bus);
        }
        (read_back, faults)
    });
    assert!(read_back, "a compressed kind is readable without its compression");
    assert_eq!(faults, refused.len() as u32);
    for page in 0..refused.len() as u64 {
        let (small, large) = shadow_entries(&scene.bench.world, page << 12);
        assert!(
            !small.valid() && !large.valid(),
            "entry {page}: {small:?} {large:?}"
        );
    }
    let (small, _) = shadow_entries(&scene.bench.world, 100 << 12);
    assert_eq!((small.valid(), small.kind(), small.comptag()), (true, 0xfe, 0));
    scene.end();
}

// Flaw 7.
#[test]
fn unknown_instance_at_copy_engine_or_fecs_is_not_forwarded() {
    let mut scene = Scene::new();
    let victims: Vec<u32> = (1..CHANNELS as u16)
        .map(|p| card(&mut scene.bench.world, PfifoReg::ChannelInstance(p)))
        .filter(|entry| ChannelInstance::from_bits(*entry).valid())
        .collect();
    assert!(!victims.is_empty());
    let writes = scene.bench.record_host_writes();
    let values = victims.clone();
    scene.attack(move |bus| {
        for value in values.into_iter().chain([0x8000_1234, 0xffff_ffff]) {
            for at in [
                0x10_4050, 0x10_4054, 0x10_5050, 0x10_5054, 0x40_9500, 0x40_9b00, 0x00_1718,
            ] {
                bus.write32(Bar::Bar0, at, value);
            }
            // FECS commands: bind, save, load.
            for command in [1, 2, 3, 9, 0x10, 0x21] {
                bus.write32(Bar::Bar0, 0x40_9504, command);
            }
        }
    });
    assert_eq!(*writes.lock().unwrap(), []);
    scene.end();
}

/// Ids on the card's runlist.
fn host_runlist(world: &mut World) -> Vec<u32> {
    let base = card(world, PfifoReg::RunlistCurrent);
    let count = card(world, PfifoReg::RunlistStatus) & 0xfff;
    let mut list = vec![0; count as usize * 8];
    world.read_arena(VramAddr(u64::from(base & 0x0fff_ffff) << 12), &mut list);
    list.chunks_exact(8).map(|entry| word(entry, 0)).collect()
}

// Flaw 8.
#[test]
fn runlist_with_foreign_or_huge_ids() {
    let mut scene = Scene::new();
    let before = host_runlist(&mut scene.bench.world);
    assert_eq!(before.len(), 3, "the broker's and the victim's two");
    scene.attack(|bus| {
        Rig::start(bus, MIB);
        let ids = (0..256).chain([0x1_0000, !0, !0 << 7, 1 << 31]);
        let entries: Vec<u8> = ids
            .flat_map(|id: u32| [id.to_le_bytes(), 4u32.to_le_bytes()].concat())
            .collect();
        rig::put(bus, RUNLIST, &entries);
        let end = ((GUEST_VRAM << 20) - 0x1000) >> 12;
        // In VRAM; at its end and beyond; peer; in RAM and beyond.
        let bases = [
            RUNLIST >> 12,
            end,
            end + 1,
            0x1000_0000 | 5,
            0x2000_0000,
            0x2fff_ffff,
            0x3fff_ffff,
        ];
        for base in bases {
            for count in [1u32, 3, 255, 256, 260, 0x200, 0xfff] {
                rig::write(bus, PfifoReg::RunlistBase, base as u32);
                rig::write(bus, PfifoReg::RunlistCommit, count | 0x1f << 20);
                for _ in 0..50 {
                    if rig::read(bus, PfifoReg::RunlistStatus) & RUNLIST_PENDING == 0 {
                        break;
                    }
                    bus.relax();
                }
                assert_eq!(rig::read(bus, PfifoReg::RunlistStatus) & RUNLIST_PENDING, 0);
            }
        }
    });
    assert_eq!(host_runlist(&mut scene.bench.world), before);
    scene.end();
}

// Flaw 8, second half.
#[test]
fn runlist_count_zero_completes() {
    let mut scene = Scene::new();
    let before = host_runlist(&mut scene.bench.world).len();
    let (off, on) = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        rig.open(bus, 0);
        assert!(rig.execute(bus, 0, &[]));
        rig::write(bus, PfifoReg::RunlistIntr, !0);
        rig.commit(bus, &[]);
        let mut turns = 0;
        while rig::read(bus, PfifoReg::RunlistStatus) & RUNLIST_PENDING != 0 {
            turns += 1;
            assert!(turns < 100);
            bus.relax();
        }
        assert_eq!(rig::read(bus, PfifoReg::RunlistIntr), RUNLIST_DONE);
        let sequence = rig.submit_with_release(bus, 0, &[]);
        let off = rig.wait_turns(bus, 0, sequence, 500);
        rig.commit(bus, &[0]);
        (off, rig.wait(bus, 0, sequence))
    });
    assert_eq!((off, on), (false, true));
    assert_eq!(host_runlist(&mut scene.bench.world).len(), before + 1);
    scene.end();
}

// Flaw 9.
#[test]
fn waits_are_bounded() {
    let mut scene = Scene::new();
    scene.bench.world.model.faults_mut().refused_preempts = 40;
    scene.bench.world.model.faults_mut().runlist_delay_ns = 1_000_000;
    let attack = scene.bench.start(ATTACKER, |bus| {
        let mut rig = Rig::start(bus, 16 * MIB);
        rig.open(bus, 0);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(DATA_VA, DATA_VA + 8 * MIB, 0x8000, 256));
        for round in 0..60 {
            let sequence = rig.submit_with_release(bus, 0, &words);
            rig::write(bus, PfifoReg::Preempt, 0);
            rig::flush(bus, DIRECTORY);
            rig::write(bus, PflushReg::HostFlush, 1);
            rig.commit(bus, &[0]);
            rig::write(bus, PfifoReg::Preempt, round % 128);
            rig.wait_turns(bus, 0, sequence, 200);
        }
    });
    let mut canary = scene.canary;
    let check = scene.bench.start(VICTIM, move |bus| {
        for path in CopyPath::ALL {
            canary.check(bus, path)?;
        }
        Ok::<_, String>(canary)
    });
    scene.bench.join(attack);
    scene.canary = scene.bench.join(check).unwrap();
    assert!(scene.bench.held_max_ns(ATTACKER) < 200_000_000);
    scene.bench.world.model.faults_mut().runlist_delay_ns = 0;
    scene.end();
}

/// Registers in BAR0 that the broker itself writes while it works: windows, flushes, channels, acknowledgements.
fn is_the_brokers(at: u64) -> bool {
    let named = Bar0Reg::decode(at as u32);
    (u64::from(PRAMIN_BASE)..u64::from(PRAMIN_BASE + PRAMIN_BYTES)).contains(&at)
        || matches!(
            named,
            Some(
                Bar0Reg::Pbus(PbusReg::PraminBase)
                    | Bar0Reg::Pflush(PflushReg::HostFlush)
                    | Bar0Reg::Pffb(PffbReg::TlbDirectory)
                    | Bar0Reg::Pffb(PffbReg::TlbInvalidate)
                    | Bar0Reg::Pfifo(PfifoReg::RunlistBase)
                    | Bar0Reg::Pfifo(PfifoReg::RunlistCommit)
                    | Bar0Reg::Pfifo(PfifoReg::Preempt)
                    | Bar0Reg::Pfifo(PfifoReg::ChannelInstance(_))
                    | Bar0Reg::Pfifo(PfifoReg::ChannelState(_))
                    | Bar0Reg::Ppci(PpciReg::PciMsiRearm)
                    | Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0))
                    | Bar0Reg::Pfifo(PfifoReg::RunlistIntr)
                    | Bar0Reg::Pfifo(PfifoReg::EngineIntr(_))
            )
        )
}

/// The attacker's store to a register, answered.
fn store_and_wait(world: &mut World, offset: u64, value: u32) {
    let store = Request::Write {
        bar: Bar::Bar0,
        offset,
        data: value.to_le_bytes().to_vec(),
    };
    let request = world.ask(ATTACKER, store);
    while world.take_reply(ATTACKER, request).is_none() {
        world.step(64);
        world.now.0 += 1_000;
        world.look();
    }
}

// Flaw 10.
#[test]
fn raw_registers_do_not_reach_the_card() {
    let mut scene = Scene::new();
    let world = &mut scene.bench.world;
    // Time goes on, the broker's own window and runlist buffer change places, and a look at PEEPHOLE's data moves its
    // address.
    let watched: Vec<Bar0Reg> = Bar0Reg::all()
        .filter(|reg| {
            !matches!(
                reg,
                Bar0Reg::Ptimer(PtimerReg::PtimerLow)
                    | Bar0Reg::Ptimer(PtimerReg::PtimerHigh)
                    | Bar0Reg::Pbus(PbusReg::PraminBase)
                    | Bar0Reg::Pfifo(PfifoReg::RunlistBase)
                    | Bar0Reg::Pfifo(PfifoReg::RunlistCurrent)
                    | Bar0Reg::Peephole(PeepholeReg::PeepholeData)
                    | Bar0Reg::Pfifo(PfifoReg::Preempt)
                    | Bar0Reg::Pffb(PffbReg::TlbDirectory)
                    | Bar0Reg::Pffb(PffbReg::TlbInvalidate)
            )
        })
        .collect();
    let before: Vec<u32> = watched.iter().map(|&reg| card(world, reg)).collect();
    let writes = scene.bench.record_host_writes();
    let world = &mut scene.bench.world;
    let dense = (0..0x54_0000u64).step_by(4);
    let sparse = (0x54_0000..32 * MIB).step_by(4 * 61);
    let pramin = u64::from(PRAMIN_BASE)..u64::from(PRAMIN_BASE + PRAMIN_BYTES);
    for offset in dense.chain(sparse).filter(|at| !pramin.contains(at)) {
        let mixed = (offset as u32).wrapping_mul(0x9e37_79b9);
        for value in [!0, mixed] {
            store_and_wait(world, offset, value);
        }
    }
    scene.bench.turn_until("the card's rest", |bench| {
        card(&mut bench.world, PfifoReg::RunlistStatus) & RUNLIST_PENDING == 0
    });
    let strange: Vec<(u64, Vec<u8>)> = writes
        .lock()
        .unwrap()
        .iter()
        .filter(|(at, _)| !is_the_brokers(*at))
        .cloned()
        .collect();
    assert_eq!(strange, []);
    let world = &mut scene.bench.world;
    let after: Vec<u32> = watched.iter().map(|&reg| card(world, reg)).collect();
    let changed: Vec<_> = watched
        .iter()
        .zip(before.iter().zip(&after))
        .filter(|(_, (before, after))| before != after)
        .collect();
    assert!(changed.is_empty(), "{changed:x?}");
    assert!(
        scene
            .bench
            .count_notices(|notice| matches!(notice, Notice::HostError { .. }))
            == 0
    );
    scene.end();
}

// Flaw 11.
#[test]
fn mem_op_flush_and_context_list() {
    let mut scene = Scene::new();
    let directory = {
        let victims = bound_channels(&mut scene.bench.world);
        word(&victims[0].1, offset::PD_LO)
    };
    let survived = scene.attack(move |bus| {
        let mut rig = Rig::start(bus, MIB);
        rig.open(bus, 0);
        let mut words = Vec::new();
        // The operations that exist: invalidations of somebody else's directory and of all, barriers, cache flushes.
        for operation in [5, 6, 9, 0xd, 0xe, 0xf, 0x10u32] {
            for operand in [directory >> 12 << 2, 0, 0x8000_0000, !0] {
                words.extend([incrementing(0, host::MEM_OP_A, 2), operand, operation << 27]);
                words.extend([incrementing(0, host::MEM_OP_A, 2), operand, operation << 27 | 1]);
            }
        }
        let survived = rig.execute(bus, 0, &words);
        // Every method of a copy engine, with the values that could mean a physical address.
        for channel in 1..6u8 {
            rig.write_instance(bus, channel, DIRECTORY);
            for at in (offset::ENGINE_CONTEXTS..offset::ENGINE_CONTEXTS_END).step_by(8) {
                // Contexts at somebody's physical addresses: they are virtual, of this space.
                rig::put32(bus, Rig::instance(channel) + at, directory & !0xfff | 4);
                rig::put32(bus, Rig::instance(channel) + at + 4, u32::from(channel));
            }
            rig.bind(bus, channel);
            rig.commit(bus, &[channel]);
            let mut words =
                rig::bind_words([Engine::Copy0, Engine::Copy1][usize::from(channel & 1)]).to_vec();
            for method in (0x100..0x400u16).step_by(4) {
                words.extend([
                    incrementing(4, method, 1),
                    [0, !0, directory, 1 << 12, 0x110][usize::from(channel) - 1],
                ]);
            }
            let sequence = rig.submit_with_release(bus, channel, &words);
            rig.wait_turns(bus, channel, sequence, 300);
            rig::acknowledge(bus);
        }
        // The context image's list of registers, of which FECS would write any.
        for word in 0..64 {
            bus.write32(Bar::Bar0, 0x40_9c00 + word * 4, 0x0020_0200);
        }
        survived
    });
    assert!(survived, "a flush by method is harmless");
    scene.end();
}

// Flaw 12.
#[test]
fn flush_of_an_unchanged_space_asks_nothing_of_the_card() {
    let mut scene = Scene::new();
    let rig = scene.attack(|bus| {
        let mut rig = Rig::start(bus, 16 * MIB);
        rig.open(bus, 0);
        assert!(rig.execute(bus, 0, &[]));
        rig
    });
    let writes = scene.bench.record_host_writes();
    let rig = scene.attack(move |bus| {
        for _ in 0..100 {
            rig::flush(bus, DIRECTORY);
        }
        rig
    });
    assert_eq!(writes.lock().unwrap().len(), 0);
    // One entry changed: one flush of the card.
    scene.attack(move |bus| {
        rig::put64(bus, SMALL_TABLE, rig::vram_pte(DATA).into_bits());
        rig::flush(bus, DIRECTORY);
        drop(rig);
    });
    let flushes = writes
        .lock()
        .unwrap()
        .iter()
        .filter(|(at, _)| *at == u64::from(PffbReg::TlbInvalidate.offset()))
        .count();
    assert_eq!(flushes, 1);
    scene.end();
}

// Flaw 13: the partition count, PTIMER.
#[test]
fn identity_and_time_are_those_of_the_virtual_board() {
    let mut scene = Scene::new();
    scene.attack(|bus| {
        let partitions = rig::read(bus, PunitsReg::DesignPartitions);
        let sum: u32 = (0..partitions as u16)
            .map(|partition| rig::read(bus, PffbReg::PartitionMebibytes(partition)))
            .sum();
        assert_eq!((partitions, u64::from(sum)), (1, GUEST_VRAM));
        assert_eq!(bus.read32(Bar::Bar0, 0x12_1c74), partitions);
        let time = |bus: &mut SimBus| {
            let high = rig::read(bus, PtimerReg::PtimerHigh);
            u64::from(high) << 32 | u64::from(rig::read(bus, PtimerReg::PtimerLow))
        };
        let (host, card) = (bus.now_ns(), time(bus));
        for _ in 0..50 {
            bus.relax();
        }
        let (host_after, card_after) = (bus.now_ns(), time(bus));
        let (host, card) = (host_after - host, card_after - card);
        assert!(card >= host / 2 && card <= host * 2, "{card} ns for {host} ns");
    });
    scene.end();
}

// Flaw 13: a page clear that clears a quarter.
#[test]
fn memory_of_a_vm_that_is_gone_is_not_seen_by_the_next() {
    let mut scene = Scene::new();
    for zeroed in [true, false] {
        let config = vgpu::GpuConfig {
            frames_arrive_zeroed: zeroed,
            ..gpu_config()
        };
        let mut bench = Bench::with(40, config, &[vm_config(32)]);
        bench
            .run(VmId(0), |bus| Canary::plant(bus, 24 * MIB, 0x5ec))
            .unwrap();
        bench.detach(VmId(0));
        bench.attach(VmId(1), vm_config(32));
        bench.run(VmId(1), |bus| {
            let mut rig = Rig::start(bus, 28 * MIB);
            rig.open(bus, 0);
            for piece in 0..7 {
                bus.ram_write(8 * MIB, &[0xaa; 4 << 20]);
                let mut words = rig::bind_words(Engine::Copy0).to_vec();
                words.extend(rig::copy_words(
                    DATA_VA + piece * 4 * MIB,
                    RAM_VA + 8 * MIB,
                    0x8000,
                    128,
                ));
                assert!(rig.execute(bus, 0, &words));
                let mut data = vec![0; 4 << 20];
                bus.ram_read(8 * MIB, &mut data);
                let foreign = data.iter().position(|&byte| byte != 0);
                assert_eq!(foreign, None, "in piece {piece}");
            }
        });
        bench.end();
    }
    scene.attack(|_| ());
    scene.end();
}

// The essence of flaws 5 and 6: whatever the tables say, a VM reaches only its own memory.
#[test]
fn tables_of_noise_reach_only_own_memory() {
    let mut scene = Scene::new();
    scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        let mut noise = 0x1234_5678_9abc_def1u64;
        let mut next = move || {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise
        };
        let bytes: Vec<u8> = (0..LARGE_PT_ENTRIES as u64 * 33)
            .flat_map(|_| (next() | 1).to_le_bytes())
            .collect();
        // All at once: a directory, a large and a small table of noise one over the other.
        rig::put(bus, 0x30_0000, &bytes);
        rig.write_instance(bus, 0, 0x30_0000);
        rig.bind(bus, 0);
        rig::flush(bus, 0x30_0000);
        for pde in 8..40u64 {
            let entry = rig::pde(Some(0x30_0000 + pde * 0x1000), Some(0x30_0000)).with_size(pde as u8 & 3);
            rig::put64(bus, DIRECTORY + pde * 8, entry.into_bits());
        }
        rig.open(bus, 1);
        assert!(rig.copies(bus, 1));
    });
    let owners: Vec<FrameOwner> = (0..64 * MIB / FRAME)
        .map(|frame| scene.bench.world.owner(fermi_spec::addr::FrameNo(frame as u32)))
        .collect();
    assert!(
        owners
            .iter()
            .any(|owner| matches!(owner, FrameOwner::Vm { vm: VICTIM, .. }))
    );
    scene.end();
}

// The answer to an access comes exactly once, whatever its length and place.
#[test]
fn accesses_of_any_shape_are_answered() {
    let mut scene = Scene::new();
    for bar in Bar::ALL {
        for offset in [
            0,
            1,
            0xfff,
            0x6f_fffd,
            0x7f_fffe,
            32 * MIB - 1,
            128 * MIB - 3,
            u64::MAX - 1,
            u64::MAX,
        ] {
            for bytes in [1u32, 2, 3, 4, 8, 4095, 4096] {
                let reply = scene.bench.call(ATTACKER, Request::Read { bar, offset, bytes });
                assert!(matches!(reply, Reply::Data(data) if data.len() == bytes as usize));
                let data = vec![0x77; bytes as usize];
                let reply = scene.bench.call(ATTACKER, Request::Write { bar, offset, data });
                assert_eq!(reply, Reply::Done);
            }
        }
    }
    scene.end();
}
