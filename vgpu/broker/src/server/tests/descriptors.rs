//! Descriptors as weapons: files whose size, status, close or write waits for as long as the client wants.
//!
//! Each test has a client that attacks, and a neighbour that goes on reading and writing its own RAM meanwhile. A round of
//! the neighbour's fails after 10 s, which is short beside what the attackers ask for.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::set_socket_linger;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::*;

mod fuse;
mod seeded;

/// Sends a message with descriptors. Ours are closed before its last byte is sent, so the broker's are the last.
fn send<D: AsRawFd>(mut stream: &UnixStream, bytes: &[u8], descriptors: Vec<D>) {
    let (last, first) = bytes.split_last().unwrap();
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    assert_eq!(stream.send_with_fds(&[first], &raw).unwrap(), first.len());
    drop(descriptors);
    stream.write_all(&[*last]).unwrap();
}

/// Closes our own descriptors: in a thread, should the broker have been faster and ours be the last.
fn give_up<D: Send + 'static>(descriptors: D) {
    std::thread::spawn(move || drop(descriptors));
}

fn map_message(gpa: u64, bytes: u64) -> Vec<u8> {
    let words = [0x3_0000_0020, 0, gpa, bytes];
    message(2, 0, &words.map(u64::to_le_bytes).concat())
}

fn connect_message() -> Vec<u8> {
    let words = [20, CONNECT, MSI, 0, 1];
    message(8, 0, &words.map(u32::to_le_bytes).concat())
}

/// A VM that does nothing wrong.
struct Neighbour {
    client: vfio_user::Client,
    file: std::fs::File,
    rounds: u32,
}

impl Neighbour {
    fn new(bench: &Bench, name: &str) -> Self {
        let mut client = bench.client(name);
        let (file, memory) = client_memory(name, PAGE);
        client.dma_map(0, RAM_AT, PAGE, memory.as_raw_fd()).unwrap();
        Self {
            client,
            file,
            rounds: 0,
        }
    }

