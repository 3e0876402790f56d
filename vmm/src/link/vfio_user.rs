//! A vGPU behind a vfio-user socket.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;

use vfio_user_server::message::CommandCode;
use vfio_user_server::remote::ANSWER_WAIT;
use vfio_user_server::{IrqIndex, Region, RegionMemory, RemoteError, RemoteFunction, doorbells};
use vmm_sys_util::eventfd::EventFd;

use super::{LinkError, VgpuLink};

/// [`VgpuLink`] by messages. A server that does not answer within five seconds is given up.
#[derive(Debug)]
pub struct VfioUserLink {
    function: RemoteFunction,
    /// Signalled when a doorbell's store has trapped, if the server can be told that.
    stored: OnceLock<EventFd>,
}

impl VfioUserLink {
    /// Attaches to the server at `path`.
    pub fn connect(path: &Path) -> Result<VfioUserLink, LinkError> {
        let function = RemoteFunction::connect(path, ANSWER_WAIT)?;
        Ok(VfioUserLink::over(function))
    }

    fn over(function: RemoteFunction) -> VfioUserLink {
        VfioUserLink {
            function,
            stored: OnceLock::new(),
        }
    }
}

/// The error for a number that is not a region of a PCI function, as a server would answer it.
fn region_of(region: u32, command: CommandCode) -> Result<Region, LinkError> {
    Region::from_wire(region).ok_or(LinkError::Refused {
        command,
        errno: libc::EINVAL,
    })
}

impl VgpuLink for VfioUserLink {
    fn region_size(&self, region: u32) -> u64 {
        Region::from_wire(region).map_or(0, |region| self.function.region_bytes(region))
    }

    fn region_memory(&self, region: u32) -> Result<Option<RegionMemory>, LinkError> {
        match Region::from_wire(region) {
            Some(region) => Ok(self.function.region_memory(region)?),
            None => Ok(None),
        }
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        let region = region_of(region, CommandCode::RegionRead)?;
        Ok(self.function.read(region, offset, data)?)
    }

    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        let region = region_of(region, CommandCode::RegionWrite)?;
        Ok(self.function.write(region, offset, data)?)
    }

    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError> {
        Ok(self.function.dma_map(gpa, bytes, &file, offset, true)?)
    }

    fn dma_unmap(&self, gpa: u64, bytes: u64) -> Result<(), LinkError> {
        Ok(self.function.dma_unmap(gpa, bytes)?)
    }

    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError> {
        Ok(self.function.connect_irq(IrqIndex::Msi, eventfd)?)
    }

    fn set_intx(&self, raised: &EventFd, ended: &EventFd) -> Result<bool, LinkError> {
        self.function.connect_irq(IrqIndex::Intx, raised)?;
        self.function.connect_unmask(IrqIndex::Intx, ended)?;
        Ok(true)
    }

    fn watch_quiet(&self, quiet: &EventFd) -> Result<bool, LinkError> {
        if self.function.region_bytes(Region::DeviceSpecific) != doorbells::REGION_BYTES as u64 {
            return Ok(false);
        }
        let command = CommandCode::SetIrqs;
        let created = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        let stored = created.map_err(|source| LinkError::Io { command, source })?;
        let stored = self.stored.get_or_init(|| stored);
        self.function
            .connect_unmask(IrqIndex::DeviceSpecific, stored)
            .and_then(|()| self.function.connect_irq(IrqIndex::DeviceSpecific, quiet))?;
        Ok(true)
    }

    fn doorbells(&self) -> Result<Option<Range<u64>>, LinkError> {
        let mut region = [0; doorbells::REGION_BYTES];
        self.function
            .read(Region::DeviceSpecific, doorbells::PLACE, &mut region)?;
        let range = |(place, bytes): (u64, u64)| place.checked_add(bytes).map(|end| place..end);
        Ok(doorbells::place_in(region).and_then(range))
    }

    fn arm_doorbells(&self, place: u64) -> Result<bool, LinkError> {
        let armed = self
            .function
            .write(Region::DeviceSpecific, doorbells::PLACE, &place.to_le_bytes());
        match armed {
            Ok(()) => Ok(true),
            Err(RemoteError::Refused { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn doorbell_stored(&self) {
        // A full counter says the same.
        self.stored
            .get()
            .into_iter()
            .for_each(|stored| drop(stored.write(1)));
    }

    fn reset(&self) -> Result<(), LinkError> {
        Ok(self.function.reset()?)
    }

    fn close(&self) {
        self.function.close();
    }

    fn hangup_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.function.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn region_that_does_not_exist_is_refused_and_empty() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let info = vfio_user_server::FunctionInfo::new();
        let client = vfio_user_server::Client::new(theirs, info).unwrap();
        let serving = std::thread::spawn(move || {
            let mut config = Nothing;
            vfio_user_server::serve::serve_client(client, &mut config).unwrap();
        });
        let link = VfioUserLink::over(RemoteFunction::over(ours, ANSWER_WAIT).unwrap());
        assert_eq!((link.region_size(0), link.region_size(99)), (0, 0));
        let outcome = link.region_read(99, 0, &mut [0; 4]);
        assert!(matches!(outcome, Err(LinkError::Refused { .. })), "{outcome:?}");
        link.close();
        assert!(matches!(link.reset(), Err(LinkError::Down)));
        serving.join().unwrap();
    }

    /// A function without any region.
    struct Nothing;

    impl vfio_user_server::PciFunction for Nothing {
        fn read(&mut self, _: Region, _: u64, _: &mut [u8]) -> Result<(), vfio_user_server::Errno> {
            Err(vfio_user_server::Errno::INVAL)
        }

        fn write(&mut self, _: Region, _: u64, _: &[u8]) -> Result<(), vfio_user_server::Errno> {
            Err(vfio_user_server::Errno::INVAL)
        }

        fn change_irqs(&mut self, _: vfio_user_server::IrqChange) -> Result<(), vfio_user_server::Errno> {
            Ok(())
        }

        fn reset(&mut self) -> Result<(), vfio_user_server::Errno> {
            Ok(())
        }
    }
}
