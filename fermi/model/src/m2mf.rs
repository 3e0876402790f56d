//! M2MF (class 9039, `cl9039.h`): copies and inline uploads on PGRAPH, between pitch and block-linear surfaces.
//!
//! A block size, an origin or an address that has a reserved bit or a value without a name is a data error of the
//! method that sets it, and the register keeps its value. LAUNCH checks the parts together: a copy that leaves its
//! block-linear surface is a data error and moves nothing. Pitch surfaces have no edges; the page tables decide
//! what they may reach.
//!
//! Unverified: that the check against the edges is made at LAUNCH, and that a copy of no bytes is not checked.

use crate::{
    context::Registers,
    engine::{Effect, InlineWord, Rejection},
    side::{Layout, Side},
    transfer::{Completion, Condition, Interrupt, Release, Transfer},
};
use fermi_spec::{
    addr::GpuVa,
    methods::{M2mfLaunch, RenderEnable, m2mf},
    regs::pgraph::graph_data_error,
    surface::{BlockLinear, BlockSize},
};

/// Bits 39:32 of an address.
const ADDRESS_HIGH_MAX: u32 = 0xff;

/// Why PGRAPH refuses a method: a code of [`graph_data_error`].
type DataError = u32;

/// Executes one method of the class, but the one that binds it; `registers` are those of the channel on PGRAPH.
pub(crate) fn method(registers: &mut Registers, method: u16, data: u32) -> Effect {
    match method {
        m2mf::NOP | m2mf::WAIT_FOR_IDLE | m2mf::SEND_GO_IDLE | m2mf::PM_TRIGGER => Effect::None,
        m2mf::SPARE_FIRST..=m2mf::SPARE_LAST => Effect::None,
        m2mf::DATA => inline_word(registers, data),
        _ => match check(method, data) {
            None => Effect::Reject(Rejection::GraphMethod),
            Some(Err(error)) => Effect::Reject(Rejection::GraphData(error)),
            Some(Ok(())) => {
                keep(registers, method, data);
                if method == m2mf::LAUNCH {
                    launch(registers, M2mfLaunch::from_bits(data))
                } else {
                    Effect::None
                }
            }
        },
    }
}

/// Sets a method register, whatever its value is.
pub(crate) fn keep(registers: &mut Registers, method: u16, data: u32) {
    let kept = match method {
        m2mf::RENDER_ENABLE_C => data ^ Condition::KEPT,
        _ => data,
    };
    registers.set(method, kept);
}

/// Whether `data` may be the value of a method register; `None` for an unknown method.
fn check(method: u16, data: u32) -> Option<Result<(), DataError>> {
    let below = |max| {
        if data > max {
            Err(graph_data_error::INVALID_BITFIELD)
        } else {
            Ok(())
        }
    };
    let named = |is_named: bool| is_named.then_some(()).ok_or(graph_data_error::INVALID_ENUM);
    Some(match method {
        m2mf::LAUNCH => check_launch(data),
        m2mf::SRC_BLOCK_SIZE | m2mf::DST_BLOCK_SIZE => check_block(BlockSize::from_bits(data)),
        m2mf::OFFSET_OUT_HIGH | m2mf::OFFSET_IN_HIGH | m2mf::SEMAPHORE_HIGH | m2mf::RENDER_ENABLE_A => {
            below(ADDRESS_HIGH_MAX)
        }
        m2mf::RENDER_ENABLE_OVERRIDE => named(data <= m2mf::RENDER_OVERRIDE_MAX),
        m2mf::RENDER_ENABLE_C => named(data <= RenderEnable::MAX),
        m2mf::SRC_ORIGIN_X | m2mf::DST_ORIGIN_X => below(m2mf::ORIGIN_X_MAX),
        m2mf::SRC_ORIGIN_Y | m2mf::DST_ORIGIN_Y => below(m2mf::ORIGIN_Y_MAX),
        m2mf::SRC_WIDTH..=m2mf::SRC_LAYER
        | m2mf::DST_WIDTH..=m2mf::DST_LAYER
        | m2mf::OFFSET_OUT_LOW
        | m2mf::OFFSET_IN_LOW..=m2mf::LINE_COUNT
        | m2mf::SEMAPHORE_LOW
        | m2mf::SEMAPHORE_PAYLOAD
        | m2mf::RENDER_ENABLE_B => Ok(()),
        _ => return None,
    })
}

fn check_launch(data: u32) -> Result<(), DataError> {
    let launch = M2mfLaunch::from_bits(data);
    if data & !M2mfLaunch::BITS != 0 {
        Err(graph_data_error::INVALID_BITFIELD)
    } else if launch.completion() > M2mfLaunch::RELEASE_SEMAPHORE
        || launch.interrupt() > M2mfLaunch::INTERRUPT
    {
        Err(graph_data_error::INVALID_ENUM)
    } else {
        Ok(())
    }
}

/// Blocks of M2MF are one GOB wide and have up to 32 GOBs in the other directions.
fn check_block(size: BlockSize) -> Result<(), DataError> {
    if size.into_bits() >> 12 != 0 {
        Err(graph_data_error::INVALID_BITFIELD)
    } else if size.width() != 0 || size.height().max(size.depth()) > BlockSize::NAMED_MAX {
        Err(graph_data_error::INVALID_ENUM)
    } else {
        Ok(())
    }
}

/// Where a side's registers are.
struct SideMethods {
    address: u16,
    pitch: u16,
    block_size: u16,
    origin_x: u16,
}

