//! Machine code of the GF100 shader cores: words, what they mean, and their text.
//!
//! One table (`rows`) says for each instruction which bits make it and how its text goes. Decoder, disassembler and
//! assembler are readers of that table, so they cannot disagree.
//!
//! ```text
//!   u64 ──Instruction::decode──► Instruction ──Display──► text
//!    ▲                                                      │
//!    └────────────── assemble (feature `assembler`) ◄───────┘
//! ```
//!
//! Decoding is total: a word is an [`Instruction`] or an [`Illegal`] that says why. Long forms (8 bytes) are what
//! compilers emit; [`widen`] turns a short form (4 bytes) into the long form that does the same.
//!
//! Sources: envytools (`envydis/gf100.c`) for encodings and text; asfermi and Mesa's nvc0 code generator for what
//! compilers emit. Names of instructions are NVIDIA's (`cuobjdump`), the text is envytools'.

#[cfg(any(test, feature = "assembler"))]
pub mod assembler;
mod display;
pub mod field;
mod instruction;
mod opcode;
mod operand;
mod rows;
mod short;
mod special;

pub use field::Field;
pub use instruction::{Illegal, Instruction, Listing, Reason};
pub use opcode::Opcode;
pub use operand::{Addition, ConstAddress, DataType, Guard, Predicate, Register, Source};
pub use short::{Short, ShortListing, widen};
pub use special::Special;

/// Bytes of an instruction in its long form.
pub const INSTRUCTION_BYTES: u32 = 8;

#[cfg(test)]
mod tests;
