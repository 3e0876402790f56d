//! Access counters of grids and copies, and a card without them.

use super::compute::{A, B, BUFFER_BYTES, C, Kernel, prepare, vecadd};
use super::support::*;
use crate::{Capabilities, Counters, ReplayableFaults, Stepped, Timing};
use fermi_spec::{addr::Aperture, board::Board};

const BLOCK: u64 = 0x1_0000;
const COUNTING: Capabilities = Capabilities {
    access_counters: true,
    replayable_faults: None,
};

fn timing() -> Timing {
    Timing::of(Board::Gtx480)
}

/// Counts by address of the block: loads, stores.
fn counts(bench: &Bench, channel: &Channel) -> Vec<(u64, u32, u32)> {
    let all = bench.card.access_counts().map(|count| {
        assert_eq!(count.directory.0, Aperture::Vram);
        assert_eq!(count.directory.1.0, channel.space.directory);
        (count.va.0, count.loads, count.stores)
    });
    all.collect()
}

/// Runs a kernel on a card that counts.
fn counts_of(kernel: &Kernel) -> (Bench, Vec<(u64, u32, u32)>) {
    let mut bench = ready_with_capabilities(timing(), COUNTING);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    prepare(&mut bench, &channel, kernel);
    bench.submit(&mut channel, &kernel.methods(C, 1).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.card.counters().grids, 1);
    let counts = counts(&bench, &channel);
    (bench, counts)
}

#[test]
fn instruction_of_a_warp_counts_once_for_each_page() {
    let source = format!(
        "mov b32 $r1 $laneid
        shl b32 $r2 $r1 clamp 0x2
        shl b32 $r3 $r1 clamp 0xc
        add b32 $r4 $r2 0x{A:x}
        ld b32 $r5 ca g[$r4]
        ld b32 $r5 ca g[$r4+0x4]
        ld b32 $r5 ca g[$r4+0xfc0]
        add b32 $r4 $r3 0x{B:x}
        st b32 wb g[$r4] $r1
        add b32 $r4 $r2 0x{C:x}
        red add u32 g[$r4+0x10000] $r1
        exit"
    );
    // The third load lies across two pages; the store has a page for each of the lanes; of an atomic operation both count.
    let (mut bench, found) = counts_of(&Kernel::new(&source, [2, 1], 32, &[]));
    let wanted = [
        (A, 2 * 4, 0),
        (B, 0, 2 * 16),
        (B + BLOCK, 0, 2 * 16),
        (C + BLOCK, 2, 2),
    ];
    assert_eq!(found, wanted);
    bench.card.clear_access_counts();
    assert_eq!(bench.card.access_counts().count(), 0);
}

#[test]
fn copy_counts_pages_as_it_moves_them() {
    let mut bench = ready_with_capabilities(timing(), COUNTING);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    prepare(&mut bench, &channel, &vecadd(1));
    // From the middle of a block, three pages long.
    let methods = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, A + 0x8000, B + 0xf000, 0x3000, 1);
    bench.submit(&mut channel, &methods.0);
    bench.run();
    assert_eq!(bench.card.counters().copies, 1);
    assert_eq!(
        counts(&bench, &channel),
        [(A, 3, 0), (B, 0, 1), (B + BLOCK, 0, 2)]
    );
}

/// All that a run leaves: VRAM, counters, time.
fn run_of(capabilities: Capabilities) -> (Vec<u8>, Counters, u64) {
    let mut bench = ready_with_capabilities(timing(), capabilities);
    let mut channel = bench.channel(1);
    let mut copier = bench.channel_in(2, channel.space);
    bench.runlist(&[1, 2]);
    let kernel = vecadd(20_000);
    let memories = prepare(&mut bench, &channel, &kernel);
    for i in 0..20_000 {
        bench.set_vram_u32(memories.a + 4 * i, (i as f32).to_bits());
        bench.set_vram_u32(memories.b + 4 * i, (0.25 * i as f32).to_bits());
    }
    for round in 1..4 {
        bench.submit(&mut channel, &kernel.methods(C + BUFFER_BYTES - 16, round).0);
        assert_eq!(bench.run(), Stepped::Idle);
        let copy = Methods::new().to(2, 0, &[0x0004_90b5]).copy(2, C, A, 0x1000, 19);
        bench.submit(&mut copier, &copy.0);
        assert_eq!(bench.run(), Stepped::Idle);
    }
    assert_eq!(bench.card.counters().copies, 3);
    let vram = bench.vram_bytes(0, VRAM_BYTES as usize);
    (vram, *bench.card.counters(), bench.card.gpu_time())
}

/// The other side of it, a card with nothing on, is every other test of this crate.
#[test]
fn capabilities_that_nothing_needs_change_neither_bytes_nor_counts_nor_time() {
    let plain = run_of(Capabilities::NONE);
    assert_eq!(plain.1.grids, 3);
    let both = Capabilities {
        access_counters: true,
        replayable_faults: Some(ReplayableFaults::DEFAULT),
    };
    for capabilities in [COUNTING, both] {
        let found = run_of(capabilities);
        assert!(found.0 == plain.0, "{capabilities:?} changes bytes");
        assert_eq!((found.1, found.2), (plain.1, plain.2), "{capabilities:?}");
    }
}

#[test]
fn card_without_counters_counts_nothing() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = vecadd(100);
    prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &kernel.methods(C, 1).0);
    bench.run();
    assert_eq!(bench.card.counters().grids, 1);
    assert_eq!(bench.card.access_counts().count(), 0);
}

#[test]
fn what_is_refused_is_not_counted() {
    let mut bench = ready_with_capabilities(timing(), COUNTING);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    // The first half of the lanes reaches the last page of A, the others what is behind it.
    let source = format!(
        "mov b32 $r1 $laneid
        shl b32 $r1 $r1 clamp 0x2
        add b32 $r1 $r1 0x{:x}
        ld b32 $r2 ca g[$r1]
        exit",
        A + BUFFER_BYTES - 64
    );
    let kernel = Kernel::new(&source, [1, 1], 32, &[]);
    prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &kernel.methods(C, 1).0);
    bench.run();
    assert_eq!(bench.card.counters().mmu_faults, 1);
    assert_eq!(counts(&bench, &channel), []);
}
