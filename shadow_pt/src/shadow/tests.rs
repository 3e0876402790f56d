//! The shadow against a slow model: a guest with real memory that edits its tables at random, placements that move, and
//! walkers that share no code with the crate.

use super::*;
use crate::dirty::{AllDirty, DirtySet};
use crate::placement::{FramePlacement, Placement};
use crate::walk::{Walk, walk};
use fermi_spec::addr::{Aperture, Gpa, GpuVa, GuestVramAddr, Iova};
use fermi_spec::pte::{Pte, uncompressed_kind};
use proptest::prelude::*;

/// Guest VRAM and RAM in bytes, both small enough to be compared whole.
const VRAM: u64 = 4 << 20;
const RAM: u64 = 1 << 20;
const FRAMES: u32 = (VRAM / FRAME) as u32;
/// Where the guest keeps its directory, and where the shadow tables are in the card.
const DIRECTORY: u64 = 0x1_0000;
const TABLES_AT: u64 = 0x4000_0000;
const TABLES: u64 = 4 << 20;
/// Work within which a whole sync of these tables ends.
const LIMIT_MAX: u64 = 1 << 40;
/// Directory entries that the guest uses.
const PDES: [u64; 5] = [0, 1, 100, 8190, 8191];
/// Tables that its directory entries point to, as low PDE words without SIZE. The last one overlaps large tables.
const LARGE_TABLES: [u64; 4] = [0, 0x0801, 0x0821, 0x0802];
const SMALL_TABLES: [u64; 5] = [0, 0x1001, 0x1401, 0x0403, 0x0801];

struct Guest {
    vram: Vec<u64>,
    ram: Vec<u64>,
    dirty: DirtySet,
    /// Pages that can be read without fetching, and how the others are chosen.
    fetched: BTreeSet<TableAt>,
    salt: u64,
}

impl Guest {
    fn word(&self, at: TableAt) -> Option<u64> {
        match at {
            TableAt::Vram(at) => self.vram.get((at.0 / 8) as usize).copied(),
            TableAt::Ram(at) => self.ram.get((at.0 / 8) as usize).copied(),
        }
    }

    fn store(&mut self, at: TableAt, value: u64) {
        let word = match at {
            TableAt::Vram(at) => self.vram.get_mut((at.0 / 8) as usize),
            TableAt::Ram(at) => self.ram.get_mut((at.0 / 8) as usize),
        };
        if let Some(word) = word {
            *word = value;
            self.dirty.mark(at, 8);
        }
    }

    fn is_missing(&self, page: TableAt) -> bool {
        let number = match page {
            TableAt::Vram(at) => at.0 / SMALL_PAGE,
            TableAt::Ram(at) => at.0 / SMALL_PAGE + 77,
        };
        (number ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 == 0 && !self.fetched.contains(&page)
    }
}

impl TableStore for Guest {
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        assert_eq!(
            at.page(),
            at.offset(data.len() as u64 - 1).page(),
            "read across a page end"
        );
        if self.word(at).is_none() {
            return TableRead::Outside;
        }
        if self.is_missing(at.page()) {
            data.fill(0xff);
            return TableRead::Missing;
        }
        for (index, bytes) in data.chunks_mut(8).enumerate() {
            let word = self
                .word(at.offset(index as u64 * 8))
                .expect("inside, as its page is");
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        TableRead::Done
    }
}

/// Placements of each page, by page number. A host page is used once in a test's life, so a stale entry shows.
struct Host {
    vram: Vec<Placement>,
    ram: Vec<Placement>,
    next: u64,
}

impl Host {
    fn place(&mut self, frame: u32, how: u8) {
        let base = self.next;
        self.next += FRAME;
        for page in 0..32u64 {
            let at = base + page * SMALL_PAGE;
            self.vram[frame as usize * 32 + page as usize] = match (how, page % 3) {
                (0, _) => Placement::Vram(VramAddr(at)),
                (1, _) => Placement::Sysram(Iova(at)),
                (2, 0) => Placement::Unbacked,
                (2, 1) => Placement::Sysram(Iova(at)),
                (2, _) => Placement::Vram(VramAddr(at)),
                (3, _) => Placement::Unbacked,
                _ => Placement::Outside,
            };
        }
    }

    fn map_ram(&mut self, first: usize, pages: usize, mapped: bool) {
        for page in self.ram.iter_mut().skip(first).take(pages) {
            *page = if mapped {
                Placement::Sysram(Iova(self.next))
            } else {
                Placement::Outside
            };
            self.next += SMALL_PAGE;
        }
        self.next = self.next.next_multiple_of(FRAME);
    }
}

impl Placements for Host {
    fn vram(&self, at: GuestVramAddr) -> Placement {
        assert!(at.is_aligned(SMALL_PAGE));
        self.vram[(at.0 / SMALL_PAGE) as usize]
    }

    fn ram(&self, at: Gpa) -> Placement {
        let page = self.ram.get((at.0 / SMALL_PAGE) as usize);
        page.copied().unwrap_or(Placement::Outside)
    }

