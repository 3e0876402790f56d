//! House tasks, run as `cargo xtask TASK`: one module per task, each with a `run` that prints what it finds.
//!
//! A new task is a module and a variant of [`Task`]. Exit status: 0 done, 1 failed, 2 wrong usage.

mod api;
mod broker;
mod card;
mod ci;
mod fuzz;
mod guest;
mod host_env;
mod layers;
mod nested;
mod nouveau;
mod package;
mod pictures;
mod planted;
mod process;
mod qemu;
mod qmp;
mod replay;
mod show;
mod sim;
mod test;
mod tidy;
mod unused;
mod workers;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "House tasks of the vramd workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs everything that CI runs, in its order, until something fails.
    Ci,
    /// Runs all tests (cargo-nextest if present) and counts those that were skipped.
    Test,
    /// Checks the dependencies between our crates against the table of levels.
    Layers,
    /// Checks what no compiler checks: READMEs, docs, references, lengths, words, raw numbers, unsafe, paths.
    Tidy,
    /// Finds public items of our libraries that nobody outside of their crate names.
    Unused,
    /// Fetches what tests in virtual machines need into a cache: QEMU, kernel, guest roots; or lists the missing ones.
    HostEnv(host_env::HostEnvArguments),
    /// Boots a cloud host with KVM, VFIO and an IOMMU in an emulated machine, and runs vramd on it.
    Nested(nested::NestedArguments),
    /// Boots Debian's kernel with the unmodified driver nouveau against `vramd gpu`, or a vGPU, and exercises it.
    Nouveau(nouveau::NouveauArguments),
    /// Makes a package for Debian, and installs and tries it on an emulated host with systemd.
    Package(package::PackageArguments),
    /// Attaches a stock QEMU to a broker and checks what it sees; fetches QEMU where the machine's is too old.
    QemuAttach(qemu::QemuArguments),
    /// Feeds a recording to a fresh core and compares what it wants done.
    Replay(replay::ReplayArguments),
    /// Prints a flight file of a broker: what happened last, registers by name.
    Show(show::ShowArguments),
    /// Drives the control API of a running broker by schemathesis, and reads metrics and alerts with promtool.
    Api(api::ApiArguments),
    /// Makes the pictures of the documents: `top`, tables and the dashboard, from a broker at work.
    Pictures(pictures::PicturesArguments),
    /// Runs the fuzz targets where there are a nightly toolchain and cargo-fuzz.
    Fuzz(fuzz::FuzzArguments),
    /// Simulates whole runs from seeds, with checkers.
    Sim(sim::SimArguments),
    /// Plants one fault after the other and demands that the simulator finds each.
    Planted(planted::PlantedArguments),
}

fn run(task: &Task) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match task {
        Task::Ci => ci::run(&workspace),
        Task::Test => test::run(&workspace),
        Task::Layers => layers::run(&workspace),
        Task::Tidy => tidy::run(&workspace),
        Task::Unused => unused::run(&workspace),
        Task::HostEnv(arguments) => host_env::run(&workspace, arguments),
        Task::Nested(arguments) => nested::run(&workspace, arguments),
        Task::Nouveau(arguments) => nouveau::run(&workspace, arguments),
        Task::Package(arguments) => package::run(&workspace, arguments),
        Task::QemuAttach(arguments) => qemu::run(&workspace, arguments),
        Task::Replay(arguments) => replay::run(arguments),
        Task::Show(arguments) => show::run(arguments),
        Task::Api(arguments) => api::run(&workspace, arguments),
        Task::Pictures(arguments) => pictures::run(&workspace, arguments),
        Task::Fuzz(arguments) => fuzz::run(&workspace, arguments),
        Task::Sim(arguments) => sim::run(arguments),
        Task::Planted(arguments) => planted::run(&workspace, arguments),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
