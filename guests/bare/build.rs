//! Links the program at fixed addresses and without the C library.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/link.ld");
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
