//! The bare-metal guest on this host's KVM, against a vGPU made of memory.
//!
//! Without /dev/kvm the tests say so and pass; with `VRAMD_REQUIRE_KVM=1` they fail.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod fake_link;

use std::io::{Read as _, Seek as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_link::{Access, BOOT_0, FakeLink, Mapped};
use vmm::{
    BusError, Input, Kernel, LinkError, MsiState, ReportQueue, RunningVm, Sandbox, Vm, VmConfig, VmError,
    VmExit,
};

/// No test's guest needs longer.
const LIMIT: Duration = Duration::from_secs(20);
/// A stop takes the time of one exit and of waking a thread, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(2);

struct Bench {
    link: Arc<FakeLink>,
    reports: Arc<ReportQueue>,
    vm: RunningVm,
}

impl Bench {
    fn report(&self) -> String {
        self.reports.next_report(LIMIT).unwrap_or_else(|| {
            panic!(
                "no report; exit {:?}; console {:?}",
                self.vm.wait_for(Duration::ZERO),
                self.reports.take_console()
            )
        })
    }

    fn wait(&self) -> Arc<VmExit> {
        self.vm.wait_for(LIMIT).expect("the guest ends in time")
    }
}

fn config(test: &str) -> VmConfig {
    VmConfig {
        name: "test".to_owned(),
        ram_bytes: 16 << 20,
        vcpus: 1,
        kernel: Kernel::bare(),
        initramfs: None,
        inputs: Vec::new(),
        disks: Vec::new(),
        networks: Vec::new(),
        command_line: format!("bare.test={test}"),
        console: None,
        sandbox: Sandbox::none(),
    }
}

/// Starts a guest; `None`, said aloud, without KVM.
fn start_with(config: VmConfig, link: FakeLink) -> Option<Bench> {
    let (link, reports) = (Arc::new(link), Arc::new(ReportQueue::new(100)));
    match Vm::build(config, link.clone(), reports.clone()) {
        Ok(vm) => Some(Bench {
            link,
            reports,
            vm: vm.start().unwrap(),
        }),
        Err(error) if error.is_host_without_kvm() => {
            let is_required = std::env::var_os("VRAMD_REQUIRE_KVM").is_some_and(|value| value == "1");
            assert!(!is_required, "VRAMD_REQUIRE_KVM=1, but {error}");
            println!("SKIPPED (no /dev/kvm): {error}");
            None
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

fn start(test: &str) -> Option<Bench> {
    start_with(config(test), FakeLink::new())
}

fn fnv1a(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn guest_boots_and_finds_gpu_ram_and_inputs() {
    let (first, second) = (
        (0..100_000u32).map(|index| (index * 7) as u8).collect::<Vec<_>>(),
        vec![9; 4096],
    );
    let inputs = vec![
        Input::from_bytes("first", first.clone()),
        Input::from_bytes("second", second.clone()),
    ];
    let Some(bench) = start_with(
        VmConfig {
            inputs,
            ..config("boot")
        },
        FakeLink::new(),
    ) else {
        return;
    };
    assert_eq!(bench.report(), format!("boot0={BOOT_0:08x}"));
    assert_eq!(bench.report(), "ram=ok end=0x1000000");
    assert_eq!(
        bench.report(),
        format!("input=first bytes=100000 fnv1a={:016x}", fnv1a(&first))
    );
    assert_eq!(
        bench.report(),
        format!("input=second bytes=4096 fnv1a={:016x}", fnv1a(&second))
    );
    assert_eq!(bench.report(), "clock=ok");
    assert!(matches!(*bench.wait(), VmExit::Guest(0)));
    let exits = bench.vm.exits();
    assert_eq!((exits.mmio_reads, exits.mmio_writes), (1, 0));
    assert!(exits.total() > exits.port_writes && exits.port_writes > 100);
}

#[test]
fn guest_ram_is_the_file_that_the_link_was_given() {
    let Some(bench) = start("boot") else { return };
    bench.wait();
    let mut maps = std::mem::take(&mut *bench.link.ram.lock().unwrap());
    let Mapped {
        mut file,
        gpa,
        bytes,
        offset,
    } = maps.pop().unwrap();
    assert_eq!((maps.len(), gpa, offset), (0, 0, 0));
    file.seek(std::io::SeekFrom::Start(bytes - 4)).unwrap();
    let mut last = [0; 4];
    file.read_exact(&mut last).unwrap();
    assert_eq!((bytes, u32::from_le_bytes(last)), (16 << 20, 0x1234_5678));
}

#[test]
fn large_ram_is_two_ranges_of_one_file() {
    let config = VmConfig {
        ram_bytes: 5 << 30,
        ..config("boot")
    };
    let Some(bench) = start_with(config, FakeLink::new()) else {
        return;
    };
    assert_eq!(bench.report(), format!("boot0={BOOT_0:08x}"));
    assert_eq!(bench.report(), "ram=ok end=0xc0000000");
    assert!(matches!(*bench.wait(), VmExit::Guest(0)));
    let maps = bench.link.ram.lock().unwrap();
    let ranges: Vec<_> = maps.iter().map(|map| (map.gpa, map.bytes, map.offset)).collect();
    assert_eq!(ranges, [(0, 3 << 30, 0), (4 << 30, 2 << 30, 3 << 30)]);
}

#[test]
fn accesses_arrive_with_their_width() {
    let Some(bench) = start("widths") else { return };
    assert_eq!(
        bench.report(),
        format!("narrow={BOOT_0:08x} wide=1716151413121110")
    );
    let expected = [
        Access::Read {
            region: 0,
            offset: 0,
            bytes: 4,
        },
        Access::Write {
            region: 0,
            offset: 4,
            data: vec![1, 2, 3, 4],
        },
        Access::Read {
            region: 1,
            offset: 8,
            bytes: 8,
        },
        Access::Write {
            region: 1,
            offset: 16,
            data: vec![1, 2, 3, 4, 5, 6, 7, 8],
        },
    ];
    assert_eq!(bench.link.accesses(), expected);
}

#[test]
fn refused_access_reads_all_ones() {
    let Some(bench) = start("refused") else { return };
    assert_eq!(bench.report(), "refused=ffffffff");
    assert!(matches!(*bench.wait(), VmExit::Guest(0)));
}

#[test]
fn status_of_the_guest_is_the_exit() {
    let Some(bench) = start("status") else { return };
    assert!(matches!(*bench.wait(), VmExit::Guest(42)));
}

#[test]
fn workload_on_a_gpu_that_answers_nothing_reports_an_error() {
    let command_line = "vramd.timeout_ms=20".to_owned();
    let inputs = vec![Input::from_bytes("file", vec![1; 5000])];
    let Some(bench) = start_with(
        VmConfig {
            inputs,
            command_line,
            ..config("")
        },
        FakeLink::new(),
    ) else {
        return;
    };
    assert!(matches!(*bench.wait(), VmExit::Guest(1)));
    let reports: Vec<_> = std::iter::from_fn(|| bench.reports.next_report(Duration::ZERO)).collect();
    assert!(
        reports.last().is_some_and(|line| line.starts_with("{\"error\":")),
        "{reports:?}"
    );
}

#[test]
fn unknown_option_is_named_on_the_console() {
    let command_line = "vramd.sed=1".to_owned();
    let Some(bench) = start_with(
        VmConfig {
            command_line,
            ..config("")
        },
        FakeLink::new(),
    ) else {
        return;
    };
    assert!(matches!(*bench.wait(), VmExit::Guest(2)));
    assert_eq!(
        bench.reports.take_console(),
        ["command line: cannot use \"vramd.sed=1\""]
    );
}

#[test]
fn exception_in_the_guest_is_reported_and_ends_it() {
    let Some(bench) = start("fault") else { return };
    assert!(matches!(*bench.wait(), VmExit::Guest(0xfe)));
    let console = bench.reports.take_console();
    assert!(
        console[0].starts_with("exception 14 error 0x4 at 0x1"),
        "{console:?}"
    );
    assert!(console[0].ends_with("target 0x0"), "{console:?}");
}

#[test]
fn times_of_reads_are_reported() {
    let Some(bench) = start("latency") else { return };
    let lines = [bench.report(), bench.report()];
    assert!(lines[0].starts_with("latency=port min_ns="), "{lines:?}");
    assert!(lines[1].starts_with("latency=register min_ns="), "{lines:?}");
    assert!(matches!(*bench.wait(), VmExit::Guest(0)));
}

#[test]
fn killing_a_guest_that_never_exits_stops_it() {
    let Some(bench) = start("spin") else { return };
    bench.report();
    let start = Instant::now();
    bench.vm.kill();
    assert!(matches!(*bench.wait(), VmExit::Killed));
    assert!(start.elapsed() < STOP_LIMIT, "{:?}", start.elapsed());
}

#[test]
fn killing_a_guest_between_exits_stops_it() {
    let Some(bench) = start("poll") else { return };
    bench.report();
    let start = Instant::now();
    drop(bench.vm);
    assert!(start.elapsed() < STOP_LIMIT, "{:?}", start.elapsed());
}

#[test]
fn killing_a_guest_whose_vgpu_hangs_stops_it() {
    let link = FakeLink::new();
    link.hang();
    let Some(bench) = start_with(config("poll"), link) else {
        return;
    };
    bench.link.wait_for_access();
    let start = Instant::now();
    bench.vm.kill();
    assert!(matches!(*bench.wait(), VmExit::Killed));
    assert!(start.elapsed() < STOP_LIMIT, "{:?}", start.elapsed());
}

#[test]
fn link_that_fails_ends_the_vm_with_its_error() {
    let link = FakeLink::new();
    link.hang();
    let Some(bench) = start_with(config("poll"), link) else {
        return;
    };
    bench.link.wait_for_access();
    vmm::VgpuLink::close(bench.link.as_ref());
    let exit = bench.wait();
    assert!(
        matches!(*exit, VmExit::Bus(BusError::Link(LinkError::Down))),
        "{exit:?}"
    );
}

#[test]
fn broker_that_dies_stops_a_guest_that_does_not_talk_to_it() {
    let Some(bench) = start("spin") else { return };
    bench.report();
    bench.link.hang_up();
    let exit = bench.wait();
    assert!(
        matches!(*exit, VmExit::Bus(BusError::Link(LinkError::Gone))),
        "{exit:?}"
    );
}

#[test]
fn further_vcpus_wait_and_stop_with_the_vm() {
    let Some(bench) = start_with(
        VmConfig {
            vcpus: 3,
            ..config("status")
        },
        FakeLink::new(),
    ) else {
        return;
    };
    assert!(matches!(*bench.wait(), VmExit::Guest(42)));
}

#[test]
fn interrupt_ends_a_wait_of_the_guest() {
    let Some(bench) = start("sleep") else { return };
    assert_eq!(bench.report(), "sleeping");
    assert_eq!(bench.vm.msi_state(), MsiState::Held);
    bench.link.msi.lock().unwrap().as_ref().unwrap().write(1).unwrap();
    assert_eq!(bench.report(), "awake by interrupt");
    assert_eq!(bench.vm.exits().waits, 1);
}

#[test]
fn interrupt_routed_to_the_local_apic_reaches_the_guest() {
    let Some(bench) = start("interrupt") else { return };
    assert_eq!(bench.report(), "listening");
    assert_eq!(
        bench.vm.msi_state(),
        MsiState::Routed {
            address: 0xfee0_0000,
            data: 0x20
        }
    );
    bench.link.msi.lock().unwrap().as_ref().unwrap().write(1).unwrap();
    assert_eq!(bench.report(), "interrupts=1");
    assert!(matches!(*bench.wait(), VmExit::Guest(0)));
}

#[test]
fn many_vms_run_and_stop_together() {
    let benches: Vec<_> = (0..8).map_while(|_| start("spin")).collect();
    benches
        .iter()
        .for_each(|bench| assert_eq!(bench.report(), "spinning"));
    let start = Instant::now();
    benches.iter().for_each(|bench| bench.vm.kill());
    benches
        .iter()
        .for_each(|bench| assert!(matches!(*bench.wait(), VmExit::Killed)));
    assert!(start.elapsed() < 4 * STOP_LIMIT, "{:?}", start.elapsed());
}

fn build_error(config: VmConfig) -> Option<VmError> {
    match Vm::build(config, Arc::new(FakeLink::new()), Arc::new(ReportQueue::new(1))) {
        Err(error) if error.is_host_without_kvm() => None,
        outcome => outcome.err(),
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let errors = [0, 4097, 3 << 30 | 1, 1 << 40].map(|ram_bytes| {
        build_error(VmConfig {
            ram_bytes,
            ..config("")
        })
    });
    let is_refused = |error: &Option<VmError>| matches!(error, None | Some(VmError::RamSize { .. }));
    assert!(errors.iter().all(is_refused), "{errors:?}");
    let errors = [0, 1 << 20].map(|vcpus| build_error(VmConfig { vcpus, ..config("") }));
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, None | Some(VmError::VcpuCount { .. }))),
        "{errors:?}"
    );
}

#[test]
fn input_larger_than_ram_is_refused_by_name() {
    let inputs = vec![Input::from_bytes("large.bin", vec![0; 16 << 20])];
    let Some(error) = build_error(VmConfig {
        inputs,
        ..config("boot")
    }) else {
        return;
    };
    let VmError::Load(load) = error else {
        panic!("{error}")
    };
    assert!(
        load.to_string()
            .starts_with("input large.bin of 16777216 bytes does not fit"),
        "{load}"
    );
}
