//! Cost of following a guest's table updates, in nanoseconds for each entry: `cargo bench -p shadow_pt`.
//!
//! Beside what no mediator can do without: for changed entries a bare loop over one flat table that checks, places and
//! stores each entry; for unchanged ones a comparison of as many bytes. The rescan reads every entry through the same
//! interfaces each time, as a mediator without snapshots would.

#[path = "../../integration/benches/pairs/mod.rs"]
mod pairs;

use fermi_spec::addr::{FRAME, Gpa, GuestVramAddr, Iova, PhysAddr, SMALL_PAGE, VramAddr};
use fermi_spec::pte::{Pte, uncompressed_kind};
use pairs::{Measure, Mode, Table, Way, nanoseconds};
use shadow_pt::*;
use std::hint::black_box;

/// 128 MiB of virtual address space, all of it mapped, in a guest with as much VRAM.
const VRAM: u64 = 160 << 20;
const DIRECTORY: u64 = 128 << 20;
const LARGE: u64 = DIRECTORY + 0x1_0000;
const SMALL: u64 = DIRECTORY + 0x10_0000;
const LARGE_ENTRIES: u64 = 1024;
const SMALL_ENTRIES: u64 = 32768;
const ROUNDS: usize = 51;
/// Work of a step.
const STEP: u64 = 100_000;
/// Repetitions in one round, each after the guest has rewritten its tables.
const TURNS: u32 = 8;

/// Guest VRAM from [`DIRECTORY`] on; the rest holds no tables.
struct Guest(Vec<u8>);

impl Guest {
    fn store(&mut self, at: u64, value: u64) {
        let at = (at - DIRECTORY) as usize;
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Rewrites the tables so that each entry differs from the one of another `turn`.
    fn map(&mut self, mapping: Mapping, turn: u64) {
        let flags = 1 | (turn & 1) << 2;
        let (large_table, small_table) = match mapping {
            Mapping::Large => (LARGE >> 8 | 1, 0),
            Mapping::Small => (0, SMALL >> 8 | 1),
        };
        self.store(DIRECTORY, large_table | small_table << 32);
        match mapping {
            Mapping::Large => (0..LARGE_ENTRIES).for_each(|n| self.store(LARGE + n * 8, n << 9 | flags)),
            Mapping::Small => (0..SMALL_ENTRIES).for_each(|n| self.store(SMALL + n * 8, n << 4 | flags)),
        }
    }
}

impl TableStore for Guest {
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        let TableAt::Vram(GuestVramAddr(at)) = at else {
            return TableRead::Outside;
        };
        let at = (at - DIRECTORY) as usize;
        data.copy_from_slice(&self.0[at..at + data.len()]);
        TableRead::Done
    }
}

#[derive(Clone, Copy)]
enum Mapping {
    Large,
    Small,
}

/// Frames in a shuffled order, all in VRAM or all spilled.
struct Host {
    frames: Vec<u64>,
    spilled: bool,
}

impl Host {
    fn new(spilled: bool) -> Self {
        Self {
            frames: (0..VRAM / FRAME)
                .map(|frame| frame * 7919 % 8192 * FRAME)
                .collect(),
            spilled,
        }
    }
}

impl Placements for Host {
    fn vram(&self, at: GuestVramAddr) -> Placement {
        let host = self.frames[(at.0 / FRAME) as usize] + at.within(FRAME);
        if self.spilled {
            Placement::Sysram(Iova(host))
        } else {
            Placement::Vram(VramAddr(host))
        }
    }

    fn ram(&self, at: Gpa) -> Placement {
        Placement::Sysram(Iova(at.0))
    }

    fn frame(&self, at: GuestVramAddr) -> FramePlacement {
        FramePlacement::Uniform(self.vram(at))
    }
}

struct Card(Vec<u64>);

impl ShadowWriter for Card {
    fn write(&mut self, at: VramAddr, entries: &[u64]) {
        let first = (at.0 / 8) as usize;
        self.0[first..first + entries.len()].copy_from_slice(entries);
    }
}

