//! Linear copies by the copy engines and M2MF.
//!
//! Methods of the copy engines are those of nouveau's microcode (`ce/fuc/com.fuc`), M2MF's those of `cl9039.h`.

use super::{ChannelId, Driver, DriverError, Fence, Object};
use crate::GuestBus;
use fermi_spec::addr::VA_BITS;
use fermi_spec::engine::Engine;
use fermi_spec::methods::{CopyExec, M2mfLaunch, class, copy, m2mf};
use fermi_spec::pushbuffer::incrementing;

/// Bytes of a line of the copy engines: the largest power of two in LINE_BYTES' 16 bits.
const COPY_LINE: u64 = 32 << 10;
/// Bytes of a line of M2MF, as nouveau has it.
const M2MF_LINE: u64 = 4 << 10;
const COPY_SUBCHANNEL: u8 = 4;
const M2MF_SUBCHANNEL: u8 = 3;

/// The unit that copies, and its channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyPath {
    /// Copy engine 0, on the first channel.
    Copy0,
    /// Copy engine 1, on the second channel.
    Copy1,
    /// M2MF of PGRAPH, on the first channel.
    M2mf,
}

impl CopyPath {
    /// All three paths.
    pub const ALL: [Self; 3] = [Self::Copy0, Self::Copy1, Self::M2mf];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy0 => "copy0",
            Self::Copy1 => "copy1",
            Self::M2mf => "m2mf",
        }
    }
}

/// A linear copy between two virtual addresses that do not overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// First byte read.
    pub source: u64,
    /// First byte written.
    pub target: u64,
    /// Length, not zero.
    pub bytes: u64,
}

/// Two channels in one address space, one for each copy engine, the first with M2MF as well.
///
/// Copies of one path run in the order in which they were queued; those of different paths in any order until
/// [`Self::finish`].
pub struct Copier {
    first: ChannelId,
    second: ChannelId,
    copies: u64,
    bytes: u64,
}

