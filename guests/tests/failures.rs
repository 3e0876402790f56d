//! Devices that are absent, foreign or stuck: the driver ends with an error that says so.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use guests::driver::{Driver, DriverConfig, DriverError, Object};
use guests::{GuestBus, Input, Machine, Options, run};
use std::collections::BTreeMap;
use std::ops::Range;

const RAM_BYTES: usize = 8 << 20;

/// A device whose registers keep what is written, but for those that always read the same.
struct Registers {
    fixed: BTreeMap<u64, u32>,
    stored: BTreeMap<u64, u32>,
    default: u32,
    ram: Vec<u8>,
    now_ns: u64,
    tick_ns: u64,
    lines: Vec<String>,
}

impl Registers {
    fn all(default: u32) -> Self {
        Self {
            fixed: BTreeMap::new(),
            stored: BTreeMap::new(),
            default,
            ram: vec![0; RAM_BYTES],
            now_ns: 0,
            tick_ns: 100_000,
            lines: Vec::new(),
        }
    }

    /// Says what a driver wants to hear, and executes nothing.
    fn agreeable() -> Self {
        let mut bus = Self::all(0);
        bus.fixed.extend([
            (0x000000, 0x0c0c_00a3),
            (0x000204, 7),
            (0x022438, 1),
            (0x022554, 0),
            (0x11020c, 64),
            (0x070000, 0),
            (0x100c80, 0x00ff_8000),
            (0x00227c, 0),
            (0x002100, 0),
        ]);
        bus
    }

    fn with(mut self, offset: u64, value: u32) -> Self {
        self.fixed.insert(offset, value);
        self
    }
}

impl GuestBus for Registers {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        if bar != Bar::Bar0 {
            return self.default;
        }
        let fixed = self.fixed.get(&offset);
        *fixed
            .or_else(|| self.stored.get(&offset))
            .unwrap_or(&self.default)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        if bar == Bar::Bar0 && self.default != u32::MAX {
            self.stored.insert(offset, value);
        }
    }

    fn write64(&mut self, _bar: Bar, _offset: u64, _value: u64) {}

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        data.copy_from_slice(&self.ram[gpa as usize..][..data.len()]);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.ram[gpa as usize..][..data.len()].copy_from_slice(data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let bytes = self.ram[gpa as usize..][..4].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    }

    fn relax(&mut self) {
        self.now_ns += self.tick_ns;
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn report(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }
}

fn config() -> DriverConfig {
    const DMA: Range<u64> = 0..4 << 20;
    DriverConfig::new(DMA, &Options::default())
}

fn start(bus: &mut Registers) -> Result<Driver, DriverError> {
    Driver::start(bus, &config())
}

#[test]
fn bus_of_all_ones_gives_no_device() {
    assert_eq!(
        start(&mut Registers::all(u32::MAX)).err(),
        Some(DriverError::NoDevice)
    );
}

#[test]
fn bus_of_zeros_gives_wrong_chip() {
    let error = start(&mut Registers::all(0)).err();
    assert_eq!(error, Some(DriverError::WrongChip { boot0: 0 }));
}

#[test]
fn device_that_vanishes_after_identification_gives_an_error() {
    let error = start(&mut Registers::all(u32::MAX).with(0, 0x0c0c_00a3)).err();
    assert!(matches!(error, Some(DriverError::VramSize { .. })), "{error:?}");
}

#[test]
fn card_without_memory_gives_its_size() {
    let error = start(&mut Registers::agreeable().with(0x11020c, 0)).err();
    assert!(
        matches!(error, Some(DriverError::VramSize { bytes: 0, .. })),
        "{error:?}"
    );
}

#[test]
fn units_that_stay_off_are_named() {
    let error = start(&mut Registers::agreeable().with(0x200, 0x1100)).err();
    let wanted = DriverError::UnitsMissing {
        wanted: 0x11c0,
        enabled: 0x1100,
    };
    assert_eq!(error, Some(wanted));
}

#[test]
fn flush_that_never_ends_times_out() {
    let error = start(&mut Registers::agreeable().with(0x70000, 2)).err();
    let wanted = DriverError::Timeout {
        what: "the host flush",
        value: 2,
    };
    assert_eq!(error, Some(wanted));
}

#[test]
fn flush_that_never_ends_times_out_without_a_clock() {
    let mut bus = Registers::agreeable().with(0x70000, 2);
    bus.tick_ns = 0;
    assert!(matches!(start(&mut bus).err(), Some(DriverError::Timeout { .. })));
}

