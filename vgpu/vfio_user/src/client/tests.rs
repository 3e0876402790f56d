use std::io::{Read, Write};
use std::mem::size_of;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::pipe;

use super::*;
use crate::bounds::{DATA_BYTES_MAX, DMA_MAPS_MAX, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use crate::function::{Region, RegionInfo};
use crate::irq::IrqOperation;
use crate::message::{DmaMapWire, IrqSetWire};
use crate::testing::{NO_REPLY, Pair, gpu_like, map, memory, message, read, version, write};

fn errno(error: Errno) -> i32 {
    error.raw_os_error()
}

/// The error that ended the session.
fn violation(incoming: Vec<Incoming>) -> ProtocolError {
    match incoming.into_iter().next_back() {
        Some(Incoming::Closed(CloseReason::Protocol(error))) => error,
        other => panic!("not closed for a violation: {other:?}"),
    }
}

fn request_of(incoming: &[Incoming]) -> RequestId {
    match incoming {
        [
            Incoming::RegionRead { request, .. }
            | Incoming::RegionWrite { request, .. }
            | Incoming::RegionWriteMulti { request, .. }
            | Incoming::DmaMap { request, .. }
            | Incoming::DmaUnmap { request, .. }
            | Incoming::Irq { request, .. }
            | Incoming::Reset { request },
        ] => *request,
        other => panic!("not one request: {other:?}"),
    }
}

mod one_message_crashes {
    //! Each of these ended or flooded the server of another implementation.

    use super::*;

    #[test]
    fn version_blob_without_nul_is_refused() {
        let mut pair = Pair::new();
        let closed = pair.say(&version(b"{\"capabilities\":{}}"));
        assert_eq!(violation(closed), ProtocolError::MalformedVersionData);
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }

    #[test]
    fn version_message_of_size_0_is_refused() {
        let mut pair = Pair::new();
        let mut bytes = version(b"{}\0");
        bytes[4..8].copy_from_slice(&0u32.to_ne_bytes());
        assert_eq!(
            violation(pair.say(&bytes)),
            ProtocolError::SizeBelowHeader { bytes: 0 }
        );
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }

    #[test]
    fn version_message_of_size_19_is_refused() {
        let mut pair = Pair::new();
        let mut bytes = version(b"");
        bytes[4..8].copy_from_slice(&19u32.to_ne_bytes());
        let error = ProtocolError::BodyLength {
            command: CommandCode::Version,
            bytes: 3,
        };
        assert_eq!(violation(pair.say(&bytes)), error);
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }

    #[test]
    fn read_of_4_gib_is_refused_and_the_session_goes_on() {
        let mut pair = Pair::attached();
        assert!(pair.say(&read(1, 0, 0, u32::MAX)).is_empty());
        assert_eq!(pair.error(), errno(Errno::INVAL));
        assert_eq!(pair.say(&read(2, 0, 0, 4)).len(), 1);
    }

    #[test]
    fn read_whose_reply_size_overflows_is_refused() {
        let mut pair = Pair::attached();
        let header_and_access = (16 + size_of::<RegionAccessWire>()) as u32;
        assert!(
            pair.say(&read(1, 0, 0, u32::MAX - header_and_access + 1))
                .is_empty()
        );
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }
}

mod negotiation {
    use super::*;

    #[test]
    fn command_before_version_ends_the_session() {
        let mut pair = Pair::new();
        let closed = pair.say(&read(3, 0, 0, 4));
        assert_eq!(violation(closed), ProtocolError::NotNegotiated { command: 9 });
        assert_eq!(pair.error(), errno(Errno::PROTO));
    }

    #[test]
    fn second_version_is_refused_and_the_session_goes_on() {
        let mut pair = Pair::attached();
        assert!(pair.say(&version(b"")).is_empty());
        assert_eq!(pair.error(), errno(Errno::ALREADY));
        assert!(pair.client.is_attached());
    }

    #[test]
    fn other_major_version_ends_the_session() {
        let mut pair = Pair::new();
        let closed = pair.say(&message(0, 1, 0, &[7, 0, 1, 0]));
        assert_eq!(
            violation(closed),
            ProtocolError::UnsupportedVersion { major: 7, minor: 1 }
        );
        assert_eq!(pair.error(), errno(Errno::PROTONOSUPPORT));
    }

    #[test]
    fn reply_to_a_command_never_sent_ends_the_session() {
        let mut pair = Pair::attached();
        let closed = pair.say(&message(9, 9, 1, &[0; 16]));
        assert_eq!(violation(closed), ProtocolError::NotACommand { flags: 1 });
    }

    #[test]
    fn unserved_command_is_refused_and_the_session_goes_on() {
        let mut pair = Pair::attached();
        assert!(pair.say(&message(9, 16, 0, &[0; 8])).is_empty());
        assert_eq!(pair.error(), errno(Errno::OPNOTSUPP));
        assert!(pair.client.is_attached());
    }
}

mod framing {
    use super::*;

    #[test]
    fn message_byte_by_byte_with_descriptor_on_the_first_is_taken_whole() {
        let mut pair = Pair::attached();
        let bytes = map(5, 0x10000, 0x4000);
        assert!(pair.say_with(&bytes[..1], &[memory(0x4000)]).is_empty());
        for byte in &bytes[1..bytes.len() - 1] {
            assert!(pair.say(std::slice::from_ref(byte)).is_empty());
        }
        let incoming = pair.say(&bytes[bytes.len() - 1..]);
        let Some(Incoming::DmaMap { map, .. }) = incoming.first() else {
            panic!("{incoming:?}")
        };
        assert!(map.file.is_some());
    }

    #[test]
    fn descriptor_belongs_to_its_message_among_queued_ones() {
        let mut pair = Pair::attached();
        pair.vmm.write_all(&read(1, 0, 0, 4)).unwrap();
        let mut incoming = pair.say_with(&map(2, 0, 0x1000), &[memory(0x1000)]);
        incoming.extend(pair.turn());
        assert!(matches!(
            incoming[..],
            [Incoming::RegionRead { .. }, Incoming::DmaMap { .. }]
        ));
    }

    #[test]
    fn turn_ends_with_the_first_request_that_is_awaited() {
        let mut pair = Pair::attached();
        let posted = write(1, FLAG_NO_REPLY, 0, 0, &[7; 4]);
        for message in [&posted, &posted, &read(2, 0, 0, 4), &posted] {
            pair.vmm.write_all(message).unwrap();
        }
        assert_eq!((pair.turn().len(), pair.turn().len()), (3, 1));
    }

    #[test]
    fn descriptor_of_a_message_read_ahead_stays_with_it() {
        let mut pair = Pair::attached();
        pair.vmm.write_all(&message(1, 13, 0, &[])).unwrap();
        let reset = pair.say_with(&map(2, 0, 0x1000), &[memory(0x1000)]);
        assert!(matches!(reset[..], [Incoming::Reset { .. }]), "{reset:?}");
        assert!(pair.client.is_due());
        let incoming = pair.turn();
        let [Incoming::DmaMap { map, .. }] = &incoming[..] else {
            panic!("{incoming:?}")
        };
        assert!(map.file.is_some() && !pair.client.is_due());
    }

    #[test]
    fn whole_message_read_ahead_is_due_though_the_socket_is_empty() {
        let mut pair = Pair::attached();
        let reset = message(1, 13, 0, &[]);
        assert_eq!(pair.say(&[&reset[..], &reset, &reset[..15]].concat()).len(), 1);
        assert!(pair.client.is_due());
        assert_eq!(pair.turn().len(), 1);
        assert!(!pair.client.is_due());
        assert_eq!(pair.say(&reset[15..]).len(), 1);
    }

    #[test]
    fn hang_up_after_a_part_of_a_message_read_ahead_is_a_torn_message() {
        let mut pair = Pair::attached();
        let reset = message(1, 13, 0, &[]);
        assert_eq!(pair.say(&[&reset[..], &reset[..3]].concat()).len(), 1);
        pair.vmm.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(
            pair.turn()[..],
            [Incoming::Closed(CloseReason::TornMessage)]
        ));
    }

    #[test]
    fn message_of_the_largest_size_is_taken() {
        let mut pair = Pair::attached();
        let bytes = write(1, 0, 0, 0, &vec![7; DATA_BYTES_MAX as usize]);
        assert_eq!(bytes.len(), MESSAGE_BYTES_MAX);
        let incoming = pair.say(&bytes);
        let [Incoming::RegionWrite { data, .. }] = &incoming[..] else {
            panic!("{incoming:?}")
        };
        assert_eq!(data.len(), DATA_BYTES_MAX as usize);
    }

    #[test]
    fn message_one_byte_above_the_bound_ends_the_session() {
        let mut pair = Pair::attached();
        let mut bytes = read(1, 0, 0, 4);
        let size = MESSAGE_BYTES_MAX as u32 + 1;
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        assert_eq!(
            violation(pair.say(&bytes)),
            ProtocolError::SizeAboveBound { bytes: size }
        );
        assert_eq!(pair.error(), errno(Errno::MSGSIZE));
    }

    #[test]
    fn hang_up_between_messages_is_told_as_such() {
        let mut pair = Pair::attached();
        pair.vmm.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(pair.turn()[..], [Incoming::Closed(CloseReason::HungUp)]));
        assert!(pair.turn().is_empty(), "told twice");
    }

    #[test]
    fn hang_up_within_a_message_is_told_as_such() {
        let mut pair = Pair::attached();
        pair.vmm.write_all(&read(1, 0, 0, 4)[..17]).unwrap();
        pair.vmm.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(
            pair.turn()[..],
            [Incoming::Closed(CloseReason::TornMessage)]
        ));
    }
}

