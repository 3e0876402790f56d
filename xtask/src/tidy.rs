//! `cargo xtask tidy`: the house rules that no compiler checks.
//!
//! Each finding is one line `path:line: what is wrong: what to do`. [`text`] reads lines of any file, [`rust_code`] one
//! parsed Rust file, [`docs`] its doc comments, [`module_tree`] the crates and which file belongs to which,
//! [`references`] what comments and documents refer to, [`promises`] which tests they name. To except a place from a rule is
//! to change the rule here, with its reason.

mod docs;
mod module_tree;
mod promises;
mod references;
mod rust_code;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

pub(crate) use module_tree::{Places, collect_modules};
pub(crate) use rust_code::is_test_only;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

fn finding(path: &str, line: usize, what: impl Into<String>) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        what: what.into(),
    }
}

/// All text files by their path below the root.
type Texts = BTreeMap<String, String>;

/// Everything found in `texts`, sorted by place.
fn check(texts: &Texts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut parsed = BTreeMap::new();
    for (path, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
        match syn::parse_file(text) {
            Ok(file) => drop(parsed.insert(path.as_str(), file)),
            Err(error) => findings.push(finding(
                path,
                error.span().start().line,
                format!("not valid Rust: {error}"),
            )),
        }
    }
    let packages = module_tree::packages(texts, &mut findings);
    let reached = module_tree::reach(&packages, &parsed);
    module_tree::check(texts, &packages, &parsed, &reached, &mut findings);
    let codes = text::todo_codes(texts);
    let references = references::References::of(texts);
    let tests_there_are = promises::Tests::of(texts);
    for (path, text) in texts {
        let tests = match parsed.get(path.as_str()) {
            Some(file) => {
                let is_test = reached.get(path).copied().unwrap_or(false);
                rust_code::check(path, text, file, is_test, &mut findings)
            }
            None => rust_code::TestLines::default(),
        };
        if let Some(file) = parsed.get(path.as_str()) {
            docs::check(path, file, &mut findings);
        }
        text::check(path, text, &tests, &codes, &mut findings);
        references.check(path, text, &mut findings);
        tests_there_are.check(path, text, &mut findings);
    }
    findings.sort();
    findings.dedup();
    findings
}

/// Checks every file of the workspace; fails with one line for each finding.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut texts = Texts::new();
    for path in workspace.files()? {
        let bytes = fs::read(workspace.root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        // A file that is not UTF-8 is not text: an image or a guest binary.
        if let Ok(text) = String::from_utf8(bytes) {
            texts.insert(path, text);
        }
    }
    let findings = check(&texts);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings in {} files", findings.len(), texts.len());
    }
    println!("tidy: {} files, nothing found", texts.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small tree in which nothing is wrong.
    fn tidy_tree() -> Texts {
        let files = [
            ("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n"),
            ("README.md", "A tree.\n"),
            ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("a/README.md", "What may enter: nothing.\n"),
            ("a/src/lib.rs", "//! A small crate.\nmod part;\n"),
            ("a/src/part.rs", "//! A small part.\n"),
        ];
        files
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into()
    }

    /// The findings after `text` was put at `path` of the tidy tree, as they are printed.
    pub(super) fn findings_with(path: &str, text: &str) -> Vec<String> {
        let mut texts = tidy_tree();
        texts.insert(path.to_owned(), text.to_owned());
        check(&texts).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn tidy_tree_gives_no_finding() {
        assert_eq!(check(&tidy_tree()), []);
    }

    #[test]
    fn missing_readme_is_found() {
        let mut texts = tidy_tree();
        texts.remove("a/README.md");
        texts.remove("README.md");
        let found: Vec<_> = check(&texts).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["Cargo.toml", "a/Cargo.toml"]);
    }

    #[test]
    fn invalid_rust_is_found_at_its_line() {
        let found = findings_with("a/src/part.rs", "//! A small part.\n\nfn broken( {}\n");
        assert!(
            found[0].starts_with("a/src/part.rs:3: not valid Rust"),
            "{found:?}"
        );
    }

    #[test]
    fn findings_are_sorted_by_place() {
        let found = findings_with("a/src/part.rs", "fn a() { todo!() }\nfn b() { todo!() }\n");
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!((found.len(), &found), (3, &sorted));
    }
}
