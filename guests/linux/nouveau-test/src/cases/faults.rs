//! Errors of a channel concern it alone: it is reported or ends, others run on, and a new one works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use fermi_spec::methods::host;
use report::Outcome;

use super::{ANY, Case, KILLED, Nodes, noisy};
use crate::channel::{Channel, Use, reads, writes};
use crate::copy::{Copier, copy_range};
use crate::device::{Device, error_number};
use crate::pattern::Pattern;
use crate::push::{Push, Unit};

pub(super) const CASES: &[Case] = &[
    noisy("fault-m2mf", KILLED, |nodes| faults(nodes, Copier::M2mf)),
    noisy("fault-engine-0", KILLED, |nodes| {
        faults(nodes, Copier::Engine(Unit::Copy0))
    }),
    noisy("fault-engine-1", KILLED, |nodes| {
        faults(nodes, Copier::Engine(Unit::Copy1))
    }),
    noisy("fault-semaphore", KILLED, fault_semaphore),
    noisy("bad-method", "ILLEGAL_MTHD|DATA_ERROR|gr: intr", bad_method),
    noisy("bad-class", "ILLEGAL_CLASS|gr: intr", bad_class),
    noisy("bad-host-method", KILLED, bad_host_method),
    noisy("unbound-subchannel", "PBDMA", unbound_subchannel),
    noisy("garbage", ANY, garbage),
];

/// An address that nothing is mapped at: the driver allocates from the bottom.
const NOWHERE: u64 = 0xdd_0000_0000;

/// Copies on a client of its own until it is stopped; returns the number of copies, or the error.
fn bystander(nodes: &Nodes, stop: &AtomicBool) -> Result<u32> {
    const BYTES: u64 = 64 << 10;
    let device = Device::open(&nodes.render)?;
    let channel = Channel::with_units(&device, &[Unit::M2mf, Unit::Copy0])?;
    let (source, target) = (device.gart(BYTES)?, device.gart(BYTES)?);
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let who = [Copier::M2mf, Copier::Engine(Unit::Copy0)][rounds as usize % 2];
        Pattern(rounds).fill(source.memory());
        let mut push = Push::new();
        copy_range(&mut push, who, source.address(), target.address(), BYTES);
        channel.run(&push, &[reads(&source), writes(&target)])?;
        Pattern(rounds)
            .check(target.memory())
            .with_context(|| format!("bystander, round {rounds}"))?;
        rounds += 1;
    }
    Ok(rounds)
}

/// Runs `body` while another client works, which must not notice.
fn beside_others(nodes: &Nodes, body: impl FnOnce() -> Result<()>) -> Result<Outcome> {
    let stop = AtomicBool::new(false);
    let (done, rounds) = thread::scope(|scope| {
        let other = scope.spawn(|| bystander(nodes, &stop));
        let done = body();
        // So that it has worked after the event too.
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        (done, other.join())
    });
    done?;
    let rounds = rounds
        .map_err(|_| anyhow!("the bystander panicked"))?
        .context("another client noticed")?;
    ensure!(rounds > 2, "the bystander ran {rounds} times");
    Ok(Outcome::Passed)
}

