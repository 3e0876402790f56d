//! Work that does not give way is stopped while another VM waits.
//!
//! ```text
//! each look at the card: who is on an engine, and the card's own time
//!   same channel, busy ─► its time grows ─► every half of the limit: who waits? ─► who waited half a limit ago, too,
//!   other, or idle ─────► anew              and has not moved since, while the limit is over ─► stopped (`engine_looks`)
//! ```
//!
//! Time is that of the card (PTIMER), so that a slow card, or one that is a program, is not blamed for being slow. A VM waits
//! if one of its channels may run, has work, waits for no semaphore and got nowhere: its words in USERD stay as they were for
//! half of the limit. A channel that nobody waits behind may work as long as it likes, and so may one that gives way now and
//! then. The broker's own channel is never stopped here: `moves` sees to its end.
//!
//! unverified: that a card's ENGINE_STATUS (2640) and CHANNEL_STATE say on a real card what the software card says.

use fermi_spec::bar::Bar;
use fermi_spec::engine::{ENGINE_NONE, Engine};
use fermi_spec::instance::userd;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{ChannelState, EngineStatus};
use planted::Fault;

use super::Cx;
use super::engine_looks::{DRIVEN, Purpose};
use super::running::Running;
use crate::event::{Action, Token};
use crate::host::PhysChannel;
use crate::host::card::{Card, OWN_CHANNEL};
use crate::inspect::{Inspect, Tree};

/// Words of USERD that move when a channel gets on: from GET to GP_GET.
const PROGRESS: std::ops::Range<u64> = userd::GET_LO..userd::GP_GET + 4;

/// A channel as it was when it was asked about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Waiter {
    state: ChannelState,
    progress: Vec<u8>,
}

impl Waiter {
    /// Whether it could use the engine: it has work for it, or for an engine that it has not named yet.
    fn wants(&self, engine: Engine) -> bool {
        let state = self.state;
        let named = [engine.number(), ENGINE_NONE].contains(&state.engine());
        (state.pending() || state.loaded()) && !state.acquire_pending() && (named || state.loaded())
    }
}

/// A channel that has been on an engine, busy, at every look for some time.
#[derive(Debug)]
struct Holder {
    channel: PhysChannel,
    held_ns: u64,
    /// When who waits is asked next, by [`Holder::held_ns`].
    ask_at: u64,
    /// Who may wait, as they were half of the limit ago.
    before: Vec<(PhysChannel, Waiter)>,
    /// Answers on their way, and those that have come.
    asked: Vec<Question>,
    answers: Vec<(PhysChannel, Waiter)>,
}

#[derive(Debug)]
struct Question {
    token: Token,
    channel: PhysChannel,
    /// Otherwise for its words in USERD.
    for_state: bool,
}

/// What the looks have seen. It is no state: who comes back without it measures anew.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    /// Low word of the card's time at the last look.
    seen_at: Option<u32>,
    holders: [Option<Holder>; DRIVEN.len()],
}

fn index_of(engine: Engine) -> Option<usize> {
    DRIVEN.iter().position(|&driven| driven == engine)
}

impl Watchdog {
    /// GPU time for which the channel on the engine has held it.
    pub(super) fn held_ns(&self, engine: Engine) -> u64 {
        let holder = index_of(engine).and_then(|at| self.holders[at].as_ref());
        holder.map_or(0, |holder| holder.held_ns)
    }

    /// The engine is somebody else's from now on.
    pub(super) fn forget(&mut self, engine: Engine) {
        if let Some(at) = index_of(engine) {
            self.holders[at] = None;
        }
    }

    /// Takes what a look saw: the engines' states and the low word of the card's time, which begins anew after 4.3 s. A look
    /// comes more often; if not, time is lost to nobody's harm.
    fn look(&mut self, statuses: [EngineStatus; DRIVEN.len()], time: u32) {
        let passed = self.seen_at.map_or(0, |before| time.wrapping_sub(before));
        self.seen_at = Some(time);
        for (holder, status) in self.holders.iter_mut().zip(statuses) {
            let channel = PhysChannel(status.channel());
            let is_held = status.busy() && channel != OWN_CHANNEL;
            match holder {
                Some(holder) if is_held && holder.channel == channel => {
                    holder.held_ns = holder.held_ns.saturating_add(passed.into());
                }
                _ => {
                    *holder = is_held.then(|| Holder {
                        channel,
                        held_ns: 0,
                        ask_at: 0,
                        before: Vec::new(),
                        asked: Vec::new(),
                        answers: Vec::new(),
                    });
                }
            }
        }
    }
}

