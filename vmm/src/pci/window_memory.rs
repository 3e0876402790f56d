// UNSAFETY: tells KVM the addresses of mappings of this process, which it then gives to the guest, and protects pages of them.
#![expect(unsafe_code)]
//! BARs, or parts of them, that are memory: the guest reaches it without an exit.
//!
//! A vGPU may offer a file for the parts of its BARs that are plain memory. Each part is mapped here once and is a memory slot of KVM's
//! wherever the guest has placed its BAR; a part of a BAR that is switched off is none. What remains of the BAR is answered by the link.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vfio_user_server::MemoryPart;
use vm_memory::{FileOffset, MmapRegion};

use super::PciError;
use crate::link::{LinkError, VgpuLink};

/// The first slot; RAM has those below.
const SLOT_FIRST: u32 = 8;

/// A part of a BAR that lies in memory.
struct Part {
    bar: u32,
    offset: u64,
    region: MmapRegion,
}

/// The parts of all BARs, and where the guest sees each of them.
pub(super) struct WindowMemory {
    vm: Arc<VmFd>,
    parts: Vec<Part>,
    placed: Mutex<Vec<Option<u64>>>,
}

impl WindowMemory {
    /// Maps what the link offers for these BARs.
    pub(super) fn of(
        link: &dyn VgpuLink,
        bars: impl Iterator<Item = u32>,
        vm: Arc<VmFd>,
    ) -> Result<Self, PciError> {
        let mut parts = Vec::new();
        for bar in bars {
            let offered = match link.region_memory(bar) {
                Ok(offered) => offered,
                // It describes the region, but offers nothing.
                Err(LinkError::Refused { .. }) => None,
                Err(error) => return Err(PciError::Config(error)),
            };
            let Some(offered) = offered else { continue };
            let file = Arc::new(File::from(offered.descriptor));
            for part in offered.parts {
                let mapped = map(&file, part);
                let region = mapped.map_err(|source| PciError::Memory { bar, source })?;
                parts.push(Part {
                    bar,
                    offset: part.offset,
                    region,
                });
            }
        }
        let placed = Mutex::new(vec![None; parts.len()]);
        Ok(Self { vm, parts, placed })
    }

    /// Puts the parts where their BARs begin; those of BARs that are not named are nowhere.
    pub(super) fn place(&self, starts: &[(u32, u64)]) -> Result<(), kvm_ioctls::Error> {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |part: &Part| {
            let (_, start) = starts.iter().find(|(bar, _)| *bar == part.bar)?;
            start.checked_add(part.offset)
        };
        let wanted: Vec<Option<u64>> = self.parts.iter().map(wanted).collect();
        // All that moves goes before any comes: BARs may change places.
        for (i, (at, wanted)) in placed.iter_mut().zip(&wanted).enumerate() {
            if at.is_some() && *at != *wanted {
                self.set_slot(i, 0, 0)?;
                *at = None;
            }
        }
        for (i, (at, wanted)) in placed.iter_mut().zip(&wanted).enumerate() {
            if let (None, Some(gpa), Some(part)) = (*at, *wanted, self.parts.get(i)) {
                self.set_slot(i, gpa, part.region.size() as u64)?;
                *at = *wanted;
            }
        }
        Ok(())
    }

    /// Lets the guest store to whole pages of a BAR, or makes its stores leave KVM with an error while its loads go on. What of them is no
    /// memory stays as it is.
    pub(super) fn let_stores(&self, bar: u32, pages: &Range<u64>, through: bool) -> io::Result<()> {
        let protection = libc::PROT_READ | if through { libc::PROT_WRITE } else { 0 };
        for part in self.parts.iter().filter(|part| part.bar == bar) {
            let end = part.offset + part.region.size() as u64;
            let (first, last) = (pages.start.max(part.offset), pages.end.min(end));
            if first >= last {
                continue;
            }
            // SAFETY: the range lies within one live mapping, owned by `self.parts`. Nothing in this process has a reference into it or stores
            // to it; a guest's store that is not let through is answered by KVM.
            let outcome = unsafe {
                let start = part.region.as_ptr().add((first - part.offset) as usize);
                libc::mprotect(start.cast(), (last - first) as usize, protection)
            };
            if outcome != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    fn set_slot(&self, index: usize, gpa: u64, bytes: u64) -> Result<(), kvm_ioctls::Error> {
        let Some(part) = self.parts.get(index) else {
            return Ok(());
        };
        let slot = kvm_userspace_memory_region {
            slot: SLOT_FIRST + index as u32,
            flags: 0,
            guest_phys_addr: gpa,
            memory_size: bytes,
            userspace_addr: part.region.as_ptr() as u64,
        };
        // SAFETY: the range is one live mapping, owned by `self.parts`, which the machine drops after its vCPUs have been joined.
        // Nothing in this process has a reference into it.
        unsafe { self.vm.set_user_memory_region(slot) }
    }
}

/// Maps a part, which has to lie within the file: an access to what does not would end the VM later.
fn map(file: &Arc<File>, part: MemoryPart) -> io::Result<MmapRegion> {
    let end = part.file_offset.checked_add(part.bytes);
    if end.is_none_or(|end| file.metadata().is_ok_and(|file| file.len() < end)) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    MmapRegion::build(
        Some(FileOffset::from_arc(file.clone(), part.file_offset)),
        part.bytes as usize,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
    )
    .map_err(io::Error::other)
}
