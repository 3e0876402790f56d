//! Programs of Prometheus, each of a package of its own: the machine's, or one kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::pins::Pin;

/// Reads metrics and rules.
pub(super) const PROMTOOL: &str = "promtool";
/// Scrapes, keeps what it scraped, and answers questions about it.
pub(super) const SERVER: &str = "prometheus";
/// Version of the layout: grows when the contents of an entry are arranged in another way.
const LAYOUT: u32 = 1;

/// The machine's own if there is one, otherwise the cached one.
pub(super) fn find(program: &str, pin: &Pin, cache: &Cache) -> Result<PathBuf> {
    let cached = cache.path(&pin.cache_name(program, LAYOUT));
    check(PathBuf::from(program)).or_else(|_| check(cached))
}

/// Fetches one into the cache. It needs the C library alone, and that of any Debian since 12 will do.
pub(super) fn fetch(program: &str, pin: &Pin, cache: &Cache, apt: &Apt, build: &Path) -> Result<PathBuf> {
    let unpacked = build.join(format!("{program}-package"));
    apt::unpack(&apt.download_alone(&pin.packages)?, &unpacked)?;
    let made = check(unpacked.join("usr/bin").join(program))?;
    cache.keep(&made, &pin.cache_name(program, LAYOUT))
}

fn check(program: PathBuf) -> Result<PathBuf> {
    let version = apt::output(Command::new(&program).arg("--version"));
    version.with_context(|| format!("{} does not start", program.display()))?;
    Ok(program)
}
