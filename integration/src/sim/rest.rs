//! The end of a run: nothing goes wrong any more, and everything has to come to rest.

use std::collections::BTreeMap;

use fermi_model::Faults;
use rand::RngExt;
use vgpu::{Event, Quota, VmId};

use super::{Kind, MIB, Simulation, Violation};
use crate::fair;
use crate::watch::World;

/// Periods of the pass in a row for which nothing moves when memory is at rest. Who was passed over may move again by then.
const QUIET_PERIODS: u32 = 6;
/// Most bytes that move before memory is at rest, as a multiple of all guests' VRAM.
const MOVED_MAX: u64 = 3;

/// Steps of 5 µs after which something that is under way counts as one that takes long.
pub(super) const STEPS_MAX: u32 = 40_000;

/// What moved so far, by the accounts of the VMs.
struct Moved {
    bytes: u64,
    rolled_back: BTreeMap<VmId, u64>,
}

impl Moved {
    fn of(world: &World) -> Self {
        let audit = world.manager.audit().unwrap_or_default();
        let account = |vm: VmId| world.manager.account(vm).map(|of| (vm, of));
        let accounts: Vec<_> = audit.vms.iter().filter_map(|of| account(of.vm)).collect();
        Self {
            bytes: accounts
                .iter()
                .map(|(_, of)| of.spilled_bytes + of.refilled_bytes)
                .sum(),
            rolled_back: accounts.iter().map(|(vm, of)| (*vm, of.rolled_back)).collect(),
        }
    }
}

impl Simulation {
    /// Lets the card and the clock go on until `done`.
    pub(super) fn idle_until(&mut self, mut done: impl FnMut(&mut World) -> bool) -> Result<(), Violation> {
        for _ in 0..1_000_000 {
            if self.world.is_lost || done(&mut self.world) {
                return Ok(());
            }
            self.world.step(64);
            self.world.now.0 += 5_000;
            self.world.look();
        }
        Err(Violation("the host does not come to an end".to_owned()))
    }

