//! GPU programs in GF100 machine code, each with a plan of launches, inputs of any size and a reference on the host.
//!
//! ```text
//! asm/NAME.asm ──build.rs──► programs::NAME ─┐     with the pointers that it loads and stores through (kernel_sets)
//!                                            ├─► Kernel::run ──launches──► an implementation of Gpu
//! src/NAME.rs: sizes, inputs, plan ──────────┘
//!              reference ──► expected words, compared with what the GPU left in the buffers
//! ```
//!
//! * [`Kernel`]: the trait of a kernel; [`make`] makes one by its name for a wanted footprint
//! * [`Gpu`]: the trait of a GPU that runs one; `guests::workload` implements it over the driver
//! * [`allocators`]: allocators that the lanes of a grid call; [`signature`]: whether memory has changed
//! * [`programs`]: the code of all
//!
//! `no_std`, and no allocator: sizes are computed from the footprint, a reference works in memory that its caller
//! provides. How to add a kernel stands in README.md.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod allocators;
mod gpu;
mod kernel;
mod kernels;
mod math;
mod noise;
pub mod signature;

pub use gpu::{Checked, CpuAccess, Gpu, Launch, Parameters, Piece, Stopped};
pub use kernel::{Buffer, Buffers, Kernel, Match, Role};
pub use kernels::{Instance, NAMES, Srad, make};
pub use noise::Noise;

/// Code of the kernels, assembled when this crate was built.
pub mod programs {
    /// A program, and the resources of its launches.
    #[derive(Debug)]
    pub struct Program {
        /// Name of its source.
        pub name: &'static str,
        /// Its words, filled up with zeros to a multiple of 256 bytes.
        pub code: &'static [u64],
        /// Registers of a lane.
        pub registers: u32,
        /// Shared memory of a block in bytes.
        pub shared_bytes: u32,
        /// Local memory of a lane in bytes.
        pub local_bytes: u32,
        /// Barriers of a block.
        pub barriers: u32,
        /// Bytes of its parameters in constant bank 0, from 0x20 on.
        pub parameter_bytes: u32,
        /// Its `u64` parameters.
        pub pointers: &'static [Pointer],
    }

    /// A pointer among the parameters, and what the code does with what it points at.
    ///
    /// The crate `kernel_sets` found it out from the code when this crate was built, for a launch of which nothing is
    /// known but that the pointers differ. So it holds for every launch, and says at times more than a launch does.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Pointer {
        /// Where it lies in constant bank 0, in bytes.
        pub offset: u32,
        /// The code may load through it.
        pub is_loaded: bool,
        /// The code may store through it.
        pub is_stored: bool,
    }

    include!(concat!(env!("OUT_DIR"), "/programs.rs"));
}
