//! How many interrupts the driver has had, by the kernel's count.

use anyhow::{Context as _, Result, ensure};

/// Names by which the driver asks for its interrupt; one since 6.4, the other before.
const OWNERS: &[&str] = &["nvkm", "nouveau"];

/// Interrupts of the card until now, over all CPUs.
pub(crate) fn count() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    let (lines, sum) = sum_of(&text);
    ensure!(lines > 0, "no line of /proc/interrupts names the driver");
    Ok(sum)
}

/// Lines of the driver and the sum of their counts.
fn sum_of(text: &str) -> (usize, u64) {
    let is_ours = |line: &&str| line.split([' ', ',', '\t']).any(|word| OWNERS.contains(&word));
    let counts = |line: &str| -> u64 {
        line.split_whitespace()
            .skip(1)
            .map_while(|word| word.parse::<u64>().ok())
            .sum()
    };
    let ours: Vec<&str> = text.lines().filter(is_ours).collect();
    (ours.len(), ours.iter().map(|line| counts(line)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_cpus_are_added() {
        let text = "            CPU0       CPU1\n  11:        3          4   IO-APIC  11-fasteoi   virtio0, nvkm\n  \
                    24:        9          0   PCI-MSI 524288-edge      ahci\n";
        assert_eq!(sum_of(text), (1, 7));
    }

    #[test]
    fn other_devices_do_not_count() {
        assert_eq!(sum_of("  24:  9  PCI-MSI 524288-edge  ahci\n"), (0, 0));
    }
}
