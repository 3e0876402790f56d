//! A whole run from one seed: several guests, pressure, faults, checkers after every event.
//!
//! The seed decides sizes, who does what, who comes and goes, which quotas change, in which order things happen, how fast
//! the card is, and what goes wrong. One thread runs at a time, so a run is repeated exactly by its seed.
//!
//! A run ends with a phase in which nothing goes wrong any more: the faults stop, the guests have ended, the hostile ones
//! leave, and everything that is under way has to come to an end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use broker::{RecordError, Recorder};
use fermi_model::Stepped;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::{Denial, GpuConfig, Notice, VmId};

use crate::checkers::{Violation, check_empty, check_frames, check_shadows, is_so_of};
use crate::rewrite::{Rewriter, Rewrites};
use crate::watch::{World, check_sums, host};
use sim_host::turns::{Player, Turn};

mod drawn;
mod held;
mod hostile_policy;
mod lending;
mod log;
mod operator;
mod rest;
mod vms;

use drawn::{Drawn, DrawnVm};
use hostile_policy::HostilePolicy;
use log::Log;
use operator::{Departure, Holds};
use vms::{Kind, Vm};

pub use log::Telling;

const MIB: u64 = 1 << 20;
/// RAM that the device of a VM reaches from the start.
const RAM_BYTES: u64 = 16 << 20;
const INPUT_GPA: u64 = 8 * MIB + 0x123;
const DMA: std::ops::Range<u64> = MIB..7 * MIB;
/// A run that needs more turns than this hangs.
const TURNS_MAX: u64 = 30_000_000;
/// Bound of architecture §6 on how long a guest's access may be held for another VM's sake.
const HELD_MAX_NS: u64 = 200_000_000;
/// Longest time that a machine may wait for a reset, or for RAM to be taken away: a channel may have to be thrown off.
const MACHINE_HELD_MAX_NS: u64 = 6_000_000_000;
/// Host time that passes with each answer to a guest.
const ANSWER_NS: u64 = 200;
/// Events between two walks of all shadow tables.
const WALK_EVERY: u64 = 512;

/// Lines of the flight recorder that are shown beside a violation.
const FLIGHT_LINES: usize = 100;

/// What a run may do and how much of it is told.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How much of the log is kept. Its hash is the same for all but [`Telling::Nothing`], which has none.
    pub telling: Telling,
    /// Let some guests be hostile.
    pub hostile: bool,
    /// Let hardware misbehave.
    pub faults: bool,
    /// Let the memory manager be told nonsense by a policy of noise, in place of the default one.
    pub hostile_policy: bool,
    /// Write and read the core between events.
    pub rewrites: Option<Rewrites>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            telling: Telling::Outcome,
            hostile: true,
            faults: true,
            hostile_policy: false,
            rewrites: None,
        }
    }
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// What the seed drew: the card, its faults, the VMs. A line each.
    pub drawn: String,
    /// What was drawn and one line for each event, if asked for.
    pub log: String,
    /// Hash of all events and actions but notices, however much of them is told, if anything is: 16 digits, by which runs of one build are compared.
    pub log_hash: String,
    /// Number of events applied.
    pub events: u64,
    /// Spills and refills.
    pub moves: (u64, u64),
    /// Channels suspended, moves rolled back.
    pub suspensions: u64,
    /// Moves that had to be given up.
    pub roll_backs: u64,
    /// Proposals of the policy that limits cut or refused.
    pub breaches: u64,
    /// How often the core was written and read, and how many texts with a wrong number were refused meanwhile.
    pub rewrites: (u64, u64),
    /// Why requests of VMMs that lie were refused, and how many.
    pub refused: BTreeMap<String, u64>,
    /// The first law that did not hold, or guest that was wronged.
    pub violation: Option<String>,
    /// The card's channel and interrupt registers at that moment, one a line.
    pub card: String,
    /// What happened last before it, an event or action a line.
    pub flight: String,
    /// The state of the core at that moment, as a tree.
    pub state: String,
}

struct Simulation {
    world: World,
    rng: ChaCha8Rng,
    vms: Vec<Vm>,
    log: Arc<Mutex<Log>>,
    last_walk: u64,
    slow_card: u32,
    drawn: Drawn,
    /// The changes of VMs to come, the last one first.
    departures: Vec<Departure>,
    have_newcomers: bool,
    /// Attaches as soon as those who leave are gone.
    coming: Option<DrawnVm>,
    /// Turns between two changes of a quota, on average.
    quota_turns: u32,
    holds: Holds,
    lies: ChaCha8Rng,
    /// Number of events after which nothing goes wrong any more.
    faults_end_at: u64,
    /// Numbers of events at which all guests stand still until memory is at rest, the last one first.
    pauses: Vec<u64>,
}

