//! What a card can do that no Fermi can: nothing, unless its owner says so in [`ModelConfig`](crate::ModelConfig).
//!
//! No register and no method of the card reaches either of them: only who owns the card can switch them on, and only calls of
//! [`FermiModel`](crate::FermiModel) use them. With all of them off the card is a GF100, bit by bit and for the same price: the
//! interpreter is compiled anew for a card that has one (`compute::watch`), and transfers ask where they translate.

/// The capabilities of a card. The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// Accesses are counted by block of 64 KiB: [`FermiModel::access_counts`](crate::FermiModel::access_counts).
    pub access_counters: bool,
    /// Warps wait for pages that are missing: [`FermiModel::take_faults`](crate::FermiModel::take_faults).
    pub replayable_faults: Option<ReplayableFaults>,
}

/// Parameters of replayable faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayableFaults {
    /// Faults that the card keeps until they are taken. Warps whose faults find no room wait all the same.
    pub buffer_entries: u32,
    /// GPU time from the first fault of a group until the replay takes effect, in nanoseconds, at least.
    pub handling_ns: u64,
}

impl Capabilities {
    /// A GF100: no capability.
    pub const NONE: Self = Self {
        access_counters: false,
        replayable_faults: None,
    };
}

impl ReplayableFaults {
    /// 45 µs for a group of faults, which is what Ganguly measured on a GTX 1080 Ti (Adaptive Memory Management for CPU-GPU
    /// Heterogeneous Systems, section 3.2.1 and Table 2), and room for each page that the warps of a GTX 480 can wait for when
    /// each waits for one: 15 SMs of 48 warps, rounded up.
    pub const DEFAULT: Self = Self {
        buffer_entries: 1024,
        handling_ns: 45_000,
    };
}