/// Submits commands that end the channel, and waits for the end.
fn submit_doomed(channel: &Channel, push: &Push, objects: &[Use<'_>]) -> Result<()> {
    match channel.submit(push, objects) {
        // The driver ends the channel's fences with it; with which error is its affair.
        Ok(ticket) => drop(ticket.wait()),
        // The channel ended before the submission's own fence was written.
        Err(error) if error_number(&error) == Some(libc::ENODEV) => (),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Submits to a channel until it is refused for good.
fn expect_dead(channel: &Channel) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        match channel.submit(Push::new().raw(0), &[]) {
            Err(error) if error_number(&error) == Some(libc::ENODEV) => return Ok(()),
            Err(error) => bail!("a dead channel answers {error:#}"),
            Ok(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    bail!("the channel is still accepted ten seconds after its fault")
}

/// A channel that works for another client and for this.
fn expect_alive(device: &Device) -> Result<()> {
    let channel = Channel::with_units(device, &[Unit::M2mf, Unit::Copy0, Unit::Copy1])
        .context("no new channel after an error")?;
    let memory = device.gart(4096)?;
    memory.memory().write(0, 0);
    let mut push = Push::new();
    push.release(memory.address(), 0x11);
    channel.run(&push, &[reads(&memory)])?;
    ensure!(memory.memory().read(0) == 0x11, "a new channel does nothing");
    Ok(())
}

/// Reads and writes of unmapped addresses.
fn faults(nodes: &Nodes, who: Copier) -> Result<Outcome> {
    beside_others(nodes, || {
        for (name, from_nowhere) in [("read", true), ("write", false)] {
            let device = Device::open(&nodes.render)?;
            let channel = Channel::with_units(&device, &[who.unit()])?;
            let sibling = Channel::with_units(&device, &[who.unit()])?;
            let memory = device.gart(64 << 10)?;
            let (source, target) = match from_nowhere {
                true => (NOWHERE, memory.address()),
                false => (memory.address(), NOWHERE),
            };
            let mut push = Push::new();
            copy_range(&mut push, who, source, target, 8192);
            submit_doomed(&channel, &push, &[writes(&memory)])?;
            expect_dead(&channel).with_context(|| format!("{name} of an unmapped address"))?;
            sibling
                .run(Push::new().raw(0), &[])
                .with_context(|| format!("another channel of the client after a {name}"))?;
            drop(channel);
            expect_alive(&device)?;
        }
        Ok(())
    })
}

/// A semaphore at an unmapped address.
fn fault_semaphore(nodes: &Nodes) -> Result<Outcome> {
    beside_others(nodes, || {
        let device = Device::open(&nodes.render)?;
        let channel = Channel::new(&device)?;
        let mut push = Push::new();
        push.release(NOWHERE, 1);
        submit_doomed(&channel, &push, &[])?;
        expect_dead(&channel)?;
        drop(channel);
        expect_alive(&device)
    })
}

/// Makes an error on a channel, after which the same channel has to go on: the driver reports such errors and
/// lets the engine continue.
fn goes_on_after(nodes: &Nodes, wrong: impl Fn(&mut Push)) -> Result<Outcome> {
    beside_others(nodes, || {
        let device = Device::open(&nodes.render)?;
        let channel = Channel::with_units(&device, &Unit::ALL)?;
        let memory = device.gart(4096)?;
        memory.memory().write(0, 0);
        let mut push = Push::new();
        wrong(&mut push);
        push.release(memory.address(), 0x22);
        channel.run(&push, &[reads(&memory)])?;
        let seen = memory.memory().read(0);
        ensure!(
            seen == 0x22,
            "the channel did not go on after the error: {seen:#x}"
        );
        drop(channel);
        expect_alive(&device)
    })
}

/// Methods that M2MF does not have.
fn bad_method(nodes: &Nodes) -> Result<Outcome> {
    const NO_SUCH: u16 = 0x3ffc;
    goes_on_after(nodes, |push| {
        push.unit(Unit::M2mf, NO_SUCH, &[1]);
    })
}

/// A class that no engine has.
fn bad_class(nodes: &Nodes) -> Result<Outcome> {
    goes_on_after(nodes, |push| {
        push.methods(6, host::SET_OBJECT, &[0x1234]);
    })
}

/// A method whose purpose is to be illegal, and one that no class has: the driver ends such channels.
fn bad_host_method(nodes: &Nodes) -> Result<Outcome> {
    const NO_SUCH: u16 = 0xf0;
    beside_others(nodes, || {
        for method in [host::ILLEGAL, NO_SUCH] {
            let device = Device::open(&nodes.render)?;
            let channel = Channel::with_units(&device, &[Unit::M2mf])?;
            let mut push = Push::new();
            push.methods(0, method, &[5]);
            submit_doomed(&channel, &push, &[])?;
            expect_dead(&channel).with_context(|| format!("method {method:#x}"))?;
            drop(channel);
            expect_alive(&device)?;
        }
        Ok(())
    })
}

/// A method for a subchannel that is bound to nothing.
fn unbound_subchannel(nodes: &Nodes) -> Result<Outcome> {
    goes_on_after(nodes, |push| {
        push.methods(7, host::FIRST_ENGINE_METHOD, &[0]);
    })
}

/// Most words that a header counts.
const COUNT_MAX: usize = 0x1fff;

/// Words without a meaning. The fate of the channel is open; nothing else may suffer.
fn garbage(nodes: &Nodes) -> Result<Outcome> {
    beside_others(nodes, || {
        for seed in 0..4 {
            let device = Device::open(&nodes.render)?;
            let channel = Channel::with_units(&device, &Unit::ALL)?;
            let mut push = Push::new();
            for word in Pattern(0x4000 + seed).words(200) {
                // No semaphore acquires: the test is not about waiting.
                let is_host = word & 0xfff < u32::from(host::FIRST_ENGINE_METHOD / 4);
                push.raw(if is_host { word | 0xf00 } else { word });
            }
            // Padding, so that a header at the end does not take the driver's next words for its data.
            for _ in 0..COUNT_MAX {
                push.raw(0);
            }
            // Refused if the channel has ended before its fence was written.
            let ticket = channel.submit(&push, &[]).ok();
            let start = Instant::now();
            while ticket
                .as_ref()
                .is_some_and(|ticket| ticket.is_busy().unwrap_or(false))
                && start.elapsed() < Duration::from_secs(2)
            {
                thread::sleep(Duration::from_millis(5));
            }
            drop(channel);
            expect_alive(&device).with_context(|| format!("garbage {seed}"))?;
        }
        Ok(())
    })
}
