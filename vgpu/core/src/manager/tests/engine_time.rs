//! What is known of how long VMs' work is on the engines.

use fermi_spec::engine::Engine;
use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo::EngineStatus};

use super::scene::{MS, Scene};
use crate::event::{Action, VmId};

const A: VmId = VmId(0);
const PERIOD_NS: u64 = 50 * MS;

fn status(engine: Engine) -> Bar0Reg {
    PfifoReg::EngineStatus(engine.number().into()).into()
}

/// A VM whose channel may run.
fn running() -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 2);
    scene.run_channel(A);
    scene
}

/// The VM's work is on the engine, or is not.
fn puts_on(scene: &mut Scene, engine: Engine, channel: u8, is_busy: bool) {
    let bits = EngineStatus::new().with_channel(channel).with_busy(is_busy);
    scene.registers.insert(status(engine), bits.into_bits());
}

fn times(scene: &Scene) -> (u64, u64) {
    let account = scene.manager.account(A).expect("it is attached");
    (account.graph_ns, account.copy_ns)
}

/// Lets so many periods pass, with more than one event in each.
fn pass(scene: &mut Scene, periods: u64) {
    for _ in 0..periods * 5 {
        scene.pass(PERIOD_NS / 5);
    }
}

#[test]
fn work_on_an_engine_counts_as_long_as_it_is_there() {
    let mut scene = running();
    let channel = scene.running().vms[&A].channels[&0].physical.0;
    pass(&mut scene, 10);
    assert_eq!(times(&scene), (0, 0));
    puts_on(&mut scene, Engine::Graph, channel, true);
    puts_on(&mut scene, Engine::Copy1, channel, true);
    pass(&mut scene, 10);
    let is_about = |ns: u64| ns.abs_diff(10 * PERIOD_NS) <= PERIOD_NS;
    let (graph, copy) = times(&scene);
    assert!(is_about(graph) && is_about(copy), "{graph} {copy}");
    // A context that stays on the engine is no work.
    puts_on(&mut scene, Engine::Graph, channel, false);
    puts_on(&mut scene, Engine::Copy1, channel, false);
    pass(&mut scene, 10);
    assert_eq!(times(&scene), (graph, copy));
}

#[test]
fn work_of_the_broker_and_of_nobody_is_no_vms() {
    let mut scene = running();
    for channel in [0, 77] {
        puts_on(&mut scene, Engine::Copy0, channel, true);
        pass(&mut scene, 10);
    }
    assert_eq!(times(&scene), (0, 0));
}

/// Free until needed: who has no channel that may run is not asked about.
#[test]
fn nothing_is_asked_while_nothing_can_run() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.take();
    pass(&mut scene, 20);
    let asks = |action: &Action| {
        let at = u64::from(status(Engine::Graph).offset());
        matches!(action, Action::HostRead { offset, .. } if *offset == at)
    };
    assert!(!scene.take().iter().any(asks));
}
