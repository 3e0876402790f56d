//! The manager's behaviour: events in, actions out, on a scripted card.

mod activity;
mod aside;
mod claims;
mod contexts;
mod engine_time;
mod engines;
mod errors;
mod exchanging;
mod holding;
mod holds;
mod host_ram;
mod interrupts;
mod isolation;
mod last_address;
mod levels;
mod live_userd;
mod lost;
mod moments;
mod parts;
mod pointing;
mod preparing;
mod quotas;
mod ram_maps;
mod scene;
mod shown;
mod standing;
mod turns;

use fermi_spec::addr::{Gpa, GuestVramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::instance::offset;
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PROM_BASE, PbusReg, PffbReg, PfifoReg, PmcReg, pffb, pfifo};

use super::Manager;
use crate::config::{Bus, GpuConfig};
use crate::event::{Action, Event, FrameOwner, Refusal, Reply, Request, VmId};
use crate::notice::Notice;
use crate::reason::{Denial, RollBack, StartFailure};
use scene::{DATA, MIB, MS, Scene, frees, is_store, rings, vm_config};

const A: VmId = VmId(0);
const B: VmId = VmId(1);
/// The first number that a guest's channel gets on the card.
const FIRST_CHANNEL: u16 = 1;
const STOPPED: u32 = pfifo::CHANNEL_START & !1;

fn moved(notice: &Notice) -> bool {
    matches!(notice, Notice::Moved { .. })
}

fn rolled_back(scene: &Scene) -> Option<RollBack> {
    scene.notices().find_map(|notice| match notice {
        Notice::RolledBack { reason, .. } => Some(*reason),
        _ => None,
    })
}

fn detached(action: &Action) -> bool {
    matches!(action, Action::Detached { .. })
}

#[test]
fn card_that_answers_comes_up() {
    let mut scene = Scene::off(GpuConfig::default());
    scene.apply(Event::Start);
    let started = scene.notices().any(|notice| {
        matches!(notice, Notice::Started { vram_bytes, usable_bytes }
            if *vram_bytes == 64 * MIB && *usable_bytes > 48 * MIB)
    });
    assert!(started);
}

#[test]
fn card_that_reads_ones_denies_whoever_waits() {
    let mut scene = Scene::off(GpuConfig::default());
    scene.registers.insert(Bar0Reg::from(PmcReg::Boot0), !0);
    scene.apply(Event::Attach {
        vm: A,
        config: vm_config(16),
    });
    scene.apply(Event::Start);
    let denied = Action::Denied {
        vm: A,
        reason: Denial::Card(StartFailure::NoAnswer),
    };
    assert!(scene.has(&denied));
}

#[test]
fn attach_before_the_card_is_up_waits_for_it() {
    let mut scene = Scene::off(GpuConfig::default());
    scene.apply(Event::Attach {
        vm: A,
        config: vm_config(16),
    });
    assert_eq!(scene.actions, []);
    scene.apply(Event::Start);
    assert!(scene.has(&Action::Attached { vm: A }));
}

#[test]
fn attach_beyond_all_memory_is_denied_with_the_sums() {
    let mut scene = Scene::with(GpuConfig {
        host_ram: 8 * MIB,
        ..GpuConfig::default()
    });
    scene.apply(Event::Attach {
        vm: A,
        config: vm_config(128),
    });
    let reason = scene.actions.iter().find_map(|action| match action {
        Action::Denied { reason, .. } => Some(reason),
        _ => None,
    });
    assert!(
        matches!(reason, Some(Denial::GuestVram { wanted, host_ram, .. })
            if *wanted == 128 * MIB && *host_ram == 8 * MIB),
        "{reason:?}"
    );
}

#[test]
fn request_of_a_vm_that_is_not_attached_is_refused() {
    let mut scene = Scene::up();
    let request = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), 0);
    assert_eq!(scene.reply(request), Some(&Reply::Refused(Refusal::NotAttached)));
}

