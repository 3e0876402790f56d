//! How a PCI function looks to a client: its regions and interrupts, and the replies that describe them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::Errno;
use crate::bounds::{DMA_FILES_MAX, DMA_MAPS_MAX, IRQ_VECTORS_MAX, MESSAGE_FDS_MAX, UNANSWERED_MAX};
use crate::dma::DmaMap;
use crate::error::ProtocolError;
use crate::irq::{IRQ_INDICES, IrqChange, IrqIndex, PCI_IRQ_INDICES};
use crate::message::{
    CommandCode, DeviceInfoWire, IrqInfoWire, RegionInfoWire, RegionTypeWire, SparseMmapWire,
};

/// Regions of a PCI function (`VFIO_PCI_*_REGION_INDEX`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Region {
    /// BAR 0, the first base address register.
    Bar0 = 0,
    /// BAR 1; the upper half of BAR 0 if that has 64 bits.
    Bar1 = 1,
    /// BAR 2, the third base address register.
    Bar2 = 2,
    /// BAR 3, the fourth base address register.
    Bar3 = 3,
    /// BAR 4, the fifth base address register.
    Bar4 = 4,
    /// BAR 5, the sixth base address register.
    Bar5 = 5,
    /// Expansion (option) ROM.
    Rom = 6,
    /// PCI configuration space.
    Config = 7,
    /// Legacy VGA ranges.
    Vga = 8,
    /// The first region behind those of PCI: its meaning is the function's own, and [`RegionInfo::kind`] names it.
    DeviceSpecific = 9,
}

/// Regions that a function can have, its own one included.
pub(crate) const REGIONS: usize = 10;
/// Regions of every PCI function (`VFIO_PCI_NUM_REGIONS`).
const PCI_REGIONS: usize = 9;

impl Region {
    /// The region with this index; `None` if there is no such region.
    pub fn from_wire(index: u32) -> Option<Self> {
        Some(match index {
            0 => Self::Bar0,
            1 => Self::Bar1,
            2 => Self::Bar2,
            3 => Self::Bar3,
            4 => Self::Bar4,
            5 => Self::Bar5,
            6 => Self::Rom,
            7 => Self::Config,
            8 => Self::Vga,
            9 => Self::DeviceSpecific,
            _ => return None,
        })
    }
}

/// A part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// First byte in the region.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Parts of a region that a client may map instead of asking.
///
/// The descriptor goes to the client: it must hold nothing but what this client may see and change at any time.
#[derive(Debug, Clone)]
pub struct MappableRegion {
    /// File that holds the bytes.
    pub descriptor: Arc<OwnedFd>,
    /// First byte of the region in the file.
    pub offset: u64,
    /// The parts that may be mapped; an empty list means all of the region.
    pub areas: Vec<Area>,
}

/// What a region of a function's own is (`VFIO_REGION_INFO_CAP_TYPE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionKind {
    /// `VFIO_REGION_TYPE_PCI_VENDOR_TYPE` with the id of a vendor, for one that a PCI vendor defines.
    pub kind: u32,
    /// Number among those of the type.
    pub subtype: u32,
}

/// One region. The default is an absent one.
#[derive(Debug, Clone, Default)]
pub struct RegionInfo {
    /// Length in bytes; 0 if there is no such region.
    pub bytes: u64,
    /// A client may read.
    pub is_readable: bool,
    /// A client may write.
    pub is_writeable: bool,
    /// Parts that a client may map; `None` if all accesses are messages.
    pub mappable: Option<MappableRegion>,
    /// What it is, if that is the function's own. Such a region cannot be mapped too.
    pub kind: Option<RegionKind>,
}

impl RegionInfo {
    /// A region that is read and written by messages only.
    pub fn read_write(bytes: u64) -> Self {
        Self {
            bytes,
            is_readable: true,
            is_writeable: true,
            mappable: None,
            kind: None,
        }
    }
}

/// The answers to DEVICE_GET_INFO, GET_REGION_INFO and GET_IRQ_INFO, and the bounds that
/// accesses are checked against.
#[derive(Debug, Clone, Default)]
pub struct FunctionInfo {
    regions: [RegionInfo; REGIONS],
    irq_counts: [u32; IRQ_INDICES],
    is_resettable: bool,
    dma_maps_max: DmaMapsMax,
}

/// DMA maps of one client. [`DMA_MAPS_MAX`] unless the function says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DmaMapsMax(usize);

impl Default for DmaMapsMax {
    fn default() -> Self {
        Self(DMA_MAPS_MAX)
    }
}

impl FunctionInfo {
    /// A function that has nothing yet and can be reset.
    pub fn new() -> Self {
        Self {
            is_resettable: true,
            ..Self::default()
        }
    }

    /// Adds or replaces a region.
    #[must_use]
    pub fn with_region(mut self, region: Region, info: RegionInfo) -> Self {
        self.regions[region as usize] = info;
        self
    }

