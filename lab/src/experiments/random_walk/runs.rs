//! Pools that lanes take bytes from: runs of units, or queues of pieces of one size each, and what must be true of both.

use kernels::allocators::{Lanes, NONE, Queues, Units};

use super::pools::{Given, LaneBuffers, Taken};
use crate::device::{Device, DeviceBuffer};
use crate::host::LabError;

/// Queues by sizes: 256 bytes to 8192 bytes.
const QUEUES: u32 = 6;
/// Smallest piece of a queue.
const QUEUE_SHIFT: u32 = 8;

/// What a pool is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// RW_malloc with units of 2 to this power bytes.
    Units(u32),
    /// A queue for each power of two from 256 to 8192 bytes, each with the same part of the pool.
    Queues,
}

impl Kind {
    pub(super) fn name(self) -> String {
        match self {
            Self::Units(shift) => format!("RW_malloc, units of {} B", 1u32 << shift),
            Self::Queues => "queues by size".to_owned(),
        }
    }
}

/// A pool of bytes on a card of its own.
pub(super) struct BytePool {
    device: Device,
    kind: Kind,
    bytes: u64,
    control: DeviceBuffer,
    records: DeviceBuffer,
    sizes: DeviceBuffer,
    lanes: LaneBuffers,
}

impl BytePool {
    /// An empty pool of about so many bytes, for launches of at most `lanes` lanes. Its bytes are not there: none of its
    /// kernels would touch them.
    pub(super) fn new(kind: Kind, bytes: u64, lanes: usize) -> Result<Self, LabError> {
        let (control, records) = match kind {
            Kind::Units(shift) => {
                let words = bytes >> shift >> 5;
                (words as usize, words as usize * 32)
            }
            Kind::Queues => {
                let slots = ((bytes / u64::from(QUEUES)) >> QUEUE_SHIFT).next_power_of_two();
                (4 * QUEUES as usize, slots as usize * QUEUES as usize)
            }
        };
        let words = control + records + 3 * lanes;
        let mut device = Device::start((words as u64 * 4).next_multiple_of(1 << 20) + (1 << 20))?;
        let mut pool = Self {
            kind,
            bytes,
            control: device.allocate(control)?,
            records: device.allocate(records)?,
            sizes: device.allocate(lanes)?,
            lanes: LaneBuffers::new(&mut device, lanes)?,
            device,
        };
        pool.empty()?;
        Ok(pool)
    }

    fn units(&self, shift: u32) -> Units {
        Units {
            bitmap: self.control.va,
            tags: self.records.va,
            words: self.control.words as u32,
            unit_shift: shift,
        }
    }

    fn queues(&self) -> Queues {
        Queues {
            control: self.control.va,
            rings: self.records.va,
            slots: self.records.words as u32 / QUEUES,
            count: QUEUES,
            unit_shift: QUEUE_SHIFT,
        }
    }

    /// Pieces of each queue.
    fn pieces(&self) -> impl Iterator<Item = u32> + use<> {
        let bytes = self.bytes;
        (0..QUEUES).map(move |queue| ((bytes / u64::from(QUEUES)) >> (QUEUE_SHIFT + queue)) as u32)
    }

    /// Nobody has anything.
    pub(super) fn empty(&mut self) -> Result<(), LabError> {
        match self.kind {
            Kind::Units(_) => {
                self.device.write(self.control, &vec![0; self.control.words])?;
                self.device.write(self.records, &vec![0; self.records.words])
            }
            Kind::Queues => {
                let slots = self.queues().slots;
                let control = self
                    .pieces()
                    .flat_map(|pieces| [0, pieces, pieces, slots - pieces]);
                let control: Vec<u32> = control.collect();
                let rings = self
                    .pieces()
                    .flat_map(|pieces| (0..slots).map(move |slot| if slot < pieces { slot } else { NONE }));
                let rings: Vec<u32> = rings.collect();
                self.device.write(self.control, &control)?;
                self.device.write(self.records, &rings)
            }
        }
    }

