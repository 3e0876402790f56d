//! The PCI configuration space, 4 KiB, which is also in BAR0 at 088000.
//!
//! Ids, capabilities and their places are the Quadro 6000's as GPUvm dumped them; what the model's embedder makes of
//! BARs, MSI and power state is its own affair, as whoever stands between card and guest usually has its own idea of
//! them. Each byte has a mask of the bits that can be written; all else is read-only, so an access of any width and
//! alignment is the same loop over bytes, and nothing that a guest writes can break anything.
//!
//! Sources: PCI Local Bus Specification 3.0 §6.1, §6.2.5, §6.8; PCI Power Management Interface Specification 1.2 §3.2;
//! PCI Express Base Specification 1.1 §7.8, §7.11; nouveau `nvkm/subdev/pci/{nv40,g84,g92,gf100}.c` for NVIDIA's words.
//!
//! The I/O BAR (5) and the expansion ROM are left out: only VBIOS code uses the ports, and the ROM is read through PROM.

use crate::model::FermiModel;
use fermi_spec::board::{BAR0_BYTES, BAR1_BYTES, BAR3_BYTES, Board, REVISION, VENDOR};
use fermi_spec::regs::PpciReg;
use fermi_spec::regs::ppci::ROM_SHADOWED;

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Parity response and SERR# can be set and do nothing.
const COMMAND_ERRORS: u16 = 1 << 6 | 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_INTERRUPT: u16 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR0: usize = 0x10;
const BAR_64_BIT_PREFETCHABLE: u32 = 0b1100;
const ROM_SHADOW: usize = PpciReg::PciRomShadow.in_config();
const POWER: usize = 0x60;
const MSI: usize = 0x68;
const EXPRESS: usize = 0x78;
const VENDOR_SPECIFIC: usize = 0xb4;
const MSI_ENABLE: u16 = 1;
const MSI_64_BIT: u16 = 1 << 7;
/// Requests in flight; nouveau lowers it when tags have five bits.
const REQUEST_LIMIT: usize = 0x41c;
/// Link speeds that the card can: bits 13:12 and 9:8 read 2 for 5 GT/s; bits 5:4 and 0 ask for another.
const LINK_CONTROL: usize = 0x460;
const LINK_CAN_DO_5_GT: u32 = 0x2200;
const MSI_REARM: usize = PpciReg::PciMsiRearm.in_config();

/// The card's configuration space: its bytes, and which of them the host can change.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    bytes: Vec<u8>,
    writeable: Vec<u8>,
}

