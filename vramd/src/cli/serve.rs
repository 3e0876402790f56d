//! `vramd serve`: brokers of all cards in a configuration, until a signal.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use broker::{Broker, FlightFolder, PciFunction, VmSocket};
use vfio_user_server::threads;
use vgpu::GpuConfig;
use vmm::sandbox::privileges::User;

use super::ServeArguments;
use crate::config::{ControlSection, GpuSection, HostConfig, VmSection};
use crate::confinement::files::{Use, folder_of, restrict, try_out};
use crate::confinement::{confine, filter_calls, keep_locked_memory};
use crate::control::{CONNECTIONS_MAX, Control, Host};
use crate::host::{CardChoice, HostSetup, Prepared};
use crate::keeper::state::{State, Store};
use crate::keeper::{Jobs, Keeper, KeeperSetup, Merged, MergedVm, usual_state_file};
use crate::notify;
use crate::{descriptors, sockets};
use sizes::Size;
use vramd_vm::program::complain;
use vramd_vm::signals::{install_flight_request, install_reload_request};

/// Where a card's driver is changed.
const SYSFS: &str = "/sys";

pub(super) fn serve(arguments: &ServeArguments) -> anyhow::Result<u8> {
    let config = HostConfig::load(&arguments.config)?;
    let has_host_card = config.gpus.iter().any(is_of_host);
    let user = arguments.user.as_ref();
    let control = config.control.as_ref();
    // First, because a second broker of the same file ends here.
    let control_socket = control
        .map(|control| sockets::bind_control(control, user))
        .transpose()?;
    let kept = control.map(open_state).transpose()?;
    let (store, state) = kept.unzip();
    let merged = Merged::of(&config, &state.unwrap_or_default());
    let connections = control.map_or(0, |_| CONNECTIONS_MAX);
    descriptors::provide(config.gpus.len(), merged.vms.len(), connections)?;
    let metrics = control.map(sockets::bind_metrics).transpose()?.flatten();
    let scraped = metrics.as_ref().map(TcpListener::local_addr).transpose();
    let scraped = scraped.context("control.metrics")?;
    let mut sockets = Vec::new();
    for vm in &merged.vms {
        sockets.extend(bind(vm, user)?);
    }
    let mut prepared = Vec::new();
    let folders = socket_folders(&config, &merged);
    let mut uses = serve_uses(&config, &arguments.config, &folders);
    for (gpu, host_ram) in config.gpus.iter().zip(&merged.host_rams) {
        let vms = sockets.extract_if(.., |(name, _)| *name == gpu.name);
        let vms = vms.map(|(_, socket)| socket).collect();
        let folder = flight_folder(gpu, config.vms.iter().find(|vm| vm.gpu == gpu.name))?;
        uses.extend(folder.iter().map(|folder| (folder.clone(), Use::Write)));
        let flights = folder.map(|folder| FlightFolder::new(folder, &*gpu.name));
        let settings = settings_of(gpu, *host_ram, arguments);
        prepared.push((gpu.name.clone(), prepare(gpu, settings, flights, vms)?));
    }
    if has_host_card {
        keep_locked_memory()?;
    }
    if has_host_card && arguments.restore_driver {
        uses.push((PathBuf::from(SYSFS), Use::Change));
    }
    give_up_rights(arguments, &uses)?;
    let (keeper, jobs) = Jobs::new();
    let host = Arc::new(Host::new(start(prepared)?, keeper));
    let mut keeper = Keeper::new(KeeperSetup {
        host: host.clone(),
        jobs,
        file: config.clone(),
        path: arguments.config.clone(),
        merged: merged.clone(),
        store,
        user: arguments.user.clone(),
        folders,
    })?;
    let group = control.and_then(|control| control.group);
    let control = control_socket.map(|socket| Control::start(socket, group, metrics, host.clone()));
    let control = control.transpose()?;
    let served = announce(&merged.vms, scraped)
        .context("cannot write to stdout")
        .and_then(|()| keeper.keep());
    notify::stopping();
    drop(control);
    drop(keeper);
    // The host's driver must not get a card that a broker still holds.
    drop(host);
    if arguments.restore_driver {
        config.gpus.iter().for_each(restore_driver);
    }
    served.map(|()| 0)
}

/// From here on the process opens what `uses` say, and signals ask instead of ending it.
fn give_up_rights(arguments: &ServeArguments, uses: &[(PathBuf, Use)]) -> anyhow::Result<()> {
    confine(arguments.user.as_ref())?;
    try_out(restrict(uses)?)?;
    filter_calls(!arguments.no_seccomp)?;
    install_flight_request()?;
    install_reload_request()
}

