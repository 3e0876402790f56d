//! Clients that manage their own addresses: VM_BIND and EXEC, in order and out of it, by syncobjs and timelines.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use report::Outcome;

use super::gate::OPEN;
use super::{Case, KILLED, Nodes, noisy, quiet};
use crate::binding::{bind, bind_later, execute, map, open, unmap};
use crate::channel::Channel;
use crate::copy::{Copier, copy_range};
use crate::device::{Device, Mapped, error_number};
use crate::interrupts;
use crate::pattern::Pattern;
use crate::push::{Acquire, Push, Unit};
use crate::syncobj::{Syncobj, wait_all};
use crate::uapi::{ExecPush, Sync, domain};

pub(super) const CASES: &[Case] = &[
    quiet("bind-copy", bind_copy),
    quiet("bind-remap", bind_remap),
    quiet("bind-later", bind_later_runs_later),
    quiet("exec-timeline", exec_timeline),
    quiet("exec-deferred", exec_deferred),
    quiet("exec-many", exec_many),
    noisy("exec-fault", KILLED, exec_fault),
];

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which something that is not held up would have happened.
const SETTLE: Duration = Duration::from_millis(40);
/// Longest time from the end of the work to the waiter's return, on a busy host: an interrupt, not the end of patience.
const WAKE_MAX: Duration = Duration::from_secs(5);
/// Where the tests map.
const BASE: u64 = 0x1_0000_0000;
/// Bytes of a buffer.
const BYTES: u64 = 256 << 10;
/// Where a client's pushbuffer is mapped.
const PUSH_AT: u64 = 0x8000_0000;
/// Bytes of it.
const PUSH_BYTES: u64 = 256 << 10;

/// A client with a channel and memory for pushes.
struct Client {
    device: Device,
    channel: Channel,
    pushes: Mapped,
    /// Bytes of `pushes` in use.
    used: u64,
}

impl Client {
    fn new(nodes: &Nodes, units: &[Unit]) -> Result<Self> {
        let device = open(&nodes.render)?;
        let channel = Channel::new(&device)?;
        let pushes = device.gart(PUSH_BYTES)?;
        bind(&device, &[map(&pushes, 0, PUSH_AT, PUSH_BYTES)])?;
        let mut client = Self {
            device,
            channel,
            pushes,
            used: 0,
        };
        let mut push = Push::new();
        for unit in units {
            client.channel.add_unit(*unit)?;
            push.bind(*unit);
        }
        client.run(push.raw(0))?;
        Ok(client)
    }

    fn write(&mut self, push: &Push) -> Result<ExecPush> {
        let bytes = push.words().len() as u64 * 4;
        ensure!(self.used + bytes <= PUSH_BYTES, "no room for another push");
        let at = self.used;
        for (index, word) in push.words().iter().enumerate() {
            self.pushes.memory().write(at as usize + index * 4, *word);
        }
        self.used += bytes;
        Ok(ExecPush {
            address: PUSH_AT + at,
            bytes: bytes as u32,
            flags: 0,
        })
    }

    fn submit(&mut self, push: &Push, waits: &[Sync], signals: &[Sync]) -> Result<()> {
        let piece = self.write(push)?;
        execute(&self.device, self.channel.id(), &[piece], waits, signals)
    }

    fn run(&mut self, push: &Push) -> Result<()> {
        let done = Syncobj::new(&self.device)?;
        self.submit(push, &[], &[done.sync()])?;
        expect(done.wait(PATIENCE)?, "EXEC")
    }
}

fn expect(in_time: bool, what: &str) -> Result<()> {
    ensure!(in_time, "{what} was not done within {} s", PATIENCE.as_secs());
    Ok(())
}

fn bind_copy(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[Unit::M2mf, Unit::Copy0])?;
    let (source, target) = (client.device.gart(BYTES)?, client.device.gart(BYTES)?);
    let vram = client.device.object(domain::VRAM, BYTES)?;
    Pattern(1).fill(source.memory());
    let (a, b, c) = (BASE, BASE + BYTES, BASE + 2 * BYTES);
    let operations = [
        map(&source, 0, a, BYTES),
        map(&vram, 0, b, BYTES),
        map(&target, 0, c, BYTES),
    ];
    bind(&client.device, &operations)?;
    // The engines are apart: the second copy must not start before the first has ended.
    let mut first = Push::new();
    copy_range(&mut first, Copier::M2mf, a, b, BYTES);
    client.run(&first)?;
    let mut second = Push::new();
    copy_range(&mut second, Copier::Engine(Unit::Copy0), b, c, BYTES);
    client.run(&second)?;
    Pattern(1).check(target.memory())?;
    Ok(Outcome::Passed)
}

