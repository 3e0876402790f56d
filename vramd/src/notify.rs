//! What `serve` tells the service manager that started it: that its sockets listen, how many VMs are connected, that all its brokers
//! answer, and that it ends. Told nothing where no service manager listens (`NOTIFY_SOCKET`).
//!
//! The watchdog (`WatchdogSec=` of the unit) is fed only after the event loop of each broker has answered a question, so a loop that hangs
//! ends the process as surely as one that is gone.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use broker::{Broker, Presence};
use sd_notify::NotifyState;

/// Time between two questions where nobody watches: the line of status is that old at the most.
const STATUS_PERIOD: Duration = Duration::from_secs(2);
/// Questions within the time after which the service manager acts.
const QUESTIONS_OF_A_WATCH: u32 = 4;

/// Tells the service manager about brokers, as long as they run.
pub(crate) struct Service {
    heartbeat: Heartbeat,
    status: String,
}

impl Service {
    /// Tells that all sockets listen. `None` if no service manager is there to be told.
    pub(crate) fn ready() -> Option<Service> {
        std::env::var_os("NOTIFY_SOCKET")?;
        tell(&[NotifyState::Ready]);
        let watched = sd_notify::watchdog_enabled();
        let period = watched.map_or(STATUS_PERIOD, |limit| limit / QUESTIONS_OF_A_WATCH);
        Some(Service {
            heartbeat: Heartbeat::new(period.min(STATUS_PERIOD), Instant::now()),
            status: String::new(),
        })
    }

    /// Called by the main loop again and again: asks when it is time, and tells what was answered.
    pub(crate) fn look(&mut self, brokers: &[(String, Broker)]) {
        let ask = |broker: usize, answers: Sender<(usize, Presence)>| {
            let (_, broker_asked) = &brokers[broker];
            let answer = move |presence| {
                // Nobody waits any more if `serve` ends.
                let _ = answers.send((broker, presence));
            };
            // One that has ended does not answer: the others go on without it.
            let _ = broker_asked.ask_presence(answer);
        };
        let Some(answers) = self.heartbeat.look(Instant::now(), brokers.len(), ask) else {
            return;
        };
        let parts = brokers.iter().zip(answers);
        let parts = parts.map(|((gpu, _), Presence { connected, listed })| {
            format!("{gpu}: {connected} of {listed} VMs connected")
        });
        let status = parts.collect::<Vec<_>>().join(", ");
        let mut states = vec![NotifyState::Watchdog];
        if status != self.status {
            states.push(NotifyState::Status(&status));
        }
        tell(&states);
        self.status = status;
    }
}

/// Tells that the end has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("cannot tell the service manager: {error}");
    }
}

/// Asks each broker, and again when all have answered and a period is over.
struct Heartbeat {
    period: Duration,
    next: Instant,
    asked: Option<Asked>,
}

/// Questions under way, with the answers by broker.
struct Asked {
    answers: Receiver<(usize, Presence)>,
    answered: Vec<Option<Presence>>,
}

impl Heartbeat {
    fn new(period: Duration, now: Instant) -> Heartbeat {
        Heartbeat {
            period,
            next: now,
            asked: None,
        }
    }

    /// What all `brokers` have answered, once for each time that they were asked. A broker that is still to answer is not asked again.
    fn look(
        &mut self,
        now: Instant,
        brokers: usize,
        mut ask: impl FnMut(usize, Sender<(usize, Presence)>),
    ) -> Option<Vec<Presence>> {
        if self.asked.is_none() && now >= self.next {
            let (sender, answers) = channel();
            (0..brokers).for_each(|broker| ask(broker, sender.clone()));
            self.next = now + self.period;
            self.asked = Some(Asked {
                answers,
                answered: vec![None; brokers],
            });
        }
        let asked = self.asked.as_mut()?;
        let ended = loop {
            match asked.answers.try_recv() {
                Ok((broker, presence)) => asked.answered[broker] = Some(presence),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        if ended {
            // Who has not answered has ended, for nobody has the question any more.
            let gone = asked.answered.iter_mut().filter(|answer| answer.is_none());
            gone.for_each(|answer| *answer = Some(Presence::default()));
        }
        let all = asked.answered.iter().copied().collect::<Option<Vec<_>>>()?;
        self.asked = None;
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENCE: Presence = Presence {
        connected: 1,
        listed: 2,
    };
    const PERIOD: Duration = Duration::from_secs(1);

    #[test]
    fn beat_comes_when_the_last_broker_has_answered() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(PERIOD, start);
        let mut waiting = Vec::new();
        let first = heartbeat.look(start, 2, |broker, answers| match broker {
            0 => answers.send((0, PRESENCE)).unwrap(),
            _ => waiting.push(answers),
        });
        assert_eq!(first, None);
        waiting[0].send((1, PRESENCE)).unwrap();
        let second = heartbeat.look(start, 2, |_, _| panic!("they were asked"));
        assert_eq!(second, Some(vec![PRESENCE; 2]));
    }

    #[test]
    fn broker_that_does_not_answer_stops_the_beat_and_is_asked_once() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(PERIOD, start);
        let mut waiting = Vec::new();
        assert_eq!(heartbeat.look(start, 1, |_, answers| waiting.push(answers)), None);
        let later = heartbeat.look(start + 100 * PERIOD, 1, |_, _| panic!("it was asked"));
        assert_eq!((later, waiting.len()), (None, 1));
    }

    #[test]
    fn broker_that_has_ended_does_not_stop_the_beat_of_the_others() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(PERIOD, start);
        let ask = |broker, answers: Sender<_>| {
            if broker == 1 {
                answers.send((1, PRESENCE)).unwrap();
            }
        };
        assert_eq!(
            heartbeat.look(start, 2, ask),
            Some(vec![Presence::default(), PRESENCE])
        );
    }

    #[test]
    fn next_question_waits_for_the_period() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(PERIOD, start);
        let answer = |broker, answers: Sender<_>| answers.send((broker, PRESENCE)).unwrap();
        assert!(heartbeat.look(start, 1, answer).is_some());
        assert_eq!(heartbeat.look(start, 1, answer), None);
        assert!(heartbeat.look(start + PERIOD, 1, answer).is_some());
    }
}
