//! Whatever is written anywhere, the card answers and every step ends.

use super::support::*;
use crate::{CONFIG_BYTES, CopyMicrocode};
use fermi_spec::regs::pcopy::PCOPY;
use fermi_spec::regs::pmu::PMU;
use fermi_spec::regs::ppci::PPCI;
use fermi_spec::{
    bar::Bar,
    instance::offset,
    regs::{Bar0Reg, PbdmaReg, PcopyReg, PfifoReg, PgraphReg, pbdma::METHOD_NOP, pfifo::CHANNEL_START},
};
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
    for _ in 0..20 {
        bench.now_ns += 1_000_000;
        bench.card.step(bench.now_ns, 200);
        recover(bench);
    }
}

/// An address of the channel: mostly mapped.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0x800_0000u64..0x801_0000,
        2 => 0x900_0000u64..0x904_0000,
        1 => any::<u64>().prop_map(|va| va >> 24),
    ]
}

/// A copy in lines, by a copy engine or M2MF, with any flags now and then.
fn copy() -> impl Strategy<Value = Vec<u32>> {
    let shape = (0u32..0x3000, 0u32..9, 0u32..0x3000, 0u32..0x3000);
    // Nouveau's EXEC and M2MF's launch have the same layout bits; NVIDIA's has its own.
    let launch = prop_oneof![
        4 => Just(0x110u32),
        2 => Just(0x3110),
        1 => Just(0x10_2111),
        2 => proptest::sample::select(vec![0u32, 0x001, 0x010, 0x100, 0x101, 0x111]),
        2 => 0u32..0x800,
        1 => any::<u32>(),
    ];
    (address(), address(), address(), shape, launch, 0usize..3).prop_map(
        |(from, to, query, shape, launch, engine)| {
            let (bytes, lines, pitch_in, pitch_out) = shape;
            let split = |va: u64| [(va >> 32) as u32 & 0xff, va as u32];
            let ([fh, fl], [th, tl], [qh, ql]) = (split(from), split(to), split(query));
            let methods = if engine == 2 {
                Methods::new()
                    .to(1, 0, &[0x9039])
                    .to(1, 0x238, &[th, tl])
                    .to(1, 0x30c, &[fh, fl, pitch_in, pitch_out, bytes, lines])
                    .to(1, 0x32c, &[qh, ql, 7])
                    .to(1, 0x300, &[launch])
                    .to(1, 0x304, &[1])
            } else {
                Methods::new()
                    .to(1, 0, &[[0x0004_90b5, 0x0005_90b8][engine]])
                    .to(1, 0x400, &[fh, fl, th, tl, pitch_in, pitch_out, bytes, lines])
                    .to(1, 0x30c, &[fh, fl, th, tl, pitch_in, pitch_out, bytes, lines])
                    .to(1, 0x338, &[qh, ql, 7])
                    .to(1, 0x300, &[launch])
            };
            methods.0
        },
    )
}

/// Any method of any header form.
fn noise() -> impl Strategy<Value = Vec<u32>> {
    let method = proptest::sample::select(vec![
        0u16, 0x04, 0x08, 0x14, 0x1c, 0x20, 0x24, 0x28, 0x2c, 0x50, 0x7c, 0x80, 0x100, 0x200, 0x300, 0x304,
        0x324, 0x1ffc, 0x204, 0x220, 0x240, 0x250, 0x254, 0x318, 0x32c, 0x344, 0x400, 0x418, 0x700, 0x708,
        0x70c, 0x728,
    ]);
    (
        0u32..8,
        0u32..16,
        0u32..8,
        method,
        proptest::collection::vec(value(), 0..16),
    )
        .prop_map(|(op, count, subchannel, method, data)| {
            let mut words = vec![op << 29 | count << 16 | subchannel << 13 | u32::from(method >> 2)];
            words.extend(data);
            words
        })
}

/// Surfaces of every method set that has some, mostly of sizes that exist.
fn surfaces() -> impl Strategy<Value = Vec<u32>> {
    let word = prop_oneof![6 => 0u32..0x2000, 1 => any::<u32>()];
    let words = proptest::collection::vec(word, 16);
    let first = proptest::sample::select(vec![
        (1u8, 0x200u16, 7usize),
        (1, 0x220, 7),
        (1, 0x32c, 3),
        (1, 0x700, 9),
        (1, 0x728, 6),
        (1, 0x250, 4),
        (1, 0x204, 5),
        (1, 0x344, 4),
    ]);
    (first, words).prop_map(|((subchannel, first, count), words)| {
        Methods::new().to(subchannel, first, &words[..count]).0
    })
}

/// A pushbuffer: commands that mean something, and some that do not.
fn words() -> impl Strategy<Value = Vec<u32>> {
    let operation = prop_oneof![4 => proptest::sample::select(vec![1, 2, 4, 8, 0x1001, 0x1004, 0x10_0002]), 1 => any::<u32>()];
    let semaphore = (address(), 0u32..4, operation)
        .prop_map(|(va, payload, operation)| Methods::new().semaphore(va & !3, payload, operation).0);
    let item = prop_oneof![6 => copy(), 4 => surfaces(), 3 => semaphore, 1 => noise()];
    proptest::collection::vec(item, 1..12).prop_map(|items| items.concat())
}

