//! What the guest's kernel may say.
//!
//! Lines of the level "warning" or worse, and lines that mean trouble at any level, are complaints unless
//! `integration/nouveau/kernel-log.txt` has a pattern for them.

use anyhow::{Context, Result};

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

/// Patterns of what is expected: a line is allowed if one matches all of it; `*` stands for anything.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    patterns: Vec<String>,
}

impl Allowed {
    pub(super) fn load(workspace: &Workspace) -> Result<Self> {
        let path = workspace.root().join(PATH);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let patterns = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            patterns: patterns.map(str::to_owned).collect(),
        }
    }

    /// The lines of `dmesg -r` that nobody expects.
    pub(super) fn complaints<'a>(&self, lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let is_complaint = |line: &&str| {
            let (level, text) = split(line);
            let is_loud = level <= WARNING || TROUBLE.iter().any(|word| text.contains(word));
            is_loud && !self.patterns.iter().any(|pattern| matches(pattern, text))
        };
        lines
            .into_iter()
            .filter(is_complaint)
            .map(str::to_owned)
            .collect()
    }
}

/// Level and text of `<4>[   12.345678] text`. A line without a level belongs to the one before it, which decides.
fn split(line: &str) -> (u32, &str) {
    let Some((level, rest)) = line.strip_prefix('<').and_then(|rest| rest.split_once('>')) else {
        return (u32::MAX, line);
    };
    let text = rest
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("] "))
        .map_or(rest, |(_, text)| text);
    // Above the level are bits of the facility.
    (level.parse().map_or(u32::MAX, |level: u32| level & 7), text)
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    let mut rest = rest;
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_a_whole_line() {
        assert!(matches(
            "nouveau *: failed, -*",
            "nouveau 0000:00:02.0: failed, -22"
        ));
        assert!(matches("a*", "a") && matches("*", "") && matches("a", "a"));
        assert!(!matches("a", "ab") && !matches("a*c", "ab") && !matches("*b*c", "a b"));
        assert!(!matches("ab*ba", "aba"));
    }

    #[test]
    fn warning_and_trouble_are_complaints_unless_they_are_allowed() {
        let allowed = Allowed::parse("# why\nnouveau *: channel, -22\n");
        let lines = [
            "<6>[    1.000000] nouveau 0000:00:02.0: NVIDIA GF100 (0c0000a3)",
            "<3>[    1.000000] nouveau 0000:00:02.0: channel, -22",
            "<12>[    1.000000] nouveau 0000:00:02.0: other",
            "<6>[    1.000000] nouveau 0000:00:02.0: timeout",
            " a line without a level",
        ];
        assert_eq!(allowed.complaints(lines), [lines[2], lines[3]]);
    }
}
