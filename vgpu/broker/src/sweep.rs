//! Finds doorbells that clients store to memory: GP_PUT words that are not what they were.
//!
//! Of a VM that rings a doorbell is found every [`PERIOD_NS`] at most. A guest that waits for its work rings as long after its last doorbell as that
//! work takes, so looks are close to each other around the time that lay between the last two, and rare before and behind it, the rarer the surer
//! it is: some for each doorbell, none before half of that time. One that is quiet is looked at less and less often, down to every [`IDLE_NS`], at
//! the same moments as all others that are quiet: they cost one wake-up of the broker together. So is one whose VMM says when its guest rests,
//! because it is looked at then. A look is a load of a word for each channel that the guest has.
//!
//! A VMM that can make its guest's stores to USERD trap spares its VM the looks while that is quiet:
//!
//! ```text
//!  (Watched) ──quiet for QUIET_NS: the VMM is told──► (Told) ──Sweep::arm, a last look finds nothing──► (Armed)
//!      ▲  ▲                                              │                                                │
//!      │  └──────────────a doorbell is found─────────────┘                                                │
//!      └───────────────────Sweep::stored, or a channel more to look at────────────────────────────────────┘
//! ```
//!
//! The VMM protects the pages before it arms, and lets the guest's store through after it has said that there is one. So a store that
//! the last look does not find traps, and one that traps is found by a look that follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fermi_spec::instance::{USERD_BYTES, userd};
use vgpu::{ChannelWatch, Tick, VmId};
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

/// Least time between two doorbells that looks find of one VM.
const PERIOD_NS: u64 = 50_000;
/// The same for each VM that rings, of all of them: many make the broker serve what is found no more often than a few, and look twice as often at most.
const EACH_NS: u64 = 25_000;
/// Looks around the time at which a doorbell is expected are this part of the period apart.
const GRAINS: u64 = 2;
/// So many doorbells that came when they were expected make it sure: before the time of the next one there is one look.
const SURE: u32 = 4;
/// The same at a VM that has been quiet for some time.
const IDLE_NS: u64 = 1_000_000;
/// The same at one that has been quiet for [`LONG_NS`]: no doorbell is seen later. A wake-up is what costs, a look does not.
const SLEEP_NS: u64 = 4_000_000;
const LONG_NS: u64 = 1_000_000_000;
/// A VM that was quiet for so long is one whose VMM is told. To arm and the trap that ends it cost some looks, and while a guest submits this
/// often there are none.
const QUIET_NS: u64 = 100_000_000;
/// The time between two looks is this part of the time since the last doorbell, or between the last ones.
const PART: u64 = 8;
/// A VMM that said so little time ago that its guest rests will say so again.
const TOLD_NS: u64 = 20_000_000;
/// A VM that rang so little time ago is one that rings.
const RINGS_NS: u64 = 10_000_000;

/// The VMs whose doorbells are looked for.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    watched: BTreeMap<VmId, Watched>,
    /// Those whose VMM can make stores trap.
    trapping: BTreeSet<VmId>,
}

/// What a look found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// The channels that rang, by VM.
    pub(crate) rung: Vec<(VmId, Vec<u8>)>,
    /// VMs whose VMMs are to be told that they are quiet.
    pub(crate) quiet: Vec<VmId>,
}

/// Why stores that trap are of no use, or not yet: the VMM has to let them through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotArmed {
    /// The VM is not quiet, its doorbells lie elsewhere by now, or nobody looks for them.
    Untimely,
    /// These channels have rung.
    Rung(Vec<u8>),
}

/// Who finds the next doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finder {
    Look,
    /// A look still, though the VMM was told that it need not be.
    LookTold,
    /// The VMM, because the guest's store traps.
    Trap,
}

