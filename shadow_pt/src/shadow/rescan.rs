//! Following a guest's tables without what was learnt before.

use super::ShadowSpace;

impl ShadowSpace {
    /// Every slot counts as changed: the next build writes each entry anew, as a mediator without snapshots would. Nothing while a refresh that
    /// was begun has not finished: it began with this.
    pub fn build_anew(&mut self) {
        if self.progress.marked.is_some() {
            return;
        }
        for mirror in self.mirrors.values_mut() {
            mirror.guest.change_all();
        }
    }
}
