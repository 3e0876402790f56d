//! Watching doorbells: what a channel is handed, at the moment when it is told.

use fermi_spec::addr::{GpuVa, PhysAddr, SMALL_PAGE, VA_BITS};
use fermi_spec::instance::{offset, userd};
use fermi_spec::pte::LargePages;

use crate::memory::{Memory, Place};
use crate::mmu::{AddressSpace, walk};
use crate::model::FermiModel;
use crate::pfifo::ChannelId;
use crate::userd::userd_of;

/// Sees each doorbell before the host looks at the ring.
///
/// A watcher changes nothing: neither results nor GPU time nor counters depend on there being one. It runs within the store that rings, which
/// waits for it.
pub trait DoorbellWatcher: Send {
    /// A channel is told that its ring has more entries.
    fn ring(&mut self, doorbell: Doorbell<'_>);

    /// Another channel has this number from now on, or none; of all of them, where the card was reset.
    fn bound(&mut self, channel: Option<u32>);
}

/// A doorbell, and memory as its channel sees it.
pub struct Doorbell<'a> {
    /// Number of the channel.
    pub channel: u32,
    /// First entry that the host has not done yet, as USERD says.
    pub get: u32,
    /// The entry behind the last one.
    pub put: u32,
    /// The ring's first entry.
    pub ring: GpuVa,
    /// log2 of its entries.
    pub entries_log2: u32,
    space: AddressSpace,
    large_pages: LargePages,
    mem: &'a mut Memory,
}

impl Doorbell<'_> {
    /// Fills `bytes`, which lie in one page of 4 KiB, by the tables as they are: no TLB takes part. `false`: nothing is mapped there.
    pub fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> bool {
        let is_one_page = at.within(SMALL_PAGE) + bytes.len() as u64 <= SMALL_PAGE;
        if !is_one_page || at.0 > self.space.limit || at.0 >> VA_BITS != 0 {
            return false;
        }
        let Ok(page) = walk(self.mem, &self.space, self.large_pages, at) else {
            return false;
        };
        let first = page.pte.address().align_down(page.bytes);
        let place = Place {
            aperture: page.pte.aperture(),
            at: PhysAddr(first.0 + at.within(page.bytes)),
        };
        self.mem.read(place, bytes);
        true
    }
}

impl FermiModel {
    /// Lets `watcher` see every doorbell from now on; `None` ends that.
    pub fn watch_doorbells(&mut self, watcher: Option<Box<dyn DoorbellWatcher>>) {
        self.doorbell_watcher = watcher;
    }

    /// Takes the watcher, for another card.
    pub fn take_doorbell_watcher(&mut self) -> Option<Box<dyn DoorbellWatcher>> {
        self.doorbell_watcher.take()
    }

    /// Tells the watcher of a doorbell.
    pub(crate) fn show_doorbell(&mut self, id: ChannelId, instance: Place, put: u32) {
        let Some(mut watcher) = self.doorbell_watcher.take() else {
            return;
        };
        let counters = self.mem.counters;
        let mem = &mut self.mem;
        let mut word = |at: u64| mem.read_u32(instance.offset(at));
        let (low, high) = (word(offset::GP_BASE_LO), word(offset::GP_BASE_HI));
        let place = userd_of(&mut self.mem, instance);
        watcher.ring(Doorbell {
            channel: id.number(),
            get: self.mem.read_u32(place.offset(userd::GP_GET)),
            put,
            ring: GpuVa(u64::from(high & 0xff) << 32 | u64::from(low)),
            entries_log2: high >> 16 & 0x1f,
            space: AddressSpace::load(&mut self.mem, instance),
            large_pages: self.mmu.large_pages(),
            mem: &mut self.mem,
        });
        self.mem.counters = counters;
        self.doorbell_watcher = Some(watcher);
    }
}
