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

mod about;
mod excerpt;
mod flight;
mod happened;
mod text;

use std::collections::VecDeque;

pub use excerpt::Excerpt;
pub use flight::{Flight, Line, Told};
pub use happened::{Answer, Happened, Memory};

use crate::event::{Action, Event, Request, RequestId, Tick, Token, VmId};
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

impl Entry {
    /// What stands in a ring where nothing was recorded yet.
    const BLANK: Self = Self {
        now: Tick(0),
        order: Order(0),
        happened: Happened::Start,
    };
}

/// A ring of the last entries. Its length is a power of two, so that finding a place takes a mask and no branch.
#[derive(Debug)]
struct Ring<const LENGTH: usize> {
    entries: Box<[Entry; LENGTH]>,
    /// Entries recorded so far, those that are gone included.
    count: usize,
}

impl<const LENGTH: usize> Ring<LENGTH> {
    const MASK: usize = {
        assert!(LENGTH.is_power_of_two());
        LENGTH - 1
    };

    fn new() -> Self {
        Self {
            entries: Box::new([Entry::BLANK; LENGTH]),
            count: 0,
        }
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        self.entries[self.count & Self::MASK] = entry;
        self.count = self.count.wrapping_add(1);
    }

    /// The entry recorded last; a blank one before the first.
    #[inline]
    fn last_mut(&mut self) -> &mut Entry {
        &mut self.entries[self.count.wrapping_sub(1) & Self::MASK]
    }

    /// All entries, the oldest first.
    fn iter(&self) -> impl Iterator<Item = &Entry> {
        let first = self.count.saturating_sub(LENGTH);
        (first..self.count).map(|number| &self.entries[number & Self::MASK])
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
    accesses: Ring<ACCESSES>,
    others: Ring<OTHERS>,
    sayings: VecDeque<(Tick, Order, Saying)>,
    /// Tokens of reads of registers, each at its number modulo the length.
    register_reads: [u64; TOKENS],
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self {
            now: Tick::default(),
            order: Order::default(),
            accesses: Ring::new(),
            others: Ring::new(),
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
        let access = match event {
            Event::Request { vm, id, request } => match request {
                Request::Read { bar, offset, bytes } => Happened::load(*vm, *id, *bar, *offset, *bytes),
                Request::Write { bar, offset, data } => Happened::store(*vm, *id, *bar, *offset, data.len()),
                Request::ReadConfig { .. }
                | Request::WriteConfig { .. }
                | Request::MapRam { .. }
                | Request::UnmapRam { .. }
                | Request::MaskIntx { .. }
                | Request::Reset => return self.other_event(event),
            },
            other => return self.other_event(other),
        };
        self.accesses.push(Entry {
            now,
            order: self.order,
            happened: access,
        });
    }

    /// Records the actions of the event that was recorded last.
    pub fn actions(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Reply { vm, request, reply } => self.reply(*vm, *request, reply.into()),
                Action::Notice(notice) => self.say(Saying::Notice(notice.clone())),
                Action::Denied { vm, reason } | Action::QuotaRefused { vm, reason } => {
                    self.action(action);
                    self.remark(format!("{vm}: {reason}"));
                }
                Action::HostRamRefused { reason } => {
                    self.action(action);
                    self.remark(reason.to_string());
                }
                other => self.action(other),
            }
        }
    }

    /// Apart from accesses, which come so often that they take the short way above.
    #[inline(never)]
    fn other_event(&mut self, event: &Event) {
        match Happened::of_event(event) {
            Some(Happened::HostValue { token, bytes, value }) => {
                let value = value.filter(|_| self.is_register_read(token));
                self.other(Happened::HostValue { token, bytes, value });
            }
            Some(other) => self.other(other),
            None => {}
        }
    }

    #[inline(never)]
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

    #[inline(never)]
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
        let last = self.accesses.last_mut();
        if last.order.event() == event && last.happened.take_answer(request, answer) {
            return;
        }
        let entry = self.entry(Happened::Replied { vm, request, answer });
        self.accesses.push(entry);
    }
}

#[cfg(test)]
mod tests;