    /// Gives an interrupt index this many vectors. At most `IRQ_VECTORS_MAX`, more are cut off.
    #[must_use]
    pub fn with_irqs(mut self, index: IrqIndex, vectors: u32) -> Self {
        self.irq_counts[index as usize] = vectors.min(IRQ_VECTORS_MAX);
        self
    }

    /// Lets a client have this many DMA maps at a time instead of [`DMA_MAPS_MAX`]. For functions that need no mapping of
    /// their own for each; clients behind an IOMMU map single pages.
    #[must_use]
    pub fn with_dma_maps_max(mut self, maps: usize) -> Self {
        self.dma_maps_max = DmaMapsMax(maps);
        self
    }

    /// DMA maps that a client may have at a time.
    pub(crate) fn dma_maps_max(&self) -> usize {
        self.dma_maps_max.0
    }

    /// Makes DEVICE_RESET an error.
    #[must_use]
    pub fn without_reset(mut self) -> Self {
        self.is_resettable = false;
        self
    }

    /// Description of one region; the default for one that is absent.
    pub fn region(&self, region: Region) -> &RegionInfo {
        &self.regions[region as usize]
    }

    /// Vectors of each interrupt index.
    pub(crate) fn irq_counts(&self) -> &[u32; IRQ_INDICES] {
        &self.irq_counts
    }

    fn region_count(&self) -> usize {
        let has_own = self.region(Region::DeviceSpecific).bytes > 0;
        if has_own { REGIONS } else { PCI_REGIONS }
    }

    fn irq_index_count(&self) -> usize {
        let [.., own] = self.irq_counts;
        if own > 0 { IRQ_INDICES } else { PCI_IRQ_INDICES }
    }

    /// Whether DEVICE_RESET is served.
    pub(crate) fn is_resettable(&self) -> bool {
        self.is_resettable
    }

    /// File descriptors that one client of this function can make this process hold, its socket included.
    ///
    /// A process that is out of descriptors loses those that other clients send, so a server that admits clients makes room
    /// for this many each. Eventfds count once for each action that can be connected, and once for each request that
    /// may wait.
    pub fn descriptors_max(&self) -> usize {
        let connected: usize = self.irq_counts.iter().map(|count| 3 * *count as usize).sum();
        let most = self
            .irq_counts
            .iter()
            .max()
            .map_or(0, |count| *count as usize)
            .min(MESSAGE_FDS_MAX);
        1 + MESSAGE_FDS_MAX + DMA_FILES_MAX + connected + UNANSWERED_MAX * most
    }

    /// The region of an access, if the access lies within it and is allowed.
    pub(crate) fn check_access(
        &self,
        command: CommandCode,
        index: u32,
        offset: u64,
        count: u32,
    ) -> Result<Region, ProtocolError> {
        let region = Region::from_wire(index).ok_or(ProtocolError::Index { command, index })?;
        let info = self.region(region);
        let is_inside = offset
            .checked_add(u64::from(count))
            .is_some_and(|end| end <= info.bytes);
        if !is_inside {
            return Err(ProtocolError::OutsideRegion {
                region: index,
                offset,
                count,
            });
        }
        let is_allowed = match command {
            CommandCode::RegionRead => info.is_readable,
            _ => info.is_writeable,
        };
        if !is_allowed {
            return Err(ProtocolError::RegionAccess { region: index });
        }
        Ok(region)
    }

    /// Payload of a DEVICE_GET_INFO reply.
    pub(crate) fn device_info(&self, argsz: u32) -> Result<Vec<u8>, ProtocolError> {
        const FLAG_RESET: u32 = 1;
        const FLAG_PCI: u32 = 1 << 1;
        let bytes = size_of::<DeviceInfoWire>() as u32;
        check_space(CommandCode::GetInfo, argsz, bytes)?;
        let flags = FLAG_PCI | if self.is_resettable { FLAG_RESET } else { 0 };
        let wire = DeviceInfoWire {
            argsz: bytes,
            flags,
            num_regions: self.region_count() as u32,
            num_irqs: self.irq_index_count() as u32,
        };
        Ok(wire.as_bytes().to_vec())
    }

    /// Payload of a GET_IRQ_INFO reply. An index without vectors is no error: QEMU asks for all.
    pub(crate) fn irq_info(&self, argsz: u32, index: u32) -> Result<Vec<u8>, ProtocolError> {
        let command = CommandCode::GetIrqInfo;
        let bytes = size_of::<IrqInfoWire>() as u32;
        check_space(command, argsz, bytes)?;
        let counts = &self.irq_counts[..self.irq_index_count()];
        let (Some(irq), Some(&count)) = (IrqIndex::from_wire(index), counts.get(index as usize)) else {
            return Err(ProtocolError::Index { command, index });
        };
        let flags = if count == 0 { 0 } else { irq.info_flags() };
        Ok(IrqInfoWire {
            argsz: bytes,
            flags,
            index,
            count,
        }
        .as_bytes()
        .to_vec())
    }