    /// A lane for each size takes so many bytes.
    pub(super) fn take(&mut self, sizes: &[u32], seed: u32, tries: u32) -> Result<Taken, LabError> {
        let lanes = self.lanes.lanes(sizes.len() as u32, seed, tries);
        self.device.write(self.sizes, sizes)?;
        let call = match self.kind {
            Kind::Units(shift) => self.units(shift).take(self.sizes.va, &lanes),
            Kind::Queues => self.queues().take(Some(self.sizes.va), 0, &lanes),
        };
        self.lanes.take(&mut self.device, &call, lanes.count)
    }

    /// Lanes give back what they took for these sizes.
    pub(super) fn give(&mut self, sizes: &[u32], pieces: &[u32], tries: u32) -> Result<Given, LabError> {
        let lanes: Lanes = self.lanes.lanes(pieces.len() as u32, 0, tries);
        self.device.write(self.sizes, sizes)?;
        let call = match self.kind {
            Kind::Units(shift) => self.units(shift).give(&lanes),
            Kind::Queues => self.queues().give(Some(self.sizes.va), 0, &lanes),
        };
        self.lanes.give(&mut self.device, &call, pieces)
    }

    /// Where a piece lies in the pool.
    fn place(&self, size: u32, piece: u32) -> (u64, u64) {
        match self.kind {
            Kind::Units(_) => (piece.into(), u64::from(piece) + u64::from(size)),
            Kind::Queues => {
                let queue = ((size.max(1) - 1) >> QUEUE_SHIFT)
                    .checked_ilog2()
                    .map_or(0, |log| log + 1);
                let base = u64::from(queue) * (self.bytes / u64::from(QUEUES));
                let start = base + (u64::from(piece) << (QUEUE_SHIFT + queue));
                (start, start + u64::from(size))
            }
        }
    }

    /// Everything that is wrong while lanes hold these pieces for these sizes: pieces that overlap or are not of the pool, and
    /// words of the pool's own that are not as they have to be.
    pub(super) fn wrong(&self, held: &[(u32, u32)]) -> Result<u64, LabError> {
        let held = || held.iter().filter(|(_, piece)| *piece != NONE);
        let mut places: Vec<_> = held().map(|(size, piece)| self.place(*size, *piece)).collect();
        places.sort_unstable();
        let overlaps = places.windows(2).filter(|pair| pair[0].1 > pair[1].0).count();
        let outside = places.iter().filter(|place| place.1 > self.bytes).count();
        let own = match self.kind {
            Kind::Units(shift) => self.wrong_units(shift, held())?,
            Kind::Queues => self.wrong_queues(held().count() as u32)?,
        };
        let is_guarded = self.device.guards_hold()?;
        Ok((overlaps + outside) as u64 + own + u64::from(!is_guarded))
    }

