//! The roots of a guest: a small one in memory, with busybox, modules and test programs, and a disk with Mesa.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::cpio::Archive;
use super::kernel::{DRIVER, Kernel, Modules};
use super::pins::Pin;

/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;
/// The first program of a guest: a shell that takes commands from the second serial port.
const INIT: &str = concat!(
    include_str!("guest_init.sh"),
    include_str!("take_commands.sh"),
    "poweroff -f\n"
);
/// The first program of a guest within a guest.
const INNER_INIT: &str = include_str!("inner_init.sh");
/// The first program of a guest whose boot is timed.
const MARKING_INIT: &str = include_str!("marking_init.sh");
/// The first program of a Debian host, and the one that takes commands there.
const HOST_INIT: &str = include_str!("host_init.sh");
const HOST_SHELL: &str = concat!(include_str!("host_shell.sh"), include_str!("take_commands.sh"));
/// What a Debian host finds of ours.
pub(crate) const PAYLOAD: &str = "run/payload";
const HOST_FOLDERS: [&str; 8] = ["bin", "dev", "modules", "proc", "run", PAYLOAD, "sys", "sysroot"];
/// The program that `vramd run` hands over to.
const VM_PROGRAM: &str = "vramd-vm";
const INNER_FOLDERS: [&str; 7] = ["bin", "dev", "disk", "modules", "proc", "sys", "tmp"];
const FOLDERS: [&str; 9] = [
    "bin", "dev", "mesa", "modules", "proc", "run", "sys", "tests", "tmp",
];
/// Folders of the disk that a guest mounts things on: the disk itself is read-only.
const MOUNT_POINTS: [&str; 6] = ["dev", "proc", "run", "sys", "tests", "tmp"];
/// Where packages expect folders that are elsewhere since the merger of `/usr`.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// Room on the disk beyond the files. MiB.
const SLACK_MIB: u64 = 64;
const CONSOLE: (u32, u32) = (5, 1);
const KERNEL_LOG: (u32, u32) = (1, 11);

/// A static busybox.
#[derive(Clone, Debug)]
pub(crate) struct Busybox {
    program: PathBuf,
}

impl Busybox {
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let program = cache.path(&pin.cache_name("busybox", LAYOUT));
        ensure!(program.is_file(), "no busybox in the cache");
        Ok(Self { program })
    }

    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        let unpacked = build.join("busybox-package");
        apt::unpack(&apt.download_alone(&pin.packages)?, &unpacked)?;
        let program = cache.keep(
            &unpacked.join("usr/bin/busybox"),
            &pin.cache_name("busybox", LAYOUT),
        )?;
        Ok(Self { program })
    }
}

/// A disk image with Mesa and all that it needs, read-only.
#[derive(Clone, Debug)]
pub(crate) struct MesaDisk {
    image: PathBuf,
}

impl MesaDisk {
    pub(super) fn find(pin: &Pin, cache: &Cache) -> Result<Self> {
        let image = cache.path(&pin.cache_name("mesa", LAYOUT));
        ensure!(image.is_file(), "no disk with Mesa in the cache");
        Ok(Self { image })
    }

