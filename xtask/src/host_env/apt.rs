//! Debian packages by apt, without root and without a change to this machine.
//!
//! apt runs with a state of its own, in which nothing is installed, so that it fetches all that a package needs. It
//! checks signatures against the machine's Debian keys, and takes the mirror that this machine is configured for.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::pins::{self, Packages};

/// The release that all suites belong to.
const BASE_SUITE: &str = "trixie";
/// Keys of the Debian archive, as its package installs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// apt with lists of its own in a folder.
pub(super) struct Apt {
    folder: PathBuf,
    mirror: String,
}

impl Apt {
    /// Fetches the lists of the base and of `suites` into `folder`.
    pub(super) fn new(folder: &Path, suites: &[&str]) -> Result<Self> {
        let mirror = mirror()?;
        ensure!(!mirror.contains(char::is_whitespace), "{mirror:?} is no URI");
        ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is missing (package debian-archive-keyring)"
        );
        for name in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        fs::write(folder.join("status"), "")?;
        let mut all = vec![BASE_SUITE];
        all.extend(suites.iter().filter(|suite| **suite != BASE_SUITE));
        let suites = all.join(" ");
        let sources =
            format!("Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n");
        fs::write(folder.join("debian.sources"), sources)?;
        let apt = Self {
            folder: folder.to_owned(),
            mirror,
        };
        output(apt.command("apt-get").args(["-qq", "update"]))
            .context("cannot fetch Debian's lists of packages")?;
        Ok(apt)
    }

    /// The mirror that packages come from.
    pub(super) fn mirror(&self) -> &str {
        &self.mirror
    }

    /// The line by which another apt finds `suite`.
    pub(super) fn source(&self, suite: &str) -> String {
        format!("deb [signed-by={KEYRING}] {} {suite} main", self.mirror)
    }

    /// The packages as apt takes them by name and version, each of which is offered.
    pub(super) fn exact(&self, packages: &Packages) -> Result<Vec<String>> {
        self.check(packages)?;
        Ok(exact(packages).collect())
    }

    /// A program of apt's with the machine's configuration of proxies and credentials, but nothing else of it.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
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
            // apt's own user cannot enter the user's cache folder.
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

    /// Versions of `package` that the suites offer.
    fn offered(&self, package: &str) -> Result<Vec<String>> {
        let said = output(self.command("apt-cache").args(["madison", package]))?;
        Ok(parse_madison(&said))
    }

    /// Refuses, with the way out, unless every package is offered at its version.
    fn check(&self, packages: &Packages) -> Result<()> {
        for (name, version) in packages {
            let offered = self.offered(name)?;
            if !offered.contains(version) {
                let offered = if offered.is_empty() {
                    "none".to_owned()
                } else {
                    offered.join(", ")
                };
                bail!(
                    "{name} is pinned at {version}, which Debian no longer offers (now: {offered}): move the pins in \
                     {} with `cargo xtask host-env --move-pins` and see that the scenarios still pass",
                    pins::PATH
                );
            }
        }
        Ok(())
    }

    /// Fetches the packages themselves, without their dependencies.
    pub(super) fn download_alone(&self, packages: &Packages) -> Result<Vec<PathBuf>> {
        self.check(packages)?;
        let archives = self.emptied_archives()?;
        let mut command = self.command("apt-get");
        command.args(["-qq", "download"]).current_dir(&archives);
        output(command.args(exact(packages)))?;
        downloaded(&archives)
    }

    /// Fetches the packages and all their dependencies.
    pub(super) fn download_all(&self, suite: &str, packages: &Packages) -> Result<Vec<PathBuf>> {
        self.check(packages)?;
        let archives = self.emptied_archives()?;
        let mut command = self.command("apt-get");
        command.args([
            "-qq",
            "--yes",
            "--download-only",
            "--target-release",
            suite,
            "install",
        ]);
        output(command.args(exact(packages)))?;
        downloaded(&archives)
    }

    fn emptied_archives(&self) -> Result<PathBuf> {
        let archives = self.folder.join("archives");
        fs::remove_dir_all(&archives)?;
        fs::create_dir_all(archives.join("partial"))?;
        Ok(archives)
    }

    /// The version of `package` that apt would take from `suite` today.
    pub(super) fn candidate(&self, suite: &str, package: &str) -> Result<String> {
        let mut command = self.command("apt-cache");
        command.args(["-o", &format!("APT::Default-Release={suite}"), "policy", package]);
        let said = output(&mut command)?;
        let candidate = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "));
        let candidate = candidate.filter(|version| *version != "(none)");
        Ok(candidate
            .with_context(|| format!("{suite} offers no {package}"))?
            .to_owned())
    }

    /// The first package that `meta` depends on.
    pub(super) fn dependency(&self, suite: &str, meta: &str) -> Result<String> {
        let version = self.candidate(suite, meta)?;
        let said = output(
            self.command("apt-cache")
                .args(["show", &format!("{meta}={version}")]),
        )?;
        let depends = said.lines().find_map(|line| line.strip_prefix("Depends: "));
        let first = depends.and_then(|list| list.split([',', ' ']).next());
        Ok(first
            .with_context(|| format!("{meta} depends on nothing"))?
            .to_owned())
    }
}

fn exact(packages: &Packages) -> impl Iterator<Item = String> + '_ {
    packages.iter().map(|(name, version)| format!("{name}={version}"))
}

fn downloaded(archives: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(archives)?;
    let mut packages: Vec<_> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    packages.retain(|path| path.extension() == Some(OsStr::new("deb")));
    packages.sort();
    ensure!(!packages.is_empty(), "apt-get fetched no package");
    Ok(packages)
}

/// Unpacks packages into a new folder. Nothing of them is run.
pub(super) fn unpack(packages: &[PathBuf], folder: &Path) -> Result<()> {
    fs::create_dir(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for package in packages {
        output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(folder))?;
    }
    Ok(())
}

/// The second columns of `name | version | source`.
fn parse_madison(said: &str) -> Vec<String> {
    let lines = said.lines().filter_map(|line| line.split('|').nth(1));
    let mut versions: Vec<_> = lines.map(|version| version.trim().to_owned()).collect();
    versions.dedup();
    versions
}

/// The mirror from which this machine gets its Debian packages.
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
    let targets = output(Command::new("apt-get").args(["update", "--print-uris"]))?;
    choose_mirror(&targets, &codename)
        .with_context(|| format!("apt is not configured for a mirror of {codename}"))
}

/// The URI of the machine's own release, from lines `'URI/dists/release/InRelease' ...`.
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

/// Runs a command that must succeed; returns its standard output.
pub(super) fn output(command: &mut Command) -> Result<String> {
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
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn versions_on_offer_are_read() {
        let said = " libgbm1 | 26.1.6-1~bpo13+1 | http://a trixie-backports/main amd64 Packages\n   libgbm1 | 25.0.7-2 | \
                    http://a trixie/main amd64 Packages\n";
        assert_eq!(parse_madison(said), ["26.1.6-1~bpo13+1", "25.0.7-2"]);
        assert!(parse_madison("").is_empty());
    }

    #[test]
    fn failing_command_is_an_error_with_its_last_words() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("exit status: 3: why"), "{error}");
        assert_eq!(output(Command::new("echo").arg("a")).unwrap(), "a\n");
    }
}
