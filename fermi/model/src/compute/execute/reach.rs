//! What an instruction is about to reach, before any part of it is executed.
//!
//! An instruction that will end with an error of its own need not be told whole: it gets there whatever its pages are.

use fermi_spec::isa::Opcode;

use super::{Machine, access::addresses, access::offsets, memory::global, surface, texture};
use crate::compute::{
    code::Op,
    launch::Window,
    reach::Reach,
    warp::{Warp, lanes_of},
};

/// Fills `reach` with the pages of global and local memory that `op` will load from and store to.
pub(super) fn of(warp: &Warp, op: &Op, machine: &mut Machine<'_>, reach: &mut Reach) {
    reach.clear();
    let lanes = warp.executing(op);
    if lanes == 0 {
        return;
    }
    match op.opcode {
        Opcode::Ldl | Opcode::Stl => {
            let offsets = offsets(warp, op);
            let is_store = op.opcode == Opcode::Stl;
            for lane in lanes_of(lanes) {
                local(warp, op, machine, (lane, offsets[lane]), is_store, reach);
            }
        }
        Opcode::Suldb | Opcode::Sustb | Opcode::Sustp => surface::reach(warp, op, lanes, machine, reach),
        Opcode::Tex | Opcode::Tld | Opcode::Tld4 | Opcode::Txd => {
            reach.is_texture = true;
            texture::reach(warp, op, lanes, machine, reach);
        }
        _ => {
            let Some(access) = global(warp, op, machine.launch) else {
                return;
            };
            let is_aligned = |lane: usize| access.addresses[lane].is_multiple_of(access.bytes.into());
            if !lanes_of(access.lanes).all(is_aligned) {
                return;
            }
            for lane in lanes_of(access.lanes) {
                reach.add(
                    access.addresses[lane],
                    access.bytes.into(),
                    access.is_load,
                    access.is_store,
                );
            }
            generic_local(warp, op, lanes & !access.lanes, machine, reach);
        }
    }
}

/// Lanes of a load or store with generic addresses that reach local memory; atomic operations make an error of them.
fn generic_local(warp: &Warp, op: &Op, lanes: u32, machine: &Machine<'_>, reach: &mut Reach) {
    if lanes == 0 || !matches!(op.opcode, Opcode::Ld | Opcode::Ldu | Opcode::St) {
        return;
    }
    let addresses = addresses(warp, op);
    for lane in lanes_of(lanes) {
        if machine.launch.window(addresses[lane]) == Some(Window::Local) {
            let offset = addresses[lane].wrapping_sub(machine.launch.local_base) as u32;
            local(warp, op, machine, (lane, offset), op.opcode == Opcode::St, reach);
        }
    }
}

/// The words of a lane's access to local memory at an offset.
fn local(
    warp: &Warp,
    op: &Op,
    machine: &Machine<'_>,
    (lane, offset): (usize, u32),
    is_store: bool,
    reach: &mut Reach,
) {
    let bytes = op.data.bytes();
    let Ok(at) = machine.launch.local_offset(offset, bytes) else {
        return;
    };
    for number in 0..op.data.registers() {
        let at = at.wrapping_add(4 * number);
        let va = machine
            .block
            .local_address(machine.launch, warp.index, at, lane as u32);
        reach.add(va, bytes.min(4).into(), !is_store, is_store);
    }
}
