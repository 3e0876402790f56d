//! A canary in every word that an engine keeps for a channel, and who finds it.
//!
//! The words are those of the context's own storage, all of them, so a method or register that joins it is in here by itself.

use super::support::*;
use crate::{
    context::{IMAGE_BYTES, Registers},
    graph::state::{GraphState, PAGE_WORDS, PAGES},
};
use fermi_spec::{
    addr::VramAddr,
    engine::Engine,
    regs::{PfifoReg, pfifo},
};

const CANARY: u32 = 0x5ec2_e7a5;
const ENGINES: [(usize, u32); 3] = [(0, 0x9039), (1, 0x0004_90b5), (2, 0x0005_90b8)];

/// The words that the engine holds now.
fn words(bench: &Bench, unit: usize) -> (Registers, GraphState) {
    (bench.card.units[unit].registers, bench.card.graph.state.clone())
}

/// Writes the canary into every word of the engine's context.
fn plant(bench: &mut Bench, unit: usize) {
    let image: [u8; IMAGE_BYTES] = std::array::from_fn(|byte| CANARY.to_le_bytes()[byte % 4]);
    bench.card.units[unit].registers = Registers::from_image(&image);
    if unit == 0 {
        (1..PAGES).for_each(|page| bench.card.graph.state.set_page(page, [CANARY; PAGE_WORDS]));
    }
}

/// Takes the channel's entry away as a driver does, and gives its number and block to a new channel, whose ring begins anew.
fn pass_on(bench: &mut Bench, channel: &mut Channel) {
    bench.write(PfifoReg::ChannelState(channel.id), pfifo::CHANNEL_START & !1);
    bench.runlist(&[]);
    bench.run();
    bench.write(PfifoReg::Preempt, channel.id.into());
    bench.run();
    bench.write(PfifoReg::ChannelInstance(channel.id), 0);
    bench.bind(channel);
    bench.write(PfifoReg::ChannelState(channel.id), pfifo::CHANNEL_START);
    bench.runlist(&[channel.id]);
    bench.run();
}

/// What the engine knows when a new owner's first method, which binds its class, is done. `before` is what happens before.
fn known_to_the_next(
    unit: usize,
    class: u32,
    before: impl FnOnce(&mut Bench, &mut Channel),
) -> (Registers, GraphState) {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut channel, &Methods::new().to(4, 0, &[class]).0);
    bench.run();
    before(&mut bench, &mut channel);
    bench.submit(&mut channel, &Methods::new().to(4, 0, &[class]).0);
    bench.run();
    words(&bench, unit)
}

#[test]
fn next_owner_of_a_channel_finds_no_word_of_the_last_one() {
    for (unit, class) in ENGINES {
        let clean = known_to_the_next(unit, class, |_, _| ());
        let after = known_to_the_next(unit, class, |bench, channel| {
            plant(bench, unit);
            pass_on(bench, channel);
        });
        assert_eq!(after, clean, "engine {unit}");
    }
}

#[test]
fn owner_whose_engine_stood_still_leaves_nothing_either() {
    for (unit, class) in ENGINES {
        let clean = known_to_the_next(unit, class, |_, _| ());
        let after = known_to_the_next(unit, class, |bench, channel| {
            plant(bench, unit);
            bench.card.units[unit].stopped = true;
            bench.write(PfifoReg::ChannelState(channel.id), pfifo::CHANNEL_START & !1);
            bench.runlist(&[]);
            bench.run();
            bench.write(PfifoReg::ChannelInstance(channel.id), 0);
            bench.card.units[unit].stopped = false;
            pass_on(bench, channel);
        });
        assert_eq!(after, clean, "engine {unit}");
    }
}

#[test]
fn channel_beside_it_finds_no_word_and_the_owner_finds_all_of_its_own() {
    for (unit, class) in ENGINES {
        let mut bench = ready();
        let (mut owner, mut other) = (bench.channel(1), bench.channel(2));
        bench.runlist(&[1, 2]);
        let bind = Methods::new().to(4, 0, &[class]).0;
        bench.submit(&mut owner, &bind);
        bench.run();
        let clean = words(&bench, unit);
        plant(&mut bench, unit);
        let planted = words(&bench, unit);
        bench.submit(&mut other, &bind);
        bench.run();
        assert_eq!(words(&bench, unit), clean, "engine {unit}");
        bench.submit(&mut owner, &Methods::new().to(4, 0x100, &[0]).0);
        bench.run();
        assert_eq!(words(&bench, unit), planted, "engine {unit}");
    }
}

#[test]
fn engine_that_is_reset_knows_nothing_and_says_whose_words_it_has() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut channel, &Methods::new().to(4, 0, &[ENGINES[1].1]).0);
    bench.run();
    let left = |bench: &Bench| {
        let mut engines = bench.card.left_on_engines();
        engines
            .find(|(engine, _)| *engine == Engine::Copy0)
            .and_then(|(_, of)| of)
    };
    assert_eq!(left(&bench), Some(VramAddr(channel.space.directory)));
    bench.card.reset_unit(1);
    assert_eq!(left(&bench), None);
}

#[test]
fn blocked_engine_takes_no_other_channel_until_it_is_let_go() {
    let mut bench = ready();
    let (mut holder, mut other) = (bench.channel(1), bench.channel(2));
    bench.runlist(&[1, 2]);
    let bind = Methods::new().to(4, 0, &[ENGINES[1].1]).0;
    bench.submit(&mut holder, &bind);
    bench.run();
    bench.submit(
        &mut other,
        &Methods::new().to(4, 0, &[ENGINES[1].1]).to(4, 0x100, &[0]).0,
    );
    let copy0 = u16::from(Engine::Copy0.number());
    bench.write(PfifoReg::EngineBlock, 1 << copy0);
    bench.run_for(10_000_000);
    assert_eq!(bench.read(PfifoReg::EngineChannel(copy0)) & 0x7f, 1);
    bench.write(PfifoReg::EngineBlock, 0);
    bench.run_for(10_000_000);
    assert_eq!(bench.read(PfifoReg::EngineChannel(copy0)) & 0x7f, 2);
}
