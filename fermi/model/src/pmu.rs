//! The PMU: a falcon whose microcode gives the driver the place of its message rings.

use crate::falcon::{Falcon, FalconEvent, FalconShape};
use fermi_spec::regs::falcon::{Caps, FalconReg};
use fermi_spec::regs::{PmuReg, pmu};

/// 16 KiB of code and 12 KiB of data (unverified: no driver for this board asks).
const SHAPE: FalconShape = FalconShape {
    caps: Caps::new().with_code_pages(0x40).with_data_pages(0x30),
    version: 3,
    // Its interrupts have no destination until a driver or microcode sets one.
    route: 0,
};

/// The PMU's falcon and its interrupts.
#[derive(Clone, Debug)]
pub(crate) struct Pmu {
    falcon: Falcon,
}

impl Pmu {
    pub(crate) fn new() -> Self {
        Self {
            falcon: Falcon::new(SHAPE),
        }
    }

    /// A reset by PMC_ENABLE.
    pub(crate) fn reset(&mut self) {
        self.falcon.reset();
    }

    /// Whether it interrupts the host.
    pub(crate) fn is_interrupting(&self) -> bool {
        self.falcon.host_interrupts() != 0
    }

    pub(crate) fn read(&mut self, reg: FalconReg) -> u32 {
        self.falcon.read(reg)
    }

    pub(crate) fn write(&mut self, reg: FalconReg, value: u32) {
        // What the microcode would do at its start shows in `read_ring`; the model sends no messages.
        match self.falcon.write(reg, value) {
            FalconEvent::Started | FalconEvent::Acknowledged | FalconEvent::None => {}
        }
    }

    /// The place of a ring: zero until the microcode runs.
    pub(crate) fn read_ring(&self, reg: PmuReg) -> u32 {
        let place = match reg {
            PmuReg::PmuCommandRing => pmu::PMU_COMMAND_RING,
            PmuReg::PmuMessageRing => pmu::PMU_MESSAGE_RING,
        };
        if self.falcon.is_running() {
            pmu::PMU_RING_BYTES << 16 | place
        } else {
            0
        }
    }

    pub(crate) fn write_ring(reg: PmuReg) {
        match reg {
            PmuReg::PmuCommandRing | PmuReg::PmuMessageRing => {}
        }
    }
}
