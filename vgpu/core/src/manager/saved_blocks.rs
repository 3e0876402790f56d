//! What the card writes into the instance block of a channel that leaves it, for the guest to keep.
//!
//! ```text
//!  the guest's preempt is done on the card ──► the words are read ──► stored in the guest's block ──► the guest sees it as done
//! ```
//!
//! A driver that suspends takes its channels off, saves their instance blocks and binds them anew afterwards: a channel goes on where it
//! was, in the middle of its ring, with the engines that its subchannels had. The card knows the broker's block alone, so what it wrote
//! there goes to the guest's. A block in memory that moves just then stays as it was.

use fermi_spec::addr::VramAddr;
use fermi_spec::bar::Bar;
use fermi_spec::instance::RAMFC_SAVED;
use shadow_pt::{Placement, TableAt};

use super::Cx;
use super::channels::word_at;
use super::running::Running;
use crate::event::{Action, Place, Token, VmId};
use crate::memory::GuestPage;

/// Bytes of RAMFC, at the start of an instance block.
const RAMFC_BYTES: u32 = 0x100;

impl Running {
    /// The guest's preempt is done on the card: its block gets what the card keeps of the channel, and then the guest sees it.
    pub(super) fn save_block(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some((instance, _)) = vgpu.blocks_of(v) else {
            return vgpu.units.pfifo.preempt_done(v);
        };
        let token = self.card.tokens.next();
        let offset = self.card.arena.window(instance);
        self.volatile.blocks.insert(token, (vm, v, instance));
        cx.actions.push(Action::HostRead {
            token,
            bar: Bar::Bar3,
            offset,
            bytes: RAMFC_BYTES,
        });
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn block_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let Some((vm, v, instance)) = self.volatile.blocks.remove(&token) else {
            return false;
        };
        self.store_block(vm, v, instance, data, cx);
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.units.pfifo.preempt_done(v);
        }
        true
    }

    fn store_block(&mut self, vm: VmId, v: u8, instance: VramAddr, data: &[u8], cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        // The guest may have bound another channel by that number meanwhile.
        let blocks = vgpu.blocks_of(v).filter(|(of, _)| *of == instance);
        let Some((_, block @ TableAt::Vram(_))) = blocks else {
            return;
        };
        for at in RAMFC_SAVED {
            let word = word_at(data, at).to_le_bytes();
            self.store_in_guest(vm, block.offset(at), &word, cx);
        }
    }

    /// Stores what the card would store to a page of the guest's memory. Memory that moves just then stays as it was, and so does what is
    /// not there or not the device's to write.
    pub(super) fn store_in_guest(&mut self, vm: VmId, at: TableAt, data: &[u8], cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let at = match at {
            TableAt::Vram(at) => at,
            TableAt::Ram(gpa) => {
                if let Some((_, true)) = vgpu.ram.locate(gpa) {
                    cx.memory.write(Place::Ram { vm, gpa }, data);
                }
                return;
            }
        };
        let Some(chunk) = vgpu.chunks.of(at) else { return };
        if vgpu.chunks.holds_stores(chunk, GuestPage::of(at)) {
            return;
        }
        match vgpu.chunks.locate(at) {
            Placement::Sysram(_) => {
                cx.memory.write(Place::Image { vm, at }, data);
            }
            Placement::Vram(host) if self.frames.is_at(host, vm) => {
                vgpu.chunks.end_both(chunk);
                self.card.write_vram(host, data.to_vec(), cx.actions);
            }
            Placement::Vram(_) | Placement::Unbacked | Placement::Outside => {}
        }
        vgpu.stores.note(at);
    }
}
