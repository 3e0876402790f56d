//! One KVM virtual machine with a vGPU.
//!
//! ```text
//! Vm::build ─► Vm ──start──► RunningVm ──a vCPU ends, the vGPU goes, kill──► stopped: wait() tells why
//! ```
//!
//! [`Vm::build`] makes everything that can fail for lack of resources: KVM, RAM, program, inputs, PCI. Each vCPU of
//! a [`RunningVm`] has a thread, and one more watches the link. The first reason to stop is the VM's [`VmExit`]; it
//! closes the link and ends every thread within the time of one exit. Dropping a `RunningVm` kills it.
//!
//! Guest-physical memory: RAM from 0 to at most 3 GiB, then [`MMIO_WINDOW`](crate::pci::MMIO_WINDOW), then from 4 GiB on
//! the rest of RAM.
//!
//! Hosts: an ordinary KVM, and one that emulates guest ring 0 (PVM), where the bare-metal guest works in ring 3
//! (docs/decisions/0002-guests-in-ring-3.md).

mod devices;
mod error;
mod exit;
pub mod ports;
pub(crate) mod power;
mod ram;
mod readable;
mod stop;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvm_ioctls::{Cap, Kvm, VmFd};
use vmm_sys_util::eventfd::EventFd;

use crate::acpi::{self, Announced, Resource};
use crate::bus::{MmioBus, PioBus};
use crate::console::{self, Console};
use crate::link::VgpuLink;
use crate::loader::{self, Boot, Initramfs, Input, Kernel, KernelKind, RAM_BYTES_MIN};
use crate::pci::{CONFIG_PORT, CONFIG_PORTS, ConfigPorts, DoorbellTrap, MsiRoute, MsiState, VgpuFunction};
use crate::sandbox::{Role, Sandbox};
use crate::serial::{COM1_IRQ, COM1_PORT, COM1_PORTS, Reports, SerialPort};
use crate::vcpu::{ExitCounters, Exits, Vcpu, cpuid, prepare_kicks};
use crate::virtio::net::TrafficCounters;
use crate::virtio::{self, DiskImage, Network, Traffic};
use devices::{Devices, NamedDevice, Parts};
pub use error::VmError;
use error::{CREATE_EVENTFD, CREATE_VM, host_cannot, kvm_cannot};
pub use exit::VmExit;
use ports::WaitPort;
use power::QuietRegisters;
pub use power::ResetCause;
pub use ram::RAM_BYTES_MAX;
use ram::Ram;
pub(crate) use readable::wait_readable;
pub(crate) use stop::Stop;

/// Granularity of RAM.
const PAGE_BYTES: u64 = 4096;
/// Four pages below the BIOS that KVM needs on Intel CPUs without unrestricted guests: one page table, three for a TSS.
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;
const TSS_ADDRESS: usize = 0xfffb_d000;

/// Most vCPUs: their APIC ids have 8 bits, and one means all of them.
pub(crate) const VCPUS_MAX: usize = 255;
/// First words of Linux's command line. The console is COM1, which is all that this machine has. Resets go by ACPI: where
/// ACPI is hardware-reduced Linux would ask EFI and then the BIOS, and there is neither (arch/x86/kernel/reboot.c,
/// `reboot_init`).
pub(crate) const LINUX_OPTIONS: &str = "console=ttyS0 reboot=a";

/// The parts of a VM.
#[derive(Debug)]
pub struct VmConfig {
    /// Name in threads and logs.
    pub name: String,
    /// RAM: whole pages, [`RAM_BYTES_MIN`] to what Fermi's addresses of 40 bits and the processor's reach.
    pub ram_bytes: u64,
    /// Number of vCPUs, at least one.
    pub vcpus: usize,
    /// Program to boot.
    pub kernel: Kernel,
    /// First root of a Linux guest.
    pub initramfs: Option<Initramfs>,
    /// Files that a bare-metal guest finds in RAM.
    pub inputs: Vec<Input>,
    /// Disks; an operating system finds them through ACPI, and the networks. Together at most [`DEVICES_MAX`](crate::virtio::DEVICES_MAX).
    pub disks: Vec<DiskImage>,
    /// Network devices, each with its tap.
    pub networks: Vec<Network>,
    /// Given to the program after what the VMM says itself: `tsc_khz=N` to a bare-metal guest, `LINUX_OPTIONS` to
    /// Linux.
    pub command_line: String,
    /// The operator's end of COM1, if there is one.
    pub console: Option<Console>,
    /// System calls that its threads may make.
    pub sandbox: Sandbox,
}

