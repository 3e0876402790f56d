//! Engines that are asked about and reset: nobody else is hit.

use fermi_spec::engine::Engine;
use fermi_spec::regs::pbdma::CHANNEL_ACTIVE;
use fermi_spec::regs::pfifo::{ChannelState, EngineStatus};
use fermi_spec::regs::{Bar0Reg, PfifoReg, PmcReg, PtimerReg};

use super::scene::{MS, Scene};
use super::{A, B, FIRST_CHANNEL};
use crate::event::{Action, Event};
use crate::manager::teardown::TRIES_MAX;
use crate::notice::Notice;
use crate::reason::ChannelFault;

/// The channels that the two VMs have on the card.
const OF_A: u16 = FIRST_CHANNEL;
const OF_B: u16 = FIRST_CHANNEL + 1;

fn two() -> Scene {
    let mut scene = Scene::up();
    for vm in [A, B] {
        scene.attach(vm, 16);
        scene.bind(vm, 4);
        scene.run_channel(vm);
    }
    scene.take();
    scene
}

fn on_engine(scene: &mut Scene, engine: Engine, channel: u16) {
    let reg = PfifoReg::EngineChannel(engine.number().into());
    scene
        .registers
        .insert(reg.into(), CHANNEL_ACTIVE | u32::from(channel));
}

/// The values stored to a register, in order, with the place of each among the actions.
fn stores(scene: &Scene, reg: Bar0Reg) -> Vec<(usize, u32)> {
    let values = scene
        .actions
        .iter()
        .enumerate()
        .filter_map(|(at, action)| match action {
            Action::HostWrite { offset, data, .. }
                if *offset == u64::from(reg.offset()) && data.len() == 4 =>
            {
                Some((at, u32::from_le_bytes([data[0], data[1], data[2], data[3]])))
            }
            _ => None,
        });
    values.collect()
}

/// Engines that were reset.
fn resets(scene: &Scene) -> Vec<Engine> {
    let values = stores(scene, PmcReg::PmcEnable.into());
    let is_off = |engine: &Engine| {
        values
            .iter()
            .any(|(_, value)| value & 1 << engine.enable_bit() == 0)
    };
    [Engine::Graph, Engine::Copy0, Engine::Copy1]
        .into_iter()
        .filter(is_off)
        .collect()
}

#[test]
fn vm_that_is_gone_has_left_nothing_on_an_engine_that_is_nobodys() {
    let mut scene = two();
    on_engine(&mut scene, Engine::Copy0, OF_B);
    scene.apply(Event::Detach { vm: A });
    assert_eq!(resets(&scene), [Engine::Graph, Engine::Copy1]);
    let gone = scene.first("detach", super::detached);
    assert!(
        stores(&scene, PmcReg::PmcEnable.into())
            .iter()
            .all(|(at, _)| *at < gone)
    );
}

#[test]
fn nobody_comes_onto_an_engine_between_the_question_and_the_reset() {
    let mut scene = two();
    scene.apply(Event::Detach { vm: A });
    let blocks = stores(&scene, PfifoReg::EngineBlock.into());
    for (at, value) in stores(&scene, PmcReg::PmcEnable.into()) {
        let off = [Engine::Graph, Engine::Copy0, Engine::Copy1]
            .into_iter()
            .find(|engine| value & 1 << engine.enable_bit() == 0);
        let Some(engine) = off else { continue };
        let mask = blocks
            .iter()
            .rfind(|(block, _)| *block < at)
            .map_or(0, |(_, mask)| *mask);
        assert_ne!(
            mask & 1 << engine.number(),
            0,
            "{engine:?} is reset while it takes channels"
        );
    }
    assert_eq!(
        blocks.last().map(|(_, mask)| *mask),
        Some(0),
        "and it takes them again"
    );
}

/// A channel of A's is on its way off and its preempt does not end.
fn stubborn(on_copy0: u16) -> Scene {
    let mut scene = two();
    on_engine(&mut scene, Engine::Copy0, on_copy0);
    let preempt = Bar0Reg::from(PfifoReg::Preempt);
    scene.held.insert(preempt);
    scene.apply(Event::Detach { vm: A });
    (0..TRIES_MAX).for_each(|_| scene.end_polls(preempt, false));
    scene
}

#[test]
fn channel_that_does_not_leave_loses_the_engine_that_it_holds() {
    assert_eq!(resets(&stubborn(OF_A)), [Engine::Copy0]);
}

#[test]
fn engine_that_another_channel_has_by_now_is_not_reset() {
    assert_eq!(resets(&stubborn(OF_B)), []);
}

/// A keeps PGRAPH for two seconds of the card's time; `state` is that of B's channel.
fn kept(state: ChannelState) -> Scene {
    let mut scene = two();
    let status = EngineStatus::new().with_channel(OF_A as u8).with_busy(true);
    scene
        .registers
        .insert(PfifoReg::EngineStatus(0).into(), status.into_bits());
    scene
        .registers
        .insert(PfifoReg::ChannelState(OF_B).into(), state.into_bits());
    for step in 0..32u32 {
        let time = u32::MAX.wrapping_add(step * 100_000_000);
        scene.registers.insert(PtimerReg::PtimerLow.into(), time);
        scene.pass(100 * MS);
    }
    scene
}

fn stopped(scene: &Scene) -> bool {
    scene.notices().any(|notice| {
        matches!(
            notice,
            Notice::ChannelKilled {
                vm: A,
                cause: ChannelFault::HeldEngine { .. },
                ..
            }
        )
    })
}

#[test]
fn channel_that_keeps_an_engine_while_another_vm_waits_is_stopped() {
    let scene = kept(ChannelState::new().with_runnable(true).with_pending(true));
    assert!(stopped(&scene));
    assert_eq!(resets(&scene), [Engine::Graph]);
}

#[test]
fn channel_behind_which_nobody_waits_is_left_alone() {
    assert!(!stopped(&kept(ChannelState::new().with_runnable(true))));
}

#[test]
fn who_waits_for_a_semaphore_does_not_wait_for_the_engine() {
    let state = ChannelState::new()
        .with_runnable(true)
        .with_pending(true)
        .with_acquire_pending(true);
    assert!(!stopped(&kept(state)));
}
