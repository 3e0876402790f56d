//! Files that are right and files that are wrong.

use super::*;
use vmm::MacAddress;

const VM: &str = include_str!("../../../../docs/examples/vm.toml");

fn vm(text: &str) -> Result<VmFile, ConfigError> {
    parse(Path::new("vm.toml"), text)
}

#[test]
fn documented_vm_is_what_it_says() {
    let vm = vm(VM).unwrap();
    assert_eq!((vm.memory, vm.vcpus, vm.kernel), (256 << 20, 1, None));
    assert_eq!(vm.socket, Path::new("/run/vramd/a/gpu.sock"));
    assert_eq!(vm.options, "vramd.rounds=4");
}

#[test]
fn disks_are_read_in_order_and_bounded() {
    let disk = |name: &str| format!("[[disk]]\npath = \"{name}\"\n");
    let text = format!("{VM}\n{}read_only = true\n{}", disk("a"), disk("b"));
    let disks: Vec<_> = vm(&text)
        .unwrap()
        .disks
        .into_iter()
        .map(|disk| (disk.path, disk.read_only))
        .collect();
    assert_eq!(disks, [("a".into(), true), ("b".into(), false)]);
    let error = vm(&format!("{VM}\n{}", disk("c").repeat(9)))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("disk: a VM has at most 8 disks and networks"),
        "{error}"
    );
    let error = vm(&format!("{VM}\n[[disk]]\nread_only = true\n"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("missing field `path`"), "{error}");
}

#[test]
fn networks_are_read_with_or_without_an_address() {
    let text = format!("{VM}\n[[net]]\ntap = \"t0\"\nmac = \"52:54:00:12:34:5A\"\n[[net]]\ntap = \"t1\"\n");
    let networks = vm(&text).unwrap().networks;
    assert_eq!((networks[0].tap.as_str(), networks[1].tap.as_str()), ("t0", "t1"));
    assert_eq!(networks[0].mac.to_string(), "52:54:00:12:34:5a");
    assert_eq!(networks[1].mac, MacAddress::of("a", "t1"));
}

#[test]
fn networks_that_cannot_be_are_refused_by_field() {
    let said = |nets: &str| vm(&format!("{VM}\n{nets}")).unwrap_err().to_string();
    let net = |tap: &str, mac: &str| format!("[[net]]\ntap = \"{tap}\"\nmac = \"{mac}\"\n");
    let (one, other) = ("52:54:00:00:00:01", "52:54:00:00:00:02");
    assert!(said(&net("a/b", one)).contains(": tap: \"a/b\" cannot be the name of a tap"));
    assert!(said(&net("t", "52:54")).contains(": mac: \"52:54\" is not six bytes"));
    assert!(said(&net("t", "53:54:00:00:00:01")).contains("cannot be a device's address"));
    let twice = said(&(net("t", one) + &net("t", other)));
    assert!(
        twice.ends_with(": tap: another [[net]] has \"t\": each needs a tap of its own"),
        "{twice}"
    );
    let twice = said(&(net("t", one) + &net("u", one)));
    assert!(
        twice.ends_with(&format!(": mac: another [[net]] has {one}")),
        "{twice}"
    );
    let many: String = (0..9)
        .map(|index| format!("[[net]]\ntap = \"t{index}\"\n"))
        .collect();
    assert!(said(&many).ends_with("net: a VM has at most 8 disks and networks"));
    assert!(said("[[net]]\nmac = \"52:54:00:00:00:01\"\n").contains("missing field `tap`"));
}
