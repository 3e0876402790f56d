//! The thread that polls: sockets of VMs, the timer, the card's interrupt, torn memory.
//!
//! It never waits for a client: replies that a client does not take stay queued, within the protocol server's bounds,
//! and meanwhile that client is not read.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps as _};
use vfio_user_server::threads::{self, ThreadKind};
use vgpu::Event;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::EventFd;

use crate::broker::Shared;
use crate::error::StartError;
use crate::seating::{Change, LeaveRefusal, Left};
use crate::server::Seat;
use crate::session::Tells;

const WAKE: u32 = 0;
const TIMER: u32 = 1;
const INTERRUPT: u32 = 2;
const TORN: u32 = 3;
const HANGUP: u32 = 4;
/// Listener of seat *n* is at four times *n* above this, then come its client and that client's eventfds.
const SEATS: u32 = 5;
const OF_A_SEAT: u32 = 2 + Tells::ALL.len() as u32;
/// Events polled of the connection to the card: the thread that asks reads the answers.
const HANGUP_EVENTS: EventSet = EventSet::READ_HANG_UP;

/// A seat, and the events that are polled for it.
#[derive(Debug)]
struct Polled {
    seat: Seat,
    listener: Option<EventSet>,
    client: Option<(RawFd, EventSet)>,
    events: [Option<(RawFd, EventSet)>; Tells::ALL.len()],
    is_listener_lost: bool,
    /// Something has happened since it was settled last. Others cost an event next to nothing, however many they are.
    is_touched: bool,
}

/// The state of the polling thread.
#[derive(Debug)]
pub(crate) struct EventLoop {
    shared: Arc<Shared>,
    /// By the numbers of their events; a place that is empty is taken by the next seat.
    seats: Vec<Option<Polled>>,
    interrupt: Option<EventFd>,
    /// Descriptor of the connection to the card, until it has hung up.
    hangup: Option<OwnedFd>,
    timer: RawFd,
}

impl EventLoop {
    pub(crate) fn new(
        shared: Arc<Shared>,
        seats: Vec<Seat>,
        interrupt: Option<EventFd>,
        hangup: Option<OwnedFd>,
    ) -> Self {
        let seats = seats.into_iter().map(|seat| Some(Polled::new(seat))).collect();
        // Lives as long as `shared`. A broker that ended before it began polls nothing.
        let timer = shared
            .lock()
            .map_or(-1, |performer| performer.timer().as_raw_fd());
        Self {
            shared,
            seats,
            interrupt,
            hangup,
            timer,
        }
    }

    fn dispatch(&mut self, events: Events, ops: &mut EventOps<'_>) {
        if let Some(data) = events.data().checked_sub(SEATS) {
            return self.dispatch_seat(data, events.event_set());
        }
        self.seats
            .iter_mut()
            .flatten()
            .for_each(|polled| polled.is_touched = true);
        match events.data() {
            // The counter only says that there is something to look at.
            WAKE => {
                drop(self.shared.wake.event().read());
                if let Ok(mut performer) = self.shared.lock() {
                    performer.take_emptied();
                    performer.take_populated();
                }
                self.shared.questions.answer(&self.shared);
                self.change_seats();
            }
            TIMER => {
                if let Ok(mut performer) = self.shared.lock() {
                    performer.timer_fired();
                }
            }
            INTERRUPT => {
                if let Some(interrupt) = &self.interrupt
                    && interrupt.read().is_ok()
                    && let Ok(mut performer) = self.shared.lock()
                {
                    performer.submit(Event::HostInterrupt);
                }
            }
            TORN => {
                drop(self.shared.torn.read());
                if let Ok(mut performer) = self.shared.lock() {
                    performer.expel_torn();
                }
            }
            _ => self.hung_up(ops),
        }
    }

