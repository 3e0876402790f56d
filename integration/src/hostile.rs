//! Guests that attack. They may break their own GPU in any way; no other VM may notice.
//!
//! A seed gives an attacker a style, which is the weight of each kind of step; steps follow one another at random. All
//! but the first style start from a GPU that works, because most harm needs one: a channel that faults, a table that
//! changes while it is read, memory that moves while the engines write it.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{USERD_BYTES, offset, userd};
use fermi_spec::methods::SemaphoreD;
use fermi_spec::regs::pffb;
use fermi_spec::regs::pmc::LINE_HARDWARE;
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PffbReg, PfifoReg, PmcReg, pfifo};
use guests::driver::{Copier, CopyPath, DriverConfig, PageSize, USER_VA};
use guests::{Driver, GuestBus, Options};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::Request;

use crate::rig::{
    self, COMMAND, CONFIG_MIRROR, DATA, DATA_VA, DIRECTORY, LARGE_TABLE, MSI_CONTROL, RAM_VA, RUNLIST, Rig,
    SMALL_TABLE,
};
use sim_host::bus::SimBus;

const MIB: u64 = 1 << 20;
/// Channels that an attacker plays with.
const CHANNELS: u8 = 8;
/// Place of an attacker's tables and blocks, in the middle of its data.
const HIDDEN: u64 = DATA + MIB;

/// Next step of an attacker.
#[derive(Clone, Copy, Debug)]
enum Step {
    Register,
    Window,
    Work,
    Bad,
    Rebind,
    Runlist,
    Tables,
    Hidden,
    Userd,
    Flush,
    Reset,
    Interrupts,
    Rest,
}

const STEPS: [Step; 13] = [
    Step::Register,
    Step::Window,
    Step::Work,
    Step::Bad,
    Step::Rebind,
    Step::Runlist,
    Step::Tables,
    Step::Hidden,
    Step::Userd,
    Step::Flush,
    Step::Reset,
    Step::Interrupts,
    Step::Rest,
];