mod descriptors {
    use super::*;

    #[test]
    fn flood_in_one_message_ends_the_session_and_all_are_closed() {
        let mut pair = Pair::attached();
        let (reader, writer) = pipe().unwrap();
        let flood: Vec<_> = (0..=MESSAGE_FDS_MAX)
            .map(|_| writer.try_clone().unwrap())
            .collect();
        let closed = pair.say_with(&map(1, 0, 0x1000), &flood);
        assert_eq!(violation(closed), ProtocolError::TooManyDescriptors);
        drop((flood, writer));
        assert_eq!(
            std::fs::File::from(reader).read(&mut [0]).unwrap(),
            0,
            "somebody holds the pipe"
        );
    }

    #[test]
    fn flood_over_the_pieces_of_one_message_ends_the_session() {
        let mut pair = Pair::attached();
        let bytes = map(1, 0, 0x1000);
        let half: Vec<_> = (0..5).map(|_| memory(0x1000)).collect();
        assert!(pair.say_with(&bytes[..20], &half).is_empty());
        assert_eq!(
            violation(pair.say_with(&bytes[20..], &half)),
            ProtocolError::TooManyDescriptors
        );
    }

    #[test]
    fn descriptors_of_a_command_without_any_are_refused_and_closed() {
        let mut pair = Pair::attached();
        let (reader, writer) = pipe().unwrap();
        assert!(pair.say_with(&read(1, 0, 0, 4), &[writer]).is_empty());
        assert_eq!(pair.error(), errno(Errno::INVAL));
        assert_eq!(
            std::fs::File::from(reader).read(&mut [0]).unwrap(),
            0,
            "somebody holds the pipe"
        );
    }

