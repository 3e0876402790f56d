//! Drives a [`PciFunction`], which answers at once: for toy devices, tests, and servers of one client.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Errno;
use crate::bounds::REQUESTS_PER_TURN;
use crate::client::{Client, Incoming, RequestId};
use crate::error::{CloseReason, ReplyError};
use crate::function::{FunctionInfo, PciFunction};
use crate::irq::{IrqChange, IrqIndex};
use crate::listener::{Accepted, Listener};

/// Time between two looks where no event tells that there is room again.
const LOOK_PERIOD: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

impl Client {
    /// Takes what has arrived and lets `function` answer it. To be called as [`Client::read_ready`] is.
    ///
    /// Returns why the client is gone, once it is.
    pub fn serve(&mut self, function: &mut dyn PciFunction) -> Option<CloseReason> {
        self.write_ready();
        let mut incoming = Vec::with_capacity(REQUESTS_PER_TURN);
        self.read_ready(&mut incoming);
        for request in incoming {
            if let Incoming::Closed(reason) = request {
                leave(self, function);
                return Some(reason);
            }
            perform(self, function, request)
                .expect("each request is answered once, in its kind and length, within its turn");
        }
        None
    }
}

fn perform(
    client: &mut Client,
    function: &mut dyn PciFunction,
    incoming: Incoming,
) -> Result<(), ReplyError> {
    match incoming {
        Incoming::RegionRead {
            request,
            region,
            offset,
            count,
        } => {
            let mut data = vec![0; count as usize];
            match function.read(region, offset, &mut data) {
                Ok(()) => client.reply_read(request, &data)?,
                Err(error) => client.reply_error(request, error)?,
            }
        }
        Incoming::RegionWrite {
            request,
            region,
            offset,
            data,
            ..
        } => {
            answer(client, request, function.write(region, offset, &data))?;
        }
        Incoming::RegionWriteMulti { request, writes, .. } => {
            let done = writes
                .iter()
                .try_for_each(|one| function.write(one.region, one.write.offset, one.write.data()));
            answer(client, request, done)?;
        }
        Incoming::DmaMap { request, map } => answer(client, request, function.dma_map(&map))?,
        Incoming::DmaUnmap { request, maps } => {
            maps.iter().for_each(|map| function.dma_unmap(map));
            answer(client, request, Ok(()))?;
        }
        Incoming::Irq { request, change } => answer(client, request, function.change_irqs(change))?,
        Incoming::Reset { request } => answer(client, request, function.reset())?,
        // The caller handles the end of a client.
        Incoming::Closed(_) => {}
    }
    Ok(())
}

/// Takes back everything that belonged to the client. The function's own state stays, as the specification demands.
fn leave(client: &Client, function: &mut dyn PciFunction) {
    for index in IrqIndex::ALL {
        // If a function cannot turn interrupts off, there is nobody left to report it to.
        let _ = function.change_irqs(IrqChange::DisableAll { index });
    }
    client.dma().iter().for_each(|map| function.dma_unmap(map));
}

fn answer(client: &mut Client, request: RequestId, done: Result<(), Errno>) -> Result<(), ReplyError> {
    match done {
        Ok(()) => client.reply_done(request),
        Err(error) => client.reply_error(request, error),
    }
}

/// Serves one client until it is gone. This call waits, so it wants a thread of its own.
pub fn serve_client(mut client: Client, function: &mut dyn PciFunction) -> io::Result<CloseReason> {
    loop {
        if let Some(reason) = client.serve(function) {
            return Ok(reason);
        }
        if client.is_due() {
            continue;
        }
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, client.wants_read());
        interest.set(PollFlags::OUT, client.wants_write());
        // A client that is held back because its descriptors are being closed is looked at again by time.
        let is_held_back = interest.is_empty();
        wait_for(&client, interest, is_held_back.then_some(LOOK_PERIOD))?;
    }
}

/// Serves one client after the other, for ever or until a socket fails.
///
/// The function keeps its state from one client to the next; maps and eventfds end with their client.
pub fn serve_listener(
    listener: &mut Listener,
    info: &FunctionInfo,
    function: &mut dyn PciFunction,
) -> io::Result<()> {
    loop {
        match listener.has_room() {
            true => wait_for(&listener, PollFlags::IN, None)?,
            // The last client's descriptors are being closed.
            false => wait_for(&listener, PollFlags::empty(), Some(LOOK_PERIOD))?,
        }
        if let Some(Accepted::Client(client)) = listener.accept(info)? {
            serve_client(*client, function)?;
        }
    }
}

fn wait_for(file: &impl AsFd, interest: PollFlags, at_most: Option<Timespec>) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(file, interest)], at_most.as_ref()) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}
