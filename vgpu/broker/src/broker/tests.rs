use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Instant;

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use vgpu::{GpuConfig, Refusal, Request};

use super::*;
use crate::error::LinkError;
use crate::flights::FlightFile;
use crate::mapping::MapError;
use crate::replay::Replay;
use crate::testing::{FakeGpu, RAM_AT, TestCore, at, client_memory, setup, traces_of, vm_config};

mod given_up;
mod starved;

const PAGE: u64 = 4096;

fn broker() -> (FakeGpu, Broker) {
    let gpu = FakeGpu::default();
    let broker = Broker::start(setup(TestCore::default(), &gpu, None)).unwrap();
    (gpu, broker)
}

fn read(link: &LocalLink, offset: u64) -> Result<u32, LinkError> {
    let mut data = [0; 4];
    link.read(Bar::Bar0, offset, &mut data)?;
    Ok(u32::from_le_bytes(data))
}

#[test]
fn actions_are_performed_in_the_order_of_issue() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    gpu.card().registers.insert(0x104, 0xcafe);
    assert_eq!(read(&link, at::ROUND_TRIP).unwrap(), 0xcafe);
    assert_eq!(gpu.card().log, ["w 100", "r 104", "w 108", "w 10c"]);
}

#[test]
fn long_access_is_done_in_pieces() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let mut data = vec![0; 10_000];
    link.read(Bar::Bar1, 0x1000, &mut data).unwrap();
    // Each piece starts with the low byte of its offset, which is 0 for all of them.
    assert_eq!(
        (data[0], data[1], data[4097], data[9_999]),
        (0, 1, 1, (9_999 - 8192) as u8)
    );
    assert_eq!(broker.snapshot().vms[0].accesses.bar1_reads, 3);
}

#[test]
fn poll_that_holds_is_over_at_once() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    gpu.card().registers.insert(0x200, 0xa7);
    assert_eq!(read(&link, at::POLL).unwrap(), 1);
    assert_eq!(gpu.card().log, ["r 200"]);
}

#[test]
fn poll_that_holds_later_is_met() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&link, at::POLL).unwrap());
        // It is met only after it was looked at in vain.
        while gpu.card().log.is_empty() {
            std::thread::yield_now();
        }
        gpu.card().registers.insert(0x200, 7);
        assert_eq!(reader.join().unwrap(), 1);
    });
}

#[test]
fn poll_that_never_holds_ends_at_its_time() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let start = Instant::now();
    assert_eq!(read(&link, at::POLL).unwrap(), 0);
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn core_is_woken_when_it_asked_to() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let start = Instant::now();
    assert_eq!(read(&link, at::WAKE).unwrap(), 0x0101_0101);
    assert!(start.elapsed() >= Duration::from_millis(2));
}

#[test]
fn reply_reaches_the_thread_that_waits_for_it() {
    let (_gpu, broker) = broker();
    let (a, b) = (
        broker.attach(vm_config("a")).unwrap(),
        broker.attach(vm_config("b")).unwrap(),
    );
    std::thread::scope(|scope| {
        let held = scope.spawn(|| read(&a, at::HELD).unwrap());
        // Meanwhile the same VM's other accesses and another VM's are answered.
        while !held.is_finished() {
            assert_eq!(read(&a, 0x1000).unwrap(), 0x0302_0100);
            b.write(Bar::Bar0, at::RELEASE, &[0; 4]).unwrap();
        }
        assert_eq!(held.join().unwrap(), 0x5a5a_5a5a);
    });
}

#[test]
fn refused_vm_gets_the_reason() {
    let gpu = FakeGpu::default();
    let core = TestCore::denying("big");
    let broker = Broker::start(setup(core, &gpu, None)).unwrap();
    let error = broker.attach(vm_config("big")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "refused: min of all VMs (2M) exceeds usable VRAM (1M)"
    );
    assert!(broker.snapshot().vms.is_empty());
    broker.attach(vm_config("small")).unwrap();
}

#[test]
fn contradicting_settings_are_refused_by_name() {
    let (_gpu, broker) = broker();
    let config = VmConfig {
        chunk_bytes: 3,
        ..vm_config("a")
    };
    assert!(broker.attach(config).unwrap_err().to_string().contains("chunk"));
}

#[test]
fn card_that_does_not_start_is_told() {
    let gpu = FakeGpu::default();
    let core = TestCore::failing_to_start();
    let error = Broker::start(setup(core, &gpu, None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the card cannot be used: the card does not answer: BOOT_0 reads all ones"
    );
}

#[test]
fn card_that_goes_while_nobody_asks_for_anything_is_missed() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    gpu.card().is_lost = true;
    let ended = broker.wait_ended(Duration::from_secs(20)).unwrap();
    assert_eq!(ended.reason, "the card is gone: pulled out");
    assert!(matches!(read(&link, 0x1000), Err(LinkError::Ended(_))));
}

