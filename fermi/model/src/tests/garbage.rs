//! Whatever is written anywhere, the card answers and every step ends.

use super::support::*;
use crate::Bar;
use fermi_spec::{instance::offset, regs::Bar0Reg};
use proptest::prelude::*;

/// An offset of BAR0: mostly of a register that does something.
fn offset_in_bar0() -> impl Strategy<Value = u32> {
    let named: Vec<u32> = Bar0Reg::all().map(Bar0Reg::offset).collect();
    prop_oneof![
        6 => proptest::sample::select(named),
        1 => 0u32..0x20_0000,
        1 => 0u32..0x200_0000,
    ]
}

#[derive(Clone, Debug)]
enum Action {
    Write(u32, u32),
    Read(u32),
    Bar(u8, u64, Vec<u8>),
    Doorbell(u16, u32),
    Step(u64, u32),
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        Just(u32::MAX),
        0u32..256,
        // Frames of the test's VRAM, enabled or valid.
        (0u32..0x2000).prop_map(|frame| frame | 0xc000_0000),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (offset_in_bar0(), value()).prop_map(|(at, value)| Action::Write(at, value)),
        2 => offset_in_bar0().prop_map(Action::Read),
        1 => (0u8..2, any::<u64>(), proptest::collection::vec(any::<u8>(), 1..64))
            .prop_map(|(bar, at, data)| Action::Bar(bar, at % (200 << 20), data)),
        2 => (0u16..130, value()).prop_map(|(id, put)| Action::Doorbell(id, put)),
        3 => (0u64..10_000_000, 0u32..200).prop_map(|(ns, work)| Action::Step(ns, work)),
    ]
}

fn perform(bench: &mut Bench, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Write(at, value) => bench.write_at(at, value),
            Action::Read(at) => {
                bench.read_at(at);
            }
            Action::Bar(bar, at, mut data) => {
                let bar = if bar == 0 { Bar::Bar1 } else { Bar::Bar3 };
                bench.card.bar_write(bar, at, &data);
                bench.card.bar_read(bar, at, &mut data);
            }
            Action::Doorbell(id, put) => {
                let at = USERD_VA + u64::from(id) * 0x1000 + 0x8c;
                bench.card.bar_write(Bar::Bar1, at, &put.to_le_bytes());
            }
            Action::Step(ns, work) => {
                bench.now_ns += ns;
                bench.card.step(bench.now_ns, work);
            }
        }
    }
    // Bounded whatever was set up: each step does what it was given and returns.
    for _ in 0..50 {
        bench.now_ns += 1_000_000;
        bench.card.step(bench.now_ns, 100);
    }
}

/// Words of a pushbuffer: headers of all forms for methods that exist, and noise.
fn words() -> impl Strategy<Value = Vec<u32>> {
    let method = proptest::sample::select(vec![
        0u16, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x50, 0x7c, 0x80, 0x100, 0x200, 0x238, 0x300,
        0x304, 0x30c, 0x314, 0x318, 0x31c, 0x320, 0x324, 0x328, 0x338, 0x340, 0x1ffc,
    ]);
    let header = (0u32..8, 0u32..16, 0u32..8, method)
        .prop_map(|(op, count, subc, method)| op << 29 | count << 16 | subc << 13 | u32::from(method >> 2));
    let data = prop_oneof![
        any::<u32>(),
        0u32..64,
        Just(0x0004_90b5),
        Just(0x0005_90b8),
        Just(0x9039),
        Just(0x110),
        Just(0x111),
        Just(0x800_0000),
    ];
    proptest::collection::vec(prop_oneof![1 => header, 2 => data], 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_accesses_are_answered(actions in proptest::collection::vec(action(), 1..150)) {
        let mut bench = ready();
        let mut a = bench.channel(1);
        bench.runlist(&[1]);
        bench.submit(&mut a, &Methods::new().to(1, 0, &[0x0004_90b5]).copy(1, 0x800_0000, 0x900_0000, 0x1000, 64).0);
        perform(&mut bench, actions);
    }

    #[test]
    fn random_pushbuffers_and_tables_are_survived(
        streams in proptest::collection::vec(words(), 3),
        tables in proptest::collection::vec((0u64..0x9000, any::<u64>()), 0..40),
        ramfc in proptest::collection::vec((0u64..0x84, any::<u32>()), 0..6),
        entries in proptest::collection::vec(any::<u64>(), 0..3),
        actions in proptest::collection::vec(action(), 0..30),
    ) {
        let mut bench = ready();
        let page = bench.allocate(0x1_0000);
        let mut channels: Vec<Channel> = (0..3).map(|id| bench.channel(id)).collect();
        for channel in &channels {
            bench.map(channel.space, 0x800_0000, Page::Vram(page), 0x1_0000);
            for (index, raw) in &tables {
                let at = bench.small_entry(channel.space, 0x800_0000) & !0xfff;
                bench.set_vram_u64(at + 8 * (index % 0x8000), *raw);
            }
        }
        for (at, word) in &ramfc {
            // The page directory stays: everything else may be anything.
            bench.set_vram_u32(channels[0].instance + 4 * (at % (offset::PD_LO / 4)), *word);
        }
        bench.runlist(&[0, 1, 2]);
        for (channel, words) in channels.iter_mut().zip(&streams) {
            bench.push(channel, words);
            for entry in &entries {
                bench.push_entry(channel, *entry);
            }
            bench.ring(channel);
        }
        perform(&mut bench, actions);
    }
}
