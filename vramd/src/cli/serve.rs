//! `vramd serve`: brokers of all cards in a configuration, until a signal.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use broker::{Broker, FlightFolder, PciFunction, VmSocket};

use super::ServeArguments;
use crate::config::{GpuSection, HostConfig, VmSection};
use crate::confinement::files::{Use, folder_of, restrict, try_out};
use crate::confinement::{confine, filter_calls, keep_locked_memory};
use crate::control::{CONNECTIONS_MAX, Control, Host, Place};
use crate::host::{CardChoice, HostSetup, Prepared};
use crate::{descriptors, sockets};
use sizes::Size;
use vramd_vm::program::complain;
use vramd_vm::signals::{install_flight_request, is_stop_requested, take_flight_request};

/// Where a card's driver is changed.
const SYSFS: &str = "/sys";
/// Time between two looks for a signal.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

pub(super) fn serve(arguments: &ServeArguments) -> anyhow::Result<u8> {
    let config = HostConfig::load(&arguments.config)?;
    let has_host_card = config.gpus.iter().any(is_of_host);
    let connections = config.control.as_ref().map_or(0, |_| CONNECTIONS_MAX);
    descriptors::provide(config.gpus.len(), config.vms.len(), connections)?;
    let user = arguments.user.as_ref();
    let control = config.control.as_ref();
    let control_socket = control
        .map(|control| sockets::bind_control(control, user))
        .transpose()?;
    let metrics = control.map(sockets::bind_metrics).transpose()?.flatten();
    let scraped = metrics.as_ref().map(TcpListener::local_addr).transpose();
    let scraped = scraped.context("control.metrics")?;
    let bind = |vm: &VmSection| Ok((vm.gpu.clone(), sockets::bind(vm, user)?));
    let mut sockets = config.vms.iter().map(bind).collect::<anyhow::Result<Vec<_>>>()?;
    let mut prepared = Vec::new();
    let mut uses = socket_folders(&config);
    for gpu in &config.gpus {
        let vms = sockets.extract_if(.., |(name, _)| *name == gpu.name);
        let vms = vms.map(|(_, socket)| socket).collect();
        let folder = flight_folder(gpu, config.vms.iter().find(|vm| vm.gpu == gpu.name))?;
        uses.extend(folder.iter().map(|folder| (folder.clone(), Use::Write)));
        let flights = folder.map(|folder| FlightFolder::new(folder, &*gpu.name));
        prepared.push((gpu, prepare(gpu, flights, vms)?));
    }
    if has_host_card {
        keep_locked_memory()?;
    }
    if has_host_card && arguments.restore_driver {
        uses.push((PathBuf::from(SYSFS), Use::Change));
    }
    confine(user)?;
    try_out(restrict(&uses)?, &arguments.config)?;
    filter_calls(!arguments.no_seccomp)?;
    install_flight_request()?;
    let host = Arc::new(start(&config, prepared)?);
    let group = control.and_then(|control| control.group);
    let control = control_socket.map(|socket| Control::start(socket, group, metrics, host.clone()));
    let control = control.transpose()?;
    let served = announce(&config.vms, scraped)
        .context("cannot write to stdout")
        .and_then(|()| wait(&host.brokers));
    drop(control);
    // The host's driver must not get a card that a broker still holds.
    drop(host);
    if arguments.restore_driver {
        config.gpus.iter().for_each(restore_driver);
    }
    served.map(|()| 0)
}

fn is_of_host(gpu: &GpuSection) -> bool {
    matches!(gpu.card, CardChoice::Vfio(_))
}

/// Starts the brokers.
fn start(config: &HostConfig, prepared: Vec<(&GpuSection, Prepared)>) -> anyhow::Result<Host> {
    let mut brokers = Vec::new();
    for (gpu, prepared) in prepared {
        let broker = prepared.start().with_context(|| format!("gpu {}", gpu.name))?;
        brokers.push((gpu.name.clone(), broker));
    }
    let place = |vm: &VmSection| {
        let gpu = brokers.iter().position(|(name, _)| *name == vm.gpu)?;
        let socket = vm.socket.clone();
        Some((vm.config.name.clone(), Place { gpu, socket }))
    };
    let vms = config.vms.iter().filter_map(place).collect();
    Ok(Host { brokers, vms })
}

/// Sockets are removed at the end.
fn socket_folders(config: &HostConfig) -> Vec<(PathBuf, Use)> {
    let control = config.control.iter().map(|control| &control.socket);
    let sockets = config.vms.iter().map(|vm| &vm.socket).chain(control);
    sockets.map(|socket| (folder_of(socket), Use::Write)).collect()
}

/// Waits for a signal, or a broker's end.
fn wait(brokers: &[(String, Broker)]) -> anyhow::Result<()> {
    // Each of several waits its part of the period.
    let period = LOOK_PERIOD / brokers.len() as u32;
    while !is_stop_requested() {
        for (gpu, broker) in brokers {
            if let Some(ended) = broker.wait_ended(period) {
                bail!("gpu {gpu}: {ended}");
            }
        }
        if take_flight_request() {
            brokers.iter().for_each(|(gpu, broker)| write_flight(gpu, broker));
        }
    }
    Ok(())
}

/// Writes what happened last at one card, and names the file.
fn write_flight(gpu: &str, broker: &Broker) {
    match broker.write_flight("SIGUSR1") {
        Ok(path) => complain(&format!("gpu {gpu}: what happened last is in {}", path.display())),
        Err(error) => complain(&format!("gpu {gpu}: {:#}", anyhow::Error::new(error))),
    }
}

/// The folder for flight files: the one that the configuration names, which has to be there, or the first socket's.
fn flight_folder(gpu: &GpuSection, first: Option<&VmSection>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(folder) = &gpu.flight_folder {
        let name = folder.display();
        ensure!(
            folder.is_dir(),
            "gpu {}: flight_folder {name} is no folder",
            gpu.name
        );
    }
    let beside_sockets = || Some(folder_of(&first?.socket));
    Ok(gpu.flight_folder.clone().or_else(beside_sockets))
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

fn prepare(gpu: &GpuSection, flights: Option<FlightFolder>, vms: Vec<VmSocket>) -> anyhow::Result<Prepared> {
    Prepared::open(HostSetup {
        card: gpu.card.clone(),
        settings: gpu.settings.clone(),
        firmware: gpu.firmware.clone(),
        flights,
        record: None,
        vms,
    })
    .with_context(|| format!("gpu {}", gpu.name))
}

/// One line for each VM: its socket, and how to attach QEMU; and where metrics are.
fn announce(vms: &[VmSection], metrics: Option<SocketAddr>) -> std::io::Result<()> {
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
    if let Some(address) = metrics {
        writeln!(out, "metrics at http://{address}/metrics")?;
    }
    out.flush()
}
