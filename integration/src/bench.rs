//! A host with VMs attached, for tests: guest code is run to its end while the card works, checkers included.
//!
//! Everything is on one thread and without randomness of its own, so a test repeats exactly. Guests take turns
//! access by access; the card works between them. The host's clock runs no slower than the GPU's, so that bounds in
//! nanoseconds hold for long copies too.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use fermi_model::Stepped;
use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use vgpu::{Action, Event, GpuConfig, Notice, Quota, Reply, Request, RequestId, Tick, VmConfig, VmId};

use crate::checkers::{check_empty, check_frames, check_shadows};
use crate::watch::World;
use sim_host::bus::{Guest, SimBus};
use sim_host::turns::{Player, Turn};

/// Bytes of a VM's RAM, mapped for DMA from GPA 0 on.
pub const RAM_BYTES: u64 = 16 << 20;
/// Nanoseconds after which a guest that waits is asked again.
const RELAX_NS: u64 = 20_000;
/// A loop with more turns than this counts as hanging.
const TURNS_MAX: u64 = 3_000_000;
/// Turns between two walks of all shadow tables.
const WALK_EVERY: u64 = 1024;

/// Stores to the card's BAR0, in order: offset and bytes.
pub type HostWrites = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Guest code under way; [`Bench::join`] gives its result.
pub struct Task<T> {
    vm: VmId,
    result: Rc<Cell<Option<T>>>,
}

/// A host with VMs whose guests' code can be run to its end.
pub struct Bench {
    /// Core, card and memory.
    pub world: World,
    players: BTreeMap<VmId, Player>,
    attached: Vec<VmId>,
    /// Longest time for which an access of a VM was held.
    held_max: BTreeMap<VmId, u64>,
    /// Host time less GPU time at the start.
    skew: u64,
    turns: u64,
    /// Units of work that the card does each turn.
    pub work: u32,
    /// Whether the checkers run after each turn. A test that breaks a law on purpose switches them off.
    pub is_checked: bool,
}

