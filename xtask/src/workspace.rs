//! The root of the workspace, its files, and the way in which a task starts cargo.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Set by CI: from then on no check may be left out because a tool is missing.
const REQUIRE_TOOLS: &str = "VRAMD_REQUIRE_TOOLS";

/// The package that asks for all features of dependencies that any test does. Built beside it, others are made of the same parts.
const AS_TESTS: &str = "integration";

/// The fields that `cargo build` prints about a program that it has built.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
}

/// Runs a command of cargo and returns the paths of the programs that it builds.
fn build_by(mut cargo: Command) -> Result<Vec<PathBuf>> {
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "a program does not build");
    let lines = String::from_utf8(output.stdout).context("cargo says something that is not UTF-8")?;
    let programs = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Built>(line).ok()?.executable);
    Ok(programs.collect())
}

/// The checkout that this program was started in.
#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

#[derive(Deserialize)]
struct RootManifest {
    workspace: WorkspaceTable,
}

#[derive(Deserialize)]
struct WorkspaceTable {
    #[serde(default)]
    exclude: Vec<String>,
}

fn excluded_folders(manifest: &str) -> Result<Vec<String>> {
    let manifest: RootManifest = toml::from_str(manifest).context("cannot read the root Cargo.toml")?;
    Ok(manifest.workspace.exclude)
}

impl Workspace {
    /// The workspace of the package that cargo runs, or of the current directory if cargo did not start us.
    pub(crate) fn find() -> Result<Self> {
        let start = match std::env::var_os("CARGO_MANIFEST_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => std::env::current_dir().context("no current directory")?,
        };
        let is_root = |folder: &&Path| folder.join("Cargo.lock").is_file() && folder.join("xtask").is_dir();
        let root = start.ancestors().find(is_root);
        let root = root.with_context(|| format!("{} is not inside the workspace", start.display()))?;
        Ok(Self {
            root: root.to_path_buf(),
        })
    }

    /// The folder of the root manifest.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Tells that a check was left out for want of a tool; an error where `VRAMD_REQUIRE_TOOLS` is set, as on CI.
    pub(crate) fn lacks(what: &str) -> Result<()> {
        ensure!(!Self::requires_tools(), "{what}");
        eprintln!("NOTE: {what}");
        Ok(())
    }

    /// Whether no check may be left out: this is CI.
    pub(crate) fn requires_tools() -> bool {
        std::env::var_os(REQUIRE_TOOLS).is_some()
    }

    /// A cargo command in the root folder, by the cargo that runs us.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = Command::new(cargo);
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// Builds all programs of a package as tests have them, side by side, and returns the path of `program`.
    pub(crate) fn build_program(&self, package: &str, program: &str) -> Result<PathBuf> {
        self.build_programs(program, &["--bins", "--package", package, "--package", AS_TESTS])
    }

    /// Builds them for speed, and returns the path of `program`.
    pub(crate) fn build_release(&self, package: &str, program: &str) -> Result<PathBuf> {
        self.build_programs(program, &["--bins", "--release", "--package", package])
    }

    /// Builds one that needs a feature which no other build has, beside the others.
    pub(crate) fn build_program_with(&self, package: &str, program: &str, feature: &str) -> Result<PathBuf> {
        let feature = format!("{package}/{feature}");
        let which = [
            "--bin",
            program,
            "--package",
            package,
            "--package",
            AS_TESTS,
            "--features",
            &feature,
        ];
        self.build_programs(program, &which)
    }

    fn build_programs(&self, program: &str, which: &[&str]) -> Result<PathBuf> {
        let built = build_by(self.cargo(&[&["build"], which].concat()))?;
        let mut built = built.into_iter();
        let found = built.find(|path| path.file_name().is_some_and(|name| name == program));
        found.with_context(|| format!("cargo built no program {program}"))
    }

    /// Builds the only program of a package that is no member of the workspace, in its folder: its settings are there.
    pub(crate) fn build_apart(&self, folder: &str) -> Result<PathBuf> {
        let mut cargo = self.cargo(&["build", "--release", "--locked"]);
        cargo.current_dir(self.root.join(folder));
        let built = build_by(cargo).with_context(|| format!("in {folder}"))?;
        let program = built.into_iter().next_back();
        program.with_context(|| format!("cargo built no program in {folder}"))
    }

    /// Folders of the packages and workspaces outside of ours: cargo's `--workspace` does not reach them.
    pub(crate) fn folders_apart(&self) -> Result<Vec<PathBuf>> {
        let path = self.root.join("Cargo.toml");
        let manifest =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let folders = excluded_folders(&manifest)?.into_iter();
        let folders: Vec<_> = folders.map(|folder| self.root.join(folder)).collect();
        for folder in &folders {
            let is_there = folder.join("Cargo.toml").is_file();
            ensure!(
                is_there,
                "the root manifest excludes {}, which has no manifest",
                folder.display()
            );
        }
        Ok(folders)
    }

