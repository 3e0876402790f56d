//! What channels have been handed is read before the card runs it: which chunks the next launches will use.
//!
//! ```text
//!   entries ─► launches::Observer ─► launches ─► addresses ─guest's tables─► chunks ─► ChannelWork
//!                 └ pages that lie in VRAM are read first; then the same look once more
//! ```
//!
//! The guest's own tables say where an address is: what its entries that are not shadowed yet say is as good a hint. All that is found out
//! is a hint. A guest that lies, or that rewrites what was read, gets a worse placement of its own memory and nothing else.
//! What a look takes is the VM's to pay; pages that it read are forgotten with it, because the card may change them. Code is kept for a while (`codes`).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::ChannelState;
use kernel_sets::Cache;
use launches::{CopyMethods, Item, Limits, Looked, Observer, Work};
use shadow_pt::GuestDirectory;

use self::codes::Codes;
use self::space::{Places, Sets, SpaceMemory};
use super::Cx;
use super::running::Running;
use crate::device::tables::Reader;
use crate::device::{SpaceId, Vgpu};
use crate::event::{Action, Tick, Token, VmId};
use crate::host::PhysChannel;
use crate::memory::GuestPage;
use crate::policy::Observation;
use crate::share::{CHANNEL_ASKED, PAGE_FETCHED};

mod codes;
mod space;

/// Entries that are looked at beyond those that the card has.
const AHEAD: u64 = 16;
/// Work of one look, in words of pushbuffers and the like.
const LOOK_WORK: u64 = 1 << 14;
/// Most that is found out about one kernel; a larger one is opaque.
const KERNEL: kernel_sets::Limits = kernel_sets::Limits {
    instructions: 4 << 10,
    work: 10 << 10,
};
/// Bytes of a constant bank that are read: parameters of launches are in the first ones.
const BANK_BYTES: u32 = 4 << 10;
/// Launches of a VM whose sets are kept.
const SETS_KEPT: usize = 32;
/// Times that a look is made once more because pages were missing, and pages that it may have read.
const ROUNDS_MAX: u32 = 16;
const PAGES_MAX: usize = 64;
/// Work for a step, for a unit of a look, and bytes of what an observer keeps that are copied for one.
const STEP: u64 = 200;
const UNIT: u64 = 12;
const COPIED_BYTES: u64 = 8;
/// Most bytes that the observers of a VM keep together. One that would keep more is lost.
const KEPT_MAX: usize = 16 << 20;
/// An observer that keeps less is not counted each time.
const KEPT_SMALL: usize = 64 << 10;

/// What is kept of looks. A channel whose observer is lost is opaque until its guest has set everything anew.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Channels whose work goes on when their VM has its turn.
    pub(super) due: BTreeSet<(VmId, u8)>,
    watched: BTreeMap<(VmId, u8), Watched>,
    caches: BTreeMap<VmId, Cache>,
    codes: BTreeMap<VmId, Codes>,
    /// Pages on their way from VRAM.
    fetching: BTreeMap<Token, (VmId, u8, GuestPage)>,
    /// Channels that were asked whether what they were given has ended: up to which entry.
    states: BTreeMap<Token, (VmId, u8, PhysChannel, u64)>,
}

/// One channel that is looked at.
#[derive(Debug)]
struct Watched {
    observer: Observer,
    /// Number of the entry that is the observer's first.
    first: u64,
    /// Pages that were read for the look under way, and how often it was made.
    pages: BTreeMap<GuestPage, Box<[u8; SMALL_PAGE as usize]>>,
    rounds: u32,
    /// Work that it has taken.
    cost: u64,
    /// Pages, or the channel's state, that have not come.
    waits: u32,
    /// It was asked whether what it was given has ended.
    is_asked: bool,
    places: Places,
}

/// How a look went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// All is known that has to be.
    Done,
    /// It goes on when the VM has its turn.
    GoesOn,
    /// It goes on when the card has answered.
    Waits,
}

/// Whether a look finds out which chunks work will use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    No,
    /// The work waits for them.
    Held,
    /// Nothing waits: it is paid from the VM's credit for that ([`Looks`](crate::device::looks::Looks)).
    Paid,
}

