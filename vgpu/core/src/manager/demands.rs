//! Accesses that wait for memory: which chunks they need, and until when.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::Cx;
use crate::event::{Tick, VmId};
use crate::inspect::{Inspect, Tree};
use crate::memory::ChunkNo;
use crate::notice::Notice;
use crate::reason::MoveCause;

/// Unbacked chunks that a VM's access waits for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Demand {
    pub(super) vm: VmId,
    pub(super) chunks: Vec<ChunkNo>,
    /// A demand that is not met by then gets host RAM.
    pub(super) deadline: Tick,
    /// When it began.
    since: Tick,
    /// It had to wait, and a notice said so.
    pub(super) is_told: bool,
    /// Chunks that were given host RAM.
    in_host_ram: u32,
    /// VMs whose chunks moved out for it, or should have.
    waited_for: BTreeSet<VmId>,
}

impl Demand {
    /// Tells that it is over, if a notice said that it waits.
    pub(super) fn tell_end(self, cx: &mut Cx<'_>) {
        if self.is_told {
            cx.tell(Notice::DemandEnded {
                vm: self.vm,
                waited_ns: cx.now.since(self.since),
                in_host_ram: self.in_host_ram,
                waited_for: self.waited_for.into_iter().collect(),
            });
        }
    }
}

/// Demands in the order in which they came, one for each VM at most: the VM's queue waits for it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Demands {
    queue: VecDeque<Demand>,
}

impl Demands {
    /// Adds a demand, unless the VM has one.
    pub(super) fn ask(&mut self, vm: VmId, chunks: Vec<ChunkNo>, since: Tick, deadline: Tick) {
        if self.of(vm).is_none() {
            self.queue.push_back(Demand {
                vm,
                chunks,
                deadline,
                since,
                is_told: false,
                in_host_ram: 0,
                waited_for: BTreeSet::new(),
            });
        }
    }

    /// Removes the demand of a VM.
    pub(super) fn forget(&mut self, vm: VmId) -> Option<Demand> {
        let at = self.queue.iter().position(|demand| demand.vm == vm)?;
        self.queue.remove(at)
    }

    /// Demands of which no notice said yet that they wait.
    pub(super) fn untold(&mut self) -> impl Iterator<Item = &mut Demand> {
        self.queue.iter_mut().filter(|demand| !demand.is_told)
    }

    /// Chunks of `vm` move out for somebody's demand, if the cause says so.
    pub(super) fn note_waited_for(&mut self, vm: VmId, cause: MoveCause) {
        if let Some(demand) = cause.beneficiary().and_then(|demander| self.of_mut(demander)) {
            demand.waited_for.insert(vm);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Demand> {
        self.queue.iter()
    }

    pub(super) fn of(&self, vm: VmId) -> Option<&Demand> {
        self.queue.iter().find(|demand| demand.vm == vm)
    }

    fn of_mut(&mut self, vm: VmId) -> Option<&mut Demand> {
        self.queue.iter_mut().find(|demand| demand.vm == vm)
    }

    /// The next chunk to be met: first come, first served.
    pub(super) fn next(&self) -> Option<(VmId, ChunkNo)> {
        self.queue
            .iter()
            .find_map(|demand| Some((demand.vm, *demand.chunks.last()?)))
    }

    /// The next chunk whose time is up.
    pub(super) fn next_late(&self, now: Tick) -> Option<(VmId, ChunkNo)> {
        self.queue
            .iter()
            .filter(|demand| demand.deadline <= now)
            .find_map(|demand| Some((demand.vm, *demand.chunks.last()?)))
    }

    /// Takes chunks out of a VM's demand: they have memory, or get it now. The rest may change its order.
    pub(super) fn take(&mut self, vm: VmId, chunks: &[ChunkNo]) {
        let Some(demand) = self.of_mut(vm) else { return };
        if demand.chunks == chunks {
            return demand.chunks.clear();
        }
        for chunk in chunks {
            if let Some(at) = demand.chunks.iter().rposition(|asked| asked == chunk) {
                demand.chunks.swap_remove(at);
            }
        }
    }

    /// The same for chunks that get host RAM now.
    pub(super) fn take_to_host_ram(&mut self, vm: VmId, chunks: &[ChunkNo]) {
        let left = |demand: &Demand| demand.chunks.len();
        let before = self.of(vm).map_or(0, left);
        self.take(vm, chunks);
        if let Some(demand) = self.of_mut(vm) {
            demand.in_host_ram += (before - left(demand)) as u32;
        }
    }

    /// Removes the demands of which nothing is left, in their order.
    pub(super) fn take_met(&mut self) -> Vec<Demand> {
        let (met, rest) = self.queue.drain(..).partition(|demand| demand.chunks.is_empty());
        self.queue = rest;
        met.into()
    }

    pub(super) fn next_deadline(&self) -> Option<Tick> {
        self.queue.iter().map(|demand| demand.deadline).min()
    }
}

impl Inspect for Demands {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for demand in &self.queue {
            tree.group(demand.vm, |tree| {
                tree.count("chunks", demand.chunks.len());
                tree.age("waits_since", demand.since);
                tree.due_in("in_host_ram_after", demand.deadline);
                tree.group("waited_for", |tree| {
                    demand.waited_for.iter().for_each(|vm| tree.flag(vm, true));
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(numbers: &[u32]) -> Vec<ChunkNo> {
        numbers.iter().copied().map(ChunkNo).collect()
    }

    fn two() -> Demands {
        let mut demands = Demands::default();
        demands.ask(VmId(2), chunks(&[1, 2]), Tick(0), Tick(20));
        demands.ask(VmId(1), chunks(&[7, 8, 9]), Tick(0), Tick(10));
        demands
    }

    #[test]
    fn who_came_first_is_served_first() {
        let mut demands = two();
        assert_eq!(demands.next(), Some((VmId(2), ChunkNo(2))));
        demands.take(VmId(2), &chunks(&[2]));
        demands.take(VmId(2), &chunks(&[1]));
        assert_eq!(demands.next(), Some((VmId(1), ChunkNo(9))));
        let met: Vec<VmId> = demands.take_met().iter().map(|demand| demand.vm).collect();
        assert_eq!(met, [VmId(2)]);
        assert!(demands.of(VmId(2)).is_none() && !demands.is_empty());
    }

    #[test]
    fn second_demand_of_a_vm_is_dropped() {
        let mut demands = two();
        demands.ask(VmId(2), chunks(&[5]), Tick(0), Tick(1));
        assert_eq!(demands.of(VmId(2)).map(|demand| demand.chunks.len()), Some(2));
    }

    #[test]
    fn late_is_who_has_reached_its_deadline() {
        let demands = two();
        assert_eq!(demands.next_deadline(), Some(Tick(10)));
        assert_eq!(demands.next_late(Tick(9)), None);
        assert_eq!(demands.next_late(Tick(10)), Some((VmId(1), ChunkNo(9))));
    }

    #[test]
    fn chunk_that_is_not_demanded_changes_nothing() {
        let mut demands = two();
        demands.take(VmId(1), &chunks(&[1, 8]));
        assert_eq!(
            demands.of(VmId(1)).map(|demand| &demand.chunks),
            Some(&chunks(&[7, 9]))
        );
    }
}
