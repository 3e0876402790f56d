//! One attached client: its requests become the core's events, and the core's replies its answers.
//!
//! A request of the protocol becomes one or more *pieces*, each an access that the core takes in one event; it is
//! answered when all its pieces are. Pieces are issued in the order in which the client's messages came.

use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use fermi_spec::regs::pieces::runs;
use vfio_user_server::dma::DmaMap;
use vfio_user_server::error::{CloseReason, ReplyError};
use vfio_user_server::function::Region;
use vfio_user_server::irq::{IrqAction, IrqChange, IrqIndex, IrqOperation};
use vfio_user_server::{BatchedWrite, Client, Errno, Incoming, Pending, RequestId as ClientRequest};
use vgpu::{ACCESS_BYTES_MAX, REQUESTS_WAITING_MAX, Refusal, Reply, Request, RequestId};
use vmm_sys_util::epoll::EventSet;

use crate::broker::Shared;
use crate::image::WindowFile;
use crate::mapping::MapError;
use crate::memory::{ClientFiles, RamMap};
use crate::ratelimit::RateLimit;
use crate::sigbus::MapOwner;
use crate::signaller::{Signalled, Signaller};
use crate::vms::Attachment;

mod client_event;
mod doorbells;
mod intx;

use client_event::ClientEvent;

/// Form of the answer when all pieces are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Data,
    Done,
}

/// The part of a client's request that a piece is.
#[derive(Debug)]
enum Piece {
    /// The whole request.
    Whole(ClientRequest, Answer),
    /// These bytes of the answer.
    Part(ClientRequest, Range<usize>),
    /// An unmask by an eventfd, which nobody waits for.
    Unmask,
}

/// A client's request that waits for several pieces.
#[derive(Debug)]
struct Gather {
    answer: Answer,
    data: Vec<u8>,
    remaining: usize,
    refusal: Option<Refusal>,
}

/// The session of one client.
#[derive(Debug)]
pub(crate) struct Session {
    client: Box<Client>,
    shared: Arc<Shared>,
    attachment: Attachment,
    signaller: Arc<Signaller>,
    owner: MapOwner,
    /// The file behind BAR1, BAR3 and PRAMIN, until the client was given it.
    windows: Option<WindowFile>,
    /// The vGPU exists; before, the client's requests are not read.
    is_attached: bool,
    gathers: Pending<ClientRequest, Gather>,
    /// Parts by the core's request id.
    pieces: Pending<RequestId, Piece>,
    /// Requests of a turn; empty between turns.
    incoming: Vec<Incoming>,
    files: ClientFiles,
    limit: RateLimit,
    /// Signalled by the client when a store to doorbells has trapped.
    doorbells: ClientEvent,
    /// Signalled by the client when its INTx is unmasked.
    unmask: ClientEvent,
}

/// What a client tells by an eventfd of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tells {
    /// A store to doorbells has trapped.
    Stored,
    /// Its INTx is unmasked.
    Unmask,
}

impl Tells {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Stored, Self::Unmask];
}

impl Session {
    pub(crate) fn new(
        client: Box<Client>,
        shared: Arc<Shared>,
        attachment: Attachment,
        signaller: Arc<Signaller>,
        owner: MapOwner,
        windows: Option<WindowFile>,
    ) -> Self {
        Self {
            client,
            shared,
            attachment,
            signaller,
            owner,
            windows,
            is_attached: false,
            gathers: Pending::default(),
            pieces: Pending::default(),
            incoming: Vec::new(),
            files: ClientFiles::default(),
            limit: RateLimit::new(Instant::now()),
            doorbells: ClientEvent::default(),
            unmask: ClientEvent::default(),
        }
    }

    pub(crate) fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// The vGPU exists: the client's requests are read from now on.
    pub(crate) fn attached(&mut self) {
        self.is_attached = true;
    }

    /// Events to poll the socket for; `None` for none.
    pub(crate) fn interest(&self) -> Option<(RawFd, EventSet)> {
        let mut events = EventSet::empty();
        events.set(EventSet::IN, self.client.wants_read());
        events.set(EventSet::OUT, self.client.wants_write());
        self.is_attached.then(|| (self.client.as_raw_fd(), events))
    }