impl Ahead {
    /// What is known of a channel's work is void.
    pub(super) fn forget(&mut self, vm: VmId, v: u8) {
        self.due.remove(&(vm, v));
        self.watched.remove(&(vm, v));
        self.fetching
            .retain(|_, (of, channel, _)| (*of, *channel) != (vm, v));
        self.states
            .retain(|_, (of, channel, ..)| (*of, *channel) != (vm, v));
    }

    /// The VM is gone.
    pub(super) fn forget_vm(&mut self, vm: VmId) {
        self.due.retain(|(of, _)| *of != vm);
        self.watched.retain(|(of, _), _| *of != vm);
        self.fetching.retain(|_, (of, ..)| *of != vm);
        self.states.retain(|_, (of, ..)| *of != vm);
        self.caches.remove(&vm);
        self.codes.remove(&vm);
    }

    /// Whether an observer of the VM may keep so much beside its others.
    fn may_keep(&self, vm: VmId, bytes: usize) -> bool {
        let others = self.watched.range((vm, 0)..=(vm, u8::MAX));
        let others = others.map(|(_, watched)| watched.observer.kept_bytes());
        bytes <= KEPT_SMALL || others.sum::<usize>() + bytes <= KEPT_MAX
    }

    /// More was submitted: whether the rest has ended is asked anew.
    pub(super) fn note_more(&mut self, vm: VmId, v: u8) {
        if let Some(watched) = self.watched.get_mut(&(vm, v)) {
            watched.is_asked = false;
        }
    }
}

impl Vgpu {
    /// The directory of a bound channel's space, as the guest has it.
    fn directory_of(&self, v: u8) -> Option<GuestDirectory> {
        let bound = self.channels.get(&v).map(|channel| channel.space);
        let space: SpaceId = bound.or_else(|| self.parked.get(&v).map(|parked| parked.space))?;
        Some(self.spaces.get(&space)?.shadow.guest_directory())
    }
}

impl Running {
    /// Looks at the next entries of a channel.
    pub(super) fn look_ahead(&mut self, vm: VmId, v: u8, lookup: Lookup, cx: &mut Cx<'_>) -> Look {
        let Some(vgpu) = self.vms.get(&vm) else {
            return Look::Done;
        };
        let (Some(work), Some(directory)) = (vgpu.work.channels.get(&v), vgpu.directory_of(v)) else {
            return Look::Done;
        };
        let Some(range) = work.next_look(AHEAD) else {
            return Look::Done;
        };
        let ring = work.ring();
        let mut watched = match self.volatile.ahead.watched.remove(&(vm, v)) {
            Some(watched) if watched.waits > 0 => {
                self.volatile.ahead.watched.insert((vm, v), watched);
                return Look::Waits;
            }
            Some(watched) => watched,
            None => Watched {
                observer: Observer::new(ring, CopyMethods::Nouveau, work.place(range.start)),
                first: range.start,
                pages: BTreeMap::new(),
                rounds: 0,
                cost: 0,
                waits: 0,
                is_asked: false,
                places: Places::default(),
            },
        };
        let look = match lookup != Lookup::No
            && work.may_run()
            && !watched.is_asked
            && self.ask_state(vm, v, &mut watched, cx)
        {
            true => Look::Waits,
            false => self.look_with(vm, v, (&mut watched, directory), (range, lookup), cx),
        };
        self.volatile.ahead.watched.insert((vm, v), watched);
        look
    }

