//! PBDMAs of a guest's GPU: the errors that its channels made.

use fermi_spec::engine::PBDMAS;
use fermi_spec::regs::PbdmaReg;
use fermi_spec::regs::pbdma::CHANNEL_ACTIVE;
use mmio::Storage;
use serde::{Deserialize, Serialize};

use super::errors::{Blame, Errors};
use crate::channel_error::PbdmaError;
use crate::inspect::{Inspect, Tree};

#[derive(Debug, Default, Serialize, Deserialize)]
struct Pbdma {
    errors: Errors<PbdmaError>,
    intr_enable: u32,
    /// Channel of the last error.
    channel: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pbdmas([Pbdma; PBDMAS]);

impl Pbdmas {
    /// A PBDMA stopped with an error of that channel. `false`: there is no room for it.
    pub(crate) fn error(&mut self, pbdma: u8, blame: Blame, error: PbdmaError) -> bool {
        self.0[usize::from(pbdma).min(PBDMAS - 1)]
            .errors
            .raise(blame, error)
    }

    /// Whether an error of that channel has not been acknowledged.
    pub(super) fn concern(&self, channel: u8) -> bool {
        self.0.iter().any(|pbdma| pbdma.errors.concerns(channel))
    }

    /// PBDMAs with an interrupt that is let through, a bit for each.
    pub(super) fn sources(&self) -> u32 {
        (0..)
            .zip(&self.0)
            .filter(|(_, pbdma)| pbdma.errors.shown.intr & pbdma.intr_enable != 0)
            .fold(0, |mask, (i, _)| mask | 1 << i)
    }

    pub(super) fn read(&self, reg: PbdmaReg, words: &Storage) -> u32 {
        let of = |i: u16, field: fn(&Pbdma) -> u32| self.0.get(usize::from(i)).map_or(0, field);
        match reg {
            PbdmaReg::PbdmaIntr(i) => of(i, |pbdma| pbdma.errors.shown.intr),
            PbdmaReg::PbdmaIntrEnable(i) => of(i, |pbdma| pbdma.intr_enable),
            PbdmaReg::PbdmaChannel(i) => of(i, Pbdma::channel),
            PbdmaReg::PbdmaMethod0(i) => of(i, |pbdma| pbdma.errors.shown.method),
            PbdmaReg::PbdmaData0(i) => of(i, |pbdma| pbdma.errors.shown.data),
            // Where in its ring the channel failed is not told.
            PbdmaReg::PbdmaGpShadowLow(_)
            | PbdmaReg::PbdmaGpShadowHigh(_)
            | PbdmaReg::PbdmaHeaderShadow(_) => 0,
            PbdmaReg::PbdmaStall(_) => words.load(reg),
        }
    }

    /// A store. `true` if the guest has acknowledged an error with it.
    pub(super) fn write(&mut self, reg: PbdmaReg, value: u32, words: &mut Storage) -> bool {
        match reg {
            PbdmaReg::PbdmaIntr(i) => {
                return self
                    .0
                    .get_mut(usize::from(i))
                    .is_some_and(|pbdma| pbdma.acknowledge(value));
            }
            PbdmaReg::PbdmaIntrEnable(i) => {
                if let Some(pbdma) = self.0.get_mut(usize::from(i)) {
                    pbdma.intr_enable = value;
                }
            }
            // The host has put a NOP into the latch: what failed is not executed, whatever the guest would have instead.
            PbdmaReg::PbdmaMethod0(_) | PbdmaReg::PbdmaData0(_) => {}
            PbdmaReg::PbdmaChannel(_)
            | PbdmaReg::PbdmaGpShadowLow(_)
            | PbdmaReg::PbdmaGpShadowHigh(_)
            | PbdmaReg::PbdmaHeaderShadow(_) => {}
            PbdmaReg::PbdmaStall(_) => words.store(reg, value),
        }
        false
    }
}

impl Pbdma {
    /// PBDMA_CHANNEL: whose error is shown, or was shown last.
    fn channel(&self) -> u32 {
        self.errors
            .blame()
            .map_or(self.channel, |blame| u32::from(blame.channel) | CHANNEL_ACTIVE)
    }

    fn acknowledge(&mut self, bits: u32) -> bool {
        self.channel = self.channel();
        self.errors.shown.intr &= !bits;
        self.errors.shown.intr == 0 && self.errors.seen()
    }
}

impl Inspect for Pbdmas {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for (number, pbdma) in self.0.iter().enumerate() {
            tree.group(number, |tree| {
                tree.bits("interrupts", pbdma.errors.shown.intr);
                tree.bits("let_through", pbdma.intr_enable);
                tree.bits("channel", pbdma.channel());
                tree.bits("method", pbdma.errors.shown.method);
                tree.bits("data", pbdma.errors.shown.data);
            });
        }
    }
}
