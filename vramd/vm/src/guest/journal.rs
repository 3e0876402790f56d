//! A guest's reports and console lines, with a bound: a hostile guest may print anything without end.

use std::sync::{Mutex, MutexGuard, PoisonError};

use guests::report::ReportLine;
use serde::Serialize;

use super::INPUTS_MAX;
use vmm::serial::Reports;

/// Lines of console output that are kept: the last ones show how the guest ended.
const CONSOLE_LINES: usize = 8;
/// Longest sentence kept.
const TEXT_CHARS_MAX: usize = 200;

/// Progress of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// `hash`, `load`, `move`, `verify` or `digest`; `upload`, `reference`, `run` or `check` of a kernel.
    pub phase: String,
    /// Steps that are done.
    pub done: u64,
    /// Steps of the phase.
    pub total: u64,
}

impl Progress {
    /// Percentage of this phase, 0 to 100.
    pub fn percent(&self) -> u64 {
        let done = u128::from(self.done.min(self.total)) * 100;
        done.checked_div(u128::from(self.total))
            .map_or(0, |percent| percent as u64)
    }
}

/// An input as the guest read it back from VRAM.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Digest {
    /// 64 hexadecimal digits, if the guest is honest.
    pub sha256: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// A guest's report about its kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct KernelResult {
    /// Name of the kernel.
    pub name: String,
    /// Bytes of its buffers.
    pub footprint_bytes: u64,
    /// How often its plan was run and compared.
    pub rounds: u32,
    /// Launches on the GPU.
    pub grids: u64,
    /// GPU time of the launches, including the times that its channel was suspended.
    pub gpu_ns: u64,
    /// Bytes that were compared with the reference.
    pub checked_bytes: u64,
}

/// All that a guest has reported so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Progress of the guest.
    pub progress: Progress,
    /// Inputs read back, in their order.
    pub digests: Vec<Digest>,
    /// Slots of VRAM that held wrong bytes, or words of a kernel's buffers.
    pub mismatches: u64,
    /// The first of the wrong words: its buffer, and the values.
    pub wrong: Option<String>,
    /// Result of a guest that runs a kernel, at its end.
    pub kernel: Option<KernelResult>,
    /// It reported a result, and success.
    pub is_ok: bool,
    /// Copies done by the GPU.
    pub copies: u64,
    /// Bytes they moved.
    pub bytes_copied: u64,
    /// Why its workload ended early.
    pub error: Option<String>,
    /// The last lines that are no reports, and those that say what was copied for a kernel.
    pub console: Vec<String>,
}

impl Told {
    fn end_kernel(&mut self, line: ReportLine) {
        if let ReportLine::Kernel {
            name,
            ok,
            footprint_bytes,
            rounds,
            grids,
            gpu_ns,
            checked_bytes,
            copies,
            bytes_copied,
            mismatches,
            ..
        } = line
        {
            self.is_ok = ok;
            self.copies = copies;
            self.bytes_copied = bytes_copied;
            self.mismatches = self.mismatches.max(mismatches);
            self.kernel = Some(KernelResult {
                name: cut(&name),
                footprint_bytes,
                rounds,
                grids,
                gpu_ns,
                checked_bytes,
            });
        }
    }
}

/// Receiver of a guest's lines.
#[derive(Debug, Default)]
pub struct Journal {
    told: Mutex<Told>,
}

impl Journal {
    /// All reports so far.
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // Every change is a single assignment or push.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cut(text: &str) -> String {
    let plain = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    plain.take(TEXT_CHARS_MAX).collect()
}

