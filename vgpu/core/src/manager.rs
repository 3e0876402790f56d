//! All vGPUs of one GPU. [`Manager::apply`] is the crate's only entry.
//!
//! ```text
//! waiting ─Start─► identifying ─values─► programming ─polls─► up
//!                       └──────── bad card ────┴──► failed  └─ a flush or runlist that does not end ─► lost
//! ```
//!
//! While the card comes up, attaches wait and nothing else is expected. The real work is in [`running`].

use fermi_spec::regs::PpciReg;

use crate::account::{Account, Accounts};
use crate::config::{GpuConfig, VmConfig};
use crate::device::ram::IovaSpace;
use crate::event::{Action, Actions, Event, HostMemory, Refusal, Reply, Tick, VmId};
use crate::host::bring_up::{Identifying, Identity, Layout, program};
use crate::host::copy::OWN_BYTES;
use crate::host::lane::{PollEnd, Tokens};
use crate::host::{Card, Job};
use crate::inspect::{Inspect, Node, Tree};
use crate::notice::Notice;
use crate::policy::Policy;
use crate::reason::{CardOperation, Denial, StartFailure};

mod activity;
mod ahead;
mod aside;
mod at_once;
mod audits;
mod backing;
mod channels;
mod claim;
mod contexts;
mod demands;
mod engine_looks;
mod engine_time;
mod errors;
mod exchanging;
pub(crate) mod forecast;
mod gpu_time;
mod holding;
mod images;
mod instance_pages;
mod isolation;
mod limits;
pub(crate) mod live_userd;
pub(crate) mod live_windows;
mod moments;
mod mover;
mod moves;
mod parking;
mod parts;
mod pauses;
mod pointing;
mod preparing;
mod pressure;
mod ram_maps;
mod recovery;
mod requests;
pub(crate) mod running;
mod saved;
mod saved_blocks;
mod soundness;
mod standing;
mod syncs;
mod teardown;
#[cfg(test)]
mod tests;
mod turns;
mod wakeups;
mod watchdog;
mod window_copy;
mod windows;

pub use limits::Breach;
use running::Running;
pub use saved::Volatile;
pub use standing::{Standing, VmStanding};

/// What one `apply` works with besides the state.
pub(crate) struct Cx<'a> {
    pub(crate) now: Tick,
    pub(crate) memory: &'a mut dyn HostMemory,
    pub(crate) actions: &'a mut Actions,
    pub(crate) accounts: &'a mut Accounts,
}

impl Cx<'_> {
    /// Gives a notice, and counts it.
    pub(crate) fn tell(&mut self, notice: Notice) {
        self.accounts.add(&notice, self.now);
        self.actions.push(Action::Notice(notice));
    }
}

enum Phase {
    Waiting,
    Identifying {
        identifying: Identifying,
        tokens: Tokens,
    },
    Programming {
        card: Box<Card>,
        identity: Identity,
        layout: Layout,
        iova: IovaSpace,
    },
    Up(Box<Running>),
    Failed(StartFailure),
    /// The card did not do what everything relies on. The edge lets go of it, and nothing is given to anybody any more.
    Lost(CardOperation),
}

/// Mediator and memory manager of one GPU.
pub struct Manager {
    config: GpuConfig,
    /// Until the card is up.
    policy: Option<Box<dyn Policy>>,
    phase: Phase,
    /// Attaches that came before the card was up.
    early: Vec<(VmId, VmConfig)>,
    accounts: Accounts,
}

impl Manager {
    /// A manager that waits for [`Event::Start`].
    pub fn new(config: GpuConfig) -> Self {
        let policy = config.policy.policy(&config);
        Self::with_policy(config, policy)
    }

    /// The same with a policy that [`PolicyName`](crate::PolicyName) does not list. A recording names policies only, so
    /// one of this manager cannot be replayed.
    pub fn with_policy(config: GpuConfig, policy: Box<dyn Policy>) -> Self {
        Self {
            config,
            policy: Some(policy),
            phase: Phase::Waiting,
            early: Vec::new(),
            accounts: Accounts::default(),
        }
    }

