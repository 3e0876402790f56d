//! CPU windows onto guest VRAM: PRAMIN, BAR1, BAR3, and the USERD pages in BAR1.
//!
//! Every access is translated anew, through the guest's tables and then through where the memory is now, so a window
//! needs no redirecting when memory moves. Stores to a chunk that is being copied wait; loads are served from where it
//! still is.

use std::ops::ControlFlow;

use fermi_spec::addr::{GpuVa, GuestVramAddr, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::instance::{AddressSpacePointer, CHANNELS, USERD_BYTES, offset, userd};
use fermi_spec::regs::windows::WindowBlock;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES, Piece, Width};
use planted::Fault;
use shadow_pt::{GuestDirectory, Placement, TableAt, TableRead, TableStore, Walk, walk};

use super::Cx;
use super::requests::{Step, reader};
use super::running::Running;
use crate::contained::contained;
use crate::device::{Blocked, Channel, Queued, Vgpu};
use crate::event::{Action, Actions, HostMemory, Place, Refusal, Reply, Request, VmId};
use crate::host::Card;
use crate::memory::GuestPage;
use crate::reason::Inconsistency;

/// The place that a window shows at an offset.
enum Shown {
    /// Guest VRAM. `instance`: seen through PRAMIN or BAR3, so a first store makes it instance memory.
    Vram {
        at: GuestVramAddr,
        instance: bool,
        read_only: bool,
    },
    /// Guest RAM, which the window shows.
    Ram {
        at: fermi_spec::addr::Gpa,
        read_only: bool,
    },
    /// A channel's USERD page.
    Userd { channel: u8, offset: u64 },
    /// Nothing: loads are all ones, stores are dropped.
    Nothing,
    /// A table on the way is in VRAM: fetch it first.
    Missing(Vec<GuestPage>),
}

/// How one piece of an access to a window went.
enum Went {
    Done,
    Blocked(Box<dyn FnOnce(Queued) -> Blocked>),
}

impl Running {
    /// Goes on with an access to a BAR, piece by piece: each a register, or a run of bytes in one page of a window.
    pub(super) fn bar_access(&mut self, vm: VmId, mut request: Queued, cx: &mut Cx<'_>) -> Step {
        loop {
            let Some((bar, start, total)) = request.access() else {
                return Step::Done(Reply::Done);
            };
            if request.done >= total {
                return Step::Done(match request.kind {
                    Request::Read { .. } => Reply::Data(request.answer),
                    _ => Reply::Done,
                });
            }
            let at = start.saturating_add(request.done as u64);
            if bar == Bar::Bar0
                && let Piece::Register { offset, width } = Piece::first(at, total - request.done)
            {
                // A part of a word is answered where it is all that was asked for. What an unaligned access leaves over at
                // its ends reaches nothing.
                if width != Width::Dword && width.bytes() != total {
                    nothing(&mut request, width.bytes());
                    request.done += width.bytes();
                    continue;
                }
                match self.register_piece(vm, request, (offset, width), cx) {
                    ControlFlow::Continue(rest) => request = rest,
                    ControlFlow::Break(step) => return step,
                }
                continue;
            }
            let length = (total - request.done).min((SMALL_PAGE - at % SMALL_PAGE) as usize);
            let Some(vgpu) = self.vms.get_mut(&vm) else {
                return Step::Done(Reply::Refused(Refusal::NotAttached));
            };
            let shown = contained("translating an access", || show(vgpu, bar, at, cx.memory));
            let shown = shown.unwrap_or_else(|what| {
                self.volatile.inconsistent.entry(vm).or_insert(what);
                Shown::Nothing
            });
            let piece = match shown {
                Shown::Missing(pages) => {
                    let pages = self.fetch(vm, &pages, cx);
                    return Step::Blocked(Blocked::Fetch { pages, request });
                }
                Shown::Nothing => nothing(&mut request, length),
                Shown::Ram { at, read_only } => {
                    let read_only = read_only || vgpu.ram.locate(at).is_none_or(|(_, writable)| !writable);
                    ram(vm, at, read_only, &mut request, length, cx)
                }
                Shown::Userd { channel, offset } => self.userd(vm, channel, offset, &mut request, length, cx),
                Shown::Vram {
                    at,
                    instance,
                    read_only,
                } => {
                    if read_only && matches!(request.kind, Request::Write { .. }) {
                        nothing(&mut request, length)
                    } else {
                        self.vram(vm, at, instance, &mut request, length, cx)
                    }
                }
            };
            match piece {
                Went::Done => request.done += length,
                Went::Blocked(block) => return Step::Blocked(block(request)),
            }
        }
    }

