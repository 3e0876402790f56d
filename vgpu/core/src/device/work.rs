//! What a channel has been handed, entry by entry of its ring, and how much of it the card may have.
//!
//! ```text
//!   ended ≤ given ≤ submitted        entries of the ring by number; 0 is where the channel stood when it was bound
//!           given ≤ seen + …          seen: looked at, so what their launches will use is known
//!
//!   ─────ended════given┈┈┈┈seen·····submitted──►   the card has what is before given (Channel::given)
//! ```
//!
//! A launch waits between *seen* and *given* until its chunks are in VRAM, or its time is up (`manager::holding`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fermi_spec::addr::GpuVa;
use fermi_spec::gpfifo::ENTRIES_LOG2_MAX;
use launches::Ring;
use serde::{Deserialize, Serialize};

use super::looks::Looks;
use crate::event::Tick;
use crate::inspect::{Inspect, Tree};
use crate::memory::ChunkNo;
use crate::saved::Unsound;

/// Bits 39:32 of the ring's address in GP_BASE_HI, and where log2 of its entries stands.
const VA_HIGH: u32 = 0xff;
const LOG2_SHIFT: u32 = 16;
const LOG2_MASK: u32 = 0x1f;

/// The work of all channels of a VM.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VmWork {
    pub(crate) channels: BTreeMap<u8, ChannelWork>,
    /// It does not wait for memory before this time: it waited in vain.
    pub(crate) direct_until: Tick,
    /// What it uses is looked up meanwhile all the same, as far as there is credit for it.
    pub(crate) is_looked_up: bool,
    #[serde(default)]
    pub(crate) looks: Looks,
}

/// The time before which work of a VM does not wait whose policy lets none wait.
const NEVER: Tick = Tick(u64::MAX);

impl VmWork {
    /// Whether its work may wait for memory at all. What it uses is looked up in any case.
    pub(crate) fn let_wait(&mut self, may_wait: bool) {
        match may_wait {
            true if self.direct_until == NEVER => self.direct_until = Tick::default(),
            true => {}
            false => (self.direct_until, self.is_looked_up) = (NEVER, true),
        }
    }
}

/// The work of one channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ChannelWork {
    base: u64,
    entries_log2: u32,
    /// Place in the ring of entry 0.
    first: u32,
    submitted: u64,
    seen: u64,
    given: u64,
    ended: u64,
    /// Chunks that the launches of an entry will use, of entries that were looked at and that the card does not have.
    sets: VecDeque<(u64, BTreeSet<ChunkNo>)>,
    /// Those of launches that the card has and that may not have ended.
    running: BTreeSet<ChunkNo>,
    /// When the guest rang last.
    rang_at: Tick,
    /// Since when the next entry waits for its memory.
    waits_since: Option<Tick>,
}

impl VmWork {
    /// What must be so of the work of a VM that has these chunks.
    pub(crate) fn check(&self, is_chunk: impl Fn(ChunkNo) -> bool) -> Result<(), Unsound> {
        self.looks.check()?;
        for work in self.channels.values() {
            let order = [work.ended, work.given, work.submitted];
            let is_ring = work.entries_log2 <= ENTRIES_LOG2_MAX && work.first >> work.entries_log2 == 0;
            let is_sound = is_ring && order.is_sorted() && work.seen <= work.submitted;
            Unsound::unless(is_sound, "entries of a ring out of order")?;
            let sets = work.sets.iter().map(|(_, chunks)| chunks);
            let mut chunks = sets.chain([&work.running]).flatten();
            Unsound::unless(chunks.all(|chunk| is_chunk(*chunk)), "work on no chunk")?;
            let entries = work.sets.iter().map(|(entry, _)| *entry);
            let are_ahead = entries.clone().all(|entry| entry >= work.given) && entries.is_sorted();
            Unsound::unless(are_ahead, "a launch that waits and was given")?;
        }
        Ok(())
    }
}

impl ChannelWork {
    /// The work of a channel that stands at entry `get` of the ring that GP_BASE names. `None`: the card has no such ring.
    pub(crate) fn new([low, high]: [u32; 2], get: u32) -> Option<Self> {
        let entries_log2 = high >> LOG2_SHIFT & LOG2_MASK;
        (entries_log2 <= ENTRIES_LOG2_MAX && get >> entries_log2 == 0).then(|| Self {
            base: u64::from(low & !7) | u64::from(high & VA_HIGH) << 32,
            entries_log2,
            first: get,
            submitted: 0,
            seen: 0,
            given: 0,
            ended: 0,
            sets: VecDeque::new(),
            running: BTreeSet::new(),
            rang_at: Tick::default(),
            waits_since: None,
        })
    }

    pub(crate) fn ring(&self) -> Ring {
        Ring {
            base: GpuVa(self.base),
            entries_log2: self.entries_log2,
        }
    }

