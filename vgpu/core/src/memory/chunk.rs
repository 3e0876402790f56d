//! Chunks of one VM's VRAM and its instance pages.

use std::collections::BTreeSet;

use fermi_spec::addr::{FRAME, FrameNo, GuestVramAddr, Iova, SMALL_PAGE, VramAddr};
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::{FramePlacement, GuestFrame, Placement, ReachChange, ShadowSpace};

use super::{History, ImageMaps};
use crate::saved::Unsound;

mod awaited;
mod inspection;
mod mapped;
mod noted;
mod place;
mod sums;

pub(crate) use place::{ChunkPlace, Split};
use sums::ChunkSums;

/// Number of a chunk within its VM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ChunkNo(pub u32);

/// Number of a 4 KiB page of guest VRAM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct GuestPage(pub(crate) u32);

impl GuestPage {
    pub(crate) fn of(at: GuestVramAddr) -> Self {
        Self((at.0 / SMALL_PAGE) as u32)
    }

    pub(crate) fn base(self) -> GuestVramAddr {
        GuestVramAddr(u64::from(self.0) * SMALL_PAGE)
    }
}

/// How the VM's channels reach a chunk through shadow tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Reach {
    /// Not at all: the chunk is idle if it is backed.
    #[default]
    None,
    /// For loads only.
    ReadOnly,
    /// For stores too.
    Writable,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Chunk {
    place: ChunkPlace,
    /// Frames of it that address spaces reach, each counted once for each space; and those that they let the GPU write.
    reached: u32,
    written: u32,
    /// A move of it is under way: stores through windows wait.
    moving: bool,
    history: History,
}

/// All chunks of one VM.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Chunks {
    guest_vram: u64,
    chunk_bytes: u64,
    image: Iova,
    chunks: Vec<Chunk>,
    /// One bit a page: the page is instance memory and lives in the image whatever its chunk does.
    instance: Vec<u64>,
    instance_pages: u32,
    resident: u64,
    spilled: u64,
    /// Kept with each change of a chunk, so that nobody has to look at all of them.
    sums: ChunkSums,
    /// Chunks in VRAM whose image still holds memory, with an old copy: the next spill finds it ready. Nothing reads it.
    stale: BTreeSet<ChunkNo>,
    stale_bytes: u64,
    /// Chunks that have left for a guest's store that waits, and stay in host RAM until it goes on.
    #[serde(default)]
    kept_out: BTreeSet<ChunkNo>,
    /// What of the image the card reaches. Kept up only where maps pin memory.
    #[serde(default)]
    maps: ImageMaps,
    /// Chunks whose reach changed since it was last noted.
    changed_reach: BTreeSet<ChunkNo>,
    /// Chunks that a sync under way asked memory for: they are in use, though nothing reaches them before it is built.
    expected: BTreeSet<ChunkNo>,
}

impl Chunks {
    pub(crate) fn new(guest_vram: u64, chunk_bytes: u64, image: Iova) -> Self {
        let count = guest_vram.div_ceil(chunk_bytes) as usize;
        let pages = (guest_vram / SMALL_PAGE) as usize;
        let mut chunks = Self {
            guest_vram,
            chunk_bytes,
            image,
            chunks: vec![
                Chunk {
                    place: ChunkPlace::Unbacked,
                    reached: 0,
                    written: 0,
                    moving: false,
                    history: History::default(),
                };
                count
            ],
            instance: vec![0; pages.div_ceil(64)],
            instance_pages: 0,
            resident: 0,
            spilled: 0,
            sums: ChunkSums::default(),
            stale: BTreeSet::new(),
            stale_bytes: 0,
            kept_out: BTreeSet::new(),
            maps: ImageMaps::default(),
            changed_reach: BTreeSet::new(),
            expected: BTreeSet::new(),
        };
        chunks.sums = chunks.counted();
        chunks
    }

    /// Changes what one chunk adds to the sums.
    fn change<T>(&mut self, chunk: ChunkNo, change: impl FnOnce(&mut Self) -> T) {
        let before = self.part(chunk);
        change(self);
        self.sums.replace(before, self.part(chunk));
    }

    /// It stands still, and nobody keeps it where it is.
    pub(crate) fn can_move(&self, chunk: ChunkNo) -> bool {
        !self.chunks[chunk.0 as usize].is_on_its_way() && !self.is_kept_out(chunk)
    }

