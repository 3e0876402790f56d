//! The units of one guest's GPU: each answers its own registers, and together they make the interrupt tree.
//!
//! ```text
//!   engines ──────────────────┐
//!   PBDMAs ─► PFIFO's levels ─┴─► PMC: mask ─► line ─► one MSI, or INTx
//! ```

use fermi_spec::regs::{Bar0Reg, PmcReg, Width};
use mmio::{Policy, Storage};
use serde::{Deserialize, Serialize};

use super::effect::Effect;
use super::engines::Engines;
use super::mmu::Mmu;
use super::pbdma::Pbdmas;
use super::pbus::Pbus;
use super::pci::ConfigSpace;
use super::pfifo::Pfifo;
use super::pmc::Pmc;
use super::ptimer::Ptimer;
use super::{board, pci};
use crate::event::{InterruptKind, Tick};
use crate::inspect::{Inspect, Tree};
use crate::saved::Unsound;

/// The register file of a guest's GPU, by unit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Units {
    boot0: u32,
    guest_vram: u64,
    /// The PCI configuration space, the only one of this vGPU.
    pub(crate) pci: ConfigSpace,
    pub(crate) pmc: Pmc,
    pub(crate) pbus: Pbus,
    pub(crate) pfifo: Pfifo,
    pub(crate) pbdmas: Pbdmas,
    pub(crate) engines: Engines,
    ptimer: Ptimer,
    mmu: Mmu,
    /// Words that keep what is written and have no other effect here.
    words: Storage,
}

impl Units {
    /// As after power-on: a board with this PMC_BOOT_0, this much VRAM and this PCI function.
    pub(crate) fn new(boot0: u32, guest_vram: u64, pci: ConfigSpace) -> Self {
        Self {
            boot0,
            guest_vram,
            pci,
            pmc: Pmc::new(boot0),
            pbus: Pbus::default(),
            pfifo: Pfifo::new(),
            pbdmas: Pbdmas::default(),
            engines: Engines::default(),
            ptimer: Ptimer,
            mmu: Mmu::new(guest_vram),
            words: Storage::default(),
        }
    }

    /// Checks units that were read, of a VM with that much VRAM.
    pub(crate) fn check(&self, guest_vram: u64) -> Result<(), Unsound> {
        Unsound::unless(self.guest_vram == guest_vram, "units of a board with other VRAM")?;
        self.pci.check()?;
        self.pfifo.check()
    }

    /// Everything as after power-on, the identity and the VMM's mask of INTx excepted.
    pub(crate) fn reset(&mut self) {
        let (mut pci, pmc) = (self.pci.clone(), self.pmc.reset());
        pci.reset();
        *self = Self::new(self.boot0, self.guest_vram, pci);
        self.pmc = pmc;
    }

    /// Units that ask for an interrupt, as PMC_INTR shows them.
    fn pending(&self) -> u32 {
        self.engines.pending() | self.pfifo.pending(&self.pbdmas)
    }

    /// Whether the interrupt line is up.
    fn is_line_up(&self) -> bool {
        self.pmc.is_up(self.pending())
    }

    /// Whether the line is up and INTx is what it asks for, masked or not.
    pub(crate) fn wants_intx(&self) -> bool {
        self.is_line_up() && !self.pci.is_msi_enabled() && !self.pci.is_intx_disabled()
    }

    /// The interrupt that is due since the last look. See [`Pmc`] for when that is.
    pub(crate) fn take_signal(&mut self) -> Option<InterruptKind> {
        let pending = self.pending();
        self.pmc.take_signal(pending, &self.pci)
    }

    /// The VMM masks INTx, or lets it through again.
    pub(crate) fn mask_intx(&mut self, masked: bool) {
        let pending = self.pending();
        self.pmc.mask_intx(masked, pending);
    }

    /// Loads bytes of the configuration space.
    pub(crate) fn read_config(&self, offset: u64, data: &mut [u8]) {
        self.pci.read_with_line(offset, data, self.is_line_up());
    }

    /// A load from the mirror of the configuration space.
    pub(crate) fn read_mirror(&self, offset: u32, width: Width) -> u32 {
        pci::read_mirror(&self.pci, offset, width, self.is_line_up())
    }

