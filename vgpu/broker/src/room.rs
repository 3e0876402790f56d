//! What the host can still give, asked before a VM is promised any of it.
//!
//! Images of VMs take memory when they are first touched, long after the VM was let in, and by then nobody can be refused: the
//! kernel would kill a process. So what a VM may need is compared when it attaches with what is available, less what the VMs
//! before it may still come to need.
//!
//! A host may give to others what it had then. So it is asked again, ahead, whenever a VM is about to take more: [`HostRoom::take`].
//! Whoever finds nothing left ends; the kernel, which would choose a process and with it all VMs, is not asked to.
//!
//! A broker that is confined opens none of these files any more, so whoever starts it opens them before, and they are read from their
//! beginnings each time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Most bytes of a file of the kernel that are read: `memory.stat` has some 2 KiB.
const TEXT_MAX: usize = 16 << 10;

/// Bytes that no VM gets: the broker and the kernel need some, too, and what is there is looked at a few times a second only.
pub(crate) const KEPT: u64 = 16 << 20;

/// Time for which a look is good. The kernel sums what its processors and control groups hold, and many chunks may ask at once.
const LOOK_IS_GOOD: Duration = Duration::from_millis(10);

/// The host, or the control group, has too little memory for what a VM would be promised.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "its VRAM image and windows may take {}M of host RAM and those of others {}M more than they have now, but {bound} leaves {}M, \
     the last {}M of which no VM gets: a smaller guest_vram or host_ram, fewer VMs, or more memory",
    wanted >> 20, promised >> 20, available >> 20, KEPT >> 20
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

/// The host gave to others what it had when a VM was let in, and that VM needs some of it now.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the host has no memory left for it: {}K more of its VRAM were to be in host RAM, and {bound} leaves {}M, \
     the last {}M of which no VM gets",
    wanted >> 10, left >> 20, KEPT >> 20
)]
pub(crate) struct HostGone {
    wanted: u64,
    left: u64,
    bound: String,
}

/// What was left when it was last looked, and what was taken since.
#[derive(Debug)]
struct Look {
    at: Instant,
    left: u64,
    bound: String,
    /// What threads were about to touch.
    under_way: u64,
    taken: u64,
}

impl Look {
    fn gone(&self) -> u64 {
        self.under_way.saturating_add(self.taken)
    }

    /// Whether so much more leaves the host what it keeps.
    fn has(&self, wanted: u64) -> bool {
        self.gone().saturating_add(wanted).saturating_add(KEPT) <= self.left
    }

    /// Whether to decide by it. What was taken since a look may not be in the next one yet; if nothing was, nobody is refused for an old one.
    fn is_good(&self, now: Instant, wanted: u64) -> bool {
        now.duration_since(self.at) < LOOK_IS_GOOD && (self.taken > 0 || self.has(wanted))
    }
}

/// Where the kernel says how much memory is left.
#[derive(Debug, Default)]
pub struct HostRoom {
    meminfo: Option<File>,
    groups: Vec<Group>,
    look: Option<Look>,
    /// Bytes that threads are about to touch: no look shows them yet.
    under_way: Arc<AtomicU64>,
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
    pub fn open(root: &Path) -> Self {
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
            look: None,
            under_way: Arc::default(),
        }
    }

    /// With the counter of another one, which threads have.
    pub(crate) fn counting(self, under_way: Arc<AtomicU64>) -> Self {
        Self { under_way, ..self }
    }

    /// Bytes that threads are about to touch, to be counted up and down.
    pub(crate) fn under_way(&self) -> Arc<AtomicU64> {
        self.under_way.clone()
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
        match wanted.saturating_add(promised).saturating_add(KEPT) > available {
            true => Err(HostShort {
                wanted,
                promised,
                available,
                bound,
            }),
            false => Ok(()),
        }
    }

    /// Whether there is memory for what a VM takes now. What it is given counts as taken.
    ///
    /// # Errors
    /// The figures, if there is not.
    pub(crate) fn take(&mut self, now: Instant, wanted: u64) -> Result<(), HostGone> {
        if !self.look.as_ref().is_some_and(|look| look.is_good(now, wanted)) {
            let under_way = self.under_way.load(Relaxed);
            self.look = self.least().map(|(left, bound)| Look {
                at: now,
                left,
                bound,
                under_way,
                taken: 0,
            });
        }
        let Some(look) = &mut self.look else { return Ok(()) };
        if !look.has(wanted) {
            return Err(HostGone {
                wanted,
                left: look.left.saturating_sub(look.gone()),
                bound: look.bound.clone(),
            });
        }
        look.taken = look.taken.saturating_add(wanted);
        Ok(())
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
        assert_eq!(room.check(584 * MIB, 400 * MIB), Ok(()));
        let short = room.check(585 * MIB, 400 * MIB).unwrap_err();
        let text = short.to_string();
        for figure in ["585M", "400M", "1000M", "16M", "the host"] {
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
        let mut room = HostRoom::open(root.path());
        assert_eq!(room.check(u64::MAX, u64::MAX), Ok(()));
        assert_eq!(room.take(Instant::now(), u64::MAX), Ok(()));
    }

    /// Between two looks what was taken is counted; what threads are about to touch is counted at a look.
    #[test]
    fn what_is_taken_is_counted_until_the_host_is_asked_again() {
        let root = host(&[]);
        let mut room = HostRoom::open(root.path());
        let start = Instant::now();
        assert_eq!(room.take(start, 600 * MIB), Ok(()));
        let gone = room.take(start, 400 * MIB).unwrap_err();
        for figure in ["409600K", "400M", "16M", "the host"] {
            assert!(gone.to_string().contains(figure), "{gone}");
        }
        assert_eq!(room.take(start, 384 * MIB), Ok(()));
        assert!(room.take(start, 4096).is_err());
        let later = start + LOOK_IS_GOOD;
        room.under_way().fetch_add(900 * MIB, Relaxed);
        assert!(room.take(later, 100 * MIB).is_err());
        assert_eq!(room.take(later, 84 * MIB), Ok(()));
        fs::write(root.path().join("proc/meminfo"), "MemAvailable: 16384 kB\n").unwrap();
        room.under_way().fetch_sub(900 * MIB, Relaxed);
        let last = later + LOOK_IS_GOOD;
        assert!(room.take(last, 4096).is_err());
        // Nothing was taken since, so that the host is asked again at once.
        fs::write(root.path().join("proc/meminfo"), "MemAvailable: 17408 kB\n").unwrap();
        assert_eq!(room.take(last, 4096), Ok(()));
    }
}
