//! Files that are right and files that are wrong.

use fermi_spec::board::Board;

use super::*;
use crate::host::CardChoice;
use card::CardConfig;
use std::path::Path;
use vramd_vm::config::{ConfigError, VmFile, parse};

const HOST: &str = include_str!("../../../docs/examples/host.toml");
const VM: &str = include_str!("../../../docs/examples/vm.toml");
/// What a host begins with that has the package.
const PACKAGED: &str = include_str!("../../debian/host.toml");

fn host(text: &str) -> Result<HostConfig, ConfigError> {
    parse(Path::new("host.toml"), text)
}

fn vm(text: &str) -> Result<VmFile, ConfigError> {
    parse(Path::new("vm.toml"), text)
}

/// What is said of the example with one text replaced.
fn host_error(from: &str, to: &str) -> String {
    assert!(HOST.contains(from));
    host(&HOST.replacen(from, to, 1)).unwrap_err().to_string()
}

fn vm_error(from: &str, to: &str) -> String {
    assert!(VM.contains(from));
    vm(&VM.replacen(from, to, 1)).unwrap_err().to_string()
}

#[test]
fn documented_host_is_what_it_says() {
    let host = host(HOST).unwrap();
    let card = CardConfig {
        board: Board::Gtx480,
        vram_bytes: 256 << 20,
        needs_microcode: false,
        strict: true,
        paced: false,
        workers: 0,
    };
    assert_eq!(host.gpus[0].card, CardChoice::Model(card));
    assert_eq!(host.gpus[0].settings, vgpu::GpuConfig::default());
    assert_eq!(host.vms[0].socket, Path::new("/run/vramd/a/gpu.sock"));
    let (a, b) = (&host.vms[0].config, &host.vms[1].config);
    assert_eq!(
        (a.guest_vram, a.chunk_bytes, a.quota.min),
        (192 << 20, 2 << 20, 16 << 20)
    );
    assert_eq!((b.chunk_bytes, b.quota), (2 << 20, vgpu::Quota::default()));
    assert_eq!(host.control.unwrap().socket, Path::new("/run/vramd/control.sock"));
}

#[test]
fn packaged_host_has_vms_where_the_units_and_recipes_look_for_them() {
    let host = host(PACKAGED).unwrap();
    assert_eq!(host.gpus.len(), 1);
    let sockets = host.vms.iter().map(|vm| vm.socket.to_str().unwrap());
    assert_eq!(
        sockets.collect::<Vec<_>>(),
        ["/run/vramd/a/gpu.sock", "/run/vramd/b/gpu.sock"]
    );
    // Members of the broker's group are let in.
    assert!(host.vms.iter().all(|vm| vm.access.mode == Some(0o660)));
    assert_eq!(host.control.unwrap().socket, Path::new("/run/vramd/control.sock"));
}

#[test]
fn unknown_field_is_named_with_its_line() {
    let error = host_error("host_ram =", "host_rum =");
    assert!(
        error.starts_with("host.toml:15: host_rum: unknown field `host_rum`"),
        "{error}"
    );
    let error = vm_error("vcpus =", "cpus =");
    assert!(
        error.starts_with("vm.toml:6: cpus: unknown field `cpus`"),
        "{error}"
    );
}

