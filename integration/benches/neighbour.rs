//! What a VM keeps of its speed, and how long its accesses wait, beside each attack.
//!
//! The fair speed is that of one of two VMs that do the same work. It is measured before and after each attack, and the
//! mean counts, so that a slow phase of the machine meets both. Speed is told by the host's clock and by the card's: a software card
//! takes a hundred times as long for a full grid as a card would, and a copy beside it waits for that. The run fails if a victim found a wrong byte, kept
//! less than [`LEAST_SHARE`] of its fair speed, or waited longer than [`LONGEST_WAIT`] for an access. Beside VMs that only work, speed
//! by the card's clock counts.

use std::time::Duration;

use anyhow::{Result, ensure};
use integration::neighbour::attacks::{AT_LENDERS, AT_LOOKS, AT_PARTS, ATTACKS, Attack};
use integration::neighbour::grinder::AT_WORK;
use integration::neighbour::{Host, Measured};
use vgpu::policy::PolicyName;

/// Part of its fair speed that a VM keeps.
const LEAST_SHARE: f64 = 0.4;
/// Longest wait for one access.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
/// How long the victim is looked at.
const WINDOW: Duration = Duration::from_secs(5);
/// Blocks before the clock runs.
const WARM_UP: u64 = 5;

fn main() -> Result<()> {
    let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    if has("--list") {
        return Ok(());
    }
    if !has("--bench") {
        // `tests/neighbour.rs` has the checks that do not need a clock.
        return Ok(());
    }
    // Attacks whose names contain one of these words, or all.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted =
        |attack: &&Attack| words.is_empty() || words.iter().any(|word| attack.name.contains(word));
    println!(
        "{:<36} {:>10} {:>10} {:>8} {:>8} {:>10}",
        "beside", "blocks/s", "fair", "share", "by card", "waited ms"
    );
    let host = Host::start()?;
    let mut failures = measure(&host, ATTACKS.iter().filter(is_wanted), Clock::Hosts)?;
    println!("VMs that only work:");
    failures.extend(measure(&host, AT_WORK.iter().filter(is_wanted), Clock::Cards)?);
    drop(host);
    for policy in [
        PolicyName::Gpuswap,
        PolicyName::Gdm,
        PolicyName::Adaptive,
        PolicyName::GdmAlways,
    ] {
        println!("{policy}:");
        failures.extend(measure(
            &Host::looking(policy)?,
            AT_LOOKS.iter().filter(is_wanted),
            Clock::Hosts,
        )?);
    }
    println!("VMs that lend:");
    let lenders = AT_LENDERS.iter().filter(is_wanted);
    failures.extend(measure(&Host::lending()?, lenders, Clock::Hosts)?);
    println!("the same, with chunks that move in parts:");
    let in_parts = AT_LENDERS.iter().chain(&AT_PARTS);
    failures.extend(measure(
        &Host::lending_in_parts()?,
        in_parts.filter(is_wanted),
        Clock::Hosts,
    )?);
    ensure!(
        failures.is_empty(),
        "a neighbour gets too little beside: {}",
        failures.join("; ")
    );
    Ok(())
}

/// By whose time a victim has to keep its part.
#[derive(Clone, Copy)]
enum Clock {
    Hosts,
    Cards,
}

/// Prints a line for each attack. Names of those that take too much.
fn measure<'a>(host: &Host, attacks: impl Iterator<Item = &'a Attack>, clock: Clock) -> Result<Vec<&'a str>> {
    let mut failures = Vec::new();
    for attack in attacks {
        let before = beside(host, None)?;
        let found = match beside(host, Some(attack)) {
            Ok(found) => found,
            Err(error) => {
                println!("{:<36} {error:#}", attack.name);
                failures.push(attack.name);
                continue;
            }
        };
        let after = beside(host, None)?;
        let fair = f64::midpoint(before.speed, after.speed);
        let (share, by_card) = (
            found.speed / fair,
            found.speed_by_card / f64::midpoint(before.speed_by_card, after.speed_by_card),
        );
        println!(
            "{:<36} {:>10.1} {fair:>10.1} {:>6.0} % {:>6.0} % {:>10.1}",
            attack.name,
            found.speed,
            100.0 * share,
            100.0 * by_card,
            1e3 * found.longest.as_secs_f64()
        );
        let counts = match clock {
            Clock::Hosts => share,
            Clock::Cards => by_card,
        };
        if counts < LEAST_SHARE || found.longest > LONGEST_WAIT {
            failures.push(attack.name);
        }
    }
    Ok(failures)
}

/// A victim beside an attack, or beside another victim.
fn beside(host: &Host, attack: Option<&Attack>) -> Result<Measured> {
    let mut victim = host.victim();
    victim.wait_for(WARM_UP)?;
    let mut other = attack.map_or_else(|| host.twin(), |attack| host.attacker(attack));
    other.wait_for(1)?;
    let mut found = victim.measure(WINDOW);
    found.longest = found.longest.max(victim.end()?);
    other.end()?;
    Ok(found)
}
