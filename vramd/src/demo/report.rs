//! Results of the demo, as one JSON object and as a table.

use std::fmt;

use broker::{Accesses, BrokerStats, Pauses};
use fermi_model::Counters;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{DemoOptions, Member};
use sizes::Size;
use vramd_vm::guest::{Digest, InputFile, KernelResult, hex};

/// Times for which a VM's channels were suspended, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PauseReport {
    /// Median of the times.
    pub p50: f64,
    /// 99 of 100 are no longer.
    pub p99: f64,
    /// Longest of the times.
    pub max: f64,
}

/// Results of one VM.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VmReport {
    /// Name of the VM.
    pub name: String,
    /// Workload: `files`, or the name of a kernel.
    pub workload: String,
    /// It ended well, and every byte was right.
    pub ok: bool,
    /// VRAM that it saw.
    pub guest_vram_bytes: u64,
    /// Chunks that the broker backed for it, in bytes.
    pub touched_bytes: u64,
    /// The most that it had in VRAM.
    pub resident_peak_bytes: u64,
    /// The most that it had in host RAM.
    pub spilled_peak_bytes: u64,
    /// Chunks moved out.
    pub spills: u64,
    /// Chunks moved back.
    pub refills: u64,
    /// Bytes moved out.
    pub spilled_out_bytes: u64,
    /// Bytes moved back.
    pub refilled_bytes: u64,
    /// Moves that were rolled back.
    pub rolled_back: u64,
    /// How often its channels were suspended for a move.
    pub suspensions: u64,
    /// Distribution of the times for which they were suspended: from off the card to their doorbells, for moves that were
    /// given up too.
    pub pause_us: PauseReport,
    /// The part of these times in which the channels ended what they had under way.
    pub drain_us: PauseReport,
    /// What was said of each pause as it began.
    pub predicted_us: PauseReport,
    /// Suspensions for moves that were given up.
    pub pauses_in_vain: u64,
    /// How often it left KVM.
    pub exits: u64,
    /// Accesses that reached the broker.
    pub accesses: Accesses,
    /// Copies done by the GPU for it.
    pub copies: u64,
    /// Bytes they moved.
    pub bytes_copied: u64,
    /// Slots of VRAM that held wrong bytes, or words of a kernel's buffers that were not those of the reference.
    pub mismatches: u64,
    /// Results of a VM whose kernel came to its end.
    pub kernel: Option<KernelResult>,
    /// SHA-256 of the input as it was read back from VRAM; with several inputs, of their digests one after the
    /// other. `None` if the guest ended before.
    pub digest: Option<String>,
    /// When it ended, seconds from the start.
    pub seconds: f64,
    /// Errors of the VM.
    pub errors: Vec<String>,
}

/// Results of the card.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GpuReport {
    /// VRAM of the card in bytes.
    pub vram_bytes: u64,
    /// Part of it that guests may hold, in bytes.
    pub usable_bytes: u64,
    /// Work of its shaders, for all VMs together: the card does not know the owner of a grid. `None` if the card
    /// is in another process.
    pub shaders: Option<ShaderReport>,
}

/// Counts of a card's shaders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ShaderReport {
    /// Grids that ran to their end.
    pub grids: u64,
    /// Instructions of warps.
    pub warp_instructions: u64,
    /// Instructions of lanes.
    pub lane_instructions: u64,
    /// Bytes between shaders and VRAM, in whole segments.
    pub vram_bytes: u64,
    /// Bytes from shaders to host RAM: spilled chunks.
    pub upstream_bytes: u64,
    /// Bytes from host RAM to shaders.
    pub downstream_bytes: u64,
}

impl From<&Counters> for ShaderReport {
    fn from(counters: &Counters) -> Self {
        Self {
            grids: counters.grids,
            warp_instructions: counters.warp_instructions,
            lane_instructions: counters.lane_instructions,
            vram_bytes: counters.shader_vram_bytes,
            upstream_bytes: counters.shader_upstream_bytes,
            downstream_bytes: counters.shader_downstream_bytes,
        }
    }
}

/// Figures of the broker and its card.
pub(super) struct CardReport {
    pub(super) stats: BrokerStats,
    pub(super) counters: Option<Counters>,
}

/// One input, as it was before the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct InputReport {
    /// Path of the file.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Its digest, taken on the host.
    pub sha256: String,
}