struct Tables(u64);

impl TablePages for Tables {
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr> {
        self.0 += bytes;
        Some(VramAddr(self.0 - bytes))
    }

    fn free(&mut self, _at: VramAddr, _bytes: u64) {}
}

struct Bench {
    guest: Guest,
    host: Host,
    card: Card,
    tables: Tables,
    space: ShadowSpace,
    turn: u64,
}

impl Bench {
    fn new(mapping: Mapping, spilled: bool) -> Self {
        let mut card = Card(vec![0; 1 << 20]);
        let mut tables = Tables(0);
        let directory = GuestDirectory {
            at: TableAt::Vram(GuestVramAddr(DIRECTORY)),
            limit: u64::MAX,
        };
        let config = ShadowConfig::for_guest_vram(VRAM);
        let space = ShadowSpace::new(directory, config, &mut tables, &mut card).expect("room");
        let mut bench = Self {
            guest: Guest(vec![0; (VRAM - DIRECTORY) as usize]),
            host: Host::new(spilled),
            card,
            tables,
            space,
            turn: 0,
        };
        bench.guest.map(mapping, 0);
        let _ = bench.sync();
        bench
    }

    fn refresh(&mut self) -> Changes {
        // The directory and its tables but nothing else, as a tracker would say after stores to all of the tables.
        let mut work = Work::unlimited();
        match self
            .space
            .refresh(&mut self.guest, &TablesOnly, usize::MAX, &mut work)
        {
            Refresh::Done(changes) => changes,
            Refresh::Missing(_) | Refresh::Unfinished => unreachable!("everything is at hand"),
        }
    }

    fn sync(&mut self) -> (Changes, Built) {
        let changes = self.refresh();
        (
            changes,
            self.space.build(
                &self.host,
                &mut self.tables,
                &mut self.card,
                &mut Work::unlimited(),
            ),
        )
    }
}

struct TablesOnly;

impl DirtyPages for TablesOnly {
    fn is_dirty(&self, page: TableAt) -> bool {
        !matches!(page, TableAt::Vram(at) if at.0 < LARGE && at.0 > DIRECTORY)
    }
}

/// Refresh and build of tables whose every entry changed; `shadow` entries result.
fn changed(mapping: Mapping, spilled: bool, shadow: u64) -> impl FnMut() -> f64 {
    let entries = match mapping {
        Mapping::Large => LARGE_ENTRIES,
        Mapping::Small => SMALL_ENTRIES,
    };
    let mut bench = Bench::new(mapping, spilled);
    move || {
        let mut total = 0.0;
        for _ in 0..TURNS {
            bench.turn += 1;
            bench.guest.map(mapping, bench.turn);
            total += nanoseconds(|| {
                let (changes, built) = bench.sync();
                assert_eq!(changes.changed, entries);
                let _ = black_box(built);
            });
        }
        total / f64::from(TURNS) / shadow as f64
    }
}

fn unchanged() -> impl FnMut() -> f64 {
    let mut bench = Bench::new(Mapping::Small, false);
    // The directory's first page is compared with them.
    let entries = SMALL_ENTRIES + 512;
    move || {
        let total = nanoseconds(|| {
            for _ in 0..TURNS {
                assert_eq!(bench.refresh().changed, 0);
            }
        });
        total / f64::from(TURNS) / entries as f64
    }
}

/// Tables as large as those that [`unchanged`] looks at, and a copy.
fn comparison() -> impl FnMut() -> f64 {
    let table: Vec<u64> = (0..SMALL_ENTRIES + 512).map(|n| n << 4 | 1).collect();
    let copy = table.clone();
    move || {
        let total = nanoseconds(|| {
            for _ in 0..TURNS {
                assert!(black_box(&table) == black_box(&copy));
            }
        });
        total / f64::from(TURNS) / table.len() as f64
    }
}

