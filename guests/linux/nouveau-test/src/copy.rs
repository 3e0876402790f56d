//! Pushes that copy: M2MF and copy engine, linear and block-linear, and data in the push itself.
//!
//! The methods are those of `fermi_spec::methods`; a copy larger than one launch is split here, as the driver does.

use fermi_spec::methods::{CopyExec, M2mfLaunch, copy, m2mf};

use crate::layout::BlockShape;
use crate::push::{Push, Unit, high_low};

/// Bytes of a line when a plain range is copied.
const LINE: u32 = 4096;
/// Words of inline data under one launch.
const INLINE_WORDS_MAX: usize = 1024;

/// The unit that copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copier {
    /// M2MF of the graphics engine.
    M2mf,
    /// A copy engine with nouveau's microcode.
    Engine(Unit),
}

impl Copier {
    /// The three copying units.
    pub(crate) const ALL: [Self; 3] = [Self::M2mf, Self::Engine(Unit::Copy0), Self::Engine(Unit::Copy1)];

    /// The unit whose object the channel needs.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Self::M2mf => Unit::M2mf,
            Self::Engine(unit) => unit,
        }
    }

    /// Most lines of one launch.
    fn lines_max(self) -> u32 {
        match self {
            Self::M2mf => m2mf::LINE_COUNT_MAX,
            Self::Engine(_) => copy::LINES_MAX,
        }
    }
}

/// One side of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    /// Lines at an address, a pitch apart.
    Pitch {
        /// Address of the first byte.
        address: u64,
        /// Bytes from one line to the next.
        pitch: u32,
    },
    /// A rectangle of a block-linear surface.
    Blocks(Blocks),
}

/// A rectangle of a block-linear surface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Address of the surface.
    pub(crate) address: u64,
    /// Shape of its blocks.
    pub(crate) shape: BlockShape,
    /// Bytes of a line.
    pub(crate) width: u32,
    /// Lines of a layer.
    pub(crate) height: u32,
    /// Layers of the surface.
    pub(crate) depth: u32,
    /// First byte of the rectangle in its lines.
    pub(crate) x: u32,
    /// First line of the rectangle.
    pub(crate) y: u32,
    /// Layer of the rectangle.
    pub(crate) z: u32,
}

/// Bytes of a line and lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Bytes of a line.
    pub(crate) line: u32,
    /// Number of lines.
    pub(crate) lines: u32,
}

/// Copies `bytes` from `source` to `target`.
pub(crate) fn copy_range(push: &mut Push, who: Copier, source: u64, target: u64, bytes: u64) {
    let lines = (bytes / u64::from(LINE)) as u32;
    let rest = (bytes % u64::from(LINE)) as u32;
    let side = |address| Side::Pitch { address, pitch: LINE };
    if lines > 0 {
        copy_lines(
            push,
            who,
            side(source),
            side(target),
            Extent { line: LINE, lines },
        );
    }
    if rest > 0 {
        let done = bytes - u64::from(rest);
        let extent = Extent { line: rest, lines: 1 };
        copy_lines(push, who, side(source + done), side(target + done), extent);
    }
}

/// Copies a rectangle.
pub(crate) fn copy_lines(push: &mut Push, who: Copier, source: Side, target: Side, extent: Extent) {
    let mut done = 0;
    while done < extent.lines {
        let part = Extent {
            line: extent.line,
            lines: (extent.lines - done).min(who.lines_max()),
        };
        let (source, target) = (source.down(done), target.down(done));
        match who {
            Copier::M2mf => launch_m2mf(push, source, target, part),
            Copier::Engine(unit) => launch_engine(push, unit, source, target, part),
        }
        done += part.lines;
    }
}

impl Side {
    /// The same from `lines` further down.
    fn down(self, lines: u32) -> Self {
        match self {
            Self::Pitch { address, pitch } => Self::Pitch {
                address: address + u64::from(lines) * u64::from(pitch),
                pitch,
            },
            Self::Blocks(blocks) => Self::Blocks(Blocks {
                y: blocks.y + lines,
                ..blocks
            }),
        }
    }

    fn address(self) -> u64 {
        match self {
            Self::Pitch { address, .. } => address,
            Self::Blocks(blocks) => blocks.address,
        }
    }

    /// The pitch; of no meaning for blocks.
    fn pitch(self) -> u32 {
        match self {
            Self::Pitch { pitch, .. } => pitch,
            Self::Blocks(_) => 0,
        }
    }

    fn blocks(self) -> Option<Blocks> {
        match self {
            Self::Pitch { .. } => None,
            Self::Blocks(blocks) => Some(blocks),
        }
    }
}

fn launch_m2mf(push: &mut Push, source: Side, target: Side, extent: Extent) {
    let tiles = |blocks: Blocks| {
        [
            blocks.shape.mode(),
            blocks.width,
            blocks.height,
            blocks.depth,
            blocks.z,
        ]
    };
    if let Some(blocks) = source.blocks() {
        push.unit(Unit::M2mf, m2mf_tiled::IN, &tiles(blocks));
        push.unit(Unit::M2mf, m2mf_tiled::IN_ORIGIN, &[blocks.x, blocks.y]);
    }
    if let Some(blocks) = target.blocks() {
        push.unit(Unit::M2mf, m2mf_tiled::OUT, &tiles(blocks));
        push.unit(Unit::M2mf, m2mf_tiled::OUT_ORIGIN, &[blocks.x, blocks.y]);
    }
    let launch = M2mfLaunch::new()
        .with_src_linear(source.blocks().is_none())
        .with_dst_linear(target.blocks().is_none());
    let pitches = [source.pitch(), target.pitch(), extent.line, extent.lines];
    push.unit(Unit::M2mf, m2mf::OFFSET_OUT_HIGH, &high_low(target.address()))
        .unit(Unit::M2mf, m2mf::OFFSET_IN_HIGH, &high_low(source.address()))
        .unit(Unit::M2mf, m2mf::PITCH_IN, &pitches)
        .unit(Unit::M2mf, m2mf::LAUNCH, &[launch.into_bits()]);
}

