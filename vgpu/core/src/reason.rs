//! Why the core did what it did: each reason a type with its figures, and one text for operators.
//!
//! ```text
//! Denial      a VM did not get its vGPU or quota   shown by Action::Denied, Action::QuotaRefused,
//!             nor the card more host RAM           Action::HostRamRefused
//! StartFailure  no VM will: the card is unusable   shown by Notice::StartFailed
//! MoveCause   chunks of a VM began to move         shown by Notice::MoveStarted and Moved
//! RollBack    they stayed where they were          shown by Notice::RolledBack
//! ChannelFault  a channel was killed, or the broker's own stopped
//! HostFault   the card did not perform an operation
//! Inconsistency  a VM lost its vGPU: its accounts were wrong  shown by Action::GiveUp
//! ```
//!
//! `Display` is the text that logs and sockets show. Programs match on the variants.

use fermi_spec::addr::{FrameNo, Iova, VramAddr};
use fermi_spec::engine::Engine;
use serde::{Deserialize, Serialize};

use crate::config::{BusRange, GUEST_VRAM_MIN};
use crate::event::VmId;
use crate::host::arena::SLOT_BYTES;
use crate::host::lending::CHANNELS_USABLE;
use crate::host::lending::Full;

/// A setting of a VM that no card could grant, or that contradicts another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum SettingError {
    /// The size of guest VRAM, in bytes.
    #[error("guest_vram {bytes} is not a multiple of 1M from {}M to 64G", GUEST_VRAM_MIN >> 20)]
    GuestVram {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The size of a chunk, in bytes.
    #[error("chunk {bytes} is not a power of two from 128K to 64M")]
    Chunk {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The RAM that a VM may let the card reach, in bytes.
    #[error("ram {bytes} is not a multiple of 1M from 1M to 512G")]
    Ram {
        /// The size that was asked for.
        bytes: u64,
    },
    /// The channels that are kept for the VM.
    #[error(
        "channels {channels} is not between 1 and {CHANNELS_USABLE}, which is all that a card has for VMs"
    )]
    Channels {
        /// Number that was asked for.
        channels: u32,
    },
    /// The weight of a quota.
    #[error("weight {weight} is not between 1 and 10000")]
    Weight {
        /// The weight that was asked for.
        weight: u32,
    },
    /// The memory promised to the VM is more than it may hold.
    #[error("min {min} is above max {max}")]
    MinAboveMax {
        /// Bytes that are promised.
        min: u64,
        /// Bytes that it may hold at most.
        max: u64,
    },
    /// The memory promised to the VM is more than it is left with.
    #[error("min {min} is above high {high}")]
    MinAboveHigh {
        /// Bytes that are promised.
        min: u64,
        /// Bytes above which it is spilled.
        high: u64,
    },
}

/// A contradiction in one VM's accounts: a fault of this program. It costs that VM its vGPU, and nobody else anything.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Inconsistency {
    /// It gives back, or would write, a part of what is shared that is not its own.
    #[error("its accounts name {part}, which it does not hold")]
    NotHeld {
        /// The part: a frame, a range of the arena, a bus address.
        part: String,
    },
    /// Entries of its shadow tables would lead to places that no entry can name.
    #[error("{entries} of its pages have a place that no entry can name")]
    Misplaced {
        /// Number of such entries.
        entries: u64,
    },
    /// It is gone from the card, and still owes shadow memory, or the other way round.
    #[error("it holds {held} bytes of shadow memory by its own account, and {found} in truth")]
    ShadowMemory {
        /// What its account says.
        held: u64,
        /// What the arena says.
        found: u64,
    },
    /// It would be moved while it leaves, or the like: its stages contradict each other.
    #[error("its stages contradict each other: {what}")]
    Stage {
        /// The two stages that exclude each other, as half a sentence.
        what: String,
    },
    /// Work on its state panicked.
    #[error("it panicked while {doing}: {message}")]
    Panicked {
        /// What was being done for the VM, as half a sentence.
        doing: String,
        /// Text of the panic.
        message: String,
    },
}

impl Inconsistency {
    /// A byte of the card's VRAM lies in somebody else's frame.
    pub(crate) fn at(at: VramAddr) -> Self {
        let part = format!("the frame at {at}");
        Self::NotHeld { part }
    }

