//! `vramd demo`: a broker with a card and several guests in one process, which together use more VRAM than the card
//! has. It checks whether every byte came out right.
//!
//! ```text
//! inputs ─► broker ─► attach all ─► build all ─► start all ─► watch ─► all ended ─► report
//!                                                              │
//!                                      one frame of figures for the observer
//! ```
//!
//! Every figure is taken from where it is counted: VRAM and moves from the broker, exits from the VM, digests from
//! the bytes that the guest read back.

mod report;
mod screen;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use broker::{AttachError, Broker, BrokerStats, Ended, FlightFolder};
use guests::Workload;
use vgpu::{GpuConfig, Quota, ShadowMode, VmConfig, WindowMode};

use report::CardReport;
pub use report::{DemoReport, GpuReport, InputReport, PauseReport, ShaderReport, VmReport};
pub use screen::Screen;

use crate::host::{CardChoice, HostError, HostSetup, start_counted};
use crate::local_link::BrokerLink;
use vmm::loader::Kernel;
use vmm::pci::MMIO_WINDOW;
use vmm::sandbox::Sandbox;
use vramd_vm::config::MIB;
use vramd_vm::guest::{
    Guest, GuestEnd, GuestError, GuestSetup, InputError, InputFile, Journal, ReadyGuest, RunsOn, Told,
    ram_bytes_for, verdict,
};

const CHUNK_BYTES: u64 = 2 * MIB;
/// Time between two looks at the guests.
const LOOK_PERIOD: Duration = Duration::from_millis(50);
/// VRAM that the guest's driver and tables take, generously.
const GUEST_VRAM_OWN: u64 = 8 * MIB;
/// VRAM that a guest with a kernel takes besides its buffers, generously.
const KERNEL_VRAM_OWN: u64 = 8 * MIB;
/// Most bytes of a kernel's buffers: its reference has to fit guest RAM below 3 GiB.
const FOOTPRINT_MAX: u64 = 2 << 30;
/// Rounds in which the guests move the contents of their VRAM about.
const FILE_ROUNDS: u32 = 4;
/// Rounds in which they run their kernel.
const KERNEL_ROUNDS: u32 = 1;

/// Parameters of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Number of VMs, 1 to [`broker::VMS_MAX`].
    pub vms: usize,
    /// Card that the broker drives.
    pub card: CardChoice,
    /// VRAM that each guest sees, bytes.
    pub guest_vram: u64,
    /// Workloads of the guests, in turn; not empty.
    pub workloads: Vec<Workload>,
    /// Files that guests with the workload `files` take through VRAM; this program's own executable if there is none.
    pub inputs: Vec<PathBuf>,
    /// How the VMs reach BAR1, BAR3 and PRAMIN.
    pub windows: WindowMode,
    /// How page tables of guests are followed.
    pub shadow: ShadowMode,
    /// Seed of the memory manager's and the guests' choices.
    pub seed: u64,
    /// Rounds of moving, or of running a kernel.
    pub rounds: Option<u32>,
    /// File to record the broker's events to.
    pub record: Option<PathBuf>,
    /// What the guests run on. Without KVM they run on threads in any case.
    pub place: RunsOn,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// An input cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The guest's RAM cannot hold all inputs.
    #[error("the inputs of {bytes} bytes together do not fit {limit} bytes of guest VRAM and RAM")]
    InputsTooLarge {
        /// Bytes of all inputs.
        bytes: u64,
        /// Bytes that fit.
        limit: u64,
    },
    /// There are more inputs than the workload can count.
    #[error("{count} inputs are more than {}", vramd_vm::guest::INPUTS_MAX)]
    TooManyInputs {
        /// Number of inputs.
        count: usize,
    },
    /// The broker cannot be started.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The broker refuses a VM.
    #[error("vm {name} gets no vGPU")]
    Attach {
        /// Name of the VM.
        name: String,
        /// Reason of the refusal.
        #[source]
        source: AttachError,
    },
    /// A VM cannot be built or started.
    #[error("vm {name} cannot run")]
    Guest {
        /// Name of the VM.
        name: String,
        /// Error of the guest.
        #[source]
        source: GuestError,
    },
    /// The broker ended early.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Observes the demo while it runs.
