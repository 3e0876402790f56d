//! PGRAPH's contexts: the host's images behind the host's pointer, whatever the guest's block names.

use fermi_spec::addr::{FRAME, GuestVramAddr, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{INSTANCE_BYTES, USERD_BYTES, offset, userd};
use fermi_spec::pte::{Pde, Pte};
use fermi_spec::regs::falcon::CONTROL_START;
use fermi_spec::regs::pfifo::ChannelInstance;
use fermi_spec::regs::pgraph::setup;
use fermi_spec::regs::{Bar0Reg, FecsReg, PfifoReg, PgraphReg, PmcReg, pfifo};

use super::scene::{DATA, INSTANCE, MIB, MS, Scene, is_store, rings};
use super::{A, B, FIRST_CHANNEL};
use crate::config::GpuConfig;
use crate::device::contexts::{HOST_VA, ticket_bytes};
use crate::event::{Action, Event, HostMemory, Place, VmId};
use crate::host::graph::{GraphLists, GraphMicrocode};
use crate::notice::Notice;
use crate::reason::{CardOperation, StartFailure};

/// An image in the memory that [`Scene::prepare`] shows to channels.
const DECOY_VA: u64 = (128 << 20) + MIB;
const DECOY: u64 = DATA + MIB;
/// An instance block beside [`INSTANCE`].
const OTHER_INSTANCE: u64 = DATA + 2 * MIB;
/// Where an image has its ticket.
const TICKET: u64 = DECOY + 0xe0;

fn with_microcode() -> GpuConfig {
    let lists = GraphLists {
        non_context: vec![(0x40_4154, 1)],
        context: vec![(0x40_5800, 2)],
        bundles: vec![(0xe100, 3)],
        methods: vec![(0x90c0, 4)],
    };
    let microcode = GraphMicrocode::new([&[1; 8], &[2; 8]], [&[3; 8], &[4; 8]], lists);
    GpuConfig {
        frames_arrive_zeroed: true,
        graph: Some(microcode.expect("whole words")),
        ..GpuConfig::default()
    }
}

/// A card with FECS that asks for images of 128 KiB, and 15 TPCs.
fn off(config: GpuConfig) -> Scene {
    let mut scene = Scene::off(config);
    scene.registers.insert(FecsReg::FecsScratch(1).into(), 0x2_0000);
    for (gpc, tpcs) in [(0, 3), (1, 4), (2, 4), (3, 4)] {
        scene.registers.insert(PgraphReg::GpcTpcs(gpc).into(), tpcs);
    }
    scene
}

/// What BAR3 shows after all stores so far.
struct Arena {
    bytes: Vec<u8>,
    base: u64,
}

impl Arena {
    fn of(scene: &mut Scene) -> Self {
        let mut bytes = vec![0; 16 << 20];
        for action in &scene.actions {
            if let Action::HostWrite {
                bar: Bar::Bar3,
                offset,
                data,
            } = action
            {
                bytes[*offset as usize..][..data.len()].copy_from_slice(data);
            }
        }
        let base = u64::from(scene.running().layout.arena_first) * FRAME;
        Self { bytes, base }
    }

    fn at(&self, at: VramAddr) -> &[u8] {
        &self.bytes[(at.0 - self.base) as usize..]
    }

    fn word(&self, at: VramAddr) -> u64 {
        u64::from_le_bytes(self.at(at)[..8].try_into().expect("8 bytes"))
    }

    /// Where a channel of the VM has the page at an address, and whether it takes privilege.
    fn walk(&self, scene: &mut Scene, vm: VmId, va: u64) -> Option<(VramAddr, bool)> {
        let spaces = &scene.running().vms[&vm].spaces;
        let directory = spaces.values().next()?.shadow.directory();
        let pde = Pde::from_bits(self.word(directory.offset((va >> 27) * 8)));
        let (_, table) = pde.large_table()?;
        let pte = Pte::from_bits(self.word(VramAddr(table.0 + (va >> 17 & 0x3ff) * 8)));
        pte.valid()
            .then_some((VramAddr(pte.address().0), pte.privileged()))
    }

    /// The context of the VM's channel 0: the pointer in the card's block, without its flag, and the image there.
    fn context(&self, scene: &mut Scene, vm: VmId) -> Option<(u64, &[u8])> {
        let instance = scene.running().vms[&vm].channels[&0].instance;
        let pointer = self.word(instance.offset(offset::ENGINE_CONTEXTS));
        if pointer == 0 {
            return None;
        }
        let va = pointer & !0xff;
        let (at, privileged) = self.walk(scene, vm, va).expect("an image");
        assert!(pointer & 4 != 0 && privileged && va >= HOST_VA.0);
        Some((va, &self.at(at)[..FRAME as usize]))
    }
}

fn name_context(scene: &mut Scene, vm: VmId, pointer: u64) {
    let at = INSTANCE + Engine::Graph.context_offset();
    scene.put(vm, at, &pointer.to_le_bytes());
}

/// Binds channel 0 with a context in memory of the guest's.
fn bind(scene: &mut Scene, vm: VmId) {
    let entry = scene.prepare(vm, 4);
    name_context(scene, vm, DECOY_VA | 4);
    scene.register(vm, PfifoReg::ChannelInstance(0).into(), entry.into_bits());
}

fn unbind(scene: &mut Scene, vm: VmId) {
    scene.register(vm, PfifoReg::ChannelInstance(0).into(), 0);
    assert!(scene.running().leaving.is_empty() && scene.running().keeping.is_empty());
}

fn ticket(scene: &mut Scene, vm: VmId) -> [u8; 16] {
    let mut bytes = [0; 16];
    let at = GuestVramAddr(TICKET);
    scene.memory.read(Place::Image { vm, at }, &mut bytes);
    bytes
}

#[test]
fn context_is_the_hosts_whatever_the_guest_names() {
    for pointer in [DECOY_VA | 4, 4, u64::MAX, HOST_VA.0 | 4, 1 << 45] {
        let mut scene = Scene::up();
        scene.attach(A, 16);
        let entry = scene.prepare(A, 4);
        name_context(&mut scene, A, pointer);
        scene.register(A, PfifoReg::ChannelInstance(0).into(), entry.into_bits());
        let arena = Arena::of(&mut scene);
        let (va, image) = arena.context(&mut scene, A).expect("a context");
        assert_ne!(va, pointer & !0xff);
        assert!(image.iter().all(|byte| *byte == 0), "{pointer:#x}");
    }
}

#[test]
fn channel_that_names_no_context_has_none() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    let arena = Arena::of(&mut scene);
    assert!(arena.context(&mut scene, A).is_none());
    assert_eq!(arena.walk(&mut scene, A, HOST_VA.0), None);
}

