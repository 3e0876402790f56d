//! BAR1, BAR3 and PRAMIN as memory that the VM's client maps: what they show, and which pages live in the window file because of it.
//!
//! ```text
//! flush of a BAR's directory, store to 1704, 1714 or 1700 ─► what the windows show now ─► each new page becomes instance memory
//!        nobody named it, or it was in host RAM        at once
//!        in VRAM, no entry leads there                 fetched first, as a table is (`instance_pages`)
//!        in VRAM, and the GPU reaches it               its chunk goes to host RAM first; it comes back without the page
//!        anywhere, and maps of its chunk pin memory    what reaches the chunk's image stands still for it (`pinned`)
//!   ─► TakeBack of what is shown no more, Lend of what is new ─► only then is the store answered
//! ```
//!
//! A page that lives in the window file is instance memory, so no move ever copies it and nobody has to be kept from storing to it
//! meanwhile. What the guest stores there nobody sees: such a page counts as stored to at every sync. A page that is zero
//! and has no memory behind its chunk is nothing again when it is shown no more; one that only BAR1 has shown is data, and
//! belongs to its chunk again as soon as that is in host RAM. Decision 0027 gives the reasons, 0029 those for BAR1.

mod look;
mod passages;
mod passing;
mod pinned;
mod seen;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{GuestVramAddr, SMALL_PAGE};
use fermi_spec::regs::PRAMIN_BYTES;
use fermi_spec::regs::windows::WindowBlock;
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::{Placement, TableAt};

use self::look::{Look, directory_of};
use self::passages::{carry_out, pages_of};
use self::passing::give_back;
pub(super) use self::passing::give_back_to;
use self::seen::{Places, Reread, Seen};
use super::Cx;
use super::images::maps_for_windows;
use super::live_userd::LiveUserd;
use super::requests::reader;
use super::running::Running;
use crate::device::effect::Effect;
use crate::device::living::{Living, differing};
use crate::device::window_layout::WindowLayout;
use crate::device::{Blocked, Queued, Vgpu};
use crate::event::{Action, Place, Tick, VmId};
use crate::inspect::{Inspect, Tree};
use crate::memory::{ChunkNo, ChunkPlace, GuestPage, Piece};

/// Pages that are fetched in one step. What a guest shows at once takes as many steps as it needs.
const FETCHED_AT_ONCE: usize = 64;
/// Work for an entry of BAR3's tables that is read, and for a page that is shown.
const ENTRY_READ: u64 = 2;
const PAGE_SHOWN: u64 = 30;
/// Work for a run of pages that changes its place, for one during which the card stands still, and for each page of it.
const RUN_MOVED: u64 = 30_000;
const RUN_MOVED_STILL: u64 = 100_000;
const PAGE_MOVED: u64 = 1_500;

/// Runs of pages that the windows of all VMs show at once, neighbours in both memories, and those that each VM may have in any case. A run is
/// a mapping of the broker's and makes two borders, or twice as many where windows show the same pages; VMs have them beside their maps of RAM.
const RUNS_ALL: usize = 7_000;
const RUNS_MIN: usize = 110;

/// Places that change in one step, and the runs that they may be: some milliseconds under the broker's lock. What a guest changes at once takes
/// as many steps as it needs, each in a turn of its VM.
const PLACES_AT_ONCE: usize = 512;
const RUNS_AT_ONCE: usize = 32;

/// How long a guest's store waits for pages that windows are to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
enum Patience {
    /// Nothing is waited for.
    #[default]
    Calm,
    /// The guest's store waits, since then.
    Waits(Tick),
    /// It waits no more. What can be shown is, and the rest when it can: the windows are looked at behind each store to a register.
    Over,
}

