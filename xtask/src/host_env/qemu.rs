//! A QEMU that has `vfio-user-pci`: the machine's own, or one kept in the cache.
//!
//! Where the machine's is too old, packages of a release that has a newer one are unpacked into the cache. Nothing is
//! installed on the machine: no root, no chroot. The unpacked program is started by its own dynamic loader.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::guest_root::{GuestFile, libraries_of};
use super::pins::Pin;

const PROGRAM: &str = "qemu-system-x86_64";
const DEVICE: &str = "vfio-user-pci";
/// Debian's small build of QEMU, for the machine `microvm`.
const MICROVM_PROGRAM: &str = "qemu-system-x86_64-microvm";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Firmware that PCs and `microvm` start from; those that exist are used.
const FIRMWARE: [&str; 6] = [
    "bios-256k.bin",
    "bios-microvm.bin",
    "kvmvapic.bin",
    "linuxboot_dma.bin",
    "pvh.bin",
    "qboot.rom",
];
const DATA_FOLDERS: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];
/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

/// A QEMU that can be started.
#[derive(Debug)]
pub(crate) struct Qemu {
    words: Vec<OsString>,
    /// Folder that it was unpacked to; `None` for the machine's own.
    root: Option<PathBuf>,
    /// The first line of its version text.
    pub(crate) version: String,
}

impl Qemu {
    /// The machine's own if it will do, otherwise the cached one.
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let version_min = version_min(pin)?;
        if let Ok(qemu) = Self::check(None, version_min) {
            return Ok(qemu);
        }
        let root = cache.path(&pin.cache_name("qemu", LAYOUT));
        Self::check(Some(&root), version_min)
            .with_context(|| format!("no {PROGRAM} with {DEVICE} here: install QEMU {version_min} or later"))
    }

    /// Fetches one into the cache.
    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        ensure!(cfg!(target_arch = "x86_64"), "it can be fetched for x86-64 only");
        let version_min = version_min(pin)?;
        let packages = apt.download_all(&pin.suite, &pin.packages)?;
        let unpacked = build.join("qemu");
        apt::unpack(&packages, &unpacked)?;
        Self::check(Some(&unpacked), version_min).context("the unpacked packages")?;
        let root = cache.keep(&unpacked, &pin.cache_name("qemu", LAYOUT))?;
        Self::check(Some(&root), version_min)
    }

    /// The one below `root`, or else the machine's own.
    fn check(root: Option<&Path>, version_min: Version) -> Result<Self> {
        let words = root.map_or_else(|| vec![OsString::from(PROGRAM)], relocated);
        Self::check_words(words, root, version_min)
    }

    fn check_words(words: Vec<OsString>, root: Option<&Path>, version_min: Version) -> Result<Self> {
        let qemu = |arguments: &[&str]| apt::output(command(&words).args(arguments));
        let told = qemu(&["--version"])?;
        let version = parse_version(&told).with_context(|| format!("no version in {told:?}"))?;
        ensure!(
            version >= version_min,
            "QEMU {version} is older than {version_min}"
        );
        let devices = qemu(&["-device", "help"])?;
        ensure!(
            devices.contains(&format!("\"{DEVICE}\"")),
            "QEMU {version} was built without {DEVICE}"
        );
        let version = told.lines().next().unwrap_or_default().to_owned();
        let root = root.map(Path::to_owned);
        Ok(Self { words, root, version })
    }

    /// A command that starts it, without arguments of ours.
    pub(crate) fn command(&self) -> Command {
        command(&self.words)
    }

    /// The files that a guest needs to start it too, all in one `folder` there.
    pub(crate) fn for_guest(&self, folder: &str) -> Result<QemuOfGuest> {
        let program = match &self.root {
            Some(root) => root.join("usr/bin").join(PROGRAM),
            None => in_path(PROGRAM).context("QEMU is not in PATH any more")?,
        };
        let mut from = self.libraries(&program)?;
        let microvm = program.with_file_name(MICROVM_PROGRAM);
        let has_microvm = microvm.is_file();
        if has_microvm {
            from.extend(self.libraries(&microvm)?);
            from.push(microvm);
        }
        from.push(program);
        let told = apt::output(self.command().args(["-L", "help"]))?;
        let found = |name: &&str| {
            let places = told.lines().map(|data| Path::new(data).join(name));
            places.into_iter().find(|place| place.is_file())
        };
        from.extend(FIRMWARE.iter().filter_map(found));
        from.sort_unstable_by(|one, other| one.file_name().cmp(&other.file_name()));
        from.dedup_by(|one, other| one.file_name() == other.file_name());
        let to = |from: PathBuf| {
            let name = from.file_name().unwrap_or_default().to_string_lossy();
            GuestFile {
                to: format!("{folder}/{name}"),
                from,
            }
        };
        let start =
            |program| format!("/{folder}/{LOADER} --library-path /{folder} /{folder}/{program} -L /{folder}");
        Ok(QemuOfGuest {
            files: from.into_iter().map(to).collect(),
            command: start(PROGRAM),
            microvm_command: start(if has_microvm { MICROVM_PROGRAM } else { PROGRAM }),
        })
    }

    /// The files that `program` loads, its loader among them.
    fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let Some(root) = &self.root else {
            return libraries_of(Command::new("ldd").arg(program));
        };
        let libraries = root.join(LIBRARIES);
        let mut list = Command::new(libraries.join(LOADER));
        list.arg("--library-path")
            .arg(&libraries)
            .arg("--list")
            .arg(program);
        libraries_of(&mut list)
    }
}

