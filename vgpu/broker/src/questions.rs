//! What an operator asks of a running broker. The event loop answers, between two events, so whoever asks never holds the broker's
//! lock and does nothing of the broker's work.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use vgpu::{Denial, Event, Hold, Quota, SettingError, Standing, Tick, VmConfig, VmId, VmStanding};

use crate::broker::{Broker, Shared};
use crate::error::Ended;
use crate::happenings::{HappeningKind, Happenings};
use crate::perform::Performer;
use crate::spread::VmSpreads;
use crate::stats::{BrokerStats, VmStats};
use crate::vms::{Vm, VmState};

mod holds;
mod host_ram;
mod looks;
#[cfg(test)]
mod tests;

pub use holds::{HoldChange, HoldChanged, HoldRefusal};
pub use host_ram::HostRamChanged;
pub use looks::{LookRefusal, StatePart};

/// A question. What it returns tells the answer, and is called without the lock.
type Question = Box<dyn FnOnce(&mut Performer) -> Told + Send>;
type Told = Box<dyn FnOnce() + Send>;

/// Questions that the event loop has not answered yet.
#[derive(Default)]
pub(crate) struct Questions(Mutex<VecDeque<Question>>);

impl Questions {
    fn put(&self, question: Question) {
        let mut questions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        questions.push_back(question);
    }

    fn take(&self) -> VecDeque<Question> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers all. Those of a broker that has ended are dropped, which whoever asked sees.
    pub(crate) fn answer(&self, shared: &Shared) {
        for question in self.take() {
            let told = shared.lock().map(|mut performer| question(&mut performer));
            if let Ok(told) = told {
                told();
            }
        }
    }
}

/// A VM that has a socket, whether its VMM is connected or not.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// What it gets when it attaches.
    pub(crate) config: VmConfig,
    /// What an operator holds back from it.
    hold: Hold,
}

/// The VMs that have a socket, by name.
#[derive(Debug, Default)]
pub(crate) struct Roster(BTreeMap<String, Listed>);

impl Roster {
    pub(crate) fn list(&mut self, config: VmConfig, hold: Hold) {
        self.0.insert(config.name.clone(), Listed { config, hold });
    }

    pub(crate) fn unlist(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn config(&self, name: &str) -> Option<&VmConfig> {
        self.0.get(name).map(|listed| &listed.config)
    }

    fn hold(&self, name: &str) -> Option<Hold> {
        self.0.get(name).map(|listed| listed.hold)
    }

    fn set_hold(&mut self, name: &str, hold: Hold) {
        if let Some(listed) = self.0.get_mut(name) {
            listed.hold = hold;
        }
    }
}

/// A card and its VMs at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// When it was made.
    pub now: Tick,
    /// Who holds what. `None` if the card is not up any more.
    pub standing: Option<Standing>,
    /// The card's figures, without those of VMs.
    pub card: BrokerStats,
    /// The VMs that have a socket, by name.
    pub vms: Vec<VmPicture>,
    /// Names of all VMs by number.
    pub names: BTreeMap<VmId, String>,
}

/// One VM of it.
#[derive(Clone, Debug)]
pub struct VmPicture {
    /// What it gets when it attaches; its quota is the one that it has.
    pub config: VmConfig,
    /// What an operator holds back from it.
    pub hold: Hold,
    /// What it has, if its VMM is connected.
    pub attached: Option<(VmStanding, VmStats)>,
    /// How long it stood still and waited, if its VMM is connected.
    pub spreads: Option<VmSpreads>,
}

/// How many VMs a broker has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Presence {
    /// VMs whose VMM is connected.
    pub connected: usize,
    /// VMs that have a socket.
    pub listed: usize,
}

/// A quota that was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaChanged {
    /// What the VM had.
    pub before: Quota,
    /// What it has.
    pub after: Quota,
    /// Whether its VMM is connected. If not, the quota holds when it connects.
    pub is_attached: bool,
}

/// Why a quota was not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QuotaRefusal {
    /// No VM has that name.
    #[error("there is no vm {name:?}")]
    NoSuchVm {
        /// What was asked for.
        name: String,
    },
    /// The quota contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// More is promised than the guest has.
    #[error("min {}M is above the guest's VRAM: at most {}M, which is all of it", min >> 20, guest_vram >> 20)]
    AboveGuestVram {
        /// Bytes that were to be promised.
        min: u64,
        /// Bytes that the guest sees.
        guest_vram: u64,
    },
    /// More would be promised than the card has.
    #[error(
        "min {}M does not fit the card beside what other VMs are promised: at most {}M now",
        min >> 20, most >> 20
    )]
    NoRoom {
        /// Bytes that were to be promised.
        min: u64,
        /// Most that could be.
        most: u64,
    },
    /// The memory manager refused it.
    #[error("{0}")]
    Denied(Denial),
}

