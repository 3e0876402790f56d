//! What is known of when a VM's address spaces had work, and what comes of it.

use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo::ChannelState};

use super::scene::{MIB, MS, Scene};
use crate::config::{GpuConfig, Hold, Quota};
use crate::device::{BREAK_NS, Said};
use crate::event::{Action, Event, Tick, VmId};
use crate::host::Job;

const A: VmId = VmId(0);
const B: VmId = VmId(1);

/// When the space of the first VM had work, as milliseconds ago.
fn had_work_before(scene: &mut Scene) -> Option<u64> {
    let now = Tick(scene.now);
    let space = scene.running().vms[&A].spaces.values().next();
    let at = space.expect("a channel is bound").worked_at;
    at.map(|at| now.since(at) / MS)
}

/// The first VM has chunks in host RAM, and its channel rang once.
fn rung() -> Scene {
    let (mut scene, _) = Scene::up().contended();
    scene.pass(200 * MS);
    assert!(scene.chunks_of(A).spilled() > 0);
    assert_eq!(had_work_before(&mut scene), None);
    scene.doorbell(A, 1);
    assert_eq!(had_work_before(&mut scene), Some(0));
    scene
}

fn says(scene: &mut Scene, vm: VmId, state: ChannelState) {
    let channel = scene.running().vms[&vm].channels[&0].physical;
    let reg = Bar0Reg::from(PfifoReg::ChannelState(channel.0.into()));
    scene.registers.insert(reg, state.into_bits());
}

/// An answer before a pass.
fn said(state: ChannelState, asked_at: Tick) -> Said {
    Said {
        state,
        is_on_engine: false,
        is_before_a_pass: true,
        asked_at,
    }
}

#[test]
fn space_is_in_use_while_its_channel_has_work_and_waits_for_nobody() {
    let mut scene = rung();
    let busy = ChannelState::new().with_pending(true).with_runnable(true);
    for (put, state, is_busy) in [
        (2, ChannelState::new().with_runnable(true), false),
        (3, busy, true),
        (4, busy.with_acquire_pending(true), false),
    ] {
        says(&mut scene, A, state);
        scene.doorbell(A, put);
        scene.pass(300 * MS);
        let before = had_work_before(&mut scene).expect("it rang");
        assert_eq!(before <= 100, is_busy, "{before} ms ago by {state:?}");
    }
}

#[test]
fn only_a_doorbell_that_brings_work_counts() {
    let mut scene = rung();
    scene.pass(40 * MS);
    scene.doorbell(A, 1);
    assert_eq!(scene.running().vms[&A].activity.doorbells, 1);
    assert_eq!(had_work_before(&mut scene), Some(40));
    scene.doorbell(A, 2);
    assert_eq!(scene.running().vms[&A].activity.doorbells, 2);
    assert_eq!(had_work_before(&mut scene), Some(0));
}

/// The card was asked before a doorbell, and answers behind it.
#[test]
fn answer_from_before_a_doorbell_ends_no_work() {
    let mut scene = rung();
    scene.pass(300 * MS);
    let at = Tick(scene.now);
    let vgpu = scene.running().vms.get_mut(&A).expect("attached");
    assert!(!vgpu.channels[&0].has_work, "the card has said so");
    assert!(!vgpu.note_doorbell(0, at));
    let idle = ChannelState::new().with_runnable(true);
    for (asked_at, has_work) in [(Tick(at.0 - 1), true), (at, true), (at.after(1), false)] {
        let channel = vgpu.note_state(0, &said(idle, asked_at), at.after(2));
        assert_eq!(
            channel.map(|channel| channel.has_work),
            Some(has_work),
            "{asked_at:?}"
        );
    }
}

/// The card says that the channel has nothing to do, and has not seen its doorbell, which waits behind a preempt.
#[test]
fn answer_without_a_doorbell_that_waits_in_a_lane_ends_no_work() {
    let has_work = |scene: &mut Scene| scene.running().vms[&A].channels[&0].has_work;
    let mut scene = rung();
    let preempt = Bar0Reg::from(PfifoReg::Preempt);
    scene.held.insert(preempt);
    let physical = scene.running().vms[&A].channels[&0].physical;
    scene.running().card.preempt(physical, 1_000 * MS, Job::Nothing);
    scene.running().card.ring_later(physical, 1);
    scene.pass(300 * MS);
    assert!(has_work(&mut scene));
    scene.end_polls(preempt, true);
    scene.pass(300 * MS);
    assert!(!has_work(&mut scene));
}

