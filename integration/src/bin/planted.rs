//! Plants one fault in this process and simulates runs until one of them finds it. For `cargo xtask planted`.
//!
//! Seeds that are named come before the others; the first one is tried whatever the time. Prints one line of JSON: who found what, in which seed, after how many runs and
//! milliseconds.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use integration::sim::{Settings, Telling, run};
use integration::{contenders, crowd, fuzz, heir, keeper, lender, opener, tables, windows};
use planted::Fault;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

/// Of so many seeds one has an endless grid beside a VM that waits, before its run; one has syncs that are counted, one
/// channels that come while memory moves, one a move of a VM whose grid never ends, one two VMs of which one has long grids, one two VMs with all their channels, one a table that the GPU writes, one doorbells in memory, and
/// two a VM that rests, or waits for a semaphore, beside one that works, and one a channel that gets its number from one that made an error.
const DIRECTED_EVERY: u64 = 16;
/// Bytes of an input of syncs.
const SYNCS_BYTES: usize = 1_500;
const USAGE: &str = "usage: planted FAULT|none FIRST_SEED SEEDS_MAX SECONDS_MAX [SEED…]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [fault, numbers @ ..] = &arguments[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
    let numbers = numbers.unwrap_or_default();
    let [first, seeds, seconds, ref before @ ..] = numbers[..] else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match fault.as_str() {
        "none" => {}
        name => match name.parse::<Fault>() {
            Ok(fault) => planted::plant(fault),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        },
    }
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    let others = (first..first.saturating_add(seeds)).filter(|seed| !before.contains(seed));
    let mut runs = 0;
    let mut found = None;
    for seed in before.iter().copied().chain(others) {
        if found.is_some() || runs > 0 && start.elapsed() >= limit {
            break;
        }
        runs += 1;
        found = look(seed).map(|(by, what)| (seed, by, what));
    }
    let took_ms = start.elapsed().as_millis() as u64;
    let line = match found {
        Some((seed, by, what)) => json!({
            "fault": fault, "seed": seed, "by": by, "what": what, "runs": runs, "took_ms": took_ms
        }),
        None => json!({ "fault": fault, "runs": runs, "took_ms": took_ms }),
    };
    println!("{line}");
    ExitCode::SUCCESS
}

/// Syncs of two VMs beside a third one's, each event's work counted; panics over what is wrong.
fn syncs(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let input: Vec<u8> = (0..SYNCS_BYTES).map(|_| rng.random()).collect();
    let target = fuzz::target("sync_cost").expect("a target of that name");
    (target.body)(&input);
}

/// One run: who found what, if anybody did. A panic is an assertion of the product that bit.
fn look(seed: u64) -> Option<(&'static str, String)> {
    let said = Arc::new(Mutex::new(String::new()));
    let into = Arc::clone(&said);
    std::panic::set_hook(Box::new(move |panic| {
        let mut said = into.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if said.is_empty() {
            *said = panic.to_string().replace('\n', " ");
        }
    }));
    let settings = Settings {
        telling: Telling::Nothing,
        // Some limits bind only where a policy asks for too much.
        hostile_policy: seed % 4 == 3,
        ..Settings::default()
    };
    // A grid that never ends is nothing for a run of its own: its time would be all of the run's.
    let outcome = std::panic::catch_unwind(|| match seed % DIRECTED_EVERY {
        0 => keeper::endless_grid_is_stopped(),
        1 => {
            syncs(seed);
            Ok(())
        }
        2 => opener::channels_opened_during_moves(),
        3 => keeper::move_does_not_wait_for_an_endless_grid(),
        4 => keeper::suspended_vm_does_not_run(),
        5 => contenders::engine_is_shared_by_weight(),
        6 => crowd::all_channels_of_two_vms_work(),
        7 => tables::table_that_the_gpu_writes_stays_where_it_is(),
        8 => windows::bar1::doorbells_in_memory_are_rung(false),
        9 => lender::who_rests_lends_and_who_works_does_not(),
        10 => lender::who_waits_lends_and_goes_on_lending(),
        11 => heir::nobody_answers_for_the_last_owner_of_a_number(),
        _ => Ok(()),
    });
    let outcome = outcome.map(|result| result.err().map(|violation| violation.0));
    let outcome = outcome.and_then(|found| match found {
        Some(what) => Ok(Some(what)),
        None => std::panic::catch_unwind(|| run(seed, settings).violation),
    });
    match outcome {
        Ok(violation) => violation.map(|what| ("simulator", what)),
        Err(_) => {
            let said = said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            Some(("assertion", said.clone()))
        }
    }
}
