//! Everything that comments and documents refer to has to exist: files and folders of this repository, sections of its
//! documents, decisions. A section sign stands behind a document of the repository, or behind a work of somebody else
//! that the same paragraph names.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Texts, finding};

/// Works of others whose sections are cited, as the text names them.
const WORKS: &[&str] = &[
    "ACPI 6.5",
    "AMD APM",
    "GPUswap",
    "IEEE 802-2014",
    "Intel SDM",
    "PCI Express Base Specification 1.1",
    "PCI Firmware Specification 3.0",
    "PCI Local Bus 3.0",
    "PCI Local Bus Specification 3.0",
    "PCI Power Management Interface Specification 1.2",
    "Virtio 1.2",
];

/// Endings of files that only this repository has: sources of others that we cite are in C.
const OUR_ENDINGS: &[&str] = &[".md", ".rs"];

/// Parts of names that stand for any name.
const PLACEHOLDERS: &[&str] = &["NAME", "NNNN", "UNIT"];

/// Folders that look like ours and are not in this repository: documents of envytools and of QEMU, what fuzzing leaves.
const ELSEWHERE: &[&str] = &["docs/hw", "docs/interop", "fuzz/artifacts", "fuzz/corpus-local"];

/// This folder has to name files that are not there.
const MAKES_UP: &str = "xtask/src/tidy";

/// Everything that can be referred to.
pub(super) struct References {
    /// Files and the folders above them.
    paths: BTreeSet<String>,
    /// Numbers of headings by the document's path.
    sections: BTreeMap<String, BTreeSet<String>>,
}

/// A comment or a paragraph of a document, its lines joined by spaces.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// Where each line starts in `text`, and its number in the file.
    lines: Vec<(usize, usize)>,
}

impl Paragraph {
    fn push(&mut self, number: usize, line: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), number));
        self.text.push_str(line);
    }

    fn line_at(&self, at: usize) -> usize {
        let before = self.lines.partition_point(|(start, _)| *start <= at);
        self.lines
            .get(before.saturating_sub(1))
            .map_or(1, |(_, number)| *number)
    }
}

/// Comments of a program, paragraphs of a document.
fn paragraphs(path: &str, text: &str) -> Vec<Paragraph> {
    let is_document = path.ends_with(".md");
    let mut paragraphs = vec![Paragraph::default()];
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let said = if is_document {
            line
        } else if line.starts_with("//") {
            line.trim_start_matches(['/', '!']).trim_start()
        } else {
            ""
        };
        if said.is_empty() {
            paragraphs.push(Paragraph::default());
        } else if let Some(paragraph) = paragraphs.last_mut() {
            paragraph.push(number, said);
        }
    }
    paragraphs.retain(|paragraph| !paragraph.lines.is_empty());
    paragraphs
}

/// Numbers that headings of a document begin with: `2` of `## 2. Crates`.
fn numbered_headings(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let numbers = headings.filter_map(|line| line.trim_start_matches('#').split_whitespace().next());
    numbers
        .map(|number| number.trim_end_matches('.').to_owned())
        .collect()
}

/// `folder/path` without `.` and `..`.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The longest piece at the start of `text` that may be a path or a number.
fn word_at(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
    text[..end.unwrap_or(text.len())].trim_end_matches(['.', '-'])
}

impl References {
    pub(super) fn of(texts: &Texts) -> Self {
        let mut paths = BTreeSet::new();
        let mut sections = BTreeMap::new();
        for (path, text) in texts {
            let mut path = path.as_str();
            if path.ends_with(".md") {
                sections.insert(path.to_owned(), numbered_headings(text));
            }
            paths.insert(path.to_owned());
            while let Some((folder, _)) = path.rsplit_once('/') {
                paths.insert(folder.to_owned());
                path = folder;
            }
        }
        Self { paths, sections }
    }