#[derive(Debug)]
struct Watched {
    bar1: Arc<MmapRegion>,
    /// Bytes into BAR1 where USERD lies.
    at: u64,
    /// Channels that are looked at, and the GP_PUT of each at its last look, if there was one.
    seen: BTreeMap<u8, Option<u32>>,
    rung_at: Tick,
    looked_at: Tick,
    /// Time between doorbells, the last ones above all.
    pace_ns: u64,
    /// When the next doorbell is expected, by what looks found of the last ones.
    expected: Expected,
    /// When its VMM last said that its guest rests.
    told_at: Option<Tick>,
    finder: Finder,
    due: Tick,
}

/// Time from one doorbell to the next, as looks find it. What is between two looks is not known.
#[derive(Clone, Copy, Default, Debug)]
struct Expected {
    ns: u64,
    /// By how much it goes down if the first look of a window finds a doorbell, which may have come long before.
    drop_ns: u64,
    /// Doorbells in a row that came when they were expected.
    in_time: u32,
}

impl Expected {
    /// From there on looks are close to each other.
    fn window(self, grain_ns: u64) -> u64 {
        self.ns.saturating_sub(2 * grain_ns)
    }

    /// A look found a doorbell `found_ns` after the last one; the look before found none after `none_ns`.
    fn learn(&mut self, none_ns: u64, found_ns: u64, grain_ns: u64) {
        let (window, gap) = (self.window(grain_ns), found_ns.saturating_sub(none_ns));
        let is_first = none_ns < window && found_ns < self.ns;
        let drop_ns = self.drop_ns.max(grain_ns);
        (self.ns, self.drop_ns, self.in_time) = match () {
            () if gap <= 2 * grain_ns => (found_ns, 0, self.in_time.saturating_add(1)),
            () if is_first => (found_ns.saturating_sub(drop_ns), 2 * drop_ns, 0),
            () => (found_ns.saturating_sub(gap / 2), 0, 0),
        };
    }

    /// Time from the last doorbell to the look after one that found none `since_ns` after it.
    fn next_look(self, since_ns: u64, pace_ns: u64, grain_ns: u64) -> u64 {
        let window = self.window(grain_ns);
        if since_ns < window {
            let next = match since_ns < pace_ns / 2 {
                true => pace_ns / 2,
                false if self.in_time >= SURE => window,
                false => since_ns + (pace_ns / PART).max(grain_ns),
            };
            return next.min(window);
        }
        let late = since_ns.saturating_sub(self.ns);
        since_ns + late.min(since_ns / PART).max(grain_ns)
    }
}

impl Watched {
    /// Looks at all channels, and again after `period_ns` at least if that finds any. Those whose GP_PUT has changed.
    fn look(&mut self, now: Tick, period_ns: u64) -> Vec<u8> {
        let before = std::mem::replace(&mut self.looked_at, now);
        let memory = self.bar1.as_volatile_slice();
        let mut changed = Vec::new();
        for (&v, seen) in &mut self.seen {
            let at = self.at + u64::from(v) * USERD_BYTES + userd::GP_PUT;
            // One that lies outside of the BAR cannot be rung.
            let word = memory.read_obj::<u32>(at as usize).ok();
            if word != *seen {
                *seen = word;
                changed.push(v);
            }
        }
        if !changed.is_empty() {
            let since = now.since(self.rung_at);
            self.expected
                .learn(before.since(self.rung_at), since, period_ns / GRAINS);
            self.pace_ns = (self.pace_ns / 4 * 3).saturating_add(since / 4);
            self.rung_at = now;
            self.finder = Finder::Look;
        }
        self.due = self.next_look(now, period_ns);
        changed
    }

    /// Looks are what finds its doorbells, and the next one comes at once.
    fn wake(&mut self, now: Tick) {
        (self.finder, self.rung_at, self.pace_ns) = (Finder::Look, now, 0);
        self.expected = Expected::default();
        self.due = now.after(PERIOD_NS);
    }

    /// Whether looks find anything that nobody else would.
    fn is_looked_at(&self) -> bool {
        self.finder != Finder::Trap && !self.seen.is_empty()
    }

