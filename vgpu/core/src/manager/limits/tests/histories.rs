//! The promise of a fair share, after any history: when a pass has ended,
//!
//! * nobody with wanted chunks in host RAM is a whole chunk of its own below its share, by a calculation of its own, nor below its `min`, unless
//!   what others hold above theirs is less than that, or in chunks that do not go above their `min`;
//! * no frame is free or idle that holds a chunk which somebody wants and may have;
//! * and it took no more moves than there were chunks to move, though some VMs' chunks stand still for a while.
//!
//! Memory moves here without a card: what the policy proposes and limits admit is done at once. VMs come and go, ask for
//! memory, let it idle, use it again and get other quotas; their chunks are of any sizes, the last one often short.

use super::super::*;
use crate::config::{GpuConfig, Quota, VmConfig};
use crate::device::pci::ConfigSpace;
use crate::memory::Reach;
use crate::policy::ChunkView;
use crate::policy::shares::Party;
use crate::policy::shares::tests::by_bisection;
use crate::policy::{Observation, Policy, PolicyName, Usage, WorkWanted, Worth};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use shadow_pt::ReachChange;

const MIB: u64 = 1 << 20;
/// Seeds of an ordinary run. `HISTORIES` in the environment asks for more.
const HISTORIES: u64 = 2000;

struct History {
    rng: ChaCha8Rng,
    policy: Box<dyn Policy>,
    draws: ChaCha8Rng,
    vms: BTreeMap<VmId, Vgpu>,
    demands: Demands,
    claim: Option<(VmId, u64)>,
    capacity: u64,
    batch: u64,
    /// Host RAM is just what the VMs that are there may need.
    is_tight: bool,
    now: Tick,
    next: u16,
    /// Chunks spilled, refilled, and given host RAM at once.
    moved: [usize; 3],
    log: Vec<String>,
}

impl History {
    fn new(seed: u64, policy: Box<dyn Policy>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let capacity = rng.random_range(8..400) * FRAME;
        let mut history = Self {
            policy,
            draws: ChaCha8Rng::seed_from_u64(seed ^ 1),
            vms: BTreeMap::new(),
            demands: Demands::default(),
            claim: None,
            capacity,
            batch: [MIB, 4 * MIB, 8 * MIB][rng.random_range(0..3)],
            is_tight: rng.random_range(0..2) == 0,
            // Long after anything idled: what lingers for a moment is not looked at here.
            now: Tick(1 << 40),
            next: 0,
            moved: [0; 3],
            log: Vec::new(),
            rng,
        };
        let count = [2, 3, 4, 8, 32][history.rng.random_range(0..5)];
        (0..count).for_each(|_| history.attach());
        history
    }

    fn any(&mut self) -> Option<VmId> {
        let at = self.rng.random_range(0..self.vms.len().max(1));
        self.vms.keys().nth(at).copied()
    }

    fn free(&self) -> u64 {
        self.capacity - self.vms.values().map(|vgpu| vgpu.chunks.resident()).sum::<u64>()
    }

    fn host_ram(&self) -> u64 {
        let promised: u64 = self.vms.values().map(|vgpu| vgpu.config.guest_vram).sum();
        match self.is_tight {
            true => promised.saturating_sub(self.capacity),
            false => 1 << 40,
        }
    }

