//! How many descriptors `serve` may need, and that it may have them: where one is missing, the kernel closes what a client sends, in the time
//! of all clients.

use anyhow::{Context as _, ensure};
use broker::DESCRIPTORS_OF_A_VM;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a broker holds beside its VMs: the card, files of its own, events, and some in reserve.
const OF_A_BROKER: u64 = 128;

/// Raises the limit of descriptors to what `brokers` with `vms` and so many connections of operators need together, if it is lower and may
/// be raised.
pub(crate) fn provide(brokers: usize, vms: usize, connections: usize) -> anyhow::Result<()> {
    let needed = OF_A_BROKER * brokers as u64 + DESCRIPTORS_OF_A_VM * vms as u64 + connections as u64;
    let limit = getrlimit(Resource::Nofile);
    // None is no limit.
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum;
    ensure!(
        maximum.is_none_or(|maximum| maximum >= needed),
        "{vms} VMs can need {needed} descriptors, and this process may have {}: raise the limit (ulimit -Hn {needed}, LimitNOFILE={needed}) or \
         serve fewer VMs",
        maximum.unwrap_or_default()
    );
    let raised = Rlimit {
        current: Some(needed),
        maximum,
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")
}
