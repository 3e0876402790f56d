//! A QEMU that has `vfio-user-pci`: the machine's own, or one kept in a cache folder.
//!
//! Where the machine's is too old, the packages of a Debian release that has a newer one are fetched by apt, with its
//! checks of signatures, from the mirror that this machine is configured for, and unpacked into the cache. Nothing is
//! installed on the machine: no root, no chroot. The unpacked program is started by its own dynamic loader.
//!
//! The cache is `$VRAMD_CACHE`, or `vramd` in the user's cache folder.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// The first QEMU that has `vfio-user-pci`.
const VERSION_MIN: Version = Version(10, 1);
/// Releases whose packages are taken: a base, and the suite of the newer QEMU.
const BASE_SUITE: &str = "trixie";
const QEMU_SUITE: &str = "trixie-backports";
const PACKAGE: &str = "qemu-system-x86";

const PROGRAM: &str = "qemu-system-x86_64";
const DEVICE: &str = "vfio-user-pci";
/// Keys of the Debian archive, as its package installs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const DATA_FOLDERS: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

/// A QEMU that can be started.
#[derive(Debug)]
pub(super) struct Qemu {
    words: Vec<OsString>,
    /// The first line of what it says about its version.
    pub(super) version: String,
}

impl Qemu {
    /// The machine's own, else the cached one, else one that is fetched now.
    pub(super) fn find_or_fetch() -> Result<Self> {
        let own = vec![OsString::from(PROGRAM)];
        if let Ok(qemu) = Self::check(own) {
            return Ok(qemu);
        }
        ensure!(
            cfg!(target_arch = "x86_64"),
            "no {PROGRAM} with {DEVICE} here, and it can be fetched for x86-64 only: install QEMU {VERSION_MIN} or later"
        );
        let root = cache_folder()?.join("qemu-root");
        let cached = Self::check(relocated(&root));
        if cached.is_ok() {
            return cached;
        }
        fetch(&root).with_context(|| {
            format!("no {PROGRAM} with {DEVICE} on this machine, and none can be fetched: install QEMU {VERSION_MIN} or later")
        })?;
        Self::check(relocated(&root)).context("the QEMU that was fetched is of no use")
    }

    fn check(words: Vec<OsString>) -> Result<Self> {
        let qemu = |arguments: &[&str]| -> Result<String> {
            let output = command(&words).args(arguments).output()?;
            ensure!(
                output.status.success(),
                "{words:?} {arguments:?} ended with {}",
                output.status
            );
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let told = qemu(&["--version"])?;
        let version = parse_version(&told).with_context(|| format!("no version in {told:?}"))?;
        ensure!(
            version >= VERSION_MIN,
            "QEMU {version} is older than {VERSION_MIN}"
        );
        let devices = qemu(&["-device", "help"])?;
        ensure!(
            devices.contains(&format!("\"{DEVICE}\"")),
            "QEMU {version} was built without {DEVICE}"
        );
        let version = told.lines().next().unwrap_or_default().to_owned();
        Ok(Self { words, version })
    }

    /// A command that starts it, without arguments of ours.
    pub(super) fn command(&self) -> Command {
        command(&self.words)
    }
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

/// `10.1` of `QEMU emulator version 10.1.2 (...)`.
fn parse_version(told: &str) -> Option<Version> {
    let mut numbers = told
        .split_once("version ")?
        .1
        .split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some(Version(number()?, number()?))
}

fn cache_folder() -> Result<PathBuf> {
    let folder = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = folder("VRAMD_CACHE")
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("vramd")))
        .or_else(|| Some(folder("HOME")?.join(".cache/vramd")))
        .context("set VRAMD_CACHE: there is no HOME to keep QEMU in")?;
    std::path::absolute(folder).context("no absolute path of the cache folder")
}

