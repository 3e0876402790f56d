//! PGRAPH's contexts of guests' channels: made by the host, placed in the guest's address space ([`crate::device::contexts`]).
//!
//! ```text
//! the guest's block names one (at its bind, or at a start) ─► a ticket, in the guest's image too
//!   the channel gets a number on the card ─► an image in its space, with what is kept by the ticket, or as fresh
//!   it leaves, or is parked ─► what the image holds is kept ─► out of the space, flushed ─► free
//! ```
//!
//! A channel that finds no memory for an image waits for one as others wait for a number: parked ([`super::parking`]).

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{FRAME, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::{GuestDirectory, ShadowSpace, TableRange, TableRead, TableStore, Walk, walk};

use super::Cx;
use super::channels::word_at;
use super::requests::reader;
use super::running::Running;
use crate::device::contexts::{
    Buffers, Context, Contexts, Decoy, ImageNo, TICKET_BYTES, ticket_bytes, ticket_in, ticket_va,
};
use crate::device::{Blocked, Queued, SpaceId, Vgpu};
use crate::event::{Action, Tick, Token, VmId};
use crate::host::graph::context_pointer;
use crate::host::{Job, PhysChannel};
use crate::memory::GuestPage;
use crate::share::CONTEXT_MOVED;

/// Time until memory is looked for again for a context that found none.
pub(super) const LOOK_NS: u64 = 1_000_000;
/// Bytes of an engine's pointer in an instance block.
const POINTER_BYTES: usize = 8;

/// A space that nothing reaches, until the TLB has forgotten it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GoneSpace {
    pub(super) vm: VmId,
    pub(super) shadow: ShadowSpace,
    #[serde(default)]
    pub(super) contexts: Contexts,
}

/// What is waited for before it is known what a context begins with.
pub(super) enum DecoyWait {
    Pages(BTreeMap<Token, GuestPage>),
    Content,
}

impl DecoyWait {
    /// The block of the request that waits.
    pub(super) fn block(self, request: Queued) -> Blocked {
        match self {
            Self::Pages(pages) => Blocked::Fetch { pages, request },
            Self::Content => Blocked::Context { request },
        }
    }
}

/// An image that is read because its channel is off the card.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Keeping {
    pub(super) vm: VmId,
    pub(super) space: SpaceId,
    pub(super) image: ImageNo,
    ticket: u64,
    then: Then,
    #[serde(with = "crate::hex")]
    content: Vec<u8>,
    /// Pieces that have not come.
    missing: u32,
}

/// What follows when the content of an image is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Then {
    /// The space has a user less.
    Left,
    /// The channel with that number is parked.
    Parked(PhysChannel),
}

impl Keeping {
    /// Whether a channel that was unbound had the image: its space still counts it.
    pub(super) fn is_of_left(&self) -> bool {
        self.then == Then::Left
    }
}

/// Pages that no entry leads to any more, until the TLB has forgotten them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GonePages {
    pub(super) vm: VmId,
    pub(super) pages: Vec<TableRange>,
}

/// The address of PGRAPH's context that the pointers of an instance block name; 0 if they name none.
pub(super) fn pointer_in(pointers: &[u8]) -> u64 {
    u64::from(word_at(pointers, 0)) | u64::from(word_at(pointers, 4)) << 32
}

impl Vgpu {
    /// Tickets of the contexts that channels have.
    fn tickets(&self) -> BTreeSet<u64> {
        let bound = self.channels.values().filter_map(|channel| channel.context);
        let parked = self.parked.values().filter_map(|parked| parked.context);
        bound.chain(parked).map(|context| context.ticket).collect()
    }
}

impl Running {
    /// The context of a channel whose instance block has these pointers: the one that it had, or, if its guest names another or has written
    /// its image anew, a new one.
    pub(super) fn context_of(
        &mut self,
        vm: VmId,
        before: Option<Context>,
        decoy: Option<Decoy>,
        pointers: &[u8],
        cx: &mut Cx<'_>,
    ) -> Option<Context> {
        debug_assert_eq!(
            Engine::Graph.context_offset(),
            fermi_spec::instance::offset::ENGINE_CONTEXTS
        );
        let pointer = pointer_in(pointers);
        let is_named = pointer != 0;
        let found = decoy.and_then(|decoy| decoy.ticket);
        let is_same = |context: &Context| {
            context.pointer == pointer && (decoy.is_none() || found == Some(context.ticket))
        };
        if let Some(context) = before.filter(|context| !is_named || is_same(context)) {
            return Some(Context { is_named, ..context });
        }
        let vgpu = self.vms.get_mut(&vm).filter(|_| is_named)?;
        let used = vgpu.tickets();
        let ticket = vgpu.kept.copy(found, &used);
        if let Some(decoy) = decoy {
            self.store_in_guest(vm, decoy.at, &ticket_bytes(ticket), cx);
        }
        Some(Context {
            pointer,
            is_named,
            ticket,
        })
    }

