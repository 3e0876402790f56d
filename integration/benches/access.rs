//! One trapped register access, end to end: from the guest or caller to the core and back.
//!
//! Measured in this process, over a vfio-user socket, and from a guest on KVM. Beside them stand their floors: a
//! bare round trip of as many bytes over a socket pair, and an exit that the VMM answers by itself. Where two
//! threads take part the rows say whether they share a core: waking the other one costs far more across cores,
//! whichever program does it.

#[path = "pairs/cores.rs"]
mod cores;
#[path = "pairs/mod.rs"]
mod pairs;

use std::io::{Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, SocketAccess, VmSocket};
use card::CardConfig;
use fermi_spec::board::Board;
use fermi_spec::regs::{PbusReg, PmcReg};
use pairs::{Measure, Mode, Table, Way, nanoseconds};
use vgpu::{GpuConfig, Quota, VmConfig};
use vmm::{Kernel, LinkError, ReportQueue, RunningVm, Sandbox, VfioUserLink, VgpuLink, Vm};
use vmm_sys_util::eventfd::EventFd;
use vramd::BrokerLink;
use vramd::host::{CardChoice, HostSetup, start_broker};

const ROUNDS: usize = 31;
/// Accesses in one round.
const BATCH: u32 = 500;
const BAR0: u32 = 0;
/// A REGION_READ of four bytes: header, region access.
const REQUEST_BYTES: usize = 32;
/// The reply to it: the same with the data.
const REPLY_BYTES: usize = 36;
/// Accesses that a guest makes in one round, at most.
const WINDOW: Duration = Duration::from_millis(20);
/// Time for the access under way when the answerer changes.
const SETTLE: Duration = Duration::from_millis(2);

fn vm_config(name: &str) -> VmConfig {
    VmConfig {
        name: name.to_owned(),
        guest_vram: 16 << 20,
        chunk_bytes: 2 << 20,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

/// A broker with a software card of so much VRAM, and sockets for VMs.
fn broker_with(vram_bytes: u64, vms: Vec<VmSocket>) -> anyhow::Result<Broker> {
    let card = CardChoice::Model(CardConfig {
        board: Board::Gtx480,
        vram_bytes,
        needs_microcode: false,
        strict: true,
        paced: false,
        workers: 0,
    });
    let broker = start_broker(HostSetup {
        card,
        settings: GpuConfig {
            host_ram: 1 << 30,
            seed: 1,
            ..GpuConfig::default()
        },
        firmware: None,
        flights: None,
        record: None,
        vms,
    })?;
    Ok(broker)
}

/// A broker with a software card, a VM in this process and one over a socket.
struct Host {
    local: Arc<dyn VgpuLink>,
    remote: Arc<dyn VgpuLink>,
    _broker: Broker,
    _folder: tempfile::TempDir,
}

impl Host {
    fn start() -> anyhow::Result<Host> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("remote.sock");
        let socket = VmSocket::bind(&path, &SocketAccess::default(), vm_config("remote"))?;
        let broker = broker_with(64 << 20, vec![socket])?;
        Ok(Host {
            local: Arc::new(BrokerLink::new(broker.attach(vm_config("local"))?)),
            remote: Arc::new(VfioUserLink::connect(&path)?),
            _broker: broker,
            _folder: folder,
        })
    }
}

/// VMs whose vGPUs one broker has, where most of them rest.
const MANY: usize = 32;
/// VRAM of a card that so many fit on.
const LARGE_CARD: u64 = 1536 << 20;

/// A broker with as many VMs in this process.
fn crowd(vms: usize) -> anyhow::Result<(Broker, Vec<BrokerLink>)> {
    let broker = broker_with(LARGE_CARD, Vec::new())?;
    let links: Result<_, _> = (0..vms)
        .map(|vm| broker.attach(vm_config(&format!("vm{vm}"))).map(BrokerLink::new))
        .collect();
    Ok((broker, links?))
}

/// A broker with as many VMs behind sockets, the links to them, and the sockets' folder.
fn crowd_behind_sockets(vms: usize) -> anyhow::Result<(Broker, Vec<VfioUserLink>, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let names: Vec<String> = (0..vms).map(|vm| format!("vm{vm}")).collect();
    let sockets: Result<_, _> = names
        .iter()
        .map(|name| {
            VmSocket::bind(
                &folder.path().join(name),
                &SocketAccess::default(),
                vm_config(name),
            )
        })
        .collect();
    let broker = broker_with(LARGE_CARD, sockets?)?;
    let links: Result<_, _> = names
        .iter()
        .map(|name| VfioUserLink::connect(&folder.path().join(name)))
        .collect();
    Ok((broker, links?, folder))
}

/// What the others' sockets cost one VM's accesses, client and broker on one processor: the time of both counts.
fn among_many_sockets(mode: Mode, cpu: usize) -> anyhow::Result<()> {
    cores::pin(&[cpu]);
    let one = crowd_behind_sockets(1)?;
    let many = crowd_behind_sockets(MANY)?;
    let (one, many) = (&one.1[0], &many.1[MANY / 2]);
    let ways: Vec<Way<'_>> = vec![
        ("load, 1 VM", Box::new(|| loads(one))),
        ("load, 32 VMs", Box::new(|| loads(many))),
        ("store, 1 VM", Box::new(|| stores(one))),
        ("store, 32 VMs", Box::new(|| stores(many))),
    ];
    Table {
        title: "one access over vfio-user on one core, by the VMs that the broker has behind sockets",
        unit: "µs",
        measure: Measure::Time,
        bases: &["load, 1 VM", "store, 1 VM"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
    Ok(())
}

/// What the others' vGPUs cost one VM's accesses, and accesses of all in turn.
fn among_many(mode: Mode) -> anyhow::Result<()> {
    let (_alone, one) = crowd(1)?;
    let (_crowded, many) = crowd(MANY)?;
    let mut turn = 0;
    let ways: Vec<Way<'_>> = vec![
        ("load, 1 VM", Box::new(|| loads(&one[0]))),
        ("load, 32 VMs", Box::new(|| loads(&many[MANY / 2]))),
        (
            "load, another of 32 VMs each time",
            Box::new(|| {
                turn += 1;
                loads(&many[turn % MANY])
            }),
        ),
    ];
    let table = |title, bases| Table {
        title,
        unit: "µs",
        measure: Measure::Time,
        bases,
        rounds: mode.rounds(ROUNDS),
    };
    table("one load, by the VMs that the broker has", &["load, 1 VM"]).run(ways);
    let ways: Vec<Way<'_>> = vec![
        ("store, 1 VM", Box::new(|| stores(&one[0]))),
        ("store, 32 VMs", Box::new(|| stores(&many[MANY / 2]))),
    ];
    table("one store, by the VMs that the broker has", &["store, 1 VM"]).run(ways);
    Ok(())
}

