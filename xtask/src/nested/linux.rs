//! Debian's kernel on our VMM in the nested host, with its vGPU on the host's card.
//!
//! It comes up with one processor and with two, finds the vGPU, switches itself off, by itself or when its power
//! button is pressed, and resets in each of the ways that have an exit status of their own. A file system that
//! one boot makes on a disk is there for the next, and the images hold what the guest read. On a broker with a
//! software card, which pins nothing, a VM has RAM above 4 GiB, and nouveau, told to do without MSI, has interrupts
//! by the pin. Data that goes through a network device arrives as it was sent, both ways.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{PATIENCE, refuses};
use crate::guest::Guest;
use crate::host_env::{GuestFile, HostEnv};

const HOST: &str = "host.toml";
/// Name of the VM's first root within the nested host's.
const ROOT: &str = "root.cpio";
const KERNEL: &str = "vmlinuz";
/// Boots twice, by keys.
const ASK: (&str, &str) = ("ask.sh", include_str!("ask.sh"));
/// Boots once, and presses the power button.
const BUTTON: (&str, &str) = ("button.sh", include_str!("button.sh"));
/// Boots once with a broker of its own.
const SOFTWARE: (&str, &str) = ("software.sh", include_str!("software.sh"));
/// Boots once with disks, and compares.
const DISKS: (&str, &str) = ("disks.sh", include_str!("disks.sh"));
/// Boots once with a network device, as a user who is not root, and compares.
const NETWORK: (&str, &str) = ("network.sh", include_str!("network.sh"));
const TAP: &str = "[[net]]\ntap = \"vramd0\"\nmac = \"52:54:00:12:34:56\"\n";
const DISK_IMAGES: &str =
    "[[disk]]\npath = \"/run/disk.img\"\n[[disk]]\npath = \"/run/fixed.img\"\nread_only = true\n";

/// A VM by the name of its file.
struct InnerVm {
    file: &'static str,
    vcpus: u32,
    options: &'static str,
    devices: &'static str,
    memory: &'static str,
    socket: &'static str,
}

/// A VM file that differs from the others in its name alone.
const PLAIN: InnerVm = InnerVm {
    file: "",
    vcpus: 1,
    options: "quiet",
    devices: "",
    memory: "256M",
    socket: "a.sock",
};

const VMS: [InnerVm; 9] = [
    InnerVm {
        file: "network.toml",
        vcpus: 2,
        options: "quiet end=network",
        devices: TAP,
        ..PLAIN
    },
    InnerVm {
        file: "disks.toml",
        vcpus: 2,
        options: "quiet end=disk",
        devices: DISK_IMAGES,
        ..PLAIN
    },
    InnerVm {
        file: "off.toml",
        options: "quiet end=off",
        ..PLAIN
    },
    InnerVm {
        file: "ask.toml",
        vcpus: 2,
        options: "quiet end=ask",
        ..PLAIN
    },
    InnerVm {
        file: "button.toml",
        options: "quiet end=button",
        ..PLAIN
    },
    InnerVm {
        file: "large.toml",
        options: "quiet end=off",
        memory: "5G",
        socket: "b.sock",
        ..PLAIN
    },
    InnerVm {
        file: "pin.toml",
        options: "quiet end=driver driver=config=NvMSI=0",
        socket: "b.sock",
        ..PLAIN
    },
    InnerVm {
        file: "keyboard.toml",
        options: "quiet reboot=k end=again",
        ..PLAIN
    },
    InnerVm {
        file: "triple.toml",
        options: "quiet reboot=t end=again",
        ..PLAIN
    },
];

