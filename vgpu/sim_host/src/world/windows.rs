//! Windows of a VM that its client has mapped: what lives at each place of its window file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::instance::{CHANNELS, USERD_BYTES};
use vgpu::{ChannelWatch, Event, Passage, Tick, VmId, WindowLayout};
use vm_memory::{MmapRegion, VolatileMemory};

use super::bytes::zero;
use super::{Watch, World, region};

/// Windows that a client maps of those that it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// All of them.
    All,
    /// All but BAR1, about which it sends messages.
    AllButBar1,
}

/// Latest time at which a sweep finds a doorbell.
const SWEEP_MAX_NS: u64 = 1_000_000;
/// Sweeps come as if at random: each so much later behind its doorbell than the one before, modulo the latest.
const SWEEP_STEP_NS: u64 = 618_033;

/// The window file of one VM, page by page. A page that lives here is the image's own here: nobody copies it to and fro.
pub(super) struct Windows {
    layout: WindowLayout,
    mapped: Mapped,
    /// The page of the image that lives at a place, by page of the file.
    lent: BTreeMap<u64, u64>,
    /// All of these pages.
    living: BTreeSet<u64>,
    /// BAR1 where no page lives: USERD, above all.
    bar1: Arc<MmapRegion>,
    /// Bytes into BAR1 where USERD lies, and the channels that are looked at there.
    userd: Option<u64>,
    watched: BTreeSet<u8>,
    /// Channels whose pages were stored to since the last sweep, and when the next one is.
    touched: BTreeSet<u8>,
    sweep_at: Option<Tick>,
    sweeps: u64,
}

impl Windows {
    fn new(layout: WindowLayout, mapped: Mapped) -> Self {
        Self {
            layout,
            mapped,
            lent: BTreeMap::new(),
            living: BTreeSet::new(),
            bar1: region(layout.part(Bar::Bar1).bytes as usize),
            userd: None,
            watched: BTreeSet::new(),
            touched: BTreeSet::new(),
            sweep_at: None,
            sweeps: 0,
        }
    }

    /// BAR1 where no page lives.
    pub(super) fn bar1(&self) -> &Arc<MmapRegion> {
        &self.bar1
    }

    /// Bytes into BAR1 of a place in the file; `None` if it is another window's.
    fn in_bar1(&self, place: u64) -> Option<u64> {
        let part = self.layout.part(Bar::Bar1);
        place.checked_sub(part.file_offset).filter(|at| *at < part.bytes)
    }

    /// What stood at a place is gone.
    fn clear(&self, place: u64) {
        if let Some(at) = self.in_bar1(place * SMALL_PAGE) {
            zero(&self.bar1, at, SMALL_PAGE);
        }
    }

    /// A store to BAR1 may have been a doorbell: it is found before long.
    fn note_store(&mut self, at: u64, now: Tick) {
        let within = self.userd.and_then(|userd| at.checked_sub(userd));
        let channel = within.map(|within| within / USERD_BYTES);
        if let Some(channel) = channel.filter(|channel| *channel < CHANNELS as u64) {
            self.touch(channel as u8, now);
        }
    }

    /// The GP_PUT of a channel may have changed: if it is looked at, that is found before long.
    fn touch(&mut self, channel: u8, now: Tick) {
        if !self.watched.contains(&channel) {
            return;
        }
        self.touched.insert(channel);
        if self.sweep_at.is_none() {
            self.sweeps += 1;
            let late = self.sweeps.wrapping_mul(SWEEP_STEP_NS) % SWEEP_MAX_NS;
            self.sweep_at = Some(now.after(late));
        }
    }

    /// Pages of the image live here from now on.
    pub(super) fn lend(&mut self, offset: u64, at: u64, bytes: u64) {
        for page in 0..bytes / SMALL_PAGE {
            let (place, page) = (offset / SMALL_PAGE + page, at / SMALL_PAGE + page);
            let is_new = self.living.insert(page);
            assert!(is_new, "page {page:#x} lives in two places");
            let before = self.lent.insert(place, page);
            assert!(before.is_none(), "two pages live at place {place:#x}");
            self.clear(place);
        }
    }

