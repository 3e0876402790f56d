//! Rules for the lines of any text file: words, open ends, paths and hosts of one machine, length of documents.

use std::collections::BTreeSet;

use super::rust_code::TestLines;
use super::{Finding, Texts, finding};

/// Lines of a document.
const DOCUMENT_LINES_MAX: usize = 400;

/// Where the codes of open ends are listed.
const TODO_LIST: &str = "docs/todo.md";

/// Words and phrases that the glossary replaces, and what to do instead.
///
/// They are found inside of names too: `fake_table`, `FakeTable` and "fake table" are the same.
const BANNED: &[(&[&str], &str)] = &[
    (&["swap", "swaps", "swapped", "swapping"], "say spill or refill"),
    (
        &[
            "fake table",
            "fake tables",
            "fake page table",
            "fake page tables",
            "fake pte",
            "fake pde",
        ],
        "say shadow",
    ),
    (
        &[
            "real table",
            "real tables",
            "real page table",
            "real page tables",
            "real pte",
            "real pde",
        ],
        "say guest or shadow",
    ),
];

/// Uses of those words that mean something else: exchanging two values, byte order, the host's paging.
const ALLOWED: &[&str] = &[
    "mem::swap",
    "ptr::swap",
    ".swap(",
    ".swap_remove(",
    ".swap_with_slice(",
    "swap_bytes",
    "byte swap",
    "byte-swap",
    "compare-and-swap",
    "compare_and_swap",
    // GLSL: atomicCompSwap, imageAtomicCompSwap.
    "tomicCompSwap(",
    "host swap",
    "swap space",
];

/// Marks of an open end.
const OPEN_ENDS: &[&str] = &["TODO", "FIXME"];

/// Folders of one machine; the flag says whether tests may name them.
const MACHINE_FOLDERS: &[(&str, bool)] = &[
    ("/work", false),
    ("/root", false),
    ("/home", false),
    ("/tmp", true),
];

/// Parts of names of package registries and their mirrors.
const REGISTRY_HOSTS: &[&str] = &[
    "artifactory",
    "index.crates.io",
    "static.crates.io",
    "sparse+http",
    "pypi.org",
    "registry.npmjs.org",
    "proxy.golang.org",
    "deb.debian.org",
    "registry-1.docker.io",
];

/// The only source of packages that a lock file may name.
const LOCKED_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// This file has to contain the words that it forbids.
const SPELLS_OUT: &str = "xtask/src/tidy/text.rs";

/// Files that others wrote, or a program.
fn is_foreign(path: &str) -> bool {
    path.contains("LICENSE") || path.ends_with("Cargo.lock") || path.ends_with(".jsonl")
}

/// The codes listed as `[CODE]` in the list of open ends.
pub(super) fn todo_codes(texts: &Texts) -> BTreeSet<String> {
    let list = texts.get(TODO_LIST).map_or("", String::as_str);
    let codes = list
        .split('[')
        .skip(1)
        .filter_map(|rest| rest.split_once(']'))
        .map(|(code, _)| code);
    let is_code = |code: &&str| code.starts_with(|c: char| c.is_ascii_uppercase()) && !code.contains(' ');
    codes.filter(is_code).map(str::to_owned).collect()
}

/// Checks the lines of one file.
pub(super) fn check(
    path: &str,
    text: &str,
    tests: &TestLines,
    codes: &BTreeSet<String>,
    findings: &mut Vec<Finding>,
) {
    if path == SPELLS_OUT {
        return;
    }
    let is_document = path.ends_with(".md");
    let line_count = text.lines().count();
    if is_document && line_count > DOCUMENT_LINES_MAX {
        let what = format!("{line_count} lines, {DOCUMENT_LINES_MAX} are allowed: split the document");
        findings.push(finding(path, line_count, what));
    }
    for (line, content) in (1..).zip(text.lines()) {
        let mut found = Vec::new();
        found.extend(check_machine(content, tests.contains(line)));
        if path.ends_with("Cargo.lock") {
            found.extend(check_locked_source(content));
        }
        if !is_foreign(path) {
            let said = if is_document {
                without_mentions(content)
            } else {
                content.to_owned()
            };
            found.extend(check_words(&said));
            if path != TODO_LIST {
                found.extend(check_open_end(&said, codes));
            }
        }
        findings.extend(found.into_iter().map(|what| finding(path, line, what)));
    }
}

