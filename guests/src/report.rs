//! The lines that a guest reports: one JSON object each, without the line break.
//!
//! ```text
//! {"progress":{"done":N,"total":N,"phase":"load"}}                     phases: hash load move verify digest;
//!                                                                      of a kernel: upload reference run check
//! {"digest":{"input":"name","sha256":"64 hex digits","bytes":N}}       of the input as read back from VRAM
//! {"mismatch":{"slot":N,"piece":N,"by":"m2mf","want":"hex","got":"hex"}}  one slot whose bytes are wrong
//! {"result":{"ok":true,"vram_bytes":N,"slot_bytes":N,"slots":N,"copies":N,"bytes_copied":N,"mismatches":0}}
//! {"wrong":{"buffer":"name","word":N,"want":N,"got":N}}                   the first words of a buffer that are wrong
//! {"kernel":{"name":"bfs","ok":true,"vram_bytes":N,"footprint_bytes":N,"rounds":N,"grids":N,"gpu_ns":N,
//!            "checked_bytes":N,"copies":N,"bytes_copied":N,"mismatches":0}}
//! {"coherence":{"scheme":"amm","to_gpu":N,"to_gpu_bytes":N,"to_cpu":N,"to_cpu_bytes":N,"eager_bytes":N,
//!               "non_stale_bytes":N,"private_bytes":N,"checks":N,"breaches":N}}   before the line of such a kernel
//! {"error":"one sentence"}                                             the workload ended early
//! ```
//!
//! Names and sentences are cut to what fits `LINE_BYTES`; a reader must expect fields that it does not know. With
//! the feature `serde`, `ReportLine` is the reader's side.

use crate::coherence::{Class, Direction};
use crate::{KernelSummary, ManagedSummary};
use core::fmt::{self, Write};

/// Longest line in bytes.
pub(crate) const LINE_BYTES: usize = 512;
/// Most bytes of a name or sentence in a line, escapes included.
const TEXT_BYTES: usize = 256;

