//! `cargo xtask fuzz`: the targets of `integration::fuzz` under libFuzzer, where the machine has what that needs.
//!
//! It needs a nightly toolchain and cargo-fuzz. Without them `cargo xtask ci` says so and goes on, unless
//! `VRAMD_REQUIRE_TOOLS` is set, for stable tests run the same bodies over the committed corpus. New inputs of libFuzzer go to
//! `fuzz/corpus-local`, those that crash to `fuzz/artifacts`.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use integration::fuzz::{TARGETS, target};

use crate::workers;
use crate::workspace::Workspace;

/// Seconds that CI gives each target: as long for all of them together as it has time for.
pub(crate) const CI_SECONDS: u32 = 20;
/// Longest time for one input. Seconds.
const INPUT_SECONDS: u32 = 20;
/// Targets whose inputs drive a whole system. With a sanitizer one with grids that never end takes up to half a minute, so CI
/// has no time for them: there the stable tests run their corpora.
const WHOLE_SYSTEMS: [&str; 3] = ["two_clients", "sync_cost", "descriptors"];
/// Targets that drive what `vramd` stands on, which is two thirds of all that a build of the others takes. Their inputs come from operators. On CI
/// the stable tests run their corpora and random inputs; the targets are built if one of them is asked for.
const OF_PROGRAMS: [&str; 3] = ["descriptors", "control_request", "config_files"];
/// Longest time for one input of those of whole systems. Seconds.
const SYSTEM_INPUT_SECONDS: u32 = 300;
/// Lines of a failed target that its error repeats: a sanitizer's report and the input.
const LAST_LINES: usize = 60;
/// Largest input. Bytes.
const INPUT_BYTES: u32 = 4096;
const NIGHTLY: [&str; 2] = ["run", "nightly"];

/// Options of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct FuzzArguments {
    /// One target; without it, all.
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = CI_SECONDS)]
    seconds: u32,
}

/// How the targets are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitizer {
    Address,
    None,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::None => "none",
        }
    }
}