#[test]
fn bind_gets_memory_for_what_its_tables_show_before_it_is_answered() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.take();
    let request = scene.bind(A, 4);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    assert_eq!(scene.resident(A), 4 * MIB);
    let backed = scene.first("frame", |action| matches!(action, Action::PlaceFrames { .. }));
    let answered = scene.first(
        "answer",
        |action| matches!(action, Action::Reply { request: of, .. } if *of == request),
    );
    assert!(backed < answered);
}

fn load(scene: &mut Scene, offset: u32, bytes: u32) -> Vec<u8> {
    let (bar, offset) = (Bar::Bar0, u64::from(offset));
    let request = scene.ask(A, Request::Read { bar, offset, bytes });
    match scene.reply(request) {
        Some(Reply::Data(data)) => data.clone(),
        other => panic!("{other:?}"),
    }
}

fn two_words(first: u32, second: u32) -> Vec<u8> {
    [first, second].into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn eight_byte_access_is_two_registers() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let at = PbusReg::PraminBase.offset();
    assert_eq!(PbusReg::Bar1Block.offset(), at + 4);
    let request = scene.store(A, Bar::Bar0, u64::from(at), &two_words(0x12, 0x34));
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    assert_eq!(load(&mut scene, at, 4), 0x12u32.to_le_bytes());
    assert_eq!(load(&mut scene, at + 4, 4), 0x34u32.to_le_bytes());
    assert_eq!(load(&mut scene, at, 8), two_words(0x12, 0x34));
    // What is no whole register reaches nothing.
    let torn = [&[0xff, 0xff][..], &0x12u32.to_le_bytes(), &[0xff, 0xff]].concat();
    assert_eq!(load(&mut scene, at - 2, 8), torn);
    assert_eq!(load(&mut scene, PROM_BASE + 1, 2), [0xff; 2]);
}

/// The first register blocks on a sync, and what it does is over before the second is written.
#[test]
fn eight_byte_store_that_binds_and_starts_a_channel_is_that_of_two_words() {
    let at = u64::from(PfifoReg::ChannelInstance(0).offset());
    let run = |whole: bool| {
        let mut scene = Scene::up();
        scene.attach(A, 16);
        let entry = scene.prepare(A, 4).into_bits();
        scene.take();
        let data = two_words(entry, pfifo::CHANNEL_START);
        let step = if whole { 8 } else { 4 };
        let requests: Vec<_> = (0..)
            .zip(data.chunks(step))
            .map(|(n, part)| scene.store(A, Bar::Bar0, at + n * 4, part))
            .collect();
        let answers = |action: &&Action| matches!(action, Action::Reply { .. });
        assert_eq!(scene.actions.iter().filter(answers).count(), requests.len());
        let state = load(&mut scene, PfifoReg::ChannelState(0).offset(), 4);
        let mut actions = scene.take();
        actions.retain(|action| !matches!(action, Action::Reply { .. }));
        (actions, state)
    };
    let (actions, state) = run(true);
    assert_eq!(state[0] & 1, 1, "not runnable");
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::PlaceFrames { .. }))
    );
    let (of_two, state_of_two) = run(false);
    // The card is told the same, and to start last. What is written to the instance block in between may come earlier.
    assert_eq!((actions.len(), state), (of_two.len(), state_of_two));
    assert!(actions.iter().all(|action| of_two.contains(action)));
    let start = |actions: &[Action]| {
        let reg = Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL));
        actions.last().is_some_and(|last| {
            matches!(last, Action::HostWrite { bar: Bar::Bar0, offset, .. } if *offset == u64::from(reg.offset()))
        })
    };
    assert!(start(&actions) && start(&of_two));
}

#[test]
fn access_across_the_start_of_pramin_reaches_its_memory() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let at = PRAMIN_BASE - 4;
    scene.store(A, Bar::Bar0, u64::from(at), &[7; 12]);
    assert_eq!(load(&mut scene, PRAMIN_BASE, 8), [7; 8]);
    assert_eq!(load(&mut scene, at, 12), [[0; 4], [7; 4], [7; 4]].concat());
}

