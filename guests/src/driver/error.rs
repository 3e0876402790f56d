//! Why the driver gave up.

use core::fmt;
use fermi_spec::engine::Engine;

/// Why the driver failed. Each variant holds the values read from the device or given by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverError {
    /// BOOT_0 reads as all ones: no device answers.
    NoDevice,
    /// BOOT_0 names another chip.
    WrongChip {
        /// Value of PMC_BOOT_0.
        boot0: u32,
    },
    /// PMC_ENABLE does not take bits that the driver needs.
    UnitsMissing {
        /// Bits that the driver set.
        wanted: u32,
        /// The register after the write.
        enabled: u32,
    },
    /// PBDMA_ENABLE shows other than one to three PBDMAs, or not those that the copy engines use.
    PbdmasMissing {
        /// The register after the write.
        enabled: u32,
    },
    /// The VRAM registers name an impossible or too small size.
    VramSize {
        /// Partitions in the design.
        partitions: u32,
        /// Bytes according to the registers.
        bytes: u64,
        /// Bytes needed at least.
        needed: u64,
    },
    /// An expected event did not come in time.
    Timeout {
        /// Event that was waited for.
        what: &'static str,
        /// Last value seen, of a register or semaphore.
        value: u32,
    },
    /// The part of VRAM kept for instance memory is used up.
    InstanceMemoryFull {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The guest RAM given to the driver is used up.
    DmaMemoryFull {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// Every channel that the driver keeps track of is in use.
    ChannelsFull,
    /// No such channel, or it was destroyed.
    NoChannel {
        /// Id of the channel.
        channel: u8,
    },
    /// More words than a submission can hold.
    SubmissionTooLong {
        /// Number of words.
        words: u64,
    },
    /// A mapping that is not aligned, empty, or beyond the address space.
    BadMapping {
        /// First virtual address.
        va: u64,
        /// First physical address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A copy whose addresses or length do not fit its methods.
    BadCopy {
        /// First address of the source.
        source: u64,
        /// First address of the target.
        target: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A grid whose size, block or resources no launch can have.
    BadGrid {
        /// The parameter that does not fit.
        what: &'static str,
    },
    /// The MMU refused an access.
    MmuFault {
        /// Unit with the fault record.
        unit: u8,
        /// Virtual address of the access.
        va: u64,
        /// Last word of the record: reason, client, direction.
        kind: u32,
    },
    /// PFIFO reports an error that the driver does not expect.
    FifoError {
        /// Value of PFIFO_INTR.
        interrupts: u32,
        /// Code of the error: PBDMA interrupts, or the code register of the first bit set.
        code: u32,
    },
    /// An engine refused a method.
    EngineError {
        /// Engine that refused it.
        engine: Engine,
        /// Falcon error (code in the low half, method above) of a copy engine, interrupts of PGRAPH.
        code: u32,
    },
    /// A grid trapped; errors of the first SM of each GPC. Both words are zero where the host does not show them.
    ShaderTrap {
        /// Error of the first warp that has one.
        warp: u32,
        /// Error that concerns no single warp.
        global: u32,
    },
    /// The buffers of a kernel do not fit VRAM.
    FootprintTooLarge {
        /// Bytes of the buffers.
        wanted: u64,
        /// Bytes of VRAM for them.
        room: u64,
    },
    /// The kernel's plan does not say where its buffers are to be copied by hand.
    NotByHand,
    /// The processor touches its old copy of a buffer without a check.
    NotChecked {
        /// Number of the buffer.
        buffer: u64,
    },
    /// The memory for a kernel's reference is too small.
    ScratchTooSmall {
        /// Bytes that it needs.
        wanted: u64,
        /// Bytes that it has.
        room: u64,
    },
    /// The inputs do not fit the slots.
    InputTooLarge {
        /// Pieces of all inputs.
        pieces: u64,
        /// Slots for data.
        slots: u64,
    },
    /// There are no inputs, too many, or one is empty or not within 40 bits of guest-physical address.
    BadInput {
        /// Index of the input.
        index: u64,
    },
    /// The slot size asked for leaves too few slots, or too many.
    BadSlotSize {
        /// Bytes of a slot.
        bytes: u64,
        /// Number of slots that would result.
        slots: u64,
    },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoDevice => write!(f, "no device answers at BOOT_0"),
            Self::WrongChip { boot0 } => write!(f, "BOOT_0 {boot0:#010x} is not a GF100"),
            Self::UnitsMissing { wanted, enabled } => {
                write!(
                    f,
                    "units {:#010x} cannot be enabled (PMC_ENABLE {enabled:#010x})",
                    wanted & !enabled
                )
            }
            Self::PbdmasMissing { enabled } => write!(f, "PBDMA_ENABLE reads {enabled:#x} instead of 0x7"),
            Self::VramSize {
                partitions,
                bytes,
                needed,
            } => {
                write!(
                    f,
                    "{bytes} bytes of VRAM in {partitions} partitions, {needed} needed"
                )
            }
            Self::Timeout { what, value } => {
                write!(f, "time-out waiting for {what} (last value {value:#010x})")
            }
            Self::InstanceMemoryFull { wanted, left } => {
                write!(f, "no room for {wanted} bytes of instance memory ({left} left)")
            }
            Self::DmaMemoryFull { wanted, left } => {
                write!(f, "no room for {wanted} bytes of DMA memory ({left} left)")
            }
            Self::ChannelsFull => write!(f, "every channel is in use"),
            Self::NoChannel { channel } => write!(f, "channel {channel} does not exist"),
            Self::SubmissionTooLong { words } => write!(f, "a submission of {words} words is too long"),
            Self::BadMapping { va, address, bytes } => {
                write!(f, "cannot map {bytes} bytes at {va:#x} to {address:#x}")
            }
            Self::BadCopy {
                source,
                target,
                bytes,
            } => {
                write!(f, "cannot copy {bytes} bytes from {source:#x} to {target:#x}")
            }
            Self::BadGrid { what } => write!(f, "cannot launch a grid: {what}"),
            Self::MmuFault { unit, va, kind } => {
                write!(f, "MMU fault of unit {unit:#x} at {va:#x} (record {kind:#010x})")
            }
            Self::FifoError { interrupts, code } => {
                write!(f, "PFIFO error (interrupts {interrupts:#010x}, code {code:#x})")
            }
            Self::EngineError { engine, code } => {
                write!(f, "engine {engine:?} refused a method (code {code:#010x})")
            }
            Self::ShaderTrap { warp, global } => {
                write!(f, "a grid trapped (warp error {warp:#x}, SM error {global:#x})")
            }
            Self::FootprintTooLarge { .. }
            | Self::NotByHand
            | Self::NotChecked { .. }
            | Self::ScratchTooSmall { .. }
            | Self::InputTooLarge { .. }
            | Self::BadInput { .. }
            | Self::BadSlotSize { .. } => self.fmt_workload(f),
        }
    }
}

impl DriverError {
    /// Writes the errors of workloads.
    fn fmt_workload(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::FootprintTooLarge { wanted, room } => {
                write!(f, "buffers of {wanted} bytes do not fit {room} bytes of VRAM")
            }
            Self::NotByHand => write!(f, "the kernel does not copy its buffers by hand"),
            Self::NotChecked { buffer } => {
                write!(f, "the copy of buffer {buffer} in RAM is old and was not checked")
            }
            Self::ScratchTooSmall { wanted, room } => {
                write!(f, "the reference needs {wanted} bytes of RAM, {room} are free")
            }
            Self::InputTooLarge { pieces, slots } => {
                write!(f, "inputs of {pieces} pieces do not fit {slots} slots")
            }
            Self::BadInput { index } => write!(f, "input {index} is missing, empty or out of range"),
            Self::BadSlotSize { bytes, slots } => {
                write!(f, "slots of {bytes} bytes give {slots}, which cannot be used")
            }
            // The caller writes the driver's own errors.
            _ => Ok(()),
        }
    }
}

impl core::error::Error for DriverError {}
