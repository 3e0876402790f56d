//! A Debian that a VMM boots: the image of its root, and the kernel and initramfs that its own packages put beside it.
//!
//! Nothing in it is made for vramd but what saves time at each start. It has Mesa, and finds the GPU as each Debian does: udev loads
//! nouveau. `root` logs in without a password, on the console alone: there is no network.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::apt::Apt;
use super::bootstrap::{bootstrap, disable};
use super::cache::Cache;
use super::guest_root::make_disk;
use super::kernel::only_entry;
use super::pins::Pin;

/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;
const IMAGE: &str = "root.img";
const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initrd.img";
/// Timers, of which some are due at the first start; and a console that the machine does not have.
const NOT_STARTED: [&str; 5] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "getty@tty1.service",
];
const NO_PASSWORD: &str = "chroot \"$1\" passwd --quiet --delete root";
/// Room for what a guest writes. MiB.
const SLACK_MIB: u64 = 256;

/// A folder with all that a VMM needs to boot it.
#[derive(Clone, Debug)]
pub(crate) struct DebianGuest {
    folder: PathBuf,
}

impl DebianGuest {
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let folder = cache.path(&pin.cache_name("debian-guest", LAYOUT));
        ensure!(folder.is_dir(), "no Debian guest in the cache");
        Ok(Self { folder })
    }

    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        let hooks = [disable(&NOT_STARTED), NO_PASSWORD.to_owned()];
        let root = bootstrap(pin, &hooks, cache, apt, build)?;
        let made = build.join("debian-guest");
        fs::create_dir(&made).with_context(|| format!("cannot create {}", made.display()))?;
        for (prefix, name) in [("vmlinuz-", KERNEL), ("initrd.img-", INITRAMFS)] {
            let from = only_entry(&root.join("boot"), prefix)?;
            fs::copy(&from, made.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        make_disk(&root, &made.join(IMAGE), SLACK_MIB)?;
        let folder = cache.keep(&made, &pin.cache_name("debian-guest", LAYOUT))?;
        Ok(Self { folder })
    }

    /// The root, an ext4 file system without partitions.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.folder.join(KERNEL)
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.folder.join(INITRAMFS)
    }

    /// Copies image, kernel and initramfs to a folder, which is made.
    pub(crate) fn copy_to(&self, target: &Path) -> Result<()> {
        fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
        for from in [self.image(), self.kernel(), self.initramfs()] {
            let name = from.file_name().context("a file without a name")?;
            fs::copy(&from, target.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        Ok(())
    }
}
