//! The flight recorder's entry for an event or an action: no text, and no byte of a guest's data.

use fermi_spec::addr::{FRAME, FrameNo, Gpa, GuestVramAddr, Iova, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES};
use serde::{Deserialize, Serialize};

use crate::event::{
    Action, ChannelWatch, Event, FrameOwner, InterruptKind, Passage, Place, Refusal, Reply, Request,
    RequestId, Tick, Token, VmId,
};
use crate::notice::MoveId;
use crate::reason::CardOperation;

/// How a VM's request was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Not by its own event; a later entry has the answer.
    Later,
    /// The request was done; there is no data.
    Done,
    /// With as many bytes as were asked for. They are not recorded.
    Data,
    /// The client gets an error of the protocol.
    Refused(Refusal),
}

impl From<&Reply> for Answer {
    fn from(reply: &Reply) -> Self {
        match reply {
            Reply::Done => Answer::Done,
            Reply::Data(_) => Answer::Data,
            Reply::Refused(refusal) => Answer::Refused(*refusal),
        }
    }
}

/// Host memory that a bus address stands for, without the place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Memory {
    /// RAM of a VM.
    Ram(VmId),
    /// Image of a VM's VRAM.
    Image(VmId),
    /// The broker's own.
    Own,
}

impl From<Place> for Memory {
    fn from(place: Place) -> Self {
        match place {
            Place::Ram { vm, .. } => Memory::Ram(vm),
            // BAR1 is mapped by clients and for no DMA.
            Place::Image { vm, .. } | Place::Bar1 { vm, .. } => Memory::Image(vm),
            Place::Own { .. } => Memory::Own,
        }
    }
}

/// One event or action. Lengths of accesses beyond 65,535 bytes are recorded as 65,535, and so are offsets into
/// configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "fields and variants mean what those of `Event` and `Action` mean"
)]
pub enum Happened {
    // Events.
    Start,
    Attach {
        vm: VmId,
        guest_vram: u64,
    },
    LetWindows {
        vm: VmId,
    },
    Doorbells {
        vm: VmId,
        channels: u16,
    },
    Detach {
        vm: VmId,
    },
    Reset {
        vm: VmId,
        request: RequestId,
    },
    MaskIntx {
        vm: VmId,
        request: RequestId,
        masked: bool,
    },
    Load {
        vm: VmId,
        request: RequestId,
        bar: Bar,
        offset: u64,
        bytes: u16,
        answer: Answer,
    },
    Store {
        vm: VmId,
        request: RequestId,
        bar: Bar,
        offset: u64,
        bytes: u16,
        answer: Answer,
    },
    ConfigLoad {
        vm: VmId,
        request: RequestId,
        offset: u16,
        bytes: u16,
    },
    ConfigStore {
        vm: VmId,
        request: RequestId,
        offset: u16,
        bytes: u16,
    },
    MapRam {
        vm: VmId,
        request: RequestId,
        gpa: Gpa,
        pages: u32,
        writable: bool,
    },
    UnmapRam {
        vm: VmId,
        request: RequestId,
        gpa: Gpa,
        pages: u32,
    },
    HostValue {
        token: Token,
        bytes: u16,
        value: Option<u32>,
    },
    PollDone {
        token: Token,
        met: bool,
    },
    MapRefused {
        iova: Iova,
    },
    Populated {
        id: MoveId,
        done: bool,
    },
    HostInterrupt,
    Wake,
    SetQuota {
        vm: VmId,
    },
    SetHold {
        vm: VmId,
        vram: Option<u64>,
        is_suspended: bool,
    },
    SetHostRam {
        bytes: u64,
    },
    // Actions.
    Attached {
        vm: VmId,
    },
    Denied {
        vm: VmId,
    },
    QuotaRefused {
        vm: VmId,
    },
    HostRamRefused,
    Detached {
        vm: VmId,
    },
    Replied {
        vm: VmId,
        request: RequestId,
        answer: Answer,
    },
    HostWrite {
        bar: Bar,
        offset: u64,
        bytes: u16,
        value: Option<u32>,
    },
    HostRead {
        token: Token,
        bar: Bar,
        offset: u64,
        bytes: u16,
    },
    HostPoll {
        token: Token,
        offset: u32,
        mask: u32,
        value: u32,
    },
    MapDma {
        iova: Iova,
        bytes: u64,
        memory: Memory,
    },
    UnmapDma {
        iova: Iova,
        bytes: u64,
    },
    PlaceFrames {
        first: FrameNo,
        /// The largest number stands for more, too.
        count: u16,
        owner: FrameOwner,
    },
    DropImage {
        vm: VmId,
        at: GuestVramAddr,
        pages: u32,
    },
    PlaceUserd {
        vm: VmId,
        at: Option<u32>,
    },
    WatchChannel {
        vm: VmId,
        channel: u8,
        is_watched: bool,
    },
    Lend {
        vm: VmId,
        at: GuestVramAddr,
        pages: u32,
    },
    TakeBack {
        vm: VmId,
        at: GuestVramAddr,
        pages: u32,
    },
    Populate {
        vm: VmId,
        id: MoveId,
        pages: u32,
    },
    Reserve {
        vm: VmId,
        pages: u32,
    },
    GiveUp {
        vm: VmId,
    },
    Interrupt {
        vm: VmId,
        #[serde(default)]
        kind: InterruptKind,
    },
    LetInterrupts {
        vm: VmId,
        through: bool,
    },
    WakeAt {
        at: Tick,
    },
    CardLost {
        operation: CardOperation,
    },
}

