//! The memory that the core reads and writes: guests' RAM, images of their VRAM, the broker's own DMA memory.
//!
//! Everything is reached through vm-memory's volatile views, each byte once per call: guests change their RAM while
//! it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

use fermi_spec::addr::{Gpa, GuestVramAddr};
use vfio_user_server::dma::DmaFile;
use vfio_user_server::{ForeignFd, Reaper};
use vgpu::{DmaMemory, HostMemory, Place, VmId};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use crate::image::{Image, LeftImage, WindowFile, plain};
use crate::lending::Loan;
use crate::mapping::{MapError, Mapped, PAGE, map_client, map_shared, seal_against_shrinking, sealed_memfd};
use crate::room::{HostGone, HostRoom, HostShort};
use crate::sigbus::{Guard, MapOwner};

/// Bytes of the broker's own DMA memory.
pub const OWN_BYTES: u64 = 1 << 20;

/// RAM maps of one VM. A guest with an IOMMU has one for each page that its driver lets the device reach. They are parts of a few mappings, so what bounds them is the time in which they go with their VM: some 30 ms.
pub(crate) const RAM_MAPS_MAX: usize = 16_384;

/// Descriptors that one VM can make a broker hold at a time: its socket's, its image and its part of a software card.
pub const DESCRIPTORS_OF_A_VM: u64 = vfio_user_server::bounds::DESCRIPTORS_MAX as u64 + 16;

/// A mapping of a client's memory file, which may be cut while it is mapped: an access to the missing part reads as zero.
#[derive(Debug)]
pub struct FileMap {
    /// Where it begins in the file, and its length. Bytes.
    offset: u64,
    bytes: u64,
    is_writable: bool,
    mapped: Mapped,
    guard: Guard,
}

impl FileMap {
    /// Maps `bytes` from `offset` of a client's file; `owner` is told if the client takes the memory away.
    ///
    /// # Errors
    /// Those of the host; a range that the file has not; too many mappings of this owner's.
    pub fn new(
        file: Arc<File>,
        offset: u64,
        bytes: u64,
        is_writable: bool,
        owner: &MapOwner,
    ) -> Result<Self, MapError> {
        // Files without MFD_ALLOW_SEALING refuse this; then only the guard protects the mapping.
        seal_against_shrinking(&file);
        let mapped = map_client(file, offset, bytes, is_writable)?;
        let guard = Guard::new(mapped.region.clone(), owner)?;
        Ok(Self {
            offset,
            bytes,
            is_writable,
            mapped,
            guard,
        })
    }

    /// Maps a file of `file_bytes` as a whole, as far as it consists of pages.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn whole(file: Arc<File>, file_bytes: u64, owner: &MapOwner) -> Result<Self, MapError> {
        let flags = rustix::fs::fcntl_getfl(&file).map_err(std::io::Error::from)?;
        let is_writable = flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDWR;
        Self::new(file, 0, file_bytes - file_bytes % PAGE, is_writable, owner)
    }

    /// The memory of `bytes` from `offset` of the file, if all of it is mapped.
    pub fn part(&self, offset: u64, bytes: u64) -> Option<DmaMemory> {
        let at = offset.checked_sub(self.offset)?;
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        is_inside.then(|| DmaMemory {
            region: self.mapped.region.clone(),
            offset: self.mapped.lead + at,
            bytes,
        })
    }

    /// Whether stores are possible.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether the client took the memory away.
    pub fn is_torn(&self) -> bool {
        self.guard.is_torn()
    }
}

/// A range of RAM that a client's device may reach: a part of a mapping that others may share.
#[derive(Debug)]
pub(crate) struct RamMap {
    pub(crate) bytes: u64,
    pub(crate) writable: bool,
    /// Where it lies in the mapping.
    offset: u64,
    file: Arc<FileMap>,
}

