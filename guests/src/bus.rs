//! The guest's view of its machine: three BARs of the GPU, its own RAM, and a way to report.

use fermi_spec::bar::Bar;

/// The accesses that a driver may make to the machine it runs on.
///
/// Every call is one access in program order. None may fail, as on a real bus: a read without an answer is all
/// ones, a write without a receiver is dropped. RAM is addressed by guest-physical address (GPA, bytes), which is
/// also the address the GPU uses for system memory.
pub trait GuestBus {
    /// One 32-bit load at `offset` bytes into `bar`. `offset` is a multiple of 4.
    fn read32(&mut self, bar: Bar, offset: u64) -> u32;

    /// One 32-bit store.
    fn write32(&mut self, bar: Bar, offset: u64, value: u32);

    /// One 64-bit store, for table entries. Only BAR1 and BAR3 take it, never BAR0.
    fn write64(&mut self, bar: Bar, offset: u64, value: u64);

    /// Copies `data.len()` bytes of RAM at `gpa` into `data`. The GPU may be writing them at the same time.
    fn ram_read(&mut self, gpa: u64, data: &mut [u8]);

    /// Copies `data` into RAM at `gpa`.
    fn ram_write(&mut self, gpa: u64, data: &[u8]);

    /// One aligned 32-bit load from RAM that is neither merged nor reordered: polls of a semaphore.
    fn ram_read32(&mut self, gpa: u64) -> u32;

    /// Called in each turn of a polling loop: gives the rest of the machine time. May sleep until an interrupt.
    fn relax(&mut self);

    /// Nanoseconds on any clock that advances, for time-outs.
    fn now_ns(&mut self) -> u64;

    /// Reports one line, without the line break, to the program that runs this guest (see
    /// `guests::report` for its form).
    fn report(&mut self, line: &str);
}