    fn vram(
        &mut self,
        vm: VmId,
        at: GuestVramAddr,
        instance: bool,
        request: &mut Queued,
        length: usize,
        cx: &mut Cx<'_>,
    ) -> Went {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Went::Done;
        };
        let page = GuestPage::of(at);
        let Some(chunk) = vgpu.chunks.of(at) else {
            return nothing(request, length);
        };
        vgpu.chunks.note_touched(chunk, cx.now);
        let located = vgpu.chunks.locate(at);
        if let Placement::Vram(host) = located
            && !self.frames.is_at(host, vm)
        {
            self.inconsistent(vm, Inconsistency::at(host));
            return nothing(request, length);
        }
        let done = request.done;
        let is_table_store = instance && matches!(request.kind, Request::Write { .. });
        if is_table_store && let Some(pages) = self.fetch_to_adopt(vm, page, cx) {
            return Went::Blocked(Box::new(|request| Blocked::Fetch { pages, request }));
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Went::Done;
        };
        match &request.kind {
            Request::Read { .. } => return self.load(vm, (at, located), request, length, cx),
            Request::Write { data, .. } => {
                if vgpu.chunks.holds_stores(chunk, page) {
                    return Went::Blocked(Box::new(|request| Blocked::Move { request }));
                }
                let from = &data[done..done + length];
                match located {
                    Placement::Outside => {}
                    Placement::Unbacked if instance => {
                        vgpu.chunks.set_instance(page);
                        cx.memory.write(Place::Image { vm, at }, from);
                    }
                    Placement::Unbacked => {
                        self.demand(vm, vec![chunk], cx.now);
                        return Went::Blocked(Box::new(|request| Blocked::Demand { request }));
                    }
                    Placement::Sysram(_) => {
                        cx.memory.write(Place::Image { vm, at }, from);
                    }
                    Placement::Vram(host) => {
                        if !planted::is(Fault::OldCopyTrusted) {
                            vgpu.chunks.end_both(chunk);
                        }
                        vgpu.fetched.remove(&page);
                        self.card.write_vram(host, from.to_vec(), cx.actions);
                    }
                }
                if let Some(vgpu) = self.vms.get_mut(&vm) {
                    vgpu.stores.note(at);
                }
            }
            _ => {}
        }
        Went::Done
    }

    /// A load from a VM's memory, which is where `located` says.
    fn load(
        &mut self,
        vm: VmId,
        (at, located): (GuestVramAddr, Placement),
        request: &mut Queued,
        length: usize,
        cx: &mut Cx<'_>,
    ) -> Went {
        let into = &mut request.answer[request.done..][..length];
        match located {
            Placement::Outside => into.fill(0xff),
            Placement::Unbacked => into.fill(0),
            Placement::Sysram(_) => {
                cx.memory.read(Place::Image { vm, at }, into);
            }
            Placement::Vram(host) => {
                let token = self.card.read_vram(host, length as u32, cx.actions);
                return Went::Blocked(Box::new(move |request| Blocked::Value {
                    token,
                    request,
                    length,
                }));
            }
        }
        Went::Done
    }

    /// A bound channel's USERD is the card's page.
    fn userd(
        &mut self,
        vm: VmId,
        channel: u8,
        at: u64,
        request: &mut Queued,
        length: usize,
        cx: &mut Cx<'_>,
    ) -> Went {
        let held_at = self.held_at(vm, channel, cx.now);
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Went::Done;
        };
        let (done, is_held) = (request.done, vgpu.hold.is_suspended);
        let bound = vgpu.channels.get_mut(&channel);
        let mut has_work = false;
        let Request::Write { data, .. } = &request.kind else {
            return self.load_userd(vm, channel, at, request, length, cx);
        };
        let from = data[done..done + length].to_vec();
        match bound {
            Some(bound) => {
                let held = (is_held, held_at);
                has_work = self.card.store_userd(bound, held, at, &from, cx.actions);
                if has_work {
                    self.pass_wanted |= vgpu.note_doorbell(channel, cx.now);
                }
            }
            None => {
                remember_userd(vgpu, channel, at, &from);
                self.pass_wanted |= vgpu.note_parked_store(channel, cx.now);
            }
        }
        // A client may map USERD and send messages about it too.
        self.show_userd(vm, channel, at, &from, cx);
        if has_work {
            self.expect_progress(vm, channel, cx.now);
            self.work_came(vm, channel, cx.now);
        }
        Went::Done
    }

    fn load_userd(
        &mut self,
        vm: VmId,
        channel: u8,
        at: u64,
        request: &mut Queued,
        length: usize,
        cx: &mut Cx<'_>,
    ) -> Went {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Went::Done;
        };
        let into = &mut request.answer[request.done..][..length];
        match vgpu.channels.get(&channel) {
            // The card has less than the guest has stored.
            Some(Channel {
                given: Some(_),
                gp_put: Some(put),
                ..
            }) if at == userd::GP_PUT && length == 4 => into.copy_from_slice(&put.to_le_bytes()),
            // Until it is bound in the card's table, the page still holds what its last user left.
            Some(bound) if bound.in_table || planted::is(Fault::UserdReadEarly) => {
                let token = self.card.tokens.next();
                let offset = Card::userd_window(bound.physical) + at;
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar1,
                    offset,
                    bytes: length as u32,
                });
                return Went::Blocked(Box::new(move |request| Blocked::Value {
                    token,
                    request,
                    length,
                }));
            }
            _ => {
                for (at, byte) in (at..).zip(into) {
                    let word = vgpu.userd.get(&(channel, at as u16 & !3)).copied().unwrap_or(0);
                    *byte = word.to_le_bytes()[at as usize % 4];
                }
            }
        }
        Went::Done
    }
}

