//! A guest that opens channels and changes its tables while its memory goes to host RAM and comes back.

use vgpu::{Event, GpuConfig, Quota, VmId};

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::{self, DATA, LARGE_TABLE, Rig};
use sim_host::bus::SimBus;

const VM: VmId = VmId(0);
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 8 * MIB;
/// What the VM may keep on the card while its memory goes: less than a chunk.
const MAX: u64 = MIB;
/// GPU time of a flush: long enough for a move to begin meanwhile, and for stores between its copy and its end.
const FLUSH_NS: u64 = 1_000_000;
/// Time in which the VM may run after a pause, so that the next one is not put off.
const REST_NS: u64 = 50_000_000;
/// How often a channel stores to all of the data at first: longer than a move takes.
const ROUNDS: u32 = 8;
/// Channels that are opened.
const CHANNELS: u8 = 4;
/// The first large page behind those of the data, of an entry that a channel brings along.
const SPARE_ENTRY: u64 = DATA_BYTES >> 17;

/// Opens a channel with an entry that is new, and has it store other bytes to all of the data again and again, then once more, which
/// it loads again.
fn open_and_store(rig: &mut Rig, bus: &mut SimBus, channel: u8) -> Result<(), String> {
    let entry = LARGE_TABLE + (SPARE_ENTRY + u64::from(channel)) * 8;
    rig::put64(bus, entry, rig::vram_pte(DATA).into_bits());
    rig.open(bus, channel);
    let seed = channel.into();
    if !rig.fill_in_turns(bus, channel, seed, DATA_BYTES, ROUNDS) || !rig.fill(bus, channel, seed, DATA_BYTES)
    {
        return Err(format!("a copy of channel {channel} does not end"));
    }
    rig.verify(bus, channel, seed, DATA_BYTES)
        .map_err(|at| format!("channel {channel} finds another byte at {at:#x}"))
}

/// The stage of the sync that binds a channel.
fn stage_of_bind(bench: &Bench) -> Option<String> {
    let at = |path: &str| {
        let node = bench.world.manager.inspect(bench.world.now, path)?;
        Some(node.value_at(path)?.to_string())
    };
    at("vms/vm0/head/sync/stage").filter(|_| at("vms/vm0/head/sync/cause").as_deref() == Some("bind"))
}

fn set_max(bench: &mut Bench, max: u64) {
    let quota = Quota {
        max,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: VM, quota });
}

/// Bytes that the VM has in host RAM.
fn spilled(bench: &Bench) -> u64 {
    let audit = bench.world.manager.audit().unwrap_or_default();
    audit.vms.iter().map(|vm| vm.spilled).sum()
}

/// Channels are opened while memory begins to move: what they store is there afterwards, and both copies of what moved are
/// equal.
///
/// # Errors
///
/// Says which channel lost what, or which law did not hold.
pub fn channels_opened_during_moves() -> Result<(), Violation> {
    let config = GpuConfig {
        batch_bytes: 2 * DATA_BYTES,
        ..gpu_config()
    };
    let mut bench = Bench::with(48, config, &[vm_config(24)]);
    bench.world.model.faults_mut().flush_delay_ns = FLUSH_NS;
    let mut rig = bench.run(VM, |bus| Rig::start(bus, DATA_BYTES));
    let mut met = 0;
    for channel in 0..CHANNELS {
        let task = bench.start(VM, move |bus| {
            let result = open_and_store(&mut rig, bus, channel);
            (rig, result)
        });
        let mut goes = false;
        while !bench.has_ended(VM) {
            bench.let_guests_go_on();
            if !goes && stage_of_bind(&bench).as_deref() == Some("flush") {
                // The tables are built: now memory begins to go.
                set_max(&mut bench, MAX);
                goes = true;
                // It does not hold before its memory is gone.
                bench.is_checked = false;
            }
            bench.let_card_go_on();
        }
        let (back, result) = bench.join(task);
        result.map_err(Violation)?;
        rig = back;
        met += u8::from(goes && spilled(&bench) > 0);
        set_max(&mut bench, u64::MAX);
        bench.turn_until("the way back", |bench| spilled(bench) == 0);
        bench.pass(REST_NS);
        bench.is_checked = true;
        bench.world.watch.laws.held()?;
    }
    if met < CHANNELS {
        return Err(Violation(format!(
            "of {CHANNELS} binds {met} met memory that began to move between build and flush"
        )));
    }
    Ok(())
}
