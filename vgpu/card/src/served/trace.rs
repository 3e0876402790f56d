//! `vramd gpu --trace FILE`: one line for each access and command, and a summary of the unusual ones at the end.
//!
//! ```text
//!   seconds     what   region  offset     bytes  value       name
//!   0.104233    read   BAR0    0x000000   4      0x0c0000a3  Boot0
//! ```
//!
//! Names come from `fermi_spec`. Registers without a name are listed at the end, with how often each was touched
//! and how often it was read in a row: a driver that polls an unknown register waits in vain.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

use fermi_spec::regs::{describe, unit_at};
use vfio_user_server::Region;

use super::traffic::Target;

/// Bytes kept back before they are written.
const BUFFER_BYTES: usize = 256 << 10;
/// Unknown registers that are listed; more are counted together.
const UNKNOWN_MAX: usize = 1024;

/// Accesses to one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Read,
    Write,
    /// A write that the client does not wait for.
    Post,
}

/// One access, as it is kept until the card's lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) deed: Deed,
    pub(super) region: Region,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// The first eight bytes.
    pub(super) value: u64,
}

impl Record {
    pub(super) fn new(deed: Deed, region: Region, offset: u64, data: &[u8]) -> Self {
        let mut value = [0; 8];
        let kept = data.len().min(8);
        value[..kept].copy_from_slice(&data[..kept]);
        Self {
            deed,
            region,
            offset,
            bytes: data.len(),
            value: u64::from_le_bytes(value),
        }
    }

    /// The register, if it is one.
    fn register(&self) -> Option<u32> {
        let is_register = Target::of(self.region, self.offset) == Target::Registers;
        u32::try_from(self.offset).ok().filter(|_| is_register)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deed = match self.deed {
            Deed::Read => "read",
            Deed::Write => "write",
            Deed::Post => "post",
        };
        let region = match self.region {
            Region::Bar0 => "BAR0",
            Region::Bar1 => "BAR1",
            Region::Bar3 => "BAR3",
            _ => "config",
        };
        let Self {
            offset, bytes, value, ..
        } = self;
        let digits = 2 + 2 * (*bytes).min(8);
        write!(
            f,
            "{deed:5} {region:6} {offset:#010x} {bytes:2} {value:#0digits$x}"
        )?;
        match u32::try_from(*offset) {
            Ok(offset) if self.region == Region::Bar0 => write!(f, " {}", describe(offset)),
            _ => Ok(()),
        }
    }
}

/// How often a register was touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Touches {
    reads: u64,
    writes: u64,
    /// Most reads without another access between them.
    longest_run: u64,
}

/// The unusual accesses of a trace.
#[derive(Debug, Default)]
struct Findings {
    unknown: BTreeMap<u32, Touches>,
    unknown_beyond: u64,
    last_read: Option<u32>,
    run: u64,
    longest: Option<(u32, u64)>,
}

