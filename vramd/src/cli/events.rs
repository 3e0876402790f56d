//! Verbs that tell what happened, and why a VM is as fast as it is.

use clap::Args;
use control::{Account, Event, EventKind, Events, Gpus, Usage, Vm, Vms, client};
use jiff::Timestamp;
use serde::Serialize;

use super::control::{Asked, check_gpu, json_lines, milliseconds, size};
use super::watch::{Watch, write};

/// How long one request of those who follow waits, in milliseconds.
const WAIT_MS: u32 = 10_000;
/// Moves that `why` names.
const MOVES: usize = 10;

#[derive(Args, Debug)]
pub(super) struct EventsArguments {
    /// Go on as more happens; with --json, one event a line
    #[arg(long)]
    follow: bool,
    /// Events of this card alone
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Events of this VM alone
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct WhyArguments {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    asked: Asked,
}

/// `vramd events`: what happened, to all or to some.
pub(super) fn events(arguments: &EventsArguments) -> anyhow::Result<u8> {
    let asked = &arguments.asked;
    check_names(arguments)?;
    let is_meant = |event: &Event| {
        arguments.gpu.as_ref().is_none_or(|gpu| *gpu == event.gpu)
            && arguments
                .vm
                .as_ref()
                .is_none_or(|vm| event.vm.as_ref() == Some(vm))
    };
    let mut told = all_kept(asked)?;
    told.events.retain(is_meant);
    if !arguments.follow {
        return asked.print(&told, || lines(&told));
    }
    loop {
        write(&match asked.json {
            true => json_lines(&told.events)?,
            false => lines(&told),
        })?;
        told = asked.ask(&client::events(Some(&told.cursor), WAIT_MS))?;
        told.events.retain(is_meant);
    }
}

/// All that is kept, which may be more than one answer has.
fn all_kept(asked: &Asked) -> anyhow::Result<Events> {
    let mut all = asked.ask(&client::events(None, 0))?;
    while all.has_more {
        let mut next = asked.ask(&client::events(Some(&all.cursor), 0))?;
        all.events.append(&mut next.events);
        all.lost += next.lost;
        (all.cursor, all.has_more) = (next.cursor, next.has_more);
    }
    Ok(all)
}

/// A name that nothing has would match no event, for ever.
fn check_names(arguments: &EventsArguments) -> anyhow::Result<()> {
    let asked = &arguments.asked;
    if let Some(vm) = &arguments.vm {
        asked.ask(&client::vm(vm))?;
    }
    if let Some(gpu) = &arguments.gpu {
        let Gpus { gpus, gone } = asked.ask(&client::gpus())?;
        check_gpu(gpu, &gpus, &gone)?;
    }
    Ok(())
}

fn lines(told: &Events) -> String {
    let mut text = String::new();
    if told.lost > 0 {
        text += &format!("({} that are not kept any more)\n", told.lost);
    }
    text.extend(told.events.iter().map(line));
    text
}

/// Time, card, VM, kind, text, and figures.
fn line(event: &Event) -> String {
    let of = event.vm.as_deref().unwrap_or("-");
    let mut text = format!(
        "{}  {:<8} {of:<12} {:<14} {}",
        time(event.at_unix_ns),
        event.gpu,
        event.kind.word(),
        event.text
    );
    if let Some(bytes) = event.bytes {
        text += &format!(", {}", size(bytes));
    }
    if let Some(took) = event.took_ns {
        text += &format!(", {}", milliseconds(took));
    }
    text + "\n"
}

/// UTC, to the millisecond.
fn time(unix_ns: u64) -> String {
    let at = Timestamp::from_nanosecond(unix_ns.into());
    at.map_or_else(|_| unix_ns.to_string(), |at| format!("{at:.3}"))
}

/// What `why --json` prints.
#[derive(Serialize)]
struct Why {
    vm: Vm,
    others: Vec<Vm>,
    moves: Vec<Event>,
}

/// `vramd why VM`: where its memory is, whom it went for, and what that cost.
pub(super) fn why(arguments: &WhyArguments) -> anyhow::Result<u8> {
    let asked = &arguments.asked;
    asked.show(
        &arguments.watch,
        || reasons(asked, &arguments.vm),
        |why| Ok(page(why)),
    )
}

fn reasons(asked: &Asked, vm: &str) -> anyhow::Result<Why> {
    let vm = asked.ask(&client::vm(vm))?;
    let Vms { vms, .. } = asked.ask(&client::vms())?;
    let told = all_kept(asked)?;
    let is_move = |event: &Event| {
        let moves = matches!(
            event.kind,
            EventKind::Spilled | EventKind::Refilled | EventKind::RolledBack
        );
        moves && event.vm.as_ref() == Some(&vm.name)
    };
    let mut moves: Vec<_> = told.events.into_iter().filter(is_move).collect();
    moves.drain(..moves.len().saturating_sub(MOVES));
    let others = vms
        .into_iter()
        .filter(|other| other.gpu == vm.gpu && other.name != vm.name);
    Ok(Why {
        others: others.collect(),
        vm,
        moves,
    })
}

fn page(why: &Why) -> String {
    let Why { vm, others, moves } = why;
    let (Some(usage), Some(account)) = (&vm.usage, &vm.account) else {
        return format!("{} is not connected\n", vm.name);
    };
    let mut text = memory(vm, usage) + &time_lost(account);
    let holders = others.iter().filter_map(|other| {
        let usage = other.usage.as_ref()?;
        Some(format!("{} {}", other.name, size(usage.resident_bytes)))
    });
    let holders: Vec<_> = holders.collect();
    if !holders.is_empty() {
        text += &format!("the other VMs of {} hold {}\n", vm.gpu, holders.join(", "));
    }
    for of in &account.spilled_for {
        let whom = of.vm.as_deref().unwrap_or("VMs that are gone");
        text += &format!("{} were moved out for {whom}\n", size(of.bytes));
    }
    if !moves.is_empty() {
        text += "its last moves:\n";
        text.extend(moves.iter().map(line));
    }
    text
}

fn memory(vm: &Vm, usage: &Usage) -> String {
    let mut text = format!("{} has {} in VRAM", vm.name, size(usage.resident_bytes));
    match usage.wanted_bytes {
        0 => text += "; nothing that it uses is in host RAM\n",
        wanted => {
            let in_use = usage.active_bytes + wanted;
            let percent = wanted as f64 / in_use as f64 * 100.0;
            text += &format!(
                "; of what it uses {}, or {percent:.0} %, is in host RAM, behind the link\n",
                size(wanted)
            );
        }
    }
    if usage.lends && usage.wanted_bytes > 0 {
        text += "it rests, and lends what min and low do not protect to VMs that want it\n";
    }
    text
}

/// What moves of its memory took of its time.
fn time_lost(account: &Account) -> String {
    let seconds = (account.attached_ns as f64 / 1e9).max(1e-9);
    let share = |ns: u64| ns as f64 / 1e9 / seconds * 100.0;
    format!(
        "it stood still for {:.2} % of its time: {} times, {} at most\n\
         its accesses waited for memory for {:.2} %, its page tables for {:.2} %\n\
         its moves took {} over the link, {:.1} MiB a second\n",
        share(account.pauses.total_ns),
        account.pauses.count,
        milliseconds(account.pauses.max_ns),
        share(account.demand_waits.total_ns),
        share(account.sync_waits.total_ns),
        size(account.link_bytes),
        account.link_bytes as f64 / f64::from(1 << 20) / seconds,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_the_time_who_what_and_how_long() {
        let event = Event {
            at_unix_ns: 1_700_000_000_123_456_789,
            gpu: "g0".into(),
            vm: Some("a".into()),
            kind: EventKind::Spilled,
            text: "2 chunks to host RAM: b needs VRAM".into(),
            bytes: Some(4 << 20),
            for_vm: Some("b".into()),
            took_ns: Some(1_500_000),
        };
        assert_eq!(
            line(&event),
            "2023-11-14T22:13:20.123Z  g0       a            spilled        2 chunks to host RAM: b needs VRAM, 4M, 1.5 ms\n"
        );
    }
}
