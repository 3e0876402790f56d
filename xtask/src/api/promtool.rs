//! Metrics and example alerts, as Prometheus reads them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::served::Served;
use crate::process::PATIENCE;

/// The alerts, and what each has to say to figures of a time, from the root of the workspace.
const ALERTS: &str = "docs/examples/alerts.yaml";
const ALERTS_TRIED: &str = "docs/examples/alerts-test.yaml";

/// Reads the alerts, and tries each of them.
pub(super) fn check_alerts(promtool: &Path, root: &Path) -> Result<()> {
    for words in [["check", "rules", ALERTS], ["test", "rules", ALERTS_TRIED]] {
        let status = Command::new(promtool)
            .args(words)
            .current_dir(root)
            .stdin(Stdio::null())
            .status();
        let status = status.context("cannot start promtool")?;
        ensure!(
            status.success(),
            "promtool {} ended with {status}",
            words.join(" ")
        );
    }
    every_alert_is_tried(root)
}

/// An alert that is in no test would never be seen to work.
fn every_alert_is_tried(root: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (alerts, tried) = (read(ALERTS)?, read(ALERTS_TRIED)?);
    let names = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let is_tried = |name: &&str| {
        let line = format!("alertname: {name}");
        !tried
            .lines()
            .any(|other| other.trim().trim_start_matches("- ") == line)
    };
    let missing: Vec<_> = names.filter(is_tried).collect();
    ensure!(
        missing.is_empty(),
        "{ALERTS_TRIED} does not try {}",
        missing.join(", ")
    );
    Ok(())
}

/// Has promtool read what a scraper gets at this moment. It reads the older of the two texts alone.
pub(super) fn check_metrics(promtool: &Path, served: &Served) -> Result<()> {
    let mut stream = UnixStream::connect(served.socket()).context("cannot reach the broker")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /v1/metrics HTTP/1.1\r\nhost: vramd\r\naccept: text/plain\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "metrics: {head}");
    ensure!(body.lines().count() > 50, "metrics without figures: {body}");
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start promtool")?;
    let mut input = check.stdin.take().context("no pipe to write to")?;
    input.write_all(body.as_bytes())?;
    drop(input);
    let status = check.wait()?;
    ensure!(status.success(), "promtool check metrics ended with {status}");
    println!("promtool: {} lines of metrics read", body.lines().count());
    Ok(())
}
