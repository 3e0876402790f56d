//! A disk with a Debian that has systemd, as an installation makes it: its packages are configured, so more can be installed.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::apt::Apt;
use super::bootstrap::{bootstrap, disable};
use super::cache::Cache;
use super::guest_root::make_disk;
use super::pins::Pin;

/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;
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
        let root = bootstrap(pin, &[disable(&NOT_STARTED)], cache, apt, build)?;
        let image = build.join("debian.ext4");
        make_disk(&root, &image, SLACK_MIB)?;
        let image = cache.keep(&image, &pin.cache_name("debian", LAYOUT))?;
        Ok(Self { image })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }
}
