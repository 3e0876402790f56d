//! What a policy sees when it is asked.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::config::Quota;
use crate::device::{Space, SpaceId};
use crate::event::{Tick, VmId};
use crate::memory::{ChunkNo, ChunkPlace, Chunks, Reach};
use crate::share::FRAME_LOOKED_UP;

/// All memory at one time. Sums are of the moment; chunks are looked up as they are asked for, nothing is copied.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// When the question is asked.
    pub now: Tick,
    /// Bytes of VRAM that nobody holds.
    pub free: u64,
    /// Bytes of them that were taken from others for a VM's chunk, and the VM. No other VM's demand is met from these
    /// until a move goes to another VM's good.
    pub claim: Option<(VmId, u64)>,
    /// Demands that wait for memory, in the order in which they came.
    pub demands: Vec<DemandView<'a>>,
    /// The VMs by number. Those that leave are not here: nothing of theirs may move.
    pub vms: Vec<VmView<'a>>,
}

impl Snapshot<'_> {
    /// One VM, `None` if it is not here or leaves.
    pub fn vm(&self, vm: VmId) -> Option<&VmView<'_>> {
        let at = self.vms.binary_search_by_key(&vm, |view| view.vm).ok()?;
        self.vms.get(at)
    }

    /// Free bytes that a demand of the VM may have.
    pub(crate) fn free_for(&self, vm: VmId) -> u64 {
        match self.claim {
            Some((claimant, bytes)) if claimant != vm => self.free.saturating_sub(bytes),
            _ => self.free,
        }
    }

    /// Bytes that demands ask for together.
    pub(crate) fn demanded(&self) -> u64 {
        self.demands.iter().map(|demand| demand.bytes).sum()
    }
}

/// Chunks without memory that a VM's access waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DemandView<'a> {
    /// VM whose access waits.
    pub vm: VmId,
    /// Those that have none yet.
    pub chunks: &'a [ChunkNo],
    /// Bytes of all these chunks.
    pub bytes: u64,
    /// When they are met in host RAM.
    pub deadline: Tick,
    /// The next of them would bring the VM above its `max`, and waits for an idle chunk of the VM to go.
    pub waits_for_own: bool,
}

/// One VM's memory, in bytes unless a name says otherwise.
#[derive(Clone, Debug)]
pub struct VmView<'a> {
    /// Number of the VM.
    pub vm: VmId,
    /// The VM's quota.
    pub quota: Quota,
    /// Its largest chunk; the last one may be smaller.
    pub chunk_bytes: u64,
    /// Chunks in VRAM, active or idle.
    pub resident: u64,
    /// In VRAM, and reached by its channels.
    pub active: u64,
    /// In VRAM, and reached by no channel.
    pub idle: u64,
    /// In host RAM only, and reached.
    pub wanted: u64,
    /// The smallest chunk of these; 0 if there is none.
    pub smallest_wanted: u64,
    /// Chunks without memory that accesses wait for.
    pub asked: u64,
    /// Its chunks may move. Not so for a while after a move that was rolled back or could not start.
    pub may_move: bool,
    /// Bytes that it holds above its `min`.
    pub spare: u64,
    /// Most chunks that one spill may take from it now. Where `spare` is less than a chunk, that is its short last one.
    pub spill_chunks_max: usize,
    /// An idle chunk of its own may go for one that it wants, whatever its `min`: host RAM has room for it, or nothing else makes room below its
    /// `high` or `max`.
    pub may_exchange: bool,
    /// Most of its chunks that may change places with as many others of it in one move, whatever its quota: it holds no more afterwards.
    pub exchange_chunks_max: usize,
    /// Most that one refill may bring it now, by its `high` and `max` and what one move may carry; free frames not considered.
    pub refill_bytes_max: u64,
    /// When its tables were last read, which is when the reach of its chunks was last known to be right.
    pub synced_at: Option<Tick>,
    /// Doorbells that brought work to its channels since it was attached.
    pub doorbells: u64,
    /// When the last of them came.
    pub rang_at: Option<Tick>,
    /// Its guest has not used the GPU for so long that it lends what nothing protects.
    pub lends: bool,
    /// Work that waits for its memory, if a policy goes by it.
    pub work: Option<WorkView<'a>>,
    pub(crate) chunks: &'a Chunks,
    pub(crate) last_use: LastUse<'a>,
}

