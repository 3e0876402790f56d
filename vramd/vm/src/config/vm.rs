//! `vm.toml`: one VM that attaches to a broker's socket.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sizes::Size;
use toml::Spanned;

use super::{ConfigError, ConfigFile, Wrong, check_name, load};
use vmm::loader::RAM_BYTES_MIN;
use vmm::vm::RAM_BYTES_MAX;
use vmm::{DEVICES_MAX, MacAddress, ParseMacError, Tap};

/// RAM of a VM that names none.
const MEMORY_DEFAULT: u64 = 256 << 20;

/// A whole `vm.toml`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmFile {
    /// Name of the VM in messages.
    pub name: String,
    /// RAM in bytes.
    pub memory: u64,
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Program to boot; without one, the bare-metal guest that is built in.
    pub kernel: Option<PathBuf>,
    /// First root of a Linux guest.
    pub initramfs: Option<PathBuf>,
    /// Files that a bare-metal guest finds in its RAM.
    pub inputs: Vec<PathBuf>,
    /// Disks of a Linux guest.
    pub disks: Vec<DiskFile>,
    /// Network devices of a Linux guest.
    pub networks: Vec<NetFile>,
    /// Words for the guest's command line.
    pub options: String,
    /// Socket of the vGPU.
    pub socket: PathBuf,
}

/// A disk of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskFile {
    /// Raw image or block device.
    pub path: PathBuf,
    /// Whether the guest's writes are refused.
    #[serde(default)]
    pub read_only: bool,
}

/// A network device of a VM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetFile {
    /// Name of its tap.
    pub tap: String,
    /// Hardware address in the guest.
    pub mac: MacAddress,
}

impl VmFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<VmFile, ConfigError> {
        load(path)
    }
}

/// The structure of a `vm.toml`, before its values are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawVm {
    name: Spanned<String>,
    memory: Option<Spanned<Size>>,
    vcpus: Option<Spanned<usize>>,
    kernel: Option<PathBuf>,
    initramfs: Option<PathBuf>,
    #[serde(default)]
    inputs: Vec<PathBuf>,
    #[serde(default)]
    disk: Vec<Spanned<DiskFile>>,
    #[serde(default)]
    net: Vec<Spanned<RawNet>>,
    #[serde(default)]
    options: String,
    vgpu: RawVgpu,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVgpu {
    socket: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNet {
    tap: Spanned<String>,
    mac: Option<Spanned<String>>,
}

/// The networks of the VM called `vm`: no tap and no address may appear twice.
fn networks(vm: &str, raw: Vec<Spanned<RawNet>>) -> Result<Vec<NetFile>, Wrong> {
    let mut networks: Vec<NetFile> = Vec::new();
    for RawNet { tap, mac } in raw.into_iter().map(Spanned::into_inner) {
        let tap_wrong = |reason: String| Wrong::new(tap.span(), "tap", reason);
        let name = tap.get_ref().clone();
        Tap::check_name(&name).map_err(|error| tap_wrong(error.to_string()))?;
        if networks.iter().any(|other| other.tap == name) {
            return Err(tap_wrong(format!(
                "another [[net]] has {name:?}: each needs a tap of its own"
            )));
        }
        let address = match &mac {
            Some(mac) => mac.get_ref().parse(),
            None => Ok(MacAddress::of(vm, &name)),
        };
        let mac_span = mac.map_or(tap.span(), |mac| mac.span());
        let mac_wrong = |reason: String| Wrong::new(mac_span.clone(), "mac", reason);
        let mac = address.map_err(|error: ParseMacError| mac_wrong(error.to_string()))?;
        if networks.iter().any(|other| other.mac == mac) {
            return Err(mac_wrong(format!("another [[net]] has {mac}")));
        }
        networks.push(NetFile { tap: name, mac });
    }
    Ok(networks)
}

/// Whether a VM can have this much RAM.
fn check_memory(bytes: u64) -> Result<(), String> {
    if !(RAM_BYTES_MIN..=RAM_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(4096) {
        let (min, max) = (Size(RAM_BYTES_MIN), Size(RAM_BYTES_MAX));
        return Err(format!(
            "{} is not a multiple of 4K from {min} to {max}",
            Size(bytes)
        ));
    }
    Ok(())
}

impl ConfigFile for VmFile {
    type Raw = RawVm;

    fn validate(raw: RawVm) -> Result<VmFile, Wrong> {
        check_name(raw.name.get_ref()).map_err(|reason| Wrong::new(raw.name.span(), "name", reason))?;
        if let Some(memory) = &raw.memory {
            check_memory(memory.get_ref().0).map_err(|reason| Wrong::new(memory.span(), "memory", reason))?;
        }
        if let Some(vcpus) = raw.vcpus.as_ref().filter(|vcpus| *vcpus.get_ref() == 0) {
            return Err(Wrong::new(vcpus.span(), "vcpus", "a VM has at least one"));
        }
        let reason = format!("a VM has at most {DEVICES_MAX} disks and networks");
        if let Some(surplus) = raw.disk.get(DEVICES_MAX) {
            return Err(Wrong::new(surplus.span(), "disk", reason));
        }
        if let Some(surplus) = raw.net.get(DEVICES_MAX - raw.disk.len()) {
            return Err(Wrong::new(surplus.span(), "net", reason));
        }
        Ok(VmFile {
            networks: networks(raw.name.get_ref(), raw.net)?,
            name: raw.name.into_inner(),
            memory: raw.memory.map_or(MEMORY_DEFAULT, |memory| memory.into_inner().0),
            vcpus: raw.vcpus.map_or(1, Spanned::into_inner),
            kernel: raw.kernel,
            initramfs: raw.initramfs,
            inputs: raw.inputs,
            disks: raw.disk.into_iter().map(Spanned::into_inner).collect(),
            options: raw.options,
            socket: raw.vgpu.socket,
        })
    }
}