/// A QEMU in a guest.
pub(crate) struct QemuOfGuest {
    pub(crate) files: Vec<GuestFile>,
    /// Starts it, without arguments of ours.
    pub(crate) command: String,
    /// Starts it for the machine `microvm`, without arguments of ours.
    pub(crate) microvm_command: String,
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

fn command(words: &[OsString]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or(OsStr::new(PROGRAM), OsString::as_os_str));
    command.args(words);
    command
}

/// The words that start the program below `root` with the loader, libraries and firmware from there.
fn relocated(root: &Path) -> Vec<OsString> {
    let libraries = root.join(LIBRARIES);
    let mut words = vec![
        libraries.join("ld-linux-x86-64.so.2").into_os_string(),
        "--library-path".into(),
        libraries.into_os_string(),
        root.join("usr/bin").join(PROGRAM).into_os_string(),
    ];
    for folder in DATA_FOLDERS {
        words.extend(["-L".into(), root.join(folder).into_os_string()]);
    }
    words
}

fn version_min(pin: &Pin) -> Result<Version> {
    let text = pin
        .version_min
        .as_deref()
        .context("the pin of QEMU has no version_min")?;
    parse_numbers(text).with_context(|| format!("version_min {text:?} is not a version"))
}

/// `10.1` of `QEMU emulator version 10.1.2 (...)`.
fn parse_version(told: &str) -> Option<Version> {
    parse_numbers(told.split_once("version ")?.1)
}

fn parse_numbers(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some(Version(number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_MIN: Version = Version(10, 1);

    #[test]
    fn version_is_read_from_what_qemu_says() {
        let version = |told| parse_version(told);
        assert_eq!(
            version("QEMU emulator version 7.2.17 (Debian 1:7.2+dfsg-7)\n"),
            Some(Version(7, 2))
        );
        assert_eq!(
            version("QEMU emulator version 11.1.3\nCopyright"),
            Some(Version(11, 1))
        );
        assert_eq!(version("QEMU emulator"), None);
        assert_eq!(version("QEMU emulator version x.y"), None);
        assert!(Version(10, 0) < VERSION_MIN && Version(10, 2) > VERSION_MIN && Version(11, 0) > VERSION_MIN);
    }

    #[test]
    fn program_that_is_no_qemu_is_refused() {
        assert!(Qemu::check_words(vec!["true".into()], None, VERSION_MIN).is_err());
        assert!(Qemu::check_words(vec!["no-such-program-anywhere".into()], None, VERSION_MIN).is_err());
    }
}
