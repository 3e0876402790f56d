//! Channels among each other: semaphores, slices, preempts, runlists, doorbells.

use super::support::*;
use crate::{Doorbell, DoorbellWatcher, Stepped};
use fermi_spec::{
    addr::GpuVa,
    bar::Bar,
    instance::{self, offset, userd},
    regs::{PbdmaReg, PffbReg, PfifoReg, PmcReg, pffb, pfifo},
};
use std::sync::{Arc, Mutex};

const SEMAPHORE: u64 = 0x800_0000;
const DATA: u64 = 0x1000_0000;
const ACQUIRE_EQUAL: u32 = 1;
const ACQUIRE_GREATER: u32 = 4;
const GIVE_WAY: u32 = 1 << 12;

/// Two channels in address spaces of their own that share a page at [`SEMAPHORE`].
fn pair(bench: &mut Bench) -> (Channel, Channel, u64) {
    let (a, b) = (bench.channel(1), bench.channel(2));
    let page = bench.allocate(0x1000);
    bench.map(a.space, SEMAPHORE, Page::Vram(page), 0x1000);
    bench.map(b.space, SEMAPHORE, Page::Vram(page), 0x1000);
    bench.flush();
    bench.runlist(&[1, 2]);
    bench.run();
    (a, b, page)
}

/// Maps 8 MiB of system memory and of VRAM for long copies; the system memory comes first.
fn map_long(bench: &mut Bench, space: Space) {
    const BYTES: u64 = 8 << 20;
    let vram = bench.allocate_aligned(BYTES, 0x2_0000);
    bench.map(space, DATA, Page::Ram(0), BYTES);
    bench.map_large(space, DATA + BYTES, Page::Vram(vram), BYTES);
    bench.flush();
}

/// A copy of 8 MiB: about 1.4 ms.
fn long_copy() -> Vec<u32> {
    Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, DATA, DATA + (8 << 20), 0x1000, 2048)
        .release(SEMAPHORE + 0x100, 1)
        .0
}

#[test]
fn acquire_waits_for_the_release_of_another_channel() {
    for operation in [
        ACQUIRE_EQUAL,
        ACQUIRE_EQUAL | GIVE_WAY,
        ACQUIRE_GREATER | GIVE_WAY,
        ACQUIRE_GREATER,
    ] {
        let mut bench = ready();
        let (mut a, mut b, page) = pair(&mut bench);
        let waits = Methods::new()
            .semaphore(SEMAPHORE, 5, operation)
            .release(SEMAPHORE + 0x10, 1);
        bench.submit(&mut a, &waits.0);
        assert_eq!(bench.run(), Stepped::Waiting);
        assert_eq!(bench.vram_u32(page + 0x10), 0);
        bench.submit(&mut b, &Methods::new().release(SEMAPHORE, 5).0);
        assert_eq!(bench.run(), Stepped::Idle);
        assert_eq!(bench.vram_u32(page + 0x10), 1);
    }
}

#[test]
fn acquire_sees_a_release_by_the_cpu() {
    for operation in [ACQUIRE_EQUAL, ACQUIRE_EQUAL | GIVE_WAY] {
        let mut bench = ready();
        let (mut a, _, page) = pair(&mut bench);
        let waits = Methods::new().semaphore(SEMAPHORE, 5, operation);
        bench.submit(&mut a, &waits.0);
        assert_eq!(bench.run(), Stepped::Waiting);
        bench.set_vram_u32(page, 5);
        assert_eq!(bench.run(), Stepped::Idle);
    }
}

#[test]
fn pending_acquire_shows_in_the_channel_state() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.submit(
        &mut a,
        &Methods::new().semaphore(SEMAPHORE, 5, ACQUIRE_EQUAL | GIVE_WAY).0,
    );
    bench.run();
    assert_ne!(bench.read(PfifoReg::ChannelState(1)) & 1 << 4, 0);
}

#[test]
fn acquire_times_out_with_an_interrupt() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    // 3 << 2 units of 1024 ns.
    bench.set_vram_u32(a.instance + offset::ACQUIRE, 1 << 31 | 3 << 15 | 2 << 11 | 2);
    bench.submit(&mut a, &Methods::new().semaphore(SEMAPHORE, 5, ACQUIRE_EQUAL).0);
    bench.run();
    bench.run_for(20_000);
    let pbdma = (0..3).find(|&p| bench.read(PbdmaReg::PbdmaIntr(p)) == 1 << 26);
    assert!(pbdma.is_some());
}