pub trait Onlooker {
    /// A message that must not be missed.
    fn notice(&mut self, text: &str);

    /// The present figures. Called often.
    fn frame(&mut self, vms: &[VmFrame]);

    /// Whether the demo shall stop.
    fn wants_to_stop(&self) -> bool;
}

/// One VM as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmFrame {
    /// Name of the VM.
    pub name: String,
    /// Its activity, or how it ended.
    pub state: String,
    /// Progress of the activity.
    pub percent: u64,
    /// Bytes in VRAM.
    pub resident_bytes: u64,
    /// Bytes in host RAM.
    pub spilled_bytes: u64,
    /// Chunks moved out and back.
    pub moves: (u64, u64),
    /// Pauses: the latest and the longest, nanoseconds.
    pub pause_ns: (u64, u64),
}

/// One VM of the demo.
struct Member {
    name: String,
    workload: Workload,
    inputs: Arc<[InputFile]>,
    journal: Arc<Journal>,
    /// Kept behind its end, with its vGPU, until all have ended.
    running: Option<(Guest, Arc<BrokerLink>)>,
    exits: u64,
    seconds: f64,
    end: Option<GuestEnd>,
}

/// Runs the demo to its end.
pub fn run(options: &DemoOptions, onlooker: &mut dyn Onlooker) -> Result<DemoReport, DemoError> {
    let inputs: Arc<[InputFile]> = load_inputs(options)?.into();
    let start = Instant::now();
    let flights = FlightFolder::new(std::env::temp_dir(), "demo");
    let (broker, counters) = start_counted(HostSetup {
        card: options.card.clone(),
        settings: GpuConfig {
            // Enough that the card's own share never decides whether a VM is admitted.
            host_ram: options.guest_vram.saturating_mul(options.vms as u64),
            windows: options.windows,
            shadow: options.shadow,
            seed: options.seed,
            ..GpuConfig::default()
        },
        firmware: None,
        record: options.record.clone(),
        flights: Some(flights.clone()),
        vms: Vec::new(),
    })?;
    let mut place = options.place;
    let mut members = build_all(options, &inputs, &broker, &mut place, onlooker)?;
    if let Err(error) = watch(&mut members, &broker, start, onlooker) {
        if let Some(path) = flights.last() {
            onlooker.notice(&format!("what happened last is in {}", path.display()));
        }
        return Err(error);
    }
    let seconds = start.elapsed().as_secs_f64();
    let stats = broker.snapshot();
    let is_kvm = place == RunsOn::Kvm;
    // A card that was lost has ended the demo above.
    let counters = counters.and_then(|counters| counters.read().ok());
    let card = CardReport { stats, counters };
    let mut report = report::make(options, &inputs, &members, &card, is_kvm, seconds);
    if !report.ok {
        let reason = format!("the demo failed: {}", report.notes.join("; "));
        report.notes.push(match broker.write_flight(&reason) {
            Ok(path) => format!("what happened last is in {}", path.display()),
            Err(error) => format!("what happened last is lost: {error}"),
        });
    }
    Ok(report)
}

impl DemoOptions {
    /// Workload of VM number `index`.
    fn workload(&self, index: usize) -> Workload {
        let turn = index.checked_rem(self.workloads.len());
        turn.map_or(Workload::Files, |turn| self.workloads[turn])
    }

    /// Whether any VM has the workload `workload`.
    fn has(&self, workload: Workload) -> bool {
        (0..self.vms).any(|index| self.workload(index) == workload)
    }

    /// Bytes of a kernel's buffers: a share of its guest's VRAM such that four guests together use twice the card.
    fn footprint(&self) -> u64 {
        let room = self.guest_vram.saturating_sub(KERNEL_VRAM_OWN);
        room.min(self.guest_vram / 8 * 5).min(FOOTPRINT_MAX)
    }

