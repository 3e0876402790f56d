//! Virtio network device: frames between a guest and a tap of the host, by a thread of its own.
//!
//! ```text
//! guest ──transmit queue──► header checked ─► tap ──► the host's network
//!       ◄──receive queue─── header checked ◄─ one frame that waits for room ◄── tap, as long as none waits
//! ```
//!
//! Device type 1, queues, header and features: Virtio 1.2 §5.1. A frame is copied once more than necessary, so that
//! the checked bytes are the ones that are handed on. While the driver has no room for a frame, the tap is not
//! read: the host keeps the frames that fit its queue and drops the rest, and the driver's next notification goes
//! on. There is no control queue.

mod header;
mod mac;
mod tap;
mod traffic;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use libc::c_uint;
use log::warn;
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU,
};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use header::{Agreed, CHAINS_OFFSET, FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES};
pub use mac::{MacAddress, ParseMacError};
pub use tap::{Tap, TapError};
pub use traffic::Traffic;
pub(crate) use traffic::TrafficCounters;

use super::chain::{BrokenChain, Pieces, copy_in, copy_out, place_of, total};
use super::transport::{Answer, Identity, LiveQueue, Served, Transport};
use super::{Device, QUEUE_SIZE};
use crate::sandbox::Role;
use crate::vm::{Stop, VmExit, wait_readable};

/// Queues by their direction as the driver sees it.
const RECEIVE: u32 = 0;
const TRANSMIT: u32 = 1;
const QUEUES: u32 = 2;
/// One byte more than the longest frame: a frame that fills it was cut off.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX + 1;
const FEATURES: [u32; 9] = [
    VIRTIO_NET_F_CSUM,
    VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_MTU,
    VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4,
    VIRTIO_NET_F_HOST_TSO6,
    VIRTIO_NET_F_MRG_RXBUF,
];

/// The network that the device's frames go to and come from, each behind a header. No call waits; it is readable
/// when there is a frame.
pub(crate) trait Wire: AsRawFd + Send {
    /// Takes one frame, or as much of it as there is room for.
    fn receive(&mut self, frame: &mut [u8]) -> io::Result<usize>;

    /// Hands over one frame.
    fn send(&mut self, frame: &[u8]) -> io::Result<usize>;

    /// Sets the work that received frames may leave to the driver: TUN_F flags.
    fn set_offloads(&mut self, offloads: c_uint) -> io::Result<()>;

    /// Longest packet within a frame. Bytes.
    fn mtu(&self) -> u16;
}

/// The parts of a network device of a VM.
#[derive(Debug)]
pub struct Network {
    /// Its end in the host.
    pub tap: Tap,
    /// Hardware address in the guest.
    pub mac: MacAddress,
}

/// One network device of a VM.
pub(crate) struct Net<W> {
    transport: Arc<Transport>,
    counters: Arc<TrafficCounters>,
    wire: W,
    /// False since the wire failed: nothing goes through it any more.
    has_wire: bool,
    /// The offloads that the wire was last set to.
    offloads: c_uint,
    outgoing: Vec<u8>,
    incoming: Incoming,
    pieces: Pieces,
}

/// A frame from the wire.
struct Incoming {
    /// The header's room comes first.
    buffer: Vec<u8>,
    /// Bytes of header and frame, if one waits for room.
    waiting: Option<usize>,
    mtu: u16,
    /// Chains that the frame goes to.
    answers: Vec<Answer>,
}

/// Outcome of a frame for the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    Done,
    Dropped,
    /// The frame waits until the driver has room.
    Waits,
}

impl<W: Wire> Net<W> {
    /// A device that raises its line by `interrupt`.
    pub(crate) fn new(
        wire: W,
        mac: MacAddress,
        counters: Arc<TrafficCounters>,
        memory: GuestMemoryMmap,
        interrupt: EventFd,
    ) -> io::Result<Net<W>> {
        let mtu = wire.mtu();
        let transport = Transport::new(identity(mac, mtu), memory, interrupt)?;
        Ok(Net {
            transport: Arc::new(transport),
            counters,
            wire,
            has_wire: true,
            offloads: 0,
            outgoing: vec![0; BUFFER_BYTES],
            incoming: Incoming {
                buffer: vec![0; BUFFER_BYTES],
                waiting: None,
                mtu,
                answers: Vec::with_capacity(QUEUE_SIZE.into()),
            },
            pieces: Pieces::new(),
        })
    }

