//! Settings of a GPU and of a VM.

use fermi_spec::addr::Iova;
use fermi_spec::board::Board;
use serde::{Deserialize, Serialize};

use crate::host::graph::GraphMicrocode;
use crate::host::lending::CHANNELS_USABLE;
use crate::host::microcode::Microcode;
use crate::inspect::{Inspect, Tree};
use crate::memory::FrameSearch;
use crate::policy::PolicyName;
use crate::reason::SettingError;

/// Smallest and largest chunk, bytes.
pub const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 128 << 10..=64 << 20;

/// Bus addresses that the core gives away: above 4 GiB, as hosts have holes and interrupts below; and within the
/// addresses of a Fermi card.
pub(crate) const BUS_ADDRESSES: std::ops::Range<u64> = 4 << 30..1 << 40;

/// Unit in which bus addresses are given away: an IOMMU maps it by one entry.
pub(crate) const BUS_UNIT: u64 = 2 << 20;

/// Usable bus addresses without a gap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct BusRange {
    /// First address of the range.
    pub start: Iova,
    /// First address behind the range.
    pub end: Iova,
}

impl BusRange {
    /// The whole units of it within `BUS_ADDRESSES`, which is what the core gives away; `None` if there are none.
    pub fn given_away(&self) -> Option<BusRange> {
        let start = self.start.0.max(BUS_ADDRESSES.start);
        let start = start.checked_next_multiple_of(BUS_UNIT)?;
        let end = self.end.0.min(BUS_ADDRESSES.end) / BUS_UNIT * BUS_UNIT;
        (start < end).then_some(BusRange {
            start: Iova(start),
            end: Iova(end),
        })
    }
}

impl std::fmt::Display for BusRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} to {:#x}", self.start.0, self.end.0.saturating_sub(1))
    }
}

/// Limits of the path from the card to host memory. The backend knows them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bus {
    /// Ranges where memory may be mapped; their parts in `BUS_ADDRESSES` are used.
    pub ranges: Vec<BusRange>,
    /// Most maps at one time.
    pub maps_max: u32,
    /// Mapped memory is pinned: it takes host RAM whether it was touched or not, and counts as locked.
    pub pins: bool,
}

impl Default for Bus {
    /// No limits, as on a host without an IOMMU.
    fn default() -> Self {
        Self {
            ranges: vec![BusRange {
                start: Iova(BUS_ADDRESSES.start),
                end: Iova(BUS_ADDRESSES.end),
            }],
            maps_max: u32::MAX,
            pins: false,
        }
    }
}

/// How clients reach BAR1, BAR3 and PRAMIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowMode {
    /// As memory that they map, where that stops nobody; else each access is a message. Where maps pin memory, a VM is stopped for pages that its GPU uses.
    #[default]
    Auto,
    /// As memory that they map, where the card lets that be.
    Direct,
    /// Each access is a message.
    Trapped,
}

/// How a guest's page tables are followed at its flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShadowMode {
    /// What may have changed is read and compared, and what has changed is built.
    #[default]
    Incremental,
    /// Every table is read and every entry built, changed or not: what a mediator without snapshots does, as GPUvm, to compare with.
    FullRescan,
}

