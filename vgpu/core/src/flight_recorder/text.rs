//! Entries of the flight recorder as text.

use std::fmt;

use fermi_spec::bar::Bar;

use super::happened::{Answer, Happened, Memory};
use crate::event::{FrameOwner, InterruptKind};

/// A place in a BAR: the register's name where there is one.
struct Reached<'a>(&'a Happened, Bar, u64);

impl fmt::Display for Reached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(happened, bar, offset) = self;
        match happened.register() {
            Some(register) => write!(f, "{register} ({offset:#08x})"),
            None => write!(f, "{bar:?} {offset:#08x}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Later => f.write_str("not answered at once"),
            Answer::Done => f.write_str("done"),
            Answer::Data => f.write_str("answered"),
            Answer::Refused(refusal) => write!(f, "refused: {refusal}"),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Ram(vm) => write!(f, "RAM of {vm}"),
            Memory::Image(vm) => write!(f, "image of {vm}"),
            Memory::Own => f.write_str("own memory"),
        }
    }
}

struct Owner(FrameOwner);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            FrameOwner::Broker => f.write_str("the broker's"),
            FrameOwner::Vm { vm, at } => write!(f, "{vm}'s at {at}"),
            FrameOwner::Free => f.write_str("free"),
        }
    }
}

fn kibibytes(pages: u32) -> u64 {
    u64::from(pages) * 4
}

impl fmt::Display for Happened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_action() {
            self.write_action(f)
        } else {
            self.write_event(f)
        }
    }
}

