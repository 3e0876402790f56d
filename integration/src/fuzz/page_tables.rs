//! Directories and tables of any content, walked by the windows, by engines and by the builder of shadow tables.

use fermi_spec::regs::{pbdma, pffb};
use std::collections::BTreeMap;

use super::input::Input;
use crate::card::{
    Card, CardSetup, DATA_VA, DIRECTORY, LARGE_TABLE, LARGE_VA, RAM_BASE, RAM_VA, SMALL_TABLE, VRAM_BYTES,
};
use fermi_model::CopyMicrocode;
use fermi_spec::addr::{Aperture, FRAME, Gpa, GpuVa, GuestVramAddr, Iova, SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::methods::{SemaphoreD, class, copy, host};
use fermi_spec::pte::{self, PD_BYTES, Pde, Pte};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::{PbdmaReg, PbusReg, PeepholeReg, PffbReg, PfifoReg, pfifo};
use shadow_pt::{
    AllDirty, FramePlacement, GuestDirectory, Placement, Placements, Refresh, ShadowConfig, ShadowSpace,
    ShadowWriter, TableAt, TablePages, TableRead, TableStore, Work,
};

/// Work of one step.
const WORK: u32 = 200;
/// Most actions of an input.
const ACTIONS_MAX: usize = 300;
/// Most builds of a shadow: each reads all tables whole.
const FOLLOWS_MAX: u32 = 6;
/// First byte of the VRAM that a shadow may name.
const ARENA: u64 = 0x1_0000_0000;
/// First byte of shadow tables, and their greatest sum.
const TABLES: u64 = 0x2_0000_0000;
const TABLES_BYTES: u64 = 1 << 20;
/// Where the shadow sees guest RAM, which has as many bytes.
const RAM_IOVA: u64 = 0x30_0000_0000;
const RAM_BYTES: u64 = 1 << 20;

/// An address that lies in tables now and then.
fn address(input: &mut Input<'_>) -> u64 {
    let inside = u64::from(input.u32() & 0x1f_ffff);
    match input.u8() & 7 {
        0 => input.u64() >> 24,
        1 => RAM_VA + inside,
        2 => LARGE_VA + inside,
        3 => u64::from(input.u8()) << 27 | inside,
        _ => DATA_VA + inside,
    }
}

/// An entry: anything, or one with plausible fields.
fn entry(input: &mut Input<'_>) -> u64 {
    match input.u8() & 3 {
        0 => input.u64(),
        1 => u64::from(input.u16() & 0xfff) << 4 | 1,
        2 => (RAM_BASE >> 12 | u64::from(input.u8())) << 4 | 1 | 2 << 33,
        _ => 0,
    }
}

/// A directory entry that mostly names tables that exist.
fn directory_entry(input: &mut Input<'_>) -> u64 {
    let frame = |at: u64| (at >> 12) as u32;
    let raw = Pde::from_bits(input.u64());
    match input.u8() & 3 {
        0 => raw.into_bits(),
        1 => raw.with_large_frame(frame(LARGE_TABLE)).into_bits(),
        2 => raw.with_small_frame(frame(SMALL_TABLE)).into_bits(),
        _ => raw
            .with_large_frame(frame(LARGE_TABLE))
            .with_small_frame(frame(SMALL_TABLE))
            .into_bits(),
    }
}

fn submit(card: &mut Card, input: &mut Input<'_>) {
    let split = |va: u64| [(va >> 32) as u32 & 0xff, va as u32];
    let ([sh, sl], [th, tl]) = (split(address(input)), split(address(input)));
    let words = if input.u8() & 1 == 0 {
        let operation = SemaphoreD::from_bits(1 << (input.u8() & 3) | 1 << 24 | 1 << 12);
        vec![
            incrementing(0, host::SEMAPHORE_A, 4),
            sh,
            sl & !3,
            0,
            operation.into_bits(),
        ]
    } else {
        let (bytes, lines) = (u32::from(input.u16()), u32::from(input.u8() & 7));
        vec![
            incrementing(4, host::SET_OBJECT, 1),
            u32::from(class::COPY) | 4 << 16,
            incrementing(4, copy::SRC_HIGH, 8),
            sh,
            sl,
            th,
            tl,
            bytes,
            bytes,
            bytes,
            lines,
            incrementing(4, copy::EXEC, 1),
            0x110,
        ]
    };
    card.push(0, &words, 0);
    card.ring(0);
}

/// Handles faults as a driver does, without looking at them.
fn recover(card: &mut Card) {
    card.write(PfifoReg::FaultUnits, u32::MAX);
    card.write(PfifoReg::EngineFault, u32::MAX);
    for pbdma in 0..3 {
        card.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
        card.write(PbdmaReg::PbdmaIntr(pbdma), u32::MAX);
    }
    card.write(PfifoReg::ChannelState(0), pfifo::CHANNEL_START);
}

fn act(card: &mut Card, shadow: &mut Shadow, input: &mut Input<'_>) {
    match input.u8() % 8 {
        0 => {
            let at = DIRECTORY + 8 * u64::from(input.u8());
            card.set_u64(at, directory_entry(input));
        }
        1 => {
            let at = SMALL_TABLE + 8 * pte::small_index(GpuVa(address(input))) as u64;
            card.set_u64(at, entry(input));
        }
        2 => {
            let at = LARGE_TABLE + 8 * pte::large_index(GpuVa(address(input))) as u64;
            card.set_u64(at, entry(input));
        }
        3 => {
            let bar = input.choose(&[Bar::Bar1, Bar::Bar3]);
            let (at, write) = (address(input), input.u8());
            let mut data = vec![write; usize::from(input.u8())];
            if write & 1 == 0 {
                card.model.bar_write(bar, at, &data);
            } else {
                card.model.bar_read(bar, at, &mut data);
            }
        }
        4 => {
            card.write(PeepholeReg::PeepholeHigh, u32::from(input.u8()));
            card.write(PeepholeReg::PeepholeLow, input.u32());
            card.read(PeepholeReg::PeepholeData);
            card.write(PffbReg::TlbInvalidate, pffb::TLB_GO | u32::from(input.u8() & 7));
        }
        5 => shadow.follow(card),
        6 => {
            card.step(WORK);
            recover(card);
        }
        _ => submit(card, input),
    }
}

/// Body of the target `page_tables`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = Card::with_channels(1, CardSetup::fuzzed(CopyMicrocode::default()));
    let block = card.read(PbusReg::Bar1Block);
    card.write(PbusReg::Bar3Block, block);
    card.write(PeepholeReg::PeepholeBlock, block);
    let mut shadow = Shadow::new();
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        act(&mut card, &mut shadow, &mut input);
    }
    for _ in 0..10 {
        card.step(WORK);
        recover(&mut card);
    }
    shadow.follow(&card);
}

