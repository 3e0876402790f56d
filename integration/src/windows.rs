//! Guests whose VMM has mapped BAR1, BAR3 and PRAMIN: what they store there nobody sees, and everybody has to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fermi_spec::addr::FRAME;
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::offset;
use fermi_spec::regs::windows::WindowBlock;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES, PbusReg};
use guests::GuestBus as _;
use sim_host::bus::SimBus;
use sim_host::world::Mapped;
use vgpu::{Bus, Event, GpuConfig, MoveCause, Notice, Quota, Reply, Request, VmAudit, VmId};

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::{self, DATA, DATA_VA, RAM_VA, Rig};

pub mod bar1;

const VM: VmId = VmId(0);
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const DATA_BYTES: u64 = 4 * MIB;
const SEED: u64 = 11;
/// Of BAR3: its instance block, directory and small-page table, in VRAM that the rig leaves alone. A PRAMIN that shows them shows no data.
const BAR3_INSTANCE: u64 = 0x29_0000;
const BAR3_DIRECTORY: u64 = 0x2a_0000;
const BAR3_TABLE: u64 = 0x2c_0000;
/// Where the GPU's copies are read back.
const BACK_GPA: u64 = 14 * MIB;
/// A page of the data in the middle of a frame.
const SHOWN_FRAME: u64 = 5;
const SHOWN: u64 = DATA + SHOWN_FRAME * FRAME + 3 * PAGE;

/// A host with one VM, whose client has mapped its windows, and the messages that are about them all the same.
struct Host {
    bench: Bench,
    messages: Arc<AtomicU64>,
}

impl Host {
    /// On a card whose maps of host memory pin it, or not.
    fn new(pins: bool) -> Self {
        let bus = Bus {
            pins,
            ..Bus::default()
        };
        let config = GpuConfig { bus, ..gpu_config() };
        let mut bench = Bench::with(48, config, &[vm_config(16)]);
        bench.world.let_windows(VM, Mapped::All);
        let messages = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&messages);
        bench.world.on_event = Box::new(move |_, event, _| {
            let Event::Request { request, .. } = event else {
                return;
            };
            let (Request::Read { bar, offset, .. } | Request::Write { bar, offset, .. }) = request else {
                return;
            };
            let pramin = u64::from(PRAMIN_BASE)..u64::from(PRAMIN_BASE + PRAMIN_BYTES);
            if *bar != Bar::Bar0 || pramin.contains(offset) {
                counted.fetch_add(1, Relaxed);
            }
        });
        Self { bench, messages }
    }

    fn run<T: 'static>(
        &mut self,
        guest: impl FnOnce(&mut SimBus) -> Result<T, String> + 'static,
    ) -> Result<T, Violation> {
        self.bench.run(VM, guest).map_err(Violation)
    }

    /// Has all of the VM's memory go to host RAM, and come back.
    fn move_out_and_back(&mut self) {
        let sums = |bench: &Bench| {
            let audit = bench.world.manager.audit().unwrap_or_default();
            let sum = |bytes: fn(&VmAudit) -> u64| audit.vms.iter().map(bytes).sum::<u64>();
            (sum(|of| of.resident), sum(|of| of.spilled))
        };
        for max in [0, u64::MAX] {
            let quota = Quota {
                max,
                ..Quota::default()
            };
            self.bench.world.submit(Event::SetQuota { vm: VM, quota });
            self.bench.is_checked = false;
            self.bench
                .turn_until("its memory moves", |bench| match (max, sums(bench)) {
                    (0, (resident, _)) => resident == 0,
                    (_, (_, spilled)) => spilled == 0,
                });
            self.bench.is_checked = true;
        }
    }

    /// Moves so far because a window was to show a page that the GPU reaches.
    fn shown(&self) -> usize {
        let is_shown = |notice: &Notice| {
            matches!(
                notice,
                Notice::MoveStarted {
                    cause: MoveCause::Shown,
                    ..
                }
            )
        };
        self.bench.count_notices(is_shown)
    }

    /// Moves of chunks so far, and how often channels stood still for one.
    fn moves(&self) -> (usize, usize) {
        let moved = |notice: &Notice| matches!(notice, Notice::Moved { chunks: 1.., .. });
        let paused = |notice: &Notice| matches!(notice, Notice::Suspended { .. });
        (self.bench.count_notices(moved), self.bench.count_notices(paused))
    }

    fn end(self) -> Result<(), Violation> {
        match self.messages.load(Relaxed) {
            0 => self.bench.world.watch.laws.held(),
            messages => Err(Violation(format!(
                "{messages} messages about windows that are mapped"
            ))),
        }
    }
}