/// Kernels, roots, disks and networks that must be refused before anything starts, each with the expected message.
const REFUSED: [(&str, &str); 8] = [
    (
        "vramd run /inner/off.toml --kernel /inner/none",
        "cannot read kernel /inner/none",
    ),
    (
        "vramd run /inner/off.toml --kernel /inner/ask.sh",
        "is neither a bzImage nor a 64-bit x86 ELF file",
    ),
    (
        "head -c 1000000 /inner/vmlinuz >/run/cut && vramd run /inner/off.toml --kernel /run/cut",
        "kernel /run/cut is truncated: 1000000 bytes of",
    ),
    (
        "head -c 1000000 /inner/root.cpio >/run/cut && vramd run /inner/off.toml --initramfs /run/cut",
        "initramfs /run/cut is truncated",
    ),
    (
        "vramd run /inner/off.toml --initramfs /inner/off.toml",
        "is neither a cpio archive",
    ),
    (
        "vramd run /inner/disks.toml",
        "cannot open disk image /run/disk.img",
    ),
    (
        "head -c 1000 /dev/zero >/run/disk.img && vramd run /inner/disks.toml",
        "disk image /run/disk.img has 1000 bytes, which are not",
    ),
    (
        "vramd run /inner/network.toml",
        "there is no tap vramd0: make it with `ip tuntap add dev vramd0 mode tap user 0`",
    ),
];

/// The files that the nested host's first root needs for this, made in `folder`.
pub(super) fn files(environment: &HostEnv, folder: &Path) -> Result<Vec<GuestFile>> {
    let inner = |name: &str, from| GuestFile {
        to: format!("inner/{name}"),
        from,
    };
    // This is not the nested host's own root, which is made in the same folder.
    let root = folder.join("inner-root.cpio");
    environment.write_inner_root(&root)?;
    let mut files = vec![inner(KERNEL, environment.kernel.image()), inner(ROOT, root)];
    let software = "[[gpu]]\nname = \"gpu0\"\ndevice = \"model:gtx480\"\nvram = \"128M\"\n\
                    [[vm]]\nname = \"a\"\ngpu = \"gpu0\"\nsocket = \"/run/b.sock\"\nguest_vram = \"64M\"\n";
    let host = "[[gpu]]\nname = \"gpu0\"\ndevice = \"vfio:CARD\"\n\
                [[vm]]\nname = \"a\"\ngpu = \"gpu0\"\nsocket = \"/run/a.sock\"\nsocket_mode = \"0666\"\nsocket_users = [1000]\nguest_vram = \"64M\"\n";
    let scripts = [ASK, BUTTON, SOFTWARE, DISKS, NETWORK];
    let texts = scripts
        .into_iter()
        .chain([(HOST, host), ("software.toml", software)]);
    let mut texts: Vec<_> = texts.map(|(name, text)| (name, text.to_owned())).collect();
    for vm in VMS {
        let InnerVm {
            file,
            vcpus,
            options,
            devices,
            memory,
            socket,
        } = vm;
        let text = format!(
            "name = \"a\"\nmemory = \"{memory}\"\nvcpus = {vcpus}\nkernel = \"/inner/{KERNEL}\"\n\
             initramfs = \"/inner/{ROOT}\"\noptions = \"{options}\"\n{devices}[vgpu]\nsocket = \"/run/{socket}\"\n"
        );
        texts.push((file, text));
    }
    for (name, text) in texts {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        files.push(inner(name, path));
    }
    Ok(files)
}

/// Starts a broker on the bound `card`.
pub(super) fn serve(guest: &mut Guest, card: &str) -> Result<()> {
    let command = format!(
        "sed -i s/CARD/{card}/ /inner/{HOST}; vramd serve --config /inner/{HOST} >/run/serve.log 2>&1 & \
         looks=0; until [ -S /run/a.sock ] || [ $looks = 600 ]; do looks=$((looks + 1)); usleep 100000; done; \
         [ -S /run/a.sock ] || {{ cat /run/serve.log; false; }}"
    );
    guest.succeed(&command, PATIENCE).map(drop)
}