/// Digits of a digest.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Reports for Journal {
    fn report(&self, line: &str) {
        let report = match serde_json::from_str::<ReportLine>(line) {
            Ok(ReportLine::Coherence { .. }) | Err(_) => return self.console(line),
            Ok(report) => report,
        };
        let mut told = self.lock();
        match report {
            ReportLine::Progress { done, total, phase } => {
                told.progress = Progress {
                    phase: cut(&phase),
                    done,
                    total,
                };
            }
            ReportLine::Digest { sha256, bytes, .. } => {
                if told.digests.len() <= INPUTS_MAX {
                    told.digests.push(Digest {
                        sha256: cut(&sha256),
                        bytes,
                    });
                }
            }
            ReportLine::Mismatch { .. } => told.mismatches = told.mismatches.saturating_add(1),
            ReportLine::Result {
                ok,
                copies,
                bytes_copied,
                mismatches,
                ..
            } => {
                told.is_ok = ok;
                told.copies = copies;
                told.bytes_copied = bytes_copied;
                told.mismatches = told.mismatches.max(mismatches.into());
            }
            ReportLine::Wrong {
                buffer,
                word,
                want,
                got,
            } => {
                told.mismatches = told.mismatches.saturating_add(1);
                told.wrong.get_or_insert_with(|| {
                    cut(&format!(
                        "word {word} of {buffer} is {got:#010x} instead of {want:#010x}"
                    ))
                });
            }
            kernel @ ReportLine::Kernel { .. } => told.end_kernel(kernel),
            ReportLine::Error(sentence) => told.error = Some(cut(&sentence)),
            // Shown as it is.
            ReportLine::Coherence { .. } => {}
        }
    }

    fn console(&self, line: &str) {
        let mut told = self.lock();
        if told.console.len() == CONSOLE_LINES {
            told.console.remove(0);
        }
        told.console.push(cut(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_kept_by_kind() {
        let journal = Journal::default();
        journal.report(r#"{"progress":{"done":3,"total":12,"phase":"move"}}"#);
        journal.report(r#"{"digest":{"input":"x","sha256":"ab","bytes":5}}"#);
        journal.report(r#"{"error":"no luck"}"#);
        let told = journal.told();
        assert_eq!(
            (told.progress.phase.as_str(), told.progress.percent()),
            ("move", 25)
        );
        assert_eq!(
            told.digests,
            [Digest {
                sha256: "ab".to_owned(),
                bytes: 5
            }]
        );
        assert_eq!(told.error.as_deref(), Some("no luck"));
    }

    #[test]
    fn end_of_a_kernel_and_its_first_wrong_word_are_kept() {
        let journal = Journal::default();
        for word in [7, 8] {
            journal.report(&format!(
                r#"{{"wrong":{{"buffer":"cost","word":{word},"want":1,"got":2}}}}"#
            ));
        }
        journal.report(
            r#"{"kernel":{"name":"bfs","ok":false,"vram_bytes":9,"footprint_bytes":8,"rounds":2,"grids":30,
            "gpu_ns":40,"checked_bytes":16,"copies":3,"bytes_copied":24,"mismatches":2}}"#,
        );
        let told = journal.told();
        assert_eq!((told.mismatches, told.is_ok), (2, false));
        assert_eq!(
            told.wrong.as_deref(),
            Some("word 7 of cost is 0x00000002 instead of 0x00000001")
        );
        assert_eq!(
            told.kernel.map(|kernel| (kernel.grids, kernel.gpu_ns)),
            Some((30, 40))
        );
    }

    #[test]
    fn flood_is_bounded() {
        let journal = Journal::default();
        (0..1000).for_each(|_| journal.report(r#"{"digest":{"input":"x","sha256":"ab","bytes":5}}"#));
        (0..1000).for_each(|_| journal.report("not json"));
        journal.report(&format!(r#"{{"error":"{}"}}"#, "x".repeat(10_000)));
        let told = journal.told();
        assert_eq!(
            (told.digests.len(), told.console.len()),
            (INPUTS_MAX + 1, CONSOLE_LINES)
        );
        assert_eq!(told.error.map(|error| error.len()), Some(TEXT_CHARS_MAX));
    }

    #[test]
    fn progress_of_nothing_is_no_division() {
        assert_eq!(
            Progress {
                total: 0,
                done: 9,
                phase: String::new()
            }
            .percent(),
            0
        );
    }
}
