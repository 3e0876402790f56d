//! The operator's end of COM1: the guest's output goes to this process' standard output, keys go to the guest.
//!
//! ```text
//! vCPU ──byte──► Outlet ──bounded buffer──► thread "console" ──► stdout
//! stdin ──► thread "vm/console" (pump) ──► Keys: Ctrl-A x? ──► COM1's FIFO, as it has room
//! ```
//!
//! A vCPU never waits for the reader of the output: when `BUFFER_BYTES_MAX` wait to be written, further bytes are
//! lost and counted. Keys wait, for the FIFO has room for 64.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

use vmm_sys_util::eventfd::EventFd;

use crate::sandbox::{Role, Sandbox};
use crate::serial::SerialPort;
use crate::vm::wait_readable;

/// Most bytes of output that wait to be written.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Longest wait, at the end, for the rest to be read.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Keys read at once.
const KEYS_MAX: usize = 64;
/// Ctrl-A, which announces a command to the VMM, and the command that ends the VM.
const ESCAPE: u8 = 1;
const QUIT: u8 = b'x';

/// The streams that COM1 of a VM is joined to.
pub struct Console {
    /// Gets every byte that the guest writes, on the vCPU's thread: it must not wait.
    pub output: Box<dyn Write + Send>,
    /// Source of keys, until its end.
    pub input: OwnedFd,
    /// Whether Ctrl-A x among them ends the VM.
    pub has_escape: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("input", &self.input)
            .field("has_escape", &self.has_escape)
            .finish_non_exhaustive()
    }
}

