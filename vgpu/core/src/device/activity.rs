//! When a guest uses its GPU, as far as that is known.

use serde::{Deserialize, Serialize};

use crate::event::Tick;
use crate::inspect::{Inspect, Tree};

/// What is known of when a guest uses its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Activity {
    /// Doorbells of all its channels that brought work, since the VM was attached. A guest that waits for its work before it submits more
    /// rings as often as work ends.
    pub(crate) doorbells: u64,
    /// When the last one came.
    pub(crate) rang_at: Option<Tick>,
    /// When it last used the GPU, as far as is known: rang, took memory, or had work on the card.
    pub(crate) used_at: Tick,
    /// It has rested for so long that what it uses is others' as far as nothing protects it.
    pub(crate) lends: bool,
}

impl Inspect for Activity {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("doorbells", self.doorbells as usize);
        if let Some(at) = self.rang_at {
            tree.age("rang", at);
        }
        tree.age("used", self.used_at);
        tree.flag("lends", self.lends);
    }
}
