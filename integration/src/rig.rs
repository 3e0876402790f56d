//! A guest without a driver: builds any instance block, table, ring and pushbuffer it likes, right or wrong.
//!
//! Instance memory is written through PRAMIN, at fixed places of guest VRAM; rings, pushbuffers and semaphores lie in
//! guest RAM, which the tables show at [`RAM_VA`].

use fermi_spec::addr::{Aperture, GpuVa, PDE_SPAN, PhysAddr};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::instance::{AddressSpacePointer, RAMFC_DEFAULTS, USERD_BYTES, offset, userd};
use fermi_spec::methods::{CopyExec, SemaphoreD, class, copy, host};
use fermi_spec::pte::{LARGE_PT_BYTES, Pde, PdeAperture, Pte};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::pffb;
use fermi_spec::regs::pfifo::{self, ChannelInstance};
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbdmaReg, PbusReg, PffbReg, PfifoReg, PmcReg};

use sim_host::bus::WideBus;

/// Instance blocks, one page for each channel.
pub(crate) const INSTANCES: u64 = 0x10_0000;
/// The page directory.
pub const DIRECTORY: u64 = 0x20_0000;
/// The large-page table of directory entry 1. Those of the entries behind it follow, where there is more data than one shows.
pub const LARGE_TABLE: u64 = 0x21_0000;
/// The small-page table of directory entry 0.
pub const SMALL_TABLE: u64 = 0x22_0000;
/// First entry of the runlist.
pub const RUNLIST: u64 = 0x28_0000;
/// First byte of VRAM that the rig does not use itself.
pub const DATA: u64 = 0x40_0000;

/// Where the tables show guest RAM, 16 MiB of it with small pages.
pub const RAM_VA: u64 = 64 << 20;
/// Address at which the large-page table shows VRAM from [`DATA`] on.
pub const DATA_VA: u64 = 128 << 20;
/// log2 of a ring's entries.
pub(crate) const RING_LOG2: u32 = 9;

/// The PCI configuration space in BAR0, and two of its registers there: the command register, and that of MSI.
pub(crate) const CONFIG_MIRROR: u64 = 0x8_8000;
pub(crate) const COMMAND: u64 = 4;
pub(crate) const MSI_CONTROL: u64 = 0x6a;
const RINGS_GPA: u64 = 1 << 20;
const PUSHBUFFERS_GPA: u64 = 2 << 20;
const SEMAPHORES_GPA: u64 = 3 << 20;
/// What channels name as their contexts of PGRAPH. Nothing but a ticket is stored there: images are the host's.
const CONTEXTS_GPA: u64 = 0x38_0000;
const CONTEXT_BYTES: u64 = 0x100;
/// Place in guest RAM that a pattern passes through.
const PIECE_GPA: u64 = 8 << 20;
const PIECE: u64 = 4 << 20;
const LINE: u64 = 32 << 10;
/// Turns after which a wait is over.
const WAIT_TURNS: u32 = 20_000;
const CHANNELS: u64 = 128;

/// Stores to a register.
pub fn write(bus: &mut impl WideBus, reg: impl Into<Bar0Reg>, value: u32) {
    bus.write32(Bar::Bar0, u64::from(reg.into().offset()), value);
}

/// Loads a register.
pub fn read(bus: &mut impl WideBus, reg: impl Into<Bar0Reg>) -> u32 {
    bus.read32(Bar::Bar0, u64::from(reg.into().offset()))
}

/// Stores to guest VRAM through PRAMIN.
pub fn put(bus: &mut impl WideBus, at: u64, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        let here = at + done as u64;
        let length = (data.len() - done).min((0x1000 - here % 0x1000) as usize);
        write(bus, PbusReg::PraminBase, (here >> 16) as u32);
        let window = u64::from(PRAMIN_BASE) + here % 0x1_0000;
        bus.write(Bar::Bar0, window, &data[done..done + length]);
        done += length;
    }
}

/// Stores a 32-bit word in VRAM through PRAMIN.
pub fn put32(bus: &mut impl WideBus, at: u64, value: u32) {
    put(bus, at, &value.to_le_bytes());
}

