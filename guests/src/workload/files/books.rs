//! The layout: inputs cut into pieces, VRAM cut into slots, pieces in slots.

use super::{INPUT_VA, INPUTS_MAX, SLOTS_MAX, VRAM_VA};
use crate::GuestBus;
use crate::driver::{CopyPath, Driver, DriverError};
use crate::workload::Input;
use core::ops::Range;
use fermi_spec::addr::{LARGE_PAGE, PHYS_BITS, SMALL_PAGE};

/// VRAM at the top that nouveau leaves alone as well.
const TOP_BYTES: u64 = 1 << 20;

/// The slots: equal parts of VRAM from the driver's `data_start` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) slot_bytes: u64,
    /// Number of all slots.
    pub(super) slots: usize,
    /// Slots that hold data at any time.
    pub(super) data_slots: usize,
}

impl Geometry {
    /// Most slots left free to move by.
    pub(super) const FREE_MAX: usize = 32;
    const SLOTS_MIN: u64 = 8;

    /// Slots of `wanted` bytes, or the smallest that can be counted.
    pub(super) fn choose(vram_bytes: u64, wanted: Option<u64>) -> Result<Self, DriverError> {
        let room = vram_bytes.saturating_sub(Driver::data_start() + TOP_BYTES);
        let slot_bytes = wanted.unwrap_or_else(|| {
            let least = (room / (SLOTS_MAX as u64 + 1) + 1).max(LARGE_PAGE);
            least.checked_next_power_of_two().unwrap_or(LARGE_PAGE)
        });
        let slots = room / slot_bytes.max(1);
        let is_usable = slot_bytes != 0 && slot_bytes.is_multiple_of(LARGE_PAGE);
        if !is_usable || !(Self::SLOTS_MIN..=SLOTS_MAX as u64).contains(&slots) {
            return Err(DriverError::BadSlotSize {
                bytes: slot_bytes,
                slots,
            });
        }
        let slots = slots as usize;
        let free = (slots / 32).clamp(2, Self::FREE_MAX);
        Ok(Self {
            slot_bytes,
            slots,
            data_slots: slots - free,
        })
    }

    /// VRAM address of a slot.
    pub(super) fn slot_vram(&self, slot: usize) -> u64 {
        Driver::data_start() + slot as u64 * self.slot_bytes
    }
}

/// A part of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Where it is in RAM.
    pub(super) gpa: u64,
    /// Where the GPU sees it in RAM.
    pub(super) va: u64,
    /// Length, at most a slot.
    pub(super) bytes: u64,
}

/// The pages of an input in the channels' address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub(super) va: u64,
    pub(super) gpa: u64,
    pub(super) bytes: u64,
}

/// The inputs, cut; the pieces are counted over all of them in order.
pub(super) struct Pieces<'a> {
    inputs: &'a [Input<'a>],
    slot_bytes: u64,
    count: usize,
    /// GPA of the table of digests.
    table: u64,
}

impl<'a> Pieces<'a> {
    /// Checks the inputs. `table` is the GPA of 32 bytes for each piece.
    pub(super) fn new(inputs: &'a [Input<'a>], geometry: Geometry, table: u64) -> Result<Self, DriverError> {
        if inputs.is_empty() || inputs.len() > INPUTS_MAX {
            let index = inputs.len().min(INPUTS_MAX) as u64;
            return Err(DriverError::BadInput { index });
        }
        let (mut pieces, mut va) = (0u64, INPUT_VA);
        for (index, input) in inputs.iter().enumerate() {
            let end = input.gpa.checked_add(input.bytes);
            let is_reachable = end.is_some_and(|end| end <= 1 << PHYS_BITS);
            if input.bytes == 0 || !is_reachable {
                return Err(DriverError::BadInput { index: index as u64 });
            }
            // Both sums stay far below 2^64: at most 16 inputs of 2^40 bytes.
            pieces += input.bytes.div_ceil(geometry.slot_bytes);
            va += pages_of(input).bytes;
            if va > VRAM_VA {
                return Err(DriverError::BadInput { index: index as u64 });
            }
        }
        let slots = geometry.data_slots as u64;
        if pieces > slots {
            return Err(DriverError::InputTooLarge { pieces, slots });
        }
        Ok(Self {
            inputs,
            slot_bytes: geometry.slot_bytes,
            count: pieces as usize,
            table,
        })
    }

    pub(super) fn inputs(&self) -> &'a [Input<'a>] {
        self.inputs
    }

    /// Pieces of all inputs, at least one.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Numbers of an input's pieces.
    pub(super) fn of_input(&self, index: usize) -> Range<usize> {
        let pieces = |input: &Input<'_>| input.bytes.div_ceil(self.slot_bytes) as usize;
        let first: usize = self.inputs[..index].iter().map(pieces).sum();
        first..first + pieces(&self.inputs[index])
    }

    /// Where an input's pages are mapped.
    pub(super) fn mapping(&self, index: usize) -> Mapping {
        let before: u64 = self.inputs[..index]
            .iter()
            .map(|input| pages_of(input).bytes)
            .sum();
        let pages = pages_of(&self.inputs[index]);
        Mapping {
            va: INPUT_VA + before,
            ..pages
        }
    }

    /// A piece by its number, below [`Self::count`].
    pub(super) fn piece(&self, number: usize) -> Piece {
        let mut first = 0;
        for (index, input) in self.inputs.iter().enumerate() {
            let pieces = input.bytes.div_ceil(self.slot_bytes) as usize;
            if number < first + pieces {
                let offset = (number - first) as u64 * self.slot_bytes;
                let mapping = self.mapping(index);
                return Piece {
                    gpa: input.gpa + offset,
                    va: mapping.va + (input.gpa - mapping.gpa) + offset,
                    bytes: self.slot_bytes.min(input.bytes - offset),
                };
            }
            first += pieces;
        }
        unreachable!("piece {number} of {}", self.count)
    }

    /// Keeps a piece's digest.
    pub(super) fn store_digest(&self, bus: &mut dyn GuestBus, number: usize, digest: &[u8; 32]) {
        bus.ram_write(self.table + number as u64 * 32, digest);
    }

    /// A piece's digest.
    pub(super) fn load_digest(&self, bus: &mut dyn GuestBus, number: usize) -> [u8; 32] {
        let mut digest = [0; 32];
        bus.ram_read(self.table + number as u64 * 32, &mut digest);
        digest
    }
}

