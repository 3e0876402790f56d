//! What the driver is tried on: a card that `vramd gpu` serves, or vGPUs that `vramd serve` makes of one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::broker::{self, Broker, Figures};
use crate::card::{Card, Summary, UNDRAWN};

/// VRAM of a card, and what each of its guests sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) card: &'static str,
    pub(super) guest: &'static str,
}

impl Sizes {
    /// Of a card that one VM has for itself: its VRAM, shadow tables and the broker's own fit.
    pub(super) const OF_ONE: Self = Self {
        card: "384M",
        guest: "256M",
    };
    /// Of a card that two VMs share: a quarter of what they see.
    pub(super) const SMALL: Self = Self {
        card: "128M",
        guest: "256M",
    };
    /// The same with three eighths of what they see.
    pub(super) const LARGE: Self = Self {
        card: "384M",
        guest: "512M",
    };
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.guest, self.card)
    }
}

/// Part of either card that is kept for shadow tables: test programs open many clients at a time.
const SHADOW: &str = "48M";
/// Most VMs at a time.
pub(super) const VMS_MAX: u8 = 2;
const NAMES: [&str; VMS_MAX as usize] = ["a", "b"];
/// Lines of the broker's log that are expected. A channel that a test broke on purpose: the guest's kernel tells the same, and there it has
/// to be expected.
///
/// And a move that met a grid of longer than its budget, as a busy host makes them: it is tried again, and the guest notices nothing. How many
/// those were is looked at by figures.
pub(crate) const EXPECTED: [&str; 3] = [
    " killed: ",
    UNDRAWN,
    "rolled back: its channels did not go idle in time",
];

/// What stands behind the sockets.
pub(super) enum Device {
    Card(Card),
    Vgpus(Vgpus),
}

/// A broker with a software card of its own, and the VMs that share it.
pub(super) struct Vgpus {
    broker: Broker,
    vramd: PathBuf,
    folder: PathBuf,
    vms: &'static [&'static str],
    /// BAR1, BAR3 and PRAMIN are memory of the guests.
    is_direct: bool,
}

/// A VM's traffic with the broker, looked at from time to time.
pub(super) struct Traffic {
    vramd: PathBuf,
    control: PathBuf,
    vm: &'static str,
    is_direct: bool,
    last: Figures,
}

impl Device {
    /// Socket and name of each vGPU, or of the card.
    pub(super) fn sockets(&self) -> Vec<(&'static str, PathBuf)> {
        match self {
            Self::Card(card) => vec![("", card.socket().to_owned())],
            Self::Vgpus(vgpus) => vgpus.vms.iter().map(|vm| (*vm, vgpus.at(vm))).collect(),
        }
    }

    /// The traffic of a VM of that name, where it is counted.
    pub(super) fn traffic(&self, vm: &'static str) -> Option<Traffic> {
        match self {
            Self::Card(_) => None,
            Self::Vgpus(vgpus) => Some(Traffic {
                vramd: vgpus.vramd.clone(),
                control: vgpus.folder.join("control.sock"),
                vm,
                is_direct: vgpus.is_direct,
                last: Figures::new(),
            }),
        }
    }

    /// Ends it as an operator does. What it complains of is an error.
    pub(super) fn stop(self) -> Result<Option<Summary>> {
        match self {
            Self::Card(card) => card.stop().map(Some),
            Self::Vgpus(vgpus) => {
                vgpus
                    .broker
                    .stop_expecting(|line| EXPECTED.iter().any(|text| line.contains(text)))?;
                Ok(None)
            }
        }
    }
}

impl Vgpus {
    /// Starts a broker for as many VMs, with a policy for their chunks or its default, whose windows are memory if that is wanted. Its files go to `folder`.
    pub(super) fn start(
        vramd: &Path,
        (vms, sizes): (u8, Sizes),
        (policy, is_direct): (Option<&str>, bool),
        folder: &Path,
    ) -> Result<Self> {
        let vms = NAMES
            .get(..usize::from(vms))
            .context("there are not so many VMs")?;
        let Sizes { card, guest } = sizes;
        let windows = if is_direct { "direct" } else { "trapped" };
        // A path in JSON quotes is one in TOML quotes too.
        let at = |name: &str| json!(folder.join(name));
        let policy = policy.map_or(String::new(), |policy| format!("policy = \"{policy}\"\n"));
        let mut host = format!(
            "[control]\nsocket = {}\n[[gpu]]\nname = \"gpu0\"\ndevice = \"model:gtx480\"\nvram = \"{card}\"\n\
             {policy}windows = \"{windows}\"\n[gpu.settings]\nshadow = \"{SHADOW}\"\n",
            at("control.sock")
        );
        for vm in vms {
            host += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"gpu0\"\nguest_vram = \"{guest}\"\nsocket = {}\n",
                at(&format!("{vm}.sock"))
            );
        }
        let config = folder.join("host.toml");
        std::fs::write(&config, host).context("cannot write host.toml")?;
        Ok(Self {
            broker: Broker::start(vramd, &config, folder.join("broker.log"))?,
            vramd: vramd.to_owned(),
            folder: folder.to_owned(),
            vms,
            is_direct,
        })
    }

    fn at(&self, vm: &str) -> PathBuf {
        self.folder.join(format!("{vm}.sock"))
    }
}

impl Traffic {
    /// Messages since the last look, and what they were about. Where windows are memory, one about BAR1 or BAR3 is an error, and so are more than
    /// `most` of all.
    pub(super) fn look(&mut self, most: Option<u64>) -> Result<String> {
        let now = broker::figures(&self.vramd, &self.control, self.vm)?;
        let since = |name: &str| {
            let before = self.last.get(name).copied().unwrap_or(0);
            let value = now.get(name).copied().unwrap_or(0);
            value.saturating_sub(before)
        };
        let [bar0, bar1, bar3, dma, intx, fetched] = [
            "bar0_accesses_total",
            "bar1_accesses_total",
            "bar3_accesses_total",
            "dma_changes_total",
            "intx_changes_total",
            "table_pages_fetched_total",
        ]
        .map(since);
        let all = bar0 + bar1 + bar3 + dma + intx;
        let text = format!(
            "{all} messages: {bar0} of BAR0, {bar1} of BAR1, {bar3} of BAR3, {intx} of INTx; {fetched} pages loaded from VRAM"
        );
        self.last = now;
        ensure!(
            !self.is_direct || bar1 + bar3 == 0,
            "BAR1 and BAR3 are memory, and yet {} messages were about them",
            bar1 + bar3
        );
        if let Some(most) = most.filter(|_| self.is_direct) {
            ensure!(all <= most, "{text}: {most} at most are allowed");
        }
        Ok(text)
    }

    /// The figures of the last look.
    pub(super) fn end(self) -> Figures {
        self.last
    }
}
