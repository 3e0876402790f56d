//! USERD as memory that the VM's client maps: doorbells that nobody sends, and progress that the guest reads there.
//!
//! ```text
//! guest stores GP_PUT ─► the edge's sweep finds it changed ─► Event::Doorbells ─► GP_PUT is read here, anew ─► the card's own USERD
//! GP_GET of the card  ◄─ asked now and then while a channel has work ─► written to the guest's page
//! ```
//!
//! The pages that the card reads are the broker's, as without a window file; what the guest maps holds nothing but what the two sides write
//! there. The value of a doorbell is read when it is served and not when it was seen: a sweep that comes late never takes a GP_PUT back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fermi_spec::bar::Bar;
use fermi_spec::instance::{CHANNELS, USERD_BYTES, userd};
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::Cx;
use super::running::Running;
use super::windows::remember_userd;
use crate::device::Vgpu;
use crate::event::{Action, ChannelWatch, Place, Tick, Token, VmId};
use crate::host::PhysChannel;
use crate::host::card::Card;
use crate::inspect::{Inspect, Space as Address, Tree};
use crate::share::CHANNEL_ASKED;

/// Words of USERD that the card writes, from GET to GP_GET.
const PROGRESS: std::ops::Range<u64> = userd::GET_LO..userd::GP_GET + 4;
/// Words of USERD that mean something lie below this.
const MEANT: u64 = 0x100;
/// Work for an event with doorbells, for each doorbell in it, and for a change of the place of USERD.
const FOUND: u64 = 5_000;
const DOORBELL: u64 = 500;
const PLACED: u64 = 300_000;
/// Channels of one VM whose progress is asked for at once.
const ASKED_MAX: usize = 8;
/// Least and longest time between two looks at a VM's progress. A guest reads it when its ring is full.
const LOOK_MIN_NS: u64 = 500_000;
const LOOK_MAX_NS: u64 = 16_000_000;

/// USERD of one VM whose client may map it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LiveUserd {
    /// Bytes into BAR1 where it lies, if it does.
    at: Option<u64>,
    /// Channels whose GP_PUT has changed, until the VM has its turn.
    rung: BTreeSet<u8>,
    /// Channels of which the guest may not have been shown all that the card has done.
    behind: VecDeque<u8>,
    /// When they are looked at next, and how long that was put off.
    look_at: Tick,
    put_off_ns: u64,
}

impl LiveUserd {
    /// Whether doorbells wait for the VM's turn.
    pub(super) fn is_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Where a word of a channel's page is seen.
    fn place(&self, vm: VmId, v: u8, offset: u64) -> Option<Place> {
        let offset = self.at? + u64::from(v) * USERD_BYTES + offset;
        Some(Place::Bar1 { vm, offset })
    }

    /// The channel has work: what becomes of it is to be shown.
    fn expect_progress(&mut self, v: u8, now: Tick) {
        if !self.behind.contains(&v) {
            self.behind.push_back(v);
        }
        self.put_off_ns = LOOK_MIN_NS;
        let soon = now.after(LOOK_MIN_NS);
        self.look_at = match self.look_at > now {
            true => self.look_at.min(soon),
            false => soon,
        };
    }
}

impl Inspect for LiveUserd {
    fn inspect(&self, tree: &mut Tree<'_>) {
        match self.at {
            Some(at) => tree.address("at", at, Address::BarOffset),
            None => tree.name("at", "outside of BAR1"),
        }
        tree.count("doorbells_waiting", self.rung.len());
        tree.count("channels_behind", self.behind.len());
    }
}

/// A place of a channel's page that the VM's client maps, if it does.
fn place_of(vgpu: &Vgpu, v: u8, offset: u64) -> Option<Place> {
    vgpu.live.as_ref()?.userd.place(vgpu.id, v, offset)
}

