//! A card with memory around it, and a small driver for channels.

use crate::bare::Ram;
use crate::{BareCard, Capabilities, CopyMicrocode, FermiModel, ModelConfig, Stepped, Timing};
use fermi_spec::{
    addr::{Aperture, FRAME, GpuVa, Iova, PDE_SPAN, PhysAddr, SMALL_PAGE},
    bar::Bar,
    board::Board,
    gpfifo::GpEntry,
    instance::{self, AddressSpacePointer, offset, userd},
    pte::{self, Pde, PdeAperture, Pte},
    pushbuffer,
    regs::{Bar0Reg, PbdmaReg, PbusReg, PffbReg, PfifoReg, PmcReg, pfifo},
};
use std::sync::Arc;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

pub(super) const VRAM_BYTES: u64 = 32 << 20;
pub(super) const RAM_BYTES: u64 = 16 << 20;
/// Where the card sees system memory.
pub(super) const RAM_BASE: u64 = 0x1_4000_0000;
/// BAR1 address of the USERD array.
pub(super) const USERD_VA: u64 = 0x10_0000;

const RING_VA: u64 = 0x10_0000;
const RING_LOG2: u32 = 6;
const PUSH_VA: u64 = 0x20_0000;
const PUSH_BYTES: u64 = 0x1_0000;

/// System memory in one map, where these cards see it.
pub(super) fn ram_bus(memory: Arc<MmapRegion>) -> Ram {
    Ram {
        base: Iova(RAM_BASE),
        memory,
    }
}

/// The card, its memories and a bump allocator for VRAM.
pub(super) struct Bench {
    pub(super) card: FermiModel,
    pub(super) vram: Arc<MmapRegion>,
    pub(super) ram: Arc<MmapRegion>,
    pub(super) now_ns: u64,
    next_vram: u64,
    runlists: u64,
}

/// An address space: its directory and what was allocated for it.
#[derive(Clone, Copy)]
pub(super) struct Space {
    pub(super) directory: u64,
}

/// A channel as its driver sees it.
#[derive(Clone, Copy)]
pub(super) struct Channel {
    pub(super) id: u16,
    pub(super) space: Space,
    pub(super) instance: u64,
    pub(super) userd: u64,
    push: u64,
    pub(super) put: u32,
    pushed: u64,
}

/// Where a page is.
#[derive(Clone, Copy)]
pub(super) enum Page {
    Vram(u64),
    Ram(u64),
}

impl Page {
    fn pte(self) -> Pte {
        let (aperture, at) = match self {
            Self::Vram(at) => (Aperture::Vram, at),
            Self::Ram(at) => (Aperture::SysCoherent, RAM_BASE + at),
        };
        Pte::new()
            .with_valid(true)
            .with_aperture(aperture)
            .with_address(PhysAddr(at))
    }

    fn offset(self, bytes: u64) -> Self {
        match self {
            Self::Vram(at) => Self::Vram(at + bytes),
            Self::Ram(at) => Self::Ram(at + bytes),
        }
    }
}

/// A card that nobody has touched yet.
pub(super) fn bare() -> Bench {
    bare_with(Timing::of(Board::Gtx480))
}

pub(super) fn bare_with(timing: Timing) -> Bench {
    bare_of(config(timing))
}

fn config(timing: Timing) -> ModelConfig {
    ModelConfig {
        board: Board::Gtx480,
        vram_bytes: VRAM_BYTES,
        timing,
        copy_microcode: CopyMicrocode::default(),
        strict: false,
        capabilities: Capabilities::NONE,
    }
}

fn bare_of(config: ModelConfig) -> Bench {
    let bare = BareCard::new(config, Iova(RAM_BASE), RAM_BYTES).unwrap();
    let BareCard {
        model: card,
        vram,
        ram,
    } = bare;
    Bench {
        card,
        vram,
        ram,
        now_ns: 0,
        next_vram: 0x10_0000,
        runlists: 0,
    }
}