    fn limits(&self) -> Limits<'_> {
        let figures = Figures {
            free: self.free(),
            batch_bytes: self.batch,
            host_ram: self.host_ram(),
            claim: self.claim,
            aside: None,
            now: self.now,
        };
        Limits {
            vms: &self.vms,
            demands: &self.demands,
            figures,
        }
    }

    fn quota(&mut self, chunk: u64, but: Option<VmId>) -> Quota {
        let others = self.vms.values().filter(|vgpu| Some(vgpu.id) != but);
        // Promises in whole chunks are what can be kept.
        let promised: u64 = others
            .map(|vgpu| vgpu.config.quota.min.next_multiple_of(vgpu.config.chunk_bytes))
            .sum();
        let left = (self.capacity.saturating_sub(promised) / chunk) * chunk;
        let mut bytes = |most: u64| self.rng.random_range(0..=most / FRAME) * FRAME;
        let min = bytes(left);
        let quota = Quota {
            min,
            low: bytes(self.capacity),
            high: min + bytes(self.capacity),
            max: min + bytes(self.capacity),
            weight: 100,
        };
        let mut kept = |odds: u32| self.rng.random_range(0..odds) == 0;
        Quota {
            min: if kept(4) { quota.min } else { 0 },
            low: if kept(4) { quota.low } else { 0 },
            high: if kept(8) { quota.high } else { u64::MAX },
            max: if kept(5) { quota.max } else { u64::MAX },
            weight: [1, 50, 100, 100, 300, 10_000][self.rng.random_range(0..6)],
        }
    }

    fn attach(&mut self) {
        if self.vms.len() >= 32 {
            return;
        }
        let chunk_bytes = FRAME << self.rng.random_range(0..7);
        // So the last chunk of more than a MiB is short half of the time, or more often.
        let beyond = self.rng.random_range(0..chunk_bytes);
        let guest_vram = (self.rng.random_range(1..=24) * chunk_bytes + beyond).next_multiple_of(MIB);
        let quota = self.quota(chunk_bytes, None);
        let config = VmConfig {
            name: String::new(),
            guest_vram,
            chunk_bytes,
            quota,
            ram: crate::RAM_DEFAULT,
            channels: crate::CHANNELS_DEFAULT,
        };
        let vm = VmId(self.next);
        self.next += 1;
        self.log.push(format!(
            "{vm} comes with {guest_vram} in {chunk_bytes}, {quota:?}"
        ));
        let vgpu = Vgpu::new(vm, config, 0, ConfigSpace::of(&GpuConfig::default()), Iova(0));
        self.vms.insert(vm, vgpu);
    }

    /// Does what is left of a proposal. `false`: nothing is.
    fn step(&mut self, occasion: Occasion) -> bool {
        let limits = Limits {
            figures: self.limits().figures,
            vms: &self.vms,
            demands: &self.demands,
        };
        let proposal = self
            .policy
            .propose(&limits.snapshot(occasion), occasion, &mut self.draws);
        let (proposal, breach) = limits.admit(occasion, proposal);
        assert_eq!(breach, None, "an honest policy is not cut: {proposal:?}");
        self.log.push(format!("{occasion:?}: {proposal:?}"));
        match proposal {
            Proposal::Nothing | Proposal::Release { .. } => return false,
            Proposal::Spill { vm, chunks, cause } => {
                self.moved[0] += chunks.len();
                let bytes = self.put(vm, &chunks, false);
                let in_a_pass = matches!(occasion, Occasion::Pass | Occasion::Tick);
                if let Some(to) = cause.beneficiary().filter(|_| in_a_pass) {
                    let before = self
                        .claim
                        .filter(|(vm, _)| *vm == to)
                        .map_or(0, |(_, bytes)| bytes);
                    self.claim = Some((to, before + bytes));
                }
            }
            Proposal::Refill { vm, chunks, .. } => {
                self.moved[1] += chunks.len();
                self.put(vm, &chunks, true);
                self.claim = None;
            }
            Proposal::Exchange { vm, leave, come, .. } => {
                self.moved[0] += leave.len();
                self.moved[1] += come.len();
                let (left, came) = (self.put(vm, &leave, false), self.put(vm, &come, true));
                assert!(came <= left, "what comes has the frames of what leaves");
            }
            Proposal::HostRam { chunks } => {
                for (vm, chunks) in chunks {
                    self.moved[2] += chunks.len();
                    self.demands.take_to_host_ram(vm, &chunks);
                    self.put(vm, &chunks, false);
                    self.reach(vm, &chunks, true);
                }
            }
        }
        true
    }

    fn put(&mut self, vm: VmId, chunks: &[ChunkNo], resident: bool) -> u64 {
        let known = &mut self.vms.get_mut(&vm).expect("it is there").chunks;
        for &chunk in chunks {
            let place = match resident {
                true => ChunkPlace::Resident((0..known.frames_of(chunk)).map(FrameNo).collect()),
                false => ChunkPlace::Spilled,
            };
            known.set_place(chunk, place);
        }
        chunks.iter().map(|&chunk| known.bytes(chunk)).sum()
    }

    fn reach(&mut self, vm: VmId, chunks: &[ChunkNo], began: bool) {
        let known = &mut self.vms.get_mut(&vm).expect("it is there").chunks;
        for &chunk in chunks {
            if (known.reach(chunk) != Reach::None) != began {
                let frame = known.guest_frames(chunk).next().expect("a chunk has frames");
                known.change_reach(ReachChange {
                    frame,
                    is_store: true,
                    began,
                });
                known.change_reach(ReachChange {
                    frame,
                    is_store: false,
                    began,
                });
            }
        }
    }

    /// Chunks of the VM of one kind, some of them.
    fn some(&mut self, vm: VmId, is: impl Fn(&ChunkPlace, Reach) -> bool) -> Vec<ChunkNo> {
        let chunks = &self.vms[&vm].chunks;
        let fit: Vec<ChunkNo> = chunks
            .all()
            .filter(|&no| is(chunks.place(no), chunks.reach(no)))
            .collect();
        let keep = self.rng.random_range(1..=4);
        fit.into_iter()
            .filter(|_| self.rng.random_range(0..4) < keep)
            .collect()
    }

    /// A VM asks for memory and gets it, from free frames, from others or in host RAM.
    fn ask(&mut self, vm: VmId) {
        let chunks = self.some(vm, |place, _| *place == ChunkPlace::Unbacked);
        if !chunks.is_empty() {
            self.ask_for(vm, chunks);
        }
    }

    fn ask_for(&mut self, vm: VmId, chunks: Vec<ChunkNo>) {
        self.log.push(format!("{vm} asks for {chunks:?}"));
        self.demands.ask(vm, chunks, Tick(0), Tick(2));
        for round in 0.. {
            assert!(round < 10_000, "a demand does not end");
            while let Some(chunk) = self
                .demands
                .of(vm)
                .and_then(|demand| demand.chunks.last().copied())
            {
                let vgpu = &self.vms[&vm];
                let (bytes, claimed) = (vgpu.chunks.bytes(chunk), self.claim.filter(|claim| claim.0 != vm));
                let over_max = bytes > below_max(vgpu);
                if over_max && self.limits().waits_for_own(vm, chunk) {
                    break;
                }
                if !over_max && bytes > self.free().saturating_sub(claimed.map_or(0, |claim| claim.1)) {
                    break;
                }
                self.demands.take(vm, &[chunk]);
                self.put(vm, &[chunk], !over_max);
                self.reach(vm, &[chunk], true);
            }
            self.demands.take_met();
            if self.demands.is_empty() {
                return;
            }
            assert!(self.step(Occasion::Demand), "a demand waits for nothing");
        }
    }

    fn happen(&mut self) {
        let Some(vm) = self.any() else {
            return self.attach();
        };
        match self.rng.random_range(0..18) {
            0..=6 => self.ask(vm),
            7..=8 => {
                let chunks = self.some(vm, |_, reach| reach != Reach::None);
                self.log.push(format!("{vm} lets {chunks:?} idle"));
                self.reach(vm, &chunks, false);
            }
            9..=10 => {
                let chunks = self.some(vm, |place, reach| {
                    *place != ChunkPlace::Unbacked && reach == Reach::None
                });
                self.log.push(format!("{vm} reaches {chunks:?}"));
                self.reach(vm, &chunks, true);
            }
            11 => {
                self.reset(vm);
                self.log.push(format!("{vm} is reset"));
            }
            12..=13 => {
                let quota = self.quota(self.vms[&vm].config.chunk_bytes, Some(vm));
                self.log.push(format!("{vm} gets {quota:?}"));
                self.vms.get_mut(&vm).expect("it is there").config.quota = quota;
            }
            14 => self.attach(),
            15..=16 => {
                let activity = &mut self.vms.get_mut(&vm).expect("it is there").activity;
                activity.lends = !activity.lends;
                let words = if activity.lends { "rests" } else { "works again" };
                self.log.push(format!("{vm} {words}"));
            }
            _ if self.vms.len() > 2 => {
                self.vms.remove(&vm);
                self.claim = self.claim.filter(|claim| claim.0 != vm);
                self.log.push(format!("{vm} goes"));
            }
            _ => {}
        }
        self.lower_to_max();
    }

    fn lower_to_max(&mut self) {
        while let Some(vm) = self.limits().above_max() {
            assert!(self.step(Occasion::AboveMax { vm }), "{vm} stays above its max");
        }
    }

    /// Passes until there is nothing to do. Half of the time something else happens after a few moves.
    fn passes(&mut self) {
        let chunks = self
            .vms
            .values()
            .map(|vgpu| vgpu.chunks.all().count())
            .sum::<usize>();
        if self.rng.random_range(0..3) == 0 {
            self.pass_over_some(chunks);
        }
        let cut = self.rng.random_range(0..8);
        for moves in 0.. {
            assert!(
                moves <= 3 * chunks,
                "more moves than there are chunks: it goes to and fro"
            );
            if self.rng.random_range(0..2) == 0 && moves == cut {
                return self.happen();
            }
            if !self.step(Occasion::Pass) {
                break;
            }
        }
        self.claim = None;
        self.check();
    }

    /// Passes while nothing of some VMs may move, for moves of theirs that failed.
    fn pass_over_some(&mut self, chunks: usize) {
        let odds = self.rng.random_range(2..5);
        for vgpu in self.vms.values_mut() {
            if self.rng.random_range(0..odds) == 0 {
                vgpu.passed_over_until = self.now.after(1);
            }
        }
        let mut moves = 0;
        while self.step(Occasion::Pass) {
            moves += 1;
            assert!(
                moves <= 3 * chunks,
                "it goes to and fro while some VMs are passed over"
            );
        }
        self.claim = None;
        self.now = self.now.after(1);
    }

    fn check(&self) {
        let (limits, free) = (self.limits(), self.free());
        let views: Vec<VmView<'_>> = self.vms.values().filter_map(|vgpu| limits.view(vgpu)).collect();
        // Where memory above a `max` took all of host RAM, nothing of what others hold may go there.
        let spilled: u64 = self.vms.values().map(|vgpu| vgpu.chunks.spilled()).sum();
        let may_spill = spilled <= self.host_ram();
        let parties: Vec<Party> = views.iter().map(party).collect();
        let shares = by_bisection(self.capacity, &parties);
        let state: Vec<String> = views
            .iter()
            .zip(&shares)
            .map(|(view, share)| state(view, *share))
            .collect();
        let state = format!("{free} bytes are free\n{}", state.join("\n"));
        let given: Vec<u64> = views
            .iter()
            .zip(&shares)
            .map(|(view, share)| gives(view, *share))
            .collect();
        let all_given: u64 = given.iter().sum();
        for ((view, share), given) in views.iter().zip(shares).zip(given) {
            let (vm, next) = (view.vm, view.active + view.chunk_bytes);
            let obtainable = free + view.idle + all_given - given;
            let may_have = view.quota.max.min(view.quota.high).saturating_sub(view.resident);
            let could_take = view.wanted > 0 && view.smallest_wanted <= may_have;
            // Where none of its chunks fits below its limits, one of its own that is idle makes room.
            let could_exchange =
                view.wanted > 0 && (could_take || view.idle > 0) && view.chunk_bytes <= obtainable;
            assert!(
                !may_spill || !could_exchange || next > share.saturating_sub(1),
                "{vm} has {} of {share} and wants {}; {state}",
                view.active,
                view.wanted
            );
            let promised = view.quota.min.min(view.quota.high).min(view.quota.max);
            assert!(
                !may_spill || view.wanted == 0 || view.active + view.smallest_wanted > promised,
                "{vm} has {} of a min of {promised} and wants {}; {state}",
                view.active,
                view.wanted
            );
            let most_idle = views.iter().filter(|of| of.spill_chunks_max > 0);
            let idle = most_idle.map(|of| {
                of.chunks()
                    .filter(|chunk| chunk.is_idle() && chunk.is_spillable() && chunk.bytes <= of.spare)
            });
            let idle = idle.flatten().map(|chunk| chunk.bytes).max().unwrap_or(0);
            assert!(
                !could_take || view.smallest_wanted > free + idle,
                "{vm} wants {} and could have it: {idle} idle; {state}",
                view.smallest_wanted
            );
            let above = view.resident > view.quota.high && view.spill_chunks_max > 0;
            assert!(!above, "{vm} stays above its high");
        }
    }
}

