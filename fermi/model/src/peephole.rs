//! PEEPHOLE: a window of one word into the address space of an instance block, behind three registers.
//!
//! Source: envytools `docs/hw/memory/peephole.rst` (the GF100 registers: `rnndb/memory/gf100_peephole.xml`).

use crate::{
    memory::Place,
    mmu::{Access, AddressSpace, Refusal, TlbClient},
    model::FermiModel,
};
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr},
    fault::{client, unit},
    regs::{
        PeepholeReg,
        peephole::HIGH_MASK,
        windows::{FAULT_PATTERN, WindowBlock},
    },
};

/// The registers of the window and the address space behind it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peephole {
    block: WindowBlock,
    /// The block's address space, once it was needed.
    space: Option<AddressSpace>,
    high: u32,
    low: u32,
}

impl Peephole {
    /// Drops the address space at a TLB flush, so that the block is read again too.
    pub(crate) fn forget_space(&mut self) {
        self.space = None;
    }

    fn instance(&self) -> Place {
        Place {
            aperture: self.block.aperture(),
            at: self.block.instance(),
        }
    }

    /// The address of this access; the next one is a word further on.
    fn advance(&mut self) -> GpuVa {
        let va = u64::from(self.high) << 32 | u64::from(self.low & !3);
        let next = va.wrapping_add(4);
        self.low = next as u32;
        self.high = (next >> 32) as u32 & HIGH_MASK;
        GpuVa(va)
    }
}

fn access(write: bool) -> Access {
    Access {
        client: TlbClient::Peephole,
        write,
        privileged: true,
    }
}

impl FermiModel {
    pub(crate) fn read_peephole(&mut self, reg: PeepholeReg) -> u32 {
        match reg {
            PeepholeReg::PeepholeBlock => self.peephole.block.into_bits(),
            PeepholeReg::PeepholeHigh => self.peephole.high,
            PeepholeReg::PeepholeLow => self.peephole.low,
            PeepholeReg::PeepholeData => self.load_through_peephole(),
        }
    }

    pub(crate) fn write_peephole(&mut self, reg: PeepholeReg, value: u32) {
        match reg {
            PeepholeReg::PeepholeBlock => {
                self.peephole.block = WindowBlock::from_bits(value);
                self.peephole.space = None;
                self.mmu.flush_client(TlbClient::Peephole);
            }
            PeepholeReg::PeepholeHigh => self.peephole.high = value & HIGH_MASK,
            PeepholeReg::PeepholeLow => self.peephole.low = value,
            PeepholeReg::PeepholeData => self.store_through_peephole(value),
        }
    }

    /// The address space, or `None` while the window is physical.
    fn peephole_space(&mut self) -> Option<AddressSpace> {
        if !self.peephole.block.enable() {
            return None;
        }
        let instance = self.peephole.instance();
        let mem = &mut self.mem;
        let load = || AddressSpace::load(mem, instance);
        Some(*self.peephole.space.get_or_insert_with(load))
    }

    fn load_through_peephole(&mut self) -> u32 {
        let va = self.peephole.advance();
        let Some(space) = self.peephole_space() else {
            return self.mem.read_u32(physical(va));
        };
        let mut word = [0; 4];
        match self.mmu.read(&mut self.mem, &space, access(false), va, &mut word) {
            Ok(()) => u32::from_le_bytes(word),
            Err(refusal) => {
                self.fault_peephole(client::BAR_READ, refusal);
                FAULT_PATTERN
            }
        }
    }

    fn store_through_peephole(&mut self, value: u32) {
        let va = self.peephole.advance();
        let Some(space) = self.peephole_space() else {
            return self.mem.write_u32(physical(va), value);
        };
        let word = value.to_le_bytes();
        if let Err(refusal) = self.mmu.write(&mut self.mem, &space, access(true), va, &word) {
            self.fault_peephole(client::BAR_WRITE, refusal);
        }
    }

    /// unverified: which hub client the record names; here that of the BARs.
    fn fault_peephole(&mut self, client: u8, refusal: Refusal) {
        let instance = self.peephole.instance();
        self.record_fault(unit::PEEPHOLE, client, Some(instance), refusal);
    }
}

fn physical(va: GpuVa) -> Place {
    Place {
        aperture: Aperture::Vram,
        at: PhysAddr(va.0),
    }
}
