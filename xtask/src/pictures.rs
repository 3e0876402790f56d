//! `cargo xtask pictures`: the pictures of the documents, made anew from a broker at work.
//!
//! ```text
//!  serve and three VMs ──► `top`, `list`, `why` on terminals ──► what is seen there ──┐
//!       │                                                                             ├──► docs/pictures/*.svg
//!       └── a scrape a second ──► Prometheus ──► the dashboard's own questions ───────┘
//! ```
//!
//! Grafana has no part in it: the dashboard is drawn by [`panels`] from what Prometheus answers to the questions of its file.

mod dashboard;
mod panels;
mod prometheus;
mod scene;
mod screen;
mod terminal;

use std::fs;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::host_env;
use crate::workspace::Workspace;
use dashboard::Dashboard;
use panels::Answered;
use prometheus::{Prometheus, Span};
use scene::{Scene, now};
use screen::Area;
use terminal::Terminal;

/// Where the documents have them, from the root of the workspace.
const FOLDER: &str = "docs/pictures";
/// Largest picture, which whoever reads the page has to load.
const BYTES_MAX: usize = 200 << 10;
/// The terminal of `top`: the smallest that it is made for.
const TOP_ROWS: NonZeroU16 = NonZeroU16::new(24).unwrap();
const TOP_COLUMNS: NonZeroU16 = NonZeroU16::new(80).unwrap();
/// That of tables: more than any needs, as only what is used is drawn.
const TABLE_ROWS: NonZeroU16 = NonZeroU16::new(60).unwrap();
const TABLE_COLUMNS: NonZeroU16 = NonZeroU16::new(200).unwrap();

/// Options of `cargo xtask pictures`.
#[derive(Args)]
pub(crate) struct PicturesArguments {
    /// Folder to put them in, instead of the documents' own.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Makes all of them, or all but the dashboard where there is no Prometheus.
pub(crate) fn run(workspace: &Workspace, arguments: &PicturesArguments) -> Result<()> {
    let start = Instant::now();
    let folder = match &arguments.to {
        Some(folder) => folder.clone(),
        None => workspace.root().join(FOLDER),
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = workspace.root().join(dashboard::PATH);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let dashboard = Dashboard::read(&text).context(dashboard::PATH)?;
    let vramd = workspace.build_program("vramd", "vramd")?;
    let program = match host_env::provide_prometheus(workspace) {
        Ok(program) => Some(program),
        Err(error) => {
            Workspace::lacks(&format!("the dashboard was NOT drawn: {error:#}"))?;
            None
        }
    };
    let scratch = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut scene = Scene::start(&vramd, scratch.path())?;
    let prometheus = program.map(|program| Prometheus::start(&program, scratch.path(), scene.metrics()));
    let prometheus = prometheus.transpose()?;
    let began = now();
    play(&mut scene, &folder)?;
    if let Some(prometheus) = prometheus {
        let span = Span {
            start: began,
            end: now(),
        };
        let answers = ask(&dashboard, &prometheus, span)?;
        let picture = panels::draw(&dashboard, &answers, scene.marks(), span)?;
        keep(&folder, "dashboard.svg", &picture)?;
        prometheus.stop()?;
    }
    scene.stop()?;
    println!("pictures made in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What happens, for somewhat more than a minute, and the pictures of terminals in its middle: then `a` has all that it uses, `b` is
/// kept below that, and `c` is frozen.
fn play(scene: &mut Scene, folder: &Path) -> Result<()> {
    scene.wait(4)?;
    scene.run("a", 7)?;
    scene.run("b", 8)?;
    scene.run("c", 12)?;
    scene.say("quota b --max 32M", 8)?;
    scene.say("freeze c", 4)?;
    show_top(scene, folder)?;
    show(scene, folder, "list")?;
    show(scene, folder, "why b")?;
    scene.wait(4)?;
    scene.say("thaw c", 9)?;
    scene.say("quota b --reset", 12)
}

/// `top`, once it has said twice how the VMs are, so that it knows what they do in a second.
fn show_top(scene: &Scene, folder: &Path) -> Result<()> {
    let mut terminal = Terminal::new(TOP_ROWS, TOP_COLUMNS)?;
    let program = terminal.start(&scene.verb("top"))?;
    let has_line = |seen: &str, words: &[&str]| {
        let mut lines = seen.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    terminal.see_until("VMs that work, want and are frozen", |seen| {
        // The GPU's part is 0 until there were two answers, and then not for long: they take turns.
        let states = [["a ", "works"], ["b ", "wants"], ["c ", "frozen"]];
        states.iter().all(|words| has_line(seen, words)) && !has_line(seen, &[" 0% "])
    })?;
    let screen = terminal.screen();
    let picture = screen::draw(screen, Area::whole(screen), "vramd top");
    keep(folder, "top.svg", &picture)?;
    terminal.end_by("q", program)
}

/// A command and what it prints, in a picture of the verb's name.
fn show(scene: &Scene, folder: &Path, line: &str) -> Result<()> {
    let mut terminal = Terminal::new(TABLE_ROWS, TABLE_COLUMNS)?;
    let command = format!("vramd {line}");
    terminal.run(&command, &scene.verb(line))?;
    let screen = terminal.screen();
    let picture = screen::draw(screen, Area::used(screen), &command);
    let name = line.split_whitespace().next().unwrap_or(line);
    keep(folder, &format!("{name}.svg"), &picture)
}

/// What Prometheus has for each target of each panel.
fn ask(dashboard: &Dashboard, prometheus: &Prometheus, span: Span) -> Result<Vec<Answered>> {
    let mut answers = Vec::new();
    for panel in &dashboard.panels {
        let mut answered = Answered::new();
        for target in &panel.targets {
            answered.push(prometheus.range(&target.question()?, span)?);
        }
        // A bound that is not set has no series; a panel without any would be an empty picture.
        ensure!(
            answered.iter().any(|series| !series.is_empty()),
            "panel {} has nothing to draw",
            panel.title
        );
        answers.push(answered);
    }
    Ok(answers)
}

fn keep(folder: &Path, name: &str, picture: &str) -> Result<()> {
    ensure!(
        picture.len() <= BYTES_MAX,
        "{name} has {} bytes, {BYTES_MAX} are allowed",
        picture.len()
    );
    let path = folder.join(name);
    fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{name}: {} bytes", picture.len());
    Ok(())
}
