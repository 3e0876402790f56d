//! `cargo xtask qemu-attach`: a stock QEMU attached to a broker's socket, so that one end of the
//! protocol is not ours.
//!
//! A broker with a software card runs as `vramd serve`, and QEMU emulates a machine with the vGPU in it. Checked
//! from outside are: configuration space and BARs as QEMU and its firmware see them; registers read through the
//! address that the firmware chose; guest RAM mapped by the broker; our driver and workload on QEMU's bus, DMA
//! included; the MSI that they raise; a reset; and that the broker is in its former state when QEMU has gone, and
//! takes the next one.

mod guest;
mod machine;

use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fermi_spec::board::{BAR0_BYTES, BAR1_BYTES, BAR3_BYTES, Board, VENDOR};
use fermi_spec::engine::pmc_intr;
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PffbReg, PmcReg, PunitsReg};
use serde_json::json;

use crate::broker::{Broker, Holdings};
use crate::host_env;
use crate::process::until;
use crate::workspace::Workspace;
use machine::{Machine, PciDevice, PciRegion, RAM_BYTES, RAM_FILE};

const BOARD: Board = Board::Gtx480;
const GUEST_VRAM_MIB: u32 = 32;
const CARD_VRAM_MIB: u32 = 64;

/// Display controller, 3D.
const CLASS_3D: u16 = 0x0302;
/// Below lie the firmware's holes; all RAM from here on must be mapped.
const HIGH_RAM: u64 = 1 << 20;

/// Configuration space (PCI Local Bus Specification 3.0 §6.1, §6.8).
const COMMAND: u8 = 0x04;
const COMMAND_MEMORY_AND_MASTER: u32 = 1 << 1 | 1 << 2;
const CAPABILITIES: u8 = 0x34;
const CAPABILITIES_MAX: usize = 48;
const CAPABILITY_MSI: u8 = 0x05;
const MSI_ENABLE: u32 = 1 << 16;
const MSI_64_BIT: u32 = 1 << 23;
/// Address and data of the vGPU's message: plain RAM, so that its arrival can be seen.
const MSI_GPA: u32 = 48 << 20;
const MSI_DATA: u32 = 0x4d53;

/// In steps of 64 KiB: some VRAM that the firmware has no business with.
const PRAMIN_BASE_TRIED: u32 = 0x10;
const PRAMIN_WORD: u32 = 0x600d_cafe;

/// Bytes of `vramd` itself that the workload takes through VRAM.
const INPUT_BYTES: u64 = 1 << 20;

/// Advice where QEMU cannot be run.
#[derive(clap::Args)]
pub(crate) struct QemuArguments {
    /// Pass, with a notice, on a machine that has no QEMU new enough and can fetch none
    #[arg(long)]
    allow_missing: bool,
}

