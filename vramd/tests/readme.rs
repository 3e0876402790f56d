//! The commands of README.md that start a broker and two VMs, as they stand there.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const README: &str = include_str!("../../README.md");
const MIB: u64 = 1 << 20;

/// The commands of the block that starts the quickstart, for a shell that runs them with this build's program.
fn commands() -> [String; 3] {
    let blocks = README.split("```").filter(|block| block.starts_with("sh\n"));
    let mut blocks = blocks.filter(|block| block.contains("examples/quickstart"));
    let block = blocks.next().unwrap().trim_start_matches("sh\n");
    let program = env!("CARGO_BIN_EXE_vramd");
    // Without KVM its guests run on threads: what is tried is the commands.
    let run = match Path::new("/dev/kvm").exists() {
        true => format!("{program} run"),
        false => format!("{program} run --no-kvm"),
    };
    let command = |line: &str| {
        let line = line.split(" #").next().unwrap();
        line.replace("cargo run --release --", program)
            .replace("target/release/vramd run", &run)
            .replace("target/release/vramd", program)
    };
    let commands: Vec<_> = block.lines().map(command).collect();
    commands.try_into().expect("three commands")
}

#[test]
fn three_commands_lead_to_two_vms_whose_shares_are_changed_while_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    symlink(root.join("docs"), folder.path().join("docs")).unwrap();
    std::fs::create_dir(folder.path().join("target")).unwrap();
    let [serve, run, quota] = commands();
    let program = env!("CARGO_BIN_EXE_vramd");
    // What a person waits for between them, and looks at afterwards.
    let script = format!(
        "export VRAMD_CONTROL=target/quickstart/control.sock\n\
         wait_for() {{ for try in $(seq 600); do eval \"$1\" && return; sleep 0.1; done; exit 3; }}\n\
         trap 'kill $(jobs -p)' EXIT\n\
         {serve}\n\
         wait_for 'test -S $VRAMD_CONTROL'\n\
         {run}\n\
         wait_for 'test $({program} list | grep -c \" connected \") = 2'\n\
         wait_for \"test \\$({program} list | awk '/^a /{{ print int(\\$4) }}') -gt 40\"\n\
         {quota} >&2\n\
         wait_for \"test \\$({program} list | awk '/^a /{{ print int(\\$4) }}') -le 32\"\n\
         {program} list --json\n"
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    // What runs in the background may say something behind it.
    let json = &text[text.find("{\n").unwrap()..];
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let listed = values.next().unwrap().unwrap();
    let a = &listed["vms"][0];
    assert_eq!(
        (a["name"].as_str(), a["quota"]["max"].as_u64()),
        (Some("a"), Some(32 * MIB))
    );
    assert!(
        a["usage"]["resident_bytes"].as_u64().unwrap() <= 32 * MIB,
        "{listed}"
    );
    assert!(a["usage"]["spilled_bytes"].as_u64().unwrap() > 0, "{listed}");
}
