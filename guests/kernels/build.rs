//! Assembles `asm/NAME.asm` into a static `NAME`, all of them into one file of `OUT_DIR`.

use fermi_spec::isa::assembler::{Program, assemble};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Alignment that the driver asks for code: padding keeps programs that are put one behind the other aligned.
const CODE_WORDS: usize = 0x100 / 8;

fn main() {
    // Asked of the environment: the folder may have moved since this was compiled.
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let folder = package.join("asm");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).expect("the folder asm is part of this package");
    let mut sources: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder asm").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "asm"))
        .collect();
    sources.sort();
    let mut text = String::new();
    for path in &sources {
        let source = fs::read_to_string(path).expect("a source is text");
        match assemble(&source) {
            Ok(program) => write_program(&mut text, path, &program),
            Err(error) => {
                let (file, line, column) = (path.display(), error.line, error.column);
                panic!("{file}:{line}:{column}: {}", error.message);
            }
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("programs.rs"), text).expect("OUT_DIR can be written");
}

fn write_program(text: &mut String, path: &Path, program: &Program) {
    let name = path
        .file_stem()
        .and_then(|name| name.to_str())
        .expect("a name in ASCII");
    let mut code = program.words.clone();
    code.resize(code.len().next_multiple_of(CODE_WORDS), 0);
    let parameter_bytes = program
        .parameters
        .last()
        .map_or(0, |last| last.offset + last.bytes - 0x20);
    // Writing to a `String` cannot fail.
    let _ = write!(
        text,
        "/// `asm/{name}.asm`.\npub static {}: Program = Program {{ name: {name:?}, code: &{code:?}, registers: {}, \
         shared_bytes: {}, local_bytes: {}, barriers: {}, parameter_bytes: {parameter_bytes} }};\n",
        name.to_uppercase(),
        program.registers,
        program.shared_bytes,
        program.local_bytes,
        program.barriers,
    );
}
