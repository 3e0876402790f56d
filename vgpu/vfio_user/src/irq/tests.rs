use std::os::fd::OwnedFd;

use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::testing::{foreign, memory};

const COUNTS: [u32; IRQ_INDICES] = [1, 4, 0, 0, 0, 0];

fn wire(flags: u32, index: u32, start: u32, count: u32) -> IrqSetWire {
    IrqSetWire {
        argsz: 20,
        flags,
        index,
        start,
        count,
    }
}

fn decode(wire: IrqSetWire, data: &[u8], descriptors: Vec<ForeignFd>) -> Result<IrqChange, ProtocolError> {
    IrqChange::decode(&wire, data, descriptors, &Arc::new(Bell::new().unwrap()), &COUNTS)
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::empty()).unwrap()
}

#[test]
fn no_vectors_without_data_turns_the_index_off() {
    let change = decode(wire(DATA_NONE | ACTION_TRIGGER, 2, 0, 0), &[], Vec::new()).unwrap();
    assert!(matches!(
        change,
        IrqChange::DisableAll {
            index: IrqIndex::MsiX
        }
    ));
}

#[test]
fn eventfds_connect_as_many_vectors() {
    let set = wire(DATA_EVENTFD | ACTION_TRIGGER, 1, 2, 2);
    let change = decode(set, &[], foreign([event(), event()])).unwrap();
    let IrqChange::Vectors {
        index,
        start,
        count,
        action,
        operation,
    } = change
    else {
        panic!("{change:?}")
    };
    assert_eq!(
        (index, start, count, action),
        (IrqIndex::Msi, 2, 2, IrqAction::Trigger)
    );
    assert!(matches!(operation, IrqOperation::Connect(events) if events.len() == 2));
}

#[test]
fn eventfds_that_are_fewer_than_the_vectors_are_refused() {
    let set = wire(DATA_EVENTFD | ACTION_TRIGGER, 1, 0, 2);
    let error = ProtocolError::DescriptorCount {
        command: CommandCode::SetIrqs,
        count: 1,
    };
    assert_eq!(decode(set, &[], foreign([event()])).unwrap_err(), error);
}

#[test]
fn eventfd_kind_without_eventfd_disconnects() {
    let change = decode(wire(DATA_EVENTFD | ACTION_TRIGGER, 0, 0, 1), &[], Vec::new()).unwrap();
    assert!(matches!(
        change,
        IrqChange::Vectors {
            operation: IrqOperation::Disconnect,
            ..
        }
    ));
}

#[test]
fn bools_choose_vectors() {
    let change = decode(wire(DATA_BOOL | ACTION_MASK, 1, 0, 3), &[0, 1, 7], Vec::new()).unwrap();
    let IrqChange::Vectors {
        operation: IrqOperation::ApplyWhere(chosen),
        ..
    } = change
    else {
        panic!("{change:?}")
    };
    assert_eq!(chosen, [false, true, true]);
}

#[test]
fn bools_that_are_missing_are_refused() {
    assert!(decode(wire(DATA_BOOL | ACTION_MASK, 1, 0, 3), &[1], Vec::new()).is_err());
}

#[test]
fn vectors_that_overflow_are_refused() {
    let error = ProtocolError::Vectors {
        index: 1,
        start: u32::MAX,
        count: 2,
    };
    let set = wire(DATA_NONE | ACTION_TRIGGER, 1, u32::MAX, 2);
    assert_eq!(decode(set, &[], Vec::new()).unwrap_err(), error);
}

#[test]
fn vector_beyond_the_index_is_refused() {
    assert!(decode(wire(DATA_NONE | ACTION_TRIGGER, 0, 1, 1), &[], Vec::new()).is_err());
}

#[test]
fn index_that_does_not_exist_is_refused() {
    let error = ProtocolError::Index {
        command: CommandCode::SetIrqs,
        index: 5,
    };
    assert_eq!(
        decode(wire(DATA_NONE | ACTION_TRIGGER, 5, 0, 0), &[], Vec::new()).unwrap_err(),
        error
    );
}

#[test]
fn two_actions_at_once_are_refused() {
    assert!(
        decode(
            wire(DATA_NONE | ACTION_TRIGGER | ACTION_MASK, 0, 0, 1),
            &[],
            Vec::new()
        )
        .is_err()
    );
}

#[test]
fn pipe_for_an_event_is_refused() {
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let set = wire(DATA_EVENTFD | ACTION_TRIGGER, 0, 0, 1);
    assert_eq!(
        decode(set, &[], foreign([writer])).unwrap_err(),
        ProtocolError::NotAnEvent
    );
}

#[test]
fn memory_for_an_event_is_refused() {
    let set = wire(DATA_EVENTFD | ACTION_TRIGGER, 0, 0, 1);
    assert_eq!(
        decode(set, &[], foreign([memory(4096)])).unwrap_err(),
        ProtocolError::NotAnEvent
    );
}

#[test]
fn signal_of_a_full_blocking_counter_returns() {
    let theirs = event();
    rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let ours = foreign([theirs.try_clone().unwrap()]).remove(0);
    let ours = IrqEvent::new(ours, Arc::new(Bell::new().unwrap())).unwrap();
    // The kernel fills the last place too; from then on the counter stays as it is.
    assert_eq!([ours.signal(), ours.signal()], [Ok(()); 2]);
}

proptest! {
    #[test]
    fn any_set_is_within_the_vectors_or_refused(
        flags in 0u32..64, index in 0u32..8, start: u32, count in prop_oneof![0u32..6, any::<u32>()],
        data in proptest::collection::vec(any::<u8>(), 0..8), is_near: bool,
    ) {
        let start = if is_near { start % 6 } else { start };
        match decode(wire(flags, index, start, count), &data, Vec::new()) {
            Ok(IrqChange::Vectors { index, start, count, .. }) => {
                prop_assert!(count > 0 && u64::from(start) + u64::from(count) <= u64::from(COUNTS[index as usize]));
            }
            Ok(IrqChange::DisableAll { .. }) => prop_assert_eq!((start, count), (0, 0)),
            Err(_) => {}
        }
    }
}
