//! A guest that knows what every byte of its memory has to be, and looks.
//!
//! It keeps a model of its data: what its CPU stored through windows and its engines copied, and zero where nobody
//! stored since the device was made or reset. At random times it loads and compares pieces, at its end all of it. It
//! also knows which entries its tables have, and that an interrupt it asked for comes.

use std::ops::Range;

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::USERD_BYTES;
use fermi_spec::pte::{Pde, PdeAperture, Pte};
use fermi_spec::regs::{PRAMIN_BASE, PbusReg, PffbReg};
use guests::GuestBus;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::Request;

use crate::rig::{self, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, RAM_VA, Rig, SMALL_TABLE};
use sim_host::bus::SimBus;

mod device;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const FRAME: u64 = 128 << 10;
/// Channels that copy, one on each engine.
const COPIERS: u8 = 2;
/// A channel that comes and goes.
const PASSING: u8 = 5;
/// Most bytes of its data.
const DATA_BYTES_MAX: u64 = 14 * MIB;
/// Most bytes of one copy.
const COPY_BYTES_MAX: u64 = 256 << 10;
/// Guest RAM for each channel's copies: as much to come from as to go to.
const STAGING_GPA: u64 = 8 * MIB;
/// A small-page table in guest RAM, 256 KiB.
const RAM_TABLE_GPA: u64 = 6 * MIB;
/// Most pages that it shows of data at a time, for one purpose.
const REMAPPED_PAGES_MAX: u64 = 16;
/// What that table shows, beside the large-page table of data. With this the address space has no more spans of a directory
/// entry than a VM is promised tables for, so no page may ever be absent, whatever others borrow.
const RAM_TABLE_VA: u64 = DATA_VA + 32 * MIB;
/// Its entries for that.
const RAM_ENTRIES_GPA: u64 = RAM_TABLE_GPA + (RAM_TABLE_VA - DATA_VA) / PAGE * 8;
/// What a large-page table in the midst of data shows, beside the small-page table of guest RAM.
const DATA_TABLE_VA: u64 = 32 * MIB;
/// Guest RAM behind what is mapped at the start.
pub(crate) const SPARE_GPA: u64 = 16 * MIB;
/// Length of it.
pub(crate) const SPARE_BYTES: u64 = MIB;
/// Longest wait for a copy, in nanoseconds of the host's clock: longer than the core waits, twice for 2 s, until it gives up a card
/// that hangs in a flush or a runlist.
const PATIENCE_NS: u64 = 5_000_000_000;

/// A copy that was submitted.
struct Copy {
    sequence: u32,
    /// Bytes of the data that it reads or writes, which nobody else touches meanwhile.
    busy: Range<u64>,
    /// What has to be in the staging memory afterwards, if it goes there.
    expected: Option<Vec<u8>>,
}

struct Witness {
    rng: ChaCha8Rng,
    rig: Rig,
    /// What the data has to be, from the start of guest VRAM's part behind the tables.
    data: Vec<u8>,
    copies: [Option<Copy>; PASSING as usize + 1],
    /// Whether the spare RAM is mapped, and whether for stores.
    spare: Option<bool>,
    /// What engines may do with each frame of the data at [`DATA_VA`].
    rights: Vec<Rights>,
}

/// What engines may do with memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rights {
    Nothing,
    Load,
    Store,
}

/// Runs for a number of steps, then compares everything.
pub(crate) fn watch(bus: &mut SimBus, seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let vram = u64::from(rig::read(bus, PffbReg::PartitionMebibytes(0))) * MIB;
    let bytes = (vram.saturating_sub(DATA) & !(MIB - 1)).min(DATA_BYTES_MAX);
    let steps = rng.random_range(60..240);
    let mut witness = Witness::start(bus, rng, bytes)?;
    for _ in 0..steps {
        witness.step(bus)?;
    }
    witness.compare_all(bus)
}

