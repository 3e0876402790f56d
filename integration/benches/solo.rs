//! What a VM that is alone on a card loses to the mediator, by the length of its jobs: the same code on a card and on a vGPU, in turns, on a paced
//! card.

use std::time::Duration;

use anyhow::{Context as _, Result};
use integration::solo::Solo;

/// Lengths of jobs, how much longer than on the card they may be, in percent, and how many are run in a round.
const JOBS: [(Duration, f64, u32); 3] = [
    (Duration::from_micros(2000), 1.0, 50),
    (Duration::from_micros(500), 5.0, 200),
    (Duration::from_micros(50), 20.0, 2000),
];
/// Jobs that are handed over at a time.
const QUEUED: [u32; 2] = [1, 4];
const ROUNDS: usize = 15;
/// Steps of the job by which the card's pace is found.
const TRIED: u32 = 50_000;

fn main() -> Result<()> {
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let mut vgpu = Solo::on_a_vgpu().context("the vGPU")?;
    let mut card = Solo::on_a_card().context("the card")?;
    card.set_job(TRIED);
    let per_step = card.run(10, 4)?.as_secs_f64() / 10.0 / f64::from(TRIED);
    println!(
        "{:>10} {:>8} {:>12} {:>12} {:>10} {:>8}",
        "job", "queued", "card us", "vGPU us", "longer", "goal"
    );
    for (job, goal, jobs) in JOBS {
        let steps = (job.as_secs_f64() / per_step) as u32;
        card.set_job(steps);
        vgpu.set_job(steps);
        for queued in QUEUED {
            let (mut alone, mut mediated) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                alone.push(card.run(jobs, queued)? / jobs);
                mediated.push(vgpu.run(jobs, queued)? / jobs);
            }
            let (alone, mediated) = (median(alone), median(mediated));
            let longer = 100.0 * (mediated / alone - 1.0);
            println!(
                "{:>10} {queued:>8} {:>12.1} {:>12.1} {:>8.1} % {goal:>6} %  {}",
                format!("{job:?}"),
                1e6 * alone,
                1e6 * mediated,
                longer,
                if longer > goal { "goal missed" } else { "" }
            );
        }
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}