/// The windows of one VM whose client may map them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LiveWindows {
    pub(crate) living: Living,
    places: Places,
    seen: Seen,
    /// Pages that are instance memory only because BAR1 shows them, or has shown them.
    #[serde(default)]
    passing: BTreeSet<u32>,
    /// Pages of data that are being fetched, to become instance memory.
    #[serde(default)]
    coming: BTreeSet<u32>,
    /// Pages that are being fetched so that a window can show them.
    #[serde(default)]
    asked_for: BTreeSet<u32>,
    /// Chunks of which such pages have become instance memory, and may have no map yet.
    #[serde(default)]
    adopted: BTreeSet<ChunkNo>,
    /// USERD, as the client maps it.
    #[serde(default)]
    pub(crate) userd: LiveUserd,
    /// Chunks that have to go to host RAM before the guest's store is answered.
    waits_for: BTreeSet<ChunkNo>,
    /// Pieces of the image that nothing may reach for a moment before it is answered, and what windows show then.
    #[serde(default)]
    stands_for: BTreeSet<Piece>,
    #[serde(default, with = "crate::saved::pairs")]
    wanted: BTreeMap<u32, u32>,
    patience: Patience,
}

impl LiveWindows {
    /// Nothing was looked at yet.
    pub(crate) fn new(layout: WindowLayout) -> Self {
        let places = Places::of(layout);
        Self {
            living: Living::new(places.pramin.start),
            places,
            seen: Seen::default(),
            passing: BTreeSet::new(),
            coming: BTreeSet::new(),
            asked_for: BTreeSet::new(),
            adopted: BTreeSet::new(),
            userd: LiveUserd::default(),
            waits_for: BTreeSet::new(),
            stands_for: BTreeSet::new(),
            wanted: BTreeMap::new(),
            patience: Patience::default(),
        }
    }

    /// The device was reset: nothing is shown until the next look.
    pub(crate) fn forget(&mut self) {
        self.living.forget();
        self.seen = Seen::default();
        self.passing.clear();
        self.coming.clear();
        self.asked_for.clear();
        self.adopted.clear();
        self.userd = LiveUserd::default();
        self.waits_for.clear();
        self.stands_for.clear();
        self.wanted.clear();
        self.patience = Patience::default();
    }

    /// A page in VRAM became instance memory. `true` if that is for a window: it is mapped once windows show what they are to show.
    pub(crate) fn note_adopted(&mut self, page: GuestPage, chunk: ChunkNo) -> bool {
        let is_for_window = self.asked_for.remove(&page.0);
        if is_for_window {
            self.adopted.insert(chunk);
        }
        is_for_window
    }

    /// Whether a guest's store waits for what they are to show.
    pub(crate) fn is_waited_for(&self) -> bool {
        matches!(self.patience, Patience::Waits(_))
    }

    /// Whether a page lives in the window file.
    pub(crate) fn lives(&self, page: GuestPage) -> bool {
        self.living.lives(page.0)
    }

    /// Whether all that lives here is instance memory of this VM.
    pub(crate) fn is_sound(&self, is_instance: impl Fn(GuestPage) -> bool) -> bool {
        let mut pages = self.living.pages().chain(self.passing.iter().copied());
        self.living.is_sound() && pages.all(|page| is_instance(GuestPage(page)))
    }
}

impl Inspect for LiveWindows {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("pages", self.living.pages().count());
        tree.count("runs", self.living.runs());
        tree.count("shown_elsewhere_too", self.living.aliases());
        tree.count("chunks_waited_for", self.waits_for.len());
        tree.count("pieces_to_stand", self.stands_for.len());
        tree.count("pages_of_data", self.passing.len());
        tree.part("userd", &self.userd);
    }
}

/// What a page needs before a window can show it.
enum Needs {
    Nothing,
    /// It is where the GPU cannot see it, or nowhere.
    Becoming,
    Fetch,
    Spill(ChunkNo),
    /// The end of a move of its chunk.
    Rest,
}

/// What the windows cannot show yet, by why.
#[derive(Default)]
struct Unready {
    fetch: Vec<GuestPage>,
    spill: BTreeSet<ChunkNo>,
    stand: BTreeSet<Piece>,
    rests: bool,
}

impl Vgpu {
    /// Whether registers say that the VM's windows show something else than was followed, or it waited for them long enough.
    pub(super) fn shows_other_than_seen(&self) -> bool {
        let is_other =
            |live: &LiveWindows| live.seen != Seen::of(&self.units) || live.patience == Patience::Over;
        self.live.as_ref().is_some_and(is_other)
    }
}

