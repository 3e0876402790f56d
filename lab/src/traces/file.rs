//! Traces as files: lines of text that a person can write.
//!
//! ```text
//! vramd-trace 1
//! program triad
//! gpu-ns 158000              the kernels' time on their card
//! allocations 32 32 32       pages of 4 KiB of each
//! kernel
//! quantum 8192               instructions of warps
//! 0 17 32 0                  allocation, page, loads and stores of warps
//! ```
//!
//! A kernel has one quantum or more, a quantum any number of pages, in the order of their first use. Empty lines and what is behind `#` do not count.

use std::fmt::Write as _;

use super::{Quantum, Touch, Trace};

const MAGIC: &str = "vramd-trace";
const VERSION: u32 = 1;
/// Most pages of all allocations: 64 GiB.
const PAGES_MAX: u64 = 1 << 24;
const ALLOCATIONS_MAX: usize = 1 << 16;

/// What is wrong with a trace's file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// A line cannot be read.
    #[error("line {line}{field}: {what}", field = field.map_or(String::new(), |name| format!(", {name}")))]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// Which of its fields.
        field: Option<&'static str>,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The file ends too soon.
    #[error("it ends without {what}")]
    Short {
        /// What is missing.
        what: &'static str,
    },
}

/// Words of one line.
struct Line<'a> {
    number: usize,
    words: std::str::SplitAsciiWhitespace<'a>,
}

impl<'a> Line<'a> {
    fn wrong(&self, field: Option<&'static str>, what: String) -> TraceError {
        TraceError::Line {
            line: self.number,
            field,
            what,
        }
    }

    fn word(&mut self, field: &'static str) -> Result<&'a str, TraceError> {
        self.words
            .next()
            .ok_or_else(|| self.wrong(Some(field), "it is missing".to_owned()))
    }

    fn number<T: std::str::FromStr>(&mut self, field: &'static str) -> Result<T, TraceError> {
        let word = self.word(field)?;
        word.parse()
            .map_err(|_| self.wrong(Some(field), format!("{word:?} is not a number that fits")))
    }

    /// The number, which has to be above 0.
    fn count(&mut self, field: &'static str) -> Result<u64, TraceError> {
        match self.number(field)? {
            0 => Err(self.wrong(Some(field), "it is 0".to_owned())),
            count => Ok(count),
        }
    }

    fn end(&mut self) -> Result<(), TraceError> {
        match self.words.next() {
            None => Ok(()),
            Some(word) => Err(self.wrong(None, format!("{word:?} is too much"))),
        }
    }

    /// The line that has to begin with `keyword`.
    fn keyword(mut self, keyword: &'static str) -> Result<Self, TraceError> {
        match self.words.next() {
            Some(word) if word == keyword => Ok(self),
            word => Err(self.wrong(
                None,
                format!(
                    "it begins with {:?}, not with {keyword}",
                    word.unwrap_or_default()
                ),
            )),
        }
    }
}

/// Lines that are not empty, without comments.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    (1..).zip(text.lines()).filter_map(|(number, line)| {
        let words = line.split('#').next().unwrap_or_default();
        let is_empty = words.trim().is_empty();
        (!is_empty).then(|| Line {
            number,
            words: words.split_ascii_whitespace(),
        })
    })
}

fn next<'a>(
    lines: &mut impl Iterator<Item = Line<'a>>,
    keyword: &'static str,
) -> Result<Line<'a>, TraceError> {
    let line = lines.next().ok_or(TraceError::Short { what: keyword })?;
    line.keyword(keyword)
}

fn allocations(mut line: Line<'_>) -> Result<Vec<u32>, TraceError> {
    let mut all = Vec::new();
    let mut pages = 0;
    while let Some(word) = line.words.clone().next() {
        let of: u32 = line.number("pages")?;
        pages += u64::from(of);
        if of == 0 || pages > PAGES_MAX || all.len() >= ALLOCATIONS_MAX {
            let what = format!(
                "{word}: an allocation has a page or more, all together {PAGES_MAX} at most, and there are no more than {ALLOCATIONS_MAX}"
            );
            return Err(line.wrong(Some("pages"), what));
        }
        all.push(of);
    }
    match all.is_empty() {
        true => Err(line.wrong(Some("pages"), "it is missing".to_owned())),
        false => Ok(all),
    }
}