/// Chunks that a VM's launches use, as far as that is known before they run.
#[derive(Clone, Debug)]
pub struct WorkView<'a> {
    /// Those of the launch that waits.
    pub next: &'a BTreeSet<ChunkNo>,
    /// Those of launches that were submitted behind it, in their order.
    pub later: Vec<&'a BTreeSet<ChunkNo>>,
    /// Those of launches that may be running, of all the VM's channels.
    pub running: Vec<&'a BTreeSet<ChunkNo>>,
    /// Since when it waits.
    pub since: Tick,
}

/// Most address spaces of a VM that are told apart by when they had work. What only others reach counts as these do.
const SPACES_MAX: usize = 8;

/// When each chunk of a VM was last in use, as far as the hardware shows it: by the work of the spaces that reach it. It is
/// found out when it is asked for, and what that takes is the VM's to pay.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastUse<'a> {
    /// The most recent first.
    spaces: Vec<(Option<Tick>, &'a Space)>,
    /// Units of work, see [`crate::share`].
    work: Cell<u64>,
    #[cfg(test)]
    pub(crate) given: BTreeMap<ChunkNo, Tick>,
}

impl<'a> LastUse<'a> {
    pub(crate) fn of(spaces: &'a BTreeMap<SpaceId, Space>) -> Self {
        let mut spaces: Vec<_> = spaces.values().map(|space| (space.worked_at, space)).collect();
        spaces.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self {
            spaces,
            ..Self::default()
        }
    }

    /// Work that questions have taken so far.
    pub(crate) fn work(&self) -> u64 {
        self.work.get()
    }

    fn used_at(&self, chunks: &Chunks, chunk: ChunkNo) -> Option<Tick> {
        #[cfg(test)]
        if let Some(given) = self.given.get(&chunk) {
            return Some(*given);
        }
        // With one space there is nothing to tell apart.
        let (told_apart, others) = self
            .spaces
            .split_at(self.spaces.len().saturating_sub(1).min(SPACES_MAX));
        let mut looks = 1;
        let reaching = told_apart.iter().find(|(_, space)| {
            chunks.guest_frames(chunk).any(|frame| {
                looks += 1;
                space.shadow.reaches(frame).is_some()
            })
        });
        self.work.set(self.work.get() + looks * FRAME_LOOKED_UP);
        reaching.or(others.first())?.0
    }
}

impl<'a> VmView<'a> {
    /// The VM's chunks and their sums; what else is known of the VM is the caller's to say.
    pub(crate) fn of(vm: VmId, chunks: &'a Chunks, chunk_bytes: u64, quota: Quota) -> Self {
        let sums = chunks.sums();
        Self {
            vm,
            quota,
            chunk_bytes,
            resident: chunks.resident(),
            active: sums.active,
            idle: sums.idle,
            wanted: sums.wanted,
            smallest_wanted: chunks.smallest_wanted(),
            asked: 0,
            may_move: true,
            spare: chunks.resident().saturating_sub(quota.min),
            spill_chunks_max: 0,
            may_exchange: true,
            exchange_chunks_max: 0,
            refill_bytes_max: 0,
            synced_at: None,
            doorbells: 0,
            rang_at: None,
            lends: false,
            work: None,
            chunks,
            last_use: LastUse::default(),
        }
    }

    /// When a chunk that is reached was last in use: when one of the spaces that reach it last had work, as far as is known.
    /// `None` if none ever had any.
    pub(crate) fn used_at(&self, chunk: ChunkNo) -> Option<Tick> {
        self.last_use.used_at(self.chunks, chunk)
    }