/// Settings of one GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GpuConfig {
    /// Board that guests are shown, by the ids in their configuration space.
    #[serde(default)]
    pub board: Board,
    /// Bytes of BAR1 and BAR3, by the backend.
    pub bar1_bytes: u64,
    /// Bytes of BAR3.
    pub bar3_bytes: u64,
    /// Whether a frame reads as zero when it changes its owner.
    pub frames_arrive_zeroed: bool,
    /// The path from the card to host memory.
    #[serde(default)]
    pub bus: Bus,
    /// Memory is moved through a BAR window even if the card's copy engines run.
    #[serde(default)]
    pub copies_by_window: bool,
    /// Microcode of copy engines 0 and 1, for a card whose engines have none.
    #[serde(default)]
    pub microcode: Option<[Microcode; 2]>,
    /// Microcode of PGRAPH. Without it a card runs nothing there; the software card that forgives everything does.
    #[serde(default)]
    pub graph: Option<GraphMicrocode>,
    /// Host RAM that spilled chunks may take together, bytes.
    pub host_ram: u64,
    /// Most VRAM that guests may hold together, bytes; the rest of the card stays unused. `None`: all that there is.
    #[serde(default)]
    pub guest_bytes_max: Option<u64>,
    /// Least VRAM that is kept for shadow tables, bytes, up to half of the card and what BAR3 shows. 0: as much as suits the card.
    #[serde(default)]
    pub shadow_bytes_min: u64,
    /// Policy that decides whose memory moves.
    #[serde(default)]
    pub policy: PolicyName,
    /// How a free frame of VRAM is looked for.
    #[serde(default)]
    pub frames: FrameSearch,
    /// Whether clients may map BAR1, BAR3 and PRAMIN. The edge goes by it.
    #[serde(default)]
    pub windows: WindowMode,
    /// How page tables of guests are followed.
    #[serde(default)]
    pub shadow: ShadowMode,
    /// Seed of the random choices.
    pub seed: u64,
    /// Number by which the moments are drawn at which VMs' time on the engines is sampled. No guest is to know it: it sees the broker's
    /// clock (PTIMER), and could rest at each of these moments. The edge draws it at each start; a recording has it.
    #[serde(default)]
    pub sampling_key: u64,
    /// Longest wait for a victim's channels to go idle, nanoseconds.
    pub suspend_budget_ns: u64,
    /// Longest wait of a guest's access for another VM's memory, nanoseconds.
    pub demand_budget_ns: u64,
    /// Period of the refill pass, nanoseconds.
    pub refill_period_ns: u64,
    /// A VM lends its memory to those that work when its guest has not used the GPU for so long, and for eight times as long as a
    /// copy of it would take, nanoseconds; sooner, if it rests for long as a habit (decision 0037). 0: never.
    #[serde(default)]
    pub lends_after_ns: u64,
    /// Most bytes moved in one suspension.
    pub batch_bytes: u64,
    /// Most time that the copy of one suspension is to take, nanoseconds, as far as it can be told before.
    #[serde(default = "copy_budget_ns")]
    pub copy_budget_ns: u64,
    /// A chunk larger than `batch_bytes`, or whose copy would take longer than `copy_budget_ns`, is moved part by part. This is the least that a part
    /// has, bytes.
    #[serde(default = "part_bytes")]
    pub part_bytes: u64,
    /// Most work of a step in which a VM's entries are pointed to where its memory is now, in units of about a nanosecond. Events of others come
    /// between two steps. For tests, which make it small.
    #[serde(default = "slice")]
    pub step_work: u64,
    /// GPU time for which a channel may keep an engine while another VM waits for it, nanoseconds by the card's clock. A
    /// channel that goes on beyond it is stopped for good; its VM feels that, and nobody else. 0 stops none.
    #[serde(default)]
    pub watchdog_ns: u64,
    /// Under [`PolicyName::Adaptive`], launches that must use a chunk in host RAM before it comes: t_s of the thesis's equation 1.
    #[serde(default = "eight")]
    pub migrate_after: u64,
    /// By what that is multiplied, and once more for each time that the chunk came back: p.
    #[serde(default = "eight")]
    pub migrate_penalty: u64,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            board: Board::default(),
            bar1_bytes: fermi_spec::board::BAR1_BYTES,
            bar3_bytes: fermi_spec::board::BAR3_BYTES,
            frames_arrive_zeroed: false,
            bus: Bus::default(),
            copies_by_window: false,
            microcode: None,
            graph: None,
            host_ram: 4 << 30,
            guest_bytes_max: None,
            shadow_bytes_min: 0,
            policy: PolicyName::default(),
            frames: FrameSearch::default(),
            windows: WindowMode::default(),
            shadow: ShadowMode::default(),
            seed: 0,
            sampling_key: 0,
            suspend_budget_ns: 20_000_000,
            demand_budget_ns: 150_000_000,
            refill_period_ns: 50_000_000,
            lends_after_ns: 30 * SECOND,
            batch_bytes: 8 << 20,
            copy_budget_ns: copy_budget_ns(),
            part_bytes: part_bytes(),
            step_work: slice(),
            watchdog_ns: 2_000_000_000,
            migrate_after: eight(),
            migrate_penalty: eight(),
        }
    }
}

