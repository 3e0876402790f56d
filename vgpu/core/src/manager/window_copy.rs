//! Moves by the CPU, where the card's copy engines have no microcode: through a window of BAR1.
//!
//! ```text
//! Mapping ─► Copying: frames into the window ─► flush ─► pieces, a few under way ─► last frame? ─► Redirecting
//!                       ▲                                                              │ no
//!                       └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! A spill reads VRAM and writes the image, a refill the other way. Pieces are pages; between a few of them the core
//! comes back, so that others are served meanwhile. A refill reads a word back now and then: stores are only posted, and
//! the answer says that they have arrived.
//!
//! Loads across PCIe take about a microsecond for 8 bytes, so a chunk of 2 MiB takes a quarter of a second. The
//! channels of its VM are suspended a hundred times longer than for a copy by an engine.

use std::collections::{BTreeMap, VecDeque};

use fermi_spec::addr::{FRAME, FrameNo, GuestVramAddr, SMALL_PAGE};
use fermi_spec::bar::Bar;
use serde::{Deserialize, Serialize};

use super::Cx;
use super::mover::{Head, Move};
use super::moves::copied_chunks;
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Action, Place, Token};
use crate::host::bring_up::Layout;
use crate::host::card::{COPY_BAR_BASE, COPY_BAR_FRAMES};
use crate::host::{Card, Job};
use crate::notice::{Direction, MoveId};
use crate::reason::RollBack;
use crate::saved::Unsound;

/// Most bytes in one move, if a chunk is not larger: half a second at 2 MiB each 250 ms.
pub(super) const BATCH_BYTES_BY_WINDOW: u64 = 4 << 20;
/// A copy that takes longer than this is given up: 64 MiB, the largest chunk, at 8 MB/s.
const BUDGET_NS: u64 = 8_000_000_000;
/// Pages under way at one time.
const PAGES_UNDER_WAY: usize = 16;

/// Pages of a chunk that lie in one frame.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Part {
    frame: FrameNo,
    /// Bytes into the frame.
    offset: u64,
    /// Where the image has them.
    at: GuestVramAddr,
    bytes: u64,
}

/// State of a move by the CPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WindowCopy {
    /// The copies left, those of the window's frames first.
    left: VecDeque<Part>,
    /// The pages in the window, as offsets in BAR1 and in the image.
    shown: VecDeque<(u64, GuestVramAddr, u64)>,
    /// Loads under way: a page for the image, or the one that says that stores have arrived.
    loads: BTreeMap<Token, Option<GuestVramAddr>>,
}

impl WindowCopy {
    /// Lists the copies of a move.
    pub(super) fn plan(head: &Head, vgpu: &Vgpu) -> Self {
        let mut copy = Self::default();
        for (chunk, frames) in copied_chunks(head, vgpu) {
            let base = vgpu.chunks.base(chunk);
            for (start, bytes) in head.data_runs(&vgpu.chunks, chunk) {
                let mut at = start;
                while at < start + bytes {
                    let offset = at % FRAME;
                    let length = (FRAME - offset).min(start + bytes - at);
                    copy.left.push_back(Part {
                        frame: frames[(at / FRAME) as usize],
                        offset,
                        at: base.offset(at),
                        bytes: length,
                    });
                    at += length;
                }
            }
        }
        copy
    }

    /// Checks a copy that was read, on a card of that layout for a VM with that much VRAM.
    pub(super) fn check(&self, layout: Layout, guest_vram: u64) -> Result<(), Unsound> {
        let in_image = |at: GuestVramAddr, bytes: u64| {
            let whole = at.is_aligned(SMALL_PAGE) && bytes.is_multiple_of(SMALL_PAGE) && bytes > 0;
            whole && at.checked_add(bytes).is_some_and(|end| end.0 <= guest_vram)
        };
        let is_part = |part: &Part| {
            let end = part.offset.checked_add(part.bytes);
            layout.is_usable(part.frame.0)
                && end.is_some_and(|end| end <= FRAME)
                && in_image(part.at, part.bytes)
        };
        let window = COPY_BAR_BASE..COPY_BAR_BASE + COPY_BAR_FRAMES as u64 * FRAME;
        let is_shown = |&(offset, at, bytes): &(u64, GuestVramAddr, u64)| {
            window.contains(&offset) && bytes <= window.end - offset && in_image(at, bytes)
        };
        let fits = self.left.iter().all(is_part) && self.shown.iter().all(is_shown);
        Unsound::unless(fits, "a copy by the CPU out of range")
    }

