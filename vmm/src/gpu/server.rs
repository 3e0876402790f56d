//! The socket of a served card: who may come, and what happens when somebody goes.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use fermi_model::ModelError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vfio_user_server::listener::ListenerError;
use vfio_user_server::pci::PciError;
use vfio_user_server::{Accepted, CloseReason, Errno, FunctionInfo, Listener};

use super::function::{config_space, function};
use super::pins::Pins;
use super::session::{Left, Session};
use super::vram::{Vram, VramError};
use crate::card::{CardConfig, CardLost, DmaMaps, RunningCard};

/// Longest time between two looks at whether the server is to stop.
const LOOK_PERIOD: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// What to serve.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// The card.
    pub card: CardConfig,
    /// Where clients connect.
    pub socket: PathBuf,
}

/// Why a card is not served, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The card's settings.
    #[error("cannot make the software card")]
    Model(#[from] ModelError),
    /// The card's memory.
    #[error(transparent)]
    Vram(#[from] VramError),
    /// The card's configuration space.
    #[error("cannot make a configuration space")]
    Config(#[from] PciError),
    /// The card's thread.
    #[error("cannot start the card's thread")]
    Thread(#[source] io::Error),
    /// An eventfd.
    #[error("cannot create an eventfd")]
    Event(#[source] io::Error),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenerError),
    /// The socket, later.
    #[error("cannot accept clients")]
    Accept(#[source] io::Error),
    /// Waiting for clients.
    #[error("cannot wait for clients")]
    Poll(#[source] io::Error),
    /// The model had a fault of its own.
    #[error(transparent)]
    Lost(#[from] CardLost),
}

/// The card, whoever uses it.
pub(super) struct ServedCard {
    config: CardConfig,
    pub(super) running: RunningCard<Pins>,
    vram: Vram,
    maps: Arc<DmaMaps>,
}

impl ServedCard {
    fn new(config: CardConfig) -> Result<(Self, FunctionInfo), GpuError> {
        let space = config_space(config.board)?;
        let info = function(&space);
        let maps = Arc::new(DmaMaps::default());
        let vram = Vram::new(config.vram_bytes)?;
        let mut model = config.power_on(maps.clone())?;
        vram.place(&mut model)?;
        let running = RunningCard::start(model, Pins::new(space)).map_err(GpuError::Thread)?;
        let card = Self {
            config,
            running,
            vram,
            maps,
        };
        Ok((card, info))
    }

    /// Registers, configuration space and VRAM are as after power-on; nobody is connected to the interrupts. DMA maps
    /// stay: they are the bus's, not the card's.
    pub(super) fn power_on(&self) -> Result<(), GpuError> {
        let mut fresh = self.config.power_on(self.maps.clone())?;
        self.vram.place(&mut fresh)?;
        self.running.access(|model, pins| {
            *model = fresh;
            pins.reset();
            self.vram.clear()
        })??;
        Ok(())
    }
}

/// See the module.
pub struct GpuServer {
    listener: Listener,
    info: FunctionInfo,
    card: ServedCard,
    session: Option<Session>,
}

impl GpuServer {
    /// Powers a card on and listens.
    pub fn bind(setup: &GpuSetup) -> Result<Self, GpuError> {
        let listener = Listener::bind(&setup.socket)?;
        let (card, info) = ServedCard::new(setup.card)?;
        Ok(Self {
            listener,
            info,
            card,
            session: None,
        })
    }

    /// Serves one client after the other until `is_stop_requested`, which is asked at least ten times a second.
    pub fn serve(&mut self, is_stop_requested: impl Fn() -> bool) -> Result<(), GpuError> {
        while !is_stop_requested() {
            let is_knocking = self.wait()?;
            if let Some(session) = &mut self.session
                && let Some(left) = session.turn(&self.card)?
            {
                self.dismiss(&left)?;
            }
            if is_knocking {
                self.admit()?;
            }
        }
        Ok(())
    }

    /// Waits until there is something to do. Whether somebody connected.
    fn wait(&self) -> Result<bool, GpuError> {
        let mut files = vec![PollFd::new(&self.listener, PollFlags::IN)];
        if let Some(session) = &self.session {
            if session.client.has_failed() {
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
        match self.listener.accept(&self.info).map_err(GpuError::Accept)? {
            Some(Accepted::Client(client)) => {
                self.session = Some(Session::new(*client, self.card.maps.clone())?);
                log::info!("a client has connected");
            }
            Some(Accepted::RefusedBusy) => log::warn!("a second client is refused: one is attached"),
            Some(Accepted::RefusedOutOfDescriptors) => {
                log::warn!("a client is refused: this process can hold no more descriptors");
            }
            None => {}
        }
        Ok(())
    }

    /// Nothing of the client is left, and the card is as new.
    fn dismiss(&mut self, left: &Left) -> Result<(), GpuError> {
        match left {
            Left::Closed(CloseReason::HungUp) => log::info!("the client has gone"),
            Left::Closed(reason) => log::warn!("the client's connection is closed: {reason}"),
            Left::TookMemoryAway => {
                log::warn!("the client is hung up on: it took memory away that it had offered")
            }
        }
        // First the maps, so that no engine reaches the client's memory while the card is made anew.
        self.card.running.access(|_, _| self.card.maps.clear())?;
        self.session = None;
        self.card.power_on()
    }
}