/// Makes `root` anew: apt's state and the packages beside it first, so that nobody meets half of it.
fn fetch(root: &Path) -> Result<()> {
    let mirror = mirror()?;
    ensure!(
        Path::new(KEYRING).is_file(),
        "{KEYRING} is missing (package debian-archive-keyring)"
    );
    let cache = root.parent().context("the cache folder has no parent")?;
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let build = tempfile::tempdir_in(cache).context("cannot create a folder in the cache")?;
    let start = Instant::now();
    println!(
        "fetching {PACKAGE} of {QEMU_SUITE} from {mirror} into {}",
        cache.display()
    );
    let apt = Apt::new(build.path(), &mirror)?;
    let packages = apt.download()?;
    let unpacked = build.path().join("root");
    fs::create_dir(&unpacked)?;
    for package in &packages {
        succeed(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(&unpacked),
        )?;
    }
    Qemu::check(relocated(&unpacked)).context("the unpacked packages")?;
    match fs::remove_dir_all(root) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", root.display()));
        }
        _ => {}
    }
    // Another run may have been quicker; what it left is checked by our caller.
    if let Err(error) = fs::rename(&unpacked, root)
        && !root.is_dir()
    {
        return Err(error).with_context(|| format!("cannot create {}", root.display()));
    }
    println!(
        "{} packages in {:.1} s",
        packages.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Where this machine gets its Debian packages from.
fn mirror() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let value = |key: &str| {
        let line = release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    ensure!(
        value("ID").as_deref() == Some("debian"),
        "only a Debian machine knows a mirror of the packages"
    );
    let codename = value("VERSION_CODENAME").context("/etc/os-release names no release")?;
    // Asked this way it need not have fetched any list yet.
    let output = Command::new("apt-get")
        .args(["update", "--print-uris"])
        .output()
        .context("cannot start apt-get")?;
    ensure!(
        output.status.success(),
        "apt-get update --print-uris ended with {}",
        output.status
    );
    choose_mirror(&String::from_utf8_lossy(&output.stdout), &codename)
        .with_context(|| format!("apt is not configured for a mirror of {codename}"))
}

/// Of lines `'URI/dists/release/InRelease' ...`, the URI of the machine's own release.
fn choose_mirror(targets: &str, codename: &str) -> Option<String> {
    let of = |name: &str| {
        let end = format!("/dists/{name}/InRelease'");
        let line = targets
            .lines()
            .find_map(|line| line.strip_prefix('\'')?.split_once(&end));
        line.map(|(uri, _)| uri.to_owned())
    };
    [codename, "oldstable", "stable", "testing", "unstable"]
        .into_iter()
        .find_map(of)
}

/// apt with a state of its own: it believes that nothing is installed, so it fetches whatever QEMU needs.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: &Path, mirror: &str) -> Result<Self> {
        ensure!(!mirror.contains(char::is_whitespace), "{mirror:?} is no URI");
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("status"), "")?;
        let sources = format!(
            "Types: deb\nURIs: {mirror}\nSuites: {BASE_SUITE} {QEMU_SUITE}\nComponents: main\nSigned-By: {KEYRING}\n"
        );
        fs::write(folder.join("debian.sources"), sources)?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// apt-get with the machine's configuration of proxies and credentials, but nothing else of it.
    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        let folders = [
            ("Dir::Etc::sourcelist", "debian.sources"),
            ("Dir::State", ""),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", ""),
            ("Dir::Cache::archives", "archives"),
        ];
        for (name, path) in folders {
            let mut option = OsString::from(format!("{name}="));
            option.push(self.folder.join(path));
            command.arg("-o").arg(option);
        }
        let options = [
            "Dir::Etc::sourceparts=/dev/null",
            "Dir::Etc::preferences=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
            "APT::Architecture=amd64",
            "APT::Architectures=amd64",
            "APT::Install-Recommends=false",
            // apt's own user cannot enter somebody's cache folder.
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
        ];
        for option in options {
            command.args(["-o", option]);
        }
        command.env("LC_ALL", "C");
        command
    }

    fn download(&self) -> Result<Vec<PathBuf>> {
        succeed(self.command().args(["-qq", "update"]))?;
        let install = [
            "-qq",
            "--yes",
            "--download-only",
            "--target-release",
            QEMU_SUITE,
            "install",
            PACKAGE,
        ];
        succeed(self.command().args(install))?;
        let archives = fs::read_dir(self.folder.join("archives"))?;
        let mut packages: Vec<_> = archives
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        packages.retain(|path| path.extension() == Some(OsStr::new("deb")));
        ensure!(!packages.is_empty(), "apt-get fetched no package");
        Ok(packages)
    }
}

/// Runs a command whose output matters only if it fails.
fn succeed(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{:?} ended with {}: {}",
            command.get_program(),
            output.status,
            said.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn mirror_is_that_of_the_own_release() {
        let line = |uri, release| format!("'{uri}/dists/{release}/InRelease' some_file 0 \n");
        let targets = line("http://a/security", "bookworm-security")
            + &line("http://b", "nodistro")
            + &line("http://c/debian", "bookworm");
        assert_eq!(
            choose_mirror(&targets, "bookworm").as_deref(),
            Some("http://c/debian")
        );
        assert_eq!(
            choose_mirror(&line("http://d", "stable"), "bookworm").as_deref(),
            Some("http://d")
        );
        assert_eq!(choose_mirror(&targets, "trixie"), None);
    }

    #[test]
    fn program_that_is_no_qemu_is_refused() {
        assert!(Qemu::check(vec!["true".into()]).is_err());
        assert!(Qemu::check(vec!["no-such-program-anywhere".into()]).is_err());
    }
}
