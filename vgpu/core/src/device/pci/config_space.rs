//! The PCI configuration space of a guest's GPU: a Fermi board's identity, BARs, one MSI and the interrupt pin A.
//!
//! Layout of the BARs as on GF100 boards: BAR0 in 32 bits, BAR1 (registers 1 and 2) and BAR3 (registers 3 and 4)
//! prefetchable in 64 bits. No I/O ports and no option ROM: drivers read the VBIOS through PROM, once they have switched off the ROM shadow (050, one of NVIDIA's own words; nouveau `nvkm/subdev/pci/nv40.c`).
//!
//! Sources: PCI Local Bus Specification 3.0 §6.1 (header), §6.2.2 to §6.2.4 (the interrupt pin, its bits in the command
//! and status registers), §6.2.5 (base addresses), §6.8 (MSI); PCI Power Management
//! Interface Specification 1.2 §3.2. Each byte has a mask of the bits that a guest can write; all else is read-only,
//! so an access of any width and alignment is the same loop over bytes.

use fermi_spec::board::{BAR0_BYTES, Board, REVISION, VENDOR};
use fermi_spec::regs::PpciReg;
use fermi_spec::regs::ppci::ROM_SHADOWED;
use serde::{Deserialize, Serialize};

use crate::config::GpuConfig;
use crate::saved::Unsound;

/// Conventional configuration space. Bytes.
pub const CONFIG_BYTES: usize = 256;

const DEVICE: usize = 0x02;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CLASS: usize = 0x08;
const CACHE_LINE: usize = 0x0c;
const BAR0: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const INTERRUPT_PIN: usize = 0x3d;
/// The function's interrupt pin is INTA.
const PIN_A: u8 = 1;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Parity response and SERR# can be set and do nothing.
const COMMAND_ERRORS: u16 = 1 << 6 | 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// In the low byte of the status register: the function asks for an interrupt, whatever the command register says.
const STATUS_INTERRUPT: u8 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR_64_BIT_PREFETCHABLE: u32 = 0b1100;
const ROM_SHADOW: usize = PpciReg::PciRomShadow.in_config();
/// Least that a base address register decodes.
const BAR_BYTES_MIN: u64 = 16;

/// Fermi boards have power management at 0x60 and MSI at 0x68 too.
const POWER: usize = 0x60;
const MSI: usize = 0x68;
const MSI_ENABLE: u16 = 1;
const MSI_64_BIT: u16 = 1 << 7;

/// The configuration space of one vGPU, with the bits that a guest may write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigSpace {
    #[serde(with = "crate::saved::array")]
    bytes: Box<[u8; CONFIG_BYTES]>,
    /// The bytes as after power-on, to which a reset goes back.
    #[serde(with = "crate::saved::array")]
    initial: Box<[u8; CONFIG_BYTES]>,
    #[serde(with = "crate::saved::array")]
    writeable: Box<[u8; CONFIG_BYTES]>,
}

impl ConfigSpace {
    /// As after power-on, for guests of this GPU. A BAR whose size is no power of two decodes the next one.
    pub fn of(gpu: &GpuConfig) -> Self {
        let mut space = Self {
            bytes: Box::new([0; CONFIG_BYTES]),
            initial: Box::new([0; CONFIG_BYTES]),
            writeable: Box::new([0; CONFIG_BYTES]),
        };
        space.add_header(gpu.board);
        space.add_bar(0, BAR0_BYTES, 0);
        space.add_bar(1, gpu.bar1_bytes, BAR_64_BIT_PREFETCHABLE);
        space.add_bar(3, gpu.bar3_bytes, BAR_64_BIT_PREFETCHABLE);
        space.add_capabilities();
        // As the VBIOS leaves it.
        space.put(ROM_SHADOW, &[ROM_SHADOWED]);
        space.allow(ROM_SHADOW, &[ROM_SHADOWED]);
        space.initial.clone_from(&space.bytes);
        space
    }

