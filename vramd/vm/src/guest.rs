//! One running guest, in a KVM VM or on a thread of this process, and whether its results are right.
//!
//! ```text
//! InputFile ─┬─► Guest::start ─► Guest ──ends──► GuestEnd ─┐
//!            │                    └─ lines ─► Journal ─────┴─► verdict: what is wrong, if anything
//!            └──────────────── digests taken before ───────┘
//! ```

mod inputs;
mod journal;
mod thread;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use inputs::{InputError, InputFile};
pub use journal::{Digest, Journal, KernelResult, Progress, Told, hex};
pub use thread::{ThreadError, ThreadVm};

use vmm::link::VgpuLink;
use vmm::loader::{Input, Kernel};
use vmm::sandbox::Sandbox;
use vmm::vm::{RunningVm, Vm, VmConfig, VmError, VmExit};

/// RAM for the guest program, its stack, rings and read-back.
const RAM_BESIDES_INPUTS: u64 = 16 << 20;
const MIB: u64 = 1 << 20;
/// Files that the workload counts.
pub const INPUTS_MAX: usize = 16;

/// The parts of a guest.
#[derive(Clone, Debug)]
pub struct GuestSetup {
    /// Name in threads and messages.
    pub name: String,
    /// RAM in bytes.
    pub ram_bytes: u64,
    /// vCPUs; a guest on a thread has one in any case.
    pub vcpus: usize,
    /// Program; a guest on a thread runs the built-in one's workload.
    pub kernel: Kernel,
    /// Files that the guest gets.
    pub inputs: Arc<[InputFile]>,
    /// Words of its command line.
    pub options: String,
    /// System calls that the threads of a virtual machine may make.
    pub sandbox: Sandbox,
}

/// RAM that suffices for the built-in guest with these files.
pub fn ram_bytes_for(inputs: &[InputFile]) -> u64 {
    let files: u64 = inputs
        .iter()
        .map(|input| input.bytes().next_multiple_of(4096))
        .sum();
    files.next_multiple_of(MIB) + RAM_BESIDES_INPUTS
}

/// Why a guest could not be started.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The virtual machine cannot be built or started.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The thread cannot be started.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

/// What guests run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunsOn {
    /// In virtual machines.
    Kvm,
    /// On threads of this process: same driver, same workload, no machine around it.
    Threads,
}

/// A guest that is ready to run.
pub enum ReadyGuest {
    /// A virtual machine.
    Vm(Vm),
    /// A thread that is not started yet.
    Thread(Box<ThreadVm>),
}

/// A guest that runs or has ended.
pub enum Guest {
    /// A virtual machine.
    Vm(RunningVm),
    /// A thread of this process.
    Thread(Box<ThreadVm>),
}

/// How a guest ended.
#[derive(Clone, Debug)]
pub enum GuestEnd {
    /// A virtual machine.
    Vm(Arc<VmExit>),
    /// A thread: `Err` with what its workload or machine met.
    Thread(Result<(), String>),
}

impl GuestEnd {
    /// Whether it ended by itself and successfully.
    pub fn is_success(&self) -> bool {
        match self {
            GuestEnd::Vm(exit) => exit.is_success(),
            GuestEnd::Thread(outcome) => outcome.is_ok(),
        }
    }
}

impl fmt::Display for GuestEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuestEnd::Vm(exit) => write_chain(f, exit.as_ref()),
            GuestEnd::Thread(Ok(())) => f.write_str("the workload ended"),
            GuestEnd::Thread(Err(reason)) => f.write_str(reason),
        }
    }
}

/// An error with its sources, joined by ": ".
pub fn write_chain(f: &mut dyn fmt::Write, error: &dyn std::error::Error) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(f, ": {error}")?;
        source = error.source();
    }
    Ok(())
}

impl ReadyGuest {
    /// Builds a guest around the vGPU behind `link`. Its lines go to `journal`.
    pub fn build(
        place: RunsOn,
        setup: &GuestSetup,
        link: Arc<dyn VgpuLink>,
        journal: Arc<Journal>,
    ) -> Result<ReadyGuest, GuestError> {
        if place == RunsOn::Threads {
            return Ok(ReadyGuest::Thread(Box::new(ThreadVm::build(
                setup, link, journal,
            )?)));
        }
        let inputs = setup
            .inputs
            .iter()
            .map(|input| Input::from_bytes(input.name(), input.data().to_vec()));
        let config = VmConfig {
            name: setup.name.clone(),
            ram_bytes: setup.ram_bytes,
            vcpus: setup.vcpus,
            kernel: setup.kernel.clone(),
            initramfs: None,
            inputs: inputs.collect(),
            disks: Vec::new(),
            networks: Vec::new(),
            command_line: setup.options.clone(),
            console: None,
            sandbox: setup.sandbox.clone(),
        };
        Ok(ReadyGuest::Vm(Vm::build(config, link, journal)?))
    }