/// The whole report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DemoReport {
    /// Every VM ended well with every byte right, and together they used more VRAM than there is.
    pub ok: bool,
    /// Every VM ran on KVM.
    pub kvm: bool,
    /// Results of the card.
    pub gpu: GpuReport,
    /// Results of the VMs.
    pub vms: Vec<VmReport>,
    /// The most VRAM that was taken: all VMs, shadows, the broker's own.
    pub resident_peak_bytes: u64,
    /// Time from starting the broker to the end of the last VM.
    pub seconds: f64,
    /// Expected digest of every guest.
    pub digest: Option<String>,
    /// The input files.
    pub inputs: Vec<InputReport>,
    /// Seed of all choices.
    pub seed: u64,
    /// Failures of the card, or of the connection to it.
    pub host_errors: u64,
    /// The errors that make `ok` false.
    pub notes: Vec<String>,
}

/// One digest for any number of inputs.
fn joined(digests: &[[u8; 32]]) -> Option<String> {
    match digests {
        [] => None,
        [only] => Some(hex(only)),
        several => Some(hex(&Sha256::digest(several.concat()))),
    }
}

fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// One digest for a guest's report, computed in the same way.
fn joined_told(digests: &[Digest], inputs: usize) -> Option<String> {
    let bytes = digests
        .iter()
        .map(|digest| decode_hex(&digest.sha256))
        .collect::<Option<Vec<_>>>()?;
    if bytes.len() == inputs {
        joined(&bytes)
    } else {
        None
    }
}

pub(super) fn make(
    options: &DemoOptions,
    inputs: &[InputFile],
    members: &[Member],
    card: &CardReport,
    is_kvm: bool,
    seconds: f64,
) -> DemoReport {
    let CardReport { stats, counters } = card;
    let vms: Vec<_> = members.iter().map(|member| vm_report(member, stats)).collect();
    let mut notes = Vec::new();
    for vm in vms.iter().filter(|vm| !vm.ok) {
        notes.push(format!("vm {}: {}", vm.name, vm.errors.join(", ")));
    }
    let touched: u64 = vms.iter().map(|vm| vm.touched_bytes).sum();
    if touched <= stats.vram_bytes {
        let (touched, vram) = (Size(touched), Size(stats.vram_bytes));
        notes.push(format!(
            "the VMs used {touched} of {vram} VRAM: it was not oversubscribed"
        ));
    }
    if stats.resident_peak_bytes > stats.vram_bytes {
        notes.push(format!(
            "{} bytes were taken in VRAM, more than there are",
            stats.resident_peak_bytes
        ));
    }
    let digests: Vec<_> = inputs.iter().map(InputFile::sha256).collect();
    let input_report = |input: &InputFile| InputReport {
        name: input.name().to_owned(),
        bytes: input.bytes(),
        sha256: hex(&input.sha256()),
    };
    DemoReport {
        ok: notes.is_empty(),
        kvm: is_kvm,
        gpu: GpuReport {
            vram_bytes: stats.vram_bytes,
            usable_bytes: stats.usable_bytes,
            shaders: counters.as_ref().map(ShaderReport::from),
        },
        vms,
        resident_peak_bytes: stats.resident_peak_bytes,
        seconds,
        digest: joined(&digests),
        inputs: inputs.iter().map(input_report).collect(),
        seed: options.seed,
        host_errors: stats.host_errors,
        notes,
    }
}

fn pause_report(times: &Pauses) -> PauseReport {
    let microseconds = |ns: u64| ns as f64 / 1000.0;
    PauseReport {
        p50: microseconds(times.p50_ns),
        p99: microseconds(times.p99_ns),
        max: microseconds(times.max_ns),
    }
}