impl Witness {
    fn start(bus: &mut SimBus, rng: ChaCha8Rng, bytes: u64) -> Result<Self, String> {
        // Numbers of copies begin anew.
        bus.ram_write(Rig::semaphore_gpa(0), &[0; 16 * 8]);
        bus.ram_write(RAM_TABLE_GPA, &vec![0; 256 << 10]);
        let mut witness = Self {
            rng,
            rig: Rig::start(bus, bytes),
            data: vec![0; bytes as usize],
            copies: [const { None }; PASSING as usize + 1],
            spare: None,
            rights: vec![Rights::Store; (bytes / FRAME) as usize],
        };
        // Stores through PRAMIN before anything has memory make instance memory in the midst of data.
        for _ in 0..witness.rng.random_range(0..4) {
            witness.store_by_pramin(bus);
        }
        rig::put64(bus, DIRECTORY + 8, Self::data_and_ram_tables().into_bits());
        let both_tables = rig::pde(Some(DATA + witness.table()), Some(SMALL_TABLE));
        rig::put64(bus, DIRECTORY, both_tables.into_bits());
        for channel in 0..COPIERS {
            witness.open(bus, channel)?;
        }
        Ok(witness)
    }

    /// The last frame of the data holds a table; nobody but [`Self::remap_by_data_table`] stores there.
    fn table(&self) -> u64 {
        self.data.len() as u64 - FRAME
    }

    /// A new channel's page holds nothing that was another's.
    fn open(&mut self, bus: &mut SimBus, channel: u8) -> Result<(), String> {
        self.rig.write_instance(bus, channel, DIRECTORY);
        self.rig.bind(bus, channel);
        let page = u64::from(channel) * USERD_BYTES;
        let words: Vec<u64> = (0x40..0xa0)
            .step_by(8)
            .map(|at| bus.read(Bar::Bar1, page + at, 8))
            .collect();
        if words.iter().any(|&word| word != 0) {
            return Err(format!("USERD of new channel {channel} reads {words:x?}"));
        }
        if channel != PASSING {
            let list: Vec<u8> = (0..=channel).collect();
            self.rig.commit(bus, &list);
        }
        Ok(())
    }

    fn step(&mut self, bus: &mut SimBus) -> Result<(), String> {
        match self.rng.random_range(0..48u32) {
            0..=7 => self.store_by_bar(bus),
            8..=14 => self.load_by_bar(bus)?,
            15 => self.store_by_pramin(bus),
            16..=22 => self.copy_in(bus)?,
            23..=28 => self.copy_out(bus)?,
            29..=30 => self.copy_within(bus)?,
            31..=32 => self.remap_by_ram_table(bus)?,
            33 if self.rng.random() => self.remap_by_data_table(bus)?,
            33 => self.drop_tables(bus)?,
            34 => self.check_entries(bus)?,
            35 => self.interrupt(bus)?,
            36 => self.pass(bus)?,
            42..=45 => self.visit(bus)?,
            37 => self.spare(bus)?,
            38..=40 => self.change_rights(bus)?,
            41 if self.rng.random_range(0..3) == 0 => self.reset(bus)?,
            _ => (0..self.rng.random_range(1..30)).for_each(|_| bus.relax()),
        }
        Ok(())
    }

    /// Some bytes of the data that no copy under way touches, at a multiple of `unit`.
    fn range(&mut self, unit: u64, most: u64) -> Option<Range<u64>> {
        let units = self.rng.random_range(1..=most / unit);
        let first = self.rng.random_range(0..=(self.table() - units * unit) / unit) * unit;
        let range = first..first + units * unit;
        let mut under_way = self.copies.iter().flatten();
        let is_free = under_way.all(|copy| copy.busy.end <= range.start || copy.busy.start >= range.end);
        is_free.then_some(range)
    }

    /// The same, of which engines may do what is said.
    fn range_for(&mut self, rights: Rights) -> Option<Range<u64>> {
        let range = self.range(PAGE, COPY_BYTES_MAX)?;
        self.allows(&range, rights).then_some(range)
    }

    fn allows(&self, range: &Range<u64>, rights: Rights) -> bool {
        let frames = (range.start / FRAME) as usize..range.end.div_ceil(FRAME) as usize;
        self.rights[frames].iter().all(|of| *of >= rights)
    }