    /// Sleeps until there may be something to do, or at most for `limit`.
    fn wait(&self, stop: &Stop, limit: Option<Duration>) {
        let notified = self.transport.notified();
        if self.has_wire && self.incoming.waiting.is_none() {
            wait_readable([notified, stop.eventfd(), &self.wire], limit);
        } else {
            wait_readable([notified, stop.eventfd()], limit);
        }
    }

    /// Moves up to a ring of frames each way. Returns whether the driver may have more to send:
    /// nothing else reports it.
    fn turn(&mut self) -> bool {
        self.follow_driver();
        for _ in 0..QUEUE_SIZE {
            if self.receive() != Served::One {
                break;
            }
        }
        (0..QUEUE_SIZE).all(|_| self.send() == Served::One)
    }

    /// Lets the wire leave the agreed work to the driver.
    fn follow_driver(&mut self) {
        let offloads = Agreed(self.transport.agreed_features().unwrap_or(0)).offloads();
        if self.has_wire && offloads != self.offloads {
            match self.wire.set_offloads(offloads) {
                Ok(()) => self.offloads = offloads,
                Err(error) => self.lose_wire(&error),
            }
        }
    }

    /// The interface was removed: the guest goes on without it.
    fn lose_wire(&mut self, error: &io::Error) {
        warn!(error:%; "a VM's network device lost its tap");
        self.has_wire = false;
    }

    /// Takes one frame from the driver.
    fn send(&mut self) -> Served {
        let Net {
            transport,
            counters,
            wire,
            has_wire,
            outgoing,
            pieces,
            ..
        } = self;
        let (memory, mtu) = (transport.memory(), wire.mtu());
        transport.serve_next(TRANSMIT, |chain, features| {
            pieces.gather(chain)?;
            let frame = take_frame(pieces, memory, outgoing, mtu, Agreed(features));
            // An interface that is down or has no room takes none, as with a cable that is not plugged in.
            let sent = frame.filter(|frame| *has_wire && wire.send(frame).is_ok());
            match sent {
                Some(frame) => counters.add_sent(frame.len() - HEADER_BYTES),
                None => counters.add_dropped_sent(),
            }
            Ok(0)
        })
    }

    /// Hands one frame to the driver, or drops it.
    fn receive(&mut self) -> Served {
        let Some(bytes) = self.next_frame() else {
            return Served::Nothing;
        };
        let (incoming, pieces, memory) = (&mut self.incoming, &mut self.pieces, self.transport.memory());
        let delivered = self
            .transport
            .with_queue(RECEIVE, |live| incoming.deliver(bytes, live, pieces, memory));
        match delivered.unwrap_or(Delivery::Waits) {
            Delivery::Waits => return Served::Nothing,
            Delivery::Done => self.counters.add_received(bytes - HEADER_BYTES),
            Delivery::Dropped => self.counters.add_dropped_received(),
        }
        self.incoming.waiting = None;
        Served::One
    }

    /// The frame that waits, or otherwise the wire's next one: bytes with its header.
    fn next_frame(&mut self) -> Option<usize> {
        let incoming = &mut self.incoming;
        if incoming.waiting.is_none() && self.has_wire {
            match self.wire.receive(&mut incoming.buffer) {
                Ok(bytes) if bytes >= HEADER_BYTES => incoming.waiting = Some(bytes),
                Ok(_) => self.lose_wire(&io::ErrorKind::UnexpectedEof.into()),
                Err(error) if is_passing(&error) => {}
                Err(error) => self.lose_wire(&error),
            }
        }
        self.incoming.waiting
    }
}

impl<W: Wire> Device for Net<W> {
    fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    fn role(&self) -> Role {
        Role::Net
    }

    fn run(mut self: Box<Self>, stop: &Stop) -> Option<VmExit> {
        let mut has_more = false;
        while !stop.is_requested() {
            self.wait(stop, has_more.then_some(Duration::ZERO));
            // Cleared before the queues are read: a later frame is notified again. It is empty if something
            // else woke this thread.
            let _ = self.transport.notified().read();
            has_more = self.turn();
        }
        None
    }
}

