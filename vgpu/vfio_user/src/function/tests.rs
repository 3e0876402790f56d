use super::*;
use crate::testing::{gpu_like, memory};

fn words(payload: &[u8]) -> Vec<u32> {
    payload
        .chunks_exact(4)
        .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

fn mappable(areas: Vec<Area>) -> FunctionInfo {
    let mappable = MappableRegion {
        descriptor: Arc::new(memory(0x4000)),
        offset: 0x1000,
        areas,
    };
    let region = RegionInfo {
        mappable: Some(mappable),
        ..RegionInfo::read_write(0x3000)
    };
    FunctionInfo::new().with_region(Region::Bar2, region)
}

#[test]
fn device_info_tells_pci_reset_and_counts() {
    assert_eq!(words(&gpu_like().device_info(16).unwrap()), [16, 3, 9, 5]);
}

#[test]
fn argsz_without_room_for_the_reply_is_refused() {
    assert!(gpu_like().device_info(15).is_err());
    assert!(gpu_like().irq_info(15, 0).is_err());
    assert!(gpu_like().region_info(31, 0, true).is_err());
}

#[test]
fn absent_region_has_no_size_and_no_access() {
    let (payload, descriptor) = gpu_like().region_info(32, 5, true).unwrap();
    assert_eq!(words(&payload), [32, 0, 5, 0, 0, 0, 0, 0]);
    assert!(descriptor.is_none());
}

#[test]
fn bar_is_readable_and_writeable() {
    let (payload, _) = gpu_like().region_info(32, 1, true).unwrap();
    assert_eq!(words(&payload), [32, 3, 1, 0, 128 << 20, 0, 0, 0]);
}

#[test]
fn region_or_interrupt_that_does_not_exist_is_refused() {
    assert!(gpu_like().region_info(32, 9, true).is_err());
    assert!(gpu_like().irq_info(16, 5).is_err());
}

#[test]
fn region_and_interrupt_of_the_function_s_own_come_behind_those_of_pci() {
    let kind = RegionKind {
        kind: 1 << 31 | 0x10de,
        subtype: 0x7672,
    };
    let region = RegionInfo {
        kind: Some(kind),
        ..RegionInfo::read_write(16)
    };
    let info = gpu_like()
        .with_region(Region::DeviceSpecific, region)
        .with_irqs(IrqIndex::DeviceSpecific, 1);
    assert_eq!(words(&info.device_info(16).unwrap()), [16, 3, 10, 6]);
    assert_eq!(words(&info.irq_info(16, 5).unwrap()), [16, 3, 5, 1]);
    let (without_room, _) = info.region_info(32, 9, true).unwrap();
    assert_eq!(words(&without_room), [48, 11, 9, 32, 16, 0, 0, 0]);
    let (payload, descriptor) = info.region_info(48, 9, true).unwrap();
    let capability = [0x0001_0002, 0, 0x8000_10de, 0x7672];
    assert_eq!(
        words(&payload),
        [&[48, 11, 9, 32, 16, 0, 0, 0], &capability[..]].concat()
    );
    assert!(descriptor.is_none());
    assert!(info.region_info(32, 10, true).is_err() && info.irq_info(16, 6).is_err());
}

#[test]
fn interrupt_info_tells_flags_and_vectors() {
    assert_eq!(words(&gpu_like().irq_info(16, 0).unwrap()), [16, 7, 0, 1]);
    assert_eq!(words(&gpu_like().irq_info(16, 1).unwrap()), [16, 9, 1, 1]);
    assert_eq!(words(&gpu_like().irq_info(16, 3).unwrap()), [16, 0, 3, 0]);
}

#[test]
fn wholly_mappable_region_comes_with_its_descriptor() {
    let (payload, descriptor) = mappable(Vec::new()).region_info(32, 2, true).unwrap();
    assert_eq!(words(&payload), [32, 7, 2, 0, 0x3000, 0, 0x1000, 0]);
    assert!(descriptor.is_some());
}

#[test]
fn sparse_areas_without_room_tell_the_room_they_need() {
    let info = mappable(vec![Area {
        offset: 0x1000,
        bytes: 0x2000,
    }]);
    let (payload, descriptor) = info.region_info(32, 2, true).unwrap();
    assert_eq!(words(&payload), [64, 15, 2, 32, 0x3000, 0, 0x1000, 0]);
    assert!(descriptor.is_none());
}

#[test]
fn sparse_areas_with_room_follow_the_info() {
    let info = mappable(vec![Area {
        offset: 0x1000,
        bytes: 0x2000,
    }]);
    let (payload, descriptor) = info.region_info(64, 2, true).unwrap();
    let areas = [0x0001_0001, 0, 1, 0, 0x1000, 0, 0x2000, 0];
    assert_eq!(
        words(&payload),
        [&[64, 15, 2, 32, 0x3000, 0, 0x1000, 0], &areas[..]].concat()
    );
    assert!(descriptor.is_some());
}

#[test]
fn client_that_takes_no_descriptors_is_offered_no_mapping() {
    let (payload, descriptor) = mappable(Vec::new()).region_info(32, 2, false).unwrap();
    assert_eq!(words(&payload)[1], 3);
    assert!(descriptor.is_none());
}

#[test]
fn descriptors_are_bounded_by_vectors_and_files() {
    assert_eq!(gpu_like().descriptors_max(), 1 + 8 + 64 + 3 * 2 + 64);
}
