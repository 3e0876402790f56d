//! Guest channels on the card: binding through shadow instance blocks, running, preempting, the one runlist.

use fermi_spec::addr::VramAddr;
use fermi_spec::instance::{AddressSpacePointer, CHANNELS, INSTANCE_BYTES, offset, userd};
use fermi_spec::regs::pfifo::{self, ChannelInstance, RunlistBase};
use planted::Fault;
use shadow_pt::{GuestDirectory, TableAt, TablePages, TableRead, TableStore};

use super::Cx;
use super::contexts::GoneSpace;
use super::requests::{Step, reader};
use super::running::Running;
use super::teardown::{Leaving, LeavingStage};
use crate::device::contexts::{Context, Decoy};
use crate::device::{Blocked, Channel, Parked, Queued, SpaceId, SyncCause, SyncPoint};
use crate::event::{Reply, Tick, VmId};
use crate::host::{Job, PhysChannel};
use crate::memory::GuestPage;
use crate::reason::Inconsistency;

/// RAMFC words that are the guest's to choose, copied when the channel is bound: ring, latched state, formats.
/// The others are the broker's (USERD, directory) or zero. From GPUvm's flaws: never copied raw.
const COPIED: [u64; 32] = [
    offset::SIGNATURE,
    offset::GP_GET,
    offset::GET_LO,
    offset::GET_HI,
    offset::TOP_GET_LO,
    offset::TOP_GET_HI,
    offset::REF,
    offset::ACQUIRE_DEADLINE,
    offset::SEMAPHORE_A,
    offset::SEMAPHORE_A + 4,
    offset::SEMAPHORE_A + 8,
    offset::SEMAPHORE_A + 12,
    offset::GP_BASE_LO,
    offset::GP_BASE_HI,
    offset::GP_FETCH,
    offset::PB_FETCH_LO,
    offset::PB_FETCH_HI,
    offset::PUT_LO,
    offset::PUT_HI,
    offset::PB_HEADER,
    offset::PB_COUNT,
    offset::SUBDEVICE,
    offset::FORMATS,
    offset::SUBCHANNELS_LO,
    offset::SUBCHANNELS_HI,
    offset::TARGET,
    offset::WORD_B8,
    offset::METHOD0,
    offset::METHOD0 + 4,
    offset::METHOD0 + 8,
    offset::METHOD0 + 12,
    offset::ACQUIRE,
];
/// Where an instance block has the pointers to what engines keep of the channel.
const CONTEXTS: std::ops::Range<usize> =
    offset::ENGINE_CONTEXTS as usize..offset::ENGINE_CONTEXTS_END as usize;
/// Longest wait of a guest's own preempt in the lane before others get their turn.
const PREEMPT_TURN_NS: u64 = 20_000_000;