#[test]
fn lost_card_ends_the_broker_for_all() {
    let (gpu, broker) = broker();
    let (a, b) = (
        broker.attach(vm_config("a")).unwrap(),
        broker.attach(vm_config("b")).unwrap(),
    );
    gpu.card().is_lost = true;
    let error = read(&a, at::ROUND_TRIP).unwrap_err();
    assert!(matches!(error, LinkError::Ended(_)), "{error}");
    let ended = broker.wait_ended(Duration::from_secs(5)).unwrap();
    assert_eq!(ended.reason, "the card is gone: pulled out");
    assert!(matches!(read(&b, 0), Err(LinkError::Ended(_))));
    assert!(matches!(
        broker.attach(vm_config("c")),
        Err(AttachError::Ended(_))
    ));
    assert!(broker.snapshot().vms.iter().all(|vm| !vm.is_attached));
}

#[test]
fn card_that_the_core_gives_up_ends_the_broker_and_is_let_go() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let error = link.write(Bar::Bar0, at::CARD_LOST, &[0; 4]).unwrap_err();
    assert!(matches!(error, LinkError::Ended(_)), "{error}");
    let ended = broker.wait_ended(Duration::from_secs(20)).unwrap();
    assert_eq!(ended.reason, "the card is lost: a TLB flush did not end");
    let stores = gpu.card().log.len();
    assert!(read(&link, at::ROUND_TRIP).is_err());
    assert_eq!(gpu.card().log.len(), stores, "nothing touches the card any more");
}

#[test]
fn dropped_broker_answers_its_links() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    drop(broker);
    assert!(matches!(read(&link, 0), Err(LinkError::Ended(_))));
}

#[test]
fn ram_is_read_where_it_was_mapped_and_not_after() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let (file, memory) = client_memory("plain", 4 * PAGE);
    file.write_at(&[1, 2, 3, 4], 2 * PAGE).unwrap();
    link.map_ram(Gpa(RAM_AT), PAGE, memory, 2 * PAGE, true).unwrap();
    assert_eq!(read(&link, at::RAM).unwrap(), 0x0403_0201);
    assert_eq!(gpu.card().maps.len(), 1);
    link.unmap_ram(Gpa(RAM_AT), PAGE).unwrap();
    assert_eq!(read(&link, at::RAM).unwrap(), u32::MAX);
    assert!(gpu.card().maps.is_empty());
}

#[test]
fn overlapping_or_unknown_ranges_are_refused() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let map = |gpa: u64| link.map_ram(Gpa(gpa), 2 * PAGE, client_memory("m", 2 * PAGE).1, 0, true);
    map(0).unwrap();
    assert!(matches!(map(PAGE), Err(LinkError::Refused(Refusal::BadRange))));
    let unknown = link.unmap_ram(Gpa(8 * PAGE), PAGE);
    assert!(matches!(unknown, Err(LinkError::Refused(Refusal::NoSuchMap))));
    let beyond = link.map_ram(Gpa(0x10_0000), 4 * PAGE, client_memory("m", PAGE).1, 0, true);
    assert!(matches!(beyond, Err(LinkError::Map(_))));
}

#[test]
fn detached_vm_leaves_no_descriptor_and_no_mapping() {
    let (gpu, broker) = broker();
    for _ in 0..3 {
        let link = broker.attach(vm_config("traceless")).unwrap();
        let (_, memory) = client_memory("tracelessram", 4 * PAGE);
        link.map_ram(Gpa(RAM_AT), 4 * PAGE, memory, 0, true).unwrap();
        assert!(!traces_of("traceless").is_empty());
        link.detach().unwrap();
        // A thread unmaps and closes.
        let start = std::time::Instant::now();
        while !traces_of("traceless").is_empty() {
            assert!(start.elapsed().as_secs() < 10, "{:?}", traces_of("traceless"));
            std::thread::yield_now();
        }
    }
    assert!(gpu.card().maps.is_empty());
    assert_eq!(broker.snapshot().vms.len(), 3);
}