/// What the threads of a VM share.
pub(crate) struct Machine {
    pub(crate) pio: PioBus,
    pub(crate) mmio: Arc<MmioBus>,
    pub(crate) counters: ExitCounters,
    pub(crate) stop: Stop,
    power_button: EventFd,
    /// The trap of doorbells, if the link has one.
    pub(crate) doorbells: Option<DoorbellTrap>,
    config_ports: Arc<ConfigPorts>,
    com1: Arc<SerialPort>,
    link: Arc<dyn VgpuLink>,
    /// Declared below its users, so that it is dropped last.
    _vm: Arc<VmFd>,
    _ram: Ram,
}

/// A VM that has not started.
pub struct Vm {
    name: String,
    vcpus: Vec<Vcpu>,
    keys: Option<Keys>,
    devices: Devices,
    sandbox: Sandbox,
    machine: Arc<Machine>,
}

/// Source of COM1's input.
struct Keys {
    input: OwnedFd,
    has_escape: bool,
}

impl Vm {
    /// Builds a VM around the vGPU behind `link`; its lines go to `reports`.
    pub fn build(
        mut config: VmConfig,
        link: Arc<dyn VgpuLink>,
        reports: Arc<dyn Reports>,
    ) -> Result<Vm, VmError> {
        let kvm = open_kvm()?;
        check_size(&kvm, config.ram_bytes, config.vcpus)?;
        let vm = create_vm(&kvm)?;
        let ram = Ram::new(config.ram_bytes)?;
        ram.register(&vm)?;
        let vcpus = create_vcpus(&kvm, &vm, config.vcpus)?;
        let name = config.name.clone();
        let console = config.console.take();
        let parts = Parts {
            disks: std::mem::take(&mut config.disks),
            networks: std::mem::take(&mut config.networks),
        };
        let sandbox = config.sandbox.clone();
        load_guest(config, parts.count(), &ram, &vcpus)?;
        let (output, keys) = console.map_or((None, None), |console| {
            let Console {
                output,
                input,
                has_escape,
            } = console;
            (Some(output), Some(Keys { input, has_escape }))
        });
        let devices = Devices::build(parts, &vm, &ram)?;
        let machine = Arc::new(build_machine(vm, ram, link, reports, output)?);
        devices.place(&machine.mmio);
        Ok(Vm {
            name,
            vcpus,
            keys,
            devices,
            sandbox,
            machine,
        })
    }

    /// Starts all vCPUs.
    pub fn start(self) -> Result<RunningVm, VmError> {
        prepare_kicks()?;
        let Vm {
            name,
            vcpus,
            keys,
            devices,
            sandbox,
            machine,
        } = self;
        let Devices { devices, counters } = devices;
        let running = RunningVm {
            name,
            traffic: counters,
            sandbox,
            machine,
        };
        let watched = running.machine.clone();
        running.spawn(Role::Link, "link".to_owned(), move || {
            watched
                .stop
                .watch(watched.link.as_ref(), watched.doorbells.as_ref())
        })?;
        if let Some(Keys { input, has_escape }) = keys {
            let machine = running.machine.clone();
            running.spawn(Role::Keys, "console".to_owned(), move || {
                let pumped = console::pump(&input, has_escape, &machine.com1, machine.stop.eventfd());
                // Without an operator the guest goes on.
                pumped.unwrap_or(false).then_some(VmExit::Killed)
            })?;
        }
        for NamedDevice { name, device } in devices {
            let machine = running.machine.clone();
            running.spawn(device.role(), name, move || device.run(&machine.stop))?;
        }
        for (index, vcpu) in vcpus.into_iter().enumerate() {
            let machine = running.machine.clone();
            // A failure drops `running`, which stops those that did start.
            running.spawn(Role::Vcpu, format!("vcpu{index}"), move || vcpu.run(&machine))?;
        }
        Ok(running)
    }
}

/// A VM that runs, or has stopped.
pub struct RunningVm {
    name: String,
    traffic: Vec<Arc<TrafficCounters>>,
    sandbox: Sandbox,
    machine: Arc<Machine>,
}

impl RunningVm {
    /// Name of the VM.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stops the VM if it still runs. Returns at once; [`RunningVm::wait`] returns when it has stopped.
    pub fn kill(&self) {
        self.machine.request_stop(VmExit::Killed);
    }

    /// Presses the power button: asks the operating system to switch the machine off. It may ignore that, and a
    /// bare-metal guest does not notice.
    pub fn press_power_button(&self) {
        // This would fail only if the counter overflowed, and KVM takes it down at once.
        let _ = self.machine.power_button.write(1);
    }

    /// Waits until the VM has stopped and no thread of it is left, and returns why it stopped.
    pub fn wait(&self) -> Arc<VmExit> {
        self.machine.stop.wait()
    }

