//! What the host can still give, asked before a VM is promised any of it.
//!
//! Images of VMs take memory when they are first touched, long after the VM was let in, and by then nobody can be refused: the
//! kernel would kill a process. So what a VM may need is compared when it attaches with what is available, less what the VMs
//! before it may still come to need.
//!
//! The event loop opens no file, so all are opened when the broker starts and read from their beginnings each time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most bytes of a file of the kernel that are read: `memory.stat` has some 2 KiB.
const TEXT_MAX: usize = 16 << 10;

/// The host, or the control group, has too little memory for what a VM would be promised.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "its VRAM image may take {}M of host RAM and those of others {}M more than they have now, but {bound} leaves {}M: \
     a smaller guest_vram or host_ram, fewer VMs, or more memory",
    wanted >> 20, promised >> 20, available >> 20
)]
pub struct HostShort {
    /// Bytes that this VM may need.
    pub wanted: u64,
    /// Bytes that others were promised and have not touched yet.
    pub promised: u64,
    /// Bytes that the host has left.
    pub available: u64,
    /// What it is that leaves no more: the host's memory, or a control group by its folder.
    pub bound: String,
}

/// Where the kernel says how much memory is left.
#[derive(Debug)]
pub(crate) struct HostRoom {
    meminfo: Option<File>,
    groups: Vec<Group>,
}

/// A control group with memory (cgroup v2), of this process or above it.
#[derive(Debug)]
struct Group {
    folder: String,
    max: File,
    current: File,
    stat: File,
}

/// A file of the kernel from its beginning.
fn text_of(file: &File) -> Option<String> {
    let mut text = vec![0; TEXT_MAX];
    let mut length = 0;
    loop {
        match file.read_at(&mut text[length..], length as u64).ok()? {
            0 => break,
            more => length += more,
        }
    }
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// The number behind a word at the start of a line.
fn number_of(text: &str, word: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok())
}

impl Group {
    fn open(root: &Path, folder: &Path) -> Option<Self> {
        let open = |name: &str| File::open(root.join("sys/fs/cgroup").join(folder).join(name)).ok();
        Some(Self {
            folder: folder.display().to_string(),
            max: open("memory.max")?,
            current: open("memory.current")?,
            stat: open("memory.stat")?,
        })
    }

    /// Bytes below its limit, what the kernel would drop for more included. `None`: it has no limit.
    fn left(&self) -> Option<u64> {
        let max: u64 = text_of(&self.max)?.trim().parse().ok()?;
        let current: u64 = text_of(&self.current)?.trim().parse().ok()?;
        let stat = text_of(&self.stat)?;
        let files = ["active_file ", "inactive_file "].map(|word| number_of(&stat, word).unwrap_or(0));
        let kept = current.saturating_sub(files.iter().sum());
        Some(max.saturating_sub(kept))
    }
}

impl HostRoom {
    /// Opens what says how much is left, below the host's root folder. What is not there bounds nothing.
    pub(crate) fn open(root: &Path) -> Self {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or("");
        Self {
            meminfo: File::open(root.join("proc/meminfo")).ok(),
            groups: Path::new(own)
                .ancestors()
                .filter_map(|folder| Group::open(root, folder))
                .collect(),
        }
    }

    /// The least that is left, and of what. `None` if nothing says so.
    fn least(&self) -> Option<(u64, String)> {
        let meminfo = self.meminfo.as_ref().and_then(text_of);
        let available = meminfo.and_then(|text| number_of(&text, "MemAvailable:"));
        let of_host = available.map(|kib| (kib << 10, "the host".to_owned()));
        let of_groups = self.groups.iter().filter_map(|group| {
            let name = format!("the memory.max of control group /{}", group.folder);
            Some((group.left()?, name))
        });
        of_host.into_iter().chain(of_groups).min()
    }

    /// Whether there is memory for what a VM wants beside what others were promised and have not touched.
    ///
    /// # Errors
    /// The figures, if there is not.
    pub(crate) fn check(&self, wanted: u64, promised: u64) -> Result<(), HostShort> {
        let Some((available, bound)) = self.least() else {
            return Ok(());
        };
        match wanted.saturating_add(promised) > available {
            true => Err(HostShort {
                wanted,
                promised,
                available,
                bound,
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A host with 1000 MiB available, and the limits of control groups from the process's own up, in MiB.
    fn host(groups: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            "proc/meminfo",
            "MemTotal: 4096000 kB\nMemFree: 5 kB\nMemAvailable: 1024000 kB\n",
        );
        put(
            "proc/self/cgroup",
            "1:cpu:/else\n0::/system.slice/vramd.service\n",
        );
        for (folder, max) in groups {
            let folder = format!("sys/fs/cgroup/{folder}");
            put(&format!("{folder}/memory.max"), max);
            put(&format!("{folder}/memory.current"), &format!("{}\n", 300 * MIB));
            let stat = format!(
                "anon 1\nfile 9\nactive_file {}\ninactive_file {}\n",
                40 * MIB,
                60 * MIB
            );
            put(&format!("{folder}/memory.stat"), &stat);
        }
        root
    }

    fn least(root: &tempfile::TempDir) -> (u64, String) {
        HostRoom::open(root.path()).least().unwrap()
    }

    #[test]
    fn host_without_limits_leaves_what_is_available() {
        assert_eq!(least(&host(&[])), (1000 * MIB, "the host".to_owned()));
        let unlimited = host(&[("system.slice/vramd.service", "max\n")]);
        assert_eq!(least(&unlimited).0, 1000 * MIB);
    }

    /// What files of the page cache take is given back for more.
    #[test]
    fn control_group_leaves_what_is_below_its_limit_without_cached_files() {
        let own = host(&[("system.slice/vramd.service", "629145600\n")]);
        let (left, bound) = least(&own);
        assert_eq!(left, 400 * MIB);
        assert!(bound.ends_with("/system.slice/vramd.service"), "{bound}");
        let above = host(&[
            ("system.slice/vramd.service", "max"),
            ("system.slice", "524288000"),
        ]);
        let (left, bound) = least(&above);
        assert_eq!(left, 300 * MIB);
        assert!(bound.ends_with("/system.slice"), "{bound}");
    }

    #[test]
    fn what_others_were_promised_is_not_given_again() {
        let root = host(&[]);
        let room = HostRoom::open(root.path());
        assert_eq!(room.check(600 * MIB, 400 * MIB), Ok(()));
        let short = room.check(601 * MIB, 400 * MIB).unwrap_err();
        let text = short.to_string();
        for figure in ["601M", "400M", "1000M", "the host"] {
            assert!(text.contains(figure), "{text}");
        }
    }

    /// Files change between two looks, and are read from the beginning each time.
    #[test]
    fn memory_that_goes_meanwhile_is_seen() {
        let root = host(&[]);
        let room = HostRoom::open(root.path());
        assert_eq!(room.check(900 * MIB, 0), Ok(()));
        fs::write(root.path().join("proc/meminfo"), "MemAvailable: 102400 kB\n").unwrap();
        assert_eq!(room.check(900 * MIB, 0).unwrap_err().available, 100 * MIB);
    }

    #[test]
    fn host_that_says_nothing_bounds_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(HostRoom::open(root.path()).check(u64::MAX, u64::MAX), Ok(()));
    }
}
