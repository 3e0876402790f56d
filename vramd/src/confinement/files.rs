//! Landlock: which files a process may still open by their names, once it has what it needs.
//!
//! The filters of system calls know calls, not paths. This knows paths, and the kernel looks at them for all threads that are started
//! later. What is open stays open. Kernels before 5.13, and those that were started without it, have no Landlock: then only the filters and
//! the user's rights count, and the log says so.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// What is known of Landlock here (Linux 6.12); an older kernel enforces the part that it knows.
const KNOWN: ABI = ABI::V6;

/// What a process may do below a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Make files, write to them and remove them.
    Write,
    /// Make a socket, take over that of a dead server, and remove it.
    Listen,
    /// Read and change files that are there.
    Change,
    /// Look up what the kernel says in a file.
    Read,
}

impl Use {
    fn access(self) -> BitFlags<AccessFs> {
        match self {
            Use::Write => AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Truncate,
            Use::Listen => AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir,
            Use::Change => AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::Truncate,
            Use::Read => BitFlags::from(AccessFs::ReadFile),
        }
    }
}

/// How much of it the kernel enforces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Enforced {
    /// Every rule, as far as this program knows them.
    Fully,
    /// An older kernel's part.
    InPart,
    /// The kernel has no Landlock, or it is off.
    Not,
}

/// The folder that a file lies in.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_path_buf()
}

/// Forbids this thread and all that it starts to open any file but as `uses` say, to execute any, TCP, and signals to and abstract
/// sockets of other processes. This cannot be undone.
pub(crate) fn restrict(uses: &[(PathBuf, Use)]) -> anyhow::Result<Enforced> {
    let what = "cannot restrict which files are opened";
    let mut ruleset = ruleset(CompatLevel::BestEffort).context(what)?;
    for (path, of) in uses {
        let held = PathFd::new(path).with_context(|| format!("{what}: {}", path.display()))?;
        ruleset = ruleset
            .add_rule(PathBeneath::new(held, of.access()))
            .context(what)?;
    }
    Ok(match ruleset.restrict_self().context(what)?.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::InPart,
        RulesetStatus::NotEnforced => Enforced::Not,
    })
}

fn ruleset(level: CompatLevel) -> Result<landlock::RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
}

/// Whether this kernel would enforce all of it. Restricts nothing.
pub(crate) fn is_known_to_kernel() -> bool {
    ruleset(CompatLevel::HardRequirement).is_ok()
}

/// A folder that everybody may list and no process here needs to.
const FORBIDDEN: &str = "/";

/// Tries what is forbidden, and says in the log how it is. An error if the kernel says that it enforces the rules and does not.
pub(crate) fn try_out(enforced: Enforced) -> anyhow::Result<()> {
    let is_refused =
        File::open(FORBIDDEN).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    match (enforced, is_refused) {
        (Enforced::Not, _) => {
            log::warn!(
                "landlock: not enforced: this kernel has none, so files are kept by this user's rights alone"
            );
        }
        (_, false) => bail!("landlock: the kernel says it is enforced, but {FORBIDDEN} can be listed"),
        (Enforced::InPart, true) => {
            log::warn!("landlock: enforced in part: this kernel knows an older version of it")
        }
        (Enforced::Fully, true) => {
            log::info!("landlock: enforced, {FORBIDDEN} cannot be listed any more")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restricted_thread_opens_what_it_may_and_nothing_else_where_the_kernel_has_landlock() {
        let folder = tempfile::tempdir().unwrap();
        let (mine, other) = (folder.path().join("mine"), folder.path().join("other"));
        for path in [&mine, &other] {
            std::fs::create_dir(path).unwrap();
        }
        // On a thread of its own, for a test's thread is the harness'.
        let restricted = std::thread::spawn(move || {
            let enforced = restrict(&[(mine.clone(), Use::Write)]).unwrap();
            let make = |path: &Path| {
                let mut options = File::options();
                options.write(true).create_new(true).open(path.join("file"))
            };
            (enforced, make(&mine).is_ok(), make(&other).is_err())
        });
        let (enforced, made, is_forbidden) = restricted.join().unwrap();
        assert!(made);
        assert_eq!(is_forbidden, enforced != Enforced::Not);
        assert_eq!(enforced == Enforced::Fully, is_known_to_kernel());
    }

    #[test]
    fn enforced_rules_that_let_a_folder_be_listed_are_an_error() {
        let error = try_out(Enforced::Fully).unwrap_err().to_string();
        assert!(error.contains("says it is enforced, but"), "{error}");
        try_out(Enforced::Not).unwrap();
    }

    #[test]
    fn folder_of_a_bare_name_is_the_present_one() {
        assert_eq!(folder_of(Path::new("a.sock")), Path::new("."));
        assert_eq!(folder_of(Path::new("/run/a.sock")), Path::new("/run"));
    }
}
