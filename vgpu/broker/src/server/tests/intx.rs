//! INTx of clients over their sockets.

use vgpu::REQUESTS_WAITING_MAX;

use super::*;

/// `VFIO_IRQ_SET_*`: what is sent, and what it is for.
const NONE: u32 = 1;
const BOOL: u32 = 1 << 1;
const EVENTFD: u32 = 1 << 2;
const MASK: u32 = 1 << 3;
const UNMASK: u32 = 1 << 4;
const TRIGGER: u32 = 1 << 5;
const INTX: u32 = 0;
const SET_IRQS: u16 = 8;
const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;

/// Body of a SET_IRQS, with data behind it.
fn body(flags: u32, (index, start, count): (u32, u32, u32), data: &[u8]) -> Vec<u8> {
    let words = [20 + data.len() as u32, flags, index, start, count];
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    words.chain(data.iter().copied()).collect()
}

/// The error with which the server answers; 0 for none. Descriptors go with the message.
fn set_irqs(stream: &mut UnixStream, body: &[u8], fds: &[&EventFd]) -> u32 {
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;
    let message = message(SET_IRQS, 0, body);
    let fds: Vec<_> = fds.iter().map(|event| event.as_raw_fd()).collect();
    let sent = match fds.is_empty() {
        true => stream.write(&message).unwrap(),
        false => stream.send_with_fds(&[&message[..]], &fds).unwrap(),
    };
    assert_eq!(sent, message.len());
    reply(stream).1
}

/// Changes the one vector of INTx.
fn change(stream: &mut UnixStream, flags: u32, data: &[u8], fds: &[&EventFd]) -> u32 {
    set_irqs(stream, &body(flags, (INTX, 0, 1), data), fds)
}

fn event() -> EventFd {
    EventFd::new(EFD_NONBLOCK).unwrap()
}

/// Stores to BAR0 and waits for the answer.
fn poke(stream: &mut UnixStream, offset: u64) {
    let write = [&offset.to_le_bytes()[..], &[0; 4], &4u32.to_le_bytes(), &[0; 4]];
    stream.write_all(&message(10, 0, &write.concat())).unwrap();
    assert_eq!(reply(stream).1, 0);
}

fn arrives(bench: &Bench, event: &EventFd) {
    bench.wait_until(|_| event.read().is_ok());
}

/// Whether a signal is there that was raised before this session's last answer. The thread that signals may take a moment.
fn comes_soon(event: &EventFd) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        if event.read().is_ok() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn level_is_signalled_once_until_the_client_unmasks_it() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = raw_client(&bench.path("a"));
    let intx = event();
    poke(&mut client, at::LINE_UP);
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    arrives(&bench, &intx);
    poke(&mut client, at::LINE_UP);
    assert!(!comes_soon(&intx), "it masks itself");
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), 0);
    arrives(&bench, &intx);
    assert_eq!(change(&mut client, BOOL | UNMASK, &[0], &[]), 0);
    assert!(!comes_soon(&intx), "a bool that is false does nothing");
    assert_eq!(change(&mut client, BOOL | UNMASK, &[1], &[]), 0);
    arrives(&bench, &intx);
    poke(&mut client, at::LINE_DOWN);
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), 0);
    assert_eq!(change(&mut client, NONE | MASK, &[], &[]), 0);
    poke(&mut client, at::LINE_UP);
    assert!(!comes_soon(&intx), "the client masked it");
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), 0);
    arrives(&bench, &intx);
    assert_eq!(change(&mut client, NONE | TRIGGER, &[], &[]), 0);
    arrives(&bench, &intx);
}

#[test]
fn trigger_that_is_cleared_and_set_anew_loses_no_level() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = raw_client(&bench.path("a"));
    let (first, second, third) = (event(), event(), event());
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&first]), 0);
    // All off, as QEMU does when its guest turns to MSI.
    assert_eq!(
        set_irqs(&mut client, &body(NONE | TRIGGER, (INTX, 0, 0), &[]), &[]),
        0
    );
    poke(&mut client, at::LINE_UP);
    assert!(!comes_soon(&first), "nothing is signalled that was given up");
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), EINVAL);
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&second]), 0);
    arrives(&bench, &second);
    // One that takes the place of another, while the first signal is not answered.
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&third]), 0);
    arrives(&bench, &third);
    assert!(!comes_soon(&first) && !comes_soon(&second));
    // None in its place.
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[]), 0);
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), EINVAL);
}

#[test]
fn eventfd_of_the_client_unmasks_as_a_message_does() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = raw_client(&bench.path("a"));
    let (intx, ended) = (event(), event());
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[&ended]), 0);
    poke(&mut client, at::LINE_UP);
    for _ in 0..100 {
        arrives(&bench, &intx);
        assert!(intx.read().is_err(), "it masks itself");
        ended.write(1).unwrap();
    }
    arrives(&bench, &intx);
    poke(&mut client, at::LINE_DOWN);
    ended.write(1).unwrap();
    assert!(!comes_soon(&intx), "the line is down");
    poke(&mut client, at::LINE_UP);
    arrives(&bench, &intx);
    // Another in its place, with a signal from before; then none, by itself and with the trigger.
    let (second, third) = (event(), event());
    second.write(1).unwrap();
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[&second]), 0);
    arrives(&bench, &intx);
    ended.write(1).unwrap();
    assert!(!comes_soon(&intx), "it was replaced");
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[]), 0);
    second.write(1).unwrap();
    assert!(!comes_soon(&intx), "it was disconnected");
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[&third]), 0);
    assert_eq!(
        set_irqs(&mut client, &body(NONE | TRIGGER, (INTX, 0, 0), &[]), &[]),
        0
    );
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    arrives(&bench, &intx);
    third.write(1).unwrap();
    assert!(!comes_soon(&intx), "it went with the trigger");
}

