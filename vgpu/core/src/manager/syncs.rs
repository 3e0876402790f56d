//! Sync points: the guest's TLB flush and the binding of a channel.
//!
//! ```text
//! Read ──all pages at hand──► Seek ──► Back ──all chunks backed──► Build ──► Flush ────────────► answered
//!   ▲ └ page in VRAM: fetch ┐           └ chunk moving or unbacked: wait        └─► Bind: wait ─┘
//!   └───────────────────────┘                                      a channel is bound, memory moves
//! ```
//!
//! Each table is read once, into the shadow's snapshot; what was checked is what is used. The guest decides how much there
//! is to read and to write, so each stage goes in steps and stops when the VM's slice is used up ([`crate::share`]); it
//! goes on with the VM's next turn. What was built so far is in the card's tables then, as it may be with a TLB that is
//! not yet flushed.

use std::collections::{BTreeMap, BTreeSet};

use planted::Fault;
use shadow_pt::{Refresh, TableAt, Work};

use super::Cx;
use super::isolation::Shadows;
use super::requests::{Step, reader};
use super::running::Running;
use crate::config::ShadowMode;
use crate::contained::contained;
use crate::device::contexts::Contexts;
use crate::device::tables::Dirt;
use crate::device::{Blocked, Queued, Space, SpaceId, SyncCause, SyncPoint, SyncStage, TABLES_MAX};
use crate::event::{Action, Reply, Tick, VmId};
use crate::host::Job;
use crate::memory::{ChunkNo, ChunkPlace, GuestPage, Reach};
use crate::notice::{Notice, SyncWait};
use crate::policy::{Observation, Worth};

/// How a step of a sync ended.
enum Next {
    /// Another may follow.
    Goes,
    /// An event brings what it waits for.
    Waits,
    /// There is nothing to wait for: it is to be answered.
    Over,
}

impl Running {
    /// The guest flushed the TLB of one directory, or of all.
    pub(super) fn begin_flush(&mut self, vm: VmId, request: Queued, directory: Option<TableAt>) -> Step {
        let Some(vgpu) = self.vms.get(&vm) else {
            return Step::Done(Reply::Done);
        };
        let spaces: Vec<SpaceId> = match directory {
            Some(at) => vgpu.space_of(at).into_iter().collect(),
            None => vgpu.spaces.keys().copied().collect(),
        };
        if spaces.is_empty() {
            // BAR spaces are walked at each access; a directory that no channel uses is read when one is bound.
            return Step::Done(Reply::Done);
        }
        Step::Blocked(Blocked::Sync(Box::new(SyncPoint::new(
            request,
            SyncCause::Flush,
            spaces,
        ))))
    }

    /// Goes on with a sync. `None`: it waits, and has been put back. `Some(Step::Done)`: it was answered.
    pub(super) fn advance_sync(
        &mut self,
        vm: VmId,
        mut sync: Box<SyncPoint>,
        cx: &mut Cx<'_>,
    ) -> Option<Step> {
        while self.has_turn(vm, cx.now) {
            match self.step_sync(vm, &mut sync, cx) {
                Next::Goes => {}
                Next::Waits => break,
                Next::Over => return self.finish_sync(vm, *sync, cx),
            }
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.blocked = Some(Blocked::Sync(sync));
        }
        None
    }

