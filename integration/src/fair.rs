//! What holds of shares when memory is at rest, by a calculation that shares nothing with the core's (decision 0017).
//!
//! * Nobody who wants a chunk in host RAM is that chunk below its share.
//! * No VRAM is free, or idle and not protected, that a VM wants and may have.
//! * Nobody holds more than its `high`.

use vgpu::{Audit, Quota, VmAudit, VmId};

use crate::checkers::Violation;

/// Halvings of the interval in which the water's level is.
const HALVINGS: u32 = 200;

/// Bytes by which a share may be off. Fractions of a byte are larger: all weights together are no more than 40,000.
const LEVEL_ERROR: f64 = 1e-5;

/// What a VM may hold at least and at most, in one of the three layers that are filled one after the other.
#[derive(Clone, Copy)]
struct Vessel {
    weight: f64,
    lower: f64,
    upper: f64,
}

impl Vessel {
    fn at(self, level: f64) -> f64 {
        (self.weight * level).clamp(self.lower, self.upper)
    }
}

/// What an operator holds back from a VM goes before all of its quota.
fn as_held(audit: &Audit) -> Audit {
    let mut audit = audit.clone();
    for vm in &mut audit.vms {
        let most = vm.hold.vram.unwrap_or(u64::MAX);
        let Quota {
            min, low, high, max, ..
        } = &mut vm.quota;
        for bound in [min, low, high, max] {
            *bound = most.min(*bound);
        }
    }
    audit
}

/// The first rule that does not hold; nothing moves of VMs that `stands` names. Where spilled chunks take all of `host_ram`, only what needs no spill is looked at.
pub(crate) fn check(audit: &Audit, host_ram: u64, stands: impl Fn(VmId) -> bool) -> Result<(), Violation> {
    let audit = &as_held(audit);
    let may_spill = audit.vms.iter().map(|vm| vm.spilled).sum::<u64>() <= host_ram;
    let free = u64::from(audit.free_frames) * fermi_spec::addr::FRAME;
    let at_hand = match may_spill {
        true => {
            let movable = audit.vms.iter().filter(|vm| !stands(vm.vm));
            free + movable.map(takeable).sum::<u64>()
        }
        false => free,
    };
    let shares = shares(audit, free, &stands);
    for (vm, share) in audit.vms.iter().zip(shares).filter(|(vm, _)| !stands(vm.vm)) {
        let room = vm.quota.max.min(vm.quota.high).saturating_sub(vm.resident);
        let wants = vm.wanted > 0 && vm.smallest_wanted <= room;
        if wants && vm.smallest_wanted <= at_hand {
            return Err(broken(audit, vm, "wants a chunk for which there is VRAM", share));
        }
        let below = share - vm.active as f64;
        let is_below = below + LEVEL_ERROR >= vm.smallest_wanted as f64;
        let exchanges = vm.wanted > 0 && (vm.smallest_wanted <= room || vm.idle > 0);
        if may_spill && exchanges && is_below {
            return Err(broken(audit, vm, "is a chunk below its share", share));
        }
        let above_high = vm.resident.saturating_sub(vm.quota.high);
        if may_spill && above_high > 0 && vm.resident >= vm.quota.min + vm.chunk_bytes {
            return Err(broken(audit, vm, "is above its high", share));
        }
    }
    Ok(())
}

fn broken(audit: &Audit, vm: &VmAudit, what: &str, share: f64) -> Violation {
    let mut text = format!("{} {what} ({share:.0}), at rest:", vm.vm);
    for vm in &audit.vms {
        text += &format!(
            " {}: active {}, idle {}, in host RAM {} and wanted {}, chunks of {} (smallest wanted {}), {:?};",
            vm.vm, vm.active, vm.idle, vm.spilled, vm.wanted, vm.chunk_bytes, vm.smallest_wanted, vm.quota
        );
    }
    Violation(text + &format!(" free: {} frames", audit.free_frames))
}

/// Idle bytes that the VM may lose to others: whole chunks, and never below its `min`.
fn takeable(vm: &VmAudit) -> u64 {
    let above_min = vm.resident.saturating_sub(vm.quota.min);
    vm.idle.min(above_min / vm.chunk_bytes * vm.chunk_bytes)
}

/// The shares in bytes, in the order of the VMs.
fn shares(audit: &Audit, free: u64, stands: impl Fn(VmId) -> bool) -> Vec<f64> {
    let capacity = free + audit.vms.iter().map(|vm| vm.resident).sum::<u64>();
    let layers = |vm: &VmAudit| layers(vm, if stands(vm.vm) { vm.resident } else { 0 });
    let layers = audit.vms.iter().map(layers).collect::<Vec<_>>();
    let mut vessels: Vec<Vessel> = Vec::new();
    for layer in 0..3 {
        vessels = audit
            .vms
            .iter()
            .zip(&layers)
            .map(|(vm, ends)| Vessel {
                weight: f64::from(vm.quota.weight),
                lower: if layer == 0 { 0.0 } else { ends[layer - 1] },
                upper: ends[layer],
            })
            .collect();
        if vessels.iter().map(|vessel| vessel.upper).sum::<f64>() > capacity as f64 {
            let level = level(&vessels, capacity as f64);
            return vessels.iter().map(|vessel| vessel.at(level)).collect();
        }
    }
    vessels.iter().map(|vessel| vessel.upper).collect()
}

