//! Links the program at fixed addresses and without the C library.

fn main() {
    // Asked of the environment: the folder may have moved since this was compiled.
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let script = format!("{package}/link.ld");
    println!("cargo::rerun-if-changed={script}");
    let script_argument = format!("-Wl,--script={script}");
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        &script_argument,
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
