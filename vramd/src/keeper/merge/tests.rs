use std::path::Path;

use proptest::prelude::*;
use vramd_vm::config::parse;

use super::*;
use crate::keeper::state::GivenPlace;

const MIB: u64 = 1 << 20;

fn file(vms: &str) -> HostConfig {
    let text = format!(
        "[control]\nsocket = \"/run/c.sock\"\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"64M\"\n{vms}"
    );
    parse(Path::new("host.toml"), &text).expect("the test's file is right")
}

fn vm(name: &str, more: &str) -> String {
    format!(
        "[[vm]]\nname = {name:?}\ngpu = \"g\"\nsocket = \"/run/{name}.sock\"\nguest_vram = \"48M\"\n{more}\n"
    )
}

/// What an operator says of the VM `a` while the file is `file`.
fn said(file: &HostConfig, change: QuotaChange) -> State {
    let base = file.vms[0].config.quota;
    let quota = KeptQuota::default().with(change, base, Some(base));
    let kept = KeptVm {
        quota,
        ..KeptVm::default()
    };
    State::default().with_vm("a", kept)
}

fn max(mebibytes: u64) -> QuotaChange {
    QuotaChange {
        max: Some(Bound::Bytes(mebibytes * MIB)),
        ..QuotaChange::default()
    }
}

fn texts(merged: &Merged) -> Vec<&str> {
    let texts = merged.conflicts.iter().map(|conflict| conflict.text.as_str());
    texts.collect()
}

#[test]
fn operators_word_holds_where_the_file_is_as_it_was() {
    let file = file(&vm("a", "weight = 50"));
    let state = said(&file, max(32));
    let merged = Merged::of(&file, &state);
    let quota = merged.vms[0].quota;
    assert_eq!((quota.max, quota.weight), (32 * MIB, 50));
    assert_eq!(texts(&merged), [""; 0]);
    assert_eq!(merged.state, state);
}

#[test]
fn file_that_changed_since_is_a_conflict_once() {
    let state = said(&file(&vm("a", "max = \"40M\"")), max(32));
    let file = file(&vm("a", "max = \"16M\"\nweight = 7"));
    let merged = Merged::of(&file, &state);
    let quota = merged.vms[0].quota;
    assert_eq!((quota.max, quota.weight), (32 * MIB, 7));
    assert_eq!(
        texts(&merged),
        [
            "host.toml says max 16M now and said 40M when an operator set 32M, which holds: vramd quota a --reset takes it back"
        ]
    );
    assert_eq!(texts(&Merged::of(&file, &merged.state)), [""; 0]);
}

#[test]
fn word_that_the_file_says_too_is_nobodys() {
    let state = said(&file(&vm("a", "")), max(32));
    let merged = Merged::of(&file(&vm("a", "max = \"32M\"")), &state);
    assert_eq!(texts(&merged), [""; 0]);
    assert_eq!(merged.state, State::default());
}

#[test]
fn words_that_contradict_the_file_are_told_and_the_file_holds() {
    let state = said(&file(&vm("a", "")), max(16));
    let merged = Merged::of(&file(&vm("a", "min = \"24M\"")), &state);
    assert_eq!(
        (merged.vms[0].quota.min, merged.vms[0].quota.max),
        (24 * MIB, u64::MAX)
    );
    assert!(
        texts(&merged)[0].contains("contradict each other (min 25165824 is above max 16777216)"),
        "{merged:?}"
    );
    assert_eq!(merged.state, State::default());
}

#[test]
fn vm_that_was_detached_has_no_place_and_one_that_was_attached_has() {
    let both = file(&(vm("a", "") + &vm("b", "")));
    let taken = KeptVm {
        place: Some(KeptPlace::Taken),
        ..KeptVm::default()
    };
    let given = KeptVm {
        place: Some(KeptPlace::Given(Box::new(GivenPlace::of(&both.vms[1])))),
        ..KeptVm::default()
    };
    let state = State::default().with_vm("a", taken).with_vm("b", given);
    let merged = Merged::of(&file(&vm("a", "")), &state);
    let names: Vec<_> = merged
        .vms
        .iter()
        .map(|vm| (&*vm.section.config.name, vm.is_in_file))
        .collect();
    assert_eq!(names, [("b", false)]);
    assert_eq!(merged.state, state);
}

