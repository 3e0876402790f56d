//! A guest that is alone, on a card of its own and on a vGPU of one, in real time: what its jobs take on both is what a mediator costs.
//!
//! The card is *paced*: a grid takes the host as long as it takes the card. Jobs are grids of one warp that counts, each with a release of a
//! semaphore behind it that the guest looks at in its memory. Both guests run the same code: BAR0 by calls or messages, USERD by calls or as
//! memory.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use broker::{Broker, SocketAccess, VmSocket};
use card::{CardConfig, ModelGpu};
use fermi_spec::addr::{FRAME, FrameNo, GpuVa, Iova, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::engine::Engine;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::instance::{USERD_BYTES, offset};
use fermi_spec::methods::SemaphoreD;
use fermi_spec::regs::pbdma::STALL_CLEARED;
use fermi_spec::regs::windows::WindowBlock;
use fermi_spec::regs::{PbdmaReg, PbusReg, PfifoReg, PtimerReg};
use guests::GuestBus;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sim_host::bus::WideBus;
use vgpu::{DmaMemory, FrameOwner, GpuConfig, HostGpu as _, Quota, VmConfig};
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};
use vmm::{VfioUserLink, VgpuLink as _};
use vramd::host::{CardChoice, HostSetup, start_broker};

use crate::bench::RAM_BYTES;
use crate::keeper::counting_grid;
use crate::neighbour::bar1_memory;
use crate::rig::{self, RAM_VA, Rig};

const MIB: u64 = 1 << 20;
const CARD_VRAM: u64 = 64 * MIB;
const GUEST_VRAM: u64 = 32 * MIB;
const DATA_BYTES: u64 = 8 * MIB;
const CHANNEL: u8 = 1;
/// Tables of BAR1, and USERD of all channels, in VRAM that the rig leaves alone.
const BAR1_VIEW: u64 = 0x30_0000;
const USERD: u64 = 0x38_0000;
/// Where pushbuffers and what jobs release lie, in guest RAM.
const PUSHBUFFERS_GPA: u64 = 4 << 20;
const RELEASED_GPA: u64 = 5 << 20;
const COPIED_GPA: u64 = 6 << 20;
/// As many as a pushbuffer has room for.
const COPIES: usize = 20;
/// Pushbuffers that are used in turn, more than jobs are ever under way.
const PUSHBUFFERS: u32 = 64;
const PUSHBUFFER_BYTES: u64 = 0x400;
/// Time after which a job does not end.
const STANDSTILL: Duration = Duration::from_secs(20);

/// Where a guest's accesses go.
enum Way {
    Card(ModelGpu),
    Vgpu { link: VfioUserLink, bar1: MmapRegion },
}

/// A guest's machine, without a processor of its own: its code runs here.
struct Machine {
    way: Way,
    ram: Arc<MmapRegion>,
    start: Instant,
}

impl Machine {
    fn new(way: impl FnOnce(&File, &Arc<MmapRegion>) -> Result<Way>) -> Result<Self> {
        let file = memfd_create("solo", MemfdFlags::CLOEXEC).context("cannot make RAM")?;
        ftruncate(&file, RAM_BYTES).context("cannot make RAM")?;
        let file = File::from(file);
        let offset = FileOffset::new(file.try_clone()?, 0);
        let ram = MmapRegion::from_file(offset, RAM_BYTES as usize).context("cannot map RAM")?;
        // Fresh memory is slow.
        ram.as_volatile_slice()
            .write_slice(&vec![0; RAM_BYTES as usize], 0)?;
        let ram = Arc::new(ram);
        Ok(Self {
            way: way(&file, &ram)?,
            ram,
            start: Instant::now(),
        })
    }
}

impl WideBus for Machine {
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let data = &mut word[..bytes];
        match &mut self.way {
            Way::Card(card) => {
                card.read(bar, offset, data).expect("the card is there");
                card.flush().expect("the card is there");
            }
            Way::Vgpu { bar1, .. } if bar == Bar::Bar1 => {
                let memory = bar1.as_volatile_slice();
                memory.read_slice(data, offset as usize).expect("it is in BAR1");
            }
            Way::Vgpu { link, .. } => link
                .region_read(bar.number(), offset, data)
                .expect("the vGPU is there"),
        }
        u64::from_le_bytes(word)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        match &mut self.way {
            Way::Card(card) => {
                card.write(bar, offset, data).expect("the card is there");
                card.flush().expect("the card is there");
            }
            Way::Vgpu { bar1, .. } if bar == Bar::Bar1 => {
                let memory = bar1.as_volatile_slice();
                memory.write_slice(data, offset as usize).expect("it is in BAR1");
            }
            Way::Vgpu { link, .. } => link
                .region_write(bar.number(), offset, data)
                .expect("the vGPU is there"),
        }
    }
}

