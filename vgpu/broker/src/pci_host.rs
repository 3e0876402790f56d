//! PCI functions of this host, as `/sys` shows them, and the drivers that they are bound to.
//!
//! ```text
//! /sys/bus/pci/devices/0000:01:00.0/{vendor, device, class, driver, driver_override, iommu_group/devices/…}
//! ```
//!
//! Sources: Linux `Documentation/ABI/testing/sysfs-bus-pci`, `Documentation/driver-api/vfio.rst`.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fermi_spec::board::{Board, VENDOR};

/// The driver that gives functions to programs.
pub const VFIO_DRIVER: &str = "vfio-pci";
const SYSFS: &str = "/sys";
/// Class code of a bridge: the VFIO driver leaves bridges in a group alone.
const CLASS_BRIDGE: u8 = 0x06;

/// Domain, bus, device and function: `0000:01:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is not the address of a PCI function.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a PCI address such as 0000:01:00.0")]
pub struct PciAddressError {
    /// The text as given.
    pub text: String,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Reads an address with or without the domain, which is 0 then.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| PciAddressError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.split_once('.')?;
    let mut parts = rest.rsplit(':');
    let device = hex(parts.next()?, 2)?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 4))?;
    let function = hex(function, 1)?;
    let is_valid = parts.next().is_none() && device < 32 && function < 8;
    is_valid.then_some(PciAddress {
        domain,
        bus: bus as u8,
        device: device as u8,
        function: function as u8,
    })
}

fn hex(text: &str, digits: usize) -> Option<u16> {
    let is_plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| u16::from_str_radix(text, 16).ok())?
}

/// Why a function of this host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PciHostError {
    /// There is no function at that address.
    #[error("there is no PCI function {at}: look for it in lspci -D")]
    Missing {
        /// Address of the function.
        at: PciAddress,
    },
    /// The function is not a GF100 card.
    #[error("{at} is {vendor:04x}:{device:04x} of class {class:06x}, not a GF100 card")]
    NotACard {
        /// Address of the function.
        at: PciAddress,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
        /// Class, subclass, programming interface.
        class: u32,
    },
    /// Neither the function nor another of its IOMMU group is a GF100 card.
    #[error(
        "{at} is {vendor:04x}:{device:04x} of class {class:06x}: neither it nor a function of its IOMMU group is a GF100 card, and vramd \
         takes no other device from the host"
    )]
    NotOfACard {
        /// Address of the function.
        at: PciAddress,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
        /// Class, subclass, programming interface.
        class: u32,
    },
    /// Another driver has the function, or none.
    #[error("{at} is bound to {driver}, not to {VFIO_DRIVER}: vramd bind {at}")]
    WrongDriver {
        /// Address of the function.
        at: PciAddress,
        /// Name of the driver, or "no driver".
        driver: String,
    },
    /// The host has no IOMMU, or does not use it.
    #[error(
        "{at} has no IOMMU group: the host needs an IOMMU that is on (intel_iommu=on or amd_iommu=on in the kernel's command line, VT-d or AMD-Vi in the firmware)"
    )]
    NoIommu {
        /// Address of the function.
        at: PciAddress,
    },
    /// The host uses other functions of the group.
    #[error(
        "{at} shares its IOMMU group with {other}, which is bound to {driver}: vramd bind {other}, or take it out of the host"
    )]
    SharedGroup {
        /// Address of the function.
        at: PciAddress,
        /// Address of the other function.
        other: PciAddress,
        /// Driver of the other function.
        driver: String,
    },
    /// The host's files have unexpected contents, or may not be written.
    #[error("cannot {what} {}", path.display())]
    Sysfs {
        /// What was attempted.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
}

/// A PCI function of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PciFunction {
    /// Address of the function.
    pub at: PciAddress,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// Class, subclass, programming interface.
    pub class: u32,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Number of its IOMMU group.
    pub group: Option<u32>,
    sysfs: PathBuf,
}

impl PciFunction {
    /// Reads the function's files.
    pub fn find(at: PciAddress) -> Result<Self, PciHostError> {
        Self::find_below(Path::new(SYSFS), at)
    }

    fn find_below(sysfs: &Path, at: PciAddress) -> Result<Self, PciHostError> {
        let folder = folder_of(sysfs, at);
        if !folder.is_dir() {
            return Err(PciHostError::Missing { at });
        }
        Ok(Self {
            at,
            vendor: number(&folder.join("vendor"))? as u16,
            device: number(&folder.join("device"))? as u16,
            class: number(&folder.join("class"))?,
            driver: link_name(&folder.join("driver")),
            group: link_name(&folder.join("iommu_group")).and_then(|name| name.parse().ok()),
            sysfs: sysfs.to_owned(),
        })
    }