impl Running {
    /// A VM's client may map its windows from now on.
    pub(super) fn let_windows(&mut self, vm: VmId) {
        let layout = WindowLayout::new(self.config.bar1_bytes, self.config.bar3_bytes);
        let (pins, bus) = (self.config.bus.pins, &mut self.iova);
        if let Some(vgpu) = self.vms.get_mut(&vm).filter(|vgpu| vgpu.live.is_none()) {
            vgpu.live = Some(LiveWindows::new(layout));
            let maps = maps_for_windows(&vgpu.config);
            if pins && bus.reserve_maps(maps, Some(vm)) {
                vgpu.chunks.maps_mut().spare = maps;
            }
        }
    }

    /// Follows what a VM's windows show, behind a store to a register with this effect. `Err`: the request has to wait, and is tried again.
    pub(super) fn follow_windows(
        &mut self,
        vm: VmId,
        request: Queued,
        effect: &Effect,
        cx: &mut Cx<'_>,
    ) -> Result<Queued, Box<Blocked>> {
        let Some(vgpu) = self.vms.get(&vm) else {
            return Ok(request);
        };
        let Some(live) = &vgpu.live else {
            return Ok(request);
        };
        let (now, seen, is_over) = (Seen::of(&vgpu.units), live.seen, live.patience == Patience::Over);
        let flushed = self.flushed(vm, effect, cx);
        if seen == now && !flushed.any() && !is_over {
            return Ok(request);
        }
        // What was not shown yet is not among what was.
        let reread = Reread {
            bar3: flushed.bar3 || seen.bar3 != now.bar3 || is_over,
            bar1: flushed.bar1 || (seen.bar1, seen.userd) != (now.bar1, now.userd) || is_over,
        };
        let mut shown = match self.look_at_windows(vm, reread, cx) {
            Ok(shown) => shown,
            Err(missing) => {
                let pages = self.fetch(vm, &missing, cx);
                return match pages.is_empty() {
                    // Accounts that are wrong, for which the VM goes.
                    true => Ok(request),
                    false => Err(Box::new(Blocked::Fetch { pages, request })),
                };
            }
        };
        let mut unready = self.make_ready(vm, &shown);
        let hidden = self.hide_unready(vm, &mut shown);
        let runs_max = (RUNS_ALL / self.vms.len().max(1)).max(RUNS_MIN);
        let cut = cut_to_runs(&mut shown, runs_max);
        let at_once = match self.config.bus.pins {
            true => {
                let (at_once, stand) = self.showable(vm, &shown, &[]);
                unready.stand = stand;
                Some(at_once)
            }
            false => None,
        };
        if let Some(blocked) = self.wait_for_windows(vm, &unready, &shown, cx) {
            return Err(Box::new(match blocked {
                Some(pages) => Blocked::Fetch { pages, request },
                None => Blocked::Move { request },
            }));
        }
        let held_back = at_once
            .as_ref()
            .map_or(0, |at_once| differing(at_once, &shown).len());
        self.tell_unshown(vm, hidden + held_back, (cut, runs_max), cx);
        match self.show_windows(vm, at_once.unwrap_or(shown), now, cx) {
            true => {
                self.map_instance(vm, cx);
                Ok(request)
            }
            false => {
                // The rest when it has its turn again.
                self.volatile.ready.insert(vm);
                Err(Box::new(Blocked::Move { request }))
            }
        }
    }

    /// Says which pages of windows are not shown: those that are not ready, and those of too many pieces.
    fn tell_unshown(&mut self, vm: VmId, hidden: usize, (cut, runs_max): (usize, usize), cx: &mut Cx<'_>) {
        if hidden > 0 {
            let what = || format!("{hidden} pages of a window are not shown yet: the GPU keeps them busy");
            self.guest_error(vm, what, cx);
        }
        if cut > 0 {
            let what =
                || format!("{cut} pages of windows are not shown: they lie in more than {runs_max} pieces");
            self.guest_error(vm, what, cx);
        }
    }

    /// Windows whose TLB a store flushed.
    fn flushed(&self, vm: VmId, effect: &Effect, cx: &mut Cx<'_>) -> Reread {
        let (mut bar1, mut bar3) = (false, false);
        if let Effect::Flush(directory) = effect
            && let Some(vgpu) = self.vms.get(&vm)
        {
            let pbus = &vgpu.units.pbus;
            let mut is_flushed = |block: WindowBlock| {
                block.enable() && directory.is_none_or(|at| is_directory_of(vgpu, block, at, cx))
            };
            (bar1, bar3) = (is_flushed(pbus.bar1), is_flushed(pbus.bar3));
        }
        Reread { bar1, bar3 }
    }

