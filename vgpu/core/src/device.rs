//! One guest's GPU: the device that the guest sees, and the resources behind it.
//!
//! Accesses of one client take effect in order. The head of [`Vgpu::queue`] may be blocked, on a value from the card, on
//! a sync, on memory; no later access starts until it is done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::regs::Piece;
use serde::{Deserialize, Serialize};
use shadow_pt::{ShadowSpace, TableAt, TableRange};

use crate::config::{Hold, VmConfig};
use crate::event::{ACCESS_BYTES_MAX, Request, RequestId, Tick, Token, VmId};
use crate::inspect::{Inspect, Space as Address, Tree};
use crate::manager::forecast::Drains;
use crate::manager::live_windows::LiveWindows;
use crate::memory::{ChunkNo, Chunks, GuestPage};
use crate::notice::SyncWait;
use crate::reason::Inconsistency;
use crate::share::{REQUEST, Share};

mod activity;
mod board;
mod channel;
pub(crate) mod contexts;
pub(crate) mod effect;
mod engines;
pub(crate) mod errors;
mod fecs;
mod graph;
mod leave;
pub(crate) mod living;
pub(crate) mod looks;
mod mmu;
mod pbdma;
pub(crate) mod pbus;
pub(crate) mod pci;
mod pfifo;
mod pmc;
mod ptimer;
pub(crate) mod ram;
mod remap;
mod soundness;
mod stores;
pub(crate) mod tables;
pub(crate) mod units;
pub(crate) mod window_layout;
pub(crate) mod work;

pub(crate) use activity::Activity;
#[cfg(test)]
pub(crate) use activity::BREAK_NS;
pub(crate) use channel::{Channel, Parked, Said};
use contexts::{Buffers, Contexts, Decoy, Kept};
pub(crate) use leave::{Leave, LeaveStage};
use pci::ConfigSpace;
use ram::{IovaSpace, RamMaps};
pub(crate) use remap::{Pointing, Remap, RemapStage};
use stores::Stores;
use tables::ShadowCharge;
pub(crate) use tables::promised_slots;
use units::Units;
use work::VmWork;

/// Most directory entries of a VM, in all its spaces, whose tables are followed. What is beyond is absent for the card: that VM's
/// engines fault there, and the log says why. Each takes 0.3 MiB of host memory, 1.1 MiB at most. 256 are 32 GiB of addresses.
pub(crate) const TABLES_MAX: usize = 256;

/// One of a VM's shadow address spaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SpaceId(pub(crate) u32);

/// A request in the VM's queue, with its progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Queued {
    pub(crate) id: RequestId,
    pub(crate) kind: Request,
    /// The bytes that a load has fetched so far; the rest is zero.
    #[serde(with = "crate::hex")]
    pub(crate) answer: Vec<u8>,
    /// Bytes of an access already done.
    pub(crate) done: usize,
    /// When the VM asked, as the core's clock was then.
    pub(crate) since: Tick,
}

impl Queued {
    /// BAR, offset and length of an access, `None` for other requests.
    pub(crate) fn access(&self) -> Option<(Bar, u64, usize)> {
        match &self.kind {
            Request::Read { bar, offset, .. } => Some((*bar, *offset, self.answer.len())),
            Request::Write { bar, offset, data } => Some((*bar, *offset, data.len())),
            Request::ReadConfig { .. }
            | Request::WriteConfig { .. }
            | Request::MapRam { .. }
            | Request::UnmapRam { .. }
            | Request::MaskIntx { .. }
            | Request::Reset => None,
        }
    }

    /// What is left of an access to BAR0 when the piece at hand is over; `None` if that is the last.
    pub(crate) fn rest(&self) -> Option<Self> {
        let (Bar::Bar0, offset, total) = self.access()? else {
            return None;
        };
        let left = total.checked_sub(self.done).filter(|left| *left != 0)?;
        let piece = Piece::first(offset.saturating_add(self.done as u64), left);
        (piece.bytes() < left).then(|| Self {
            done: self.done + piece.bytes(),
            ..self.clone()
        })
    }

    /// What it takes of the broker's time, without what it leads to: see [`Share`].
    pub(crate) fn work(&self) -> u64 {
        let bytes = self.access().map_or(0, |(_, _, bytes)| bytes);
        REQUEST + bytes as u64
    }