#[test]
fn flush_of_an_unchanged_space_asks_nothing_of_the_card() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.take();
    let request = scene.flush(A);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    let asked = scene.actions.iter().find(|action| {
        matches!(
            action,
            Action::HostWrite { .. } | Action::HostRead { .. } | Action::HostPoll { .. }
        )
    });
    assert_eq!(asked, None);
}

#[test]
fn demand_beyond_the_card_spills_in_the_order_that_keeps_memory_safe() {
    let (mut scene, request) = Scene::up().contended();
    scene.pass(10 * MS);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    let stopped = scene.first("stop", |action| {
        is_store(
            action,
            Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL)),
            STOPPED,
        )
    });
    let preempted = scene.first("preempt", |action| {
        is_store(action, Bar0Reg::from(PfifoReg::Preempt), u32::from(FIRST_CHANNEL))
    });
    let copied = scene.first("copy", |action| rings(action, 0));
    let after = |from: usize, what: &str, is: &dyn Fn(&Action) -> bool| {
        from + scene.actions[from..]
            .iter()
            .position(is)
            .unwrap_or_else(|| panic!("no {what} behind action {from}"))
    };
    let redirected = after(copied, "redirect", &|action| {
        matches!(action, Action::HostWrite { bar: Bar::Bar3, .. })
    });
    let everything = pffb::TLB_GO | pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES;
    let flushed = after(redirected, "flush", &|action| {
        is_store(action, Bar0Reg::from(PffbReg::TlbInvalidate), everything)
    });
    let resumed = after(flushed, "start", &|action| {
        is_store(
            action,
            Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL)),
            pfifo::CHANNEL_START,
        )
    });
    let freed = scene.first("free frame", frees);
    assert!(stopped < preempted && preempted < copied && flushed < resumed);
    assert!(
        flushed < freed,
        "frames are free at {freed}, before the flush at {flushed}"
    );
}

/// To scrub a frame takes time for each page, and the guest whose chunk was spilled would stand still for it.
#[test]
fn frames_of_a_spill_are_given_back_once_and_behind_the_doorbells() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (mut scene, request) = scene.contended();
    scene.doorbell(A, 5);
    scene.take();
    scene.end_copy();
    scene.pass(10 * MS);
    let rung = scene.first("doorbell", |action| rings(action, u64::from(FIRST_CHANNEL)));
    let freed = scene.first("free frames", frees);
    assert!(rung < freed, "scrubbed at {freed}, rung at {rung}");
    let listed = scene.first("runlist", |action| {
        matches!(action, Action::HostWrite { bar: Bar::Bar0, offset, .. }
            if *offset == u64::from(Bar0Reg::from(PfifoReg::RunlistCommit).offset()))
    });
    assert!(listed < freed, "scrubbed at {freed}, on the runlist at {listed}");
    let given = |action: &Action| match action {
        Action::PlaceFrames {
            frames,
            owner: FrameOwner::Free,
        } => Some(frames.len()),
        _ => None,
    };
    // All 16 of the chunk together, and nobody has one before.
    assert_eq!(scene.actions.iter().filter_map(given).collect::<Vec<_>>(), [16]);
    let taken = scene.first("frames of the other", |action| {
        matches!(
            action,
            Action::PlaceFrames {
                owner: FrameOwner::Vm { vm: B, .. },
                ..
            }
        )
    });
    assert!(freed < taken);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
}

/// The pause that is told lasts from the channels' being taken off to their doorbells, and its drain is told apart.
#[test]
fn pause_ends_with_the_doorbells_and_tells_its_drain() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (mut scene, _) = scene.contended();
    scene.copies_end = false;
    scene.doorbell(A, 5);
    scene.pass(3 * MS);
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), true);
    scene.pass(2 * MS);
    scene.take();
    scene.end_copy();
    scene.pass(5 * MS);
    let rung = scene.first("doorbell", |action| rings(action, u64::from(FIRST_CHANNEL)));
    let told = scene.first("pause", |action| {
        matches!(action, Action::Notice(Notice::Resumed { .. }))
    });
    assert!(rung < told, "told at {told}, rung at {rung}");
    let Action::Notice(Notice::Resumed {
        suspended_ns,
        drained_ns,
        is_rolled_back,
        ..
    }) = scene.actions[told]
    else {
        panic!("{:?}", scene.actions[told]);
    };
    assert!((3 * MS..5 * MS).contains(&drained_ns), "{drained_ns}");
    assert!((5 * MS..10 * MS).contains(&suspended_ns), "{suspended_ns}");
    assert!(!is_rolled_back);
}

