//! `cargo xtask test`: the test command of README and CI.
//!
//! With cargo-nextest it is `cargo nextest run --workspace --profile ci` and `cargo test --workspace --doc`, without it
//! `cargo test --workspace`; then come the tests of the programs for Linux guests, which are a workspace of their own. A
//! test that finds its host lacking prints `SKIPPED (why)` and passes; such lines are taken from the output of
//! passing tests, which is otherwise left out, and counted at the end. A run without any test fails.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// Set by CI where `/dev/kvm` works: from then on no test may skip for want of it.
const REQUIRE_KVM: &str = "VRAMD_REQUIRE_KVM";

/// Results that the tests of a run reported.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    run: u64,
    /// How often each reason to skip was given.
    skipped: BTreeMap<String, u64>,
}

/// Reads the output of a runner line by line.
trait Reader {
    /// Counts a line, and returns whether the user should see it.
    fn read(&mut self, line: &str, tally: &mut Tally) -> bool;
}

/// Output of `cargo nextest run` with the output of passing tests switched on.
#[derive(Default)]
struct Nextest {
    /// The lines that come are output of a test that passed.
    is_in_passed: bool,
}

impl Reader for Nextest {
    fn read(&mut self, line: &str, tally: &mut Tally) -> bool {
        note_skip(line, tally);
        let is_output = !is_nextest_status(line) && (line.trim().is_empty() || line.starts_with("  "));
        if self.is_in_passed && is_output {
            return line.contains("SKIPPED (");
        }
        self.is_in_passed = line.trim_start().starts_with("PASS [");
        if line.trim_start().starts_with("Summary [") {
            // "Summary [   0.250s] 12 tests run: 12 passed, 0 skipped"
            let count = line
                .split_once(']')
                .and_then(|(_, rest)| rest.split_whitespace().next());
            // A run that was stopped says "3/12 tests run".
            let count = count
                .and_then(|count| count.split('/').next())
                .and_then(|count| count.parse::<u64>().ok());
            tally.run += count.unwrap_or(0);
        }
        true
    }
}

/// A line like `        PASS [   0.004s] (1/5) xtask layers::tests::name`.
fn is_nextest_status(line: &str) -> bool {
    let Some((head, tail)) = line.trim_start().split_once('[') else {
        return false;
    };
    let is_state = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == ' ' || c == '-';
    let time = tail
        .split_once("s]")
        .map(|(time, _)| time.trim_start_matches(['>', ' ']));
    (head.trim_end() == "Summary" || head.chars().all(is_state))
        && time.is_some_and(|t| t.parse::<f64>().is_ok())
}

/// Output of `cargo test -- --show-output`.
#[derive(Default)]
struct Libtest {
    /// The lines that come are output of tests that passed.
    is_in_successes: bool,
}

impl Reader for Libtest {
    fn read(&mut self, line: &str, tally: &mut Tally) -> bool {
        note_skip(line, tally);
        match line {
            "successes:" => self.is_in_successes = true,
            "failures:" => self.is_in_successes = false,
            _ => {}
        }
        let Some(rest) = line.strip_prefix("test result: ") else {
            return !self.is_in_successes || line.contains("SKIPPED (");
        };
        // "test result: ok. 12 passed; 0 failed; 0 ignored; …"
        self.is_in_successes = false;
        let words: Vec<_> = rest.split_whitespace().collect();
        let counts = words
            .windows(2)
            .filter(|pair| matches!(pair[1], "passed;" | "failed;"));
        tally.run += counts.filter_map(|pair| pair[0].parse::<u64>().ok()).sum::<u64>();
        true
    }
}

fn note_skip(line: &str, tally: &mut Tally) {
    if let Some((_, rest)) = line.split_once("SKIPPED (") {
        let reason = rest.rsplit_once(')').map_or(rest, |(reason, _)| reason);
        *tally.skipped.entry(reason.to_owned()).or_default() += 1;
    }
}

fn read_all(
    output: impl Read,
    reader: &mut impl Reader,
    tally: &mut Tally,
    mut shown: impl Write,
) -> Result<()> {
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read the output of the tests")?;
        let line = String::from_utf8_lossy(&line);
        if reader.read(&line, tally) {
            writeln!(shown, "{line}").context("cannot write to stdout")?;
        }
    }
    Ok(())
}

/// Judges a run: some test must have run, and none skipped for want of KVM if KVM is required.
fn judge(tally: &Tally, is_kvm_required: bool) -> Result<()> {
    ensure!(tally.run > 0, "no test was run");
    let lacks_kvm = |reason: &&String| reason.to_ascii_lowercase().contains("kvm");
    if let Some(reason) = tally.skipped.keys().find(lacks_kvm).filter(|_| is_kvm_required) {
        anyhow::bail!("{REQUIRE_KVM} is set, but a test skipped: {reason}");
    }
    Ok(())
}

fn print(tally: &Tally) {
    println!(
        "test: {} run, {} skipped",
        tally.run,
        tally.skipped.values().sum::<u64>()
    );
    for (reason, count) in &tally.skipped {
        println!("test: skipped {count} times: {reason}");
    }
}

fn run_nextest(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let arguments = ["nextest", "run", "--workspace", "--profile", "ci"];
    let mut command = workspace.cargo(&arguments);
    command.args([
        "--no-tests",
        "fail",
        "--success-output",
        "immediate",
        "--color",
        "never",
    ]);
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo nextest")?;
    let stderr = child.stderr.take().context("cargo nextest has no stderr")?;
    read_all(stderr, &mut Nextest::default(), tally, io::stdout())?;
    ensure!(child.wait()?.success(), "cargo nextest failed");
    Ok(())
}

