//! Everything together: simulator, checkers, virtual machine tests, benches.
//!
//! * [`mod@bench`]: a host with VMs attached, for tests
//! * [`canary`], [`rig`]: guests for it, one that must not be harmed and one that builds what it likes
//! * [`hostile`]: guests that try to do harm
//! * [`keeper`]: a guest that keeps an engine for ever, beside one that waits for it
//! * [`contenders`]: guests that want an engine together, and what each gets of it
//! * [`crowd`]: a guest with more channels than the card has numbers for
//! * [`lender`]: a guest that rests, and lends its memory to one that works
//! * [`heir`]: a channel that gets its number on the card from one that made an error
//! * [`opener`]: a guest that opens channels while its memory moves
//! * [`neighbour`]: a VM whose work is checked beside one that does harm, at a broker in real time
//! * `raw_client`, `commands`: messages that no VMM would send
//! * [`witness`]: a guest that knows what every byte of its memory has to be
//! * [`checkers`]: the laws, checked against the card's own tables
//! * [`watch`]: the simulated host, crate `sim_host`, with its laws; `laws`: those that are checked between any two events; `fair`: what holds of shares when memory is at rest
//! * [`sim`]: a whole run from one seed; [`rewrite`]: with a core that is written and read in between
//! * `card`: a software card alone, with channels; [`shaders`]: programs on it and on an evaluator of their own
//! * [`fuzz`]: the bodies of the fuzz targets
#![forbid(unsafe_code)]

pub mod bench;
pub mod canary;
mod card;
pub mod checkers;
mod commands;
pub mod contenders;
pub mod crowd;
mod fair;
pub mod fuzz;
pub mod heir;
pub mod hostile;
pub mod keeper;
mod laws;
pub mod lender;
mod liar;
#[cfg(feature = "programs")]
pub mod neighbour;
pub mod opener;
#[cfg(feature = "programs")]
mod raw_client;
pub mod rewrite;
pub mod rig;
pub mod shaders;
pub mod sim;
#[cfg(feature = "programs")]
pub mod solo;
pub mod tables;
pub mod watch;
pub mod windows;
pub mod witness;
