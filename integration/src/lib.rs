//! Everything together: simulator, checkers, virtual machine tests, benches.
//!
//! * [`world`]: a host on one thread, core and card and memory, with a clock of its own
//! * [`bus`]: a guest on that host; its thread runs only while the simulation waits for it
//! * [`hostile`]: guests that try to do harm
//! * [`checkers`]: the laws, checked against the card's own tables
//! * [`sim`]: a whole run from one seed
#![forbid(unsafe_code)]

pub mod bus;
pub mod checkers;
pub mod hostile;
pub mod sim;
pub mod world;