impl Running {
    /// Has the edge look where the guest has USERD now.
    pub(super) fn place_userd(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let bytes = CHANNELS as u64 * USERD_BYTES;
        let at = vgpu.units.pfifo.userd_window();
        let at = at.filter(|at| {
            at.checked_add(bytes)
                .is_some_and(|end| end <= self.config.bar1_bytes)
        });
        let Some(live) = vgpu.live.as_mut().filter(|live| live.userd.at != at) else {
            return;
        };
        live.userd.at = at;
        vgpu.share.charge(PLACED);
        cx.actions.push(Action::PlaceUserd { vm, at });
        // What was stored at a place that nobody looked at is nothing; the channels go on where they are.
        for v in 0..CHANNELS as u8 {
            self.empty_page(vm, v, cx);
            let Some(vgpu) = self.vms.get(&vm) else { return };
            let bound = vgpu.channels.get(&v).and_then(|bound| bound.gp_put);
            let gp_put = bound.or_else(|| vgpu.parked.get(&v)?.gp_put);
            if let Some(gp_put) = gp_put {
                self.show_userd(vm, v, userd::GP_PUT, &gp_put.to_le_bytes(), cx);
            }
            if vgpu.is_bound(v) {
                self.watch_channel(vm, v, true, cx);
            }
        }
    }

    /// Has the edge look for doorbells of a channel, or no more.
    pub(super) fn watch_channel(&self, vm: VmId, channel: u8, is_watched: bool, cx: &mut Cx<'_>) {
        let live = self.vms.get(&vm).and_then(|vgpu| vgpu.live.as_ref());
        if live.is_some_and(|live| live.userd.at.is_some()) {
            cx.actions.push(Action::WatchChannel(ChannelWatch {
                vm,
                channel,
                is_watched,
            }));
        }
    }

