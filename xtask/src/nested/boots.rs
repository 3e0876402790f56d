//! Boots of one Linux kernel by several VMMs, one after the other: each VMM's share of the time and of the memory.
//!
//! A guest's first program puts a line into its kernel's log and then a character on COM1. The guest's time is that
//! of the line, which its kernel counts from when it has found its clock. The whole time is from the VMM's start
//! (exec) to that character (its exit), by the clock of the machine that the VMM runs on. The rest is the VMM's
//! share: its start, loading, building the machine, firmware. It does not include exits during the boot, which are
//! time of the guest. This is how `docs/performance.md` compares VMMs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::baseline::{Figure, Figures};
use super::icount::{Memory, SOCKET, VM_RAM, time_of};
use crate::guest::Guest;
use crate::host_env::{GuestFile, HostEnv, QemuOfGuest};
use crate::process::Silent;

/// Kernel parameters beyond [`OURS`], which our VMM adds itself: COM1 exists for the mark, and a
/// panic ends the machine.
const OPTIONS: &str = "quiet panic=-1";
const OURS: &str = "console=ttyS0 reboot=a";
/// QEMU's leanest machine that boots this kernel. Debian's kernel does not initialise the 8259 of a machine without
/// one, and a timer that interrupts through it comes as vector 0; without the RTC the kernel looks for one for a
/// long time; and QEMU's other firmware waits for the timer.
const MICROVM: &str = "microvm,x-option-roms=off,pit=off,pic=off,rtc=on,accel=kvm -bios qboot.rom";
const Q35: &str = "q35,accel=kvm";
const SCRIPT: (&str, &str) = ("boot.sh", include_str!("boot.sh"));
const KERNEL: &str = "vmlinux";
const ROOT: &str = "marking.cpio";
const QEMU_FOLDER: &str = "qemu";
const EXEC: &str = "sched_process_exec:";
const MARK: &str = "kvm_pio:";
const CLOCK: &str = "@@clock ";
const EXITS: &str = "exits ";

/// Longest time for a boot, which takes 5 to 27 s.
const BOOT_PATIENCE: Duration = Duration::from_secs(150);
/// Boots of one VMM of which one has to come to its end. About one of ten does not, whoever's it is: `docs/debugging.md`,
/// "A guest that hangs in the emulated machine".
const TRIES: u32 = 5;

/// A VMM that boots the kernel, and the command that starts it.
pub(super) struct Contestant {
    name: &'static str,
    command: String,
}

/// Figures of one boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Boot {
    whole_ns: u64,
    guest_ns: u64,
    exits: u64,
    memory: Memory,
}

impl Boot {
    fn share_ns(&self) -> u64 {
        self.whole_ns.saturating_sub(self.guest_ns)
    }

    /// Parses the output of [`SCRIPT`].
    fn parse(lines: &[String]) -> Result<Self> {
        let line = |start: &str| {
            let found = lines.iter().find(|line| line.contains(start));
            found.with_context(|| format!("no {start:?}"))
        };
        let clock = line(CLOCK)?;
        let (exec, mark) = (line(EXEC)?, line(MARK)?);
        let whole = time_of(mark).zip(time_of(exec));
        let whole = whole.and_then(|(mark, exec)| mark.checked_sub(exec));
        let exits = line(EXITS)?.strip_prefix(EXITS);
        Ok(Self {
            whole_ns: whole.with_context(|| format!("no times in {exec:?} and {mark:?}"))?,
            guest_ns: kernel_time_of(clock).with_context(|| format!("no time in {clock:?}"))?,
            exits: exits
                .and_then(|exits| exits.trim().parse().ok())
                .context("no number of exits")?,
            memory: Memory::parse(lines)?,
        })
    }
}

/// ns in a line of a kernel's log: `[    0.912345] now`.
fn kernel_time_of(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once('[')?;
    let (time, _) = rest.split_once(']')?;
    let (seconds, microseconds) = time.trim().split_once('.')?;
    let microseconds = (microseconds.len() == 6).then(|| microseconds.parse::<u64>().ok())??;
    Some((seconds.parse::<u64>().ok()? * 1_000_000 + microseconds) * 1000)
}