fn nightly_cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(NIGHTLY)
        .arg("cargo")
        .current_dir(workspace.root().join("fuzz"));
    // These variables name the toolchain that runs this program.
    for variable in [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "RUSTFLAGS",
        "CARGO_MANIFEST_DIR",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Why the targets cannot run here.
fn missing_part(workspace: &Workspace) -> Option<&'static str> {
    let answers = |arguments: &[&str]| {
        let mut command = nightly_cargo(workspace);
        let status = command
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    if !answers(&["--version"]) {
        Some("there is no nightly toolchain (rustup toolchain install nightly)")
    } else if !answers(&["fuzz", "--version"]) {
        Some("cargo-fuzz is not installed (cargo install cargo-fuzz)")
    } else {
        None
    }
}

fn cargo_fuzz(workspace: &Workspace, verb: &str, sanitizer: Sanitizer) -> Command {
    let mut command = nightly_cargo(workspace);
    command.args([
        "fuzz",
        verb,
        "--fuzz-dir",
        ".",
        "-O",
        "-a",
        "-s",
        sanitizer.name(),
    ]);
    // On CI the targets run for seconds, and to build them takes minutes.
    if Workspace::requires_tools() {
        command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    command
}

/// Which targets are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Built {
    All,
    /// Without those of [`OF_PROGRAMS`].
    Core,
}

impl Built {
    fn for_targets(names: &[&str]) -> Self {
        let is_of_programs = |name: &&str| OF_PROGRAMS.contains(name);
        if names.iter().any(is_of_programs) {
            Self::All
        } else {
            Self::Core
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::All => &["--features", "programs"],
            Self::Core => &[],
        }
    }
}

/// Builds targets, without a sanitizer if they cannot be built with one.
fn build(workspace: &Workspace, built: Built) -> Result<Sanitizer> {
    for sanitizer in [Sanitizer::Address, Sanitizer::None] {
        let status = cargo_fuzz(workspace, "build", sanitizer)
            .args(built.options())
            .status();
        if status.context("cannot start rustup")?.success() {
            return Ok(sanitizer);
        }
        eprintln!("NOTE: no build with sanitizer {:?}", sanitizer.name());
    }
    bail!("the fuzz targets cannot be built")
}

fn fuzz_one(
    workspace: &Workspace,
    name: &str,
    (sanitizer, built): (Sanitizer, Built),
    seconds: u32,
) -> Result<()> {
    let local = format!("corpus-local/{name}");
    fs::create_dir_all(workspace.root().join("fuzz").join(&local))
        .with_context(|| format!("cannot create {local}"))?;
    let longest = match WHOLE_SYSTEMS.contains(&name) {
        true => SYSTEM_INPUT_SECONDS,
        false => INPUT_SECONDS,
    };
    let output = cargo_fuzz(workspace, "run", sanitizer)
        .args(built.options())
        .args([name, &local, &format!("corpus/{name}"), "--"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={longest}"))
        .arg(format!("-max_len={INPUT_BYTES}"))
        .arg("-print_final_stats=1")
        .output();
    let output = output.context("cannot start rustup")?;
    // Another target says something at the same time.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    println!("── {name}: {seconds} s\n{}", said.trim());
    let status = output.status;
    ensure!(
        status.success(),
        "target {name} ended with {status}; see fuzz/artifacts/{name}. It said at last:\n{}",
        last_lines(&said, LAST_LINES)
    );
    Ok(())
}

/// The end of a text, for other targets say much behind the one that failed.
fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs one target, or all, each for the given time and as many at once as there are processors; reports what the machine lacks.
fn run_for(workspace: &Workspace, names: &[&str], seconds: u32) -> Result<()> {
    if let Some(missing) = missing_part(workspace) {
        return Workspace::lacks(&format!(
            "fuzz targets {} were NOT run: {missing}",
            names.join(", ")
        ));
    }
    let built = Built::for_targets(names);
    let sanitizer = build(workspace, built)?;
    let ends = workers::each(names.to_vec(), |name| {
        fuzz_one(workspace, name, (sanitizer, built), seconds)
    });
    ends.into_iter().collect()
}

/// All targets but those of whole systems and of programs, for as long as CI gives them.
pub(crate) fn run_in_ci(workspace: &Workspace) -> Result<()> {
    let is_left_out = |name: &&str| WHOLE_SYSTEMS.contains(name) || OF_PROGRAMS.contains(name);
    let all = TARGETS.iter().map(|target| target.name);
    let (left_out, names): (Vec<&str>, Vec<&str>) = all.partition(is_left_out);
    println!(
        "their corpora and random inputs, in tests: {}",
        left_out.join(", ")
    );
    run_for(workspace, &names, CI_SECONDS)
}

/// Runs what was asked for.
pub(crate) fn run(workspace: &Workspace, arguments: &FuzzArguments) -> Result<()> {
    let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let Some(name) = &arguments.target else {
        return run_for(workspace, &all, arguments.seconds);
    };
    let known = target(name).with_context(|| format!("no target {name}; there are {}", all.join(", ")))?;
    run_for(workspace, &[known.name], arguments.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_target_is_named_with_those_that_exist() {
        let workspace = Workspace::find().unwrap();
        let arguments = FuzzArguments {
            target: Some("nothing".to_owned()),
            seconds: 1,
        };
        let error = run(&workspace, &arguments).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no target nothing; there are vfio_user, bars, channels, page_tables, shader, two_clients, sync_cost, descriptors, control_request, \
             config_files, kernel_sets, launches"
        );
    }

    #[test]
    fn error_repeats_the_end_of_what_a_target_said() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a\n", 2), "a");
        assert_eq!(last_lines("", 2), "");
    }

    #[test]
    fn manifest_has_the_workspace_s_profile_for_development() {
        let workspace = Workspace::find().unwrap();
        let profile = |manifest: &str| {
            let text = fs::read_to_string(workspace.root().join(manifest)).unwrap();
            let manifest: toml::Table = toml::from_str(&text).unwrap();
            manifest["profile"]["dev"].clone()
        };
        assert_eq!(profile("fuzz/Cargo.toml"), profile("Cargo.toml"));
    }

    #[test]
    fn every_target_is_a_program_of_the_manifest() {
        let workspace = Workspace::find().unwrap();
        let manifest = fs::read_to_string(workspace.root().join("fuzz/Cargo.toml")).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let bins = manifest["bin"].as_array().unwrap();
        let name = |bin: &toml::Value| bin["name"].as_str().unwrap().to_owned();
        let programs: Vec<_> = bins.iter().map(name).collect();
        let targets: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(programs, targets);
        let asks = |bin: &&toml::Value| bin.get("required-features").is_some();
        let asking: Vec<_> = bins.iter().filter(asks).map(name).collect();
        assert_eq!(asking, OF_PROGRAMS);
    }
}
