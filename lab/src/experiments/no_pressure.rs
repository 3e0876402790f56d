//! No figure of its own: what sharing costs while there is memory enough. The paper's goal, and its runs at 500 MB.

use fermi_model::CopyMicrocode;
use guests::KernelSummary;
use vgpu::VmId;

use super::Experiment;
use crate::host::{CARD_BYTES, Host, LabError};
use crate::jobs::{self, Onlooker};
use crate::programs::{Kernel, SIX, bare_machine};
use crate::report::{Report, Table};
use crate::settings::{Settings, vm_config};
use crate::{MIB, SCALE};

const PAPER: &str = "\"GPUswap should not induce overhead unless there is a shortage in GPU memory\"";
const VM: VmId = VmId(0);
/// Steps of the clock by which a launch's time is taken.
const STAMP_NS: u64 = 32;

/// The kernel on a card that nobody shares.
fn on_bare_card(kernel: Kernel) -> Result<KernelSummary, LabError> {
    let mut machine = bare_machine(CARD_BYTES, CopyMicrocode::default())?;
    kernel
        .run(&mut machine)
        .map_err(|what| LabError::Guest { vm: VM, what })
}

fn in_vm(settings: &Settings, kernel: Kernel, onlooker: &dyn Onlooker) -> Result<KernelSummary, LabError> {
    let config = settings
        .profile
        .config(SCALE, settings.chunk_bytes(), 1400 * MIB / SCALE, 1);
    let mut host = Host::new(config, onlooker);
    host.attach(VM, vm_config("vm0", kernel.guest_vram(), settings.chunk_bytes()))?;
    host.run(VM, move |bus| kernel.run(bus))
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let kernels = SIX.map(|name| Kernel {
        name,
        footprint: settings.choose(12, 2) * MIB,
        repeats: settings.choose(4, 1) as u32,
    });
    let name = |kernel: &Kernel| kernel.name.to_owned();
    let runs = jobs::all(&kernels, onlooker, name, |&kernel, onlooker| {
        Ok((on_bare_card(kernel)?, in_vm(settings, kernel, onlooker)?))
    })?;
    let mut report = Experiment::NoPressure.report("no figure", PAPER, settings);
    let rows = kernels.iter().zip(&runs).map(|(kernel, (bare, shared))| {
        vec![
            kernel.name.into(),
            bare.grids.into(),
            (bare.gpu_ns as f64 / 1e6).into(),
            (shared.gpu_ns as f64 / 1e6).into(),
            (shared.gpu_ns.abs_diff(bare.gpu_ns)).into(),
        ]
    });
    let columns = [
        "program",
        "launches",
        "bare card, ms",
        "vramd, ms",
        "difference, ns",
    ];
    report.tables.push(Table {
        title: "time for which launches keep the GPU busy".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    });
    let is_equal = |(bare, shared): &(KernelSummary, KernelSummary)| {
        let rounding = STAMP_NS * bare.grids;
        bare.gpu_ns.abs_diff(shared.gpu_ns) <= rounding && bare.grids == shared.grids && bare.gpu_ns > 0
    };
    report.claim(
        runs.iter().all(is_equal),
        "a program that is alone keeps the GPU busy for as long as on a bare card, to a step of its clock (32 ns) for each launch"
            .to_owned(),
    );
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn alone_a_program_keeps_the_gpu_as_busy_as_on_a_bare_card() {
        let settings = Settings::of(Profile::Default, 1, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }
}