    /// Checks the comments or paragraphs of one file.
    pub(super) fn check(&self, path: &str, text: &str, findings: &mut Vec<Finding>) {
        if path.starts_with(MAKES_UP) || !OUR_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
            return;
        }
        for paragraph in paragraphs(path, text) {
            let mut found = Vec::new();
            self.check_sections(&paragraph, &mut found);
            self.check_files(path, &paragraph, &mut found);
            let found = found.into_iter();
            findings.extend(found.map(|(at, what)| finding(path, paragraph.line_at(at), what)));
        }
    }

    /// The document of ours that `name` may mean: a path, its end, or the file's name without its ending.
    fn document(&self, name: &str) -> Option<&str> {
        let name = name.trim_end_matches(".md");
        let is_named = |path: &&String| {
            let path = path.trim_end_matches(".md");
            path == name
                || path
                    .strip_suffix(name)
                    .is_some_and(|before| before.ends_with('/'))
        };
        self.sections.keys().find(is_named).map(String::as_str)
    }

    fn check_sections(&self, paragraph: &Paragraph, found: &mut Vec<(usize, String)>) {
        let text = paragraph.text.as_str();
        let mut cited = None;
        for (at, sign) in text.match_indices('§') {
            let number = word_at(&text[at + sign.len()..]);
            let before = text[..at].trim_end_matches(|c: char| c == '§' || c.is_whitespace());
            let word = before
                .rsplit(|c: char| c.is_whitespace())
                .next()
                .unwrap_or_default();
            let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '§');
            // A list of sections goes on.
            if !word.starts_with('§') {
                cited = self.document(word);
            }
            match cited.and_then(|path| Some((path, self.sections.get(path)?))) {
                Some((path, numbers)) if !numbers.contains(number) => {
                    found.push((
                        at,
                        format!("{path} has no section {number}: cite one that is there"),
                    ));
                }
                Some(_) => {}
                None if WORKS.iter().any(|work| text[..at].contains(work)) => {}
                None => {
                    let what = format!(
                        "§{number} of which work: name a document of the repository or a published one"
                    );
                    found.push((at, what));
                }
            }
        }
    }

    fn check_files(&self, path: &str, paragraph: &Paragraph, found: &mut Vec<(usize, String)>) {
        let text = paragraph.text.as_str();
        let is_inside = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let mut rest = 0;
        while let Some(start) = text[rest..].find(is_inside).map(|at| rest + at) {
            let end = text[start..]
                .find(|c| !is_inside(c))
                .map_or(text.len(), |at| start + at);
            rest = end;
            let name = text[start..end].trim_end_matches(['.', '/', '-']);
            let is_quoted = text[..start].matches('`').count() % 2 == 1;
            if PLACEHOLDERS.iter().any(|word| name.contains(word)) || self.is_there(path, name, is_quoted) {
                continue;
            }
            found.push((
                start,
                format!("{name} is not there: name a file or folder that is, or leave it out"),
            ));
        }
    }

    /// Whether `name` is nothing that has to be there, or is there, seen from the root or from the file `path`.
    fn is_there(&self, path: &str, name: &str, is_quoted: bool) -> bool {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_top = |name: &str| !name.contains('.') && self.paths.contains(name);
        let decision = name.trim_start_matches("docs/").strip_prefix("decisions/");
        let is_decision = decision.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()));
        let is_below_top = is_quoted && name.split_once('/').is_some_and(|(top, _)| is_top(top));
        let has_our_ending = OUR_ENDINGS.iter().any(|ending| {
            let stem = name.strip_suffix(ending);
            stem.is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/'))
        });
        let is_elsewhere = ELSEWHERE.iter().any(|folder| name.starts_with(folder));
        if name.starts_with('/') || is_elsewhere || !(is_decision || is_below_top || has_our_ending) {
            return true;
        }
        if self.paths.contains(name) || self.paths.contains(&join(folder, name)) {
            return true;
        }
        if name.starts_with('.') {
            return false;
        }
        if let Some(number) = decision.filter(|_| is_decision) {
            let start = format!("docs/decisions/{number}");
            return self.paths.iter().any(|path| path.starts_with(&start));
        }
        let below = format!("/{name}");
        self.paths.iter().any(|path| path.ends_with(&below))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_with;
    use super::*;

    /// Findings of a document in a repository that has another one, `docs/plan.md`, with sections 1 and 1.2.
    fn found(text: &str) -> Vec<String> {
        let texts = [
            ("docs/plan.md", "# Plan\n\n## 1. First\n\n### 1.2 Detail\n"),
            ("docs/decisions/0007-title.md", "# Title\n"),
            ("a/src/part.rs", "//! A small part.\n"),
            ("a/README.md", text),
        ];
        let texts: Texts = texts
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into();
        let mut findings = Vec::new();
        References::of(&texts).check("a/README.md", text, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn section_that_is_not_there_is_found() {
        let expected = "a/README.md:2: docs/plan.md has no section 3: cite one that is there";
        assert_eq!(found("One line,\nsee plan §3.\n"), [expected]);
        assert_eq!(found("See `docs/plan.md` §1.3\n").len(), 1);
        assert_eq!(found("See plan §1, §4.\n").len(), 1);
        assert_eq!(
            found("See plan §1, §1.2, and docs/plan.md §1.\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn section_of_no_work_is_found() {
        let expected =
            "a/README.md:1: §4.3 of which work: name a document of the repository or a published one";
        assert_eq!(found("As the-paper §4.3 says.\n"), [expected]);
        assert_eq!(found("Virtio 1.2 has it.\n\nSo does §2.\n").len(), 1);
        assert_eq!(found("PCI Local Bus\n3.0 §6.1, §6.8.\n"), Vec::<String>::new());
    }

    #[test]
    fn file_that_is_not_there_is_found() {
        let expected =
            "a/README.md:1: docs/gone.md is not there: name a file or folder that is, or leave it out";
        assert_eq!(found("See docs/gone.md.\n"), [expected]);
        let texts = [
            "`gone.rs`",
            "`docs/gone`",
            "`docs/example.toml`",
            "(../gone.md)",
            "`decisions/0008`",
        ];
        let counts = texts.map(|text| found(text).len());
        assert_eq!(counts, [1; 5]);
    }

    #[test]
    fn files_are_seen_from_the_root_from_beside_and_by_their_end() {
        let text = "`docs/plan.md`, `plan.md`, `src/part.rs`, [plan](../docs/plan.md), `docs/`, `decisions/0007`, `docs/decisions/0007`, \
                    `src/kernels/NAME.rs`, `mc/gf100.c`, <https://example.org/x.md>, docs/policy, `.rs`\n";
        assert_eq!(found(text), Vec::<String>::new());
    }

    #[test]
    fn comments_of_programs_are_read_and_their_code_is_not() {
        let code = "//! A small part.\n// See docs/gone.md.\nconst A: &str = \"docs/gone.md\";\n";
        let found = findings_with("a/src/part.rs", code);
        let expected =
            "a/src/part.rs:2: docs/gone.md is not there: name a file or folder that is, or leave it out";
        assert_eq!(found, [expected]);
    }
}
