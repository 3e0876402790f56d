//! Pools of pages on the card, each way to take and to give back, and what must be true of every launch.

use kernels::Noise;
use kernels::allocators::{Call, Lanes, List, NONE, Pages, Queues, Walk};

use crate::device::{Device, DeviceBuffer};
use crate::host::LabError;

/// Lanes of a warp.
pub(super) const WARP: usize = 32;
/// Of a page, as queues count sizes. Nothing here depends on it.
const PAGE_SHIFT: u32 = 8;

/// A way to take pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Walk(Walk),
    Queue,
    List,
}

impl Way {
    pub(super) const ALL: [Self; 5] = [
        Self::Walk(Walk::Page),
        Self::Walk(Walk::Word),
        Self::Walk(Walk::Together),
        Self::Queue,
        Self::List,
    ];

    /// The paper's name, where it has one.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Walk(Walk::Page) => "RW",
            Self::Walk(Walk::Word) => "RW-BM",
            Self::Walk(Walk::Together) => "CoRW",
            Self::Queue => "queue",
            Self::List => "list under a lock",
        }
    }
}

/// Results of a launch in which lanes took pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    /// What each lane has.
    pub(super) given: Vec<u32>,
    pub(super) steps: Vec<u32>,
    /// The card's time.
    pub(super) ns: u64,
}

impl Taken {
    /// Steps of a lane, on the average (the paper's TAS).
    pub(super) fn lane_steps(&self) -> f64 {
        let sum: u64 = self.steps.iter().map(|steps| u64::from(*steps)).sum();
        sum as f64 / self.steps.len().max(1) as f64
    }

    /// The most steps of a warp's lanes, on the average over the warps (WAS).
    pub(super) fn warp_steps(&self) -> f64 {
        let warps = self.steps.chunks(WARP);
        let count = warps.len();
        let sum: u64 = warps
            .map(|warp| warp.iter().max().map_or(0, |steps| u64::from(*steps)))
            .sum();
        sum as f64 / count.max(1) as f64
    }

    pub(super) fn failed(&self) -> u64 {
        self.given.iter().filter(|piece| **piece == NONE).count() as u64
    }
}

/// Words of a launch's lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBuffers {
    given: DeviceBuffer,
    steps: DeviceBuffer,
    faults: DeviceBuffer,
}

impl LaneBuffers {
    pub(super) fn new(device: &mut Device, lanes: usize) -> Result<Self, LabError> {
        Ok(Self {
            given: device.allocate(lanes)?,
            steps: device.allocate(lanes)?,
            faults: device.allocate(1)?,
        })
    }

    pub(super) fn lanes(&self, count: u32, seed: u32, tries: u32) -> Lanes {
        Lanes {
            count,
            given: self.given.va,
            steps: self.steps.va,
            faults: self.faults.va,
            seed,
            tries,
        }
    }

    /// Runs a launch in which lanes take.
    pub(super) fn take(&self, device: &mut Device, call: &Call, count: u32) -> Result<Taken, LabError> {
        let ns = device.run(&call.launch())?;
        let mut taken = Taken {
            given: device.read(self.given)?,
            steps: device.read(self.steps)?,
            ns,
        };
        taken.given.truncate(count as usize);
        taken.steps.truncate(count as usize);
        Ok(taken)
    }

    /// Runs a launch in which they give back these pieces: its time, the faults it counted, and what lanes kept.
    pub(super) fn give(&self, device: &mut Device, call: &Call, pieces: &[u32]) -> Result<Given, LabError> {
        device.write(self.given, pieces)?;
        device.write(self.faults, &[0])?;
        let ns = device.run(&call.launch())?;
        let mut kept = device.read(self.given)?;
        kept.truncate(pieces.len());
        let faults = device.read(self.faults)?.iter().sum::<u32>().into();
        let kept = kept.into_iter().filter(|piece| *piece != NONE).count() as u64;
        Ok(Given { ns, faults, kept })
    }
}

/// Results of a launch in which lanes gave pieces back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Given {
    /// The card's time.
    pub(super) ns: u64,
    /// Pieces that could not be given back, as the card counted them.
    pub(super) faults: u64,
    /// Lanes that still have one.
    pub(super) kept: u64,
}

/// A pool of pages on a card of its own.
pub(super) struct PagePool {
    device: Device,
    way: Way,
    pages: u32,
    /// The bitmap, or what a queue or a list keeps of itself.
    control: DeviceBuffer,
    /// The ring or the links.
    links: DeviceBuffer,
    lanes: LaneBuffers,
    /// Pages taken from the queue since it was filled.
    taken: u32,
}

