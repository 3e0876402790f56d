//! The edges of the broker: event loop, sockets, mappings, and the card.
//!
//! | module | owns |
//! | --- | --- |
//! | [`broker`](Broker) | starting, attaching, asking, stopping |
//! | `perform`, `vms` | one event after the other into the core, its actions in order; rules of the lock |
//! | `port` | the trait of the deciding core, the trait of the VMs' ends |
//! | `questions`, `seating` | what an operator asks, and VMs that come and go, done by the event loop |
//! | `link` | a VM in this process |
//! | `event_loop`, `server`, `session`, `remote`, `signaller` | VMs behind vfio-user sockets |
//! | `remote_gpu`, `vfio_gpu`, `pci_card` | a card in another process, or of this host |
//! | `pci_host` | the host's PCI functions and their drivers |
//! | `pci_function` | the PCI function that a guest sees |
//! | `memory`, `mapping`, `sigbus` | guests' RAM, images, own DMA memory, and surviving their loss |
//! | `lending`, `remap`, `windows` | pages of images that live in the file that a client maps as BAR1, BAR3 and PRAMIN |
//! | `record`, `replay` | a run as a file, and the file as a run |
//! | `flights` | what happened last, as a file when something went wrong |
//! | `stats`, `notices`, `ratelimit` | figures and log lines |

mod broker;
mod error;
mod event_loop;
mod flights;
mod happenings;
mod image;
mod lending;
mod link;
mod mapping;
mod memory;
mod notices;
mod pci_card;
mod pci_function;
mod pci_host;
mod perform;
mod polls;
mod populator;
mod port;
mod questions;
mod ratelimit;
mod record;
mod remap;
mod remote;
mod remote_gpu;
mod replay;
mod room;
mod seating;
mod server;
mod session;
mod sigbus;
mod signaller;
mod spread;
mod stats;
mod status;
mod sweep;
#[cfg(test)]
mod testing;
mod vfio_gpu;
mod vms;

pub use broker::{Broker, Setup, VmSocket};
pub use error::{AttachError, Ended, LinkError, StartError};
pub use flights::{FlightError, FlightFile, FlightFolder, FlightHeader};
pub use happenings::{Happening, HappeningKind, Happenings};
pub use lending::Loan;
pub use link::LocalLink;
pub use mapping::{MapError, PAGE, punch_hole, sealed_memfd};
pub use memory::{ClientFiles, DESCRIPTORS_OF_A_VM, FileMap, OWN_BYTES};
pub use pci_host::{PciAddress, PciAddressError, PciFunction, PciHostError, VFIO_DRIVER};
pub use perform::VMS_MAX;
pub use port::Core;
pub use questions::{
    HoldChange, HoldChanged, HoldRefusal, HostRamChanged, LookRefusal, Picture, Presence, QuotaChanged,
    QuotaRefusal, StatePart, VmPicture,
};
pub use record::{RecordError, Recorder};
pub use remap::show;
pub use remote_gpu::{RemoteGpu, RemoteGpuError};
pub use replay::{Compared, Difference, Replay, ReplayError, ReplaySummary};
pub use room::{HostRoom, HostShort};
pub use seating::{LeaveRefusal, Left, PlaceRefusal};
pub use sigbus::MapOwner;
pub use spread::{SPREAD_BOUNDS_NS, SPREAD_BOUNDS_RATE, Spread, VmSpreads};
pub use stats::{Accesses, BrokerStats, Pauses, VmStats};
pub use vfio_gpu::{VfioGpu, VfioGpuError};
pub use vfio_user_server::SocketAccess;