    /// A bus address is somebody else's.
    pub(crate) fn on_bus(at: Iova) -> Self {
        let part = format!("bus address {at}");
        Self::NotHeld { part }
    }

    pub(crate) fn frame(frame: FrameNo) -> Self {
        let part = format!("frame {}", frame.0);
        Self::NotHeld { part }
    }
}

/// Why a VM did not get its vGPU, or another quota. Everything is promised then, so this is the only refusal of memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Denial {
    /// Its settings are wrong by themselves.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// A VM of that number has a vGPU.
    #[error("{vm} is attached already")]
    AttachedAlready {
        /// Number that is in use.
        vm: VmId,
    },
    /// There is no vGPU of that number, so nothing of it can change.
    #[error("{vm} is not attached")]
    NotAttached {
        /// Number that nobody has.
        vm: VmId,
    },
    /// The card has too few channels left to promise this VM its own.
    #[error(
        "channels promised to all VMs ({promised}) and lent to those that use more than that ({lent}) exceed the card's {usable}: \
         smaller `channels` of this VM or of others, or programs of others that end"
    )]
    Channels {
        /// Channels promised to all VMs, this one included.
        promised: u32,
        /// Channels that VMs hold beyond their promises.
        lent: u32,
        /// Channels that VMs may use.
        usable: u32,
    },
    /// Guest VRAM has no room, even if everything were spilled.
    #[error(
        "guest VRAM of all VMs ({}M) exceeds usable VRAM ({}M) plus host_ram ({}M)",
        wanted >> 20, usable >> 20, host_ram >> 20
    )]
    GuestVram {
        /// Bytes of guest VRAM of all VMs, this one included.
        wanted: u64,
        /// Bytes of VRAM that guests may hold.
        usable: u64,
        /// Bytes of host RAM for spilled chunks.
        host_ram: u64,
    },
    /// More VRAM would be promised than there is.
    #[error("min of all VMs ({}M) exceeds usable VRAM ({}M)", promised >> 20, usable >> 20)]
    Min {
        /// Bytes promised to all VMs, this one included.
        promised: u64,
        /// Bytes of VRAM that guests may hold.
        usable: u64,
    },
    /// The arena has too little left to promise this VM the shadow tables of its VRAM.
    #[error(
        "shadow tables promised to all VMs ({}K) and lent to those that map more ({}K) exceed what the card sets aside ({}K): \
         a smaller guest_vram of this VM or of others",
        promised >> 10, lent >> 10, room >> 10
    )]
    Shadows {
        /// Bytes of tables promised to all VMs, this one included.
        promised: u64,
        /// Bytes of tables that VMs hold beyond their promises.
        lent: u64,
        /// Bytes set aside for all.
        room: u64,
    },
    /// No bus addresses in one piece for the VRAM image and the RAM.
    #[error(
        "no bus addresses are left for its VRAM image and its ram, {}M together: a smaller ram of this VM or of others; \
         those that the host's IOMMU allows: {usable}",
        bytes >> 20
    )]
    BusAddresses {
        /// Bytes of both.
        bytes: u64,
        /// Bus addresses that the host's IOMMU allows.
        usable: UsableBus,
    },
    /// The host's IOMMU does not admit as many maps as the image may need.
    #[error(
        "its VRAM image needs {needed} DMA maps, one for each chunk; the host's IOMMU has {left} left: larger chunks"
    )]
    DmaMaps {
        /// Maps that the image may need.
        needed: u32,
        /// Maps that are not promised to others.
        left: u32,
    },
    /// No VM gets a vGPU of this card.
    #[error("the GPU cannot be used: {0}")]
    Card(#[from] StartFailure),
    /// The card stopped doing what everything relies on.
    #[error("the GPU is lost: a {operation} did not end")]
    CardLost {
        /// Operation that did not end.
        operation: CardOperation,
    },
}

impl Denial {
    pub(crate) fn channels(full: Full) -> Self {
        let Full {
            promised,
            lent,
            total: usable,
        } = full;
        Self::Channels {
            promised,
            lent,
            usable,
        }
    }