/// Stores in a message, and messages that are more of them than may wait.
const BATCH: usize = 200;
const MESSAGES: usize = REQUESTS_WAITING_MAX / BATCH + 1;

/// A message of stores that are held until they are released.
fn held_writes() -> Vec<u8> {
    let write = [&at::HELD.to_le_bytes()[..], &[0; 4], &4u32.to_le_bytes(), &[0; 8]].concat();
    message(
        15,
        0,
        &[&(BATCH as u64).to_le_bytes()[..], &write.repeat(BATCH)].concat(),
    )
}

#[test]
fn unmask_for_which_there_is_no_room_is_done_when_there_is() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let (mut client, mut other) = (raw_client(&bench.path("a")), bench.client("b"));
    let (intx, ended) = (event(), event());
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[&ended]), 0);
    poke(&mut client, at::LINE_UP);
    arrives(&bench, &intx);
    for round in 1..=3 {
        (0..MESSAGES).for_each(|_| client.write_all(&held_writes()).unwrap());
        let pieces = 1 + (round * MESSAGES * BATCH) as u64;
        let have_come = |vm: &crate::stats::VmStats| vm.accesses.bar0_writes == pieces;
        bench.wait_until(|bench| bench.broker.snapshot().vms.iter().any(have_come));
        ended.write(1).unwrap();
        assert!(!comes_soon(&intx), "there is no room for the unmask");
        other.region_write(0, at::RELEASE, &[0; 4]).unwrap();
        (0..MESSAGES).for_each(|_| drop(reply(&mut client)));
        arrives(&bench, &intx);
    }
}

#[test]
fn next_client_does_not_inherit_a_trigger() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = raw_client(&bench.path("a"));
    let intx = event();
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    drop(client);
    bench.wait_until(|bench| bench.attached() == 0);
    let mut client = raw_client(&bench.path("a"));
    poke(&mut client, at::LINE_UP);
    assert_eq!(change(&mut client, NONE | UNMASK, &[], &[]), EINVAL);
    assert!(!comes_soon(&intx));
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    arrives(&bench, &intx);
}

#[test]
fn interrupts_of_both_kinds_have_their_own_eventfds() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    let (msi, intx) = (event(), event());
    client.set_irqs(MSI, CONNECT, 0, 1, &[msi.as_raw_fd()]).unwrap();
    client.set_irqs(INTX, CONNECT, 0, 1, &[intx.as_raw_fd()]).unwrap();
    client.region_write(0, at::LINE_UP, &[0; 4]).unwrap();
    arrives(&bench, &intx);
    enable_msi(&mut client);
    read(&mut client, 0, at::INTERRUPT);
    arrives(&bench, &msi);
    assert!(!comes_soon(&intx) && !comes_soon(&msi));
}

#[test]
fn nonsense_about_intx_is_refused_and_changes_nothing() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = raw_client(&bench.path("a"));
    // Nothing is to be done to an INTx without a trigger.
    for flags in [MASK, UNMASK, TRIGGER] {
        assert_eq!(change(&mut client, NONE | flags, &[], &[]), EINVAL, "{flags:#x}");
        assert_eq!(change(&mut client, BOOL | flags, &[1], &[]), EINVAL, "{flags:#x}");
    }
    assert_eq!(change(&mut client, EVENTFD | UNMASK, &[], &[&event()]), EINVAL);
    let intx = event();
    assert_eq!(change(&mut client, EVENTFD | TRIGGER, &[], &[&intx]), 0);
    // An eventfd that masks.
    assert_eq!(change(&mut client, EVENTFD | MASK, &[], &[&event()]), EOPNOTSUPP);
    assert_eq!(change(&mut client, EVENTFD | MASK, &[], &[]), EOPNOTSUPP);
    // Vectors and indices that are not there, bools that are missing, several actions, no kind of data.
    for (flags, vectors, data) in [
        (NONE | UNMASK, (INTX, 0, 2), &[][..]),
        (NONE | UNMASK, (INTX, 1, 1), &[]),
        (NONE | UNMASK, (INTX, u32::MAX, 1), &[]),
        (NONE | UNMASK, (INTX, 0, 0), &[]),
        (NONE | UNMASK, (2, 0, 1), &[]),
        (NONE | UNMASK, (u32::MAX, 0, 1), &[]),
        (BOOL | UNMASK, (INTX, 0, 1), &[]),
        (NONE | MASK | UNMASK, (INTX, 0, 1), &[]),
        (NONE | BOOL | UNMASK, (INTX, 0, 1), &[1]),
        (UNMASK, (INTX, 0, 1), &[]),
        (NONE | UNMASK, (MSI, 0, 1), &[]),
        (NONE | MASK, (MSI, 0, 1), &[]),
    ] {
        let error = set_irqs(&mut client, &body(flags, vectors, data), &[]);
        assert_eq!(error, EINVAL, "{flags:#x} {vectors:?} {data:?}");
    }
    poke(&mut client, at::LINE_UP);
    arrives(&bench, &intx);
}
