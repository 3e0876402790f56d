//! What each VM's memory cost it and others: sums over the notices that the core gives.
//!
//! The sums are kept here and not at the edge, so that they are the same in a simulation, in a replay and in use, and
//! so that they stay with the state. A notice is counted when it is told, and nothing else counts, so a log of all
//! notices adds up to the account.

use std::collections::BTreeMap;

use fermi_spec::engine::Engine;
use planted::Fault;
use serde::{Deserialize, Serialize};

use crate::event::{Tick, VmId};
use crate::inspect::{Inspect, Tree};
use crate::notice::{Direction, MoveStage, Notice};

/// Sums of one VM since it was attached. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// When the VM was attached.
    pub attached_at: Tick,
    /// Bytes of its chunks that were moved to host RAM.
    pub spilled_bytes: u64,
    /// Bytes of its chunks that were moved back to VRAM.
    pub refilled_bytes: u64,
    /// Bytes that crossed the link to the card for these moves: equal copies and instance memory need no copy.
    pub link_bytes: u64,
    /// Moves of its memory that were given up.
    pub rolled_back: u64,
    /// How often channels of the VM were suspended for a move.
    pub suspensions: u64,
    /// What was predicted of the suspensions together, as each began.
    #[serde(default)]
    pub predicted_ns: u64,
    /// Time of the suspensions together, without the one under way.
    pub suspended_ns: u64,
    /// How much of that was the wait for what the channels had under way.
    pub drained_ns: u64,
    /// How much of it were suspensions for moves that were given up.
    pub suspended_in_vain_ns: u64,
    /// Start of the suspension under way.
    pub suspended_since: Option<Tick>,
    /// Time that its moves spent in each stage, rolled back or not.
    pub stages_ns: BTreeMap<MoveStage, u64>,
    /// Times that an access of the VM waited for memory behind chunks.
    pub demands: u64,
    /// Time of these waits together.
    pub demand_wait_ns: u64,
    /// Chunks that were given host RAM because VRAM was not to be had, or not in time.
    pub demanded_in_host_ram: u64,
    /// Times that a sync point of the VM waited for memory or for a move.
    pub sync_waits: u64,
    /// Time of these waits together.
    pub sync_wait_ns: u64,
    /// Times that its work waited for memory that launches use.
    #[serde(default)]
    pub work_waits: u64,
    /// How many of them ended because their time was up.
    #[serde(default)]
    pub work_waits_in_vain: u64,
    /// Time of these waits together.
    #[serde(default)]
    pub work_wait_ns: u64,
    /// Time for which its work was on PGRAPH, which computes and draws, by samples.
    #[serde(default)]
    pub graph_ns: u64,
    /// Time for which its work was on the copy engines, both together, by samples.
    #[serde(default)]
    pub copy_ns: u64,
    /// Bytes of its chunks that were moved out for another VM's sake, or its own, by that VM.
    pub spilled_for: BTreeMap<VmId, u64>,
    /// The same for VMs that are gone: their numbers may be others' now.
    pub spilled_for_gone: u64,
}

impl Account {
    /// Time for which channels of the VM were suspended, with the suspension under way.
    pub fn suspended_ns(&self, now: Tick) -> u64 {
        let under_way = self.suspended_since.map_or(0, |since| now.since(since));
        self.suspended_ns + under_way
    }

    /// Parts of a million of the VM's life in which its channels were suspended.
    pub fn suspended_ppm(&self, now: Tick) -> u64 {
        let life = u128::from(now.since(self.attached_at).max(1));
        (u128::from(self.suspended_ns(now)) * 1_000_000 / life) as u64
    }

    fn add(&mut self, notice: &Notice, now: Tick) {
        match notice {
            Notice::Moved {
                direction,
                cause,
                bytes,
                copied,
                ..
            } => {
                self.link_bytes += copied;
                match direction {
                    Direction::Spill => self.spilled_bytes += bytes,
                    Direction::Refill if planted::is(Fault::AccountLies) => {}
                    Direction::Refill => self.refilled_bytes += bytes,
                }
                if let Some(vm) = cause.beneficiary() {
                    *self.spilled_for.entry(vm).or_default() += bytes;
                }
            }
            Notice::RolledBack { .. } => self.rolled_back += 1,
            Notice::MoveStage { stage, took_ns, .. } => {
                *self.stages_ns.entry(*stage).or_default() += took_ns;
            }
            Notice::Suspended { predicted_ns, .. } => {
                self.suspensions += 1;
                self.predicted_ns += predicted_ns;
                self.suspended_since = Some(now);
            }
            Notice::Resumed {
                suspended_ns,
                drained_ns,
                is_rolled_back,
                ..
            } => {
                self.suspended_ns += suspended_ns;
                self.drained_ns += drained_ns;
                if *is_rolled_back {
                    self.suspended_in_vain_ns += suspended_ns;
                }
                self.suspended_since = None;
            }
            Notice::DemandEnded {
                waited_ns,
                in_host_ram,
                ..
            } => {
                self.demands += 1;
                self.demand_wait_ns += waited_ns;
                self.demanded_in_host_ram += u64::from(*in_host_ram);
            }
            Notice::SyncWaited { waited_ns, .. } => {
                self.sync_waits += 1;
                self.sync_wait_ns += waited_ns;
            }
            Notice::WorkWaited {
                waited_ns, in_vain, ..
            } => {
                self.work_waits += 1;
                self.work_waits_in_vain += u64::from(*in_vain);
                self.work_wait_ns += waited_ns;
            }
            Notice::EngineTime { engine, ns, .. } => match engine {
                Engine::Graph => self.graph_ns += ns,
                Engine::Copy0 | Engine::Copy1 => self.copy_ns += ns,
                Engine::Ppdec | Engine::Pppp | Engine::Pvld => {}
            },
            _ => {}
        }
    }
}

