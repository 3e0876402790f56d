//! PMC of a guest's GPU: identification, unit enables, and the line at the end of the interrupt tree.
//!
//! ```text
//!   line ─┬─ MSI on ──────────────── it rises ─► one message
//!         └─ MSI off ─ pin not disabled, not masked ─► one signal of INTx, and masked until the VMM unmasks
//! ```
//!
//! MSI and the pin are switched by the guest in its configuration space. The mask is the VMM's, as VFIO has it for INTx
//! (`VFIO_IRQ_INFO_AUTOMASKED`, Linux `include/uapi/linux/vfio.h`): a level that nobody has looked at yet is signalled once.

use fermi_spec::engine::{PBDMAS_PRESENT, pmc_enable};
use fermi_spec::regs::{PmcReg, pmc::LINE_HARDWARE};
use mmio::Storage;
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use super::pci::ConfigSpace;
use crate::event::InterruptKind;
use crate::inspect::{Inspect, Tree};

/// Lines of PMC; the first is the host's.
const LINES: usize = 3;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pmc {
    boot0: u32,
    enable: u32,
    pbdma_enable: u32,
    line_enable: [u32; LINES],
    mask: [u32; LINES],
    /// What the line was when it was last looked at for a message.
    was_up: bool,
    /// The VMM takes a signal of INTx. It does not before it says so, and not between a signal and its unmask.
    #[serde(default)]
    is_intx_open: bool,
}

impl Pmc {
    pub(crate) fn new(boot0: u32) -> Self {
        Self {
            boot0,
            enable: 0,
            pbdma_enable: 0,
            line_enable: [0; LINES],
            mask: [0; LINES],
            was_up: false,
            is_intx_open: false,
        }
    }

    /// Everything as after power-on, but for the mask of INTx, which is the VMM's.
    pub(super) fn reset(&self) -> Self {
        Self {
            is_intx_open: self.is_intx_open,
            ..Self::new(self.boot0)
        }
    }

    /// Units that are switched on.
    pub(super) fn enabled(&self) -> u32 {
        self.enable
    }

    /// Whether the line is up, with these units pending.
    pub(super) fn is_up(&self, pending: u32) -> bool {
        self.line_enable[0] & LINE_HARDWARE != 0 && pending & self.mask[0] != 0
    }

    /// What is to be signalled since the last look. INTx is masked with that.
    pub(super) fn take_signal(&mut self, pending: u32, config: &ConfigSpace) -> Option<InterruptKind> {
        let up = self.is_up(pending);
        if config.is_msi_enabled() {
            let rose = up && !self.was_up;
            self.was_up = up;
            return rose.then_some(InterruptKind::Msi);
        }
        let is_due = up && self.is_intx_open && !config.is_intx_disabled();
        self.is_intx_open &= !is_due;
        is_due.then_some(InterruptKind::Intx)
    }

    /// A message is due again if the line is still up.
    pub(crate) fn rearm(&mut self) {
        self.was_up = false;
    }

    /// The VMM masks INTx, or lets it through again.
    pub(super) fn mask_intx(&mut self, masked: bool, pending: u32) {
        let is_forgotten = planted::is(Fault::UnmaskForgotten) && self.is_up(pending);
        self.is_intx_open = !masked && !is_forgotten;
    }

    pub(crate) fn read(&self, reg: PmcReg, pending: impl Fn() -> u32, words: &Storage) -> u32 {
        let line = |lines: &[u32; LINES], i: u16| lines.get(usize::from(i)).copied().unwrap_or(0);
        match reg {
            PmcReg::Boot0 => self.boot0,
            // Little-endian, and it stays so.
            PmcReg::Endian => 0,
            PmcReg::PmcIntr(0) => pending(),
            // Nothing is sent to the other lines.
            PmcReg::PmcIntr(_) => 0,
            PmcReg::PmcIntrEnable(i) => line(&self.line_enable, i),
            PmcReg::PmcIntrLine(i) => u32::from(i == 0 && self.is_up(pending())),
            PmcReg::PmcIntrMask(i) => line(&self.mask, i),
            PmcReg::PmcEnable => self.enable,
            PmcReg::PbdmaEnable => self.pbdma_enable,
            PmcReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn write(&mut self, reg: PmcReg, value: u32, words: &mut Storage) -> Effect {
        let set = |lines: &mut [u32; LINES], i: u16| {
            if let Some(line) = lines.get_mut(usize::from(i)) {
                *line = value;
            }
        };
        match reg {
            PmcReg::PmcIntrEnable(i) => set(&mut self.line_enable, i),
            PmcReg::PmcIntrMask(i) => set(&mut self.mask, i),
            PmcReg::PmcEnable => {
                let fell = self.enable & !value;
                self.enable = value;
                if fell & pmc_enable::PFIFO != 0 {
                    return Effect::ResetFifo;
                }
            }
            PmcReg::PbdmaEnable => self.pbdma_enable = value & PBDMAS_PRESENT,
            PmcReg::Boot0 | PmcReg::Endian | PmcReg::PmcIntr(_) | PmcReg::PmcIntrLine(_) => {}
            PmcReg::Word(word) => words.store(word, value),
        }
        Effect::None
    }
}

impl Inspect for Pmc {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bits("units_enabled", self.enable);
        tree.bits("pbdmas_enabled", self.pbdma_enable);
        for (line, (&enable, &mask)) in self.line_enable.iter().zip(&self.mask).enumerate() {
            tree.group(format_args!("line_{line}"), |tree| {
                tree.bits("enabled", enable);
                tree.bits("let_through", mask);
            });
        }
        tree.flag("line_was_up", self.was_up);
        tree.flag("intx_masked", !self.is_intx_open);
    }
}
