//! What a compute kernel may load and store: abstract interpretation of its code with the parameters of a launch.
//!
//! ```text
//!   code from the entry on ──graph──► blocks by place and control stack
//!                                       │  fixpoint: a state for each block, joined until nothing changes
//!   grid, block, constant banks ────────┤    step ─► integer, wide, compare: what an instruction does to it
//!                                       ▼
//!                                     Sets: for each global access root, interval of bytes, load or store, bound
//! ```
//!
//! A number of a thread is a sum over its thread and block numbers, the iterations of loops and an interval (`form`). An
//! address is the sum of two words with a carry; words remember of which pair they are a half (`value`). A bound says what
//! is known of an access:
//!
//! * [`Bound::Exact`]: all its bytes are in the interval;
//! * [`Bound::Run`]: it depends on data, and the pointer that it was reckoned from is known. Programs that keep to their
//!   buffers stay in the mapped run of memory that holds the pointer; whoever cannot rely on that takes the interval,
//!   which holds for any data;
//! * [`Bound::Space`]: it may be anywhere.
//!
//! A thread is followed by itself: a join goes to the entry on top of its control stack, as divergence masks do for each
//! lane. What is not understood (indirect branches, traps, words that are no instruction, code that is not there, more work
//! than the limits allow) makes the whole kernel one access to anywhere ([`Sets::reason`]). Nothing here panics on any
//! bytes, and work is bounded by [`Limits`].
#![forbid(unsafe_code)]

mod cache;
mod compare;
mod fixpoint;
mod form;
mod graph;
mod integer;
mod kernel;
mod live;
mod overwrite;
mod sets;
mod state;
mod step;
mod value;
mod wide;

pub use cache::Cache;
pub use kernel::{Bank, Kernel, Limits, analyse};
pub use sets::{Access, Bound, Kind, Reason, Root, Sets};