    pub(crate) fn new(id: RequestId, kind: Request, since: Tick) -> Self {
        let answer = match kind {
            Request::Read { bytes, .. } | Request::ReadConfig { bytes, .. } => {
                vec![0; (bytes as usize).min(ACCESS_BYTES_MAX)]
            }
            _ => Vec::new(),
        };
        Self {
            id,
            kind,
            answer,
            done: 0,
            since,
        }
    }
}

/// Why the head of the queue waits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Blocked {
    /// For bytes of VRAM or USERD, `length` of them at the request's `done`.
    Value {
        token: Token,
        request: Queued,
        length: usize,
    },
    /// For pages of tables that lie in VRAM; then the request is tried again.
    Fetch {
        pages: BTreeMap<Token, GuestPage>,
        request: Queued,
    },
    /// For a move of the memory it would touch; then tried again.
    Move { request: Queued },
    /// For memory behind a chunk; then tried again.
    Demand { request: Queued },
    /// For the content of a context whose channel leaves the card; then tried again.
    Context { request: Queued },
    /// For a sync.
    Sync(Box<SyncPoint>),
    /// For entries to be pointed to a range of RAM, or for the flush after which one is out of reach.
    Remap(Remap),
    /// For channels to be off the card: a device reset.
    Reset { request: Queued },
}

/// Cause of a sync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum SyncCause {
    /// The guest flushed its TLB.
    Flush,
    /// The guest bound a channel, whose instance block is at `instance`.
    Bind {
        channel: u8,
        instance: TableAt,
        space: SpaceId,
        /// The block, as read once.
        #[serde(with = "crate::hex")]
        block: Vec<u8>,
        /// The image that it names.
        #[serde(default)]
        decoy: Option<Decoy>,
    },
}

/// Where a sync stands, with what it needs there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SyncStage {
    /// Reading the guest's tables.
    Read {
        /// Pages of tables on their way from VRAM.
        fetching: BTreeMap<Token, GuestPage>,
    },
    /// Looking for chunks without memory that changed entries name.
    Seek {
        /// Those found so far.
        wanted: BTreeSet<ChunkNo>,
    },
    /// These chunks get memory.
    Back {
        wanted: BTreeSet<ChunkNo>,
        /// Its wait for memory or a move, and since when.
        waits: Option<(SyncWait, Tick)>,
    },
    /// Writing the shadow tables.
    Build,
    /// The card drops its translations.
    Flush,
    /// A channel is to be bound to memory that began to move meanwhile: it waits for the end of the move.
    Bind {
        /// Its wait for the move, and since when.
        waits: Option<(SyncWait, Tick)>,
    },
}

/// A sync point in progress.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SyncPoint {
    pub(crate) request: Queued,
    pub(crate) cause: SyncCause,
    pub(crate) spaces: Vec<SpaceId>,
    pub(crate) stage: SyncStage,
    /// How many of the spaces the stage is through with.
    pub(crate) spaces_done: usize,
    /// Shadow entries were written.
    pub(crate) wrote: bool,
    /// Shadow tables given up: free when the card has dropped its translations.
    pub(crate) freed: Vec<TableRange>,
}

/// A shadow address space and its users.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Space {
    pub(crate) shadow: ShadowSpace,
    /// PGRAPH's contexts of its channels.
    #[serde(default)]
    pub(crate) contexts: Contexts,
    /// Channels bound to it.
    pub(crate) users: u32,
    /// The last of [`Vgpu::stores`] at the last refresh.
    pub(crate) seen: u64,
    /// When one of its channels was last known to have work.
    pub(crate) worked_at: Option<Tick>,
}

