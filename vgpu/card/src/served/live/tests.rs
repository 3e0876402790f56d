//! A card whose BAR3 is set up as a driver does it, and a client that only has the window's file.

use fermi_spec::regs::pffb;
use std::os::unix::fs::FileExt as _;

use fermi_model::{Capabilities, CopyMicrocode, ModelConfig, SystemBus, Timing};
use fermi_spec::addr::{GpuVa, Iova, PhysAddr};
use fermi_spec::bar::Bar;
use fermi_spec::board::{BAR3_BYTES, Board};
use fermi_spec::instance::offset;
use fermi_spec::pte::{Pde, PdeAperture, Pte, large_index, small_index};
use fermi_spec::regs::windows::WindowBlock;
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PffbReg};
use proptest::prelude::*;

use super::*;
use broker::sealed_memfd;

const VRAM: u64 = 16 << 20;
const INSTANCE: u64 = 0x1000;
const DIRECTORY: u64 = 0x1_0000;
const SMALL_TABLE: u64 = 0x4_0000;
const LARGE_TABLE: u64 = 0x2_0000;

struct Nothing;

impl SystemBus for Nothing {
    fn resolve(&self, _: Iova, _: u64) -> Option<fermi_model::Backing> {
        None
    }
}

struct Card {
    model: FermiModel,
    live: LiveWindows,
    file: Arc<File>,
}

impl Card {
    /// BAR3 is on, its tables are empty.
    fn new() -> Self {
        let config = ModelConfig {
            board: Board::Gtx480,
            vram_bytes: VRAM,
            timing: Timing::of(Board::Gtx480),
            copy_microcode: CopyMicrocode::default(),
            strict: false,
            capabilities: Capabilities::NONE,
        };
        let mut model = FermiModel::new(config, Arc::new(Nothing)).unwrap();
        let vram = Arc::new(Vram::new(VRAM).unwrap());
        vram.place(&mut model).unwrap();
        let file = Arc::new(sealed_memfd("windows", FILE_BYTES).unwrap());
        let live = LiveWindows::new(vram, file.clone());
        let mut card = Self { model, live, file };
        let limit = BAR3_BYTES - 1;
        for (at, word) in [
            (offset::PD_LO, DIRECTORY as u32),
            (offset::PD_LO + 4, 0),
            (offset::PD_LO + 8, limit as u32),
            (offset::PD_LO + 12, (limit >> 32) as u32),
        ] {
            card.poke(INSTANCE + at, &word.to_le_bytes());
        }
        let pde = Pde::new()
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame((SMALL_TABLE >> 12) as u32)
            .with_large_aperture(PdeAperture::Vram)
            .with_large_frame((LARGE_TABLE >> 12) as u32);
        card.poke(DIRECTORY, &pde.into_bits().to_le_bytes());
        let block = WindowBlock::default()
            .with_frame((INSTANCE >> 12) as u32)
            .with_enable(true);
        card.write_register(PbusReg::Bar3Block, block.into_bits());
        card.live.follow(&mut card.model).unwrap();
        card
    }

    fn write_register(&mut self, register: impl Into<Bar0Reg>, value: u32) {
        let offset = register.into().offset().into();
        self.model.bar_write(Bar::Bar0, offset, &value.to_le_bytes());
    }

    /// VRAM through PRAMIN.
    fn poke(&mut self, at: u64, data: &[u8]) {
        self.write_register(PbusReg::PraminBase, (at >> 16) as u32);
        let offset = u64::from(PRAMIN_BASE) + (at & 0xffff);
        self.model.bar_write(Bar::Bar0, offset, data);
    }

    fn peek(&mut self, at: u64) -> u32 {
        self.write_register(PbusReg::PraminBase, (at >> 16) as u32);
        let mut word = [0; 4];
        let offset = u64::from(PRAMIN_BASE) + (at & 0xffff);
        self.model.bar_read(Bar::Bar0, offset, &mut word);
        u32::from_le_bytes(word)
    }

    fn map_small(&mut self, window: u64, vram: Option<u64>) {
        let entry = vram.map_or(Pte::new(), |vram| {
            Pte::new().with_valid(true).with_address(PhysAddr(vram))
        });
        let at = SMALL_TABLE + 8 * small_index(GpuVa(window)) as u64;
        self.poke(at, &entry.into_bits().to_le_bytes());
    }

