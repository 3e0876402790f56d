//! Many channels at once, each with memory of its own, on all copiers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use report::Outcome;

use super::{Case, Nodes, quiet};
use crate::channel::{Channel, reads, writes};
use crate::copy::{Copier, copy_range};
use crate::device::{Device, Mapped, Object};
use crate::pattern::Pattern;
use crate::push::Push;
use crate::uapi::domain;

pub(super) const CASES: &[Case] = &[
    quiet("channels-parallel", channels_parallel),
    quiet("clients-parallel", clients_parallel),
    quiet("copies-beside-windows", copies_beside_windows),
];

/// Bytes that a channel copies about.
const BYTES: u64 = 256 << 10;

/// A channel, its buffers, and the pattern that only it has.
#[derive(Debug)]
struct Worker {
    channel: Channel,
    who: Copier,
    source: Mapped,
    target: Mapped,
    parts: [Object; 2],
    index: u32,
}

impl Worker {
    fn new(device: &Device, index: u32) -> Result<Self> {
        let who = Copier::ALL[index as usize % Copier::ALL.len()];
        Ok(Self {
            channel: Channel::with_units(device, &[who.unit()])?,
            who,
            source: device.gart(BYTES)?,
            target: device.gart(BYTES)?,
            parts: [
                device.object(domain::VRAM, BYTES)?,
                device.object(domain::VRAM, BYTES)?,
            ],
            index,
        })
    }

    /// Copies there and back, `rounds` times, each with another pattern.
    fn run(&self, rounds: u32) -> Result<()> {
        for round in 0..rounds {
            let pattern = Pattern(self.index << 8 | round);
            pattern.fill(self.source.memory());
            let [first, second] = &self.parts;
            let path = [&*self.source, first, second, &*self.target];
            let mut last = None;
            for step in path.windows(2) {
                let mut push = Push::new();
                copy_range(&mut push, self.who, step[0].address(), step[1].address(), BYTES);
                last = Some(self.channel.submit(&push, &[reads(step[0]), writes(step[1])])?);
            }
            last.ok_or_else(|| anyhow!("an empty path"))?.wait()?;
            if let Err(error) = pattern.check(self.target.memory()) {
                let found = self
                    .find_loss(pattern)
                    .unwrap_or_else(|error| format!("{error:#}"));
                return Err(error.context(format!("worker {}, round {round} ({found})", self.index)));
            }
        }
        Ok(())
    }

    /// Where on its way the pattern was lost, if it does not come late.
    fn find_loss(&self, pattern: Pattern) -> Result<String> {
        let is_there = |memory: &Mapped| {
            pattern
                .check(memory.memory())
                .map_or_else(|error| format!("{error:#}"), |()| "right".to_owned())
        };
        thread::sleep(Duration::from_millis(200));
        let mut found = format!(
            "200 ms later: {}; the source: {}",
            is_there(&self.target),
            is_there(&self.source)
        );
        for (number, part) in self.parts.iter().enumerate() {
            let mut push = Push::new();
            copy_range(&mut push, self.who, part.address(), self.target.address(), BYTES);
            self.channel
                .submit(&push, &[reads(part), writes(&self.target)])?
                .wait()?;
            found += &format!("; part {number}: {}", is_there(&self.target));
        }
        Ok(found)
    }
}

/// Runs workers in threads of their own until all are done.
fn run_all(workers: &mut [Worker], rounds: u32) -> Result<()> {
    thread::scope(|scope| {
        let handles: Vec<_> = workers
            .iter_mut()
            .map(|worker| thread::Builder::new().spawn_scoped(scope, move || worker.run(rounds)))
            .collect::<std::io::Result<_>>()
            .context("cannot start a thread")?;
        for handle in handles {
            handle.join().map_err(|_| anyhow!("a worker panicked"))??;
        }
        Ok(())
    })
}

/// Forty channels of one client.
fn channels_parallel(nodes: &Nodes) -> Result<Outcome> {
    let device = Device::open(&nodes.render)?;
    let mut workers = (0..40)
        .map(|index| Worker::new(&device, index))
        .collect::<Result<Vec<_>>>()?;
    let ids: std::collections::BTreeSet<_> = workers.iter().map(|worker| worker.channel.id()).collect();
    ensure!(ids.len() == workers.len(), "channels share numbers");
    run_all(&mut workers, 4)?;
    Ok(Outcome::Passed)
}

/// Channels copy while others of their client come and go, and objects that a window of the card shows: these lie between theirs.
fn copies_beside_windows(nodes: &Nodes) -> Result<Outcome> {
    const ROUNDS: u32 = 12;
    let device = Device::open(&nodes.render)?;
    let (mut workers, mut gaps) = (Vec::new(), Vec::new());
    for index in 0..18 {
        workers.push(Worker::new(&device, index)?);
        gaps.push(device.object(domain::VRAM, BYTES)?);
    }
    drop(gaps);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let shows = scope.spawn(|| -> Result<()> {
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) {
                let shown = device.vram((BYTES / 16) << (round % 3))?;
                Pattern(round).fill(shown.memory());
                let channel =
                    Channel::with_units(&device, &[Copier::ALL[round as usize % Copier::ALL.len()].unit()])?;
                Pattern(round).check(shown.memory())?;
                drop(channel);
                round += 1;
            }
            ensure!(round > 0, "no window showed anything meanwhile");
            Ok(())
        });
        let ran = run_all(&mut workers, ROUNDS);
        is_done.store(true, Ordering::Relaxed);
        let shown = shows.join().map_err(|_| anyhow!("the other thread panicked"))?;
        ran.and(shown)
    })?;
    Ok(Outcome::Passed)
}

/// Clients with address spaces of their own, in which the same addresses mean other memory.
fn clients_parallel(nodes: &Nodes) -> Result<Outcome> {
    let mut workers = (0..12)
        .map(|index| Worker::new(&Device::open(&nodes.render)?, index))
        .collect::<Result<Vec<_>>>()?;
    let shared = workers
        .iter()
        .filter(|worker| worker.source.address() == workers[0].source.address())
        .count();
    run_all(&mut workers, 6)?;
    ensure!(
        shared > 1,
        "no two clients use the same address: nothing was tested"
    );
    Ok(Outcome::Passed)
}
