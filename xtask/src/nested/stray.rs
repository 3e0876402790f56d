//! A GPU that is sent to foreign memory: with a broker that has a hole, the host's IOMMU stops it; with ours, it
//! never gets that far.
//!
//! The hole is the feature `weakened` of `vramd`, which nothing but this test builds. With it a guest's page table may name
//! any bus address.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{PATIENCE, SUCCESS};
use crate::card::Card;
use crate::guest::Guest;
use crate::host_env::GuestFile;

/// Folder of the programs in the guest.
const WEAKENED: &str = "vramd-weakened";
const ORDINARY: &str = "vramd";
const SOCKET: &str = "/run/stray.sock";
/// Where the guest's test sends the GPU (guests/bare/src/selftest.rs), as the kernel's log has it.
const NOWHERE: &str = "0xee00000000";

/// The fields of `vramd run --json` that are read.
#[derive(Deserialize)]
struct Run {
    end: String,
    console: Vec<String>,
}

/// The files that are needed inside. The libraries are those of the ordinary program.
pub(super) fn files(weakened: &Path, card: &str, folder: &Path) -> Result<Vec<GuestFile>> {
    let host = format!(
        "[[gpu]]\nname = \"gpu\"\ndevice = \"vfio:{card}\"\nhost_ram = \"64M\"\n\
         [[vm]]\nname = \"a\"\ngpu = \"gpu\"\nsocket = \"{SOCKET}\"\nguest_vram = \"32M\"\n"
    );
    let vm = format!(
        "name = \"a\"\nmemory = \"64M\"\noptions = \"vramd.workload=hotspot bare.test=stray\"\n[vgpu]\nsocket = \"{SOCKET}\"\n"
    );
    let mut files = vec![GuestFile {
        to: format!("bin/{WEAKENED}"),
        from: weakened.to_owned(),
    }];
    for (name, text) in [("stray-host.toml", host), ("stray.toml", vm)] {
        let from = folder.join(name);
        std::fs::write(&from, text).with_context(|| format!("cannot write {}", from.display()))?;
        let to = format!("etc/{name}");
        files.push(GuestFile { to, from });
    }
    Ok(files)
}

/// Sends the GPU to foreign memory by both programs.
pub(super) fn check(guest: &mut Guest, outer: &Card) -> Result<()> {
    let said = run(guest, ORDINARY)?;
    ensure!(said == "stray=fault", "a stray copy of an ordinary build: {said}");
    let log = faults(guest)?;
    ensure!(log.is_empty(), "an ordinary build sent the GPU astray: {log:?}");
    let complaints = outer.complaints()?;
    ensure!(
        complaints.is_empty(),
        "the card, by an ordinary build: {complaints}"
    );
    println!("a copy to {NOWHERE}: stopped by the shadow page table");
    let said = run(guest, WEAKENED)?;
    // Loads that the IOMMU stops read ones; the guest had written something else.
    ensure!(
        said == "stray=ffffffff",
        "a stray copy of a weakened build: {said}"
    );
    let log = faults(guest)?;
    let fault = log.first().context("the IOMMU reported no fault")?;
    println!("a copy to {NOWHERE} by a weakened build: {}", fault.trim());
    Ok(())
}

fn run(guest: &mut Guest, program: &str) -> Result<String> {
    let serve = format!(
        "{program} serve --config /etc/stray-host.toml >/dev/null 2>stray.log & broker=$!; until [ -S {SOCKET} ]; do \
         kill -0 $broker || break; usleep 50000; done; [ -S {SOCKET} ] || {{ cat stray.log; false; }}"
    );
    guest
        .succeed(&serve, PATIENCE)
        .context("the broker does not start")?;
    // The weakened program announces its weakness.
    let output = guest.run(&format!("{program} run /etc/stray.toml --json 2>&1"), PATIENCE)?;
    guest.succeed("kill $broker; wait $broker; true", PATIENCE)?;
    let line = output.lines.iter().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("{program} run says {}", output.text()))?;
    let run: Run = serde_json::from_str(line).with_context(|| format!("{program} run says {line}"))?;
    ensure!(run.end == SUCCESS, "{program} run says {line}");
    let report = run.console.into_iter().find(|line| line.starts_with("stray"));
    report.with_context(|| format!("the guest reports nothing: {line}"))
}

/// The faults at that address in the kernel's log.
fn faults(guest: &mut Guest) -> Result<Vec<String>> {
    let log = guest.succeed(
        &format!("dmesg | grep 'DMAR:.*fault addr {NOWHERE}' || true"),
        PATIENCE,
    )?;
    Ok(log
        .lines
        .into_iter()
        .filter(|line| !line.trim().is_empty())
        .collect())
}
