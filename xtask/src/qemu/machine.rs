//! A stock QEMU with the vGPU as its only extra device, driven through QMP and qtest.
//!
//! The processors are emulated, so no KVM is needed; the firmware enumerates PCI as on any machine. qtest, QEMU's protocol for its own device tests, does single accesses to ports and physical
//! memory from outside; it works beside any accelerator and takes the way that a guest's accesses take.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::host_env::Qemu;
use crate::process::{Process, until};
use crate::qmp::{Qmp, Rendezvous};

/// RAM of the machine. Bytes.
pub(super) const RAM_BYTES: u64 = 64 << 20;
/// Name of RAM's memory file, as QEMU gives it.
pub(super) const RAM_FILE: &str = "memory-backend-memfd";
/// Name of a vfio device in `query-pci`.
const DEVICE_ID: &str = "vgpu";

/// Ports of PCI configuration mechanism 1 (PCI Local Bus Specification 3.0 §3.2.2.3.2).
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
const CONFIG_ENABLE: u32 = 1 << 31;

/// QEMU's message on standard error about a conventional PCI function, which has no error reporting to recover by.
const HARMLESS: &str = "warning: vfio vfio-user:";
const HARMLESS_END: &str = "Could not enable error recovery for the device";

/// A region as `query-pci` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct PciRegion {
    pub(super) bar: u32,
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// -1 while it does not decode.
    pub(super) address: i64,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) prefetch: bool,
    #[serde(default)]
    pub(super) mem_type_64: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PciId {
    pub(super) vendor: u16,
    pub(super) device: u16,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PciClass {
    pub(super) class: u16,
}

/// A function as `query-pci` shows it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PciDevice {
    qdev_id: String,
    bus: u32,
    slot: u32,
    function: u32,
    pub(super) id: PciId,
    pub(super) class_info: PciClass,
    pub(super) regions: Vec<PciRegion>,
}

#[derive(Deserialize)]
struct PciBus {
    devices: Vec<PciDevice>,
}

/// A running QEMU, with its monitor and its qtest socket.
pub(super) struct Machine {
    process: Process,
    qmp: Qmp,
    qtest: BufReader<UnixStream>,
}

impl Machine {
    /// Starts QEMU with a vGPU behind `vgpu` and waits until it answers. Its own files go to `folder`.
    pub(super) fn start(qemu: &Qemu, vgpu: &Path, folder: &Path) -> Result<Self> {
        let (monitor_path, qtest_path) = (folder.join("monitor.sock"), folder.join("qtest.sock"));
        let (monitor, qtest) = (Rendezvous::new(&monitor_path)?, Rendezvous::new(&qtest_path)?);
        let device = json!({
            "driver": "vfio-user-pci",
            "id": DEVICE_ID,
            "socket": { "type": "unix", "path": vgpu },
        });
        let mut command = qemu.command();
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .args(["-machine", "q35,memory-backend=ram", "-accel", "tcg"])
            .arg("-m")
            .arg(format!("{}M", RAM_BYTES >> 20))
            .arg("-object")
            .arg(format!("memory-backend-memfd,id=ram,size={RAM_BYTES},share=on"))
            .args(["-device", &device.to_string(), "-qmp"])
            .arg(Rendezvous::address(&monitor_path))
            .args(["-qtest-log", "none", "-qtest"])
            .arg(Rendezvous::address(&qtest_path));
        let mut process = Process::start("QEMU", command, folder.join("qemu.log"))?;
        let qtest = qtest.accept(&mut process)?;
        let qmp = Qmp::new(monitor.accept(&mut process)?)?;
        Ok(Self { process, qmp, qtest })
    }