/// A terminal that hands on keys as they are pressed, Ctrl-C among them. Dropping it restores the old mode.
#[derive(Debug)]
pub struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Switches `terminal`; `None` if it is not a terminal.
    pub fn switch(terminal: BorrowedFd<'_>) -> io::Result<Option<RawTerminal>> {
        if !isatty(terminal) {
            return Ok(None);
        }
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(Some(RawTerminal {
            terminal: terminal.try_clone_to_owned()?,
            before,
        }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may be gone; then its mode no longer matters.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

#[derive(Default)]
struct Waiting {
    bytes: VecDeque<u8>,
    dropped: u64,
    is_closed: bool,
    is_written: bool,
}

#[derive(Default)]
struct Buffer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Body of the thread.
    fn drain_to(&self, target: &mut dyn Write) {
        loop {
            let waiting = self.lock();
            let wait = |waiting: &mut Waiting| waiting.bytes.is_empty() && !waiting.is_closed;
            let mut waiting = self
                .changed
                .wait_while(waiting, wait)
                .unwrap_or_else(PoisonError::into_inner);
            let bytes = Vec::from(std::mem::take(&mut waiting.bytes));
            let is_last = waiting.is_closed;
            drop(waiting);
            // A reader that does not want the rest gets none of it.
            let is_lost = target.write_all(&bytes).and_then(|()| target.flush()).is_err();
            if is_last || is_lost {
                break;
            }
        }
        self.lock().is_written = true;
        self.changed.notify_all();
    }
}

/// Output of a VM on its way to a stream.
pub struct ConsoleStream {
    buffer: Arc<Buffer>,
    thread: Option<JoinHandle<()>>,
}

/// The end to which a VM writes for a [`ConsoleStream`].
pub struct Outlet(Arc<Buffer>);

impl ConsoleStream {
    /// Starts the thread that writes to `target`, confined by `sandbox`; where that fails it panics and writes nothing.
    pub fn start(mut target: Box<dyn Write + Send>, sandbox: &Sandbox) -> io::Result<ConsoleStream> {
        let (buffer, sandbox) = (Arc::new(Buffer::default()), sandbox.clone());
        let drained = buffer.clone();
        let body = move || {
            let confined = sandbox.confine(Role::Screen);
            confined.expect("what main's thread could install, this one can");
            drained.drain_to(target.as_mut());
        };
        let thread = thread::Builder::new().name("console".to_owned()).spawn(body)?;
        Ok(ConsoleStream {
            buffer,
            thread: Some(thread),
        })
    }

    /// A new outlet to the same stream, for [`Console::output`].
    pub fn outlet(&self) -> Outlet {
        Outlet(self.buffer.clone())
    }

    /// Waits, within a bound, until everything is written. Returns the number of bytes lost because they were
    /// not read in time.
    pub fn finish(mut self) -> u64 {
        self.close();
        self.buffer.lock().dropped
    }

    fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let mut waiting = self.buffer.lock();
        waiting.is_closed = true;
        self.buffer.changed.notify_all();
        let (waiting, outcome) = self
            .buffer
            .changed
            .wait_timeout_while(waiting, DRAIN_LIMIT, |waiting| !waiting.is_written)
            .unwrap_or_else(PoisonError::into_inner);
        drop(waiting);
        if !outcome.timed_out() {
            // A panic in a stream's `write` counts as its failure.
            let _ = thread.join();
        }
    }
}

impl Drop for ConsoleStream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.lock();
        let room = BUFFER_BYTES_MAX - waiting.bytes.len();
        let (kept, lost) = bytes.split_at(bytes.len().min(room));
        waiting.dropped += lost.len() as u64;
        if !waiting.is_written {
            waiting.bytes.extend(kept);
        }
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Separates commands to the VMM from keys for the guest.
#[derive(Default)]
struct Keys {
    is_escaped: bool,
}

impl Keys {
    /// Appends the keys for the guest; returns whether the VM is to end.
    fn take(&mut self, keys: &[u8], for_guest: &mut VecDeque<u8>) -> bool {
        for key in keys {
            match (std::mem::take(&mut self.is_escaped), *key) {
                (true, QUIT) => return true,
                (false, ESCAPE) => self.is_escaped = true,
                (_, key) => for_guest.push_back(key),
            }
        }
        false
    }
}

/// Body of the thread that takes keys to COM1, until `stop` is readable or the input ends. Returns whether the
/// operator ended the VM.
pub(crate) fn pump(input: &OwnedFd, has_escape: bool, port: &SerialPort, stop: &EventFd) -> io::Result<bool> {
    let mut keys = Keys::default();
    let mut pending = VecDeque::new();
    loop {
        if !pending.is_empty() {
            let [has_room, is_stopped] = wait_readable([port.room(), stop], None);
            if is_stopped {
                return Ok(false);
            }
            if has_room {
                port.take_room();
            }
        } else {
            let [is_readable, is_stopped] = wait_readable([input, stop], None);
            if is_stopped {
                return Ok(false);
            }
            if !is_readable {
                continue;
            }
            let mut bytes = [0; KEYS_MAX];
            let count = match rustix::io::read(input, &mut bytes) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            if !has_escape {
                pending.extend(&bytes[..count]);
            } else if keys.take(&bytes[..count], &mut pending) {
                return Ok(true);
            }
        }
        let taken = port.receive(pending.make_contiguous());
        pending.drain(..taken);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bus::PioHandler as _;
    use crate::serial::ReportQueue;

    fn keys(typed: &[u8]) -> (Vec<u8>, bool) {
        let mut for_guest = VecDeque::new();
        let is_quit = Keys::default().take(typed, &mut for_guest);
        (for_guest.into(), is_quit)
    }

    #[test]
    fn escape_and_x_ends_the_vm() {
        assert_eq!(keys(b"ls\x01x"), (b"ls".to_vec(), true));
    }

    #[test]
    fn escape_twice_is_one_for_the_guest_and_other_keys_go_through() {
        assert_eq!(keys(b"x\x01\x01\x03\x01b"), (b"x\x01\x03b".to_vec(), false));
    }

    #[test]
    fn output_arrives_in_order_and_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let stream = ConsoleStream::start(Box::new(ours), &Sandbox::none()).unwrap();
        let mut outlet = stream.outlet();
        for byte in 0..=255u8 {
            outlet.write_all(&[byte]).unwrap();
        }
        assert_eq!(stream.finish(), 0);
        drop(outlet);
        let mut read = Vec::new();
        theirs.read_to_end(&mut read).unwrap();
        assert_eq!(read, (0..=255).collect::<Vec<u8>>());
    }

    /// Fails at once, as a pipe whose reader has gone.
    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_nobody_takes_is_bounded() {
        let stream = ConsoleStream::start(Box::new(Broken), &Sandbox::none()).unwrap();
        let mut outlet = stream.outlet();
        for _ in 0..3 {
            outlet.write_all(&vec![0; BUFFER_BYTES_MAX]).unwrap();
        }
        assert!(stream.buffer.lock().bytes.len() <= BUFFER_BYTES_MAX);
        stream.finish();
    }

    #[test]
    fn keys_reach_the_port_as_it_has_room() {
        let (interrupt, stop) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let port = Arc::new(SerialPort::new(interrupt, Arc::new(ReportQueue::new(1)), None).unwrap());
        let (mut operator, input) = UnixStream::pair().unwrap();
        let typed: Vec<u8> = (0..200).collect();
        operator.write_all(&typed).unwrap();
        let pumped = port.clone();
        let pump = thread::spawn(move || pump(&input.into(), false, &pumped, &stop).unwrap());
        let mut read = Vec::new();
        while read.len() < typed.len() {
            let mut byte = [0];
            port.pio_read(5, &mut byte).unwrap();
            if byte[0] & 1 != 0 {
                port.pio_read(0, &mut byte).unwrap();
                read.push(byte[0]);
            }
        }
        drop(operator);
        assert!(!pump.join().unwrap());
        assert_eq!(read, typed);
    }
}