    /// Bytes of its last chunk, if that is shorter than the others, in VRAM, stands still, and is one that is asked for; otherwise 0.
    pub(crate) fn short(&self, is_meant: impl Fn(&ChunkView) -> bool) -> u64 {
        let last = self
            .chunks
            .all()
            .last()
            .map(|last| ChunkView::of(self.chunks, last));
        let last = last.filter(|last| last.bytes < self.chunk_bytes && last.is_spillable() && is_meant(last));
        last.map_or(0, |last| last.bytes)
    }

    /// Its chunks by number, also those without memory.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkView> + use<'a> {
        let chunks = self.chunks;
        chunks.all().map(move |chunk| ChunkView::of(chunks, chunk))
    }
}

/// Where a chunk's bytes are, without the frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residence {
    /// Nowhere: it was never touched.
    Unbacked,
    /// In VRAM only.
    Vram,
    /// In host RAM.
    HostRam,
    /// In VRAM, with an equal copy in host RAM: a spill copies nothing.
    Both,
}

/// A chunk as a policy sees it. Ages are counted from [`Snapshot::now`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkView {
    /// Its number within the VM.
    pub no: ChunkNo,
    /// Length of the chunk.
    pub bytes: u64,
    /// Where it is.
    pub residence: Residence,
    /// How channels reach it.
    pub reach: Reach,
    /// They are about to: a sync that is not built yet asked for its memory.
    pub is_expected: bool,
    /// Since when they reach it so.
    pub reach_since: Tick,
    /// A move of it is under way, or a part of it has been moved and the rest follows; or a guest's store waits for what is in host RAM.
    pub is_moving: bool,
    /// When it got memory; `None` if it has none.
    pub backed_at: Option<Tick>,
    /// When its last move ended.
    pub moved_at: Option<Tick>,
    /// Moves so far, both ways, since it got memory.
    pub moves: u32,
    /// When the CPU last accessed it through a window.
    pub touched_at: Option<Tick>,
    /// When the card last got a launch that was known to use it; only policies that go by launches have that found out.
    pub launched_at: Option<Tick>,
    /// How many entries of rings had such launches since it got memory.
    pub launches: u32,
}

impl ChunkView {
    fn of(chunks: &Chunks, no: ChunkNo) -> Self {
        let history = chunks.history(no);
        Self {
            no,
            bytes: chunks.bytes(no),
            residence: match chunks.place(no) {
                ChunkPlace::Unbacked => Residence::Unbacked,
                // It holds frames, and is on its way.
                ChunkPlace::Resident(_) | ChunkPlace::Split(_) => Residence::Vram,
                ChunkPlace::Spilled => Residence::HostRam,
                ChunkPlace::Both(_) => Residence::Both,
            },
            reach: chunks.reach(no),
            is_expected: chunks.is_expected(no),
            reach_since: history.reach_since,
            is_moving: !chunks.can_move(no),
            backed_at: history.backed_at,
            moved_at: history.moved_at,
            moves: history.moves,
            touched_at: history.touched_at,
            launched_at: history.launched_at,
            launches: history.launches,
        }
    }

    /// Backed, but no channel reaches it or is about to.
    pub(crate) fn is_idle(&self) -> bool {
        self.residence != Residence::Unbacked && self.reach == Reach::None && !self.is_expected
    }

    /// It is in VRAM and stands still.
    pub fn is_spillable(&self) -> bool {
        matches!(self.residence, Residence::Vram | Residence::Both) && !self.is_moving
    }

