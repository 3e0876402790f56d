//! What happened last, for operators: to each VM, and to the card.
//!
//! Each VM has room of its own, so that one to which much happens pushes out nothing of another's. Entries are numbered in the order in
//! which they came, so that a reader who comes again knows what is new, and what it missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use vgpu::{Direction, Hold, MoveCause, Notice, Quota, StartFailure, VmId};

use crate::vms::Vm;

/// Most that are kept of one VM, and of the card.
const KEPT: usize = 256;
/// Most names that something is kept of. The operator gives the names, so there are few.
const NAMES_MAX: usize = 1024;

/// What kind of thing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HappeningKind {
    /// The VM has its vGPU.
    Attached,
    /// The VM has gone.
    Detached,
    /// An operator gave the VM a place: its VMM can connect.
    Listed,
    /// An operator took its place from it.
    Unlisted,
    /// An operator changed its quota, or the card's host RAM.
    QuotaChanged,
    /// The file of the host and what an operator said before differ, or the file asks for what cannot be done while VMs run.
    FileConflict,
    /// An operator froze it, spilled some of it, suspended it, or let it go again.
    HoldChanged,
    /// Chunks of it went to host RAM.
    Spilled,
    /// Chunks of it came back to VRAM.
    Refilled,
    /// A move of its chunks was given up.
    RolledBack,
    /// An access of it waited for memory.
    Waited,
    /// Its guest made an error that drivers do not make.
    GuestError,
    /// A channel of it was stopped.
    ChannelKilled,
    /// The card, or the way to it, failed in something.
    HostError,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Happening {
    /// Its number: later ones have higher ones.
    pub number: u64,
    /// When, in nanoseconds since 1970 by the host's clock.
    pub at_unix_ns: u64,
    /// Name of the VM that it happened to; `None` if it was the card.
    pub vm: Option<Arc<str>>,
    /// What it was.
    pub kind: HappeningKind,
    /// The same for people, with its reason.
    pub text: String,
    /// Bytes of the chunks that moved, or were waited for.
    pub bytes: Option<u64>,
    /// Name of the VM for which they moved.
    pub for_vm: Option<Arc<str>>,
    /// Time in nanoseconds for which channels of the VM stood still, or an access of it waited.
    pub took_ns: Option<u64>,
}

/// Part of what happened, from some number on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Happenings {
    /// In the order in which it happened.
    pub list: Vec<Happening>,
    /// Number up to which this tells: where to go on.
    pub until: u64,
    /// How many others there were up to there, which are not kept any more.
    pub lost: u64,
    /// Whether more has happened since.
    pub has_more: bool,
}

/// What is kept, by VM; the card's own is under no name.
#[derive(Debug, Default)]
pub(crate) struct HappeningLog {
    kept: BTreeMap<Option<Arc<str>>, VecDeque<Happening>>,
    last: u64,
    /// Bytes that waits under way are for.
    asked: BTreeMap<VmId, u64>,
}

impl Happening {
    fn new(kind: HappeningKind, text: impl Into<String>) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            number: 0,
            at_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
            vm: None,
            kind,
            text: text.into(),
            bytes: None,
            for_vm: None,
            took_ns: None,
        }
    }
}

