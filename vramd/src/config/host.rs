//! `host.toml`: the cards of a broker and its VMs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use broker::SocketAccess;
use fermi_spec::board::Board;
use serde::Deserialize;
use toml::Spanned;
use vgpu::{
    CHANNELS_DEFAULT, FrameSearch, GpuConfig, PolicyName, Quota, RAM_DEFAULT, ShadowMode, VmConfig,
    WindowMode,
};

use sizes::{Bound, Size};
use vmm::sandbox::accounts::Kind;
use vramd_vm::config::{ConfigError, ConfigFile, Wrong, check_name, load};

use super::account::{Account, id, uids};
use super::settings::{self, RawSettings};
use super::{Device, check_card_vram, check_guest_vram};
use crate::host::CardChoice;

/// Spill pool of a card that names none.
const HOST_RAM_DEFAULT: u64 = 4 << 30;
/// Chunk of a VM that names none.
pub(crate) const CHUNK_DEFAULT: u64 = 2 << 20;

/// The section of one card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuSection {
    /// Name by which VMs refer to it.
    pub name: String,
    /// Kind and address of the card.
    pub card: CardChoice,
    /// What its memory manager is set to; what the card itself says is filled in when it is opened.
    pub settings: GpuConfig,
    /// Folder with microcode for its copy engines.
    pub firmware: Option<PathBuf>,
    /// Folder for flight files; beside the VMs' sockets if none is named.
    pub flight_folder: Option<PathBuf>,
}

/// The section of one VM that may attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmSection {
    /// Name of its card.
    pub gpu: String,
    /// Path of the socket for its VMM.
    pub socket: PathBuf,
    /// Whose the socket is, and who may connect.
    pub access: SocketAccess,
    /// VRAM, quota and chunk size of the VM.
    pub config: VmConfig,
}

/// The section of the control API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlSection {
    /// Path of its socket.
    pub socket: PathBuf,
    /// Group whose members may use it, beside root and the broker's own user.
    pub group: Option<u32>,
    /// Port of this host at which metrics can be read, by whoever has an account on it.
    pub metrics: Option<SocketAddr>,
    /// Where what operators say is kept; beside the socket if it is not named.
    pub state: Option<PathBuf>,
}

/// A whole `host.toml`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// The control API, if there is to be one.
    pub control: Option<ControlSection>,
    /// Cards, at least one.
    pub gpus: Vec<GpuSection>,
    /// The VMs that may attach.
    pub vms: Vec<VmSection>,
}

impl HostConfig {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<HostConfig, ConfigError> {
        load(path)
    }
}

