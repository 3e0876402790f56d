//! `cargo xtask host-env`: fetches the programs and images that tests in virtual machines need, once, and keeps
//! them in the user's cache.
//!
//! They are QEMU, Debian's kernel with the modules of nouveau, KVM and VFIO, a static busybox, a disk with
//! Mesa, and one with a Debian that has systemd; a Debian guest comes when it is used, and so do tools that check the control API and the
//! Prometheus that pictures are drawn from. `integration/host-env.toml` pins their versions. Packages are unpacked, never installed here, and
//! only the cache folder changes. Both Debians need root, the others do not.

mod apt;
mod bootstrap;
mod cache;
mod cpio;
mod debian_disk;
mod debian_guest;
mod guest_root;
mod kernel;
mod pins;
mod prometheus;
mod python;
mod qemu;
mod vmlinux;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use apt::Apt;
use cache::Cache;
pub(crate) use debian_disk::DebianDisk;
pub(crate) use debian_guest::DebianGuest;
use guest_root::Busybox;
pub(crate) use guest_root::{GuestFile, MesaDisk, PAYLOAD};
pub(crate) use kernel::{DRIVER, Kernel};
use pins::{Pin, Pins};
pub(crate) use qemu::{Qemu, QemuOfGuest};

/// Modes besides fetching missing entries.
#[derive(clap::Args)]
pub(crate) struct HostEnvArguments {
    /// Fetch nothing; fail if something is missing
    #[arg(long)]
    check: bool,
    /// Also put a Debian guest there: the image of its root, its kernel and its initramfs
    #[arg(long, value_name = "FOLDER")]
    debian_guest: Option<PathBuf>,
    /// Rewrite the pins to what Debian offers now, and fetch that
    #[arg(long, conflicts_with = "check")]
    move_pins: bool,
}

/// Everything that a test in a virtual machine needs.
#[derive(Debug)]
pub(crate) struct HostEnv {
    pub(crate) qemu: Qemu,
    pub(crate) kernel: Kernel,
    busybox: Busybox,
    pub(crate) mesa: MesaDisk,
}

/// Pins, cache, and apt once a package has to be fetched.
struct Provider {
    pins: Pins,
    cache: Cache,
    may_fetch: bool,
    apt: Option<(Apt, tempfile::TempDir)>,
}

impl HostEnv {
    /// Everything, fetched where it is missing.
    pub(crate) fn provide(workspace: &Workspace) -> Result<Self> {
        Provider::new(workspace, true)?.everything()
    }

    /// Writes a guest's first root, with `files` in it.
    pub(crate) fn write_first_root(&self, target: &Path, files: &[GuestFile]) -> Result<()> {
        guest_root::write_first_root(target, &self.kernel, &self.busybox, files)
    }

    /// Writes the first root of a Debian host, with `files` in it.
    pub(crate) fn write_host_root(&self, target: &Path, files: &[GuestFile]) -> Result<()> {
        guest_root::write_host_root(target, &self.kernel, &self.busybox, files)
    }

    /// Writes the first root of a guest within a guest, which has no modules but those of disks, network and power button.
    pub(crate) fn write_inner_root(&self, target: &Path) -> Result<()> {
        guest_root::write_inner_root(target, &self.kernel, &self.busybox)
    }

    /// Writes the first root of a guest within a guest that says when it came up, and waits.
    pub(crate) fn write_marking_root(&self, target: &Path) -> Result<()> {
        guest_root::write_marking_root(target, &self.busybox)
    }
}

impl Provider {
    fn new(workspace: &Workspace, may_fetch: bool) -> Result<Self> {
        Ok(Self {
            pins: Pins::load(workspace)?,
            cache: Cache::of_user()?,
            may_fetch,
            apt: None,
        })
    }

    fn everything(&mut self) -> Result<HostEnv> {
        // All missing entries are reported together.
        let pins = self.pins.clone();
        let qemu = self.one("QEMU", &pins.qemu, Qemu::find, Qemu::fetch);
        let kernel = self.one("kernel", &pins.kernel, Kernel::find, Kernel::fetch);
        let busybox = self.one("busybox", &pins.busybox, Busybox::find, Busybox::fetch);
        let mesa = self.one("Mesa", &pins.mesa, MesaDisk::find, MesaDisk::fetch);
        let errors = [
            qemu.as_ref().err(),
            kernel.as_ref().err(),
            busybox.as_ref().err(),
            mesa.as_ref().err(),
        ];
        let missing: Vec<_> = errors
            .into_iter()
            .flatten()
            .map(|error| format!("{error:#}"))
            .collect();
        match (qemu, kernel, busybox, mesa) {
            (Ok(qemu), Ok(kernel), Ok(busybox), Ok(mesa)) => Ok(HostEnv {
                qemu,
                kernel,
                busybox,
                mesa,
            }),
            _ => bail!("{}", missing.join("\n       ")),
        }
    }

    fn debian(&mut self) -> Result<DebianDisk> {
        let pin = self.pins.debian.clone();
        self.one("Debian", &pin, DebianDisk::find, DebianDisk::fetch)
    }

    fn debian_guest(&mut self) -> Result<DebianGuest> {
        let Pins {
            debian_guest,
            kernel,
            mesa,
            ..
        } = self.pins.clone();
        let pin = debian_guest.with([&kernel, &mesa]);
        self.one("Debian guest", &pin, DebianGuest::find, DebianGuest::fetch)
    }