fn check_machine(line: &str, is_test: bool) -> Option<String> {
    let folders = MACHINE_FOLDERS
        .iter()
        .filter(|(_, is_for_tests)| !(is_test && *is_for_tests));
    let mut folders = folders.map(|(folder, _)| *folder);
    if let Some(folder) = folders.find(|folder| names_folder(line, folder)) {
        return Some(format!(
            "path {folder} of one machine: take it from the caller, or from a temporary directory"
        ));
    }
    let host = REGISTRY_HOSTS.iter().find(|host| line.contains(*host))?;
    Some(format!(
        "registry host {host}: registries are a matter of the user's configuration, leave it out"
    ))
}

/// Whether `line` holds the absolute path `folder`, alone or with something below it.
fn names_folder(line: &str, folder: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    line.match_indices(folder).any(|(at, _)| {
        let is_start = !line[..at].ends_with(|c: char| is_name(c) || "/}~*)>]".contains(c));
        let is_end = !line[at + folder.len()..].starts_with(is_name);
        is_start && is_end
    })
}

fn check_locked_source(line: &str) -> Option<String> {
    let is_other = line.starts_with("source = ") && line != LOCKED_SOURCE;
    is_other.then(|| "locked to a source other than crates.io: use a published version".to_owned())
}

/// The line without single words in quotes or backquotes: a document may name a word that it forbids.
fn without_mentions(line: &str) -> String {
    let mut rest = line;
    let mut said = String::new();
    while let Some(at) = rest.find(['`', '"']) {
        let quote = &rest[at..=at];
        said.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        if rest[end..].starts_with(quote) {
            rest = &rest[end + 1..];
        }
        said.push(' ');
    }
    said + rest
}

fn check_words(line: &str) -> Option<String> {
    let mut line = line.to_owned();
    for allowed in ALLOWED {
        line = line.replace(allowed, " ");
    }
    let words = words(&line);
    let holds = |phrase: &&&str| words.contains(&format!(" {phrase} "));
    let (phrase, advice) = BANNED
        .iter()
        .find_map(|(phrases, advice)| Some((phrases.iter().find(holds)?, advice)))?;
    Some(format!("\"{phrase}\" is not our word: {advice}"))
}

/// The line in lower case with one space between words and at both ends; names are taken apart.
fn words(line: &str) -> String {
    let mut words = String::from(" ");
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && was_lower {
            words.push(' ');
        }
        if c.is_alphanumeric() {
            words.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_numeric();
    }
    let words: Vec<_> = words.split_whitespace().collect();
    format!(" {} ", words.join(" "))
}

