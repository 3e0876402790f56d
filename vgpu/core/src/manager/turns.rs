//! Turns: a VM that has used up its slice of the broker's time goes on at a wake-up of its own, so that whatever others
//! want comes in between. One turn a wake-up.

use super::running::Running;
use crate::event::{Tick, VmId};

impl Running {
    /// Whether the VM may go on. If not, it is woken when its turn comes.
    #[inline]
    pub(super) fn has_turn(&mut self, vm: VmId, now: Tick) -> bool {
        let vms = self.vms.len();
        self.vms
            .get_mut(&vm)
            .is_some_and(|vgpu| vgpu.share.has_turn(vms, now))
    }

    /// When the next VM has its turn.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        self.vms.values().filter_map(|vgpu| vgpu.share.turn_at()).min()
    }

    /// Work counted for a VM, and the tables that are followed for it.
    pub(super) fn work(&self, vm: VmId) -> Option<(u64, usize)> {
        let vgpu = self.vms.get(&vm)?;
        Some((vgpu.share.work(), vgpu.table_count()))
    }

    /// Lets the VM go on whose turn came first, if one's has.
    pub(super) fn give_turn(&mut self, now: Tick) {
        let waiting = self
            .vms
            .values_mut()
            .filter_map(|vgpu| Some((vgpu.share.turn_at()?, vgpu)));
        let next = waiting.filter(|(at, _)| *at <= now).min_by_key(|(at, _)| *at);
        if let Some((_, vgpu)) = next {
            vgpu.share.begin_turn(now);
            self.volatile.ready.insert(vgpu.id);
        }
    }
}
