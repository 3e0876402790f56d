//! Copy-engine methods as NVIDIA's microcode has them (`cl90b5.h`).
//!
//! Errors are reported as nouveau's microcode reports them (assumption: no source documents the words that NVIDIA's
//! leaves in the scratch registers). A reserved bit and a value without a name are errors of the method that sets
//! them. Surfaces have no edges (assumption).
//!
//! ADDRESSING_MODE reaches physical memory past the page tables. On a card this is how a guest with this microcode
//! would leave its VM; here it reaches the card's VRAM and what the embedder maps for DMA.

use crate::{
    context::Registers,
    engine::{Effect, Rejection},
    remap::{Component, Remap},
    side::{Layout, Side},
    transfer::{Completion, Condition, Interrupt, Release, Transfer},
};
use fermi_spec::{
    addr::{Aperture, GpuVa},
    methods::{
        CopyFormat, RenderEnable, copy_component,
        nvidia_copy::{self as methods, AddressingMode, LaunchDma, surface},
    },
    regs::pcopy::copy_error,
    surface::{BlockLinear, BlockSize},
};

/// Bits 39:32 of an address.
const ADDRESS_HIGH_MAX: u32 = 0xff;
/// Bits of a block size.
const BLOCK_SIZE_BITS: u32 = 0xffff;
/// Bits of RENDER_ENABLE_C.
const RENDER_ENABLE_BITS: u32 = 7;

/// Executes one method; `registers` are those of the channel on the engine.
pub(crate) fn method(registers: &mut Registers, subchannel: u8, method: u16, data: u32) -> Effect {
    if let Err(code) = check(method, data) {
        return Effect::Reject(Rejection::Copy(code));
    }
    match method {
        0 => registers.bind(subchannel, data as u16),
        methods::NOP | methods::PM_TRIGGER | methods::PM_TRIGGER_END => {}
        // The watchdog is ignored: a copy of the model never fails for its time.
        methods::SET_APPLICATION_ID | methods::SET_WATCHDOG_TIMER => {}
        methods::LAUNCH_DMA => return launch(registers, LaunchDma::from_bits(data)),
        methods::RENDER_ENABLE_C => registers.set(method, data ^ Condition::KEPT),
        _ => registers.set(method, data),
    }
    Effect::None
}

/// Whether the method exists and may have this operand; otherwise a code of [`copy_error`].
fn check(method: u16, data: u32) -> Result<(), u32> {
    let (bits, is_named) = match method {
        0
        | methods::NOP
        | methods::PM_TRIGGER
        | methods::PM_TRIGGER_END
        | methods::SET_WATCHDOG_TIMER
        | methods::SEMAPHORE_B
        | methods::SEMAPHORE_PAYLOAD
        | methods::RENDER_ENABLE_B
        | methods::OFFSET_IN_LOWER
        | methods::OFFSET_OUT_LOWER..=methods::LINE_COUNT
        | methods::SET_REMAP_CONST_A
        | methods::SET_REMAP_CONST_B => (u32::MAX, true),
        methods::SET_APPLICATION_ID => {
            let named = data == methods::APPLICATION_NORMAL || data == methods::APPLICATION_LOW_LEVEL;
            (u32::MAX, named)
        }
        methods::SEMAPHORE_A
        | methods::RENDER_ENABLE_A
        | methods::OFFSET_IN_UPPER
        | methods::OFFSET_OUT_UPPER => (ADDRESS_HIGH_MAX, true),
        methods::ADDRESSING_MODE => {
            let mode = AddressingMode::from_bits(data);
            let target = mode.src_target().max(mode.dst_target());
            (AddressingMode::BITS, target <= AddressingMode::TARGET_MAX)
        }
        methods::RENDER_ENABLE_C => (RENDER_ENABLE_BITS, RenderEnable::from_bits(data).is_some()),
        methods::LAUNCH_DMA => (LaunchDma::BITS, is_launch(LaunchDma::from_bits(data))),
        methods::SET_REMAP_COMPONENTS => {
            let selectors = CopyFormat::from_bits(data).selectors();
            let named = selectors
                .iter()
                .all(|selector| *selector <= copy_component::NO_WRITE);
            (CopyFormat::NVIDIA_BITS, named)
        }
        methods::SET_DST_BLOCK_SIZE | methods::SET_SRC_BLOCK_SIZE => (
            BLOCK_SIZE_BITS,
            methods::is_block_size(BlockSize::from_bits(data)),
        ),
        methods::SET_DST_BLOCK_SIZE..=methods::SET_DST_ORIGIN
        | methods::SET_SRC_BLOCK_SIZE..=methods::SET_SRC_ORIGIN => (u32::MAX, true),
        _ => return Err(copy_error::ILLEGAL_METHOD),
    };
    if data & !bits != 0 {
        Err(copy_error::INVALID_BITFIELD)
    } else if !is_named {
        Err(copy_error::INVALID_ENUM)
    } else {
        Ok(())
    }
}

fn is_launch(launch: LaunchDma) -> bool {
    launch.transfer() <= LaunchDma::TRANSFER_MAX
        && launch.semaphore() <= LaunchDma::SEMAPHORE_MAX
        && launch.interrupt() <= LaunchDma::INTERRUPT_MAX
}

