//! Checks that the kernel pins as much memory for the card as lies in host RAM, not as much as
//! VMs could have there.
//!
//! A broker serves two VMs whose VRAM together is more than the card's; the kernel's count of its locked memory (VmLck) is
//! sampled while first one VM with little in its VRAM runs, then both with nearly all of it.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::PATIENCE;
use crate::guest::Guest;
use crate::host_env::GuestFile;

/// Guest VRAM of each VM; two of them are more than the card has.
const VRAM_MIB: u64 = 192;
const RAM_MIB: u64 = 64;
/// VRAM that the VM with small needs uses, and the memory that may be pinned beyond it: chunks that its tables
/// share, and a batch on its way.
const LITTLE_MIB: u64 = 8;
const SLACK_MIB: u64 = 16;
/// The broker's own DMA memory, rounded up.
const OWN_MIB: u64 = 2;
const SAMPLES: &str = "/run/locked";
/// What a broker that was started by root and has a card of the host gave up, and how it shows. That of Landlock was tried by the broker.
const CONFINED: [(&str, &str); 4] = [
    (
        "empty set of capabilities",
        "grep -Eq 'CapEff:.0+$' /proc/$broker/status && grep -Eq 'CapPrm:.0+$' /proc/$broker/status",
    ),
    (
        "filter of system calls on each thread",
        "[ $(cat /proc/$broker/task/*/status | grep -c 'Seccomp:.2$') = $(ls /proc/$broker/task | wc -l) ]",
    ),
    ("Landlock", "grep -q 'landlock: enforced, ' pin.log"),
    (
        "lifted limit of locked memory",
        "grep -q 'Max locked memory *unlimited *unlimited' /proc/$broker/limits",
    ),
];

/// Files that are needed inside.
pub(super) fn files(card: &str, folder: &Path) -> Result<Vec<GuestFile>> {
    let gpu = format!("[[gpu]]\nname = \"gpu\"\ndevice = \"vfio:{card}\"\nhost_ram = \"512M\"\n");
    let mut texts = Vec::new();
    let mut host = gpu;
    for name in ["a", "b"] {
        host += &format!(
            "[[vm]]\nname = \"{name}\"\ngpu = \"gpu\"\nsocket = \"/run/pin-{name}.sock\"\nguest_vram = \"{VRAM_MIB}M\"\n"
        );
    }
    texts.push(("pin-host.toml", host));
    let little = format!(
        "options = \"vramd.workload=hotspot vramd.rounds=1 vramd.footprint_kib={}\"",
        LITTLE_MIB << 10
    );
    let full = "inputs = [\"/bin/busybox\"]\noptions = \"vramd.rounds=1\"";
    for (file, name, work) in [
        ("pin-little.toml", "a", little.as_str()),
        ("pin-a.toml", "a", full),
        ("pin-b.toml", "b", full),
    ] {
        let text = format!(
            "name = \"{name}\"\nmemory = \"{RAM_MIB}M\"\n{work}\n[vgpu]\nsocket = \"/run/pin-{name}.sock\"\n"
        );
        texts.push((file, text));
    }
    let mut files = Vec::new();
    for (name, text) in texts {
        let from = folder.join(name);
        std::fs::write(&from, text).with_context(|| format!("cannot write {}", from.display()))?;
        let to = format!("etc/{name}");
        files.push(GuestFile { to, from });
    }
    Ok(files)
}

/// MiB of locked memory: first, most, last.
#[derive(Clone, Copy, Debug)]
struct Locked {
    first: u64,
    most: u64,
    last: u64,
}

/// Samples and compares.
pub(super) fn check(guest: &mut Guest) -> Result<()> {
    let serve = "RUST_LOG=info vramd serve --config /etc/pin-host.toml >serving 2>pin.log & broker=$!; until [ -s serving ]; \
                 do kill -0 $broker || break; usleep 50000; done; [ -s serving ] || { cat pin.log; false; }";
    guest
        .succeed(serve, PATIENCE)
        .context("the broker does not start")?;
    for (what, check) in CONFINED {
        guest
            .succeed(check, PATIENCE)
            .with_context(|| format!("a broker with a card of the host has no {what}"))?;
    }
    let little = sampled(guest, "vramd run /etc/pin-little.toml >little.log 2>&1");
    let both = sampled(
        guest,
        "{ vramd run /etc/pin-a.toml >a.log 2>&1 & one=$!; vramd run /etc/pin-b.toml >b.log 2>&1 && wait $one; }",
    );
    let ended = guest.succeed("kill $broker; wait $broker; true", PATIENCE);
    let (little, both) = (little?, both?);
    ended?;
    println!(
        "pinned for the card, MiB: {} before; at most {} with {LITTLE_MIB} of {VRAM_MIB} in use and {RAM_MIB} of RAM, {} after; \
         at most {} with two VMs full, {} after",
        little.first, little.most, little.last, both.most, both.last
    );
    for (what, mebibytes) in [
        ("before", little.first),
        ("after", little.last),
        ("after", both.last),
    ] {
        ensure!(mebibytes <= OWN_MIB, "{mebibytes} MiB are pinned {what} a run");
    }
    let allowed = OWN_MIB + RAM_MIB + LITTLE_MIB + SLACK_MIB;
    ensure!(
        (RAM_MIB..=allowed).contains(&little.most),
        "{} MiB are pinned for a VM that uses {LITTLE_MIB}",
        little.most
    );
    ensure!(
        (2 * RAM_MIB + 1..2 * (RAM_MIB + VRAM_MIB)).contains(&both.most),
        "{} MiB are pinned for two full VMs",
        both.most
    );
    Ok(())
}

/// Runs a command while the broker's locked memory is recorded, and goes on until that has settled afterwards.
fn sampled(guest: &mut Guest, command: &str) -> Result<Locked> {
    let sample = format!("awk '/^VmLck/ {{ print $2 }}' /proc/$broker/status >>{SAMPLES}");
    let line = format!(
        "rm -f {SAMPLES}; {sample}; while usleep 50000; do {sample}; done & sampler=$!; {command}; s=$?; \
         i=0; until [ $(awk '/^VmLck/ {{ print $2 }}' /proc/$broker/status) -le {} ] || [ $i -ge 100 ]; do usleep 50000; \
         i=$((i+1)); done; kill $sampler; wait $sampler; {sample}; [ $s = 0 ] || cat *.log; (exit $s)",
        OWN_MIB << 10
    );
    guest.succeed(&line, PATIENCE)?;
    let text = guest.succeed(&format!("cat {SAMPLES}"), PATIENCE)?;
    let samples: Vec<u64> = text
        .lines
        .iter()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    let most = samples.iter().copied().max().context("nothing was sampled")?;
    ensure!(
        samples.len() > 2,
        "the run was too short to be looked at: {samples:?}"
    );
    let mebibytes = |kibibytes: u64| kibibytes.div_ceil(1024);
    Ok(Locked {
        first: mebibytes(samples[0]),
        most: mebibytes(most),
        last: mebibytes(samples[samples.len() - 1]),
    })
}
