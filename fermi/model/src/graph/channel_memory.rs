//! The address space of the channel whose grid runs, as its warps reach it.
//!
//! A piece of a grid runs without anything else happening on the card, so that a page once translated stays right until
//! the piece ends: translations are kept for that long, many more than the TLB has. System memory is asked for at every
//! access all the same, as it may be taken away by another thread.

use crate::{
    capabilities::Capabilities,
    compute::{self, Kind, LANES, Lanes, Outside, Places, Reach, SEGMENT_BYTES, View, lanes_of},
    l2::{L2, Touch},
    memory::{Memory, Place},
    mmu::{Access, AddressSpace, Mmu, Refusal},
    replay::{self, FaultBuffer},
    timing::Traffic,
};
use fermi_spec::{
    addr::{Aperture, GpuVa, SMALL_PAGE},
    fault::client,
};

/// Pages of which the translation is kept, for loads and for stores each.
const PAGES: usize = 2048;

/// A page that was translated.
#[derive(Clone, Copy, Default)]
struct Page {
    /// The piece that it is from; 0: none.
    piece: u64,
    number: u64,
    first: Place,
}

/// Bytes of a row of lanes, each of which moves 16.
const ROW_BYTES: usize = LANES * 16;

/// Places of [`Pages::words`].
const WORDS: usize = 1024;

/// A word that atomic operations reached.
#[derive(Clone, Copy, Default)]
struct Word {
    /// The piece that it is from; 0: none.
    piece: u64,
    place: Place,
    operations: u64,
}

/// What is kept of the pieces so far: that of the piece that runs is good.
pub(crate) struct Pages {
    piece: u64,
    /// Translations, for loads and for stores.
    pages: [Box<[Page]>; 2],
    /// Words and their atomic operations. One that drives another out of its place takes no count over, so a count is
    /// too small at most; words that many lanes want are wanted again at once.
    words: Box<[Word]>,
    /// Where the accesses of an instruction are that is played. It is here for its memory.
    places: Vec<Place>,
}

impl Pages {
    pub(crate) fn new() -> Self {
        let none = || vec![Page::default(); PAGES].into_boxed_slice();
        Self {
            piece: 0,
            pages: [none(), none()],
            words: vec![Word::default(); WORDS].into_boxed_slice(),
            places: Vec::new(),
        }
    }

    /// Counts an atomic operation on the word at `place`: how many there were in this piece, with this one.
    fn meet(&mut self, place: Place) -> u64 {
        let word = &mut self.words[(place.at.0 / 4) as usize % WORDS];
        if (word.piece, word.place) != (self.piece, place) {
            *word = Word {
                piece: self.piece,
                place,
                operations: 0,
            };
        }
        word.operations += 1;
        word.operations
    }
}

/// Bytes that the accesses of a piece moved.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    /// Bytes between L2 and the memories.
    pub(crate) traffic: Traffic,
    /// Bytes between the SMs and L2.
    pub(crate) l2_bytes: u64,
    /// Number of segments stored.
    pub(crate) stores: u64,
    /// Atomic operations on the word that had the most.
    pub(crate) same_word: u64,
}

/// A card with a capability looks at what instructions are about to reach.
pub(super) struct LooksAhead<'a> {
    counts: bool,
    /// Where faults go that can be replayed, and the time that they have.
    faults: Option<(&'a mut FaultBuffer, u64)>,
}

impl<'a> LooksAhead<'a> {
    /// `None` for a card without any. The faults of this piece are of the time `now`.
    pub(super) fn of(capabilities: &Capabilities, faults: &'a mut FaultBuffer, now: u64) -> Option<Self> {
        (*capabilities != Capabilities::NONE).then(|| Self {
            counts: capabilities.access_counters,
            faults: faults.is_on().then_some((faults, now)),
        })
    }
}

/// Gives a piece of a grid access to its address space.
pub(super) struct ChannelMemory<'a> {
    mmu: &'a mut Mmu,
    mem: &'a mut Memory,
    l2: &'a mut L2,
    pages: &'a mut Pages,
    space: AddressSpace,
    /// The segment of the access before, and whether that was a store.
    last: Option<(Place, bool)>,
    pub(super) moved: Moved,
    pub(super) ahead: Option<LooksAhead<'a>>,
}

impl<'a> ChannelMemory<'a> {
    /// For a piece of a grid in `space`.
    pub(super) fn new(
        mmu: &'a mut Mmu,
        mem: &'a mut Memory,
        l2: &'a mut L2,
        pages: &'a mut Pages,
        space: AddressSpace,
    ) -> Self {
        pages.piece += 1;
        Self {
            mmu,
            mem,
            l2,
            pages,
            space,
            last: None,
            moved: Moved::default(),
            ahead: None,
        }
    }

