//! The register list of a context, which FECS writes with every privilege when it loads the context: on a strict card only.
//!
//! ```text
//!   load: the image names a list ─► read ─► the engine works ─► at its time every value is written ─► the image's number
//!                                    │ refused: the load fails                                         of pairs is cleared
//! ```
//!
//! Nouveau's driver hands buffers over by such a list (`gr/ctxgf100.c`), nouveau's microcode reads it (`gr/fuc/hub.fuc`,
//! `ctx_mmio_exec`). No register is beyond it: a list may reset the engine that it is for, which ends it, or change the
//! runlist. So it is an event of its own, at which no other is half done. A switch that it asks FECS for comes behind it, and
//! takes time, so lists that cause each other keep the card from nothing else.
//!
//! assumptions: PRAMIN is no register; a write takes as long as a method; a list that is refused has written nothing, while the
//! microcode fetches 256 bytes at a time. A list of more than [`PAIRS_MAX`] pairs is refused, which the microcode would write;
//! nouveau's have some dozens. NVIDIA's microcode has its list elsewhere in the image, which is not modelled.

use super::{UNIT, fecs::Microcode};
use crate::{
    engine::{LOAD_CONTEXT, SAVE_CONTEXT},
    memory::Place,
    mmu::{AddressSpace, Refusal},
    model::FermiModel,
};
use fermi_spec::{
    addr::GpuVa,
    fault::{Reason, client},
    regs::fecs::context_list,
};
use std::collections::VecDeque;

/// Largest number of pairs in a list.
const PAIRS_MAX: u32 = 4096;

/// What FECS has to write for a context that it has loaded.
pub(crate) struct RegisterList {
    /// Offsets in BAR0, and values.
    pairs: VecDeque<(u32, u32)>,
    instance: Place,
    space: AddressSpace,
    image: GpuVa,
}

impl FermiModel {
    /// Reads the list of the image at `image`, if there is one. The engine works from then on, until it is written.
    pub(super) fn take_list(
        &mut self,
        instance: Place,
        space: &AddressSpace,
        image: GpuVa,
    ) -> Result<(), Refusal> {
        if !self.strict || self.graph.fecs.microcode != Some(Microcode::Nouveau) {
            return Ok(());
        }
        let count = self.context_word(space, image, context_list::COUNT)?;
        if count == 0 {
            return Ok(());
        }
        let at = self.context_word(space, image, context_list::AT)?;
        let va = GpuVa(u64::from(at) << context_list::AT_SHIFT);
        if count > PAIRS_MAX {
            return Err(Refusal {
                va,
                reason: Reason::BeyondLimit,
                write: false,
            });
        }
        let mut bytes = vec![0; count as usize * context_list::PAIR_BYTES as usize];
        self.mmu
            .read(&mut self.mem, space, LOAD_CONTEXT, va, &mut bytes)?;
        let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        let words: Vec<u32> = words.collect();
        let pairs = words
            .as_chunks()
            .0
            .iter()
            .map(|[offset, value]| (*offset, *value));
        let ns = self.timing.method_ns.saturating_mul(count.into());
        let ns = self.timing.graph_switch_ns.saturating_add(ns);
        let ns = self.time_of(self.units[UNIT].channel(), ns).max(1);
        self.units[UNIT].at = self.clock.now().saturating_add(ns);
        self.units[UNIT].list = Some(Box::new(RegisterList {
            pairs: pairs.collect(),
            instance,
            space: *space,
            image,
        }));
        Ok(())
    }

    fn context_word(&mut self, space: &AddressSpace, image: GpuVa, at: u64) -> Result<u32, Refusal> {
        let mut word = [0; 4];
        let va = GpuVa(image.0 + at);
        self.mmu.read(&mut self.mem, space, LOAD_CONTEXT, va, &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// The time of PGRAPH's list has come. Returns the units of work that it took.
    pub(crate) fn run_list(&mut self) -> u32 {
        let mut work = 0;
        // Looked up for each pair, as the one before may have been the end of engine and list.
        while let Some(list) = &mut self.units[UNIT].list
            && let Some((offset, value)) = list.pairs.pop_front()
        {
            work += 1;
            self.mem.counters.list_words += u64::from(self.write_register_word(offset, value));
        }
        if let Some(list) = self.units[UNIT].list.take() {
            self.end_list(&list);
        }
        work
    }

    /// All is written: the list will not be looked at again.
    fn end_list(&mut self, list: &RegisterList) {
        let count = GpuVa(list.image.0 + context_list::COUNT);
        let cleared = self
            .mmu
            .write(&mut self.mem, &list.space, SAVE_CONTEXT, count, &[0; 4]);
        let Err(refusal) = cleared else {
            self.unit_became_idle();
            return;
        };
        self.clear_graph_context();
        let holder = self.units[UNIT].holder;
        if holder.is_some_and(|holder| holder.instance == list.instance) {
            self.fault_unit_by(UNIT, client::CTXCTL, refusal);
        } else {
            self.graph.bound = None;
            self.report_context_fault(list.instance, refusal);
            self.unit_became_idle();
        }
    }
}