impl Findings {
    fn note(&mut self, record: &Record) {
        let read = record.register().filter(|_| record.deed == Deed::Read);
        self.run = if read.is_some() && read == self.last_read {
            self.run + 1
        } else {
            1
        };
        self.last_read = read;
        if let Some(register) = read
            && self.longest.is_none_or(|(_, longest)| self.run > longest)
        {
            self.longest = Some((register, self.run));
        }
        let Some(register) = record.register().filter(|register| unit_at(*register).is_none()) else {
            return;
        };
        if self.unknown.len() >= UNKNOWN_MAX && !self.unknown.contains_key(&register) {
            self.unknown_beyond += 1;
            return;
        }
        let touches = self.unknown.entry(register).or_default();
        match record.deed {
            Deed::Read => {
                touches.reads += 1;
                touches.longest_run = touches.longest_run.max(self.run);
            }
            Deed::Write | Deed::Post => touches.writes += 1,
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((register, reads)) = self.longest {
            writeln!(
                f,
                "longest run of reads of one register: {reads} of {}",
                describe(register)
            )?;
        }
        let beyond = if self.unknown_beyond > 0 {
            format!(", and {} accesses to further ones", self.unknown_beyond)
        } else {
            String::new()
        };
        write!(f, "unknown registers: {}{beyond}", self.unknown.len())?;
        for (register, touches) in &self.unknown {
            let Touches {
                reads,
                writes,
                longest_run,
            } = touches;
            write!(
                f,
                "\nunknown {register:#08x}: {reads} reads ({longest_run} in a row), {writes} writes"
            )?;
        }
        Ok(())
    }
}

/// The trace file with its buffer and summary.
#[derive(Debug)]
pub(super) struct Trace {
    file: BufWriter<File>,
    line: String,
    start: Instant,
    findings: Findings,
    is_failed: bool,
}

impl Trace {
    /// A new file; one that exists is replaced.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?),
            line: String::new(),
            start: Instant::now(),
            findings: Findings::default(),
            is_failed: false,
        })
    }

    /// Accesses of one turn, in order.
    pub(super) fn accesses(&mut self, records: &[Record]) {
        for record in records {
            self.findings.note(record);
            self.write(record);
        }
    }

    /// Records any other request of a client.
    pub(super) fn command(&mut self, what: &dyn fmt::Display) {
        self.findings.last_read = None;
        self.write(what);
    }

    fn write(&mut self, what: &dyn fmt::Display) {
        if self.is_failed {
            return;
        }
        let time = self.start.elapsed();
        self.line.clear();
        // Writing to a string does not fail.
        let _ = writeln!(self.line, "{}.{:06} {what}", time.as_secs(), time.subsec_micros());
        self.check(|file, line| file.write_all(line.as_bytes()));
    }

    fn check(&mut self, write: impl FnOnce(&mut BufWriter<File>, &str) -> io::Result<()>) {
        if let Err(error) = write(&mut self.file, &self.line) {
            log::warn!("cannot write the trace, which ends here: {error}");
            self.is_failed = true;
        }
    }

    /// Writes the buffered lines and the summary, which is returned too.
    pub(super) fn finish(&mut self) -> String {
        let findings = self.findings.to_string();
        if !self.is_failed {
            self.line.clear();
            for line in findings.lines() {
                // The same holds here.
                let _ = writeln!(self.line, "# {line}");
            }
            self.check(|file, line| file.write_all(line.as_bytes()).and_then(|()| file.flush()));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(offset: u64) -> Record {
        Record::new(Deed::Read, Region::Bar0, offset, &[1, 0, 0, 0])
    }

    #[test]
    fn line_has_the_register_s_name() {
        let record = Record::new(Deed::Post, Region::Bar0, 0x2270, &[0x34, 0x12, 0, 0]);
        assert_eq!(
            record.to_string(),
            "post  BAR0   0x00002270  4 0x00001234 RunlistBase"
        );
    }

    #[test]
    fn window_s_access_has_no_name() {
        let record = Record::new(Deed::Read, Region::Bar1, 0x10, &[0; 8]);
        assert_eq!(
            record.to_string(),
            "read  BAR1   0x00000010  8 0x0000000000000000"
        );
    }

    #[test]
    fn longest_run_of_reads_is_found_and_a_write_ends_one() {
        let mut findings = Findings::default();
        for record in [
            read(0x400),
            read(0x10_0c80),
            read(0x10_0c80),
            Record::new(Deed::Write, Region::Bar0, 0x10_0c80, &[0; 4]),
            read(0x10_0c80),
        ] {
            findings.note(&record);
        }
        assert_eq!(findings.longest, Some((0x10_0c80, 2)));
    }

    #[test]
    fn register_outside_every_unit_is_unknown() {
        let mut findings = Findings::default();
        let unknown = (0..0x100_0000).step_by(0x1000).find(|at| unit_at(*at).is_none());
        let unknown = unknown.unwrap();
        findings.note(&read(unknown.into()));
        findings.note(&read(unknown.into()));
        findings.note(&read(0x2270));
        let touches = Touches {
            reads: 2,
            writes: 0,
            longest_run: 2,
        };
        assert_eq!(findings.unknown, BTreeMap::from([(unknown, touches)]));
    }

    #[test]
    fn list_of_unknown_registers_is_bounded() {
        let mut findings = Findings::default();
        let unknown = (0..0x200_0000).step_by(4).filter(|at| unit_at(*at).is_none());
        for register in unknown.take(UNKNOWN_MAX + 5) {
            findings.note(&read(register.into()));
        }
        assert_eq!(
            (findings.unknown.len(), findings.unknown_beyond),
            (UNKNOWN_MAX, 5)
        );
    }

    #[test]
    fn trace_of_a_full_disk_ends_quietly() {
        let mut trace = Trace::create(Path::new("/dev/full")).unwrap();
        trace.accesses(&vec![read(0); 10_000]);
        assert!(trace.is_failed);
        assert!(
            trace
                .finish()
                .starts_with("longest run of reads of one register: 10000 of Boot0")
        );
    }
}
