use proptest::prelude::*;

use super::*;
use crate::bounds::MESSAGE_BYTES_MAX;

fn header(message_bytes: u32, flags: u32) -> Header {
    Header {
        message_id: 1,
        command: 9,
        message_bytes,
        flags,
        error: 0,
    }
}

#[test]
fn size_below_the_header_has_no_body() {
    assert_eq!(
        header(15, 0).body_bytes(),
        Err(ProtocolError::SizeBelowHeader { bytes: 15 })
    );
}

#[test]
fn size_of_the_header_is_an_empty_body() {
    assert_eq!(header(16, 0).body_bytes(), Ok(0));
}

#[test]
fn size_above_the_bound_has_no_body() {
    assert_eq!(
        header(u32::MAX, 0).body_bytes(),
        Err(ProtocolError::SizeAboveBound { bytes: u32::MAX })
    );
}

#[test]
fn write_with_another_length_than_it_says_is_refused() {
    let access = RegionAccessWire {
        offset: 0,
        region: 0,
        count: 4,
    };
    let body = [access.as_bytes(), &[0; 3]].concat();
    let error = ProtocolError::BodyLength {
        command: CommandCode::RegionWrite,
        bytes: 19,
    };
    assert_eq!(decode(10, &body), Err(error));
}

#[test]
fn transfer_of_nothing_is_refused() {
    let access = RegionAccessWire {
        offset: 0,
        region: 0,
        count: 0,
    };
    assert_eq!(
        decode(9, access.as_bytes()),
        Err(ProtocolError::TransferSize { count: 0 })
    );
}

#[test]
fn transfer_of_one_byte_too_many_is_refused() {
    let count = DATA_BYTES_MAX + 1;
    let access = RegionAccessWire {
        offset: 0,
        region: 0,
        count,
    };
    assert_eq!(
        decode(9, access.as_bytes()),
        Err(ProtocolError::TransferSize { count })
    );
}

#[test]
fn batch_count_whose_size_overflows_is_refused() {
    let count = u64::MAX / 24 + 1;
    assert_eq!(
        decode(15, &count.to_ne_bytes()),
        Err(ProtocolError::BatchSize { count })
    );
}

#[test]
fn batched_write_of_nine_bytes_is_refused() {
    let access = RegionAccessWire {
        offset: 0,
        region: 0,
        count: 9,
    };
    let body = [&1u64.to_ne_bytes()[..], access.as_bytes(), &[0; 8]].concat();
    assert_eq!(decode(15, &body), Err(ProtocolError::TransferSize { count: 9 }));
}

#[test]
fn version_data_above_its_bound_is_refused() {
    let body = vec![0; 4 + VERSION_DATA_BYTES_MAX + 1];
    let error = ProtocolError::BodyLength {
        command: CommandCode::Version,
        bytes: body.len(),
    };
    assert_eq!(decode(1, &body), Err(error));
}

/// Bytes that a command holds on the heap.
fn held_bytes(command: &Command) -> usize {
    match command {
        Command::SetIrqs(_, data) | Command::RegionWrite(_, data) => data.capacity(),
        Command::RegionWriteMulti(writes) => writes.capacity() * size_of::<SmallWrite>(),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn any_body_decodes_or_is_refused_within_its_own_size(
        command in 0u16..20,
        body in proptest::collection::vec(any::<u8>(), 0..6000),
    ) {
        if let Ok(decoded) = decode(command, &body) {
            prop_assert!(held_bytes(&decoded) <= 2 * body.len());
        }
    }

    /// Fields that look like sizes are where decoders break: small bodies, extreme numbers.
    #[test]
    fn extreme_fields_decode_or_are_refused_within_their_size(
        command in 0u16..20,
        fields in proptest::collection::vec(
            prop_oneof![Just(0u32), Just(1), Just(24), Just(200), Just(u32::MAX), Just(1 << 31), any::<u32>()],
            0..12,
        ),
    ) {
        let body: Vec<u8> = fields.into_iter().flat_map(u32::to_ne_bytes).collect();
        if let Ok(decoded) = decode(command, &body) {
            prop_assert!(held_bytes(&decoded) <= 2 * body.len());
        }
    }

    #[test]
    fn any_header_bounds_its_body(message_bytes: u32, flags: u32) {
        if let Ok(bytes) = header(message_bytes, flags).body_bytes() {
            prop_assert_eq!(bytes + 16, message_bytes as usize);
            prop_assert!(message_bytes as usize <= MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn write_keeps_its_bytes(offset: u64, region: u32, data in proptest::collection::vec(any::<u8>(), 1..300)) {
        let access = RegionAccessWire { offset, region, count: data.len() as u32 };
        let body = [access.as_bytes(), &data].concat();
        prop_assert_eq!(decode(10, &body), Ok(Command::RegionWrite(access, data)));
    }
}
