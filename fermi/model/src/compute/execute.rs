//! Runs a warp: fetch, guard, dispatch, control.
//!
//! Rules:
//! 1. Lanes that execute are the active ones that the guard lets through. Only they read, write and take part.
//! 2. All sources are read before a result is written.
//! 3. On a card with a capability (`crate::capabilities`) an instruction is looked at before any part of it is executed: it is
//!    executed whole, or its warp waits at it for pages and nothing of it has happened.
//! 4. A warp runs until it waits, ends, makes an error, or has used up its budget. Its results depend
//!    on the budget in no other way.

mod access;
mod arithmetic;
mod memory;
mod moves;
mod reach;
mod surface;
mod texture;

use fermi_spec::isa::{INSTRUCTION_BYTES, Opcode, field};

use super::{
    block::Inside,
    code::{Code, Op, Operand},
    launch::Launch,
    outside::Outside,
    reach::Reach,
    simd::Level,
    stack::Kind,
    tally::Tally,
    trap::{Stop, WarpError},
    warp::{LANES, Lanes, Warp, WarpState, Wide, each, lanes_of, mask_of, signs_of},
    watch::{Before, Watch},
};

/// All that an instruction can touch.
pub(super) struct Machine<'a> {
    pub(super) launch: &'a Launch,
    pub(super) block: &'a mut Inside,
    pub(super) outside: &'a mut dyn Outside,
    pub(super) tally: &'a mut Tally,
}

/// Runs `warp` for at most `budget` instructions; how many it ran, also where it stops for good. Its program counter shows the
/// instruction that it stopped at then.
#[inline(always)]
pub(super) fn run<W: Watch>(
    level: impl Level,
    warp: &mut Warp,
    code: &mut Code,
    machine: &mut Machine<'_>,
    watch: &mut W,
    budget: u64,
) -> (u64, Result<(), Stop>) {
    let mut done = 0;
    while warp.state == WarpState::Running && done < budget {
        let launch = machine.launch;
        let outside = &mut *machine.outside;
        let page = code.page(warp.pc, launch, |offset, bytes| {
            outside.fetch(launch.code.wrapping_add(offset.into()), bytes)
        });
        let page = match page {
            Ok(page) => page,
            Err(Stop::Fault(refusal)) if machine.outside.waits_for_code(refusal) => {
                warp.state = WarpState::AtPages;
                break;
            }
            Err(stop) => return (done, Err(stop)),
        };
        while warp.state == WarpState::Running
            && done < budget
            && let Some(op) = page.op(warp.pc)
        {
            let op = match op {
                Ok(op) => op,
                Err(error) => return (done, Err((*error).into())),
            };
            if let Some(reach) = watch.ahead()
                && !is_let_through(warp, op, machine, reach)
            {
                warp.state = WarpState::AtPages;
                break;
            }
            if !watch.lets_begin(op) {
                return (done, Ok(()));
            }
            let pc = warp.pc;
            let before = watch.is_on().then(|| Before {
                block: machine.block.index(),
                op: *op,
                active: warp.active,
                executed: warp.executing(op),
                pc,
                global: memory::global(warp, op, machine.launch),
            });
            let outcome = step(level, warp, op, machine);
            if let Some(before) = &before {
                watch.see(before, warp, outcome.is_err());
            }
            if let Err(stop) = outcome {
                warp.pc = pc;
                return (done, Err(stop));
            }
            watch.count(op, machine.tally);
            done += 1;
        }
    }
    (done, Ok(()))
}

/// Whether the card lets an instruction reach what it is about to reach; if not, its warp waits.
fn is_let_through(warp: &Warp, op: &Op, machine: &mut Machine<'_>, reach: &mut Reach) -> bool {
    reach::of(warp, op, machine, reach);
    reach.pages.is_empty() || machine.outside.lets_through(reach)
}

#[inline(always)]
fn step(level: impl Level, warp: &mut Warp, op: &Op, machine: &mut Machine<'_>) -> Result<(), Stop> {
    let lanes = warp.executing(op);
    machine.tally.count(op.issue, lanes);
    if is_control(op.opcode) {
        return control(warp, op, lanes, machine.launch);
    }
    warp.pc = warp.pc.wrapping_add(INSTRUCTION_BYTES);
    if lanes != 0 {
        perform(level, warp, op, lanes, machine)?;
    }
    if op.join {
        warp.join(lanes)?;
    }
    Ok(())
}