#[test]
fn preempt_that_does_not_end_rolls_the_move_back() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (mut scene, _) = scene.contended();
    assert!(scene.is_moving());
    scene.take();
    moments::works(&mut scene, FIRST_CHANNEL);
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), false);
    assert_eq!(rolled_back(&scene), None);
    scene.pass(70 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle));
    assert!(!scene.actions.iter().any(frees), "a frame was freed");
    scene.first("start", |action| {
        is_store(
            action,
            Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL)),
            pfifo::CHANNEL_START,
        )
    });
}

#[test]
fn doorbell_of_a_suspended_channel_rings_when_it_is_resumed() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (mut scene, _) = scene.contended();
    scene.take();
    scene.doorbell(A, 5);
    let own = |action: &Action| rings(action, u64::from(FIRST_CHANNEL));
    moments::works(&mut scene, FIRST_CHANNEL);
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), false);
    assert!(!scene.actions.iter().any(own), "it rang while it was suspended");
    scene.pass(70 * MS);
    scene.first("doorbell", own);
}

/// A driver that suspends keeps the block, and binds it again.
#[test]
fn guest_that_preempts_a_channel_finds_in_its_block_where_the_card_left_it() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.run_channel(A);
    scene.bar3_word = 0x5a;
    let word = |scene: &mut Scene, at: u64| {
        let window = u64::from(fermi_spec::regs::PRAMIN_BASE) + at % 0x1_0000;
        scene.register(A, PbusReg::PraminBase.into(), (at >> 16) as u32);
        scene.load(A, Bar::Bar0, window, 4)
    };
    let block = |offset: u64| scene::INSTANCE + offset;
    let before = word(&mut scene, block(offset::SIGNATURE));
    scene.held.insert(PfifoReg::Preempt.into());
    scene.register(A, PfifoReg::Preempt.into(), 0);
    assert_eq!(word(&mut scene, block(offset::GP_GET)), [0; 4]);
    scene.end_polls(PfifoReg::Preempt.into(), true);
    assert_eq!(word(&mut scene, block(offset::GP_GET)), [0x5a, 0, 0, 0]);
    assert_eq!(word(&mut scene, block(offset::SUBCHANNELS_LO)), [0x5a, 0, 0, 0]);
    assert_eq!(
        word(&mut scene, block(offset::SIGNATURE)),
        before,
        "the driver's words stay"
    );
    let preempt = scene.load(A, Bar::Bar0, u64::from(PfifoReg::Preempt.offset()), 4);
    assert_eq!(preempt, [0; 4], "and it is done");
}

#[test]
fn map_that_the_host_refuses_rolls_the_move_back() {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        bus: Bus {
            pins: true,
            ..Bus::default()
        },
        ..GpuConfig::default()
    });
    scene.refuses_maps = true;
    let (scene, _) = scene.contended();
    assert_eq!(rolled_back(&scene), Some(RollBack::MapRefused));
    assert!(!scene.actions.iter().any(frees), "a frame was freed");
}

#[test]
fn copy_that_does_not_end_is_given_up_and_nothing_is_freed_before_the_engine_lets_go() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (mut scene, _) = scene.contended();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    scene.pass(100 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::CopyOverTime));
    assert!(scene.is_moving(), "it waits for the broker's own channel");
    assert!(!scene.actions.iter().any(frees));
    scene.held.clear();
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), true);
    assert!(!scene.notices().any(moved));
}