#[test]
fn long_release_writes_payload_and_time() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.submit(&mut a, &Methods::new().semaphore(SEMAPHORE, 5, 2).0);
    bench.run();
    assert_eq!(bench.vram_u64(page), 5);
    assert!((1..=bench.card.gpu_time()).contains(&bench.vram_u64(page + 8)));
}

#[test]
fn release_waits_for_the_copy_unless_told_otherwise() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    map_long(&mut bench, a.space);
    let mut words = long_copy();
    words.truncate(words.len() - 5);
    words.extend(Methods::new().semaphore(SEMAPHORE, 1, 2 | 1 << 20 | 1 << 24).0);
    words.extend(Methods::new().release(SEMAPHORE + 4, 2).0);
    bench.submit(&mut a, &words);
    bench.run_for(100_000);
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 4)], [1, 0]);
    bench.run();
    assert_eq!(bench.vram_u32(page + 4), 2);
}

#[test]
fn endless_channel_leaves_others_their_slices() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    // Every page of a ring of 2^20 entries is the same one, full of entries for one segment of padding.
    let ring = bench.allocate(0x1000);
    for va in (0..8 << 20).step_by(0x1000) {
        bench.map(a.space, 0x2000_0000 + va, Page::Vram(ring), 0x1000);
    }
    bench.flush();
    bench.set_vram_u32(a.instance + offset::GP_BASE_LO, 0x2000_0000);
    bench.set_vram_u32(a.instance + offset::GP_BASE_HI, 20 << 16);
    bench.push(&mut a, &[0; 32]);
    let entry = bench.vram_u64(ring);
    for index in 0..512 {
        bench.set_vram_u64(ring + 8 * index, entry);
    }
    a.put = (1 << 20) - 1;
    bench.ring(&a);
    bench.run_for(10_000);
    // Both want the one PBDMA that may drive PGRAPH.
    bench.write(PfifoReg::PfifoPbdmas, 1);
    bench.submit(&mut b, &Methods::new().release(SEMAPHORE, 9).0);
    bench.run_for(3_000_000);
    assert_eq!(bench.vram_u32(page), 9);
    assert_ne!(bench.gp_get(&a), a.put);
}

#[test]
fn unsatisfied_acquires_leave_others_their_slices() {
    for operation in [ACQUIRE_EQUAL, ACQUIRE_EQUAL | GIVE_WAY] {
        let mut bench = ready();
        let (mut a, mut b, page) = pair(&mut bench);
        bench.write(PfifoReg::PfifoPbdmas, 1);
        bench.submit(&mut a, &Methods::new().semaphore(SEMAPHORE, 5, operation).0);
        bench.run();
        bench.submit(&mut b, &Methods::new().release(SEMAPHORE + 8, 9).0);
        assert_eq!(bench.run(), Stepped::Waiting);
        assert_eq!(bench.vram_u32(page + 8), 9);
    }
}

#[test]
fn preempt_of_a_long_copy_is_pending_until_its_end_and_then_reads_the_id() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    map_long(&mut bench, a.space);
    bench.submit(&mut a, &long_copy());
    bench.run_for(200_000);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    assert_eq!(bench.read(PfifoReg::Preempt), 1 | pfifo::PREEMPT_PENDING);
    bench.run_for(200_000);
    assert_eq!(bench.read(PfifoReg::Preempt), 1 | pfifo::PREEMPT_PENDING);
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
    assert_eq!(bench.read(PfifoReg::ChannelState(1)) & 0x1110, 0);
    assert_eq!(bench.card.counters().copies, 1);
    // The release behind the copy waits in RAMFC for the restart.
    assert_eq!(bench.vram_u32(page + 0x100), 0);
    bench.write(PfifoReg::ChannelState(1), pfifo::CHANNEL_START);
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x100), 1);
}

#[test]
fn preempt_of_a_channel_that_is_nowhere_completes() {
    let mut bench = ready();
    bench.write(PfifoReg::Preempt, 99);
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 99);
}

#[test]
fn refused_preempt_times_out_with_an_interrupt() {
    let mut bench = ready();
    bench.card.faults_mut().refused_preempts = 1;
    bench.write(PfifoReg::SwitchTimeout, 1 << 31 | 100);
    bench.write(PfifoReg::Preempt, 1);
    bench.run_for(200_000);
    assert_eq!(bench.read(PfifoReg::Preempt), 1 | pfifo::PREEMPT_PENDING);
    assert_ne!(bench.read(PfifoReg::PfifoIntr) & pfifo::intr::SCHEDULER, 0);
    assert_eq!(
        bench.read(PfifoReg::SchedulerError),
        pfifo::scheduler_error::SWITCH_TIMEOUT
    );
    bench.write(PfifoReg::Preempt, 1);
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
}