/// What a VM wants and may have. Of one that rests what is protected counts.
fn party(view: &VmView<'_>) -> Party {
    let whole = |bytes: u64| bytes.div_ceil(view.chunk_bytes) * view.chunk_bytes;
    let min = whole(view.quota.min);
    let uses = match view.lends {
        false => view.active + view.wanted,
        true => (view.active + view.wanted).min(min.max(whole(view.quota.low))),
    };
    Party {
        weight: view.quota.weight,
        fixed: 0,
        min,
        low: whole(view.quota.low),
        cap: view.quota.max.min(view.quota.high),
        wanted: uses.max(min.min(view.resident)),
    }
}

/// Bytes of a VM's chunks that others may have: idle ones, and active ones while what is left is above its share; never below its `min`.
fn gives(view: &VmView<'_>, share: u64) -> u64 {
    let (mut spare, mut left) = (view.spare, view.active + view.idle);
    let mut chunks: Vec<ChunkView> = view.chunks().filter(ChunkView::is_spillable).collect();
    chunks.sort_by_key(|chunk| (!chunk.is_idle(), std::cmp::Reverse(chunk.bytes)));
    for chunk in chunks {
        if chunk.bytes <= spare && (chunk.is_idle() || left > share) {
            spare -= chunk.bytes;
            left -= chunk.bytes;
        }
    }
    view.spare - spare
}

