//! A broker in this process, with a software card beside it, a card in another process, or one of this host.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use broker::{
    Broker, FlightFolder, HostRoom, OWN_BYTES, PciAddress, RecordError, Recorder, RemoteGpu, RemoteGpuError,
    Setup, StartError, VfioGpu, VfioGpuError, VmSocket,
};
use fermi_spec::board::Board;
use vgpu::{GpuConfig, HostGpu, Manager};
use vmm_sys_util::eventfd::EventFd;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::firmware::{self, Firmware, FirmwareError};
use card::{CardConfig, CardCounters, CardError, ModelGpu};

/// The card that a broker drives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CardChoice {
    /// A software card in this process.
    Model(CardConfig),
    /// A card that another process serves at this socket.
    VfioUser(PathBuf),
    /// A card of this host at this PCI address.
    Vfio(PciAddress),
}

/// Workers of a card that anybody could want: more processors than a large host has.
pub(crate) const WORKERS_MAX: u32 = 255;

impl CardChoice {
    /// Gives a software card threads for blocks of grids.
    pub(crate) fn set_workers(&mut self, workers: u32) -> Result<(), String> {
        match self {
            _ if workers == 0 => Ok(()),
            CardChoice::Model(_) if workers > WORKERS_MAX => {
                Err(format!("{workers} workers are more than {WORKERS_MAX}"))
            }
            CardChoice::Model(config) => {
                config.workers = workers;
                Ok(())
            }
            CardChoice::VfioUser(_) => {
                Err("the workers of a card in another process are set where it is served".to_owned())
            }
            CardChoice::Vfio(_) => Err("a card of the host executes by itself".to_owned()),
        }
    }
}

/// Parameters of a broker.
#[derive(Debug)]
pub struct HostSetup {
    /// Card to drive.
    pub card: CardChoice,
    /// What its memory manager is set to. What the card itself says is filled in when it is opened, and microcode when
    /// the folder is read.
    pub settings: GpuConfig,
    /// Folder with microcode for the card's copy engines, should they have none, and for its PGRAPH.
    pub firmware: Option<PathBuf>,
    /// File to record every event to.
    pub record: Option<PathBuf>,
    /// Where the flight recorder is written when something went wrong.
    pub flights: Option<FlightFolder>,
    /// Sockets to listen on.
    pub vms: Vec<VmSocket>,
}

