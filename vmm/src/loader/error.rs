//! What can be wrong with a kernel, its initramfs and its inputs. All of it is found before the VM starts.

use std::io;

use linux_loader::loader;
use vm_memory::GuestMemoryError;

use super::{INPUTS_MAX, KERNEL_BYTES_MAX};

/// Why a guest could not be put into its RAM.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The program cannot be opened or read.
    #[error("cannot read kernel {name}")]
    ReadKernel {
        /// Its path.
        name: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// The program is something else.
    #[error(
        "kernel {name} ({bytes} bytes) is neither a bzImage nor a 64-bit x86 ELF file: \
         give a distribution's vmlinuz, or a vmlinux with a PVH note"
    )]
    UnknownKernel {
        /// Its path.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// No kernel is that large.
    #[error("kernel {name} has {bytes} bytes, more than the {KERNEL_BYTES_MAX} of any kernel")]
    KernelFileTooLarge {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The header promises more than the file has.
    #[error("kernel {name} is truncated: {bytes} bytes of {needed}; copy it again")]
    KernelTruncated {
        /// Its path.
        name: String,
        /// Its size.
        bytes: usize,
        /// What its header says.
        needed: u64,
    },
    /// The header asks for something that there is not, or contradicts itself.
    #[error("kernel {name} cannot be booted: {reason}")]
    KernelHeader {
        /// Its path.
        name: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The program is damaged, or one of its segments lies outside RAM.
    #[error("kernel {name} ({bytes} bytes) is truncated or does not fit {ram_bytes} bytes of RAM")]
    BadKernel {
        /// Its path.
        name: String,
        /// Its size.
        bytes: usize,
        /// RAM of the VM.
        ram_bytes: u64,
        /// Which step failed.
        #[source]
        source: loader::Error,
    },
    /// The program's uninitialised data reaches past the end of RAM.
    #[error("kernel {name} needs RAM up to {end:#x}, the VM has {ram_bytes:#x} bytes: give it more memory")]
    KernelTooLarge {
        /// Its path.
        name: String,
        /// First address after it.
        end: u64,
        /// RAM of the VM.
        ram_bytes: u64,
    },
    /// The command line is longer than the kernel reads.
    #[error(
        "a command line of {bytes} bytes is more than the {max} that kernel {name} reads: shorten `options`"
    )]
    CommandLineTooLong {
        /// The kernel's path.
        name: String,
        /// Length with its terminator.
        bytes: usize,
        /// Longest one.
        max: usize,
    },
    /// An initramfs cannot be opened or read.
    #[error("cannot read initramfs {name}")]
    ReadInitramfs {
        /// Its path.
        name: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// No kernel could unpack it.
    #[error("initramfs {name} is neither a cpio archive (newc) nor compressed in a way that Linux knows")]
    UnknownInitramfs {
        /// Its path.
        name: String,
    },
    /// An archive ends in the middle.
    #[error("initramfs {name} is truncated: its archive goes on past its {bytes} bytes; make it again")]
    InitramfsTruncated {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// RAM has no room for it above the kernel.
    #[error(
        "initramfs {name} of {bytes} bytes does not fit the {room} bytes of RAM above the kernel: \
         give the VM more memory"
    )]
    InitramfsTooLarge {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
        /// Room for it.
        room: u64,
    },
    /// The guest of this crate has no use for one.
    #[error("initramfs {name} is given, but kernel {kernel} is no Linux kernel: name one as `kernel`")]
    InitramfsUnused {
        /// Its path.
        name: String,
        /// The kernel's.
        kernel: String,
    },
    /// Linux finds no inputs.
    #[error("{count} inputs are given, but kernel {name} is Linux: put the files into its initramfs")]
    InputsUnused {
        /// The kernel's path.
        name: String,
        /// How many.
        count: usize,
    },
    /// An input cannot be opened or read.
    #[error("cannot read input {name}")]
    ReadInput {
        /// Its path.
        name: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// A kernel or input is a directory, a pipe or a device, whose size is not known.
    #[error("{name} is not a regular file")]
    NotAFile {
        /// Its path.
        name: String,
    },
    /// An input or initramfs became shorter while it was read.
    #[error("cannot copy {name} ({bytes} bytes) into guest RAM")]
    CopyInput {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
        /// What the host said.
        #[source]
        source: GuestMemoryError,
    },
    /// RAM ends before an input does.
    #[error("input {name} of {bytes} bytes does not fit the {room} bytes of RAM that are left")]
    InputTooLarge {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
        /// Room for it.
        room: u64,
    },
    /// More inputs than the module list holds.
    #[error("{count} inputs, the boot structures hold {INPUTS_MAX}")]
    TooManyInputs {
        /// How many were given.
        count: usize,
    },
    /// The command line and the inputs' names together are too long, or hold a NUL.
    #[error("command line and input names need {bytes} bytes, the boot structures hold {max}")]
    TextTooLong {
        /// Bytes with their terminators.
        bytes: usize,
        /// Room for them.
        max: usize,
    },
    /// A string would end early in the guest.
    #[error("{text:?} contains a NUL")]
    TextHasNul {
        /// The string.
        text: String,
    },
    /// The boot structures cannot be written.
    #[error("cannot write boot structures to guest RAM")]
    BootStructures(#[source] linux_loader::configurator::Error),
    /// Page tables or strings cannot be written.
    #[error("cannot write to guest RAM")]
    Write(#[source] GuestMemoryError),
}
