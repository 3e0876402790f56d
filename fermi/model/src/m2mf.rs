//! M2MF (class 9039, `cl9039.h`): linear copies and inline uploads on PGRAPH.
//!
//! Tiled surfaces are not modelled: a LAUNCH that asks for them is a data error.

use crate::{
    context::Registers,
    engine::{Effect, InlineWord, Rejection},
    transfer::{Completion, Release, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::{M2mfLaunch, class, m2mf},
    regs::engines::graph_data_error,
};

const WAIT_FOR_IDLE: u16 = 0x110;
const TILE_FIRST: u16 = 0x204;
const TILE_LAST: u16 = 0x230;
const ORIGIN_FIRST: u16 = 0x344;
const ORIGIN_LAST: u16 = 0x350;
/// Bits 39:32 of an address.
const ADDRESS_HIGH_MAX: u32 = 0xff;
/// COMPLETION of LAUNCH: release the semaphore.
const RELEASE_SEMAPHORE: u8 = 2;

/// Executes one method of PGRAPH; `registers` are those of the channel on it. Classes other than M2MF are not there.
pub(crate) fn method(registers: &mut Registers, subchannel: u8, method: u16, data: u32) -> Effect {
    if method == 0 {
        if data as u16 != class::M2MF {
            return Effect::Reject(Rejection::GraphClass);
        }
        registers.bind(subchannel, class::M2MF);
        return Effect::None;
    }
    if registers.class(subchannel) != class::M2MF {
        return Effect::Reject(Rejection::GraphClass);
    }
    match method {
        m2mf::NOP | WAIT_FOR_IDLE => Effect::None,
        m2mf::DATA => inline_word(registers, data),
        m2mf::LAUNCH => {
            registers.set(method, data);
            launch(registers, M2mfLaunch::from_bits(data))
        }
        m2mf::OFFSET_OUT_HIGH | m2mf::OFFSET_IN_HIGH | m2mf::SEMAPHORE_HIGH if data > ADDRESS_HIGH_MAX => {
            Effect::Reject(Rejection::GraphData(graph_data_error::INVALID_BITFIELD))
        }
        TILE_FIRST..=TILE_LAST
        | ORIGIN_FIRST..=ORIGIN_LAST
        | m2mf::OFFSET_OUT_HIGH
        | m2mf::OFFSET_OUT_LOW
        | m2mf::OFFSET_IN_HIGH..=m2mf::LINE_COUNT
        | m2mf::SEMAPHORE_HIGH..=m2mf::SEMAPHORE_PAYLOAD => {
            registers.set(method, data);
            Effect::None
        }
        _ => Effect::Reject(Rejection::GraphMethod),
    }
}

fn launch(registers: &mut Registers, launch: M2mfLaunch) -> Effect {
    let tiled = !launch.dst_linear() || !launch.inline() && !launch.src_linear();
    if tiled {
        return Effect::Reject(Rejection::GraphData(graph_data_error::INVALID_ENUM));
    }
    registers.set_inline_position(0, 0);
    let (bytes, lines) = (registers.get(m2mf::LINE_LENGTH), registers.get(m2mf::LINE_COUNT));
    if launch.inline() && bytes != 0 && lines != 0 {
        return Effect::None;
    }
    Effect::Start(Transfer::new(
        GpuVa(registers.address(m2mf::OFFSET_IN_HIGH)),
        GpuVa(registers.address(m2mf::OFFSET_OUT_HIGH)),
        [registers.get(m2mf::PITCH_IN), registers.get(m2mf::PITCH_OUT)],
        bytes,
        lines,
        completion(registers, launch),
    ))
}

fn completion(registers: &Registers, launch: M2mfLaunch) -> Completion {
    let release = (launch.completion() == RELEASE_SEMAPHORE).then(|| Release {
        at: GpuVa(registers.address(m2mf::SEMAPHORE_HIGH) & !3),
        payload: registers.get(m2mf::SEMAPHORE_PAYLOAD),
        short: launch.semaphore_short(),
    });
    Completion {
        release,
        notify: launch.interrupt() != 0,
    }
}

/// One word of inline data: up to four bytes of the current line. Each line starts with a word of its own.
fn inline_word(registers: &mut Registers, data: u32) -> Effect {
    let launch = M2mfLaunch::from_bits(registers.get(m2mf::LAUNCH));
    let (bytes, lines) = (registers.get(m2mf::LINE_LENGTH), registers.get(m2mf::LINE_COUNT));
    let (line, byte) = registers.inline_position();
    if !launch.inline() || line >= lines || byte >= bytes {
        return Effect::Reject(Rejection::GraphMethod);
    }
    let pitch = u64::from(registers.get(m2mf::PITCH_OUT));
    let at = registers
        .address(m2mf::OFFSET_OUT_HIGH)
        .saturating_add(u64::from(line) * pitch)
        .saturating_add(u64::from(byte));
    let length = (bytes - byte).min(4);
    let (next_line, next_byte) = if byte + length == bytes {
        (line + 1, 0)
    } else {
        (line, byte + length)
    };
    registers.set_inline_position(next_line, next_byte);
    Effect::Inline(InlineWord {
        at: GpuVa(at),
        word: data.to_le_bytes(),
        bytes: length as usize,
        completion: (next_line == lines).then(|| completion(registers, launch)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> Registers {
        let mut registers = Registers::default();
        registers.bind(0, class::M2MF);
        registers
    }

    #[test]
    fn method_before_a_class_is_an_illegal_class() {
        let effect = method(&mut Registers::default(), 0, m2mf::LINE_COUNT, 1);
        assert!(matches!(effect, Effect::Reject(Rejection::GraphClass)));
    }

    #[test]
    fn inline_line_of_six_bytes_takes_two_words() {
        let mut registers = bound();
        for (name, value) in [
            (m2mf::OFFSET_OUT_LOW, 0x1000),
            (m2mf::PITCH_OUT, 0x100),
            (m2mf::LINE_LENGTH, 6),
            (m2mf::LINE_COUNT, 2),
            (m2mf::LAUNCH, 0x111),
        ] {
            assert!(matches!(method(&mut registers, 0, name, value), Effect::None));
        }
        let mut store = || match method(&mut registers, 0, m2mf::DATA, 0) {
            Effect::Inline(word) => (word.at.0, word.bytes, word.completion.is_some()),
            _ => panic!("not a store"),
        };
        let stores = [store(), store(), store(), store()];
        assert_eq!(
            stores,
            [
                (0x1000, 4, false),
                (0x1004, 2, false),
                (0x1100, 4, false),
                (0x1104, 2, true)
            ]
        );
    }
}
