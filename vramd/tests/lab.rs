//! `vramd lab` with an operator's own traces.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use all of it")]
mod process;

use std::path::{Path, PathBuf};

use process::{complaint, json, output};

/// A program that goes over its blocks twice.
fn write_trace(folder: &Path, name: &str, blocks: u32) -> PathBuf {
    let pass: String = (0..blocks)
        .map(|block| format!("quantum 1000\n0 {} 3 1\n", block * 16))
        .collect();
    let pages = blocks * 16;
    let text = format!(
        "vramd-trace 1\nprogram {name}\ngpu-ns 90000\nallocations {pages}\nkernel\n{pass}kernel\n{pass}"
    );
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn traces_of_an_operator_are_replayed_by_the_experiments_that_replay_some() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] =
        [("one", 40), ("other", 64)].map(|(name, blocks)| write_trace(folder.path(), name, blocks));
    let [one, other] = [&one, &other].map(|path| path.to_str().unwrap());
    for (experiment, rows) in [("adaptive", 2), ("link", 1)] {
        let told = output(&["lab", experiment, "--quick", "--json", "--traces", one, other]);
        assert_eq!(told.status.code(), Some(0), "{told:?}");
        let report = json(&told);
        let last = report["tables"].as_array().unwrap().last().unwrap();
        assert_eq!(last["rows"].as_array().unwrap().len(), rows, "{last}");
    }
}

#[test]
fn trace_that_is_wrong_is_named_with_its_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_trace(folder.path(), "wrong", 4);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("0 16 3 1", "0 64 3 1", 1)).unwrap();
    let trace = path.to_str().unwrap();
    let said = complaint(&["lab", "adaptive", "--traces", trace], 1);
    assert!(
        said.contains("line 9, page: 64 is not below 64, the pages of allocation 0"),
        "{said}"
    );
    let said = complaint(&["lab", "turns", "--traces", trace], 1);
    assert!(said.contains("line 9"), "{said}");
    let good = write_trace(folder.path(), "good", 4);
    let said = complaint(&["lab", "turns", "--traces", good.to_str().unwrap()], 2);
    assert!(said.contains("--traces: turns replays none"), "{said}");
    let said = complaint(&["lab", "link", "--record", "/nonexistent"], 1);
    assert!(
        said.contains("--record: there is no folder /nonexistent"),
        "{said}"
    );
}
