//! Doorbells that the edge finds in memory.

use fermi_spec::bar::Bar;
use fermi_spec::instance::{USERD_BYTES, userd};
use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo};

use super::scene::Scene;
use crate::event::{Action, Event, HostMemory as _, Place, VmId};

const A: VmId = VmId(0);
const B: VmId = VmId(1);

/// A VM with a channel on the card, whose client maps its windows.
fn scene() -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.attach(B, 32);
    scene.apply(Event::LetWindows { vm: A });
    scene.bind(A, 8);
    scene.run_channel(A);
    scene.pass(1_000_000);
    scene
}

fn store(scene: &mut Scene, v: u64, at: u64, value: u32) {
    let offset = v * USERD_BYTES + at;
    let place = Place::Bar1 { vm: A, offset };
    assert!(scene.memory.write(place, &value.to_le_bytes()));
}

fn load(scene: &mut Scene, v: u64, at: u64) -> u32 {
    let mut word = [0; 4];
    let offset = v * USERD_BYTES + at;
    assert!(scene.memory.read(Place::Bar1 { vm: A, offset }, &mut word));
    u32::from_le_bytes(word)
}

fn found(scene: &mut Scene, vm: VmId, channels: &[u8]) {
    let channels = channels.to_vec();
    scene.apply(Event::Doorbells { vm, channels });
}

/// GP_PUTs that were stored to the card since the last look.
fn rung(scene: &mut Scene) -> Vec<u32> {
    let is_put = |action: Action| match action {
        Action::HostWrite {
            bar: Bar::Bar1,
            offset,
            data,
        } if offset % USERD_BYTES == userd::GP_PUT => data.try_into().ok().map(u32::from_le_bytes),
        _ => None,
    };
    scene.take().into_iter().filter_map(is_put).collect()
}

#[test]
fn userd_is_watched_where_the_guest_has_it_as_long_as_its_client_may_map_it() {
    let mut scene = scene();
    let watched = |scene: &mut Scene| {
        let at = |action: Action| match action {
            Action::PlaceUserd { vm, at } => Some((vm, at)),
            _ => None,
        };
        scene.take().into_iter().filter_map(at).collect::<Vec<_>>()
    };
    assert_eq!(watched(&mut scene), [(A, Some(0))]);
    let place = |scene: &mut Scene, base: u32| {
        scene.register(A, Bar0Reg::from(PfifoReg::UserdBase), base);
        watched(scene)
    };
    assert_eq!(
        place(&mut scene, pfifo::USERD_BASE_VALID | 0x100),
        [(A, Some(0x10_0000))]
    );
    assert_eq!(place(&mut scene, pfifo::USERD_BASE_VALID | 0x100), []);
    // Behind the end of BAR1, and switched off.
    assert_eq!(
        place(&mut scene, pfifo::USERD_BASE_VALID | 0x7f_ffff),
        [(A, None)]
    );
    assert_eq!(place(&mut scene, 0), []);
}

#[test]
fn doorbell_is_rung_with_the_value_that_stands_there_when_it_is_served() {
    let mut scene = scene();
    rung(&mut scene);
    store(&mut scene, 0, userd::GP_PUT, 3);
    found(&mut scene, A, &[0]);
    assert_eq!(rung(&mut scene), [3]);
    // Found once more, though nothing was stored since.
    found(&mut scene, A, &[0]);
    assert!(rung(&mut scene).is_empty());
    // A message comes between a store and the look that finds it.
    store(&mut scene, 0, userd::GP_PUT, 4);
    scene.doorbell(A, 5);
    assert_eq!(rung(&mut scene), [5]);
    assert_eq!(load(&mut scene, 0, userd::GP_PUT), 5);
    found(&mut scene, A, &[0]);
    assert!(rung(&mut scene).is_empty());
}

#[test]
fn doorbells_of_nobody_do_nothing() {
    let mut scene = scene();
    rung(&mut scene);
    store(&mut scene, 1, userd::GP_PUT, 9);
    found(&mut scene, A, &[1, 127, 128, 255]);
    found(&mut scene, B, &[0]);
    found(&mut scene, VmId(7), &[0]);
    assert!(rung(&mut scene).is_empty());
}

#[test]
fn channel_that_is_bound_starts_with_what_was_stored_before_and_shows_nothing_when_it_is_gone() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.apply(Event::LetWindows { vm: A });
    let entry = scene.prepare(A, 8);
    store(&mut scene, 0, userd::GP_PUT, 2);
    scene.register(A, Bar0Reg::from(PfifoReg::ChannelInstance(0)), entry.into_bits());
    scene.run_channel(A);
    scene.pass(1_000_000);
    assert!(rung(&mut scene).contains(&2));
    scene.register(A, Bar0Reg::from(PfifoReg::ChannelInstance(0)), 0);
    assert_eq!(load(&mut scene, 0, userd::GP_PUT), 0);
}

#[test]
fn progress_is_asked_for_less_and_less_often_until_the_channel_has_done_all() {
    let mut scene = scene();
    scene.take();
    store(&mut scene, 0, userd::GP_PUT, 1);
    found(&mut scene, A, &[0]);
    let looks = |scene: &mut Scene| {
        let is_look = |action: &Action| matches!(action, Action::HostRead { bar: Bar::Bar1, offset, .. } if offset % USERD_BYTES == userd::GET_LO);
        scene.take().iter().filter(|action| is_look(action)).count()
    };
    // The card of these tests answers zeros: nothing is done.
    scene.pass(1_000_000_000);
    let in_a_second = looks(&mut scene);
    assert!((60..80).contains(&in_a_second), "{in_a_second} looks in a second");
    // Nothing is left to do.
    store(&mut scene, 0, userd::GP_PUT, 0);
    found(&mut scene, A, &[0]);
    scene.pass(100_000_000);
    looks(&mut scene);
    scene.pass(1_000_000_000);
    assert_eq!(looks(&mut scene), 0);
}

#[test]
fn vm_that_rings_without_end_waits_for_its_turn() {
    let mut scene = scene();
    scene.gives_turns = false;
    let mut served = 0;
    for put in 1..=64 {
        rung(&mut scene);
        store(&mut scene, 0, userd::GP_PUT, put);
        found(&mut scene, A, &[0]);
        served += rung(&mut scene).len();
    }
    assert!(served < 48, "{served} of 64 were served at once");
    let at = scene.next_turn().expect("it waits for its turn");
    scene.now = scene.now.max(at.0);
    scene.apply(Event::Wake);
    assert_eq!(rung(&mut scene), [64], "the last one is served in its turn");
}
