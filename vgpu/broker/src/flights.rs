//! The flight recorder of a broker, and its files: what happened last at one GPU, one JSON line each.
//!
//! ```text
//! {"vramd_flight":1,"gpu":"gpu0","reason":"…","unix_seconds":…,"now":…,"version":"…"}
//! {"state":{…}}
//! {"now":…,"event":…,"told":{…},"register":"…"}
//! ```
//!
//! The state is that of the core when the file was written, as a tree without its long lists ([`vgpu::inspect`]).
//! There is nothing in them of what guests load, store or keep in memory, see [`vgpu::flight_recorder`].

use std::any::Any;
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use vfio_user_server::threads::{self, ThreadKind};
use vgpu::Tick;
use vgpu::flight_recorder::{Flight, FlightRecorder, Line};
use vgpu::inspect::Node;

use crate::pci_card::chain;

/// Number of this format. 2: frames are placed together, and moves ask for memory.
const FORMAT: u32 = 2;
/// Files that one broker writes at the most.
const FILES_MAX: u32 = 64;

/// Where a broker writes them, and what they are called: `vramd-flight-GPU-SECONDS-PROCESS-NUMBER.jsonl`.
///
/// Clones count the files together.
#[derive(Clone, Debug)]
pub struct FlightFolder {
    folder: PathBuf,
    gpu: String,
    written: Arc<Mutex<Written>>,
}

/// What was written so far.
#[derive(Debug, Default)]
struct Written {
    files: u32,
    last: Option<PathBuf>,
}

/// The first line of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FlightHeader {
    vramd_flight: u32,
    /// Name of the GPU in the configuration.
    pub gpu: String,
    /// What went wrong, or who asked.
    pub reason: String,
    /// When it was written, by the host's clock.
    pub unix_seconds: u64,
    /// The same by the broker's clock, which the lines have.
    pub now: Tick,
    /// Version of the program.
    pub version: String,
}

/// What a flight file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlightFile {
    /// Whose it is, and why it was written.
    pub header: FlightHeader,
    /// The state of the core at the end of it, if that could be read.
    pub state: Option<Node>,
    /// The last things that happened, oldest first.
    pub flight: Flight,
}

