//! Assembles `asm/NAME.asm` into a static `NAME`, all of them into one file of `OUT_DIR`, and finds out from the code
//! which pointers among its parameters a program loads and stores through.

use fermi_spec::isa::assembler::{Program, assemble};
use kernel_sets::{Bank, Bound, Kernel, Kind, Limits, analyse};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Alignment that the driver asks for code: padding keeps programs that are put one behind the other aligned.
const CODE_WORDS: usize = 0x100 / 8;
/// Words of a constant bank that a launch fills.
const BANK_WORDS: usize = 1024;

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
            Ok(program) => {
                let pointers = pointers(&program).unwrap_or_else(|pc| {
                    panic!("{}: at {pc:#x} it reaches memory by no parameter", path.display())
                });
                write_program(&mut text, path, &program, &pointers);
            }
            Err(error) => {
                let (file, line, column) = (path.display(), error.line, error.column);
                panic!("{file}:{line}:{column}: {}", error.message);
            }
        }
    }
    let names = sources.iter().map(|path| program_name(path).to_uppercase());
    let names: Vec<String> = names.map(|name| format!("&{name}")).collect();
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        text,
        "/// All programs.\npub static ALL: &[&Program] = &[{}];",
        names.join(", ")
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("programs.rs"), text).expect("OUT_DIR can be written");
}

fn program_name(path: &Path) -> &str {
    let name = path.file_stem().and_then(|name| name.to_str());
    name.expect("a name in ASCII")
}

/// A `u64` parameter, and whether the program loads and stores through it.
struct Pointer {
    offset: u32,
    is_loaded: bool,
    is_stored: bool,
}

/// Constant bank 0 where each pointer has an address of its own and nothing else is known: what holds for it holds for
/// every launch.
fn unknown_bank(program: &Program) -> Vec<Option<u32>> {
    let mut words = vec![None; BANK_WORDS];
    for parameter in program.parameters.iter().filter(|parameter| parameter.bytes == 8) {
        let at = parameter.offset as usize / 4;
        words[at] = Some(0);
        words[at + 1] = Some(at as u32);
    }
    words
}

/// The pointers of a program, or the place of an access that is reckoned from none of them.
fn pointers(program: &Program) -> Result<Vec<Pointer>, u32> {
    let words = unknown_bank(program);
    let kernel = Kernel {
        entry: 0,
        grid: [0xffff, 0xffff, 1],
        block: [1024, 1024, 1],
        banks: &[Bank { words: &words }],
        windows: [0xfe00_0000, 0xff00_0000],
    };
    let mut code = |at: u32| program.words.get(at as usize / 8).copied();
    let sets = analyse(&kernel, &mut code, Limits::default());
    let longs = program.parameters.iter().filter(|parameter| parameter.bytes == 8);
    let mut pointers: Vec<Pointer> = longs
        .map(|parameter| Pointer {
            offset: parameter.offset,
            is_loaded: false,
            is_stored: false,
        })
        .collect();
    for access in &sets.accesses {
        let offset = access
            .root
            .filter(|root| root.bank == 0)
            .map(|root| u32::from(root.offset));
        let pointer = pointers.iter_mut().find(|pointer| Some(pointer.offset) == offset);
        let is_known = access.kind == Kind::Global && access.bound != Bound::Space;
        let pointer = pointer.filter(|_| is_known).ok_or(access.pc)?;
        pointer.is_loaded |= access.is_load;
        pointer.is_stored |= access.is_store;
    }
    Ok(pointers)
}

fn write_program(text: &mut String, path: &Path, program: &Program, pointers: &[Pointer]) {
    let name = program_name(path);
    let mut code = program.words.clone();
    code.resize(code.len().next_multiple_of(CODE_WORDS), 0);
    let parameter_bytes = program
        .parameters
        .last()
        .map_or(0, |last| last.offset + last.bytes - 0x20);
    let mut list = String::new();
    // Writing to a `String` cannot fail.
    for Pointer {
        offset,
        is_loaded,
        is_stored,
    } in pointers
    {
        let _ = write!(
            list,
            "Pointer {{ offset: {offset}, is_loaded: {is_loaded}, is_stored: {is_stored} }}, "
        );
    }
    let _ = write!(
        text,
        "/// `asm/{name}.asm`.\npub static {}: Program = Program {{ name: {name:?}, code: &{code:?}, registers: {}, \
         shared_bytes: {}, local_bytes: {}, barriers: {}, parameter_bytes: {parameter_bytes}, \
         pointers: &[{list}] }};\n",
        name.to_uppercase(),
        program.registers,
        program.shared_bytes,
        program.local_bytes,
        program.barriers,
    );
}
