//! Neither results nor GPU time depend on how the work is sliced.

use super::support::*;
use crate::{Counters, Stepped};
use proptest::prelude::*;

const DATA: u64 = 0x1000_0000;
const BYTES: u64 = 1 << 20;

/// Three channels on all engines, with semaphores between them; the budgets repeat.
fn run_with(budgets: &[u32]) -> (u64, Counters, Vec<u8>) {
    let mut bench = ready();
    let vram = bench.allocate_aligned(2 * BYTES, 0x2_0000);
    let mut channels: Vec<Channel> = (0..3).map(|id| bench.channel(id)).collect();
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    bench.set_vram_bytes(vram, &pattern);
    for channel in &channels {
        bench.map_large(channel.space, DATA, Page::Vram(vram), 2 * BYTES);
        bench.map(channel.space, 0x800_0000, Page::Ram(0), BYTES);
    }
    bench.flush();
    let semaphore = DATA + 2 * BYTES - 0x1000;
    let jobs = [
        Methods::new()
            .to(1, 0, &[0x0004_90b5])
            .copy(1, DATA, 0x800_0000, 0x1000, 100)
            .release(semaphore, 1)
            .copy(1, DATA + 0x100, DATA + BYTES, 77, 300),
        Methods::new()
            .semaphore(semaphore, 1, 1 | 1 << 12)
            .to(1, 0, &[0x0005_90b8])
            .copy(1, 0x800_0000, DATA + BYTES + 0x8_0000, 0x800, 128)
            .semaphore(semaphore + 16, 2, 2),
        Methods::new()
            .to(2, 0, &[0x9039])
            .m2mf(2, DATA, DATA + BYTES + 0x4_0000, 0x100, 64)
            .semaphore(semaphore + 16, 2, 1)
            .release(semaphore + 32, 3),
    ];
    for (channel, job) in channels.iter_mut().zip(jobs) {
        bench.submit(channel, &job.0);
    }
    bench.runlist(&[0, 1, 2]);
    let mut budgets = budgets.iter().cycle();
    loop {
        let work = budgets.next().copied().unwrap_or(1);
        if bench.card.step(0, work) != Stepped::Busy {
            break;
        }
    }
    let result = bench.vram_bytes(vram + BYTES, BYTES as usize);
    (bench.card.gpu_time(), *bench.card.counters(), result)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_budgets_give_the_same_run(budgets in proptest::collection::vec(1u32..200, 1..8)) {
        let whole = run_with(&[u32::MAX]);
        let sliced = run_with(&budgets);
        prop_assert_eq!(whole.0, sliced.0);
        prop_assert_eq!(whole.1, sliced.1);
        prop_assert!(whole.2 == sliced.2);
    }
}