    fn hung_up(&mut self, ops: &mut EventOps<'_>) {
        if let Some(hangup) = self.hangup.take()
            && let Err(error) = ops.remove(Events::with_data_raw(hangup.as_raw_fd(), HANGUP, HANGUP_EVENTS))
        {
            log::error!("cannot stop polling the connection to the card: {error}");
        }
        if let Ok(mut performer) = self.shared.lock() {
            performer.look_at_card();
        }
    }

    fn dispatch_seat(&mut self, data: u32, events: EventSet) {
        let Some(Some(polled)) = self.seats.get_mut((data / OF_A_SEAT) as usize) else {
            return;
        };
        polled.is_touched = true;
        match data % OF_A_SEAT {
            0 => polled.is_listener_lost |= !polled.seat.listener_ready(),
            1 => polled.seat.client_ready(events),
            event => {
                let tells = Tells::ALL.get(event as usize - 2);
                tells
                    .into_iter()
                    .for_each(|tells| polled.seat.event_ready(*tells));
            }
        }
    }

    /// Serves seats that came, and sends away those that are to go.
    fn change_seats(&mut self) {
        for change in self.shared.seating.take() {
            match change {
                Change::Come {
                    seat,
                    config,
                    hold,
                    done,
                } => {
                    let Ok(mut performer) = self.shared.lock() else {
                        return;
                    };
                    let checked = performer.check_place(&config);
                    if checked.is_ok() {
                        performer.roster.list(config, hold);
                    }
                    drop(performer);
                    if checked.is_ok() {
                        self.take_seat(Polled::new(*seat));
                    }
                    done(checked);
                }
                Change::Go {
                    name,
                    is_forced,
                    done,
                } => done(self.send_away(&name, is_forced)),
            }
        }
    }

    fn take_seat(&mut self, polled: Polled) {
        match self.seats.iter_mut().find(|seat| seat.is_none()) {
            Some(empty) => *empty = Some(polled),
            None => self.seats.push(Some(polled)),
        }
    }

    fn send_away(&mut self, name: &str, is_forced: bool) -> Result<Left, LeaveRefusal> {
        let mut seats = self.seats.iter_mut().flatten();
        let found = seats.find(|polled| polled.seat.name() == name && !polled.seat.is_retired());
        let no_such_vm = || LeaveRefusal::NoSuchVm {
            name: name.to_owned(),
        };
        let seat = &mut found.ok_or_else(no_such_vm)?.seat;
        let was_attached = seat.is_taken();
        if was_attached && !is_forced {
            return Err(LeaveRefusal::Connected);
        }
        if let Ok(mut performer) = self.shared.lock() {
            performer.roster.unlist(name);
        }
        seat.retire();
        Ok(Left { was_attached })
    }

    /// Passes on the news, and polls for the events that are wanted now.
    fn settle(&mut self, ops: &mut EventOps<'_>) {
        loop {
            for polled in self.seats.iter_mut().flatten() {
                polled.is_touched |= polled.seat.has_news();
                if polled.is_touched {
                    polled.seat.settle();
                }
            }
            self.shared.wake.set_awake(false);
            if !self.seats.iter().flatten().any(|polled| polled.seat.has_news()) {
                break;
            }
            self.shared.wake.set_awake(true);
        }
        let is_open = self.shared.is_open.load(SeqCst);
        for (index, place) in self.seats.iter_mut().enumerate() {
            let Some(polled) = place.as_mut().filter(|polled| polled.is_touched) else {
                continue;
            };
            polled.is_touched = false;
            if let Err(error) = polled.poll(SEATS + OF_A_SEAT * index as u32, is_open, ops) {
                log::error!("cannot poll a socket: {error}");
            }
            // Nothing of it is polled any more.
            if polled.seat.is_over() {
                *place = None;
            }
        }
    }
}

impl Polled {
    fn new(seat: Seat) -> Self {
        Self {
            seat,
            listener: None,
            client: None,
            events: Default::default(),
            is_listener_lost: false,
            is_touched: true,
        }
    }

