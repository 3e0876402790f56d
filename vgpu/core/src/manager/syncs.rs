//! Sync points: the guest's TLB flush and the binding of a channel.
//!
//! ```text
//! Read ──all pages at hand──► Back ──all chunks backed──► (build) ──► Flush ──────────────► answered
//!   ▲ └ page in VRAM: fetch ┐   └ chunk moving or unbacked: wait         └─► Bind: wait ─┘
//!   └───────────────────────┘                                a channel is bound, memory moves
//! ```
//!
//! Each table is read once, into the shadow's snapshot; what was checked is what is used.

use std::collections::BTreeMap;

use planted::Fault;
use shadow_pt::{Refresh, TableAt, TablePages, TableRange};

use super::Cx;
use super::requests::{Step, reader};
use super::running::Running;
use crate::device::tables::{ArenaWriter, Dirt, Whereabouts};
use crate::device::{Blocked, Queued, Space, SpaceId, SyncCause, SyncPoint, SyncStage, Vgpu};
use crate::event::{Action, Reply, Tick, VmId};
use crate::host::Job;
use crate::memory::{ChunkNo, ChunkPlace, GuestPage, Reach};
use crate::notice::{Notice, SyncWait};
use crate::policy::{Observation, Worth};

/// Directory, tables, and one more for luck: more rounds than levels means that pages move under the fetches.
const ROUNDS_MAX: u32 = 16;

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
        if sync.has_all_pages() && self.read_tables(vm, &mut sync, cx) {
            sync.stage = SyncStage::Back { waits: None };
        }
        let is_back = matches!(sync.stage, SyncStage::Back { .. });
        if is_back && sync.goes_on(vm, self.backed(vm, &sync, cx), cx) {
            if planted::is(Fault::SyncNotBuilt) && matches!(sync.cause, SyncCause::Flush) {
                return self.finish_sync(vm, *sync, cx);
            }
            let Some(mut freed) = self.build(vm, &sync, cx) else {
                return self.finish_sync(vm, *sync, cx);
            };
            if planted::is(Fault::TablesFreeBeforeFlush) {
                self.free_tables(vm, &std::mem::take(&mut freed));
            }
            sync.stage = SyncStage::Flush { freed };
            let directory = match (sync.spaces.as_slice(), self.vms.get(&vm)) {
                ([one], Some(vgpu)) => vgpu.spaces.get(one).map(|space| space.shadow.directory()),
                _ => None,
            };
            self.card.flush_tlb(directory, Job::SyncFlushed(vm));
        }
        if matches!(sync.stage, SyncStage::Bind { .. }) {
            let wait = self.mover.moves(vm).then_some(SyncWait::Move);
            if sync.goes_on(vm, wait, cx) {
                return self.finish_sync(vm, *sync, cx);
            }
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.blocked = Some(Blocked::Sync(sync));
        }
        None
    }

    /// Reads what changed. `false`: pages are being fetched.
    fn read_tables(&mut self, vm: VmId, sync: &mut SyncPoint, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return true;
        };
        let mut missing = Vec::new();
        for id in &sync.spaces {
            // Out of the map while it is refreshed, so that the others can be asked whether they reach a page.
            let Some(mut space) = vgpu.spaces.remove(id) else {
                continue;
            };
            let own: Vec<_> = space
                .shadow
                .referenced()
                .filter(|(_, reach)| reach.writable)
                .map(|(frame, _)| frame)
                .collect();
            let dirt = Dirt {
                stored: &vgpu.stored,
                seen: space.seen,
                spaces: &vgpu.spaces,
                own: &|frame| own.binary_search(&frame).is_ok(),
            };
            let mut reader = reader(vgpu, cx.memory);
            let refresh = space.shadow.refresh(&mut reader, &dirt);
            match refresh {
                Refresh::Done(_) => space.seen = vgpu.stores,
                Refresh::Missing(pages) => {
                    missing.append(&mut reader.missing);
                    missing.extend(pages.into_iter().filter_map(|page| match page {
                        TableAt::Vram(at) => Some(GuestPage::of(at)),
                        TableAt::Ram(_) => None,
                    }));
                }
            }
            vgpu.spaces.insert(*id, space);
        }
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            if !planted::is(Fault::FetchedTableKept) {
                vgpu.fetched.clear();
            }
            return true;
        }
        if !sync.begins_round() {
            self.guest_error(
                vm,
                || "page tables that change place while they are read".to_owned(),
                cx,
            );
            return true;
        }
        let pages = self.fetch(vm, &missing, cx);
        if let SyncStage::Read { fetching, .. } = &mut sync.stage {
            *fetching = pages;
        }
        // What moved out of VRAM since can be read right away.
        sync.has_all_pages() && self.read_tables(vm, sync, cx)
    }

    /// Asks for memory behind everything that the changed entries name. What is to be waited for; `None` if all of it has
    /// memory and stands still.
    fn backed(&mut self, vm: VmId, sync: &SyncPoint, cx: &mut Cx<'_>) -> Option<SyncWait> {
        if self.mover.moves(vm) {
            return Some(SyncWait::Move);
        }
        let vgpu = self.vms.get(&vm)?;
        let mut wanted: Vec<ChunkNo> = Vec::new();
        for id in &sync.spaces {
            let Some(space) = vgpu.spaces.get(id) else {
                continue;
            };
            for (frame, _) in space.shadow.pending_frames() {
                let chunk = vgpu.chunks.of_frame(frame);
                wanted.extend(chunk.filter(|&chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Unbacked));
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return None;
        }
        self.demand(vm, wanted, cx.now);
        Some(SyncWait::Memory)
    }

    /// Translates into the shadow tables. The tables that were given up, to be free after the flush; `None` if nothing was
    /// written.
    fn build(&mut self, vm: VmId, sync: &SyncPoint, cx: &mut Cx<'_>) -> Option<Vec<TableRange>> {
        let vgpu = self.vms.get_mut(&vm)?;
        let mut entries = 0;
        let mut freed = Vec::new();
        for id in &sync.spaces {
            let Some(space) = vgpu.spaces.get_mut(id) else {
                continue;
            };
            let places = Whereabouts {
                chunks: &vgpu.chunks,
                ram: &vgpu.ram,
                leaving: None,
            };
            let mut writer = ArenaWriter::new();
            let mut budget = vgpu.shadow.pages(&mut self.card.arena);
            let mut built = space.shadow.build(&places, &mut budget, &mut writer);
            writer.emit(&self.card.arena, cx.actions);
            entries += built.entries;
            freed.append(&mut built.freed);
        }
        self.count_reach(vm, cx.now);
        (entries > 0 || !freed.is_empty()).then_some(freed)
    }

    /// Counts anew which chunks the VM's channels reach.
    pub(super) fn count_reach(&mut self, vm: VmId, now: Tick) {
        let Some(Vgpu {
            chunks,
            spaces,
            synced_at,
            ..
        }) = self.vms.get_mut(&vm)
        else {
            return;
        };
        *synced_at = Some(now);
        chunks.clear_reach();
        for space in spaces.values() {
            for (frame, reach) in space.shadow.referenced() {
                let Some(chunk) = chunks.of_frame(frame) else {
                    continue;
                };
                let reach = if reach.writable {
                    Reach::Writable
                } else {
                    Reach::ReadOnly
                };
                chunks.widen_reach(chunk, reach);
            }
        }
        for (chunk, reach) in chunks.note_reach(now) {
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
            Some(Blocked::Sync(mut sync)) if matches!(sync.stage, SyncStage::Flush { .. }) => {
                // A move that began since the tables were built knows nothing of a channel that may write its chunks.
                if sync.binds() && moves {
                    sync.wait_to_bind();
                    vgpu.blocked = Some(Blocked::Sync(sync));
                } else {
                    self.finish_sync(vm, *sync, cx);
                }
                self.volatile.ready.insert(vm);
            }
            other => vgpu.blocked = other,
        }
    }

    /// Frees what the build gave up, does what the sync was for, answers or goes on with the rest of the access.
    fn finish_sync(&mut self, vm: VmId, sync: SyncPoint, cx: &mut Cx<'_>) -> Option<Step> {
        if let SyncStage::Flush { freed } | SyncStage::Bind { freed, .. } = &sync.stage {
            self.free_tables(vm, freed);
        }
        if let SyncCause::Bind {
            channel,
            instance,
            space,
            block,
        } = &sync.cause
        {
            self.bind(vm, *channel, *instance, *space, block, cx);
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

    /// Shadow tables that the TLB has forgotten.
    pub(super) fn free_tables(&mut self, vm: VmId, freed: &[TableRange]) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let mut budget = vgpu.shadow.pages(&mut self.card.arena);
        for range in freed {
            budget.free(range.at, range.bytes);
        }
    }

    /// A new shadow space for a guest directory; `None` if the VM has no shadow memory left.
    pub(super) fn add_space(
        &mut self,
        vm: VmId,
        directory: shadow_pt::GuestDirectory,
        cx: &mut Cx<'_>,
    ) -> Option<SpaceId> {
        let vgpu = self.vms.get_mut(&vm)?;
        let config = shadow_pt::ShadowConfig::for_guest_vram(vgpu.config.guest_vram);
        let mut writer = ArenaWriter::new();
        let mut budget = vgpu.shadow.pages(&mut self.card.arena);
        let shadow = shadow_pt::ShadowSpace::new(directory, config, &mut budget, &mut writer).ok()?;
        writer.emit(&self.card.arena, cx.actions);
        let id = SpaceId(vgpu.next_space);
        vgpu.next_space += 1;
        vgpu.spaces.insert(
            id,
            Space {
                shadow,
                users: 0,
                seen: 0,
            },
        );
        Some(id)
    }
}

impl SyncPoint {
    fn binds(&self) -> bool {
        matches!(self.cause, SyncCause::Bind { .. })
    }

    /// The flush is over, and the channel is bound later.
    fn wait_to_bind(&mut self) {
        if let SyncStage::Flush { freed } = &mut self.stage {
            let freed = std::mem::take(freed);
            self.stage = SyncStage::Bind { freed, waits: None };
        }
    }

    /// Notes what it waits for, and tells of a wait that is over. `true`: it waits for nothing more.
    fn goes_on(&mut self, vm: VmId, wait: Option<SyncWait>, cx: &mut Cx<'_>) -> bool {
        let (SyncStage::Back { waits } | SyncStage::Bind { waits, .. }) = &mut self.stage else {
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
                rounds: 0,
            },
        }
    }

    /// Whether it reads tables, and no page of them is on its way.
    fn has_all_pages(&self) -> bool {
        matches!(&self.stage, SyncStage::Read { fetching, .. } if fetching.is_empty())
    }

    /// Counts a round of fetching. `false`: it is one too many.
    fn begins_round(&mut self) -> bool {
        let SyncStage::Read { rounds, .. } = &mut self.stage else {
            return false;
        };
        *rounds += 1;
        *rounds <= ROUNDS_MAX
    }
}
