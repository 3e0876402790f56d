//! The host's memory that moves ask for ahead.

use vgpu::{Event, MoveId, Tick};

/// How the host gives memory, and who waits for it.
#[derive(Default)]
pub struct HostMemoryPace {
    /// Time that memory for a move takes to be there, nanoseconds.
    pub takes_ns: u64,
    /// Every n-th move gets none; 0 refuses none.
    pub refuse: u64,
    asked: u64,
    waiting: Vec<(Tick, MoveId)>,
}

impl HostMemoryPace {
    /// A move asks. The answer, if it is there at once.
    pub(super) fn ask(&mut self, id: MoveId, now: Tick) -> Option<Event> {
        match self.takes_ns {
            0 => Some(self.answer(id)),
            ns => {
                self.waiting.push((now.after(ns), id));
                None
            }
        }
    }

    /// Answers that are due.
    pub(super) fn take_due(&mut self, now: Tick) -> Vec<Event> {
        let (due, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.waiting = waiting;
        let due: Vec<(Tick, MoveId)> = due;
        due.into_iter().map(|(_, id)| self.answer(id)).collect()
    }

    /// When the next answer is due.
    pub(super) fn next_due(&self) -> Option<Tick> {
        self.waiting.iter().map(|(at, _)| *at).min()
    }

    fn answer(&mut self, id: MoveId) -> Event {
        self.asked += 1;
        let done = self.refuse == 0 || !self.asked.is_multiple_of(self.refuse);
        Event::Populated { id, done }
    }
}