fn run_libtest(mut command: Command, tally: &mut Tally) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no stdout")?;
    read_all(stdout, &mut Libtest::default(), tally, io::stdout())?;
    ensure!(child.wait()?.success(), "cargo test failed");
    Ok(())
}

/// The workspace of the programs for Linux guests. The others outside of ours have no tests of their own.
const GUEST_PROGRAMS: &str = "guests/linux";

/// Runs all tests of the workspace and of the guests' programs, and prints how many ran and were skipped.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut tally = Tally::default();
    if workspace.has_cargo_tool("nextest") {
        run_nextest(workspace, &mut tally)?;
        // Judged before the doc tests are added: they are no substitute for the others.
        judge(&tally, false)?;
        run_libtest(
            workspace.cargo(&["test", "--workspace", "--doc", "--", "--show-output"]),
            &mut tally,
        )?;
    } else {
        run_libtest(
            workspace.cargo(&["test", "--workspace", "--", "--show-output"]),
            &mut tally,
        )?;
    }
    let mut guest_programs = workspace.cargo(&["test", "--workspace", "--locked", "--", "--show-output"]);
    guest_programs.current_dir(workspace.root().join(GUEST_PROGRAMS));
    run_libtest(guest_programs, &mut tally)?;
    print(&tally);
    judge(
        &tally,
        std::env::var_os(REQUIRE_KVM).is_some_and(|value| value == "1"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXTEST: &str = "\
    Finished `test` profile [optimized] target(s) in 1.02s
────────────
 Nextest run ID 5 with nextest profile: ci
    Starting 3 tests across 2 binaries
        PASS [   0.004s] (1/3) mmio access::tests::quiet
  stdout ───

    running 1 test
    test access::tests::quiet ... ok

        PASS [   0.010s] (2/3) integration::vm_boot guest_boots
  stdout ───

    SKIPPED (no /dev/kvm (or not ours))
    test guest_boots ... ok

        FAIL [   1.000s] (3/3) mmio access::tests::loud
  stderr ───

    assertion failed

────────────
     Summary [   1.250s] 3 tests run: 2 passed, 1 failed, 0 skipped
";

    const LIBTEST: &str = "\
running 2 tests
test a ... ok
test b ... ok

successes:

---- a stdout ----
SKIPPED (no QEMU)
chatter

successes:
    a
    b

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
running 0 tests
";

    fn shown(mut reader: impl Reader, output: &str) -> (Tally, Vec<&str>) {
        let mut tally = Tally::default();
        let lines = output
            .lines()
            .filter(|line| reader.read(line, &mut tally))
            .collect();
        (tally, lines)
    }

    fn tally(run: u64, reasons: &[&str]) -> Tally {
        Tally {
            run,
            skipped: reasons.iter().map(|&reason| (reason.to_owned(), 1)).collect(),
        }
    }

    #[test]
    fn nextest_output_gives_tests_run_and_reasons_to_skip() {
        assert_eq!(
            shown(Nextest::default(), NEXTEST).0,
            tally(3, &["no /dev/kvm (or not ours)"])
        );
    }

    #[test]
    fn nextest_output_of_passed_tests_is_left_out_and_of_failed_ones_kept() {
        let lines = shown(Nextest::default(), NEXTEST).1;
        assert!(!lines.iter().any(|line| line.contains("... ok")), "{lines:?}");
        assert!(
            lines.contains(&"    SKIPPED (no /dev/kvm (or not ours))"),
            "{lines:?}"
        );
        assert!(lines.contains(&"    assertion failed"), "{lines:?}");
    }

    #[test]
    fn stopped_nextest_run_counts_what_ran() {
        let line = "     Summary [   0.1s] 3/12 tests run: 2 passed, 1 failed, 0 skipped";
        assert_eq!(shown(Nextest::default(), line).0, tally(3, &[]));
    }

    #[test]
    fn libtest_output_gives_tests_run_and_reasons_to_skip() {
        let (counted, lines) = shown(Libtest::default(), LIBTEST);
        assert_eq!(counted, tally(2, &["no QEMU"]));
        assert!(
            lines.contains(&"SKIPPED (no QEMU)") && !lines.contains(&"chatter"),
            "{lines:?}"
        );
    }

    #[test]
    fn run_without_tests_fails() {
        assert!(judge(&tally(0, &[]), false).is_err());
        assert!(judge(&tally(1, &[]), false).is_ok());
    }

    #[test]
    fn skip_for_want_of_kvm_fails_where_kvm_is_required() {
        let skipped = tally(5, &["no /dev/KVM"]);
        assert!(judge(&skipped, false).is_ok());
        assert!(judge(&skipped, true).is_err());
        assert!(judge(&tally(5, &["no QEMU"]), true).is_ok());
    }

    #[test]
    fn broken_utf8_in_the_output_is_shown_not_fatal() {
        let mut counted = Tally::default();
        let output: &[u8] = b"\xff\nSKIPPED (why)\n";
        let mut shown = Vec::new();
        read_all(output, &mut Libtest::default(), &mut counted, &mut shown).unwrap();
        assert_eq!(counted, tally(0, &["why"]));
        assert_eq!(shown, "\u{fffd}\nSKIPPED (why)\n".as_bytes());
    }
}