    fn look_with(
        &mut self,
        vm: VmId,
        v: u8,
        (watched, directory): (&mut Watched, GuestDirectory),
        (range, lookup): (Range<u64>, Lookup),
        cx: &mut Cx<'_>,
    ) -> Look {
        let for_chunks = lookup != Lookup::No;
        loop {
            let Some(vgpu) = self.vms.get_mut(&vm) else {
                return Look::Done;
            };
            let Some(work) = vgpu.work.channels.get(&v) else {
                return Look::Done;
            };
            let places = work.places_to(range.end);
            let ahead = &mut self.volatile.ahead;
            let cache = ahead.caches.entry(vm).or_insert_with(|| Cache::new(SETS_KEPT));
            let known = (cache, ahead.codes.entry(vm).or_default());
            let (found, work_done) = look_once(vgpu, watched, (directory, places), for_chunks, known, cx);
            let Found {
                observer,
                looked,
                items,
                sets,
                missing,
            } = found;
            vgpu.share.charge(work_done);
            watched.cost += work_done;
            if lookup == Lookup::Paid {
                vgpu.work.looks.spend(work_done);
            }
            let may_go_on = watched.rounds < ROUNDS_MAX && watched.pages.len() < PAGES_MAX;
            if !missing.is_empty() && may_go_on {
                match self.fetch_for_look(vm, v, &missing, cx) {
                    // They have moved since: they can be read right away.
                    0 => continue,
                    pages => watched.waits += pages,
                }
                let fetched = u64::from(watched.waits) * PAGE_FETCHED;
                watched.cost += fetched;
                if lookup == Lookup::Paid
                    && let Some(vgpu) = self.vms.get_mut(&vm)
                {
                    vgpu.work.looks.spend(fetched);
                }
                return Look::Waits;
            }
            watched.observer = match self.volatile.ahead.may_keep(vm, observer.kept_bytes()) {
                true => observer,
                // Opaque until its guest has set everything anew.
                false => {
                    watched.first = range.end;
                    Observer::new(work.ring(), CopyMethods::Nouveau, work.place(range.end))
                }
            };
            let look_ns = std::mem::take(&mut watched.cost);
            (watched.rounds, watched.pages) = (0, BTreeMap::new());
            let (look, end) = match looked {
                Looked::Done => (Look::Done, range.end),
                Looked::More => (Look::GoesOn, range.start),
            };
            self.note_found(vm, v, (range.start..end, sets, &items), (lookup, look_ns), cx.now);
            return look;
        }
    }

    /// A look at entries has ended.
    fn note_found(
        &mut self,
        vm: VmId,
        v: u8,
        (entries, sets, items): (Range<u64>, Sets, &[Item]),
        (lookup, look_ns): (Lookup, u64),
        now: Tick,
    ) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(work) = vgpu.work.channels.get_mut(&v) else {
            return;
        };
        let all = || sets.values().flatten().copied().collect::<BTreeSet<_>>();
        let chunks = (lookup != Lookup::No).then(all);
        let given = work.looked(entries.end, sets);
        let at = work.rang_at();
        let (looks, is_short) = (&mut vgpu.work.looks, vgpu.chunks.spilled() > 0);
        let launches = match lookup {
            Lookup::Paid => looks.stands_for(),
            Lookup::Held | Lookup::No => 1,
        };
        for chunk in given.into_iter().flatten() {
            vgpu.chunks.note_launched(chunk, launches, now);
        }
        match lookup {
            Lookup::Paid => looks.end(entries.end - entries.start, look_ns),
            Lookup::No if is_short => looks.pass(entries.end - entries.start),
            Lookup::No | Lookup::Held => {}
        }
        if is_short && !items.is_empty() {
            self.observe(&Observation::Work {
                vm,
                kind: kind_of(items),
                at,
                chunks: chunks.as_ref(),
                look_ns,
            });
        }
    }

    /// Reads pages from VRAM. How many are on their way.
    fn fetch_for_look(&mut self, vm: VmId, v: u8, missing: &[GuestPage], cx: &mut Cx<'_>) -> u32 {
        let pages: BTreeSet<GuestPage> = missing.iter().copied().collect();
        let mut asked = 0;
        for page in pages {
            let Some(vgpu) = self.vms.get_mut(&vm) else { break };
            vgpu.share.charge(PAGE_FETCHED);
            if let shadow_pt::Placement::Vram(at) = vgpu.chunks.locate(page.base())
                && self.frames.is_at(at, vm)
            {
                let token = self.card.read_vram(at, SMALL_PAGE as u32, cx.actions);
                self.volatile.ahead.fetching.insert(token, (vm, v, page));
                asked += 1;
            }
        }
        asked
    }

    /// Asks the card whether what a channel was given has ended. `false`: it has no number on the card.
    fn ask_state(&mut self, vm: VmId, v: u8, watched: &mut Watched, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        let bound = vgpu.channels.get(&v).filter(|channel| channel.in_table);
        let (Some(bound), Some(work)) = (bound, vgpu.work.channels.get(&v)) else {
            return false;
        };
        let (physical, given) = (bound.physical, work.given());
        vgpu.share.charge(CHANNEL_ASKED);
        let token = self.card.tokens.next();
        self.volatile.ahead.states.insert(token, (vm, v, physical, given));
        cx.actions.push(Action::HostRead {
            token,
            bar: Bar::Bar0,
            offset: PfifoReg::ChannelState(physical.0.into()).offset().into(),
            bytes: 4,
        });
        (watched.is_asked, watched.waits) = (true, watched.waits + 1);
        true
    }

    /// Takes a value that a look waits for; `false` if it belongs to somebody else.
    pub(super) fn ahead_value(&mut self, token: Token, data: &[u8]) -> bool {
        let ahead = &mut self.volatile.ahead;
        let (vm, v) = if let Some((vm, v, page)) = ahead.fetching.remove(&token) {
            if let Some(watched) = ahead.watched.get_mut(&(vm, v)) {
                let mut bytes = Box::new([0xff; SMALL_PAGE as usize]);
                bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
                watched.pages.insert(page, bytes);
            }
            (vm, v)
        } else if let Some((vm, v, physical, given)) = ahead.states.remove(&token) {
            let state = ChannelState::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
            let vgpu = self.vms.get_mut(&vm);
            let is_it = |vgpu: &&mut Vgpu| {
                let channel = vgpu.channels.get(&v);
                channel.is_some_and(|channel| channel.physical == physical)
            };
            if let Some(vgpu) = vgpu.filter(is_it)
                && !state.pending()
                && let Some(work) = vgpu.work.channels.get_mut(&v)
            {
                work.end(given);
            }
            (vm, v)
        } else {
            return false;
        };
        if let Some(watched) = self.volatile.ahead.watched.get_mut(&(vm, v)) {
            watched.waits = watched.waits.saturating_sub(1);
            if watched.waits == 0 {
                self.volatile.ahead.due.insert((vm, v));
                self.volatile.ready.insert(vm);
            }
        }
        true
    }
}