impl HappeningLog {
    fn put(&mut self, vm: Option<Arc<str>>, happening: Happening) {
        self.last += 1;
        if !self.kept.contains_key(&vm) && self.kept.len() > NAMES_MAX {
            // The VM whose last entry is oldest.
            let of_vms = self.kept.iter().filter(|(name, _)| name.is_some());
            let oldest = of_vms.min_by_key(|(_, list)| list.back().map(|last| last.number));
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| self.kept.remove(&name));
        }
        let list = self.kept.entry(vm.clone()).or_default();
        if list.len() == KEPT {
            list.pop_front();
        }
        let number = self.last;
        list.push_back(Happening {
            number,
            vm,
            ..happening
        });
    }

    /// A VM has its vGPU.
    pub(crate) fn came(&mut self, name: &str) {
        let happening = Happening::new(HappeningKind::Attached, "attached");
        self.put(Some(name.into()), happening);
    }

    /// A VM has gone, or was put out for a reason.
    pub(crate) fn went(&mut self, name: &str, put_out: Option<&str>) {
        let text = put_out.map_or_else(|| "detached".to_owned(), |reason| format!("detached: {reason}"));
        let happening = Happening::new(HappeningKind::Detached, text);
        self.put(Some(name.into()), happening);
    }

    /// Something happened that others than the broker know of.
    pub(crate) fn told(&mut self, vm: Option<&str>, kind: HappeningKind, text: String) {
        self.put(vm.map(Into::into), Happening::new(kind, text));
    }

    /// An operator changed what spilled chunks of all VMs may take.
    pub(crate) fn host_ram_changed(&mut self, before: u64, after: u64) {
        if before != after {
            let text = format!("host_ram: {}M to {}M", before >> 20, after >> 20);
            self.put(None, Happening::new(HappeningKind::QuotaChanged, text));
        }
    }

    /// An operator changed a quota.
    pub(crate) fn quota_changed(&mut self, name: &str, before: Quota, after: Quota) {
        let bound = |bytes: u64| match bytes {
            u64::MAX => "max".to_owned(),
            bytes => format!("{}M", bytes as f64 / f64::from(1 << 20)),
        };
        let bounds = [
            ("min", bound(before.min), bound(after.min)),
            ("low", bound(before.low), bound(after.low)),
            ("high", bound(before.high), bound(after.high)),
            ("max", bound(before.max), bound(after.max)),
            ("weight", before.weight.to_string(), after.weight.to_string()),
        ];
        let changed = bounds.iter().filter(|(_, before, after)| before != after);
        let changed: Vec<_> = changed
            .map(|(name, before, after)| format!("{name} {before} to {after}"))
            .collect();
        if !changed.is_empty() {
            let text = format!("quota: {}", changed.join(", "));
            self.put(
                Some(name.into()),
                Happening::new(HappeningKind::QuotaChanged, text),
            );
        }
    }

    /// An operator holds back something from a VM, or no more.
    pub(crate) fn hold_changed(&mut self, name: &str, before: Hold, after: Hold) {
        let memory = (before.vram != after.vram).then(|| match after.vram {
            Some(0) => "frozen: its memory goes to host RAM".to_owned(),
            Some(bytes) => format!("held at {}M of VRAM", bytes as f64 / f64::from(1 << 20)),
            None => "its memory may come back".to_owned(),
        });
        let time = (before.is_suspended != after.is_suspended).then(|| match after.is_suspended {
            true => "suspended: its channels do not run".to_owned(),
            false => "resumed: its channels run".to_owned(),
        });
        let changed: Vec<_> = memory.into_iter().chain(time).collect();
        if !changed.is_empty() {
            let happening = Happening::new(HappeningKind::HoldChanged, changed.join("; "));
            self.put(Some(name.into()), happening);
        }
    }

    /// Takes note of what an operator would ask about.
    pub(crate) fn notice(&mut self, notice: &Notice, vms: &BTreeMap<VmId, Vm>) {
        let name = |vm: VmId| vms.get(&vm).map(|vm| Arc::<str>::from(vm.config.name.as_str()));
        let happening = match notice {
            Notice::DemandWaits { vm, bytes, .. } => {
                self.asked.insert(*vm, *bytes);
                return;
            }
            Notice::DemandEnded {
                vm,
                waited_ns,
                in_host_ram,
                waited_for,
            } => {
                let others: Vec<_> = waited_for.iter().filter_map(|vm| name(*vm)).collect();
                let text = waited(&others, *in_host_ram);
                Happening {
                    bytes: self.asked.remove(vm),
                    took_ns: Some(*waited_ns),
                    ..Happening::new(HappeningKind::Waited, text)
                }
            }
            Notice::Moved {
                direction,
                cause,
                chunks,
                // None, where something only stood still: that is among the pauses.
                bytes: bytes @ 1..,
                pause_ns,
                ..
            } => Happening {
                bytes: Some(*bytes),
                for_vm: cause.beneficiary().and_then(name),
                took_ns: *pause_ns,
                ..moved(*direction, *chunks, &why(*cause, name))
            },
            Notice::RolledBack { cause, reason, .. } => {
                let text = format!("a move was given up ({}): {reason}", why(*cause, name));
                Happening {
                    for_vm: cause.beneficiary().and_then(name),
                    ..Happening::new(HappeningKind::RolledBack, text)
                }
            }
            Notice::GuestError { what, .. } => Happening::new(HappeningKind::GuestError, what.as_str()),
            Notice::ChannelKilled { channel, cause, .. } => {
                let text = format!("channel {channel} was stopped: {cause}");
                Happening::new(HappeningKind::ChannelKilled, text)
            }
            Notice::HostError { fault } => Happening::new(HappeningKind::HostError, fault.to_string()),
            Notice::StartFailed { reason } => unusable(reason),
            Notice::Started { .. }
            | Notice::CopiesByWindow
            | Notice::Backed { .. }
            | Notice::MoveStarted { .. }
            | Notice::Moved { .. }
            | Notice::MoveStage { .. }
            | Notice::Suspended { .. }
            | Notice::Resumed { .. }
            | Notice::SyncWaited { .. }
            | Notice::EngineTime { .. }
            | Notice::ChannelError { .. }
            | Notice::TablesFetched { .. }
            | Notice::WorkWaited { .. }
            | Notice::Usage { .. } => return,
        };
        self.put(notice.vm().and_then(name), happening);
    }

    /// What came after `number`, `most` of it at most. A number that was not given yet is another run's: then all that is kept.
    pub(crate) fn after(&self, number: u64, most: usize) -> Happenings {
        let after = if number > self.last { 0 } else { number };
        let newer = self.kept.values().flat_map(|list| {
            let first = list.partition_point(|happening| happening.number <= after);
            list.range(first..)
        });
        let mut newer: Vec<&Happening> = newer.collect();
        newer.sort_unstable_by_key(|happening| happening.number);
        let has_more = newer.len() > most;
        newer.truncate(most);
        let until = match has_more {
            true => newer.last().map_or(after, |last| last.number),
            false => self.last,
        };
        Happenings {
            has_more,
            lost: until - after - newer.len() as u64,
            list: newer.into_iter().cloned().collect(),
            until,
        }
    }
}

