//! The MMU against a slow obvious one, and TLBs that stay stale.

use super::support::*;
use crate::{
    counters::Counters,
    memory::{Memory, Place},
    mmu::{Access, AddressSpace, Mmu, walk},
    model::FermiModel,
};
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr},
    bar::Bar,
    fault::Reason,
    pte::{LargePages, PdeAperture, Pte},
    regs::{PbusReg, PffbReg},
};
use proptest::prelude::*;
use std::sync::Arc;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

#[test]
fn window_translation_stays_until_flushed() {
    let mut bench = ready();
    let (old, new) = (bench.allocate(0x1000), bench.allocate(0x1000));
    bench.set_vram_u32(old, 1);
    bench.set_vram_u32(new, 2);
    let block = u64::from(bench.read(PbusReg::Bar1Block) & 0x0fff_ffff) << 12;
    let directory = u64::from(bench.vram_u32(block + 0x200));
    let space = Space { directory };
    bench.map(space, 0, Page::Vram(old), 0x1000);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 1);
    bench.map(space, 0, Page::Vram(new), 0x1000);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 1, "stale");
    // A flush of another directory changes nothing.
    bench.write(PffbReg::TlbDirectory, 0x123_4560);
    bench.write(PffbReg::TlbInvalidate, 1 << 31 | 1);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 1, "still stale");
    bench.write(PffbReg::TlbDirectory, (directory >> 12 << 4) as u32);
    bench.write(PffbReg::TlbInvalidate, 1 << 31 | 5);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 2);
}

#[test]
fn window_translation_is_dropped_with_a_new_block() {
    let mut bench = ready();
    let (old, new) = (bench.allocate(0x1000), bench.allocate(0x1000));
    bench.set_vram_u32(old, 1);
    bench.set_vram_u32(new, 2);
    let register = bench.read(PbusReg::Bar1Block);
    let block = u64::from(register & 0x0fff_ffff) << 12;
    let space = Space {
        directory: u64::from(bench.vram_u32(block + 0x200)),
    };
    bench.map(space, 0, Page::Vram(old), 0x1000);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 1);
    bench.map(space, 0, Page::Vram(new), 0x1000);
    bench.write(PbusReg::Bar1Block, register);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 2);
}

#[test]
fn channel_translation_stays_until_flushed() {
    for by_method in [false, true] {
        let mut bench = ready();
        let mut a = bench.channel(1);
        let (old, new) = (bench.allocate(0x1000), bench.allocate(0x1000));
        bench.map(a.space, 0x800_0000, Page::Vram(old), 0x1000);
        bench.flush();
        bench.runlist(&[1]);
        bench.submit(&mut a, &Methods::new().release(0x800_0000, 1).0);
        bench.run();
        bench.map(a.space, 0x800_0000, Page::Vram(new), 0x1000);
        bench.submit(&mut a, &Methods::new().release(0x800_0000, 2).0);
        bench.run();
        assert_eq!([bench.vram_u32(old), bench.vram_u32(new)], [2, 0], "stale");
        let methods = if by_method {
            let directory = (a.space.directory >> 12 << 2) as u32;
            Methods::new().to(0, 0x28, &[directory, 9 << 27])
        } else {
            bench.write(PffbReg::TlbDirectory, (a.space.directory >> 12 << 4) as u32);
            bench.write(PffbReg::TlbInvalidate, 1 << 31 | 1);
            Methods::new()
        };
        bench.submit(&mut a, &methods.release(0x800_0000, 3).0);
        bench.run();
        assert_eq!([bench.vram_u32(old), bench.vram_u32(new)], [2, 3]);
    }
}

#[test]
fn invalid_entry_is_not_kept() {
    let mut bench = ready();
    let block = u64::from(bench.read(PbusReg::Bar1Block) & 0x0fff_ffff) << 12;
    let space = Space {
        directory: u64::from(bench.vram_u32(block + 0x200)),
    };
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 0xbad0_ac00);
    let page = bench.allocate(0x1000);
    bench.set_vram_u32(page, 7);
    bench.map(space, 0, Page::Vram(page), 0x1000);
    assert_eq!(bench.read_bar(Bar::Bar1, 0), 7);
}

