//! The broker of one GPU: starting, attaching VMs, asking for figures, stopping.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use vfio_user_server::{BoundSocket, Reaper, SocketAccess};
use vgpu::inspect::Node;
use vgpu::{Event, Hold, HostGpu, RequestId, VmConfig, WindowMode};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::error::{AttachError, Ended, StartError};
use crate::event_loop::{self, EventLoop};
use crate::flights::{FlightError, FlightFolder};
use crate::link::LocalLink;
use crate::pci_function::BarSizes;
use crate::perform::Performer;
use crate::port::Core;
use crate::questions::Questions;
use crate::record::Recorder;
use crate::remote::Waker;
use crate::room::HostRoom;
use crate::seating::Seating;
use crate::server::Seat;
use crate::stats::BrokerStats;
use crate::status::Status;

/// Longest bring-up of a card.
const START_MAX: Duration = Duration::from_secs(10);

/// A VM that may attach through a socket, whose VMM already can connect and waits until the broker is started.
#[derive(Debug)]
pub struct VmSocket {
    pub(crate) socket: BoundSocket,
    pub(crate) config: VmConfig,
    pub(crate) hold: Hold,
}

impl VmSocket {
    /// Listens on `path` for the VMM of the VM `config`.
    pub fn bind(path: &Path, access: &SocketAccess, config: VmConfig) -> Result<Self, StartError> {
        let name = || config.name.clone();
        config
            .check()
            .map_err(|reason| StartError::Config { name: name(), reason })?;
        let socket = BoundSocket::bind(path, access);
        let socket = socket.map_err(|source| StartError::Listen { name: name(), source })?;
        let hold = Hold::default();
        Ok(Self { socket, config, hold })
    }

    /// Holds this back from the VM from the moment when it attaches.
    #[must_use]
    pub fn with_hold(self, hold: Hold) -> Self {
        Self { hold, ..self }
    }

    /// VRAM that the VM sees.
    pub fn guest_vram(&self) -> u64 {
        self.config.guest_vram
    }
}

/// The parts of a broker.
pub struct Setup {
    /// The deciding core: [`vgpu::Manager`], except in tests.
    pub core: Box<dyn Core>,
    /// Backend that performs the core's actions on the card.
    pub gpu: Box<dyn HostGpu>,
    /// Signalled when the card raises its interrupt. Without it [`HostGpu::take_interrupt`] is asked again and again.
    pub interrupt: Option<EventFd>,
    /// Hangs up when the connection to the card is cut. Without it the next access finds out.
    pub hangup: Option<OwnedFd>,
    /// Recorder of all events, if there is one.
    pub recorder: Option<Recorder>,
    /// Where the flight recorder is written when something went wrong, or somebody asks; nowhere if `None`.
    pub flights: Option<FlightFolder>,
    /// Whether clients may map BAR1, BAR3 and PRAMIN, if the card lets that be.
    pub windows: WindowMode,
    /// Where the host says how much memory is left.
    pub room: HostRoom,
    /// Sockets to listen on. VMs in this process need none, see [`Broker::attach`].
    pub vms: Vec<VmSocket>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("vms", &self.vms)
            .finish_non_exhaustive()
    }
}

/// State that the event loop, the links and the handle share.
pub(crate) struct Shared {
    performer: Mutex<Performer>,
    flights: Option<FlightFolder>,
    next_request: AtomicU64,
    pub(crate) status: Arc<Status>,
    pub(crate) questions: Questions,
    pub(crate) seating: Seating,
    /// Wakes the event loop: a socket's VM has answers, or the loop is to stop.
    pub(crate) wake: Arc<Waker>,
    /// Signalled from the SIGBUS handler.
    pub(crate) torn: Arc<EventFd>,
    /// Lets go of what VMs in this process leave.
    pub(crate) reaper: Reaper,
    /// The card is up: clients may come.
    pub(crate) is_open: AtomicBool,
    pub(crate) is_stopping: AtomicBool,
    /// Sizes of the BARs that guests see.
    pub(crate) bars: BarSizes,
    /// Clients are given a file to map in the place of BAR1, BAR3 and PRAMIN.
    pub(crate) lets_windows: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Enters the broker. `Err` once it has ended, or after a panic in it: its state may then be wrong, so it is not
    /// used any more.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Performer>, Ended> {
        let Ok(performer) = self.performer.lock() else {
            self.status.end("a thread of the broker panicked");
            self.wake.wake();
            return Err(self.status.ended().unwrap_or_else(|| Ended {
                reason: "a thread panicked".into(),
            }));
        };
        performer.check_running()?;
        Ok(performer)
    }

    /// `Err` once the broker has ended.
    pub(crate) fn check_running(&self) -> Result<(), Ended> {
        self.lock().map(drop)
    }

    /// An id that no other request has.
    pub(crate) fn next_request(&self) -> RequestId {
        // Only uniqueness matters.
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }
}