    /// The context that a block's pointers name as it is bound, and its image if the channel has a number on the card. The pointers are the
    /// host's then.
    pub(super) fn context_at_bind(
        &mut self,
        vm: VmId,
        space: SpaceId,
        (pointers, decoy): (&mut [u8], Option<Decoy>),
        has_number: bool,
        cx: &mut Cx<'_>,
    ) -> (Option<Context>, Option<ImageNo>) {
        let context = self.context_of(vm, None, decoy, pointers, cx);
        let named = context.filter(|context| context.is_named && has_number);
        let image = named.and_then(|context| self.put_image(vm, space, context, cx));
        self.point_to(vm, space, image, pointers);
        (context, image)
    }

    /// Puts the host's pointer in the place of the guest's, in words that are an instance block's pointers to contexts.
    pub(super) fn point_to(&self, vm: VmId, space: SpaceId, image: Option<ImageNo>, pointers: &mut [u8]) {
        if planted::is(Fault::DecoyImageUsed) {
            return;
        }
        let space = self.vms.get(&vm).and_then(|vgpu| vgpu.spaces.get(&space));
        let words = match (space, image) {
            (Some(space), Some(image)) => context_pointer(space.contexts.va(image).0),
            _ => [0; POINTER_BYTES],
        };
        if let Some(at) = pointers.get_mut(..POINTER_BYTES) {
            at.copy_from_slice(&words);
        }
    }

    /// An image in the space with what is kept of the context, or as fresh. `None`: no memory is left for one.
    pub(super) fn put_image(
        &mut self,
        vm: VmId,
        space: SpaceId,
        context: Context,
        cx: &mut Cx<'_>,
    ) -> Option<ImageNo> {
        self.provide_buffers(vm, cx)?;
        let pages = self.card.graph.image_pages();
        let (image, _) = self.on_shadows(vm, "adding an image", cx, |shadows| {
            let space = shadows.spaces.get_mut(&space)?;
            let of = (space.shadow.directory(), pages);
            space
                .contexts
                .take(of, shadows.buffers, shadows.budget, shadows.writer)
        })?;
        self.load_image(vm, space, image?, context, cx)?;
        image
    }

    /// A channel that its guest starts has another context than before, or none any more. The image that PGRAPH is to have of it.
    pub(super) fn change_context(
        &mut self,
        vm: VmId,
        v: u8,
        (before, after): (Option<Context>, Option<Context>),
        cx: &mut Cx<'_>,
    ) -> Option<ImageNo> {
        let channel = self.vms.get(&vm)?.channels.get(&v)?;
        let (space, image) = (channel.space, channel.image);
        let context = after.filter(|context| context.is_named)?;
        let image = match image {
            Some(image) => {
                if before.is_none_or(|before| before.ticket != context.ticket) {
                    self.load_image(vm, space, image, context, cx)?;
                }
                Some(image)
            }
            None => self.put_image(vm, space, context, cx),
        };
        if image.is_none() {
            self.tell_no_image(vm, cx);
        }
        self.vms.get_mut(&vm)?.channels.get_mut(&v)?.image = image;
        image
    }

    /// Gives a channel an image that had no memory for one. `false`: there is still none.
    pub(super) fn supply_image(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        vgpu.image_at = cx.now.after(LOOK_NS);
        let Some(channel) = vgpu.channels.get(&v) else {
            return false;
        };
        let (space, context, instance) = (channel.space, channel.context, channel.instance);
        let image = context.and_then(|context| self.put_image(vm, space, context, cx));
        let mut words = [0; POINTER_BYTES];
        self.point_to(vm, space, image, &mut words);
        let vgpu = self.vms.get_mut(&vm);
        let Some((vgpu, image)) = vgpu.zip(image) else {
            return false;
        };
        let at = instance.offset(Engine::Graph.context_offset());
        self.card.arena.write(at, words.to_vec(), cx.actions);
        let Some(channel) = vgpu.channels.get_mut(&v) else {
            return false;
        };
        channel.image = Some(image);
        if channel.may_run() && !vgpu.hold.is_suspended {
            let (physical, runs, gp_put) = (channel.physical, channel.runnable, channel.due());
            if runs {
                self.card.start(physical);
            }
            self.commit_host_runlist(Job::Nothing);
            if let Some(gp_put) = gp_put {
                self.card.ring_later(physical, gp_put);
            }
        }
        true
    }