/// Has a BAR translate, by a table of small pages that shows nothing yet: its instance block, directory and table.
fn translate(bus: &mut SimBus, block: PbusReg, [instance, directory, table]: [u64; 3]) {
    for (at, word) in [
        (offset::PD_LO, directory as u32),
        (offset::PD_LO + 4, 0),
        (offset::PD_LO + 8, u32::MAX),
        (offset::PD_LO + 12, 0),
    ] {
        rig::put32(bus, instance + at, word);
    }
    rig::put64(bus, directory, rig::pde(None, Some(table)).into_bits());
    let on = WindowBlock::default()
        .with_frame((instance >> 12) as u32)
        .with_enable(true);
    rig::write(bus, block, on.into_bits());
}

/// A guest that fills data by its GPU and then looks at it through windows.
struct Shown(Rig);

impl Shown {
    fn start(bus: &mut SimBus) -> Result<Self, String> {
        Self::with(bus, DATA_BYTES)
    }

    fn with(bus: &mut SimBus, data_bytes: u64) -> Result<Self, String> {
        let mut rig = Rig::start(bus, data_bytes);
        rig.open(bus, 0);
        if !rig.fill(bus, 0, SEED, data_bytes) {
            return Err("the data cannot be written".to_owned());
        }
        translate(
            bus,
            PbusReg::Bar3Block,
            [BAR3_INSTANCE, BAR3_DIRECTORY, BAR3_TABLE],
        );
        Ok(Self(rig))
    }

    /// Has BAR3 show a page of VRAM at a place, or nothing.
    fn map(bus: &mut SimBus, place: u64, at: Option<u64>) {
        let entry = at.map_or(0, |at| rig::vram_pte(at).into_bits());
        rig::put64(bus, BAR3_TABLE + place * 8, entry);
    }

    fn flush(bus: &mut SimBus) {
        rig::flush(bus, BAR3_DIRECTORY);
    }

    /// A word of the data as the GPU sees it.
    fn gpu_loads(&mut self, bus: &mut SimBus, at: u64) -> Result<u32, String> {
        bus.ram_write(BACK_GPA, &[0; 4]);
        self.copies(bus, DATA_VA + at - DATA, RAM_VA + BACK_GPA)?;
        Ok(bus.ram_read32(BACK_GPA))
    }

    /// Has the GPU store a word to the data.
    fn gpu_stores(&mut self, bus: &mut SimBus, at: u64, value: u32) -> Result<(), String> {
        bus.ram_write(BACK_GPA, &value.to_le_bytes());
        self.copies(bus, RAM_VA + BACK_GPA, DATA_VA + at - DATA)
    }

    fn copies(&mut self, bus: &mut SimBus, from: u64, to: u64) -> Result<(), String> {
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(from, to, 4, 1));
        match self.0.execute(bus, 0, &words) {
            true => Ok(()),
            false => Err(format!("a copy to {to:#x} does not end")),
        }
    }

    /// CPU, through a window, and GPU see each other's stores to a page.
    fn agree(
        &mut self,
        bus: &mut SimBus,
        (bar, window): (Bar, u64),
        at: u64,
        value: u32,
    ) -> Result<(), String> {
        bus.write32(bar, window + 8, value);
        equal("the GPU", self.gpu_loads(bus, at + 8)?, value)?;
        self.gpu_stores(bus, at + 12, !value)?;
        equal("the CPU", bus.read32(bar, window + 12), !value)
    }
}