/// Ends the broker and waits until it has given the card back.
pub(super) fn stop_serving(guest: &mut Guest) -> Result<()> {
    guest.succeed("killall vramd; wait", PATIENCE).map(drop)
}

/// The checks that hold on every host, with a broker that serves.
pub(super) fn check(guest: &mut Guest) -> Result<()> {
    for (command, expected) in REFUSED {
        refuses(guest, command, expected)?;
    }
    boots(guest, "vramd run /inner/off.toml", 0, &["@@cpus 1", "vm a: ok"])?;
    // Reset by ACPI, a second boot by the same process, and keys that reach the guest.
    boots(guest, "sh /inner/ask.sh", 0, &["@@cpus 2", "vm a: ok"])?;
    boots(
        guest,
        "sh /inner/button.sh",
        0,
        &["@@the button was pressed", "vm a: ok"],
    )?;
    // More RAM than this machine has: what is not touched takes nothing.
    boots(
        guest,
        "sh /inner/software.sh /inner/large.toml",
        0,
        &["@@memory 4 GiB", "vm a: ok"],
    )?;
    boots(
        guest,
        "sh /inner/software.sh /inner/pin.toml",
        0,
        &[
            "@@interrupts came by IO-APIC 23-fasteoi",
            "@@nobody complains",
            "vm a: ok",
        ],
    )?;
    boots(
        guest,
        "vramd run --no-reboot /inner/keyboard.toml",
        3,
        &["vm a: ok"],
    )?;
    boots(guest, "vramd run /inner/triple.toml", 1, &["met a triple fault"])?;
    disks(guest)?;
    network(guest)
}

/// Boots a VM with a writeable and a read-only disk, twice.
fn disks(guest: &mut Guest) -> Result<()> {
    guest.succeed(
        "dd if=/dev/zero of=/run/disk.img bs=1M count=8 && dd if=/dev/urandom of=/run/fixed.img bs=1k count=1500",
        PATIENCE,
    )?;
    let right = [
        "@@the image is the disk",
        "@@the fixed image is the fixed disk",
        "@@the copy is right",
        "@@vdb refuses",
        "vm a: ok",
    ];
    let first: Vec<_> = right.iter().chain(&["@@made"]).copied().collect();
    boots(guest, "sh /inner/disks.sh", 0, &first)?;
    boots(guest, "sh /inner/disks.sh", 0, &right)
}

/// Boots a VM with a network device on a tap of the host.
fn network(guest: &mut Guest) -> Result<()> {
    let right = [
        "@@mac 52:54:00:12:34:56",
        "@@the host answers",
        "@@what the guest fetched is right",
        "@@what the guest sent is right",
        "dropped 0 and 0",
        "vm a: ok",
    ];
    boots(guest, "sh /inner/network.sh", 0, &right)
}

/// Runs a VM to its end: it finds its vGPU, prints the `expected` lines, and ends with `status`.
fn boots(guest: &mut Guest, command: &str, status: i32, expected: &[&str]) -> Result<()> {
    let start = Instant::now();
    let output = guest.run(&format!("timeout 400 {command} 2>&1"), PATIENCE)?;
    let (text, seconds) = (output.text(), start.elapsed().as_secs_f64());
    ensure!(
        output.status == status,
        "{command:?} ended with {}, not {status}, after {seconds:.1} s: {text}",
        output.status
    );
    // Found by its vendor, device and class, with BAR0 where the VMM placed it.
    let found = ["@@pci 0000:00:01.0 0x10de 0x06c0", "@@bar0 0x00000000cc000000 "];
    for wanted in found.iter().chain(expected) {
        ensure!(
            text.contains(wanted),
            "{command:?} ended after {seconds:.1} s and does not say {wanted:?}: {text}"
        );
    }
    let last = output
        .lines
        .iter()
        .rfind(|line| line.contains("vm a"))
        .map_or("", String::as_str);
    println!("{command}: status {status} after {seconds:.1} s; {}", last.trim());
    Ok(())
}
