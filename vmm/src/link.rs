//! The way from a VM to its vGPU: the trait that the rest of this crate uses, and its implementation over vfio-user.
//! Whoever runs VMs and their vGPUs in one process implements it too.
//!
//! A link is *up* until its first failure that is not a refusal; from then on it is *down* for good and every call
//! answers [`LinkError::Down`]. A VM whose link goes down is stopped, as a guest has no way to learn that its GPU left.

mod vfio_user;

use std::error::Error;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use vfio_user_server::message::CommandCode;
use vfio_user_server::{Region, RegionMemory, RemoteError};
use vmm_sys_util::eventfd::EventFd;

pub use vfio_user::VfioUserLink;

/// PCI configuration space as a region.
pub const CONFIG_REGION: u32 = Region::Config as u32;

/// One vGPU as a PCI function, in another process or in this one.
///
/// Regions are numbered as in VFIO: 0 to 5 are the BARs by their number in configuration space (a 64-bit BAR leaves
/// the next number unused), [`CONFIG_REGION`] is configuration space. Calls come from several threads at once. Each
/// returns within a bound of the link's own, however the other side behaves, or at once after [`VgpuLink::close`].
pub trait VgpuLink: Send + Sync {
    /// Bytes in `region`; 0 if the function has none of that number.
    fn region_size(&self, region: u32) -> u64;

    /// Memory that may be mapped in the place of parts of `region`, if there is any.
    fn region_memory(&self, region: u32) -> Result<Option<RegionMemory>, LinkError> {
        let _ = region;
        Ok(None)
    }

    /// One load of `data.len()` bytes at `offset`. `data` is unspecified after an error.
    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError>;

    /// One store. It has taken effect when the call returns.
    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError>;

    /// Lets the vGPU read and write `bytes` bytes of guest memory from `gpa` on, which lie in `file` from `offset` on.
    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError>;

    /// Takes back the memory of one `dma_map`; when it returns the vGPU no longer reaches it.
    fn dma_unmap(&self, gpa: u64, bytes: u64) -> Result<(), LinkError>;

    /// Lets the vGPU add one to `eventfd` for each message-signalled interrupt it sends.
    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError>;

    /// Lets the vGPU add one to `raised` when its interrupt pin rises, and masks it until somebody adds to `ended`. `false` if this link has no pin.
    fn set_intx(&self, raised: &EventFd, ended: &EventFd) -> Result<bool, LinkError> {
        let _ = (raised, ended);
        Ok(false)
    }

    /// The guest rests, to wait for its work. Whoever looks in memory for what it has stored there may look now.
    fn guest_rests(&self) {}

    /// Adds to `quiet` from now on whenever the guest has not rung for some time: its stores to doorbells in memory may trap then. `false` if this
    /// link never does.
    fn watch_quiet(&self, quiet: &EventFd) -> Result<bool, LinkError> {
        let _ = quiet;
        Ok(false)
    }

    /// Bytes of BAR 1 in which doorbells lie, if they are looked for in memory.
    fn doorbells(&self) -> Result<Option<Range<u64>>, LinkError> {
        Ok(None)
    }

    /// Stores to the doorbells that begin at `place` trap from now on, so nobody need look for them. `false` if they had better not: the caller lets
    /// them through again.
    fn arm_doorbells(&self, place: u64) -> Result<bool, LinkError> {
        let _ = place;
        Ok(false)
    }

    /// A store to doorbells has trapped. The caller has let stores through again, and the guest is about to repeat it.
    fn doorbell_stored(&self) {}

    /// Resets the function as power-on does.
    fn reset(&self) -> Result<(), LinkError>;

    /// Takes the link down: calls that wait in it fail at once.
    fn close(&self);

    /// A descriptor that reports a hang-up once the other side is gone; `None` if its end is
    /// noticed in another way.
    fn hangup_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Why a vGPU did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The request was understood and denied; the link stays up.
    #[error("vGPU refused {command:?}: {}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// The request that was made.
        command: CommandCode,
        /// Linux error number of the answer.
        errno: i32,
    },
    /// The connection to a broker in another process failed.
    #[error(transparent)]
    Remote(RemoteError),
    /// A descriptor could not be passed on.
    #[error("cannot exchange {command:?} with the vGPU")]
    Io {
        /// The request that was made.
        command: CommandCode,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// A vGPU in this process did not do it, and never will.
    #[error("the vGPU did not perform {command:?}")]
    Local {
        /// The request that was made.
        command: CommandCode,
        /// Answer of the vGPU, in words of its own.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The other side closed the connection while no request was under way.
    #[error("the vGPU is gone")]
    Gone,
    /// The link was closed, or failed earlier.
    #[error("the link to the vGPU is down")]
    Down,
}

impl From<RemoteError> for LinkError {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Refused { command, errno } => Self::Refused { command, errno },
            RemoteError::Down => Self::Down,
            lost => Self::Remote(lost),
        }
    }
}