#[test]
fn frame_that_is_nowhere_reads_ones_and_drops_writes() {
    let mut bench = bare();
    bench
        .card
        .place_frame(fermi_spec::addr::FrameNo(0), None)
        .unwrap();
    bench.write_at(fermi_spec::regs::PRAMIN_BASE, 1);
    assert_eq!(bench.read_at(fermi_spec::regs::PRAMIN_BASE), u32::MAX);
    assert_eq!(bench.vram_u32(0), 0);
    let counters: &Counters = bench.card.counters();
    assert_eq!(
        (counters.vram_missing_reads, counters.vram_missing_writes),
        (1, 1)
    );
}

#[test]
fn dma_beyond_every_map_reads_ones_and_drops_writes() {
    let mut bench = ready();
    let mut a = bench.channel(1);
    let vram = bench.allocate(0x2000);
    bench.map(a.space, 0x800_0000, Page::Vram(vram), 0x2000);
    bench.map(a.space, 0x900_0000, Page::Ram(RAM_BYTES - 0x1000), 0x2000);
    bench.flush();
    bench.runlist(&[1]);
    let methods = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, 0x900_0000, 0x800_0000, 0x2000, 1)
        .copy(1, 0x800_0000, 0x900_0000, 0x2000, 1);
    bench.submit(&mut a, &methods.0);
    bench.run();
    assert_eq!(bench.vram_u32(vram), 0);
    assert_eq!(bench.vram_bytes(vram + 0x1000, 0x1000), [0xff; 0x1000]);
    let counters = bench.card.counters();
    assert!(counters.dma_unmapped_reads > 0 && counters.dma_unmapped_writes > 0);
}

#[test]
fn refused_configurations_say_why() {
    let config = |vram_bytes| crate::ModelConfig {
        board: fermi_spec::board::Board::Gtx480,
        vram_bytes,
        timing: crate::Timing::of(fermi_spec::board::Board::Gtx480),
        copy_microcode: crate::CopyMicrocode::default(),
        strict: false,
        capabilities: crate::Capabilities::NONE,
    };
    let ram = Arc::new(ram_bus(Arc::new(MmapRegion::new(RAM_BYTES as usize).unwrap())));
    for bytes in [0, 0x1_0000, (1 << 37) + (1 << 20)] {
        assert!(FermiModel::new(config(bytes), ram.clone()).is_err());
    }
}

#[test]
fn large_pages_of_64_kib_split_addresses_their_own_way() {
    let mut bench = ready();
    let block = u64::from(bench.read(PbusReg::Bar1Block) & 0x0fff_ffff) << 12;
    let directory = bench.allocate_aligned(0x2_0000, 0x1000);
    let table = bench.allocate(0x2000);
    let page = bench.allocate_aligned(0x1_0000, 0x1_0000);
    bench.point(block, Space { directory });
    bench.set_vram_u64(directory + 8, 1 | table >> 12 << 4);
    bench.set_vram_u64(table + 8 * 3, 1 | page >> 12 << 4);
    bench.set_vram_u32(page + 0xfffc, 0xcafe);
    bench.write(PffbReg::MmuConfig, 1);
    bench.flush();
    assert_eq!(bench.read_bar(Bar::Bar1, (1 << 26) + 0x3_fffc), 0xcafe);
    assert_eq!(bench.read(PffbReg::MmuConfig), 0x00ff_8001);
    bench.write(PffbReg::MmuConfig, 0);
    assert_eq!(bench.read_bar(Bar::Bar1, (1 << 26) + 0x3_fffc), 0xbad0_ac00);
}

/// Where tables of the random ones may be: few places, so that they overlap in all ways.
const TABLE_AREA: u64 = 4 << 20;

