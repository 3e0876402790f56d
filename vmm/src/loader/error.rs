//! The errors of a kernel, its initramfs and its inputs. All of them are found before the VM starts.

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
        /// Path of the file.
        name: String,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// The file is not a kernel of a known kind.
    #[error(
        "kernel {name} ({bytes} bytes) is neither a bzImage nor a 64-bit x86 ELF file: \
         give a distribution's vmlinuz, or a vmlinux with a PVH note"
    )]
    UnknownKernel {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: usize,
    },
    /// No kernel is that large.
    #[error("kernel {name} has {bytes} bytes, more than the {KERNEL_BYTES_MAX} of any kernel")]
    KernelFileTooLarge {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// The header promises more than the file has.
    #[error("kernel {name} is truncated: {bytes} bytes of {needed}; copy it again")]
    KernelTruncated {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: usize,
        /// Bytes that its header announces.
        needed: u64,
    },
    /// The header asks for a feature that this VMM lacks, or contradicts itself.
    #[error("kernel {name} cannot be booted: {reason}")]
    KernelHeader {
        /// Path of the file.
        name: String,
        /// The part of the header that is wrong.
        reason: &'static str,
    },
    /// The program is damaged, or one of its segments lies outside RAM.
    #[error("kernel {name} ({bytes} bytes) is truncated or does not fit {ram_bytes} bytes of RAM")]
    BadKernel {
        /// Path of the file.
        name: String,
        /// Size in bytes.
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
        /// Path of the file.
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
        /// Length of the longest one that the kernel reads.
        max: usize,
    },
    /// An initramfs cannot be opened or read.
    #[error("cannot read initramfs {name}")]
    ReadInitramfs {
        /// Path of the file.
        name: String,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// No kernel could unpack it.
    #[error("initramfs {name} is neither a cpio archive (newc) nor compressed in a way that Linux knows")]
    UnknownInitramfs {
        /// Path of the file.
        name: String,
    },
    /// An archive ends in the middle.
    #[error("initramfs {name} is truncated: its archive goes on past its {bytes} bytes; make it again")]
    InitramfsTruncated {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// RAM has no room for it above the kernel.
    #[error(
        "initramfs {name} of {bytes} bytes does not fit the {room} bytes of RAM above the kernel: \
         give the VM more memory"
    )]
    InitramfsTooLarge {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
        /// Room for it, in bytes.
        room: u64,
    },
    /// The guest of this crate has no use for one.
    #[error("initramfs {name} is given, but kernel {kernel} is not Linux: name one as `kernel`")]
    InitramfsUnused {
        /// Path of the initramfs.
        name: String,
        /// Path of the kernel.
        kernel: String,
    },
    /// Inputs are given, but Linux does not look for any.
    #[error("{count} inputs are given, but kernel {name} is Linux: put the files into its initramfs")]
    InputsUnused {
        /// The kernel's path.
        name: String,
        /// Number of inputs.
        count: usize,
    },
    /// An input cannot be opened or read.
    #[error("cannot read input {name}")]
    ReadInput {
        /// Path of the file.
        name: String,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// A kernel or input is a directory, a pipe or a device, whose size is not known.
    #[error("{name} is not a regular file")]
    NotAFile {
        /// Path of the file.
        name: String,
    },
    /// An input or initramfs became shorter while it was read.
    #[error("cannot copy {name} ({bytes} bytes) into guest RAM")]
    CopyInput {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: GuestMemoryError,
    },
    /// RAM ends before an input does.
    #[error("input {name} of {bytes} bytes does not fit the {room} bytes of RAM that are left")]
    InputTooLarge {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
        /// Room for it, in bytes.
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
    /// A string has a NUL, so it would end early in the guest.
    #[error("{text:?} contains a NUL")]
    TextHasNul {
        /// The string as given.
        text: String,
    },
    /// The boot structures cannot be written.
    #[error("cannot write boot structures to guest RAM")]
    BootStructures(#[source] linux_loader::configurator::Error),
    /// Page tables or strings cannot be written.
    #[error("cannot write to guest RAM")]
    Write(#[source] GuestMemoryError),
}