/// Every line after the first.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum FileLine<'a> {
    State { state: Cow<'a, Node> },
    Happened(Cow<'a, Line>),
}

/// Why a file was not written or not read.
#[derive(Debug, thiserror::Error)]
pub enum FlightError {
    /// The file, or its folder.
    #[error("cannot write {path}")]
    Write {
        /// The file that it is about.
        path: PathBuf,
        /// The error of the host.
        #[source]
        source: std::io::Error,
    },
    /// The broker has written as many as it may.
    #[error("{FILES_MAX} flight files were written already")]
    Enough,
    /// The broker was started without a folder for them.
    #[error("this broker has no folder for flight files")]
    NoFolder,
    /// The file cannot be opened or read.
    #[error("cannot read {path}")]
    Read {
        /// The file that it is about.
        path: PathBuf,
        /// The error of the host.
        #[source]
        source: std::io::Error,
    },
    /// A line is not of the format.
    #[error("line {line} of {path} is malformed")]
    Malformed {
        /// The file that it is about.
        path: PathBuf,
        /// Its number in the file, from 1.
        line: u64,
        /// What does not fit the format.
        #[source]
        source: serde_json::Error,
    },
    /// Another version wrote it.
    #[error("{path} has format {found}, this program reads format {FORMAT}")]
    Format {
        /// The file that it is about.
        path: PathBuf,
        /// The format that it names.
        found: u32,
    },
}

impl FlightFolder {
    /// Nothing is made before there is something to write.
    pub fn new(folder: impl Into<PathBuf>, gpu: impl Into<String>) -> Self {
        Self {
            folder: folder.into(),
            gpu: gpu.into(),
            written: Arc::default(),
        }
    }

    /// The file that was written last.
    pub fn last(&self) -> Option<PathBuf> {
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .last
            .clone()
    }

    /// Writes a file that nobody but this user may read, and names it.
    pub(crate) fn write(
        &self,
        reason: &str,
        now: Tick,
        flight: &Flight,
        state: Option<&Node>,
    ) -> Result<PathBuf, FlightError> {
        // A panic elsewhere leaves a count that is right.
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let number = written.files;
        if number >= FILES_MAX {
            return Err(FlightError::Enough);
        }
        written.files += 1;
        let unix_seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let header = FlightHeader {
            vramd_flight: FORMAT,
            gpu: self.gpu.clone(),
            reason: reason.to_owned(),
            unix_seconds,
            now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let name = format!(
            "vramd-flight-{}-{unix_seconds}-{}-{number}.jsonl",
            self.gpu,
            std::process::id()
        );
        let path = self.folder.join(name);
        match write_lines(&path, &header, flight, state) {
            Ok(()) => {
                written.last = Some(path.clone());
                Ok(path)
            }
            Err(source) => Err(FlightError::Write { path, source }),
        }
    }
}

fn write_lines(
    path: &Path,
    header: &FlightHeader,
    flight: &Flight,
    state: Option<&Node>,
) -> std::io::Result<()> {
    // A link that somebody else laid in a folder that all may write is not followed.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let mut out = BufWriter::new(file);
    let mut line = |text: Result<String, serde_json::Error>| writeln!(out, "{}", text?);
    line(serde_json::to_string(header))?;
    let state = state.map(|state| FileLine::State {
        state: Cow::Borrowed(state),
    });
    let lines = flight
        .lines
        .iter()
        .map(|line| FileLine::Happened(Cow::Borrowed(line)));
    state
        .into_iter()
        .chain(lines)
        .try_for_each(|entry| line(serde_json::to_string(&entry)))?;
    out.flush()
}

impl FlightFile {
    /// Reads a file. A last line that is cut is left out: the program may have ended while it was written.
    pub fn read(path: &Path) -> Result<Self, FlightError> {
        let at = || path.to_path_buf();
        let io = |source| FlightError::Read { path: at(), source };
        let mut lines = BufReader::new(File::open(path).map_err(io)?).lines();
        let first = lines.next().transpose().map_err(io)?.unwrap_or_default();
        let header: FlightHeader = serde_json::from_str(&first).map_err(|source| FlightError::Malformed {
            path: at(),
            line: 1,
            source,
        })?;
        if header.vramd_flight != FORMAT {
            return Err(FlightError::Format {
                path: at(),
                found: header.vramd_flight,
            });
        }
        let mut flight = Flight::default();
        let mut state = None;
        for (number, text) in (2..).zip(lines) {
            match serde_json::from_str::<FileLine<'_>>(&text.map_err(io)?) {
                Ok(FileLine::State { state: node }) => state = Some(node.into_owned()),
                Ok(FileLine::Happened(line)) => flight.lines.push(line.into_owned()),
                Err(source) if source.is_eof() => break,
                Err(source) => {
                    return Err(FlightError::Malformed {
                        path: at(),
                        line: number,
                        source,
                    });
                }
            }
        }
        Ok(Self {
            header,
            state,
            flight,
        })
    }
}

/// A recorder, and where it goes when something went wrong.
#[derive(Debug)]
pub(crate) struct Flights {
    pub(crate) recorder: FlightRecorder,
    writer: Option<Writer>,
}

/// The thread that writes files. It is there from the start, so that no thread that serves a VM has to open files or start threads.
#[derive(Debug)]
struct Writer {
    /// Files to write; `None` at the end.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// A file to write.
struct Order {
    now: Tick,
    reason: String,
    flight: Flight,
    state: Option<Node>,
    /// Told when the file is written, or is lost.
    done: Option<SyncSender<()>>,
}

impl Writer {
    fn start(folder: FlightFolder) -> std::io::Result<Self> {
        // More files than that are not written.
        let (orders, ordered) = sync_channel::<Order>(FILES_MAX as usize);
        let work = move || {
            for order in ordered {
                let written = folder.write(&order.reason, order.now, &order.flight, order.state.as_ref());
                tell(&order.reason, written);
                // Whoever waited may have gone.
                let _ = order.done.map(|done| done.send(()));
            }
        };
        Ok(Self {
            orders: Some(orders),
            thread: Some(threads::spawn(
                ThreadKind::FlightWriter,
                "flight".to_owned(),
                work,
            )?),
        })
    }
}

impl Drop for Writer {
    /// A file that was ordered is whole.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that writes flight files panicked");
        }
    }
}