/// The VMMs that are compared, ours first, and the files that the machine needs to start them, made in `folder`.
pub(super) fn contestants(environment: &HostEnv, folder: &Path) -> Result<(Vec<Contestant>, Vec<GuestFile>)> {
    let QemuOfGuest {
        mut files,
        command,
        microvm_command,
    } = environment.qemu.for_guest(QEMU_FOLDER)?;
    let mut inner = |name: &str| {
        let from = folder.join(name);
        files.push(GuestFile {
            to: format!("inner/{name}"),
            from: from.clone(),
        });
        from
    };
    environment.kernel.write_uncompressed(&inner(KERNEL))?;
    environment.write_marking_root(&inner(ROOT))?;
    let vm = format!(
        "name = \"a\"\nmemory = \"{VM_RAM}\"\nkernel = \"/inner/{KERNEL}\"\ninitramfs = \"/inner/{ROOT}\"\n\
         options = \"{OPTIONS}\"\n[vgpu]\nsocket = \"{SOCKET}\"\n"
    );
    let (script, script_text) = SCRIPT;
    for (name, text) in [("linux.toml", vm.as_str()), (script, script_text)] {
        let path = inner(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let qemu = |command: &str, machine: &str| {
        format!(
            "{command} -machine {machine} -cpu host -m {VM_RAM} -nodefaults -no-user-config -display none \
             -no-reboot -serial stdio -kernel /inner/{KERNEL} -initrd /inner/{ROOT} -append '{OURS} {OPTIONS}'"
        )
    };
    let contestants = vec![
        Contestant {
            name: "vramd with a vGPU",
            command: "vramd run --no-reboot /inner/linux.toml".to_owned(),
        },
        Contestant {
            name: "QEMU microvm",
            command: qemu(&microvm_command, MICROVM),
        },
        Contestant {
            name: "QEMU q35",
            command: qemu(&command, Q35),
        },
    ];
    Ok((contestants, files))
}

/// Boots with one VMM. A machine in which the guest hangs is given up for another: what the guest does at an instruction
/// in a million leaves its host no time worth the name.
fn boot(
    mut guest: Guest,
    start: &mut impl FnMut() -> Result<Guest>,
    contestant: &Contestant,
) -> Result<(Guest, Boot)> {
    let Contestant { name, command } = contestant;
    let command = format!("sh /inner/{} {command}", SCRIPT.0);
    for number in 1..=TRIES {
        match guest.succeed(&command, BOOT_PATIENCE) {
            Ok(output) => {
                let boot =
                    Boot::parse(&output.lines).with_context(|| format!("{name} says {}", output.text()))?;
                return Ok((guest, boot));
            }
            Err(error) if error.is::<Silent>() => {
                println!("NOTE: boot {number} of {name} hung: {}", guest.standstill());
                drop(guest);
                guest = start().context("the next machine does not start")?;
            }
            Err(error) => return Err(error.context(format!("{name} did not boot the kernel"))),
        }
    }
    bail!("all of {TRIES} boots of {name} hung, each {BOOT_PATIENCE:?} long");
}

/// Boots with all VMMs, prints the results, and takes our figures. A machine that hangs is replaced by one that
/// `start` makes.
pub(super) fn measure(
    mut guest: Guest,
    mut start: impl FnMut() -> Result<Guest>,
    contestants: &[Contestant],
    figures: &mut Figures,
) -> Result<Guest> {
    let mut boots = Vec::new();
    for contestant in contestants {
        let begun = Instant::now();
        let boot_of;
        (guest, boot_of) = boot(guest, &mut start, contestant)?;
        println!(
            "{} booted after {:.1} s",
            contestant.name,
            begun.elapsed().as_secs_f64()
        );
        boots.push((contestant.name, boot_of));
    }
    print!("{}", table(&boots));
    let [(_, ours), (_, microvm), (_, q35)] = boots[..] else {
        bail!("{} boots", boots.len());
    };
    let percent_of = |other: Boot| ours.share_ns() * 100 / other.share_ns().max(1);
    figures.insert(Figure::LinuxShare, ours.share_ns());
    figures.insert(Figure::LinuxAnonymous, ours.memory.anonymous_kib);
    figures.insert(Figure::LinuxResident, ours.memory.resident_kib);
    figures.insert(Figure::ShareToMicrovm, percent_of(microvm));
    figures.insert(Figure::ShareToQ35, percent_of(q35));
    Ok(guest)
}

fn table(boots: &[(&str, Boot)]) -> String {
    let mut table = format!(
        "{:>18} {:>9} {:>9} {:>9} {:>7} {:>10} {:>10}\n",
        "boot of Linux", "whole s", "guest s", "share s", "exits", "anon KiB", "resid KiB"
    );
    for (name, boot) in boots {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let Memory {
            anonymous_kib,
            resident_kib,
        } = boot.memory;
        // Writing to a string cannot fail.
        let _ = writeln!(
            table,
            "{name:>18} {:>9.3} {:>9.3} {:>9.3} {:>7} {anonymous_kib:>10} {resident_kib:>10}",
            seconds(boot.whole_ns),
            seconds(boot.guest_ns),
            seconds(boot.share_ns()),
            boot.exits,
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "@@clock [    1.562636] now\n\
        vramd-151  [000] .....  6.945298: sched_process_exec: filename=/bin/vramd pid=151 old_pid=151\n\
        a/vcpu0-155  [000] .....  8.788567: kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x40\n\
        exits 18732\n7f00-7f08 rw-s 0 00:01 9 /memfd:ram\nSize: 131072 kB\nRss: 9 kB\n\
        7ffc-7ffd rw-p 0 00:00 0 [stack]\nSize: 132 kB\nRss: 12 kB\nAnonymous: 8 kB";

    fn parse(said: &str) -> Result<Boot> {
        Boot::parse(&said.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn share_is_what_the_guest_does_not_count() {
        let boot = parse(SAID).unwrap();
        assert_eq!((boot.whole_ns, boot.guest_ns), (1_843_269_000, 1_562_636_000));
        assert_eq!((boot.share_ns(), boot.exits), (280_633_000, 18_732));
        assert_eq!((boot.memory.anonymous_kib, boot.memory.resident_kib), (8, 12));
        assert!(table(&[("one", boot)]).contains("0.281"));
    }

    #[test]
    fn boot_without_a_mark_is_an_error() {
        for missing in ["kvm_pio:", "sched_process_exec:", "@@clock", "exits", "131072"] {
            assert!(parse(&SAID.replace(missing, "?")).is_err(), "{missing}");
        }
        assert!(parse("").is_err());
    }
}