#[inline(always)]
fn perform(
    level: impl Level,
    warp: &mut Warp,
    op: &Op,
    lanes: u32,
    machine: &mut Machine<'_>,
) -> Result<(), Stop> {
    match op.opcode {
        Opcode::Ld
        | Opcode::Ldu
        | Opcode::St
        | Opcode::Ldl
        | Opcode::Lds
        | Opcode::Ldslk
        | Opcode::Stl
        | Opcode::Sts
        | Opcode::Stsul
        | Opcode::RedU32
        | Opcode::RedS32
        | Opcode::RedF32
        | Opcode::RedU64
        | Opcode::AtomU32
        | Opcode::AtomS32
        | Opcode::AtomF32
        | Opcode::AtomU64
        | Opcode::Exch32
        | Opcode::Exch64
        | Opcode::Cas32
        | Opcode::Cas64
        | Opcode::Ldc => memory::perform(warp, op, lanes, machine),
        Opcode::Suldb | Opcode::Sustb | Opcode::Sustp | Opcode::Sulea => {
            surface::perform(warp, op, lanes, machine)
        }
        Opcode::Tex | Opcode::Tld | Opcode::Tld4 | Opcode::Tmml | Opcode::Txq | Opcode::Txd => {
            texture::perform(warp, op, lanes, machine)
        }
        // Every access is performed in order and no cache is modelled, so there is nothing to order or drop.
        Opcode::Membar | Opcode::Cctl | Opcode::Cctll => Ok(()),
        Opcode::Cset
        | Opcode::Csetp
        | Opcode::Pset
        | Opcode::Psetp
        | Opcode::F2f
        | Opcode::F2i
        | Opcode::I2f
        | Opcode::I2i
        | Opcode::Sel
        | Opcode::Prmt
        | Opcode::Mov
        | Opcode::Mov32i
        | Opcode::S2r
        | Opcode::P2r
        | Opcode::R2p
        | Opcode::B2r
        | Opcode::Nop
        | Opcode::Lepc
        | Opcode::Vote
        | Opcode::Bar
        | Opcode::Popc => moves::perform(level, warp, op, lanes, machine),
        _ => {
            arithmetic::perform(level, warp, op, lanes);
            Ok(())
        }
    }
}

fn is_control(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Jmp
            | Opcode::Jmx
            | Opcode::Jmxc
            | Opcode::Jcal
            | Opcode::Bra
            | Opcode::Brx
            | Opcode::Brxc
            | Opcode::Cal
            | Opcode::Plongjmp
            | Opcode::Ssy
            | Opcode::Pbk
            | Opcode::Pcnt
            | Opcode::Pret
            | Opcode::Exit
            | Opcode::Longjmp
            | Opcode::Ret
            | Opcode::Kil
            | Opcode::Rtt
            | Opcode::Brk
            | Opcode::Cont
            | Opcode::Sam
            | Opcode::Ram
            | Opcode::Bpt
    )
}

fn control(warp: &mut Warp, op: &Op, guarded: u32, launch: &Launch) -> Result<(), Stop> {
    let next = warp.pc.wrapping_add(INSTRUCTION_BYTES);
    let lanes = || {
        if op.is_unconditional() {
            guarded
        } else {
            guarded & warp.meeting(op.get(field::CONDITION))
        }
    };
    let active = warp.active;
    match op.opcode {
        Opcode::Bra | Opcode::Jmp => {
            let lanes = lanes();
            warp.branch(lanes, op.target, next)?;
        }
        Opcode::Ssy => push(warp, Kind::Reconvergence, op.target, next)?,
        Opcode::Pbk => push(warp, Kind::Break, op.target, next)?,
        Opcode::Pcnt => push(warp, Kind::Continue, op.target, next)?,
        Opcode::Pret => push(warp, Kind::Return, op.target, next)?,
        Opcode::Cal | Opcode::Jcal => {
            warp.stack.push(Kind::Return, next, active)?;
            warp.pc = op.target;
        }
        Opcode::Brk | Opcode::Cont | Opcode::Ret => {
            let lanes = lanes();
            let kind = match op.opcode {
                Opcode::Brk => Kind::Break,
                Opcode::Cont => Kind::Continue,
                _ => Kind::Return,
            };
            warp.pc = next;
            if lanes != 0 {
                warp.stack.leave_to(kind, lanes)?;
                warp.deactivate(lanes);
            }
        }
        Opcode::Exit => {
            let lanes = lanes();
            exit(warp, lanes, next);
        }
        // Quads are a matter of graphics: all lanes take part always.
        Opcode::Sam | Opcode::Ram => warp.pc = next,
        Opcode::Brx | Opcode::Jmx => {
            let lanes = lanes();
            let base = op.target;
            let offsets = *warp.register(op.a);
            branch_each(warp, lanes, next, |lane| base.wrapping_add(offsets[lane]))?;
        }
        Opcode::Jmxc | Opcode::Brxc => {
            let lanes = lanes();
            let base = if op.opcode == Opcode::Brxc { next } else { 0 };
            let bank = op.get(field::TABLE_BANK) as u8;
            let index = *warp.register(op.a);
            let place = |lane: usize| index[lane].wrapping_add_signed(op.offset);
            if lanes_of(lanes).any(|lane| !place(lane).is_multiple_of(4)) {
                return Err(WarpError::MisalignedConstant.into());
            }
            branch_each(warp, lanes, next, |lane| {
                base.wrapping_add(launch.constant(bank, place(lane)))
            })?;
        }
        // Traps, long jumps and fragments have no place in a grid.
        _ => return Err(WarpError::InvalidOpcode.into()),
    }
    Ok(())
}

