//! A type-0 PCI configuration space.
//!
//! Sources: PCI Local Bus Specification 3.0 §6.1 (header), §6.2.5 (base addresses), §6.8 (MSI); PCI Power Management
//! Interface Specification 1.2 §3.2. Each byte has a mask of the bits that a guest can write; all else is read-only,
//! so an access of any width and alignment is the same loop over bytes.

/// Conventional configuration space. Bytes.
pub const CONFIG_BYTES: usize = 256;

/// Base address registers of a type-0 header.
pub const BARS: usize = 6;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CLASS: usize = 0x09;
const BAR0: usize = 0x10;
const SUBSYSTEM_VENDOR: usize = 0x2c;
const SUBSYSTEM: usize = 0x2e;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const COMMAND_IO: u16 = 1;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Parity response and SERR# can be set and do nothing.
const COMMAND_ERRORS: u16 = 1 << 6 | 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;

const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Where capabilities begin; Fermi boards have power management at 0x60 and MSI at 0x68 too.
const FIRST_CAPABILITY: usize = 0x60;
const CAPABILITY_POWER: u8 = 0x01;
const CAPABILITY_MSI: u8 = 0x05;
const POWER_BYTES: usize = 8;
const MSI_BYTES: usize = 16;
const MSI_ENABLE: u16 = 1;
const MSI_64_BIT: u16 = 1 << 7;

/// Identity of a function: its maker, its kind and its version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PciIdentity {
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// PCI subsystem id.
    pub subsystem: u16,
    /// Base class, sub-class and interface, in the lower 24 bits.
    pub class: u32,
    /// PCI revision id.
    pub revision: u8,
}

/// The space that one base address register decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bar {
    /// Nothing, or the upper half of the register below.
    #[default]
    Absent,
    /// Memory below 4 GiB.
    Memory32 {
        /// Power of two, at least 16.
        bytes: u64,
        /// Reads have no side effects.
        is_prefetchable: bool,
    },
    /// Memory anywhere; takes this register and the next.
    Memory64 {
        /// Power of two, at least 16.
        bytes: u64,
        /// Reads have no side effects.
        is_prefetchable: bool,
    },
    /// Ports of the I/O space.
    Io {
        /// Power of two, 4 to 256.
        bytes: u64,
    },
}

/// A configuration space that cannot exist: a mistake of the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PciError {
    /// No such register, or a 64-bit one without a free neighbour.
    #[error("base address register {index} does not exist or is taken")]
    BarIndex {
        /// Index of the register.
        index: usize,
    },
    /// Not a power of two, or outside what this kind can have.
    #[error("base address register {index} cannot decode {bytes:#x} bytes")]
    BarSize {
        /// Index of the register.
        index: usize,
        /// The size asked for.
        bytes: u64,
    },
}

/// The parts of the space that a write changed. Ask the [`ConfigSpace`] for the new values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// The function began or stopped to answer memory accesses.
    pub is_memory_changed: bool,
    /// The function may, or may no longer, do DMA and send MSIs.
    pub is_bus_master_changed: bool,
    /// INTx was allowed or forbidden.
    pub is_intx_changed: bool,
    /// Bit *n*: BAR *n* has another address.
    pub moved_bars: u8,
    /// MSI was switched, or has another address or data.
    pub is_msi_changed: bool,
    /// The function went to another power state.
    pub is_power_changed: bool,
}

impl ConfigChange {
    /// Whether nothing of interest changed.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The MSI capability as a guest has set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MsiState {
    /// Interrupts are sent as messages.
    pub is_enabled: bool,
    /// Address that a message is written to.
    pub address: u64,
    /// Data of a message.
    pub data: u16,
}

/// The configuration space of one function, with the bits that a guest may write.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    /// The bytes as built, to which a reset goes back.
    initial: Vec<u8>,
    writeable: Vec<u8>,
    bars: [Bar; BARS],
    power: Option<usize>,
    msi: Option<usize>,
    next_capability: usize,
    last_link: usize,
}

/// The values that [`ConfigChange`] compares.
#[derive(PartialEq, Eq)]
struct Snapshot {
    command: u16,
    bars: [Option<u64>; BARS],
    msi: Option<MsiState>,
    power: u8,
}

