//! PRING, the ring that register accesses take (envytools PIBUS, nouveau `ibus/gf100.c`).

use super::units::{UnitRange, unit};

/// Where the ring is.
pub const PRING: UnitRange = unit("PRING", 0x12_0000, 0x1_0000);
/// The part of it that holds the settings of the ring's master.
pub const PRING_MASTER: UnitRange = unit("PRING", 0x12_2000, 0x1000);

registers! {
    /// Words of PRING that nothing else depends on.
    pub enum PringWord {
        /// Command; bits 5:0 while it runs.
        RingCommand = 0x121c4c, WriteOnly;
        /// Pending interrupts of the ring, two words.
        RingIntr[2, 4] = 0x121c58, ReadOnly;
        /// Settings of the ring's master that nouveau makes, as are the next two.
        RingSetting310 = 0x122310, ReadWrite;
        /// Time-outs of accesses on the ring.
        RingTimeout[3, 4] = 0x12232c, ReadWrite;
        /// Setting of the ring's master, as RingSetting310.
        RingSetting348 = 0x122348, ReadWrite;
    }
}

registers! {
    /// Registers of PRING, the ring that register accesses take.
    pub enum PringReg: PringWord {
        /// Hubs on the ring.
        RingHubs = 0x121c70, ReadOnly;
        /// Memory partitions on the ring.
        RingPartitions = 0x121c74, ReadOnly;
        /// GPCs on the ring.
        RingGpcs = 0x121c78, ReadOnly;
    }
}
