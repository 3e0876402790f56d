//! One attached client: its requests become the core's events, and the core's replies its answers.
//!
//! A request of the protocol becomes one or more *pieces*, each an access that the core takes in one event; it is
//! answered when all its pieces are. Pieces are issued in the order in which the client's messages came.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

use fermi_spec::addr::Gpa;
use vfio_user_server::dma::{DmaFile, DmaMap};
use vfio_user_server::error::{CloseReason, ReplyError};
use vfio_user_server::function::Region;
use vfio_user_server::irq::{IrqAction, IrqChange, IrqIndex, IrqOperation};
use vfio_user_server::pci::ConfigSpace;
use vfio_user_server::{BatchedWrite, Client, Errno, Incoming, RequestId as ClientRequest};
use vgpu::{ACCESS_BYTES_MAX, Bar, Refusal, Reply, RequestId};
use vmm_sys_util::epoll::EventSet;

use crate::broker::Shared;
use crate::config_space::can_interrupt;
use crate::mapping::MapError;
use crate::memory::RamMap;
use crate::ratelimit::RateLimit;
use crate::requests::Request;
use crate::signaller::Signaller;
use crate::vms::Attachment;

/// What the client is answered when all pieces are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Data,
    Done,
    Reset,
}

/// A client's request that waits for its pieces.
#[derive(Debug)]
struct Gather {
    answer: Answer,
    data: Vec<u8>,
    remaining: usize,
    refusal: Option<Refusal>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    client: Box<Client>,
    shared: Arc<Shared>,
    attachment: Attachment,
    signaller: Arc<Signaller>,
    config: ConfigSpace,
    /// The vGPU exists; before, the client is not heard.
    is_attached: bool,
    gathers: BTreeMap<ClientRequest, Gather>,
    /// By the core's request: whose piece it is, and which bytes of the answer.
    pieces: BTreeMap<RequestId, (ClientRequest, Range<usize>)>,
    /// Descriptors of the client as files for mapping, each duplicated once however many maps it has.
    files: Vec<(Weak<OwnedFd>, Weak<File>)>,
    limit: RateLimit,
}

impl Session {
    pub(crate) fn new(
        client: Box<Client>,
        shared: Arc<Shared>,
        attachment: Attachment,
        signaller: Arc<Signaller>,
    ) -> Self {
        let config = shared.config_space.clone();
        Self {
            client,
            shared,
            attachment,
            signaller,
            config,
            is_attached: false,
            gathers: BTreeMap::new(),
            pieces: BTreeMap::new(),
            files: Vec::new(),
            limit: RateLimit::new(Instant::now()),
        }
    }

    pub(crate) fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// The vGPU exists: the client is heard from now on.
    pub(crate) fn attached(&mut self) {
        self.is_attached = true;
    }

    /// What to poll the socket for; `None` for not at all.
    pub(crate) fn interest(&self) -> Option<(RawFd, EventSet)> {
        let mut events = EventSet::empty();
        events.set(EventSet::IN, self.client.wants_read());
        events.set(EventSet::OUT, self.client.wants_write());
        self.is_attached.then(|| (self.client.as_raw_fd(), events))
    }

    /// The socket is ready for something. Why the client is gone, if it is.
    pub(crate) fn ready(&mut self, events: EventSet) -> Option<CloseReason> {
        if events.contains(EventSet::OUT) {
            self.client.write_ready();
        }
        let mut incoming = Vec::new();
        self.client.read_ready(&mut incoming);
        for request in incoming {
            if let Incoming::Closed(reason) = request {
                return Some(reason);
            }
            self.take(request);
        }
        None
    }

