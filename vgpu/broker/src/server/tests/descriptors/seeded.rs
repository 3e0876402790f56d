//! Descriptors of every kind in messages of every kind, from two clients at once, beside a neighbour that verifies.
//!
//! `BROKER_TEST_SEED` and `BROKER_TEST_STEPS` choose another run, or a longer one.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};

use super::*;

/// Numbers that depend on a seed alone (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

fn memory(flags: MemfdFlags, bytes: u64) -> Option<File> {
    let file = File::from(memfd_create("seeded", flags | MemfdFlags::CLOEXEC).ok()?);
    file.set_len(bytes).ok()?;
    Some(file)
}

/// A file of any kind. Files of memory are kept in `files`, to be spoilt later.
fn any_descriptor(draws: &mut Draws, files: &mut Vec<File>) -> OwnedFd {
    let opened = |path, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = match draws.below(16) {
        0..=3 => memory(MemfdFlags::empty(), (1 + draws.below(16)) * PAGE),
        4 => memory(MemfdFlags::ALLOW_SEALING, (1 + draws.below(16)) * PAGE),
        5 | 6 => memory(huge, (1 + draws.below(2)) << 21),
        7 => return rustix::pipe::pipe().unwrap().1,
        8 => return UnixStream::pair().unwrap().0.into(),
        9 => return opened("/dev/zero", OFlags::RDWR),
        10 => return opened("/proc/self/status", OFlags::RDONLY),
        11 => return opened("/", OFlags::DIRECTORY),
        12 => return opened("/dev/null", OFlags::PATH),
        13 => return epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
        14 => {
            let full = eventfd(0, EventfdFlags::empty()).unwrap();
            rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            return full;
        }
        _ => return eventfd(0, EventfdFlags::empty()).unwrap(),
    };
    // Where a kind does not exist, something small stands for it.
    let file = file.or_else(|| memory(MemfdFlags::empty(), PAGE)).unwrap();
    files.push(file.try_clone().unwrap());
    if files.len() > 32 {
        files.remove(0);
    }
    file.into()
}

fn any_message(draws: &mut Draws) -> Vec<u8> {
    let pages = 1 + draws.below(20);
    let gpa = RAM_AT + draws.below(8) * PAGE;
    match draws.below(8) {
        0..=2 => map_message(gpa, pages * PAGE),
        3 | 4 => connect_message(),
        5 => read_message(
            0,
            if draws.below(2) == 0 {
                at::RAM
            } else {
                at::INTERRUPT
            },
            4,
        ),
        6 => {
            let words = [24, gpa, pages * PAGE];
            message(3, 0, &words.map(u64::to_le_bytes).concat())
        }
        _ => message(13, 0, &[]),
    }
}

/// Reads an answer. `false` if the broker hung up.
fn is_answered(stream: &mut UnixStream) -> bool {
    let mut header = [0; 16];
    if stream.read_exact(&mut header).is_err() {
        return false;
    }
    let bytes = u32::from_le_bytes(header[4..8].try_into().unwrap());
    stream.read_exact(&mut vec![0; bytes as usize - 16]).is_ok()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn descriptors_of_every_kind_cost_only_their_sender() {
    let mut draws = Draws(number("BROKER_TEST_SEED").unwrap_or(1));
    let names = ["first", "second", "neighbour"];
    let bench = Bench::new(TestCore::default(), &names);
    let mut neighbour = Neighbour::new(&bench, "neighbour");
    let mut attackers = [None, None];
    let (mut files, mut answered, mut hung_up) = (Vec::new(), 0, 0);
    for step in 0..number("BROKER_TEST_STEPS").unwrap_or(600) {
        let which = draws.below(2) as usize;
        let attacker = attackers[which].get_or_insert_with(|| raw_client(&bench.path(names[which])));
        let bytes = any_message(&mut draws);
        let count = [0, 1, 1, 1, 1, 1, 2, 12][draws.below(8) as usize];
        let sent: Vec<_> = (0..count)
            .map(|_| any_descriptor(&mut draws, &mut files))
            .collect();
        let raw: Vec<_> = sent.iter().map(AsRawFd::as_raw_fd).collect();
        // It may have been expelled since its last answer, for memory that went.
        let is_sent = match count {
            0 => attacker.write_all(&bytes).is_ok(),
            _ => attacker.send_with_fds(&[&bytes[..]], &raw).is_ok(),
        };
        drop(sent);
        if is_sent && is_answered(attacker) {
            answered += 1;
        } else {
            hung_up += 1;
            attackers[which] = None;
        }
        // Memory goes, and clients.
        if draws.below(4) == 0 && !files.is_empty() {
            let file = &files[draws.below(files.len() as u64) as usize];
            // Sealed ones refuse.
            let _ = file.set_len(0);
        }
        if draws.below(16) == 0 {
            attackers[draws.below(2) as usize] = None;
        }
        if step % 8 == 0 {
            neighbour.look();
        }
    }
    assert!(
        answered > 100 && hung_up > 3,
        "{answered} answers, {hung_up} hang-ups"
    );
    drop(attackers);
    neighbour.look();
    bench.wait_until(|bench| bench.attached() == 1);
    // Nothing of it is left: no mapping, no descriptor but the test's own.
    drop(files);
    bench.wait_until(|_| traces_of("memfd:seeded").is_empty());
}