    fn frame(&self, at: GuestVramAddr) -> FramePlacement {
        let first = self.vram(at);
        let follows = |page: u64| match first {
            Placement::Vram(at) => Placement::Vram(at.offset(page * SMALL_PAGE)),
            Placement::Sysram(at) => Placement::Sysram(at.offset(page * SMALL_PAGE)),
            place => place,
        };
        if (0..32).all(|page| self.vram(at.offset(page * SMALL_PAGE)) == follows(page)) {
            FramePlacement::Uniform(first)
        } else {
            FramePlacement::Mixed
        }
    }
}

/// VRAM for shadow tables: an image, full of entries that point nowhere good until it is written.
#[derive(Clone)]
struct Card {
    words: Vec<u64>,
    writes: u64,
    /// Writes that are held back while there is a list.
    held: Option<Vec<(VramAddr, Vec<u64>)>>,
}

impl Card {
    fn word(&self, at: u64) -> u64 {
        self.words[((at - TABLES_AT) / 8) as usize]
    }
}

impl ShadowWriter for Card {
    fn write(&mut self, at: VramAddr, entries: &[u64]) {
        if let Some(held) = &mut self.held {
            held.push((at, entries.to_vec()));
            return;
        }
        let first = ((at.0 - TABLES_AT) / 8) as usize;
        self.words[first..first + entries.len()].copy_from_slice(entries);
        self.writes += 1;
    }
}

#[derive(Default)]
struct Tables {
    free: Vec<(u64, u64)>,
    used: u64,
    refuses: bool,
}

impl TablePages for Tables {
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr> {
        if self.refuses {
            return None;
        }
        if let Some(at) = self.free.iter().position(|range| range.1 == bytes) {
            return Some(VramAddr(self.free.swap_remove(at).0));
        }
        self.used += bytes;
        assert!(self.used <= TABLES, "tables leak");
        Some(VramAddr(TABLES_AT + self.used - bytes))
    }

    fn free(&mut self, at: VramAddr, bytes: u64) {
        self.free.push((at.0, bytes));
    }
}

/// End of a walk: in system memory or not, address, attribute bits.
type Target = Option<(bool, u64, u64)>;

struct World {
    guest: Guest,
    host: Host,
    card: Card,
    tables: Tables,
    space: ShadowSpace,
    /// What a step of a sync may take, and by how much one took more.
    work: Work,
    excess: u64,
}

impl World {
    fn new(tables_max: usize) -> Self {
        let at = TableAt::Vram(GuestVramAddr(DIRECTORY));
        let guest = Guest {
            vram: vec![0; (VRAM / 8) as usize],
            ram: vec![0; (RAM / 8) as usize],
            dirty: DirtySet::default(),
            fetched: BTreeSet::new(),
            salt: 0,
        };
        let mut host = Host {
            vram: vec![Placement::Unbacked; (VRAM / SMALL_PAGE) as usize],
            ram: vec![Placement::Outside; (RAM / SMALL_PAGE) as usize],
            next: 0x1_0000_0000,
        };
        (0..FRAMES).for_each(|frame| host.place(frame, (frame % 5) as u8));
        host.map_ram(0, 128, true);
        let mut card = Card {
            words: vec![0xdead_beef; (TABLES / 8) as usize],
            writes: 0,
            held: None,
        };
        let mut tables = Tables::default();
        let space = ShadowSpace::new(
            GuestDirectory {
                at,
                limit: (1 << 40) - 1,
            },
            ShadowConfig {
                guest_vram_bytes: VRAM,
                tables_max,
            },
            &mut tables,
            &mut card,
        )
        .expect("room for a directory");
        Self {
            guest,
            host,
            card,
            tables,
            space,
            work: Work::limited(LIMIT_MAX),
            excess: 0,
        }
    }

    /// As a caller does on a guest's flush. Returns what the refresh counted and the build did.
    fn sync(&mut self) -> (Changes, Built) {
        self.guest.fetched.clear();
        self.guest.salt += 1;
        let changes = loop {
            let dirty = self.guest.dirty.clone();
            let mut work = self.work;
            let refresh = self.space.refresh(&mut self.guest, &dirty, usize::MAX, &mut work);
            self.end_step(work);
            match refresh {
                Refresh::Done(changes) => break changes,
                Refresh::Unfinished => assert!(work.done() > 0, "a step without work"),
                Refresh::Missing(pages) => {
                    let is_new = |page: &TableAt| !self.guest.fetched.contains(page);
                    assert!(pages.iter().any(is_new), "fetching makes no progress");
                    self.guest.fetched.extend(pages);
                }
            }
        };
        self.guest.dirty.clear();
        let pending = self.pending();
        let built = self.build();
        for (frame, reach) in pending {
            let built = self.space.reaches(frame);
            assert!(
                self.tables.refuses || built.is_some_and(|built| built.writable >= reach.writable),
                "{frame:?} {reach:?} was announced, {built:?} was built"
            );
        }
        self.flush(&built);
        (changes, built)
    }

    /// A step took that much. The next one may find the space written and read.
    fn end_step(&mut self, work: Work) {
        self.excess = self.excess.max(work.excess());
        if work.excess() > 0 && self.guest.salt.is_multiple_of(8) {
            self.rewrite();
        }
    }

    /// All frames that the next build asks placements for.
    fn pending(&mut self) -> Vec<(GuestFrame, Reach)> {
        let mut frames = Vec::new();
        loop {
            let mut work = self.work;
            let pending = self.space.pending_frames(&mut work);
            frames.extend(pending.frames);
            self.end_step(work);
            if pending.is_complete {
                return frames;
            }
        }
    }

    /// A build in as many steps as it takes.
    fn build(&mut self) -> Built {
        let mut sum = Built::default();
        loop {
            let mut work = self.work;
            let built = self
                .space
                .build(&self.host, &mut self.tables, &mut self.card, &mut work);
            self.end_step(work);
            sum.slots += built.slots;
            sum.entries += built.entries;
            sum.refused += built.refused;
            sum.freed.extend(built.freed);
            if built.is_complete {
                return sum;
            }
        }
    }

    /// The flush after which freed tables may be reused, and hence contain anything.
    fn flush(&mut self, built: &Built) {
        for range in &built.freed {
            self.card
                .write(range.at, &vec![0xdead_beef; (range.bytes / 8) as usize]);
            self.tables.free(range.at, range.bytes);
        }
    }