impl RamMap {
    /// `bytes` from `offset` of the file.
    ///
    /// # Errors
    /// They are no pages of the mapping, or cannot be stored to and are to be.
    pub(crate) fn new(file: Arc<FileMap>, offset: u64, bytes: u64, writable: bool) -> Result<Self, MapError> {
        let is_page = offset.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0;
        let part = file
            .part(offset, bytes)
            .filter(|_| is_page && (!writable || file.is_writable));
        match part {
            Some(part) => Ok(Self {
                bytes,
                writable,
                offset: part.offset,
                file,
            }),
            None => Err(MapError::BadRange {
                offset,
                bytes,
                file_bytes: file.offset + file.bytes,
            }),
        }
    }
}

/// The files of one client's memory, each mapped once however many maps it has: a VMM with an IOMMU maps and unmaps single pages of one
/// file all the time, and a mapping for each would take those of the process.
#[derive(Debug, Default)]
pub struct ClientFiles {
    files: Vec<ClientFile>,
}

/// A file that is mapped as long as the client's table of maps needs its descriptor.
#[derive(Debug)]
struct ClientFile {
    descriptor: Weak<ForeignFd>,
    map: Arc<FileMap>,
}

/// Most bytes that one VM's files may have to be mapped as a whole. Of files beyond that each map is a mapping, and the VM has few of them.
const WHOLE_BYTES_MAX: u64 = 1 << 40;

impl ClientFiles {
    /// The mapping that `bytes` from the place that a map names lie in.
    ///
    /// # Errors
    /// Those of [`FileMap::new`].
    pub fn map(
        &mut self,
        file: &DmaFile,
        bytes: u64,
        writable: bool,
        owner: &MapOwner,
    ) -> Result<Arc<FileMap>, MapError> {
        self.forget_unused();
        let is_it = |known: &&ClientFile| {
            std::ptr::eq(known.descriptor.as_ptr(), Arc::as_ptr(&file.descriptor))
                && known.map.part(file.offset, bytes).is_some()
        };
        if let Some(known) = self.files.iter().find(is_it) {
            return Ok(Arc::clone(&known.map));
        }
        let own = Arc::new(File::from(file.descriptor.try_clone()?));
        let file_bytes = own.metadata()?.len();
        let map = Arc::new(
            match owner.mapped_bytes().saturating_add(file_bytes) <= WHOLE_BYTES_MAX {
                true => FileMap::whole(own, file_bytes, owner)?,
                false => FileMap::new(own, file.offset, bytes, writable, owner)?,
            },
        );
        self.files.push(ClientFile {
            descriptor: Arc::downgrade(&file.descriptor),
            map: Arc::clone(&map),
        });
        Ok(map)
    }

    /// Lets go of files of which no map is left.
    pub(crate) fn forget_unused(&mut self) {
        self.files.retain(|known| known.descriptor.strong_count() > 0);
    }

    /// Whether the client took memory away that it had offered.
    pub fn is_torn(&self) -> bool {
        self.files.iter().any(|known| known.map.is_torn())
    }
}

#[derive(Debug)]
struct VmMemory {
    /// Maps by first address; they never overlap.
    ram: BTreeMap<u64, RamMap>,
    image: Image,
    reaper: Reaper,
}

/// Why a [`Place`] cannot be mapped for DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes:#x} bytes at {place:?} are not whole pages of one mapping")]
pub(crate) struct NoSuchMemory {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
}

/// RAM and images of all VMs, and the broker's own memory.
#[derive(Debug)]
pub(crate) struct Memory {
    vms: BTreeMap<VmId, VmMemory>,
    own: Arc<MmapRegion>,
    room: HostRoom,
    /// VMs to whose instance memory a store found no page, and why.
    starved: Vec<(VmId, String)>,
}

impl Memory {
    /// The broker's own memory, without any VM.
    pub(crate) fn new() -> Result<Self, MapError> {
        let file = Arc::new(sealed_memfd("vramd-own", OWN_BYTES)?);
        Ok(Self {
            vms: BTreeMap::new(),
            own: map_shared(file, 0, OWN_BYTES, true)?,
            room: HostRoom::default(),
            starved: Vec::new(),
        })
    }