    /// Engines get other rights to a block of data, none at all perhaps: then its chunks are idle.
    fn change_rights(&mut self, bus: &mut SimBus) -> Result<(), String> {
        let block = [4, 16, 32][self.rng.random_range(0..3usize)];
        let frames = self.rights.len() - 1;
        let first = self.rng.random_range(0..frames) / block * block;
        let rights = [Rights::Nothing, Rights::Load, Rights::Store][self.rng.random_range(0..3usize)];
        self.set_rights(bus, first..frames.min(first + block), rights)
    }

    fn set_rights(&mut self, bus: &mut SimBus, frames: Range<usize>, rights: Rights) -> Result<(), String> {
        self.finish_all(bus)?;
        let entries: Vec<u8> = frames
            .clone()
            .map(|frame| rig::vram_pte(DATA + frame as u64 * FRAME))
            .map(|pte| match rights {
                Rights::Nothing => Pte::new(),
                Rights::Load => pte.with_read_only(true),
                Rights::Store => pte,
            })
            .flat_map(|pte| pte.into_bits().to_le_bytes())
            .collect();
        rig::put(bus, rig::LARGE_TABLE + frames.start as u64 * 8, &entries);
        rig::flush(bus, DIRECTORY);
        self.rights[frames].fill(rights);
        Ok(())
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        let mut word: u64 = self.rng.random();
        (0..count.div_ceil(8))
            .flat_map(|_| {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                word.to_le_bytes()
            })
            .take(count as usize)
            .collect()
    }

    fn model(&mut self, range: &Range<u64>) -> &mut [u8] {
        &mut self.data[range.start as usize..range.end as usize]
    }

    fn store_by_bar(&mut self, bus: &mut SimBus) {
        let Some(range) = self.range(4, 64) else { return };
        let bytes = self.bytes(range.end - range.start);
        bus.write(Bar::Bar1, DATA + range.start, &bytes);
        self.model(&range).copy_from_slice(&bytes);
    }

    fn store_by_pramin(&mut self, bus: &mut SimBus) {
        let Some(range) = self.range(4, 16) else { return };
        let bytes = self.bytes(range.end - range.start);
        rig::put(bus, DATA + range.start, &bytes);
        self.model(&range).copy_from_slice(&bytes);
    }

    fn load_by_bar(&mut self, bus: &mut SimBus) -> Result<(), String> {
        for _ in 0..8 {
            let Some(range) = self.range(8, 8) else { continue };
            let by_pramin = self.rng.random_range(0..4) == 0;
            let at = DATA + range.start;
            let is = match by_pramin {
                true => {
                    rig::write(bus, PbusReg::PraminBase, (at >> 16) as u32);
                    bus.read(Bar::Bar0, u64::from(PRAMIN_BASE) + at % 0x1_0000, 8)
                }
                false => bus.read(Bar::Bar1, at, 8),
            };
            self.compare("a window", &range, &is.to_le_bytes())?;
        }
        Ok(())
    }

    fn compare(&mut self, by: &str, range: &Range<u64>, is: &[u8]) -> Result<(), String> {
        let was = self.model(range).to_vec();
        differ(by, range.start, &was, is)
    }

    fn staging(channel: u8) -> u64 {
        STAGING_GPA + u64::from(channel) * 2 * COPY_BYTES_MAX
    }

    /// Submits a copy on the channel, which has none under way.
    fn submit(
        &mut self,
        bus: &mut SimBus,
        channel: u8,
        (source, target): (u64, u64),
        length: u64,
        busy: Range<u64>,
        expected: Option<Vec<u8>>,
    ) {
        let engine = if channel == 0 {
            Engine::Copy0
        } else {
            Engine::Copy1
        };
        let mut words = rig::bind_words(engine).to_vec();
        words.extend(rig::copy_words(
            source,
            target,
            PAGE as u32,
            (length / PAGE) as u32,
        ));
        let sequence = self.rig.submit_with_release(bus, channel, &words);
        self.copies[usize::from(channel)] = Some(Copy {
            sequence,
            busy,
            expected,
        });
    }

