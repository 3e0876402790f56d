//! Turns a trapped BAR0 access into a named operation.
//!
//! A guest's access of any offset and length becomes naturally aligned pieces of 1, 2 or 4 bytes
//! ([`fermi_spec::regs::Piece`]), each of which [`decode_read`] or [`decode_write`] names.
//! [`Policy::of`] decides who answers it; no access reaches the card. What falls on PRAMIN is memory, and no access to a
//! register.
//!
//! Decoding is total: every offset and width has a name, even if it is `Unmodelled` or `Narrow`.
#![forbid(unsafe_code)]

pub mod aperture;
pub mod bar0;
pub mod policy;
pub mod storage;

pub use bar0::{Bar0Read, Bar0Write, decode_read, decode_write};
pub use policy::Policy;
pub use storage::Storage;