    /// Where the kernel says how much memory is left. Until then nothing bounds what is taken.
    pub(crate) fn set_room(&mut self, room: HostRoom) {
        self.room = room.counting(self.room.under_way());
    }

    /// Whether the host can give a VM the memory that `guest_vram` bytes may take, beside what the VMs that are there may still
    /// come to need.
    ///
    /// # Errors
    /// The figures, if it cannot.
    pub(crate) fn check_host(&self, guest_vram: u64) -> Result<(), HostShort> {
        let promised = self.vms.values().map(|memory| memory.image.untouched()).sum();
        self.room.check(guest_vram, promised)
    }

    /// Whether the host still has memory that is about to be taken of it.
    ///
    /// # Errors
    /// The figures, if it has not.
    pub(crate) fn take_from_host(&mut self, now: Instant, bytes: u64) -> Result<(), HostGone> {
        match bytes {
            0 => Ok(()),
            bytes => self.room.take(now, bytes),
        }
    }

    /// Bytes that threads have still to touch, by all of whom this counter is kept.
    pub(crate) fn counter_of_ahead(&self) -> Arc<AtomicU64> {
        self.room.under_way()
    }

    /// Bytes that threads have still to touch.
    pub(crate) fn under_way(&self) -> u64 {
        self.room.under_way().load(Relaxed)
    }

    /// VMs for whose instance memory the host had no page since the last call, with the reasons.
    pub(crate) fn take_starved(&mut self) -> Vec<(VmId, String)> {
        std::mem::take(&mut self.starved)
    }

    /// Has the pages there to which the broker is about to store in an image. `false`: the host has none.
    fn have_pages(&mut self, vm: VmId, at: GuestVramAddr, bytes: u64) -> bool {
        let Some(memory) = self.vms.get_mut(&vm) else {
            return false;
        };
        let lacks = memory.image.lacks(at.0, bytes);
        if lacks == 0 {
            return true;
        }
        let had = match self.room.take(Instant::now(), lacks) {
            Ok(()) => memory
                .image
                .have(at.0, bytes)
                .map_err(|error| format!("the host has no memory left for its instance memory: {error}")),
            Err(gone) => Err(gone.to_string()),
        };
        let is_had = had.is_ok();
        self.starved.extend(had.err().map(|reason| (vm, reason)));
        is_had
    }

    /// Gives a VM an image of `guest_vram` bytes, all zero.
    ///
    /// `reaper` frees it at the end. `name` is the VM's, to be seen in the list of the process's files; only plain characters of it are used.
    pub(crate) fn add_vm(
        &mut self,
        vm: VmId,
        name: &str,
        guest_vram: u64,
        reaper: Reaper,
    ) -> Result<(), MapError> {
        let name = format!("vramd-image-{}", plain(name));
        let image = Image::new(&name, guest_vram)?;
        self.vms.insert(
            vm,
            VmMemory {
                ram: BTreeMap::new(),
                image,
                reaper,
            },
        );
        Ok(())
    }

    /// Gives a VM a window file, if it has an image.
    pub(crate) fn set_windows(
        &mut self,
        vm: VmId,
        file: WindowFile,
        owner: &MapOwner,
    ) -> Result<(), MapError> {
        let memory = self.vms.get_mut(&vm);
        memory.map_or(Ok(()), |memory| memory.image.set_windows(file, owner))
    }

    /// BAR1 as the VM's client maps it, if it may.
    pub(crate) fn bar1(&self, vm: VmId) -> Option<&Arc<MmapRegion>> {
        self.vms.get(&vm)?.image.bar1()
    }

    /// Lets pages of an image live in the VM's window file, or takes them back.
    ///
    /// # Errors
    /// Those of the host.
    pub(crate) fn change_place(&mut self, vm: VmId, loan: Loan, is_lent: bool) -> std::io::Result<()> {
        let memory = self.vms.get_mut(&vm);
        memory.map_or(Ok(()), |memory| memory.image.change_place(loan, is_lent))
    }

