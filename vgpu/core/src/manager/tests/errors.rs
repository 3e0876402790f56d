//! Errors that a card survives: acknowledged on the card at once, and told to the guest whose channel made them.

use fermi_spec::engine::{Engine, pmc_intr};
use fermi_spec::fault::unit;
use fermi_spec::regs::fecs::FECS_CHANNEL_VALID;
use fermi_spec::regs::pbdma::{METHOD_NOP, pbdma_intr};
use fermi_spec::regs::pfifo::EngineStatus;
use fermi_spec::regs::pgraph::{GPC_TRAP_TPC0, TPC_TRAP_MP, graph_intr, graph_trap};
use fermi_spec::regs::{Bar0Reg, FecsReg, PbdmaReg, PfifoReg, PgraphReg, PmcReg};

use super::scene::{INSTANCE, MS, Scene};
use super::{A, B, FIRST_CHANNEL, rings};
use crate::device::Vgpu;
use crate::event::{Action, Event, VmId};
use crate::notice::Notice;

/// A's channel on the card.
const OF_A: u64 = FIRST_CHANNEL as u64;
const METHOD: u32 = 0x3_0300;
const CLASS: u32 = 0x90c0;

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

/// The card has these values, and interrupts; then it has what stands behind the acknowledgement: zeros.
fn interrupt(scene: &mut Scene, values: &[(Bar0Reg, u32)]) {
    scene.registers.extend(values.iter().copied());
    scene.apply(Event::HostInterrupt);
    for (reg, _) in values {
        scene.registers.remove(reg);
    }
}

/// PGRAPH stands with A's channel.
fn graph_error(scene: &mut Scene, intr: u32, more: &[(PgraphReg, u32)]) {
    let status = EngineStatus::new().with_channel(OF_A as u8).with_busy(true);
    let mut values: Vec<(Bar0Reg, u32)> = vec![
        (PgraphReg::GraphIntr.into(), intr),
        (PgraphReg::GraphTrappedMethod.into(), METHOD),
        (PgraphReg::GraphTrappedData.into(), 7),
        (PgraphReg::GraphSubchannelClass(3).into(), CLASS),
        (
            PfifoReg::EngineStatus(Engine::Graph.number().into()).into(),
            status.into_bits(),
        ),
    ];
    values.extend(more.iter().map(|&(reg, value)| (reg.into(), value)));
    interrupt(scene, &values);
}

/// The last value stored to a register of the card.
fn stored(scene: &Scene, reg: impl Into<Bar0Reg>) -> Option<u32> {
    let offset = u64::from(reg.into().offset());
    scene.actions.iter().rev().find_map(|action| match action {
        Action::HostWrite { offset: at, data, .. } if *at == offset => {
            Some(u32::from_le_bytes(data.as_slice().try_into().ok()?))
        }
        _ => None,
    })
}

fn load(scene: &mut Scene, vm: VmId, reg: impl Into<Bar0Reg>) -> u32 {
    let offset = u64::from(reg.into().offset());
    let data = scene.load(vm, fermi_spec::bar::Bar::Bar0, offset, 4);
    u32::from_le_bytes(data.try_into().unwrap_or_default())
}

fn killed(scene: &Scene) -> bool {
    scene
        .notices()
        .any(|notice| matches!(notice, Notice::ChannelKilled { .. }))
}

#[test]
fn illegal_method_is_told_to_its_guest_alone_and_the_card_goes_on_at_once() {
    let mut scene = two();
    graph_error(&mut scene, graph_intr::ILLEGAL_METHOD, &[]);
    assert_eq!(
        stored(&scene, PgraphReg::GraphIntr),
        Some(graph_intr::ILLEGAL_METHOD)
    );
    assert!(!killed(&scene));
    let shown = [
        (Bar0Reg::from(PgraphReg::GraphIntr), graph_intr::ILLEGAL_METHOD),
        (PgraphReg::GraphTrappedMethod.into(), METHOD),
        (PgraphReg::GraphTrappedData.into(), 7),
        (PgraphReg::GraphSubchannelClass(3).into(), CLASS),
        (
            FecsReg::FecsChannel.into(),
            FECS_CHANNEL_VALID | (INSTANCE >> 12) as u32,
        ),
        (PmcReg::PmcIntr(0).into(), 1 << Engine::Graph.interrupt_bit()),
    ];
    for (reg, value) in shown {
        assert_eq!(load(&mut scene, A, reg), value, "{reg}");
        assert_eq!(load(&mut scene, B, reg), 0, "{reg}");
    }
}

