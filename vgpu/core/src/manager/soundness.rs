//! What the parts of the manager rely on of each other, checked when a state is read: each frame, each page of the arena
//! and each bus address has one owner, and whoever is named is there.

use std::collections::BTreeSet;

use fermi_spec::addr::{FRAME, FrameNo, VramAddr};
use fermi_spec::instance::{CHANNELS, INSTANCE_BYTES};
use shadow_pt::{ShadowConfig, TableRange};

use super::mover::{CopyWork, Move, Stage};
use super::running::Running;
use super::teardown::Leaving;
use crate::config::GpuConfig;
use crate::device::{Vgpu, promised_slots};
use crate::event::VmId;
use crate::host::lending::CHANNELS_USABLE;
use crate::memory::ChunkNo;
use crate::saved::Unsound;

impl Running {
    /// Checks a state that was read, under the settings that it is to go on with.
    pub(super) fn check(&self, config: &GpuConfig) -> Result<(), Unsound> {
        self.layout.check()?;
        for (&vm, vgpu) in self.sound_vms() {
            let leaving = self.leaving_of(vm).map(|leaving| &leaving.channel);
            let keeping = self.keeping.values().filter(|keeping| keeping.vm == vm);
            let of_left = keeping.clone().filter(|keeping| keeping.is_of_left());
            let users = leaving.clone().map(|channel| channel.space);
            let users = users.chain(of_left.map(|keeping| keeping.space));
            let images = leaving.filter_map(|channel| Some((channel.space, channel.image?)));
            let images = images.chain(keeping.map(|keeping| (keeping.space, keeping.image)));
            vgpu.check(vm, users, images).map_err(|unsound| unsound.of(vm))?;
            let held: u64 = self.arena_of(vgpu).map(|(_, bytes)| bytes).sum();
            Unsound::unless(held == vgpu.shadow.held, "shadow memory held by a VM")
                .map_err(|unsound| unsound.of(vm))?;
        }
        self.check_leaving()?;
        let held = self.sound_vms().flat_map(|(&vm, vgpu)| {
            let ranges = self.arena_of(vgpu);
            ranges.map(move |(at, bytes)| (at, bytes, Some(vm)))
        });
        let of_others = self.given_up_vms().flat_map(|vm| {
            let ranges = self.card.arena.held_by(vm);
            ranges.map(move |(at, bytes)| (at, bytes, Some(vm)))
        });
        self.card.check(self.layout, held.chain(of_others))?;
        self.check_lending()?;
        let spans = self.sound_vms().map(|(&vm, vgpu)| {
            let (start, bytes) = vgpu.bus.span();
            (start, bytes, vm)
        });
        self.iova.check(&config.bus, spans)?;
        for demand in self.demands.iter() {
            let vgpu = self.vms.get(&demand.vm);
            let exist =
                vgpu.is_some_and(|vgpu| demand.chunks.iter().all(|&chunk| vgpu.chunks.contains(chunk)));
            Unsound::unless(exist, "chunks are demanded that do not exist")?;
        }
        if let Some(claim) = self.claim {
            let free = u64::from(self.frames.free_count()) * FRAME;
            let fits = self.vms.contains_key(&claim.vm) && claim.bytes <= free;
            Unsound::unless(fits, "frames are claimed that are not free, or by nobody")?;
        }
        for (&vm, vgpu) in self.sound_vms() {
            self.mover.check_begun(vm, &vgpu.chunks)?;
        }
        for moving in self.mover.all() {
            self.check_move(moving).map_err(|unsound| unsound.of("move"))?;
        }
        self.check_frames()
    }

    /// What VMs were promised and lent of the card is what their settings and the card's own lists say.
    fn check_lending(&self) -> Result<(), Unsound> {
        let channels = self.vms.iter().map(|(&vm, vgpu)| {
            let held = self.card.channels_held(vm) as u32;
            (vm, (held, vgpu.config.channels))
        });
        let lending = self.card.lending.check(CHANNELS_USABLE, &channels.collect());
        lending.map_err(|unsound| unsound.of("channels"))?;
        let slots = self.vms.iter();
        let slots = slots.map(|(&vm, vgpu)| (vm, promised_slots(vgpu.config.guest_vram, &self.card.graph)));
        let arena = self.card.arena.check_lending(slots);
        arena.map_err(|unsound| unsound.of("arena"))
    }

