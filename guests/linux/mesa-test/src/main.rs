//! Tests OpenGL of a Linux guest: stock Mesa on nouveau, without a display, for a harness that reads lines.
//!
//! One context serves all tests. What they upload and read back takes the paths on which Mesa copies with M2MF: texels
//! in client memory have the format of the texture, so that nothing is converted by drawing.

mod bytes;
mod cases;
mod egl;
mod gl;
mod library;
mod reference;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use cases::{Case, Outcome, Work};
use egl::{Egl, Platform};
use gl::{Gl, number};
use reference::Reference;

/// Tests OpenGL of this machine on nouveau.
///
/// One line for each test: "ok NAME MS", "skip NAME REASON" or "FAIL NAME REASON"; at the end "done" with the counts.
#[derive(Parser, Debug)]
struct Arguments {
    /// Name the tests and stop.
    #[arg(long)]
    list: bool,
    /// Run only this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// What the display is made of.
    #[arg(long, value_enum, default_value = "gbm")]
    platform: Platform,
    /// The node to open.
    #[arg(long, value_name = "PATH", default_value = "/dev/dri/renderD128")]
    render: PathBuf,
    /// What the renderer's name has to contain.
    #[arg(long, value_name = "TEXT", default_value = "NVC0")]
    renderer: String,
    /// Print what the tests give that are compared with the software renderer, and run no others.
    #[arg(long)]
    results: bool,
}

impl Arguments {
    fn selects(&self, case: &Case) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == case.name);
        let is_kind = !self.results || matches!(case.work, Work::Compared(..));
        is_kind && (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for case in cases::all() {
            println!("{}", case.name);
        }
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAIL context {}", one_line(&error));
            println!("done ok=0 FAIL=1 skip=0");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected tests; whether none failed.
fn run(arguments: &Arguments) -> Result<bool> {
    let all = cases::all();
    for name in arguments.only.iter().chain(&arguments.skip) {
        ensure!(
            all.iter().any(|case| case.name == name),
            "there is no test {name}: see --list"
        );
    }
    log_to_kernel("begin", "context");
    let start = Instant::now();
    let egl = Egl::new(arguments.platform, &arguments.render)?;
    let gl = Gl::new(&egl)?;
    let renderer = gl.string(number::RENDERER)?;
    println!(
        "note {renderer}, OpenGL {}, core {}.{}",
        gl.string(number::VERSION)?,
        egl.version().0,
        egl.version().1
    );
    ensure!(
        renderer.contains(&arguments.renderer),
        "the renderer is {renderer}, not {}",
        arguments.renderer
    );
    gl.pixel_store(number::PACK_ALIGNMENT, 1)?;
    gl.pixel_store(number::UNPACK_ALIGNMENT, 1)?;
    println!("ok context {}", start.elapsed().as_millis());
    log_to_kernel("end", "context");
    let selected: Vec<_> = all.into_iter().filter(|case| arguments.selects(case)).collect();
    if arguments.results {
        return print_results(&gl, &selected).map(|()| true);
    }
    let reference = ask_reference(&selected)?;
    let (mut passed, mut failed, mut skipped) = (1, 0, 0);
    for case in &selected {
        log_to_kernel("begin", case.name);
        let start = Instant::now();
        let result = perform(case, &egl, &gl, reference.as_ref());
        let took = start.elapsed().as_millis();
        log_to_kernel("end", case.name);
        match result {
            Ok(Outcome::Passed) => {
                passed += 1;
                println!("ok {} {took}", case.name);
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                println!("skip {} {reason}", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {} {}", case.name, one_line(&error));
            }
        }
        std::io::stdout().flush().context("standard output is closed")?;
    }
    println!("done ok={passed} FAIL={failed} skip={skipped}");
    Ok(failed == 0)
}

/// Runs the software renderer, if a test is to be compared with it.
fn ask_reference(selected: &[Case]) -> Result<Option<Reference>> {
    let compared = selected
        .iter()
        .filter(|case| matches!(case.work, Work::Compared(..)));
    let names: Vec<_> = compared.map(|case| case.name).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let start = Instant::now();
    let reference = Reference::ask(&names)?;
    println!(
        "note {} ran {} tests in {} ms",
        reference::RENDERER,
        names.len(),
        start.elapsed().as_millis()
    );
    Ok(Some(reference))
}

fn perform(case: &Case, egl: &Egl, gl: &Gl<'_>, reference: Option<&Reference>) -> Result<Outcome> {
    match case.work {
        Work::Checked(run) => run(egl, gl),
        Work::Compared(run, bounds) => {
            let found = run(gl)?;
            let wanted = reference
                .context("the software renderer was not asked")?
                .words(case.name)?;
            // A card that stores nothing is not to agree with a renderer that does not either.
            ensure!(
                wanted.iter().any(|word| *word != wanted[0]),
                "all words are the same"
            );
            reference::compare(&found, wanted, bounds)?;
            Ok(Outcome::Passed)
        }
    }
}

/// As the software renderer: runs the tests and prints what they give.
fn print_results(gl: &Gl<'_>, selected: &[Case]) -> Result<()> {
    for case in selected {
        if let Work::Compared(run, _) = case.work {
            reference::print(case.name, &run(gl))?;
        }
    }
    Ok(())
}

/// Marks the kernel log. Without the right to do so there are no marks.
fn log_to_kernel(what: &str, name: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // One write is one line of the log.
        let _ = log.write_all(format!("mesa-test: {what} {name}\n").as_bytes());
    }
}

fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