    /// Returns how many slots lacked a table.
    fn move_frame(&mut self, frame: u32, how: u8) -> u64 {
        self.host.place(frame, how);
        self.redirect(&[GuestFrame(frame)])
    }

    /// Makes tables ready in as many steps as it takes.
    fn reserve(&mut self, frame: u32) -> Reserved {
        loop {
            let mut work = Work::limited(1);
            let (host, tables, card) = (&self.host, &mut self.tables, &mut self.card);
            let found = self
                .space
                .reserve(&[GuestFrame(frame)], host, tables, card, &mut work);
            assert!(work.excess() <= Work::EXCESS_MAX, "{work:?}");
            if found != Reserved::Some {
                return found;
            }
        }
    }

    /// Redirects frames in as many steps as it takes. Returns how many slots lacked a table.
    fn redirect(&mut self, frames: &[GuestFrame]) -> u64 {
        let mut at = RedirectAt::default();
        let (mut refused, mut freed) = (0, Vec::new());
        loop {
            let mut work = Work::limited(1);
            let (host, tables, card) = (&self.host, &mut self.tables, &mut self.card);
            let mut built = self
                .space
                .redirect(frames, &mut at, host, tables, card, &mut work);
            assert!(work.excess() <= Work::EXCESS_MAX, "{work:?}");
            refused += built.refused;
            freed.append(&mut built.freed);
            if built.is_complete {
                let freed = Built {
                    freed,
                    ..Built::default()
                };
                self.flush(&freed);
                return refused;
            }
        }
    }

    fn map_ram(&mut self, first: usize, pages: usize, mapped: bool) {
        self.host.map_ram(first, pages, mapped);
        let (from, bytes) = (Gpa(first as u64 * SMALL_PAGE), pages as u64 * SMALL_PAGE);
        let mut at = RedirectAt::default();
        let mut freed = Vec::new();
        loop {
            let mut work = Work::limited(1);
            let (host, tables, card) = (&self.host, &mut self.tables, &mut self.card);
            let mut built = self
                .space
                .redirect_ram((from, bytes), &mut at, host, tables, card, &mut work);
            freed.append(&mut built.freed);
            if built.is_complete {
                break;
            }
        }
        let freed = Built {
            freed,
            ..Built::default()
        };
        self.flush(&freed);
    }

    fn guest_entry(&self, code: u64, address: u64, index: u64) -> u64 {
        let at = match code {
            0 => return 0,
            1 => TableAt::Vram(GuestVramAddr(address + index * 8)),
            _ => TableAt::Ram(Gpa(address + index * 8)),
        };
        self.guest.word(at).unwrap_or(0)
    }

    /// The guest's entry that decides an address, and the page's number in it.
    fn guest_walk(&self, va: u64) -> Option<(u64, u64)> {
        let pde = self.guest.vram[((DIRECTORY + (va >> 27) * 8) / 8) as usize];
        let (large, small) = (va >> 17 & 0x3ff, va >> 12 & 0x7fff);
        let size = pde >> 2 & 3;
        if large < 1024 >> size {
            let entry = self.guest_entry(pde & 3, pde << 8 & 0xff_ffff_f000, large);
            if entry & 1 == 1 {
                return (entry >> 4 & 31 == 0).then_some((entry, small & 31));
            }
        }
        if small < 32768 >> size {
            let entry = self.guest_entry(pde >> 32 & 3, pde >> 24 & 0xff_ffff_f000, small);
            if entry & 1 == 1 {
                return Some((entry, 0));
            }
        }
        None
    }

    /// The shadow entry that a guest's entry should become.
    fn expected(&self, va: u64) -> Target {
        // The last entry is the host's.
        if va >> 27 == 8191 {
            return None;
        }
        let (entry, page) = self.guest_walk(va)?;
        let kind = u64::from(uncompressed_kind((entry >> 36) as u8)?);
        let page = (entry >> 4 & 0xfff_ffff) + page;
        let place = match entry >> 33 & 3 {
            0 => self.host.vram.get(page as usize).copied()?,
            1 => return None,
            _ => self.host.ram(Gpa(page << 12)),
        };
        let bits = entry & 7 | kind << 36;
        match place {
            Placement::Vram(at) => Some((false, at.0, bits | entry & 1 << 32)),
            Placement::Sysram(at) => Some((true, at.0, bits | 1 << 32)),
            Placement::Unbacked | Placement::Outside => None,
        }
    }

    /// The result of the card's walk.
    fn found(&self, va: u64) -> Target {
        let pde = self.card.word(self.space.directory().0 + (va >> 27) * 8);
        assert_eq!(pde & 0xc, 0, "shadow tables are whole");
        let within = va & 0x1_f000;
        let mut entry = 0;
        if pde & 3 != 0 {
            assert_eq!(pde & 3, 1);
            entry = self
                .card
                .word((pde << 8 & 0xff_ffff_f000) + (va >> 17 & 0x3ff) * 8);
        }
        let within = if entry & 1 == 1 { within } else { 0 };
        if entry & 1 == 0 && pde >> 32 & 3 != 0 {
            entry = self
                .card
                .word((pde >> 24 & 0xff_ffff_f000) + (va >> 12 & 0x7fff) * 8);
        }
        let attributes = entry & (0xff << 36 | 1 << 32 | 7);
        assert_eq!(
            entry & !(0xfff_ffff << 4 | 3 << 33 | attributes),
            0,
            "bits that no policy kept"
        );
        let is_sysram = entry >> 33 & 3 == 2;
        assert!(is_sysram || entry >> 33 & 3 == 0);
        (entry & 1 == 1).then_some((
            is_sysram,
            (entry >> 4 & 0xfff_ffff) * SMALL_PAGE + within,
            attributes,
        ))
    }

    fn vas() -> impl Iterator<Item = u64> {
        PDES.into_iter()
            .flat_map(|pde| (0..32768).map(move |page| pde << 27 | page << 12))
    }