/// The walk as one would write it on paper, with plain shifts.
fn slow_walk(
    word: &dyn Fn(u64, u64) -> u64,
    directory: (u64, u64),
    large: LargePages,
    va: u64,
) -> Result<(u64, u64), Reason> {
    // Bits of a large page's offset: 16 or 17; those of a directory entry's are ten more.
    let bits = if large == LargePages::Kib64 { 16 } else { 17 };
    let pde = word(directory.0, directory.1 + (va >> (bits + 10)) * 8);
    let table = |bits: u64| -> Option<(u64, u64)> {
        let aperture = match bits & 3 {
            0 => return None,
            1 => 0,
            other => other,
        };
        Some((aperture, (bits >> 4 & 0x0fff_ffff) << 12))
    };
    let (large, small) = (table(pde), table(pde >> 32));
    if large.is_none() && small.is_none() {
        return Err(Reason::PdeNotPresent);
    }
    let span = 1u64 << (bits + 10);
    if va & (span - 1) >= [span, span / 2, span / 4, span / 8][(pde >> 2 & 3) as usize] {
        return Err(Reason::TableTooShort);
    }
    if let Some((aperture, at)) = large {
        let pte = word(aperture, at + (va >> bits & 0x3ff) * 8);
        if pte & 1 != 0 {
            return Ok((pte, 1 << bits));
        }
    }
    if let Some((aperture, at)) = small {
        let pte = word(aperture, at + (va >> 12 & ((1 << (bits - 2)) - 1)) * 8);
        if pte & 1 != 0 {
            return Ok((pte, 0x1000));
        }
    }
    Err(Reason::PageNotPresent)
}

