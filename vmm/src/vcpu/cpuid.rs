//! CPUID of a vCPU: the host's answers, with the topology of this VM.
//!
//! A VM is one package of as many cores as it has vCPUs, one thread each; a core's APIC id is the vCPU's index. All
//! leaves that a system may learn this from agree (Intel SDM vol. 2A, CPUID; AMD APM vol. 3 §E.3, §E.4).

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::{Cap, Kvm};

const LEAF_FEATURES: u32 = 1;
const LEAF_CACHES: u32 = 4;
const LEAF_TOPOLOGY: u32 = 0xb;
const LEAF_TOPOLOGY_2: u32 = 0x1f;
const LEAF_AMD_FEATURES: u32 = 0x8000_0001;
const LEAF_AMD_SIZES: u32 = 0x8000_0008;
const LEAF_AMD_CACHES: u32 = 0x8000_001d;
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;

/// Leaf 1: ECX and EDX.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
const SEVERAL_CORES: u32 = 1 << 28;
/// Leaf 8000_0001 ECX: several cores rather than threads.
const AMD_SEVERAL_CORES: u32 = 1 << 1;
/// Types of levels in leaf 0b.
const LEVEL_THREADS: u32 = 1 << 8;
const LEVEL_CORES: u32 = 2 << 8;
/// Leaves 4 and 8000_001d: level of a cache, its sharers less one, and (leaf 4) cores less one.
const CACHE_LEVEL_SHIFT: u32 = 5;
const CACHE_LEVEL_MASK: u32 = 7;
const CACHE_SHARERS: u32 = 0xfff << 14;
const CACHE_SHARERS_SHIFT: u32 = 14;
const CACHE_CORES: u32 = 0x3f << 26;
const CACHE_CORES_SHIFT: u32 = 26;
/// From this level on all cores share a cache.
const SHARED_CACHE_LEVEL: u32 = 3;

/// CPUID of the vCPU `index` of `count`.
pub(super) fn of_vcpu(kvm: &Kvm, index: u32, count: u32) -> Result<CpuId, kvm_ioctls::Error> {
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let has_deadline = kvm.check_extension(Cap::TscDeadlineTimer);
    let place = VcpuPosition { index, count };
    for entry in cpuid.as_mut_slice() {
        place.describe(entry);
        if entry.function == LEAF_FEATURES && has_deadline {
            entry.ecx |= TSC_DEADLINE;
        }
    }
    Ok(cpuid)
}

/// Number of bits in guest-physical addresses of a VM on this host.
pub(crate) fn physical_bits(kvm: &Kvm) -> Result<u32, kvm_ioctls::Error> {
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let sizes = cpuid
        .as_slice()
        .iter()
        .find(|entry| entry.function == LEAF_AMD_SIZES);
    // A processor without the leaf has 36 (Intel SDM vol. 3A §4.1.4).
    Ok(sizes.map_or(36, |entry| entry.eax & 0xff))
}

/// A vCPU among those of its VM.
#[derive(Clone, Copy)]
struct VcpuPosition {
    index: u32,
    count: u32,
}

impl VcpuPosition {
    /// Bits of an APIC id.
    fn id_bits(self) -> u32 {
        self.count.next_power_of_two().trailing_zeros()
    }

    fn has_several(self, flag: u32) -> u32 {
        if self.count > 1 { flag } else { 0 }
    }

    fn describe(self, entry: &mut kvm_cpuid_entry2) {
        match entry.function {
            LEAF_FEATURES => {
                // Counts and ids above a byte are in leaf 0b alone.
                let ids = self.count.next_power_of_two().min(0xff);
                entry.ebx = entry.ebx & 0xffff | ids << 16 | (self.index & 0xff) << 24;
                entry.ecx |= HYPERVISOR;
                entry.edx = entry.edx & !SEVERAL_CORES | self.has_several(SEVERAL_CORES);
            }
            LEAF_CACHES => {
                let cores = (self.count - 1).min(0x3f);
                entry.eax = entry.eax & !CACHE_CORES | cores << CACHE_CORES_SHIFT;
                self.share_cache(entry);
            }
            LEAF_AMD_CACHES => self.share_cache(entry),
            LEAF_TOPOLOGY => self.list_level(entry),
            // A second list with more levels, which this VM lacks.
            LEAF_TOPOLOGY_2 => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
            LEAF_AMD_FEATURES => {
                entry.ecx = entry.ecx & !AMD_SEVERAL_CORES | self.has_several(AMD_SEVERAL_CORES);
            }
            LEAF_AMD_SIZES => {
                entry.ecx = entry.ecx & !0xf0ff | (self.count - 1).min(0xff) | self.id_bits() << 12;
            }
            LEAF_AMD_TOPOLOGY => {
                (entry.eax, entry.ebx, entry.ecx) = (self.index, self.index & 0xff, 0);
            }
            _ => {}
        }
    }