/// The same address means other memory after each bind; a part of a mapping can go.
fn bind_remap(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[Unit::M2mf])?;
    let target = client.device.gart(BYTES)?;
    let out = BASE + (1 << 30);
    bind(&client.device, &[map(&target, 0, out, BYTES)])?;
    let sources = (0..3)
        .map(|_| client.device.gart(BYTES))
        .collect::<Result<Vec<_>>>()?;
    let mut push = Push::new();
    copy_range(&mut push, Copier::M2mf, BASE, out, BYTES);
    for (index, source) in sources.iter().enumerate() {
        Pattern(index as u32).fill(source.memory());
        bind(&client.device, &[map(source, 0, BASE, BYTES)])?;
        client.run(&push)?;
        Pattern(index as u32)
            .check(target.memory())
            .with_context(|| format!("binding {index}"))?;
    }
    // The middle of the last one is taken out and replaced by the end of the first.
    let (half, quarter) = (BYTES / 2, BYTES / 4);
    let operations = [
        unmap(BASE + quarter, half),
        map(&sources[0], half, BASE + quarter, half),
    ];
    bind(&client.device, &operations)?;
    client.run(&push)?;
    let (half, quarter) = (half as usize, quarter as usize);
    Pattern(2).check_range(target.memory(), 0, quarter, 0)?;
    Pattern(0).check_range(target.memory(), quarter, half, half as u64 / 4)?;
    Pattern(2).check_range(
        target.memory(),
        quarter + half,
        quarter,
        (quarter + half) as u64 / 4,
    )?;
    Ok(Outcome::Passed)
}

/// A bind waits for a syncobj, an EXEC for the bind; nothing runs before.
fn bind_later_runs_later(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[Unit::M2mf])?;
    let (source, target) = (client.device.gart(BYTES)?, client.device.gart(BYTES)?);
    Pattern(5).fill(source.memory());
    Pattern(6).fill(target.memory());
    let (start, bound, done) = (
        Syncobj::new(&client.device)?,
        Syncobj::new(&client.device)?,
        Syncobj::new(&client.device)?,
    );
    // A fence has to be there before a job can wait for it: a timeline takes one for a point to come.
    let held = held_fence(&mut client, &start)?;
    let operations = [map(&source, 0, BASE, BYTES), map(&target, 0, BASE + BYTES, BYTES)];
    bind_later(&client.device, &operations, &[start.sync()], &[bound.sync()])?;
    let mut push = Push::new();
    copy_range(&mut push, Copier::M2mf, BASE, BASE + BYTES, BYTES);
    let second = Channel::new(&client.device)?;
    second.add_unit(Unit::M2mf)?;
    let mut whole = Push::new();
    whole.bind(Unit::M2mf);
    for word in push.words() {
        whole.raw(*word);
    }
    let piece = client.write(&whole)?;
    execute(
        &client.device,
        second.id(),
        &[piece],
        &[bound.sync()],
        &[done.sync()],
    )?;
    thread::sleep(SETTLE);
    ensure!(!done.wait(Duration::ZERO)?, "EXEC ran before its bind");
    Pattern(6)
        .check(target.memory())
        .context("the copy ran before its bind")?;
    held.memory().write(0, OPEN);
    expect(
        wait_all(&client.device, &[&bound, &done], PATIENCE)?,
        "bind and EXEC",
    )?;
    Pattern(5).check(target.memory())?;
    Ok(Outcome::Passed)
}

/// Where a gate is mapped.
const GATE_AT: u64 = 0x9000_0000;

/// Lets the client's channel wait at a gate, and signals `after` behind it.
fn held_fence(client: &mut Client, after: &Syncobj) -> Result<Mapped> {
    let gate = client.device.gart(4096)?;
    gate.memory().write(0, 0);
    bind(&client.device, &[map(&gate, 0, GATE_AT, 4096)])?;
    let mut push = Push::new();
    push.acquire(GATE_AT, Acquire::Equal, OPEN);
    client.submit(&push, &[], &[after.sync()])?;
    Ok(gate)
}