fn equal(who: &str, found: u32, wanted: u32) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{who} finds {found:#x} instead of {wanted:#x}")),
    }
}

/// A window shows pages that the GPU uses: CPU and GPU see the same bytes, wherever their memory goes, and nobody hears of it.
///
/// # Errors
///
/// Says whose bytes were lost.
pub fn page_that_the_gpu_uses_is_shown_and_stays_the_same(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let mut guest = host.run(Shown::start)?;
    let pramin = u64::from(PRAMIN_BASE);
    for round in 0..3_u32 {
        guest = host.run(move |bus| {
            // The first of them is in VRAM, and what the GPU stored there has to come along.
            let before = guest.gpu_loads(bus, SHOWN)?;
            Shown::map(bus, 7, Some(SHOWN));
            Shown::flush(bus);
            equal("BAR3", bus.read32(Bar::Bar3, 7 * PAGE), before)?;
            guest.agree(bus, (Bar::Bar3, 7 * PAGE), SHOWN, 0x1000 + round)?;
            Shown::map(bus, 7, None);
            Shown::flush(bus);
            equal(
                "BAR3, which shows nothing,",
                bus.read32(Bar::Bar3, 7 * PAGE + 8),
                0,
            )?;
            equal("the GPU", guest.gpu_loads(bus, SHOWN + 8)?, 0x1000 + round)?;
            rig::write(bus, PbusReg::PraminBase, (DATA >> 16) as u32);
            let window = pramin + SHOWN - DATA;
            equal("PRAMIN", bus.read32(Bar::Bar0, window + 8), 0x1000 + round)?;
            guest.agree(bus, (Bar::Bar0, window), SHOWN, 0x2000 + round)?;
            Ok(guest)
        })?;
        host.move_out_and_back();
        guest = host.run(move |bus| {
            let window = pramin + SHOWN - DATA;
            equal("PRAMIN", bus.read32(Bar::Bar0, window + 8), 0x2000 + round)?;
            guest.agree(bus, (Bar::Bar0, window), SHOWN, 0x3000 + round)?;
            // What lies before the page is as the GPU left it.
            let verified = guest.0.verify(bus, 0, SEED, SHOWN_FRAME * FRAME);
            verified.map_err(|at| format!("the data is wrong at {at:#x}"))?;
            Ok(guest)
        })?;
    }
    if host.shown() == 0 {
        return Err(Violation("no page was in VRAM when it was shown".to_owned()));
    }
    host.end()
}

/// What the CPU stores to a table through a mapped window counts at the next flush, though nobody saw it.
///
/// # Errors
///
/// Says which entry did not count.
pub fn table_that_is_stored_to_unseen_counts_at_the_next_flush(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let mut guest = host.run(Shown::start)?;
    host.run(move |bus| {
        // The table of the data, through BAR3 and left there.
        Shown::map(bus, 1, Some(rig::LARGE_TABLE));
        Shown::flush(bus);
        let (first, second) = (guest.gpu_loads(bus, DATA)?, guest.gpu_loads(bus, DATA + FRAME)?);
        for round in 0..4_u64 {
            // The first two large pages change places.
            for entry in 0..2 {
                let at = DATA + (entry ^ round & 1 ^ 1) * FRAME;
                bus.write64(Bar::Bar3, PAGE + entry * 8, rig::vram_pte(at).into_bits());
            }
            rig::flush(bus, rig::DIRECTORY);
            let wanted = if round & 1 == 0 { second } else { first };
            equal("the GPU", guest.gpu_loads(bus, DATA)?, wanted)?;
        }
        Ok(())
    })?;
    host.end()
}

