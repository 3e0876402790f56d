//! `cargo xtask ci`: all of CI, on any machine, in the order that finds cheap faults first.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;
use crate::{api, fuzz, layers, planted, test, tidy, unused};

/// A named part of CI.
struct Step<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Result<()> + 'a>,
}

impl<'a> Step<'a> {
    fn new(name: &'static str, run: impl Fn() -> Result<()> + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// Runs `steps` until one fails, and tells the time of each.
///
/// A failure carries the step's name; the steps after it are not run.
fn run_steps(steps: &[Step<'_>], mut took: impl FnMut(&'static str, Duration)) -> Result<()> {
    for step in steps {
        println!("── {}", step.name);
        let start = Instant::now();
        let result = (step.run)();
        took(step.name, start.elapsed());
        result.with_context(|| format!("step {} failed", step.name))?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

fn format(workspace: &Workspace) -> Result<()> {
    succeed(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
    for folder in workspace.folders_apart()? {
        succeed(workspace.cargo(&["fmt", "--all", "--check"]).current_dir(folder))?;
    }
    Ok(())
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    succeed(&mut workspace.cargo(&arguments))?;
    // What all of the fuzz targets stand on is what was checked just now: their profile is the workspace's.
    let arguments = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.root().join("target"), PathBuf::from);
    for folder in workspace.folders_apart()? {
        let mut command = workspace.cargo(&arguments);
        succeed(command.current_dir(folder).env("CARGO_TARGET_DIR", &target))?;
    }
    Ok(())
}

fn document(workspace: &Workspace) -> Result<()> {
    succeed(
        workspace
            .cargo(&["doc", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Checks bans, licences and sources of our dependencies. Advisories are not part of CI: their database comes from a
/// network that CI does not have, and a new one may not fail an old commit.
fn deny(workspace: &Workspace) -> Result<()> {
    if !workspace.has_cargo_tool("deny") {
        return Workspace::lacks(
            "bans, licences and sources were NOT checked: cargo-deny is not installed (cargo install cargo-deny)",
        );
    }
    succeed(&mut workspace.cargo(&["deny", "--workspace", "check", "bans", "licenses", "sources"]))
}

/// Runs all of CI; the first failing step ends it.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let steps = [
        Step::new("fmt", || format(workspace)),
        Step::new("layers", || layers::run(workspace)),
        Step::new("tidy", || tidy::run(workspace)),
        Step::new("unused", || unused::run(workspace)),
        Step::new("clippy", || clippy(workspace)),
        Step::new("doc", || document(workspace)),
        Step::new("deny", || deny(workspace)),
        Step::new("test", || test::run(workspace)),
        Step::new("planted", || {
            planted::run(workspace, &planted::PlantedArguments::default())
        }),
        Step::new("api", || api::run(workspace, &api::ApiArguments::default())),
        Step::new("fuzz", || fuzz::run_in_ci(workspace)),
    ];
    let start = Instant::now();
    let mut times = Vec::new();
    let result = run_steps(&steps, |name, time| times.push((name, time)));
    print!("{}", table(&times));
    result?;
    println!("── ci passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What each step took, a line for each.
fn table(times: &[(&str, Duration)]) -> String {
    let line = |(name, time): &(&str, Duration)| format!("── {:7.1} s  {name}\n", time.as_secs_f64());
    times.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn failing_step_is_named_timed_and_the_last() {
        let ran = RefCell::new(Vec::new());
        let pass = |number| {
            ran.borrow_mut().push(number);
            Ok(())
        };
        let steps = [
            Step::new("first", || pass(1)),
            Step::new("second", || anyhow::bail!("broken")),
            Step::new("third", || pass(3)),
        ];
        let mut timed = Vec::new();
        let error = run_steps(&steps, |name, _| timed.push(name)).unwrap_err();
        assert_eq!(format!("{error:#}"), "step second failed: broken");
        assert_eq!(timed, ["first", "second"]);
        assert_eq!(*ran.borrow(), [1]);
    }

    #[test]
    fn times_are_a_column() {
        let times = [
            ("fmt", Duration::from_millis(940)),
            ("test", Duration::from_millis(612_340)),
        ];
        assert_eq!(table(&times), "──     0.9 s  fmt\n──   612.3 s  test\n");
    }

    #[test]
    fn command_with_bad_status_fails() {
        assert!(succeed(&mut Command::new("true")).is_ok());
        assert!(succeed(&mut Command::new("false")).is_err());
        assert!(succeed(&mut Command::new("no-such-program-anywhere")).is_err());
    }
}