    /// Applies one event: appends what is to be done, in order. Never waits.
    pub fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        // Out of the state while the rest of it is worked on.
        let mut accounts = std::mem::take(&mut self.accounts);
        let mut cx = Cx {
            now,
            memory,
            actions,
            accounts: &mut accounts,
        };
        match &mut self.phase {
            Phase::Up(running) => {
                if let Err(operation) = running.apply(event, &mut cx) {
                    cx.actions.push(Action::CardLost { operation });
                    self.phase = Phase::Lost(operation);
                }
            }
            _ => self.apply_early(event, &mut cx),
        }
        self.accounts = accounts;
    }

    fn apply_early(&mut self, event: Event, cx: &mut Cx<'_>) {
        match event {
            Event::Start => {
                let mut tokens = Tokens::default();
                let identifying = Identifying::start(&mut tokens, cx.actions);
                self.phase = Phase::Identifying { identifying, tokens };
            }
            Event::Attach { vm, config } => match &self.phase {
                Phase::Failed(failure) => {
                    let reason = Denial::Card(failure.clone());
                    cx.actions.push(Action::Denied { vm, reason });
                }
                Phase::Lost(operation) => {
                    let reason = Denial::CardLost {
                        operation: *operation,
                    };
                    cx.actions.push(Action::Denied { vm, reason });
                }
                _ => self.early.push((vm, config)),
            },
            Event::Detach { vm } => {
                self.early.retain(|(early, _)| *early != vm);
                cx.actions.push(Action::Detached { vm });
            }
            Event::HostValue { token, data } => match &mut self.phase {
                Phase::Identifying { identifying, .. } => {
                    if let Some(result) = identifying.value(token, &data) {
                        self.identified(result, cx);
                    }
                }
                Phase::Programming { card, .. } => match card.graph_value(token, &data) {
                    Ok(is_up) => {
                        if is_up {
                            card.end_bring_up();
                        }
                        self.go_on_programming(cx);
                    }
                    Err(failure) => self.fail(failure, cx),
                },
                _ => {}
            },
            Event::PollDone { token, met } => self.programmed(token, met, cx),
            Event::Request { vm, id: request, .. } => {
                let reply = Reply::Refused(Refusal::NotAttached);
                cx.actions.push(Action::Reply { vm, request, reply });
            }
            Event::SetQuota { vm, .. } => {
                let reason = Denial::NotAttached { vm };
                cx.actions.push(Action::QuotaRefused { vm, reason });
            }
            Event::SetHostRam { bytes } => self.config.host_ram = bytes,
            // Nobody is attached.
            Event::SetHold { .. } | Event::LetWindows { .. } | Event::Doorbells { .. } => {}
            Event::HostInterrupt | Event::Wake | Event::MapRefused { .. } | Event::Populated { .. } => {}
        }
    }

    fn identified(&mut self, result: Result<Identity, StartFailure>, cx: &mut Cx<'_>) {
        let Phase::Identifying { tokens, .. } = std::mem::replace(&mut self.phase, Phase::Waiting) else {
            return;
        };
        match result {
            Ok(identity) => {
                let guest_bytes_max = self.config.guest_bytes_max;
                let layout = Layout::of(
                    identity.vram_bytes,
                    self.config.bar3_bytes,
                    self.config.shadow_bytes_min,
                    guest_bytes_max,
                );
                let mut iova = IovaSpace::new(&self.config.bus);
                let own = iova
                    .reserve_maps(1, None)
                    .then(|| iova.allocate(OWN_BYTES, None).0)
                    .flatten();
                let Some(own) = own else {
                    let usable = iova.usable();
                    return self.fail(StartFailure::BusAddresses { usable }, cx);
                };
                let card = Box::new(program(&identity, layout, &self.config, own, tokens, cx.actions));
                self.phase = Phase::Programming {
                    card,
                    identity,
                    layout,
                    iova,
                };
                self.go_on_programming(cx);
            }
            Err(failure) => self.fail(failure, cx),
        }
    }

    fn programmed(&mut self, token: crate::event::Token, met: bool, cx: &mut Cx<'_>) {
        let Phase::Programming { card, .. } = &mut self.phase else {
            return;
        };
        match card.poll_done(token, met) {
            PollEnd::GoesOn => {}
            PollEnd::Failed(Job::CopyEngineAsked(engine)) => {
                card.supply_copy_engine(engine, self.config.microcode.as_ref());
            }
            PollEnd::Failed(Job::CopyEngineStarted) => return self.fail(StartFailure::Microcode, cx),
            PollEnd::Failed(Job::GraphStarted | Job::GoldenMade) => {
                return self.fail(StartFailure::GraphMicrocode, cx);
            }
            PollEnd::Failed(_) | PollEnd::CardLost(_) => return self.fail(StartFailure::TimedOut, cx),
        }
        self.go_on_programming(cx);
    }

    fn go_on_programming(&mut self, cx: &mut Cx<'_>) {
        let Phase::Programming { card, .. } = &mut self.phase else {
            return;
        };
        let done = card.pump(cx.now, cx.actions);
        for (job, _) in &done {
            card.graph_job(*job, cx.actions);
        }
        if done.contains(&(Job::BringUp, true)) {
            self.finish_bring_up(cx);
        }
    }

    fn finish_bring_up(&mut self, cx: &mut Cx<'_>) {
        let Phase::Programming {
            mut card,
            identity,
            layout,
            iova,
        } = std::mem::replace(&mut self.phase, Phase::Waiting)
        else {
            return;
        };
        card.arena.open_to_vms();
        let policy = self
            .policy
            .take()
            .unwrap_or_else(|| self.config.policy.policy(&self.config));
        let mut running = Box::new(Running::new(
            self.config.clone(),
            policy,
            *card,
            &identity,
            layout,
            iova,
        ));
        cx.tell(Notice::Started {
            vram_bytes: identity.vram_bytes,
            usable_bytes: running.usable_bytes(),
        });
        if running.card.copies_by_window {
            cx.tell(Notice::CopiesByWindow);
        }
        running.card.copies_by_window |= self.config.copies_by_window;
        // An interrupt that came during bring-up is still up: look.
        cx.actions
            .register(PpciReg::PciMsiRearm, fermi_spec::regs::ppci::MSI_REARM);
        for (vm, config) in self.early.drain(..) {
            let applied = running.apply(Event::Attach { vm, config }, cx);
            debug_assert_eq!(applied, Ok(()), "only the end of a wait loses a card");
        }
        self.phase = Phase::Up(running);
    }

    fn fail(&mut self, failure: StartFailure, cx: &mut Cx<'_>) {
        for (vm, _) in self.early.drain(..) {
            let reason = Denial::Card(failure.clone());
            cx.actions.push(Action::Denied { vm, reason });
        }
        cx.tell(Notice::StartFailed {
            reason: failure.clone(),
        });
        self.phase = Phase::Failed(failure);
    }

    /// The state at `path`, such as `vms/vm1/chunks`, as a tree from the root on. An empty path asks for everything but
    /// long lists, and names the paths that have those. `None` if there is nothing at the path.
    pub fn inspect(&self, now: Tick, path: &str) -> Option<Node> {
        crate::inspect::inspect(self, now, path)
    }

    /// Sums of a VM since it was attached: its moves, pauses and waits. `None` if it is not attached.
    pub fn account(&self, vm: VmId) -> Option<&Account> {
        self.accounts.get(vm)
    }

    /// Work counted for a VM since it was attached, and the tables that are followed for it: for checkers that look after
    /// every event, for which [`Self::inspect`] is too slow. `None` if it is not attached.
    pub fn work(&self, vm: VmId) -> Option<(u64, usize)> {
        match &self.phase {
            Phase::Up(running) => running.work(vm),
            _ => None,
        }
    }

    /// What is under way that has an end, for checkers: a move, demands, channels and spaces on their way out, requests
    /// that wait, VMs above their `max`. Empty if nothing is.
    pub fn under_way(&self) -> Vec<String> {
        match &self.phase {
            Phase::Up(running) => running.under_way(),
            Phase::Failed(_) | Phase::Lost(_) => Vec::new(),
            _ => vec!["the start of the card".to_owned()],
        }
    }

    /// The chunks of a move that has pointed everything to the new copies and whose old ones still exist, for checkers
    /// that compare the two.
    pub fn redirected(&self) -> Option<Redirected> {
        match &self.phase {
            Phase::Up(running) => running.redirected(),
            _ => None,
        }
    }

    /// Who holds what, for checkers that compare it with the card's own tables. `None` until the card is up.
    pub fn audit(&self) -> Option<Audit> {
        match &self.phase {
            Phase::Up(running) => Some(running.audit()),
            _ => None,
        }
    }
}

