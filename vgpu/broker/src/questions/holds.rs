//! What an operator holds back from a VM: its memory, its time on the engines.

use vgpu::{Event, Hold, VmId};

use crate::broker::Broker;
use crate::error::Ended;
use crate::perform::Performer;

/// What is to be held back, or let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HoldChange {
    /// All memory goes to host RAM, and stays there.
    Freeze,
    /// Memory may come back.
    Thaw,
    /// So many bytes of what is in VRAM go to host RAM, and stay there.
    Spill {
        /// Bytes of VRAM that become free.
        bytes: u64,
    },
    /// The same as to thaw, of a VM that is not frozen.
    Refill,
    /// Channels get no time on the engines.
    Suspend,
    /// They do again.
    Resume,
    /// All of this, whatever was held back before.
    Put(Hold),
}

/// A hold that was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldChanged {
    /// What was held back.
    pub before: Hold,
    /// What is held back.
    pub after: Hold,
    /// Whether the VM's VMM is connected. If not, the hold is there when it connects.
    pub is_attached: bool,
}

/// Why a hold was not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HoldRefusal {
    /// No VM has that name.
    #[error("there is no vm {name:?}")]
    NoSuchVm {
        /// What was asked for.
        name: String,
    },
    /// Without a VMM there is nothing in VRAM.
    #[error(
        "it is not connected and has nothing in VRAM; freeze it, and it has nothing there when it connects"
    )]
    NotConnected,
    /// All of it is in host RAM, or on its way there.
    #[error("it is frozen; thaw it first")]
    Frozen,
    /// It has less in VRAM.
    #[error("it has {}M in VRAM: at most that much can be spilled", resident >> 20)]
    TooMuch {
        /// Bytes that it has.
        resident: u64,
    },
}

impl HoldChange {
    /// What it makes of the hold of a VM that has `resident` bytes in VRAM, if it is connected.
    fn of(self, before: Hold, resident: Option<u64>) -> Result<Hold, HoldRefusal> {
        let vram = match self {
            Self::Put(hold) => return Ok(hold),
            Self::Freeze => Some(0),
            Self::Thaw => None,
            Self::Spill { .. } | Self::Refill if before.vram == Some(0) => return Err(HoldRefusal::Frozen),
            Self::Refill => None,
            Self::Spill { bytes } => {
                let resident = resident.ok_or(HoldRefusal::NotConnected)?;
                let left = resident.checked_sub(bytes);
                let left = left.ok_or(HoldRefusal::TooMuch { resident })?;
                // One that waits to be done is not taken back.
                Some(before.vram.map_or(left, |most| most.min(left)))
            }
            Self::Suspend | Self::Resume => before.vram,
        };
        let is_suspended = match self {
            Self::Suspend => true,
            Self::Resume => false,
            _ => before.is_suspended,
        };
        Ok(Hold { vram, is_suspended })
    }
}

impl Broker {
    /// Asks that something is held back from the VM of that name, attached or not, or let go. The memory follows later. `answer` is
    /// called on the event loop's thread, and must not wait; it is dropped if the broker ends before.
    pub fn ask_hold(
        &self,
        name: String,
        change: HoldChange,
        answer: impl FnOnce(Result<HoldChanged, HoldRefusal>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let changed = performer.change_hold(&name, change);
            Box::new(move || answer(changed))
        })
    }
}

impl Performer {
    fn change_hold(&mut self, name: &str, change: HoldChange) -> Result<HoldChanged, HoldRefusal> {
        let vm = self.attached_named(name).map(|(vm, _)| vm);
        let there = vm.and_then(|vm| {
            let standing = self.core.standing()?;
            standing.vms.into_iter().find(|of| of.vm == vm)
        });
        let listed = self.roster.hold(name);
        let no_such_vm = || HoldRefusal::NoSuchVm {
            name: name.to_owned(),
        };
        let before = there.as_ref().map(|of| of.hold).or(listed);
        let before = before.ok_or_else(no_such_vm)?;
        let after = change.of(before, there.map(|of| of.resident))?;
        self.roster.set_hold(name, after);
        if let Some(vm) = vm {
            self.submit(Event::SetHold { vm, hold: after });
        }
        self.happenings.hold_changed(name, before, after);
        Ok(HoldChanged {
            before,
            after,
            is_attached: vm.is_some(),
        })
    }

    /// A VM has its vGPU: what is held back from one of its name is so from the start.
    pub(crate) fn hold_from_start(&self, vm: VmId, name: &str) -> Option<Event> {
        let hold = self.roster.hold(name)?;
        (hold != Hold::default()).then_some(Event::SetHold { vm, hold })
    }
}
