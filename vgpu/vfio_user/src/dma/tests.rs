use std::os::fd::AsFd;

use proptest::prelude::*;
use rustix::fs::{Mode, fcntl_add_seals, memfd_create, open};

use super::*;
use crate::testing::{foreign, memory};

fn wire(iova: u64, bytes: u64) -> DmaMapWire {
    DmaMapWire {
        argsz: 32,
        flags: 3,
        offset: 0,
        iova,
        bytes,
    }
}

fn unmap(iova: u64, bytes: u64) -> DmaUnmapWire {
    DmaUnmapWire {
        argsz: 24,
        flags: 0,
        iova,
        bytes,
    }
}

fn refusal(result: Result<Arc<DmaMap>, ProtocolError>) -> DmaError {
    match result {
        Err(ProtocolError::Dma(error)) => error,
        other => panic!("not refused for DMA: {other:?}"),
    }
}

#[test]
fn file_is_held_once_for_several_maps() {
    let mut table = DmaTable::default();
    let file = memory(0x2000);
    let first = table
        .map(&wire(0, 0x1000), foreign([file.try_clone().unwrap()]))
        .unwrap();
    let second = table
        .map(
            &DmaMapWire {
                offset: 0x1000,
                ..wire(0x1000, 0x1000)
            },
            foreign([file]),
        )
        .unwrap();
    let (first, second) = (first.file.as_ref().unwrap(), second.file.as_ref().unwrap());
    assert!(Arc::ptr_eq(&first.descriptor, &second.descriptor));
    assert_eq!((first.offset, second.offset), (0, 0x1000));
}

#[test]
fn one_file_above_the_bound_is_refused() {
    let mut table = DmaTable::default();
    for index in 0..DMA_FILES_MAX as u64 {
        table
            .map(&wire(index << 12, 0x1000), foreign([memory(0x1000)]))
            .unwrap();
    }
    assert_eq!(
        refusal(table.map(&wire(1 << 40, 0x1000), foreign([memory(0x1000)]))),
        DmaError::TooManyFiles
    );
    table.unmap(&unmap(0, 0x1000)).unwrap();
    table
        .map(&wire(1 << 40, 0x1000), foreign([memory(0x1000)]))
        .unwrap();
}

#[test]
fn bytes_above_the_bound_are_refused() {
    let mut table = DmaTable::default();
    table.map(&wire(0, DMA_BYTES_MAX), Vec::new()).unwrap();
    assert_eq!(
        refusal(table.map(&wire(1 << 50, 0x1000), Vec::new())),
        DmaError::TooManyBytes
    );
}

#[test]
fn two_descriptors_are_refused() {
    let result = DmaTable::default().map(&wire(0, 0x1000), foreign([memory(0x1000), memory(0x1000)]));
    let error = ProtocolError::DescriptorCount {
        command: CommandCode::DmaMap,
        count: 2,
    };
    assert_eq!(result.unwrap_err(), error);
}

#[test]
fn range_of_no_bytes_is_refused() {
    assert_eq!(
        refusal(DmaTable::default().map(&wire(0, 0), Vec::new())),
        DmaError::Empty
    );
}

#[test]
fn range_that_is_not_aligned_is_refused() {
    let error = DmaError::Misaligned {
        iova: 0x800,
        bytes: 0x1000,
    };
    assert_eq!(
        refusal(DmaTable::default().map(&wire(0x800, 0x1000), Vec::new())),
        error
    );
}

#[test]
fn range_that_wraps_around_is_refused() {
    let iova = u64::MAX - 0xfff;
    let error = DmaError::WrapsAround { iova, bytes: 0x2000 };
    assert_eq!(
        refusal(DmaTable::default().map(&wire(iova, 0x2000), Vec::new())),
        error
    );
}

#[test]
fn range_up_to_the_last_address_is_taken() {
    let mut table = DmaTable::default();
    table.map(&wire(u64::MAX - 0xfff, 0x1000), Vec::new()).unwrap();
    assert!(table.find(u64::MAX).is_some());
    assert_eq!(table.unmap(&unmap(u64::MAX - 0xfff, 0x1000)).unwrap().len(), 1);
}

#[test]
fn map_beyond_the_end_of_its_file_is_refused() {
    let error = DmaError::BeyondFile {
        file_bytes: 0x1000,
        end: 0x2000,
    };
    assert_eq!(
        refusal(DmaTable::default().map(&wire(0, 0x2000), foreign([memory(0x1000)]))),
        error
    );
}

#[test]
fn offset_whose_end_overflows_is_refused() {
    let wire = DmaMapWire {
        offset: u64::MAX - 0xfff,
        ..wire(0, 0x1000)
    };
    let result = DmaTable::default().map(&wire, foreign([memory(0x1000)]));
    assert_eq!(
        refusal(result),
        DmaError::WrapsAround {
            iova: 0,
            bytes: 0x1000
        }
    );
}

#[test]
fn pipe_is_no_memory() {
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(
        refusal(DmaTable::default().map(&wire(0, 0x1000), foreign([reader]))),
        DmaError::NotMemory
    );
}

#[test]
fn device_file_is_no_memory() {
    let zero = open("/dev/zero", OFlags::RDWR, Mode::empty()).unwrap();
    assert_eq!(
        refusal(DmaTable::default().map(&wire(0, 0x1000), foreign([zero]))),
        DmaError::NotMemory
    );
}