fn random_pde() -> impl Strategy<Value = u64> {
    let half = (0u64..4, 0u64..4, 0u64..64).prop_map(|(aperture, size, page)| {
        let base = if aperture >= 2 { RAM_BASE >> 12 } else { 0 };
        aperture | size << 2 | (base + page) << 4
    });
    (half.clone(), half).prop_map(|(low, high)| low | (high & !0xc) << 32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn walk_agrees_with_a_slow_one(
        pdes in proptest::collection::vec(random_pde(), 8),
        vram_ptes in proptest::collection::vec((0u64..0x4_0000, any::<u64>()), 200),
        ram_ptes in proptest::collection::vec((0u64..0x4_0000, any::<u64>()), 200),
        in_ram: bool,
        vas in proptest::collection::vec(0u64..8 << 26, 64),
        half: bool,
    ) {
        let vram = Arc::new(MmapRegion::new(TABLE_AREA as usize).unwrap());
        let ram = Arc::new(MmapRegion::new(RAM_BYTES as usize).unwrap());
        for (ptes, region) in [(&vram_ptes, &vram), (&ram_ptes, &ram)] {
            for (index, pte) in ptes {
                region.as_volatile_slice().write_obj(*pte, (index * 8) as usize).unwrap();
            }
        }
        let directory = if in_ram { RAM_BASE + 0x30_0000 } else { 0x30_0000 };
        let region = if in_ram { &ram } else { &vram };
        for (index, pde) in pdes.iter().enumerate() {
            region.as_volatile_slice().write_obj(*pde, 0x30_0000 + index * 8).unwrap();
        }
        let mut mem = Memory::new((TABLE_AREA >> 17) as u32, Arc::new(ram_bus(ram.clone())));
        for frame in 0..mem.frames() {
            let backing = crate::Backing::new(vram.clone(), frame as usize * 0x2_0000, 0x2_0000);
            mem.place_frame(fermi_spec::addr::FrameNo(frame), backing);
        }
        let word = |aperture: u64, at: u64| -> u64 {
            let (region, at) = if aperture == 0 { (&vram, at) } else { (&ram, at - RAM_BASE) };
            region.as_volatile_slice().read_obj(at as usize).unwrap()
        };
        let aperture = if in_ram { Aperture::SysCoherent } else { Aperture::Vram };
        let place = Place { aperture, at: PhysAddr(directory) };
        let space = AddressSpace { directory: place, limit: (8 << 27) - 1 };
        for va in vas {
            let large = if half { LargePages::Kib64 } else { LargePages::Kib128 };
            let expected = slow_walk(&word, (u64::from(aperture.into_bits()), directory), large, va);
            let found = walk(&mut mem, &space, large, GpuVa(va)).map(|page| (page.pte.into_bits(), page.bytes));
            prop_assert_eq!(found, expected, "at {:#x}", va);
        }
    }
}

/// Small pages of the run below, from a border of the table's to the next.
const RUN_PAGES: u64 = 64;

/// What an entry of the run is besides the page behind the one before.
#[derive(Clone, Copy, Debug)]
enum RunEntry {
    Next,
    Invalid,
    Elsewhere,
    ReadOnly,
    Privileged,
    InRam,
}

impl RunEntry {
    fn of(self, next: Pte) -> Pte {
        match self {
            Self::Next => next,
            Self::Invalid => next.with_valid(false),
            Self::Elsewhere => next.with_frame(next.frame() + 1),
            Self::ReadOnly => next.with_read_only(true),
            Self::Privileged => next.with_privileged(true),
            Self::InRam => next.with_aperture(Aperture::SysCoherent),
        }
    }
}

fn run_entry() -> impl Strategy<Value = RunEntry> {
    prop_oneof![
        40 => Just(RunEntry::Next),
        1 => Just(RunEntry::Invalid),
        1 => Just(RunEntry::Elsewhere),
        1 => Just(RunEntry::ReadOnly),
        1 => Just(RunEntry::Privileged),
        1 => Just(RunEntry::InRam),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn run_past_the_tlb_is_the_run_that_an_empty_tlb_finds(
        entries in proptest::collection::vec(run_entry(), RUN_PAGES as usize),
        // Where the table has ended already, the last entries are beyond it.
        from_end in 1..2 * RUN_PAGES,
        size in 0u8..4,
        has_large: bool,
        from in 0..RUN_PAGES * 0x1000,
        bytes in 1..2 * RUN_PAGES * 0x1000,
        limit in prop_oneof![Just(u64::MAX), 0..RUN_PAGES * 0x1000],
        write: bool,
    ) {
        let vram = Arc::new(MmapRegion::new(TABLE_AREA as usize).unwrap());
        let ram = Arc::new(MmapRegion::new(RAM_BYTES as usize).unwrap());
        let mut mem = Memory::new((TABLE_AREA >> 17) as u32, Arc::new(ram_bus(ram)));
        for frame in 0..mem.frames() {
            let backing = crate::Backing::new(vram.clone(), frame as usize * 0x2_0000, 0x2_0000);
            mem.place_frame(fermi_spec::addr::FrameNo(frame), backing);
        }
        let (directory, small, large): (u64, u64, u64) = (0x1000, 0x10_0000, 0x20_0000);
        let pde = fermi_spec::pte::Pde::new()
            .with_size(size)
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame((small >> 12) as u32)
            .with_large_aperture(if has_large { PdeAperture::Vram } else { PdeAperture::None })
            .with_large_frame((large >> 12) as u32);
        let word = |at: u64, value: u64| vram.as_volatile_slice().write_obj(value, at as usize).unwrap();
        word(directory, pde.into_bits());
        // The run ends around the end of the table, whatever its size is.
        let pages = (1u64 << 27 >> 12 >> size).min(0x4000);
        let first = pages.saturating_sub(from_end);
        for (number, entry) in (0..).zip(&entries) {
            let pte = Pte::new().with_valid(true).with_frame(0x300 + number as u32);
            word(small + (first + number) * 8, entry.of(pte).into_bits());
        }
        // The large table of such a directory hides the second half of the run.
        let hidden = (first + RUN_PAGES / 2) * 0x1000;
        let pte = Pte::new().with_valid(true).with_frame(0x400);
        word(large + (hidden >> 17) * 8, pte.into_bits());
        let space = AddressSpace {
            directory: Place { aperture: Aperture::Vram, at: PhysAddr(directory) },
            limit: limit.saturating_add(first * 0x1000),
        };
        let va = GpuVa(first * 0x1000 + from);
        let access = if write { Access::WRITE } else { Access::READ };
        // Where a large page could hide small ones, each page is looked at alone.
        let at_once = if has_large { 1 } else { bytes };
        let by_tlb = Mmu::new(false).translate(&mut mem, &space, access, va, at_once);
        let mut past = Mmu::new(false);
        let found = past.translate_past_tlb(&mut mem, &space, access, va, bytes);
        let found = found.map(|(place, run)| (place, run.min(at_once)));
        prop_assert_eq!(found, by_tlb);
        prop_assert_eq!(past.translations().count(), 0);
    }
}