    /// Lets it run.
    pub fn start(self) -> Result<Guest, GuestError> {
        Ok(match self {
            ReadyGuest::Vm(vm) => Guest::Vm(vm.start()?),
            ReadyGuest::Thread(mut thread) => {
                thread.start()?;
                Guest::Thread(thread)
            }
        })
    }
}

impl Guest {
    /// How it ended; `None` while it runs.
    pub fn end(&self) -> Option<GuestEnd> {
        match self {
            Guest::Vm(vm) => vm.wait_for(Duration::ZERO).map(GuestEnd::Vm),
            Guest::Thread(thread) => thread.end().map(GuestEnd::Thread),
        }
    }

    /// Stops it for good. Returns at once.
    pub fn kill(&self) {
        match self {
            Guest::Vm(vm) => vm.kill(),
            Guest::Thread(thread) => thread.kill(),
        }
    }

    /// How often it has left KVM. A thread never does.
    pub fn exits(&self) -> u64 {
        match self {
            Guest::Vm(vm) => vm.exits().total(),
            Guest::Thread(_) => 0,
        }
    }
}

/// The errors of a guest of the built-in program that has ended; none if every byte was right.
pub fn verdict(inputs: &[InputFile], told: &Told, end: &GuestEnd) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(error) = &told.error {
        wrong.push(error.clone());
    }
    if !end.is_success() {
        let last = told
            .console
            .last()
            .map(|line| format!(" ({line})"))
            .unwrap_or_default();
        wrong.push(format!("{end}{last}"));
    }
    if told.mismatches != 0 {
        wrong.push(match &told.wrong {
            Some(first) => format!("{} words are wrong: {first}", told.mismatches),
            None => format!("{} slots of VRAM hold wrong bytes", told.mismatches),
        });
    }
    // After an early end, missing digests are no further error.
    let is_complete = wrong.is_empty();
    if is_complete && !told.is_ok {
        wrong.push("it did not report success".to_owned());
    }
    if is_complete && told.digests.len() != inputs.len() {
        wrong.push(format!(
            "it read {} of {} inputs back",
            told.digests.len(),
            inputs.len()
        ));
    }
    for (input, digest) in inputs.iter().zip(&told.digests) {
        if digest.sha256 != hex(&input.sha256()) || digest.bytes != input.bytes() {
            wrong.push(format!("{} came back with other bytes", input.name()));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Vec<InputFile> {
        vec![InputFile::from_bytes("a", b"abc".to_vec())]
    }

    fn told(sha256: &str) -> Told {
        Told {
            digests: vec![Digest {
                sha256: sha256.to_owned(),
                bytes: 3,
            }],
            is_ok: true,
            ..Told::default()
        }
    }

    /// FIPS 180-4, example "abc".
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn right_digest_and_good_end_is_right() {
        let end = GuestEnd::Thread(Ok(()));
        assert_eq!(verdict(&inputs(), &told(ABC), &end), Vec::<String>::new());
    }

    #[test]
    fn other_digest_is_wrong_even_if_the_guest_is_content() {
        let wrong = verdict(
            &inputs(),
            &told(&ABC.replace('b', "c")),
            &GuestEnd::Thread(Ok(())),
        );
        assert_eq!(wrong, ["a came back with other bytes"]);
    }

    #[test]
    fn guest_that_reads_nothing_back_is_wrong() {
        let told = Told {
            digests: Vec::new(),
            ..told(ABC)
        };
        let wrong = verdict(&inputs(), &told, &GuestEnd::Thread(Ok(())));
        assert_eq!(wrong, ["it read 0 of 1 inputs back"]);
    }

    #[test]
    fn guest_that_failed_is_named_by_its_end() {
        let end = GuestEnd::Vm(Arc::new(VmExit::Guest(254)));
        let told = Told {
            console: vec!["exception 13".to_owned()],
            ..Told::default()
        };
        assert_eq!(
            verdict(&inputs(), &told, &end),
            ["the guest ended with status 254 (exception 13)"]
        );
    }

    #[test]
    fn thread_without_result_is_wrong() {
        let told = Told {
            is_ok: false,
            ..told(ABC)
        };
        let wrong = verdict(&inputs(), &told, &GuestEnd::Thread(Ok(())));
        assert_eq!(wrong, ["it did not report success"]);
    }
}
