//! The lines that the guest's kernel may print.
//!
//! Lines of the level "warning" or worse, and lines that mean trouble at any level, are complaints unless a pattern
//! covers them: one of `integration/nouveau/kernel-log.txt`, or one that a test has named for the time that it runs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use regex::Regex;

use crate::workspace::Workspace;

const PATH: &str = "integration/nouveau/kernel-log.txt";
/// The least of the levels that are looked at: "warning" (`include/linux/kern_levels.h`).
const WARNING: u32 = 4;
/// Trouble at any level.
const TROUBLE: [&str; 7] = [
    "Call Trace",
    "BUG:",
    "WARNING:",
    "Oops",
    "timeout",
    "timed out",
    "blocked for more than",
];
/// Line that a test program writes to the kernel's log around each test; the test's name follows it.
pub(crate) const TEST_BEGIN: &str = "nouveau-test: begin ";
pub(crate) const TEST_END: &str = "nouveau-test: end ";

/// Patterns of the expected lines.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    always: Vec<Regex>,
    /// While the test of that name runs.
    during: BTreeMap<String, Regex>,
    /// Name of the test that runs, kept from one look at the log to the next.
    running: Option<String>,
}

impl Allowed {
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        Self::load_with(workspace, &[])
    }

    /// With patterns of further files, whose paths are from the root of the workspace.
    pub(crate) fn load_with(workspace: &Workspace, others: &[&str]) -> Result<Self> {
        let mut patterns = String::new();
        for path in [PATH].iter().chain(others) {
            let path = workspace.root().join(path);
            let text = std::fs::read_to_string(&path);
            patterns += &text.with_context(|| format!("cannot read {}", path.display()))?;
        }
        Self::parse(&patterns).context("patterns of the kernel's log")
    }

    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim);
        let patterns = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        // The whole line has to match.
        let always = patterns
            .map(|pattern| Regex::new(&format!("^(?:{pattern})$")))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            always,
            during: BTreeMap::new(),
            running: None,
        })
    }

    /// Takes a line of a test program's `--list`: `NAME`, or `NAME log=PATTERN`.
    pub(crate) fn add_test(&mut self, line: &str) -> Result<()> {
        if let Some((name, pattern)) = line.split_once(" log=") {
            let pattern = Regex::new(pattern).with_context(|| format!("the pattern of test {name}"))?;
            self.during.insert(name.to_owned(), pattern);
        }
        Ok(())
    }

    /// The lines of `dmesg -r` that no pattern covers.
    pub(crate) fn complaints<'a>(&mut self, lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let mut complaints = Vec::new();
        for line in lines {
            let (level, text) = split(line);
            if let Some(name) = text.strip_prefix(TEST_BEGIN) {
                self.running = Some(name.to_owned());
            } else if text.starts_with(TEST_END) {
                self.running = None;
            } else if (level <= WARNING || TROUBLE.iter().any(|word| text.contains(word)))
                && !self.is_expected(text)
            {
                complaints.push(line.to_owned());
            }
        }
        complaints
    }

    fn is_expected(&self, text: &str) -> bool {
        let of_test = self.running.as_ref().and_then(|name| self.during.get(name));
        self.always
            .iter()
            .chain(of_test)
            .any(|pattern| pattern.is_match(text))
    }
}

/// Level and text of `<4>[   12.345678] text`. A line without a level belongs to the one before it, which decides.
pub(crate) fn split(line: &str) -> (u32, &str) {
    let Some((level, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once('>')) else {
        return (u32::MAX, line);
    };
    let text = rest
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
        .map_or(rest, |(_, text)| text);
    // Above the level are bits of the facility: none are set in the kernel's own lines.
    (level.parse().unwrap_or(u32::MAX), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_the_tree_is_read() {
        let text = include_str!("../../../integration/nouveau/kernel-log.txt");
        let mut allowed = Allowed::parse(text).unwrap();
        let line = "<3>[    1.0] nouveau 0000:00:01.0: drm: failed to create ce channel, -22";
        assert!(allowed.complaints([line]).is_empty());
    }

    #[test]
    fn warning_and_trouble_are_complaints_unless_a_pattern_covers_the_line() {
        let mut allowed = Allowed::parse("# why\nnouveau .*: channel, -22\n").unwrap();
        let lines = [
            "<6>[    1.000000] nouveau 0000:00:02.0: NVIDIA GF100 (0c0000a3)",
            "<3>[    1.000000] nouveau 0000:00:02.0: channel, -22",
            "<4>[    1.000000] nouveau 0000:00:02.0: channel, -22, and more",
            "<6>[    1.000000] nouveau 0000:00:02.0: timeout",
            "<12>[    1.000000] a program says",
            " a line without a level",
        ];
        assert_eq!(allowed.complaints(lines), [lines[2], lines[3]]);
    }

    #[test]
    fn pattern_of_a_test_holds_while_the_test_runs() {
        let mut allowed = Allowed::parse("").unwrap();
        allowed.add_test("plain").unwrap();
        allowed.add_test("fault log=fault at .*|killed").unwrap();
        assert!(allowed.add_test("bad log=(").is_err());
        let fault = "<3>[    1.0] nouveau: fifo: fault at 00";
        assert_eq!(allowed.complaints([fault]), [fault]);
        assert!(
            allowed
                .complaints(["<6>[ 1.0] nouveau-test: begin fault", fault])
                .is_empty()
        );
        assert!(allowed.complaints([fault]).is_empty());
        assert_eq!(
            allowed.complaints(["<6>[ 1.0] nouveau-test: end fault", fault]),
            [fault]
        );
        assert_eq!(
            allowed.complaints(["<6>[ 1.0] nouveau-test: begin plain", fault]),
            [fault]
        );
    }
}