    pub(super) fn fetch(pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<Self> {
        let root = build.join("mesa-root");
        apt::unpack(&apt.download_all(&pin.suite, &pin.packages)?, &root)?;
        for name in MERGED {
            let link = root.join(name);
            if !link.exists() {
                std::os::unix::fs::symlink(format!("usr/{name}"), &link)?;
            }
        }
        for name in MOUNT_POINTS {
            fs::create_dir_all(root.join(name))?;
        }
        for name in ["usr/share/doc", "usr/share/man", "usr/share/locale"] {
            // Not every set of packages has all of them.
            let _ = fs::remove_dir_all(root.join(name));
        }
        let image = build.join("mesa.ext4");
        make_disk(&root, &image, SLACK_MIB)?;
        let image = cache.keep(&image, &pin.cache_name("mesa", LAYOUT))?;
        Ok(Self { image })
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }
}

/// Fills an ext4 image from a folder, with room for more: neither root nor a loop device is needed.
pub(super) fn make_disk(root: &Path, image: &Path, slack_mib: u64) -> Result<()> {
    let used = apt::output(
        Command::new("du")
            .args(["--summarize", "--block-size=1M"])
            .arg(root),
    )?;
    let mebibytes: u64 = used
        .split_ascii_whitespace()
        .next()
        .unwrap_or_default()
        .parse()
        .context("du says no size")?;
    // Nothing that is written to it is read after a loss of power, so a journal and checksums have no purpose.
    let features = "^has_journal,^metadata_csum,^resize_inode";
    let mut command = Command::new("mke2fs");
    // Debian has it in a folder that is not in users' paths.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.args([
        "-q",
        "-t",
        "ext4",
        "-m",
        "0",
        "-O",
        features,
        "-E",
        "root_owner=0:0",
        "-d",
    ]);
    command
        .arg(root)
        .arg(image)
        .arg(format!("{}M", mebibytes + slack_mib));
    apt::output(&mut command)
        .context("cannot make a disk image (package e2fsprogs)")
        .map(drop)
}

/// A file of ours that goes into a guest's first root.
#[derive(Clone, Debug)]
pub(crate) struct GuestFile {
    /// Path in the root, without the slash at the start.
    pub(crate) to: String,
    /// Path on this machine.
    pub(crate) from: PathBuf,
}

impl GuestFile {
    /// A test program.
    pub(crate) fn test(name: &str, from: PathBuf) -> Self {
        let to = format!("tests/{name}");
        Self { to, from }
    }

    /// A file of ours that a Debian host finds under `name`.
    pub(crate) fn payload(name: &str, from: PathBuf) -> Self {
        let to = format!("{PAYLOAD}/{name}");
        Self { to, from }
    }

    /// `vramd` and, from beside it, the program of a VM's process, with the libraries that they load.
    pub(crate) fn vramd(from: &Path) -> Result<Vec<Self>> {
        let mut files = Self::program_with_libraries("vramd", from.to_owned())?;
        // It loads no library that the other one does not.
        files.push(Self {
            to: format!("bin/{VM_PROGRAM}"),
            from: from.with_file_name(VM_PROGRAM),
        });
        Ok(files)
    }

    /// A program as it is on this machine, with the libraries that it loads.
    fn program_with_libraries(name: &str, from: PathBuf) -> Result<Vec<Self>> {
        let mut files: Vec<_> = libraries_of(Command::new("ldd").arg(&from))?
            .into_iter()
            .map(|from| Self {
                to: from.to_string_lossy().trim_start_matches('/').to_owned(),
                from,
            })
            .collect();
        let to = format!("bin/{name}");
        files.push(Self { to, from });
        Ok(files)
    }
}

/// Libraries and loader that a program needs, by a command that prints them as `ldd` does.
pub(super) fn libraries_of(command: &mut Command) -> Result<Vec<PathBuf>> {
    let listed = apt::output(command).context("which libraries a program needs")?;
    Ok(libraries(&listed).map(PathBuf::from).collect())
}

/// Paths in what `ldd` prints: the last of a line's words that is absolute.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    listed
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().rfind(|word| word.starts_with('/')))
}

type Root = Archive<std::io::BufWriter<fs::File>>;

