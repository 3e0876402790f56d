//! The errors of one unit as its guest sees them: one at a time, until it has acknowledged it.
//!
//! ```text
//!  the card told of one ──► shown ──guest acknowledges all of it──► the next is shown
//!        └ another is shown: waits       └ of this channel none is left: it goes on
//! ```
//!
//! A channel that made an error stands still, but it may make a few more before it does. They wait here, so that the guest sees each with its
//! own registers. There is room for [`WAITING_MAX`]; a channel whose error finds none is stopped for good.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Most errors of a unit that wait for the guest to acknowledge the one before.
const WAITING_MAX: usize = 16;

/// Whose error it is: the guest's channel, and the page of guest VRAM with its instance block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Blame {
    pub(crate) channel: u8,
    pub(crate) instance: u32,
}

/// Errors of one unit.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Errors<E> {
    /// What the registers show: of the last error, when all were acknowledged.
    pub(super) shown: E,
    /// Whose error is shown, until it is acknowledged.
    blame: Option<Blame>,
    waiting: VecDeque<(Blame, E)>,
}

impl<E: Default> Errors<E> {
    /// The card told of an error. `false`: there is no room for it.
    pub(super) fn raise(&mut self, blame: Blame, error: E) -> bool {
        if self.blame.is_none() {
            (self.shown, self.blame) = (error, Some(blame));
            return true;
        }
        let fits = self.waiting.len() < WAITING_MAX;
        if fits {
            self.waiting.push_back((blame, error));
        }
        fits
    }

    /// Whose error is shown.
    pub(super) fn blame(&self) -> Option<Blame> {
        self.blame
    }

    /// The guest has acknowledged all of what is shown: the next one comes. `false` if it was none.
    pub(super) fn seen(&mut self) -> bool {
        let was_shown = self.blame.take().is_some();
        if let Some((blame, error)) = self.waiting.pop_front() {
            (self.shown, self.blame) = (error, Some(blame));
        }
        was_shown
    }

    /// Whether an error of that channel is shown or waits.
    pub(super) fn concerns(&self, channel: u8) -> bool {
        let waiting = self.waiting.iter().map(|(blame, _)| *blame);
        self.blame
            .into_iter()
            .chain(waiting)
            .any(|blame| blame.channel == channel)
    }

    /// The unit was reset. `true` if an error was lost by that.
    pub(super) fn clear(&mut self) -> bool {
        std::mem::take(self).blame.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(channel: u8) -> Blame {
        Blame {
            channel,
            instance: 0x100 + u32::from(channel),
        }
    }

    #[test]
    fn errors_are_shown_in_turn_and_the_last_one_stays_to_be_read() {
        let mut errors = Errors::default();
        assert!(errors.raise(of(1), 10) && errors.raise(of(2), 20));
        assert_eq!((errors.shown, errors.blame()), (10, Some(of(1))));
        assert!(errors.concerns(1) && errors.concerns(2) && !errors.concerns(3));
        assert!(errors.seen());
        assert_eq!((errors.shown, errors.blame()), (20, Some(of(2))));
        assert!(!errors.concerns(1));
        assert!(errors.seen());
        assert!(!errors.seen(), "it was acknowledged before");
        assert_eq!((errors.shown, errors.blame()), (20, None));
    }

    #[test]
    fn errors_that_nobody_acknowledges_take_bounded_room() {
        let mut errors = Errors::default();
        let fitted = (0..100).filter(|error| errors.raise(of(1), *error)).count();
        assert_eq!(fitted, 1 + WAITING_MAX);
        assert_eq!(errors.shown, 0);
        assert!(errors.clear() && !errors.concerns(1));
        assert!(!errors.clear());
    }
}