    /// The same pages live here no more.
    pub(super) fn take_back(&mut self, offset: u64, at: u64, bytes: u64) {
        for page in 0..bytes / SMALL_PAGE {
            let (place, page) = (offset / SMALL_PAGE + page, at / SMALL_PAGE + page);
            assert_eq!(
                self.lent.remove(&place),
                Some(page),
                "what lives at place {place:#x}"
            );
            self.living.remove(&page);
        }
    }

    /// No page lives here any more.
    fn leave(&mut self) {
        self.lent.clear();
        self.living.clear();
    }

    /// Whether a page of a range of the image lives here.
    pub(super) fn holds(&self, at: u64, bytes: u64) -> bool {
        let range = at / SMALL_PAGE..(at + bytes).div_ceil(SMALL_PAGE);
        self.living.range(range).next().is_some()
    }
}

impl<W: Watch> World<W> {
    /// The client of an attached VM maps windows.
    pub fn let_windows(&mut self, vm: VmId, mapped: Mapped) {
        let layout = WindowLayout::new(self.config.bar1_bytes, self.config.bar3_bytes);
        self.with_vm(vm, |memory| memory.windows = Some(Windows::new(layout, mapped)));
        self.submit(Event::LetWindows { vm });
    }

    /// The client of an attached VM asks for windows that are memory at any time, though it may have them.
    pub(crate) fn ask_for_windows(&mut self, vm: VmId) {
        match self.vm(vm).windows.is_some() {
            true => self.submit(Event::LetWindows { vm }),
            false => self.let_windows(vm, Mapped::All),
        }
    }

    /// USERD lies at a place of BAR1 from now on, or nowhere.
    pub(super) fn place_userd(&mut self, vm: VmId, at: Option<u64>) {
        self.with_vm(vm, |memory| {
            let windows = memory.windows.as_mut().expect("a client that maps windows");
            windows.userd = at;
            windows.watched.clear();
            windows.touched.clear();
            windows.sweep_at = None;
        });
    }

    /// Doorbells of a channel are looked for from now on, what is there at first included, or no more.
    pub(super) fn watch_channel(&mut self, watch: ChannelWatch) {
        let ChannelWatch {
            vm,
            channel,
            is_watched,
        } = watch;
        let now = self.now;
        self.with_vm(vm, |memory| {
            let windows = memory.windows.as_mut().expect("a client that maps windows");
            match is_watched {
                true => {
                    windows.watched.insert(channel);
                    windows.touch(channel, now);
                }
                false => {
                    windows.watched.remove(&channel);
                    windows.touched.remove(&channel);
                }
            }
        });
    }

    /// Doorbells that sweeps have found by now.
    pub(super) fn take_doorbells(&mut self) -> Vec<Event> {
        let now = self.now;
        let windows = self
            .memory
            .vms
            .iter_mut()
            .filter_map(|(vm, memory)| Some((*vm, memory.windows.as_mut()?)));
        let due = windows.filter(|(_, windows)| windows.sweep_at.is_some_and(|at| at <= now));
        let found = due.map(|(vm, windows)| {
            windows.sweep_at = None;
            let channels = std::mem::take(&mut windows.touched).into_iter().collect();
            Event::Doorbells { vm, channels }
        });
        found.collect()
    }

    /// When the next sweep is that finds anything.
    pub(super) fn next_sweep(&self) -> Option<Tick> {
        let windows = self
            .memory
            .vms
            .values()
            .filter_map(|memory| memory.windows.as_ref());
        windows.filter_map(|windows| windows.sweep_at).min()
    }

