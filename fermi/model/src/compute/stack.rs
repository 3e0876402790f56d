//! The control stack of a warp.
//!
//! Its use by instructions follows NVIDIA's divergence patents and the needs of Mesa's output; masks of lanes
//! that leave a loop or the program are cleared from the entries above, so that unwinding never wakes them.

use super::trap::WarpError;

/// Why an entry was pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The side of a branch that waits.
    Divergence,
    /// Where lanes meet again (SSY).
    Reconvergence,
    /// Where a loop is left (PBK).
    Break,
    /// Where a loop goes on (PCNT).
    Continue,
    /// Where a call returns (CAL, PRET).
    Return,
}

/// One entry of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) pc: u32,
    pub(crate) mask: u32,
}

/// Entries on chip: the least depth of a stack, even without memory.
const ON_CHIP: usize = 16;
/// Entries for each 0x200 bytes of a warp's stack memory (envytools).
const PER_UNIT: usize = 48;
const UNIT_BYTES: u32 = 0x200;
/// Largest depth that is kept: more than any launch needs, as a launch can ask for a gigabyte.
const DEPTH_MAX: usize = 48 << 10;

/// The control stack of one warp.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    entries: Vec<Entry>,
    depth_max: usize,
}

impl Stack {
    /// An empty stack with room for the entries that `bytes` of stack memory hold.
    pub(crate) fn new(bytes: u32) -> Self {
        let more = (bytes / UNIT_BYTES) as usize * PER_UNIT;
        Self {
            entries: Vec::new(),
            depth_max: more.clamp(ON_CHIP, DEPTH_MAX),
        }
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn push(&mut self, kind: Kind, pc: u32, mask: u32) -> Result<(), WarpError> {
        if self.entries.len() >= self.depth_max {
            return Err(WarpError::OutOfStack);
        }
        self.entries.push(Entry { kind, pc, mask });
        Ok(())
    }

    /// Lanes go to the nearest entry of a kind: no entry above it keeps them.
    pub(crate) fn leave_to(&mut self, kind: Kind, lanes: u32) -> Result<(), WarpError> {
        let Some(target) = self.entries.iter().rposition(|entry| entry.kind == kind) else {
            let is_return = kind == Kind::Return && self.entries.is_empty();
            return Err(if is_return {
                WarpError::ReturnFromEmptyStack
            } else {
                WarpError::StackMismatch
            });
        };
        for entry in &mut self.entries[target + 1..] {
            entry.mask &= !lanes;
        }
        Ok(())
    }

    /// Lanes end: no entry keeps them.
    pub(crate) fn forget(&mut self, lanes: u32) {
        for entry in &mut self.entries {
            entry.mask &= !lanes;
        }
    }

    /// Whether a join may unwind here.
    pub(crate) fn is_joinable(&self) -> bool {
        self.entries
            .last()
            .is_none_or(|entry| matches!(entry.kind, Kind::Divergence | Kind::Reconvergence))
    }

    /// The next entry with lanes that live: where they go on. `None` when none is left.
    pub(crate) fn unwind(&mut self, live: u32) -> Option<(u32, u32)> {
        while let Some(entry) = self.entries.pop() {
            let mask = entry.mask & live;
            if mask != 0 {
                return Some((entry.pc, mask));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_broke_out_are_not_woken_by_a_join() {
        let mut stack = Stack::new(0);
        stack.push(Kind::Break, 0x80, 0xf).unwrap();
        stack.push(Kind::Reconvergence, 0x40, 0xf).unwrap();
        stack.leave_to(Kind::Break, 0x3).unwrap();
        assert_eq!(stack.unwind(0xf), Some((0x40, 0xc)));
        assert_eq!(stack.unwind(0xf), Some((0x80, 0xf)));
        assert_eq!(stack.unwind(0xf), None);
    }

    #[test]
    fn wrong_or_missing_entry_is_an_error() {
        let mut stack = Stack::new(0);
        assert_eq!(
            stack.leave_to(Kind::Return, 1),
            Err(WarpError::ReturnFromEmptyStack)
        );
        assert_eq!(stack.leave_to(Kind::Break, 1), Err(WarpError::StackMismatch));
        stack.push(Kind::Continue, 0, 1).unwrap();
        assert!(!stack.is_joinable());
        assert_eq!(stack.leave_to(Kind::Return, 1), Err(WarpError::StackMismatch));
    }

    #[test]
    fn depth_follows_the_stack_memory() {
        let fill = |bytes| {
            let mut stack = Stack::new(bytes);
            (0..10_000)
                .take_while(|_| stack.push(Kind::Divergence, 0, 1).is_ok())
                .count()
        };
        assert_eq!((fill(0), fill(0x200), fill(0x800)), (16, 48, 192));
    }
}