/// Entries are written on the path of every access: two lines of a cache hold three of them.
const _: () = assert!(size_of::<Happened>() <= 24);

/// Whether bytes of BAR0 are registers, and not memory seen through a window.
pub(super) fn is_register(bar: Bar, offset: u64) -> bool {
    let window = u64::from(PRAMIN_BASE)..u64::from(PRAMIN_BASE + PRAMIN_BYTES);
    bar == Bar::Bar0 && !window.contains(&offset)
}

fn word(data: &[u8]) -> Option<u32> {
    data.try_into().ok().map(u32::from_le_bytes)
}

fn short(bytes: usize) -> u16 {
    bytes.min(usize::from(u16::MAX)) as u16
}

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes / SMALL_PAGE).unwrap_or(u32::MAX)
}

impl Happened {
    #[inline]
    pub(super) fn load(vm: VmId, request: RequestId, bar: Bar, offset: u64, bytes: u32) -> Self {
        Happened::Load {
            vm,
            request,
            bar,
            offset,
            bytes: short(bytes as usize),
            answer: Answer::Later,
        }
    }

    #[inline]
    pub(super) fn store(vm: VmId, request: RequestId, bar: Bar, offset: u64, bytes: usize) -> Self {
        Happened::Store {
            vm,
            request,
            bar,
            offset,
            bytes: short(bytes),
            answer: Answer::Later,
        }
    }

