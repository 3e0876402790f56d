//! [`GuestBus`] on the virtual machine: the vGPU found on the PCI bus, RAM, COM1.

use core::fmt;

use fermi_spec::bar::Bar;
use guests::GuestBus;

use crate::machine;

/// First characters of a line that is a report (README.md).
const REPORT_PREFIX: &str = "@vramd ";
const VENDOR_NVIDIA: u32 = 0x10de;
/// Configuration registers (PCI Local Bus 3.0 §6.1, §6.8.1).
const REGISTER_ID: u32 = 0x00;
const REGISTER_BAR0: u32 = 0x10;
const REGISTER_CAPABILITIES: u32 = 0x34;
const BAR_TYPE_64: u32 = 0b100;
const BAR_KIND: u32 = 0b111;
const CAPABILITY_MSI: u32 = 5;
const CAPABILITIES_MAX: u32 = 48;
const MSI_ENABLE: u32 = 1 << 16;
const MSI_64_BIT: u32 = 1 << 23;
/// Message address of the first local APIC, and one that no local APIC has: the VMM then ends a wait with the
/// interrupt (README.md).
const MSI_LOCAL_APIC: u32 = 0xfee0_0000;
const MSI_NOWHERE: u32 = 0;
const DEVICES: u32 = 32;

/// How long [`GuestBus::relax`] spins after the last store to the vGPU, in nanoseconds; then it sleeps.
const SPIN_NS: u64 = 30_000;
/// First and longest sleep, in microseconds; each turn without a store to the vGPU doubles it.
const SLEEP_US_MIN: u32 = 100;
const SLEEP_US_MAX: u32 = 1000;
const SPINS: u32 = 64;

/// The machine that this program runs on.
pub(crate) struct Machine {
    device: u32,
    bars: [u64; 3],
    tsc_khz: u64,
    /// When the vGPU was last written: a wait that follows is likely short.
    last_store_ns: u64,
    sleep_us: u32,
}

impl Machine {
    /// Finds the vGPU. `tsc_khz` is the frequency of the time-stamp counter, not 0.
    pub(crate) fn find(tsc_khz: u64) -> Option<Machine> {
        let is_gpu = |device: &u32| machine::config_read(*device, REGISTER_ID) & 0xffff == VENDOR_NVIDIA;
        let device = (0..DEVICES).find(is_gpu)?;
        program_msi(device, MSI_NOWHERE);
        let bars = [0, 1, 3].map(|number| bar_address(device, number));
        Some(Machine {
            device,
            bars,
            tsc_khz,
            last_store_ns: 0,
            sleep_us: SLEEP_US_MIN,
        })
    }

    /// Guest-physical address of `offset` in `bar`.
    pub(crate) fn address(&self, bar: Bar, offset: u64) -> u64 {
        let [bar0, bar1, bar3] = self.bars;
        offset
            + match bar {
                Bar::Bar0 => bar0,
                Bar::Bar1 => bar1,
                Bar::Bar3 => bar3,
            }
    }

    /// Delivers the vGPU's interrupt to this CPU, as vector [`machine::INTERRUPT_VECTOR`], instead of ending
    /// waits.
    pub(crate) fn listen_with_handler(&self) {
        machine::enable_interrupts();
        program_msi(self.device, MSI_LOCAL_APIC);
    }

    fn stored(&mut self) {
        self.last_store_ns = self.now_ns();
        self.sleep_us = SLEEP_US_MIN;
    }
}

fn bar_address(device: u32, number: u32) -> u64 {
    let register = REGISTER_BAR0 + 4 * number;
    let low = machine::config_read(device, register);
    let is_64_bit = low & BAR_KIND == BAR_TYPE_64;
    let high = if is_64_bit {
        machine::config_read(device, register + 4)
    } else {
        0
    };
    u64::from(low & !0xf) | u64::from(high) << 32
}

/// Enables MSI with `address` and this program's vector.
fn program_msi(device: u32, address: u32) {
    let mut at = machine::config_read(device, REGISTER_CAPABILITIES) & 0xfc;
    for _ in 0..CAPABILITIES_MAX {
        if at == 0 {
            return;
        }
        let header = machine::config_read(device, at);
        if header & 0xff == CAPABILITY_MSI {
            let (address_high, data) = if header & MSI_64_BIT != 0 {
                (Some(at + 8), at + 12)
            } else {
                (None, at + 8)
            };
            machine::config_write(device, at + 4, address);
            address_high
                .into_iter()
                .for_each(|register| machine::config_write(device, register, 0));
            machine::config_write(device, data, machine::INTERRUPT_VECTOR);
            machine::config_write(device, at, header | MSI_ENABLE);
            return;
        }
        at = header >> 8 & 0xfc;
    }
}

impl GuestBus for Machine {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        machine::load32(self.address(bar, offset))
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        machine::store32(self.address(bar, offset), value);
        self.stored();
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        machine::store64(self.address(bar, offset), value);
        self.stored();
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        machine::ram_read(gpa, data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        machine::ram_write(gpa, data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        machine::load32(gpa)
    }

    fn relax(&mut self) {
        if self.now_ns().saturating_sub(self.last_store_ns) < SPIN_NS {
            (0..SPINS).for_each(|_| core::hint::spin_loop());
        } else {
            machine::wait(self.sleep_us);
            self.sleep_us = (2 * self.sleep_us).min(SLEEP_US_MAX);
        }
    }

    fn now_ns(&mut self) -> u64 {
        (u128::from(machine::timestamp()) * 1_000_000 / u128::from(self.tsc_khz)) as u64
    }

    fn report(&mut self, line: &str) {
        print(format_args!("{REPORT_PREFIX}{line}\n"));
    }
}

/// Writes to COM1.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    struct Com1;

    impl fmt::Write for Com1 {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            text.bytes().for_each(machine::serial_byte);
            Ok(())
        }
    }

    // `Com1` never fails, so this fails only for a `Display` that does, whose text is then cut.
    let _ = fmt::write(&mut Com1, text);
}
