//! Interrupts: the changes that a client may ask for, and the eventfds that signal it.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::Errno;
use crate::error::ProtocolError;
use crate::message::{CommandCode, IrqSetWire};

/// Interrupt indices of a PCI function (`VFIO_PCI_*_IRQ_INDEX`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum IrqIndex {
    /// INTA, the legacy line interrupt.
    Intx = 0,
    /// Message-signalled interrupts (MSI).
    Msi = 1,
    /// Extended message-signalled interrupts (MSI-X).
    MsiX = 2,
    /// Reports of PCI errors.
    Err = 3,
    /// The host asks for the device back.
    Req = 4,
}

/// How many indices a PCI function has.
pub const IRQ_INDICES: usize = 5;

impl IrqIndex {
    /// All indices, in the order of their numbers.
    pub const ALL: [Self; IRQ_INDICES] = [Self::Intx, Self::Msi, Self::MsiX, Self::Err, Self::Req];

    /// The index with this number; `None` if there is no such index.
    pub fn from_wire(index: u32) -> Option<Self> {
        Some(match index {
            0 => Self::Intx,
            1 => Self::Msi,
            2 => Self::MsiX,
            3 => Self::Err,
            4 => Self::Req,
            _ => return None,
        })
    }

    /// `VFIO_IRQ_INFO_*` bits: INTx can be masked and masks itself when it fires; the message-signalled ones are set
    /// up as a set.
    pub(crate) fn info_flags(self) -> u32 {
        const EVENTFD: u32 = 1;
        const MASKABLE: u32 = 1 << 1;
        const AUTOMASKED: u32 = 1 << 2;
        const NORESIZE: u32 = 1 << 3;
        match self {
            Self::Intx => EVENTFD | MASKABLE | AUTOMASKED,
            Self::Msi | Self::MsiX => EVENTFD | NORESIZE,
            Self::Err | Self::Req => EVENTFD,
        }
    }
}

/// The event or state that a change concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IrqAction {
    /// The interrupt itself.
    Trigger,
    /// The interrupt is held back.
    Mask,
    /// The interrupt is let through again.
    Unmask,
}

/// Operation on the vectors of a change.
#[derive(Debug)]
pub enum IrqOperation {
    /// Do the action now on every vector.
    Apply,
    /// Do the action now for each vector whose entry is `true`; as many entries as vectors.
    ApplyWhere(Vec<bool>),
    /// From now on signal these eventfds when the action happens, one for each vector.
    Connect(Vec<IrqEvent>),
    /// Forget the connected eventfds.
    Disconnect,
}

/// A decoded SET_IRQS, within the vectors that the function has.
#[derive(Debug)]
pub enum IrqChange {
    /// Turn all vectors of an index off.
    DisableAll {
        /// Index that is turned off.
        index: IrqIndex,
    },
    /// Change some vectors.
    Vectors {
        /// Index of the vectors.
        index: IrqIndex,
        /// Number of the first vector.
        start: u32,
        /// Number of vectors, never 0.
        count: u32,
        /// The event or state that the change concerns.
        action: IrqAction,
        /// The operation on each vector.
        operation: IrqOperation,
    },
}

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_MASK: u32 = 1 << 3;
const ACTION_UNMASK: u32 = 1 << 4;
const ACTION_TRIGGER: u32 = 1 << 5;

