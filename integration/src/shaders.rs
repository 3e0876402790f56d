//! Shader programs run twice: by the software card, and by an evaluator that shares no code with it.
//!
//! ```text
//!   seed ─► generator ─► Program ─┬─► runner: card, channel, class 90c0 ─► memory ─┐
//!                                 └─► evaluator: one lane at a time ─────► memory ─┴─► differential: the same?
//! ```
//!
//! * [`launch`]: the input of both; [`memory`]: memory as the evaluator has it
//! * `exact`: arithmetic without rounding; [`evaluator`]: the effects of instructions according to the sources
//! * `generator`: programs that have one result in any order of warps
//! * [`predicted`]: what launches reach, against what their code says they may
//! * [`runner`]: a launch on the software card; [`differential`]: the comparison, and programs made smaller

pub mod differential;
pub mod evaluator;
mod exact;
pub mod generator;
pub mod launch;
pub mod memory;
pub mod predicted;
pub mod runner;

pub use launch::Launch;