/// What a VM holds, as a line.
fn state(view: &VmView<'_>, share: u64) -> String {
    let VmView {
        vm,
        quota,
        chunk_bytes,
        active,
        idle,
        wanted,
        smallest_wanted,
        spare,
        ..
    } = view;
    let short = view.short(|_| true);
    format!(
        "{vm}: chunks of {chunk_bytes}, active {active}, idle {idle}, {short} of it in a short chunk, wants {wanted} ({smallest_wanted}), \
         {spare} above its min, share {share}, {quota:?}"
    )
}

/// One history under a policy, to its end or to what broke.
fn run(seed: u64, policy: Box<dyn Policy>) -> Result<(), String> {
    let mut history = History::new(seed, policy);
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..history.rng.random_range(4..40) {
            history.happen();
            if history.rng.random_range(0..3) != 0 {
                history.passes();
            }
        }
    }));
    lived.map_err(|_| {
        let last = history.log.len().saturating_sub(40);
        format!(
            "seed {seed}, capacity {}:\n{}",
            history.capacity,
            history.log[last..].join("\n")
        )
    })
}

#[test]
fn shares_hold_after_any_history() {
    let asked = std::env::var("HISTORIES")
        .ok()
        .and_then(|count| count.parse().ok());
    for seed in 0..asked.unwrap_or(HISTORIES) {
        for policy in [PolicyName::Gpuswap, PolicyName::Recency, PolicyName::Adaptive] {
            run(seed, policy.policy(&GpuConfig::default()))
                .unwrap_or_else(|broke| panic!("{policy:?}, {broke}"));
        }
    }
}

