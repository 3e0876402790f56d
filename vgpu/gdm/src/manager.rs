//! One card's memory under GDM.

mod eviction;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::Block;
use crate::objects::Objects;
use crate::setup::{Card, Clean, Evict, Launch, Prepared, Setup, WorkingSet};
use crate::stack::Stack;

/// There is room once a launch that was prepared has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// Where the host has a block's bytes. They are old if the card's are dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Host {
    /// Nobody gave it any.
    Empty,
    /// In the buffer that a copy named, as long as that does not change.
    Source,
    Staged,
}

/// What is known of the bytes on the card.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Bytes<S> {
    /// The host has the same.
    Clean,
    /// A launch may have changed them.
    Unknown,
    /// The host has not, and the signature if there is one.
    Dirty(Option<S>),
}

#[derive(Clone, Debug)]
struct State<S> {
    host: Host,
    /// Of the host's bytes.
    signature: Option<S>,
    card: Option<Bytes<S>>,
    /// Launches that need it where it is.
    launches: u32,
    /// It was copied to, and did not come to the card since.
    is_new: bool,
    /// A launch used it since its owner copied to it.
    is_used: bool,
    /// Its owner overwrote it, or copied it out, after the last use.
    is_expected: bool,
    /// What was found the last time.
    was_dirty: bool,
    /// Its place among copies that were not carried out.
    pending: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Owner {
    /// The end of each region by its start.
    regions: BTreeMap<u64, u64>,
    objects: Objects,
    /// Blocks that others cannot take.
    protected: u32,
    resident: u32,
}

/// Which blocks are on the card, and who goes for whom.
#[derive(Debug)]
pub struct Manager<C: Card> {
    setup: Setup,
    owners: BTreeMap<u32, Owner>,
    states: BTreeMap<Block, State<C::Signature>>,
    stack: Stack,
    /// Blocks that were copied to and did not come since, in the order of the copies: each at most once.
    pending: BTreeMap<u64, Block>,
    /// The number of the last copy.
    copies: u64,
    /// Owners whose launches wait for room, in their order.
    waiting: VecDeque<u32>,
}

impl<C: Card> Manager<C> {
    /// Nothing is there.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            owners: BTreeMap::new(),
            states: BTreeMap::new(),
            stack: Stack::default(),
            pending: BTreeMap::new(),
            copies: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Blocks on the card.
    pub fn resident(&self) -> usize {
        self.stack.len()
    }

    /// So many blocks of an owner are not evicted for others.
    pub fn protect(&mut self, owner: u32, blocks: u32) {
        self.owners.entry(owner).or_default().protected = blocks;
    }

    fn blocks(&self, bytes: &Range<u64>) -> Range<u32> {
        let of = self.setup.block_bytes;
        if bytes.is_empty() {
            return 0..0;
        }
        (bytes.start / of) as u32..bytes.end.div_ceil(of) as u32
    }

    fn bytes_of(&self, index: u32) -> Range<u64> {
        let start = u64::from(index) * self.setup.block_bytes;
        start..start + self.setup.block_bytes
    }

    /// What of `bytes` lies in a block.
    fn part(&self, bytes: &Range<u64>, index: u32) -> Range<u64> {
        let block = self.bytes_of(index);
        bytes.start.max(block.start)..bytes.end.min(block.end)
    }

    /// Whether all that is reserved in a block is `bytes`.
    fn is_whole(&self, owner: u32, index: u32, bytes: &Range<u64>) -> bool {
        let block = self.bytes_of(index);
        let regions = self
            .owners
            .get(&owner)
            .into_iter()
            .flat_map(|owner| &owner.regions);
        let mut within = regions
            .map(|(start, end)| *start.max(&block.start)..*end.min(&block.end))
            .filter(|part| !part.is_empty());
        within.all(|part| bytes.start <= part.start && part.end <= bytes.end)
    }

    /// Whether a launch needs one of these blocks where it is.
    fn is_held(&self, owner: u32, mut blocks: Range<u32>) -> bool {
        blocks.any(|index| {
            let state = self.states.get(&Block { owner, index });
            state.is_some_and(|state| state.launches > 0)
        })
    }

    /// A copy to a block was asked for.
    fn asks(&mut self, block: Block) {
        self.does_not_ask(block);
        self.copies += 1;
        if let Some(state) = self.states.get_mut(&block) {
            state.pending = Some(self.copies);
            self.pending.insert(self.copies, block);
        }
    }

