//! Memory that each entry of a guest's tables names, and that goes and comes.

use anyhow::Result;
use fermi_spec::addr::FRAME;
use fermi_spec::pte::{Pde, PdeAperture, SMALL_PT_ENTRIES};
use guests::GuestBus as _;
use sim_host::bus::SimBus;

use super::attacks::{Attack, TABLES, TABLES_GPA, again, attack};
use super::{Place, grinder};
use crate::rig::{self, DATA, DIRECTORY};

/// What is tried at a broker of [`Host::looking`](super::Host::looking) under a policy by which launches wait for what they use: chunks change places for
/// each grid, and one of them is named by each slot of its address space, by all frames.
pub const AT_WAITERS: [Attack; 1] = [attack("grids that wait for a chunk mapped everywhere", rotating)];

/// Frames of a chunk.
const FRAMES: u64 = 16;

fn rotating(place: &Place) -> Result<()> {
    again(place, || grinder::rotate(place, map_everywhere))
}

/// Points all entries that the directory has left to one table, whose entries name a frame each in turn.
fn map_everywhere(bus: &mut SimBus) {
    let entries: Vec<u8> = (0..SMALL_PT_ENTRIES as u64)
        .flat_map(|entry| {
            let pte = rig::vram_pte(DATA + entry % FRAMES * FRAME);
            pte.into_bits().to_le_bytes()
        })
        .collect();
    bus.ram_write(TABLES_GPA, &entries);
    for slot in 2..TABLES {
        let table = Pde::new()
            .with_small_aperture(PdeAperture::SysCoherent)
            .with_small_frame((TABLES_GPA >> 12) as u32);
        rig::put64(bus, DIRECTORY + 8 * slot, table.into_bits());
    }
    rig::flush(bus, DIRECTORY);
}
