//! Clears of 3D on a vGPU: they reach the VM's own memory by its own addresses, wherever its chunks are.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use fermi_spec::engine::Engine;
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::target::{Clear, Layout, Span, color, method};
use guests::GuestBus;
use guests::driver::CopyPath;
use integration::bench::Bench;
use integration::canary::Canary;
use integration::rig::{self, DATA_VA, RAM_VA, Rig};
use sim_host::bus::SimBus;
use vgpu::{Direction, Notice, VmId};

const OTHER: VmId = VmId(0);
const CLEARS: VmId = VmId(1);
const MIB: u64 = 1 << 20;
/// What the VM has, and from where on it is cleared.
const DATA_BYTES: u64 = 32 * MIB;
const CLEARED_FROM: u64 = 5 * MIB;
const VALUE: u32 = 0x5eed_c1ea;
const R32_UINT: u32 = 0xe4;
const SUBCHANNEL: u8 = 1;

/// Fills with a word, as Mesa fills a buffer: a linear target of lines of 64 KiB.
fn clear_words(va: u64, bytes: u64) -> Vec<u32> {
    const LINE: u32 = 0x1_0000;
    let lines = bytes as u32 / LINE;
    let mut words = vec![
        incrementing(SUBCHANNEL, host::SET_OBJECT, 1),
        class::THREED.into(),
    ];
    let mut set = |method: u16, data: &[u32]| {
        words.push(incrementing(SUBCHANNEL, method, data.len() as u16));
        words.extend(data);
    };
    let span = |count: u32| Span::new().with_count(count as u16).into_bits();
    set(method::CLEAR_COLOR, &[VALUE, 0, 0, 0]);
    set(method::SCREEN_SCISSOR, &[span(LINE / 4), span(lines)]);
    let layout = Layout::new().with_is_linear(true).into_bits();
    let target = [
        (va >> 32) as u32,
        va as u32,
        LINE,
        lines,
        R32_UINT,
        layout,
        1,
        0,
        0,
    ];
    set(method::COLORS + color::ADDRESS_HIGH, &target);
    set(method::CONDITION, &[1]);
    set(method::CLEAR, &[Clear::new().with_components(15).into_bits()]);
    words
}

/// How many words of the data from `CLEARED_FROM` on are not what the clear makes of them.
fn wrong_words(rig: &mut Rig, bus: &mut SimBus) -> usize {
    let mut wrong = 0;
    for at in (CLEARED_FROM..DATA_BYTES).step_by(MIB as usize) {
        bus.ram_write(4 * MIB, &vec![0xee; MIB as usize]);
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(DATA_VA + at, RAM_VA + 4 * MIB, 0x1000, 256));
        assert!(rig.execute(bus, 0, &words));
        let mut data = vec![0; MIB as usize];
        bus.ram_read(4 * MIB, &mut data);
        let is_wrong = |word: &&[u8]| **word != VALUE.to_le_bytes();
        wrong += data.chunks_exact(4).filter(is_wrong).count();
    }
    wrong
}

#[test]
fn clear_reaches_chunks_in_vram_and_in_host_ram() {
    let mut bench = Bench::new(48, &[32, 40]);
    let rig = bench.run(CLEARS, |bus| {
        let mut rig = Rig::start(bus, DATA_BYTES).with_contexts();
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 9, DATA_BYTES));
        rig
    });
    let mut canary = bench
        .run(OTHER, |bus| {
            Canary::plant(bus, 20 * MIB, 3).map_err(|error| error.to_string())
        })
        .unwrap();
    let spills = bench.count_notices(
        |notice| matches!(notice, Notice::Moved { vm, direction: Direction::Spill, .. } if *vm == CLEARS),
    );
    assert!(spills > 0, "some of what is cleared is in host RAM");
    bench.run(CLEARS, |bus| {
        let mut rig = rig;
        let words = clear_words(DATA_VA + CLEARED_FROM, DATA_BYTES - CLEARED_FROM);
        assert!(rig.execute(bus, 0, &words));
        assert_eq!(wrong_words(&mut rig, bus), 0);
        assert_eq!(rig.verify(bus, 0, 9, CLEARED_FROM), Ok(()));
    });
    bench
        .run(OTHER, move |bus| canary.check(bus, CopyPath::Copy1))
        .unwrap();
    let counters = bench.world.model.counters();
    assert_eq!(
        (counters.clears, counters.cleared_bytes),
        (1, DATA_BYTES - CLEARED_FROM)
    );
    bench.end();
}