    /// Whether cargo has the subcommand `name` on this machine.
    pub(crate) fn has_cargo_tool(&self, name: &str) -> bool {
        self.cargo(&[name, "--version"])
            .output()
            .is_ok_and(|output| output.status.success())
    }

    /// Paths of our files, relative to the root, sorted: what git tracks or would track.
    ///
    /// An exported tree without `.git` is walked instead, without build output.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let mut files = if self.root.join(".git").exists() {
            self.git_files()?
        } else {
            self.walked_files()?
        };
        files.retain(|path| self.root.join(path).is_file());
        files.sort();
        files.dedup();
        ensure!(!files.is_empty(), "no file found below {}", self.root.display());
        Ok(files)
    }

    fn git_files(&self) -> Result<Vec<String>> {
        // CI often checks out as another user than the one that builds.
        let arguments = [
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ];
        let output = Command::new("git")
            .args(arguments)
            .current_dir(&self.root)
            .output();
        let output = output.context("cannot start git, which lists the files to check")?;
        if !output.status.success() {
            bail!(
                "git ls-files failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        Ok(names
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect())
    }

    fn walked_files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() && entry.file_name() != "target" {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    let path = entry.path();
                    let path = path
                        .strip_prefix(&self.root)?
                        .to_str()
                        .context("a file name is not UTF-8")?;
                    files.push(path.to_owned());
                }
            }
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn excluded_folders_come_from_the_root_manifest() {
        let manifest = "[workspace]\nmembers = [\"a\"]\nexclude = [\"guests/bare\", \"fuzz\"]\n";
        assert_eq!(excluded_folders(manifest).unwrap(), ["guests/bare", "fuzz"]);
        assert_eq!(excluded_folders("[workspace]\n").unwrap(), Vec::<String>::new());
        assert!(excluded_folders("[package]\n").is_err());
    }

    #[test]
    fn excluded_folder_without_a_manifest_is_an_error() {
        let folder = tree(&["here/Cargo.toml"]);
        let workspace = Workspace {
            root: folder.path().to_owned(),
        };
        let write = |excluded: &str| {
            let manifest = format!("[workspace]\nexclude = [{excluded}]\n");
            fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        };
        write("\"here\"");
        assert_eq!(workspace.folders_apart().unwrap(), [folder.path().join("here")]);
        write("\"here\", \"gone\"");
        assert!(
            workspace
                .folders_apart()
                .unwrap_err()
                .to_string()
                .contains("gone")
        );
    }

    #[test]
    fn tree_without_git_is_walked_without_build_output() {
        let folder = tree(&["a.rs", "b/c.md", "target/debug/d.rs"]);
        let workspace = Workspace {
            root: folder.path().to_owned(),
        };
        assert_eq!(workspace.files().unwrap(), ["a.rs", "b/c.md"]);
    }

    #[test]
    fn git_tree_lists_new_files_and_leaves_out_ignored_and_deleted_ones() {
        let folder = tree(&["a.rs", "gone.rs", "new.rs", "skip.log"]);
        fs::write(folder.path().join(".gitignore"), "*.log\n").unwrap();
        let git = |arguments: &[&str]| {
            Command::new("git")
                .args(arguments)
                .current_dir(&folder)
                .output()
                .unwrap()
        };
        assert!(git(&["init"]).status.success());
        assert!(git(&["add", "a.rs", "gone.rs"]).status.success());
        fs::remove_file(folder.path().join("gone.rs")).unwrap();
        let workspace = Workspace {
            root: folder.path().to_owned(),
        };
        assert_eq!(workspace.files().unwrap(), [".gitignore", "a.rs", "new.rs"]);
    }

    #[test]
    fn empty_tree_is_an_error() {
        let folder = tree(&[]);
        assert!(
            Workspace {
                root: folder.path().to_owned()
            }
            .files()
            .is_err()
        );
    }

    /// Dependencies with the features that they have when `which` is built; nothing of ours.
    fn features(which: &[&str]) -> std::collections::BTreeSet<String> {
        let mut tree = Workspace::find().unwrap().cargo(&[
            "tree",
            "--offline",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
        ]);
        let output = tree.args(which).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
        // Ours have a path.
        lines
            .filter(|line| !line.is_empty() && !line.contains(" (/"))
            .collect()
    }

    #[test]
    fn programs_are_made_of_what_tests_are_made_of() {
        let tests = features(&["--workspace", "--edges", "normal,build,dev"]);
        for package in ["vramd", "xtask", AS_TESTS] {
            let which = [
                "--package",
                package,
                "--package",
                AS_TESTS,
                "--edges",
                "normal,build",
            ];
            let others: Vec<_> = features(&which).difference(&tests).cloned().collect();
            assert!(
                others.is_empty(),
                "{package} has {others:?} with fewer features than tests have: integration/Cargo.toml names what lacks"
            );
        }
    }

    #[test]
    fn missing_cargo_tool_is_reported_missing() {
        let workspace = Workspace::find().unwrap();
        assert!(workspace.has_cargo_tool("fmt"));
        assert!(!workspace.has_cargo_tool("no-such-tool-anywhere"));
    }
}
