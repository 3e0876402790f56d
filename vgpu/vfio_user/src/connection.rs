//! One stream socket: whole messages in, whole messages out, never waiting.
//!
//! ```text
//!            bytes           16 bytes complete          body complete
//! (header) ────────► (header) ───────────────► (body) ───────────────► frame, and (header) again
//! ```
//!
//! A read never goes beyond the message that is being assembled. That costs a second system call for each message,
//! and is what makes the descriptors certain: the kernel hands them over with the bytes they were sent with, and
//! those belong to this message only.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::Errno;
use crate::bounds::MESSAGE_FDS_MAX;
use crate::error::{CloseReason, ProtocolError};
use crate::message::Header;

const HEADER_BYTES: usize = size_of::<Header>();

/// One message as it came. Descriptors that nobody takes out are closed with it.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
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

/// The message that is being assembled.
#[derive(Debug, Default)]
struct Partial {
    header: [u8; HEADER_BYTES],
    header_have: usize,
    /// Sized by the header once that is complete.
    body: Option<Vec<u8>>,
    body_have: usize,
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<Arc<OwnedFd>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    partial: Partial,
    outgoing: VecDeque<Outgoing>,
    outgoing_bytes: usize,
}

enum Read {
    Bytes(usize),
    WouldBlock,
    End,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            partial: Partial::default(),
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
        })
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Bytes that the socket has not taken yet.
    pub(crate) fn outgoing_bytes(&self) -> usize {
        self.outgoing_bytes
    }

    /// The next whole message, or `None` until the socket is readable again.
    pub(crate) fn receive(&mut self) -> Result<Option<Frame>, ReceiveError> {
        loop {
            let header = match self.complete_header()? {
                Some(header) => header,
                None => match self.read_more()? {
                    true => continue,
                    false => return Ok(None),
                },
            };
            if self
                .partial
                .body
                .as_ref()
                .is_some_and(|body| body.len() == self.partial.body_have)
            {
                let partial = std::mem::take(&mut self.partial);
                return Ok(Some(Frame {
                    header,
                    body: partial.body.unwrap_or_default(),
                    descriptors: partial.descriptors,
                }));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    /// The header once it is complete and acceptable; then room for the body exists.
    fn complete_header(&mut self) -> Result<Option<Header>, ReceiveError> {
        if self.partial.header_have < HEADER_BYTES {
            return Ok(None);
        }
        // The size is the header's own, so this cannot fail; were it to, the message is refused.
        let header = Header::read_from_bytes(&self.partial.header)
            .map_err(|_| ProtocolError::SizeBelowHeader { bytes: 0 })?;
        if self.partial.body.is_none() {
            let bytes = header.body_bytes().map_err(|error| ReceiveError::Refused {
                header: Some(header),
                error,
            })?;
            self.partial.body = Some(vec![0; bytes]);
        }
        Ok(Some(header))
    }

    /// Reads towards the end of the current part. `false` if nothing is there.
    fn read_more(&mut self) -> Result<bool, ReceiveError> {
        let Partial {
            header,
            header_have,
            body,
            body_have,
            descriptors,
        } = &mut self.partial;
        let (buffer, have) = match body {
            Some(body) => (body.as_mut_slice(), body_have),
            None => (header.as_mut_slice(), header_have),
        };
        let room = buffer.get_mut(*have..).unwrap_or_default();
        let read = read_with_descriptors(&self.stream, room, descriptors)?;
        match read {
            Read::Bytes(bytes) => {
                *have += bytes;
                Ok(true)
            }
            Read::WouldBlock => Ok(false),
            Read::End if self.partial.header_have == 0 => Err(ReceiveError::Gone(CloseReason::HungUp)),
            Read::End => Err(ReceiveError::Gone(CloseReason::TornMessage)),
        }
    }

    /// Queues one message and sends what the socket takes.
    ///
    /// The queue is bounded by the caller, who admits requests only while their replies have room.
    pub(crate) fn send(
        &mut self,
        bytes: Vec<u8>,
        descriptor: Option<Arc<OwnedFd>>,
    ) -> Result<(), CloseReason> {
        self.outgoing_bytes += bytes.len();
        self.outgoing.push_back(Outgoing {
            bytes,
            sent: 0,
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
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.partial = Partial::default();
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

/// One read. New descriptors are close-on-exec, and are closed again if they are too many.
fn read_with_descriptors(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Read, ReceiveError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
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
            descriptors.extend(rights);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if descriptors.len() > MESSAGE_FDS_MAX || (is_cut && descriptors.len() == MESSAGE_FDS_MAX) {
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
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<&Arc<OwnedFd>>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = descriptor.map(|descriptor| [descriptor.as_fd()]);
    if let Some(borrowed) = &borrowed {
        let has_room = control.push(SendAncillaryMessage::ScmRights(borrowed));
        assert!(has_room, "the buffer was made for one descriptor");
    }
    sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )
}

/// Appends a header and `parts` to one message.
pub(crate) fn assemble(request: &Header, error: Option<Errno>, parts: &[&[u8]]) -> Vec<u8> {
    let bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let flags = crate::message::FLAG_REPLY
        | if error.is_some() {
            crate::message::FLAG_ERROR
        } else {
            0
        };
    let header = Header {
        message_id: request.message_id,
        command: request.command,
        message_bytes: u32::try_from(bytes).expect("replies are bounded far below 4 GiB"),
        flags,
        error: error.map_or(0, |error| error.raw_os_error().unsigned_abs()),
    };
    let mut message = Vec::with_capacity(bytes);
    message.extend_from_slice(header.as_bytes());
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}
