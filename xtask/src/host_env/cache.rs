//! The cache folder: `$VRAMD_CACHE`, or `vramd` in the user's cache folder.
//!
//! An entry is made beside its place and then renamed, so that no other run sees half of one, and never changes
//! again: its name contains a hash of its contents' versions.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

/// How long entries of other pins are kept.
const OTHERS_STAY: Duration = Duration::from_secs(7 * 24 * 3600);

/// The cache folder of one user.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache of this user.
    pub(super) fn of_user() -> Result<Self> {
        let folder = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let folder = folder("VRAMD_CACHE")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("vramd")))
            .or_else(|| Some(folder("HOME")?.join(".cache/vramd")))
            .context("set VRAMD_CACHE: there is no HOME to keep a cache in")?;
        Self::at(&std::path::absolute(folder).context("no absolute path of the cache folder")?)
    }

    fn at(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// The folder itself.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of the entry of that name, whether or not it exists.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A folder to make an entry in, on the same file system; it goes when dropped.
    pub(super) fn build_folder(&self) -> Result<tempfile::TempDir> {
        tempfile::tempdir_in(&self.folder).context("cannot create a folder in the cache")
    }

    /// Moves `made` to the place of the entry `name`, and removes old entries of that kind with other pins. Recent
    /// ones stay: another checkout may use them.
    ///
    /// Another run may have been quicker: its entry stays.
    pub(super) fn keep(&self, made: &Path, name: &str) -> Result<PathBuf> {
        let place = self.path(name);
        if let Err(error) = fs::rename(made, &place)
            && !place.exists()
        {
            return Err(error).with_context(|| format!("cannot create {}", place.display()));
        }
        // Unpacking gives files the times that they had when they were packed.
        let now = SystemTime::now();
        let dated = fs::File::open(&place).and_then(|entry| entry.set_modified(now));
        dated.with_context(|| format!("cannot date {}", place.display()))?;
        self.drop_others(name, now)?;
        Ok(place)
    }

    fn drop_others(&self, name: &str, now: SystemTime) -> Result<()> {
        let kind = name.split_once('-').map_or(name, |(kind, _)| kind);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let other = entry.file_name();
            let is_other = other
                .to_str()
                .and_then(|other| other.split_once('-'))
                .is_some_and(|(of, _)| of == kind);
            if !is_other || other == name {
                continue;
            }
            let age = now.duration_since(entry.metadata()?.modified()?);
            if age.is_ok_and(|age| age < OTHERS_STAY) {
                continue;
            }
            let path = entry.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_entry_replaces_old_ones_of_its_kind_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("cache")).unwrap();
        let long_ago = SystemTime::now() - 2 * OTHERS_STAY;
        for name in ["kernel-1", "mesa-1"] {
            fs::create_dir(cache.path(name)).unwrap();
            let entry = fs::File::open(cache.path(name)).unwrap();
            entry.set_modified(long_ago).unwrap();
        }
        fs::create_dir(cache.path("kernel-0")).unwrap();
        let build = cache.build_folder().unwrap();
        let made = build.path().join("made");
        fs::write(&made, "kernel").unwrap();
        let kept = cache.keep(&made, "kernel-2").unwrap();
        assert_eq!(fs::read_to_string(kept).unwrap(), "kernel");
        let is_there = ["kernel-0", "kernel-1", "mesa-1"].map(|name| cache.path(name).exists());
        assert_eq!(is_there, [true, false, true]);
    }

    #[test]
    fn entry_of_a_quicker_run_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        fs::create_dir_all(cache.path("kernel-1/full")).unwrap();
        let build = cache.build_folder().unwrap();
        let made = build.path().join("made");
        fs::create_dir(&made).unwrap();
        let kept = cache.keep(&made, "kernel-1").unwrap();
        assert!(kept.join("full").exists());
    }
}
