//! The wire: layouts, constants, and a decoder that is total.
//!
//! Any bytes become a [`Command`] or a [`ProtocolError`]; what is allocated is bounded by the bytes received.
//! Source of every layout: the vfio-user protocol specification (QEMU `docs/interop/vfio-user.rst`), which reuses
//! structures of `<linux/vfio.h>`. All fields are in the byte order of the host, as the specification says.

use std::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bounds::{DATA_BYTES_MAX, MULTI_WRITES_MAX, VERSION_DATA_BYTES_MAX};
use crate::error::ProtocolError;
use crate::version::Proposal;

/// Bits 0..4 of the flags: a command is 0, a reply 1.
pub(crate) const FLAG_TYPE_MASK: u32 = 0xf;
/// Type of a reply.
pub(crate) const FLAG_REPLY: u32 = 1;
/// The sender of this command wants no reply.
pub(crate) const FLAG_NO_REPLY: u32 = 1 << 4;
/// The error field of this reply is valid.
pub(crate) const FLAG_ERROR: u32 = 1 << 5;

/// VFIO_USER_DMA_WRITE, which servers send.
pub(crate) const DMA_WRITE: u16 = 12;

/// The 16 bytes in front of every message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Chosen by the client, echoed in the reply; it may repeat.
    pub message_id: u16,
    /// Number of a [`CommandCode`]; other numbers are possible.
    pub command: u16,
    /// Bytes of the whole message, this header included.
    pub message_bytes: u32,
    /// Type, no-reply and error bits.
    pub flags: u32,
    /// errno of a failed command.
    pub error: u32,
}
const _: () = assert!(size_of::<Header>() == 16);

impl Header {
    /// Whether the client wants no reply (a posted command).
    pub(crate) fn is_posted(&self) -> bool {
        self.flags & FLAG_NO_REPLY != 0
    }

    /// Whether it answers a [`DMA_WRITE`] of ours. A client that refuses one may say so even if it was asked not to.
    pub(crate) fn is_upstream_reply(&self) -> bool {
        self.flags & FLAG_TYPE_MASK == FLAG_REPLY && self.command == DMA_WRITE
    }

    /// Whether it is a [`DMA_WRITE`] itself, a store of the function's.
    pub(crate) fn is_upstream(&self) -> bool {
        self.flags & FLAG_TYPE_MASK == 0 && self.command == DMA_WRITE
    }

    /// Length of the body behind this header, or why the message is not accepted.
    pub(crate) fn body_bytes(&self) -> Result<usize, ProtocolError> {
        let body = (self.message_bytes as usize)
            .checked_sub(size_of::<Header>())
            .ok_or(ProtocolError::SizeBelowHeader {
                bytes: self.message_bytes,
            })?;
        if self.message_bytes as usize > crate::bounds::MESSAGE_BYTES_MAX {
            return Err(ProtocolError::SizeAboveBound {
                bytes: self.message_bytes,
            });
        }
        if self.flags & FLAG_TYPE_MASK != 0 && !self.is_upstream_reply() {
            return Err(ProtocolError::NotACommand { flags: self.flags });
        }
        Ok(body)
    }
}

/// Commands of the specification that this crate knows by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum CommandCode {
    /// VFIO_USER_VERSION: negotiates version and capabilities.
    Version = 1,
    /// VFIO_USER_DMA_MAP: offers memory.
    DmaMap = 2,
    /// VFIO_USER_DMA_UNMAP: takes memory back.
    DmaUnmap = 3,
    /// VFIO_USER_DEVICE_GET_INFO: numbers of regions and interrupt indices.
    GetInfo = 4,
    /// VFIO_USER_DEVICE_GET_REGION_INFO: size and flags of a region.
    GetRegionInfo = 5,
    /// VFIO_USER_DEVICE_GET_IRQ_INFO: vectors of an interrupt index.
    GetIrqInfo = 7,
    /// VFIO_USER_DEVICE_SET_IRQS: connects, masks or triggers interrupts.
    SetIrqs = 8,
    /// VFIO_USER_REGION_READ: reads bytes of a region.
    RegionRead = 9,
    /// VFIO_USER_REGION_WRITE: writes bytes of a region.
    RegionWrite = 10,
    /// VFIO_USER_DEVICE_RESET: resets the function.
    Reset = 13,
    /// VFIO_USER_REGION_WRITE_MULTI: several small writes in one message.
    RegionWriteMulti = 15,
}

impl CommandCode {
    /// The command with this number. `None` for all others: GET_REGION_IO_FDS (6), the server-to-client DMA_READ
    /// and DMA_WRITE (11, 12), the withdrawn DIRTY_PAGES (14), DEVICE_FEATURE and migration data (16 to 18), and
    /// numbers that do not exist.
    pub fn from_wire(command: u16) -> Option<Self> {
        Some(match command {
            1 => Self::Version,
            2 => Self::DmaMap,
            3 => Self::DmaUnmap,
            4 => Self::GetInfo,
            5 => Self::GetRegionInfo,
            7 => Self::GetIrqInfo,
            8 => Self::SetIrqs,
            9 => Self::RegionRead,
            10 => Self::RegionWrite,
            13 => Self::Reset,
            15 => Self::RegionWriteMulti,
            _ => return None,
        })
    }
}