#[test]
fn malformed_text_is_one_line_with_its_number() {
    let error = host_error("name = \"gpu0\"  ", "name = \"gpu0  ");
    assert!(error.starts_with("host.toml:12: name:"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn missing_field_is_named() {
    let error = host_error("device = \"model:gtx480\"", "");
    assert!(error.contains("missing field `device`"), "{error}");
    let error = host("").unwrap_err().to_string();
    assert!(error.contains("missing field `gpu`"), "{error}");
}

#[test]
fn size_that_cannot_be_is_named_with_its_line() {
    let error = host_error("vram = \"256M\"", "vram = \"255.5M\"");
    assert!(
        error.starts_with("host.toml:14: gpu.vram: 261632K is not a multiple of 1M"),
        "{error}"
    );
    let error = host_error("vram = \"256M\"", "vram = 4096");
    assert!(error.starts_with("host.toml:14: gpu.vram: 4K is not"), "{error}");
    let error = host_error("vram = \"256M\"", "vram = \"256Q\"");
    assert!(
        error.starts_with("host.toml:14: vram: \"256Q\" is not a size"),
        "{error}"
    );
    let error = host_error("guest_vram = \"192M\"", "guest_vram = \"4M\"");
    assert!(
        error.starts_with("host.toml:28: vm.guest_vram: 4M is not"),
        "{error}"
    );
    let error = host_error("chunk = \"2M\"", "chunk = \"3M\"");
    assert!(
        error.starts_with("host.toml:29: vm.chunk: chunk 3145728 is not a power of two"),
        "{error}"
    );
    let error = vm_error("memory = \"256M\"", "memory = \"1T\"");
    assert!(error.starts_with("vm.toml:5: memory: 1T is not"), "{error}");
}

#[test]
fn quota_that_contradicts_itself_is_named() {
    let error = host_error("max = \"max\"", "max = \"1M\"");
    assert!(
        error.starts_with("host.toml:31: vm.min: min 16777216 is above max"),
        "{error}"
    );
    let error = host_error("weight = 100", "weight = 100\nchannels = 128");
    assert!(
        error.starts_with("host.toml:36: vm.channels: channels 128 is not"),
        "{error}"
    );
    let error = host_error("weight = 100", "weight = 0");
    assert!(error.starts_with("host.toml:35: vm.weight: weight 0"), "{error}");
}

#[test]
fn device_that_is_none_is_named() {
    let error = host_error("model:gtx480", "vfio:0000:01:00");
    assert!(
        error.contains("gpu.device: vfio: \"0000:01:00\" is not a PCI address such as 0000:01:00.0"),
        "{error}"
    );
    let error = host_error("model:gtx480", "card0");
    assert!(error.contains("\"card0\" is not a device such as"), "{error}");
    let error = host_error("model:gtx480", "model:gtx580");
    assert!(error.contains("there is no model \"gtx580\""), "{error}");
}

#[test]
fn card_in_another_process_is_its_socket_and_has_its_own_vram() {
    let served = "\"vfio-user:/run/card.sock\"";
    let error = host_error("\"model:gtx480\"", served);
    assert!(
        error.starts_with("host.toml:14: gpu.vram: the VRAM of a card in another process is set where"),
        "{error}"
    );
    let text = HOST
        .replacen("\"model:gtx480\"", served, 1)
        .replacen("vram = \"256M\"", "", 1);
    let card = &host(&text).unwrap().gpus[0].card;
    assert_eq!(*card, CardChoice::VfioUser("/run/card.sock".into()));
    let error = host_error("model:gtx480", "vfio-user:");
    assert!(error.contains("gpu.device: vfio-user: wants the path"), "{error}");
}

#[test]
fn name_that_is_taken_or_odd_is_refused() {
    let error = host_error("name = \"b\"", "name = \"a\"");
    assert!(error.contains("vm.name: another vm has it already"), "{error}");
    let error = host_error("/run/vramd/b/gpu.sock", "/run/vramd/a/gpu.sock");
    assert!(
        error.contains("vm.socket: another vm or control has it already"),
        "{error}"
    );
    let error = host_error("gpu = \"gpu0\"", "gpu = \"gpu1\"");
    assert!(error.contains("vm.gpu: there is no gpu \"gpu1\""), "{error}");
    let error = vm_error("name = \"a\"", "name = \"a/b\"");
    assert!(error.starts_with("vm.toml:4: name:"), "{error}");
    let error = vm_error("vcpus = 1", "vcpus = 0");
    assert!(error.starts_with("vm.toml:6: vcpus:"), "{error}");
}

#[test]
fn file_that_cannot_be_read_is_named() {
    let error = HostConfig::load(Path::new("/nonexistent/host.toml")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nonexistent/host.toml");
    assert!(matches!(
        VmFile::load(Path::new("/dev/null")),
        Err(ConfigError::Read { .. })
    ));
}

/// What is said of a card with this line among its settings; what they are if it is accepted.
fn with_setting(line: &str) -> Result<vgpu::GpuConfig, String> {
    let text = format!("[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\n[gpu.settings]\n{line}\n");
    let host = host(&text).map_err(|error| error.to_string())?;
    Ok(host.gpus[0].settings.clone())
}

#[test]
fn settings_of_a_card_are_set() {
    let lines = "suspend_budget = \"5ms\"\ndemand_budget = \"1s\"\nrefill_period = \"200ms\"\nbatch = \"2M\"\npart = \"1M\"\nwatchdog = \"0s\"\nshadow = \"24M\"\nseed = 7";
    let expected = vgpu::GpuConfig {
        suspend_budget_ns: 5_000_000,
        demand_budget_ns: 1_000_000_000,
        refill_period_ns: 200_000_000,
        batch_bytes: 2 << 20,
        part_bytes: 1 << 20,
        watchdog_ns: 0,
        shadow_bytes_min: 24 << 20,
        seed: 7,
        ..vgpu::GpuConfig::default()
    };
    assert_eq!(with_setting(lines), Ok(expected));
}

/// Settings of a card whose section has one more line.
fn card_with(line: &str) -> Result<vgpu::GpuConfig, String> {
    let text = format!("[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\n{line}\n");
    match host(&text) {
        Ok(mut host) => Ok(host.gpus.remove(0).settings),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn policy_of_a_card_is_one_of_those_there_are() {
    let with = |line: &str| card_with(line).map(|settings| settings.policy);
    assert_eq!(with(""), Ok(vgpu::PolicyName::default()));
    for policy in vgpu::PolicyName::ALL {
        assert_eq!(with(&format!("policy = \"{policy}\"")), Ok(policy));
    }
    let other = with("policy = \"luck\"").unwrap_err();
    for policy in vgpu::PolicyName::ALL {
        assert!(other.contains(&policy.to_string()), "{other}");
    }
}

#[test]
fn workers_are_a_software_cards_of_this_process() {
    let with = |device: &str, line: &str| {
        let text = format!("[[gpu]]\nname = \"g\"\ndevice = {device:?}\n{line}\n");
        let cards = |host: HostConfig| host.gpus.into_iter().map(|gpu| gpu.card).collect::<Vec<_>>();
        host(&text).map(cards).map_err(|error| error.to_string())
    };
    let workers = |line| match &with("model:gtx480", line).unwrap()[..] {
        [CardChoice::Model(card)] => card.workers,
        other => panic!("{other:?}"),
    };
    assert_eq!((workers(""), workers("workers = 3")), (0, 3));
    for (device, line, reason) in [
        ("model:gtx480", "workers = 256", "256 workers are more than 255"),
        (
            "vfio-user:/run/card.sock",
            "workers = 1",
            "set where it is served",
        ),
        ("vfio:0000:01:00.0", "workers = 1", "executes by itself"),
    ] {
        let error = with(device, line).unwrap_err();
        assert!(error.contains("gpu.workers") && error.contains(reason), "{error}");
    }
}

#[test]
fn search_for_frames_is_one_of_those_there_are() {
    let with = |line| card_with(line).map(|settings| settings.frames);
    assert_eq!(with(""), Ok(vgpu::FrameSearch::FirstFit));
    assert_eq!(
        with("frames = \"random-walk\""),
        Ok(vgpu::FrameSearch::RandomWalk)
    );
    let other = with("frames = \"best-fit\"").unwrap_err();
    assert!(
        other.contains("first-fit") && other.contains("random-walk"),
        "{other}"
    );
}

#[test]
fn windows_are_memory_or_trapped() {
    let with = |line| card_with(line).map(|settings| settings.windows);
    assert_eq!(with(""), Ok(vgpu::WindowMode::Auto));
    assert_eq!(with("windows = \"direct\""), Ok(vgpu::WindowMode::Direct));
    assert_eq!(with("windows = \"trapped\""), Ok(vgpu::WindowMode::Trapped));
    let other = with("windows = \"open\"").unwrap_err();
    assert!(other.contains("direct") && other.contains("trapped"), "{other}");
}

#[test]
fn wrong_setting_is_refused_with_line_field_and_what_would_be_right() {
    let unknown = with_setting("budget = \"5ms\"").unwrap_err();
    assert!(
        unknown.starts_with("host.toml:5: gpu.settings.budget: ") && unknown.contains("demand_budget"),
        "{unknown}"
    );
    let bare = with_setting("demand_budget = 150").unwrap_err();
    assert!(
        bare.starts_with("host.toml:5: gpu.settings.demand_budget: 150 has no unit"),
        "{bare}"
    );
    let far = with_setting("demand_budget = \"2s\"").unwrap_err();
    assert!(far.ends_with("2000ms is not from 1ms to 1000ms"), "{far}");
    let small = with_setting("batch = \"64K\"").unwrap_err();
    assert!(small.ends_with("64K is not from 128K to 128M"), "{small}");
}

/// What is said of a VM with this line, or whose its socket is and who may connect.
fn with_socket(line: &str) -> Result<broker::SocketAccess, String> {
    let text = format!(
        "[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\n[[vm]]\nname = \"a\"\ngpu = \"g\"\nsocket = \"/a\"\n\
         guest_vram = \"8M\"\n{line}\n"
    );
    let host = host(&text).map_err(|error| error.to_string())?;
    Ok(host.vms[0].access.clone())
}

#[test]
fn socket_is_its_owners_unless_a_group_or_a_mode_is_named() {
    let mode = |line: &str| with_socket(line).unwrap().mode;
    assert_eq!(mode(""), Some(0o600));
    assert_eq!(mode("socket_owner = 7"), Some(0o600));
    assert_eq!(mode("socket_group = 7"), Some(0o660));
    assert_eq!(mode("socket_group = 7\nsocket_mode = \"0600\""), Some(0o600));
    assert_eq!(mode("socket_mode = \"0666\""), Some(0o666));
    let access = with_socket("socket_owner = 7\nsocket_group = 8\nsocket_users = [7, 9]").unwrap();
    assert_eq!(
        (access.owner, access.group, access.users),
        (Some(7), Some(8), Some(vec![7, 9]))
    );
    let access =
        with_socket("socket_owner = \"root\"\nsocket_group = \"root\"\nsocket_users = [\"root\", 9, \"11\"]")
            .unwrap();
    assert_eq!(
        (access.owner, access.group, access.users),
        (Some(0), Some(0), Some(vec![0, 9, 11]))
    );
}

#[test]
fn access_that_cannot_be_is_named_with_its_line() {
    for (line, expected) in [
        (
            "socket_mode = \"0777\"",
            "host.toml:9: vm.socket_mode: \"0777\" is not",
        ),
        (
            "socket_owner = 4294967295",
            "host.toml:9: vm.socket_owner: there is no such",
        ),
        (
            "socket_users = []",
            "host.toml:9: vm.socket_users: nobody could connect",
        ),
        (
            "socket_group = \"vramd-nobody\"",
            "host.toml:9: vm.socket_group: there is no group \"vramd-nobody\" on this host: name one that `getent group` lists",
        ),
        (
            "socket_users = [1, \"vramd-nobody\"]",
            "host.toml:9: vm.socket_users: there is no user \"vramd-nobody\"",
        ),
        (
            "socket_owner = 1.5",
            "host.toml:9: socket_owner: a number, or a name",
        ),
        ("socket_owner = -1", "host.toml:9: "),
    ] {
        let error = with_socket(line).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}
