//! MMU fault records: registers 259c and 2800 + 0x10·unit (nouveau `fifo/gf100.c`).

use crate::{memory::Place, mmu::Refusal};
use fermi_spec::{
    addr::GpuVa,
    fault::{FaultType, Reason, client, unit},
};

/// The access that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Culprit {
    /// MMU unit whose record it is.
    pub(crate) unit: u8,
    /// Client within the hub, or of a GPC (see [`client`]).
    pub(crate) client: u8,
    /// Instance block of the address space.
    pub(crate) instance: Place,
}

/// The records of all units.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultRecords {
    units: u32,
    records: [[u32; 4]; unit::COUNT],
}

impl FaultRecords {
    /// Units with a record (259c).
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Frees the records of the units in `mask`.
    pub(crate) fn acknowledge(&mut self, mask: u32) {
        self.units &= !mask;
    }

    /// Word `index` of the array at 2800.
    pub(crate) fn word(&self, index: usize) -> u32 {
        self.records.get(index / 4).map_or(0, |record| record[index % 4])
    }

    /// Records a refusal; `false` when the unit's record is still occupied and this one is dropped.
    #[must_use]
    pub(crate) fn record(&mut self, culprit: Culprit, refusal: Refusal) -> bool {
        let Some(record) = self.records.get_mut(usize::from(culprit.unit)) else {
            return false;
        };
        if self.units & 1 << culprit.unit != 0 {
            return false;
        }
        self.units |= 1 << culprit.unit;
        let kind = FaultType::new()
            .with_reason(refusal.reason as u8)
            .with_hub(culprit.client & client::OF_GPC == 0)
            .with_write(refusal.write)
            .with_client(culprit.client & client::NUMBER_MASK);
        *record = [
            culprit.instance.at.page_number(),
            refusal.va.0 as u32,
            (refusal.va.0 >> 32) as u32,
            kind.into_bits(),
        ];
        true
    }
}

/// Record of an injected fault (2a30), which has no access. unverified: hardware may report other values.
pub(crate) const INJECTED: Refusal = Refusal {
    va: GpuVa(0),
    reason: Reason::PdeNotPresent,
    write: false,
};
