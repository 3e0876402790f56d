//! What is read of the broker's part of VRAM, for checkers.

use fermi_spec::addr::{FRAME, FrameNo, GpuVa, VramAddr};
use fermi_spec::pte::{Pde, Pte, large_index, pde_index, small_index};
use vgpu::VmId;
use vm_memory::VolatileMemory;

use super::{Watch, World};

impl<W: Watch> World<W> {
    /// Bytes of the broker's part of VRAM, for checkers; zero where nothing is placed.
    pub fn read_arena(&self, at: VramAddr, data: &mut [u8]) {
        let frame = FrameNo((at.0 / FRAME) as u32);
        match self.arena.get(&frame) {
            Some(region) => {
                let slice = region
                    .get_slice((at.0 % FRAME) as usize, data.len())
                    .expect("within one frame");
                slice.copy_to(data);
            }
            None => data.fill(0),
        }
    }

    /// So many words of 64 bits of the broker's part of VRAM.
    pub fn read_arena_words(&self, at: VramAddr, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        let mut done = 0;
        while done < bytes.len() {
            let here = at.offset(done as u64);
            let length = ((FRAME - here.within(FRAME)) as usize).min(bytes.len() - done);
            self.read_arena(here, &mut bytes[done..done + length]);
            done += length;
        }
        bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect()
    }

    /// The shadow's entry for a virtual address of a VM's only address space; empty if there is none.
    pub fn shadow_entry(&self, vm: VmId, va: u64, is_large: bool) -> Pte {
        let entry = |at: u64| self.read_arena_words(VramAddr(at), 1)[0];
        let audit = self.manager.audit().unwrap_or_default();
        let directories = audit.vms.iter().find(|audit| audit.vm == vm);
        let Some([directory]) = directories.map(|audit| &audit.directories[..]) else {
            return Pte::new();
        };
        let pde = Pde::from_bits(entry(directory.0 + pde_index(GpuVa(va)) as u64 * 8));
        let (table, index) = match is_large {
            true => (pde.large_table(), large_index(GpuVa(va))),
            false => (pde.small_table(), small_index(GpuVa(va))),
        };
        table.map_or(Pte::new(), |(_, at)| {
            Pte::from_bits(entry(at.0 + index as u64 * 8))
        })
    }
}