    /// Writes an image: what is kept of the context, or a fresh one.
    pub(super) fn load_image(
        &mut self,
        vm: VmId,
        space: SpaceId,
        image: ImageNo,
        context: Context,
        cx: &mut Cx<'_>,
    ) -> Option<()> {
        let vgpu = self.vms.get_mut(&vm)?;
        vgpu.share.charge(CONTEXT_MOVED);
        let content = self.card.graph.image(vgpu.kept.content(context.ticket));
        let contexts = &vgpu.spaces.get(&space)?.contexts;
        let pages: Vec<_> = contexts.pages(image).iter().copied().zip(content).collect();
        for (at, bytes) in pages {
            let written = self.card.arena.write_for(vm, at, bytes, cx.actions);
            self.believe(vm, written)?;
        }
        Some(())
    }

    /// The VM's buffers of rendering are there when its first image is.
    fn provide_buffers(&mut self, vm: VmId, cx: &mut Cx<'_>) -> Option<()> {
        let count = self.card.graph.buffer_pages();
        if self.vms.get(&vm)?.buffers.pages.len() == count {
            return Some(());
        }
        let buffers = self.with_budget(vm, "adding buffers of rendering", |budget| {
            Buffers::allocate(count, budget)
        })??;
        let first = self.card.graph.first_buffer();
        let others = std::iter::repeat_with(|| vec![0; FRAME as usize]);
        let contents = std::iter::once(first).chain(others);
        for (&at, bytes) in buffers.pages.iter().zip(contents) {
            let written = self.card.arena.write_for(vm, at, bytes, cx.actions);
            self.believe(vm, written)?;
        }
        self.vms.get_mut(&vm)?.buffers = buffers;
        Some(())
    }

    /// Tells a guest that one of its channels waits for memory.
    pub(super) fn tell_no_image(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let what = || {
            "no shadow memory is left for the context of another channel: they take turns; programs have more with gpu.settings.shadow"
                .to_owned()
        };
        self.guest_error(vm, what, cx);
    }

