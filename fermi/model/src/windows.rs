//! The windows into memory: PRAMIN by physical address, BAR1 and BAR3 through the page directory of an instance
//! block.

use crate::{
    memory::{Memory, Place},
    mmu::{Access, AddressSpace, Refusal, TlbClient},
    model::FermiModel,
};
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr},
    bar::Bar,
    board,
    fault::{client, unit},
    regs::windows::{PraminBase, WindowBlock},
};

/// Value that a failed read through a window gives: 0xbad0acXX, "VM fault" (envytools; unverified on GF100).
const FAULT_PATTERN: [u8; 4] = 0xbad0_ac00_u32.to_le_bytes();

/// BAR1 or BAR3.
pub(crate) struct Window {
    pub(crate) block: WindowBlock,
    /// The block's address space, once it was needed.
    space: Option<AddressSpace>,
    client: TlbClient,
    unit: u8,
    pub(crate) bytes: u64,
}

impl Window {
    fn new(client: TlbClient, unit: u8, bytes: u64) -> Self {
        Self {
            block: WindowBlock::default(),
            space: None,
            client,
            unit,
            bytes,
        }
    }

    fn instance(&self) -> Place {
        Place {
            aperture: self.block.aperture(),
            at: self.block.instance(),
        }
    }

    pub(crate) fn space(&mut self, mem: &mut Memory) -> AddressSpace {
        let instance = self.instance();
        *self
            .space
            .get_or_insert_with(|| AddressSpace::load(mem, instance))
    }

    fn access(&self, write: bool) -> Access {
        Access {
            client: self.client,
            write,
            privileged: true,
        }
    }
}

/// All windows into memory, and a count of BAR3's changes.
pub(crate) struct Windows {
    pub(crate) pramin: PraminBase,
    pub(crate) bar1: Window,
    pub(crate) bar3: Window,
    /// Count of changes, see [`FermiModel::bar3_changes`].
    pub(crate) bar3_changes: u64,
}

impl Windows {
    pub(crate) fn new() -> Self {
        Self {
            pramin: PraminBase::default(),
            bar1: Window::new(TlbClient::Bar1, unit::BAR1, board::BAR1_BYTES),
            bar3: Window::new(TlbClient::Bar3, unit::BAR3, board::BAR3_BYTES),
            bar3_changes: 0,
        }
    }

    fn window(&mut self, bar: Bar) -> Option<&mut Window> {
        match bar {
            Bar::Bar0 => None,
            Bar::Bar1 => Some(&mut self.bar1),
            Bar::Bar3 => Some(&mut self.bar3),
        }
    }

    /// A TLB flush: blocks are looked at again too.
    pub(crate) fn forget_spaces(&mut self) {
        self.bar1.space = None;
        self.bar3.space = None;
    }
}

/// Where an access through a window goes.
enum View {
    Physical(Place),
    Translated(AddressSpace, Access),
    Outside,
}

impl FermiModel {
    /// Writes BAR1_BLOCK or BAR3_BLOCK; what the window's TLB kept is dropped.
    pub(crate) fn set_window(&mut self, bar: Bar, value: u32) {
        if let Some(window) = self.windows.window(bar) {
            window.block = WindowBlock::from_bits(value);
            window.space = None;
            let client = window.client;
            self.mmu.flush_client(client);
        }
        if bar == Bar::Bar3 {
            self.windows.bar3_changes += 1;
        }
    }

    fn view(&mut self, bar: Bar, offset: u64, bytes: usize, write: bool) -> View {
        let Some(window) = self.windows.window(bar) else {
            return View::Outside;
        };
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= window.bytes => {}
            _ => return View::Outside,
        }
        if !window.block.enable() {
            return View::Physical(Place {
                aperture: Aperture::Vram,
                at: PhysAddr(offset),
            });
        }
        let access = window.access(write);
        View::Translated(window.space(&mut self.mem), access)
    }

    /// Reads through BAR1 or BAR3. What the MMU refuses reads as an error pattern.
    pub(crate) fn read_window(&mut self, bar: Bar, offset: u64, data: &mut [u8]) {
        match self.view(bar, offset, data.len(), false) {
            View::Outside => data.fill(0xff),
            View::Physical(place) => self.mem.read(place, data),
            View::Translated(space, access) => {
                let read = self.mmu.read(&mut self.mem, &space, access, GpuVa(offset), data);
                if let Err(refusal) = read {
                    let done = refusal.va.0.saturating_sub(offset) as usize;
                    for (index, byte) in data.iter_mut().enumerate().skip(done) {
                        *byte = FAULT_PATTERN[index % 4];
                    }
                    self.fault_window(bar, client::BAR_READ, refusal);
                }
            }
        }
    }

    /// Writes through BAR1 or BAR3. The bytes from the first refused page on are dropped.
    pub(crate) fn write_window(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        match self.view(bar, offset, data.len(), true) {
            View::Outside => {}
            View::Physical(place) => self.mem.write(place, data),
            View::Translated(space, access) => {
                if let Err(refusal) = self.mmu.write(&mut self.mem, &space, access, GpuVa(offset), data) {
                    self.fault_window(bar, client::BAR_WRITE, refusal);
                }
            }
        }
    }

    fn fault_window(&mut self, bar: Bar, client: u8, refusal: Refusal) {
        if let Some(window) = self.windows.window(bar) {
            let (unit, instance) = (window.unit, window.instance());
            self.record_fault(unit, client, Some(instance), refusal);
        }
    }

    /// The place that `offset` bytes into PRAMIN show.
    pub(crate) fn pramin_place(&self, offset: u32) -> Place {
        let base = self.windows.pramin;
        Place {
            aperture: base.aperture(),
            at: base.address(),
        }
        .offset(u64::from(offset))
    }
}