    fn step_sync(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> Next {
        match &mut sync.stage {
            SyncStage::Read { fetching } if fetching.is_empty() => self.read_tables(vm, sync, cx),
            SyncStage::Read { .. } | SyncStage::Flush => Next::Waits,
            SyncStage::Seek { .. } => self.seek_unbacked(vm, sync),
            SyncStage::Back { .. } => self.await_memory(vm, sync, cx),
            SyncStage::Build => self.build(vm, sync, cx),
            SyncStage::Bind { .. } => {
                let wait = self.mover.moves(vm).then_some(SyncWait::Move);
                match sync.goes_on(vm, wait, cx) {
                    true => Next::Over,
                    false => Next::Waits,
                }
            }
        }
    }

    /// Reads what changed in one space.
    fn read_tables(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> Next {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Next::Over;
        };
        let Some(&id) = sync.spaces.get(sync.spaces_done) else {
            if !planted::is(Fault::FetchedTableKept) {
                vgpu.fetched.clear();
            }
            sync.enter(SyncStage::Seek {
                wanted: BTreeSet::new(),
            });
            return Next::Goes;
        };
        // Out of the map while it is refreshed, so that the others can be asked whether they reach a page.
        let Some(mut space) = vgpu.spaces.remove(&id) else {
            sync.spaces_done += 1;
            return Next::Goes;
        };
        let tables_left = TABLES_MAX.saturating_sub(vgpu.table_count());
        let is_all = self.config.shadow == ShadowMode::FullRescan;
        if is_all {
            space.shadow.build_anew();
        }
        let dirt = Dirt {
            is_all,
            stores: &vgpu.stores,
            seen: space.seen,
            spaces: &vgpu.spaces,
            chunks: &vgpu.chunks,
            live: vgpu.live.as_ref(),
        };
        let mut work = Work::limited(vgpu.share.left());
        let mut tables = reader(vgpu, cx.memory);
        let refresh = contained("reading its tables", || {
            space.shadow.refresh(&mut tables, &dirt, tables_left, &mut work)
        });
        let refresh = match refresh {
            Ok(refresh) => refresh,
            Err(what) => {
                self.inconsistent(vm, what);
                return Next::Over;
            }
        };
        vgpu.share.charge(work.done());
        let mut refused = 0;
        let mut missing = Vec::new();
        match refresh {
            Refresh::Unfinished => {}
            Refresh::Done(changes) => {
                space.seen = vgpu.stores.last();
                sync.spaces_done += 1;
                refused = changes.refused;
            }
            Refresh::Missing(pages) => missing = pages,
        }
        vgpu.spaces.insert(id, space);
        if refused > 0 {
            let what = || {
                format!(
                    "{refused} tables more than the {TABLES_MAX} that are followed, or in the last 128M of an address space, which are the host's: they are absent"
                )
            };
            self.guest_error(vm, what, cx);
        }
        if missing.is_empty() {
            return Next::Goes;
        }
        self.fetch_tables(vm, sync, &missing, cx)
    }

    fn fetch_tables(&mut self, vm: VmId, sync: &mut SyncPoint, missing: &[TableAt], cx: &mut Cx<'_>) -> Next {
        // Pages that were fetched before have been read.
        if let Some(vgpu) = self.vms.get_mut(&vm)
            && !planted::is(Fault::FetchedTableKept)
        {
            vgpu.fetched.clear();
        }
        let pages: Vec<GuestPage> = missing
            .iter()
            .filter_map(|page| match page {
                TableAt::Vram(at) => Some(GuestPage::of(*at)),
                TableAt::Ram(_) => None,
            })
            .collect();
        let fetching = self.fetch(vm, &pages, cx);
        // Pages that have moved out of VRAM since then can be read right away.
        let next = if fetching.is_empty() {
            Next::Goes
        } else {
            Next::Waits
        };
        sync.stage = SyncStage::Read { fetching };
        next
    }

    /// Looks what chunks the changed entries of a space name that have no memory.
    fn seek_unbacked(&mut self, vm: VmId, sync: &mut SyncPoint) -> Next {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Next::Over;
        };
        let SyncStage::Seek { wanted } = &mut sync.stage else {
            return Next::Goes;
        };
        let Some(id) = sync.spaces.get(sync.spaces_done) else {
            let wanted = std::mem::take(wanted);
            sync.enter(SyncStage::Back { wanted, waits: None });
            return Next::Goes;
        };
        let Some(space) = vgpu.spaces.get_mut(id) else {
            sync.spaces_done += 1;
            return Next::Goes;
        };
        let mut work = Work::limited(vgpu.share.left());
        let pending = contained("looking for memory", || space.shadow.pending_frames(&mut work));
        let pending = match pending {
            Ok(pending) => pending,
            Err(what) => {
                self.inconsistent(vm, what);
                return Next::Over;
            }
        };
        vgpu.share.charge(work.done());
        sync.spaces_done += usize::from(pending.is_complete);
        let chunks = pending
            .frames
            .iter()
            .filter_map(|(frame, _)| vgpu.chunks.of_frame(*frame));
        wanted.extend(chunks.filter(|&chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Unbacked));
        Next::Goes
    }