    /// Where the image that pointers of an instance block name has its ticket, and which. `None`: they name none, or no memory of the guest's.
    ///
    /// # Errors
    /// What has to be waited for first.
    pub(super) fn find_decoy(
        &mut self,
        vm: VmId,
        pointers: &[u8],
        directory: Option<GuestDirectory>,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Decoy>, DecoyWait> {
        let pointer = pointer_in(pointers);
        let Some(directory) = directory.filter(|_| pointer != 0) else {
            return Ok(None);
        };
        let found = self.look_at_decoy(vm, pointer, directory, cx);
        let decoy = found.map_err(|missing| DecoyWait::Pages(self.fetch(vm, &missing, cx)))?;
        match self.is_to_be_kept(vm, decoy) {
            true => Err(DecoyWait::Content),
            false => Ok(decoy),
        }
    }

    /// The same, or the pages that have to be fetched first.
    fn look_at_decoy(
        &self,
        vm: VmId,
        pointer: u64,
        directory: GuestDirectory,
        cx: &mut Cx<'_>,
    ) -> Result<Option<Decoy>, Vec<GuestPage>> {
        let Some(vgpu) = self.vms.get(&vm) else {
            return Ok(None);
        };
        let mut reader = reader(vgpu, cx.memory);
        let at = match walk(directory, ticket_va(pointer), &mut reader) {
            Walk::Page(page) => page.target,
            Walk::Missing(_) => return Err(reader.missing),
            _ => return Ok(None),
        };
        let mut bytes = [0; TICKET_BYTES];
        match reader.read(at, &mut bytes) {
            TableRead::Done => Ok(Some(Decoy {
                at,
                ticket: ticket_in(bytes),
            })),
            TableRead::Missing => Err(reader.missing),
            TableRead::Outside => Ok(None),
        }
    }

    /// The content of the image with that ticket will be known, but is not yet: its channel is on its way off the card.
    fn is_to_be_kept(&self, vm: VmId, decoy: Option<Decoy>) -> bool {
        let Some(ticket) = decoy.and_then(|decoy| decoy.ticket) else {
            return false;
        };
        let leaving = self.leaving.values().filter_map(|of| {
            let context = of.channel.image.and(of.channel.context)?;
            Some((of.vm, context.ticket))
        });
        let keeping = self.keeping.values().filter(|of| of.is_of_left());
        let keeping = keeping.map(|of| (of.vm, of.ticket));
        leaving.chain(keeping).any(|of| of == (vm, ticket))
    }

    /// A channel is off the card for good: what its image holds is kept, then the image goes, and the space has a user less.
    pub(super) fn leave_space(
        &mut self,
        vm: VmId,
        space: SpaceId,
        (image, context): (Option<ImageNo>, Option<Context>),
        cx: &mut Cx<'_>,
    ) {
        let Some(vgpu) = self.vms.get(&vm) else { return };
        match (image, context) {
            (Some(image), Some(context)) if !vgpu.leaves() => {
                self.keep_image(vm, (space, image), context, Then::Left, cx);
            }
            (image, _) => {
                // What a VM has whose accounts are wrong is free by the allocators' word.
                if let Some(image) = image.filter(|_| vgpu.given_up.is_none()) {
                    self.drop_image(vm, space, image, cx);
                }
                self.drop_user(vm, space);
            }
        }
    }

    /// Reads an image whose channel is off the card.
    pub(super) fn keep_image(
        &mut self,
        vm: VmId,
        (space, image): (SpaceId, ImageNo),
        context: Context,
        then: Then,
        cx: &mut Cx<'_>,
    ) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        vgpu.share.charge(CONTEXT_MOVED);
        let of = vgpu.spaces.get(&space);
        let pages = of.map_or(&[][..], |space| space.contexts.pages(image));
        let number = self.next_leaving;
        self.next_leaving += 1;
        let bytes = pages.len() * FRAME as usize;
        let mut missing = 0;
        for (page, at) in (0..).zip(pages) {
            for within in (0..FRAME).step_by(SMALL_PAGE as usize) {
                let token = self.card.tokens.next();
                let piece = (page * FRAME + within) as usize;
                self.volatile.kept.insert(token, (number, piece));
                missing += 1;
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar3,
                    offset: self.card.arena.window(at.offset(within)),
                    bytes: SMALL_PAGE as u32,
                });
            }
        }
        let keeping = Keeping {
            vm,
            space,
            image,
            ticket: context.ticket,
            then,
            content: vec![0; bytes],
            missing,
        };
        self.keeping.insert(number, keeping);
        if missing == 0 {
            self.end_keeping(number, cx);
        }
    }

    /// Takes a piece of an image that is kept; `false` if the value belongs to somebody else.
    pub(super) fn kept_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let Some((number, at)) = self.volatile.kept.remove(&token) else {
            return false;
        };
        if let Some(keeping) = self.keeping.get_mut(&number) {
            if let Some(piece) = keeping.content.get_mut(at..at + data.len()) {
                piece.copy_from_slice(data);
            }
            keeping.missing = keeping.missing.saturating_sub(1);
            if keeping.missing == 0 {
                self.end_keeping(number, cx);
            }
        }
        true
    }

    fn end_keeping(&mut self, number: u64, cx: &mut Cx<'_>) {
        let Some(keeping) = self.keeping.remove(&number) else {
            return;
        };
        let Keeping { vm, space, image, .. } = keeping;
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let used = vgpu.tickets();
        vgpu.kept.keep(keeping.ticket, keeping.content, &used);
        if vgpu.given_up.is_none() {
            self.drop_image(vm, space, image, cx);
        }
        match keeping.then {
            Then::Left => self.drop_user(vm, space),
            Then::Parked(physical) => self.image_kept(physical, keeping.ticket, cx),
        }
        self.volatile.ready.insert(vm);
    }

    /// Nothing of the VM's reads the image any more: out of the space, and free when the TLB has forgotten it.
    fn drop_image(&mut self, vm: VmId, space: SpaceId, image: ImageNo, cx: &mut Cx<'_>) {
        let removed = self.on_shadows(vm, "taking an image away", cx, |shadows| {
            let space = shadows.spaces.get_mut(&space)?;
            let pages = space.contexts.remove(image, shadows.writer);
            Some((space.shadow.directory(), pages))
        });
        let Some((Some((directory, pages)), _)) = removed else {
            return;
        };
        let pages = pages.into_iter().map(|at| TableRange { at, bytes: FRAME });
        let number = self.next_leaving;
        self.next_leaving += 1;
        let gone = GonePages {
            vm,
            pages: pages.collect(),
        };
        self.pages_leaving.insert(number, gone);
        self.card.flush_tlb(Some(directory), Job::PagesFlushed(number));
    }

    /// The TLB has forgotten pages that no entry leads to.
    pub(super) fn pages_flushed(&mut self, number: u64) {
        if let Some(gone) = self.pages_leaving.remove(&number) {
            self.free_tables(gone.vm, &gone.pages);
            if let Some(vgpu) = self.vms.get_mut(&gone.vm) {
                vgpu.image_at = Tick::default();
            }
        }
    }
}
