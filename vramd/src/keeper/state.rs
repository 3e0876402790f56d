//! What operators said while the broker ran, as a file: it is there again when the broker is started anew.
//!
//! The file is replaced as a whole: the new one is written beside it and takes its name when the broker has done what it says. A
//! broker that dies in between has the old one. Nobody else writes to it: a lock beside it keeps a second broker away.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use broker::SocketAccess;
use control::{Bound, Hold};
use serde::{Deserialize, Serialize};
use vgpu::{Quota, VmConfig};

use crate::config::VmSection;

/// Form of the file. Another one is refused.
const VERSION: u32 = 1;
/// Bytes of the longest file that is read: 64 VMs on each of several cards have less than a tenth.
const BYTES_MAX: u64 = 4 << 20;

/// All that operators said and that still holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    /// By the name of the card.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) gpus: BTreeMap<String, KeptGpu>,
    /// By the name of the VM.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) vms: BTreeMap<String, KeptVm>,
}

/// What was said, and what the host's file said at that time: `None` if it had no such thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) file: Option<T>,
}

/// Of a card.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptGpu {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_ram_bytes: Option<Kept<u64>>,
}

/// Of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptVm {
    #[serde(default, skip_serializing_if = "KeptQuota::is_empty")]
    pub(super) quota: KeptQuota,
    #[serde(default, skip_serializing_if = "is_nothing_held")]
    pub(super) hold: Hold,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<KeptPlace>,
}

/// What was said of a quota, word by word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptQuota {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<Kept<Bound>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) low: Option<Kept<Bound>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) high: Option<Kept<Bound>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<Kept<Bound>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) weight: Option<Kept<u32>>,
}

/// What was said of a VM's place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum KeptPlace {
    /// It was attached, and the host's file does not have it.
    Given(Box<GivenPlace>),
    /// The host's file has it, and it was detached.
    Taken,
}

/// A VM that an operator attached: all of [`VmSection`] but its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GivenPlace {
    gpu: String,
    socket: PathBuf,
    group: Option<u32>,
    mode: Option<u32>,
    users: Option<Vec<u32>>,
    guest_vram_bytes: u64,
    chunk_bytes: u64,
    ram_bytes: u64,
    channels: u32,
    quota: control::Quota,
}

impl GivenPlace {
    pub(super) fn of(vm: &VmSection) -> Self {
        let VmConfig {
            guest_vram,
            chunk_bytes,
            quota,
            ram,
            channels,
            ..
        } = vm.config;
        Self {
            gpu: vm.gpu.clone(),
            socket: vm.socket.clone(),
            group: vm.access.group,
            mode: vm.access.mode,
            users: vm.access.users.clone(),
            guest_vram_bytes: guest_vram,
            chunk_bytes,
            ram_bytes: ram,
            channels,
            quota: quota_words(quota),
        }
    }

    pub(super) fn section(&self, name: &str) -> VmSection {
        VmSection {
            gpu: self.gpu.clone(),
            socket: self.socket.clone(),
            access: SocketAccess {
                owner: None,
                group: self.group,
                mode: self.mode,
                users: self.users.clone(),
            },
            config: VmConfig {
                name: name.to_owned(),
                guest_vram: self.guest_vram_bytes,
                chunk_bytes: self.chunk_bytes,
                quota: quota_bytes(self.quota),
                ram: self.ram_bytes,
                channels: self.channels,
            },
        }
    }
}

/// The words of the control API for a quota of the core.
pub(crate) fn quota_words(quota: Quota) -> control::Quota {
    control::Quota {
        min: quota.min.into(),
        low: quota.low.into(),
        high: quota.high.into(),
        max: quota.max.into(),
        weight: quota.weight,
    }
}

/// The other way.
pub(super) fn quota_bytes(quota: control::Quota) -> Quota {
    Quota {
        min: quota.min.bytes(),
        low: quota.low.bytes(),
        high: quota.high.bytes(),
        max: quota.max.bytes(),
        weight: quota.weight,
    }
}

fn is_nothing_held(hold: &Hold) -> bool {
    *hold == Hold::default()
}

impl KeptQuota {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What holds where the file, or whoever attached the VM, says `base`.
    pub(super) fn over(&self, base: Quota) -> Quota {
        let bytes = |kept: Option<Kept<Bound>>, otherwise| kept.map_or(otherwise, |kept| kept.value.bytes());
        Quota {
            min: bytes(self.min, base.min),
            low: bytes(self.low, base.low),
            high: bytes(self.high, base.high),
            max: bytes(self.max, base.max),
            weight: self.weight.map_or(base.weight, |kept| kept.value),
        }
    }
}

impl KeptVm {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            gpus: BTreeMap::new(),
            vms: BTreeMap::new(),
        }
    }
}

impl State {
    /// What is kept of a VM; nothing if there is nothing.
    pub(super) fn vm(&self, name: &str) -> KeptVm {
        self.vms.get(name).cloned().unwrap_or_default()
    }

    /// The same state with something else kept of a VM.
    pub(super) fn with_vm(&self, name: &str, kept: KeptVm) -> Self {
        let mut state = self.clone();
        match kept.is_empty() {
            true => drop(state.vms.remove(name)),
            false => drop(state.vms.insert(name.to_owned(), kept)),
        }
        state
    }

    /// The same state with something else kept of a card.
    pub(super) fn with_gpu(&self, name: &str, kept: KeptGpu) -> Self {
        let mut state = self.clone();
        match kept == KeptGpu::default() {
            true => drop(state.gpus.remove(name)),
            false => drop(state.gpus.insert(name.to_owned(), kept)),
        }
        state
    }
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    /// The file, or the lock beside it, cannot be used.
    #[error("cannot use state file {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another broker has it.
    #[error("state file {} is used by another vramd serve: name another by control.state", path.display())]
    Taken { path: PathBuf },
    /// It is none, or another version's.
    #[error("state file {}: {reason}: move it away, and what operators said is forgotten", path.display())]
    Malformed { path: PathBuf, reason: String },
}

