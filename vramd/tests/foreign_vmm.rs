//! VMMs that are not ours attach to a real `serve`: the client of the `vfio_user` crate, which Cloud Hypervisor has, and our guest driver on
//! its bus. Two of them use more than the card has.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use fermi_spec::bar::Bar;
use fermi_spec::regs::{Bar0Reg, PfifoReg, PmcReg};
use guests::{GuestBus, Input, Machine, Options, Summary};
use host::{Config, MIB, TestHost};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory as _};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const RAM_BYTES: u64 = 64 * MIB;
/// The driver's own part of RAM, and what the guest keeps in VRAM.
const DMA: Range<u64> = 4 * MIB..8 * MIB;
const INPUT_GPA: u64 = 8 * MIB;
const INPUT_BYTES: u64 = 40 * MIB;
/// Configuration space, as the protocol counts regions.
const CONFIG_REGION: u32 = 7;

/// A machine of one function.
struct ForeignVmm {
    client: vfio_user::Client,
    ram: MmapRegion,
    start: Instant,
    reports: Vec<String>,
}

impl ForeignVmm {
    fn attach(socket: &Path) -> Self {
        let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, RAM_BYTES).unwrap();
        let mut client = vfio_user::Client::new(socket).unwrap();
        client.dma_map(0, 0, RAM_BYTES, file.as_raw_fd()).unwrap();
        let ram = MmapRegion::from_file(FileOffset::new(file, 0), RAM_BYTES as usize).unwrap();
        // As firmware leaves it: memory space and bus master.
        client
            .region_write(CONFIG_REGION, 4, &6_u16.to_le_bytes())
            .unwrap();
        Self {
            client,
            ram,
            start: Instant::now(),
            reports: Vec::new(),
        }
    }
}

fn region(bar: Bar) -> u32 {
    match bar {
        Bar::Bar0 => 0,
        Bar::Bar1 => 1,
        Bar::Bar3 => 3,
    }
}

impl GuestBus for ForeignVmm {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(region(bar), offset, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        let word = value.to_le_bytes();
        self.client.region_write(region(bar), offset, &word).unwrap();
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        let words = value.to_le_bytes();
        self.client.region_write(region(bar), offset, &words).unwrap();
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        let part = self.ram.get_slice(gpa as usize, data.len()).unwrap();
        part.copy_to(data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        let part = self.ram.get_slice(gpa as usize, data.len()).unwrap();
        part.copy_from(data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let mut word = [0; 4];
        self.ram_read(gpa, &mut word);
        u32::from_le_bytes(word)
    }

    fn relax(&mut self) {
        std::thread::yield_now();
    }

    fn now_ns(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn report(&mut self, line: &str) {
        self.reports.push(line.to_owned());
    }
}

/// Brings the vGPU up, keeps a file of noise in its VRAM, moves it about and reads it back.
fn keeps_a_file(vmm: &mut ForeignVmm, seed: u64, begins: &Barrier) -> Summary {
    let mut noise = vec![0; INPUT_BYTES as usize];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut noise);
    vmm.ram_write(INPUT_GPA, &noise);
    begins.wait();
    let machine = Machine {
        dma: DMA,
        scratch: &mut [],
        inputs: &[Input {
            name: "noise",
            gpa: INPUT_GPA,
            bytes: INPUT_BYTES,
        }],
        options: Options {
            seed,
            rounds: 3,
            ..Options::default()
        },
    };
    match guests::run(vmm, machine) {
        Ok(summary) => summary,
        Err(error) => panic!("{error}: {:?}", vmm.reports),
    }
}

#[test]
fn two_vmms_of_another_make_use_more_than_the_card_has() {
    let config = Config::new("").gpu("g", "64M", "");
    let host = TestHost::serving(&config.vm("a", "96M", "").vm("b", "96M", ""));
    let begins = Barrier::new(2);
    std::thread::scope(|scope| {
        let run = |vm: &'static str, seed| {
            let (host, begins) = (&host, &begins);
            scope.spawn(move || {
                let mut vmm = ForeignVmm::attach(&host.at(&format!("{vm}.sock")));
                let summary = keeps_a_file(&mut vmm, seed, begins);
                assert!(summary.is_ok(), "{summary:?}: {:?}", vmm.reports);
                // Both are there until both are done, so that neither has the card for itself in between.
                begins.wait();
                host.ask(&["show", vm])["account"].clone()
            })
        };
        let vms = [run("a", 1), run("b", 2)];
        let accounts = vms.map(|vm| vm.join().unwrap());
        let moved = accounts.iter().map(|account| {
            let figure = |name: &str| account[name].as_u64().unwrap();
            figure("spilled_out_bytes") + figure("demanded_in_host_ram")
        });
        assert!(moved.sum::<u64>() > 0, "nothing had to move: {accounts:?}");
    });
    host.wait_until("both are gone", |host| {
        !host.is_connected("a") && !host.is_connected("b")
    });
}

/// `VFIO_IRQ_SET_*`: an eventfd as trigger, an unmask without data.
const TRIGGER_BY_EVENTFD: u32 = 1 << 2 | 1 << 5;
const UNMASK: u32 = 1 | 1 << 4;
const INTX: u32 = 0;
/// In the status register, byte 6 of the configuration space: the line is up.
const STATUS_INTERRUPT: u8 = 1 << 3;

impl ForeignVmm {
    fn unmask_intx(&mut self) {
        self.client.set_irqs(INTX, UNMASK, 0, 1, &[]).unwrap();
    }