    /// Forgets all memory of a VM. Mappings that the card's backend still holds stay until it drops them; the rest is freed by
    /// the VM's reaper.
    pub(crate) fn remove_vm(&mut self, vm: VmId) {
        if let Some(memory) = self.vms.remove(&vm) {
            memory.reaper.leave(LeftImage(Some(memory.image)));
        }
    }

    /// The file of a VM's image.
    pub(crate) fn image(&self, vm: VmId) -> Option<Arc<File>> {
        Some(self.vms.get(&vm)?.image.file.clone())
    }

    /// Whether a map may be entered: the VM exists, has room, and nothing overlaps.
    pub(crate) fn has_room(&self, vm: VmId, gpa: Gpa, bytes: u64) -> Result<(), vgpu::Refusal> {
        let memory = self.vms.get(&vm).ok_or(vgpu::Refusal::NotAttached)?;
        let end = gpa.checked_add(bytes).ok_or(vgpu::Refusal::BadRange)?;
        let before = memory.ram.range(..end.0).next_back();
        if !gpa.is_aligned(PAGE) || before.is_some_and(|(start, map)| start + map.bytes > gpa.0) {
            return Err(vgpu::Refusal::BadRange);
        }
        if memory.ram.len() >= RAM_MAPS_MAX {
            return Err(vgpu::Refusal::TooManyMaps);
        }
        Ok(())
    }

    /// Enters a map for which there [is room](Self::has_room).
    pub(crate) fn insert_ram(&mut self, vm: VmId, gpa: Gpa, map: RamMap) {
        if let Some(memory) = self.vms.get_mut(&vm) {
            memory.ram.insert(gpa.0, map);
        }
    }

    /// Forgets the maps that lie wholly in a range.
    pub(crate) fn remove_ram(&mut self, vm: VmId, gpa: Gpa, bytes: u64) {
        let Some(memory) = self.vms.get_mut(&vm) else {
            return;
        };
        let end = gpa.0.saturating_add(bytes);
        memory
            .ram
            .retain(|start, map| *start < gpa.0 || start.saturating_add(map.bytes) > end);
    }

    /// The VMs whose RAM was taken away while mapped.
    pub(crate) fn torn_vms(&self) -> Vec<VmId> {
        let is_torn =
            |memory: &VmMemory| memory.image.is_torn() || memory.ram.values().any(|map| map.file.is_torn());
        self.vms
            .iter()
            .filter(|(_, memory)| is_torn(memory))
            .map(|(vm, _)| *vm)
            .collect()
    }

    /// The memory that a DMA map of `place` maps.
    pub(crate) fn dma_memory(&self, place: Place, bytes: u64) -> Result<DmaMemory, NoSuchMemory> {
        let missing = NoSuchMemory { place, bytes };
        let found = self.find(place).ok_or(missing)?;
        let is_whole = found.offset.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0;
        if !is_whole || bytes > found.room {
            return Err(missing);
        }
        Ok(DmaMemory {
            region: found.region.clone(),
            offset: found.offset,
            bytes,
        })
    }

    /// Gives image memory back; it reads as zero afterwards.
    pub(crate) fn drop_image(&mut self, vm: VmId, at: GuestVramAddr, bytes: u64) -> std::io::Result<()> {
        match self.vms.get(&vm) {
            Some(memory) if bytes > 0 => memory.image.drop_range(at.0, bytes),
            _ => Ok(()),
        }
    }

    /// Image memory is being given back: a store there needs pages anew. If it is all of the image, nothing lives in the window file any more.
    ///
    /// # Errors
    /// Those of the host: pages still live there.
    pub(crate) fn forget_image(&mut self, vm: VmId, at: GuestVramAddr, bytes: u64) -> std::io::Result<()> {
        let Some(memory) = self.vms.get_mut(&vm) else {
            return Ok(());
        };
        memory.image.forget(at.0, bytes);
        match bytes == memory.image.region.size() as u64 {
            true => memory.image.leave_windows(),
            false => Ok(()),
        }
    }