/// Runs all of it.
pub(crate) fn run(workspace: &Workspace, arguments: &QemuArguments) -> Result<()> {
    let start = Instant::now();
    let qemu = match host_env::provide_qemu(workspace) {
        Err(error) if arguments.allow_missing => {
            eprintln!("NOTE: {error:#}: the broker was NOT tried with QEMU");
            return Ok(());
        }
        found => found?,
    };
    println!("{}", qemu.version);
    let vramd = workspace.build_program("vramd", "vramd")?;
    let mut input = Vec::new();
    let file = std::fs::File::open(&vramd).with_context(|| format!("cannot open {}", vramd.display()))?;
    file.take(INPUT_BYTES).read_to_end(&mut input)?;

    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let socket = folder.path().join("vgpu.sock");
    let config = folder.path().join("host.toml");
    std::fs::write(&config, host_config(&socket)).context("cannot write host.toml")?;
    let broker = Broker::start(&vramd, &config, folder.path().join("broker.log"))?;
    let before = broker.holdings()?;

    let machine = Machine::start(&qemu, &socket, folder.path())?;
    attach_first(machine, &broker, &input).context("first client")?;
    wait_released(&broker, &before).context("after the first client")?;
    let machine = Machine::start(&qemu, &socket, folder.path())?;
    attach_again(machine).context("second client")?;
    wait_released(&broker, &before).context("after the second client")?;
    broker.stop()?;
    ensure!(!socket.exists(), "the broker left its socket behind");
    println!("qemu-attach passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn host_config(socket: &Path) -> String {
    // A path in JSON quotes is one in TOML quotes too.
    let socket = json!(socket);
    format!(
        "[[gpu]]\nname = \"gpu0\"\ndevice = \"model:{}\"\nvram = \"{CARD_VRAM_MIB}M\"\nhost_ram = \"256M\"\n\
         [[vm]]\nname = \"a\"\ngpu = \"gpu0\"\nsocket = {socket}\nguest_vram = \"{GUEST_VRAM_MIB}M\"\n",
        BOARD.name()
    )
}

fn attach_first(mut machine: Machine, broker: &Broker, input: &[u8]) -> Result<()> {
    let device = machine.wait_enumerated()?;
    check_function(&device)?;
    check_registers(&mut machine, &device)?;
    // From here on the accesses are ours alone, and RAM is.
    machine.execute("stop", json!({}))?;
    check_ram(broker)?;
    check_pramin(&mut machine, &device)?;
    enable_msi(&mut machine, &device)?;
    let summary = guest::run(&mut machine, &device, input)?;
    println!(
        "driver on QEMU's bus: {} bytes copied by the card, digests right",
        summary.bytes_copied()
    );
    check_msi(&mut machine)?;
    check_reset(&mut machine)?;
    machine.quit()
}

fn attach_again(mut machine: Machine) -> Result<()> {
    let device = machine.wait_enumerated()?;
    check_function(&device)?;
    check_registers(&mut machine, &device)?;
    machine.quit()
}

/// BARs as (number, bytes, is prefetchable, is 64-bit).
fn bars_of(device: &PciDevice) -> Vec<(u32, u64, bool, bool)> {
    let regions = device.regions.iter().filter(|region| region.kind == "memory");
    regions
        .map(|region| (region.bar, region.size, region.prefetch, region.mem_type_64))
        .collect()
}

/// Expected configuration of a vGPU.
fn check_function(device: &PciDevice) -> Result<()> {
    let id = (device.id.vendor, device.id.device);
    println!(
        "function {:04x}:{:04x}, class {:04x}",
        id.0, id.1, device.class_info.class
    );
    ensure!(id == (VENDOR, BOARD.device_id()), "the function is {id:04x?}");
    ensure!(
        device.class_info.class == CLASS_3D,
        "the class is {:04x}",
        device.class_info.class
    );
    let wanted = [
        (0, BAR0_BYTES, false, false),
        (1, BAR1_BYTES, true, true),
        (3, BAR3_BYTES, true, true),
    ];
    ensure!(bars_of(device) == wanted, "the BARs are {:?}", device.regions);
    ensure!(
        device.regions.len() == wanted.len(),
        "there is more than BARs of memory: {:?}",
        device.regions
    );
    for PciRegion {
        bar,
        address,
        size,
        prefetch,
        mem_type_64,
        ..
    } in &device.regions
    {
        let width = if *mem_type_64 { 64 } else { 32 };
        let kind = if *prefetch { ", prefetchable" } else { "" };
        println!("BAR{bar}: {} MiB at {address:#x}, {width}-bit{kind}", size >> 20);
        let is_placed =
            u64::try_from(*address).is_ok_and(|address| address > 0 && address.is_multiple_of(*size));
        ensure!(is_placed, "BAR{bar} is at {address:#x}");
    }
    Ok(())
}

fn bar0(device: &PciDevice, offset: u32) -> Result<u64> {
    let region = device
        .regions
        .iter()
        .find(|region| region.bar == 0)
        .context("no BAR0")?;
    Ok(region.address as u64 + u64::from(offset))
}

/// Registers, through the address that the firmware chose.
fn check_registers(machine: &mut Machine, device: &PciDevice) -> Result<()> {
    let wanted = [
        (Bar0Reg::Pmc(PmcReg::Boot0), BOARD.boot0()),
        (Bar0Reg::Punits(PunitsReg::DesignPartitions), 1),
        (Bar0Reg::Pffb(PffbReg::PartitionMebibytes(0)), GUEST_VRAM_MIB),
    ];
    for (register, value) in wanted {
        let read = machine.dump_word(bar0(device, register.offset())?)?;
        println!("{register}: {read:#010x}");
        ensure!(
            read == value,
            "{register} reads {read:#010x} where {value:#010x} is expected"
        );
    }
    Ok(())
}

/// The DMA maps arrived: the broker has all RAM above the firmware's holes mapped.
fn check_ram(broker: &Broker) -> Result<()> {
    let mut mappings = broker.mappings()?;
    mappings.retain(|mapping| mapping.name == RAM_FILE);
    mappings.sort_by_key(|mapping| mapping.offset);
    let mut covered = HIGH_RAM;
    for mapping in &mappings {
        if mapping.offset <= covered {
            covered = covered.max(mapping.offset + mapping.bytes);
        }
    }
    println!(
        "guest RAM: {} maps in the broker, whole up to {} MiB",
        mappings.len(),
        covered >> 20
    );
    ensure!(
        covered == RAM_BYTES,
        "of guest RAM the broker has mapped only {mappings:x?}"
    );
    Ok(())
}

/// A word of VRAM through the window in BAR0, written by one address and read by another.
fn check_pramin(machine: &mut Machine, device: &PciDevice) -> Result<()> {
    let base = bar0(device, PbusReg::PraminBase.offset())?;
    let word = bar0(device, PRAMIN_BASE)?;
    // The same VRAM one window step of 64 KiB further up, seen from a window that begins lower by as much.
    let again = word + (1 << 16);
    machine.qtest(&format!("writel {base:#x} {PRAMIN_BASE_TRIED:#x}"))?;
    machine.qtest(&format!("writel {word:#x} {PRAMIN_WORD:#x}"))?;
    machine.qtest(&format!("writel {base:#x} {:#x}", PRAMIN_BASE_TRIED - 1))?;
    let read = machine.qtest_number(&format!("readl {again:#x}"))?;
    println!("PRAMIN: {read:#010x} written and read back through two windows");
    ensure!(read == u64::from(PRAMIN_WORD), "PRAMIN reads {read:#010x}");
    Ok(())
}

/// Finds the MSI capability and points it at RAM.
fn enable_msi(machine: &mut Machine, device: &PciDevice) -> Result<()> {
    let byte_at = |word: u32, offset: u8| (word >> (8 * (offset & 3))) as u8;
    let mut offset = byte_at(machine.read_config(device, CAPABILITIES)?, CAPABILITIES);
    let mut found = None;
    for _ in 0..CAPABILITIES_MAX {
        if offset == 0 {
            break;
        }
        let header = machine.read_config(device, offset)?;
        if header as u8 == CAPABILITY_MSI {
            found = Some((offset, header));
        }
        offset = byte_at(header, 1);
    }
    let (msi, header) = found.context("there is no MSI capability")?;
    println!("MSI capability at {msi:#x}");
    ensure!(
        header & MSI_64_BIT != 0,
        "MSI has no 64-bit address: {header:#010x}"
    );
    let command = machine.read_config(device, COMMAND)?;
    machine.write_config(device, COMMAND, command & 0xffff | COMMAND_MEMORY_AND_MASTER)?;
    machine.write_config(device, msi + 4, MSI_GPA)?;
    machine.write_config(device, msi + 8, 0)?;
    machine.write_config(device, msi + 12, MSI_DATA)?;
    machine.qtest(&format!("writel {MSI_GPA:#x} 0"))?;
    machine.write_config(device, msi, header | MSI_ENABLE)?;
    // The driver leaves the mask of the line as it finds it.
    let mask = bar0(device, PmcReg::PmcIntrMask(0).offset())?;
    machine
        .qtest(&format!("writel {mask:#x} {:#x}", pmc_intr::PFIFO))
        .map(drop)
}

/// The workload asked for interrupts: at least one message lies in RAM.
fn check_msi(machine: &mut Machine) -> Result<()> {
    let word = until("the MSI", || {
        let word = machine.qtest_number(&format!("readl {MSI_GPA:#x}"))?;
        Ok((word != 0).then_some(word))
    })?;
    println!("MSI: {word:#x} arrived");
    ensure!(word == u64::from(MSI_DATA), "the MSI wrote {word:#x}");
    Ok(())
}

/// Checks that the vGPU decodes nothing after a reset of the machine, until the firmware has placed it again.
fn check_reset(machine: &mut Machine) -> Result<()> {
    machine.execute("system_reset", json!({}))?;
    until("the reset to reach the vGPU", || {
        let device = machine.vgpu()?;
        Ok(device
            .regions
            .iter()
            .all(|region| region.address < 0)
            .then_some(()))
    })?;
    machine.execute("cont", json!({}))?;
    let device = machine.wait_enumerated()?;
    check_registers(machine, &device).context("after a reset")
}

/// Waits until the broker holds as much as before a client came.
fn wait_released(broker: &Broker, before: &Holdings) -> Result<()> {
    let mut now = Holdings::new();
    let released = until("the broker to let go of its client", || {
        now = broker.holdings()?;
        Ok((now == *before).then_some(()))
    });
    released.with_context(|| format!("it holds {now:?} and held {before:?}"))?;
    println!(
        "the broker holds what it held before: {} things",
        now.values().sum::<usize>()
    );
    Ok(())
}
