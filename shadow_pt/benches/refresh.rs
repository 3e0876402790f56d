//! Cost of following a guest's table updates, for each entry: `cargo bench -p shadow_pt`.
//!
//! Divan's items are entries, so its throughput column is entries a second; 250 Mitem/s are 4 ns each. The baseline
//! reads every table and translates every entry each time, as a mediator without snapshots would. Compare within one
//! run only.

use divan::Bencher;
use divan::counter::ItemsCount;
use fermi_spec::addr::{FRAME, Gpa, GuestVramAddr, Iova, VramAddr};
use shadow_pt::*;
use std::hint::black_box;

/// 128 MiB of virtual address space, all of it mapped, in a guest with as much VRAM.
const VRAM: u64 = 160 << 20;
const DIRECTORY: u64 = 128 << 20;
const LARGE: u64 = DIRECTORY + 0x1_0000;
const SMALL: u64 = DIRECTORY + 0x10_0000;
const LARGE_ENTRIES: u64 = 1024;
const SMALL_ENTRIES: u64 = 32768;

fn main() {
    divan::main();
}

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
        match self.space.refresh(&mut self.guest, &TablesOnly) {
            Refresh::Done(changes) => changes,
            Refresh::Missing(_) => unreachable!("everything is at hand"),
        }
    }

    fn sync(&mut self) -> (Changes, Built) {
        let changes = self.refresh();
        (
            changes,
            self.space.build(&self.host, &mut self.tables, &mut self.card),
        )
    }
}

struct TablesOnly;

impl DirtyPages for TablesOnly {
    fn is_dirty(&self, page: TableAt) -> bool {
        !matches!(page, TableAt::Vram(at) if at.0 < LARGE && at.0 > DIRECTORY)
    }
}

/// Refresh and build of a table whose every entry changed.
fn changed(bencher: Bencher, mapping: Mapping, entries: u64, spilled: bool) {
    let bench = std::cell::RefCell::new(Bench::new(mapping, spilled));
    bencher
        .counter(ItemsCount::new(entries))
        .with_inputs(|| {
            let mut bench = bench.borrow_mut();
            bench.turn += 1;
            let turn = bench.turn;
            bench.guest.map(mapping, turn);
        })
        .bench_local_values(|()| {
            let (changes, built) = bench.borrow_mut().sync();
            assert_eq!(changes.changed, entries);
            built
        });
}

#[divan::bench]
fn changed_large_pages(bencher: Bencher) {
    changed(bencher, Mapping::Large, LARGE_ENTRIES, false);
}

#[divan::bench]
fn changed_small_pages(bencher: Bencher) {
    changed(bencher, Mapping::Small, SMALL_ENTRIES, false);
}

/// Each large page becomes 32 entries; items are shadow entries.
#[divan::bench]
fn changed_large_pages_spilled(bencher: Bencher) {
    let bench = std::cell::RefCell::new(Bench::new(Mapping::Large, true));
    bencher
        .counter(ItemsCount::new(SMALL_ENTRIES))
        .with_inputs(|| {
            let mut bench = bench.borrow_mut();
            bench.turn += 1;
            let turn = bench.turn;
            bench.guest.map(Mapping::Large, turn);
        })
        .bench_local_values(|()| bench.borrow_mut().sync().1);
}

#[divan::bench]
fn changed_small_pages_spilled(bencher: Bencher) {
    changed(bencher, Mapping::Small, SMALL_ENTRIES, true);
}

#[divan::bench]
fn unchanged_small_pages(bencher: Bencher) {
    let mut bench = Bench::new(Mapping::Small, false);
    // The directory's first page is compared with them.
    bencher
        .counter(ItemsCount::new(SMALL_ENTRIES + 512))
        .bench_local(|| bench.refresh());
}

/// One frame moves out and in again; items are redirects.
#[divan::bench]
fn redirect_of_a_large_page(bencher: Bencher) {
    let mut bench = Bench::new(Mapping::Large, false);
    bencher.counter(ItemsCount::new(2u64)).bench_local(|| {
        let mut entries = 0;
        for spilled in [true, false] {
            bench.host.spilled = spilled;
            let built = bench.space.redirect(
                GuestFrame(black_box(500)),
                &bench.host,
                &mut bench.tables,
                &mut bench.card,
            );
            entries += built.entries;
        }
        entries
    });
}

/// What the snapshot saves: every entry is read, checked, placed and written, changed or not.
#[divan::bench]
fn baseline_rescan_of_small_pages(bencher: Bencher) {
    let mut bench = Bench::new(Mapping::Small, false);
    let mut shadow = vec![0u64; SMALL_ENTRIES as usize];
    bencher.counter(ItemsCount::new(SMALL_ENTRIES)).bench_local(|| {
        for (index, entry) in shadow.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            let at = TableAt::Vram(GuestVramAddr(SMALL + index as u64 * 8));
            let store: &mut dyn TableStore = black_box(&mut bench.guest);
            store.read(at, &mut bytes);
            let guest = fermi_spec::pte::Pte::from_bits(u64::from_le_bytes(bytes));
            let placements: &dyn Placements = black_box(&bench.host);
            let kind = fermi_spec::pte::uncompressed_kind(guest.kind());
            *entry = match (
                guest.valid(),
                kind,
                placements.vram(GuestVramAddr(guest.address().0)),
            ) {
                (true, Some(kind), Placement::Vram(at)) => {
                    let address = fermi_spec::addr::PhysAddr(at.0);
                    guest
                        .with_address(address)
                        .with_kind(kind)
                        .with_comptag(0)
                        .into_bits()
                }
                _ => 0,
            };
        }
        shadow[0]
    });
}
