//! A simulated host whose failures are errors, and whose time is the card's.
//!
//! Guests and core take no time. While the card works, its clock alone moves on; while it rests, time leaps to what is due next.
//! So two runs with the same seed are equal to the last byte, and no figure depends on who ran them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use fermi_model::Stepped;
use fermi_spec::addr::Gpa;
use sim_host::bus::{Guest, SimBus};
use sim_host::turns::{Player, Turn};
use sim_host::world::World;
use vgpu::{Denial, Event, GpuConfig, Reply, Request, Tick, VmConfig, VmId};

use crate::MIB;
use crate::jobs::Onlooker;

/// VRAM of the card; guests get as much of it as the settings say.
pub(crate) const CARD_BYTES: u64 = 512 * MIB;
/// RAM of a VM, mapped for DMA.
pub(crate) const RAM_BYTES: u64 = 24 * MIB;
/// Nanoseconds after which a guest that waits looks again.
const RELAX_NS: u64 = 2_000;
/// Accesses of a guest between two pieces of the card's work.
const BURST: usize = 64;
/// Pieces of the card's work between two looks of the guests: methods, or 4 KiB of a copy each.
const WORK: u32 = 8;
/// Turns without an end in sight after which a run counts as hanging: days of the card's time.
const TURNS_MAX: u64 = 1 << 32;
/// Turns between two looks at whether the operator wants to stop.
const LOOK_EVERY: u64 = 256;
/// Longest leap of the clock while nothing works.
const LEAP_NS: u64 = 1_000_000;

/// Why an experiment gives no figures.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A VM of an experiment was not let in.
    #[error("{vm} is not let in: {reason}")]
    Denied {
        /// Number of the VM, as the experiment attached it.
        vm: VmId,
        /// The core's reason.
        reason: Denial,
    },
    /// A guest found something wrong: bytes, or its device.
    #[error("the guest of {vm}: {what}")]
    Guest {
        /// The guest's VM.
        vm: VmId,
        /// What it says.
        what: String,
    },
    /// The core gave the card up.
    #[error("the card was given up")]
    CardLost,
    /// What was waited for does not happen.
    #[error("{what} does not come to an end")]
    Endless {
        /// What was waited for.
        what: &'static str,
    },
    /// The operator does not want to wait.
    #[error("stopped")]
    Stopped,
    /// The core broke a promise: a fault of ours.
    #[error("a fault of the simulated host: {what}")]
    Fault {
        /// Message of the assertion that failed.
        what: String,
    },
    /// The chart cannot be drawn.
    #[error("cannot draw the chart: {what}")]
    Chart {
        /// What is wrong.
        what: String,
    },
}

/// A moment: the time, and how many notices there were. Guests do much at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Tick,
    pub(crate) notices: usize,
}

/// A line that a guest wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    pub(crate) at: Moment,
    pub(crate) vm: VmId,
    pub(crate) text: String,
}

/// Guest code under way, and where its result will be.
pub(crate) struct Task<T> {
    pub(crate) vm: VmId,
    result: Rc<Cell<Option<T>>>,
}

/// Core, card, and guests.
pub(crate) struct Host<'a> {
    pub(crate) world: World,
    players: BTreeMap<VmId, Player>,
    pub(crate) lines: Vec<Line>,
    onlooker: &'a dyn Onlooker,
    turns: u64,
}

impl<'a> Host<'a> {
    pub(crate) fn new(config: GpuConfig, onlooker: &'a dyn Onlooker) -> Self {
        let mut world = World::new(CARD_BYTES, config);
        world.is_on_card_time = true;
        Self {
            world,
            players: BTreeMap::new(),
            lines: Vec::new(),
            onlooker,
            turns: 0,
        }
    }

    /// Lets a VM in, with all of its RAM mapped.
    pub(crate) fn attach(&mut self, vm: VmId, config: VmConfig) -> Result<(), LabError> {
        self.world.attach(vm, config, RAM_BYTES as usize);
        self.turn_until("an attach", |host| host.world.vm(vm).attached.is_some())?;
        if let Some(Err(reason)) = self.world.vm(vm).attached.clone() {
            return Err(LabError::Denied { vm, reason });
        }
        let request = Request::MapRam {
            gpa: Gpa(0),
            bytes: RAM_BYTES,
            writable: true,
        };
        let request = self.world.ask(vm, request);
        let mut reply = None;
        self.turn_until("a map of RAM", |host| {
            reply = host.world.take_reply(vm, request);
            reply.is_some()
        })?;
        match reply {
            Some(Reply::Done) => Ok(()),
            other => Err(LabError::Fault {
                what: format!("RAM of {vm} is not mapped: {other:?}"),
            }),
        }
    }