    /// Asks for memory behind everything that the changed entries name, and waits until it is there and stands still.
    fn await_memory(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> Next {
        let SyncStage::Back { wanted, .. } = &mut sync.stage else {
            return Next::Goes;
        };
        let wait = if self.mover.moves(vm) {
            Some(SyncWait::Move)
        } else {
            if let Some(vgpu) = self.vms.get(&vm) {
                wanted.retain(|&chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Unbacked);
            }
            (!wanted.is_empty()).then_some(SyncWait::Memory)
        };
        if wait == Some(SyncWait::Memory) {
            let chunks: Vec<ChunkNo> = wanted.iter().copied().collect();
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.chunks.expect(chunks.iter().copied());
            }
            self.demand(vm, chunks, cx.now);
        }
        if !sync.goes_on(vm, wait, cx) {
            return Next::Waits;
        }
        if planted::is(Fault::SyncNotBuilt) && matches!(sync.cause, SyncCause::Flush) {
            return Next::Over;
        }
        sync.enter(SyncStage::Build);
        Next::Goes
    }

    /// Translates into the shadow tables of a space; when all are done, the card drops its translations, unless nothing
    /// was written.
    fn build(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> Next {
        if self.mover.moves(vm) {
            // It began between two steps.
            let (spaces_done, wanted) = (sync.spaces_done, BTreeSet::new());
            sync.enter(SyncStage::Back { wanted, waits: None });
            sync.spaces_done = spaces_done;
            return Next::Goes;
        }
        let Some(&id) = sync.spaces.get(sync.spaces_done) else {
            return self.flush_built(vm, sync, cx);
        };
        let Some(vgpu) = self.vms.get(&vm) else {
            return Next::Over;
        };
        let mut work = Work::limited(vgpu.share.left());
        let done = self.on_shadows(vm, "building its tables", cx, |shadows| {
            let Shadows {
                spaces,
                places,
                budget,
                writer,
                built,
                ..
            } = shadows;
            let Some(space) = spaces.get_mut(&id) else {
                return true;
            };
            let fresh = space.shadow.build(*places, *budget, *writer, &mut work);
            let is_complete = fresh.is_complete;
            built.add(fresh);
            is_complete
        });
        let Some((is_complete, mut built)) = done else {
            return Next::Over;
        };
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.share.charge(work.done());
        }
        if built.refused > 0 {
            let what = || {
                let refused = built.refused;
                format!(
                    "{refused} pages of 128K are absent: no shadow table is left to lend beyond what it is promised"
                )
            };
            self.guest_error(vm, what, cx);
        }
        sync.wrote |= built.entries > 0;
        sync.freed.append(&mut built.freed);
        sync.spaces_done += usize::from(is_complete);
        Next::Goes
    }

    fn flush_built(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> Next {
        self.end_expecting(vm);
        self.note_reach(vm, cx.now);
        if !sync.wrote && sync.freed.is_empty() {
            return Next::Over;
        }
        if planted::is(Fault::TablesFreeBeforeFlush) {
            self.free_tables(vm, &std::mem::take(&mut sync.freed));
        }
        sync.enter(SyncStage::Flush);
        let directory = match (sync.spaces.as_slice(), self.vms.get(&vm)) {
            ([one], Some(vgpu)) => vgpu.spaces.get(one).map(|space| space.shadow.directory()),
            _ => None,
        };
        self.card.flush_tlb(directory, Job::SyncFlushed(vm));
        Next::Waits
    }

    /// Tells the policy which chunks the VM's channels began or ceased to reach.
    pub(super) fn note_reach(&mut self, vm: VmId, now: Tick) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        vgpu.synced_at = Some(now);
        for (chunk, reach) in vgpu.chunks.note_reach(now) {
            let what = match reach {
                Reach::None => Observation::Idled { vm, chunk },
                Reach::ReadOnly | Reach::Writable => Observation::Reached { vm, chunk, reach },
            };
            self.pass_wanted |= self.policy.observe(&what) == Worth::Pass;
        }
        self.observe(&Observation::Synced { vm });
    }

