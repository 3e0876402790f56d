//! A software card with its memories, and channels as a driver would make them.

use std::sync::Arc;

use fermi_model::{BareCard, Capabilities, CopyMicrocode, FermiModel, ModelConfig, Stepped, Timing};
use fermi_spec::addr::{Aperture, FRAME, GpuVa, Iova, PhysAddr, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::engine::Engine;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::instance::{self, AddressSpacePointer, offset, userd};
use fermi_spec::pte::{self, Pde, PdeAperture, Pte};
use fermi_spec::regs::{Bar0Reg, PbdmaReg, PbusReg, PfifoReg, PmcReg, pfifo, pmc};
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

pub(crate) const VRAM_BYTES: u64 = 8 << 20;
/// Bytes of system memory.
pub(crate) const RAM_BYTES: u64 = 1 << 20;
/// First bus address of system memory.
pub(crate) const RAM_BASE: u64 = 0x1_4000_0000;

/// The directory of all channels, but the first where that is apart.
pub(crate) const DIRECTORY: u64 = 0x10_0000;
/// Table of the small pages of the first 128 MiB.
pub(crate) const SMALL_TABLE: u64 = 0x12_0000;
/// Table of the large pages of the second 128 MiB.
pub(crate) const LARGE_TABLE: u64 = 0x16_0000;
pub(crate) const USERS: u64 = 0x18_0000;
pub(crate) const BLOCKS: u64 = 0x20_0000;
pub(crate) const RINGS: u64 = 0x22_0000;
const PUSHES: u64 = 0x24_0000;
const RUNLIST: u64 = 0x2f_0000;
/// Directory and small table of the first channel and of BAR1 where they are apart.
pub(crate) const APART_DIRECTORY: u64 = 0x50_0000;
const APART_TABLE: u64 = 0x52_0000;
/// Frame that the first channel then sees at [`DATA_VA`]: no other channel does.
pub(crate) const APART_DATA: u64 = 0x38_0000;
/// First byte of the channels' data.
pub(crate) const DATA: u64 = 0x40_0000;
/// Bytes of the channels' data.
pub(crate) const DATA_BYTES: u64 = 0x10_0000;

/// VRAM from here on, up to [`VRAM_BYTES`], has no use.
pub(crate) const UNUSED: u64 = 0x54_0000;

/// Where BAR1 and the channels see the USERD pages.
const USERS_VA: u64 = 0x10_0000;
const RINGS_VA: u64 = 0x20_0000;
const PUSHES_VA: u64 = 0x40_0000;
/// Where the channels see their data with small pages, with large ones, and system memory.
pub(crate) const DATA_VA: u64 = 0x100_0000;
pub(crate) const LARGE_VA: u64 = 0x800_0000;
pub(crate) const RAM_VA: u64 = 0x200_0000;

/// Channels that have a ring.
const RINGS_MAX: u64 = 16;
/// Entries of a ring.
const RING_ENTRIES: u32 = 64;
/// Bytes of a pushbuffer.
const PUSH_BYTES: u64 = 0x4000;
/// Time between two steps.
const STEP_NS: u64 = 100_000;

/// Position of a channel in its ring and pushbuffer.
#[derive(Clone, Copy, Default)]
struct Ring {
    put: u32,
    pushed: u64,
}

/// A software card with its memories and channels.
pub(crate) struct Card {
    pub(crate) model: FermiModel,
    vram: Arc<MmapRegion>,
    ram: Arc<MmapRegion>,
    now_ns: u64,
    rings: Vec<Ring>,
}

/// Properties of a card besides its memories' contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardSetup {
    pub(crate) copy_microcode: CopyMicrocode,
    /// PGRAPH is as strict as a card: see [`ModelConfig::strict`].
    pub(crate) strict: bool,
    /// Bytes of VRAM, at least [`VRAM_BYTES`].
    pub(crate) vram_bytes: u64,
    pub(crate) timing: Timing,
}