#[test]
fn method_that_a_driver_does_is_done_by_the_host_and_told_to_nobody() {
    let mut scene = two();
    for (data, mask) in [(1, !0), (0, 0)] {
        scene.take();
        let method = 3 << 16 | 0x1528;
        let more = [
            (PgraphReg::GraphTrappedMethod, method),
            (PgraphReg::GraphTrappedData, data),
        ];
        graph_error(&mut scene, graph_intr::ILLEGAL_METHOD, &more);
        let stores = scene.actions.iter().filter_map(|action| match action {
            Action::HostWrite { offset, data, .. } if data.len() == 4 => {
                Some((*offset, u32::from_le_bytes(data.as_slice().try_into().ok()?)))
            }
            _ => None,
        });
        let stores: Vec<_> = stores.collect();
        let at = |wanted: (u64, u32)| stores.iter().position(|store| *store == wanted);
        let acknowledged = (
            u64::from(PgraphReg::GraphIntr.offset()),
            graph_intr::ILLEGAL_METHOD,
        );
        let masks = [0x41_9e44, 0x41_9e4c].map(|reg| at((reg, mask)).expect("the mask is set"));
        assert!(
            masks[0] < masks[1] && Some(masks[1]) < at(acknowledged),
            "{stores:x?}"
        );
        assert_eq!(
            stored(&scene, PfifoReg::Preempt),
            None,
            "the channel stands still"
        );
        assert_eq!(load(&mut scene, A, PgraphReg::GraphIntr), 0);
        assert!(scene.notices().next().is_none());
    }
}

#[test]
fn channel_with_an_error_stands_still_until_its_guest_has_taken_note() {
    let mut scene = two();
    graph_error(&mut scene, graph_intr::ILLEGAL_CLASS, &[]);
    assert_eq!(stored(&scene, PfifoReg::Preempt), Some(OF_A as u32));
    scene.take();
    scene.doorbell(A, 5);
    scene.pass(100 * MS);
    let own = |action: &Action| rings(action, OF_A);
    assert!(!scene.actions.iter().any(own), "it rang while it stood still");
    // B's guest can acknowledge nothing of A's.
    scene.register(B, PgraphReg::GraphIntr.into(), !0);
    assert!(!scene.actions.iter().any(own));
    scene.register(A, PgraphReg::GraphIntr.into(), graph_intr::ILLEGAL_CLASS);
    scene.pass(MS);
    scene.first("doorbell", own);
    assert_eq!(load(&mut scene, A, PmcReg::PmcIntr(0)), 0);
}

#[test]
fn traps_of_all_levels_are_acknowledged_on_the_card_so_that_the_next_vm_finds_none() {
    let mut scene = two();
    let traps = [
        (PgraphReg::GraphTrap, graph_trap::GPC),
        (PgraphReg::GraphGpcTrap, 1 << 2),
        (PgraphReg::GpcTrap(2), GPC_TRAP_TPC0),
        (PgraphReg::TpcTrap(2), TPC_TRAP_MP),
        (PgraphReg::MpWarpError(2), 0x10),
        (PgraphReg::MpGlobalError(2), 8),
    ];
    graph_error(&mut scene, graph_intr::TRAP, &traps);
    for (reg, value) in traps {
        assert_eq!(load(&mut scene, A, reg), value, "{reg:?}");
        let cleared = if reg == PgraphReg::MpWarpError(2) {
            0
        } else {
            value
        };
        assert_eq!(stored(&scene, reg), Some(cleared), "{reg:?}");
    }
    assert_eq!(
        stored(&scene, PgraphReg::GpcTrap(1)),
        None,
        "it has none, and was not asked"
    );
}

