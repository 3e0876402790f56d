//! Copy-engine methods as nouveau's microcode implements them (`ce/fuc/com.fuc`), for linear surfaces.
//!
//! Tiled surfaces and format conversion are not modelled: an EXEC that asks for them is answered by the dispatch
//! error that the microcode has for a value outside its enumeration.

use crate::{
    context::Registers,
    engine::{Effect, Rejection},
    side::{Layout, Side},
    transfer::{Completion, Release, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::{CopyExec, class, copy},
    regs::engines::copy_error,
};

const TRIGGER: u16 = 0x140;
const SRC_TILE_FIRST: u16 = 0x200;
const SRC_TILE_LAST: u16 = 0x218;
const DST_TILE_FIRST: u16 = 0x220;
const DST_TILE_LAST: u16 = 0x238;
const SWIZZLE_FIRST: u16 = 0x32c;
const SWIZZLE_LAST: u16 = 0x334;
/// Bits of EXEC that exist.
const EXEC_BITS: u32 = 0x3111;

/// Executes one method; `registers` are those of the channel on the engine.
pub(crate) fn method(registers: &mut Registers, subchannel: u8, method: u16, data: u32) -> Effect {
    let allowed = match method {
        copy::SRC_HIGH | copy::DST_HIGH | copy::QUERY_HIGH => 0xff,
        copy::LINE_BYTES => copy::LINE_BYTES_MAX,
        copy::LINES => copy::LINES_MAX,
        copy::EXEC => EXEC_BITS,
        copy::SRC_LOW | copy::DST_LOW | copy::SRC_PITCH | copy::DST_PITCH => u32::MAX,
        copy::QUERY_LOW | copy::QUERY_COUNTER => u32::MAX,
        SRC_TILE_FIRST..=SRC_TILE_LAST | DST_TILE_FIRST..=DST_TILE_LAST => u32::MAX,
        SWIZZLE_FIRST..=SWIZZLE_LAST => u32::MAX,
        0 => return bind(registers, subchannel, data),
        copy::NOP | TRIGGER | copy::WRCACHE_FLUSH => return Effect::None,
        _ => return Effect::Reject(Rejection::Copy(copy_error::ILLEGAL_METHOD)),
    };
    if data & !allowed != 0 {
        return Effect::Reject(Rejection::Copy(copy_error::INVALID_BITFIELD));
    }
    registers.set(method, data);
    if method == copy::EXEC {
        exec(registers, CopyExec::from_bits(data))
    } else {
        Effect::None
    }
}

fn bind(registers: &mut Registers, subchannel: u8, data: u32) -> Effect {
    let name = data as u16;
    if name != class::COPY && name != class::COPY_1 {
        return Effect::Reject(Rejection::Copy(copy_error::ILLEGAL_METHOD));
    }
    registers.bind(subchannel, name);
    Effect::None
}

fn exec(registers: &Registers, exec: CopyExec) -> Effect {
    if exec.format() || !exec.src_linear() || !exec.dst_linear() {
        return Effect::Reject(Rejection::Copy(copy_error::INVALID_ENUM));
    }
    let release = exec.query().then(|| Release {
        at: GpuVa(registers.address(copy::QUERY_HIGH) & !3),
        payload: registers.get(copy::QUERY_COUNTER),
        short: exec.query_short(),
    });
    Effect::Start(Transfer::new(
        Side::new(
            GpuVa(registers.address(copy::SRC_HIGH)),
            Layout::Pitch(registers.get(copy::SRC_PITCH)),
        ),
        Side::new(
            GpuVa(registers.address(copy::DST_HIGH)),
            Layout::Pitch(registers.get(copy::DST_PITCH)),
        ),
        registers.get(copy::LINE_BYTES),
        registers.get(copy::LINES),
        Completion {
            release,
            notify: false,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiled_source_is_a_dispatch_error() {
        let mut registers = Registers::default();
        let effect = method(&mut registers, 0, copy::EXEC, 0x100);
        assert!(matches!(
            effect,
            Effect::Reject(Rejection::Copy(copy_error::INVALID_ENUM))
        ));
    }

    #[test]
    fn reserved_bit_is_a_dispatch_error() {
        let mut registers = Registers::default();
        let effect = method(&mut registers, 0, copy::LINES, 0x2000);
        assert!(matches!(
            effect,
            Effect::Reject(Rejection::Copy(copy_error::INVALID_BITFIELD))
        ));
    }

    #[test]
    fn unknown_method_is_a_dispatch_error() {
        let mut registers = Registers::default();
        let effect = method(&mut registers, 0, 0x400, 0);
        assert!(matches!(
            effect,
            Effect::Reject(Rejection::Copy(copy_error::ILLEGAL_METHOD))
        ));
    }
}
