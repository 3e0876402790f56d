//! PGRAPH with whatever methods, macros, images and commands; and contexts that interleaving does not change.

use super::support::*;
use fermi_spec::{
    instance::offset,
    methods::class,
    regs::{
        FecsReg, PfifoReg, PgraphReg, fecs::FECS_CHANNEL_VALID, pfifo::CHANNEL_START, pgraph::FIFO_CONTROL_ON,
    },
};
use proptest::prelude::*;

const IMAGE: u64 = 0x4000_0000;
const IMAGE_BYTES: u64 = 0x2_0000;
const DATA: u64 = 0x800_0000;
const CLASSES: [u16; 4] = [class::THREED, class::COMPUTE, class::TWOD, class::M2MF];

fn bind_all() -> Vec<u32> {
    let bind = |words: Methods, (subchannel, class): (usize, &u16)| {
        words.to(subchannel as u8, 0, &[u32::from(*class)])
    };
    CLASSES.iter().enumerate().fold(Methods::new(), bind).0
}

/// A word that an address, a size or a flag may be.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => 0u32..0x100,
        3 => DATA as u32..DATA as u32 + 0x1_0000,
        2 => Just(1u32),
        1 => any::<u32>(),
    ]
}

/// Methods that do something, on the subchannel of a class that has them.
fn command() -> impl Strategy<Value = Vec<u32>> {
    let acting = proptest::sample::select(vec![
        (0u8, 0x104u16, 3usize),
        (0, 0x100, 1),
        (0, 0x1b00, 4),
        (0, 0x2380, 6),
        (0, 0x2300, 1),
        (0, 0x1528, 1),
        (0, 0x3800, 1),
        (0, 0x3804, 1),
        (1, 0x1b00, 4),
        (1, 0x2380, 6),
        (1, 0x368, 1),
        (1, 0x3808, 1),
        (2, 0x200, 10),
        (2, 0x230, 10),
        (2, 0x264, 3),
        (2, 0x280, 5),
        (2, 0x8b0, 12),
        (3, 0x104, 3),
        (3, 0x100, 1),
    ]);
    let acting =
        (acting, proptest::collection::vec(word(), 12)).prop_map(|((subchannel, method, count), words)| {
            Methods::new().to(subchannel, method, &words[..count]).0
        });
    let code = (0u32..0x800, proptest::collection::vec(any::<u32>(), 1..16)).prop_map(|(place, code)| {
        let words = Methods::new().to(0, 0x114, &[place]);
        let words = code
            .iter()
            .fold(words, |words, word| words.to(0, 0x118, &[*word]));
        words.to(0, 0x11c, &[0, place]).to(0, 0x3800, &[code[0]]).0
    });
    let copy = (0u32..0x40, 0u32..0x40, any::<bool>()).prop_map(|(width, height, tiled)| {
        let layout = u32::from(!tiled);
        Methods::new()
            .to(
                2,
                0x200,
                &[0xd5, layout, 0x10, 1, 0, 0x100, 0x40, 0x40, 0, DATA as u32],
            )
            .to(
                2,
                0x230,
                &[0xcf, 1, 0, 1, 0, 0x100, 0x40, 0x40, 0, DATA as u32 + 0x4000],
            )
            .to(2, 0x26c, &[1])
            .to(2, 0x2ac, &[3])
            .to(2, 0x8b0, &[0, 0, width, height])
            .to(2, 0x8c0, &[0, 1, 0, 1, 0, 0, 0, 0])
            .0
    });
    let any_method = (0u8..4, 0u16..0x1000, word())
        .prop_map(|(subchannel, method, data)| Methods::new().to(subchannel, method << 2, &[data]).0);
    prop_oneof![6 => acting, 2 => code, 1 => copy, 2 => any_method]
}

fn commands() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(command(), 1..24).prop_map(|items| items.concat())
}

/// Methods that set state of 3D and compute alone.
fn state() -> impl Strategy<Value = Vec<u32>> {
    let item = (
        0u8..2,
        proptest::sample::select(vec![0x204u16, 0x790, 0x155c, 0x1608, 0x2700, 0x3400]),
    )
        .prop_flat_map(|(subchannel, method)| {
            proptest::collection::vec(any::<u32>(), 1..3)
                .prop_map(move |data| Methods::new().to(subchannel, method, &data).0)
        });
    proptest::collection::vec(item, 1..6).prop_map(|items| items.concat())
}

