//! What `serve` does beside its brokers: it keeps what operators say, gives VMs places and takes them, and rereads its file.
//!
//! ```text
//!  control API ──job──► keeper (main thread) ──question──► event loop of a card's broker
//!     SIGHUP ─────────►    │  ▲                                   │
//!                          │  └────────── answer ─────────────────┘
//!                          └──► state file
//! ```
//!
//! One change after the other, and each wholly or not: the state that is to hold is written beside the one that holds, the broker makes
//! the change or refuses it, and the new state takes the old one's place or goes. So what an operator was told is there after a restart.
//!
//! Three say what a VM may have: the host's file, an operator, and what the VM was attached with. An operator's word goes first. What the file
//! said when he spoke is kept with it, so that a file that says something else later is noticed: his word still holds, and the log and
//! the events have the conflict. `merge` has these rules.

mod merge;
mod places;
mod reload;
pub(crate) mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{bail, ensure};
use broker::{Broker, Ended, HappeningKind, HoldChange, HoldRefusal, QuotaRefusal};
use control::{GpuChange, GpuChanged, HoldChanged, QuotaChange, QuotaChanged, Refusal, RefusalKind};
use vmm::sandbox::privileges::User;
use vramd_vm::program::complain;
use vramd_vm::signals::{is_stop_requested, take_flight_request, take_reload_request};

use crate::config::{HostConfig, VmSection};
use crate::control::{Host, Place, Places, answers};
use crate::notify::Service;
pub(crate) use merge::{Conflict, Merged, MergedVm};
use state::{KeptGpu, KeptVm, State, Store};

/// Time between two looks for a signal or a broker's end.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Longest time that a broker's event loop takes to answer.
const BROKER_TIME: Duration = Duration::from_secs(5);

/// Something that the keeper is to do between two looks.
type Job = Box<dyn FnOnce(&mut Keeper) + Send>;

/// The way to the keeper.
#[derive(Clone)]
pub(crate) struct Jobs(Sender<Job>);

impl Jobs {
    /// The way, and its other end.
    pub(crate) fn new() -> (Self, Receiver<Job>) {
        let (jobs, done) = mpsc::channel();
        (Self(jobs), done)
    }

    /// Has something done. `Err` once the keeper has ended.
    pub(crate) fn put(&self, job: impl FnOnce(&mut Keeper) + Send + 'static) -> Result<(), Ended> {
        let ended = |_| Ended {
            reason: "the broker is about to end".into(),
        };
        self.0.send(Box::new(job)).map_err(ended)
    }
}

/// What the keeper starts with.
pub(crate) struct KeeperSetup {
    pub(crate) host: Arc<Host>,
    pub(crate) jobs: Receiver<Job>,
    /// The file as it was read, and where it lies.
    pub(crate) file: HostConfig,
    pub(crate) path: PathBuf,
    pub(crate) merged: Merged,
    /// Nowhere without a control API.
    pub(crate) store: Option<Store>,
    /// Who the process is, if it became somebody.
    pub(crate) user: Option<User>,
    /// Folders in which the process may make sockets.
    pub(crate) folders: Vec<PathBuf>,
}

/// Who keeps what operators say.
pub(crate) struct Keeper {
    host: Arc<Host>,
    jobs: Receiver<Job>,
    file: HostConfig,
    path: PathBuf,
    /// The VMs that have a place, each with the quota that its file or its operator gave it at first.
    served: BTreeMap<String, VmSection>,
    state: State,
    store: Option<Store>,
    user: Option<User>,
    folders: Vec<PathBuf>,
}