    /// It was carried out, or nobody wants it.
    fn does_not_ask(&mut self, block: Block) {
        let asked = self.states.get_mut(&block).and_then(|state| state.pending.take());
        if let Some(asked) = asked {
            self.pending.remove(&asked);
        }
    }

    /// An owner reserves memory. Blocks that it shares with another region of its own stay as they are. Whoever calls this has checked that
    /// regions do not overlap, and bounds how many blocks an owner has.
    pub fn reserve(&mut self, owner: u32, bytes: Range<u64>) {
        let blocks = self.blocks(&bytes);
        let of = self.owners.entry(owner).or_default();
        of.regions.insert(bytes.start, bytes.end);
        of.objects.reserve(blocks.clone());
        for index in blocks {
            self.states.entry(Block { owner, index }).or_insert(State {
                host: Host::Empty,
                signature: None,
                card: None,
                launches: 0,
                is_new: false,
                is_used: false,
                is_expected: false,
                was_dirty: false,
                pending: None,
            });
        }
    }

    /// An owner gives a region back. Nothing of it is written back.
    ///
    /// # Errors
    /// A launch uses it.
    pub fn free(&mut self, card: &mut C, owner: u32, start: u64) -> Result<(), Busy> {
        let Some(of) = self.owners.get(&owner) else {
            return Ok(());
        };
        let Some(end) = of.regions.get(&start).copied() else {
            return Ok(());
        };
        let blocks = self.blocks(&(start..end));
        if self.is_held(owner, blocks.clone()) {
            return Err(Busy);
        }
        self.waiting.retain(|waiting| *waiting != owner);
        let mut free = Vec::new();
        if let Some(of) = self.owners.get_mut(&owner) {
            of.regions.remove(&start);
        }
        for index in blocks {
            // Whole if nothing is reserved in it any more.
            if self.is_whole(owner, index, &(0..0)) {
                free.push(index);
            }
        }
        for index in free {
            let block = Block { owner, index };
            self.discard(card, block);
            self.does_not_ask(block);
            self.states.remove(&block);
            if let Some(of) = self.owners.get_mut(&owner) {
                of.objects.free(index..index + 1);
            }
        }
        Ok(())
    }

    /// Forgets what the card has of a block.
    fn discard(&mut self, card: &mut C, block: Block) {
        if self.stack.has(block) {
            card.discard(block);
            self.leaves(block);
        }
    }

    fn leaves(&mut self, block: Block) {
        self.stack.remove(block);
        if let Some(state) = self.states.get_mut(&block) {
            state.card = None;
        }
        if let Some(owner) = self.owners.get_mut(&block.owner) {
            owner.resident -= 1;
        }
    }

    /// An owner copies to its memory, from a buffer that stays as it is until [`Self::source_changes`]. Of blocks that this covers in part,
    /// the bytes go to the staged copy at once.
    ///
    /// # Errors
    /// A launch uses it.
    pub fn copy_in(&mut self, card: &mut C, owner: u32, bytes: Range<u64>) -> Result<(), Busy> {
        let blocks = self.blocks(&bytes);
        if self.is_held(owner, blocks.clone()) {
            return Err(Busy);
        }
        if bytes.end - bytes.start >= self.setup.block_bytes
            && let Some(of) = self.owners.get_mut(&owner)
        {
            let size = self.setup.block_bytes;
            let inner = bytes.start.div_ceil(size) as u32..bytes.end.div_ceil(size) as u32;
            of.objects.copied(inner);
        }
        for index in blocks.clone() {
            let part = self.part(&bytes, index);
            let block = Block { owner, index };
            if self.is_whole(owner, index, &part) {
                self.overwrite(card, block);
            } else {
                self.change(card, block, part);
            }
        }
        if self.setup.is_eager {
            for block in blocks.map(|index| Block { owner, index }) {
                let is_away = self.states.get(&block).is_some_and(|state| state.card.is_none());
                if is_away && self.make_room(card, owner) {
                    self.comes(card, block);
                }
            }
        }
        Ok(())
    }

    /// Nothing of what a block held matters any more.
    fn overwrite(&mut self, card: &mut C, block: Block) {
        let expects = self.setup.expects;
        let Some(state) = self.states.get_mut(&block) else {
            return;
        };
        state.is_expected |= expects && state.is_used;
        state.host = Host::Source;
        state.signature = None;
        state.is_new = true;
        state.is_used = false;
        self.discard(card, block);
        self.asks(block);
    }