    /// A reply could not be sent: why, once.
    pub(crate) fn failure(&mut self) -> Option<CloseReason> {
        if self.client.has_failed() {
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
            Incoming::Reset { request } => {
                self.gather(request, Answer::Reset, 0, vec![(Request::Reset, 0..0)])
            }
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
        let bytes = count as usize;
        let Some(bar) = bar_of(region) else {
            let mut data = vec![0xff; bytes];
            self.config.read(offset, &mut data);
            return self.client.reply_read(request, &data);
        };
        let pieces = pieces(offset, bytes)
            .map(|(offset, range)| {
                (
                    Request::Read {
                        bar,
                        offset,
                        bytes: range.len() as u32,
                    },
                    range,
                )
            })
            .collect();
        self.gather(request, Answer::Data, bytes, pieces)
    }

    fn region_write(
        &mut self,
        request: ClientRequest,
        region: Region,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<(), ReplyError> {
        let Some(bar) = bar_of(region) else {
            self.write_config(offset, &data);
            return self.client.reply_done(request);
        };
        let pieces = pieces(offset, data.len())
            .filter_map(|(offset, range)| {
                Some((
                    Request::Write {
                        bar,
                        offset,
                        data: data.get(range)?.to_vec(),
                    },
                    0..0,
                ))
            })
            .collect();
        self.gather(request, Answer::Done, 0, pieces)
    }

    fn region_write_multi(
        &mut self,
        request: ClientRequest,
        writes: &[BatchedWrite],
    ) -> Result<(), ReplyError> {
        let mut pieces = Vec::with_capacity(writes.len());
        for BatchedWrite { region, write } in writes {
            match bar_of(*region) {
                Some(bar) => {
                    let data = write.data().to_vec();
                    pieces.push((
                        Request::Write {
                            bar,
                            offset: write.offset,
                            data,
                        },
                        0..0,
                    ));
                }
                None => self.write_config(write.offset, write.data()),
            }
        }
        self.gather(request, Answer::Done, 0, pieces)
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let change = self.config.write(offset, data);
        if change.is_msi_changed || change.is_bus_master_changed {
            self.signaller.enable(can_interrupt(&self.config));
        }
    }

    fn dma_map(&mut self, request: ClientRequest, map: &DmaMap) -> Result<(), ReplyError> {
        // What the client keeps to itself (BARs of other devices, ROMs) exists and cannot be reached.
        let Some(file) = &map.file else {
            return self.client.reply_done(request);
        };
        let mapped = self.file_of(file).map_err(MapError::File).and_then(|mapped| {
            RamMap::new(
                mapped,
                file.offset,
                map.bytes,
                map.is_writeable,
                self.shared.torn.clone(),
            )
        });
        match mapped {
            Ok(mapped) => {
                let piece = Request::MapRam {
                    gpa: Gpa(map.iova),
                    map: mapped,
                };
                self.gather(request, Answer::Done, 0, vec![(piece, 0..0)])
            }
            Err(error) => {
                if let Some(suppressed) = self.limit.pass(Instant::now()) {
                    log::warn!(suppressed; "a client's DMA map of {:#x} bytes is refused: {error}", map.bytes);
                }
                self.client.reply_error(request, Errno::NOMEM)
            }
        }
    }

    fn dma_unmap(&mut self, request: ClientRequest, maps: &[Arc<DmaMap>]) -> Result<(), ReplyError> {
        let pieces = maps
            .iter()
            .filter(|map| map.file.is_some())
            .map(|map| {
                (
                    Request::UnmapRam {
                        gpa: Gpa(map.iova),
                        bytes: map.bytes,
                    },
                    0..0,
                )
            })
            .collect();
        self.gather(request, Answer::Done, 0, pieces)
    }

    fn file_of(&mut self, file: &DmaFile) -> std::io::Result<Arc<File>> {
        self.files.retain(|(_, mapped)| mapped.strong_count() > 0);
        let known = self
            .files
            .iter()
            .find(|(descriptor, _)| descriptor.as_ptr() == Arc::as_ptr(&file.descriptor));
        if let Some(mapped) = known.and_then(|(_, mapped)| mapped.upgrade()) {
            return Ok(mapped);
        }
        let mapped = Arc::new(File::from(file.descriptor.try_clone()?));
        self.files
            .push((Arc::downgrade(&file.descriptor), Arc::downgrade(&mapped)));
        Ok(mapped)
    }

    fn change_irqs(&mut self, request: ClientRequest, change: IrqChange) -> Result<(), ReplyError> {
        // The function has one MSI and nothing else, so no other vector gets here.
        let is_done = match change {
            IrqChange::DisableAll { index: IrqIndex::Msi } => {
                self.signaller.connect(None);
                true
            }
            IrqChange::DisableAll { .. } => true,
            IrqChange::Vectors {
                action: IrqAction::Trigger,
                operation,
                ..
            } => {
                match operation {
                    IrqOperation::Connect(events) => self.signaller.connect(events.into_iter().next()),
                    IrqOperation::Disconnect => self.signaller.connect(None),
                    IrqOperation::Apply => self.signaller.raise(),
                    IrqOperation::ApplyWhere(chosen) => {
                        if chosen.first() == Some(&true) {
                            self.signaller.raise();
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
        pieces: Vec<(Request, Range<usize>)>,
    ) -> Result<(), ReplyError> {
        if pieces.is_empty() {
            return self.client.reply_done(request);
        }
        let gather = Gather {
            answer,
            data: vec![0xff; bytes],
            remaining: pieces.len(),
            refusal: None,
        };
        self.gathers.insert(request, gather);
        for (piece, range) in pieces {
            let id = self.shared.next_request();
            self.pieces.insert(id, (request, range));
            // A broker that has ended has told the port so.
            if let Ok(mut performer) = self.shared.lock() {
                performer.request(self.attachment, id, piece);
            }
        }
        Ok(())
    }

    /// The core's answer to a piece.
    pub(crate) fn reply(&mut self, id: RequestId, reply: Reply) {
        let Some((request, range)) = self.pieces.remove(&id) else {
            return;
        };
        let Some(gather) = self.gathers.get_mut(&request) else {
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
        if let Some(gather) = self.gathers.remove(&request) {
            tell_mistake(self.answer(request, &gather));
        }
    }

    fn answer(&mut self, request: ClientRequest, gather: &Gather) -> Result<(), ReplyError> {
        let client = &mut self.client;
        match (gather.refusal, gather.answer) {
            (Some(refusal), _) => client.reply_error(request, errno_of(refusal)),
            (None, Answer::Data) => client.reply_read(request, &gather.data),
            (None, Answer::Done) => client.reply_done(request),
            (None, Answer::Reset) => {
                self.config.reset();
                self.signaller.enable(false);
                client.reply_done(request)
            }
        }
    }
}

/// Cuts an access into parts of at most [`ACCESS_BYTES_MAX`]: offset in the BAR, bytes of the whole. The protocol
/// server has checked that the whole lies inside the region.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    (0..bytes).step_by(ACCESS_BYTES_MAX).map(move |start| {
        (
            offset.wrapping_add(start as u64),
            start..bytes.min(start + ACCESS_BYTES_MAX),
        )
    })
}

/// `None` is the configuration space: no other region has bytes.
fn bar_of(region: Region) -> Option<Bar> {
    match region {
        Region::Bar0 => Some(Bar::Bar0),
        Region::Bar1 => Some(Bar::Bar1),
        Region::Bar3 => Some(Bar::Bar3),
        Region::Config | Region::Bar2 | Region::Bar4 | Region::Bar5 | Region::Rom | Region::Vga => None,
    }
}

fn errno_of(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NotAttached => Errno::NODEV,
        Refusal::BadRange => Errno::INVAL,
        Refusal::TooManyMaps => Errno::NOSPC,
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