/// With enough VRAM there is nothing to choose among, and no load for it.
#[test]
fn nothing_is_asked_while_nothing_is_spilled() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 2);
    scene.run_channel(A);
    scene.doorbell(A, 1);
    let asks = |action: &Action| {
        let state = Bar0Reg::from(PfifoReg::ChannelState(1)).offset();
        matches!(action, Action::HostRead { offset, .. } if *offset == u64::from(state))
    };
    scene.take();
    scene.pass(500 * MS);
    assert!(!scene.take().iter().any(asks));
}

/// Two VMs each of which uses as much as the card has, in chunks that are half in host RAM, and rang just now.
struct Two {
    scene: Scene,
    put: u32,
}

impl Two {
    fn with(lends_after_ns: u64) -> Self {
        let mut scene = Scene::with(GpuConfig {
            frames_arrive_zeroed: true,
            lends_after_ns,
            refill_period_ns: 5 * MS,
            ..GpuConfig::default()
        });
        for vm in [A, B] {
            scene.attach(vm, 64);
            scene.bind(vm, 54);
            scene.run_channel(vm);
        }
        let mut two = Self { scene, put: 1 };
        two.work([A, B], 1_000);
        assert!(two.is_even(), "{:?} MiB", two.resident());
        two
    }

    /// Each has half, but for a chunk.
    fn is_even(&self) -> bool {
        let [a, b] = self.resident();
        a.abs_diff(b) <= 2 && a > 20
    }

    /// These ring each 10 ms, for so many milliseconds.
    fn work(&mut self, vms: impl IntoIterator<Item = VmId> + Clone, ms: u64) {
        for _ in 0..ms / 10 {
            self.ring(vms.clone());
            self.scene.pass(10 * MS);
        }
    }

    fn ring(&mut self, vms: impl IntoIterator<Item = VmId>) {
        self.put += 1;
        for vm in vms {
            self.scene.doorbell(vm, self.put);
        }
    }

    /// Milliseconds of rest after which the second lends as a habit, a fourth of a long rest.
    fn soon_ms(&mut self) -> u64 {
        let forecast = self.scene.running().forecast;
        (8 * forecast.copy_ns(54 * MIB)).max(BREAK_NS).div_ceil(MS)
    }

    /// MiB in VRAM.
    fn resident(&self) -> [u64; 2] {
        [A, B].map(|vm| self.scene.resident(vm) / MIB)
    }
}

#[test]
fn who_rests_lends_and_has_it_back_with_its_first_doorbell() {
    let mut two = Two::with(100 * MS);
    let [a, b] = two.resident();
    two.work([A], 90);
    assert_eq!(two.resident(), [a, b], "nobody has rested for long enough");
    two.work([A], 400);
    let [more, rest] = two.resident();
    assert!(more > a + 20 && rest == 0, "{more} and {rest} MiB");
    two.ring([B]);
    assert!(
        two.scene.is_moving() || two.resident()[1] > 0,
        "the pass comes at once"
    );
    two.work([A, B], 200);
    assert!(two.is_even(), "{:?} MiB", two.resident());
}

/// One that rests for a second, works for a fifth of one, and so on, for so many times.
fn take_turns(two: &mut Two, times: u32) {
    for _ in 0..times {
        two.work([A], 1_000);
        two.work([A, B], 200);
    }
}

#[test]
fn who_rests_for_long_as_a_habit_lends_soon() {
    let mut two = Two::with(30_000 * MS);
    let shares = two.resident();
    take_turns(&mut two, 1);
    two.work([A], 1_000);
    assert_eq!(two.resident(), shares, "one long rest is no habit");
    two.work([A, B], 200);
    let soon_ms = two.soon_ms();
    two.work([A], soon_ms - 20);
    assert_eq!(two.resident(), shares, "it may be a break");
    two.work([A], 200);
    assert_eq!(two.resident()[1], 0);
    two.work([A, B], 200);
    assert!(two.is_even(), "{:?} MiB", two.resident());
}