impl GuestBus for Machine {
    sim_host::narrow_accesses!();

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        let ram = self.ram.as_volatile_slice();
        ram.read_slice(data, gpa as usize).expect("it is in RAM");
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        let ram = self.ram.as_volatile_slice();
        ram.write_slice(data, gpa as usize).expect("it is in RAM");
    }

    fn relax(&mut self) {
        // As many threads as processors run: the guest's, the card's, now and then the broker's.
        std::thread::yield_now();
    }

    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn report(&mut self, _: &str) {}
}

/// A guest that is alone.
pub struct Solo {
    machine: Machine,
    rig: Rig,
    job: Vec<u32>,
    jobs: u32,
    /// Ends after its VM.
    _host: Option<(Broker, tempfile::TempDir)>,
}

const fn card() -> CardConfig {
    CardConfig {
        board: Board::Gtx480,
        vram_bytes: CARD_VRAM,
        needs_microcode: false,
        strict: false,
        paced: true,
        workers: 0,
    }
}

impl Solo {
    /// On a card of its own.
    ///
    /// # Errors
    /// No card, or no memory.
    pub fn on_a_card() -> Result<Self> {
        let machine = Machine::new(|_, ram| {
            let mut card = ModelGpu::new(card())?;
            let frames: Vec<_> = (0..(CARD_VRAM / FRAME) as u32).map(FrameNo).collect();
            card.place_frames(&frames, FrameOwner::Broker)?;
            let memory = DmaMemory {
                region: Arc::clone(ram),
                offset: 0,
                bytes: RAM_BYTES,
            };
            card.map_dma(Iova(0), memory, true)?;
            Ok(Way::Card(card))
        })?;
        Self::start(machine, None)
    }

