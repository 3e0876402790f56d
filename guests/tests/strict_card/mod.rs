//! A card that executes what a correct driver asks for and panics at anything else.
//!
//! It knows page tables only as they were at the last flush, executes in `relax` only, and counts accesses. It has
//! no timing, no errors and no interrupts: those are for a model of the hardware.

use fermi_spec::addr::{Aperture, GpuVa, LARGE_PAGE, PDE_SPAN, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::instance::{AddressSpacePointer, SIGNATURE, offset, userd};
use fermi_spec::methods::{CopyExec, M2mfLaunch, SemaphoreD, SemaphoreOp, class, copy, host, m2mf};
use fermi_spec::pte::{Pde, Pte};
use fermi_spec::pushbuffer::Header;
use fermi_spec::regs::pffb;
use fermi_spec::regs::{
    Bar0Reg, PRAMIN_BASE, PRAMIN_BYTES, PbdmaReg, PbusReg, PffbReg, PfifoReg, PflushReg, PmcReg, PunitsReg,
    pfifo, windows,
};
use guests::GuestBus;
use std::collections::BTreeMap;

/// Pages of one address space as of its last flush, by number of 4 KiB page.
type Pages = BTreeMap<u64, Pte>;

#[derive(Default)]
struct Channel {
    bind: u32,
    state: u32,
    is_listed: bool,
    gp_get: u32,
    gp_put: u32,
    objects: [u32; 8],
    methods: BTreeMap<(u8, u16), u32>,
}

pub(crate) struct StrictCard {
    pub vram: Vec<u8>,
    pub ram: Vec<u8>,
    pub lines: Vec<String>,
    /// Called with the card for each reported line.
    pub on_line: fn(&mut StrictCard, &str),
    /// Accesses to BAR0, BAR1, BAR3.
    pub accesses: [u64; 3],
    pub flushes: u64,
    pub copies: BTreeMap<u32, u64>,
    registers: BTreeMap<u32, u32>,
    spaces: BTreeMap<u64, Pages>,
    /// Last address of each space that a block has named.
    limits: BTreeMap<u64, u64>,
    channels: BTreeMap<u32, Channel>,
    now_ns: u64,
}

impl StrictCard {
    pub(crate) fn new(vram_bytes: usize, ram_bytes: usize) -> Self {
        let mut registers = BTreeMap::new();
        registers.insert(PmcReg::Boot0.offset(), 0x0c0c_00a3);
        registers.insert(PunitsReg::DesignPartitions.offset(), 1);
        registers.insert(PffbReg::PartitionMebibytes(0).offset(), (vram_bytes >> 20) as u32);
        registers.insert(PffbReg::MmuConfig.offset(), pffb::MMU_CONFIG_READY);
        Self {
            vram: vec![0; vram_bytes],
            ram: vec![0; ram_bytes],
            lines: Vec::new(),
            on_line: |_, _| (),
            accesses: [0; 3],
            flushes: 0,
            copies: BTreeMap::new(),
            registers,
            spaces: BTreeMap::new(),
            limits: BTreeMap::new(),
            channels: BTreeMap::new(),
            now_ns: 0,
        }
    }

    fn vram32(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.vram[at as usize..][..4].try_into().expect("four bytes"))
    }

    fn vram64(&self, at: u64) -> u64 {
        u64::from(self.vram32(at)) | u64::from(self.vram32(at + 4)) << 32
    }

    fn register(&self, register: impl Into<Bar0Reg>) -> u32 {
        self.registers
            .get(&register.into().offset())
            .copied()
            .unwrap_or(0)
    }

    fn pointer(&self, block: u64) -> AddressSpacePointer {
        let word = |index: u64| self.vram32(block + offset::PD_LO + index * 4);
        AddressSpacePointer::from_words([word(0), word(1), word(2), word(3)])
    }

    /// Takes the space that a block names.
    fn bind(&mut self, block: u64) {
        let space = self.pointer(block);
        self.limits.insert(space.directory.0, space.limit);
        self.sync(space.directory.0);
    }

    /// Takes the tables of a directory as they are now, if a block has named it.
    fn sync(&mut self, directory: u64) {
        let Some(&limit) = self.limits.get(&directory) else {
            return;
        };
        let mut pages = Pages::new();
        for index in 0..=limit / PDE_SPAN {
            let pde = Pde::from_bits(self.vram64(directory + index * 8));
            let tables = [(pde.small_table(), SMALL_PAGE), (pde.large_table(), LARGE_PAGE)];
            for (table, size) in tables {
                let Some((Aperture::Vram, table)) = table else {
                    continue;
                };
                for entry in 0..PDE_SPAN / size {
                    let va = index * PDE_SPAN + entry * size;
                    let pte = Pte::from_bits(self.vram64(table.0 + entry * 8));
                    if pte.valid() && va <= limit {
                        let first = va / SMALL_PAGE;
                        pages.extend(
                            (0..size / SMALL_PAGE)
                                .map(|page| (first + page, pte.with_frame(pte.frame() + page as u32))),
                        );
                    }
                }
            }
        }
        self.spaces.insert(directory, pages);
    }

    fn byte_of(&self, directory: u64, va: u64) -> (Aperture, usize) {
        let pte = self.spaces[&directory]
            .get(&(va / SMALL_PAGE))
            .unwrap_or_else(|| panic!("{va:#x} is not mapped, or not flushed, in {directory:#x}"));
        (pte.aperture(), (pte.address().0 + va % SMALL_PAGE) as usize)
    }

    fn load(&self, directory: u64, va: u64, bytes: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(bytes);
        while data.len() < bytes {
            let at = va + data.len() as u64;
            let part = (bytes - data.len()).min((SMALL_PAGE - at % SMALL_PAGE) as usize);
            let (aperture, first) = self.byte_of(directory, at);
            let memory = if aperture == Aperture::Vram {
                &self.vram
            } else {
                &self.ram
            };
            data.extend_from_slice(&memory[first..first + part]);
        }
        data
    }

    fn store(&mut self, directory: u64, va: u64, mut data: &[u8]) {
        let mut at = va;
        while !data.is_empty() {
            let part = data.len().min((SMALL_PAGE - at % SMALL_PAGE) as usize);
            let (aperture, first) = self.byte_of(directory, at);
            let memory = if aperture == Aperture::Vram {
                &mut self.vram
            } else {
                &mut self.ram
            };
            memory[first..first + part].copy_from_slice(&data[..part]);
            (at, data) = (at + part as u64, &data[part..]);
        }
    }

    fn load32(&self, directory: u64, va: u64) -> u32 {
        u32::from_le_bytes(self.load(directory, va, 4).try_into().expect("four bytes"))
    }

    fn window_space(&self, bar: Bar) -> u64 {
        let register = if bar == Bar::Bar1 {
            PbusReg::Bar1Block
        } else {
            PbusReg::Bar3Block
        };
        let block = windows::WindowBlock::from_bits(self.register(register));
        assert!(block.enable(), "{bar:?} before its block");
        self.pointer(block.instance().0).directory.0
    }

    fn window_write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        self.accesses[1 + usize::from(bar == Bar::Bar3)] += 1;
        let space = self.window_space(bar);
        self.store(space, offset, data);
        let base = self.register(PfifoReg::UserdBase);
        let Some(place) = offset.checked_sub(u64::from(base & 0xfff_ffff) << 12) else {
            return;
        };
        if bar == Bar::Bar1 && place < 128 * SMALL_PAGE && place % SMALL_PAGE == userd::GP_PUT {
            let id = (place / SMALL_PAGE) as u32;
            let value = u32::from_le_bytes(data.try_into().expect("a doorbell of four bytes"));
            let channel = self
                .channels
                .get_mut(&id)
                .expect("doorbell of a channel that is bound");
            assert!(channel.is_listed, "doorbell of channel {id}, not on the runlist");
            channel.gp_put = value;
        }
    }

    fn bar0_write(&mut self, offset: u32, value: u32) {
        if let Some(place) = offset.checked_sub(PRAMIN_BASE).filter(|at| *at < PRAMIN_BYTES) {
            let base = windows::PraminBase::from_bits(self.register(PbusReg::PraminBase));
            let at = base.address().0 as usize + place as usize;
            self.vram[at..at + 4].copy_from_slice(&value.to_le_bytes());
            return;
        }
        let register = Bar0Reg::decode(offset).unwrap_or_else(|| panic!("store to {offset:#x}"));
        match register {
            Bar0Reg::Pmc(PmcReg::PbdmaEnable) => drop(self.registers.insert(offset, value & 7)),
            Bar0Reg::Pflush(PflushReg::HostFlush)
            | Bar0Reg::Pfifo(PfifoReg::PfifoIntr)
            | Bar0Reg::Pbdma(PbdmaReg::PbdmaIntr(_)) => (),
            Bar0Reg::Pbus(PbusReg::Bar1Block) | Bar0Reg::Pbus(PbusReg::Bar3Block) => {
                self.registers.insert(offset, value);
                self.bind(windows::WindowBlock::from_bits(value).instance().0);
            }
            Bar0Reg::Pffb(PffbReg::TlbInvalidate) => {
                self.flushes += 1;
                let directory = u64::from(self.register(PffbReg::TlbDirectory) & !0xf) << 8;
                self.sync(directory);
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelInstance(id)) => {
                let bind = pfifo::ChannelInstance::from_bits(value);
                if bind.valid() {
                    self.bind(bind.instance().0);
                }
                let channel = self.channels.entry(u32::from(id)).or_default();
                assert!(!channel.is_listed, "bind of channel {id}, on the runlist");
                *channel = Channel {
                    bind: value,
                    ..Channel::default()
                };
            }
            Bar0Reg::Pfifo(PfifoReg::ChannelState(id)) => {
                self.channels.entry(u32::from(id)).or_default().state = value;
            }
            Bar0Reg::Pfifo(PfifoReg::Preempt) => {
                let channel = &self.channels[&value];
                assert_eq!(channel.gp_get, channel.gp_put, "preempt of a channel with work");
                self.registers.insert(offset, value);
            }
            Bar0Reg::Pfifo(PfifoReg::RunlistCommit) => self.commit(pfifo::RunlistCommit::from_bits(value)),
            _ => drop(self.registers.insert(offset, value)),
        }
    }

    fn commit(&mut self, commit: pfifo::RunlistCommit) {
        let list = pfifo::RunlistBase::from_bits(self.register(PfifoReg::RunlistBase));
        self.channels
            .values_mut()
            .for_each(|channel| channel.is_listed = false);
        for index in 0..u64::from(commit.count()) {
            let entry = self.vram64(list.address().0 + index * 8);
            assert_eq!(entry >> 32, 4);
            let id = entry as u32;
            let channel = self
                .channels
                .get_mut(&id)
                .expect("a bound channel on the runlist");
            assert_eq!(channel.state, pfifo::CHANNEL_START);
            channel.is_listed = true;
        }
    }

    /// One GPFIFO entry of the first channel that has one.
    fn run_one_entry(&mut self) {
        let ready = |channel: &&u32| {
            let channel = &self.channels[channel];
            channel.is_listed && channel.gp_get != channel.gp_put
        };
        let Some(id) = self.channels.keys().find(ready).copied() else {
            return;
        };
        let mut channel = self.channels.remove(&id).expect("found above");
        let block = pfifo::ChannelInstance::from_bits(channel.bind).instance().0;
        assert_eq!(self.vram32(block + offset::SIGNATURE), SIGNATURE);
        let space = self.pointer(block).directory.0;
        let high = self.vram32(block + offset::GP_BASE_HI);
        let ring = u64::from(self.vram32(block + offset::GP_BASE_LO)) | u64::from(high & 0xff) << 32;
        let at = ring + u64::from(channel.gp_get) * 8;
        let raw = u64::from(self.load32(space, at)) | u64::from(self.load32(space, at + 4)) << 32;
        let GpEntry::Fetch(segment) = GpEntry::from_bits(raw) else {
            panic!("control entry {raw:#x}");
        };
        self.run_segment(&mut channel, space, segment.at, segment.words);
        channel.gp_get = (channel.gp_get + 1) % (1 << (high >> 16 & 0x1f));
        self.channels.insert(id, channel);
    }

    fn run_segment(&mut self, channel: &mut Channel, space: u64, at: GpuVa, words: u32) {
        let mut next = 0;
        while next < words {
            let header = Header::from_bits(self.load32(space, at.0 + u64::from(next) * 4));
            let Header::Incrementing(target, count) = header else {
                panic!("{header:?}");
            };
            for index in 0..u32::from(count) {
                let value = self.load32(space, at.0 + u64::from(next + 1 + index) * 4);
                let method = target.method + index as u16 * 4;
                self.run_method(channel, space, target.subchannel, method, value);
            }
            next += 1 + u32::from(count);
        }
        assert_eq!(next, words, "a header reaches beyond its segment");
    }

    fn run_method(&mut self, channel: &mut Channel, space: u64, sub: u8, method: u16, value: u32) {
        let key = if method < host::FIRST_ENGINE_METHOD {
            (0, method)
        } else {
            (sub, method)
        };
        channel.methods.insert(key, value);
        let object = channel.objects[usize::from(sub)];
        match method {
            host::SET_OBJECT => channel.objects[usize::from(sub)] = value,
            host::SEMAPHORE_D => {
                let operation = SemaphoreD::from_bits(value);
                assert_eq!(operation.op(), SemaphoreOp::Release);
                assert!(operation.release_short() && !operation.release_no_wait());
                let at = address(channel, 0, host::SEMAPHORE_A);
                let payload = channel.methods[&(0, host::SEMAPHORE_C)];
                self.store(space, at, &payload.to_le_bytes());
            }
            copy::EXEC if object as u16 != class::M2MF => {
                assert!([0x0004_90b5, 0x0005_90b8].contains(&object), "{object:#x}");
                let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
                assert_eq!(value, exec.into_bits());
                let (source, target) = (copy::SRC_HIGH, copy::DST_HIGH);
                self.copy(
                    channel,
                    space,
                    sub,
                    [source, target, copy::LINE_BYTES, copy::LINES],
                );
            }
            m2mf::LAUNCH => {
                assert!(object == 0x9039, "{object:#x}");
                let launch = M2mfLaunch::from_bits(value);
                assert!(launch.src_linear() && launch.dst_linear() && !launch.inline());
                let (source, target) = (m2mf::OFFSET_IN_HIGH, m2mf::OFFSET_OUT_HIGH);
                self.copy(
                    channel,
                    space,
                    sub,
                    [source, target, m2mf::LINE_LENGTH, m2mf::LINE_COUNT],
                );
            }
            _ => (),
        }
    }

    fn copy(&mut self, channel: &Channel, space: u64, sub: u8, methods: [u16; 4]) {
        let [source, target, line, lines] = methods;
        let bytes = channel.methods[&(sub, line)] * channel.methods[&(sub, lines)];
        let data = self.load(space, address(channel, sub, source), bytes as usize);
        self.store(space, address(channel, sub, target), &data);
        *self.copies.entry(channel.objects[usize::from(sub)]).or_default() += 1;
    }
}

