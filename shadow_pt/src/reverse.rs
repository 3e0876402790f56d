//! The slots that reach each frame.
//!
//! One edge joins a slot and a frame that its entries refer to, however many entries do. Edges live in one pool, in two
//! lists at once: the frame's (doubly linked, for redirects) and the slot's (for replacing them when it is built).
//! Invariants: a frame's counters equal its list; a slot has at most 32 edges, each to another frame.

use crate::saved::Unsound;
use crate::store::TableAt;
use fermi_spec::addr::{FRAME, GuestVramAddr};
use serde::{Deserialize, Serialize};

/// Number of a 128 KiB frame of a guest's VRAM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GuestFrame(pub u32);

impl GuestFrame {
    /// First byte of the frame.
    pub const fn base(self) -> GuestVramAddr {
        GuestVramAddr(self.0 as u64 * FRAME)
    }

    /// The frame that holds `at`, `None` beyond 2^32 frames.
    pub fn of(at: GuestVramAddr) -> Option<Self> {
        u32::try_from(at.0 / FRAME).ok().map(Self)
    }
}

/// How a shadow reaches a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// Whether any entry allows writes.
    pub writable: bool,
}

/// A frame began or ceased to be reached by an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReachChange {
    /// Whose reach it is, as the guest numbers its VRAM.
    pub frame: GuestFrame,
    /// It is about stores; otherwise about any access.
    pub is_store: bool,
    /// It was not reached before; otherwise it is not any more.
    pub began: bool,
}

/// A slot of a directory entry: (directory index << 10) | slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct SlotId(u32);

impl SlotId {
    pub(crate) fn new(pde: u16, slot: usize) -> Self {
        Self(u32::from(pde) << 10 | slot as u32)
    }

    pub(crate) fn pde(self) -> u16 {
        (self.0 >> 10) as u16
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & 0x3ff) as usize
    }
}

/// End of a list; no pool grows that far.
pub(crate) const NO_EDGE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Head {
    first: u32,
    edges: u32,
    writable: u32,
}