    /// The accounts of a VM that is given up are not believed: what it holds is what the allocators say.
    fn sound_vms(&self) -> impl Iterator<Item = (&VmId, &Vgpu)> {
        self.vms.iter().filter(|(_, vgpu)| vgpu.given_up.is_none())
    }

    fn given_up_vms(&self) -> impl Iterator<Item = VmId> {
        let given_up = self.vms.iter().filter(|(_, vgpu)| vgpu.given_up.is_some());
        given_up.map(|(&vm, _)| vm)
    }

    fn leaving_of(&self, vm: VmId) -> impl Iterator<Item = &Leaving> + Clone {
        self.leaving.values().filter(move |leaving| leaving.vm == vm)
    }

    /// All ranges of the arena that are charged to a VM.
    fn arena_of(&self, vgpu: &Vgpu) -> impl Iterator<Item = (VramAddr, u64)> {
        let vm = vgpu.id;
        let blocks = self
            .leaving_of(vm)
            .map(|leaving| (leaving.channel.instance, INSTANCE_BYTES));
        let spaces = self.spaces_leaving.values().filter(move |gone| gone.vm == vm);
        let moving = self.mover.all().filter(move |moving| moving.head.vm == vm);
        let freed = moving.flat_map(|moving| {
            let of_stage: &[TableRange] = match &moving.stage {
                Stage::Redirecting { freed, .. } | Stage::Resuming { freed, .. } => freed,
                _ => &[],
            };
            let first = moving.head.first_half.iter().flat_map(|first| &first.freed);
            of_stage.iter().chain(first)
        });
        let of_spaces = spaces.flat_map(|gone| gone.shadow.tables().chain(gone.contexts.ranges()));
        let pages = self.pages_leaving.values().filter(move |gone| gone.vm == vm);
        let pages = pages.flat_map(|gone| gone.pages.iter().copied());
        let tables = of_spaces.chain(freed.copied()).chain(pages);
        let tables = tables.map(|range| (range.at, range.bytes));
        vgpu.arena_ranges().chain(blocks).chain(tables)
    }

    /// What is on its way off the card is a VM's, and what the card's channels say fits.
    fn check_leaving(&self) -> Result<(), Unsound> {
        for (number, gone) in &self.spaces_leaving {
            let vgpu = self.vms.get(&gone.vm).filter(|_| *number < self.next_leaving);
            let vgpu = vgpu.ok_or_else(|| Unsound::new("a space leaves that is nobody's"))?;
            gone.shadow
                .check(ShadowConfig::for_guest_vram(vgpu.config.guest_vram))?;
            gone.contexts.check_memory()?;
        }
        let bound = self.vms.iter().flat_map(|(&vm, vgpu)| {
            vgpu.channels
                .iter()
                .map(move |(&v, channel)| (channel.physical, vm, Some(v)))
        });
        let leaving = self
            .leaving
            .iter()
            .map(|(&physical, leaving)| (physical, leaving.vm, None));
        let mut used = BTreeSet::new();
        for (physical, vm, v) in bound.chain(leaving) {
            let owner = self.card.owner_of(physical.0);
            let fits = owner.is_some_and(|(owner, number)| owner == vm && v.is_none_or(|v| v == number));
            Unsound::unless(
                fits && used.insert(physical),
                "a channel of the card is another's",
            )?;
        }
        let owned = (0..CHANNELS as u8).filter(|&physical| self.card.owner_of(physical).is_some());
        Unsound::unless(owned.count() == used.len(), "a channel of the card is nobody's")?;
        let is_there = |leaving: &Leaving| self.vms.contains_key(&leaving.vm);
        Unsound::unless(
            self.leaving.values().all(is_there),
            "a channel leaves that is nobody's",
        )
    }

