//! PBUS of a guest's GPU: where its windows point. Accesses never fail here, so there is no error to show.

use fermi_spec::regs::PbusReg;
use fermi_spec::regs::windows::{PraminBase, WindowBlock};
use mmio::Storage;
use serde::{Deserialize, Serialize};

use crate::inspect::{Inspect, Space, Tree};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pbus {
    pub(crate) pramin: PraminBase,
    /// The guest has said what PRAMIN shows.
    #[serde(default)]
    pub(crate) is_pramin_placed: bool,
    pub(crate) bar1: WindowBlock,
    pub(crate) bar3: WindowBlock,
}

impl Pbus {
    pub(crate) fn read(&self, reg: PbusReg, words: &Storage) -> u32 {
        match reg {
            PbusReg::PraminBase => self.pramin.into_bits(),
            PbusReg::Bar1Block => self.bar1.into_bits(),
            PbusReg::Bar3Block => self.bar3.into_bits(),
            PbusReg::PbusIntr | PbusReg::PbusErrorAddress | PbusReg::PbusErrorData => 0,
            PbusReg::PbusIntrEnable | PbusReg::PbusIntrEnableNonStall => words.load(reg),
        }
    }

    pub(crate) fn write(&mut self, reg: PbusReg, value: u32, words: &mut Storage) {
        match reg {
            PbusReg::PraminBase => {
                self.pramin = PraminBase::from_bits(value & PraminBase::STORED);
                self.is_pramin_placed = true;
            }
            PbusReg::Bar1Block => self.bar1 = WindowBlock::from_bits(value),
            PbusReg::Bar3Block => self.bar3 = WindowBlock::from_bits(value),
            PbusReg::PbusIntr | PbusReg::PbusErrorAddress | PbusReg::PbusErrorData => {}
            PbusReg::PbusIntrEnable | PbusReg::PbusIntrEnableNonStall => words.store(reg, value),
        }
    }
}

impl Inspect for Pbus {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.address("pramin", self.pramin.address().0, Space::GuestVramAddress);
        for (name, block) in [("bar1", self.bar1), ("bar3", self.bar3)] {
            tree.group(name, |tree| {
                tree.flag("is_translated", block.enable());
                tree.name("memory", format_args!("{:?}", block.aperture()));
                tree.address("instance_block", block.instance().0, Space::GuestVramAddress);
            });
        }
    }
}