#[test]
fn truncated_ram_costs_only_its_own_vm() {
    let (_gpu, broker) = broker();
    let (hostile, friendly) = (
        broker.attach(vm_config("hostile")).unwrap(),
        broker.attach(vm_config("friendly")).unwrap(),
    );
    let (hostile_file, memory) = client_memory("hostile", 64 * PAGE);
    hostile.map_ram(Gpa(RAM_AT), 64 * PAGE, memory, 0, true).unwrap();
    let (friendly_file, memory) = client_memory("friendly", PAGE);
    friendly_file.write_at(&[9; 4], 0).unwrap();
    friendly.map_ram(Gpa(RAM_AT), PAGE, memory, 0, true).unwrap();

    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            loop {
                if let Err(error) = read(&hostile, at::RAM) {
                    return error;
                }
            }
        });
        hostile_file.set_len(0).unwrap();
        let error = reader.join().unwrap();
        assert!(error.to_string().contains("truncated"), "{error}");
    });
    assert_eq!(read(&friendly, at::RAM).unwrap(), 0x0909_0909);
    assert!(hostile.expulsion().is_some() && friendly.expulsion().is_none());
}

#[test]
fn refused_dma_map_costs_only_its_own_vm() {
    let (gpu, broker) = broker();
    let (a, b) = (
        broker.attach(vm_config("a")).unwrap(),
        broker.attach(vm_config("b")).unwrap(),
    );
    gpu.card().refuses_maps = true;
    // The map itself may have been answered before the failure showed.
    let _ = a.map_ram(Gpa(0), PAGE, client_memory("m", PAGE).1, 0, true);
    assert!(matches!(read(&a, 0), Err(LinkError::Expelled { .. })));
    assert_eq!(read(&b, 0).unwrap(), 0x0302_0100);
    assert_eq!(broker.snapshot().host_errors, 1);
}

#[test]
fn old_link_cannot_speak_for_a_new_vm_of_its_number() {
    let (gpu, broker) = broker();
    let old = broker.attach(vm_config("old")).unwrap();
    gpu.card().refuses_maps = true;
    let _ = old.map_ram(Gpa(0), PAGE, client_memory("m", PAGE).1, 0, true);
    let new = broker.attach(vm_config("new")).unwrap();
    assert_eq!(old.attachment_vm(), new.attachment_vm());
    assert!(matches!(read(&old, 0), Err(LinkError::Expelled { .. })));
    drop(old);
    assert_eq!(read(&new, 0).unwrap(), 0x0302_0100);
}

/// Switches bus mastering and MSI on, as a guest's driver does.
fn enable_msi(link: &LocalLink) {
    link.write_config(4, &[6]).unwrap();
    link.write_config(0x6a, &[1]).unwrap();
}

#[test]
fn interrupt_raised_before_anybody_listens_is_kept() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    read(&link, at::INTERRUPT).unwrap();
    let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
    link.set_interrupt(interrupt.try_clone().unwrap());
    assert!(interrupt.read().is_err(), "MSI is off");
    enable_msi(&link);
    assert_eq!(interrupt.read().unwrap(), 1);
    read(&link, at::INTERRUPT).unwrap();
    read(&link, at::INTERRUPT).unwrap();
    assert_eq!(interrupt.read().unwrap(), 2);
}

#[test]
fn interrupt_of_the_card_reaches_the_vms() {
    let gpu = FakeGpu::default();
    let card_interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
    let broker = Broker::start(setup(
        TestCore::default(),
        &gpu,
        Some(card_interrupt.try_clone().unwrap()),
    ))
    .unwrap();
    let link = broker.attach(vm_config("a")).unwrap();
    let interrupt = EventFd::new(0).unwrap();
    link.set_interrupt(interrupt.try_clone().unwrap());
    enable_msi(&link);
    card_interrupt.write(1).unwrap();
    assert_eq!(interrupt.read().unwrap(), 1);
}

