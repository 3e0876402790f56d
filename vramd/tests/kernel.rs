//! `vramd kernel`: text to words and back, and launches, as a user sees them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use all of it")]
mod process;

use std::fs;
use std::path::Path;

use process::{complaint, json, output, text};
use serde_json::Value;

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

fn example(name: &str) -> String {
    format!("{}/../docs/examples/kernels/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The words of an example, as the assembler's tests have them.
fn given_words(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fermi/spec/src/isa/tests/kernels");
    fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap()
}

/// Output of a successful run on stdout.
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
        let source = example(&format!("{name}.asm"));
        let hex = given_words(name);
        let written = folder.path().join(name).to_str().unwrap().to_owned();
        let told = said(&["kernel", "asm", &source, "-o", &written]);
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

/// The words of the only output of a documented launch.
fn example_words(name: &str) -> Vec<u32> {
    let output = output(&["kernel", "run", &example(&format!("{name}.toml")), "--json"]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new()),
        "{name}"
    );
    let document = json(&output);
    assert_eq!(document["ok"], true, "{document}");
    assert!(document["gpu_ns"].as_u64().unwrap() > 3_000, "{document}");
    assert!(
        document["lane_instructions"].as_u64().unwrap() > document["warp_instructions"].as_u64().unwrap()
    );
    output_words(&document)
}

fn output_words(document: &Value) -> Vec<u32> {
    let words = document["outputs"][0]["words"].as_array().unwrap();
    let word = |word: &Value| u32::from_str_radix(word.as_str().unwrap(), 16).unwrap();
    words.iter().map(word).collect()
}

fn bits(values: impl IntoIterator<Item = f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn documented_vecadd_adds() {
    let expected = (0..1000).map(|i| i as f32 * 0.5 + (100 - i) as f32);
    assert_eq!(example_words("vecadd"), bits(expected));
}

#[test]
fn documented_saxpy_scales_and_adds() {
    let expected = (0..1000).map(|i| 2.5 * (i % 37) as f32 + (i % 11 - 5) as f32);
    assert_eq!(example_words("saxpy"), bits(expected));
}

#[test]
fn documented_reduce_sums() {
    let input: Vec<f32> = (0..1000).map(|i| (i % 19 - 7) as f32).collect();
    assert_eq!(
        example_words("reduce"),
        bits(input.chunks(256).map(|part| part.iter().sum()))
    );
}

#[test]
fn documented_matmul_multiplies() {
    let (a, b) = (|i: usize| (i % 7) as f32 - 3.0, |i: usize| (i % 5) as f32 - 2.0);
    let element = |index: usize| {
        let (row, column) = (index / 32, index % 32);
        (0..32).fold(0f32, |sum, k| a(row * 32 + k).mul_add(b(k * 32 + column), sum))
    };
    assert_eq!(example_words("matmul"), bits((0..1024).map(element)));
}

#[test]
fn documented_stencil_averages_neighbours() {
    // The picture begins 0x300 words into the ramp.
    let cell = |x: usize, y: usize| ((0x300 + y * 37 + x) % 97) as f32;
    let expected = (0..37 * 21).map(|index| {
        let (x, y) = (index % 37, index / 37);
        if x == 0 || y == 0 || x == 36 || y == 20 {
            return cell(x, y);
        }
        ((cell(x, y - 1) + cell(x, y + 1)) + (cell(x - 1, y) + cell(x + 1, y))) * 0.25
    });
    assert_eq!(example_words("stencil"), bits(expected));
}

#[test]
fn documented_histogram_counts() {
    let mut expected = vec![0; 256];
    for index in 0..1024u32 {
        let word = 0x0102_0304u32.wrapping_add(index.wrapping_mul(0x9e37_79b1));
        word.to_le_bytes()
            .into_iter()
            .for_each(|byte| expected[usize::from(byte)] += 1);
    }
    assert_eq!(example_words("histogram"), expected);
}

#[test]
fn documented_bithash_mixes_and_counts() {
    let input = [0u32, 0x8000_0000, 1, 0xffff_ffff, 0x1234_5678, 0xdead_beef];
    let pair = |x: u32| {
        let mixed = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35);
        let highest = if x == 0 { 0xff } else { 31 - x.leading_zeros() };
        let facts = x.count_ones() | highest << 8 | (x.reverse_bits() & 0xff) << 16 | x & 0xff00_0000;
        [mixed ^ mixed >> 16, facts]
    };
    assert_eq!(example_words("bithash"), input.map(pair).concat());
}

#[test]
fn documented_diverge_takes_both_sides() {
    let pair = |x: u32| {
        let mut y = if x % 2 == 1 { 3 * x + 1 } else { x / 2 };
        let mut count = 0;
        while y >= 10 {
            y -= y / 4 + 1;
            count += 1;
        }
        [y, count]
    };
    let expected: Vec<u32> = (0..960).flat_map(pair).collect();
    assert_eq!(example_words("diverge"), expected);
}

#[test]
fn text_has_the_same_words_and_figures_as_json() {
    let told = said(&["kernel", "run", &example("reduce.toml")]);
    let document = json(&output(&["kernel", "run", &example("reduce.toml"), "--json"]));
    let words: Vec<_> = output_words(&document)
        .iter()
        .map(|word| format!("{word:08x}"))
        .collect();
    assert!(
        told.contains(&format!("\n00000000: {}\n", words.join(" "))),
        "{told}"
    );
    assert!(told.starts_with("out: 16 bytes at 0x"), "{told}");
    let time = document["gpu_ns"].as_u64().unwrap() as f64 / 1000.0;
    assert!(told.contains(&format!("GPU time {time:.3} us")), "{told}");
    let warps = format!("instructions {} of warps", document["warp_instructions"]);
    assert!(told.contains(&warps), "{told}");
}

#[test]
fn run_is_the_same_every_time() {
    let run = || said(&["kernel", "run", &example("matmul.toml"), "--json"]);
    assert_eq!(run(), run());
}

/// A folder with a launch file and its code.
struct Launch {
    folder: tempfile::TempDir,
    path: String,
}

impl Launch {
    fn new(code: &str, rest: &str) -> Launch {
        let folder = tempfile::tempdir().unwrap();
        file(&folder, "k.asm", code);
        let path = file(&folder, "l.toml", format!("code = \"k.asm\"\n{rest}"));
        Launch { folder, path }
    }

    fn run(&self, more: &[&str]) -> std::process::Output {
        output(&[&["kernel", "run", &self.path], more].concat())
    }

    /// The document of a run that ends well.
    fn document(&self) -> Value {
        let output = self.run(&["--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        json(&output)
    }

    /// The error text for a launch that is refused.
    fn refused(&self) -> String {
        complaint(&["kernel", "run", &self.path], 1)
    }

    /// The document and the complaint of a run that ends by a fault.
    fn fault(&self) -> (Value, String) {
        let output = self.run(&["--json"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let document = json(&output);
        assert_eq!(document["ok"], false, "{document}");
        assert_eq!(document["outputs"], Value::Array(Vec::new()));
        (document["fault"].clone(), stderr)
    }
}

const ONE_WARP: &str = "grid = [1]\nblock = [32]\n";

#[test]
fn refused_address_is_a_fault_with_its_place() {
    let source = "mov b32 $r1 0x10000000\nst b32 wb g[$r1+0x4] $r1\nexit";
    let (fault, told) = Launch::new(source, ONE_WARP).fault();
    assert_eq!(fault["name"], "PT_NOT_PRESENT");
    assert_eq!(
        (&fault["address"], &fault["write"]),
        (&"0x10000004".into(), &true.into())
    );
    assert_eq!((&fault["pc"], &fault["line"]), (&8.into(), &2.into()));
    assert_eq!(fault["instruction"], "st b32 wb g[$r1+0x4] $r1");
    assert!(
        told.contains("PT_NOT_PRESENT of a store to 0x10000004 in block 0,0,0 warp 0 at pc 0x0008: st b32"),
        "{told}"
    );
}

#[test]
fn errors_of_warps_have_their_names() {
    let name = |source: &str, rest: &str| {
        let (fault, _) = Launch::new(source, &format!("{ONE_WARP}{rest}")).fault();
        (fault["name"].as_str().unwrap().to_owned(), fault["pc"].clone())
    };
    let error = |name: &str, pc: u32| (name.to_owned(), Value::from(pc));
    assert_eq!(
        name("nop\nmov b32 $r9 0x1\nexit", "registers = 5"),
        error("GPR_OUT_OF_BOUNDS", 8)
    );
    assert_eq!(name("nop", ""), error("INVALID_OPCODE", 8));
    assert_eq!(name("x: prebrk #x\nbra #x", ""), error("OUT_OF_STACK_SPACE", 0));
    assert_eq!(name("brk\nexit", ""), error("STACK_MISMATCH", 0));
    assert_eq!(
        name("mov b32 $r1 0x2\nld b32 $r2 s[$r1]\nexit", "shared = 256"),
        error("UNALIGNED_MEM_ACCESS", 8)
    );
    assert_eq!(
        name("mov b32 $r1 0x100\nld b32 $r2 s[$r1]\nexit", "shared = 256"),
        error("MEM_OUT_OF_BOUNDS", 8)
    );
    assert_eq!(
        name("x: bra #x", "[card]\nwatchdog_ms = 1"),
        error("TIMEOUT_ERROR", 0)
    );
}

#[test]
fn values_lie_where_the_kernel_looks_for_them() {
    let source = "
        .param to u64
        .param small u32
        .param wide u64
        mov b32 $r0 c0[%to]
        mov b32 $r1 c0[%to+4]
        mov b32 $r2 c0[%small]
        mov b32 $r3 c3[0x10]
        mov b32 $r4 c0[%wide]
        mov b32 $r5 c0[%wide+4]
        st b64 wb g[$r0d] $r2d
        st b64 wb g[$r0d+0x8] $r4d
        exit";
    let rest = "
        parameters = [{ address = \"a+0x8\" }, { u32 = 0xffffffff }, { u64 = \"0xfedcba9876543210\" }]
        outputs = [{ buffer = \"a\", offset = 8, size = 16 }]
        [[bank]]
        number = 3
        offset = 8
        values = [{ hex = \"0000 0000 0000 0000\" }, { i32 = -2 }]
        [[buffer]]
        name = \"a\"
        size = 32
        content = \"ramp\"";
    let document = Launch::new(source, &format!("{ONE_WARP}{rest}")).document();
    let words = [0xffff_ffff, 0xffff_fffe, 0x7654_3210, 0xfedc_ba98];
    assert_eq!(output_words(&document), words);
    let short = Launch::new(source, &format!("{ONE_WARP}parameters = [{{ u32 = 1 }}]"));
    let told = short.refused();
    assert!(
        told.contains("parameters: 1 values; the code has 3: to, small, wide"),
        "{told}"
    );
    let narrow = rest.replace("{ u64 = \"0xfedcba9876543210\" }", "{ f32 = 1 }");
    let told = Launch::new(source, &format!("{ONE_WARP}{narrow}")).refused();
    assert!(
        told.contains("wide has 8 bytes; the value for it has 4"),
        "{told}"
    );
}

#[test]
fn contents_are_what_they_say() {
    let contents = [
        ("\"zero\"", vec![0, 0, 0]),
        ("\"ramp\"", vec![0, 1, 2]),
        ("{ hex = \"01 000000 0200_0000\" }", vec![1, 2, 0]),
        ("{ file = \"data.bin\" }", vec![0x0403_0201, 5, 0]),
        (
            "{ values = [{ u8 = 1 }, { u16 = 2 }, { f32 = -0.5 }] }",
            vec![0x2_0001, 0xbf00_0000, 0],
        ),
        (
            "{ ramp = { type = \"f32\", first = 1, step = 0.25, modulo = 2 } }",
            bits([1.0, 1.25, 1.0]),
        ),
        (
            "{ ramp = { type = \"u8\", first = 250, step = 3 } }",
            vec![0x0300_fdfa, 0x0f0c_0906, 0x1b18_1512],
        ),
        (
            "{ ramp = { type = \"i32\", step = -1 } }",
            vec![0, u32::MAX, u32::MAX - 1],
        ),
    ];
    for (content, words) in contents {
        let rest =
            format!("{ONE_WARP}outputs = [\"a\"]\n[[buffer]]\nname = \"a\"\nsize = 12\ncontent = {content}");
        let launch = Launch::new("exit", &rest);
        file(&launch.folder, "data.bin", [1, 2, 3, 4, 5]);
        assert_eq!(output_words(&launch.document()), words, "{content}");
    }
    // A size by the content, in whole words; a file's as well.
    for content in ["{ hex = \"0102030405\" }", "{ file = \"data.bin\" }"] {
        let rest = format!("{ONE_WARP}outputs = [\"a\"]\n[[buffer]]\nname = \"a\"\ncontent = {content}");
        let launch = Launch::new("exit", &rest);
        file(&launch.folder, "data.bin", [1, 2, 3, 4, 5]);
        assert_eq!(output_words(&launch.document()), [0x0403_0201, 5], "{content}");
    }
}

#[test]
fn buffers_in_host_ram_take_longer_and_are_counted_there() {
    let source = fs::read_to_string(example("vecadd.asm")).unwrap();
    let launch = |place: &str| {
        let rest = format!(
            "grid = [1024]
            block = [128]
            parameters = [{{ address = \"a\" }}, {{ address = \"b\" }}, {{ address = \"c\" }}, {{ u32 = 131072 }}]
            buffer = [
                {{ name = \"a\", size = \"512K\", place = \"{place}\", content = \"ramp\" }},
                {{ name = \"b\", size = \"512K\", place = \"{place}\" }},
                {{ name = \"c\", size = \"512K\", place = \"{place}\" }},
            ]"
        );
        let document = Launch::new(&source, &rest).document();
        let figure = |value: &Value| value.as_u64().unwrap();
        let bytes = &document["bytes"];
        (
            figure(&document["gpu_ns"]),
            ["vram", "ram_read", "ram_written"].map(|kind| figure(&bytes[kind])),
        )
    };
    let ((near, in_vram), (far, in_ram)) = (launch("vram"), launch("ram"));
    assert_eq!(in_vram, [3 << 19, 0, 0]);
    assert_eq!(in_ram, [0, 2 << 19, 1 << 19]);
    assert!(far > 5 * near, "{near} ns in VRAM, {far} ns in RAM");
}

#[test]
fn words_run_as_their_source_does_and_from_a_label() {
    let source = "
        mov b32 $r1 0x1
        bra #both
        second:
        mov b32 $r1 0x2
        both:
        mov b32 $r2 c0[0x20]
        mov b32 $r3 c0[0x24]
        st b32 wb g[$r2d] $r1
        exit";
    let rest = format!(
        "{ONE_WARP}parameters = [{{ address = \"a\" }}]
        outputs = [\"a\"]
        [[buffer]]
        name = \"a\"
        address = 0xa0001000
        size = 4"
    );
    let launch = Launch::new(source, &rest);
    assert_eq!(output_words(&launch.document()), [1]);
    assert_eq!(launch.document()["outputs"][0]["address"], "0xa0001000");
    let second = Launch::new(source, &format!("entry = \"second\"\n{rest}"));
    assert_eq!(output_words(&second.document()), [2]);
    let hex = launch.folder.path().join("k.hex");
    let asm = launch.folder.path().join("k.asm");
    said(&[
        "kernel",
        "asm",
        asm.to_str().unwrap(),
        "-o",
        hex.to_str().unwrap(),
    ]);
    let by_words = file(
        &launch.folder,
        "h.toml",
        format!("code = \"k.hex\"\nentry = 0x10\n{rest}"),
    );
    let document = json(&output(&["kernel", "run", &by_words, "--json"]));
    assert_eq!(output_words(&document), [2]);
}

#[test]
fn local_memory_and_recursion_have_their_room() {
    // Each lane keeps its number in local memory and finds it again.
    let source = "
        .local 64
        mov b32 $r0 $tidx
        st b32 wb l[0x3c] $r0
        mov b32 $r1 0x0
        ld b32 $r1 ca l[0x3c]
        shl b32 $r2 $r0 clamp 0x2
        add b32 $r2 $r2 c0[0x20]
        st b32 wb g[$r2] $r1
        exit";
    let rest = format!(
        "{ONE_WARP}parameters = [{{ address = \"a\" }}]
        outputs = [\"a\"]
        buffer = [{{ name = \"a\", address = 0xb0000000, size = 128 }}]"
    );
    let document = Launch::new(source, &rest).document();
    assert_eq!(output_words(&document), (0..32).collect::<Vec<_>>());
    let (fault, _) = Launch::new(source, &format!("local = 32\n{rest}")).fault();
    assert_eq!(fault["name"], "MEM_OUT_OF_BOUNDS");
}

#[test]
fn trace_shows_a_warps_instructions_and_what_they_wrote() {
    let launch = example("diverge.toml");
    let told = said(&["kernel", "run", &launch, "--trace"]);
    let lines: Vec<_> = told.lines().collect();
    assert!(lines[0].starts_with("0000 ffffffff  "), "{told}");
    assert!(lines[2].ends_with("$r2=00000000+1*lane"), "{told}");
    assert!(lines[12].contains("set $p1 0x1 eq u32 $r7 0x0") && lines[12].ends_with("$p1=55555555"));
    // Even lanes go to the far side first, then the odd ones.
    assert!(
        lines[13].starts_with("0068 ffffffff/55555555  $p1 bra 0x88"),
        "{told}"
    );
    assert!(lines[14].starts_with("0088 55555555 "), "{told}");
    assert!(lines[16].starts_with("0070 aaaaaaaa "), "{told}");
    assert!(
        lines.iter().any(|line| line.starts_with("out: 7680 bytes")),
        "{told}"
    );
}

#[test]
fn trace_of_a_lane_a_warp_and_with_a_limit() {
    let launch = example("reduce.toml");
    let run = |more: &[&str]| said(&[&["kernel", "run", &launch, "--trace"], more].concat());
    let told = run(&["--trace-warp", "3.7", "--trace-limit", "10"]);
    assert!(
        told.lines().next().unwrap().ends_with("$r0=000000e0+1*lane"),
        "{told}"
    );
    assert!(told.lines().nth(1).unwrap().ends_with("$r1=00000003"), "{told}");
    assert!(
        told.contains("trace ends at its limit of 10 lines; 69 instructions"),
        "{told}"
    );
    let told = run(&["--trace-lane", "5"]);
    assert!(told.lines().next().unwrap().ends_with("$r0=00000005"), "{told}");
    assert!(told.contains("$p0=1"), "{told}");
    let traced = json(&output(&["kernel", "run", &launch, "--json", "--trace"]));
    let plain = json(&output(&["kernel", "run", &launch, "--json"]));
    let steps = traced["trace"].as_array().unwrap();
    assert_eq!(steps.len(), 129);
    assert_eq!(steps[0]["text"], "mov b32 $r0 $tidx");
    assert_eq!(steps[0]["results"], "$r0=00000000+1*lane");
    // Looking on changes nothing.
    assert_eq!(
        (
            &traced["gpu_ns"],
            &traced["outputs"],
            &traced["warp_instructions"]
        ),
        (&plain["gpu_ns"], &plain["outputs"], &plain["warp_instructions"])
    );
    let told = complaint(&["kernel", "run", &launch, "--trace", "--trace-warp", "4.0"], 1);
    assert!(
        told.contains("there is no warp 4.0 to trace: blocks are 0 to 3"),
        "{told}"
    );
    let told = complaint(&["kernel", "run", &launch, "--trace", "--trace-warp", "4"], 2);
    assert!(told.contains("such as 0.0"), "{told}");
    complaint(&["kernel", "run", &launch, "--trace-lane", "4"], 2);
}

#[test]
fn traced_fault_ends_the_trace_at_its_instruction() {
    let launch = Launch::new("mov b32 $r1 0x10\nld b32 $r2 ca g[$r1]\nexit", ONE_WARP);
    let output = launch.run(&["--trace"]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    let steps: Vec<_> = told.lines().filter(|line| line.contains("ffffffff")).collect();
    assert_eq!(steps.len(), 2, "{told}");
    assert!(steps[1].ends_with("ld b32 $r2 ca g[$r1]  STOPPED"), "{told}");
}

/// Checks the errors of launches that begin with `start`; a case has the rest of a launch and a part of its error text.
fn assert_refused(start: &str, cases: &[(&str, &str)]) {
    for (rest, expected) in cases {
        let told = Launch::new("exit", &format!("{start}{rest}")).refused();
        assert!(told.contains(expected), "{rest}: {told}");
    }
}

#[test]
fn grids_that_cannot_be_are_refused_with_the_field() {
    assert_refused(
        "",
        &[
            ("grid = [1]\n", "missing field `block`"),
            (
                "grid = [0]\nblock = [1]",
                "l.toml:2: grid: 0 is not from 1 to 65535 blocks",
            ),
            ("grid = []\nblock = [1]", "grid: 0 numbers; 1 to 3"),
            (
                "grid = [1]\nblock = [32, 33]",
                "l.toml:3: block: 1056 threads; a block has at most 1024",
            ),
            ("grid = [", "l.toml:2: "),
        ],
    );
    assert_refused(
        ONE_WARP,
        &[
            ("blok = 3", "l.toml:4: blok: unknown field `blok`"),
            ("registers = 64", "registers: 64 is not from 0 to 63"),
            ("shared = \"49K\"", "shared: 50176 bytes are not from 0 to 49152"),
            ("local = \"1M\"", "local: 1048576 bytes"),
            ("barriers = 17", "barriers: 17 is not from 0 to 16"),
            ("stack = 100", "stack: 100 bytes are not a multiple of 512"),
            ("entry = 4", "entry: 4 is not a multiple of 8 below 8"),
            ("entry = \"main\"", "entry: there is no label \"main\""),
            (
                "[card]\nmodel = \"gtx580\"",
                "card.model: there is no model \"gtx580\"",
            ),
            (
                "[card]\nvram = \"1M\"",
                "card.vram: 1M is not a multiple of 1M from 16M",
            ),
            (
                "[card]\nwatchdog_ms = 0",
                "card.watchdog_ms: 0 is not from 1 to 60000",
            ),
        ],
    );
}

#[test]
fn values_that_cannot_be_are_refused_with_the_field() {
    assert_refused(
        ONE_WARP,
        &[
            ("parameters = [{ u33 = 1 }]", "parameters: unknown variant `u33`"),
            (
                "parameters = [{ u32 = -1 }]",
                "parameters: u32: -1 is not from 0 to 4294967295",
            ),
            ("parameters = [{ i32 = 1.5 }]", "i32: 1.5 is not a whole number"),
            ("parameters = [{ u64 = \"0x\" }]", "expected a number"),
            (
                "parameters = [{ address = \"b\" }]",
                "address: there is no buffer \"b\"",
            ),
            (
                "[[bank]]\nnumber = 18\nvalues = []",
                "bank.number: 18 is not from 0 to 17",
            ),
            (
                "[[bank]]\nnumber = 1\noffset = 4\nvalues = []",
                "bank.offset: 4 is not a multiple of 8",
            ),
            (
                "[[bank]]\nnumber = 1\noffset = 0x10000\nvalues = [{ u8 = 1 }]",
                "bank 1 would have 65537 bytes; 65536 fit",
            ),
        ],
    );
}

#[test]
fn buffers_that_cannot_be_are_refused_with_the_field() {
    assert_refused(
        &format!("{ONE_WARP}[[buffer]]\nname = \"a\"\n"),
        &[
            ("", "buffer.size: buffer a has neither a size"),
            ("size = 3", "buffer.size: 3 bytes are not a multiple of 4"),
            (
                "size = \"2G\"",
                "buffer.size: 2147483648 bytes are not a multiple of 4 from 4 to 1G",
            ),
            ("size = \"1G\"", "card.vram: 256M are too little"),
            ("size = 4\nplace = \"moon\"", "unknown variant `moon`"),
            (
                "size = 4\naddress = 0x1000",
                "buffer.address: 0x1000 is not a multiple of 0x1000 from 0xa0000000",
            ),
            (
                "size = 4\naddress = 0x100000010",
                "buffer.address: 0x100000010 is not",
            ),
            (
                "size = \"8K\"\naddress = 0xfdfff000",
                "buffer a: it would end at 0xfe001000",
            ),
            (
                "size = 4\n[[buffer]]\nname = \"a\"\nsize = 4",
                "a is the name of a buffer before",
            ),
            (
                "size = 4\n[[buffer]]\nname = \"a b\"\nsize = 4",
                "is not 1 to 32 letters",
            ),
            (
                "size = 8\naddress = 0xa0000000\n[[buffer]]\nname = \"b\"\nsize = 8\naddress = 0xa0000000",
                "buffer b: it shares a page of 4K with buffer a",
            ),
        ],
    );
}

#[test]
fn contents_that_cannot_be_are_refused_with_the_field() {
    assert_refused(
        &format!("{ONE_WARP}[[buffer]]\nname = \"a\"\ncontent = "),
        &[
            ("\"noise\"", "expected \"zero\", \"ramp\""),
            (
                "{ hex = \"0g\" }",
                "buffer.content: hex: \"0g\" is not a hexadecimal byte",
            ),
            (
                "{ hex = \"012\" }",
                "hex: 3 digits are not a whole number of bytes",
            ),
            (
                "{ hex = \"0123456789\" }\nsize = 4",
                "buffer a: 5 bytes of content do not fit its size, 4",
            ),
            (
                "{ hex = \"\" }",
                "buffer a: 0 bytes of content are not from 1 to 1G",
            ),
            ("{ file = \"none\" }", "buffer a: cannot read"),
            ("{ file = \"none\" }\nsize = 4", "cannot read"),
            ("{ file = \"l.toml\" }\nsize = 4", "l.toml is longer than 4 bytes"),
            (
                "{ ramp = { type = \"u8\", modulo = 0 } }\nsize = 4",
                "modulo: there is nothing",
            ),
            (
                "{ ramp = { type = \"u8\", step = 0.5 } }\nsize = 4",
                "step: 0.5 is not a whole number",
            ),
            (
                "{ ramp = { type = \"u8\", up = 1 } }\nsize = 4",
                "unknown field `up`",
            ),
        ],
    );
}

#[test]
fn outputs_that_cannot_be_are_refused_with_the_field() {
    assert_refused(
        &format!("{ONE_WARP}buffer = [{{ name = \"a\", size = \"17M\" }}]\noutputs = "),
        &[
            ("[\"b\"]", "outputs: there is no buffer \"b\""),
            ("[\"a\"]", "outputs: 17825792 bytes; at most 16M are shown"),
            (
                "[{ buffer = \"a\", offset = 17825792 }]",
                "outputs: 0 bytes at 17825792 of a are not inside its 17825792",
            ),
            (
                "[{ buffer = \"a\", offset = 4, size = \"17M\" }]",
                "are not inside its 17825792",
            ),
            (
                "[{ buffer = \"a\", offset = 2 }]",
                "offset and size of a are not multiples of 4",
            ),
            ("[{ offset = 2 }]", "missing field `buffer`"),
        ],
    );
}

#[test]
fn files_of_a_launch_that_are_missing_or_wrong_are_named() {
    let launch = |code: &str| {
        let folder = tempfile::tempdir().unwrap();
        file(&folder, "short.hex", "88001dff\n");
        file(&folder, "k.txt", "exit");
        file(&folder, "bad.asm", "exit\nexti");
        let path = file(&folder, "l.toml", format!("code = \"{code}\"\n{ONE_WARP}"));
        complaint(&["kernel", "run", &path], 1)
    };
    assert!(launch("none.asm").contains("none.asm: No such file"));
    assert!(launch("k.txt").contains("k.txt is neither FILE.asm"));
    assert!(launch("short.hex").contains("short.hex:1: \"88001dff\" is not a word of 16"));
    assert!(launch("bad.asm").contains("bad.asm:2:1: \"exti\" is not an instruction"));
    let told = complaint(&["kernel", "run", "/nowhere/l.toml"], 1);
    assert!(told.contains("cannot read /nowhere/l.toml"), "{told}");
    complaint(&["kernel", "run"], 2);
}

/// Blocks of a language in the manual.
fn manual(language: &str) -> Vec<String> {
    let text = include_str!("../../docs/kernels.md");
    let start = format!("```{language}\n");
    let blocks = text.split(start.as_str()).skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

#[test]
fn kernels_of_the_manual_assemble_and_the_first_runs() {
    let folder = tempfile::tempdir().unwrap();
    let sources = manual("asm");
    assert_eq!(sources.len(), 2);
    for source in &sources {
        said(&["kernel", "asm", &file(&folder, "scale.asm", source)]);
    }
    file(&folder, "scale.asm", &sources[0]);
    let launch = file(&folder, "scale.toml", &manual("toml")[0]);
    let document = json(&output(&["kernel", "run", &launch, "--json"]));
    assert_eq!(output_words(&document), bits((0..500).map(|i| i as f32 * 0.5)));
}

#[test]
fn instructions_of_the_manual_are_instructions() {
    let text = include_str!("../../docs/kernels.md");
    let (_, table) = text.split_once("| for | for example |").unwrap();
    let rows: Vec<_> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let examples = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2));
    // Those that are written out.
    let whole: Vec<_> = examples
        .filter(|example| example.contains("$r1 ") || example.contains("0x0 "))
        .filter(|example| !example.contains('…'))
        .collect();
    assert!(whole.len() > 15, "{whole:?}");
    let folder = tempfile::tempdir().unwrap();
    said(&["kernel", "asm", &file(&folder, "k.asm", whole.join("\n"))]);
}
