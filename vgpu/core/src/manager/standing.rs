//! Who holds what of a card at one moment, for an operator who asks.

use super::running::Running;
use super::{Manager, Phase};
use crate::account::Account;
use crate::config::{Hold, Quota, VmConfig};
use crate::event::VmId;
use crate::policy::VmView;

/// A card's memory, and what each VM has of it. Bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// VRAM that guests may hold.
    pub usable: u64,
    /// Of that, held by nobody.
    pub free: u64,
    /// Host RAM for spilled chunks of all VMs.
    pub host_ram: u64,
    /// The attached VMs.
    pub vms: Vec<VmStanding>,
}

/// What one VM has. Bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VmStanding {
    /// Number of the VM.
    pub vm: VmId,
    /// What it may hold.
    pub quota: Quota,
    /// What an operator holds back from it.
    pub hold: Hold,
    /// What it is promised of VRAM: its `min` in whole chunks.
    pub promised: u64,
    /// In VRAM, in use or not.
    pub resident: u64,
    /// Of chunks, in host RAM.
    pub spilled: u64,
    /// In VRAM and reached by channels, or just asked for.
    pub active: u64,
    /// In VRAM and reached by nothing.
    pub idle: u64,
    /// In host RAM and reached by channels.
    pub wanted: u64,
    /// Its guest rests, and what it uses is others' as far as nothing protects it.
    pub lends: bool,
    /// Its sums since it was attached.
    pub account: Account,
}

impl Standing {
    /// The largest `min` of a VM of this configuration that can be promised beside what others are promised. `vm` is its number,
    /// if it is attached.
    pub fn min_most(&self, config: &VmConfig, vm: Option<VmId>) -> u64 {
        let others = self.vms.iter().filter(|other| Some(other.vm) != vm);
        let promised = others.map(|other| other.promised).fold(0, u64::saturating_add);
        let room = self.usable.saturating_sub(promised);
        match room >= config.guest_vram {
            true => config.guest_vram,
            false => room / config.chunk_bytes * config.chunk_bytes,
        }
    }
}

impl Manager {
    /// Who holds what. `None` unless the card is up.
    pub fn standing(&self) -> Option<Standing> {
        match &self.phase {
            Phase::Up(running) => Some(self.standing_of(running)),
            _ => None,
        }
    }

    fn standing_of(&self, running: &Running) -> Standing {
        let of_vm = |(&vm, vgpu): (&VmId, &crate::device::Vgpu)| {
            let view = VmView::of(vm, &vgpu.chunks, vgpu.config.chunk_bytes, vgpu.quota());
            VmStanding {
                vm,
                quota: vgpu.config.quota,
                hold: vgpu.hold,
                promised: vgpu.config.promised(),
                resident: vgpu.chunks.resident(),
                spilled: vgpu.chunks.spilled(),
                active: view.active,
                idle: view.idle,
                wanted: view.wanted,
                lends: vgpu.activity.lends,
                account: self.accounts.get(vm).cloned().unwrap_or_default(),
            }
        };
        Standing {
            usable: running.usable_bytes(),
            free: running.free_bytes(),
            host_ram: running.config.host_ram,
            vms: running.vms.iter().map(of_vm).collect(),
        }
    }
}
