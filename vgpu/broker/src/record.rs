//! Recordings: every event with the core's reads and actions, one JSON line each, so that a run can be
//! repeated from its file.
//!
//! ```text
//! {"vramd_recording":1,"gpu":{…}}
//! {"now":…,"event":{…},"reads":[{"at":{…},"bytes":8,"data":"…"},…],"stored":{…},"actions":[…]}
//! ```
//!
//! `reads` has the core's reads of [`HostMemory`] in order, `stored` a digest of its writes, and the numbers of
//! those for which there was no memory. The bytes of a read are hexadecimal; a unit of 8 bytes that repeats is
//! written once with a count (`0000000000000000*512`). `=` stands for the bytes that the same place had when it was
//! last read. No data at all stands for memory that did not exist.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use vgpu::{Actions, Event, GpuConfig, HostMemory, Place, Tick};

use crate::port::Core;

/// Number of this format. 2: frames are placed together, and moves ask for memory.
pub(crate) const FORMAT: u32 = 2;
/// Bytes that the memory of earlier reads may hold before it starts anew.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// Shorter reads are written in full and not remembered.
const CACHED_BYTES_MIN: usize = 64;
/// Bytes that are compared for repetition.
const UNIT: usize = 8;
/// Bytes gathered before the file is written.
const BUFFER_BYTES: usize = 1 << 20;

/// The first line of the file.
#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) vramd_recording: u32,
    pub(crate) gpu: GpuConfig,
}

/// One read of the core.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ReadLine {
    pub(crate) at: Place,
    pub(crate) bytes: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
}

/// Digest of the core's stores during one event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// Number of stores.
    pub(crate) count: u64,
    /// FNV-1a over places and bytes.
    pub(crate) digest: u64,
    /// Numbers of the stores, from 0, that found no memory and were reported to the core.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused: Vec<u64>,
}

impl Default for Stored {
    fn default() -> Self {
        Self {
            count: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            refused: Vec::new(),
        }
    }
}

impl Stored {
    pub(crate) fn add(&mut self, at: Place, data: &[u8]) {
        self.count += 1;
        let (kind, vm, offset) = key(at);
        self.fold(&[kind]);
        self.fold(&vm.to_le_bytes());
        self.fold(&offset.to_le_bytes());
        self.fold(&(data.len() as u64).to_le_bytes());
        self.fold(data);
    }