impl History {
    fn reset(&mut self, vm: VmId) {
        let all: Vec<ChunkNo> = self.vms[&vm].chunks.all().collect();
        self.reach(vm, &all, false);
        let chunks = &mut self.vms.get_mut(&vm).expect("it is there").chunks;
        all.iter()
            .for_each(|&chunk| drop(chunks.set_place(chunk, ChunkPlace::Unbacked)));
    }

    fn held(&self, vm: u16) -> u64 {
        let vgpu = &self.vms[&VmId(vm)];
        vgpu.chunks.resident() / vgpu.config.chunk_bytes
    }
}

impl History {
    /// All guests work for a while, each at a pace that it keeps for some time.
    fn work(&mut self) {
        self.now = self.now.after(50_000_000);
        let phase = self.now.0 >> 28;
        for vgpu in self.vms.values_mut() {
            let interval = 1_000_000 + (u64::from(vgpu.id.0) * 7 + phase * 13) % 5 * 200_000;
            let last = vgpu.activity.rang_at.unwrap_or(self.now);
            let count = self.now.since(last) / interval;
            vgpu.activity.doorbells += count;
            vgpu.activity.rang_at = Some(last.after(count * interval));
        }
    }

    fn holds(&self) -> Vec<u64> {
        self.vms.values().map(|vgpu| vgpu.chunks.resident()).collect()
    }
}