    /// Units that are taken or free and should be the other, and tags that are others than the pieces say.
    fn wrong_units<'a>(
        &self,
        shift: u32,
        held: impl Iterator<Item = &'a (u32, u32)>,
    ) -> Result<u64, LabError> {
        let (bitmap, tags) = (self.device.read(self.control)?, self.device.read(self.records)?);
        let mut wanted = vec![0u32; tags.len()];
        let mut taken = vec![false; tags.len()];
        for (size, piece) in held {
            let (first, units) = ((piece >> shift) as usize, size.div_ceil(1 << shift));
            // Pieces that share a unit have one each in its tag, all of them in a run of one.
            wanted[first] = ((wanted[first] & 0xff) + 1) | (units << 8);
            for unit in taken.iter_mut().skip(first).take(units as usize) {
                *unit = true;
            }
        }
        let is_taken = |unit: usize| bitmap[unit / 32] >> (unit % 32) & 1 != 0;
        let wrong_bits = (0..tags.len())
            .filter(|unit| is_taken(*unit) != taken[*unit])
            .count();
        let wrong_tags = tags
            .iter()
            .zip(&wanted)
            .filter(|(tag, wanted)| tag != wanted)
            .count();
        Ok((wrong_bits + wrong_tags) as u64)
    }

    fn wrong_queues(&self, held: u32) -> Result<u64, LabError> {
        let control = self.device.read(self.control)?;
        let rings = self.device.read(self.records)?;
        let there = rings.iter().filter(|piece| **piece != NONE).count() as u32;
        let counted: u32 = control.chunks(4).map(|queue| queue[2]).sum();
        let all: u32 = self.pieces().sum();
        Ok(u64::from(counted != there) + u64::from(all - held.min(all) != there))
    }

    /// Bytes that are taken, with what is lost by rounding up.
    pub(super) fn used(&self) -> Result<u64, LabError> {
        let control = self.device.read(self.control)?;
        Ok(match self.kind {
            Kind::Units(shift) => {
                let units: u64 = control.iter().map(|word| u64::from(word.count_ones())).sum();
                units << shift
            }
            Kind::Queues => {
                let queues = self.pieces().zip(control.chunks(4)).zip(QUEUE_SHIFT..);
                queues
                    .map(|((pieces, queue), shift)| u64::from(pieces - queue[2]) << shift)
                    .sum()
            }
        })
    }

    /// The bound that suits the pool: draws of a walk, or looks at a slot.
    pub(super) fn bound(&self, draws: u32, looks: u32) -> u32 {
        match self.kind {
            Kind::Units(_) => draws,
            Kind::Queues => looks,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Noise;

    const BYTES: u64 = 2 << 20;
    const TRIES: u32 = 8;

    /// Bytes that RW_malloc sets aside for half a unit or less: its smallest pieces are a sixteenth of a unit.
    fn rounded(size: u32, unit: u32) -> u32 {
        size.next_power_of_two().max(unit / 16)
    }

    fn sizes(seed: u64, count: usize, most: u32) -> Vec<u32> {
        (0..count)
            .map(|at| 1 + Noise::new(seed).below(at, most))
            .collect()
    }

    fn held(sizes: &[u32], taken: &Taken) -> Vec<(u32, u32)> {
        sizes.iter().copied().zip(taken.given.iter().copied()).collect()
    }

    fn pool(shift: u32) -> BytePool {
        BytePool::new(Kind::Units(shift), BYTES, 1024).unwrap()
    }

    #[test]
    fn runs_of_all_sizes_do_not_overlap_and_come_back() {
        for (shift, most) in [(8, 8192), (8, 200), (8, 600), (6, 2048), (10, 8192)] {
            let mut pool = pool(shift);
            let sizes = sizes(1, 300, most);
            let taken = pool.take(&sizes, 1, TRIES).unwrap();
            assert_eq!(taken.failed(), 0, "{shift} {most}");
            let held = held(&sizes, &taken);
            assert_eq!(pool.wrong(&held).unwrap(), 0, "{shift} {most}");
            // A part comes back, and its place is given again.
            let back = pool.give(&sizes[..150], &taken.given[..150], TRIES).unwrap();
            assert_eq!((back.faults, back.kept), (0, 0), "{shift} {most}");
            assert_eq!(pool.wrong(&held[150..]).unwrap(), 0, "{shift} {most}");
            let again = pool.take(&sizes[..150], 2, TRIES).unwrap();
            let pieces = [&again.given[..], &taken.given[150..]].concat();
            let held: Vec<_> = sizes.iter().copied().zip(pieces.iter().copied()).collect();
            assert_eq!(
                (again.failed(), pool.wrong(&held).unwrap()),
                (0, 0),
                "{shift} {most}"
            );
            let back = pool.give(&sizes, &pieces, TRIES).unwrap();
            assert_eq!((back.faults, back.kept), (0, 0), "{shift} {most}");
            assert_eq!(
                (pool.wrong(&[]).unwrap(), pool.used().unwrap()),
                (0, 0),
                "{shift} {most}"
            );
        }
    }

    #[test]
    fn small_requests_of_a_warp_share_units() {
        let mut pool = pool(8);
        let sizes = [1, 16, 17, 100, 128, 64, 5, 33];
        let taken = pool.take(&sizes, 1, TRIES).unwrap();
        let together: u32 = sizes.iter().map(|size| rounded(*size, 256)).sum();
        assert_eq!(pool.used().unwrap(), u64::from(together.next_multiple_of(256)));
        let held = held(&sizes, &taken);
        assert_eq!((taken.failed(), pool.wrong(&held).unwrap()), (0, 0));
        let crosses = held.iter().filter(|(size, at)| at / 256 != (at + size - 1) / 256);
        assert_eq!(crosses.count(), 0);
    }

    #[test]
    fn runs_cross_words() {
        // 31 units of 32: all but the first of a word's runs begin in one word and end in the next.
        let mut pool = pool(8);
        let sizes = [31 * 256; 64];
        let taken = pool.take(&sizes, 5, TRIES).unwrap();
        assert_eq!(pool.wrong(&held(&sizes, &taken)).unwrap(), 0);
        let first_bits = taken.given.iter().map(|at| at >> 8 & 31);
        assert!(first_bits.filter(|bit| *bit > 1).count() > 30, "{taken:?}");
    }

    #[test]
    fn sizes_that_no_run_has_get_nothing_at_once() {
        let mut pool = pool(8);
        let sizes = [0, 8193, u32::MAX, 8192];
        let taken = pool.take(&sizes, 1, TRIES).unwrap();
        assert_eq!(taken.given[..3], [NONE; 3]);
        assert_eq!((taken.steps[0], taken.failed()), (0, 3));
        assert_eq!(pool.wrong(&held(&sizes, &taken)).unwrap(), 0);
    }

    #[test]
    fn full_pool_says_so_after_it_was_searched_in_order() {
        let mut pool = pool(8);
        let sizes = vec![256; 1024];
        let mut all = Vec::new();
        for seed in 0..8 {
            let taken = pool.take(&sizes, seed, TRIES).unwrap();
            assert_eq!(taken.failed(), 0, "launch {seed}");
            all.extend(held(&sizes, &taken));
        }
        assert_eq!((pool.wrong(&all).unwrap(), pool.used().unwrap()), (0, BYTES));
        let taken = pool.take(&[256, 16], 9, TRIES).unwrap();
        // Words of the bitmap by 31, then once more for small ones.
        let sweep = (BYTES / 256 / 32).div_ceil(31) as u32;
        assert_eq!((taken.failed(), taken.steps[0]), (2, TRIES + 2 * sweep));
    }

    #[test]
    fn last_units_apart_from_each_other_are_found() {
        let mut pool = pool(8);
        let sizes = vec![256; 1024];
        let mut all = Vec::new();
        for seed in 0..8 {
            let taken = pool.take(&sizes, seed, TRIES).unwrap();
            all.extend(taken.given);
        }
        let back = pool.give(&[256; 2], &[all[7], all[5000]], TRIES).unwrap();
        assert_eq!(back.faults, 0);
        // Five small ones want two units together, and there are none: each asks for one, and two are served.
        let taken = pool.take(&[128, 128, 128, 128, 128], 9, TRIES).unwrap();
        assert_eq!((taken.failed(), pool.used().unwrap()), (3, BYTES));
    }

    #[test]
    fn what_is_no_piece_is_not_given_back() {
        let mut pool = pool(8);
        let sizes = [1024, 100];
        let taken = pool.take(&sizes, 1, TRIES).unwrap();
        let run = taken.given[0];
        let wrong = [
            run + 256,
            BYTES as u32,
            u32::MAX - 1,
            taken.given[1],
            taken.given[1],
        ];
        let back = pool.give(&[0; 5], &wrong, TRIES).unwrap();
        assert_eq!((back.faults, back.kept), (4, 4));
        assert_eq!(pool.wrong(&[(1024, run)]).unwrap(), 0);
    }

    #[test]
    fn queues_by_size_give_what_fits() {
        let mut pool = BytePool::new(Kind::Queues, BYTES, 1024).unwrap();
        let mut sizes = sizes(3, 100, 8192);
        sizes.extend([0, 8193]);
        let taken = pool.take(&sizes, 1, TRIES).unwrap();
        assert_eq!(taken.given[100..], [NONE; 2]);
        assert_eq!(pool.wrong(&held(&sizes, &taken)).unwrap(), 0);
        let back = pool.give(&sizes, &taken.given, TRIES).unwrap();
        assert_eq!((back.faults, back.kept), (0, 0));
        assert_eq!((pool.wrong(&[]).unwrap(), pool.used().unwrap()), (0, 0));
    }
}