/// Runs one seed to its end, or to the first violation.
pub fn run(seed: u64, settings: Settings) -> Outcome {
    run_with(seed, settings, |_| None)
}

/// The same, recorded into `file`, which `cargo xtask replay` repeats without the simulation.
pub fn run_recorded(seed: u64, settings: Settings, file: &Path) -> Result<Outcome, RecordError> {
    let mut failed = None;
    let outcome = run_with(seed, settings, |gpu| {
        Recorder::create(file, gpu)
            .map_err(|error| failed = Some(error))
            .ok()
    });
    failed.map_or(Ok(outcome), Err)
}

fn run_with(seed: u64, settings: Settings, recorder: impl FnOnce(&GpuConfig) -> Option<Recorder>) -> Outcome {
    let log = Arc::new(Mutex::new(Log::new(settings.telling)));
    let mut simulation = Simulation::new(seed, settings, recorder, Arc::clone(&log));
    let result = simulation.run(settings);
    let audit = simulation.world.manager.audit().unwrap_or_default();
    // What an honest policy proposes is within limits, which it sees.
    let result = result.and_then(|()| match audit.breaches.is_empty() || settings.hostile_policy {
        true => Ok(()),
        false => Err(Violation(format!(
            "the policy broke limits: {:?}",
            audit.breaches
        ))),
    });
    let violation = result.err().map(|violation| violation.0);
    let (card, flight, state) = if violation.is_some() {
        let world = &mut simulation.world;
        let state = world.manager.inspect(world.now, "").map(|node| node.to_string());
        let flight = world.flight().last_as_text(FLIGHT_LINES);
        (world.card_state(), flight, state.unwrap_or_default())
    } else {
        Default::default()
    };
    let mut moves = (0, 0);
    let (mut suspensions, mut roll_backs) = (0, 0);
    for (_, notice) in &simulation.world.notices {
        match notice {
            Notice::Moved {
                direction,
                chunks,
                pause_ns,
                ..
            } => {
                match direction {
                    vgpu::Direction::Spill => moves.0 += u64::from(*chunks),
                    vgpu::Direction::Refill => moves.1 += u64::from(*chunks),
                }
                suspensions += u64::from(pause_ns.is_some());
            }
            Notice::RolledBack { .. } => roll_backs += 1,
            _ => {}
        }
    }
    let drawn = simulation.drawn.to_string();
    let refused = simulation.world.refused().clone();
    let rewriter = simulation.world.watch.rewriter.as_ref();
    let rewrites = rewriter.map_or((0, 0), |rewriter| (rewriter.done, rewriter.refused));
    drop(simulation);
    let log = std::mem::take(&mut *log.lock().expect("one thread"));
    let events = log.events;
    let (log, log_hash) = log.end();
    Outcome {
        drawn,
        log,
        log_hash,
        events,
        moves,
        suspensions,
        roll_backs,
        breaches: audit.breaches.values().sum(),
        rewrites,
        refused,
        violation,
        card,
        flight,
        state,
    }
}

impl Simulation {
    fn new(
        seed: u64,
        settings: Settings,
        recorder: impl FnOnce(&GpuConfig) -> Option<Recorder>,
        log: Arc<Mutex<Log>>,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (vram, config) = drawn::card(seed, settings.hostile_policy, &mut rng);
        let (vms_max, each_max) = drawn::admissible(vram, &config);
        let recorder = recorder(&config);
        let policy = settings
            .hostile_policy
            .then(|| Box::new(HostilePolicy::new(seed)) as _);
        let mut world = host(vram, config, policy, recorder);
        let into = Arc::clone(&log);
        world.on_event = Box::new(move |now, event, actions| {
            into.lock().expect("one thread").event(now, event, actions);
        });
        if settings.faults {
            let faults = world.model.faults_mut();
            drawn::swarm(faults, &mut rng);
            drawn::hang(seed, faults);
        }
        world.watch.rewriter = settings.rewrites.map(|rewrites| {
            let policy = settings.hostile_policy.then_some(HostilePolicy::fresh as _);
            Rewriter::new(rewrites, world.config(), policy)
        });
        world.refuse_maps = [0, 0, 2, 7][rng.random_range(0..4usize)];
        drawn::host_memory(&mut world, seed);
        world.work_between_actions = [0, 1, 1, 4][rng.random_range(0..4usize)];
        let slow_card = drawn::slow_card(world.model.faults_mut(), &mut rng);
        let quota_turns = [u32::MAX, 5_000, 1_000, 300][rng.random_range(0..4usize)];
        let faults_end_at = [u64::MAX, u64::MAX, 4_000][rng.random_range(0..3usize)];
        let mut simulation = Self {
            world,
            holds: Holds::new(seed, &rng),
            lies: drawn::lies(&rng),
            slow_card,
            rng,
            vms: Vec::new(),
            log,
            last_walk: 0,
            drawn: Drawn::default(),
            departures: Vec::new(),
            have_newcomers: false,
            coming: None,
            quota_turns,
            faults_end_at,
            pauses: drawn::pauses(seed, settings.hostile_policy),
        };
        let card = drawn::card_text(vram, &mut simulation.world, slow_card);
        simulation.tell(card);
        let count = simulation.rng.random_range(2..=vms_max);
        let mut vms = Vec::new();
        for vm in 0..count {
            // The first is honest always: somebody must be able to be wronged.
            let kind = if vm == 0 {
                Kind::Honest
            } else {
                simulation.draw_kind(settings)
            };
            vms.push(simulation.draw_vm(VmId(vm), kind, each_max));
        }
        simulation.draw_departures(count, settings, each_max);
        // The log begins with all that was drawn: nobody attaches before.
        for vm in vms {
            simulation.add_vm(vm);
        }
        simulation
    }