impl Card {
    /// A guest's store to the USERD page of a bound channel. GP_PUT is a doorbell, kept for after a suspension or while an
    /// operator holds the VM's channels, and takes whole words only. Where work waits for its memory, the card is not told of more than
    /// `held_at`. Whether it brought work.
    pub(super) fn store_userd(
        &mut self,
        bound: &mut Channel,
        (is_held, held_at): (bool, Option<u32>),
        at: u64,
        from: &[u8],
        actions: &mut Actions,
    ) -> bool {
        let base = Card::userd_window(bound.physical);
        let mut plain = |at: u64, part: &[u8]| {
            if !part.is_empty() && bound.in_table {
                let data = part.to_vec();
                actions.push(Action::HostWrite {
                    bar: Bar::Bar1,
                    offset: base + at,
                    data,
                });
            }
        };
        let end = at + from.len() as u64;
        let (before, after) = (userd::GP_PUT.clamp(at, end), (userd::GP_PUT + 4).clamp(at, end));
        plain(at, &from[..(before - at) as usize]);
        plain(after, &from[(after - at) as usize..]);
        let word = from[(before - at) as usize..(after - at) as usize].try_into();
        let Ok(gp_put) = word.map(u32::from_le_bytes) else {
            return false;
        };
        let before = bound.gp_put.replace(gp_put);
        bound.given = bound.given.or(held_at).filter(|given| *given != gp_put);
        match (
            bound.in_table,
            is_held || !bound.may_run() || bound.given.is_some(),
        ) {
            (_, true) => {}
            (true, false) => self.ring(bound.physical, gp_put, actions),
            (false, false) => self.ring_later(bound.physical, gp_put),
        }
        before.unwrap_or(0) != gp_put
    }
}

