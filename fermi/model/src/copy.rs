//! Copy-engine methods as nouveau's microcode implements them (`ce/fuc/com.fuc`).
//!
//! The microcode looks a method up in a table: one that is not there, or has a bit that is reserved there, is a
//! dispatch error. Nothing else is checked: any object may be bound, EXEC takes any bits, a tiled surface has no edges,
//! and blocks of more than 32 GOBs are computed like others.

use crate::{
    context::Registers,
    engine::{Effect, Rejection},
    remap::{Component, Remap},
    side::{Layout, Side},
    transfer::{Completion, Interrupt, Release, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::{
        CopyExec, CopyFormat,
        copy::{self, tile},
    },
    regs::pcopy::copy_error,
    surface::{BlockLinear, BlockSize},
};

/// Bits 39:32 of an address.
const ADDRESS_HIGH_MAX: u32 = 0xff;

/// Executes one method; `registers` are those of the channel on the engine.
pub(crate) fn method(registers: &mut Registers, subchannel: u8, method: u16, data: u32) -> Effect {
    let Some(allowed) = table(method) else {
        return Effect::Reject(Rejection::Copy(copy_error::ILLEGAL_METHOD));
    };
    if data & !allowed != 0 {
        return Effect::Reject(Rejection::Copy(copy_error::INVALID_BITFIELD));
    }
    match method {
        0 => registers.bind(subchannel, data as u16),
        copy::NOP | copy::PM_TRIGGER | copy::WRCACHE_FLUSH => {}
        copy::EXEC => return exec(registers, CopyExec::from_bits(data)),
        _ => registers.set(method, data),
    }
    Effect::None
}

/// The bits that a method may have; `None` for one that is not in the table.
fn table(method: u16) -> Option<u32> {
    let in_tile = |first: u16| {
        let after = method.wrapping_sub(first);
        let methods = [
            tile::BLOCK_SIZE,
            tile::WIDTH,
            tile::HEIGHT,
            tile::DEPTH,
            tile::LAYER,
            tile::X,
            tile::Y,
        ];
        methods.iter().find(|(at, _)| *at == after).map(|(_, bits)| *bits)
    };
    Some(match method {
        0 | copy::NOP | copy::PM_TRIGGER | copy::EXEC | copy::WRCACHE_FLUSH => u32::MAX,
        copy::SRC_HIGH | copy::DST_HIGH | copy::QUERY_HIGH => ADDRESS_HIGH_MAX,
        copy::SRC_LOW | copy::DST_LOW | copy::QUERY_LOW | copy::QUERY_COUNTER => u32::MAX,
        copy::SRC_PITCH | copy::DST_PITCH => copy::PITCH_MAX,
        copy::LINE_BYTES => copy::LINE_BYTES_MAX,
        copy::LINES => copy::LINES_MAX,
        copy::FORMAT => CopyFormat::BITS,
        copy::CONSTANT_A | copy::CONSTANT_B => u32::MAX,
        _ => return in_tile(copy::SRC_TILE).or(in_tile(copy::DST_TILE)),
    })
}

fn exec(registers: &Registers, exec: CopyExec) -> Effect {
    let remap = exec.format().then(|| remap(registers));
    let side = |address, pitch, tile, linear, element_bytes: usize| {
        let layout = if linear {
            Layout::Pitch(registers.get(pitch))
        } else {
            tiled(registers, tile, element_bytes as u64)
        };
        Side::new(GpuVa(registers.address(address)), layout)
    };
    let source = side(
        copy::SRC_HIGH,
        copy::SRC_PITCH,
        copy::SRC_TILE,
        exec.src_linear(),
        remap.map_or(1, |remap| remap.source_bytes()),
    );
    let target = side(
        copy::DST_HIGH,
        copy::DST_PITCH,
        copy::DST_TILE,
        exec.dst_linear(),
        remap.map_or(1, |remap| remap.target_bytes()),
    );
    let release = exec.query().then(|| Release {
        at: GpuVa(registers.address(copy::QUERY_HIGH) & !3),
        payload: registers.get(copy::QUERY_COUNTER),
        short: exec.query_short(),
    });
    let completion = Completion {
        release,
        interrupt: Interrupt::None,
    };
    let (elements, lines) = (registers.get(copy::LINE_BYTES), registers.get(copy::LINES));
    Effect::Start(match remap {
        None => Transfer::new(source, target, elements, lines, completion),
        Some(remap) => Transfer::remapped(source, target, remap, elements, lines, completion),
    })
}

/// A tiled surface; what its registers count in elements becomes bytes.
fn tiled(registers: &Registers, first: u16, element_bytes: u64) -> Layout {
    let get = |(at, bits): (u16, u32)| u64::from(registers.get(first + at) & bits);
    let block = BlockSize::from_bits(registers.get(first + tile::BLOCK_SIZE.0)).copy_block(false);
    let size = [
        get(tile::WIDTH) * element_bytes,
        get(tile::HEIGHT),
        get(tile::DEPTH),
    ];
    let origin = [get(tile::X) * element_bytes, get(tile::Y), get(tile::LAYER)];
    Layout::Blocks(BlockLinear::new(block, size), origin)
}

fn remap(registers: &Registers) -> Remap {
    let format = CopyFormat::from_bits(registers.get(copy::FORMAT));
    let constants = [registers.get(copy::CONSTANT_A), registers.get(copy::CONSTANT_B)];
    Remap::new(format, constants, Component::Zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(name: u16, data: u32) -> Option<Rejection> {
        match method(&mut Registers::default(), 0, name, data) {
            Effect::Reject(rejection) => Some(rejection),
            _ => None,
        }
    }

    #[test]
    fn reserved_bit_is_a_dispatch_error() {
        let error = Some(Rejection::Copy(copy_error::INVALID_BITFIELD));
        for (name, first_reserved) in [
            (copy::LINES, 0x2000),
            (copy::LINE_BYTES, 0x1_0000),
            (copy::SRC_PITCH, 0x8_0000),
            (copy::DST_HIGH, 0x100),
            (copy::FORMAT, 0x4_0000),
            (copy::SRC_TILE, 0x1000),
            (copy::DST_TILE + 0x18, 0x2000),
        ] {
            assert_eq!(rejected(name, first_reserved), error);
            assert_eq!(rejected(name, first_reserved - 1), None);
        }
    }

    #[test]
    fn methods_that_are_not_in_the_table_are_dispatch_errors() {
        let error = Some(Rejection::Copy(copy_error::ILLEGAL_METHOD));
        for name in [0x104, 0x21c, 0x23c, 0x240, 0x308, 0x344, 0x400, 0x700] {
            assert_eq!(rejected(name, 0), error);
        }
    }

    #[test]
    fn any_object_and_any_bit_of_exec_are_taken() {
        assert_eq!(rejected(0, 0x9039), None);
        assert_eq!(rejected(copy::EXEC, 0xffff_ffff), None);
    }
}
