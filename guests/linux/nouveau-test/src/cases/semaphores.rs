//! Host semaphores between channels: that an acquire stops its channel and no other, and every way to be satisfied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fermi_spec::methods::host;
use report::Outcome;

use super::gate::Gate;
use super::{Case, Nodes, noisy, quiet};
use crate::channel::{Channel, reads};
use crate::device::{Device, Mapped};
use crate::push::{Acquire, Push, Unit};
use crate::uapi::param;

pub(super) const CASES: &[Case] = &[
    quiet("semaphore-values", semaphore_values),
    quiet("semaphore-ring", semaphore_ring),
    quiet("semaphore-in-vram", semaphore_in_vram),
    quiet("semaphore-time", semaphore_time),
    quiet("reference-counter", reference_counter),
    quiet("acquire-holds-one", acquire_holds_one),
    quiet("polling-starves-nobody", polling_starves_nobody),
    noisy(
        "acquire-never",
        // The channel still polls when the driver, tired of waiting, unmaps what it polls: it may see that before its end.
        "failed to idle channel|channel [0-9]+ killed|fence timed out|fault 00 \\[READ\\]|rc scheduled|\
         errored - disabling channel",
        acquire_never,
    ),
];

/// Time in which a channel that is not stopped would have gone on.
const SETTLE: Duration = Duration::from_millis(30);

/// A buffer for semaphores that the CPU sees.
fn semaphores(device: &Device) -> Result<Mapped> {
    let memory = device.gart(4096)?;
    for at in (0..4096).step_by(4) {
        memory.memory().write(at, 0);
    }
    Ok(memory)
}

/// Each kind of acquire stops at values that do not satisfy it and goes on at one that does.
fn semaphore_values(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = semaphores(&device)?;
    let cases: &[(Acquire, u32, &[u32], u32)] = &[
        (Acquire::Equal, 5, &[4, 6, 0x105], 5),
        (Acquire::AtLeast, 5, &[4, 0, 0x8000_0006, 0xffff_ffff], 5),
        (Acquire::AtLeast, 5, &[1], 1000),
        (Acquire::AtLeast, 0xffff_fff0, &[0xffff_ff00, 0x7fff_fff0], 0x10),
        (Acquire::AnyBit, 0x0f00, &[0, 0xf0ff, 0x1000], 0x0200),
        (Acquire::AnyBit, 0x8000_0000, &[0x7fff_ffff], 0xffff_ffff),
    ];
    for (how, payload, not, enough) in cases {
        memory.memory().write(0, not[0]);
        let mut push = Push::new();
        push.acquire(memory.address(), *how, *payload);
        let ticket = channel.submit(&push, &[reads(&memory)])?;
        for value in *not {
            memory.memory().write(0, *value);
            thread::sleep(SETTLE);
            ensure!(
                ticket.is_busy()?,
                "acquire {how:?} of {payload:#x} went on at {value:#x}"
            );
        }
        memory.memory().write(0, *enough);
        ticket
            .wait()
            .with_context(|| format!("acquire {how:?} of {payload:#x} at {enough:#x}"))?;
    }
    Ok(Outcome::Passed)
}

/// Channels in a ring pass a counter on; a log that they write in turn shows the order.
fn semaphore_ring(nodes: &Nodes) -> Result<Outcome> {
    const CHANNELS: usize = 5;
    const ROUNDS: usize = 12;
    let device = Device::open(&nodes.render)?;
    let memory = semaphores(&device)?;
    let log = device.gart(4096)?;
    let channels = (0..CHANNELS)
        .map(|_| Channel::new(&device))
        .collect::<Result<Vec<_>>>()?;
    let mut tickets = Vec::new();
    // Submitted in the wrong order: only the semaphores can put it right.
    for (index, channel) in channels.iter().enumerate().rev() {
        let mut push = Push::new();
        for round in 0..ROUNDS {
            let turn = (round * CHANNELS + index) as u32;
            let how = [Acquire::Equal, Acquire::AtLeast][round % 2];
            push.acquire(memory.address(), how, turn)
                .release_with_time(log.address() + u64::from(turn) * 16, 0x1000 + turn)
                .release(memory.address(), turn + 1);
        }
        tickets.push(channel.submit(&push, &[reads(&memory), reads(&log)])?);
    }
    for ticket in &tickets {
        ticket.wait()?;
    }
    let mut before = 0;
    for turn in 0..CHANNELS * ROUNDS {
        let (who, time) = (
            log.memory().read(turn * 16),
            log.memory().read_wide(turn * 16 + 8),
        );
        ensure!(who == 0x1000 + turn as u32, "turn {turn} was written by {who:#x}");
        ensure!(
            time >= before,
            "turn {turn} is at {time}, the one before at {before}"
        );
        before = time;
    }
    Ok(Outcome::Passed)
}

/// The same memory is a semaphore in VRAM, which the CPU opens through BAR1.
fn semaphore_in_vram(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = device.vram(4096)?;
    memory.memory().write(0, 0);
    memory.memory().write(16, 0);
    let mut push = Push::new();
    push.acquire(memory.address(), Acquire::Equal, 9)
        .release(memory.address() + 16, 10);
    let ticket = channel.submit(&push, &[reads(&memory)])?;
    thread::sleep(SETTLE);
    ensure!(
        ticket.is_busy()? && memory.memory().read(16) == 0,
        "the acquire did not stop the channel"
    );
    memory.memory().write(0, 9);
    ticket.wait()?;
    let released = memory.memory().read(16);
    ensure!(released == 10, "the release wrote {released:#x}");
    Ok(Outcome::Passed)
}

