//! Debian's kernel, and the modules of it that guests load.
//!
//! Modules are decompressed here, once: an emulated processor takes seconds for it at every boot. No depmod is
//! needed: the modules themselves name their dependencies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::pins::Pin;
use super::vmlinux;

/// The driver under test.
pub(crate) const DRIVER: &str = "nouveau";
/// Modules for a guest with a disk: the disk, behind QEMU's PCI bus or in our VMM's memory space, the file system
/// on it, and the checksum that the file system asks for.
const DISK_MODULES: [&str; 4] = ["virtio_mmio", "virtio_blk", "crc32c_generic", "ext4"];
/// Modules for the network of a guest of our VMM.
const NETWORK_MODULES: [&str; 2] = ["virtio_mmio", "virtio_net"];
/// Modules that report the power button to programs.
const BUTTON_MODULES: [&str; 2] = ["button", "evdev"];
/// Modules for a guest that is itself a host of guests with a card and a network.
const HOST_MODULES: [&str; 4] = ["kvm_amd", "vfio_iommu_type1", "vfio_pci", "tun"];
/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 5;
const IMAGE: &str = "vmlinuz";
const MODULES: &str = "modules";
const DEPENDENCIES: &[u8] = b"\0depends=";

/// Files by name, with their contents.
pub(super) type Modules = Vec<(String, Vec<u8>)>;

/// Debian's kernel and its modules, unpacked in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let folder = cache.path(&pin.cache_name("kernel", LAYOUT));
        let (name, version) = pin.only()?;
        ensure!(folder.is_dir(), "no {name} {version} in the cache");
        Ok(Self { folder })
    }

    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        let unpacked = build.join("kernel-package");
        apt::unpack(&apt.download_alone(&pin.packages)?, &unpacked)?;
        let made = build.join("kernel");
        fs::create_dir_all(made.join(MODULES))?;
        let image = only_entry(&unpacked.join("boot"), "vmlinuz-")?;
        fs::copy(&image, made.join(IMAGE)).with_context(|| format!("cannot copy {}", image.display()))?;
        let packed = modules_below(&unpacked.join("usr/lib/modules"))?;
        let roots = [
            &DISK_MODULES[..],
            &NETWORK_MODULES,
            &BUTTON_MODULES,
            &HOST_MODULES,
            &[DRIVER],
        ]
        .concat();
        let mut modules = BTreeMap::new();
        let mut wanted: Vec<String> = roots.into_iter().map(str::to_owned).collect();
        while let Some(name) = wanted.pop() {
            if modules.contains_key(&name) {
                continue;
            }
            let Some(path) = packed.get(&name) else {
                // A dependency that is built into the kernel is never listed, so this is a
                // change of Debian's configuration.
                anyhow::bail!("the kernel has no module {name}");
            };
            let content = decompressed(path)?;
            wanted.extend(dependencies(&content));
            fs::write(made.join(MODULES).join(format!("{name}.ko")), &content)?;
            modules.insert(name, content.len());
        }
        let folder = cache.keep(&made, &pin.cache_name("kernel", LAYOUT))?;
        Ok(Self { folder })
    }

    /// The image that a machine boots.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    /// Writes the kernel of the image, uncompressed, to `target`.
    pub(crate) fn write_uncompressed(&self, target: &Path) -> Result<()> {
        let path = self.image();
        let image = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let kernel = vmlinux::of_bzimage(&image).with_context(|| path.display().to_string())?;
        fs::write(target, kernel).with_context(|| format!("cannot write {}", target.display()))
    }

    /// Modules that `root` needs and then itself, in an order that insmod accepts: (name, content).
    pub(super) fn modules_for(&self, root: &str) -> Result<Modules> {
        let mut order = Vec::new();
        self.add_module(root, &mut order)?;
        Ok(order)
    }

    fn add_module(&self, name: &str, order: &mut Modules) -> Result<()> {
        if order.iter().any(|(known, _)| known == name) {
            return Ok(());
        }
        let path = self.folder.join(MODULES).join(format!("{name}.ko"));
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for dependency in dependencies(&content) {
            self.add_module(&dependency, order)?;
        }
        order.push((name.to_owned(), content));
        Ok(())
    }

    /// Lists of modules that a guest loads by name, each in order: `driver` is what the driver needs, without itself.
    pub(super) fn module_lists(&self) -> Result<[(&'static str, Modules); 3]> {
        let mut driver = self.modules_for(DRIVER)?;
        driver.pop();
        let disk = self.modules_for_all(&DISK_MODULES)?;
        let host = self.modules_for_all(&HOST_MODULES)?;
        Ok([("driver", driver), ("disk", disk), ("host", host)])
    }

    /// The lists of a Debian host.
    pub(super) fn host_module_lists(&self) -> Result<[(&'static str, Modules); 3]> {
        let disk = self.modules_for_all(&DISK_MODULES)?;
        let host = self.modules_for_all(&HOST_MODULES)?;
        let button = self.modules_for_all(&BUTTON_MODULES)?;
        Ok([("disk", disk), ("host", host), ("button", button)])
    }

    /// The lists of a guest within a guest. The driver is to be added.
    pub(super) fn inner_module_lists(&self) -> Result<[(&'static str, Modules); 4]> {
        let mut driver = self.modules_for(DRIVER)?;
        driver.pop();
        let disk = self.modules_for_all(&DISK_MODULES)?;
        let network = self.modules_for_all(&NETWORK_MODULES)?;
        let button = self.modules_for_all(&BUTTON_MODULES)?;
        Ok([
            ("driver", driver),
            ("disk", disk),
            ("network", network),
            ("button", button),
        ])
    }

    fn modules_for_all(&self, roots: &[&str]) -> Result<Modules> {
        let mut order = Vec::new();
        for root in roots {
            self.add_module(root, &mut order)?;
        }
        Ok(order)
    }
}

pub(super) fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let names = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    let is_it = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let mut found = names.iter().filter(is_it);
    let only = found.next().filter(|_| found.next().is_none());
    Ok(only
        .with_context(|| format!("not one {prefix}* in {}", folder.display()))?
        .clone())
}

/// Module files by name, where a module's name has no dashes.
fn modules_below(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
                modules.insert(name, entry.path());
            }
        }
    }
    Ok(modules)
}