/// A VM of `mebibytes` of guest VRAM in chunks of 2 MiB without a quota.
pub fn vm_config(mebibytes: u64) -> VmConfig {
    VmConfig {
        name: "bench".to_owned(),
        guest_vram: mebibytes << 20,
        chunk_bytes: 2 << 20,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

/// The configuration of tests that choose none.
pub fn gpu_config() -> GpuConfig {
    GpuConfig {
        frames_arrive_zeroed: true,
        seed: 1,
        host_ram: 1 << 30,
        ..GpuConfig::default()
    }
}

impl Bench {
    /// A card of `vram` MiB, and VMs 0, 1, … with the given MiB each.
    pub fn new(vram: u64, vms: &[u64]) -> Self {
        let configs: Vec<VmConfig> = vms.iter().map(|&mebibytes| vm_config(mebibytes)).collect();
        Self::with(vram, gpu_config(), &configs)
    }

    /// The same bench with every setting given.
    pub fn with(vram: u64, config: GpuConfig, vms: &[VmConfig]) -> Self {
        Self::on(World::new(vram << 20, config), vms)
    }

    /// The same bench on a world of the caller's.
    pub fn on(world: World, vms: &[VmConfig]) -> Self {
        let skew = world.now.0.saturating_sub(world.model.gpu_time());
        let mut bench = Self {
            world,
            players: BTreeMap::new(),
            attached: Vec::new(),
            held_max: BTreeMap::new(),
            skew,
            turns: 0,
            work: 64,
            is_checked: true,
        };
        for (number, config) in (0..).zip(vms) {
            bench.attach(VmId(number), config.clone());
        }
        bench
    }

    /// Attaches a VM with all its RAM mapped. Panics if it is denied.
    pub fn attach(&mut self, vm: VmId, config: VmConfig) {
        self.world.attach(vm, config, RAM_BYTES as usize);
        self.turn_until("the attach", |bench| bench.world.vm(vm).attached.is_some());
        assert_eq!(self.world.vm(vm).attached, Some(Ok(())), "{vm} was denied");
        self.attached.push(vm);
        let map = Request::MapRam {
            gpa: Gpa(0),
            bytes: RAM_BYTES,
            writable: true,
        };
        let reply = self.call(vm, map);
        assert_eq!(reply, Reply::Done);
    }

    /// Records what the core stores to the card's registers from now on.
    pub fn record_host_writes(&mut self) -> HostWrites {
        let writes = HostWrites::default();
        let into = Arc::clone(&writes);
        self.world.on_event = Box::new(move |_, _, actions| {
            let mut writes = into.lock().expect("one thread");
            for action in actions {
                if let Action::HostWrite {
                    bar: Bar::Bar0,
                    offset,
                    data,
                } = action
                {
                    writes.push((*offset, data.clone()));
                }
            }
        });
        writes
    }

    /// Starts guest code; it runs while the bench turns.
    pub fn start<T: 'static>(&mut self, vm: VmId, code: impl FnOnce(&mut SimBus) -> T + 'static) -> Task<T> {
        assert!(!self.players.contains_key(&vm), "{vm} runs something already");
        let result = Rc::new(Cell::new(None));
        let into = Rc::clone(&result);
        let guest = Guest::start(Arc::clone(&self.world.vm(vm).ram), move |bus| {
            let value = code(bus);
            into.set(Some(value));
            Ok(())
        });
        let mut player = Player::new(vm, guest, 0);
        player.begin();
        self.players.insert(vm, player);
        Task { vm, result }
    }

    /// Turns until the code has ended. Panics if it panicked.
    pub fn join<T>(&mut self, task: Task<T>) -> T {
        let vm = task.vm;
        self.turn_until("guest code", |bench| bench.has_ended(vm));
        let player = self.players.remove(&vm).expect("it was started");
        if let Some(Err(error)) = player.outcome() {
            panic!("{vm}: {error}");
        }
        self.check();
        let value = task.result.take();
        value.expect("the code has ended")
    }

    /// Runs guest code to its end.
    pub fn run<T: 'static>(&mut self, vm: VmId, code: impl FnOnce(&mut SimBus) -> T + 'static) -> T {
        let task = self.start(vm, code);
        self.join(task)
    }

    /// Whether the code that was started on the VM has ended.
    pub fn has_ended(&self, vm: VmId) -> bool {
        self.players
            .get(&vm)
            .is_none_or(|player| player.outcome().is_some())
    }

    /// Stops guest code where it is, as if its VM died. Its access under way is forgotten.
    pub fn abandon(&mut self, vm: VmId) {
        self.players.remove(&vm);
    }

    /// Sends a request of the VM's machine, such as a reset, not of its guest. The id names its answer.
    pub fn post(&mut self, vm: VmId, request: Request) -> RequestId {
        self.world.ask(vm, request)
    }

    /// Sends a request and turns until it is answered.
    pub fn call(&mut self, vm: VmId, request: Request) -> Reply {
        let request = self.post(vm, request);
        self.reply(vm, request)
    }

    /// Turns until a request is answered.
    pub fn reply(&mut self, vm: VmId, request: RequestId) -> Reply {
        let mut reply = None;
        self.turn_until("a reply", |bench| {
            reply = bench.world.take_reply(vm, request);
            reply.is_some()
        });
        reply.expect("it is there")
    }

    /// One turn: an access of each guest, a piece of the card's work, time.
    pub fn turn(&mut self) {
        self.let_guests_go_on();
        self.let_card_go_on();
    }

    /// The first half of a turn: an access of each guest, and what the core does about it at once.
    pub(crate) fn let_guests_go_on(&mut self) {
        let vms: Vec<VmId> = self.players.keys().copied().collect();
        for vm in vms {
            self.guest_turn(vm);
        }
    }

    /// The second half: a piece of the card's work, time, and what becomes of both.
    pub(crate) fn let_card_go_on(&mut self) {
        self.turns += 1;
        let stepped = self.world.step(self.work);
        let floor = self.world.model.gpu_time().saturating_add(self.skew);
        self.world.now = Tick((self.world.now.0 + 300).max(floor));
        if stepped != Stepped::Busy && self.everybody_sleeps() {
            self.jump();
        }
        self.world.look();
        self.collect_replies();
        if self.is_checked && self.turns.is_multiple_of(16) {
            check_frames(&self.world).unwrap_or_else(|violation| panic!("{}", violation.0));
        }
        if self.is_checked && self.turns.is_multiple_of(WALK_EVERY) {
            self.check();
        }
    }

    /// Turns until `done`; panics when that does not happen within a bound.
    pub fn turn_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..TURNS_MAX {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("{what} does not come to an end");
    }

    /// Lets the given host time pass.
    pub fn pass(&mut self, ns: u64) {
        let until = self.world.now.after(ns);
        self.turn_until("the clock", |bench| bench.world.now >= until);
    }

    /// Checks all laws, the costly ones included.
    pub fn check(&self) {
        if self.is_checked {
            check_frames(&self.world).unwrap_or_else(|violation| panic!("{}", violation.0));
            check_shadows(&self.world).unwrap_or_else(|violation| panic!("{}", violation.0));
        }
    }

    /// Detaches a VM and turns until nothing of it is left.
    pub fn detach(&mut self, vm: VmId) {
        self.abandon(vm);
        self.attached.retain(|&attached| attached != vm);
        self.world.submit(Event::Detach { vm });
        self.turn_until("the detach", |bench| bench.world.vm(vm).detached);
        self.check();
    }

    /// Detaches all VMs and checks that nothing of them is left.
    pub fn end(&mut self) {
        self.check();
        for vm in std::mem::take(&mut self.attached) {
            self.detach(vm);
        }
        check_empty(&self.world).unwrap_or_else(|violation| panic!("{}", violation.0));
    }

    /// Longest time for which an access of the VM's guest was held.
    pub fn held_max_ns(&self, vm: VmId) -> u64 {
        self.held_max.get(&vm).copied().unwrap_or(0)
    }

    /// Number of notices of a kind that the core has given.
    pub fn count_notices(&self, wanted: impl Fn(&Notice) -> bool) -> usize {
        self.world
            .notices
            .iter()
            .filter(|(_, notice)| wanted(notice))
            .count()
    }

    fn guest_turn(&mut self, vm: VmId) {
        let Some(player) = self.players.get_mut(&vm) else {
            return;
        };
        if let Turn::Taken = player.take_turn(&mut self.world, || RELAX_NS) {
            self.collect_reply(vm);
        }
    }

    fn collect_replies(&mut self) {
        let vms: Vec<VmId> = self.players.keys().copied().collect();
        vms.into_iter().for_each(|vm| self.collect_reply(vm));
    }

    fn collect_reply(&mut self, vm: VmId) {
        let Some(player) = self.players.get_mut(&vm) else {
            return;
        };
        let collected = player.collect_reply(&mut self.world);
        if let Some(held) = collected.unwrap_or_else(|wrong| panic!("{wrong}")) {
            let held_max = self.held_max.entry(vm).or_default();
            *held_max = (*held_max).max(held);
        }
    }

    fn everybody_sleeps(&self) -> bool {
        self.players.values().all(|player| player.sleeps(self.world.now))
    }

    /// Moves the clock to the next moment at which something is due.
    fn jump(&mut self) {
        let next = self
            .players
            .values()
            .filter_map(Player::rests_until)
            .chain(self.world.next_due().map(|at| at.0))
            .min()
            .unwrap_or(0);
        // In small steps: the events that only the card waits for are not known here.
        let next = next.min(self.world.now.0 + 100_000);
        self.world.now = Tick(next.max(self.world.now.0 + 1_000));
    }
}

/// Prints the core's last notices after a failed test.
impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let spoken =
                self.world.notices.iter().filter(|(_, notice)| {
                    !matches!(notice, Notice::Usage { .. } | Notice::RolledBack { .. })
                });
            let lines: Vec<String> = spoken
                .map(|(at, notice)| format!("{:>12} {notice:?}", at.0))
                .collect();
            eprintln!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}