    /// The mapping that holds a place.
    fn find(&self, place: Place) -> Option<Found<'_>> {
        match place {
            Place::Ram { vm, gpa } => {
                let (start, map) = self.vms.get(&vm)?.ram.range(..=gpa.0).next_back()?;
                let offset = gpa.0 - start;
                (offset < map.bytes).then(|| Found {
                    region: &map.file.mapped.region,
                    offset: map.offset + offset,
                    room: map.bytes - offset,
                })
            }
            Place::Image { vm, at } => Some(Found::whole(&self.vms.get(&vm)?.image.region, at.0)),
            Place::Bar1 { vm, offset } => Some(Found::whole(self.vms.get(&vm)?.image.bar1()?, offset)),
            Place::Own { offset } => Some(Found::whole(&self.own, offset)),
        }
    }

    /// Calls `each` for every mapping that a range lies in, with the offset and the range's part. `false` if a part
    /// of the range has no memory; `each` may have been called before that is found.
    fn for_parts(
        &self,
        place: Place,
        bytes: usize,
        mut each: impl FnMut(&MmapRegion, usize, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let mut done = 0;
        while done < bytes {
            let Some(at) = advance(place, done as u64) else {
                return false;
            };
            let Some(found) = self.find(at) else {
                return false;
            };
            let part = ((bytes - done) as u64).min(found.room) as usize;
            if part == 0 || !each(found.region, found.offset as usize, done..done + part) {
                return false;
            }
            done += part;
        }
        true
    }
}

/// Where a place lies in a mapping.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    region: &'a Arc<MmapRegion>,
    offset: u64,
    /// Bytes from there on that belong to the same range. A mapping of huge pages goes on behind it.
    room: u64,
}

impl<'a> Found<'a> {
    /// In a mapping that is one range.
    fn whole(region: &'a Arc<MmapRegion>, offset: u64) -> Self {
        Self {
            region,
            offset,
            room: (region.size() as u64).saturating_sub(offset),
        }
    }
}

/// The place `bytes` further on.
fn advance(place: Place, bytes: u64) -> Option<Place> {
    Some(match place {
        Place::Ram { vm, gpa } => Place::Ram {
            vm,
            gpa: gpa.checked_add(bytes)?,
        },
        Place::Image { vm, at } => Place::Image {
            vm,
            at: at.checked_add(bytes)?,
        },
        Place::Bar1 { vm, offset } => Place::Bar1 {
            vm,
            offset: offset.checked_add(bytes)?,
        },
        Place::Own { offset } => Place::Own {
            offset: offset.checked_add(bytes)?,
        },
    })
}

