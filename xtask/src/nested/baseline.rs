//! The figures of a machine that counts instructions, and the file that they are compared with.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;

/// Path in the workspace.
const PATH: &str = "integration/nested/baseline.toml";
const HEADER: &str = "# What `cargo xtask nested --icount` measured; one ns is one instruction. Written by `--bless`.\n\
                      # A figure that is worse by more than its tolerance (xtask/src/nested/baseline.rs) fails.\n";

/// The measured quantities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    FirstInstruction,
    PortRead,
    RemoteRead,
    Anonymous,
    Resident,
    LinuxShare,
    LinuxAnonymous,
    LinuxResident,
    ShareToMicrovm,
    ShareToQ35,
    Doorbell,
    IdleDoorbell,
    TrappedDoorbell,
}

/// Title and tolerance of a figure.
struct Row {
    figure: Figure,
    what: &'static str,
    unit: &'static str,
    goal: u64,
    /// How much worse it may be than the baseline.
    tolerance_percent: u64,
}

const ROWS: [Row; 13] = [
    Row {
        figure: Figure::FirstInstruction,
        what: "start of a VM's process to its guest's first instruction",
        unit: "ns",
        goal: 150_000_000,
        tolerance_percent: 5,
    },
    Row {
        figure: Figure::PortRead,
        what: "port read answered in the VM's process",
        unit: "ns",
        goal: 9_000,
        tolerance_percent: 3,
    },
    Row {
        figure: Figure::RemoteRead,
        what: "register read answered by the broker",
        unit: "ns",
        goal: 32_000,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::Anonymous,
        what: "anonymous memory besides guest RAM",
        unit: "KiB",
        goal: 1024,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::Resident,
        what: "resident memory besides guest RAM",
        unit: "KiB",
        goal: 4096,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::LinuxShare,
        what: "our share of a Linux boot",
        unit: "ns",
        goal: 150_000_000,
        tolerance_percent: 5,
    },
    Row {
        figure: Figure::LinuxAnonymous,
        what: "anonymous memory besides RAM of a Linux guest",
        unit: "KiB",
        goal: 1024,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::LinuxResident,
        what: "resident memory besides RAM of a Linux guest",
        unit: "KiB",
        goal: 4096,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::ShareToMicrovm,
        what: "our share of a Linux boot to that of QEMU's microvm",
        unit: "%",
        goal: 100,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::ShareToQ35,
        what: "our share of a Linux boot to that of QEMU's q35",
        unit: "%",
        goal: 100,
        tolerance_percent: 10,
    },
    Row {
        figure: Figure::Doorbell,
        what: "store to a doorbell that is memory, as the guest counts it",
        unit: "ns",
        goal: 5_000,
        tolerance_percent: 15,
    },
    Row {
        figure: Figure::IdleDoorbell,
        what: "first store to a doorbell of a guest that was quiet, until it goes on",
        unit: "ns",
        goal: 9_000,
        tolerance_percent: 15,
    },
    Row {
        figure: Figure::TrappedDoorbell,
        what: "doorbell that is a message, until the card has it",
        unit: "ns",
        goal: 64_000,
        // Three threads on one processor: which of them the kernel wakes first differs from run to run by 8 %.
        tolerance_percent: 15,
    },
];

/// Values by the quantity that they measure.
pub(super) type Figures = BTreeMap<Figure, u64>;

/// A table of `figures` beside the baseline, and whether none is worse than it may be.
fn compare(figures: &Figures, baseline: &Figures) -> Result<(String, bool)> {
    let mut table = format!("{:>13} {:>13} {:>13}\n", "measured", "baseline", "goal");
    let mut is_right = true;
    for row in &ROWS {
        let name = row.what;
        let value = *figures.get(&row.figure).with_context(|| format!("no {name}"))?;
        let before = *baseline
            .get(&row.figure)
            .with_context(|| format!("{PATH} has no {:?}: --bless", row.figure))?;
        let slack = before * row.tolerance_percent / 100;
        let verdict = if value > before + slack {
            is_right = false;
            format!("WORSE by more than {} %", row.tolerance_percent)
        } else if value + slack < before {
            "better: take it with --bless".to_owned()
        } else {
            String::new()
        };
        let goal = if value > row.goal { "goal missed" } else { "" };
        let unit = row.unit;
        let notes = [goal, verdict.as_str()].join(" ");
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "{value:>9} {unit:<3} {before:>9} {unit:<3} {:>9} {unit:<3}  {name}  {}",
            row.goal,
            notes.trim()
        );
    }
    Ok((table, is_right))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figures: Figures,
}

/// Compares `figures` with the committed ones, or makes them those.
pub(super) fn judge(workspace: &Workspace, figures: Figures, is_bless: bool) -> Result<()> {
    let path = workspace.root().join(PATH);
    if is_bless {
        bless(&path, &figures)?;
    }
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: File = toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
    let (table, is_right) = compare(&figures, &file.figures)?;
    print!("{table}");
    ensure!(is_right, "figures are worse than in {PATH}");
    Ok(())
}

fn bless(path: &Path, figures: &Figures) -> Result<()> {
    let figures = figures.clone();
    let text = toml::to_string(&File { figures }).context("cannot write figures")?;
    std::fs::write(path, format!("{HEADER}{text}"))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(value: u64) -> Figures {
        ROWS.iter().map(|row| (row.figure, value)).collect()
    }

    #[test]
    fn figure_beyond_its_tolerance_fails_and_a_better_one_does_not() {
        assert!(compare(&all(102), &all(100)).unwrap().1);
        let (table, is_right) = compare(&all(104), &all(100)).unwrap();
        assert!(!is_right && table.matches("WORSE").count() == 1, "{table}");
        let (table, is_right) = compare(&all(50), &all(100)).unwrap();
        assert!(
            is_right && table.matches("--bless").count() == ROWS.len(),
            "{table}"
        );
    }

    #[test]
    fn missed_goals_are_shown() {
        let (table, is_right) = compare(&all(5000), &all(5000)).unwrap();
        assert!(is_right && table.matches("goal missed").count() == 6, "{table}");
    }

    #[test]
    fn missing_figure_is_an_error() {
        assert!(compare(&Figures::new(), &all(1)).is_err());
        assert!(compare(&all(1), &Figures::new()).is_err());
    }

    #[test]
    fn blessed_file_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baseline.toml");
        bless(&path, &all(7)).unwrap();
        let file: File = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(file.figures, all(7));
    }
}