/// A card with PFIFO and engines on, and the USERD array in BAR1.
pub(super) fn ready() -> Bench {
    ready_with(Timing::of(Board::Gtx480))
}

pub(super) fn ready_with(timing: Timing) -> Bench {
    make_ready(bare_with(timing))
}

/// The same with methods of a certain microcode.
pub(super) fn ready_with_microcode(microcode: CopyMicrocode) -> Bench {
    make_ready(bare_of(ModelConfig {
        copy_microcode: microcode,
        ..config(Timing::of(Board::Gtx480))
    }))
}

/// The same with a PGRAPH that forgives nothing.
pub(super) fn ready_strict() -> Bench {
    make_ready(bare_of(ModelConfig {
        strict: true,
        ..config(Timing::of(Board::Gtx480))
    }))
}

/// The same with capabilities.
pub(super) fn ready_with_capabilities(timing: Timing, capabilities: Capabilities) -> Bench {
    make_ready(bare_of(ModelConfig {
        capabilities,
        ..config(timing)
    }))
}

fn make_ready(mut bench: Bench) -> Bench {
    bench.write(PmcReg::PmcEnable, u32::MAX);
    bench.write(PmcReg::PbdmaEnable, u32::MAX);
    bench.write(PfifoReg::PfifoPbdmas, 7);
    for engine in fermi_spec::engine::Engine::ALL {
        let mask = 7 & !(1 << engine.pbdma());
        bench.write(PfifoReg::EnginePbdmaMask(u16::from(engine.number())), mask);
    }
    for pbdma in 0..3 {
        bench.write(PbdmaReg::PbdmaIntrEnable(pbdma), u32::MAX);
    }
    bench.write(PfifoReg::PfifoEnable, 1);
    let space = bench.space();
    let users = bench.allocate(128 * instance::USERD_BYTES);
    bench.map(space, USERD_VA, Page::Vram(users), 128 * instance::USERD_BYTES);
    let block = bench.allocate(SMALL_PAGE);
    bench.point(block, space);
    bench.write(PbusReg::Bar1Block, 1 << 31 | (block >> 12) as u32);
    bench.write(
        PfifoReg::UserdBase,
        pfifo::USERD_BASE_VALID | (USERD_VA >> 12) as u32,
    );
    bench.write(PfifoReg::PfifoIntr, u32::MAX);
    bench.write(PfifoReg::PfifoIntrEnable, u32::MAX);
    bench.write(PfifoReg::EngineIntrEnable, 1);
    bench
}

impl Bench {
    pub(super) fn read(&mut self, reg: impl Into<Bar0Reg>) -> u32 {
        self.read_at(reg.into().offset())
    }

    pub(super) fn write(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        self.write_at(reg.into().offset(), value);
    }