    /// Every entry leads to what the guest's leads to; if tables were refused, or nowhere.
    fn check_equal(&self, incomplete: bool) {
        for va in Self::vas() {
            let (expected, found) = (self.expected(va), self.found(va));
            assert!(
                found == expected || incomplete && found.is_none(),
                "{va:#x}: found {found:x?}, expected {expected:x?}"
            );
        }
    }

    /// No entry leads anywhere but to a present placement.
    fn check_confined(&self) {
        let places: BTreeSet<(bool, u64)> = self
            .host
            .vram
            .iter()
            .chain(&self.host.ram)
            .filter_map(|place| match place {
                Placement::Vram(at) => Some((false, at.0)),
                Placement::Sysram(at) => Some((true, at.0)),
                Placement::Unbacked | Placement::Outside => None,
            })
            .collect();
        for va in Self::vas() {
            if let Some((is_sysram, at, _)) = self.found(va) {
                assert!(places.contains(&(is_sysram, at)), "{va:#x} leads to {at:#x}");
            }
        }
    }

    /// The reverse index is what the guest's tables say, page by page.
    fn check_index(&self) {
        let mut expected: BTreeMap<GuestFrame, Reach> = BTreeMap::new();
        for va in Self::vas().filter(|va| va >> 27 != 8191) {
            let Some((entry, page)) = self.guest_walk(va) else {
                continue;
            };
            let frame = ((entry >> 4 & 0xfff_ffff) + page) / 32;
            let exists = uncompressed_kind((entry >> 36) as u8).is_some();
            if exists && entry >> 33 & 3 == 0 && frame < u64::from(FRAMES) {
                let reach = expected
                    .entry(GuestFrame(frame as u32))
                    .or_insert(Reach { writable: false });
                reach.writable |= entry & 4 == 0;
            }
        }
        let found: BTreeMap<GuestFrame, Reach> = self.space.referenced().collect();
        assert_eq!(found, expected);
    }