/// A virtual GPU.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Vgpu {
    pub(crate) id: VmId,
    pub(crate) config: VmConfig,
    /// What an operator holds back from it.
    #[serde(default)]
    pub(crate) hold: Hold,
    pub(crate) units: Units,
    pub(crate) chunks: Chunks,
    pub(crate) ram: RamMaps,
    /// BAR1, BAR3 and PRAMIN, if its client may map them.
    #[serde(default)]
    pub(crate) live: Option<LiveWindows>,
    /// Its bus addresses: of its image and its maps.
    pub(crate) bus: IovaSpace,
    pub(crate) spaces: BTreeMap<SpaceId, Space>,
    /// What rendering goes through.
    #[serde(default)]
    pub(crate) buffers: Buffers,
    /// Contexts of channels that have left the card.
    #[serde(default)]
    pub(crate) kept: Kept,
    pub(crate) next_space: u32,
    pub(crate) channels: BTreeMap<u8, Channel>,
    /// Channels that the guest has bound and that have no number on the card.
    #[serde(default)]
    pub(crate) parked: BTreeMap<u8, Parked>,
    /// When channels are looked at next for those of them that wait.
    #[serde(default)]
    pub(crate) park_at: Tick,
    /// When memory is looked for next for contexts of channels that lack it.
    #[serde(default)]
    pub(crate) image_at: Tick,
    /// Channels of the guest's last runlist, in its order.
    pub(crate) runlist: Vec<u8>,
    /// USERD words of channels that are not bound: (channel, offset) → value.
    #[serde(with = "crate::saved::pairs")]
    pub(crate) userd: BTreeMap<(u8, u16), u32>,
    /// Pages that the CPU stored to: they decide which tables to compare.
    pub(crate) stores: Stores,
    /// Table pages fetched from VRAM for the request at hand.
    #[serde(with = "crate::saved::pages")]
    pub(crate) fetched: BTreeMap<GuestPage, Box<[u8; SMALL_PAGE as usize]>>,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) blocked: Option<Blocked>,
    /// Bytes of the arena held for this VM's shadows.
    pub(crate) shadow: ShadowCharge,
    pub(crate) leave: Leave,
    /// Shadow tables given up without a flush of their own: free with the VM's last one.
    pub(crate) orphans: Vec<TableRange>,
    /// When the guest may be notified again, and engines that wait for that.
    pub(crate) notify_at: Tick,
    pub(crate) notify_engines: BTreeSet<fermi_spec::engine::Engine>,
    /// Usage in the last notice.
    pub(crate) told: (u64, u64),
    /// The host refused to let the card reach images that a spill wanted: the next one wants a single chunk.
    pub(crate) was_refused: bool,
    /// Not a victim before this time: its last move had to be rolled back.
    pub(crate) passed_over_until: Tick,
    /// When its channels ran again the last time, and for how long they had stood still for a move.
    #[serde(default)]
    pub(crate) last_pause: Option<(Tick, u64)>,
    /// How long its channels take until they are off the card.
    #[serde(default)]
    pub(crate) drains: Drains,
    /// When its tables were last read and what its channels reach was counted.
    pub(crate) synced_at: Option<Tick>,
    pub(crate) activity: Activity,
    /// The work of its channels, if the policy goes by it.
    #[serde(default)]
    pub(crate) work: VmWork,
    /// The channel with which the next questions begin whether channels have work.
    pub(crate) asked_from: u8,
    /// Engines of which it has had more than its part, and that it is kept from for a while.
    #[serde(default)]
    pub(crate) held_back: BTreeSet<fermi_spec::engine::Engine>,
    /// What it had of the broker's time.
    pub(crate) share: Share,
    /// Its accounts are wrong: it goes, and nothing of it is free before its last flush.
    pub(crate) given_up: Option<Inconsistency>,
    /// Guest errors so far; the log hears of the 1st, 2nd, 4th, 8th….
    pub(crate) guest_errors: u64,
}

impl Vgpu {
    pub(crate) fn new(
        id: VmId,
        config: VmConfig,
        boot0: u32,
        pci: ConfigSpace,
        start: fermi_spec::addr::Iova,
    ) -> Self {
        let mut bus = IovaSpace::of_vm(start, &config);
        let image = bus.take_last(config.guest_vram, Some(id));
        let chunks = Chunks::new(config.guest_vram, config.chunk_bytes, image);
        Self {
            id,
            units: Units::new(boot0, config.guest_vram, pci),
            chunks,
            ram: RamMaps::default(),
            live: None,
            bus,
            spaces: BTreeMap::new(),
            buffers: Buffers::default(),
            kept: Kept::default(),
            image_at: Tick::default(),
            next_space: 0,
            channels: BTreeMap::new(),
            runlist: Vec::new(),
            userd: BTreeMap::new(),
            stores: Stores::default(),
            fetched: BTreeMap::new(),
            queue: VecDeque::new(),
            blocked: None,
            shadow: ShadowCharge { held: 0 },
            leave: Leave::Stays,
            orphans: Vec::new(),
            notify_at: Tick::default(),
            notify_engines: BTreeSet::new(),
            told: (0, 0),
            was_refused: false,
            passed_over_until: Tick::default(),
            last_pause: None,
            drains: Drains::default(),
            synced_at: None,
            activity: Activity::default(),
            work: VmWork::default(),
            asked_from: 0,
            held_back: BTreeSet::new(),
            parked: BTreeMap::new(),
            park_at: Tick::default(),
            share: Share::default(),
            given_up: None,
            guest_errors: 0,
            hold: Hold::default(),
            config,
        }
    }

