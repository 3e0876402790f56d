//! Verbs that ask a running broker.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use control::{
    Account, GoneGpu, Gpu, GpuChange, Gpus, Pauses, PlaceSource, Quota, QuotaChange, QuotaChanged,
    QuotaSource, Vm, Vms, client,
};
use serde::Serialize;
use sizes::Size;

use super::holds::hold_words;
use super::watch::{Watch, write};
use crate::control::ask;

/// Names the broker's socket where `--control` does not.
const VARIABLE: &str = "VRAMD_CONTROL";
/// The broker's socket where nothing names it.
const SOCKET: &str = "/run/vramd/control.sock";

/// Whom to ask, and how to answer.
#[derive(Args, Debug)]
pub(super) struct Asked {
    /// Control socket of the broker [default: $VRAMD_CONTROL, or /run/vramd/control.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args, Debug)]
pub(super) struct ListArguments {
    /// VMs of this card alone
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct ShowArguments {
    /// Name of the VM
    vm: String,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct QuotaArguments {
    /// Name of the VM
    #[arg(required_unless_present = "gpu")]
    vm: Option<String>,
    #[command(flatten)]
    change: QuotaChange,
    /// Take back what operators said: the quota is what host.toml says, or what the VM was attached with
    #[arg(long, conflicts_with_all = ["min", "low", "high", "max", "weight", "gpu"])]
    reset: bool,
    /// Instead of a VM's quota, what the card of this name has for all its VMs
    #[arg(long, value_name = "NAME", requires = "host_ram_bytes", conflicts_with_all = ["vm", "min", "low", "high", "max", "weight"])]
    gpu: Option<String>,
    #[command(flatten)]
    of_gpu: GpuChange,
    #[command(flatten)]
    asked: Asked,
}

impl Asked {
    pub(super) fn ask<T: serde::de::DeserializeOwned>(&self, call: &client::Call<T>) -> anyhow::Result<T> {
        ask(&socket(self.control.as_ref()), call)
    }

    /// Prints the document, or what people read.
    pub(super) fn print(
        &self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<u8> {
        write(&match self.json {
            true => serde_json::to_string_pretty(document)? + "\n",
            false => text(),
        })?;
        Ok(0)
    }

    /// Prints what `look` returns, once or as long as it is watched.
    pub(super) fn show<T: Serialize>(
        &self,
        watch: &Watch,
        mut look: impl FnMut() -> anyhow::Result<T>,
        text: impl Fn(&T) -> anyhow::Result<String>,
    ) -> anyhow::Result<u8> {
        watch.show(self.json, || {
            let document = look()?;
            Ok(match (self.json, watch.is_on()) {
                (true, true) => serde_json::to_string(&document)? + "\n",
                (true, false) => serde_json::to_string_pretty(&document)? + "\n",
                (false, _) => text(&document)?,
            })
        })
    }
}

/// One document a line.
pub(super) fn json_lines(documents: &[impl Serialize]) -> anyhow::Result<String> {
    let lines = documents
        .iter()
        .map(|document| Ok(serde_json::to_string(document)? + "\n"));
    lines.collect()
}

/// What `list --json` prints.
#[derive(Serialize)]
struct Listed {
    gpus: Vec<Gpu>,
    vms: Vec<Vm>,
    gone: Vec<GoneGpu>,
}

/// `vramd list`: all cards and VMs.
pub(super) fn list(arguments: &ListArguments) -> anyhow::Result<u8> {
    arguments.asked.show(
        &arguments.watch,
        || listed(arguments),
        |listed| {
            let tables = format!("{}\n{}", gpu_table(&listed.gpus), vm_table(&listed.vms));
            Ok(tables + &gone_lines(&listed.gone))
        },
    )
}

fn listed(arguments: &ListArguments) -> anyhow::Result<Listed> {
    let asked = &arguments.asked;
    let Gpus { mut gpus, mut gone } = asked.ask(&client::gpus())?;
    let Vms { mut vms, .. } = asked.ask(&client::vms())?;
    if let Some(name) = &arguments.gpu {
        check_gpu(name, &gpus, &gone)?;
        gpus.retain(|gpu| gpu.name == *name);
        vms.retain(|vm| vm.gpu == *name);
        gone.retain(|gpu| gpu.name == *name);
    }
    Ok(Listed { gpus, vms, gone })
}

/// A name that no card has is a mistake.
pub(super) fn check_gpu(name: &str, gpus: &[Gpu], gone: &[GoneGpu]) -> anyhow::Result<()> {
    let of_gone = gone.iter().map(|gpu| gpu.name.as_str());
    let names: Vec<_> = gpus.iter().map(|gpu| gpu.name.as_str()).chain(of_gone).collect();
    let all = names.join(", ");
    ensure!(names.contains(&name), "there is no gpu {name:?}; there are {all}");
    Ok(())
}

/// A line for each card that answers no more.
pub(super) fn gone_lines(gone: &[GoneGpu]) -> String {
    let line = |gpu: &GoneGpu| {
        let vms = gpu.vms.join(", ");
        format!(
            "\ngpu {} is gone, with its VMs ({vms}): {}\n",
            gpu.name, gpu.reason
        )
    };
    gone.iter().map(line).collect()
}

/// `vramd show VM`: one VM.
pub(super) fn show(arguments: &ShowArguments) -> anyhow::Result<u8> {
    let asked = &arguments.asked;
    asked.show(
        &arguments.watch,
        || asked.ask(&client::vm(&arguments.vm)),
        |vm| Ok(vm_page(vm)),
    )
}

/// `vramd quota VM`: changes a quota, or shows it; `vramd quota --gpu NAME`: what a card has for all its VMs.
pub(super) fn quota(arguments: &QuotaArguments) -> anyhow::Result<u8> {
    let asked = &arguments.asked;
    if let Some(gpu) = &arguments.gpu {
        let changed = asked.ask(&client::change_gpu(gpu, &arguments.of_gpu))?;
        let (before, after) = (changed.before_host_ram_bytes, changed.after_host_ram_bytes);
        return asked.print(&changed, || {
            format!(
                "{gpu} has {} of host RAM for its VMs, it had {}\n",
                size(after),
                size(before)
            )
        });
    }
    ensure!(
        arguments.of_gpu.host_ram_bytes.is_none(),
        "host RAM is a card's, for all its VMs: vramd quota --gpu NAME --host-ram SIZE"
    );
    let vm = arguments.vm.as_deref().unwrap_or_default();
    let call = match arguments.reset {
        true => client::reset_quota(vm),
        false => client::change_quota(vm, &arguments.change),
    };
    let changed = asked.ask(&call)?;
    asked.print(&changed, || quota_table(vm, &changed))
}

/// The broker's socket: the one that is named, the variable's, or the usual.
pub(super) fn socket(named: Option<&PathBuf>) -> PathBuf {
    let named = named.cloned();
    let socket = named.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    socket.unwrap_or_else(|| SOCKET.into())
}

pub(super) fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

fn gpu_table(gpus: &[Gpu]) -> String {
    let head = [
        "GPU", "VRAM", "USABLE", "FREE", "PROMISED", "SPILLED", "HOST RAM", "ERRORS",
    ];
    let row = |gpu: &Gpu| {
        let bytes = [
            gpu.vram_bytes,
            gpu.usable_bytes,
            gpu.free_bytes,
            gpu.promised_bytes,
            gpu.spilled_bytes,
            gpu.host_ram_bytes,
        ];
        let sizes = bytes.map(size);
        [
            vec![gpu.name.clone()],
            sizes.to_vec(),
            vec![gpu.host_errors.to_string()],
        ]
        .concat()
    };
    table(&head, gpus.iter().map(row).collect())
}

fn vm_table(vms: &[Vm]) -> String {
    let head = [
        "VM", "GPU", "STATE", "RESIDENT", "SPILLED", "WANTED", "GUEST", "MIN", "LOW", "HIGH", "MAX",
        "WEIGHT", "QUOTA",
    ];
    let row = |vm: &Vm| {
        let held = match &vm.usage {
            Some(usage) => [usage.resident_bytes, usage.spilled_bytes, usage.wanted_bytes].map(size),
            None => ["", "", ""].map(str::to_owned),
        };
        let mut row = vec![vm.name.clone(), vm.gpu.clone(), state(vm)];
        row.extend(held);
        row.push(size(vm.guest_vram_bytes));
        row.extend(quota_words(&vm.quota));
        row.push(source(vm).to_owned());
        row
    };
    table(&head, vms.iter().map(row).collect())
}

/// Whether a VMM is connected, and what an operator holds back.
fn state(vm: &Vm) -> String {
    match (&vm.usage, hold_words(&vm.hold)) {
        (Some(_), None) => "connected".to_owned(),
        (Some(_), Some(words)) => words,
        (None, None) => "not connected".to_owned(),
        (None, Some(words)) => format!("not connected, {words}"),
    }
}

fn quota_table(vm: &str, changed: &QuotaChanged) -> String {
    let row = |name: &str, quota: &Quota| [vec![name.to_owned()], quota_words(quota)].concat();
    let mut rows = vec![row("before", &changed.before), row("after", &changed.after)];
    if changed.before == changed.after {
        rows = vec![row("as it was", &changed.after)];
    }
    let mut text = table(&["QUOTA", "MIN", "LOW", "HIGH", "MAX", "WEIGHT"], rows);
    if !changed.is_attached {
        text += &format!("vm {vm} is not connected: this holds when it connects\n");
    }
    text
}

fn quota_words(quota: &Quota) -> Vec<String> {
    let bounds = [quota.min, quota.low, quota.high, quota.max].map(|bound| bound.to_string());
    bounds.into_iter().chain([quota.weight.to_string()]).collect()
}

fn source(vm: &Vm) -> &'static str {
    match (vm.quota_source, vm.source) {
        (QuotaSource::Control, _) => "changed",
        (QuotaSource::File, PlaceSource::File) => "host.toml",
        (QuotaSource::File, PlaceSource::Control) => "attached",
    }
}

/// Where each word of a quota is from; what the file says beside what an operator said.
fn quota_from(vm: &Vm) -> String {
    let first = match vm.source {
        PlaceSource::File => "host.toml",
        PlaceSource::Control => "attached so",
    };
    let Some(file) = &vm.file_quota else {
        return match vm.quota_source {
            QuotaSource::File => first.to_owned(),
            QuotaSource::Control => "changed since it was attached".to_owned(),
        };
    };
    let names = ["min", "low", "high", "max", "weight"];
    let words = names
        .into_iter()
        .zip(quota_words(&vm.quota))
        .zip(quota_words(file));
    let differing = words.filter(|((_, now), of_file)| now != of_file);
    let differing: Vec<_> = differing
        .map(|((name, _), of_file)| format!("{name} {of_file}"))
        .collect();
    match differing.is_empty() {
        true => first.to_owned(),
        false => format!("changed; host.toml: {}", differing.join(", ")),
    }
}

fn vm_page(vm: &Vm) -> String {
    let [min, low, high, max] = [vm.quota.min, vm.quota.low, vm.quota.high, vm.quota.max];
    let mut lines = vec![
        ("vm", format!("{} on {}", vm.name, vm.gpu)),
        ("socket", vm.socket.clone()),
        (
            "guest VRAM",
            format!(
                "{} in chunks of {}",
                size(vm.guest_vram_bytes),
                size(vm.chunk_bytes)
            ),
        ),
        (
            "quota",
            format!(
                "min {min}, low {low}, high {high}, max {max}, weight {} ({})",
                vm.quota.weight,
                quota_from(vm)
            ),
        ),
    ];
    lines.push(("state", state(vm)));
    if let (Some(usage), Some(account)) = (&vm.usage, &vm.account) {
        let in_vram = format!(
            "{}: {} in use, {} idle; {} at most",
            size(usage.resident_bytes),
            size(usage.active_bytes),
            size(usage.idle_bytes),
            size(usage.resident_peak_bytes)
        );
        lines.push(("in VRAM", in_vram));
        let in_host_ram = format!(
            "{}, of which {} in use",
            size(usage.spilled_bytes),
            size(usage.wanted_bytes)
        );
        lines.push(("in host RAM", in_host_ram));
        if usage.lends && usage.wanted_bytes > 0 {
            let words = "it rests, and what min and low do not protect is lent to VMs that want it";
            lines.push(("lends", words.to_owned()));
        }
        lines.extend(account_lines(account));
    }
    let rows = lines
        .into_iter()
        .map(|(name, text)| format!("{name:<12}  {text}\n"));
    rows.collect()
}

fn account_lines(account: &Account) -> Vec<(&'static str, String)> {
    let seconds = account.attached_ns as f64 / 1e9;
    let Pauses {
        count,
        share_ppm,
        p50_ns,
        p99_ns,
        max_ns,
        ..
    } = account.pauses;
    let share = share_ppm as f64 / 10_000.0;
    let moved = format!(
        "{} out, {} back, {} over the link, {} given up",
        size(account.spilled_out_bytes),
        size(account.refilled_bytes),
        size(account.link_bytes),
        account.rolled_back
    );
    let paused = format!(
        "{count} times, {share:.2} % of its time; median {}, 99 % {}, longest {}",
        milliseconds(p50_ns),
        milliseconds(p99_ns),
        milliseconds(max_ns)
    );
    let part = |ns: u64| ns as f64 * 100.0 / account.attached_ns.max(1) as f64;
    let on_gpu = format!(
        "{:.1} s computing, {:.1} % of its time; {:.1} s copying, {:.1} %",
        account.graph_ns as f64 / 1e9,
        part(account.graph_ns),
        account.copy_ns as f64 / 1e9,
        part(account.copy_ns)
    );
    let waited = format!(
        "{} accesses {}, {} updates of page tables {}, work {} times {}; {} chunks had to go to host RAM",
        account.demand_waits.count,
        milliseconds(account.demand_waits.total_ns),
        account.sync_waits.count,
        milliseconds(account.sync_waits.total_ns),
        account.work_waits.count,
        milliseconds(account.work_waits.total_ns),
        account.demanded_in_host_ram
    );
    let moved_for = account.spilled_for.iter().map(|of| {
        let vm = of.vm.as_deref().unwrap_or("VMs that are gone");
        format!("{} {vm}", size(of.bytes))
    });
    let moved_for: Vec<_> = moved_for.collect();
    let mut lines = vec![
        ("connected", format!("{seconds:.1} s")),
        ("on the GPU", on_gpu),
        ("moved", moved),
        ("paused", paused),
        ("waited", waited),
    ];
    if !moved_for.is_empty() {
        lines.push(("moved for", moved_for.join(", ")));
    }
    if account.guest_errors + account.channels_killed > 0 {
        let text = format!(
            "{} of the guest, {} channels stopped",
            account.guest_errors, account.channels_killed
        );
        lines.push(("errors", text));
    }
    lines
}

pub(super) fn milliseconds(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

/// Columns as wide as their widest word: names to the left, figures to the right.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head = head.iter().map(|&word| word.to_owned()).collect();
    let rows = [vec![head], rows].concat();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let words = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (word, width))| match column {
                0 => format!("{word:<width$}"),
                _ => format!("{word:>width$}"),
            });
        words.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_word() {
        let rows = vec![
            vec!["a".to_owned(), "16M".to_owned()],
            vec!["long".to_owned(), "1G".to_owned()],
        ];
        assert_eq!(table(&["VM", "MIN"], rows), "VM    MIN\na     16M\nlong   1G\n");
    }
}
