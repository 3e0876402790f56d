//! What a seed draws: card, promises to VMs, misbehaviour of the hardware; and how that is told.

use std::fmt::Write as _;
use std::ops::Range;

use fermi_model::Faults;
use fermi_spec::addr::{Gpa, SMALL_PAGE};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim_host::world::Mapped;
use vgpu::{Bus, GpuConfig, GraphMicrocode, PolicyName, Quota, Request, ShadowMode, VmConfig, VmId};

use super::{Kind, MIB, RAM_BYTES};
use crate::watch::World;

/// Of so many seeds one has a card that hangs in a flush, and one a card that hangs in a runlist.
const HANG_EVERY: u64 = 12;
const HANG_IN_FLUSH: u64 = 5;
const HANG_IN_RUNLIST: u64 = 9;
/// Of so many seeds one has each table read and built at each flush.
const RESCAN_EVERY: u64 = 32;
const RESCANS: u64 = 30;
/// How often all guests stand still.
const PAUSES: usize = 3;
/// Least VRAM that a VM sees.
pub(super) const GUEST_VRAM_MIN: u64 = 12 * MIB;

/// A VM as the seed drew it, before it attaches.
pub(super) struct DrawnVm {
    pub(super) id: VmId,
    pub(super) kind: Kind,
    pub(super) config: VmConfig,
    /// The bytes of its guest's file.
    pub(super) input: Vec<u8>,
    /// Of the guest's own choices.
    pub(super) seed: u64,
    /// How often an honest guest goes over its file.
    pub(super) rounds: u32,
    /// Its VMM does not behave, and does what this seed says.
    pub(super) lies: Option<u64>,
}

/// What was drawn, a line for the card, its edge, its faults, and each VM.
#[derive(Default)]
pub(super) struct Drawn(String);

impl Drawn {
    pub(super) fn add(&mut self, line: String) {
        self.0.push_str(&line);
        self.0.push('\n');
    }
}

impl std::fmt::Display for Drawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bytes of VRAM and the settings of the card.
pub(super) fn card(seed: u64, is_noisy: bool, rng: &mut ChaCha8Rng) -> (u64, GpuConfig) {
    // Ample, or so that spills meet its end: those of a policy that spills for demands alone hardly do.
    let host_ram = match is_noisy {
        true => [1 << 30, 40 * MIB, 8 * MIB, 8 * MIB],
        false => [1 << 30, 1 << 30, 40 * MIB, 8 * MIB],
    };
    let vram = rng.random_range(32..=64) * MIB;
    let config = GpuConfig {
        // So PGRAPH is strict.
        graph: Some(GraphMicrocode::for_software_card()),
        frames_arrive_zeroed: rng.random_range(0..4) != 0,
        seed,
        host_ram: host_ram[rng.random_range(0..4)],
        batch_bytes: [1, 4, 8, 16][rng.random_range(0..4)] * MIB,
        copies_by_window: rng.random_range(0..4) == 0,
        shadow: match seed % RESCAN_EVERY {
            RESCANS => ShadowMode::FullRescan,
            _ => ShadowMode::Incremental,
        },
        policy: match seed % 8 {
            0 | 4 => PolicyName::Gpuswap,
            2 => PolicyName::Gdm,
            6 => PolicyName::GdmAlways,
            7 => PolicyName::Adaptive,
            _ => PolicyName::Recency,
        },
        // Never, soon, after the passes of a pause or so, or later than any run ends.
        lends_after_ns: [0, 20, 1_000, 60_000][(seed >> 4) as usize % 4] * 1_000_000,
        // Of every fourth stretch of seeds entries are pointed elsewhere a few at a time.
        step_work: match seed / 7 % 4 {
            3 => 1,
            _ => GpuConfig::default().step_work,
        },
        bus: Bus {
            pins: rng.random(),
            ..Bus::default()
        },
        ..GpuConfig::default()
    };
    // Of every fourth seed the chunks above 512 KiB move in parts.
    let config = match seed / 5 % 4 {
        1 => GpuConfig {
            batch_bytes: MIB / 2,
            part_bytes: MIB / 8,
            ..config
        },
        _ => config,
    };
    (vram, config)
}

/// Whether the client of a VM maps its windows: every second does.
fn maps_windows(config: &GpuConfig, vm: VmId) -> bool {
    (config.seed >> 3 ^ u64::from(vm.0)) & 1 == 0
}

/// Has the client of an attached VM map its windows, if it does.
pub(super) fn map_windows(world: &mut World, vm: VmId, kind: Kind) {
    if maps_windows(world.config(), vm) {
        // A witness sees its memory through a BAR1 that does not translate, which shows nothing to those who map it.
        let mapped = match kind {
            Kind::Witness => Mapped::AllButBar1,
            _ => Mapped::All,
        };
        world.let_windows(vm, mapped);
    }
}

