//! Interrupts: the changes that a client may ask for, and the eventfds that signal it.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::readlink;
use rustix::io::{ReadWriteFlags, preadv2};

use crate::Errno;
use crate::bell::Bell;
use crate::error::ProtocolError;
use crate::message::{CommandCode, IrqSetWire};
use crate::reaper::ForeignFd;

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
    /// The first index behind those of PCI: its meaning is the function's own.
    DeviceSpecific = 5,
}

/// Indices that a function can have, its own one included.
pub const IRQ_INDICES: usize = 6;
/// Indices of every PCI function (`VFIO_PCI_NUM_IRQS`).
pub(crate) const PCI_IRQ_INDICES: usize = 5;

impl IrqIndex {
    /// All indices, in the order of their numbers.
    pub const ALL: [Self; IRQ_INDICES] = [
        Self::Intx,
        Self::Msi,
        Self::MsiX,
        Self::Err,
        Self::Req,
        Self::DeviceSpecific,
    ];

    /// The index with this number; `None` if there is no such index.
    pub fn from_wire(index: u32) -> Option<Self> {
        Some(match index {
            0 => Self::Intx,
            1 => Self::Msi,
            2 => Self::MsiX,
            3 => Self::Err,
            4 => Self::Req,
            5 => Self::DeviceSpecific,
            _ => return None,
        })
    }

    /// `VFIO_IRQ_INFO_*` bits: INTx can be masked and masks itself when it fires; the message-signalled ones are set
    /// up as a set; the function's own can be masked and unmasked.
    pub(crate) fn info_flags(self) -> u32 {
        const EVENTFD: u32 = 1;
        const MASKABLE: u32 = 1 << 1;
        const AUTOMASKED: u32 = 1 << 2;
        const NORESIZE: u32 = 1 << 3;
        match self {
            Self::Intx => EVENTFD | MASKABLE | AUTOMASKED,
            Self::Msi | Self::MsiX => EVENTFD | NORESIZE,
            Self::Err | Self::Req => EVENTFD,
            Self::DeviceSpecific => EVENTFD | MASKABLE,
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
        descriptors: Vec<ForeignFd>,
        bell: &Arc<Bell>,
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
        if index == IrqIndex::DeviceSpecific && vectors == 0 {
            return Err(unknown);
        }
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
        let operation = IrqOperation::decode((flags, kind), count, data, descriptors, bell)?;
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
        (flags, kind): (u32, u32),
        count: u32,
        data: &[u8],
        descriptors: Vec<ForeignFd>,
        bell: &Arc<Bell>,
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
                    .map(|descriptor| IrqEvent::new(descriptor, bell.clone()))
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
/// The client holds the other end and decides what the file is and how it behaves: it is known to be an eventfd before
/// anything is asked of it, and it is signalled in the one way that never waits.
#[derive(Debug)]
pub struct IrqEvent {
    descriptor: ForeignFd,
    bell: Arc<Bell>,
}

impl IrqEvent {
    /// Refuses everything but an eventfd. To look at the link of its descriptor asks no file system: the kernel puts the
    /// name together by itself. A file that has a place anywhere has a name that begins with a slash.
    pub(crate) fn new(descriptor: ForeignFd, bell: Arc<Bell>) -> Result<Self, ProtocolError> {
        let link = format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd());
        let name = readlink(link, Vec::new()).map_err(|_| ProtocolError::NotAnEvent)?;
        if name.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(ProtocolError::NotAnEvent);
        }
        Ok(Self { descriptor, bell })
    }

    /// Signals once, and never waits. A counter that is full is not an error: the client has interrupts to fetch already.
    pub fn signal(&self) -> Result<(), Errno> {
        self.bell.ring(self.descriptor.as_fd())
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

#[cfg(test)]
mod tests;