#[test]
fn suspended_channel_moved_to_another_id_goes_on() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    map_long(&mut bench, a.space);
    bench.submit(&mut a, &long_copy());
    bench.run_for(100_000);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    bench.run();
    bench.runlist(&[2]);
    bench.run();
    bench.write(PfifoReg::ChannelInstance(1), 0);
    // The USERD page stays where it was; only the doorbell has another place.
    let mut moved = a;
    moved.id = 40;
    bench.bind(&moved);
    bench.write(PfifoReg::ChannelState(40), pfifo::CHANNEL_START);
    bench.runlist(&[2, 40]);
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x100), 0);
    let doorbell = USERD_VA + 40 * instance::USERD_BYTES + userd::GP_PUT;
    bench.set_vram_u32(a.userd + userd::GP_PUT, a.put);
    bench.card.bar_write(Bar::Bar1, doorbell, &a.put.to_le_bytes());
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x100), 1);
}

#[test]
fn empty_runlist_completes_and_stops_scheduling() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.write(PfifoReg::RunlistIntr, u32::MAX);
    bench.runlist(&[]);
    assert_ne!(bench.read(PfifoReg::RunlistStatus) & pfifo::RUNLIST_PENDING, 0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 0);
    assert_eq!(bench.read(PfifoReg::RunlistIntr), pfifo::RUNLIST_DONE);
    bench.submit(&mut a, &Methods::new().release(SEMAPHORE, 9).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 0);
    bench.runlist(&[1]);
    bench.run();
    assert_eq!(bench.vram_u32(page), 9);
}

#[test]
fn doorbell_is_seen_through_bar1_only() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.push(&mut a, &Methods::new().release(SEMAPHORE, 9).0);
    // The same bytes by another way: the card does not notice.
    bench.set_vram_u32(a.userd + userd::GP_PUT, a.put);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 0);
    bench.ring(&a);
    bench.run();
    assert_eq!(bench.vram_u32(page), 9);
}

#[test]
fn doorbell_within_a_longer_store_rings() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.push(&mut a, &Methods::new().release(SEMAPHORE, 9).0);
    let get = USERD_VA + instance::USERD_BYTES + userd::GP_GET;
    let value = u64::from(a.put) << 32;
    bench.card.bar_write(Bar::Bar1, get, &value.to_le_bytes());
    bench.run();
    assert_eq!(bench.vram_u32(page), 9);
}

/// Notes doorbells: channel, get, put, and the first word of the ring's last entry; and who was bound.
#[derive(Clone, Default)]
struct Seen {
    doorbells: Arc<Mutex<Vec<[u32; 4]>>>,
    bound: Arc<Mutex<Vec<Option<u32>>>>,
}

impl DoorbellWatcher for Seen {
    fn ring(&mut self, mut doorbell: Doorbell<'_>) {
        let mut word = [0; 4];
        let last = GpuVa(doorbell.ring.0 + u64::from(doorbell.put - 1) * 8);
        assert!(doorbell.read(last, &mut word));
        assert!(
            !doorbell.read(GpuVa(0x7_0000_0000), &mut word),
            "nothing is mapped there"
        );
        assert!(
            !doorbell.read(GpuVa(last.0 | 0xffe), &mut word),
            "it ends on another page"
        );
        assert!(
            !doorbell.read(GpuVa(u64::MAX - 7), &mut word),
            "no address has so many bits"
        );
        let of_entry = u32::from_le_bytes(word);
        let mut seen = self.doorbells.lock().unwrap();
        seen.push([doorbell.channel, doorbell.get, doorbell.put, of_entry]);
    }

    fn bound(&mut self, channel: Option<u32>) {
        self.bound.lock().unwrap().push(channel);
    }
}

#[test]
fn watcher_of_doorbells_sees_the_ring_as_its_channel_does_and_changes_nothing() {
    let run = |watcher: Option<Box<dyn DoorbellWatcher>>| {
        let mut bench = ready();
        bench.card.watch_doorbells(watcher);
        let (mut a, _, page) = pair(&mut bench);
        bench.submit(&mut a, &Methods::new().release(SEMAPHORE, 9).0);
        bench.run();
        bench.submit(&mut a, &Methods::new().release(SEMAPHORE, 10).0);
        bench.run();
        assert_eq!(bench.vram_u32(page), 10);
        let entry = bench.ring_entry(&a, 1) as u32;
        let counters = *bench.card.counters();
        bench.card.reset();
        (entry, counters)
    };
    let seen = Seen::default();
    let (entry, counters) = run(Some(Box::new(seen.clone())));
    assert_eq!(run(None).1, counters);
    let (doorbells, bound) = (seen.doorbells.lock().unwrap(), seen.bound.lock().unwrap());
    assert_eq!(doorbells.len(), 2);
    assert_eq!(
        (doorbells[0][..3].to_vec(), doorbells[1]),
        (vec![1, 0, 1], [1, 1, 2, entry])
    );
    assert_eq!(bound[..], [Some(1), Some(2), None]);
}

