//! The driver's description of the card, and channels and engine objects as such.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use fermi_spec::methods::class;
use report::Outcome;

use super::{Case, Nodes, noisy, quiet};
use crate::channel::Channel;
use crate::device::Device;
use crate::push::{Push, Unit};
use crate::sys;
use crate::uapi::param;

pub(super) const CASES: &[Case] = &[
    quiet("nodes-open", nodes_open),
    quiet("parameters", parameters),
    quiet("time-passes", time_passes),
    quiet("channel-churn", channel_churn),
    quiet("classes-offered", classes_offered),
    quiet("objects-legacy", objects_legacy),
    quiet("objects-nvif", objects_nvif),
    quiet("unknown-class-refused", unknown_class_refused),
    noisy("all-channels", "!chids", all_channels),
];

/// Vendor of the card.
const NVIDIA: u64 = 0x10de;
/// Chipset number of a GF100.
const GF100: u64 = 0xc0;
/// Channels that a GF100 has.
const CHANNELS: usize = 128;
/// Channels of those that the kernel may need for itself.
const CHANNELS_KEPT_MAX: usize = 4;

fn nodes_open(nodes: &Nodes) -> Result<Outcome> {
    for path in [&nodes.card, &nodes.render] {
        let device = Device::open(path)?;
        let chipset = device.parameter(param::CHIPSET)?;
        ensure!(chipset == GF100, "chipset {chipset:#x} at {}", path.display());
        let vendor = device.parameter(param::PCI_VENDOR)?;
        ensure!(vendor == NVIDIA, "vendor {vendor:#x}");
    }
    Ok(Outcome::Passed)
}

fn parameters(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let vram = device.parameter(param::VRAM_BYTES)?;
    ensure!((16 << 20..=1 << 40).contains(&vram), "{vram:#x} bytes of VRAM");
    let used = device.parameter(param::VRAM_USED)?;
    ensure!(used <= vram + (16 << 20), "{used:#x} of {vram:#x} bytes used");
    let bar1 = device.parameter(param::BAR1_BYTES)?;
    ensure!(
        bar1.is_power_of_two() && bar1 >= 64 << 20,
        "BAR1 of {bar1:#x} bytes"
    );
    ensure!(device.parameter(param::GART_BYTES)? > 0, "no GART");
    ensure!(device.parameter(param::BUS_TYPE)? <= 2, "no PCI bus");
    ensure!(
        device.parameter(param::EXEC_PUSH_MAX)? > 0,
        "no pushes in an EXEC"
    );
    let units = device.parameter(param::GRAPH_UNITS)?;
    // Bits 7:0 GPCs, 15:8 TPCs, 23:16 ROPs on Fermi.
    ensure!(
        units & 0xff != 0 && units >> 8 & 0xff != 0,
        "graphics units {units:#x}"
    );
    ensure!(device.parameter(param::PCI_DEVICE)? != 0, "no PCI device id");
    Ok(Outcome::Passed)
}

/// PTIMER counts nanoseconds of the guest, or at least of the same order.
fn time_passes(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let (gpu, cpu) = (device.parameter(param::PTIMER)?, sys::monotonic());
    thread::sleep(Duration::from_millis(200));
    let last = device.parameter(param::PTIMER)?;
    let passed = (sys::monotonic() - cpu).as_nanos() as u64;
    ensure!(last > gpu, "PTIMER went from {gpu} to {last}");
    let counted = last - gpu;
    ensure!(
        (passed / 4..=passed * 4).contains(&counted),
        "PTIMER counted {counted} ns while {passed} passed"
    );
    let mut before = last;
    for _ in 0..100 {
        let now = device.parameter(param::PTIMER)?;
        ensure!(now >= before, "PTIMER went back from {before} to {now}");
        before = now;
    }
    Ok(Outcome::Passed)
}

fn channel_churn(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    for round in 0..40 {
        let channel = Channel::new(&device)?;
        if round % 8 == 0 {
            channel.add_unit(Unit::M2mf)?;
            channel.run(Push::new().bind(Unit::M2mf), &[])?;
        }
    }
    Ok(Outcome::Passed)
}

const EXPECTED: [u16; 6] = [
    class::THREED,
    class::COMPUTE,
    class::M2MF,
    class::TWOD,
    class::COPY,
    class::COPY_1,
];

fn classes_offered(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let offered = Channel::new(&device)?.classes()?;
    for class in EXPECTED {
        ensure!(
            offered.contains(&class),
            "class {class:04x} is not among {offered:04x?}"
        );
    }
    Ok(Outcome::Passed)
}

fn objects_legacy(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &Unit::ALL)?;
    // With the last object of PGRAPH goes its context, without which a card runs nothing there.
    for unit in Unit::ALL.into_iter().filter(|unit| *unit != Unit::M2mf) {
        channel.remove(unit.binding())?;
    }
    channel.run(Push::new().bind(Unit::M2mf), &[])?;
    Ok(Outcome::Passed)
}

fn objects_nvif(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let mut push = Push::new();
    for unit in Unit::ALL {
        channel.add_class_by_nvif(unit.binding(), unit.class())?;
        push.bind(unit);
    }
    channel.run(&push, &[])?;
    Ok(Outcome::Passed)
}

fn unknown_class_refused(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    ensure!(
        channel.add_class(0x1234, 0x1234).is_err(),
        "class 1234 was accepted"
    );
    channel.add_unit(Unit::M2mf)?;
    channel.run(Push::new().bind(Unit::M2mf), &[])?;
    Ok(Outcome::Passed)
}

/// Channels until there are no more; then one is freed and serves again.
fn all_channels(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let mut channels = Vec::new();
    let refused = loop {
        match Channel::new(&device) {
            Ok(channel) => channels.push(channel),
            Err(error) => break error,
        }
        ensure!(channels.len() <= CHANNELS, "more than {CHANNELS} channels");
    };
    ensure!(
        channels.len() >= CHANNELS - CHANNELS_KEPT_MAX,
        "only {} channels: {refused:#}",
        channels.len()
    );
    for channel in channels.iter().step_by(16) {
        channel.run(Push::new().raw(0), &[])?;
    }
    channels.remove(channels.len() / 2);
    let again = Channel::new(&device)?;
    again.run(Push::new().raw(0), &[])?;
    ensure!(again.id() >= 0, "channel {}", again.id());
    Ok(Outcome::Passed)
}
