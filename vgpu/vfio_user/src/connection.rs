//! One stream socket: whole messages in, whole messages out, never waiting.
//!
//! ```text
//!            bytes           16 bytes complete          body complete
//! (header) ────────► (header) ───────────────► (body) ───────────────► frame, and (header) again
//! ```
//!
//! The first read of a message asks for a header and a load. A load is the message that a client waits for, so it
//! takes one system call. The read goes beyond a message that is shorter, and those bytes are kept for the next
//! one. Any other read stays within the message that is being assembled.
//!
//! The owner of descriptors is certain nonetheless. The kernel hands them over with the first of the bytes that
//! they were sent with, and ends the read with the last of those; no message that has a use for them is as short as
//! a load. So they belong to the message that was under way, or began, last.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::Errno;
use crate::bounds::{MESSAGE_FDS_MAX, RECEIVED_FDS_MAX};
use crate::error::{CloseReason, ProtocolError};
use crate::message::{DmaMapWire, Header, IrqSetWire, RegionAccessWire};
use crate::reaper::{ForeignFd, Reaper};

const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes that the first read of a message asks for.
const FIRST_BYTES: usize = HEADER_BYTES + size_of::<RegionAccessWire>();
const _: () = assert!(
    FIRST_BYTES < HEADER_BYTES + size_of::<DmaMapWire>()
        && FIRST_BYTES < HEADER_BYTES + size_of::<IrqSetWire>()
);

/// One message as it came, without its body, which is [`Connection::body`]. Descriptors that nobody takes out are
/// left to the reaper when this is dropped.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) descriptors: Vec<ForeignFd>,
}

/// Why no further message comes.
#[derive(Debug)]
pub(crate) enum ReceiveError {
    /// The stream has ended or failed.
    Gone(CloseReason),
    /// The message cannot be taken. The header is there if it was complete, so that an error can be replied.
    Refused {
        header: Option<Header>,
        error: ProtocolError,
    },
}

impl From<ProtocolError> for ReceiveError {
    fn from(error: ProtocolError) -> Self {
        Self::Refused { header: None, error }
    }
}

/// The message that is being assembled, once its header is complete.
#[derive(Debug, Clone, Copy)]
struct Partial {
    header: Header,
    body_have: usize,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<Arc<OwnedFd>>,
}

/// One stream socket with the message under way and the bytes to be sent.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Foreign too: descriptors that were sent and not received are closed with it.
    stream: ForeignFd,
    reaper: Reaper,
    /// The beginning of a message whose header is incomplete or unread.
    first: [u8; FIRST_BYTES],
    first_have: usize,
    partial: Option<Partial>,
    /// Body of the message that is being assembled or was handed out last, as long as its header says.
    body: Vec<u8>,
    /// Descriptors of the message that began last.
    descriptors: Vec<ForeignFd>,
    /// Buffer in which outgoing messages are put together.
    scratch: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    outgoing_bytes: usize,
}