    /// The place in the ring of an entry.
    pub(crate) fn place(&self, entry: u64) -> u32 {
        let mask = (1 << self.entries_log2) - 1;
        self.first.wrapping_add(entry as u32) & mask
    }

    /// GP_PUT of what the card may have.
    pub(crate) fn given_put(&self) -> u32 {
        self.place(self.given)
    }

    /// Places in the ring from what has ended to `entry`.
    pub(crate) fn places_to(&self, entry: u64) -> [u32; 2] {
        [self.place(self.ended), self.place(entry)]
    }

    /// The guest has stored GP_PUT. `false`: it took back entries that were looked at.
    pub(crate) fn submit(&mut self, put: u32, now: Tick) -> bool {
        self.rang_at = now;
        let mask = (1u32 << self.entries_log2) - 1;
        self.submitted = self.given + u64::from(put.wrapping_sub(self.given_put()) & mask);
        if self.seen <= self.submitted {
            return true;
        }
        self.forget_seen();
        false
    }

    /// What was looked at is looked at anew.
    pub(crate) fn forget_seen(&mut self) {
        self.seen = self.given;
        self.sets.clear();
    }

    /// Entries that are looked at next, no more than `ahead` beyond what the card has. `None`: all are known that have to be.
    pub(crate) fn next_look(&self, ahead: u64) -> Option<std::ops::Range<u64>> {
        let end = self.submitted.min(self.given + ahead);
        (self.seen < end).then_some(self.seen..end)
    }

    /// Entries before `end` were looked at. Returns the chunks of each that the card has already: they are of what runs.
    pub(crate) fn looked(
        &mut self,
        end: u64,
        sets: impl IntoIterator<Item = (u64, BTreeSet<ChunkNo>)>,
    ) -> Vec<BTreeSet<ChunkNo>> {
        self.seen = self.seen.max(end);
        let mut given = Vec::new();
        for (entry, chunks) in sets {
            match self.sets.back_mut() {
                _ if entry < self.given => {
                    self.running.extend(chunks.iter().copied());
                    given.push(chunks);
                }
                // A look that goes on in the middle of an entry.
                Some((last, of_last)) if *last == entry => of_last.extend(chunks),
                _ => self.sets.push_back((entry, chunks)),
            }
        }
        given
    }

    /// Whether the card lacks something that the guest has submitted.
    pub(crate) fn is_behind(&self) -> bool {
        self.given < self.submitted
    }

    /// Whether the next entry was looked at.
    pub(crate) fn is_next_seen(&self) -> bool {
        self.given < self.seen
    }

    /// Chunks that launches of the next entry use. `None`: none, or the entry was not looked at.
    pub(crate) fn next(&self) -> Option<&BTreeSet<ChunkNo>> {
        self.sets
            .front()
            .filter(|(entry, _)| *entry == self.given)
            .map(|(_, chunks)| chunks)
    }

    /// Those of the entries behind it, in their order.
    pub(crate) fn later(&self) -> impl Iterator<Item = &BTreeSet<ChunkNo>> {
        let is_later = |(entry, _): &&(u64, BTreeSet<ChunkNo>)| *entry != self.given;
        self.sets.iter().filter(is_later).map(|(_, chunks)| chunks)
    }

    /// Chunks of launches that the card has and that may not have ended.
    pub(crate) fn running(&self) -> &BTreeSet<ChunkNo> {
        &self.running
    }

    /// The card gets the next entry. Chunks of its launches.
    pub(crate) fn give(&mut self) -> BTreeSet<ChunkNo> {
        let chunks = match self.sets.front() {
            Some((entry, _)) if *entry == self.given => self.sets.pop_front().map(|(_, chunks)| chunks),
            _ => None,
        };
        self.given += 1;
        self.waits_since = None;
        let chunks = chunks.unwrap_or_default();
        self.running.extend(chunks.iter().copied());
        chunks
    }

    /// The card gets all that was submitted. Chunks of launches, as far as entries were looked at.
    pub(crate) fn give_all(&mut self) -> BTreeSet<ChunkNo> {
        let mut chunks = BTreeSet::new();
        // One of them may have been looked at in part only.
        while let Some((entry, of_entry)) = self.sets.pop_front() {
            if entry >= self.submitted {
                self.sets.push_front((entry, of_entry));
                break;
            }
            chunks.extend(of_entry);
        }
        self.running.extend(chunks.iter().copied());
        self.given = self.submitted;
        self.waits_since = None;
        chunks
    }

    /// Whether something that the card has may not have ended.
    pub(crate) fn may_run(&self) -> bool {
        self.ended < self.given
    }

    /// All that the card had at `given` has ended.
    pub(crate) fn end(&mut self, given: u64) {
        self.ended = self.ended.max(given.min(self.given));
        if !self.may_run() {
            self.running.clear();
        }
    }