    fn of_prometheus(&mut self, program: &str, pin: &Pin) -> Result<PathBuf> {
        self.one(
            program,
            pin,
            |pin, cache| prometheus::find(program, pin, cache),
            |pin, cache, apt, build| prometheus::fetch(program, pin, cache, apt, build),
        )
    }

    fn one<T>(
        &mut self,
        what: &str,
        pin: &Pin,
        find: impl Fn(&Pin, &Cache) -> Result<T>,
        fetch: impl Fn(&Pin, &Cache, &Apt, &Path) -> Result<T>,
    ) -> Result<T> {
        let found = find(pin, &self.cache);
        if found.is_ok() || !self.may_fetch {
            return found.with_context(|| format!("{what} is missing"));
        }
        let start = Instant::now();
        let cache = self.cache.clone();
        let (apt, build) = self
            .apt()
            .with_context(|| format!("{what} is missing and cannot be fetched"))?;
        let packages: Vec<_> = pin
            .packages
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        println!(
            "{what}: fetching {} of {} from {}",
            packages.join(", "),
            pin.suite,
            apt.mirror()
        );
        let fetched = fetch(pin, &cache, apt, build)
            .with_context(|| format!("{what} is missing and cannot be fetched"))?;
        println!("{what}: fetched in {:.1} s", start.elapsed().as_secs_f64());
        Ok(fetched)
    }

    fn apt(&mut self) -> Result<(&Apt, &Path)> {
        if self.apt.is_none() {
            let build = self.cache.build_folder()?;
            let pins = &self.pins;
            let suites = pins.all().map(|pin| pin.suite.as_str());
            let mut suites = suites.to_vec();
            suites.sort_unstable();
            suites.dedup();
            let apt = Apt::new(&build.path().join("apt"), &suites)?;
            self.apt = Some((apt, build));
        }
        let (apt, build) = self.apt.as_ref().context("apt was made above")?;
        Ok((apt, build.path()))
    }

    /// The text of the pins, each moved to what its suite offers.
    fn moved(&mut self, text: &str) -> Result<String> {
        let pins = self.pins.clone();
        let (apt, _) = self.apt()?;
        let mut text = text.to_owned();
        for pin in pins.all() {
            for (old, version) in &pin.packages {
                let new = match &pin.meta {
                    Some(meta) => apt.dependency(&pin.suite, meta)?,
                    None => old.clone(),
                };
                let offered = apt.candidate(&pin.suite, &new)?;
                if (&new, &offered) != (old, version) {
                    println!("{old} {version} becomes {new} {offered}");
                }
                text = pins::replace(&text, old, &new, &offered)?;
            }
        }
        Ok(text)
    }
}

/// Only QEMU, fetched if need be.
pub(crate) fn provide_qemu(workspace: &Workspace) -> Result<Qemu> {
    let mut provider = Provider::new(workspace, true)?;
    let pin = provider.pins.qemu.clone();
    provider.one("QEMU", &pin, Qemu::find, Qemu::fetch)
}

/// Only promtool, fetched if need be: how to start it.
pub(crate) fn provide_promtool(workspace: &Workspace) -> Result<PathBuf> {
    let mut provider = Provider::new(workspace, true)?;
    let pin = provider.pins.promtool.clone();
    provider.of_prometheus(prometheus::PROMTOOL, &pin)
}

/// Only the server of Prometheus, fetched if need be: how to start it.
pub(crate) fn provide_prometheus(workspace: &Workspace) -> Result<PathBuf> {
    let mut provider = Provider::new(workspace, true)?;
    let pin = provider.pins.prometheus.clone();
    provider.of_prometheus(prometheus::SERVER, &pin)
}

/// A Python with the packages of a file of requirements, whose path is from the root of the workspace.
pub(crate) fn provide_python(workspace: &Workspace, requirements: &str) -> Result<PathBuf> {
    python::provide(&workspace.root().join(requirements), &Cache::of_user()?)
}

/// Only the disk with a Debian, made if need be.
pub(crate) fn provide_debian(workspace: &Workspace) -> Result<DebianDisk> {
    Provider::new(workspace, true)?.debian()
}

/// Writes the image of a disk that holds what is in `folder`, and no more.
pub(crate) fn write_disk(folder: &Path, image: &Path) -> Result<()> {
    guest_root::make_disk(folder, image, 1)
}

/// Only the Debian guest, made if need be.
pub(crate) fn provide_debian_guest(workspace: &Workspace) -> Result<DebianGuest> {
    Provider::new(workspace, true)?.debian_guest()
}

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &HostEnvArguments) -> Result<()> {
    let start = Instant::now();
    if arguments.move_pins {
        let path = workspace.root().join(pins::PATH);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let moved = Provider::new(workspace, true)?.moved(&text)?;
        std::fs::write(&path, moved).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut provider = Provider::new(workspace, !arguments.check)?;
    let environment = provider.everything()?;
    provider.debian()?;
    if let Some(folder) = &arguments.debian_guest {
        provider.debian_guest()?.copy_to(folder)?;
    }
    println!("{}", environment.qemu.version);
    for pin in &provider.pins.all()[1..] {
        for (name, version) in &pin.packages {
            println!("{name} {version}");
        }
    }
    println!(
        "everything is in {} ({:.1} s)",
        provider.cache.folder().display(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
