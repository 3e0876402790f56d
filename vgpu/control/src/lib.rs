//! The control API: what may be asked of the broker of a host, and what it answers.
//!
//! One type for each verb is the command line's arguments (feature `cli`), the body of the request, and its schema in the document of
//! the API (feature `openapi`). Nothing here reads or writes: [`client`] makes requests and reads answers, and whoever uses it carries
//! them.
//!
//! Sizes are bytes in JSON. A type refuses fields that it does not have when it is a request; an answer may gain fields.

pub mod client;
mod event;
mod gpu;
mod hold;
mod look;
mod place;
mod quota;
mod refusal;
mod vm;
mod whole;

pub use event::{Event, EventKind, Events};
pub use gpu::{GoneGpu, Gpu, GpuChange, GpuChanged, Gpus};
pub use hold::{Hold, HoldChanged, Spill};
pub use look::{State, Trace, TraceLine};
pub use place::{Attach, Detached, PlaceSource};
pub use quota::{Bound, Quota, QuotaChange, QuotaChanged, QuotaSource, Unbounded};
pub use refusal::{Refusal, RefusalKind};
pub use vm::{Account, Pauses, SpilledFor, Usage, Vm, Vms, Waits};