/// The accounts of all attached VMs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Accounts {
    open: BTreeMap<VmId, Account>,
}

impl Accounts {
    /// A VM is attached: its sums begin.
    pub(crate) fn open(&mut self, vm: VmId, now: Tick) {
        let account = Account {
            attached_at: now,
            ..Account::default()
        };
        self.open.insert(vm, account);
    }

    /// A VM is gone: its number may be another's from now on.
    pub(crate) fn close(&mut self, vm: VmId) {
        self.open.remove(&vm);
        for account in self.open.values_mut() {
            account.spilled_for_gone += account.spilled_for.remove(&vm).unwrap_or(0);
        }
    }

    /// The VMs that have one, in order.
    pub(crate) fn vms(&self) -> impl Iterator<Item = &VmId> {
        self.open.keys()
    }

    pub(crate) fn get(&self, vm: VmId) -> Option<&Account> {
        self.open.get(&vm)
    }

    /// Counts a notice that is told at `now`.
    pub(crate) fn add(&mut self, notice: &Notice, now: Tick) {
        if let Some(account) = notice.vm().and_then(|vm| self.open.get_mut(&vm)) {
            account.add(notice, now);
        }
    }
}

impl Inspect for Account {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.age("attached", self.attached_at);
        tree.bytes("spilled", self.spilled_bytes);
        tree.bytes("refilled", self.refilled_bytes);
        tree.bytes("over_the_link", self.link_bytes);
        tree.count("moves_rolled_back", self.rolled_back as usize);
        tree.count("suspensions", self.suspensions as usize);
        tree.nanoseconds("suspended", self.suspended_ns);
        tree.nanoseconds("suspended_as_predicted", self.predicted_ns);
        tree.nanoseconds("suspended_until_drained", self.drained_ns);
        tree.nanoseconds("suspended_in_vain", self.suspended_in_vain_ns);
        if let Some(since) = self.suspended_since {
            tree.age("suspended_again", since);
        }
        tree.group("stages_of_moves", |tree| {
            for (stage, &ns) in &self.stages_ns {
                tree.nanoseconds(format_args!("{stage:?}"), ns);
            }
        });
        tree.count("demands_that_waited", self.demands as usize);
        tree.nanoseconds("waited_for_demands", self.demand_wait_ns);
        tree.count("chunks_given_host_ram", self.demanded_in_host_ram as usize);
        tree.count("sync_points_that_waited", self.sync_waits as usize);
        tree.nanoseconds("waited_for_sync_points", self.sync_wait_ns);
        tree.nanoseconds("on_graph", self.graph_ns);
        tree.nanoseconds("on_copy_engines", self.copy_ns);
        tree.group("spilled_for", |tree| {
            for (vm, &bytes) in &self.spilled_for {
                tree.bytes(vm, bytes);
            }
            tree.bytes("those_that_are_gone", self.spilled_for_gone);
        });
    }
}

impl Inspect for Accounts {
    fn inspect(&self, tree: &mut Tree<'_>) {
        self.open.iter().for_each(|(vm, account)| tree.part(vm, account));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::MoveId;
    use crate::reason::MoveCause;

    const VM: VmId = VmId(1);
    const OTHER: VmId = VmId(2);

    fn accounts() -> Accounts {
        let mut accounts = Accounts::default();
        accounts.open(VM, Tick(1_000));
        accounts
    }

    #[test]
    fn suspension_under_way_counts_until_now() {
        let mut accounts = accounts();
        let (vm, id) = (VM, MoveId(1));
        let suspended = Notice::Suspended {
            vm,
            id,
            channels: 2,
            predicted_ns: 120,
        };
        accounts.add(&suspended, Tick(1_100));
        let account = accounts.get(VM).expect("it is attached");
        assert_eq!(account.suspended_ns(Tick(1_200)), 100);
        assert_eq!(account.suspended_ppm(Tick(1_200)), 500_000);
        let resumed = Notice::Resumed {
            vm,
            id,
            suspended_ns: 150,
            drained_ns: 40,
            is_rolled_back: false,
        };
        accounts.add(&resumed, Tick(1_250));
        let account = accounts.get(VM).expect("it is attached");
        assert_eq!((account.suspended_ns(Tick(9_000)), account.suspensions), (150, 1));
        assert_eq!((account.drained_ns, account.suspended_in_vain_ns), (40, 0));
        assert_eq!(account.predicted_ns, 120);
    }

    #[test]
    fn bytes_spilled_for_a_vm_that_is_gone_are_nobodys() {
        let mut accounts = accounts();
        accounts.open(OTHER, Tick(0));
        let moved = Notice::Moved {
            vm: VM,
            id: MoveId(1),
            direction: Direction::Spill,
            cause: MoveCause::Demand { of: OTHER },
            chunks: 1,
            bytes: 10,
            copied: 8,
            pause_ns: None,
        };
        accounts.add(&moved, Tick(0));
        let account = accounts.get(VM).expect("it is attached");
        assert_eq!(account.spilled_for, BTreeMap::from([(OTHER, 10)]));
        assert_eq!((account.spilled_bytes, account.link_bytes), (10, 8));
        accounts.close(OTHER);
        let account = accounts.get(VM).expect("it is attached");
        assert!(account.spilled_for.is_empty());
        assert_eq!(account.spilled_for_gone, 10);
    }
}
