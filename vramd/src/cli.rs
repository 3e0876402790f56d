//! The command line, a contract.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage, 3 the guest asked for a reset that was not to follow, 4 a thread of a VM made
//! a system call that it may not. `kernel` leaves signals to the kernel, so a shell sees 128 and the signal's number. What went
//! wrong is one line on stderr, an error's sources joined by
//! ": ". A verb is listed in `--help` from the day it works.

mod bind;
mod completions;
mod control;
mod demo;
mod doctor;
mod events;
mod gpu;
mod holds;
mod kernel;
mod lab;
mod looks;
mod metrics;
mod places;
mod run;
mod serve;
mod top;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fermi_spec::board::Board;
use guests::Workload;

use sizes::parse_size;
use vgpu::{ShadowMode, WindowMode};
use vmm::sandbox::privileges::User;
use vramd_vm::RunArguments;
use vramd_vm::program::{complain, end, wrong_usage};
use vramd_vm::signals;

use crate::config::{Device, check_card_vram, check_guest_vram, socket_mode};
use crate::journal;

/// Several VMs share one GPU and use more VRAM than it has.
#[derive(Parser, Debug)]
#[command(name = "vramd", version, arg_required_else_help = false)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Show several VMs that together use more VRAM than the card has
    Demo(DemoArguments),
    /// Run the broker: one vfio-user socket for each VM
    Serve(ServeArguments),
    /// Run one VM whose GPU a broker serves
    Run(RunArguments),
    /// Serve one software card as a PCI device over vfio-user; SIGUSR1 cuts its power, SIGUSR2 gives it back
    Gpu(GpuArguments),
    /// Show the cards and VMs of a running broker
    List(control::ListArguments),
    /// Show one VM of a running broker: its quota, its memory, and what that cost it
    Show(control::ShowArguments),
    /// Change the quota of a VM of a running broker, or a card's host RAM, or show it; what is not named stays
    Quota(control::QuotaArguments),
    /// Give a VM a place: its VMM can connect from then on, until the VM is detached
    Attach(places::AttachArguments),
    /// Take a VM's place from it
    Detach(places::DetachArguments),
    /// Send all of a VM's memory to host RAM and keep it there; the GPU still reaches it
    Freeze(holds::HoldArguments),
    /// Let the memory of a VM come back that was frozen
    Thaw(holds::HoldArguments),
    /// Send some of a VM's memory to host RAM and keep it there
    Spill(holds::SpillArguments),
    /// Let the memory of a VM come back that was spilled
    Refill(holds::HoldArguments),
    /// Keep a VM's channels from the GPU's engines; its guest may take that for a hung GPU
    Suspend(holds::SuspendArguments),
    /// Let a VM's channels run again
    Resume(holds::SuspendArguments),
    /// Tell what happened to VMs and cards of a running broker
    Events(events::EventsArguments),
    /// Tell where a VM's memory is, whom it went for, and what that cost
    Why(events::WhyArguments),
    /// Show the state of what decides about a card or a VM, for whoever looks for a fault
    Inspect(looks::InspectArguments),
    /// Tell what happened last to a VM: requests of its guest and what was decided, without a byte of its data
    Trace(looks::TraceArguments),
    /// Show the VMs of a running broker as they change, and change their quotas
    Top(top::Arguments),
    /// Print the metrics of a running broker, as Prometheus reads them
    Metrics(metrics::Arguments),
    /// Tell what this host has and lacks, and how to get it
    Doctor(doctor::Arguments),
    /// Take a card of this host from its driver, for `vfio:ADDRESS`
    Bind(bind::Arguments),
    /// Give a card of this host back to its driver
    Unbind(bind::Arguments),
    /// Assemble, disassemble and run kernels of the GPU
    Kernel(kernel::Arguments),
    /// Reproduce a paper's figure on a software card
    Lab(lab::Arguments),
    /// Print what a shell needs to complete these verbs
    Completions(completions::CompletionsArguments),
    /// Write manual pages: vramd.1, and one for each verb
    Man(completions::ManArguments),
}