    pub(crate) fn shadows(full: Full) -> Self {
        let bytes = |slots: u32| u64::from(slots) * SLOT_BYTES;
        Self::Shadows {
            promised: bytes(full.promised),
            lent: bytes(full.lent),
            room: bytes(full.total),
        }
    }
}

/// Bus addresses that the core gives away, in ascending order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UsableBus(pub Vec<BusRange>);

impl std::fmt::Display for UsableBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none between 4 GiB and 1 TiB");
        }
        for (i, range) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{range}")?;
        }
        Ok(())
    }
}

/// Why a card cannot be brought up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum StartFailure {
    /// All ones, as from a slot without a card.
    #[error("the card does not answer: BOOT_0 reads all ones")]
    NoAnswer,
    /// The card has another chipset.
    #[error("not a GF100: BOOT_0 is {boot0:#010x}, chipset {:#05x} instead of 0x0c0", boot0 >> 20)]
    NotGf100 {
        /// BOOT_0 as read.
        boot0: u32,
    },
    /// A number of memory partitions that no GF100 has.
    #[error("the card reports {partitions} memory partitions")]
    Partitions {
        /// Number that the card reports.
        partitions: u32,
    },
    /// Less VRAM than can be shared, or more than the chip can name.
    #[error("the card has {} MiB of VRAM; at least 16 MiB are needed", bytes >> 20)]
    Vram {
        /// Bytes of all partitions that are not fused off.
        bytes: u64,
    },
    /// No bus addresses for the broker's own DMA memory.
    #[error("no bus addresses are left for its memory: {usable}")]
    BusAddresses {
        /// Bus addresses that the host's IOMMU allows.
        usable: UsableBus,
    },
    /// A copy engine does not run its microcode.
    #[error("the microcode that its copy engines were given stopped at once")]
    Microcode,
    /// FECS does not start, or makes no golden image.
    #[error("PGRAPH's microcode does not answer: is it the card's?")]
    GraphMicrocode,
    /// FECS asks for images of contexts that cannot be.
    #[error("PGRAPH's microcode asks for {bytes} bytes for a context, which is none or more than 512K")]
    ContextBytes {
        /// Bytes that it asks for.
        bytes: u32,
    },
    /// More TPCs than there are attributes for.
    #[error("the card has {tpcs} TPCs; no GF100 was sold with more than 15")]
    Tpcs {
        /// TPCs of all GPCs.
        tpcs: u32,
    },
    /// A wait of the bring-up came to its bound.
    #[error("it did not finish a flush or take its first runlist")]
    TimedOut,
}

/// Why chunks of a VM began to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MoveCause {
    /// The VM held most when another one, or itself, needed VRAM at once.
    Demand {
        /// VM whose access waits for it.
        of: VmId,
    },
    /// Nothing reached the chunks, and another VM needed their frames.
    Idle {
        /// VM that gets the frames.
        taken_for: VmId,
    },
    /// The operator lowered `max` below what the VM held.
    AboveMax,
    /// The VM held more than its `high`.
    AboveHigh,
    /// The VM held more than its share.
    Fairness {
        /// VM that holds less and gets the frames.
        toward: VmId,
    },
    /// There were free frames, and the VM had chunks in host RAM that it reaches.
    FreeRoom,
    /// Chunks of a VM change places with others of its own, to see with which of them in VRAM it is faster.
    Exchange {
        /// VM that has all of them.
        within: VmId,
    },
    /// A launch of the VM that waits will use other chunks than those that are in VRAM: some change places.
    Launch {
        /// VM that has all of them.
        within: VmId,
    },
    /// A window that the VM's client maps is to show a page of them, which the GPU reaches. They come back without it.
    Shown,
}

impl std::fmt::Display for MoveCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Demand { of } => write!(f, "{of} needs VRAM"),
            Self::Idle { taken_for } => write!(f, "idle, for {taken_for}"),
            Self::AboveMax => f.write_str("above its max"),
            Self::AboveHigh => f.write_str("above its high"),
            Self::Fairness { toward } => write!(f, "more than its share, for {toward}"),
            Self::FreeRoom => f.write_str("there is room in VRAM"),
            Self::Exchange { within } => write!(f, "an exchange within {within}"),
            Self::Launch { within } => write!(f, "a launch of {within} waits for other chunks of its own"),
            Self::Shown => f.write_str("a window shows a page of it"),
        }
    }
}