    /// Events to poll the client's eventfd for; `None` for none.
    pub(crate) fn event_interest(&self, tells: Tells) -> Option<(RawFd, EventSet)> {
        let event = match tells {
            Tells::Stored => self.doorbells.interest(),
            Tells::Unmask => self.unmask.interest().filter(|_| self.has_room()),
        };
        event.filter(|_| self.is_attached)
    }

    /// Whether the core has room for one more request: no more of them wait there than have not been answered.
    fn has_room(&self) -> bool {
        self.pieces.len() < REQUESTS_WAITING_MAX
    }

    /// The client's eventfd is ready.
    pub(crate) fn event_ready(&mut self, tells: Tells) {
        match tells {
            Tells::Stored => self.doorbell_stored(),
            Tells::Unmask => self.unmasked(),
        }
    }

    /// Closes eventfds that the event loop no longer polls.
    pub(crate) fn drop_replaced(&mut self) {
        self.doorbells.drop_replaced();
        self.unmask.drop_replaced();
    }

    /// Serves a socket that is ready. Returns why the client is gone, if it is.
    pub(crate) fn ready(&mut self, events: EventSet) -> Option<CloseReason> {
        if events.contains(EventSet::OUT) {
            self.client.write_ready();
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        self.client.read_ready(&mut incoming);
        let mut closed = None;
        for request in incoming.drain(..) {
            match request {
                // The last one.
                Incoming::Closed(reason) => closed = Some(reason),
                request => self.take(request),
            }
        }
        self.incoming = incoming;
        self.files.forget_unused();
        self.let_windows();
        self.tell_of_refused_map();
        closed
    }

    /// The client was given the file behind its windows in this turn: from now on what they show lives there.
    fn let_windows(&mut self) {
        if self.client.has_region_memory()
            && let Some(file) = self.windows.take()
            && let Ok(mut performer) = self.shared.lock()
        {
            performer.let_windows(self.attachment, file, &self.owner);
        }
    }

    /// A VMM tells its guest nothing of a map that it was refused: the guest's copies fail later, and nobody knows why.
    fn tell_of_refused_map(&mut self) {
        if let Some(error) = self.client.take_refused_map()
            && let Some(suppressed) = self.limit.pass(Instant::now())
        {
            log::warn!(suppressed; "a client's DMA map is refused: {error}; the GPU will not reach that memory");
        }
    }

    /// Takes the turn that no poll announces, if there is one. Returns why the client is gone, if it is.
    pub(crate) fn due(&mut self) -> Option<CloseReason> {
        if self.client.is_due() {
            self.ready(EventSet::empty())
        } else {
            None
        }
    }

    fn take(&mut self, incoming: Incoming) {
        let result = match incoming {
            Incoming::RegionRead {
                request,
                region,
                offset,
                count,
            } => self.region_read(request, region, offset, count),
            Incoming::RegionWrite {
                request,
                region,
                offset,
                data,
                ..
            } => self.region_write(request, region, offset, data),
            Incoming::RegionWriteMulti { request, writes, .. } => self.region_write_multi(request, &writes),
            Incoming::DmaMap { request, map } => self.dma_map(request, &map),
            Incoming::DmaUnmap { request, maps } => self.dma_unmap(request, &maps),
            Incoming::Irq { request, change } => self.change_irqs(request, change),
            Incoming::Reset { request } => self.gather(request, Answer::Done, 0, [(Request::Reset, 0..0)]),
            Incoming::Closed(_) => Ok(()),
        };
        tell_mistake(result);
    }

    fn region_read(
        &mut self,
        request: ClientRequest,
        region: Region,
        offset: u64,
        count: u32,
    ) -> Result<(), ReplyError> {
        if region == Region::DeviceSpecific {
            return self.read_doorbells(request, offset, count);
        }
        let bytes = count as usize;
        let pieces = runs(offset, bytes, ACCESS_BYTES_MAX).map(|(offset, range)| {
            let bytes = range.len() as u32;
            let piece = match Bar::from_number(region as u32) {
                Some(bar) => Request::Read { bar, offset, bytes },
                // The only other region of PCI that has bytes.
                None => Request::ReadConfig { offset, bytes },
            };
            (piece, range)
        });
        self.gather(request, Answer::Data, bytes, pieces)
    }

    fn region_write(
        &mut self,
        request: ClientRequest,
        region: Region,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<(), ReplyError> {
        if region == Region::DeviceSpecific {
            return self.arm_doorbells(request, offset, &data);
        }
        let pieces = runs(offset, data.len(), ACCESS_BYTES_MAX).map(|(offset, range)| {
            let data = data.get(range).unwrap_or_default().to_vec();
            (store(region, offset, data), 0..0)
        });
        self.gather(request, Answer::Done, 0, pieces)
    }

    fn region_write_multi(
        &mut self,
        request: ClientRequest,
        writes: &[BatchedWrite],
    ) -> Result<(), ReplyError> {
        // Whoever arms has to wait for the answer.
        if writes.iter().any(|write| write.region == Region::DeviceSpecific) {
            return self.client.reply_error(request, Errno::INVAL);
        }
        let store = |BatchedWrite { region, write }: &BatchedWrite| {
            (store(*region, write.offset, write.data().to_vec()), 0..0)
        };
        self.gather(request, Answer::Done, 0, writes.iter().map(store))
    }

    fn dma_map(&mut self, request: ClientRequest, map: &DmaMap) -> Result<(), ReplyError> {
        // Memory without a file (BARs of other devices, ROMs) exists and cannot be reached.
        let Some(file) = &map.file else {
            return self.client.reply_done(request);
        };
        let mapped = self.files.map(file, map.bytes, map.is_writeable, &self.owner);
        let mapped = mapped.and_then(|mapped| RamMap::new(mapped, file.offset, map.bytes, map.is_writeable));
        match mapped {
            Ok(mapped) => {
                let id = self.issue(Piece::Whole(request, Answer::Done));
                // A broker that has ended has informed the port.
                if let Ok(mut performer) = self.shared.lock() {
                    performer.map_ram(self.attachment, id, Gpa(map.iova), mapped);
                }
                Ok(())
            }
            Err(error) => {
                if let Some(suppressed) = self.limit.pass(Instant::now()) {
                    log::warn!(suppressed; "a client's DMA map of {:#x} bytes is refused: {error}", map.bytes);
                }
                self.client.reply_error(
                    request,
                    match error {
                        MapError::TooManyMaps | MapError::TooManyBytes => Errno::NOSPC,
                        _ => Errno::NOMEM,
                    },
                )
            }
        }
    }

    fn dma_unmap(&mut self, request: ClientRequest, maps: &[Arc<DmaMap>]) -> Result<(), ReplyError> {
        let unmap = |map: &Arc<DmaMap>| Request::UnmapRam {
            gpa: Gpa(map.iova),
            bytes: map.bytes,
        };
        let pieces: Vec<_> = maps
            .iter()
            .filter(|map| map.file.is_some())
            .map(|map| (unmap(map), 0..0))
            .collect();
        self.gather(request, Answer::Done, 0, pieces)
    }

    fn change_irqs(&mut self, request: ClientRequest, change: IrqChange) -> Result<(), ReplyError> {
        // The function has one INTx, one MSI and one of its own, so no other vector gets here.
        let is_done = match change {
            IrqChange::DisableAll {
                index: IrqIndex::DeviceSpecific,
            } => {
                self.disconnect_doorbells();
                true
            }
            IrqChange::Vectors {
                index: IrqIndex::DeviceSpecific,
                action,
                operation,
                ..
            } => self.connect_doorbells(action, operation),
            IrqChange::DisableAll {
                index: IrqIndex::Intx,
            } => return self.change_intx(request, IrqAction::Trigger, IrqOperation::Disconnect),
            IrqChange::Vectors {
                index: IrqIndex::Intx,
                action,
                operation,
                ..
            } => return self.change_intx(request, action, operation),
            IrqChange::DisableAll { index: IrqIndex::Msi } => {
                self.signaller.connect(Signalled::Msi, None);
                true
            }
            IrqChange::DisableAll { .. } => true,
            IrqChange::Vectors {
                action: IrqAction::Trigger,
                operation,
                ..
            } => {
                let (msi, signaller) = (Signalled::Msi, &self.signaller);
                match operation {
                    IrqOperation::Connect(events) => signaller.connect(msi, events.into_iter().next()),
                    IrqOperation::Disconnect => signaller.connect(msi, None),
                    IrqOperation::Apply => signaller.raise(msi),
                    IrqOperation::ApplyWhere(chosen) => {
                        if chosen.first() == Some(&true) {
                            signaller.raise(msi);
                        }
                    }
                }
                true
            }
            // This MSI has no mask.
            IrqChange::Vectors { .. } => false,
        };
        if is_done {
            self.client.reply_done(request)
        } else {
            self.client.reply_error(request, Errno::INVAL)
        }
    }

    /// Issues the pieces of a request, in order. Without any it is done.
    fn gather(
        &mut self,
        request: ClientRequest,
        answer: Answer,
        bytes: usize,
        pieces: impl IntoIterator<Item = (Request, Range<usize>), IntoIter: ExactSizeIterator>,
    ) -> Result<(), ReplyError> {
        let pieces = pieces.into_iter();
        let count = pieces.len();
        match count {
            0 => return self.client.reply_done(request),
            1 => {}
            remaining => {
                let gather = Gather {
                    answer,
                    data: vec![0xff; bytes],
                    remaining,
                    refusal: None,
                };
                self.gathers.insert(request, gather);
            }
        }
        for (piece, range) in pieces {
            let id = self.issue(match count {
                1 => Piece::Whole(request, answer),
                _ => Piece::Part(request, range),
            });
            // A broker that has ended has informed the port.
            if let Ok(mut performer) = self.shared.lock() {
                performer.request(self.attachment, id, piece);
            }
        }
        Ok(())
    }

    /// Numbers a piece; its answer comes with this id.
    fn issue(&mut self, piece: Piece) -> RequestId {
        let id = self.shared.next_request();
        self.pieces.insert(id, piece);
        id
    }

    /// Takes the core's answer to a piece.
    pub(crate) fn reply(&mut self, id: RequestId, reply: Reply) {
        let (request, range) = match self.pieces.remove(id) {
            Some(Piece::Whole(request, answer)) => {
                let answered = match reply {
                    Reply::Data(data) => self.answer(request, answer, None, &data),
                    Reply::Done => self.answer(request, answer, None, &[]),
                    Reply::Refused(refusal) => self.answer(request, answer, Some(refusal), &[]),
                };
                return tell_mistake(answered);
            }
            Some(Piece::Part(request, range)) => (request, range),
            Some(Piece::Unmask) => return self.unmask.wait(),
            None => return,
        };
        let Some(gather) = self.gathers.get_mut(request) else {
            return;
        };
        gather.remaining -= 1;
        match reply {
            Reply::Data(data) => {
                let part = gather.data.get_mut(range).unwrap_or_default();
                part.iter_mut().zip(data).for_each(|(to, from)| *to = from);
            }
            Reply::Done => {}
            Reply::Refused(refusal) => gather.refusal = Some(refusal),
        }
        if gather.remaining > 0 {
            return;
        }
        if let Some(gather) = self.gathers.remove(request) {
            tell_mistake(self.answer(request, gather.answer, gather.refusal, &gather.data));
        }
    }

    fn answer(
        &mut self,
        request: ClientRequest,
        answer: Answer,
        refusal: Option<Refusal>,
        data: &[u8],
    ) -> Result<(), ReplyError> {
        let client = &mut self.client;
        match (refusal, answer) {
            (Some(refusal), _) => client.reply_error(request, errno_of(refusal)),
            (None, Answer::Data) => client.reply_read(request, data),
            (None, Answer::Done) => client.reply_done(request),
        }
    }
}

/// A client's store. The only region of PCI with bytes besides the BARs is the configuration space.
fn store(region: Region, offset: u64, data: Vec<u8>) -> Request {
    match Bar::from_number(region as u32) {
        Some(bar) => Request::Write { bar, offset, data },
        None => Request::WriteConfig { offset, data },
    }
}

fn errno_of(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NotAttached => Errno::NODEV,
        Refusal::BadRange => Errno::INVAL,
        Refusal::TooManyMaps => Errno::NOSPC,
        Refusal::TooMuchRam => Errno::NOMEM,
        Refusal::NoSuchMap => Errno::NOENT,
        Refusal::TooManyWaiting => Errno::BUSY,
    }
}

/// An answer that did not fit is a mistake of this program and costs that client its answer.
fn tell_mistake(result: Result<(), ReplyError>) {
    if let Err(error) = result {
        log::error!("an answer to a client was lost: {error}");
    }
}
