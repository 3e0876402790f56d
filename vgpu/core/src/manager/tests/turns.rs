//! What one VM may have done before the others get their turn, and what it may hold beside them.

use fermi_spec::addr::{Gpa, SMALL_PAGE};
use fermi_spec::pte::{Pde, PdeAperture, SMALL_PT_BYTES};
use fermi_spec::regs::pfifo::ChannelInstance;
use fermi_spec::regs::{Bar0Reg, PffbReg, PfifoReg, PmcReg, pffb};

use super::scene::{DATA, DIRECTORY, INSTANCE, MIB, MS, Scene, TABLE};
use crate::event::{Action, Event, Refusal, Reply, Request, RequestId, Tick, VmId};
use crate::inspect::{Node, Value};
use crate::notice::Notice;
use crate::share::SLICE;

const A: VmId = VmId(0);
const B: VmId = VmId(1);
/// Directory entries that an address space may have.
const TABLES: u64 = 64;
/// What an event may take beyond a slice: the last step of a sync, and the request itself.
pub(super) const EXCESS: u64 = shadow_pt::Work::EXCESS_MAX + 64 * crate::share::PAGE_FETCHED + 10_000;

fn number(scene: &Scene, path: &str) -> u64 {
    let mut node = scene
        .manager
        .inspect(Tick(scene.now), path)
        .unwrap_or_else(|| panic!("nothing at {path}"));
    for name in path.split('/') {
        let Node::Group(parts) = node else {
            panic!("{name} of {path} has no parts")
        };
        let part = parts.into_iter().find(|(part, _)| part == name);
        node = part.unwrap_or_else(|| panic!("no {name} of {path}")).1;
    }
    match node {
        Node::Leaf(Value::Quantity(number, _)) => number,
        other => panic!("{path} is {other:?}"),
    }
}

pub(super) fn work(scene: &Scene, vm: VmId) -> u64 {
    number(scene, &format!("vms/{vm}/share/work"))
}

/// Two VMs; the directory of the first has as many entries as there may be, all to one table of large pages, and each to a
/// table of small ones of its own.
pub(super) fn greedy(small_tables: Option<u64>) -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    scene.attach(B, 32);
    scene.bind(A, 54);
    let pde = Pde::new()
        .with_large_aperture(PdeAperture::Vram)
        .with_large_frame((TABLE >> 12) as u32);
    let entry = |number: u64| match small_tables {
        Some(at) => pde
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame(((at + number * SMALL_PT_BYTES) >> 12) as u32),
        None => pde,
    };
    let entries: Vec<u8> = (0..TABLES)
        .flat_map(|number| entry(number).into_bits().to_le_bytes())
        .collect();
    scene.put(A, DIRECTORY, &entries);
    scene.take();
    scene.gives_turns = false;
    scene
}

/// Gives the first VM its turns until the request is answered; the second one asks something before each. Returns how many
/// turns that took.
pub(super) fn turns_until_answered(scene: &mut Scene, request: RequestId) -> u32 {
    let mut turns = 0;
    while scene.reply(request).is_none() {
        let asked = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), turns);
        assert_eq!(scene.reply(asked), Some(&Reply::Done), "turn {turns}");
        let at = scene.next_turn().expect("it waits for its turn");
        scene.now = scene.now.max(at.0);
        let (before, actions) = (work(scene, A), scene.actions.len());
        scene.apply(Event::Wake);
        let done = work(scene, A) - before;
        assert!(done <= SLICE + EXCESS, "turn {turns} took {done}");
        let loads = scene.actions[actions..].iter();
        let loads = loads
            .filter(|action| matches!(action, Action::HostRead { .. }))
            .count();
        assert!(loads <= 128, "turn {turns} fetched {loads} pages");
        turns += 1;
    }
    turns
}

#[test]
fn sync_longer_than_its_slice_lets_others_in_between_and_holds_what_is_behind_it() {
    let mut scene = greedy(None);
    let flush = scene.flush(A);
    let behind = scene.register(A, Bar0Reg::from(PmcReg::PmcEnable), !0);
    assert_eq!(scene.reply(flush), None);
    let turns = turns_until_answered(&mut scene, flush);
    assert!(turns > 10, "{turns} turns");
    let place = |of: RequestId| {
        scene.first(
            "answer",
            |action| matches!(action, Action::Reply { request, .. } if *request == of),
        )
    };
    assert!(place(flush) < place(behind));
}

