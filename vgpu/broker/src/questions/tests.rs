//! What operators ask, of brokers whose core is a script.

use std::sync::mpsc;

use vfio_user_server::SocketAccess;

use super::*;
use crate::broker::VmSocket;
use crate::testing::{FakeGpu, TestCore, USABLE, setup, vm_config};

/// A broker of two VMs with a socket each, `a` and `b`, and the folder of their sockets.
fn broker() -> (tempfile::TempDir, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let gpu = FakeGpu::default();
    let mut setup = setup(TestCore::default(), &gpu, None);
    let socket = |name: &&str| {
        VmSocket::bind(
            &folder.path().join(name),
            &SocketAccess::default(),
            vm_config(name),
        )
        .unwrap()
    };
    setup.vms = ["a", "b"].iter().map(socket).collect();
    (folder, Broker::start(setup).unwrap())
}

fn ask(
    broker: &Broker,
    name: &str,
    change: impl FnOnce(Quota) -> Quota + Send + 'static,
) -> Result<QuotaChanged, QuotaRefusal> {
    let (told, answer) = mpsc::channel();
    let tell = move |answer| told.send(answer).unwrap();
    broker.ask_quota(name.to_owned(), change, tell).unwrap();
    answer.recv().unwrap()
}

fn picture(broker: &Broker, name: Option<&str>) -> Picture {
    let (told, answer) = mpsc::channel();
    let tell = move |answer| told.send(answer).unwrap();
    broker.ask_picture(name.map(str::to_owned), tell).unwrap();
    answer.recv().unwrap()
}

#[test]
fn presence_counts_connected_vms_among_those_with_a_socket() {
    let (_folder, broker) = broker();
    let presence = || {
        let (told, answer) = mpsc::channel();
        let tell = move |presence: Presence| told.send((presence.connected, presence.listed)).unwrap();
        broker.ask_presence(tell).unwrap();
        answer.recv().unwrap()
    };
    assert_eq!(presence(), (0, 2));
    let _link = broker.attach(vm_config("a")).unwrap();
    assert_eq!(presence(), (1, 2));
}

#[test]
fn quota_of_an_unknown_vm_changes_nothing() {
    let (_folder, broker) = broker();
    let name = "c".to_owned();
    assert_eq!(
        ask(&broker, "c", |quota| quota),
        Err(QuotaRefusal::NoSuchVm { name })
    );
}

#[test]
fn quota_of_a_vm_that_is_not_connected_waits_for_it() {
    let (_folder, broker) = broker();
    let changed = ask(&broker, "a", |quota| Quota { weight: 7, ..quota }).unwrap();
    assert_eq!(
        (changed.before.weight, changed.after.weight, changed.is_attached),
        (100, 7, false)
    );
    let vms = picture(&broker, None).vms;
    let shown = vms.iter().map(|vm| (&*vm.config.name, vm.config.quota.weight));
    assert_eq!(shown.collect::<Vec<_>>(), [("a", 7), ("b", 100)]);
}

#[test]
fn two_operators_change_what_each_names() {
    let (_folder, broker) = broker();
    ask(&broker, "a", |quota| Quota { weight: 7, ..quota }).unwrap();
    let changed = ask(&broker, "a", |quota| Quota { low: 9, ..quota }).unwrap();
    assert_eq!((changed.after.weight, changed.after.low), (7, 9));
}

#[test]
fn quota_that_cannot_hold_is_refused_and_the_old_one_stays() {
    let (_folder, broker) = broker();
    let refused = |change: fn(Quota) -> Quota| ask(&broker, "a", change).unwrap_err();
    assert_eq!(
        refused(|quota| Quota { weight: 0, ..quota }),
        SettingError::Weight { weight: 0 }.into()
    );
    let (min, guest_vram) = (9 << 20, 8 << 20);
    assert_eq!(
        refused(|quota| Quota {
            min: 9 << 20,
            ..quota
        }),
        QuotaRefusal::AboveGuestVram { min, guest_vram }
    );
    assert_eq!(picture(&broker, Some("a")).vms[0].config.quota, Quota::default());
}

#[test]
fn quota_that_the_core_refuses_is_an_error_once() {
    let (_folder, broker) = broker();
    let _link = broker.attach(vm_config("c")).unwrap();
    let above = |quota| Quota {
        min: USABLE + 1,
        ..quota
    };
    let error = ask(&broker, "c", above).unwrap_err();
    assert!(
        matches!(error, QuotaRefusal::Denied(Denial::Min { .. })),
        "{error}"
    );
    let changed = ask(&broker, "c", |quota| quota).unwrap();
    assert_eq!((changed.after, changed.is_attached), (Quota::default(), true));
}

#[test]
fn broker_that_has_ended_says_so() {
    let (_folder, broker) = broker();
    broker.shared().status.end("as the test wants it");
    let (told, answer) = mpsc::channel::<Picture>();
    let refused = broker.ask_picture(None, move |picture| told.send(picture).unwrap());
    assert_eq!(refused.unwrap_err().reason, "as the test wants it");
    assert!(answer.recv().is_err());
}
