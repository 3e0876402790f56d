//! A host that gave its memory to others meanwhile: the VM that needs some of it is out, and its neighbour notices nothing.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use fermi_spec::addr::GuestVramAddr;
use vgpu::{Action, MoveId, Place, Reply};

use super::*;
use crate::happenings::HappeningKind;
use crate::room::KEPT;

/// Stores here have the core ask for 2 MiB of the VM's memory in host RAM,
const RESERVE: u64 = 0xdea0;
/// store to a page of its instance memory, whose number is the byte that is stored,
const INSTANCE: u64 = 0xdea8;
/// or ask for 2 MiB that a move would write.
const MOVE: u64 = 0xdeb0;
const PART: (GuestVramAddr, u64) = (GuestVramAddr(2 << 20), 2 << 20);
const PLENTY: u64 = 64 << 30;

struct Takes {
    core: TestCore,
    populated: Arc<Mutex<Vec<bool>>>,
}

impl Core for Takes {
    fn apply(
        &mut self,
        now: vgpu::Tick,
        event: Event,
        memory: &mut dyn vgpu::HostMemory,
        actions: &mut vgpu::Actions,
    ) {
        if let Event::Populated { done, .. } = event {
            return self.populated.lock().unwrap().push(done);
        }
        let Event::Request {
            vm,
            id,
            request: Request::Write { offset, ref data, .. },
        } = event
        else {
            return self.core.apply(now, event, memory, actions);
        };
        let images = vec![PART];
        match offset {
            RESERVE => actions.push(Action::Reserve { vm, images }),
            MOVE => actions.push(Action::Populate {
                id: MoveId(9),
                vm,
                images,
                frames: Vec::new(),
            }),
            INSTANCE => {
                let at = GuestVramAddr(u64::from(data[0]) * PAGE);
                memory.write(Place::Image { vm, at }, &[7; 16]);
            }
            _ => return self.core.apply(now, event, memory, actions),
        }
        actions.push(Action::Reply {
            vm,
            request: id,
            reply: Reply::Done,
        });
    }
}

struct Host {
    broker: Broker,
    files: tempfile::TempDir,
    populated: Arc<Mutex<Vec<bool>>>,
}

impl Host {
    fn new() -> Self {
        let populated = Arc::<Mutex<Vec<bool>>>::default();
        let core = Takes {
            core: TestCore::default(),
            populated: populated.clone(),
        };
        let mut setup = setup(TestCore::default(), &FakeGpu::default(), None);
        setup.core = Box::new(core);
        let host = Host {
            broker: Broker::start(setup).unwrap(),
            files: tempfile::tempdir().unwrap(),
            populated,
        };
        std::fs::create_dir(host.files.path().join("proc")).unwrap();
        host.leaves(PLENTY);
        host
    }

    /// The host has so much left from now on, and the broker has not looked yet.
    fn leaves(&self, bytes: u64) {
        let text = format!("MemAvailable: {} kB\n", bytes >> 10);
        std::fs::write(self.files.path().join("proc/meminfo"), text).unwrap();
        self.broker.set_host(self.files.path());
    }
}

fn store(link: &LocalLink, offset: u64, byte: u8) -> Result<(), LinkError> {
    link.write(Bar::Bar0, offset, &[byte, 0, 0, 0])
}

/// Bytes that the host gave for the image of a VM of this process.
fn touched(name: &str) -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_it = std::fs::read_link(&path)
            .ok()?
            .display()
            .to_string()
            .contains(name);
        is_it.then(|| std::fs::metadata(&path).map_or(0, |of| of.blocks() * 512))
    });
    files.max().unwrap_or(0)
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "still not");
        std::thread::yield_now();
    }
}

/// What the VM is told once it was put out: the store that needs memory is answered, and the next one is not.
fn put_out(link: &LocalLink, offset: u64, page: u8) -> String {
    store(link, offset, page).unwrap();
    let error = store(link, offset, page).unwrap_err();
    error.to_string()
}

fn last_of(host: &Host, name: &str) -> (HappeningKind, String) {
    let performer = host.broker.shared.lock().expect("it runs");
    let all = performer.happenings.after(0, 1000).list;
    let of_vm = all.iter().rfind(|one| one.vm.as_deref() == Some(name)).unwrap();
    (of_vm.kind, of_vm.text.clone())
}

#[test]
fn vm_for_which_the_host_has_no_memory_left_is_out_and_its_neighbour_goes_on() {
    let host = Host::new();
    let poor = host.broker.attach(vm_config("starvedpoor")).unwrap();
    let neighbour = host.broker.attach(vm_config("starvedrich")).unwrap();
    store(&poor, RESERVE, 0).unwrap();
    wait_until(|| touched("image-starvedpoor") == PART.1);
    host.leaves(KEPT + (1 << 20));
    let told = put_out(&poor, RESERVE, 0);
    let words = "the host has no memory left for it: 2048K more of its VRAM were to be in host RAM, and the host leaves";
    assert!(told.contains(words), "{told}");
    assert_eq!(read(&neighbour, 0x1000).unwrap(), 0x0302_0100);
    let (kind, text) = last_of(&host, "starvedpoor");
    assert_eq!(kind, HappeningKind::Detached);
    assert!(
        text.starts_with("detached: the host has no memory left"),
        "{text}"
    );
    assert!(host.broker.wait_ended(Duration::ZERO).is_none());
    // When the host has some again the VM may come back.
    drop(poor);
    host.leaves(PLENTY);
    let again = host.broker.attach(vm_config("starvedpoor")).unwrap();
    store(&again, RESERVE, 0).unwrap();
    wait_until(|| touched("image-starvedpoor") == PART.1);
    assert_eq!(read(&again, 0x1000).unwrap(), 0x0302_0100);
}

#[test]
fn instance_memory_that_the_host_has_no_page_for_costs_its_vm_alone() {
    let host = Host::new();
    let poor = host.broker.attach(vm_config("instancepoor")).unwrap();
    let neighbour = host.broker.attach(vm_config("instancerich")).unwrap();
    store(&neighbour, INSTANCE, 0).unwrap();
    store(&poor, INSTANCE, 0).unwrap();
    assert_eq!(touched("image-instancepoor"), PAGE);
    host.leaves(KEPT + PAGE - 1);
    let told = put_out(&poor, INSTANCE, 1);
    assert!(
        told.contains("the host has no memory left for it: 4K more"),
        "{told}"
    );
    // A store to a page that is there takes none.
    store(&neighbour, INSTANCE, 0).unwrap();
    assert_eq!(read(&neighbour, 0x1000).unwrap(), 0x0302_0100);
}

#[test]
fn move_for_which_the_host_has_no_memory_is_given_up_and_costs_nobody_anything() {
    let host = Host::new();
    let link = host.broker.attach(vm_config("moving")).unwrap();
    store(&link, MOVE, 0).unwrap();
    let last = || host.populated.lock().unwrap().last().copied();
    wait_until(|| last() == Some(true));
    host.leaves(KEPT + (1 << 20));
    wait_until(|| {
        store(&link, MOVE, 0).unwrap();
        last() == Some(false)
    });
    assert_eq!(read(&link, 0x1000).unwrap(), 0x0302_0100);
}