/// The thesis's value for t_s and p (section 5.3.5).
fn eight() -> u64 {
    8
}

/// What a move's copy is to take at most: so that a pause is a few milliseconds.
fn copy_budget_ns() -> u64 {
    2 * MS
}

fn slice() -> u64 {
    crate::share::SLICE
}

/// A suspension costs some 0.3 ms besides its copy (`forecast`), so that to move less at a time would have the VM stand for longer.
fn part_bytes() -> u64 {
    2 << 20
}

/// How the number of a [`Setting`] is written in a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettingUnit {
    /// A time; the number counts nanoseconds.
    Time,
    /// A size; the number counts bytes.
    Size,
    /// A plain number.
    Number,
}

/// A number of [`GpuConfig`] that an operator may set.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What configurations call it.
    pub name: &'static str,
    /// How it is written there.
    pub unit: SettingUnit,
    /// The least and the most it may be.
    pub bounds: [u64; 2],
    field: fn(&mut GpuConfig) -> &mut u64,
}

impl Setting {
    /// All that there are. A row here is all that a configuration needs to know of a setting.
    pub const ALL: [Self; 12] = [
        Self::time(
            "suspend_budget",
            |config| &mut config.suspend_budget_ns,
            [MS, SECOND],
        ),
        Self::time(
            "copy_budget",
            |config| &mut config.copy_budget_ns,
            [MS / 10, SECOND],
        ),
        Self::time(
            "demand_budget",
            |config| &mut config.demand_budget_ns,
            [MS, SECOND],
        ),
        Self::time(
            "refill_period",
            |config| &mut config.refill_period_ns,
            [MS, 60 * SECOND],
        ),
        Self::time(
            "lends_after",
            |config| &mut config.lends_after_ns,
            [0, 3600 * SECOND],
        ),
        Self::time("watchdog", |config| &mut config.watchdog_ns, [0, 60 * SECOND]),
        Self {
            name: "batch",
            unit: SettingUnit::Size,
            bounds: [*CHUNK_BYTES.start(), 128 << 20],
            field: |config| &mut config.batch_bytes,
        },
        Self {
            name: "part",
            unit: SettingUnit::Size,
            bounds: [*CHUNK_BYTES.start(), *CHUNK_BYTES.end()],
            field: |config| &mut config.part_bytes,
        },
        Self {
            name: "shadow",
            unit: SettingUnit::Size,
            bounds: [0, fermi_spec::board::BAR3_BYTES],
            field: |config| &mut config.shadow_bytes_min,
        },
        Self {
            name: "seed",
            unit: SettingUnit::Number,
            bounds: [0, u64::MAX],
            field: |config| &mut config.seed,
        },
        Self {
            name: "migrate_after",
            unit: SettingUnit::Number,
            bounds: [1, 1 << 20],
            field: |config| &mut config.migrate_after,
        },
        Self {
            name: "migrate_penalty",
            unit: SettingUnit::Number,
            bounds: [1, 1 << 20],
            field: |config| &mut config.migrate_penalty,
        },
    ];

    const fn time(name: &'static str, field: fn(&mut GpuConfig) -> &mut u64, bounds: [u64; 2]) -> Self {
        let unit = SettingUnit::Time;
        Self {
            name,
            unit,
            bounds,
            field,
        }
    }

