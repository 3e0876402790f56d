//! The last events of one GPU, always recorded, written out after a failure.
//!
//! An edge notes each event before it is applied and its actions after it: [`FlightRecorder::event`],
//! [`FlightRecorder::actions`]. Two rings of fixed length hold them, one for the accesses of guests and one for
//! everything else, so that a guest that polls a register pushes out nothing but accesses. Notices have a ring of their
//! own. Entries are small and have no text, and nothing is allocated once the rings are full; text is made when the rings
//! are read.
//!
//! Data that guests load and store are not recorded, only place and length of their accesses. Values of the card's
//! registers are recorded, since they are the broker's own, but nothing that went through a window onto memory.
//!
//! It belongs to the edge and not to the core: it decides nothing, and after a panic in the core it is still whole.

mod flight;
mod happened;
mod text;

use std::collections::VecDeque;

pub use flight::{Flight, Line, Told};
pub use happened::{Answer, Happened, Memory};

use crate::event::{Action, Event, RequestId, Tick, Token, VmId};
use crate::notice::Notice;

/// Accesses of guests that are kept.
const ACCESSES: usize = 4096;
/// Other events and actions that are kept.
const OTHERS: usize = 4096;
/// Notices and remarks that are kept.
const SAYINGS: usize = 512;
/// Reads of the card's registers, whose values are distinguished from those of memory.
const TOKENS: usize = 64;

/// One thing that happened, and when.
#[derive(Clone, Copy, Debug)]
struct Entry {
    now: Tick,
    order: Order,
    happened: Happened,
}

/// Number of an event, and the place of an entry within it, in one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Order(u64);

impl Order {
    const PLACE_BITS: u32 = 24;

    fn next_event(self) -> Self {
        Self(((self.0 >> Self::PLACE_BITS) + 1) << Self::PLACE_BITS)
    }

    fn next(self) -> Self {
        Self(self.0 + 1)
    }

    fn event(self) -> u64 {
        self.0 >> Self::PLACE_BITS
    }
}

/// A ring of the last entries.
#[derive(Debug)]
struct Ring {
    entries: Vec<Entry>,
    capacity: usize,
    /// Place of the next one; the oldest if the ring is full.
    next: usize,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            capacity,
            next: 0,
        }
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        match self.entries.get_mut(self.next) {
            Some(oldest) => *oldest = entry,
            None => self.entries.push(entry),
        }
        self.next = if self.next + 1 == self.capacity {
            0
        } else {
            self.next + 1
        };
    }

    fn last_mut(&mut self) -> Option<&mut Entry> {
        let last = self.next.checked_sub(1).unwrap_or(self.capacity - 1);
        self.entries.get_mut(last)
    }

    /// All entries, the oldest first.
    fn iter(&self) -> impl Iterator<Item = &Entry> {
        let (newer, older) = self.entries.split_at(self.next.min(self.entries.len()));
        older.iter().chain(newer)
    }
}

/// A notice or remark, which is text in part.
#[derive(Debug)]
enum Saying {
    Notice(Notice),
    Remark(String),
}

/// The last events of one GPU. An edge owns one recorder and records every event and its actions.
#[derive(Debug)]
pub struct FlightRecorder {
    now: Tick,
    order: Order,
    accesses: Ring,
    others: Ring,
    sayings: VecDeque<(Tick, Order, Saying)>,
    /// Tokens of reads of registers, each at its number modulo the length.
    register_reads: [u64; TOKENS],
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self {
            now: Tick::default(),
            order: Order::default(),
            accesses: Ring::new(ACCESSES),
            others: Ring::new(OTHERS),
            sayings: VecDeque::with_capacity(SAYINGS),
            register_reads: [u64::MAX; TOKENS],
        }
    }
}

impl FlightRecorder {
    /// Records an event that is about to be applied.
    pub fn event(&mut self, now: Tick, event: &Event) {
        self.now = now;
        self.order = self.order.next_event();
        match Happened::of_event(event) {
            access @ (Happened::Load { .. } | Happened::Store { .. }) => self.access(access),
            Happened::HostValue { token, bytes, value } => {
                let value = value.filter(|_| self.is_register_read(token));
                self.other(Happened::HostValue { token, bytes, value });
            }
            other => self.other(other),
        }
    }

    /// Records the actions of the event that was recorded last.
    pub fn actions(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Reply { vm, request, reply } => self.reply(*vm, *request, reply.into()),
                Action::Notice(notice) => self.say(Saying::Notice(notice.clone())),
                Action::Denied { vm, reason } => {
                    self.action(action);
                    self.remark(format!("{vm}: {reason}"));
                }
                other => self.action(other),
            }
        }
    }

    fn action(&mut self, action: &Action) {
        let Some(happened) = Happened::of_action(action) else {
            return;
        };
        if let Some(token) = happened.register_read() {
            self.register_reads[token.0 as usize % TOKENS] = token.0;
        }
        self.other(happened);
    }

    fn is_register_read(&self, token: Token) -> bool {
        self.register_reads[token.0 as usize % TOKENS] == token.0
    }

    /// Records a remark of the edge itself, such as a card that failed.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.say(Saying::Remark(text.into()));
    }

    /// Everything that is still there, oldest first.
    pub fn flight(&self) -> Flight {
        let entries = self.accesses.iter().chain(self.others.iter()).map(|entry| {
            let told = Told::Happened(entry.happened);
            (entry.order, Line::new(entry.now, entry.order.event(), told))
        });
        let sayings = self.sayings.iter().map(|(now, order, saying)| {
            let told = match saying {
                Saying::Notice(notice) => Told::Notice {
                    notice: notice.clone(),
                },
                Saying::Remark(text) => Told::Remark { text: text.clone() },
            };
            (*order, Line::new(*now, order.event(), told))
        });
        let mut lines: Vec<(Order, Line)> = entries.chain(sayings).collect();
        lines.sort_by_key(|(order, _)| *order);
        Flight {
            lines: lines.into_iter().map(|(_, line)| line).collect(),
        }
    }

    #[inline]
    fn entry(&mut self, happened: Happened) -> Entry {
        self.order = self.order.next();
        Entry {
            now: self.now,
            order: self.order,
            happened,
        }
    }

    #[inline]
    fn access(&mut self, happened: Happened) {
        let entry = self.entry(happened);
        self.accesses.push(entry);
    }

    fn other(&mut self, happened: Happened) {
        let entry = self.entry(happened);
        self.others.push(entry);
    }

    fn say(&mut self, saying: Saying) {
        self.order = self.order.next();
        if self.sayings.len() == SAYINGS {
            self.sayings.pop_front();
        }
        self.sayings.push_back((self.now, self.order, saying));
    }

    /// Puts the answer of a request that its own event answers into its entry.
    #[inline]
    fn reply(&mut self, vm: VmId, request: RequestId, answer: Answer) {
        let event = self.order.event();
        if let Some(last) = self.accesses.last_mut()
            && last.order.event() == event
            && last.happened.take_answer(request, answer)
        {
            return;
        }
        self.access(Happened::Replied { vm, request, answer });
    }
}

#[cfg(test)]
mod tests;