    /// Whether its VMM is to be told now that it is quiet.
    fn becomes_quiet(&mut self, now: Tick) -> bool {
        let is_quiet = self.finder == Finder::Look && now.since(self.rung_at) >= QUIET_NS;
        if is_quiet {
            self.finder = Finder::LookTold;
        }
        is_quiet
    }

    fn next_look(&self, now: Tick, period_ns: u64) -> Tick {
        let quiet = now.since(self.rung_at);
        let is_told = self.told_at.is_some_and(|at| now.since(at) < TOLD_NS);
        if is_told || quiet / PART >= IDLE_NS {
            let pause = if quiet < LONG_NS { IDLE_NS } else { SLEEP_NS };
            return Tick((now.0 / pause + 1) * pause).max(now.after(period_ns));
        }
        let grain = period_ns / GRAINS;
        let next = self.expected.next_look(quiet, self.pace_ns, grain);
        let least = if quiet == 0 { period_ns } else { grain };
        self.rung_at
            .after(next)
            .max(now.after(least))
            .min(now.after(IDLE_NS.max(least)))
    }
}

impl Sweep {
    /// USERD of a VM lies at `at` of its BAR1. None of its channels is looked at yet.
    pub(crate) fn watch(&mut self, vm: VmId, bar1: Arc<MmapRegion>, at: u64) {
        let watched = Watched {
            bar1,
            at,
            seen: BTreeMap::new(),
            rung_at: Tick::default(),
            looked_at: Tick::default(),
            pace_ns: 0,
            expected: Expected::default(),
            told_at: None,
            finder: Finder::Look,
            due: Tick::default(),
        };
        self.watched.insert(vm, watched);
    }

    /// Bytes into BAR1 where USERD of a VM lies, if it is looked at.
    pub(crate) fn place(&self, vm: VmId) -> Option<u64> {
        self.watched.get(&vm).map(|watched| watched.at)
    }

    /// The VMM of a VM can make stores to its doorbells trap, until [`Sweep::leave`].
    pub(crate) fn let_trap(&mut self, vm: VmId) {
        self.trapping.insert(vm);
    }

    /// The VMM of a VM stores no more to its doorbells than through a trap, which it has made for those that lie at `at`. From then on nobody
    /// looks for them.
    pub(crate) fn arm(&mut self, vm: VmId, at: u64, now: Tick) -> Result<(), NotArmed> {
        let period_ns = self.period_ns(now);
        let told = |watched: &&mut Watched| watched.finder == Finder::LookTold && watched.at == at;
        let watched = self.watched.get_mut(&vm).filter(told).ok_or(NotArmed::Untimely)?;
        let rung = watched.look(now, period_ns);
        if !rung.is_empty() {
            return Err(NotArmed::Rung(rung));
        }
        watched.finder = Finder::Trap;
        Ok(())
    }

    /// A store to doorbells of a VM has trapped, and is about to be let through. The channels that have rung by now; what has not been stored
    /// yet is found by a look.
    pub(crate) fn stored(&mut self, vm: VmId, now: Tick) -> Vec<u8> {
        let period_ns = self.period_ns(now);
        let trapped = |watched: &&mut Watched| watched.finder == Finder::Trap;
        let Some(watched) = self.watched.get_mut(&vm).filter(trapped) else {
            return Vec::new();
        };
        watched.wake(now);
        watched.look(now, period_ns)
    }

    /// Looks for doorbells of a channel from now on, or no more. What is there at first counts as one.
    pub(crate) fn watch_channel(&mut self, watch: ChannelWatch, now: Tick) {
        let ChannelWatch {
            vm,
            channel,
            is_watched,
        } = watch;
        let Some(watched) = self.watched.get_mut(&vm) else {
            return;
        };
        match is_watched {
            true => {
                watched.seen.insert(channel, None);
                // Its guest may have stored before it was watched.
                match watched.finder {
                    Finder::Trap => watched.wake(now),
                    Finder::Look | Finder::LookTold => watched.due = now.after(PERIOD_NS),
                }
            }
            false => drop(watched.seen.remove(&channel)),
        }
    }