fn launch(registers: &Registers, launch: LaunchDma) -> Effect {
    let mode = AddressingMode::from_bits(registers.get(methods::ADDRESSING_MODE));
    let remap = launch.remap().then(|| remap(registers));
    let source = side(
        registers,
        [
            methods::OFFSET_IN_UPPER,
            methods::PITCH_IN,
            methods::SET_SRC_BLOCK_SIZE,
        ],
        launch.src_linear(),
        remap.map_or(1, |remap| remap.source_bytes()),
    );
    let target = side(
        registers,
        [
            methods::OFFSET_OUT_UPPER,
            methods::PITCH_OUT,
            methods::SET_DST_BLOCK_SIZE,
        ],
        launch.dst_linear(),
        remap.map_or(1, |remap| remap.target_bytes()),
    );
    let source = source.in_physical(memory(mode.src_physical(), mode.src_target()));
    let target = target.in_physical(memory(mode.dst_physical(), mode.dst_target()));
    let elements = registers.get(methods::LINE_LENGTH_IN);
    let lines = match (launch.transfer(), launch.multi_line()) {
        (0, _) => 0,
        (_, false) => 1,
        (_, true) => registers.get(methods::LINE_COUNT),
    };
    let completion = completion(registers, launch);
    let transfer = match remap {
        None => Transfer::new(source, target, elements, lines, completion),
        Some(remap) => Transfer::remapped(source, target, remap, elements, lines, completion),
    };
    Effect::Start(transfer.on_condition(condition(registers)))
}

/// A side by its methods of address, pitch and block size.
fn side(
    registers: &Registers,
    [address, pitch, block_size]: [u16; 3],
    linear: bool,
    element_bytes: usize,
) -> Side {
    let layout = if linear {
        Layout::Pitch(registers.get(pitch))
    } else {
        let get = |after: u16| u64::from(registers.get(block_size + after));
        let block = BlockSize::from_bits(registers.get(block_size));
        let tesla = block.gob_height() == BlockSize::GOB_TESLA;
        let element_bytes = element_bytes as u64;
        let size = [
            get(surface::WIDTH) * element_bytes,
            get(surface::HEIGHT),
            get(surface::DEPTH),
        ];
        let origin = get(surface::ORIGIN);
        let origin = [
            (origin & 0xffff) * element_bytes,
            origin >> 16,
            get(surface::LAYER),
        ];
        Layout::Blocks(BlockLinear::new(block.copy_block(tesla), size), origin)
    };
    Side::new(GpuVa(registers.address(address)), layout)
}

/// The memory that physical addresses lie in.
fn memory(physical: bool, target: u8) -> Option<Aperture> {
    physical.then_some(match target {
        0 => Aperture::Vram,
        1 => Aperture::SysCoherent,
        _ => Aperture::SysNonCoherent,
    })
}

fn completion(registers: &Registers, launch: LaunchDma) -> Completion {
    let release = (launch.semaphore() != 0).then(|| Release {
        at: GpuVa(registers.address(methods::SEMAPHORE_A) & !3),
        payload: registers.get(methods::SEMAPHORE_PAYLOAD),
        short: launch.semaphore() == LaunchDma::ONE_WORD,
    });
    Completion {
        release,
        interrupt: match launch.interrupt() {
            0 => Interrupt::None,
            LaunchDma::BLOCKING => Interrupt::Blocking,
            _ => Interrupt::NonBlocking,
        },
    }
}

fn condition(registers: &Registers) -> Condition {
    Condition::of(
        registers.get(methods::RENDER_ENABLE_C),
        GpuVa(registers.address(methods::RENDER_ENABLE_A)),
    )
}

fn remap(registers: &Registers) -> Remap {
    let format = CopyFormat::from_bits(registers.get(methods::SET_REMAP_COMPONENTS));
    let constants = [
        registers.get(methods::SET_REMAP_CONST_A),
        registers.get(methods::SET_REMAP_CONST_B),
    ];
    Remap::new(format, constants, Component::Keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(name: u16, data: u32) -> Option<u32> {
        match method(&mut Registers::default(), 0, name, data) {
            Effect::Reject(Rejection::Copy(code)) => Some(code),
            _ => None,
        }
    }

    #[test]
    fn reserved_bits_are_dispatch_errors() {
        for (name, data) in [
            (methods::LAUNCH_DMA, 0x800),
            (methods::ADDRESSING_MODE, 2),
            (methods::OFFSET_IN_UPPER, 0x100),
            (methods::SET_REMAP_COMPONENTS, 8),
            (methods::SET_SRC_BLOCK_SIZE, 0x1_0000),
        ] {
            assert_eq!(rejected(name, data), Some(copy_error::INVALID_BITFIELD));
        }
    }

    #[test]
    fn values_without_a_name_are_dispatch_errors() {
        for (name, data) in [
            (methods::LAUNCH_DMA, 3),
            (methods::LAUNCH_DMA, 3 << 3),
            (methods::LAUNCH_DMA, 3 << 5),
            (methods::ADDRESSING_MODE, 0x30),
            (methods::RENDER_ENABLE_C, 5),
            (methods::SET_REMAP_COMPONENTS, 7),
            (methods::SET_DST_BLOCK_SIZE, 0x1001),
            (methods::SET_DST_BLOCK_SIZE, 0x1060),
            (methods::SET_DST_BLOCK_SIZE, 0x2000),
            (methods::SET_APPLICATION_ID, 2),
        ] {
            assert_eq!(rejected(name, data), Some(copy_error::INVALID_ENUM));
        }
    }

    #[test]
    fn methods_of_the_other_microcode_are_dispatch_errors() {
        for name in [0x304, 0x30c, 0x208, 0x220, 0x24c, 0x420, 0x724, 0x740] {
            assert_eq!(rejected(name, 0), Some(copy_error::ILLEGAL_METHOD));
        }
    }
}
