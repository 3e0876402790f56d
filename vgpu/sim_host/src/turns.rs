//! Guests that take turns on a host: requests of a guest become events, and replies of the core its answers.
//!
//! Who is next, how long a guest rests and how time passes is decided by whoever holds the [`Player`]s.

use vgpu::{Event, Reply, Request, RequestId, Tick, VmId};

use crate::bus::{Ask, Guest};
use crate::world::{Watch, WindowAccess, World};

/// An access that the core has not answered yet.
struct Waiting {
    request: RequestId,
    since: Tick,
    kind: Kind,
}

/// Who asked for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    /// The machine around the guest.
    Machine,
}

/// What a turn came to.
#[derive(Debug)]
pub enum Turn {
    /// The guest waits, rests or has ended: it had no turn.
    Missed,
    /// It sent an access, or went on without one.
    Taken,
    /// It wrote a line for its owner and went on.
    Reported(String),
    /// It has ended in this turn.
    Ended,
}

/// A guest of one VM between two of its turns.
pub struct Player {
    vm: VmId,
    guest: Guest,
    asked: Option<Ask>,
    waiting: Option<Waiting>,
    rests_until: u64,
    /// Nanoseconds of the host's time that pass with each answer.
    answer_ns: u64,
    may_be_refused: bool,
    outcome: Option<Result<(), String>>,
}

impl Player {
    /// A guest whose code has not run yet.
    pub fn new(vm: VmId, guest: Guest, answer_ns: u64) -> Self {
        Self {
            vm,
            guest,
            asked: None,
            waiting: None,
            rests_until: 0,
            answer_ns,
            may_be_refused: false,
            outcome: None,
        }
    }

    /// The same, whose VM's machine does not behave: what it asks for may be refused.
    pub fn may_be_refused(self) -> Self {
        Self {
            may_be_refused: true,
            ..self
        }
    }

    /// Lets the code run up to its first request. Until then the guest misses its turns.
    pub fn begin(&mut self) {
        self.asked = Some(self.guest.next());
    }

    /// How the guest ended, if it has.
    pub fn outcome(&self) -> Option<&Result<(), String>> {
        self.outcome.as_ref()
    }

    /// Whether only an answer or the clock lets the guest go on.
    pub fn sleeps(&self, now: Tick) -> bool {
        self.outcome.is_some() || self.waiting.is_some() || self.rests_until > now.0
    }

    /// The moment up to which the guest rests, maybe in the past; `None` if it does not wait for the clock.
    pub fn rests_until(&self) -> Option<u64> {
        (self.outcome.is_none() && self.waiting.is_none()).then_some(self.rests_until)
    }

    /// For how long its access under way has waited.
    pub fn held_ns(&self, now: Tick) -> Option<u64> {
        self.waiting.as_ref().map(|waiting| now.since(waiting.since))
    }

    /// Whether what it waits for is its machine's doing: that may take longer.
    pub fn waits_for_machine(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.kind == Kind::Machine)
    }

    /// Its VM is gone: the guest stops where it is, and nobody asks any more what became of it.
    pub fn end(&mut self) {
        (self.asked, self.waiting) = (None, None);
        self.outcome.get_or_insert(Ok(()));
    }

    /// Serves one request of the guest. A guest that relaxes rests for `rest_ns`.
    pub fn take_turn<W: Watch>(&mut self, world: &mut World<W>, rest_ns: impl FnOnce() -> u64) -> Turn {
        if self.sleeps(world.now) {
            return Turn::Missed;
        }
        let Some(ask) = self.asked.take() else {
            return Turn::Missed;
        };
        match ask {
            Ask::Read(bar, offset, bytes) => {
                let mut word = [0; 8];
                if let Some(part) = word.get_mut(..bytes)
                    && world.window_access(self.vm, bar, offset, WindowAccess::Load(part))
                {
                    self.go_on(world, u64::from_le_bytes(word));
                    return Turn::Taken;
                }
                let bytes = bytes as u32;
                self.access(world, Kind::Load, Request::Read { bar, offset, bytes });
            }
            Ask::Write(bar, offset, data) => {
                if world.window_access(self.vm, bar, offset, WindowAccess::Store(&data)) {
                    self.go_on(world, 0);
                    return Turn::Taken;
                }
                self.access(world, Kind::Store, Request::Write { bar, offset, data });
            }
            Ask::Relax => {
                self.rests_until = world.now.0 + rest_ns();
                self.go_on(world, 0);
            }
            Ask::Now => self.go_on(world, world.now.0),
            Ask::Interrupts(kind) => self.go_on(world, world.vm(self.vm).interrupts_of(kind)),
            Ask::Entry(va, is_large) => {
                let entry = world.shadow_entry(self.vm, va, is_large);
                self.go_on(world, entry.into_bits());
            }
            Ask::Machine(what) => self.access(world, Kind::Machine, what),
            Ask::Post(what) => {
                what.into_iter().for_each(|request| world.post(self.vm, request));
                self.go_on(world, 0);
            }
            Ask::Ring(channels) => {
                world.submit(Event::Doorbells {
                    vm: self.vm,
                    channels,
                });
                self.go_on(world, 0);
            }
            Ask::MapWindows => {
                world.ask_for_windows(self.vm);
                self.go_on(world, 0);
            }
            Ask::Report(line) => {
                self.go_on(world, 0);
                return Turn::Reported(line);
            }
            Ask::Done(outcome) => {
                self.outcome = Some(outcome);
                return Turn::Ended;
            }
        }
        Turn::Taken
    }

    fn access<W: Watch>(&mut self, world: &mut World<W>, kind: Kind, access: Request) {
        let since = world.now;
        let request = world.ask(self.vm, access);
        self.waiting = Some(Waiting { request, since, kind });
    }

    /// Hands the reply to the guest's access over, if it is there; gives for how long the access was held.
    ///
    /// An access of a guest is always answered, and a load with data: anything else is an error.
    pub fn collect_reply<W: Watch>(&mut self, world: &mut World<W>) -> Result<Option<u64>, String> {
        let Some(Waiting { request, since, kind }) = self.waiting else {
            return Ok(None);
        };
        let held = world.now.since(since);
        let value = match world.take_reply(self.vm, request) {
            None => return Ok(None),
            Some(Reply::Data(data)) => {
                let mut word = [0; 8];
                let length = data.len().min(8);
                word[..length].copy_from_slice(&data[..length]);
                u64::from_le_bytes(word)
            }
            Some(Reply::Done) if kind == Kind::Load => {
                return Err(format!("a load of {} was answered without data", self.vm));
            }
            Some(Reply::Done) => 0,
            Some(Reply::Refused(_)) if self.may_be_refused => 0,
            Some(Reply::Refused(refusal)) => {
                return Err(format!("an access of {} was refused: {refusal}", self.vm));
            }
        };
        self.waiting = None;
        self.go_on(world, value);
        Ok(Some(held))
    }

    fn go_on<W: Watch>(&mut self, world: &mut World<W>, value: u64) {
        world.now.0 += self.answer_ns;
        self.guest.answer(value);
        self.asked = Some(self.guest.next());
    }
}