    /// Its memory is what it last wrote there, and the broker answers.
    fn look(&mut self) {
        let start = Instant::now();
        self.rounds += 1;
        self.file.write_all_at(&self.rounds.to_le_bytes(), 0).unwrap();
        assert_eq!(read(&mut self.client, 0, at::RAM), self.rounds);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

/// A connected socket whose close waits for half a minute, unless another descriptor of it is left.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(30))).unwrap();
    (stream.into(), peer)
}

#[test]
fn sockets_that_linger_hold_up_no_neighbour() {
    let bench = Bench::new(TestCore::default(), &["attacker", "neighbour"]);
    let mut neighbour = Neighbour::new(&bench, "neighbour");
    let mut attacker = raw_client(&bench.path("attacker"));
    // One refused as memory, one as an eventfd, two with a message that has no use for them, one that nobody receives.
    let (sockets, peers): (Vec<_>, Vec<_>) = (0..5).map(|_| lingering()).unzip();
    let mut sockets = sockets.into_iter();
    let mut some = |count| sockets.by_ref().take(count).collect::<Vec<_>>();
    send(&attacker, &map_message(RAM_AT, PAGE), some(1));
    assert_ne!(reply(&mut attacker).1, 0);
    neighbour.look();
    send(&attacker, &connect_message(), some(1));
    assert_ne!(reply(&mut attacker).1, 0);
    neighbour.look();
    send(&attacker, &read_message(0, 0, 4), some(2));
    neighbour.look();
    send(&attacker, &map_message(RAM_AT, PAGE), some(1));
    attacker.shutdown(std::net::Shutdown::Both).unwrap();
    drop(attacker);
    bench.wait_until(|bench| bench.attached() == 1);
    (0..100).for_each(|_| neighbour.look());
    // Nobody else takes that seat while its sockets linger, and the neighbour's is not concerned.
    let mut next = UnixStream::connect(bench.path("attacker")).unwrap();
    next.set_nonblocking(true).unwrap();
    neighbour.look();
    assert_eq!(
        next.read(&mut [0]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    // With their peers gone the closes end, and the seat is free.
    drop(peers);
    next.set_nonblocking(false).unwrap();
    next.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    next.write_all(&message(1, 0, b"\0\0\x01\0{}\0")).unwrap();
    assert_eq!(reply(&mut next).1, 0);
    neighbour.look();
}

#[test]
fn client_without_a_seat_leaves_lingering_sockets_to_nobody_else() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let (mut owner, mut neighbour) = (Neighbour::new(&bench, "a"), Neighbour::new(&bench, "b"));
    let mut peers = Vec::new();
    for _ in 0..3 {
        let intruder = UnixStream::connect(bench.path("a")).unwrap();
        let (socket, peer) = lingering();
        // It may have been hung up on already.
        let _ = intruder.send_with_fd(&[0u8][..], socket.as_raw_fd());
        give_up(socket);
        peers.push(peer);
        neighbour.look();
    }
    (0..100).for_each(|_| neighbour.look());
    (0..100).for_each(|_| owner.look());
    drop(peers);
}

#[test]
fn more_descriptors_than_a_message_may_have_are_closed_by_nobody_who_matters() {
    let bench = Bench::new(TestCore::default(), &["attacker", "neighbour"]);
    let mut neighbour = Neighbour::new(&bench, "neighbour");
    let attacker = raw_client(&bench.path("attacker"));
    let (socket, peer) = lingering();
    let raw = vec![socket.as_raw_fd(); 250];
    attacker
        .send_with_fds(&[&map_message(RAM_AT, PAGE)[..]], &raw)
        .unwrap();
    give_up(socket);
    bench.wait_until(|bench| bench.attached() == 1);
    (0..100).for_each(|_| neighbour.look());
    drop(peer);
}

#[test]
fn file_of_a_server_that_never_answers_is_asked_nothing_and_closed_by_nobody_who_matters() {
    let bench = Bench::new(TestCore::default(), &["attacker", "neighbour"]);
    let Some(hostile) = fuse::Hostile::mount() else {
        return;
    };
    let mut neighbour = Neighbour::new(&bench, "neighbour");
    let mut attacker = raw_client(&bench.path("attacker"));
    for bytes in [map_message(RAM_AT, PAGE), connect_message()] {
        // Its own close is one that waits.
        let file = hostile.open();
        attacker.send_with_fd(&bytes[..], file.as_raw_fd()).unwrap();
        give_up(file);
        assert_ne!(reply(&mut attacker).1, 0);
        neighbour.look();
    }
    // Two closes of this test's own, which wait; the broker's are the other two, one after the other.
    hostile.wait_for(fuse::FLUSH, 1);
    (0..100).for_each(|_| neighbour.look());
    drop(attacker);
    bench.wait_until(|bench| bench.attached() == 1);
    (0..100).for_each(|_| neighbour.look());
    assert_eq!(hostile.count(fuse::GETATTR) + hostile.count(fuse::STATFS), 0);
    drop(hostile);
    // Its closes have ended with it, so the seat is free again.
    drop(raw_client(&bench.path("attacker")));
    neighbour.look();
}

#[test]
fn eventfd_that_would_block_delays_not_even_the_next_client_of_its_socket() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    for _ in 0..2 {
        let mut hostile = bench.client("a");
        enable_msi(&mut hostile);
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        hostile
            .set_irqs(1, CONNECT, 0, 1, &[event.as_fd().as_raw_fd()])
            .unwrap();
        // One free place, and it blocks: a write that was told that there is room would still wait.
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..3 {
            assert_eq!(read(&mut hostile, 0, at::INTERRUPT), 0);
        }
        drop(hostile);
        bench.wait_until(|bench| bench.attached() == 0);

        let mut friendly = bench.client("a");
        enable_msi(&mut friendly);
        let event = EventFd::new(EFD_NONBLOCK).unwrap();
        friendly.set_irqs(1, CONNECT, 0, 1, &[event.as_raw_fd()]).unwrap();
        assert_eq!(read(&mut friendly, 0, at::INTERRUPT), 0);
        bench.wait_until(|_| event.read().is_ok());
        drop(friendly);
        bench.wait_until(|bench| bench.attached() == 0);
    }
}