/// The structure of a `host.toml`, before its values are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawHost {
    control: Option<RawControl>,
    gpu: Vec<RawGpu>,
    #[serde(default)]
    vm: Vec<RawVm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawControl {
    socket: Spanned<PathBuf>,
    group: Option<Spanned<Account>>,
    metrics: Option<Spanned<String>>,
    state: Option<Spanned<PathBuf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpu {
    name: Spanned<String>,
    device: Spanned<String>,
    vram: Option<Spanned<Size>>,
    workers: Option<Spanned<u32>>,
    host_ram: Option<Size>,
    firmware: Option<PathBuf>,
    flight_folder: Option<PathBuf>,
    #[serde(default)]
    policy: PolicyName,
    #[serde(default)]
    frames: FrameSearch,
    #[serde(default)]
    windows: WindowMode,
    #[serde(default)]
    shadow: ShadowMode,
    #[serde(default)]
    settings: RawSettings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVm {
    name: Spanned<String>,
    gpu: Spanned<String>,
    socket: Spanned<PathBuf>,
    socket_owner: Option<Spanned<Account>>,
    socket_group: Option<Spanned<Account>>,
    socket_mode: Option<Spanned<String>>,
    socket_users: Option<Spanned<Vec<Account>>>,
    guest_vram: Spanned<Size>,
    chunk: Option<Spanned<Size>>,
    ram: Option<Spanned<Size>>,
    channels: Option<Spanned<u32>>,
    min: Option<Spanned<Bound>>,
    low: Option<Bound>,
    high: Option<Bound>,
    max: Option<Bound>,
    weight: Option<Spanned<u32>>,
}

/// Adds the place to a check's reason.
fn at<T, U, E: ToString>(
    value: &Spanned<T>,
    field: &str,
    check: impl FnOnce(&T) -> Result<U, E>,
) -> Result<U, Wrong> {
    check(value.get_ref()).map_err(|reason| Wrong::new(value.span(), field, reason.to_string()))
}

fn is_new<T: Ord + Clone>(seen: &mut BTreeSet<T>, value: &T, what: &str) -> Result<(), String> {
    if seen.insert(value.clone()) {
        Ok(())
    } else {
        Err(format!("another {what} has it already"))
    }
}

impl RawGpu {
    fn validate(self, names: &mut BTreeSet<String>) -> Result<GpuSection, Wrong> {
        at(&self.name, "gpu.name", |name| check_name(name))?;
        at(&self.name, "gpu.name", |name| is_new(names, name, "gpu"))?;
        let device = at(&self.device, "gpu.device", |device| Device::parse(device))?;
        if let Some(vram) = &self.vram {
            at(vram, "gpu.vram", |vram| check_card_vram(vram.0))?;
        }
        let bytes = self.vram.as_ref().map(|vram| vram.get_ref().0);
        let span = self.vram.as_ref().map_or(0..0, Spanned::span);
        let mut card = device
            .with_vram(bytes, Board::vram_bytes)
            .map_err(|reason| Wrong::new(span, "gpu.vram", reason))?;
        if let Some(workers) = &self.workers {
            at(workers, "gpu.workers", |workers| card.set_workers(*workers))?;
        }
        let mut settings = GpuConfig {
            host_ram: self.host_ram.map_or(HOST_RAM_DEFAULT, |size| size.0),
            policy: self.policy,
            frames: self.frames,
            windows: self.windows,
            shadow: self.shadow,
            ..GpuConfig::default()
        };
        settings::apply(self.settings, &mut settings)?;
        Ok(GpuSection {
            name: self.name.into_inner(),
            card,
            settings,
            firmware: self.firmware,
            flight_folder: self.flight_folder,
        })
    }
}

/// The mode of a socket. To connect to one takes the right to write to it.
pub(crate) fn socket_mode(text: &str) -> Result<u32, String> {
    match text {
        "0600" => Ok(0o600),
        "0660" => Ok(0o660),
        "0666" => Ok(0o666),
        _ => Err(format!(
            "{text:?} is not \"0600\", \"0660\" or \"0666\": its owner connects, its group too, everybody"
        )),
    }
}

/// The mode of a socket of which none is named: its owner's alone, or its group's too if that is named.
pub(crate) fn usual_mode(group: Option<u32>) -> u32 {
    match group {
        Some(_) => 0o660,
        None => 0o600,
    }
}

/// An address that only this host reaches: nobody is asked who he is there, and nothing is encrypted.
fn own_port(text: &str) -> Result<SocketAddr, String> {
    let help = "write \"127.0.0.1:9400\" or \"[::1]:9400\"";
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is no address and port: {help}"))?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{text:?} can be reached from other hosts, and whoever connects is not asked who he is: {help}, and have a proxy that asks \
             serve others"
        )),
    }
}

impl RawControl {
    fn validate(self, sockets: &mut BTreeSet<PathBuf>) -> Result<ControlSection, Wrong> {
        let group = id(&self.group, Kind::Group, "control.group")?;
        let metrics = self.metrics.as_ref();
        let metrics = metrics.map(|address| at(address, "control.metrics", |text| own_port(text)));
        let socket = self.socket.into_inner();
        sockets.insert(socket.clone());
        if let Some(state) = &self.state {
            let check = |path: &PathBuf| {
                let is_file = path.file_name().is_some() && *path != socket;
                is_file.then_some(()).ok_or("it names no file of its own")
            };
            at(state, "control.state", check)?;
        }
        Ok(ControlSection {
            socket,
            group,
            metrics: metrics.transpose()?,
            state: self.state.map(Spanned::into_inner),
        })
    }
}

impl RawVm {
    /// Whose the socket is: only its owner's unless a group or a mode is named.
    fn access(&self) -> Result<SocketAccess, Wrong> {
        let owner = id(&self.socket_owner, Kind::User, "vm.socket_owner")?;
        let group = id(&self.socket_group, Kind::Group, "vm.socket_group")?;
        let mode = self.socket_mode.as_ref();
        let mode = mode.map(|mode| at(mode, "vm.socket_mode", |mode| socket_mode(mode)));
        let mode = mode.transpose()?.unwrap_or(usual_mode(group));
        let users = self.socket_users.as_ref();
        let users = users.map(|users| uids(users, "vm.socket_users"));
        Ok(SocketAccess {
            owner,
            group,
            mode: Some(mode),
            users: users.transpose()?,
        })
    }

