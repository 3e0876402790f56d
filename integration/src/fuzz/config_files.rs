//! Texts of configuration files, of hosts and of VMs.
//!
//! Whatever the text, it is read the same each time, or refused in one line that names the file.

use std::path::Path;

use vramd::config::HostConfig;
use vramd_vm::config::{ConfigFile, VmFile, parse};

/// Name of the file in messages.
const NAME: &str = "file.toml";

fn read<T: ConfigFile + PartialEq + std::fmt::Debug>(text: &str) {
    let path = Path::new(NAME);
    match parse::<T>(path, text) {
        Ok(config) => assert_eq!(parse::<T>(path, text).ok(), Some(config), "read twice"),
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains(NAME) && said.lines().count() == 1, "{said:?}");
        }
    }
}

/// Runs an input: the first byte says what the text is.
pub(super) fn run(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    match kind % 2 {
        0 => read::<HostConfig>(&text),
        _ => read::<VmFile>(&text),
    }
}