    fn write(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        self.write32(Bar::Bar0, reg.into().offset().into(), value);
    }

    fn is_line_up(&mut self) -> bool {
        let mut status = [0];
        self.client.region_read(CONFIG_REGION, 6, &mut status).unwrap();
        status[0] & STATUS_INTERRUPT != 0
    }

    /// Commits a runlist of no channels, of which the guest wants to hear.
    fn raise_line(&mut self) {
        self.write(PmcReg::PmcIntrMask(0), u32::MAX);
        self.write(PfifoReg::PfifoIntrEnable, u32::MAX);
        self.write(PmcReg::PmcIntrEnable(0), 1);
        self.write(PfifoReg::RunlistBase, 0);
        self.write(PfifoReg::RunlistCommit, 0x1f << 20);
    }
}

/// Whether a signal comes within a time that is enough if it is on its way.
fn is_signalled(event: &EventFd) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if event.read().is_ok() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn interrupt_line_of_a_vgpu_is_a_level_to_a_foreign_vmm() {
    let config = Config::new("").gpu("g", "64M", "");
    let host = TestHost::serving(&config.vm("a", "32M", ""));
    let mut vmm = ForeignVmm::attach(&host.at("a.sock"));
    let intx = EventFd::new(EFD_NONBLOCK).unwrap();
    let fds = [intx.as_raw_fd()];
    let mut line_and_pin = [0; 2];
    vmm.client
        .region_read(CONFIG_REGION, 0x3c, &mut line_and_pin)
        .unwrap();
    assert_eq!(line_and_pin[1], 1, "INTA");
    vmm.client.set_irqs(INTX, TRIGGER_BY_EVENTFD, 0, 1, &fds).unwrap();
    vmm.raise_line();
    assert!(is_signalled(&intx) && vmm.is_line_up());
    assert!(intx.read().is_err(), "it masks itself");
    vmm.unmask_intx();
    assert!(is_signalled(&intx), "the line is up still");
    vmm.write(PfifoReg::RunlistIntr, u32::MAX);
    assert!(!vmm.is_line_up());
    vmm.unmask_intx();
    assert!(intx.read().is_err());
    vmm.raise_line();
    assert!(is_signalled(&intx));
    // A reset takes the line down; the client's eventfd and its mask stay.
    vmm.client.reset().unwrap();
    assert!(!vmm.is_line_up());
    vmm.unmask_intx();
    vmm.raise_line();
    assert!(is_signalled(&intx));
}
