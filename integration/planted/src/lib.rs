//! Faults that can be planted into the product, to prove that the nets under it bite.
//!
//! A place that could go wrong asks [`is`] for its fault. In a build with feature `on`, `plant` chooses one fault for
//! the whole process; without the feature `is` is a constant `false`, so nothing is left of the question. The program
//! `vramd` refuses to compile with the feature ([`ARE_BUILT_IN`]).
#![forbid(unsafe_code)]

/// Whether this build contains the faults.
pub const ARE_BUILT_IN: bool = cfg!(feature = "on");

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Faults by name. Each breaks one promise at one place, and mostly only now and then.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[doc = $doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// What goes wrong, for a table.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),*).trim_ascii(),)*
                }
            }
        }
    };
}

faults! {
    /// A redirect leaves the first of the slots that it should rewrite.
    RedirectSkipsSlot,
    /// A page that a mapped window shows no more still lives at its place there.
    WindowPageKept,
    /// A page changes its place between image and window file while a map of the card pins it.
    PinnedPageChanged,
    /// A chunk that left for a window may come back before the window shows it.
    ShownNotKeptOut,
    /// What reaches an image runs on while its map is made anew.
    StandingStopsNobody,
    /// What a client stores to a page of tables through a mapped window is taken for seen.
    WindowStoreUnseen,
    /// Of doorbells that are found in memory at once only the first is rung.
    MappedDoorbellDropped,
    /// USERD that a client maps keeps what was there when its channel is bound no more.
    MappedUserdKept,
    /// Frames of an exchange keep the address of what left.
    ExchangedFrameKept,
    /// The last 128 KiB of a part of a chunk are led to where they were.
    PartLeftBehind,
    /// The parts that turn round in one suspension are as long as those that move alone.
    HalvesNotHalved,
    /// The old place of a chunk is given up when some of the entries that name it point to the new one.
    PointedInPart,
    /// A chunk of which a part was moved stays as it is.
    RestForgotten,
    /// A spill frees its frames before the TLB has forgotten them.
    FramesFreeBeforeFlush,
    /// A sync frees shadow tables before the TLB has forgotten them.
    TablesFreeBeforeFlush,
    /// An address space gives its directory back before the TLB has forgotten it.
    SpaceFreeBeforeFlush,
    /// PGRAPH loads contexts from the image that the guest names.
    DecoyImageUsed,
    /// A frame is given to its VM under its neighbour's address.
    WrongOwner,
    /// The channels resume as soon as the copy of their memory begins.
    ResumeBeforeCopied,
    /// A copy that the card reports an error of is taken for done.
    CopyNotVerified,
    /// A move suspends all channels that write its chunks but the first.
    WriterNotSuspended,
    /// What was submitted during a suspension is not rung after it.
    DoorbellLost,
    /// A VM may hold a chunk more than its `max`.
    MaxOneChunkOff,
    /// A VM may be brought a chunk below its `min`.
    MinOneChunkOff,
    /// A `max` that is lowered below what the VM holds moves nothing out.
    LoweredMaxIgnored,
    /// A VM that is frozen is brought memory back.
    HoldForgotten,
    /// Frames that arrive with somebody's bytes are handed on as they are.
    ScrubSkipped,
    /// A move copies instance memory, which is stale in VRAM.
    InstancePageCopied,
    /// A frame with instance memory in it is mapped by one large entry.
    LargeEntryOverInstance,
    /// A request of a session that has ended is still answered.
    EndedSessionAnswered,
    /// USERD is read from the card before the channel is bound there.
    UserdReadEarly,
    /// Guest RAM that is mapped read-only can be written by the GPU.
    ReadOnlyRamMapped,
    /// A map of RAM that overlaps another is taken.
    OverlapMapped,
    /// An unmap that ends within a map takes all of that away.
    PartUnmapped,
    /// A device reset leaves the VM's image as it is.
    ResetKeepsImage,
    /// Page tables in guest RAM are read once and never compared.
    RamTablesNotCompared,
    /// Pages of tables that were fetched from VRAM are used again at the next sync.
    FetchedTableKept,
    /// A page that the GPU reaches becomes instance memory, as if it were a table alone.
    NamedPageAdopted,
    /// A bus address is unmapped before the TLB has forgotten it.
    DmaUnmappedBeforeFlush,
    /// The flush after a redirect is left out.
    FlushDropped,
    /// A flush of a guest is answered before its tables are built.
    SyncNotBuilt,
    /// A roll-back leaves the channels suspended.
    RollBackForgetsResume,
    /// Pages of system memory lose the read-only bit of the guest's entry.
    ReadOnlyBitLost,
    /// Entries get the storage kind of tiled memory.
    WrongKind,
    /// A spill or refill copies a page less than its chunks have.
    CopyShort,
    /// The first page of a spilled chunk's image is given back.
    ImagePageDropped,
    /// A chunk in both places keeps its old copy though a CPU stores to it.
    OldCopyTrusted,
    /// A VM's interrupt is not sent though its line is up.
    InterruptLost,
    /// An interrupt line that is still up when the VMM unmasks it is not signalled again.
    UnmaskForgotten,
    /// Spills take more host RAM than they may.
    HostRamIgnored,
    /// A CPU's store to a chunk that moves goes to the old place.
    StoreDuringMove,
    /// The frames of a copy that was given up are free while the engine still writes them.
    AbandonedNotAwaited,
    /// Channels count as off the card before the card says so.
    PreemptNotAwaited,
    /// Refilled bytes are not counted in the account of their VM.
    AccountLies,
    /// Frames of a reset device are free before its channels are off the card.
    ResetDoesNotWait,
    /// A channel is bound to memory that began to move since its tables were built.
    BoundDuringMove,
    /// Entries to RAM that is mapped after they were built stay absent.
    MappedRamNotReached,
    /// A move that stands aside is never gone on with.
    AsideForgotten,
    /// A move waits without end for a VM that is at work.
    MomentWithoutEnd,
    /// A VM that an operator suspends goes on.
    SuspendedRuns,
    /// A move that is over leaves its chunk marked as moving.
    MoveNeverEnds,
    /// A flush or a runlist that does not end is taken as done.
    LateFlushTakenAsDone,
    /// What a VM that is gone left on an engine stays there.
    EngineNotCleared,
    /// Work that does not give way is left alone.
    WatchdogSleeps,
    /// A VM whose share of the broker is used up goes on.
    TurnsIgnored,
    /// A page of shadow memory that a VM gets is not counted.
    ShadowMemoryNotCounted,
    /// Shares are divided evenly, whatever the weights.
    WeightsIgnored,
    /// A VM that rests lends what its `low` protects.
    LowLent,
    /// A VM that rings no doorbell counts as one that rests, whatever it has on the card.
    WorkTakenForRest,
    /// A VM that rests is never found to.
    RestNotSeen,
    /// The doorbell that the broker rings behind a move counts as the guest's work.
    OwnBellTakenForWork,
    /// A VM that has had more than its part of an engine goes on.
    NobodyHeldBack,
    /// The doorbell of a channel that was parked does not bring it back to work.
    ParkedDoorbellLost,
    /// A channel's instance block and number are free before the card was asked what the channel did wrong.
    ErrorsOfTheLastOne,
    /// A VM that was kept off the runlist for what it has had stays off.
    HeldBackForEver,
    /// An engine stands as long as somebody who does next to nothing on it may come back to it.
    IdleKeeperKept,
    /// Work that waited for its memory is not given to the card.
    HeldWorkLost,
    /// Work waits for its memory without end.
    HeldForGood,
    /// What a VM holds above its high stays there.
    HighIgnored,
    /// A pass brings back what is above a VM's high.
    RefillsAboveHigh,
    /// A quota that contradicts itself or the other VMs' is set.
    QuotaNotChecked,
    /// Frames that are collected for a VM's chunk meet demands of others.
    ClaimNotKept,
    /// VRAM stays free where nobody is a whole chunk below its share.
    RestLeftFree,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

impl std::str::FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<Self, UnknownFault> {
        let found = Self::ALL.iter().find(|fault| fault.to_string() == name);
        found.copied().ok_or_else(|| UnknownFault(name.to_owned()))
    }
}