impl ConfigSpace {
    /// A function without BARs, interrupts and capabilities, of [`CONFIG_BYTES`].
    pub fn new(identity: PciIdentity) -> Self {
        let mut space = Self {
            bytes: vec![0; CONFIG_BYTES],
            initial: Vec::new(),
            writeable: vec![0; CONFIG_BYTES],
            bars: [Bar::Absent; BARS],
            power: None,
            msi: None,
            next_capability: FIRST_CAPABILITY,
            last_link: CAPABILITIES,
        };
        space.set_u16(0, identity.vendor);
        space.set_u16(2, identity.device);
        space.bytes[REVISION] = identity.revision;
        space.bytes[CLASS..CLASS + 3].copy_from_slice(&identity.class.to_le_bytes()[..3]);
        space.set_u16(SUBSYSTEM_VENDOR, identity.subsystem_vendor);
        space.set_u16(SUBSYSTEM, identity.subsystem);
        space.allow_u16(COMMAND, COMMAND_MASTER | COMMAND_ERRORS | COMMAND_INTX_DISABLE);
        space.writeable[INTERRUPT_LINE] = 0xff;
        // Cache line size: a guest may keep a number there.
        space.writeable[0x0c] = 0xff;
        space.initial.clone_from(&space.bytes);
        space
    }

    /// Adds a base address register of that index.
    pub fn with_bar(mut self, index: usize, bar: Bar) -> Result<Self, PciError> {
        let is_wide = matches!(bar, Bar::Memory64 { .. });
        let is_upper_half = index
            .checked_sub(1)
            .and_then(|below| self.bars.get(below))
            .is_some_and(|below| matches!(below, Bar::Memory64 { .. }));
        let is_free = self.bars.get(index) == Some(&Bar::Absent)
            && !is_upper_half
            && (!is_wide || self.bars.get(index + 1) == Some(&Bar::Absent));
        if !is_free {
            return Err(PciError::BarIndex { index });
        }
        let (bytes, sizes, flags, enable) = match bar {
            Bar::Absent => return Ok(self),
            Bar::Memory32 {
                bytes,
                is_prefetchable,
            } => (
                bytes,
                16..=1 << 31,
                u32::from(is_prefetchable) << 3,
                COMMAND_MEMORY,
            ),
            Bar::Memory64 {
                bytes,
                is_prefetchable,
            } => (
                bytes,
                16..=1 << 62,
                u32::from(is_prefetchable) << 3 | 0b100,
                COMMAND_MEMORY,
            ),
            Bar::Io { bytes } => (bytes, 4..=256, 1, COMMAND_IO),
        };
        if !bytes.is_power_of_two() || !sizes.contains(&bytes) {
            return Err(PciError::BarSize { index, bytes });
        }
        let at = BAR0 + 4 * index;
        let mask = !(bytes - 1);
        self.bytes[at..at + 4].copy_from_slice(&flags.to_le_bytes());
        self.writeable[at..at + 4].copy_from_slice(&(mask as u32).to_le_bytes());
        if is_wide {
            self.writeable[at + 4..at + 8].copy_from_slice(&((mask >> 32) as u32).to_le_bytes());
        }
        self.allow_u16(COMMAND, enable);
        self.bars[index] = bar;
        Ok(self.built())
    }

    /// Adds power management with D0 and D3hot, no PME, state kept over D3hot.
    #[must_use]
    pub fn with_power_management(mut self) -> Self {
        let at = self.add_capability(CAPABILITY_POWER, POWER_BYTES);
        self.set_u16(at + 2, 3); // version of the capability
        self.set_u16(at + 4, 1 << 3); // no soft reset
        self.allow_u16(at + 4, 0b11);
        self.power = Some(at);
        self.built()
    }

    /// Adds MSI: one vector, 64-bit address, no masking.
    #[must_use]
    pub fn with_msi(mut self) -> Self {
        let at = self.add_capability(CAPABILITY_MSI, MSI_BYTES);
        self.set_u16(at + 2, MSI_64_BIT);
        self.allow_u16(at + 2, MSI_ENABLE);
        self.writeable[at + 4..at + 14].fill(0xff);
        self.writeable[at + 4] = 0xfc;
        self.msi = Some(at);
        self.built()
    }

    fn add_capability(&mut self, id: u8, bytes: usize) -> usize {
        let at = self.next_capability;
        assert!(
            at + bytes <= CONFIG_BYTES,
            "two kinds of capability, each added once, fit"
        );
        self.bytes[at] = id;
        self.bytes[self.last_link] = at as u8;
        self.last_link = at + 1;
        self.next_capability = at + bytes;
        let status = self.u16_at(STATUS) | STATUS_CAPABILITIES;
        self.set_u16(STATUS, status);
        at
    }

