//! COM1: a 16550 whose output is cut into lines.
//!
//! A line that starts with `REPORT_PREFIX` is a *report* of the guest for the program that runs it; any other
//! line is console output. Lines go to a [`Reports`] on the vCPU's thread, and every byte to the operator's console
//! where there is one (`crate::console`). Everything is bounded: a line is cut at `LINE_BYTES_MAX`, and
//! [`ReportQueue`] keeps a fixed number and counts the lines that it had to drop.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vm_superio::serial::SerialEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

use crate::bus::{BusError, PioHandler};

/// First I/O port of COM1.
pub(crate) const COM1_PORT: u16 = 0x3f8;
/// I/O ports of a 16550.
pub(crate) const COM1_PORTS: u16 = 8;
/// Interrupt line of COM1.
pub(crate) const COM1_IRQ: u32 = 4;
/// First characters of a line that is a report. The prefix is not part of the report.
pub(crate) const REPORT_PREFIX: &str = "@vramd ";
/// Longest line kept, in bytes; the rest of a longer one is dropped up to its end.
pub(crate) const LINE_BYTES_MAX: usize = 1024;

/// Receiver of a guest's lines.
///
/// Called on a vCPU's thread while the guest stands still, so an implementation must not wait for anything.
pub trait Reports: Send + Sync {
    /// One report, without its prefix. Bytes that are not UTF-8 have been replaced.
    fn report(&self, line: &str);

    /// One line of console output.
    fn console(&self, line: &str);
}

/// Cuts bytes into lines and hands them on.
struct Lines {
    line: Vec<u8>,
    reports: Arc<dyn Reports>,
    console: Option<Box<dyn io::Write + Send>>,
}