    pub(super) fn read_at(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.card.bar_read(Bar::Bar0, u64::from(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub(super) fn write_at(&mut self, offset: u32, value: u32) {
        self.card
            .bar_write(Bar::Bar0, u64::from(offset), &value.to_le_bytes());
    }

    pub(super) fn read_bar(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.card.bar_read(bar, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Zeroed VRAM, aligned to 4 KiB.
    pub(super) fn allocate(&mut self, bytes: u64) -> u64 {
        self.allocate_aligned(bytes, SMALL_PAGE)
    }

    pub(super) fn allocate_aligned(&mut self, bytes: u64, unit: u64) -> u64 {
        let at = self.next_vram.next_multiple_of(unit);
        self.next_vram = at + bytes.next_multiple_of(SMALL_PAGE);
        assert!(self.next_vram <= VRAM_BYTES, "test VRAM is full");
        at
    }

    pub(super) fn vram_u32(&self, at: u64) -> u32 {
        self.vram.as_volatile_slice().read_obj(at as usize).unwrap()
    }

    pub(super) fn set_vram_u32(&self, at: u64, value: u32) {
        self.vram
            .as_volatile_slice()
            .write_obj(value, at as usize)
            .unwrap();
    }

    pub(super) fn vram_u64(&self, at: u64) -> u64 {
        self.vram.as_volatile_slice().read_obj(at as usize).unwrap()
    }

    pub(super) fn set_vram_u64(&self, at: u64, value: u64) {
        self.vram
            .as_volatile_slice()
            .write_obj(value, at as usize)
            .unwrap();
    }

    pub(super) fn ram_u32(&self, at: u64) -> u32 {
        self.ram.as_volatile_slice().read_obj(at as usize).unwrap()
    }

    pub(super) fn vram_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.vram
            .as_volatile_slice()
            .read_slice(&mut data, at as usize)
            .unwrap();
        data
    }

    pub(super) fn ram_bytes(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.ram
            .as_volatile_slice()
            .read_slice(&mut data, at as usize)
            .unwrap();
        data
    }

    pub(super) fn set_ram_bytes(&self, at: u64, data: &[u8]) {
        self.ram
            .as_volatile_slice()
            .write_slice(data, at as usize)
            .unwrap();
    }

    pub(super) fn set_vram_bytes(&self, at: u64, data: &[u8]) {
        self.vram
            .as_volatile_slice()
            .write_slice(data, at as usize)
            .unwrap();
    }

    pub(super) fn space(&mut self) -> Space {
        Space {
            directory: self.allocate(pte::PD_BYTES),
        }
    }

    /// Writes the address-space pointer of an instance block.
    pub(super) fn point(&mut self, block: u64, space: Space) {
        let pointer = AddressSpacePointer {
            aperture: Aperture::Vram,
            directory: PhysAddr(space.directory),
            limit: 0xff_ffff_ffff,
        };
        for (index, word) in pointer.into_words().into_iter().enumerate() {
            self.set_vram_u32(block + offset::PD_LO + 4 * index as u64, word);
        }
    }

    /// The small-page entry of `va`, after making its table.
    pub(super) fn small_entry(&mut self, space: Space, va: u64) -> u64 {
        let at = space.directory + 8 * (va / PDE_SPAN);
        let mut pde = Pde::from_bits(self.vram_u64(at));
        if pde.small_aperture() == PdeAperture::None {
            let table = self.allocate(pte::SMALL_PT_BYTES);
            pde = pde
                .with_small_aperture(PdeAperture::Vram)
                .with_small_frame((table >> 12) as u32);
            self.set_vram_u64(at, pde.into_bits());
        }
        (u64::from(pde.small_frame()) << 12) + 8 * pte::small_index(GpuVa(va)) as u64
    }

    /// The large-page entry of `va`, after making its table.
    pub(super) fn large_entry(&mut self, space: Space, va: u64) -> u64 {
        let at = space.directory + 8 * (va / PDE_SPAN);
        let mut pde = Pde::from_bits(self.vram_u64(at));
        if pde.large_aperture() == PdeAperture::None {
            let table = self.allocate(pte::LARGE_PT_BYTES);
            pde = pde
                .with_large_aperture(PdeAperture::Vram)
                .with_large_frame((table >> 12) as u32);
            self.set_vram_u64(at, pde.into_bits());
        }
        (u64::from(pde.large_frame()) << 12) + 8 * pte::large_index(GpuVa(va)) as u64
    }

    /// Maps small pages.
    pub(super) fn map(&mut self, space: Space, va: u64, page: Page, bytes: u64) {
        for done in (0..bytes).step_by(SMALL_PAGE as usize) {
            let entry = self.small_entry(space, va + done);
            self.set_vram_u64(entry, page.offset(done).pte().into_bits());
        }
    }

    /// Maps large pages.
    pub(super) fn map_large(&mut self, space: Space, va: u64, page: Page, bytes: u64) {
        for done in (0..bytes).step_by(FRAME as usize) {
            let entry = self.large_entry(space, va + done);
            self.set_vram_u64(entry, page.offset(done).pte().into_bits());
        }
    }

    /// Invalidates every translation.
    pub(super) fn flush(&mut self) {
        self.write(PffbReg::TlbInvalidate, 1 << 31 | 2);
    }

    /// A channel with a ring and a pushbuffer, bound and started, not on the runlist.
    pub(super) fn channel(&mut self, id: u16) -> Channel {
        let space = self.space();
        self.channel_in(id, space)
    }

    pub(super) fn channel_in(&mut self, id: u16, space: Space) -> Channel {
        let shift = u64::from(id) * 0x100_0000;
        let (ring, push) = (self.allocate(SMALL_PAGE), self.allocate(PUSH_BYTES));
        self.map(space, RING_VA + shift, Page::Vram(ring), SMALL_PAGE);
        self.map(space, PUSH_VA + shift, Page::Vram(push), PUSH_BYTES);
        let block = self.allocate(SMALL_PAGE);
        let users = self.userd_array();
        let userd = users + u64::from(id) * instance::USERD_BYTES;
        for (at, value) in instance::RAMFC_DEFAULTS {
            self.set_vram_u32(block + at, value);
        }
        self.set_vram_u32(block + offset::USERD_LO, userd as u32);
        self.set_vram_u32(block + offset::GP_BASE_LO, (RING_VA + shift) as u32);
        let high = ((RING_VA + shift) >> 32) as u32 | RING_LOG2 << 16;
        self.set_vram_u32(block + offset::GP_BASE_HI, high);
        self.point(block, space);
        self.flush();
        let channel = Channel {
            id,
            space,
            instance: block,
            userd,
            push,
            put: 0,
            pushed: 0,
        };
        self.bind(&channel);
        self.write(PfifoReg::ChannelState(id), pfifo::CHANNEL_START);
        channel
    }

    pub(super) fn bind(&mut self, channel: &Channel) {
        let value = 0xc000_0000 | (channel.instance >> 12) as u32;
        self.write(PfifoReg::ChannelInstance(channel.id), value);
    }

    /// VRAM of the USERD array: what BAR1 shows at its address.
    fn userd_array(&mut self) -> u64 {
        let block = u64::from(self.read(PbusReg::Bar1Block) & 0x0fff_ffff) << 12;
        let directory = u64::from(self.vram_u32(block + offset::PD_LO) & 0xffff_f000);
        let entry = self.small_entry(Space { directory }, USERD_VA);
        Pte::from_bits(self.vram_u64(entry)).address().0
    }

    /// Commits a runlist; it is taken over by [`Self::run`].
    pub(super) fn runlist(&mut self, ids: &[u16]) {
        if self.runlists == 0 {
            self.runlists = self.allocate(SMALL_PAGE);
        }
        for (index, id) in ids.iter().enumerate() {
            let entry = u64::from(*id) | u64::from(pfifo::RUNLIST_ENTRY_TAG) << 32;
            self.set_vram_u64(self.runlists + 8 * index as u64, entry);
        }
        self.write(PfifoReg::RunlistBase, (self.runlists >> 12) as u32);
        self.write(PfifoReg::RunlistCommit, 0x01f0_0000 | ids.len() as u32);
    }

    /// Puts words into the pushbuffer and their entry into the ring, without a doorbell.
    pub(super) fn push(&mut self, channel: &mut Channel, words: &[u32]) {
        let bytes = 4 * words.len() as u64;
        if channel.pushed + bytes > PUSH_BYTES {
            channel.pushed = 0;
        }
        for (index, word) in words.iter().enumerate() {
            self.set_vram_u32(channel.push + channel.pushed + 4 * index as u64, *word);
        }
        let shift = u64::from(channel.id) * 0x100_0000;
        let at = GpuVa(PUSH_VA + shift + channel.pushed);
        self.push_entry(channel, GpEntry::fetch(at, words.len() as u32));
        channel.pushed += bytes;
    }

    /// VRAM of a channel's ring.
    fn ring_at(&mut self, channel: &Channel) -> u64 {
        let base = u64::from(self.vram_u32(channel.instance + offset::GP_BASE_LO));
        let at = self.small_entry(channel.space, base);
        Pte::from_bits(self.vram_u64(at)).address().0
    }

    /// A raw entry of the ring.
    pub(super) fn ring_entry(&mut self, channel: &Channel, index: u32) -> u64 {
        let ring = self.ring_at(channel);
        self.vram_u64(ring + 8 * u64::from(index))
    }

    /// Puts a raw entry into the ring, without a doorbell.
    pub(super) fn push_entry(&mut self, channel: &mut Channel, entry: u64) {
        let ring = self.ring_at(channel);
        self.set_vram_u64(ring + 8 * u64::from(channel.put), entry);
        channel.put = (channel.put + 1) % (1 << RING_LOG2);
    }

    pub(super) fn ring(&mut self, channel: &Channel) {
        let doorbell = USERD_VA + u64::from(channel.id) * instance::USERD_BYTES + userd::GP_PUT;
        self.card
            .bar_write(Bar::Bar1, doorbell, &channel.put.to_le_bytes());
    }

    pub(super) fn submit(&mut self, channel: &mut Channel, words: &[u32]) {
        self.push(channel, words);
        self.ring(channel);
    }

    pub(super) fn gp_get(&self, channel: &Channel) -> u32 {
        self.vram_u32(channel.userd + userd::GP_GET)
    }

    /// Steps until there is nothing to do by itself, at most a million times.
    pub(super) fn run(&mut self) -> Stepped {
        for _ in 0..1_000_000 {
            match self.card.step(self.now_ns, 1_000) {
                Stepped::Busy => {}
                rest => return rest,
            }
        }
        panic!("the card never rests");
    }

    /// Runs for about `ns` of GPU time, whether it rests or not.
    pub(super) fn run_for(&mut self, ns: u64) {
        let end = self.card.gpu_time() + ns;
        while self.card.gpu_time() < end {
            self.now_ns += 1_000;
            self.card.step(self.now_ns, 8);
        }
    }
}

/// Method words, headers included.
#[derive(Default)]
pub(super) struct Methods(pub(super) Vec<u32>);

impl Methods {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// One header and its data to consecutive methods.
    pub(super) fn to(mut self, subchannel: u8, method: u16, data: &[u32]) -> Self {
        self.0
            .push(pushbuffer::incrementing(subchannel, method, data.len() as u16));
        self.0.extend_from_slice(data);
        self
    }

    /// One header and its data, all to one method.
    pub(super) fn repeated(mut self, subchannel: u8, method: u16, data: &[u32]) -> Self {
        let header = pushbuffer::non_incrementing(subchannel, method, data.len() as u16);
        self.0.push(header);
        self.0.extend_from_slice(data);
        self
    }

    /// A copy by a copy engine, on the subchannel it is bound to.
    pub(super) fn copy(self, subchannel: u8, from: u64, to: u64, line_bytes: u32, lines: u32) -> Self {
        let address = |va: u64| [(va >> 32) as u32, va as u32];
        let [from_high, from_low] = address(from);
        let [to_high, to_low] = address(to);
        let surfaces = [
            from_high, from_low, to_high, to_low, line_bytes, line_bytes, line_bytes, lines,
        ];
        self.to(subchannel, 0x30c, &surfaces)
            .to(subchannel, 0x300, &[0x110])
    }

    /// A copy by M2MF.
    pub(super) fn m2mf(self, subchannel: u8, from: u64, to: u64, line_bytes: u32, lines: u32) -> Self {
        self.to(subchannel, 0x238, &[(to >> 32) as u32, to as u32])
            .to(
                subchannel,
                0x30c,
                &[
                    (from >> 32) as u32,
                    from as u32,
                    line_bytes,
                    line_bytes,
                    line_bytes,
                    lines,
                ],
            )
            .to(subchannel, 0x300, &[0x110])
    }

    /// A host semaphore method.
    pub(super) fn semaphore(self, va: u64, payload: u32, operation: u32) -> Self {
        self.to(0, 0x10, &[(va >> 32) as u32, va as u32, payload, operation])
    }

    /// A 4-byte release when the engines are idle.
    pub(super) fn release(self, va: u64, payload: u32) -> Self {
        self.semaphore(va, payload, 2 | 1 << 24)
    }
}