    /// Notes what was drawn, for the head of the log and for whoever looks at a violation.
    fn tell(&mut self, lines: Vec<String>) {
        for line in lines {
            self.log.lock().expect("one thread").remark(&format!("{line}\n"));
            self.drawn.add(line);
        }
    }

    fn run(&mut self, settings: Settings) -> Result<(), Violation> {
        let ids: Vec<VmId> = self.vms.iter().map(|vm| vm.id).collect();
        self.idle_until(|world| ids.iter().all(|&id| world.vm(id).attached.is_some()))?;
        (0..self.vms.len()).try_for_each(|at| self.bring_up(at))?;
        let mut turns = 0;
        while self
            .vms
            .iter()
            .flat_map(Vm::players)
            .any(|player| player.outcome().is_none())
        {
            if self.world.is_lost {
                return self.end_without_card();
            }
            turns += 1;
            if turns > TURNS_MAX {
                return Err(Violation("the run does not end".to_owned()));
            }
            self.turn()?;
        }
        self.come_to_rest()?;
        if !settings.hostile_policy {
            self.settle()?;
        }
        self.tear_down()?;
        match self.world.is_lost {
            true => self.end_without_card(),
            false => Ok(()),
        }
    }

    /// Lets an attached VM's device reach its RAM, and its guest begin.
    fn bring_up(&mut self, at: usize) -> Result<(), Violation> {
        let id = self.vms[at].id;
        match &self.world.vm(id).attached {
            // What others were lent is theirs until they need it no more, and a newcomer finds less.
            Some(Err(Denial::Shadows { lent: 1.., .. })) => {
                self.vms.remove(at);
                return Ok(());
            }
            // Whether rightly, the end of the run judges.
            Some(Err(_)) if self.world.is_lost => {
                self.vms.remove(at);
                return Ok(());
            }
            Some(Err(reason)) => return Err(Violation(format!("{id} was denied: {reason}"))),
            Some(Ok(())) | None => {}
        }
        for map in drawn::maps_of_ram(self.world.config(), id) {
            let request = self.world.ask(id, map);
            self.idle_until(|world| world.take_reply(id, request).is_some())?;
        }
        drawn::map_windows(&mut self.world, id, self.vms[at].kind);
        let Vm { player, vmm, .. } = &mut self.vms[at];
        player.begin();
        vmm.iter_mut().for_each(Player::begin);
        Ok(())
    }

    /// One thing happens.
    fn turn(&mut self) -> Result<(), Violation> {
        self.operate()?;
        match self.rng.random_range(0..8u32) {
            0..=1 => {
                let work = self.rng.random_range(1..=self.slow_card);
                // A poll that the card has just met is not waited for until it ends in vain.
                if self.world.step(work) == Stepped::Idle && !self.world.look() && self.everybody_sleeps() {
                    self.jump();
                }
                self.world.now.0 += 300;
            }
            2 => {
                self.world.now.0 += self.rng.random_range(100..20_000);
                self.world.look();
            }
            _ => {
                let at = self.rng.random_range(0..self.vms.len());
                self.guest_turn(at)?;
            }
        }
        self.collect_replies()?;
        self.check()
    }

    fn everybody_sleeps(&self) -> bool {
        let mut players = self.vms.iter().flat_map(Vm::players);
        players.all(|player| player.sleeps(self.world.now))
    }

    /// To the next moment at which something is due.
    fn jump(&mut self) {
        let now = self.world.now.0;
        let players = self.vms.iter().flat_map(Vm::players);
        let guests = players.filter_map(Player::rests_until);
        let next = guests
            .filter(|until| *until > now)
            .chain(self.world.next_due().map(|at| at.0))
            .min();
        self.world.now.0 = next.unwrap_or(0).max(now + 1_000);
        self.world.look();
    }