fn touch(line: &mut Line<'_>, allocations: &[u32]) -> Result<Touch, TraceError> {
    let allocation: usize = line.number("allocation")?;
    let Some(pages) = allocations.get(allocation) else {
        let what = format!(
            "there is no allocation {allocation}: they are 0 to {}",
            allocations.len() - 1
        );
        return Err(line.wrong(Some("allocation"), what));
    };
    let page: u32 = line.number("page")?;
    if page >= *pages {
        let what = format!("{page} is not below {pages}, the pages of allocation {allocation}");
        return Err(line.wrong(Some("page"), what));
    }
    let touch = Touch {
        allocation,
        page,
        loads: line.number("loads")?,
        stores: line.number("stores")?,
    };
    match touch.loads.checked_add(touch.stores) {
        None => Err(line.wrong(
            Some("stores"),
            "loads and stores together do not fit 32 bits".to_owned(),
        )),
        Some(0) => Err(line.wrong(Some("stores"), "loads and stores are both 0".to_owned())),
        Some(_) => Ok(touch),
    }
}

/// Grids, from the first `kernel` on.
fn grids<'a>(
    lines: impl Iterator<Item = Line<'a>>,
    allocations: &[u32],
) -> Result<Vec<Vec<Quantum>>, TraceError> {
    let mut grids: Vec<Vec<Quantum>> = Vec::new();
    for mut line in lines {
        match line.words.clone().next() {
            Some("kernel") => {
                let is_first = grids.last().is_none_or(|grid| !grid.is_empty());
                if !is_first {
                    return Err(line.wrong(None, "the kernel before it has no quantum".to_owned()));
                }
                line.words.next();
                grids.push(Vec::new());
            }
            Some("quantum") => {
                line.words.next();
                let quantum = Quantum {
                    steps: line.count("instructions")?,
                    touches: Vec::new(),
                };
                let Some(grid) = grids.last_mut() else {
                    return Err(line.wrong(None, "a quantum before the first kernel".to_owned()));
                };
                grid.push(quantum);
            }
            _ => {
                let touch = touch(&mut line, allocations)?;
                let Some(quantum) = grids.last_mut().and_then(|grid| grid.last_mut()) else {
                    return Err(line.wrong(None, "a page before the first quantum".to_owned()));
                };
                quantum.touches.push(touch);
            }
        }
        line.end()?;
    }
    match grids.last().is_some_and(|grid| !grid.is_empty()) {
        true => Ok(grids),
        false => Err(TraceError::Short { what: "quantum" }),
    }
}