    fn map_large(&mut self, window: u64, vram: Option<u64>) {
        let entry = vram.map_or(Pte::new(), |vram| {
            Pte::new().with_valid(true).with_address(PhysAddr(vram))
        });
        let at = LARGE_TABLE + 8 * large_index(GpuVa(window)) as u64;
        self.poke(at, &entry.into_bits().to_le_bytes());
    }

    fn flush(&mut self) {
        self.write_register(PffbReg::TlbDirectory, (DIRECTORY >> 8) as u32);
        self.write_register(PffbReg::TlbInvalidate, pffb::TLB_GO);
        self.live.follow(&mut self.model).unwrap();
    }

    /// As a client with a mapping does.
    fn store(&self, window: u64, word: u32) {
        self.file.write_all_at(&word.to_le_bytes(), window).unwrap();
    }

    fn load(&self, window: u64) -> u32 {
        let mut word = [0; 4];
        self.file.read_exact_at(&mut word, window).unwrap();
        u32::from_le_bytes(word)
    }

    /// As a client that sends messages does.
    fn trapped_load(&mut self, window: u64) -> u32 {
        let mut word = [0; 4];
        self.model.bar_read(Bar::Bar3, window, &mut word);
        u32::from_le_bytes(word)
    }
}

#[test]
fn store_to_the_window_is_seen_by_the_card_and_back() {
    let mut card = Card::new();
    card.poke(0x20_0004, &7_u32.to_le_bytes());
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.store(0x5008, 9);
    assert_eq!((card.load(0x5004), card.peek(0x20_0008)), (7, 9));
    card.poke(0x20_000c, &11_u32.to_le_bytes());
    assert_eq!((card.load(0x500c), card.trapped_load(0x500c)), (11, 11));
}

#[test]
fn unmapped_page_keeps_its_bytes_and_the_window_shows_zeros() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.store(0x5000, 9);
    card.map_small(0x5000, None);
    card.flush();
    card.store(0x5004, 5);
    assert_eq!((card.peek(0x20_0000), card.peek(0x20_0004)), (9, 0));
    assert_eq!(card.load(0x5000), 0);
}

#[test]
fn entry_without_a_flush_changes_nothing_yet() {
    let mut card = Card::new();
    card.poke(0x20_0000, &7_u32.to_le_bytes());
    card.map_small(0x5000, Some(0x20_0000));
    card.live.follow(&mut card.model).unwrap();
    assert_eq!(card.load(0x5000), 0);
}

#[test]
fn flush_of_another_directory_is_no_reason_to_look() {
    let mut card = Card::new();
    let looks = card.live.counts.looks;
    card.write_register(PffbReg::TlbDirectory, ((DIRECTORY + 0x1_0000) >> 8) as u32);
    card.write_register(PffbReg::TlbInvalidate, pffb::TLB_GO);
    card.live.follow(&mut card.model).unwrap();
    assert_eq!(card.live.counts.looks, looks);
}

#[test]
fn page_mapped_twice_lives_where_it_was_mapped_last() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.store(0x5000, 9);
    card.map_small(0x7000, Some(0x20_0000));
    card.flush();
    card.store(0x7004, 10);
    assert_eq!((card.load(0x7000), card.peek(0x20_0004)), (9, 10));
    assert_eq!(card.live.counts.aliases_max, 1);
    // The second is gone: it is the first's turn again.
    card.map_small(0x7000, None);
    card.flush();
    card.store(0x5008, 11);
    assert_eq!((card.load(0x5004), card.peek(0x20_0008)), (10, 11));
}

#[test]
fn neighbours_move_together() {
    let mut card = Card::new();
    card.map_small(0x8000, Some(0x30_0000));
    card.flush();
    let before = card.live.counts.moves;
    for page in 1..16 {
        card.map_small(0x8000 + 0x1000 * page, Some(0x30_0000 + 0x1000 * page));
    }
    card.flush();
    assert_eq!(card.live.counts.moves, before + 1);
    card.store(0x1_7000, 3);
    assert_eq!(card.peek(0x30_f000), 3);
}

#[test]
fn window_that_is_switched_off_shows_nothing() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.store(0x5000, 9);
    card.write_register(PbusReg::Bar3Block, 0);
    card.live.follow(&mut card.model).unwrap();
    assert_eq!((card.load(0x5000), card.peek(0x20_0000)), (0, 9));
}

