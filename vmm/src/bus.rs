//! Which device answers an access: I/O ports and guest-physical addresses that are not RAM.
//!
//! A lookup copies the handler's reference and releases the bus before the handler runs, so a handler may take its
//! time, and may itself move devices on the bus. An access without a handler reads all ones and writes nothing.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use crate::link::LinkError;

/// Why a device could not finish an access. Each error ends the VM: a bus has no way to report it to its guest.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The vGPU is gone.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// KVM refused memory in the place of a BAR.
    #[error("cannot map the vGPU's memory into the guest")]
    Memory(#[source] kvm_ioctls::Error),
    /// The host refused to protect memory of the vGPU's.
    #[error("cannot make the guest's doorbells trap")]
    Protect(#[source] std::io::Error),
    /// KVM refused an interrupt route.
    #[error("cannot route the vGPU's interrupt")]
    Route(#[source] kvm_ioctls::Error),
}

/// A device in I/O port space. `offset` counts from its first port.
pub(crate) trait PioHandler: Send + Sync {
    /// One `in`: 1, 2 or 4 bytes, or a multiple for a string instruction.
    fn pio_read(&self, offset: u16, data: &mut [u8]) -> Result<(), BusError>;

    /// One `out` of 1, 2 or 4 bytes, or a multiple for a string instruction.
    fn pio_write(&self, offset: u16, data: &[u8]) -> Result<(), BusError>;
}

/// A device in memory space. `offset` counts from the start of its range.
pub(crate) trait MmioHandler: Send + Sync {
    /// One load of 1 to 8 bytes, all inside the range.
    fn mmio_read(&self, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// One store of 1 to 8 bytes, all inside the range.
    fn mmio_write(&self, offset: u64, data: &[u8]) -> Result<(), BusError>;
}

/// I/O port space. Fixed once the VM is built.
#[derive(Default)]
pub(crate) struct PioBus {
    devices: Vec<(Range<u16>, Arc<dyn PioHandler>)>,
}

impl PioBus {
    /// Puts `handler` at `ports`, which must be free.
    pub(crate) fn insert(&mut self, ports: Range<u16>, handler: Arc<dyn PioHandler>) {
        let is_free = self
            .devices
            .iter()
            .all(|(taken, _)| taken.end <= ports.start || ports.end <= taken.start);
        assert!(is_free, "the ports {ports:x?} are taken");
        self.devices.push((ports, handler));
    }

    fn at(&self, port: u16) -> Option<(u16, &dyn PioHandler)> {
        let (ports, handler) = self.devices.iter().find(|(ports, _)| ports.contains(&port))?;
        Some((port - ports.start, handler.as_ref()))
    }

    pub(crate) fn read(&self, port: u16, data: &mut [u8]) -> Result<(), BusError> {
        match self.at(port) {
            Some((offset, handler)) => handler.pio_read(offset, data),
            None => {
                data.fill(0xff);
                Ok(())
            }
        }
    }

    pub(crate) fn write(&self, port: u16, data: &[u8]) -> Result<(), BusError> {
        self.at(port)
            .map_or(Ok(()), |(offset, handler)| handler.pio_write(offset, data))
    }
}

/// Memory space outside RAM. Most devices stay where they are; BARs move while the VM runs.
#[derive(Default)]
pub(crate) struct MmioBus {
    /// Windows of devices that stay. They come first, so that no BAR covers one.
    fixed: RwLock<Vec<Window>>,
    windows: RwLock<Vec<Window>>,
}

/// The range of a device in memory space.
#[derive(Clone)]
pub(crate) struct Window {
    /// Range of guest-physical addresses.
    pub(crate) gpas: Range<u64>,
    /// Device that answers accesses.
    pub(crate) handler: Arc<dyn MmioHandler>,
}

impl MmioBus {
    /// Adds a device that stays where it is, in `crate::pci::DEVICE_WINDOW`.
    pub(crate) fn insert(&self, window: Window) {
        let mut fixed = self.fixed.write().unwrap_or_else(PoisonError::into_inner);
        let is_free = fixed
            .iter()
            .all(|taken| taken.gpas.end <= window.gpas.start || window.gpas.end <= taken.gpas.start);
        assert!(is_free, "the addresses {:x?} are taken", window.gpas);
        fixed.push(window);
    }

    /// Replaces all windows that move. Where two overlap, the first one answers.
    pub(crate) fn place(&self, windows: Vec<Window>) {
        *self.windows.write().unwrap_or_else(PoisonError::into_inner) = windows;
    }

    /// The windows as they are.
    #[cfg(test)]
    pub(crate) fn placed(&self) -> Vec<Range<u64>> {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.iter().map(|window| window.gpas.clone()).collect()
    }

    fn at(&self, gpa: u64, bytes: usize) -> Option<(u64, Arc<dyn MmioHandler>)> {
        let last = gpa.checked_add(bytes as u64)?.checked_sub(1)?;
        [&self.fixed, &self.windows].into_iter().find_map(|windows| {
            let windows = windows.read().unwrap_or_else(PoisonError::into_inner);
            let window = windows
                .iter()
                .find(|window| window.gpas.contains(&gpa) && window.gpas.contains(&last))?;
            Some((gpa - window.gpas.start, window.handler.clone()))
        })
    }

    pub(crate) fn read(&self, gpa: u64, data: &mut [u8]) -> Result<(), BusError> {
        match self.at(gpa, data.len()) {
            Some((offset, handler)) => handler.mmio_read(offset, data),
            None => {
                data.fill(0xff);
                Ok(())
            }
        }
    }

    pub(crate) fn write(&self, gpa: u64, data: &[u8]) -> Result<(), BusError> {
        self.at(gpa, data.len())
            .map_or(Ok(()), |(offset, handler)| handler.mmio_write(offset, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Cell(AtomicU64);

    impl MmioHandler for Cell {
        fn mmio_read(&self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
            data.fill(offset as u8);
            Ok(())
        }

        fn mmio_write(&self, offset: u64, _data: &[u8]) -> Result<(), BusError> {
            self.0.store(offset, Ordering::Relaxed);
            Ok(())
        }
    }

    fn bus_with(gpas: Range<u64>) -> (Arc<MmioBus>, Arc<Cell>) {
        let (bus, cell) = (
            Arc::new(MmioBus::default()),
            Arc::new(Cell(AtomicU64::new(u64::MAX))),
        );
        bus.place(vec![Window {
            gpas,
            handler: cell.clone(),
        }]);
        (bus, cell)
    }

    #[test]
    fn access_in_a_window_reaches_its_device() {
        let (bus, cell) = bus_with(0x1000..0x2000);
        bus.write(0x1ffc, &[0; 4]).unwrap();
        assert_eq!(cell.0.load(Ordering::Relaxed), 0xffc);
    }

    #[test]
    fn access_across_the_end_of_a_window_reaches_nobody() {
        let (bus, cell) = bus_with(0x1000..0x2000);
        let mut data = [0; 8];
        bus.read(0x1ffc, &mut data).unwrap();
        bus.write(0x1ffc, &data).unwrap();
        assert_eq!((data, cell.0.load(Ordering::Relaxed)), ([0xff; 8], u64::MAX));
    }

    #[test]
    fn access_at_the_end_of_the_address_space_reads_all_ones() {
        let (bus, _) = bus_with(0x1000..0x2000);
        let mut data = [0; 8];
        bus.read(u64::MAX - 3, &mut data).unwrap();
        assert_eq!(data, [0xff; 8]);
    }

    #[test]
    fn window_that_moves_onto_a_fixed_device_does_not_cover_it() {
        let (bus, fixed) = bus_with(0x1000..0x2000);
        bus.insert(Window {
            gpas: 0x1800..0x1900,
            handler: fixed.clone(),
        });
        bus.write(0x1804, &[0; 4]).unwrap();
        assert_eq!(fixed.0.load(Ordering::Relaxed), 4);
    }

    struct Mover(Weak<MmioBus>);

    impl MmioHandler for Mover {
        fn mmio_read(&self, _: u64, _: &mut [u8]) -> Result<(), BusError> {
            Ok(())
        }

        fn mmio_write(&self, _: u64, _: &[u8]) -> Result<(), BusError> {
            self.0.upgrade().unwrap().place(Vec::new());
            Ok(())
        }
    }

    #[test]
    fn handler_may_move_windows() {
        let bus = Arc::new(MmioBus::default());
        let handler = Arc::new(Mover(Arc::downgrade(&bus)));
        bus.place(vec![Window { gpas: 0..8, handler }]);
        bus.write(0, &[0]).unwrap();
        assert!(bus.placed().is_empty());
    }

    struct Port;

    impl PioHandler for Port {
        fn pio_read(&self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
            data.fill(offset as u8);
            Ok(())
        }

        fn pio_write(&self, _: u16, _: &[u8]) -> Result<(), BusError> {
            Ok(())
        }
    }

    #[test]
    fn port_without_device_reads_all_ones() {
        let mut bus = PioBus::default();
        bus.insert(8..16, Arc::new(Port));
        let (mut taken, mut free) = ([0; 2], [0; 2]);
        bus.read(9, &mut taken).unwrap();
        bus.read(16, &mut free).unwrap();
        assert_eq!((taken, free), ([1; 2], [0xff; 2]));
    }
}