#[test]
fn file_of_another_file_system_is_no_memory() {
    let proc_file = open("/proc/self/status", OFlags::RDONLY, Mode::empty()).unwrap();
    let wire = DmaMapWire {
        flags: FLAG_READ,
        ..wire(0, 0x1000)
    };
    assert_eq!(
        refusal(DmaTable::default().map(&wire, foreign([proc_file]))),
        DmaError::NotMemory
    );
}

#[test]
fn writeable_map_of_a_read_only_descriptor_is_refused() {
    use std::os::fd::AsRawFd;
    let file = memory(0x1000);
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let read_only = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
    let mut table = DmaTable::default();
    assert_eq!(
        refusal(table.map(&wire(0, 0x1000), foreign([read_only.try_clone().unwrap()]))),
        DmaError::Access
    );
    let reading = DmaMapWire {
        flags: FLAG_READ,
        ..wire(0, 0x1000)
    };
    assert!(table.map(&reading, foreign([read_only])).is_ok());
}

#[test]
fn seal_against_shrinking_is_noticed() {
    use rustix::fs::{MemfdFlags, ftruncate};
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 0x1000).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let sealed = DmaTable::default()
        .map(&wire(0, 0x1000), foreign([file]))
        .unwrap();
    let open = DmaTable::default()
        .map(&wire(0, 0x1000), foreign([memory(0x1000)]))
        .unwrap();
    assert!(sealed.file.as_ref().unwrap().is_shrink_sealed);
    assert!(!open.file.as_ref().unwrap().is_shrink_sealed);
}

#[test]
fn unmap_over_several_whole_maps_takes_them_all() {
    let mut table = DmaTable::default();
    table.map(&wire(0x1000, 0x1000), Vec::new()).unwrap();
    table.map(&wire(0x3000, 0x1000), Vec::new()).unwrap();
    assert_eq!(table.unmap(&unmap(0, 0x4000)).unwrap().len(), 2);
    assert_eq!((table.len(), table.mapped_bytes()), (0, 0));
}

#[test]
fn unmap_that_would_cut_a_map_takes_none() {
    let mut table = DmaTable::default();
    table.map(&wire(0x1000, 0x2000), Vec::new()).unwrap();
    assert!(table.unmap(&unmap(0, 0x2000)).is_err());
    assert!(table.unmap(&unmap(0x2000, 0x1000)).is_err());
    assert_eq!(table.len(), 1);
}

#[test]
fn unmap_of_nothing_is_refused() {
    let error = DmaError::NotMapped {
        iova: 0,
        bytes: 0x1000,
    };
    assert_eq!(
        DmaTable::default().unmap(&unmap(0, 0x1000)).unwrap_err(),
        error.into()
    );
}

#[test]
fn unmap_all_of_nothing_is_done() {
    let all = DmaUnmapWire {
        flags: UNMAP_ALL,
        ..unmap(0, 0)
    };
    assert!(DmaTable::default().unmap(&all).unwrap().is_empty());
}

#[test]
fn unknown_flags_are_refused() {
    let mut table = DmaTable::default();
    assert!(
        table
            .map(
                &DmaMapWire {
                    flags: 1 << 9 | 3,
                    ..wire(0, 0x1000)
                },
                Vec::new()
            )
            .is_err()
    );
    assert!(
        table
            .map(
                &DmaMapWire {
                    flags: 0,
                    ..wire(0, 0x1000)
                },
                Vec::new()
            )
            .is_err()
    );
    assert!(
        table
            .unmap(&DmaUnmapWire {
                flags: 1,
                ..unmap(0, 0x1000)
            })
            .is_err()
    );
}

proptest! {
    /// The slow obvious version: the owner of each of 32 pages.
    #[test]
    fn any_history_agrees_with_a_page_array(
        steps in proptest::collection::vec((any::<bool>(), 0u64..32, 1u64..6), 0..60),
    ) {
        let mut table = DmaTable::default();
        let mut pages = [None; 40];
        for (number, (is_map, page, count)) in steps.into_iter().enumerate() {
            let range = page as usize..(page + count) as usize;
            let (iova, bytes) = (page << 12, count << 12);
            if is_map {
                let is_free = pages[range.clone()].iter().all(Option::is_none);
                prop_assert_eq!(table.map(&wire(iova, bytes), Vec::new()).is_ok(), is_free);
                if is_free {
                    pages[range].fill(Some(number));
                }
            } else {
                let inside: Vec<_> = pages[range.clone()].iter().flatten().collect();
                let outside = [&pages[..range.start], &pages[range.end..]].concat();
                let is_whole = !inside.is_empty()
                    && !outside.iter().flatten().any(|owner| inside.contains(&owner));
                prop_assert_eq!(table.unmap(&unmap(iova, bytes)).is_ok(), is_whole);
                if is_whole {
                    pages[range].fill(None);
                }
            }
            for (page, owner) in pages.iter().enumerate() {
                prop_assert_eq!(table.find((page as u64) << 12).is_some(), owner.is_some());
            }
            let mapped = pages.iter().flatten().count() as u64;
            prop_assert_eq!(table.mapped_bytes(), mapped << 12);
        }
    }
}