    /// Nothing goes wrong any more: all that is under way ends.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Violation> {
        self.end_faults();
        // A VM above its max tries again some 50 ms after a refusal; what it then takes is no time of the product's.
        (self.world.refuse_maps, self.world.host_memory.refuse) = (0, 0);
        let ids: Vec<VmId> = self.vms.iter().map(|vm| vm.id).collect();
        self.idle_until(|world| !ids.iter().any(|id| world.has_unanswered(*id)))
            .map_err(|_| Violation("a request of a VMM that lies is never answered".to_owned()))?;
        for at in 0..self.vms.len() {
            if self.vms[at].kind == Kind::Hostile {
                self.send_away(at);
            }
        }
        let gone: Vec<VmId> = self.gone().collect();
        self.idle_until(|world| gone.iter().all(|&id| world.vm(id).detached))?;
        self.halve_some();
        let under_way = |world: &World| world.manager.under_way();
        match self.idle_until(|world| under_way(world).is_empty()) {
            Ok(()) => self.world.watch.laws.held(),
            Err(_) => Err(Violation(format!(
                "without faults this does not end: {}",
                under_way(&self.world).join(", ")
            ))),
        }
    }

    /// All guests stand still while nothing goes wrong, until memory is at rest; then it goes on as before.
    pub(super) fn pause(&mut self) -> Result<(), Violation> {
        let faults = *self.world.model.faults_mut();
        let World {
            refuse_maps,
            host_memory,
            ..
        } = &mut self.world;
        let refused = (
            std::mem::take(refuse_maps),
            std::mem::take(&mut host_memory.refuse),
        );
        self.end_faults();
        let settled = self.settle();
        let after = self.world.model.faults_mut();
        *after = Faults {
            lost_flush_in: after.lost_flush_in,
            lost_runlist_in: after.lost_runlist_in,
            ..faults
        };
        (self.world.refuse_maps, self.world.host_memory.refuse) = refused;
        settled
    }

    /// Lets passes go on until memory is at rest, as it is after a bounded number of moves, and looks at who lends and at the shares.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        let on_card = self.let_rest()?;
        let before = Moved::of(&self.world);
        let guest_vram: u64 = self
            .vms
            .iter()
            .map(|vm| self.world.vm(vm.id).image.size() as u64)
            .sum();
        let (mut from, mut last, mut quiet) = (before.bytes, before.bytes, 0);
        while quiet < QUIET_PERIODS {
            let asked = self.is_asked();
            let ends = self.ends_within(STEPS_MAX)?;
            let moved = Moved::of(&self.world).bytes;
            if asked {
                // Whoever asked for memory and gave it back, again and again, has had it come and go as often.
                from = moved;
            }
            // The account of a VM whose end was under way closes meanwhile.
            let more = moved.saturating_sub(from);
            if more > MOVED_MAX * guest_vram {
                let moved = more / MIB;
                return Err(Violation(format!(
                    "memory goes to and fro: {moved} MiB and no end"
                )));
            }
            if !ends || self.world.is_lost {
                // Something goes on that takes long: a channel is thrown off, say.
                return Ok(());
            }
            quiet = if moved == last { quiet + 1 } else { 0 };
            last = moved;
            self.world.now.0 += self.world.config().refill_period_ns;
            self.world.look();
        }
        if !self.world.manager.under_way().is_empty() {
            return Ok(());
        }
        if let Some(on_card) = on_card {
            self.check_lending(&on_card)?;
        }
        // A channel that does not leave the card keeps its VM's memory where it is.
        let after = Moved::of(&self.world);
        let stands = |vm: VmId| after.rolled_back.get(&vm) != before.rolled_back.get(&vm);
        let audit = self.world.manager.audit().unwrap_or_default();
        fair::check(&audit, self.world.config().host_ram, stands)
    }

    /// Whether what is under way ends within so many steps. Answers reach guests, which do nothing with them.
    pub(super) fn ends_within(&mut self, steps: u32) -> Result<bool, Violation> {
        for _ in 0..steps {
            if self.world.is_lost || self.world.manager.under_way().is_empty() {
                return Ok(true);
            }
            self.world.step(64);
            self.world.now.0 += 5_000;
            self.world.look();
            self.collect_replies()?;
        }
        Ok(false)
    }

    /// Whether a guest or its VMM waits for an answer.
    fn is_asked(&self) -> bool {
        let audit = self.world.manager.audit().unwrap_or_default();
        audit.vms.iter().any(|of| of.asks)
    }

    /// The core has given the card up: rightly, and with nothing in the wrong hands by then.
    pub(super) fn end_without_card(&mut self) -> Result<(), Violation> {
        self.world.watch.laws.held()?;
        match self.card_may_hang() {
            true => Ok(()),
            false => Err(Violation("a card that works was given up".to_owned())),
        }
    }

    /// Whether the card has met its first flush or runlist that never ends.
    pub(super) fn card_may_hang(&mut self) -> bool {
        let faults = self.world.model.faults_mut();
        faults.lost_flush_in == 1 || faults.lost_runlist_in == 1
    }

    /// Nothing goes wrong any more. A card that hangs goes on hanging.
    pub(super) fn end_faults(&mut self) {
        let faults = self.world.model.faults_mut();
        *faults = Faults {
            lost_flush_in: faults.lost_flush_in,
            lost_runlist_in: faults.lost_runlist_in,
            ..Faults::default()
        };
    }

    /// The operator's last word to some VMs: half of what they hold.
    fn halve_some(&mut self) {
        let audit = self.world.manager.audit().unwrap_or_default();
        for of in audit.vms.iter().filter(|of| of.resident > of.quota.min) {
            if self.rng.random() {
                let max = of.quota.min + (of.resident - of.quota.min) / 2;
                let quota = Quota { max, ..of.quota };
                self.world.submit(Event::SetQuota { vm: of.vm, quota });
            }
        }
    }
}