impl Happened {
    fn write_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Happened::Start => f.write_str("start"),
            Happened::Attach { vm, guest_vram } => {
                write!(f, "{vm} wants a vGPU with {} MiB", guest_vram >> 20)
            }
            Happened::LetWindows { vm } => write!(f, "the client of {vm} may map its windows"),
            Happened::Doorbells { vm, channels } => write!(f, "{channels} doorbells of {vm} are found"),
            Happened::Detach { vm } => write!(f, "{vm} is to leave"),
            Happened::Reset { vm, .. } => {
                write!(f, "{vm} resets its vGPU")?;
                self.write_request(f)
            }
            Happened::MaskIntx { vm, masked, .. } => {
                let does = if masked { "masks" } else { "unmasks" };
                write!(f, "{vm} {does} its INTx")?;
                self.write_request(f)
            }
            Happened::Load {
                vm,
                bar,
                offset,
                bytes,
                ..
            } => {
                let place = Reached(self, bar, offset);
                write!(f, "{vm} loads {bytes} B of {place}")?;
                self.write_request(f)
            }
            Happened::Store {
                vm,
                bar,
                offset,
                bytes,
                ..
            } => {
                let place = Reached(self, bar, offset);
                write!(f, "{vm} stores {bytes} B to {place}")?;
                self.write_request(f)
            }
            Happened::ConfigLoad {
                vm, offset, bytes, ..
            } => {
                write!(f, "{vm} loads {bytes} B of configuration space at {offset:#x}")?;
                self.write_request(f)
            }
            Happened::ConfigStore {
                vm, offset, bytes, ..
            } => {
                write!(f, "{vm} stores {bytes} B to configuration space at {offset:#x}")?;
                self.write_request(f)
            }
            Happened::MapRam {
                vm,
                gpa,
                pages,
                writable,
                ..
            } => {
                let rights = if writable { "" } else { " to read" };
                write!(f, "{vm} maps {} KiB of RAM at {gpa}{rights}", kibibytes(pages))?;
                self.write_request(f)
            }
            Happened::UnmapRam { vm, gpa, pages, .. } => {
                write!(f, "{vm} unmaps {} KiB of RAM at {gpa}", kibibytes(pages))?;
                self.write_request(f)
            }
            _ => self.write_operator_event(f),
        }
    }

    /// A change that the operator asked for, or an event of the host.
    fn write_operator_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Happened::SetHold {
                vm,
                vram,
                is_suspended,
            } => write!(f, "{vm} is held at {vram:?} bytes, suspended {is_suspended}"),
            Happened::SetQuota { vm } => write!(f, "{vm} gets another quota"),
            Happened::SetHostRam { bytes } => write!(f, "VMs get {} MiB of host RAM", bytes >> 20),
            _ => self.write_host_event(f),
        }
    }

    /// An event of the card or of the clock.
    fn write_host_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Happened::HostValue { token, bytes, value } => match value {
                Some(value) => write!(f, "the card answers read {} with {value:#010x}", token.0),
                None => write!(f, "the card answers read {} with {bytes} B", token.0),
            },
            Happened::PollDone { token, met: true } => write!(f, "poll {} is met", token.0),
            Happened::PollDone { token, met: false } => write!(f, "poll {} timed out", token.0),
            Happened::MapRefused { iova } => write!(f, "the host refuses the map at {iova}"),
            Happened::Populated { id, done: true } => write!(f, "memory for move {} is there", id.0),
            Happened::Populated { id, done: false } => write!(f, "the host has no memory for move {}", id.0),
            Happened::HostInterrupt => f.write_str("the card raises its interrupt"),
            _ => f.write_str("the time asked for has come"),
        }
    }

    /// Number of a VM's request, and the answer if it was given at once.
    fn write_request(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Happened::Load { request, answer, .. } | Happened::Store { request, answer, .. } => {
                write!(f, ", request {}: {answer}", request.0)
            }
            Happened::Reset { request, .. }
            | Happened::MaskIntx { request, .. }
            | Happened::ConfigLoad { request, .. }
            | Happened::ConfigStore { request, .. }
            | Happened::MapRam { request, .. }
            | Happened::UnmapRam { request, .. } => write!(f, ", request {}", request.0),
            _ => Ok(()),
        }
    }

    fn write_action(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Happened::Attached { vm } => write!(f, "{vm} has its vGPU"),
            Happened::Denied { vm } => write!(f, "{vm} gets no vGPU"),
            Happened::QuotaRefused { vm } => write!(f, "{vm} keeps its quota"),
            Happened::HostRamRefused => write!(f, "the bound of host RAM stays"),
            Happened::Detached { vm } => write!(f, "nothing of {vm} is left"),
            Happened::Replied { vm, request, answer } => {
                write!(f, "request {} of {vm} is {answer}", request.0)
            }
            Happened::HostWrite {
                bar,
                offset,
                bytes,
                value,
            } => {
                let place = Reached(self, bar, offset);
                match value {
                    Some(value) => write!(f, "store {value:#010x} to the card's {place}"),
                    None => write!(f, "store {bytes} B to the card's {place}"),
                }
            }
            Happened::HostRead {
                token,
                bar,
                offset,
                bytes,
            } => {
                let place = Reached(self, bar, offset);
                write!(f, "read {}: load {bytes} B of the card's {place}", token.0)
            }
            Happened::HostPoll {
                token,
                offset,
                mask,
                value,
            } => {
                let place = Reached(self, Bar::Bar0, offset.into());
                let token = token.0;
                write!(
                    f,
                    "poll {token}: wait until the card's {place} & {mask:#010x} is {value:#010x}"
                )
            }
            Happened::GiveUp { vm } => write!(f, "give {vm} up: its accounts are wrong"),
            Happened::Interrupt { vm, kind } => match kind {
                InterruptKind::Msi => write!(f, "raise the interrupt of {vm}"),
                InterruptKind::Intx => write!(f, "raise the INTx of {vm}, which is masked with that"),
            },
            Happened::LetInterrupts { vm, through: true } => write!(f, "let interrupts of {vm} through"),
            Happened::LetInterrupts { vm, through: false } => write!(f, "hold interrupts of {vm} back"),
            Happened::WakeAt { at } => write!(f, "wake me at {} ns", at.0),
            Happened::CardLost { operation } => write!(f, "let go of the card: a {operation} did not end"),
            _ => self.write_memory_action(f),
        }
    }

    /// What is done to memory.
    fn write_memory_action(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Happened::MapDma { iova, bytes, memory } => {
                write!(f, "map {} KiB of {memory} at {iova}", bytes >> 10)
            }
            Happened::UnmapDma { iova, bytes } => write!(f, "unmap {} KiB at {iova}", bytes >> 10),
            Happened::PlaceFrames {
                first,
                count: 1,
                owner,
            } => write!(f, "frame {} is {}", first.0, Owner(owner)),
            Happened::PlaceFrames { first, count, owner } => {
                write!(f, "{count} frames from {} on are {}", first.0, Owner(owner))
            }
            Happened::Lend { vm, at, pages } => {
                write!(f, "show {} KiB at {at} in the windows of {vm}", kibibytes(pages))
            }
            Happened::PlaceUserd { vm, at: Some(at) } => {
                write!(f, "USERD of {vm} is memory, at {at:#x} of BAR1")
            }
            Happened::PlaceUserd { vm, at: None } => write!(f, "USERD of {vm} is no memory"),
            Happened::WatchChannel {
                vm,
                channel,
                is_watched,
            } => match is_watched {
                true => write!(f, "look for doorbells of channel {channel} of {vm}"),
                false => write!(f, "look for no doorbells of channel {channel} of {vm}"),
            },
            Happened::TakeBack { vm, at, pages } => {
                write!(
                    f,
                    "take {} KiB at {at} back from the windows of {vm}",
                    kibibytes(pages)
                )
            }
            Happened::DropImage { vm, at, pages } => {
                write!(f, "drop {} KiB of {vm}'s image at {at}", kibibytes(pages))
            }
            Happened::Populate { vm, id, pages } => {
                let size = kibibytes(pages);
                write!(f, "have {size} KiB of {vm}'s memory ready for move {}", id.0)
            }
            Happened::Reserve { vm, pages } => {
                write!(
                    f,
                    "have {} KiB of {vm}'s memory in host RAM ready",
                    kibibytes(pages)
                )
            }
            _ => Ok(()),
        }
    }
}