fn module_name(file: &str) -> Option<String> {
    let name = file.strip_suffix(".ko.xz").or_else(|| file.strip_suffix(".ko"))?;
    Some(name.replace('-', "_"))
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|extension| extension == "ko") {
        return fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let output = Command::new("xz")
        .arg("-dc")
        .arg(path)
        .output()
        .context("cannot start xz (package xz-utils)")?;
    ensure!(output.status.success(), "xz cannot decompress {}", path.display());
    Ok(output.stdout)
}

/// The modules that a module names in its section `.modinfo`, a list of strings that end with NUL.
fn dependencies(module: &[u8]) -> Vec<String> {
    let start = module
        .windows(DEPENDENCIES.len())
        .position(|part| part == DEPENDENCIES);
    let Some(start) = start.map(|start| start + DEPENDENCIES.len()) else {
        return Vec::new();
    };
    let end = module[start..]
        .iter()
        .position(|byte| *byte == 0)
        .map_or(module.len(), |end| start + end);
    let list = String::from_utf8_lossy(&module[start..end]);
    let names = list.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        let module = b"\x7fELF...\0license=GPL\0depends=drm,gpu-sched,ttm\0retpoline=Y\0";
        assert_eq!(dependencies(module), ["drm", "gpu_sched", "ttm"]);
        assert!(dependencies(b"\x7fELF\0depends=\0name=drm\0").is_empty());
        assert!(dependencies(b"\x7fELF").is_empty());
    }

    #[test]
    fn file_name_gives_the_name_of_a_module() {
        assert_eq!(module_name("mxm-wmi.ko.xz").as_deref(), Some("mxm_wmi"));
        assert_eq!(module_name("drm.ko").as_deref(), Some("drm"));
        assert_eq!(module_name("modules.order"), None);
    }

    #[test]
    fn dependencies_come_before_their_module_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join(MODULES);
        fs::create_dir(&modules).unwrap();
        for (name, needs) in [("a", "b,c"), ("b", "c"), ("c", "")] {
            fs::write(
                modules.join(format!("{name}.ko")),
                format!("ELF\0depends={needs}\0"),
            )
            .unwrap();
        }
        let kernel = Kernel {
            folder: folder.path().to_owned(),
        };
        let order: Vec<_> = kernel
            .modules_for("a")
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(order, ["c", "b", "a"]);
        assert!(kernel.modules_for("d").is_err());
    }
}