fn address(channel: &Channel, sub: u8, high: u16) -> u64 {
    let (upper, lower) = (channel.methods[&(sub, high)], channel.methods[&(sub, high + 4)]);
    u64::from(upper) << 32 | u64::from(lower)
}

impl GuestBus for StrictCard {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        if bar != Bar::Bar0 {
            self.accesses[1 + usize::from(bar == Bar::Bar3)] += 1;
            return self.load32(self.window_space(bar), offset);
        }
        self.accesses[0] += 1;
        let offset = offset as u32;
        if let Some(place) = offset.checked_sub(PRAMIN_BASE).filter(|at| *at < PRAMIN_BYTES) {
            let base = windows::PraminBase::from_bits(self.register(PbusReg::PraminBase));
            return self.vram32(base.address().0 + u64::from(place));
        }
        match Bar0Reg::decode(offset) {
            Some(Bar0Reg::Pfifo(PfifoReg::ChannelState(id))) => self.channels[&u32::from(id)].state,
            Some(register) => self.register(register),
            None => panic!("load from {offset:#x}"),
        }
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        if bar == Bar::Bar0 {
            self.accesses[0] += 1;
            self.bar0_write(offset as u32, value);
        } else {
            self.window_write(bar, offset, &value.to_le_bytes());
        }
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        assert_ne!(bar, Bar::Bar0);
        self.window_write(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.ram[gpa as usize..][..data.len()]);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.ram[gpa as usize..][..data.len()].copy_from_slice(data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        assert_eq!(gpa % 4, 0);
        u32::from_le_bytes(self.ram[gpa as usize..][..4].try_into().expect("four bytes"))
    }

    fn relax(&mut self) {
        self.now_ns += 1000;
        self.run_one_entry();
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        (self.on_line)(self, line);
    }
}
