//! A VMM that does not behave: what it asks for beside its guest comes at any time and in any order, and its answers are lies.
//!
//! RAM comes and goes under the GPU's work, in ranges that are right or wrong; the device is reset, its configuration written; accesses come
//! as messages though their window is memory; looks find doorbells that nobody rang; thousands of requests wait at a time.

use fermi_spec::addr::{Gpa, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::instance::CHANNELS;
use guests::GuestBus;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim_host::bus::SimBus;
use vgpu::Request;

use crate::rig::{COMMAND, MSI_CONTROL};
use crate::witness::{SPARE_BYTES, SPARE_GPA};

/// RAM of the guest, up to where its device reaches at first and a bit more.
const RAM_BYTES: u64 = SPARE_GPA + SPARE_BYTES;
/// Most requests of a burst: some more than may wait.
const BURST_MAX: u32 = 5_000;
/// Bytes of the configuration space.
const CONFIG_BYTES: u64 = 256;

/// Lies for a number of steps.
pub(crate) fn lie(bus: &mut SimBus, seed: u64) -> Result<(), String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Some leave the RAM that the guest works with alone for most of the time: its GPU goes on working.
    let ram_every = [1, 8, 64][rng.random_range(0..3usize)];
    for _ in 0..rng.random_range(20..300) {
        match rng.random_range(0..64u32) {
            0 => {
                let count = [8, 64, BURST_MAX][rng.random_range(0..3usize)];
                let requests = (0..count).map(|_| request(&mut rng, ram_every)).collect();
                bus.post(requests);
            }
            1 => bus.map_windows(),
            2..=3 => {
                let request = request(&mut rng, ram_every);
                bus.machine(request);
            }
            4..=5 => {
                let channels = (0..rng.random_range(0..300u32)).map(|_| match rng.random() {
                    true => rng.random_range(0..CHANNELS as u8),
                    false => rng.random(),
                });
                let channels = channels.collect();
                bus.ring(channels);
            }
            _ => {
                let request = request(&mut rng, ram_every);
                bus.post(vec![request]);
            }
        }
        (0..rng.random_range(0..6)).for_each(|_| bus.relax());
    }
    Ok(())
}

fn request(rng: &mut ChaCha8Rng, ram_every: u32) -> Request {
    match rng.random_range(0..32u32) {
        0..=11 => ram(rng, ram_every),
        12..=17 => access(rng),
        18..=23 => config(rng),
        24 if rng.random_range(0..ram_every) == 0 => Request::Reset,
        _ => Request::MaskIntx { masked: rng.random() },
    }
}

/// RAM comes or goes: that which nobody works with mostly, whole, or a part of it.
fn ram(rng: &mut ChaCha8Rng, ram_every: u32) -> Request {
    let pages = match rng.random_range(0..ram_every) {
        0 => 0..RAM_BYTES / SMALL_PAGE,
        _ => SPARE_GPA / SMALL_PAGE..RAM_BYTES / SMALL_PAGE,
    };
    let start = rng.random_range(pages.clone());
    let end = rng.random_range(start..=pages.end);
    let (gpa, bytes) = match rng.random_range(0..16u32) {
        0..=3 => (pages.start * SMALL_PAGE, (pages.end - pages.start) * SMALL_PAGE),
        4 => (start * SMALL_PAGE + rng.random_range(1..SMALL_PAGE), SMALL_PAGE),
        5 => (start * SMALL_PAGE, rng.random_range(0..SMALL_PAGE)),
        6 => (rng.random(), rng.random()),
        7..=10 => (start * SMALL_PAGE, SMALL_PAGE),
        _ => (start * SMALL_PAGE, (end - start) * SMALL_PAGE),
    };
    // What it maps is there: the broker has asked its file.
    let is_there = gpa.checked_add(bytes).is_some_and(|end| end <= RAM_BYTES);
    let gpa = Gpa(gpa);
    match is_there && rng.random() {
        true => Request::MapRam {
            gpa,
            bytes,
            writable: rng.random_range(0..4u32) != 0,
        },
        false => Request::UnmapRam { gpa, bytes },
    }
}

/// An access as a message, whether its window is memory or not.
fn access(rng: &mut ChaCha8Rng) -> Request {
    let bar = Bar::ALL[rng.random_range(0..3usize)];
    let offset = match rng.random_range(0..4u32) {
        0 => rng.random(),
        1 => rng.random_range(0..128 << 20),
        _ => rng.random_range(0..16 << 20),
    };
    let bytes: u32 = [1, 2, 4, 4, 8, 64, 4096][rng.random_range(0..7usize)];
    match rng.random() {
        true => Request::Read { bar, offset, bytes },
        false => {
            let data = (0..bytes).map(|_| rng.random()).collect();
            Request::Write { bar, offset, data }
        }
    }
}

/// The configuration space: what interrupts and decodes, mostly.
fn config(rng: &mut ChaCha8Rng) -> Request {
    let offset = match rng.random_range(0..4u32) {
        0 => rng.random_range(0..CONFIG_BYTES + 64),
        1 => MSI_CONTROL,
        _ => COMMAND,
    };
    let bytes: u32 = [1, 2, 4, 64][rng.random_range(0..4usize)];
    match rng.random_range(0..4u32) {
        0 => Request::ReadConfig { offset, bytes },
        _ => {
            let data = (0..bytes).map(|_| rng.random()).collect();
            Request::WriteConfig { offset, data }
        }
    }
}