    fn check_move(&self, moving: &Move) -> Result<(), Unsound> {
        let head = &moving.head;
        let vgpu = self.vms.get(&head.vm);
        let vgpu = vgpu.ok_or_else(|| Unsound::new("of a VM that is not there"))?;
        let chunks: BTreeSet<ChunkNo> = head.chunks.iter().copied().collect();
        let standing: BTreeSet<ChunkNo> = head.standing().collect();
        let exist = standing.len() == head.chunks.len() + head.then.len()
            && standing.iter().all(|&chunk| vgpu.chunks.contains(chunk));
        Unsound::unless(exist, "of chunks that do not exist")?;
        let of_chunks = |frames: &super::mover::ChunkFrames| {
            frames.iter().all(|(chunk, frames)| {
                chunks.contains(chunk) && frames.len() as u32 == vgpu.chunks.frames_of(*chunk)
            })
        };
        Unsound::unless(of_chunks(&head.targets), "into frames that do not fit")?;
        let is_within = |part: &std::ops::Range<u32>| {
            let frames = chunks.first().map_or(0, |&chunk| vgpu.chunks.frames_of(chunk));
            chunks.len() == 1 && !part.is_empty() && part.end <= frames
        };
        Unsound::unless(head.part.iter().all(is_within), "of a part that is none")?;
        match &moving.stage {
            Stage::Mapping { work } | Stage::Copying { work } => match work {
                CopyWork::Engine(runs) => runs.iter().try_for_each(|run| run.check()),
                CopyWork::Window(copy) => copy.check(self.layout, vgpu.config.guest_vram),
            },
            Stage::Redirecting { emptied, .. } | Stage::Resuming { emptied, .. } => {
                Unsound::unless(of_chunks(emptied), "out of frames that do not fit")
            }
            Stage::Reserving { .. }
            | Stage::Preparing
            | Stage::Resting { .. }
            | Stage::Awaiting { .. }
            | Stage::Suspending
            | Stage::Draining { .. }
            | Stage::Verifying { .. }
            | Stage::Abandoned => Ok(()),
        }
    }

    /// Each frame that guests may hold is free or has one owner.
    fn check_frames(&self) -> Result<(), Unsound> {
        let is_sound = |vm: VmId| self.vms.get(&vm).is_some_and(|vgpu| vgpu.given_up.is_none());
        let moves = self.mover.all().filter(|moving| is_sound(moving.head.vm));
        let moving = moves.flat_map(|moving| {
            let emptied = match &moving.stage {
                Stage::Redirecting { emptied, .. } | Stage::Resuming { emptied, .. } => Some(emptied),
                _ => None,
            };
            let frames = std::iter::once(&moving.head.targets).chain(emptied);
            let frames = frames.flat_map(|frames| frames.values()).flatten();
            let left = moving.head.first_half.iter().flat_map(|first| &first.frames);
            frames.chain(left).map(|&frame| (frame, moving.head.vm))
        });
        let held = self.sound_vms().flat_map(|(&vm, vgpu)| {
            let frames = vgpu.chunks.frames();
            frames.map(move |frame| (frame, vm))
        });
        let of_others = self.given_up_vms().flat_map(|vm| {
            let frames = self.frames.held_by(vm);
            frames.map(move |frame| (frame, vm))
        });
        let mut owners = vec![None; self.layout.frames as usize];
        for (frame, vm) in held.chain(moving).chain(of_others) {
            let is_new = self.layout.is_usable(frame.0) && owners[frame.0 as usize].replace(vm).is_none();
            Unsound::unless(is_new, "a frame has two owners, or is no guest's")?;
        }
        self.frames.check(self.layout.frames, |frame: FrameNo| {
            let owner = owners[frame.0 as usize];
            (owner.is_some() || !self.layout.is_usable(frame.0)).then_some(owner)
        })
    }
}