impl Copier {
    /// Creates the channels.
    pub fn new(driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<Self, DriverError> {
        let object = |subchannel, class, engine| Object {
            subchannel,
            class,
            engine,
        };
        let first = [
            object(COPY_SUBCHANNEL, class::COPY, Engine::Copy0),
            object(M2MF_SUBCHANNEL, class::M2MF, Engine::Graph),
        ];
        let second = [object(COPY_SUBCHANNEL, class::COPY_1, Engine::Copy1)];
        Ok(Self {
            first: driver.create_channel(bus, &first)?,
            second: driver.create_channel(bus, &second)?,
            copies: 0,
            bytes: 0,
        })
    }

    /// Queues a copy; it starts at the latest with [`Self::submit`].
    pub fn copy(
        &mut self,
        driver: &mut Driver,
        bus: &mut dyn GuestBus,
        path: CopyPath,
        copy: Copy,
    ) -> Result<(), DriverError> {
        check(copy)?;
        let channel = self.channel(path);
        let mut done = 0;
        while done < copy.bytes {
            let part = Copy {
                source: copy.source + done,
                target: copy.target + done,
                bytes: copy.bytes - done,
            };
            let shape = Shape::of(path, part.bytes);
            match path {
                CopyPath::M2mf => driver.queue(bus, channel, &m2mf_words(part, shape))?,
                CopyPath::Copy0 | CopyPath::Copy1 => {
                    driver.queue(bus, channel, &copy_words(part, shape))?;
                }
            }
            done += shape.line * shape.lines;
        }
        self.copies += 1;
        self.bytes += copy.bytes;
        Ok(())
    }

    /// Submits the queued copies on both channels.
    pub fn submit(&mut self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<[Fence; 2], DriverError> {
        Ok([driver.submit(bus, self.first)?, driver.submit(bus, self.second)?])
    }

    /// Submits the queued copies and waits until all are done.
    pub fn finish(&mut self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        let fences = self.submit(driver, bus)?;
        fences.into_iter().try_for_each(|fence| driver.wait(bus, fence))
    }

    /// Destroys the channels.
    pub fn destroy(self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        driver.destroy_channel(bus, self.first)?;
        driver.destroy_channel(bus, self.second)
    }

    /// The channel of a path.
    pub fn channel(&self, path: CopyPath) -> ChannelId {
        match path {
            CopyPath::Copy0 | CopyPath::M2mf => self.first,
            CopyPath::Copy1 => self.second,
        }
    }

    /// Copies queued so far.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Bytes of the copies queued so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn check(copy: Copy) -> Result<(), DriverError> {
    let is_inside = |start: u64| {
        start
            .checked_add(copy.bytes)
            .is_some_and(|end| end <= 1 << VA_BITS)
    };
    if copy.bytes != 0 && is_inside(copy.source) && is_inside(copy.target) {
        return Ok(());
    }
    let Copy {
        source,
        target,
        bytes,
    } = copy;
    Err(DriverError::BadCopy {
        source,
        target,
        bytes,
    })
}

/// The rectangle of one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    line: u64,
    lines: u64,
}

impl Shape {
    /// The largest launch for the first of `bytes` bytes: whole lines, or one shorter line.
    fn of(path: CopyPath, bytes: u64) -> Self {
        let (line, lines_max) = match path {
            CopyPath::M2mf => (M2MF_LINE, u64::from(m2mf::LINE_COUNT_MAX)),
            CopyPath::Copy0 | CopyPath::Copy1 => (COPY_LINE, u64::from(copy::LINES_MAX)),
        };
        match bytes / line {
            0 => Self {
                line: bytes,
                lines: 1,
            },
            whole => Self {
                line,
                lines: whole.min(lines_max),
            },
        }
    }
}

fn copy_words(part: Copy, shape: Shape) -> [u32; 11] {
    let exec = CopyExec::new().with_src_linear(true).with_dst_linear(true);
    [
        incrementing(COPY_SUBCHANNEL, copy::SRC_HIGH, 8),
        (part.source >> 32) as u32,
        part.source as u32,
        (part.target >> 32) as u32,
        part.target as u32,
        shape.line as u32,
        shape.line as u32,
        shape.line as u32,
        shape.lines as u32,
        incrementing(COPY_SUBCHANNEL, copy::EXEC, 1),
        exec.into_bits(),
    ]
}

fn m2mf_words(part: Copy, shape: Shape) -> [u32; 12] {
    // The flag for a short semaphore is in every launch of nouveau and gdev, with or without a semaphore.
    let launch = M2mfLaunch::new()
        .with_src_linear(true)
        .with_dst_linear(true)
        .with_semaphore_short(true);
    [
        incrementing(M2MF_SUBCHANNEL, m2mf::OFFSET_OUT_HIGH, 2),
        (part.target >> 32) as u32,
        part.target as u32,
        incrementing(M2MF_SUBCHANNEL, m2mf::OFFSET_IN_HIGH, 6),
        (part.source >> 32) as u32,
        part.source as u32,
        shape.line as u32,
        shape.line as u32,
        shape.line as u32,
        shape.lines as u32,
        incrementing(M2MF_SUBCHANNEL, m2mf::LAUNCH, 1),
        launch.into_bits(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn launches_add_up_and_fit_their_fields(bytes in 1u64..1 << 32, path in 0usize..3) {
            let path = CopyPath::ALL[path];
            let mut left = bytes;
            let mut launches = 0;
            while left > 0 {
                let shape = Shape::of(path, left);
                prop_assert!(shape.line <= u64::from(copy::LINE_BYTES_MAX));
                prop_assert!((1..=u64::from(copy::LINES_MAX)).contains(&shape.lines));
                left = left.checked_sub(shape.line * shape.lines).unwrap();
                launches += 1;
            }
            prop_assert!(launches <= bytes / (8 << 20) + 3);
        }
    }

    #[test]
    fn copy_beyond_the_address_space_is_refused() {
        let copy = Copy {
            source: 0,
            target: (1 << 40) - 1,
            bytes: 2,
        };
        assert!(check(copy).is_err());
    }
}