#[test]
fn interrupt_without_an_eventfd_is_asked_for() {
    let (gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let interrupt = EventFd::new(0).unwrap();
    link.set_interrupt(interrupt.try_clone().unwrap());
    enable_msi(&link);
    gpu.card().has_interrupt = true;
    assert_eq!(interrupt.read().unwrap(), 1);
}

#[test]
fn as_many_vms_as_have_numbers_are_let_in() {
    let (_gpu, broker) = broker();
    let links: Vec<_> = (0..crate::VMS_MAX)
        .map(|_| broker.attach(vm_config("a")).unwrap())
        .collect();
    assert!(matches!(
        broker.attach(vm_config("b")),
        Err(AttachError::TooManyVms)
    ));
    drop(links);
    broker.attach(vm_config("b")).unwrap();
}

/// The host has memory for two VMs and a half. What one has touched is no more to come, and what it leaves is there for others.
#[test]
fn vm_whose_vram_the_host_could_not_hold_is_refused_with_the_figures() {
    let (_gpu, broker) = broker();
    let host = tempfile::tempdir().unwrap();
    let each = vm_config("a").guest_vram;
    let available = |bytes: u64| {
        std::fs::create_dir_all(host.path().join("proc")).unwrap();
        let text = format!("MemTotal: 1 kB\nMemAvailable: {} kB\n", bytes >> 10);
        std::fs::write(host.path().join("proc/meminfo"), text).unwrap();
    };
    available(each * 5 / 2 + crate::room::KEPT);
    broker.set_host(host.path());
    let first = broker.attach(vm_config("a")).unwrap();
    let _second = broker.attach(vm_config("b")).unwrap();
    let error = broker.attach(vm_config("c")).map(drop).unwrap_err();
    let AttachError::HostShort(short) = &error else {
        panic!("{error}");
    };
    assert_eq!((short.wanted, short.promised), (each, 2 * each));
    assert_eq!(short.available, each * 5 / 2 + crate::room::KEPT);
    drop(first);
    broker.attach(vm_config("c")).unwrap();
}

#[test]
fn recording_of_several_threads_replays_equal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.jsonl");
    let gpu = FakeGpu::default();
    let mut setup = setup(TestCore::default(), &gpu, None);
    setup.recorder = Some(Recorder::create(&path, &GpuConfig::default()).unwrap());
    let broker = Broker::start(setup).unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let (broker, sender) = (&broker, sender.clone());
            scope.spawn(move || {
                let link = broker.attach(vm_config(name)).unwrap();
                let (file, memory) = client_memory("recorded", 4 * PAGE);
                link.map_ram(Gpa(RAM_AT), 4 * PAGE, memory, 0, true).unwrap();
                for round in 0..50u32 {
                    file.write_at(&round.to_le_bytes(), 0).unwrap();
                    sender.send(read(&link, at::RAM).unwrap()).unwrap();
                    read(&link, at::ROUND_TRIP).unwrap();
                    link.write(Bar::Bar3, u64::from(round) * 8, &[1, 2]).unwrap();
                }
                read(&link, at::POLL).unwrap();
                link.detach().unwrap();
            });
        }
    });
    drop(broker);
    assert_eq!(receiver.try_iter().count(), 150);
    let summary = Replay::open(&path)
        .unwrap()
        .run(&mut TestCore::default())
        .unwrap();
    assert!(summary.events > 600 && !summary.is_cut, "{summary:?}");
}

#[test]
fn manager_tells_that_a_dead_card_cannot_be_used() {
    let gpu = FakeGpu::default();
    let manager = vgpu::Manager::new(GpuConfig::default());
    let setup = Setup {
        core: Box::new(manager),
        ..setup(TestCore::default(), &gpu, None)
    };
    let error = Broker::start(setup).unwrap_err();
    assert!(matches!(error, StartError::Card { .. }), "{error}");
}

/// Panics when it is told to.
struct Panicking(TestCore);

impl Core for Panicking {
    fn apply(
        &mut self,
        now: vgpu::Tick,
        event: Event,
        memory: &mut dyn vgpu::HostMemory,
        actions: &mut vgpu::Actions,
    ) {
        if let Event::Request {
            vm,
            request: Request::Write { offset: 0xdead, .. },
            ..
        } = event
        {
            let kind = vgpu::InterruptKind::Msi;
            actions.push(vgpu::Action::Interrupt { vm, kind });
            panic!("told to");
        }
        self.0.apply(now, event, memory, actions);
    }
}

#[test]
fn panic_in_the_core_ends_the_broker_for_all() {
    let gpu = FakeGpu::default();
    let core = Box::new(Panicking(TestCore::default()));
    let broker = Broker::start(Setup {
        core,
        ..setup(TestCore::default(), &gpu, None)
    })
    .unwrap();
    let (a, b) = (
        broker.attach(vm_config("a")).unwrap(),
        broker.attach(vm_config("b")).unwrap(),
    );
    std::thread::scope(|scope| {
        let told = scope.spawn(|| a.write(Bar::Bar0, 0xdead, &[0; 4]));
        assert!(told.join().is_err());
    });
    assert!(matches!(read(&b, 0), Err(LinkError::Ended(_))));
    assert!(broker.wait_ended(Duration::ZERO).is_some());
}

#[test]
fn maps_of_one_vm_are_bounded() {
    let (_gpu, broker) = broker();
    let link = broker.attach(vm_config("a")).unwrap();
    let (file, _) = client_memory("m", PAGE);
    let map = |page: u64| {
        let memory = file.try_clone().unwrap().into();
        link.map_ram(Gpa(page * PAGE), PAGE, memory, 0, true)
    };
    // Each is a mapping: a VMM in the same process says itself which of its files are the same.
    let most = crate::sigbus::MAPPINGS_MAX as u64;
    (0..most).for_each(|page| map(page).unwrap());
    assert!(matches!(map(most), Err(LinkError::Map(MapError::TooManyMaps))));
    link.unmap_ram(Gpa(0), PAGE).unwrap();
    // The mapping goes on another thread.
    let start = Instant::now();
    while map(0).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "still not");
        std::thread::yield_now();
    }
}

