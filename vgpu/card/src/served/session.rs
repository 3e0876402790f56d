//! The requests of one client to the card, a turn at a time.
//!
//! All accesses of a turn that follow each other are done under one lock of the card, in order; replies go out when it is
//! free again, and so does the trace. Posted writes are cheap that way: a turn of 32 messages costs one lock, one look at
//! the clock, one look at the interrupt.

use std::fmt;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec::Drain;

use broker::MapOwner;
use fermi_model::FermiModel;
use fermi_spec::bar::Bar;
use vfio_user_server::{
    BatchedWrite, Client, CloseReason, DmaMap, Errno, Incoming, IrqChange, IrqEvent, Reaper, Region,
    RequestId,
};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::memory::ClientMemory;
use super::pins::Unmasker;
use super::server::{GpuError, ServedCard};
use super::trace::{Deed, Record, Trace};
use super::traffic::{Target, Traffic};
use crate::maps::{DmaMaps, Stray};

/// An answer that waits for the lock to be free.
enum Answer {
    Read(Vec<u8>),
    Done,
}

/// Records of accesses.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) traffic: Traffic,
    pub(super) trace: Option<Trace>,
    /// Accesses under way, for the trace.
    records: Vec<Record>,
}

impl Notes {
    pub(super) fn new(trace: Option<Trace>) -> Self {
        Self {
            trace,
            ..Self::default()
        }
    }

    fn note(&mut self, deed: Deed, region: Region, offset: u64, data: &[u8]) {
        let target = Target::of(region, offset);
        match deed {
            Deed::Read => self.traffic.count_read(target),
            Deed::Write | Deed::Post => self.traffic.count_write(target),
        }
        if self.trace.is_some() {
            self.records.push(Record::new(deed, region, offset, data));
        }
    }

    fn write_records(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.accesses(&self.records);
            self.records.clear();
        }
    }

    fn command(&mut self, what: fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.command(&what);
        }
    }
}

/// One attached client.
pub(super) struct Session {
    pub(super) client: Client,
    memory: ClientMemory,
    maps: Arc<DmaMaps>,
    /// The client writes it when INTx is to be let through again.
    pub(super) unmask: Option<IrqEvent>,
    incoming: Vec<Incoming>,
}

impl Session {
    pub(super) fn new(client: Client, maps: Arc<DmaMaps>, reaper: Reaper) -> Result<Self, GpuError> {
        // No thread waits for it: every turn looks at the memory itself.
        let torn = Arc::new(EventFd::new(EFD_NONBLOCK).map_err(GpuError::Event)?);
        Ok(Self {
            client,
            memory: ClientMemory::new(maps.clone(), MapOwner::new(torn, reaper)),
            maps,
            unmask: None,
            incoming: Vec::new(),
        })
    }

    /// Performs the requests that have arrived. `Some` once the client is gone.
    pub(super) fn turn(&mut self, card: &ServedCard, notes: &mut Notes) -> Result<Option<Left>, GpuError> {
        self.take_unmask(card)?;
        self.client.write_ready();
        let mut incoming = std::mem::take(&mut self.incoming);
        self.client.read_ready(&mut incoming);
        notes.traffic.turns += u64::from(!incoming.is_empty());
        let left = self.perform(card, notes, incoming.drain(..).peekable())?;
        self.incoming = incoming;
        for Stray { at, data } in self.maps.take_strays() {
            notes.command(format_args!(
                "dma to {at}, which nothing maps: {} bytes",
                data.len()
            ));
            notes.traffic.strays += 1;
            self.client.store_upstream(at.0, &data);
        }
        // Asked last: any request of this turn may have touched the memory.
        if left.is_none() && self.memory.is_torn() {
            return Ok(Some(Left::TookMemoryAway));
        }
        Ok(left)
    }

    fn take_unmask(&mut self, card: &ServedCard) -> Result<(), GpuError> {
        if let Some(event) = &self.unmask {
            match event.take() {
                Ok(false) => {}
                Ok(true) => card.running.access(|_, front| front.pins.unmask())?,
                Err(_) => self.unmask = None,
            }
        }
        Ok(())
    }

    fn perform(
        &mut self,
        card: &ServedCard,
        notes: &mut Notes,
        mut queue: Peekable<Drain<'_, Incoming>>,
    ) -> Result<Option<Left>, GpuError> {
        while let Some(next) = queue.peek() {
            if is_access(next) {
                let answers = card.running.access(|model, _| {
                    let reached = &mut (!card.is_dead()).then_some(model);
                    let mut answers = Vec::new();
                    while let Some(access) = queue.next_if(is_access) {
                        answers.extend(perform_access(reached, notes, access));
                    }
                    answers
                })?;
                notes.write_records();
                for (request, answer) in answers {
                    let sent = match answer {
                        Answer::Read(data) => self.client.reply_read(request, &data),
                        Answer::Done => self.client.reply_done(request),
                    };
                    sent.expect(ANSWERED_ONCE);
                }
            } else if let Some(other) = queue.next()
                && let Some(left) = self.perform_other(card, notes, other)?
            {
                return Ok(Some(left));
            }
        }
        Ok(None)
    }

