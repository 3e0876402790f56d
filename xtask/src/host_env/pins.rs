//! `integration/host-env.toml`: the packages and their exact versions.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::workspace::Workspace;

/// Path of the pins from the root of the workspace.
pub(super) const PATH: &str = "integration/host-env.toml";

/// Package names with the version that each must have.
pub(super) type Packages = BTreeMap<String, String>;

/// Packages of one suite.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pin {
    /// The Debian suite that offers them.
    pub(super) suite: String,
    pub(super) packages: Packages,
    /// A package that depends on the only one in `packages`, whose name changes with its version.
    pub(super) meta: Option<String>,
    /// Only for QEMU: the oldest version installed on the machine that is good enough.
    pub(super) version_min: Option<String>,
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pins {
    pub(super) qemu: Pin,
    pub(super) kernel: Pin,
    pub(super) busybox: Pin,
    pub(super) mesa: Pin,
    pub(super) promtool: Pin,
    pub(super) prometheus: Pin,
    pub(super) debian: Pin,
    #[serde(rename = "debian-guest")]
    pub(super) debian_guest: Pin,
}

impl Pin {
    /// The version of its only package.
    pub(super) fn only(&self) -> Result<(&str, &str)> {
        let mut packages = self.packages.iter();
        let only = packages.next().filter(|_| packages.next().is_none());
        let (name, version) = only.context("exactly one package is expected")?;
        Ok((name, version))
    }

    /// These packages and those of `others`.
    pub(super) fn with(mut self, others: [&Self; 2]) -> Self {
        let others = others.into_iter().flat_map(|pin| pin.packages.clone());
        self.packages.extend(others);
        self
    }

    /// A name for an entry made of these packages, fit for a file: another pin gives another name.
    pub(super) fn cache_name(&self, kind: &str, layout: u32) -> String {
        cache_name(kind, &format!("{} {:?} {layout}", self.suite, self.packages))
    }
}

/// A name for an entry that is made of what `text` says.
pub(super) fn cache_name(kind: &str, text: &str) -> String {
    // FNV-1a: the same on every machine and in every release of Rust, which a `Hasher` of the library is not.
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{kind}-{digest:016x}")
}

impl Pins {
    pub(super) fn load(workspace: &Workspace) -> Result<Self> {
        let path = workspace.root().join(PATH);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{PATH} is wrong"))
    }

    fn parse(text: &str) -> Result<Self> {
        let pins: Self = toml::from_str(text)?;
        for pin in pins.all() {
            ensure!(!pin.packages.is_empty(), "a table names no package");
            let is_word =
                |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '/');
            let words = pin.packages.iter().flat_map(|(name, version)| [name, version]);
            for word in words.chain([&pin.suite]).chain(&pin.meta) {
                ensure!(
                    is_word(word) && !word.starts_with('-'),
                    "{word:?} is not a name or version"
                );
            }
        }
        pins.kernel.only().context("kernel")?;
        pins.qemu.only().context("qemu")?;
        Ok(pins)
    }

    /// All of them.
    pub(super) fn all(&self) -> [&Pin; 8] {
        [
            &self.qemu,
            &self.kernel,
            &self.busybox,
            &self.mesa,
            &self.promtool,
            &self.prometheus,
            &self.debian,
            &self.debian_guest,
        ]
    }
}

/// `text` with the pin of package `old` replaced by one of package `new` at `version`; comments and order stay.
pub(super) fn replace(text: &str, old: &str, new: &str, version: &str) -> Result<String> {
    let mut found = false;
    let lines = text.lines().map(|line| {
        let name = line.split_once('=').map(|(name, _)| name.trim());
        if name.is_some_and(|name| name.trim_matches('"') == old) {
            found = true;
            // Dots are separators in a bare key.
            let quote = if new.contains(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_') {
                "\""
            } else {
                ""
            };
            format!("{quote}{new}{quote} = \"{version}\"")
        } else {
            line.to_owned()
        }
    });
    let text = lines.collect::<Vec<_>>().join("\n") + "\n";
    ensure!(found, "{PATH} has no line for {old}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../../integration/host-env.toml");

    #[test]
    fn pins_of_the_tree_are_read() {
        let pins = Pins::parse(TEXT).unwrap();
        let (kernel, version) = pins.kernel.only().unwrap();
        assert!(kernel.starts_with("linux-image-6.12.") && version.starts_with("6.12."));
        assert!(pins.mesa.packages.contains_key("libgbm1"));
    }

    #[test]
    fn unknown_table_or_strange_version_is_refused() {
        assert!(Pins::parse(&format!("{TEXT}\n[other]\n")).is_err());
        assert!(Pins::parse(&TEXT.replace("1:1.37", "1 1.37")).is_err());
        assert!(Pins::parse(&TEXT.replace("busybox-static", "\"--force\"")).is_err());
    }

    #[test]
    fn moved_pin_has_another_cache_name_and_keeps_the_comments() {
        let before = Pins::parse(TEXT).unwrap().kernel;
        let (old, _) = before.only().unwrap();
        let text = replace(TEXT, old, "linux-image-6.12.999+deb13-amd64", "6.12.999-1").unwrap();
        let after = Pins::parse(&text).unwrap().kernel;
        assert_eq!(
            after.only().unwrap(),
            ("linux-image-6.12.999+deb13-amd64", "6.12.999-1")
        );
        assert_ne!(before.cache_name("kernel", 1), after.cache_name("kernel", 1));
        assert_ne!(before.cache_name("kernel", 1), before.cache_name("kernel", 2));
        assert_eq!(text.lines().count(), TEXT.lines().count());
        assert!(replace(TEXT, "no-such-package", "a", "1").is_err());
    }
}
