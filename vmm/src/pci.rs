//! The PCI bus: configuration mechanism #1, a host bridge, and the vGPU as device 1.
//!
//! ```text
//! out 0xcf8, address ─┐
//! in/out 0xcfc..0xcff ┴► ConfigPorts ─► 00:00.0  host bridge (constant)
//!                                    └► 00:01.0  VgpuFunction ─► the link's configuration space
//!                                          ├ command or BAR written ─► windows on the MMIO bus
//!                                          ├ MSI capability written ─► interrupt route in KVM
//!                                          └ interrupt pin INTA ─────► line of the I/O APIC
//! ```
//!
//! BARs are placed before the guest starts, as firmware does, in [`MMIO_WINDOW`]; the guest may read them, move them
//! and switch them off. Register layout: PCI Local Bus 3.0 §3.2.2.3.2, §6.1, §6.2.5, §6.8.

mod doorbells;
mod intx;
mod msi;
mod vgpu;
mod window_memory;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use doorbells::DoorbellTrap;
pub(crate) use intx::INTX_LINE;
pub(crate) use msi::MsiRoute;
pub use msi::MsiState;
pub(crate) use vgpu::VgpuFunction;

use crate::bus::{BusError, PioHandler};
use crate::link::LinkError;

/// CONFIG_ADDRESS; CONFIG_DATA are the four ports after the next three.
pub(crate) const CONFIG_PORT: u16 = 0xcf8;
/// I/O ports of the configuration mechanism.
pub(crate) const CONFIG_PORTS: u16 = 8;
/// Device number of the vGPU on bus 0.
pub(crate) const VGPU_DEVICE: u32 = 1;
/// Window in which BARs are placed: above any RAM, below devices that stay where they are.
pub const MMIO_WINDOW: Range<u64> = 0xc000_0000..0xfea0_0000;
/// Window for devices beside PCI that stay where they are: up to the I/O APIC.
pub(crate) const DEVICE_WINDOW: Range<u32> = 0xfea0_0000..0xfec0_0000;

/// Offset of CONFIG_DATA among the ports.
const CONFIG_DATA: u16 = 4;
/// CONFIG_ADDRESS bit that makes CONFIG_DATA a configuration access.
const CONFIG_ENABLE: u32 = 1 << 31;