impl CardSetup {
    /// The configuration for a fuzz target: as small as possible, and grids end early.
    pub(crate) const fn fuzzed(copy_microcode: CopyMicrocode) -> Self {
        let mut timing = Timing::of(Board::Gtx480);
        timing.shaders.watchdog_ns = 50_000;
        timing.shaders.sms = 2;
        Self {
            copy_microcode,
            strict: false,
            vram_bytes: VRAM_BYTES,
            timing,
        }
    }
}

impl Card {
    /// A card before any access.
    pub(crate) fn new(setup: CardSetup) -> Self {
        let config = ModelConfig {
            board: Board::Gtx480,
            vram_bytes: setup.vram_bytes,
            timing: setup.timing,
            copy_microcode: setup.copy_microcode,
            strict: setup.strict,
            capabilities: Capabilities::NONE,
        };
        let bare = BareCard::new(config, Iova(RAM_BASE), RAM_BYTES).expect("a size that exists");
        let BareCard { model, vram, ram } = bare;
        Self {
            model,
            vram,
            ram,
            now_ns: 0,
            rings: Vec::new(),
        }
    }

    /// A card with everything on, one address space, and `channels` channels in it, on the runlist. BAR1 shows the
    /// same space.
    pub(crate) fn with_channels(channels: u16, setup: CardSetup) -> Self {
        let mut card = Self::switched_on(setup);
        card.map_data(0);
        card.map_small(SMALL_TABLE, USERS_VA, USERS, 0x1_0000);
        card.open(channels, DIRECTORY);
        card
    }

    /// The same card, but the first channel and BAR1 have an address space of their own, whose pages
    /// no other channel sees.
    pub(crate) fn with_channels_but_one(channels: u16, setup: CardSetup) -> Self {
        let mut card = Self::switched_on(setup);
        card.map_data(1);
        card.set_u64(APART_DIRECTORY, small_pde(APART_TABLE).into_bits());
        for (va, at, bytes) in [
            (USERS_VA, USERS, 0x1_0000),
            (RINGS_VA, RINGS, SMALL_PAGE),
            (PUSHES_VA, PUSHES, PUSH_BYTES),
            (DATA_VA, APART_DATA, SMALL_PAGE),
        ] {
            card.map_small(APART_TABLE, va, at, bytes);
        }
        card.open(channels, APART_DIRECTORY);
        card
    }

    fn switched_on(setup: CardSetup) -> Self {
        let mut card = Self::new(setup);
        card.write(PmcReg::PmcEnable, u32::MAX);
        card.write(PmcReg::PbdmaEnable, 7);
        card.write(PfifoReg::PfifoPbdmas, 7);
        for engine in Engine::ALL {
            let mask = 7 & !(1 << engine.pbdma());
            card.write(PfifoReg::EnginePbdmaMask(u16::from(engine.number())), mask);
        }
        for pbdma in 0..3 {
            card.write(PbdmaReg::PbdmaIntrEnable(pbdma), 0xffff_feff);
        }
        card.write(PfifoReg::PfifoEnable, 1);
        card.write(PfifoReg::PfifoIntrEnable, 0x7fff_ffff);
        card.write(PfifoReg::EngineIntrEnable, 1);
        card.write(PmcReg::PmcIntrEnable(0), pmc::LINE_HARDWARE);
        card
    }

    /// Makes the channels, the first of them and BAR1 in the space of `directory`.
    fn open(&mut self, channels: u16, directory: u64) {
        self.make_block(0, directory);
        self.write(PbusReg::Bar1Block, 1 << 31 | (BLOCKS >> 12) as u32);
        self.write(
            PfifoReg::UserdBase,
            pfifo::USERD_BASE_VALID | (USERS_VA >> 12) as u32,
        );
        for id in 0..channels {
            self.make_block(id, if id == 0 { directory } else { DIRECTORY });
            self.bind(id);
            self.rings.push(Ring::default());
            let entry = u64::from(id) | u64::from(pfifo::RUNLIST_ENTRY_TAG) << 32;
            self.set_u64(RUNLIST + 8 * u64::from(id), entry);
        }
        self.write(PfifoReg::RunlistBase, (RUNLIST >> 12) as u32);
        self.write(PfifoReg::RunlistCommit, 0x01f0_0000 | u32::from(channels));
    }