    /// It is in host RAM only and stands still.
    pub fn is_refillable(&self) -> bool {
        self.residence == Residence::HostRam && !self.is_moving
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::addr::{FrameNo, Iova};

    const CHUNK: u64 = 2 << 20;

    fn resident() -> ChunkPlace {
        ChunkPlace::Resident((0..16).map(FrameNo).collect())
    }

    #[test]
    fn sums_tell_active_idle_and_wanted_apart() {
        let mut chunks = Chunks::new(5 * CHUNK, CHUNK, Iova(0));
        for (chunk, place) in (0..).zip([resident(), resident(), ChunkPlace::Spilled, ChunkPlace::Spilled]) {
            chunks.set_place(ChunkNo(chunk), place);
        }
        chunks.widen_reach(ChunkNo(0), Reach::Writable);
        chunks.widen_reach(ChunkNo(2), Reach::ReadOnly);
        let view = VmView::of(VmId(1), &chunks, CHUNK, Quota::default());
        assert_eq!(
            (view.resident, view.active, view.idle, view.wanted),
            (2 * CHUNK, CHUNK, CHUNK, CHUNK)
        );
    }

    #[test]
    fn sums_are_those_that_a_count_of_the_chunks_finds() {
        // The last chunk is short.
        let mut chunks = Chunks::new(4 * CHUNK + (1 << 20), CHUNK, Iova(0));
        for no in 0..5 {
            chunks.set_place(ChunkNo(no), ChunkPlace::Spilled);
        }
        chunks.set_place(ChunkNo(0), resident());
        chunks.expect([ChunkNo(0), ChunkNo(4)]);
        chunks.widen_reach(ChunkNo(1), Reach::Writable);
        chunks.widen_reach(ChunkNo(2), Reach::ReadOnly);
        chunks.set_moving(ChunkNo(2), true);
        let view = VmView::of(VmId(1), &chunks, CHUNK, Quota::default());
        let sum =
            |is: &dyn Fn(&ChunkView) -> bool| view.chunks().filter(is).map(|chunk| chunk.bytes).sum::<u64>();
        assert_eq!(
            view.wanted,
            sum(&|chunk| chunk.is_refillable() && !chunk.is_idle())
        );
        assert_eq!(
            view.active,
            sum(&|chunk| chunk.is_spillable() && !chunk.is_idle())
        );
        assert_eq!((view.wanted, view.active), (CHUNK + (1 << 20), CHUNK));
        assert_eq!(view.smallest_wanted, 1 << 20);
        chunks.end_expecting();
        let view = VmView::of(VmId(1), &chunks, CHUNK, Quota::default());
        assert_eq!(
            (view.wanted, view.smallest_wanted, view.idle),
            (CHUNK, CHUNK, CHUNK)
        );
    }

    #[test]
    fn chunk_remembers_when_it_was_backed_reached_moved_and_touched() {
        let mut chunks = Chunks::new(CHUNK, CHUNK, Iova(0));
        let no = ChunkNo(0);
        chunks.set_place(no, resident());
        chunks.note_backed(no, Tick(1));
        chunks.widen_reach(no, Reach::Writable);
        assert_eq!(chunks.note_reach(Tick(2)), [(no, Reach::Writable)]);
        assert_eq!(chunks.note_reach(Tick(3)).len(), 0);
        chunks.note_moved(no, Tick(4));
        chunks.note_touched(no, Tick(5));
        let view = VmView::of(VmId(1), &chunks, CHUNK, Quota::default());
        let chunk = view.chunks().next().expect("there is one");
        assert_eq!(
            (
                chunk.backed_at,
                chunk.reach_since,
                chunk.moved_at,
                chunk.moves,
                chunk.touched_at
            ),
            (Some(Tick(1)), Tick(2), Some(Tick(4)), 1, Some(Tick(5)))
        );
    }

    #[test]
    fn chunk_that_gives_its_memory_up_forgets_its_history() {
        let mut chunks = Chunks::new(CHUNK, CHUNK, Iova(0));
        chunks.set_place(ChunkNo(0), resident());
        chunks.note_backed(ChunkNo(0), Tick(1));
        chunks.note_moved(ChunkNo(0), Tick(2));
        chunks.set_place(ChunkNo(0), ChunkPlace::Unbacked);
        let view = ChunkView::of(&chunks, ChunkNo(0));
        assert_eq!((view.backed_at, view.moved_at, view.moves), (None, None, 0));
    }
}
