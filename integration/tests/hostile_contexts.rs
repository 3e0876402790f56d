//! Contexts of PGRAPH that a guest makes up: images, lists of registers and pointers, on a card that loads what it is told to.
//!
//! The card is strict: it needs microcode, takes no image that no card saved, and writes whatever a list names. On such a card a guest's own
//! image would be as good as any register.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::methods::{M2mfLaunch, class, host, m2mf};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::PfifoReg;
use guests::GuestBus;
use guests::driver::CopyPath;
use integration::bench::Bench;
use integration::canary::Canary;
use integration::rig::{self, DATA, DATA_VA, DIRECTORY, RAM_VA, Rig};
use integration::watch::World;
use sim_host::bus::SimBus;
use vgpu::{Notice, VmId};

const VICTIM: VmId = VmId(0);
const ATTACKER: VmId = VmId(1);
const MIB: u64 = 1 << 20;
/// The host's part of an address space: its last directory entry.
const HOST_VA: u64 = 0xff_f800_0000;
/// Where the attacker has an image and a list, and where its channels see them.
const IMAGE: u64 = DATA + MIB;
const IMAGE_VA: u64 = DATA_VA + MIB;
const LIST: u64 = IMAGE + 0x2_0000;
const LIST_VA: u64 = IMAGE_VA + 0x2_0000;
/// What a card writes into an image that it saves, behind the driver's words (`fermi_model`, module `graph::image`).
const MAGIC: (u64, u32) = (0x80, 0x3147_4643);

/// A victim whose pattern goes through PGRAPH, and an attacker.
struct Scene {
    bench: Bench,
    canary: Option<Canary>,
}

impl Scene {
    fn new() -> Self {
        let mut bench = Bench::new(96, &[32, 32]);
        let canary = bench.run(VICTIM, |bus| Canary::plant(bus, 12 * MIB, 7)).unwrap();
        let canary = Some(canary);
        let mut scene = Self { bench, canary };
        scene.check();
        scene
    }

    /// The victim finds every byte as it was, by PGRAPH and by a copy engine.
    fn check(&mut self) {
        let mut canary = self.canary.take().unwrap();
        let checked = self.bench.run(VICTIM, move |bus| {
            canary.check(bus, CopyPath::M2mf)?;
            canary.check(bus, CopyPath::Copy1).map(|()| canary)
        });
        self.canary = Some(checked.unwrap());
    }

    fn attack<T: 'static>(&mut self, code: impl FnOnce(&mut SimBus) -> T + 'static) -> T {
        self.bench.run(ATTACKER, code)
    }

    fn killed(&self) -> usize {
        let is_kill = |notice: &Notice| matches!(notice, Notice::ChannelKilled { vm: ATTACKER, .. });
        let notices = self.bench.world.notices.iter();
        notices.filter(|(_, notice)| is_kill(notice)).count()
    }

    fn end(mut self) {
        self.check();
        assert!(self.bench.held_max_ns(VICTIM) < 200_000_000);
        self.bench.end();
    }
}

/// A word of the card's BAR0.
fn card(world: &mut World, at: u32) -> u32 {
    let mut word = [0; 4];
    world.model.bar_read(Bar::Bar0, at.into(), &mut word);
    u32::from_le_bytes(word)
}

/// A copy of `bytes` by PGRAPH.
fn m2mf_words(source: u64, target: u64, bytes: u32) -> Vec<u32> {
    let launch = M2mfLaunch::new().with_src_linear(true).with_dst_linear(true);
    vec![
        incrementing(2, host::SET_OBJECT, 1),
        class::M2MF.into(),
        incrementing(2, m2mf::PITCH_IN, 4),
        bytes,
        bytes,
        bytes,
        1,
        incrementing(2, m2mf::OFFSET_OUT_HIGH, 2),
        (target >> 32) as u32,
        target as u32,
        incrementing(2, m2mf::OFFSET_IN_HIGH, 2),
        (source >> 32) as u32,
        source as u32,
        incrementing(2, m2mf::LAUNCH, 1),
        launch.into_bits(),
    ]
}

/// Whether PGRAPH copies for the channel: a word of RAM to another place.
fn works(rig: &mut Rig, bus: &mut SimBus, channel: u8) -> bool {
    const FROM: u64 = 4 << 20;
    const TO: u64 = 5 << 20;
    let marker = 0x1357_0000 | u32::from(channel);
    bus.ram_write(FROM, &marker.to_le_bytes());
    bus.ram_write(TO, &[0; 4]);
    let words = m2mf_words(RAM_VA + FROM, RAM_VA + TO, 4);
    rig.execute(bus, channel, &words) && bus.ram_read32(TO) == marker
}

/// Binds a channel that names its context at `pointer`.
fn bind(rig: &mut Rig, bus: &mut SimBus, channel: u8, pointer: u64) {
    rig.write_instance(bus, channel, DIRECTORY);
    let at = Rig::instance(channel) + Engine::Graph.context_offset();
    rig::put64(bus, at, pointer);
    rig.bind(bus, channel);
}

/// Registers that would give a guest the card, and what it would like them to be.
const WANTED: [(u32, u32); 8] = [
    // Where BAR3, BAR1 and PRAMIN look.
    (0x1714, 0x8000_0001),
    (0x1704, 0x8000_0002),
    (0x1700, 0x3333),
    // Whose USERD is polled, which lines interrupt, which engines there are.
    (0x2254, 0x1000_0444),
    (0x640, 0),
    (0x200, 0x2000),
    // MMU of the GPCs, and a page table to flush.
    (0x41_88b4, 0x5555),
    (0x10_0cb8, 0x6660),
];