    /// The guest of VM number `index`, with `inputs` if it takes any.
    fn guest(&self, index: usize, inputs: &Arc<[InputFile]>) -> GuestSetup {
        let workload = self.workload(index);
        let (inputs, rounds) = match workload {
            Workload::Files => (inputs.clone(), FILE_ROUNDS),
            Workload::Kernel(_) => (Arc::default(), KERNEL_ROUNDS),
        };
        let footprint = self.footprint();
        let reference = guests::scratch_words(workload, footprint) as u64 * 4;
        GuestSetup {
            name: vm_name(index),
            ram_bytes: ram_bytes_for(&inputs) + reference.next_multiple_of(MIB),
            vcpus: 1,
            kernel: Kernel::bare(),
            inputs,
            options: format!(
                "vramd.workload={} vramd.footprint_kib={} vramd.seed={} vramd.rounds={}",
                workload.name(),
                footprint >> 10,
                self.seed.wrapping_add(index as u64),
                self.rounds.unwrap_or(rounds)
            ),
            // The broker is in the same process.
            sandbox: Sandbox::none(),
        }
    }
}

fn load_inputs(options: &DemoOptions) -> Result<Vec<InputFile>, DemoError> {
    if !options.has(Workload::Files) {
        return Ok(Vec::new());
    }
    let room = options.guest_vram.saturating_sub(GUEST_VRAM_OWN);
    let limit = room.min(MMIO_WINDOW.start - ram_bytes_for(&[]));
    if options.inputs.is_empty() {
        // Half of it, so that its pieces lie in several places.
        return Ok(vec![InputFile::own_executable(
            (options.guest_vram / 2).min(limit).max(1),
        )?]);
    }
    if options.inputs.len() > vramd_vm::guest::INPUTS_MAX {
        return Err(DemoError::TooManyInputs {
            count: options.inputs.len(),
        });
    }
    let open = |path: &PathBuf| InputFile::open(path, limit, "guest VRAM and RAM");
    let inputs = options.inputs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let bytes = inputs.iter().map(InputFile::bytes).sum();
    if bytes > limit {
        return Err(DemoError::InputsTooLarge { bytes, limit });
    }
    Ok(inputs)
}

/// a, b, … z, then v26, v27, …
fn vm_name(index: usize) -> String {
    let letter = u8::try_from(index)
        .ok()
        .filter(|index| *index < 26)
        .map(|index| char::from(b'a' + index));
    letter.map_or_else(|| format!("v{index}"), String::from)
}

fn build_all(
    options: &DemoOptions,
    inputs: &Arc<[InputFile]>,
    broker: &Broker,
    place: &mut RunsOn,
    onlooker: &mut dyn Onlooker,
) -> Result<Vec<Member>, DemoError> {
    let mut ready = Vec::new();
    for index in 0..options.vms {
        let setup = options.guest(index, inputs);
        let config = VmConfig {
            name: setup.name.clone(),
            guest_vram: options.guest_vram,
            chunk_bytes: CHUNK_BYTES,
            quota: Quota::default(),
            ram: vgpu::RAM_DEFAULT,
            channels: vgpu::CHANNELS_DEFAULT,
        };
        let link = broker.attach(config).map_err(|source| DemoError::Attach {
            name: setup.name.clone(),
            source,
        })?;
        let link = Arc::new(BrokerLink::new(link));
        let journal = Arc::new(Journal::default());
        let built = match ReadyGuest::build(*place, &setup, link.clone(), journal.clone()) {
            Err(GuestError::Vm(error)) if index == 0 && error.is_host_without_kvm() => {
                let mut reason = String::new();
                // Writing to a `String` cannot fail.
                let _ = vramd_vm::guest::write_chain(&mut reason, &error);
                onlooker.notice(&format!(
                    "NO VIRTUAL MACHINES: {reason}. The guests run on host threads instead."
                ));
                *place = RunsOn::Threads;
                ReadyGuest::build(*place, &setup, link.clone(), journal.clone())
            }
            other => other,
        };
        let guest = built.map_err(|source| DemoError::Guest {
            name: setup.name.clone(),
            source,
        })?;
        ready.push((setup, options.workload(index), guest, link, journal));
    }
    let start = |(setup, workload, guest, link, journal): (GuestSetup, _, ReadyGuest, _, _)| {
        let name = setup.name;
        let guest = guest.start().map_err(|source| DemoError::Guest {
            name: name.clone(),
            source,
        })?;
        Ok(Member {
            name,
            workload,
            inputs: setup.inputs,
            journal,
            running: Some((guest, link)),
            exits: 0,
            seconds: 0.0,
            end: None,
        })
    };
    ready.into_iter().map(start).collect()
}