/// There is no fault of that name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFault(String);

impl std::fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no fault {:?} can be planted", self.0)
    }
}

impl std::error::Error for UnknownFault {}

/// Whether this fault is to be committed. A constant in every build that is shipped.
#[cfg(not(feature = "on"))]
#[inline(always)]
pub const fn is(_fault: Fault) -> bool {
    false
}

#[cfg(feature = "on")]
pub use choice::{is, plant};

#[cfg(feature = "on")]
mod choice {
    use std::sync::OnceLock;

    use super::Fault;

    static CHOSEN: OnceLock<Fault> = OnceLock::new();

    /// Whether this fault is to be committed.
    #[inline]
    pub fn is(fault: Fault) -> bool {
        CHOSEN.get() == Some(&fault)
    }

    /// Chooses the fault of this process. Panics if another was chosen: what is found would be nobody's.
    pub fn plant(fault: Fault) {
        assert_eq!(*CHOSEN.get_or_init(|| fault), fault, "one fault at a time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_faults() {
        for &fault in Fault::ALL {
            assert_eq!(fault.to_string().parse(), Ok(fault));
            assert!(fault.text().ends_with('.'), "{fault}");
        }
        assert!("nothing".parse::<Fault>().is_err());
    }

    #[cfg(not(feature = "on"))]
    #[test]
    fn usual_build_commits_none() {
        const { assert!(!ARE_BUILT_IN && !is(Fault::WrongOwner)) };
    }
}