fn launch_engine(push: &mut Push, unit: Unit, source: Side, target: Side, extent: Extent) {
    let tiles = |blocks: Blocks| {
        [
            blocks.shape.mode(),
            blocks.width,
            blocks.height,
            blocks.depth,
            blocks.z,
            blocks.x,
            blocks.y,
        ]
    };
    if let Some(blocks) = source.blocks() {
        push.unit(unit, copy_tiled::SRC, &tiles(blocks));
    }
    if let Some(blocks) = target.blocks() {
        push.unit(unit, copy_tiled::DST, &tiles(blocks));
    }
    let exec = CopyExec::new()
        .with_src_linear(source.blocks().is_none())
        .with_dst_linear(target.blocks().is_none());
    let [source_high, source_low] = high_low(source.address());
    let [target_high, target_low] = high_low(target.address());
    push.unit(
        unit,
        copy::SRC_HIGH,
        &[
            source_high,
            source_low,
            target_high,
            target_low,
            source.pitch(),
            target.pitch(),
            extent.line,
            extent.lines,
        ],
    )
    .unit(unit, copy::EXEC, &[exec.into_bits()]);
}

/// Writes `words` to `target` from the push itself.
pub(crate) fn upload_inline(push: &mut Push, target: u64, words: &[u32]) {
    let launch = M2mfLaunch::new()
        .with_inline(true)
        .with_src_linear(true)
        .with_dst_linear(true);
    for (index, part) in words.chunks(INLINE_WORDS_MAX).enumerate() {
        let at = target + (index * INLINE_WORDS_MAX * 4) as u64;
        push.unit(Unit::M2mf, m2mf::OFFSET_OUT_HIGH, &high_low(at))
            .unit(Unit::M2mf, m2mf::LINE_LENGTH, &[part.len() as u32 * 4, 1])
            .unit(Unit::M2mf, m2mf::LAUNCH, &[launch.into_bits()])
            .stream(Unit::M2mf.subchannel(), m2mf::DATA, part);
    }
}

/// Methods of M2MF for block-linear surfaces (envytools `rnndb/graph/gf100_m2mf.xml`).
mod m2mf_tiled {
    /// Source shape, bytes of a line, lines, layers, layer.
    pub(super) const IN: u16 = 0x204;
    /// Target, the same five.
    pub(super) const OUT: u16 = 0x220;
    /// First byte and line of the source rectangle.
    pub(super) const IN_ORIGIN: u16 = 0x344;
    /// First byte and line of the target rectangle.
    pub(super) const OUT_ORIGIN: u16 = 0x34c;
}

/// Methods of nouveau's copy microcode for block-linear surfaces (`ce/fuc/com.fuc`).
mod copy_tiled {
    /// Source shape, bytes of a line, lines, layers, layer, first byte, first line.
    pub(super) const SRC: u16 = 0x200;
    /// Target, the same seven.
    pub(super) const DST: u16 = 0x220;
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::pushbuffer::Header;

    /// Data words of every launch of `method` on `unit`'s subchannel, by a walk over the headers.
    fn operands(push: &Push, unit: Unit, wanted: u16) -> Vec<u32> {
        let mut found = Vec::new();
        let mut words = push.words().iter().copied();
        while let Some(word) = words.next() {
            let (Header::Incrementing(target, count) | Header::NonIncrementing(target, count)) =
                Header::from_bits(word)
            else {
                panic!("header {word:#x}");
            };
            let is_fixed = matches!(Header::from_bits(word), Header::NonIncrementing(..));
            for index in 0..count {
                let data = words.next().expect("data follows its header");
                let step = if is_fixed { 0 } else { 4 * index };
                if target.subchannel == unit.subchannel() && target.method + step == wanted {
                    found.push(data);
                }
            }
        }
        found
    }

    #[test]
    fn long_range_is_split_into_launches_and_a_rest() {
        let mut push = Push::new();
        copy_range(&mut push, Copier::M2mf, 0, 1 << 32, 2048 * 4096 + 12);
        assert_eq!(operands(&push, Unit::M2mf, m2mf::LINE_COUNT), [2047, 1, 1]);
        assert_eq!(operands(&push, Unit::M2mf, m2mf::LINE_LENGTH), [4096, 4096, 12]);
        assert_eq!(operands(&push, Unit::M2mf, m2mf::OFFSET_OUT_HIGH), [1, 1, 1]);
    }

    #[test]
    fn engine_copy_of_a_line_has_nouveaus_operand() {
        let mut push = Push::new();
        copy_range(&mut push, Copier::Engine(Unit::Copy1), 0, 4096, 4096);
        assert_eq!(operands(&push, Unit::Copy1, copy::EXEC), [0x110]);
    }

    #[test]
    fn inline_data_is_all_of_the_words() {
        let words: Vec<u32> = (0..1500).collect();
        let mut push = Push::new();
        upload_inline(&mut push, 0x1000, &words);
        assert_eq!(operands(&push, Unit::M2mf, m2mf::DATA), words);
        assert_eq!(operands(&push, Unit::M2mf, m2mf::LINE_LENGTH), [4096, 476 * 4]);
    }
}