#[test]
fn tlb_flush_that_never_ends_times_out() {
    let error = start(&mut Registers::agreeable().with(0x100c80, 0x00ff_0000)).err();
    assert!(matches!(error, Some(DriverError::Timeout { .. })), "{error:?}");
}

#[test]
fn runlist_that_is_never_taken_times_out() {
    let mut bus = Registers::agreeable().with(0x227c, 1 << 20);
    let mut driver = start(&mut bus).unwrap();
    let error = driver.create_channel(&mut bus, &[]).unwrap_err();
    assert!(
        matches!(
            error,
            DriverError::Timeout {
                what: "a runlist",
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn submission_that_is_never_executed_times_out() {
    let mut bus = Registers::agreeable();
    let mut driver = start(&mut bus).unwrap();
    let channel = driver.create_channel(&mut bus, &[] as &[Object]).unwrap();
    let fence = driver.submit(&mut bus, channel).unwrap();
    let wanted = DriverError::Timeout {
        what: "a submission",
        value: 0,
    };
    assert_eq!(driver.wait(&mut bus, fence), Err(wanted));
}

#[test]
fn seventeenth_submission_waits_for_the_first() {
    let mut bus = Registers::agreeable();
    let mut driver = start(&mut bus).unwrap();
    let channel = driver.create_channel(&mut bus, &[]).unwrap();
    let submitted = (0..17).take_while(|_| driver.submit(&mut bus, channel).is_ok());
    assert_eq!(submitted.count(), 16);
}

#[test]
fn fault_ends_a_wait_early_and_is_named() {
    let mut bus = Registers::agreeable();
    let mut driver = start(&mut bus).unwrap();
    let channel = driver.create_channel(&mut bus, &[]).unwrap();
    let fence = driver.submit(&mut bus, channel).unwrap();
    let record = 0x2800 + 0x10 * 0x15;
    bus.fixed.extend([
        (0x2100, 1 << 28),
        (0x259c, 1 << 0x15),
        (record + 4, 0x1000),
        (record + 8, 2),
        (record + 12, 0x42),
    ]);
    let wanted = DriverError::MmuFault {
        unit: 0x15,
        va: 0x2_0000_1000,
        kind: 0x42,
    };
    assert_eq!(driver.wait(&mut bus, fence), Err(wanted));
    assert!(bus.now_ns < 1_000_000_000, "waited {} ns", bus.now_ns);
}

#[test]
fn method_that_an_engine_refuses_is_named_at_the_time_out() {
    let mut bus = Registers::agreeable()
        .with(0x105008, 1 << 6)
        .with(0x105040, 0xc1_0003);
    let mut driver = start(&mut bus).unwrap();
    let channel = driver.create_channel(&mut bus, &[]).unwrap();
    let fence = driver.submit(&mut bus, channel).unwrap();
    let wanted = DriverError::EngineError {
        engine: Engine::Copy1,
        code: 0xc1_0003,
    };
    assert_eq!(driver.wait(&mut bus, fence), Err(wanted));
}

#[test]
fn channels_beyond_the_last_are_refused() {
    let mut bus = Registers::agreeable();
    let mut driver = start(&mut bus).unwrap();
    let created = (0..9).take_while(|_| driver.create_channel(&mut bus, &[]).is_ok());
    assert_eq!(created.count(), 8);
}

#[test]
fn dma_memory_too_small_for_a_slot_is_an_error_in_the_report() {
    let mut bus = Registers::agreeable();
    let inputs = [Input {
        name: "a",
        gpa: 0x60_0000,
        bytes: 100,
    }];
    let machine = Machine {
        dma: 0..0x6_0000,
        scratch: &mut [],
        inputs: &inputs,
        options: Options::default(),
    };
    let error = run(&mut bus, machine).unwrap_err();
    assert!(matches!(error, DriverError::DmaMemoryFull { .. }), "{error:?}");
    assert_eq!(bus.lines, [format!(r#"{{"error":"{error}"}}"#)]);
}

#[test]
fn workload_on_a_dead_engine_ends_with_a_time_out() {
    let mut bus = Registers::agreeable();
    let inputs = [Input {
        name: "a",
        gpa: 0x60_0000,
        bytes: 100,
    }];
    let machine = Machine {
        dma: 0..4 << 20,
        scratch: &mut [],
        inputs: &inputs,
        options: Options::default(),
    };
    let error = run(&mut bus, machine).unwrap_err();
    assert!(
        matches!(
            error,
            DriverError::Timeout {
                what: "a submission",
                ..
            }
        ),
        "{error:?}"
    );
}