impl PagePool {
    /// A pool for launches of at most `lanes` lanes. [`Self::fill`] comes before the first one.
    pub(super) fn new(way: Way, pages: u32, lanes: usize) -> Result<Self, LabError> {
        let slots = pages.next_power_of_two() as usize;
        let (control, links) = match way {
            Way::Walk(_) => (pages.div_ceil(32) as usize, 1),
            Way::Queue => (4, slots),
            Way::List => (2, pages as usize),
        };
        let words = control + links + 2 * lanes;
        let mut device = Device::start((words as u64 * 4).next_multiple_of(1 << 20) + (1 << 20))?;
        Ok(Self {
            way,
            pages,
            control: device.allocate(control)?,
            links: device.allocate(links)?,
            lanes: LaneBuffers::new(&mut device, lanes)?,
            taken: 0,
            device,
        })
    }

    fn bitmap(&self) -> Pages {
        Pages {
            bitmap: self.control.va,
            count: self.pages,
        }
    }

    fn queue(&self) -> Queues {
        Queues {
            control: self.control.va,
            rings: self.links.va,
            slots: self.links.words as u32,
            count: 1,
            unit_shift: PAGE_SHIFT,
        }
    }

    fn list(&self) -> List {
        List {
            control: self.control.va,
            links: self.links.va,
            count: self.pages,
        }
    }

    /// Makes these pages free and all others taken.
    pub(super) fn fill(&mut self, free: &[u32]) -> Result<(), LabError> {
        self.taken = 0;
        match self.way {
            Way::Walk(_) => {
                // Bits behind the last page are set, too.
                let mut words = vec![u32::MAX; self.control.words];
                for page in free {
                    words[*page as usize / 32] &= !(1 << (page % 32));
                }
                self.device.write(self.control, &words)
            }
            Way::Queue => {
                let mut ring = free.to_vec();
                ring.resize(self.links.words, NONE);
                let (there, room) = (free.len() as u32, (self.links.words - free.len()) as u32);
                self.device.write(self.control, &[0, there, there, room])?;
                self.device.write(self.links, &ring)
            }
            Way::List => {
                let mut links = vec![NONE; self.links.words];
                for pair in free.windows(2) {
                    links[pair[0] as usize] = pair[1];
                }
                let first = free.first().copied().unwrap_or(NONE);
                self.device.write(self.control, &[0, first])?;
                self.device.write(self.links, &links)
            }
        }
    }

    /// So many lanes take a page each.
    pub(super) fn take(&mut self, count: u32, seed: u32, tries: u32) -> Result<Taken, LabError> {
        let lanes = self.lanes.lanes(count, seed, tries);
        let call = match self.way {
            Way::Walk(walk) => self.bitmap().take(walk, &lanes),
            Way::Queue => self.queue().take(None, self.taken, &lanes),
            Way::List => self.list().take(&lanes),
        };
        let taken = self.lanes.take(&mut self.device, &call, count)?;
        self.taken += count - taken.failed() as u32;
        Ok(taken)
    }

    /// Lanes give these pages back.
    pub(super) fn give(&mut self, pages: &[u32], tries: u32) -> Result<Given, LabError> {
        let lanes = self.lanes.lanes(pages.len() as u32, 0, tries);
        let call = match self.way {
            Way::Walk(_) => self.bitmap().give(&lanes),
            Way::Queue => self.queue().give(None, 0, &lanes),
            Way::List => self.list().give(&lanes),
        };
        self.lanes.give(&mut self.device, &call, pages)
    }

    /// The pages that the card's memory says are free, in order. What no such memory can be like is an error.
    pub(super) fn free(&self) -> Result<Vec<u32>, LabError> {
        let bad = |what: &str| LabError::Fault {
            what: format!("{}: {what}", self.way.name()),
        };
        if !self.device.guards_hold()? {
            return Err(bad("something was stored next to a buffer"));
        }
        let (control, links) = (self.device.read(self.control)?, self.device.read(self.links)?);
        let mut free: Vec<u32> = match self.way {
            Way::Walk(_) => {
                let is_free = |page: &u32| control[*page as usize / 32] >> (page % 32) & 1 == 0;
                (0..self.control.words as u32 * 32).filter(is_free).collect()
            }
            Way::Queue => {
                let free: Vec<u32> = links.iter().copied().filter(|page| *page != NONE).collect();
                let counts = [free.len() as u32, (links.len() - free.len()) as u32];
                let came = control[1].wrapping_sub(control[0]);
                if control[2..] != counts || came != counts[0] {
                    return Err(bad("its counts are not those of its ring"));
                }
                free
            }
            Way::List => {
                if control[0] != 0 {
                    return Err(bad("it is still locked"));
                }
                let next = |page: &u32| links.get(*page as usize).copied();
                let walk = std::iter::successors(Some(control[1]), next);
                let pages = walk.take_while(|page| *page != NONE);
                pages.take(self.pages as usize + 1).collect()
            }
        };
        free.sort_unstable();
        let is_twice = free.windows(2).any(|pair| pair[0] == pair[1]);
        if is_twice || free.last().is_some_and(|page| *page >= self.pages) {
            return Err(bad("a page is free twice, or is none of the pool"));
        }
        Ok(free)
    }
}

/// So many pages of a pool, drawn at random, in order.
pub(super) fn draw(noise: Noise, pages: u32, count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..pages).collect();
    for at in 0..count.min(pages) {
        let other = at + noise.below(at as usize, pages - at);
        all.swap(at as usize, other as usize);
    }
    all.truncate(count as usize);
    all.sort_unstable();
    all
}