    pub(crate) fn guest_vram(&self) -> u64 {
        self.guest_vram
    }

    pub(crate) fn image(&self) -> Iova {
        self.image
    }

    /// Bytes held in VRAM.
    pub(crate) fn resident(&self) -> u64 {
        self.resident
    }

    /// Bytes of these chunks.
    pub(crate) fn bytes_of(&self, chunks: &[ChunkNo]) -> u64 {
        chunks.iter().map(|&chunk| self.bytes(chunk)).sum()
    }

    /// Bytes of chunks in host RAM only.
    pub(crate) fn spilled(&self) -> u64 {
        self.spilled
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = ChunkNo> + use<> {
        (0..self.chunks.len() as u32).map(ChunkNo)
    }

    /// The chunk that holds `at`, `None` outside guest VRAM.
    pub(crate) fn of(&self, at: GuestVramAddr) -> Option<ChunkNo> {
        (at.0 < self.guest_vram).then(|| ChunkNo((at.0 / self.chunk_bytes) as u32))
    }

    /// The chunk of a 128 KiB frame of guest VRAM.
    pub(crate) fn of_frame(&self, frame: GuestFrame) -> Option<ChunkNo> {
        self.of(GuestVramAddr(u64::from(frame.0) * FRAME))
    }

    pub(crate) fn base(&self, chunk: ChunkNo) -> GuestVramAddr {
        GuestVramAddr(u64::from(chunk.0) * self.chunk_bytes)
    }

    /// Length; the last chunk may be short.
    pub(crate) fn bytes(&self, chunk: ChunkNo) -> u64 {
        self.chunk_bytes.min(self.guest_vram - self.base(chunk).0)
    }

    /// Frames a chunk needs.
    pub(crate) fn frames_of(&self, chunk: ChunkNo) -> u32 {
        (self.bytes(chunk) / FRAME) as u32
    }

    /// The guest-VRAM frames of a chunk.
    pub(crate) fn guest_frames(&self, chunk: ChunkNo) -> impl Iterator<Item = GuestFrame> + use<> {
        let first = (self.base(chunk).0 / FRAME) as u32;
        (first..first + self.frames_of(chunk)).map(GuestFrame)
    }

    /// Whether the number is one of the VM's chunks.
    pub(crate) fn contains(&self, chunk: ChunkNo) -> bool {
        (chunk.0 as usize) < self.chunks.len()
    }

    pub(crate) fn place(&self, chunk: ChunkNo) -> &ChunkPlace {
        &self.chunks[chunk.0 as usize].place
    }

    pub(crate) fn reach(&self, chunk: ChunkNo) -> Reach {
        self.chunks[chunk.0 as usize].reach()
    }

    /// It has memory, and no channel reaches it or is about to.
    pub(crate) fn is_idle(&self, chunk: ChunkNo) -> bool {
        let is_backed = *self.place(chunk) != ChunkPlace::Unbacked;
        is_backed && self.reach(chunk) == Reach::None && !self.is_expected(chunk)
    }

    /// Its bytes are in host RAM only.
    pub(crate) fn is_out(&self, chunk: ChunkNo) -> bool {
        *self.place(chunk) == ChunkPlace::Spilled
    }

    pub(crate) fn is_moving(&self, chunk: ChunkNo) -> bool {
        self.chunks[chunk.0 as usize].moving
    }

    /// Whether a part of it is in VRAM and a part in host RAM.
    pub(crate) fn is_split(&self, chunk: ChunkNo) -> bool {
        matches!(self.place(chunk), ChunkPlace::Split(_))
    }

    /// Whether a CPU's store to a page has to wait for a move of its chunk. Instance memory does not move.
    pub(crate) fn holds_stores(&self, chunk: ChunkNo, page: GuestPage) -> bool {
        self.is_moving(chunk) && !self.is_instance(page) && !planted::is(Fault::StoreDuringMove)
    }

    pub(crate) fn set_moving(&mut self, chunk: ChunkNo, moving: bool) {
        self.change(chunk, |chunks| chunks.chunks[chunk.0 as usize].moving = moving);
    }

    /// An address space began or ceased to reach a frame. A writable reach ends "both": there is no dirty bit.
    pub(crate) fn change_reach(&mut self, change: ReachChange) {
        let Some(no) = self.of_frame(change.frame) else {
            return;
        };
        let before = self.part(no);
        let chunk = &mut self.chunks[no.0 as usize];
        let reach = chunk.reach();
        let count = match change.is_store {
            true => &mut chunk.written,
            false => &mut chunk.reached,
        };
        *count = match change.began {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
        let ends_both = chunk.reach() == Reach::Writable && matches!(chunk.place, ChunkPlace::Both(_));
        if chunk.reach() != reach {
            self.sums.replace(before, self.part(no));
        }
        self.changed_reach.insert(no);
        if ends_both {
            self.end_both(no);
        }
    }

    /// An address space is gone, and so is its reach.
    pub(crate) fn forget_reach(&mut self, space: &ShadowSpace) {
        for (frame, reach) in space.referenced() {
            for is_store in [false, true] {
                if reach.writable || !is_store {
                    self.change_reach(ReachChange {
                        frame,
                        is_store,
                        began: false,
                    });
                }
            }
        }
    }

    /// Whether the counts of reach are those of these spaces.
    pub(crate) fn is_reached_by<'a>(&self, spaces: impl Iterator<Item = &'a ShadowSpace>) -> bool {
        let mut counts = vec![(0, 0); self.chunks.len()];
        for (frame, reach) in spaces.flat_map(ShadowSpace::referenced) {
            if let Some(chunk) = self.of_frame(frame) {
                let count = &mut counts[chunk.0 as usize];
                count.0 += 1;
                count.1 += u32::from(reach.writable);
            }
        }
        let held = self.chunks.iter().map(|chunk| (chunk.reached, chunk.written));
        held.eq(counts)
    }

    #[cfg(test)]
    pub(crate) fn widen_reach(&mut self, chunk: ChunkNo, reach: Reach) {
        let frame = self.guest_frames(chunk).next().expect("a chunk has frames");
        for is_store in [false, true] {
            if reach == Reach::Writable || !is_store {
                self.change_reach(ReachChange {
                    frame,
                    is_store,
                    began: true,
                });
            }
        }
    }

    /// The image's copy of a chunk that was in both places is about to be stale.
    pub(crate) fn end_both(&mut self, chunk: ChunkNo) {
        let before = self.part(chunk);
        let entry = &mut self.chunks[chunk.0 as usize];
        if let ChunkPlace::Both(frames) = &mut entry.place {
            entry.place = ChunkPlace::Resident(std::mem::take(frames));
            self.sums.replace(before, self.part(chunk));
            self.keep_stale(chunk);
        }
    }

    /// The chunk is in VRAM alone; its image keeps its memory until it is wanted elsewhere.
    pub(crate) fn keep_stale(&mut self, chunk: ChunkNo) {
        if self.stale.insert(chunk) {
            self.stale_bytes += self.bytes(chunk);
        }
    }

    /// Whether its image has memory, with an old copy.
    pub(crate) fn is_stale(&self, chunk: ChunkNo) -> bool {
        self.stale.contains(&chunk)
    }

    fn forget_stale(&mut self, chunk: ChunkNo) {
        if self.stale.remove(&chunk) {
            self.stale_bytes -= self.bytes(chunk);
        }
    }

    /// A chunk whose old copy may be dropped, which it is with this call. None of those that a move is about to write, or
    /// that the card reaches: it would keep the pages that are given back.
    pub(crate) fn take_stale(&mut self) -> Option<ChunkNo> {
        let is_mapped = |chunk: ChunkNo| {
            let mut pieces = self.maps.within(self.whole(chunk));
            pieces.any(|piece| piece.all().any(|page| !self.is_instance(page)))
        };
        let may_go = |chunk: &&ChunkNo| !self.is_moving(**chunk) && !is_mapped(**chunk);
        let chunk = self.stale.iter().find(may_go).copied()?;
        self.forget_stale(chunk);
        Some(chunk)
    }

    /// Bytes of host RAM that the image holds at most: chunks that are spilled or on their way, old copies, instance memory.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.spilled + self.sums.split + self.stale_bytes + u64::from(self.instance_pages) * SMALL_PAGE
    }