#[test]
fn vm_that_the_file_has_by_now_is_the_files() {
    let alone = file(&vm("b", ""));
    let given = KeptVm {
        place: Some(KeptPlace::Given(Box::new(GivenPlace::of(&alone.vms[0])))),
        ..KeptVm::default()
    };
    let state = State::default().with_vm("b", given);
    let merged = Merged::of(&file(&vm("b", "weight = 9")), &state);
    assert_eq!((merged.vms.len(), merged.vms[0].quota.weight), (1, 9));
    assert!(
        texts(&merged)[0].contains("under this name: the file's holds"),
        "{merged:?}"
    );
    assert_eq!(merged.state, State::default());
}

#[test]
fn attached_vm_without_a_card_or_a_socket_of_its_own_is_told_and_not_served() {
    let other = file(&vm("b", ""));
    let place = |gpu: &str| {
        let mut section = other.vms[0].clone();
        section.gpu = gpu.into();
        KeptVm {
            place: Some(KeptPlace::Given(Box::new(GivenPlace::of(&section)))),
            ..KeptVm::default()
        }
    };
    let merged = Merged::of(&file(""), &State::default().with_vm("b", place("h")));
    assert!(
        texts(&merged)[0].ends_with("host.toml has no gpu h any more"),
        "{merged:?}"
    );
    let same_socket = file(&vm("a", "").replace("/run/a.sock", "/run/b.sock"));
    let merged = Merged::of(&same_socket, &State::default().with_vm("b", place("g")));
    assert!(
        texts(&merged)[0].ends_with("/run/b.sock is another's in host.toml"),
        "{merged:?}"
    );
    assert_eq!(merged.vms.len(), 1);
}

#[test]
fn what_was_said_of_a_vm_that_the_file_has_no_more_is_forgotten() {
    let state = said(&file(&vm("a", "")), max(16));
    let merged = Merged::of(&file(&vm("b", "")), &state);
    assert_eq!((texts(&merged), &merged.state), (vec![], &State::default()));
}

#[test]
fn host_ram_that_an_operator_set_holds_beside_a_file_that_changed() {
    let before = file("");
    let kept = KeptGpu {
        host_ram_bytes: Some(Kept {
            value: 1 << 30,
            file: Some(before.gpus[0].settings.host_ram),
        }),
    };
    let state = State::default().with_gpu("g", kept);
    assert_eq!(Merged::of(&before, &state).host_rams, [1 << 30]);
    let mut after = before;
    after.gpus[0].settings.host_ram = 2 << 30;
    let merged = Merged::of(&after, &state);
    assert_eq!(merged.host_rams, [1 << 30]);
    assert!(
        texts(&merged)[0].starts_with("host.toml says host_ram 2048M now"),
        "{merged:?}"
    );
}

fn some_change() -> impl Strategy<Value = QuotaChange> {
    let bound = || prop::option::of((0u64..4).prop_map(|mebibytes| Bound::Bytes(mebibytes * MIB)));
    (bound(), bound(), bound(), bound(), prop::option::of(1u32..4)).prop_map(
        |(min, low, high, max, weight)| QuotaChange {
            min,
            low,
            high,
            max,
            weight,
        },
    )
}

proptest! {
    /// Whatever was said, in whatever order, and whatever the file says by now: the last word of an operator holds word by word, and else the
    /// file's.
    #[test]
    fn last_word_holds(changes in prop::collection::vec(some_change(), 0..5), first in some_change(), second in some_change()) {
        let quota = |change: QuotaChange| KeptQuota::default().with(change, Quota::default(), None).over(Quota::default());
        let (before, after) = (quota(first), quota(second));
        let kept = changes.iter().fold(KeptQuota::default(), |kept, change| kept.with(*change, before, Some(before)));
        let (kept, texts) = kept.beside(after);
        let held = quota_words(kept.over(after));
        let of_file = (quota_words(before), quota_words(after));
        let mut conflicts = 0;
        let mut check = |said: Option<Bound>, held: Bound, (then, now): (Bound, Bound)| {
            // What an operator says that the file said too is no word of his.
            let said = said.filter(|said| *said != then);
            conflicts += usize::from(said.is_some_and(|said| said != now && then != now));
            held == said.unwrap_or(now)
        };
        let last = |of: fn(&QuotaChange) -> Option<Bound>| changes.iter().rev().find_map(of);
        prop_assert!(check(last(|change| change.min), held.min, (of_file.0.min, of_file.1.min)));
        prop_assert!(check(last(|change| change.low), held.low, (of_file.0.low, of_file.1.low)));
        prop_assert!(check(last(|change| change.high), held.high, (of_file.0.high, of_file.1.high)));
        prop_assert!(check(last(|change| change.max), held.max, (of_file.0.max, of_file.1.max)));
        let weights = texts.iter().filter(|text| text.contains("says weight")).count();
        prop_assert_eq!(texts.len() - weights, conflicts);
    }
}