    /// Some bytes of a block change.
    fn change(&mut self, card: &mut C, block: Block, bytes: Range<u64>) {
        let Some(state) = self.states.get_mut(&block) else {
            return;
        };
        state.signature = None;
        match &mut state.card {
            Some(on_card) => {
                if let Bytes::Dirty(signature) = on_card {
                    *signature = None;
                } else {
                    // The staged copy has them too.
                    state.host = Host::Staged;
                }
                card.copy_in(block.owner, bytes);
            }
            None => {
                state.host = Host::Staged;
                self.asks(block);
            }
        }
    }

    /// A buffer changes from which an owner copied to `bytes`: what was not copied anywhere else yet is staged. Returns how many bytes.
    pub fn source_changes(&mut self, owner: u32, bytes: Range<u64>) -> u64 {
        let mut staged = 0;
        for index in self.blocks(&bytes) {
            let part = self.part(&bytes, index);
            if let Some(state) = self.states.get_mut(&Block { owner, index })
                && state.host == Host::Source
                && !matches!(state.card, Some(Bytes::Dirty(_)))
            {
                state.host = Host::Staged;
                staged += part.end - part.start;
            }
        }
        staged
    }

    /// An owner copies from its memory. What the host has comes from there.
    pub fn copy_out(&mut self, card: &mut C, owner: u32, bytes: Range<u64>) {
        for index in self.blocks(&bytes) {
            let block = Block { owner, index };
            let part = self.part(&bytes, index);
            let is_whole = self.is_whole(owner, index, &part);
            let expects = self.setup.expects;
            let Some(state) = self.states.get_mut(&block) else {
                continue;
            };
            let signature = match &state.card {
                None | Some(Bytes::Clean) => continue,
                Some(Bytes::Unknown) => None,
                Some(Bytes::Dirty(signature)) => signature.clone(),
            };
            card.copy_out(owner, part);
            if is_whole && self.setup.clean != Clean::Never {
                state.card = Some(Bytes::Clean);
                state.host = Host::Staged;
                state.signature = signature;
                state.is_expected |= expects;
                state.was_dirty = false;
                if self.stack.is_placed(block) {
                    self.stack.place(block, crate::stack::Cost::Clean);
                }
            } else {
                // The host has bytes of two times now, which nobody has signed.
                state.signature = None;
            }
        }
    }

    /// Blocks of a launch, and whether it may store to them.
    fn set(&self, launch: &Launch) -> BTreeMap<Block, bool> {
        let owner = launch.owner;
        let mut set = BTreeMap::new();
        let Some(of) = self.owners.get(&owner) else {
            return set;
        };
        if self.setup.working_set == WorkingSet::Context {
            set.extend(of.objects.blocks().map(|index| (Block { owner, index }, false)));
        }
        for touch in &launch.touches {
            let mut add = |indices: Range<u32>| {
                for index in indices {
                    let block = Block { owner, index };
                    if self.states.contains_key(&block) {
                        *set.entry(block).or_default() |= touch.stores;
                    }
                }
            };
            let touched = self.blocks(&touch.bytes);
            match self.setup.working_set {
                WorkingSet::Context | WorkingSet::Blocks => add(touched),
                WorkingSet::Objects => {
                    let mut next = touched.start;
                    while next < touched.end {
                        let object = of.objects.of(next).unwrap_or(next..next + 1);
                        next = object.end.max(next + 1);
                        add(object);
                    }
                }
            }
        }
        set
    }

    /// Brings what a launch needs. Blocks of launches that are prepared stay. While one waits for room all others do, unless its owner gives
    /// memory back.
    ///
    /// # Errors
    /// Others have to finish first. What came stays, and may be evicted again.
    pub fn prepare(&mut self, card: &mut C, launch: &Launch) -> Result<Prepared, Busy> {
        // One that needs no room would hold what the first waits for.
        if self.waiting.front().is_some_and(|first| *first != launch.owner) {
            self.waits(launch.owner);
            return Err(Busy);
        }
        let set = self.set(launch);
        self.hold(set.keys(), true);
        // Those that are there are used now; the others come above them.
        let blocks = set.iter().map(|(block, stores)| (*block, *stores));
        let (mut there, away): (Vec<_>, Vec<_>) = blocks.partition(|(block, _)| self.stack.has(*block));
        there.iter().for_each(|(block, _)| self.stack.used(*block));
        let mut remote = Vec::new();
        for (block, stores) in away {
            // Where there was no room for one there is none for the next.
            if remote.is_empty() && self.make_room(card, launch.owner) {
                self.comes(card, block);
                there.push((block, stores));
            } else if remote.is_empty() && self.is_waiting_worth_it(&set) {
                self.hold(set.keys(), false);
                self.waits(launch.owner);
                return Err(Busy);
            } else {
                remote.push((block, stores));
            }
        }
        self.waiting.retain(|owner| *owner != launch.owner);
        self.sign_new(card, &there);
        for (block, _) in &remote {
            self.hold([block], false);
            if let Some(state) = self.states.get_mut(block) {
                // The GPU does not reach the owner's buffers.
                state.host = Host::Staged;
            }
        }
        for (block, _) in there.iter().chain(&remote) {
            if let Some(state) = self.states.get_mut(block) {
                state.is_used = true;
                state.is_new = false;
            }
        }
        Ok(Prepared {
            blocks: there,
            remote,
        })
    }