/// One frame moves out and in again: for each time.
fn redirect() -> impl FnMut() -> f64 {
    let mut bench = Bench::new(Mapping::Large, false);
    move || {
        let total = nanoseconds(|| {
            for turn in 0..TURNS {
                bench.host.spilled = turn % 2 == 0;
                let frames = [GuestFrame(black_box(500))];
                let _ = black_box(bench.space.redirect(
                    &frames,
                    &mut RedirectAt::default(),
                    &bench.host,
                    &mut bench.tables,
                    &mut bench.card,
                    &mut Work::unlimited(),
                ));
            }
        });
        total / f64::from(TURNS)
    }
}

/// How a chunk that everything names is redirected.
#[derive(Clone, Copy)]
enum By {
    Frame,
    Chunk,
    Step,
}

/// The chunk moves out and in again: for each time, or for the longest step.
fn everywhere(by: By) -> impl FnMut() -> f64 {
    const FRAMES: u64 = 16;
    const TABLES: u64 = 64;
    let mut bench = Bench::new(Mapping::Small, false);
    // 32 entries in a row name all frames, and all directory entries the same table.
    let page = |n: u64| n % FRAMES * (FRAME / SMALL_PAGE) + n % 7;
    (0..SMALL_ENTRIES).for_each(|n| bench.guest.store(SMALL + n * 8, page(n) << 4 | 1));
    (0..TABLES).for_each(|n| bench.guest.store(DIRECTORY + n * 8, (SMALL >> 8 | 1) << 32));
    bench.card = Card(vec![0; 32 << 20 >> 3]);
    let _ = bench.sync();
    let frames: Vec<GuestFrame> = (0..FRAMES as u32).map(GuestFrame).collect();
    move || {
        bench.host.spilled = !bench.host.spilled;
        let mut redirect = |frames: &[GuestFrame], at: &mut RedirectAt, mut work: Work| {
            let (host, tables, card) = (&bench.host, &mut bench.tables, &mut bench.card);
            bench
                .space
                .redirect(frames, at, host, tables, card, &mut work)
                .is_complete
        };
        let mut at = RedirectAt::default();
        let ns = match by {
            By::Frame => nanoseconds(|| {
                for frame in &frames {
                    redirect(&[*frame], &mut RedirectAt::default(), Work::unlimited());
                }
            }),
            By::Chunk => nanoseconds(|| {
                redirect(&frames, &mut at, Work::unlimited());
            }),
            By::Step => {
                let mut longest = 0.0_f64;
                let mut is_complete = false;
                while !is_complete {
                    longest = longest.max(nanoseconds(|| {
                        is_complete = redirect(&frames, &mut at, Work::limited(STEP));
                    }));
                }
                longest
            }
        };
        ns / 1000.0
    }
}

/// The small tables of a space with 64 directory entries are made ready for a move: all at once, or the longest step.
fn reserved(step: Option<u64>) -> impl FnMut() -> f64 {
    const TABLES: u64 = 64;
    move || {
        let mut bench = Bench::new(Mapping::Large, false);
        (0..TABLES).for_each(|n| bench.guest.store(DIRECTORY + n * 8, LARGE >> 8 | 1));
        // Touched, so that its pages are there.
        bench.card = Card(vec![!0; 32 << 20 >> 3]);
        let _ = bench.sync();
        let (mut longest, mut is_complete) = (0.0_f64, false);
        while !is_complete {
            let mut work = step.map_or(Work::unlimited(), Work::limited);
            longest = longest.max(nanoseconds(|| {
                let (host, tables, card) = (&bench.host, &mut bench.tables, &mut bench.card);
                let found = bench
                    .space
                    .reserve(&[GuestFrame(500)], host, tables, card, &mut work);
                is_complete = found == Reserved::All;
            }));
        }
        longest / 1000.0
    }
}

