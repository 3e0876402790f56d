//! The traits that a caller implements to build shadows: where memory is, pages for tables, a way to write them.

use fermi_spec::addr::{Gpa, GuestVramAddr, Iova, VramAddr};

/// Where a guest page is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In the card's VRAM.
    Vram(VramAddr),
    /// In system memory, at an address that the card can use.
    Sysram(Iova),
    /// Memory of the guest that has no frame yet: the entry becomes not present until a redirect.
    Unbacked,
    /// No memory of this guest: the entry is dropped.
    Outside,
}

/// Where a guest's 128 KiB frame is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramePlacement {
    /// Page n of the frame is n × 4 KiB after this place. Only VRAM at a multiple of 128 KiB can be a large page.
    Uniform(Placement),
    /// The pages lie apart: ask for each.
    Mixed,
}

/// Maps one guest address to the place where the host has it now. It is the one door from guest addresses to host
/// addresses: the GPU may reach every place that it gives, in this guest's name.
pub trait Placements {
    /// The 4 KiB page at `at`, a multiple of 4 KiB.
    fn vram(&self, at: GuestVramAddr) -> Placement;
    /// The 4 KiB page of guest RAM at `at`, a multiple of 4 KiB.
    fn ram(&self, at: Gpa) -> Placement;
    /// The 128 KiB frame at `at`, a multiple of 128 KiB.
    fn frame(&self, at: GuestVramAddr) -> FramePlacement;
}

/// VRAM for shadow tables, charged to the VM and bounded.
pub trait TablePages {
    /// Contiguous VRAM of `bytes` (8 KiB, 64 KiB or 256 KiB) at a multiple of 4 KiB, of any content; `None` when the
    /// VM may have no more.
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr>;
    /// Takes back a range that `allocate` gave. No table refers to it any more and the TLB has been flushed since.
    fn free(&mut self, at: VramAddr, bytes: u64);
}

/// Receives shadow writes, to be performed in order.
pub trait ShadowWriter {
    /// Writes `entries` (at most 512) at `at` and behind it.
    fn write(&mut self, at: VramAddr, entries: &[u64]);
}
