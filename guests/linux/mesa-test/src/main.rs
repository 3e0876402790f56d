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

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use report::{Outcome, Report, Selection};

use cases::{Case, Work};
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
    #[command(flatten)]
    selection: Selection,
    /// Kind of the display.
    #[arg(long, value_enum, default_value = "gbm")]
    platform: Platform,
    /// The node to open.
    #[arg(long, value_name = "PATH", default_value = "/dev/dri/renderD128")]
    render: PathBuf,
    /// Text that the renderer's name must contain.
    #[arg(long, value_name = "TEXT", default_value = "NVC0")]
    renderer: String,
    /// Run only the tests that are compared with the software renderer, and print their results.
    #[arg(long)]
    results: bool,
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
            eprintln!("mesa-test: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the selected tests; whether none failed.
fn run(arguments: &Arguments) -> Result<bool> {
    let chosen = arguments.selection.choose(cases::all(), |case| case.name)?;
    if arguments.results {
        let egl = Egl::new(arguments.platform, &arguments.render)?;
        print_results(&open(arguments, &egl)?, &chosen)?;
        return Ok(true);
    }
    let mut report = Report::new("mesa-test");
    let make = || Egl::new(arguments.platform, &arguments.render);
    let Some(egl) = report.prepare("display", make)? else {
        return report.finish();
    };
    let Some(gl) = report.prepare("context", || open(arguments, &egl))? else {
        return report.finish();
    };
    let (major, minor) = egl.version();
    let (renderer, version) = (gl.string(number::RENDERER)?, gl.string(number::VERSION)?);
    report.note(&format!("{renderer}, OpenGL {version}, core {major}.{minor}"))?;
    let Some(reference) = report.prepare("reference", || ask_reference(&chosen))? else {
        return report.finish();
    };
    for case in &chosen {
        report.run(case.name, || perform(case, &egl, &gl, reference.as_ref()))?;
    }
    report.finish()
}

/// A context of the renderer that is wanted, its pixels packed.
fn open<'a>(arguments: &Arguments, egl: &'a Egl) -> Result<Gl<'a>> {
    let gl = Gl::new(egl)?;
    let renderer = gl.string(number::RENDERER)?;
    ensure!(
        renderer.contains(&arguments.renderer),
        "the renderer is {renderer}, not {}",
        arguments.renderer
    );
    gl.pixel_store(number::PACK_ALIGNMENT, 1)?;
    gl.pixel_store(number::UNPACK_ALIGNMENT, 1)?;
    Ok(gl)
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
    Reference::ask(&names).map(Some)
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