#[test]
fn list_that_a_guest_writes_changes_no_register() {
    let mut scene = Scene::new();
    let before = WANTED.map(|(at, _)| card(&mut scene.bench.world, at));
    let worked = scene.attack(|bus| {
        let mut rig = Rig::start(bus, 4 * MIB);
        let list: Vec<u8> = WANTED
            .iter()
            .flat_map(|&(at, value)| [at, value])
            .flat_map(u32::to_le_bytes)
            .collect();
        rig::put(bus, LIST, &list);
        let mut header = [0_u32; 0x40];
        header[0] = WANTED.len() as u32;
        header[1] = (LIST_VA >> 8) as u32;
        header[MAGIC.0 as usize / 4] = MAGIC.1;
        let header: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
        rig::put(bus, IMAGE, &header);
        bind(&mut rig, bus, 0, IMAGE_VA | 4);
        rig.commit(bus, &[0]);
        let first = works(&mut rig, bus, 0);
        // Written over while the channel is there, and named again, as a driver may at each start.
        rig::put(bus, IMAGE, &header);
        rig.bind(bus, 0);
        rig::write(bus, PfifoReg::ChannelState(0), 2);
        rig::write(bus, PfifoReg::ChannelState(0), 0x1f01_0001);
        first && works(&mut rig, bus, 0)
    });
    assert!(
        worked,
        "a guest with a strange image has a context of its own all the same"
    );
    let after = WANTED.map(|(at, _)| card(&mut scene.bench.world, at));
    for ((at, wanted), (before, after)) in WANTED.into_iter().zip(before.into_iter().zip(after)) {
        // The host itself moves PRAMIN and flushes.
        assert_ne!(after, wanted, "register {at:#x} is the guest's");
        assert!(
            before == after || [0x1700, 0x10_0cb8].contains(&at),
            "{at:#x}: {before:#x}, {after:#x}"
        );
    }
    scene.end();
}

#[test]
fn pointer_leads_nowhere_but_to_the_hosts_image() {
    let mut scene = Scene::new();
    let works = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        let pointers = [
            HOST_VA | 4,
            (HOST_VA + 0x8_0000) | 4,
            0x70_0000_0000 | 4,
            RAM_VA | 4,
            u64::MAX,
            1,
        ];
        let channels: Vec<u8> = (0..pointers.len() as u8).collect();
        for (&channel, pointer) in channels.iter().zip(pointers) {
            bind(&mut rig, bus, channel, pointer);
        }
        rig.commit(bus, &channels);
        let works = |channel: &u8| works(&mut rig, bus, *channel);
        channels.iter().map(works).collect::<Vec<bool>>()
    });
    assert_eq!(works, [true; 6]);
    assert_eq!(scene.killed(), 0);
    scene.end();
}

#[test]
fn directory_entry_of_the_host_is_not_the_guests() {
    let mut scene = Scene::new();
    let worked = scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        bind(&mut rig, bus, 0, IMAGE_VA | 4);
        rig.commit(bus, &[0]);
        let before = works(&mut rig, bus, 0);
        // All of the guest's tables once more, where the host has its own.
        let entry = rig::pde(Some(rig::LARGE_TABLE), Some(rig::SMALL_TABLE));
        rig::put64(bus, DIRECTORY + 8191 * 8, entry.into_bits());
        rig::flush(bus, DIRECTORY);
        before && works(&mut rig, bus, 0)
    });
    assert!(worked);
    scene.end();
}

#[test]
fn no_method_reaches_the_hosts_part_of_the_space() {
    let mut scene = Scene::new();
    let mut rig = Some(scene.attack(|bus| Rig::start(bus, MIB)));
    // Image, list and page pool lie there.
    for (round, at) in (0..).zip([HOST_VA, HOST_VA + 0xc000, HOST_VA + 0x8_0000]) {
        let mut with = rig.take().unwrap();
        let (works, with) = scene.attack(move |bus| {
            let rig = &mut with;
            // The last one is to go on.
            for channel in 0..6 {
                bind(rig, bus, channel, IMAGE_VA | 4);
            }
            rig.commit(bus, &[0, 1, 2, 3, 4, 5]);
            let ram = RAM_VA + (6 << 20);
            rig.submit(bus, 0, &m2mf_words(at, ram, 256));
            rig.submit(bus, 1, &m2mf_words(ram, at, 256));
            let copy = |source, target| {
                let mut words = rig::bind_words(Engine::Copy0).to_vec();
                words.extend(rig::copy_words(source, target, 256, 1));
                words
            };
            rig.submit(bus, 2, &copy(at, ram));
            rig.submit(bus, 3, &copy(ram, at));
            // Methods from there, with the privilege that an entry of the ring asks for (bit 40).
            rig.push_entry(bus, 4, at | 1 << 40 | 4 << 42);
            rig.ring(bus, 4);
            for _ in 0..200 {
                bus.relax();
            }
            let works = works(rig, bus, 5);
            for channel in 0..6 {
                rig.unbind(bus, channel);
            }
            (works, with)
        });
        rig = Some(with);
        assert!(works, "{at:#x}");
        assert_eq!(scene.killed(), 5 * (round + 1), "{at:#x}");
    }
    scene.end();
}

#[test]
fn pgraph_has_its_microcode_again_when_a_vm_has_gone() {
    let mut scene = Scene::new();
    scene.attack(|bus| {
        let mut rig = Rig::start(bus, MIB);
        bind(&mut rig, bus, 0, IMAGE_VA | 4);
        rig.commit(bus, &[0]);
        assert!(works(&mut rig, bus, 0));
    });
    scene.bench.detach(ATTACKER);
    scene.check();
    scene.bench.attach(ATTACKER, integration::bench::vm_config(32));
    scene.end();
}