    /// Looks for no doorbells of a VM any more, and lets go of its memory.
    pub(crate) fn forget(&mut self, vm: VmId) {
        self.watched.remove(&vm);
    }

    /// The VMM of a VM is gone, and so is what it could do.
    pub(crate) fn leave(&mut self, vm: VmId) {
        self.forget(vm);
        self.trapping.remove(&vm);
    }

    /// Looks at a VM whose guest rests now, or soon if it was just looked at: what it had to say is said. The channels that rang.
    pub(crate) fn guest_rests(&mut self, vm: VmId, now: Tick) -> Vec<u8> {
        let period_ns = self.period_ns(now);
        let Some(watched) = self.watched.get_mut(&vm) else {
            return Vec::new();
        };
        watched.told_at = Some(now);
        if !watched.is_looked_at() {
            return Vec::new();
        }
        let next = watched.looked_at.after(period_ns);
        if now < next {
            watched.due = watched.due.min(next);
            return Vec::new();
        }
        watched.look(now, period_ns)
    }

    /// Least time between two looks at a VM.
    fn period_ns(&self, now: Tick) -> u64 {
        let rings = |watched: &&Watched| now.since(watched.rung_at) < RINGS_NS;
        let ringing = self.watched.values().filter(rings).count() as u64;
        PERIOD_NS.max(EACH_NS * ringing)
    }

    /// When the next look is due.
    pub(crate) fn due(&self) -> Option<Tick> {
        let watched = self.watched.values().filter(|watched| watched.is_looked_at());
        watched.map(|watched| watched.due).min()
    }