/// VERSION, request and reply; JSON text with a NUL follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VersionWire {
    pub(crate) major: u16,
    pub(crate) minor: u16,
}

/// DMA_WRITE, request; the bytes follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DmaAccessWire {
    pub(crate) address: u64,
    pub(crate) count: u64,
}

/// Body of a DMA_MAP request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaMapWire {
    /// Size of this structure.
    pub argsz: u32,
    /// 1 readable, 2 writeable.
    pub flags: u32,
    /// First byte of the range in the file.
    pub offset: u64,
    /// First DMA address.
    pub iova: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// DMA_UNMAP, request and reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaUnmapWire {
    /// Largest reply payload, in bytes.
    pub argsz: u32,
    /// Bits VFIO_DMA_UNMAP_FLAG_* of `<linux/vfio.h>`.
    pub flags: u32,
    /// First DMA address.
    pub iova: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// DEVICE_GET_INFO, request and reply.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DeviceInfoWire {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) num_regions: u32,
    pub(crate) num_irqs: u32,
}

/// DEVICE_GET_REGION_INFO, request and reply (`struct vfio_region_info`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RegionInfoWire {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) cap_offset: u32,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
}

/// Sparse-mmap capability of a region, without its areas (`struct vfio_region_info_cap_sparse_mmap`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SparseMmapWire {
    pub(crate) id: u16,
    pub(crate) version: u16,
    pub(crate) next: u32,
    pub(crate) areas: u32,
    pub(crate) reserved: u32,
}

/// Type capability of a region (`struct vfio_region_info_cap_type`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RegionTypeWire {
    pub(crate) id: u16,
    pub(crate) version: u16,
    pub(crate) next: u32,
    pub(crate) kind: u32,
    pub(crate) subtype: u32,
}

/// DEVICE_GET_IRQ_INFO, request and reply (`struct vfio_irq_info`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IrqInfoWire {
    pub(crate) argsz: u32,
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

/// DEVICE_SET_IRQS, request without its data (`struct vfio_irq_set`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqSetWire {
    /// Size of this structure and its data.
    pub argsz: u32,
    /// One DATA and one ACTION bit.
    pub flags: u32,
    /// Index of the interrupts.
    pub index: u32,
    /// Number of the first vector.
    pub start: u32,
    /// Number of vectors.
    pub count: u32,
}

/// REGION_READ and REGION_WRITE, request and reply, without the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionAccessWire {
    /// First byte in the region.
    pub offset: u64,
    /// Index of the region.
    pub region: u32,
    /// Length in bytes.
    pub count: u32,
}

/// One write of a REGION_WRITE_MULTI, which is `wr_cnt` (8 bytes) and as many of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MultiWriteWire {
    pub(crate) access: RegionAccessWire,
    pub(crate) data: [u8; 8],
}
const _: () = assert!(size_of::<DmaMapWire>() == 32 && size_of::<DmaUnmapWire>() == 24);
const _: () = assert!(size_of::<RegionInfoWire>() == 32 && size_of::<IrqSetWire>() == 20);
const _: () = assert!(size_of::<MultiWriteWire>() == 24 && size_of::<SparseMmapWire>() == 16);
const _: () = assert!(size_of::<RegionTypeWire>() == 16);

/// One small write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallWrite {
    /// Index of the region.
    pub region: u32,
    /// First byte in the region.
    pub offset: u64,
    data: [u8; 8],
    bytes: u8,
}

impl SmallWrite {
    /// The 1 to 8 bytes to write.
    pub fn data(&self) -> &[u8] {
        // `decode` is the only place that makes one, with `bytes` at most 8.
        self.data.get(..usize::from(self.bytes)).unwrap_or_default()
    }
}

/// A decoded command. Values that depend on the device (regions, vectors, maps) are not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Proposes version and capabilities.
    Version(Proposal),
    /// Offers memory for DMA.
    DmaMap(DmaMapWire),
    /// Takes memory back.
    DmaUnmap(DmaUnmapWire),
    /// Asks for the number of regions and interrupt indices.
    GetInfo {
        /// Largest reply payload, in bytes.
        argsz: u32,
    },
    /// Asks for one region.
    GetRegionInfo {
        /// Largest reply payload, in bytes.
        argsz: u32,
        /// Index of the region.
        index: u32,
    },
    /// Asks for one interrupt index.
    GetIrqInfo {
        /// Largest reply payload, in bytes.
        argsz: u32,
        /// Index of the interrupts.
        index: u32,
    },
    /// Sets actions of interrupts; the bytes are the data field.
    SetIrqs(IrqSetWire, Vec<u8>),
    /// Reads from a region.
    RegionRead(RegionAccessWire),
    /// Writes to a region.
    RegionWrite(RegionAccessWire, Vec<u8>),
    /// Writes several times, in order.
    RegionWriteMulti(Vec<SmallWrite>),
    /// Resets the device.
    Reset,
}