/// Begins a root with folders, a console, busybox and the first program.
fn begin_root(target: &Path, busybox: &Busybox, folders: &[&str], init: &str) -> Result<Root> {
    let file = fs::File::create(target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut archive = Archive::new(std::io::BufWriter::new(file));
    for folder in folders {
        archive.folder(folder)?;
    }
    archive.device("dev/console", CONSOLE)?;
    let program = fs::read(&busybox.program).context("cannot read busybox")?;
    archive.file("bin/busybox", &program)?;
    archive.link("bin/sh", "busybox")?;
    archive.file("init", init.as_bytes())?;
    Ok(archive)
}

/// Writes the first root of a guest within a guest to `target`.
pub(super) fn write_inner_root(target: &Path, kernel: &Kernel, busybox: &Busybox) -> Result<()> {
    let mut archive = begin_root(target, busybox, &INNER_FOLDERS, INNER_INIT)?;
    let driver = kernel.modules_for(DRIVER)?.pop();
    add_modules(
        &mut archive,
        &kernel.inner_module_lists()?,
        driver.into_iter().collect(),
    )?;
    archive.finish()?;
    Ok(())
}

/// Adds lists of modules, and each module in them and in `others` once.
fn add_modules(archive: &mut Root, lists: &[(&str, Modules)], others: Modules) -> Result<()> {
    let mut modules = others;
    for (list, members) in lists {
        archive.file(&format!("modules/{list}.list"), &list_of(members))?;
        modules.extend_from_slice(members);
    }
    modules.sort();
    modules.dedup();
    for (name, content) in modules {
        archive.file(&format!("modules/{name}.ko"), &content)?;
    }
    Ok(())
}

/// Writes the first root of a guest whose boot is timed to `target`.
pub(super) fn write_marking_root(target: &Path, busybox: &Busybox) -> Result<()> {
    let mut archive = begin_root(target, busybox, &["bin", "dev"], MARKING_INIT)?;
    archive.device("dev/kmsg", KERNEL_LOG)?;
    archive.finish()?;
    Ok(())
}

/// Names of modules, one a line.
fn list_of(modules: &Modules) -> Vec<u8> {
    let lines: String = modules.iter().map(|(name, _)| format!("{name}\n")).collect();
    lines.into_bytes()
}

/// Writes the first root to `target`.
pub(super) fn write_first_root(
    target: &Path,
    kernel: &Kernel,
    busybox: &Busybox,
    files: &[GuestFile],
) -> Result<()> {
    let mut archive = begin_root(target, busybox, &FOLDERS, INIT)?;
    let driver = kernel.modules_for(DRIVER)?.pop();
    add_modules(
        &mut archive,
        &kernel.module_lists()?,
        driver.into_iter().collect(),
    )?;
    add_files(&mut archive, &FOLDERS, files)?;
    archive.finish()?;
    Ok(())
}

/// Writes the first root of a Debian host to `target`, with `files` in it.
pub(super) fn write_host_root(
    target: &Path,
    kernel: &Kernel,
    busybox: &Busybox,
    files: &[GuestFile],
) -> Result<()> {
    let mut archive = begin_root(target, busybox, &HOST_FOLDERS, HOST_INIT)?;
    add_modules(&mut archive, &kernel.host_module_lists()?, Modules::new())?;
    archive.file(&format!("{PAYLOAD}/host_shell.sh"), HOST_SHELL.as_bytes())?;
    add_files(&mut archive, &HOST_FOLDERS, files)?;
    archive.finish()?;
    Ok(())
}

/// Adds files and the folders that they are in, but those that are there already.
fn add_files(archive: &mut Root, present: &[&str], files: &[GuestFile]) -> Result<()> {
    let mut folders: BTreeSet<_> = present.iter().map(|folder| (*folder).to_owned()).collect();
    for GuestFile { to, from } in files {
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        for folder in folders_above(to) {
            if folders.insert(folder.to_owned()) {
                archive.folder(folder)?;
            }
        }
        archive.file(to, &content)?;
    }
    Ok(())
}

/// The folders that a file is in, outermost first.
fn folders_above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_taken_from_each_kind_of_line() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x0)\n";
        let paths: Vec<_> = libraries(listed).collect();
        assert_eq!(paths, ["/lib/x/libc.so.6", "/lib64/ld.so.2"]);
    }

    #[test]
    fn folders_come_from_the_outside_in() {
        let folders: Vec<_> = folders_above("lib/x/libc.so.6").collect();
        assert_eq!(folders, ["lib", "lib/x"]);
        assert_eq!(folders_above("init").count(), 0);
    }
}
