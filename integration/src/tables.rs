//! Guests that keep their page tables among their data: in chunks that are in VRAM.
//!
//! A small-page table lies in two frames of the data. Its first entries show guest RAM; the pattern that the rest holds is no valid entry.

use fermi_spec::addr::{FRAME, PDE_SPAN};
use fermi_spec::engine::Engine;
use guests::GuestBus as _;
use vgpu::{Event, Notice, Quota, VmId};

use crate::bench::Bench;
use crate::checkers::Violation;
use crate::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig};
use sim_host::bus::SimBus;

const VM: VmId = VmId(0);
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 4 * MIB;
/// The frames of the data that hold the table.
const FRAMES: std::ops::Range<u64> = 3..5;
const TABLE: u64 = DATA + FRAMES.start * FRAME;
const TABLE_PAGES: usize = 64;
/// The directory entry that names the table, and the address that its first entry is for.
const PDE: u64 = 2;
const SHOWN_VA: u64 = PDE * PDE_SPAN;
/// Where entries and marks are laid out in guest RAM.
const ENTRIES_GPA: u64 = 12 * MIB;
const MARKS_GPA: u64 = 13 * MIB;
/// The page of RAM through which what the table shows is read back.
const BACK_GPA: u64 = 14 * MIB;
const SEED: u64 = 7;

/// A guest with such a table. Its entries are written by the GPU.
struct Tables {
    rig: Rig,
}

impl Tables {
    /// Backs the data, has the GPU write the first entries, and names the table. `is_reached`: the data's own entries still lead to the table.
    fn start(bus: &mut SimBus, is_reached: bool) -> Result<Self, String> {
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        if !rig.fill(bus, 0, SEED, DATA_BYTES) {
            return Err("the data cannot be written".to_owned());
        }
        let mut tables = Self { rig };
        for mark in 0..4 {
            bus.ram_write(
                MARKS_GPA + mark * 0x1000,
                &(0x3a3a_0000 | mark as u32).to_le_bytes(),
            );
        }
        tables.gpu_stores(bus, 0, 0)?;
        tables.gpu_stores(bus, 1, 1)?;
        if !is_reached {
            for frame in FRAMES {
                rig::put64(bus, LARGE_TABLE + frame * 8, 0);
            }
            rig::flush(bus, DIRECTORY);
        }
        rig::put64(bus, DIRECTORY + PDE * 8, rig::pde(None, Some(TABLE)).into_bits());
        rig::flush(bus, DIRECTORY);
        Ok(tables)
    }

    /// The GPU stores an entry of the table that shows a page with a mark.
    fn gpu_stores(&mut self, bus: &mut SimBus, entry: u64, mark: u64) -> Result<(), String> {
        let bits = rig::ram_pte(MARKS_GPA + mark * 0x1000).into_bits();
        bus.ram_write(ENTRIES_GPA, &bits.to_le_bytes());
        let to = DATA_VA + TABLE - DATA + entry * 8;
        self.copies(bus, RAM_VA + ENTRIES_GPA, to, 8)
    }

    /// The CPU does the same, through PRAMIN.
    fn cpu_stores(&mut self, bus: &mut SimBus, entry: u64, mark: u64) {
        rig::put64(
            bus,
            TABLE + entry * 8,
            rig::ram_pte(MARKS_GPA + mark * 0x1000).into_bits(),
        );
    }

    /// Flushes, and looks whether an entry shows the mark.
    fn shows(&mut self, bus: &mut SimBus, entry: u64, mark: u64) -> Result<(), String> {
        rig::flush(bus, DIRECTORY);
        bus.ram_write(BACK_GPA, &[0; 4]);
        self.copies(bus, SHOWN_VA + entry * 0x1000, RAM_VA + BACK_GPA, 4)?;
        let (shown, wanted) = (bus.ram_read32(BACK_GPA), 0x3a3a_0000 | mark as u32);
        match shown == wanted {
            true => Ok(()),
            false => Err(format!("entry {entry} shows {shown:#x} and not {wanted:#x}")),
        }
    }

