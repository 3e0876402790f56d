//! `vramd serve`: brokers of all cards in a configuration, until a signal.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use broker::{Broker, PciFunction, VmSocket};

use super::ServeArguments;
use crate::config::{GpuSection, HostConfig, VmSection};
use crate::host::{CardChoice, HostSetup, start_broker};
use vramd_vm::config::Size;
use vramd_vm::program::complain;
use vramd_vm::signals::is_stop_requested;

/// Time between two looks for a signal.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

pub(super) fn serve(arguments: &ServeArguments) -> anyhow::Result<u8> {
    let config = HostConfig::load(&arguments.config)?;
    if config.control_socket.is_some() {
        complain("control.socket is ignored: the control API is not there yet");
    }
    let mut brokers = Vec::new();
    for gpu in &config.gpus {
        let vms: Vec<_> = config.vms.iter().filter(|vm| vm.gpu == gpu.name).collect();
        brokers.push((gpu, start(gpu, &vms)?));
    }
    let served = announce(&config.vms)
        .context("cannot write to stdout")
        .and_then(|()| wait(&brokers));
    // The host's driver must not get a card that a broker still holds.
    drop(brokers);
    if arguments.restore_driver {
        config.gpus.iter().for_each(restore_driver);
    }
    served.map(|()| 0)
}

/// Waits for a signal, or a broker's end.
fn wait(brokers: &[(&GpuSection, Broker)]) -> anyhow::Result<()> {
    // Each of several waits its part of the period.
    let period = LOOK_PERIOD / brokers.len() as u32;
    while !is_stop_requested() {
        for (gpu, broker) in brokers {
            if let Some(ended) = broker.wait_ended(period) {
                bail!("gpu {}: {ended}", gpu.name);
            }
        }
    }
    Ok(())
}

/// Removes the driver override of a card of the host and lets the host choose. A failure is only reported: the
/// broker's own result stays.
fn restore_driver(gpu: &GpuSection) {
    let CardChoice::Vfio(at) = gpu.card else { return };
    let rebound = PciFunction::find(at).and_then(|function| function.rebind(None));
    match rebound {
        Ok(function) => complain(&format!("{at} is bound to {}", function.driver_name())),
        Err(error) => complain(&format!("{at} stays with VFIO: {error}: vramd unbind {at}")),
    }
}

fn start(gpu: &GpuSection, vms: &[&VmSection]) -> anyhow::Result<Broker> {
    let sockets = vms.iter().map(|vm| VmSocket {
        path: vm.socket.clone(),
        config: vm.config.clone(),
    });
    start_broker(HostSetup {
        card: gpu.card.clone(),
        host_ram: gpu.host_ram,
        firmware: gpu.firmware.clone(),
        seed: 0,
        record: None,
        vms: sockets.collect(),
    })
    .with_context(|| format!("gpu {}", gpu.name))
}

/// One line for each VM: its socket, and how to attach QEMU.
fn announce(vms: &[VmSection]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for vm in vms {
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": { "type": "unix", "path": vm.socket },
        });
        let (name, size) = (&vm.config.name, Size(vm.config.guest_vram));
        writeln!(
            out,
            "vm {name}: {size} guest VRAM at {}; QEMU: -device '{device}'",
            vm.socket.display()
        )?;
    }
    out.flush()
}