#[test]
fn habit_ends_with_a_short_rest() {
    let mut two = Two::with(30_000 * MS);
    take_turns(&mut two, 2);
    let short_ms = 2 * two.soon_ms();
    two.work([A], short_ms);
    assert_eq!(two.resident()[1], 0, "it has lent");
    two.work([A, B], 300);
    let shares = two.resident();
    assert!(two.is_even(), "{shares:?} MiB");
    for _ in 0..2 {
        two.work([A], 1_000);
        assert_eq!(two.resident(), shares);
        two.work([A, B], 200);
    }
    two.work([A], 400);
    assert_eq!(two.resident()[1], 0, "two long ones are a habit again");
}

/// It is not its guest's habit that an operator keeps it from working.
#[test]
fn time_for_which_a_vm_was_suspended_is_no_habit() {
    let mut two = Two::with(30_000 * MS);
    for _ in 0..3 {
        suspend(&mut two.scene, B, true);
        two.ring([B]);
        two.work([A], 1_000);
        suspend(&mut two.scene, B, false);
        two.work([A, B], 200);
    }
    let shares = two.resident();
    two.work([A], 400);
    assert_eq!(two.resident(), shares);
}

#[test]
fn low_and_min_are_not_lent() {
    for quota in [
        Quota {
            low: 9 * MIB,
            ..Quota::default()
        },
        Quota {
            min: 9 * MIB,
            ..Quota::default()
        },
    ] {
        let mut two = Two::with(100 * MS);
        two.scene.apply(Event::SetQuota { vm: B, quota });
        two.work([A], 1_000);
        assert_eq!(two.resident()[1], 10, "whole chunks that hold 9 MiB, {quota:?}");
    }
}

#[test]
fn rest_that_has_not_paid_for_the_copies_lends_nothing() {
    let mut two = Two::with(MS);
    let [a, b] = two.resident();
    // What a copy of 54 MiB takes here, eight times.
    let forecast = two.scene.running().forecast;
    let pays_ms = 8 * forecast.copy_ns(54 * MIB) / MS;
    assert!(pays_ms > 30, "{pays_ms} ms");
    two.work([A], pays_ms - 20);
    assert_eq!(two.resident(), [a, b]);
    two.work([A], 400);
    assert_eq!(two.resident()[1], 0);
}

#[test]
fn grid_without_end_is_no_rest_and_a_wait_for_a_semaphore_is_one() {
    let busy = ChannelState::new().with_pending(true).with_runnable(true);
    for (state, lends) in [(busy, false), (busy.with_acquire_pending(true), true)] {
        let mut two = Two::with(100 * MS);
        let [a, b] = two.resident();
        says(&mut two.scene, B, state);
        two.ring([B]);
        two.work([A], 1_000);
        assert_eq!(two.resident() != [a, b], lends, "{state:?}");
        // Whoever releases the semaphore rings no doorbell.
        says(&mut two.scene, B, busy);
        two.work([A], 400);
        assert!(two.is_even(), "{:?} MiB, {state:?}", two.resident());
    }
}

/// The card counts a doorbell as work until it has looked at the ring. Two such answers are work, and so is one behind a doorbell of the guest's.
#[test]
fn doorbell_that_the_broker_rings_behind_a_move_is_no_work_of_the_guest() {
    let idle = ChannelState::new().with_runnable(true);
    let busy = idle.with_pending(true);
    let waiting = busy.with_acquire_pending(true);
    let mut scene = rung();
    let mut now = scene.now;
    let vgpu = scene.running().vms.get_mut(&A).expect("attached");
    for before in [idle, waiting] {
        for (answers, works) in [
            (&[busy, before, busy][..], [false, false, true]),
            (&[busy, busy, before], [false, true, false]),
            (&[before, busy, before], [false, before == waiting, false]),
        ] {
            let mut answer = |vgpu: &mut crate::device::Vgpu, state| {
                now += MS;
                // Whoever else asks settles nothing.
                for is_before_a_pass in [false, true] {
                    let said = Said {
                        is_before_a_pass,
                        ..said(state, Tick(now - 1))
                    };
                    vgpu.note_state(0, &said, Tick(now));
                }
                vgpu.channels[&0].is_at_work()
            };
            assert!(!answer(vgpu, before));
            let used_at = vgpu.activity.used_at;
            vgpu.channels.get_mut(&0).expect("bound").ring_again();
            let found: Vec<bool> = answers.iter().map(|state| answer(vgpu, *state)).collect();
            assert_eq!(found, works, "{answers:?}");
            assert_eq!(
                vgpu.activity.used_at > used_at,
                works.contains(&true),
                "{answers:?}"
            );
        }
        vgpu.channels.get_mut(&0).expect("bound").ring_again();
        assert!(!vgpu.note_doorbell(0, Tick(now)));
        now += MS;
        vgpu.note_state(0, &said(busy, Tick(now - 1)), Tick(now));
        assert!(vgpu.channels[&0].is_at_work());
    }
}

