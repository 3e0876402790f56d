//! Which part of a vGPU's window file is which window.

use fermi_spec::bar::Bar;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES};

/// The windows of a vGPU that a client may map, in one file: BAR3, BAR1, PRAMIN, in this order.
///
/// A page that several windows show lives in BAR3 or BAR1 rather than in PRAMIN ([`Living`](crate::Living)), so these come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowLayout {
    bar1_bytes: u64,
    bar3_bytes: u64,
}

/// A window, or the part of a BAR that is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowPart {
    /// Bytes into the BAR.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes into the window file.
    pub file_offset: u64,
}

impl WindowLayout {
    /// That of a vGPU whose BARs are of these sizes, in bytes.
    pub fn new(bar1_bytes: u64, bar3_bytes: u64) -> Self {
        Self {
            bar1_bytes,
            bar3_bytes,
        }
    }

    /// Length of the file.
    pub fn bytes(self) -> u64 {
        self.part(Bar::Bar0).file_offset + u64::from(PRAMIN_BYTES)
    }

    /// What of a BAR is in the file.
    pub fn part(self, bar: Bar) -> WindowPart {
        let (offset, bytes, file_offset) = match bar {
            Bar::Bar3 => (0, self.bar3_bytes, 0),
            Bar::Bar1 => (0, self.bar1_bytes, self.bar3_bytes),
            Bar::Bar0 => (
                PRAMIN_BASE.into(),
                PRAMIN_BYTES.into(),
                self.bar3_bytes.saturating_add(self.bar1_bytes),
            ),
        };
        WindowPart {
            offset,
            bytes,
            file_offset,
        }
    }

    /// Bytes into the file of an access that lies within a window; `None` for any other.
    pub fn place(self, bar: Bar, offset: u64, bytes: u64) -> Option<u64> {
        let part = self.part(bar);
        let within = offset.checked_sub(part.offset)?;
        let is_inside = within.checked_add(bytes).is_some_and(|end| end <= part.bytes);
        is_inside.then(|| part.file_offset + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_each_other_and_only_accesses_within_one_have_a_place() {
        let layout = WindowLayout::new(0x8000, 0x4000);
        assert_eq!(layout.place(Bar::Bar3, 0x3ffc, 4), Some(0x3ffc));
        assert_eq!(layout.place(Bar::Bar3, 0x3ffd, 4), None);
        assert_eq!(layout.place(Bar::Bar1, 0, 4), Some(0x4000));
        assert_eq!(layout.place(Bar::Bar0, 0x70_0000, 4), Some(0xc000));
        assert_eq!(layout.place(Bar::Bar0, 0x6f_fffc, 4), None);
        assert_eq!(layout.place(Bar::Bar0, 0x80_0000, 4), None);
        assert_eq!(layout.place(Bar::Bar1, u64::MAX, 4), None);
        assert_eq!(layout.bytes(), 0xc000 + 0x10_0000);
    }
}