fn unusable(reason: &StartFailure) -> Happening {
    let text = format!("the card cannot be used: {reason}");
    Happening::new(HappeningKind::HostError, text)
}

fn moved(direction: Direction, chunks: u32, why: &str) -> Happening {
    let (kind, to) = match direction {
        Direction::Spill => (HappeningKind::Spilled, "to host RAM"),
        Direction::Refill => (HappeningKind::Refilled, "to VRAM"),
    };
    let what = match chunks {
        0 => "a part of a chunk".to_owned(),
        1 => "1 chunk".to_owned(),
        _ => format!("{chunks} chunks"),
    };
    Happening::new(kind, format!("{what} {to}: {why}"))
}

/// What an access waited for, by the names of VMs.
fn waited(others: &[Arc<str>], in_host_ram: u32) -> String {
    let mut text = "an access waited for memory".to_owned();
    if !others.is_empty() {
        text += &format!(" that {} gave", others.join(", "));
    }
    if in_host_ram > 0 {
        text += &format!("; {in_host_ram} chunks had to go to host RAM");
    }
    text
}

/// Why chunks move, by the names of VMs.
fn why(cause: MoveCause, name: impl Fn(VmId) -> Option<Arc<str>>) -> String {
    let name = |vm| name(vm).unwrap_or_else(|| "a VM that is gone".into());
    match cause {
        MoveCause::Demand { of } => format!("{} needs VRAM", name(of)),
        MoveCause::Idle { taken_for } => format!("nothing reaches them, and {} needs VRAM", name(taken_for)),
        MoveCause::AboveMax => "more than its max".to_owned(),
        MoveCause::AboveHigh => "more than its high".to_owned(),
        MoveCause::Fairness { toward } => format!("more than its share, and {} has less", name(toward)),
        MoveCause::FreeRoom => "there is room".to_owned(),
        MoveCause::Exchange { .. } => "to see which of its chunks are worth their place".to_owned(),
        MoveCause::Launch { .. } => "a launch of its waits for other chunks than those in VRAM".to_owned(),
        MoveCause::Shown => "its guest maps a page of it that its GPU uses".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reader_that_comes_again_gets_what_is_new() {
        let mut log = HappeningLog::default();
        log.came("a");
        log.came("b");
        let first = log.after(0, 10);
        let read = |all: &Happenings| -> Vec<_> {
            let entries = all.list.iter();
            entries
                .map(|one| (one.vm.clone().unwrap().to_string(), one.kind))
                .collect()
        };
        let (came, went) = (HappeningKind::Attached, HappeningKind::Detached);
        assert_eq!(read(&first), [("a".to_owned(), came), ("b".to_owned(), came)]);
        assert_eq!(log.after(first.until, 10).list, []);
        log.went("a", None);
        let second = log.after(first.until, 10);
        assert_eq!((read(&second), second.lost), (vec![("a".to_owned(), went)], 0));
    }

    #[test]
    fn number_of_another_run_gets_all_that_is_kept() {
        let mut log = HappeningLog::default();
        log.came("a");
        let all = log.after(1000, 10);
        assert_eq!((all.list.len(), all.until, all.lost), (1, 1, 0));
    }

    #[test]
    fn quota_tells_what_changed_and_nothing_else() {
        let mut log = HappeningLog::default();
        let before = Quota::default();
        let after = Quota {
            max: 64 << 20,
            weight: 50,
            ..before
        };
        log.quota_changed("a", before, after);
        log.quota_changed("a", after, after);
        let all = log.after(0, 10);
        let texts: Vec<_> = all.list.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(texts, ["quota: max max to 64M, weight 100 to 50"]);
    }

    #[test]
    fn chunks_and_a_part_of_one_are_told_apart() {
        for (chunks, text) in [
            (0, "a part of a chunk to VRAM: there is room"),
            (1, "1 chunk to VRAM: there is room"),
            (3, "3 chunks to VRAM: there is room"),
        ] {
            assert_eq!(moved(Direction::Refill, chunks, "there is room").text, text);
        }
    }

    proptest! {
        /// One VM to which much happens, one to which little does: nothing of that one's is lost, whatever the pieces in which it
        /// is read, and what is lost is counted.
        #[test]
        fn pieces_add_up(loud in prop::collection::vec(0usize..400, 1..6), most in 1usize..300) {
            let mut log = HappeningLog::default();
            let (mut number, mut seen, mut lost, mut quiet) = (0, 0, 0, 0);
            for count in &loud {
                log.came("quiet");
                (0..*count).for_each(|_| log.came("loud"));
                loop {
                    let piece = log.after(number, most);
                    prop_assert!(piece.list.len() <= most);
                    prop_assert!(piece.list.is_sorted_by_key(|one| one.number));
                    prop_assert!(piece.list.iter().all(|one| one.number > number && one.number <= piece.until));
                    let of_quiet = piece.list.iter().filter(|one| one.vm.as_deref() == Some("quiet"));
                    quiet += of_quiet.count();
                    (seen, lost) = (seen + piece.list.len(), lost + piece.lost);
                    number = piece.until;
                    prop_assert_eq!(piece.has_more, !log.after(number, 1).list.is_empty());
                    if !piece.has_more {
                        break;
                    }
                }
            }
            prop_assert_eq!(quiet, loud.len());
            prop_assert_eq!(seen + lost as usize, loud.len() + loud.iter().sum::<usize>());
        }
    }
}
