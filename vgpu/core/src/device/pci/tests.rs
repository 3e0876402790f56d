use proptest::prelude::*;

use super::*;

fn space() -> ConfigSpace {
    ConfigSpace::of(&GpuConfig::default())
}

fn read_u32(space: &ConfigSpace, offset: u64) -> u32 {
    let mut data = [0; 4];
    space.read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn all(space: &ConfigSpace) -> [u8; CONFIG_BYTES] {
    let mut bytes = [0; CONFIG_BYTES];
    space.read(0, &mut bytes);
    bytes
}

#[test]
fn board_is_recognised_by_its_ids_which_cannot_be_written() {
    let mut space = ConfigSpace::of(&GpuConfig {
        board: Board::TeslaC2050,
        ..GpuConfig::default()
    });
    space.write(0, &[0xff; CONFIG_BYTES]);
    assert_eq!(read_u32(&space, 0), 0x06d1_10de);
    assert_eq!(read_u32(&space, 8), 0x0302_00a3);
    assert_eq!(read_u32(&space, 0x2c), 0x06d1_10de);
}

#[test]
fn sizing_reads_the_masks_of_all_bars() {
    let mut space = space();
    space.write(0x10, &[0xff; 24]);
    let masks: Vec<_> = (0..6).map(|index| read_u32(&space, 0x10 + 4 * index)).collect();
    assert_eq!(
        masks,
        [0xfe00_0000, 0xf800_000c, u32::MAX, 0xfc00_000c, u32::MAX, 0]
    );
}

#[test]
fn bar_of_any_size_decodes_a_power_of_two() {
    for (bytes, low, high) in [
        (0, 0xffff_fffc, u32::MAX),
        (3 << 20, 0xffc0_000c, u32::MAX),
        (u64::MAX, 0xc, 1 << 31),
    ] {
        let mut space = ConfigSpace::of(&GpuConfig {
            bar1_bytes: bytes,
            ..GpuConfig::default()
        });
        space.write(0x14, &[0xff; 8]);
        assert_eq!(
            (read_u32(&space, 0x14), read_u32(&space, 0x18)),
            (low, high),
            "{bytes:#x}"
        );
    }
}

#[test]
fn capability_list_is_power_then_msi() {
    let space = space();
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
fn function_has_the_pin_a_and_a_line_register_for_the_guest() {
    let mut space = space();
    assert_eq!(read_u32(&space, 0x3c), 0x0100);
    space.write(0x3c, &[11, 4]);
    assert_eq!(read_u32(&space, 0x3c), 0x010b, "the pin cannot be written");
}

#[test]
fn msi_needs_bus_master_and_enable() {
    let mut space = space();
    space.write(0x6a, &[0xff, 0xff]);
    assert_eq!(read_u32(&space, 0x68) >> 16, 0x81, "one vector, 64-bit, enabled");
    assert!(!space.can_interrupt());
    space.write(4, &[0b110]);
    assert!(space.can_interrupt());
    space.reset();
    assert!(!space.can_interrupt());
}

#[test]
fn reset_goes_back_to_power_on() {
    let mut written = space();
    written.write(0, &[0xff; CONFIG_BYTES]);
    assert_ne!(all(&written), all(&space()));
    written.reset();
    assert_eq!(all(&written), all(&space()));
}

#[test]
fn access_across_the_end_is_bounded() {
    let mut space = space();
    let before = all(&space);
    let mut data = [0; 8];
    space.write(252, &[0xff; 8]);
    space.read(252, &mut data);
    assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    for offset in [CONFIG_BYTES as u64, u64::MAX - 3, u64::MAX] {
        space.write(offset, &[0xff; 8]);
        space.read(offset, &mut data);
        assert_eq!(data, [0xff; 8], "{offset:#x}");
    }
    assert_eq!(all(&space), before);
}

proptest! {
    /// Writing in any pieces is the same as writing in bytes, and never changes what is read-only.
    #[test]
    fn any_write_keeps_what_is_read_only(
        writes in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..9)), 0..40),
    ) {
        let (mut whole, mut bytewise) = (space(), space());
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
        for (at, (now, built)) in whole.bytes.iter().zip(whole.initial.iter()).enumerate() {
            prop_assert_eq!(now & !whole.writeable[at], built & !whole.writeable[at]);
        }
    }
}