#[test]
fn many_channels_on_every_engine_all_finish() {
    let mut bench = ready();
    let objects = [0x0004_90b5u32, 0x0005_90b8];
    let page = bench.allocate(0x1000);
    let mut channels: Vec<Channel> = (0..6).map(|id| bench.channel(id)).collect();
    for (index, channel) in channels.iter_mut().enumerate() {
        bench.map(channel.space, SEMAPHORE, Page::Vram(page), 0x1000);
        bench.flush();
        let at = 4 * index as u64;
        let methods = Methods::new()
            .to(1, 0, &[objects[index % 2]])
            .to(2, 0, &[objects[(index + 1) % 2]])
            .to(3, 0, &[0x9039])
            .copy(1, SEMAPHORE, SEMAPHORE + 0x400 + at, 4, 1)
            .copy(2, SEMAPHORE, SEMAPHORE + 0x500 + at, 4, 1)
            .m2mf(3, SEMAPHORE, SEMAPHORE + 0x600 + at, 4, 1)
            .release(SEMAPHORE + 0x100 + at, 1);
        bench.set_vram_u32(page, 0xabcd);
        bench.submit(channel, &methods.0);
    }
    bench.runlist(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(bench.run(), Stepped::Idle);
    for index in 0..6 {
        for (at, value) in [(0x100, 1), (0x400, 0xabcd), (0x500, 0xabcd), (0x600, 0xabcd)] {
            assert_eq!(bench.vram_u32(page + at + 4 * index), value);
        }
    }
}

#[test]
fn two_engines_share_the_link() {
    let mut bench = ready();
    let (mut a, mut b, _) = pair(&mut bench);
    map_long(&mut bench, a.space);
    bench.map(b.space, DATA, Page::Ram(0), 8 << 20);
    let vram = bench.allocate_aligned(8 << 20, 0x2_0000);
    bench.map_large(b.space, DATA + (8 << 20), Page::Vram(vram), 8 << 20);
    bench.flush();
    let start = bench.card.gpu_time();
    bench.submit(&mut a, &long_copy());
    let mut words = long_copy();
    words[1] = 0x0005_90b8;
    bench.submit(&mut b, &words);
    bench.run();
    let time = bench.card.gpu_time() - start;
    let alone = (8u64 << 20) * 1_000 / 6_000;
    assert!(
        (2 * alone..2 * alone + 100_000).contains(&time),
        "{time} ns for twice {alone}"
    );
}

#[test]
fn old_and_new_header_forms_reach_their_methods() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let sema = |payload: u32| [SEMAPHORE as u32, payload, 2 | 1 << 24];
    let mut words = vec![0];
    // Old form: count 3 at method 14.
    words.push(3 << 18 | 0x14);
    words.extend(sema(1));
    // Increment once: reference, then two words to the next method.
    words.extend([5 << 29 | 2 << 16 | 0x50 >> 2, 77, 0]);
    words.pop();
    words.push(0);
    bench.submit(&mut a, &words);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
    assert_eq!(bench.vram_u32(a.userd + userd::REF), 77);
}

/// A copy context in memory at [`CONTEXT`] for copy engine 0.
fn give_context(bench: &mut Bench, channel: &Channel) -> u64 {
    let context = bench.allocate(0x1000);
    bench.map(channel.space, CONTEXT, Page::Vram(context), 0x1000);
    bench.flush();
    bench.set_vram_u32(channel.instance + 0x230, CONTEXT as u32 | 4);
    context
}

const CONTEXT: u64 = 0x3000_0000;

