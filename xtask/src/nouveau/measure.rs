//! Time of loading the driver: as served by default, and with every access trapped, in turns.
//!
//! Both sorts run on the same machine in the same minutes, so that their ratio says something where seconds alone do
//! not.

use anyhow::{Context, Result};
use serde::Serialize;

use super::device::Sizes;
use super::scenario::{Outcome, SCENARIOS};
use super::{Report, Setting, Trial, try_scenario};

/// The option of `vramd gpu` for the slow sort.
pub(super) const ALL_TRAPPED: &str = "--all-trapped";

/// One sort of runs.
#[derive(Debug, Default, Serialize)]
struct Sort {
    insmod_s: Vec<f64>,
    messages: Vec<u64>,
    waited_for: Vec<u64>,
}

/// Results of the measurement.
#[derive(Debug, Serialize)]
pub(super) struct Measurement {
    default: Sort,
    all_trapped: Sort,
    /// Seconds of the default by seconds with all trapped, medians of both.
    ratio: f64,
}

impl Sort {
    fn add(&mut self, report: &Report) -> Result<()> {
        let failed = report.steps.iter().find_map(|step| match &step.outcome {
            Outcome::Failed(why) => Some(why),
            Outcome::Passed => None,
        });
        anyhow::ensure!(
            failed.is_none(),
            "a run failed: {}",
            failed.map_or("", String::as_str)
        );
        self.insmod_s
            .push(*report.insmod_s.first().context("a run loaded nothing")?);
        let card = report.card.as_ref().context("a card that counted nothing")?;
        self.messages.push(card.messages);
        self.waited_for.push(card.waited_for);
        Ok(())
    }

    fn line(&self, name: &str) -> String {
        let seconds: Vec<_> = self
            .insmod_s
            .iter()
            .map(|seconds| format!("{seconds:.2}"))
            .collect();
        format!(
            "{name:<12} insmod {:.2} s (of {}), {} messages, {} waited for",
            median(&self.insmod_s),
            seconds.join(", "),
            median(&self.messages),
            median(&self.waited_for)
        )
    }
}

/// The middle value; of an even number, the later of two.
fn median<T: Copy + PartialOrd + Default>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Takes `rounds` runs of each sort, in turns.
pub(super) fn measure(setting: &Setting<'_>, rounds: u32) -> Result<Measurement> {
    let (mut default, mut all_trapped) = (Sort::default(), Sort::default());
    let trial = Trial {
        scenario: SCENARIOS[0],
        vms: 0,
        sizes: Sizes::OF_ONE,
        has_mesa: false,
        is_compared: false,
    };
    for round in 1..=rounds {
        for (sort, options) in [
            (&mut default, vec![]),
            (&mut all_trapped, vec![ALL_TRAPPED.to_owned()]),
        ] {
            println!(
                "── round {round}: {}",
                if options.is_empty() {
                    "default"
                } else {
                    ALL_TRAPPED
                }
            );
            sort.add(&try_scenario(setting, trial, &options)?)?;
        }
    }
    let ratio = median(&default.insmod_s) / median(&all_trapped.insmod_s);
    println!("{}\n{}", default.line("default"), all_trapped.line("all trapped"));
    println!("ratio of seconds: {ratio:.2}");
    Ok(Measurement {
        default,
        all_trapped,
        ratio,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(&[3, 1, 2]), 2);
        assert_eq!(median(&[4.0, 1.0]), 4.0);
        assert_eq!(median::<u64>(&[]), 0);
    }
}
