//! [`Event`] in, [`Action`]s out: the crate's whole surface.
//!
//! An edge (broker, simulator, replay) feeds events one at a time and performs the actions **in the order they were
//! pushed**. A host read or poll is answered by a later event with the same [`Token`]; a VM's [`Request`] by an
//! [`Action::Reply`] with the same [`RequestId`], perhaps after many further events.

use fermi_spec::addr::{FrameNo, Gpa, GuestVramAddr, Iova};
use fermi_spec::bar::Bar;
use serde::{Deserialize, Serialize};

use crate::config::VmConfig;
use crate::notice::{MoveId, Notice};
use crate::reason::{CardOperation, Denial, Inconsistency};

mod recorded;

/// One VM of this GPU, as long as it is attached. Numbers are reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VmId(pub u16);

impl std::fmt::Display for VmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vm{}", self.0)
    }
}

/// Names a VM's request until it is answered. Unique among those unanswered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Names a host read or poll until its result is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Token(pub u64);

/// A clock reading: nanoseconds since the edge started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Tick(pub u64);

impl Tick {
    /// The time `ns` nanoseconds later.
    pub fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`, zero if that is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Something that happened outside of the core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The card is at hand: bring it up. Comes once, first.
    Start,
    /// A VM wants a vGPU. Answered by [`Action::Attached`] or [`Action::Denied`].
    Attach {
        /// Its number, not in use.
        vm: VmId,
        /// What it asks for.
        config: VmConfig,
    },
    /// The VM's client may map BAR1, BAR3 and PRAMIN from now on ([`crate::WindowLayout`]): what they show lives in the VM's window file. Only where a page of an image
    /// may be replaced under the card ([`crate::Capabilities::lets_windows`]).
    LetWindows {
        /// VM whose client it is.
        vm: VmId,
    },
    /// GP_PUT words in USERD that the VM's client maps are not what they were ([`Action::WatchChannel`]). Their values are read when the
    /// VM has its turn.
    Doorbells {
        /// VM whose client it is.
        vm: VmId,
        /// The guest's numbers of the channels; those that it has not are passed over.
        channels: Vec<u8>,
    },
    /// The VM is gone, however it went. Answered by [`Action::Detached`] when nothing of it is left on the card.
    Detach {
        /// VM that is gone.
        vm: VmId,
    },
    /// Result of [`Action::HostRead`].
    HostValue {
        /// Of the read.
        token: Token,
        /// Bytes that the card returned.
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    /// Result of [`Action::HostPoll`].
    PollDone {
        /// Of the poll.
        token: Token,
        /// Whether the condition held before the time-out.
        met: bool,
    },
    /// A refusable [`Action::MapDma`] failed. Comes before the result of any read or poll that was asked for after it.
    MapRefused {
        /// Its first bus address.
        iova: Iova,
    },
    /// Result of [`Action::Populate`].
    Populated {
        /// The move that asked.
        id: MoveId,
        /// Whether all of it is there. If not, the host has no memory left for it.
        done: bool,
    },
    /// The card raised its interrupt.
    HostInterrupt,
    /// The time asked for by [`Action::WakeAt`] has come, or passed; also allowed at any other time.
    Wake,
    /// The operator changes a VM's quota. Answered by [`Action::QuotaRefused`] if it cannot hold; else it holds from now on.
    SetQuota {
        /// VM whose quota changes.
        vm: VmId,
        /// The new one.
        quota: crate::config::Quota,
    },
    /// The operator holds back something from a VM, or no more. It holds from now on, whatever held before.
    SetHold {
        /// VM that it is for.
        vm: VmId,
        /// All that is held back.
        hold: crate::config::Hold,
    },
    /// The operator changes the bound of host RAM for all VMs of the card, see [`crate::GpuConfig::host_ram`]. Answered by
    /// [`Action::HostRamRefused`] if what VMs are promised would not fit; else it holds from now on.
    SetHostRam {
        /// The new one.
        bytes: u64,
    },
    /// A VM asks for something. Answered by [`Action::Reply`].
    #[serde(untagged, with = "recorded")]
    Request {
        /// VM that asks.
        vm: VmId,
        /// Id for the reply.
        id: RequestId,
        /// What it asks for.
        request: Request,
    },
}

/// What a VM can ask for. It is the same type from the message or call that asks to the VM's queue in the core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A trapped load. Answered with data.
    Read {
        /// BAR that is read.
        bar: Bar,
        /// Bytes into the BAR.
        offset: u64,
        /// Length, 1 to [`ACCESS_BYTES_MAX`].
        bytes: u32,
    },
    /// A trapped store.
    Write {
        /// BAR that is written.
        bar: Bar,
        /// Bytes into the BAR.
        offset: u64,
        /// 1 to [`ACCESS_BYTES_MAX`] bytes.
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    /// A load from the PCI configuration space. Answered with data; bytes behind its end are ones.
    ReadConfig {
        /// Bytes into the space.
        offset: u64,
        /// Length, 1 to [`ACCESS_BYTES_MAX`].
        bytes: u32,
    },
    /// A store to the PCI configuration space. What cannot be written there stays.
    WriteConfig {
        /// Bytes into the space.
        offset: u64,
        /// 1 to [`ACCESS_BYTES_MAX`] bytes.
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    /// A range of guest RAM became reachable for DMA (vfio-user DMA_MAP).
    MapRam {
        /// First address, page-aligned.
        gpa: Gpa,
        /// Length in bytes, page-aligned.
        bytes: u64,
        /// The device may write it.
        writable: bool,
    },
    /// A range is to become unreachable; covers whole maps. Answered only when nothing can reach the range.
    UnmapRam {
        /// First address of the range.
        gpa: Gpa,
        /// Length in bytes.
        bytes: u64,
    },
    /// The VMM masks the VM's INTx, or lets it through again (vfio-user DEVICE_SET_IRQS). It is masked at first, and again by each
    /// [`Action::Interrupt`] of the kind [`InterruptKind::Intx`]. A reset leaves it as it is.
    MaskIntx {
        /// Whether it is masked from now on.
        masked: bool,
    },
    /// The VM's device is reset (vfio-user DEVICE_RESET).
    Reset,
}

/// Kind of interrupt that a VM gets: its guest chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum InterruptKind {
    /// A message, the vGPU's one MSI, as long as the guest has switched that on: an edge, when the interrupt line rises.
    #[default]
    Msi,
    /// The interrupt pin, otherwise: a level. The line is up, and the guest has not switched the pin off.
    Intx,
}

impl InterruptKind {
    /// Recordings that are older than INTx have no kind.
    fn is_msi(&self) -> bool {
        *self == Self::Msi
    }
}

/// Longest access in one request.
pub const ACCESS_BYTES_MAX: usize = 4096;

/// Most requests of one VM that may wait for their turn. A VMM has one outstanding for each vCPU, and a few posted ones. Beyond that they are
/// refused ([`Refusal::TooManyWaiting`]).
pub const REQUESTS_WAITING_MAX: usize = 4096;

/// Answer to a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done; nothing to say.
    Done,
    /// The bytes read.
    Data(#[serde(with = "crate::hex")] Vec<u8>),
    /// Refused, with the reason for the protocol's error and the log.
    Refused(Refusal),
}

/// Why a client's request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The VM is not attached.
    #[error("the VM is not attached")]
    NotAttached,
    /// The range is not page-aligned, empty, beyond 2^40, or overlaps another.
    #[error("the DMA range is misaligned, empty, too high or overlaps another")]
    BadRange,
    /// Too many DMA maps, or no bus address left.
    #[error("too many DMA maps")]
    TooManyMaps,
    /// More RAM than the VM may map, or in too many small pieces.
    #[error("more RAM is mapped than the VM's `ram` allows")]
    TooMuchRam,
    /// Unmap of a range that is not exactly covered by maps.
    #[error("no DMA map covers the range")]
    NoSuchMap,
    /// Too many accesses unanswered.
    #[error("too many accesses are waiting")]
    TooManyWaiting,
}

/// Plain memory that the core reads and writes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// A VM's RAM.
    Ram {
        /// VM whose RAM it is.
        vm: VmId,
        /// Address in that RAM.
        gpa: Gpa,
    },
    /// The host-RAM image of a VM's VRAM: instance memory and spilled chunks, each byte at its guest address.
    Image {
        /// VM whose VRAM it is the image of.
        vm: VmId,
        /// Address in that VRAM.
        at: GuestVramAddr,
    },
    /// BAR1 as the VM's client maps it.
    Bar1 {
        /// VM whose client it is.
        vm: VmId,
        /// Bytes into the BAR.
        offset: u64,
    },
    /// The broker's own DMA memory: ring, pushbuffer, semaphores.
    Own {
        /// Bytes into it.
        offset: u64,
    },
}

/// What the edge lets the core touch during `apply`. Both calls are plain memory accesses; neither waits.
pub trait HostMemory {
    /// Fills `data` from `at`. `false` if no memory is there (an unmapped GPA, a dead VM); `data` is then all ones.
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool;

    /// Stores `data` at `at`. `false` if no memory is there.
    fn write(&mut self, at: Place, data: &[u8]) -> bool;
}

/// Who holds a VRAM frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FrameOwner {
    /// The broker: shadows, own tables.
    Broker,
    /// A VM, whose guest sees the frame's bytes at `at` of its VRAM.
    Vm {
        /// VM that owns the frame.
        vm: VmId,
        /// A multiple of the frame size.
        at: GuestVramAddr,
    },
    /// No owner: the frame is free.
    Free,
}

impl FrameOwner {
    /// The owner of the frame that lies `frames` behind one of this owner.
    pub fn behind(self, frames: u64) -> Self {
        match self {
            Self::Broker | Self::Free => self,
            Self::Vm { vm, at } => Self::Vm {
                vm,
                at: at.offset(frames * fermi_spec::addr::FRAME),
            },
        }
    }
}

/// Pages that go from the image of a VM's VRAM to its window file, or come back. All numbers are of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Passage {
    /// VM whose image and window file it is.
    pub vm: VmId,
    /// Bytes into the window file ([`crate::WindowLayout`]).
    pub offset: u64,
    /// First address in its VRAM.
    pub at: GuestVramAddr,
    /// Length in bytes.
    pub bytes: u64,
    /// The card may store there meanwhile: it has to stand still.
    pub is_reached: bool,
}

/// Whether doorbells of a channel are looked for in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChannelWatch {
    /// VM whose channel it is.
    pub vm: VmId,
    /// The guest's number of it.
    pub channel: u8,
    /// Whether they are from now on.
    pub is_watched: bool,
}

/// What is to be done, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// The vGPU exists; the VM may start. Nothing else of the VM is answered before this.
    Attached {
        /// VM that may start.
        vm: VmId,
    },
    /// The vGPU was refused.
    Denied {
        /// VM that was refused.
        vm: VmId,
        /// Reason of the refusal, with its figures.
        reason: Denial,
    },
    /// A VM keeps the quota that it has, because the new one could not be kept.
    QuotaRefused {
        /// VM whose quota was to change.
        vm: VmId,
        /// Reason of the refusal, with its figures.
        reason: Denial,
    },
    /// The bound of host RAM stays as it is, because what VMs are promised would not fit.
    HostRamRefused {
        /// Reason of the refusal, with its figures.
        reason: Denial,
    },
    /// Nothing of the VM is left on the card or in bus addresses; its memory may go.
    Detached {
        /// VM that is gone.
        vm: VmId,
    },
    /// The accounts of this VM contradict each other: it is to go, and what led to it is to be written. The core detaches it
    /// by itself.
    GiveUp {
        /// VM that loses its vGPU.
        vm: VmId,
        /// What its accounts say that is not so.
        reason: Inconsistency,
    },
    /// Answer a client.
    Reply {
        /// VM whose request is answered.
        vm: VmId,
        /// Id of the request.
        request: RequestId,
        /// Answer to the request.
        reply: Reply,
    },
    /// Store to the card.
    HostWrite {
        /// BAR that is written.
        bar: Bar,
        /// Bytes into the BAR.
        offset: u64,
        /// What; of any length, split by the backend as the BAR wants.
        #[serde(with = "crate::hex")]
        data: Vec<u8>,
    },
    /// Load from the card; [`Event::HostValue`] follows.
    HostRead {
        /// To name the answer.
        token: Token,
        /// BAR that is read.
        bar: Bar,
        /// Bytes into the BAR.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Wait until `register & mask == value`; [`Event::PollDone`] follows. Later actions do not wait for it.
    HostPoll {
        /// To name the answer.
        token: Token,
        /// Byte offset of the register in BAR0.
        offset: u32,
        /// Bits that count.
        mask: u32,
        /// What they must be.
        value: u32,
        /// Bound, nanoseconds from now.
        timeout_ns: u64,
    },
    /// Let the card reach memory at a bus address.
    MapDma {
        /// First bus address.
        iova: Iova,
        /// Length in bytes.
        bytes: u64,
        /// What lies there.
        memory: Place,
        /// The card may write it.
        writable: bool,
        /// The core does without, should it fail: [`Event::MapRefused`] follows then. Another map of a VM's memory that
        /// fails costs the VM its vGPU.
        refusable: bool,
    },
    /// Take maps away: one, or several neighbours.
    UnmapDma {
        /// First bus address, as mapped.
        iova: Iova,
        /// Length of all of them.
        bytes: u64,
    },
    /// Frames have a new owner, all of them the same. Their bytes must not be readable by the old one afterwards; they are
    /// undefined, or zero where the backend says so ([`crate::Capabilities::frames_arrive_zeroed`]).
    PlaceFrames {
        /// Numbers of the frames.
        frames: Vec<FrameNo>,
        /// Whose the first one is from now on; the others lie behind it ([`FrameOwner::behind`]).
        owner: FrameOwner,
    },
    /// The image's copy of this range is no longer needed: give the memory back. If the range is all of the VM's VRAM, nothing of it lives in the
    /// window file any more; of another range nothing does.
    DropImage {
        /// VM whose VRAM it is the image of.
        vm: VmId,
        /// First address of the range, page-aligned.
        at: GuestVramAddr,
        /// Length in bytes, page-aligned.
        bytes: u64,
    },
    /// Pages of the image live in the window file from now on, with the bytes that they have. The image shows them from there, to the card
    /// too.
    Lend(Passage),
    /// The same pages live in the image again, with the bytes that they have. Their place in the window file reads as zero.
    TakeBack(Passage),
    /// Where a VM's USERD lies in the memory that its client maps as BAR1, if it does. None of its channels is watched then.
    PlaceUserd {
        /// VM whose USERD it is.
        vm: VmId,
        /// Bytes into BAR1 where the page of channel 0 lies; those of the others follow.
        at: Option<u64>,
    },
    /// Look again and again whether the GP_PUT word of a channel changes there, and say so by [`Event::Doorbells`], also of what is there at
    /// first; or look no more.
    WatchChannel(ChannelWatch),
    /// Have host memory ready that a move will write: first touch of a page takes longer than its copy, and channels
    /// would stand still meanwhile. Nobody waits in the edge for it; [`Event::Populated`] follows. All bytes stay as they are.
    Populate {
        /// The move that asks, to name the answer.
        id: MoveId,
        /// VM whose memory it is.
        vm: VmId,
        /// Parts of its image: first address and bytes, page-aligned.
        images: Vec<(GuestVramAddr, u64)>,
        /// Where frames of the VM lie or will come, on a card whose frames are host memory.
        frames: Vec<GuestVramAddr>,
    },
    /// Have the host give the pages behind memory of a VM that starts in host RAM, ahead of whoever stores there. Nobody waits for it and
    /// no event follows. A host that has none costs that VM its vGPU: it was promised this memory when it attached.
    Reserve {
        /// VM whose memory it is.
        vm: VmId,
        /// Parts of its image: first address and bytes, page-aligned.
        images: Vec<(GuestVramAddr, u64)>,
    },
    /// Raise the VM's interrupt, once. INTx is masked with that until the VMM's [`Request::MaskIntx`], and raised again then if the
    /// line is still up.
    Interrupt {
        /// VM that gets the interrupt.
        vm: VmId,
        /// How it gets it.
        #[serde(default, skip_serializing_if = "InterruptKind::is_msi")]
        kind: InterruptKind,
    },
    /// The guest lets its device send messages from now on, or no longer, by its PCI configuration space. It does not
    /// before the first of these. An MSI that is raised meanwhile is held back.
    LetInterrupts {
        /// VM whose device it is.
        vm: VmId,
        /// Whether they are sent.
        through: bool,
    },
    /// Send [`Event::Wake`] at this time; replaces an earlier request.
    WakeAt {
        /// Time of the wake-up.
        at: Tick,
    },
    /// The card did not do what everything relies on, so nobody knows what it still reaches: let go of it with all of its
    /// maps before any memory is given back, and put every VM out. The core gives nothing to anybody from now on.
    CardLost {
        /// Operation that did not end, though it was waited for twice.
        operation: CardOperation,
    },
    /// Something an operator, a log or a metric wants to know.
    Notice(Notice),
}

/// The list that `apply` fills.
#[derive(Default, Debug)]
pub struct Actions {
    list: Vec<Action>,
}

impl Actions {
    /// Appends an action behind all others.
    pub fn push(&mut self, action: Action) {
        self.list.push(action);
    }

    /// Takes all, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Action> {
        self.list.drain(..)
    }

    /// The actions so far.
    pub fn as_slice(&self) -> &[Action] {
        &self.list
    }

    /// A word to a BAR0 register of the card.
    pub(crate) fn register(&mut self, reg: impl Into<fermi_spec::regs::Bar0Reg>, value: u32) {
        self.push(Action::HostWrite {
            bar: Bar::Bar0,
            offset: u64::from(reg.into().offset()),
            data: value.to_le_bytes().to_vec(),
        });
    }
}