    /// Does the same with a limit; `None` if the VM still runs then.
    pub fn wait_for(&self, limit: Duration) -> Option<Arc<VmExit>> {
        self.machine.stop.wait_for(limit)
    }

    /// How often it has left KVM so far.
    pub fn exits(&self) -> Exits {
        self.machine.counters.read()
    }

    /// First stores of its guest to doorbells after it was quiet, each of which left KVM too.
    pub fn trapped_doorbells(&self) -> u64 {
        self.machine.doorbells.as_ref().map_or(0, DoorbellTrap::stores)
    }

    /// Traffic of each of its network devices so far.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.traffic.iter().map(|counters| counters.read()).collect()
    }

    /// Receiver of the vGPU's interrupt at the moment.
    pub fn msi_state(&self) -> MsiState {
        self.machine.config_ports.msi_state()
    }

    fn spawn(
        &self,
        role: Role,
        name: String,
        work: impl FnOnce() -> Option<VmExit> + Send + 'static,
    ) -> Result<(), VmError> {
        let thread = format!("{}/{name}", self.name);
        let (machine, sandbox) = (self.machine.clone(), self.sandbox.clone());
        let body = move || {
            let confined = sandbox.confine(role);
            let outcome = match confined {
                Ok(()) => std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
                    .unwrap_or(Some(VmExit::Panicked { thread: name })),
                Err(source) => Some(VmExit::Unconfined { thread: name, source }),
            };
            if let Some(exit) = outcome {
                machine.request_stop(exit);
            }
        };
        // Locked while the thread starts, so that a stop that it requests at once finds it in the list.
        let mut threads = self.machine.stop.threads();
        let spawned = thread::Builder::new().name(thread).spawn(body);
        threads.push(spawned.map_err(host_cannot("start a thread"))?);
        Ok(())
    }
}

