//! Checks of the machine itself, without a driver: `bare.test=NAME` on the command line.
//!
//! | name | does |
//! |---|---|
//! | `boot` | reports BOOT_0, whether RAM keeps what is written, and an FNV-1a digest of each input |
//! | `widths` | one load and store of 4 bytes at BAR0 0 and of 8 bytes at BAR1 8, reporting what was read |
//! | `status` | ends with status 42 |
//! | `spin` | never ends, without an exit |
//! | `latency` | reports how long reads of the serial port and of BOOT_0 take |
//! | `doorbell` | reports how long stores of a channel's GP_PUT take that leave it as it is |
//! | `idle-doorbell` | rests, then rings, again and again; reports how long the first store after each rest took |
//! | `poll` | never ends, reading BOOT_0 all the time |
//! | `sleep` | reports, waits for the vGPU's interrupt a hundred milliseconds at most, reports again |
//! | `interrupt` | has the vGPU's interrupt sent to the local APIC and reports how many arrive until the first has |
//! | `refused` | reports a load of BAR3 |
//! | `stray` | has the GPU copy to and from an address where no VM has RAM, reporting what came back |
//! | `fault` | loads from address 0 |

use fermi_spec::bar::Bar;
use guests::driver::{Copier, Copy, CopyPath, DriverConfig, USER_VA};
use guests::{Driver, DriverError, GuestBus};

use crate::bus::Machine;
use crate::machine::{self, Boot};

const BOOT_0: u64 = 0;
const WAIT_US: u32 = 100_000;
/// Accesses that are timed one by one.
const LATENCY_ACCESSES: usize = 501;
/// Rests of a channel that is rung after each. A broker takes a VM that is quiet for a tenth of a second for one that rests.
const RESTS: usize = 9;
const REST_NS: u64 = 300_000_000;
/// Above any VM's RAM, and above all that brokers map for a card.
const NOWHERE: u64 = 0xee_0000_0000;
const STRAY_BYTES: u64 = 4096;
const TIMEOUT_MS: u32 = 30_000;
const STATUS_TEST: u32 = 42;
const STATUS_UNKNOWN_TEST: u32 = 2;

/// Runs the test called `name`. Returns the VM's status.
pub(crate) fn run(name: &str, bus: &mut Machine, boot: Boot, ram_free: core::ops::Range<u64>) -> u32 {
    match name {
        "boot" => {
            report_boot(bus, boot, ram_free);
            0
        }
        "widths" => {
            report_widths(bus);
            0
        }
        "status" => STATUS_TEST,
        "spin" => {
            bus.report("spinning");
            loop {
                core::hint::spin_loop();
            }
        }
        "latency" => {
            report_latency(bus, "port", |_| u32::from(machine::serial_status()));
            report_latency(bus, "register", |bus| bus.read32(Bar::Bar0, BOOT_0));
            0
        }
        "doorbell" => {
            report_error(bus, "doorbell", |bus| ring(bus, ram_free));
            0
        }
        "idle-doorbell" => {
            report_error(bus, "idle-doorbell", |bus| ring_after_rests(bus, ram_free));
            0
        }
        "poll" => {
            bus.report("polling");
            loop {
                bus.read32(Bar::Bar0, BOOT_0);
            }
        }
        "sleep" => {
            bus.report("sleeping");
            let start = bus.now_ns();
            machine::wait(WAIT_US);
            let is_early = bus.now_ns() - start < u64::from(WAIT_US) * 1000;
            bus.report(if is_early {
                "awake by interrupt"
            } else {
                "awake by time"
            });
            0
        }
        "interrupt" => {
            bus.listen_with_handler();
            bus.report("listening");
            while machine::interrupts() == 0 {
                core::hint::spin_loop();
            }
            line(bus, format_args!("interrupts={}", machine::interrupts()));
            0
        }
        "refused" => {
            let value = bus.read32(Bar::Bar3, 0);
            line(bus, format_args!("refused={value:08x}"));
            0
        }
        "stray" => {
            report_stray(bus, ram_free);
            0
        }
        "fault" => machine::load32(0),
        _ => STATUS_UNKNOWN_TEST,
    }
}

fn report_boot(bus: &mut Machine, boot: Boot, ram_free: core::ops::Range<u64>) {
    let boot0 = bus.read32(Bar::Bar0, BOOT_0);
    line(bus, format_args!("boot0={boot0:08x}"));
    let last = ram_free.end - 4;
    bus.ram_write(ram_free.start, b"ram.");
    bus.ram_write(last, &0x1234_5678u32.to_le_bytes());
    let mut first = [0; 4];
    bus.ram_read(ram_free.start, &mut first);
    let is_kept = first == *b"ram." && bus.ram_read32(last) == 0x1234_5678;
    line(
        bus,
        format_args!(
            "ram={} end={:#x}",
            if is_kept { "ok" } else { "bad" },
            ram_free.end
        ),
    );
    for (name, start, bytes) in boot.inputs() {
        let digest = fnv1a(bus, start, bytes);
        line(
            bus,
            format_args!("input={name} bytes={bytes} fnv1a={digest:016x}"),
        );
    }
    let start = bus.now_ns();
    bus.relax();
    let has_advanced = bus.now_ns() > start;
    line(
        bus,
        format_args!("clock={}", if has_advanced { "ok" } else { "bad" }),
    );
}

