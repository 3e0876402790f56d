//! The socket of a served card: admission of clients, and the end of their sessions.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use broker::{PAGE, sealed_memfd};
use fermi_model::{DoorbellWatcher, ModelError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vfio_user_server::{Accepted, BoundSocket, CloseReason, Errno, Listener};

use super::front::Front;
use super::function::function;
use super::live::{FILE_BYTES, LiveCounts, LiveWindows};
use super::session::{Left, Notes, Session};
use super::trace::Trace;
use super::vram::{Vram, VramError};
use crate::maps::DmaMaps;
use crate::model_gpu::CardConfig;
use crate::running::{CardLost, RunningCard};

/// Longest time between two looks at the request to stop.
const LOOK_PERIOD: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Parameters of the server.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// Card to serve.
    pub card: CardConfig,
    /// Every access is a message: BAR3 and PRAMIN cannot be mapped.
    pub is_all_trapped: bool,
    /// File to write every access and command to.
    pub trace: Option<PathBuf>,
}

/// Why a card cannot be served, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The card's settings.
    #[error("cannot make the software card")]
    Model(#[from] ModelError),
    /// The card's memory.
    #[error(transparent)]
    Vram(#[from] VramError),
    /// The card's thread.
    #[error("cannot start the card's thread")]
    Thread(#[source] io::Error),
    /// The file behind BAR3 and PRAMIN.
    #[error("cannot make a file for BAR3 and PRAMIN")]
    Window(#[source] io::Error),
    /// The trace cannot be written.
    #[error("cannot write a trace to {}", path.display())]
    Trace {
        /// Path of the trace's file.
        path: PathBuf,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// An eventfd cannot be created.
    #[error("cannot create an eventfd")]
    Event(#[source] io::Error),
    /// The thread that closes what clients leave.
    #[error("cannot start a thread")]
    Helpers(#[source] io::Error),
    /// The listening socket failed later.
    #[error("cannot accept clients")]
    Accept(#[source] io::Error),
    /// Waiting for clients.
    #[error("cannot wait for clients")]
    Poll(#[source] io::Error),
    /// The model had a fault of its own.
    #[error(transparent)]
    Lost(#[from] CardLost),
}

/// The card, independent of its client.
pub(super) struct ServedCard {
    config: CardConfig,
    /// It has no power: it reads ones, takes nothing in, and does nothing by itself.
    is_dead: bool,
    pub(super) running: RunningCard<Front>,
    vram: Arc<Vram>,
    maps: Arc<DmaMaps>,
}

impl ServedCard {
    fn new(config: CardConfig) -> Result<Self, GpuError> {
        let maps = Arc::new(DmaMaps::with_strays());
        let vram = Arc::new(Vram::new(config.vram_bytes)?);
        let mut model = config.power_on(maps.clone())?;
        vram.place(&mut model)?;
        let running = RunningCard::start(model, Front::default(), config).map_err(GpuError::Thread)?;
        Ok(Self {
            config,
            is_dead: false,
            running,
            vram,
            maps,
        })
    }

    /// Resets registers, configuration space and VRAM to their state after power-on; interrupts are disconnected.
    /// DMA maps stay: they belong to the bus, not to the card. A dead card stays dead, and idle.
    pub(super) fn power_on(&self) -> Result<(), GpuError> {
        let mut fresh = self.config.power_on(self.maps.clone())?;
        self.vram.place(&mut fresh)?;
        self.running.access(|model, front| {
            front.graphics.add(model.counters());
            let watcher = model.take_doorbell_watcher();
            fresh.take_workers_of(model);
            *model = fresh;
            if let Some(mut watcher) = watcher {
                watcher.bound(None);
                model.watch_doorbells(Some(watcher));
            }
            front.pins.reset();
            self.vram.clear()?;
            front.live.as_mut().map_or(Ok(()), LiveWindows::forget)?;
            self.show_death(front)
        })??;
        Ok(())
    }

    /// Takes the card's power away, or gives it back; either way all its state is lost.
    fn set_dead(&mut self, is_dead: bool) -> Result<(), GpuError> {
        if self.is_dead == is_dead {
            return Ok(());
        }
        self.is_dead = is_dead;
        log::info!("the card's power is {}", if is_dead { "cut" } else { "back" });
        self.power_on()
    }

    /// The state that an access meets, in the client's mapping too.
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    fn show_death(&self, front: &mut Front) -> Result<(), VramError> {
        match &mut front.live {
            Some(live) if self.is_dead => live.show_ones(),
            _ => Ok(()),
        }
    }

    /// Starts a client's session: from now on the pages that windows show live in `window`, if there is one.
    ///
    /// Returns the counts of the window before.
    fn follow_with(&self, window: Option<Arc<File>>) -> Result<LiveCounts, GpuError> {
        let live = window.map(|file| LiveWindows::new(self.vram.clone(), file));
        let before = self.running.access(|_, front| {
            let before = std::mem::replace(&mut front.live, live);
            self.show_death(front).map(|()| before)
        })??;
        Ok(before.map_or_else(LiveCounts::default, |before| before.counts))
    }

    /// Whether the parts that follow the card still can.
    fn check(&self) -> Result<(), GpuError> {
        let failure = self.running.access(|_, front| front.failure.take())?;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Whether this host lets a process have the mappings that a live window may take: two for each page of it, and
/// those of the rest of the process.
fn can_live() -> bool {
    const OTHERS: u64 = 16_384;
    let wanted = 2 * (FILE_BYTES / PAGE) + OTHERS;
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let can = limit.is_some_and(|limit| limit >= wanted);
    if !can {
        log::warn!("BAR3 and PRAMIN are served by messages: vm.max_map_count is below {wanted}");
    }
    can
}

/// A served card with its socket.
pub struct GpuServer {
    listener: Listener,
    card: ServedCard,
    is_all_trapped: bool,
    notes: Notes,
    windows: LiveCounts,
    session: Option<Session>,
}

impl GpuServer {
    /// Powers a card on for the clients of `socket`.
    pub fn on(socket: BoundSocket, setup: &GpuSetup) -> Result<Self, GpuError> {
        let trace = setup.trace.as_deref().map(|path| {
            Trace::create(path).map_err(|source| GpuError::Trace {
                path: path.to_path_buf(),
                source,
            })
        });
        let notes = Notes::new(trace.transpose()?);
        let listener = Listener::of(socket).map_err(GpuError::Helpers)?;
        let card = ServedCard::new(setup.card)?;
        Ok(Self {
            listener,
            card,
            is_all_trapped: setup.is_all_trapped || !can_live(),
            notes,
            windows: LiveCounts::default(),
            session: None,
        })
    }

    /// Lets `watcher` see what channels are handed, of all clients from now on.
    pub fn watch_doorbells(&self, watcher: Box<dyn DoorbellWatcher>) -> Result<(), GpuError> {
        Ok(self
            .card
            .running
            .access(|model, _| model.watch_doorbells(Some(watcher)))?)
    }

    /// Serves one client after the other until `is_stop_requested`. While `is_power_cut` the card plays dead: it reads
    /// ones, takes nothing in, and does nothing by itself. Both are asked at least ten times a second.
    pub fn serve(
        &mut self,
        is_stop_requested: impl Fn() -> bool,
        is_power_cut: impl Fn() -> bool,
    ) -> Result<(), GpuError> {
        while !is_stop_requested() {
            let is_knocking = self.wait()?;
            self.card.set_dead(is_power_cut())?;
            if let Some(session) = &mut self.session
                && let Some(left) = session.turn(&self.card, &mut self.notes)?
            {
                self.dismiss(&left)?;
            }
            self.card.check()?;
            if is_knocking {
                self.admit()?;
            }
        }
        Ok(())
    }

    /// Counts of the messages and their effects, as lines for the operator. Ends the trace.
    pub fn finish(&mut self) -> Result<String, GpuError> {
        let mut counted = Vec::new();
        let (counters, pins, gpu_ns, live, mut graphics, played) =
            self.card.running.access(|model, front| {
                let live = front.live.as_ref().map(|live| live.counts);
                let graphics = front.graphics;
                (
                    *model.counters(),
                    front.pins.counts,
                    model.gpu_time(),
                    live,
                    graphics,
                    model.played_blocks(),
                )
            })?;
        graphics.add(&counters);
        self.windows.add(&live.unwrap_or_default());
        if !self.notes.traffic.is_none() {
            counted.push(self.notes.traffic.to_string());
            counted.push(pins.to_string());
            if !self.is_all_trapped {
                counted.push(self.windows.to_string());
            }
            counted.push(graphics.to_string());
            if self.card.config.workers > 0 {
                counted.push(format!(
                    "workers: {played} blocks of grids executed ahead of their turn"
                ));
            }
        }
        log::info!("the card at its end, {gpu_ns} ns after power-on: {counters:?}");
        counted.extend(self.notes.trace.as_mut().map(Trace::finish));
        Ok(counted.join("\n"))
    }

    /// Waits until there is something to do. Returns whether a client connected.
    fn wait(&self) -> Result<bool, GpuError> {
        let mut knocks = PollFlags::empty();
        // While descriptors of the last client are being closed, the next one waits in the queue.
        knocks.set(PollFlags::IN, self.listener.has_room());
        let mut files = vec![PollFd::new(&self.listener, knocks)];
        if let Some(session) = &self.session {
            if session.client.is_due() {
                return Ok(false);
            }
            let mut interest = PollFlags::empty();
            interest.set(PollFlags::IN, session.client.wants_read());
            interest.set(PollFlags::OUT, session.client.wants_write());
            files.push(PollFd::new(&session.client, interest));
            if let Some(unmask) = &session.unmask {
                files.push(PollFd::from_borrowed_fd(unmask.as_fd(), PollFlags::IN));
            }
        }
        match poll(&mut files, Some(&LOOK_PERIOD)) {
            Ok(_) | Err(Errno::INTR) => Ok(!files[0].revents().is_empty()),
            Err(error) => Err(GpuError::Poll(error.into())),
        }
    }

    fn admit(&mut self) -> Result<(), GpuError> {
        // Each client gets a file of its own: a client keeps the file that it was given.
        let window = if self.is_all_trapped {
            None
        } else {
            Some(sealed_memfd("vramd-windows", FILE_BYTES).map_err(GpuError::Window)?)
        };
        let descriptor = window.as_ref().map(File::try_clone).transpose();
        let descriptor = descriptor.map_err(GpuError::Window)?.map(OwnedFd::from);
        let info = function(descriptor.map(Arc::new));
        match self.listener.accept(&info).map_err(GpuError::Accept)? {
            Some(Accepted::Client(client)) => {
                self.card.follow_with(window.map(Arc::new))?;
                self.session = Some(Session::new(
                    *client,
                    self.card.maps.clone(),
                    self.listener.reaper().clone(),
                )?);
                log::info!("a client has connected");
            }
            Some(Accepted::RefusedBusy) => log::warn!("a second client is refused: one is attached"),
            Some(Accepted::RefusedUser { uid }) => log::warn!("a client of user {uid} is refused"),
            Some(Accepted::RefusedOutOfDescriptors) => {
                log::warn!("a client is refused: no file descriptors are left, raise the limit (ulimit -n)");
            }
            None => {}
        }
        Ok(())
    }

    /// Removes all traces of the client and makes the card as new.
    fn dismiss(&mut self, left: &Left) -> Result<(), GpuError> {
        match left {
            Left::Closed(CloseReason::HungUp) => log::info!("the client has gone"),
            Left::Closed(reason) => log::warn!("the client's connection is closed: {reason}"),
            Left::TookMemoryAway => {
                log::warn!("disconnecting the client: it cut a file that it had offered for DMA")
            }
        }
        // First the maps, so that no engine reaches the client's memory while the card is made anew.
        self.card.running.access(|_, _| self.card.maps.clear())?;
        self.session = None;
        self.card.power_on()?;
        let window = self.card.follow_with(None)?;
        self.windows.add(&window);
        Ok(())
    }
}