fn vm_report(member: &Member, stats: &BrokerStats) -> VmReport {
    let told = member.told();
    let errors = member.wrong();
    let figures = stats
        .vms
        .iter()
        .find(|vm| vm.name == member.name)
        .cloned()
        .unwrap_or_default();
    VmReport {
        name: member.name.clone(),
        workload: member.workload.name().to_owned(),
        ok: errors.is_empty(),
        guest_vram_bytes: figures.guest_vram_bytes,
        touched_bytes: figures.touched_bytes,
        resident_peak_bytes: figures.resident_peak_bytes,
        spilled_peak_bytes: figures.spilled_peak_bytes,
        spills: figures.spills,
        refills: figures.refills,
        spilled_out_bytes: figures.spilled_out_bytes,
        refilled_bytes: figures.refilled_bytes,
        rolled_back: figures.rolled_back,
        suspensions: figures.pauses.count,
        pause_us: pause_report(&figures.pauses),
        drain_us: pause_report(&figures.drains),
        predicted_us: pause_report(&figures.predictions),
        pauses_in_vain: figures.pauses_in_vain,
        exits: member.exits,
        accesses: figures.accesses,
        copies: told.copies,
        bytes_copied: told.bytes_copied,
        mismatches: told.mismatches,
        kernel: told.kernel,
        digest: joined_told(&told.digests, member.inputs.len()),
        seconds: member.seconds,
        errors,
    }
}

/// Mebibytes with one digit.
pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for ShaderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (grids, instructions) = (self.grids, self.lane_instructions as f64 / 1e6);
        let vram = mebibytes(self.vram_bytes);
        let host = mebibytes(self.upstream_bytes + self.downstream_bytes);
        write!(
            f,
            "{grids} grids of all VMs: {instructions:.0} million instructions, {vram} from and to VRAM, {host} from and \
             to host RAM"
        )
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<4} {:<8} {:>5} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>10} {:>10} {:>10} {:>9} {:>11}  digest",
            "vm",
            "workload",
            "",
            "touched",
            "resident",
            "spilled",
            "spills",
            "refills",
            "pauses",
            "p50",
            "max",
            "p50 drain",
            "exits",
            "GPU time"
        )?;
        for vm in &self.vms {
            let digest = vm
                .digest
                .as_deref()
                .and_then(|digest| digest.get(..16))
                .unwrap_or("-");
            let gpu_time = vm.kernel.as_ref().map_or_else(
                || "-".to_owned(),
                |kernel| format!("{:.1}ms", kernel.gpu_ns as f64 / 1e6),
            );
            writeln!(
                f,
                "{:<4} {:<8} {:>5} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8.0}us {:>8.0}us {:>8.0}us {:>9} {gpu_time:>11}  {digest}",
                vm.name,
                vm.workload,
                if vm.ok { "ok" } else { "WRONG" },
                mebibytes(vm.touched_bytes),
                mebibytes(vm.resident_peak_bytes),
                mebibytes(vm.spilled_peak_bytes),
                vm.spills,
                vm.refills,
                vm.suspensions,
                vm.pause_us.p50,
                vm.pause_us.max,
                vm.drain_us.p50,
                vm.exits,
            )?;
        }
        let touched: u64 = self.vms.iter().map(|vm| vm.touched_bytes).sum();
        let copied: u64 = self.vms.iter().map(|vm| vm.bytes_copied).sum();
        writeln!(
            f,
            "{} used of {} VRAM ({:.2}x), at most {} taken; {} copied by the GPU; {} in {:.1} s{}",
            mebibytes(touched),
            mebibytes(self.gpu.vram_bytes),
            touched as f64 / self.gpu.vram_bytes as f64,
            mebibytes(self.resident_peak_bytes),
            mebibytes(copied),
            if self.ok { "ok" } else { "NOT ok" },
            self.seconds,
            if self.kvm { "" } else { " WITHOUT virtual machines" },
        )?;
        if let Some(shaders) = &self.gpu.shaders {
            writeln!(f, "{shaders}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_one_input_is_its_own() {
        assert_eq!(joined(&[[0xab; 32]]), Some("ab".repeat(32)));
        assert_eq!(joined(&[]), None);
        assert_ne!(joined(&[[1; 32], [2; 32]]), joined(&[[2; 32], [1; 32]]));
    }

    #[test]
    fn digests_that_are_missing_or_malformed_are_none() {
        let told = |text: &str| Digest {
            sha256: text.to_owned(),
            bytes: 1,
        };
        assert_eq!(joined_told(&[told(&"ab".repeat(32))], 1), Some("ab".repeat(32)));
        assert_eq!(joined_told(&[told(&"ab".repeat(32))], 2), None);
        assert_eq!(joined_told(&[told(&"zz".repeat(32))], 1), None);
        assert_eq!(joined_told(&[told("é")], 1), None);
    }
}
