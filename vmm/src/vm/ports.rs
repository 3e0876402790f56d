//! I/O ports of this VMM's own, for guests that know it. `guests/bare/README.md` has the same table.
//!
//! | port | access | meaning |
//! |---|---|---|
//! | [`EXIT`] | out, 1 to 4 bytes | ends the VM; the value is its status, 0 for success |
//! | [`WAIT`] | out, 4 bytes | sleeps up to the value's number of µs, until the vGPU's interrupt |
//!
//! The wait ends early only while the VMM holds the vGPU's interrupt (`crate::pci`): the guest has left MSI off or
//! addressed it outside the local APICs. Interrupts that came before the wait count, and one wait takes them all.

use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::readable::wait_readable;
use crate::bus::{BusError, PioHandler};
use crate::link::VgpuLink;

/// Ends the VM. QEMU's isa-debug-exit has the same port by default.
pub const EXIT: u16 = 0xf4;
/// Sleeps until the vGPU's interrupt, or for the given time.
pub const WAIT: u16 = 0xf8;
/// Longest wait; a longer one is cut to it.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(100);

/// The value that an `out` of 1 to 4 bytes wrote. A string instruction's first bytes count.
pub(crate) fn value(data: &[u8]) -> u32 {
    data.iter()
        .take(size_of::<u32>())
        .rev()
        .fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The device behind the wait port, which a guest without a machine may use too.
pub struct WaitPort {
    interrupt: EventFd,
    stop: EventFd,
    link: Arc<dyn VgpuLink>,
}

impl WaitPort {
    /// `interrupt` ends a wait and is consumed by it; `stop` ends all waits for good. The vGPU behind `link` hears of each wait.
    pub fn new(interrupt: EventFd, stop: EventFd, link: Arc<dyn VgpuLink>) -> WaitPort {
        WaitPort {
            interrupt,
            stop,
            link,
        }
    }

    /// Sleeps until an interrupt or the stop, at most for `limit`, which is cut to `WAIT_MAX`.
    pub fn wait(&self, limit: Duration) {
        self.link.guest_rests();
        // The reason of its end does not matter: a guest must expect a wait to end early.
        wait_readable([&self.interrupt, &self.stop], Some(limit.min(WAIT_MAX)));
        // It is empty if the time was up or another vCPU took it.
        let _ = self.interrupt.read();
    }
}

impl PioHandler for WaitPort {
    fn pio_read(&self, _offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        data.fill(0xff);
        Ok(())
    }

    fn pio_write(&self, _offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.wait(Duration::from_micros(value(data).into()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkError;
    use std::os::fd::BorrowedFd;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::Instant;

    /// Counts how often the guest rests.
    #[derive(Default)]
    struct Rests(AtomicU32);

    impl VgpuLink for Rests {
        fn region_size(&self, _region: u32) -> u64 {
            0
        }

        fn region_read(&self, _region: u32, _offset: u64, _data: &mut [u8]) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn region_write(&self, _region: u32, _offset: u64, _data: &[u8]) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn dma_map(
            &self,
            _gpa: u64,
            _bytes: u64,
            _file: BorrowedFd<'_>,
            _offset: u64,
        ) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn dma_unmap(&self, _gpa: u64, _bytes: u64) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn set_msi(&self, _eventfd: &EventFd) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn guest_rests(&self) {
            self.0.fetch_add(1, SeqCst);
        }

        fn reset(&self) -> Result<(), LinkError> {
            Err(LinkError::Down)
        }

        fn close(&self) {}
    }

    fn port() -> (WaitPort, EventFd, EventFd) {
        let [interrupt, stop] = [(); 2].map(|()| EventFd::new(libc::EFD_NONBLOCK).unwrap());
        let clones = (interrupt.try_clone().unwrap(), stop.try_clone().unwrap());
        let port = WaitPort::new(clones.0, clones.1, Arc::new(Rests::default()));
        (port, interrupt, stop)
    }

    #[test]
    fn link_hears_of_each_wait_before_it_begins() {
        let rests = Arc::new(Rests::default());
        let [interrupt, stop] = [(); 2].map(|()| EventFd::new(libc::EFD_NONBLOCK).unwrap());
        stop.write(1).unwrap();
        let port = WaitPort::new(interrupt, stop, rests.clone());
        (0..3).for_each(|_| port.wait(WAIT_MAX));
        assert_eq!(rests.0.load(SeqCst), 3);
    }

    #[test]
    fn interrupt_before_the_wait_ends_it_once() {
        let (port, interrupt, _stop) = port();
        interrupt.write(3).unwrap();
        port.pio_write(0, &u32::MAX.to_le_bytes()).unwrap();
        assert!(interrupt.read().is_err());
    }

    #[test]
    fn wait_without_interrupt_ends_at_its_limit() {
        let (port, _interrupt, _stop) = port();
        let start = Instant::now();
        port.pio_write(0, &2000u32.to_le_bytes()).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(1));
    }

    #[test]
    fn stop_ends_every_wait() {
        let (port, _interrupt, stop) = port();
        stop.write(1).unwrap();
        let start = Instant::now();
        (0..100).for_each(|_| port.wait(WAIT_MAX));
        assert!(start.elapsed() < 100 * WAIT_MAX);
    }

    #[test]
    fn value_is_little_endian_of_any_width() {
        assert_eq!(
            [value(&[]), value(&[7]), value(&[1, 2]), value(&[1, 2, 3, 4, 5])],
            [0, 7, 0x201, 0x0403_0201]
        );
    }
}
