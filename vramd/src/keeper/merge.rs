//! Who is heard: the host's file, or an operator.
//!
//! * What an operator said holds, whatever the file says.
//! * What the file said when he spoke is kept with it. If the file says something else by now, that is a conflict, which is told.
//! * What both say alike is nobody's in particular: the operator's word is forgotten, and the file's holds.
//! * What cannot hold any more (a contradiction, a card that is gone) is told, and the file's holds.

use control::{Bound, QuotaChange};
use vgpu::{Hold, Quota};

use super::state::{Kept, KeptGpu, KeptPlace, KeptQuota, KeptVm, State, quota_words};
use crate::config::{GpuSection, HostConfig, VmSection};

/// Something that the file and an operator disagree about, or that the file asks for and cannot have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Conflict {
    pub(crate) gpu: String,
    /// `None`: it is about the card.
    pub(crate) vm: Option<String>,
    pub(crate) text: String,
}

/// A VM that has a place from the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MergedVm {
    /// With the quota of the file, or of whoever attached it.
    pub(crate) section: VmSection,
    /// The quota that holds.
    pub(crate) quota: Quota,
    pub(crate) hold: Hold,
    pub(crate) is_in_file: bool,
}

/// What holds when the broker starts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Merged {
    pub(crate) vms: Vec<MergedVm>,
    /// Host RAM of each card, in the order of the file.
    pub(crate) host_rams: Vec<u64>,
    pub(crate) state: State,
    pub(crate) conflicts: Vec<Conflict>,
}

/// A word of a quota, for messages.
struct Word {
    name: &'static str,
    /// What the operator said, what the file said then, and what it says now.
    kept: String,
    then: String,
    now: String,
}

impl KeptQuota {
    /// With what `change` names. `base` is what the VM has if nothing is said, `file` what the file says of it.
    pub(super) fn with(self, change: QuotaChange, base: Quota, file: Option<Quota>) -> Self {
        let (base, file) = (quota_words(base), file.map(quota_words));
        let bound = |new: Option<Bound>, old, base: Bound, file: Option<Bound>| match new {
            Some(value) => (value != base).then_some(Kept { value, file }),
            None => old,
        };
        Self {
            min: bound(change.min, self.min, base.min, file.map(|file| file.min)),
            low: bound(change.low, self.low, base.low, file.map(|file| file.low)),
            high: bound(change.high, self.high, base.high, file.map(|file| file.high)),
            max: bound(change.max, self.max, base.max, file.map(|file| file.max)),
            weight: match change.weight {
                Some(value) => (value != base.weight).then_some(Kept {
                    value,
                    file: file.map(|file| file.weight),
                }),
                None => self.weight,
            },
        }
    }

    /// The words that the file has changed since the operator spoke, and what is to be kept from now on.
    pub(super) fn beside(self, file: Quota) -> (Self, Vec<String>) {
        let now = quota_words(file);
        let mut words = Vec::new();
        let mut bound = |name, kept: Option<Kept<Bound>>, now: Bound| {
            beside(kept, now, |kept| {
                words.push(Word {
                    name,
                    kept: kept.value.to_string(),
                    then: kept
                        .file
                        .map_or_else(|| "nothing".into(), |then| then.to_string()),
                    now: now.to_string(),
                });
            })
        };
        let (min, low) = (bound("min", self.min, now.min), bound("low", self.low, now.low));
        let (high, max) = (
            bound("high", self.high, now.high),
            bound("max", self.max, now.max),
        );
        let weight = beside(self.weight, now.weight, |kept| {
            words.push(Word {
                name: "weight",
                kept: kept.value.to_string(),
                then: kept
                    .file
                    .map_or_else(|| "nothing".into(), |then| then.to_string()),
                now: now.weight.to_string(),
            });
        });
        let kept = Self {
            min,
            low,
            high,
            max,
            weight,
        };
        let texts = words.iter().map(|word| {
            format!(
                "host.toml says {} {} now and said {} when an operator set {}, which holds",
                word.name, word.now, word.then, word.kept
            )
        });
        (kept, texts.collect())
    }
}

/// What is kept beside the file's word of now; `differs` is called if the file has changed it since.
fn beside<T: PartialEq + Copy>(
    kept: Option<Kept<T>>,
    now: T,
    differs: impl FnOnce(Kept<T>),
) -> Option<Kept<T>> {
    let kept = kept?;
    if kept.value == now {
        return None;
    }
    if kept.file != Some(now) {
        differs(kept);
    }
    Some(Kept {
        file: Some(now),
        ..kept
    })
}