    /// Changes a chunk's place; returns the old one. Keeps the sums.
    pub(crate) fn set_place(&mut self, chunk: ChunkNo, place: ChunkPlace) -> ChunkPlace {
        let bytes = self.bytes(chunk);
        let frames = self.frames_of(chunk) as usize;
        if let Some(held) = place.frames() {
            assert_eq!(held.len(), frames, "frames of {chunk:?}");
        }
        let part = self.part(chunk);
        let old = std::mem::replace(&mut self.chunks[chunk.0 as usize].place, place);
        self.sums.replace(part, self.part(chunk));
        let share = |place: &ChunkPlace| match place {
            ChunkPlace::Unbacked => (0, 0),
            ChunkPlace::Resident(_) | ChunkPlace::Both(_) | ChunkPlace::Split(_) => (bytes, 0),
            ChunkPlace::Spilled => (0, bytes),
        };
        let (before, after) = (share(&old), share(self.place(chunk)));
        self.resident = self.resident - before.0 + after.0;
        self.spilled = self.spilled - before.1 + after.1;
        if *self.place(chunk) == ChunkPlace::Unbacked {
            self.chunks[chunk.0 as usize].history.clear();
        }
        if after.0 == 0 || self.is_split(chunk) {
            // Its image is the truth now, at least in part, or nothing.
            self.forget_stale(chunk);
        }
        old
    }

