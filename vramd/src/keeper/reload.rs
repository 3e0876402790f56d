//! The host's file, read again while the broker runs.
//!
//! What the file changed since it was read last is done, and nothing else: what an operator said holds, and a conflict is told. What
//! cannot be done while VMs run is told, and stays as it was.

use control::Refusal;
use vgpu::Quota;
use vramd_vm::program::complain;

use super::Keeper;
use super::merge::{Conflict, host_ram_beside};
use super::state::{Kept, KeptQuota, KeptVm, State, quota_words};
use crate::config::{GpuSection, HostConfig, VmSection};

/// What a SIGHUP led to, for the log.
#[derive(Default)]
struct Outcome {
    done: u32,
    conflicts: u32,
}

impl Keeper {
    /// Reads the file again. One that is wrong changes nothing.
    pub(super) fn reload(&mut self) {
        let file = match HostConfig::load(&self.path) {
            Ok(file) => file,
            Err(error) => {
                let text = format!("SIGHUP: nothing is changed: {:#}", anyhow::Error::new(error));
                complain(&text);
                let gpu = self.file.gpus.first().map(|gpu| gpu.name.clone());
                return self.tell(&Conflict {
                    gpu: gpu.unwrap_or_default(),
                    vm: None,
                    text,
                });
            }
        };
        let before = std::mem::replace(&mut self.file, file.clone());
        let mut outcome = Outcome::default();
        if before.control != file.control {
            self.refuse(
                &mut outcome,
                &file,
                None,
                "[control] of host.toml changes when serve is started anew".into(),
            );
        }
        self.reload_gpus(&before, &file, &mut outcome);
        self.reload_vms(&before, &file, &mut outcome);
        self.show_places();
        let Outcome { done, conflicts } = outcome;
        let path = self.path.display();
        log::info!("SIGHUP: {path} is read: {done} changes done, {conflicts} told of as conflicts");
        complain(&format!(
            "SIGHUP: {path} is read: {done} changes done, {conflicts} conflicts (vramd events)"
        ));
    }

    fn refuse(&self, outcome: &mut Outcome, file: &HostConfig, vm: Option<&VmSection>, text: String) {
        outcome.conflicts += 1;
        let first = file.gpus.first().map(|gpu| gpu.name.clone());
        let gpu = vm.map(|vm| vm.gpu.clone()).or(first).unwrap_or_default();
        let vm = vm.map(|vm| vm.config.name.clone());
        self.tell(&Conflict { gpu, vm, text });
    }

    fn reload_gpus(&mut self, before: &HostConfig, file: &HostConfig, outcome: &mut Outcome) {
        let names = |file: &HostConfig| file.gpus.iter().map(|gpu| gpu.name.clone()).collect::<Vec<_>>();
        if names(before) != names(file) {
            let text =
                "cards come and go when serve is started anew: host.toml's are not those that are served"
                    .into();
            return self.refuse(outcome, file, None, text);
        }
        for (old, new) in before.gpus.iter().zip(&file.gpus) {
            let mut same = new.clone();
            same.settings.host_ram = old.settings.host_ram;
            if same != *old {
                outcome.conflicts += 1;
                self.tell(&Conflict {
                    gpu: new.name.clone(),
                    vm: None,
                    text: "all of [[gpu]] but host_ram changes when serve is started anew".into(),
                });
            }
            if old.settings.host_ram != new.settings.host_ram {
                self.reload_host_ram(old, new, outcome);
            }
        }
    }

    fn reload_host_ram(&mut self, old: &GpuSection, new: &GpuSection, outcome: &mut Outcome) {
        let kept = self.state.gpus.get(&new.name).cloned().unwrap_or_default();
        let (mut kept, conflict) = host_ram_beside(&kept, new);
        if let Some(conflict) = conflict {
            outcome.conflicts += 1;
            self.tell(&conflict);
        }
        let said = kept.host_ram_bytes.map(|kept| kept.value);
        let bytes = said.unwrap_or(new.settings.host_ram);
        match self.set_host_ram(&new.name, bytes, kept.clone()) {
            Ok(_) if said.is_none() => outcome.done += 1,
            Ok(_) => {}
            Err(Refusal { message, .. }) => {
                outcome.conflicts += 1;
                self.tell(&Conflict {
                    gpu: new.name.clone(),
                    vm: None,
                    text: format!("host_ram of host.toml is refused: {message}"),
                });
                // What holds is not what the file says: somebody has to take that back.
                let value = old.settings.host_ram;
                kept.host_ram_bytes = Some(Kept {
                    value,
                    file: Some(new.settings.host_ram),
                });
                let state = self.state.with_gpu(&new.name, kept);
                self.keep_quietly(state);
            }
        }
    }

    fn reload_vms(&mut self, before: &HostConfig, file: &HostConfig, outcome: &mut Outcome) {
        let in_file = |file: &HostConfig, name: &str| {
            let found = file.vms.iter().find(|vm| vm.config.name == name);
            found.cloned()
        };
        for old in &before.vms {
            match in_file(file, &old.config.name) {
                None => self.reload_removed(old, file, outcome),
                Some(new) if new != *old => self.reload_changed(old, &new, file, outcome),
                Some(_) => {}
            }
        }
        for new in &file.vms {
            if in_file(before, &new.config.name).is_none() {
                self.reload_added(new, file, outcome);
            }
        }
    }

