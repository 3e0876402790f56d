//! Doorbells of a guest that rests, on KVM: its VMM makes its stores trap, and nobody looks for them meanwhile.

use std::sync::Arc;
use std::time::Duration;

use broker::{Broker, SocketAccess, VmSocket};
use card::CardConfig;
use fermi_spec::board::Board;
use vgpu::{GpuConfig, Quota, VmConfig};
use vmm::{Kernel, ReportQueue, Sandbox, VfioUserLink, VgpuLink, Vm};
use vramd::BrokerLink;
use vramd::host::{CardChoice, HostSetup, start_broker};

/// Rests of the guest after which it rings (`guests/bare/src/selftest.rs`): nine that are timed, and four before work.
const RESTS: u64 = 13;
const PATIENCE: Duration = Duration::from_secs(60);

fn vm_config(name: &str) -> VmConfig {
    VmConfig {
        name: name.to_owned(),
        guest_vram: 16 << 20,
        chunk_bytes: 2 << 20,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

fn broker(vms: Vec<VmSocket>) -> Broker {
    let card = CardChoice::Model(CardConfig {
        board: Board::Gtx480,
        vram_bytes: 96 << 20,
        needs_microcode: false,
        strict: true,
        paced: false,
        workers: 0,
    });
    start_broker(HostSetup {
        card,
        settings: GpuConfig {
            host_ram: 1 << 30,
            seed: 1,
            ..GpuConfig::default()
        },
        firmware: None,
        flights: None,
        record: None,
        vms,
    })
    .expect("a software card")
}

/// Runs the guest to its end. Stores that have trapped, and what the guest said.
fn run(link: Arc<dyn VgpuLink>) -> (u64, Vec<String>) {
    let reports = Arc::new(ReportQueue::new(16));
    let config = vmm::VmConfig {
        name: "rests".to_owned(),
        ram_bytes: 16 << 20,
        vcpus: 1,
        kernel: Kernel::bare(),
        initramfs: None,
        inputs: Vec::new(),
        disks: Vec::new(),
        networks: Vec::new(),
        command_line: "bare.test=idle-doorbell".to_owned(),
        console: None,
        sandbox: Sandbox::none(),
    };
    let vm = Vm::build(config, link, reports.clone()).expect("KVM");
    let vm = vm.start().expect("threads");
    let end = vm.wait_for(PATIENCE).expect("the guest does not end");
    assert!(end.is_success(), "{end}");
    let said = std::iter::from_fn(|| reports.next_report(Duration::ZERO)).collect();
    (vm.trapped_doorbells(), said)
}

fn check((trapped, said): (u64, Vec<String>)) {
    println!("{said:?}");
    let [line] = &said[..] else { panic!("{said:?}") };
    assert!(line.starts_with("latency=idle-doorbell "), "{line}");
    // A host that is busy may have told of some rests when they were over.
    assert!(
        (RESTS / 2..=RESTS).contains(&trapped),
        "{trapped} of {RESTS} trapped"
    );
}

#[test]
fn first_doorbell_after_a_rest_traps_in_a_vmm_behind_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpu.sock");
    let socket = VmSocket::bind(&path, &SocketAccess::default(), vm_config("rests")).unwrap();
    let broker = broker(vec![socket]);
    check(run(Arc::new(VfioUserLink::connect(&path).unwrap())));
    drop(broker);
}

#[test]
fn first_doorbell_after_a_rest_traps_in_a_vmm_of_this_process() {
    let broker = broker(Vec::new());
    let link = broker.attach(vm_config("rests")).unwrap();
    check(run(Arc::new(BrokerLink::new(link))));
}
