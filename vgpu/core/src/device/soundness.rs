//! What a vGPU relies on, checked when one is read.

use fermi_spec::addr::{Iova, VramAddr};
use fermi_spec::instance::{CHANNELS, INSTANCE_BYTES};
use shadow_pt::{ShadowConfig, TableRange};

use super::contexts::ImageNo;
use super::{Blocked, Channel, Leave, Parked, Queued, RemapStage, SpaceId, SyncCause, Vgpu};
use crate::event::{ACCESS_BYTES_MAX, REQUESTS_WAITING_MAX, Request, VmId};
use crate::manager::live_windows::LiveWindows;
use crate::memory::GuestPage;
use crate::saved::Unsound;

impl Queued {
    fn check(&self) -> Result<(), Unsound> {
        let (length, answer) = match &self.kind {
            Request::Read { bytes, .. } | Request::ReadConfig { bytes, .. } => {
                let length = (*bytes as usize).min(ACCESS_BYTES_MAX);
                (length, length)
            }
            Request::Write { data, .. } | Request::WriteConfig { data, .. } => (data.len(), 0),
            Request::MapRam { .. } | Request::UnmapRam { .. } | Request::MaskIntx { .. } | Request::Reset => {
                (0, 0)
            }
        };
        let fits = length <= ACCESS_BYTES_MAX && self.done <= length && self.answer.len() == answer;
        Unsound::unless(fits, "the length of an access")
    }
}

impl Blocked {
    pub(crate) fn request(&self) -> &Queued {
        match self {
            Self::Value { request, .. }
            | Self::Fetch { request, .. }
            | Self::Move { request }
            | Self::Demand { request }
            | Self::Context { request }
            | Self::Reset { request } => request,
            Self::Remap(remap) => &remap.request,
            Self::Sync(sync) => &sync.request,
        }
    }

    /// Shadow tables that are given up when it ends.
    fn freed(&self) -> &[TableRange] {
        match self {
            Self::Sync(sync) => &sync.freed,
            Self::Remap(remap) => &remap.freed,
            Self::Value { .. }
            | Self::Fetch { .. }
            | Self::Move { .. }
            | Self::Demand { .. }
            | Self::Context { .. }
            | Self::Reset { .. } => &[],
        }
    }

    /// The space that a bind is about to use.
    fn space(&self) -> Option<SpaceId> {
        match self {
            Self::Sync(sync) => match &sync.cause {
                SyncCause::Bind { space, .. } => Some(*space),
                SyncCause::Flush => None,
            },
            _ => None,
        }
    }
}

impl Vgpu {
    /// What must be so of a VM by itself. `leaving` are the spaces of its channels that are on their way off the card, and `images` those of
    /// channels that are off it or on their way.
    pub(crate) fn check(
        &self,
        vm: VmId,
        leaving: impl Iterator<Item = SpaceId> + Clone,
        images: impl Iterator<Item = (SpaceId, ImageNo)> + Clone,
    ) -> Result<(), Unsound> {
        Unsound::unless(self.id == vm, "the state of another VM")?;
        self.config
            .check()
            .map_err(|error| Unsound::new(error.to_string()))?;
        let sizes = (self.config.guest_vram, self.config.chunk_bytes);
        Unsound::unless(self.chunks.sizes() == sizes, "chunks of another VM")?;
        self.chunks.sound()?;
        self.check_windows()?;
        self.units.check(self.config.guest_vram)?;
        self.ram.sound()?;
        let ranges = self.bus_ranges().map(|(at, bytes)| (at, bytes, self.id));
        self.bus.check_of_vm(&self.config, ranges)?;
        self.check_spaces(leaving, images)?;
        self.buffers.check()?;
        self.kept.check()?;
        let spaces = self.spaces.values().map(|space| &space.shadow);
        Unsound::unless(
            self.chunks.is_reached_by(spaces),
            "chunks are reached by other than the spaces",
        )?;
        let is_channel = |v: &u8| usize::from(*v) < CHANNELS;
        let numbers = self
            .channels
            .keys()
            .chain(self.parked.keys())
            .chain(&self.runlist)
            .chain(self.userd.keys().map(|(v, _)| v));
        Unsound::unless(numbers.clone().all(is_channel), "a channel that no card has")?;
        let has_space = |channel: &Channel| self.spaces.contains_key(&channel.space);
        Unsound::unless(self.channels.values().all(has_space), "a channel without a space")?;
        self.check_parked()?;
        let is_bound = |v: &u8| self.channels.contains_key(v) || self.parked.contains_key(v);
        Unsound::unless(self.work.channels.keys().all(is_bound), "work of no channel")?;
        self.work.check(|chunk| self.chunks.contains(chunk))?;
        Unsound::unless(
            self.queue.len() <= REQUESTS_WAITING_MAX,
            "more requests than may wait",
        )?;
        self.queue.iter().try_for_each(Queued::check)?;
        self.check_blocked()
    }