/// What is kept of a card's host RAM beside the file's word of now, and the conflict if there is one.
pub(super) fn host_ram_beside(kept: &KeptGpu, gpu: &GpuSection) -> (KeptGpu, Option<Conflict>) {
    let now = gpu.settings.host_ram;
    let mut conflict = None;
    let host_ram_bytes = beside(kept.host_ram_bytes, now, |kept| {
        conflict = Some(Conflict {
            gpu: gpu.name.clone(),
            vm: None,
            text: format!(
                "host.toml says host_ram {}M now, an operator set {}M, which holds: vramd quota --gpu {} --host-ram {}M takes it back",
                now >> 20,
                kept.value >> 20,
                gpu.name,
                now >> 20
            ),
        });
    });
    (KeptGpu { host_ram_bytes }, conflict)
}

impl Merged {
    /// What holds of a file and of a state that was kept.
    pub(crate) fn of(file: &HostConfig, kept: &State) -> Self {
        let mut merged = Self::default();
        for gpu in &file.gpus {
            let of_gpu = kept.gpus.get(&gpu.name).cloned().unwrap_or_default();
            let (of_gpu, conflict) = host_ram_beside(&of_gpu, gpu);
            merged.conflicts.extend(conflict);
            let value = of_gpu.host_ram_bytes.map(|kept| kept.value);
            merged.host_rams.push(value.unwrap_or(gpu.settings.host_ram));
            merged.state = merged.state.with_gpu(&gpu.name, of_gpu);
        }
        for vm in &file.vms {
            let of_vm = kept.vm(&vm.config.name);
            merged.take_vm(vm, of_vm);
        }
        for (name, of_vm) in &kept.vms {
            merged.take_kept(name, of_vm, file);
        }
        merged
    }

    fn conflict(&mut self, vm: &VmSection, text: String) {
        self.conflicts.push(Conflict {
            gpu: vm.gpu.clone(),
            vm: Some(vm.config.name.clone()),
            text,
        });
    }

    /// A VM of the file.
    fn take_vm(&mut self, vm: &VmSection, mut kept: KeptVm) {
        let name = &vm.config.name;
        if let Some(KeptPlace::Given(_)) = kept.place {
            // The file is the newer one: it did not have the VM then.
            let text = "host.toml has a VM that an operator attached under this name: the file's holds";
            self.conflict(vm, text.to_owned());
            kept.place = None;
        }
        let (quota, texts) = kept.quota.beside(vm.config.quota);
        let texts = texts.into_iter();
        texts.for_each(|text| self.conflict(vm, format!("{text}: vramd quota {name} --reset takes it back")));
        kept.quota = quota;
        let quota = self.held(vm, &mut kept);
        if kept.place != Some(KeptPlace::Taken) {
            self.vms.push(MergedVm {
                section: vm.clone(),
                quota,
                hold: hold_bytes(kept.hold),
                is_in_file: true,
            });
        }
        self.state = self.state.with_vm(name, kept);
    }

    /// A VM of the state.
    fn take_kept(&mut self, name: &str, kept: &KeptVm, file: &HostConfig) {
        if file.vms.iter().any(|vm| vm.config.name == name) {
            return;
        }
        let Some(KeptPlace::Given(place)) = &kept.place else {
            // Of a VM that the file had: it is nobody's any more.
            log::info!("host.toml has no vm {name} any more: what operators said of it is forgotten");
            return;
        };
        let vm = place.section(name);
        let sockets = self.vms.iter().map(|other| &other.section.socket);
        let control = file.control.iter().map(|control| &control.socket);
        let is_taken = sockets.chain(control).any(|socket| *socket == vm.socket);
        if !file.gpus.iter().any(|gpu| gpu.name == vm.gpu) || is_taken {
            let text = match is_taken {
                true => format!("its socket {} is another's in host.toml", vm.socket.display()),
                false => format!("host.toml has no gpu {} any more", vm.gpu),
            };
            self.conflict(
                &vm,
                format!("an operator attached the VM, and it cannot be served: {text}"),
            );
            return;
        }
        let mut kept = kept.clone();
        let quota = self.held(&vm, &mut kept);
        self.vms.push(MergedVm {
            section: vm,
            quota,
            hold: hold_bytes(kept.hold),
            is_in_file: false,
        });
        self.state = self.state.with_vm(name, kept);
    }

    /// The quota that holds. What operators said is forgotten if it contradicts the file's.
    fn held(&mut self, vm: &VmSection, kept: &mut KeptVm) -> Quota {
        let quota = kept.quota.over(vm.config.quota);
        let Err(reason) = quota.check() else { return quota };
        self.conflict(
            vm,
            format!("what an operator said of its quota and host.toml contradict each other ({reason}): host.toml's holds"),
        );
        kept.quota = KeptQuota::default();
        vm.config.quota
    }
}

pub(super) fn hold_bytes(hold: control::Hold) -> Hold {
    Hold {
        vram: hold.vram_bytes,
        is_suspended: hold.is_suspended,
    }
}

#[cfg(test)]
mod tests;