enum Read {
    Bytes(usize),
    WouldBlock,
    End,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream, reaper: Reaper) -> io::Result<Self> {
        let is_ready = stream.set_nonblocking(true);
        let stream = ForeignFd::new(stream.into(), reaper.clone());
        is_ready?;
        Ok(Self {
            stream,
            reaper,
            first: [0; FIRST_BYTES],
            first_have: 0,
            partial: None,
            body: Vec::new(),
            descriptors: Vec::new(),
            scratch: Vec::new(),
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
        })
    }

    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether descriptors of this socket's clients may be received, as far as those that wait to be closed are concerned.
    pub(crate) fn has_room(&self) -> bool {
        self.reaper.has_room()
    }

    /// Bytes that the socket has not taken yet.
    pub(crate) fn outgoing_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    /// Whether a header was read ahead. Its message may be whole, which no poll shows.
    pub(crate) fn has_read_ahead(&self) -> bool {
        self.first_have >= HEADER_BYTES
    }

    /// The next whole message, or `None` until the socket is readable again.
    pub(crate) fn receive(&mut self) -> Result<Option<Frame>, ReceiveError> {
        loop {
            match self.partial {
                None if self.has_read_ahead() => self.begin()?,
                Some(Partial { header, body_have }) if body_have == self.body.len() => {
                    self.partial = None;
                    // The next message's descriptors came with its first bytes.
                    let is_last = self.first_have == 0;
                    return Ok(Some(Frame {
                        header,
                        descriptors: if is_last {
                            std::mem::take(&mut self.descriptors)
                        } else {
                            Vec::new()
                        },
                    }));
                }
                _ => {
                    if !self.read_more()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The body of the message that was received last.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes a message's header, and the part of its body that came with it, out of the first bytes.
    fn begin(&mut self) -> Result<(), ReceiveError> {
        let have = self.first.get(..self.first_have).unwrap_or_default();
        // The size is the header's own, so this cannot fail; if it did, the message would be refused.
        let (header, rest) =
            Header::read_from_prefix(have).map_err(|_| ProtocolError::SizeBelowHeader { bytes: 0 })?;
        let bytes = header.body_bytes().map_err(|error| ReceiveError::Refused {
            header: Some(header),
            error,
        })?;
        let body_have = bytes.min(rest.len());
        self.body.clear();
        self.body
            .extend_from_slice(rest.get(..body_have).unwrap_or_default());
        self.body.resize(bytes, 0);
        self.first
            .copy_within(HEADER_BYTES + body_have..self.first_have, 0);
        self.first_have -= HEADER_BYTES + body_have;
        self.partial = Some(Partial { header, body_have });
        Ok(())
    }

    /// Reads towards the end of the current part. `false` if nothing is there.
    fn read_more(&mut self) -> Result<bool, ReceiveError> {
        let is_between = self.partial.is_none() && self.first_have == 0;
        let (buffer, have) = match &mut self.partial {
            Some(partial) => (self.body.as_mut_slice(), &mut partial.body_have),
            None => (self.first.as_mut_slice(), &mut self.first_have),
        };
        let room = buffer.get_mut(*have..).unwrap_or_default();
        match read_with_descriptors(&self.stream, &self.reaper, room, &mut self.descriptors)? {
            Read::Bytes(bytes) => {
                *have += bytes;
                Ok(true)
            }
            Read::WouldBlock => Ok(false),
            Read::End if is_between => Err(ReceiveError::Gone(CloseReason::HungUp)),
            Read::End => Err(ReceiveError::Gone(CloseReason::TornMessage)),
        }
    }

    /// Sends one message, and queues the part that the socket does not take.
    ///
    /// The queue is bounded by the caller, who admits requests only while their replies have room.
    pub(crate) fn send(
        &mut self,
        header: &Header,
        parts: &[&[u8]],
        descriptor: Option<Arc<OwnedFd>>,
    ) -> Result<(), CloseReason> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let mut sent = 0;
        if self.outgoing.is_empty() {
            match send_with_descriptor(&self.stream, &bytes, descriptor.as_ref()) {
                Ok(now) => sent = now,
                // The loop tries again.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(gone(error)),
            }
            if sent >= bytes.len() {
                self.scratch = bytes;
                return Ok(());
            }
        }
        self.outgoing_bytes += bytes.len() - sent;
        self.outgoing.push_back(Outgoing {
            bytes,
            sent,
            descriptor,
        });
        self.flush()
    }

    /// Sends what the socket takes.
    ///
    /// Each message is a system call of its own: QEMU reads a header in one piece and gives the connection up if it
    /// gets less, and a message that is sent alone is never cut within its header.
    pub(crate) fn flush(&mut self) -> Result<(), CloseReason> {
        while let Some(message) = self.outgoing.front_mut() {
            let rest = message.bytes.get(message.sent..).unwrap_or_default();
            let descriptor = if message.sent == 0 {
                message.descriptor.as_ref()
            } else {
                None
            };
            match send_with_descriptor(&self.stream, rest, descriptor) {
                Ok(bytes) => {
                    message.sent += bytes;
                    self.outgoing_bytes = self.outgoing_bytes.saturating_sub(bytes);
                    if message.sent >= message.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(())
    }

    /// Ends both directions and forgets everything that is on its way.
    pub(crate) fn shut_down(&mut self) {
        // An error means that the socket is shut down already.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        self.first_have = 0;
        self.partial = None;
        self.descriptors.clear();
        self.outgoing.clear();
        self.outgoing_bytes = 0;
    }
}

fn gone(error: Errno) -> CloseReason {
    match error {
        Errno::PIPE | Errno::CONNRESET => CloseReason::HungUp,
        other => CloseReason::Socket(other.into()),
    }
}

/// One read. New descriptors are close-on-exec, and are left to the reaper if they are too many.
fn read_with_descriptors(
    stream: &ForeignFd,
    reaper: &Reaper,
    buffer: &mut [u8],
    descriptors: &mut Vec<ForeignFd>,
) -> Result<Read, ReceiveError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Read::WouldBlock),
            Err(error) => return Err(ReceiveError::Gone(gone(error))),
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights.map(|right| ForeignFd::new(right, reaper.clone())));
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if descriptors.len() > MESSAGE_FDS_MAX {
        return Err(ProtocolError::TooManyDescriptors.into());
    }
    if is_cut {
        // Fewer than there is room for: this process may hold no more descriptors.
        return Err(ProtocolError::DescriptorsLost.into());
    }
    Ok(if received.bytes == 0 {
        Read::End
    } else {
        Read::Bytes(received.bytes)
    })
}

fn send_with_descriptor(
    stream: &ForeignFd,
    bytes: &[u8],
    descriptor: Option<&Arc<OwnedFd>>,
) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let Some(descriptor) = descriptor else {
        return send(stream, bytes, flags);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = [descriptor.as_fd()];
    let has_room = control.push(SendAncillaryMessage::ScmRights(&borrowed));
    assert!(has_room, "the buffer was made for one descriptor");
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)
}

/// The header of the answer to `request`, which `parts` follow.
pub(crate) fn reply_header(request: &Header, error: Option<Errno>, parts: &[&[u8]]) -> Header {
    let bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let flags = crate::message::FLAG_REPLY
        | if error.is_some() {
            crate::message::FLAG_ERROR
        } else {
            0
        };
    Header {
        message_id: request.message_id,
        command: request.command,
        message_bytes: u32::try_from(bytes).expect("replies are bounded far below 4 GiB"),
        flags,
        error: error.map_or(0, |error| error.raw_os_error().unsigned_abs()),
    }
}