#[test]
fn store_to_a_chunk_that_is_copied_waits_for_the_end_of_the_move() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (mut scene, _) = scene.contended();
    assert!(scene.is_moving());
    // One of A's chunks is on its way: a store to each finds it.
    scene.register(A, Bar0Reg::from(PbusReg::Bar1Block), 0);
    let requests: Vec<_> = (0..27)
        .map(|chunk| scene.store(A, Bar::Bar1, DATA + chunk * 2 * MIB, &[1, 2, 3, 4]))
        .collect();
    let waiting = |scene: &Scene| requests.iter().filter(|&&r| scene.reply(r).is_none()).count();
    assert!(waiting(&scene) > 0, "no store waits");
    scene.end_copy();
    scene.pass(5 * MS);
    assert_eq!(waiting(&scene), 0);
    let stored = scene.notices().position(moved);
    assert!(stored.is_some(), "the move came to its end");
}

/// The interrupt of a copy's end and the copy itself want a look at the card each, and each look is some twenty loads: one does for both.
#[test]
fn card_is_looked_at_once_for_the_end_of_a_copy() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (mut scene, _) = scene.contended();
    let looks = |scene: &Scene| {
        let causes = u64::from(Bar0Reg::from(PmcReg::PmcIntr(0)).offset());
        let is_look =
            |action: &&Action| matches!(action, Action::HostRead { offset, .. } if *offset == causes);
        scene.actions.iter().filter(is_look).count()
    };
    scene.take();
    scene.apply(Event::HostInterrupt);
    assert_eq!(
        (looks(&scene), scene.is_moving()),
        (1, true),
        "it is about something else"
    );
    scene.end_copy();
    scene.take();
    scene.apply(Event::HostInterrupt);
    let verified = scene.first(
        "verified",
        |action| matches!(action, Action::Notice(notice) if moved(notice)),
    );
    scene.actions.truncate(verified);
    assert_eq!(looks(&scene), 1);
}

/// B asks for memory, A's move is stopped at some stage, and A leaves.
fn leave_in_the_middle(mut scene: Scene, end: impl FnOnce(&mut Scene)) {
    assert!(scene.is_moving());
    scene.take();
    scene.apply(Event::Detach { vm: A });
    assert!(!scene.actions.iter().any(detached), "it is gone before its move");
    end(&mut scene);
    scene.pass(300 * MS);
    scene.first("end", detached);
    assert_eq!(scene.resident(A), 0);
    assert_eq!(scene.resident(B), 2 * MIB);
}

#[test]
fn detach_while_channels_are_suspended_waits_for_the_move() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (scene, _) = scene.contended();
    leave_in_the_middle(scene, |scene| {
        scene.held.clear();
        scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), true);
    });
}

#[test]
fn detach_while_a_copy_runs_waits_for_the_move() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (scene, _) = scene.contended();
    leave_in_the_middle(scene, |scene| {
        scene.copies_end = true;
        scene.end_copy();
    });
}

#[test]
fn detach_while_a_redirect_is_flushed_waits_for_the_move() {
    let mut scene = Scene::up();
    scene.copies_end = false;
    let (mut scene, _) = scene.contended();
    scene.held.insert(Bar0Reg::from(PffbReg::MmuConfig));
    scene.copies_end = true;
    scene.end_copy();
    scene.pass(2 * MS);
    leave_in_the_middle(scene, |scene| {
        scene.held.clear();
        scene.end_polls(Bar0Reg::from(PffbReg::MmuConfig), true);
    });
}

#[test]
fn demand_that_is_not_met_in_time_gets_host_ram() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (mut scene, request) = scene.contended();
    assert_eq!(scene.reply(request), None);
    scene.pass(160 * MS);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    let in_host_ram = scene
        .notices()
        .filter(|notice| matches!(notice, Notice::Backed { resident: false, .. }))
        .count();
    assert!(in_host_ram > 0);
}

#[test]
fn reset_drops_the_image_before_it_is_answered() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.take();
    let request = scene.ask(A, Request::Reset);
    scene.pass(MS);
    let dropped = scene.first("drop", |action| {
        *action
            == Action::DropImage {
                vm: A,
                at: GuestVramAddr(0),
                bytes: 16 * MIB,
            }
    });
    let answered = scene.first(
        "answer",
        |action| matches!(action, Action::Reply { request: of, .. } if *of == request),
    );
    assert!(dropped < answered);
    assert_eq!(scene.resident(A), 0);
}

