//! A card that another driver had before us, and has again after us: Debian's nouveau, unmodified.
//!
//! nouveau brings up memory, channels and a console of its own, and loses the card when we bind it. Our broker must
//! bring the card up from that state, and leave it so that nouveau can do the same.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{PATIENCE, refuses};
use crate::guest::Guest;

/// Lines that the host's kernel must not print meanwhile.
const COMPLAINTS: &str =
    "DMAR:.*fault|BUG:|Oops|Call Trace|nouveau.*(fault|timed out|timeout|killed|failed to idle)";

/// Lets nouveau have the card, and takes it: `vramd bind` names the driver that lost it.
pub(super) fn take_over(guest: &mut Guest, card: &str) -> Result<()> {
    let start = Instant::now();
    guest.succeed(
        "dmesg -c >/dev/null; load driver && insmod /modules/nouveau.ko",
        PATIENCE,
    )?;
    println!(
        "nouveau has the card after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    refuses(
        guest,
        &format!("vramd demo --gpu vfio:{card}"),
        "is bound to nouveau, not to vfio-pci: vramd bind",
    )?;
    let bound = guest
        .succeed(&format!("vramd bind {card} 2>&1"), PATIENCE)?
        .text();
    println!("{}", bound.trim());
    ensure!(
        bound.contains("was bound to nouveau, is bound to vfio-pci"),
        "vramd bind says {bound:?}"
    );
    is_content(guest)
}

/// Starts a broker that gives the card back when it ends: the configuration is that of the check of stray copies.
const SERVE: &str = "rm -f /run/stray.sock; vramd serve --config /etc/stray-host.toml --restore-driver >/dev/null 2>restore.log & \
                     broker=$!; until [ -S /run/stray.sock ]; do kill -0 $broker || break; usleep 50000; done; \
                     kill $broker; wait $broker; cat restore.log";

/// Gives the card back to nouveau in both ways, which brings it up once more, and takes it again; nouveau is gone then.
pub(super) fn give_back(guest: &mut Guest, card: &str) -> Result<()> {
    // Leftovers of the checks before this one.
    guest.succeed("dmesg -c >/dev/null", PATIENCE)?;
    let start = Instant::now();
    let served = guest.succeed(SERVE, PATIENCE)?.text();
    ensure!(
        served.contains("is bound to nouveau"),
        "vramd serve --restore-driver says {served:?}"
    );
    guest.succeed(&format!("vramd bind {card}"), PATIENCE)?;
    let unbound = guest
        .succeed(&format!("vramd unbind {card} 2>&1"), PATIENCE)?
        .text();
    println!("{} ({:.1} s)", unbound.trim(), start.elapsed().as_secs_f64());
    ensure!(
        unbound.contains("is bound to nouveau"),
        "vramd unbind says {unbound:?}"
    );
    guest.succeed("[ -e /dev/dri/renderD128 ]", PATIENCE)?;
    guest.succeed(&format!("vramd bind {card} && rmmod nouveau"), PATIENCE)?;
    is_content(guest)
}

fn is_content(guest: &mut Guest) -> Result<()> {
    let log = guest.succeed(&format!("dmesg -c | grep -E '{COMPLAINTS}' || true"), PATIENCE)?;
    let complaints = log.text();
    ensure!(
        complaints.trim().is_empty(),
        "the nested host's kernel complains: {complaints}"
    );
    Ok(())
}
