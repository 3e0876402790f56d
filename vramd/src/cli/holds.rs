//! Verbs that hold something back from a VM of a running broker, or let it go, and wait until its memory has followed.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use control::client::{self, Call};
use control::{Hold, HoldChanged, Spill, Usage, Vm};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use super::control::{Asked, size};

/// Time between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(20);
/// Nothing has moved for so long: memory that is to go does not go.
const STUCK: Duration = Duration::from_secs(10);
/// Nothing has moved for so long: memory that may come back has no room, or is not in use.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct HoldArguments {
    /// Name of the VM
    vm: String,
    /// Return at once; the memory follows
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct SpillArguments {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    spill: Spill,
    /// Return at once; the memory follows
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct SuspendArguments {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn freeze(arguments: &HoldArguments) -> anyhow::Result<u8> {
    moving(arguments, &client::freeze(&arguments.vm))
}

pub(super) fn thaw(arguments: &HoldArguments) -> anyhow::Result<u8> {
    moving(arguments, &client::thaw(&arguments.vm))
}

pub(super) fn refill(arguments: &HoldArguments) -> anyhow::Result<u8> {
    moving(arguments, &client::refill(&arguments.vm))
}

pub(super) fn spill(arguments: &SpillArguments) -> anyhow::Result<u8> {
    let call = client::spill(&arguments.vm, &arguments.spill);
    change(&arguments.asked, &arguments.vm, &call, !arguments.no_wait)
}

pub(super) fn suspend(arguments: &SuspendArguments) -> anyhow::Result<u8> {
    change(
        &arguments.asked,
        &arguments.vm,
        &client::suspend(&arguments.vm),
        false,
    )
}

pub(super) fn resume(arguments: &SuspendArguments) -> anyhow::Result<u8> {
    change(
        &arguments.asked,
        &arguments.vm,
        &client::resume(&arguments.vm),
        false,
    )
}

fn moving(arguments: &HoldArguments, call: &Call<HoldChanged>) -> anyhow::Result<u8> {
    change(&arguments.asked, &arguments.vm, call, !arguments.no_wait)
}

/// Asks for the change, waits for the memory if that is wanted, and shows the VM.
fn change(asked: &Asked, name: &str, call: &Call<HoldChanged>, waits: bool) -> anyhow::Result<u8> {
    let begun = Instant::now();
    let changed = asked.ask(call)?;
    let vm = match waits {
        true => followed(asked, name, changed.after)?,
        false => asked.ask(&client::vm(name))?,
    };
    asked.print(&vm, || sentence(&vm, waits.then(|| begun.elapsed())))
}

/// The VM, when its memory has gone where the hold wants it, or as far back as its share lets it.
fn followed(asked: &Asked, name: &str, hold: Hold) -> anyhow::Result<Vm> {
    let mut last: Option<(u64, Instant)> = None;
    let mut bar: Option<ProgressBar> = None;
    loop {
        let vm = asked.ask(&client::vm(name))?;
        let Some(usage) = vm.usage.as_ref().filter(|_| vm.hold == hold) else {
            // It has gone, or another operator has changed what holds.
            return Ok(vm);
        };
        let most = hold.vram_bytes.unwrap_or(u64::MAX);
        let left = match hold.vram_bytes {
            Some(most) => usage.resident_bytes.saturating_sub(most),
            None => usage.wanted_bytes,
        };
        if left == 0 {
            return Ok(vm);
        }
        let now = Instant::now();
        let since = match last {
            Some((before, since)) if before == left => now.duration_since(since),
            _ => {
                last = Some((left, now));
                Duration::ZERO
            }
        };
        let bar = bar.get_or_insert_with(|| progress(left));
        bar.set_position(bar.length().unwrap_or(left).saturating_sub(left));
        if hold.vram_bytes.is_none() && since >= SETTLED {
            return Ok(vm);
        }
        if since >= STUCK {
            let (resident, most) = (size(usage.resident_bytes), size(most));
            bail!(
                "vm {name} has {resident} in VRAM still, not {most}: nothing has moved for {} s; see vramd why {name}",
                STUCK.as_secs()
            );
        }
        thread::sleep(LOOK);
    }
}

/// A bar on a terminal, nothing elsewhere.
fn progress(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_finish(ProgressFinish::AndClear);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} to go") {
        bar.set_style(style);
    }
    bar
}

/// Words for what is held back from a VM; none if nothing is.
pub(super) fn hold_words(hold: &Hold) -> Option<String> {
    let memory = match hold.vram_bytes {
        Some(0) => Some("frozen".to_owned()),
        Some(bytes) => Some(format!("held at {}", size(bytes))),
        None => None,
    };
    let time = hold.is_suspended.then(|| "suspended".to_owned());
    let words: Vec<_> = memory.into_iter().chain(time).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn sentence(vm: &Vm, took: Option<Duration>) -> String {
    let state = hold_words(&vm.hold).unwrap_or_else(|| "not held".to_owned());
    let Some(usage) = &vm.usage else {
        return format!(
            "{} is {state}; it is not connected: this holds when it connects\n",
            vm.name
        );
    };
    let Usage {
        resident_bytes,
        spilled_bytes,
        wanted_bytes,
        lends,
        ..
    } = usage;
    let after = took.map_or_else(String::new, |took| format!(" after {:.2} s", took.as_secs_f64()));
    let wanted = match vm.hold.vram_bytes {
        None if *wanted_bytes > 0 && *lends => {
            format!(", {} of it in use: it rests, and lends that", size(*wanted_bytes))
        }
        None if *wanted_bytes > 0 => format!(
            ", {} of it in use: more is not its share now (vramd why {})",
            size(*wanted_bytes),
            vm.name
        ),
        _ => String::new(),
    };
    format!(
        "{} is {state}: {} in VRAM, {} in host RAM{wanted}{after}\n",
        vm.name,
        size(*resident_bytes),
        size(*spilled_bytes)
    )
}