impl Keeper {
    /// Takes over. What the state file and the host's file disagree about is told now; what holds is written, so that a folder that
    /// cannot be written to is found at the start.
    pub(crate) fn new(setup: KeeperSetup) -> anyhow::Result<Self> {
        let Merged {
            vms,
            state,
            conflicts,
            ..
        } = setup.merged;
        let keeper = Self {
            host: setup.host,
            jobs: setup.jobs,
            file: setup.file,
            path: setup.path,
            served: vms
                .into_iter()
                .map(|vm| (vm.section.config.name.clone(), vm.section))
                .collect(),
            state,
            store: setup.store,
            user: setup.user,
            folders: setup.folders,
        };
        keeper.show_places();
        if let Some(store) = &keeper.store {
            let written = store.write(&keeper.state).and_then(|pending| pending.commit());
            if let Err(error) = written {
                bail!(
                    "cannot write what operators say to {}: {error}: name another file by control.state",
                    store.path().display()
                );
            }
        }
        conflicts.iter().for_each(|conflict| keeper.tell(conflict));
        Ok(keeper)
    }

    /// Works until a signal asks for the end, or all brokers have ended: a card that is lost is no reason to take the others from
    /// their VMs.
    pub(crate) fn keep(&mut self) -> anyhow::Result<()> {
        let mut gone = BTreeSet::new();
        let mut service = Service::ready();
        while !is_stop_requested() {
            self.work();
            for (gpu, broker) in &self.host.brokers {
                if !gone.contains(gpu)
                    && let Some(ended) = broker.wait_ended(Duration::ZERO)
                {
                    gone.insert(gpu.clone());
                    ensure!(gone.len() < self.host.brokers.len(), "gpu {gpu}: {ended}");
                    complain(&format!("gpu {gpu}: {ended}; the other cards go on"));
                }
            }
            if let Some(service) = &mut service {
                service.look(&self.host.brokers);
            }
            if take_flight_request() {
                let brokers = self.host.brokers.iter();
                brokers.for_each(|(gpu, broker)| write_flight(gpu, broker));
            }
            if take_reload_request() {
                self.reload();
            }
        }
        Ok(())
    }

