//! Programs that share a card whose memory is managed before launches (`gdm`): their calls replayed on the card's clock.
//!
//! Nothing is executed. A launch takes the time that it took on the card, and starts when its working set is there and the launch before
//! it is over. One engine copies, in both directions, as fast as the card's copies across PCIe. Signing takes the time of launches.

mod engines;

use std::collections::BTreeMap;
use std::ops::Range;

use fermi_model::Timing;
use fermi_spec::board::Board;
use gdm::{Block, Busy, Launch, Manager, Prepared, Setup, Touch};

use crate::calls::{Call, Part, Program, Reach};
use engines::Engines;
pub(crate) use engines::{Costs, Figures};

/// How long after another program's call one comes that had to wait for it.
const TURN_NS: f64 = 1.0;

/// How far a program's launches may be ahead of its part of the GPU's time.
const LEAD_NS: f64 = 2_000_000.0;

/// A program under way.
#[derive(Debug)]
struct Process<'a> {
    program: &'a Program,
    /// Start of each buffer.
    starts: Vec<u64>,
    runs: u32,
    ran: u32,
    weight: u32,
    /// Time of its launches.
    used: f64,
    next: usize,
    /// When its next call comes.
    ready: f64,
    /// When its last launch ends.
    launched: f64,
    end: f64,
}

impl Process<'_> {
    fn is_over(&self) -> bool {
        self.runs > 0 && self.ran >= self.runs
    }
}

/// A launch under way.
#[derive(Debug)]
struct UnderWay {
    end: f64,
    owner: u32,
    prepared: Prepared,
}

/// A job of a program: whether it repeats until the others have ended, or so many times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Program,
    /// 0: until the others have ended.
    pub(crate) times: u32,
    /// Blocks that others cannot take.
    pub(crate) protected: u32,
    /// Its part of the GPU's time, if that is shared: 0 if it is not.
    pub(crate) weight: u32,
}

/// What came of a replay.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Replayed {
    pub(crate) figures: Figures,
    /// When each program had run so many times, and how often it has.
    pub(crate) ends: Vec<(f64, u32)>,
    /// Launches and copies that met old bytes.
    pub(crate) lost: u64,
    /// When each call of the first program's first run came.
    pub(crate) calls: Vec<f64>,
}

struct Replay<'a> {
    manager: Manager<Engines>,
    engines: Engines,
    processes: Vec<Process<'a>>,
    under_way: Vec<UnderWay>,
    is_eager: bool,
    /// When the call before this one came.
    time: f64,
    calls: Vec<f64>,
}

