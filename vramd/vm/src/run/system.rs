//! `vramd run` of an operating system: its console is this program's, and a reset starts it anew.
//!
//! The first SIGTERM presses the VM's power button; SIGINT or a second SIGTERM ends the VM as it is.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};

use super::{LOOK_PERIOD, NetworkReport, RunArguments, RunReport, tell, tell_that_it_runs};
use crate::config::{DiskFile, NetFile, VmFile};
use crate::guest::{GuestEnd, Journal};
use crate::program::{RESET, complain};
use crate::signals::{install_power_button, is_button_pressed, is_stop_requested};
use vmm::console::{Console, ConsoleStream, RawTerminal};
use vmm::link::VfioUserLink;
use vmm::loader::{Initramfs, Kernel};
use vmm::sandbox::Sandbox;
use vmm::start_up::release_program;
use vmm::vm::{Vm, VmConfig, VmExit};
use vmm::{DiskImage, Network, Tap, Traffic};

/// Runs `file`'s VM with `kernel` until it is switched off.
pub(super) fn run(
    file: &VmFile,
    kernel: &Kernel,
    sandbox: &Sandbox,
    arguments: &RunArguments,
) -> anyhow::Result<u8> {
    install_power_button()?;
    let journal = Arc::new(Journal::default());
    let start = Instant::now();
    let mut exits = 0;
    let networks = file.networks.iter().map(|net| NetworkReport {
        tap: net.tap.clone(),
        traffic: Traffic::default(),
    });
    let mut networks: Vec<_> = networks.collect();
    // A document on stdout leaves no room for a console.
    let operator = if arguments.json {
        None
    } else {
        Some(Operator::sit_down(sandbox)?)
    };
    let mut boots = 0;
    let end = loop {
        boots += 1;
        let console = operator.as_ref().map(Operator::console).transpose()?;
        let (end, left, traffic) = boot(file, kernel, sandbox, console, &journal)
            .with_context(|| format!("vm {} cannot run", file.name))?;
        exits += left;
        for (network, traffic) in networks.iter_mut().zip(traffic) {
            network.traffic += traffic;
        }
        // A program that was asked to end does not start the VM anew.
        if !matches!(*end, VmExit::Reset(_)) || arguments.no_reboot || is_button_pressed() {
            break end;
        }
    };
    let lost = operator.map_or(0, Operator::stand_up);
    if lost > 0 {
        complain(&format!(
            "{lost} bytes of the console were lost: they were not read in time"
        ));
    }
    let is_reset = matches!(*end, VmExit::Reset(_));
    let is_ok = end.is_success() || is_reset;
    let text = GuestEnd::Vm(end).to_string();
    let report = RunReport {
        name: file.name.clone(),
        ok: is_ok,
        kvm: true,
        boots,
        exits,
        networks,
        seconds: start.elapsed().as_secs_f64(),
        errors: if is_ok { Vec::new() } else { vec![text.clone()] },
        end: text,
        console: journal.told().console,
        ..RunReport::default()
    };
    match tell(&report, &[], &journal.told(), arguments.json)? {
        0 if is_reset => Ok(RESET),
        status => Ok(status),
    }
}

/// Runs the VM from power-on to its end, once. Also returns how often the VM left KVM, and the
/// traffic of its networks.
fn boot(
    file: &VmFile,
    kernel: &Kernel,
    sandbox: &Sandbox,
    console: Option<Console>,
    journal: &Arc<Journal>,
) -> anyhow::Result<(Arc<VmExit>, u64, Vec<Traffic>)> {
    let initramfs = file.initramfs.as_deref().map(Initramfs::open).transpose()?;
    let open = |disk: &DiskFile| DiskImage::open(&disk.path, disk.read_only);
    let disks = file.disks.iter().map(open).collect::<Result<_, _>>()?;
    let open = |net: &NetFile| Tap::open(&net.tap).map(|tap| Network { tap, mac: net.mac });
    let networks = file.networks.iter().map(open).collect::<Result<_, _>>()?;
    // After a reset the broker accepts the new VM as soon as it has released the old one.
    let link = Arc::new(VfioUserLink::connect(&file.socket)?);
    let config = VmConfig {
        name: file.name.clone(),
        ram_bytes: file.memory,
        vcpus: file.vcpus,
        kernel: kernel.clone(),
        initramfs,
        inputs: Vec::new(),
        disks,
        networks,
        command_line: file.options.clone(),
        console,
        sandbox: sandbox.clone(),
    };
    let vm = Vm::build(config, link, journal.clone())?.start()?;
    tell_that_it_runs();
    // Last: what has run once stays in memory no longer.
    release_program();
    let mut is_told = false;
    loop {
        if let Some(end) = vm.wait_for(LOOK_PERIOD) {
            return Ok((end, vm.exits().total(), vm.traffic()));
        }
        if is_stop_requested() {
            // Dropping the VM stops it.
            bail!("interrupted");
        }
        if is_button_pressed() && !is_told {
            is_told = true;
            complain("pressed the VM's power button; a second SIGTERM ends it as it is");
            vm.press_power_button();
        }
    }
}

/// The operator of this program, at the VM's console.
struct Operator {
    stream: ConsoleStream,
    /// Dropping it restores the terminal.
    terminal: Option<RawTerminal>,
}

impl Operator {
    fn sit_down(sandbox: &Sandbox) -> anyhow::Result<Operator> {
        let stream =
            ConsoleStream::start(Box::new(std::io::stdout()), sandbox).context("cannot start a thread")?;
        let terminal = RawTerminal::switch(std::io::stdin().as_fd()).context("cannot set the terminal")?;
        if terminal.is_some() {
            complain("Ctrl-A x ends the VM");
        }
        Ok(Operator { stream, terminal })
    }

    fn console(&self) -> anyhow::Result<Console> {
        let input = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("cannot use stdin")?;
        Ok(Console {
            output: Box::new(self.stream.outlet()),
            input,
            has_escape: self.terminal.is_some(),
        })
    }

    /// Reports how many bytes of output were lost.
    fn stand_up(self) -> u64 {
        self.stream.finish()
    }
}
