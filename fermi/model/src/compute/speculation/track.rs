//! What a block did, instruction by instruction, so that another thread can do it again without executing anything.

use std::sync::Arc;

use super::super::{
    block::Block,
    code::Code,
    outside::Outside,
    tally::{Issue, Tally},
};

/// Kinds of accesses beyond the block, as [`Outside`] divides them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Bytes side by side that were loaded and charged together.
    RowLoad,
    RowStore,
    /// Bytes of lanes that lie side by side within a page. What they cost is in touches of their own.
    Load,
    Store,
    /// A segment that scattered lanes reach is charged.
    TouchLoad,
    TouchStore,
}

impl Kind {
    pub(crate) fn is_store(self) -> bool {
        matches!(self, Self::RowStore | Self::Store | Self::TouchStore)
    }
}

/// An access beyond the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) va: u64,
    /// The instruction that made it, counted from the block's first.
    pub(crate) step: u32,
    /// Bytes that it moved, none for a touch.
    pub(crate) bytes: u32,
    pub(crate) kind: Kind,
}

/// An instruction that was executed: its [`Issue`] in bits 2:0, how many lanes executed it in 8:3.
#[derive(Clone, Copy)]
pub(super) struct Step(u16);

const ISSUES: [Issue; 6] = [
    Issue::Full,
    Issue::Half,
    Issue::Double,
    Issue::Special,
    Issue::Memory,
    Issue::Control,
];

impl Step {
    pub(super) fn new(issue: Issue, lanes: u64) -> Self {
        Self(issue as u16 | (lanes as u16) << 3)
    }

    fn issue(self) -> Issue {
        ISSUES[usize::from(self.0 & 7) % ISSUES.len()]
    }

    fn lanes(self) -> u64 {
        u64::from(self.0 >> 3)
    }
}

/// What an instruction adds to a tally beside its issue.
#[derive(Clone, Copy)]
pub(super) struct More {
    pub(super) step: u32,
    pub(super) shared_passes: u32,
    pub(super) awaited: u32,
}

/// How a track ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum End {
    /// With the block.
    Done,
    /// Before an instruction that has to be executed when its turn comes. The block is as it is before that one.
    Before,
    /// At an instruction that stopped. Of the block only the steps so far are known.
    #[default]
    Unsure,
}

/// The steps of a block from its beginning.
#[derive(Default)]
pub(super) struct Track {
    pub(super) steps: Vec<Step>,
    pub(super) more: Vec<More>,
    pub(super) accesses: Vec<Access>,
    /// The bytes that the accesses moved, one behind the other.
    pub(super) data: Vec<u8>,
    pub(super) end: End,
    /// Index of the block in its grid.
    pub(super) index: u64,
    /// The code that it was made from.
    pub(super) code: Option<Arc<Code>>,
    /// The block behind the last step.
    pub(super) block: Option<Block>,
}

impl Track {
    /// Bytes that it has use for.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.steps[..])
            + size_of_val(&self.more[..])
            + size_of_val(&self.accesses[..])
            + self.data.len()
    }

    /// Bytes that it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.steps.capacity() * size_of::<Step>()
            + self.more.capacity() * size_of::<More>()
            + self.accesses.capacity() * size_of::<Access>()
            + self.data.capacity()
    }

    /// Makes room for another block's steps.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.more.clear();
        self.accesses.clear();
        self.data.clear();
        self.end = End::Unsure;
        self.code = None;
        self.block = None;
    }
}

/// How far a track was played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Played {
    /// As far as the budget goes.
    Paused,
    /// To its end.
    Ended,
    /// Up to an instruction that loaded what is no longer there, or that memory refuses now.
    Differs,
}

/// A track that is played.
pub(super) struct Player {
    pub(super) track: Track,
    step: usize,
    more: usize,
    access: usize,
    data: usize,
}

impl Player {
    pub(super) fn new(track: Track) -> Self {
        Self {
            track,
            step: 0,
            more: 0,
            access: 0,
            data: 0,
        }
    }

    /// Instructions that were played.
    pub(super) fn steps(&self) -> usize {
        self.step
    }

    /// Has the effects of at most `budget` further instructions, and reduces it by their number. An instruction has all of its effects,
    /// or none where the track [differs](Played::Differs).
    pub(super) fn play(&mut self, outside: &mut dyn Outside, tally: &mut Tally, budget: &mut u64) -> Played {
        while let Some(step) = self.track.steps.get(self.step).copied() {
            if *budget == 0 {
                return Played::Paused;
            }
            let of_step = |access: &&Access| access.step as usize == self.step;
            let rest = self.track.accesses.get(self.access..).unwrap_or_default();
            let count = rest.iter().take_while(of_step).count();
            if count != 0 && !self.perform(outside, count) {
                return Played::Differs;
            }
            tally.issued[step.issue() as usize] += 1;
            tally.lane_instructions += step.lanes();
            if let Some(more) = self.track.more.get(self.more)
                && more.step as usize == self.step
            {
                tally.shared_passes += u64::from(more.shared_passes);
                tally.awaited += u64::from(more.awaited);
                self.more += 1;
            }
            self.step += 1;
            *budget -= 1;
        }
        Played::Ended
    }

    /// The next `count` accesses, all of them or none; whether they can be made.
    fn perform(&mut self, outside: &mut dyn Outside, count: usize) -> bool {
        let accesses = &self.track.accesses[self.access..self.access + count];
        let bytes: usize = accesses.iter().map(|access| access.bytes as usize).sum();
        let data = self.track.data.get(self.data..self.data + bytes);
        let is_made = outside.redo(accesses, data.unwrap_or_default());
        if is_made {
            self.access += count;
            self.data += bytes;
        }
        is_made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_keeps_its_issue_and_its_lanes() {
        for issue in ISSUES {
            for lanes in [0, 1, 31, 32] {
                let step = Step::new(issue, lanes);
                assert_eq!((step.issue(), step.lanes()), (issue, lanes));
            }
        }
    }
}
