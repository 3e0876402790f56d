//! What channels of a served card are handed: how much of it would be known before it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use fermi_model::{Doorbell, DoorbellWatcher};
use fermi_spec::addr::GpuVa;
use kernel_sets::{Bound, Cache};
use launches::{CopyMethods, GpuMemory, Limits, Looked, Observer, Ring, Unmapped, Work};

/// Launches whose sets are kept.
const CACHE_ENTRIES: usize = 64;

/// Looks at one doorbell at most: a guest decides how much there is to look at, and the card waits meanwhile.
const LOOKS_MAX: u32 = 16;

/// Work that was found at doorbells.
#[derive(Default)]
pub(crate) struct Found {
    /// Grids of class 90c0 whose code is understood: all addresses exact, within the mapped run that holds a pointer, or anywhere.
    launches: [u64; 3],
    copies: u64,
    /// What cannot be understood, by why.
    opaque: BTreeMap<String, u64>,
    /// Doorbells whose work was too much for their looks: the next doorbell of the channel goes on with it.
    put_off: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [exact, run, space] = self.launches;
        let opaque: u64 = self.opaque.values().sum();
        write!(
            f,
            "work: {} launches (exact {exact}, run {run}, space {space}), {} copies, {opaque} opaque",
            exact + run + space,
            self.copies
        )?;
        for (number, (why, count)) in self.opaque.iter().enumerate() {
            write!(f, "{}{why} {count}", if number == 0 { ": " } else { ", " })?;
        }
        match self.put_off {
            0 => Ok(()),
            count => write!(f, "; {count} doorbells not looked at to their end"),
        }
    }
}

impl Found {
    fn count(&mut self, work: &Work) {
        match work {
            Work::Launch(launch) => {
                let of_bound = match launch.bound() {
                    Bound::Exact => 0,
                    Bound::Run => 1,
                    Bound::Space => 2,
                };
                self.launches[of_bound] += 1;
            }
            Work::Copy(_) => self.copies += 1,
            Work::Opaque(why) => *self.opaque.entry(why.to_string()).or_default() += 1,
            Work::Grid(_) | Work::Release { .. } | Work::Acquire { .. } | Work::Wait => {}
        }
    }
}

/// An observer of each channel of a card.
pub(crate) struct Observers {
    found: Arc<Mutex<Found>>,
    channels: BTreeMap<u32, Observer>,
    cache: Cache,
}

impl Observers {
    /// Observers that add what they find to `found`.
    pub(crate) fn new(found: Arc<Mutex<Found>>) -> Self {
        Self {
            found,
            channels: BTreeMap::new(),
            cache: Cache::new(CACHE_ENTRIES),
        }
    }
}

/// Memory of a channel.
struct Memory<'a, 'b>(&'a mut Doorbell<'b>);

impl GpuMemory for Memory<'_, '_> {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        match self.0.read(at, bytes) {
            true => Ok(()),
            false => Err(Unmapped),
        }
    }
}

impl DoorbellWatcher for Observers {
    fn ring(&mut self, mut doorbell: Doorbell<'_>) {
        let ring = Ring {
            base: doorbell.ring,
            entries_log2: doorbell.entries_log2,
        };
        let range = [doorbell.get, doorbell.put];
        let observer = self.channels.entry(doorbell.channel);
        let observer = observer.or_insert_with(|| Observer::new(ring, CopyMethods::Nouveau, doorbell.get));
        let mut items = Vec::new();
        let mut memory = Memory(&mut doorbell);
        let mut look = || observer.look(&mut memory, &mut self.cache, range, Limits::default(), &mut items);
        let is_done = (0..LOOKS_MAX).any(|_| look() == Looked::Done);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        items.iter().for_each(|item| found.count(&item.work));
        found.put_off += u64::from(!is_done);
    }

    fn bound(&mut self, channel: Option<u32>) {
        match channel {
            Some(channel) => drop(self.channels.remove(&channel)),
            None => self.channels.clear(),
        }
    }
}