    /// Whether the VM leaves or its device is reset: none of its memory is moved or asked for any more.
    pub(crate) fn leaves(&self) -> bool {
        self.leave != Leave::Stays
    }

    /// Whether the VM goes: no request of it is answered any more.
    pub(crate) fn is_detaching(&self) -> bool {
        matches!(self.leave, Leave::Detach(_))
    }

    /// Directory entries, of all spaces, whose tables are held in snapshots.
    pub(crate) fn table_count(&self) -> usize {
        self.spaces.values().map(|space| space.shadow.table_count()).sum()
    }

    /// Bytes of host memory that the snapshots of its tables and their indexes take.
    fn heap_bytes(&self) -> u64 {
        self.spaces.values().map(|space| space.shadow.heap_bytes()).sum()
    }

    /// The space that shadows a guest directory.
    pub(crate) fn space_of(&self, directory: TableAt) -> Option<SpaceId> {
        self.spaces
            .iter()
            .find(|(_, space)| space.shadow.guest_directory().at == directory)
            .map(|(&id, _)| id)
    }
}

/// What the inspect tree calls a request.
fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Read { .. } => "load",
        Request::Write { .. } => "store",
        Request::ReadConfig { .. } => "load from the configuration space",
        Request::WriteConfig { .. } => "store to the configuration space",
        Request::MapRam { .. } => "map of RAM",
        Request::UnmapRam { .. } => "unmap of RAM",
        Request::MaskIntx { .. } => "mask of INTx",
        Request::Reset => "reset",
    }
}

impl Inspect for Queued {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.number("number", self.id.0);
        tree.name("kind", name_of(&self.kind));
        tree.age("waits_since", self.since);
        let access = |tree: &mut Tree<'_>, bar: Bar, offset, bytes: usize| {
            tree.name("bar", format_args!("{bar:?}"));
            tree.address("offset", offset, Address::BarOffset);
            tree.bytes("size", bytes as u64);
            tree.bytes("done", self.done as u64);
        };
        match &self.kind {
            Request::Read { bar, offset, .. } => access(tree, *bar, *offset, self.answer.len()),
            Request::Write { bar, offset, data } => access(tree, *bar, *offset, data.len()),
            Request::ReadConfig { offset, .. } | Request::WriteConfig { offset, .. } => {
                tree.number("offset", *offset);
            }
            Request::MapRam { gpa, bytes, .. } | Request::UnmapRam { gpa, bytes } => {
                tree.address("at", gpa.0, Address::GuestPhysicalAddress);
                tree.bytes("size", *bytes);
            }
            Request::MaskIntx { masked } => tree.flag("masked", *masked),
            Request::Reset => {}
        }
    }
}

impl Inspect for Blocked {
    fn inspect(&self, tree: &mut Tree<'_>) {
        let (what, request) = match self {
            Blocked::Value { request, .. } => ("a value of the card", request),
            Blocked::Fetch { request, .. } => ("pages of tables in VRAM", request),
            Blocked::Move { request } => ("a move of the memory that it touches", request),
            Blocked::Demand { request } => ("memory behind a chunk", request),
            Blocked::Context { request } => ("the context of a channel that leaves the card", request),
            Blocked::Sync(sync) => ("a sync", &sync.request),
            Blocked::Remap(remap) => match remap.stage {
                RemapStage::Mapping { .. } => ("maps to come onto the bus", &remap.request),
                RemapStage::Pointing(_) => ("entries to be pointed to its RAM, or away", &remap.request),
                RemapStage::Flushing => ("the flush after an unmap", &remap.request),
                RemapStage::Releasing => ("maps to go off the bus", &remap.request),
            },
            Blocked::Reset { request } => ("channels to leave the card for a reset", request),
        };
        tree.name("waits_for", what);
        tree.part("request", request);
        match self {
            Blocked::Value { token, length, .. } => {
                tree.number("token", token.0);
                tree.bytes("size", *length as u64);
            }
            Blocked::Fetch { pages, .. } => tree.count("pages", pages.len()),
            Blocked::Sync(sync) => tree.part("sync", &**sync),
            Blocked::Move { .. }
            | Blocked::Demand { .. }
            | Blocked::Context { .. }
            | Blocked::Remap(_)
            | Blocked::Reset { .. } => {}
        }
    }
}