/// Splits the fixed part off a body.
fn fixed<T: FromBytes>(command: CommandCode, body: &[u8]) -> Result<(T, &[u8]), ProtocolError> {
    T::read_from_prefix(body).map_err(|_| ProtocolError::BodyLength {
        command,
        bytes: body.len(),
    })
}

fn transfer(access: RegionAccessWire) -> Result<RegionAccessWire, ProtocolError> {
    if access.count == 0 || access.count > DATA_BYTES_MAX {
        return Err(ProtocolError::TransferSize { count: access.count });
    }
    Ok(access)
}

/// Decodes the bytes behind a header that names `command`.
///
/// Bytes beyond the fixed part are ignored where the command has no data: clients send the whole reply structure.
pub fn decode(command: u16, body: &[u8]) -> Result<Command, ProtocolError> {
    let Some(code) = CommandCode::from_wire(command) else {
        return Err(ProtocolError::UnsupportedCommand { command });
    };
    match code {
        CommandCode::Version => decode_version(body),
        CommandCode::DmaMap => {
            let (map, _): (DmaMapWire, _) = fixed(code, body)?;
            Ok(Command::DmaMap(map))
        }
        CommandCode::DmaUnmap => Ok(Command::DmaUnmap(fixed(code, body)?.0)),
        CommandCode::GetInfo => {
            // Some clients send argsz and flags only.
            let (argsz, _): (u32, _) = fixed(code, body)?;
            Ok(Command::GetInfo { argsz })
        }
        CommandCode::GetRegionInfo => {
            let ([argsz, _flags, index], _): ([u32; 3], _) = fixed(code, body)?;
            Ok(Command::GetRegionInfo { argsz, index })
        }
        CommandCode::GetIrqInfo => {
            let ([argsz, _flags, index], _): ([u32; 3], _) = fixed(code, body)?;
            Ok(Command::GetIrqInfo { argsz, index })
        }
        CommandCode::SetIrqs => {
            let (set, data): (IrqSetWire, _) = fixed(code, body)?;
            Ok(Command::SetIrqs(set, data.to_vec()))
        }
        CommandCode::RegionRead => Ok(Command::RegionRead(transfer(fixed(code, body)?.0)?)),
        CommandCode::RegionWrite => {
            let (access, data): (RegionAccessWire, _) = fixed(code, body)?;
            let access = transfer(access)?;
            if data.len() != access.count as usize {
                return Err(ProtocolError::BodyLength {
                    command: code,
                    bytes: body.len(),
                });
            }
            Ok(Command::RegionWrite(access, data.to_vec()))
        }
        CommandCode::RegionWriteMulti => decode_multi(body),
        CommandCode::Reset => Ok(Command::Reset),
    }
}

fn decode_version(body: &[u8]) -> Result<Command, ProtocolError> {
    let (version, data): (VersionWire, _) = fixed(CommandCode::Version, body)?;
    if version.major != crate::version::MAJOR {
        return Err(ProtocolError::UnsupportedVersion {
            major: version.major,
            minor: version.minor,
        });
    }
    if data.len() > VERSION_DATA_BYTES_MAX {
        return Err(ProtocolError::BodyLength {
            command: CommandCode::Version,
            bytes: body.len(),
        });
    }
    Ok(Command::Version(Proposal::decode(version.minor, data)?))
}

fn decode_multi(body: &[u8]) -> Result<Command, ProtocolError> {
    let code = CommandCode::RegionWriteMulti;
    let (count, mut rest): (u64, _) = fixed(code, body)?;
    if count == 0 || count > MULTI_WRITES_MAX as u64 {
        return Err(ProtocolError::BatchSize { count });
    }
    if rest.len() != count as usize * size_of::<MultiWriteWire>() {
        return Err(ProtocolError::BodyLength {
            command: code,
            bytes: body.len(),
        });
    }
    let mut writes = Vec::with_capacity(count as usize);
    while !rest.is_empty() {
        let (write, after): (MultiWriteWire, _) = fixed(code, rest)?;
        rest = after;
        let RegionAccessWire {
            offset,
            region,
            count,
        } = write.access;
        if count == 0 || count > 8 {
            return Err(ProtocolError::TransferSize { count });
        }
        writes.push(SmallWrite {
            region,
            offset,
            data: write.data,
            bytes: count as u8,
        });
    }
    Ok(Command::RegionWriteMulti(writes))
}

#[cfg(test)]
mod tests;