    /// The space of [`DIRECTORY`], with the rings and pushbuffers of all channels from `first` on.
    fn map_data(&mut self, first: u64) {
        self.set_u64(DIRECTORY, small_pde(SMALL_TABLE).into_bits());
        let pde = Pde::new()
            .with_large_aperture(PdeAperture::Vram)
            .with_large_frame((LARGE_TABLE >> 12) as u32);
        self.set_u64(DIRECTORY + 8, pde.into_bits());
        for id in first..RINGS_MAX {
            let (ring, push) = (id * SMALL_PAGE, id * PUSH_BYTES);
            self.map_small(SMALL_TABLE, RINGS_VA + ring, RINGS + ring, SMALL_PAGE);
            self.map_small(SMALL_TABLE, PUSHES_VA + push, PUSHES + push, PUSH_BYTES);
        }
        self.map_small(SMALL_TABLE, DATA_VA, DATA, DATA_BYTES);
        for page in (0..RAM_BYTES).step_by(SMALL_PAGE as usize) {
            let pte = vram_pte(RAM_BASE + page).with_aperture(Aperture::SysCoherent);
            let entry = SMALL_TABLE + 8 * pte::small_index(GpuVa(RAM_VA + page)) as u64;
            self.set_u64(entry, pte.into_bits());
        }
        for page in (0..DATA_BYTES).step_by(FRAME as usize) {
            let entry = LARGE_TABLE + 8 * pte::large_index(GpuVa(LARGE_VA + page)) as u64;
            self.set_u64(entry, vram_pte(DATA + page).into_bits());
        }
    }

    /// Small pages for `bytes` of VRAM.
    pub(crate) fn map_small(&mut self, table: u64, va: u64, at: u64, bytes: u64) {
        for page in (0..bytes).step_by(SMALL_PAGE as usize) {
            let entry = table + 8 * pte::small_index(GpuVa(va + page)) as u64;
            self.set_u64(entry, vram_pte(at + page).into_bits());
        }
    }

    /// Writes the instance block of a channel as nouveau does.
    fn make_block(&mut self, id: u16, directory: u64) {
        let id = u64::from(id);
        let block = BLOCKS + id * SMALL_PAGE;
        for (at, value) in instance::RAMFC_DEFAULTS {
            self.set_u32(block + at, value);
        }
        self.set_u32(
            block + offset::USERD_LO,
            (USERS + id * instance::USERD_BYTES) as u32,
        );
        self.set_u32(block + offset::GP_BASE_LO, (RINGS_VA + id * SMALL_PAGE) as u32);
        self.set_u32(block + offset::GP_BASE_HI, RING_ENTRIES.ilog2() << 16);
        let pointer = AddressSpacePointer {
            aperture: Aperture::Vram,
            directory: PhysAddr(directory),
            limit: 0xff_ffff_ffff,
        };
        for (index, word) in (0..).zip(pointer.into_words()) {
            self.set_u32(block + offset::PD_LO + 4 * index, word);
        }
    }

    /// A page of VRAM in the space of [`DIRECTORY`] that may be read and not written.
    pub(crate) fn map_read_only(&mut self, va: u64, at: u64) {
        let entry = SMALL_TABLE + 8 * pte::small_index(GpuVa(va)) as u64;
        self.set_u64(entry, vram_pte(at).with_read_only(true).into_bits());
    }

    /// Binds and starts a channel.
    pub(crate) fn bind(&mut self, id: u16) {
        let block = BLOCKS + u64::from(id) * SMALL_PAGE;
        self.write(PfifoReg::ChannelInstance(id), 0xc000_0000 | (block >> 12) as u32);
        self.write(PfifoReg::ChannelState(id), pfifo::CHANNEL_START);
    }

    pub(crate) fn read(&mut self, reg: impl Into<Bar0Reg>) -> u32 {
        let mut word = [0; 4];
        self.model
            .bar_read(Bar::Bar0, u64::from(reg.into().offset()), &mut word);
        u32::from_le_bytes(word)
    }

