//! Seats that come and go while the broker runs: sockets of VMs that an operator attaches and detaches.
//!
//! A seat is made by whoever attaches the VM, because to make a socket and to start threads is not for the event loop. The loop takes it
//! over, and lets it go, between two events.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use vgpu::{Hold, SettingError, VmConfig};

use crate::broker::{Broker, VmSocket};
use crate::error::{Ended, StartError};
use crate::perform::{Performer, VMS_MAX};
use crate::questions::QuotaRefusal;
use crate::server::Seat;

/// Why a VM was not given a place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceRefusal {
    /// Another VM has the name.
    #[error("there is a vm {name:?} already")]
    NameTaken {
        /// The name that both want.
        name: String,
    },
    /// Every place is taken.
    #[error("the card has places for {VMS_MAX} VMs, and all are taken: detach one")]
    NoPlace,
    /// Its configuration contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// Its memory would have no room beside that of the VMs that are connected.
    #[error(
        "guest VRAM {}M does not fit beside the VMs that are connected: at most {}M now, with host_ram {}M",
        guest_vram >> 20, most >> 20, host_ram >> 20
    )]
    NoHostRam {
        /// Bytes that the guest was to see.
        guest_vram: u64,
        /// Most that it could.
        most: u64,
        /// Host RAM for all VMs of the card.
        host_ram: u64,
    },
    /// Its `min` cannot be promised.
    #[error(transparent)]
    Min(#[from] QuotaRefusal),
}

/// Why a VM kept its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeaveRefusal {
    /// No VM has that name.
    #[error("there is no vm {name:?}")]
    NoSuchVm {
        /// What was asked for.
        name: String,
    },
    /// Its guest would lose its GPU.
    #[error("its VMM is connected: its guest would lose its GPU")]
    Connected,
}

/// A VM that has no place any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Whether a VMM was connected, which was hung up on.
    pub was_attached: bool,
}

/// What is called when the loop has done it.
type Done<T> = Box<dyn FnOnce(T) + Send>;

/// A change that the event loop has not made yet.
pub(crate) enum Change {
    /// A seat that is to be served.
    Come {
        seat: Box<Seat>,
        config: VmConfig,
        hold: Hold,
        done: Done<Result<(), PlaceRefusal>>,
    },
    /// A seat that is to go.
    Go {
        name: String,
        /// Whether its client is hung up on.
        is_forced: bool,
        done: Done<Result<Left, LeaveRefusal>>,
    },
}

/// Changes in the order in which they were asked for.
#[derive(Default)]
pub(crate) struct Seating(Mutex<VecDeque<Change>>);

impl Seating {
    fn put(&self, change: Change) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push_back(change);
    }

    pub(crate) fn take(&self) -> VecDeque<Change> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Broker {
    /// Asks whether a VM could have a place now. `answer` is called on the event loop's thread, and must not wait; it is dropped if the
    /// broker ends before.
    pub fn ask_place(
        &self,
        config: VmConfig,
        answer: impl FnOnce(Result<(), PlaceRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let checked = performer.check_place(&config);
            Box::new(move || answer(checked))
        })
    }

    /// Gives a VM a place from now on: its VMM can connect. Starts the threads of its socket. `answer` as above.
    pub fn seat(
        &self,
        vm: VmSocket,
        answer: impl FnOnce(Result<(), PlaceRefusal>) + Send + 'static,
    ) -> Result<(), StartError> {
        let shared = self.shared_arc();
        let (config, hold) = (vm.config.clone(), vm.hold);
        let seat = Box::new(Seat::bind(vm, shared.clone())?);
        let done = Box::new(answer);
        shared.seating.put(Change::Come {
            seat,
            config,
            hold,
            done,
        });
        shared.wake.wake();
        Ok(())
    }

    /// Takes the VM's place from it. One whose VMM is connected keeps it unless `is_forced`; then the VMM is hung up on, and what the VM
    /// had is free when the card has let go of it. `answer` as above.
    pub fn unseat(
        &self,
        name: String,
        is_forced: bool,
        answer: impl FnOnce(Result<Left, LeaveRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        let shared = self.shared();
        shared.check_running()?;
        let done = Box::new(answer);
        shared.seating.put(Change::Go {
            name,
            is_forced,
            done,
        });
        shared.wake.wake();
        Ok(())
    }
}

impl Performer {
    /// Whether the VM could be listed, and would be let in if it came now.
    pub(crate) fn check_place(&self, config: &VmConfig) -> Result<(), PlaceRefusal> {
        config.check()?;
        if self.roster.config(&config.name).is_some() {
            let name = config.name.clone();
            return Err(PlaceRefusal::NameTaken { name });
        }
        if self.roster.len() >= usize::from(VMS_MAX) {
            return Err(PlaceRefusal::NoPlace);
        }
        if let Some(standing) = self.core.standing() {
            let attached = self.vms.values().map(|vm| vm.config.guest_vram);
            let taken = attached.fold(0, u64::saturating_add);
            let room = standing.usable.saturating_add(standing.host_ram);
            let most = room.saturating_sub(taken);
            if config.guest_vram > most {
                return Err(PlaceRefusal::NoHostRam {
                    guest_vram: config.guest_vram,
                    most,
                    host_ram: standing.host_ram,
                });
            }
        }
        Ok(self.check_min(config, None)?)
    }
}
