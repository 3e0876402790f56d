//! Repeats a recording on a fresh core and finds the first difference.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use vgpu::{Action, Actions, Event, GpuConfig, HostMemory, Place, Tick, VmId};

use crate::port::Core;
use crate::record::{FORMAT, Header, ReadCache, ReadLine, Stored};

/// Every line after the first.
#[derive(Deserialize)]
struct Line {
    now: Tick,
    event: Event,
    reads: VecDeque<ReadLine>,
    stored: Stored,
    actions: Vec<Recorded>,
}

/// An action as the file has it. Notices, and the reasons of denials, stay as they were written: another version may
/// word them otherwise.
#[derive(Deserialize)]
#[serde(untagged)]
enum Recorded {
    Notice {
        #[serde(rename = "Notice")]
        notice: Value,
    },
    Denied {
        #[serde(rename = "Denied")]
        denied: Denied,
    },
    QuotaRefused {
        #[serde(rename = "QuotaRefused")]
        refused: Denied,
    },
    Action(Action),
}

/// An action `Denied` or `QuotaRefused` as the file has it.
#[derive(Deserialize, PartialEq, Debug)]
struct Denied {
    vm: VmId,
    reason: Value,
}

/// The actions of a recording that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compared {
    /// All actions, notices included.
    #[default]
    Everything,
    /// All but notices and the reasons of denials, which have no effect: for recordings that another version made.
    AllButNotices,
}

/// The first difference between a core and the recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// It read another place, or more than recorded.
    #[error("read {index}: recorded {recorded}, now {bytes} bytes at {at:?}")]
    Read {
        /// Number within the event, from 0.
        index: usize,
        /// Text in the file.
        recorded: String,
        /// Place of this run.
        at: Place,
        /// Length of this run.
        bytes: usize,
    },
    /// It read less than recorded.
    #[error("{count} reads of the recording did not happen")]
    ReadsLeft {
        /// Number of reads that did not happen.
        count: usize,
    },
    /// It stored other bytes, or at other places.
    #[error("what was stored differs: recorded {recorded} stores, now {replayed}, or other bytes or places")]
    Stored {
        /// Number of stores in the recording.
        recorded: u64,
        /// Number of stores in this run.
        replayed: u64,
    },
    /// It took another action.
    #[error("action {index}: recorded {recorded:?}, now {replayed:?}")]
    Action {
        /// Number within the event, from 0.
        index: usize,
        /// As in the file; `None` if it ended before.
        recorded: Option<String>,
        /// Action of this run; `None` if there was no more.
        replayed: Option<String>,
    },
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be opened or read.
    #[error("cannot read the recording at line {line}")]
    Io {
        /// Number of the line, from 1.
        line: u64,
        /// Error of the host.
        #[source]
        source: std::io::Error,
    },
    /// A line is not of the format.
    #[error("line {line} of the recording is malformed")]
    Malformed {
        /// Number of the line, from 1.
        line: u64,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// The bytes of a read cannot be decoded.
    #[error("line {line} of the recording has a read whose data cannot be decoded")]
    MalformedRead {
        /// Number of the line, from 1.
        line: u64,
    },
    /// Another version wrote it.
    #[error("the recording has format {found}, this program reads format {FORMAT}")]
    Format {
        /// Text in the file.
        found: u32,
    },
    /// The core acted differently. Its state is then another one, so later events would not be comparable.
    #[error("line {line}: event {event}: {difference}")]
    Differs {
        /// Number of the line, from 1.
        line: u64,
        /// The event, as text.
        event: String,
        /// The first difference.
        difference: Difference,
    },
}

/// Counts of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplaySummary {
    /// Number of events applied.
    pub events: u64,
    /// Number of actions compared.
    pub actions: u64,
    /// The clock at the last event.
    pub now: Tick,
    /// The last line was incomplete (the broker was killed) and left out.
    pub is_cut: bool,
}

/// A recording, opened.
pub struct Replay {
    lines: Box<dyn BufRead>,
    line: u64,
    config: GpuConfig,
    compared: Compared,
    last_line: u64,
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl Replay {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let file = File::open(path).map_err(|source| ReplayError::Io { line: 0, source })?;
        Self::new(Box::new(BufReader::new(file)))
    }

    /// Reads the header.
    pub fn new(lines: Box<dyn BufRead>) -> Result<Self, ReplayError> {
        let mut replay = Self {
            lines,
            line: 0,
            config: GpuConfig::default(),
            compared: Compared::default(),
            last_line: u64::MAX,
        };
        let (text, _) = replay.next_line()?.unwrap_or_default();
        let header: Header = replay.parse(&text)?;
        if header.vramd_recording != FORMAT {
            return Err(ReplayError::Format {
                found: header.vramd_recording,
            });
        }
        replay.config = header.gpu;
        Ok(replay)
    }

    /// Sets what is compared.
    pub fn comparing(self, compared: Compared) -> Self {
        Self { compared, ..self }
    }

    /// Ends the replay after a line of the file, counted from 1.
    pub fn until(self, last_line: u64) -> Self {
        Self { last_line, ..self }
    }

    /// What the recorded core was made with; the fresh one must be too.
    pub fn config(&self) -> &GpuConfig {
        &self.config
    }

    /// Feeds every event to `core`, which is fresh, and compares.
    pub fn run(mut self, core: &mut dyn Core) -> Result<ReplaySummary, ReplayError> {
        let mut summary = ReplaySummary::default();
        let mut cache = ReadCache::default();
        let mut actions = Actions::default();
        while self.line < self.last_line
            && let Some((text, is_complete)) = self.next_line()?
        {
            if !is_complete {
                summary.is_cut = true;
                break;
            }
            let line: Line = self.parse(&text)?;
            summary.events += 1;
            summary.now = line.now;
            summary.actions += line.actions.len() as u64;
            self.replay_line(core, line, &mut cache, &mut actions)?;
        }
        Ok(summary)
    }

