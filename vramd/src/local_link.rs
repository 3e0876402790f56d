//! A vGPU of a broker in this process.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use broker::LocalLink;
use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use vfio_user_server::RegionMemory;
use vfio_user_server::message::CommandCode;
use vgpu::CONFIG_BYTES;
use vmm::link::CONFIG_REGION;
use vmm::{LinkError, VgpuLink};
use vmm_sys_util::eventfd::EventFd;

/// [`VgpuLink`] by function calls. Dropping it detaches the VM.
///
/// A call that waits in the broker while the link is closed returns with the broker's answer, which comes within the
/// broker's own bound.
#[derive(Debug)]
pub struct BrokerLink {
    link: LocalLink,
    is_down: AtomicBool,
}

impl BrokerLink {
    /// Makes an attachment usable by a VM.
    pub fn new(link: LocalLink) -> BrokerLink {
        BrokerLink {
            link,
            is_down: AtomicBool::new(false),
        }
    }

    /// Why the broker gave this VM up, if it did.
    pub(crate) fn expulsion(&self) -> Option<String> {
        self.link.expulsion()
    }

    fn ask<T>(
        &self,
        command: CommandCode,
        work: impl FnOnce(&LocalLink) -> Result<T, broker::LinkError>,
    ) -> Result<T, LinkError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(LinkError::Down);
        }
        work(&self.link).map_err(|error| match error {
            broker::LinkError::Refused(refusal) if refusal != vgpu::Refusal::NotAttached => {
                LinkError::Refused {
                    command,
                    errno: libc::EINVAL,
                }
            }
            source => {
                self.close();
                LinkError::Local {
                    command,
                    source: Box::new(source),
                }
            }
        })
    }
}

fn refused(command: CommandCode) -> LinkError {
    LinkError::Refused {
        command,
        errno: libc::EINVAL,
    }
}

impl VgpuLink for BrokerLink {
    fn region_size(&self, region: u32) -> u64 {
        match Bar::from_number(region) {
            Some(bar) => self.link.bar_bytes(bar),
            None if region == CONFIG_REGION => CONFIG_BYTES as u64,
            None => 0,
        }
    }

    fn region_memory(&self, region: u32) -> Result<Option<RegionMemory>, LinkError> {
        match Bar::from_number(region) {
            Some(bar) => self.ask(CommandCode::GetRegionInfo, |link| link.bar_memory(bar)),
            None => Ok(None),
        }
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        let command = CommandCode::RegionRead;
        if region == CONFIG_REGION {
            return self.ask(command, |link| link.read_config(offset, data));
        }
        let bar = Bar::from_number(region).ok_or(refused(command))?;
        self.ask(command, |link| link.read(bar, offset, data))
    }

    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        let command = CommandCode::RegionWrite;
        if region == CONFIG_REGION {
            // What it changed is read back by whoever places BARs and routes interrupts.
            return self.ask(command, |link| link.write_config(offset, data));
        }
        let bar = Bar::from_number(region).ok_or(refused(command))?;
        self.ask(command, |link| link.write(bar, offset, data))
    }

    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError> {
        let command = CommandCode::DmaMap;
        let file = file
            .try_clone_to_owned()
            .map_err(|source| LinkError::Io { command, source })?;
        self.ask(command, |link| link.map_ram(Gpa(gpa), bytes, file, offset, true))
    }

    fn dma_unmap(&self, gpa: u64, bytes: u64) -> Result<(), LinkError> {
        self.ask(CommandCode::DmaUnmap, |link| link.unmap_ram(Gpa(gpa), bytes))
    }

    fn guest_rests(&self) {
        if !self.is_down.load(Ordering::SeqCst) {
            self.link.guest_rests();
        }
    }

    fn watch_quiet(&self, quiet: &EventFd) -> Result<bool, LinkError> {
        let command = CommandCode::SetIrqs;
        let quiet = quiet
            .try_clone()
            .map_err(|source| LinkError::Io { command, source })?;
        self.ask(command, |link| Ok(link.let_doorbells_trap(quiet)))
    }

    fn doorbells(&self) -> Result<Option<Range<u64>>, LinkError> {
        self.ask(CommandCode::RegionRead, |link| {
            let doorbells = link.doorbells();
            Ok(doorbells.and_then(|(place, bytes)| Some(place..place.checked_add(bytes)?)))
        })
    }

    fn arm_doorbells(&self, place: u64) -> Result<bool, LinkError> {
        self.ask(CommandCode::RegionWrite, |link| Ok(link.arm_doorbells(place)))
    }

    fn doorbell_stored(&self) {
        if !self.is_down.load(Ordering::SeqCst) {
            self.link.doorbell_stored();
        }
    }

    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError> {
        let command = CommandCode::SetIrqs;
        let eventfd = eventfd
            .try_clone()
            .map_err(|source| LinkError::Io { command, source })?;
        self.ask(command, |link| {
            link.set_interrupt(eventfd);
            Ok(())
        })
    }

    fn reset(&self) -> Result<(), LinkError> {
        self.ask(CommandCode::Reset, LocalLink::reset)
    }

    fn close(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }
}