/// A running broker. Dropping it ends it: every VM is detached, sockets are removed, the card is released.
#[derive(Debug)]
pub struct Broker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Listens, brings the card up and lets clients in. Returns when the card is up.
    pub fn start(setup: Setup) -> Result<Self, StartError> {
        let capabilities = setup.gpu.capabilities();
        let bars = BarSizes::of(&capabilities)?;
        let lets_windows = capabilities.lets_windows(setup.windows);
        let status = Arc::new(Status::default());
        let asks = setup.interrupt.is_none();
        let wake = Arc::new(Waker::new(event_fd()?));
        let mut performer = Performer::new(
            setup.core,
            setup.gpu,
            setup.recorder,
            setup.flights.clone(),
            asks,
            status.clone(),
            wake.clone(),
        )?;
        performer.memory().set_room(setup.room);
        for vm in &setup.vms {
            performer.roster.list(vm.config.clone(), vm.hold);
        }
        let shared = Arc::new(Shared {
            performer: Mutex::new(performer),
            flights: setup.flights,
            next_request: AtomicU64::new(1),
            status,
            questions: Questions::default(),
            seating: Seating::default(),
            wake,
            torn: Arc::new(event_fd()?),
            reaper: Reaper::start().map_err(|source| StartError::System {
                what: "a thread that frees memory",
                source,
            })?,
            is_open: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            bars,
            lets_windows,
        });
        let seats = setup
            .vms
            .into_iter()
            .map(|vm| Seat::bind(vm, shared.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let event_loop = EventLoop::new(shared.clone(), seats, setup.interrupt, setup.hangup);
        let thread = event_loop::spawn(event_loop)?;
        // From here on an early return drops the handle, which stops the thread.
        let broker = Self {
            shared,
            thread: Some(thread),
        };
        broker.bring_up()?;
        Ok(broker)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn shared_arc(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn bring_up(&self) -> Result<(), StartError> {
        let card = |reason| StartError::Card { reason };
        self.shared
            .lock()
            .map_err(|ended| card(ended.reason))?
            .submit(Event::Start);
        match self.shared.status.wait_started(START_MAX) {
            Some(Ok(())) => {}
            Some(Err(reason)) => return Err(card(reason)),
            None => return Err(card(format!("it is not up after {} s", START_MAX.as_secs()))),
        }
        self.shared.is_open.store(true, Ordering::SeqCst);
        self.shared.wake.wake();
        Ok(())
    }

    /// Attaches a VM of this process. Waits for the answer, at most 5 seconds.
    pub fn attach(&self, config: VmConfig) -> Result<LocalLink, AttachError> {
        LocalLink::attach(self.shared.clone(), config)
    }

    /// All figures as they are now, or were when the broker ended.
    pub fn snapshot(&self) -> BrokerStats {
        // Counting on after a panic would be wrong, reading the counts is not.
        self.shared
            .performer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .stats()
            .snapshot()
    }

    /// Writes what happened last to a file, with the reason why, and names it. The broker goes on meanwhile, or has ended.
    pub fn write_flight(&self, reason: &str) -> Result<PathBuf, FlightError> {
        let folder = self.shared.flights.as_ref().ok_or(FlightError::NoFolder)?;
        // As with the figures: reading is right even after a panic.
        let performer = self.shared.performer.lock();
        let performer = performer.unwrap_or_else(PoisonError::into_inner);
        let (now, flight) = performer.flight();
        let state = performer.inspect("");
        // The file is written without the lock.
        drop(performer);
        folder.write(reason, now, &flight, state.as_ref())
    }

    /// The state of what decides at `path`, such as `vms/vm1/chunks/list`; everything but long lists at the empty one.
    /// `None` if there is nothing at the path.
    pub fn inspect(&self, path: &str) -> Option<Node> {
        let performer = self.shared.performer.lock();
        performer.unwrap_or_else(PoisonError::into_inner).inspect(path)
    }

    /// As if the host's files lay below another folder.
    #[cfg(test)]
    pub(crate) fn set_host(&self, root: &std::path::Path) {
        let room = HostRoom::open(root);
        self.shared.lock().expect("it runs").memory().set_room(room);
    }

    #[cfg(test)]
    pub(crate) fn reaper(&self) -> &Reaper {
        &self.shared.reaper
    }

    /// Waits until the broker has ended by itself: the card is lost. `None` if it has not within `timeout`.
    pub fn wait_ended(&self, timeout: Duration) -> Option<Ended> {
        self.shared.status.wait_ended(timeout)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the broker's event loop panicked");
        }
        if let Ok(mut performer) = self.shared.lock() {
            performer.end("it was stopped");
        }
    }
}

fn event_fd() -> Result<EventFd, StartError> {
    EventFd::new(EFD_NONBLOCK).map_err(|source| StartError::System {
        what: "an eventfd",
        source,
    })
}

#[cfg(test)]
mod tests;