#[test]
fn two_hundred_flushes_at_once_take_turns() {
    let mut scene = greedy(None);
    let first = scene.flush(A);
    let _ = turns_until_answered(&mut scene, first);
    // Nothing changed, but tables that the GPU may write are compared each time.
    let flushes: Vec<RequestId> = (0..200)
        .map(|_| {
            let value = pffb::TLB_GO | pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES;
            scene.register(A, Bar0Reg::from(PffbReg::TlbInvalidate), value)
        })
        .collect();
    let last = *flushes.last().expect("there are 200");
    let turns = turns_until_answered(&mut scene, last);
    assert!(turns > 10, "{turns} turns");
}

#[test]
fn tables_in_vram_are_fetched_a_few_at_a_time_and_each_once() {
    let mut scene = greedy(Some(DATA));
    let flush = scene.flush(A);
    let before = scene.actions.len();
    let _ = turns_until_answered(&mut scene, flush);
    let fetched = scene.actions[before..]
        .iter()
        .filter(|action| matches!(action, Action::HostRead { bytes: 4096, .. }))
        .count() as u64;
    assert_eq!(fetched, TABLES * SMALL_PT_BYTES / SMALL_PAGE);
}

#[test]
fn wait_for_a_turn_ends_for_a_vm_alone_at_once() {
    let mut scene = greedy(None);
    scene.apply(Event::Detach { vm: B });
    let flush = scene.flush(A);
    let mut turns = 0;
    while scene.reply(flush).is_none() {
        assert_eq!(scene.next_turn().map(|at| at.0 <= scene.now), Some(true));
        scene.apply(Event::Wake);
        turns += 1;
    }
    assert!(turns > 10);
}

#[test]
fn tables_of_a_vm_are_bounded_over_all_its_spaces_and_it_is_told() {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    scene.bind(A, 1);
    // Six more spaces, each full of tables without an entry: they take no shadow memory.
    let empty = Pde::new()
        .with_small_aperture(PdeAperture::Vram)
        .with_small_frame(0x300);
    let entries: Vec<u8> = (0..TABLES)
        .flat_map(|_| empty.into_bits().to_le_bytes())
        .collect();
    for space in 1..7 {
        let (directory, instance) = (DIRECTORY + (space + 16) * 0x1_0000, INSTANCE + space * 0x1000);
        scene.put(A, directory, &entries);
        scene.put(A, instance + 0x200, &(directory as u32).to_le_bytes());
        scene.put(A, instance + 0x208, &[0xff; 4]);
        let entry = ChannelInstance::new()
            .with_frame((instance >> 12) as u32)
            .with_poll(true)
            .with_valid(true);
        let register = Bar0Reg::from(PfifoReg::ChannelInstance(space as u16));
        scene.register(A, register, entry.into_bits());
    }
    assert_eq!(number(&scene, "vms/vm0/snapshots_of_tables/tables"), 256);
    let heap = number(&scene, "vms/vm0/snapshots_of_tables/host_memory");
    assert!(heap < 64 * MIB, "{heap} bytes");
    let told = scene.notices().any(
        |notice| matches!(notice, Notice::GuestError { what, .. } if what.contains("256 that are followed")),
    );
    assert!(told);
    scene.apply(Event::Detach { vm: A });
    scene.pass(MS);
    assert!(scene.has(&Action::Detached { vm: A }));
}

fn map(gpa: u64, bytes: u64) -> Request {
    let (gpa, writable) = (Gpa(gpa), true);
    Request::MapRam { gpa, bytes, writable }
}

#[test]
fn sparse_ram_beyond_a_vms_own_is_refused_and_leaves_the_bus_to_others() {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    let all = scene.ask(A, map(1 << 30, 1000 << 30));
    assert_eq!(scene.reply(all), Some(&Reply::Refused(Refusal::TooMuchRam)));
    let told = scene
        .notices()
        .any(|notice| matches!(notice, Notice::GuestError { what, .. } if what.contains("`ram` is 16384M")));
    assert!(told);
    // In pieces, with holes between them: bus addresses of others are not what is fragmented.
    for piece in 1..15 {
        let held = scene.ask(A, map(piece << 30, 1 << 30));
        assert_eq!(scene.reply(held), Some(&Reply::Done), "piece {piece}");
    }
    for piece in (1..15).step_by(2) {
        let (gpa, bytes) = (Gpa(piece << 30), 1 << 30);
        scene.ask(A, Request::UnmapRam { gpa, bytes });
    }
    scene.attach(B, 32);
    let whole = scene.ask(B, map(16 * MIB, crate::RAM_DEFAULT - 16 * MIB));
    assert_eq!(scene.reply(whole), Some(&Reply::Done));
    let one_more = scene.ask(B, map(64 << 30, SMALL_PAGE));
    assert_eq!(scene.reply(one_more), Some(&Reply::Refused(Refusal::TooMuchRam)));
}
