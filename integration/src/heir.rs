//! A channel that gets its number on the card, and the place of its instance block, from one that made an error of which nobody has heard.

use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::GpEntry;
use fermi_spec::regs::PfifoReg;
use sim_host::bus::SimBus;
use vgpu::VmId;

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::rig::Rig;

const VM: VmId = VmId(0);
/// The guest's channels.
const LEAVES: u8 = 0;
const COMES: u8 = 1;
const DATA_BYTES: u64 = 4 << 20;
/// Where nothing is mapped.
const NOWHERE: u64 = 1 << 39;
/// How often the number goes from one to the other.
const ROUNDS: u32 = 8;
/// Turns in which a fetch from nowhere comes to its fault.
const TURNS: u32 = 1_000;
/// Longer than between two looks at a card that has said nothing.
const LOOKED_NS: u64 = 100_000_000;
/// Shorter than that: number and block are free by then, if nobody looks first.
const FREED_NS: u64 = 1_000_000;

/// Whether the card has a fault to tell of.
fn has_fault(bench: &mut Bench) -> bool {
    bench.world.register(PfifoReg::FaultUnits) != 0
}

/// Has the guest's code do something with its rig.
fn run<T: 'static>(
    bench: &mut Bench,
    rig: &mut Option<Rig>,
    code: impl FnOnce(&mut Rig, &mut SimBus) -> T + 'static,
) -> T {
    let mut taken = rig.take().expect("it comes back");
    let (back, result) = bench.run(VM, move |bus| {
        let result = code(&mut taken, bus);
        (taken, result)
    });
    *rig = Some(back);
    result
}

/// No channel is stopped for what the last owner of its number did, though the card's interrupt was lost and the number changed hands before the next look.
///
/// # Errors
/// It was, or a law did not hold.
pub fn nobody_answers_for_the_last_owner_of_a_number() -> Result<(), Violation> {
    let mut bench = Bench::with(64, gpu_config(), &[vm_config(16)]);
    let mut rig = Some(bench.run(VM, |bus| Rig::start(bus, DATA_BYTES).with_contexts()));
    let mut untold = 0;
    for round in 0..ROUNDS {
        bench.world.model.faults_mut().lost_interrupts = u32::MAX;
        run(&mut bench, &mut rig, |rig, bus| {
            rig.open(bus, LEAVES);
            rig.push_entry(bus, LEAVES, GpEntry::fetch(GpuVa(NOWHERE), 8));
            rig.ring(bus, LEAVES);
        });
        for _ in 0..TURNS {
            if has_fault(&mut bench) {
                break;
            }
            bench.turn();
        }
        untold += u32::from(has_fault(&mut bench));
        let copies = |rig: &mut Rig, bus: &mut SimBus| rig.copies(bus, COMES);
        run(&mut bench, &mut rig, |rig, bus| rig.unbind(bus, LEAVES));
        bench.pass(FREED_NS);
        let worked = run(&mut bench, &mut rig, move |rig, bus| {
            rig.open(bus, COMES);
            copies(rig, bus)
        });
        bench.world.model.faults_mut().lost_interrupts = 0;
        bench.pass(LOOKED_NS);
        if !worked || !run(&mut bench, &mut rig, copies) {
            return Err(Violation(format!(
                "channel {COMES} is stopped for what channel {LEAVES} did before it, in round {round}"
            )));
        }
        run(&mut bench, &mut rig, |rig, bus| rig.unbind(bus, COMES));
        bench.pass(LOOKED_NS);
    }
    if untold == 0 {
        return Err(Violation(
            "each fault was heard of before its channel left".to_owned(),
        ));
    }
    bench.end();
    Ok(())
}
