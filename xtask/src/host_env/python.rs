//! A virtual environment of Python with packages of exact versions and hashes, kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::apt::output;
use super::cache::Cache;
use super::pins;

const PYTHON: &str = "python3";

/// The interpreter of an environment that has what `requirements` names. Programs of packages start by `-m`: an environment is made
/// elsewhere and moved, and what is in its `bin` would look for an interpreter there.
pub(super) fn provide(requirements: &Path, cache: &Cache) -> Result<PathBuf> {
    let text = fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    // What is compiled in a package fits one version of Python.
    let version = output(Command::new(PYTHON).arg("--version")).context("there is no Python")?;
    let name = pins::cache_name("python", &format!("{version}{text}"));
    let interpreter = |folder: &Path| folder.join("bin").join(PYTHON);
    let kept = interpreter(&cache.path(&name));
    if output(Command::new(&kept).arg("--version")).is_ok_and(|told| told == version) {
        return Ok(kept);
    }
    let start = Instant::now();
    let build = cache.build_folder()?;
    let folder = build.path().join("python");
    println!("Python: fetching what {} names", requirements.display());
    output(Command::new(PYTHON).args(["-m", "venv"]).arg(&folder))
        .context("cannot make a virtual environment (package python3-venv)")?;
    let mut pip = Command::new(interpreter(&folder));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--only-binary", ":all:", "--require-hashes", "--requirement"])
        .arg(requirements);
    output(&mut pip).context("pip cannot fetch packages")?;
    let folder = cache.keep(&folder, &name)?;
    println!("Python: fetched in {:.1} s", start.elapsed().as_secs_f64());
    Ok(interpreter(&folder))
}