/// Guest tables lie in the card's VRAM.
struct Guest<'a>(&'a Card);

impl TableStore for Guest<'_> {
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        match at {
            TableAt::Vram(at) if self.0.vram_read(at.0, data) => TableRead::Done,
            TableAt::Vram(_) | TableAt::Ram(_) => TableRead::Outside,
        }
    }
}

/// Every other frame of the guest's VRAM is in the arena, of the rest some pages are.
struct Arena;

impl Placements for Arena {
    fn vram(&self, at: GuestVramAddr) -> Placement {
        match at.0 >> 12 & 7 {
            _ if at.0 >= VRAM_BYTES => Placement::Outside,
            0 => Placement::Unbacked,
            1 => Placement::Sysram(Iova(RAM_IOVA + at.0 % RAM_BYTES)),
            _ => Placement::Vram(VramAddr(ARENA + at.0)),
        }
    }

    fn ram(&self, at: Gpa) -> Placement {
        match at.0.checked_sub(RAM_BASE).filter(|offset| *offset < RAM_BYTES) {
            Some(offset) => Placement::Sysram(Iova(RAM_IOVA + offset)),
            None => Placement::Outside,
        }
    }

    fn frame(&self, at: GuestVramAddr) -> FramePlacement {
        match at.0 >> 17 & 3 {
            _ if at.0 >= VRAM_BYTES => FramePlacement::Uniform(Placement::Outside),
            0 => FramePlacement::Mixed,
            1 => FramePlacement::Uniform(Placement::Unbacked),
            _ => FramePlacement::Uniform(Placement::Vram(VramAddr(ARENA + at.0))),
        }
    }
}

/// VRAM for shadow tables: a free list by size, so that freed tables are used again.
#[derive(Default)]
struct Pages {
    next: u64,
    free: BTreeMap<u64, Vec<VramAddr>>,
    in_use: BTreeMap<u64, u64>,
}

impl TablePages for Pages {
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr> {
        let at = match self.free.entry(bytes).or_default().pop() {
            Some(at) => at,
            None if self.next + bytes > TABLES_BYTES => return None,
            None => {
                self.next += bytes;
                VramAddr(TABLES + self.next - bytes)
            }
        };
        assert_eq!(self.in_use.insert(at.0, bytes), None);
        Some(at)
    }

    fn free(&mut self, at: VramAddr, bytes: u64) {
        assert_eq!(self.in_use.remove(&at.0), Some(bytes), "freed what was allocated");
        self.free.entry(bytes).or_default().push(at);
    }
}