    fn replay_line(
        &self,
        core: &mut dyn Core,
        line: Line,
        cache: &mut ReadCache,
        actions: &mut Actions,
    ) -> Result<(), ReplayError> {
        let event = line.event.clone();
        let mut memory = RecordedMemory {
            reads: line.reads,
            cache,
            done: 0,
            refused: line.stored.refused.iter().copied().collect(),
            stored: Stored::default(),
            difference: None,
            is_malformed: false,
        };
        core.apply(line.now, line.event, &mut memory, actions);
        if memory.is_malformed {
            return Err(ReplayError::MalformedRead { line: self.line });
        }
        let replayed: Vec<Action> = actions.drain().collect();
        let difference = memory
            .difference
            .take()
            .or_else(|| self.compare_actions(&line.actions, &replayed))
            .or_else(|| {
                let count = memory.reads.len();
                (count > 0).then_some(Difference::ReadsLeft { count })
            })
            .or_else(|| {
                let (recorded, replayed) = (line.stored.count, memory.stored.count);
                (memory.stored != line.stored).then_some(Difference::Stored { recorded, replayed })
            });
        match difference {
            None => Ok(()),
            Some(difference) => Err(ReplayError::Differs {
                line: self.line,
                event: format!("{event:?}"),
                difference,
            }),
        }
    }

    fn compare_actions(&self, recorded: &[Recorded], replayed: &[Action]) -> Option<Difference> {
        let all = self.compared == Compared::Everything;
        let recorded: Vec<&Recorded> = recorded
            .iter()
            .filter(|action| all || !matches!(action, Recorded::Notice { .. }))
            .collect();
        let replayed: Vec<&Action> = replayed
            .iter()
            .filter(|action| all || !matches!(action, Action::Notice(_)))
            .collect();
        let length = recorded.len().max(replayed.len());
        let index = (0..length).find(|&index| match (recorded.get(index), replayed.get(index)) {
            (Some(recorded), Some(replayed)) => !recorded.is(replayed, all),
            _ => true,
        })?;
        Some(Difference::Action {
            index,
            recorded: recorded.get(index).map(|action| action.text()),
            replayed: replayed.get(index).map(|action| format!("{action:?}")),
        })
    }

    /// The next line, and whether it ends as a line does.
    fn next_line(&mut self) -> Result<Option<(String, bool)>, ReplayError> {
        let mut text = String::new();
        self.line += 1;
        let line = self.line;
        match self.lines.read_line(&mut text) {
            Ok(0) => Ok(None),
            Ok(_) => {
                let is_complete = text.ends_with('\n');
                Ok(Some((text, is_complete)))
            }
            Err(source) => Err(ReplayError::Io { line, source }),
        }
    }

    fn parse<'a, T: Deserialize<'a>>(&self, text: &'a str) -> Result<T, ReplayError> {
        serde_json::from_str(text).map_err(|source| ReplayError::Malformed {
            line: self.line,
            source,
        })
    }
}

impl Recorded {
    /// Whether it is the same action; with its words, where those count.
    fn is(&self, action: &Action, words: bool) -> bool {
        match (self, action) {
            (Self::Notice { notice }, Action::Notice(now)) => {
                serde_json::to_value(now).is_ok_and(|now| now == *notice)
            }
            (Self::Denied { denied }, Action::Denied { vm, reason })
            | (Self::QuotaRefused { refused: denied }, Action::QuotaRefused { vm, reason }) => {
                let same = || serde_json::to_value(reason).is_ok_and(|now| now == denied.reason);
                denied.vm == *vm && (!words || same())
            }
            (Self::Action(recorded), now) => recorded == now,
            (Self::Notice { .. } | Self::Denied { .. } | Self::QuotaRefused { .. }, _) => false,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Notice { notice } => format!("Notice({notice})"),
            Self::Denied { denied } => format!("{denied:?}"),
            Self::QuotaRefused { refused } => format!("QuotaRefused: {refused:?}"),
            Self::Action(action) => format!("{action:?}"),
        }
    }
}

/// Answers reads from the file.
struct RecordedMemory<'a> {
    reads: VecDeque<ReadLine>,
    cache: &'a mut ReadCache,
    done: usize,
    /// Numbers of the stores that found no memory when recorded.
    refused: BTreeSet<u64>,
    stored: Stored,
    difference: Option<Difference>,
    is_malformed: bool,
}

impl HostMemory for RecordedMemory<'_> {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        data.fill(0xff);
        let index = self.done;
        self.done += 1;
        let recorded = self.reads.pop_front();
        match recorded {
            Some(read) if read.at == at && read.bytes == data.len() => {
                let Some(text) = read.data else { return false };
                match self.cache.decode(at, read.bytes, &text) {
                    Ok(bytes) => data.copy_from_slice(&bytes),
                    Err(_) => self.is_malformed = true,
                }
                !self.is_malformed
            }
            other => {
                let recorded = other.map_or("nothing".to_owned(), |read| {
                    format!("{} bytes at {:?}", read.bytes, read.at)
                });
                let bytes = data.len();
                self.difference.get_or_insert(Difference::Read {
                    index,
                    recorded,
                    at,
                    bytes,
                });
                false
            }
        }
    }

    fn write(&mut self, at: Place, data: &[u8]) -> bool {
        let is_there = !self.refused.contains(&self.stored.count);
        if !is_there {
            self.stored.refused.push(self.stored.count);
        }
        self.stored.add(at, data);
        is_there
    }
}