impl Trace {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it: line and field.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = lines(text);
        let mut line = next(&mut lines, MAGIC)?;
        let version: u32 = line.number("version")?;
        if version != VERSION {
            return Err(line.wrong(Some("version"), format!("{version} is not {VERSION}")));
        }
        line.end()?;
        let mut line = next(&mut lines, "program")?;
        let name = line.word("name")?.to_owned();
        line.end()?;
        let mut line = next(&mut lines, "gpu-ns")?;
        let gpu_ns = line.count("nanoseconds")?;
        line.end()?;
        let allocations = allocations(next(&mut lines, "allocations")?)?;
        let grids = grids(lines, &allocations)?;
        Ok(Self {
            name,
            allocations,
            grids,
            gpu_ns,
        })
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{MAGIC} {VERSION}\nprogram {}\ngpu-ns {}\nallocations",
            self.name, self.gpu_ns
        );
        // Nothing fails that is written to a string.
        for pages in &self.allocations {
            let _ = write!(text, " {pages}");
        }
        text.push('\n');
        for grid in &self.grids {
            text.push_str("kernel\n");
            for quantum in grid {
                let _ = writeln!(text, "quantum {}", quantum.steps);
                for touch in &quantum.touches {
                    let Touch {
                        allocation,
                        page,
                        loads,
                        stores,
                    } = touch;
                    let _ = writeln!(text, "{allocation} {page} {loads} {stores}");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "# a program\nvramd-trace 1\nprogram two\ngpu-ns 500\nallocations 4 2\n\nkernel\nquantum 10\n0 3 1 0\n1 0 0 7 # a store\n\
                        kernel\nquantum 1\n";

    #[test]
    fn file_is_read_and_written() {
        let trace = Trace::parse(GOOD).unwrap();
        assert_eq!(
            (trace.name.as_str(), trace.gpu_ns, trace.pages(), trace.steps()),
            ("two", 500, 2, 11)
        );
        assert_eq!(
            (trace.allocations.as_slice(), trace.grids.len()),
            (&[4, 2][..], 2)
        );
        assert_eq!(Trace::parse(&trace.text()).unwrap(), trace);
    }

    /// A part of the file, what stands there instead, and what is said of it.
    const WRONG: [(&str, &str, &str); 19] = [
        ("vramd-trace 1", "vramd-trace 2", "line 2, version: 2 is not 1"),
        (
            "vramd-trace 1",
            "trace 1",
            "line 2: it begins with \"trace\", not with vramd-trace",
        ),
        ("program two", "program", "line 3, name: it is missing"),
        (
            "program two",
            "program two three",
            "line 3: \"three\" is too much",
        ),
        ("500", "0", "line 4, nanoseconds: it is 0"),
        (
            "500",
            "5e2",
            "line 4, nanoseconds: \"5e2\" is not a number that fits",
        ),
        ("allocations 4 2", "allocations", "line 5, pages: it is missing"),
        (
            "allocations 4 2",
            "allocations 4 99999999",
            "line 5, pages: 99999999: an allocation has",
        ),
        (
            "\nkernel\nquantum 10",
            "quantum 10",
            "line 6: a quantum before the first kernel",
        ),
        ("quantum 10\n", "", "line 8: a page before the first quantum"),
        ("quantum 10", "quantum", "line 8, instructions: it is missing"),
        (
            "0 3 1 0",
            "0 4 1 0",
            "line 9, page: 4 is not below 4, the pages of allocation 0",
        ),
        (
            "0 3 1 0",
            "2 3 1 0",
            "line 9, allocation: there is no allocation 2: they are 0 to 1",
        ),
        ("0 3 1 0", "0 3 1", "line 9, stores: it is missing"),
        (
            "0 3 1 0",
            "0 3 0 0",
            "line 9, stores: loads and stores are both 0",
        ),
        (
            "0 3 1 0",
            "0 3 4294967295 1",
            "line 9, stores: loads and stores together do not fit",
        ),
        (
            "0 3 1 0",
            "hello",
            "line 9, allocation: \"hello\" is not a number",
        ),
        ("kernel\nquantum 1\n", "kernel\n", "it ends without quantum"),
        (
            "quantum 10\n0 3 1 0\n1 0 0 7 # a store\n",
            "",
            "line 8: the kernel before it has no quantum",
        ),
    ];

    #[test]
    fn what_is_wrong_is_said_with_line_and_field() {
        for (from, to, wanted) in WRONG {
            let said = Trace::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(said.starts_with(wanted), "{said:?}, not {wanted:?}");
        }
        assert_eq!(
            Trace::parse("").unwrap_err().to_string(),
            "it ends without vramd-trace"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(lines in prop::collection::vec("(vramd-trace 1|program a|gpu-ns 9|allocations 3 3|kernel|quantum 5|[0-4] [0-4] [0-2] [0-2]|.{0,12})", 0..20)) {
            let _ = Trace::parse(&lines.join("\n"));
            let headed = format!("vramd-trace 1\nprogram a\ngpu-ns 9\nallocations 3 3\n{}", lines.join("\n"));
            if let Ok(trace) = Trace::parse(&headed) {
                prop_assert_eq!(Trace::parse(&trace.text()), Ok(trace));
            }
        }
    }
}
