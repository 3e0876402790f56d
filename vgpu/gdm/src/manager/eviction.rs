//! Room: who goes, and who is clean (section 4.4).

use super::{Bytes, Card, Clean, Evict, Host, Manager};
use crate::Block;
use crate::stack::Cost;

impl<C: Card> Manager<C> {
    /// Makes room for a block of `owner`, if that is possible now.
    pub(super) fn make_room(&mut self, card: &mut C, owner: u32) -> bool {
        if self.stack.len() < self.setup.capacity as usize {
            return true;
        }
        let victim = match self.setup.evict {
            Evict::Lru => self.stack.oldest().find(|block| self.may_go(*block, owner)),
            Evict::LruCost { percent } => self.cheapest(card, owner, percent),
        };
        let Some(victim) = victim else {
            return false;
        };
        self.evict(card, victim);
        true
    }

    /// Whether a block may be evicted for `owner`.
    fn may_go(&self, block: Block, owner: u32) -> bool {
        let is_held = self.states.get(&block).is_some_and(|state| state.launches > 0);
        let is_protected = block.owner != owner
            && self
                .owners
                .get(&block.owner)
                .is_some_and(|of| of.resident <= of.protected);
        !is_held && !is_protected
    }

    /// The block of the COST section with the lowest cost. Blocks that are expected to need no copy soon are left until nobody else is there.
    fn cheapest(&mut self, card: &mut C, owner: u32, percent: u32) -> Option<Block> {
        let known = |manager: &Self| {
            let mut section = manager.stack.cheapest();
            section.find(|(block, cost)| *cost != Cost::Expected && manager.may_go(*block, owner))
        };
        loop {
            if let Some((block, _)) = known(self) {
                return Some(block);
            }
            if !self.refill(card, owner, percent) {
                break;
            }
        }
        let last = self
            .stack
            .cheapest()
            .find(|(block, _)| self.may_go(*block, owner));
        let (block, _) = last?;
        // It may be clean.
        self.judge(card, &[block]);
        Some(block)
    }

    /// Fills the COST section from the oldest blocks, and finds out who is clean. False if there are none.
    fn refill(&mut self, card: &mut C, owner: u32, percent: u32) -> bool {
        let most = (self.stack.len() * percent as usize).div_ceil(100).max(1);
        let oldest = self.stack.oldest();
        let candidates = oldest.filter(|block| !self.stack.is_placed(*block) && self.may_go(*block, owner));
        let taken: Vec<Block> = candidates.take(most).collect();
        let (expected, others): (Vec<Block>, Vec<Block>) = taken
            .iter()
            .partition(|block| self.states.get(block).is_some_and(|state| state.is_expected));
        for block in expected {
            self.stack.place(block, Cost::Expected);
        }
        self.judge(card, &others);
        for block in others {
            let is_clean = self
                .states
                .get(&block)
                .is_some_and(|state| state.card == Some(Bytes::Clean));
            self.stack
                .place(block, if is_clean { Cost::Clean } else { Cost::Dirty });
        }
        !taken.is_empty()
    }

    /// Finds out which of these blocks are dirty.
    fn judge(&mut self, card: &mut C, blocks: &[Block]) {
        let Clean::Signatures { uniformity, .. } = self.setup.clean else {
            return;
        };
        let is_unknown = |block: &&Block| {
            let state = self.states.get(block);
            state.is_some_and(|state| state.card == Some(Bytes::Unknown))
        };
        let unknown: Vec<Block> = blocks.iter().filter(is_unknown).copied().collect();
        let (dirty, to_sign): (Vec<Block>, Vec<Block>) = unknown
            .into_iter()
            .partition(|block| uniformity && self.is_of_dirty_object(*block));
        for block in dirty {
            if let Some(state) = self.states.get_mut(&block) {
                state.card = Some(Bytes::Dirty(None));
            }
        }
        if to_sign.is_empty() {
            return;
        }
        let signatures = card.sign(&to_sign);
        for (block, signature) in to_sign.into_iter().zip(signatures) {
            let Some(state) = self.states.get_mut(&block) else {
                continue;
            };
            state.was_dirty = state.signature.as_ref() != Some(&signature);
            state.card = Some(if state.was_dirty {
                Bytes::Dirty(Some(signature))
            } else {
                Bytes::Clean
            });
        }
    }

    /// Whether the first, the middle and the last block of a block's object were found dirty.
    fn is_of_dirty_object(&self, block: Block) -> bool {
        let object = self
            .owners
            .get(&block.owner)
            .and_then(|owner| owner.objects.of(block.index));
        let Some(object) = object else {
            return false;
        };
        let ends = [
            object.start,
            object.start.midpoint(object.end - 1),
            object.end - 1,
        ];
        // They themselves are looked at each time.
        !ends.contains(&block.index)
            && ends.into_iter().all(|index| {
                let state = self.states.get(&Block { index, ..block });
                state.is_some_and(|state| state.was_dirty)
            })
    }

    fn evict(&mut self, card: &mut C, block: Block) {
        let Some(state) = self.states.get_mut(&block) else {
            return;
        };
        let is_clean = state.card == Some(Bytes::Clean) && self.setup.clean != Clean::Never;
        if !is_clean {
            state.signature = match state.card.take() {
                Some(Bytes::Dirty(signature)) => signature,
                _ => None,
            };
            state.host = Host::Staged;
        }
        card.evict(block, !is_clean);
        self.leaves(block);
    }
}