    /// The guest's load of a named register. It has no effect on the registers.
    pub(crate) fn read(&self, reg: Bar0Reg, now: Tick) -> u32 {
        let words = &self.words;
        match reg {
            Bar0Reg::Pmc(reg) => self.pmc.read(reg, || self.pending(), words),
            Bar0Reg::Pbus(reg) => self.pbus.read(reg, words),
            Bar0Reg::Pfifo(reg) => self.pfifo.read(reg, &self.pbdmas, words),
            Bar0Reg::Pbdma(reg) => self.pbdmas.read(reg, words),
            Bar0Reg::Ptimer(reg) => self.ptimer.read(reg, now, words),
            Bar0Reg::Pffb(reg) => self.mmu.read(reg, words),
            Bar0Reg::Pflush(reg) => Mmu::read_flush(reg),
            Bar0Reg::Pgraph(reg) => self.engines.graph.read(reg, words),
            Bar0Reg::Fecs(reg) => self.engines.graph.read_fecs(reg),
            Bar0Reg::Pcopy(reg) => self.engines.read_copy(reg, words),
            Bar0Reg::Punits(reg) => board::read_units(reg, words),
            Bar0Reg::Ltc(reg) => board::read_ltc(reg, words),
            Bar0Reg::Pring(reg) => board::read_ring(reg, words),
            Bar0Reg::Pmu(reg) => board::read_pmu(reg),
            Bar0Reg::Ppci(reg) => pci::read(reg, &self.pci),
            Bar0Reg::Vga(reg) => pci::read_vga(reg),
            Bar0Reg::Pnvio(reg) => words.load(reg),
            Bar0Reg::Pclock(reg) => words.load(reg),
            // Ways to engines and to memory that no driver for this board uses.
            Bar0Reg::Bypass(_) | Bar0Reg::Peephole(_) => 0,
        }
    }

    /// The guest's store to a named register.
    pub(crate) fn write(&mut self, reg: Bar0Reg, value: u32) -> Effect {
        let words = &mut self.words;
        match reg {
            Bar0Reg::Pmc(reg) => return self.write_pmc(reg, value),
            Bar0Reg::Pbus(reg) => self.pbus.write(reg, value, words),
            Bar0Reg::Pfifo(reg) => return self.pfifo.write(reg, value, words),
            Bar0Reg::Pbdma(reg) => return seen(self.pbdmas.write(reg, value, words)),
            Bar0Reg::Ptimer(reg) => self.ptimer.write(reg, value, words),
            Bar0Reg::Pffb(reg) => return self.mmu.write(reg, value, words),
            Bar0Reg::Pflush(reg) => Mmu::write_flush(reg),
            Bar0Reg::Pgraph(reg) => return seen(self.engines.graph.write(reg, value, words)),
            Bar0Reg::Fecs(reg) => self.engines.graph.write_fecs(reg, value),
            Bar0Reg::Pcopy(reg) => return seen(self.engines.write_copy(reg, value, words)),
            Bar0Reg::Punits(reg) => board::write_units(reg, value, words),
            Bar0Reg::Ltc(reg) => board::write_ltc(reg, value, words),
            Bar0Reg::Pring(reg) => board::write_ring(reg, value, words),
            Bar0Reg::Pmu(reg) => board::write_pmu(reg),
            Bar0Reg::Ppci(reg) => pci::write(reg, value, &mut self.pci, &mut self.pmc),
            Bar0Reg::Vga(reg) => pci::write_vga(reg),
            Bar0Reg::Pnvio(reg) => words.store(reg, value),
            Bar0Reg::Pclock(reg) => words.store(reg, value),
            Bar0Reg::Bypass(_) | Bar0Reg::Peephole(_) => return Effect::Refused,
        }
        Effect::None
    }

    fn write_pmc(&mut self, reg: PmcReg, value: u32) -> Effect {
        let before = self.pmc.enabled();
        let effect = self.pmc.write(reg, value, &mut self.words);
        let were_errors = self.engines.reset(before & !self.pmc.enabled());
        match effect {
            Effect::None => seen(were_errors),
            effect => effect,
        }
    }

    /// Whether the guest has not acknowledged an error of that channel yet.
    pub(crate) fn has_error_of(&self, channel: u8) -> bool {
        self.engines.concern(channel) || self.pbdmas.concern(channel)
    }

    /// The guest's load of a word that has no name; `None` if nobody answers it.
    pub(crate) fn read_unnamed(&self, offset: u32) -> Option<u32> {
        match Policy::of(offset) {
            Policy::Constant(value) => Some(value),
            Policy::Storage => Some(self.words.read(offset)),
            Policy::Virtual => Some(0),
            Policy::Refused => None,
        }
    }

    /// The guest's store to a word that has no name; `false` if nobody takes it.
    pub(crate) fn write_unnamed(&mut self, offset: u32, value: u32) -> bool {
        match Policy::of(offset) {
            Policy::Storage => self.words.write(offset, value),
            Policy::Constant(_) | Policy::Virtual => true,
            Policy::Refused => false,
        }
    }
}

/// What a store leads to that may have acknowledged an error.
fn seen(is_seen: bool) -> Effect {
    if is_seen { Effect::ErrorSeen } else { Effect::None }
}

impl Inspect for Units {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bits("boot0", self.boot0);
        tree.bits("pending", self.pending());
        tree.flag("lets_interrupts_through", self.pci.can_interrupt());
        tree.part("pmc", &self.pmc);
        tree.part("pbus", &self.pbus);
        tree.part("pfifo", &self.pfifo);
        tree.part("pbdmas", &self.pbdmas);
        tree.part("engines", &self.engines);
        tree.part("mmu", &self.mmu);
        tree.count("words_that_are_kept", self.words.count());
    }
}

#[cfg(test)]
#[path = "units/tests.rs"]
mod tests;