    /// Where the byte at `va` is.
    #[inline]
    fn place(&mut self, va: u64, is_store: bool) -> Result<Place, Refusal> {
        let (number, inside) = (va / SMALL_PAGE, va % SMALL_PAGE);
        let page = &mut self.pages.pages[usize::from(is_store)][number as usize % PAGES];
        if page.number == number && page.piece == self.pages.piece {
            return Ok(page.first.offset(inside));
        }
        let access = if is_store { Access::WRITE } else { Access::READ };
        let (place, _) = self.mmu.translate(self.mem, &self.space, access, GpuVa(va), 1)?;
        *page = Page {
            piece: self.pages.piece,
            number,
            first: place.before(inside),
        };
        Ok(place)
    }

    /// Counts what an access to the segment at `place` moves. Lanes that go one by one share a segment: again it costs
    /// nothing.
    #[inline]
    fn charge(&mut self, place: Place, is_store: bool) {
        let segment = place.before(place.at.0 % SEGMENT_BYTES);
        if self.last.replace((segment, is_store)) == Some((segment, is_store)) {
            return;
        }
        let moved = &mut self.moved;
        moved.l2_bytes += SEGMENT_BYTES;
        moved.stores += u64::from(is_store);
        if self.l2.touch(place, is_store) == Touch::Hit {
            return;
        }
        match (place.aperture, is_store) {
            (Aperture::Vram, _) => moved.traffic.vram += SEGMENT_BYTES,
            (_, false) => moved.traffic.downstream += SEGMENT_BYTES,
            (_, true) => moved.traffic.upstream += SEGMENT_BYTES,
        }
    }

    /// Calls `each` with the place and the range of `bytes` bytes at `va`, page by page.
    #[inline]
    fn by_pages(
        &mut self,
        va: u64,
        bytes: usize,
        is_store: bool,
        mut each: impl FnMut(&mut Memory, Place, std::ops::Range<usize>),
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < bytes {
            let at = va + done as u64;
            let part = (bytes - done).min((SMALL_PAGE - at % SMALL_PAGE) as usize);
            let place = self.place(at, is_store)?;
            self.charge_row(place, part, is_store);
            each(self.mem, place, done..done + part);
            done += part;
        }
        Ok(())
    }

    /// The buffer that a refusal goes to, with the time; `None` if it cannot be replayed.
    fn faults_for(&mut self, refusal: Refusal) -> Option<(&mut FaultBuffer, u64)> {
        let (faults, now) = self.ahead.as_mut()?.faults.as_mut()?;
        replay::is_replayable(refusal).then_some((&mut **faults, *now))
    }

    /// Counts the pages that an instruction reaches.
    fn count(&mut self, reach: &Reach) {
        let Some(counts) = &mut self.mmu.counts else {
            return;
        };
        for page in &reach.pages {
            let kinds = [page.is_load, page.is_store];
            if !counts.count(self.space.directory, page.va, kinds) {
                self.mem.counters.uncounted_accesses += 1;
            }
        }
    }

    /// Whether accesses can be made: `places` has their pages then, one behind the other.
    fn find(&mut self, accesses: &[compute::Access], data: &[u8], places: &mut Vec<Place>) -> bool {
        let mut done = 0;
        for access in accesses {
            let (bytes, is_store) = (access.bytes as usize, access.kind.is_store());
            let own = data.get(done..done + bytes).unwrap_or_default();
            done += bytes;
            for (at, range) in compute::page_parts(access.va, bytes.max(1)) {
                let Ok(place) = self.place(at, is_store) else {
                    return false;
                };
                let is_load = matches!(access.kind, Kind::Load | Kind::RowLoad);
                if is_load && !self.mem.has(place, &own[range]) {
                    return false;
                }
                places.push(place);
            }
        }
        true
    }

    /// Charges accesses and stores their bytes, at places that were found.
    fn redo_at(&mut self, accesses: &[compute::Access], data: &[u8], places: &[Place]) {
        let (mut done, mut places) = (0, places.iter());
        for access in accesses {
            let (bytes, is_store) = (access.bytes as usize, access.kind.is_store());
            let own = data.get(done..done + bytes).unwrap_or_default();
            done += bytes;
            for (at, range) in compute::page_parts(access.va, bytes.max(1)) {
                let Some(place) = places.next().copied() else {
                    return;
                };
                debug_assert_eq!(place.at.0 % SMALL_PAGE, at % SMALL_PAGE);
                match access.kind {
                    Kind::TouchLoad | Kind::TouchStore => self.charge(place, is_store),
                    Kind::RowLoad | Kind::RowStore => self.charge_row(place, range.len(), is_store),
                    Kind::Load | Kind::Store => {}
                }
                match access.kind {
                    Kind::Store => self.mem.store_row(place, &own[range]),
                    Kind::RowStore => self.mem.write(place, &own[range]),
                    _ => {}
                }
            }
        }
    }

    /// Charges the segments of bytes that lie side by side in a page.
    #[inline]
    fn charge_row(&mut self, place: Place, bytes: usize, is_store: bool) {
        let end = place.at.0 + bytes as u64;
        let mut segment = place.at.0 / SEGMENT_BYTES * SEGMENT_BYTES;
        while segment < end {
            let offset = segment.saturating_sub(place.at.0);
            self.charge(place.offset(offset), is_store);
            segment += SEGMENT_BYTES;
        }
    }