    fn perform_other(
        &mut self,
        card: &ServedCard,
        notes: &mut Notes,
        incoming: Incoming,
    ) -> Result<Option<Left>, GpuError> {
        let (request, done) = match incoming {
            Incoming::DmaMap { request, map } => {
                notes.traffic.dma_changes += 1;
                let (iova, bytes) = (map.iova, map.bytes);
                notes.command(format_args!("dma map {iova:#x} {bytes:#x}, {}", rights(&map)));
                (request, self.memory.insert(&map))
            }
            Incoming::DmaUnmap { request, maps } => {
                notes.traffic.dma_changes += 1;
                for map in &maps {
                    notes.command(format_args!("dma unmap {:#x} {:#x}", map.iova, map.bytes));
                }
                card.running
                    .access(|_, _| maps.iter().for_each(|map| ClientMemory::remove(&self.maps, map)))?;
                (request, Ok(()))
            }
            Incoming::Irq { request, change } => {
                notes.traffic.others += 1;
                notes.command(format_args!("interrupts {change:?}"));
                (request, self.change_irqs(card, change)?)
            }
            Incoming::Reset { request } => {
                notes.traffic.others += 1;
                notes.command(format_args!("reset"));
                card.power_on()?;
                self.unmask = None;
                (request, Ok(()))
            }
            Incoming::Closed(reason) => {
                notes.command(format_args!("closed: {reason}"));
                return Ok(Some(Left::Closed(reason)));
            }
            // Done before.
            Incoming::RegionRead { .. }
            | Incoming::RegionWrite { .. }
            | Incoming::RegionWriteMulti { .. } => return Ok(None),
        };
        let sent = match done {
            Ok(()) => self.client.reply_done(request),
            Err(error) => self.client.reply_error(request, error),
        };
        sent.expect(ANSWERED_ONCE);
        Ok(None)
    }

    fn change_irqs(&mut self, card: &ServedCard, change: IrqChange) -> Result<Result<(), Errno>, GpuError> {
        let changed = card.running.access(|_, front| front.pins.change(change))?;
        Ok(changed.map(|unmasker| match unmasker {
            Unmasker::Unchanged => {}
            Unmasker::Gone => self.unmask = None,
            Unmasker::New(event) => self.unmask = Some(event),
        }))
    }
}

const ANSWERED_ONCE: &str = "each request is answered once, in its kind and length, within its turn";

/// Why a session ended.
#[derive(Debug)]
pub(super) enum Left {
    /// The connection has ended.
    Closed(CloseReason),
    /// The client cut a file behind a DMA map: the card no longer reads the client's data there.
    TookMemoryAway,
}

fn is_access(incoming: &Incoming) -> bool {
    matches!(
        incoming,
        Incoming::RegionRead { .. } | Incoming::RegionWrite { .. } | Incoming::RegionWriteMulti { .. }
    )
}

fn rights(map: &DmaMap) -> &'static str {
    match (map.file.is_some(), map.is_writeable) {
        (true, true) => "read-write",
        (true, false) => "read-only",
        (false, _) => "out of reach",
    }
}

/// `None` stands for a card without any effect of accesses.
type Reached<'a> = Option<&'a mut FermiModel>;

fn perform_access(
    card: &mut Reached<'_>,
    notes: &mut Notes,
    incoming: Incoming,
) -> Option<(RequestId, Answer)> {
    match incoming {
        Incoming::RegionRead {
            request,
            region,
            offset,
            count,
        } => {
            let mut data = vec![0; count as usize];
            read(card, region, offset, &mut data);
            notes.traffic.reads += 1;
            notes.note(Deed::Read, region, offset, &data);
            Some((request, Answer::Read(data)))
        }
        Incoming::RegionWrite {
            request,
            region,
            offset,
            data,
            is_posted,
        } => {
            write(card, region, offset, &data);
            let deed = if is_posted { Deed::Post } else { Deed::Write };
            notes.traffic.posted_writes += u64::from(is_posted);
            notes.traffic.waited_writes += u64::from(!is_posted);
            notes.note(deed, region, offset, &data);
            Some((request, Answer::Done))
        }
        Incoming::RegionWriteMulti { request, writes, .. } => {
            notes.traffic.batches += 1;
            for BatchedWrite { region, write: one } in writes {
                write(card, region, one.offset, one.data());
                notes.note(Deed::Post, region, one.offset, one.data());
            }
            Some((request, Answer::Done))
        }
        _ => None,
    }
}

fn read(card: &mut Reached<'_>, region: Region, offset: u64, data: &mut [u8]) {
    let Some(model) = card else {
        return data.fill(0xff);
    };
    match Bar::from_number(region as u32) {
        Some(bar) => model.bar_read(bar, offset, data),
        // The only other region there is.
        None => model.config_read(offset, data),
    }
}

fn write(card: &mut Reached<'_>, region: Region, offset: u64, data: &[u8]) {
    let Some(model) = card else { return };
    match Bar::from_number(region as u32) {
        Some(bar) => model.bar_write(bar, offset, data),
        None => model.config_write(offset, data),
    }
}