/// Lines of the one flight file in the folder, as text, and why it was written.
fn flight_in(folder: &tempfile::TempDir) -> (String, Vec<String>) {
    let mut files = std::fs::read_dir(folder.path()).unwrap();
    let path = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    let file = FlightFile::read(&path).unwrap();
    let lines = file.flight.lines.iter().map(ToString::to_string).collect();
    (file.header.reason, lines)
}

fn flights_into(folder: &tempfile::TempDir) -> Option<FlightFolder> {
    Some(FlightFolder::new(folder.path(), "gpu0"))
}

#[test]
fn panic_in_the_core_is_written_with_what_led_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(Setup {
        core: Box::new(Panicking(TestCore::default())),
        flights: flights_into(&folder),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    let link = broker.attach(vm_config("a")).unwrap();
    assert_eq!(read(&link, 0x1000).unwrap(), 0x0302_0100);
    let access = std::thread::spawn(move || link.write(Bar::Bar0, 0xdead, &[0; 4]));
    access.join().unwrap_err();
    let (reason, lines) = flight_in(&folder);
    assert_eq!(reason, "panic in the broker: told to");
    let tail: Vec<&str> = lines
        .iter()
        .rev()
        .take(4)
        .map(|line| line[25..].trim_start())
        .collect();
    assert_eq!(
        tail,
        [
            "! panic in the broker: told to",
            "raise the interrupt of vm0",
            "vm0 stores 4 B to Bar0 0x00dead, request 2: not answered at once",
            "vm0 loads 4 B of Bar0 0x001000, request 1: answered",
        ]
    );
}

#[test]
fn lost_card_is_written_and_a_stop_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = FakeGpu::default();
    let start = |gpu: &FakeGpu| {
        Broker::start(Setup {
            flights: flights_into(&folder),
            ..setup(TestCore::default(), gpu, None)
        })
        .unwrap()
    };
    drop(start(&gpu));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let broker = start(&gpu);
    let link = broker.attach(vm_config("a")).unwrap();
    gpu.card().is_lost = true;
    read(&link, at::ROUND_TRIP).unwrap_err();
    drop(broker);
    let (reason, lines) = flight_in(&folder);
    assert_eq!(reason, "the card is gone: pulled out");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("store 0x00000001 to the card's PmcIntr(0)"))
    );
}

#[test]
fn flight_is_written_when_asked_and_the_broker_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(Setup {
        flights: flights_into(&folder),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    let link = broker.attach(vm_config("a")).unwrap();
    let path = broker.write_flight("a test").unwrap();
    assert!(path.starts_with(folder.path()));
    assert_eq!(flight_in(&folder).0, "a test");
    assert_eq!(read(&link, 0x1000).unwrap(), 0x0302_0100);
}

#[test]
fn broker_without_a_folder_writes_no_flight() {
    let (_gpu, broker) = broker();
    let error = broker.write_flight("a test").unwrap_err();
    assert_eq!(error.to_string(), "this broker has no folder for flight files");
}

#[test]
fn state_is_in_the_file_and_is_asked_for_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(Setup {
        core: Box::new(Stateful(TestCore::default())),
        flights: flights_into(&folder),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    let path = broker.write_flight("a test").unwrap();
    let state = FlightFile::read(&path).unwrap().state.unwrap();
    assert_eq!(state.to_string(), "phase: waiting\n");
    assert_eq!(broker.inspect("phase"), Some(state));
    assert_eq!(broker.inspect("vms"), None);
}

/// A script with something to show.
struct Stateful(TestCore);

impl Core for Stateful {
    fn apply(
        &mut self,
        now: vgpu::Tick,
        event: Event,
        memory: &mut dyn vgpu::HostMemory,
        actions: &mut vgpu::Actions,
    ) {
        self.0.apply(now, event, memory, actions);
    }

    fn inspect(&self, now: vgpu::Tick, path: &str) -> Option<Node> {
        struct Phase;
        impl vgpu::inspect::Inspect for Phase {
            fn inspect(&self, tree: &mut vgpu::inspect::Tree<'_>) {
                tree.name("phase", "waiting");
            }
        }
        vgpu::inspect::inspect(&Phase, now, path)
    }
}
