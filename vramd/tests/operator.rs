//! What an operator gets of a `serve` process beside the control API itself: metrics, a live view, completions, manual pages.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "operator/exposition.rs"]
mod exposition;
#[path = "operator/gone.rs"]
mod gone;
#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[path = "operator/looks.rs"]
mod looks;
#[path = "operator/metrics.rs"]
mod metrics;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;
#[path = "operator/story.rs"]
mod story;
#[path = "operator/terminal.rs"]
mod terminal;
#[path = "operator/top.rs"]
mod top;
#[path = "operator/verbs.rs"]
mod verbs;
#[path = "operator/watch.rs"]
mod watch;

use host::{Config, TestHost};

/// `serve` with two cards, VMs `a` and `b` on the first and `c` on the second.
fn served() -> TestHost {
    TestHost::serving(&two_cards(""))
}

/// A host.toml with them; `more` are lines of the control section.
fn two_cards(more: &str) -> Config {
    first_card(more).gpu("g1", "64M", "").vm("c", "48M", "")
}

/// The same without the second card and its VM.
fn first_card(more: &str) -> Config {
    let config = Config::new(more).gpu("g0", "64M", "");
    config.vm("a", "48M", "").vm("b", "48M", "")
}