impl Holder {
    /// Takes an answer. `Some` if it was the last one.
    fn take(&mut self, token: Token, data: &[u8]) -> Option<Vec<(PhysChannel, Waiter)>> {
        let at = self.asked.iter().position(|question| question.token == token)?;
        let Question {
            channel, for_state, ..
        } = self.asked.remove(at);
        if for_state {
            let state = ChannelState::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
            let progress = Vec::new();
            self.answers.push((channel, Waiter { state, progress }));
        } else if let Some((_, waiter)) = self.answers.iter_mut().find(|(of, _)| *of == channel) {
            waiter.progress = data.to_vec();
        }
        self.asked.is_empty().then(|| std::mem::take(&mut self.answers))
    }
}

impl Running {
    /// A look is over. Asks who waits, where an engine has been held for long.
    pub(super) fn watch(&mut self, statuses: [EngineStatus; DRIVEN.len()], time: u32, cx: &mut Cx<'_>) {
        let limit = self.config.watchdog_ns;
        if limit == 0 || planted::is(Fault::WatchdogSleeps) {
            return;
        }
        self.volatile.watchdog.look(statuses, time);
        for at in 0..DRIVEN.len() {
            let Some(holder) = self.volatile.watchdog.holders[at].as_mut() else {
                continue;
            };
            if holder.held_ns < limit / 2 || holder.held_ns < holder.ask_at || !holder.asked.is_empty() {
                continue;
            }
            holder.ask_at = holder.held_ns.saturating_add(limit / 2);
            let channel = holder.channel;
            let asked = self.ask_waiters(channel, cx);
            if let Some(holder) = self.volatile.watchdog.holders[at].as_mut() {
                holder.asked = asked;
            }
        }
    }

    /// Asks after all channels that may run, but those of the holder's VM.
    fn ask_waiters(&mut self, holder: PhysChannel, cx: &mut Cx<'_>) -> Vec<Question> {
        let of = self.bound_as(holder.0).map(|(vm, _)| vm);
        let others = self.vms.values().filter(|vgpu| Some(vgpu.id) != of);
        let moves = (!self.mover.is_idle()).then_some(OWN_CHANNEL);
        let channels: Vec<PhysChannel> = others.flat_map(|vgpu| vgpu.eligible()).chain(moves).collect();
        let mut questions = Vec::new();
        for channel in channels {
            let state = u64::from(PfifoReg::ChannelState(channel.0.into()).offset());
            let words = Card::userd_window(channel) + PROGRESS.start;
            let length = (PROGRESS.end - PROGRESS.start) as u32;
            for (for_state, bar, offset, bytes) in
                [(true, Bar::Bar0, state, 4), (false, Bar::Bar1, words, length)]
            {
                let token = self.card.tokens.next();
                cx.actions.push(Action::HostRead {
                    token,
                    bar,
                    offset,
                    bytes,
                });
                questions.push(Question {
                    token,
                    channel,
                    for_state,
                });
            }
        }
        questions
    }

    /// Takes a value that the watchdog asked for; `false` if it belongs to somebody else.
    pub(super) fn watchdog_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        for (at, engine) in (0..).zip(DRIVEN) {
            let Some(holder) = self.volatile.watchdog.holders[at].as_mut() else {
                continue;
            };
            if !holder.asked.iter().any(|question| question.token == token) {
                continue;
            }
            let Some(now) = holder.take(token, data) else {
                return true;
            };
            let waits = |(channel, waiter): &(PhysChannel, Waiter)| {
                let is_as_before = |(of, before): &(PhysChannel, Waiter)| {
                    of == channel && before.wants(engine) && before.progress == waiter.progress
                };
                waiter.wants(engine) && holder.before.iter().any(is_as_before)
            };
            let is_over = holder.held_ns >= self.config.watchdog_ns && now.iter().any(waits);
            let channel = holder.channel;
            holder.before = now;
            if is_over {
                self.look_at_engine(engine, Purpose::Stop(channel), cx);
            }
            return true;
        }
        false
    }
}

impl Inspect for Watchdog {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for (engine, holder) in DRIVEN.iter().zip(&self.holders) {
            if let Some(holder) = holder {
                tree.group(format_args!("{engine:?}"), |tree| {
                    tree.number("channel", holder.channel.0);
                    tree.number("held_ns", holder.held_ns);
                    tree.count("channels_that_may_wait", holder.before.len());
                });
            }
        }
    }
}