    /// Pages go to a window file, or come back.
    pub(super) fn change_place(&mut self, passage: &Passage, is_lent: bool) {
        let Passage {
            vm,
            offset,
            at,
            bytes,
            ..
        } = *passage;
        let image = self.vm(vm).image.as_ptr() as usize + at.0 as usize;
        assert!(
            !self.config.bus.pins || !self.iommu.reaches(image..image + bytes as usize),
            "pages of {vm} at {at} change their place, and a map of the card keeps them"
        );
        self.with_vm(vm, |memory| {
            let windows = memory.windows.as_mut().expect("a client that maps windows");
            match is_lent {
                true => windows.lend(offset, at.0, bytes),
                false => windows.take_back(offset, at.0, bytes),
            }
        });
    }

    /// A range of an image is given back. Unless it is all of it, nothing of it lives in a window file.
    pub(super) fn drop_image(&mut self, vm: VmId, at: u64, bytes: u64) {
        let bytes_of_all = self.vm(vm).image.size() as u64;
        if bytes == bytes_of_all {
            self.with_vm(vm, |memory| {
                if let Some(windows) = &mut memory.windows {
                    windows.leave();
                    windows.bar1 = region(windows.bar1.size());
                }
            });
        }
        let memory = self.vm(vm);
        let is_lent = memory
            .windows
            .as_ref()
            .is_some_and(|windows| windows.holds(at, bytes));
        assert!(
            !is_lent,
            "memory of {vm} at {at:#x} is dropped, and lives in its windows"
        );
        let is_all = bytes == bytes_of_all && Arc::strong_count(&memory.image) == 1;
        match is_all {
            // Nobody has it mapped: memory that nobody has touched is cheaper than zeros.
            true => self.with_vm(vm, |memory| memory.image = region(bytes as usize)),
            false => zero(&memory.image, at, bytes),
        }
    }

    /// Whether an access goes to memory that the VM's client has mapped, and so to nobody else; it is done then. Where no page lives, BAR1
    /// keeps what is stored; the other windows take stores without effect and read as zero.
    pub(crate) fn window_access(
        &mut self,
        vm: VmId,
        bar: Bar,
        offset: u64,
        mut access: WindowAccess<'_>,
    ) -> bool {
        let bytes = match &access {
            WindowAccess::Load(data) => data.len(),
            WindowAccess::Store(data) => data.len(),
        };
        let now = self.now;
        let Some(memory) = self.memory.vms.get_mut(&vm) else {
            return false;
        };
        let maps = |windows: &&mut Windows| windows.mapped == Mapped::All || bar != Bar::Bar1;
        let Some(windows) = memory.windows.as_mut().filter(maps) else {
            return false;
        };
        let Some(place) = windows.layout.place(bar, offset, bytes as u64) else {
            return false;
        };
        let mut done = 0;
        while done < bytes {
            let at = place + done as u64;
            let end = bytes.min(done + (SMALL_PAGE - at % SMALL_PAGE) as usize);
            let lent = windows.lent.get(&(at / SMALL_PAGE));
            let found = match lent {
                Some(page) => Some((&memory.image, page * SMALL_PAGE + at % SMALL_PAGE)),
                None => windows.in_bar1(at).map(|at| (&windows.bar1, at)),
            };
            let slice = found.map(|(region, at)| region.get_slice(at as usize, end - done));
            let slice = slice.map(|slice| slice.expect("inside of the memory"));
            match (&mut access, slice) {
                (WindowAccess::Load(data), Some(slice)) => drop(slice.copy_to(&mut data[done..end])),
                (WindowAccess::Load(data), None) => data[done..end].fill(0),
                (WindowAccess::Store(data), Some(slice)) => slice.copy_from(&data[done..end]),
                (WindowAccess::Store(_), None) => {}
            }
            if let (WindowAccess::Store(_), Some(at)) = (&access, windows.in_bar1(at)) {
                windows.note_store(at, now);
            }
            done = end;
        }
        true
    }
}

/// What a guest does to a window.
pub(crate) enum WindowAccess<'a> {
    /// Fills the bytes, with zeros where nothing lives.
    Load(&'a mut [u8]),
    /// Stores the bytes, as far as a page lives there.
    Store(&'a [u8]),
}