/// What a VM's client asks for to have all its RAM mapped: one map, or, as of every third with an IOMMU, page by page where the rings are, the
/// last first, so that no two neighbours are neighbours on the bus.
pub(super) fn maps_of_ram(config: &GpuConfig, vm: VmId) -> Vec<Request> {
    let pages = match (config.seed >> 5).wrapping_add(u64::from(vm.0)) % 3 {
        0 => MIB..MIB + 128 * SMALL_PAGE,
        _ => 0..0,
    };
    let count = (pages.end - pages.start) / SMALL_PAGE;
    let by_page = (1..=count).map(|back| {
        let gpa = pages.end - back * SMALL_PAGE;
        gpa..gpa + SMALL_PAGE
    });
    let rest = [0..pages.start, pages.end..RAM_BYTES];
    let all = by_page.chain(rest.into_iter().filter(|range| !range.is_empty()));
    let map = |range: Range<u64>| Request::MapRam {
        gpa: Gpa(range.start),
        bytes: range.end - range.start,
        writable: true,
    };
    all.map(map).collect()
}

/// How many VMs can be admitted, up to four, and the most VRAM that each may see.
pub(super) fn admissible(vram: u64, config: &GpuConfig) -> (u16, u64) {
    // The broker keeps 8 MiB of a small card, and some at its ends.
    let promised = vram - 10 * MIB + config.host_ram;
    let vms = (promised / GUEST_VRAM_MIN).min(4);
    (vms as u16, (promised / vms).min(40 * MIB))
}

/// The card, its edge and its faults, as lines.
pub(super) fn card_text(vram: u64, world: &mut World, slow_card: u32) -> Vec<String> {
    let faults = faults_text(world.model.faults_mut());
    let config = world.config();
    let frames = match config.frames_arrive_zeroed {
        true => "frames arrive zeroed",
        false => "frames arrive with other bytes",
    };
    let copies = match config.copies_by_window {
        true => "copies by BAR window",
        false => "copies by engine",
    };
    let pins = match config.bus.pins {
        true => "maps pin memory",
        false => "maps do not pin",
    };
    let refused = match world.refuse_maps {
        0 => "no map is refused".to_owned(),
        each => format!("each {each}th map that may be refused is"),
    };
    vec![
        format!(
            "card: {} MiB, policy {:?}, {} MiB of host RAM, {frames}, moves of up to {} KiB in parts of {} or more, {copies}, {pins}, \
             lent after {} ms, up to {slow_card} units of work a step",
            vram / MIB,
            config.policy,
            config.host_ram / MIB,
            config.batch_bytes / 1024,
            config.part_bytes / 1024,
            config.lends_after_ns / 1_000_000,
        ),
        format!(
            "edge: {refused}, memory for a move is there after {} ns{}, {} units of the card's work between two actions",
            world.host_memory.takes_ns,
            match world.host_memory.refuse {
                0 => String::new(),
                each => format!(", but for each {each}th move"),
            },
            world.work_between_actions
        ),
        faults,
    ]
}

/// How long the host's memory takes to be there for a move, and how often there is none. By the seed alone, so that other draws
/// are what they were.
pub(super) fn host_memory(world: &mut World, seed: u64) {
    world.host_memory.takes_ns = [0, 30_000, 400_000, 5_000_000][(seed % 4) as usize];
    world.host_memory.refuse = [0, 0, 9][(seed % 3) as usize];
}

fn faults_text(faults: &Faults) -> String {
    let usual = Faults::default();
    let mut text = "faults:".to_owned();
    let mut add = |is: u64, usual: u64, what: &str| {
        if is != usual {
            let _ = write!(text, " {what} {is};");
        }
    };
    add(
        faults.preempt_delay_ns,
        usual.preempt_delay_ns,
        "ns more for a preempt",
    );
    add(
        faults.refused_preempts.into(),
        usual.refused_preempts.into(),
        "preempts that never end",
    );
    add(
        faults.runlist_delay_ns,
        usual.runlist_delay_ns,
        "ns more for a runlist",
    );
    add(faults.flush_delay_ns, usual.flush_delay_ns, "ns for a flush");
    add(
        faults.lost_flush_in.into(),
        usual.lost_flush_in.into(),
        "is the first flush that never ends",
    );
    add(
        faults.lost_runlist_in.into(),
        usual.lost_runlist_in.into(),
        "is the first runlist that never ends",
    );
    add(
        faults.lost_interrupts.into(),
        usual.lost_interrupts.into(),
        "interrupts lost",
    );
    add(
        faults.failed_copies.into(),
        usual.failed_copies.into(),
        "copies that fail",
    );
    add(
        faults.failed_copies_of_channel_0.into(),
        usual.failed_copies_of_channel_0.into(),
        "copies of moves that fail",
    );
    add(
        faults.copy_slowdown.into(),
        usual.copy_slowdown.into(),
        "times as long a copy",
    );
    match text.pop() {
        Some(';') => text,
        _ => "faults: none".to_owned(),
    }
}