/// Stores an entry.
pub fn put64(bus: &mut impl WideBus, at: u64, value: u64) {
    put(bus, at, &value.to_le_bytes());
}

/// Loads a word of guest VRAM through PRAMIN.
pub fn get32(bus: &mut impl WideBus, at: u64) -> u32 {
    write(bus, PbusReg::PraminBase, (at >> 16) as u32);
    bus.read32(Bar::Bar0, u64::from(PRAMIN_BASE) + at % 0x1_0000)
}

/// A valid writable entry for a page of VRAM.
pub fn vram_pte(at: u64) -> Pte {
    Pte::new().with_valid(true).with_frame((at >> 12) as u32)
}

/// A valid writable entry for a page of guest RAM.
pub fn ram_pte(gpa: u64) -> Pte {
    vram_pte(gpa)
        .with_aperture(Aperture::SysCoherent)
        .with_volatile(true)
}

/// A directory entry with tables in VRAM.
pub fn pde(large: Option<u64>, small: Option<u64>) -> Pde {
    let mut pde = Pde::new();
    if let Some(at) = large {
        pde = pde
            .with_large_aperture(PdeAperture::Vram)
            .with_large_frame((at >> 12) as u32);
    }
    if let Some(at) = small {
        pde = pde
            .with_small_aperture(PdeAperture::Vram)
            .with_small_frame((at >> 12) as u32);
    }
    pde
}

/// Clears all interrupts and faults that the guest sees.
pub fn acknowledge(bus: &mut impl WideBus) {
    write(bus, PfifoReg::FaultUnits, !0);
    for pbdma in 0..3 {
        write(bus, PbdmaReg::PbdmaIntr(pbdma), !0);
    }
    write(bus, PfifoReg::PfifoIntr, !0);
}

/// Interrupts are messages from now on. By the mirror of the configuration space.
pub fn switch_msi_on(bus: &mut impl WideBus) {
    bus.write(Bar::Bar0, CONFIG_MIRROR + MSI_CONTROL, &[1]);
}

/// The TLB of one directory is to be flushed.
pub fn flush(bus: &mut impl WideBus, directory: u64) {
    write(bus, PffbReg::TlbDirectory, (directory >> 12 << 4) as u32);
    write(bus, PffbReg::TlbInvalidate, pffb::TLB_GO | pffb::TLB_ALL_PAGES);
}

/// A linear copy on subchannel 4, which must be bound to a copy engine.
pub fn copy_words(source: u64, target: u64, line: u32, lines: u32) -> Vec<u32> {
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    vec![
        incrementing(4, copy::SRC_HIGH, 8),
        (source >> 32) as u32,
        source as u32,
        (target >> 32) as u32,
        target as u32,
        line,
        line,
        line,
        lines,
        incrementing(4, copy::EXEC, 1),
        exec.into_bits(),
    ]
}

/// Binds a copy engine to subchannel 4.
pub fn bind_words(engine: Engine) -> [u32; 2] {
    let class = if engine == Engine::Copy1 {
        class::COPY_1
    } else {
        class::COPY
    };
    [
        incrementing(4, host::SET_OBJECT, 1),
        u32::from(class) | u32::from(engine.number()) << 16,
    ]
}

/// A host semaphore method: operation 1 acquires, 2 releases.
pub fn semaphore_words(va: u64, payload: u32, operation: SemaphoreD) -> [u32; 5] {
    [
        incrementing(0, host::SEMAPHORE_A, 4),
        (va >> 32) as u32,
        va as u32,
        payload,
        operation.into_bits(),
    ]
}

/// The guest and its submissions.
pub struct Rig {
    puts: Vec<u32>,
    sequence: u32,
    runlist: Vec<u8>,
    /// Instance blocks name a context of PGRAPH, in guest RAM.
    names_contexts: bool,
}