/// Times that releases write are nanoseconds and never go back.
fn semaphore_time(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = semaphores(&device)?;
    let start = Instant::now();
    let mut times = Vec::new();
    for round in 0..20_u32 {
        let mut push = Push::new();
        push.release_with_time(memory.address(), round)
            .release_with_time(memory.address() + 16, round);
        channel.run(&push, &[reads(&memory)])?;
        times.extend([8, 24].map(|at| memory.memory().read_wide(at)));
        thread::sleep(Duration::from_millis(5));
    }
    let passed = start.elapsed().as_nanos() as u64;
    ensure!(
        times.windows(2).all(|pair| pair[0] <= pair[1]),
        "times go back: {times:?}"
    );
    let counted = times[times.len() - 1] - times[0];
    ensure!(
        (passed / 8..=passed * 2).contains(&counted),
        "{counted} ns by the card, {passed} ns here"
    );
    Ok(Outcome::Passed)
}

/// SET_REFERENCE waits for what is before it and stops nothing.
fn reference_counter(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = semaphores(&device)?;
    for value in [1, 2, 0xffff_ffff, 0] {
        let mut push = Push::new();
        push.methods(0, host::SET_REFERENCE, &[value])
            .release(memory.address(), 0x77);
        memory.memory().write(0, 0);
        channel.run(&push, &[reads(&memory)])?;
        ensure!(memory.memory().read(0) == 0x77, "nothing after the reference");
    }
    Ok(Outcome::Passed)
}

/// While one channel waits, others run on all engines.
fn acquire_holds_one(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let gate = Gate::new(&device)?;
    let held = Channel::with_units(&device, &[Unit::M2mf])?;
    let mut push = Push::new();
    gate.hold(&mut push);
    let ticket = held.submit(&push, &[reads(gate.object())])?;
    let others = Channel::with_units(&device, &Unit::ALL)?;
    for _ in 0..50 {
        others.run(Push::new().raw(0), &[])?;
    }
    ensure!(ticket.is_busy()?, "the held channel went on");
    gate.open();
    ticket.wait()?;
    Ok(Outcome::Passed)
}

/// The longest of some submissions.
fn slowest_run(channel: &Channel) -> Result<Duration> {
    let runs = (0..20).map(|_| {
        let start = Instant::now();
        channel.run(Push::new().raw(0), &[])?;
        Ok(start.elapsed())
    });
    let times = runs.collect::<Result<Vec<_>>>()?;
    Ok(times.into_iter().max().unwrap_or_default())
}

/// A processor that reads VRAM without a pause does not keep channels from running.
fn polling_starves_nobody(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let channel = Channel::new(&device)?;
    let memory = device.vram(4096)?;
    let alone = slowest_run(&channel)?;
    let stop = AtomicBool::new(false);
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box(memory.memory().read(0));
            }
        });
        let beside = slowest_run(&channel);
        stop.store(true, Ordering::Relaxed);
        beside
    })?;
    ensure!(
        beside < alone * 20 + Duration::from_millis(500),
        "a submission took {} ms beside a processor that polls, {} ms alone",
        beside.as_millis(),
        alone.as_millis()
    );
    Ok(Outcome::Passed)
}

/// An acquire that nothing satisfies: its channel is destroyed, others do not notice. The driver waits 15 seconds for
/// such a channel before it takes it off.
fn acquire_never(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let memory = semaphores(&device)?;
    let stuck = Channel::with_units(&device, &[Unit::M2mf])?;
    let mut push = Push::new();
    push.acquire(memory.address(), Acquire::Equal, 1);
    drop(stuck.submit(&push, &[reads(&memory)])?);
    // Freed by a client of its own: destroying holds the client's lock while it waits.
    let other = Device::open(&nodes.render)?;
    let running = Channel::with_units(&other, &[Unit::M2mf])?;
    let stamp = other.gart(4096)?;
    // By the card's own clock: the driver looks at the stuck channel's fence without a pause when it destroys it, and the
    // guest's only processor may do nothing else meanwhile.
    let run = || -> Result<()> {
        let mut push = Push::new();
        push.release_with_time(stamp.address(), 1);
        let ticket = running.submit(&push, &[reads(&stamp)])?;
        let submitted = other.parameter(param::PTIMER)?;
        ticket.wait()?;
        let took = Duration::from_nanos(stamp.memory().read_wide(8).saturating_sub(submitted));
        ensure!(
            took < Duration::from_secs(3),
            "another channel took {took:?} beside a stuck one"
        );
        Ok(())
    };
    for _ in 0..20 {
        run()?;
    }
    let destroyer = thread::spawn(move || drop(stuck));
    let start = Instant::now();
    while !destroyer.is_finished() {
        run()?;
        ensure!(
            start.elapsed() < Duration::from_secs(60),
            "the stuck channel is not destroyed"
        );
        thread::sleep(Duration::from_millis(2));
    }
    let again = Channel::with_units(&device, &[Unit::M2mf])?;
    again.run(Push::new().raw(0), &[])?;
    Ok(Outcome::Passed)
}