/// Up to `min` and what cannot be taken from it now, up to `low`, and up to what the VM wants and may have.
fn layers(vm: &VmAudit, fixed: u64) -> [f64; 3] {
    let whole = |bytes: u64| bytes.div_ceil(vm.chunk_bytes) * vm.chunk_bytes;
    let min = whole(vm.quota.min);
    // Of a VM that rests what is protected counts, and no more.
    let used = vm.active + vm.wanted;
    let used = match vm.lends {
        true => used.min(whole(vm.quota.low.max(vm.quota.min))),
        false => used,
    };
    let wanted = used.max(min.min(vm.resident));
    let min = min.min(wanted).max(fixed);
    let most = wanted.min(vm.quota.high).min(vm.quota.max).max(min);
    let low = whole(vm.quota.low).clamp(min, most);
    [min as f64, low as f64, most as f64]
}

fn level(vessels: &[Vessel], capacity: f64) -> f64 {
    let (mut low, mut high) = (0.0, capacity);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        match vessels.iter().map(|vessel| vessel.at(middle)).sum::<f64>() > capacity {
            true => high = middle,
            false => low = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu::{Hold, Quota, VmId};

    const CHUNK: u64 = 2 << 20;

    fn vm(id: u16, chunks: [u64; 3], quota: Quota) -> VmAudit {
        let [active, idle, wanted] = chunks.map(|chunks| chunks * CHUNK);
        VmAudit {
            vm: VmId(id),
            frames: Vec::new(),
            equal: Vec::new(),
            image: (fermi_spec::addr::Iova(0), 0),
            ram: Vec::new(),
            directories: Vec::new(),
            directories_leaving: Vec::new(),
            arena: Vec::new(),
            blocks: Vec::new(),
            emptied: Vec::new(),
            is_pointed: false,
            suspended: Vec::new(),
            asks: false,
            resident: active + idle,
            spilled: wanted,
            active,
            idle,
            wanted,
            split: 0,
            smallest_wanted: if wanted > 0 { CHUNK } else { 0 },
            chunk_bytes: CHUNK,
            lends: false,
            quota,
            hold: Hold::default(),
            wants_intx: false,
            waits_to_show: false,
            shows_late: false,
        }
    }

    fn audit(vms: Vec<VmAudit>) -> Audit {
        Audit {
            vms,
            ..Audit::default()
        }
    }

    fn weight(weight: u32) -> Quota {
        Quota {
            weight,
            ..Quota::default()
        }
    }

    fn finds(vms: Vec<VmAudit>, what: &str) {
        let Err(Violation(text)) = check(&audit(vms), u64::MAX, |_| false) else {
            panic!("nothing is found");
        };
        assert!(text.contains(what), "{text}");
    }

    #[test]
    fn equal_halves_are_fair_and_a_chunk_less_is_not() {
        let fair = vec![vm(0, [5, 0, 5], weight(100)), vm(1, [4, 0, 5], weight(100))];
        assert!(check(&audit(fair), u64::MAX, |_| false).is_ok());
        let unfair = vec![vm(0, [6, 0, 5], weight(100)), vm(1, [4, 0, 5], weight(100))];
        finds(unfair, "vm1 is a chunk below");
    }

    #[test]
    fn weights_and_protections_count() {
        let by_weight = vec![vm(0, [3, 0, 5], weight(50)), vm(1, [6, 0, 5], weight(100))];
        assert!(check(&audit(by_weight), u64::MAX, |_| false).is_ok());
        let equal = vec![vm(0, [5, 0, 5], weight(50)), vm(1, [5, 0, 5], weight(100))];
        finds(equal, "vm1 is a chunk below");
        let low = Quota {
            low: 8 * CHUNK,
            ..Quota::default()
        };
        finds(
            vec![vm(0, [5, 0, 5], low), vm(1, [5, 0, 5], weight(100))],
            "vm0 is a chunk below",
        );
    }

    #[test]
    fn idle_memory_that_somebody_wants_is_found_unless_min_keeps_it() {
        let idle = |quota| vec![vm(0, [0, 2, 0], quota), vm(1, [8, 0, 1], weight(100))];
        finds(idle(Quota::default()), "for which there is VRAM");
        let min = Quota {
            min: 2 * CHUNK,
            ..Quota::default()
        };
        assert!(check(&audit(idle(min)), u64::MAX, |_| false).is_ok());
    }

    #[test]
    fn high_is_kept_at_rest() {
        let high = Quota {
            high: 3 * CHUNK,
            ..Quota::default()
        };
        finds(vec![vm(0, [4, 0, 0], high)], "above its high");
        assert!(check(&audit(vec![vm(0, [3, 0, 4], high)]), u64::MAX, |_| false).is_ok());
    }
}