/// Two channels hand a timeline on; a waiter that came before the jobs sees the end.
fn exec_timeline(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[])?;
    let second = Channel::new(&client.device)?;
    let line = Syncobj::new(&client.device)?;
    let log = client.device.gart(4096)?;
    (0..16).for_each(|at| log.memory().write(at * 4, 0));
    bind(&client.device, &[map(&log, 0, BASE, 4096)])?;
    let result = thread::scope(|scope| {
        let early = scope.spawn(|| line.wait_for(20, PATIENCE));
        thread::sleep(SETTLE);
        for point in 1..=20_u64 {
            let mut push = Push::new();
            push.acquire(BASE, Acquire::Equal, point as u32 - 1)
                .release(BASE, point as u32);
            let piece = client.write(&push)?;
            let channel = match point % 2 {
                0 => client.channel.id(),
                _ => second.id(),
            };
            let waits = [line.at(point - 1)];
            let waits = if point == 1 { &[][..] } else { &waits[..] };
            execute(&client.device, channel, &[piece], waits, &[line.at(point)])?;
        }
        early.join().map_err(|_| anyhow!("the waiter panicked"))?
    });
    expect(result?, "point 20")?;
    let (value, point) = (log.memory().read(0), line.point()?);
    ensure!(
        value == 20 && point == 20,
        "the log is at {value}, the timeline at {point}"
    );
    line.signal_point(25)?;
    expect(line.wait_for(25, PATIENCE)?, "a point signaled from here")?;
    Ok(Outcome::Passed)
}

/// The waiter sleeps on a syncobj while the CPU holds the gate closed: an interrupt has to wake it.
fn exec_deferred(nodes: &Nodes) -> Result<Outcome> {
    const ROUNDS: u64 = 10;
    let mut client = Client::new(nodes, &[])?;
    let before = interrupts::count()?;
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let done = Syncobj::new(&client.device)?;
        let gate = held_fence(&mut client, &done)?;
        let woken = thread::scope(|scope| {
            let waiter = scope.spawn(|| done.wait(PATIENCE).map(|ended| (ended, Instant::now())));
            thread::sleep(SETTLE);
            if waiter.is_finished() {
                bail!("round {round}: the syncobj was signaled before the gate was opened");
            }
            let start = Instant::now();
            gate.memory().write(0, OPEN);
            let (ended, at) = waiter.join().map_err(|_| anyhow!("the waiter panicked"))??;
            expect(ended, "a held EXEC")?;
            Ok(at - start)
        })?;
        slowest = slowest.max(woken);
        done.reset()?;
        done.signal()?;
    }
    let raised = interrupts::count()? - before;
    ensure!(
        slowest <= WAKE_MAX,
        "a wait ended {} ms after its work",
        slowest.as_millis()
    );
    ensure!(raised >= ROUNDS / 2, "{raised} interrupts in {ROUNDS} rounds");
    Ok(Outcome::Passed)
}

/// Several pushes in one EXEC run in order; many EXECs are outstanding at once.
fn exec_many(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[])?;
    let log = client.device.gart(4096)?;
    bind(&client.device, &[map(&log, 0, BASE, 4096)])?;
    log.memory().write(0, 0);
    let mut all = Vec::new();
    for round in 0..60_u32 {
        let mut pieces = Vec::new();
        for step in 0..8 {
            let turn = round * 8 + step;
            let mut push = Push::new();
            push.acquire(BASE, Acquire::Equal, turn).release(BASE, turn + 1);
            pieces.push(client.write(&push)?);
        }
        let done = Syncobj::new(&client.device)?;
        execute(&client.device, client.channel.id(), &pieces, &[], &[done.sync()])?;
        all.push(done);
    }
    let waits: Vec<&Syncobj> = all.iter().collect();
    expect(wait_all(&client.device, &waits, PATIENCE)?, "60 EXECs")?;
    let turn = log.memory().read(0);
    ensure!(turn == 480, "{turn} of 480 pushes ran");
    Ok(Outcome::Passed)
}

/// A pushbuffer at an address that nothing is mapped at ends its channel, and no other.
fn exec_fault(nodes: &Nodes) -> Result<Outcome> {
    let mut client = Client::new(nodes, &[])?;
    let doomed = Channel::new(&client.device)?;
    let nowhere = ExecPush {
        address: 0xdd_0000_0000,
        bytes: 64,
        flags: 0,
    };
    let done = Syncobj::new(&client.device)?;
    execute(&client.device, doomed.id(), &[nowhere], &[], &[done.sync()])?;
    expect(done.wait(PATIENCE)?, "the end of a faulting EXEC")?;
    let start = Instant::now();
    loop {
        match execute(&client.device, doomed.id(), &[nowhere], &[], &[]) {
            Err(error) if error_number(&error) == Some(libc::ENODEV) => break,
            Err(error) => bail!("a dead channel answers {error:#}"),
            Ok(()) => ensure!(start.elapsed() < PATIENCE, "the channel is still accepted"),
        }
        thread::sleep(Duration::from_millis(5));
    }
    client.run(Push::new().raw(0))?;
    Ok(Outcome::Passed)
}