/// Lanes whose page was not free before or is another lane's as well, and pages that are free now and should not be, or
/// the other way round. All three lists but `given` are in order.
pub(super) fn wrong(before: &[u32], given: &[u32], after: &[u32]) -> u64 {
    let mut gone: Vec<u32> = given.iter().copied().filter(|page| *page != NONE).collect();
    gone.sort_unstable();
    let twice = gone.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let strange = only_in(&gone, before).count();
    let left: Vec<u32> = only_in(before, &gone).collect();
    let lost = only_in(&left, after).count();
    let extra = only_in(after, &left).count();
    (twice + strange + lost + extra) as u64
}

/// What is in the first list and not in the second; both are in order.
fn only_in<'a>(some: &'a [u32], others: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    let mut others = others.iter().peekable();
    some.iter().copied().filter(move |page| {
        while others.next_if(|other| *other < page).is_some() {}
        others.peek() != Some(&page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 1000;
    const LANES: u32 = 300;
    const TRIES: u32 = 20_000;

    fn pool(way: Way, free: &[u32]) -> PagePool {
        let mut pool = PagePool::new(way, PAGES, 1024).unwrap();
        pool.fill(free).unwrap();
        pool
    }

    #[test]
    fn pages_are_given_once_and_come_back() {
        for way in Way::ALL {
            let before = draw(Noise::new(7), PAGES, 400);
            let mut pool = pool(way, &before);
            let first = pool.take(LANES, 1, TRIES).unwrap();
            assert_eq!(first.failed(), 0, "{way:?}");
            assert_eq!(wrong(&before, &first.given, &pool.free().unwrap()), 0, "{way:?}");
            let second = pool.take(100, 2, TRIES).unwrap();
            let given = [first.given, second.given].concat();
            assert_eq!(wrong(&before, &given, &pool.free().unwrap()), 0, "{way:?}");
            assert_eq!(pool.free().unwrap(), [0; 0], "{way:?}");
            let back = pool.give(&given, TRIES).unwrap();
            assert_eq!((back.faults, back.kept), (0, 0), "{way:?}");
            assert_eq!(pool.free().unwrap(), before, "{way:?}");
        }
    }

    #[test]
    fn lanes_that_find_nothing_say_so() {
        for way in Way::ALL {
            let before = draw(Noise::new(8), PAGES, 40);
            let mut pool = pool(way, &before);
            // Enough draws to find each of the 40 in any case, and far more lanes.
            let taken = pool.take(LANES, 3, TRIES).unwrap();
            assert_eq!(taken.failed(), u64::from(LANES) - 40, "{way:?}");
            assert_eq!(wrong(&before, &taken.given, &pool.free().unwrap()), 0, "{way:?}");
            let is_bounded = taken.steps.iter().all(|steps| *steps <= TRIES);
            assert!(is_bounded, "{way:?}");
        }
    }

    #[test]
    fn page_that_is_free_or_none_is_not_given_back() {
        for way in Way::ALL {
            let mut pool = pool(way, &[5, 6]);
            // A queue and a list have no record of each page: a queue knows when it is full, a list what is a page.
            let (pages, kept) = match way {
                Way::Walk(_) => (vec![5, PAGES, 9, u32::MAX - 1], 3),
                Way::Queue => ((0..1024).collect(), 2),
                Way::List => (vec![PAGES, 9, u32::MAX - 1], 2),
            };
            let back = pool.give(&pages, TRIES).unwrap();
            assert_eq!((back.faults, back.kept), (kept, kept), "{way:?}");
        }
    }

    #[test]
    fn last_tries_of_a_full_pool_are_the_bound() {
        for walk in [Walk::Page, Walk::Word, Walk::Together] {
            let mut pool = pool(Way::Walk(walk), &[]);
            let taken = pool.take(70, 4, 9).unwrap();
            assert_eq!(taken.given, [NONE; 70], "{walk:?}");
            assert_eq!(taken.steps, [9; 70], "{walk:?}");
        }
    }

    #[test]
    fn wrong_finds_each_kind_of_mistake() {
        assert_eq!(wrong(&[1, 2, 3], &[2, NONE], &[1, 3]), 0);
        assert_eq!(wrong(&[1, 2, 3], &[2, 2], &[1, 3]), 1);
        assert_eq!(wrong(&[1, 3], &[2], &[1, 3]), 1);
        assert_eq!(wrong(&[1, 2, 3], &[2], &[1]), 1);
        assert_eq!(wrong(&[1, 2, 3], &[2], &[1, 2, 3]), 1);
    }

    #[test]
    fn draw_takes_each_page_at_most_once() {
        let drawn = draw(Noise::new(1), 100, 100);
        assert_eq!(drawn, (0..100).collect::<Vec<_>>());
        assert_eq!(draw(Noise::new(1), 100, 10).len(), 10);
    }
}
