use std::fs::File;

use vm_memory::{Bytes, VolatileMemory};
use vmm_sys_util::eventfd::EFD_NONBLOCK;

use super::*;
use crate::mapping::{PAGE, map_shared};

const BYTES: u64 = 64 * PAGE;

fn client_file() -> Arc<File> {
    let fd = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.set_len(BYTES).unwrap();
    Arc::new(file)
}

/// Waits for the reaper's thread.
pub(super) fn wait_until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 10, "still not");
        std::thread::yield_now();
    }
}

fn owner(notify: &Arc<EventFd>) -> MapOwner {
    MapOwner::new(notify.clone(), Reaper::start().unwrap())
}

fn guarded(file: &Arc<File>) -> (Arc<MmapRegion>, Guard, Arc<EventFd>) {
    let region = map_shared(file.clone(), 0, BYTES, true).unwrap();
    let notify = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let guard = Guard::new(region.clone(), &owner(&notify)).unwrap();
    (region, guard, notify)
}

#[test]
fn access_to_truncated_file_gives_zeros_and_a_tear() {
    let (hostile, friendly) = (client_file(), client_file());
    let (torn_region, torn_guard, torn_notify) = guarded(&hostile);
    let (region, guard, notify) = guarded(&friendly);
    region.as_volatile_slice().write_slice(&[5; 16], 0).unwrap();
    torn_region.as_volatile_slice().write_slice(&[6; 16], 0).unwrap();

    hostile.set_len(0).unwrap();
    let mut seen = [1; 16];
    torn_region
        .as_volatile_slice()
        .read_slice(&mut seen, 3 * PAGE as usize)
        .unwrap();

    assert_eq!(seen, [0; 16]);
    assert!(torn_guard.is_torn() && !guard.is_torn());
    assert_eq!(torn_notify.read().unwrap(), 1);
    assert!(notify.read().is_err(), "the other mapping reported nothing");
    region.as_volatile_slice().read_slice(&mut seen, 0).unwrap();
    assert_eq!(seen, [5; 16]);
}

#[test]
fn truncation_during_copies_of_another_thread_is_survived() {
    let file = client_file();
    let (region, guard, notify) = guarded(&file);
    let copier = {
        let region = region.clone();
        std::thread::spawn(move || {
            let mut bytes = vec![0; BYTES as usize];
            while notify.read().is_err() {
                region.as_volatile_slice().write_slice(&bytes, 0).unwrap();
                region.as_volatile_slice().read_slice(&mut bytes, 0).unwrap();
            }
        })
    };
    file.set_len(PAGE).unwrap();
    copier.join().unwrap();
    assert!(guard.is_torn());
}

#[test]
fn guard_outlived_by_its_mapping_still_protects() {
    let file = client_file();
    let (region, guard, notify) = guarded(&file);
    drop(guard);
    file.set_len(0).unwrap();
    region.as_volatile_slice().write_slice(&[1], 0).unwrap();
    assert_eq!(notify.read().unwrap(), 1);
}

#[test]
fn mapping_held_by_nobody_is_unmapped() {
    let file = client_file();
    let (region, guard, _notify) = guarded(&file);
    drop(region);
    drop(guard);
    wait_until(|| Arc::strong_count(&file) == 1);
}

/// Set in the process that has to die.
const VICTIM: &str = "BROKER_TEST_SIGBUS_VICTIM";

#[test]
fn access_outside_guarded_mappings_still_kills() {
    if std::env::var_os(VICTIM).is_some() {
        let (_region, _guard, _notify) = guarded(&client_file());
        let file = client_file();
        let unguarded = map_shared(file.clone(), 0, BYTES, true).unwrap();
        file.set_len(0).unwrap();
        let _ = unguarded.as_volatile_slice().write_slice(&[1], 0);
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sigbus::tests::access_outside_guarded_mappings_still_kills",
        ])
        .env(VICTIM, "1")
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGBUS),
        "{status}"
    );
}

#[test]
fn bytes_count_until_they_are_unmapped() {
    let notify = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let owner = owner(&notify);
    let most = MAPPED_BYTES_MAX / 2;
    let file = client_file();
    // Addresses alone: nothing of it is touched.
    file.set_len(most + PAGE).unwrap();
    let map = |bytes| {
        let region = map_shared(file.clone(), 0, bytes, true).unwrap();
        (region.clone(), Guard::new(region, &owner))
    };
    let (first, second) = (map(most), map(most));
    assert!(first.1.is_ok() && second.1.is_ok());
    assert!(matches!(map(PAGE).1, Err(MapError::TooManyBytes)));
    // Somebody still uses the mapping whose guard is gone.
    let (region, guard) = first;
    drop(guard);
    assert!(matches!(map(PAGE).1, Err(MapError::TooManyBytes)));
    drop(region);
    wait_until(|| owner.mapped_bytes() == most);
    map(PAGE).1.unwrap();
}

#[test]
fn map_counts_until_it_is_unmapped() {
    let notify = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let owner = owner(&notify);
    let file = client_file();
    let map = || {
        let region = map_shared(file.clone(), 0, PAGE, true).unwrap();
        let guard = Guard::new(region.clone(), &owner);
        (region, guard)
    };
    let mut maps: Vec<_> = (0..MAPPINGS_MAX).map(|_| map()).collect();
    assert!(matches!(map().1, Err(MapError::TooManyMaps)));
    // Somebody still uses the mapping whose guard is gone.
    let (region, guard) = maps.pop().unwrap();
    drop(guard);
    assert!(matches!(map().1, Err(MapError::TooManyMaps)));
    drop(region);
    wait_until(|| owner.mapped.load(SeqCst) < MAPPINGS_MAX);
    map().1.unwrap();
}