impl Rig {
    /// Switches PFIFO on, shows USERD at the start of BAR1, and builds the address space: guest RAM at [`RAM_VA`],
    /// `data_bytes` of VRAM from [`DATA`] at [`DATA_VA`].
    pub fn start(bus: &mut impl WideBus, data_bytes: u64) -> Self {
        write(bus, PmcReg::PmcEnable, 0);
        write(bus, PmcReg::PmcEnable, !0);
        write(bus, PmcReg::PbdmaEnable, 7);
        for pbdma in 0..3 {
            write(bus, PbdmaReg::PbdmaIntrEnable(pbdma), !0);
        }
        write(bus, PfifoReg::PfifoEnable, 1);
        write(bus, PfifoReg::PfifoIntrEnable, !0);
        write(bus, PfifoReg::UserdBase, pfifo::USERD_BASE_VALID);
        put64(bus, DIRECTORY, pde(None, Some(SMALL_TABLE)).into_bits());
        for table in 0..data_bytes.div_ceil(PDE_SPAN).max(1) {
            let large = LARGE_TABLE + table * LARGE_PT_BYTES;
            put64(bus, DIRECTORY + 8 + table * 8, pde(Some(large), None).into_bits());
        }
        let ram: Vec<u8> = (0..4096)
            .flat_map(|page| ram_pte(page << 12).into_bits().to_le_bytes())
            .collect();
        put(bus, SMALL_TABLE + (RAM_VA >> 12) * 8, &ram);
        let data: Vec<u8> = (0..data_bytes >> 17)
            .flat_map(|page| vram_pte(DATA + (page << 17)).into_bits().to_le_bytes())
            .collect();
        put(bus, LARGE_TABLE, &data);
        Self {
            puts: vec![0; CHANNELS as usize],
            sequence: 0,
            runlist: Vec::new(),
            names_contexts: false,
        }
    }

    /// From now on channels name contexts of PGRAPH, as a driver has them that uses it.
    pub fn with_contexts(mut self) -> Self {
        self.names_contexts = true;
        self
    }

    /// Where the channel's instance block lies in VRAM.
    pub fn instance(channel: u8) -> u64 {
        INSTANCES + u64::from(channel) * 0x1000
    }

    /// Where the channel's ring lies in guest RAM.
    pub(crate) fn ring_gpa(channel: u8) -> u64 {
        RINGS_GPA + u64::from(channel) * 0x1000
    }

    /// Where its pushbuffer lies.
    pub(crate) fn pushbuffer_gpa(channel: u8) -> u64 {
        PUSHBUFFERS_GPA + u64::from(channel) * 0x1000
    }

    /// Where its semaphore lies.
    pub fn semaphore_gpa(channel: u8) -> u64 {
        SEMAPHORES_GPA + u64::from(channel) * 16
    }

    /// Writes an instance block as a driver would, with the directory given.
    pub fn write_instance(&mut self, bus: &mut impl WideBus, channel: u8, directory: u64) {
        let block = Self::instance(channel);
        let mut bytes = vec![0; 0x300];
        let mut word = |at: u64, value: u32| {
            bytes[at as usize..at as usize + 4].copy_from_slice(&value.to_le_bytes());
        };
        for (at, value) in RAMFC_DEFAULTS {
            word(at, value);
        }
        word(offset::GP_BASE_LO, (RAM_VA + Self::ring_gpa(channel)) as u32);
        word(offset::GP_BASE_HI, RING_LOG2 << 16);
        let pointer = AddressSpacePointer {
            aperture: Aperture::Vram,
            directory: PhysAddr(directory),
            limit: (1 << 40) - 1,
        };
        for (index, value) in pointer.into_words().into_iter().enumerate() {
            word(offset::PD_LO + 4 * index as u64, value);
        }
        if self.names_contexts {
            let at = CONTEXTS_GPA + u64::from(channel) * CONTEXT_BYTES;
            bus.ram_write(at, &[0; CONTEXT_BYTES as usize]);
            word(Engine::Graph.context_offset(), (RAM_VA + at) as u32 | 4);
        }
        put(bus, block, &bytes);
        self.puts[usize::from(channel)] = 0;
    }

    /// Puts the block into the channel table and starts the channel.
    pub fn bind(&mut self, bus: &mut impl WideBus, channel: u8) {
        let entry = ChannelInstance::new()
            .with_frame((Self::instance(channel) >> 12) as u32)
            .with_poll(true)
            .with_valid(true);
        write(bus, PfifoReg::ChannelInstance(channel.into()), entry.into_bits());
        write(bus, PfifoReg::ChannelState(channel.into()), pfifo::CHANNEL_START);
    }