/// The state file, which no other broker uses as long as this lives.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    /// Held open: the process may not open folders later.
    folder: File,
    /// Locked as long as this lives.
    _lock: File,
}

/// A state that is on the disk, beside the one that holds.
#[must_use]
pub(super) struct Pending<'a> {
    store: &'a Store,
    is_committed: bool,
}

impl Store {
    /// Takes the file at `path`, and reads what it says. A file that is not there says nothing.
    pub(crate) fn open(path: &Path) -> Result<(Self, State), StateError> {
        let failed = |source| StateError::File {
            path: path.to_owned(),
            source,
        };
        let lock = beside(path, "lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(lock)
            .map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => StateError::Taken {
                path: path.to_owned(),
            },
            fs::TryLockError::Error(source) => failed(source),
        })?;
        let folder = crate::confinement::files::folder_of(path);
        let store = Self {
            path: path.to_owned(),
            folder: File::open(folder).map_err(failed)?,
            _lock: lock,
        };
        let state = store.read()?;
        Ok((store, state))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<State, StateError> {
        let failed = |source| StateError::File {
            path: self.path.clone(),
            source,
        };
        let malformed = |reason: String| StateError::Malformed {
            path: self.path.clone(),
            reason,
        };
        let text = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.is_file() => return Err(malformed("it is no file".into())),
            Ok(found) if found.len() > BYTES_MAX => {
                return Err(malformed(format!("it has more than {BYTES_MAX} bytes")));
            }
            Ok(_) => fs::read_to_string(&self.path).map_err(failed)?,
        };
        // The version first: what follows may be of another form.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if version != VERSION {
            return Err(malformed(format!(
                "it is of version {version}, and this program knows {VERSION}"
            )));
        }
        serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))
    }

    /// Writes a state beside the one that holds.
    pub(super) fn write(&self, state: &State) -> io::Result<Pending<'_>> {
        let mut text = serde_json::to_vec_pretty(state).expect("names are text, and numbers are whole");
        text.push(b'\n');
        let new = beside(&self.path, "new");
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(new)?;
        // Dropped on an error: the file beside goes.
        let pending = Pending {
            store: self,
            is_committed: false,
        };
        file.write_all(&text)?;
        file.sync_all()?;
        Ok(pending)
    }
}

impl Pending<'_> {
    /// The state holds from now on.
    pub(super) fn commit(mut self) -> io::Result<()> {
        let path = &self.store.path;
        fs::rename(beside(path, "new"), path)?;
        self.is_committed = true;
        self.store.folder.sync_all()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            // The next one is written over it.
            let _ = fs::remove_file(beside(&self.store.path, "new"));
        }
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> State {
        let kept = KeptVm {
            quota: KeptQuota {
                max: Some(Kept {
                    value: Bound::Bytes(64 << 20),
                    file: Some(u64::MAX.into()),
                }),
                ..KeptQuota::default()
            },
            hold: Hold {
                vram_bytes: Some(0),
                is_suspended: false,
            },
            place: Some(KeptPlace::Taken),
        };
        State::default().with_vm("a", kept)
    }

    #[test]
    fn state_that_was_committed_is_read_again_and_one_that_was_not_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let (store, state) = Store::open(&path).unwrap();
        assert_eq!(state, State::default());
        drop(store.write(&some()).unwrap());
        assert_eq!(store.read().unwrap(), State::default());
        store.write(&some()).unwrap().commit().unwrap();
        assert_eq!(store.read().unwrap(), some());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 2, "the state and its lock");
    }

    #[test]
    fn second_broker_is_told_whose_the_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let first = Store::open(&path).unwrap();
        assert!(matches!(Store::open(&path), Err(StateError::Taken { .. })));
        drop(first);
        Store::open(&path).unwrap();
    }

    #[test]
    fn file_that_is_none_is_named_with_its_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let fault = |text: &str| {
            fs::write(&path, text).unwrap();
            Store::open(&path).unwrap_err().to_string()
        };
        for (text, named) in [
            ("", "EOF"),
            (r#"{"version":2,"new":{}}"#, "version 2"),
            (r#"{"version":1,"vm":{}}"#, "unknown field `vm`"),
            (
                r#"{"version":1,"vms":{"a":{"quota":{"max":{"value":-1,"file":null}}}}}"#,
                "line 1",
            ),
            (r#"{"version":1,"vms":[]}"#, "line 1"),
        ] {
            let fault = fault(text);
            assert!(fault.contains(named) && fault.contains("state.json"), "{fault}");
        }
    }

    #[test]
    fn place_that_was_given_is_the_same_section_again() {
        let section = VmSection {
            gpu: "gpu0".into(),
            socket: "/run/vramd/a.sock".into(),
            access: SocketAccess {
                owner: None,
                group: Some(7),
                mode: Some(0o660),
                users: Some(vec![1, 2]),
            },
            config: VmConfig {
                name: "a".into(),
                guest_vram: 64 << 20,
                chunk_bytes: 2 << 20,
                quota: Quota {
                    min: 1,
                    ..Quota::default()
                },
                ram: 1 << 30,
                channels: 3,
            },
        };
        let text = serde_json::to_string(&GivenPlace::of(&section)).unwrap();
        let read: GivenPlace = serde_json::from_str(&text).unwrap();
        assert_eq!(read.section("a"), section);
    }
}
