//! PBDMAs of a guest's GPU: the errors that its channels were stopped for.

use fermi_spec::engine::PBDMAS;
use fermi_spec::regs::PbdmaReg;
use fermi_spec::regs::pbdma::CHANNEL_ACTIVE;
use mmio::Storage;
use serde::{Deserialize, Serialize};

use crate::inspect::{Inspect, Tree};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Pbdma {
    intr: u32,
    intr_enable: u32,
    channel: u32,
    method: u32,
    data: u32,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pbdmas([Pbdma; PBDMAS]);

impl Pbdmas {
    /// A PBDMA stopped with an error.
    pub(crate) fn error(&mut self, pbdma: u8, bits: u32, channel: u8, method: u32, data: u32) {
        let pbdma = &mut self.0[usize::from(pbdma).min(PBDMAS - 1)];
        pbdma.intr |= bits;
        pbdma.channel = u32::from(channel) | CHANNEL_ACTIVE;
        (pbdma.method, pbdma.data) = (method, data);
    }

    /// PBDMAs with an interrupt that is let through, a bit for each.
    pub(super) fn sources(&self) -> u32 {
        (0..)
            .zip(&self.0)
            .filter(|(_, pbdma)| pbdma.intr & pbdma.intr_enable != 0)
            .fold(0, |mask, (i, _)| mask | 1 << i)
    }

    pub(super) fn read(&self, reg: PbdmaReg, words: &Storage) -> u32 {
        let of = |i: u16, field: fn(&Pbdma) -> u32| self.0.get(usize::from(i)).map_or(0, field);
        match reg {
            PbdmaReg::PbdmaIntr(i) => of(i, |pbdma| pbdma.intr),
            PbdmaReg::PbdmaIntrEnable(i) => of(i, |pbdma| pbdma.intr_enable),
            PbdmaReg::PbdmaChannel(i) => of(i, |pbdma| pbdma.channel),
            PbdmaReg::PbdmaMethod0(i) => of(i, |pbdma| pbdma.method),
            PbdmaReg::PbdmaData0(i) => of(i, |pbdma| pbdma.data),
            // Where in its ring the channel failed is not told.
            PbdmaReg::PbdmaGpShadowLow(_)
            | PbdmaReg::PbdmaGpShadowHigh(_)
            | PbdmaReg::PbdmaHeaderShadow(_) => 0,
            PbdmaReg::PbdmaStall(_) => words.load(reg),
        }
    }

    pub(super) fn write(&mut self, reg: PbdmaReg, value: u32, words: &mut Storage) {
        match reg {
            PbdmaReg::PbdmaIntr(i) => {
                if let Some(pbdma) = self.0.get_mut(usize::from(i)) {
                    pbdma.intr &= !value;
                }
            }
            PbdmaReg::PbdmaIntrEnable(i) => {
                if let Some(pbdma) = self.0.get_mut(usize::from(i)) {
                    pbdma.intr_enable = value;
                }
            }
            // The channel is killed: what its latch holds will not be executed.
            PbdmaReg::PbdmaMethod0(_) | PbdmaReg::PbdmaData0(_) => {}
            PbdmaReg::PbdmaChannel(_)
            | PbdmaReg::PbdmaGpShadowLow(_)
            | PbdmaReg::PbdmaGpShadowHigh(_)
            | PbdmaReg::PbdmaHeaderShadow(_) => {}
            PbdmaReg::PbdmaStall(_) => words.store(reg, value),
        }
    }
}

impl Inspect for Pbdmas {
    fn inspect(&self, tree: &mut Tree<'_>) {
        for (number, pbdma) in self.0.iter().enumerate() {
            tree.group(number, |tree| {
                tree.bits("interrupts", pbdma.intr);
                tree.bits("let_through", pbdma.intr_enable);
                tree.bits("channel", pbdma.channel);
                tree.bits("method", pbdma.method);
                tree.bits("data", pbdma.data);
            });
        }
    }
}