/// Waits until all guests have ended, and detaches them then: the card is oversubscribed even where the host's processors let
/// one guest come to its end before another begins.
fn watch(
    members: &mut [Member],
    broker: &Broker,
    start: Instant,
    onlooker: &mut dyn Onlooker,
) -> Result<(), DemoError> {
    while members.iter().any(|member| member.end.is_none()) {
        thread::sleep(LOOK_PERIOD);
        if onlooker.wants_to_stop() {
            kill_all(members);
            return Err(DemoError::Interrupted);
        }
        if let Some(ended) = broker.wait_ended(Duration::ZERO) {
            kill_all(members);
            return Err(ended.into());
        }
        for member in members.iter_mut() {
            member.look(start);
        }
        let stats = broker.snapshot();
        let frames: Vec<_> = members.iter().map(|member| member.frame(&stats)).collect();
        onlooker.frame(&frames);
    }
    members.iter_mut().for_each(|member| member.running = None);
    Ok(())
}

/// Stops all guests first, then waits for each: every one takes the time of one exit.
fn kill_all(members: &mut [Member]) {
    members
        .iter()
        .filter_map(|member| member.running.as_ref())
        .for_each(|(guest, _)| guest.kill());
    members.iter_mut().for_each(|member| member.running = None);
}

impl Member {
    fn look(&mut self, start: Instant) {
        let Some((guest, link)) = self.running.as_ref().filter(|_| self.end.is_none()) else {
            return;
        };
        if guest.end().is_none() && link.expulsion().is_some() {
            // A guest that does not touch its vGPU would not notice.
            guest.kill();
        }
        let Some(end) = guest.end() else { return };
        self.exits = guest.exits();
        self.seconds = start.elapsed().as_secs_f64();
        let expulsion = link
            .expulsion()
            .map(|reason| GuestEnd::Thread(Err(format!("it was detached: {reason}"))));
        self.end = Some(expulsion.unwrap_or(end));
    }

    fn told(&self) -> Told {
        self.journal.told()
    }

    /// The errors of a VM that has ended.
    fn wrong(&self) -> Vec<String> {
        let Some(end) = &self.end else {
            return vec!["it did not end".to_owned()];
        };
        let told = self.told();
        let mut wrong = verdict(&self.inputs, &told, end);
        let has_run = told.kernel.is_some_and(|kernel| kernel.checked_bytes != 0);
        if wrong.is_empty() && self.workload != Workload::Files && !has_run {
            wrong.push("it compared nothing".to_owned());
        }
        wrong
    }

    fn frame(&self, stats: &BrokerStats) -> VmFrame {
        let told = self.told();
        let figures = stats
            .vms
            .iter()
            .find(|vm| vm.name == self.name)
            .cloned()
            .unwrap_or_default();
        let (state, percent) = match &self.end {
            Some(end) if end.is_success() => ("done".to_owned(), 100),
            Some(_) => ("failed".to_owned(), told.progress.percent()),
            None => (told.progress.phase.clone(), told.progress.percent()),
        };
        VmFrame {
            name: self.name.clone(),
            state,
            percent,
            resident_bytes: figures.resident_bytes,
            spilled_bytes: figures.spilled_bytes,
            moves: (figures.spills, figures.refills),
            pause_ns: (figures.pauses.last_ns, figures.pauses.max_ns),
        }
    }
}