/// Why the broker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The software card could not be made.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The card of the other process could not be used.
    #[error(transparent)]
    RemoteCard(#[from] RemoteGpuError),
    /// The card of this host could not be used.
    #[error(transparent)]
    HostCard(#[from] VfioGpuError),
    /// The microcode could not be read.
    #[error(transparent)]
    Firmware(#[from] FirmwareError),
    /// The recording could not be made.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The broker itself.
    #[error("cannot start the broker")]
    Start(#[from] StartError),
}

/// A broker that is ready to start, with what takes rights or files of the host already opened.
pub struct Prepared {
    setup: HostSetup,
    firmware: Option<Firmware>,
    /// A card of the host. The others are made or connected to when the broker starts.
    of_host: Option<Card>,
    room: HostRoom,
}

impl Prepared {
    /// Reads microcode, and opens a card of the host and what says how much memory the host has. Starts no thread.
    pub fn open(setup: HostSetup) -> Result<Prepared, HostError> {
        // Read before the card is touched: an error in a file shall not cost it a reset.
        let firmware = setup.firmware.as_deref().map(firmware::read).transpose()?;
        let is_of_host = matches!(setup.card, CardChoice::Vfio(_));
        let of_host = is_of_host.then(|| setup.card.clone().open()).transpose()?;
        Ok(Prepared {
            setup,
            firmware,
            of_host,
            room: HostRoom::open(Path::new("/")),
        })
    }

    /// Makes the card or attaches to it, brings it up and listens.
    pub fn start(self) -> Result<Broker, HostError> {
        start_prepared(self).map(|(broker, _)| broker)
    }
}

/// A card, and the counters that show it.
struct Card {
    gpu: Box<dyn HostGpu>,
    interrupt: EventFd,
    hangup: Option<OwnedFd>,
    board: Board,
    counters: Option<CardCounters>,
}

impl CardChoice {
    fn open(self) -> Result<Card, HostError> {
        match self {
            CardChoice::Model(config) => {
                let gpu = ModelGpu::new(config)?;
                Ok(Card {
                    interrupt: gpu.interrupt()?,
                    hangup: None,
                    board: config.board,
                    counters: Some(gpu.counters()),
                    gpu: Box::new(gpu),
                })
            }
            CardChoice::VfioUser(path) => {
                let gpu = RemoteGpu::connect(&path)?;
                Ok(Card {
                    interrupt: gpu.interrupt()?,
                    hangup: Some(gpu.hangup()?),
                    board: gpu.board(),
                    counters: None,
                    gpu: Box::new(gpu),
                })
            }
            CardChoice::Vfio(at) => {
                let gpu = VfioGpu::open(at)?;
                Ok(Card {
                    interrupt: gpu.interrupt()?,
                    hangup: None,
                    board: gpu.board(),
                    counters: None,
                    gpu: Box::new(gpu),
                })
            }
        }
    }
}

/// Makes the card or attaches to it, brings it up and listens.
pub fn start_broker(setup: HostSetup) -> Result<Broker, HostError> {
    Prepared::open(setup)?.start()
}

/// Does the same, and returns the counters of the card if it is in this process.
pub(crate) fn start_counted(setup: HostSetup) -> Result<(Broker, Option<CardCounters>), HostError> {
    start_prepared(Prepared::open(setup)?)
}

fn start_prepared(prepared: Prepared) -> Result<(Broker, Option<CardCounters>), HostError> {
    let Prepared {
        setup,
        firmware,
        of_host,
        room,
    } = prepared;
    let is_of_host = of_host.is_some();
    let card = of_host.map_or_else(|| setup.card.open(), Ok)?;
    let capabilities = card.gpu.capabilities();
    let (copy, graph) = firmware.map_or((None, None), |of| (Some(of.copy), of.graph));
    let graph = graph.or(capabilities.graph);
    if is_of_host && graph.is_none() {
        log::warn!(
            "PGRAPH has no microcode: guests copy, but neither compute nor draw; gpu.firmware names a folder with some"
        );
    }
    if capabilities.bus.pins
        && let Some(warning) = memlock_warning(
            locked_memory_limit(),
            setup.vms.iter().map(VmSocket::guest_vram).sum(),
        )
    {
        log::warn!("{warning}");
    }
    let config = GpuConfig {
        board: card.board,
        bar1_bytes: capabilities.bar1_bytes,
        bar3_bytes: capabilities.bar3_bytes,
        frames_arrive_zeroed: capabilities.frames_arrive_zeroed,
        bus: capabilities.bus,
        microcode: copy,
        graph,
        sampling_key: RandomState::new().hash_one(()),
        ..setup.settings
    };
    let record = |path: &Path| Recorder::create(path, &config);
    let windows = config.windows;
    let recorder = setup.record.as_deref().map(record).transpose()?;
    let broker = Broker::start(Setup {
        core: Box::new(Manager::new(config)),
        gpu: card.gpu,
        interrupt: Some(card.interrupt),
        hangup: card.hangup,
        recorder,
        flights: setup.flights,
        windows,
        room,
        vms: setup.vms,
    })?;
    Ok((broker, card.counters))
}

/// Bytes that this process may lock; `None` without a limit, or with the right to exceed it.
fn locked_memory_limit() -> Option<u64> {
    let may_exceed = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !may_exceed)
}

/// The warning for a limit that is too low for the memory that a card of the host can have pinned: the
/// broker's own memory, and the VRAM of all VMs if all of it is in host RAM. The VMs' RAM, whose size their
/// VMMs choose, comes on top.
fn memlock_warning(limit: Option<u64>, guest_vram: u64) -> Option<String> {
    let pinned = OWN_BYTES + guest_vram;
    let limit = limit.filter(|limit| *limit < pinned)?;
    Some(format!(
        "the limit of locked memory ({} MiB) is below what can be pinned: {} MiB of guest VRAM in host RAM, and the VMs' RAM \
         besides. Spills may be refused; raise it (ulimit -l, LimitMEMLOCK=)",
        limit >> 20,
        pinned.div_ceil(1 << 20)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_below_what_can_be_pinned_is_told() {
        let vms = (64 + 192) << 20;
        let warning = memlock_warning(Some(256 << 20), vms).unwrap();
        assert!(
            warning.contains("(256 MiB)") && warning.contains("257 MiB"),
            "{warning}"
        );
        assert_eq!(memlock_warning(Some(257 << 20), vms), None);
        assert_eq!(memlock_warning(None, vms), None);
    }
}