impl Lines {
    fn push(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.deliver();
                self.line.clear();
            }
            b'\r' => {}
            _ if self.line.len() < LINE_BYTES_MAX => self.line.push(byte),
            _ => {}
        }
    }

    fn deliver(&self) {
        let line = String::from_utf8_lossy(&self.line);
        match line.strip_prefix(REPORT_PREFIX) {
            Some(report) => self.reports.report(report),
            None => self.reports.console(&line),
        }
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        bytes.iter().for_each(|byte| self.push(*byte));
        if let Some(console) = &mut self.console {
            // The guest's UART works on when the operator has gone.
            let _ = console.write_all(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Raises the interrupt line of the port by an eventfd that KVM listens to.
struct InterruptLine(EventFd);

impl Trigger for InterruptLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        match self.0.write(1) {
            // The counter is full of interrupts that were not taken: one more changes nothing.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }
}

/// Signals by an eventfd that the guest has read all input.
struct Room(EventFd);

impl SerialEvents for Room {
    fn buffer_read(&self) {}

    fn out_byte(&self) {}

    fn tx_lost_byte(&self) {}

    fn in_buffer_empty(&self) {
        // A full counter has the same meaning.
        let _ = self.0.write(1);
    }
}

type Uart = Serial<InterruptLine, Room, Lines>;

/// The serial port as a device on the I/O bus.
pub(crate) struct SerialPort {
    port: Mutex<Uart>,
    room: EventFd,
}

impl SerialPort {
    /// The port signals `interrupt`; `reports` gets its lines, `console` every byte.
    pub(crate) fn new(
        interrupt: EventFd,
        reports: Arc<dyn Reports>,
        console: Option<Box<dyn io::Write + Send>>,
    ) -> io::Result<SerialPort> {
        let lines = Lines {
            line: Vec::new(),
            reports,
            console,
        };
        let room = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let events = Room(room.try_clone()?);
        Ok(SerialPort {
            port: Mutex::new(Serial::with_events(InterruptLine(interrupt), events, lines)),
            room,
        })
    }

    /// Puts bytes into the port's input, as many as there is room for, and returns their number.
    pub(crate) fn receive(&self, bytes: &[u8]) -> usize {
        let mut port = self.lock();
        let fitting = &bytes[..bytes.len().min(port.fifo_capacity())];
        if fitting.is_empty() {
            return 0;
        }
        // In loop-back mode it takes none, and the guest will see none later either. Otherwise only the interrupt
        // can fail, after the bytes were taken.
        let _ = port.enqueue_raw_bytes(fitting);
        fitting.len()
    }

    /// Readable once the guest has read all input since [`SerialPort::take_room`].
    pub(crate) fn room(&self) -> &EventFd {
        &self.room
    }

    /// Clears the signal that there was room.
    pub(crate) fn take_room(&self) {
        // It is empty if it was cleared before.
        let _ = self.room.read();
    }

    fn lock(&self) -> MutexGuard<'_, Uart> {
        // Registers of a UART have no invariant that a panic in a `Reports` could break.
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PioHandler for SerialPort {
    fn pio_read(&self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        let mut port = self.lock();
        data.iter_mut().for_each(|byte| *byte = port.read(offset as u8));
        Ok(())
    }

    /// A string instruction arrives as one access with many bytes, each for the same register.
    fn pio_write(&self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        let mut port = self.lock();
        for byte in data {
            // The only failures are of the interrupt eventfd, and of loop-back input overflowing, as on a UART.
            let _ = port.write(offset as u8, *byte);
        }
        Ok(())
    }
}

/// A bounded mailbox for the lines of one guest.
pub struct ReportQueue {
    lines: Mutex<Queued>,
    arrived: Condvar,
    lines_max: usize,
}

#[derive(Default)]
struct Queued {
    reports: VecDeque<String>,
    console: VecDeque<String>,
    dropped: u64,
}

impl ReportQueue {
    /// Keeps up to `lines_max` unread reports, and as many of the newest console lines.
    pub fn new(lines_max: usize) -> ReportQueue {
        ReportQueue {
            lines: Mutex::default(),
            arrived: Condvar::new(),
            lines_max,
        }
    }

    /// The oldest unread report, waiting for one up to `wait`.
    pub fn next_report(&self, wait: Duration) -> Option<String> {
        let deadline = Instant::now() + wait;
        let mut lines = self.lock();
        while lines.reports.is_empty() {
            let left = deadline.checked_duration_since(Instant::now())?;
            lines = self
                .arrived
                .wait_timeout(lines, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        lines.reports.pop_front()
    }

    /// All console lines kept since the last call, oldest first.
    pub fn take_console(&self) -> Vec<String> {
        self.lock().console.drain(..).collect()
    }

    /// Number of lines that were lost because they were not read in time.
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reports for ReportQueue {
    /// A full queue refuses the new report: its contents are in order and without a hole.
    fn report(&self, line: &str) {
        let mut lines = self.lock();
        if lines.reports.len() < self.lines_max {
            lines.reports.push_back(line.to_owned());
        } else {
            lines.dropped += 1;
        }
        self.arrived.notify_one();
    }

    /// The newest lines are kept: they show how the guest ended.
    fn console(&self, line: &str) {
        let mut lines = self.lock();
        if lines.console.len() == self.lines_max {
            lines.console.pop_front();
            lines.dropped += 1;
        }
        lines.console.push_back(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> (SerialPort, Arc<ReportQueue>) {
        let queue = Arc::new(ReportQueue::new(4));
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        (SerialPort::new(interrupt, queue.clone(), None).unwrap(), queue)
    }

    #[test]
    fn line_with_prefix_is_a_report() {
        let (port, queue) = port();
        port.pio_write(0, b"@vramd boot0=0c0\r\n").unwrap();
        assert_eq!(queue.next_report(Duration::ZERO).as_deref(), Some("boot0=0c0"));
        assert!(queue.take_console().is_empty());
    }

    #[test]
    fn other_line_is_console_output() {
        let (port, queue) = port();
        port.pio_write(0, b"hello \xff\n").unwrap();
        assert_eq!(queue.take_console(), ["hello \u{fffd}"]);
        assert_eq!(queue.next_report(Duration::ZERO), None);
    }

    #[test]
    fn endless_line_is_cut() {
        let (port, queue) = port();
        port.pio_write(0, &vec![b'x'; 1 << 20]).unwrap();
        port.pio_write(0, b"\n@vramd next\n").unwrap();
        assert_eq!(queue.take_console(), ["x".repeat(LINE_BYTES_MAX)]);
        assert_eq!(queue.next_report(Duration::ZERO).as_deref(), Some("next"));
    }

    #[test]
    fn flood_of_reports_is_bounded_and_counted() {
        let (port, queue) = port();
        port.pio_write(0, &b"@vramd x\n".repeat(10)).unwrap();
        assert_eq!(queue.dropped(), 6);
    }

    #[test]
    fn output_with_transmit_interrupt_signals_the_line() {
        let queue: Arc<ReportQueue> = Arc::new(ReportQueue::new(1));
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let port = SerialPort::new(interrupt.try_clone().unwrap(), queue, None).unwrap();
        port.pio_write(1, &[2]).unwrap();
        port.pio_write(0, b"a").unwrap();
        assert!(interrupt.read().is_ok());
    }
}
