//! The guests' GPUs and their memory: mediator and memory manager of one GPU.
//!
//! [`Manager::apply`] takes an [`Event`] and a clock reading and appends [`Action`]s. It spawns no thread, reads no
//! clock, waits for nothing and draws random numbers only from a seed, so any run can be repeated from its events.

mod account;
mod channel_error;
mod config;
mod contained;
mod device;
mod event;
pub mod flight_recorder;
mod hex;
mod host;
mod host_gpu;
pub mod inspect;
mod manager;
mod memory;
mod notice;
pub mod policy;
mod reason;
mod saved;
mod share;

pub use account::Account;
pub use config::{
    Bus, BusRange, CHANNELS_DEFAULT, CHUNK_BYTES, GUEST_VRAM_MIN, GpuConfig, Hold, Quota, RAM_DEFAULT,
    Setting, SettingUnit, ShadowMode, VmConfig, WindowMode,
};
pub use device::living::{Changes, Living, PageRun};
pub use device::pci::{CONFIG_BYTES, ConfigSpace};
pub use device::window_layout::{WindowLayout, WindowPart};
pub use event::{
    ACCESS_BYTES_MAX, Action, Actions, ChannelWatch, Event, FrameOwner, HostMemory, InterruptKind, Passage,
    Place, REQUESTS_WAITING_MAX, Refusal, Reply, Request, RequestId, Tick, Token, VmId,
};
pub use host::card::OWN_CHANNEL_NUMBER;
pub use host::graph::{GraphLists, GraphMicrocode, GraphStores};
pub use host::microcode::{Microcode, MicrocodeError};
pub use host_gpu::{Capabilities, DmaMemory, HostGpu, HostGpuError};
pub use manager::{Audit, Breach, Manager, Redirected, Standing, VmAudit, VmStanding, Volatile};
pub use memory::FrameSearch;
pub use notice::{Direction, MoveId, MoveStage, Notice, SyncWait};
pub use policy::PolicyName;
pub use reason::{
    CardOperation, ChannelFault, Denial, HostFault, Inconsistency, MoveCause, RollBack, SettingError,
    StartFailure, UsableBus,
};
pub use saved::{LoadError, Unsound};