#[test]
fn context_that_is_named_at_a_start_is_made_then() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    name_context(&mut scene, A, DECOY_VA | 4);
    assert!(Arena::of(&mut scene).context(&mut scene, A).is_none());
    scene.run_channel(A);
    let (first, _) = Arena::of(&mut scene)
        .context(&mut scene, A)
        .map(|(va, image)| (va, image.len()))
        .expect("one");
    // nouveau takes the pointer away for a suspend, and puts it back.
    name_context(&mut scene, A, 0);
    scene.register(A, PfifoReg::ChannelState(0).into(), pfifo::CHANNEL_START);
    assert!(Arena::of(&mut scene).context(&mut scene, A).is_none());
    name_context(&mut scene, A, DECOY_VA | 4);
    scene.register(A, PfifoReg::ChannelState(0).into(), pfifo::CHANNEL_START);
    let again = Arena::of(&mut scene).context(&mut scene, A).map(|(va, _)| va);
    assert_eq!(again, Some(first));
}

#[test]
fn channel_goes_on_with_the_context_that_its_ticket_names() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    // As the driver's stores do, this makes it instance memory.
    scene.put(A, DECOY, &[0; 4096]);
    bind(&mut scene, A);
    assert_eq!(ticket(&mut scene, A), ticket_bytes(1));
    // What the card saved meanwhile: the list of registers in it would be the guest's, if it could be.
    scene.bar3_word = 0x1234_5678;
    unbind(&mut scene, A);
    bind(&mut scene, A);
    let arena = Arena::of(&mut scene);
    let (_, image) = arena.context(&mut scene, A).expect("a context");
    assert_eq!(image[..8], [0; 8]);
    assert!(
        image[8..]
            .chunks(4)
            .all(|word| word == 0x1234_5678_u32.to_le_bytes())
    );
    assert_eq!(ticket(&mut scene, A), ticket_bytes(2));
    // An image that was written anew, as for a new channel, is a fresh one.
    unbind(&mut scene, A);
    scene.put(A, DECOY, &[0; 4096]);
    bind(&mut scene, A);
    let arena = Arena::of(&mut scene);
    let (_, image) = arena.context(&mut scene, A).expect("a context");
    assert!(image[8..].iter().all(|byte| *byte == 0));
}