/// Weights of [`STEPS`], by style.
const STYLES: [[u32; 12]; 8] = [
    // Noise in registers and windows only.
    [6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    // Channels that make errors, come and go.
    [0, 0, 6, 6, 4, 2, 0, 0, 1, 0, 0, 3],
    // Tables that change under work, with and without a flush.
    [0, 1, 6, 0, 0, 0, 8, 0, 0, 5, 0, 2],
    // Tables, blocks and runlists in the middle of data, written by the engines.
    [0, 2, 4, 0, 2, 1, 1, 8, 0, 4, 0, 2],
    // Doorbells and windows.
    [0, 8, 4, 1, 1, 1, 0, 0, 8, 0, 0, 2],
    // PFIFO off and on.
    [1, 0, 5, 1, 2, 2, 1, 0, 1, 1, 3, 3],
    // All kinds of steps.
    [3, 3, 6, 2, 2, 2, 4, 3, 2, 3, 1, 3],
    // Almost a correct driver.
    [0, 1, 20, 1, 0, 0, 4, 0, 0, 4, 0, 6],
];

/// Attacks for a number of steps.
pub fn attack(bus: &mut SimBus, seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let style = rng.random_range(0..=STYLES.len());
    if style == STYLES.len() {
        return driver_gone_bad(bus, &mut rng);
    }
    let vram = u64::from(rig::read(bus, PffbReg::PartitionMebibytes(0))) * MIB;
    let data_bytes = (vram.saturating_sub(DATA) & !(MIB - 1)).min(28 * MIB);
    let mut attacker = Attacker {
        rig: Rig::start(bus, data_bytes),
        data_bytes,
        rng,
    };
    if style != 0 {
        for channel in 0..attacker.rng.random_range(1..=CHANNELS) {
            attacker.rig.open(bus, channel);
        }
    }
    let weights = STYLES[style];
    for _ in 0..attacker.rng.random_range(100..700) {
        let mut left = attacker.rng.random_range(0..weights.iter().sum());
        let step = weights.iter().position(|&weight| {
            let is_it = left < weight;
            left = left.saturating_sub(weight);
            is_it
        });
        attacker.step(bus, STEPS[step.unwrap_or(0)]);
    }
    Ok(())
}

struct Attacker {
    rig: Rig,
    data_bytes: u64,
    rng: ChaCha8Rng,
}

impl Attacker {
    fn step(&mut self, bus: &mut SimBus, step: Step) {
        match step {
            Step::Register => (0..8).for_each(|_| self.register(bus)),
            Step::Window => self.window(bus),
            Step::Work => self.work(bus),
            Step::Bad => self.bad(bus),
            Step::Rebind => self.rebind(bus),
            Step::Runlist => self.runlist(bus),
            Step::Tables => self.tables(bus),
            Step::Hidden => self.hidden(bus),
            Step::Userd => self.userd(bus),
            Step::Flush => self.flush(bus),
            Step::Reset => self.reset(bus),
            Step::Interrupts => self.interrupts(bus),
            Step::Rest => (0..self.rng.random_range(1..20)).for_each(|_| bus.relax()),
        }
    }

    fn channel(&mut self) -> u8 {
        self.rng.random_range(0..CHANNELS)
    }

    /// A byte of the data, a multiple of `unit`, with room for `bytes` behind it.
    fn data_at(&mut self, unit: u64, bytes: u64) -> u64 {
        let units = self.data_bytes.saturating_sub(bytes) / unit;
        self.rng.random_range(0..=units) * unit
    }

    /// A register of the table, mostly, with a value that could mean something.
    fn register(&mut self, bus: &mut SimBus) {
        let registers: Vec<Bar0Reg> = Bar0Reg::all().collect();
        let reg = registers[self.rng.random_range(0..registers.len())];
        let offset = match self.rng.random_range(0..8u32) {
            0 => self.rng.random_range(0..32 * MIB),
            _ => u64::from(reg.offset()),
        };
        if self.rng.random_range(0..8u32) == 0 {
            bus.read(Bar::Bar0, offset, [1, 2, 4][self.rng.random_range(0..3usize)]);
        } else {
            let value = value(&mut self.rng);
            bus.write(Bar::Bar0, offset, &value.to_le_bytes());
        }
    }

    /// Guest and VMM change how interrupts are told, whatever is pending.
    fn interrupts(&mut self, bus: &mut SimBus) {
        for _ in 0..self.rng.random_range(1..8) {
            let byte = [0, self.rng.random()][self.rng.random_range(0..2usize)];
            match self.rng.random_range(0..4u32) {
                0 => bus.write(Bar::Bar0, CONFIG_MIRROR + MSI_CONTROL, &[byte]),
                1 => bus.write(Bar::Bar0, CONFIG_MIRROR + COMMAND + 1, &[byte]),
                step => bus.machine(Request::MaskIntx { masked: step == 2 }),
            }
        }
        rig::write(bus, PmcReg::PmcIntrMask(0), !0);
        rig::write(bus, PmcReg::PmcIntrEnable(0), LINE_HARDWARE);
    }

    /// The CPU in PRAMIN, BAR1 and BAR3: tables, data that moves, noise.
    fn window(&mut self, bus: &mut SimBus) {
        let rng = &mut self.rng;
        let width = [1, 2, 4, 8, 64, 4096][rng.random_range(0..6usize)];
        let data: Vec<u8> = (0..width).map(|_| rng.random()).collect();
        match rng.random_range(0..6u32) {
            // Data through a window without translation.
            0..=2 => {
                rig::write(bus, PbusReg::Bar1Block, 0);
                let at = DATA + self.data_at(64, 4096);
                if self.rng.random() {
                    bus.write(Bar::Bar1, at, &data);
                } else {
                    bus.read(Bar::Bar1, at, width);
                }
            }
            // Through the tables that the channels use, whatever these are now.
            3 => {
                let block = (Rig::instance(0) >> 12) as u32 | 1 << 31;
                rig::write(
                    bus,
                    [PbusReg::Bar1Block, PbusReg::Bar3Block][rng.random_range(0..2usize)],
                    block,
                );
                let at = DATA_VA.min(64 * MIB) + rng.random_range(0..MIB);
                bus.write([Bar::Bar1, Bar::Bar3][rng.random_range(0..2usize)], at, &data);
            }
            4 => {
                let at = rng.random_range(0..0x10_0000u64);
                bus.write(Bar::Bar0, u64::from(PRAMIN_BASE) + at, &data[..width.min(8)]);
            }
            _ => {
                let bar = Bar::ALL[rng.random_range(0..3usize)];
                bus.read(bar, rng.random(), width);
            }
        }
    }

    /// Copies that a program could do, all over the data.
    fn work(&mut self, bus: &mut SimBus) {
        let channel = self.channel();
        let engine = [Engine::Copy0, Engine::Copy1][usize::from(channel & 1)];
        let mut words = rig::bind_words(engine).to_vec();
        for _ in 0..self.rng.random_range(1..12) {
            let lines = self.rng.random_range(1..64u32);
            let line = [0x1000, 0x4000, 0x8000][self.rng.random_range(0..3usize)];
            let bytes = u64::from(line) * u64::from(lines);
            let (source, target) = (self.data_at(256, bytes), self.data_at(256, bytes));
            let ram = RAM_VA + 8 * MIB;
            let (source, target) = match self.rng.random_range(0..4u32) {
                0 => (ram, DATA_VA + target),
                1 => (DATA_VA + source, ram),
                _ => (DATA_VA + source, DATA_VA + target),
            };
            words.extend(rig::copy_words(source, target, line, lines));
        }
        let sequence = self.rig.submit_with_release(bus, channel, &words);
        if self.rng.random() {
            self.rig.wait_turns(bus, channel, sequence, 30);
        }
    }

    /// Work that kills a channel, or never ends.
    fn bad(&mut self, bus: &mut SimBus) {
        let channel = self.channel();
        let rng = &mut self.rng;
        match rng.random_range(0..7u32) {
            0 => {
                let va = rng.random_range(0..1u64 << 40);
                let mut words = rig::bind_words(Engine::Copy0).to_vec();
                words.extend(rig::copy_words(va, DATA_VA, 0x1000, 4));
                self.rig.submit(bus, channel, &words);
            }
            1 => {
                let words: Vec<u32> = (0..rng.random_range(1..200)).map(|_| value(rng)).collect();
                self.rig.submit(bus, channel, &words);
            }
            2 => {
                let acquire = SemaphoreD::new()
                    .with_operation([1, 4, 8, 3][rng.random_range(0..4usize)])
                    .with_acquire_switch(rng.random());
                let words = rig::semaphore_words(RAM_VA + 6 * MIB, 0x7fff_ffff, acquire);
                self.rig.submit(bus, channel, &words);
            }
            3 => {
                let entry = rng.random();
                self.rig.push_entry(bus, channel, entry);
                self.rig.ring(bus, channel);
            }
            4 => Rig::doorbell(bus, channel, value(rng)),
            5 => {
                // The whole ring, each entry the same pushbuffer, again and again.
                let at = fermi_spec::addr::GpuVa(RAM_VA + Rig::pushbuffer_gpa(channel));
                let entry = fermi_spec::gpfifo::GpEntry::fetch(at, rng.random_range(1..1024));
                (0..511).for_each(|_| self.rig.push_entry(bus, channel, entry));
                self.rig.ring(bus, channel);
            }
            _ => {
                // One long copy.
                let mut words = rig::bind_words(Engine::Copy1).to_vec();
                let mut copy = rig::copy_words(DATA_VA, DATA_VA + MIB, 0xffff, rng.random_range(64..512));
                (copy[5], copy[6]) = (0, 0);
                words.extend(copy);
                self.rig.submit(bus, channel, &words);
            }
        }
        if self.rng.random() {
            rig::acknowledge(bus);
        }
    }

    fn rebind(&mut self, bus: &mut SimBus) {
        let channel = self.channel();
        match self.rng.random_range(0..6u32) {
            0 => self.rig.unbind(bus, channel),
            1 => self.rig.bind(bus, channel),
            2 => rig::write(bus, PfifoReg::ChannelState(channel.into()), value(&mut self.rng)),
            3 => {
                rig::write(bus, PfifoReg::Preempt, channel.into());
                (0..20).for_each(|_| bus.relax());
            }
            4 => {
                // Bound as it is, and changed at once.
                self.rig.bind(bus, channel);
                let at = self.rng.random_range(0..0x300 / 4) * 4;
                rig::put32(bus, Rig::instance(channel) + at, value(&mut self.rng));
            }
            _ => {
                self.rig.unbind(bus, channel);
                self.rig.open(bus, channel);
            }
        }
    }

    fn runlist(&mut self, bus: &mut SimBus) {
        let channels: Vec<u8> = (0..CHANNELS).filter(|_| self.rng.random()).collect();
        self.rig.commit(bus, &channels);
        if self.rng.random_range(0..3u32) == 0 {
            let at = self.rng.random_range(0..64u64) * 4;
            rig::put32(bus, RUNLIST + at, value(&mut self.rng));
            rig::write(bus, PfifoReg::RunlistCommit, value(&mut self.rng));
        }
        if self.rng.random() {
            let all: Vec<u8> = (0..CHANNELS).collect();
            self.rig.commit(bus, &all);
        }
    }

    /// Remaps pages, with a flush or without, sometimes to memory that does not exist.
    fn tables(&mut self, bus: &mut SimBus) {
        let large_entries = (self.data_bytes >> 17).max(1);
        for _ in 0..self.rng.random_range(1..20) {
            let page = self.data_at(4096, 4096);
            let entry = match self.rng.random_range(0..8u32) {
                0 => self.rng.random(),
                1 => 0,
                2 => rig::vram_pte(DATA + page).with_read_only(true).into_bits(),
                3 => rig::ram_pte(self.rng.random_range(0..20 * MIB) & !0xfff).into_bits(),
                _ => rig::vram_pte(DATA + (page & !0x1_ffff)).into_bits(),
            };
            match self.rng.random_range(0..4u32) {
                0 => rig::put64(bus, SMALL_TABLE + self.rng.random_range(0..512) * 8, entry),
                1 => {
                    let small = self.rng.random::<bool>().then_some(SMALL_TABLE);
                    let large = self.rng.random::<bool>().then_some(LARGE_TABLE);
                    let pde = rig::pde(large, small).with_size(self.rng.random_range(0..8u8) / 5);
                    rig::put64(bus, DIRECTORY + self.rng.random_range(2..40) * 8, pde.into_bits());
                }
                _ => rig::put64(
                    bus,
                    LARGE_TABLE + self.rng.random_range(0..large_entries) * 8,
                    entry,
                ),
            }
        }
        if self.rng.random() {
            self.flush(bus);
        }
        if self.rng.random_range(0..4u32) == 0 {
            // Back to tables that work.
            let good: Vec<u8> = (0..large_entries)
                .flat_map(|page| rig::vram_pte(DATA + (page << 17)).into_bits().to_le_bytes())
                .collect();
            rig::put(bus, LARGE_TABLE, &good);
            rig::put64(bus, DIRECTORY + 8, rig::pde(Some(LARGE_TABLE), None).into_bits());
            rig::flush(bus, DIRECTORY);
        }
    }

    /// A table, block or runlist that an engine wrote into data: it may be resident, spilled or on its way.
    fn hidden(&mut self, bus: &mut SimBus) {
        const STAGING: u64 = 5 * MIB;
        let at = self.rng.random_range(0..8u64) * 0x4_0000;
        let bytes: Vec<u8> = match self.rng.random_range(0..3u32) {
            0 => (0..512)
                .flat_map(|_| {
                    let page = self.data_at(4096, 4096);
                    rig::vram_pte(DATA + page).into_bits().to_le_bytes()
                })
                .collect(),
            1 => {
                let pde = rig::pde(Some(LARGE_TABLE), Some(HIDDEN + at)).into_bits();
                pde.to_le_bytes().repeat(512)
            }
            _ => {
                let ids: Vec<u64> = (0..u64::from(CHANNELS)).map(|id| id | 4 << 32).collect();
                ids.iter().flat_map(|id| id.to_le_bytes()).collect()
            }
        };
        bus.ram_write(STAGING, &bytes);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        let target = DATA_VA + (HIDDEN - DATA) + at;
        words.extend(rig::copy_words(RAM_VA + STAGING, target, bytes.len() as u32, 1));
        let sequence = self.rig.submit_with_release(bus, 0, &words);
        self.rig.wait_turns(bus, 0, sequence, 30);
        match self.rng.random_range(0..4u32) {
            0 => {
                let pde = rig::pde(None, Some(HIDDEN + at)).into_bits();
                rig::put64(bus, DIRECTORY + self.rng.random_range(2..6) * 8, pde);
                rig::flush(bus, DIRECTORY);
            }
            1 => {
                // A directory of its own, for a channel of its own.
                let channel = self.channel();
                self.rig.unbind(bus, channel);
                self.rig.write_instance(bus, channel, HIDDEN + at);
                self.rig.bind(bus, channel);
                rig::flush(bus, HIDDEN + at);
            }
            2 => {
                rig::write(bus, PfifoReg::RunlistBase, ((HIDDEN + at) >> 12) as u32);
                rig::write(bus, PfifoReg::RunlistCommit, self.rng.random_range(0..600));
            }
            _ => {
                let channel = self.channel();
                self.rig.unbind(bus, channel);
                let entry = 0xc000_0000 | ((HIDDEN + at) >> 12) as u32;
                rig::write(bus, PfifoReg::ChannelInstance(channel.into()), entry);
                rig::write(bus, PfifoReg::ChannelState(channel.into()), pfifo::CHANNEL_START);
            }
        }
    }

    fn userd(&mut self, bus: &mut SimBus) {
        let channel = u64::from(self.channel());
        let rng = &mut self.rng;
        match rng.random_range(0..6u32) {
            0 => rig::write(
                bus,
                PfifoReg::UserdBase,
                pfifo::USERD_BASE_VALID | rng.random_range(0..4u32) << 7,
            ),
            1 => rig::write(bus, PfifoReg::UserdBase, pfifo::USERD_BASE_VALID),
            2 => {
                let at = channel * USERD_BYTES + rng.random_range(0x40..0x100);
                let data: Vec<u8> = (0..[1, 2, 8, 64][rng.random_range(0..4usize)])
                    .map(|_| rng.random())
                    .collect();
                bus.write(Bar::Bar1, at, &data);
            }
            3 => {
                bus.read(Bar::Bar1, channel * USERD_BYTES + userd::GP_GET, 8);
            }
            _ => (0..20).for_each(|put| Rig::doorbell(bus, channel as u8, put)),
        }
    }

    fn flush(&mut self, bus: &mut SimBus) {
        match self.rng.random_range(0..5u32) {
            0 => rig::flush(bus, self.rng.random::<u64>() & 0xff_ffff_f000),
            1 => rig::write(
                bus,
                PffbReg::TlbInvalidate,
                pffb::TLB_GO | pffb::TLB_ALL_DIRECTORIES,
            ),
            2 => {
                rig::write(bus, PffbReg::TlbDirectory, value(&mut self.rng));
                rig::write(bus, PffbReg::TlbInvalidate, value(&mut self.rng) | pffb::TLB_GO);
            }
            _ => rig::flush(bus, DIRECTORY),
        }
    }

    /// PFIFO off in the middle of everything, and on again with fresh channels.
    fn reset(&mut self, bus: &mut SimBus) {
        self.rig = Rig::start(bus, self.data_bytes);
        for channel in 0..self.rng.random_range(1..CHANNELS) {
            self.rig.open(bus, channel);
            if self.rng.random_range(0..4u32) == 0 {
                let block = Rig::instance(channel) + offset::ENGINE_CONTEXTS;
                rig::put32(bus, block, value(&mut self.rng));
            }
        }
    }
}

/// An ordinary driver and its copies, until the program behind it maps and copies what it should not.
fn driver_gone_bad(bus: &mut SimBus, rng: &mut ChaCha8Rng) -> Result<(), String> {
    let options = Options {
        timeout_ms: 50,
        ..Options::default()
    };
    let Ok(mut driver) = Driver::start(bus, &DriverConfig::new(MIB..7 * MIB, &options)) else {
        return Ok(());
    };
    let Ok(mut copier) = Copier::new(&mut driver, bus) else {
        return Ok(());
    };
    let pages = driver.vram_bytes().saturating_sub(Driver::data_start()) >> 17;
    for _ in 0..rng.random_range(10..80) {
        let page = rng.random_range(0..pages.max(1));
        let count = rng.random_range(1..=(pages - page).clamp(1, 32));
        let va = USER_VA + (rng.random_range(0..512u64) << 17);
        let vram = Driver::data_start().next_multiple_of(1 << 17) + (page << 17);
        // Any failure is the attacker's own loss.
        let _ = match rng.random_range(0..4u32) {
            0 => driver.unmap(bus, va, count << 17, PageSize::Large),
            _ => driver.map_vram(bus, va, vram, count << 17, PageSize::Large),
        };
        if rng.random_range(0..3u32) != 0 {
            let _ = driver.flush_tlb(bus);
        }
        let copy = guests::driver::Copy {
            source: USER_VA + (rng.random_range(0..512u64) << 17),
            target: va,
            bytes: rng.random_range(1..256) << 10,
        };
        let path = CopyPath::ALL[rng.random_range(0..3usize)];
        let done = copier
            .copy(&mut driver, bus, path, copy)
            .and_then(|()| copier.finish(&mut driver, bus));
        if done.is_err() {
            rig::acknowledge(bus);
            // The channels are dead: new ones take their place, as a program that is started again.
            match Copier::new(&mut driver, bus) {
                Ok(fresh) => copier = fresh,
                Err(_) => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Small numbers, addresses within VRAM, flag bits, and noise.
fn value(rng: &mut ChaCha8Rng) -> u32 {
    match rng.random_range(0..5u32) {
        0 => rng.random_range(0..256),
        1 => rng.random_range(0..0x6000u32) | 0xc000_0000,
        2 => 1 << rng.random_range(0..32u32),
        3 => rng.random_range(0..0x6000u32) << 4 | rng.random_range(0..16),
        _ => rng.random(),
    }
}
