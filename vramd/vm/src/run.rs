//! `vramd-vm`, as which `vramd run` goes on: one VM, its vGPU behind a broker's socket.

mod system;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::config::VmFile;
use crate::guest::{Digest, GuestSetup, InputFile, Journal, KernelResult, ReadyGuest, RunsOn, Told, verdict};
use crate::program::{FAILED, complain, end, wrong_usage};
use crate::signals::{self, is_stop_requested};
use clap::Parser;
use vmm::Traffic;
use vmm::link::VfioUserLink;
use vmm::loader::{Kernel, KernelKind};
use vmm::sandbox::privileges::User;
use vmm::sandbox::{Sandbox, privileges};
use vmm::start_up::release_program;

/// Runs one VM whose GPU a broker serves.
#[derive(Parser, Debug)]
#[command(name = "vramd-vm", version)]
struct Program {
    #[command(flatten)]
    arguments: RunArguments,
}

/// Arguments of `vramd run` and of `vramd-vm`.
#[derive(Parser, Debug)]
pub struct RunArguments {
    /// The VM (docs/examples/vm.toml)
    #[arg(value_name = "FILE")]
    vm: PathBuf,
    /// The file's `kernel`
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The file's `initramfs`
    #[arg(long, value_name = "FILE")]
    initramfs: Option<PathBuf>,
    /// End with status 3 when the guest asks for a reset
    #[arg(long)]
    no_reboot: bool,
    /// Become this user, by names or numbers, before anything is opened
    #[arg(long, value_name = "USER:GROUP[,GROUP...]")]
    user: Option<User>,
    /// For debugging: let the VM's threads make any system call
    #[arg(long)]
    no_seccomp: bool,
    /// Print one JSON object, instead of a console or a table
    #[arg(long)]
    json: bool,
    /// Run the guest on a host thread
    #[arg(long, hide = true)]
    no_kvm: bool,
}

/// Time between two looks at the guest.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// Results of the VM.
#[derive(Serialize, Default)]
struct RunReport {
    name: String,
    ok: bool,
    kvm: bool,
    boots: u64,
    exits: u64,
    networks: Vec<NetworkReport>,
    digests: Vec<DigestReport>,
    mismatches: u64,
    kernel: Option<KernelResult>,
    copies: u64,
    bytes_copied: u64,
    seconds: f64,
    end: String,
    errors: Vec<String>,
    console: Vec<String>,
}

/// Traffic of one of its network devices, over all boots.
#[derive(Serialize)]
struct NetworkReport {
    tap: String,
    #[serde(flatten)]
    traffic: Traffic,
}

#[derive(Serialize)]
struct DigestReport {
    sha256: String,
    bytes: u64,
}

impl From<Digest> for DigestReport {
    fn from(digest: Digest) -> DigestReport {
        DigestReport {
            sha256: digest.sha256,
            bytes: digest.bytes,
        }
    }
}

/// The whole program `vramd-vm`.
pub fn main() -> ExitCode {
    let Program { arguments } = match Program::try_parse() {
        Ok(program) => program,
        Err(error) => return wrong_usage(&error),
    };
    // A failure is reported once, by the program's last line.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("off")).init();
    end(signals::install().and_then(|()| run(&arguments)))
}

fn run(arguments: &RunArguments) -> anyhow::Result<u8> {
    privileges::give_up(arguments.user.as_ref())?;
    let sandbox = if arguments.no_seccomp {
        Sandbox::none()
    } else {
        Sandbox::enter()?
    };
    let mut file = VmFile::load(&arguments.vm)?;
    if let Some(kernel) = &arguments.kernel {
        file.kernel = Some(kernel.clone());
    }
    if let Some(initramfs) = &arguments.initramfs {
        file.initramfs = Some(initramfs.clone());
    }
    if arguments.no_kvm && file.kernel.is_some() {
        bail!("a kernel of one's own needs KVM");
    }
    let kernel = file.kernel.as_deref().map_or(Ok(Kernel::bare()), Kernel::open)?;
    if kernel.kind().is_some_and(KernelKind::is_operating_system) {
        if !file.inputs.is_empty() {
            bail!(
                "vm {}: `inputs` are for the built-in guest: put them into the initramfs",
                file.name
            );
        }
        return system::run(&file, &kernel, &sandbox, arguments);
    }
    if let Some(initramfs) = &file.initramfs {
        bail!(
            "vm {}: initramfs {} is given, but no Linux kernel: name one as `kernel`",
            file.name,
            initramfs.display()
        );
    }
    if let Some(disk) = file.disks.first() {
        bail!(
            "vm {}: disk {} is given, but no Linux kernel: name one as `kernel`",
            file.name,
            disk.path.display()
        );
    }
    if let Some(net) = file.networks.first() {
        bail!(
            "vm {}: network {} is given, but no Linux kernel: name one as `kernel`",
            file.name,
            net.tap
        );
    }
    run_program(file, kernel, sandbox, arguments)
}