#[test]
fn ticket_of_another_vm_is_worth_nothing() {
    let mut scene = Scene::up();
    for vm in [A, B] {
        scene.attach(vm, 16);
        scene.put(vm, DECOY, &[0; 4096]);
    }
    bind(&mut scene, A);
    scene.bar3_word = 0x1234_5678;
    unbind(&mut scene, A);
    let stolen = ticket(&mut scene, A);
    scene.put(B, TICKET, &stolen);
    bind(&mut scene, B);
    let arena = Arena::of(&mut scene);
    let (_, image) = arena.context(&mut scene, B).expect("a context");
    assert!(image[8..].iter().all(|byte| *byte == 0));
}

#[test]
fn bind_waits_for_the_content_of_a_context_that_leaves() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.put(A, DECOY, &[0; 4096]);
    bind(&mut scene, A);
    scene.run_channel(A);
    scene.held.insert(PfifoReg::Preempt.into());
    scene.register(A, PfifoReg::ChannelInstance(0).into(), 0);
    let entry = scene.prepare(A, 4);
    name_context(&mut scene, A, DECOY_VA | 4);
    let request = scene.register(A, PfifoReg::ChannelInstance(0).into(), entry.into_bits());
    assert!(scene.reply(request).is_none());
    scene.bar3_word = 0x1234_5678;
    scene.held.clear();
    scene.end_polls(PfifoReg::Preempt.into(), true);
    scene.pass(1);
    assert!(scene.reply(request).is_some());
    let arena = Arena::of(&mut scene);
    let (_, image) = arena.context(&mut scene, A).expect("a context");
    assert_eq!(image[8..12], 0x1234_5678_u32.to_le_bytes());
}

#[test]
fn images_are_used_again_and_go_with_their_space() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let held = |scene: &mut Scene| scene.running().vms[&A].shadow.held;
    let before = held(&mut scene);
    for _ in 0..3 {
        bind(&mut scene, A);
        unbind(&mut scene, A);
        assert_eq!(held(&mut scene), before);
    }
    let audit = scene.manager.save();
    assert!(audit.contains("\"kept\""));
}