    /// All functions of the host that are GF100 cards.
    pub fn cards() -> Result<Vec<Self>, PciHostError> {
        let mut cards = Vec::new();
        for at in addresses(&Path::new(SYSFS).join("bus/pci/devices"))? {
            let function = Self::find(at)?;
            if function.board().is_some() {
                cards.push(function);
            }
        }
        Ok(cards)
    }

    /// Its folder in `/sys`.
    pub fn folder(&self) -> PathBuf {
        folder_of(&self.sysfs, self.at)
    }

    /// Board of the card, if it is a known one.
    pub fn board(&self) -> Option<Board> {
        Board::from_device_id(self.device).filter(|_| self.vendor == VENDOR)
    }

    /// Its driver in words.
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("no driver")
    }

    /// The other functions in its IOMMU group.
    pub(crate) fn group_peers(&self) -> Result<Vec<Self>, PciHostError> {
        let peers = addresses(&self.folder().join("iommu_group/devices"))?;
        let peers = peers.into_iter().filter(|at| *at != self.at);
        peers.map(|at| Self::find_below(&self.sysfs, at)).collect()
    }

    /// Whether a program may have it: a GF100 card, bound to VFIO, in a group without functions that the host uses.
    pub fn check(&self) -> Result<Board, PciHostError> {
        let at = self.at;
        let board = self.board().ok_or(PciHostError::NotACard {
            at,
            vendor: self.vendor,
            device: self.device,
            class: self.class,
        })?;
        if self.group.is_none() {
            return Err(PciHostError::NoIommu { at });
        }
        if self.driver.as_deref() != Some(VFIO_DRIVER) {
            let driver = self.driver_name().to_owned();
            return Err(PciHostError::WrongDriver { at, driver });
        }
        for peer in self.group_peers()? {
            let is_bridge = (peer.class >> 16) as u8 == CLASS_BRIDGE;
            match peer.driver {
                Some(driver) if driver != VFIO_DRIVER && !is_bridge => {
                    return Err(PciHostError::SharedGroup {
                        at,
                        other: peer.at,
                        driver,
                    });
                }
                _ => {}
            }
        }
        Ok(board)
    }

    /// Whether it is a GF100 card, or shares its IOMMU group with one, which then no program could have without it.
    pub fn check_is_of_a_card(&self) -> Result<(), PciHostError> {
        let peers = match self.group {
            Some(_) => self.group_peers()?,
            None => Vec::new(),
        };
        let is_of_a_card = [self]
            .into_iter()
            .chain(&peers)
            .any(|function| function.board().is_some());
        match is_of_a_card {
            true => Ok(()),
            false => Err(PciHostError::NotOfACard {
                at: self.at,
                vendor: self.vendor,
                device: self.device,
                class: self.class,
            }),
        }
    }

    /// Takes it from its driver and gives it to `driver`, or to the one that the host would choose.
    ///
    /// The override is written first, so that no other driver takes it in between.
    pub fn rebind(&self, driver: Option<&str>) -> Result<Self, PciHostError> {
        let folder = self.folder();
        // A lone line break removes the override.
        write(&folder.join("driver_override"), driver.unwrap_or("\n"))?;
        if self.driver.is_some() {
            write(&folder.join("driver/unbind"), &self.at.to_string())?;
        }
        write(&self.sysfs.join("bus/pci/drivers_probe"), &self.at.to_string())?;
        Self::find_below(&self.sysfs, self.at)
    }
}

fn folder_of(sysfs: &Path, at: PciAddress) -> PathBuf {
    sysfs.join("bus/pci/devices").join(at.to_string())
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PciHostError + 'a {
    move |source| PciHostError::Sysfs {
        what,
        path: path.to_owned(),
        source,
    }
}

fn write(path: &Path, text: &str) -> Result<(), PciHostError> {
    fs::write(path, text).map_err(failed("write", path))
}

fn number(path: &Path) -> Result<u32, PciHostError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    let digits = text.trim().trim_start_matches("0x");
    u32::from_str_radix(digits, 16)
        .map_err(|error| failed("read a number from", path)(io::Error::other(error)))
}

fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Names of a folder that are addresses, sorted.
fn addresses(folder: &Path) -> Result<Vec<PciAddress>, PciHostError> {
    let entries = fs::read_dir(folder).map_err(failed("list", folder))?;
    let names = entries.map(|entry| Ok(entry.map_err(failed("list", folder))?.file_name()));
    let names = names.collect::<Result<Vec<_>, PciHostError>>()?;
    let mut found: Vec<_> = names
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Address, vendor, device, class, driver, group.
    type Function = (&'static str, u16, u16, u32, Option<&'static str>, Option<u32>);

    /// A host with functions.
    fn host(functions: &[Function]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (at, vendor, device, class, driver, group) in functions {
            let folder = root.path().join("bus/pci/devices").join(at);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), format!("0x{vendor:04x}\n")).unwrap();
            fs::write(folder.join("device"), format!("0x{device:04x}\n")).unwrap();
            fs::write(folder.join("class"), format!("0x{class:06x}\n")).unwrap();
            if let Some(driver) = driver {
                let target = root.path().join("bus/pci/drivers").join(driver);
                fs::create_dir_all(&target).unwrap();
                symlink(target, folder.join("driver")).unwrap();
            }
            if let Some(group) = group {
                let target = root.path().join("kernel/iommu_groups").join(group.to_string());
                fs::create_dir_all(target.join("devices").join(at)).unwrap();
                symlink(target, folder.join("iommu_group")).unwrap();
            }
        }
        root
    }

    fn check(root: &tempfile::TempDir) -> Result<Board, PciHostError> {
        PciFunction::find_below(root.path(), CARD.parse().unwrap())?.check()
    }

    const CARD: &str = "0000:01:00.0";
    const AUDIO: &str = "0000:01:00.1";
    const GTX480: u16 = 0x06c0;
    const VGA: u32 = 0x03_0000;

    #[test]
    fn addresses_are_read_with_and_without_domain() {
        for text in [CARD, "01:00.0"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), CARD);
        }
        for text in [
            "",
            "1:00.0",
            "01:00",
            "01:20.0",
            "01:00.8",
            "0:0:1:0.0",
            "01:00.0x",
            "+1:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn card_in_a_group_of_its_own_is_usable() {
        let root = host(&[(CARD, VENDOR, GTX480, VGA, Some(VFIO_DRIVER), Some(3))]);
        assert_eq!(check(&root).unwrap(), Board::from_device_id(GTX480).unwrap());
    }

    #[test]
    fn each_obstacle_is_named_with_its_remedy() {
        let missing = check(&host(&[])).unwrap_err().to_string();
        assert!(missing.contains("no PCI function 0000:01:00.0"), "{missing}");
        let other = host(&[(CARD, 0x8086, 0x100e, 0x02_0000, Some("e1000"), Some(3))]);
        let other = check(&other).unwrap_err().to_string();
        assert!(other.contains("8086:100e"), "{other}");
        let bound = host(&[(CARD, VENDOR, GTX480, VGA, Some("nouveau"), Some(3))]);
        let bound = check(&bound).unwrap_err().to_string();
        assert!(
            bound.contains("nouveau") && bound.contains("vramd bind"),
            "{bound}"
        );
        let loose = host(&[(CARD, VENDOR, GTX480, VGA, Some(VFIO_DRIVER), None)]);
        let loose = check(&loose).unwrap_err().to_string();
        assert!(loose.contains("IOMMU"), "{loose}");
    }

    #[test]
    fn device_of_the_host_is_not_taken_for_a_card() {
        let card = (CARD, VENDOR, GTX480, VGA, Some("nouveau"), Some(3));
        let audio = (AUDIO, VENDOR, 0x0be5, 0x04_0300, Some("snd_hda_intel"), Some(3));
        let disk = "0000:00:01.0";
        let root = host(&[
            card,
            audio,
            (disk, 0x1af4, 0x1001, 0x01_0000, Some("virtio-pci"), Some(4)),
        ]);
        // The kernel's links lead to folders with all members.
        let group = root.path().join("kernel/iommu_groups/3");
        assert_eq!(fs::read_dir(group.join("devices")).unwrap().count(), 2);
        let check = |at: &str| {
            let function = PciFunction::find_below(root.path(), at.parse().unwrap());
            function.unwrap().check_is_of_a_card()
        };
        check(CARD).unwrap();
        check(AUDIO).unwrap();
        let refusal = check(disk).unwrap_err().to_string();
        assert!(
            refusal.contains("1af4:1001") && refusal.contains("takes no other device"),
            "{refusal}"
        );
    }

    #[test]
    fn group_with_a_function_of_the_host_is_refused_and_one_without_is_not() {
        let card = (CARD, VENDOR, GTX480, VGA, Some(VFIO_DRIVER), Some(3));
        let audio = |driver| host(&[card, (AUDIO, VENDOR, 0x0be5, 0x04_0300, driver, Some(3))]);
        let error = check(&audio(Some("snd_hda_intel"))).unwrap_err().to_string();
        assert!(
            error.contains(AUDIO) && error.contains("snd_hda_intel"),
            "{error}"
        );
        assert!(check(&audio(None)).is_ok());
        assert!(check(&audio(Some(VFIO_DRIVER))).is_ok());
        let bridge = host(&[
            card,
            (
                "0000:00:01.0",
                0x8086,
                0x1901,
                0x06_0400,
                Some("pcieport"),
                Some(3),
            ),
        ]);
        assert!(check(&bridge).is_ok());
    }
}