#[test]
fn ram_goes_out_of_reach_only_after_the_flush() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.take();
    scene.held.insert(Bar0Reg::from(PffbReg::MmuConfig));
    let unmap = Request::UnmapRam {
        gpa: Gpa(0),
        bytes: 16 * MIB,
    };
    let request = scene.ask(A, unmap);
    let unmaps = |action: &Action| matches!(action, Action::UnmapDma { .. });
    assert!(!scene.actions.iter().any(unmaps) && scene.reply(request).is_none());
    scene.end_polls(Bar0Reg::from(PffbReg::MmuConfig), true);
    assert!(scene.actions.iter().any(unmaps));
    assert_eq!(scene.reply(request), Some(&Reply::Done));
}

/// Bytes of the configuration space as a VM reads them.
fn config_of(scene: &mut Scene, vm: VmId, offset: u64, bytes: u32) -> Vec<u8> {
    let id = scene.ask(vm, Request::ReadConfig { offset, bytes });
    match scene.reply(id) {
        Some(Reply::Data(data)) => data.clone(),
        other => panic!("a load of configuration space is answered by {other:?}"),
    }
}

fn store_config(scene: &mut Scene, vm: VmId, offset: u64, data: &[u8]) {
    let data = data.to_vec();
    let id = scene.ask(vm, Request::WriteConfig { offset, data });
    assert_eq!(scene.reply(id), Some(&Reply::Done));
}

/// What the edge was told about a VM's interrupts since the last [`Scene::take`].
fn let_through(scene: &Scene) -> Vec<(VmId, bool)> {
    let told = |action: &Action| match action {
        Action::LetInterrupts { vm, through } => Some((*vm, *through)),
        _ => None,
    };
    scene.actions.iter().filter_map(told).collect()
}

#[test]
fn mirror_in_bar0_shows_the_configuration_space() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    // BAR1 by two stores, the command register by one byte.
    store_config(&mut scene, A, 0x14, &0xc000_0000_u32.to_le_bytes());
    store_config(&mut scene, A, 0x18, &[0x12, 0, 0, 0]);
    store_config(&mut scene, A, 4, &[6]);
    let space = config_of(&mut scene, A, 0, 256);
    let mirror: Vec<u8> = (0..64)
        .flat_map(|word| scene.load(A, Bar::Bar0, 0x8_8000 + 4 * word, 4))
        .collect();
    assert_eq!(mirror, space);
    assert_eq!(space[0x14..0x1c], [0x0c, 0, 0, 0xc0, 0x12, 0, 0, 0]);
    assert_eq!(scene.load(A, Bar::Bar0, 0x8_8004, 1), [6]);
    // Behind the space the mirror reads zero.
    assert_eq!(scene.load(A, Bar::Bar0, 0x8_8100, 4), [0; 4]);
}

#[test]
fn store_through_the_mirror_is_one_to_the_configuration_space() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    store_config(&mut scene, A, 0x6a, &[1]);
    scene.take();
    scene.store(A, Bar::Bar0, 0x8_8004, &[6, 0, 0, 0]);
    assert_eq!(config_of(&mut scene, A, 4, 1), [6]);
    assert_eq!(let_through(&scene), [(A, true)], "the edge hears of it");
    let before = config_of(&mut scene, A, 0, 256);
    // Ids cannot be written, and nothing is behind the space.
    scene.store(A, Bar::Bar0, 0x8_8000, &[0xff; 4]);
    scene.store(A, Bar::Bar0, 0x8_8100, &[0xff; 4]);
    assert_eq!(config_of(&mut scene, A, 0, 256), before);
}

