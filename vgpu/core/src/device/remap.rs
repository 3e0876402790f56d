//! How far entries were pointed to memory that has another place (`manager::pointing`), and a range of RAM that comes or goes.

use fermi_spec::addr::Gpa;
use serde::{Deserialize, Serialize};
use shadow_pt::{RedirectAt, TableRange};

use super::{Queued, SpaceId};
use crate::event::Tick;

/// How far the entries of a VM's spaces were looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pointing {
    /// The space that comes next, and how far it was looked at.
    pub(crate) space: SpaceId,
    pub(crate) at: RedirectAt,
    /// When the next step may be taken.
    pub(crate) due: Tick,
}

/// A range of RAM that comes or goes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Remap {
    pub(crate) request: Queued,
    pub(crate) gpa: Gpa,
    pub(crate) bytes: u64,
    pub(crate) is_going: bool,
    pub(crate) stage: RemapStage,
    /// Shadow tables given up with those that were.
    pub(crate) freed: Vec<TableRange>,
}

impl Remap {
    pub(crate) fn new(request: Queued, (gpa, bytes): (Gpa, u64), is_going: bool) -> Self {
        Self {
            request,
            gpa,
            bytes,
            is_going,
            stage: match is_going {
                true => RemapStage::Pointing(Pointing::default()),
                false => RemapStage::Mapping { next: gpa },
            },
            freed: Vec::new(),
        }
    }

    /// Whether it waits for nothing but its VM's turn.
    pub(crate) fn can_go_on(&self) -> bool {
        self.stage != RemapStage::Flushing
    }
}

/// How far a range of RAM has come or gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum RemapStage {
    /// Maps come onto the bus, from that address on.
    Mapping { next: Gpa },
    /// Entries from there on are still to be changed.
    Pointing(Pointing),
    /// None is left. The card is to forget those of what goes.
    Flushing,
    /// It has: the maps go off the bus.
    Releasing,
}
