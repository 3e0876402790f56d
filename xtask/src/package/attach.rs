//! The recipe of `docs/examples/libvirt.xml`, as the page on installing has it: a domain of libvirt that starts, whose QEMU the broker
//! serves, and that goes.
//!
//! The host has libvirt as Debian has it. The QEMU is the one that all trials use, in the place where the recipe's package would have it.

use anyhow::{Context, Result};

use super::trial::Trial;
use crate::host_env::{GuestFile, HostEnv, PAYLOAD, QemuOfGuest};
use crate::workspace::Workspace;

const RECIPE: &str = "docs/examples/libvirt.xml";
/// Where the recipe's QEMU is.
const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";
/// Modules that libvirt's packages bring, of a QEMU of another version: ours would load them, and end.
const MODULES: &str = "/usr/lib/x86_64-linux-gnu/qemu";
/// The folder of QEMU's files among ours.
const QEMU_FOLDER: &str = "qemu";

/// What the host needs for it: the recipe itself, and a QEMU that a line of shell puts in its place.
pub(super) struct Attach {
    put_in_place: String,
}

impl Attach {
    /// Adds its files to those of the host.
    pub(super) fn prepare(
        workspace: &Workspace,
        environment: &HostEnv,
        files: &mut Vec<GuestFile>,
    ) -> Result<Self> {
        let folder = format!("{PAYLOAD}/{QEMU_FOLDER}");
        let QemuOfGuest {
            files: of_qemu,
            command,
            ..
        } = environment.qemu.for_guest(&folder).context("QEMU for the host")?;
        files.extend(of_qemu);
        files.push(GuestFile::payload("libvirt.xml", workspace.root().join(RECIPE)));
        Ok(Self {
            put_in_place: format!(
                "printf '#!/bin/sh\\nexec {command} \"$@\"\\n' > {EMULATOR} && chmod 755 {EMULATOR} && rm --recursive --force {MODULES}"
            ),
        })
    }

    /// Does what the page says, in its order.
    pub(super) fn check(&self, trial: &mut Trial) -> Result<()> {
        trial.says("virt-xml-validate libvirt.xml domain", &["validates"])?;
        trial.says(&self.put_in_place, &[])?;
        trial.says("usermod --append --groups vramd libvirt-qemu", &[])?;
        trial.says("systemctl start virtlogd.socket libvirtd.service", &[])?;
        trial.says("virsh define libvirt.xml", &["defined"])?;
        trial.says("virsh start vramd-a", &["started"])?;
        trial.says("virsh domstate vramd-a", &["running"])?;
        trial.waits_for("vramd show a | grep --quiet \"connected  *[0-9]\"")?;
        // QEMU's firmware has found the function, and its own user has opened the socket.
        trial.says(
            "virsh qemu-monitor-command vramd-a --hmp info pci",
            &["PCI device 10de:06c0"],
        )?;
        trial.says("virsh destroy vramd-a", &["destroyed"])?;
        trial.waits_for("vramd show a | grep --quiet \"state  *not connected\"")?;
        trial.says("virsh undefine vramd-a", &["undefined"])?;
        trial.says(
            &format!("systemctl stop libvirtd.service virtlogd.service; rm {EMULATOR}"),
            &[],
        )?;
        Ok(())
    }
}