    /// Does what it is asked to, and looks at nothing else, until somebody says that it is over.
    pub(crate) fn keep_until(&mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.work();
        }
    }

    /// Waits for something to do, and does it.
    fn work(&mut self) {
        // The host, which this keeps, has a way here, so there is always one.
        if let Ok(job) = self.jobs.recv_timeout(LOOK_PERIOD) {
            job(self);
        }
    }

    /// Changes what the VM of a name may hold.
    pub(crate) fn change_quota(&mut self, name: &str, change: QuotaChange) -> Result<QuotaChanged, Refusal> {
        let base = self.served(name)?.config.quota;
        let kept = self.state.vm(name);
        let quota = kept.quota.with(change, base, self.file_quota(name));
        self.set_quota(name, KeptVm { quota, ..kept })
    }

    /// Takes back what operators said of it.
    pub(crate) fn reset_quota(&mut self, name: &str) -> Result<QuotaChanged, Refusal> {
        self.served(name)?;
        let kept = self.state.vm(name);
        let quota = state::KeptQuota::default();
        self.set_quota(name, KeptVm { quota, ..kept })
    }

    fn set_quota(&mut self, name: &str, kept: KeptVm) -> Result<QuotaChanged, Refusal> {
        let quota = kept.quota.over(self.served(name)?.config.quota);
        let state = self.state.with_vm(name, kept);
        let (host, of) = (self.host.clone(), name.to_owned());
        let broker = self.broker_of(&host, name)?;
        let changed = self.keep_if(state, || {
            let answer = answered(|tell| broker.ask_quota(of, move |_| quota, tell));
            answer?.map_err(|why| quota_refusal(name, &why))
        })?;
        Ok(answers::changed(changed))
    }

    /// Holds something back from the VM of a name, or lets it go.
    pub(crate) fn change_hold(&mut self, name: &str, change: HoldChange) -> Result<HoldChanged, Refusal> {
        self.served(name)?;
        let host = self.host.clone();
        let broker = self.broker_of(&host, name)?;
        let ask = |change| answered(|tell| broker.ask_hold(name.to_owned(), change, tell));
        let changed = ask(change)?.map_err(|why| hold_refusal(name, &why))?;
        let kept = KeptVm {
            hold: answers::hold(changed.after),
            ..self.state.vm(name)
        };
        // What is held depends on what the VM has, so it is known only now.
        let written = self.keep_if(self.state.with_vm(name, kept), || Ok(()));
        if let Err(refusal) = written {
            ask(HoldChange::Put(changed.before))?.map_err(|why| hold_refusal(name, &why))?;
            return Err(refusal);
        }
        Ok(answers::hold_changed(changed))
    }

    /// Changes what a card has for all its VMs.
    pub(crate) fn change_gpu(&mut self, name: &str, change: GpuChange) -> Result<GpuChanged, Refusal> {
        let GpuChange { host_ram_bytes } = change;
        let Some(bytes) = host_ram_bytes else {
            let message = "nothing is named that is to change: host_ram_bytes can be".to_owned();
            return Err(Refusal::new(RefusalKind::HostRamRefused, message));
        };
        let file = self.file.gpus.iter().find(|gpu| gpu.name == name);
        let file = file.map(|gpu| gpu.settings.host_ram);
        let kept = KeptGpu {
            host_ram_bytes: (file != Some(bytes)).then_some(state::Kept { value: bytes, file }),
        };
        self.set_host_ram(name, bytes, kept)
    }

    fn set_host_ram(&mut self, name: &str, bytes: u64, kept: KeptGpu) -> Result<GpuChanged, Refusal> {
        let host = self.host.clone();
        let found = host.brokers.iter().find(|(gpu, _)| gpu == name);
        let unknown = || unknown_gpu(name, &host);
        let (_, broker) = found.ok_or_else(unknown)?;
        let changed = self.keep_if(self.state.with_gpu(name, kept), || {
            answered(|tell| broker.ask_host_ram(bytes, tell))?.map_err(|why| {
                Refusal::new(RefusalKind::HostRamRefused, format!("gpu {name}: {why}"))
                    .then(format!("vramd list --gpu {name}"))
            })
        })?;
        Ok(GpuChanged {
            before_host_ram_bytes: changed.before,
            after_host_ram_bytes: changed.after,
        })
    }

    /// Has `state` hold if `change` is made.
    fn keep_if<T>(
        &mut self,
        state: State,
        change: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let not_kept = |error: std::io::Error| {
            log::error!("what an operator said cannot be kept: {error}");
            let message = format!("it cannot be kept in the state file: {error}");
            Refusal::new(RefusalKind::NotKept, message)
        };
        let is_new = state != self.state;
        let pending = match self.store.as_ref().filter(|_| is_new) {
            Some(store) => Some(store.write(&state).map_err(not_kept)?),
            None => None,
        };
        let made = change()?;
        if let Some(pending) = pending {
            // It is made: that a disk fails at this instant is told, and it holds as long as the broker runs.
            pending.commit().map_err(not_kept)?;
        }
        self.state = state;
        Ok(made)
    }

    /// A VM has a place from now on.
    fn place(&mut self, section: VmSection) {
        self.served.insert(section.config.name.clone(), section);
        self.show_places();
    }

    /// Has the control API show what there is.
    fn show_places(&self) {
        let place = |(name, section): (&String, &VmSection)| {
            let mut brokers = self.host.brokers.iter();
            let place = Place {
                gpu: brokers.position(|(gpu, _)| *gpu == section.gpu)?,
                socket: section.socket.clone(),
                first_quota: section.config.quota,
                file_quota: self.file_quota(name),
            };
            Some((name.clone(), place))
        };
        let gpus = self.file.gpus.iter();
        self.host.show(Places {
            vms: self.served.iter().filter_map(place).collect(),
            file_host_rams: gpus
                .map(|gpu| (gpu.name.clone(), gpu.settings.host_ram))
                .collect(),
        });
    }

    fn served(&self, name: &str) -> Result<&VmSection, Refusal> {
        self.served.get(name).ok_or_else(|| {
            let of_file = self.file.vms.iter().any(|vm| vm.config.name == name);
            match of_file {
                true => Refusal::new(RefusalKind::UnknownVm, format!("vm {name} is detached"))
                    .then(format!("vramd attach {name}")),
                false => Refusal::new(RefusalKind::UnknownVm, format!("there is no vm {name:?}"))
                    .then("vramd list"),
            }
        })
    }

    fn file_section(&self, name: &str) -> Option<&VmSection> {
        self.file.vms.iter().find(|vm| vm.config.name == name)
    }

    fn file_quota(&self, name: &str) -> Option<vgpu::Quota> {
        self.file_section(name).map(|vm| vm.config.quota)
    }

    /// The broker of a VM that has a place.
    fn broker_of<'a>(&self, host: &'a Host, name: &str) -> Result<&'a Broker, Refusal> {
        let gpu = &self.served(name)?.gpu;
        let (_, broker) = host
            .brokers
            .iter()
            .find(|(known, _)| known == gpu)
            .expect("a VM has a place on a card that is served");
        Ok(broker)
    }

    /// Has an operator know what the file and what was said before disagree about.
    fn tell(&self, conflict: &Conflict) {
        let Conflict { gpu, vm, text } = conflict;
        log::warn!(gpu = gpu.as_str(), vm = vm.as_deref().unwrap_or("-"); "{text}");
        let found = self.host.brokers.iter().find(|(name, _)| name == gpu);
        if let Some((_, broker)) = found.or(self.host.brokers.first()) {
            // One that has ended is told of elsewhere.
            let _ = broker.tell(vm.clone(), HappeningKind::FileConflict, text.clone());
        }
    }
}