fn check_open_end(line: &str, codes: &BTreeSet<String>) -> Option<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for mark in OPEN_ENDS {
        for (at, _) in line.match_indices(mark) {
            let rest = &line[at + mark.len()..];
            if line[..at].ends_with(is_name) || rest.starts_with(is_name) {
                continue;
            }
            let code = rest
                .trim_start()
                .strip_prefix('[')
                .and_then(|rest| rest.split_once(']'));
            if !code.is_some_and(|(code, _)| codes.contains(code)) {
                return Some(format!(
                    "{mark} without a code of {TODO_LIST}: do it, or list it there as [CODE]"
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_with;
    use super::*;

    fn is_banned(line: &str) -> bool {
        check_words(line).is_some()
    }

    #[test]
    fn banned_word_is_found_with_place_and_advice() {
        let expected = ["a/src/part.rs:2: \"swapped\" is not our word: say spill or refill"];
        assert_eq!(
            findings_with("a/src/part.rs", "//! A small part.\n// The chunk is swapped.\n"),
            expected
        );
    }

    #[test]
    fn banned_words_are_found_inside_of_names() {
        let lines = [
            "fn swap_out()",
            "struct SwapState;",
            "let fake_table = 1;",
            "RealPte",
            "the real page table",
        ];
        assert!(lines.iter().all(|line| is_banned(line)));
        assert!(is_banned("on_swap(chunk)"));
        assert!(is_banned("Swap the chunk"));
    }

    #[test]
    fn other_meanings_are_allowed() {
        let lines = [
            "std::mem::swap(&mut a, &mut b)",
            "flag.swap(true, Ordering::Relaxed)",
            "list.swap_remove(3)",
            "GPUswap (Kehne et al.)",
            "value.swap_bytes()",
            "before = atomicCompSwap(word, 0u, 1u);",
            // What policies of papers do, and what becomes of a VM.
            "tree prefetch and pre-eviction",
            "evict(chunk)",
            "the VM migrates",
            "the real card",
            "in a real time",
        ];
        assert_eq!(lines.iter().filter(|line| is_banned(line)).count(), 0);
    }

    #[test]
    fn document_may_name_a_word_that_it_forbids() {
        assert_eq!(
            findings_with("README.md", "Never say `swap` or \"swapping\".\n"),
            Vec::<String>::new()
        );
        assert_eq!(findings_with("README.md", "We never `swap chunks`.\n").len(), 1);
    }

    #[test]
    fn open_end_needs_a_listed_code() {
        let codes = BTreeSet::from(["REFILL".to_owned()]);
        assert!(check_open_end("// TODO: later", &codes).is_some());
        assert!(check_open_end("// FIXME", &codes).is_some());
        assert!(check_open_end("// TODO[OTHER] later", &codes).is_some());
        assert!(check_open_end("// TODO [REFILL] later", &codes).is_none());
        assert!(check_open_end("const NO_TODOS: u32", &codes).is_none());
    }

    #[test]
    fn codes_come_from_the_list() {
        let list = "- [REFILL] prefetch\n- [X1] a [link](there)\n- [ ] a box\n";
        let texts = Texts::from([(TODO_LIST.to_owned(), list.to_owned())]);
        assert_eq!(
            todo_codes(&texts),
            BTreeSet::from(["REFILL".to_owned(), "X1".to_owned()])
        );
        assert_eq!(todo_codes(&Texts::new()), BTreeSet::new());
    }

    #[test]
    fn machine_folder_is_found_as_a_whole_path_only() {
        let found = |line| check_machine(line, false).is_some();
        assert!(found("see /work/shared/x.md"));
        assert!(found("Path::new(\"/root\")"));
        assert!(found("TMP=/tmp/x"));
        assert!(!found("fermi/work/queue"));
        assert!(!found("/workspace and /tmpfs"));
        assert!(!found("https://example.org/home/x"));
        assert!(!found("$ROOT/root/x"));
    }

    #[test]
    fn tests_may_name_the_temporary_folder_but_no_other() {
        let code = "//! A small part.\n#[cfg(test)]\nmod tests {\n    const A: &str = \"/tmp/a\";\n}\n";
        assert_eq!(findings_with("a/src/part.rs", code), Vec::<String>::new());
        assert_eq!(
            findings_with("a/src/part.rs", &code.replace("/tmp", "/home")).len(),
            1
        );
        assert_eq!(
            findings_with(
                "a/src/part.rs",
                "//! A small part.\nconst A: &str = \"/tmp/a\";\n"
            )
            .len(),
            1
        );
    }

    #[test]
    fn registry_host_is_found() {
        let found = findings_with(
            ".cargo/config.toml",
            "registry = \"https://x.example/artifactory/api\"\n",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with(".cargo/config.toml:1: registry host artifactory"),
            "{found:?}"
        );
    }

    #[test]
    fn lock_file_may_name_crates_io_only() {
        assert_eq!(
            findings_with("Cargo.lock", &format!("{LOCKED_SOURCE}\n")),
            Vec::<String>::new()
        );
        assert_eq!(
            findings_with("Cargo.lock", "source = \"git+https://example.org/x\"\n").len(),
            1
        );
    }

    #[test]
    fn long_document_is_found() {
        assert_eq!(
            findings_with("README.md", &"line\n".repeat(400)),
            Vec::<String>::new()
        );
        let expected = ["README.md:401: 401 lines, 400 are allowed: split the document"];
        assert_eq!(findings_with("README.md", &"line\n".repeat(401)), expected);
    }

    #[test]
    fn licences_are_not_checked_for_words() {
        assert_eq!(findings_with("LICENSE-MIT", "swap\n"), Vec::<String>::new());
    }
}
