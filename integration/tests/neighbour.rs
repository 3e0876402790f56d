//! A verifying VM gets on beside each attack, and what it finds is right. How fast is measured by the bench of that name.

use anyhow::{Context as _, Result};
use integration::neighbour::attacks::{
    AT_LENDERS, AT_LENDERS_BY_HABIT, AT_LENDERS_OF_SLOW_HOSTS, AT_LOOKS, AT_PARTS, ATTACKS, Attack,
};
use integration::neighbour::blocks::AT_WORKERS;
use integration::neighbour::everywhere::AT_WAITERS;
use integration::neighbour::{Host, LARGE_CHUNK};
use vgpu::policy::PolicyName;

/// Blocks that the victim has to do beside an attack.
const BLOCKS: u64 = 3;
/// Blocks of a victim beside which launches have brought [`LENT`] out of VRAM, with much to spare: it does some hundred a second.
const ENOUGH: u64 = 50_000;
/// Blocks after which a host counts as one that has other work: rests pay for no copies there, unless they are long.
const PATIENCE: u64 = 40;
/// Bytes that are to come to a victim from one that lends, of each rest some 12 MiB, or to leave VRAM for launches.
const LENT: u64 = 30 << 20;

fn get_on_beside(host: &Host, attacks: &[Attack]) -> Result<()> {
    for attack in attacks {
        let mut victim = host.victim();
        victim.wait_for(1)?;
        let mut attacker = host.attacker(attack);
        attacker.wait_for(1)?;
        let outcome = victim.wait_for(BLOCKS).and_then(|()| victim.end());
        outcome.with_context(|| format!("beside {}", attack.name))?;
        attacker.end()?;
    }
    Ok(())
}

#[test]
fn neighbour_gets_on_beside_each_attack() {
    get_on_beside(&Host::start().unwrap(), &ATTACKS).unwrap();
}

/// All that is tried at any card, too: the victim's own grids run beside a worker.
#[test]
fn neighbour_gets_on_beside_blocks_that_workers_run_in_vain() {
    let host = Host::with_worker().unwrap();
    get_on_beside(&host, &AT_WORKERS).unwrap();
    get_on_beside(&host, &ATTACKS).unwrap();
}

#[test]
fn neighbour_gets_on_beside_chunks_that_are_mapped_everywhere() {
    let host = Host::looking(PolicyName::GdmAlways).unwrap();
    for attack in &AT_WAITERS {
        let mut victim = host.victim();
        victim.wait_for(1).unwrap();
        let attacker = host.attacker(attack);
        let moved = |host: &Host| host.stats_of_other().map_or(0, |stats| stats.spilled_out_bytes);
        let mut blocks = 0;
        while moved(&host) < LENT {
            victim.wait_for(1).unwrap();
            blocks += 1;
            assert!(blocks < ENOUGH, "{} bytes left VRAM", moved(&host));
        }
        victim.end().unwrap();
        attacker.end().unwrap();
    }
}

#[test]
fn neighbour_gets_on_beside_launches_that_are_dear_to_look_at() {
    for policy in [PolicyName::Gdm, PolicyName::GdmAlways, PolicyName::Adaptive] {
        get_on_beside(&Host::looking(policy).unwrap(), &AT_LOOKS).unwrap();
    }
}

/// Each chunk goes and comes in parts, and what the other VM ends with is met by one that is on its way.
#[test]
fn neighbour_gets_on_beside_vms_that_end_while_chunks_are_on_their_way() {
    let host = Host::lending_in_parts().unwrap();
    let (mut moved, mut pauses) = (0, 0);
    for attack in AT_LENDERS.iter().chain(&AT_PARTS) {
        let mut victim = host.victim();
        victim.wait_for(1).unwrap();
        let mut attacker = host.attacker(attack);
        attacker.wait_for(1).unwrap();
        let outcome = victim.wait_for(BLOCKS);
        let stats = host.stats().unwrap();
        (moved, pauses) = (moved + stats.copied_bytes, pauses + stats.pauses.count);
        let outcome = outcome.and_then(|()| victim.end());
        outcome.unwrap_or_else(|error| panic!("beside {}: {error:#}", attack.name));
        attacker.end().unwrap();
    }
    assert!(
        moved > 0 && moved < pauses * LARGE_CHUNK / 2,
        "{moved} bytes were copied in {pauses} pauses"
    );
}

/// By default memory comes to the victim once the other rests for long as a habit, and goes with its next doorbell.
#[test]
fn neighbour_gets_on_beside_one_that_lends_by_habit() {
    let host = Host::lending_by_habit().unwrap();
    let mut victim = host.victim();
    victim.wait_for(1).unwrap();
    let attacker = host.attacker(&AT_LENDERS_BY_HABIT);
    let mut blocks = 0;
    while host.stats().unwrap().refilled_bytes < LENT {
        victim.wait_for(1).unwrap();
        blocks += 1;
        assert!(blocks < ENOUGH, "too little was lent");
    }
    victim.end().unwrap();
    attacker.end().unwrap();
}

/// Memory comes to the victim with each rest of the other's, and goes with its next doorbell; with rests that are too short none does.
#[test]
fn neighbour_gets_on_beside_vms_that_lend_and_take_back() {
    let host = Host::lending().unwrap();
    for (attack, lends) in AT_LENDERS.iter().zip([true, false]) {
        let mut victim = host.victim();
        victim.wait_for(1).unwrap();
        let mut attacker = host.attacker(attack);
        attacker.wait_for(1).unwrap();
        victim.wait_for(BLOCKS).unwrap();
        let mut blocks = 0;
        while lends && host.stats().unwrap().refilled_bytes < LENT {
            victim.wait_for(1).unwrap();
            blocks += 1;
            if blocks == PATIENCE {
                attacker.end().unwrap();
                attacker = host.attacker(&AT_LENDERS_OF_SLOW_HOSTS);
            }
        }
        let came = host.stats().unwrap().refilled_bytes;
        assert!(lends || came == 0, "{came} bytes came to the victim");
        let outcome = victim.end();
        outcome.unwrap_or_else(|error| panic!("beside {}: {error:#}", attack.name));
        attacker.end().unwrap();
    }
}