    fn built(mut self) -> Self {
        self.initial.clone_from(&self.bytes);
        self
    }

    /// Length of the space in bytes, to announce the configuration region with.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Reads bytes; those beyond the end read as ones, as an absent function does.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            *byte = usize::try_from(at)
                .ok()
                .and_then(|at| self.bytes.get(at))
                .copied()
                .unwrap_or(0xff);
        }
    }

    /// Writes the bits that can be written, and reports what that changed.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigChange {
        let before = self.snapshot();
        for (at, new) in (offset..).zip(data) {
            let Ok(at) = usize::try_from(at) else { break };
            let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writeable.get(at)) else {
                break;
            };
            *byte = (*byte & !mask) | (new & mask);
        }
        self.changed_since(&before)
    }

    /// Goes back to the state as built, as after power-on.
    pub fn reset(&mut self) -> ConfigChange {
        let before = self.snapshot();
        self.bytes.clone_from(&self.initial);
        self.changed_since(&before)
    }

    /// Whether the function answers memory accesses.
    #[cfg(test)]
    pub(crate) fn is_memory_enabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_MEMORY != 0
    }

    /// Whether the function may do DMA and send MSIs.
    pub fn is_bus_master(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_MASTER != 0
    }

    /// Whether INTx is allowed.
    #[cfg(test)]
    pub(crate) fn is_intx_enabled(&self) -> bool {
        self.u16_at(COMMAND) & COMMAND_INTX_DISABLE == 0
    }

    /// D-state: 0 is working, 3 is off.
    pub(crate) fn power_state(&self) -> u8 {
        self.power.map_or(0, |at| self.bytes[at + 4] & 0b11)
    }

    /// The space that a register decodes.
    pub fn bar(&self, index: usize) -> Bar {
        self.bars.get(index).copied().unwrap_or_default()
    }

    /// Address of a BAR; `None` if there is no such BAR. While a guest sizes the BAR this is the value
    /// that the guest wrote.
    pub(crate) fn bar_address(&self, index: usize) -> Option<u64> {
        let low = u64::from(self.u32_at(BAR0 + 4 * index.min(BARS - 1)));
        match self.bar(index) {
            Bar::Absent => None,
            Bar::Memory32 { .. } => Some(low & !0xf),
            Bar::Memory64 { .. } => Some(low & !0xf | u64::from(self.u32_at(BAR0 + 4 * index + 4)) << 32),
            Bar::Io { .. } => Some(low & !0x3),
        }
    }

    /// MSI as the guest has set it; `None` without the capability.
    pub fn msi(&self) -> Option<MsiState> {
        let at = self.msi?;
        Some(MsiState {
            is_enabled: self.u16_at(at + 2) & MSI_ENABLE != 0,
            address: u64::from(self.u32_at(at + 4)) | u64::from(self.u32_at(at + 8)) << 32,
            data: self.u16_at(at + 12),
        })
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            command: self.u16_at(COMMAND),
            bars: std::array::from_fn(|index| self.bar_address(index)),
            msi: self.msi(),
            power: self.power_state(),
        }
    }

    fn changed_since(&self, before: &Snapshot) -> ConfigChange {
        let now = self.snapshot();
        let flipped = before.command ^ now.command;
        let moved = before
            .bars
            .iter()
            .zip(&now.bars)
            .enumerate()
            .filter(|(_, (was, is))| was != is);
        ConfigChange {
            is_memory_changed: flipped & COMMAND_MEMORY != 0,
            is_bus_master_changed: flipped & COMMAND_MASTER != 0,
            is_intx_changed: flipped & COMMAND_INTX_DISABLE != 0,
            moved_bars: moved.fold(0, |bits, (index, _)| bits | 1 << index),
            is_msi_changed: before.msi != now.msi,
            is_power_changed: before.power != now.power,
        }
    }

    // The offsets below are this module's own and lie within the first 256 bytes.

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) | u32::from(self.u16_at(at + 2)) << 16
    }

    fn set_u16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn allow_u16(&mut self, at: usize, mask: u16) {
        for (allowed, more) in self.writeable[at..at + 2].iter_mut().zip(mask.to_le_bytes()) {
            *allowed |= more;
        }
    }
}

#[cfg(test)]
mod tests;