impl MoveCause {
    /// VM for which the memory moves; `None` if for its own VM or the operator.
    pub fn beneficiary(&self) -> Option<VmId> {
        match *self {
            Self::Demand { of: vm }
            | Self::Idle { taken_for: vm }
            | Self::Fairness { toward: vm }
            | Self::Exchange { within: vm }
            | Self::Launch { within: vm } => Some(vm),
            Self::AboveMax | Self::AboveHigh | Self::FreeRoom | Self::Shown => None,
        }
    }
}

/// Why a move was given up and its chunks stay where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum RollBack {
    /// A channel that writes the chunks could not be taken off the card within the bound.
    #[error("its channels did not go idle in time")]
    NotIdle,
    /// The host's bound of locked memory, or the like.
    #[error("the host does not let the card reach more of its memory")]
    MapRefused,
    /// The host could not give the pages that the copy would have written.
    #[error("the host has no memory left to move it to")]
    HostMemory,
    /// The VM maps the chunks anew meanwhile, and no shadow table is left to point its pages to host RAM with.
    #[error("no shadow table is left for its pages")]
    NoTables,
    /// What the VM may hold was changed meanwhile: it would hold more than its `max` or `high`, or less than its `min`.
    #[error("its quota changed")]
    QuotaChanged,
    /// The VM goes, or its device is reset, before anything of the move was visible.
    #[error("its VM goes")]
    Leaving,
    /// The copy engine did not end the copy within the bound.
    #[error("a copy did not end in time")]
    CopyOverTime,
    /// The CPU did not end the copy within the bound.
    #[error("a copy through the BAR window did not end in time")]
    WindowCopyOverTime,
    /// The accounts of the VM contradict each other; it is given up.
    #[error("the accounts of its VM are wrong")]
    Inconsistent,
    /// The broker's own channel, which copies, was stopped.
    #[error("the copy failed: {0}")]
    CopyFailed(ChannelFault),
}

/// The card's report of a channel's error. A VM's channel is killed for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ChannelFault {
    /// The MMU refused an access.
    #[error("MMU fault of unit {unit:#x} at {va:#x}, reason {reason}")]
    Mmu {
        /// Number of the unit that asked (`fermi_spec::fault`).
        unit: u8,
        /// Address in the channel's address space.
        va: u64,
        /// Low bits of the fault record's last word (`fermi_spec::fault::Reason`).
        reason: u8,
    },
    /// A PBDMA, which feeds engines from pushbuffers, stopped.
    #[error("PBDMA {pbdma} error {intr:#010x} at method {method:#x}, data {data:#x}")]
    Pbdma {
        /// Number of the PBDMA.
        pbdma: u8,
        /// Its interrupt bits.
        intr: u32,
        /// The method that it had latched.
        method: u32,
        /// Data of the method.
        data: u32,
    },
    /// An engine refused a method.
    #[error("{engine:?} refused: interrupt {intr:#x}, code {code:#x}, data {data:#x}")]
    Engine {
        /// Engine that refused it.
        engine: Engine,
        /// Its interrupt bits.
        intr: u32,
        /// PGRAPH: the trapped method; a copy engine: its error code.
        code: u32,
        /// Data of the method, or the engine's own.
        data: u32,
    },
    /// It worked on and on while another VM waited for the engine (setting `watchdog`).
    #[error("{engine:?} did not give way for {} ms of the card's time while another VM waited", held_ns / 1_000_000)]
    HeldEngine {
        /// Engine that it held.
        engine: Engine,
        /// For how long, by the card's clock.
        held_ns: u64,
    },
}

/// An operation of the card that everything relies on: without it, nobody knows what the card still reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CardOperation {
    /// The drop of translations.
    TlbFlush,
    /// The hand-over of a runlist.
    Runlist,
    /// The start of PGRAPH's microcode after a reset.
    ContextSwitching,
}

