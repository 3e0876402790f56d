//! The vfio-user messages that a client of one PCI function sends, and their replies.
//!
//! Layouts and numbers: libvfio-user `docs/vfio-user.rst` (protocol 0.1) and, for the structures it borrows, Linux
//! `include/uapi/linux/vfio.h`. All fields are little-endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PCI configuration space as a region (VFIO_PCI_CONFIG_REGION_INDEX).
pub const CONFIG_REGION: u32 = 7;
/// Regions that belong to a PCI function; a server may claim more, which are not asked about.
pub(crate) const PCI_REGIONS: u32 = 9;
/// VFIO_PCI_MSI_IRQ_INDEX.
pub(crate) const MSI_IRQ_INDEX: u32 = 1;
/// VFIO_DEVICE_FLAGS_PCI.
pub(crate) const DEVICE_IS_PCI: u32 = 1 << 1;
/// VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER.
pub(crate) const IRQ_TRIGGERS_EVENTFD: u32 = (1 << 2) | (1 << 5);
/// The peer may read and write the mapped memory (VFIO_USER_F_DMA_REGION_READ | _WRITE).
pub(crate) const DMA_READ_WRITE: u32 = 0b11;
/// The type field of a message's flags, and its value in a reply.
pub(crate) const FLAGS_TYPE: u32 = 0xf;
pub(crate) const FLAGS_REPLY: u32 = 1;
/// The reply carries an error number instead of a body.
pub(crate) const FLAGS_ERROR: u32 = 1 << 5;

/// What is asked of the server. The number is the command field of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Agree on a protocol version.
    Version = 1,
    /// Let the device reach guest memory.
    DmaMap = 2,
    /// Take guest memory away from the device.
    DmaUnmap = 3,
    /// Number of regions and interrupts.
    DeviceGetInfo = 4,
    /// Size of one region.
    DeviceGetRegionInfo = 5,
    /// Name the eventfd of an interrupt.
    DeviceSetIrqs = 8,
    /// Load from a region.
    RegionRead = 9,
    /// Store to a region.
    RegionWrite = 10,
    /// Reset the function.
    DeviceReset = 13,
}

/// Start of each message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) message_id: U16,
    pub(crate) command: U16,
    pub(crate) message_bytes: U32,
    pub(crate) flags: U32,
    pub(crate) error: U32,
}

/// First fields of a version message; a NUL-terminated JSON object follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: U16,
    pub(crate) minor: U16,
}

/// Body of DMA_MAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DmaMap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) file_offset: U64,
    pub(crate) address: U64,
    pub(crate) bytes: U64,
}

/// Body of DMA_UNMAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DmaUnmap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) address: U64,
    pub(crate) bytes: U64,
}

/// Body of DEVICE_GET_INFO and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) num_regions: U32,
    pub(crate) num_irqs: U32,
}

/// Body of DEVICE_GET_REGION_INFO and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RegionInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) cap_offset: U32,
    pub(crate) bytes: U64,
    pub(crate) file_offset: U64,
}

/// Body of DEVICE_SET_IRQS.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct SetIrqs {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) start: U32,
    pub(crate) count: U32,
}

/// First fields of REGION_READ and REGION_WRITE and of their replies; data follows where it flows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub(crate) offset: U64,
    pub(crate) region: U32,
    pub(crate) count: U32,
}

const _: () = assert!(size_of::<Header>() == 16);
const _: () = assert!(size_of::<DmaMap>() == 32);
const _: () = assert!(size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<DeviceInfo>() == 16);
const _: () = assert!(size_of::<RegionInfo>() == 32);
const _: () = assert!(size_of::<SetIrqs>() == 20);
const _: () = assert!(size_of::<RegionAccess>() == 16);
