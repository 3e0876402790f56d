//! VMs that are given a place, and lose it, while the broker runs.

use std::sync::mpsc;

use vgpu::Hold;

use super::*;
use crate::seating::{LeaveRefusal, Left, PlaceRefusal};

fn come(bench: &Bench, socket: VmSocket) -> Result<(), PlaceRefusal> {
    let (told, answer) = mpsc::channel();
    bench
        .broker
        .seat(socket, move |done| told.send(done).unwrap())
        .unwrap();
    answer.recv().unwrap()
}

fn go(bench: &Bench, name: &str, is_forced: bool) -> Result<Left, LeaveRefusal> {
    let (told, answer) = mpsc::channel();
    let tell = move |done| told.send(done).unwrap();
    bench.broker.unseat(name.to_owned(), is_forced, tell).unwrap();
    answer.recv().unwrap()
}

fn socket_of(bench: &Bench, name: &str) -> VmSocket {
    socket(&bench.path(name), vm_config(name)).unwrap()
}

#[test]
fn vm_that_is_given_a_place_connects_and_others_keep_theirs() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut first = bench.client("a");
    come(&bench, socket_of(&bench, "b")).unwrap();
    let mut second = bench.client("b");
    for client in [&mut first, &mut second] {
        read(client, 0, 0);
    }
    assert_eq!(bench.attached(), 2);
}

#[test]
fn place_without_a_client_goes_with_its_socket_and_can_be_given_again() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let mut kept = bench.client("b");
    assert_eq!(go(&bench, "a", false), Ok(Left { was_attached: false }));
    assert!(!bench.path("a").exists());
    let name = "a".to_owned();
    assert_eq!(go(&bench, "a", false), Err(LeaveRefusal::NoSuchVm { name }));
    come(&bench, socket_of(&bench, "a")).unwrap();
    read(&mut bench.client("a"), 0, 0);
    read(&mut kept, 0, 0);
}

#[test]
fn connected_vm_keeps_its_place_unless_it_is_forced_out() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    read(&mut client, 0, 0);
    assert_eq!(go(&bench, "a", false), Err(LeaveRefusal::Connected));
    read(&mut client, 0, 0);
    assert_eq!(go(&bench, "a", true), Ok(Left { was_attached: true }));
    assert!(client.region_read(0, 0, &mut [0; 4]).is_err());
    bench.wait_until(|bench| bench.attached() == 0);
    // Its path and its name are free at once.
    come(&bench, socket_of(&bench, "a")).unwrap();
    read(&mut bench.client("a"), 0, 0);
}

#[test]
fn path_that_was_forced_free_is_not_removed_under_its_next_owner() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    for _ in 0..20 {
        let mut client = bench.client("a");
        read(&mut client, 0, 0);
        go(&bench, "a", true).unwrap();
        come(&bench, socket_of(&bench, "a")).unwrap();
        drop(client);
    }
    bench.wait_until(|bench| bench.attached() == 0);
    read(&mut bench.client("a"), 0, 0);
    drop(bench.broker);
    assert!(!bench.directory.path().join("a").exists());
}

#[test]
fn name_that_is_taken_is_refused_and_its_vm_stays() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let other = socket(&bench.path("other"), vm_config("a")).unwrap();
    let name = "a".to_owned();
    assert_eq!(come(&bench, other), Err(PlaceRefusal::NameTaken { name }));
    bench.wait_until(|bench| !bench.path("other").exists());
    read(&mut bench.client("a"), 0, 0);
}

#[test]
fn place_for_one_vm_too_many_is_refused() {
    let names: Vec<String> = (0..crate::VMS_MAX).map(|number| format!("vm{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::new(TestCore::default(), &names);
    assert_eq!(
        come(&bench, socket_of(&bench, "more")),
        Err(PlaceRefusal::NoPlace)
    );
    go(&bench, "vm7", false).unwrap();
    come(&bench, socket_of(&bench, "more")).unwrap();
}

#[test]
fn hold_is_there_when_the_vm_of_a_new_place_is_shown() {
    let bench = Bench::new(TestCore::default(), &[]);
    let hold = Hold {
        vram: Some(0),
        is_suspended: false,
    };
    come(&bench, socket_of(&bench, "a").with_hold(hold)).unwrap();
    let (told, answer) = mpsc::channel();
    let tell = move |picture: crate::Picture| told.send(picture.vms).unwrap();
    bench.broker.ask_picture(None, tell).unwrap();
    let vms = answer.recv().unwrap();
    assert_eq!((&*vms[0].config.name, vms[0].hold), ("a", hold));
}