#[test]
fn copy_context_in_memory_follows_the_channel_to_another_block() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let context = give_context(&mut bench, &a);
    bench.set_vram_u32(page + 0x10, 77);
    let surfaces = [0, SEMAPHORE as u32 + 0x10, 0, SEMAPHORE as u32 + 0x20, 4, 4, 4, 1];
    let half = Methods::new().to(1, 0, &[0x0004_90b5]).to(1, 0x30c, &surfaces);
    bench.submit(&mut a, &half.0);
    bench.run();
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    bench.run();
    assert_ne!(bench.vram_bytes(context, 256), [0; 256]);
    let block = bench.allocate(0x1000);
    let bytes = bench.vram_bytes(a.instance, 0x1000);
    bench.set_vram_bytes(block, &bytes);
    bench.write(PfifoReg::ChannelInstance(1), 0);
    a.instance = block;
    bench.bind(&a);
    bench.write(PfifoReg::ChannelState(1), pfifo::CHANNEL_START);
    bench.submit(&mut a, &Methods::new().to(1, 0x300, &[0x110]).0);
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x20), 77);
}

#[test]
fn copy_context_that_is_not_mapped_faults_the_engine() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.set_vram_u32(a.instance + 0x230, CONTEXT as u32 | 4);
    bench.submit(&mut a, &Methods::new().to(1, 0, &[0x0004_90b5]).0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 0x15 + 1)), CONTEXT as u32);
}

#[test]
fn context_that_cannot_be_saved_halts_its_channel_only() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    give_context(&mut bench, &a);
    bench.submit(&mut a, &Methods::new().to(1, 0, &[0x0004_90b5]).0);
    bench.run();
    let entry = bench.small_entry(a.space, CONTEXT);
    bench.set_vram_u64(entry, 0);
    bench.flush();
    let good = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, SEMAPHORE + 8, SEMAPHORE + 16, 4, 1)
        .release(SEMAPHORE, 1);
    bench.submit(&mut b, &good.0);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    assert_eq!(bench.read(PfifoReg::EngineFault), 0);
}

#[test]
fn delayed_runlist_stays_pending_for_that_long() {
    let mut bench = ready();
    bench.card.faults_mut().runlist_delay_ns = 1_000_000;
    let start = bench.card.gpu_time();
    bench.runlist(&[]);
    bench.run();
    assert!(bench.card.gpu_time() >= start + 1_000_000);
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 0);
}

#[test]
fn delayed_flush_stays_pending_and_drops_nothing_for_that_long() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.submit(&mut a, &Methods::new().release(SEMAPHORE, 1).0);
    bench.run();
    bench.card.faults_mut().flush_delay_ns = 1_000_000;
    let start = bench.card.gpu_time();
    let (kept, flushes) = (
        bench.card.translations().count(),
        bench.card.counters().tlb_flushes,
    );
    assert!(kept > 0);
    bench.flush();
    assert_eq!(bench.read(PffbReg::MmuConfig) & pffb::MMU_CONFIG_FLUSHED, 0);
    assert_eq!(bench.card.translations().count(), kept);
    bench.run();
    assert!(bench.card.gpu_time() >= start + 1_000_000);
    assert_ne!(bench.read(PffbReg::MmuConfig) & pffb::MMU_CONFIG_FLUSHED, 0);
    assert_eq!(bench.card.counters().tlb_flushes, flushes + 1);
}

#[test]
fn delayed_preempt_takes_that_much_longer() {
    let mut bench = ready();
    bench.card.faults_mut().preempt_delay_ns = 1_000_000;
    let start = bench.card.gpu_time();
    bench.write(PfifoReg::Preempt, 5);
    assert_eq!(bench.read(PfifoReg::Preempt), 5 | pfifo::PREEMPT_PENDING);
    bench.run();
    assert!(bench.card.gpu_time() >= start + 1_000_000);
    assert_eq!(bench.read(PfifoReg::Preempt), 5);
}

#[test]
fn lost_interrupt_leaves_the_status_to_poll() {
    let mut bench = ready();
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    bench.card.faults_mut().lost_interrupts = 1;
    bench.runlist(&[]);
    bench.run();
    assert!(!bench.card.take_interrupt());
    assert_eq!(bench.read(PfifoReg::RunlistIntr), pfifo::RUNLIST_DONE);
}

#[test]
fn slowed_copy_takes_that_many_times_as_long() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    map_long(&mut bench, a.space);
    bench.card.faults_mut().copy_slowdown = 3;
    let start = bench.card.gpu_time();
    bench.submit(&mut a, &long_copy());
    bench.run();
    let time = bench.card.gpu_time() - start;
    let normal = (8u64 << 20) * 1_000 / 6_000;
    assert!(
        (3 * normal..3 * normal + 100_000).contains(&time),
        "{time} ns for three times {normal}"
    );
}

#[test]
fn card_can_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<crate::FermiModel>();
}
