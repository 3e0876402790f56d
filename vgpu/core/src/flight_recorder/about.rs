//! What an entry of the flight recorder is about.

use fermi_spec::regs::Bar0Reg;

use super::happened::{Happened, Memory, is_register};
use crate::event::{FrameOwner, VmId};

impl Happened {
    /// The VM that it concerns.
    pub fn vm(&self) -> Option<VmId> {
        match *self {
            Happened::Attach { vm, .. }
            | Happened::LetWindows { vm }
            | Happened::Doorbells { vm, .. }
            | Happened::PlaceUserd { vm, .. }
            | Happened::WatchChannel { vm, .. }
            | Happened::Detach { vm }
            | Happened::Reset { vm, .. }
            | Happened::MaskIntx { vm, .. }
            | Happened::Load { vm, .. }
            | Happened::Store { vm, .. }
            | Happened::ConfigLoad { vm, .. }
            | Happened::ConfigStore { vm, .. }
            | Happened::MapRam { vm, .. }
            | Happened::UnmapRam { vm, .. }
            | Happened::SetQuota { vm }
            | Happened::SetHold { vm, .. }
            | Happened::Attached { vm }
            | Happened::Denied { vm }
            | Happened::QuotaRefused { vm }
            | Happened::Detached { vm }
            | Happened::GiveUp { vm }
            | Happened::Replied { vm, .. }
            | Happened::DropImage { vm, .. }
            | Happened::Lend { vm, .. }
            | Happened::TakeBack { vm, .. }
            | Happened::Populate { vm, .. }
            | Happened::Reserve { vm, .. }
            | Happened::Interrupt { vm, .. }
            | Happened::LetInterrupts { vm, .. }
            | Happened::MapDma {
                memory: Memory::Ram(vm) | Memory::Image(vm),
                ..
            }
            | Happened::PlaceFrames {
                owner: FrameOwner::Vm { vm, .. },
                ..
            } => Some(vm),
            Happened::Start
            | Happened::HostValue { .. }
            | Happened::PollDone { .. }
            | Happened::MapRefused { .. }
            | Happened::Populated { .. }
            | Happened::HostInterrupt
            | Happened::Wake
            | Happened::HostWrite { .. }
            | Happened::HostRead { .. }
            | Happened::HostPoll { .. }
            | Happened::MapDma {
                memory: Memory::Own, ..
            }
            | Happened::UnmapDma { .. }
            | Happened::PlaceFrames {
                owner: FrameOwner::Broker | FrameOwner::Free,
                ..
            }
            | Happened::WakeAt { .. }
            | Happened::SetHostRam { .. }
            | Happened::HostRamRefused
            | Happened::CardLost { .. } => None,
        }
    }

    /// The register of BAR0 that it concerns, the guest's or the card's, if the specification names one there.
    pub fn register(&self) -> Option<Bar0Reg> {
        let offset = match *self {
            Happened::Load { bar, offset, .. }
            | Happened::Store { bar, offset, .. }
            | Happened::HostWrite { bar, offset, .. }
            | Happened::HostRead { bar, offset, .. }
                if is_register(bar, offset) =>
            {
                u32::try_from(offset).ok()?
            }
            Happened::HostPoll { offset, .. } => offset,
            _ => return None,
        };
        // Bytes of a register are shown as the register.
        Bar0Reg::decode(offset & !3)
    }

    /// Whether the core decided it; otherwise it came from outside.
    pub(crate) fn is_action(&self) -> bool {
        match self {
            Happened::Start
            | Happened::Attach { .. }
            | Happened::LetWindows { .. }
            | Happened::Doorbells { .. }
            | Happened::PlaceUserd { .. }
            | Happened::WatchChannel { .. }
            | Happened::Detach { .. }
            | Happened::Reset { .. }
            | Happened::MaskIntx { .. }
            | Happened::Load { .. }
            | Happened::Store { .. }
            | Happened::ConfigLoad { .. }
            | Happened::ConfigStore { .. }
            | Happened::MapRam { .. }
            | Happened::UnmapRam { .. }
            | Happened::HostValue { .. }
            | Happened::PollDone { .. }
            | Happened::MapRefused { .. }
            | Happened::Populated { .. }
            | Happened::HostInterrupt
            | Happened::Wake
            | Happened::SetHold { .. }
            | Happened::SetHostRam { .. }
            | Happened::SetQuota { .. } => false,
            Happened::Attached { .. }
            | Happened::Denied { .. }
            | Happened::QuotaRefused { .. }
            | Happened::HostRamRefused
            | Happened::Detached { .. }
            | Happened::GiveUp { .. }
            | Happened::Replied { .. }
            | Happened::HostWrite { .. }
            | Happened::HostRead { .. }
            | Happened::HostPoll { .. }
            | Happened::MapDma { .. }
            | Happened::UnmapDma { .. }
            | Happened::PlaceFrames { .. }
            | Happened::DropImage { .. }
            | Happened::Lend { .. }
            | Happened::TakeBack { .. }
            | Happened::Populate { .. }
            | Happened::Reserve { .. }
            | Happened::Interrupt { .. }
            | Happened::LetInterrupts { .. }
            | Happened::WakeAt { .. }
            | Happened::CardLost { .. } => true,
        }
    }
}