/// The memory of shadow tables, from [`TABLES`] on.
struct Written(Vec<u64>);

impl Written {
    /// The entries in `bytes` bytes at `at`.
    fn entries(&self, at: u64, bytes: u64) -> &[u64] {
        let start = (at - TABLES) as usize / 8;
        &self.0[start..start + bytes as usize / 8]
    }
}

impl ShadowWriter for Written {
    fn write(&mut self, at: VramAddr, entries: &[u64]) {
        let start = (at.0 - TABLES) as usize / 8;
        self.0[start..start + entries.len()].copy_from_slice(entries);
    }
}

/// A shadow of the card's address space, made at its first use.
struct Shadow {
    follows: u32,
    space: Option<ShadowSpace>,
    pages: Pages,
    written: Written,
    /// What a step of a sync may take: everything every other time.
    limit: u64,
}

impl Shadow {
    fn new() -> Self {
        Self {
            follows: 0,
            space: None,
            pages: Pages::default(),
            written: Written(vec![0; TABLES_BYTES as usize / 8]),
            limit: 0,
        }
    }

    /// Updates the shadow from the guest's tables, and checks every entry of it.
    fn follow(&mut self, card: &Card) {
        self.follows += 1;
        self.limit = if self.follows.is_multiple_of(2) {
            u64::MAX
        } else {
            10_000
        };
        if self.follows > FOLLOWS_MAX {
            return;
        }
        let directory = GuestDirectory {
            at: TableAt::Vram(GuestVramAddr(DIRECTORY)),
            limit: u64::MAX,
        };
        let config = ShadowConfig {
            guest_vram_bytes: VRAM_BYTES,
            tables_max: 4,
        };
        let space = self.space.get_or_insert_with(|| {
            ShadowSpace::new(directory, config, &mut self.pages, &mut self.written)
                .expect("room for a directory")
        });
        loop {
            let mut work = Work::limited(self.limit);
            let refresh = space.refresh(&mut Guest(card), &AllDirty, usize::MAX, &mut work);
            check_work(work);
            match refresh {
                Refresh::Done(_) => break,
                Refresh::Unfinished => {}
                Refresh::Missing(pages) => panic!("{} pages are missing that are never", pages.len()),
            }
        }
        loop {
            let mut work = Work::limited(self.limit);
            let pending = space.pending_frames(&mut work);
            check_work(work);
            if pending.is_complete {
                break;
            }
        }
        loop {
            let mut work = Work::limited(self.limit);
            let built = space.build(&Arena, &mut self.pages, &mut self.written, &mut work);
            check_work(work);
            for table in built.freed {
                self.pages.free(table.at, table.bytes);
            }
            if built.is_complete {
                break;
            }
        }
        self.check(directory_of(&self.space));
    }

    /// Checks that no entry points outside of the answers of [`Arena`], and no directory entry outside of
    /// the tables of [`Pages`].
    fn check(&self, directory: VramAddr) {
        for &raw in self.written.entries(directory.0, PD_BYTES) {
            let pde = Pde::from_bits(raw);
            for (aperture, table) in [pde.large_table(), pde.small_table()].into_iter().flatten() {
                assert_eq!(aperture, Aperture::Vram, "{raw:#x}");
                assert!(
                    self.pages.in_use.contains_key(&table.0),
                    "{raw:#x} names no table"
                );
            }
        }
        for (&at, &bytes) in self.pages.in_use.iter().filter(|(at, _)| **at != directory.0) {
            for &raw in self.written.entries(at, bytes) {
                check_entry(Pte::from_bits(raw));
            }
        }
    }
}

/// However the tables look, a step takes no more than it was given, and its last part.
fn check_work(work: Work) {
    assert!(work.excess() <= Work::EXCESS_MAX, "{work:?}");
}

fn directory_of(space: &Option<ShadowSpace>) -> VramAddr {
    space.as_ref().expect("made before").directory()
}

fn check_entry(pte: Pte) {
    if !pte.valid() {
        return;
    }
    let at = pte.address().0;
    let (start, bytes) = match pte.aperture() {
        Aperture::Vram => (ARENA, VRAM_BYTES),
        Aperture::SysCoherent | Aperture::SysNonCoherent => (RAM_IOVA, RAM_BYTES),
        Aperture::Peer => panic!("{pte:?} names another card"),
    };
    assert!((start..start + bytes).contains(&at), "{pte:?} is outside");
    assert!(at.is_multiple_of(SMALL_PAGE) && FRAME.is_multiple_of(SMALL_PAGE));
}