impl Running {
    /// The guest put a channel into its table: shadow its address space, then bind it.
    pub(super) fn begin_bind(
        &mut self,
        vm: VmId,
        request: Queued,
        channel: u8,
        entry: ChannelInstance,
        cx: &mut Cx<'_>,
    ) -> Step {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Step::Done(Reply::Done);
        };
        if vgpu.is_bound(channel) {
            vgpu.units.pfifo.error(pfifo::intr::CHANNEL_TABLE);
            self.guest_error(vm, || format!("channel {channel} is bound already"), cx);
            return Step::Done(Reply::Done);
        }
        let instance = TableAt::Vram(fermi_spec::addr::GuestVramAddr(entry.instance().0));
        let mut block = vec![0; INSTANCE_BYTES as usize];
        let mut reader = reader(vgpu, cx.memory);
        match reader.read(instance, &mut block) {
            TableRead::Done => {}
            TableRead::Missing => {
                let missing = reader.missing;
                let pages = self.fetch(vm, &missing, cx);
                return Step::Blocked(Blocked::Fetch { pages, request });
            }
            TableRead::Outside => {
                vgpu.units.pfifo.forget_channel(channel);
                self.guest_error(
                    vm,
                    || format!("instance block of channel {channel} is outside of VRAM"),
                    cx,
                );
                return Step::Done(Reply::Done);
            }
        }
        let pointer =
            AddressSpacePointer::from_words([0, 4, 8, 12].map(|word| word_at(&block, offset::PD_LO + word)));
        let directory = GuestDirectory::from_pointer(pointer);
        let decoy = match self.find_decoy(vm, &block[CONTEXTS], directory, cx) {
            Ok(decoy) => decoy,
            Err(wait) => return Step::Blocked(wait.block(request)),
        };
        let space = directory.and_then(|directory| {
            let known = self.vms.get(&vm)?.space_of(directory.at);
            known.or_else(|| self.add_space(vm, directory, cx))
        });
        let Some(space) = space else {
            self.guest_error(
                vm,
                || format!("no address space for channel {channel}: peer memory, or too many"),
                cx,
            );
            return Step::Done(Reply::Done);
        };
        if let Some(space) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.spaces.get_mut(&space)) {
            space.users += 1;
        }
        let cause = SyncCause::Bind {
            channel,
            instance,
            space,
            block,
            decoy,
        };
        let sync = SyncPoint::new(request, cause, vec![space]);
        Step::Blocked(Blocked::Sync(Box::new(sync)))
    }

    /// The address space is shadowed: give the channel a number and an instance block of the broker's. `block` is the guest's, and the image
    /// that it names.
    pub(super) fn bind(
        &mut self,
        vm: VmId,
        channel: u8,
        guest_instance: TableAt,
        space: SpaceId,
        block: (&[u8], Option<Decoy>),
        cx: &mut Cx<'_>,
    ) {
        self.begin_work(vm, channel, block.0);
        let bound = self.try_bind(vm, channel, guest_instance, space, block, cx);
        if bound.is_none() {
            self.end_work(vm, channel);
            self.drop_user(vm, space);
            self.guest_error(
                vm,
                || {
                    format!(
                        "no shadow memory is left to lend for channel {channel} beyond what is promised: more `channels` for this VM"
                    )
                },
                cx,
            );
        }
    }

    fn try_bind(
        &mut self,
        vm: VmId,
        channel: u8,
        guest_instance: TableAt,
        space: SpaceId,
        (block, decoy): (&[u8], Option<Decoy>),
        cx: &mut Cx<'_>,
    ) -> Option<()> {
        let mapped = self.mapped_gp_put(vm, channel, cx);
        let vgpu = self.vms.get_mut(&vm)?;
        let instance = vgpu
            .shadow
            .pages(&mut self.card.arena, vm)
            .allocate(INSTANCE_BYTES)?;
        let has_contexts = has_contexts(&block[CONTEXTS]);
        let physical = self.card.claim_channel(vm, channel);
        let mut pointers = block[CONTEXTS].to_vec();
        let has_number = physical.is_some();
        let (context, image) = self.context_at_bind(vm, space, (&mut pointers, decoy), has_number, cx);
        let vgpu = self.vms.get_mut(&vm)?;
        let directory = vgpu.spaces.get(&space)?.shadow.directory();
        // That of a parked channel is told when it gets a number.
        let userd = physical.map_or(VramAddr(0), |physical| self.card.userd_address(physical));
        let shadow = shadow_block(block, &pointers, userd, directory);
        self.card.arena.write(instance, shadow, cx.actions);
        let runnable = vgpu.units.pfifo.channel_state(channel).runnable();
        let told = vgpu.userd.remove(&(channel, userd::GP_PUT as u16));
        let gp_put = mapped.or(told).filter(|&put| put != 0);
        let given = self.held_at_bind(vm, channel, gp_put, cx.now);
        let vgpu = self.vms.get_mut(&vm)?;
        let Some(physical) = physical else {
            let parked = Parked {
                guest_instance,
                instance,
                space,
                runnable,
                gp_put,
                engine: None,
                has_contexts,
                context,
                wants_since: gp_put.map(|_| cx.now),
            };
            vgpu.remember_parked(channel, parked);
            self.watch_channel(vm, channel, true, cx);
            return Some(());
        };
        let state = Channel {
            runnable,
            gp_put,
            given,
            has_contexts,
            context,
            image,
            bound_at: cx.now,
            ..Channel::new(physical, guest_instance, instance, space)
        };
        let runs = runnable && state.may_run() && !vgpu.hold.is_suspended;
        self.card.bind(physical, instance, &[], runs);
        if let Some(gp_put) = given.or(gp_put) {
            self.card.ring_later(physical, gp_put);
        }
        vgpu.channels.insert(channel, state);
        self.watch_channel(vm, channel, true, cx);
        if gp_put.is_some() {
            self.note_work_at_bind(vm, channel, cx.now);
        }
        Some(())
    }

    fn note_work_at_bind(&mut self, vm: VmId, channel: u8, now: Tick) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        self.pass_wanted |= vgpu.note_doorbell(channel, now);
        self.expect_progress(vm, channel, now);
        self.work_came(vm, channel, now);
    }

    /// A bound channel is in the card's table: now the runlist may name it.
    pub(super) fn in_table(&mut self, physical: PhysChannel) {
        let Some((vm, v)) = self.card.owner_of(physical.0) else {
            return;
        };
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(bound) = vgpu
            .channels
            .get_mut(&v)
            .filter(|bound| bound.physical == physical)
        else {
            return;
        };
        bound.in_table = true;
        // From here on the card's page is what USERD shows.
        vgpu.forget_userd(v);
        if vgpu.runlist.contains(&v) {
            self.commit_host_runlist(Job::Nothing);
        }
    }

    /// The guest allows or forbids a channel to run.
    pub(super) fn channel_state(
        &mut self,
        vm: VmId,
        request: Queued,
        channel: u8,
        run: bool,
        cx: &mut Cx<'_>,
    ) -> Step {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Step::Done(Reply::Done);
        };
        let Some((instance, guest_instance)) = vgpu.blocks_of(channel) else {
            return Step::Done(Reply::Done);
        };
        let mut contexts: Option<(bool, Option<Context>)> = None;
        if run {
            // nouveau changes the engine contexts while the channel is stopped: they count from here.
            let length = (offset::ENGINE_CONTEXTS_END - offset::ENGINE_CONTEXTS) as usize;
            let mut words = vec![0; length];
            let mut reader = reader(vgpu, cx.memory);
            match reader.read(guest_instance.offset(offset::ENGINE_CONTEXTS), &mut words) {
                TableRead::Done => {
                    let has_contexts = has_contexts(&words);
                    let Some((space, context)) = vgpu.context_of(channel) else {
                        return Step::Done(Reply::Done);
                    };
                    let directory = vgpu.spaces.get(&space).map(|of| of.shadow.guest_directory());
                    let decoy = match self.find_decoy(vm, &words, directory, cx) {
                        Ok(decoy) => decoy,
                        Err(wait) => return Step::Blocked(wait.block(request)),
                    };
                    let after = self.context_of(vm, context, decoy, &words, cx);
                    contexts = Some((has_contexts, after));
                    let image = self.change_context(vm, channel, (context, after), cx);
                    self.point_to(vm, space, image, &mut words);
                    let at = instance.offset(offset::ENGINE_CONTEXTS);
                    let written = self.card.arena.write_for(vm, at, words, cx.actions);
                    self.believe(vm, written);
                }
                TableRead::Missing => {
                    let missing = reader.missing;
                    let pages = self.fetch(vm, &missing, cx);
                    return Step::Blocked(Blocked::Fetch { pages, request });
                }
                TableRead::Outside => {}
            }
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Step::Done(Reply::Done);
        };
        let is_held = vgpu.hold.is_suspended;
        if let Some(parked) = vgpu.parked.get_mut(&channel) {
            parked.runnable = run;
            (parked.has_contexts, parked.context) = contexts.unwrap_or((parked.has_contexts, parked.context));
        }
        let Some(bound) = vgpu.channels.get_mut(&channel) else {
            return Step::Done(Reply::Done);
        };
        bound.runnable = run;
        (bound.has_contexts, bound.context) = contexts.unwrap_or((bound.has_contexts, bound.context));
        if bound.may_run() && !is_held {
            let physical = bound.physical;
            if run {
                self.card.start(physical)
            } else {
                self.card.disable(physical)
            }
        }
        Step::Done(Reply::Done)
    }

    /// The guest hands over a runlist.
    pub(super) fn runlist_commit(
        &mut self,
        vm: VmId,
        request: Queued,
        base: RunlistBase,
        count: u16,
        cx: &mut Cx<'_>,
    ) -> Step {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Step::Done(Reply::Done);
        };
        let Some(at) = TableAt::from_aperture(base.aperture(), base.address()) else {
            self.guest_error(vm, || "runlist in another card's memory".to_owned(), cx);
            return Step::Done(Reply::Done);
        };
        // 12 bits of count; more entries than channels can only repeat some.
        let mut list = vec![0; usize::from(count).min(2 * CHANNELS) * pfifo::RUNLIST_ENTRY_BYTES as usize];
        let mut reader = reader(vgpu, cx.memory);
        match reader.read(at, &mut list) {
            TableRead::Done => {}
            TableRead::Missing => {
                let missing: Vec<GuestPage> = reader.missing;
                let pages = self.fetch(vm, &missing, cx);
                return Step::Blocked(Blocked::Fetch { pages, request });
            }
            TableRead::Outside => {
                self.guest_error(vm, || format!("runlist at {at}, outside of memory"), cx);
                return Step::Done(Reply::Done);
            }
        }
        let mut channels: Vec<u8> = Vec::new();
        let mut strange = 0;
        for entry in list.chunks_exact(pfifo::RUNLIST_ENTRY_BYTES as usize) {
            let id = word_at(entry, 0);
            match u8::try_from(id) {
                Ok(id) if usize::from(id) < CHANNELS && !channels.contains(&id) => channels.push(id),
                _ => strange += 1,
            }
        }
        if strange > 0 {
            self.guest_error(
                vm,
                || format!("{strange} runlist entries name no channel, or one twice"),
                cx,
            );
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.runlist = channels;
            vgpu.units.pfifo.runlist_pending = true;
        }
        self.commit_host_runlist(Job::Runlist(vm));
        Step::Done(Reply::Done)
    }

    pub(super) fn runlist_taken(&mut self, vm: VmId) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.units.pfifo.runlist_done();
        }
    }

    /// One list from all guests': the VMs take turns, each in its own order, and each as long as its weight says.
    pub(super) fn commit_host_runlist(&mut self, job: Job) {
        let slices = self.time_slices();
        for vgpu in self.vms.values_mut() {
            let slice = slices.get(&vgpu.id).copied().unwrap_or_default();
            for channel in vgpu.channels.values_mut().filter(|channel| channel.in_table) {
                if channel.slice != slice {
                    channel.slice = slice;
                    self.card
                        .write_later(channel.instance.offset(offset::TIMESLICE), slice.into_bits());
                }
            }
        }
        let lists: Vec<Vec<PhysChannel>> = self.vms.values().map(|vgpu| vgpu.eligible().collect()).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let list: Vec<PhysChannel> = (0..longest)
            .flat_map(|i| lists.iter().filter_map(move |list| list.get(i).copied()))
            .collect();
        self.card.commit_runlist(&list, job);
    }

    /// An operator holds the VM's channels, or lets them go.
    pub(super) fn hold_channels(&mut self, vm: VmId) {
        let Some(vgpu) = self.vms.get(&vm) else { return };
        let is_held = vgpu.hold.is_suspended;
        let channels = vgpu.channels.values();
        // Those that stand still for a move are put back behind it, if they are not held then.
        let there: Vec<_> = channels
            .filter(|channel| channel.may_run())
            .map(|channel| (channel.physical, channel.runnable, channel.due()))
            .collect();
        for (physical, runnable, _) in &there {
            match is_held {
                true => self.card.disable(*physical),
                false if *runnable => self.card.start(*physical),
                false => {}
            }
        }
        self.commit_host_runlist(Job::Nothing);
        for (physical, _, gp_put) in there {
            if let Some(gp_put) = gp_put.filter(|_| !is_held) {
                self.card.ring_later(physical, gp_put);
            }
        }
    }

    /// The guest takes a channel off the engines.
    pub(super) fn preempt(&mut self, vm: VmId, channel: u8, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        match vgpu.channels.get_mut(&channel) {
            Some(bound) if bound.preempting => {}
            // It is on its way off the card anyway, see `parking`.
            Some(bound) if bound.parking => bound.preempting = true,
            Some(bound) if !bound.suspended && !bound.killed => {
                bound.preempting = true;
                let physical = bound.physical;
                self.card
                    .preempt(physical, PREEMPT_TURN_NS, Job::Preempted(vm, channel));
            }
            None => self.save_block(vm, channel, cx),
            Some(_) => vgpu.units.pfifo.preempt_done(channel),
        }
    }

    pub(super) fn preempted(&mut self, vm: VmId, channel: u8, ok: bool, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        if let Some(bound) = vgpu.channels.get_mut(&channel) {
            bound.preempting = false;
        }
        if ok {
            self.save_block(vm, channel, cx);
        } else {
            // Still running: to the end of the lane, so that others' preempts get their turn.
            self.preempt(vm, channel, cx);
        }
    }

    /// A channel leaves the card: off the runlist, off the engines, out of the table; then its memory is free.
    pub(super) fn unbind(&mut self, vm: VmId, channel: u8, cx: &mut Cx<'_>) {
        if self.unbind_parked(vm, channel, cx) {
            return self.clear_userd(vm, channel, cx);
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(bound) = vgpu.channels.remove(&channel) else {
            return;
        };
        self.end_work(vm, channel);
        let physical = bound.physical;
        if self.card.owner_of(physical.0) != Some((vm, channel)) {
            let part = format!("channel {} of the card", physical.0);
            return self.inconsistent(vm, Inconsistency::NotHeld { part });
        }
        self.leave_card(vm, bound);
        self.clear_userd(vm, channel, cx);
    }

    pub(super) fn leave_card(&mut self, vm: VmId, channel: Channel) {
        let physical = channel.physical;
        let stage = LeavingStage::OffList;
        self.leaving.insert(physical, Leaving { vm, channel, stage });
        self.commit_host_runlist(Job::OffList(physical));
    }

    pub(super) fn unbind_all(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let channels: Vec<u8> = self
            .vms
            .get(&vm)
            .map(|vgpu| vgpu.channels.keys().chain(vgpu.parked.keys()).copied().collect())
            .unwrap_or_default();
        for channel in channels {
            self.unbind(vm, channel, cx);
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.runlist.clear();
        }
    }

    /// A space lost a user; without any it goes, after a flush.
    pub(super) fn drop_user(&mut self, vm: VmId, space: SpaceId) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(entry) = vgpu.spaces.get_mut(&space) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return;
        }
        let Some(gone) = vgpu.spaces.remove(&space) else {
            return;
        };
        vgpu.chunks.forget_reach(&gone.shadow);
        let number = self.next_leaving;
        self.next_leaving += 1;
        self.card
            .flush_tlb(Some(gone.shadow.directory()), Job::SpaceFlushed(number));
        self.spaces_leaving.insert(
            number,
            GoneSpace {
                vm,
                shadow: gone.shadow,
                contexts: gone.contexts,
            },
        );
        if planted::is(Fault::SpaceFreeBeforeFlush) {
            self.space_flushed(number);
        }
        self.volatile.reach_changed.insert(vm);
    }

    pub(super) fn space_flushed(&mut self, number: u64) {
        if let Some(gone) = self.spaces_leaving.remove(&number) {
            self.free_space(gone);
        }
    }
}

/// The block that the card reads: the guest's words where they are the guest's, pointers to contexts, and the broker's USERD and directory.
fn shadow_block(block: &[u8], pointers: &[u8], userd: VramAddr, directory: VramAddr) -> Vec<u8> {
    let mut shadow = crate::host::card::instance_block(userd, fermi_spec::addr::GpuVa(0), 0, directory);
    for at in COPIED {
        let at = at as usize;
        shadow[at..at + 4].copy_from_slice(&block[at..at + 4]);
    }
    shadow[CONTEXTS].copy_from_slice(pointers);
    shadow.to_vec()
}

fn has_contexts(pointers: &[u8]) -> bool {
    pointers.iter().any(|byte| *byte != 0)
}

pub(super) fn word_at(bytes: &[u8], at: u64) -> u32 {
    let at = at as usize;
    bytes
        .get(at..at + 4)
        .map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}
