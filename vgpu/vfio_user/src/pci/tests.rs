use proptest::prelude::*;

use super::*;

fn gpu() -> ConfigSpace {
    let identity = PciIdentity {
        vendor: 0x10de,
        device: 0x06c0,
        subsystem_vendor: 0x10de,
        subsystem: 0x075f,
        class: 0x03_00_00,
        revision: 0xa3,
    };
    ConfigSpace::new(identity)
        .with_bar(
            0,
            Bar::Memory32 {
                bytes: 32 << 20,
                is_prefetchable: false,
            },
        )
        .unwrap()
        .with_bar(
            1,
            Bar::Memory64 {
                bytes: 128 << 20,
                is_prefetchable: true,
            },
        )
        .unwrap()
        .with_bar(
            3,
            Bar::Memory64 {
                bytes: 64 << 20,
                is_prefetchable: true,
            },
        )
        .unwrap()
        .with_bar(5, Bar::Io { bytes: 128 })
        .unwrap()
        .with_power_management()
        .with_msi()
}

fn read_u32(space: &ConfigSpace, offset: u64) -> u32 {
    let mut data = [0; 4];
    space.read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn write_u32(space: &mut ConfigSpace, offset: u64, value: u32) -> ConfigChange {
    space.write(offset, &value.to_le_bytes())
}

#[test]
fn identity_reads_back_and_cannot_be_written() {
    let mut space = gpu();
    assert!(write_u32(&mut space, 0, u32::MAX).is_none());
    assert_eq!(read_u32(&space, 0), 0x06c0_10de);
    assert_eq!(read_u32(&space, 8), 0x0300_00a3);
    assert_eq!(read_u32(&space, 0x2c), 0x075f_10de);
}

#[test]
fn sizing_reads_the_masks_of_all_bars() {
    let mut space = gpu();
    let masks: Vec<_> = (0..6)
        .map(|index| {
            write_u32(&mut space, 0x10 + 4 * index, u32::MAX);
            read_u32(&space, 0x10 + 4 * index)
        })
        .collect();
    assert_eq!(
        masks,
        [
            0xfe00_0000,
            0xf800_000c,
            0xffff_ffff,
            0xfc00_000c,
            0xffff_ffff,
            0xffff_ff81
        ]
    );
}

#[test]
fn moved_bar_is_told_with_its_number() {
    let mut space = gpu();
    assert_eq!(write_u32(&mut space, 0x18, 0x12).moved_bars, 1 << 1);
    write_u32(&mut space, 0x14, 0xc000_0000);
    assert_eq!(space.bar_address(1), Some(0x12_c000_0000));
    assert_eq!(space.bar_address(2), None);
}

#[test]
fn command_bits_are_told_when_they_flip() {
    let mut space = gpu();
    let change = space.write(4, &[6]);
    assert!(change.is_memory_changed && change.is_bus_master_changed && !change.is_intx_changed);
    assert!(space.is_memory_enabled() && space.is_bus_master());
    assert!(space.write(4, &[6, 0]).is_none());
    assert!(space.write(5, &[4]).is_intx_changed);
    assert!(!space.is_intx_enabled());
}

#[test]
fn capability_list_is_power_then_msi() {
    let space = gpu();
    let mut list = Vec::new();
    let mut at = read_u32(&space, 0x34) & 0xff;
    while at != 0 {
        let entry = read_u32(&space, u64::from(at));
        list.push((at, entry & 0xff));
        at = entry >> 8 & 0xff;
    }
    assert_eq!(list, [(0x60, 1), (0x68, 5)]);
    assert_eq!(read_u32(&space, 4) >> 16 & 0x10, 0x10, "status bit of the list");
}

#[test]
fn msi_is_read_as_a_guest_sets_it() {
    let mut space = gpu();
    write_u32(&mut space, 0x6c, 0xfee0_1003);
    write_u32(&mut space, 0x70, 0x1);
    space.write(0x74, &[0x31, 0x40]);
    assert!(space.write(0x6a, &[0xff, 0xff]).is_msi_changed);
    let msi = MsiState {
        is_enabled: true,
        address: 0x1_fee0_1000,
        data: 0x4031,
    };
    assert_eq!(space.msi(), Some(msi));
    assert_eq!(read_u32(&space, 0x68) >> 16, 0x81, "one vector, 64-bit, enabled");
}

#[test]
fn power_state_is_told() {
    let mut space = gpu();
    assert!(space.write(0x64, &[3]).is_power_changed);
    assert_eq!(space.power_state(), 3);
}

#[test]
fn reset_goes_back_to_the_state_as_built() {
    let mut space = gpu();
    space.write(0, &[0xff; 256]);
    assert!(space.reset().is_memory_changed);
    let (mut now, mut built) = ([0; 256], [0; 256]);
    space.read(0, &mut now);
    gpu().read(0, &mut built);
    assert_eq!(now, built);
}

#[test]
fn access_across_the_end_is_bounded() {
    let mut space = gpu();
    let mut data = [0; 8];
    space.write(252, &[0; 8]);
    space.read(252, &mut data);
    assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn register_that_is_taken_is_refused() {
    let small = Bar::Memory32 {
        bytes: 4096,
        is_prefetchable: false,
    };
    let wide = Bar::Memory64 {
        bytes: 4096,
        is_prefetchable: false,
    };
    let space = || ConfigSpace::new(PciIdentity::default());
    assert_eq!(
        gpu().with_bar(0, small).unwrap_err(),
        PciError::BarIndex { index: 0 }
    );
    assert_eq!(
        gpu().with_bar(2, small).unwrap_err(),
        PciError::BarIndex { index: 2 }
    );
    assert_eq!(
        space().with_bar(5, wide).unwrap_err(),
        PciError::BarIndex { index: 5 }
    );
    assert_eq!(
        space().with_bar(usize::MAX, small).unwrap_err(),
        PciError::BarIndex { index: usize::MAX }
    );
}

#[test]
fn size_that_no_register_decodes_is_refused() {
    let bar = Bar::Memory32 {
        bytes: 3 << 20,
        is_prefetchable: false,
    };
    let error = PciError::BarSize {
        index: 0,
        bytes: 3 << 20,
    };
    assert_eq!(
        ConfigSpace::new(PciIdentity::default())
            .with_bar(0, bar)
            .unwrap_err(),
        error
    );
}

proptest! {
    /// Writing in any pieces is the same as writing in bytes, and never changes what is read-only.
    #[test]
    fn any_write_keeps_what_is_read_only(
        writes in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..9)), 0..40),
    ) {
        let (mut whole, mut bytewise) = (gpu(), gpu());
        for (offset, data) in writes {
            let offset = if offset % 4 == 0 { offset } else { offset % 260 };
            whole.write(offset, &data);
            for (at, byte) in data.iter().enumerate() {
                if let Some(at) = offset.checked_add(at as u64) {
                    bytewise.write(at, std::slice::from_ref(byte));
                }
            }
        }
        prop_assert_eq!(&whole.bytes, &bytewise.bytes);
        for (at, (now, built)) in whole.bytes.iter().zip(&whole.initial).enumerate() {
            prop_assert_eq!(now & !whole.writeable[at], built & !whole.writeable[at]);
        }
    }
}