/// What a move copied: see [`Manager::redirected`].
#[derive(Clone, Debug)]
pub struct Redirected {
    /// Number of the move.
    pub id: crate::notice::MoveId,
    /// VM whose chunks they are.
    pub vm: VmId,
    /// Where the guest has the bytes, and their number; without instance memory, which does not move.
    pub runs: Vec<(fermi_spec::addr::GuestVramAddr, u64)>,
}

/// A picture of all memory, and of every address space that a VM's channels use.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Frames that guests may hold, and how many of them are free.
    pub usable_frames: u32,
    /// Of those, free.
    pub free_frames: u32,
    /// First frame of the broker's arena, and their number.
    pub arena: (u32, u32),
    /// Parts of the arena that hold nothing: start and length.
    pub arena_free: Vec<(fermi_spec::addr::VramAddr, u64)>,
    /// VM whose memory moves.
    pub moving: Option<VmId>,
    /// VM whose move stands aside until its work is over.
    pub aside: Option<VmId>,
    /// Bytes of free VRAM that were collected for a VM's chunk, and the VM.
    pub claim: Option<(VmId, u64)>,
    /// The part of each VM.
    pub vms: Vec<VmAudit>,
    /// How often the policy's proposals were cut or refused, by the limit that they would have broken.
    pub breaches: std::collections::BTreeMap<Breach, u64>,
}