    pub(super) fn sync_flushed(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let moves = self.mover.moves(vm) && !planted::is(Fault::BoundDuringMove);
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        match vgpu.blocked.take() {
            Some(Blocked::Sync(mut sync)) if matches!(sync.stage, SyncStage::Flush) => {
                // A move that began since the tables were built knows nothing of a channel that may write its chunks.
                if sync.binds() && moves {
                    sync.enter(SyncStage::Bind { waits: None });
                    vgpu.blocked = Some(Blocked::Sync(sync));
                } else {
                    self.finish_sync(vm, *sync, cx);
                }
                self.volatile.ready.insert(vm);
            }
            other => vgpu.blocked = other,
        }
    }

    fn end_expecting(&mut self, vm: VmId) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.chunks.end_expecting();
        }
    }

    /// Frees what the build gave up, does what the sync was for, answers or goes on with the rest of the access.
    fn finish_sync(&mut self, vm: VmId, sync: SyncPoint, cx: &mut Cx<'_>) -> Option<Step> {
        self.end_expecting(vm);
        self.free_tables(vm, &sync.freed);
        if let SyncCause::Bind {
            channel,
            instance,
            space,
            block,
            decoy,
        } = &sync.cause
        {
            self.bind(vm, *channel, *instance, *space, (block, *decoy), cx);
        }
        match (sync.request.rest(), self.vms.get_mut(&vm)) {
            (Some(rest), Some(vgpu)) => vgpu.queue.push_front(rest),
            _ => cx.actions.push(Action::Reply {
                vm,
                request: sync.request.id,
                reply: Reply::Done,
            }),
        }
        Some(Step::Done(Reply::Done))
    }

    /// A new shadow space for a guest directory; `None` if the VM has no shadow memory left.
    pub(super) fn add_space(
        &mut self,
        vm: VmId,
        directory: shadow_pt::GuestDirectory,
        cx: &mut Cx<'_>,
    ) -> Option<SpaceId> {
        let vgpu = self.vms.get(&vm)?;
        let config = shadow_pt::ShadowConfig::for_guest_vram(vgpu.config.guest_vram);
        let shadow = self.on_shadows(vm, "adding an address space", cx, |shadows| {
            shadow_pt::ShadowSpace::new(directory, config, shadows.budget, shadows.writer).ok()
        });
        let shadow = shadow?.0?;
        let vgpu = self.vms.get_mut(&vm)?;
        let id = SpaceId(vgpu.next_space);
        vgpu.next_space += 1;
        vgpu.spaces.insert(
            id,
            Space {
                shadow,
                contexts: Contexts::default(),
                users: 0,
                seen: 0,
                worked_at: None,
            },
        );
        Some(id)
    }
}

impl SyncPoint {
    fn binds(&self) -> bool {
        matches!(self.cause, SyncCause::Bind { .. })
    }

    /// The next stage begins with the first space.
    fn enter(&mut self, stage: SyncStage) {
        self.stage = stage;
        self.spaces_done = 0;
    }

    /// Notes what it waits for, and tells of a wait that is over. `true`: it waits for nothing more.
    fn goes_on(&mut self, vm: VmId, wait: Option<SyncWait>, cx: &mut Cx<'_>) -> bool {
        let (SyncStage::Back { waits, .. } | SyncStage::Bind { waits }) = &mut self.stage else {
            return false;
        };
        let before = waits.map(|(wait, _)| wait);
        if before != wait {
            // Memory that is at hand is met within the event: nobody waited.
            if let Some((wait, since)) = waits.filter(|(_, since)| *since < cx.now) {
                let waited_ns = cx.now.since(since);
                cx.tell(Notice::SyncWaited { vm, wait, waited_ns });
            }
            *waits = wait.map(|wait| (wait, cx.now));
        }
        wait.is_none()
    }

    pub(super) fn new(request: Queued, cause: SyncCause, spaces: Vec<SpaceId>) -> Self {
        Self {
            request,
            cause,
            spaces,
            stage: SyncStage::Read {
                fetching: BTreeMap::new(),
            },
            spaces_done: 0,
            wrote: false,
            freed: Vec::new(),
        }
    }
}
