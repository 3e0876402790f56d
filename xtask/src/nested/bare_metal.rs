//! The checks on a host that has a card, without an outer machine.
//!
//! Checks that need the outer machine are left out: a card whose power is cut, an IOMMU that is off, and all that
//! need files in the host's root. The card is given back to the driver that it had.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{PATIENCE, demo, refuses};
use crate::guest::Guest;
use crate::workspace::Workspace;

const SYSFS: &str = "/sys";

/// Runs the checks with the card at `at`; each of two VMs gets `guest_vram` of VRAM.
pub(super) fn run(workspace: &Workspace, vramd: Option<&Path>, at: &str, guest_vram: &str) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "a card is bound and opened as root: run cargo xtask nested --bare-metal as root"
    );
    let before = usable(Path::new(SYSFS), at)?;
    let built = match vramd {
        Some(path) => path.to_owned(),
        None => workspace.build_release("vramd", "vramd")?,
    };
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    fs::copy(&built, folder.path().join("vramd"))
        .with_context(|| format!("cannot copy {}", built.display()))?;
    let mut host = Guest::here(folder.path())?;
    let checked = check(&mut host, at, guest_vram);
    let back = match before.as_deref() {
        Some("vfio-pci") => "true".to_owned(),
        _ => format!("vramd unbind {at}"),
    };
    let given_back = host.succeed(&back, PATIENCE);
    if checked.is_err() {
        println!("logs are in {}", folder.keep().display());
    }
    checked?;
    given_back.with_context(|| format!("{at} is not given back to its driver"))?;
    host.power_off()
}

fn check(host: &mut Guest, at: &str, guest_vram: &str) -> Result<()> {
    let doctor = host.run("vramd doctor", PATIENCE)?;
    println!("{}", doctor.text().trim());
    refuses(host, "vramd bind 1f.2", "is not a PCI address")?;
    host.succeed(&format!("vramd bind {at}"), PATIENCE)?;
    let of = format!("vramd demo --gpu vfio:{at} --vms 2 --guest-vram {guest_vram} --workload files");
    demo(host, &format!("{of} --json"))?;
    // The card was given back in a state from which it can be brought up once more.
    host.succeed(&format!("vramd unbind {at} && vramd bind {at}"), PATIENCE)?;
    demo(host, &format!("{of} --no-kvm --rounds 1 --json"))
}

/// The card's driver, if the host can give the card to vramd.
fn usable(sysfs: &Path, at: &str) -> Result<Option<String>> {
    let is_address = at.len() == 12
        && at
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    ensure!(is_address, "{at:?} is not a PCI address such as 0000:01:00.0");
    let device = sysfs.join("bus/pci/devices").join(at);
    if !device.is_dir() {
        bail!("there is no PCI function {at} in this machine: look for the card in lspci -D -d 10de:");
    }
    ensure!(
        device.join("iommu_group").exists(),
        "{at} has no IOMMU group: intel_iommu=on or amd_iommu=on in the kernel's command line, VT-d or AMD-Vi in the firmware"
    );
    ensure!(
        sysfs.join("bus/pci/drivers/vfio-pci").is_dir(),
        "this machine has no vfio-pci: modprobe vfio-pci"
    );
    let driver = fs::read_link(device.join("driver")).ok();
    Ok(driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "0000:01:00.0";

    fn refused(sysfs: &Path, at: &str) -> String {
        usable(sysfs, at).unwrap_err().to_string()
    }

    #[test]
    fn what_is_missing_is_named_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(refused(root, "../../etc").contains("not a PCI address"));
        assert!(refused(root, AT).contains("no PCI function 0000:01:00.0"));
        let device = root.join("bus/pci/devices").join(AT);
        fs::create_dir_all(&device).unwrap();
        assert!(refused(root, AT).contains("intel_iommu=on"));
        fs::create_dir_all(device.join("iommu_group")).unwrap();
        assert!(refused(root, AT).contains("modprobe vfio-pci"));
        let drivers = root.join("bus/pci/drivers");
        fs::create_dir_all(drivers.join("vfio-pci")).unwrap();
        assert_eq!(usable(root, AT).unwrap(), None);
        std::os::unix::fs::symlink(drivers.join("nouveau"), device.join("driver")).unwrap();
        assert_eq!(usable(root, AT).unwrap().as_deref(), Some("nouveau"));
    }

    #[test]
    fn shell_of_this_machine_answers_as_a_guest_does() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = Guest::here(folder.path()).unwrap();
        let output = host.run("echo one; printf two; (exit 3)", PATIENCE).unwrap();
        assert_eq!(
            (output.status, output.lines),
            (3, vec!["one".to_owned(), "two".to_owned()])
        );
        let kept = host
            .succeed("kept=5", PATIENCE)
            .and_then(|_| host.succeed("echo $kept", PATIENCE));
        assert_eq!(kept.unwrap().text().trim(), "5");
        host.power_off().unwrap();
    }
}
