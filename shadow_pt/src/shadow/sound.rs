//! What a space relies on, checked when one is read.

use super::{Changes, HOST_ENTRY, Progress, ShadowConfig, ShadowSpace};
use crate::build::Mirror;
use crate::saved::{self, Unsound};
use fermi_spec::pte::PD_ENTRIES;

impl ShadowSpace {
    /// Checks a space that was read from somewhere, before anything else is done with it. `config` is what it was made
    /// with.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(&self, config: ShadowConfig) -> Result<(), Unsound> {
        Unsound::unless(self.config == config, "it has other bounds")?;
        let is_guests = |index: &u16| *index < HOST_ENTRY;
        Unsound::unless(
            self.mirrors.keys().chain(&self.refused).all(is_guests),
            "a directory has no entry of that number for a guest",
        )?;
        self.guest.check()?;
        let Changes {
            compared, changed, ..
        } = self.changes;
        Unsound::unless(compared.max(changed) < u64::MAX / 2, "a count is out of range")?;
        let Progress {
            marked,
            sought,
            built,
        } = &self.progress;
        let is_place = |number: u16| usize::from(number) <= PD_ENTRIES;
        Unsound::unless(
            is_place(marked.unwrap_or(0)) && is_place(*sought) && is_place(built.0),
            "what was left off is out of range",
        )?;
        for table in self.tables() {
            saved::check_table(table.at, table.bytes)?;
        }
        for (&index, mirror) in &self.mirrors {
            mirror.check(index)?;
        }
        self.index
            .check(self.guest_frames(), self.mirrors.values().flat_map(Mirror::edges))
    }
}