    fn add_header(&mut self, board: Board) {
        self.put(0, &VENDOR.to_le_bytes());
        self.put(DEVICE, &board.device_id().to_le_bytes());
        let command = COMMAND_MEMORY | COMMAND_MASTER | COMMAND_ERRORS | COMMAND_INTX_DISABLE;
        self.allow(COMMAND, &command.to_le_bytes());
        self.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        self.put(CLASS, &(board.class() << 8 | u32::from(REVISION)).to_le_bytes());
        self.put(SUBSYSTEM, &VENDOR.to_le_bytes());
        self.put(SUBSYSTEM + 2, &board.device_id().to_le_bytes());
        // A guest may keep numbers there.
        self.allow(CACHE_LINE, &[0xff]);
        self.allow(INTERRUPT_LINE, &[0xff]);
        self.put(INTERRUPT_PIN, &[PIN_A]);
    }

    fn add_bar(&mut self, index: usize, bytes: u64, flags: u32) {
        let at = BAR0 + 4 * index;
        let bytes = bytes.checked_next_power_of_two().unwrap_or(1 << 63);
        let mask = !(bytes.max(BAR_BYTES_MIN) - 1);
        self.put(at, &flags.to_le_bytes());
        if flags == BAR_64_BIT_PREFETCHABLE {
            self.allow(at, &mask.to_le_bytes());
        } else {
            self.allow(at, &(mask as u32).to_le_bytes());
        }
    }

    fn add_capabilities(&mut self) {
        self.put(CAPABILITIES, &[POWER as u8]);
        // Power management, version 3: D0 and D3hot, no PME, state kept over D3hot.
        self.put(POWER, &[0x01, MSI as u8, 0x03, 0x00, 0x08, 0x00]);
        self.allow(POWER + 4, &[0b11]);
        // MSI: one vector, 64-bit address, no masking.
        self.put(MSI, &[0x05, 0x00]);
        self.put(MSI + 2, &MSI_64_BIT.to_le_bytes());
        self.allow(MSI + 2, &MSI_ENABLE.to_le_bytes());
        self.allow(
            MSI + 4,
            &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        );
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writeable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Reads bytes; those beyond the end read as ones, as an absent function does.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let from = usize::try_from(offset)
            .ok()
            .and_then(|from| self.bytes.get(from..));
        data.iter_mut()
            .zip(from.unwrap_or_default())
            .for_each(|(to, byte)| *to = *byte);
    }

    /// The same while the interrupt line is up or not, as the status register tells.
    pub(crate) fn read_with_line(&self, offset: u64, data: &mut [u8], is_up: bool) {
        self.read(offset, data);
        let status = (STATUS as u64).checked_sub(offset).map(|at| at as usize);
        if let Some(byte) = status.and_then(|at| data.get_mut(at)).filter(|_| is_up) {
            *byte |= STATUS_INTERRUPT;
        }
    }

    /// Writes the bits that can be written. Bytes beyond the end are dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let Ok(from) = usize::try_from(offset) else { return };
        let places = self.bytes.iter_mut().zip(self.writeable.iter()).skip(from);
        for ((byte, mask), new) in places.zip(data) {
            *byte = (*byte & !mask) | (new & mask);
        }
    }

    /// Goes back to the state as after power-on.
    pub fn reset(&mut self) {
        self.bytes.clone_from(&self.initial);
    }

    /// Whether the guest lets the function send its MSI.
    pub fn can_interrupt(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_MASTER != 0 && self.is_msi_enabled()
    }

    /// Whether the guest has switched MSI on: its interrupts are messages then, let through or not.
    pub(crate) fn is_msi_enabled(&self) -> bool {
        self.u16_at(MSI + 2) & MSI_ENABLE != 0
    }

    /// Whether the guest has switched the interrupt pin off.
    pub(crate) fn is_intx_disabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_INTX_DISABLE != 0
    }

    /// Whether PROM shows the ROM.
    pub(crate) fn is_rom_visible(&self) -> bool {
        self.bytes[ROM_SHADOW] & ROM_SHADOWED == 0
    }

    /// The board, as its ids tell it.
    pub(crate) fn board(&self) -> Board {
        Board::from_device_id(self.u16_at(DEVICE)).unwrap_or_default()
    }

    /// Checks a space that was read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let mut bytes = self
            .bytes
            .iter()
            .zip(self.initial.iter())
            .zip(self.writeable.iter());
        let fits = bytes.all(|((now, initial), mask)| (now ^ initial) & !mask == 0);
        Unsound::unless(fits, "read-only bits of a configuration space")?;
        let is_known = Board::from_device_id(self.u16_at(DEVICE)).is_some();
        Unsound::unless(is_known, "configuration space of no board")
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