    /// The entry of an event. The value of a read of the card is kept if it is one word: the code that asked for it
    /// decides whether it may stay.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        Some(match *event {
            Event::Start => Happened::Start,
            Event::Attach { vm, ref config } => Happened::Attach {
                vm,
                guest_vram: config.guest_vram,
            },
            Event::LetWindows { vm } => Happened::LetWindows { vm },
            Event::Doorbells { vm, ref channels } => Happened::Doorbells {
                vm,
                channels: short(channels.len()),
            },
            Event::Detach { vm } => Happened::Detach { vm },
            Event::Request {
                vm,
                id: request,
                request: ref what,
            } => match *what {
                Request::Reset => Happened::Reset { vm, request },
                Request::MaskIntx { masked } => Happened::MaskIntx { vm, request, masked },
                Request::Read { .. } | Request::Write { .. } => return None,
                Request::ReadConfig { offset, bytes } => Happened::ConfigLoad {
                    vm,
                    request,
                    offset: short(offset as usize),
                    bytes: short(bytes as usize),
                },
                Request::WriteConfig { offset, ref data } => Happened::ConfigStore {
                    vm,
                    request,
                    offset: short(offset as usize),
                    bytes: short(data.len()),
                },
                Request::MapRam { gpa, bytes, writable } => Happened::MapRam {
                    vm,
                    request,
                    gpa,
                    pages: pages(bytes),
                    writable,
                },
                Request::UnmapRam { gpa, bytes } => Happened::UnmapRam {
                    vm,
                    request,
                    gpa,
                    pages: pages(bytes),
                },
            },
            Event::HostValue { token, ref data } => Happened::HostValue {
                token,
                bytes: short(data.len()),
                value: word(data),
            },
            Event::PollDone { token, met } => Happened::PollDone { token, met },
            Event::MapRefused { iova } => Happened::MapRefused { iova },
            Event::Populated { id, done } => Happened::Populated { id, done },
            Event::HostInterrupt => Happened::HostInterrupt,
            Event::Wake => Happened::Wake,
            Event::SetQuota { vm, .. } => Happened::SetQuota { vm },
            Event::SetHold { vm, hold } => Happened::SetHold {
                vm,
                vram: hold.vram,
                is_suspended: hold.is_suspended,
            },
            Event::SetHostRam { bytes } => Happened::SetHostRam { bytes },
        })
    }

    /// The entry of frames that change their owner.
    fn placed(frames: &[FrameNo], owner: FrameOwner) -> Option<Self> {
        Some(Self::PlaceFrames {
            first: *frames.first()?,
            count: u16::try_from(frames.len()).unwrap_or(u16::MAX),
            owner,
        })
    }

    /// The entry of an action; `None` for a notice, which is kept whole and elsewhere.
    pub(super) fn of_action(action: &Action) -> Option<Self> {
        Some(match *action {
            Action::Attached { vm } => Happened::Attached { vm },
            Action::Denied { vm, .. } => Happened::Denied { vm },
            Action::QuotaRefused { vm, .. } => Happened::QuotaRefused { vm },
            Action::HostRamRefused { .. } => Happened::HostRamRefused,
            Action::Detached { vm } => Happened::Detached { vm },
            Action::GiveUp { vm, .. } => Happened::GiveUp { vm },
            Action::Reply {
                vm,
                request,
                ref reply,
            } => Happened::Replied {
                vm,
                request,
                answer: reply.into(),
            },
            Action::HostWrite {
                bar,
                offset,
                ref data,
            } => Happened::HostWrite {
                bar,
                offset,
                bytes: short(data.len()),
                value: word(data).filter(|_| is_register(bar, offset)),
            },
            Action::HostRead {
                token,
                bar,
                offset,
                bytes,
            } => Happened::HostRead {
                token,
                bar,
                offset,
                bytes: short(bytes as usize),
            },
            Action::HostPoll {
                token,
                offset,
                mask,
                value,
                ..
            } => Happened::HostPoll {
                token,
                offset,
                mask,
                value,
            },
            Action::Interrupt { vm, kind } => Happened::Interrupt { vm, kind },
            Action::LetInterrupts { vm, through } => Happened::LetInterrupts { vm, through },
            Action::WakeAt { at } => Happened::WakeAt { at },
            Action::CardLost { operation } => Happened::CardLost { operation },
            Action::MapDma { .. }
            | Action::UnmapDma { .. }
            | Action::PlaceFrames { .. }
            | Action::DropImage { .. }
            | Action::Lend(_)
            | Action::TakeBack(_)
            | Action::PlaceUserd { .. }
            | Action::WatchChannel(_)
            | Action::Populate { .. }
            | Action::Reserve { .. } => return Self::of_memory(action),
            Action::Notice(_) => return None,
        })
    }

    /// The entry of an action on memory.
    fn of_memory(action: &Action) -> Option<Self> {
        Some(match *action {
            Action::MapDma {
                iova, bytes, memory, ..
            } => Happened::MapDma {
                iova,
                bytes,
                memory: memory.into(),
            },
            Action::UnmapDma { iova, bytes } => Happened::UnmapDma { iova, bytes },
            Action::PlaceFrames { ref frames, owner } => Happened::placed(frames, owner)?,
            Action::DropImage { vm, at, bytes } => Happened::DropImage {
                vm,
                at,
                pages: pages(bytes),
            },
            Action::Lend(Passage { vm, at, bytes, .. }) => Happened::Lend {
                vm,
                at,
                pages: pages(bytes),
            },
            Action::TakeBack(Passage { vm, at, bytes, .. }) => Happened::TakeBack {
                vm,
                at,
                pages: pages(bytes),
            },
            Action::PlaceUserd { vm, at } => Happened::PlaceUserd {
                vm,
                at: at.map(|at| u32::try_from(at).unwrap_or(u32::MAX)),
            },
            Action::WatchChannel(ChannelWatch {
                vm,
                channel,
                is_watched,
            }) => Happened::WatchChannel {
                vm,
                channel,
                is_watched,
            },
            Action::Populate {
                vm,
                id,
                ref images,
                ref frames,
            } => {
                let images: u64 = images.iter().map(|(_, bytes)| bytes).sum();
                Happened::Populate {
                    vm,
                    id,
                    pages: pages(images + frames.len() as u64 * FRAME),
                }
            }
            Action::Reserve { vm, ref images } => Happened::Reserve {
                vm,
                pages: pages(images.iter().map(|(_, bytes)| bytes).sum()),
            },
            _ => return None,
        })
    }

    /// Takes the answer if this is the request that it answers.
    #[inline]
    pub(super) fn take_answer(&mut self, to: RequestId, with: Answer) -> bool {
        match self {
            Happened::Load { request, answer, .. } | Happened::Store { request, answer, .. }
                if *request == to =>
            {
                *answer = with;
                true
            }
            _ => false,
        }
    }

    /// The token of a read of the card's registers, whose value is no guest's.
    pub(super) fn register_read(&self) -> Option<Token> {
        match *self {
            Happened::HostRead {
                token, bar, offset, ..
            } if is_register(bar, offset) => Some(token),
            _ => None,
        }
    }
}