impl std::fmt::Display for CardOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TlbFlush => "TLB flush",
            Self::Runlist => "hand-over of a runlist",
            Self::ContextSwitching => "start of PGRAPH's microcode",
        })
    }
}

fn named(channel: Option<u8>) -> String {
    channel.map_or_else(
        || "unknown channel".to_owned(),
        |number| format!("channel {number}"),
    )
}

/// A fault that the card reported of itself, or work that it does not let go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum HostFault {
    /// A channel that was unbound is still on an engine.
    #[error("channel {channel} did not leave the engines within 2 s")]
    NotLeaving {
        /// Its number on the card.
        channel: u8,
    },
    /// The broker's own channel made an error, or one that is on its way off the card.
    #[error("{}: {fault}", named(*channel))]
    Channel {
        /// Its number on the card, 0 for the broker's own; `None` for an unknown channel.
        channel: Option<u8>,
        /// The card's report.
        fault: ChannelFault,
    },
    /// A copy of the broker's own channel came to its bound.
    #[error("a copy did not end in time")]
    CopyOverTime,
    /// The scheduler or the channel table reports an error.
    #[error("PFIFO reports {bits:#x} (table {table_code:#x}, scheduler {scheduler_code:#x})")]
    Fifo {
        /// Bits of its interrupt register.
        bits: u32,
        /// Error code of the channel table.
        table_code: u32,
        /// Error code of the scheduler.
        scheduler_code: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::addr::Iova;

    #[test]
    fn denial_names_the_figures_in_the_units_of_the_configuration() {
        let texts = [
            Denial::from(SettingError::GuestVram { bytes: 3 }),
            Denial::GuestVram {
                wanted: 3 << 20,
                usable: 1 << 20,
                host_ram: 1 << 20,
            },
            Denial::BusAddresses {
                bytes: 8 << 20,
                usable: UsableBus::default(),
            },
            Denial::from(StartFailure::NotGf100 { boot0: 0x0e40_00a1 }),
        ]
        .map(|denial| denial.to_string());
        assert_eq!(
            texts,
            [
                "guest_vram 3 is not a multiple of 1M from 8M to 64G",
                "guest VRAM of all VMs (3M) exceeds usable VRAM (1M) plus host_ram (1M)",
                "no bus addresses are left for its VRAM image and its ram, 8M together: a smaller ram of this VM or of \
                 others; those that the host's IOMMU allows: \
                 none between 4 GiB and 1 TiB",
                "the GPU cannot be used: not a GF100: BOOT_0 is 0x0e4000a1, chipset 0x0e4 instead of 0x0c0",
            ]
        );
    }

    #[test]
    fn usable_bus_addresses_are_listed_in_order() {
        let range = |start: u64| BusRange {
            start: Iova(start << 32),
            end: Iova((start + 1) << 32),
        };
        assert_eq!(
            UsableBus(vec![range(1), range(4)]).to_string(),
            "0x100000000 to 0x1ffffffff, 0x400000000 to 0x4ffffffff"
        );
    }

    #[test]
    fn beneficiary_is_who_gets_the_frames() {
        let causes = [
            MoveCause::Demand { of: VmId(1) },
            MoveCause::Idle { taken_for: VmId(2) },
            MoveCause::Fairness { toward: VmId(3) },
            MoveCause::AboveMax,
            MoveCause::AboveHigh,
            MoveCause::FreeRoom,
            MoveCause::Exchange { within: VmId(4) },
            MoveCause::Launch { within: VmId(5) },
            MoveCause::Shown,
        ];
        assert_eq!(
            causes.map(|cause| cause.beneficiary()),
            [
                Some(1),
                Some(2),
                Some(3),
                None,
                None,
                None,
                Some(4),
                Some(5),
                None
            ]
            .map(|vm| vm.map(VmId))
        );
    }

    #[test]
    fn host_fault_of_an_unknown_channel_says_so() {
        let fault = ChannelFault::Mmu {
            unit: 0x1f,
            va: 0x2000,
            reason: 2,
        };
        let told = HostFault::Channel { channel: None, fault }.to_string();
        assert_eq!(
            told,
            "unknown channel: MMU fault of unit 0x1f at 0x2000, reason 2"
        );
    }
}