#[test]
fn page_beyond_vram_does_not_live() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(VRAM));
    card.flush();
    assert_eq!(card.live.living.at(5), None);
}

#[test]
fn store_to_pramin_is_seen_by_the_card_and_follows_the_base() {
    let mut card = Card::new();
    card.write_register(PbusReg::PraminBase, 0x30);
    card.live.follow(&mut card.model).unwrap();
    card.store(PRAMIN_OFFSET + 4, 9);
    card.store(PRAMIN_OFFSET + 0xf_f004, 3);
    card.write_register(PbusReg::PraminBase, 0x38);
    card.live.follow(&mut card.model).unwrap();
    assert_eq!(card.load(PRAMIN_OFFSET + 0x7_f004), 3);
    assert_eq!((card.peek(0x30_0004), card.peek(0x3f_f004)), (9, 3));
}

#[test]
fn page_shown_by_both_windows_lives_in_bar3() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.poke(0x20_0000, &7_u32.to_le_bytes());
    card.live.follow(&mut card.model).unwrap();
    assert_eq!((card.load(0x5000), card.load(PRAMIN_OFFSET)), (7, 0));
    // The other way round: PRAMIN shows it first.
    card.map_small(0x6000, Some(0x21_0000));
    card.poke(0x21_0000, &8_u32.to_le_bytes());
    card.live.follow(&mut card.model).unwrap();
    assert_eq!(card.load(PRAMIN_OFFSET), 8);
    card.write_register(PffbReg::TlbDirectory, (DIRECTORY >> 8) as u32);
    card.write_register(PffbReg::TlbInvalidate, pffb::TLB_GO);
    card.live.follow(&mut card.model).unwrap();
    assert_eq!((card.load(0x6000), card.load(PRAMIN_OFFSET)), (8, 0));
}

#[test]
fn forgotten_window_is_zero_and_lets_go_of_vram() {
    let mut card = Card::new();
    card.map_small(0x5000, Some(0x20_0000));
    card.flush();
    card.store(0x5000, 9);
    card.live.vram.clone().clear().unwrap();
    card.live.forget().unwrap();
    assert_eq!((card.load(0x5000), card.peek(0x20_0000)), (0, 0));
    card.store(0x5000, 9);
    assert_eq!(card.peek(0x20_0000), 0);
}

/// Changes that a driver may make to the tables: map a page or hide it, small or large, and flush.
#[derive(Clone, Debug)]
enum Change {
    Small(u64, Option<u64>),
    Large(u64, Option<u64>),
    Flush,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    // Few places and pages, so that they meet. VRAM from 2 MiB on holds no tables.
    let small = (0..64_u64, proptest::option::of(0..40_u64))
        .prop_map(|(window, page)| Change::Small(window * PAGE, page.map(|page| 0x20_0000 + page * PAGE)));
    let large = (0..2_u64, proptest::option::of(0..2_u64))
        .prop_map(|(window, page)| Change::Large(window << 17, page.map(|page| 0x20_0000 + (page << 17))));
    let change = prop_oneof![6 => small, 1 => large, 2 => Just(Change::Flush)];
    proptest::collection::vec(change, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However tables change, no byte of VRAM is lost, and the live part of the window holds the bytes that BAR3 shows.
    #[test]
    fn window_agrees_with_the_model(changes in changes()) {
        let mut card = Card::new();
        for page in 0..64_u32 {
            card.poke(0x20_0000 + u64::from(page) * PAGE, &(0x100 + page).to_le_bytes());
        }
        for change in changes {
            match change {
                Change::Small(window, vram) => card.map_small(window, vram),
                Change::Large(window, vram) => card.map_large(window, vram),
                Change::Flush => card.flush(),
            }
        }
        card.flush();
        for page in 0..64_u32 {
            prop_assert_eq!(card.peek(0x20_0000 + u64::from(page) * PAGE), 0x100 + page);
        }
        for place in 0..64_u32 {
            let window = u64::from(place) * PAGE;
            let shown = card.live.living.shown().get(&place).copied();
            match card.live.living.at(place) {
                Some(page) => {
                    prop_assert_eq!(Some(page), shown);
                    prop_assert_eq!(card.load(window), card.trapped_load(window));
                }
                // Nothing is shown, or it lives elsewhere.
                None => prop_assert!(shown.is_none_or(|page| card.live.living.lives(page))),
            }
        }
    }
}