    /// Starts guest code; it runs while the host turns.
    pub(crate) fn start<T: 'static>(
        &mut self,
        vm: VmId,
        code: impl FnOnce(&mut SimBus) -> Result<T, String> + 'static,
    ) -> Task<T> {
        let result = Rc::new(Cell::new(None));
        let into = Rc::clone(&result);
        let guest = Guest::start(Arc::clone(&self.world.vm(vm).ram), move |bus| {
            let value = code(bus)?;
            into.set(Some(value));
            Ok(())
        });
        let mut player = Player::new(vm, guest, 0);
        player.begin();
        self.players.insert(vm, player);
        Task { vm, result }
    }

    /// Whether the VM's code has ended, or none was started.
    pub(crate) fn has_ended(&self, vm: VmId) -> bool {
        let player = self.players.get(&vm);
        player.is_none_or(|player| player.outcome().is_some())
    }

    /// Turns until the code has ended.
    pub(crate) fn join<T>(&mut self, task: Task<T>) -> Result<T, LabError> {
        let vm = task.vm;
        self.turn_until("a guest's program", |host| host.has_ended(vm))?;
        self.players.remove(&vm);
        let value = task.result.take();
        value.ok_or(LabError::Fault {
            what: format!("the program of {vm} left no result"),
        })
    }

    /// Runs guest code to its end.
    pub(crate) fn run<T: 'static>(
        &mut self,
        vm: VmId,
        code: impl FnOnce(&mut SimBus) -> Result<T, String> + 'static,
    ) -> Result<T, LabError> {
        let task = self.start(vm, code);
        self.join(task)
    }

    /// The VM goes, and its program where it is.
    pub(crate) fn detach(&mut self, vm: VmId) -> Result<(), LabError> {
        self.players.remove(&vm);
        self.world.submit(Event::Detach { vm });
        self.turn_until("a detach", |host| host.world.vm(vm).detached)
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ns: u64) -> Result<(), LabError> {
        let until = self.world.now.after(ns);
        self.turn_until("the clock", |host| host.world.now >= until)
    }

    /// Turns until `done`.
    pub(crate) fn turn_until(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), LabError> {
        for _ in 0..TURNS_MAX {
            if done(self) {
                return Ok(());
            }
            self.turn()?;
        }
        Err(LabError::Endless { what })
    }

    fn turn(&mut self) -> Result<(), LabError> {
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_EVERY) && self.onlooker.wants_to_stop() {
            return Err(LabError::Stopped);
        }
        if self.world.is_lost {
            return Err(LabError::CardLost);
        }
        let vms: Vec<VmId> = self.players.keys().copied().collect();
        vms.iter().try_for_each(|&vm| self.guest_turns(vm))?;
        let before = self.world.model.gpu_time();
        let stepped = self.world.step(WORK);
        let after = self.world.model.gpu_time();
        if stepped != Stepped::Busy && after == before {
            self.leap();
        }
        self.world.look();
        vms.iter().try_for_each(|&vm| self.collect_reply(vm))
    }

    /// Accesses of a guest until it waits.
    fn guest_turns(&mut self, vm: VmId) -> Result<(), LabError> {
        for _ in 0..BURST {
            let Some(player) = self.players.get_mut(&vm) else {
                return Ok(());
            };
            match player.take_turn(&mut self.world, || RELAX_NS) {
                Turn::Missed => return Ok(()),
                Turn::Taken => self.collect_reply(vm)?,
                Turn::Reported(text) => {
                    let at = self.moment();
                    self.lines.push(Line { at, vm, text });
                }
                Turn::Ended => {
                    return match player.outcome() {
                        Some(Err(what)) => Err(LabError::Guest {
                            vm,
                            what: what.clone(),
                        }),
                        _ => Ok(()),
                    };
                }
            }
        }
        Ok(())
    }

    fn collect_reply(&mut self, vm: VmId) -> Result<(), LabError> {
        let Some(player) = self.players.get_mut(&vm) else {
            return Ok(());
        };
        match player.collect_reply(&mut self.world) {
            Ok(_) => Ok(()),
            Err(what) => Err(LabError::Guest { vm, what }),
        }
    }

    /// Moves the clock to the next moment at which something is due. A guest that does not wait goes on at once.
    fn leap(&mut self) {
        let now = self.world.now;
        let sleeps = self.players.values().all(|player| player.sleeps(now));
        let rests = self.players.values().filter_map(Player::rests_until);
        let due = rests.chain(self.world.next_due().map(|at| at.0)).min();
        let next = match sleeps {
            true => due.unwrap_or(u64::MAX).min(now.0 + LEAP_NS),
            false => now.0,
        };
        self.world.now = Tick(next.max(now.0 + 100));
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            now: self.world.now,
            notices: self.world.notices.len(),
        }
    }
}