/// What operators said when the broker ran before.
fn open_state(control: &ControlSection) -> anyhow::Result<(Store, State)> {
    let path = control.state.clone();
    let path = path.unwrap_or_else(|| usual_state_file(&control.socket));
    Ok(Store::open(&path)?)
}

/// Listens for the VMM of a VM; the socket with the name of its card. One that an operator attached costs nobody else the start.
fn bind(vm: &MergedVm, user: Option<&User>) -> anyhow::Result<Option<(String, VmSocket)>> {
    let mut section = vm.section.clone();
    section.config.quota = vm.quota;
    match sockets::bind(&section, user) {
        Ok(socket) => Ok(Some((section.gpu, socket.with_hold(vm.hold)))),
        Err(error) if vm.is_in_file => Err(error),
        Err(error) => {
            let name = &section.config.name;
            complain(&format!(
                "vm {name}, which an operator attached, is not served: {error:#}"
            ));
            Ok(None)
        }
    }
}

/// What the process opens by name once it is confined: its file to read it again, sockets to make and remove, what it keeps.
fn serve_uses(config: &HostConfig, path: &Path, folders: &[PathBuf]) -> Vec<(PathBuf, Use)> {
    let mut uses = vec![(folder_of(path), Use::Read)];
    for folder in folders {
        uses.push((folder.clone(), Use::Write));
        if config.control.is_some() {
            uses.push((folder.clone(), Use::Listen));
        }
    }
    let state = config
        .control
        .as_ref()
        .and_then(|control| control.state.as_deref());
    uses.extend(state.map(|state| (folder_of(state), Use::Write)));
    uses
}

fn is_of_host(gpu: &GpuSection) -> bool {
    matches!(gpu.card, CardChoice::Vfio(_))
}

/// Starts the brokers.
fn start(prepared: Vec<(String, Prepared)>) -> anyhow::Result<Vec<(String, Broker)>> {
    let mut brokers = Vec::new();
    for (gpu, prepared) in prepared {
        let broker = threads::for_card(&gpu, || prepared.start()).with_context(|| format!("gpu {gpu}"))?;
        brokers.push((gpu, broker));
    }
    Ok(brokers)
}

/// Sockets are removed at the end, and made when VMs are attached.
fn socket_folders(config: &HostConfig, merged: &Merged) -> Vec<PathBuf> {
    let control = config.control.iter().map(|control| &control.socket);
    let of_vms = merged.vms.iter().map(|vm| &vm.section.socket);
    // Those of VMs that are detached too: they can be attached again.
    let in_file = config
        .vms
        .iter()
        .map(|vm| &vm.socket)
        .filter(|socket| folder_of(socket).is_dir());
    let mut folders: Vec<_> = of_vms
        .chain(in_file)
        .chain(control)
        .map(|socket| folder_of(socket))
        .collect();
    folders.sort();
    folders.dedup();
    folders
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

/// A card's settings, with what the command line says of all cards.
fn settings_of(gpu: &GpuSection, host_ram: u64, arguments: &ServeArguments) -> GpuConfig {
    GpuConfig {
        host_ram,
        windows: arguments.windows.unwrap_or(gpu.settings.windows),
        shadow: arguments.shadow.unwrap_or(gpu.settings.shadow),
        ..gpu.settings.clone()
    }
}

fn prepare(
    gpu: &GpuSection,
    settings: GpuConfig,
    flights: Option<FlightFolder>,
    vms: Vec<VmSocket>,
) -> anyhow::Result<Prepared> {
    Prepared::open(HostSetup {
        card: gpu.card.clone(),
        settings,
        firmware: gpu.firmware.clone(),
        flights,
        record: None,
        vms,
    })
    .with_context(|| format!("gpu {}", gpu.name))
}

/// The argument that attaches QEMU to a socket.
pub(super) fn qemu_device(socket: &Path) -> String {
    let device = serde_json::json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": socket },
    });
    format!("-device '{device}'")
}

/// One line for each VM: its socket, and how to attach QEMU; and where metrics are.
fn announce(vms: &[MergedVm], metrics: Option<SocketAddr>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for MergedVm { section: vm, .. } in vms {
        let device = qemu_device(&vm.socket);
        let (name, size) = (&vm.config.name, Size(vm.config.guest_vram));
        writeln!(
            out,
            "vm {name}: {size} guest VRAM at {}; QEMU: {device}",
            vm.socket.display()
        )?;
    }
    if let Some(address) = metrics {
        writeln!(out, "metrics at http://{address}/metrics")?;
    }
    out.flush()
}
