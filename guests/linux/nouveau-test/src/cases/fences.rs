//! Fences: that waits end when the GPU is done, neither before nor long after, and that interrupts end them.
//!
//! Work that is done at the first look needs no interrupt, so a card without interrupts passes most tests. Here a
//! channel is held up by a semaphore until the waiter sleeps; what wakes it can only be an interrupt.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use report::Outcome;

use super::gate::Gate;
use super::{Case, Nodes, quiet};
use crate::channel::{Channel, Ticket, reads, writes};
use crate::copy::{Copier, copy_range};
use crate::device::Device;
use crate::interrupts;
use crate::push::{Push, Unit};
use crate::uapi::domain;

pub(super) const CASES: &[Case] = &[
    quiet("fence-order", fence_order),
    quiet("fence-many", fence_many),
    quiet("fence-deferred", fence_deferred),
    quiet("fence-long-copy", fence_long_copy),
    quiet("fence-across-channels", fence_across_channels),
    quiet("interrupts-rest", interrupts_rest),
];

/// Time that a waiter gets to fall asleep.
const SETTLE: Duration = Duration::from_millis(40);
/// Longest time from the end of the work to the waiter's return, on a busy host. Without an interrupt the driver waits
/// 30 seconds and gives up.
const WAKE_MAX: Duration = Duration::from_secs(5);

/// A submission is busy until the gate opens, and those behind it on the channel as well.
fn fence_order(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf])?;
    let gate = Gate::new(&device)?;
    let mut push = Push::new();
    gate.hold(&mut push);
    let first = channel.submit(&push, &[reads(gate.object())])?;
    let second = channel.submit(Push::new().raw(0), &[])?;
    thread::sleep(SETTLE);
    ensure!(first.is_busy()?, "a channel ran past a closed gate");
    ensure!(second.is_busy()?, "a submission ran past the one before it");
    gate.open();
    second.wait()?;
    ensure!(!first.is_busy()?, "the second submission ended before the first");
    Ok(Outcome::Passed)
}

/// Hundreds of fences outstanding on several channels; they end in order once the gate opens.
fn fence_many(nodes: &Nodes) -> Result<Outcome> {
    const CHANNELS: usize = 4;
    const EACH: u32 = 100;
    let device = Device::open(&nodes.render)?;
    let gate = Gate::new(&device)?;
    let log = device.gart(4096)?;
    let channels = (0..CHANNELS)
        .map(|_| Channel::new(&device))
        .collect::<Result<Vec<_>>>()?;
    let mut tickets: Vec<Vec<Ticket>> = Vec::new();
    for (index, channel) in channels.iter().enumerate() {
        let mut push = Push::new();
        gate.hold(&mut push);
        let mut own = vec![channel.submit(&push, &[reads(gate.object())])?];
        for round in 0..EACH {
            let mut push = Push::new();
            push.release(log.address() + index as u64 * 16, round + 1);
            own.push(channel.submit(&push, &[reads(&log)])?);
        }
        tickets.push(own);
    }
    for own in &tickets {
        let busy = own.iter().map(Ticket::is_busy).collect::<Result<Vec<_>>>()?;
        ensure!(busy.iter().all(|busy| *busy), "something ran past a closed gate");
    }
    gate.open();
    for (index, own) in tickets.iter().enumerate() {
        for (round, ticket) in own.iter().enumerate() {
            ticket.wait()?;
            let seen = log.memory().read(index * 16);
            ensure!(
                seen >= round as u32,
                "channel {index} was at {seen} when fence {round} ended"
            );
        }
    }
    Ok(Outcome::Passed)
}

/// Waits in another thread; the time at which the wait ended comes back.
fn wait_apart(ticket: &Ticket) -> mpsc::Receiver<Result<Instant>> {
    let (sender, receiver) = mpsc::channel();
    let ticket = ticket.clone();
    thread::spawn(move || {
        let result = ticket.wait();
        // The receiver is gone if the test has failed meanwhile.
        let _ = sender.send(result.map(|()| Instant::now()));
    });
    receiver
}