    /// Takes the channel out of the table, as it is.
    pub fn unbind(&mut self, bus: &mut impl WideBus, channel: u8) {
        write(bus, PfifoReg::ChannelInstance(channel.into()), 0);
        self.runlist.retain(|&listed| listed != channel);
    }

    /// Hands over a list of the channels given.
    pub fn commit(&mut self, bus: &mut impl WideBus, channels: &[u8]) {
        self.runlist = channels.to_vec();
        let entries: Vec<u8> = channels
            .iter()
            .flat_map(|&id| (u64::from(id) | u64::from(pfifo::RUNLIST_ENTRY_TAG) << 32).to_le_bytes())
            .collect();
        put(bus, RUNLIST, &entries);
        write(bus, PfifoReg::RunlistBase, (RUNLIST >> 12) as u32);
        write(bus, PfifoReg::RunlistCommit, channels.len() as u32 | 0x1f << 20);
    }

    /// A channel as a driver would make it, on the runlist with those before it.
    pub fn open(&mut self, bus: &mut impl WideBus, channel: u8) {
        self.write_instance(bus, channel, DIRECTORY);
        self.bind(bus, channel);
        let mut list = self.runlist.clone();
        list.push(channel);
        self.commit(bus, &list);
    }

    /// Writes any ring entry, without the doorbell.
    pub fn push_entry(&mut self, bus: &mut impl WideBus, channel: u8, entry: u64) {
        let put = &mut self.puts[usize::from(channel)];
        bus.ram_write(
            Self::ring_gpa(channel) + u64::from(*put) * 8,
            &entry.to_le_bytes(),
        );
        *put = (*put + 1) % (1 << RING_LOG2);
    }

    /// Rings the doorbell for the entries pushed so far.
    pub fn ring(&mut self, bus: &mut impl WideBus, channel: u8) {
        Self::doorbell(bus, channel, self.puts[usize::from(channel)]);
    }

    /// GP_PUT of the entries pushed so far.
    pub fn put(&self, channel: u8) -> u32 {
        self.puts[usize::from(channel)]
    }

    /// GP_GET of a channel, as its USERD shows it.
    pub fn fetched(bus: &mut impl WideBus, channel: u8) -> u32 {
        bus.read32(Bar::Bar1, u64::from(channel) * USERD_BYTES + userd::GP_GET)
    }

    /// Stores any value to GP_PUT.
    pub fn doorbell(bus: &mut impl WideBus, channel: u8, put: u32) {
        bus.write32(Bar::Bar1, u64::from(channel) * USERD_BYTES + userd::GP_PUT, put);
    }

    /// Submits words from the channel's pushbuffer. The submissions before must be over.
    pub fn submit(&mut self, bus: &mut impl WideBus, channel: u8, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bus.ram_write(Self::pushbuffer_gpa(channel), &bytes);
        let at = GpuVa(RAM_VA + Self::pushbuffer_gpa(channel));
        self.push_entry(bus, channel, GpEntry::fetch(at, words.len() as u32));
        self.ring(bus, channel);
    }

    /// Submits words and a semaphore release behind them; returns whether the release came.
    pub fn execute(&mut self, bus: &mut impl WideBus, channel: u8, words: &[u32]) -> bool {
        let sequence = self.submit_with_release(bus, channel, words);
        self.wait(bus, channel, sequence)
    }

    /// Submits words and a release of the number returned.
    pub fn submit_with_release(&mut self, bus: &mut impl WideBus, channel: u8, words: &[u32]) -> u32 {
        self.sequence += 1;
        let va = RAM_VA + Self::semaphore_gpa(channel);
        let release = SemaphoreD::new().with_operation(2).with_release_short(true);
        let mut all = words.to_vec();
        all.extend(semaphore_words(va, self.sequence, release));
        self.submit(bus, channel, &all);
        self.sequence
    }

    /// Waits for the release; `false` if it does not come within a bound.
    pub fn wait(&self, bus: &mut impl WideBus, channel: u8, sequence: u32) -> bool {
        self.wait_turns(bus, channel, sequence, WAIT_TURNS)
    }