#[derive(Parser, Debug)]
struct DemoArguments {
    /// Number of VMs [default: 4, or as many as workloads are named if they are more]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(broker::VMS_MAX)))]
    vms: Option<u16>,
    /// The card: a software card (model:NAME), one that `vramd gpu` serves (vfio-user:PATH), or this host's
    /// (vfio:ADDRESS)
    #[arg(long, value_name = "DEVICE", default_value = "model:gtx480", value_parser = Device::parse)]
    gpu: Device,
    /// VRAM of a software card [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = card_vram)]
    vram: Option<u64>,
    /// VRAM that each VM sees
    #[arg(long, value_name = "SIZE", default_value = "192M", value_parser = guest_vram)]
    guest_vram: u64,
    /// What the VMs do, in turn: files, or a GPU kernel by its name [default: hotspot bfs matrix files; files with --input]
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = workload)]
    workload: Vec<Workload>,
    /// Files that each VM with the workload files takes through VRAM [default: this program]
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How the VMs reach BAR1, BAR3 and PRAMIN: as memory (direct), by a message for each access (trapped), or as memory unless the card is behind an IOMMU (auto)
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = window_mode)]
    windows: WindowMode,
    /// How page tables are followed: what changed alone (incremental), or all of them at each flush, to compare with (full-rescan)
    #[arg(long, value_name = "MODE", default_value = "incremental", value_parser = shadow_mode)]
    shadow: ShadowMode,
    /// Record the broker's events to a file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Rounds of moving, or of running a kernel
    #[arg(long, hide = true)]
    rounds: Option<u32>,
    /// Run the guests on host threads
    #[arg(long, hide = true)]
    no_kvm: bool,
}

#[derive(Parser, Debug)]
struct ServeArguments {
    /// Cards and VMs (docs/examples/host.toml)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// How clients reach BAR1, BAR3 and PRAMIN on all cards, whatever their `windows` says: auto, direct or trapped
    #[arg(long, value_name = "MODE", value_parser = window_mode)]
    windows: Option<WindowMode>,
    /// How page tables are followed on all cards, whatever their `shadow` says: incremental or full-rescan
    #[arg(long, value_name = "MODE", value_parser = shadow_mode)]
    shadow: Option<ShadowMode>,
    /// At the end give cards of the host to the drivers that the host would choose, as `unbind` does
    #[arg(long)]
    restore_driver: bool,
    /// Become this user, by names or numbers, once the configuration is read and before anything else is opened
    #[arg(long, value_name = "USER:GROUP[,GROUP...]", conflicts_with = "restore_driver")]
    user: Option<User>,
    /// For debugging: let the threads make any system call
    #[arg(long)]
    no_seccomp: bool,
}

#[derive(Parser, Debug)]
struct GpuArguments {
    /// Socket that a VMM or a broker connects to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Group of the socket, by its name or number [default: the process's]
    #[arg(long, value_name = "GROUP", value_parser = gpu::group)]
    socket_group: Option<u32>,
    /// Who may connect: 0600 its owner, 0660 its group too, 0666 everybody [default: 0600, with --socket-group 0660]
    #[arg(long, value_name = "MODE", value_parser = socket_mode)]
    socket_mode: Option<u32>,
    /// Which card: gtx480, quadro6000 or c2050
    #[arg(long, value_name = "NAME", default_value = "gtx480", value_parser = gpu::board)]
    model: Board,
    /// VRAM of the card, such as 256M [default: as the real card]
    #[arg(long, value_name = "SIZE", value_parser = card_vram)]
    vram: Option<u64>,
    /// Write every access and command to a file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Answer every access by a message instead of letting the client map windows
    #[arg(long)]
    all_trapped: bool,
    /// Look at what channels are handed, and say at the end how much of it would be known before it runs; slow
    #[arg(long)]
    observe: bool,
    /// Copy engines run nothing before they were given microcode, as a real card's
    #[arg(long)]
    needs_microcode: bool,
    /// PGRAPH runs nothing before it was given microcode, and takes no context image that it did not save, as a real card's
    #[arg(long)]
    strict: bool,
    /// Work takes as long as a card would take for it, unless this machine needs longer to compute it
    #[arg(long)]
    paced: bool,
    /// Threads beside the card's own that run blocks of grids ahead of their turn, each on a processor of its own
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = gpu::workers)]
    workers: u32,
    /// Become this user, by names or numbers, before anything is opened
    #[arg(long, value_name = "USER:GROUP[,GROUP...]")]
    user: Option<User>,
    /// For debugging: let the threads make any system call
    #[arg(long)]
    no_seccomp: bool,
}

fn card_vram(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    check_card_vram(bytes).map(|()| bytes)
}

fn window_mode(name: &str) -> Result<WindowMode, String> {
    match name {
        "auto" => Ok(WindowMode::Auto),
        "direct" => Ok(WindowMode::Direct),
        "trapped" => Ok(WindowMode::Trapped),
        _ => Err("there are auto, direct and trapped".to_owned()),
    }
}