impl HostMemory for Memory {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        let is_read = self.for_parts(at, data.len(), |region, offset, part| {
            let Some(target) = data.get_mut(part) else {
                return false;
            };
            region.as_volatile_slice().read_slice(target, offset).is_ok()
        });
        if !is_read {
            data.fill(0xff);
        }
        is_read
    }

    fn write(&mut self, at: Place, data: &[u8]) -> bool {
        if let Place::Image { vm, at } = at
            && !self.have_pages(vm, at, data.len() as u64)
        {
            return false;
        }
        self.for_parts(at, data.len(), |region, offset, part| {
            let Some(source) = data.get(part) else {
                return false;
            };
            // A read-only map is one that the device may not write; storing to it would be a SIGSEGV.
            region.prot() & libc::PROT_WRITE != 0
                && region.as_volatile_slice().write_slice(source, offset).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

    use super::*;

    const VM: VmId = VmId(3);
    const VRAM: u64 = 8 << 20;

    fn ram(pages: u64, writable: bool) -> RamMap {
        let file = Arc::new(sealed_memfd("ram", pages * PAGE).unwrap());
        let torn = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
        let owner = MapOwner::new(torn, Reaper::start().unwrap());
        RamMap::new(
            Arc::new(FileMap::new(file, 0, pages * PAGE, writable, &owner).unwrap()),
            0,
            pages * PAGE,
            writable,
        )
        .unwrap()
    }

    fn memory() -> Memory {
        let mut memory = Memory::new().unwrap();
        memory.add_vm(VM, "a/b", VRAM, Reaper::start().unwrap()).unwrap();
        memory.insert_ram(VM, Gpa(0x10000), ram(2, true));
        memory.insert_ram(VM, Gpa(0x12000), ram(1, true));
        memory.insert_ram(VM, Gpa(0x20000), ram(1, false));
        memory
    }

    fn at(gpa: u64) -> Place {
        Place::Ram {
            vm: VM,
            gpa: Gpa(gpa),
        }
    }

    #[test]
    fn access_across_adjacent_maps_is_one() {
        let mut memory = memory();
        assert!(memory.write(at(0x11ffc), &[1, 2, 3, 4, 5, 6, 7, 8]));
        let mut data = [0; 8];
        assert!(memory.read(at(0x11ffc), &mut data));
        assert_eq!(data, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn read_beyond_a_map_is_all_ones() {
        let mut memory = memory();
        let mut data = [0; 8];
        assert!(!memory.read(at(0x12ffc), &mut data));
        assert_eq!(data, [0xff; 8]);
        assert!(!memory.read(at(u64::MAX - 2), &mut data));
        assert!(!memory.read(
            Place::Image {
                vm: VM,
                at: GuestVramAddr(VRAM)
            },
            &mut data
        ));
        assert!(!memory.read(
            Place::Image {
                vm: VmId(9),
                at: GuestVramAddr(0)
            },
            &mut data
        ));
        assert!(!memory.read(
            Place::Own {
                offset: OWN_BYTES - 4
            },
            &mut data
        ));
    }

    #[test]
    fn store_to_a_read_only_map_is_refused() {
        let mut memory = memory();
        assert!(!memory.write(at(0x20000), &[1]));
        assert!(memory.read(at(0x20000), &mut [0]));
    }

    #[test]
    fn overlapping_map_has_no_room() {
        let memory = memory();
        assert_eq!(
            memory.has_room(VM, Gpa(0x11000), PAGE),
            Err(vgpu::Refusal::BadRange)
        );
        assert_eq!(
            memory.has_room(VM, Gpa(0xf000), 2 * PAGE),
            Err(vgpu::Refusal::BadRange)
        );
        assert_eq!(memory.has_room(VM, Gpa(0x13000), PAGE), Ok(()));
        assert_eq!(
            memory.has_room(VM, Gpa(u64::MAX - 0xfff), PAGE),
            Err(vgpu::Refusal::BadRange)
        );
    }

    #[test]
    fn unmap_leaves_the_other_maps() {
        let mut memory = memory();
        memory.remove_ram(VM, Gpa(0x10000), 2 * PAGE);
        assert!(!memory.read(at(0x11000), &mut [0]));
        assert!(memory.read(at(0x12000), &mut [0]));
    }

    #[test]
    fn dropped_image_range_reads_as_zero() {
        let mut memory = memory();
        let place = Place::Image {
            vm: VM,
            at: GuestVramAddr(0x3000),
        };
        assert!(memory.write(place, &[9; 16]));
        memory.drop_image(VM, GuestVramAddr(0x3000), PAGE).unwrap();
        let mut data = [1; 16];
        assert!(memory.read(place, &mut data));
        assert_eq!(data, [0; 16]);
    }

    #[test]
    fn dma_across_two_maps_is_refused() {
        let memory = memory();
        assert_eq!(memory.dma_memory(at(0x11000), PAGE).unwrap().offset, PAGE);
        assert!(memory.dma_memory(at(0x11000), 2 * PAGE).is_err());
        assert!(memory.dma_memory(at(0x11800), PAGE).is_err());
        assert!(
            memory
                .dma_memory(Place::Own { offset: 0 }, OWN_BYTES + PAGE)
                .is_err()
        );
    }
}