    /// What the windows show now: the page at each place that shows one. `Err`: pages of tables that lie in VRAM.
    fn look_at_windows(
        &mut self,
        vm: VmId,
        reread: Reread,
        cx: &mut Cx<'_>,
    ) -> Result<BTreeMap<u32, u32>, Vec<GuestPage>> {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Ok(BTreeMap::new());
        };
        let Some(live) = &vgpu.live else {
            return Ok(BTreeMap::new());
        };
        let guest_pages = vgpu.config.guest_vram / SMALL_PAGE;
        let mut shown: BTreeMap<u32, u32> = BTreeMap::new();
        let mut entries = 0;
        let now = Seen::of(&vgpu.units);
        let userd = now.userd.and_then(|at| live.places.userd(at)).unwrap_or(0..0);
        let (pbus, places) = (&vgpu.units.pbus, &live.places);
        let windows = [
            (reread.bar3, pbus.bar3, &places.bar3, 0..0),
            (reread.bar1, pbus.bar1, &places.bar1, userd),
        ];
        for (is_read, block, places, skipped) in windows {
            if !is_read {
                let before = live.living.shown().range(places.clone());
                shown.extend(before.map(|(place, page)| (*place, *page)));
            } else if block.enable() {
                let mut tables = reader(vgpu, cx.memory);
                let mut look = Look {
                    shown: &mut shown,
                    guest_pages,
                    places: places.clone(),
                    skipped,
                    entries: 0,
                };
                look.follow(block, &mut tables);
                entries += look.entries;
                if !tables.missing.is_empty() {
                    return Err(tables.missing);
                }
            }
        }
        let pramin = match now.pramin {
            Some(_) => u64::from(PRAMIN_BYTES) / SMALL_PAGE,
            None => 0,
        };
        for place in 0..pramin {
            let at = mmio::aperture::pramin_address(vgpu.units.pbus.pramin, (place * SMALL_PAGE) as u32);
            let page = at.map(|at| at.0 / SMALL_PAGE).filter(|page| *page < guest_pages);
            if let Some(page) = page {
                shown.insert(live.places.pramin.start + place as u32, page as u32);
            }
        }
        let work = ENTRY_READ * entries + PAGE_SHOWN * shown.len() as u64;
        vgpu.share.charge(work);
        Ok(shown)
    }

    /// Makes pages instance memory that may be so at once; the rest is not ready.
    fn make_ready(&mut self, vm: VmId, shown: &BTreeMap<u32, u32>) -> Unready {
        let mut unready = Unready::default();
        let pages: BTreeSet<u32> = match self.vms.get(&vm).and_then(|vgpu| vgpu.live.as_ref()) {
            Some(live) => shown
                .values()
                .copied()
                .filter(|page| !live.living.lives(*page))
                .collect(),
            None => return unready,
        };
        let data = self.shown_as_data(vm, shown);
        for page in pages.into_iter().map(GuestPage) {
            let needs = self.needs(vm, page);
            self.note_passing(vm, page, &data, &needs);
            match needs {
                Needs::Nothing => {}
                Needs::Becoming => {
                    if let Some(vgpu) = self.vms.get_mut(&vm) {
                        vgpu.chunks.set_instance(page);
                    }
                }
                Needs::Fetch => unready.fetch.push(page),
                Needs::Rest => unready.rests = true,
                Needs::Spill(chunk) => drop(unready.spill.insert(chunk)),
            }
            if unready.fetch.len() >= FETCHED_AT_ONCE {
                break;
            }
        }
        unready
    }

    fn needs(&mut self, vm: VmId, page: GuestPage) -> Needs {
        let Some(vgpu) = self.vms.get(&vm) else {
            return Needs::Nothing;
        };
        let Some(chunk) = vgpu.chunks.of(page.base()) else {
            return Needs::Nothing;
        };
        match vgpu.chunks.locate(page.base()) {
            _ if vgpu.chunks.is_instance(page) => Needs::Nothing,
            _ if vgpu.chunks.is_moving(chunk) => Needs::Rest,
            Placement::Unbacked | Placement::Sysram(_) => Needs::Becoming,
            Placement::Outside => Needs::Nothing,
            Placement::Vram(_) => match self.may_adopt(vm, page) {
                true => Needs::Fetch,
                false => Needs::Spill(chunk),
            },
        }
    }

    /// `Some` if the request has to wait: for these pages, or for a move.
    #[expect(clippy::option_option, reason = "whether it waits, and for what")]
    fn wait_for_windows(
        &mut self,
        vm: VmId,
        unready: &Unready,
        shown: &BTreeMap<u32, u32>,
        cx: &mut Cx<'_>,
    ) -> Option<Option<BTreeMap<crate::event::Token, GuestPage>>> {
        if !unready.fetch.is_empty() {
            let live = self.vms.get_mut(&vm)?.live.as_mut()?;
            live.asked_for.extend(unready.fetch.iter().map(|page| page.0));
            let pages = self.fetch(vm, &unready.fetch, cx);
            if !pages.is_empty() {
                return Some(Some(pages));
            }
        }
        let vgpu = self.vms.get_mut(&vm)?;
        vgpu.chunks.end_keeping_out();
        let live = vgpu.live.as_mut()?;
        live.waits_for.clone_from(&unready.spill);
        live.stands_for.clone_from(&unready.stand);
        live.wanted.clear();
        if !unready.stand.is_empty() {
            live.wanted.clone_from(shown);
        }
        let is_ready = unready.spill.is_empty() && unready.stand.is_empty() && !unready.rests;
        live.patience = match live.patience {
            _ if is_ready => Patience::Calm,
            Patience::Calm => Patience::Waits(cx.now),
            other => other,
        };
        matches!(live.patience, Patience::Waits(_)).then_some(None)
    }

    /// Leaves out pages that are no instance memory; their number.
    fn hide_unready(&self, vm: VmId, shown: &mut BTreeMap<u32, u32>) -> usize {
        let before = shown.len();
        if let Some(vgpu) = self.vms.get(&vm) {
            shown.retain(|_, page| vgpu.chunks.is_instance(GuestPage(*page)));
        }
        before - shown.len()
    }

    /// Tells the edge which pages live where from now on, a part of them at a time. `true` if that was all.
    fn show_windows(&mut self, vm: VmId, shown: BTreeMap<u32, u32>, now: Seen, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return true;
        };
        let Some(live) = &mut vgpu.live else { return true };
        let (shown, is_all) = part_of(live.living.shown(), shown);
        if is_all {
            live.seen = now;
        }
        show(vgpu, shown, cx);
        if is_all {
            self.place_userd(vm, cx);
        }
        is_all
    }
}

