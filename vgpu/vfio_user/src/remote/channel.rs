//! The client's end of the socket: whole messages out, whole replies in, each before a deadline.
//!
//! Nothing here waits in a system call but `poll`, with the time that is left: a server that takes or gives one byte
//! now and then does not make an exchange longer than one that is silent. The exception is the start of a message that
//! carries a descriptor, which the socket's own limit bounds.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;
use zerocopy::{FromBytes, IntoBytes};

use super::RemoteError;
use crate::Errno;
use crate::bounds::{DATA_BYTES_MAX, MESSAGE_BYTES_MAX, MULTI_WRITES_MAX};
use crate::message::{
    CommandCode, FLAG_ERROR, FLAG_NO_REPLY, FLAG_REPLY, FLAG_TYPE_MASK, Header, MultiWriteWire,
    RegionAccessWire,
};

const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes that the first read of a reply asks for: a header, an access and a word.
const FIRST_BYTES: usize = HEADER_BYTES + size_of::<RegionAccessWire>() + size_of::<u64>();
/// Descriptors that there is room for in one read: a server sends one with a reply.
const DESCRIPTORS_MAX: usize = 4;
/// Posted bytes beyond which they are sent without a flush.
const POSTED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// The client's end of the socket, with the posted writes that are not sent yet.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    answer_wait: Duration,
    next_id: u16,
    /// Whole posted messages, in order, not sent yet.
    posted: Vec<u8>,
    /// Small writes that follow those messages and become one REGION_WRITE_MULTI.
    batch: Vec<MultiWriteWire>,
    /// Whether small writes may be batched.
    pub(super) has_batches: bool,
    /// Bytes from the socket; those up to `received_bytes` are valid. The last reply comes first, then what was read
    /// ahead of the next message.
    received: Vec<u8>,
    received_bytes: usize,
    /// Length of the last reply, which is dropped when the next message is received.
    reply_bytes: usize,
    /// Whether a descriptor that comes is kept.
    takes_descriptor: bool,
    descriptor: Option<OwnedFd>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream, answer_wait: Duration) -> io::Result<Self> {
        stream.set_write_timeout(Some(answer_wait))?;
        Ok(Self {
            stream,
            answer_wait,
            next_id: 0,
            posted: Vec::new(),
            batch: Vec::new(),
            has_batches: false,
            received: Vec::new(),
            received_bytes: 0,
            reply_bytes: 0,
            takes_descriptor: false,
            descriptor: None,
        })
    }

    fn message(&mut self, command: CommandCode, flags: u32, parts: &[&[u8]], out: &mut Vec<u8>) -> u16 {
        let message_id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = Header {
            message_id,
            command: command as u16,
            // Callers split transfers that are longer than the bounds.
            message_bytes: bytes as u32,
            flags,
            error: 0,
        };
        out.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
        message_id
    }

    /// Queues a write without reply, at most [`DATA_BYTES_MAX`] bytes.
    pub(super) fn post(&mut self, access: RegionAccessWire, data: &[u8]) -> Result<(), RemoteError> {
        debug_assert!(data.len() <= DATA_BYTES_MAX as usize);
        let mut word = [0; 8];
        if let Some(part) = word.get_mut(..data.len()).filter(|_| self.has_batches) {
            part.copy_from_slice(data);
            self.batch.push(MultiWriteWire { access, data: word });
            if self.batch.len() == MULTI_WRITES_MAX {
                self.end_batch();
            }
        } else {
            self.end_batch();
            let mut posted = std::mem::take(&mut self.posted);
            let code = CommandCode::RegionWrite;
            self.message(code, FLAG_NO_REPLY, &[access.as_bytes(), data], &mut posted);
            self.posted = posted;
        }
        if self.posted.len() >= POSTED_BYTES_MAX {
            return self.flush();
        }
        Ok(())
    }

    /// Makes messages of the small writes. For a single one, a message of its own is shorter.
    fn end_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let mut posted = std::mem::take(&mut self.posted);
        match batch.as_slice() {
            [one] => {
                let data = one.data.get(..one.access.count as usize).unwrap_or_default();
                let parts = [one.access.as_bytes(), data];
                self.message(CommandCode::RegionWrite, FLAG_NO_REPLY, &parts, &mut posted);
            }
            many => {
                let count = many.len() as u64;
                let parts = [count.as_bytes(), many.as_bytes()];
                self.message(CommandCode::RegionWriteMulti, FLAG_NO_REPLY, &parts, &mut posted);
            }
        }
        self.posted = posted;
        self.batch = batch;
        self.batch.clear();
    }

    /// Sends the posted messages.
    pub(super) fn flush(&mut self) -> Result<(), RemoteError> {
        self.end_batch();
        if self.posted.is_empty() {
            return Ok(());
        }
        let posted = std::mem::take(&mut self.posted);
        let sent = self.send(CommandCode::RegionWrite, &posted, None, self.deadline());
        self.posted = posted;
        self.posted.clear();
        sent
    }

    /// Sends the posted messages and one request, and waits for its reply. Gives the reply's body.
    pub(super) fn exchange(
        &mut self,
        command: CommandCode,
        parts: &[&[u8]],
        descriptor: Option<RawFd>,
    ) -> Result<&[u8], RemoteError> {
        self.end_batch();
        let mut message = std::mem::take(&mut self.posted);
        if descriptor.is_some() && !message.is_empty() {
            // A descriptor belongs to the message that it is sent with.
            let sent = self.send(CommandCode::RegionWrite, &message, None, self.deadline());
            message.clear();
            sent?;
        }
        let message_id = self.message(command, 0, parts, &mut message);
        let deadline = self.deadline();
        let sent = self.send(command, &message, descriptor, deadline);
        message.clear();
        self.posted = message;
        sent?;
        let reply = self.receive(command, deadline)?;
        if reply.message_id != message_id || reply.command != command as u16 {
            return Err(RemoteError::Protocol {
                command,
                what: "it answers another request",
            });
        }
        if reply.flags & FLAG_ERROR != 0 {
            return Err(RemoteError::Refused {
                command,
                errno: i32::try_from(reply.error).unwrap_or(i32::MAX),
            });
        }
        Ok(self
            .received
            .get(HEADER_BYTES..self.reply_bytes)
            .unwrap_or_default())
    }

    /// The same for a request whose reply may carry a descriptor. Gives both.
    pub(super) fn exchange_for_descriptor(
        &mut self,
        command: CommandCode,
        parts: &[&[u8]],
    ) -> Result<(&[u8], Option<OwnedFd>), RemoteError> {
        (self.takes_descriptor, self.descriptor) = (true, None);
        let exchanged = self.exchange(command, parts, None).map(|_| ());
        self.takes_descriptor = false;
        let descriptor = self.descriptor.take();
        exchanged?;
        let body = self.received.get(HEADER_BYTES..self.reply_bytes);
        Ok((body.unwrap_or_default(), descriptor))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.answer_wait
    }

    fn send(
        &self,
        command: CommandCode,
        message: &[u8],
        descriptor: Option<RawFd>,
        deadline: Instant,
    ) -> Result<(), RemoteError> {
        let mut sent = 0;
        while let Some(rest) = message.get(sent..).filter(|rest| !rest.is_empty()) {
            match send_some(&self.stream, rest, descriptor.filter(|_| sent == 0)) {
                Ok(bytes) => sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(command, PollFlags::OUT, deadline)?,
                Err(error) => return Err(gone(command, error)),
            }
        }
        Ok(())
    }

    /// Receives one whole reply. Descriptors that nobody asked for are discarded by the kernel.
    ///
    /// A read may take more than the reply: a server that stores to memory may do so right behind an answer. What belongs
    /// to the next message stays for the next call.
    fn receive(&mut self, command: CommandCode, deadline: Instant) -> Result<Header, RemoteError> {
        self.drop_front(self.reply_bytes);
        self.reply_bytes = 0;
        if self.received_bytes == 0 {
            // No server answers sooner than a look takes, and no time has gone by yet. A read that blocks would also be
            // woken when the server takes the request.
            self.poll(command, PollFlags::IN, self.answer_wait)?;
        }
        let header = loop {
            match Header::read_from_prefix(self.valid()) {
                Ok((header, _)) if header.is_upstream() => self.skip(command, &header, deadline)?,
                Ok((header, _)) => break header,
                Err(_) => self.receive_some(command, FIRST_BYTES, deadline)?,
            }
        };
        if header.flags & FLAG_TYPE_MASK != FLAG_REPLY {
            return Err(RemoteError::Protocol {
                command,
                what: "it is not a reply",
            });
        }
        let bytes = header.message_bytes as usize;
        if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) {
            return Err(RemoteError::Protocol {
                command,
                what: "its length is wrong",
            });
        }
        while self.received_bytes < bytes {
            self.receive_some(command, bytes, deadline)?;
        }
        self.reply_bytes = bytes;
        Ok(header)
    }

    /// Drops the message in front, a store to an address where nothing is mapped. A bus does the same with it.
    fn skip(&mut self, command: CommandCode, header: &Header, deadline: Instant) -> Result<(), RemoteError> {
        let bytes = header.message_bytes as usize;
        if !(HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) {
            return Err(RemoteError::Protocol {
                command,
                what: "the length of a store to memory is wrong",
            });
        }
        while self.received_bytes < bytes {
            self.receive_some(command, bytes, deadline)?;
        }
        self.drop_front(bytes);
        if Instant::now() >= deadline {
            // A server that goes on storing never makes anybody wait in `wait`.
            let after = self.answer_wait;
            return Err(RemoteError::TimedOut { command, after });
        }
        Ok(())
    }

    fn valid(&self) -> &[u8] {
        self.received.get(..self.received_bytes).unwrap_or_default()
    }

    fn drop_front(&mut self, bytes: usize) {
        self.received.copy_within(bytes..self.received_bytes, 0);
        self.received_bytes -= bytes;
    }

    /// Receives at least a byte, and no more than fills `received` up to `bytes`, which is above what is valid.
    fn receive_some(
        &mut self,
        command: CommandCode,
        bytes: usize,
        deadline: Instant,
    ) -> Result<(), RemoteError> {
        if self.received.len() < bytes {
            self.received.resize(bytes, 0);
        }
        loop {
            let room = self
                .received
                .get_mut(self.received_bytes..bytes)
                .unwrap_or_default();
            let some = match self.takes_descriptor {
                true => recv_with_descriptor(&self.stream, room, &mut self.descriptor),
                false => recv(&self.stream, room, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes),
            };
            match some {
                Ok(0) => return Err(RemoteError::HungUp { command }),
                Ok(more) => {
                    self.received_bytes += more;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(command, PollFlags::IN, deadline)?,
                Err(error) => return Err(gone(command, error)),
            }
        }
    }

    /// Waits until the socket is ready, or in a state that the next transfer will report.
    fn wait(&self, command: CommandCode, events: PollFlags, deadline: Instant) -> Result<(), RemoteError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let after = self.answer_wait;
        if left.is_zero() {
            return Err(RemoteError::TimedOut { command, after });
        }
        self.poll(command, events, left)
    }

    /// Waits up to `limit`; it may also end without a cause.
    fn poll(&self, command: CommandCode, events: PollFlags, limit: Duration) -> Result<(), RemoteError> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.stream, events)], Some(&limit)) {
            // A caller that was interrupted or got nothing looks at the clock again.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(gone(command, error)),
        }
    }
}

fn gone(command: CommandCode, error: Errno) -> RemoteError {
    match error {
        Errno::PIPE | Errno::CONNRESET => RemoteError::HungUp { command },
        other => RemoteError::Io {
            command,
            source: other.into(),
        },
    }
}

/// One read; the last descriptor that comes with it is kept, and closed on exec.
fn recv_with_descriptor(
    stream: &UnixStream,
    room: &mut [u8],
    kept: &mut Option<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            *kept = rights.last().or(kept.take());
        }
    }
    Ok(received.bytes)
}

fn send_some(stream: &UnixStream, bytes: &[u8], descriptor: Option<RawFd>) -> Result<usize, Errno> {
    let Some(descriptor) = descriptor else {
        return send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    };
    stream
        .send_with_fd(bytes, descriptor)
        .map_err(|error| Errno::from_raw_os_error(error.errno()))
}
