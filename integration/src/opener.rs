//! A guest that opens channels and changes its tables while its memory goes to host RAM and comes back.

use vgpu::{Event, GpuConfig, Quota, VmConfig, VmId};

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::{self, DATA, LARGE_TABLE, Rig};
use sim_host::bus::SimBus;

const VM: VmId = VmId(0);
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 8 * MIB;
/// Bytes of a chunk, and of a move: there are many, one behind the other.
const CHUNK_BYTES: u64 = 512 << 10;
/// What the VM may keep on the card while its memory goes.
const MAX: u64 = 4 * MIB;
/// GPU time of a flush: long enough for the next move to begin meanwhile.
const FLUSH_NS: u64 = 50_000;
/// Channels that are opened.
const CHANNELS: u8 = 24;
/// The first large page behind those of the data, of an entry that a channel brings along.
const SPARE_ENTRY: u64 = DATA_BYTES >> 17;

/// Opens a channel, each time with an entry that is new, and has it store to all of the data, which it loads again.
fn open_and_store(bus: &mut SimBus) -> Result<(), String> {
    let mut rig = Rig::start(bus, DATA_BYTES);
    for channel in 0..CHANNELS {
        let entry = LARGE_TABLE + (SPARE_ENTRY + u64::from(channel)) * 8;
        rig::put64(bus, entry, rig::vram_pte(DATA).into_bits());
        rig.open(bus, channel);
        if !rig.fill(bus, channel, channel.into(), DATA_BYTES) {
            return Err(format!("a copy of channel {channel} does not end"));
        }
        rig.verify(bus, channel, channel.into(), DATA_BYTES)
            .map_err(|at| format!("channel {channel} finds another byte at {at:#x}"))?;
    }
    Ok(())
}

/// The stage of the sync that binds a channel.
fn stage_of_bind(bench: &Bench) -> Option<String> {
    let at = |path: &str| {
        let node = bench.world.manager.inspect(bench.world.now, path)?;
        Some(node.value_at(path)?.to_string())
    };
    at("vms/vm0/head/sync/stage").filter(|_| at("vms/vm0/head/sync/cause").as_deref() == Some("bind"))
}

/// Channels are opened while memory moves: what they store is there afterwards, and both copies of what moved are equal.
///
/// # Errors
///
/// Says which channel lost what, or which law did not hold.
pub fn channels_opened_during_moves() -> Result<(), Violation> {
    let config = GpuConfig {
        batch_bytes: CHUNK_BYTES,
        ..gpu_config()
    };
    let vm = VmConfig {
        chunk_bytes: CHUNK_BYTES,
        ..vm_config(24)
    };
    let mut bench = Bench::with(48, config, &[vm]);
    bench.world.model.faults_mut().flush_delay_ns = FLUSH_NS;
    let task = bench.start(VM, open_and_store);
    let mut changes = 0;
    while !bench.has_ended(VM) {
        bench.let_guests_go_on();
        if stage_of_bind(&bench).as_deref() == Some("flush") {
            // The tables are built: now memory begins to go, or to come back.
            let max = [MAX, u64::MAX][changes % 2];
            let quota = Quota {
                max,
                ..Quota::default()
            };
            bench.world.submit(Event::SetQuota { vm: VM, quota });
            changes += 1;
            // It does not hold before its memory is gone.
            bench.is_checked = false;
        }
        bench.let_card_go_on();
    }
    bench.join(task).map_err(Violation)?;
    if changes < usize::from(CHANNELS) {
        return Err(Violation(format!(
            "of {CHANNELS} binds {changes} were seen between build and flush"
        )));
    }
    bench.world.watch.laws.held()
}