/// Writes what happened last at one card, and names the file.
fn write_flight(gpu: &str, broker: &Broker) {
    match broker.write_flight("SIGUSR1") {
        Ok(path) => complain(&format!("gpu {gpu}: what happened last is in {}", path.display())),
        Err(error) => complain(&format!("gpu {gpu}: {:#}", anyhow::Error::new(error))),
    }
}

/// Asks an event loop and waits for what it answers.
fn answered<T, E: ToString>(
    ask: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Result<(), E>,
) -> Result<T, Refusal>
where
    T: Send + 'static,
{
    let ended = |what: String| Refusal::new(RefusalKind::BrokerEnded, what);
    let (tell, told) = mpsc::channel();
    // Nobody waits any more where this thread gave up.
    let answer = Box::new(move |answer| drop(tell.send(answer)));
    ask(answer).map_err(|error| ended(error.to_string()))?;
    told.recv_timeout(BROKER_TIME).map_err(|error| {
        ended(match error {
            RecvTimeoutError::Timeout => "the broker does not answer".to_owned(),
            RecvTimeoutError::Disconnected => "the broker has ended".to_owned(),
        })
    })
}

fn quota_refusal(name: &str, why: &QuotaRefusal) -> Refusal {
    Refusal::new(RefusalKind::QuotaRefused, format!("vm {name}: {why}")).then(format!("vramd show {name}"))
}

fn hold_refusal(name: &str, why: &HoldRefusal) -> Refusal {
    let next = match why {
        HoldRefusal::Frozen => "thaw",
        HoldRefusal::NotConnected => "freeze",
        _ => "show",
    };
    Refusal::new(RefusalKind::HoldRefused, format!("vm {name}: {why}")).then(format!("vramd {next} {name}"))
}

fn unknown_gpu(name: &str, host: &Host) -> Refusal {
    let names: Vec<_> = host.brokers.iter().map(|(name, _)| name.as_str()).collect();
    let message = format!("there is no gpu {name:?}; there are {}", names.join(", "));
    Refusal::new(RefusalKind::UnknownGpu, message).then("vramd list")
}

/// Where the state of a broker lies that names no file: beside its control socket.
pub(crate) fn usual_state_file(socket: &Path) -> PathBuf {
    socket.with_extension("state.json")
}
