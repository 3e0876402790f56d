//! A FUSE file system whose server answers until its file is open, and then nothing more.
//!
//! The server is a process of its own (this test program, started anew): where its test fails, a thread that waits for an
//! answer could not even be killed otherwise. The connection ends with the server, and with it all waiting.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const LOOKUP: u32 = 1;
pub(super) const GETATTR: u32 = 3;
const OPEN: u32 = 14;
pub(super) const STATFS: u32 = 17;
pub(super) const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Set in the server's process: the folder to mount at.
const FOLDER: &str = "BROKER_TEST_FUSE_FOLDER";
/// The server ends by itself after this, so that nothing waits for ever.
const LIFE: Duration = Duration::from_secs(60);

/// The mounted file system.
pub(super) struct Hostile {
    server: Child,
    folder: tempfile::TempDir,
}

impl Hostile {
    /// `None` where it cannot be mounted; that is loud, and an error where a CI runs.
    pub(super) fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("mounted");
        std::fs::create_dir(&target).unwrap();
        let server = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "server::tests::descriptors::fuse::serve",
                "--nocapture",
            ])
            .env(FOLDER, folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut hostile = Self { server, folder };
        let start = Instant::now();
        while !hostile.log().contains("mounted") {
            if hostile.server.try_wait().unwrap().is_some() {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "a CI needs /dev/fuse and the right to mount"
                );
                eprintln!("SKIPPED: no FUSE file system can be mounted here (/dev/fuse, root)");
                return None;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "not mounted");
            std::thread::yield_now();
        }
        Some(hostile)
    }

    /// A descriptor of its file. Whoever closes it waits.
    pub(super) fn open(&self) -> File {
        let path = self.folder.path().join("mounted/file");
        File::options().read(true).write(true).open(path).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// How many requests of this kind the server has got for its file.
    pub(super) fn count(&self, opcode: u32) -> usize {
        let wanted = opcode.to_string();
        self.log().lines().filter(|line| *line == wanted).count()
    }

    pub(super) fn wait_for(&self, opcode: u32, count: usize) {
        let start = Instant::now();
        while self.count(opcode) < count {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", self.log());
            std::thread::yield_now();
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = unmount(self.folder.path().join("mounted"), UnmountFlags::DETACH);
    }
}

/// The server's process. As a test of its own it does nothing.
#[test]
fn serve() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(LIFE);
        std::process::exit(1);
    });
    if let Err(error) = run(&folder) {
        eprintln!("the FUSE server: {error}");
        std::process::exit(1);
    }
}

fn run(folder: &Path) -> std::io::Result<()> {
    let mut device = File::options().read(true).write(true).open("/dev/fuse")?;
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0",
        device.as_raw_fd()
    );
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).map_err(std::io::Error::other)?;
    mount(
        "hostile",
        folder.join("mounted"),
        "fuse",
        MountFlags::NOSUID | MountFlags::NODEV,
        data,
    )?;
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))?;
    writeln!(log, "mounted")?;
    let answers = answers();
    let mut request = vec![0; 1 << 17];
    loop {
        let bytes = device.read(&mut request)?;
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let (opcode, node) = (word(4), word(16));
        if node == 2 {
            writeln!(log, "{opcode}")?;
        }
        assert!(bytes >= 40);
        // Whatever has no answer hangs.
        if let Some(body) = answers.get(&(opcode, node)) {
            let mut answer = Vec::from(((16 + body.len()) as u32).to_le_bytes());
            answer.extend([0; 4]);
            answer.extend(&request[8..16]);
            answer.extend(body);
            device.write_all(&answer)?;
        }
    }
}

/// The body of each answer that there is, by opcode and node: the root is 1, its file 2. Nothing may be cached.
fn answers() -> BTreeMap<(u32, u32), Vec<u8>> {
    let attributes = |node: u64, mode: u32| {
        let mut bytes = node.to_le_bytes().to_vec();
        bytes.extend(4096u64.to_le_bytes());
        bytes.resize(60, 0);
        bytes.extend(mode.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.resize(88, 0);
        bytes
    };
    // Version 7.31, requests of 4 KiB.
    let mut init = vec![0; 64];
    init[0] = 7;
    init[4] = 31;
    init[20..24].copy_from_slice(&4096u32.to_le_bytes());
    let mut entry = 2u64.to_le_bytes().to_vec();
    entry.resize(40, 0);
    entry.extend(attributes(2, 0o100_666));
    let mut root = vec![0; 16];
    root.extend(attributes(1, 0o40_777));
    BTreeMap::from([
        ((INIT, 0), init),
        ((LOOKUP, 1), entry),
        ((GETATTR, 1), root),
        ((OPEN, 2), vec![0; 16]),
    ])
}