/// Ends lanes; the others go on at `next`.
fn exit(warp: &mut Warp, lanes: u32, next: u32) {
    warp.pc = next;
    warp.live &= !lanes;
    warp.stack.forget(lanes);
    if lanes != 0 {
        warp.deactivate(lanes);
    }
}

fn push(warp: &mut Warp, kind: Kind, target: u32, next: u32) -> Result<(), WarpError> {
    let active = warp.active;
    warp.stack.push(kind, target, active)?;
    warp.pc = next;
    Ok(())
}

/// A branch whose target is each lane's own: the group of the lowest lane goes first, the others wait.
fn branch_each(
    warp: &mut Warp,
    lanes: u32,
    next: u32,
    target: impl Fn(usize) -> u32,
) -> Result<(), WarpError> {
    let stay = warp.active & !lanes;
    if stay != 0 && lanes != 0 {
        warp.stack.push(Kind::Divergence, next, stay)?;
    }
    let mut groups: Vec<(u32, u32)> = Vec::new();
    for lane in lanes_of(lanes) {
        let to = target(lane);
        match groups.iter_mut().find(|(at, _)| *at == to) {
            Some((_, mask)) => *mask |= 1 << lane,
            None => groups.push((to, 1 << lane)),
        }
    }
    let Some(((first, mask), rest)) = groups.split_first() else {
        warp.pc = next;
        return Ok(());
    };
    for (at, mask) in rest.iter().rev() {
        warp.stack.push(Kind::Divergence, *at, *mask)?;
    }
    warp.pc = *first;
    warp.active = *mask;
    Ok(())
}

/// The 32-bit values of operand B or C.
#[inline(always)]
fn values<'a>(warp: &'a Warp, op: &'a Op, operand: Operand) -> &'a Lanes {
    match operand {
        Operand::Register(register) => warp.register(register),
        Operand::Constant { .. } | Operand::Immediate(_) => &op.value,
    }
}

/// The 64-bit values of operand B or C.
#[inline(always)]
fn wide_values(warp: &Warp, op: &Op, operand: Operand) -> Wide {
    match operand {
        Operand::Register(register) => warp.wide(register),
        Operand::Constant { .. } | Operand::Immediate(_) => [op.wide_value; LANES],
    }
}

/// The zero and sign flags of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind32 {
    Integer,
    Single,
}

/// Stores a result and, if asked for, its flags: zero and sign; of an f32 that is no number both.
#[inline(always)]
fn finish(warp: &mut Warp, op: &Op, lanes: u32, result: &Lanes, kind: Kind32) {
    const INFINITY: u32 = 0x7f80_0000;
    warp.set_register(op.dst, result, lanes);
    if !op.sets_flags {
        return;
    }
    let magnitude = |lane: usize| result[lane] & 0x7fff_ffff;
    let (zero, negative) = (mask_of(|lane| result[lane] == 0), signs_of(result));
    let (zero, sign) = match kind {
        Kind32::Integer => (zero, negative),
        Kind32::Single => {
            let nan = mask_of(|lane| magnitude(lane) > INFINITY);
            let zero = mask_of(|lane| magnitude(lane) == 0);
            (zero | nan, negative & !zero | nan)
        }
    };
    warp.set_flag_masks(lanes, [zero, sign, 0, 0]);
}

/// A mask as the result of a comparison: all ones or 1.0 where it is set.
#[inline(always)]
fn as_register(mask: u32, is_float: bool) -> Lanes {
    let truth = if is_float { 1f32.to_bits() } else { u32::MAX };
    each(|lane| truth & 0u32.wrapping_sub(mask >> lane & 1))
}