    pub(crate) fn rang_at(&self) -> Tick {
        self.rang_at
    }

    pub(crate) fn given(&self) -> u64 {
        self.given
    }

    /// The next entry waits for its memory. Since when.
    pub(crate) fn wait(&mut self, now: Tick) -> Tick {
        *self.waits_since.get_or_insert(now)
    }

    pub(crate) fn waits_since(&self) -> Option<Tick> {
        self.waits_since
    }
}

impl Inspect for VmWork {
    fn inspect(&self, tree: &mut Tree<'_>) {
        if self.direct_until > Tick::default() && self.direct_until < NEVER {
            tree.due_in("waits_for_memory_again_in", self.direct_until);
        }
        tree.part("looks", &self.looks);
        for (v, work) in &self.channels {
            tree.part(v, work);
        }
    }
}

impl Inspect for ChannelWork {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("submitted", self.submitted as usize);
        tree.count("looked_at", self.seen as usize);
        tree.count("given_to_the_card", self.given as usize);
        tree.count("chunks_that_run", self.running.len());
        tree.count("launches_that_wait", self.sets.len());
        if let Some(since) = self.waits_since {
            tree.age("waits_since", since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: [u32; 2] = [0x1000_0000, 3 << LOG2_SHIFT | 0x12];

    fn set(chunks: &[u32]) -> BTreeSet<ChunkNo> {
        chunks.iter().copied().map(ChunkNo).collect()
    }

    #[test]
    fn ring_is_where_gp_base_says_and_must_be_one_that_the_card_has() {
        let work = ChannelWork::new(RING, 7).expect("a ring of eight");
        assert_eq!(work.ring().base, GpuVa(0x12_1000_0000));
        assert_eq!((work.place(0), work.place(1), work.place(9)), (7, 0, 0));
        assert_eq!(ChannelWork::new(RING, 8), None);
        assert_eq!(
            ChannelWork::new([0, (ENTRIES_LOG2_MAX + 1) << LOG2_SHIFT], 0),
            None
        );
    }

    #[test]
    fn entries_are_given_in_order_and_their_chunks_run_until_they_have_ended() {
        let mut work = ChannelWork::new(RING, 6).expect("a ring");
        assert!(work.submit(1, Tick(0)));
        assert_eq!(work.next_look(2), Some(0..2));
        work.looked(2, [(1, set(&[4, 5]))]);
        assert_eq!((work.next_look(2), work.next()), (None, None));
        assert_eq!(work.give(), set(&[]));
        assert_eq!(work.next(), Some(&set(&[4, 5])));
        assert_eq!(work.next_look(2), Some(2..3));
        work.looked(3, [(2, set(&[6]))]);
        assert_eq!(work.later().cloned().collect::<Vec<_>>(), [set(&[6])]);
        work.give();
        assert_eq!((work.running(), work.given_put()), (&set(&[4, 5]), 0));
        work.end(1);
        assert_eq!(work.running(), &set(&[4, 5]));
        work.end(2);
        assert!(!work.may_run() && work.running().is_empty() && work.is_behind());
    }

    #[test]
    fn entries_that_were_given_unseen_count_as_running_when_they_are_looked_at() {
        let mut work = ChannelWork::new(RING, 0).expect("a ring");
        work.submit(3, Tick(0));
        work.give_all();
        assert_eq!((work.given_put(), work.next_look(8)), (3, Some(0..3)));
        work.looked(3, [(1, set(&[9]))]);
        assert_eq!((work.running(), work.next()), (&set(&[9]), None));
    }

    #[test]
    fn entry_that_was_looked_at_in_part_is_given_with_the_others() {
        let mut work = ChannelWork::new(RING, 0).expect("a ring");
        work.submit(3, Tick(0));
        work.looked(1, [(0, set(&[4])), (1, set(&[5]))]);
        assert_eq!(work.give_all(), set(&[4, 5]));
        assert_eq!(work.running(), &set(&[4, 5]));
        // The look goes on; what comes behind is known when its turn is.
        work.looked(3, [(1, set(&[6]))]);
        work.submit(4, Tick(1));
        work.looked(4, [(3, set(&[7]))]);
        assert_eq!(work.next(), Some(&set(&[7])));
        assert_eq!(work.running(), &set(&[4, 5, 6]));
    }

    #[test]
    fn guest_that_takes_entries_back_is_looked_at_anew() {
        let mut work = ChannelWork::new(RING, 0).expect("a ring");
        work.submit(5, Tick(0));
        work.give();
        work.looked(5, [(2, set(&[1])), (4, set(&[2]))]);
        assert!(!work.submit(3, Tick(0)));
        assert_eq!((work.next_look(8), work.later().count()), (Some(1..3), 0));
    }
}
