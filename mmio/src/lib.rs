//! Turns a trapped BAR0 access into a named operation.
//!
//! A guest's access of any offset and length becomes naturally aligned pieces of 1, 2 or 4
//! bytes ([`Access::pieces`]), each of which [`decode_read`] or [`decode_write`] names.
//! [`Policy::of`] decides who answers it; no access reaches the card. Accesses to windows onto
//! memory are cut at page ends ([`aperture::pages`]).
//!
//! Decoding is total: every offset and width has a name, even if it is `Unmodelled`, `Narrow` or `Outside`.
#![forbid(unsafe_code)]

pub mod access;
pub mod aperture;
pub mod bar0;
pub mod policy;
pub mod storage;

pub use access::{Access, Kind, Width};
pub use bar0::{Bar0Read, Bar0Write, decode_read, decode_write};
pub use policy::Policy;
pub use storage::Storage;