    fn fold(&mut self, data: &[u8]) {
        for byte in data {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn key(at: Place) -> (u8, u16, u64) {
    match at {
        Place::Ram { vm, gpa } => (0, vm.0, gpa.0),
        Place::Image { vm, at } => (1, vm.0, at.0),
        Place::Own { offset } => (2, 0, offset),
        Place::Bar1 { vm, offset } => (3, vm.0, offset),
    }
}

/// Bytes of each place when it was last read. Recorder and replay update it by the same rules.
#[derive(Debug, Default)]
pub(crate) struct ReadCache {
    held: BTreeMap<(u8, u16, u64), Vec<u8>>,
    bytes: usize,
}

/// Why the data of a read cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed data of a read")]
pub(crate) struct MalformedData;

impl ReadCache {
    fn remember(&mut self, at: Place, data: &[u8]) {
        if data.len() < CACHED_BYTES_MIN {
            return;
        }
        if self.bytes + data.len() > CACHE_BYTES_MAX {
            self.held.clear();
            self.bytes = 0;
        }
        self.bytes += data.len();
        let before = self.held.insert(key(at), data.to_vec());
        self.bytes -= before.map_or(0, |data| data.len());
    }

    pub(crate) fn encode(&mut self, at: Place, data: &[u8]) -> String {
        if self.held.get(&key(at)).is_some_and(|held| held == data) {
            return "=".to_owned();
        }
        self.remember(at, data);
        encode_runs(data)
    }

    pub(crate) fn decode(&mut self, at: Place, bytes: usize, text: &str) -> Result<Vec<u8>, MalformedData> {
        let data = if text == "=" {
            self.held.get(&key(at)).ok_or(MalformedData)?.clone()
        } else {
            let data = decode_runs(text, bytes)?;
            self.remember(at, &data);
            data
        };
        if data.len() == bytes {
            Ok(data)
        } else {
            Err(MalformedData)
        }
    }
}

fn push_hex(text: &mut String, data: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in data {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

fn encode_runs(data: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = data;
    // Whether the last token may be continued by more digits.
    let mut is_open = false;
    while !rest.is_empty() {
        let unit = &rest[..UNIT.min(rest.len())];
        let repeats = rest.chunks(UNIT).take_while(|next| *next == unit).count();
        if !text.is_empty() && (repeats > 2 || !is_open) {
            text.push(' ');
        }
        push_hex(&mut text, unit);
        let taken = if repeats > 2 { repeats } else { 1 };
        is_open = taken == 1;
        if !is_open {
            text.push_str(&format!("*{taken}"));
        }
        rest = &rest[(taken * unit.len()).min(rest.len())..];
    }
    text
}

fn decode_runs(text: &str, bytes_max: usize) -> Result<Vec<u8>, MalformedData> {
    let mut data = Vec::new();
    for token in text.split(' ').filter(|token| !token.is_empty()) {
        let (digits, count) = match token.split_once('*') {
            Some((digits, count)) => (digits, count.parse::<usize>().map_err(|_| MalformedData)?),
            None => (token, 1),
        };
        let unit = decode_hex(digits)?;
        let run = unit.len().checked_mul(count).ok_or(MalformedData)?;
        if run > bytes_max - data.len() {
            return Err(MalformedData);
        }
        data.extend(unit.iter().cycle().take(run));
    }
    Ok(data)
}

fn decode_hex(digits: &str) -> Result<Vec<u8>, MalformedData> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .map(|digit| digit as u8)
            .ok_or(MalformedData)
    };
    if !digits.len().is_multiple_of(2) {
        return Err(MalformedData);
    }
    digits
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

/// Why a recording cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be created.
    #[error("cannot create recording {path}")]
    Create {
        /// Path of the file.
        path: String,
        /// Error of the host.
        #[source]
        source: std::io::Error,
    },
}

/// Writes a recording. If the file can no longer be written (a full disk), the recording ends with one error in the
/// log, and the broker goes on.
pub struct Recorder {
    /// The writer; `None` once the recording has ended.
    out: Option<Box<dyn Write + Send>>,
    name: String,
    cache: ReadCache,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Creates or replaces `path`. `gpu` is the configuration of the core.
    pub fn create(path: &Path, gpu: &GpuConfig) -> Result<Self, RecordError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|source| RecordError::Create {
            path: name.clone(),
            source,
        })?;
        Ok(Self::new(
            Box::new(BufWriter::with_capacity(BUFFER_BYTES, file)),
            name,
            gpu,
        ))
    }

    /// Records to any writer; `name` is for the log.
    pub fn new(out: Box<dyn Write + Send>, name: String, gpu: &GpuConfig) -> Self {
        let mut recorder = Self {
            out: Some(out),
            name,
            cache: ReadCache::default(),
        };
        let header = Header {
            vramd_recording: FORMAT,
            gpu: gpu.clone(),
        };
        let header = json(&header);
        recorder.write(format_args!("{header}\n"));
        recorder
    }

    /// Applies an event to the core and writes the line. `actions` is empty before.
    pub fn apply(
        &mut self,
        core: &mut dyn Core,
        now: Tick,
        event: Event,
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        if self.out.is_none() {
            return core.apply(now, event, memory, actions);
        }
        let text = json(&event);
        let mut watched = WatchedMemory {
            inner: memory,
            cache: &mut self.cache,
            reads: Vec::new(),
            stored: Stored::default(),
        };
        core.apply(now, event, &mut watched, actions);
        let (reads, stored) = (json(&watched.reads), json(&watched.stored));
        let actions = json(actions.as_slice());
        let now = now.0;
        self.write(format_args!(
            "{{\"now\":{now},\"event\":{text},\"reads\":{reads},\"stored\":{stored},\"actions\":{actions}}}\n"
        ));
    }

    /// Writes the buffered lines to the file.
    pub(crate) fn flush(&mut self) {
        if let Some(Err(error)) = self.out.as_mut().map(|out| out.flush()) {
            self.give_up(&error);
        }
    }

    fn write(&mut self, line: std::fmt::Arguments<'_>) {
        if let Some(Err(error)) = self.out.as_mut().map(|out| out.write_fmt(line)) {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &std::io::Error) {
        log::error!("recording {} ends here: {error}", self.name);
        self.out = None;
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("events, actions and reads have no map with keys that are no strings")
}

/// Passes accesses on and records them.
struct WatchedMemory<'a> {
    inner: &'a mut dyn HostMemory,
    cache: &'a mut ReadCache,
    reads: Vec<ReadLine>,
    stored: Stored,
}

impl HostMemory for WatchedMemory<'_> {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        let is_there = self.inner.read(at, data);
        let text = is_there.then(|| self.cache.encode(at, data));
        self.reads.push(ReadLine {
            at,
            bytes: data.len(),
            data: text,
        });
        is_there
    }

    fn write(&mut self, at: Place, data: &[u8]) -> bool {
        let is_there = self.inner.write(at, data);
        if !is_there {
            self.stored.refused.push(self.stored.count);
        }
        self.stored.add(at, data);
        is_there
    }
}

#[cfg(test)]
mod tests;