/// The waiter sleeps while another channel does what it waits for.
fn fence_deferred(nodes: &Nodes) -> Result<Outcome> {
    const ROUNDS: usize = 20;
    let device = Device::open(&nodes.render)?;
    let (held, opener) = (Channel::new(&device)?, Channel::new(&device)?);
    let before = interrupts::count()?;
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let gate = Gate::new(&device)?;
        let mut push = Push::new();
        gate.hold(&mut push);
        let ticket = held.submit(&push, &[reads(gate.object())])?;
        let waiter = wait_apart(&ticket);
        thread::sleep(SETTLE);
        if let Ok(early) = waiter.try_recv() {
            early?;
            bail!("round {round}: the wait ended before the gate was opened");
        }
        // Through the GPU, so that only the interrupt's handler looks at the fence.
        let mut push = Push::new();
        gate.open_by(&mut push);
        let start = Instant::now();
        opener.submit(&push, &[reads(gate.object())])?;
        let end = waiter
            .recv_timeout(Duration::from_secs(35))
            .map_err(|_| anyhow!("round {round}: the wait never ended"))??;
        slowest = slowest.max(end - start);
    }
    let raised = interrupts::count()? - before;
    ensure!(
        slowest <= WAKE_MAX,
        "a wait ended {} ms after its work",
        slowest.as_millis()
    );
    ensure!(
        raised >= ROUNDS as u64 / 2,
        "{raised} interrupts in {ROUNDS} rounds"
    );
    Ok(Outcome::Passed)
}

/// Copies that take long: the wait cannot be over at the first look, and other channels are not held up.
fn fence_long_copy(nodes: &Nodes) -> Result<Outcome> {
    const BYTES: u64 = 16 << 20;
    const COPIES: usize = 32;
    let device = Device::open(&nodes.render)?;
    let (busy, idle) = (
        Channel::with_units(&device, &[Unit::M2mf])?,
        Channel::new(&device)?,
    );
    let (first, second) = (
        device.object(domain::VRAM, BYTES)?,
        device.object(domain::VRAM, BYTES)?,
    );
    let before = interrupts::count()?;
    let mut push = Push::new();
    for _ in 0..COPIES {
        copy_range(&mut push, Copier::M2mf, first.address(), second.address(), BYTES);
    }
    let ticket = busy.submit(&push, &[reads(&first), writes(&second)])?;
    let is_deferred = ticket.is_busy()?;
    idle.run(Push::new().raw(0), &[])?;
    second.wait(false)?;
    ensure!(!ticket.is_busy()?, "the object is idle before the copy's end");
    let raised = interrupts::count()? - before;
    if !is_deferred {
        return Ok(Outcome::Skipped(format!(
            "{COPIES} copies of {BYTES:#x} bytes were done at once"
        )));
    }
    ensure!(raised > 0, "no interrupt at the end of a long copy");
    Ok(Outcome::Passed)
}

/// The driver's own order between channels that use an object: it lets one channel wait for another's fence.
fn fence_across_channels(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let gate = Gate::new(&device)?;
    let shared = device.gart(4096)?;
    shared.memory().write(0, 0);
    let channels = (0..6)
        .map(|_| Channel::new(&device))
        .collect::<Result<Vec<_>>>()?;
    let mut last = None;
    for (index, channel) in channels.iter().enumerate() {
        let mut push = Push::new();
        if index == 0 {
            gate.hold(&mut push);
        }
        let slot = shared.address() + 16 * index as u64;
        push.release_with_time(slot, index as u32 + 1);
        let uses = [reads(gate.object()), writes(&shared)];
        last = Some(channel.submit(&push, &uses)?);
    }
    let last = last.ok_or_else(|| anyhow!("no channels"))?;
    thread::sleep(SETTLE);
    ensure!(last.is_busy()?, "a writer did not wait for the one before");
    gate.open();
    last.wait()?;
    let time = |index: usize| shared.memory().read_wide(16 * index + 8);
    for index in 0..channels.len() {
        let payload = shared.memory().read(16 * index);
        ensure!(
            payload == index as u32 + 1,
            "channel {index} has written {payload:#x}"
        );
        ensure!(
            index == 0 || time(index) >= time(index - 1),
            "channel {index} wrote before {}: {:?}",
            index - 1,
            (time(index), time(index - 1))
        );
    }
    Ok(Outcome::Passed)
}

/// A card with nothing to do raises nothing: a level that is never lowered would show here.
fn interrupts_rest(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    channel.run(Push::new().raw(0), &[])?;
    thread::sleep(Duration::from_millis(100));
    let before = interrupts::count()?;
    thread::sleep(Duration::from_secs(1));
    let raised = interrupts::count()? - before;
    ensure!(raised < 20, "{raised} interrupts in a second without work");
    Ok(Outcome::Passed)
}