#[test]
fn pgraph_is_given_microcode_and_a_golden_image_is_made_before_vms_come() {
    let mut scene = off(with_microcode());
    scene.bar3_word = 0x0600_0001;
    scene.apply(Event::Start);
    let store = |reg: Bar0Reg, value| move |action: &Action| is_store(action, reg, value);
    let raw = |at: u32, value: u32| {
        move |action: &Action| {
            *action
                == Action::HostWrite {
                    bar: Bar::Bar0,
                    offset: at.into(),
                    data: value.to_le_bytes().to_vec(),
                }
        }
    };
    let at = [
        scene.first("code of FECS", raw(0x40_9184, 0x0101_0101)),
        scene.first("data of FECS", raw(0x40_91c4, 0x0202_0202)),
        scene.first("code of the GPCs", raw(0x41_a184, 0x0303_0303)),
        scene.first("data of the GPCs", raw(0x41_a1c4, 0x0404_0404)),
        scene.first("its own registers", raw(0x40_4154, 1)),
        scene.first("start", store(FecsReg::FecsControl.into(), CONTROL_START)),
        scene.first("set channel", store(FecsReg::FecsCommand.into(), 1)),
        scene.first("registers of a context", raw(0x40_5800, 2)),
        scene.first("page pool", raw(setup::POOL, (HOST_VA.0 >> 8) as u32)),
        scene.first("internal command", raw(setup::COMMAND, 0xe100)),
        scene.first(
            "method",
            store(PgraphReg::GraphMethodPort.into(), 1 << 31 | 0x90c0),
        ),
        scene.first("unload", store(FecsReg::FecsIntrSet.into(), 0x100)),
        scene.first("start of all", |action| {
            matches!(action, Action::Notice(Notice::Started { .. }))
        }),
    ];
    assert!(at.is_sorted(), "{at:?}");
    scene.attach(A, 16);
    bind(&mut scene, A);
    let arena = Arena::of(&mut scene);
    let (_, image) = arena.context(&mut scene, A).expect("a context");
    assert!(
        image[8..]
            .chunks(4)
            .all(|word| word == 0x0600_0001_u32.to_le_bytes())
    );
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    // 11 registers, and one for each TPC.
    assert_eq!(word(image, 0), 11 + 15);
    let list = u64::from(word(image, 4)) << 8;
    let (page, privileged) = arena.walk(&mut scene, A, list).expect("a list");
    assert!(privileged);
    let pairs = arena.at(page.offset(list % FRAME))[..26 * 8].as_chunks::<8>().0;
    let registers: Vec<u32> = pairs.iter().map(|pair| word(pair, 0)).collect();
    assert!(
        registers.iter().all(|reg| (0x40_4000..0x52_0000).contains(reg)),
        "{registers:x?}"
    );
    assert!(registers.contains(&(0x50_0000 + 3 * 0x8000 + 0x4000 + 3 * 0x800 + 0x520)));
    // The attributes are the channels' own, the other buffers are not.
    let (_, privileged) = arena.walk(&mut scene, A, HOST_VA.0 + FRAME).expect("attributes");
    assert!(!privileged);
}

fn failure(scene: &Scene) -> Option<StartFailure> {
    scene.notices().find_map(|notice| match notice {
        Notice::StartFailed { reason } => Some(reason.clone()),
        _ => None,
    })
}

#[test]
fn microcode_that_does_not_fit_the_card_is_said() {
    let mut silent = off(with_microcode());
    silent.held.insert(FecsReg::FecsScratch(0).into());
    silent.apply(Event::Start);
    assert_eq!(failure(&silent), None);
    silent.end_polls(FecsReg::FecsScratch(0).into(), false);
    assert_eq!(failure(&silent), Some(StartFailure::GraphMicrocode));
    for bytes in [0, 0x8_0001] {
        let mut scene = off(with_microcode());
        scene.registers.insert(FecsReg::FecsScratch(1).into(), bytes);
        scene.apply(Event::Start);
        assert_eq!(failure(&scene), Some(StartFailure::ContextBytes { bytes }));
    }
    let mut scene = off(with_microcode());
    scene.registers.insert(PgraphReg::GpcTpcs(0).into(), 4);
    scene.apply(Event::Start);
    assert_eq!(failure(&scene), Some(StartFailure::Tpcs { tpcs: 16 }));
}

/// The last word stored to EngineBlock (2630).
fn blocked(scene: &Scene) -> Option<u32> {
    scene.actions.iter().rev().find_map(|action| match action {
        Action::HostWrite {
            bar: Bar::Bar0,
            offset,
            data,
        } if *offset == u64::from(PfifoReg::EngineBlock.offset()) => {
            Some(u32::from_le_bytes(data.as_slice().try_into().ok()?))
        }
        _ => None,
    })
}