    fn waits(&mut self, owner: u32) {
        if !self.waiting.contains(&owner) {
            self.waiting.push_back(owner);
        }
    }

    /// Signs blocks that are as the host has them, if that is wanted and may be of use.
    fn sign_new(&mut self, card: &mut C, blocks: &[(Block, bool)]) {
        let Clean::Signatures { at_load: true, .. } = self.setup.clean else {
            return;
        };
        if self.states.len() <= self.setup.capacity as usize {
            return;
        }
        let is_unsigned = |block: &Block| {
            let state = self.states.get(block);
            state.is_some_and(|state| {
                state.signature.is_none() && state.host != Host::Empty && state.card == Some(Bytes::Clean)
            })
        };
        let unsigned: Vec<Block> = blocks
            .iter()
            .map(|(block, _)| *block)
            .filter(is_unsigned)
            .collect();
        if unsigned.is_empty() {
            return;
        }
        let signatures = card.sign(&unsigned);
        for (block, signature) in unsigned.iter().zip(signatures) {
            if let Some(state) = self.states.get_mut(block) {
                state.signature = Some(signature);
            }
        }
    }

    /// Whether another launch holds blocks that are not of this set.
    fn is_waiting_worth_it(&self, set: &BTreeMap<Block, bool>) -> bool {
        self.states
            .iter()
            .any(|(block, state)| state.launches > 0 && !set.contains_key(block))
    }

    fn hold<'a>(&mut self, blocks: impl IntoIterator<Item = &'a Block>, does: bool) {
        for block in blocks {
            if let Some(state) = self.states.get_mut(block) {
                state.launches = if does {
                    state.launches + 1
                } else {
                    state.launches - 1
                };
            }
        }
    }

    /// A launch has finished.
    pub fn finish(&mut self, launch: Prepared) {
        self.hold(launch.blocks.iter().map(|(block, _)| block), false);
        for (block, stores) in launch.blocks {
            let Some(state) = self.states.get_mut(&block) else {
                continue;
            };
            let Some(on_card) = &mut state.card else {
                continue;
            };
            let is_changed = match self.setup.clean {
                Clean::Never | Clean::Signatures { .. } => true,
                Clean::Sets => stores,
            };
            if is_changed {
                *on_card = match on_card {
                    Bytes::Dirty(_) => Bytes::Dirty(None),
                    Bytes::Clean | Bytes::Unknown if self.setup.clean == Clean::Sets => Bytes::Dirty(None),
                    Bytes::Clean | Bytes::Unknown => Bytes::Unknown,
                };
            }
        }
        for (block, stores) in launch.remote {
            if let Some(state) = self.states.get_mut(&block)
                && stores
            {
                state.signature = None;
            }
        }
    }

    /// Brings a block that its owner copied to, if there is room: what the copy engine does while it has nothing better to do.
    pub fn prefetch(&mut self, card: &mut C) -> Option<Block> {
        if self.stack.len() >= self.setup.capacity as usize || !self.waiting.is_empty() {
            return None;
        }
        let block = *self.pending.first_key_value()?.1;
        self.comes(card, block);
        Some(block)
    }

    /// There is room for it.
    fn comes(&mut self, card: &mut C, block: Block) {
        self.does_not_ask(block);
        let Some(state) = self.states.get_mut(&block) else {
            return;
        };
        if state.host == Host::Empty {
            card.clear(block);
        } else {
            card.load(block);
            // Had its owner overwritten it, the old bytes would not have come again.
            state.is_expected &= state.is_new;
        }
        state.is_new = false;
        state.card = Some(Bytes::Clean);
        self.stack.used(block);
        if let Some(owner) = self.owners.get_mut(&block.owner) {
            owner.resident += 1;
        }
    }
}