    /// What a request waits for is there.
    fn check_blocked(&self) -> Result<(), Unsound> {
        self.blocked
            .iter()
            .try_for_each(|blocked| blocked.request().check())?;
        if let Some(Blocked::Value { request, length, .. }) = &self.blocked {
            let fits = *length <= ACCESS_BYTES_MAX - request.done;
            Unsound::unless(fits, "the length of a value that is waited for")?;
        }
        if let Some(Blocked::Sync(sync)) = &self.blocked
            && let SyncCause::Bind { channel, block, .. } = &sync.cause
        {
            let fits = usize::from(*channel) < CHANNELS && block.len() as u64 == INSTANCE_BYTES;
            Unsound::unless(fits, "a bind of no channel, or without its whole instance block")?;
        }
        let hidden = match &self.blocked {
            Some(Blocked::Remap(remap)) => {
                // What comes is answered with its last entry, what goes with its last map.
                Unsound::unless(
                    match remap.stage {
                        RemapStage::Mapping { next } => !remap.is_going && next >= remap.gpa,
                        RemapStage::Pointing(_) => true,
                        RemapStage::Flushing | RemapStage::Releasing => remap.is_going,
                    },
                    "a range of RAM that waits for what it does not need",
                )?;
                let comes = matches!(remap.stage, RemapStage::Mapping { .. });
                (remap.is_going || comes).then_some((remap.gpa, remap.bytes))
            }
            _ => None,
        };
        // One that leaves has forgotten what it asked for.
        let is_known = hidden == self.ram.hidden() || self.is_detaching();
        Unsound::unless(
            is_known,
            "RAM comes or goes that nobody asked for, or the other way round",
        )?;
        let resets = matches!(self.blocked, Some(Blocked::Reset { .. }));
        Unsound::unless(
            resets == matches!(self.leave, Leave::Reset(_)),
            "a reset without a request, or a request without its reset",
        )
    }

    /// Each space is as it was made, and has its channels as users and their images.
    fn check_spaces(
        &self,
        leaving: impl Iterator<Item = SpaceId> + Clone,
        images: impl Iterator<Item = (SpaceId, ImageNo)> + Clone,
    ) -> Result<(), Unsound> {
        for (&id, space) in &self.spaces {
            let config = ShadowConfig::for_guest_vram(self.config.guest_vram);
            space
                .shadow
                .check(config)
                .map_err(|unsound| Unsound::from(unsound).of(format_args!("space {}", id.0)))?;
            let bound = self.channels.values().filter(|channel| channel.space == id);
            let of_leaving = images.clone().filter(|(of, _)| *of == id);
            let of_leaving = of_leaving.map(|(_, image)| image);
            let images = bound.filter_map(|channel| channel.image).chain(of_leaving);
            space.contexts.check(images)?;
            let bound = self.channels.values().map(|channel| channel.space);
            let users = bound
                .chain(self.parked.values().map(|parked| parked.space))
                .chain(leaving.clone())
                .chain(self.blocked.as_ref().and_then(Blocked::space));
            let count = users.filter(|user| *user == id).count();
            let fits = count == space.users as usize && id.0 < self.next_space;
            Unsound::unless(fits, "a space has other users than its channels")?;
        }
        Ok(())
    }

    /// What lives in the window file is instance memory, what a store waits for is there, and nothing is kept out without one.
    fn check_windows(&self) -> Result<(), Unsound> {
        let is_instance = |page: GuestPage| {
            let is_inside = self.chunks.of(page.base()).is_some();
            is_inside && self.chunks.is_instance(page)
        };
        Unsound::unless(
            self.live.as_ref().is_none_or(|live| live.is_sound(is_instance)),
            "pages in the window file that are no instance memory",
        )?;
        let is_known = |live: &LiveWindows| live.chunks().all(|chunk| self.chunks.contains(chunk));
        Unsound::unless(
            self.live.as_ref().is_none_or(is_known),
            "windows wait for chunks that do not exist",
        )?;
        let waits = self.live.as_ref().is_some_and(LiveWindows::is_waited_for);
        Unsound::unless(
            waits || !self.chunks.keeps_any_out(),
            "chunks are kept in host RAM for a store that does not wait",
        )
    }

    /// Each parked channel has a space, and is not bound as well.
    fn check_parked(&self) -> Result<(), Unsound> {
        let is_sound = |(v, parked): (&u8, &Parked)| {
            self.spaces.contains_key(&parked.space) && !self.channels.contains_key(v)
        };
        let are_sound = self.parked.iter().all(is_sound);
        Unsound::unless(are_sound, "a parked channel without a space, or bound too")
    }

    /// The parts of the arena that it holds, but those of what leaves: shadow tables and instance blocks.
    pub(crate) fn arena_ranges(&self) -> impl Iterator<Item = (VramAddr, u64)> {
        let freed = self.blocked.iter().flat_map(Blocked::freed).chain(&self.orphans);
        let spaces = self.spaces.values();
        let tables = spaces.flat_map(|space| space.shadow.tables().chain(space.contexts.ranges()));
        let tables = tables.chain(self.buffers.ranges());
        let blocks = self.blocks().map(|block| (block, INSTANCE_BYTES));
        let tables = tables.chain(freed.copied()).map(|range| (range.at, range.bytes));
        tables.chain(blocks)
    }

    /// Its bus addresses: of its image and its RAM.
    pub(crate) fn bus_ranges(&self) -> impl Iterator<Item = (Iova, u64)> {
        let image = (self.chunks.image(), self.config.guest_vram);
        std::iter::once(image).chain(self.ram.all().map(|(_, map)| (map.iova, map.bytes)))
    }
}