/// Trials exchange chunks of a VM for others of its own: whatever they see, all hold what they held, and shares with it.
#[test]
fn trials_leave_everybody_what_it_holds() {
    let mut exchanged = 0;
    for seed in 0..100 {
        let mut history = History::new(seed, PolicyName::Recency.policy(&GpuConfig::default()));
        (0..20).for_each(|_| history.happen());
        while history.step(Occasion::Pass) {}
        history.claim = None;
        let before = history.holds();
        for _ in 0..60 {
            history.work();
            let mut occasion = Occasion::Tick;
            while history.step(occasion) {
                occasion = Occasion::Pass;
                exchanged += 1;
            }
            assert_eq!(history.holds(), before, "seed {seed}");
            history.check();
        }
    }
    assert!(exchanged > 60, "{exchanged} moves");
}

/// Figure 4 of the paper, its sizes divided by 64: 1400 MB for guests in chunks of 32 MB, two programs that take 64 chunks
/// each, one at a time and one after the other; then the first ends.
#[test]
fn two_programs_of_figure_4_make_85_selections_and_refill_once() {
    for (first, second) in [(0, 1), (1, 0)] {
        let mut history = History::of(0, &[]);
        (history.next, history.capacity, history.batch) = (0, 175 * FRAME, 16 * MIB);
        for vm in [0, 1].map(VmId) {
            let config = VmConfig {
                name: String::new(),
                guest_vram: 32 * MIB,
                chunk_bytes: 4 * FRAME,
                quota: Quota::default(),
                ram: crate::RAM_DEFAULT,
                channels: crate::CHANNELS_DEFAULT,
            };
            let vgpu = Vgpu::new(vm, config, 0, ConfigSpace::of(&GpuConfig::default()), Iova(0));
            history.vms.insert(vm, vgpu);
        }
        let mut selected = 0;
        for (turn, vm) in [(0, first), (64, second)] {
            for chunk in 0..64 {
                history.ask_for(VmId(vm), vec![ChunkNo(chunk)]);
                assert!(!history.step(Occasion::Pass), "nothing is left to a pass");
                let taken = turn + u64::from(chunk) + 1;
                selected += u64::from(taken > 43) as usize;
                assert_eq!(history.moved[0] + history.moved[2], selected);
                let own = match turn {
                    0 => taken.min(43),
                    _ => u64::from(chunk + 1).min(22),
                };
                assert_eq!(history.held(vm), own, "after {taken} chunks");
            }
        }
        assert_eq!((selected, history.moved[1]), (85, 0));
        assert_eq!((history.held(first), history.held(second)), (21, 22));
        history.reset(VmId(first));
        while history.step(Occasion::Pass) {}
        assert_eq!((history.held(second), history.moved[1]), (43, 21));
        assert_eq!(history.moved[0] + history.moved[2], 85);
    }
}

impl History {
    /// VMs of these guest VRAMs and chunks in MiB, without quotas, that have asked for all of it in turn.
    fn of(capacity: u64, vms: &[(u64, u64)]) -> Self {
        let mut history = Self::new(4, PolicyName::Gpuswap.policy(&GpuConfig::default()));
        history.vms.clear();
        (history.capacity, history.batch, history.is_tight) = (capacity * MIB, 16 * MIB, false);
        for (no, &(guest_vram, chunk)) in (0..).map(VmId).zip(vms) {
            let config = VmConfig {
                name: String::new(),
                guest_vram: guest_vram * MIB,
                chunk_bytes: chunk * MIB,
                quota: Quota::default(),
                ram: crate::RAM_DEFAULT,
                channels: crate::CHANNELS_DEFAULT,
            };
            let vgpu = Vgpu::new(no, config, 0, ConfigSpace::of(&GpuConfig::default()), Iova(0));
            history.vms.insert(no, vgpu);
            let all = history.vms[&no].chunks.all().collect();
            history.ask_for(no, all);
        }
        history
    }