    /// Charges the segments of scattered lanes.
    fn charge_all(&mut self, places: Places<'_>, is_store: bool) -> Result<(), Refusal> {
        let mut lanes = 0u32;
        places.for_each_segment(|lane| lanes |= 1 << lane);
        for lane in lanes_of(lanes) {
            let place = self.place(places.addresses[lane], is_store)?;
            self.charge(place, is_store);
        }
        Ok(())
    }
}

impl Outside for ChannelMemory<'_> {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        self.mmu
            .read(self.mem, &self.space, Access::READ, GpuVa(va), bytes)
    }

    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        let bytes = data.len();
        self.by_pages(va, bytes, false, |mem, place, range| {
            mem.read(place, &mut data[range]);
        })
    }

    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal> {
        self.by_pages(va, data.len(), true, |mem, place, range| {
            mem.write(place, &data[range]);
        })
    }

    fn gather(&mut self, places: Places<'_>, words: &mut [Lanes]) -> Result<(), Refusal> {
        let bytes = places.bytes as usize;
        let mut data = [0; ROW_BYTES];
        let (mut single, mut singles) = ([(0, Place::default()); LANES], 0);
        let mut left = places.lanes;
        while let Some((first, count)) = places.row(left, SMALL_PAGE) {
            left &= !(u32::MAX >> (LANES - count) << first);
            let place = self.place(places.addresses[first], false)?;
            if count == 1 {
                single[singles] = (first, place);
                singles += 1;
                continue;
            }
            let row = &mut data[..count * bytes];
            self.mem.read(place, row);
            places.load_row(first, row, words);
        }
        self.mem
            .load_each(&single[..singles], places.bytes, |lane, value| {
                for (number, word) in words.iter_mut().enumerate() {
                    word[lane] = (value >> (32 * number)) as u32;
                }
            });
        self.charge_all(places, false)
    }

    fn scatter(&mut self, places: Places<'_>, words: &[Lanes]) -> Result<(), Refusal> {
        let bytes = places.bytes as usize;
        let mut data = [0; ROW_BYTES];
        let mut left = places.lanes;
        while let Some((first, count)) = places.row(left, SMALL_PAGE) {
            left &= !(u32::MAX >> (LANES - count) << first);
            let place = self.place(places.addresses[first], true)?;
            if count == 1 {
                let low_last = words.iter().rev();
                let value = low_last.fold(0, |value, word| value << 32 | u128::from(word[first]));
                self.mem.store(place, places.bytes, value);
                continue;
            }
            let row = &mut data[..count * bytes];
            places.store_row(first, words, row);
            self.mem.write(place, row);
        }
        self.charge_all(places, true)
    }

    fn view(&mut self) -> Option<View> {
        Some(View {
            memory: self.mem.view(),
            space: self.space,
            large_pages: self.mmu.large_pages(),
        })
    }

    fn redo(&mut self, accesses: &[compute::Access], data: &[u8]) -> bool {
        let mut known = std::mem::take(&mut self.pages.places);
        known.clear();
        let is_allowed = self.find(accesses, data, &mut known);
        if is_allowed {
            self.redo_at(accesses, data, &known);
        }
        self.pages.places = known;
        is_allowed
    }

    fn looks_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    fn lets_through(&mut self, reach: &Reach) -> bool {
        let (mut is_missing, mut is_refused) = (false, false);
        for page in &reach.pages {
            let load = page.is_load.then(|| self.place(page.va, false));
            let store = page.is_store.then(|| self.place(page.va, true));
            let refusals = [load, store].into_iter().flatten().filter_map(Result::err);
            for refusal in refusals.take(1) {
                is_refused = true;
                if let Some((faults, now)) = self.faults_for(refusal) {
                    faults.add(page.va, page.is_store, replay::client_of(reach), now);
                    is_missing = true;
                }
            }
        }
        if is_missing {
            return false;
        }
        // What is refused for good is not counted; the access itself finds that out.
        if !is_refused && self.ahead.as_ref().is_some_and(|ahead| ahead.counts) {
            self.count(reach);
        }
        true
    }

    fn waits_for_code(&mut self, refusal: Refusal) -> bool {
        let waits = self.faults_for(refusal);
        let is_so = waits.is_some();
        if let Some((faults, now)) = waits {
            faults.add(refusal.va.0, false, client::GPC_L1, now);
        }
        is_so
    }

    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal> {
        // The right to store comes first: nothing is read that could not be replaced.
        let target = self.place(va, true)?;
        let place = self.place(va, false)?;
        let old = self.mem.load(place, bytes) as u64;
        self.mem.store(target, bytes, change(old).into());
        self.charge(target, true);
        self.moved.same_word = self.moved.same_word.max(self.pages.meet(target));
        Ok(old)
    }
}
