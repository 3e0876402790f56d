//! A well-behaved guest with a pattern in its VRAM, which shows any harm done to it.

use fermi_spec::addr::LARGE_PAGE;
use guests::driver::{Copier, Copy, CopyPath, Driver, DriverConfig, PageSize, USER_VA};
use guests::{DriverError, GuestBus, Options};

use sim_host::bus::SimBus;

/// Guest RAM that the driver uses.
const DMA: std::ops::Range<u64> = 1 << 20..7 << 20;
/// Place in guest RAM that the pattern goes through on its way to VRAM and back.
const STAGING_GPA: u64 = 8 << 20;
/// Bytes moved at a time.
const STAGING: u64 = 4 << 20;
const STAGING_VA: u64 = USER_VA;
const VRAM_VA: u64 = 8 << 30;

/// The guest, its driver and the pattern that its memory should hold.
pub struct Canary {
    driver: Driver,
    copier: Copier,
    seed: u64,
    bytes: u64,
}

impl Canary {
    /// Brings the GPU up and fills `bytes` (a multiple of 128 KiB) of VRAM with a pattern, by copy engine.
    pub fn plant(bus: &mut SimBus, bytes: u64, seed: u64) -> Result<Self, DriverError> {
        let config = DriverConfig::new(
            DMA,
            &Options {
                timeout_ms: 3_000,
                ..Options::default()
            },
        );
        let mut driver = Driver::start(bus, &config)?;
        driver.map_ram(bus, STAGING_VA, STAGING_GPA, STAGING)?;
        let vram = Driver::data_start().next_multiple_of(LARGE_PAGE);
        driver.map_vram(bus, VRAM_VA, vram, bytes, PageSize::Large)?;
        driver.flush_tlb(bus)?;
        let copier = Copier::new(&mut driver, bus)?;
        let mut canary = Self {
            driver,
            copier,
            seed,
            bytes,
        };
        for (start, length) in canary.pieces() {
            bus.ram_write(STAGING_GPA, &canary.pattern(start, length));
            canary.copy(bus, CopyPath::Copy0, STAGING_VA, VRAM_VA + start, length)?;
        }
        Ok(canary)
    }

    /// Reads everything back by `path` and compares every byte.
    pub fn check(&mut self, bus: &mut SimBus, path: CopyPath) -> Result<(), String> {
        for (start, length) in self.pieces() {
            bus.ram_write(STAGING_GPA, &vec![0xee; length as usize]);
            self.copy(bus, path, VRAM_VA + start, STAGING_VA, length)
                .map_err(|error| format!("the canary cannot copy: {error}"))?;
            let mut data = vec![0; length as usize];
            bus.ram_read(STAGING_GPA, &mut data);
            let wrong = data
                .iter()
                .zip(self.pattern(start, length))
                .position(|(&is, was)| is != was);
            if let Some(at) = wrong {
                return Err(format!("the canary's byte {:#x} changed", start + at as u64));
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        bus: &mut SimBus,
        path: CopyPath,
        source: u64,
        target: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let copy = Copy {
            source,
            target,
            bytes,
        };
        self.copier.copy(&mut self.driver, bus, path, copy)?;
        self.copier.finish(&mut self.driver, bus)
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let bytes = self.bytes;
        (0..bytes.div_ceil(STAGING)).map(move |piece| {
            let start = piece * STAGING;
            (start, STAGING.min(bytes - start))
        })
    }

    /// Every aligned eight bytes differ from all others of all seeds.
    fn pattern(&self, start: u64, length: u64) -> Vec<u8> {
        (0..length / 8)
            .flat_map(|word| (self.seed << 48 | (start + word * 8) ^ 0x5aa5_0000_0000).to_le_bytes())
            .collect()
    }
}
