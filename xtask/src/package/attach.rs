//! libvirt's QEMU at a broker's socket: the recipe of `docs/examples/libvirt.xml`, as the page on installing has it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::trial::Trial;
use crate::host_env::{GuestFile, HostEnv, PAYLOAD};
use crate::workspace::Workspace;

const RECIPE: &str = "docs/examples/libvirt.xml";
/// The emulator that the recipe names.
const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";
const QEMU_FOLDER: &str = "run/payload/qemu";

/// The recipe, and a QEMU that can follow it.
pub(super) fn files(workspace: &Workspace, environment: &HostEnv, folder: &Path) -> Result<Vec<GuestFile>> {
    let qemu = environment.qemu.for_guest(QEMU_FOLDER)?;
    // Debian's own is too old; the one of the cache is started by a loader of its own.
    let emulator = folder.join("emulator");
    fs::write(&emulator, format!("#!/bin/sh\nexec {} \"$@\"\n", qemu.command))
        .context("cannot write a program")?;
    let recipe = workspace.root().join(RECIPE);
    let text = fs::read_to_string(&recipe).with_context(|| format!("cannot read {RECIPE}"))?;
    ensure!(text.contains(EMULATOR), "{RECIPE} does not name {EMULATOR}");
    let mut files = qemu.files;
    files.push(GuestFile::payload("emulator", emulator));
    files.push(GuestFile::payload("libvirt.xml", recipe));
    Ok(files)
}

/// The recipe is valid, becomes the arguments that attach QEMU, and attaches it.
pub(super) fn check(trial: &mut Trial) -> Result<()> {
    trial.says("virt-xml-validate libvirt.xml domain", &["validates"])?;
    trial.says("usermod --append --groups vramd libvirt-qemu", &[])?;
    let ours = format!("sed 's,{EMULATOR},/{PAYLOAD}/emulator,' libvirt.xml >tried.xml");
    trial.says(&ours, &[])?;
    trial.says(
        "systemctl start libvirtd.service && virsh define tried.xml",
        &["defined"],
    )?;
    trial.says(
        "virsh domxml-to-native qemu-argv --domain vramd-a",
        &["vfio-user-pci", "/run/vramd/a/gpu.sock", "share\":true"],
    )?;
    trial.says("virsh start vramd-a", &["started"])?;
    trial.waits_for("systemctl status vramd.service | grep -q \"gpu0: 1 of 2 VMs connected\"")?;
    trial.says(
        "virsh qemu-monitor-command vramd-a --hmp info pci",
        &["PCI device 10de:06c0"],
    )?;
    trial.says("machinectl list --no-legend", &["libvirt-qemu"])?;
    trial.says("virsh destroy vramd-a && virsh undefine vramd-a", &["destroyed"])?;
    trial.waits_for("systemctl status vramd.service | grep -q \"gpu0: 0 of 2 VMs connected\"")
}