const SOURCE: SideMethods = SideMethods {
    address: m2mf::OFFSET_IN_HIGH,
    pitch: m2mf::PITCH_IN,
    block_size: m2mf::SRC_BLOCK_SIZE,
    origin_x: m2mf::SRC_ORIGIN_X,
};
const TARGET: SideMethods = SideMethods {
    address: m2mf::OFFSET_OUT_HIGH,
    pitch: m2mf::PITCH_OUT,
    block_size: m2mf::DST_BLOCK_SIZE,
    origin_x: m2mf::DST_ORIGIN_X,
};

/// A side as its registers describe it. Sizes follow the block size, the line follows the byte of the origin.
fn side(registers: &Registers, methods: &SideMethods, linear: bool) -> Side {
    let get = |method| u64::from(registers.get(method));
    let layout = if linear {
        Layout::Pitch(registers.get(methods.pitch))
    } else {
        let size = [4, 8, 12].map(|after| get(methods.block_size + after));
        let block = BlockSize::from_bits(registers.get(methods.block_size)).block();
        let origin = [
            get(methods.origin_x),
            get(methods.origin_x + 4),
            get(methods.block_size + 16),
        ];
        Layout::Blocks(BlockLinear::new(block, size), origin)
    };
    Side::new(GpuVa(registers.address(methods.address)), layout)
}

/// Whether lines of the copy lie in the surface of a block-linear side.
fn check_edges(registers: &Registers, methods: &SideMethods, linear: bool) -> Result<(), DataError> {
    let get = |method| u64::from(registers.get(method));
    let [width, height, depth, layer] = [4, 8, 12, 16].map(|after| get(methods.block_size + after));
    if linear {
        Ok(())
    } else if get(methods.origin_x) + get(m2mf::LINE_LENGTH) > width
        || get(methods.origin_x + 4) + get(m2mf::LINE_COUNT) > height
    {
        Err(graph_data_error::XY_OUT_OF_BOUNDS)
    } else if layer >= depth {
        Err(graph_data_error::Z_OUT_OF_BOUNDS)
    } else {
        Ok(())
    }
}

fn launch(registers: &mut Registers, launch: M2mfLaunch) -> Effect {
    registers.set_inline_position(0, 0);
    let (bytes, lines) = (registers.get(m2mf::LINE_LENGTH), registers.get(m2mf::LINE_COUNT));
    let moves = bytes != 0 && lines != 0;
    if moves {
        let source_is_free = launch.inline() || launch.src_linear();
        let checked = check_edges(registers, &SOURCE, source_is_free)
            .and_then(|()| check_edges(registers, &TARGET, launch.dst_linear()));
        if let Err(error) = checked {
            // The data words that follow have no destination.
            registers.set(m2mf::LAUNCH, 0);
            return Effect::Reject(Rejection::GraphData(error));
        }
    }
    if launch.inline() && moves {
        return Effect::None;
    }
    let transfer = Transfer::new(
        side(registers, &SOURCE, launch.src_linear()),
        side(registers, &TARGET, launch.dst_linear()),
        bytes,
        lines,
        completion(registers, launch),
    );
    Effect::Start(transfer.on_condition(condition(registers)))
}

/// Whether a copy takes place. Inline data always does (assumption).
fn condition(registers: &Registers) -> Condition {
    let condition = Condition::of(
        registers.get(m2mf::RENDER_ENABLE_C),
        GpuVa(registers.address(m2mf::RENDER_ENABLE_A)),
    );
    let mode = match registers.get(m2mf::RENDER_ENABLE_OVERRIDE) {
        0 => condition.mode,
        1 => RenderEnable::True,
        _ => RenderEnable::False,
    };
    Condition { mode, ..condition }
}

fn completion(registers: &Registers, launch: M2mfLaunch) -> Completion {
    let releases = launch.completion() == M2mfLaunch::RELEASE_SEMAPHORE;
    let release = releases.then(|| Release {
        at: GpuVa(registers.address(m2mf::SEMAPHORE_HIGH) & !3),
        payload: registers.get(m2mf::SEMAPHORE_PAYLOAD),
        short: launch.semaphore_short(),
    });
    Completion {
        release,
        interrupt: match launch.interrupt() {
            M2mfLaunch::INTERRUPT => Interrupt::NonBlocking,
            _ => Interrupt::None,
        },
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
    let length = (bytes - byte).min(4);
    let (next_line, next_byte) = if byte + length == bytes {
        (line + 1, 0)
    } else {
        (line, byte + length)
    };
    registers.set_inline_position(next_line, next_byte);
    Effect::Inline(InlineWord {
        target: side(registers, &TARGET, launch.dst_linear()),
        line,
        byte,
        word: data.to_le_bytes(),
        bytes: length as usize,
        completion: (next_line == lines).then(|| completion(registers, launch)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_line_of_six_bytes_takes_two_words() {
        let mut registers = Registers::default();
        for (name, value) in [
            (m2mf::OFFSET_OUT_LOW, 0x1000),
            (m2mf::PITCH_OUT, 0x100),
            (m2mf::LINE_LENGTH, 6),
            (m2mf::LINE_COUNT, 2),
            (m2mf::LAUNCH, 0x111),
        ] {
            assert!(matches!(method(&mut registers, name, value), Effect::None));
        }
        let mut store = || match method(&mut registers, m2mf::DATA, 0) {
            Effect::Inline(word) => {
                let at = word.target.run(word.line, u64::from(word.byte)).0;
                (at.0, word.bytes, word.completion.is_some())
            }
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