    pub(crate) fn is_instance(&self, page: GuestPage) -> bool {
        self.instance[page.0 as usize / 64] & 1 << (page.0 % 64) != 0
    }

    /// The chunk's pages that are instance memory.
    pub(crate) fn instance_pages(&self, chunk: ChunkNo) -> impl Iterator<Item = GuestPage> {
        let first = GuestPage::of(self.base(chunk)).0;
        let pages = (self.bytes(chunk) / SMALL_PAGE) as u32;
        // Chunks are whole words of the bitmap, or halves.
        (first..first + pages)
            .map(GuestPage)
            .filter(|page| self.is_instance(*page))
    }

    /// Makes a page instance memory. Only pages whose bytes are in the image, or zero, may become so.
    pub(crate) fn set_instance(&mut self, page: GuestPage) {
        if !self.is_instance(page) {
            self.instance[page.0 as usize / 64] |= 1 << (page.0 % 64);
            self.instance_pages += 1;
        }
    }

    /// A page of an unbacked chunk is nothing again. Its bytes are zero, and so they stay.
    pub(crate) fn unset_instance(&mut self, page: GuestPage) {
        if self.is_instance(page) {
            self.instance[page.0 as usize / 64] &= !(1 << (page.0 % 64));
            self.instance_pages -= 1;
        }
    }

    /// Runs of a chunk's pages that are not instance memory: (offset in the chunk, bytes). What a move copies.
    pub(crate) fn data_runs(&self, chunk: ChunkNo) -> Vec<(u64, u64)> {
        let first = GuestPage::of(self.base(chunk)).0;
        let pages = (self.bytes(chunk) / SMALL_PAGE) as u32;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in (0..pages).filter(|page| {
            !self.is_instance(GuestPage(first + page)) || planted::is(Fault::InstancePageCopied)
        }) {
            let offset = u64::from(page) * SMALL_PAGE;
            match runs.last_mut() {
                Some((start, bytes)) if *start + *bytes == offset => *bytes += SMALL_PAGE,
                _ => runs.push((offset, SMALL_PAGE)),
            }
        }
        runs
    }

    /// Spoils its account, for tests.
    #[cfg(test)]
    pub(crate) fn set_image(&mut self, image: Iova) {
        self.image = image;
    }

    /// The same as places of guest VRAM.
    pub(crate) fn data_places(&self, chunk: ChunkNo) -> impl Iterator<Item = (GuestVramAddr, u64)> + use<> {
        let base = self.base(chunk);
        let runs = self.data_runs(chunk).into_iter();
        runs.map(move |(start, bytes)| (base.offset(start), bytes))
    }

