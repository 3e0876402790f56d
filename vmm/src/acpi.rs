//! ACPI tables: the description of the machine for an operating system.
//!
//! ```text
//! RSDP ─► XSDT ─┬► FADT ─► DSDT: PCI root bridge, devices that are announced, sleep state S5
//!               └► MADT: local APICs, I/O APIC
//! ```
//!
//! The machine is *hardware-reduced* (ACPI 6.5 §4.1): no power-management timer, no 8259, no SCI; it is switched off
//! through the sleep control register and reset through the reset register (`crate::vm::power`). Tables lie in the BIOS
//! area, which memory maps call reserved and where an operating system looks for the RSDP unless it is given the address.

mod dsdt;

use std::ops::Range;

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::vm::power;

/// Guest-physical addresses of the tables.
const TABLES: Range<u64> = 0xe_0000..0x10_0000;
/// Alignment of each table.
const ALIGNMENT: u64 = 64;
const LOCAL_APIC_ADDRESS: u32 = 0xfee0_0000;
const IO_APIC_ADDRESS: u32 = 0xfec0_0000;

const OEM: [u8; 6] = *b"VRAMD ";
const OEM_TABLE: [u8; 8] = *b"VRAMDVMM";
const OEM_REVISION: u32 = 1;

/// IA-PC boot architecture flags of the FADT (ACPI 6.5 §5.2.9.3): the machine has none of the
/// devices that they announce.
const NO_VGA_NO_CMOS_CLOCK: u16 = 1 << 2 | 1 << 5;

/// A device whose place never changes, as its driver will find it.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    /// Four characters, for the tables' own use.
    pub(crate) name: &'static str,
    /// Id by which drivers find it: an EISA id (`PNP0501`), or any other ACPI id.
    pub(crate) hardware_id: &'static str,
    /// Number that distinguishes devices of the same kind.
    pub(crate) unique_id: u8,
    pub(crate) resources: Vec<Resource>,
}

/// Resource that an announced device uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    /// I/O ports, at most 255.
    Ports(Range<u16>),
    /// Guest-physical addresses below 4 GiB.
    Memory(Range<u32>),
    /// A line of the I/O APIC, edge-triggered, active high.
    Line(u32),
}

/// Writes the tables for `vcpus` vCPUs (at most 255) and returns the address of the root pointer.
pub(crate) fn write(
    ram: &GuestMemoryMmap,
    vcpus: usize,
    devices: &[Announced],
) -> Result<u64, GuestMemoryError> {
    let mut writer = Writer {
        ram,
        // The root pointer comes first, and is known last.
        next: TABLES.start + ALIGNMENT,
    };
    let dsdt = writer.put(&dsdt::table(devices))?;
    let fadt = writer.put(&bytes_of(&fadt(dsdt)))?;
    let madt = writer.put(&bytes_of(&madt(vcpus)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = writer.put(&bytes_of(&xsdt))?;
    let rsdp = bytes_of(&Rsdp::new(OEM, xsdt));
    ram.write_slice(&rsdp, GuestAddress(TABLES.start))?;
    Ok(TABLES.start)
}

struct Writer<'a> {
    ram: &'a GuestMemoryMmap,
    next: u64,
}

impl Writer<'_> {
    fn put(&mut self, table: &[u8]) -> Result<u64, GuestMemoryError> {
        let at = self.next;
        self.next = (at + table.len() as u64).next_multiple_of(ALIGNMENT);
        assert!(self.next <= TABLES.end, "the tables of 255 vCPUs fit");
        self.ram.write_slice(table, GuestAddress(at))?;
        Ok(at)
    }
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// A table whose content is AML.
fn definition_block(signature: [u8; 4], content: &[u8]) -> Vec<u8> {
    /// Bytes of a table header (ACPI 6.5 §5.2.6), and the revision from which integers have 64 bits.
    const HEADER_BYTES: u32 = 36;
    const REVISION: u8 = 2;
    let mut table = Sdt::new(signature, HEADER_BYTES, REVISION, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(content);
    table.as_slice().to_vec()
}

fn fadt(dsdt: u64) -> impl Aml {
    let port = |port: u16| GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into());
    let mut table = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        // Power and sleep buttons would be fixed hardware without these two.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    table.iapc_boot_arch = NO_VGA_NO_CMOS_CLOCK.into();
    table.reset_reg = port(power::RESET_PORT);
    table.reset_value = power::RESET_VALUE;
    table.sleep_control_reg = port(power::SLEEP_CONTROL_PORT);
    table.sleep_status_reg = port(power::SLEEP_STATUS_PORT);
    table.finalize()
}

fn madt(vcpus: usize) -> impl Aml {
    let mut table = MADT::new(
        OEM,
        OEM_TABLE,
        OEM_REVISION,
        LocalInterruptController::Address(LOCAL_APIC_ADDRESS),
    );
    for id in (0..=u8::MAX).take(vcpus) {
        table.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    table.add_structure(IoApic::new(0, IO_APIC_ADDRESS, 0));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap()
    }

    fn read(ram: &GuestMemoryMmap, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        ram.read_slice(&mut data, GuestAddress(at)).unwrap();
        data
    }

    /// A whole table; its bytes must add up to 0.
    fn table(ram: &GuestMemoryMmap, at: u64) -> Vec<u8> {
        let bytes = u32::from_le_bytes(read(ram, at + 4, 4).try_into().unwrap());
        let table = read(ram, at, bytes as usize);
        assert_eq!(table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        table
    }

    fn address(bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
    }

    #[test]
    fn tables_are_reached_from_the_root_pointer_and_sum_to_zero() {
        let ram = ram();
        let rsdp = write(&ram, 3, &[]).unwrap();
        let root = read(&ram, rsdp, 36);
        assert_eq!((&root[..8], root[15]), (b"RSD PTR ".as_slice(), 2));
        let xsdt = table(&ram, address(&root, 24));
        let (fadt, madt) = (table(&ram, address(&xsdt, 36)), table(&ram, address(&xsdt, 44)));
        let dsdt = table(&ram, address(&fadt, 140));
        assert_eq!(
            [&xsdt[..4], &fadt[..4], &madt[..4], &dsdt[..4]],
            [b"XSDT", b"FACP", b"APIC", b"DSDT"]
        );
        // Three local APICs of 8 bytes, and an I/O APIC of 12 (ACPI 6.5 §5.2.12).
        assert_eq!(madt.len(), 44 + 3 * 8 + 12);
    }

    #[test]
    fn fadt_names_the_ports_of_power_and_reset() {
        let fadt = bytes_of(&fadt(0));
        // Offsets: ACPI 6.5 table 5.9.
        assert_eq!(
            (address(&fadt, 120), fadt[128]),
            (power::RESET_PORT.into(), power::RESET_VALUE)
        );
        assert_eq!(address(&fadt, 248), u64::from(power::SLEEP_CONTROL_PORT));
        assert_eq!(address(&fadt, 260), u64::from(power::SLEEP_STATUS_PORT));
    }

    #[test]
    fn as_many_vcpus_as_can_be_named_fit() {
        assert!(write(&ram(), 255, &[]).is_ok());
    }
}