impl Drop for RunningVm {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

impl Machine {
    fn request_stop(&self, exit: VmExit) {
        self.stop.request(exit);
        self.link.close();
    }
}

fn open_kvm() -> Result<Kvm, VmError> {
    let kvm = Kvm::new().map_err(VmError::OpenKvm)?;
    let needed = [
        Cap::Irqchip,
        Cap::Irqfd,
        Cap::Ioeventfd,
        Cap::IrqRouting,
        Cap::ImmediateExit,
        Cap::UserMemory,
        Cap::GetTscKhz,
    ];
    match needed
        .into_iter()
        .find(|capability| !kvm.check_extension(*capability))
    {
        Some(missing) => Err(VmError::MissingCapability(missing)),
        None => Ok(kvm),
    }
}

fn check_size(kvm: &Kvm, ram_bytes: u64, vcpus: usize) -> Result<(), VmError> {
    let is_ram_in_range = (RAM_BYTES_MIN..=RAM_BYTES_MAX).contains(&ram_bytes);
    if !is_ram_in_range || !ram_bytes.is_multiple_of(PAGE_BYTES) {
        return Err(VmError::RamSize { bytes: ram_bytes });
    }
    let bits = cpuid::physical_bits(kvm).map_err(kvm_cannot("tell the processor's addresses"))?;
    let end = ram::end_of(ram_bytes);
    if bits < u64::BITS && end > 1 << bits {
        let bytes = ram_bytes;
        return Err(VmError::RamBeyondProcessor { bytes, end, bits });
    }
    let max = kvm.get_max_vcpus().min(VCPUS_MAX);
    if vcpus == 0 || vcpus > max {
        return Err(VmError::VcpuCount { vcpus, max });
    }
    Ok(())
}

fn create_vm(kvm: &Kvm) -> Result<Arc<VmFd>, VmError> {
    let vm = kvm.create_vm().map_err(kvm_cannot(CREATE_VM))?;
    vm.set_identity_map_address(IDENTITY_MAP_ADDRESS)
        .map_err(kvm_cannot("place its identity map"))?;
    vm.set_tss_address(TSS_ADDRESS)
        .map_err(kvm_cannot("place its TSS"))?;
    vm.create_irq_chip()
        .map_err(kvm_cannot("create interrupt controllers"))?;
    Ok(Arc::new(vm))
}

/// Puts the guest into RAM, and the first vCPU at its entry.
fn load_guest(config: VmConfig, devices: usize, ram: &Ram, vcpus: &[Vcpu]) -> Result<(), VmError> {
    let (mut first_words, mut rsdp) = (String::new(), 0);
    if config.kernel.kind().is_some_and(KernelKind::is_operating_system) {
        first_words.push_str(LINUX_OPTIONS);
        rsdp = acpi::write(ram.memory(), vcpus.len(), &announced(devices)).map_err(VmError::Tables)?;
        for vcpu in vcpus {
            vcpu.set_as_by_firmware()
                .map_err(kvm_cannot("set a vCPU's registers as firmware does"))?;
        }
    } else if let Some(first) = vcpus.first() {
        let tsc_khz = first.tsc_khz().map_err(kvm_cannot("tell the TSC frequency"))?;
        first_words = format!("tsc_khz={tsc_khz}");
    }
    let command_line = format!("{first_words} {}", config.command_line);
    let boot = Boot {
        kernel: &config.kernel,
        initramfs: config.initramfs,
        inputs: config.inputs,
        command_line: command_line.trim_end(),
        rsdp,
    };
    let entry = loader::load(ram.memory(), boot)?;
    vcpus.first().map_or(Ok(()), |first| {
        first.enter_at(entry).map_err(kvm_cannot("set the start state"))
    })
}

/// Devices beside PCI, as ACPI announces them; `devices` of them are virtio's.
fn announced(devices: usize) -> Vec<Announced> {
    let mut announced = vec![
        Announced {
            name: "COM1",
            hardware_id: "PNP0501",
            unique_id: 0,
            resources: vec![
                Resource::Ports(COM1_PORT..COM1_PORT + COM1_PORTS),
                Resource::Line(COM1_IRQ),
            ],
        },
        // Ports and addresses that are taken, but belong to no driver.
        Announced {
            name: "BRD0",
            hardware_id: "PNP0C02",
            unique_id: 0,
            resources: vec![
                Resource::Ports(power::POWER_PORT..power::POWER_PORT + power::POWER_PORTS),
                Resource::Memory(virtio::left_of_window(devices)),
            ],
        },
    ];
    announced.extend(virtio::announced(devices));
    announced
}

/// A wait port whose waits end at once.
fn eventfd() -> Result<EventFd, VmError> {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map_err(host_cannot(CREATE_EVENTFD))
}

fn create_vcpus(kvm: &Kvm, vm: &VmFd, count: usize) -> Result<Vec<Vcpu>, VmError> {
    (0..count)
        .map(|index| {
            vm.create_vcpu(index as u64)
                .and_then(|fd| Vcpu::new(kvm, index, count, fd))
        })
        .collect::<Result<_, _>>()
        .map_err(kvm_cannot("create a vCPU"))
}

fn build_machine(
    vm: Arc<VmFd>,
    ram: Ram,
    link: Arc<dyn VgpuLink>,
    reports: Arc<dyn Reports>,
    console: Option<Box<dyn io::Write + Send>>,
) -> Result<Machine, VmError> {
    let clone = |fd: &EventFd| fd.try_clone().map_err(host_cannot("clone an eventfd"));
    let (serial_interrupt, msi, stop) = (eventfd()?, eventfd()?, Stop::new(eventfd()?));
    let mmio = Arc::new(MmioBus::default());

    for range in ram.ranges() {
        link.dma_map(range.start, range.bytes, ram.file(), range.offset)?;
    }
    link.set_msi(&msi)?;
    let route = MsiRoute::new(vm.clone(), clone(&msi)?);
    let vgpu = VgpuFunction::power_on(link.clone(), mmio.clone(), route, vm.clone())?;
    let doorbells = vgpu.doorbell_trap(eventfd()?)?;
    let config_ports = Arc::new(ConfigPorts::new(vgpu));

    vm.register_irqfd(&serial_interrupt, COM1_IRQ)
        .map_err(kvm_cannot("connect COM1's interrupt"))?;
    let power_button = eventfd()?;
    vm.register_irqfd(&power_button, power::BUTTON_LINE)
        .map_err(kvm_cannot("connect the power button's interrupt"))?;
    let wait_port = WaitPort::new(msi, clone(stop.eventfd())?, link.clone());
    let mut pio = PioBus::default();
    let com1 = SerialPort::new(serial_interrupt, reports, console).map_err(host_cannot(CREATE_EVENTFD))?;
    let com1 = Arc::new(com1);
    pio.insert(COM1_PORT..COM1_PORT + COM1_PORTS, com1.clone());
    pio.insert(CONFIG_PORT..CONFIG_PORT + CONFIG_PORTS, config_ports.clone());
    let quiet = Arc::new(QuietRegisters);
    pio.insert(
        power::POWER_PORT..power::POWER_PORT + power::POWER_PORTS,
        quiet.clone(),
    );
    pio.insert(
        power::KEYBOARD_COMMAND_PORT..power::KEYBOARD_COMMAND_PORT + 1,
        quiet,
    );
    pio.insert(ports::WAIT..ports::WAIT + 1, Arc::new(wait_port));
    let counters = ExitCounters::default();
    Ok(Machine {
        pio,
        mmio,
        counters,
        stop,
        power_button,
        doorbells,
        config_ports,
        com1,
        link,
        _vm: vm,
        _ram: ram,
    })
}