    /// Bytes that no frame of the window shows yet.
    pub(super) fn bytes_left(&self) -> u64 {
        self.left.iter().map(|part| part.bytes).sum()
    }

    /// Fills the window. With nothing left it is flushed all the same: a move ends only behind what was asked before.
    pub(super) fn show_next_frames(&mut self, id: MoveId, card: &mut Card, cx: &mut Cx<'_>) {
        let mut frames: Vec<FrameNo> = Vec::new();
        while let Some(part) = self.left.front().copied() {
            if frames.last() != Some(&part.frame) {
                if frames.len() == COPY_BAR_FRAMES {
                    break;
                }
                frames.push(part.frame);
            }
            let window = COPY_BAR_BASE + (frames.len() as u64 - 1) * FRAME + part.offset;
            self.shown.push_back((window, part.at, part.bytes));
            self.left.pop_front();
        }
        card.map_copy_bar(&frames, cx.actions);
        card.flush_tlb(None, Job::WindowFlushed(id));
    }

    /// Copies some pages, and shows the next frames when nothing is under way. `true`: all is copied.
    fn go_on(&mut self, head: &Head, card: &mut Card, cx: &mut Cx<'_>) -> bool {
        let vm = head.vm;
        let mut pages = self.loads.len();
        let mut last_store = None;
        while pages < PAGES_UNDER_WAY
            && let Some((window, at, bytes)) = self.shown.pop_front()
        {
            let (token, offset) = (card.tokens.next(), window);
            match head.direction {
                Direction::Spill => {
                    cx.actions.push(Action::HostRead {
                        token,
                        bar: Bar::Bar1,
                        offset,
                        bytes: SMALL_PAGE as u32,
                    });
                    self.loads.insert(token, Some(at));
                }
                Direction::Refill => {
                    let mut data = vec![0; SMALL_PAGE as usize];
                    cx.memory.read(Place::Image { vm, at }, &mut data);
                    cx.actions.push(Action::HostWrite {
                        bar: Bar::Bar1,
                        offset,
                        data,
                    });
                    last_store = Some((token, offset));
                }
            }
            if bytes > SMALL_PAGE {
                let rest = (window + SMALL_PAGE, at.offset(SMALL_PAGE), bytes - SMALL_PAGE);
                self.shown.push_front(rest);
            }
            pages += 1;
        }
        if let Some((token, offset)) = last_store {
            cx.actions.push(Action::HostRead {
                token,
                bar: Bar::Bar1,
                offset,
                bytes: 4,
            });
            self.loads.insert(token, None);
        }
        if !self.loads.is_empty() {
            return false;
        }
        if self.left.is_empty() {
            return true;
        }
        self.show_next_frames(head.id, card, cx);
        false
    }
}

impl Running {
    /// Goes on with a copy by the CPU; at its end everything is pointed to the new place.
    pub(super) fn go_on_by_window(&mut self, cx: &mut Cx<'_>) {
        let Some((head, copy)) = self.mover.window_copy() else {
            return;
        };
        if copy.go_on(head, &mut self.card, cx) {
            self.redirect(cx);
        }
    }

    /// Takes a load of a move by the CPU; `false` if the value belongs to another request.
    pub(super) fn window_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let Some((head, copy)) = self.mover.window_copy() else {
            return false;
        };
        let Some(page) = copy.loads.remove(&token) else {
            return false;
        };
        if let Some(at) = page {
            let vm = head.vm;
            cx.memory.write(Place::Image { vm, at }, data);
        }
        if copy.loads.is_empty() {
            self.go_on_by_window(cx);
        }
        true
    }

    /// Gives up a copy that takes too long. `true` if it did. Loads still under way write nothing: their answers find no
    /// move, and stores of a refill were performed before any frame is given back.
    pub(super) fn check_window_copy(&mut self, cx: &mut Cx<'_>) -> bool {
        let is_late = |moving: &Move| cx.now.since(moving.since) > BUDGET_NS;
        if !self.mover.current.as_ref().is_some_and(is_late) {
            return false;
        }
        self.give_up(RollBack::WindowCopyOverTime, cx);
        true
    }
}