impl ConfigSpace {
    /// As after power-on and VBIOS.
    pub(crate) fn new(board: Board) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_BYTES],
            writeable: vec![0; CONFIG_BYTES],
        };
        space.put(0x00, &VENDOR.to_le_bytes());
        space.put(0x02, &board.device_id().to_le_bytes());
        space.allow(
            COMMAND,
            &(COMMAND_MEMORY | COMMAND_MASTER | COMMAND_ERRORS | COMMAND_INTX_DISABLE).to_le_bytes(),
        );
        space.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        space.put(0x08, &(board.class() << 8 | u32::from(REVISION)).to_le_bytes());
        // Cache line size: software may keep a number there.
        space.allow(0x0c, &[0xff]);
        space.add_bar(0, BAR0_BYTES, 0);
        space.add_bar(1, BAR1_BYTES, BAR_64_BIT_PREFETCHABLE);
        space.add_bar(3, BAR3_BYTES, BAR_64_BIT_PREFETCHABLE);
        space.put(0x34, &[POWER as u8]);
        // Interrupt line and pin (INTA).
        space.allow(0x3c, &[0xff]);
        space.put(0x3d, &[1]);
        space.add_capabilities();
        space.add_extended_capabilities();
        space.add_vendors_words();
        space
    }

    fn add_bar(&mut self, index: usize, bytes: u64, flags: u32) {
        let at = BAR0 + 4 * index;
        let mask = !(bytes - 1);
        self.put(at, &flags.to_le_bytes());
        if flags == BAR_64_BIT_PREFETCHABLE {
            self.allow(at, &mask.to_le_bytes());
        } else {
            self.allow(at, &(mask as u32).to_le_bytes());
        }
    }

    fn add_capabilities(&mut self) {
        // Power management, version 3: D0 and D3hot, state kept over D3hot, no PME.
        self.put(POWER, &[0x01, MSI as u8, 0x03, 0x00, 0x08, 0x00]);
        self.allow(POWER + 4, &[0b11]);
        self.put(MSI, &[0x05, EXPRESS as u8]);
        self.put(MSI + 2, &MSI_64_BIT.to_le_bytes());
        self.allow(MSI + 2, &MSI_ENABLE.to_le_bytes());
        self.allow(
            MSI + 4,
            &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        );
        // PCI Express, version 1, endpoint.
        self.put(EXPRESS, &[0x10, VENDOR_SPECIFIC as u8, 0x01, 0x00]);
        // Device capabilities: payload up to 128 bytes, 8-bit tags, role-based error reporting.
        self.put(EXPRESS + 0x04, &0x0000_8020_u32.to_le_bytes());
        // Device control: relaxed ordering, 8-bit tags, no snoop, read requests up to 512 bytes.
        self.put(EXPRESS + 0x08, &0x2910_u16.to_le_bytes());
        self.allow(EXPRESS + 0x08, &0x79ff_u16.to_le_bytes());
        // Link capabilities: 5 GT/s, x16, L0s and L1. Link status: 5 GT/s, x16, common clock.
        self.put(EXPRESS + 0x0c, &0x0000_0d02_u32.to_le_bytes());
        self.allow(EXPRESS + 0x10, &0x01c3_u16.to_le_bytes());
        self.put(EXPRESS + 0x12, &0x1102_u16.to_le_bytes());
        self.put(VENDOR_SPECIFIC, &[0x09, 0x00, 0x14, 0x01]);
    }

    fn add_extended_capabilities(&mut self) {
        // Virtual channel: one, which carries all traffic classes.
        self.put(0x100, &(0x128 << 20 | 1 << 16 | 0x0002_u32).to_le_bytes());
        self.put(0x114, &0x8000_00ff_u32.to_le_bytes());
        // Power budgeting: nothing to report.
        self.put(0x128, &(0x600 << 20 | 1 << 16 | 0x0004_u32).to_le_bytes());
        self.allow(0x12c, &[0xff]);
        // Vendor-specific, id 1, 36 bytes.
        self.put(0x600, &(1 << 16 | 0x000b_u32).to_le_bytes());
        self.put(0x604, &0x0240_0001_u32.to_le_bytes());
    }

    fn add_vendors_words(&mut self) {
        // The VBIOS has switched the shadow on.
        self.put(ROM_SHADOW, &[ROM_SHADOWED]);
        self.allow(ROM_SHADOW, &[ROM_SHADOWED]);
        self.put(REQUEST_LIMIT, &0x0000_0060_u32.to_le_bytes());
        self.allow(REQUEST_LIMIT, &0x0000_0060_u32.to_le_bytes());
        self.put(LINK_CONTROL, &LINK_CAN_DO_5_GT.to_le_bytes());
        // The link stays as it is whatever is asked for.
        self.allow(LINK_CONTROL, &0x0000_0030_u32.to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bytes: &[u8]) {
        self.writeable[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            let here = place(offset, index).and_then(|at| self.bytes.get(at));
            *byte = here.copied().unwrap_or(0xff);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (index, new) in data.iter().enumerate() {
            let Some(at) = place(offset, index) else { break };
            let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writeable.get(at)) else {
                break;
            };
            *byte = (*byte & !mask) | (new & mask);
        }
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Whether PROM shows the ROM.
    pub(crate) fn is_rom_visible(&self) -> bool {
        self.bytes[ROM_SHADOW] & ROM_SHADOWED == 0
    }

    fn is_msi_enabled(&self) -> bool {
        self.u16_at(MSI + 2) & MSI_ENABLE != 0
    }

    fn set_interrupt_pending(&mut self, is_pending: bool) {
        let status = self.u16_at(STATUS) & !STATUS_INTERRUPT;
        let status = status | if is_pending { STATUS_INTERRUPT } else { 0 };
        self.put(STATUS, &status.to_le_bytes());
    }
}

fn place(offset: u64, index: usize) -> Option<usize> {
    usize::try_from(offset).ok()?.checked_add(index)
}

/// Configuration accesses; the mirror in BAR0 goes the same way.
impl FermiModel {
    /// The host reads the configuration space, any number of bytes at any place. What is beyond it reads as ones.
    pub fn config_read(&mut self, offset: u64, data: &mut [u8]) {
        let is_high = self.is_line_high();
        self.config.set_interrupt_pending(is_high);
        self.config.read(offset, data);
    }

    /// The host writes the configuration space. Read-only bits stay as they are.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        let had_messages = self.config.is_msi_enabled();
        self.config.write(offset, data);
        let rearm = (MSI_REARM as u64)
            .checked_sub(offset)
            .is_some_and(|inside| inside < data.len() as u64);
        // Whoever turns messages on has missed those before: what is pending is sent anew.
        if rearm || (self.config.is_msi_enabled() && !had_messages) {
            self.rearm();
        }
    }

    /// Whether the guest has asked for messages. Without them an interrupt is the level of INTA
    /// ([`Self::interrupt_line`]), unless that is forbidden too ([`Self::is_intx_disabled`]).
    #[cfg(test)]
    pub(crate) fn is_msi_enabled(&self) -> bool {
        self.config.is_msi_enabled()
    }

    /// Whether the guest has forbidden INTA (command register, bit 10).
    pub fn is_intx_disabled(&self) -> bool {
        self.config.u16_at(COMMAND) & COMMAND_INTX_DISABLE != 0
    }

    /// Whether the guest lets the card do DMA and send messages (command register, bit 2).
    pub fn is_bus_master(&self) -> bool {
        self.config.u16_at(COMMAND) & COMMAND_MASTER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(space: &ConfigSpace, at: u64) -> u32 {
        let mut word = [0; 4];
        space.read(at, &mut word);
        u32::from_le_bytes(word)
    }

    #[test]
    fn header_names_a_3d_controller_without_display() {
        let space = ConfigSpace::new(Board::Quadro6000);
        assert_eq!(u32_at(&space, 0), 0x06d8_10de);
        assert_eq!(u32_at(&space, 8), 0x0302_00a3);
        assert_eq!(u32_at(&space, 0x3c), 0x0100);
    }

    #[test]
    fn capabilities_are_where_a_quadro_6000_has_them() {
        let space = ConfigSpace::new(Board::Gtx480);
        let mut found = Vec::new();
        let mut at = space.bytes[0x34];
        while at != 0 && found.len() < 8 {
            found.push((at, space.bytes[usize::from(at)]));
            at = space.bytes[usize::from(at) + 1];
        }
        assert_eq!(found, [(0x60, 0x01), (0x68, 0x05), (0x78, 0x10), (0xb4, 0x09)]);
    }

    #[test]
    fn extended_capabilities_are_a_chain() {
        let space = ConfigSpace::new(Board::Gtx480);
        assert_eq!(u32_at(&space, 0x100), 0x1281_0002);
        assert_eq!(u32_at(&space, 0x128), 0x6001_0004);
        assert_eq!(u32_at(&space, 0x600), 0x0001_000b);
    }

    #[test]
    fn bars_written_with_ones_tell_their_sizes() {
        let mut space = ConfigSpace::new(Board::TeslaC2050);
        space.write(0x10, &[0xff; 24]);
        let read: Vec<u32> = (0..6).map(|bar| u32_at(&space, 0x10 + 4 * bar)).collect();
        assert_eq!(
            read,
            [0xfe00_0000, 0xf800_000c, u32::MAX, 0xfc00_000c, u32::MAX, 0]
        );
    }

    #[test]
    fn read_only_words_stay() {
        let mut space = ConfigSpace::new(Board::Gtx480);
        let before = u32_at(&space, 0x7c);
        space.write(0, &[0xff; CONFIG_BYTES]);
        assert_eq!(u32_at(&space, 0), 0x06c0_10de);
        assert_eq!(u32_at(&space, 0x7c), before);
        assert_eq!(u32_at(&space, 0x60), 0x0003_6801);
    }

    #[test]
    fn access_beyond_the_end_reads_ones_and_writes_nothing() {
        let mut space = ConfigSpace::new(Board::Gtx480);
        space.write(CONFIG_BYTES as u64 - 1, &[1, 2, 3]);
        space.write(u64::MAX, &[1, 2, 3]);
        assert_eq!(u32_at(&space, CONFIG_BYTES as u64 - 2), 0xffff_0000);
        assert_eq!(u32_at(&space, u64::MAX - 1), u32::MAX);
    }
}