    #[test]
    fn descriptors_are_closed_on_exec() {
        let mut pair = Pair::attached();
        let incoming = pair.say_with(&map(1, 0, 0x1000), &[memory(0x1000)]);
        let [Incoming::DmaMap { map, .. }] = &incoming[..] else {
            panic!("{incoming:?}")
        };
        let flags = rustix::io::fcntl_getfd(&map.file.as_ref().unwrap().descriptor).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

mod requests {
    use super::*;

    #[test]
    fn read_is_answered_with_its_bytes() {
        let mut pair = Pair::attached();
        let incoming = pair.say(&read(0x77, 1, 0x100, 8));
        pair.client
            .reply_read(request_of(&incoming), &[1, 2, 3, 4, 5, 6, 7, 8])
            .unwrap();
        let (header, body) = pair.reply();
        assert_eq!((header.message_id, header.command, header.flags), (0x77, 9, 1));
        assert_eq!(
            body,
            [&read(0, 1, 0x100, 8)[16..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat()
        );
    }

    #[test]
    fn answers_go_out_in_the_order_they_are_given() {
        let mut pair = Pair::attached();
        let first = request_of(&pair.say(&read(1, 0, 0, 4)));
        let second = request_of(&pair.say(&read(2, 0, 4, 4)));
        pair.client.reply_read(second, &[2; 4]).unwrap();
        pair.client.reply_read(first, &[1; 4]).unwrap();
        assert_eq!([pair.reply().0.message_id, pair.reply().0.message_id], [2, 1]);
    }

    #[test]
    fn equal_message_ids_are_told_apart() {
        let mut pair = Pair::attached();
        let first = request_of(&pair.say(&read(1, 0, 0, 4)));
        let second = request_of(&pair.say(&read(1, 0, 4, 4)));
        assert_ne!(first, second);
    }

    #[test]
    fn posted_write_is_answered_with_nothing() {
        let mut pair = Pair::attached();
        let incoming = pair.say(&write(1, NO_REPLY, 0, 0x10, &[9; 4]));
        assert!(matches!(
            incoming[..],
            [Incoming::RegionWrite { is_posted: true, .. }]
        ));
        pair.client.reply_done(request_of(&incoming)).unwrap();
        assert!(!pair.has_reply());
        assert_eq!(pair.client.unanswered(), 0);
    }

    #[test]
    fn refused_posted_write_is_answered_with_nothing() {
        let mut pair = Pair::attached();
        assert!(pair.say(&write(1, NO_REPLY, 2, 0, &[9; 4])).is_empty());
        assert!(!pair.has_reply());
    }

    #[test]
    fn batch_surfaces_whole_and_is_answered_with_its_count() {
        let mut pair = Pair::attached();
        let one = |offset: u64, count: u32| {
            let access = RegionAccessWire {
                offset,
                region: 0,
                count,
            };
            [access.as_bytes(), &[0xab; 8]].concat()
        };
        let body = [&2u64.to_ne_bytes()[..], &one(0x2270, 4), &one(0x2274, 2)].concat();
        let incoming = pair.say(&message(4, 15, 0, &body));
        let [
            Incoming::RegionWriteMulti {
                request,
                writes,
                is_posted: false,
            },
        ] = &incoming[..]
        else {
            panic!("{incoming:?}")
        };
        assert_eq!(writes[1].write.data(), [0xab; 2]);
        pair.client.reply_done(*request).unwrap();
        assert_eq!(pair.reply().1, 2u64.to_ne_bytes());
    }

    #[test]
    fn batch_with_one_bad_write_is_refused_whole() {
        let mut pair = Pair::attached();
        let one = |region: u32| {
            [
                RegionAccessWire {
                    offset: 0,
                    region,
                    count: 4,
                }
                .as_bytes(),
                &[0; 8],
            ]
            .concat()
        };
        let body = [&2u64.to_ne_bytes()[..], &one(0), &one(5)].concat();
        assert!(pair.say(&message(4, 15, 0, &body)).is_empty());
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }

    #[test]
    fn access_beyond_its_region_is_refused() {
        let mut pair = Pair::attached();
        assert!(pair.say(&read(1, 0, (32 << 20) - 2, 4)).is_empty());
        assert_eq!(pair.error(), errno(Errno::INVAL));
        assert!(pair.say(&read(1, 0, u64::MAX - 1, 4)).is_empty());
        assert_eq!(pair.error(), errno(Errno::INVAL));
    }

    #[test]
    fn write_to_a_read_only_region_is_refused() {
        let rom = RegionInfo {
            bytes: 4096,
            is_readable: true,
            ..RegionInfo::default()
        };
        let mut pair = Pair::attached_to(gpu_like().with_region(Region::Rom, rom));
        assert!(pair.say(&write(1, 0, 6, 0, &[0; 4])).is_empty());
        assert_eq!(pair.error(), errno(Errno::ACCESS));
        assert_eq!(pair.say(&read(2, 6, 0, 4)).len(), 1);
    }

    #[test]
    fn reset_of_a_function_without_reset_is_refused() {
        let mut pair = Pair::attached_to(gpu_like().without_reset());
        assert!(pair.say(&message(1, 13, 0, &[])).is_empty());
        assert_eq!(pair.error(), errno(Errno::OPNOTSUPP));
    }

    #[test]
    fn second_answer_is_an_error_of_the_embedder() {
        let mut pair = Pair::attached();
        let request = request_of(&pair.say(&message(1, 13, 0, &[])));
        pair.client.reply_done(request).unwrap();
        assert_eq!(
            pair.client.reply_done(request),
            Err(ReplyError::NotWaiting(request.0))
        );
    }

    #[test]
    fn answer_of_another_length_leaves_the_request_waiting() {
        let mut pair = Pair::attached();
        let request = request_of(&pair.say(&read(1, 0, 0, 4)));
        assert!(pair.client.reply_read(request, &[0; 5]).is_err());
        assert!(pair.client.reply_done(request).is_err());
        assert_eq!(pair.client.unanswered(), 1);
        assert!(!pair.has_reply());
    }

    #[test]
    fn answer_after_the_client_is_gone_is_swallowed() {
        let mut pair = Pair::attached();
        let request = request_of(&pair.say(&read(1, 0, 0, 4)));
        pair.vmm.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(pair.turn().len(), 1);
        assert_eq!(pair.client.reply_read(request, &[0; 4]), Ok(()));
    }

    #[test]
    fn failed_send_is_told_by_the_next_turn() {
        let mut pair = Pair::attached();
        let request = request_of(&pair.say(&read(1, 0, 0, 4)));
        drop(std::mem::replace(
            &mut pair.vmm,
            std::os::unix::net::UnixStream::pair().unwrap().0,
        ));
        pair.client.reply_read(request, &[0; 4]).unwrap();
        assert!(pair.client.is_due());
        assert!(matches!(pair.turn()[..], [Incoming::Closed(CloseReason::HungUp)]));
    }

    #[test]
    fn set_irqs_with_eventfd_surfaces_a_working_event() {
        let mut pair = Pair::attached();
        let wire = IrqSetWire {
            argsz: 20,
            flags: 4 | 32,
            index: 1,
            start: 0,
            count: 1,
        };
        let ours = eventfd(0, EventfdFlags::empty()).unwrap();
        let incoming = pair.say_with(&message(1, 8, 0, wire.as_bytes()), &[ours.try_clone().unwrap()]);
        let [
            Incoming::Irq {
                change: IrqChange::Vectors { operation, .. },
                ..
            },
        ] = &incoming[..]
        else {
            panic!("{incoming:?}")
        };
        let IrqOperation::Connect(events) = operation else {
            panic!("{operation:?}")
        };
        events[0].signal().unwrap();
        let mut count = [0; 8];
        rustix::io::read(&ours, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}

mod dma {
    use super::*;

    #[test]
    fn map_that_the_embedder_refuses_leaves_the_table() {
        let mut pair = Pair::attached();
        let request = request_of(&pair.say(&map(1, 0, 0x1000)));
        assert_eq!(pair.client.dma().len(), 1);
        pair.client.reply_error(request, Errno::NOMEM).unwrap();
        assert_eq!(pair.error(), errno(Errno::NOMEM));
        assert!(pair.client.dma().is_empty());
    }

    #[test]
    fn overlap_is_refused_with_the_errno_of_the_specification() {
        let mut pair = Pair::attached();
        pair.say(&map(1, 0, 0x2000));
        assert!(pair.say(&map(2, 0x1000, 0x1000)).is_empty());
        assert_eq!(pair.error(), errno(Errno::EXIST));
    }

    #[test]
    fn one_map_above_the_bound_is_refused() {
        let mut pair = Pair::attached();
        for index in 0..DMA_MAPS_MAX as u64 {
            let request = request_of(&pair.say(&map(1, index * 0x1000, 0x1000)));
            pair.client.reply_done(request).unwrap();
            pair.reply();
        }
        assert_eq!(pair.client.take_refused_map(), None);
        assert!(pair.say(&map(2, 1 << 40, 0x1000)).is_empty());
        assert_eq!(pair.error(), errno(Errno::NOSPC));
        assert_eq!(
            pair.client.take_refused_map(),
            Some(ProtocolError::from(crate::error::DmaError::TooManyMaps))
        );
        assert_eq!(pair.client.take_refused_map(), None, "it is told once");
    }

    #[test]
    fn unmap_is_answered_with_its_request() {
        let mut pair = Pair::attached();
        let mapped = request_of(&pair.say(&map(1, 0x1000, 0x1000)));
        pair.client.reply_done(mapped).unwrap();
        pair.reply();
        let wire = DmaUnmapWire {
            argsz: 24,
            flags: 0,
            iova: 0x1000,
            bytes: 0x1000,
        };
        let incoming = pair.say(&message(2, 3, 0, wire.as_bytes()));
        let [Incoming::DmaUnmap { request, maps }] = &incoming[..] else {
            panic!("{incoming:?}")
        };
        assert_eq!(maps.len(), 1);
        pair.client.reply_done(*request).unwrap();
        assert_eq!(pair.reply().1, wire.as_bytes());
    }
}

mod back_pressure {
    use super::*;

    #[test]
    fn nothing_is_read_while_too_many_requests_wait() {
        let mut pair = Pair::attached();
        for _ in 0..UNANSWERED_MAX + 10 {
            pair.vmm.write_all(&read(1, 0, 0, 4)).unwrap();
        }
        let taken: Vec<_> = (0..UNANSWERED_MAX + 10).flat_map(|_| pair.turn()).collect();
        assert_eq!(taken.len(), UNANSWERED_MAX);
        assert!(!pair.client.wants_read());
        pair.client.reply_read(request_of(&taken[..1]), &[0; 4]).unwrap();
        assert_eq!(pair.turn().len(), 1);
    }

    #[test]
    fn client_that_never_fetches_replies_is_held_at_the_bound() {
        let mut pair = Pair::attached();
        let mut served = 0;
        while pair.client.wants_read() {
            let incoming = pair.say(&read(1, 0, 0, DATA_BYTES_MAX));
            pair.client
                .reply_read(request_of(&incoming), &vec![0; DATA_BYTES_MAX as usize])
                .unwrap();
            served += 1;
        }
        assert!(served > OUTGOING_BYTES_MAX / DATA_BYTES_MAX as usize - 1);
        assert!(pair.client.connection.outgoing_bytes() <= OUTGOING_BYTES_MAX + MESSAGE_BYTES_MAX);
        assert!(pair.client.wants_write());
        for _ in 0..served {
            assert_eq!(pair.reply().1.len(), DATA_BYTES_MAX as usize + 16);
            pair.client.write_ready();
        }
        assert!(pair.client.wants_read() && !pair.client.wants_write());
    }

    #[test]
    fn hang_up_of_a_client_that_is_held_back_is_seen() {
        let mut pair = Pair::attached();
        for _ in 0..UNANSWERED_MAX {
            assert_eq!(pair.say(&read(1, 0, 0, 4)).len(), 1);
        }
        pair.vmm.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(pair.turn()[..], [Incoming::Closed(CloseReason::HungUp)]));
    }
}

/// Events that the client reported, without the ids.
fn describe(incoming: &Incoming) -> String {
    match incoming {
        Incoming::RegionRead {
            region,
            offset,
            count,
            ..
        } => format!("read {region:?} {offset} {count}"),
        Incoming::RegionWrite {
            region,
            offset,
            data,
            is_posted,
            ..
        } => {
            format!("write {region:?} {offset} {data:?} {is_posted}")
        }
        Incoming::RegionWriteMulti {
            writes, is_posted, ..
        } => format!("multi {writes:?} {is_posted}"),
        Incoming::DmaMap { map, .. } => format!("map {} {}", map.iova, map.bytes),
        Incoming::DmaUnmap { maps, .. } => format!("unmap {}", maps.len()),
        Incoming::Irq { change, .. } => format!("irq {change:?}"),
        Incoming::Reset { .. } => "reset".to_owned(),
        Incoming::Closed(reason) => format!("closed {reason:?}"),
    }
}

fn answer(client: &mut Client, incoming: &Incoming) {
    match incoming {
        Incoming::RegionRead { request, count, .. } => {
            client.reply_read(*request, &vec![0; *count as usize]).unwrap();
        }
        Incoming::Closed(_) => {}
        other => client
            .reply_done(request_of(std::slice::from_ref(other)))
            .unwrap_or_default(),
    }
}

/// The messages of a stream, sorted: answers by this crate itself may overtake the embedder's.
fn sorted_messages(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some(bytes) = stream.get(4..8) {
        let bytes = u32::from_ne_bytes(bytes.try_into().unwrap()) as usize;
        let (message, rest) = stream.split_at(bytes);
        messages.push(message);
        stream = rest;
    }
    messages.sort_unstable();
    messages
}

/// Feeds a stream in pieces and returns what surfaced and every byte that was replied.
fn run(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>) {
    let mut pair = Pair::new();
    let (mut surfaced, mut replied) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; 1 << 17];
    for piece in pieces {
        if pair.client.is_closed() || pair.vmm.write_all(piece).is_err() {
            break;
        }
        loop {
            let incoming = pair.turn();
            for request in &incoming {
                surfaced.push(describe(request));
                answer(&mut pair.client, request);
            }
            let fetched = pair.vmm.read(&mut buffer).unwrap_or(0);
            replied.extend_from_slice(&buffer[..fetched]);
            pair.client.write_ready();
            if incoming.is_empty() && fetched == 0 {
                break;
            }
        }
        assert!(pair.client.connection.outgoing_bytes() <= OUTGOING_BYTES_MAX + MESSAGE_BYTES_MAX);
    }
    (surfaced, replied)
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let irqs = (0u32..64, 0u32..6, 0u32..3, 0u32..3).prop_map(|(flags, index, start, count)| {
        let wire = IrqSetWire {
            argsz: 20,
            flags,
            index,
            start,
            count,
        };
        message(1, 8, 0, &[wire.as_bytes(), &[1, 0, 1]].concat())
    });
    let unmap = (0u64..4, 1u64..4).prop_map(|(page, pages)| {
        let wire = DmaUnmapWire {
            argsz: 24,
            flags: 0,
            iova: page << 12,
            bytes: pages << 12,
        };
        message(1, 3, 0, wire.as_bytes())
    });
    prop_oneof![
        (any::<u16>(), 0u32..10, 0u64..5000, 0u32..64).prop_map(|(id, r, o, n)| read(id, r, o, n)),
        (
            0u32..10,
            0u64..5000,
            proptest::collection::vec(any::<u8>(), 0..64),
            any::<bool>()
        )
            .prop_map(|(r, o, data, posted)| write(2, u32::from(posted) << 4, r, o, &data)),
        (0u64..4, 1u64..4).prop_map(|(page, pages)| map(3, page << 12, pages << 12)),
        unmap,
        irqs,
        (0u32..12, 0u32..48).prop_map(|(index, argsz)| {
            message(
                4,
                5,
                0,
                &[argsz, 0, index, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat(),
            )
        }),
        (0u32..6).prop_map(|index| { message(4, 7, 0, &[16, 0, index, 0].map(u32::to_ne_bytes).concat()) }),
        Just(message(5, 4, 0, &[16u32, 0, 0, 0].map(u32::to_ne_bytes).concat())),
        Just(message(6, 13, 0, &[])),
        (16u16..40).prop_map(|command| message(7, command, 0, &[0; 8])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// However a stream is cut, it says the same.
    #[test]
    fn any_split_of_a_stream_gives_the_same_requests(
        messages in proptest::collection::vec(any_message(), 0..12),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = [version(b"{}\0"), messages.concat()].concat();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let (surfaced, replied) = run(&pieces);
        let (surfaced_whole, replied_whole) = run(&[&stream]);
        prop_assert_eq!(surfaced, surfaced_whole);
        prop_assert_eq!(sorted_messages(&replied), sorted_messages(&replied_whole));
    }

    /// Nothing that arrives does more than end its own session.
    #[test]
    fn any_bytes_after_the_greeting_are_survived(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        run(&[&version(b""), &noise]);
        run(&[&noise]);
    }
}

#[test]
fn mutated_valid_streams_are_survived() {
    let mut random = ChaCha8Rng::seed_from_u64(0x7f10_05e4);
    let map_wire = DmaMapWire {
        argsz: 32,
        flags: 3,
        offset: 0,
        iova: 0,
        bytes: 0x1000,
    };
    let valid = [
        version(b"{\"capabilities\":{\"max_msg_fds\":8}}\0"),
        message(1, 4, 0, &[16u32, 0, 0, 0].map(u32::to_ne_bytes).concat()),
        message(1, 2, 0, map_wire.as_bytes()),
        read(2, 0, 0x100, 16),
        write(3, NO_REPLY, 7, 4, &[6, 0]),
        message(
            4,
            15,
            NO_REPLY,
            &[&1u64.to_ne_bytes()[..], &[0; 12], &[4, 0, 0, 0], &[1; 8]].concat(),
        ),
        message(5, 8, 0, &[20u32, 33, 0, 0, 0].map(u32::to_ne_bytes).concat()),
        message(6, 13, 0, &[]),
    ]
    .concat();
    for _ in 0..4000 {
        let mut stream = valid.clone();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..stream.len());
            stream[at] = match random.random_range(0..3) {
                0 => 0xff,
                1 => 0,
                _ => random.random(),
            };
        }
        stream.truncate(random.random_range(1..=stream.len()));
        run(&[&stream]);
    }
}

mod upstream {
    use super::*;
    use crate::message::DMA_WRITE;

    /// Reply, with an error.
    const REFUSED: u32 = 0x21;

    #[test]
    fn store_is_sent_with_its_address_and_wants_no_answer() {
        let mut pair = Pair::attached();
        pair.client.store_upstream(0xee_0000_0000, b"away");
        let (header, body) = pair.reply();
        assert_eq!((header.command, header.flags), (DMA_WRITE, NO_REPLY));
        assert_eq!(body[..8], 0xee_0000_0000_u64.to_ne_bytes());
        assert_eq!(
            (&body[8..16], &body[16..]),
            (&4_u64.to_ne_bytes()[..], &b"away"[..])
        );
    }

    #[test]
    fn refusal_of_a_store_is_no_news_and_one_more_is_a_violation() {
        let mut pair = Pair::attached();
        pair.client.store_upstream(0, b"away");
        let refusal = message(0, DMA_WRITE, REFUSED, &[]);
        assert!(pair.say(&refusal).is_empty());
        let error = ProtocolError::NotACommand { flags: REFUSED };
        assert_eq!(violation(pair.say(&refusal)), error);
    }

    #[test]
    fn client_that_reads_nothing_does_not_make_stores_pile_up() {
        let mut pair = Pair::attached();
        let data = [0; 4096];
        for at in 0..10_000 {
            pair.client.store_upstream(at * 4096, &data);
        }
        assert!(pair.client.connection.outgoing_bytes() < OUTGOING_BYTES_MAX);
        assert!(pair.client.wants_read());
    }

    #[test]
    fn store_before_the_greeting_is_dropped() {
        let mut pair = Pair::new();
        pair.client.store_upstream(0, b"away");
        assert!(!pair.has_reply());
    }
}
