//! A disk with a Debian that has systemd, as an installation makes it: its packages are configured, so more can be installed.
//!
//! Unlike the other roots this one is made by running its packages' scripts, in a folder that mmdebstrap changes into. That takes root,
//! because its files belong to several users.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::guest_root::make_disk;
use super::pins::Pin;

/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;
/// Not needed in a test, and half of the files.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];
/// What is left out now is not to be left out of packages that a test installs.
const FORGET_LEFT_OUT: &str = "rm \"$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap\"";
/// What systemd does at the first start after a change of the system is done: it takes seconds there at each first start, and all are.
const UPDATED: &str = "touch \"$1/etc/.updated\" \"$1/var/.updated\"";
/// What would start with the machine, and is nothing that each test needs: a test starts what it wants.
const NOT_STARTED: [&str; 14] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "getty@tty1.service",
    "libvirt-guests.service",
    "libvirtd.service",
    "libvirtd.socket",
    "libvirtd-admin.socket",
    "libvirtd-ro.socket",
    "logrotate.timer",
    "virtlogd.service",
    "virtlogd.socket",
    "virtlogd-admin.socket",
];
/// Room for what a test installs and writes. MiB.
const SLACK_MIB: u64 = 512;

/// The image of an ext4 file system, which a machine writes to a copy of.
#[derive(Clone, Debug)]
pub(crate) struct DebianDisk {
    image: PathBuf,
}

impl DebianDisk {
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let image = cache.path(&pin.cache_name("debian", LAYOUT));
        ensure!(image.is_file(), "no disk with a Debian in the cache");
        Ok(Self { image })
    }

    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "files of several users can be made by root only: run `cargo xtask host-env` once as root, with VRAMD_CACHE={}",
            cache.folder().display()
        );
        let packages = apt.exact(&pin.packages)?.join(",");
        let archive = build.join("debian.tar");
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=minbase", "--format=tar"]);
        command.arg(format!("--include={packages}"));
        for files in LEFT_OUT {
            command.arg(format!("--dpkgopt=path-exclude={files}"));
        }
        // Nothing of a folder that is made anew after a loss of power has to be on the disk at each step.
        command.arg("--dpkgopt=force-unsafe-io");
        command.arg(format!("--customize-hook={FORGET_LEFT_OUT}"));
        let units = NOT_STARTED.join(" ");
        command.arg(format!(
            "--customize-hook=chroot \"$1\" systemctl --quiet disable {units}"
        ));
        command.arg(format!("--customize-hook={UPDATED}"));
        command.arg(&pin.suite).arg(&archive).arg(apt.source(&pin.suite));
        apt::output(&mut command).context("cannot make a Debian (package mmdebstrap)")?;
        let root = build.join("debian-root");
        fs::create_dir(&root).with_context(|| format!("cannot create {}", root.display()))?;
        let mut unpack = Command::new("tar");
        // Nodes of devices are the kernel's to make.
        unpack.args(["--extract", "--numeric-owner", "--exclude=./dev/*", "--file"]);
        unpack.arg(&archive).arg("--directory").arg(&root);
        apt::output(&mut unpack)?;
        let image = build.join("debian.ext4");
        make_disk(&root, &image, SLACK_MIB)?;
        let image = cache.keep(&image, &pin.cache_name("debian", LAYOUT))?;
        Ok(Self { image })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }
}