/// Replays programs beside each other.
pub(crate) fn replay(setup: Setup, costs: Costs, runs: &[Run<'_>]) -> Replayed {
    let mut replay = Replay::new(setup, costs, runs);
    while replay.step() {}
    replay.result()
}

/// Replays calls in an order that does not depend on how long they take: whose call is next. Each launch ends before the next call.
pub(crate) fn replay_in_order(setup: Setup, costs: Costs, runs: &[Run<'_>], order: &[usize]) -> Replayed {
    let mut replay = Replay::new(setup, costs, runs);
    for &at in order {
        replay.finish_until(f64::INFINITY);
        let process = &mut replay.processes[at];
        process.ready = process.ready.max(process.launched);
        if let Some(call) = process.program.calls.get(process.next) {
            let is_done = replay.call(at, call);
            assert!(is_done, "nothing is under way");
            replay.processes[at].next += 1;
        }
        let process = &mut replay.processes[at];
        if process.next == process.program.calls.len() {
            replay.finish_until(f64::INFINITY);
            replay.ends(at);
        }
    }
    replay.result()
}

impl<'a> Replay<'a> {
    fn new(setup: Setup, costs: Costs, runs: &[Run<'a>]) -> Self {
        let timing = Timing::of(Board::Gtx480);
        let mut replay = Replay {
            manager: Manager::new(setup),
            engines: Engines {
                block_bytes: setup.block_bytes,
                costs,
                bytes_per_ns: timing.pcie_mb_per_s as f64 / 1e3,
                startup_ns: timing.copy_startup_ns as f64,
                versions: BTreeMap::new(),
                version: 0,
                now: 0.0,
                copies_until: 0.0,
                launches_until: 0.0,
                last: None,
                figures: Figures::default(),
                lost: 0,
            },
            processes: Vec::new(),
            under_way: Vec::new(),
            is_eager: setup.is_eager,
            time: 0.0,
            calls: Vec::new(),
        };
        for (owner, run) in runs.iter().enumerate() {
            let mut next = 0;
            let starts = run.program.buffers.iter().map(|bytes| {
                let start = next;
                next += bytes.next_multiple_of(setup.block_bytes);
                start
            });
            replay.processes.push(Process {
                program: run.program,
                starts: starts.collect(),
                runs: run.times,
                ran: 0,
                weight: run.weight,
                used: 0.0,
                next: 0,
                ready: 0.0,
                launched: 0.0,
                end: 0.0,
            });
            replay.manager.protect(owner as u32, run.protected);
            replay.begins(owner);
        }
        replay
    }

    fn result(self) -> Replayed {
        let ends = self.processes.iter().map(|process| process.end);
        Replayed {
            figures: Figures {
                end_ns: ends.fold(0.0, f64::max),
                ..self.engines.figures
            },
            ends: self
                .processes
                .iter()
                .map(|process| (process.end, process.ran))
                .collect(),
            lost: self.engines.lost,
            calls: self.calls,
        }
    }

    /// A process of the program begins.
    fn begins(&mut self, at: usize) {
        let process = &self.processes[at];
        for (start, bytes) in process.starts.iter().zip(&process.program.buffers) {
            self.manager.reserve(at as u32, *start..*start + *bytes);
        }
    }

    /// It ends: nobody needs its memory.
    fn ends(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.ran += 1;
        process.next = 0;
        process.end = process.ready;
        for start in process.starts.clone() {
            let freed = self.manager.free(&mut self.engines, at as u32, start);
            assert!(freed.is_ok(), "a program that has ended has no launch under way");
        }
        let owner = at as u32;
        self.engines.versions.retain(|block, _| block.owner != owner);
        self.begins(at);
    }

    /// Does the next call of whoever is the first to have one. False: all have ended.
    fn step(&mut self) -> bool {
        let others_run = self
            .processes
            .iter()
            .any(|process| process.runs > 0 && !process.is_over());
        if !others_run {
            return false;
        }
        let ready = self
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| !process.is_over());
        let first = ready.min_by(|(_, one), (_, other)| one.ready.total_cmp(&other.ready));
        let Some((at, _)) = first else { return false };
        let ready = self.processes[at].ready;
        self.prefetch(ready);
        self.finish_until(ready);
        self.time = ready;
        let process = &self.processes[at];
        match process.program.calls.get(process.next) {
            None if process.launched > process.ready => self.processes[at].ready = process.launched,
            None => self.ends(at),
            Some(Call::Launch { .. }) if self.is_ahead(at) => {
                let others = self
                    .processes
                    .iter()
                    .enumerate()
                    .filter(|(other, process)| *other != at && !process.is_over());
                let next = others.map(|(_, process)| process.ready).fold(ready, f64::max);
                self.processes[at].ready = next + TURN_NS;
            }
            Some(call) => {
                if self.call(at, call) {
                    if at == 0 && self.processes[0].ran == 0 {
                        self.calls.push(ready);
                    }
                    self.processes[at].next += 1;
                }
            }
        }
        true
    }

    /// Whether a program has had more of the GPU's time than another one that has work, by their weights.
    fn is_ahead(&self, at: usize) -> bool {
        let share = |process: &Process<'_>| process.used / f64::from(process.weight.max(1));
        let process = &self.processes[at];
        let others = self
            .processes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at);
        let behind = others.filter(|(_, other)| !other.is_over());
        let least = behind
            .map(|(_, other)| share(other))
            .fold(f64::INFINITY, f64::min);
        process.weight > 0 && share(process) > least + LEAD_NS / f64::from(process.weight)
    }

    /// Ends launches that are over by then.
    fn finish_until(&mut self, time: f64) {
        while let Some(at) = self.under_way.iter().position(|launch| launch.end <= time) {
            let launch = self.under_way.swap_remove(at);
            self.manager.finish(launch.prepared);
        }
    }

    /// The copy engine has nothing to do until somebody comes.
    fn prefetch(&mut self, until: f64) {
        while !self.is_eager && self.engines.copies_until.max(self.time) < until {
            self.engines.now = self.engines.copies_until.max(self.time);
            if self.manager.prefetch(&mut self.engines).is_none() {
                break;
            }
        }
    }

    fn bytes(process: &Process<'_>, part: &Part) -> Range<u64> {
        let start = process.starts[part.buffer];
        start + part.bytes.start..start + part.bytes.end
    }

    /// When an owner's launches, or anybody's first one, end.
    fn end_of(&self, owner: Option<u32>) -> Option<f64> {
        let launches = self.under_way.iter();
        let mine = launches.filter(|launch| owner.is_none_or(|owner| owner == launch.owner));
        mine.map(|launch| launch.end).min_by(f64::total_cmp)
    }

    /// Does a call, unless something has to end before: then it comes again.
    fn call(&mut self, at: usize, call: &Call) -> bool {
        let owner = at as u32;
        self.engines.now = self.processes[at].ready;
        let is_done = match call {
            Call::CopyIn(part) => {
                let bytes = Self::bytes(&self.processes[at], part);
                // It has filled the buffer anew that it copied from before.
                self.engines.figures.staged += self.manager.source_changes(owner, bytes.clone());
                let copied = self.manager.copy_in(&mut self.engines, owner, bytes.clone());
                if copied.is_ok() {
                    self.given(owner, &bytes);
                }
                copied.is_ok()
            }
            Call::CopyOut(part) if self.processes[at].launched <= self.processes[at].ready => {
                let bytes = Self::bytes(&self.processes[at], part);
                self.manager.copy_out(&mut self.engines, owner, bytes.clone());
                for index in self.indices(&bytes) {
                    let block = Block { owner, index };
                    // Of a block that is copied in part the rest may still be on the card alone.
                    let is_on_card = self
                        .engines
                        .versions
                        .get(&block)
                        .is_some_and(|versions| versions.card.is_some());
                    self.engines.check(block, is_on_card);
                }
                true
            }
            Call::CopyOut(_) => false,
            Call::Launch { ns, reaches } => return self.launch_when_ready(at, *ns, reaches),
        };
        if is_done {
            self.processes[at].ready = self.engines.now;
        } else {
            let end = self.end_of(Some(owner));
            self.waits(at, end);
        }
        is_done
    }

    /// Brings what a launch needs and starts it, unless another has to end before.
    fn launch_when_ready(&mut self, at: usize, ns: u64, reaches: &[Reach]) -> bool {
        let owner = at as u32;
        let process = &self.processes[at];
        let touches = reaches.iter().map(|reach| {
            let start = process.starts[reach.buffer];
            let all = 0..process.program.buffers[reach.buffer];
            let bytes = reach.bytes.clone().unwrap_or(all);
            Touch {
                bytes: start + bytes.start..start + bytes.end,
                stores: reach.stores,
            }
        });
        let touches = touches.collect();
        let changed = reaches.iter().flat_map(|reach| {
            let first = (process.starts[reach.buffer] / self.engines.block_bytes) as u32;
            reach.changed.iter().map(move |block| first + block)
        });
        let changed: Vec<u32> = changed.collect();
        match self
            .manager
            .prepare(&mut self.engines, &Launch { owner, touches })
        {
            Ok(prepared) => {
                self.launch(at, ns as f64, prepared, &changed);
                true
            }
            Err(Busy) => {
                let end = self.end_of(None);
                self.waits(at, end);
                false
            }
        }
    }

    fn waits(&mut self, at: usize, end: Option<f64>) {
        let others = self
            .processes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at);
        let next = others
            .map(|(_, process)| process.ready)
            .fold(f64::INFINITY, f64::min);
        let process = &mut self.processes[at];
        // Or for somebody who came before, and goes on when he is ready.
        let next = if next.is_finite() { next + TURN_NS } else { TURN_NS };
        process.ready = end.unwrap_or(next).max(process.ready + TURN_NS);
    }

    /// The owner's buffers have new bytes. What went to the card at once is there.
    fn given(&mut self, owner: u32, bytes: &Range<u64>) {
        let of = self.engines.block_bytes;
        for index in self.indices(bytes) {
            let version = self.engines.fresh();
            let is_whole = bytes.start <= u64::from(index) * of && u64::from(index + 1) * of <= bytes.end;
            let versions = self.engines.versions.entry(Block { owner, index }).or_default();
            versions.latest = version;
            let was_clean = versions.card.is_none_or(|card| card == versions.host);
            if is_whole || was_clean {
                versions.host = version;
            }
            if let Some(card) = &mut versions.card {
                *card = version;
            }
        }
    }

    fn indices(&self, bytes: &Range<u64>) -> Range<u32> {
        let of = self.engines.block_bytes;
        (bytes.start / of) as u32..bytes.end.div_ceil(of) as u32
    }

    /// A launch whose working set is there.
    fn launch(&mut self, at: usize, ns: f64, prepared: Prepared, changed: &[u32]) {
        let engines = &mut self.engines;
        let owner = at as u32;
        let mut remote_bytes = 0;
        for (_, stores) in &prepared.remote {
            remote_bytes += engines.block_bytes * if *stores { 2 } else { 1 };
            engines.figures.bytes_in += engines.block_bytes;
            engines.figures.bytes_out += if *stores { engines.block_bytes } else { 0 };
        }
        let ns = ns + remote_bytes as f64 / engines.bytes_per_ns;
        let start = engines.now.max(engines.launches_until);
        engines.launches_until = start + ns;
        engines.figures.launch_ns += ns;
        engines.figures.remote += prepared.remote.len() as u64;
        let places = prepared.blocks.iter().map(|block| (block, true));
        for ((block, _), is_on_card) in places.chain(prepared.remote.iter().map(|block| (block, false))) {
            engines.check(*block, is_on_card);
        }
        for &index in changed {
            let version = engines.fresh();
            let versions = engines.versions.entry(Block { owner, index }).or_default();
            versions.latest = version;
            match &mut versions.card {
                Some(card) => *card = version,
                None => versions.host = version,
            }
        }
        let end = engines.launches_until;
        self.under_way.push(UnderWay { end, owner, prepared });
        let process = &mut self.processes[at];
        process.launched = end;
        process.used += ns;
        // One launch may wait behind another.
        process.ready = process.ready.max(start);
    }
}
