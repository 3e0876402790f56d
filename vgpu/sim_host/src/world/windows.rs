//! Windows of a VM that its client has mapped: what lives at each place of its window file.

use std::collections::BTreeMap;

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES};
use vgpu::{Event, Passage, VmId};
use vm_memory::VolatileMemory;

use super::bytes::zero;
use super::{Watch, World};

/// The window file of one VM, page by page. A page that lives here is the image's own here: nobody copies it to and fro.
#[derive(Default)]
pub(super) struct Windows {
    /// The page of the image that lives at a place, by page of the file.
    lent: BTreeMap<u64, u64>,
}

impl Windows {
    /// Pages of the image live here from now on.
    pub(super) fn lend(&mut self, offset: u64, at: u64, bytes: u64) {
        for page in 0..bytes / SMALL_PAGE {
            let (place, page) = (offset / SMALL_PAGE + page, at / SMALL_PAGE + page);
            let lives = self.lent.values().any(|lent| *lent == page);
            assert!(!lives, "page {page:#x} lives in two places");
            let before = self.lent.insert(place, page);
            assert!(before.is_none(), "two pages live at place {place:#x}");
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
        }
    }

    /// Whether a page of a range of the image lives here.
    pub(super) fn holds(&self, at: u64, bytes: u64) -> bool {
        let range = at / SMALL_PAGE..(at + bytes).div_ceil(SMALL_PAGE);
        self.lent.values().any(|page| range.contains(page))
    }
}

/// Bytes into the window file, of which BAR3 has `bar3_bytes`; `None` for what is never mapped.
fn place(bar: Bar, offset: u64, bytes: usize, bar3_bytes: u64) -> Option<u64> {
    let (within, window, first) = match bar {
        Bar::Bar0 => (
            offset.checked_sub(PRAMIN_BASE.into())?,
            PRAMIN_BYTES.into(),
            bar3_bytes,
        ),
        Bar::Bar3 => (offset, bar3_bytes, 0),
        Bar::Bar1 => return None,
    };
    let end = within.checked_add(bytes as u64)?;
    (end <= window).then_some(first + within)
}

impl<W: Watch> World<W> {
    /// The client of an attached VM maps its windows.
    pub fn let_windows(&mut self, vm: VmId) {
        assert!(!self.config.bus.pins, "a page of the image cannot be replaced");
        self.with_vm(vm, |memory| memory.windows = Some(Windows::default()));
        self.submit(Event::LetWindows { vm });
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
                memory.windows.iter_mut().for_each(|windows| windows.lent.clear())
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
        zero(&memory.image, at, bytes);
    }

    /// Whether an access goes to memory that the VM's client has mapped, and so to nobody else; it is done then. A place where nothing
    /// lives takes stores without effect and reads as zero.
    pub(crate) fn window_access(
        &mut self,
        vm: VmId,
        bar: Bar,
        offset: u64,
        access: WindowAccess<'_>,
    ) -> bool {
        let bytes = match &access {
            WindowAccess::Load(data) => data.len(),
            WindowAccess::Store(data) => data.len(),
        };
        let memory = self.vm(vm);
        let place = place(bar, offset, bytes, self.config.bar3_bytes);
        let (Some(windows), Some(place)) = (&memory.windows, place) else {
            return false;
        };
        let part = |done: usize| {
            let at = place + done as u64;
            let left = (SMALL_PAGE - at % SMALL_PAGE) as usize;
            let page = windows.lent.get(&(at / SMALL_PAGE));
            (page.map(|page| page * SMALL_PAGE + at % SMALL_PAGE), left)
        };
        let mut done = 0;
        match access {
            WindowAccess::Load(data) => {
                while done < bytes {
                    let (at, left) = part(done);
                    let end = bytes.min(done + left);
                    match at {
                        Some(at) => {
                            let slice = memory.image.get_slice(at as usize, end - done);
                            slice.expect("inside of the image").copy_to(&mut data[done..end]);
                        }
                        None => data[done..end].fill(0),
                    }
                    done = end;
                }
            }
            WindowAccess::Store(data) => {
                while done < bytes {
                    let (at, left) = part(done);
                    let end = bytes.min(done + left);
                    if let Some(at) = at {
                        let slice = memory.image.get_slice(at as usize, end - done);
                        slice.expect("inside of the image").copy_from(&data[done..end]);
                    }
                    done = end;
                }
            }
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