    /// Whether the data around the table is what was written.
    fn data_is_right(&mut self, bus: &mut SimBus) -> Result<(), String> {
        let before = FRAMES.start * FRAME;
        let verified = self.rig.verify(bus, 0, SEED, before);
        verified.map_err(|at| format!("the data is wrong at {at:#x}"))
    }

    fn copies(&mut self, bus: &mut SimBus, from: u64, to: u64, bytes: u32) -> Result<(), String> {
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(from, to, bytes, 1));
        match self.rig.execute(bus, 0, &words) {
            true => Ok(()),
            false => Err(format!("a copy to {to:#x} does not end")),
        }
    }
}

/// A host with one VM, whose memory fits.
fn bench() -> Bench {
    Bench::new(48, &[16])
}

/// Pages of the VM's tables that were loaded from VRAM so far.
fn fetched(bench: &Bench) -> u32 {
    let notices = bench.world.notices.iter();
    let pages = notices.map(|(_, notice)| match notice {
        Notice::TablesFetched { vm: VM, pages } => *pages,
        _ => 0,
    });
    pages.sum()
}

fn resident(bench: &Bench) -> u64 {
    let audit = bench.world.manager.audit();
    audit.map_or(0, |audit| audit.vms.iter().map(|of| of.resident).sum())
}

/// Has all of the VM's memory go to host RAM, and come back.
fn move_out_and_back(bench: &mut Bench) {
    let all = resident(bench);
    for (max, wanted) in [(0, 0), (u64::MAX, all)] {
        let quota = Quota {
            max,
            ..Quota::default()
        };
        bench.world.submit(Event::SetQuota { vm: VM, quota });
        bench.is_checked = false;
        bench.turn_until("its memory moves", |bench| resident(bench) == wanted);
        bench.is_checked = true;
    }
}

fn err(what: String) -> Violation {
    Violation(what)
}

/// A table among data that the GPU does not reach is loaded from VRAM once, and then never again, whoever stores to it next.
///
/// # Errors
///
/// Says what was loaded too often, or lost.
pub fn table_among_data_becomes_instance_memory() -> Result<(), Violation> {
    let mut bench = bench();
    let before = fetched(&bench);
    let mut tables = bench.run(VM, |bus| Tables::start(bus, false)).map_err(err)?;
    let first = fetched(&bench) - before;
    if first as usize != TABLE_PAGES {
        return Err(err(format!(
            "{first} of {TABLE_PAGES} pages were loaded for the first flush"
        )));
    }
    for round in 0..2_u64 {
        tables = bench
            .run(VM, move |bus| {
                tables.shows(bus, 0, 0)?;
                tables.shows(bus, 1, 1)?;
                // One page that has entries, and one that had none.
                for entry in [2, 512 * 40] {
                    tables.cpu_stores(bus, entry + round, 2 + round);
                    tables.shows(bus, entry + round, 2 + round)?;
                }
                tables.data_is_right(bus)?;
                Ok(tables)
            })
            .map_err(err)?;
        move_out_and_back(&mut bench);
    }
    let later = fetched(&bench) - before - first;
    if later != 0 {
        return Err(err(format!("{later} pages were loaded again")));
    }
    bench.world.watch.laws.held()
}

/// A table that the GPU reaches, and writes, is read anew at each flush: what the GPU stored counts.
///
/// # Errors
///
/// Says which store was lost.
pub fn table_that_the_gpu_writes_stays_where_it_is() -> Result<(), Violation> {
    let mut bench = bench();
    let mut tables = bench.run(VM, |bus| Tables::start(bus, true)).map_err(err)?;
    for round in 0..4 {
        tables = bench
            .run(VM, move |bus| {
                tables.gpu_stores(bus, 5, round)?;
                tables.shows(bus, 5, round)?;
                tables.cpu_stores(bus, 6, round);
                tables.shows(bus, 6, round)?;
                tables.shows(bus, 5, round)?;
                Ok(tables)
            })
            .map_err(err)?;
        move_out_and_back(&mut bench);
    }
    bench.world.watch.laws.held()
}
