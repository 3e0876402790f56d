//! The folder that a package is made of, and the package.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

/// What debhelper reads.
const DEBIAN: &str = "vramd/debian";
const UNITS: &str = "vramd/systemd";
const EXAMPLES: &str = "docs/examples";
/// The configuration that a host begins with.
const HOST: &str = "host.toml";
const PROGRAMS: [&str; 2] = ["vramd", "vramd-vm"];
/// Pages for whoever runs it.
const PAGES: [&str; 6] = [
    "docs/control.md",
    "docs/install.md",
    "docs/operating.md",
    "docs/quotas.md",
    "docs/status.md",
    "docs/vfio-user.md",
];
/// What those pages show.
const PICTURES: &str = "docs/pictures";
/// What each shell reads, by the name that it looks for.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "vramd"), ("zsh", "_vramd"), ("fish", "vramd.fish")];
/// Programs that make a package, each with the Debian package that has it.
const TOOLS: [(&str, &str); 2] = [("dh", "debhelper"), ("dpkg-buildpackage", "dpkg-dev")];

/// What a later version ends with.
const LATER: &str = "+later";

/// A package that was made, and where it is.
pub(crate) struct Packed {
    pub(crate) file: PathBuf,
    pub(crate) version: String,
    pub(crate) bytes: u64,
}

/// Refuses, with the way out, if a program is missing that makes packages.
pub(crate) fn check_tools() -> Result<()> {
    for (tool, package) in TOOLS {
        // Not each of them answers without a folder to work in.
        let is_there = Command::new("sh")
            .args(["-c", "command -v \"$0\"", tool])
            .output();
        ensure!(
            is_there.is_ok_and(|output| output.status.success()),
            "{tool} is not installed (apt-get install {package})"
        );
    }
    Ok(())
}

/// Makes a package of `vramd` and the program beside it, and puts it into `output`.
pub(crate) fn make(workspace: &Workspace, vramd: &Path, version: &str, output: &Path) -> Result<Packed> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    // Packages are made beside the folder of their parts.
    let parts = folder.path().join("parts");
    lay_out(workspace, vramd, version, &parts)?;
    let mut build = Command::new("dpkg-buildpackage");
    build.args(["--build=binary", "--no-sign", "--no-pre-clean"]);
    // The programs are for that processor only.
    build.arg("--host-arch=amd64").current_dir(&parts);
    succeed(&mut build).context("cannot make the package")?;
    let name = format!("vramd_{version}_amd64.deb");
    let (made, file) = (folder.path().join(&name), output.join(&name));
    let bytes = fs::copy(&made, &file).with_context(|| format!("cannot copy {}", made.display()))?;
    Ok(Packed {
        file,
        version: version.to_owned(),
        bytes,
    })
}

/// Makes another package of what `first` holds: of a later version, and with a comment at the end of its configuration.
pub(crate) fn make_later(first: &Packed, comment: &str, output: &Path) -> Result<Packed> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let parts = folder.path().join("parts");
    succeed(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .arg(&first.file)
            .arg(&parts),
    )?;
    let version = format!("{}{LATER}", first.version);
    let (old, new) = (
        format!("Version: {}\n", first.version),
        format!("Version: {version}\n"),
    );
    change(&parts.join("DEBIAN/control"), |text| text.replacen(&old, &new, 1))?;
    change(&parts.join("etc/vramd").join(HOST), |text| {
        format!("{text}\n# {comment}\n")
    })?;
    let file = output.join("later.deb");
    let mut build = Command::new("dpkg-deb");
    // Files are root's there, whoever makes it.
    build.args(["--root-owner-group", "-Znone", "--build"]);
    succeed(build.arg(&parts).arg(&file))?;
    let bytes = fs::metadata(&file)
        .with_context(|| format!("cannot look at {}", file.display()))?
        .len();
    Ok(Packed { file, version, bytes })
}

/// Writes another text to a file; one that is as it was is an error.
fn change(file: &Path, change: impl FnOnce(&str) -> String) -> Result<()> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let changed = change(&text);
    ensure!(changed != text, "{shown} is as it was");
    fs::write(file, changed).with_context(|| format!("cannot write {shown}"))
}

fn lay_out(workspace: &Workspace, vramd: &Path, version: &str, parts: &Path) -> Result<()> {
    let root = workspace.root();
    copy_folder(&root.join(DEBIAN), &parts.join("debian"))?;
    fs::write(
        parts.join("debian/changelog"),
        changelog(version, &date(workspace)?),
    )
    .context("cannot write the changelog")?;
    copy_folder(&root.join(UNITS), &parts.join("systemd"))?;
    copy_folder(&root.join(EXAMPLES), &parts.join("examples"))?;
    fs::copy(root.join(DEBIAN).join(HOST), parts.join(HOST)).context("cannot copy the configuration")?;
    for (folder, files) in [("docs", &PAGES[..]), ("programs", &PROGRAMS)] {
        let folder = parts.join(folder);
        fs::create_dir(&folder).context("cannot create a folder")?;
        for file in files {
            let from = match PROGRAMS.contains(file) {
                true => vramd.with_file_name(file),
                false => root.join(file),
            };
            let to = folder.join(from.file_name().context("a file has a name")?);
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    copy_folder(&root.join(PICTURES), &parts.join(PICTURES))?;
    succeed(Command::new(vramd).arg("man").arg(parts.join("man")))?;
    let completions = parts.join("completions");
    fs::create_dir(&completions).context("cannot create a folder")?;
    for (shell, name) in COMPLETIONS {
        let script = succeed(Command::new(vramd).args(["completions", shell]))?;
        fs::write(completions.join(name), script).context("cannot write a completion")?;
    }
    Ok(())
}

/// The time of the last commit, in the form that Debian wants: the same sources give the same package.
fn date(workspace: &Workspace) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "log", "-1", "--format=%cD"]);
    let dated = succeed(git.current_dir(workspace.root()));
    // An exported tree has no commits.
    let date = dated.or_else(|_| succeed(Command::new("date").arg("--rfc-email")))?;
    Ok(String::from_utf8_lossy(&date).trim().to_owned())
}

fn changelog(version: &str, date: &str) -> String {
    format!(
        "vramd ({version}) unstable; urgency=medium\n\n  * Version {version}.\n\n -- The vramd authors <maintainers@vramd.example>  {date}\n"
    )
}

/// Copies the files of a folder with their modes, and its folders.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            // The tree of whoever keeps it to himself is for everybody in a package.
            let mode = entry.metadata()?.permissions().mode() | 0o044;
            fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

/// Runs a command that must succeed; returns what it printed.
fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output();
    let output = output.with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        bail!("{:?} ended with {}: {said}", command.get_program(), output.status);
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changelog_begins_with_name_and_version() {
        let text = changelog("1.2.3", "Wed, 25 Nov 2026 03:00:00 +0000");
        assert!(text.starts_with("vramd (1.2.3) unstable;"), "{text}");
        assert!(text.ends_with(">  Wed, 25 Nov 2026 03:00:00 +0000\n"), "{text}");
    }

    #[test]
    fn failing_command_is_an_error_with_what_it_said() {
        let error = succeed(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("one\ntwo") && text.contains('3'), "{text}");
    }
}
