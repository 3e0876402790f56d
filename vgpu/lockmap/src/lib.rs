//! Numbers of units, given to several threads at once: random walks over a bitmap, with a LockMap.
//!
//! This is RW-BM of Pham et al., "Dynamic Memory Management in Massively Parallel Systems: A Case on GPUs", section 4.1, on a host with
//! words of 64, and the LockMap of sections 4.1.1 and 4.2: a second bitmap with a bit for each word of the first. Whoever sets a word's bit there
//! may take from that word. Whoever finds it set does not wait: to him the word is full, and he draws the next one. To give back is to
//! clear a bit (section 3.1, "Deallocation"), without the lock.
//!
//! ```text
//!            ┌─────────── full, or locked by another ───────────┐
//! take ─► draw a word ─► set its lock ─► look ─► set a bit ─► clear the lock ─► [`Ended::Took`]
//!            └─ too many draws ─► all words in order, as above ─► [`Ended::Full`] or [`Ended::HeldUp`]
//! ```
//!
//! Rules, which `units::models` tries in the orders of a few threads' accesses:
//! 1. A bit of the bitmap is set only by the thread that set its word's bit in the LockMap, and only one that it has seen clear since.
//! 2. A bit of the LockMap is cleared only by the thread that set it.
//! 3. A bit of the bitmap is cleared by whoever has the unit, at any time. So it changes together with its neighbours or not at all:
//!    all changes are one atomic operation.
//! 4. By 1 and 3 a unit that the lock's holder saw free stays free until he takes it: nobody gets a unit that another has.
//! 5. To take the lock acquires and to clear it releases: the next holder sees all bits that the last one set. To give a unit back
//!    releases and to look at its word acquires: what one thread did with a unit is done before the next one has it.
//!
//! Nothing here waits or makes a system call, and each call is bounded. What the units are is the caller's.

mod units;

pub use units::{Ended, NotTaken, Search, Units};
