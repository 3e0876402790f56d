//! What a chunk went through since it got memory: what policies judge it by.

use serde::{Deserialize, Serialize};

use crate::event::Tick;
use crate::memory::Reach;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) backed_at: Option<Tick>,
    pub(crate) moved_at: Option<Tick>,
    pub(crate) moves: u32,
    pub(crate) touched_at: Option<Tick>,
    /// When the card last got an entry of a ring whose launches were known to use it, and how many those were.
    #[serde(default)]
    pub(crate) launched_at: Option<Tick>,
    #[serde(default)]
    pub(crate) launches: u32,
    /// The reach that was last noted, and when it became so.
    pub(crate) reach: Reach,
    pub(crate) reach_since: Tick,
}

impl History {
    /// Starts anew: the chunk has no memory any more.
    pub(crate) fn clear(&mut self) {
        (self.backed_at, self.moved_at, self.moves, self.touched_at) = (None, None, 0, None);
        (self.launched_at, self.launches) = (None, 0);
    }
}