    pub(crate) fn write(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        self.model
            .bar_write(Bar::Bar0, u64::from(reg.into().offset()), &value.to_le_bytes());
    }

    pub(crate) fn set_u32(&mut self, at: u64, value: u32) {
        self.vram
            .as_volatile_slice()
            .write_obj(value, at as usize)
            .expect("in VRAM");
    }

    pub(crate) fn set_u64(&mut self, at: u64, value: u64) {
        self.vram
            .as_volatile_slice()
            .write_obj(value, at as usize)
            .expect("in VRAM");
    }

    pub(crate) fn vram_u32(&self, at: u64) -> u32 {
        self.vram
            .as_volatile_slice()
            .read_obj(at as usize)
            .expect("in VRAM")
    }

    /// Stores bytes into VRAM.
    pub(crate) fn vram_write(&mut self, at: u64, data: &[u8]) {
        self.vram
            .as_volatile_slice()
            .write_slice(data, at as usize)
            .expect("in VRAM");
    }

    /// Stores bytes into system memory.
    pub(crate) fn ram_write(&mut self, at: u64, data: &[u8]) {
        self.ram
            .as_volatile_slice()
            .write_slice(data, at as usize)
            .expect("in system memory");
    }

    /// Copies bytes of system memory out.
    pub(crate) fn ram_read(&self, at: u64, data: &mut [u8]) {
        self.ram
            .as_volatile_slice()
            .read_slice(data, at as usize)
            .expect("in system memory");
    }

    /// Copies bytes of VRAM out, as far as there is VRAM; returns whether all of them exist.
    pub(crate) fn vram_read(&self, at: u64, data: &mut [u8]) -> bool {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        self.vram.as_volatile_slice().read_slice(data, start).is_ok()
    }

    /// Puts words into a channel's pushbuffer and an entry with these flags into its ring.
    pub(crate) fn push(&mut self, id: u16, words: &[u32], flags: u64) {
        let words = &words[..words.len().min(PUSH_BYTES as usize / 4)];
        let bytes = 4 * words.len() as u64;
        let ring = &mut self.rings[usize::from(id)];
        if ring.pushed + bytes > PUSH_BYTES {
            ring.pushed = 0;
        }
        let start = ring.pushed;
        ring.pushed += bytes;
        let area = u64::from(id) * PUSH_BYTES + start;
        for (index, word) in (0..).zip(words) {
            self.set_u32(PUSHES + area + 4 * index, *word);
        }
        if !words.is_empty() {
            let entry = GpEntry::fetch(GpuVa(PUSHES_VA + area), words.len() as u32);
            self.push_entry(id, entry | flags);
        }
    }

    /// Puts any entry into a channel's ring.
    pub(crate) fn push_entry(&mut self, id: u16, entry: u64) {
        let put = self.rings[usize::from(id)].put;
        self.set_u64(RINGS + u64::from(id) * SMALL_PAGE + 8 * u64::from(put), entry);
        self.rings[usize::from(id)].put = (put + 1) % RING_ENTRIES;
    }

    /// Rings a channel's doorbell.
    pub(crate) fn ring(&mut self, id: u16) {
        let put = self.rings[usize::from(id)].put;
        self.ring_with(id, put);
    }

    /// Stores any word to a doorbell.
    pub(crate) fn ring_with(&mut self, id: u16, put: u32) {
        let at = USERS_VA + u64::from(id) * instance::USERD_BYTES + userd::GP_PUT;
        self.model.bar_write(Bar::Bar1, at, &put.to_le_bytes());
    }

    /// One step of the card, `work` units of it.
    pub(crate) fn step(&mut self, work: u32) -> Stepped {
        self.now_ns += STEP_NS;
        self.model.step(self.now_ns, work)
    }
}

pub(crate) fn small_pde(table: u64) -> Pde {
    Pde::new()
        .with_small_aperture(PdeAperture::Vram)
        .with_small_frame((table >> 12) as u32)
}

/// A valid entry for a page, with stores allowed.
fn vram_pte(at: u64) -> Pte {
    Pte::new().with_valid(true).with_address(PhysAddr(at))
}