    fn list_level(self, entry: &mut kvm_cpuid_entry2) {
        let (shift, processors, kind) = match entry.index {
            0 => (0, 1, LEVEL_THREADS),
            1 => (self.id_bits(), self.count, LEVEL_CORES),
            _ => (0, 0, 0),
        };
        (entry.eax, entry.ebx) = (shift, processors);
        entry.ecx = entry.index & 0xff | kind;
        entry.edx = self.index;
    }

    fn share_cache(self, entry: &mut kvm_cpuid_entry2) {
        let level = entry.eax >> CACHE_LEVEL_SHIFT & CACHE_LEVEL_MASK;
        let sharers = if level >= SHARED_CACHE_LEVEL {
            (self.count - 1).min(0xfff)
        } else {
            0
        };
        entry.eax = entry.eax & !CACHE_SHARERS | sharers << CACHE_SHARERS_SHIFT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(function: u32, index: u32, place: VcpuPosition) -> kvm_cpuid_entry2 {
        let mut entry = kvm_cpuid_entry2 {
            function,
            index,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..Default::default()
        };
        place.describe(&mut entry);
        entry
    }

    const THIRD_OF_FIVE: VcpuPosition = VcpuPosition { index: 2, count: 5 };
    const ALONE: VcpuPosition = VcpuPosition { index: 0, count: 1 };

    #[test]
    fn each_leaf_names_the_same_apic_id() {
        let ids = (
            described(LEAF_FEATURES, 0, THIRD_OF_FIVE).ebx >> 24,
            described(LEAF_TOPOLOGY, 1, THIRD_OF_FIVE).edx,
            described(LEAF_AMD_TOPOLOGY, 0, THIRD_OF_FIVE).eax,
        );
        assert_eq!(ids, (2, 2, 2));
    }

    #[test]
    fn five_cores_need_three_bits_of_id() {
        let cores = described(LEAF_TOPOLOGY, 1, THIRD_OF_FIVE);
        assert_eq!((cores.eax, cores.ebx, cores.ecx), (3, 5, 0x201));
        let threads = described(LEAF_TOPOLOGY, 0, THIRD_OF_FIVE);
        assert_eq!((threads.eax, threads.ebx, threads.ecx), (0, 1, 0x100));
        assert_eq!(
            described(LEAF_AMD_SIZES, 0, THIRD_OF_FIVE).ecx & 0xf0ff,
            3 << 12 | 4
        );
    }

    #[test]
    fn list_of_levels_ends_after_the_cores() {
        let end = described(LEAF_TOPOLOGY, 2, THIRD_OF_FIVE);
        assert_eq!((end.eax, end.ebx, end.ecx), (0, 0, 2));
        assert_eq!(described(LEAF_TOPOLOGY_2, 0, THIRD_OF_FIVE).ebx, 0);
    }

    #[test]
    fn single_vcpu_has_no_sign_of_others() {
        let features = described(LEAF_FEATURES, 0, ALONE);
        assert_eq!((features.edx & SEVERAL_CORES, features.ebx >> 16), (0, 1));
        assert_eq!(described(LEAF_AMD_FEATURES, 0, ALONE).ecx & AMD_SEVERAL_CORES, 0);
        assert_eq!(described(LEAF_TOPOLOGY, 1, ALONE).eax, 0);
    }

    #[test]
    fn last_level_cache_is_shared_and_others_are_not() {
        let mut first = kvm_cpuid_entry2 {
            function: LEAF_CACHES,
            eax: 1 << CACHE_LEVEL_SHIFT,
            ..Default::default()
        };
        let mut last = kvm_cpuid_entry2 {
            eax: 3 << CACHE_LEVEL_SHIFT,
            ..first
        };
        THIRD_OF_FIVE.describe(&mut first);
        THIRD_OF_FIVE.describe(&mut last);
        let sharers = |entry: kvm_cpuid_entry2| (entry.eax & CACHE_SHARERS) >> CACHE_SHARERS_SHIFT;
        assert_eq!((sharers(first), sharers(last)), (0, 4));
    }
}