/// The other end answers each request from a thread of its own until the socket is closed.
fn echo() -> anyhow::Result<UnixStream> {
    let (ours, mut theirs) = UnixStream::pair()?;
    std::thread::spawn(move || {
        let mut request = [0; REQUEST_BYTES];
        while theirs.read_exact(&mut request).is_ok() {
            if theirs.write_all(&[0; REPLY_BYTES]).is_err() {
                break;
            }
        }
    });
    Ok(ours)
}

fn round_trips(mut socket: &UnixStream) -> f64 {
    let mut reply = [0; REPLY_BYTES];
    let total = nanoseconds(|| {
        for _ in 0..BATCH {
            socket
                .write_all(&[0; REQUEST_BYTES])
                .expect("the other end lives");
            socket.read_exact(&mut reply).expect("the other end lives");
        }
    });
    total / f64::from(BATCH) / 1e3
}

fn loads(link: &dyn VgpuLink) -> f64 {
    let mut data = [0; 4];
    let at = u64::from(PmcReg::Boot0.offset());
    let total = nanoseconds(|| {
        for _ in 0..BATCH {
            link.region_read(BAR0, at, &mut data).expect("the broker answers");
        }
    });
    assert_ne!(data, [0; 4], "BOOT_0 names the chip");
    total / f64::from(BATCH) / 1e3
}

fn stores(link: &dyn VgpuLink) -> f64 {
    let at = u64::from(PbusReg::PraminBase.offset());
    let total = nanoseconds(|| {
        for value in 0..BATCH {
            link.region_write(BAR0, at, &(value % 16).to_le_bytes())
                .expect("the broker answers");
        }
    });
    total / f64::from(BATCH) / 1e3
}

/// A link whose loads of BAR0 are answered on the spot, in this process, or over the socket, as it is set.
struct Switch {
    links: [Arc<dyn VgpuLink>; 2],
    answerer: AtomicUsize,
}

/// The value of [`Switch::answerer`] that stands for no link.
const ON_THE_SPOT: usize = 2;

impl VgpuLink for Switch {
    fn region_size(&self, region: u32) -> u64 {
        self.links[0].region_size(region)
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        let answerer = self.answerer.load(Ordering::Relaxed);
        match self.links.get(answerer) {
            Some(link) if region == BAR0 => link.region_read(region, offset, data),
            None if region == BAR0 => {
                data.fill(0);
                Ok(())
            }
            _ => self.links[0].region_read(region, offset, data),
        }
    }

    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        self.links[0].region_write(region, offset, data)
    }

    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError> {
        self.links[0].dma_map(gpa, bytes, file, offset)
    }

    fn dma_unmap(&self, gpa: u64, bytes: u64) -> Result<(), LinkError> {
        self.links[0].dma_unmap(gpa, bytes)
    }

    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError> {
        self.links[0].set_msi(eventfd)
    }

    fn reset(&self) -> Result<(), LinkError> {
        self.links[0].reset()
    }

    fn close(&self) {}
}