/// A number for work: the same for the same codes, grids and bytes of copies.
fn kind_of(items: &[Item]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for item in items {
        match &item.work {
            Work::Launch(launch) => launch.as_grid().hash(&mut hasher),
            Work::Grid(grid) => grid.hash(&mut hasher),
            Work::Copy(copy) => (copy.from.is_some(), copy.to.line, copy.to.lines).hash(&mut hasher),
            Work::Opaque(why) => why.hash(&mut hasher),
            Work::Release { .. } | Work::Acquire { .. } | Work::Wait => {}
        }
    }
    hasher.finish()
}

/// What one look found.
struct Found {
    /// The observer behind it.
    observer: Observer,
    looked: Looked,
    items: Vec<Item>,
    sets: Sets,
    /// Pages in VRAM without which it is void.
    missing: Vec<GuestPage>,
}

/// Looks at entries up to a place in the ring, and what that took.
fn look_once(
    vgpu: &Vgpu,
    watched: &mut Watched,
    (directory, places): (GuestDirectory, [u32; 2]),
    for_chunks: bool,
    (cache, codes): (&mut Cache, &mut Codes),
    cx: &mut Cx<'_>,
) -> (Found, u64) {
    let mut memory = SpaceMemory {
        reader: Reader {
            vm: vgpu.id,
            chunks: &vgpu.chunks,
            ram: &vgpu.ram,
            fetched: &watched.pages,
            memory: cx.memory,
            missing: Vec::new(),
        },
        directory,
        steps: 0,
        places: std::mem::take(&mut watched.places).of(vgpu.synced_at),
        codes,
        now: cx.now,
        code_pages: BTreeSet::new(),
    };
    let limits = Limits {
        work: LOOK_WORK,
        kernel: for_chunks.then_some(KERNEL),
        bank_bytes: BANK_BYTES,
    };
    let (mut observer, mut items) = (watched.observer.clone(), Vec::new());
    let looked = observer.look(&mut memory, cache, places, limits, &mut items);
    let missing = std::mem::take(&mut memory.reader.missing);
    let sets = match missing.is_empty() && for_chunks {
        true => memory.sets(&items, watched.first),
        false => Sets::new(),
    };
    let copied = watched.observer.kept_bytes() as u64 / COPIED_BYTES;
    let work_done = u64::from(memory.steps) * STEP + observer.work() * UNIT + copied;
    watched.rounds += 1;
    // What was missing may have been on the way.
    if missing.is_empty() {
        watched.places = memory.places;
        for page in memory.code_pages {
            if let Some(bytes) = watched.pages.get(&page) {
                codes.keep(page, bytes, cx.now);
            }
        }
    }
    let found = Found {
        observer,
        looked,
        items,
        sets,
        missing,
    };
    (found, work_done)
}