impl IrqChange {
    /// Decodes a SET_IRQS; `counts` are the vectors of each index of the function.
    pub(crate) fn decode(
        wire: &IrqSetWire,
        data: &[u8],
        descriptors: Vec<OwnedFd>,
        counts: &[u32; IRQ_INDICES],
    ) -> Result<Self, ProtocolError> {
        let command = CommandCode::SetIrqs;
        let &IrqSetWire {
            argsz,
            flags,
            index: wire_index,
            start,
            count,
        } = wire;
        if (argsz as usize) < size_of::<IrqSetWire>() {
            return Err(ProtocolError::ReplySpace {
                command,
                bytes: argsz,
            });
        }
        let unknown = ProtocolError::Index {
            command,
            index: wire_index,
        };
        let (Some(index), Some(vectors)) = (
            IrqIndex::from_wire(wire_index),
            counts.get(wire_index as usize).copied(),
        ) else {
            return Err(unknown);
        };
        let action = match flags & (ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER) {
            ACTION_MASK => IrqAction::Mask,
            ACTION_UNMASK => IrqAction::Unmask,
            ACTION_TRIGGER => IrqAction::Trigger,
            _ => return Err(ProtocolError::Flags { command, flags }),
        };
        let kind = flags & !(ACTION_MASK | ACTION_UNMASK | ACTION_TRIGGER);
        let is_all = count == 0 && start == 0 && kind == DATA_NONE && action == IrqAction::Trigger;
        if is_all && descriptors.is_empty() {
            return Ok(Self::DisableAll { index });
        }
        let is_inside = start.checked_add(count).is_some_and(|end| end <= vectors);
        if count == 0 || !is_inside {
            return Err(ProtocolError::Vectors {
                index: wire_index,
                start,
                count,
            });
        }
        let operation = IrqOperation::decode(flags, kind, count, data, descriptors)?;
        Ok(Self::Vectors {
            index,
            start,
            count,
            action,
            operation,
        })
    }
}

impl IrqOperation {
    /// `kind` is the rest of `flags` without the action bits.
    fn decode(
        flags: u32,
        kind: u32,
        count: u32,
        data: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, ProtocolError> {
        let command = CommandCode::SetIrqs;
        match (kind, descriptors.len()) {
            (DATA_NONE, 0) => Ok(Self::Apply),
            (DATA_BOOL, 0) => {
                let chosen = data.get(..count as usize).ok_or(ProtocolError::BodyLength {
                    command,
                    bytes: data.len(),
                })?;
                Ok(Self::ApplyWhere(chosen.iter().map(|byte| *byte != 0).collect()))
            }
            (DATA_EVENTFD, 0) => Ok(Self::Disconnect),
            (DATA_EVENTFD, given) if given == count as usize => {
                let events = descriptors
                    .into_iter()
                    .map(IrqEvent::new)
                    .collect::<Result<_, _>>()?;
                Ok(Self::Connect(events))
            }
            (DATA_NONE | DATA_BOOL | DATA_EVENTFD, count) => {
                Err(ProtocolError::DescriptorCount { command, count })
            }
            _ => Err(ProtocolError::Flags { command, flags }),
        }
    }
}

/// An eventfd of a client.
///
/// The client holds the other end and decides what the file is and how it behaves, so it is looked at before it is
/// trusted with a write.
#[derive(Debug)]
pub struct IrqEvent {
    descriptor: OwnedFd,
}

impl IrqEvent {
    /// Refuses everything that has a type in the file system (pipes, sockets, files, devices): a write to those may
    /// block. What is left are the kernel's anonymous files, of which only event counters take eight bytes.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, ProtocolError> {
        let status = fstat(&descriptor).map_err(|_| ProtocolError::NotAnEvent)?;
        let has_type = FileType::from_raw_mode(status.st_mode) != FileType::Unknown;
        let flags = fcntl_getfl(&descriptor).map_err(|_| ProtocolError::NotAnEvent)?;
        if has_type || flags.contains(OFlags::PATH) {
            return Err(ProtocolError::NotAnEvent);
        }
        fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).map_err(|_| ProtocolError::NotAnEvent)?;
        Ok(Self { descriptor })
    }

    /// Signals once. A counter that is full is not an error: the client has interrupts to fetch already.
    ///
    /// The client can clear the non-blocking flag of the shared file, so the counter is asked for room first. Only
    /// one that fills its counter between the two calls can make this wait, until it reads the counter or a signal
    /// arrives; an embedder that cannot bear that signals from a thread of that client.
    pub fn signal(&self) -> Result<(), Errno> {
        let mut state = [PollFd::new(&self.descriptor, PollFlags::OUT)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut state, Some(&now))? == 0 {
            return Ok(());
        }
        match rustix::io::write(&self.descriptor, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the client signalled since the last call. Never waits, whatever the client does to the shared file.
    pub fn take(&self) -> Result<bool, Errno> {
        let mut counter = [0; 8];
        // An offset of -1 stands for a file without positions.
        match preadv2(
            &self.descriptor,
            &mut [IoSliceMut::new(&mut counter)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for IrqEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<IrqEvent> for OwnedFd {
    fn from(event: IrqEvent) -> Self {
        event.descriptor
    }
}

#[cfg(test)]
mod tests;
