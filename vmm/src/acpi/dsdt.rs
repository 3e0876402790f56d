//! The DSDT: the devices that an operating system cannot find by probing.
//!
//! The PCI root bridge names configuration mechanism #1, the window that BARs lie in, and the line of the I/O APIC that the vGPU's interrupt pin
//! leads to (`_PRT`, ACPI 6.5 §6.2.13).
//!
//! The generic event device tells the power button's driver of it (ACPI 6.5 §4.8.3.1, §5.6.9): after an interrupt
//! on [`power::BUTTON_LINE`] the operating system runs `_EVT`, which notifies the button.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name,
    Notify, Package, Path, ResourceTemplate, Scope, ZERO,
};

use super::{Announced, Resource, bytes_of, definition_block};
use crate::pci::{CONFIG_PORT, CONFIG_PORTS, INTX_LINE, MMIO_WINDOW, VGPU_DEVICE};
use crate::vm::power;

/// The bytes of the whole DSDT.
pub(super) fn table(devices: &[Announced]) -> Vec<u8> {
    let mut content = root_bridge();
    for device in devices {
        content.extend(announce(device));
    }
    content.extend(power_button());
    content.extend(sleep_state());
    definition_block(*b"DSDT", &content)
}

/// The values that S5 writes to the sleep control register (ACPI 6.5 §7.4.2).
fn sleep_state() -> Vec<u8> {
    let package = Package::new(vec![&power::SLEEP_TYPE_S5, &ZERO, &ZERO, &ZERO]);
    bytes_of(&Name::new("_S5_".into(), &package))
}

fn power_button() -> Vec<u8> {
    /// Value of the notification for a pressed button (ACPI 6.5 §4.8.3.1.2, "S0 power button pressed").
    const PRESSED: u8 = 0x80;
    let hardware_id = Name::new("_HID".into(), &EISAName::new("PNP0C0C"));
    let button = Device::new("PWRB".into(), vec![&hardware_id]);
    let path = Path::new("PWRB");
    let notify = Notify::new(&path, &PRESSED);
    let hardware_id = Name::new("_HID".into(), &"ACPI0013");
    let unique_id = Name::new("_UID".into(), &ZERO);
    let line = Interrupt::new(true, true, false, false, power::BUTTON_LINE);
    let resources = ResourceTemplate::new(vec![&line]);
    let resources = Name::new("_CRS".into(), &resources);
    // One argument: the number of the interrupt, of which there is one.
    let handler = Method::new("_EVT".into(), 1, true, vec![&notify]);
    let events = Device::new(
        "GED_".into(),
        vec![&hardware_id, &unique_id, &resources, &handler],
    );
    bytes_of(&Scope::new("_SB_".into(), vec![&button, &events]))
}

fn root_bridge() -> Vec<u8> {
    let (bus, last_port) = (AddressSpace::new_bus_number(0u16, 0), u16::MAX);
    let config_end = CONFIG_PORT + CONFIG_PORTS;
    let config = IO::new(CONFIG_PORT, CONFIG_PORT, 1, CONFIG_PORTS as u8);
    let below = AddressSpace::new_io(0u16, CONFIG_PORT - 1, None);
    let above = AddressSpace::new_io(config_end, last_port, None);
    let memory = AddressSpace::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        MMIO_WINDOW.start as u32,
        (MMIO_WINDOW.end - 1) as u32,
        None,
    );
    let resources = ResourceTemplate::new(vec![&bus, &config, &below, &above, &memory]);
    let (hardware_id, address) = (
        Name::new("_HID".into(), &EISAName::new("PNP0A03")),
        Name::new("_ADR".into(), &ZERO),
    );
    let (unique_id, base_bus) = (Name::new("_UID".into(), &ZERO), Name::new("_BBN".into(), &ZERO));
    let resources = Name::new("_CRS".into(), &resources);
    // All functions of the device, INTA, the line itself and no link device.
    let inta = VGPU_DEVICE << 16 | 0xffff;
    let route = Package::new(vec![&inta, &ZERO, &ZERO, &INTX_LINE]);
    let routes = Package::new(vec![&route]);
    let routes = Name::new("_PRT".into(), &routes);
    let bridge = Device::new(
        "PCI0".into(),
        vec![&hardware_id, &address, &unique_id, &base_bus, &resources, &routes],
    );
    in_system_bus(&bridge)
}

fn announce(device: &Announced) -> Vec<u8> {
    let hardware_id = if device.hardware_id.starts_with("PNP") {
        Name::new("_HID".into(), &EISAName::new(device.hardware_id))
    } else {
        Name::new("_HID".into(), &device.hardware_id)
    };
    let unique_id = Name::new("_UID".into(), &device.unique_id);
    let descriptors: Vec<_> = device.resources.iter().map(descriptor).collect();
    let resources = ResourceTemplate::new(descriptors.iter().map(AsRef::as_ref).collect());
    let resources = Name::new("_CRS".into(), &resources);
    let device = Device::new(Path::new(device.name), vec![&hardware_id, &unique_id, &resources]);
    in_system_bus(&device)
}

fn descriptor(resource: &Resource) -> Box<dyn Aml> {
    match resource {
        Resource::Ports(ports) => Box::new(IO::new(ports.start, ports.start, 1, ports.len() as u8)),
        Resource::Memory(range) => Box::new(Memory32Fixed::new(true, range.start, range.end - range.start)),
        Resource::Line(line) => Box::new(Interrupt::new(true, true, false, false, *line)),
    }
}

fn in_system_bus(device: &dyn Aml) -> Vec<u8> {
    bytes_of(&Scope::new("_SB_".into(), vec![device]))
}