/// A VM whose guest only loads BOOT_0, again and again.
fn polling_guest(switch: Arc<Switch>) -> anyhow::Result<RunningVm> {
    let reports = Arc::new(ReportQueue::new(4));
    let config = vmm::VmConfig {
        name: "poll".to_owned(),
        ram_bytes: 16 << 20,
        vcpus: 1,
        kernel: Kernel::bare(),
        initramfs: None,
        inputs: Vec::new(),
        disks: Vec::new(),
        networks: Vec::new(),
        command_line: "bare.test=poll".to_owned(),
        console: None,
        sandbox: Sandbox::none(),
    };
    let vm = Vm::build(config, switch, reports.clone())?.start()?;
    let said = reports.next_report(Duration::from_secs(20));
    anyhow::ensure!(said.as_deref() == Some("polling"), "the guest said {said:?}");
    Ok(vm)
}

/// Microseconds for one of the guest's loads, counted over a window of time.
fn guest_loads(vm: &RunningVm, switch: &Switch, answerer: usize) -> f64 {
    switch.answerer.store(answerer, Ordering::Relaxed);
    std::thread::sleep(SETTLE);
    let (start, before) = (Instant::now(), vm.exits().mmio_reads);
    std::thread::sleep(WINDOW);
    let (after, elapsed) = (vm.exits().mmio_reads, start.elapsed());
    elapsed.as_nanos() as f64 / (after - before).max(1) as f64 / 1e3
}

/// `work` on one of two processors. The broker and the echo are on the first.
fn on(cpu: usize, work: impl FnOnce() -> f64) -> f64 {
    cores::pin(&[cpu]);
    work()
}

fn in_process(mode: Mode, host: &Host) {
    let local = &*host.local;
    let ways: Vec<Way<'_>> = vec![
        ("system call", Box::new(system_call)),
        ("load", Box::new(|| loads(local))),
        ("store", Box::new(|| stores(local))),
    ];
    Table {
        title: "one register access, broker in this process",
        unit: "µs",
        measure: Measure::Time,
        bases: &["system call"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
}

/// Microseconds of the cheapest request that has an effect.
fn system_call() -> f64 {
    let total = nanoseconds(|| {
        for _ in 0..BATCH {
            std::hint::black_box(rustix::thread::gettid());
        }
    });
    total / f64::from(BATCH) / 1e3
}

fn over_socket(mode: Mode, host: &Host, socket: &UnixStream, cpu: usize, cores: &str) {
    let remote = &*host.remote;
    let ways: Vec<Way<'_>> = vec![
        (
            "bare round trip",
            Box::new(move || on(cpu, || round_trips(socket))),
        ),
        ("load", Box::new(move || on(cpu, || loads(remote)))),
        ("store", Box::new(move || on(cpu, || stores(remote)))),
    ];
    Table {
        title: &format!("one register access over vfio-user, client and broker on {cores}"),
        unit: "µs",
        measure: Measure::Time,
        bases: &["bare round trip"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
}

fn from_guest(mode: Mode, host: &Host) -> anyhow::Result<()> {
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        println!("\none trapped register access, from a guest on KVM: SKIPPED (/dev/kvm: {error})");
        return Ok(());
    }
    let switch = Arc::new(Switch {
        links: [Arc::clone(&host.local), Arc::clone(&host.remote)],
        answerer: AtomicUsize::new(ON_THE_SPOT),
    });
    let vm = match polling_guest(Arc::clone(&switch)) {
        Ok(vm) => vm,
        Err(error) => {
            println!("\none trapped register access, from a guest on KVM: SKIPPED ({error:#})");
            return Ok(());
        }
    };
    let ways: Vec<Way<'_>> = vec![
        (
            "exit answered by the VMM",
            Box::new(|| guest_loads(&vm, &switch, ON_THE_SPOT)),
        ),
        (
            "load, broker in process",
            Box::new(|| guest_loads(&vm, &switch, 0)),
        ),
        (
            "load, broker by vfio-user",
            Box::new(|| guest_loads(&vm, &switch, 1)),
        ),
    ];
    Table {
        title: "one trapped register access, from a guest on KVM",
        unit: "µs",
        measure: Measure::Time,
        bases: &["exit answered by the VMM"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
    vm.kill();
    vm.wait();
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    let cpus = cores::processors();
    // The threads of the broker and of the card stay where they are started.
    cores::pin(&cpus[..1]);
    let host = Host::start()?;
    let socket = echo()?;
    cores::pin(&cpus);
    in_process(mode, &host);
    among_many(mode)?;
    among_many_sockets(mode, cpus[0])?;
    cores::pin(&cpus);
    over_socket(mode, &host, &socket, cpus[0], "one core");
    match cpus.get(1) {
        Some(&other) => over_socket(mode, &host, &socket, other, "two cores"),
        None => println!("\nvfio-user on two cores: SKIPPED (one processor)"),
    }
    cores::pin(&cpus);
    from_guest(mode, &host)
}
