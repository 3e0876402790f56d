//! What an operator does in a run: VMs go and come, quotas change, and memory or time is held back.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use sim_host::turns::Player;
use vgpu::{Event, Hold, VmId};

use super::drawn::{self, DrawnVm};
use super::{Kind, MIB, Settings, Simulation, Violation};

/// Events for which a departure may wait for a better moment.
const LATE_EVENTS: u64 = 2_000;

/// At a number of events a VM goes, and when it is gone another comes.
pub(super) struct Departure {
    at_event: u64,
    who: VmId,
    next: DrawnVm,
}

/// What an operator holds back from VMs.
pub(super) struct Holds {
    /// A stream of its own, so that other draws are as they are without.
    rng: ChaCha8Rng,
    /// A VM that is suspended, and what is held back from it afterwards.
    suspended: Option<(VmId, Hold)>,
    /// In one seed of four: holds leave less of what else may go wrong.
    are_drawn: bool,
}

impl Holds {
    pub(super) fn new(seed: u64, rng: &ChaCha8Rng) -> Self {
        let mut rng = rng.clone();
        rng.set_stream(4);
        Self {
            rng,
            suspended: None,
            are_drawn: seed % 4 == 3,
        }
    }
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
        self.have_newcomers = !self.departures.is_empty();
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
        vm.vmm.iter_mut().for_each(Player::end);
        vm.leaves = true;
        self.world.submit(Event::Detach { vm: vm.id });
    }

    /// An operator freezes VMs, spills some of their memory, suspends them for a while, and lets them go.
    fn hold(&mut self) {
        if let Some((vm, hold)) = self.holds.suspended.take() {
            self.world.submit(Event::SetHold { vm, hold });
        }
        if !self.holds.are_drawn || self.holds.rng.random_range(0..self.quota_turns) != 0 {
            return;
        }
        let at = self.holds.rng.random_range(0..self.vms.len());
        let vram = match self.holds.rng.random_range(0..4) {
            0 => Some(0),
            1 => Some(self.holds.rng.random_range(1..=12) * MIB),
            _ => None,
        };
        let is_suspended = self.holds.rng.random();
        if !self.vms[at].leaves {
            let vm = self.vms[at].id;
            let hold = Hold { vram, is_suspended };
            self.world.submit(Event::SetHold { vm, hold });
            let is_suspended = false;
            self.holds.suspended = hold.is_suspended.then_some((vm, Hold { vram, is_suspended }));
        }
    }

    /// VMs come and go, and quotas change.
    pub(super) fn operate(&mut self) -> Result<(), Violation> {
        let events = self.log.lock().expect("one thread").events;
        if events >= self.faults_end_at {
            self.end_faults();
        }
        if self.pauses.pop_if(|at| events >= *at).is_some() {
            self.pause()?;
        }
        if self.rng.random_range(0..self.quota_turns) == 0 {
            let at = self.rng.random_range(0..self.vms.len());
            let mut quota = drawn::changed_quota(&mut self.rng);
            if self.have_newcomers {
                quota.min = 0;
            }
            if !self.vms[at].leaves {
                let vm = self.vms[at].id;
                self.world.submit(Event::SetQuota { vm, quota });
            }
        }
        self.hold();
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