#[test]
fn error_of_a_pbdma_is_turned_into_a_nop_and_told() {
    let mut scene = two();
    let of_pbdma = |intr: u32| {
        [
            (Bar0Reg::from(PfifoReg::PbdmaIntrSource), 1),
            (PbdmaReg::PbdmaIntr(0).into(), intr),
            (PbdmaReg::PbdmaChannel(0).into(), OF_A as u32),
            (PbdmaReg::PbdmaMethod0(0).into(), 0x8000_0100),
            (PbdmaReg::PbdmaData0(0).into(), 3),
        ]
    };
    interrupt(&mut scene, &of_pbdma(pbdma_intr::DEVICE));
    assert_eq!(stored(&scene, PbdmaReg::PbdmaMethod0(0)), Some(METHOD_NOP));
    assert_eq!(stored(&scene, PbdmaReg::PbdmaIntr(0)), Some(pbdma_intr::DEVICE));
    assert!(!killed(&scene));
    scene.register(A, PbdmaReg::PbdmaIntrEnable(0).into(), !0);
    scene.register(A, PfifoReg::PfifoIntrEnable.into(), !0);
    assert_eq!(load(&mut scene, A, PmcReg::PmcIntr(0)), pmc_intr::PFIFO);
    assert_eq!(load(&mut scene, A, PbdmaReg::PbdmaMethod0(0)), 0x8000_0100);
    // Its own number, not the card's.
    assert_eq!(load(&mut scene, A, PbdmaReg::PbdmaChannel(0)) & 0x7f, 0);
    // Behind a block without a signature there is no channel.
    interrupt(&mut scene, &of_pbdma(pbdma_intr::SIGNATURE));
    assert!(killed(&scene));
}

#[test]
fn notification_stops_nobody() {
    let mut scene = two();
    graph_error(&mut scene, graph_intr::NOTIFY, &[]);
    assert_eq!(stored(&scene, PgraphReg::GraphIntr), Some(graph_intr::NOTIFY));
    assert_eq!(stored(&scene, PfifoReg::Preempt), None);
    assert_eq!(load(&mut scene, A, PgraphReg::GraphIntr), graph_intr::NOTIFY);
}

#[test]
fn channel_whose_guest_never_takes_note_is_stopped_for_good_in_the_end() {
    let mut scene = two();
    let mut errors = 0;
    while !killed(&scene) {
        graph_error(&mut scene, graph_intr::ILLEGAL_METHOD, &[]);
        errors += 1;
        assert!(errors < 100, "errors pile up without a bound");
    }
    assert!(errors > 1);
}

#[test]
fn who_makes_errors_pays_with_its_share_of_the_brokers_time() {
    let mut scene = two();
    scene.gives_turns = false;
    for _ in 0..3 {
        graph_error(&mut scene, graph_intr::ILLEGAL_METHOD, &[]);
    }
    scene.take();
    let id = scene.register(A, PgraphReg::GraphIntr.into(), !0);
    assert!(
        scene.reply(id).is_none(),
        "its acknowledgement waits for its turn"
    );
    let id = scene.register(B, PgraphReg::GraphIntr.into(), !0);
    assert!(scene.reply(id).is_some(), "another's does not");
    scene.pass(100 * MS);
    assert!(scene.next_turn().is_none());
}

#[test]
fn what_a_channel_did_is_read_before_anybody_else_has_its_number_or_block() {
    let leaves: [fn(&mut Scene); 2] = [
        |scene| {
            scene.register(A, PfifoReg::ChannelInstance(0).into(), 0);
        },
        |scene| {
            scene.running().park(A, 0);
            scene.apply(Event::Wake);
        },
    ];
    for leave in leaves {
        let mut scene = two();
        // A fault of which the card's interrupt was lost.
        scene
            .registers
            .insert(PfifoReg::FaultUnits.into(), 1 << unit::PBDMA0);
        leave(&mut scene);
        let is_own = |vgpu: &Vgpu| vgpu.channels.is_empty();
        assert!(is_own(&scene.running().vms[&A]) && !is_own(&scene.running().vms[&B]));
        assert_eq!(scene.running().card.channels_held(A), 0);
        assert_eq!(stored(&scene, PfifoReg::FaultUnits), Some(1 << unit::PBDMA0));
    }
}