/// One VM's part.
#[derive(Clone, Debug)]
pub struct VmAudit {
    /// Id of the VM.
    pub vm: VmId,
    /// Frames it holds: (frame, guest VRAM address).
    pub frames: Vec<(fermi_spec::addr::FrameNo, fermi_spec::addr::GuestVramAddr)>,
    /// Bytes that are in VRAM and in its image, and equal: start and length.
    pub equal: Vec<(fermi_spec::addr::GuestVramAddr, u64)>,
    /// Bus addresses of its image: start and length.
    pub image: (fermi_spec::addr::Iova, u64),
    /// Bus addresses of its RAM: start and length.
    pub ram: Vec<(fermi_spec::addr::Iova, u64)>,
    /// Directories in the card's VRAM.
    pub directories: Vec<fermi_spec::addr::VramAddr>,
    /// Those of them that no channel uses any more and that a flush has still to drop. A move does not redirect them: its own flush comes behind.
    pub directories_leaving: Vec<fermi_spec::addr::VramAddr>,
    /// Parts of the arena that the allocator gave it: start and length.
    pub arena: Vec<(fermi_spec::addr::VramAddr, u64)>,
    /// Instance blocks of its channels, in the card's VRAM.
    pub blocks: Vec<fermi_spec::addr::VramAddr>,
    /// Frames that a move has emptied, which stay the VM's until its flush.
    pub emptied: Vec<fermi_spec::addr::FrameNo>,
    /// Some of its entries are still to be pointed away from these.
    pub is_pointed: bool,
    /// Physical channels that are suspended for a move.
    pub suspended: Vec<u8>,
    /// Something that its guest or its VMM asked for is not done.
    pub asks: bool,
    /// Bytes in VRAM.
    pub resident: u64,
    /// Bytes of chunks in host RAM.
    pub spilled: u64,
    /// Bytes in VRAM that channels reach, or that a sync has just asked for.
    pub active: u64,
    /// Bytes in VRAM that nothing reaches.
    pub idle: u64,
    /// Bytes in host RAM that channels reach.
    pub wanted: u64,
    /// Bytes of chunks of which a part is in VRAM and a part in host RAM: they hold all of their frames.
    pub split: u64,
    /// The smallest chunk of those that are wanted; 0 if there is none.
    pub smallest_wanted: u64,
    /// The largest chunk.
    pub chunk_bytes: u64,
    /// Its guest rests, and what it uses is others' as far as nothing protects it.
    pub lends: bool,
    /// Quota of the VM.
    pub quota: crate::config::Quota,
    /// What an operator holds back from it.
    pub hold: crate::config::Hold,
    /// Its interrupt line is up, and the guest has it signalled by the pin. The VMM may mask that.
    pub wants_intx: bool,
    /// A store of its guest waits for pages that windows are to show and that its GPU reaches.
    pub waits_to_show: bool,
    /// One has waited for them as long as it may: they read as zero until they are shown.
    pub shows_late: bool,
}

impl Inspect for Manager {
    fn inspect(&self, tree: &mut Tree<'_>) {
        match &self.phase {
            Phase::Waiting => tree.name("phase", "waiting"),
            Phase::Identifying { .. } => tree.name("phase", "identifying"),
            Phase::Programming { .. } => tree.name("phase", "programming"),
            Phase::Up(_) => tree.name("phase", "up"),
            Phase::Failed(reason) => tree.name("phase", format_args!("failed: {reason}")),
            Phase::Lost(operation) => tree.name("phase", format_args!("lost in a {operation}")),
        }
        match &self.phase {
            Phase::Up(running) => {
                running.inspect(tree);
                tree.part("accounts", &self.accounts);
            }
            Phase::Waiting
            | Phase::Identifying { .. }
            | Phase::Programming { .. }
            | Phase::Failed(_)
            | Phase::Lost(_) => {
                tree.count("attaches_waiting", self.early.len());
                tree.part("settings", &self.config);
            }
        }
    }
}