impl Inspect for SyncPoint {
    fn inspect(&self, tree: &mut Tree<'_>) {
        match &self.cause {
            SyncCause::Flush => tree.name("cause", "flush"),
            SyncCause::Bind { channel, .. } => {
                tree.name("cause", "bind");
                tree.number("channel", *channel);
            }
        }
        tree.count("spaces", self.spaces.len());
        tree.count("spaces_done", self.spaces_done);
        tree.count("tables_given_up", self.freed.len());
        let (stage, waits) = match &self.stage {
            SyncStage::Read { .. } => ("read", &None),
            SyncStage::Seek { .. } => ("seek", &None),
            SyncStage::Back { waits, .. } => ("back", waits),
            SyncStage::Build => ("build", &None),
            SyncStage::Flush => ("flush", &None),
            SyncStage::Bind { waits } => ("bind", waits),
        };
        tree.name("stage", stage);
        match &self.stage {
            SyncStage::Read { fetching } => tree.count("pages_on_their_way", fetching.len()),
            SyncStage::Seek { wanted } | SyncStage::Back { wanted, .. } => {
                tree.count("chunks_without_memory", wanted.len());
            }
            SyncStage::Build | SyncStage::Flush | SyncStage::Bind { .. } => {}
        }
        if let Some((wait, since)) = waits {
            tree.name("waits_for", format_args!("{wait:?}"));
            tree.age("waits_since", *since);
        }
    }
}

impl Inspect for Space {
    fn inspect(&self, tree: &mut Tree<'_>) {
        match self.shadow.guest_directory().at {
            TableAt::Vram(at) => tree.address("directory_of_the_guest", at.0, Address::GuestVramAddress),
            TableAt::Ram(at) => tree.address("directory_of_the_guest", at.0, Address::GuestPhysicalAddress),
        }
        tree.address("directory", self.shadow.directory().0, Address::VramAddress);
        tree.count("channels", self.users as usize);
        if let Some(at) = self.worked_at {
            tree.age("had_work", at);
        }
    }
}

impl Inspect for Vgpu {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("name", &self.config.name);
        match self.leave {
            Leave::Stays => tree.name("leaves", "no"),
            Leave::Reset(stage) => tree.name("leaves", format_args!("for a reset: {stage:?}")),
            Leave::Detach(stage) => tree.name("leaves", format_args!("for good: {stage:?}")),
        }
        tree.part("quota", &self.config.quota);
        if self.hold != Hold::default() {
            tree.part("hold", &self.hold);
        }
        tree.part("chunks", &self.chunks);
        tree.group("shadow_tables", |tree| {
            tree.bytes("held", self.shadow.held);
        });
        tree.group("snapshots_of_tables", |tree| {
            tree.count("tables", self.table_count());
            tree.count("tables_max", TABLES_MAX);
            tree.bytes("host_memory", self.heap_bytes());
        });
        if let Some(live) = &self.live {
            tree.part("windows", live);
        }
        tree.part("share", &self.share);
        tree.part("ram", &self.ram);
        tree.bytes("ram_max", self.config.ram);
        tree.part("bus_addresses", &self.bus);
        tree.part("units", &self.units);
        tree.group("spaces", |tree| {
            self.spaces.iter().for_each(|(id, space)| tree.part(id.0, space));
        });
        tree.group("channels", |tree| {
            self.channels
                .iter()
                .for_each(|(number, channel)| tree.part(number, channel));
            self.parked
                .iter()
                .for_each(|(number, parked)| tree.part(number, parked));
        });
        let runlist: Vec<String> = self.runlist.iter().map(u8::to_string).collect();
        tree.name("runlist", runlist.join(" "));
        tree.count("requests_waiting", self.queue.len());
        match &self.blocked {
            Some(blocked) => tree.part("head", blocked),
            None => tree.name("head", "not blocked"),
        }
        tree.part("activity", &self.activity);
        tree.part("work", &self.work);
        tree.count("pages_stored_to", self.stores.page_count());
        tree.due_in("passed_over_for", self.passed_over_until);
        if let Some(at) = self.synced_at {
            tree.age("tables_read", at);
        }
        if let Some(reason) = &self.given_up {
            tree.name("given_up", reason);
        }
        tree.count("guest_errors", self.guest_errors as usize);
    }
}