    /// Waits for the channel's copy, and compares what it brought.
    fn finish(&mut self, bus: &mut SimBus, channel: u8) -> Result<(), String> {
        let Some(sequence) = self.copies[usize::from(channel)]
            .as_ref()
            .map(|copy| copy.sequence)
        else {
            return Ok(());
        };
        self.wait(bus, channel, sequence)?;
        let copy = self.copies[usize::from(channel)].take();
        let Some((expected, busy)) = copy.and_then(|copy| Some((copy.expected?, copy.busy))) else {
            return Ok(());
        };
        let mut is = vec![0; expected.len()];
        bus.ram_read(Self::staging(channel) + COPY_BYTES_MAX, &mut is);
        differ("a copy", busy.start, &expected, &is)
    }

    fn wait(&mut self, bus: &mut SimBus, channel: u8, sequence: u32) -> Result<(), String> {
        let until = bus.now_ns() + PATIENCE_NS;
        loop {
            // The time before the look: between the two the guest may rest for longer than its patience.
            let now = bus.now_ns();
            let found = bus.ram_read32(Rig::semaphore_gpa(channel));
            if found == sequence {
                return Ok(());
            }
            if now > until {
                let fetched = Rig::fetched(bus, channel);
                return Err(format!(
                    "copy {sequence} of channel {channel} does not end: its semaphore is {found}, GP_GET {fetched}"
                ));
            }
            // The CPU goes on meanwhile, in particular while the channel is suspended.
            match self.rng.random_range(0..8u32) {
                0..=1 => self.store_by_bar(bus),
                2 => self.load_by_bar(bus)?,
                _ => bus.relax(),
            }
        }
    }

    fn finish_all(&mut self, bus: &mut SimBus) -> Result<(), String> {
        (0..COPIERS).try_for_each(|channel| self.finish(bus, channel))
    }

    /// Ends what the channel did, now or later.
    fn end_some(&mut self, bus: &mut SimBus, channel: u8) -> Result<(), String> {
        match self.rng.random() {
            true => self.finish(bus, channel),
            false => Ok(()),
        }
    }

    fn copier(&mut self) -> u8 {
        self.rng.random_range(0..COPIERS)
    }

    fn copy_in(&mut self, bus: &mut SimBus) -> Result<(), String> {
        let channel = self.copier();
        self.finish(bus, channel)?;
        let Some(range) = self.range_for(Rights::Store) else {
            return Ok(());
        };
        self.start_copy_in(bus, channel, DATA_VA, range);
        self.end_some(bus, channel)
    }

    /// Copies new bytes from RAM to data, which the tables show at `base`.
    fn start_copy_in(&mut self, bus: &mut SimBus, channel: u8, base: u64, range: Range<u64>) {
        let bytes = self.bytes(range.end - range.start);
        bus.ram_write(Self::staging(channel), &bytes);
        self.model(&range).copy_from_slice(&bytes);
        let places = (RAM_VA + Self::staging(channel), base + range.start);
        let length = range.end - range.start;
        self.submit(bus, channel, places, length, range, None);
    }

    fn copy_out(&mut self, bus: &mut SimBus) -> Result<(), String> {
        let channel = self.copier();
        self.finish(bus, channel)?;
        let Some(range) = self.range_for(Rights::Load) else {
            return Ok(());
        };
        self.start_copy_out(bus, channel, DATA_VA, range);
        self.end_some(bus, channel)
    }

    /// Copies data, which the tables show at `base`, to RAM.
    fn start_copy_out(&mut self, bus: &mut SimBus, channel: u8, base: u64, range: Range<u64>) {
        let expected = self.model(&range).to_vec();
        let into = Self::staging(channel) + COPY_BYTES_MAX;
        bus.ram_write(into, &vec![0xee; expected.len()]);
        let places = (base + range.start, RAM_VA + into);
        self.submit(bus, channel, places, expected.len() as u64, range, Some(expected));
    }

    fn copy_within(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        let channel = self.copier();
        let half = self.table() / 2 / PAGE * PAGE;
        let Some(source) = self.range(PAGE, COPY_BYTES_MAX.min(half)) else {
            return Ok(());
        };
        let length = source.end - source.start;
        let target = match source.start >= length {
            true => source.start - length..source.start,
            false => source.end..source.end + length,
        };
        let both = source.start.min(target.start)..source.end.max(target.end);
        if both.end > self.table() || !self.allows(&both, Rights::Store) {
            return Ok(());
        }
        let bytes = self.model(&source).to_vec();
        self.model(&target).copy_from_slice(&bytes);
        let places = (DATA_VA + source.start, DATA_VA + target.start);
        self.submit(bus, channel, places, length, both, None);
        self.finish(bus, channel)
    }