fn report_widths(bus: &mut Machine) {
    let narrow = bus.read32(Bar::Bar0, 0);
    bus.write32(Bar::Bar0, 4, 0x0403_0201);
    let wide = machine::load64(bus.address(Bar::Bar1, 8));
    bus.write64(Bar::Bar1, 16, 0x0807_0605_0403_0201);
    line(bus, format_args!("narrow={narrow:08x} wide={wide:016x}"));
}

fn driver_config(ram_free: core::ops::Range<u64>) -> DriverConfig {
    DriverConfig {
        dma: ram_free,
        interrupts: false,
        vram_is_zeroed: true,
        timeout_ms: TIMEOUT_MS,
    }
}

fn report_error(bus: &mut Machine, name: &str, test: impl FnOnce(&mut Machine) -> Result<(), DriverError>) {
    if let Err(error) = test(bus) {
        line(bus, format_args!("{name}: {error}"));
    }
}

/// Rings a channel that is up and has nothing to do, and reports how long that takes.
fn ring(bus: &mut Machine, ram_free: core::ops::Range<u64>) -> Result<(), DriverError> {
    let mut driver = Driver::start(bus, &driver_config(ram_free))?;
    let channel = driver.create_channel(bus, &[])?;
    let fence = driver.submit(bus, channel)?;
    driver.wait(bus, fence)?;
    report_latency(bus, "doorbell", |bus| driver.ring(bus, channel));
    driver.check_device(bus)
}

/// Rests between doorbells. The one after each rest is timed, without work; what follows it has work, every other time after a rest too.
fn ring_after_rests(bus: &mut Machine, ram_free: core::ops::Range<u64>) -> Result<(), DriverError> {
    let mut driver = Driver::start(bus, &driver_config(ram_free))?;
    let channel = driver.create_channel(bus, &[])?;
    let mut times = [0; RESTS];
    for (round, time) in times.iter_mut().enumerate() {
        rest(bus);
        let start = bus.now_ns();
        driver.ring(bus, channel)?;
        *time = bus.now_ns() - start;
        if round % 2 == 1 {
            rest(bus);
        }
        let fence = driver.submit(bus, channel)?;
        driver.wait(bus, fence)?;
    }
    report_times(bus, "idle-doorbell", &mut times);
    driver.check_device(bus)
}

fn rest(bus: &mut Machine) {
    let start = bus.now_ns();
    while bus.now_ns() - start < REST_NS {
        machine::wait(WAIT_US);
    }
}

fn report_stray(bus: &mut Machine, ram_free: core::ops::Range<u64>) {
    match stray(bus, ram_free) {
        Ok(word) => line(bus, format_args!("stray={word:08x}")),
        Err(DriverError::MmuFault { .. }) => line(bus, format_args!("stray=fault")),
        Err(error) => line(bus, format_args!("stray: {error}")),
    }
}

/// Maps [`NOWHERE`] for the GPU, has it stored to and loaded from, and returns the first word that was loaded.
fn stray(bus: &mut Machine, ram_free: core::ops::Range<u64>) -> Result<u32, DriverError> {
    let mut driver = Driver::start(bus, &driver_config(ram_free))?;
    let mut copier = Copier::new(&mut driver, bus)?;
    let block = driver.take_dma(bus, STRAY_BYTES)?;
    driver.map_ram(bus, USER_VA, NOWHERE, STRAY_BYTES)?;
    driver.flush_tlb(bus)?;
    bus.ram_write(block.gpa, b"away");
    for (source, target) in [(block.va, USER_VA), (USER_VA, block.va)] {
        let bytes = STRAY_BYTES;
        let copy = Copy {
            source,
            target,
            bytes,
        };
        copier.copy(&mut driver, bus, CopyPath::Copy0, copy)?;
        copier.finish(&mut driver, bus)?;
    }
    Ok(bus.ram_read32(block.gpa))
}

/// Reports the least and the median time of one access, in ns. The first is not counted.
fn report_latency<T>(bus: &mut Machine, name: &str, access: impl Fn(&mut Machine) -> T) {
    let mut times = [0; LATENCY_ACCESSES];
    access(bus);
    for time in &mut times {
        let start = bus.now_ns();
        core::hint::black_box(access(bus));
        *time = bus.now_ns() - start;
    }
    report_times(bus, name, &mut times);
}

fn report_times<const COUNT: usize>(bus: &mut Machine, name: &str, times: &mut [u64; COUNT]) {
    times.sort_unstable();
    let median = times[COUNT / 2];
    line(
        bus,
        format_args!("latency={name} min_ns={} median_ns={median}", times[0]),
    );
}

/// Formats on the way to COM1, for there is no heap.
fn line(bus: &mut Machine, text: core::fmt::Arguments<'_>) {
    struct Line {
        bytes: [u8; 256],
        used: usize,
    }
    impl core::fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let end = self.used + text.len();
            let room = self.bytes.get_mut(self.used..end).ok_or(core::fmt::Error)?;
            room.copy_from_slice(text.as_bytes());
            self.used = end;
            Ok(())
        }
    }
    let mut line = Line {
        bytes: [0; 256],
        used: 0,
    };
    // A line that is too long is cut.
    let _ = core::fmt::write(&mut line, text);
    bus.report(
        line.bytes
            .get(..line.used)
            .and_then(|text| str::from_utf8(text).ok())
            .unwrap_or("?"),
    );
}

fn fnv1a(bus: &mut Machine, start: u64, bytes: u64) -> u64 {
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    let mut piece = [0; 4096];
    let mut at = start;
    let end = start + bytes;
    while at < end {
        let length = (end - at).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        bus.ram_read(at, piece);
        for byte in piece.iter() {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        at += length as u64;
    }
    digest
}