impl Flights {
    /// Starts the thread that writes to `folder`, if there is one.
    pub(crate) fn new(folder: Option<FlightFolder>) -> std::io::Result<Self> {
        Ok(Self {
            recorder: FlightRecorder::default(),
            writer: folder.map(Writer::start).transpose()?,
        })
    }

    /// The file to write, and where to order it; nothing where no files are written.
    fn order(
        &self,
        now: Tick,
        reason: &str,
        state: Option<Node>,
        done: Option<SyncSender<()>>,
    ) -> Option<(&SyncSender<Order>, Order)> {
        let orders = self.writer.as_ref()?.orders.as_ref()?;
        let order = Order {
            now,
            reason: reason.to_owned(),
            flight: self.recorder.flight(),
            state,
            done,
        };
        Some((orders, order))
    }

    /// Writes what happened before something went wrong with one VM. Nobody waits for the file.
    pub(crate) fn write_beside(&mut self, now: Tick, reason: &str, state: Option<Node>) {
        self.recorder.remark(reason);
        let Some((orders, order)) = self.order(now, reason, state, None) else {
            return;
        };
        if orders.try_send(order).is_err() {
            log::error!("{reason}: what happened last is lost: too many files wait, or nobody writes them");
        }
    }

    /// Writes what happened before something went wrong. Whoever holds the broker's lock waits for the file, so this is
    /// for a broker that does nothing more.
    pub(crate) fn write(&mut self, now: Tick, reason: &str, state: Option<Node>) {
        self.recorder.remark(reason);
        let (done, is_done) = sync_channel(1);
        let Some((orders, order)) = self.order(now, reason, state, Some(done)) else {
            return;
        };
        if orders.send(order).is_err() || is_done.recv().is_err() {
            log::error!("{reason}: what happened last is lost: the thread that writes it has ended");
        }
    }
}

fn tell(reason: &str, written: Result<PathBuf, FlightError>) {
    match written {
        Ok(path) => log::error!("{reason}: what happened last is in {}", path.display()),
        Err(error) => log::error!("{reason}: what happened last is lost: {}", chain(&error)),
    }
}

/// The message of a panic, if it has one.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use vgpu::Event;

    fn flight() -> Flight {
        let mut recorder = FlightRecorder::default();
        recorder.event(Tick(5), &Event::Wake);
        recorder.remark("the card is lost");
        recorder.flight()
    }

    fn state() -> Node {
        vgpu::Manager::new(vgpu::GpuConfig::default())
            .inspect(Tick(7), "")
            .unwrap()
    }

    #[test]
    fn file_reads_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let flights = FlightFolder::new(folder.path(), "gpu0");
        let path = flights
            .write("a test", Tick(7), &flight(), Some(&state()))
            .unwrap();
        let file = FlightFile::read(&path).unwrap();
        assert_eq!((file.flight, file.state), (flight(), Some(state())));
        assert_eq!((&*file.header.reason, file.header.now), ("a test", Tick(7)));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(flights.write("again", Tick(8), &flight(), None).unwrap(), path);
    }

    #[test]
    fn last_line_that_is_cut_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = FlightFolder::new(folder.path(), "gpu0")
            .write("a test", Tick(7), &flight(), None)
            .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();
        let file = FlightFile::read(&path).unwrap();
        assert_eq!(file.flight.lines[..], flight().lines[..1]);
    }

    #[test]
    fn number_of_files_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let flights = FlightFolder::new(folder.path(), "gpu0");
        for _ in 0..FILES_MAX {
            flights
                .write("a test", Tick(7), &Flight::default(), None)
                .unwrap();
        }
        let error = flights
            .write("a test", Tick(7), &Flight::default(), None)
            .unwrap_err();
        assert_eq!(error.to_string(), "64 flight files were written already");
    }

    #[test]
    fn file_that_is_no_flight_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        std::fs::write(&path, "{\"vramd_recording\":1}\n").unwrap();
        let error = FlightFile::read(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("line 1 of ") && error.ends_with("is malformed"),
            "{error}"
        );
    }
}