impl Broker {
    /// Asks for the card and its VMs, or for the VM of one name alone. `answer` is called on the event loop's thread, and must not wait;
    /// it is dropped if the broker ends before.
    pub fn ask_picture(
        &self,
        name: Option<String>,
        answer: impl FnOnce(Picture) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let picture = performer.picture(name.as_deref());
            Box::new(move || answer(picture))
        })
    }

    /// Asks how many VMs there are: the question that costs least, by which one sees whether the event loop answers. `answer` as above.
    pub fn ask_presence(&self, answer: impl FnOnce(Presence) + Send + 'static) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let presence = performer.presence();
            Box::new(move || answer(presence))
        })
    }

    /// Asks for what happened after the entry of a number, `most` entries at most. `answer` as above.
    pub fn ask_happenings(
        &self,
        after: u64,
        most: usize,
        answer: impl FnOnce(Happenings) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let happenings = performer.happenings.after(after, most);
            Box::new(move || answer(happenings))
        })
    }

    /// Keeps an entry among what happened, which others than the broker know of: to the VM of a name, or to the card.
    pub fn tell(&self, vm: Option<String>, kind: HappeningKind, text: String) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            performer.happenings.told(vm.as_deref(), kind, text);
            Box::new(|| {})
        })
    }

    /// Asks for a change of the quota that the VM of that name has, attached or not, to what `change` makes of it. Changes of two operators
    /// follow one another. The effect on the memory that the VM holds comes later. `answer` as above.
    pub fn ask_quota(
        &self,
        name: String,
        change: impl FnOnce(Quota) -> Quota + Send + 'static,
        answer: impl FnOnce(Result<QuotaChanged, QuotaRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let changed = performer.change_quota(&name, change);
            Box::new(move || answer(changed))
        })
    }
}

impl Shared {
    pub(crate) fn ask(
        &self,
        question: impl FnOnce(&mut Performer) -> Told + Send + 'static,
    ) -> Result<(), Ended> {
        if let Some(ended) = self.status.ended() {
            return Err(ended);
        }
        self.questions.put(Box::new(question));
        self.wake.wake();
        Ok(())
    }
}

impl Performer {
    /// The attached VM of that name, and its quota.
    pub(crate) fn attached_named(&self, name: &str) -> Option<(VmId, &VmConfig)> {
        let mut vms = self.vms.iter();
        let found = vms.find(|(_, vm)| vm.config.name == name && vm.state == VmState::Attached);
        found.map(|(id, vm)| (*id, &vm.config))
    }

    fn presence(&self) -> Presence {
        let is_listed =
            |vm: &&Vm| vm.state == VmState::Attached && self.roster.0.contains_key(&vm.config.name);
        Presence {
            connected: self.vms.values().filter(is_listed).count(),
            listed: self.roster.0.len(),
        }
    }

    fn picture(&self, name: Option<&str>) -> Picture {
        let standing = self.core.standing();
        let is_meant = |listed: &&Listed| name.is_none_or(|name| listed.config.name == name);
        let listed = self.roster.0.values().filter(is_meant);
        let vms = listed.map(|listed| {
            let vm = self.attached_named(&listed.config.name).map(|(vm, _)| vm);
            let of_vm = standing
                .iter()
                .flat_map(|standing| &standing.vms)
                .find(|of| Some(of.vm) == vm);
            VmPicture {
                config: listed.config.clone(),
                hold: listed.hold,
                spreads: vm.and_then(|vm| self.stats.spreads_of(vm)),
                attached: of_vm.and_then(|of| Some((of.clone(), self.stats.of_vm(of.vm)?))),
            }
        });
        let name_of = |(vm, entry): (&VmId, &Vm)| (*vm, entry.config.name.clone());
        Picture {
            now: self.now(),
            vms: vms.collect(),
            names: self.vms.iter().map(name_of).collect(),
            card: self.stats.of_card(),
            standing,
        }
    }

    fn change_quota(
        &mut self,
        name: &str,
        change: impl FnOnce(Quota) -> Quota,
    ) -> Result<QuotaChanged, QuotaRefusal> {
        let attached = self.attached_named(name);
        let vm = attached.map(|(vm, _)| vm);
        let known = attached.map(|(_, config)| config).or(self.roster.config(name));
        let no_such_vm = || QuotaRefusal::NoSuchVm {
            name: name.to_owned(),
        };
        let mut config = known.cloned().ok_or_else(no_such_vm)?;
        let before = config.quota;
        config.quota = change(before);
        let after = config.quota;
        after.check()?;
        // One that its file gave it may stay as it is.
        if after.min != before.min {
            self.check_min(&config, vm)?;
        }
        if let Some(vm) = vm {
            self.set_quota(vm, after).map_err(QuotaRefusal::Denied)?;
        }
        if let Some(listed) = self.roster.0.get_mut(name) {
            listed.config.quota = after;
        }
        self.happenings.quota_changed(name, before, after);
        Ok(QuotaChanged {
            before,
            after,
            is_attached: vm.is_some(),
        })
    }

    /// Changes what a VM may hold, unless that could not be kept.
    fn set_quota(&mut self, vm: VmId, quota: Quota) -> Result<(), Denial> {
        self.quota_refused = None;
        self.submit(Event::SetQuota { vm, quota });
        if let Some(reason) = self.quota_refused.take() {
            return Err(reason);
        }
        if let Some(entry) = self.vms.get_mut(&vm) {
            entry.config.quota = quota;
        }
        Ok(())
    }

    /// Says what would be allowed. That promises are kept is the core's part, which is asked when the VM is attached.
    pub(crate) fn check_min(&self, config: &VmConfig, vm: Option<VmId>) -> Result<(), QuotaRefusal> {
        let (min, guest_vram) = (config.quota.min, config.guest_vram);
        if min > guest_vram {
            return Err(QuotaRefusal::AboveGuestVram { min, guest_vram });
        }
        let most = self.core.standing().map(|standing| standing.min_most(config, vm));
        match most.filter(|most| min > *most) {
            Some(most) => Err(QuotaRefusal::NoRoom { min, most }),
            None => Ok(()),
        }
    }
}