    /// Looks at the VMs whose turn it is.
    pub(crate) fn look(&mut self, now: Tick) -> Looked {
        let period_ns = self.period_ns(now);
        let mut looked = Looked::default();
        let due = |watched: &Watched| watched.due <= now && watched.is_looked_at();
        for (&vm, watched) in self.watched.iter_mut().filter(|(_, watched)| due(watched)) {
            let channels = watched.look(now, period_ns);
            if !channels.is_empty() {
                looked.rung.push((vm, channels));
            } else if self.trapping.contains(&vm) && watched.becomes_quiet(now) {
                looked.quiet.push(vm);
            }
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
    use std::sync::{Mutex, RwLock};
    use std::time::{Duration, Instant};

    use fermi_spec::instance::CHANNELS;

    use super::*;
    use crate::mapping::{map_shared, sealed_memfd};

    const AT: u64 = 0x1000;

    fn ring(bar1: &MmapRegion, v: u64, gp_put: u32) {
        let at = AT + v * USERD_BYTES + userd::GP_PUT;
        bar1.as_volatile_slice().write_obj(gp_put, at as usize).unwrap();
    }

    fn watch(vm: VmId, channel: u8, is_watched: bool) -> ChannelWatch {
        ChannelWatch {
            vm,
            channel,
            is_watched,
        }
    }

    fn mapping() -> Arc<MmapRegion> {
        let bytes = AT + CHANNELS as u64 * USERD_BYTES;
        map_shared(Arc::new(sealed_memfd("bar1", bytes).unwrap()), 0, bytes, true).unwrap()
    }

    /// A VM of which these channels are looked at, and have been looked at once.
    fn watching(sweep: &mut Sweep, vm: VmId, bar1: &Arc<MmapRegion>, channels: &[u8], now: Tick) {
        sweep.watch(vm, bar1.clone(), AT);
        for &channel in channels {
            sweep.watch_channel(watch(vm, channel, true), now);
        }
        let first = now.after(PERIOD_NS);
        assert_eq!(
            sweep.look(first).rung,
            [(vm, channels.to_vec())],
            "what is there at first"
        );
    }

    #[test]
    fn doorbell_is_found_once_and_within_the_bounds_always() {
        let bar1 = mapping();
        let (vm, other) = (VmId(1), VmId(2));
        let mut sweep = Sweep::default();
        assert_eq!(sweep.due(), None);
        sweep.watch(vm, bar1.clone(), AT);
        assert_eq!(sweep.due(), None, "there is no channel to look at");
        ring(&bar1, 3, 7);
        watching(&mut sweep, vm, &bar1, &[3, 127], Tick(0));
        assert!(sweep.look(Tick(2 * PERIOD_NS)).rung.is_empty());
        ring(&bar1, 3, 8);
        ring(&bar1, 4, 1);
        ring(&bar1, 127, 1);
        assert_eq!(sweep.look(Tick(4 * PERIOD_NS)).rung, [(vm, vec![3, 127])]);
        assert!(sweep.due().unwrap().0 <= 5 * PERIOD_NS + PERIOD_NS / 2);
        // It is quiet from here on.
        let (mut looks, mut longest) = (0, 0);
        while let Some(due) = sweep.due().filter(|due| due.0 < 3_000_000_000) {
            assert_eq!(sweep.look(due), Looked::default());
            longest = longest.max(sweep.due().unwrap().since(due));
            looks += 1;
        }
        assert!((1_450..1_600).contains(&looks), "{looks} looks in three seconds");
        assert_eq!(longest, SLEEP_NS);
        // Two that are quiet are looked at together.
        watching(&mut sweep, other, &bar1, &[0], Tick(3_000_000_000));
        while let Some(due) = sweep.due().filter(|due| due.0 < 5_000_000_000) {
            assert_eq!(sweep.look(due), Looked::default());
        }
        let due = sweep.due().unwrap();
        ring(&bar1, 0, 1);
        ring(&bar1, 3, 9);
        assert_eq!(sweep.look(due).rung, [(vm, vec![3]), (other, vec![0])]);
        sweep.watch_channel(watch(other, 0, false), due);
        sweep.forget(vm);
        assert_eq!(sweep.due(), None);
    }

    /// Looks at a VM whose doorbells come so far apart: how many looks each took, and how late it was found at most.
    fn looks_and_delay(apart_ns: u64, tells: bool) -> (u64, u64) {
        const ROUNDS: u32 = 100;
        let bar1 = mapping();
        let (vm, mut sweep) = (VmId(0), Sweep::default());
        watching(&mut sweep, vm, &bar1, &[0], Tick(0));
        let (mut looks, mut latest, mut now) = (0, 0, Tick(PERIOD_NS));
        for round in 1..=ROUNDS {
            let rung_at = now.after(apart_ns);
            while let Some(due) = sweep.due().filter(|due| *due < rung_at) {
                assert_eq!(sweep.look(due), Looked::default());
                looks += 1;
            }
            ring(&bar1, 0, round);
            now = rung_at;
            if !tells || sweep.guest_rests(vm, now).is_empty() {
                now = sweep.due().unwrap();
                looks += 1;
                assert_eq!(sweep.look(now).rung, [(vm, vec![0])]);
            }
            // The pace has to be learnt.
            if round > ROUNDS / 2 {
                latest = latest.max(now.since(rung_at));
            }
        }
        (looks / u64::from(ROUNDS), latest)
    }

    /// Looks at a VM whose doorbells come as `apart_ns` says, one after the other: how many looks each took, and how late all were found, in parts of a
    /// thousand of all the time.
    fn looks_and_delays(apart_ns: impl Fn(u64) -> u64) -> (u64, u64) {
        const ROUNDS: u64 = 1_000;
        let bar1 = mapping();
        let (vm, mut sweep) = (VmId(0), Sweep::default());
        watching(&mut sweep, vm, &bar1, &[0], Tick(0));
        let (mut looks, mut late, mut now) = (0, 0, Tick(PERIOD_NS));
        for round in 1..=ROUNDS {
            let rung_at = now.after(apart_ns(round));
            while let Some(due) = sweep.due().filter(|due| *due < rung_at) {
                assert_eq!(sweep.look(due), Looked::default());
                looks += 1;
            }
            ring(&bar1, 0, round as u32);
            now = sweep.due().unwrap();
            looks += 1;
            assert_eq!(sweep.look(now).rung, [(vm, vec![0])]);
            late += now.since(rung_at);
        }
        (looks / ROUNDS, 1_000 * late / now.0)
    }

    #[test]
    fn doorbells_without_a_rhythm_are_found_soon_too() {
        let noise = |round: u64| round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
        type Apart = Box<dyn Fn(u64) -> u64>;
        let shapes: [(&str, Apart, u64, u64); 5] = [
            ("the same", Box::new(|_| 2_000_000), 5, 10),
            (
                "a tenth more or less",
                Box::new(move |round| 1_800_000 + noise(round) % 400_000),
                9,
                50,
            ),
            (
                "two in turns",
                Box::new(|round| 1_000_000 + round % 2 * 1_000_000),
                9,
                90,
            ),
            (
                "ten of each",
                Box::new(|round| 500_000 + round / 10 % 2 * 2_000_000),
                8,
                70,
            ),
            ("any", Box::new(move |round| 200_000 + noise(round) * 4), 9, 110),
        ];
        for (name, apart_ns, looks_max, late_max) in shapes {
            let (looks, late) = looks_and_delays(apart_ns);
            assert!(
                looks <= looks_max && late <= late_max,
                "{name}: {looks} looks for each, {late}/1000 late"
            );
        }
    }

    #[test]
    fn looks_follow_the_pace_of_doorbells_and_are_few_where_the_vmm_tells() {
        for (apart_ns, looks_max, late_max) in [
            (25_000, 1, 50_000),
            (50_000, 2, 25_000),
            (400_000, 5, 25_000),
            (2_000_000, 6, 25_000),
            (20_000_000, 24, 1_000_000),
        ] {
            let (looks, late) = looks_and_delay(apart_ns, false);
            assert!(
                looks <= looks_max,
                "{looks} looks for a doorbell each {apart_ns} ns"
            );
            assert!(
                late <= late_max,
                "{late} ns late with a doorbell each {apart_ns} ns"
            );
            let (looks, late) = looks_and_delay(apart_ns, true);
            assert!(looks <= apart_ns / IDLE_NS + 2, "{looks} looks, and it was told");
            let late_max = PERIOD_NS.saturating_sub(apart_ns);
            assert!(late <= late_max, "{late} ns late, and it was told");
        }
        assert!(Sweep::default().guest_rests(VmId(3), Tick(0)).is_empty());
    }

    #[test]
    fn many_that_ring_without_end_are_not_looked_at_more_often_together() {
        let bar1 = mapping();
        let found_in_a_second = |vms: u16| {
            let mut sweep = Sweep::default();
            for vm in 0..vms {
                sweep.watch(VmId(vm), bar1.clone(), AT);
                sweep.watch_channel(watch(VmId(vm), 0, true), Tick(0));
            }
            let (mut found, mut put) = (0, 0);
            while let Some(due) = sweep.due().filter(|due| due.0 < 1_000_000_000) {
                put += 1;
                ring(&bar1, 0, put);
                found += sweep.look(due).rung.len();
                // Their VMMs have them rest as often as they can.
                (0..vms).for_each(|vm| {
                    found += usize::from(!sweep.guest_rests(VmId(vm), due.after(1)).is_empty())
                });
            }
            found
        };
        for vms in [1, 4, 8, 32, 60] {
            let found = found_in_a_second(vms);
            assert!(found <= 40_000 + 100 * usize::from(vms), "{found} for {vms} VMs");
        }
    }

    #[test]
    fn no_doorbell_is_lost_while_looks_race_with_stores() {
        const ROUNDS: u32 = 1_000_000;
        let bar1 = mapping();
        let (vm, mut now) = (VmId(0), Tick(0));
        let mut sweep = Sweep::default();
        watching(&mut sweep, vm, &bar1, &[5], now);
        let (done, served) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for round in 1..=ROUNDS {
                    ring(&bar1, 5, round);
                    // Now and then it waits until its doorbell was served, as a guest waits for its work.
                    while round % 64 == 0 && served.load(SeqCst) != round {
                        std::hint::spin_loop();
                    }
                }
                done.store(true, SeqCst);
            });
            let mut is_over = false;
            while !is_over {
                // What was stored before this is found in this look.
                is_over = done.load(SeqCst);
                now = now.after(SLEEP_NS);
                for (of, channels) in sweep.look(now).rung {
                    assert_eq!((of, channels), (vm, vec![5]));
                    let at = AT + 5 * USERD_BYTES + userd::GP_PUT;
                    let gp_put = bar1.as_volatile_slice().read_obj(at as usize).unwrap();
                    assert!(gp_put >= served.swap(gp_put, SeqCst), "GP_PUT goes back");
                }
            }
        });
        assert_eq!(served.into_inner(), ROUNDS);
    }

    /// A VM that is quiet, and whose VMM has been told so.
    fn told(sweep: &mut Sweep, vm: VmId, bar1: &Arc<MmapRegion>, now: Tick) -> Tick {
        sweep.let_trap(vm);
        watching(sweep, vm, bar1, &[0], now);
        let from = now.after(PERIOD_NS);
        loop {
            let due = sweep.due().unwrap();
            let looked = sweep.look(due);
            assert!(looked.rung.is_empty());
            if looked.quiet == [vm] {
                assert!((QUIET_NS..QUIET_NS + 2 * IDLE_NS).contains(&due.since(from)));
                return due;
            }
        }
    }

    #[test]
    fn quiet_vm_is_not_looked_at_while_its_stores_trap() {
        let bar1 = mapping();
        let (vm, mut sweep) = (VmId(4), Sweep::default());
        let now = told(&mut sweep, vm, &bar1, Tick(0));
        assert_eq!(sweep.place(vm), Some(AT));
        let next = sweep.due().unwrap();
        assert_eq!(sweep.look(next), Looked::default(), "it is told once");
        assert_eq!(sweep.arm(vm, AT, now), Ok(()));
        assert_eq!(sweep.due(), None);
        assert!(sweep.guest_rests(vm, now.after(SLEEP_NS)).is_empty());
        // The store comes when it has been let through, and is found soon.
        let now = now.after(LONG_NS);
        assert!(sweep.stored(vm, now).is_empty());
        ring(&bar1, 0, 1);
        let due = sweep.due().unwrap();
        assert!(due.since(now) <= PERIOD_NS);
        assert_eq!(sweep.look(due).rung, [(vm, vec![0])]);
        assert!(sweep.stored(vm, due).is_empty(), "nothing traps");
        // Armed again, a channel more ends it: its guest may have stored before.
        let mut now = due;
        while sweep.look(now).quiet.is_empty() {
            now = sweep.due().unwrap();
        }
        assert_eq!(sweep.arm(vm, AT, now), Ok(()));
        ring(&bar1, 9, 5);
        sweep.watch_channel(watch(vm, 9, true), now);
        assert_eq!(sweep.look(sweep.due().unwrap()).rung, [(vm, vec![9])]);
        sweep.leave(vm);
        assert!(sweep.stored(vm, now).is_empty() && sweep.place(vm).is_none());
    }

    #[test]
    fn stores_are_let_through_where_a_trap_would_lose_one_or_is_of_no_use() {
        let bar1 = mapping();
        let (vm, mut sweep) = (VmId(4), Sweep::default());
        assert_eq!(sweep.arm(vm, AT, Tick(0)), Err(NotArmed::Untimely), "unknown");
        let now = told(&mut sweep, vm, &bar1, Tick(0));
        assert_eq!(
            sweep.arm(vm, AT + USERD_BYTES, now),
            Err(NotArmed::Untimely),
            "elsewhere"
        );
        ring(&bar1, 0, 3);
        assert_eq!(
            sweep.arm(vm, AT, now),
            Err(NotArmed::Rung(vec![0])),
            "stored before it trapped"
        );
        assert_eq!(
            sweep.arm(vm, AT, now),
            Err(NotArmed::Untimely),
            "it has just rung"
        );
        assert!(sweep.due().is_some());
        // Doorbells elsewhere: nobody was told of those.
        let now = told(&mut sweep, vm, &bar1, now);
        sweep.watch(vm, bar1.clone(), AT);
        assert_eq!(sweep.arm(vm, AT, now), Err(NotArmed::Untimely), "placed anew");
    }

    #[test]
    fn no_doorbell_is_lost_while_arming_races_with_stores() {
        const ARMED: u32 = 1_000_000;
        let bar1 = mapping();
        let (vm, channel) = (VmId(0), 5);
        let mut sweep = Sweep::default();
        sweep.let_trap(vm);
        watching(&mut sweep, vm, &bar1, &[channel], Tick(0));
        let sweep = Mutex::new(sweep);
        // What a VMM has: pages that can be stored to or not, and a lock for changes of that.
        let (is_writable, vmm) = (RwLock::new(true), Mutex::new(()));
        let (now, served, is_over) = (AtomicU64::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let serve = |channels: &[u8]| {
            if !channels.is_empty() {
                let at = AT + u64::from(channel) * USERD_BYTES + userd::GP_PUT;
                let gp_put = bar1.as_volatile_slice().read_obj(at as usize).unwrap();
                served.fetch_max(gp_put, SeqCst);
            }
        };
        let tick = || Tick(now.load(SeqCst));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut round: u32 = 0;
                while !is_over.load(SeqCst) {
                    round += 1;
                    loop {
                        let through = is_writable.read().unwrap();
                        if *through {
                            ring(&bar1, channel.into(), round);
                            break;
                        }
                        drop(through);
                        let _one_at_a_time = vmm.lock().unwrap();
                        *is_writable.write().unwrap() = true;
                        serve(&sweep.lock().unwrap().stored(vm, tick()));
                    }
                    // The guest waits for its work, and then for a while in which it may be found quiet, or not.
                    while served.load(SeqCst) != round && !is_over.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    (0..round.wrapping_mul(7919) % 64).for_each(|_| std::hint::spin_loop());
                }
            });
            let (mut armed, mut last) = (0, Instant::now());
            while armed < ARMED {
                now.fetch_add(QUIET_NS / 2, SeqCst);
                let looked = sweep.lock().unwrap().look(tick());
                looked.rung.iter().for_each(|(_, channels)| serve(channels));
                if !looked.quiet.is_empty() {
                    let _one_at_a_time = vmm.lock().unwrap();
                    *is_writable.write().unwrap() = false;
                    let outcome = sweep.lock().unwrap().arm(vm, AT, tick());
                    match outcome {
                        Ok(()) => (armed, last) = (armed + 1, Instant::now()),
                        Err(error) => {
                            *is_writable.write().unwrap() = true;
                            if let NotArmed::Rung(channels) = error {
                                serve(&channels);
                            }
                        }
                    }
                }
                if last.elapsed() > Duration::from_secs(20) {
                    is_over.store(true, SeqCst);
                    panic!("a doorbell is lost after {armed} times");
                }
            }
            is_over.store(true, SeqCst);
        });
    }

    #[test]
    fn userd_at_the_end_of_the_bar_rings_as_far_as_it_goes() {
        let bytes = AT + USERD_BYTES;
        let bar1 = map_shared(Arc::new(sealed_memfd("bar1", bytes).unwrap()), 0, bytes, true).unwrap();
        let mut sweep = Sweep::default();
        sweep.watch(VmId(0), bar1.clone(), AT);
        (0..3).for_each(|channel| sweep.watch_channel(watch(VmId(0), channel, true), Tick(0)));
        ring(&bar1, 0, 5);
        assert_eq!(sweep.look(Tick(PERIOD_NS)).rung, [(VmId(0), vec![0])]);
    }
}