    /// On a vGPU that has all that it sees.
    ///
    /// # Errors
    /// The broker does not start, or does not let the VM in.
    pub fn on_a_vgpu() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a folder for sockets")?;
        let path = folder.path().join("solo");
        let config = VmConfig {
            name: "solo".to_owned(),
            guest_vram: GUEST_VRAM,
            chunk_bytes: 2 * MIB,
            ram: RAM_BYTES,
            channels: vgpu::CHANNELS_DEFAULT,
            quota: Quota::default(),
        };
        let broker = start_broker(HostSetup {
            card: CardChoice::Model(CardConfig {
                strict: true,
                ..card()
            }),
            settings: GpuConfig {
                host_ram: 256 * MIB,
                ..GpuConfig::default()
            },
            firmware: None,
            flights: None,
            record: None,
            vms: vec![VmSocket::bind(&path, &SocketAccess::default(), config)?],
        })?;
        let machine = Machine::new(|file, _| {
            let link = VfioUserLink::connect(&path).context("cannot connect")?;
            let bar1 = bar1_memory(&link)?;
            link.dma_map(0, RAM_BYTES, file.as_fd(), 0)?;
            Ok(Way::Vgpu { link, bar1 })
        })?;
        Self::start(machine, Some((broker, folder)))
    }

    fn start(mut machine: Machine, host: Option<(Broker, tempfile::TempDir)>) -> Result<Self> {
        let mut rig = Rig::start(&mut machine, DATA_BYTES);
        match host {
            Some(_) => {
                rig = rig.with_contexts();
                rig.open(&mut machine, CHANNEL);
            }
            None => open_on_a_card(&mut rig, &mut machine),
        }
        let mut solo = Self {
            machine,
            rig,
            job: Vec::new(),
            jobs: 0,
            _host: host,
        };
        solo.set_job(1);
        solo.run(1, 1).context("the first job")?;
        Ok(solo)
    }

    /// From now on a job counts to `steps`.
    pub fn set_job(&mut self, steps: u32) {
        self.job = counting_grid(&mut self.machine, steps);
    }

    /// From now on a job is some copies of four bytes, which take a card far longer than the host.
    pub fn set_copies(&mut self) {
        let copy = rig::copy_words(RAM_VA + COPIED_GPA, RAM_VA + COPIED_GPA + 0x1000, 4, 1);
        self.job = rig::bind_words(Engine::Copy0).to_vec();
        self.job.extend(copy.repeat(COPIES));
    }

    /// Runs `jobs` jobs, of which up to `queued` are handed over at a time. How long all of them took.
    ///
    /// # Errors
    /// One does not end.
    pub fn run(&mut self, jobs: u32, queued: u32) -> Result<Duration> {
        let start = Instant::now();
        let (first, last) = (self.jobs + 1, self.jobs + jobs);
        for number in first..=last {
            self.submit(number);
            self.wait_for((number + 1).saturating_sub(queued).max(first - 1))?;
        }
        self.wait_for(last)?;
        self.jobs = last;
        Ok(start.elapsed())
    }

    /// PTIMER of the card, nanoseconds.
    pub fn card_time(&mut self) -> u64 {
        let [low, high] =
            [PtimerReg::PtimerLow, PtimerReg::PtimerHigh].map(|word| rig::read(&mut self.machine, word));
        u64::from(high) << 32 | u64::from(low)
    }

    fn submit(&mut self, number: u32) {
        let release = SemaphoreD::new().with_operation(2).with_release_short(true);
        let mut words = self.job.clone();
        words.extend(rig::semaphore_words(RAM_VA + RELEASED_GPA, number, release));
        let gpa = PUSHBUFFERS_GPA + u64::from(number % PUSHBUFFERS) * PUSHBUFFER_BYTES;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.machine.ram_write(gpa, &bytes);
        let entry = GpEntry::fetch(GpuVa(RAM_VA + gpa), words.len() as u32);
        self.rig.push_entry(&mut self.machine, CHANNEL, entry);
        self.rig.ring(&mut self.machine, CHANNEL);
    }

    fn wait_for(&mut self, number: u32) -> Result<()> {
        let start = Instant::now();
        while self.machine.ram_read32(RELEASED_GPA) < number {
            if start.elapsed() > STANDSTILL {
                bail!("job {number} does not end");
            }
            self.machine.relax();
        }
        Ok(())
    }
}

/// Does what a broker does for a guest's channel: PBDMAs serve their engines, the instance block names its USERD, and BAR1 shows that.
fn open_on_a_card(rig: &mut Rig, machine: &mut Machine) {
    rig::write(machine, PfifoReg::PfifoPbdmas, 7);
    for engine in [Engine::Graph, Engine::Copy0, Engine::Copy1] {
        let mask = PfifoReg::EnginePbdmaMask(engine.number().into());
        rig::write(machine, mask, !(1 << engine.pbdma()));
    }
    for pbdma in 0..3 {
        let stall = rig::read(machine, PbdmaReg::PbdmaStall(pbdma));
        rig::write(machine, PbdmaReg::PbdmaStall(pbdma), stall & !STALL_CLEARED);
    }
    let (directory, table) = (BAR1_VIEW + 0x1000, BAR1_VIEW + 0x2000);
    for (at, word) in [(0, directory as u32), (4, 0), (8, u32::MAX), (12, 0)] {
        rig::put32(machine, BAR1_VIEW + offset::PD_LO + at, word);
    }
    rig::put64(machine, directory, rig::pde(None, Some(table)).into_bits());
    let userd = USERD + u64::from(CHANNEL) * USERD_BYTES;
    let entry = u64::from(CHANNEL) * USERD_BYTES / SMALL_PAGE;
    rig::put64(machine, table + 8 * entry, rig::vram_pte(userd).into_bits());
    let block = WindowBlock::new()
        .with_frame((BAR1_VIEW >> 12) as u32)
        .with_enable(true);
    rig::write(machine, PbusReg::Bar1Block, block.into_bits());
    rig.write_instance(machine, CHANNEL, rig::DIRECTORY);
    rig::put32(machine, Rig::instance(CHANNEL) + offset::USERD_LO, userd as u32);
    rig.bind(machine, CHANNEL);
    rig.commit(machine, &[CHANNEL]);
}