/// Pages that the GPU does not reach are shown though the rest of their chunk is busy: the chunk stays in VRAM, and no channel stands still.
///
/// # Errors
///
/// Says what was not shown, or what it cost.
pub fn pages_beside_busy_data_are_shown_and_nobody_stands_still(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    // Half of the second chunk is nobody's.
    let mut guest = host.run(|bus| {
        let guest = Shown::with(bus, 3 * MIB)?;
        // The rig has looked at its data through PRAMIN.
        rig::write(bus, PbusReg::PraminBase, 0);
        Ok(guest)
    })?;
    host.move_out_and_back();
    let (beside, before) = (DATA + 3 * MIB, host.moves());
    for round in 0..4_u64 {
        guest = host.run(move |bus| {
            for i in 0..3 {
                let place = 8 * round + 2 * i;
                Shown::map(bus, place, Some(beside + place * PAGE));
                Shown::flush(bus);
                bus.write32(Bar::Bar3, place * PAGE, 0x5000 + place as u32);
            }
            let last = bus.read32(Bar::Bar3, (8 * round + 4) * PAGE);
            equal("BAR3", last, 0x5000 + 8 * round as u32 + 4)?;
            guest.gpu_stores(bus, DATA + 2 * MIB, round as u32)?;
            equal("the GPU", guest.gpu_loads(bus, DATA + 2 * MIB)?, round as u32)?;
            Ok(guest)
        })?;
    }
    let (moves, pauses) = host.moves();
    if (moves, pauses) != before {
        return Err(Violation(format!(
            "{before:?} moves and pauses became {moves} and {pauses} to show pages that nobody uses"
        )));
    }
    host.end()
}

/// A device that is reset shows nothing, its memory is zero, and its windows show it again when they are told to.
///
/// # Errors
///
/// Says what was left.
pub fn reset_takes_the_windows_back(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let guest = host.run(Shown::start)?;
    host.run(move |bus| {
        Shown::map(bus, 7, Some(SHOWN));
        Shown::flush(bus);
        bus.write32(Bar::Bar3, 7 * PAGE, 0x77);
        Ok(())
    })?;
    drop(guest);
    if host.bench.call(VM, Request::Reset) != Reply::Done {
        return Err(Violation("the reset was refused".to_owned()));
    }
    host.run(move |bus| {
        equal("BAR3", bus.read32(Bar::Bar3, 7 * PAGE), 0)?;
        bus.write32(Bar::Bar3, 7 * PAGE, 0x78);
        rig::write(bus, PbusReg::PraminBase, (DATA >> 16) as u32);
        let window = u64::from(PRAMIN_BASE) + SHOWN - DATA;
        equal("PRAMIN", bus.read32(Bar::Bar0, window), 0)?;
        let mut guest = Shown::start(bus)?;
        let before = guest.gpu_loads(bus, SHOWN)?;
        rig::write(bus, PbusReg::PraminBase, (DATA >> 16) as u32);
        equal("PRAMIN", bus.read32(Bar::Bar0, window), before)
    })?;
    host.end()
}

/// A guest that shows every second page, which is a mapping each, sees all of them as long as it is alone.
///
/// # Errors
///
/// Says what was shown, or not.
pub fn pages_in_many_pieces_are_shown(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let mut guest = host.run(Shown::start)?;
    host.run(move |bus| {
        let place = |i: u64| 16 + 2 * i;
        for i in 0..400 {
            Shown::map(bus, place(i), Some(DATA + 2 * MIB + i * PAGE));
        }
        Shown::flush(bus);
        let mut shown = 0;
        for i in 0..400 {
            let found = bus.read32(Bar::Bar3, place(i) * PAGE);
            let held = guest.gpu_loads(bus, DATA + 2 * MIB + i * PAGE)?;
            shown += u64::from(found == held);
            if found != held {
                equal("a place that shows nothing", found, 0)?;
            }
        }
        match shown {
            400 => Ok(()),
            _ => Err(format!("{shown} of 400 pages are shown")),
        }
    })?;
    host.end()
}
