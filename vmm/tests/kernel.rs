//! `vramd kernel`: text to words and back, as a user sees it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use all of it")]
mod process;

use std::fs;
use std::path::{Path, PathBuf};

use process::{complaint, output, text};

/// Words and their text, of the hardware's documents.
const VECTORS: &str = include_str!("../../fermi/spec/src/isa/tests/vectors.txt");
/// Texts that do not determine their word: zero is register 63, and a predicate that the text hides.
const AMBIGUOUS: [&str; 2] = ["28000000fc025de4", "0c0e00000011dc04"];
const KERNELS: [&str; 8] = [
    "bithash",
    "diverge",
    "histogram",
    "matmul",
    "reduce",
    "saxpy",
    "stencil",
    "vecadd",
];

fn given_kernel(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fermi/spec/src/isa/tests/kernels")
        .join(name)
}

/// What a successful run says on stdout.
fn said(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new()),
        "{arguments:?}"
    );
    text(&output.stdout)
}

fn file(folder: &tempfile::TempDir, name: &str, contents: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    fs::write(&path, contents).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_vector_disassembles_to_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let words: String = VECTORS
        .lines()
        .map(|line| line.split_once('\t').unwrap().0.to_owned() + "\n")
        .collect();
    assert_eq!(
        said(&["kernel", "disasm", &file(&folder, "v.hex", words)]),
        VECTORS
    );
}

#[test]
fn every_text_assembles_to_its_word() {
    let folder = tempfile::tempdir().unwrap();
    let long = |line: &&str| line.split_once('\t').unwrap().0.len() == 16;
    let is_sure = |line: &&str| !AMBIGUOUS.iter().any(|word| line.starts_with(word));
    // A relative branch's text names its target, which the vectors have as from address 0.
    let is_relative = |line: &&str| {
        let text = line.split_once('\t').unwrap().1;
        let names = ["bra ", "joinat ", "prebrk ", "precont ", "preret ", "call "];
        names.iter().any(|name| text.contains(name)) && !text.contains(" abs ")
    };
    let (targets, others): (Vec<&str>, Vec<&str>) = VECTORS
        .lines()
        .filter(long)
        .filter(is_sure)
        .partition(is_relative);
    let column = |lines: &[&str], n| -> String {
        let words = lines.iter().map(|line| line.split('\t').nth(n).unwrap());
        words.map(|word| word.to_owned() + "\n").collect()
    };
    let (words, texts) = (column(&others, 0), column(&others, 1));
    assert_eq!(said(&["kernel", "asm", &file(&folder, "all.asm", texts)]), words);
    for line in targets {
        let (word, text) = (column(&[line], 0), column(&[line], 1));
        assert_eq!(said(&["kernel", "asm", &file(&folder, "one.asm", text)]), word);
    }
}

#[test]
fn kernels_assemble_to_their_words_and_back() {
    let folder = tempfile::tempdir().unwrap();
    for name in KERNELS {
        let source = given_kernel(&format!("{name}.asm"));
        let hex = fs::read_to_string(given_kernel(&format!("{name}.hex"))).unwrap();
        let written = folder.path().join(name).to_str().unwrap().to_owned();
        let told = said(&["kernel", "asm", source.to_str().unwrap(), "-o", &written]);
        assert!(
            told.contains(&format!("words {},", hex.lines().count())),
            "{told}"
        );
        assert_eq!(fs::read_to_string(&written).unwrap().trim_end(), hex.trim_end());
        // The listing of a program is a program: its third column assembles to its second.
        let listing = said(&["kernel", "disasm", "--program", &written]);
        let column = |n| -> String {
            listing
                .lines()
                .map(|line| line.split('\t').nth(n).unwrap().to_owned() + "\n")
                .collect()
        };
        let again = said(&["kernel", "asm", &file(&folder, "again.asm", column(2))]);
        assert_eq!(again, column(1), "{name}");
    }
}

#[test]
fn word_that_is_no_instruction_is_illegal() {
    let folder = tempfile::tempdir().unwrap();
    let words = "0000000000000003\n\n  8000000000001DE7\nffffffff\n";
    assert_eq!(
        said(&["kernel", "disasm", &file(&folder, "x.hex", words)]),
        "0000000000000003\tillegal\n8000000000001de7\texit\nffffffff\tillegal\n"
    );
}

#[test]
fn bad_files_are_named_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let bad = |name, contents: &str| file(&folder, name, contents);
    let told = complaint(
        &[
            "kernel",
            "disasm",
            &bad("a.hex", "8000000000001de7\n80000000 1de7\n"),
        ],
        1,
    );
    assert!(
        told.contains("a.hex:2: \"80000000 1de7\" is not a word of 16"),
        "{told}"
    );
    let told = complaint(&["kernel", "asm", &bad("a.asm", "exit\n  mov b32 $r1 $r70\n")], 1);
    assert!(told.contains("a.asm:2:15: "), "{told}");
    let told = complaint(&["kernel", "asm", &bad("none.asm", "// nothing\n")], 1);
    assert!(told.contains("none.asm has no instruction"), "{told}");
    let told = complaint(&["kernel", "asm", &file(&folder, "bytes.asm", [0xff, 0xfe])], 1);
    assert!(told.contains("not text"), "{told}");
    let told = complaint(
        &["kernel", "asm", &bad("long.asm", &"\n".repeat((16 << 20) + 1))],
        1,
    );
    assert!(told.contains("long.asm is longer than 16777216 bytes"), "{told}");
    let told = complaint(&["kernel", "disasm", "/nowhere/x.hex"], 1);
    assert!(
        told.contains("cannot read /nowhere/x.hex: No such file"),
        "{told}"
    );
}

#[test]
fn source_is_not_overwritten_by_its_words() {
    let folder = tempfile::tempdir().unwrap();
    let source = file(&folder, "a.asm", "exit\n");
    let told = complaint(&["kernel", "asm", &source, "-o", &source], 1);
    assert!(told.contains("is the source"), "{told}");
    assert_eq!(fs::read_to_string(&source).unwrap(), "exit\n");
}

#[test]
fn wrong_words_are_wrong_usage() {
    let told = complaint(&["kernel"], 2);
    assert!(told.contains("a verb is missing"), "{told}");
    let told = complaint(&["kernel", "link"], 2);
    assert!(told.contains("link"), "{told}");
    let told = complaint(&["kernel", "asm"], 2);
    assert!(told.contains("FILE.asm"), "{told}");
}
