//! Doorbells of a guest that is quiet: its stores to them trap, so that nobody need look for them.
//!
//! ```text
//!  (through) ──the link says that the guest is quiet; pages protected; the link arms──► (trapping)
//!      ▲                                                                                   │
//!      └──────a vCPU leaves KVM with EFAULT; pages writable again; the link is told────────┘
//! ```
//!
//! KVM names no address with the error, and none is needed: whatever a vCPU stored, it stores again once the pages are writable. The guest goes on
//! loading from them all the time. Protecting them costs a few microseconds, where taking their memory slot away would make KVM forget all
//! mappings of the guest.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmm_sys_util::eventfd::EventFd;

use super::window_memory::WindowMemory;
use crate::bus::BusError;
use crate::link::{LinkError, VgpuLink};

/// The BAR in which doorbells lie.
const BAR: u32 = 1;

/// The trap of one vGPU.
pub(crate) struct DoorbellTrap {
    link: Arc<dyn VgpuLink>,
    memory: Arc<WindowMemory>,
    /// Signalled by the link.
    quiet: EventFd,
    /// Pages whose stores trap. Locked until the link has answered, so that no vCPU says that it stored before the link has armed.
    trapping: Mutex<Option<Range<u64>>>,
    /// How often pages were protected or let through: a vCPU that met a protection of before tries again.
    changes: AtomicU64,
    /// Stores that have trapped.
    stores: AtomicU64,
}

impl DoorbellTrap {
    /// The trap of a link that tells when its guest is quiet; `None` for one that does not.
    pub(super) fn of(
        link: Arc<dyn VgpuLink>,
        memory: Arc<WindowMemory>,
        quiet: EventFd,
    ) -> Result<Option<DoorbellTrap>, LinkError> {
        let is_told = match link.watch_quiet(&quiet) {
            // It describes the trap, but does not offer it.
            Err(LinkError::Refused { .. }) => false,
            told => told?,
        };
        Ok(is_told.then(|| DoorbellTrap {
            link,
            memory,
            quiet,
            trapping: Mutex::default(),
            changes: AtomicU64::new(0),
            stores: AtomicU64::new(0),
        }))
    }

    /// What the link signals when the guest is quiet: [`DoorbellTrap::arm`] then.
    pub(crate) fn quiet(&self) -> &EventFd {
        &self.quiet
    }

    /// A number that changes whenever stores begin or cease to trap.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Stores that have trapped since the start.
    pub(crate) fn stores(&self) -> u64 {
        self.stores.load(Ordering::Relaxed)
    }

    /// A vCPU left KVM because memory cannot be stored to; `changes` is of before it went in. Whether it is to try again.
    pub(crate) fn met(&self, changes: u64) -> Result<bool, BusError> {
        let mut trapping = self.lock();
        if trapping.is_some() {
            self.let_through(&mut trapping)?;
            self.stores.fetch_add(1, Ordering::Relaxed);
            self.link.doorbell_stored();
            return Ok(true);
        }
        Ok(self.changes() != changes)
    }

    /// Makes stores trap, if the link agrees.
    pub(crate) fn arm(&self) -> Result<(), BusError> {
        // One signal, however many there were.
        drop(self.quiet.read());
        let mut trapping = self.lock();
        let doorbells = match self.link.doorbells() {
            Err(LinkError::Refused { .. }) => None,
            told => told?,
        };
        // They may lie elsewhere by now.
        self.let_through(&mut trapping)?;
        let Some(pages) = doorbells else { return Ok(()) };
        let place = pages.start;
        self.change(&pages, false)?;
        *trapping = Some(pages);
        if !self.link.arm_doorbells(place)? {
            self.let_through(&mut trapping)?;
        }
        Ok(())
    }

    fn let_through(&self, trapping: &mut Option<Range<u64>>) -> Result<(), BusError> {
        match trapping.take() {
            Some(pages) => self.change(&pages, true),
            None => Ok(()),
        }
    }

    fn change(&self, pages: &Range<u64>, through: bool) -> Result<(), BusError> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.memory
            .let_stores(BAR, pages, through)
            .map_err(BusError::Protect)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Range<u64>>> {
        self.trapping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
