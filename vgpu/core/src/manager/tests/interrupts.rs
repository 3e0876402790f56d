//! A VM's interrupt line, and what its VMM hears of it: INTx, the mask, MSI.

use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::{Bar0Reg, PffbReg, PfifoReg, PmcReg};

use super::scene::{MS, Scene};
use crate::event::{Action, Event, InterruptKind, Reply, Request, RequestId, VmId};
use crate::share::{REQUEST, SLICE};

const A: VmId = VmId(0);
const B: VmId = VmId(1);
const UNMASK: Request = Request::MaskIntx { masked: false };
/// Index of the first copy engine's notifications.
const COPY0: u16 = 4;

/// Two VMs whose guests let notifications of engines interrupt.
fn armed() -> Scene {
    let mut scene = Scene::up();
    for vm in [A, B] {
        scene.attach(vm, 16);
        arm(&mut scene, vm);
    }
    scene.take();
    scene
}

fn arm(scene: &mut Scene, vm: VmId) {
    scene.register(vm, PmcReg::PmcIntrMask(0).into(), !0);
    scene.register(vm, PfifoReg::PfifoIntrEnable.into(), !0);
    scene.register(vm, PmcReg::PmcIntrEnable(0).into(), 1);
}

/// An engine notifies the guest: its line is up until the guest acknowledges that.
fn notify(scene: &mut Scene, vm: VmId) {
    let vgpu = scene.running().vms.get_mut(&vm).expect("it is attached");
    vgpu.units.pfifo.notify(Engine::Copy0);
    scene.apply(Event::Wake);
}

fn acknowledge(scene: &mut Scene, vm: VmId) {
    scene.register(vm, PfifoReg::EngineIntr(COPY0).into(), 1);
}

/// Interrupts since the last question.
fn raised(scene: &mut Scene) -> Vec<(VmId, InterruptKind)> {
    let raised = scene.take().into_iter().filter_map(|action| match action {
        Action::Interrupt { vm, kind } => Some((vm, kind)),
        _ => None,
    });
    raised.collect()
}

fn config(scene: &mut Scene, vm: VmId, offset: u64, data: &[u8]) {
    let data = data.to_vec();
    scene.ask(vm, Request::WriteConfig { offset, data });
}

const INTX: InterruptKind = InterruptKind::Intx;
const MSI: InterruptKind = InterruptKind::Msi;

#[test]
fn intx_is_one_signal_for_each_unmask_and_its_own_vms() {
    let mut scene = armed();
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [], "nobody listens");
    for vm in [A, B] {
        let asked = scene.ask(vm, UNMASK);
        assert_eq!(scene.reply(asked), Some(&Reply::Done));
    }
    assert_eq!(raised(&mut scene), [(A, INTX)]);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [], "it is masked");
    scene.ask(A, UNMASK);
    assert_eq!(raised(&mut scene), [(A, INTX)], "the line is up still");
    acknowledge(&mut scene, A);
    scene.ask(A, UNMASK);
    assert_eq!(raised(&mut scene), []);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
}

#[test]
fn answer_to_an_unmask_comes_before_the_signal() {
    let mut scene = armed();
    notify(&mut scene, A);
    let asked = scene.ask(A, UNMASK);
    let answer = |action: &Action| matches!(action, Action::Reply { request, .. } if *request == asked);
    let signal = |action: &Action| matches!(action, Action::Interrupt { .. });
    assert!(scene.first("answer", answer) < scene.first("signal", signal));
}

#[test]
fn guest_that_changes_between_msi_and_the_pin_loses_nothing() {
    let mut scene = armed();
    scene.ask(A, UNMASK);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
    // The guest switches first; then its VMM lets go of the pin.
    config(&mut scene, A, 0x6a, &[1]);
    assert_eq!(raised(&mut scene), [(A, MSI)]);
    scene.ask(A, Request::MaskIntx { masked: true });
    config(&mut scene, A, 0x6a, &[0]);
    assert_eq!(raised(&mut scene), [], "no trigger is set yet");
    scene.ask(A, UNMASK);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
    // The same by the mirror in BAR0, with the pin switched off and on.
    scene.store(A, Bar::Bar0, 0x8_8004, &[0, 4]);
    scene.ask(A, UNMASK);
    assert_eq!(raised(&mut scene), []);
    scene.store(A, Bar::Bar0, 0x8_8004, &[0, 0]);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
}

#[test]
fn messages_that_go_off_and_on_between_two_looks_are_told_anew() {
    let mut scene = armed();
    config(&mut scene, A, 0x6a, &[1]);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [(A, MSI)]);
    // Both stores wait behind a sync and are done in one event.
    let invalidate: Bar0Reg = PffbReg::MmuConfig.into();
    scene.held.insert(invalidate);
    scene.bind(A, 4);
    config(&mut scene, A, 0x6a, &[0]);
    config(&mut scene, A, 0x6a, &[1]);
    assert_eq!(raised(&mut scene), []);
    scene.held.clear();
    scene.end_polls(invalidate, true);
    assert_eq!(raised(&mut scene), [(A, MSI)]);
}

#[test]
fn reset_takes_the_line_down_and_leaves_the_mask_to_the_vmm() {
    let mut scene = armed();
    scene.ask(A, UNMASK);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
    scene.ask(A, Request::Reset);
    scene.pass(MS);
    arm(&mut scene, A);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), [], "the VMM has not unmasked yet");
    scene.ask(A, UNMASK);
    assert_eq!(raised(&mut scene), [(A, INTX)]);
    // A VM that comes under the same number begins without a listener.
    scene.apply(Event::Detach { vm: A });
    scene.pass(MS);
    scene.attach(A, 16);
    arm(&mut scene, A);
    notify(&mut scene, A);
    assert_eq!(raised(&mut scene), []);
}

#[test]
fn vm_that_unmasks_as_fast_as_it_can_takes_turns() {
    let mut scene = armed();
    scene.gives_turns = false;
    notify(&mut scene, A);
    let all = 2 * SLICE / REQUEST;
    let asked: Vec<RequestId> = (0..all).map(|_| scene.ask(A, UNMASK)).collect();
    let answered = asked.iter().filter(|id| scene.reply(**id).is_some()).count() as u64;
    // A slice, and what drained of it meanwhile: no time passes here.
    assert!(answered <= SLICE / REQUEST + 1, "{answered} of {all}");
    let of_others = scene.register(B, PmcReg::PmcEnable.into(), 1);
    assert_eq!(scene.reply(of_others), Some(&Reply::Done));
    let signals = raised(&mut scene).len() as u64;
    assert_eq!(signals, answered, "one for each unmask");
}