/// A VM leaves, so that PGRAPH is reset, and FECS does not answer yet.
fn restarting() -> Scene {
    let mut scene = off(with_microcode());
    scene.apply(Event::Start);
    for vm in [A, B] {
        scene.attach(vm, 16);
        bind(&mut scene, vm);
        scene.run_channel(vm);
    }
    scene.take();
    scene.held.insert(FecsReg::FecsScratch(0).into());
    scene.apply(Event::Detach { vm: A });
    scene
}

#[test]
fn nobody_comes_onto_pgraph_before_its_microcode_answers_again() {
    let mut scene = restarting();
    let off = scene.first("reset", |action| {
        is_store(
            action,
            PmcReg::PmcEnable.into(),
            !(1 << Engine::Graph.enable_bit()),
        )
    });
    let started = scene.first("start", |action| {
        is_store(action, FecsReg::FecsControl.into(), CONTROL_START)
    });
    assert!(off < started);
    assert_eq!(blocked(&scene), Some(1 << Engine::Graph.number()));
    scene.end_polls(FecsReg::FecsScratch(0).into(), true);
    assert_eq!(blocked(&scene), Some(0));
}

#[test]
fn card_whose_pgraph_does_not_come_back_is_lost() {
    let mut scene = restarting();
    for _ in 0..2 {
        scene.end_polls(FecsReg::FecsScratch(0).into(), false);
    }
    let operation = CardOperation::ContextSwitching;
    assert!(scene.has(&Action::CardLost { operation }));
}

/// A VM holds all slots of the arena that it may.
fn fill_arena(scene: &mut Scene, vm: VmId) {
    let held = scene.running().with_budget(vm, "filling its part", |budget| {
        std::iter::from_fn(|| budget.allocate_frame())
            .map(|at| shadow_pt::TableRange { at, bytes: FRAME })
            .collect::<Vec<_>>()
    });
    let orphans = &mut scene.running().vms.get_mut(&vm).expect("attached").orphans;
    orphans.extend(held.expect("sound accounts"));
}

/// Has the VM give back some of that.
fn empty_arena(scene: &mut Scene, vm: VmId, pages: usize) {
    let orphans = &mut scene.running().vms.get_mut(&vm).expect("attached").orphans;
    let rest = orphans.len() - pages;
    let freed = orphans.split_off(rest);
    scene.running().free_tables(vm, &freed);
}

#[test]
fn channel_without_memory_for_its_context_waits_and_its_guest_is_told() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.run_channel(A);
    fill_arena(&mut scene, A);
    scene.take();
    name_context(&mut scene, A, DECOY_VA | 4);
    scene.register(A, PfifoReg::ChannelState(0).into(), pfifo::CHANNEL_START);
    scene.doorbell(A, 1);
    let told = |notice: &Notice| matches!(notice, Notice::GuestError { what, .. } if what.contains("for the context"));
    assert!(scene.notices().any(told));
    let lacks = |scene: &mut Scene| scene.running().vms[&A].channels[&0].lacks_image();
    let starts = |action: &Action| {
        is_store(
            action,
            PfifoReg::ChannelState(FIRST_CHANNEL).into(),
            pfifo::CHANNEL_START,
        )
    };
    scene.pass(20 * MS);
    assert!(lacks(&mut scene) && !scene.actions.iter().any(starts));
    scene.take();
    empty_arena(&mut scene, A, 1);
    scene.pass(20 * MS);
    assert!(!lacks(&mut scene));
    let started = scene.first("start", starts);
    let rung = scene.first("doorbell", |action| rings(action, FIRST_CHANNEL.into()));
    assert!(started < rung);
}