/// Why the PCI bus of a VM could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    /// Configuration space cannot be read or written.
    #[error("cannot set up the vGPU's configuration space")]
    Config(#[source] LinkError),
    /// The vendor id reads as all ones: there is no function.
    #[error("the link has no PCI function")]
    NoFunction,
    /// A BAR is larger than the room that the others leave in the MMIO window.
    #[error("no room for BAR{bar} of {bytes} bytes below 4 GiB")]
    NoRoom {
        /// Number of the BAR.
        bar: u32,
        /// Size in bytes.
        bytes: u64,
    },
    /// The BARs cannot be placed.
    #[error("cannot place the vGPU's BARs")]
    Place(#[source] BusError),
    /// Memory that the vGPU offers for a BAR is not what it says.
    #[error("cannot map the memory of BAR{bar} that the vGPU offers")]
    Memory {
        /// Number of the BAR.
        bar: u32,
        /// Error of the host.
        #[source]
        source: std::io::Error,
    },
    /// The interrupt of the vGPU cannot be passed on.
    #[error("cannot pass on the vGPU's interrupt")]
    Interrupt(#[source] std::io::Error),
}

/// The host bridge's configuration header: the ids of an Intel 440FX, which every operating system knows.
fn bridge_config() -> [u8; 256] {
    let mut config = [0; 256];
    config[..4].copy_from_slice(&[0x86, 0x80, 0x37, 0x12]);
    // Class code 06_00_00: bridge, host.
    config[0x0b] = 0x06;
    config
}

/// The two registers of configuration mechanism #1.
pub(crate) struct ConfigPorts {
    address: AtomicU32,
    bridge: [u8; 256],
    vgpu: VgpuFunction,
}

/// The register that CONFIG_ADDRESS and the port select.
#[derive(Debug, PartialEq, Eq)]
enum Selected {
    Bridge { register: u16 },
    Vgpu { register: u16 },
    Nobody,
}

fn decode(address: u32, port_offset: u16, bytes: usize) -> Selected {
    let Some(byte) = port_offset.checked_sub(CONFIG_DATA) else {
        return Selected::Nobody;
    };
    let is_inside = usize::from(byte) + bytes <= size_of::<u32>();
    if address & CONFIG_ENABLE == 0 || !is_inside {
        return Selected::Nobody;
    }
    let register = (address & 0xfc) as u16 + byte;
    let (bus, device, function) = ((address >> 16) & 0xff, (address >> 11) & 0x1f, (address >> 8) & 7);
    match (bus, device, function) {
        (0, 0, 0) => Selected::Bridge { register },
        (0, VGPU_DEVICE, 0) => Selected::Vgpu { register },
        _ => Selected::Nobody,
    }
}

impl ConfigPorts {
    pub(crate) fn new(vgpu: VgpuFunction) -> ConfigPorts {
        ConfigPorts {
            address: AtomicU32::new(0),
            bridge: bridge_config(),
            vgpu,
        }
    }

    /// How the vGPU's interrupt travels at the moment.
    pub(crate) fn msi_state(&self) -> MsiState {
        self.vgpu.msi_state()
    }
}

impl PioHandler for ConfigPorts {
    fn pio_read(&self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        let address = self.address.load(Ordering::Relaxed);
        if offset == 0 && data.len() == size_of::<u32>() {
            data.copy_from_slice(&address.to_le_bytes());
            return Ok(());
        }
        match decode(address, offset, data.len()) {
            Selected::Vgpu { register } => return self.vgpu.config_read(register, data),
            Selected::Bridge { register } => {
                let from = usize::from(register);
                match self.bridge.get(from..from + data.len()) {
                    Some(bytes) => data.copy_from_slice(bytes),
                    None => data.fill(0xff),
                }
            }
            Selected::Nobody => data.fill(0xff),
        }
        Ok(())
    }

    fn pio_write(&self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        if let (0, Ok(address)) = (offset, <[u8; 4]>::try_from(data)) {
            self.address.store(u32::from_le_bytes(address), Ordering::Relaxed);
            return Ok(());
        }
        match decode(self.address.load(Ordering::Relaxed), offset, data.len()) {
            Selected::Vgpu { register } => self.vgpu.config_write(register, data),
            Selected::Bridge { .. } | Selected::Nobody => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn enabled_address_selects_vgpu_register() {
        assert_eq!(decode(0x8000_0810, 4, 4), Selected::Vgpu { register: 0x10 });
        assert_eq!(decode(0x8000_0804, 6, 2), Selected::Vgpu { register: 6 });
    }

    #[test]
    fn other_functions_and_buses_are_empty() {
        assert_eq!(decode(0x8000_0910, 4, 4), Selected::Nobody);
        assert_eq!(decode(0x8001_0810, 4, 4), Selected::Nobody);
        assert_eq!(decode(0x8000_1010, 4, 4), Selected::Nobody);
    }

    #[test]
    fn disabled_address_selects_nobody() {
        assert_eq!(decode(0x0000_0810, 4, 4), Selected::Nobody);
    }

    #[test]
    fn access_past_the_data_register_selects_nobody() {
        assert_eq!(decode(0x8000_0810, 6, 4), Selected::Nobody);
    }

    proptest! {
        #[test]
        fn any_access_stays_in_configuration_space(address: u32, offset in 0u16..8, bytes in 0usize..300) {
            let register = match decode(address, offset, bytes) {
                Selected::Bridge { register } | Selected::Vgpu { register } => register,
                Selected::Nobody => 0,
            };
            prop_assert!(register < 256);
        }
    }
}