/// What a driver does about errors, without looking.
fn recover(bench: &mut Bench) {
    for pbdma in 0..3 {
        bench.write(PbdmaReg::PbdmaMethod0(pbdma), METHOD_NOP);
        bench.write(PbdmaReg::PbdmaIntr(pbdma), u32::MAX);
    }
    bench.write(PcopyReg::CopyIntrAck(0), u32::MAX);
    bench.write(PcopyReg::CopyIntrAck(1), u32::MAX);
    bench.write(PgraphReg::GraphIntr, u32::MAX);
    bench.write(PfifoReg::FaultUnits, u32::MAX);
    bench.write(PfifoReg::EngineFault, u32::MAX);
    for id in 0..3 {
        bench.write(PfifoReg::ChannelState(id), CHANNEL_START);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_accesses_are_answered(actions in proptest::collection::vec(action(), 1..150)) {
        let mut bench = ready();
        let mut a = bench.channel(1);
        bench.map(a.space, 0x800_0000, Page::Ram(0), 0x10_0000);
        bench.map(a.space, 0x900_0000, Page::Ram(0x10_0000), 0x10_0000);
        bench.runlist(&[1]);
        bench.submit(&mut a, &Methods::new().to(1, 0, &[0x0004_90b5]).copy(1, 0x800_0000, 0x900_0000, 0x1000, 64).0);
        perform(&mut bench, actions);
    }

    #[test]
    fn random_pushbuffers_and_tables_are_survived(
        streams in proptest::collection::vec(words(), 3),
        tables in proptest::collection::vec((0u64..0x1100, any::<u64>()), 0..10),
        ramfc in proptest::collection::vec((0u64..0x84, any::<u32>()), 0..3),
        entries in proptest::collection::vec(any::<u64>(), 0..3),
        actions in proptest::collection::vec(action(), 0..30),
        is_nvidia in any::<bool>(),
    ) {
        let microcode = if is_nvidia { CopyMicrocode::Nvidia } else { CopyMicrocode::Nouveau };
        let mut bench = ready_with_microcode(microcode);
        let page = bench.allocate(0x1_0000);
        let mut channels: Vec<Channel> = (0..3).map(|id| bench.channel(id)).collect();
        for channel in &channels {
            bench.map(channel.space, 0x800_0000, Page::Vram(page), 0x1_0000);
            bench.map(channel.space, 0x900_0000, Page::Ram(0), 0x4_0000);
            for (index, raw) in &tables {
                let at = bench.small_entry(channel.space, 0x800_0000) & !0xfff;
                bench.set_vram_u64(at + 8 * (index % 0x8000), *raw);
            }
        }
        for (at, word) in &ramfc {
            // The page directory stays: everything else may be anything.
            bench.set_vram_u32(channels[2].instance + 4 * (at % (offset::PD_LO / 4)), *word);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest writes there, the card says who it is and a reset brings back what it was.
    #[test]
    fn any_configuration_writes_leave_the_identity(
        writes in proptest::collection::vec((0..0x1100u64, proptest::collection::vec(any::<u8>(), 1..16)), 1..64),
        mirrored in any::<bool>(),
    ) {
        let mut bench = bare();
        let fresh = config_space(&mut bench);
        for (at, bytes) in &writes {
            if mirrored {
                let at = u64::from(PPCI.first) + at.min(&0xff0);
                bench.card.bar_write(Bar::Bar0, at, bytes);
            } else {
                bench.card.config_write(*at, bytes);
            }
        }
        let now = config_space(&mut bench);
        prop_assert_eq!(&now[..4], &fresh[..4]);
        prop_assert_eq!(&now[8..12], &fresh[8..12]);
        prop_assert_eq!(now[0x34], fresh[0x34]);
        bench.card.reset();
        prop_assert_eq!(config_space(&mut bench), fresh);
    }

    /// Falcons take any writes at their registers, in any order.
    #[test]
    fn any_falcon_accesses_are_answered(
        accesses in proptest::collection::vec((0..0x700u32, any::<u32>(), any::<bool>()), 1..256),
        base in prop_oneof![Just(PMU.first), Just(PCOPY.first)],
    ) {
        let mut bench = ready();
        for (offset, value, is_write) in accesses {
            let at = base + (offset & !3);
            if is_write {
                bench.write_at(at, value);
            } else {
                bench.read_at(at);
            }
        }
        prop_assert_eq!(bench.read_at(PCOPY.first + 0x108), 0x2040_1012);
    }
}

fn config_space(bench: &mut Bench) -> Vec<u8> {
    let mut bytes = vec![0; CONFIG_BYTES];
    bench.card.config_read(0, &mut bytes);
    bytes
}