    /// Runs a QMP command and returns its answer.
    pub(super) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.qmp.execute(command, arguments)
    }

    /// The vGPU as QEMU sees it.
    pub(super) fn vgpu(&mut self) -> Result<PciDevice> {
        let buses = self.execute("query-pci", json!({}))?;
        let buses: Vec<PciBus> =
            serde_json::from_value(buses).context("cannot read the answer to query-pci")?;
        let mut devices = buses.into_iter().flat_map(|bus| bus.devices);
        devices
            .find(|device| device.qdev_id == DEVICE_ID)
            .context("query-pci shows no vGPU")
    }

    /// Waits until the firmware has given the vGPU addresses.
    pub(super) fn wait_enumerated(&mut self) -> Result<PciDevice> {
        until("the firmware to place the BARs", || {
            let device = self.vgpu()?;
            let is_placed = device.regions.iter().all(|region| region.address >= 0);
            Ok((is_placed && !device.regions.is_empty()).then_some(device))
        })
    }

    /// A word of physical memory, through the monitor's memory dump.
    pub(super) fn dump_word(&mut self, address: u64) -> Result<u32> {
        let command = format!("xp /1xw {address:#x}");
        let answer = self.execute("human-monitor-command", json!({ "command-line": command }))?;
        let text = answer.as_str().unwrap_or_default();
        let word = text
            .split_once(": 0x")
            .and_then(|(_, word)| u32::from_str_radix(word.trim(), 16).ok());
        word.with_context(|| format!("the monitor answers {text:?} to {command}"))
    }

    /// Sends one qtest command; returns the text behind its OK.
    pub(super) fn qtest(&mut self, command: &str) -> Result<String> {
        // One write: a stream that is not buffered would send a batch of small ones.
        let line = format!("{command}\n");
        self.qtest
            .get_mut()
            .write_all(line.as_bytes())
            .context("QEMU takes no qtest command")?;
        let mut answer = String::new();
        self.qtest
            .read_line(&mut answer)
            .context("QEMU answers no qtest command")?;
        let rest = answer.strip_prefix("OK").and_then(|rest| rest.strip_suffix('\n'));
        let rest = rest.with_context(|| format!("qtest answers {answer:?} to {command:.60}"))?;
        Ok(rest.trim_start().to_owned())
    }

    /// One qtest command that is answered with a number.
    pub(super) fn qtest_number(&mut self, command: &str) -> Result<u64> {
        let answer = self.qtest(command)?;
        let number = answer
            .strip_prefix("0x")
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.with_context(|| format!("qtest answers {answer:?} to {command}"))
    }

    fn select_config(&mut self, device: &PciDevice, offset: u8) -> Result<()> {
        let function = device.bus << 16 | device.slot << 11 | device.function << 8;
        let address = CONFIG_ENABLE | function | u32::from(offset & !3);
        self.qtest(&format!("outl {CONFIG_ADDRESS:#x} {address:#x}"))
            .map(drop)
    }

    /// The aligned word of configuration space that holds `offset`.
    pub(super) fn read_config(&mut self, device: &PciDevice, offset: u8) -> Result<u32> {
        self.select_config(device, offset)?;
        Ok(self.qtest_number(&format!("inl {CONFIG_DATA:#x}"))? as u32)
    }

    /// Writes an aligned word of configuration space.
    pub(super) fn write_config(&mut self, device: &PciDevice, offset: u8, value: u32) -> Result<()> {
        self.select_config(device, offset)?;
        self.qtest(&format!("outl {CONFIG_DATA:#x} {value:#x}")).map(drop)
    }

    /// Ends QEMU; any complaint on its standard error is an error.
    pub(super) fn quit(mut self) -> Result<()> {
        self.execute("quit", json!({}))?;
        let status = self.process.wait()?;
        let said = self.process.errors()?;
        ensure!(status.success(), "QEMU ended with {status}: {}", said.trim());
        match said.lines().find(|line| !is_harmless(line)) {
            Some(complaint) => bail!("QEMU complained: {complaint}"),
            None => Ok(()),
        }
    }
}

fn is_harmless(line: &str) -> bool {
    line.contains(HARMLESS) && line.ends_with(HARMLESS_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_query_pci_is_read() {
        let text = json!([{ "bus": 0, "devices": [{
            "irq_pin": 0, "bus": 0, "qdev_id": "vgpu", "slot": 1, "function": 0,
            "class_info": { "class": 770, "desc": "3D controller" },
            "id": { "device": 1728, "vendor": 4318 },
            "regions": [
                { "bar": 0, "size": 4096, "address": 8192, "type": "memory", "prefetch": false, "mem_type_64": true },
                { "bar": 4, "size": 32, "address": -1, "type": "io" },
            ],
        }] }]);
        let buses: Vec<PciBus> = serde_json::from_value(text).unwrap();
        let device = &buses[0].devices[0];
        assert_eq!((device.id.vendor, device.class_info.class), (0x10de, 0x302));
        assert!(device.regions[0].mem_type_64 && !device.regions[1].mem_type_64);
        assert_eq!(device.regions[1].address, -1);
    }

    #[test]
    fn only_the_known_warning_is_harmless() {
        let warning = "qemu-system-x86_64: -device {}: warning: vfio vfio-user:a.sock: ";
        assert!(is_harmless(&format!(
            "{warning}Could not enable error recovery for the device"
        )));
        assert!(!is_harmless(&format!("{warning}something else")));
        assert!(!is_harmless("qemu-system-x86_64: vfio_region_write failed"));
    }
}