/// A flat table in, a flat table out, by shifts and masks: valid, kind 0, owned, placed.
fn bare_translation() -> impl FnMut() -> f64 {
    const PAGE: u64 = (1 << 28) - 1;
    let frames: Vec<u64> = Host::new(false).frames;
    let owned = vec![!0u64; frames.len() / 64 + 1];
    let mut guest: Vec<u64> = (0..SMALL_ENTRIES).map(|n| n << 4 | 1).collect();
    let mut shadow = vec![0u64; SMALL_ENTRIES as usize];
    move || {
        let mut total = 0.0;
        for _ in 0..TURNS {
            guest.iter_mut().for_each(|entry| *entry ^= 1 << 2);
            total += nanoseconds(|| {
                for (entry, &bits) in shadow.iter_mut().zip(black_box(&guest)) {
                    let (page, kind) = (bits >> 4 & PAGE, bits >> 36 & 0xff);
                    let frame = (page >> 5) as usize;
                    let is_owned = owned
                        .get(frame / 64)
                        .is_some_and(|word| word >> (frame % 64) & 1 != 0);
                    *entry = match frames.get(frame) {
                        Some(host) if bits & 1 != 0 && kind == 0 && is_owned => {
                            bits & !(PAGE << 4) | ((host >> 12) + page % 32) << 4
                        }
                        _ => 0,
                    };
                }
                black_box(&shadow);
            });
        }
        total / f64::from(TURNS) / SMALL_ENTRIES as f64
    }
}

/// Entries of a GiB by small pages, and the tables that hold them, one behind the other.
const GIB_TABLES: u64 = 8;
const GIB_ENTRIES: u64 = GIB_TABLES * SMALL_ENTRIES;
/// A quarter of it: 65,536 entries.
const FEW_TABLES: u64 = 2;

/// Pages of tables that were stored to since the last sync, as the mediator knows them.
struct Stored(std::collections::BTreeSet<TableAt>);

impl DirtyPages for Stored {
    fn is_dirty(&self, page: TableAt) -> bool {
        self.0.contains(&page)
    }
}

/// A whole sync, refresh and build, behind which `count` entries of so many tables have changed, each so far from the one before. Microseconds.
fn followed(tables: u64, (count, apart): (u64, u64), is_all: bool) -> impl FnMut() -> f64 {
    let mut bench = Bench::new(Mapping::Small, false);
    for table in 1..tables {
        let at = SMALL + table * SMALL_ENTRIES * 8;
        (0..SMALL_ENTRIES).for_each(|n| bench.guest.store(at + n * 8, n << 4 | 1));
        bench.guest.store(DIRECTORY + table * 8, (at >> 8 | 1) << 32);
    }
    let _ = bench.sync();
    move || {
        bench.turn += 1;
        let mut stored = Stored(std::collections::BTreeSet::new());
        for entry in (0..count).map(|n| n * apart) {
            let at = SMALL + entry * 8;
            let flags = 1 | (bench.turn & 1) << 2;
            bench.guest.store(at, (entry % SMALL_ENTRIES) << 4 | flags);
            stored
                .0
                .insert(TableAt::Vram(GuestVramAddr(at - at % SMALL_PAGE)));
        }
        let dirty: &dyn DirtyPages = if is_all { &AllDirty } else { &stored };
        let total = nanoseconds(|| {
            let mut work = Work::unlimited();
            if is_all {
                bench.space.build_anew();
            }
            let Refresh::Done(changes) = bench
                .space
                .refresh(&mut bench.guest, dirty, usize::MAX, &mut work)
            else {
                unreachable!("everything is at hand");
            };
            assert_eq!(changes.changed, count);
            let built = bench
                .space
                .build(&bench.host, &mut bench.tables, &mut bench.card, &mut work);
            let _ = black_box(built);
        });
        total / 1e3
    }
}

