//! Our guest driver and workload on QEMU's emulated bus: every access is a qtest command.

use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fermi_spec::bar::Bar;
use guests::{GuestBus, Input, Options};

use super::machine::{Machine, PciDevice};

/// Where the input lies in RAM, and the driver's own part; the firmware uses neither once it has ended.
const INPUT_GPA: u64 = 16 << 20;
const DMA: Range<u64> = 32 << 20..40 << 20;
/// Bytes of RAM in one qtest command.
const RAM_BYTES_MAX: usize = 16 << 10;
/// Step of the clock once QEMU has ceased to answer, so that every wait of the driver ends.
const LEAP_NS: u64 = 1 << 62;

/// The machine as a guest's code sees it.
struct QtestBus<'a> {
    machine: &'a mut Machine,
    bars: [u64; 3],
    start: Instant,
    /// Why qtest failed, if it did. From then on no access is answered.
    failure: Option<anyhow::Error>,
    reports: Vec<String>,
}

impl QtestBus<'_> {
    fn address(&self, bar: Bar, offset: u64) -> u64 {
        let [bar0, bar1, bar3] = self.bars;
        offset
            + match bar {
                Bar::Bar0 => bar0,
                Bar::Bar1 => bar1,
                Bar::Bar3 => bar3,
            }
    }

    fn attempt<T>(&mut self, access: impl FnOnce(&mut Machine) -> Result<T>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        access(self.machine)
            .map_err(|error| self.failure = Some(error))
            .ok()
    }
}

impl GuestBus for QtestBus<'_> {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        let address = self.address(bar, offset);
        self.ram_read32(address)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        let address = self.address(bar, offset);
        self.attempt(|machine| machine.qtest(&format!("writel {address:#x} {value:#x}")));
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        let address = self.address(bar, offset);
        self.attempt(|machine| machine.qtest(&format!("writeq {address:#x} {value:#x}")));
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        for (index, part) in data.chunks_mut(RAM_BYTES_MAX).enumerate() {
            let address = gpa + (index * RAM_BYTES_MAX) as u64;
            let read = self.attempt(|machine| read_ram(machine, address, part));
            read.unwrap_or_else(|| part.fill(0xff));
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        for (index, part) in data.chunks(RAM_BYTES_MAX).enumerate() {
            let address = gpa + (index * RAM_BYTES_MAX) as u64;
            let bytes = part.len();
            self.attempt(|machine| machine.qtest(&format!("write {address:#x} {bytes:#x} 0x{}", hex(part))));
        }
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let word = self.attempt(|machine| machine.qtest_number(&format!("readl {gpa:#x}")));
        word.unwrap_or(u64::MAX) as u32
    }

    fn relax(&mut self) {
        // The next access gives the broker all the time that it takes.
    }

    fn now_ns(&mut self) -> u64 {
        let leap = if self.failure.is_some() { LEAP_NS } else { 0 };
        leap + self.start.elapsed().as_nanos() as u64
    }

    fn report(&mut self, line: &str) {
        self.reports.push(line.to_owned());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_ram(machine: &mut Machine, address: u64, data: &mut [u8]) -> Result<()> {
    let bytes = data.len();
    let answer = machine.qtest(&format!("read {address:#x} {bytes:#x}"))?;
    let digits = answer.strip_prefix("0x").unwrap_or_default().as_bytes();
    ensure!(
        digits.len() == 2 * bytes,
        "qtest answers {} digits for {bytes} bytes",
        digits.len()
    );
    for (byte, pair) in data.iter_mut().zip(digits.chunks(2)) {
        let text = std::str::from_utf8(pair).ok();
        let value = text.and_then(|text| u8::from_str_radix(text, 16).ok());
        *byte = value.context("qtest answers something that is not hexadecimal")?;
    }
    Ok(())
}

/// Takes `input` through VRAM: bring-up, copies by engine, read-back, digests; returns the guest's last report.
///
/// The firmware has to be done, and stopped, as the driver takes RAM that it might use.
pub(super) fn run(machine: &mut Machine, device: &PciDevice, input: &[u8]) -> Result<guests::Summary> {
    let address = |bar| {
        let region = device.regions.iter().find(|region| region.bar == bar);
        region
            .map(|region| region.address as u64)
            .with_context(|| format!("no BAR{bar}"))
    };
    let mut bus = QtestBus {
        bars: [address(0)?, address(1)?, address(3)?],
        machine,
        start: Instant::now(),
        failure: None,
        reports: Vec::new(),
    };
    bus.ram_write(INPUT_GPA, input);
    let inputs = [Input {
        name: "input",
        gpa: INPUT_GPA,
        bytes: input.len() as u64,
    }];
    let options = Options {
        rounds: 1,
        interrupts: true,
        timeout_ms: 20_000,
        ..Options::default()
    };
    let outcome = guests::run(
        &mut bus,
        guests::Machine {
            dma: DMA,
            scratch: &mut [],
            inputs: &inputs,
            options,
        },
    );
    if let Some(failure) = bus.failure {
        return Err(failure.context("an access of the driver failed"));
    }
    let summary = outcome.map_err(|error| anyhow::anyhow!("the driver failed: {error}"))?;
    ensure!(
        summary.is_ok(),
        "the workload found wrong bytes:\n{}",
        bus.reports.join("\n")
    );
    Ok(summary)
}