#[test]
fn prom_shows_the_image_of_the_board_while_the_shadow_is_off() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let image = fermi_spec::vbios::image_of(fermi_spec::board::Board::default());
    assert_eq!(scene.load(A, Bar::Bar0, 0x30_0000, 4), [0xff; 4]);
    scene.store(A, Bar::Bar0, 0x8_8050, &[0; 4]);
    let words =
        (0..image.len() as u64 / 4).flat_map(|word| scene.load(A, Bar::Bar0, 0x30_0000 + 4 * word, 4));
    assert_eq!(words.collect::<Vec<_>>(), image);
    assert_eq!(scene.load(A, Bar::Bar0, 0x30_0001, 1), image[1..2]);
    for behind in [0x30_0200, 0x37_fffc] {
        assert_eq!(scene.load(A, Bar::Bar0, behind, 4), [0xff; 4], "{behind:#x}");
    }
    // As a card after its reset.
    scene.ask(A, Request::Reset);
    scene.pass(MS);
    assert_eq!(scene.load(A, Bar::Bar0, 0x30_0000, 4), [0xff; 4]);
}

#[test]
fn configuration_space_is_each_vms_own_and_goes_back_at_a_reset() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.attach(B, 16);
    let fresh = config_of(&mut scene, A, 0, 256);
    store_config(&mut scene, A, 0, &[0xff; 256]);
    assert_ne!(config_of(&mut scene, A, 0, 256), fresh);
    assert_eq!(config_of(&mut scene, B, 0, 256), fresh);
    scene.ask(A, Request::Reset);
    scene.pass(MS);
    assert_eq!(config_of(&mut scene, A, 0, 256), fresh);
}

#[test]
fn interrupts_are_let_through_with_msi_and_bus_master_until_a_reset() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.take();
    store_config(&mut scene, A, 0x6a, &[1]);
    assert_eq!(let_through(&scene), []);
    store_config(&mut scene, A, 4, &[6]);
    store_config(&mut scene, A, 4, &[6]);
    assert_eq!(let_through(&scene), [(A, true)]);
    scene.take();
    scene.ask(A, Request::Reset);
    scene.pass(MS);
    assert_eq!(let_through(&scene), [(A, false)]);
}

#[test]
fn configuration_access_anywhere_and_of_any_length_is_answered() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    let fresh = config_of(&mut scene, A, 0, 256);
    for offset in [254, 255, 256, 0x8_8000, u64::MAX - 1, u64::MAX] {
        for bytes in [0, 1, 3, 4, 300, 4096, u32::MAX] {
            let data = config_of(&mut scene, A, offset, bytes);
            assert_eq!(data.len(), (bytes as usize).min(4096));
            let inside = usize::try_from(256 - offset.min(256))
                .unwrap_or(0)
                .min(data.len());
            assert_eq!(
                data[..inside],
                fresh[256 - (256 - offset.min(256)) as usize..][..inside]
            );
            assert!(
                data[inside..].iter().all(|byte| *byte == 0xff),
                "{bytes} bytes at {offset:#x}"
            );
            store_config(&mut scene, A, offset, &vec![0xff; bytes.min(5000) as usize]);
        }
    }
    assert_eq!(config_of(&mut scene, A, 0, 256), fresh);
}

#[test]
fn configuration_access_of_a_vm_that_is_not_attached_is_refused() {
    let mut scene = Scene::up();
    let data = vec![6];
    let id = scene.ask(B, Request::WriteConfig { offset: 4, data });
    assert_eq!(scene.reply(id), Some(&Reply::Refused(Refusal::NotAttached)));
}

/// The bind of a channel goes on with the instance block that was read for it.
#[test]
fn state_with_a_cut_instance_block_is_refused() {
    let (scene, request) = Scene::up().contended();
    assert_eq!(scene.reply(request), None);
    let config = GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    };
    let whole = scene.manager.save();
    let (before, behind) = whole.split_once(r#""block":""#).expect("a bind that waits");
    let cut = format!("{before}\"block\":\"{}", &behind[2..]);
    let volatile = scene.manager.into_volatile();
    let error = Manager::load(config.clone(), &cut, volatile)
        .map(drop)
        .expect_err("a block of 4,095 bytes");
    assert!(error.to_string().contains("instance block"), "{error}");

    let (scene, _) = Scene::up().contended();
    let loaded = Manager::load(config, &whole, scene.manager.into_volatile());
    assert_eq!(loaded.map(|loaded| loaded.save()).ok(), Some(whole));
}