/// The content of a line.
#[derive(Clone, Copy)]
pub enum Report<'a> {
    /// `done` of `total` steps of `phase`.
    Progress {
        /// Steps that are done.
        done: u64,
        /// Steps of the phase.
        total: u64,
        /// `hash`, `load`, `move`, `verify` or `digest`; `upload`, `reference`, `run` or `check` of a kernel.
        phase: &'a str,
    },
    /// SHA-256 of a whole input as it was read back from VRAM.
    Digest {
        /// Name of the input.
        input: &'a str,
        /// SHA-256 of the bytes read back.
        sha256: &'a [u8; 32],
        /// Length of the input.
        bytes: u64,
    },
    /// A slot does not hold its piece.
    Mismatch {
        /// Number of the slot.
        slot: u32,
        /// Piece that it should hold, counted over all inputs.
        piece: u32,
        /// How it was read: `m2mf`, `copy0`, `copy1`, `bar1` or `pramin`.
        by: &'a str,
        /// Digest of the piece as loaded; of the sampled words for a window.
        want: &'a [u8; 32],
        /// Digest of the bytes that the slot holds.
        got: &'a [u8; 32],
    },
    /// The end of a workload.
    Result {
        /// Every byte was right.
        ok: bool,
        /// VRAM that the GPU shows.
        vram_bytes: u64,
        /// Bytes of a slot.
        slot_bytes: u64,
        /// Slots that held data.
        slots: u32,
        /// Copies done by the GPU.
        copies: u64,
        /// Bytes they moved.
        bytes_copied: u64,
        /// Slots that were wrong.
        mismatches: u32,
    },
    /// A word of a kernel's buffer is not what it should be.
    Wrong {
        /// Name of the buffer.
        buffer: &'a str,
        /// Index of the word.
        word: u64,
        /// Value that it should have.
        want: u32,
        /// Value that it has.
        got: u32,
    },
    /// The end of a kernel.
    Kernel {
        /// Name of the kernel.
        name: &'a str,
        /// Counts and times of the run.
        summary: &'a KernelSummary,
    },
    /// What was copied for a kernel whose buffers have two copies.
    Coherence(&'a ManagedSummary),
    /// The workload ended early.
    Error(&'a dyn fmt::Display),
}

/// A report as text in a buffer of fixed size.
pub struct Line {
    bytes: [u8; LINE_BYTES],
    used: usize,
}

impl Line {
    /// Formats `report`, at most `LINE_BYTES` bytes.
    pub fn new(report: &Report<'_>) -> Self {
        let mut line = Self {
            bytes: [0; LINE_BYTES],
            used: 0,
        };
        let written = line.write_report(report);
        // Text is cut to TEXT_BYTES and the longest line of numbers is shorter than the rest.
        debug_assert!(written.is_ok(), "a report longer than {LINE_BYTES} bytes");
        line
    }

    /// The text of the line.
    pub fn as_str(&self) -> &str {
        // Only whole `str`s and ASCII are appended.
        str::from_utf8(&self.bytes[..self.used]).unwrap_or_default()
    }

    fn write_report(&mut self, report: &Report<'_>) -> fmt::Result {
        match *report {
            Report::Progress { done, total, phase } => write!(
                self,
                r#"{{"progress":{{"done":{done},"total":{total},"phase":"{phase}"}}}}"#
            ),
            Report::Digest { input, sha256, bytes } => write!(
                self,
                r#"{{"digest":{{"input":"{}","sha256":"{}","bytes":{bytes}}}}}"#,
                Escaped(&input),
                Hex(sha256)
            ),
            Report::Mismatch {
                slot,
                piece,
                by,
                want,
                got,
            } => write!(
                self,
                r#"{{"mismatch":{{"slot":{slot},"piece":{piece},"by":"{by}","want":"{}","got":"{}"}}}}"#,
                Hex(want),
                Hex(got)
            ),
            Report::Result {
                ok,
                vram_bytes,
                slot_bytes,
                slots,
                copies,
                bytes_copied,
                mismatches,
            } => write!(
                self,
                concat!(
                    r#"{{"result":{{"ok":{},"vram_bytes":{},"slot_bytes":{},"slots":{},"#,
                    r#""copies":{},"bytes_copied":{},"mismatches":{}}}}}"#
                ),
                ok, vram_bytes, slot_bytes, slots, copies, bytes_copied, mismatches
            ),
            Report::Wrong {
                buffer,
                word,
                want,
                got,
            } => write!(
                self,
                r#"{{"wrong":{{"buffer":"{buffer}","word":{word},"want":{want},"got":{got}}}}}"#
            ),
            Report::Kernel { name, summary } => self.write_kernel(name, summary),
            Report::Coherence(summary) => self.write_coherence(summary),
            Report::Error(error) => write!(self, r#"{{"error":"{}"}}"#, Escaped(error)),
        }
    }
}

impl Line {
    fn write_kernel(&mut self, name: &str, summary: &KernelSummary) -> fmt::Result {
        write!(
            self,
            r#"{{"kernel":{{"name":"{name}","ok":{},"vram_bytes":{},"footprint_bytes":{},"rounds":{},"#,
            summary.mismatches == 0,
            summary.vram_bytes,
            summary.footprint_bytes,
            summary.rounds,
        )?;
        write!(
            self,
            r#""grids":{},"gpu_ns":{},"checked_bytes":{},"copies":{},"bytes_copied":{},"mismatches":{}}}}}"#,
            summary.grids,
            summary.gpu_ns,
            summary.checked_bytes,
            summary.copies,
            summary.bytes_copied,
            summary.mismatches,
        )
    }

    fn write_coherence(&mut self, summary: &ManagedSummary) -> fmt::Result {
        let classes = &summary.classes;
        let [in_, out] = Direction::ALL.map(|direction| classes.direction(direction));
        let bytes = |class| classes.class(class).bytes;
        write!(
            self,
            r#"{{"coherence":{{"scheme":"{}","to_gpu":{},"to_gpu_bytes":{},"to_cpu":{},"to_cpu_bytes":{},"#,
            summary.scheme.name(),
            in_.count,
            in_.bytes,
            out.count,
            out.bytes,
        )?;
        write!(
            self,
            r#""eager_bytes":{},"non_stale_bytes":{},"private_bytes":{},"checks":{},"breaches":{}}}}}"#,
            bytes(Class::Eager),
            bytes(Class::NonStale),
            bytes(Class::Private),
            summary.checks,
            summary.breaches,
        )
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.used + text.len();
        self.bytes
            .get_mut(self.used..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

/// Lower-case hexadecimal digits.
struct Hex<'a>(&'a [u8; 32]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The inside of a JSON string, cut after [`TEXT_BYTES`].
struct Escaped<'a, T: ?Sized>(&'a T);

impl<T: fmt::Display + ?Sized> fmt::Display for Escaped<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut escaper = Escaper {
            target: f,
            left: TEXT_BYTES,
        };
        write!(escaper, "{}", self.0)
    }
}

struct Escaper<'a, 'b> {
    target: &'a mut fmt::Formatter<'b>,
    left: usize,
}

impl Write for Escaper<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let bytes = match character {
                '"' | '\\' => 2,
                control if control < ' ' => 6,
                other => other.len_utf8(),
            };
            if bytes > self.left {
                // Nothing is appended after the cut, however short: a name must not lose its middle.
                self.left = 0;
                return Ok(());
            }
            self.left -= bytes;
            match character {
                '"' | '\\' => write!(self.target, "\\{character}")?,
                control if control < ' ' => write!(self.target, "\\u{:04x}", control as u32)?,
                other => self.target.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
mod reader {
    use serde::Deserialize;

    /// A report as its reader gets it: `serde_json::from_str::<ReportLine>(line)`.
    #[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ReportLine {
        /// Progress of a phase, from [`Report::Progress`](super::Report::Progress).
        Progress {
            /// Steps that are done.
            done: u64,
            /// Steps of the phase.
            total: u64,
            /// Name of the phase.
            phase: String,
        },
        /// Digest of an input, from [`Report::Digest`](super::Report::Digest).
        Digest {
            /// Name of the input.
            input: String,
            /// 64 hexadecimal digits.
            sha256: String,
            /// Length of the input.
            bytes: u64,
        },
        /// A wrong slot, from [`Report::Mismatch`](super::Report::Mismatch).
        Mismatch {
            /// Number of the slot.
            slot: u32,
            /// The piece it should hold.
            piece: u32,
            /// How it was read.
            by: String,
            /// Digest it should have.
            want: String,
            /// Digest it has.
            got: String,
        },
        /// End of a workload, from [`Report::Result`](super::Report::Result).
        Result {
            /// Every byte was right.
            ok: bool,
            /// VRAM that the GPU shows.
            vram_bytes: u64,
            /// Bytes of a slot.
            slot_bytes: u64,
            /// Slots that held data.
            slots: u32,
            /// Copies done by the GPU.
            copies: u64,
            /// Bytes they moved.
            bytes_copied: u64,
            /// Slots that were wrong.
            mismatches: u32,
        },
        /// A wrong word, from [`Report::Wrong`](super::Report::Wrong).
        Wrong {
            /// Name of the buffer.
            buffer: String,
            /// Index of the word.
            word: u64,
            /// Value that it should have.
            want: u32,
            /// Value that it has.
            got: u32,
        },
        /// End of a kernel, from [`Report::Kernel`](super::Report::Kernel).
        Kernel {
            /// Name of the kernel.
            name: String,
            /// Every word was right.
            ok: bool,
            /// VRAM that the GPU shows.
            vram_bytes: u64,
            /// Bytes of its buffers.
            footprint_bytes: u64,
            /// How often its plan was run and compared.
            rounds: u32,
            /// Launches on the GPU.
            grids: u64,
            /// GPU time of the launches.
            gpu_ns: u64,
            /// Bytes that were compared.
            checked_bytes: u64,
            /// Copies done by the GPU.
            copies: u64,
            /// Bytes they moved.
            bytes_copied: u64,
            /// Words that were wrong.
            mismatches: u64,
        },
        /// What was copied for a kernel whose buffers have two copies, from
        /// [`Report::Coherence`](super::Report::Coherence).
        Coherence {
            /// Name of the scheme that decided.
            scheme: String,
            /// Copies to VRAM.
            to_gpu: u64,
            /// Bytes copied to VRAM.
            to_gpu_bytes: u64,
            /// Copies to RAM.
            to_cpu: u64,
            /// Bytes copied to RAM.
            to_cpu_bytes: u64,
            /// Bytes that nobody touched where they were copied to.
            eager_bytes: u64,
            /// Bytes that were there already.
            non_stale_bytes: u64,
            /// Bytes of buffers that the processor has no use for.
            private_bytes: u64,
            /// Checks that the program made.
            checks: u64,
            /// Touches of an old copy.
            breaches: u64,
        },
        /// An early end, from [`Report::Error`](super::Report::Error): one sentence.
        Error(String),
    }
}
#[cfg(feature = "serde")]
pub use reader::ReportLine;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digest_line_has_the_documented_form() {
        let line = Line::new(&Report::Digest {
            input: "a\"b",
            sha256: &[0xab; 32],
            bytes: 5,
        });
        let hex = "ab".repeat(32);
        let wanted = format!(r#"{{"digest":{{"input":"a\"b","sha256":"{hex}","bytes":5}}}}"#);
        assert_eq!(line.as_str(), wanted);
    }

    #[test]
    fn longest_result_fits() {
        let line = Line::new(&Report::Result {
            ok: false,
            vram_bytes: u64::MAX,
            slot_bytes: u64::MAX,
            slots: u32::MAX,
            copies: u64::MAX,
            bytes_copied: u64::MAX,
            mismatches: u32::MAX,
        });
        assert!(line.as_str().ends_with("}}"));
    }

    #[test]
    fn longest_kernel_line_fits() {
        let summary = KernelSummary {
            vram_bytes: u64::MAX,
            footprint_bytes: u64::MAX,
            rounds: u32::MAX,
            grids: u64::MAX,
            gpu_ns: u64::MAX,
            checked_bytes: u64::MAX,
            copies: u64::MAX,
            bytes_copied: u64::MAX,
            mismatches: u64::MAX,
        };
        let name = "hotspot";
        let line = Line::new(&Report::Kernel {
            name,
            summary: &summary,
        });
        let value: serde_json::Value = serde_json::from_str(line.as_str()).unwrap();
        assert_eq!(value["kernel"]["mismatches"], u64::MAX);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn reader_gets_what_was_reported() {
        let line = Line::new(&Report::Progress {
            done: 3,
            total: 9,
            phase: "load",
        });
        let wanted = ReportLine::Progress {
            done: 3,
            total: 9,
            phase: "load".to_owned(),
        };
        let read: ReportLine = serde_json::from_str(line.as_str()).unwrap();
        assert_eq!(read, wanted);
    }

    proptest! {
        #[test]
        fn any_sentence_gives_one_line_of_json(text: String) {
            let line = Line::new(&Report::Error(&text));
            let value: serde_json::Value = serde_json::from_str(line.as_str()).unwrap();
            prop_assert!(text.starts_with(value["error"].as_str().unwrap()));
            prop_assert!(!line.as_str().contains('\n'));
        }
    }
}