    /// The setting of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.name == name)
    }

    /// Sets it, in nanoseconds, bytes, or as it is. `false`: the value is out of bounds, and nothing is set.
    pub fn set(&self, config: &mut GpuConfig, value: u64) -> bool {
        let [least, most] = self.bounds;
        let fits = (least..=most).contains(&value);
        if fits {
            *(self.field)(config) = value;
        }
        fits
    }
}

/// Nanoseconds of a millisecond and of a second.
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// VRAM that a VM may hold, in the words of cgroup v2 memory; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quota {
    /// Never taken from the VM. The sum over all VMs must fit the card.
    pub min: u64,
    /// Taken only when no unprotected memory is left.
    pub low: u64,
    /// Above it, this VM's chunks go first.
    pub high: u64,
    /// Most bytes that the VM ever holds.
    pub max: u64,
    /// Share of contended memory, relative to the other VMs'.
    pub weight: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            min: 0,
            low: 0,
            high: u64::MAX,
            max: u64::MAX,
            weight: 100,
        }
    }
}

impl Quota {
    /// Names the field that contradicts another, and how.
    pub fn check(&self) -> Result<(), SettingError> {
        let Self {
            min,
            high,
            max,
            weight,
            ..
        } = *self;
        if weight == 0 || weight > 10_000 {
            return Err(SettingError::Weight { weight });
        }
        if min > max {
            return Err(SettingError::MinAboveMax { min, max });
        }
        if min > high {
            return Err(SettingError::MinAboveHigh { min, high });
        }
        Ok(())
    }
}

/// What an operator holds back from a VM for now, beside its quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hold {
    /// Most bytes of VRAM that the VM holds; 0: it is frozen. `None`: what its quota says. It goes before all of the quota, and
    /// takes nothing from what is promised: the `min` of a VM that is frozen is lent, and there again when it is thawed.
    pub vram: Option<u64>,
    /// Its channels get no time on the engines.
    pub is_suspended: bool,
}

impl Hold {
    /// The quota by which the VM's memory goes and comes as long as this holds.
    pub(crate) fn in_force(&self, quota: Quota) -> Quota {
        let most = self.vram.unwrap_or(u64::MAX);
        Quota {
            min: quota.min.min(most),
            low: quota.low.min(most),
            high: quota.high.min(most),
            max: quota.max.min(most),
            weight: quota.weight,
        }
    }
}

/// Settings that a VM asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmConfig {
    /// Name of the VM in messages.
    pub name: String,
    /// Guest VRAM, a multiple of 1 MiB.
    pub guest_vram: u64,
    /// Chunk size, a power of two in [`CHUNK_BYTES`].
    pub chunk_bytes: u64,
    /// VRAM that it may hold.
    pub quota: Quota,
    /// RAM that its VMM may let the card reach, bytes. Bus addresses are kept for all of it, and it is what the host may
    /// have to find: the card fills sparse RAM, and where maps pin, all that is mapped is taken at once. A map beyond it is
    /// refused.
    #[serde(default = "ram_default")]
    pub ram: u64,
    /// Channels of the card that are kept for it, 1 to 127. It may hold more as long as some are left to lend.
    #[serde(default = "channels_default")]
    pub channels: u32,
}

/// RAM of a VM that names none: bus addresses suffice for 59 such VMs.
pub const RAM_DEFAULT: u64 = 16 << 30;

fn ram_default() -> u64 {
    RAM_DEFAULT
}

/// Channels of a VM that names none: a driver uses two. Those of programs are lent.
pub const CHANNELS_DEFAULT: u32 = 2;

fn channels_default() -> u32 {
    CHANNELS_DEFAULT
}

/// Bus addresses kept for each VM beside its image and its RAM: a map takes whole units, and VMMs have a few small ones.
const BUS_SLACK: u64 = 1 << 30;

/// Least guest VRAM: nouveau reserves 1.25 MiB, tables and a channel want a few more.
pub const GUEST_VRAM_MIN: u64 = 8 << 20;