/// The windows of a VM show this from now on.
fn show(vgpu: &mut Vgpu, shown: BTreeMap<u32, u32>, cx: &mut Cx<'_>) {
    let Some(live) = &mut vgpu.live else { return };
    let mut changes = live.living.show(shown);
    if planted::is(Fault::WindowPageKept) {
        changes.back.clear();
    }
    carry_out(vgpu, &changes, cx);
    let gone = changes.back.iter().flat_map(pages_of);
    let gone: Vec<GuestPage> = gone
        .filter(|page| !vgpu.live.as_ref().is_some_and(|live| live.lives(*page)))
        .collect();
    give_up_zero(vgpu, &gone, cx);
    give_back(vgpu, &gone);
}

/// What windows show next on the way from one to the other, and whether that is the other: the broker changes some places in one step.
fn part_of(before: &BTreeMap<u32, u32>, after: BTreeMap<u32, u32>) -> (BTreeMap<u32, u32>, bool) {
    let (mut places, mut runs, mut last) = (0, 0, None);
    let changed = differing(before, &after);
    let is_within = |&place: &u32| {
        let goes_on = last.is_some_and(|last| place == last + 1)
            && before.get(&place).copied() == last.and_then(|last| before.get(&last)).map(|page| page + 1)
            && after.get(&place).copied() == last.and_then(|last| after.get(&last)).map(|page| page + 1);
        last = Some(place);
        places += 1;
        runs += usize::from(!goes_on);
        places <= PLACES_AT_ONCE && runs <= RUNS_AT_ONCE
    };
    let part: Vec<u32> = changed.iter().copied().take_while(is_within).collect();
    if part.len() == changed.len() {
        return (after, true);
    }
    let mut shown = before.clone();
    for place in part {
        match after.get(&place) {
            Some(page) => shown.insert(place, *page),
            None => shown.remove(&place),
        };
    }
    (shown, false)
}