/// Words of an unbound channel's USERD that mean something lie below this.
const USERD_KEPT: u64 = 0x100;

pub(super) fn remember_userd(vgpu: &mut Vgpu, channel: u8, at: u64, from: &[u8]) {
    if !at.is_multiple_of(4) || at + from.len() as u64 > USERD_KEPT {
        return;
    }
    for (i, word) in from.chunks_exact(4).enumerate() {
        let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        vgpu.userd.insert((channel, (at + 4 * i as u64) as u16), value);
    }
}

fn nothing(request: &mut Queued, length: usize) -> Went {
    if let Request::Read { .. } = request.kind {
        request.answer[request.done..request.done + length].fill(0xff);
    }
    Went::Done
}

fn ram(
    vm: VmId,
    gpa: fermi_spec::addr::Gpa,
    read_only: bool,
    request: &mut Queued,
    length: usize,
    cx: &mut Cx<'_>,
) -> Went {
    let done = request.done;
    match &request.kind {
        Request::Read { .. } => {
            let into = &mut request.answer[done..done + length];
            cx.memory.read(Place::Ram { vm, gpa }, into);
        }
        Request::Write { data, .. } if !read_only => {
            cx.memory
                .write(Place::Ram { vm, gpa }, &data[done..done + length]);
        }
        _ => {}
    }
    Went::Done
}

fn show(vgpu: &Vgpu, bar: Bar, at: u64, memory: &mut dyn HostMemory) -> Shown {
    match bar {
        Bar::Bar0 => {
            let offset = at
                .checked_sub(u64::from(PRAMIN_BASE))
                .filter(|&at| at < u64::from(PRAMIN_BYTES));
            let shown =
                offset.and_then(|at| mmio::aperture::pramin_address(vgpu.units.pbus.pramin, at as u32));
            match shown {
                Some(at) => Shown::Vram {
                    at,
                    instance: true,
                    read_only: false,
                },
                None => Shown::Nothing,
            }
        }
        Bar::Bar1 => {
            let in_userd = vgpu
                .units
                .pfifo
                .userd_window()
                .and_then(|base| at.checked_sub(base));
            match in_userd.filter(|&at| at < CHANNELS as u64 * USERD_BYTES) {
                Some(at) => Shown::Userd {
                    channel: (at / USERD_BYTES) as u8,
                    offset: at % USERD_BYTES,
                },
                None => translate(vgpu, vgpu.units.pbus.bar1, at, false, memory),
            }
        }
        Bar::Bar3 => translate(vgpu, vgpu.units.pbus.bar3, at, true, memory),
    }
}

fn translate(vgpu: &Vgpu, block: WindowBlock, at: u64, instance: bool, memory: &mut dyn HostMemory) -> Shown {
    if !block.enable() {
        return Shown::Vram {
            at: GuestVramAddr(at),
            instance,
            read_only: false,
        };
    }
    let Some(pointer_at) = TableAt::from_aperture(block.aperture(), block.instance()) else {
        return Shown::Nothing;
    };
    let mut reader = reader(vgpu, memory);
    let mut bytes = [0; 16];
    match reader.read(pointer_at.offset(offset::PD_LO), &mut bytes) {
        TableRead::Done => {}
        TableRead::Missing => return Shown::Missing(reader.missing),
        TableRead::Outside => return Shown::Nothing,
    }
    let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    let pointer = AddressSpacePointer::from_words([word(0), word(4), word(8), word(12)]);
    let Some(directory) = GuestDirectory::from_pointer(pointer) else {
        return Shown::Nothing;
    };
    match walk(directory, GpuVa(at), &mut reader) {
        Walk::Page(page) => match page.target {
            TableAt::Vram(at) => Shown::Vram {
                at,
                instance,
                read_only: page.read_only,
            },
            TableAt::Ram(at) => Shown::Ram {
                at,
                read_only: page.read_only,
            },
        },
        Walk::Missing(_) => Shown::Missing(reader.missing),
        _ => Shown::Nothing,
    }
}