/// Runs a bare-metal guest until it ends, and checks its results.
fn run_program(
    file: VmFile,
    kernel: Kernel,
    sandbox: Sandbox,
    arguments: &RunArguments,
) -> anyhow::Result<u8> {
    let is_built_in = file.kernel.is_none();
    let place = if arguments.no_kvm {
        RunsOn::Threads
    } else {
        RunsOn::Kvm
    };
    let setup = guest_setup(&file, kernel, sandbox)?;
    let link = Arc::new(VfioUserLink::connect(&file.socket)?);
    let journal = Arc::new(Journal::default());
    let start = Instant::now();
    let guest = ReadyGuest::build(place, &setup, link, journal.clone())
        .and_then(ReadyGuest::start)
        .with_context(|| format!("vm {} cannot run", file.name))?;
    tell_that_it_runs();
    // Last: what has run once stays in memory no longer.
    release_program();
    let end = loop {
        if let Some(end) = guest.end() {
            break end;
        }
        if is_stop_requested() {
            // Dropping the guest stops it.
            bail!("interrupted");
        }
        thread::sleep(LOOK_PERIOD);
    };
    let told = journal.told();
    let errors = if is_built_in {
        verdict(&setup.inputs, &told, &end)
    } else if end.is_success() {
        Vec::new()
    } else {
        vec![end.to_string()]
    };
    let seconds = start.elapsed().as_secs_f64();
    let report = RunReport {
        name: file.name,
        ok: errors.is_empty(),
        kvm: place == RunsOn::Kvm,
        boots: 1,
        exits: guest.exits(),
        networks: Vec::new(),
        mismatches: told.mismatches,
        kernel: told.kernel.clone(),
        copies: told.copies,
        bytes_copied: told.bytes_copied,
        seconds,
        end: end.to_string(),
        errors,
        console: told.console.clone(),
        digests: told.digests.iter().cloned().map(DigestReport::from).collect(),
    };
    tell(&report, &setup.inputs, &told, arguments.json)
}

/// Tells the service manager, if it started this process, that the VM runs: what keeps one from running shows before.
fn tell_that_it_runs() {
    // Whoever waits for it in vain ends this process, and says so.
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        complain(&format!(
            "cannot tell the service manager that the VM runs: {error}"
        ));
    }
}

fn guest_setup(file: &VmFile, kernel: Kernel, sandbox: Sandbox) -> anyhow::Result<GuestSetup> {
    let open = |path: &std::path::PathBuf| InputFile::open(path, file.memory, "RAM");
    let inputs = file.inputs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // Options that cannot be read are reported by the guest.
    let wants_files = guests::Options::parse(&file.options)
        .is_ok_and(|options| options.workload == guests::Workload::Files);
    if inputs.is_empty() && file.kernel.is_none() && wants_files {
        bail!(
            "vm {}: the built-in guest needs at least one file in `inputs`",
            file.name
        );
    }
    Ok(GuestSetup {
        name: file.name.clone(),
        ram_bytes: file.memory,
        vcpus: file.vcpus,
        kernel,
        inputs: inputs.into(),
        options: file.options.clone(),
        sandbox,
    })
}

fn tell(report: &RunReport, inputs: &[InputFile], told: &Told, is_json: bool) -> anyhow::Result<u8> {
    let mut text = String::new();
    if is_json {
        text = format!("{}\n", serde_json::to_string(report)?);
    } else {
        for (input, digest) in inputs.iter().zip(&told.digests) {
            text.push_str(&format!("{}  {}\n", digest.sha256, input.name()));
        }
        if let Some(kernel) = &report.kernel {
            let milliseconds = kernel.gpu_ns as f64 / 1e6;
            text.push_str(&format!(
                "{}: {} grids in {milliseconds:.1} ms of GPU time, {} bytes compared\n",
                kernel.name, kernel.grids, kernel.checked_bytes
            ));
        }
        for NetworkReport { tap, traffic } in &report.networks {
            text.push_str(&format!(
                "{tap}: {} frames ({} bytes) from the guest, {} ({} bytes) to it, dropped {} and {}\n",
                traffic.sent,
                traffic.sent_bytes,
                traffic.received,
                traffic.received_bytes,
                traffic.dropped_sent,
                traffic.dropped_received,
            ));
        }
        let state = if report.ok { "ok" } else { "NOT ok" };
        let (name, exits, seconds) = (&report.name, report.exits, report.seconds);
        text.push_str(&format!("vm {name}: {state}, {exits} exits, {seconds:.1} s\n"));
    }
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to stdout")?;
    if !report.ok {
        complain(&format!("vm {}: {}", report.name, report.errors.join(", ")));
        return Ok(FAILED);
    }
    Ok(0)
}