impl Incoming {
    /// Puts header and frame, `bytes` bytes, into as many chains as it takes.
    fn deliver(
        &mut self,
        bytes: usize,
        live: &mut LiveQueue<'_>,
        pieces: &mut Pieces,
        memory: &GuestMemoryMmap,
    ) -> Result<Delivery, BrokenChain> {
        let agreed = Agreed(live.features());
        let Some((header, frame)) = self.buffer[..bytes].split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Delivery::Dropped);
        };
        let header = FrameHeader::decode(*header).checked_for_driver(frame.len(), self.mtu, agreed);
        let Some(header) = header else {
            return Ok(Delivery::Dropped);
        };
        self.answers.clear();
        let mut count_at = None;
        let mut left = frame;
        while count_at.is_none() || !left.is_empty() {
            let taken = self.answers.len() as u16;
            if taken > 0 && (!agreed.merges() || taken == live.size()) {
                // The driver could never make enough room.
                live.put_back(taken);
                return Ok(Delivery::Dropped);
            }
            let Some(chain) = live.take()? else {
                live.put_back(taken);
                return Ok(Delivery::Waits);
            };
            let head = chain.head_index();
            pieces.gather(chain)?;
            let mut written = 0;
            if count_at.is_none() {
                count_at = Some(ChainCount::place(pieces)?);
                put(pieces, memory, &header.encode())?;
                written = HEADER_BYTES;
            }
            let room =
                usize::try_from(total(&pieces.writable)).map_or(left.len(), |room| room.min(left.len()));
            let (now, later) = left.split_at(room);
            put(pieces, memory, now)?;
            left = later;
            written += room;
            self.answers.push(Answer {
                head,
                written: written as u32,
            });
        }
        if let Some(count_at) = count_at.filter(|_| self.answers.len() > 1) {
            count_at.write(memory, self.answers.len() as u16)?;
        }
        live.answer(&self.answers)?;
        Ok(Delivery::Done)
    }
}

/// Address of the header's field for the number of chains of a frame: each byte may be in a piece of its own.
#[derive(Clone, Copy)]
struct ChainCount([GuestAddress; 2]);

impl ChainCount {
    /// Computed before anything is taken off `pieces`.
    fn place(pieces: &Pieces) -> Result<ChainCount, BrokenChain> {
        let place = |offset| place_of(&pieces.writable, offset).ok_or(BrokenChain);
        Ok(ChainCount([place(CHAINS_OFFSET)?, place(CHAINS_OFFSET + 1)?]))
    }

    fn write(self, memory: &GuestMemoryMmap, chains: u16) -> Result<(), BrokenChain> {
        let mut bytes = self.0.into_iter().zip(chains.to_le_bytes());
        bytes.try_for_each(|(at, byte)| memory.write_obj(byte, at).map_err(|_| BrokenChain))
    }
}

/// A driver that offers memory that is not RAM has broken the rules.
fn put(pieces: &mut Pieces, memory: &GuestMemoryMmap, bytes: &[u8]) -> Result<(), BrokenChain> {
    copy_in(&mut pieces.writable, memory, bytes).map_err(|_| BrokenChain)
}

/// Copies the driver's frame to `buffer` and checks it; `None` if the host must not get it.
fn take_frame<'a>(
    pieces: &mut Pieces,
    memory: &GuestMemoryMmap,
    buffer: &'a mut [u8],
    mtu: u16,
    agreed: Agreed,
) -> Option<&'a [u8]> {
    let bytes = usize::try_from(total(&pieces.readable)).ok()?;
    let taken = buffer.get_mut(..bytes)?;
    copy_out(&mut pieces.readable, memory, taken).ok()?;
    let (header, frame) = taken.split_first_chunk_mut::<HEADER_BYTES>()?;
    let checked = FrameHeader::decode(*header).checked_for_host(frame.len(), mtu, agreed)?;
    *header = checked.encode();
    Some(taken)
}

/// Whether the error means that there is nothing at the moment.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn identity(mac: MacAddress, mtu: u16) -> Identity {
    // struct virtio_net_config: mac, status, max_virtqueue_pairs, mtu; status and pairs belong to features not offered.
    let mut config = mac.bytes().to_vec();
    config.extend([0; 4]);
    config.extend(mtu.to_le_bytes());
    Identity {
        device_id: VIRTIO_ID_NET,
        features: FEATURES
            .into_iter()
            .fold(0, |features, feature| features | 1 << feature),
        config,
        queues: QUEUES,
    }
}

#[cfg(test)]
mod tests;