    /// Present place of a byte of guest VRAM: the one door from guest VRAM to the card or to a bus address.
    pub(crate) fn locate(&self, at: GuestVramAddr) -> Placement {
        let Some(chunk) = self.of(at) else {
            return Placement::Outside;
        };
        let in_image = || {
            self.image
                .checked_add(at.0)
                .map_or(Placement::Outside, Placement::Sysram)
        };
        if self.is_instance(GuestPage::of(at)) {
            return in_image();
        }
        match self.place(chunk) {
            ChunkPlace::Unbacked => Placement::Unbacked,
            ChunkPlace::Spilled => in_image(),
            ChunkPlace::Split(split) if self.frame_within(chunk, at) < split.out => in_image(),
            ChunkPlace::Resident(frames)
            | ChunkPlace::Both(frames)
            | ChunkPlace::Split(Split { frames, .. }) => {
                let offset = at.0 - self.base(chunk).0;
                Placement::Vram(in_frame(frames, offset))
            }
        }
    }

    /// Where an entry may lead that names a byte. A sync that names a chunk without memory asks for it first: until then nothing leads there, not
    /// even to its instance pages, of whose image nothing may be mapped.
    pub(crate) fn locate_reached(&self, at: GuestVramAddr) -> Placement {
        match self.of(at).map(|chunk| self.place(chunk)) {
            Some(ChunkPlace::Unbacked) => Placement::Unbacked,
            _ => self.locate(at),
        }
    }

    /// Number of the 128 KiB of a chunk in which a byte lies.
    fn frame_within(&self, chunk: ChunkNo, at: GuestVramAddr) -> u32 {
        ((at.0 - self.base(chunk).0) / FRAME) as u32
    }

    /// Present place of a whole 128 KiB frame.
    pub(crate) fn locate_frame(&self, at: GuestVramAddr) -> FramePlacement {
        let first = GuestPage::of(at).0 as usize;
        // 32 pages a frame: half a word of the bitmap.
        let bits = (self.instance.get(first / 64).copied().unwrap_or(0) >> (first % 64)) as u32;
        if bits != 0 && !planted::is(Fault::LargeEntryOverInstance) {
            return FramePlacement::Mixed;
        }
        FramePlacement::Uniform(self.locate(at))
    }

    /// Panics if the sums or sizes do not fit: for tests and the simulator.
    pub(crate) fn check(&self) {
        self.sound().unwrap_or_else(|unsound| panic!("{unsound}"));
    }

    /// Whether sums and sizes fit. The size of the VRAM and of a chunk are what a VM may have.
    pub(crate) fn sound(&self) -> Result<(), Unsound> {
        let (count, pages) = (
            self.guest_vram.div_ceil(self.chunk_bytes),
            self.guest_vram / SMALL_PAGE,
        );
        Unsound::unless(
            self.chunks.len() as u64 == count && self.instance.len() as u64 == pages.div_ceil(64),
            "the chunks are others than guest VRAM has",
        )?;
        let chunk_pages = u32::try_from(self.chunk_bytes / SMALL_PAGE).unwrap_or(u32::MAX);
        Unsound::unless(
            self.maps
                .is_sound(u32::try_from(pages).unwrap_or(u32::MAX), chunk_pages.max(1)),
            "maps of its image",
        )?;
        let mut named = self
            .expected
            .iter()
            .chain(&self.kept_out)
            .chain(&self.changed_reach);
        Unsound::unless(named.all(|&chunk| self.contains(chunk)), "unknown chunks")?;
        let (mut resident, mut spilled) = (0, 0);
        for chunk in self.all() {
            match self.place(chunk) {
                ChunkPlace::Unbacked => {}
                ChunkPlace::Spilled => spilled += self.bytes(chunk),
                place @ (ChunkPlace::Resident(_) | ChunkPlace::Both(_) | ChunkPlace::Split(_)) => {
                    let held = place.frames().map_or(0, <[FrameNo]>::len);
                    Unsound::unless(held as u32 == self.frames_of(chunk), "frames of a chunk")?;
                    resident += self.bytes(chunk);
                }
            }
            if let ChunkPlace::Split(split) = self.place(chunk) {
                let parts = 1..self.frames_of(chunk);
                Unsound::unless(parts.contains(&split.out), "parts of a chunk")?;
            }
            Unsound::unless(
                !matches!(self.place(chunk), ChunkPlace::Both(_)) || self.reach(chunk) != Reach::Writable,
                "a chunk is in both places and writable",
            )?;
        }
        let sums = (resident, spilled) == (self.resident, self.spilled);
        Unsound::unless(sums && self.counted() == self.sums, "sums of chunks")?;
        let kept =
            |chunk: &ChunkNo| self.contains(*chunk) && matches!(self.place(*chunk), ChunkPlace::Resident(_));
        Unsound::unless(
            self.stale.iter().all(kept),
            "an old copy of a chunk that is not in VRAM alone",
        )?;
        let stale: u64 = self.stale.iter().map(|&chunk| self.bytes(chunk)).sum();
        Unsound::unless(stale == self.stale_bytes, "bytes of old copies")?;
        let pages: u32 = self.instance.iter().map(|word| word.count_ones()).sum();
        Unsound::unless(pages == self.instance_pages, "instance pages")
    }

