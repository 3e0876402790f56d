//! What an operator does in a run: VMs go and come, quotas change, and at the end everything has to come to rest.

use fermi_model::Faults;
use rand::RngExt;
use vgpu::{Event, Quota, VmId};

use super::drawn::{self, DrawnVm};
use super::{Kind, Settings, Simulation, Violation};
use crate::world::World;

/// Events for which a departure may wait for a better moment.
const LATE_EVENTS: u64 = 2_000;

/// At a number of events a VM goes, and when it is gone another comes.
pub(super) struct Departure {
    at_event: u64,
    who: VmId,
    next: DrawnVm,
}

impl Simulation {
    /// Draws who goes when, and who comes then under the same number or another.
    pub(super) fn draw_departures(&mut self, count: u16, settings: Settings, each_max: u64) {
        let mut at_event = 0;
        let mut ids: Vec<VmId> = (1..count).map(VmId).collect();
        for number in 0..self.rng.random_range(0..=3u16) {
            at_event += self.rng.random_range(500..4_000);
            let who = self.rng.random_range(0..ids.len());
            let id = if self.rng.random() {
                ids[who]
            } else {
                VmId(count + number)
            };
            self.tell(vec![format!(
                "event {at_event}: {} goes, another comes",
                ids[who]
            )]);
            let kind = self.draw_kind(settings);
            let next = self.draw_vm(id, kind, each_max);
            let who = std::mem::replace(&mut ids[who], id);
            self.departures.push(Departure { at_event, who, next });
        }
        self.departures.reverse();
    }

    /// Nothing goes wrong any more: all that is under way ends.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Violation> {
        self.end_faults();
        // A VM above its max tries again some 50 ms after a refusal; what it then takes is no time of the product's.
        self.world.refuse_maps = 0;
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
            Ok(()) => self.world.laws(),
            Err(_) => Err(Violation(format!(
                "without faults this does not end: {}",
                under_way(&self.world).join(", ")
            ))),
        }
    }

    /// The core has given the card up: rightly, and with nothing in the wrong hands by then.
    pub(super) fn end_without_card(&mut self) -> Result<(), Violation> {
        self.world.laws()?;
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
    fn end_faults(&mut self) {
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

    /// VMs on their way out.
    pub(super) fn gone(&self) -> impl Iterator<Item = VmId> {
        self.vms.iter().filter(|vm| vm.leaves).map(|vm| vm.id)
    }

    /// A VM's process dies: its guest stops where it is.
    pub(super) fn send_away(&mut self, at: usize) {
        let vm = &mut self.vms[at];
        if vm.player.outcome().is_none() {
            // Nobody asks any more what became of its guest.
            vm.kind = Kind::Hostile;
        }
        vm.player.end();
        vm.leaves = true;
        self.world.submit(Event::Detach { vm: vm.id });
    }

    /// VMs come and go, and quotas change.
    pub(super) fn operate(&mut self) -> Result<(), Violation> {
        let events = self.log.lock().expect("one thread").events;
        if events >= self.faults_end_at {
            self.end_faults();
        }
        if self.rng.random_range(0..self.quota_turns) == 0 {
            let at = self.rng.random_range(0..self.vms.len());
            let quota = drawn::changed_quota(&mut self.rng);
            if !self.vms[at].leaves {
                let vm = self.vms[at].id;
                self.world.submit(Event::SetQuota { vm, quota });
            }
        }
        // Best while its guest waits for something.
        let waits = |id: VmId| {
            let of = self.vms.iter().find(|vm| vm.id == id);
            of.is_none_or(|vm| vm.player.held_ns(self.world.now).is_some())
        };
        let is_due = |departure: &mut Departure| {
            let late_by = events.checked_sub(departure.at_event);
            late_by.is_some_and(|late_by| late_by > LATE_EVENTS || waits(departure.who))
        };
        if self.coming.is_none()
            && let Some(Departure { who, next, .. }) = self.departures.pop_if(is_due)
        {
            if let Some(at) = self.vms.iter().position(|vm| vm.id == who && !vm.leaves) {
                self.send_away(at);
            }
            self.coming = Some(next);
        }
        if self.coming.is_some() && self.gone().all(|id| self.world.vm(id).detached) {
            self.vms.retain(|vm| !vm.leaves);
            if let Some(next) = self.coming.take() {
                self.add_vm(next);
                return self.bring_up(self.vms.len() - 1);
            }
        }
        Ok(())
    }
}