fn shadow_mode(name: &str) -> Result<ShadowMode, String> {
    match name {
        "incremental" => Ok(ShadowMode::Incremental),
        "full-rescan" => Ok(ShadowMode::FullRescan),
        _ => Err("there are incremental and full-rescan".to_owned()),
    }
}

fn workload(name: &str) -> Result<Workload, String> {
    Workload::named(name).ok_or_else(|| {
        let names: Vec<_> = Workload::names().collect();
        format!("there are {}", names.join(", "))
    })
}

fn guest_vram(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    check_guest_vram(bytes).map(|()| bytes)
}

/// Makes SIGINT and SIGTERM set a flag for verbs that look at it. The others have nothing to put in order: a signal ends them.
fn watch_signals(verb: &Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Kernel(_)
        | Verb::List(_)
        | Verb::Show(_)
        | Verb::Quota(_)
        | Verb::Attach(_)
        | Verb::Detach(_)
        | Verb::Freeze(_)
        | Verb::Thaw(_)
        | Verb::Spill(_)
        | Verb::Refill(_)
        | Verb::Suspend(_)
        | Verb::Resume(_)
        | Verb::Events(_)
        | Verb::Why(_)
        | Verb::Inspect(_)
        | Verb::Trace(_)
        | Verb::Metrics(_)
        | Verb::Completions(_)
        | Verb::Man(_) => Ok(()),
        _ => signals::install(),
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    // A failure is reported once, by the program's last line; only a long-running broker logs more.
    let filter = if matches!(cli.verb, Verb::Serve(_) | Verb::Gpu(_)) {
        "warn"
    } else {
        "off"
    };
    journal::init(filter);
    if cfg!(feature = "weakened") {
        complain("this is a WEAKENED build: guests reach memory that is not theirs");
    }
    let outcome = watch_signals(&cli.verb).and_then(|()| match cli.verb {
        Verb::Demo(arguments) => demo::demo(&arguments),
        Verb::Serve(arguments) => serve::serve(&arguments),
        Verb::Run(_) => run::run(std::env::args_os()),
        Verb::Gpu(arguments) => gpu::gpu(&arguments),
        Verb::List(arguments) => control::list(&arguments),
        Verb::Show(arguments) => control::show(&arguments),
        Verb::Quota(arguments) => control::quota(&arguments),
        Verb::Attach(arguments) => places::attach(&arguments),
        Verb::Detach(arguments) => places::detach(&arguments),
        Verb::Freeze(arguments) => holds::freeze(&arguments),
        Verb::Thaw(arguments) => holds::thaw(&arguments),
        Verb::Spill(arguments) => holds::spill(&arguments),
        Verb::Refill(arguments) => holds::refill(&arguments),
        Verb::Suspend(arguments) => holds::suspend(&arguments),
        Verb::Resume(arguments) => holds::resume(&arguments),
        Verb::Events(arguments) => events::events(&arguments),
        Verb::Why(arguments) => events::why(&arguments),
        Verb::Inspect(arguments) => looks::inspect(&arguments),
        Verb::Trace(arguments) => looks::trace(&arguments),
        Verb::Top(arguments) => top::top(&arguments),
        Verb::Metrics(arguments) => metrics::metrics(&arguments),
        Verb::Doctor(arguments) => doctor::doctor(&arguments),
        Verb::Bind(arguments) => bind::bind(&arguments),
        Verb::Unbind(arguments) => bind::unbind(&arguments),
        Verb::Kernel(arguments) => kernel::kernel(&arguments),
        Verb::Lab(arguments) => lab::lab(&arguments),
        Verb::Completions(arguments) => completions::completions(&arguments),
        Verb::Man(arguments) => completions::man(&arguments),
    });
    end(outcome)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_what_works_and_nothing_else() {
        let help = Cli::command().render_help().to_string();
        let is_listed = |verb: &str| help.lines().any(|line| line.trim_start().starts_with(verb));
        assert!(
            [
                "demo",
                "serve",
                "run",
                "gpu",
                "list",
                "show",
                "quota",
                "attach",
                "detach",
                "freeze",
                "thaw",
                "spill",
                "refill",
                "suspend",
                "resume",
                "events",
                "why",
                "inspect",
                "trace",
                "top",
                "metrics",
                "kernel",
                "lab",
                "bind",
                "unbind",
                "doctor",
                "completions",
                "man"
            ]
            .iter()
            .all(|verb| is_listed(verb)),
            "{help}"
        );
    }
}