    /// The edge found that GP_PUTs have changed. They are served when the VM has its turn.
    pub(super) fn doorbells(&mut self, vm: VmId, channels: &[u8]) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        if let Some(live) = vgpu.live.as_mut().filter(|live| live.userd.at.is_some()) {
            let channels = channels.iter().filter(|v| usize::from(**v) < CHANNELS);
            live.userd.rung.extend(channels);
            vgpu.share.charge(FOUND);
            self.volatile.ready.insert(vm);
        }
    }

    /// Serves doorbells that were found.
    pub(super) fn serve_doorbells(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(live) = vgpu.live.as_mut().filter(|live| live.userd.is_rung()) else {
            return;
        };
        let rung = std::mem::take(&mut live.userd.rung);
        vgpu.share.charge(rung.len() as u64 * DOORBELL);
        let served = if planted::is(Fault::MappedDoorbellDropped) {
            1
        } else {
            rung.len()
        };
        for v in rung.into_iter().take(served) {
            if let Some(gp_put) = self.mapped_gp_put(vm, v, cx) {
                self.ring_by_memory(vm, v, gp_put, cx);
            }
        }
    }

    /// GP_PUT of a channel as it stands in memory that the VM's client maps.
    pub(super) fn mapped_gp_put(&self, vm: VmId, v: u8, cx: &mut Cx<'_>) -> Option<u32> {
        let place = place_of(self.vms.get(&vm)?, v, userd::GP_PUT)?;
        let mut word = [0; 4];
        let is_there = cx.memory.read(place, &mut word);
        is_there.then_some(u32::from_le_bytes(word))
    }

    fn ring_by_memory(&mut self, vm: VmId, v: u8, gp_put: u32, cx: &mut Cx<'_>) {
        let held_at = self.held_at(vm, v, cx.now);
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let (is_held, word) = (vgpu.hold.is_suspended, gp_put.to_le_bytes());
        match vgpu.channels.get_mut(&v) {
            Some(bound) if bound.gp_put.unwrap_or(0) == gp_put => {}
            Some(bound) => {
                if self
                    .card
                    .store_userd(bound, (is_held, held_at), userd::GP_PUT, &word, cx.actions)
                {
                    self.pass_wanted |= vgpu.note_doorbell(v, cx.now);
                }
                self.expect_progress(vm, v, cx.now);
                self.work_came(vm, v, cx.now);
            }
            // Whoever binds a channel reads what was stored before.
            None if vgpu.parked.contains_key(&v) => {
                remember_userd(vgpu, v, userd::GP_PUT, &word);
                self.pass_wanted |= vgpu.note_parked_store(v, cx.now);
            }
            None => {}
        }
    }

    /// The channel has work, and the guest may read in memory what became of it.
    pub(super) fn expect_progress(&mut self, vm: VmId, v: u8, now: Tick) {
        let live = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut());
        if let Some(live) = live.filter(|live| live.userd.at.is_some()) {
            live.userd.expect_progress(v, now);
            let look_at = live.userd.look_at;
            self.progress_at = Some(self.progress_at.map_or(look_at, |at| at.min(look_at)));
        }
    }

    /// Shows bytes in a channel's page, if the VM's client maps it.
    pub(super) fn show_userd(&self, vm: VmId, v: u8, offset: u64, bytes: &[u8], cx: &mut Cx<'_>) {
        if let Some(place) = self.vms.get(&vm).and_then(|vgpu| place_of(vgpu, v, offset)) {
            cx.memory.write(place, bytes);
        }
    }

    /// What the card has done of a channel's work is shown, if `words` are those of its USERD from its first byte on.
    pub(super) fn show_all_progress(&self, vm: VmId, v: u8, words: &[u8], cx: &mut Cx<'_>) {
        if let Some(words) = words.get(PROGRESS.start as usize..PROGRESS.end as usize) {
            self.show_userd(vm, v, PROGRESS.start, words, cx);
        }
    }

    /// The channel is nobody's any more: its page shows nothing, and nobody looks at it.
    pub(super) fn clear_userd(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        self.watch_channel(vm, v, false, cx);
        if !planted::is(Fault::MappedUserdKept) {
            self.empty_page(vm, v, cx);
        }
    }

    fn empty_page(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        self.show_userd(vm, v, 0, &[0; MEANT as usize], cx);
        if let Some(live) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut()) {
            live.userd.behind.retain(|of| *of != v);
            live.userd.rung.remove(&v);
        }
    }

    /// When progress is looked at next, of all VMs.
    fn next_progress(&self) -> Option<Tick> {
        let live = self.vms.values().filter_map(|vgpu| vgpu.live.as_ref());
        let behind = live.filter(|live| !live.userd.behind.is_empty());
        behind.map(|live| live.userd.look_at).min()
    }

    /// Asks the card how far channels have come that had work, where that is due.
    pub(super) fn ask_progress(&mut self, cx: &mut Cx<'_>) {
        if self.progress_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.ask_progress_of_all(cx);
        self.progress_at = self.next_progress();
    }

    fn ask_progress_of_all(&mut self, cx: &mut Cx<'_>) {
        for vgpu in self.vms.values_mut() {
            let vm = vgpu.id;
            let Some(live) = &mut vgpu.live else { continue };
            let userd = &mut live.userd;
            if userd.behind.is_empty() || userd.look_at > cx.now {
                continue;
            }
            userd.put_off_ns = userd.put_off_ns.clamp(LOOK_MIN_NS, LOOK_MAX_NS);
            userd.look_at = cx.now.after(userd.put_off_ns);
            userd.put_off_ns = userd.put_off_ns.saturating_mul(2).min(LOOK_MAX_NS);
            let asked = userd.behind.len().min(ASKED_MAX);
            let asked: Vec<u8> = userd.behind.drain(..asked).collect();
            vgpu.share.charge(asked.len() as u64 * CHANNEL_ASKED);
            for v in asked {
                // Of a channel that has no number, parking says how far it came.
                let Some(bound) = vgpu.channels.get(&v) else {
                    continue;
                };
                if let Some(live) = &mut vgpu.live {
                    live.userd.behind.push_back(v);
                }
                let is_asked = self
                    .volatile
                    .progress
                    .values()
                    .any(|of| *of == (vm, v, bound.physical));
                if !bound.in_table || is_asked {
                    continue;
                }
                let token = self.card.tokens.next();
                self.volatile.progress.insert(token, (vm, v, bound.physical));
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar1,
                    offset: Card::userd_window(bound.physical) + PROGRESS.start,
                    bytes: (PROGRESS.end - PROGRESS.start) as u32,
                });
            }
        }
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn progress_value(&mut self, token: Token, data: &[u8], cx: &mut Cx<'_>) -> bool {
        let Some((vm, v, physical)) = self.volatile.progress.remove(&token) else {
            return false;
        };
        let bound = self.vms.get(&vm).and_then(|vgpu| vgpu.channels.get(&v));
        // The guest may have bound another one in its place meanwhile.
        let Some(bound) = bound.filter(|bound| bound.physical == physical && bound.in_table) else {
            return true;
        };
        let gp_put = bound.gp_put;
        let fetched = data.last_chunk().map(|word| u32::from_le_bytes(*word));
        self.show_userd(vm, v, PROGRESS.start, data, cx);
        if let Some(live) = self.vms.get_mut(&vm).and_then(|vgpu| vgpu.live.as_mut())
            && fetched == gp_put
        {
            live.userd.behind.retain(|of| *of != v);
        }
        true
    }
}

/// What was asked of the card so that it can be shown: whose it is.
pub(super) type Asked = BTreeMap<Token, (VmId, u8, PhysChannel)>;
