//! Accesses to BARs: any register by name, any offset, any width, between steps.

use super::input::Input;
use crate::card::{Card, CardSetup};
use fermi_spec::bar::Bar;
use fermi_spec::regs::Bar0Reg;
use std::sync::LazyLock;

static OFFSETS: LazyLock<Vec<u32>> = LazyLock::new(|| Bar0Reg::all().map(Bar0Reg::offset).collect());
/// Work of one step.
const WORK: u32 = 200;
/// Accesses of an input at most.
const ACTIONS_MAX: usize = 2_000;

pub(super) fn offset(input: &mut Input<'_>) -> u64 {
    match input.u8() & 7 {
        0 => u64::from(input.u32() & 0x1ff_ffff),
        1 => u64::from(0x40_0000 | input.u32() & 0x1f_fffc),
        2 => u64::from(0x2000 | u32::from(input.u16()) & 0x1ffc),
        _ => u64::from(input.choose(&OFFSETS)),
    }
}

/// Mostly small numbers and frames of the card's VRAM.
pub(super) fn value(input: &mut Input<'_>) -> u32 {
    match input.u8() & 3 {
        0 => u32::from(input.u8()),
        1 => 0xc000_0000 | u32::from(input.u16() & 0x7ff),
        2 => u32::MAX,
        _ => input.u32(),
    }
}

fn act(card: &mut Card, input: &mut Input<'_>) {
    match input.u8() % 8 {
        0..3 => {
            let at = offset(input);
            let value = value(input);
            card.model.bar_write(Bar::Bar0, at, &value.to_le_bytes());
        }
        3 => {
            let mut word = [0; 4];
            card.model.bar_read(Bar::Bar0, offset(input), &mut word);
        }
        4 => {
            let (bar, at) = (input.choose(&Bar::ALL), input.u64() % (256 << 20));
            let data = input.counted(63);
            card.model.bar_write(bar, at, data);
        }
        5 => {
            let (bar, at) = (input.choose(&Bar::ALL), input.u64() % (256 << 20));
            let mut data = vec![0; usize::from(input.u8())];
            card.model.bar_read(bar, at, &mut data);
        }
        6 => {
            let id = u16::from(input.u8());
            card.ring_with(id, value(input));
        }
        _ => {
            card.step(WORK);
            card.model.take_interrupt();
        }
    }
}

/// Body of the target `bars`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let setup = CardSetup::fuzzed(input.microcode());
    let mut card = if input.u8() & 1 == 0 {
        Card::with_channels(2, setup)
    } else {
        Card::new(setup)
    };
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        act(&mut card, &mut input);
    }
    for _ in 0..10 {
        card.step(WORK);
    }
    let _ = card.model.interrupt_line();
}
