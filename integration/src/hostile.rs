//! Guests that try to do harm. They may break their own GPU in any way; nobody else may notice.

use fermi_spec::regs::Bar0Reg;
use guests::Bar;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bus::SimBus;

/// Random stores and loads where they have an effect: registers of the table, windows, tables made of plausible
/// entries, channels bound to garbage.
pub fn attack(bus: &mut SimBus, seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let registers: Vec<Bar0Reg> = Bar0Reg::all().collect();
    for _ in 0..rng.random_range(200..3_000) {
        match rng.random_range(0..10u32) {
            0..=4 => {
                let reg = registers[rng.random_range(0..registers.len())];
                let value = value(&mut rng);
                bus.write(Bar::Bar0, u64::from(reg.offset()), &value.to_le_bytes());
            }
            5 => {
                let reg = registers[rng.random_range(0..registers.len())];
                bus.read(Bar::Bar0, u64::from(reg.offset()), 4);
            }
            6 => {
                // Somewhere in PRAMIN: entries that could be right.
                let offset = 0x70_0000 + rng.random_range(0..0x10_0000u64);
                let data = (u64::from(value(&mut rng)) << 32 | u64::from(value(&mut rng))).to_le_bytes();
                bus.write(Bar::Bar0, offset, &data[..rng.random_range(1..=8)]);
            }
            7 => {
                let bar = [Bar::Bar1, Bar::Bar3][rng.random_range(0..2)];
                let offset = rng.random_range(0..130 << 20);
                let width = [1, 2, 4, 8, 64, 4096][rng.random_range(0..6)];
                let data: Vec<u8> = (0..width).map(|_| rng.random()).collect();
                bus.write(bar, offset, &data);
            }
            8 => {
                let bar = [Bar::Bar0, Bar::Bar1, Bar::Bar3][rng.random_range(0..3)];
                bus.read(bar, rng.random(), [1, 2, 3, 4, 8, 4096][rng.random_range(0..6)]);
            }
            _ => guests::GuestBus::relax(bus),
        }
    }
    Ok(())
}

/// Small numbers, addresses within VRAM, flag bits, and noise.
fn value(rng: &mut ChaCha8Rng) -> u32 {
    match rng.random_range(0..5u32) {
        0 => rng.random_range(0..256),
        1 => rng.random_range(0..0x6000u32) | 0xc000_0000,
        2 => 1 << rng.random_range(0..32u32),
        3 => rng.random_range(0..0x6000u32) << 4 | rng.random_range(0..16),
        _ => rng.random(),
    }
}