    /// The sizes that the chunks were made for: guest VRAM and a chunk.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        (self.guest_vram, self.chunk_bytes)
    }

    /// Frames that hold chunks.
    pub(crate) fn frames(&self) -> impl Iterator<Item = FrameNo> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.place.frames().unwrap_or_default())
            .copied()
    }
}

/// The byte `offset` into a chunk that lies in `frames`.
pub(crate) fn in_frame(frames: &[FrameNo], offset: u64) -> VramAddr {
    frames[(offset / FRAME) as usize].base().offset(offset % FRAME)
}

impl Chunk {
    /// A move of it is under way, or between two parts.
    fn is_on_its_way(&self) -> bool {
        self.moving || matches!(self.place, ChunkPlace::Split(_))
    }

    fn reach(&self) -> Reach {
        match (self.reached, self.written) {
            (0, _) => Reach::None,
            (_, 0) => Reach::ReadOnly,
            _ => Reach::Writable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Piece;
    use proptest::prelude::*;

    fn chunks() -> Chunks {
        Chunks::new(9 << 20, 2 << 20, Iova(1 << 36))
    }

    #[test]
    fn last_chunk_is_short() {
        assert_eq!(
            (chunks().bytes(ChunkNo(4)), chunks().frames_of(ChunkNo(4))),
            (1 << 20, 8)
        );
    }

    #[test]
    fn address_outside_guest_vram_is_outside() {
        assert_eq!(chunks().locate(GuestVramAddr(9 << 20)), Placement::Outside);
    }

    #[test]
    fn instance_page_is_in_the_image_though_its_chunk_is_resident() {
        let mut chunks = chunks();
        chunks.set_place(
            ChunkNo(0),
            ChunkPlace::Resident((100..116).map(FrameNo).collect()),
        );
        chunks.set_instance(GuestPage(5));
        assert_eq!(
            chunks.locate(GuestVramAddr(0x5010)),
            Placement::Sysram(Iova((1 << 36) + 0x5010))
        );
        assert_eq!(
            chunks.locate(GuestVramAddr(0x6010)),
            Placement::Vram(FrameNo(100).base().offset(0x6010))
        );
        assert_eq!(chunks.locate_frame(GuestVramAddr(0)), FramePlacement::Mixed);
        assert_eq!(
            chunks.data_runs(ChunkNo(0)),
            vec![(0, 0x5000), (0x6000, (2 << 20) - 0x6000)]
        );
    }

    #[test]
    fn nothing_leads_to_an_instance_page_of_a_chunk_that_has_no_memory_yet() {
        let mut chunks = chunks();
        chunks.set_instance(GuestPage(5));
        let at = GuestVramAddr(0x5010);
        let in_image = Placement::Sysram(Iova((1 << 36) + 0x5010));
        assert_eq!(
            (chunks.locate(at), chunks.locate_reached(at)),
            (in_image, Placement::Unbacked)
        );
        chunks.set_place(ChunkNo(0), ChunkPlace::Spilled);
        assert_eq!(chunks.locate_reached(at), in_image);
    }

    #[test]
    fn writable_reach_ends_both() {
        let mut chunks = chunks();
        chunks.set_place(ChunkNo(1), ChunkPlace::Both((0..16).map(FrameNo).collect()));
        chunks.widen_reach(ChunkNo(1), Reach::Writable);
        assert!(matches!(chunks.place(ChunkNo(1)), ChunkPlace::Resident(_)));
        chunks.check();
    }

    #[test]
    fn old_copy_that_a_move_or_the_card_may_write_is_not_taken() {
        let mut chunks = chunks();
        for chunk in [ChunkNo(1), ChunkNo(2), ChunkNo(3)] {
            chunks.set_place(chunk, ChunkPlace::Resident((0..16).map(FrameNo).collect()));
            chunks.keep_stale(chunk);
        }
        chunks.set_moving(ChunkNo(1), true);
        let whole = chunks.whole(ChunkNo(2));
        chunks.maps_mut().insert(whole);
        assert_eq!(
            (chunks.take_stale(), chunks.take_stale()),
            (Some(ChunkNo(3)), None)
        );
        chunks.check();
    }

    #[test]
    fn image_is_wanted_where_an_entry_may_name_it() {
        let mut chunks = chunks();
        let resident = || ChunkPlace::Resident((0..16).map(FrameNo).collect());
        chunks.set_instance(GuestPage(513));
        assert!(!chunks.wants_map(GuestPage(513)), "unbacked");
        chunks.set_place(ChunkNo(0), resident());
        chunks.set_place(ChunkNo(1), resident());
        chunks.set_place(ChunkNo(2), ChunkPlace::Spilled);
        let wanted = [0, 512, 513, 1024].map(|page| chunks.wants_map(GuestPage(page)));
        assert_eq!(wanted, [false, false, true, true]);
        let unmapped = |chunks: &Chunks| [0, 1, 2].map(|chunk| chunks.unmapped(ChunkNo(chunk)));
        let page = Piece {
            first: GuestPage(513),
            pages: 1,
        };
        let all = chunks.whole(ChunkNo(2));
        assert_eq!(unmapped(&chunks), [vec![], vec![page], vec![all]]);
        for piece in [page, all] {
            chunks.maps_mut().insert(piece);
        }
        assert_eq!(unmapped(&chunks), [vec![], vec![], vec![]]);
        chunks.set_place(ChunkNo(2), resident());
        let in_vain = [1, 2].map(|chunk| chunks.mapped_in_vain(ChunkNo(chunk)));
        assert_eq!(in_vain, [vec![], vec![all]]);
    }

    #[test]
    fn old_copy_is_kept_until_it_is_taken_or_becomes_the_truth() {
        let mut chunks = chunks();
        chunks.set_place(ChunkNo(1), ChunkPlace::Resident((0..16).map(FrameNo).collect()));
        chunks.keep_stale(ChunkNo(1));
        assert_eq!(chunks.image_bytes(), 2 << 20);
        chunks.set_place(ChunkNo(1), ChunkPlace::Spilled);
        assert_eq!((chunks.image_bytes(), chunks.take_stale()), (2 << 20, None));
        chunks.check();
    }

    #[test]
    fn chunk_that_is_kept_out_is_one_of_the_vms() {
        let mut chunks = chunks();
        chunks.keep_out(ChunkNo(4));
        chunks.sound().unwrap();
        chunks.kept_out.insert(ChunkNo(5));
        assert!(chunks.sound().is_err());
    }

    proptest! {
        #[test]
        fn sums_hold_under_random_histories(steps in proptest::collection::vec((0u32..5, 0u8..14, any::<bool>()), 0..200)) {
            let mut chunks = chunks();
            for (chunk, step, is_so) in steps {
                let chunk = ChunkNo(chunk);
                let frames = || (0..chunks.frames_of(chunk)).map(FrameNo).collect();
                match step {
                    0 => drop(chunks.set_place(chunk, ChunkPlace::Unbacked)),
                    1 | 2 => drop(chunks.set_place(chunk, ChunkPlace::Resident(frames()))),
                    3 | 4 => drop(chunks.set_place(chunk, ChunkPlace::Spilled)),
                    // In both places is what nothing can write.
                    5 if chunks.reach(chunk) != Reach::Writable && !chunks.is_stale(chunk) => {
                        drop(chunks.set_place(chunk, ChunkPlace::Both(frames())));
                    }
                    6 => chunks.set_moving(chunk, is_so),
                    8 => chunks.expect([chunk]),
                    9 => chunks.end_expecting(),
                    10 if is_so => chunks.keep_out(chunk),
                    10 => chunks.end_keeping_out(),
                    _ => {
                        let frame = chunks.guest_frames(chunk).next().unwrap();
                        let (is_store, began) = (step % 2 == 0, is_so);
                        chunks.change_reach(ReachChange { frame, is_store, began });
                    }
                }
                chunks.check();
            }
        }
    }
}