    fn poll(&mut self, data: u32, is_open: bool, ops: &mut EventOps<'_>) -> Result<(), event_manager::Error> {
        let (fd, events) = self.seat.listener_interest();
        let is_wanted = is_open && !self.is_listener_lost && !self.seat.is_retired();
        let wanted = is_wanted.then_some((fd, events));
        let polled = self.listener.map(|events| (fd, events));
        change(ops, data, polled, wanted)?;
        self.listener = wanted.map(|(_, events)| events);

        let wanted = self.seat.client_interest();
        let polled = std::mem::replace(&mut self.client, wanted);
        let mut changed = change(ops, data + 1, polled, wanted);
        for ((data, tells), event) in (data + 2..).zip(Tells::ALL).zip(&mut self.events) {
            let wanted = self.seat.event_interest(tells);
            let polled = std::mem::replace(event, wanted);
            changed = changed.and(change(ops, data, polled, wanted));
        }
        // Only now may their numbers be used again.
        self.seat.drop_closed();
        changed
    }
}

/// Changes the polled events to the wanted ones.
fn change(
    ops: &mut EventOps<'_>,
    data: u32,
    polled: Option<(RawFd, EventSet)>,
    wanted: Option<(RawFd, EventSet)>,
) -> Result<(), event_manager::Error> {
    let events = |(fd, events): (RawFd, EventSet)| Events::with_data_raw(fd, data, events);
    match (polled, wanted) {
        (None, None) => Ok(()),
        (Some(old), Some(new)) if old == new => Ok(()),
        (Some(old), Some(new)) if old.0 == new.0 => ops.modify(events(new)),
        (old, new) => {
            let removed = old.map_or(Ok(()), |old| ops.remove(events(old)));
            let added = new.map_or(Ok(()), |new| ops.add(events(new)));
            removed.and(added)
        }
    }
}

impl MutEventSubscriber for EventLoop {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        self.shared.wake.set_awake(true);
        self.dispatch(events, ops);
        self.settle(ops);
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        let fixed = [
            Some((self.shared.wake.event().as_raw_fd(), WAKE, EventSet::IN)),
            Some((self.timer, TIMER, EventSet::IN)),
            self.interrupt
                .as_ref()
                .map(|interrupt| (interrupt.as_raw_fd(), INTERRUPT, EventSet::IN)),
            Some((self.shared.torn.as_raw_fd(), TORN, EventSet::IN)),
            self.hangup
                .as_ref()
                .map(|hangup| (hangup.as_raw_fd(), HANGUP, HANGUP_EVENTS)),
        ];
        for (fd, data, events) in fixed.into_iter().flatten() {
            if let Err(error) = ops.add(Events::with_data_raw(fd, data, events)) {
                log::error!("the event loop cannot poll: {error}");
                self.shared.status.end("its event loop cannot poll");
            }
        }
    }
}

/// Ends the broker with the loop: without it nothing that takes time would ever end.
struct EndOnPanic(Arc<Shared>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Ok(mut performer) = self.0.lock() {
                performer.fail("its event loop panicked");
            }
            self.0.status.end("its event loop panicked");
        }
    }
}

/// Starts the thread.
pub(crate) fn spawn(event_loop: EventLoop) -> Result<JoinHandle<()>, StartError> {
    let shared = event_loop.shared.clone();
    let mut manager = EventManager::new()?;
    manager.add_subscriber(event_loop);
    let run = move || {
        let _end = EndOnPanic(shared.clone());
        while !shared.is_stopping.load(SeqCst) && !shared.status.has_ended() {
            if let Err(error) = manager.run() {
                log::error!("the event loop failed: {error}");
                if let Ok(mut performer) = shared.lock() {
                    performer.fail("its event loop failed");
                }
                shared.status.end("its event loop failed");
            }
        }
        // Whoever asked last gets no answer.
        shared.questions.answer(&shared);
        drop(shared.seating.take());
        // Sockets are closed and removed here, with the subscriber.
    };
    threads::spawn(ThreadKind::EventLoop, "broker".into(), run).map_err(|source| StartError::System {
        what: "the event loop's thread",
        source,
    })
}