#[test]
fn parked_channel_keeps_its_context_and_gives_its_memory_back() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.put(A, DECOY, &[0; 4096]);
    bind(&mut scene, A);
    scene.run_channel(A);
    let held = |scene: &mut Scene| scene.running().vms[&A].shadow.held;
    let before = held(&mut scene);
    scene.bar3_word = 0x1234_5678;
    scene.running().park(A, 0);
    scene.apply(Event::Wake);
    assert!(scene.running().vms[&A].parked.contains_key(&0));
    assert_eq!(held(&mut scene), before - FRAME);
    scene.take();
    scene.doorbell(A, 1);
    scene.pass(MS);
    let arena = Arena::of(&mut scene);
    assert_eq!(held(&mut scene), before);
    let image = arena
        .bytes
        .windows(8)
        .any(|bytes| bytes == 0x1234_5678_1234_5678_u64.to_le_bytes());
    assert!(image, "its content is stored again");
}

/// Has an idle channel that the card holds back from an answer leave it, or one with work.
fn on_its_way_out(has_work: bool) -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    bind(&mut scene, A);
    scene.run_channel(A);
    let vgpu = scene.running().vms.get_mut(&A).unwrap();
    vgpu.channels.get_mut(&0).unwrap().has_work = has_work;
    scene.held.insert(PfifoReg::ChannelState(FIRST_CHANNEL).into());
    scene.running().park(A, 0);
    scene.apply(Event::Wake);
    scene
}

#[test]
fn channel_whose_copy_gave_way_on_its_way_out_keeps_its_number() {
    let mut scene = on_its_way_out(false);
    assert!(!scene.running().vms[&A].parked.contains_key(&0));
    scene.take();
    let state = Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL));
    scene.end_polls(state, false);
    let channel = &scene.running().vms[&A].channels[&0];
    assert!(channel.has_work && !channel.parking);
    scene.first("start", |action| is_store(action, state, pfifo::CHANNEL_START));
}

#[test]
fn channel_without_work_leaves_when_the_card_has_said_so_once_more() {
    let mut scene = on_its_way_out(false);
    scene.end_polls(PfifoReg::ChannelState(FIRST_CHANNEL).into(), true);
    assert!(scene.running().vms[&A].parked[&0].wants_since.is_none());
}

#[test]
fn channel_that_leaves_with_work_is_not_asked_and_comes_back() {
    let mut scene = on_its_way_out(true);
    let instance = PfifoReg::ChannelInstance(FIRST_CHANNEL).into();
    scene.first("no entry", |action| is_store(action, instance, 0));
    // A number was free.
    assert!(scene.running().vms[&A].channels[&0].has_work);
}

#[test]
fn parked_channel_that_needs_no_image_does_not_wait_behind_one_that_finds_none() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    bind(&mut scene, A);
    scene.run_channel(A);
    // Channel 1 is another of the same space, without a context.
    let mut block = vec![0; INSTANCE_BYTES as usize];
    scene.memory.read(
        Place::Image {
            vm: A,
            at: GuestVramAddr(INSTANCE),
        },
        &mut block,
    );
    let at = Engine::Graph.context_offset() as usize;
    block[at..at + 8].fill(0);
    scene.put(A, OTHER_INSTANCE, &block);
    let entry = ChannelInstance::new()
        .with_frame((OTHER_INSTANCE >> 12) as u32)
        .with_poll(true)
        .with_valid(true);
    scene.register(A, PfifoReg::ChannelInstance(1).into(), entry.into_bits());
    scene.register(A, PfifoReg::ChannelState(1).into(), pfifo::CHANNEL_START);
    scene.list_channels(A, 2);
    for v in [0, 1] {
        scene.running().park(A, v);
        scene.apply(Event::Wake);
        assert!(scene.running().vms[&A].parked.contains_key(&v));
    }
    fill_arena(&mut scene, A);
    scene.doorbell(A, 1);
    scene.store(A, Bar::Bar1, USERD_BYTES + userd::GP_PUT, &1_u32.to_le_bytes());
    scene.pass(MS);
    let is_parked = |scene: &mut Scene, v: u8| scene.running().vms[&A].parked.contains_key(&v);
    assert!(is_parked(&mut scene, 0), "there is no memory for its image");
    assert!(!is_parked(&mut scene, 1));
    empty_arena(&mut scene, A, 1);
    scene.pass(20 * MS);
    assert!(!is_parked(&mut scene, 0), "it is not forgotten");
}