impl VmConfig {
    /// Names the field that is wrong, and what would be right.
    pub fn check(&self) -> Result<(), SettingError> {
        let bytes = self.guest_vram;
        if !(GUEST_VRAM_MIN..=64 << 30).contains(&bytes) || !bytes.is_multiple_of(1 << 20) {
            return Err(SettingError::GuestVram { bytes });
        }
        let bytes = self.chunk_bytes;
        if !bytes.is_power_of_two() || !CHUNK_BYTES.contains(&bytes) {
            return Err(SettingError::Chunk { bytes });
        }
        self.check_ram()?;
        self.check_channels()?;
        self.quota.check()
    }

    /// The same for its channels alone.
    pub fn check_channels(&self) -> Result<(), SettingError> {
        let channels = self.channels;
        match (1..=CHANNELS_USABLE).contains(&channels) {
            true => Ok(()),
            false => Err(SettingError::Channels { channels }),
        }
    }

    /// The same for its RAM alone.
    pub fn check_ram(&self) -> Result<(), SettingError> {
        let bytes = self.ram;
        match (1 << 20..=1 << 39).contains(&bytes) && bytes.is_multiple_of(1 << 20) {
            true => Ok(()),
            false => Err(SettingError::Ram { bytes }),
        }
    }

    /// Bytes of VRAM that its `min` takes, in whole chunks: a chunk goes whole.
    pub(crate) fn promised(&self) -> u64 {
        let min = self.quota.min.min(self.guest_vram);
        min.next_multiple_of(self.chunk_bytes).min(self.guest_vram)
    }

    /// Bus addresses that are kept for it, in one piece: its image comes last.
    pub(crate) fn bus_bytes(&self) -> u64 {
        let image = self.guest_vram.next_multiple_of(BUS_UNIT);
        image + self.ram.next_multiple_of(BUS_UNIT) + BUS_SLACK
    }
}

impl Inspect for GpuConfig {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("board", self.board.name());
        tree.bytes("bar1", self.bar1_bytes);
        tree.bytes("bar3", self.bar3_bytes);
        tree.flag("frames_arrive_zeroed", self.frames_arrive_zeroed);
        tree.flag("copies_by_window", self.copies_by_window);
        tree.flag("has_microcode", self.microcode.is_some());
        tree.flag("has_microcode_of_pgraph", self.graph.is_some());
        tree.bytes("host_ram", self.host_ram);
        if let Some(bytes) = self.guest_bytes_max {
            tree.bytes("guest_bytes_max", bytes);
        }
        tree.name("policy", format_args!("{:?}", self.policy));
        tree.name("frames", format_args!("{:?}", self.frames));
        tree.number("seed", self.seed);
        tree.nanoseconds("suspend_budget", self.suspend_budget_ns);
        tree.nanoseconds("copy_budget", self.copy_budget_ns);
        tree.nanoseconds("demand_budget", self.demand_budget_ns);
        tree.nanoseconds("refill_period", self.refill_period_ns);
        tree.nanoseconds("lends_after", self.lends_after_ns);
        tree.bytes("batch", self.batch_bytes);
        tree.bytes("part", self.part_bytes);
        tree.number("watchdog_ns", self.watchdog_ns);
        tree.number("migrate_after", self.migrate_after);
        tree.number("migrate_penalty", self.migrate_penalty);
        tree.flag("maps_pin_memory", self.bus.pins);
    }
}

impl Inspect for Hold {
    fn inspect(&self, tree: &mut Tree<'_>) {
        if let Some(bytes) = self.vram {
            tree.bytes("vram", bytes);
        }
        tree.flag("is_suspended", self.is_suspended);
    }
}

impl Inspect for Quota {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("min", self.min);
        tree.bytes("low", self.low);
        tree.bytes_max("high", self.high);
        tree.bytes_max("max", self.max);
        tree.weight("weight", self.weight);
    }
}
