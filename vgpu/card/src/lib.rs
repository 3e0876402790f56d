//! A software card that runs: [`vgpu::HostGpu`] over the GPU model in this process, and the card served to another
//! process as a PCI device over vfio-user.
//!
//! [`ModelGpu::new`] powers a card on for a broker of the same process. [`GpuServer`] serves one on a socket.
//! [`BareMachine`] gives one to the code of a guest, with nothing in between.

mod bare_machine;
mod frames;
mod maps;
mod model_gpu;
mod running;
mod served;

pub use bare_machine::BareMachine;
pub use model_gpu::{CardConfig, CardCounters, CardError, ModelGpu};
pub use running::CardLost;
pub use served::{GpuError, GpuServer, GpuSetup};
/// What a served card listens on: its parameters are these.
pub use vfio_user_server::{BoundSocket, SocketAccess};