/// A VM as a line.
pub(super) fn vm_text(config: &VmConfig, kind: Kind, lies: bool) -> String {
    format!(
        "{}: {kind:?}{}, {} MiB in chunks of {} KiB, {}",
        config.name,
        if lies { " with a VMM that lies" } else { "" },
        config.guest_vram / MIB,
        config.chunk_bytes >> 10,
        quota_text(config.quota)
    )
}

/// A quota in MiB.
pub(super) fn quota_text(quota: Quota) -> String {
    let max = match quota.max {
        u64::MAX => "none".to_owned(),
        max => format!("{} MiB", max / MIB),
    };
    let high = match quota.high {
        u64::MAX => String::new(),
        high => format!("high {} MiB, ", high / MIB),
    };
    let low = match quota.low {
        0 => String::new(),
        low => format!("low {} MiB, ", low / MIB),
    };
    let (min, weight) = (quota.min / MIB, quota.weight);
    format!("min {min} MiB, {low}{high}max {max}, weight {weight}")
}

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
    // Of a stream of their own, so that other draws are as they are without.
    let mut rng = rng.clone();
    rng.set_stream(1);
    let low = match rng.random_range(0..3) {
        0 => rng.random_range(1..=16) * MIB,
        _ => 0,
    };
    let high = match rng.random_range(0..4) {
        0 => rng.random_range(4..=24) * MIB,
        _ => u64::MAX,
    };
    Quota {
        min,
        low,
        high,
        max,
        weight,
    }
}

/// What an operator changes a quota to: more often with limits. The promises of four VMs fit into the smallest card, but
/// for a slip of the operator's now and then, which fits no card.
pub(super) fn changed_quota(rng: &mut ChaCha8Rng) -> Quota {
    let mut slips = rng.clone();
    slips.set_stream(2);
    let min = [0, rng.random_range(1..=5) * MIB][rng.random_range(0..2)];
    let min = match slips.random_range(0..16) {
        0 => 70 * MIB,
        _ => min,
    };
    let max = [u64::MAX, rng.random_range(5..=12) * MIB][rng.random_range(0..2)];
    Quota {
        min,
        max,
        ..quota(rng)
    }
}

/// How many units of work the card does in a step, at most. Few of them are a card whose clock is up to a hundred
/// times behind the host's while it is busy, so a flush of such a card is shorter by its own clock: bounds on how long
/// an access is held are by the host's.
pub(super) fn slow_card(faults: &mut Faults, rng: &mut ChaCha8Rng) -> u32 {
    let units: u32 = rng.random_range(1..64);
    faults.flush_delay_ns = faults.flush_delay_ns * u64::from(units.min(8)) / 8;
    units
}

/// What VMMs that do not behave do: of a stream of its own, so that other draws are as they are without.
pub(super) fn lies(rng: &ChaCha8Rng) -> ChaCha8Rng {
    let mut rng = rng.clone();
    rng.set_stream(5);
    rng
}

/// When all guests stand still for the shares to be looked at, the last time first. A policy of noise keeps no shares.
pub(super) fn pauses(seed: u64, is_noisy: bool) -> Vec<u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(3);
    let mut at: Vec<u64> = (0..PAUSES).map(|_| rng.random_range(500..6_000)).collect();
    at.sort_unstable_by(|a, b| b.cmp(a));
    if is_noisy { Vec::new() } else { at }
}

/// Lets the card hang in a flush or a runlist in some runs, which end with it.
pub(super) fn hang(seed: u64, faults: &mut Faults) {
    // Of a generator of its own, so that other draws are as they are without.
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    match seed % HANG_EVERY {
        HANG_IN_FLUSH => faults.lost_flush_in = rng.random_range(20..400),
        HANG_IN_RUNLIST => faults.lost_runlist_in = rng.random_range(5..60),
        _ => {}
    }
}

/// Switches some faults on, each with some strength.
pub(super) fn swarm(faults: &mut Faults, rng: &mut ChaCha8Rng) {
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
        faults.flush_delay_ns = rng.random_range(0..MS);
    }
    if rng.random_range(0..4) == 0 {
        faults.lost_interrupts = rng.random_range(1..20);
    }
    if rng.random_range(0..4) == 0 {
        faults.failed_copies_of_channel_0 = rng.random_range(1..6);
    }
    if rng.random_range(0..4) == 0 {
        faults.copy_slowdown = [rng.random_range(2..40), rng.random_range(40..120)][rng.random_range(0..2)];
    }
}