const NO_HEAD: Head = Head {
    first: NO_EDGE,
    edges: 0,
    writable: 0,
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Edge {
    frame: u32,
    slot: SlotId,
    next: u32,
    previous: u32,
    /// Also the free list's link.
    next_of_slot: u32,
    writable: bool,
}

/// The frames that one slot's entries refer to, while it is being built.
#[derive(Debug)]
pub(crate) struct SlotFrames {
    frames: [(u32, bool); 32],
    len: usize,
    /// Bit (frame mod 64) is set if such a frame may be in the list: spares the search for a new one.
    seen: u64,
}

impl SlotFrames {
    pub(crate) fn new() -> Self {
        Self {
            frames: [(0, false); 32],
            len: 0,
            seen: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.seen = 0;
    }

    /// Adds a frame. Called at most once for each of a slot's 32 entries.
    #[inline]
    pub(crate) fn add(&mut self, frame: u32, writable: bool) {
        let bit = 1 << (frame & 63);
        if self.seen & bit != 0
            && let Some(known) = self.frames[..self.len]
                .iter_mut()
                .rev()
                .find(|known| known.0 == frame)
        {
            known.1 |= writable;
            return;
        }
        self.seen |= bit;
        self.frames[self.len] = (frame, writable);
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[(u32, bool)] {
        &self.frames[..self.len]
    }
}

/// The index of one address space.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReverseIndex {
    /// By frame, as far as the highest frame seen; the caller bounds frames by the guest's VRAM.
    heads: Vec<Head>,
    edges: Vec<Edge>,
    free: u32,
    /// Since they were last taken, in order.
    #[serde(skip)]
    changes: Vec<ReachChange>,
}

impl Head {
    /// Counts an edge that comes or goes.
    #[inline]
    fn count(&mut self, frame: u32, comes: bool, changes: &mut Vec<ReachChange>) {
        let before = self.edges;
        self.edges = if comes { before + 1 } else { before - 1 };
        note(before, self.edges, frame, false, changes);
    }

    /// Counts an edge that begins or ceases to allow stores.
    #[inline]
    fn count_writable(&mut self, frame: u32, comes: bool, changes: &mut Vec<ReachChange>) {
        let before = self.writable;
        self.writable = if comes { before + 1 } else { before - 1 };
        note(before, self.writable, frame, true, changes);
    }
}

#[inline]
fn note(before: u32, after: u32, frame: u32, is_store: bool, changes: &mut Vec<ReachChange>) {
    if (before == 0) != (after == 0) {
        changes.push(ReachChange {
            frame: GuestFrame(frame),
            is_store,
            began: before == 0,
        });
    }
}

impl ReverseIndex {
    pub(crate) fn new() -> Self {
        Self {
            heads: Vec::new(),
            edges: Vec::new(),
            free: NO_EDGE,
            changes: Vec::new(),
        }
    }

    /// What changed since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<ReachChange> {
        std::mem::take(&mut self.changes)
    }

    /// Replaces the edges of a slot, whose list starts at `first`.
    #[inline]
    pub(crate) fn set(&mut self, first: &mut u32, slot: SlotId, frames: &[(u32, bool)]) {
        if !self.update_in_place(*first, frames) {
            self.replace(first, slot, frames);
        }
    }

    /// [`Self::set`] for a slot that reaches one frame.
    #[inline]
    pub(crate) fn set_one(&mut self, first: &mut u32, slot: SlotId, frame: u32, writable: bool) {
        if let Some(edge) = self.edges.get_mut(*first as usize)
            && edge.frame == frame
            && edge.next_of_slot == NO_EDGE
        {
            if edge.writable != writable {
                edge.writable = writable;
                self.heads[frame as usize].count_writable(frame, writable, &mut self.changes);
            }
            return;
        }
        if *first != NO_EDGE {
            self.unlink_slot(first);
        }
        *first = self.link(frame, slot, writable, NO_EDGE);
    }

    /// The usual case of a rebuild: the same frames in the same order.
    #[inline]
    fn update_in_place(&mut self, first: u32, frames: &[(u32, bool)]) -> bool {
        let mut edge = first;
        for &(frame, _) in frames {
            if edge == NO_EDGE || self.edges[edge as usize].frame != frame {
                return false;
            }
            edge = self.edges[edge as usize].next_of_slot;
        }
        if edge != NO_EDGE {
            return false;
        }
        let mut edge = first;
        for &(frame, writable) in frames {
            let known = &mut self.edges[edge as usize];
            if known.writable != writable {
                self.heads[frame as usize].count_writable(frame, writable, &mut self.changes);
            }
            known.writable = writable;
            edge = known.next_of_slot;
        }
        true
    }

    fn replace(&mut self, first: &mut u32, slot: SlotId, frames: &[(u32, bool)]) {
        self.unlink_slot(first);
        // Backwards, as each becomes the first of the slot's list.
        for &(frame, writable) in frames.iter().rev() {
            *first = self.link(frame, slot, writable, *first);
        }
    }

    #[inline]
    fn link(&mut self, frame: u32, slot: SlotId, writable: bool, next_of_slot: u32) -> u32 {
        if frame as usize >= self.heads.len() {
            self.heads.resize(frame as usize + 1, NO_HEAD);
        }
        let head = &mut self.heads[frame as usize];
        let edge = Edge {
            frame,
            slot,
            next: head.first,
            previous: NO_EDGE,
            next_of_slot,
            writable,
        };
        let at = if self.free == NO_EDGE {
            self.edges.push(edge);
            (self.edges.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.edges[at as usize].next_of_slot;
            self.edges[at as usize] = edge;
            at
        };
        if head.first != NO_EDGE {
            self.edges[head.first as usize].previous = at;
        }
        head.first = at;
        head.count(frame, true, &mut self.changes);
        if writable {
            head.count_writable(frame, true, &mut self.changes);
        }
        at
    }

    fn unlink_slot(&mut self, first: &mut u32) {
        while *first != NO_EDGE {
            let at = *first;
            let edge = self.edges[at as usize];
            let head = &mut self.heads[edge.frame as usize];
            head.count(edge.frame, false, &mut self.changes);
            if edge.writable {
                head.count_writable(edge.frame, false, &mut self.changes);
            }
            if edge.previous == NO_EDGE {
                head.first = edge.next;
            } else {
                self.edges[edge.previous as usize].next = edge.next;
            }
            if edge.next != NO_EDGE {
                self.edges[edge.next as usize].previous = edge.previous;
            }
            self.edges[at as usize].next_of_slot = self.free;
            self.free = at;
            *first = edge.next_of_slot;
        }
    }

    /// How the frame is reached, `None` if not at all.
    pub(crate) fn reaches(&self, frame: GuestFrame) -> Option<Reach> {
        let head = self.heads.get(frame.0 as usize)?;
        (head.edges != 0).then_some(Reach {
            writable: head.writable != 0,
        })
    }

    /// Whether a page of a guest's tables lies in memory that the address space lets the GPU write.
    pub(crate) fn is_written(&self, page: TableAt) -> bool {
        let TableAt::Vram(at) = page else { return false };
        GuestFrame::of(at)
            .and_then(|frame| self.reaches(frame))
            .is_some_and(|reach| reach.writable)
    }

    /// Bytes of host memory that it fills; lists that grow take up to as much again.
    pub(crate) fn heap_bytes(&self) -> u64 {
        (self.heads.len() * size_of::<Head>() + self.edges.len() * size_of::<Edge>()) as u64
    }

    /// Every frame that is reached, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GuestFrame, Reach)> {
        self.heads
            .iter()
            .enumerate()
            .filter(|(_, head)| head.edges != 0)
            .map(|(frame, head)| {
                (
                    GuestFrame(frame as u32),
                    Reach {
                        writable: head.writable != 0,
                    },
                )
            })
    }

    /// Checks an index that was read from somewhere against the slots whose lists it holds: each edge is in the lists of
    /// one slot and one frame, or free, and the counters fit. Frames are below `frames`.
    pub(crate) fn check(
        &self,
        frames: u32,
        slots: impl Iterator<Item = (SlotId, u32)>,
    ) -> Result<(), Unsound> {
        Unsound::unless(
            self.heads.len() <= frames as usize,
            "the index names frames that the guest does not have",
        )?;
        let mut is_used = vec![false; self.edges.len()];
        let mut used = 0;
        for (slot, mut at) in slots {
            while at != NO_EDGE {
                let edge = self.list(at, &mut is_used)?;
                Unsound::unless(edge.slot == slot, "an edge of one slot is in the list of another")?;
                used += 1;
                at = edge.next_of_slot;
            }
        }
        let mut reached = 0;
        for (frame, head) in (0..).zip(&self.heads) {
            reached += self.check_frame(frame, head, &is_used)?;
        }
        let mut is_listed = is_used;
        let mut free = self.free;
        while free != NO_EDGE {
            free = self.list(free, &mut is_listed)?.next_of_slot;
        }
        Unsound::unless(is_listed.iter().all(|&listed| listed), "an edge is in no list")?;
        Unsound::unless(reached == used, "an edge is in no frame's list")
    }

    /// The edge, which is noted as listed.
    fn list(&self, at: u32, is_listed: &mut [bool]) -> Result<Edge, Unsound> {
        let edge = self.edges.get(at as usize).ok_or(Unsound("no such edge"))?;
        let is_new = !std::mem::replace(&mut is_listed[at as usize], true);
        Unsound::unless(is_new, "an edge is in two lists")?;
        Ok(*edge)
    }

    /// The number of edges to a frame. A list that ran in a circle would come to an edge with another predecessor.
    fn check_frame(&self, frame: u32, head: &Head, is_used: &[bool]) -> Result<u32, Unsound> {
        let (mut at, mut previous) = (head.first, NO_EDGE);
        let (mut edges, mut writable) = (0, 0);
        while at != NO_EDGE {
            let edge = self.edges.get(at as usize).ok_or(Unsound("no such edge"))?;
            let fits = edge.frame == frame && edge.previous == previous && is_used[at as usize];
            Unsound::unless(fits, "an edge is in the list of another frame")?;
            edges += 1;
            writable += u32::from(edge.writable);
            (previous, at) = (at, edge.next);
        }
        let fits = (edges, writable) == (head.edges, head.writable);
        Unsound::unless(fits, "a frame's counters differ from its list")?;
        Ok(edges)
    }

    /// How many slots reach the frame.
    pub(crate) fn edges_of(&self, frame: GuestFrame) -> u64 {
        let head = self.heads.get(frame.0 as usize);
        head.map_or(0, |head| head.edges.into())
    }

    /// The frames that the slot reaches whose list starts at `first`.
    #[inline]
    pub(crate) fn frames_of_slot(&self, first: u32) -> impl Iterator<Item = GuestFrame> {
        let mut at = first;
        std::iter::from_fn(move || {
            let edge = self.edges.get(at as usize)?;
            at = edge.next_of_slot;
            Some(GuestFrame(edge.frame))
        })
    }

    /// The slots that reach the frame, in no particular order.
    pub(crate) fn slots(&self, frame: GuestFrame) -> impl Iterator<Item = SlotId> {
        let mut at = self
            .heads
            .get(frame.0 as usize)
            .map_or(NO_EDGE, |head| head.first);
        std::iter::from_fn(move || {
            let edge = self.edges.get(at as usize)?;
            at = edge.next;
            Some(edge.slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn slot_frames(list: &[(u32, bool)]) -> SlotFrames {
        let mut frames = SlotFrames::new();
        list.iter()
            .for_each(|&(frame, writable)| frames.add(frame, writable));
        frames
    }

    #[test]
    fn frame_named_twice_is_one_edge_and_writable_if_either_is() {
        let frames = slot_frames(&[(3, false), (67, false), (3, true)]);
        assert_eq!(frames.as_slice(), [(3, true), (67, false)]);
    }

    proptest! {
        #[test]
        fn index_equals_a_map_of_sets(
            edits in prop::collection::vec(
                (0usize..8, prop::collection::vec((0u32..12, any::<bool>()), 0..6)), 0..60)
        ) {
            let mut index = ReverseIndex::new();
            let mut firsts = [NO_EDGE; 8];
            let mut model: BTreeMap<usize, Vec<(u32, bool)>> = BTreeMap::new();
            let mut told = [[false; 2]; 12];
            for (slot, list) in edits {
                let frames = slot_frames(&list);
                match frames.as_slice() {
                    &[(frame, writable)] => {
                        index.set_one(&mut firsts[slot], SlotId::new(5, slot), frame, writable);
                    }
                    frames => index.set(&mut firsts[slot], SlotId::new(5, slot), frames),
                }
                model.insert(slot, frames.as_slice().to_vec());
                for change in index.take_changes() {
                    let known = &mut told[change.frame.0 as usize][usize::from(change.is_store)];
                    prop_assert_ne!(std::mem::replace(known, change.began), change.began);
                }
                for frame in 0..12 {
                    let mut expected: Vec<usize> = model.iter()
                        .filter(|(_, list)| list.iter().any(|edge| edge.0 == frame))
                        .map(|(&slot, _)| slot).collect();
                    let mut found: Vec<usize> =
                        index.slots(GuestFrame(frame)).map(SlotId::slot).collect();
                    expected.sort_unstable();
                    found.sort_unstable();
                    prop_assert_eq!(&found, &expected);
                    let writable = model.values().flatten().any(|&edge| edge == (frame, true));
                    prop_assert_eq!(
                        index.reaches(GuestFrame(frame)),
                        (!expected.is_empty()).then_some(Reach { writable })
                    );
                    prop_assert_eq!(told[frame as usize], [!expected.is_empty(), writable]);
                }
            }
        }
    }
}