/// The whole pages around an input; `va` is for the caller.
fn pages_of(input: &Input<'_>) -> Mapping {
    let gpa = input.gpa & !(SMALL_PAGE - 1);
    let bytes = (input.gpa + input.bytes - gpa).next_multiple_of(SMALL_PAGE);
    Mapping { va: 0, gpa, bytes }
}

/// Content of each slot, the engine that wrote it, and whether it was found wrong.
pub(super) struct Books {
    slots: usize,
    pieces: [Option<u16>; SLOTS_MAX],
    writers: [CopyPath; SLOTS_MAX],
    wrong: [bool; SLOTS_MAX],
}

impl Books {
    /// All slots free.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            pieces: [None; SLOTS_MAX],
            writers: [CopyPath::Copy0; SLOTS_MAX],
            wrong: [false; SLOTS_MAX],
        }
    }

    /// Number of the piece in a slot, `None` if it is free.
    pub(super) fn piece(&self, slot: usize) -> Option<usize> {
        self.pieces[slot].map(usize::from)
    }

    /// Engine that wrote the slot last.
    pub(super) fn writer(&self, slot: usize) -> CopyPath {
        self.writers[slot]
    }

    pub(super) fn put(&mut self, slot: usize, piece: usize, writer: CopyPath) {
        self.pieces[slot] = Some(piece as u16);
        self.writers[slot] = writer;
    }

    pub(super) fn move_piece(&mut self, source: usize, target: usize, writer: CopyPath) {
        self.pieces[target] = self.pieces[source].take();
        self.writers[target] = writer;
    }

    /// Records that a slot is wrong; true the first time.
    pub(super) fn mark_wrong(&mut self, slot: usize) -> bool {
        !core::mem::replace(&mut self.wrong[slot], true)
    }

    /// Slots with data, in order.
    pub(super) fn full(&self) -> impl Iterator<Item = usize> {
        (0..self.slots).filter(|slot| self.pieces[*slot].is_some())
    }

    /// Slots with data that are not in `idle`.
    pub(super) fn full_outside(&self, idle: &Range<usize>) -> impl Iterator<Item = usize> {
        let idle = idle.clone();
        self.full().filter(move |slot| !idle.contains(slot))
    }

    /// Free slots that are not in `idle`.
    pub(super) fn free_outside(&self, idle: &Range<usize>) -> impl Iterator<Item = usize> {
        let idle = idle.clone();
        (0..self.slots).filter(move |slot| self.pieces[*slot].is_none() && !idle.contains(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_vram_of_a_card_gives_slots_that_can_be_counted(mebibytes in 8u64..=8192) {
            let geometry = Geometry::choose(mebibytes << 20, None).unwrap();
            prop_assert!(geometry.slots <= SLOTS_MAX && geometry.data_slots < geometry.slots);
            prop_assert!(geometry.slot_vram(geometry.slots) <= mebibytes << 20);
        }

        #[test]
        fn pieces_cover_the_inputs(lengths in prop::collection::vec(1u64..600_000, 1..8), gpa in 0u64..10_000) {
            let inputs: Vec<_> = lengths.iter().map(|&bytes| Input { name: "", gpa, bytes }).collect();
            let geometry = Geometry::choose(64 << 20, None).unwrap();
            let pieces = Pieces::new(&inputs, geometry, 0).unwrap();
            let mut end_va = INPUT_VA;
            for (index, input) in inputs.iter().enumerate() {
                let mapping = pieces.mapping(index);
                prop_assert_eq!(mapping.va, end_va);
                end_va += mapping.bytes;
                let mut next = gpa;
                for number in pieces.of_input(index) {
                    let piece = pieces.piece(number);
                    prop_assert_eq!(piece.gpa, next);
                    prop_assert_eq!(piece.va - mapping.va, piece.gpa - mapping.gpa);
                    prop_assert!(piece.va + piece.bytes <= end_va);
                    next += piece.bytes;
                }
                prop_assert_eq!(next, gpa + input.bytes);
            }
        }
    }

    #[test]
    fn inputs_beyond_the_slots_are_refused() {
        let geometry = Geometry::choose(16 << 20, None).unwrap();
        let inputs = [Input {
            name: "big",
            gpa: 0,
            bytes: 16 << 20,
        }];
        assert!(matches!(
            Pieces::new(&inputs, geometry, 0),
            Err(DriverError::InputTooLarge { .. })
        ));
    }
}