    fn guest_turn(&mut self, at: usize) -> Result<(), Violation> {
        // A card that hangs is waited for about as long as a store for what windows are to show.
        let may_hang = self.card_may_hang();
        let (vm, rng) = (&mut self.vms[at], &mut self.rng);
        let turn = vm
            .player
            .take_turn(&mut self.world, || rng.random_range(1_000..200_000));
        if let Some(vmm) = &mut vm.vmm {
            let lies = &mut self.lies;
            vmm.take_turn(&mut self.world, || lies.random_range(1_000..200_000));
        }
        match turn {
            Turn::Missed | Turn::Taken => {}
            Turn::Reported(line) => note_report(vm, &line),
            Turn::Ended => {
                let may_read_zeros = may_hang && is_so_of(&self.world, vm.id, |of| of.shows_late);
                if vm.kind != Kind::Hostile
                    && !may_read_zeros
                    && let Some(Err(error)) = vm.player.outcome()
                {
                    return Err(Violation(format!("{}: {error}", vm.id)));
                }
            }
        }
        Ok(())
    }

    fn collect_replies(&mut self) -> Result<(), Violation> {
        // Nobody is answered by a card that hangs, and all end with it.
        let may_hold = self.card_may_hang();
        for vm in &mut self.vms {
            let collected = vm.player.collect_reply(&mut self.world);
            // Whoever asks once the card is lost is refused.
            if self.world.is_lost {
                return Ok(());
            }
            collected.map_err(Violation)?;
            if let Some(vmm) = &mut vm.vmm {
                // What its own machine has sent may be in front of its guest's access.
                vmm.collect_reply(&mut self.world).map_err(Violation)?;
                continue;
            }
            let held = vm.player.held_ns(self.world.now);
            let work = self.world.manager.work(vm.id).map_or(0, |(work, _)| work);
            let for_own_work = vm.held.for_own_work(held.is_some(), work);
            let held = held.unwrap_or(0);
            let waits = || is_so_of(&self.world, vm.id, |of| of.waits_to_show);
            let for_others = vm.held.for_others(held, HELD_MAX_NS, self.world.now, waits);
            // What it waits for itself may take longer.
            let held_max = match vm.player.waits_for_machine() {
                true => MACHINE_HELD_MAX_NS,
                // A clock jump may overshoot by what nobody could have used.
                false => HELD_MAX_NS + 60_000_000,
            };
            // Who asks for much work on purpose waits for it.
            let held_max = match vm.kind {
                Kind::Hostile => held_max.saturating_add(for_own_work),
                _ => held_max,
            };
            if (for_others > held_max || held > MACHINE_HELD_MAX_NS) && !may_hold {
                return Err(Violation(format!(
                    "an access of {} is held for {} ms",
                    vm.id,
                    held / 1_000_000
                )));
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Violation> {
        let events = self.log.lock().expect("one thread").events;
        if events == self.last_walk {
            return Ok(());
        }
        if events / 16 != self.last_walk / 16 {
            check_frames(&self.world)?;
        }
        if events / WALK_EVERY != self.last_walk / WALK_EVERY {
            check_shadows(&self.world)?;
            check_sums(&self.world)?;
        }
        self.last_walk = events;
        Ok(())
    }

    fn tear_down(&mut self) -> Result<(), Violation> {
        check_frames(&self.world)?;
        check_shadows(&self.world)?;
        check_sums(&self.world)?;
        let ended: Vec<usize> = (0..self.vms.len()).filter(|&at| !self.vms[at].leaves).collect();
        ended.into_iter().for_each(|at| self.send_away(at));
        let ids: Vec<VmId> = self.gone().collect();
        self.idle_until(|world| ids.iter().all(|&id| world.vm(id).detached))?;
        if self.world.is_lost {
            return Ok(());
        }
        check_empty(&self.world)?;
        for vm in self.vms.iter().filter(|vm| vm.kind == Kind::Honest) {
            match vm.player.outcome() {
                Some(Ok(())) if vm.digest == vm.expected => {}
                Some(Ok(())) => {
                    return Err(Violation(format!(
                        "{} read back {} not {}",
                        vm.id, vm.digest, vm.expected
                    )));
                }
                Some(Err(error)) => return Err(Violation(format!("{}: {error}", vm.id))),
                None => return Err(Violation(format!("{} did not end", vm.id))),
            }
        }
        Ok(())
    }
}

fn note_report(vm: &mut Vm, line: &str) {
    let parsed: BTreeMap<String, serde_json::Value> = serde_json::from_str(line).unwrap_or_default();
    if let Some(digest) = parsed
        .get("digest")
        .and_then(|digest| digest.get("sha256")?.as_str())
    {
        vm.digest = digest.to_owned();
    }
}