    /// Payload and descriptor of a GET_REGION_INFO reply.
    ///
    /// If `argsz` has no room for the capabilities, the reply says how much room they need and leaves them and the
    /// descriptor out, as the kernel's VFIO does; the client asks again. Their offset is there all the same: QEMU gives
    /// up on a reply that announces capabilities at offset 0.
    pub(crate) fn region_info(
        &self,
        argsz: u32,
        index: u32,
        takes_descriptors: bool,
    ) -> Result<(Vec<u8>, Option<Arc<OwnedFd>>), ProtocolError> {
        const FLAG_READ: u32 = 1;
        const FLAG_WRITE: u32 = 1 << 1;
        const FLAG_MMAP: u32 = 1 << 2;
        let command = CommandCode::GetRegionInfo;
        let fixed_bytes = size_of::<RegionInfoWire>() as u32;
        check_space(command, argsz, fixed_bytes)?;
        let is_there = (index as usize) < self.region_count();
        let region = Region::from_wire(index).filter(|_| is_there);
        let info = self.region(region.ok_or(ProtocolError::Index { command, index })?);
        let mut wire = RegionInfoWire {
            argsz: fixed_bytes,
            flags: 0,
            index,
            cap_offset: 0,
            bytes: info.bytes,
            offset: 0,
        };
        wire.flags |= if info.is_readable { FLAG_READ } else { 0 };
        wire.flags |= if info.is_writeable { FLAG_WRITE } else { 0 };
        if let Some(kind) = info.kind {
            return Ok((with_capability(wire, argsz, &region_type(kind)), None));
        }
        let Some(mappable) = info.mappable.as_ref().filter(|_| takes_descriptors) else {
            return Ok((wire.as_bytes().to_vec(), None));
        };
        wire.flags |= FLAG_MMAP;
        wire.offset = mappable.offset;
        if mappable.areas.is_empty() {
            return Ok((wire.as_bytes().to_vec(), Some(Arc::clone(&mappable.descriptor))));
        }
        let payload = with_capability(wire, argsz, &sparse_mmap(&mappable.areas));
        let has_room = payload.len() > fixed_bytes as usize;
        Ok((payload, has_room.then(|| Arc::clone(&mappable.descriptor))))
    }
}

/// A region's description with a capability, if `argsz` has room for it. The room that it needs is said in any case.
fn with_capability(mut wire: RegionInfoWire, argsz: u32, capability: &[u8]) -> Vec<u8> {
    const FLAG_CAPS: u32 = 1 << 3;
    wire.cap_offset = wire.argsz;
    wire.argsz += capability.len() as u32;
    wire.flags |= FLAG_CAPS;
    match argsz < wire.argsz {
        true => wire.as_bytes().to_vec(),
        false => [wire.as_bytes(), capability].concat(),
    }
}

/// `VFIO_REGION_INFO_CAP_TYPE`, version 1, last of its list.
fn region_type(kind: RegionKind) -> Vec<u8> {
    let RegionKind { kind, subtype } = kind;
    let capability = RegionTypeWire {
        id: 2,
        version: 1,
        next: 0,
        kind,
        subtype,
    };
    capability.as_bytes().to_vec()
}

fn check_space(command: CommandCode, argsz: u32, bytes: u32) -> Result<(), ProtocolError> {
    if argsz < bytes {
        return Err(ProtocolError::ReplySpace {
            command,
            bytes: argsz,
        });
    }
    Ok(())
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`, version 1, last of its list.
fn sparse_mmap(areas: &[Area]) -> Vec<u8> {
    let header = SparseMmapWire {
        id: 1,
        version: 1,
        next: 0,
        areas: areas.len() as u32,
        reserved: 0,
    };
    let mut capability = header.as_bytes().to_vec();
    for area in areas {
        capability.extend_from_slice([area.offset, area.bytes].as_bytes());
    }
    capability
}

/// A function that answers at once; [`Client::serve`](crate::Client::serve) drives it.
///
/// Accesses arrive checked: inside a region of the [`FunctionInfo`], in a direction that it allows, 1 to
/// `DATA_BYTES_MAX` bytes. Width and alignment are the client's choice. An `Err`
/// becomes the error of the reply.
pub trait PciFunction {
    /// Fills `data` from a region.
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Errno>;

    /// Writes `data` to a region.
    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Connects, masks or triggers interrupts as the client asks.
    fn change_irqs(&mut self, change: IrqChange) -> Result<(), Errno>;

    /// Brings the function to its state after power-on.
    fn reset(&mut self) -> Result<(), Errno>;

    /// The client offers memory. A function without DMA need not implement this.
    fn dma_map(&mut self, map: &Arc<DmaMap>) -> Result<(), Errno> {
        let _ = map;
        Ok(())
    }

    /// The client takes memory back; when this returns, nothing may touch it any more.
    fn dma_unmap(&mut self, map: &Arc<DmaMap>) {
        let _ = map;
    }
}

#[cfg(test)]
mod tests;
