//! BAR1 as memory that the client maps: data that the GPU works with, and doorbells.

use fermi_spec::addr::FRAME;
use fermi_spec::bar::Bar;
use fermi_spec::instance::{USERD_BYTES, userd};
use fermi_spec::regs::PbusReg;
use guests::GuestBus as _;
use sim_host::bus::SimBus;
use vgpu::inspect::Value;

use super::{Host, PAGE, SEED, SHOWN, SHOWN_FRAME, Shown, VM, equal, translate};
use crate::checkers::Violation;
use crate::rig::{self, Rig};

/// Of BAR1: its instance block, directory and small-page table.
const INSTANCE: u64 = 0x35_0000;
const DIRECTORY: u64 = 0x36_0000;
const TABLE: u64 = 0x38_0000;
/// A place of BAR1 behind USERD.
const PLACE: u64 = 300;
/// Looks at USERD until what the card has done is there.
const LOOKS: u32 = 2_000;

/// Has BAR1 show a page of VRAM, or nothing, at [`PLACE`].
fn show(bus: &mut SimBus, at: Option<u64>) {
    let entry = at.map_or(0, |at| rig::vram_pte(at).into_bits());
    rig::put64(bus, TABLE + PLACE * 8, entry);
    rig::flush(bus, DIRECTORY);
}

/// Pages that are instance memory only because BAR1 shows them, or has shown them.
fn pages_of_data(host: &Host) -> Result<u64, Violation> {
    let world = &host.bench.world;
    let path = format!("vms/{VM}/windows/pages_of_data");
    let node = world.manager.inspect(world.now, &path);
    match node.as_ref().and_then(|node| node.value_at(&path)) {
        Some(Value::Quantity(pages, _)) => Ok(*pages),
        other => Err(Violation(format!("{path} is {other:?}"))),
    }
}

/// BAR1 shows a page that the GPU uses: both see each other's stores wherever memory goes, and nobody hears of it. When it is shown no
/// more, it belongs to its chunk again.
///
/// # Errors
///
/// Says whose bytes were lost, or what is left of the window.
pub fn data_that_is_shown_stays_the_same_and_goes_back_to_its_chunk(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let mut guest = host.run(|bus| {
        translate(bus, PbusReg::Bar1Block, [INSTANCE, DIRECTORY, TABLE]);
        Shown::start(bus)
    })?;
    for round in 0..3_u32 {
        guest = host.run(move |bus| {
            let before = guest.gpu_loads(bus, SHOWN)?;
            show(bus, Some(SHOWN));
            equal("BAR1", bus.read32(Bar::Bar1, PLACE * PAGE), before)?;
            guest.agree(bus, (Bar::Bar1, PLACE * PAGE), SHOWN, 0x4000 + round)?;
            Ok(guest)
        })?;
        expect("data that is shown", pages_of_data(&host)?, 1)?;
        host.move_out_and_back();
        guest = host.run(move |bus| {
            guest.agree(bus, (Bar::Bar1, PLACE * PAGE), SHOWN, 0x5000 + round)?;
            show(bus, None);
            equal(
                "BAR1, which shows nothing,",
                bus.read32(Bar::Bar1, PLACE * PAGE + 8),
                0,
            )?;
            equal("the GPU", guest.gpu_loads(bus, SHOWN + 8)?, 0x5000 + round)?;
            Ok(guest)
        })?;
        host.move_out_and_back();
        expect("data that was shown", pages_of_data(&host)?, 0)?;
        guest = host.run(move |bus| {
            equal("the GPU", guest.gpu_loads(bus, SHOWN + 8)?, 0x5000 + round)?;
            let verified = guest.0.verify(bus, 0, SEED, SHOWN_FRAME * FRAME);
            verified.map_err(|at| format!("the data is wrong at {at:#x}"))?;
            Ok(guest)
        })?;
    }
    host.end()
}

/// What the guest stores to GP_PUT in memory is rung: of several channels at once, of one that is bound afterwards, while memory moves.
/// What the card has done is to be read there, and nothing once the channel is gone.
///
/// # Errors
///
/// Says which submission was lost, or what USERD shows.
pub fn doorbells_in_memory_are_rung(pins: bool) -> Result<(), Violation> {
    let mut host = Host::new(pins);
    let mut rig = host.run(|bus| {
        let mut rig = Rig::start(bus, super::DATA_BYTES);
        (0..3).for_each(|channel| rig.open(bus, channel));
        Ok(rig)
    })?;
    for round in 0..8 {
        rig = host.run(move |bus| {
            for _ in 0..8 {
                submit_at_once(&mut rig, bus)?;
            }
            (0..3).try_for_each(|channel| shows_all(&rig, bus, channel))?;
            Ok(rig)
        })?;
        host.move_out_and_back();
        let channel = round % 3;
        rig = host.run(move |bus| {
            rig.unbind(bus, channel);
            let page = u64::from(channel) * USERD_BYTES;
            for at in (0x40..0xa0).step_by(4) {
                equal("USERD of nobody", bus.read32(Bar::Bar1, page + at), 0)?;
            }
            rig.open(bus, channel);
            Ok(rig)
        })?;
    }
    host.end()
}

/// Work on three channels, rung before any of them can have been looked at.
fn submit_at_once(rig: &mut Rig, bus: &mut SimBus) -> Result<(), String> {
    let sequences: Vec<u32> = (0..3)
        .map(|channel| rig.submit_with_release(bus, channel, &[]))
        .collect();
    for (channel, sequence) in (0..).zip(sequences) {
        if !rig.wait(bus, channel, sequence) {
            return Err(format!("work of channel {channel} was not done"));
        }
    }
    Ok(())
}

/// GP_GET comes to GP_PUT, in memory.
fn shows_all(rig: &Rig, bus: &mut SimBus, channel: u8) -> Result<(), String> {
    let put = bus.read32(Bar::Bar1, u64::from(channel) * USERD_BYTES + userd::GP_PUT);
    equal("GP_PUT", put, rig.put(channel))?;
    for _ in 0..LOOKS {
        if Rig::fetched(bus, channel) == put {
            return Ok(());
        }
        bus.relax();
    }
    Err(format!(
        "USERD of channel {channel} does not show that it has fetched all"
    ))
}

fn expect(what: &str, found: u64, wanted: u64) -> Result<(), Violation> {
    match found == wanted {
        true => Ok(()),
        false => Err(Violation(format!("{what}: {found} pages, not {wanted}"))),
    }
}