fn suspend(scene: &mut Scene, vm: VmId, is_suspended: bool) {
    let vram = None;
    let hold = Hold { vram, is_suspended };
    scene.apply(Event::SetHold { vm, hold });
}

/// What it had on the card ends, though nobody lets it go, and it has its memory back for what it handed over meanwhile.
#[test]
fn suspended_vm_lends_when_its_work_is_done_and_not_before() {
    let busy = ChannelState::new().with_pending(true).with_runnable(true);
    let idle = ChannelState::new().with_runnable(true);
    let mut two = Two::with(100 * MS);
    let [a, b] = two.resident();
    says(&mut two.scene, B, busy);
    two.ring([B]);
    suspend(&mut two.scene, B, true);
    two.work([A], 400);
    assert_eq!(two.resident(), [a, b], "it has work on the card");
    two.ring([B]);
    says(&mut two.scene, B, idle);
    two.work([A], 400);
    assert_eq!(two.resident()[1], 0);
    suspend(&mut two.scene, B, false);
    assert!(
        two.scene.is_moving() || two.resident()[1] > 0,
        "the pass comes at once"
    );
    says(&mut two.scene, B, busy);
    two.work([A], 400);
    assert!(two.is_even(), "{:?} MiB", two.resident());
}

#[test]
fn nobody_lends_where_that_is_switched_off() {
    let mut two = Two::with(0);
    let shares = two.resident();
    take_turns(&mut two, 3);
    two.work([A], 10_000);
    assert_eq!(two.resident(), shares);
}

/// What rests keeps what nobody else wants.
#[test]
fn memory_is_lent_to_those_alone_who_want_it() {
    let mut two = Two::with(100 * MS);
    let shares = two.resident();
    two.scene.pass(5_000 * MS);
    assert_eq!(two.resident(), shares, "both rest");
}

/// A guest that lends as soon as it may, and works as soon as it has lent, or when its rest was so long that the next one may be short. All that
/// moves is counted, the neighbour's memory too.
#[test]
fn who_rests_and_works_as_fast_as_it_pays_takes_a_third_of_the_link_at_most() {
    for (lends_after_ns, rest_ms) in [(MS, 0), (30_000 * MS, 310)] {
        lend_and_work(lends_after_ns, rest_ms);
    }
}

fn lend_and_work(lends_after_ns: u64, rest_ms: u64) {
    let mut two = Two::with(lends_after_ns);
    let copy_ns = two.scene.running().forecast.copy_ns(MIB);
    let moved = |two: &Two| {
        let accounts = [A, B].map(|vm| two.scene.manager.account(vm).cloned().unwrap_or_default());
        let bytes = accounts.map(|of| of.spilled_bytes + of.refilled_bytes);
        bytes.iter().sum::<u64>()
    };
    let (before, start) = (moved(&two), two.scene.now);
    let (mut lent, mut rested_ms) = (0, 0);
    for _ in 0..3_000 {
        two.work([A], 10);
        rested_ms += 10;
        if two.resident()[1] == 0 || rested_ms == 1_000 {
            lent += u32::from(two.resident()[1] == 0);
            two.work([A], rest_ms.saturating_sub(rested_ms));
            two.work([A, B], 10);
            rested_ms = 0;
        }
    }
    let (moved_mib, passed) = ((moved(&two) - before) / MIB, two.scene.now - start);
    assert!(lent > 10, "it lent {lent} times");
    let part = moved_mib * copy_ns * 1000 / passed;
    assert!(
        part <= 334,
        "{moved_mib} MiB are {part} thousandths of the link's time, with rests of {rest_ms} ms"
    );
}