/// Leaves the first places, as far as they are few enough runs. Returns how many went.
fn cut_to_runs(shown: &mut BTreeMap<u32, u32>, runs_max: usize) -> usize {
    let (mut runs, mut before, mut end) = (0, None, None);
    for (&place, &page) in &*shown {
        let goes_on = before.is_some_and(|(last, of)| (place, page) == (last + 1, of + 1));
        runs += usize::from(!goes_on);
        if runs > runs_max {
            end = Some(place);
            break;
        }
        before = Some((place, page));
    }
    end.map_or(0, |end| shown.split_off(&end).len())
}

/// Whether a directory is that of a window. One of a window whose instance block lies in VRAM is taken for it: it is read then.
fn is_directory_of(vgpu: &Vgpu, block: WindowBlock, directory: TableAt, cx: &mut Cx<'_>) -> bool {
    match directory_of(block, &mut reader(vgpu, cx.memory)) {
        Ok(Some(of)) => of.at == directory,
        Ok(None) => false,
        Err(()) => true,
    }
}

/// Pages that nothing was stored to and that no chunk holds are nothing again: a window showed them in passing.
fn give_up_zero(vgpu: &mut Vgpu, pages: &[GuestPage], cx: &mut Cx<'_>) {
    let vm = vgpu.id;
    let mut dropped: Vec<(GuestVramAddr, u64)> = Vec::new();
    for &page in pages {
        let at = page.base();
        let is_unbacked = vgpu
            .chunks
            .of(at)
            .is_some_and(|chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Unbacked);
        let mut bytes = [0; SMALL_PAGE as usize];
        if !is_unbacked
            || !cx.memory.read(Place::Image { vm, at }, &mut bytes)
            || bytes.iter().any(|byte| *byte != 0)
        {
            continue;
        }
        vgpu.chunks.unset_instance(page);
        if let Some(live) = &mut vgpu.live {
            live.passing.remove(&page.0);
        }
        match dropped.last_mut() {
            Some((start, length)) if start.offset(*length) == at => *length += SMALL_PAGE,
            _ => dropped.push((at, SMALL_PAGE)),
        }
    }
    for (at, bytes) in dropped {
        cx.actions.push(Action::DropImage { vm, at, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_at_once_is_cut_into_steps_that_end_there() {
        let scattered =
            |first: u32| -> BTreeMap<u32, u32> { (0..1000).map(|i| (2 * i, first + 4 * i)).collect() };
        let whole = |first: u32| -> BTreeMap<u32, u32> { (0..2000).map(|i| (i, first + i)).collect() };
        for (mut now, then, steps) in [
            (scattered(0), scattered(1), 1000_usize.div_ceil(RUNS_AT_ONCE)),
            (whole(0), whole(5000), 2000_usize.div_ceil(PLACES_AT_ONCE)),
            (BTreeMap::new(), whole(0), 2000_usize.div_ceil(PLACES_AT_ONCE)),
            (whole(0), BTreeMap::new(), 2000_usize.div_ceil(PLACES_AT_ONCE)),
            (whole(3), whole(3), 1),
        ] {
            let mut taken = 0;
            while taken == 0 || now != then {
                let (next, is_all) = part_of(&now, then.clone());
                let changed = differing(&now, &next).len();
                assert!(changed <= PLACES_AT_ONCE && is_all == (next == then));
                now = next;
                taken += 1;
            }
            assert_eq!(taken, steps);
        }
    }

    #[test]
    fn places_beyond_the_bound_of_runs_are_cut() {
        let mut shown: BTreeMap<u32, u32> = (0..10).map(|i| (2 * i, 100 + 2 * i)).collect();
        shown.extend([(1, 101), (21, 7)]);
        assert_eq!(cut_to_runs(&mut shown, 5), 5);
        assert_eq!(shown.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 4, 6, 8, 10]);
        assert_eq!(cut_to_runs(&mut shown, 5), 0);
    }
}