    /// What is named of the quota, and the usual for the rest.
    fn quota(&self) -> Quota {
        let usual = Quota::default();
        let bound = |bound: Option<Bound>, otherwise| bound.map_or(otherwise, |bound| bound.0);
        Quota {
            min: bound(self.min.as_ref().map(|min| *min.get_ref()), usual.min),
            low: bound(self.low, usual.low),
            high: bound(self.high, usual.high),
            max: bound(self.max, usual.max),
            weight: self
                .weight
                .as_ref()
                .map_or(usual.weight, |weight| *weight.get_ref()),
        }
    }

    fn validate(
        self,
        gpus: &BTreeSet<String>,
        names: &mut BTreeSet<String>,
        sockets: &mut BTreeSet<PathBuf>,
    ) -> Result<VmSection, Wrong> {
        at(&self.name, "vm.name", |name| check_name(name))?;
        at(&self.name, "vm.name", |name| is_new(names, name, "vm"))?;
        at(&self.gpu, "vm.gpu", |gpu| {
            gpus.contains(gpu)
                .then_some(())
                .ok_or(format!("there is no gpu {gpu:?}"))
        })?;
        at(&self.socket, "vm.socket", |socket| {
            is_new(sockets, socket, "vm or control")
        })?;
        let access = self.access()?;
        at(&self.guest_vram, "vm.guest_vram", |size| check_guest_vram(size.0))?;
        let (unbounded, quota) = (Quota::default(), self.quota());
        let config = VmConfig {
            name: self.name.get_ref().clone(),
            guest_vram: self.guest_vram.get_ref().0,
            chunk_bytes: self
                .chunk
                .as_ref()
                .map_or(CHUNK_DEFAULT, |chunk| chunk.get_ref().0),
            quota,
            ram: self.ram.as_ref().map_or(RAM_DEFAULT, |ram| ram.get_ref().0),
            channels: self
                .channels
                .as_ref()
                .map_or(CHANNELS_DEFAULT, |channels| *channels.get_ref()),
        };
        if let Some(ram) = &self.ram {
            at(ram, "vm.ram", |_| config.check_ram())?;
        }
        if let Some(channels) = &self.channels {
            at(channels, "vm.channels", |_| config.check_channels())?;
        }
        if let Some(weight) = &self.weight {
            let alone = Quota {
                weight: quota.weight,
                ..unbounded
            };
            at(weight, "vm.weight", |_| alone.check())?;
        }
        if let Some(min) = &self.min {
            at(min, "vm.min", |_| quota.check())?;
        }
        if let Some(chunk) = &self.chunk {
            at(chunk, "vm.chunk", |_| config.check())?;
        }
        // The remaining errors concern no single field.
        at(&self.name, "vm", |_| config.check())?;
        Ok(VmSection {
            gpu: self.gpu.into_inner(),
            socket: self.socket.into_inner(),
            access,
            config,
        })
    }
}

impl ConfigFile for HostConfig {
    type Raw = RawHost;

    fn validate(raw: RawHost) -> Result<HostConfig, Wrong> {
        if raw.gpu.is_empty() {
            return Err(Wrong::new(0..0, "gpu", "at least one [[gpu]] is needed"));
        }
        let mut gpu_names = BTreeSet::new();
        let gpus = raw.gpu.into_iter().map(|gpu| gpu.validate(&mut gpu_names));
        let gpus = gpus.collect::<Result<Vec<_>, _>>()?;
        let (mut names, mut sockets) = (BTreeSet::new(), BTreeSet::new());
        let control = raw
            .control
            .map(|control| control.validate(&mut sockets))
            .transpose()?;
        let vms = raw
            .vm
            .into_iter()
            .map(|vm| vm.validate(&gpu_names, &mut names, &mut sockets));
        Ok(HostConfig {
            control,
            gpus,
            vms: vms.collect::<Result<Vec<_>, _>>()?,
        })
    }
}