    /// Points pages of a table in RAM to other data, and copies through them.
    fn remap_by_ram_table(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        let Some(range) = self.range(PAGE, REMAPPED_PAGES_MAX * PAGE) else {
            return Ok(());
        };
        Self::point_ram_table(bus, 0, &range);
        rig::flush(bus, DIRECTORY);
        let channel = self.copier();
        let base = RAM_TABLE_VA - range.start;
        self.start_copy_out(bus, channel, base, range);
        self.finish(bus, channel)
    }

    /// Stores entries of a range of data to the table in RAM, from its page `first` on, without a flush.
    fn point_ram_table(bus: &mut SimBus, first: u64, range: &Range<u64>) {
        let entries: Vec<u8> = (range.start..range.end)
            .step_by(PAGE as usize)
            .flat_map(|at| rig::vram_pte(DATA + at).into_bits().to_le_bytes())
            .collect();
        bus.ram_write(RAM_ENTRIES_GPA + first * 8, &entries);
    }

    /// The same by a large page of a table that lies in data, which an engine could write.
    fn remap_by_data_table(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.finish_all(bus)?;
        let frame = self.rng.random_range(0..self.table() / FRAME) * FRAME;
        let entry = rig::vram_pte(DATA + frame).into_bits().to_le_bytes();
        let at = self.table() + DATA_TABLE_VA / FRAME * 8;
        bus.write(Bar::Bar1, DATA + at, &entry);
        self.model(&(at..at + 8)).copy_from_slice(&entry);
        rig::flush(bus, DIRECTORY);
        let channel = self.copier();
        let base = DATA_TABLE_VA - frame;
        self.start_copy_out(bus, channel, base, frame..frame + FRAME);
        self.finish(bus, channel)
    }

    /// Tables go that were just used, and come back: the small one, or both.
    fn drop_tables(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.remap_by_ram_table(bus)?;
        let left = match self.rng.random() {
            true => rig::pde(Some(LARGE_TABLE), None),
            false => Pde::new(),
        };
        for entry in [left, Self::data_and_ram_tables()] {
            rig::put64(bus, DIRECTORY + 8, entry.into_bits());
            rig::flush(bus, DIRECTORY);
        }
        Ok(())
    }

    /// The directory's entry for the table of data and that in guest RAM.
    fn data_and_ram_tables() -> Pde {
        rig::pde(Some(LARGE_TABLE), None)
            .with_small_aperture(PdeAperture::SysCoherent)
            .with_small_frame((RAM_TABLE_GPA >> 12) as u32)
    }

    /// After a reset of the device all of its memory is zero, whatever was under way.
    fn reset(&mut self, bus: &mut SimBus) -> Result<(), String> {
        bus.machine(Request::Reset);
        let (rng, spare) = (self.rng.clone(), self.spare);
        let bytes = self.data.len() as u64;
        *self = Self::start(bus, rng, bytes)?;
        self.spare = spare;
        match self.rng.random() {
            true => self.compare_all(bus),
            false => Ok(()),
        }
    }

    fn compare_all(&mut self, bus: &mut SimBus) -> Result<(), String> {
        self.set_rights(bus, 0..self.rights.len(), Rights::Store)?;
        let end = self.data.len() as u64;
        for start in (0..end).step_by(COPY_BYTES_MAX as usize) {
            let range = start..end.min(start + COPY_BYTES_MAX);
            let channel = (start / COPY_BYTES_MAX % u64::from(COPIERS)) as u8;
            self.finish(bus, channel)?;
            self.start_copy_out(bus, channel, DATA_VA, range);
        }
        self.finish_all(bus)
    }
}

fn differ(by: &str, start: u64, was: &[u8], is: &[u8]) -> Result<(), String> {
    match was.iter().zip(is).position(|(was, is)| was != is) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{by} shows {:#04x} at {:#x} of the data, not {:#04x}",
            is[at],
            start + at as u64,
            was[at]
        )),
    }
}

const _: () = assert!(STAGING_GPA + 4 * COPY_BYTES_MAX <= SPARE_GPA);
