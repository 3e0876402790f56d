//! What decides what windows show: registers, and where the windows lie in the window file.

use std::ops::Range;

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::instance::{CHANNELS, USERD_BYTES};
use serde::{Deserialize, Serialize};

use crate::device::units::Units;
use crate::device::window_layout::WindowLayout;

/// The registers that say what windows show, without what lies in memory. As long as the guest has not said what PRAMIN shows, it shows
/// nothing: else the first MiB of VRAM would be instance memory for drivers that never use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) bar3: u32,
    pub(super) pramin: Option<u32>,
    #[serde(default)]
    pub(super) bar1: u32,
    /// Where USERD lies in BAR1.
    #[serde(default)]
    pub(super) userd: Option<u64>,
}

impl Seen {
    pub(super) fn of(units: &Units) -> Self {
        let pbus = &units.pbus;
        Self {
            bar3: pbus.bar3.into_bits(),
            pramin: pbus.is_pramin_placed.then(|| pbus.pramin.into_bits()),
            bar1: pbus.bar1.into_bits(),
            userd: units.pfifo.userd_window(),
        }
    }
}

/// Windows whose tables are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reread {
    pub(super) bar1: bool,
    pub(super) bar3: bool,
}

impl Reread {
    pub(super) fn any(self) -> bool {
        self.bar1 || self.bar3
    }
}

/// Places of the windows in the window file, in pages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Places {
    pub(super) bar3: Range<u32>,
    pub(super) bar1: Range<u32>,
    pub(super) pramin: Range<u32>,
}

impl Places {
    pub(super) fn of(layout: WindowLayout) -> Self {
        let pages = |bytes: u64| u32::try_from(bytes / SMALL_PAGE).unwrap_or(u32::MAX);
        let places = |bar: Bar| {
            let part = layout.part(bar);
            pages(part.file_offset)..pages(part.file_offset.saturating_add(part.bytes))
        };
        Self {
            bar3: places(Bar::Bar3),
            bar1: places(Bar::Bar1),
            pramin: places(Bar::Bar0),
        }
    }

    /// Places of USERD, which shows what no table says. `None` if it does not lie within BAR1.
    pub(super) fn userd(&self, at: u64) -> Option<Range<u32>> {
        let first = u32::try_from(at / SMALL_PAGE)
            .ok()?
            .checked_add(self.bar1.start)?;
        let end = first.checked_add((CHANNELS as u64 * USERD_BYTES / SMALL_PAGE) as u32)?;
        (end <= self.bar1.end).then_some(first..end)
    }
}