    fn reload_removed(&mut self, old: &VmSection, file: &HostConfig, outcome: &mut Outcome) {
        let name = &old.config.name;
        let state = self.state.with_vm(name, KeptVm::default());
        if !self.served.contains_key(name) {
            return self.keep_quietly(state);
        }
        match self.unserve(name, false, state) {
            Ok(_) => outcome.done += 1,
            Err(Refusal { message, .. }) => {
                let text = format!(
                    "host.toml has the VM no more, and it is served still: {message}: vramd detach {name}"
                );
                self.refuse(outcome, file, Some(old), text);
            }
        }
    }

    fn reload_added(&mut self, new: &VmSection, file: &HostConfig, outcome: &mut Outcome) {
        let name = &new.config.name;
        if self.served.contains_key(name) {
            let text = format!(
                "host.toml has a VM that is served already, as an operator attached it or the file had it before: vramd detach {name}, then \
                 vramd attach {name} has the file's"
            );
            return self.refuse(outcome, file, Some(new), text);
        }
        let kept = self.state.vm(name);
        let state = self.state.clone();
        self.reload_served(new, &kept, state, file, outcome);
    }

    fn reload_served(
        &mut self,
        new: &VmSection,
        kept: &KeptVm,
        state: State,
        file: &HostConfig,
        outcome: &mut Outcome,
    ) -> bool {
        let served = self.serve(new.clone(), kept, state);
        match &served {
            Ok(()) => outcome.done += 1,
            Err(Refusal { message, .. }) => {
                let text = format!("the VM of host.toml is not served so: {message}");
                self.refuse(outcome, file, Some(new), text);
            }
        }
        served.is_ok()
    }

    /// A VM of which the file says something else.
    fn reload_changed(&mut self, old: &VmSection, new: &VmSection, file: &HostConfig, outcome: &mut Outcome) {
        let name = &new.config.name;
        let mut kept = self.state.vm(name);
        let (quota, texts) = kept.quota.beside(new.config.quota);
        for text in texts {
            self.refuse(
                outcome,
                file,
                Some(new),
                format!("{text}: vramd quota {name} --reset takes it back"),
            );
        }
        kept.quota = quota;
        let state = self.state.with_vm(name, kept.clone());
        let Some(served) = self.served.get(name).cloned() else {
            // Detached: it is attached as the file has it then.
            return self.keep_quietly(state);
        };
        let mut reshaped = served.clone();
        reshaped.config.quota = new.config.quota;
        if reshaped == *new {
            return self.reload_quota(old, new, kept, file, outcome);
        }
        // Another card, size or socket: its place is taken and given anew, if nobody is there.
        match self.unserve(name, false, self.state.clone()) {
            Ok(_) => {
                let is_served = self.reload_served(new, &kept, state, file, outcome);
                if !is_served {
                    // It had a place before, and has it again.
                    self.reload_served(&served, &kept, self.state.clone(), file, outcome);
                }
            }
            Err(Refusal { message, .. }) => {
                let text = format!(
                    "all of [[vm]] but its quota changes when its VMM is not connected: {message}: vramd detach {name} --force, then vramd \
                     attach {name}"
                );
                self.refuse(outcome, file, Some(new), text);
                if old.config.quota != new.config.quota {
                    self.reload_quota(old, new, kept, file, outcome);
                }
            }
        }
    }

    fn reload_quota(
        &mut self,
        old: &VmSection,
        new: &VmSection,
        mut kept: KeptVm,
        file: &HostConfig,
        outcome: &mut Outcome,
    ) {
        let name = &new.config.name;
        if let Some(served) = self.served.get_mut(name) {
            served.config.quota = new.config.quota;
        }
        let is_said = kept.quota.over(new.config.quota) == kept.quota.over(old.config.quota);
        match self.set_quota(name, kept.clone()) {
            Ok(_) if !is_said => outcome.done += 1,
            Ok(_) => {}
            Err(Refusal { message, .. }) => {
                self.refuse(
                    outcome,
                    file,
                    Some(new),
                    format!("the quota of host.toml is refused: {message}"),
                );
                kept.quota = left_as_it_was(kept.quota, old.config.quota, new.config.quota);
                let state = self.state.with_vm(name, kept);
                self.keep_quietly(state);
            }
        }
    }

    /// Has a state hold that nobody waits for.
    fn keep_quietly(&mut self, state: State) {
        // The log has the reason of a failure.
        let _ = self.keep_if(state, || Ok(()));
    }
}

/// What holds where the file's new quota was refused: the old one, word by word, as if an operator had said it.
fn left_as_it_was(kept: KeptQuota, old: Quota, new: Quota) -> KeptQuota {
    let (old, now) = (quota_words(kept.over(old)), quota_words(new));
    let bound = |value: control::Bound, file| {
        (value != file).then_some(Kept {
            value,
            file: Some(file),
        })
    };
    KeptQuota {
        min: bound(old.min, now.min),
        low: bound(old.low, now.low),
        high: bound(old.high, now.high),
        max: bound(old.max, now.max),
        weight: (old.weight != now.weight).then_some(Kept {
            value: old.weight,
            file: Some(now.weight),
        }),
    }
}