    /// Does the same with a bound of 20 µs for each.
    pub fn wait_turns(&self, bus: &mut impl WideBus, channel: u8, sequence: u32, turns: u32) -> bool {
        for _ in 0..turns {
            if bus.ram_read32(Self::semaphore_gpa(channel)) == sequence {
                return true;
            }
            bus.relax();
        }
        false
    }

    /// Fills `bytes` of the data at [`DATA_VA`] with a pattern by copy engine 0; returns whether that ended.
    pub fn fill(&mut self, bus: &mut impl WideBus, channel: u8, seed: u64, bytes: u64) -> bool {
        (0..bytes.div_ceil(PIECE)).all(|piece| {
            let length = PIECE.min(bytes - piece * PIECE);
            bus.ram_write(PIECE_GPA, &pattern(seed, piece, length));
            let mut words = bind_words(Engine::Copy0).to_vec();
            let lines = (length / LINE) as u32;
            words.extend(copy_words(
                RAM_VA + PIECE_GPA,
                DATA_VA + piece * PIECE,
                LINE as u32,
                lines,
            ));
            self.execute(bus, channel, &words)
        })
    }

    /// Stores two patterns in turn to `bytes` of the data, so often, in one submission; returns whether that ended.
    pub(crate) fn fill_in_turns(
        &mut self,
        bus: &mut impl WideBus,
        channel: u8,
        seed: u64,
        bytes: u64,
        rounds: u32,
    ) -> bool {
        bus.ram_write(PIECE_GPA, &pattern(seed, 0, PIECE + LINE));
        let mut words = bind_words(Engine::Copy0).to_vec();
        for round in 0..rounds {
            let source = RAM_VA + PIECE_GPA + u64::from(round % 2) * LINE;
            for piece in 0..bytes / PIECE {
                let target = DATA_VA + piece * PIECE;
                words.extend(copy_words(source, target, LINE as u32, (PIECE / LINE) as u32));
            }
        }
        self.execute(bus, channel, &words)
    }

    /// Reads the pattern back and compares it; gives the first wrong place, or `u64::MAX` if a copy does not end.
    pub fn verify(&mut self, bus: &mut impl WideBus, channel: u8, seed: u64, bytes: u64) -> Result<(), u64> {
        for piece in 0..bytes.div_ceil(PIECE) {
            let length = PIECE.min(bytes - piece * PIECE);
            bus.ram_write(PIECE_GPA, &vec![0xee; length as usize]);
            let mut words = bind_words(Engine::Copy0).to_vec();
            let lines = (length / LINE) as u32;
            words.extend(copy_words(
                DATA_VA + piece * PIECE,
                RAM_VA + PIECE_GPA,
                LINE as u32,
                lines,
            ));
            if !self.execute(bus, channel, &words) {
                return Err(u64::MAX);
            }
            let mut data = vec![0; length as usize];
            bus.ram_read(PIECE_GPA, &mut data);
            let wanted = pattern(seed, piece, length);
            if let Some(at) = data.iter().zip(wanted).position(|(&is, was)| is != was) {
                return Err(piece * PIECE + at as u64);
            }
        }
        Ok(())
    }

    /// Whether copy engine 0 still works for the channel: copies a few bytes of RAM and compares them.
    pub fn copies(&mut self, bus: &mut impl WideBus, channel: u8) -> bool {
        const FROM: u64 = 4 << 20;
        const TO: u64 = 5 << 20;
        let marker = self.sequence ^ 0x1357_9bdf;
        bus.ram_write(FROM, &marker.to_le_bytes());
        let mut words = bind_words(Engine::Copy0).to_vec();
        words.extend(copy_words(RAM_VA + FROM, RAM_VA + TO, 4, 1));
        self.execute(bus, channel, &words) && bus.ram_read32(TO) == marker
    }
}

fn pattern(seed: u64, piece: u64, length: u64) -> Vec<u8> {
    (0..length / 8)
        .flat_map(|word| (seed << 48 ^ (piece * PIECE + word * 8) ^ 0xa55a_0000_0000).to_le_bytes())
        .collect()
}