    /// The software walk ends where the slow one does.
    fn check_walks(&mut self) {
        self.guest.fetched.clear();
        for va in Self::vas().step_by(37) {
            let mut outcome = walk(self.space.guest_directory(), GpuVa(va), &mut self.guest);
            while let Walk::Missing(page) = outcome {
                assert!(self.guest.fetched.insert(page), "{page} was fetched before");
                outcome = walk(self.space.guest_directory(), GpuVa(va), &mut self.guest);
            }
            let expected = self
                .guest_walk(va)
                .filter(|&(entry, _)| {
                    uncompressed_kind((entry >> 36) as u8).is_some() && entry >> 33 & 3 != 1
                })
                .map(|(entry, page)| {
                    let at = ((entry >> 4 & 0xfff_ffff) + page) << 12;
                    let at = if entry >> 33 & 3 == 0 {
                        TableAt::Vram(GuestVramAddr(at))
                    } else {
                        TableAt::Ram(Gpa(at))
                    };
                    (at, entry & 4 != 0)
                });
            let found = match outcome {
                Walk::Page(page) => Some((page.target, page.read_only)),
                _ => None,
            };
            assert_eq!(found, expected, "{va:#x}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pde {
        index: usize,
        large: usize,
        small: usize,
        size: u64,
    },
    RawPde {
        index: usize,
        raw: u64,
    },
    Large {
        table: usize,
        index: u64,
        entry: u64,
    },
    Small {
        table: usize,
        slot: u64,
        first: u64,
        entries: Vec<u64>,
    },
    Sync,
    Move {
        frame: u32,
        how: u8,
    },
    MapRam {
        first: usize,
        pages: usize,
        mapped: bool,
    },
    Refuse(bool),
    /// The next sync reads and builds everything.
    BuildAnew,
    Reserve {
        frame: u32,
    },
    /// The space is written and read.
    Rewrite,
    /// Steps of a sync may take that much from now on.
    Limit(u64),
}

fn place_of(low_word: u64) -> Option<TableAt> {
    let address = low_word & 0xffff_fff0;
    match low_word & 3 {
        0 => None,
        1 => Some(TableAt::Vram(GuestVramAddr(address << 8))),
        _ => Some(TableAt::Ram(Gpa(address << 8))),
    }
}

fn entry(large: bool) -> impl Strategy<Value = u64> {
    let kind = prop::sample::select(vec![0u64, 0, 0, 0, 0xfe, 0xdb, 0xff, 0x06]);
    let aperture = prop::sample::select(vec![0u64, 0, 0, 0, 1, 2, 3]);
    let aligned = (
        kind,
        aperture,
        0..u64::from(FRAMES) + 2,
        0..32u64,
        0..8u64,
        any::<u32>(),
    )
        .prop_map(move |(kind, aperture, frame, page, flags, tag)| {
            let page = if large && tag % 8 != 0 { 0 } else { page };
            let address = if aperture > 1 {
                frame * 32 % 280 + page
            } else {
                frame * 32 + page
            };
            address << 4 | aperture << 33 | kind << 36 | flags | 1 | u64::from(tag & 0x1_ffff) << 44
        });
    prop_oneof![6 => aligned, 1 => Just(0), 1 => any::<u64>()]
}

fn step() -> impl Strategy<Value = Step> {
    let slot = prop::sample::select(vec![0u64, 1, 2, 3, 127, 511, 1023]);
    let pde = (
        0usize..5,
        0usize..4,
        0usize..5,
        prop::sample::select(vec![0u64, 0, 0, 3]),
    )
        .prop_map(|(index, large, small, size)| Step::Pde {
            index,
            large,
            small,
            size,
        });
    let small = (
        1usize..5,
        slot.clone(),
        0u64..32,
        prop::collection::vec(entry(false), 1..40),
    )
        .prop_map(|(table, slot, first, entries)| Step::Small {
            table,
            slot,
            first,
            entries,
        });
    prop_oneof![
        3 => pde,
        1 => (0usize..5, any::<u64>()).prop_map(|(index, raw)| Step::RawPde { index, raw }),
        4 => (1usize..4, slot, entry(true))
            .prop_map(|(table, index, entry)| Step::Large { table, index, entry }),
        4 => small,
        6 => Just(Step::Sync),
        4 => (0..FRAMES, 0u8..5).prop_map(|(frame, how)| Step::Move { frame, how }),
        1 => (0usize..256, 1usize..64, any::<bool>())
            .prop_map(|(first, pages, mapped)| Step::MapRam { first, pages, mapped }),
        1 => any::<bool>().prop_map(Step::Refuse),
        1 => (0..FRAMES).prop_map(|frame| Step::Reserve { frame }),
        2 => Just(Step::Rewrite),
        1 => Just(Step::BuildAnew),
        2 => prop::sample::select(vec![0, 1_000, 30_000, LIMIT_MAX]).prop_map(Step::Limit),
    ]
}

impl World {
    fn rewrite(&mut self) {
        let text = serde_json::to_string(&self.space).expect("numbers and names");
        self.space = serde_json::from_str(&text).expect("as written");
        assert_eq!(self.space.check(self.space.config), Ok(()));
    }

    fn store_pde(&mut self, index: usize, pde: u64) {
        self.guest
            .store(TableAt::Vram(GuestVramAddr(DIRECTORY + PDES[index] * 8)), pde);
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Pde {
                index,
                large,
                small,
                size,
            } => {
                self.store_pde(index, LARGE_TABLES[large] | size << 2 | SMALL_TABLES[small] << 32);
            }
            Step::RawPde { index, raw } => self.store_pde(index, raw),
            Step::Large { table, index, entry } => {
                let at = place_of(LARGE_TABLES[table]).expect("not the first");
                self.guest.store(at.offset(index * 8), entry);
            }
            Step::Small {
                table,
                slot,
                first,
                entries,
            } => {
                let at = place_of(SMALL_TABLES[table]).expect("not the first");
                for (index, entry) in (slot * 32 + first..32768).zip(entries) {
                    self.guest.store(at.offset(index * 8), entry);
                }
            }
            Step::Sync => {
                let (_, built) = self.sync();
                self.check_equal(built.refused != 0);
                if built.refused == 0 {
                    self.check_index();
                }
                self.check_walks();
            }
            Step::Move { frame, how } => {
                self.move_frame(frame, how);
            }
            Step::MapRam { first, pages, mapped } => self.map_ram(first, pages, mapped),
            Step::Rewrite => self.rewrite(),
            Step::BuildAnew => {
                self.guest.dirty.mark_all();
                self.space.build_anew();
            }
            Step::Limit(limit) => self.work = Work::limited(limit),
            Step::Refuse(refuses) => self.tables.refuses = refuses,
            Step::Reserve { frame } => {
                if self.reserve(frame) == Reserved::All {
                    let refuses = std::mem::replace(&mut self.tables.refuses, true);
                    assert_eq!(self.move_frame(frame, 1), 0, "despite the reserve");
                    self.tables.refuses = refuses;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn shadow_equals_the_slow_model(steps in prop::collection::vec(step(), 1..50)) {
        let mut world = World::new(8);
        for step in steps {
            world.perform(step);
            world.check_confined();
        }
        prop_assert!(world.excess <= Work::EXCESS_MAX, "a step of {} too much", world.excess);
        // Whatever was refused on the way is made up for by the next build.
        world.tables.refuses = false;
        let _ = world.sync();
        world.check_equal(false);
        world.check_index();
        let tables = world.space.directory();
        world.space.release(&mut world.tables);
        prop_assert!(world.tables.free.iter().any(|range| range.0 == tables.0));
        prop_assert_eq!(world.tables.free.iter().map(|range| range.1).sum::<u64>(), world.tables.used);
    }

    #[test]
    fn too_many_tables_are_absent_not_wrong(steps in prop::collection::vec(step(), 1..30)) {
        let mut world = World::new(1);
        for step in steps {
            // The model has no bound, so only confinement is compared.
            if let Step::Sync = step {
                let (changes, _) = world.sync();
                let has_table = |pde: &&u64| has_table(world.guest.vram[(DIRECTORY / 8 + **pde) as usize]);
                let (host, guests) = PDES.split_last().expect("five of them");
                let with_tables = guests.iter().filter(has_table).count() as u64;
                let hidden = u64::from(has_table(&host));
                prop_assert_eq!(changes.refused, with_tables.saturating_sub(1) + hidden);
                world.check_equal(true);
            } else if !matches!(step, Step::Reserve { .. }) {
                world.perform(step);
            }
            world.check_confined();
        }
    }
}

/// A number of the space as written, and the one that stands for it.
fn other_number() -> impl Strategy<Value = (prop::sample::Index, u64)> {
    let number = prop_oneof![
        0u64..40,
        Just(u64::from(u32::MAX)),
        Just(1 << 40),
        Just(u64::MAX - 0xfff)
    ];
    (any::<prop::sample::Index>(), number)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn space_with_another_number_is_refused_or_does_not_panic(
        steps in prop::collection::vec(step(), 1..20), (which, other) in other_number()
    ) {
        let mut world = World::new(8);
        steps.into_iter().for_each(|step| world.perform(step));
        let _ = world.sync();
        let text = serde_json::to_string(&world.space).expect("numbers and names");
        let mut numbers: Vec<_> = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
        numbers.retain(|&at| !text.as_bytes()[at - 1].is_ascii_digit());
        let at = numbers[which.index(numbers.len())];
        let end = text[at..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |length| at + length);
        let text = format!("{}{other}{}", &text[..at], &text[end..]);
        let read = serde_json::from_str::<ShadowSpace>(&text);
        // Whether tables lie in memory that the space was given is for its owner to check.
        let (first, end) = (TABLES_AT, TABLES_AT + world.tables.used);
        let is_within = |space: &ShadowSpace| {
            space.tables().all(|table| table.at.0 >= first && table.at.0 + table.bytes <= end)
        };
        let is_sound = |space: &ShadowSpace| space.check(world.space.config).is_ok() && is_within(space);
        if let Some(mut space) = read.ok().filter(is_sound) {
            let (host, tables, card) = (&world.host, &mut world.tables, &mut world.card);
            let (mut at, mut work) = (RedirectAt::default(), Work::unlimited());
            let frames: Vec<_> = (0..FRAMES).map(GuestFrame).collect();
            let _ = space.redirect(&frames, &mut at, host, tables, card, &mut work);
            let mut at = RedirectAt::default();
            let _ = space.redirect_ram((Gpa(0), RAM), &mut at, host, tables, card, &mut work);
            let _ = space.refresh(&mut world.guest, &AllDirty, usize::MAX, &mut Work::unlimited());
        }
    }
}

/// A guest with one large page at virtual address 0, which is its frame 5, in VRAM.
fn one_large_page() -> World {
    let mut world = World::new(8);
    world.move_frame(5, 0);
    world.store_pde(0, LARGE_TABLES[1]);
    world
        .guest
        .store(place_of(LARGE_TABLES[1]).expect("a table"), 5 << 9 | 1);
    let _ = world.sync();
    world
}

/// Whether an entry may lead to a page, counted from the start of frame 5.
fn may_name(world: &World, page: i64) -> bool {
    let first = GuestFrame(5).base().0 as i64;
    let at = GuestVramAddr((first + page * SMALL_PAGE as i64) as u64);
    world.space.may_name(at, &mut Work::unlimited())
}

#[test]
fn large_page_may_name_all_pages_of_its_frame_and_no_other() {
    let world = one_large_page();
    assert!((0..32).all(|page| may_name(&world, page)));
    assert!(!may_name(&world, 32));
    assert!(!may_name(&world, -32));
}

/// What the next build will take away may still be reached; afterwards the frame's other pages alone are.
#[test]
fn page_may_be_named_until_the_shadow_is_built_without_it() {
    let mut world = one_large_page();
    let large = place_of(LARGE_TABLES[1]).expect("a table");
    world.guest.store(large, 0);
    assert!(may_name(&world, 7), "not read yet");
    let _ = world.sync();
    assert!(!may_name(&world, 7));
    // Page 3 of the frame, and guest RAM of the number that page 7 has.
    let page = |number: u64| (5 * 32 + number) << 4 | 1;
    world.store_pde(0, SMALL_TABLES[1] << 32);
    let small = place_of(SMALL_TABLES[1]).expect("a table");
    world.guest.store(small, page(3));
    let ram = Pte::from_bits(page(7)).with_aperture(Aperture::SysCoherent);
    world.guest.store(small.offset(8), ram.into_bits());
    let _ = world.sync();
    assert!(may_name(&world, 3));
    assert!(!may_name(&world, 7));
}

/// Slots that reach the frame and not the page are looked at as far as the work goes.
#[test]
fn page_counts_as_named_where_telling_takes_too_long() {
    let mut world = one_large_page();
    world.guest.store(place_of(LARGE_TABLES[1]).expect("a table"), 0);
    world.store_pde(0, SMALL_TABLES[1] << 32);
    let small = place_of(SMALL_TABLES[1]).expect("a table");
    for slot in 0..128 {
        world.guest.store(small.offset(slot * 256), (5 * 32 + 3) << 4 | 1);
    }
    let _ = world.sync();
    let page = GuestFrame(5).base().offset(7 * SMALL_PAGE);
    let mut work = Work::unlimited();
    assert!(!world.space.may_name(page, &mut work));
    assert!(work.done() >= 128 * crate::work::SLOT_SEEN);
    let mut work = Work::limited(100 * crate::work::SLOT_SEEN);
    assert!(world.space.may_name(page, &mut work));
    assert!(work.excess() <= 2 * crate::work::SLOT_SEEN);
}

#[test]
fn large_page_in_vram_is_one_large_entry() {
    let world = one_large_page();
    let pde = world.card.word(world.space.directory().0);
    assert_eq!((pde & 3, pde >> 32), (1, 0));
    assert!(world.found(0x1_f000).is_some());
}

#[test]
fn spilled_large_page_is_small_entries_and_large_again_after_refill() {
    let mut world = one_large_page();
    assert_eq!(world.move_frame(5, 1), 0);
    assert!(matches!(world.found(0x3000), Some((true, _, _))));
    world.move_frame(5, 0);
    world.check_equal(false);
    let table = world.card.word(world.space.directory().0) << 8 & 0xff_ffff_f000;
    assert_eq!(world.card.word(table) & 1, 1);
}

#[test]
fn refused_table_leaves_the_slot_absent_until_the_next_build() {
    let mut world = one_large_page();
    world.store_pde(1, LARGE_TABLES[1]);
    world.tables.refuses = true;
    let (_, built) = world.sync();
    assert_eq!(built.refused, 1);
    assert_eq!(world.found(fermi_spec::addr::PDE_SPAN), None);
    world.tables.refuses = false;
    let _ = world.sync();
    world.check_equal(false);
}

#[test]
fn what_is_mapped_moves_to_system_memory_though_tables_are_refused() {
    let mut world = one_large_page();
    world.tables.refuses = true;
    assert_eq!(world.reserve(5), Reserved::All);
    assert_eq!(world.move_frame(5, 1), 0);
    assert!(matches!(world.found(0x3000), Some((true, _, _))));
}

#[test]
fn tables_are_made_ready_one_in_a_step_of_little_work() {
    let mut world = one_large_page();
    for index in 1..3 {
        world.store_pde(index, LARGE_TABLES[1]);
    }
    let _ = world.sync();
    let mut step = || {
        let mut work = Work::limited(1);
        let (space, before) = (&mut world.space, world.card.writes);
        let found = space.reserve(
            &[GuestFrame(5)],
            &world.host,
            &mut world.tables,
            &mut world.card,
            &mut work,
        );
        assert!(work.excess() <= Work::EXCESS_MAX);
        (found, world.card.writes - before)
    };
    let steps: Vec<_> = std::iter::repeat_with(&mut step).take(3).collect();
    // The pages of a table, and its place in the directory.
    let writes = fermi_spec::pte::SMALL_PT_BYTES / SMALL_PAGE + 1;
    let (last, others) = steps.split_last().expect("there are tables");
    assert!(
        others.iter().all(|of| *of == (Reserved::Some, writes)),
        "{steps:?}"
    );
    assert_eq!(*last, (Reserved::All, writes));
    assert_eq!(step(), (Reserved::All, 0), "once is enough");
}

#[test]
fn unchanged_tables_cause_no_write() {
    let mut world = one_large_page();
    let writes = world.card.writes;
    world.guest.salt = 0;
    world.guest.dirty.mark_all();
    let (changes, built) = world.sync();
    assert_eq!((changes.changed, built.slots, world.card.writes), (0, 0, writes));
    assert!(changes.compared >= 8192 + 1024);
}

#[test]
fn space_that_is_built_anew_gets_every_entry_once_more() {
    let mut world = one_large_page();
    let writes = world.card.writes;
    world.guest.salt = 0;
    world.guest.dirty.mark_all();
    world.space.build_anew();
    let (changes, built) = world.sync();
    assert_eq!((changes.changed, built.slots), (0, SLOTS as u64));
    assert!(world.card.writes > writes);
    world.check_equal(false);
    let (_, built) = world.sync();
    assert_eq!(built.slots, 0);
}

#[test]
fn clean_pages_are_not_read() {
    struct NoReads;
    impl TableStore for NoReads {
        fn read(&mut self, at: TableAt, _data: &mut [u8]) -> TableRead {
            panic!("read of {at}");
        }
    }
    let mut world = one_large_page();
    assert_eq!(
        world.space.refresh(
            &mut NoReads,
            &DirtySet::default(),
            usize::MAX,
            &mut Work::unlimited()
        ),
        Refresh::Done(Changes::default())
    );
}

/// A guest that maps all of a space by small pages, and how many steps of `limit` each of its syncs takes.
fn steps_of_a_full_space(limit: u64, tables: u64) -> (usize, u64) {
    let mut world = World::new(64);
    let table = place_of(SMALL_TABLES[1]).expect("a table");
    for page in 0..32768 {
        world.guest.store(table.offset(page * 8), (page % 64) << 4 | 1);
    }
    for pde in 0..tables {
        let at = TableAt::Vram(GuestVramAddr(DIRECTORY + pde * 8));
        world.guest.store(at, SMALL_TABLES[1] << 32);
    }
    world.guest.fetched = (0..VRAM / SMALL_PAGE)
        .map(|page| TableAt::Vram(GuestVramAddr(page * SMALL_PAGE)))
        .collect();
    let (mut steps, mut sum) = (0, 0);
    let mut count = |work: Work| {
        assert!(
            work.excess() <= Work::EXCESS_MAX,
            "a step of {} too much",
            work.excess()
        );
        steps += 1;
        sum += work.done();
    };
    let new = || Work::limited(limit);
    loop {
        let mut work = new();
        let refresh = world
            .space
            .refresh(&mut world.guest, &AllDirty, usize::MAX, &mut work);
        count(work);
        match refresh {
            Refresh::Unfinished => {}
            Refresh::Missing(pages) => panic!("{} pages are missing", pages.len()),
            Refresh::Done(_) => break,
        }
    }
    loop {
        let mut work = new();
        let pending = world.space.pending_frames(&mut work);
        count(work);
        if pending.is_complete {
            break;
        }
    }
    loop {
        let mut work = new();
        let built = world
            .space
            .build(&world.host, &mut world.tables, &mut world.card, &mut work);
        count(work);
        if built.is_complete {
            return (steps, sum);
        }
    }
}

#[test]
fn sync_takes_steps_by_its_tables_and_each_is_bounded() {
    let (few, short) = steps_of_a_full_space(100_000, 3);
    let (many, long) = steps_of_a_full_space(100_000, 12);
    assert!(many > 3 * few && few > 4, "{few} and {many} steps");
    assert!(
        long <= 4 * short,
        "work of {short} for 3 tables and {long} for 12"
    );
}

#[test]
fn tables_beyond_the_bound_are_refused_and_come_when_there_is_room() {
    let mut world = World::new(64);
    for pde in 0..4 {
        world.store_pde(pde, LARGE_TABLES[1]);
    }
    let mut refused_with = |tables_max: usize| {
        world.guest.fetched.clear();
        loop {
            let mut work = Work::unlimited();
            match world
                .space
                .refresh(&mut world.guest, &AllDirty, tables_max, &mut work)
            {
                Refresh::Done(changes) => return (changes.refused, world.space.table_count()),
                Refresh::Missing(pages) => world.guest.fetched.extend(pages),
                Refresh::Unfinished => {}
            }
        }
    };
    assert_eq!(refused_with(1), (3, 1));
    assert_eq!(refused_with(3), (1, 3));
    assert_eq!(refused_with(9), (0, 4));
}

#[test]
fn directory_entry_that_goes_gives_its_tables_back() {
    let mut world = one_large_page();
    world.store_pde(0, 0);
    let (_, built) = world.sync();
    // The large one, and the small one that was kept for a move.
    assert_eq!(built.freed.len(), 2);
    assert_eq!(world.space.reaches(GuestFrame(5)), None);
    assert_eq!(world.card.word(world.space.directory().0), 0);
}

#[test]
fn frame_that_was_unbacked_appears_with_its_redirect() {
    let mut world = one_large_page();
    world.move_frame(5, 3);
    assert_eq!(world.found(0), None);
    assert_eq!(world.space.reaches(GuestFrame(5)), Some(Reach { writable: true }));
    world.move_frame(5, 0);
    world.check_equal(false);
}

/// Every place that a caller may name by mistake, up to the end of 64 bits: absent and counted, never cut short.
#[test]
fn place_that_no_entry_can_name_is_absent_and_counted() {
    const END: u64 = 1 << fermi_spec::addr::PHYS_BITS;
    for base in [
        END - FRAME,
        END - FRAME + SMALL_PAGE,
        END,
        END + FRAME,
        u64::MAX - FRAME + 1,
        FRAME + 1,
    ] {
        for in_vram in [true, false] {
            let mut world = one_large_page();
            for page in 0..32 {
                let at = base.wrapping_add(page as u64 * SMALL_PAGE);
                world.host.vram[5 * 32 + page] = match in_vram {
                    true => Placement::Vram(VramAddr(at)),
                    false => Placement::Sysram(Iova(at)),
                };
            }
            let (host, tables, card) = (&world.host, &mut world.tables, &mut world.card);
            let (mut at, mut work) = (RedirectAt::default(), Work::unlimited());
            let frames = [GuestFrame(5)];
            let built = world
                .space
                .redirect(&frames, &mut at, host, tables, card, &mut work);
            let fits = |page: u64| {
                let at = base.wrapping_add(page * SMALL_PAGE);
                at.is_multiple_of(SMALL_PAGE) && at < END
            };
            let misplaced = (0..32).filter(|&page| !fits(page)).count() as u64;
            assert_eq!(built.misplaced, misplaced, "{base:#x}");
            assert!(
                (0..32).all(|page| world.found(page * SMALL_PAGE).is_some() == fits(page)),
                "{base:#x}"
            );
        }
    }
}

#[test]
fn page_that_moves_is_mapped_after_each_single_write() {
    for how in [1, 0, 2, 0] {
        let mut world = one_large_page();
        world.move_frame(5, if how == 0 { 1 } else { 0 });
        world.card.held = Some(Vec::new());
        world.move_frame(5, how);
        let held = world.card.held.take().expect("held above");
        assert!(held.len() >= 2);
        for (at, entries) in held {
            world.card.write(at, &entries);
            // Page 1 has a place in every arrangement.
            assert!(world.found(0x1000).is_some(), "absent after the write at {at}");
        }
        world.check_equal(false);
    }
}

#[test]
fn tables_written_before_the_directory_names_them_are_read_to_the_end() {
    let mut world = World::new(8);
    let (large, small) = (place_of(LARGE_TABLES[1]), place_of(SMALL_TABLES[1]));
    let (large, small) = (large.expect("a table"), small.expect("a table"));
    world.guest.store(large.offset(1023 * 8), 5 << 9 | 1);
    world.guest.store(small.offset(1022 * 32 * 8), 5 << 9 | 1);
    let _ = world.sync();
    world.store_pde(0, LARGE_TABLES[1] | SMALL_TABLES[1] << 32);
    let (changes, _) = world.sync();
    assert_eq!(changes.changed, 3);
    world.check_equal(false);
}

#[test]
fn unmapped_ram_leaves_no_entry_at_either_end_of_the_range() {
    let mut world = World::new(8);
    let table = place_of(SMALL_TABLES[1]).expect("a table");
    for page in 0..4 {
        world
            .guest
            .store(table.offset(page * 32 * 8), (10 + page) << 4 | 2 << 33 | 1);
    }
    world.store_pde(0, SMALL_TABLES[1] << 32);
    let _ = world.sync();
    world.map_ram(11, 2, false);
    let found: Vec<bool> = (0..4).map(|slot| world.found(slot << 17).is_some()).collect();
    assert_eq!(found, [true, false, false, true]);
}

#[test]
fn table_pages_are_those_of_directory_and_tables() {
    let world = one_large_page();
    let pages: Vec<TableAt> = world.space.table_pages().collect();
    assert_eq!(pages.len(), 16 + 2);
    assert!(pages.contains(&place_of(LARGE_TABLES[1]).expect("a table")));
}

#[test]
fn directory_outside_of_memory_is_empty() {
    let mut world = World::new(8);
    let guest = GuestDirectory {
        at: TableAt::Ram(Gpa(0xff_ffff_f000)),
        limit: u64::MAX,
    };
    let config = ShadowConfig::for_guest_vram(VRAM);
    let mut space = ShadowSpace::new(guest, config, &mut world.tables, &mut world.card).expect("room");
    assert!(matches!(
        space.refresh(&mut world.guest, &AllDirty, usize::MAX, &mut Work::unlimited()),
        Refresh::Done(Changes { changed: 0, .. })
    ));
}

#[test]
fn refused_directory_is_the_hosts_failure() {
    let mut world = World::new(8);
    world.tables.refuses = true;
    let guest = world.space.guest_directory();
    let config = ShadowConfig::for_guest_vram(VRAM);
    assert_eq!(
        ShadowSpace::new(guest, config, &mut world.tables, &mut world.card).err(),
        Some(ShadowError::NoDirectory { guest: guest.at })
    );
}