/// Gives a channel an image with such a header and such bytes; where it is.
fn give_image(bench: &mut Bench, channel: &Channel, bytes: &[u8]) -> u64 {
    let image = bench.allocate(IMAGE_BYTES);
    bench.set_vram_bytes(image, bytes);
    bench.map(channel.space, IMAGE, Page::Vram(image), IMAGE_BYTES);
    bench.set_vram_u32(channel.instance + offset::ENGINE_CONTEXTS, IMAGE as u32 | 4);
    image
}

/// What a driver does about errors of PGRAPH, without looking.
fn recover(bench: &mut Bench) {
    bench.write(PgraphReg::GraphMacroTrap, 0xc000_0000);
    bench.write(PgraphReg::GraphTrap, u32::MAX);
    bench.write(PgraphReg::GraphIntr, u32::MAX);
    bench.write(PgraphReg::GraphFifoControl, FIFO_CONTROL_ON);
    bench.write(PfifoReg::FaultUnits, u32::MAX);
    bench.write(PfifoReg::EngineFault, u32::MAX);
    for id in 1..3 {
        bench.write(PfifoReg::ChannelState(id), CHANNEL_START);
    }
}

/// Runs two channels in turn, each with its own stream, cut into pieces; the images at the end.
fn images_of(streams: &[Vec<Vec<u32>>; 2], order: &[bool]) -> [Vec<u8>; 2] {
    let mut bench = ready();
    let mut channels = [bench.channel(1), bench.channel(2)];
    let images = [0, 1].map(|index| give_image(&mut bench, &channels[index], &[]));
    bench.flush();
    bench.runlist(&[1, 2]);
    for channel in &mut channels {
        bench.submit(channel, &bind_all());
        bench.run();
    }
    let mut next = [0; 2];
    for second in order.iter().copied().chain([false, true].repeat(16)) {
        let index = usize::from(second);
        if let Some(piece) = streams[index].get(next[index]) {
            next[index] += 1;
            bench.submit(&mut channels[index], piece);
            bench.run();
        }
    }
    for id in 1..3 {
        bench.write(PfifoReg::Preempt, id);
        bench.run();
    }
    images.map(|image| bench.vram_bytes(image, IMAGE_BYTES as usize))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_methods_images_and_commands_are_survived(
        streams in proptest::array::uniform2(commands()),
        header in proptest::collection::vec(any::<u8>(), 40),
        filler in any::<u8>(),
        orders in proptest::collection::vec((0u32..0x3a, any::<bool>(), any::<u32>()), 0..8),
        is_nvidia in any::<bool>(),
    ) {
        let mut bench = ready();
        let mut channels = [bench.channel(1), bench.channel(2)];
        let page = bench.allocate(0x1_0000);
        for channel in &channels {
            bench.map(channel.space, DATA, Page::Vram(page), 0x1_0000);
        }
        // One image as the model would have made it, but of noise.
        let mut image = vec![filler; IMAGE_BYTES as usize];
        image[0x80..0x84].copy_from_slice(&0x3147_4643u32.to_le_bytes());
        image[0x84..0x84 + 32].copy_from_slice(&header[..32]);
        let _ = give_image(&mut bench, &channels[0], &image);
        bench.flush();
        if is_nvidia {
            bench.write(FecsReg::GpccsControl, 2);
        }
        bench.write(FecsReg::FecsControl, 2);
        bench.runlist(&[1, 2]);
        for (channel, words) in channels.iter_mut().zip(&streams) {
            bench.submit(channel, &bind_all());
            bench.submit(channel, words);
        }
        for (command, requests_switch, data) in orders {
            let block = FECS_CHANNEL_VALID | (channels[0].instance >> 12) as u32;
            bench.write(FecsReg::FecsNextChannel, if requests_switch { block } else { data });
            bench.write(FecsReg::FecsData, if requests_switch { block } else { data });
            bench.write(FecsReg::FecsCommand, command);
            bench.write(FecsReg::FecsIntrSet, 0x100);
            bench.now_ns += 10_000;
            bench.card.step(bench.now_ns, 20);
            recover(&mut bench);
        }
        for _ in 0..40 {
            bench.now_ns += 1_000_000;
            bench.card.step(bench.now_ns, 500);
            recover(&mut bench);
        }
    }

    #[test]
    fn contexts_do_not_depend_on_the_order_of_switches(
        streams in proptest::array::uniform2(proptest::collection::vec(state(), 1..6)),
        order in proptest::collection::vec(any::<bool>(), 0..12),
    ) {
        let alone = images_of(&streams, &[]);
        let first_then_second = [vec![false; 6], vec![true; 6]].concat();
        prop_assert_eq!(&images_of(&streams, &order), &alone);
        prop_assert_eq!(&images_of(&streams, &first_then_second), &alone);
    }
}
