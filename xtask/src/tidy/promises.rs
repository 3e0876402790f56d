//! Documents that name tests. What a page calls a test has to be one; and on a page that promises something to users, each
//! sentence of a list or table names the test that shows it.

use std::collections::BTreeSet;

use super::{Finding, Texts, finding};

/// Pages on which a long name in code is a test's. Elsewhere such names are metrics, fields of kernels and the like.
const NAME_TESTS: &[&str] = &[
    "docs/architecture.md",
    "docs/contract.md",
    "docs/quotas.md",
    "docs/threat-model.md",
];
/// Pages whose every sentence in a list or table is a promise.
const PROMISE: &[&str] = &["docs/contract.md", "docs/quotas.md"];
/// Underscores of the shortest name that is taken for a test's: those of settings and fields have fewer.
const UNDERSCORES_MIN: usize = 3;
/// Lines between the attribute of a test and its name: other attributes, comments.
const ATTRIBUTES_MAX: usize = 12;

/// Names of all tests of the repository, those within macros included.
pub(super) struct Tests(BTreeSet<String>);

/// One item of a list, or one row of a table, its lines joined.
struct Item {
    line: usize,
    text: String,
}

/// The name behind `fn` in a line of a program.
fn function_in(line: &str) -> Option<&str> {
    let (_, behind) = line.split_once("fn ")?;
    let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    Some(&behind[..end])
}

/// Items and rows of a document. A row of dashes, and the one before it, are a table's head.
fn items(text: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut is_open = false;
    for (line, said) in (1..).zip(text.lines().map(str::trim)) {
        if said.starts_with("|-") || said.starts_with("| -") {
            items.pop();
            is_open = false;
        } else if said.starts_with("- ") || said.starts_with('|') {
            let text = said.trim_start_matches("- ").to_owned();
            items.push(Item { line, text });
            is_open = said.starts_with("- ");
        } else if said.is_empty() || said.starts_with('#') {
            is_open = false;
        } else if let Some(item) = items.last_mut().filter(|_| is_open) {
            item.text.push(' ');
            item.text.push_str(said);
        }
    }
    items
}

/// Names in code: `this_one`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let in_code = text.split('`').skip(1).step_by(2);
    in_code.filter(|name| {
        let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '…';
        name.matches('_').count() >= UNDERSCORES_MIN && name.chars().all(is_of_name)
    })
}

/// Sentences of an item: a full stop outside of code and brackets ends one. A row's cells are one sentence at least.
fn sentences(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut in_code) = (Vec::new(), 0, 0_i32, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => in_code = !in_code,
            '(' if !in_code => depth += 1,
            ')' if !in_code => depth -= 1,
            '.' if !in_code && depth == 0 => {
                let behind = &text[at + 1..];
                if behind.is_empty() || behind.starts_with(' ') {
                    found.push(text[start..=at].trim());
                    start = at + 1;
                }
            }
            _ => {}
        }
    }
    let rest = text[start..].trim_matches([' ', '|']);
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}

impl Tests {
    pub(super) fn of(texts: &Texts) -> Self {
        let mut names = BTreeSet::new();
        for (_, text) in texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
            let lines: Vec<&str> = text.lines().collect();
            for (at, _) in lines
                .iter()
                .enumerate()
                .filter(|(_, line)| line.trim_start().starts_with("#[test]"))
            {
                let name = lines[at..].iter().take(ATTRIBUTES_MAX);
                names.extend(
                    name.filter_map(|line| function_in(line))
                        .next()
                        .map(str::to_owned),
                );
            }
        }
        Self(names)
    }

    /// A name that ends with `…` is the beginning of a test's.
    fn has(&self, name: &str) -> bool {
        match name.strip_suffix('…') {
            Some(beginning) => self.0.iter().any(|test| test.starts_with(beginning)),
            None => self.0.contains(name),
        }
    }

    /// Checks one document.
    pub(super) fn check(&self, path: &str, text: &str, findings: &mut Vec<Finding>) {
        if NAME_TESTS.contains(&path) {
            for (line, said) in (1..).zip(text.lines()) {
                let gone = names(said).filter(|name| !self.has(name));
                findings.extend(gone.map(|name| {
                    finding(
                        path,
                        line,
                        format!("no test is called {name}: name one that shows this"),
                    )
                }));
            }
        }
        if PROMISE.contains(&path) {
            for item in items(text) {
                let bare = sentences(&item.text)
                    .into_iter()
                    .filter(|said| names(said).next().is_none());
                findings.extend(bare.map(|said| {
                    let what = format!(
                        "\"{said}\" is promised, and no test is named that shows it: write one, or say less"
                    );
                    finding(path, item.line, what)
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "#[test]\nfn what_is_promised_is_kept() {}\n#[test]\n// Rarely.\n#[ignore]\nfn who_waits_is_told_so() {}\n\
                        fn no_test_at_all() {}\n";

    /// Findings of a page in a repository with two tests.
    fn found(path: &str, text: &str) -> Vec<String> {
        let texts: Texts = [("a/src/part.rs".to_owned(), CODE.to_owned())].into();
        let mut findings = Vec::new();
        Tests::of(&texts).check(path, text, &mut findings);
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn name_that_no_test_has_is_found() {
        let expected = "docs/threat-model.md:2: no test is called no_test_at_all: name one that shows this";
        assert_eq!(
            found("docs/threat-model.md", "One,\n`no_test_at_all`.\n"),
            [expected]
        );
        let text = "`what_is_promised_is_kept`, `who_waits…`, `guest_vram`, `A_B_C_D`, what_is_not_code\n";
        assert_eq!(found("docs/threat-model.md", text), Vec::<String>::new());
        assert_eq!(found("docs/threat-model.md", "`who_sleeps_is_not…`\n").len(), 1);
        assert_eq!(found("docs/control.md", "`vramd_vm_wanted_bytes`\n").len(), 0);
    }

    #[test]
    fn sentence_of_a_promise_without_a_test_is_found() {
        let kept = "All is kept (`what_is_promised_is_kept`).";
        let bare = [
            "It is. Then",
            "- Sure.",
            "| a | b |",
            "- All is kept (e.g. always).",
        ];
        let counts = bare.map(|text| {
            found(
                "docs/contract.md",
                &format!("- {kept}\n  {text}\n\nFree words.\n"),
            )
            .len()
        });
        // The first has two sentences more, the others are items of their own.
        assert_eq!(counts, [2, 1, 1, 1]);
        let text = format!(
            "# Title\n\nFree words. More.\n\n- {kept}\n  Told so, after 1.5 s\n  (`who_waits_is_told_so`).\n\n| who | sees |\n|---|---|\n\
             | all | `who_waits_is_told_so` |\n"
        );
        assert_eq!(found("docs/contract.md", &text), Vec::<String>::new());
        assert_eq!(found("docs/operating.md", "- Sure.\n").len(), 0);
    }
}