/// The work that the snapshot saves: every entry is read, checked, placed and written, changed or not.
fn rescan() -> impl FnMut() -> f64 {
    let mut bench = Bench::new(Mapping::Small, false);
    let mut shadow = vec![0u64; SMALL_ENTRIES as usize];
    move || {
        let total = nanoseconds(|| {
            for (index, entry) in shadow.iter_mut().enumerate() {
                let mut bytes = [0; 8];
                let at = TableAt::Vram(GuestVramAddr(SMALL + index as u64 * 8));
                let store: &mut dyn TableStore = black_box(&mut bench.guest);
                store.read(at, &mut bytes);
                let guest = Pte::from_bits(u64::from_le_bytes(bytes));
                let placements: &dyn Placements = black_box(&bench.host);
                let place = placements.vram(GuestVramAddr(guest.address().0));
                *entry = match (guest.valid(), uncompressed_kind(guest.kind()), place) {
                    (true, Some(kind), Placement::Vram(at)) => guest
                        .with_address(PhysAddr(at.0))
                        .with_kind(kind)
                        .with_comptag(0)
                        .into_bits(),
                    _ => 0,
                };
            }
            black_box(&shadow);
        });
        total / SMALL_ENTRIES as f64
    }
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let (large, small) = (Mapping::Large, Mapping::Small);
    let table = |title, unit, bases| Table {
        title,
        unit,
        measure: Measure::Time,
        bases,
        rounds: mode.rounds(ROUNDS),
    };
    let ways: Vec<Way<'_>> = vec![
        ("bare loop", Box::new(bare_translation())),
        ("small pages", Box::new(changed(small, false, SMALL_ENTRIES))),
        ("large pages", Box::new(changed(large, false, LARGE_ENTRIES))),
        (
            "small pages, spilled",
            Box::new(changed(small, true, SMALL_ENTRIES)),
        ),
        // Each large page becomes 32 small ones.
        (
            "large pages, spilled",
            Box::new(changed(large, true, SMALL_ENTRIES)),
        ),
    ];
    table(
        "changed entries: read, checked, placed, written",
        "ns/PTE",
        &["bare loop"],
    )
    .run(ways);
    let ways: Vec<Way<'_>> = vec![
        ("bare comparison", Box::new(comparison())),
        ("unchanged", Box::new(unchanged())),
        ("rescan without snapshot", Box::new(rescan())),
    ];
    table("unchanged entries", "ns/PTE", &["bare comparison"]).run(ways);
    let ways: Vec<Way<'_>> = vec![
        ("nothing changed", Box::new(followed(GIB_TABLES, (0, 1), false))),
        ("1 entry changed", Box::new(followed(GIB_TABLES, (1, 1), false))),
        (
            "10,000 in a row",
            Box::new(followed(GIB_TABLES, (10_000, 1), false)),
        ),
        (
            "10,000 scattered",
            Box::new(followed(GIB_TABLES, (10_000, 26), false)),
        ),
        ("rescan", Box::new(followed(GIB_TABLES, (1, 1), true))),
        (
            "nothing changed, a quarter of it",
            Box::new(followed(FEW_TABLES, (0, 1), false)),
        ),
    ];
    let title = format!("a whole sync of a GiB, {GIB_ENTRIES} entries");
    table(&title, "µs", &["rescan"]).run(ways);
    redirects(mode);
}

fn redirects(mode: Mode) {
    let table = |title, bases| Table {
        title,
        unit: "µs",
        measure: Measure::Time,
        bases,
        rounds: mode.rounds(ROUNDS),
    };
    let ways: Vec<Way<'_>> = vec![("redirect", Box::new(redirect()))];
    let title = "one large page redirected";
    Table {
        unit: "ns",
        ..table(title, &[])
    }
    .run(ways);
    let ways: Vec<Way<'_>> = vec![
        ("frame by frame, all at once", Box::new(everywhere(By::Frame))),
        ("all frames, all at once", Box::new(everywhere(By::Chunk))),
        (
            "the longest step of 100 µs of work",
            Box::new(everywhere(By::Step)),
        ),
    ];
    let title = "a chunk of 16 frames that each of 65,536 slots names, redirected";
    table(title, &["frame by frame, all at once"]).run(ways);
    let ways: Vec<Way<'_>> = vec![
        ("all at once", Box::new(reserved(None))),
        (
            "the longest step of 100 µs of work",
            Box::new(reserved(Some(STEP))),
        ),
    ];
    let title = "small tables of 64 directory entries made ready for a move";
    table(title, &["all at once"]).run(ways);
}
