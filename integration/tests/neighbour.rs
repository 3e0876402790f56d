//! A verifying VM gets on beside each attack, and what it finds is right. How fast is measured by the bench of that name.

use integration::neighbour::Host;
use integration::neighbour::attacks::ATTACKS;

/// Blocks that the victim has to do beside an attack.
const BLOCKS: u64 = 3;

#[test]
fn neighbour_gets_on_beside_each_attack() {
    let host = Host::start().unwrap();
    for attack in &ATTACKS {
        let mut victim = host.victim();
        victim.wait_for(1).unwrap();
        let mut attacker = host.attacker(attack);
        attacker.wait_for(1).unwrap();
        let outcome = victim.wait_for(BLOCKS).and_then(|()| victim.end());
        assert!(
            outcome.is_ok(),
            "beside {}: {:#}",
            attack.name,
            outcome.unwrap_err()
        );
        attacker.end().unwrap();
    }
}