    fn set_min(&mut self, vm: u16, mib: u64) {
        self.vms.get_mut(&VmId(vm)).expect("it is there").config.quota.min = mib * MIB;
    }

    fn held_mib(&self) -> Vec<u64> {
        self.holds().into_iter().map(|bytes| bytes / MIB).collect()
    }
}

/// A chunk of 4M needs the 3M that the last chunk of another VM is: nothing else is above that one's `min`.
#[test]
fn short_last_chunk_goes_where_only_that_is_above_the_min() {
    let mut history = History::of(16, &[(7, 4), (12, 4)]);
    history.put(VmId(0), &[ChunkNo(0), ChunkNo(1)], false);
    history.put(VmId(1), &[ChunkNo(0), ChunkNo(1), ChunkNo(2)], false);
    history.put(VmId(0), &[ChunkNo(0), ChunkNo(1)], true);
    history.put(VmId(1), &[ChunkNo(0), ChunkNo(1)], true);
    history.set_min(0, 4);
    history.set_min(1, 12);
    while history.step(Occasion::Pass) {}
    assert_eq!(history.held_mib(), [4, 12]);
}

/// A VM that others cannot bring to its share by a whole chunk takes nothing of theirs: it would only be brought back.
#[test]
fn nobody_gives_what_is_too_little_for_who_collects() {
    let mut history = History::of(23, &[(8, 4), (8, 4), (8, 4), (4, 2)]);
    for (vm, held) in [(0, 2), (1, 2), (2, 1), (3, 1)] {
        let all: Vec<ChunkNo> = history.vms[&VmId(vm)].chunks.all().collect();
        history.put(VmId(vm), &all, false);
        history.put(VmId(vm), &all[..held], true);
    }
    // The first stands still. Of the second's 8M one is above its share, and all are its `min`.
    let passed_over = history.now.after(1);
    history
        .vms
        .get_mut(&VmId(0))
        .expect("it is there")
        .passed_over_until = passed_over;
    history.set_min(1, 8);
    history.set_min(2, 8);
    history
        .vms
        .get_mut(&VmId(2))
        .expect("it is there")
        .config
        .quota
        .weight = 10_000;
    assert!(!history.step(Occasion::Pass), "{:?}", history.log.last());
    history.now = passed_over;
    while history.step(Occasion::Pass) {}
    assert_eq!(history.held_mib(), [4, 8, 8, 2]);
}

/// GPUswap that leaves something out.
struct Without(fn(&Proposal) -> bool, Box<dyn Policy>);

impl Policy for Without {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        let proposal = self.1.propose(view, occasion, rng);
        match occasion == Occasion::Pass && self.0(&proposal) {
            true => Proposal::Nothing,
            false => proposal,
        }
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        self.1.observe(what)
    }

    fn wants_work(&self) -> WorkWanted {
        self.1.wants_work()
    }

    fn save(&self) -> String {
        self.1.save()
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        self.1.restore(saved)
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        self.1.wants_tick(usage)
    }
}

/// The net bites: each part of the pass is missed when it is left out.
#[test]
fn history_finds_a_pass_that_leaves_something_out() {
    let left_out: [fn(&Proposal) -> bool; 4] = [
        |proposal| matches!(proposal, Proposal::Refill { .. }),
        |proposal| cause_is(proposal, |cause| matches!(cause, MoveCause::Fairness { .. })),
        |proposal| cause_is(proposal, |cause| matches!(cause, MoveCause::Idle { .. })),
        |proposal| cause_is(proposal, |cause| matches!(cause, MoveCause::AboveHigh)),
    ];
    for (part, leaves_out) in left_out.into_iter().enumerate() {
        let found = (0..HISTORIES).any(|seed| {
            let policy = Box::new(Without(
                leaves_out,
                PolicyName::Gpuswap.policy(&GpuConfig::default()),
            ));
            run(seed, policy).is_err()
        });
        assert!(found, "nobody misses part {part}");
    }
}

fn cause_is(proposal: &Proposal, is: impl Fn(MoveCause) -> bool) -> bool {
    matches!(proposal, Proposal::Spill { cause, .. } if is(*cause))
}
