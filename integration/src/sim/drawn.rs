//! What a seed draws: promises to VMs, and misbehaviour of the hardware.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use vgpu::Quota;

use super::MIB;

/// Weights always differ; now and then a VM is promised some VRAM, or held below what it sees.
pub(super) fn quota(rng: &mut ChaCha8Rng) -> Quota {
    let weight = [50, 100, 100, 200][rng.random_range(0..4)];
    let min = if rng.random_range(0..4) == 0 {
        rng.random_range(1..=4) * MIB
    } else {
        0
    };
    let max = if rng.random_range(0..4) == 0 {
        rng.random_range(6..=16) * MIB
    } else {
        u64::MAX
    };
    Quota {
        min,
        max,
        weight,
        ..Quota::default()
    }
}

/// Switches some faults on, each with some strength.
pub(super) fn swarm(faults: &mut fermi_model::Faults, rng: &mut ChaCha8Rng) {
    const MS: u64 = 1_000_000;
    if rng.random_range(0..3) == 0 {
        // Around the budget of 20 ms, so that some suspensions are in time and some are not.
        faults.preempt_delay_ns = rng.random_range(0..30 * MS);
    }
    if rng.random_range(0..4) == 0 {
        faults.refused_preempts = rng.random_range(1..4);
    }
    if rng.random_range(0..4) == 0 {
        faults.runlist_delay_ns = rng.random_range(0..MS);
    }
    if rng.random_range(0..4) == 0 {
        faults.lost_interrupts = rng.random_range(1..20);
    }
    if rng.random_range(0..4) == 0 {
        faults.copy_slowdown = rng.random_range(2..40);
    }
}
