//! A verifying VM gets on beside each attack, and what it finds is right. How fast is measured by the bench of that name.

use anyhow::{Context as _, Result};
use integration::neighbour::Host;
use integration::neighbour::attacks::{AT_LOOKS, ATTACKS, Attack};
use vgpu::policy::PolicyName;

/// Blocks that the victim has to do beside an attack.
const BLOCKS: u64 = 3;

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

#[test]
fn neighbour_gets_on_beside_launches_that_are_dear_to_look_at() {
    for policy in [PolicyName::Gdm, PolicyName::GdmAlways, PolicyName::Adaptive] {
        get_on_beside(&Host::looking(policy).unwrap(), &AT_LOOKS).unwrap();
    }
}
